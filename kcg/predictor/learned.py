"""The learned predictor: the networks of a checkpoint, asked about schedules of a kernel in batches."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from kcg.errors import ScheduleError
from kcg.kernel.refusals import refusal
from kcg.predictor.batches import GraphSet
from kcg.predictor.checkpoint import Checkpoint
from kcg.predictor.context import ScheduleFeatures, kernel_features, operations_of, target_features
from kcg.predictor.correcting import CorrectingKernel
from kcg.predictor.encode import Array, encode
from kcg.predictor.ensemble import Said, averaged
from kcg.predictor.features import Graphs, graphs, joined
from kcg.predictor.interface import Judge
from kcg.predictor.stacked import Stacked
from kcg.types import Prediction, Schedule, Target

if TYPE_CHECKING:
    from kcg.kernel.space import KernelSpace

ROWS = 512  # schedules that are predicted at once
KERNELS_KEPT = 64
IMPOSSIBLE = Prediction(0.0, uncertainty=10.0, failure_probability=1.0)
NEVER_SEEN = 1.0
"""Least standard deviation, in log-seconds, where the kernel has an operation, or the machine is one, that training
never showed."""


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread. Graphs are small, so more of them gain little, and where compilers hold the cores every
    operation waits for all of its threads: predicting was seen to take 50 times longer."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class LearnedPredictor:
    """What a checkpoint predicts. Deterministic; the order in which schedules are asked does not matter."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.name = checkpoint.about.name
        self._stacked = Stacked.of(checkpoint.nets)
        self._known_operations = frozenset(checkpoint.about.operations)
        self._known_targets = {t["fingerprint"] for t in checkpoint.about.targets}
        self._kernels: OrderedDict[str, tuple[Array, bool]] = OrderedDict()
        # what is loaded by now stays: walking through the objects of torch and tinygrad took a tenth of a search
        gc.freeze()

    def predict(self, space: KernelSpace, schedules: Sequence[Schedule]) -> list[Prediction]:
        """One prediction for each schedule, in order; never NaN. What does not apply is expected to fail."""
        return self.embed(space, schedules)[0]

    def of(self, space: KernelSpace) -> Judge:
        """What it says of one kernel, corrected by what is measured of it."""
        kernel = CorrectingKernel(self, space)
        return Judge(kernel.predict, kernel.correct)

    def embed(self, space: KernelSpace, schedules: Sequence[Schedule]) -> tuple[list[Prediction], list[Array | None]]:
        """Predictions, and beside each the last hidden states of all networks, (sum of hidden,); None where it does
        not apply."""
        found, states = [IMPOSSIBLE] * len(schedules), list[Array | None]([None] * len(schedules))
        for first in range(0, len(schedules), ROWS):
            self._predict(space, schedules[first : first + ROWS], first, found, states)
        return found, states

    def _predict(
        self, space: KernelSpace, schedules: Sequence[Schedule], first: int, found: list[Prediction],
        states: list[Array | None],
    ) -> None:  # fmt: skip
        tables, places, uops, refused = [], [], [], []
        for place, schedule in enumerate(schedules, first):
            try:
                table, length = space.table(schedule), space.uops(schedule)
                chance = refusal(space, schedule, length)
            except ScheduleError:
                continue
            places.append(place)
            tables.append(table)
            uops.append(length)
            refused.append(chance)
        if not places:
            return
        kernel_x, _ = self._kernel(space)
        mean, sigma, failure, hidden = self.estimate(graphs(encode(tables, uops), space.target), kernel_x, space.target)
        if self._is_strange(space):
            sigma = np.maximum(sigma, NEVER_SEEN)
        failure = np.maximum(failure, refused)
        for place, state, *said in zip(places, hidden, mean.tolist(), sigma.tolist(), failure.tolist(), strict=True):
            found[place], states[place] = Prediction(*said), state

    def of_views(self, views: Sequence[ScheduleFeatures]) -> list[Prediction]:
        """What it predicts of schedules of any kernels, whose graphs are there already; in order."""
        if not views:
            return []
        kernels = {view.space.region.id: i for i, view in enumerate(views)}
        made = views[0].graph if len(views) == 1 else joined(view.graph for view in views)
        kernel_x, target_x = (np.stack([getattr(view, name) for view in views]) for name in ("kernel_x", "target_x"))
        kernel = np.array([kernels[view.space.region.id] for view in views])
        mean, sigma, failure, _ = self._estimate(made, kernel_x, target_x, kernel)
        found = []
        for view, *said in zip(views, mean.tolist(), sigma.tolist(), failure.tolist(), strict=True):
            least = NEVER_SEEN if self._is_strange(view.space) else 0.0
            found.append(Prediction(said[0], max(said[1], least), max(said[2], view.refused)))
        return found

    def estimate(self, made: Graphs, kernel_x: Array, target: Target) -> tuple[Array, Array, Array, Array]:
        """(n,) each: log-seconds, their standard deviation, and the probability of failure of graphs of one kernel;
        and (n, sum of hidden) float32, the networks' last hidden states."""
        return self._estimate(made, kernel_x[None], target_features(target)[None], np.zeros(len(made), np.int64))

    def _estimate(
        self, made: Graphs, kernel_x: Array, target_x: Array, kernel: Array
    ) -> tuple[Array, Array, Array, Array]:
        """`estimate` of several kernels: `kernel` (n,) is a place in `kernel_x` and `target_x`."""
        said, hidden = self._asked(made, kernel_x, target_x, kernel)
        found = averaged(said, self.checkpoint.about.spread_scale)
        mean, sigma = found["rank"], np.exp(found["log_sigma"])
        failure = 1 / (1 + np.exp(-np.clip(found["failure"], -30, 30)))
        broken = ~(np.isfinite(mean) & np.isfinite(sigma) & np.isfinite(failure))
        return (
            np.where(broken, 0.0, mean), np.where(broken, IMPOSSIBLE.uncertainty, sigma),
            np.where(broken, 1.0, failure), hidden,
        )  # fmt: skip

    def _asked(self, made: Graphs, kernel_x: Array, target_x: Array, kernel: Array) -> tuple[Said, Array]:
        """What every network says, and (n, sum of hidden) their last hidden states."""
        n, nets = len(made), self.checkpoint.nets
        with one_thread(), torch.inference_mode():
            if self._stacked is not None:
                said = self._stacked(made, kernel_x[kernel], target_x[kernel])
                states = said.hidden.transpose(0, 1).reshape(n, -1)
                rank, log_sigma, failure = said.rank, said.log_sigma, said.failure
            else:
                batch = GraphSet(made, kernel, kernel_x, target_x, np.arange(len(kernel_x))).batch(torch.arange(n))
                each = [net.embed_graphs(batch) for net in nets]
                answers = [net.answer(batch, state) for net, state in zip(nets, each, strict=True)]
                states = torch.cat(each, 1)
                rank, log_sigma, failure = (
                    torch.stack([getattr(one, name) for one in answers]) for name in ("rank", "log_sigma", "failure")
                )
            return Said(*(values.double().numpy() for values in (rank, log_sigma, failure))), states.numpy()

    def _is_strange(self, space: KernelSpace) -> bool:
        """Whether training never showed an operation of the kernel, or the machine."""
        return self._kernel(space)[1] or space.target.fingerprint not in self._known_targets

    def _kernel(self, space: KernelSpace) -> tuple[Array, bool]:
        """The kernel's own numbers, and whether it has an operation that training never showed."""
        region = space.region
        if region.id not in self._kernels:
            while len(self._kernels) >= KERNELS_KEPT:
                self._kernels.popitem(last=False)
            strange = not operations_of(region) <= self._known_operations
            self._kernels[region.id] = (kernel_features(region), strange)
        return self._kernels[region.id]
