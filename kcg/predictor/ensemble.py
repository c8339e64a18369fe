"""Several networks as one predictor: what they say together, and how far off they are expected to be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from kcg.predictor.features import Array, Graphs
from kcg.predictor.network import Network
from kcg.predictor.stacked import Answers, Stacked

if TYPE_CHECKING:
    from kcg.predictor.training_data import TrainingData

PREDICT_ROWS = 2048  # that networks are asked about at once


@dataclass(frozen=True)
class Outputs:
    """What the networks of an ensemble say of n rows of a dataset."""

    rank: Array  # (members, n) log-seconds
    log_sigma: Array  # (members, n)
    failure: Array  # (members, n) logits


class Ensemble:
    """Networks, one at least, asked together. Those of one shape that stand together are stacked; what changes in them
    later is not seen."""

    def __init__(self, nets: Sequence[Network]) -> None:
        """Raises DataError where networks compare the candidates of a kernel, which only training can ask."""
        alike = itertools.groupby(nets, key=lambda net: net.settings)
        self._stacks = [Stacked(list(same)) for _, same in alike]

    def __call__(self, made: Graphs, kernel_x: Array, target_x: Array) -> tuple[Outputs, Array]:
        """What every network says of n graphs, beside which `kernel_x` and `target_x` (n, …) stand; and (n, sum of
        hidden) float32, their last hidden states."""
        answers = [stacked(made, kernel_x, target_x) for stacked in self._stacks]
        hidden = np.concatenate([state for one in answers for state in one.hidden], 1)
        return Outputs(*(_each(answers, name) for name in ("rank", "log_sigma", "failure"))), hidden


def _each(answers: Sequence[Answers], name: str) -> Array:
    return np.concatenate([getattr(one, name) for one in answers]).astype(np.float64)


def outputs_by(nets: Sequence[Network], data: TrainingData, index: Array) -> Outputs:
    """Ask every network, of which there is one at least, about some rows (n,) of a dataset. Raises DataError as
    `Ensemble` does."""
    asked, some = Ensemble(nets), data.take(index)
    kernel_x, target_x = some.kernel_x[some.kernel], some.target_x[some.target[some.kernel]]
    made = Outputs(*(np.zeros((len(nets), len(some))) for _ in fields(Outputs)))
    for first in range(0, len(some), PREDICT_ROWS):
        rows = np.arange(first, min(first + PREDICT_ROWS, len(some)))
        part, _ = asked(some.graphs.take(rows), kernel_x[rows], target_x[rows])
        for name in Outputs.__dataclass_fields__:
            getattr(made, name)[:, rows] = getattr(part, name)
    made.rank[...] += some.base
    return made


def trusting(outputs: Outputs, base: Array, trust: float) -> Outputs:
    """With so much of what the networks say against the formula of their kind, whose log-seconds (n,) are `base`."""
    return outputs if trust == 1.0 else replace(outputs, rank=base + trust * (outputs.rank - base))


def averaged(outputs: Outputs, scale: float = 1.0) -> dict[str, Array]:
    """(n,) each: `rank` (log-seconds), `log_sigma` and `failure` (a logit), as a checkpoint of these networks predicts.

    Members are averaged; the spread is theirs and that between them (Lakshminarayanan et al., 2017), times the scale.
    """
    variance = np.exp(2 * outputs.log_sigma).mean(0) + outputs.rank.var(0)
    return {
        "rank": outputs.rank.mean(0),
        "log_sigma": 0.5 * np.log(variance) + math.log(scale),
        "failure": outputs.failure.mean(0),
    }
