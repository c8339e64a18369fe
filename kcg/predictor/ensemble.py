"""Several networks and trees as one predictor: how they are blended, and what of that the validation part decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kcg.dataset.splits import VALIDATION
from kcg.predictor.batches import GraphSet
from kcg.predictor.checkpoint import Checkpoint
from kcg.predictor.data import TrainingData
from kcg.predictor.encode import Array
from kcg.predictor.fit import judge, pool_rows, predicted
from kcg.predictor.gnn import Net
from kcg.predictor.metrics import COVERAGE, Floors, score_of, scores, summary
from kcg.predictor.trees import Trees, pooled

SHARES = tuple(i / 10 for i in range(11))
LEAST_ROWS = 20  # from which a scale of spreads is taken
NO_NETWORK = (1.0, -3.9)  # standard deviation, and logit of failure, where there are trees alone


@dataclass(frozen=True)
class Said:
    """What the parts of an ensemble say of n rows of a dataset."""

    rank: Array  # (members, n) log-seconds
    log_sigma: Array  # (members, n)
    failure: Array  # (members, n) logits
    trees: Array | None  # (n,) log-seconds

    def __len__(self) -> int:
        return int(self.rank.shape[1])


@dataclass(frozen=True)
class Blend:
    """How much the trees count, and by what expected errors are multiplied."""

    tree_share: float = 0.0
    spread_scale: float = 1.0


def said_by(nets: Sequence[Net], trees: Trees | None, data: TrainingData, index: Array, *, device: str = "cpu") -> Said:
    """Ask every part about some rows (n,) of a dataset. The networks are moved to the device."""
    found: dict[str, list[Array]] = {"rank": [], "log_sigma": [], "failure": []}
    if nets:
        some = data.take(index)
        graphs = GraphSet(some.graphs, some.kernel, some.kernel_x, some.target_x, some.target, device)
        for net in nets:
            one = predicted(net.to(torch.device(device)), graphs, np.arange(len(index)))
            for name, values in found.items():
                values.append(one[name])
    stacked = {name: np.stack(values) if values else np.zeros((0, len(index))) for name, values in found.items()}
    return Said(**stacked, trees=trees.predict(tree_rows(data, index)) if trees is not None else None)


def tree_rows(data: TrainingData, index: Array) -> Array:
    """(n, features) what trees see of some rows of a dataset."""
    kernel = data.kernel[index]
    return pooled(data.graphs.take(index), data.kernel_x[kernel], data.target_x[data.target[kernel]])


def blended(said: Said, blend: Blend) -> dict[str, Array]:
    """(n,) each: `rank` (log-seconds), `log_sigma` and `failure` (a logit), as a checkpoint of these parts predicts.

    Members are averaged; the spread is theirs and that between them (Lakshminarayanan et al., 2017). Trees have a share
    in the ranking alone, since they say nothing of spread or failure.
    """
    n = len(said)
    if len(said.rank):
        rank, failure = said.rank.mean(0), said.failure.mean(0)
        variance = np.exp(2 * said.log_sigma).mean(0) + said.rank.var(0)
    else:
        rank, failure, variance = np.zeros(n), np.full(n, NO_NETWORK[1]), np.full(n, NO_NETWORK[0] ** 2)
    if said.trees is not None and blend.tree_share > 0:
        rank = (1 - blend.tree_share) * rank + blend.tree_share * said.trees if len(said.rank) else said.trees
    return {"rank": rank, "log_sigma": 0.5 * np.log(variance) + math.log(blend.spread_scale), "failure": failure}


def validation_rows(data: TrainingData, split: str) -> Array:
    """(n,) the rows that decide: the pool of the validation part. The test part is never among them."""
    return pool_rows(data, split, VALIDATION)


def chosen(said: Said, data: TrainingData, index: Array, floors: Floors) -> tuple[Blend, dict[float, float]]:
    """The blend that is best on some rows, and the score of every share: pairwise accuracy plus top-1.

    Where nothing can be judged the parts count alike, and spreads stay as they are.
    """
    shares: Sequence[float] = SHARES
    if said.trees is None or not len(said.rank):
        shares = (0.0,) if said.trees is None else (1.0,)
    by_share = {share: _score(said, Blend(share), data, index, floors) for share in shares}
    best = max(by_share, key=lambda share: by_share[share])
    if by_share[best] == -math.inf and len(shares) > 1:
        best = 0.5
    return Blend(best, spread_scale(blended(said, Blend(best)), data.log_s[index])), by_share


def _score(said: Said, blend: Blend, data: TrainingData, index: Array, floors: Floors) -> float:
    rank = blended(said, blend)["rank"]
    values = summary(scores(rank, data.log_s[index], data.kernel[index], data.run[index], floors), data.calls)
    score = score_of(values)
    return score if math.isfinite(score) else -math.inf


def spread_scale(found: dict[str, Array], log_s: Array) -> float:
    """By what the expected errors have to be multiplied so that 50, 80 and 95 % of the errors lie within what a normal
    distribution has there; the geometric mean of the three, which a few wild errors do not move. 1 for few rows."""
    timed = np.isfinite(log_s)
    if timed.sum() < LEAST_ROWS:
        return 1.0
    z = np.abs(found["rank"] - log_s)[timed] * np.exp(-found["log_sigma"][timed])
    scales = [max(float(np.quantile(z, share)) / limit, 1e-3) for share, limit in COVERAGE]
    return math.prod(scales) ** (1 / len(scales))


def judged(said: Said, blend: Blend, data: TrainingData, index: Array, floors: Floors) -> dict[str, dict[str, float]]:
    """Every figure (`fit.judge`) of the networks alone, the trees alone and both, on the rows (n,) that were asked.

    Figures that cannot be had are left out, and so are parts that are not there.
    """
    alone = {
        "net": Blend(0.0, blend.spread_scale) if len(said.rank) else None,
        "trees": Blend(1.0, blend.spread_scale) if said.trees is not None else None,
        "both": blend,
    }
    found = {name: judge(data, blended(said, one), index, floors) for name, one in alone.items() if one is not None}
    return {name: {k: v for k, v in values.items() if math.isfinite(v)} for name, values in found.items()}


def said_by_checkpoint(checkpoint: Checkpoint, data: TrainingData, index: Array, *, device: str = "cpu") -> Said:
    """What the parts of a checkpoint say of some rows; `blend_of` says how they count."""
    return said_by(checkpoint.nets, checkpoint.trees, data, index, device=device)


def blend_of(checkpoint: Checkpoint) -> Blend:
    """The blend that a checkpoint was saved with."""
    return Blend(checkpoint.about.tree_share, checkpoint.about.spread_scale)
