"""What a search strategy sees: an action space, `predict(batch)`, an asynchronous `measure(batch)`, a budget ledger.

A device, several devices and a replayed table are interchangeable behind these, so that every strategy is tested
without a device and compared on equal terms.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from kcg.types import Action as Action
from kcg.types import Measurement, Opt, Prediction, Schedule, Status


class ActionSpace(Protocol):
    """The schedules of one region and the legal steps between them."""

    def start(self) -> Schedule:
        """Where a search begins: the unoptimised schedule."""

    def baseline(self) -> Schedule:
        """tinygrad's own choice (hand-coded), which nothing reported may be slower than."""

    def actions(self, schedule: Schedule) -> list[Action]:
        """Every legal step from `schedule`, in a fixed order; empty at the end of the road."""

    def key(self, schedule: Schedule) -> str:
        """Identity for transpositions: two schedules with equal keys are the same kernel."""


@dataclass(frozen=True)
class Observation:
    """What measuring one schedule showed. `runtime_s` is None where it failed."""

    schedule: Schedule
    status: Status
    runtime_s: float | None
    binary_hash: str = ""
    reason: str = ""

    @classmethod
    def of(cls, row: Measurement) -> Observation:
        """What a search sees of a row."""
        return cls(
            row.schedule, row.status, row.median_s if row.status == Status.OK else None, row.binary_hash, row.reason
        )

    @property
    def time_s(self) -> float:
        """The runtime in seconds; infinite where it failed, for comparing only."""
        return self.runtime_s if self.status == Status.OK and self.runtime_s is not None else math.inf


def best(observations: Iterable[Observation]) -> Observation | None:
    """The fastest that succeeded, the first of equals; None where none did."""
    found = min(observations, key=lambda o: o.time_s, default=None)
    return None if found is None or math.isinf(found.time_s) else found


Predict = Callable[[Sequence[Schedule]], list[Prediction]]
Correct = Callable[[Sequence[Schedule], Sequence[tuple[Schedule, float]]], list[Prediction]]
Said = tuple[Prediction, Prediction | None]
"""What was expected of a schedule when it was measured: as predicted, and corrected by what was measured before."""
Measure = Callable[[Sequence[Schedule]], list["Future[Observation]"]]


@dataclass
class Ledger:
    """The budget of a search and what it has spent. `None` means no limit.

    A measurement is a unique binary timed; schedules that share a binary cost one. An evaluation is a schedule that the
    predictor was asked about; `Trials` counts them.
    """

    max_measurements: int | None = None
    max_compilations: int | None = None
    max_evaluations: int | None = None
    deadline: float | None = None  # on `clock`
    clock: Callable[[], float] = time.monotonic
    measurements: int = 0
    compilations: int = 0
    evaluations: int = 0

    @property
    def exhausted(self) -> bool:
        return self.remaining(1) < 1

    @property
    def used_up(self) -> bool:
        """Whether all measurements that it allows were made, whatever time is left; not where it allows none."""
        return bool(self.max_measurements) and self.measurements >= (self.max_measurements or 0)

    @property
    def may_evaluate(self) -> bool:
        """Whether the predictor may be asked about more schedules. What was found so far can still be measured."""
        return self.max_evaluations is None or self.evaluations < self.max_evaluations

    def remaining(self, wanted: int) -> int:
        """How many of `wanted` further measurements the budget still allows."""
        if self.deadline is not None and self.clock() >= self.deadline:
            return 0
        if self.max_measurements is not None:
            wanted = min(wanted, self.max_measurements - self.measurements)
        if self.max_compilations is not None:
            wanted = min(wanted, self.max_compilations - self.compilations)
        return max(wanted, 0)


@dataclass
class Problem:
    """One region to be searched. `measure` charges `ledger` itself; strategies only ask what is left.

    `measure` of a schedule that was measured before returns the known observation and charges nothing.
    """

    space: ActionSpace
    predict: Predict
    measure: Measure
    ledger: Ledger
    rng: random.Random
    batch_size: int = 4  # how many measurements are asked for at once
    drafting: int | None = None  # schedules whose steps are looked at before a batch, at most; None: no such limit
    known: dict[Schedule, Observation] = field(default_factory=dict)  # measured, e.g. before a resume; strategies add
    correct: Correct | None = None
    """Predictions corrected by all that was measured so far, in seconds (not finite: failed); None where the predictor
    learns nothing from measurements."""
    expected: dict[Schedule, Said] | None = None
    """Where somebody wants to know: what was expected of each schedule, put here before it is measured."""
    step: Callable[[Schedule, Opt], Schedule | None] | None = None
    """The schedule after one Opt, None where that is not legal; where there is no such function, schedules are reached
    by the space's `actions` alone."""
    tile: Callable[[Schedule], Hashable] | None = None
    """Equal for schedules whose threads compute the same; what is measured of one tells most of the others. None: it
    cannot tell."""
    kind: Callable[[Schedule], Hashable] | None = None
    """Equal for schedules that a predictor which misjudges one may misjudge alike. None: it cannot tell."""
    alike: Callable[[Schedule], str] | None = None
    """Equal for schedules that are about as fast, so that one of them is enough; None: each speaks for itself."""
    ask: Callable[[int, float], int] | None = None
    """Where several kernels share a device: called before a batch is measured with its size and the share by which it
    is expected to be faster than the best so far; waits for its turn, and says how many of it may be measured. Where
    others measured something of the kernel meanwhile it says 0, and what they saw is in `known`: ask again."""


class Strategy(Protocol):
    """A search: yields every observation as it is made and stops when the budget is gone or nothing is left to try.

    It is a generator, so that the budget can move to another region between two batches and come back.
    """

    def __call__(self, problem: Problem) -> Iterator[Observation]: ...
