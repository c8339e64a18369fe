"""What is asked of the service: one schedule to be measured, and several that go to the device together."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass

from kcg.measure.jobs import CompileOutcome
from kcg.types import CacheState, Measurement, Region, Schedule


@dataclass(frozen=True)
class Request:
    """One schedule to be measured."""

    region: Region
    schedule: Schedule
    variables: tuple[tuple[str, int], ...] = ()
    sampler: str = ""
    in_search: bool = False  # the few samples of a search are enough
    careful: bool = False  # more of them where the kernel is short
    samples: int | None = None  # so many, whatever the protocol asks
    stop_above_s: float | None = None  # a slower one gets one sample only
    stop_above_best: float | None = None  # the same as a multiple of the fastest timed just before it
    best_s: float | None = None  # the fastest known: what is ten times faster is not believed at once
    cache_state: CacheState = CacheState.COLD
    timeout_s: float | None = None  # None: the service's
    trial: int = 0  # a binary is timed once for each trial

    @property
    def early_stop(self) -> bool:
        """Whether fewer samples are taken than the protocol asks."""
        return self.in_search or self.samples is not None


Ready = tuple[Request, CompileOutcome, "Future[Measurement]"]


class Group:
    """Requests that go to the device together, in their order, when the last of them is compiled."""

    def __init__(self, count: int) -> None:
        self._waiting = count
        self._lock = threading.Lock()
        self._ready: dict[int, list[Ready]] = {}

    def compiled(self, place: int, ready: list[Ready]) -> list[Ready]:
        """All of the group if this was the last one, else nothing; `ready` is empty where compiling failed."""
        with self._lock:
            self._ready[place] = ready
            self._waiting -= 1
            return [] if self._waiting else [one for _, some in sorted(self._ready.items()) for one in some]
