"""Attention: a product of rows' weights, which are made of another product, with values, in one loop over the keys.

It is told by dependence, not by name. The weights are terms of sums that are shifted by a maximum of their row
(`online.py`), and what they are made of is a contraction over ranges of its own. So a program needs neither all scores
of a row nor its maximum: it goes through the keys in blocks, keeps for each row the largest score so far, and corrects
its sums where that rises. (Dao et al., FlashAttention, 2022.)

Masks are computed where they matter: blocks of which every query of the tile has weights for every key have a loop of
their own, without a causal mask or a bound of the keys.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kcg.compat.tiny import AxisType, Ops, UOp, dtypes
from kcg.kernel.tile.contraction import describe_operand, described_block, interpreted_type, operand_block
from kcg.kernel.tile.descriptors import Described
from kcg.kernel.tile.emit import TYPES, Block, Frame, Lines, Writer, compute_type
from kcg.kernel.tile.epilogue import store_tile
from kcg.kernel.tile.ir import (
    BufferSlot,
    Contraction,
    Factor,
    Operand,
    Shifted,
    Stored,
    Stream,
    TileKernel,
    access_of,
    affine,
    extent,
    factors_of,
    is_symbolic,
    kernel_of,
    product_dtype,
)
from kcg.kernel.tile.online import linear, running, scaled, shifted_sums
from kcg.kernel.tile.parameters import TMA, TileParameters
from kcg.kernel.tile.program import TileRefusal
from kcg.kernel.tile.reduction import accumulator, masked_term
from kcg.kernel.tile.tiles import (
    Axis,
    bind_axis,
    bind_scalar,
    flat_place,
    open_frame,
    split_number,
    start_of,
    total_of,
)

BOTH = frozenset({0, 1})
WIDEST = 256  # elements of a query, and of a value
LEAST = 16
KEPT_BYTES = 32 << 20  # of keys and values that L2 keeps while programs go through them (FlashAttention-3's limit)
OUT = 'float("-inf")'
"""The score of a key that is left out."""
MOST_QUERIES = 128  # of one program
APART_ROWS = 64  # of a tile: with fewer a loop waits for its loads, and a second one would wait twice
OPENING = 2  # blocks of keys that take as long as what a program does beside its blocks: a guess


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


@dataclass(frozen=True)
class Partials:
    """Where a part of the keys leaves what it came to, in float32: for each row the weighted values, then the largest
    score of each row, then each sum."""

    rows: int
    columns: int
    sums: int

    @staticmethod
    def of(kernel: TileKernel, rows: int = 0) -> Partials:
        """Of all rows, or of so many."""
        assert kernel.stream is not None
        every, columns = (math.prod(map(extent, ranges)) for ranges in (all_rows(kernel), kernel.stream.columns))
        return Partials(rows or every, columns, len(kernel.stream.sums))

    @property
    def count(self) -> int:
        """Values of one part, in whole blocks of 16 bytes."""
        return -(-self.rows * (self.columns + 1 + self.sums) // 4) * 4

    def of_rows(self, number: int) -> int:
        """The first of the largest scores, or of a sum from 1 on."""
        return self.rows * (self.columns + number)


def stream_tiles(kernel: TileKernel, height: int) -> int:
    """Tiles of so many queries of an attention, of all heads."""
    assert kernel.stream is not None
    rows = math.prod(map(extent, kernel.stream.rows))
    return math.prod(map(extent, all_rows(kernel))) // rows * -(-rows // height)


def may_share_keys(kernel: TileKernel) -> bool:
    """Whether programs may share the keys of an attention's last tiles: as many of each tile, known beforehand."""
    stream = kernel.stream
    if stream is None or any(map(is_symbolic, (*kernel.outputs, stream.keys))):
        return False
    return reach_of(stream) is None


@dataclass(frozen=True)
class KeyTail:
    """The tiles of a last wave that is not full: `count` programs share the blocks of keys of each.

    They are last in the grid, the first parts of all tiles before the second ones and so on. Each first part has a
    multiprocessor from the start, and those left have the other parts in turn: see `_first_part`.
    """

    whole: int  # tiles that are a program each
    left: int  # tiles that are shared
    count: int
    blocks: int  # of keys
    first: int  # of these a first part has
    busy: int  # blocks that take as long as the parts of all tiles

    @staticmethod
    def of(kernel: TileKernel, parameters: TileParameters, cores: int) -> KeyTail:
        """Raises TileRefusal where there is no such wave, or where there are more parts than blocks."""
        assert kernel.stream is not None
        tiles, blocks = stream_tiles(kernel, *parameters.tile), -(-extent(kernel.stream.keys) // parameters.reduce_tile)
        left, others = tiles % max(1, cores), parameters.tail - 1
        if not left or left == tiles:
            raise TileRefusal("tail", "there is no last wave that is not full")
        if parameters.tail > blocks:
            raise TileRefusal("tail", "there are more programs than blocks of keys")
        busy, first = _first_part(left, cores - left, others, blocks)
        return KeyTail(tiles - left, left, parameters.tail, blocks, first, busy)

    @property
    def programs(self) -> int:
        return self.whole + self.left * self.count

    def partials(self, kernel: TileKernel, parameters: TileParameters) -> Partials:
        """What each part leaves, of the rows of all shared tiles."""
        return Partials.of(kernel, self.left * parameters.tile[0])

    def end_of(self, part: str) -> str:
        """The expression of the block behind the last one of a part."""
        others = self.count - 1
        return f"{self.first} + ({part} * {self.blocks - self.first} + {others - 1}) // {others}"


@functools.lru_cache(maxsize=4096)
def _first_part(tiles: int, idle: int, others: int, blocks: int) -> tuple[int, int]:
    """By how many blocks of the first part all parts of some tiles are done first; and, before it, how many blocks that
    takes. As many multiprocessors as there are tiles have a first part each, `idle` ones the others' from the start."""

    def busy(first: int) -> int:
        each, end = -(-(blocks - first) // others) + OPENING, first
        while idle * ((end + OPENING) // each) + tiles * ((end - first) // each) < tiles * others:
            end += 1
        return end

    return min((busy(first), first) for first in range(-(-blocks // (others + 1)), blocks - others + 1))


@dataclass(frozen=True)
class Taken:
    """What a program has where tiles are shared, as variables: below 0 `unit` says that it has a whole tile."""

    unit: str
    part: str  # of the tile's keys
    place: str  # of the tile among those that are shared
    tile: str

    @staticmethod
    def of(tail: KeyTail, lines: Lines, program: str) -> Taken:
        unit = lines.name(f"{program} - {tail.whole}", "unit")
        part, place = lines.name(f"{unit} // {tail.left}", "part"), lines.name(f"{unit} % {tail.left}", "place")
        tile = lines.name(f"tl.where({unit} < 0, {program}, {tail.whole} + {place})", "tile")
        return Taken(unit, part, place, tile)

    def blocks(self, tail: KeyTail, lines: Lines) -> tuple[str, str]:
        """The first block of keys that a program has, and the one behind its last."""
        begin = lines.name(f"tl.where({self.part} > 0, {tail.end_of(f'({self.part} - 1)')}, 0)", "begin")
        return begin, lines.name(f"tl.where({self.unit} < 0, {tail.blocks}, {tail.end_of(self.part)})", "end")


def write_stream(
    kernel: TileKernel, parameters: TileParameters, writer: Writer, tail: KeyTail | None = None
) -> tuple[Lines, int]:
    """Writes the program: some queries of each; and how many there are. Raises TileRefusal."""
    return StreamWriting(kernel, parameters, writer, tail).written()


class StreamWriting:
    """A program that is being written: its queries, the loop over the keys, and the result.

    Above the loop `top` has what is carried through it, each with a row for each query: the largest score so far, the
    sums of shifted terms, and the sum of weighted values. `body` is one turn of it, over `step` keys; `whole` says that
    all of these exist and are within reach of all queries.
    """

    def __init__(
        self, kernel: TileKernel, parameters: TileParameters, writer: Writer, tail: KeyTail | None = None
    ) -> None:
        assert kernel.stream is not None
        self.kernel, self.parameters, self.writer, self.stream = kernel, parameters, writer, kernel.stream
        self.tail = tail
        if parameters.axes != stream_axes(kernel):
            raise TileRefusal("axes", "the tile's only axis has the queries")
        (self.height,), self.step = parameters.tile, parameters.reduce_tile
        over = tuple(self.stream.scores.reduce.src[1:])
        self.inner, self.width = padded(over), padded(self.stream.columns)
        if min(self.height, self.step) < LEAST or max(self.inner, self.width) > WIDEST:
            raise TileRefusal("tile", f"a tensor core takes at least {LEAST}, and a row has at most {WIDEST} elements")
        self.rows, self.keys = Axis(self.stream.rows, self.height), Axis((self.stream.keys,), self.step)
        self.terms, self.columns = Axis(over, self.inner), Axis(self.stream.columns, self.width)
        self.top = open_frame(kernel, writer, ())
        self.body, self.key, self.whole = Lines(writer, self.top.lines), "", False
        self.largest, self.new = writer.fresh("largest"), writer.fresh("new")
        self.product = writer.fresh("acc")
        self.reach = reach_of(self.stream)
        self.on_scores = masks_scores(self.stream, self.reach)
        self.part = "0"  # which of the parts of the keys a program has
        self.first = "0"  # query of a program's tile
        self.taken: Taken | None = None  # where programs share the last tiles

    def written(self) -> tuple[Lines, int]:
        described = self._described()
        grid, start = self._opened(self.top, self.rows)
        sums = self._begun()
        begin, end = self._part_of(self._end(self.top, start, self.rows))
        for first, last, whole in self._loops(begin, end, start):
            self.whole = whole
            self._loop(first, last, start, described, sums)
        self._ended(start, (self.largest, *sums))
        return self.top.lines, grid

    def _loops(self, begin: str, end: str, start: str) -> list[tuple[str, str, bool]]:
        """The loops over the keys from `begin` to `end`, each with its first and its last key and whether its blocks
        are whole."""
        if not self._has_masks:
            return [(begin, end, True)]
        if self.parameters.split > 1 or self.height < APART_ROWS:
            return [(begin, end, False)]
        whole = self._whole_blocks(self.top, start, self.rows)
        if whole == "0":
            return [(begin, end, False)]
        middle = self.top.lines.name(f"{whole} * {self.step}", "whole")
        return [(begin, middle, True), (middle, end, False)]

    @property
    def _has_masks(self) -> bool:
        """Whether a block of keys has any that do not exist, or that a query of the tile does not reach."""
        keys = self.stream.keys
        return self.reach is not None or is_symbolic(keys) or extent(keys) % self.step != 0

    def _loop(
        self, first: str, last: str, start: str, described: tuple[Described | None, ...], sums: Sequence[str]
    ) -> None:
        """One loop over keys."""
        query, key, value = described
        self.body, self.key = Lines(self.writer, self.top.lines), self.writer.fresh("k")
        keys = self.body.name(f"{self.key} + tl.arange(0, {self.step})", "i")
        self.new = self.writer.fresh("new")
        scores = self._scores(query, key, start, keys)
        shift = self._shift(scores)
        for one, total in zip(self.stream.sums, sums, strict=True):
            self._sum(one, total, scores, shift)
        self._weighted(value, scores, shift, keys)
        self.body.add(f"{self.largest} = {self.new}")
        self.top.lines.extend(f"for {self.key} in range({first}, {last}, {self.step}):", self.body)

    def _begun(self, scores: str = "", values: str = "") -> list[str]:
        """What is carried through the loop, before it; the names of the sums. The layouts of what has a score's and
        of what has a value's rows are said where the program has any."""
        lines, rows = self.top.lines, f"[{self.height}, 1]"
        of_scores, of_values = (f", {layout}" if layout else "" for layout in (scores, values))
        lines.add(f'{self.largest} = tl.full({rows}, float("-inf"), tl.float32{of_scores})')
        sums = [self.writer.fresh("acc") for _ in self.stream.sums]
        for total in sums:
            lines.add(f"{total} = tl.full({rows}, 0.0, tl.float32{of_scores})")
        lines.add(f"{self.product} = tl.full([{self.height}, {self.width}], 0.0, tl.float32{of_values})")
        return sums

    def _described(self) -> tuple[Described | None, ...]:
        """The descriptors of queries, keys and values; None of what pointers load."""
        if self.parameters.loads != TMA:
            return None, None, None
        queries, keys = self.stream.scores.sides
        query = describe_operand(queries, self.kernel, (self.rows, self.terms), self.top)
        key = describe_operand(keys, self.kernel, (self.terms, self.keys), self.top)
        value = describe_operand(self.stream.values, self.kernel, (self.keys, self.columns), self.top)
        if key is None and value is None:
            raise TileRefusal("loads", "no operand lies in memory as TMA takes it")
        return query, key, value

    def _opened(self, frame: Frame, tile: Axis) -> tuple[int, str]:
        """How many programs there are, and at which query this one begins, which has so many as `tile`; binds what is a
        program each."""
        rest = tuple(r for r in self.kernel.outputs if r not in (*self.stream.rows, *self.stream.columns))
        counts = [self.parameters.split, *(extent(r) for r in rest), tile.tiles]
        if (grid := math.prod(counts)) >= 1 << 31:
            raise TileRefusal("grid", "2^31 programs or more")
        program = frame.lines.name("tl.program_id(0)", "program")
        if self.tail is not None:
            self.taken = Taken.of(self.tail, frame.lines, program)
            grid, program = self.tail.programs, self.taken.tile
        if self.reach is None or tile.tiles == 1:
            self.part, *digits, number = split_number(frame, program, counts)
        else:
            digits, number = self._longest_first(frame, program, [extent(r) for r in rest], tile)
        for axis, digit in zip(rest, digits, strict=True):
            bind_scalar(frame, axis, digit)
        self.first = start_of(frame, number, tile)
        return grid, self.first

    def _longest_first(self, frame: Frame, program: str, heads: list[int], tile: Axis) -> tuple[list[str], str]:
        """Which head and which tile a program has, where the last queries have most keys: of some heads together the
        last tiles are first, so that short ones fill the last wave. L2 keeps the keys and values of so many heads."""
        assert self.reach is not None
        lines, count = frame.lines, math.prod(heads)
        sides = (self.inner, self.stream.scores.sides[1]), (self.width, self.stream.values)
        nbytes = extent(self.stream.keys) * sum(size * side.dtype.itemsize for size, side in sides)
        together = max(n for n in range(1, count + 1) if count % n == 0 and (n == 1 or n * nbytes <= KEPT_BYTES))
        place = tile.ranges.index(self.reach.axis)
        outer = math.prod(map(extent, tile.ranges[:place])) if self.reach.is_aligned(tile) else 1
        tiles = tile.tiles // outer  # along the axis
        counts = [self.parameters.split, count // together, tiles, together, outer]
        self.part, group, turn, head, row = split_number(frame, program, counts)
        number = lines.name(f"{tiles - 1} - {turn}") if tiles > 1 else "0"
        if outer > 1:
            number = lines.name(f"{row} * {tiles} + {number}")
        if group != "0":
            head = lines.name(f"{group} * {together} + {head}")
        return split_number(frame, head, heads), number

    def _end(self, frame: Frame, start: str, tile: Axis) -> str:
        """How many keys a tile of queries that begins at `start` has weights for, or some more."""
        total, _ = total_of(frame, (self.stream.keys,))
        if self.reach is None:
            return total
        first, more = self._numbers(frame, start, tile)  # a tile that goes on with 0 has been to the last one before
        return frame.lines.name(f"tl.minimum({total}, {first} + {more + self.reach.keys})", "end")

    def _numbers(self, frame: Frame, start: str, tile: Axis) -> tuple[str, int]:
        """The number by which the reach of a tile's first query grows, and how much larger it may be of a later one."""
        assert self.reach is not None
        place = tile.ranges.index(self.reach.axis)
        inner, first = math.prod(map(extent, tile.ranges[place + 1 :])), start
        if inner > 1:
            first = frame.lines.name(f"{first} // {inner}")
        if place:
            first = frame.lines.name(f"{first} % {extent(self.reach.axis)}")
        return first, -(-(tile.size - 1) // inner)

    def _whole_blocks(self, frame: Frame, start: str, tile: Axis) -> str:
        """Of a tile of queries that begins at `start`: how many blocks, from the first key on, have only keys that
        exist and that each query reaches."""
        total, _ = total_of(frame, (self.stream.keys,))
        if self.reach is None:
            return str(int(total) // self.step) if total.isdigit() else frame.lines.name(f"{total} // {self.step}")
        first, more = self._numbers(frame, start, tile)
        if not self.reach.is_aligned(tile):  # it may go on with 0
            last = extent(self.reach.axis) - 1 - more
            first = frame.lines.name(f"tl.where({first} > {last}, 0, {first})")
        keys = f"tl.minimum({total}, {first} + {self.reach.keys})"
        return frame.lines.name(f"tl.maximum({keys}, 0) // {self.step}", "blocks")

    def _part_of(self, end: str) -> tuple[str, str]:
        """The keys of a program's part of all up to `end`, in whole steps: of short ones the last parts have none."""
        split, lines = self.parameters.split, self.top.lines
        if self.tail is not None and self.taken is not None:
            begin, behind = self.taken.blocks(self.tail, lines)
            return f"{begin} * {self.step}", f"{behind} * {self.step}"
        if split == 1:
            return "0", end
        chunk = lines.name(f"({end} + {self.step * split - 1}) // {self.step * split} * {self.step}", "chunk")
        begin = lines.name(f"{self.part} * {chunk}", "begin")
        return begin, lines.name(f"tl.minimum({begin} + {chunk}, {end})", "end")

    def _scores(self, query: Described | None, key: Described | None, start: str, keys: str) -> Frame:
        """The frame of one block of scores, in which they are bound; the queries are loaded above the loop."""
        node = self.stream.scores.reduce
        reduced = frozenset(node.src[1:])
        of_queries = self._frame(self.top.lines, (self.rows, start), (self.terms, "0"))
        queries = _block(self.stream.scores.sides[0], of_queries, query, (start, "0"), 1, reduced)
        of_keys = Frame(self.body, (self.inner, self.step), outer=self.top)
        bind_axis(of_keys, self.terms, 0, "0")
        bind_axis(of_keys, self.keys, 1, self.key, vector=keys, whole=self.whole)
        taken = _block(self.stream.scores.sides[1], of_keys, key, ("0", self.key), 0, reduced)
        outer = Frame(self.top.lines, (self.height, self.step), outer=self.top)
        bind_axis(outer, self.rows, 0, start)
        scores = outer.inner(self.body)
        bind_axis(scores, self.keys, 1, self.key, vector=keys, whole=self.whole)
        text = f"tl.dot({queries.text}, {taken.text}{self._precision(queries)}, out_dtype=tl.float32)"
        self._bind_scores(scores, self.body.name(text, "score"))
        return scores

    def _bind_scores(self, scores: Frame, text: str) -> None:
        """Binds a block of scores, masked if its keys are not whole and masks are put on scores."""
        node = self.stream.scores.reduce
        if self.on_scores and not self.whole:
            text = self._masked(scores, text)
        scores.bound[node] = scores.cast(Block(text, "float32", BOTH), compute_type(node))

    def _masked(self, scores: Frame, text: str) -> str:
        """Scores that are -inf where a key does not exist or is out of reach."""
        if self.reach is not None:
            condition, first, _ = self.reach.mask.src
            one, other = (text, OUT) if first is self.reach.kept else (OUT, text)
            text = scores.lines.name(f"tl.where({scores.value(condition).text}, {one}, {other})", "score")
        if (exists := scores.masks.get(1)) is not None:
            text = scores.lines.name(f"tl.where({exists}, {text}, {OUT})", "score")
        return text

    def _term(self, node: UOp, scores: Frame) -> str:
        """What a block of keys adds to a reduction along each row."""
        node = node.replace(src=(self._within(node.src[0]), *node.src[1:]))
        if self.on_scores:
            return scores.atom(scores.cast(scores.value(node.src[0]), accumulator(node)))
        return scores.atom(masked_term(node, scores, 1))

    def _shift(self, scores: Frame) -> str:
        """What the exponents of this turn are shifted by: the largest score of each row so far."""
        score, factor = scaled(self._within(self.stream.maximum.src[0]))
        if factor <= 0:
            score, factor = self._within(self.stream.maximum.src[0]), 1.0
        term = self._term(self.stream.maximum.replace(src=(score, *self.stream.maximum.src[1:])), scores)
        largest = f"tl.max({term}, 1, keep_dims=True)" + (f" * {factor!r}" if factor != 1 else "")
        self.body.add(f"{self.new} = tl.maximum({self.largest}, {largest})")
        # of nothing but -inf so far the shift is 0: the terms are 0 then, not NaN
        return self.body.name(f'tl.where({self.new} == float("-inf"), 0.0, {self.new})', "shift")

    def _within(self, node: UOp) -> UOp:
        """A value without the mask that all keys of a whole block pass, or that is put on scores."""
        return self.reach.within(node) if self.reach is not None and (self.whole or self.on_scores) else node

    def _corrected(self, one: Shifted, scores: Frame, shift: str) -> tuple[UOp, UOp, str]:
        """Let the terms of a sum be shifted by the maximum so far: what stands for the maximum in them, the sum of
        these, and the factor by which the sum so far changes."""
        stand_in, node = running(self.stream.maximum, one)
        scores.bound[stand_in] = Block(shift, compute_type(self.stream.maximum), frozenset({0}))
        exponent = f"({shift} - {self.largest}) * ({one.factor!r})"
        return stand_in, node, self.body.name(scores.exp2(exponent), "factor")

    def _sum(self, one: Shifted, total: str, scores: Frame, shift: str) -> None:
        """Adds to a sum of shifted terms along each row."""
        _, node, factor = self._corrected(one, scores, shift)
        term = self._term(node, scores)
        self.body.add(f"{total} = {total} * {factor} + tl.sum({term}, 1, keep_dims=True)")

    def _weights(self, scores: Frame, shift: str) -> tuple[str, str]:
        """The weights of values as a tensor core takes them, and the factor by which their sum so far changes."""
        stream = self.stream
        stand_in, _, factor = self._corrected(stream.product, scores, shift)
        weight = self._within(stream.weight.substitute({stream.maximum: stand_in}))
        return _weight(stream, weight, scores, masked=not self.on_scores), factor

    def _weighted(self, value: Described | None, scores: Frame, shift: str, keys: str) -> None:
        """Adds to the sum of values, weighted."""
        stream = self.stream
        weight, factor = self._weights(scores, shift)
        of_values = Frame(self.body, (self.step, self.width), outer=self.top)
        bind_axis(of_values, self.keys, 0, self.key, vector=keys, whole=self.whole)
        bind_axis(of_values, self.columns, 1, "0")
        loaded = _block(stream.values, of_values, value, (self.key, "0"), 0, frozenset({stream.keys}))
        dot = (
            f"tl.dot({weight}, {loaded.text}, {self.product} * {factor}{self._precision(loaded)}, out_dtype=tl.float32)"
        )
        self.body.add(f"{self.product} = {dot}")

    def _ended(self, start: str, of_rows: Sequence[str], layouts: tuple[str, str] = ("", "")) -> None:
        """What becomes of the sums, below the loop: the result of whole tiles, what is left of parts. `of_rows` are the
        largest score and the sums of each row; `layouts` are those of values and of what a row has one of."""
        lines = self.top.lines
        if self.parameters.split > 1:
            self._left(lines, start, of_rows, layouts)
        elif self.taken is None:
            self._stored(lines, start, of_rows, layouts[0])
        else:
            whole, part = Lines(self.writer, lines), Lines(self.writer, lines)
            self._stored(whole, start, of_rows, layouts[0])
            self._left(part, start, of_rows, layouts)
            lines.extend(f"if {self.taken.unit} < 0:", whole)
            lines.extend("else:", part)

    def _stored(self, lines: Lines, start: str, of_rows: Sequence[str], layout: str) -> None:
        """The result of each query."""
        out = self._of_values(lines, start, layout)
        row, product = frozenset({0}), self.stream.product.node
        out.bound[self.stream.maximum] = Block(of_rows[0], compute_type(self.stream.maximum), row)
        for one, total in zip(self.stream.sums, of_rows[1:], strict=True):
            out.bound[one.node] = out.cast(Block(total, "float32", row), compute_type(one.node))
        out.bound[product] = out.cast(Block(self.product, "float32", BOTH), compute_type(product))
        store_tile(out, self.kernel.stored[0])

    def _left(self, lines: Lines, start: str, of_rows: Sequence[str], layouts: tuple[str, str]) -> None:
        """Leaves what a part of the keys came to for the second launch."""
        partials, part = Partials.of(self.kernel), self.part
        if self.tail is not None and self.taken is not None:
            partials, part = self.tail.partials(self.kernel, self.parameters), self.taken.part
        offset = lines.name(f"{part} * {partials.count}", "offset")
        # a block of one column, as values lie: of its stores Triton 3.6 spilled 2,240 bytes
        rows = Frame(lines, (self.height, 1), outer=self.top, layout=layouts[1])
        self._bind_rows(rows, start)
        for number, text in enumerate(of_rows):
            first = f"{offset} + {partials.of_rows(number)}"
            _store_partial(rows, first, self._place_of_row(rows), rows.laid(text), self.stream.rows)
        out = self._of_values(lines, start, layouts[0])
        row, column = self._place_of_row(out), flat_place(out, self.stream.columns)
        place = out.new(f"{row.text} * {partials.columns} + {column.text}", "int32", BOTH)
        _store_partial(out, offset, place, self.product, (*self.stream.rows, *self.stream.columns))

    def _of_values(self, lines: Lines, start: str, layout: str) -> Frame:
        """The frame of the sums of values."""
        out = Frame(lines, (self.height, self.width), outer=self.top, layout=layout)
        self._bind_rows(out, start)
        bind_axis(out, self.columns, 1, "0")
        return out

    def _bind_rows(self, frame: Frame, start: str) -> None:
        """Binds the queries of a frame, whose first axis they are."""
        bind_axis(frame, self.rows, 0, start)

    def _place_of_row(self, frame: Frame) -> Block:
        """The place of each row among those of which partials are left."""
        if self.taken is None:
            return flat_place(frame, all_rows(self.kernel))
        before = frame.lines.name(f"{self.taken.place} * {self.parameters.tile[0]} - {self.first}", "before")
        return frame.new(f"{frame.flattened[0].block.text} + {before}", "int32", frozenset({0}))

    def _frame(self, lines: Lines, *axes: tuple[Axis, str]) -> Frame:
        """A frame of some axes, each from a start on."""
        frame = Frame(lines, tuple(axis.size for axis, _ in axes), outer=self.top)
        for place, (axis, start) in enumerate(axes):
            bind_axis(frame, axis, place, start)
        return frame

    def _precision(self, block: Block) -> str:
        return f', input_precision="{self.parameters.precision}"' if block.type == "float32" else ""


def _store_partial(frame: Frame, first: str, place: Block, text: str, ranges: Sequence[UOp]) -> None:
    conditions = frame.mask_of(place.axes, ranges)
    mask = f", mask={frame.all_of(conditions)}" if conditions else ""
    frame.lines.add(f"tl.store(workspace + {first} + {place.text}, {text}{mask})")


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


def _weight(stream: Stream, node: UOp, scores: Frame, *, masked: bool) -> str:
    """The block of weights as a tensor core takes it; `masked`: 0 where there is no key, by a choice."""
    type_ = TYPES[stream.values.dtype]
    if scores.writer.interpreted:
        type_ = interpreted_type(type_)
    block = scores.narrow(node, type_)
    text = scores.atom(block)
    if masked and (mask := scores.masks.get(1)) is not None:
        text = scores.lines.name(f"tl.where({mask}, {text}, tl.full([], 0.0, tl.{type_}))", "weight")
    return text if block.axes == BOTH else scores.lines.name(f"tl.broadcast_to({text}, {scores.shape(BOTH)})", "weight")


def can_stream_by_tma(kernel: TileKernel, parameters: TileParameters) -> bool:
    """Whether TMA can load an operand of an attention."""
    try:
        write_stream(kernel, replace(parameters, loads=TMA), Writer(kernel))
    except TileRefusal:
        return False
    return True
