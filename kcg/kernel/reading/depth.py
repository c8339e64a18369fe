"""Reductions inside of reductions: how deep they are, and how often each is made."""

from __future__ import annotations

import math

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.ast import extent


def depth_of(reductions: tuple[UOp, ...]) -> int:
    """How deeply reductions are inside each other."""
    depth: dict[UOp, int] = {}
    for node in reductions:  # inner ones come first
        inner = [depth[r] for r in depth if r in node.src[0].backward_slice_with_self and is_inside(r, node)]
        depth[node] = 1 + max(inner, default=0)
    return max(depth.values(), default=0)


def loops_of(reductions: tuple[UOp, ...]) -> list[tuple[int, int, int]]:
    """Of each reduction that no other is inside of: how often it is made for a value that is stored, of how many
    elements it is, and how many reductions it is inside of, one inside the other."""
    around: dict[UOp, tuple[frozenset[UOp], int]] = {}  # the ranges of those that it is inside of, and how many
    for node in reversed(reductions):  # inner ones come first
        outer = [other for other in around if is_inside(node, other)]
        ranges = frozenset[UOp]().union(*(around[other][0] | set(other.src[1:]) for other in outer))
        around[node] = ranges, max((around[other][1] + 1 for other in outer), default=0)
    innermost = [node for node in reductions if not any(is_inside(other, node) for other in reductions)]
    return [
        (math.prod(map(extent, ranges)), math.prod(map(extent, node.src[1:])), depth)
        for node in innermost
        for ranges, depth in [around[node]]
    ]


def terms_of(sink: UOp) -> int:
    """How many terms the innermost reductions of a kernel add up for one output."""
    reductions = tuple(node for node in sink.toposort() if node.op is Ops.REDUCE)
    return sum(times * count for times, count, _ in loops_of(reductions))


def is_inside(inner: UOp, outer: UOp) -> bool:
    """Whether a reduction has to be made again in every step of another."""
    return any(r in inner.ranges for r in outer.src[1:])
