"""Which processes exist, read from /proc: who descends from whom, and who still lives."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from kcg.measure.lifetime import GUARDIAN

TRACKER = b"resource_tracker import main"  # the name alone is in every command line after a command has run here


def _parents() -> dict[int, int]:
    """Process id -> parent's, of all that are no zombies."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            found[int(stat.parent.name)] = int(parent)
    return found


def descendants(pid: int) -> set[int]:
    """All processes below `pid`, but for two of multiprocessing's own, which end with the last that uses them: its
    resource tracker and its fork server. What the server forked has the same command line."""
    found = below(pid)
    return {child for child in found if TRACKER not in command_line(child)} - fork_servers(found)


def below(pid: int) -> set[int]:
    """All processes below `pid`."""
    parents = _parents()
    found: set[int] = set()
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= level
    return found


def fork_servers(pids: set[int]) -> set[int]:
    """Those of `pids` that are fork servers."""
    parents = _parents()
    forked = {pid for pid in pids if b"forkserver" in command_line(pid)}
    return {pid for pid in forked if b"forkserver" not in command_line(parents.get(pid, 0))}


def guardians(pid: int) -> set[int]:
    """The guardians among the descendants of `pid`. One whose child is gone descends from nobody here, and ends."""
    return {child for child in descendants(pid) if _name(child) == GUARDIAN.decode()}


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def kill(pids: set[int]) -> None:
    """End these at once. Of a child that was killed the guardian may end before its own turn."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def alive(pids: set[int]) -> set[int]:
    return pids & set(_parents())


MARK = "KCG_TEST_PROCESS"
"""A variable in the environment of all that a process of the tests starts: its id."""
os.environ[MARK] = str(os.getpid())


def holding(text: bytes) -> set[int]:
    """Processes with `text` in their environment that this one, or what it started, began: others test at once."""
    found, ours = set(), f"{MARK}={os.environ[MARK]}".encode()
    for pid in _parents():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if text in environment and ours in environment.split(b"\0"):
                found.add(pid)
        except OSError:
            continue
    return found


def wait_for_end(*_: object) -> None:
    """A child that does nothing until it is killed, or alone."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.1)
