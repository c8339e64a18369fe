"""Who may use a device that several pools share: one job at a time, of whichever pool has used it least.

The search measures in one child, what it found is judged in another one, and neither disturbs the other's samples. A
sample takes 30 ms, a comparison seconds. So turns are not counted but their time (start-time fair queueing, Goyal,
Vin and Cheng, 1996): the next job is one of the pool that has had the device for less, and a pool that had nothing to
do has no claim for that. Where both have work each has half of the time; where one has none the other has it all. No
job is cut short.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator


class Gate:
    """Lets one of several pools use a device at a time. A pool is whatever tells it from the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._jobs: dict[Hashable, int] = {}  # that each pool has, the one that runs included; none has no entry
        self._used_s: dict[Hashable, float] = {}  # of the device, as if none had ever been idle
        self._away: set[Hashable] = set()
        self._holder: Hashable | None = None
        self._last: Hashable | None = None

    def want(self, pool: Hashable) -> None:
        """A pool has one job more."""
        with self._changed:
            if pool not in self._jobs and self._jobs:  # it was idle: that gives it no claim
                least_s = min(self._used_s.get(other, 0.0) for other in self._jobs)
                self._used_s[pool] = max(self._used_s.get(pool, 0.0), least_s)
            self._jobs[pool] = self._jobs.get(pool, 0) + 1

    def done(self, pool: Hashable) -> None:
        """A pool has one job less."""
        with self._changed:
            if self._jobs[pool] > 1:
                self._jobs[pool] -= 1
            else:
                del self._jobs[pool]
            self._changed.notify_all()

    @contextlib.contextmanager
    def away(self, pool: Hashable) -> Iterator[None]:
        """A block in which a pool that has jobs is not ready for any: nobody waits for it."""
        with self._changed:
            self._away.add(pool)
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._away.discard(pool)

    def is_idle_beside(self, pool: Hashable) -> bool:
        """Whether no other pool has a job."""
        with self._changed:
            return all(other == pool for other in self._jobs)

    def wake(self) -> None:
        """Have those that wait see that they were closed."""
        with self._changed:
            self._changed.notify_all()

    def wait_idle(self, closed: threading.Event) -> None:
        """Return when no pool has a job, or `closed` is set."""
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs or closed.is_set())

    @contextlib.contextmanager
    def turn(self, pool: Hashable, closed: threading.Event) -> Iterator[bool]:
        """A block in which no other pool uses the device, once it is this one's turn; or at once where it was `closed`,
        and must do nothing then. Whether another pool had the last turn."""
        with self._changed:
            self._changed.wait_for(lambda: closed.is_set() or (self._holder is None and self._next() == pool))
            if not (held := not closed.is_set()):
                another = False
            else:
                another, self._holder, self._last = self._last not in (None, pool), pool, pool
        begin = self._clock()
        try:
            yield another
        finally:
            if held:
                with self._changed:
                    self._used_s[pool] = self._used_s.get(pool, 0.0) + self._clock() - begin
                    self._holder = None
                    self._changed.notify_all()

    def _next(self) -> Hashable | None:
        """Of the pools that have a job, and are ready, the one that has used the device least; the first of those
        that asked."""
        ready = [pool for pool in self._jobs if pool not in self._away]
        return min(ready, key=lambda pool: self._used_s.get(pool, 0.0), default=None)
