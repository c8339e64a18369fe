"""The predictor of tile programs: the analytic cost of `kcg.kernel.tile.cost`, corrected by what is measured.

It needs no data: what a correction goes by are the parameters themselves, as logarithms.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kcg.errors import ScheduleError
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.parameters import CONTRACTIONS, IN_GLUON, PRECISIONS, TMA, TileParameters
from kcg.kernel.tile.space import TileSpace
from kcg.predictor.correction import CorrectingKernel
from kcg.predictor.features import Array
from kcg.predictor.interface import Judge
from kcg.types import Prediction, Schedule, ScheduleKind

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space
    from kcg.predictor.interface import Predictor

UNCERTAIN = 0.25
"""Log-seconds by which a contraction's cost is off, twice what it is on matmuls of Flux within one kernel; of other
forms it was never measured."""
UNKNOWN = 0.6
USUAL_FAILURES = 0.02
LIKE_A_FAILURE = 0.5  # how likely a program fails that has all that is suspected of one that failed
CANNOT_JUDGE = Prediction(0.0, uncertainty=10.0, failure_probability=1.0)
Value = tuple[str, Any]
SUSPICIOUS: dict[Value, float] = {("fast_math", True): 8.0, ("warp_specialize", True): 8.0}
"""How much more than others these parameters are suspected: they are known to make wrong programs."""
_NAMES = tuple(field.name for field in fields(TileParameters))
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
        if schedule.kind != ScheduleKind.TILE:
            return CANNOT_JUDGE, None
        try:
            p, (refused,) = space.parameters(schedule), space.refusals([schedule])
            seconds = predicted_seconds(space.kernel, space.target, p)
        except ScheduleError:
            return CANNOT_JUDGE, None
        uncertainty = UNCERTAIN if p.form in CONTRACTIONS else UNKNOWN
        return Prediction(math.log(seconds), uncertainty, max(refused, USUAL_FAILURES)), embedding(p)

    def of(self, space: Space) -> Judge:
        """One kernel, corrected by what is measured of it."""
        kernel, blamed = CorrectingKernel(self, space), Blamed()

        def correct(schedules: Sequence[Schedule], measured: Sequence[tuple[Schedule, float]]) -> list[Prediction]:
            blamed.saw(measured)
            return blamed.expected(schedules, kernel.correct(schedules, measured))

        return Judge(kernel.predict, correct)


class Blamed:
    """Failures of a kernel's programs: what is like them in all that never ran is likely to fail too.

    A rule of the compiler's that nobody wrote down, or functions of less accuracy than a kernel needs: both show in one
    or two parameters, and what else a failed program had is cleared by the first one that runs with it.
    """

    def __init__(self) -> None:
        self._seen: set[Schedule] = set()
        self._failed: list[frozenset[Value]] = []
        self._ran: set[Value] = set()

    def saw(self, measured: Sequence[tuple[Schedule, float]]) -> None:
        """Take in what was measured, in seconds; not finite: it failed."""
        for schedule, seconds in measured:
            if schedule in self._seen or schedule.kind != ScheduleKind.TILE:
                continue
            self._seen.add(schedule)
            if math.isfinite(seconds):
                self._ran.update(_values(schedule))
            else:
                self._failed.append(_values(schedule))

    def expected(self, schedules: Sequence[Schedule], predictions: Sequence[Prediction]) -> list[Prediction]:
        """The predictions with what the failures say of each."""
        suspects = Counter(failed - self._ran for failed in self._failed)

        def failing(schedule: Schedule, prediction: Prediction) -> Prediction:
            if schedule.kind != ScheduleKind.TILE:
                return prediction
            values, runs = _values(schedule), 1.0 - prediction.failure_probability
            for suspected, count in suspects.items():
                if whole := _weight(suspected):
                    runs *= (1.0 - LIKE_A_FAILURE * (_weight(suspected & values) / whole) ** 2) ** count
            return replace(prediction, failure_probability=1.0 - runs)

        return [failing(s, p) for s, p in zip(schedules, predictions, strict=True)] if suspects else [*predictions]


@functools.lru_cache(1 << 16)
def _values(schedule: Schedule) -> frozenset[Value]:
    p = TileParameters.from_json(schedule.body)
    return frozenset((name, getattr(p, name)) for name in _NAMES)


def _weight(values: frozenset[Value]) -> float:
    return sum(SUSPICIOUS.get(value, 1.0) for value in values)


def embedding(p: TileParameters) -> Array:
    """Parameters as numbers in which neighbours are near."""
    tile = (*p.tile, *(1,) * AXES)[:AXES]
    sizes = (*tile, max(1, math.prod(p.tile) // math.prod(tile)), max(1, p.reduce_tile), p.split, p.tail, p.num_warps)
    flags = (
        p.loads == TMA,
        p.persistent,
        p.epilogue_parts - 1,
        p.warp_specialize,
        p.maxnreg > 0,
        bool(p.evict_first),
        bool(p.evict_last),
        p.precision != PRECISIONS[0],
        p.fast_math,
        p.read_early,
        p.form in IN_GLUON,
    )
    return np.array([*(math.log2(x) for x in sizes), p.num_stages, math.log2(p.group) / 2, *flags], np.float32)


def guiding(space: Space, usual: Predictor) -> Predictor:
    """What judges the schedules of a space: the cost where they are tile programs, else the usual predictor."""
    return TileCost() if isinstance(space, TileSpace) else usual
