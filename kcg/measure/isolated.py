"""One job in a process of its own that starts processes of its own, and all of them can be killed.

A plain subprocess and not a pool's worker, which is a daemon and may not have children. The job is one line of JSON on
standard input, the answer the last line of standard output: `python -m <module> < job.json`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcg.kernel.kinds import register, registered

KINDS = "kinds"  # of a job: the kinds of schedules that the parent knows
POLL_S = 0.05
END_S = 10.0  # how long the end of a process is waited for that was killed
FOREIGN = ("BEAM", "IGNORE_BEAM_CACHE", "CACHELEVEL", "NOOPT", "JIT", "JITBEAM")
"""A shell's settings that choose other schedules, leave the cache unused, or nothing captured."""


def clean_environment(dev: str, cachedb: Path | str, *, paths: Sequence[Path] = (), **settings: str) -> dict[str, str]:
    """The environment of a process that runs tinygrad on `dev` as it does by itself, whatever the user's shell says.

    `cachedb` is its cache, never the user's own; it finds modules in `paths` first; `settings` are what else it gets.
    """
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    environment |= {"DEV": dev, "DEBUG": "0", "CACHEDB": str(cachedb), **settings}
    if paths:
        known = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *filter(None, [known])])
    return environment


@dataclass(frozen=True)
class Ended:
    """How it went: the exit code (negative: killed by that signal) and the lines that were printed."""

    returncode: int
    out: tuple[str, ...]
    err: tuple[str, ...]

    @property
    def last_words(self) -> str:
        """The last line of standard error, or how the process died."""
        if self.returncode < 0:
            return f"it was killed by {_signal_name(-self.returncode)}"
        return self.err[-1] if self.err else f"exit code {self.returncode}, no message"


OVERDUE = "did not finish in"
"""What an `Overdue` says before the seconds."""


class Overdue(TimeoutError):
    """It did not finish in time and was killed; `out` are the lines that it had printed by then."""

    def __init__(self, message: str, out: tuple[str, ...]) -> None:
        super().__init__(message)
        self.out = out


class IsolatedProcess:
    """A process `python -m module *arguments` with `DEV=dev` and a tinygrad cache of its own, which waits for a job.

    Use as a context manager: leaving it kills the process with all that it started. `label` is in the name of its
    temporary folder, `settings` are what else is in its environment.
    """

    def __init__(
        self,
        module: str,
        *,
        dev: str,
        label: str,
        arguments: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=f"kcg-{label}-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        environment = clean_environment(dev, folder / "tinygrad-cache.db") | dict(settings or {})
        self._killed = False
        self._sender: threading.Thread | None = None
        # files and not pipes: a process that the child leaves behind would hold a pipe open, and the reader with it
        self._out, self._err = (folder / "out").open("w+"), (folder / "err").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=environment,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=self._err,
        )

    def __enter__(self) -> IsolatedProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def tell(self, words: dict[str, Any]) -> None:
        """Give it what it can prepare by before its job is there: one line of a few hundred bytes, so that nobody waits
        for it to be read."""
        _send(self._process, _line(words))

    def run(self, job: dict[str, Any], *, timeout_s: float, name: str, stop: threading.Event | None = None) -> Ended:
        """Give it its job, once, and wait for its end. `name` says what it is, in the message of a timeout.

        Raises Overdue after killing all of it, ServiceClosed if `stop` was set meanwhile.
        """
        overdue = False
        try:
            # beside this thread: a pipe holds 64 KiB, and a process that is stopped or hangs reads nothing
            line = _line(job | {KINDS: registered()})
            self._sender = threading.Thread(target=_send, args=(self._process, line), name="kcg-job", daemon=True)
            self._sender.start()
            overdue = not _finished(self._process, timeout_s, stop)
        finally:
            self._kill()  # what it started too
        printed = []
        for stream in (self._out, self._err):
            stream.seek(0)
            printed.append(tuple(stream.read().strip().splitlines()))
        if overdue:
            raise Overdue(f"{name} {OVERDUE} {round(timeout_s, 1) or timeout_s:g} s", printed[0])
        return Ended(self._process.returncode, *printed)

    def close(self) -> None:
        """Kill it, and remove its files."""
        self._kill()
        for stream in (self._out, self._err):
            stream.close()
        self._folder.cleanup()

    def _kill(self) -> None:
        if self._killed:
            return  # its number may be another's by now
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # one in a call of a driver may not end
            self._process.wait(END_S)
        if self._sender is not None:
            self._sender.join(END_S)
            if self._sender.is_alive():  # a process that left the group holds the other end
                return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()


def run_isolated(
    module: str,
    job: dict[str, Any],
    *,
    dev: str,
    timeout_s: float,
    name: str,
    label: str,
    stop: threading.Event | None = None,
) -> Ended:
    """Run `python -m module` on `job`, as `IsolatedProcess` has it."""
    with IsolatedProcess(module, dev=dev, label=label) as process:
        return process.run(job, timeout_s=timeout_s, name=name, stop=stop)


def _finished(process: subprocess.Popen[bytes], timeout_s: float, stop: threading.Event | None) -> bool:
    """Wait for the end. Its pipe stays open: its end tells the process that this one is gone."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None:
        if stop is not None and stop.is_set():
            from kcg.measure.pools import ServiceClosed  # loads tinygrad, which a child of this module may not

            raise ServiceClosed
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _line(values: dict[str, Any]) -> bytes:
    return (json.dumps(values) + "\n").encode()


def _send(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):  # it died at once: its exit code and its last words say more
        process.stdin.write(line)
        process.stdin.flush()


class Awaited:
    """The lines for a child, what it was told and then its job, which may be on their way. Called, it waits for the
    next one."""

    def __init__(self, lines: queue.SimpleQueue[str]) -> None:
        self._lines = lines

    @property
    def is_there(self) -> bool:
        """Whether a line came, and nobody took it yet."""
        return not self._lines.empty()

    def __call__(self) -> dict[str, Any]:
        job: dict[str, Any] = json.loads(self._lines.get())
        register(job.pop(KINDS, ()))
        return job


def listening(*, aside: bool = False) -> Awaited:
    """In the child: what waits for the job. From here on the child, and what it starts, dies with its parent. With
    `aside` the job does not come by standard input, which is empty then: what runs in the child may read it."""
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    pipe, stream = 0, sys.stdin
    if aside:
        pipe = os.dup(0)  # which processes that the child starts do not inherit
        stream = os.fdopen(pipe)
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), 0)

    def watch() -> None:
        while line := stream.readline():
            jobs.put(line)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    return Awaited(jobs)


def receive() -> dict[str, Any]:
    """In the child: the job, as soon as it is there."""
    return listening()()


def answer(value: object) -> None:
    """In the child: one line for the parent, at once; the last one is the answer."""
    print(json.dumps(value), flush=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
