"""Children that can be killed: one for the device, several for compiling. Each pool belongs to one thread of its own.

`pebble` gives timeouts, kill and respawn. What it leaves open is closed here: futures that stay unresolved when a pool
stops, a pool that breaks for good when an idle child dies, children that outlive this process, and timeouts by the
wall clock, which is set ahead or back whenever a machine likes.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, forkserver, popen_forkserver, resource_tracker, util
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess, SpawnContext
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import RLock
from pathlib import Path
from typing import Any, Final

from pebble import ProcessExpired, ProcessPool
from pebble.pool.base_pool import Task
from pebble.pool.process import TaskManager

from kcg.cli import at_once
from kcg.errors import DeviceError, KcgError
from kcg.measure import canary, child, lifetime
from kcg.measure.calls import Call, Called, nobody, seen
from kcg.measure.canary import CanaryReading, CompiledCanary, is_sticky
from kcg.measure.device_info import first_line
from kcg.measure.gate import Gate
from kcg.measure.lifetime import PRELOADED, AnotherChild

# ---- `pebble`'s pools of processes that hold nothing of their parent's, ended without a word from one that had not
# begun.
#
# Each begins afresh, or on Linux may be forked by a server that has loaded what all of them need
# (`kcg.measure.preloaded`) and opened nothing.

log = logging.getLogger(__name__)

SET_BY_CHILDREN: Final = ("BEAM", "CACHEDB", "CC", "DEBUG", "DEV")
"""Variables that may differ: children set these themselves (`kcg.measure.lifetime`)."""
READ_BY_OTHERS: Final = ("PYGAME_HIDE_SUPPORT_PROMPT", "PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")
OF_OTHERS: Final = ("DASK_", "WANDB_")  # how such names begin
"""Variables that may differ, since no child reads them: PyTorch and Gymnasium set theirs when they are imported, and a
fleet or a tracked run sets those of Dask and W&B, which no child loads."""

START_S = 60.0
"""How long a fork server may take to fork, its own start included: half a second on a machine that has nothing else to
do. One that takes longer is killed, and another takes its place."""
STOPPED_S = 2.0
"""How long it may be stopped (SIGSTOP, a debugger) while a process is wanted of it. Not at once: who stops and
continues this program does so with all of its processes, one after the other."""
REPORT_S = 1.0  # how long after the end of a process its fork server may take to tell the exit code
END_S = 10.0  # how long the end of a pool is waited for: its processes get SIGTERM, and SIGKILL 3 s later
SETTLED_S = 20.0  # so long after a fork server was killed may its children be seen to die, on a busy machine
DYING_S = 2.0  # how long a fork server that has closed its connections may take to end: it gives back its memory first
SERVERS = 3  # fork servers that may fail in a row before children begin without one
CHILD_POLL_S = 0.1


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
    Process = lifetime.FreshProcess


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
                self._has_ended() and self.sentinel in connection.wait([self.sentinel], REPORT_S)
            ):
                self.returncode = self._exit_code()
            elif self._has_ended():
                self.returncode = -signal.SIGKILL
        return self.returncode

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        return self.wait(0.0 if flag == os.WNOHANG else None)

    def _has_ended(self) -> bool:
        """Whether the process is gone, or a zombie that a stopped server does not bury."""
        return self._pidfd is not None and self._pidfd in connection.wait([self._pidfd], 0)

    def _exit_code(self) -> int:
        """The exit code, as the server tells it. Where the server is gone, its children were killed with it."""
        try:
            return int(forkserver.read_signed(self.sentinel))
        except (OSError, EOFError):
            return -signal.SIGKILL


class _ForkedProcess(ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:
        with lifetime.without_main():
            return _ForkedPopen(process_obj)


class _Forking(_KeptLocks, ForkServerContext):
    Process = _ForkedProcess


def _environment() -> dict[str, str]:
    """What of this process's environment a child would find as it is."""
    ignored = {*SET_BY_CHILDREN, *READ_BY_OTHERS}
    return {name: value for name, value in os.environ.items() if name not in ignored and not name.startswith(OF_OTHERS)}


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
        except BaseException as error:
            self._failed += 1
            if isinstance(error, EOFError | OSError):
                _await_end(_server_pid())  # while it still dies it is taken for one that can be asked again
            raise
        else:
            self._failed = 0
        finally:
            done.set()

    def _watch(self, done: threading.Event) -> None:
        deadline, stopped = time.monotonic() + START_S, 0
        while not done.wait(CHILD_POLL_S):
            stopped = stopped + 1 if _is_stopped(_server_pid()) else 0
            if stopped * CHILD_POLL_S > STOPPED_S or time.monotonic() > deadline:
                why = "is stopped" if stopped else f"started nothing in {START_S:g} s"
                log.warning("the process that starts others %s: it is killed, and another takes its place", why)
                self.kill()
                return

    def kill(self) -> None:
        """End the server at once, and with it all that it forked (`PDEATHSIG`)."""
        if (pid := _server_pid()) is not None:
            self._killed_s = time.monotonic()
            guardians = lifetime.guardians_of(lifetime.children_of(pid))
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            lifetime.wake(guardians)

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
    return _state(pid) in ("T", "t")


def _state(pid: int | None) -> str:
    """The letter of a process in the kernel's table; empty where it is not there."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _await_end(pid: int | None) -> None:
    """Return once a process has ended, buried or not; one that lives on is not waited for longer than `DYING_S`."""
    deadline = time.monotonic() + DYING_S
    while _state(pid) not in ("", "Z", "X") and time.monotonic() < deadline:
        time.sleep(0.005)


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
                guardians = lifetime.guardians_of([pid])
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                lifetime.wake(guardians)


class _Tasks(TaskManager):  # type: ignore[misc]
    """The jobs of a pool, whose time is over by the monotonic clock. By `pebble`'s own, the wall clock, all of them
    would time out when it is set ahead, and a hung one would live on when it is set back."""

    def __init__(self, task_done: Callable[[], None]) -> None:
        super().__init__(task_done)
        self._since_s: dict[int, float] = {}  # when a child took a job, by its number

    def task_start(self, task_id: int, worker_id: int | None) -> None:
        self._since_s[task_id] = time.monotonic()  # before it counts as started
        if worker_id is not None and (task := self.tasks.get(task_id)) is not None:
            task.future.taken_s = self._since_s[task_id]  # see `_taken_s`
        super().task_start(task_id, worker_id)

    def task_done(self, task_id: int, result: Any) -> None:
        super().task_done(task_id, result)
        self._since_s.pop(task_id, None)

    def timeout(self, task: Task) -> bool:
        since_s = self._since_s.get(task.id)
        if since_s is None or task.timeout is None:
            return False
        return time.monotonic() - since_s > float(task.timeout)


class _Pool(ProcessPool):  # type: ignore[misc]
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        manager = self._pool_manager
        manager.task_manager = _Tasks(self._context.task_queue.task_done)
        manager.find_expired_task = functools.partial(_expired_task, manager, manager.find_expired_task)


def _expired_task(manager: Any, find: Callable[[int], Any], worker_id: int) -> Any:
    """What a child that died was at; raises as pebble's `find` where it was at nothing.

    pebble hears in one thread that a child took a job, and in another that it died. Where cores are busy the latter may
    be first: then a job that its child died of was one that no child had taken, or had none that would end it. So all
    that the child said is heard before.
    """
    unheard, deadline = HEARINGS, time.monotonic() + HEARD_S
    while True:
        waiting = any(not task.started for task in list(manager.task_manager.tasks.values()))  # before it is looked for
        try:
            return find(worker_id)
        except (LookupError, BrokenProcessPool):
            if not waiting or not unheard or not manager.context.alive or time.monotonic() >= deadline:
                raise
        unheard = HEARINGS if _has_unheard(manager) else unheard - 1
        time.sleep(HEARING_S)


def _has_unheard(manager: Any) -> bool:
    """Whether children said something that their pool has not read."""
    try:
        return bool(manager.worker_manager.pool_channel.poll(0))
    except (OSError, EOFError, AttributeError):  # the pool ends
        return False


def start_pool(workers: int, initializer: Callable[..., Any], initargs: tuple[Any, ...], *, fork: bool = False) -> Any:
    """A `pebble.ProcessPool` of processes that inherit nothing, which have been started. With `fork`, what begins by
    `lifetime.start` is there sooner: a child that has opened a CPU after 0.2 s, not 0.6 (a core of an AMD EPYC). It
    begins afresh all the same where this process has changed its environment since the server began.

    Raises BrokenProcessPool where no process could be started, after `START_S` at most.
    """
    fork = fork and sys.platform == "linux" and _server.may_fork()
    # the pool holds its context, which it needs for new processes, and that the locks
    context = _Forking() if fork else _Spawning()
    pool = _Pool(max_workers=workers, initializer=initializer, initargs=initargs, context=context)
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


def _taken_s(future: Future[Any]) -> float | None:
    """When a child took a job of a pool, by `time.monotonic`; None where none did."""
    taken_s: float | None = getattr(future, "taken_s", None)
    return taken_s


def end_pool(pool: Any, *, timeout_s: float = END_S) -> None:
    """Stop every process of a pool, with what it is at, and wait for their ends, but no longer than `timeout_s`: what
    has not ended then is killed, and left."""
    processes = list(pool._pool_manager.worker_manager.workers)
    guardians = lifetime.guardians_of(processes)
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
        joining.join(REPORT_S)
    lifetime.wake(guardians)
    if joining.is_alive():  # such as one in a driver's call
        log.warning("a child process could not be ended")


HEARINGS, HEARING_S = 20, 0.01  # so often, and so far apart, nothing more is heard of a child that died
HEARD_S = 30.0  # after which it is not waited for any more
STUCK_S = 30.0  # how long after a job's own timeout its pool itself is taken for dead
POLL_S = 0.5  # between two looks at whether a pool is still there
TRIES = 3  # of a job whose child ended before it took the job, or of whose pool broke: it says nothing of the job
CLOSE_S = 20.0  # how long the end of a pool's thread is waited for; it waits itself for the ends of its children


_canaries: dict[str, CompiledCanary] = {}
"""By device, one that was right: the children after it load it."""
_glances: dict[str, CompiledCanary] = {}
"""The same of the small one."""
GLANCE_S = 10.0  # that the small one may take: a millisecond, but where it is compiled first


def _forked(initargs: tuple[Any, ...]) -> bool:
    """Whether children may be forked: those of a CPU. A GPU's begin afresh: a second is little there, and no driver was
    yet seen to open in a process that was forked."""
    return str(initargs[0]).startswith("CPU")


class ServiceClosed(KcgError):
    """The service was closed before this was done. Says nothing about the job."""

    def __init__(self) -> None:
        super().__init__("the service was closed before this was done")


class ChildDied(KcgError):
    """The child that ran the job died of it."""


class Killed(ChildDied):
    """Something from outside killed the child (SIGKILL), e.g. Linux where memory ran out: perhaps not for its job."""


def _block_interrupts() -> None:
    """Let Ctrl-C go to the main thread alone; children started by this thread begin with it blocked.

    They ignore it later, but until Python has started in them it would print a traceback each.
    """
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # the first call of this unblocks the signal on its way out
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _why_died(error: BaseException) -> str:
    code = getattr(error, "exitcode", None)
    if code is None or code >= 0:
        return "its process died" + (f" with exit code {code}" if code else "")
    try:
        return f"its process died of {signal.Signals(-code).name}"
    except ValueError:
        return f"its process died of signal {-code}"


def _died(error: BaseException) -> ChildDied:
    """What `pebble` says of a child that died, as what it means for its job."""
    # without a code nobody knows what it died of: its server, which would say so, went first
    killed = getattr(error, "exitcode", None) in (None, 0, -signal.SIGKILL)
    return (Killed if killed else ChildDied)(_why_died(error))


def _settle(future: Future[Any], result: Any, error: BaseException | None) -> None:
    with contextlib.suppress(InvalidStateError):  # settled already, by `close`
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


@dataclass(frozen=True, eq=False)
class _Job:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    timeout_s: float
    here: bool  # in the device's thread of this process, not in the child
    future: Future[Any]
    since_s: float  # when it was sent, by `time.monotonic`


class DevicePool:
    """One child for one device, and the jobs sent to it one at a time.

    After a timeout, a death, a fault that spoils the device's context, or a result with a true `tainted`, the child is
    replaced. Every child, also one that was replaced on request, opens the device and passes the canary before it gets
    a job, and a job runs in that very process or not at all: no result can come from between a fault and a canary that
    was right and in time. The canary of the first child is the `reference` for the others, unless one is given.

    Several pools may share a device by a `gate`: a job of one is sent while none of the others runs. After a turn of
    another pool the child has a look at the device (`canary.glance_job`) before its next job.
    """

    def __init__(
        self,
        dev: str,
        initargs: tuple[Any, ...],
        *,
        open_timeout_s: float,
        canary_job: Callable[[str, CompiledCanary | None], CanaryReading] = canary.canary_job,
        reference: CanaryReading | None = None,
        called: Called = nobody,
        gate: Gate | None = None,
    ) -> None:
        """`called` gets one call after the other, those too that start or end a child, as `kcg.measure.calls` says."""
        self._dev, self._initargs, self._open_timeout_s = dev, initargs, open_timeout_s
        self._canary_job = canary_job
        self._called = called
        self.reference = reference
        self._child: int | None = None  # the process id that jobs are meant for
        self._trusted = False  # whether its canary was right and in time
        self._fault_s: float | None = None  # what ending the last child took, if that was for a fault
        self._unusable: tuple[float, DeviceError] | None = None  # since when, and why, no child can be trusted
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self.gate = Gate() if gate is None else gate
        self._opens_beside = gate is not None and not dev.startswith("CPU")
        self._pool: Any = None
        self._busy: Any = None
        self.closed = threading.Event()
        self.used_s = 0.0  # that jobs had the device, without the waiting for their turns
        self.replaced = 0  # children
        self.canaries = 0  # that were started, for whatever reason
        self.last_recovery_s: float | None = None
        """Seconds that the last recovery took: to end the child after its fault, to start another, to pass the canary.
        The time for which no job waited is not in it."""
        self._thread = threading.Thread(target=self._loop, name="kcg-device", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Any]:
        """Run `function(*args)` in the child; the future fails with TimeoutError after the child was killed."""
        return self._put(function, args, timeout_s, here=False)

    def submit_here(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run `function(*args)` in the device's thread of this process: its turn on the device, without the child."""
        return self._put(function, args, 0.0, here=True)

    def _put(self, function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float, *, here: bool) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # not to be cancelled by whom it is given to
        with self._changed:
            if not self.closed.is_set():
                self.gate.want(self)
                self._jobs.put(_Job(function, args, timeout_s, here, future, time.monotonic()))
                return future
        future.set_exception(ServiceClosed())
        return future

    def wait_idle(self) -> None:
        """Return when no job runs or waits, of this pool and of those that share its device, or it is closed."""
        self.gate.wait_idle(self.closed)

    def replace_child(self) -> None:
        """Kill the child; the next job starts a fresh one, canary and all. Called from the device's thread."""
        pool, self._pool, self._child, self._trusted = self._pool, None, None, False
        if pool is not None:
            self.replaced += 1
            end_pool(pool)

    def _after_fault(self) -> None:
        """Kill the child because nothing that it does is to be trusted any more."""
        begin = time.monotonic()
        self.replace_child()
        self._fault_s = (self._fault_s or 0.0) + time.monotonic() - begin

    def _loop(self) -> None:
        _block_interrupts()
        while (job := self._jobs.get()) is not None:
            result, failure = None, None
            try:
                result = self._run(job)
            except BaseException as error:
                failure = error
            try:
                if getattr(result, "tainted", False) or (failure is not None and is_sticky(failure)):
                    seen(self._called, None, (), self._after_fault)
            except Exception as error:  # on no account this thread's end: whoever waits would wait for ever
                log.warning("a child could not be replaced: %s", first_line(error))
            _settle(job.future, result, failure)
            self.gate.done(self)
        self.replace_child()

    def _run(self, job: _Job) -> Any:
        if not job.here:
            self._open_beside()
        with self.gate.turn(self, self.closed) as another:
            if self.closed.is_set():
                raise ServiceClosed
            begun = time.monotonic()
            try:
                if another and not job.here:
                    self._look()
                return self._run_now(job)
            finally:
                self.used_s += time.monotonic() - begun

    def _open_beside(self) -> None:
        """Have the child of a GPU that others use open it while these go on: it takes seconds, and launches nothing. On
        a CPU that would disturb a sample. What goes wrong is seen in its turn."""
        if self._pool is not None or not self._opens_beside or self.closed.is_set():
            return
        try:
            with self.gate.away(self):
                seen(self._called, None, (), self._open)
        except Exception as error:
            log.debug("%s, beside other jobs: %s", self._dev, first_line(error))
            self.replace_child()

    def _look(self) -> None:
        """Have the child, if there is one, see whether the device still computes as it did: another process had it. If
        not, the next job gets a child that has passed the whole canary."""
        if self._pool is None or not self._trusted or not self._pool.active:
            return
        try:
            reading: CanaryReading = self._call(canary.glance_job, (self._dev, _glances.get(self._dev)), GLANCE_S)
        except (ServiceClosed, DeviceError):
            raise
        except Exception as error:  # it died, it hung, or anything that a broken device may raise
            fault = first_line(error)
        else:
            fault = reading.fault()
            if not fault and reading.compiled is not None:
                _glances[self._dev] = reading.compiled
        if fault and self._pool is not None:
            log.debug("%s: after another process used it: %s", self._dev, fault)
            self._after_fault()

    def _run_now(self, job: _Job) -> Any:
        if job.here:
            return seen(self._called, job.function, job.args, lambda: job.function(*job.args))
        killed = False
        for left in reversed(range(TRIES)):
            try:
                return self._in_child(job)
            except (BrokenProcessPool, AnotherChild) as error:  # the child died before it took the job: not of it
                self._after_fault()
                if not left:
                    line = f"{self._dev} cannot be used: its process ended {TRIES} times before it took a job"
                    raise DeviceError(f"{line} ({_why_died(error)})") from error
            except Killed:  # perhaps by whoever wanted its memory
                if (killed and not just_killed()) or not left:
                    raise
                killed = True
        raise AssertionError("the last try returns or raises")

    def _in_child(self, job: _Job) -> Any:
        if self._pool is None or not self._trusted or not self._pool.active:
            if self._unusable is not None and job.since_s < self._unusable[0]:
                raise DeviceError(str(self._unusable[1]))  # it waited while the device was given up: no second wait
            seen(self._called, None, (), self._start_trusted)
        return seen(self._called, job.function, job.args, lambda: self._call(job.function, job.args, job.timeout_s))

    def _start_trusted(self) -> None:
        """Start a child that opens the device and passes the canary. Raises DeviceError, and leaves none, otherwise."""
        if self._pool is not None and not self._pool.active:  # it died while it had nothing to do
            self._after_fault()
        begin = time.monotonic()
        try:
            self._until_canary_passes()
            self._trusted = True
        except BaseException as error:
            self.replace_child()
            if isinstance(error, DeviceError):
                self._unusable = (time.monotonic(), error)
            raise
        if self._fault_s is not None:
            self.last_recovery_s = self._fault_s + time.monotonic() - begin
            self._fault_s = None

    def _until_canary_passes(self) -> None:
        failures, pauses, begin = 0, list(canary.PAUSES_S), time.monotonic()
        while True:
            try:
                fault, reading = self._read_canary()
            except DeviceError:  # it did open before: a driver's reset may last a moment
                if self.reference is None or not pauses or time.monotonic() > begin + canary.TIMEOUT_S:
                    raise
                self._after_fault()
                self._pause(pauses)
                continue
            if reading is None:
                failures += not just_killed()  # what that took with it says nothing of the device
                log.debug("%s: %s", self._dev, fault)
                if failures == canary.FAILURES:
                    raise DeviceError(f"{self._dev} cannot be trusted: {fault}")
                self._after_fault()
                continue
            if self.reference is None:
                self.reference = reading
            expected_s, times = self.reference.seconds, canary.tolerance(self._dev)
            if reading.seconds <= times * expected_s:
                return
            slow = (
                f"its canary takes {reading.seconds * 1e3:.3g} ms, and not {expected_s * 1e3:.3g} ms "
                f"as in the first child (at most {times:g} times that)"
            )
            log.debug("%s: %s", self._dev, slow)
            if not pauses:
                raise DeviceError(f"{self._dev} cannot be trusted: {slow}")
            self._pause(pauses)

    def _pause(self, pauses: list[float]) -> None:
        if self.closed.wait(pauses.pop(0)):
            raise ServiceClosed

    def _read_canary(self) -> tuple[str, CanaryReading | None]:
        """What the canary shows, in a new child if there is none; else what is wrong with the child."""
        try:
            if self._pool is None:
                self._open()
            self.canaries += 1
            known = _canaries.get(self._dev)
            reading: CanaryReading = self._call(self._canary_job, (self._dev, known), canary.TIMEOUT_S)
        except (ServiceClosed, DeviceError):
            raise
        except (BrokenProcessPool, AnotherChild) as error:
            return f"before its canary, {_why_died(error.__cause__ or error)}", None
        except Exception as error:  # it died, it hung, or anything that a broken device may raise
            return f"its canary failed: {first_line(error)}", None
        fault = reading.fault()
        if not fault and reading.compiled is not None:
            _canaries[self._dev] = reading.compiled
        return f"its canary is wrong: {fault}", None if fault else reading

    def _open(self) -> None:
        self._pool = start_pool(1, lifetime.start, self._initargs, fork=_forked(self._initargs))
        try:
            self._child = self._call(child.ping, (), self._open_timeout_s)
            self._call(child.open_job, (self._dev,), self._open_timeout_s)
        except FutureTimeout:
            raise DeviceError(f"{self._dev} did not open within {self._open_timeout_s:g} s") from None
        except Killed as error:  # not of the device; and with a fork server that is killed goes all that it forked
            raise BrokenProcessPool(str(error)) from error
        except ChildDied as error:
            raise DeviceError(f"{self._dev} does not open: {error}") from None

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> Any:
        with self._changed:  # so that `close` sees either the running job or that none will start
            if self.closed.is_set():
                raise ServiceClosed
            self._busy = schedule(self._pool, lifetime.call_in, (self._child, function, args), timeout_s=timeout_s)
        try:
            return _result(self._pool, self._busy, timeout_s)
        except CancelledError:
            raise ServiceClosed from None
        except FutureTimeout:
            self._after_fault()
            raise TimeoutError(f"no result within {timeout_s:g} s: its process was killed") from None
        except ProcessExpired as error:
            self._after_fault()
            raise _died(error) from error

    def close(self) -> None:
        """Kill the child and end the thread. Every future that is not done fails with ServiceClosed."""
        with self._changed:
            self.closed.set()
            busy = self._busy
            self._jobs.put(None)
        self.gate.wake()
        if busy is not None:
            busy.cancel()
        self._thread.join(timeout=CLOSE_S)


def _result(pool: Any, job: Future[Any], timeout_s: float) -> Any:
    """The result of a pool's job. Raises BrokenProcessPool where the pool broke, or never gave the job to a child."""
    deadline, active, stopped = time.monotonic() + timeout_s + STUCK_S, True, Stopped()
    while True:
        try:
            return job.result(timeout=POLL_S)
        except FutureTimeout:
            if job.done():
                return job.result()
            stopped.end(pool)
            was_active, active = active, pool.active
            if not active and not was_active:  # what breaks a pool fails its jobs a moment later, but not every one
                raise BrokenProcessPool("its pool broke") from None
            if time.monotonic() > deadline:
                if not job.running():
                    raise BrokenProcessPool("its pool gave the job to no child") from None
                raise


@dataclass(eq=False)
class _Compilation:
    """A job of a `CompilePool`, and how often it may be tried again: where its pool failed, and where it was killed."""

    call: tuple[Any, ...]
    timeout_s: float
    future: Future[Any]
    patient: bool = False  # whether it waits until a process is free that no other job wants
    broken: int = TRIES - 1
    killed: int = 1
    inner: Future[Any] | None = None  # of the pool that has it


class CompilePool:
    """Several children for compiling. `before` is called ahead of each job and may wait, e.g. until the device is idle.

    All that touches the pool happens in one thread; callbacks of futures only hand it work, so none waits for another.
    A pool that ends none of its jobs for longer than the longest may take is replaced. DeviceError is what a job gets
    for which no process can be started.
    """

    def __init__(
        self, initargs: tuple[Any, ...], *, workers: int, before: Callable[[], None], called: Called = nobody
    ) -> None:
        """`called` gets each call that a child took, and that children were started, as `kcg.measure.calls` says."""
        self._initargs, self._workers, self._before, self._called = initargs, workers, before, called
        self._lock = threading.Lock()
        self._unfinished: set[_Compilation] = set()
        self._waiting: deque[_Compilation] = deque()  # patient ones
        self._closed = False
        self._pool: Any = None
        self._stopped = Stopped()
        self._progress_s = 0.0  # when a job last went to the pool that had none, or came back from it
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="kcg-compilers", daemon=True)
        self._thread.start()

    def start_early(self) -> None:
        """Start the children before the first job: many that start at once take seconds to import what they need."""
        self._work.put(self._start_early)

    def _start_early(self) -> None:
        if not self._closed and self._pool is None:
            with contextlib.suppress(BrokenProcessPool):  # the first job tries again
                self._start()

    def _start(self) -> None:
        fork = _forked(self._initargs)
        start = functools.partial(start_pool, self._workers, lifetime.start_compiler, self._initargs, fork=fork)
        self._pool = seen(self._called, None, (), start)
        self._progress_s = time.monotonic()

    def _loop(self) -> None:
        _block_interrupts()
        while True:
            try:
                work = self._work.get(timeout=STUCK_S / 10)
            except queue.Empty:
                work = self._look_at_pool
            if work is None:
                break
            try:
                work()
            except Exception as error:  # on no account this thread's end: whoever waits would wait for ever
                log.warning("the compilers: %s", first_line(error))
        if self._pool is not None:
            end_pool(self._pool)

    def submit(self, function: Callable[..., Any], *args: Any, timeout_s: float, patient: bool = False) -> Future[Any]:
        """Run `function(*args)` in a child; the future fails with TimeoutError after the child was killed. What is
        `patient` begins where a child is free that no other job waits for."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        self._hand_over(_Compilation((function, args), timeout_s, future, patient))
        return future

    def _hand_over(self, job: _Compilation) -> None:
        with self._lock:
            if not self._closed:
                job.inner = None
                self._unfinished.add(job)
                self._work.put(lambda: self._schedule(job))
                return
        self._end(job, None, ServiceClosed())

    @property
    def _is_full(self) -> bool:
        """Whether every child has a job, or one waits for it."""
        return sum(job.inner is not None for job in list(self._unfinished)) >= self._workers

    def _schedule_patient(self) -> None:
        while self._waiting and not self._is_full and not self._closed:
            self._schedule(self._waiting.popleft())

    def _schedule(self, job: _Compilation) -> None:
        if job.patient and self._is_full:
            self._waiting.append(job)
            return
        if not self._closed:
            self._before()
        if self._closed:
            return  # `close` settles it
        broken = None
        try:
            if self._pool is not None and not self._pool.active:
                broken, self._pool = self._pool, None
            if self._pool is None:
                self._start()
            if not any(other.inner is not None for other in list(self._unfinished)):
                self._progress_s = time.monotonic()
            inner = schedule(self._pool, lifetime.call, job.call, timeout_s=job.timeout_s)
        except Exception as error:
            self._pool_failed(job, error)
        else:
            job.inner = inner
            inner.add_done_callback(lambda done: self._done(job, done))
        if broken is not None:
            end_pool(broken)

    def _pool_failed(self, job: _Compilation, error: BaseException) -> None:
        """Try a job again that a pool did not even give to a child, or else say that there can be none."""
        if job.broken:
            job.broken -= 1
            self._hand_over(job)
            return
        why = first_line(error.__cause__ or error)
        self._end(job, None, DeviceError(f"no process can be started that compiles: {why}"))

    def _done(self, job: _Compilation, done: Future[Any]) -> None:
        if job.inner is not done:
            return  # of a pool that was given up
        self._progress_s = now = time.monotonic()
        error = ServiceClosed() if done.cancelled() else done.exception()
        if (begin := _taken_s(done)) is not None:
            function, args = job.call
            self._called(Call(function, args, begin, now, None if error is not None else done.result(), error))
        if isinstance(error, BrokenProcessPool):  # an idle child died; this job was only in the queue
            self._pool_failed(job, error)
            return
        if isinstance(error, ProcessExpired):
            error = _died(error)
            if isinstance(error, Killed) and (job.killed or just_killed()):  # perhaps by whoever wanted its memory
                job.killed = max(0, job.killed - 1)
                self._hand_over(job)
                return
        elif isinstance(error, FutureTimeout):
            error = TimeoutError(f"no result within {job.timeout_s:g} s: its process was killed")
        self._end(job, None if error is not None else done.result(), error)
        if self._waiting:
            self._work.put(self._schedule_patient)

    def _look_at_pool(self) -> None:
        """Replace a pool that is stuck: it breaks without a word, or a child was stopped while it held a lock."""
        flying = [job for job in list(self._unfinished) if job.inner is not None]
        if not flying or self._pool is None:
            return
        self._stopped.end(self._pool)
        limit_s = max(job.timeout_s for job in flying) + STUCK_S if self._pool.active else STUCK_S / 10
        if time.monotonic() - self._progress_s < limit_s:
            return
        log.warning("processes that compile do not answer: others take their place")
        broken, self._pool = self._pool, None
        end_pool(broken)
        for job in flying:
            if job.inner is not None and not job.inner.done():
                self._pool_failed(job, BrokenProcessPool("the processes did not answer"))

    def _end(self, job: _Compilation, result: Any, error: BaseException | None) -> None:
        with self._lock:
            self._unfinished.discard(job)
        _settle(job.future, result, error)

    def close(self) -> None:
        """Kill the children. Every future that is not done fails with ServiceClosed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._work.put(None)
        self._thread.join(timeout=CLOSE_S)
        for job in list(self._unfinished):
            self._end(job, None, ServiceClosed())
