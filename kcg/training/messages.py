"""The messages of the network, by torch-geometric, which takes two seconds to import: for training, since what predicts
(`kcg.predictor.stacked`) takes the weights alone."""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import scatter


class Messages(MessagePassing):  # type: ignore[misc]
    """Sum and maximum of what the sources of each node say along their edges. It has no weights."""

    def __init__(self) -> None:
        super().__init__(aggr=["sum", "max"])
        _remove_template(f"{__name__}_{type(self).__name__}_propagate")

    def forward(self, source: Tensor, target: Tensor, index: Tensor, edges: Tensor) -> Tensor:
        """(targets, 2 * hidden): what reaches each target.

        `index` is (2, edges), source and target of each; of `edges`, (edges, 2 * hidden), the first half shifts and the
        second gates.
        """
        found: Tensor = self.propagate(index, x=(source, target), edge_attr=edges, size=(len(source), len(target)))
        return found

    def message(self, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        """A source's state, shifted and gated by the edge."""
        shift, gate = edge_attr.chunk(2, dim=-1)
        return torch.relu(x_j + shift) * torch.sigmoid(gate)


def pooled(values: Tensor, owner: Tensor, count: int) -> list[Tensor]:
    """Sum and maximum of the nodes of each graph, (count, hidden) each. `owner` is the graph of each node."""
    return [scatter(values, owner, dim=0, dim_size=count, reduce=how) for how in ("sum", "max")]


@functools.cache
def messages() -> Messages:
    """The one that serves every relation: to make one, torch-geometric reads and writes source."""
    return Messages()


def _remove_template(module: str) -> None:
    """Remove the file that torch-geometric wrote `propagate` to: it is read once, and each process would leave one."""
    if (spec := getattr(sys.modules.get(module), "__spec__", None)) is not None:
        for name in filter(None, (spec.origin, spec.cached)):
            with contextlib.suppress(OSError):
                Path(name).unlink()
