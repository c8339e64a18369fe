"""What every predictor offers: expected log-runtime, uncertainty and probability of failure of scheduled kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from kcg.types import Prediction, Schedule

if TYPE_CHECKING:
    from kcg.kernel.space import KernelSpace


class Predictor(Protocol):
    """Predicts schedules of one kernel at a time, in batches."""

    name: str

    def predict(self, space: KernelSpace, schedules: Sequence[Schedule]) -> list[Prediction]:
        """One prediction per schedule, in order. Never NaN: what cannot be judged has a high failure probability."""
        ...
