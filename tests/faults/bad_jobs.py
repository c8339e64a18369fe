"""What a job may do to the child that it runs in. Module-level functions, since a child calls them by name."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from kcg.files import write_whole
from kcg.measure import child
from kcg.measure.canary import CanaryReading
from kcg.measure.jobs import CompileJob, StressJob, StressOutcome
from tests.faults import processes

FOR_EVER_S = 36_000.0  # of what never ends: longer than any test waits for an end that would come by itself


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
    process = subprocess.Popen(["sleep", str(int(FOR_EVER_S))])
    write_whole(Path(pid_file), str(process.pid))
    process.wait()


def hold_interpreter(job: Any) -> None:
    """Native code that never ends and lets no other thread and no signal handler of Python run."""
    ctypes.PyDLL(None).pause()


def start_family(pid_file: str) -> set[int]:
    """Start a process that starts another. Gives this process, both of them, and its guardian if there is one."""
    script = f"sleep {FOR_EVER_S:.0f} & echo $! >{pid_file}.part; mv {pid_file}.part {pid_file}.inner; wait"
    inner = Path(f"{pid_file}.inner")
    inner.unlink(missing_ok=True)  # of a first try
    outer = subprocess.Popen(["sh", "-c", script])
    while not inner.exists():
        time.sleep(0.01)
    family = {os.getpid(), outer.pid, int(inner.read_text())} | processes.guardians(os.getpid())
    write_whole(Path(pid_file), json.dumps(sorted(family)))
    return family


def start_family_and_hold(pid_file: str) -> None:
    start_family(pid_file)
    hold_interpreter(None)


def start_family_and_die(pid_file: str) -> None:
    start_family(pid_file)
    kill_itself(None)


def fork_and_die(pid_file: str) -> None:
    """Leave a copy of this process, which has all of its open files."""
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    write_whole(Path(pid_file), json.dumps([os.getpid(), pid]))
    kill_itself(None)


def surroundings() -> dict[str, Any]:
    """What a child, and a process that it starts, has of the user's terminal; and whose groups they are in."""
    shown = "readlink /proc/self/fd/0; ps -o pgid= -p $$"
    stdin, group = subprocess.run(["sh", "-c", shown], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return {
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "stdin": str(Path("/proc/self/fd/0").readlink()),
        "inner stdin": stdin,
        "inner group": int(group),
    }


def segfault(job: Any) -> None:
    ctypes.string_at(0)


def kill_itself(job: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def abort_in_triton(job: Any) -> None:
    """An assertion of Triton's native code fails, as it does for some programs."""
    from triton._C.libtriton import ir

    context = ir.context()  # without the dialect of what is built in it
    ir.builder(context).get_int32(1)


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
    from kcg.kernel import compile as compiler

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


def leave_quietly(asked: str) -> int:
    """Let this process end once the file `asked` is there, with an exit code that pools take for an intended end."""

    def leave_when_asked() -> None:
        while not Path(asked).exists():
            time.sleep(0.01)
        os._exit(0)

    threading.Thread(target=leave_when_asked, daemon=True).start()
    return os.getpid()


def raise_text(text: str) -> None:
    raise RuntimeError(text)


def planned_canary(folder: str, dev: str, known: object = None) -> CanaryReading:
    """Fly as the first line of the file `plan` says, and take that line out unless it is the last.

    A line is the milliseconds that the canary takes, or `wrong`, `die`, `hang`, or `raise`.
    """
    note(folder, "canary")
    plan = Path(folder) / "plan"
    line, *rest = plan.read_text().split()
    if rest:
        plan.write_text("\n".join(rest))
    if line == "die":
        kill_itself(None)
    if line == "hang":
        time.sleep(FOR_EVER_S)
    if line == "raise":
        raise_text("the canary does not start")
    if line == "wrong":
        return CanaryReading(0.001, (0.001,), "element 7 is 0, not 28")
    return CanaryReading(float(line) / 1e3, (float(line) / 1e3,))


def note(folder: str, what: str) -> int:
    """Append what runs, and in which process, to the file `log`."""
    with (Path(folder) / "log").open("a") as log:
        log.write(f"{what} {os.getpid()}\n")
    return os.getpid()


def note_and_die(folder: str) -> None:
    """Die as of a fault of its own: what is killed from outside gets another chance."""
    note(folder, "crash")
    os.kill(os.getpid(), signal.SIGSEGV)


def note_and_be_killed(folder: str, times: int) -> int:
    """Be killed as by Linux where memory runs out, but only the first times."""
    pid = note(folder, "killed")
    if sum(line.startswith("killed") for line in (Path(folder) / "log").read_text().splitlines()) <= times:
        kill_itself(None)
    return pid


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return time.monotonic()


def under_stress(job: StressJob, happens: str) -> StressOutcome:
    """A stress job to whose process something happens in between: before the first launch that empties the cache."""

    class Flusher:
        def flush(self) -> None:
            if happens == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if happens == "faults":
                ctypes.string_at(0)
            if happens == "memory":
                raise MemoryError("no memory for a copy of its output")
            while True:
                time.sleep(1)

    child._flusher = lambda target: Flusher()
    return child.stress_job(job)
