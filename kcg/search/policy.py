"""The policy: a graph network that scores the actions of a schedule by what they are, and what it hopes for.

The trunk is the predictor's network, warm-started from it: a state for the whole schedule and one for every axis of its
loop nest. An action's score is read off the state of the schedule, those of the axes it acts on, and its own row of
features; so is that of stopping. Beside it stands a value: the log-speedup over this schedule that is still to come.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kcg.errors import DataError
from kcg.predictor.actions import ACTION_FEATURES, AXES_OF_ACTION
from kcg.predictor.batches import Batch, GraphSet, owners
from kcg.predictor.checkpoint import MOST_HIDDEN, MOST_LAYERS
from kcg.predictor.features import FEATURES_VERSION, joined
from kcg.predictor.gnn import Net, NetSettings
from kcg.predictor.learned import one_thread
from kcg.predictor.tensors import as_stored, read_tensors, save_tensors
from kcg.predictor.views import View, Viewer
from kcg.types import Schedule

FORMAT = "kcg-policy-1"
FEATURE_SCALE = 0.25  # most features are logarithms up to 10
SHIPPED = Path(__file__).parent / "policies"


@dataclass(frozen=True)
class Proposal:
    """What a policy would do at one schedule: probabilities that sum to 1, and what it hopes for."""

    stop: float
    steps: tuple[float, ...]  # of each of the space's `actions`, in their order
    value: float = 0.0  # expected log-speedup, over this schedule, of where the policy ends


Propose = Callable[[Sequence[Schedule]], list[Proposal]]
"""What a policy would do at some schedules of one kernel."""


@dataclass(frozen=True)
class PolicyBatch:
    """n schedules, and r rows of actions: those of the first schedule, then of the next."""

    graphs: Batch
    rows: Tensor  # (r, len(ACTION_FEATURES))
    axes: Tensor  # (r, AXES_OF_ACTION) places among `graphs.axes`, -1 for none
    owner: Tensor  # (r,) which schedule

    def __len__(self) -> int:
        return len(self.graphs)


def batch_of(views: Sequence[View]) -> PolicyBatch:
    """Views as one batch."""
    made = views[0].graph if len(views) == 1 else joined(view.graph for view in views)
    kernel_x, target_x = (np.stack([getattr(view, name) for view in views]) for name in ("kernel_x", "target_x"))
    every = np.arange(len(views))
    whole = GraphSet(made, every, kernel_x, target_x, every).batch(torch.arange(len(views)))
    rows = torch.from_numpy(np.concatenate([view.rows.features for view in views]))
    axes = torch.from_numpy(np.concatenate([view.rows.axes for view in views]))
    owner = owners(torch.tensor([len(view.rows) for view in views]))
    return PolicyBatch(whole, rows, placed(axes, owner, torch.from_numpy(made.n_axes)), owner)


def placed(axes: Tensor, owner: Tensor, n_axes: Tensor) -> Tensor:
    """Places of axes within each graph as places among the axes of all; -1 stays."""
    first = torch.cumsum(n_axes, 0) - n_axes
    return torch.where(axes >= 0, axes + first[owner][:, None], axes)


class PolicyNet(nn.Module):
    """See the module. `settings` are those of the trunk."""

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


class Policy:
    """A trained policy, asked about schedules of one kernel: `of(viewer)` is what a search takes."""

    def __init__(self, net: PolicyNet, about: PolicyAbout) -> None:
        self.net, self.about = net.eval(), about

    def of(self, viewer: Viewer) -> Propose:
        """Proposals for the schedules of one kernel, whose actions are those of the viewer."""

        def propose(schedules: Sequence[Schedule]) -> list[Proposal]:
            return self.propose(viewer.views(schedules))

        return propose

    def propose(self, views: Sequence[View]) -> list[Proposal]:
        """One proposal for each view, in order."""
        if not views:
            return []
        batch = batch_of(views)
        with one_thread(), torch.inference_mode():
            logits, values = self.net(batch)
            chances = log_softmax(torch.nan_to_num(logits), batch.owner, len(views)).exp().tolist()
        found, first = [], 0
        for view, value in zip(views, torch.nan_to_num(values).tolist(), strict=True):
            *steps, stop = chances[first : first + len(view.rows)]
            found.append(Proposal(stop, tuple(steps), value))
            first += len(view.rows)
        return found


@dataclass(frozen=True)
class PolicyAbout:
    """What a policy's checkpoint says of itself."""

    name: str
    targets: tuple[str, ...]  # fingerprints that it was trained on
    datasets: tuple[tuple[str, str], ...]  # checksums of the files whose kernels it was trained on
    split: str  # whose validation and test parts it never saw
    metrics: dict[str, float] = field(default_factory=dict)
    revision: str = ""  # of the code
    settings: dict[str, Any] = field(default_factory=dict)  # of the training
    dirty: bool | None = None  # whether the code differed from its revision; None: written before that was kept


def save_policy(policy: Policy, path: Path) -> None:
    """Write a policy, whole or not at all, its weights rounded. Raises DataError where it is too large."""
    told = {
        "format": FORMAT, "features_version": FEATURES_VERSION, "action_features": list(ACTION_FEATURES),
        "about": asdict(policy.about), "trunk": asdict(policy.net.trunk.settings),
    }  # fmt: skip
    save_tensors(path, as_stored(policy.net.state_dict()), told)


def read_policy(path: Path) -> Policy:
    """A policy. Raises DataError where it cannot be read, or sees other features than this kcg has."""
    told, tensors = read_tensors(path, "policy")
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise DataError(f"{path} is no policy ({FORMAT})")
    if told.get("features_version") != FEATURES_VERSION or told.get("action_features") != list(ACTION_FEATURES):
        raise DataError(
            f"{path} sees other features than this kcg has: train again (python training/train_policy.py), or use the "
            "shipped one"
        )
    try:
        settings = NetSettings(**told["trunk"])
        if not (1 <= settings.hidden <= MOST_HIDDEN and 0 <= settings.layers <= MOST_LAYERS):
            raise ValueError(f"a network of {settings.layers} layers of {settings.hidden}")
        with torch.device("meta"):  # nothing is allocated for numbers that are not in the file
            net = PolicyNet(settings)
        net.load_state_dict({name: value.float() for name, value in tensors.items()}, assign=True)
        about = told["about"]
        about["targets"] = tuple(about["targets"])
        about["datasets"] = tuple((name, value) for name, value in about["datasets"])
        return Policy(net, PolicyAbout(**about))
    except (KeyError, TypeError, ValueError, RuntimeError, AssertionError) as error:  # the last by torch's attention
        raise DataError(f"{path} does not hold what it says ({str(error).splitlines()[0]}): train it again") from error


@functools.lru_cache(maxsize=2)
def shipped_policy(device: str) -> Policy:
    """The policy that comes with kcg for a kind of device (`Target.device`); where there is none, that of CUDA, which
    was trained on an H200 and can only guess elsewhere. Read once in a process."""
    path = SHIPPED / f"{device.lower()}.safetensors"
    return read_policy(path if path.exists() else SHIPPED / "cuda.safetensors")
