"""Reductions over rows: in one pass where they fit into a block, else a loop that keeps a block of partial results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kcg.compat.tiny import Ops, UOp, dtypes
from kcg.kernel.ast import affine, is_invalid, is_symbolic
from kcg.kernel.reading.depth import is_inside, loops_of
from kcg.kernel.reading.kernel import Shifted, TileKernel
from kcg.kernel.reading.online import running, shifted_sums
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.emit import Block, Frame, Lines, Window, compute_type, runs_of
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


@dataclass(frozen=True)
class Steps:
    """Some steps of a loop over rows, from one element (an expression) to another, of `size` elements. Where they are
    `whole`, all of these are of the row."""

    begin: str
    end: str
    size: int
    whole: bool


def stepped_extent(kernel: TileKernel) -> int:
    """Elements of the reduction that a program goes through in steps: of those inside of others the longest, since
    those around them go element by element."""
    inside = [count for _, count, depth in loops_of(kernel.reductions) if depth]
    return max(inside, default=kernel.reduce_extent)


def may_split(kernel: TileKernel) -> bool:
    """Whether programs may share the kernel's reductions: all are of the same ranges, one value for each output."""
    first = kernel.reductions[0] if kernel.reductions else None
    return (
        first is not None
        and kernel.attention is None
        and kernel.rows is None
        and not kernel.also
        and not kernel.chained
        and not kernel.one_hot_sums
        and not kernel.grouped
        and all(
            r.src[1:] == first.src[1:]
            and r.arg == first.arg
            and set(r.ranges) == set(kernel.outputs)
            and accumulator(r) == accumulator(first)
            and not any(other in r.src[0].backward_slice_with_self for other in kernel.reductions)
            for r in kernel.reductions
        )
        and not any(map(is_symbolic, (*kernel.outputs, *first.src[1:])))
    )


def itemsize_of_rows(kernel: TileKernel) -> int:
    """Bytes of an element of the largest buffer that a kernel reads."""
    largest = max((load.buffer for load in kernel.loads), key=lambda buffer: buffer.size, default=kernel.store.buffer)
    return int(largest.dtype.itemsize)


def reducer(
    kernel: TileKernel, *, first_axis: int, part: Part = WHOLE, lanes: int = 1, stages: int = 1
) -> Callable[[UOp, Frame], None]:
    """What writes a reduction into a frame; its axes are the tile's last, from `first_axis` on. `lanes` threads have a
    row of a maximum and sums that one loop makes; loops load `stages` ahead."""

    def reduce(node: UOp, frame: Frame) -> None:
        frame = frame.home(node)
        number, own = first_axis + frame.depth, WHOLE if frame.depth else part
        online = None
        if own.count == 1 and number == frame.rank - 1 and not _at_once(node, frame, number, own):
            online = _online(node, frame, kernel.reductions)
        if online is not None:
            _write_online(*online, frame, number, lanes)
        else:
            group = _together(node, frame, kernel.reductions)
            _write(group, frame, number, own, 1 if frame.depth else stages)

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


def _write_online(maximum: UOp, sums: list[Shifted], frame: Frame, number: int, lanes: int) -> None:
    """One loop for a maximum and sums shifted by it, see `kcg.kernel.reading.online`."""
    axis = Axis(tuple(maximum.src[1:]), frame.sizes[number])
    counter = frame.writer.fresh("k")
    shifted = [running(maximum, one) for one in sums]
    nodes = [maximum, *(node for _, node in shifted)]
    widened = _widened(nodes, frame, axis)
    *rows, width = frame.sizes
    vector = min(_neighbours(nodes, frame, axis, widened), max(1, width // lanes))
    lanes = min(lanes, width // vector)
    kept = f"[{', '.join(map(str, [*rows, lanes]))}]"
    every = frozenset(range(frame.rank))
    largest, new = frame.writer.fresh("largest"), frame.writer.fresh("new")
    totals = [frame.writer.fresh("acc") for _ in sums]
    frame.lines.add(f"{largest} = tl.full({kept}, float('-inf'), tl.float32)")
    for total in totals:
        frame.lines.add(f"{total} = tl.zeros({kept}, tl.float32)")

    for steps in _steps(frame, axis, widened, lanes * vector):
        body = Lines(frame.writer, frame.lines)
        inside = replace(frame.inner(body), sizes=(*rows, steps.size))
        _bind(inside, replace(axis, size=steps.size), number, counter, widened, whole=steps.whole)
        held = _Held(inside, lanes, vector)
        term = held.reduced(inside.atom(masked_term(maximum, inside, number)), "max")
        body.add(f"{new} = tl.maximum({largest}, {term})")
        spread = body.name(held.spread(new))
        for one, total, (stand_in, node) in zip(sums, totals, shifted, strict=True):
            inside.bound[stand_in] = Block(spread, compute_type(maximum), every)
            term = held.reduced(inside.atom(masked_term(node, inside, number)), "sum")
            body.add(f"{total} = {_corrected(frame, total, largest, new, one.factor)} + {term}")
        body.add(f"{largest} = {new}")
        about = f"{steps.size} elements of a row at a time: its maximum, and sums of what it shifts"
        frame.lines.extend(f"for {counter} in range({steps.begin}, {steps.end}, {steps.size}):", body, about)
    found = frame.lines.name(f"tl.max({largest}, {number}, keep_dims=True)", "largest")
    axes = every - {number}
    bound = frame.cast(Block(found, "float32", axes), compute_type(maximum))
    frame.bound[maximum] = frame.values[maximum] = bound
    for one, total in zip(sums, totals, strict=True):
        text = frame.lines.name(
            f"tl.sum({_corrected(frame, total, largest, found, one.factor)}, {number}, keep_dims=True)", "r"
        )
        bound = frame.cast(Block(text, "float32", axes), compute_type(one.node))
        frame.bound[one.node] = frame.values[one.node] = bound


@dataclass(frozen=True)
class _Held:
    """A block of a frame as its threads hold it: `lanes` of them have a row, with `vector` neighbours of it each, and
    then as many further on. So what one thread has is made one without an exchange."""

    frame: Frame
    lanes: int
    vector: int

    @property
    def _parts(self) -> str:
        *rows, width = self.frame.sizes
        return ", ".join(map(str, [*rows, width // (self.lanes * self.vector), self.lanes, self.vector]))

    @property
    def _shape(self) -> str:
        return self.frame.shape(frozenset(range(self.frame.rank)))

    def reduced(self, text: str, how: str) -> str:
        """What the elements of each thread come to: neighbours first."""
        text = f"tl.broadcast_to({text}, {self._shape}).reshape({self._parts})"
        return f"tl.{how}(tl.{how}({text}, {self.frame.rank + 1}), {self.frame.rank - 1})"

    def spread(self, text: str) -> str:
        """What each thread has one of, for each of its elements."""
        place = f"[{':, ' * (self.frame.rank - 1)}None, :, None]"
        return f"tl.broadcast_to({text}{place}, [{self._parts}]).reshape({self._shape})"


def _corrected(frame: Frame, total: str, before: str, now: str, factor: float) -> str:
    """Sums made with one maximum as made with a larger one: what was made with -inf, NaN maybe, is 0 then."""
    power = frame.exp2(f"({now} - {before}) * ({factor!r})")
    made = f'tl.where({before} == float("-inf"), 0.0, {total} * {power})'
    return f"tl.where({before} == {now}, {total}, {made})"


def _together(node: UOp, frame: Frame, reductions: tuple[UOp, ...]) -> list[UOp]:
    """The reductions that one loop makes: of the same ranges, in the same place, not one from the other."""

    def pending(inside: UOp) -> bool:
        return any(
            r in inside.src[0].backward_slice_with_self and not is_inside(r, inside) and frame.find(r) is None
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


def _write(group: list[UOp], frame: Frame, number: int, part: Part, stages: int) -> None:
    axis = Axis(tuple(group[0].src[1:]), frame.sizes[number])
    if axis.total >= 1 << 31:
        raise UnsupportedTile("reduction of 2^31 elements")
    if not any(map(is_symbolic, axis.ranges)) and axis.total <= axis.size and part.count == 1:
        inside = frame.inner(frame.lines)
        # a row that is held is loaded once, as it is stored
        _bind(inside, axis, number, "0", None if frame.writer.style.keeps_rows else _widened(group, frame, axis))
        terms = [masked_term(node, inside, number) for node in group]
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
    widened = _widened(group, frame, axis)
    _bind(inside, axis, number, counter, widened)
    totals = [frame.writer.fresh("acc") for _ in group]
    terms = [masked_term(node, inside, number) for node in group]
    for node, total, term in zip(group, totals, terms, strict=True):
        body.add(f"{total} = {combine(node, total, term.text)}")
        shape = inside.shape(term.axes | {number})
        frame.lines.add(f"{total} = tl.full({shape}, {neutral(node)}, tl.{accumulator(node)})")
    end, _ = total_of(frame, axis.ranges)
    total_steps = axis.total
    if widened is not None:
        total_steps += widened.unit - 1
        end = str(total_steps)
    begin = "0"
    if part.count > 1:
        steps = -(-total_steps // axis.size)
        chunk = -(-steps // part.count) * axis.size
        begin = frame.lines.name(f"{part.number} * {chunk}", "begin")
        end = frame.lines.name(f"tl.minimum({begin} + {chunk}, {end})", "end")
    loop = f"tl.range({begin}, {end}, {axis.size}, num_stages={stages})" if stages > 1 else ""
    about = f"{axis.size} of {axis.total} terms at a time"
    frame.lines.extend(f"for {counter} in {loop or f'range({begin}, {end}, {axis.size})'}:", body, about)
    for node, total, term in zip(group, totals, terms, strict=True):
        frame.bound[node] = frame.values[node] = _finish(node, frame, total, term, number)


def masked_term(node: UOp, inside: Frame, number: int) -> Block:
    """What one step adds: of elements that do not exist, the neutral element."""
    term = inside.cast(inside.value(node.src[0]), accumulator(node))
    if (mask := inside.masks.get(number)) is None:
        return term
    outside = frozenset(node.src[1:])
    if not inside.windows and (
        (node.arg[0] is Ops.ADD and is_zero_outside(node.src[0], outside))
        or (node.arg[0] is Ops.MAX and _is_least_outside(node.src[0], outside))
    ):
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
        case Ops.AND:
            return any(is_zero_outside(s, ranges) for s in node.src)
        case Ops.WHERE:
            condition, one, other = node.src
            zero = other.op is Ops.CONST and not is_invalid(other) and not other.arg
            return zero and (is_zero_outside(condition, ranges) or is_zero_outside(one, ranges))
        case _:
            return False


def _is_least_outside(node: UOp, ranges: frozenset[UOp]) -> bool:
    """Whether a value is minus infinity where an element of these ranges does not exist: a mask of a buffer says so."""
    if node.op is Ops.CAST and dtypes.is_float(node.dtype):
        return _is_least_outside(node.src[0], ranges)
    if node.op is not Ops.WHERE or node.src[2].op is not Ops.CONST or is_invalid(node.src[2]):
        return False
    return float(node.src[2].arg) == -math.inf and is_zero_outside(node.src[0], ranges)


# ---- rows that begin anywhere


@dataclass(frozen=True)
class _Widened:
    """Rows whose loads begin at the block of 16 bytes that their first element is in, `shift` elements before it."""

    loads: tuple[UOp, ...]
    unit: int  # elements of such a block
    start: Block
    shift: Block


def _widened(group: list[UOp], frame: Frame, axis: Axis) -> _Widened | None:
    """How the loads of a reduction over neighbouring elements are widened, where all of them would be element by
    element otherwise. None where they are aligned, or a block has no room for what is superfluous.

    Nothing is read but blocks of 16 bytes with an element of the row in them. Buffers begin at such a block, and no
    page ends inside of one, so the superfluous elements may always be read, whoever's they are; they are never used.
    """
    if frame.depth or len(axis.ranges) != 1 or is_symbolic(axis.ranges[0]):
        return None
    if not frame.writer.style.widens:
        return None
    (step,) = axis.ranges
    nodes = UOp.sink(*(node.src[0] for node in group)).toposort()
    found: list[tuple[UOp, dict[UOp | None, int]]] = []
    for node in nodes:
        if node.op is Ops.REDUCE and step in node.ranges:
            return None
        if node.op is Ops.INDEX and step in node.ranges:
            access = frame.writer.accesses[node]
            steps = affine(access.address)
            if access.gates or steps is None or steps.pop(step, 0) != 1 or any(s < 0 for s in steps.values()):
                return None
            if int(access.address.vmax) >= 1 << 31 or not any(s % _unit(node) for s in steps.values()):
                return None
            found.append((node, steps))
    if not found:
        return None
    first, base = max(found, key=lambda one: frame.writer.accesses[one[0]].buffer.size * one[0].dtype.itemsize)
    unit = _unit(first)
    fits = axis.size >= axis.total + unit - 1 if axis.size >= axis.total else axis.size >= unit
    if first.dtype.itemsize > 4 or axis.total < 2 * unit or not fits:
        return None
    loads = tuple(node for node, steps in found if steps == base)
    if len(loads) < len(found):
        return None  # beside loads that stay element by element the masks cost more than wide loads save
    place = Block("0", "int32", constant=0)
    for _, part in frame.parts(base, "int32"):
        place = (
            part if place.constant == 0 else frame.new(f"{place.text} + {part.text}", "int32", place.axes | part.axes)
        )
    block = frame.new(f"{place.text} // {unit}", "int32", place.axes)
    start = frame.new(f"{block.text} * {unit}", "int32", place.axes)
    return _Widened(loads, unit, start, frame.new(f"{place.text} - {start.text}", "int32", place.axes))


def _steps(frame: Frame, axis: Axis, widened: _Widened | None, least: int) -> list[Steps]:
    """The steps of a loop over rows: only the last ones have elements past the row, and where loads are widened the
    first one has elements before it. These are half as long, if `least` is not more: masks take registers."""
    if axis.is_symbolic:
        return [Steps("0", total_of(frame, axis.ranges)[0], axis.size, whole=False)]
    edge = max(least, axis.size // 2)
    first, end = (0, axis.total) if widened is None else (edge, axis.total + widened.unit - 1)
    last = first + (axis.total - first) // axis.size * axis.size
    found = [
        Steps("0", str(first), edge, whole=False),
        Steps(str(first), str(last), axis.size, whole=True),
        Steps(str(last), str(end), edge, whole=False),
    ]
    return [steps for steps in found if steps.begin != steps.end]


def _neighbours(nodes: list[UOp], frame: Frame, axis: Axis, widened: _Widened | None) -> int:
    """How many elements of a row a thread loads at once: Triton gives all loads of a block the widest one's layout."""
    widest = 1
    for node in UOp.sink(*(node.src[0] for node in nodes)).toposort():
        if node.op is not Ops.INDEX or set(axis.ranges).isdisjoint(node.ranges):
            continue
        if widened is not None and node in widened.loads:
            widest = max(widest, _unit(node))
        elif (steps := affine(frame.writer.accesses[node].address)) is not None and _is_run(axis, steps):
            others = (step for at, step in steps.items() if at not in axis.ranges)
            widest = max(widest, math.gcd(_unit(node), axis.total, *others))
    return widest


def _is_run(axis: Axis, steps: Mapping[UOp | None, int]) -> bool:
    """Whether an address steps through an axis from each element to its neighbour."""
    return steps.get(axis.ranges[-1]) == 1 and len(runs_of(axis.ranges, steps)) == 1


def _unit(load: UOp) -> int:
    """Elements in 16 bytes."""
    return max(1, 16 // int(load.dtype.itemsize))


def _bind(inside: Frame, axis: Axis, number: int, start: str, widened: _Widened | None, *, whole: bool = False) -> None:
    """Binds the ranges of a reduction that begins at element `start`, or so many before it; see `Steps.whole`."""
    if widened is None:
        bind_axis(inside, axis, number, start, whole=whole)
        return
    outer = inside.outer
    assert outer is not None
    vector = f"tl.arange(0, {axis.size})"
    vector = inside.lines.name(vector if start == "0" else f"{start} + {vector}", "terms")
    place = Block(inside.lines.name(inside.along(vector, number), "terms") if inside.rank > 1 else vector, "int32")
    place = replace(place, axes=frozenset({number}))
    shift, unit = widened.shift, widened.unit
    mask = ""
    if not whole:
        bound = outer.lines.name(f"({shift.text} + {axis.total + unit - 1}) // {unit} * {unit}", "bound")
        mask = inside.lines.name(f"{place.text} < {bound}", "mask")
    inside.windows = dict.fromkeys(widened.loads, Window(widened.start, place, mask))
    element = inside.new(f"{place.text} - {shift.text}", "int32", place.axes | shift.axes)
    inside.bound[axis.ranges[0]] = element
    if not whole:
        exists = f"({element.text} >= 0) & ({element.text} < {axis.total})"
        inside.masks[number] = inside.lines.name(exists, "mask")


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
    if axes:
        text = reduced(node, frame, total, number)
    elif node.arg[0] is Ops.MUL:  # Triton has a product along one axis only: then the others have one element
        text = f"tl.sum({reduced(node, frame, total, number)})"
    else:
        text = f"tl.{'sum' if node.arg[0] is Ops.ADD else 'max'}({total})"
    return frame.cast(Block(frame.lines.name(text, "reduced"), accumulator(node), axes), compute_type(node))


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
        raise UnsupportedTile(f"reduction by {op.name}")
    if type_.startswith("float"):
        return 'float("-inf")'
    if type_ == "int1" or type_.startswith("u"):
        return "0"
    return str(-(1 << (int(accumulator(node)[3:]) - 1)))
