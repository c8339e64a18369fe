"""The program of an attention: one loop over the keys.

It needs neither all scores of a row nor its maximum: it goes through the keys in blocks, keeps for each row the largest
score so far, and corrects its sums where that rises. (Dao et al., FlashAttention, 2022.)

Masks are computed where they matter: blocks of which every query of the tile has weights for every key have a loop of
their own, without a causal mask or a bound of the keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kcg.compat.tiny import UOp
from kcg.kernel.tile.contraction import describe_operand, described_block, interpreted_type, operand_block
from kcg.kernel.tile.descriptors import Described
from kcg.kernel.tile.emit import TYPES, Block, Frame, Lines, Writer, compute_type
from kcg.kernel.tile.epilogue import BOTH, store_tile
from kcg.kernel.tile.ir import (
    Operand,
    Shifted,
    Stream,
    TileKernel,
    extent,
    is_symbolic,
)
from kcg.kernel.tile.online import running, scaled
from kcg.kernel.tile.parameters import TMA, TileParameters
from kcg.kernel.tile.program import TileRefusal
from kcg.kernel.tile.reduction import accumulator, masked_term
from kcg.kernel.tile.shared_keys import KeyTail, Partials, Taken
from kcg.kernel.tile.stream import LEAST, all_rows, masks_scores, padded, reach_of, stream_axes
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

WIDEST = 256  # elements of a query, and of a value
KEPT_BYTES = 32 << 20  # of keys and values that L2 keeps while programs go through them (FlashAttention-3's limit)
OUT = 'float("-inf")'
"""The score of a key that is left out."""
APART_ROWS = 64  # of a tile: with fewer a loop waits for its loads, and a second one would wait twice


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

    def _opened(self, frame: Frame, tile: Axis, program: str = "") -> tuple[int, str]:
        """How many programs there are, and at which query this one begins, which has so many as `tile`; binds what is a
        program each. `program` is its number where that is not the launch's."""
        rest = tuple(r for r in self.kernel.outputs if r not in (*self.stream.rows, *self.stream.columns))
        counts = [self.parameters.split, *(extent(r) for r in rest), tile.tiles]
        if (grid := math.prod(counts)) >= 1 << 31:
            raise TileRefusal("grid", "2^31 programs or more")
        program = program or frame.lines.name("tl.program_id(0)", "program")
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
