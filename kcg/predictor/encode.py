"""Axis tables of many schedules as padded arrays of integers: what features are computed from, and what is cached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from kcg.kernel.axes import AxisTable

Array = np.ndarray[Any, Any]

KINDS = (
    "GLOBAL", "THREAD", "WEAK", "LOOP", "LOCAL", "WARP", "GROUP_REDUCE", "REDUCE", "UNROLL", "UPCAST", "DEVICE",
    "other",
)  # fmt: skip
"""Kinds of axes; a kind that is none of these is the last."""

OP_CLASSES: dict[str, tuple[str, ...]] = {
    "add": ("ADD", "SUB", "NEG"), "mul": ("MUL", "MULACC"), "max": ("MAX",), "divide": ("RECIPROCAL", "FDIV", "CDIV"),
    "function": ("EXP2", "LOG2", "SIN", "POW"), "root": ("SQRT", "TRUNC"), "compare": ("CMPLT", "CMPNE", "CMPEQ"),
    "select": ("WHERE",), "bits": ("AND", "OR", "XOR", "SHL", "SHR", "THREEFRY"),
    "integer": ("FLOORDIV", "FLOORMOD", "CMOD"), "matrix": ("WMMA",), "other": (),
}  # fmt: skip
_CLASS_OF = {op: i for i, ops in enumerate(OP_CLASSES.values()) for op in ops}
_KIND_OF = {kind: i for i, kind in enumerate(KINDS)}
OTHER_OP, OTHER_KIND = len(OP_CLASSES) - 1, len(KINDS) - 1

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
    kinds: Array  # (n, A) int8, a place in `KINDS`
    strides: Array  # (n, A, M) int64, elements
    touches: Array  # (n, A, M) bool: the access depends on the axis
    itemsizes: Array  # (n, M)
    stores: Array  # (n, M) bool
    elements: Array  # (n, M) int64: size of the buffer
    slots: Array  # (n, M)
    varies: Array  # (n, A, G) bool: the operations depend on the axis
    operations: Array  # (n, G, C) how many of each class in `OP_CLASSES`
    tensor_core: Array  # (n,) bool
    uops: Array  # (n,) about how many micro-operations the code has, see `kcg.kernel.uops`

    def __len__(self) -> int:
        return len(self.axes)

    def take(self, index: Array) -> Tables:
        """Some of the schedules."""
        return Tables(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


_INT, _BOOL = np.int64, np.bool_
_TYPES: dict[str, Any] = {
    "axes": np.int16, "accesses": np.int16, "groups": np.int16, "extents": _INT, "kinds": np.int8, "strides": _INT,
    "touches": _BOOL, "itemsizes": np.int16, "stores": _BOOL, "elements": _INT, "slots": np.int16, "varies": _BOOL,
    "operations": np.int16, "tensor_core": _BOOL,
    "uops": np.int64,
}  # fmt: skip


def encode(tables: Sequence[AxisTable], uops: Sequence[int]) -> Tables:
    """The arrays of some axis tables, in order. `uops` are the micro-operations of each."""
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
        made.kinds[i, :na] = [_KIND_OF.get(kind, OTHER_KIND) for kind in table.kinds]
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
        made.tensor_core[i] = table.tensor_core
    made.uops[:] = uops
    return made


def _zeros(n: int, a: int, m: int, g: int) -> Tables:
    shapes: dict[str, tuple[int, ...]] = {
        "extents": (a,), "kinds": (a,), "strides": (a, m), "touches": (a, m), "itemsizes": (m,), "stores": (m,),
        "elements": (m,), "slots": (m,), "varies": (a, g), "operations": (g, len(OP_CLASSES)),
    }  # fmt: skip
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
    from dataclasses import replace

    stores = [t for t in table.accesses if t.is_store]
    kept = (stores + [t for t in table.accesses if not t.is_store])[:MOST_ACCESSES]
    return AxisTable(
        table.extents[:MOST_AXES], table.kinds[:MOST_AXES],
        tuple(replace(t, strides=t.strides[:MOST_AXES], used=t.used[:MOST_AXES]) for t in kept),
        tuple((op, used[:MOST_AXES]) for op, used in table.operations), table.tensor_core,
    )  # fmt: skip
