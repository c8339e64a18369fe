"""What a compiler may do to the child that it runs in. Module-level functions, since a child calls them by name."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kcg.measure import child
from kcg.measure.jobs import CompileJob


class TwoArguments(Exception):
    """An error that pickles and does not unpickle: it is rebuilt from its message alone."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} in {where}")


class HoldsFunction(Exception):
    """An error that does not even pickle."""

    def __init__(self) -> None:
        super().__init__("holds a function")
        self.function: Any = lambda: None


def loop_in_python(job: Any) -> None:
    while True:
        pass


def wait_in_native_code(job: Any) -> None:
    ctypes.CDLL(None).pause()


def wait_for_compiler(pid_file: str) -> None:
    """A compiler that is a process of its own, as clang is, and never ends."""
    process = subprocess.Popen(["sleep", "300"])
    Path(pid_file).write_text(str(process.pid))
    process.wait()


def segfault(job: Any) -> None:
    ctypes.string_at(0)


def kill_itself(job: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(job: Any) -> None:
    os._exit(3)


def exit_politely(job: Any) -> None:
    sys.exit(3)


def allocate(job: Any) -> None:
    bytearray(64 << 30)


def map_memory(job: Any) -> None:
    """As native code asks for memory, piece by piece."""
    hoard = []
    while True:
        hoard.append(mmap.mmap(-1, 1 << 30))


def compile_too_long_a_kernel(job: CompileJob) -> Any:
    """Compile as ever, under a limit on the length that every kernel exceeds."""
    from kcg.kernel import compiler

    limit, compiler.UOPS_MAX = compiler.UOPS_MAX, 3
    try:
        return child.compile_job(job)
    finally:
        compiler.UOPS_MAX = limit


def recurse(job: Any) -> None:
    recurse(job)


def raise_two_arguments(job: Any) -> None:
    raise TwoArguments("bad register", "line 3")


def raise_unpicklable(job: Any) -> None:
    raise HoldsFunction


def raise_long_text(job: Any) -> None:
    raise ValueError("first line\n" + "x" * 100_000)


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return time.monotonic()
