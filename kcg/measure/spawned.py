"""`pebble`'s pools of spawned processes, ended without a word from a process that had not begun."""

from __future__ import annotations

import logging
from collections.abc import Callable
from multiprocessing.context import SpawnContext
from multiprocessing.synchronize import RLock
from typing import Any

from pebble import ProcessPool

log = logging.getLogger(__name__)


class _KeptLocks(SpawnContext):
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


def start_pool(workers: int, initializer: Callable[..., Any], initargs: tuple[Any, ...]) -> Any:
    """A `pebble.ProcessPool` of processes that begin afresh and inherit nothing."""
    # the pool holds its context, which it needs for new processes, and that the locks
    return ProcessPool(max_workers=workers, initializer=initializer, initargs=initargs, context=_KeptLocks())


def end_pool(pool: Any) -> None:
    """Stop every process of a pool, with what it is at, and wait for their ends."""
    pool.stop()
    try:
        pool.join()
    except RuntimeError:  # pebble's word for a process that even SIGKILL does not end, e.g. in a driver's call
        log.warning("a child process could not be ended")
