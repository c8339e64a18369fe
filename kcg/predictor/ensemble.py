"""Several networks as one predictor: what they say together, and how far off they are expected to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kcg.predictor.features import Array
from kcg.predictor.network import GraphSet, Net, Output
from kcg.predictor.training_data import POOL, TrainingData

PREDICT_ROWS = 2048  # that a network is asked about at once


@dataclass(frozen=True)
class Outputs:
    """What the networks of an ensemble say of n rows of a dataset."""

    rank: Array  # (members, n) log-seconds
    log_sigma: Array  # (members, n)
    failure: Array  # (members, n) logits


def predicted(net: Net, graphs: GraphSet, index: Array) -> dict[str, Array]:
    """What a network says of some rows: `log_s`, `rank`, `log_sigma`, `failure` (a logit), each (m,) float64.

    With attention between candidates, those of one kernel that stand together are compared with one another.
    """
    net.eval()
    found: dict[str, list[Array]] = {name: [] for name in Output.__dataclass_fields__}
    with torch.inference_mode():
        for first in range(0, len(index), PREDICT_ROWS):
            output = net(graphs.batch(torch.from_numpy(index[first : first + PREDICT_ROWS])))
            for name, values in found.items():
                values.append(getattr(output, name).double().cpu().numpy())
    return {name: np.concatenate(values) if values else np.zeros(0) for name, values in found.items()}


def evaluation_pool(data: TrainingData) -> Array:
    """(n,) bool: the rows on which rankings are judged."""
    wanted = [i for i, name in enumerate(data.samplers) if name.startswith(POOL)]
    return np.isin(data.sampler, wanted)


def pool_rows(data: TrainingData, split: str, part: str) -> Array:
    """(m,) the rows of a part of a split on which rankings are judged."""
    return np.flatnonzero(data.part(split, part) & evaluation_pool(data))


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
