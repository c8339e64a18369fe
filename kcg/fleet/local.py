"""A fleet of this machine: a scheduler on loopback and its hosts, processes that end with the one that started them.

`python -m kcg.fleet.local scheduler` and `python -m kcg.fleet.local worker ADDRESS DEVICE GPU CORES BINARIES` are what
it starts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from kcg.cli import counted, guarded
from kcg.errors import DeviceError, ExitCode, UsageError
from kcg.fleet.settings import configure, quiet

if TYPE_CHECKING:
    from kcg.fleet.host import HostDevice

LOOPBACK = "tcp://127.0.0.1"
END_S = 10.0
MOST_HOSTS = 64


class LocalFleet:
    """A scheduler and hosts. Use as a context manager; `address` is the scheduler's."""

    def __init__(self, device: str, hosts: int | None, cores: int | None = None) -> None:
        """`hosts` share the GPUs, or the CPU's cores; by default one for each GPU, or one on a CPU.

        Raises UsageError where there are fewer GPUs, DeviceError where the device cannot be used.
        """
        configure()
        self._devices = _devices(device, hosts, cores)
        self._processes: list[subprocess.Popen[str]] = []
        self._errors: list[IO[str]] = []

    @property
    def hosts(self) -> int:
        return len(self._devices)

    @property
    def pids(self) -> list[int]:
        """Of the scheduler and of each host."""
        return [process.pid for process in self._processes]

    def __enter__(self) -> LocalFleet:
        try:
            scheduler = self._start("scheduler")
            assert scheduler.stdout is not None
            self.address = scheduler.stdout.readline().strip()
            self.check()
            for device in self._devices:
                self.add_host(device)
        except BaseException:
            self.close()
            raise
        return self

    def add_host(self, device: HostDevice | None = None) -> None:
        """Start a host; by default another one like the first."""
        device = device or self._devices[0]
        self._start(
            "worker", self.address, device.dev, device.gpu, str(device.cores or 0), str(int(device.takes_binaries))
        )

    def __exit__(self, *exc: object) -> None:
        self.close()

    def check(self) -> None:
        """Raises DeviceError where one of the processes has ended."""
        for process, errors in zip(self._processes, self._errors, strict=True):
            if process.poll() is not None:
                errors.seek(0)
                last = (errors.read().strip().splitlines() or [f"exit code {process.returncode}"])[-1]
                raise DeviceError(f"a process of the local fleet ended: {last.removeprefix('kcg: ')}")

    def close(self) -> None:
        """End all of them: what they did not finish is lost to nobody but them."""
        for process in reversed(self._processes):
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for errors in self._errors:
            errors.close()
        self._processes, self._errors = [], []

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # it is open as long as the process
        process = subprocess.Popen(
            [sys.executable, "-m", "kcg.fleet.local", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if arguments[0] == "scheduler" else subprocess.DEVNULL,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for the driver, which ends them
        )
        self._processes.append(process)
        self._errors.append(errors)
        return process


def _devices(device: str, hosts: int | None, cores: int | None) -> Sequence[HostDevice]:
    from kcg.fleet.host import devices_here
    from kcg.measure.device_info import usable_cores

    here = devices_here(device, cores)
    if hosts is None:
        return here
    if not 1 <= hosts <= MOST_HOSTS:
        raise UsageError(f"--fleet local:{hosts}: 1 to {MOST_HOSTS} hosts")
    if here[0].gpu:
        if hosts > len(here):
            raise UsageError(f"--fleet local:{hosts}: this machine has {counted(len(here), 'GPU')}")
        return here[:hosts]
    return [replace(here[0], cores=max(1, (cores or usable_cores()) // hosts))] * hosts


async def _schedule() -> None:
    """A scheduler on a free port of the loopback interface, which says its address."""
    from kcg.fleet.servers import FleetScheduler

    quiet(asyncio.get_running_loop())
    async with FleetScheduler(host=f"{LOOPBACK}:0") as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()


def _end_with_parent() -> None:
    """End this process when its standard input does: whoever holds the other end is gone, or wants that."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="kcg-parent", daemon=True).start()


def main() -> ExitCode | None:
    """One process of a local fleet."""
    what, *rest = sys.argv[1:]
    _end_with_parent()
    configure()
    if what == "scheduler":
        asyncio.run(_schedule())
        return None
    from kcg.fleet.host import HostDevice, serve

    address, dev, gpu, cores, takes_binaries = rest
    return serve(address, None, [HostDevice(dev, gpu, int(cores) or None, bool(int(takes_binaries)))])


if __name__ == "__main__":
    guarded(main)
