"""What training minimises: the order within a kernel, the log-runtime and its spread, and who fails."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kcg.training.network import Output

LISTWISE_SCALE = 3.0  # sharpness of the target distribution of the listwise loss, in log-runtime


@dataclass(frozen=True)
class Weights:
    """How much each part counts. A part of weight 0 is not computed."""

    pairs: float = 1.0
    listwise: float = 0.5
    level: float = 0.5
    time: float = 0.6
    spread: float = 0.1
    failure: float = 0.1


@dataclass(frozen=True)
class Truth:
    """(k, s) what was measured of s schedules of each of k kernels, padded."""

    log_s: Tensor  # 0 where there is no time
    timed: Tensor  # bool: a time
    there: Tensor  # bool: not padding
    run: Tensor  # which run measured it
    floor: Tensor  # (k, s, s) pairs closer than that are noise


def loss_of(output: Output, truth: Truth, weights: Weights) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and its parts. `output` holds (k, s). Kernels with one schedule, or none with a time, add nothing."""
    parts: dict[str, Tensor] = {}
    if weights.pairs:
        parts["pairs"] = pair_loss(output.rank, truth)
    if weights.listwise:
        parts["listwise"] = listwise_loss(output.rank, truth)
    if weights.level:
        parts["level"] = level_loss(output.rank, truth)
    if weights.time:
        parts["time"] = _mean(
            functional.huber_loss(output.log_s, truth.log_s, reduction="none", delta=0.5), truth.timed
        )
    if weights.spread:  # of the ranked prediction, whose error is not to be made smaller by it
        error = (output.rank - truth.log_s).detach()
        likelihood = output.log_sigma + 0.5 * (error * torch.exp(-output.log_sigma)) ** 2
        parts["spread"] = _mean(likelihood.clamp(max=50.0), truth.timed)
    if weights.failure:
        failed = (~truth.timed).float()
        found = functional.binary_cross_entropy_with_logits(output.failure, failed, reduction="none")
        parts["failure"] = _mean(found, truth.there)
    total = torch.stack([getattr(weights, name) * value for name, value in parts.items()]).sum()
    return total, parts


def pair_loss(rank: Tensor, truth: Truth) -> Tensor:
    """Logistic loss over pairs above the noise floor (RankNet, Burges et al. 2005), weighted by how far the two are
    apart as shares of the kernel's best speed (after LambdaRank, Burges 2010), so that the good end counts most."""
    apart = truth.log_s[:, :, None] - truth.log_s[:, None]
    judged = truth.timed[:, :, None] & truth.timed[:, None] & (apart > truth.floor)
    best = truth.log_s.masked_fill(~truth.timed, torch.inf).amin(1, keepdim=True)
    share = torch.where(truth.timed, torch.exp((best - truth.log_s).clamp(max=0.0)), torch.zeros_like(truth.log_s))
    weight = (0.2 + (share[:, :, None] - share[:, None]).abs()) * judged
    margin = rank[:, :, None] - rank[:, None]  # should be positive: i is the slower one
    lost = functional.softplus(-4.0 * margin) * weight
    return _mean_over_kernels(lost.sum((1, 2)), weight.sum((1, 2)))


def listwise_loss(rank: Tensor, truth: Truth) -> Tensor:
    """Cross entropy between the distributions that times and predictions make of a kernel's schedules (ListNet, Cao et
    al. 2007)."""

    def distribution(values: Tensor) -> Tensor:
        return torch.log_softmax((-LISTWISE_SCALE * values).masked_fill(~truth.timed, -1e4), 1)

    lost = -(torch.exp(distribution(truth.log_s)) * distribution(rank)).masked_fill(~truth.timed, 0.0).sum(1)
    return _mean_over_kernels(lost, (truth.timed.sum(1) > 1).float())


def level_loss(rank: Tensor, truth: Truth) -> Tensor:
    """What only ranks says nothing of a kernel's level, and would drift: the mean over a kernel's schedules is held."""
    error = _row_means(rank - truth.log_s, truth.timed)
    return _mean_over_kernels(
        functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=0.5), truth.timed.any(1).float()
    )


def _row_means(values: Tensor, there: Tensor) -> Tensor:
    return (values * there).sum(1) / there.sum(1).clamp(min=1)


def _mean(values: Tensor, there: Tensor) -> Tensor:
    """The mean over kernels of the mean over what is there, so that every kernel counts alike."""
    return _mean_over_kernels((values * there).sum(1), there.sum(1).float())


def _mean_over_kernels(sums: Tensor, weights: Tensor) -> Tensor:
    counted = weights > 0
    return (sums / weights.clamp(min=1e-6))[counted].sum() / counted.sum().clamp(min=1)
