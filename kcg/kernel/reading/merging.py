"""ASTs with fewer reductions: those that are taken in two steps as one, and maxima before what grows with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kcg.compat.tiny import Ops, PatternMatcher, UOp, UPat, dtypes, graph_rewrite
from kcg.kernel.ast import is_invalid, is_symbolic
from kcg.kernel.reading.factors import is_zero


def with_reductions_merged(ast: UOp) -> UOp:
    """The AST with a sum of sums as one sum over all ranges: the gradient of a convolution is then a contraction. So
    with the largest of several largest, and products.

    Between them may be casts of floats, and between sums conditions that give 0 otherwise.
    """
    return _merged(ast, _place_of_sum)


def with_steps_merged(ast: UOp) -> UOp:
    """The same of the values of several kernels, one of which reduces what another one left for parts: that may have
    drawn a factor out of its sums, or scaled its maxima."""
    return _merged(ast, lambda node, how, over: _place_of_step(node, how, over) or _place_of_sum(node, how, over))


Place = tuple[int, bool]
"""Which source of a node may be reduced instead of it, and whether the node is then outside of all reductions."""
PlaceOf = Callable[[UOp, Ops, Sequence[UOp]], Place | None]


def _merged(ast: UOp, place_of: PlaceOf) -> UOp:
    return graph_rewrite(ast, _MERGED, ctx=place_of)


def _merge(ctx: PlaceOf, node: UOp) -> UOp | None:
    """A reduction of another one's results as one over the ranges of both."""
    if node.arg[0] not in (Ops.ADD, Ops.MAX, Ops.MUL):
        return None
    path, inner = list[tuple[UOp, Place]](), node.src[0]
    while (place := ctx(inner, node.arg[0], node.src[1:])) is not None:
        path.append((inner, place))
        inner = inner.src[place[0]]
    if inner.op is not Ops.REDUCE or inner.arg != node.arg or not set(node.src[1:]) & set(inner.ranges):
        return None
    if any(r.op is not Ops.RANGE for r in (*node.src[1:], *inner.src[1:])):
        return None
    term = _around(inner.src[0], [(step, place) for step, (place, outside) in path if not outside])
    merged = node.replace(src=(term, *node.src[1:], *inner.src[1:]))
    return _around(merged, [(step, place) for step, (place, outside) in path if outside])


_MERGED = PatternMatcher([(UPat(Ops.REDUCE, name="node"), _merge)])
"""The context says through which nodes a reduction may be moved."""


def _around(value: UOp, path: list[tuple[UOp, int]]) -> UOp:
    """A value in the place of what is at the end of a path of nodes."""
    for step, place in reversed(path):
        value = step.replace(src=(*step.src[:place], value, *step.src[place + 1 :]))
    return value


def with_maxima_first(ast: UOp) -> UOp:
    """The AST with the largest value of a growing function as the function of the largest value, and of a falling one
    as that of the smallest: an exponential for each row, not for each element. Only where rows have elements."""
    return graph_rewrite(ast, _MAXIMA_FIRST)


def _maximum_first(node: UOp) -> UOp | None:
    if node.arg[0] is not Ops.MAX or any(map(is_symbolic, node.src[1:])):
        return None
    path, inner, grows = list[tuple[UOp, int]](), node.src[0], True
    while (step := _monotone(inner)) is not None:
        place, growing = step
        path.append((inner, place))
        grows, inner = grows == growing, inner.src[place]
    if not any(step.op is Ops.EXP2 for step, _ in path) or inner.dtype is not node.dtype:
        return None
    found = node.replace(src=(inner if grows else inner * -1, *node.src[1:]))
    return _around(found if grows else found * -1, path)


_MAXIMA_FIRST = PatternMatcher([(UPat(Ops.REDUCE, name="node"), _maximum_first)])


def _monotone(node: UOp) -> tuple[int, bool] | None:
    """Of a function of one value beside constants which source that is, and whether it grows with it."""
    if not dtypes.is_float(node.dtype):
        return None
    if node.op is Ops.EXP2:
        return 0, True
    if node.op is Ops.RECIPROCAL and _is_positive(node.src[0]):
        return 0, False
    if node.op in (Ops.ADD, Ops.MUL):
        for place, other in ((0, node.src[1]), (1, node.src[0])):
            if other.op is not Ops.CONST or is_invalid(other) or not math.isfinite(number := float(other.arg)):
                continue
            if node.op is Ops.ADD or number:
                return place, node.op is Ops.ADD or number > 0
    return None


def _is_positive(node: UOp) -> bool:
    """Whether a value is a sum of a positive number and an exponential."""
    if node.op is not Ops.ADD:
        return False
    return any(
        one.op is Ops.CONST and not is_invalid(one) and float(one.arg) > 0 and power.op is Ops.EXP2
        for one, power in (node.src, node.src[::-1])
    )


def _place_of_sum(node: UOp, how: Ops, _over: Sequence[UOp]) -> Place | None:
    """Of a node which source may be a sum that can be added up outside of it, or the largest of some."""
    if node.op is Ops.CAST and dtypes.is_float(node.dtype) and dtypes.is_float(node.src[0].dtype):
        return 0, False
    if how is not Ops.ADD:
        return None
    if node.op is Ops.WHERE and is_zero(node.src[2]):
        return 1, False
    if node.op is Ops.WHERE and is_zero(node.src[1]):
        return 2, False
    return None


def _place_of_step(node: UOp, how: Ops, over: Sequence[UOp]) -> Place | None:
    """The same of a growing function of a maximum, and of a product of a sum and what is the same for all of the ranges
    that are summed over, which is then multiplied with once."""
    if how is Ops.MAX:
        of = _monotone(node)
        return (of[0], False) if of is not None and of[1] else None
    if how is Ops.ADD and node.op is Ops.MUL and dtypes.is_float(node.dtype):
        for place, other in ((0, node.src[1]), (1, node.src[0])):
            if not set(over) & set(other.ranges) and set(over) & set(node.src[place].ranges):
                return place, True
    return None
