"""Attention: a product of rows' weights, which are made of another product, with values: how it is told.

It is told by dependence, not by name. The weights are terms of sums that are shifted by a maximum of their row
(`online.py`), and what they are made of is a contraction over ranges of its own. How its program is written is in
`stream_writing.py`, and how programs share its keys in `shared_keys.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kcg.compat.tiny import AxisType, Ops, UOp, dtypes
from kcg.kernel.tile.ir import (
    BufferSlot,
    Contraction,
    Factor,
    Operand,
    Stored,
    Stream,
    TileKernel,
    access_of,
    affine,
    extent,
    factors_of,
    kernel_of,
    product_dtype,
)
from kcg.kernel.tile.online import linear, scaled, shifted_sums
from kcg.kernel.tile.program import TileRefusal
from kcg.kernel.tile.tiles import Axis

LEAST = 16
MOST_QUERIES = 128  # of one program


def with_stream(stored: Stored, buffers: dict[UOp, BufferSlot]) -> TileKernel:
    """An attention, with how its value is a product of weights with values. Raises TileRefusal where it is none."""
    kernel = kernel_of((stored,), buffers)
    stream = _stream_of(kernel)
    if not stream.rows:  # one query for each head of keys
        kernel = kernel_of((_over_one_row(stored, stream, buffers),), buffers)
        stream = _stream_of(kernel)
    if not stream.rows:
        raise TileRefusal("several contractions", "its keys are made of its queries")
    return replace(kernel, stream=stream)


def _over_one_row(stored: Stored, stream: Stream, buffers: dict[UOp, BufferSlot]) -> Stored:
    """An attention of one query for each head of keys, over a range of one row: queries and result have it."""
    like = stream.columns[0]
    row = UOp(Ops.RANGE, like.dtype, (like.src[0].const_like(1),), (-1, AxisType.LOOP))

    def over(index: UOp) -> UOp:
        access = access_of(index, buffers)
        place = access.address + row * extent(like)
        for gate in access.gates:
            place = place.valid(gate)
        return index.replace(src=(index.src[0], place))

    queries = UOp.sink(*(factor.node for factor in stream.scores.sides[0].factors))
    at = {load: over(load) for load in _loads(queries)}
    number = stored.outputs.index(like)
    outputs = (*stored.outputs[:number], row, *stored.outputs[number:])
    return Stored(access_of(over(stored.store.node), buffers), stored.value.substitute(at), stored.gates, outputs)


def _stream_of(kernel: TileKernel) -> Stream:
    refused = TileRefusal("several contractions", "they are no terms of one sum, and no attention")
    maxima = [r for r in kernel.reductions if r.arg[0] is Ops.MAX]
    if len(maxima) != 1 or kernel.also:
        raise refused
    (maximum,) = maxima
    keys, rows_of = maximum.src[1:], set(maximum.ranges)
    shifted = shifted_sums(maximum, kernel.reductions)
    products = [one for one in shifted if set(one.node.ranges) > rows_of]
    sums = tuple(one for one in shifted if set(one.node.ranges) == rows_of)
    inner = [r for r in kernel.reductions if r is not maximum and all(r is not one.node for one in shifted)]
    if len(products) != 1 or len(inner) != 1 or len(keys) != 1 or not set(keys) <= set(inner[0].ranges):
        raise refused
    (product,), (score,) = products, inner
    columns = tuple(axis for axis in kernel.outputs if axis in product.node.ranges and axis not in rows_of)
    over = (*(axis for axis in kernel.outputs if axis in rows_of), *keys)
    scores = _scores_of(score, over)
    if scores is None or not columns or set(kernel.outputs) != rows_of | set(columns):
        raise refused
    factors = factors_of(product.node.src[0])
    weights = [f for f in factors if not set(f.node.ranges) & set(columns)]
    values = [f for f in factors if set(f.node.ranges) & set(columns)]
    if len(weights) != 1 or len(values) != 1 or weights[0].gate or values[0].gate:
        raise refused
    if set(values[0].node.ranges) & {over[n] for n in scores.sides[0].ranges}:
        raise refused
    dtype = product_dtype(product.node, [weights, values])
    if dtype is None:
        raise refused
    rows = tuple(over[n] for n in scores.sides[0].ranges)
    taken = UOp.sink(*(f.node for f in scores.sides[1].factors)), values[0].node
    if math.prod(map(extent, rows)) > MOST_QUERIES and any(len(_loads(node)) > 1 for node in taken):
        raise TileRefusal("several contractions", "its keys or values would be made again for each block of queries")
    return Stream(scores, maximum, sums, product, weights[0].node, Operand(tuple(values), (), dtype), rows, columns)


@dataclass(frozen=True)
class Reach:
    """How far keys go that a query can have a weight for: for number n of a range of the rows to key n + `keys`,
    exclusive. `mask` is the choice between what a key within reach has, `kept`, and -inf."""

    axis: UOp
    keys: int
    mask: UOp
    kept: UOp

    def is_aligned(self, tile: Axis) -> bool:
        """Whether no tile of queries goes on with the first number of the axis."""
        place = tile.ranges.index(self.axis)
        return place == 0 or math.prod(map(extent, tile.ranges[place:])) % tile.size == 0

    def within(self, node: UOp) -> UOp:
        """A value where every key is within reach."""
        found = {self.mask: self.kept}
        if self.kept.op is Ops.CONST and self.kept.arg == 0:
            sums = (one for one in node.toposort() if one.op is Ops.ADD)
            for one in sums:
                for left, right in (one.src, one.src[::-1]):
                    if scaled(right)[0] is self.mask:
                        found[one] = left
        return node.substitute(found)


def _scores_of(score: UOp, over: tuple[UOp, ...]) -> Contraction | None:
    """The product of queries with keys, whose last range is that of the keys; rows are what keys are the same for."""
    key, factors = over[-1], factors_of(score.src[0])
    number = {axis: place for place, axis in enumerate(over)}
    sides: tuple[list[Factor], list[Factor]] = ([], [])
    for factor in (f for f in factors if not f.gate):
        sides[key in factor.node.ranges].append(factor)
    if not all(sides):
        return None
    spans = [{number[axis] for f in side for axis in f.node.ranges if axis in number} for side in sides]
    rows, keys = tuple(sorted(spans[0] - spans[1])), (number[key],)
    gates = [f for f in factors if f.gate]
    if any(number.get(axis) in {*rows, *keys} for gate in gates for axis in gate.node.ranges):
        return None  # the other side has nowhere to leave its values out
    dtype = product_dtype(score, list(sides))
    if dtype is None:
        return None
    queries, taken = (Operand((*side, *gates), own, dtype) for side, own in zip(sides, (rows, keys), strict=True))
    return Contraction(score, (queries, taken), tuple(n for n in range(len(over)) if n not in (*rows, *keys)))


def reach_of(stream: Stream) -> Reach | None:
    """How far a query reaches. None where no mask bounds its keys.

    A mask is a term of the scores that is -inf where keys are not below a number that grows with the query's. What is
    shifted by the maximum of the scores is 0 there (`online.py`).
    """
    for node, factor in linear(stream.maximum.src[0]).items():
        if node is None or node.op is not Ops.WHERE or factor <= 0 or node.src[0].op is not Ops.CMPLT:
            continue
        left, right = (_steps(side) for side in node.src[0].src)
        if left is None or right is None:
            continue
        difference = {axis: left.get(axis, 0) - right.get(axis, 0) for axis in {*left, *right}}
        constant = difference.pop(None, 0)
        steps = {axis: step for axis, step in difference.items() if step}
        for row in stream.rows:
            if _is_out(node.src[2]) and steps == {stream.keys: 1, row: -1}:
                return Reach(row, -constant, node, node.src[1])  # key - query + constant < 0
            if _is_out(node.src[1]) and steps == {stream.keys: -1, row: 1}:
                return Reach(row, constant + 1, node, node.src[2])  # query - key + constant >= 0
    return None


def masks_scores(stream: Stream, reach: Reach | None) -> bool:
    """Whether a score of -inf makes all terms of its key 0: then masks are put on the scores. They count in exponents
    alone, times something positive."""
    score, largest = stream.scores.reduce, stream.maximum.src[0]
    found = linear(reach.within(largest) if reach is not None else largest)
    terms = (stream.weight, *(one.node.src[0] for one in stream.sums))
    beside = (t.toposort(gate=lambda node: node.op is not Ops.EXP2 and node is not stream.maximum) for t in terms)
    return set(found) <= {score, None} and found.get(score, 0.0) > 0 and not any(score in nodes for nodes in beside)


def _is_out(score: UOp) -> bool:
    """Whether a score is that of a key that is left out."""
    return linear(score) == {None: -math.inf}


def _steps(node: UOp) -> dict[UOp | None, int] | None:
    """As `affine`, of numbers of any integer type."""
    casts = {one: one.src[0] for one in node.toposort() if one.op is Ops.CAST and dtypes.is_int(one.dtype)}
    return affine(node.substitute(casts)) if casts else affine(node)


def _loads(node: UOp) -> list[UOp]:
    """What a value is made of."""
    return [one for one in node.toposort() if one.op is Ops.INDEX]


def padded(axes: tuple[UOp, ...]) -> int:
    """Elements of a block that holds all of some ranges."""
    return max(LEAST, 1 << (math.prod(map(extent, axes)) - 1).bit_length())


def stream_axes(kernel: TileKernel) -> tuple[tuple[int, ...], ...]:
    """The only axis of the tile of an attention: the ranges of its queries."""
    assert kernel.stream is not None
    return (tuple(kernel.outputs.index(axis) for axis in kernel.stream.rows),)


def all_rows(kernel: TileKernel) -> tuple[UOp, ...]:
    """The output ranges that number the rows of an attention: of all heads."""
    assert kernel.stream is not None
    return tuple(axis for axis in kernel.outputs if axis not in kernel.stream.columns)
