"""Attention: a product of rows' weights, which are made of another product, with values, in one loop over the keys.

It is told by dependence, not by name. The weights are terms of sums that are shifted by a maximum of their row
(`online.py`), and what they are made of is a contraction over ranges of its own. So a program needs neither all scores
of a row nor its maximum: it goes through the keys in blocks, keeps for each row the largest score so far, and corrects
its sums where that rises. (Dao et al., FlashAttention, 2022.)
"""

from __future__ import annotations

import math
from dataclasses import replace

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.tile.contraction import describe_operand, described_block, interpreted_type, operand_block
from kcg.kernel.tile.descriptors import Described
from kcg.kernel.tile.emit import TYPES, Block, Frame, Lines, Writer, compute_type
from kcg.kernel.tile.epilogue import store_tile
from kcg.kernel.tile.ir import (
    Operand,
    Stream,
    TileKernel,
    contraction_of,
    extent,
    factors_of,
    product_dtype,
)
from kcg.kernel.tile.online import running, shifted_sums
from kcg.kernel.tile.parameters import TMA, TileParameters
from kcg.kernel.tile.program import TileRefusal
from kcg.kernel.tile.reduction import masked_term
from kcg.kernel.tile.tiles import Axis, bind_axis, bind_scalar, open_frame, split_number, start_of, total_of

BOTH = frozenset({0, 1})
WIDEST = 256  # elements of a query, and of a value
LEAST = 16


def stream_of(kernel: TileKernel) -> Stream:
    """How the value is a product of weights with values. Raises TileRefusal where it is none."""
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
    scores = contraction_of((score,), over)
    if scores is None or scores.sides[1].ranges != (len(over) - 1,) or set(kernel.outputs) != rows_of | set(columns):
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
    return Stream(scores, maximum, sums, product, weights[0].node, Operand(tuple(values), (), dtype), rows, columns)


def padded(axes: tuple[UOp, ...]) -> int:
    """Elements of a block that holds all of some ranges."""
    return max(LEAST, 1 << (math.prod(map(extent, axes)) - 1).bit_length())


def stream_axes(kernel: TileKernel) -> tuple[tuple[int, ...], ...]:
    """The only axis of the tile of an attention: the ranges of its queries."""
    assert kernel.stream is not None
    return (tuple(kernel.outputs.index(axis) for axis in kernel.stream.rows),)


def write_stream(kernel: TileKernel, parameters: TileParameters, writer: Writer) -> tuple[Lines, int]:
    """Writes the program: some queries of each; and how many there are. Raises TileRefusal."""
    stream = kernel.stream
    assert stream is not None
    if parameters.axes != stream_axes(kernel):
        raise TileRefusal("axes", "the tile's only axis has the queries")
    (height,), step = parameters.tile, parameters.reduce_tile
    inner, width = padded(stream.scores.reduce.src[1:]), padded(stream.columns)
    if min(height, step) < LEAST or max(inner, width) > WIDEST:
        raise TileRefusal("tile", f"a tensor core takes at least {LEAST}, and a row has at most {WIDEST} elements")
    rows, keys = Axis(stream.rows, height), Axis((stream.keys,), step)
    terms, columns = Axis(tuple(stream.scores.reduce.src[1:]), inner), Axis(stream.columns, width)
    top = open_frame(kernel, writer, ())
    rest = tuple(r for r in kernel.outputs if r not in (*stream.rows, *stream.columns))
    counts = [*(extent(r) for r in rest), rows.tiles]
    grid = math.prod(counts)
    if grid >= 1 << 31:
        raise TileRefusal("grid", "2^31 programs or more")
    query = key = value = None
    if parameters.loads == TMA:
        query = describe_operand(stream.scores.sides[0], kernel, (rows, terms), top)
        key = describe_operand(stream.scores.sides[1], kernel, (terms, keys), top)
        value = describe_operand(stream.values, kernel, (keys, columns), top)
        if key is None and value is None:
            raise TileRefusal("loads", "no operand lies in memory as TMA takes it")
    digits = split_number(top, top.lines.name("tl.program_id(0)", "program"), counts)
    for axis, digit in zip(rest, digits[:-1], strict=True):
        bind_scalar(top, axis, digit)
    start = start_of(top, digits[-1], rows)

    frame = Frame(top.lines, (height, inner), outer=top)
    bind_axis(frame, rows, 0, start)
    bind_axis(frame, terms, 1, "0")
    reduced = frozenset(stream.scores.reduce.src[1:])
    queries = _block(stream.scores.sides[0], frame, query, (start, "0"), 1, reduced)

    outer = Frame(top.lines, (height, step), outer=top)
    bind_axis(outer, rows, 0, start)
    body, counter = Lines(writer, top.lines), writer.fresh("k")
    vector = body.name(f"{counter} + tl.arange(0, {step})", "i")
    of_keys = Frame(body, (inner, step), outer=top)
    bind_axis(of_keys, terms, 0, "0")
    bind_axis(of_keys, keys, 1, counter, vector=vector)
    taken = _block(stream.scores.sides[1], of_keys, key, ("0", counter), 0, reduced)
    of_values = Frame(body, (step, width), outer=top)
    bind_axis(of_values, keys, 0, counter, vector=vector)
    bind_axis(of_values, columns, 1, "0")
    scores = outer.inner(body)
    bind_axis(scores, keys, 1, counter, vector=vector)
    precision = f', input_precision="{parameters.precision}"' if queries.type == "float32" else ""
    text = body.name(f"tl.dot({queries.text}, {taken.text}{precision}, out_dtype=tl.float32)", "score")
    score = scores.cast(Block(text, "float32", BOTH), compute_type(stream.scores.reduce))
    scores.bound[stream.scores.reduce] = score

    largest, new, sums = writer.fresh("largest"), writer.fresh("new"), writer.fresh("acc")
    top.lines.add(f'{largest} = tl.full([{height}, 1], float("-inf"), tl.float32)')
    term = scores.atom(masked_term(stream.maximum, scores, 1))
    body.add(f"{new} = tl.maximum({largest}, tl.max({term}, 1, keep_dims=True))")
    # of nothing but -inf so far the shift is 0: the terms are 0 then, not NaN
    shift = body.name(f'tl.where({new} == float("-inf"), 0.0, {new})', "shift")
    totals = []
    for one in stream.sums:
        stand_in, node = running(stream.maximum, one)
        scores.bound[stand_in] = Block(shift, compute_type(stream.maximum), frozenset({0}))
        total = writer.fresh("acc")
        top.lines.add(f"{total} = tl.zeros([{height}, 1], tl.float32)")
        factor = body.name(scores.exp2(f"({shift} - {largest}) * ({one.factor!r})"), "factor")
        term = scores.atom(masked_term(node, scores, 1))
        body.add(f"{total} = {total} * {factor} + tl.sum({term}, 1, keep_dims=True)")
        totals.append(total)
    stand_in, _ = running(stream.maximum, stream.product)
    scores.bound[stand_in] = Block(shift, compute_type(stream.maximum), frozenset({0}))
    weight = _weight(stream, stream.weight.substitute({stream.maximum: stand_in}), scores)
    factor = body.name(scores.exp2(f"({shift} - {largest}) * ({stream.product.factor!r})"), "factor")
    loaded = _block(stream.values, of_values, value, (counter, "0"), 0, frozenset({stream.keys}))
    top.lines.add(f"{sums} = tl.zeros([{height}, {width}], tl.float32)")
    precision = f', input_precision="{parameters.precision}"' if loaded.type == "float32" else ""
    body.add(f"{sums} = tl.dot({weight}, {loaded.text}, {sums} * {factor}{precision}, out_dtype=tl.float32)")
    body.add(f"{largest} = {new}")
    end, _ = total_of(top, (stream.keys,))
    options = ", warp_specialize=True" if parameters.warp_specialize else ""
    how = f"tl.range(0, {end}, {step}{options})" if options else f"range(0, {end}, {step})"
    top.lines.extend(f"for {counter} in {how}:", body)

    out = Frame(top.lines, (height, width), outer=top)
    bind_axis(out, rows, 0, start)
    bind_axis(out, columns, 1, "0")
    row = frozenset({0})
    out.bound[stream.maximum] = Block(largest, compute_type(stream.maximum), row)
    for one, total in zip(stream.sums, totals, strict=True):
        out.bound[one.node] = out.cast(Block(total, "float32", row), compute_type(one.node))
    product = stream.product.node
    out.bound[product] = out.cast(Block(sums, "float32", BOTH), compute_type(product))
    store_tile(out, kernel.stored[0])
    return top.lines, grid


def _block(
    side: Operand,
    frame: Frame,
    described: Described | None,
    corner: tuple[str, str],
    axis: int,
    reduced: frozenset[UOp],
) -> Block:
    """The block of an operand that begins at a corner; `axis` is that of the ranges that are reduced."""
    if described is None:
        return operand_block(side, frame, axis, reduced)
    return described_block(side, frame, described, corner)


def _weight(stream: Stream, node: UOp, scores: Frame) -> str:
    """The block of weights as a tensor core takes it, 0 where there is no key."""
    type_ = TYPES[stream.values.dtype]
    if scores.writer.interpreted:
        type_ = interpreted_type(type_)
    block = scores.narrow(node, type_)
    text = scores.atom(block)
    if (mask := scores.masks.get(1)) is not None:
        text = scores.lines.name(f"tl.where({mask}, {text}, tl.full([], 0.0, tl.{type_}))", "weight")
    return text if block.axes == BOTH else scores.lines.name(f"tl.broadcast_to({text}, {scores.shape(BOTH)})", "weight")


def can_stream_by_tma(kernel: TileKernel, parameters: TileParameters) -> bool:
    """Whether TMA can load an operand of an attention."""
    try:
        write_stream(kernel, replace(parameters, loads=TMA), Writer(kernel))
    except TileRefusal:
        return False
    return True
