"""How a child process begins and ends: with its parent, with all that it started, with nothing of the user's.

Three things end a child, and none needs its Python to run, since native code may hold the interpreter for ever: SIGTERM
or SIGKILL from its pool, PR_SET_PDEATHSIG when its parent dies, and its own faults. Whichever it was, the child's
*guardian* sees it and kills what the child started: a compiler inherits no death signal, and nobody else would.

Module-level functions: a pool calls them by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import forkserver, spawn
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from kcg.errors import KcgError

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
GUARDIAN = b"kcg-guardian"  # what `ps` and /proc/PID/comm call it
BEGINS_S = 5.0  # how long a process waits for its guardian: no longer than a busy machine takes
ORPHAN_POLL_S = 0.5
PRELOADED: Final = "kcg.measure.preloaded"  # in the fork server, and in what it forked
COMPILER_MEMORY_BYTES = 8 << 30
"""What a compiling child may map. A compiler that wants more gets a MemoryError, not the machine's last byte."""

Kinds = tuple[tuple[str, str, tuple[str, ...]], ...]

_starting = threading.local()
_patching = threading.Lock()


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Inside the block, processes that this thread starts by multiprocessing do not import the program's main module.

    Nothing that they are given is defined there, and a script that calls kcg would run again in each of them.
    """
    with _patching:
        if getattr(prepared := spawn.get_preparation_data, "__module__", "") != __name__:

            def get_preparation_data(name: str) -> dict[str, Any]:
                data: dict[str, Any] = prepared(name)
                if getattr(_starting, "without_main", False):
                    for key in ("init_main_from_name", "init_main_from_path"):
                        data.pop(key, None)
                return data

            spawn.get_preparation_data = get_preparation_data
    _starting.without_main = True
    try:
        yield
    finally:
        _starting.without_main = False


class FreshProcess(SpawnProcess):
    """A process that begins afresh, `without_main`. It is here since a child imports its module first of all, before
    `start`: that module may not import tinygrad."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:
        with without_main():
            return SpawnProcess._Popen(process_obj)


BEHIND = 10  # the niceness of what compiles beside a GPU


def start(dev: str, parent_pid: int, cache_db: str, gpu: str = "", kinds: Kinds = ()) -> None:
    """Initialise a child: dies with its parent and takes what it started with it, leaves Ctrl-C to the parent, reads
    no terminal, never touches the user's tinygrad cache. `gpu` is what `CUDA_VISIBLE_DEVICES` is to show it; empty:
    what it shows its parent. `kinds` are those of schedules that the parent knows (`kcg.kernel.kinds.registered`)."""
    _begin(parent_pid)
    _settings(dev, cache_db, gpu)
    from kcg.kernel.kinds import register

    register(kinds)


def start_compiler(dev: str, parent_pid: int, cache_db: str, gpu: str = "", kinds: Kinds = ()) -> None:
    """Initialise a compiling child: as `start`, with limited memory, and behind whoever uses a GPU in the line for a
    core: sixteen compilers on as many cores made each comparison of a run on one NVIDIA H200 take twice as long. It has
    loaded what a job needs: a child reads its first one under a lock of all children, and what that would import
    sixteen of them imported one after the other (half a second each, of a run's first ten). NumPy's BLAS has one thread
    in it: others would wait for those of as many children."""
    from threadpoolctl import threadpool_limits

    start(dev, parent_pid, cache_db, gpu, kinds)
    if not dev.startswith("CPU") and hasattr(os, "nice"):
        os.nice(BEHIND)
    import kcg.kernel.compile  # seconds that are not the first kernel's
    import kcg.measure.child  # noqa: F401
    from kcg.compat.workers import stop_collecting

    stop_collecting()
    threadpool_limits(1, user_api="blas")
    with contextlib.suppress(ImportError, OSError, ValueError):  # no such limit on this system
        import resource

        # what is mapped by now counts extra: libraries reserve gigabytes that they never touch, more with more cores
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + COMPILER_MEMORY_BYTES
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(hard, limit), hard))


def _begin(parent_pid: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler in Python would not run while native code does
    if hasattr(os, "fork"):
        os.setpgid(0, 0)  # a group of its own: this process and what it starts, e.g. clang
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # such a group may be stopped for writing to the terminal
        guard(parent_pid)  # first of all: what is loaded later is not in its copy of this process
        _no_stdin()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        # the signal comes when the *thread* that started this child ends: those of the pools outlive their children.
        # A fork server ends with its parent
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != (_fork_server() or parent_pid):  # the parent died before prctl was called
            os._exit(1)
    else:
        _watch_parent(parent_pid)
    _die_first()


def _fork_server() -> int | None:
    """In a process that a fork server forked: that server's process id, once this one keeps it alive no more.

    The server is to end with the process that started it, and so all that it forked: it waits for the end of a pipe
    whose other end it gives to each of them.
    """
    if (preloaded := sys.modules.get(PRELOADED)) is None:
        return None
    server: Any = forkserver._forkserver
    if (descriptor := server._forkserver_alive_fd) is not None:
        server._forkserver_alive_fd = None
        os.close(descriptor)
    return int(preloaded.SERVER_PID)


def guard(measuring: int | None = None) -> None:
    """Fork a guardian: it waits for the end of this process, whatever ends it, and kills the group that this one leads.

    Out of its reach is only a process that left the group by itself. In what a fork server forked it waits for the end
    of the process that is `measuring` too, and then kills the server with this one: one that is stopped does not see
    that end.
    """
    group, libc = os.getpid(), ctypes.CDLL(None)
    begun, beginning = os.pipe()
    watched = [os.pipe()[0]]  # the other end is never closed: the system does it when this process ends
    measures = server = -1
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or an old one
        # a process forked from this one without exec has that other end too: it hides the end from the pipe, not here
        watched.append(os.pidfd_open(group))
        if measuring is not None and (preloaded := sys.modules.get(PRELOADED)) is not None:
            server = os.pidfd_open(preloaded.SERVER_PID)
            watched.append(measures := os.pidfd_open(measuring))
    with warnings.catch_warnings():
        # where threads run already, newer Pythons warn: a lock that one holds stays locked in the copy. It takes none
        warnings.simplefilter("ignore", DeprecationWarning)
        guardian = os.fork()
    if guardian == 0:
        try:
            if measures in _outlive(group, watched, server, libc) and server >= 0:
                signal.pidfd_send_signal(server, signal.SIGKILL)
        finally:  # on no path into what this process would do at its end
            os._exit(0)
    os.close(beginning)
    select.select([begun], [], [], BEGINS_S)  # the end of its copy: no signal to this group reaches the guardian now
    for descriptor in (begun, *watched, server):
        if descriptor >= 0:
            os.close(descriptor)


def _outlive(group: int, watched: list[int], server: int, libc: ctypes.CDLL) -> list[int]:
    """The guardian's life. Gives those of `watched` whose end it was."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()  # no signal of a terminal, or to the child's group, ends it
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_NAME, GUARDIAN)
    # whoever reads a pipe of the child's is to see its end, and this copy holds the other end of its own pipe
    for name in os.listdir("/dev/fd"):  # noqa: PTH208  # a plain call: nothing is to be loaded here
        if int(name) not in (*watched, server):
            with contextlib.suppress(OSError):
                os.close(int(name))
    ended = select.select(watched, [], [])[0]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    return ended


def children_of(pid: int) -> list[int]:
    """The children of a process, by their ids; none where the system does not tell."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def guardians_of(pids: Iterable[int]) -> list[int]:
    """The guardians of these children, by their ids."""
    found = []
    for child in (child for pid in pids for child in children_of(pid)):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/comm").read_bytes().strip() == GUARDIAN:
                found.append(child)
    return found


def wake(guardians: Iterable[int]) -> None:
    """Let guardians go on that somebody stopped (SIGSTOP): at the end of their child they do what is left, and end."""
    for guardian in guardians:
        with contextlib.suppress(OSError):
            os.kill(guardian, signal.SIGCONT)


def _no_stdin() -> None:
    """Give the child, and the compilers that it starts, an empty standard input instead of the user's terminal."""
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    if empty != 0:
        os.close(empty)


def without_the_users_settings() -> None:
    """What tinygrad is not to find in the environment while it is imported."""
    os.environ.pop("BEAM", None)
    os.environ["DEBUG"] = "0"


def _settings(dev: str, cache_db: str, gpu: str) -> None:
    without_the_users_settings()
    if gpu:  # before anything asks the driver, which reads it once
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    from kcg.compat.device import prepare, use_cache

    use_cache(cache_db)

    prepare(dev)


def _die_first() -> None:
    """Where memory runs out, Linux is to kill this child and not its parent."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _watch_parent(parent_pid: int) -> None:
    """Where the system has no death signal: end when the parent is gone, unless native code holds the interpreter."""

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(ORPHAN_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, name="kcg-orphan", daemon=True).start()


class AnotherChild(Exception):
    """The job reached a child that is not the one it was meant for."""


def call_in(pid: int | None, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """As `call`, but only in the process `pid`: a pool whose idle child ends quietly starts another unasked."""
    if pid not in (None, os.getpid()):
        raise AnotherChild
    return call(function, args)


def call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run a job. Whatever it raises becomes an error that any process can unpickle: one that cannot breaks the pool."""
    from kcg.measure.device_info import first_line

    try:
        return function(*args)
    except BaseException as error:
        line = first_line(error)
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            raise MemoryError("out of memory" if line in ("", "MemoryError") else line) from None
        if isinstance(error, KcgError) and type(error).__init__ is Exception.__init__:
            raise type(error)(line) from None
        raise RuntimeError(line if line == type(error).__name__ else f"{type(error).__name__}: {line}") from None
