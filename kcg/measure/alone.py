"""One job in a process of its own that starts processes of its own, and all of them can be killed.

A plain subprocess and not a pool's worker, which is a daemon and may not have children. The job is one line of JSON on
standard input, the answer the last line of standard output: `python -m <module> < job.json`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcg.measure.pools import ServiceClosed

POLL_S = 0.05


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


class Overdue(TimeoutError):
    """It did not finish in time and was killed; `out` are the lines that it had printed by then."""

    def __init__(self, message: str, out: tuple[str, ...]) -> None:
        super().__init__(message)
        self.out = out


def run_alone(
    module: str,
    job: dict[str, Any],
    *,
    dev: str,
    timeout_s: float,
    name: str,
    label: str,
    stop: threading.Event | None = None,
) -> Ended:
    """Run `python -m module` on `job` with `DEV=dev` and a tinygrad cache of its own; whatever it started dies with it.

    `name` says what it is, in the message of a timeout; `label` is in the name of its temporary folder. Raises Overdue
    after killing all of it, ServiceClosed if `stop` was set meanwhile.
    """
    with tempfile.TemporaryDirectory(prefix=f"kcg-{label}-") as folder:
        environment = {**os.environ, "DEV": dev, "DEBUG": "0"}
        environment["CACHEDB"] = str(Path(folder) / "tinygrad-cache.db")  # never the user's own
        # a shell's settings that choose other schedules, or leave nothing captured
        for foreign in ("BEAM", "JITBEAM", "NOOPT", "JIT"):
            environment.pop(foreign, None)
        # files and not pipes: a process that the child leaves behind would hold a pipe open, and the reader with it
        with (Path(folder) / "out").open("w+") as out, (Path(folder) / "err").open("w+") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", module], env=environment, start_new_session=True,
                stdin=subprocess.PIPE, stdout=out, stderr=err,
            )  # fmt: skip
            overdue = False
            try:
                overdue = not _finished(process, json.dumps(job) + "\n", timeout_s, stop)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it started too
                process.wait()
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            printed = []
            for stream in (out, err):
                stream.seek(0)
                printed.append(tuple(stream.read().strip().splitlines()))
    if overdue:
        raise Overdue(f"{name} did not finish in {timeout_s:.3g} s", printed[0])
    return Ended(process.returncode, *printed)


def _finished(process: subprocess.Popen[bytes], line: str, timeout_s: float, stop: threading.Event | None) -> bool:
    """Send the job and wait. Its pipe stays open: its end tells the process that this one is gone."""
    deadline = time.monotonic() + timeout_s
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once: its exit code and its last words say more
        process.stdin.write(line.encode())
        process.stdin.flush()
    while process.poll() is None:
        if stop is not None and stop.is_set():
            raise ServiceClosed
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def receive() -> dict[str, Any]:
    """In the child: the job. From here on the child, and what it starts, dies with its parent."""
    job: dict[str, Any] = json.loads(sys.stdin.readline())

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    return job


def answer(value: dict[str, Any]) -> None:
    """In the child: one line for the parent, at once; the last one is the answer."""
    print(json.dumps(value), flush=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
