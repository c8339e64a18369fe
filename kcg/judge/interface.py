"""What judging asks of a run: what is judged, the device that it is judged on, and how long that may take."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kcg.types import Finalist, Measurement, RegionResult, Schedule, Variables, Verification, WorkloadCall

if TYPE_CHECKING:
    from kcg.dataset.journal import Journal
    from kcg.kernel.kinds import Space
    from kcg.kernel.program import Compiled
    from kcg.kernel.symbolic import Bound
    from kcg.measure.service import MeasureService
    from kcg.search.problem import Observation

Place = tuple[str, str, Variables]
"""A region, a binary, and the values of its variables."""
UNVERIFIED = Verification(False, reason="the run ended before it was verified")


@dataclass(frozen=True)
class Offer:
    """A hand-written kernel for one region; without a schedule where it could not be lowered."""

    name: str
    schedule: Schedule | None
    reason: str = ""  # why there is none


class Subject(Protocol):
    """What is judged: a region, and the values of its variables with which it runs."""

    @property
    def id(self) -> str:
        """Of the region and the values."""

    @property
    def call(self) -> WorkloadCall: ...

    @property
    def space(self) -> Space:
        """Of tinygrad's own schedule, which all others are compared with."""

    @property
    def bounds(self) -> Sequence[Bound]: ...

    @property
    def bindings(self) -> Sequence[Variables]:
        """The values at the bounds."""

    @property
    def longest_s(self) -> float:
        """What tinygrad's own schedule takes at the end where it takes longer; 0 where it is not known."""

    def named(self, schedule: Schedule) -> tuple[str, str]:
        """What the program of a schedule is called in tables, and what the schedule does, in words."""


class Found(Subject, Protocol):
    """What is judged, with what a search found faster for it, fastest first, and what is written by hand."""

    @property
    def offers(self) -> Sequence[Offer]: ...

    @property
    def faster(self) -> Sequence[Schedule]: ...

    @property
    def candidates(self) -> Sequence[Schedule]:
        """The first of these, which are judged."""

    @property
    def other_candidates(self) -> Sequence[Schedule]:
        """Those of other kinds than the baseline's."""

    @property
    def firsts(self) -> Sequence[Schedule]:
        """What is compared first: the baseline, and of each kind the best candidate."""

    def better_chosen(self, schedule: Schedule) -> Schedule | None:
        """Of a schedule that is a second choice the first one, where that is about as fast."""

    @property
    def refused(self) -> dict[Schedule, str]: ...

    def refuse(self, schedule: Schedule, reason: str) -> None:
        """A candidate is none: the next best gets its turn."""

    def as_searched(self, schedule: Schedule) -> Finalist:
        """A schedule by what the search saw of it; not verified."""

    def result(self, base: Finalist, chosen: Finalist, outcome: str, note: str, noise: float = 0.0) -> RegionResult:
        """The region's result with what was judged of it."""


class Bench(Protocol):
    """The device of a run, and where what it shows is kept. Of a run's own kind of `Subject`."""

    service: MeasureService
    journal: Journal | None
    folder: Path
    run_id: str

    @property
    def is_cpu(self) -> bool: ...

    @property
    def failed_under_stress(self) -> dict[Place, str]:
        """Why programs are out, in this run or before; what fails from now on is put in it."""

    def compiled(self, work: Any, schedule: Schedule) -> Compiled:
        """The program of a schedule. Raises whatever its compiler raised."""

    def measure(self, work: Any, batch: Sequence[Schedule], *, sampler: str) -> list[Future[Observation]]: ...

    def record(self, measurements: Sequence[Measurement]) -> None: ...


class Patience(Protocol):
    """How long judging is expected to take, in seconds, and may. Of a run's own kind of `Subject`."""

    def timing_s(self, work: Any) -> float:
        """Re-timing and verifying a region's candidates."""

    def launch_s(self, work: Any, schedule: Schedule) -> float:
        """One launch of a schedule under stress, at one end of the values."""

    def patience_s(self, expected_s: float) -> float | None:
        """How long to wait now for what should take so long; None: as long as its own deadline allows."""
