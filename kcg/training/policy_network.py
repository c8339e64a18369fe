"""The network of a policy in PyTorch, which trains it: the predictor's, and what reads scores and a value off it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from kcg.kernel.loop_nest import ACTION_FEATURES, AXES_OF_ACTION
from kcg.predictor.features import side_by_side
from kcg.predictor.network import NetSettings
from kcg.rl.observation import ScheduleObservation
from kcg.rl.policy import FEATURE_SCALE, PolicyNumbers
from kcg.training.network import Batch, GraphSet, Net, numbers, owners, tensors


@dataclass(frozen=True)
class PolicyBatch:
    """n schedules, and r rows of actions: those of the first schedule, then of the next."""

    graphs: Batch
    rows: Tensor  # (r, len(ACTION_FEATURES))
    axes: Tensor  # (r, AXES_OF_ACTION) places among `graphs.axes`, -1 for none
    owner: Tensor  # (r,) which schedule

    def __len__(self) -> int:
        return len(self.graphs)


def batch_of(observations: Sequence[ScheduleObservation]) -> PolicyBatch:
    """Observations as one batch."""
    made, kernel_x, target_x = side_by_side(observations)
    every = np.arange(len(observations))
    whole = GraphSet(made, every, kernel_x, target_x, every).batch(torch.arange(len(observations)))
    rows = torch.from_numpy(np.concatenate([one.rows.features for one in observations]))
    axes = torch.from_numpy(np.concatenate([one.rows.axes for one in observations]))
    owner = owners(torch.tensor([len(one.rows) for one in observations]))
    return PolicyBatch(whole, rows, placed(axes, owner, torch.from_numpy(made.n_axes)), owner)


def placed(axes: Tensor, owner: Tensor, n_axes: Tensor) -> Tensor:
    """Places of axes within each graph as places among the axes of all; -1 stays."""
    first = torch.cumsum(n_axes, 0) - n_axes
    return torch.where(axes >= 0, axes + first[owner][:, None], axes)


class PolicyNet(nn.Module):
    """See `kcg.rl.policy`. `settings` are those of the trunk."""

    def __init__(self, settings: NetSettings | None = None, trunk: Net | None = None) -> None:
        super().__init__()
        self.trunk = trunk if trunk is not None else Net(settings)
        hidden = self.trunk.settings.hidden
        inputs = (1 + AXES_OF_ACTION) * hidden + len(ACTION_FEATURES)
        self.score = nn.Sequential(
            nn.Linear(inputs, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        self.value = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        last = self.score[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)  # a new policy takes every legal step as often
        nn.init.zeros_(last.bias)

    @classmethod
    def of(cls, network: PolicyNumbers) -> PolicyNet:
        """That of these numbers, to be asked or trained on."""
        net = cls(network.trunk)
        net.load_state_dict(tensors(network.numbers))
        return net.eval()

    def network(self) -> PolicyNumbers:
        """Its numbers as they are now."""
        return PolicyNumbers(self.trunk.settings, numbers(self))

    def forward(self, batch: PolicyBatch) -> tuple[Tensor, Tensor]:
        """Logits (r,) of the rows and values (n,) of the schedules."""
        state, nodes = self.trunk.embed_nodes(batch.graphs)
        axes = nodes[0][0]
        known = torch.cat([axes, axes.new_zeros(1, axes.shape[1])])  # place -1 is that of no axis
        looked_up = known[batch.axes].flatten(1)
        seen = torch.cat([state[batch.owner], looked_up, batch.rows * FEATURE_SCALE], -1)
        return self.score(seen).squeeze(-1), self.value(state).squeeze(-1)


def log_softmax(logits: Tensor, owner: Tensor, count: int) -> Tensor:
    """Log-probabilities of rows within each of `count` schedules."""
    top = logits.new_full((count,), -torch.inf).scatter_reduce(0, owner, logits.detach(), "amax")
    shifted = logits - top[owner]
    total = logits.new_zeros(count).scatter_add(0, owner, shifted.exp())
    return shifted - total.log()[owner]
