"""Sums that choose: tinygrad looks a row of a table up by a sum over all rows, of which all but one are zeros.

No order of summation changes such a sum, whatever it is summed in. A long one is made in two steps, of parts of the
table and then of what these came to, all but one of them zeros again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kcg.compat.tiny import DType, Ops, UOp
from kcg.kernel.ast import Affine, affine, buffer_of, extent, store_of, without_gates

Along = frozenset[tuple[int, int]]
"""How far an address moves along some ranges, and their extents."""


@dataclass(frozen=True)
class _Parts:
    """What a first step leaves: a buffer, and along what all but one of its elements are zeros."""

    elements: int
    dtype: DType
    along: Along


def choosing_sums(asts: Iterable[UOp]) -> frozenset[UOp]:
    """The sums of some kernels in which at most one term is not zero. The second step of one is known by its geometry:
    it sums a buffer as large as what a first step leaves, along what that one's choice went on."""
    sums = [(ast, node) for ast in asts for node in ast.toposort() if node.op is Ops.REDUCE and node.arg[0] is Ops.ADD]
    found, parts = set[UOp](), set[_Parts]()
    for ast, node in sums:
        if (deciding := _deciding(node)) is None:
            continue
        found.add(node)
        if (left := _left(ast, node, deciding)) is not None:
            parts.add(left)
    return frozenset(found | {node for _, node in sums if _summed(node) in parts})


def _deciding(node: UOp) -> frozenset[UOp] | None:
    """Of a sum whose terms are zeros but where a sum of ranges is some number: the ranges that decide beside those that
    are summed over; None where it is another one."""
    term, summed = node.src[0], set(node.src[1:])
    if term.op is not Ops.WHERE:
        return None
    condition, *values = term.src
    zeros = [value.op is Ops.CONST and value.arg == 0 for value in values]
    is_equal = zeros[0]  # of `a != b`: where they are equal the second value is there
    while condition.op is Ops.CMPNE and condition.src[1].op is Ops.CONST and condition.src[1].arg is True:
        condition, is_equal = condition.src[0], not is_equal
    if condition.op is not Ops.CMPNE or sum(zeros) != 1 or not is_equal:
        return None
    for one, other in (condition.src, condition.src[::-1]):
        steps = affine(one, through_casts=True)
        if steps is not None and summed <= set(steps) and summed.isdisjoint(other.ranges) and _tells(steps, summed):
            return frozenset(axis for axis in steps if axis is not None and axis not in summed)
    return None


def _tells(steps: Affine, axes: set[UOp]) -> bool:
    """Whether a sum of ranges is another number for each of their values."""
    width = 1
    for axis in sorted(axes, key=lambda axis: abs(steps[axis])):
        if abs(steps[axis]) < width:
            return False
        width += abs(steps[axis]) * (extent(axis) - 1)
    return True


def _left(ast: UOp, node: UOp, deciding: frozenset[UOp]) -> _Parts | None:
    """What a kernel leaves whose result is a sum that chooses among what some ranges say."""
    store = store_of(ast.src[0])
    value, _ = without_gates(store.src[1])
    target, steps = store.src[0], affine(store.src[0].src[1]) if len(store.src[0].src) == 2 else None
    if value is not node or not deciding or steps is None or not deciding <= set(steps):
        return None
    return _Parts(target.src[0].max_numel(), node.dtype, frozenset((steps[axis], extent(axis)) for axis in deciding))


def _summed(node: UOp) -> _Parts | None:
    """The buffer that a sum goes through as it stands, and along what."""
    load = node.src[0]
    steps = affine(load.src[1]) if load.op is Ops.INDEX and len(load.src) == 2 else None
    if steps is None or not set(node.src[1:]) <= set(steps):
        return None
    along = frozenset((steps[axis], extent(axis)) for axis in node.src[1:])
    return _Parts(int(buffer_of(load).max_numel()), node.dtype, along)
