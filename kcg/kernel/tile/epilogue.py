"""What becomes of a finished block: it is stored, and what else several kernels make of a contraction's result.

Of such a result a program has a tile in registers. A value at the same row may use it at the same column, at the other
one of a pair, and in reductions over neighbouring columns, such as a head: these are moves within the tile. How it is
written is `reading/branches.py`'s to say.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.reading.accesses import Stored
from kcg.kernel.reading.kernel import Branch, EpilogueUse, Pairs, TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.contraction import Finished
from kcg.kernel.tile.descriptors import Described
from kcg.kernel.tile.emit import TYPES, Block, Chosen, Frame, Lines, choice, compute_type
from kcg.kernel.tile.gluon import halves_layout, sums_layout
from kcg.kernel.tile.reduction import accumulator, reduced
from kcg.kernel.tile.tiles import Axis, bind_aligned, bind_axis

BOTH = frozenset({0, 1})
PARTS = 2  # in which blocks are stored that read the same: what one part reads is held in registers for all of them


def store_tile(
    frame: Frame, stored: Stored, described: Described | None = None, starts: tuple[str, str] = ("", "")
) -> None:
    """Stores a value in the place that it belongs to: by the descriptor of its buffer where there is one, as the block
    that begins at `starts`."""
    value = frame.narrow(stored.value, TYPES[stored.store.buffer.dtype])
    if described is not None:
        text = value.text
        if value.axes != frozenset({0, 1}):
            text = f"tl.broadcast_to({frame.atom(value)}, {frame.shape(frozenset({0, 1}))})"
        frame.lines.add(described.store(frame, starts, text))
        return
    store_value(frame, stored, value)


def store_value(frame: Frame, stored: Stored, value: Block) -> None:
    """Stores a block through pointers, or as the program stores its blocks."""
    if frame.writer.store is not None:
        frame.writer.store(frame, stored, value)
        return
    more = [gate for gate in stored.gates if gate not in stored.store.gates]
    pointer, of_pointer, conditions, axes = frame.access(stored.store, more)
    if axes | value.axes != of_pointer:
        pointer = f"{pointer} + tl.zeros({frame.shape(axes | value.axes)}, tl.int32)"
    mask = f", mask={frame.all_of(conditions)}" if conditions else ""
    frame.lines.add(f"tl.store({pointer}, {value.text}{mask})")


def store_branch(blocks: Sequence[Finished], kernel: TileKernel, branch: Branch) -> None:
    """Stores what is made of blocks of the contraction's result; nothing where they are of other columns. All are of
    one store: what several of them read is read once."""
    outer, held = blocks[0].frame, branch.use
    start, columns = blocks[0].starts[1], blocks[0].columns.total
    whole = not held.first and branch.end == columns
    lines = outer.lines if whole else Lines(outer.writer, outer.lines)
    opened = _opened(blocks, kernel, branch, lines)
    if branch.pairs is None:
        for block in opened:
            block.bind(block.frame, held.columns)
            store_tile(block.frame, branch.stored)
    else:
        is_unit = all(size == outer.sizes[1] for _, size in held.parts)  # what is summed is one value for each row
        count = PARTS if is_unit and (len(blocks) > 1 or outer.layout) else 1  # warps that compute hold more sums
        pairs = branch.pairs if is_unit else replace(branch.pairs, scaled=None)
        halves = [Halves(block, branch, pairs, count) for block in opened]
        if count > 1:
            halves[0].read(0)
        for one in halves:  # while little else is held
            one.reduce()
        for place in range(count):
            for one in halves:
                if one is halves[-1] and place + 1 < count:
                    one.read(place + 1)
                one.store(place)
    if not whole:
        conditions = [f"({start} >= {held.first})"] if held.first else []
        conditions += [f"({start} < {branch.end})"] if branch.end < columns else []
        outer.lines.extend(f"if {' & '.join(conditions)}:", lines)


@dataclass(frozen=True)
class Opened:
    """A block of which a store is made: its frame, in which the contraction's result is bound but no range."""

    frame: Frame
    use: EpilogueUse
    starts: tuple[str, str]  # its first row, and its first column among those of the store

    def bind(self, frame: Frame, columns: tuple[UOp, ...], *, per: int = 1, at: int = 0) -> None:
        """Binds the block's rows, and of its columns, taken `per` at once, those from `at` on, to a frame's axes."""
        bind_axis(frame, Axis(self.use.rows, frame.sizes[0]), 0, self.starts[0])
        start = self.starts[1] if per == 1 else frame.lines.name(f"{self.starts[1]} // {per}", "start")
        bind_aligned(frame, Axis(columns, self.frame.sizes[1] // per), 1, start, (at, frame.sizes[1]))


def _opened(blocks: Sequence[Finished], kernel: TileKernel, branch: Branch, lines: Lines) -> list[Opened]:
    """The blocks of a branch. Of several stores it is chosen which one they are of: its buffers are bound."""
    held, starts = branch.use, [block.starts[1] for block in blocks]
    if held.first:
        starts = [lines.name(f"{start} - {held.first}", "start") for start in starts]
    ends = [place * held.count for place in range(1, branch.count)]
    scalars = Frame(lines, ())
    conditions = [lines.name(scalars.scalar_condition(f"{starts[0]} < {end}"), "below") for end in ends]

    pointers = {slots[0]: Chosen.of(lines, slots, conditions) for slots in branch.buffers}
    if ends:
        starts = [
            lines.name(choice(conditions, start, *(f"{start} - {end}" for end in ends)), "start") for start in starts
        ]
    opened = []
    for block, start in zip(blocks, starts, strict=True):
        frame = Frame(lines, block.frame.sizes, outer=block.frame, pointers=pointers, layout=block.frame.layout)
        result = block.frame.value(kernel.value).text
        frame.bound |= {node: Block(result, compute_type(node), BOTH) for node, _ in held.loads}
        for place, text in enumerate(conditions, 1):
            assert branch.member is not None
            frame.bound[branch.member < place] = Block(text, "int1")
        frame.reduce = functools.partial(_reduce, outer=frame, parts=dict(held.parts))
        opened.append(Opened(frame, held, (block.starts[0], start)))
    return opened


class Halves:
    """A block whose even and whose odd columns are computed apart and joined before they are stored, in `count` parts
    of the columns, 1 or 2."""

    def __init__(self, block: Opened, branch: Branch, pairs: Pairs, count: int) -> None:
        self.block, self.branch, self.pairs, self.count = block, branch, pairs, count
        frame = block.frame
        rows, accesses = set(block.use.rows), frame.writer.accesses
        self.tables = [of for of in pairs.tables if not frame.layout or not rows.isdisjoint(of[0].ranges)]
        for whole, both in pairs.tables:
            if (whole, both) not in self.tables:
                # the same for all rows: Gluon's halves of such a block lie differently
                accesses |= {node: replace(accesses[whole], node=node, address=node.src[1]) for node in both}
        height, width = frame.sizes[0], frame.sizes[1] // count
        chosen = {node: known for node, known in frame.bound.items() if node.op is Ops.CMPLT}
        self.parts, self.halves = list[Frame](), list[Frame]()
        for at in range(0, frame.sizes[1], width):
            part = Frame(frame.lines, (height, width), outer=frame.outer, pointers=frame.pointers)
            half = Frame(frame.lines, (height, width // 2), dict(chosen), outer=frame.outer, pointers=frame.pointers)
            if frame.layout:
                part.layout = sums_layout(frame.writer, width)
                half.layout = halves_layout(frame.writer, width // 2)
            block.bind(part, block.use.columns, at=at)
            block.bind(half, block.use.columns[:-1], per=2, at=at // 2)
            half.reduce = frame.reduce
            for whole, both in self.tables:
                self._bind_late(part, half, whole, both)
            self.parts.append(part)
            self.halves.append(half)

    def read(self, place: int) -> None:
        """Asks for what one part needs."""
        part, half = self.parts[place], self.halves[place]
        for whole, _ in self.tables:
            part.read(whole)
        result = {load.src[0] for load, _ in self.pairs.result}
        inside = {node for reduction in self._reductions for node in reduction.backward_slice}
        for node in UOp.sink(*self.pairs.values).toposort():
            if node.op is Ops.INDEX and node.src[0] not in result and node not in inside and node not in half.late:
                half.read(node)

    def reduce(self) -> None:
        """Computes what is summed over columns, which is the same for all parts."""
        first, *others = self.halves
        totals = {node: first.value(node) for node in self._reductions}
        for half in others:
            half.bound |= totals

    def store(self, place: int) -> None:
        """Stores one part."""
        part, half = self.parts[place], self.halves[place]
        height, width = part.sizes
        result, values = self.block.frame.bound[self.block.use.loads[0][0]], self.pairs.values
        if self.pairs.scaled is not None:  # before it is split: its rows need not move to where the columns' are
            factor, values = self.pairs.scaled
            text = part.lines.name(f"{result.text} * {self.block.frame.laid(half.atom(half.value(factor)))}")
            result = replace(result, text=text)
        if self.count > 1:
            parts = part.lines.name(f"{result.text}.reshape({height}, 2, {width}).permute(0, 2, 1).split()", "parts")
            result = replace(result, text=part.laid(f"{parts}[{place}]"))
        bind_split(half, self.pairs.result, result)
        store_joined(part, half, self.branch.stored, values)

    @property
    def _reductions(self) -> list[UOp]:
        return [node for node in UOp.sink(*self.pairs.values).toposort() if node.op is Ops.REDUCE]

    def _bind_late(self, part: Frame, half: Frame, whole: UOp, both: tuple[UOp, UOp]) -> None:
        """Has a load written and split where the first of its halves is used."""
        nodes = [(node, odd) for odd, node in enumerate(both)]
        half.late |= dict.fromkeys(both, lambda: bind_split(half, nodes, part.value(whole)))


def bind_split(half: Frame, nodes: Iterable[tuple[UOp, int]], whole: Block) -> None:
    """Binds each of some loads to the even or the odd columns of a block, in the frame of half of its columns."""
    *rows, width = half.sizes
    sizes = [str(size if axis in whole.axes else 1) for axis, size in enumerate(rows)]
    both = half.lines.name(f"{whole.text}.reshape({', '.join(sizes)}, {width}, 2).split()", "halves")
    for node, odd in nodes:
        half.bound[node] = half.cast(Block(half.laid(f"{both}[{odd}]"), whole.type, whole.axes), compute_type(node))


def store_joined(part: Frame, half: Frame, stored: Stored, values: Sequence[UOp]) -> None:
    """Stores what is computed of the even and of the odd columns apart."""
    type_ = TYPES[stored.store.buffer.dtype]
    texts = [_whole(half, half.narrow(value, type_)) for value in values]
    shape = ", ".join(map(str, part.sizes))
    joined = part.lines.name(f"tl.join({', '.join(texts)}).reshape({shape})", "joined")
    store_value(part, stored, Block(joined, type_, frozenset(range(part.rank))))


def _whole(frame: Frame, value: Block) -> str:
    """A value as a block that extends along all axes."""
    every = frozenset(range(frame.rank))
    return value.text if value.axes == every else f"tl.broadcast_to({frame.atom(value)}, {frame.shape(every)})"


def _reduce(node: UOp, frame: Frame, outer: Frame, parts: dict[UOp, int]) -> None:
    """Writes a reduction over neighbouring columns of a block into the frame that asks for it: the block's own, or that
    of its halves."""
    (axis,) = node.src[1:]
    height, width = outer.sizes
    size = parts[axis]
    inside = outer.inner(outer.lines)
    if outer.layout and size != width:
        raise UnsupportedTile("reduction beside the product", "over a part of a group's columns")
    vector = outer.lines.name(f"{outer.elements(width, 1)}[None, :]" + (f" % {size}" if size < width else ""), "cols")
    inside.bound[axis] = Block(vector, "int32", frozenset({1}))
    term = inside.cast(inside.value(node.src[0]), accumulator(node))
    if term.axes != BOTH:
        raise UnsupportedTile("reduction beside the product")
    if size == width:
        text = frame.laid(reduced(node, frame, term.text, 1))
        block = Block(frame.lines.name(text, "reduced"), accumulator(node), frozenset({0}))
    else:
        grouped = outer.lines.name(f"{term.text}.reshape({height}, {width // size}, {size})", "parts")
        total = outer.lines.name(reduced(node, frame, grouped, 2), "reduced")
        asked = frame.sizes[1]
        shape = f"[{height}, {width // size}, {size * asked // width}]"
        text = f"tl.broadcast_to({total}, {shape}).reshape({height}, {asked})"
        block = Block(outer.lines.name(text, "reduced"), accumulator(node), BOTH)
    frame.bound[node] = frame.values[node] = frame.cast(block, compute_type(node))
