"""Sums over one-hot rows: a program looks which terms its rows have, some hundred at a time, and adds those alone.

What the others would add is 0, whatever they multiply or hold, so nothing is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from kcg.compat.tiny import UOp
from kcg.kernel.ast import extent
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.one_hot import OneHot, one_hot
from kcg.kernel.tile.device import Figures
from kcg.kernel.tile.emit import Block, Frame, Lines, compute_type
from kcg.kernel.tile.reduction import WHOLE, Part, accumulator
from kcg.kernel.tile.tiles import Axis, bind_axis, bind_scalar, power_of_two, split_number

Reducer = Callable[[UOp, Frame], None]

LOOKED_AT = 16_384  # rows times terms that a program looks at once beside a product: a comparison for each
LEAST_LOOKED_AT, MOST_LOOKED_AT = 32, 1_024  # terms


def looked_at(one: OneHot, tile: Sequence[Axis]) -> int:
    """Terms at which a program looks at once, beside a product."""
    return max(LEAST_LOOKED_AT, min(MOST_LOOKED_AT, LOOKED_AT // rows_of(one, tile), power_of_two(one.terms)))


def write_one_hot(one: OneHot, frame: Frame, number: int, part: Part = WHOLE) -> Block:
    """Writes the sum into a frame whose axis `number` holds the terms that are looked at together. Returns it as a
    block of the frame, of one element along that axis."""
    ranges = tuple(one.reduce.src[1:])
    axis, writer, lines = Axis(ranges, frame.sizes[number]), frame.writer, frame.lines
    counter, total, term = writer.fresh("k"), writer.fresh("acc"), writer.fresh("term")
    body = Lines(writer, lines)
    adding = Lines(writer, body)
    looking, single = frame.inner(body), frame.inner(adding)
    vector = bind_axis(looking, axis, number, counter)
    chosen = looking.value(one.chosen)
    conditions = [chosen.text, *looking.mask_of(frozenset({number}), ())]
    text = body.name(f"({looking.all_of(conditions)}).to(tl.int32)")
    for place in sorted(chosen.axes - {number}):
        text = f"tl.max({text}, {place}, keep_dims=True)"
    found = body.name(f"{text}.reshape({axis.size}) != 0", "found")
    places = body.name(f"tl.where({found}, {vector}, {axis.total})", "places")
    body.add(f"{term} = tl.min({places}, 0)")

    for place, digit in zip(ranges, split_number(single, term, list(map(extent, ranges))), strict=True):
        bind_scalar(single, place, digit)
    type_ = accumulator(one.reduce)
    value = single.cast(single.value(one.reduce.src[0]), type_)
    shape = single.shape(value.axes)
    lines.add(f"{total} = tl.zeros({shape}, tl.{type_})")
    adding.add(f"{total} = {total} + {value.text}")
    adding.add(f"{term} = tl.min(tl.where({places} > {term}, {places}, {axis.total}), 0)")
    body.extend(f"while {term} < {axis.total}:", adding, "a term that one of the rows has")
    begin, end = "0", str(axis.total)
    if part.count > 1:
        chunk = -(-axis.total // (axis.size * part.count)) * axis.size  # whole steps
        begin = lines.name(f"{part.number} * {chunk}", "begin")
        end = lines.name(f"tl.minimum({begin} + {chunk}, {axis.total})", "end")
    about = f"which of {axis.size} of {axis.total} terms the rows have"
    lines.extend(f"for {counter} in range({begin}, {end}, {axis.size}):", body, about)
    return frame.cast(Block(total, type_, value.axes), compute_type(one.reduce))


def choosing(reduce: Reducer, number: int, part: Part) -> Reducer:
    """A reducer of frames whose axis `number` holds terms, that makes sums over one-hot rows by the terms that rows
    have, and others as `reduce` does."""

    def write(node: UOp, frame: Frame) -> None:
        frame = frame.home(node)
        one = one_hot(node) if not frame.depth else None
        if one is None:
            reduce(node, frame)
        else:
            frame.bound[node] = frame.values[node] = write_one_hot(one, frame, number, part)

    return write


def bind_one_hot_sums(kernel: TileKernel, frame: Frame, axes: tuple[Axis, Axis], starts: tuple[str, str]) -> None:
    """Has a frame of rows by columns, which begin at `starts`, make the sums over one-hot rows that a contraction is
    finished with, where they are used."""
    known = {one.reduce: one for one in kernel.one_hot_sums}

    def reduce(node: UOp, inside: Frame) -> None:
        one = known[node]
        looked = looked_at(one, axes)
        deeper = Frame(inside.lines, (*frame.sizes, looked), outer=frame.outer, words=("rows", "cols", "terms"))
        for number, (axis, start) in enumerate(zip(axes, starts, strict=True)):
            bind_axis(deeper, axis, number, start, ragged=number in frame.masks)
        total = write_one_hot(one, deeper, 2)
        shape = frame.shape(total.axes)
        frame.bound[node] = replace(total, text=frame.lines.name(f"{total.text}.reshape({shape[1:-1]})"))

    if known:
        frame.reduce = reduce


def seconds_of(one: OneHot, tile: Sequence[Axis], looked: int, f: Figures) -> tuple[float, float]:
    """Of one program, in which it waits and in which it computes. Each look waits for the numbers that it reads, and so
    does each term that one of the rows has for its own."""
    area = math.prod(axis.size for axis in tile)
    rows = rows_of(one, tile)
    looks, own = -(-one.terms // looked), min(one.terms, one.terms_of_row * rows)
    return (looks + own) * f.flight_s, (looks * rows * looked + own * area) / f.plain_ops


def rows_of(one: OneHot, tile: Sequence[Axis]) -> int:
    """Rows of a sum that a tile has."""
    return math.prod(axis.size for axis in tile if not set(axis.ranges).isdisjoint(one.rows))
