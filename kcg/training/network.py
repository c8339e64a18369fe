"""The network in PyTorch, which trains it: message passing between the axes of a loop nest and its loads, stores and
operations. Who predicts takes its numbers alone (`kcg.predictor.stacked`).

Axes send to loads, stores and groups of operations along edges that carry strides, and back. What is known of the
kernel, the schedule as a whole and the target stands at every node. Four numbers come out of each graph: log-runtime, a
correction of it that only ranks the schedules of one kernel, the spread to expect, and the logit of failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kcg.predictor.ensemble import PREDICT_ROWS, Outputs
from kcg.predictor.features import Array, Graphs
from kcg.predictor.network import (
    ATTENTION_HEADS,
    LEAST_LOG_SIGMA,
    MOST_LOG_SIGMA,
    MOST_SCALED,
    NODES,
    NetSettings,
    Network,
    sizes_of,
)
from kcg.predictor.training_data import TrainingData

# ---- Graphs as tensors on any device, and batches of them with the indices of their edges.


@dataclass(frozen=True)
class Batch:
    """n graphs for the network. Edges go from axes to accesses or groups; each kind of node counts on its own."""

    schedule: Tensor  # (n, schedule features)
    kernel_x: Tensor  # (n, kernel features)
    target_x: Tensor  # (n, target features)
    kernel: Tensor  # (n,) which candidates belong together
    base: Tensor  # (n,) log-seconds by the kind's own formula, on which the network's are added; 0 where it has none
    axes: Tensor
    accesses: Tensor
    groups: Tensor
    access_edges: Tensor
    group_edges: Tensor
    access_index: Tensor  # (2, edges) axis and access of each edge
    group_index: Tensor  # (2, edges) axis and group of each edge
    graph_of_axis: Tensor
    graph_of_access: Tensor
    graph_of_group: Tensor

    def __len__(self) -> int:
        return len(self.schedule)


class GraphSet:
    """Graphs of loop nests that stay on one device; `batch` gathers any of them there."""

    def __init__(
        self,
        graphs: Graphs,
        kernel: Array,
        kernel_x: Array,
        target_x: Array,
        target: Array,
        device: str | torch.device = "cpu",
        base: Array | None = None,
    ) -> None:
        """`kernel` (n,) is a place in `kernel_x`; `target`, for each kernel, one in `target_x`; `base`: see `Batch`."""
        # graph i has `counts[name][i]` rows of `arrays[name]`, one graph after another
        arrays, counts = {f.name: getattr(graphs, f.name) for f in fields(Graphs)}, graphs.counts()
        self._fields = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        self._counts = {name: torch.from_numpy(counts[name]).to(device) for name in arrays}
        self._starts = {name: torch.cumsum(count, 0) - count for name, count in self._counts.items()}
        self._kernel = torch.from_numpy(kernel).long().to(device)
        log_s = np.zeros(len(kernel)) if base is None else base
        self._base = torch.from_numpy(log_s).float().to(device)
        self._kernel_x = torch.from_numpy(kernel_x).to(device)
        self._target_x = torch.from_numpy(target_x).to(device)
        self._target = torch.from_numpy(target).long().to(device)
        self.device = torch.device(device)

    def __len__(self) -> int:
        return len(self._kernel)

    def batch(self, index: Tensor) -> Batch:
        """The graphs at `index` (m,), in that order."""
        index = index.to(self.device)
        n_axes, n_accesses, n_groups = (self._counts[name][index] for name in ("axes", "accesses", "groups"))
        return Batch(
            **{
                name: self._gathered(name, index)
                for name in ("axes", "accesses", "groups", "access_edges", "group_edges")
            },
            **self._known(index),
            access_index=all_edges(n_axes, n_accesses),
            group_index=all_edges(n_axes, n_groups),
            graph_of_axis=owners(n_axes),
            graph_of_access=owners(n_accesses),
            graph_of_group=owners(n_groups),
        )

    def _gathered(self, name: str, index: Tensor) -> Tensor:
        counts = self._counts[name][index]
        ends = torch.cumsum(counts, 0)
        shift = torch.repeat_interleave(self._starts[name][index] - (ends - counts), counts)
        return self._fields[name][torch.arange(len(shift), device=self.device) + shift]

    def _known(self, index: Tensor) -> dict[str, Tensor]:
        kernel = self._kernel[index]
        return {
            "schedule": self._fields["schedule"][index],
            "kernel_x": self._kernel_x[kernel],
            "target_x": self._target_x[self._target[kernel]],
            "kernel": kernel,
            "base": self._base[index],
        }


def owners(counts: Tensor) -> Tensor:
    """Which graph each node belongs to."""
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


def all_edges(n_axes: Tensor, n_others: Tensor) -> Tensor:
    """(2, edges): every axis of a graph with every other node of it, the others of one axis together."""
    counts = n_axes * n_others
    graph = owners(counts)
    inside = torch.arange(len(graph), device=counts.device) - (torch.cumsum(counts, 0) - counts)[graph]
    width = n_others[graph].clamp(min=1)
    axis = (torch.cumsum(n_axes, 0) - n_axes)[graph] + inside // width
    other = (torch.cumsum(n_others, 0) - n_others)[graph] + inside % width
    return torch.stack([axis, other])


RANK = 1  # its place among the heads


@dataclass(frozen=True)
class Output:
    """(n,) each. `log_s` is the natural logarithm of the runtime in seconds, `rank` the same corrected for ranking."""

    log_s: Tensor
    rank: Tensor
    log_sigma: Tensor
    failure: Tensor  # logit

    def at(self, index: Tensor) -> Output:
        """Some of the rows."""
        return Output(self.log_s[index], self.rank[index], self.log_sigma[index], self.failure[index])


class Relation(nn.Module):
    """Messages along the edges between two kinds of nodes: sum and maximum of what a source says along its edge."""

    def __init__(self, hidden: int, edge_size: int) -> None:
        super().__init__()
        self.source, self.edge = nn.Linear(hidden, hidden), nn.Linear(edge_size, 2 * hidden)

    def forward(self, source: Tensor, target: Tensor, index: Tensor, edges: Tensor) -> Tensor:
        """(targets, 2 * hidden): what reaches each target. `index` is (2, edges), source and target of each."""
        from kcg.training.messages import messages  # seconds: it imports torch-geometric

        found: Tensor = messages()(self.source(source), target, index, self.edge(edges))
        return found


class Update(nn.Module):
    """A node's new state from its old one and what reached it."""

    def __init__(self, hidden: int, received: int, dropout: float) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.LayerNorm(hidden + received),
            nn.Linear(hidden + received, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
        )

    def forward(self, state: Tensor, received: Tensor) -> Tensor:
        changed: Tensor = self.change(torch.cat([state, received], -1))
        return state + changed


class Layer(nn.Module):
    """One round: loads, stores and groups hear from the axes, then the axes from them."""

    def __init__(self, hidden: int, dropout: float, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.to_accesses, self.to_groups = (
            Relation(hidden, sizes["access_edges"]),
            Relation(hidden, sizes["group_edges"]),
        )
        self.from_accesses = Relation(hidden, sizes["access_edges"])
        self.from_groups = Relation(hidden, sizes["group_edges"])
        self.accesses, self.groups = Update(hidden, 2 * hidden, dropout), Update(hidden, 2 * hidden, dropout)
        self.axes = Update(hidden, 4 * hidden, dropout)

    def forward(self, axes: Tensor, accesses: Tensor, groups: Tensor, batch: Batch, edges: dict[str, Tensor]) -> Any:
        access_index, group_index = batch.access_index, batch.group_index
        accesses = self.accesses(accesses, self.to_accesses(axes, accesses, access_index, edges["access_edges"]))
        groups = self.groups(groups, self.to_groups(axes, groups, group_index, edges["group_edges"]))
        heard = torch.cat(
            [
                self.from_accesses(accesses, axes, access_index.flip(0), edges["access_edges"]),
                self.from_groups(groups, axes, group_index.flip(0), edges["group_edges"]),
            ],
            -1,
        )
        return self.axes(axes, heard), accesses, groups


class Net(nn.Module):
    """See the module. `fit_scale` must have seen the training data, or a checkpoint been loaded."""

    log_s_mean: Tensor

    def __init__(self, settings: NetSettings | None = None) -> None:
        super().__init__()
        self.settings = settings = settings or NetSettings()
        hidden, sizes = settings.hidden, sizes_of(settings)
        for name, size in sizes.items():
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_scale", torch.ones(size))
        self.register_buffer("log_s_mean", torch.zeros(()))
        known = sizes["target_x"] + settings.schedule * sizes["schedule"] + settings.kernel * sizes["kernel_x"]
        self.whole = nn.Sequential(nn.Linear(known, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden))
        self.embed = nn.ModuleDict({name: nn.Linear(sizes[name], hidden) for name in NODES})
        layers = settings.layers if settings.messages else 0
        self.layers = nn.ModuleList(Layer(hidden, settings.dropout, sizes) for _ in range(layers))
        pooled = (1 + 2 * len(NODES)) * hidden
        self.read = nn.Sequential(
            nn.LayerNorm(pooled),
            nn.Linear(pooled, 2 * hidden),
            nn.ReLU(),
            nn.Dropout(settings.dropout),
            nn.Linear(2 * hidden, hidden),
            nn.ReLU(),
        )
        self.compare = nn.MultiheadAttention(hidden, ATTENTION_HEADS, batch_first=True) if settings.compare else None
        self.heads = nn.Linear(hidden, 4)
        self.skip = nn.Linear(sizes["schedule"], 1)

    @classmethod
    def of(cls, network: Network) -> Net:
        """That of these numbers, to be asked or trained on."""
        with torch.device("meta"):  # what is drawn would be for nothing
            net = cls(network.settings)
        net.load_state_dict(tensors(network.numbers), assign=True)
        return net.eval()

    def network(self) -> Network:
        """Its numbers as they are now."""
        return Network(self.settings, numbers(self))

    def rank_by_time(self) -> None:
        """Without a loss that ranks, nothing teaches the correction: it is nothing, and gets no gradient."""
        with torch.no_grad():
            self.heads.weight[RANK].zero_()
            self.heads.bias[RANK].zero_()

    def fit_scale(self, batch: Batch, log_s: Tensor) -> None:
        """Take mean and spread of every feature from some training graphs, and the mean of their log-runtimes, less the
        base of each."""
        for name in sizes_of(self.settings):
            values = getattr(batch, name)
            getattr(self, f"{name}_mean").copy_(values.mean(0))
            spread = values.std(0, unbiased=False)
            getattr(self, f"{name}_scale").copy_(torch.where(spread > 1e-3, spread, torch.ones_like(spread)))
        self.log_s_mean.copy_(log_s.mean())

    def _scaled(self, batch: Batch, name: str) -> Tensor:
        values: Tensor = (getattr(batch, name) - getattr(self, f"{name}_mean")) / getattr(self, f"{name}_scale")
        return values.clamp(-MOST_SCALED, MOST_SCALED)

    def forward(self, batch: Batch) -> Output:
        """Predict every graph of a batch."""
        return self.answer(batch, self.embed_graphs(batch))

    def embed_graphs(self, batch: Batch) -> Tensor:
        """(n, hidden): the last hidden state of every graph, of which each answer is a linear function but for `skip`.

        `kcg.predictor.correction` learns in it. `answer` takes it, so that both cost one pass.
        """
        return self.embed_nodes(batch)[0]

    def embed_nodes(self, batch: Batch) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """What `embed_graphs` gives, and beside it the last states of each kind of nodes, with the graph that each node
        belongs to."""
        from kcg.training.messages import pooled  # seconds: it imports torch-geometric

        known = [self._scaled(batch, "target_x")]
        if self.settings.schedule:
            known.append(self._scaled(batch, "schedule"))
        if self.settings.kernel:
            known.append(self._scaled(batch, "kernel_x"))
        whole = self.whole(torch.cat(known, -1))
        nodes = self._node_states(batch, whole)
        pools = [pool for values, owner in nodes for pool in pooled(values, owner, len(batch))]
        state: Tensor = self.read(torch.cat([whole, *pools], -1))
        if self.compare is not None:
            state = state + self._compared(state, batch.kernel)
        return state, nodes

    def _node_states(self, batch: Batch, whole: Tensor) -> list[tuple[Tensor, Tensor]]:
        owners = {"axes": batch.graph_of_axis, "accesses": batch.graph_of_access, "groups": batch.graph_of_group}
        nodes = [self.embed[name](self._scaled(batch, name)) + whole[owner] for name, owner in owners.items()]
        edges = {name: self._scaled(batch, name) for name in ("access_edges", "group_edges")}
        for layer in self.layers:
            nodes = layer(*nodes, batch, edges)
        return list(zip(nodes, owners.values(), strict=True))

    def answer(self, batch: Batch, state: Tensor) -> Output:
        """What the network says of the graphs of a batch, from what `embed_graphs` made of them."""
        time, rank, sigma, failure = self.heads(state).unbind(-1)
        if self.settings.schedule:
            time = time + self.skip(self._scaled(batch, "schedule")).squeeze(-1)
        log_s = time + self.log_s_mean + batch.base
        return Output(log_s, log_s + rank, sigma.clamp(LEAST_LOG_SIGMA, MOST_LOG_SIGMA), failure)

    def _compared(self, state: Tensor, kernel: Tensor) -> Tensor:
        """What each candidate takes from the others of its kernel."""
        assert self.compare is not None
        _, place, counts = torch.unique(kernel, return_inverse=True, return_counts=True)
        order = torch.argsort(place, stable=True)
        inside = torch.arange(len(kernel), device=kernel.device) - (torch.cumsum(counts, 0) - counts)[place[order]]
        padded = state.new_zeros((len(counts), int(counts.max()), state.shape[1]))
        padded[place[order], inside] = state[order]
        empty = torch.arange(padded.shape[1], device=kernel.device)[None] >= counts[:, None]
        compared, _ = self.compare(padded, padded, padded, key_padding_mask=empty, need_weights=False)
        found = torch.zeros_like(state)
        found[order] = compared[place[order], inside]
        return found


def numbers(module: nn.Module) -> dict[str, Array]:
    """(copies of) The arrays of a module by name."""
    return {name: value.detach().cpu().numpy().copy() for name, value in module.state_dict().items()}


def tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """The inverse, of copies as well."""
    return {name: torch.from_numpy(value.copy()) for name, value in arrays.items()}


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


def outputs_of(nets: Sequence[Net], data: TrainingData, index: Array, *, device: str = "cpu") -> Outputs:
    """As `kcg.predictor.ensemble.outputs_by`, on a device, to which the networks are moved, and of any network."""
    some = data.take(index)
    graphs = GraphSet(some.graphs, some.kernel, some.kernel_x, some.target_x, some.target, device, some.base)
    each = [predicted(net.to(torch.device(device)), graphs, np.arange(len(index))) for net in nets]
    rank, log_sigma, failure = (np.stack([one[name] for one in each]) for name in ("rank", "log_sigma", "failure"))
    return Outputs(rank, log_sigma, failure)
