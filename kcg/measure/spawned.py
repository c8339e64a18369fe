"""`pebble`'s pools of processes that hold nothing of their parent's, ended without a word from one that had not begun.

Each begins afresh, or on Linux may be forked by a server that has loaded what all of them need
(`kcg.measure.preloaded`) and opened nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, forkserver, popen_forkserver, util
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess, SpawnContext
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import RLock
from pathlib import Path
from typing import Any, Final

from pebble import ProcessPool

from kcg.commandline import at_once
from kcg.measure import lifeline
from kcg.measure.lifeline import PRELOADED

log = logging.getLogger(__name__)

SET_BY_CHILDREN: Final = ("BEAM", "CACHEDB", "CC", "DEBUG", "DEV", "PYTEST_CURRENT_TEST")
"""Variables that may differ: children set these themselves (`kcg.measure.lifeline`), or do not read them."""

START_S = 60.0
"""How long a fork server may take to fork, its own start included: half a second on a machine that has nothing else to
do. One that takes longer is killed, and another takes its place."""
STOPPED_S = 2.0
"""How long it may be stopped (SIGSTOP, a debugger) while a process is wanted of it. Not at once: who stops and
continues this program does so with all of its processes, one after the other."""
TELL_S = 1.0  # how long after the end of a process its fork server may take to tell the exit code
END_S = 10.0  # how long the end of a pool is waited for: its processes get SIGTERM, and SIGKILL 3 s later
SETTLED_S = 5.0  # so long after a fork server was killed are its children seen to die
SERVERS = 3  # fork servers that may fail in a row before children begin without one
POLL_S = 0.1


class _KeptLocks(BaseContext):
    """Holds on to every lock that it makes.

    A pool drops its locks first and ends its processes then. The end of a lock takes its semaphore's name away, and a
    process that began in between, e.g. in place of one that just died, would find none by that name and print a
    traceback.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[RLock] = []

    def RLock(self) -> RLock:
        self._kept.append(lock := super().RLock())
        return lock


class _Spawning(_KeptLocks, SpawnContext):
    pass


class _ForkedPopen(popen_forkserver.Popen):
    """A process that the fork server forked. Unlike its base it never waits for a server that says nothing any more."""

    _pidfd: int | None = None

    def _launch(self, process_obj: BaseProcess) -> None:
        with _server.watched():
            super()._launch(process_obj)  # type: ignore[misc]
        with contextlib.suppress(AttributeError, OSError):  # an old Linux, or it has ended already
            self._pidfd = os.pidfd_open(self.pid)
            util.Finalize(self, os.close, (self._pidfd,))

    def wait(self, timeout: float | None = None) -> int | None:
        if self.returncode is None:
            watched = [self.sentinel, *([] if self._pidfd is None else [self._pidfd])]
            if self.sentinel in connection.wait(watched, timeout) or (
                # it has ended, or time is up: a moment for the server to say how
                self._has_ended() and self.sentinel in connection.wait([self.sentinel], TELL_S)
            ):
                self.returncode = self._told()
            elif self._has_ended():
                self.returncode = -signal.SIGKILL
        return self.returncode

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        return self.wait(0.0 if flag == os.WNOHANG else None)

    def _has_ended(self) -> bool:
        """Whether the process is gone, or a zombie that a stopped server does not bury."""
        return self._pidfd is not None and self._pidfd in connection.wait([self._pidfd], 0)

    def _told(self) -> int:
        """The exit code, as the server tells it. Where the server is gone, its children were killed with it."""
        try:
            return int(forkserver.read_signed(self.sentinel))
        except (OSError, EOFError):
            return -signal.SIGKILL


class _ForkedProcess(ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:
        return _ForkedPopen(process_obj)


class _Forking(_KeptLocks, ForkServerContext):
    Process = _ForkedProcess


def _environment() -> dict[str, str]:
    """What of this process's environment a child would find as it is."""
    return {name: value for name, value in os.environ.items() if name not in SET_BY_CHILDREN}


class _Server:
    """The fork server of this process, with the environment that it began with."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._environment: dict[str, str] | None = None
        self._failed = 0  # servers in a row that forked nothing
        self._killed_s = -math.inf

    def may_fork(self) -> bool:
        """Whether what it forks is what a process begun now would be. The first pool that forks starts it. A process
        has one fork server: where somebody else's runs, which has loaded something else, nothing is forked; nor where
        one after the other failed."""
        now = _environment()
        with self._lock:
            if self._environment is None:
                ours = _server_pid() is None
                if ours:
                    forkserver.set_forkserver_preload([PRELOADED])
                    at_once(self.kill)
                    atexit.register(self.kill)  # one that is stopped would not see the end of this process
                self._environment = now if ours else {}
            return self._environment == now and self._failed < SERVERS

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """A block that waits for the server. If that is stopped, or says nothing in time, it is killed: whoever waits
        then sees the end of a pipe, raises EOFError or OSError, and begins again with another server."""
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(done,), name="kcg-server-watch", daemon=True)
        watcher.start()
        try:
            yield
        except BaseException:
            self._failed += 1
            raise
        else:
            self._failed = 0
        finally:
            done.set()

    def _watch(self, done: threading.Event) -> None:
        deadline, stopped = time.monotonic() + START_S, 0
        while not done.wait(POLL_S):
            stopped = stopped + 1 if _is_stopped(_server_pid()) else 0
            if stopped * POLL_S > STOPPED_S or time.monotonic() > deadline:
                why = "is stopped" if stopped else f"started nothing in {START_S:g} s"
                log.warning("the process that starts others %s: it is killed, and another takes its place", why)
                self.kill()
                return

    def kill(self) -> None:
        """End the server at once, and with it all that it forked (`PDEATHSIG`)."""
        if (pid := _server_pid()) is not None:
            self._killed_s = time.monotonic()
            guardians = lifeline.guardians_of(lifeline.children_of(pid))
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            lifeline.wake(guardians)

    def just_killed(self) -> bool:
        """Whether it was killed a moment ago: a child that died since may have died of that, whatever it was at."""
        return time.monotonic() - self._killed_s < SETTLED_S


_server = _Server()
just_killed = _server.just_killed


def _server_pid() -> int | None:
    server: Any = forkserver._forkserver
    pid: int | None = server._forkserver_pid
    return pid


def _is_stopped(pid: int | None) -> bool:
    """Whether a process is stopped, by a signal or by a debugger."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


class Stopped:
    """Ends children that somebody stopped (SIGSTOP), so that their jobs get others: to be asked again and again."""

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}

    def end(self, pool: Any) -> None:
        """Kill the processes of a pool that were found stopped whenever this was called in the last `STOPPED_S`."""
        now_s = time.monotonic()
        stopped = [pid for pid in list(pool._pool_manager.worker_manager.workers) if _is_stopped(pid)]
        self._since_s = {pid: self._since_s.get(pid, now_s) for pid in stopped}
        for pid, since_s in self._since_s.items():
            if now_s - since_s > STOPPED_S:
                log.warning("a child process is stopped: it is killed, and another takes its place")
                guardians = lifeline.guardians_of([pid])
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                lifeline.wake(guardians)


def start_pool(workers: int, initializer: Callable[..., Any], initargs: tuple[Any, ...], *, fork: bool = False) -> Any:
    """A `pebble.ProcessPool` of processes that inherit nothing, which have been started. With `fork`, what begins by
    `lifeline.start` is there sooner: a child that has opened a CPU after 0.2 s, not 0.6 (a core of an AMD EPYC). It
    begins afresh all the same where this process has changed its environment since the server began.

    Raises BrokenProcessPool where no process could be started, after `START_S` at most.
    """
    fork = fork and sys.platform == "linux" and _server.may_fork()
    # the pool holds its context, which it needs for new processes, and that the locks
    context = _Forking() if fork else _Spawning()
    pool = ProcessPool(max_workers=workers, initializer=initializer, initargs=initargs, context=context)
    try:
        _ = pool.active  # asking is what starts it
    except BaseException:
        end_pool(pool)
        raise
    return pool


def schedule(pool: Any, function: Callable[..., Any], args: tuple[Any, ...], *, timeout_s: float) -> Future[Any]:
    """Have a pool run `function(*args)`. Raises BrokenProcessPool where the pool itself failed: it says nothing of the
    job, which another pool may do."""
    try:
        future: Future[Any] = pool.schedule(function, args=args, timeout=timeout_s)
    except BrokenProcessPool:
        raise
    except RuntimeError as error:  # pebble's word for a pool that broke a moment ago
        raise BrokenProcessPool(str(error)) from error
    return future


def end_pool(pool: Any, *, timeout_s: float = END_S) -> None:
    """Stop every process of a pool, with what it is at, and wait for their ends, but no longer than `timeout_s`: what
    has not ended then is killed, and left."""
    processes = list(pool._pool_manager.worker_manager.workers)
    guardians = lifeline.guardians_of(processes)
    pool.stop()
    processes += pool._pool_manager.worker_manager.workers

    def join() -> None:
        with contextlib.suppress(RuntimeError):  # pebble's word for a process that even SIGKILL does not end
            pool.join()

    joining = threading.Thread(target=join, name="kcg-end-of-pool", daemon=True)
    joining.start()
    joining.join(timeout_s)
    if joining.is_alive():
        for pid in processes:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        joining.join(TELL_S)
    lifeline.wake(guardians)
    if joining.is_alive():  # such as one in a driver's call
        log.warning("a child process could not be ended")
