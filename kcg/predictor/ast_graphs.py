"""The other form of input: tinygrad's scheduled AST as it is, a node for each of its operations.

`kcg.predictor.features` computes a small graph of the loop nest by arithmetic, hundreds of schedules at once; this one
needs tinygrad's own state after the Opts, which takes milliseconds a schedule. It is here to be compared with the
other (`docs/predictor.md`, the ablation). Edges go from a source to its user and say which argument it is; beside
these stands one from every range to every load or store that it moves, with the stride. Sizes are base-2 logarithms.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from kcg.compat.tiny import InvalidType, Ops, Scheduler, UOp, dtypes
from kcg.dataset.reading import Export
from kcg.kernel.axes import INNER, axis_table, nodes_of_addresses
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.data import TrainingData
from kcg.predictor.encode import KINDS, OP_CLASSES, Array
from kcg.predictor.features import rows_of
from kcg.predictor.kernel_jobs import KernelJob, cache_folder, in_processes, keep, kept

log = logging.getLogger(__name__)

AST_VERSION = 1

STRUCTURE = ("SINK", "STORE", "END", "INDEX", "PARAM", "RANGE", "REDUCE", "CONST", "CAST", "BITCAST")
NODE_FEATURES = (
    *STRUCTURE, *OP_CLASSES, "float", "bfloat16", "integer", "bool", "other type", "itemsize", *KINDS, "extent",
    "depth", "elements", "stored", "address", "constant", "negative", "not finite", "span", "copies",
)  # fmt: skip
EDGE_FEATURES = ("first", "second", "third", "later", "moves", "stride", "contiguous", "bytes", "extent")

_STRUCTURE_AT = {name: i for i, name in enumerate(STRUCTURE)}
_CLASS_AT = {op: len(STRUCTURE) + i for i, ops in enumerate(OP_CLASSES.values()) for op in ops}
_AT = {name: NODE_FEATURES.index(name) for name in NODE_FEATURES[len(STRUCTURE) + len(OP_CLASSES) :]}
_OTHER_OP = len(STRUCTURE) + len(OP_CLASSES) - 1
_KIND_AT = {kind: _AT["GLOBAL"] + i for i, kind in enumerate(KINDS)}
_LARGEST = 64.0  # logarithms of constants end here


@dataclass(frozen=True)
class AstGraphs:
    """n graphs, their nodes and edges one after another. Features are float32, all else int64."""

    nodes: Array  # (sum of n_nodes, len(NODE_FEATURES))
    edges: Array  # (sum of n_edges, len(EDGE_FEATURES))
    ends: Array  # (sum of n_edges, 2) source and user of each edge, places among the nodes of their graph
    n_nodes: Array  # (n,)
    n_edges: Array  # (n,)

    def __len__(self) -> int:
        return len(self.n_nodes)

    def counts(self) -> dict[str, Array]:
        """How many rows of each field a graph has."""
        one = np.ones_like(self.n_nodes)
        return {
            "nodes": self.n_nodes, "edges": self.n_edges, "ends": self.n_edges, "n_nodes": one, "n_edges": one,
        }  # fmt: skip

    def take(self, index: Array) -> AstGraphs:
        """The graphs at these places, in this order."""
        return AstGraphs(
            **{name: getattr(self, name)[rows_of(counts, index)] for name, counts in self.counts().items()}
        )


def joined(parts: Iterable[AstGraphs]) -> AstGraphs:
    """All graphs of all parts, in order."""
    parts = [_EMPTY, *parts]
    return AstGraphs(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(AstGraphs)})


def _arrays(nodes: Any, edges: Any, ends: Any, n_nodes: Sequence[int], n_edges: Sequence[int]) -> AstGraphs:
    return AstGraphs(
        np.asarray(nodes, np.float32).reshape(-1, len(NODE_FEATURES)),
        np.asarray(edges, np.float32).reshape(-1, len(EDGE_FEATURES)),
        np.asarray(ends, np.int64).reshape(-1, 2), np.array(n_nodes, np.int64), np.array(n_edges, np.int64),
    )  # fmt: skip


_EMPTY = _arrays([], [], [], [], [])


def ast_graph(state: Scheduler) -> AstGraphs:
    """The one graph of a schedule state (`KernelSpace.state`)."""
    nodes = list(state.ast.toposort())
    place = {u: i for i, u in enumerate(nodes)}
    table = axis_table(state)
    ranges = {r: i for i, r in enumerate(state.rngs)}
    logs = [math.log2(max(extent, 1)) for extent in table.extents]
    inner = [kind in INNER for kind in table.kinds]
    addresses = nodes_of_addresses(nodes)
    stored = {u.src[0] for u in nodes if u.op is Ops.STORE}
    stored |= {u.src[0] for u in stored if u.op is Ops.INDEX}
    made = np.zeros((len(nodes), len(NODE_FEATURES)))
    edges: list[list[float]] = []
    ends: list[tuple[int, int]] = []
    accesses = iter(table.accesses)  # in the order of their nodes
    for u, row in zip(nodes, made, strict=True):
        _describe(u, row)
        row[_AT["stored"]], row[_AT["address"]] = u in stored, u in addresses
        if u in ranges:
            row[_AT["depth"]] = (len(ranges) - ranges[u]) / 8.0
        over = [ranges[r] for r in (u.src[0] if u.op is Ops.REDUCE else u).ranges if r in ranges]
        row[_AT["span"]] = sum(logs[i] for i in over)
        row[_AT["copies"]] = sum(logs[i] for i in over if inner[i])
        for number, source in enumerate(u.src):
            edge = [0.0] * len(EDGE_FEATURES)
            edge[min(number, 3)] = 1.0
            edges.append(edge)
            ends.append((place[source], place[u]))
        if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM:
            access = next(accesses)
            row[_AT["elements"]] = math.log2(max(access.elements, 1))
            for r, i in ranges.items():
                if access.used[i]:
                    step = abs(access.strides[i])
                    far = math.log2(1 + step), float(step == 1), math.log2(1 + step * access.itemsize)
                    edges.append([0.0, 0.0, 0.0, 0.0, 1.0, *far, logs[i]])
                    ends.append((place[r], place[u]))
    return _arrays(
        np.nan_to_num(made, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST), edges, ends, [len(nodes)], [len(edges)]
    )


def _describe(u: UOp, row: Array) -> None:
    """What a node is by itself."""
    name = u.op.name
    row[_STRUCTURE_AT.get(name, _CLASS_AT.get(name, _OTHER_OP))] = 1.0
    if u.op is Ops.REDUCE:  # by which operation
        row[_CLASS_AT.get(u.arg[0].name, _OTHER_OP)] = 1.0
    elif u.op is Ops.RANGE:
        row[_KIND_AT.get(u.arg[-1].name, _KIND_AT["other"])] = 1.0
        row[_AT["extent"]] = math.log2(max(int(u.vmax) + 1, 1))
    elif u.op is Ops.PARAM:
        row[_AT["elements"]] = math.log2(max(int(u.max_numel()), 1))
    elif u.op is Ops.CONST:
        value = math.nan if isinstance(u.arg, InvalidType) else float(u.arg)
        row[_AT["not finite"]] = not math.isfinite(value)
        row[_AT["negative"]] = value < 0
        row[_AT["constant"]] = min(math.log2(1 + abs(value)), _LARGEST) if math.isfinite(value) else 0.0
    dtype = getattr(u.dtype, "base", u.dtype)
    dtype = dtype.scalar() if hasattr(dtype, "scalar") else dtype
    kind = "bool" if dtype == dtypes.bool else "bfloat16" if dtype == dtypes.bfloat16 else "other type"
    if kind == "other type" and (dtypes.is_float(dtype) or dtypes.is_int(dtype)):
        kind = "float" if dtypes.is_float(dtype) else "integer"
    row[_AT[kind]] = 1.0
    row[_AT["itemsize"]] = math.log2(max(int(dtype.itemsize), 1))


# ---- the rows of a dataset ----


def for_rows(
    export: Export, data: TrainingData, index: Array, *, workers: int | None = None, cache: Path | None = None
) -> tuple[Array, AstGraphs]:
    """The graphs of some rows (m,) of a dataset, and which rows these are: those whose schedule applies, in order.

    `data` are the rows of `export`, or some of them. Milliseconds a row, shared between `workers` processes; kept in
    the user's cache, or the folder `cache`. Raises DataError where a kernel cannot be read.
    """
    index = np.asarray(index, np.int64)
    path = (cache or cache_folder("asts")) / f"{_identity(data, index)}.npz"
    found = kept(path, _from_arrays)
    applies, graphs = _build(export, data, index, workers) if found is None else found
    if found is None:
        keep({"applies": applies, **{f.name: getattr(graphs, f.name) for f in fields(AstGraphs)}}, path)
    return index[applies], graphs


def _identity(data: TrainingData, index: Array) -> str:
    text = json.dumps([AST_VERSION, NODE_FEATURES, EDGE_FEATURES, PROTOCOL, list(data.checksums)])
    found = hashlib.sha256(text.encode())
    found.update(np.ascontiguousarray(data.row[index], np.int64).tobytes())
    return f"v{AST_VERSION}-{found.hexdigest()[:24]}"


def _build(export: Export, data: TrainingData, index: Array, workers: int | None) -> tuple[Array, AstGraphs]:
    bodies = export.table(PROTOCOL, ["schedule_body"])["schedule_body"].take(data.row[index]).to_pylist()
    regions, targets = export.regions(), export.targets()
    order = np.argsort(data.kernel[index], kind="stable")
    kernels, starts = np.unique(data.kernel[index][order], return_index=True)
    jobs = [
        KernelJob(regions[data.region_ids[k]], targets[data.targets[data.target[k]]], tuple(bodies[i] for i in rows))
        for k, rows in zip(kernels, np.split(order, starts[1:]), strict=True)
    ]
    parts, applied = [], []
    for part, ok in in_processes(_of_kernel, jobs, workers):
        parts.append(part)
        applied.append(ok)
    applies = np.zeros(len(index), bool)
    applies[order] = np.concatenate([np.zeros(0, bool), *applied])
    graphs = joined(parts)
    kept = order[applies[order]]  # the row of each graph
    return applies, graphs.take(np.argsort(kept))


def _of_kernel(job: KernelJob) -> tuple[AstGraphs, Array]:
    """Graphs, and which schedules apply."""
    parts, applies = job.each(lambda space, schedule: ast_graph(space.state(schedule)))
    return joined(parts), applies


def _from_arrays(arrays: dict[str, Array]) -> tuple[Array, AstGraphs]:
    return arrays.pop("applies"), AstGraphs(**arrays)
