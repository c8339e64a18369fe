"""Several networks as one predictor: what they say together, and how far off they are expected to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kcg.dataset.splits import VALIDATION
from kcg.predictor.features import Array
from kcg.predictor.fit import pool_rows, predicted
from kcg.predictor.metrics import COVERAGE
from kcg.predictor.network import GraphSet, Net
from kcg.predictor.training_data import TrainingData

LEAST_ROWS = 20  # from which a scale of spreads is taken


@dataclass(frozen=True)
class Outputs:
    """What the networks of an ensemble say of n rows of a dataset."""

    rank: Array  # (members, n) log-seconds
    log_sigma: Array  # (members, n)
    failure: Array  # (members, n) logits


def outputs_by(nets: Sequence[Net], data: TrainingData, index: Array, *, device: str = "cpu") -> Outputs:
    """Ask every network, of which there is one at least, about some rows (n,) of a dataset. They are moved to the
    device."""
    some = data.take(index)
    graphs = GraphSet(some.graphs, some.kernel, some.kernel_x, some.target_x, some.target, device)
    each = [predicted(net.to(torch.device(device)), graphs, np.arange(len(index))) for net in nets]
    rank, log_sigma, failure = (np.stack([one[name] for one in each]) for name in ("rank", "log_sigma", "failure"))
    return Outputs(rank, log_sigma, failure)


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


def validation_rows(data: TrainingData, split: str) -> Array:
    """(n,) the rows that decide: the pool of the validation part. The test part is never among them."""
    return pool_rows(data, split, VALIDATION)


def spread_scale(found: dict[str, Array], log_s: Array) -> float:
    """By what the expected errors have to be multiplied so that 50, 80 and 95 % of the errors lie within what a normal
    distribution has there; the geometric mean of the three, which a few wild errors do not move. 1 for few rows."""
    timed = np.isfinite(log_s)
    if timed.sum() < LEAST_ROWS:
        return 1.0
    z = np.abs(found["rank"] - log_s)[timed] * np.exp(-found["log_sigma"][timed])
    scales = [max(float(np.quantile(z, share)) / limit, 1e-3) for share, limit in COVERAGE]
    return math.prod(scales) ** (1 / len(scales))
