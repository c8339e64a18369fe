"""Graphs as tensors on any device, and batches of them with the indices of their edges."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kcg.predictor.encode import Array
from kcg.predictor.features import Graphs


@dataclass(frozen=True)
class Batch:
    """n graphs for the network. Edges go from axes to accesses or groups; each kind of node counts on its own."""

    axes: Tensor
    accesses: Tensor
    groups: Tensor
    access_edges: Tensor
    group_edges: Tensor
    schedule: Tensor
    access_index: Tensor  # (2, edges) axis and access of each edge
    group_index: Tensor  # (2, edges) axis and group of each edge
    graph_of_axis: Tensor
    graph_of_access: Tensor
    graph_of_group: Tensor
    kernel_x: Tensor  # (n, kernel features)
    target_x: Tensor  # (n, target features)
    kernel: Tensor  # (n,) which candidates belong together

    def __len__(self) -> int:
        return len(self.schedule)


class GraphSet:
    """Graphs that stay on one device; `batch` gathers any of them there."""

    def __init__(self, graphs: Graphs, kernel: Array, kernel_x: Array, target_x: Array, target: Array,
                 device: str | torch.device = "cpu") -> None:  # fmt: skip
        """`kernel` (n,) is a place in `kernel_x`; `target`, for each kernel, one in `target_x`."""
        counts = graphs.counts()
        self._fields = {f.name: torch.from_numpy(getattr(graphs, f.name)).to(device) for f in fields(Graphs)}
        self._counts = {name: torch.from_numpy(counts[name]).to(device) for name in counts}
        self._starts = {name: torch.cumsum(count, 0) - count for name, count in self._counts.items()}
        self._kernel = torch.from_numpy(kernel).long().to(device)
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
        kernel = self._kernel[index]
        return Batch(
            **{name: self._fields[name][self._rows(name, index)] for name in (
                "axes", "accesses", "groups", "access_edges", "group_edges")},
            schedule=self._fields["schedule"][index], access_index=_edges(n_axes, n_accesses),
            group_index=_edges(n_axes, n_groups), graph_of_axis=_owners(n_axes), graph_of_access=_owners(n_accesses),
            graph_of_group=_owners(n_groups), kernel_x=self._kernel_x[kernel],
            target_x=self._target_x[self._target[kernel]], kernel=kernel,
        )  # fmt: skip

    def _rows(self, name: str, index: Tensor) -> Tensor:
        counts = self._counts[name][index]
        ends = torch.cumsum(counts, 0)
        shift = torch.repeat_interleave(self._starts[name][index] - (ends - counts), counts)
        return torch.arange(len(shift), device=self.device) + shift


def _owners(counts: Tensor) -> Tensor:
    """Which graph each node belongs to."""
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


def _edges(n_axes: Tensor, n_others: Tensor) -> Tensor:
    """(2, edges): every axis of a graph with every other node of it, the others of one axis together."""
    counts = n_axes * n_others
    graph = _owners(counts)
    inside = torch.arange(len(graph), device=counts.device) - (torch.cumsum(counts, 0) - counts)[graph]
    width = n_others[graph].clamp(min=1)
    axis = (torch.cumsum(n_axes, 0) - n_axes)[graph] + inside // width
    other = (torch.cumsum(n_others, 0) - n_others)[graph] + inside % width
    return torch.stack([axis, other])
