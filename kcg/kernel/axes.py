"""The axis table of a scheduled kernel: extents, kinds, and the strides of every memory access over every axis.

Read off a schedule state arithmetically: every index expression is evaluated at the origin and one step along each
axis, in one vectorised pass. No code is generated.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcg.compat.tiny import GroupOp, InvalidType, Ops, Scheduler, UOp

INNER = ("UPCAST", "UNROLL")
REDUCING = ("REDUCE", "UNROLL", "GROUP_REDUCE")

OPERATIONS_IN = {"EXP2": 20, "LOG2": 20, "SIN": 60, "POW": 45, "THREEFRY": 120}
"""Operations that tinygrad takes a function apart into where the target has no instruction (counted on CPU:X86)."""


@dataclass(frozen=True)
class Access:
    """One load or store. `strides` are elements per step of each axis; `used` marks the axes it depends on."""

    slot: int
    itemsize: int
    is_store: bool
    strides: tuple[int, ...]
    used: tuple[bool, ...]
    elements: int  # size of the buffer


@dataclass(frozen=True)
class AxisTable:
    """A scheduled kernel as numbers. Axes are in tinygrad's order; symbolic extents stand at their maximum."""

    extents: tuple[int, ...]
    kinds: tuple[str, ...]  # AxisType names
    accesses: tuple[Access, ...]
    operations: tuple[tuple[str, tuple[bool, ...]], ...]  # (op name, axes it varies with) of every arithmetic node
    tensor_core: bool

    def product(self, *kinds: str) -> int:
        """Product of the extents of all axes of these kinds."""
        return math.prod(e for e, k in zip(self.extents, self.kinds, strict=True) if k in kinds)

    def expanded(self) -> int:
        """About how many operations one thread's code holds, after unrolling and after functions are taken apart."""
        inner = tuple(k for k in self.kinds if k not in INNER)
        size = sum(OPERATIONS_IN.get(op, 1) * self.span(used, skip=inner) for op, used in self.operations)
        return size + sum(self.span(a.used, skip=inner) for a in self.accesses)

    def span(self, used: tuple[bool, ...], *, skip: tuple[str, ...] = ()) -> int:
        """Product of the extents of the marked axes, without those of kinds in `skip`."""
        rows = zip(self.extents, self.kinds, used, strict=True)
        return math.prod(e for e, k, u in rows if u and k not in skip)


def axis_table(state: Scheduler) -> AxisTable:
    """The axis table of a schedule state."""
    ranges = state.rngs
    extents = tuple(int(r.vmax) + 1 for r in ranges)
    place = {r: i for i, r in enumerate(ranges)}
    nodes = list(state.ast.toposort())
    stored = {u.src[0] for u in nodes if u.op is Ops.STORE}
    index_nodes = nodes_of_addresses(nodes)
    accesses = []
    for u in nodes:
        if u.op is not Ops.INDEX or u.src[0].op is not Ops.PARAM:
            continue
        param = u.src[0]
        strides, used = _strides(u.src[1], place, len(ranges))
        accesses.append(
            Access(
                slot=int(param.arg.slot), itemsize=int(param.dtype.itemsize), is_store=u in stored, strides=strides,
                used=used, elements=int(param.max_numel()),
            )
        )  # fmt: skip
    operations = tuple(
        (u.op.name if u.op is not Ops.REDUCE else u.arg[0].name, _marks(_varies_with(u), place))
        for u in nodes
        if (u.op in GroupOp.ALU or u.op is Ops.REDUCE or u.op is Ops.WMMA) and u not in index_nodes
    )
    return AxisTable(
        extents=extents,
        kinds=tuple(r.arg[-1].name for r in ranges),
        accesses=tuple(accesses),
        operations=operations,
        tensor_core=any(u.op is Ops.WMMA for u in nodes),
    )


def nodes_of_addresses(nodes: list[UOp]) -> set[UOp]:
    """Those of a kernel's nodes (each after its sources) that addresses in buffers are computed from."""
    found: set[UOp] = set()
    for u in reversed(nodes):
        if u in found:
            found.update(u.src)
        elif u.op is Ops.INDEX and u.src[0].op is Ops.PARAM:
            found.update(u.src[1:])
    return found


def _varies_with(node: UOp) -> Any:
    """The ranges over which a node is computed: a reduction runs over those of its source."""
    return node.src[0].ranges if node.op is Ops.REDUCE else node.ranges


def _marks(ranges: Any, place: dict[UOp, int]) -> tuple[bool, ...]:
    marks = [False] * len(place)
    for r in ranges:
        if r in place:
            marks[place[r]] = True
    return tuple(marks)


_INTEGER: dict[Any, Callable[[Any, Any], Any]] = {
    Ops.ADD: operator.add,
    Ops.SUB: operator.sub,
    Ops.MUL: operator.mul,
    Ops.FLOORDIV: lambda a, b: a // np.where(b == 0, 1, b),
    Ops.CDIV: lambda a, b: np.trunc(a / np.where(b == 0, 1, b)).astype(np.int64),
    Ops.FLOORMOD: lambda a, b: a % np.where(b == 0, 1, b),
    Ops.CMOD: lambda a, b: np.fmod(a, np.where(b == 0, 1, b)).astype(np.int64),
    Ops.MAX: np.maximum,
    Ops.CMPLT: operator.lt,
    Ops.CMPNE: operator.ne,
    Ops.CMPEQ: operator.eq,
    Ops.AND: operator.and_,
    Ops.OR: operator.or_,
    Ops.XOR: operator.xor,
    Ops.SHL: operator.lshift,
    Ops.SHR: operator.rshift,
}


def _strides(expression: UOp, place: dict[UOp, int], count: int) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Elements moved by one step along each axis from the origin, and which axes the expression depends on.

    A value loaded from memory (a gather) counts as zero: its stride is unknown.
    """
    points = count + 1  # the origin, then one step along each axis
    values: dict[UOp, Any] = {}
    used = [False] * count
    for node in expression.toposort():
        if node.op is Ops.RANGE and node in place:
            at = np.zeros(points, np.int64)
            at[place[node] + 1] = 1
            used[place[node]] = True
            values[node] = at
        elif node.op is Ops.CONST:
            values[node] = 0 if isinstance(node.arg, InvalidType) else int(node.arg)
        elif node.op is Ops.WHERE:
            # the gate hides elements but does not move them: follow the side that is an address
            picked = node.src[1] if not _is_invalid(node.src[1]) else node.src[2]
            values[node] = values[picked]
        elif node.op is Ops.CAST:
            values[node] = values[node.src[0]]
        elif node.op in _INTEGER and len(node.src) == 2:
            with np.errstate(all="ignore"):
                values[node] = _INTEGER[node.op](values[node.src[0]], values[node.src[1]])
        else:
            values[node] = 0
    final = np.broadcast_to(np.asarray(values[expression], np.int64), (points,))
    return tuple(int(x) for x in final[1:] - final[0]), tuple(used)


def _is_invalid(node: UOp) -> bool:
    return node.op is Ops.CONST and isinstance(node.arg, InvalidType)
