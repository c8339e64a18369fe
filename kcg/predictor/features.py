"""What a predictor sees of scheduled kernels: a small graph for each schedule, and numbers for the whole of it.

A graph has three kinds of nodes: the axes of the loop nest, the loads and stores, and the groups of operations that
vary with the same axes. Between every axis and every load or store stands an edge that tells how one moves along the
other (its stride), and one between every axis and every group. Beside them stand numbers for the kernel itself, for the
schedule as a whole, and for the target. All of it is computed from axis tables by array operations, a few hundred
schedules at once; no code is generated. Sizes and counts are base-2 logarithms, so that a factor is a difference.

The features are a function of the kernel, the schedule and the target alone. `FEATURES_VERSION` changes with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kcg.compat.tiny import GroupOp, Ops, dtypes
from kcg.kernel.codec import ast_of
from kcg.kernel.compile import UOPS_MAX
from kcg.kernel.loop_nest import (
    AXIS_KINDS,
    CORES,
    GRID,
    HELD,
    INNER,
    LANES,
    LOOPS,
    REDUCING,
    SHARED_SUMS,
    SUMMED_IN_TURN,
    WORKGROUP,
    AxisTable,
)
from kcg.types import Region, Schedule, Target

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space
    from kcg.kernel.seen import Seen, Words


# ---- Axis tables of many schedules as padded arrays of integers: what features are computed from, and what is cached.

Array = np.ndarray[Any, Any]

OP_CLASSES: dict[str, tuple[str, ...]] = {
    "add": ("ADD", "SUB", "NEG"), "mul": ("MUL", "MULACC"), "max": ("MAX",), "divide": ("RECIPROCAL", "FDIV", "CDIV"),
    "function": ("EXP2", "LOG2", "SIN", "POW"), "root": ("SQRT", "TRUNC"), "compare": ("CMPLT", "CMPNE", "CMPEQ"),
    "select": ("WHERE",), "bits": ("AND", "OR", "XOR", "SHL", "SHR", "THREEFRY"),
    "integer": ("FLOORDIV", "FLOORMOD", "CMOD"), "matrix": ("WMMA",), "other": (),
}  # fmt: skip
_CLASS_OF = {op: i for i, ops in enumerate(OP_CLASSES.values()) for op in ops}
_KIND = {kind: i for i, kind in enumerate(AXIS_KINDS)}
OTHER_OP, OTHER_KIND = len(OP_CLASSES) - 1, len(AXIS_KINDS) - 1

MOST_AXES, MOST_ACCESSES, MOST_GROUPS = 24, 24, 24
"""What one kernel may have at most; of larger ones the last are left out. No kernel of the datasets is cut."""


@dataclass(frozen=True)
class Tables:
    """n schedules with at most A axes, M loads and stores, and G groups of operations that vary with the same axes.

    Places beyond `axes`, `accesses` and `groups` are zero.
    """

    axes: Array  # (n,) number of axes
    accesses: Array  # (n,)
    groups: Array  # (n,)
    extents: Array  # (n, A) int64
    kinds: Array  # (n, A) int8, a place in `AXIS_KINDS`
    strides: Array  # (n, A, M) int64, elements
    touches: Array  # (n, A, M) bool: the access depends on the axis
    itemsizes: Array  # (n, M)
    stores: Array  # (n, M) bool
    elements: Array  # (n, M) int64: size of the buffer
    slots: Array  # (n, M)
    varies: Array  # (n, A, G) bool: the operations depend on the axis
    operations: Array  # (n, G, C) how many of each class in `OP_CLASSES`
    tensor_core: Array  # (n,) bool
    uops: Array  # (n,) about how many micro-operations the code has, see `kcg.kernel.loop_nest`

    def __len__(self) -> int:
        return len(self.axes)

    def take(self, index: Array) -> Tables:
        """Some of the schedules."""
        return Tables(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


_INT, _BOOL = np.int64, np.bool_
_TYPES: dict[str, Any] = {
    "axes": np.int16,
    "accesses": np.int16,
    "groups": np.int16,
    "extents": _INT,
    "kinds": np.int8,
    "strides": _INT,
    "touches": _BOOL,
    "itemsizes": np.int16,
    "stores": _BOOL,
    "elements": _INT,
    "slots": np.int16,
    "varies": _BOOL,
    "operations": np.int16,
    "tensor_core": _BOOL,
    "uops": np.int64,
}


def encode(tables: Sequence[AxisTable]) -> Tables:
    """The arrays of some axis tables, in order."""
    rows = [_cut(table) for table in tables]
    grouped = [_groups(table.operations) for table in rows]
    n = len(rows)
    a = max((len(t.extents) for t in rows), default=0)
    m = max((len(t.accesses) for t in rows), default=0)
    g = max((len(groups) for groups in grouped), default=0)
    made = _zeros(n, a, m, g)
    for i, (table, groups) in enumerate(zip(rows, grouped, strict=True)):
        na, nm = len(table.extents), len(table.accesses)
        made.axes[i], made.accesses[i], made.groups[i] = na, nm, len(groups)
        made.extents[i, :na] = table.extents
        made.kinds[i, :na] = [_KIND.get(kind, OTHER_KIND) for kind in table.kinds]
        if nm and na:
            made.strides[i, :na, :nm] = np.array([t.strides for t in table.accesses], _INT).T
            made.touches[i, :na, :nm] = np.array([t.used for t in table.accesses], _BOOL).T
        made.itemsizes[i, :nm] = [t.itemsize for t in table.accesses]
        made.stores[i, :nm] = [t.is_store for t in table.accesses]
        made.elements[i, :nm] = [t.elements for t in table.accesses]
        made.slots[i, :nm] = [t.slot for t in table.accesses]
        for place, (used, counts) in enumerate(groups.items()):
            made.varies[i, :na, place] = used
            made.operations[i, place] = counts
        made.tensor_core[i], made.uops[i] = table.tensor_core, table.uops
    return made


def _zeros(n: int, a: int, m: int, g: int) -> Tables:
    shapes: dict[str, tuple[int, ...]] = {
        "extents": (a,),
        "kinds": (a,),
        "strides": (a, m),
        "touches": (a, m),
        "itemsizes": (m,),
        "stores": (m,),
        "elements": (m,),
        "slots": (m,),
        "varies": (a, g),
        "operations": (g, len(OP_CLASSES)),
    }
    return Tables(**{f.name: np.zeros((n, *shapes.get(f.name, ())), _TYPES[f.name]) for f in fields(Tables)})


def _groups(operations: Iterable[tuple[str, tuple[bool, ...]]]) -> dict[tuple[bool, ...], list[int]]:
    """Counts by class of the operations that vary with the same axes."""
    found: dict[tuple[bool, ...], list[int]] = {}
    for op, used in operations:
        if used not in found:
            if len(found) == MOST_GROUPS:
                continue
            found[used] = [0] * len(OP_CLASSES)
        found[used][_CLASS_OF.get(op, OTHER_OP)] += 1
    return found


def _cut(table: AxisTable) -> AxisTable:
    if len(table.extents) <= MOST_AXES and len(table.accesses) <= MOST_ACCESSES:
        return table
    stores = [t for t in table.accesses if t.is_store]
    kept = (stores + [t for t in table.accesses if not t.is_store])[:MOST_ACCESSES]
    return replace(
        table,
        extents=table.extents[:MOST_AXES],
        kinds=table.kinds[:MOST_AXES],
        accesses=tuple(replace(t, strides=t.strides[:MOST_AXES], used=t.used[:MOST_AXES]) for t in kept),
        operations=tuple((op, used[:MOST_AXES]) for op, used in table.operations),
    )


# ---- What no schedule changes: numbers of a kernel and of a target; and all that a predictor sees of one schedule.


@dataclass(frozen=True)
class ScheduleFeatures:
    """One schedule as a predictor sees it."""

    space: Space
    schedule: Schedule
    refused: float  # probability that the compiler refuses it, by rule, see its space's `refusals`
    graph: Graphs  # of this one schedule
    kernel_x: Array  # (kernel features,)
    target_x: Array  # (target features,)


def kernel_features(region: Region) -> Array:
    """Numbers of a region that no schedule changes, all its kernels counted together: (len(KERNEL_FEATURES),)
    float32."""
    nodes = [node for kernel in region.kernels for node in ast_of(kernel).toposort()]
    found = {op.name: 0 for op in Ops}
    for u in nodes:
        found[u.op.name] += 1
    known = sum(found[op] for op in KERNEL_OPS)
    alu = sum(1 for u in nodes if u.op in GroupOp.ALU)
    stored = {u.src[0].src[0] for u in nodes if u.op is Ops.STORE}
    stores, loads = [0] * len(KERNEL_DTYPES), [0] * len(KERNEL_DTYPES)
    for u in nodes:
        if u.op is Ops.PARAM:
            (stores if u in stored else loads)[_dtype_place(u.dtype)] += 1
    symbolic = any(u.op.name in ("DEFINE_VAR", "BIND", "VARIABLE") for u in nodes)
    values = [math.log2(1 + found[op]) for op in KERNEL_OPS]
    values += [math.log2(1 + alu), math.log2(1 + len(nodes) - known)]
    values += [math.log2(1 + v) for v in (*stores, *loads)]
    return np.array([*values, float(symbolic)], np.float32)


def operations_of(region: Region) -> frozenset[str]:
    """The names of all operations of a region."""
    return frozenset(u.op.name for kernel in region.kernels for u in ast_of(kernel).toposort())


def _dtype_place(dtype: Any) -> int:
    scalar = getattr(dtype, "base", dtype)
    scalar = scalar.scalar() if hasattr(scalar, "scalar") else scalar
    name = "fp8" if scalar in dtypes.fp8s else scalar.name
    name = "int" if scalar in dtypes.ints else name
    return KERNEL_DTYPES.index(name) if name in KERNEL_DTYPES else len(KERNEL_DTYPES) - 1


def target_features(target: Target) -> Array:
    """Numbers of a target: (len(TARGET_FEATURES),) float32."""
    renderers = ("X86", "CLANG", "CUDA")
    values = [
        target.has_local, target.device == "CPU", not target.has_local and target.device != "CPU",
        math.log2(max(target.cores, 1)) / 4, _logs(target.cache_bytes), _logs(target.memory_bytes),
        _logs(target.shared_bytes), _logs(target.bandwidth_bytes_s or 0), (target.clock_limit_mhz or 0) / 1000,
        len(target.tensor_cores) / 4, *(target.renderer == name for name in renderers),
        target.renderer not in renderers,
    ]  # fmt: skip
    return np.array(values, np.float32)


def _logs(value: float) -> float:
    return math.log2(max(value, 1.0)) / 16


FEATURES_VERSION = 1

WARP_THREADS = 32
SECTOR_BYTES = 32  # what a GPU moves between its caches at once
LINE_BYTES = 64  # of a CPU
WIDEST_BYTES = 16  # one load or store moves at most
FUNCTION_COST = 20.0  # an exponential or a logarithm in simple operations


def _marks(kinds: Iterable[str]) -> Array:
    """(kinds + 1,) bool, to be indexed by kinds: which of them are these. The last is that of no axis, -1."""
    marks = np.zeros(len(AXIS_KINDS) + 1, bool)
    marks[[_KIND[kind] for kind in kinds]] = True
    return marks


AXIS_FEATURES = (*AXIS_KINDS, "extent", "power_of_two", "depth", "first_of_kind", "lane_step")
ACCESS_FEATURES = (
    "store",
    "itemsize",
    "elements",
    "spanned",
    "executed",
    "copies",
    "width",
    "instructions",
    "sectors",
    "traffic",
    "block_footprint",
    "block_reuse",
    "thread_footprint",
    "grid_reuse",
    "loop_reuse",
    "lines",
    "same_slot",
)
GROUP_FEATURES = (*OP_CLASSES, "span", "copies", "simple", "work")
ACCESS_EDGES = (
    "touches",
    "still",
    "contiguous",
    "stride",
    "bytes",
    "within_vector",
    "within_sector",
    "within_line",
    "extent",
    "reach",
)
GROUP_EDGES = ("varies", "extent")
SCHEDULE_FEATURES = (
    *(f"extent of {kind}" for kind in AXIS_KINDS),
    "tensor core",
    "threads",
    "warps",
    "idle lanes",
    "blocks",
    "waves",
    "last wave",
    "blocks a core",
    "occupancy",
    "held",
    "loaded",
    "registers",
    "spill",
    "trips",
    "code",
    "work",
    "load instructions",
    "store instructions",
    "traffic",
    "unique bytes",
    "block bytes",
    "shared bytes",
    "intensity",
    "compute_s",
    "issue_s",
    "memory_s",
    "cache_s",
    "latency_s",
    "lines_s",
    "bound_s",
    "axes",
    "accesses",
    "uops",
    "uops left",
)
KERNEL_OPS = (
    "LOAD",
    "STORE",
    "INDEX",
    "REDUCE",
    "RANGE",
    "CAST",
    "BITCAST",
    "WHERE",
    "CMPLT",
    "CMPNE",
    "ADD",
    "MUL",
    "MAX",
    "RECIPROCAL",
    "EXP2",
    "LOG2",
    "SIN",
    "SQRT",
    "CONST",
    "PARAM",
    "FLOORDIV",
    "FLOORMOD",
    "AND",
)
KERNEL_DTYPES = ("float", "half", "__bf16", "fp8", "double", "bool", "int", "other")
KERNEL_FEATURES = (
    *(f"number of {op}" for op in KERNEL_OPS),
    "other operations",
    "unseen operations",
    *(f"stores {name}" for name in KERNEL_DTYPES),
    *(f"loads {name}" for name in KERNEL_DTYPES),
    "symbolic",
)
TARGET_FEATURES = (
    "GPU",
    "CPU",
    "other device",
    "cores",
    "cache",
    "memory",
    "shared",
    "bandwidth",
    "clock",
    "tensor cores",
    "X86",
    "CLANG",
    "CUDA",
    "other renderer",
)


NAMES = (
    AXIS_FEATURES,
    ACCESS_FEATURES,
    GROUP_FEATURES,
    ACCESS_EDGES,
    GROUP_EDGES,
    SCHEDULE_FEATURES,
    KERNEL_FEATURES,
    TARGET_FEATURES,
)
"""Every feature by name: what is kept under other names is not read."""


@dataclass(frozen=True)
class Graphs:
    """n graphs, their nodes and edges one after another. Features are float32, counts int64.

    Edges of a graph are in the order of its axes, and for each axis in that of the loads and stores, or of the groups.
    """

    axes: Array  # (sum of n_axes, len(AXIS_FEATURES))
    accesses: Array  # (sum of n_accesses, len(ACCESS_FEATURES))
    groups: Array  # (sum of n_groups, len(GROUP_FEATURES))
    access_edges: Array  # (sum of n_axes * n_accesses, len(ACCESS_EDGES))
    group_edges: Array  # (sum of n_axes * n_groups, len(GROUP_EDGES))
    schedule: Array  # (n, len(SCHEDULE_FEATURES))
    n_axes: Array  # (n,)
    n_accesses: Array  # (n,)
    n_groups: Array  # (n,)

    def __len__(self) -> int:
        return len(self.schedule)

    def counts(self) -> dict[str, Array]:
        """How many rows of each field a graph has."""
        one = np.ones_like(self.n_axes)
        return {
            "axes": self.n_axes,
            "accesses": self.n_accesses,
            "groups": self.n_groups,
            "access_edges": self.n_axes * self.n_accesses,
            "group_edges": self.n_axes * self.n_groups,
            "schedule": one,
            "n_axes": one,
            "n_accesses": one,
            "n_groups": one,
        }

    def as_arrays(self) -> dict[str, Array]:
        """Every array by name, for a file that may hold others."""
        return {f"graphs.{f.name}": getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Graphs:
        """The inverse of `as_arrays`. Raises KeyError where one is missing."""
        return cls(**{f.name: arrays[f"graphs.{f.name}"] for f in fields(cls)})

    def take(self, index: Array) -> Graphs:
        """The graphs at these places, in this order."""
        return Graphs(**{name: getattr(self, name)[rows_of(counts, index)] for name, counts in self.counts().items()})


def rows_of(counts: Array, index: Array) -> Array:
    """Where the rows of some graphs are, if graph i has `counts[i]` rows, one graph after another."""
    starts = np.cumsum(counts) - counts
    chosen = counts[index]
    ends = np.cumsum(chosen)
    return np.asarray(np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts[index] - (ends - chosen), chosen))


def joined(parts: Iterable[Graphs]) -> Graphs:
    """All graphs of all parts, in order."""
    parts = list(parts)
    return Graphs(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Graphs)})


def side_by_side(features: Sequence[ScheduleFeatures]) -> tuple[Graphs, Array, Array]:
    """The graphs of some schedules, at least one, and (n, …) the numbers of the kernel and of the target of each."""
    made = features[0].graph if len(features) == 1 else joined(one.graph for one in features)
    return made, np.stack([one.kernel_x for one in features]), np.stack([one.target_x for one in features])


def graphs_of_plans(plans: Sequence[Seen]) -> Graphs:
    """The graphs of some schedules that are seen as plans, of one kind."""
    return Graphs(
        axes=np.concatenate([one.axes for one in plans]),
        accesses=np.concatenate([one.accesses for one in plans]),
        groups=np.concatenate([one.groups for one in plans]),
        access_edges=np.concatenate([one.access_edges for one in plans]),
        group_edges=np.concatenate([one.group_edges for one in plans]),
        schedule=np.stack([one.whole for one in plans]),
        n_axes=np.array([len(one.axes) for one in plans], np.int64),
        n_accesses=np.array([len(one.accesses) for one in plans], np.int64),
        n_groups=np.array([len(one.groups) for one in plans], np.int64),
    )


def widths_of(words: Words) -> tuple[int, ...]:
    """How many numbers a network is told of each kind of node and edge, of the whole, the kernel and the target."""
    nodes = (words.axes, words.accesses, words.groups, words.access_edges, words.group_edges, words.whole)
    return (*map(len, nodes), len(KERNEL_FEATURES), len(TARGET_FEATURES))


def graphs(tables: Tables, target: Target) -> Graphs:
    """The graphs of some schedules on one target."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _Build(tables, target).graphs()


def _log(values: Any) -> Array:
    """Base-2 logarithm of counts, 0 for what is below 1."""
    return np.asarray(np.log2(np.maximum(np.asarray(values, np.float64), 1.0)))


class _Build:
    def __init__(self, tables: Tables, target: Target) -> None:
        self.t, self.target = tables, target
        a = tables.extents.shape[1]
        self.has_axis = np.arange(a)[None] < tables.axes[:, None]
        self.has_access = np.arange(tables.strides.shape[2])[None] < tables.accesses[:, None]
        self.has_group = np.arange(tables.varies.shape[2])[None] < tables.groups[:, None]
        self.extents = np.where(self.has_axis, np.maximum(tables.extents, 1), 1).astype(np.float64)
        self.logs = np.log2(self.extents)  # (n, A)
        self.kind = np.where(self.has_axis, tables.kinds, -1)
        self.inner, self.reducing, self.block = self.are(INNER), self.are(REDUCING), self.are(WORKGROUP)

    def over(self, marked: Array) -> Array:
        """Logarithm of the product of the extents of marked axes: (n, A) to (n,), or (n, A, X) to (n, X)."""
        if marked.ndim == 2:
            return np.asarray((self.logs * marked).sum(1))
        return np.asarray(np.einsum("na,nax->nx", self.logs, marked.astype(np.float64)))

    def are(self, kinds: Iterable[str]) -> Array:
        """(n, A) bool: the axes of these kinds."""
        return np.asarray(_marks(kinds)[self.kind])

    def of_kind(self, kinds: Iterable[str]) -> Array:
        """(n,) logarithm of the product of the extents of the axes of these kinds."""
        return self.over(self.are(kinds))

    # ---- lanes ----

    def lane_steps(self) -> Array:
        """(n, A) threads between neighbours along an axis of threads, 0 for other axes.

        tinygrad gives the first axis of threads the fastest index; of more than three, the first are folded into one,
        whose last axis is the fastest.
        """
        number = np.where(self.block, np.cumsum(self.block, 1) - 1, 0)
        folded = np.maximum(self.block.sum(1, keepdims=True) - 2, 1)
        place = np.where(number < folded, folded - 1 - number, number)
        faster = self.block[:, None, :] & (place[:, None, :] < place[:, :, None])
        return np.asarray(np.where(self.block, np.exp2((faster * self.logs[:, None, :]).sum(2)), 0.0))

    def sectors(self, steps: Array) -> Array:
        """(n, M) sectors that the first warp touches with one load or store."""
        lanes = np.arange(WARP_THREADS)[None, :, None]
        along = np.where(self.block[:, None], lanes // np.maximum(steps, 1)[:, None] % self.extents[:, None], 0.0)
        offsets = along @ self.t.strides.astype(np.float64)  # (n, 32, M)
        touched = np.floor(offsets * self.t.itemsizes[:, None] / SECTOR_BYTES)
        touched.sort(1)
        return np.asarray(1.0 + (np.diff(touched, axis=1) != 0).sum(1))

    # ---- loads and stores ----

    def access_features(self, steps: Array) -> tuple[Array, dict[str, Array]]:
        t = self.t
        there = self.has_axis[:, :, None]
        used: Array = t.touches & there
        reduces: Array = np.asarray((used & self.reducing[:, :, None]).any(1))
        scope = used | (~self.inner[:, :, None] & (reduces[:, None] | ~self.reducing[:, :, None]))
        size = np.maximum(t.itemsizes, 1).astype(np.float64)
        executed, spanned = self.over(scope & there), self.over(used)
        spanned = np.minimum(spanned, _log(t.elements))
        copies = self.over(used & self.inner[:, :, None])
        power = np.bitwise_and(t.extents, -t.extents)
        run = np.where(self.inner[:, :, None] & (t.strides == 1), power[:, :, None], 1).max(1, initial=1)
        width = np.minimum(_log(run), np.log2(np.maximum(WIDEST_BYTES // size, 1)))
        instructions = executed - width
        sectors = np.log2(self.sectors(steps))
        moved = np.log2(size) + width
        traffic = instructions - 5 + np.maximum(sectors, 0) + np.maximum(moved - 5, 0) + 5  # bytes between caches
        inside = self.block | self.inner
        block_footprint = self.over(used & inside[:, :, None])
        block_reuse = self.over(np.broadcast_to(inside[:, :, None], used.shape)) - block_footprint
        thread_footprint = copies + self.over(used & self.are(SUMMED_IN_TURN)[:, :, None])
        parallel = self.are((*GRID, *CORES))
        grid_reuse = self.over(~used & parallel[:, :, None])
        loops = (self.has_axis & ~self.inner & ~self.block & ~parallel)[:, :, None]
        loop_reuse = self.over(~used & loops)
        named = {
            "store": t.stores, "itemsize": np.log2(size), "elements": _log(t.elements), "spanned": spanned,
            "executed": executed, "copies": copies, "width": width, "instructions": instructions, "sectors": sectors,
            "traffic": traffic, "block_footprint": block_footprint, "block_reuse": block_reuse,
            "thread_footprint": thread_footprint, "grid_reuse": grid_reuse, "loop_reuse": loop_reuse,
            "lines": self.lines(used, size, spanned),
            "same_slot": (t.slots[:, :, None] == t.slots[:, None]).sum(2) - (~self.has_access).sum(1)[:, None] > 1,
        }  # fmt: skip
        return self.stacked(named, ACCESS_FEATURES, self.has_access), named

    def lines(self, used: Array, size: Array, spanned: Array) -> Array:
        """(n, M) cache lines that one core brings in when a loop that does not move an access finds it pushed out."""
        outer = (self.has_axis & ~self.inner)[:, :, None]
        extents = self.logs[:, :, None]
        near = np.clip(np.abs(self.t.strides) * size[:, None], 1, LINE_BYTES) / LINE_BYTES
        moved, still = used & outer, outer & ~used
        brought = np.where(moved, np.maximum(extents + np.log2(near), 0.0), 0.0)
        grown, repeated = np.where(moved, extents, 0.0), np.where(still, extents, 0.0)
        footprint = np.log2(size) + self.over(used & self.inner[:, :, None])
        lines = np.zeros_like(footprint)
        for i in range(self.extents.shape[1] - 1, -1, -1):
            lines += brought[:, i]
            lines += np.where(footprint > 15, repeated[:, i], 0.0)  # 32 KiB
            footprint += grown[:, i]
        return np.asarray(np.maximum(lines, spanned + np.log2(size) - 6))

    # ---- operations ----

    def group_features(self) -> tuple[Array, dict[str, Array]]:
        varies = self.t.varies & self.has_axis[:, :, None]
        counts = self.t.operations.astype(np.float64)
        names = list(OP_CLASSES)
        costs = np.ones(len(names))
        costs[names.index("function")] = FUNCTION_COST
        costs[names.index("divide")] = costs[names.index("root")] = costs[names.index("integer")] = 4.0
        simple = _log(counts @ costs)
        span, copies = self.over(varies), self.over(varies & self.inner[:, :, None])
        named = {name: np.log2(1.0 + counts[:, :, i]) for i, name in enumerate(names)}
        named |= {"span": span, "copies": copies, "simple": simple, "work": span + simple}
        return self.stacked(named, GROUP_FEATURES, self.has_group), named

    # ---- the whole schedule ----

    def schedule_features(self, access: dict[str, Array], group: dict[str, Array]) -> Array:
        target, t = self.target, self.t
        exp = np.exp2
        cores = float(max(target.cores, 1))
        blocks, threads = self.of_kind(GRID), self.over(self.block)
        warps = np.ceil(exp(threads) / WARP_THREADS)
        held = self.of_kind(HELD)
        loads = self.has_access & ~t.stores
        loaded = (exp(access["copies"]) * loads).sum(1)
        registers = 16.0 + exp(held) + loaded
        resident = np.clip(
            np.minimum(2048 // (warps * WARP_THREADS), 65536 / (warps * WARP_THREADS * np.clip(registers, 16, 255))),
            1,
            32,
        )
        shared = np.where(self.of_kind(SHARED_SUMS) > 0, threads + held + 2, 0.0)
        waves = exp(blocks) / (cores * resident)
        work = (exp(group["work"]) * self.has_group).sum(1)
        code = (exp(group["simple"] + group["copies"]) * self.has_group).sum(1)
        code += (exp(access["copies"]) * self.has_access).sum(1)
        load_instructions = (exp(access["instructions"]) * loads).sum(1)
        store_instructions = (exp(access["instructions"]) * (self.has_access & t.stores)).sum(1)
        traffic = (exp(access["traffic"]) * self.has_access).sum(1)
        unique = (exp(access["spanned"] + access["itemsize"]) * self.has_access).sum(1)
        block_bytes = (exp(access["block_footprint"] + access["itemsize"]) * self.has_access).sum(1)
        trips = self.of_kind(LOOPS)
        lines = (exp(access["lines"]) * self.has_access).sum(1)
        clock = 1e6 * (target.clock_limit_mhz or 2000.0)
        bandwidth = target.bandwidth_bytes_s or 2e10
        busy = np.clip(np.minimum(exp(blocks), cores * resident) * warps / (cores * 16), 1e-3, 1.0)
        if target.has_local:
            compute = work / (cores * 128 * clock) / busy
            compute = np.where(t.tensor_core, compute / 8, compute)
            issue = (load_instructions + store_instructions) / (cores * 32 * clock) / busy
            latency = exp(trips) * 500 / clock * np.ceil(waves)
        else:
            used = np.minimum(exp(self.of_kind(CORES)), cores)
            compute, issue = work / (clock * used), (load_instructions + store_instructions) / (clock * used)
            latency = exp(trips + blocks + self.of_kind(LANES)) * 2 / clock
        memory, cache = unique / bandwidth, traffic / (3 * bandwidth)
        lines_s = lines * LINE_BYTES / bandwidth
        bound = np.maximum.reduce([compute, issue, memory, cache])
        named: dict[str, Any] = {f"extent of {kind}": self.over(self.kind == i) for i, kind in enumerate(AXIS_KINDS)}
        named |= {
            "tensor core": t.tensor_core,
            "threads": threads,
            "warps": np.log2(warps),
            "idle lanes": np.log2(warps * WARP_THREADS) - threads,
            "blocks": blocks,
            "waves": np.log2(np.maximum(waves, 1e-6)),
            "last wave": np.ceil(waves) / np.maximum(waves, 1e-6),
            "blocks a core": np.log2(resident),
            "occupancy": np.log2(resident * warps),
            "held": held,
            "loaded": _log(loaded),
            "registers": np.log2(registers),
            "spill": np.maximum(np.log2(registers) - 7, 0),
            "trips": trips,
            "code": _log(code),
            "work": _log(work),
            "load instructions": _log(load_instructions),
            "store instructions": _log(store_instructions),
            "traffic": _log(traffic),
            "unique bytes": _log(unique),
            "block bytes": _log(block_bytes),
            "shared bytes": shared,
            "intensity": _log(work) - _log(unique),
            "axes": t.axes,
            "accesses": t.accesses,
            "uops": _log(t.uops),
            "uops left": np.clip((UOPS_MAX - t.uops) / UOPS_MAX, -1, 1),
        }
        named["last wave"] = np.log2(np.clip(named["last wave"], 1, 2**10))
        seconds = {
            "compute_s": compute,
            "issue_s": issue,
            "memory_s": memory,
            "cache_s": cache,
            "latency_s": latency,
            "lines_s": lines_s,
            "bound_s": bound,
        }
        named |= {name: np.log2(np.maximum(value, 1e-9)) + 17 for name, value in seconds.items()}  # 0 at 7.6 µs
        return self.stacked(named, SCHEDULE_FEATURES, None)

    # ---- all of it ----

    def graphs(self) -> Graphs:
        steps = self.lane_steps()
        accesses, access = self.access_features(steps)
        groups, group = self.group_features()
        return Graphs(
            axes=self.axis_features(steps),
            accesses=accesses,
            groups=groups,
            access_edges=self.access_edges(),
            group_edges=self.group_edges(),
            schedule=self.schedule_features(access, group),
            n_axes=self.has_axis.sum(1),
            n_accesses=self.has_access.sum(1),
            n_groups=self.has_group.sum(1),
        )

    def axis_features(self, steps: Array) -> Array:
        integer = self.t.extents
        places = np.arange(integer.shape[1])[None]
        before = np.concatenate([np.full((len(self.kind), 1), -2), self.kind[:, :-1]], 1)
        named: dict[str, Array] = {kind: self.kind == i for i, kind in enumerate(AXIS_KINDS)}
        named |= {
            "extent": self.logs,
            "power_of_two": np.bitwise_and(integer, integer - 1) == 0,
            "depth": (self.t.axes[:, None] - places) / 8.0,
            "first_of_kind": before != self.kind,
            "lane_step": _log(steps),
        }
        return self.stacked(named, AXIS_FEATURES, self.has_axis)

    def access_edges(self) -> Array:
        t = self.t
        there = self.has_axis[:, :, None] & self.has_access[:, None]
        strides = np.abs(t.strides)
        nbytes = strides * t.itemsizes[:, None]
        touches = t.touches & there
        extent = np.broadcast_to(self.logs[:, :, None], there.shape)
        named = {
            "touches": touches, "still": ~touches, "contiguous": strides == 1, "stride": np.log2(1.0 + strides),
            "bytes": np.log2(1.0 + nbytes), "within_vector": touches & (nbytes <= WIDEST_BYTES),
            "within_sector": touches & (nbytes <= SECTOR_BYTES), "within_line": touches & (nbytes <= 4 * SECTOR_BYTES),
            "extent": extent, "reach": np.where(touches, extent + np.log2(1.0 + nbytes), 0.0),
        }  # fmt: skip
        return self.stacked(named, ACCESS_EDGES, there)

    def group_edges(self) -> Array:
        there = self.has_axis[:, :, None] & self.has_group[:, None]
        extent = np.broadcast_to(self.logs[:, :, None], there.shape)
        return self.stacked({"varies": self.t.varies, "extent": extent}, GROUP_EDGES, there)

    def stacked(self, named: dict[str, Any], names: Sequence[str], there: Array | None) -> Array:
        """Features in their order along a last axis, of what is there; never infinite, never NaN."""
        shape = np.shape(named[names[0]]) if there is None else there.shape
        made = np.empty((*shape, len(names)), np.float32)
        for i, name in enumerate(names):
            made[..., i] = named[name]
        if there is not None:
            made = made.reshape(-1, len(names)) if there.all() else made[there]
        if not np.isfinite(made).all():
            np.nan_to_num(made, copy=False, nan=0.0, posinf=64.0, neginf=-64.0)
        return made
