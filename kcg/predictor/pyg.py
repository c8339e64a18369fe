"""The graphs that predictors see as a dataset of torch-geometric, for whoever trains a network of their own."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Dataset, HeteroData

from kcg.predictor.features import Array
from kcg.predictor.training_data import TrainingData

NODES = {"axis": "axes", "access": "accesses", "group": "groups"}
EDGES = {("axis", "strides", "access"): "access_edges", ("axis", "varies", "group"): "group_edges"}
"""Kinds of edges, and the arrays of `Graphs` that hold their features: every axis with every access and every group."""


class ScheduleGraphs(Dataset):  # type: ignore[misc]
    """A graph for each row that was timed. A `HeteroData` has

    - `x` of the nodes `axis`, `access`, `group`: (nodes, features) float32, see `kcg.predictor.features`
    - `edge_index` (2, edges) and `edge_attr` (edges, features) of `EDGES`
    - `schedule`, `kernel`, `target`: (1, features) float32, of the schedule as a whole, of its kernel, of the target
    - `y`: (1,) float32, the natural logarithm of the runtime in seconds
    - `kernel_id`, `row`: (1,) int64, a place in `region_ids`, and the row in the dataset's table
    """

    def __init__(self, data: TrainingData, index: Array) -> None:
        super().__init__()
        self.data, self.rows = data, index[np.isfinite(data.log_s[index])]
        self.region_ids = data.region_ids
        self._counts = data.graphs.counts()
        self._starts = {name: np.cumsum(count) - count for name, count in self._counts.items()}

    def len(self) -> int:
        return len(self.rows)

    def get(self, idx: int) -> HeteroData:
        data, row = self.data, int(self.rows[idx])
        kernel = int(data.kernel[row])
        made = HeteroData()
        for node, name in NODES.items():
            made[node].x = self._part(name, row)
        for edge, name in EDGES.items():
            made[edge].edge_attr = self._part(name, row)
            axes, others = (torch.arange(len(made[node].x)) for node in (edge[0], edge[2]))
            made[edge].edge_index = torch.cartesian_prod(axes, others).T.contiguous()
        made.schedule = torch.from_numpy(data.graphs.schedule[row : row + 1])
        made.kernel = torch.from_numpy(data.kernel_x[kernel : kernel + 1])
        target = int(data.target[kernel])
        made.target = torch.from_numpy(data.target_x[target : target + 1])
        made.y = torch.tensor([data.log_s[row]], dtype=torch.float32)
        made.kernel_id, made.row = torch.tensor([kernel]), torch.tensor([int(data.row[row])])
        return made

    def _part(self, name: str, row: int) -> torch.Tensor:
        first = int(self._starts[name][row])
        return torch.from_numpy(getattr(self.data.graphs, name)[first : first + int(self._counts[name][row])])
