"""What becomes of a finished block: it is stored, and what else several kernels make of a contraction's result.

Of such a result a program has a tile in registers. A value at the same row may use it at the same column, at the other
one of a pair, and in reductions over neighbouring columns, such as a head: these are moves within the tile.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcg.compat.tiny import UOp
from kcg.kernel.tile.contraction import Stored as Finished
from kcg.kernel.tile.descriptors import Described
from kcg.kernel.tile.emit import TYPES, Block, Frame, Lines, compute_type
from kcg.kernel.tile.ir import EVEN, ODD, SAME, SWAPPED, Held, Stored, TileKernel
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
    more = [gate for gate in stored.gates if gate not in stored.store.gates]
    pointer, of_pointer, conditions, axes = frame.access(stored.store, more)
    if axes | value.axes != of_pointer:
        pointer = f"{pointer} + tl.zeros({frame.shape(axes | value.axes)}, tl.int32)"
    mask = f", mask={frame.all_of(conditions)}" if conditions else ""
    frame.lines.add(f"tl.store({pointer}, {value.text}{mask})")


def store_held(block: Finished, kernel: TileKernel, stored: Stored, held: Held) -> None:
    """Stores what one of the kernels makes of a block of the contraction's result; nothing where it is of others."""
    outer = block.frame
    height, width = outer.sizes
    row, first = block.starts
    columns = block.columns.total
    result = outer.value(kernel.value)
    lines, whole = outer.lines, held.count == columns and not held.first
    if not whole:
        lines = Lines(outer.writer, outer.lines)
        if held.first:
            first = lines.name(f"{first} - {held.first}", "start")
    frame = Frame(lines, outer.sizes, outer=outer)
    bind_axis(frame, Axis(held.rows, height), 0, row)
    bind_axis(frame, Axis(held.columns, width), 1, first)
    moved = {SAME: result.text} | _moved(frame, result.text, {move for _, move in held.loads})
    parts = dict(held.parts)
    for node, move in held.loads:
        frame.bound[node] = Block(moved[move], compute_type(node), BOTH)
    frame.reduce = lambda node, inside: _reduce(node, inside, frame, parts)
    store_tile(frame, stored)
    if not whole:
        start, end = block.starts[1], held.first + held.count
        conditions = [f"({start} >= {held.first})"] if held.first else []
        conditions += [f"({start} < {end})"] if end < columns else []
        outer.lines.extend(f"if {' & '.join(conditions)}:", lines)


def _moved(frame: Frame, result: str, moves: Iterable[str]) -> dict[str, str]:
    """A block as it is moved within pairs of columns, where that is asked for."""
    height, width = frame.sizes
    if not set(moves) - {SAME}:
        return {}
    one, other = frame.writer.fresh("even"), frame.writer.fresh("odd")
    frame.lines.add(f"{one}, {other} = {result}.reshape({height}, {width // 2}, 2).split()")
    joined = {EVEN: (one, one), ODD: (other, other), SWAPPED: (other, one)}
    return {
        move: frame.lines.name(f"tl.join({a}, {b}).reshape({height}, {width})", "moved")
        for move, (a, b) in joined.items()
        if move in moves
    }


def _reduce(node: UOp, frame: Frame, outer: Frame, parts: dict[UOp, int]) -> None:
    """Writes a reduction over neighbouring columns into the frame of the block."""
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
        shape = f"[{height}, {width // size}, {size}]"
        text = f"tl.broadcast_to({total}, {shape}).reshape({height}, {width})"
        block = Block(outer.lines.name(text, "r"), accumulator(node), BOTH)
    outer.bound[node] = outer.values[node] = outer.cast(block, compute_type(node))
