"""The learned predictor: networks and trees of a checkpoint, asked about schedules of a kernel in batches."""

from __future__ import annotations

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
from kcg.predictor.correcting import CorrectingKernel
from kcg.predictor.encode import Array, encode
from kcg.predictor.ensemble import Said, blend_of, blended
from kcg.predictor.features import Graphs, graphs, kernel_features, operations_of, target_features
from kcg.predictor.interface import Judge
from kcg.predictor.trees import pooled
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
        self._known_operations = frozenset(checkpoint.about.operations)
        self._known_targets = {t["fingerprint"] for t in checkpoint.about.targets}
        self._kernels: OrderedDict[str, tuple[Array, bool]] = OrderedDict()

    def predict(self, space: KernelSpace, schedules: Sequence[Schedule]) -> list[Prediction]:
        """One prediction for each schedule, in order; never NaN. What does not apply is expected to fail."""
        return self.embed(space, schedules)[0]

    def of(self, space: KernelSpace) -> Judge:
        """What it says of one kernel, corrected by what is measured of it."""
        if not self.checkpoint.nets:
            return Judge(lambda schedules: self.predict(space, schedules))
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
        kernel_x, strange = self._kernel(space)
        mean, sigma, failure, hidden = self.estimate(graphs(encode(tables, uops), space.target), kernel_x, space.target)
        if strange or space.target.fingerprint not in self._known_targets:
            sigma = np.maximum(sigma, NEVER_SEEN)
        failure = np.maximum(failure, refused)
        for place, state, *said in zip(places, hidden, mean.tolist(), sigma.tolist(), failure.tolist(), strict=True):
            found[place], states[place] = Prediction(*said), state

    def estimate(self, made: Graphs, kernel_x: Array, target: Target) -> tuple[Array, Array, Array, Array]:
        """(n,) each: log-seconds, their standard deviation, and the probability of failure of graphs of one kernel;
        and (n, sum of hidden) float32, the networks' last hidden states."""
        n, target_x = len(made), target_features(target)
        outputs: dict[str, list[Array]] = {"rank": [], "log_sigma": [], "failure": []}
        hidden = [np.zeros((n, 0), np.float32)]
        if self.checkpoint.nets:
            zeros = np.zeros(n, np.int64)
            batch = GraphSet(made, zeros, kernel_x[None], target_x[None], zeros[:1]).batch(torch.arange(n))
            with one_thread(), torch.inference_mode():
                for net in self.checkpoint.nets:
                    state = net.embed_graphs(batch)
                    hidden.append(state.numpy())
                    output = net.answer(batch, state)
                    for name, values in outputs.items():
                        values.append(getattr(output, name).double().numpy())
        stacked = {name: np.stack(values) if values else np.zeros((0, n)) for name, values in outputs.items()}
        blend, trees = blend_of(self.checkpoint), None
        if self.checkpoint.trees is not None and blend.tree_share > 0:
            rows = [np.broadcast_to(x, (n, len(x))) for x in (kernel_x, target_x)]
            trees = self.checkpoint.trees.predict(pooled(made, *rows))
        found = blended(Said(**stacked, trees=trees), blend)
        mean, sigma = found["rank"], np.exp(found["log_sigma"])
        failure = 1 / (1 + np.exp(-np.clip(found["failure"], -30, 30)))
        broken = ~(np.isfinite(mean) & np.isfinite(sigma) & np.isfinite(failure))
        return (
            np.where(broken, 0.0, mean), np.where(broken, IMPOSSIBLE.uncertainty, sigma),
            np.where(broken, 1.0, failure), np.concatenate(hidden, 1),
        )  # fmt: skip

    def _kernel(self, space: KernelSpace) -> tuple[Array, bool]:
        """The kernel's own numbers, and whether it has an operation that training never showed."""
        region = space.region
        if region.id not in self._kernels:
            while len(self._kernels) >= KERNELS_KEPT:
                self._kernels.popitem(last=False)
            strange = not operations_of(region) <= self._known_operations
            self._kernels[region.id] = (kernel_features(region), strange)
        return self._kernels[region.id]
