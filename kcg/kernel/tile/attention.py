"""Attention (`kcg.kernel.reading.attention`): which keys its queries reach, and the tiles of both.

How its program is written is in `flash_attention.py`, and what adds up the parts of split keys in `attention_sums.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kcg.compat.tiny import Ops, UOp, dtypes
from kcg.kernel.ast import extent
from kcg.kernel.reading.kernel import Attention
from kcg.kernel.reading.online import linear, scaled
from kcg.kernel.tile.tiles import Axis


@dataclass(frozen=True)
class Bound:
    """A key for each query: for number n of a range of the rows key n + `keys`, for all queries the same where there is
    no such range; `variables` are added to it, each times its factor."""

    axis: UOp | None
    keys: int
    variables: tuple[tuple[UOp, int], ...] = ()

    @property
    def least(self) -> int:
        """The least one, variables at their largest."""
        return self.keys + sum(int(variable.vmax) * factor for variable, factor in self.variables)

    @property
    def most(self) -> int:
        """The largest one, variables at their largest."""
        return self.least + (0 if self.axis is None else extent(self.axis) - 1)

    def is_like(self, other: Bound) -> bool:
        """Whether two differ by a number of keys."""
        return (self.axis, self.variables) == (other.axis, other.variables)

    def is_aligned(self, tile: Axis) -> bool:
        """Whether no tile of queries goes on with the first number of the axis."""
        if self.axis is None:
            return True
        place = tile.ranges.index(self.axis)
        return place == 0 or math.prod(map(extent, tile.ranges[place:])) % tile.size == 0

    def inner(self, tile: Axis) -> int:
        """Neighbouring queries that have the same number."""
        assert self.axis is not None
        return math.prod(map(extent, tile.ranges[tile.ranges.index(self.axis) + 1 :]))

    def spread(self, tile: Axis) -> int:
        """By how much the number of a tile's first query may be exceeded in it."""
        return 0 if self.axis is None else -(-(tile.size - 1) // self.inner(tile))

    def of_tile(self, tile: Axis, start: int) -> tuple[int, int]:
        """The least and the largest bound in a tile that begins at query `start`, or a larger one; variables at their
        largest."""
        if self.axis is None:
            return self.most, self.most
        count, more = extent(self.axis), self.spread(tile)
        first = start // self.inner(tile) % count
        goes_on = not self.is_aligned(tile) and first > count - 1 - more
        return self.least + (0 if goes_on else first), self.least + first + more


@dataclass(frozen=True)
class Reach:
    """Which keys a query can have a weight for: those from `lower` on and before `upper`, as far as there are bounds.
    `masks` are choices between what a key within reach has and -inf, each with what stands for it within reach."""

    lower: Bound | None = None
    upper: Bound | None = None
    masks: tuple[tuple[UOp, UOp], ...] = ()

    @property
    def is_bounded(self) -> bool:
        return self.lower is not None or self.upper is not None

    @property
    def is_even(self) -> bool:
        """Whether all queries reach as many keys, but for the first and the last ones."""
        lower, upper = (bound is not None and bound.axis is not None for bound in (self.lower, self.upper))
        return lower == upper

    def within(self, node: UOp) -> UOp:
        """A value where every key is within reach."""
        for mask, kept in self.masks:
            found = {mask: kept}
            if kept.op is Ops.CONST and kept.arg == 0:
                sums = (one for one in node.toposort() if one.op is Ops.ADD)
                for one in sums:
                    for left, right in (one.src, one.src[::-1]):
                        if scaled(right)[0] is mask:
                            found[one] = left
            node = node.substitute(found)
        return node


def reached_share(reach: Reach, keys: UOp) -> float:
    """The share of the keys that some query can have a weight for, variables at their largest."""
    begin = 0 if reach.lower is None else max(0, reach.lower.least)
    end = extent(keys) if reach.upper is None else min(extent(keys), reach.upper.most)
    return max(0, end - begin) / extent(keys)


def reach_of(attention: Attention) -> Reach:
    """How far a query reaches.

    A mask is a term of the scores that is -inf where comparisons of a key's number with a query's do not hold. What is
    shifted by the maximum of the scores is 0 there (`online.py`). Of bounds that differ by more than a number of keys
    the first one counts, and the others stay conditions.
    """
    masks = _masks_of(attention)
    bounds = {term: _bounds_of(attention, *term) for _, _, terms in masks for term in terms}
    every = [bound for found in bounds.values() for bound in found]
    lower = _tightest([bound for is_upper, bound in every if not is_upper], max)
    upper = _tightest([bound for is_upper, bound in every if is_upper], min)

    def is_implied(term: Truth) -> bool:
        chosen = [(upper if is_upper else lower, bound) for is_upper, bound in bounds[term]]
        return term[0].op is Ops.CMPLT and any(one is not None and bound.is_like(one) for one, bound in chosen)

    within = []
    for mask, kept, terms in masks:
        left = [term for term in terms if not is_implied(term)]
        if len(left) < len(terms):
            conditions = [condition if wanted else condition.logical_not() for condition, wanted in left]
            within.append((mask, _where_all(conditions, kept)))
    if lower is not None and not lower.variables and lower.most <= 0:
        lower = None  # no key is before it
    return Reach(lower, upper, tuple(within))


def _where_all(conditions: Sequence[UOp], kept: UOp) -> UOp:
    """A value where some conditions hold, else -inf."""
    if not conditions:
        return kept
    return functools.reduce(UOp.bitwise_and, conditions).where(kept, kept.const_like(-math.inf))


Truth = tuple[UOp, bool]
"""A condition and whether it is to hold."""


def _masks_of(attention: Attention) -> list[tuple[UOp, UOp, list[Truth]]]:
    """The masks of the scores: the choice, what a key has that is not left out, and what must be so for that."""
    found, terms = [], [attention.maximum.src[0]]
    while terms:
        for node, factor in linear(terms.pop()).items():
            if node is None or node.op is not Ops.WHERE or factor <= 0:
                continue
            condition, first, second = node.src
            if _is_out(first) != _is_out(second):
                kept = second if _is_out(first) else first
                found.append((node, kept, _terms(condition, kept is first)))
                terms.append(kept)
    return found


def _terms(condition: UOp, wanted: bool) -> list[Truth]:
    """What must be so for a condition to hold, or not to hold."""
    match condition.op:
        case Ops.CMPLT if (inner := _absolute(condition.src[not wanted])) is not None:  # |x| < y, or not y < |x|
            sides = (condition.substitute({condition.src[not wanted]: side}) for side in (inner, -inner))
            return [(side, wanted) for side in sides]
        case Ops.AND | Ops.OR if (condition.op is Ops.AND) == wanted:
            return [term for part in condition.src for term in _terms(part, wanted)]
        case Ops.CMPNE if condition.src[1].op is Ops.CONST and condition.src[1].dtype == dtypes.bool:
            return _terms(condition.src[0], wanted != condition.src[1].arg)
        case Ops.WHERE if all(side.op is Ops.CONST for side in condition.src[1:]):
            inner, first, second = condition.src
            if first.arg != second.arg:
                return _terms(inner, wanted == first.arg)
    return [(condition, wanted)]


def _absolute(node: UOp) -> UOp | None:
    """The number whose absolute value a value is; None of any other."""
    return node.src[0] if node.op is Ops.MUL and node.src[0].abs() is node else None


def _bounds_of(attention: Attention, condition: UOp, wanted: bool) -> list[tuple[bool, Bound]]:
    """The bounds of the keys for which a comparison holds, or does not, each behind whether it is an upper one. Of the
    same quotient are numbers that differ by less than the divisor."""
    if condition.op is Ops.CMPNE and not wanted and all(side.op is Ops.FLOORDIV for side in condition.src):
        (one, size), (other, divisor) = (side.src for side in condition.src)
        if size is divisor and size.op is Ops.CONST and size.arg > 0:
            return [*_bounds_of(attention, one < other + size, True), *_bounds_of(attention, other < one + size, True)]
    if condition.op is not Ops.CMPLT or not dtypes.is_int(condition.src[0].dtype):
        return []
    if any(dtypes.is_unsigned(node.dtype) for node in condition.toposort()):
        return []  # what is below 0 wraps around
    difference, right = (_steps(side) for side in condition.src)
    for node, factor in right.items():
        difference[node] = difference.get(node, 0) - factor
    key, constant = difference.pop(attention.keys, 0), difference.pop(None, 0)
    # key + others + constant < 0 is key < -others - constant, and others + constant - key < 0 the other way
    others = {node: -key * factor for node, factor in difference.items() if factor and node is not None}
    axes = [node for node in others if node.op is not Ops.PARAM]
    if abs(key) != 1 or len(axes) > 1 or any(axis not in attention.rows or others[axis] != 1 for axis in axes):
        return []
    variables = sorted(
        ((n, factor) for n, factor in others.items() if n.op is Ops.PARAM), key=lambda one: one[0].arg.name
    )
    keys = -constant if key > 0 else constant + 1
    return [((key > 0) == wanted, Bound(axes[0] if axes else None, keys, tuple(variables)))]


def _tightest(bounds: list[Bound], side: Callable[..., Bound]) -> Bound | None:
    """Of bounds that differ from the first one by a number of keys the largest, or the smallest."""
    return side((one for one in bounds if one.is_like(bounds[0])), key=lambda one: one.keys, default=None)


@functools.lru_cache(maxsize=4096)
def blocks_of_tiles(reach: Reach, tile: Axis, keys: int, step: int) -> tuple[int, ...]:
    """How many blocks of `step` keys each tile of queries visits; at least one."""
    counts = []
    for start in range(0, tile.total, tile.size):
        begin = 0 if reach.lower is None else max(0, reach.lower.of_tile(tile, start)[0])
        end = keys if reach.upper is None else min(keys, reach.upper.of_tile(tile, start)[1])
        counts.append(max(1, -(-end // step) - begin // step))
    return tuple(counts)


def visited_blocks(reach: Reach, tile: Axis, keys: int, step: int) -> tuple[float, int]:
    """The same of a tile, on average and at most."""
    counts = blocks_of_tiles(reach, tile, keys, step)
    return sum(counts) / len(counts), max(counts)


def masks_scores(attention: Attention, reach: Reach) -> bool:
    """Whether a score of -inf makes all terms of its key 0: then masks are put on the scores. They count in exponents
    alone, times something positive."""
    score, largest = attention.scores.reduce, attention.maximum.src[0]
    found = linear(reach.within(largest))
    terms = (attention.weight, *(one.node.src[0] for one in attention.sums))
    beside = (t.toposort(gate=lambda node: node.op is not Ops.EXP2 and node is not attention.maximum) for t in terms)
    return set(found) <= {score, None} and found.get(score, 0.0) > 0 and not any(score in nodes for nodes in beside)


def _is_out(score: UOp) -> bool:
    """Whether a score is that of a key that is left out."""
    return linear(score) == {None: -math.inf}


def _steps(node: UOp) -> dict[UOp | None, int]:
    """A number of any integer type as a sum of others times constants; at None the constant."""
    casts = {one: one.src[0] for one in node.toposort() if one.op is Ops.CAST and dtypes.is_int(one.dtype)}
    return {term: int(factor) for term, factor in linear(node.substitute(casts) if casts else node).items()}
