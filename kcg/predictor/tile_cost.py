"""The predictor of tile programs: the analytic cost of `kcg.kernel.tile.cost`, corrected by what is measured.

It needs no data: what a correction goes by are the parameters themselves, as logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kcg.errors import ScheduleError
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.parameters import TMA, TileParameters
from kcg.kernel.tile.space import TileSpace
from kcg.predictor.correction import CorrectingKernel
from kcg.predictor.features import Array
from kcg.predictor.interface import Judge
from kcg.types import Prediction, Schedule

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space
    from kcg.predictor.interface import Predictor

UNCERTAIN = 0.25
"""Log-seconds by which a contraction's cost is off, twice what it is on matmuls of Flux within one kernel; of other
forms it was never measured."""
UNKNOWN = 0.6
USUAL_FAILURES = 0.02
AXES = 2  # of a tile, as embeddings count them


class TileCost:
    """The analytic predictor of the kind `tile`. What is of another kind it cannot judge."""

    name = "tile cost"

    def predict(self, space: Space, schedules: Sequence[Schedule]) -> list[Prediction]:
        """See `Predictor`."""
        return self.embed(space, schedules)[0]

    def embed(self, space: Space, schedules: Sequence[Schedule]) -> tuple[list[Prediction], list[Array | None]]:
        """Predictions, and what each is like: see `kcg.predictor.correction.Embeds`."""
        predictions, states = [], []
        for schedule in schedules:
            prediction, state = self._one(space, schedule)
            predictions.append(prediction)
            states.append(state)
        return predictions, states

    def _one(self, space: Any, schedule: Schedule) -> tuple[Prediction, Array | None]:
        try:
            p, (refused,) = space.parameters(schedule), space.refusals([schedule])
            seconds = predicted_seconds(space.kernel, space.target, p)
        except (ScheduleError, AttributeError):
            return Prediction(0.0, uncertainty=10.0, failure_probability=1.0), None
        uncertainty = UNCERTAIN if p.form == "contraction" else UNKNOWN
        return Prediction(math.log(seconds), uncertainty, max(refused, USUAL_FAILURES)), embedding(p)

    def of(self, space: Space) -> Judge:
        """One kernel, corrected by what is measured of it."""
        kernel = CorrectingKernel(self, space)
        return Judge(kernel.predict, kernel.correct)


def embedding(p: TileParameters) -> Array:
    """Parameters as numbers in which neighbours are near."""
    tile = (*p.tile, *(1,) * AXES)[:AXES]
    sizes = (*tile, max(1, math.prod(p.tile) // math.prod(tile)), max(1, p.reduce_tile), p.split, p.tail, p.num_warps)
    flags = (p.loads == TMA, p.persistent, p.epilogue_parts - 1, p.warp_specialize)
    return np.array([*(math.log2(x) for x in sizes), p.num_stages, math.log2(p.group) / 2, *flags], np.float32)


def guiding(space: Space, usual: Predictor) -> Predictor:
    """What judges the schedules of a space: the cost where they are tile programs, else the usual predictor."""
    return TileCost() if isinstance(space, TileSpace) else usual
