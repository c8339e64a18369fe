"""How a child process begins and ends: with its parent, with all that it started, with nothing of the user's.

Module-level functions: a pool calls them by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcg.errors import KcgError

PR_SET_PDEATHSIG = 1
ORPHAN_POLL_S = 0.5
COMPILER_MEMORY_BYTES = 8 << 30
"""What a compiling child may map. A compiler that wants more gets a MemoryError, not the machine's last byte."""


def start(dev: str, parent_pid: int, cache_db: str) -> None:
    """Initialise a child: dies with its parent, leaves Ctrl-C to it, never touches the user's tinygrad cache."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler in Python would not run while a kernel does
    _die_first()
    if hasattr(ctypes.CDLL(None), "prctl"):
        # the signal comes when the *thread* that started this child ends: the device's own, which outlives it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # the parent died before prctl was called
            os._exit(1)
    else:
        _watch_parent(parent_pid, lambda: os._exit(1))
    _settings(dev, cache_db)


def start_compiler(dev: str, parent_pid: int, cache_db: str) -> None:
    """Initialise a compiling child: as `start`, with limited memory, and takes the compilers it started with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_first()
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # a group of its own: this process and what it starts, e.g. clang
        signal.signal(signal.SIGTERM, lambda *_: _kill_group())
        _watch_parent(parent_pid, _kill_group)
    _settings(dev, cache_db)
    import kcg.kernel.compiler  # noqa: F401  # seconds that are not the first kernel's

    with contextlib.suppress(ImportError, OSError, ValueError):  # no such limit on this system
        import resource

        # what is mapped by now counts extra: libraries reserve gigabytes that they never touch, more with more cores
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + COMPILER_MEMORY_BYTES
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(hard, limit), hard))


def _settings(dev: str, cache_db: str) -> None:
    os.environ["CACHEDB"] = cache_db
    os.environ.pop("BEAM", None)
    os.environ["DEBUG"] = "0"
    from kcg.compat.device import prepare

    prepare(dev)


def _die_first() -> None:
    """Where memory runs out, Linux is to kill this child and not its parent."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _kill_group() -> None:
    os.killpg(0, signal.SIGKILL)


def _watch_parent(parent_pid: int, orphaned: Callable[[], None]) -> None:
    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(ORPHAN_POLL_S)
        orphaned()

    threading.Thread(target=watch, name="kcg-orphan", daemon=True).start()


def call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run a job. Whatever it raises becomes an error that any process can unpickle: one that cannot breaks the pool."""
    from kcg.measure.target import first_line

    try:
        return function(*args)
    except BaseException as error:
        line = first_line(error)
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            raise MemoryError("out of memory" if line in ("", "MemoryError") else line) from None
        if isinstance(error, KcgError) and type(error).__init__ is Exception.__init__:
            raise type(error)(line) from None
        raise RuntimeError(line if line == type(error).__name__ else f"{type(error).__name__}: {line}") from None
