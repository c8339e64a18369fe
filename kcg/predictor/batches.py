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

    schedule: Tensor  # (n, schedule features)
    kernel_x: Tensor  # (n, kernel features)
    target_x: Tensor  # (n, target features)
    kernel: Tensor  # (n,) which candidates belong together
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

    def __init__(self, graphs: Graphs, kernel: Array, kernel_x: Array, target_x: Array, target: Array,
                 device: str | torch.device = "cpu") -> None:  # fmt: skip
        """`kernel` (n,) is a place in `kernel_x`; `target`, for each kernel, one in `target_x`."""
        # graph i has `counts[name][i]` rows of `arrays[name]`, one graph after another
        arrays, counts = {f.name: getattr(graphs, f.name) for f in fields(Graphs)}, graphs.counts()
        self._fields = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        self._counts = {name: torch.from_numpy(counts[name]).to(device) for name in arrays}
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
        return Batch(
            **{name: self._gathered(name, index) for name in (
                "axes", "accesses", "groups", "access_edges", "group_edges")},
            **self._known(index), access_index=all_edges(n_axes, n_accesses), group_index=all_edges(n_axes, n_groups),
            graph_of_axis=owners(n_axes), graph_of_access=owners(n_accesses), graph_of_group=owners(n_groups),
        )  # fmt: skip

    def _gathered(self, name: str, index: Tensor) -> Tensor:
        counts = self._counts[name][index]
        ends = torch.cumsum(counts, 0)
        shift = torch.repeat_interleave(self._starts[name][index] - (ends - counts), counts)
        return self._fields[name][torch.arange(len(shift), device=self.device) + shift]

    def _known(self, index: Tensor) -> dict[str, Tensor]:
        kernel = self._kernel[index]
        return {
            "schedule": self._fields["schedule"][index], "kernel_x": self._kernel_x[kernel],
            "target_x": self._target_x[self._target[kernel]], "kernel": kernel,
        }  # fmt: skip


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
