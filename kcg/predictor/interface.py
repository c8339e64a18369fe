"""What every predictor offers: expected log-runtime, uncertainty and probability of failure of scheduled kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

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
