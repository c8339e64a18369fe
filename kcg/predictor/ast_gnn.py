"""The network on scheduled ASTs (`kcg.predictor.ast_graphs`), to be compared with the one on loop nests.

Every node hears from its sources and from its users in each round. All else is as in `kcg.predictor.gnn`: what is known
of the kernel, the schedule as a whole and the target stands at every node, and the same four numbers come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from kcg.predictor.ast_graphs import EDGE_FEATURES, NODE_FEATURES, AstGraphs
from kcg.predictor.batches import Candidates, CandidateSet, owners
from kcg.predictor.encode import Array
from kcg.predictor.gnn import SIZES, Net, Relation, Update

AST_SIZES = {
    "nodes": len(NODE_FEATURES), "edges": len(EDGE_FEATURES), "schedule": SIZES["schedule"],
    "kernel_x": SIZES["kernel_x"], "target_x": SIZES["target_x"],
}  # fmt: skip


@dataclass(frozen=True)
class AstBatch(Candidates):
    """n scheduled ASTs for the network."""

    nodes: Tensor
    edges: Tensor
    index: Tensor  # (2, edges) source and user of each edge
    graph_of_node: Tensor


class AstSet(CandidateSet):
    """Scheduled ASTs that stay on one device; `batch` gathers any of them there."""

    def __init__(self, graphs: AstGraphs, schedule: Array, kernel: Array, kernel_x: Array, target_x: Array,
                 target: Array, device: str | torch.device = "cpu") -> None:  # fmt: skip
        """`schedule` (n, …) are the numbers of the whole schedules, all else as in `GraphSet`."""
        arrays = {name: getattr(graphs, name) for name in ("nodes", "edges", "ends")} | {"schedule": schedule}
        counts = graphs.counts()
        super().__init__(arrays, counts | {"schedule": counts["n_nodes"]}, kernel, kernel_x, target_x, target, device)

    def batch(self, index: Tensor) -> AstBatch:
        """The ASTs at `index` (m,), in that order."""
        index = index.to(self.device)
        n_nodes, n_edges = self._counts["nodes"][index], self._counts["edges"][index]
        first = torch.repeat_interleave(torch.cumsum(n_nodes, 0) - n_nodes, n_edges)
        return AstBatch(
            **self._known(index), nodes=self._gathered("nodes", index), edges=self._gathered("edges", index),
            index=self._gathered("ends", index).T + first, graph_of_node=owners(n_nodes),
        )  # fmt: skip


class AstLayer(nn.Module):
    """One round: every node hears from its sources and its users."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.to_users, self.to_sources = (Relation(hidden, AST_SIZES["edges"]) for _ in range(2))
        self.nodes = Update(hidden, 4 * hidden, dropout)

    def forward(self, nodes: Tensor, index: Tensor, edges: Tensor) -> Tensor:
        heard = [
            self.to_users(nodes, nodes, index, edges),
            self.to_sources(nodes, nodes, index.flip(0), edges),
        ]
        updated: Tensor = self.nodes(nodes, torch.cat(heard, -1))
        return updated


class AstNet(Net):
    """`Net` on an `AstBatch`."""

    sizes: ClassVar[dict[str, int]] = AST_SIZES
    kinds: ClassVar[tuple[str, ...]] = ("nodes",)

    def new_layer(self, hidden: int, dropout: float) -> nn.Module:
        """One round of messages."""
        return AstLayer(hidden, dropout)

    def node_states(self, batch: Any, whole: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The last states of all nodes, and the graph that each belongs to. `batch` is an `AstBatch`."""
        nodes = self.embed["nodes"](self._scaled(batch, "nodes")) + whole[batch.graph_of_node]
        edges = self._scaled(batch, "edges")
        for layer in self.layers:
            nodes = layer(nodes, batch.index, edges)
        return [(nodes, batch.graph_of_node)]
