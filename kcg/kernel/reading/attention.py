"""Attention: a product of rows' weights, which are made of another product, with values: how it is told.

It is told by dependence, not by name. The weights are terms of sums that are shifted by a maximum of their row
(`online.py`), and what they are made of is a contraction over ranges of its own.
"""

from __future__ import annotations

import math
from dataclasses import replace

from kcg.compat.tiny import AxisType, Ops, UOp
from kcg.kernel.ast import extent
from kcg.kernel.reading.accesses import BufferSlot, Stored, access_of
from kcg.kernel.reading.contractions import Contraction, Operand
from kcg.kernel.reading.factors import Factor, factors_of, product_dtype
from kcg.kernel.reading.kernel import Attention, TileKernel, kernel_of
from kcg.kernel.reading.online import shifted_sums
from kcg.kernel.reading.unsupported import UnsupportedTile

LEAST = 16
WIDEST = 512  # elements of a query, and of a value: of 1,024 the registers hold 16 queries, and a step of 16 keys 64 KB
MOST_QUERIES = 128  # of one program


def with_attention(stored: Stored, buffers: dict[UOp, BufferSlot]) -> TileKernel:
    """An attention, with how its value is a product of weights with values. Raises UnsupportedTile where it is none."""
    kernel = kernel_of((stored,), buffers)
    attention = _attention_of(kernel)
    if not attention.rows:  # one query for each head of keys
        kernel = kernel_of((_over_one_row(stored, attention, buffers),), buffers)
        attention = _attention_of(kernel)
    if not attention.rows:
        raise UnsupportedTile("several products", "its keys are made of its queries")
    if (widest := max(padded(attention.scores.reduce.src[1:]), padded(attention.columns))) > WIDEST:
        raise no_attention(f"its heads take rows of {widest:,} elements, which are at most {WIDEST}")
    return replace(kernel, attention=attention)


def _over_one_row(stored: Stored, attention: Attention, buffers: dict[UOp, BufferSlot]) -> Stored:
    """An attention of one query for each head of keys, over a range of one row: queries and result have it."""
    like = attention.columns[0]
    row = UOp(Ops.RANGE, like.dtype, (like.src[0].const_like(1),), (-1, AxisType.LOOP))

    def over(index: UOp) -> UOp:
        access = access_of(index, buffers)
        place = access.address + row * extent(like)
        for gate in access.gates:
            place = place.valid(gate)
        return index.replace(src=(index.src[0], place))

    queries = UOp.sink(*(factor.node for factor in attention.scores.sides[0].factors))
    at = {load: over(load) for load in _loads(queries)}
    number = stored.outputs.index(like)
    outputs = (*stored.outputs[:number], row, *stored.outputs[number:])
    return Stored(access_of(over(stored.store.node), buffers), stored.value.substitute(at), stored.gates, outputs)


def no_attention(why: str = "") -> UnsupportedTile:
    """Several contractions that one program cannot make."""
    return UnsupportedTile("several products", f"they are no terms of one sum, and no attention{why and f' ({why})'}")


def _attention_of(kernel: TileKernel) -> Attention:
    maxima = [r for r in kernel.reductions if r.arg[0] is Ops.MAX]
    if len(maxima) != 1:
        raise no_attention(f"it has {len(maxima)} maxima, not one" if maxima else "")
    if kernel.also:
        raise no_attention("something else is stored beside its result")
    (maximum,) = maxima
    keys, rows_of = maximum.src[1:], set(maximum.ranges)
    shifted = shifted_sums(maximum, kernel.reductions)
    products = [one for one in shifted if set(one.node.ranges) > rows_of]
    sums = tuple(one for one in shifted if set(one.node.ranges) == rows_of)
    inner = [r for r in kernel.reductions if r is not maximum and all(r is not one.node for one in shifted)]
    if len(products) != 1 or len(keys) != 1:
        raise no_attention(f"{len(products)} products follow from the maximum, not one")
    if len(inner) != 1 or not set(keys) <= set(inner[0].ranges):
        raise no_attention(f"its scores are made of {len(inner)} sums, not of one product of queries and keys")
    (product,), (score,) = products, inner
    columns = tuple(axis for axis in kernel.outputs if axis in product.node.ranges and axis not in rows_of)
    over = (*(axis for axis in kernel.outputs if axis in rows_of), *keys)
    scores = _scores_of(score, over)
    if scores is None:
        raise no_attention("its scores are no product of queries and keys: .contiguous() on both may make them one")
    if not columns or set(kernel.outputs) != rows_of | set(columns):
        raise no_attention("its result is not by rows and columns of values")
    factors = factors_of(product.node.src[0])
    weights = [f for f in factors if not set(f.node.ranges) & set(columns)]
    values = [f for f in factors if set(f.node.ranges) & set(columns)]
    dtype = product_dtype(product.node, [weights, values]) if weights and values else None
    if len(weights) != 1 or len(values) != 1 or weights[0].gate or values[0].gate or dtype is None:
        raise no_attention("it sums no product of a weight and a value")
    if set(values[0].node.ranges) & {over[n] for n in scores.sides[0].ranges}:
        raise no_attention("its values differ by query")
    rows = tuple(over[n] for n in scores.sides[0].ranges)
    taken = UOp.sink(*(f.node for f in scores.sides[1].factors)), values[0].node
    if math.prod(map(extent, rows)) > MOST_QUERIES and any(len(_loads(node)) > 1 for node in taken):
        raise UnsupportedTile("several products", "its keys or values would be made again for each block of queries")
    return Attention(scores, maximum, sums, product, weights[0].node, Operand(tuple(values), (), dtype), rows, columns)


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


def _loads(node: UOp) -> list[UOp]:
    """What a value is made of."""
    return [one for one in node.toposort() if one.op is Ops.INDEX]


def padded(axes: tuple[UOp, ...]) -> int:
    """Elements of a block that holds all of some ranges."""
    return max(LEAST, 1 << (math.prod(map(extent, axes)) - 1).bit_length())
