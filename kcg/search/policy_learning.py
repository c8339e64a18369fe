"""Teaching a policy what searches found: cross-entropy to the shares of their visits, and the value beside it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kcg.predictor.batches import GraphSet, owners
from kcg.search.policy import PolicyBatch, PolicyNet, log_softmax, placed
from kcg.search.self_play import Examples

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LearningSettings:
    """How a policy learns from examples."""

    epochs: int = 12
    batch: int = 256  # schedules
    learning_rate: float = 1e-3  # at its highest; it rises for a tenth of the steps and falls to nothing (OneCycleLR)
    trunk_rate: float = 0.3  # of the learning rate, for what the predictor brought
    weight_decay: float = 1e-4
    value: float = 0.3  # weight of the loss of the value
    seed: int = 0


class ExampleSet(GraphSet):
    """Examples on one device; `chosen` gathers any of them there."""

    def __init__(self, examples: Examples, device: str | torch.device = "cpu") -> None:
        every = np.arange(len(examples.kernel_x))
        super().__init__(examples.graphs, examples.kernel, examples.kernel_x, examples.target_x, every, device)
        n_rows = torch.from_numpy(examples.n_rows).to(device)
        for name in ("rows", "chances"):
            self._fields[name], self._counts[name] = torch.from_numpy(getattr(examples, name)).to(device), n_rows
            self._starts[name] = torch.cumsum(n_rows, 0) - n_rows
        self._fields["row axes"], self._counts["row axes"] = torch.from_numpy(examples.axes).to(device), n_rows
        self._starts["row axes"] = self._starts["rows"]
        self.value = torch.from_numpy(examples.value).to(device)
        self.weight = torch.from_numpy(examples.weight).to(device)

    def chosen(self, index: Tensor) -> tuple[PolicyBatch, Tensor, Tensor, Tensor]:
        """The batch of the examples at `index`, the chances of its rows, values and weights."""
        index = index.to(self.device)
        graphs = self.batch(index)
        owner = owners(self._counts["rows"][index])
        axes = placed(self._gathered("row axes", index), owner, self._counts["axes"][index])
        made = PolicyBatch(graphs, self._gathered("rows", index), axes, owner)
        return made, self._gathered("chances", index), self.value[index], self.weight[index]


@dataclass(frozen=True)
class Judged:
    """What a policy makes of examples that it may not have seen."""

    cross_entropy: float  # nats above the entropy of the shares: 0 is perfect
    agreement: float  # how much of the visits went where the policy would go first
    value_error: float  # root mean square, log-speedup


def losses(net: PolicyNet, told: tuple[PolicyBatch, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """(n,) each: cross-entropy of the policy, and the loss of the value."""
    batch, chances, value, _ = told
    logits, hoped = net(batch)
    chance = log_softmax(logits, batch.owner, len(batch))
    cross = logits.new_zeros(len(batch)).scatter_add(0, batch.owner, -chances * chance)
    return cross, torch.nn.functional.smooth_l1_loss(hoped, value, reduction="none")


def judge(net: PolicyNet, data: ExampleSet, *, batch: int = 512) -> Judged:
    """How well a policy foretells the visits of some examples."""
    cross, sure, error, n = 0.0, 0.0, 0.0, len(data)
    with torch.no_grad():
        for part in torch.split(torch.arange(n), batch):
            told = data.chosen(part)
            made, chances, value, _ = told
            logits, hoped = net(made)
            chance = log_softmax(logits, made.owner, len(made))
            entropy = -(chances * chances.clamp(min=1e-9).log()).sum()
            cross += float(-(chances * chance).sum() - entropy)
            top = logits.new_full((len(made),), -math.inf).scatter_reduce(0, made.owner, logits, "amax")
            first = logits == top[made.owner]
            ties = logits.new_zeros(len(made)).scatter_add(0, made.owner, first.to(logits.dtype))
            sure += float((chances * first / ties[made.owner]).sum())
            error += float((hoped - value).square().sum())
    return Judged(cross / n, sure / n, math.sqrt(error / n))


def learn(
    net: PolicyNet, examples: Examples, held_out: Examples | None, settings: LearningSettings, *, device: str = "cpu",
    told: Callable[[int, float, Judged | None], None] = lambda epoch, loss, judged: None,
) -> PolicyNet:  # fmt: skip
    """Teach `net` in place, and return it. `told` hears after each epoch what it lost and how it is judged."""
    torch.manual_seed(settings.seed)
    net = net.to(device)
    data = ExampleSet(examples, device)
    judged_on = ExampleSet(held_out, device) if held_out is not None else None
    trunk = list(net.trunk.parameters())
    known = {id(p) for p in trunk}
    fresh = [p for p in net.parameters() if id(p) not in known]
    rates = [settings.learning_rate * settings.trunk_rate, settings.learning_rate]
    optimizer = torch.optim.AdamW(
        [{"params": trunk}, {"params": fresh}], lr=rates[1], weight_decay=settings.weight_decay
    )
    steps = settings.epochs * math.ceil(len(data) / settings.batch)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=max(steps, 2), pct_start=0.1)
    for epoch in range(settings.epochs):
        net.train()
        total = 0.0
        for part in torch.split(torch.randperm(len(data)), settings.batch):
            picked = data.chosen(part)
            cross, value = losses(net, picked)
            weight = picked[3] / picked[3].sum()
            loss = (weight * (cross + settings.value * value)).sum()
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            plan.step()
            total += float(loss.detach()) * len(part)
        net.eval()
        told(epoch, total / len(data), judge(net, judged_on) if judged_on is not None else None)
    return net
