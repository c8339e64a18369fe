"""What becomes of a finished block: it is stored, and what else several kernels make of a contraction's result.

Of such a result a program has a tile in registers. A value at the same row may use it at the same column, at the other
one of a pair, and in reductions over neighbouring columns, such as a head: these are moves within the tile. How it is
written is `branches.py`'s to say.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.tile.contraction import Finished
from kcg.kernel.tile.descriptors import Described
from kcg.kernel.tile.emit import TYPES, Block, Frame, Lines, compute_type
from kcg.kernel.tile.ir import Branch, Held, Pairs, Stored, TileKernel
from kcg.kernel.tile.program import TileRefusal
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
    """Stores a block through pointers."""
    more = [gate for gate in stored.gates if gate not in stored.store.gates]
    pointer, of_pointer, conditions, axes = frame.access(stored.store, more)
    if axes | value.axes != of_pointer:
        pointer = f"{pointer} + tl.zeros({frame.shape(axes | value.axes)}, tl.int32)"
    mask = f", mask={frame.all_of(conditions)}" if conditions else ""
    frame.lines.add(f"tl.store({pointer}, {value.text}{mask})")


def store_branch(blocks: Sequence[Finished], kernel: TileKernel, branch: Branch) -> None:
    """Stores what is made of blocks of the contraction's result; nothing where they are of other columns. All are of
    one store: what several of them read is read once."""
    outer, held = blocks[0].frame, branch.held
    start, columns = blocks[0].starts[1], blocks[0].columns.total
    whole = not held.first and branch.end == columns
    lines = outer.lines if whole else Lines(outer.writer, outer.lines)
    opened = _opened(blocks, kernel, branch, lines)
    if branch.pairs is None:
        for block in opened:
            block.bind(block.frame, held.columns)
            store_tile(block.frame, branch.stored)
    else:
        halves = [Halves(block, branch, branch.pairs) for block in opened]
        count = PARTS if len(halves) > 1 and all(one.may_part for one in halves) else 1
        for place in range(count):
            for one in halves:
                one.store(place, count)
    if not whole:
        conditions = [f"({start} >= {held.first})"] if held.first else []
        conditions += [f"({start} < {branch.end})"] if branch.end < columns else []
        outer.lines.extend(f"if {' & '.join(conditions)}:", lines)


@dataclass(frozen=True)
class Opened:
    """A block of which a store is made: its frame, in which the contraction's result is bound but no range."""

    frame: Frame
    held: Held
    starts: tuple[str, str]  # its first row, and its first column among those of the store

    def bind(self, frame: Frame, columns: tuple[UOp, ...], *, per: int = 1, at: int = 0) -> None:
        """Binds the block's rows, and of its columns, taken `per` at once, those from `at` on, to a frame's axes."""
        bind_axis(frame, Axis(self.held.rows, frame.sizes[0]), 0, self.starts[0])
        start = self.starts[1] if per == 1 else frame.lines.name(f"{self.starts[1]} // {per}", "start")
        bind_aligned(frame, Axis(columns, self.frame.sizes[1] // per), 1, start, (at, frame.sizes[1]))


def _opened(blocks: Sequence[Finished], kernel: TileKernel, branch: Branch, lines: Lines) -> list[Opened]:
    """The blocks of a branch. Of several stores it is chosen which one they are of: its buffers are bound."""
    held, starts = branch.held, [block.starts[1] for block in blocks]
    if held.first:
        starts = [lines.name(f"{start} - {held.first}", "start") for start in starts]
    ends = [place * held.count for place in range(1, branch.count)]
    scalars = Frame(lines, ())
    conditions = [lines.name(scalars.scalar_condition(f"{starts[0]} < {end}"), "is") for end in ends]

    def chosen(*texts: str) -> str:
        """One text for each store. By a quotient and a remainder Triton 3.6 no longer sees that a column is aligned."""
        *others, found = texts
        for condition, text in zip(reversed(conditions), reversed(others), strict=True):
            found = f"tl.where({condition}, {text}, {found})"
        return found

    pointers = {slots[0]: lines.name(chosen(*(f"p{slot}" for slot in slots)), "p") for slots in branch.buffers}
    if ends:
        starts = [lines.name(chosen(start, *(f"{start} - {end}" for end in ends)), "start") for start in starts]
    opened = []
    for block, start in zip(blocks, starts, strict=True):
        frame = Frame(lines, block.frame.sizes, outer=block.frame, pointers=pointers)
        result = block.frame.value(kernel.value).text
        frame.bound |= {node: Block(result, compute_type(node), BOTH) for node, _ in held.loads}
        for place, text in enumerate(conditions, 1):
            assert branch.member is not None
            frame.bound[branch.member < place] = Block(text, "int1")
        frame.reduce = functools.partial(_reduce, outer=frame, parts=dict(held.parts))
        opened.append(Opened(frame, held, (block.starts[0], start)))
    return opened


class Halves:
    """A block whose even and whose odd columns are computed apart and joined before they are stored."""

    def __init__(self, block: Opened, branch: Branch, pairs: Pairs) -> None:
        self.block, self.branch, self.pairs = block, branch, pairs
        frame = block.frame
        self.result = frame.bound[block.held.loads[0][0]]
        self.chosen = {node: known for node, known in frame.bound.items() if node.op is Ops.CMPLT}
        half = self._half((frame.sizes[0], frame.sizes[1] // 2), 0)
        nodes = UOp.sink(*pairs.values).toposort()
        self.reduced = {node: half.value(node) for node in nodes if node.op is Ops.REDUCE}  # while nothing else is held

    @property
    def may_part(self) -> bool:
        """Whether the columns may be stored in parts: what is summed over columns has no axis along them."""
        return all(total.axes != BOTH for total in self.reduced.values())

    def store(self, place: int, count: int) -> None:
        """Stores one of `count` parts of the columns, 1 or 2."""
        frame, lines = self.block.frame, self.block.frame.lines
        height, width = frame.sizes[0], frame.sizes[1] // count
        part = Frame(lines, (height, width), outer=frame.outer, pointers=frame.pointers)
        self.block.bind(part, self.block.held.columns, at=place * width)
        half = self._half((height, width // 2), place * width // 2)
        half.bound |= self.reduced
        result = self.result
        if count > 1:
            parts = lines.name(f"{result.text}.reshape({height}, 2, {width}).permute(0, 2, 1).split()", "parts")
            result = replace(result, text=f"{parts}[{place}]")

        def bind(nodes: Iterable[tuple[UOp, int]], whole: Block) -> None:
            """Binds each of some loads to one of the halves of a block."""
            rows = height if 0 in whole.axes else 1
            both = lines.name(f"{whole.text}.reshape({rows}, {width // 2}, 2).split()", "halves")
            half.bound |= {
                node: half.cast(Block(f"{both}[{odd}]", whole.type, whole.axes), compute_type(node))
                for node, odd in nodes
            }

        def bind_late(whole: UOp, both: tuple[UOp, UOp]) -> None:
            """Has a load written and split where the first of its halves is used."""
            half.late |= dict.fromkeys(both, lambda: bind(zip(both, (0, 1), strict=True), part.value(whole)))

        bind(self.pairs.result, result)
        for whole, both in self.pairs.tables:
            bind_late(whole, both)
        type_ = TYPES[self.branch.stored.store.buffer.dtype]
        texts = [_whole(half, half.narrow(value, type_)) for value in self.pairs.values]
        joined = lines.name(f"tl.join({', '.join(texts)}).reshape({height}, {width})", "joined")
        store_value(part, self.branch.stored, Block(joined, type_, BOTH))

    def _half(self, sizes: tuple[int, int], at: int) -> Frame:
        """A frame of some pairs, from one on, of which both columns are computed."""
        frame = self.block.frame
        half = Frame(frame.lines, sizes, dict(self.chosen), outer=frame.outer, pointers=frame.pointers)
        self.block.bind(half, self.block.held.columns[:-1], per=2, at=at)
        half.reduce = frame.reduce
        return half


def _whole(frame: Frame, value: Block) -> str:
    """A value as a block that extends along both axes."""
    return value.text if value.axes == BOTH else f"tl.broadcast_to({frame.atom(value)}, {frame.shape(BOTH)})"


def _reduce(node: UOp, frame: Frame, outer: Frame, parts: dict[UOp, int]) -> None:
    """Writes a reduction over neighbouring columns of a block into the frame that asks for it: the block's own, or that
    of its halves."""
    (axis,) = node.src[1:]
    height, width = outer.sizes
    size = parts[axis]
    inside = outer.inner(outer.lines)
    vector = outer.lines.name(f"tl.arange(0, {width})[None, :]" + (f" % {size}" if size < width else ""), "i")
    inside.bound[axis] = Block(vector, "int32", frozenset({1}))
    term = inside.cast(inside.value(node.src[0]), accumulator(node))
    if term.axes != BOTH:
        raise TileRefusal("reduction beside the contraction")
    if size == width:
        text = reduced(node, frame, term.text, 1)
        block = Block(frame.lines.name(text, "r"), accumulator(node), frozenset({0}))
    else:
        grouped = outer.lines.name(f"{term.text}.reshape({height}, {width // size}, {size})", "parts")
        total = outer.lines.name(reduced(node, frame, grouped, 2), "r")
        asked = frame.sizes[1]
        shape = f"[{height}, {width // size}, {size * asked // width}]"
        text = f"tl.broadcast_to({total}, {shape}).reshape({height}, {asked})"
        block = Block(outer.lines.name(text, "r"), accumulator(node), BOTH)
    frame.bound[node] = frame.values[node] = frame.cast(block, compute_type(node))
