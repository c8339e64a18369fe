"""The predictor of kinds that know the cost of their schedules by a formula, corrected by what is measured.

It needs no data: what a correction goes by are the numbers that a kind says its schedules are like.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from kcg.errors import ScheduleError
from kcg.kernel.kinds import HasCost, SeenAsPlans
from kcg.predictor.calibrated import Calibrated
from kcg.predictor.correction import CorrectingKernel, Embeds
from kcg.predictor.features import Array
from kcg.predictor.interface import Beside, Judge
from kcg.types import Prediction, Schedule

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space
    from kcg.predictor.interface import Predictor

USUAL_FAILURES = 0.02
LIKE_A_FAILURE = 0.5  # how likely a program fails that has all that is suspected of one that failed
CANNOT_JUDGE = Prediction(0.0, uncertainty=10.0, failure_probability=1.0)


class KnownCost:
    """The predictor of spaces that have a cost (`kcg.kernel.kinds.HasCost`). What is not of such it cannot judge."""

    name = "analytic cost"

    def predict(self, space: Space, schedules: Sequence[Schedule]) -> list[Prediction]:
        """See `Predictor`."""
        return self.embed(space, schedules)[0]

    def embed(self, space: Space, schedules: Sequence[Schedule]) -> tuple[list[Prediction], list[Array | None]]:
        """Predictions, and what each is like: see `kcg.predictor.correction.Embeds`."""
        predictions, states = [], []
        for schedule in schedules:
            prediction, state = _one(space, schedule)
            predictions.append(prediction)
            states.append(state)
        return predictions, states

    def of(self, space: Space) -> Judge:
        """One kernel, corrected by what is measured of it."""
        if not isinstance(space, HasCost):
            return Judge(lambda schedules: self.predict(space, schedules))
        return blaming(self, space)


def blaming(predictor: Embeds, space: HasCost) -> Judge:
    """What a predictor says of one kernel, corrected by what is measured of it, failures too."""
    kernel, blamed = CorrectingKernel(predictor, cast("Space", space)), Blamed(space)

    def correct(schedules: Sequence[Schedule], measured: Sequence[tuple[Schedule, float]]) -> list[Prediction]:
        blamed.saw(measured)
        return blamed.expected(schedules, kernel.correct(schedules, measured))

    return Judge(kernel.predict, correct)


def _one(space: Space, schedule: Schedule) -> tuple[Prediction, Array | None]:
    if not isinstance(space, HasCost):
        return CANNOT_JUDGE, None
    try:
        cost, (refused,) = space.cost(schedule), space.refusals([schedule])
    except ScheduleError:
        return CANNOT_JUDGE, None
    return Prediction(math.log(cost.seconds), cost.uncertainty, max(refused, USUAL_FAILURES)), cost.features


class Blamed:
    """Failures of a kernel's programs: what is like them in all that never ran is likely to fail too.

    A rule of the compiler's that nobody wrote down, or functions of less accuracy than a kernel needs: both show in one
    or two parameters, and what else a failed program had is cleared by the first one that runs with it.
    """

    def __init__(self, space: HasCost) -> None:
        self._space = space
        self._seen: set[Schedule] = set()
        self._failed: list[Mapping[Hashable, float]] = []
        self._ran: set[Hashable] = set()

    def saw(self, measured: Sequence[tuple[Schedule, float]]) -> None:
        """Take in what was measured, in seconds; not finite: it failed."""
        for schedule, seconds in measured:
            if schedule in self._seen or (suspects := self._suspects(schedule)) is None:
                continue
            self._seen.add(schedule)
            if math.isfinite(seconds):
                self._ran.update(suspects)
            else:
                self._failed.append(suspects)

    def expected(self, schedules: Sequence[Schedule], predictions: Sequence[Prediction]) -> list[Prediction]:
        """The predictions with what the failures say of each."""
        suspected = Counter(
            frozenset((what, weight) for what, weight in failed.items() if what not in self._ran)
            for failed in self._failed
        )

        def failing(schedule: Schedule, prediction: Prediction) -> Prediction:
            if (has := self._suspects(schedule)) is None:
                return prediction
            runs = 1.0 - prediction.failure_probability
            for suspects, count in suspected.items():
                if whole := sum(weight for _, weight in suspects):
                    like = sum(weight for what, weight in suspects if what in has) / whole
                    runs *= (1.0 - LIKE_A_FAILURE * like**2) ** count
            return replace(prediction, failure_probability=1.0 - runs)

        return [failing(s, p) for s, p in zip(schedules, predictions, strict=True)] if suspected else [*predictions]

    def _suspects(self, schedule: Schedule) -> Mapping[Hashable, float] | None:
        """What may be to blame; None of a schedule of another space, such as tinygrad's own."""
        try:
            return self._space.suspects(schedule)
        except ScheduleError:
            return None


def guiding(space: Space, usual: Predictor | None) -> Predictor:
    """What judges the schedules of a space: what was learned of its plans, where that comes with the usual predictor;
    else their cost where it has one, or no other is there; else the usual predictor. With what `kcg calibrate` added,
    if it did."""
    if isinstance(usual, Calibrated):
        return usual.beside(guiding(space, usual.inner))
    if isinstance(usual, Beside) and isinstance(space, SeenAsPlans):
        return usual.plans
    if isinstance(usual, Beside) and isinstance(usual.usual, Calibrated) and isinstance(space, HasCost):
        return guiding(space, usual.usual)
    return KnownCost() if usual is None or isinstance(space, HasCost) else usual
