"""The learned predictor: the networks of a checkpoint, asked about schedules of a kernel in batches."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kcg.errors import DataError, ScheduleError
from kcg.predictor.checkpoint import About, Checkpoint
from kcg.predictor.correction import CorrectingKernel
from kcg.predictor.ensemble import Ensemble, Outputs, averaged
from kcg.predictor.features import (
    Array,
    Graphs,
    ScheduleFeatures,
    encode,
    graphs,
    kernel_features,
    operations_of,
    side_by_side,
    target_features,
)
from kcg.predictor.interface import Judge
from kcg.types import Prediction, Region, Schedule, ScheduleKind, Target

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space


ROWS = 512  # schedules that are predicted at once
KERNELS_KEPT = 64
IMPOSSIBLE = Prediction(0.0, uncertainty=10.0, failure_probability=1.0)
MOST_LOG_S = 100.0
"""What is expected to take longer, in log-seconds, or as much less than a second, is no time: exp overflows at 710."""
NEVER_SEEN = 1.0
"""Least standard deviation, in log-seconds, where the kernel has an operation, or the machine is one, that training
never showed."""


def estimated(outputs: Outputs, scale: float, base: Array | float = 0.0) -> tuple[Array, Array, Array]:
    """(n,) each: log-seconds above `base`, their standard deviation, and the probability of failure, as networks say
    together; what is no time is expected to fail."""
    with np.errstate(all="ignore"):  # weights may be anything
        found = averaged(outputs, scale)
        mean, sigma = found["rank"] + base, np.exp(found["log_sigma"])
    failure = 1 / (1 + np.exp(-np.clip(found["failure"], -30, 30)))
    broken = ~((np.abs(mean) < MOST_LOG_S) & np.isfinite(sigma) & np.isfinite(failure))
    return (
        np.where(broken, IMPOSSIBLE.log_runtime, mean),
        np.where(broken, IMPOSSIBLE.uncertainty, sigma),
        np.where(broken, IMPOSSIBLE.failure_probability, failure),
    )


class Shown:
    """What training showed a checkpoint, and the numbers of the last regions that it was asked about."""

    def __init__(self, about: About, *, also_known: str = "") -> None:
        """`also_known` is the fingerprint of a target on which it was calibrated."""
        self._operations = frozenset(about.operations)
        self._targets = {*(t["fingerprint"] for t in about.targets), also_known}
        self._regions: OrderedDict[str, tuple[Array, bool]] = OrderedDict()

    def kernel_x(self, region: Region) -> Array:
        """A region's own numbers."""
        return self._known(region)[0]

    def is_strange(self, space: Space) -> bool:
        """Whether training never showed an operation of the region, or the machine."""
        return self._known(space.region)[1] or space.target.fingerprint not in self._targets

    def _known(self, region: Region) -> tuple[Array, bool]:
        if region.id not in self._regions:
            while len(self._regions) >= KERNELS_KEPT:
                self._regions.popitem(last=False)
            self._regions[region.id] = kernel_features(region), not operations_of(region) <= self._operations
        return self._regions[region.id]


class LearnedPredictor:
    """What a checkpoint predicts. Deterministic; the order in which schedules are asked does not matter."""

    def __init__(self, checkpoint: Checkpoint, *, also_known: str = "") -> None:
        """`also_known` is as of `Shown`. Raises DataError where networks of the checkpoint compare candidates, which
        only training can ask, or are of other schedules than Opts."""
        if (kind := checkpoint.nets[0].settings.kind) != ScheduleKind.OPTS:
            raise DataError(f"{checkpoint.about.name} is of schedules of kind {kind}: here one of Opts is needed")
        self.checkpoint = checkpoint
        self.name = checkpoint.about.name
        self._ensemble = Ensemble(checkpoint.nets)
        self._shown = Shown(checkpoint.about, also_known=also_known)
        # what is loaded by now stays: walking through its objects, those of torch too then, took a tenth of a search
        gc.freeze()

    def predict(self, space: Space, schedules: Sequence[Schedule]) -> list[Prediction]:
        """One prediction for each schedule, in order; never NaN. What does not apply is expected to fail."""
        return self.embed(space, schedules)[0]

    def of(self, space: Space) -> Judge:
        """What it says of one kernel, corrected by what is measured of it."""
        kernel = CorrectingKernel(self, space)
        return Judge(kernel.predict, kernel.correct)

    def embed(self, space: Space, schedules: Sequence[Schedule]) -> tuple[list[Prediction], list[Array | None]]:
        """Predictions, and beside each the last hidden states of all networks, (sum of hidden,); None where it does
        not apply."""
        found, states = [IMPOSSIBLE] * len(schedules), list[Array | None]([None] * len(schedules))
        for first in range(0, len(schedules), ROWS):
            self._predict(space, schedules[first : first + ROWS], first, found, states)
        return found, states

    def _predict(
        self,
        space: Space,
        schedules: Sequence[Schedule],
        first: int,
        found: list[Prediction],
        states: list[Array | None],
    ) -> None:
        nests, places, refused = [], [], []
        for place, schedule in enumerate(schedules, first):
            try:
                (nest,), (chance,) = space.loop_nests([schedule]), space.refusals([schedule])
            except ScheduleError:
                continue
            places.append(place)
            nests.append(nest)
            refused.append(chance)
        if not places:
            return
        kernel_x = self._shown.kernel_x(space.region)
        mean, sigma, failure, hidden = self.estimate(graphs(encode(nests), space.target), kernel_x, space.target)
        if self._shown.is_strange(space):
            sigma = np.maximum(sigma, NEVER_SEEN)
        failure = np.maximum(failure, refused)
        for place, state, *outputs in zip(places, hidden, mean.tolist(), sigma.tolist(), failure.tolist(), strict=True):
            found[place], states[place] = Prediction(*outputs), state

    def predict_features(self, features: Sequence[ScheduleFeatures]) -> list[Prediction]:
        """`predict` of schedules of any kernels whose features are there already."""
        if not features:
            return []
        kernels = {(one.space.region.id, one.space.target): i for i, one in enumerate(features)}
        made, kernel_x, target_x = side_by_side(features)
        kernel = np.array([kernels[one.space.region.id, one.space.target] for one in features])
        mean, sigma, failure, _ = self._estimate(made, kernel_x, target_x, kernel)
        found = []
        for one, *outputs in zip(features, mean.tolist(), sigma.tolist(), failure.tolist(), strict=True):
            least = NEVER_SEEN if self._shown.is_strange(one.space) else 0.0
            found.append(Prediction(outputs[0], max(outputs[1], least), max(outputs[2], one.refused)))
        return found

    def estimate(self, made: Graphs, kernel_x: Array, target: Target) -> tuple[Array, Array, Array, Array]:
        """(n,) each: log-seconds, their standard deviation, and the probability of failure of graphs of one kernel;
        and (n, sum of hidden) float32, the networks' last hidden states."""
        return self._estimate(made, kernel_x[None], target_features(target)[None], np.zeros(len(made), np.int64))

    def _estimate(
        self, made: Graphs, kernel_x: Array, target_x: Array, kernel: Array
    ) -> tuple[Array, Array, Array, Array]:
        """`estimate` of several kernels: `kernel` (n,) is a place in `kernel_x` and `target_x`."""
        outputs, hidden = self._ensemble(made, kernel_x[kernel], target_x[kernel])
        return *estimated(outputs, self.checkpoint.about.spread_scale), hidden
