"""A command with a time limit, and whatever it leaves behind: all that it starts carries a marker in its environment.

For watching a whole program from outside, as `evaluation/measure/cold_runs.py` does. Linux only: it reads /proc.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARKER = "KCG_MARKED_RUN"
LEFT_AFTER_S = 5.0  # a process that still lives so long after the command is left over


ROOT = Path(__file__).parents[2]


def cold_environment(folder: Path) -> dict[str, str]:
    """The environment of a process that finds nothing of an earlier one: its caches are in `folder`."""
    (folder / "tmp").mkdir()
    return {
        **os.environ,
        "CACHEDB": str(folder / "cache.db"),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
        "TMPDIR": str(folder / "tmp"),
        "XDG_CACHE_HOME": str(folder / "xdg"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }


@dataclass(frozen=True)
class WatchedRun:
    """How a command ended: `code` is None where it was killed at its limit; `left` counts what outlived it."""

    code: int | None
    seconds: float
    left: int
    out: str
    err: str


def run_watched(
    command: Sequence[str], environment: Mapping[str, str], *, cwd: Path, folder: Path, limit_s: float
) -> WatchedRun:
    """Run a command in a session of its own; its output goes through files in `folder`. Kills all that is left."""
    marker, begin = uuid.uuid4().hex, time.monotonic()
    code: int | None = None
    # files, not pipes: a child that is left over would keep a pipe open, and this process waiting
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**environment, MARKER: marker},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=limit_s)
            seconds = time.monotonic() - begin
            left = _left(marker) if code is not None else set()
        finally:
            _kill(marker)
            process.kill()
            process.wait()
        printed = [(folder / name).read_text().strip() for name in ("out", "err")]
    return WatchedRun(code, seconds, len(left), *printed)


def processes_of(marker: str) -> set[int]:
    """The ids of the living processes of a run, from /proc."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's; a zombie has no environment
            if f"{MARKER}={marker}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def _left(marker: str) -> set[int]:
    deadline = time.monotonic() + LEFT_AFTER_S
    while (left := processes_of(marker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _kill(marker: str) -> None:
    """Kill a run with everything that it started: its children have sessions and groups of their own."""
    deadline = time.monotonic() + LEFT_AFTER_S
    while (alive := processes_of(marker)) and time.monotonic() < deadline:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
