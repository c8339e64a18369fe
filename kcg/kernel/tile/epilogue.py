"""What becomes of a finished block: it is stored, and what else several kernels make of a contraction's result.

Of such a result a program has a tile in registers. A value at the same row may use it at the same column, at the other
one of a pair, and in reductions over neighbouring columns, such as a head: these are moves within the tile. How it is
written is `branches.py`'s to say.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.tile.contraction import Finished
from kcg.kernel.tile.descriptors import Described
from kcg.kernel.tile.emit import TYPES, Block, Frame, Lines, compute_type
from kcg.kernel.tile.ir import Branch, Pairs, Stored, TileKernel
from kcg.kernel.tile.program import TileRefusal
from kcg.kernel.tile.reduction import accumulator, reduced
from kcg.kernel.tile.tiles import Axis, bind_axis

BOTH = frozenset({0, 1})


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


def store_branch(block: Finished, kernel: TileKernel, branch: Branch) -> None:
    """Stores what is made of a block of the contraction's result; nothing where it is of other columns."""
    outer, held = block.frame, branch.held
    result, start = outer.value(kernel.value).text, block.starts[1]
    whole = not held.first and branch.end == block.columns.total
    lines = outer.lines if whole else Lines(outer.writer, outer.lines)
    frame = Frame(lines, outer.sizes, outer=outer)
    first = _chosen(frame, branch, start)
    bind_axis(frame, Axis(held.rows, frame.sizes[0]), 0, block.starts[0])
    bind_axis(frame, Axis(held.columns, frame.sizes[1]), 1, first)
    for node, _ in held.loads:
        frame.bound[node] = Block(result, compute_type(node), BOTH)
    frame.reduce = lambda node, inside: _reduce(node, inside, frame, dict(held.parts))
    if branch.pairs is None:
        store_tile(frame, branch.stored)
    else:
        store_value(frame, branch.stored, _of_halves(frame, branch, branch.pairs, (block.starts[0], first)))
    if not whole:
        conditions = [f"({start} >= {held.first})"] if held.first else []
        conditions += [f"({start} < {branch.end})"] if branch.end < block.columns.total else []
        outer.lines.extend(f"if {' & '.join(conditions)}:", lines)


def _chosen(frame: Frame, branch: Branch, start: str) -> str:
    """The block's first column among those of its store; of several stores the buffers of this one are bound."""
    held, lines = branch.held, frame.lines
    if held.first:
        start = lines.name(f"{start} - {held.first}", "start")
    if branch.member is None:
        return start
    ends = [place * held.count for place in range(1, branch.count)]
    conditions = [lines.name(frame.scalar_condition(f"{start} < {end}"), "is") for end in ends]
    for place, condition in enumerate(conditions, 1):
        frame.bound[branch.member < place] = Block(condition, "int1")

    def chosen(*texts: str) -> str:
        """One text for each store. By a quotient and a remainder Triton 3.6 no longer sees that a column is aligned."""
        *others, found = texts
        for condition, text in zip(reversed(conditions), reversed(others), strict=True):
            found = f"tl.where({condition}, {text}, {found})"
        return found

    for slots in branch.buffers:
        frame.pointers[slots[0]] = lines.name(chosen(*(f"p{slot}" for slot in slots)), "p")
    return lines.name(chosen(start, *(f"{start} - {end}" for end in ends)), "start")


def _of_halves(frame: Frame, branch: Branch, pairs: Pairs, starts: tuple[str, str]) -> Block:
    """A block whose even and whose odd columns are computed apart and joined at the end."""
    held, (height, width), lines = branch.held, frame.sizes, frame.lines
    half = Frame(lines, (height, width // 2), outer=frame.outer, pointers=frame.pointers)
    half.bound |= {node: block for node, block in frame.bound.items() if node.op is Ops.CMPLT}
    bind_axis(half, Axis(held.rows, height), 0, starts[0])
    bind_axis(half, Axis(held.columns[:-1], width // 2), 1, lines.name(f"{starts[1]} // 2", "start"))
    half.reduce = lambda node, inside: _reduce(node, inside, frame, dict(held.parts))

    def bind(nodes: Iterable[tuple[UOp, int]], text: str) -> None:
        """Binds each of some loads to one of the halves of a block."""
        both = frame.writer.fresh("even"), frame.writer.fresh("odd")
        lines.add(f"{', '.join(both)} = {text}.reshape({height}, {width // 2}, 2).split()")
        half.bound |= {node: Block(both[place], compute_type(node), BOTH) for node, place in nodes}

    def split_late(whole: UOp, both: tuple[UOp, UOp]) -> None:
        """Has a load written and split where the first of its halves is used."""
        half.late |= dict.fromkeys(both, lambda: bind(zip(both, (0, 1), strict=True), frame.value(whole).text))

    for node in UOp.sink(*pairs.values).toposort():  # while nothing else is held
        if node.op is Ops.REDUCE:
            half.value(node)
    bind(pairs.result, frame.bound[held.loads[0][0]].text)
    for whole, both in pairs.tables:
        split_late(whole, both)
    type_ = TYPES[branch.stored.store.buffer.dtype]
    texts = [_whole(half, half.narrow(value, type_)) for value in pairs.values]
    joined = lines.name(f"tl.join({', '.join(texts)}).reshape({height}, {width})", "joined")
    return Block(joined, type_, BOTH)


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
    vector = outer.lines.name(f"tl.arange(0, {width})[None, :] % {size}", "i")
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
