"""What every predictor offers: expected log-runtime, uncertainty and probability of failure of scheduled kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kcg.kernel.kinds import HasParts
from kcg.types import Prediction, Schedule

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space


@dataclass(frozen=True)
class Judge:
    """What a predictor says of one kernel's schedules."""

    predict: Callable[[Sequence[Schedule]], list[Prediction]]
    correct: Callable[[Sequence[Schedule], Sequence[tuple[Schedule, float]]], list[Prediction]] | None = None
    """Predictions again, corrected by all that was measured of the kernel so far: seconds, not finite for failures."""


class Predictor(Protocol):
    """Predicts schedules of one kernel at a time, in batches."""

    name: str

    def predict(self, space: Space, schedules: Sequence[Schedule]) -> list[Prediction]:
        """One prediction per schedule, in order. Never NaN: what cannot be judged has a high failure probability."""
        ...

    def of(self, space: Space) -> Judge:
        """The same for one kernel, which is being searched."""
        ...


class Beside:
    """A predictor, and beside it another one of what is seen as plans."""

    def __init__(self, usual: Predictor, plans: Predictor) -> None:
        self.usual, self.plans = usual, plans
        self.name = f"{usual.name}, {plans.name}"

    def predict(self, space: Space, schedules: Sequence[Schedule]) -> list[Prediction]:
        """See `Predictor`."""
        return self.usual.predict(space, schedules)

    def of(self, space: Space) -> Judge:
        """See `Predictor`."""
        return self.usual.of(space)


def judge_of(predictor: Predictor, space: Space) -> Judge:
    """What a predictor says of the schedules of a region: of several kernels, what it says of the parts as a sum."""
    return Judge(lambda s: _of_parts(predictor, space, s)) if isinstance(space, HasParts) else predictor.of(space)


def _of_parts(predictor: Predictor, space: HasParts, schedules: Sequence[Schedule]) -> list[Prediction]:
    """One launch follows the other: runtimes add up, and so do the variances of the parts, which err by themselves."""
    wanted: dict[Space, dict[Schedule, Prediction]] = {}
    parts = [space.parts(schedule) for schedule in schedules]
    for of, own in (part for of_one in parts for part in of_one):
        wanted.setdefault(of, {})[own] = Prediction(0.0)
    for of, found in wanted.items():
        found.update(zip(found, predictor.predict(of, list(found)), strict=True))
    return [_sum([wanted[of][own] for of, own in of_one]) for of_one in parts]


def _sum(parts: Sequence[Prediction]) -> Prediction:
    total_s = sum(part.runtime_s for part in parts)
    uncertainty = math.hypot(*(part.uncertainty * part.runtime_s / total_s for part in parts))
    fails = 1 - math.prod(1 - part.failure_probability for part in parts)
    return Prediction(math.log(total_s), uncertainty, fails)
