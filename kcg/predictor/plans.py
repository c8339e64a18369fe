"""The learned predictor of schedules that are seen as plans: tile programs of one kernel or of several.

Its networks say by what factor a kind's own formula is off, and how likely a program fails; what is measured of a
region corrects them, as it corrects the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kcg.errors import DataError, ScheduleError
from kcg.kernel.kinds import HasCost, SeenAsPlans
from kcg.predictor.checkpoint import Checkpoint
from kcg.predictor.cost import CANNOT_JUDGE, USUAL_FAILURES, blaming
from kcg.predictor.ensemble import Ensemble, trusting
from kcg.predictor.features import Array, graphs_of_plans, target_features, widths_of
from kcg.predictor.interface import Judge
from kcg.predictor.learned import NEVER_SEEN, ROWS, Shown, estimated
from kcg.types import Prediction, Schedule

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space


class PlanPredictor:
    """What a checkpoint of plans predicts. Deterministic; what it says of a schedule depends on no other."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises DataError where networks of the checkpoint compare candidates, which only training can ask."""
        self.checkpoint = checkpoint
        self.name = checkpoint.about.name
        self._ensemble = Ensemble(checkpoint.nets)
        self._shown = Shown(checkpoint.about)

    def predict(self, space: Space, schedules: Sequence[Schedule]) -> list[Prediction]:
        """See `Predictor`. Raises DataError where the space shows other numbers than were learned of."""
        return self.embed(space, schedules)[0]

    def of(self, space: Space) -> Judge:
        """One region, corrected by what is measured of it."""
        if not isinstance(space, HasCost):
            return Judge(lambda schedules: self.predict(space, schedules))
        return blaming(self, space)

    def embed(self, space: Space, schedules: Sequence[Schedule]) -> tuple[list[Prediction], list[Array | None]]:
        """Predictions, and the networks' last hidden states: see `kcg.predictor.correction.Embeds`."""
        found, states = [CANNOT_JUDGE] * len(schedules), list[Array | None]([None] * len(schedules))
        if not isinstance(space, SeenAsPlans):
            return found, states
        if widths_of(space.words) != self.checkpoint.nets[0].settings.widths:
            raise DataError(f"{self.name} was trained on other numbers of plans: train it again with this kcg")
        for first in range(0, len(schedules), ROWS):
            places, plans, refused = [], [], []
            for place, schedule in enumerate(schedules[first : first + ROWS], first):
                try:
                    plan, (chance,) = space.seen(schedule), space.refusals([schedule])
                except ScheduleError:
                    continue
                places.append(place)
                plans.append(plan)
                refused.append(max(chance, USUAL_FAILURES))
            if not places:
                continue
            kernel_x, shape = self._shown.kernel_x(space.region), (len(places), 1)
            outputs, hidden = self._ensemble(
                graphs_of_plans(plans), np.tile(kernel_x, shape), np.tile(target_features(space.target), shape)
            )
            about = self.checkpoint.about
            trusted = trusting(outputs, np.zeros(len(plans)), about.trust)
            base = np.array([plan.log_s for plan in plans])
            mean, sigma, failure = estimated(trusted, about.spread_scale, base)
            if self._shown.is_strange(space):
                sigma = np.maximum(sigma, NEVER_SEEN)
            failure = np.maximum(failure, refused)
            for place, state, *values in zip(
                places, hidden, mean.tolist(), sigma.tolist(), failure.tolist(), strict=True
            ):
                found[place], states[place] = Prediction(*values), state
        return found, states
