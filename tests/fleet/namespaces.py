"""Machines of a test: network namespaces on one switch, each with a process tree of its own that ends with the test.

Needs root, or at least the right to make network namespaces: `permitted` says why not.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

PREFIX = "kcg"
_numbers = itertools.count()


@dataclass
class Host:
    """A machine: an address, a namespace, and the processes that were started in it."""

    namespace: str
    address: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self, *command: object, timeout: float = 120.0, **settings: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in it, to its end."""
        return subprocess.run(
            self._inside(command), capture_output=True, text=True, check=False, timeout=timeout, **settings
        )

    def start(
        self, *command: object, stderr: IO[Any] | int = subprocess.PIPE, **settings: Any
    ) -> subprocess.Popen[str]:
        """Start a command in it that goes on: it is killed with all that it started at the end of the network."""
        process = subprocess.Popen(
            self._inside(command), stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True, **settings
        )
        self.started.append(process)
        return process

    def _inside(self, command: tuple[object, ...]) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *map(str, command)]

    def disconnect(self) -> None:
        """Take its cable out: nothing answers, and no connection is closed."""
        _ip("-n", self.namespace, "link", "set", "eth0", "down")

    def kill(self) -> None:
        """End all of its processes at once, as a machine without power does."""
        done = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False)
        for pid in done.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):  # it may not have come as far as the namespace
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self.started.clear()


@contextlib.contextmanager
def network(hosts: int = 2) -> Iterator[list[Host]]:
    """Machines 10.99.0.1, 10.99.0.2 … that reach each other and nothing else. All of it is gone afterwards."""
    _remove_left_over()
    name = f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
    made = [Host(f"{name}-{number}", f"10.99.0.{number}") for number in range(1, hosts + 1)]
    switch = f"{name}-switch"
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for number, host in enumerate(made):
            _ip("netns", "add", host.namespace)
            _ip("-n", switch, "link", "add", f"port{number}", "type", "veth", "peer", "eth0", "netns", host.namespace)
            _ip("-n", switch, "link", "set", f"port{number}", "master", "switch", "up")
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", host.namespace, "link", "set", device, "up")
        yield made
    finally:
        for host in made:
            host.kill()
        for namespace in (switch, *(host.namespace for host in made)):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


@functools.cache
def not_permitted() -> str:
    """Why this process cannot make namespaces; empty where it can."""
    if shutil.which("ip") is None:
        return "network namespaces need the command `ip`"
    try:
        with network(1):
            return ""
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not permitted here: {error.stderr.strip()}"


def _remove_left_over() -> None:
    """Remove what a process left that was killed."""
    for path in Path("/run/netns").glob(f"{PREFIX}-*-*"):
        owner = path.name.split("-")[1]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            Host(path.name, "").kill()
            subprocess.run(["ip", "netns", "del", path.name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
