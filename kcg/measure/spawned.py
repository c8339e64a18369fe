"""`pebble`'s pools of processes that hold nothing of their parent's, ended without a word from one that had not begun.

Each begins afresh, or on Linux may be forked by a server that has loaded what all of them need
(`kcg.measure.preloaded`) and opened nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import BaseContext, ForkServerContext, SpawnContext
from multiprocessing.synchronize import RLock
from typing import Any, Final

from pebble import ProcessPool

from kcg.measure.lifeline import PRELOADED

log = logging.getLogger(__name__)

SET_BY_CHILDREN: Final = ("BEAM", "CACHEDB", "CC", "DEBUG", "DEV", "PYTEST_CURRENT_TEST")
"""Variables that may differ: children set these themselves (`kcg.measure.lifeline`), or do not read them."""


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


class _Forking(_KeptLocks, ForkServerContext):
    pass


def _environment() -> dict[str, str]:
    """What of this process's environment a child would find as it is."""
    return {name: value for name, value in os.environ.items() if name not in SET_BY_CHILDREN}


class _Server:
    """The fork server of this process, with the environment that it began with."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._environment: dict[str, str] | None = None

    def may_fork(self) -> bool:
        """Whether what it forks is what a process begun now would be. The first pool that forks starts it. A process
        has one fork server: where somebody else's runs, which has loaded something else, nothing is forked."""
        now = _environment()
        with self._lock:
            if self._environment is None:
                server: Any = forkserver._forkserver
                ours = server._forkserver_pid is None
                if ours:
                    forkserver.set_forkserver_preload([PRELOADED])
                self._environment = now if ours else {}
            return self._environment == now


_server = _Server()


def start_pool(workers: int, initializer: Callable[..., Any], initargs: tuple[Any, ...], *, fork: bool = False) -> Any:
    """A `pebble.ProcessPool` of processes that inherit nothing. With `fork`, what begins by `lifeline.start` is there
    sooner: a child that has opened a CPU after 0.2 s, not 0.6 (a core of an AMD EPYC). It begins afresh all the same
    where this process has changed its environment since the server began."""
    fork = fork and sys.platform == "linux" and _server.may_fork()
    # the pool holds its context, which it needs for new processes, and that the locks
    context = _Forking() if fork else _Spawning()
    return ProcessPool(max_workers=workers, initializer=initializer, initargs=initargs, context=context)


def end_pool(pool: Any) -> None:
    """Stop every process of a pool, with what it is at, and wait for their ends."""
    pool.stop()
    try:
        pool.join()
    except RuntimeError:  # pebble's word for a process that even SIGKILL does not end, e.g. in a driver's call
        log.warning("a child process could not be ended")
