"""Reductions over rows: in one pass where they fit into a block, else a loop that keeps a block of partial results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.tile.emit import Block, Frame, Lines, compute_type
from kcg.kernel.tile.ir import TileKernel, is_symbolic
from kcg.kernel.tile.online import Shifted, running, shifted_sums
from kcg.kernel.tile.program import TileRefusal
from kcg.kernel.tile.tiles import Axis, bind_axis, total_of

PRODUCT = """
@triton.jit
def _multiply(a, b):
    return a * b
"""


@dataclass(frozen=True)
class Part:
    """Which part of a reduction a program takes: `number` (text) of `count`."""

    number: str = "0"
    count: int = 1


WHOLE = Part()


def depth_of(reductions: tuple[UOp, ...]) -> int:
    """How deeply reductions are inside each other."""
    depth: dict[UOp, int] = {}
    for node in reductions:  # inner ones come first
        inner = [depth[r] for r in depth if r in node.src[0].backward_slice_with_self and _inside(r, node)]
        depth[node] = 1 + max(inner, default=0)
    return max(depth.values(), default=0)


def _inside(inner: UOp, outer: UOp) -> bool:
    """Whether a reduction has to be made again in every step of another."""
    return any(r in inner.ranges for r in outer.src[1:])


def reducer(
    kernel: TileKernel, *, first_axis: int, part: Part = WHOLE, together: int = 1
) -> Callable[[UOp, Frame], None]:
    """What writes a reduction into a frame; its axes are the tile's last, from `first_axis` on. Of a maximum and sums
    that one loop makes, so many neighbouring elements `together` are corrected at once."""

    def reduce(node: UOp, frame: Frame) -> None:
        frame = frame.home(node)
        number, own = first_axis + frame.depth, WHOLE if frame.depth else part
        online = None
        if own.count == 1 and number == frame.rank - 1 and not _at_once(node, frame, number, own):
            online = _online(node, frame, kernel.reductions)
        if online is not None:
            _write_online(*online, frame, number, together)
        else:
            _write(_together(node, frame, kernel.reductions), frame, number, own)

    return reduce


def _at_once(node: UOp, frame: Frame, number: int, part: Part) -> bool:
    """Whether a reduction is of one block."""
    axis = Axis(tuple(node.src[1:]), frame.sizes[number])
    return not axis.is_symbolic and axis.total <= axis.size and part.count == 1


def _online(node: UOp, frame: Frame, reductions: tuple[UOp, ...]) -> tuple[UOp, list[Shifted]] | None:
    """A maximum and the sums shifted by it, of which a reduction is one, that can be made in one loop."""
    for maximum in reductions:
        sums = [
            one
            for one in shifted_sums(maximum, reductions)
            if frame.find(one.node) is None and frame.home(one.node) is frame
        ]
        if node is not maximum and all(one.node is not node for one in sums):
            continue
        inside = maximum.src[0].backward_slice_with_self
        ready = frame.home(maximum) is frame and all(frame.find(r) is not None for r in reductions if r in inside)
        if sums and ready and frame.find(maximum) is None:
            return maximum, sums
    return None


def _write_online(maximum: UOp, sums: list[Shifted], frame: Frame, number: int, together: int) -> None:
    """One loop for a maximum and sums shifted by it, see `online.py`."""
    axis = Axis(tuple(maximum.src[1:]), frame.sizes[number])
    body = Lines(frame.writer, frame.lines)
    inside = frame.inner(body)
    counter = frame.writer.fresh("k")
    bind_axis(inside, axis, number, counter)
    together = min(together, axis.size)
    *rows, width = frame.sizes
    parts = ", ".join(map(str, [*rows, width // together, together]))
    kept = f"[{', '.join(map(str, [*rows, width // together]))}]"
    largest, new = frame.writer.fresh("largest"), frame.writer.fresh("new")
    frame.lines.add(f"{largest} = tl.full({kept}, float('-inf'), tl.float32)")

    def grouped(text: str, how: str) -> str:
        """A block of elements as one of what the neighbours in it come to."""
        text = f"tl.broadcast_to({text}, {frame.shape(every)})"
        return f"tl.{how}({text}.reshape({parts}), {len(frame.sizes)})"

    every = frozenset(range(frame.rank))
    body.add(f"{new} = tl.maximum({largest}, {grouped(inside.atom(_term(maximum, inside, number)), 'max')})")
    spread = body.name(f"tl.broadcast_to({new}[{':, ' * frame.rank}None], [{parts}]).reshape({frame.shape(every)})")
    totals = []
    for one in sums:
        stand_in, node = running(maximum, one)
        inside.bound[stand_in] = Block(spread, compute_type(maximum), every)
        total = frame.writer.fresh("acc")
        frame.lines.add(f"{total} = tl.zeros({kept}, tl.float32)")
        term = inside.atom(_term(node, inside, number))
        body.add(f"{total} = {_corrected(total, largest, new, one.factor)} + {grouped(term, 'sum')}")
        totals.append(total)
    body.add(f"{largest} = {new}")
    end, _ = total_of(frame, axis.ranges)
    frame.lines.extend(f"for {counter} in range(0, {end}, {axis.size}):", body)
    found = frame.lines.name(f"tl.max({largest}, {number}, keep_dims=True)", "r")
    axes = every - {number}
    bound = frame.cast(Block(found, "float32", axes), compute_type(maximum))
    frame.bound[maximum] = frame.values[maximum] = bound
    for one, total in zip(sums, totals, strict=True):
        text = frame.lines.name(
            f"tl.sum({_corrected(total, largest, found, one.factor)}, {number}, keep_dims=True)", "r"
        )
        bound = frame.cast(Block(text, "float32", axes), compute_type(one.node))
        frame.bound[one.node] = frame.values[one.node] = bound


def _corrected(total: str, before: str, now: str, factor: float) -> str:
    """Sums made with one maximum as made with a larger one: what was made with -inf, NaN maybe, is 0 then."""
    made = f'tl.where({before} == float("-inf"), 0.0, {total} * tl.exp2(({now} - {before}) * ({factor!r})))'
    return f"tl.where({before} == {now}, {total}, {made})"


def _together(node: UOp, frame: Frame, reductions: tuple[UOp, ...]) -> list[UOp]:
    """The reductions that one loop makes: of the same ranges, in the same place, not one from the other."""

    def pending(inside: UOp) -> bool:
        return any(
            r in inside.src[0].backward_slice_with_self and not _inside(r, inside) and frame.find(r) is None
            for r in reductions
        )

    found = [node]
    for other in reductions:
        if (
            other not in found
            and other.src[1:] == node.src[1:]
            and frame.find(other) is None
            and all(frame.find(r) is not None for r in other.ranges)
            and frame.home(other) is frame
            and not pending(other)
            and not any(other in f.src[0].backward_slice_with_self for f in found)
        ):
            found.append(other)
    return found


def _write(group: list[UOp], frame: Frame, number: int, part: Part) -> None:
    axis = Axis(tuple(group[0].src[1:]), frame.sizes[number])
    if axis.total >= 1 << 31:
        raise TileRefusal("reduction of 2^31 elements")
    if not any(map(is_symbolic, axis.ranges)) and axis.total <= axis.size and part.count == 1:
        inside = frame.inner(frame.lines)
        bind_axis(inside, axis, number, "0")
        terms = [_term(node, inside, number) for node in group]
        for node, term in zip(group, terms, strict=True):
            if number not in term.axes:
                term = inside.new(
                    f"tl.broadcast_to({inside.atom(term)}, {inside.shape(term.axes | {number})})",
                    term.type,
                    term.axes | {number},
                )
            frame.bound[node] = frame.values[node] = _finish(node, frame, term.text, term, number)
        return
    body = Lines(frame.writer, frame.lines)
    inside = frame.inner(body)
    # what does not change is written before the loop, so the loop's head is written last
    counter = frame.writer.fresh("k")
    bind_axis(inside, axis, number, counter)
    totals = [frame.writer.fresh("acc") for _ in group]
    terms = [_term(node, inside, number) for node in group]
    for node, total, term in zip(group, totals, terms, strict=True):
        body.add(f"{total} = {combine(node, total, term.text)}")
        shape = inside.shape(term.axes | {number})
        frame.lines.add(f"{total} = tl.full({shape}, {neutral(node)}, tl.{accumulator(node)})")
    end, _ = total_of(frame, axis.ranges)
    begin = "0"
    if part.count > 1:
        steps = -(-axis.total // axis.size)
        chunk = -(-steps // part.count) * axis.size
        begin = frame.lines.name(f"{part.number} * {chunk}", "begin")
        end = frame.lines.name(f"tl.minimum({begin} + {chunk}, {end})", "end")
    frame.lines.extend(f"for {counter} in range({begin}, {end}, {axis.size}):", body)
    for node, total, term in zip(group, totals, terms, strict=True):
        frame.bound[node] = frame.values[node] = _finish(node, frame, total, term, number)


def _term(node: UOp, inside: Frame, number: int) -> Block:
    """What one step adds: of elements that do not exist, the neutral element."""
    term = inside.cast(inside.value(node.src[0]), accumulator(node))
    if (mask := inside.masks.get(number)) is None:
        return term
    if node.arg[0] is Ops.ADD and is_zero_outside(node.src[0], frozenset(node.src[1:])):
        return term
    type_ = accumulator(node)
    none = neutral(node) if type_ in ("float32", "int32") else f"tl.full([], {neutral(node)}, tl.{type_})"
    text = inside.atom(term) if term.constant is not None else term.text
    return inside.new(f"tl.where({mask}, {text}, {none})", type_, term.axes | {number})


def is_zero_outside(node: UOp, ranges: frozenset[UOp]) -> bool:
    """Whether a value is 0 where an element of these ranges does not exist: loads give 0 there."""
    match node.op:
        case Ops.INDEX:
            return any(r in ranges for r in node.src[1].ranges) if len(node.src) == 2 else False
        case Ops.CAST:
            return is_zero_outside(node.src[0], ranges)
        case Ops.MUL:
            return all(is_zero_outside(s, ranges) for s in node.src)
        case _:
            return False


def combine(node: UOp, total: str, term: str) -> str:
    return {Ops.ADD: f"{total} + {term}", Ops.MUL: f"{total} * {term}", Ops.MAX: f"tl.maximum({total}, {term})"}[
        node.arg[0]
    ]


def reduced(node: UOp, frame: Frame, block: str, axis: int) -> str:
    """A block's elements along one axis as one, which stays an axis."""
    if node.arg[0] is Ops.MUL:
        frame.writer.helpers["_multiply"] = PRODUCT
        return f"tl.reduce({block}, {axis}, _multiply, keep_dims=True)"
    return f"tl.{'sum' if node.arg[0] is Ops.ADD else 'max'}({block}, {axis}, keep_dims=True)"


def _finish(node: UOp, frame: Frame, total: str, term: Block, number: int) -> Block:
    """The result of a block of partial results, in the type of the kernel's values."""
    axes = term.axes - {number}
    where = f", {number}, keep_dims=True" if axes else ""
    if node.arg[0] is Ops.MUL:
        frame.writer.helpers["_multiply"] = PRODUCT
        text = f"tl.reduce({total}, {number}, _multiply, keep_dims=True)"
        if not axes:  # Triton has a product along one axis only: then the others have one element
            text = f"tl.sum({text})"
    else:
        text = f"tl.{'sum' if node.arg[0] is Ops.ADD else 'max'}({total}{where})"
    return frame.cast(Block(frame.lines.name(text, "r"), accumulator(node), axes), compute_type(node))


def accumulator(node: UOp) -> str:
    """The type in which a reduction is made: Triton's reductions take no type below 32 bits."""
    type_ = compute_type(node)
    if type_ in ("int1", "int8", "int16"):
        return "int32"
    return "uint32" if type_ in ("uint8", "uint16") else type_


def neutral(node: UOp) -> str:
    """The element that changes nothing."""
    op, type_ = node.arg[0], compute_type(node)
    if op is Ops.ADD:
        return "0"
    if op is Ops.MUL:
        return "1"
    if op is not Ops.MAX:
        raise TileRefusal(f"reduction by {op.name}")
    if type_.startswith("float"):
        return 'float("-inf")'
    if type_ == "int1" or type_.startswith("u"):
        return "0"
    return str(-(1 << (int(accumulator(node)[3:]) - 1)))
