"""From a program's number to its tile: which elements of the output a program computes, and whether they exist."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kcg.compat.tiny import UOp
from kcg.kernel.ast import extent, is_symbolic
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.emit import Block, Flattened, Frame, Lines, Writer, compute_type
from kcg.kernel.tile.parameters import TileParameters

MAX_BLOCK = 1 << 20  # elements of a block: Triton's own limit


@dataclass(frozen=True)
class Axis:
    """Ranges flattened into one axis of a tile, the last one changing fastest."""

    ranges: tuple[UOp, ...]
    size: int  # elements of the tile along it, a power of two; of a contraction's columns also the sum of two

    @cached_property
    def total(self) -> int:
        """Elements along the axis at most."""
        return math.prod(map(extent, self.ranges))

    @property
    def tiles(self) -> int:
        return -(-self.total // self.size)

    @property
    def is_symbolic(self) -> bool:
        return any(map(is_symbolic, self.ranges))


@dataclass(frozen=True, eq=False)
class Tiled:
    """The tiles of one kernel of a launch: the ranges and the size of each axis, and what numbers the tiles."""

    kernel: TileKernel
    axes: tuple[Axis, ...]

    @cached_property
    def rest(self) -> tuple[UOp, ...]:
        """The output ranges that no axis holds: a program each."""
        return rest_of(self.kernel, self.axes)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """How many of each of these there are."""
        return tuple(map(extent, self.rest))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Elements of a tile along each axis."""
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Tiles along each axis."""
        return tuple(axis.tiles for axis in self.axes)

    @cached_property
    def tiles(self) -> int:
        """All of them."""
        return math.prod(self.places) * math.prod(self.counts)


def axes_of(kernel: TileKernel, parameters: TileParameters) -> tuple[Axis, ...]:
    """The axes of a tile. Raises UnsupportedTile where the parameters do not fit the kernel."""
    used = list(itertools.chain(*parameters.axes))
    if len(set(used)) != len(used) or not all(0 <= n < len(kernel.outputs) for n in used):
        raise UnsupportedTile("axes", "each output range belongs to at most one axis")
    if len(parameters.tile) != len(parameters.axes) or not all(map(is_power_of_two, parameters.powers)):
        raise UnsupportedTile(
            "tile", "each axis has a size that is a power of two, or the columns the sum of two from 16 on"
        )
    if math.prod(parameters.tile) > MAX_BLOCK:
        raise UnsupportedTile("tile", f"a block has at most {MAX_BLOCK:,} elements")
    rows = zip(parameters.axes, parameters.tile, strict=True)
    return tuple(Axis(tuple(kernel.outputs[n] for n in numbers), size) for numbers, size in rows)


def tiles_of(kernel: TileKernel, parameters: TileParameters) -> tuple[int, ...]:
    """Tiles along each axis."""
    rows = zip(parameters.axes, parameters.tile, strict=True)
    return tuple(-(-math.prod(kernel.extents[n] for n in numbers) // size) for numbers, size in rows)


def launched_with(kernel: TileKernel, parameters: TileParameters) -> list[tuple[TileKernel, TileParameters]]:
    """The kernels of one launch, each with the parameters by its own ranges; of several the last wave is the launch's
    to share."""
    first, *others = kernel.launched
    parameters = replace(parameters, tail=1) if others else parameters
    found = [(first, parameters)]
    for one in others:
        if one.contraction is None or first.contraction is None:
            every = len(one.outputs) != len(first.outputs)  # its rows are all that it stores
            found.append((one, replace(parameters, axes=(tuple(range(len(one.outputs))),)) if every else parameters))
            continue
        turned = parameters.axes == tuple(side.ranges for side in first.contraction.sides[::-1])
        sides = one.contraction.sides[::-1] if turned else one.contraction.sides
        found.append((one, replace(parameters, axes=tuple(side.ranges for side in sides))))
    return found


def tiled_of(kernel: TileKernel, parameters: TileParameters) -> tuple[Tiled, ...]:
    """The tiles of each kernel of a launch. Raises UnsupportedTile where the parameters do not fit one."""
    return tuple(Tiled(one, axes_of(one, own)) for one, own in launched_with(kernel, parameters))


def is_power_of_two(size: int) -> bool:
    return size > 0 and size & (size - 1) == 0


def power_of_two(size: int) -> int:
    """The least power of two that is not below `size`."""
    return 1 << max(0, size - 1).bit_length()


def count_of(kernel: TileKernel, numbers: Sequence[int]) -> int:
    """Elements of some output ranges, by their numbers, at most."""
    return math.prod(kernel.extents[n] for n in numbers)


def launched_tiles(kernel: TileKernel, parameters: TileParameters) -> tuple[int, ...]:
    """Tiles along each axis; of several contractions those of all their columns, or of all their rows, of products of
    one vector those of all their rows."""
    found = list(tiles_of(kernel, parameters))
    for launched in launched_with(kernel, parameters)[1:]:
        place = axis_of_others(kernel, parameters)
        found[place] += tiles_of(*launched)[place]
    return tuple(found)


def axis_of_others(kernel: TileKernel, parameters: TileParameters) -> int:
    """Along which axis of a tile the kernels of one launch lie beside each other."""
    if kernel.contraction is None:
        return 0
    in_order = parameters.axes[1] == kernel.contraction.sides[1].ranges
    return 0 if in_order == kernel.grouped_rows else 1


def rest_of(kernel: TileKernel, axes: Sequence[Axis]) -> tuple[UOp, ...]:
    """The output ranges that no axis holds: a program each."""
    held = set(itertools.chain(*(axis.ranges for axis in axes)))
    return tuple(r for r in kernel.outputs if r not in held)


def open_frame(
    kernel: TileKernel, writer: Writer, sizes: tuple[int, ...], lines: Lines | None = None, words: tuple[str, ...] = ()
) -> Frame:
    """The outermost frame of a function: it knows the variables. `words` name what lies along each axis."""
    frame = Frame(lines or Lines(writer), sizes, words=words)
    for variable in kernel.variables:
        frame.bound[variable] = Block(variable_name(variable), "int32")
    return frame


def variable_name(variable: UOp) -> str:
    return f"var_{variable.arg.name}"


def bind_tile(frame: Frame, tiled: Tiled, digits: Sequence[str]) -> None:
    """Say which elements a tile holds, by its digits: of what no axis holds, and then of each axis."""
    rest, axes = digits[: len(tiled.rest)], digits[len(tiled.rest) :]
    for of_rest, digit in zip(tiled.rest, rest, strict=True):
        bind_scalar(frame, of_rest, digit)
    for place, (axis, digit) in enumerate(zip(tiled.axes, axes, strict=True)):
        bind_axis(frame, axis, place, start_of(frame, digit, axis))


def split_number(frame: Frame, number: str, counts: Sequence[int]) -> list[str]:
    """The digits of a number that counts through `counts`, the last one changing fastest."""
    digits: list[str] = []
    for place, count in reversed(list(enumerate(counts))):
        if count == 1:
            digits.append("0")
            continue
        inner = math.prod(counts[place + 1 :])
        text = number if inner == 1 else frame.lines.name(f"{number} // {inner}")
        if math.prod(counts[:place]) > 1:
            text = frame.lines.name(f"{text} % {count}")
        digits.append(text)
    return digits[::-1]


def total_of(frame: Frame, ranges: Sequence[UOp]) -> tuple[str, bool]:
    """How many elements ranges come to, and whether that is known only when the program runs."""
    fixed = math.prod(extent(r) for r in ranges if not is_symbolic(r))
    symbolic = [frame.value(r.src[0]).text for r in ranges if is_symbolic(r)]
    if not symbolic:
        return str(fixed), False
    text = " * ".join(symbolic if fixed == 1 else [str(fixed), *symbolic])
    return frame.lines.name(text, "total") if len(symbolic) > 1 or fixed != 1 else text, True


def bind_axis(
    frame: Frame,
    axis: Axis,
    number: int,
    start: str,
    *,
    vector: str = "",
    ragged: bool = False,
    whole: bool = False,
) -> str:
    """Binds the ranges of an axis of the tile, which begins at element `start`. Returns the vector of its elements.

    `ragged` says that elements past the end are possible where the axis alone does not tell: it is a part of a tile;
    `whole` that there are none, whatever the axis tells: it is not the last block.
    """
    wide = axis.total + axis.size >= 1 << 31
    frame.starts[number] = start
    if not vector:
        if wide and start != "0":
            start = f"{start}.to(tl.int64)" if start.isidentifier() else f"({start}).to(tl.int64)"
        elements = frame.elements(axis.size, number)
        vector = frame.lines.name(f"{start} + {elements}" if start != "0" else elements, frame.word(number))
    block = frame.lines.name(frame.along(vector, number), frame.word(number)) if frame.rank > 1 else vector
    type_ = "int64" if wide else "int32"
    if axis.ranges and not axis.is_symbolic:
        frame.flattened[number] = Flattened(axis.ranges, Block(block, type_, frozenset({number})))
    total, symbolic = total_of(frame, axis.ranges)
    if not whole and (symbolic or ragged or axis.total % axis.size):
        frame.masks[number] = frame.lines.name(f"{block} < {total}", "mask")
    inner: list[str] = []
    for place, axis_range in reversed(list(enumerate(axis.ranges))):
        text = (
            block
            if not inner
            else frame.lines.name(f"{block} // {inner[-1] if len(inner) == 1 else _product(frame, inner)}")
        )
        size = frame.value(axis_range.src[0]).text if is_symbolic(axis_range) else str(extent(axis_range))
        if place:
            text = frame.lines.name(f"{text} % {size}")
        bound = Block(text, type_, frozenset({number}))
        frame.bound[axis_range] = frame.cast(bound, compute_type(axis_range)) if wide else bound
        inner.append(size)
    return vector


def bind_aligned(frame: Frame, axis: Axis, number: int, start: str, part: tuple[int, int]) -> None:
    """As `bind_axis`, of a part (first element, elements) of a block that begins at a multiple of its size: of ranges
    that fill the block the elements have the same numbers in each one, other ranges are scalars.
    """
    inside = aligned(axis)
    at, size = part
    if not inside:
        first = frame.lines.name(f"{start} + {at}", "start") if at else start
        bind_axis(frame, replace(axis, size=size), number, first)
        return
    bind_axis(frame, Axis(inside, size), number, str(at))
    place = len(axis.ranges) - len(inside)
    step = axis.size
    for outer in reversed(axis.ranges[:place]):
        text = frame.lines.name(f"{start} // {step}")
        step *= extent(outer)
        if step < axis.total:
            text = frame.lines.name(f"{text} % {extent(outer)}")
        frame.bound[outer] = Block(text, "int32")


def bind_within(frame: Frame, axis: Axis, number: int, start: str) -> None:
    """As `bind_axis`, of a block that begins at a multiple of its size. It lies within what the last ranges count, as
    few of them as that takes: the other ranges are scalars, and all of them of one element."""
    if axis.size == 1:
        for one, digit in zip(axis.ranges, split_number(frame, start, list(map(extent, axis.ranges))), strict=True):
            bind_scalar(frame, one, digit)
        return
    place = len(axis.ranges) - 1
    while place and math.prod(map(extent, axis.ranges[place:])) % axis.size:
        place -= 1
    inside = Axis(axis.ranges[place:], axis.size)
    if not place or inside.total % axis.size:
        bind_axis(frame, axis, number, start)
        return
    outer = frame.lines.name(f"{start} // {inside.total}", "block")
    for one, digit in zip(
        axis.ranges[:place], split_number(frame, outer, [extent(one) for one in axis.ranges[:place]]), strict=True
    ):
        bind_scalar(frame, one, digit)
    first = frame.lines.name(f"{start} % {inside.total}", "first") if inside.tiles > 1 else "0"
    bind_axis(frame, inside, number, first)


def aligned(axis: Axis) -> tuple[UOp, ...]:
    """The ranges that fill a block which begins at a multiple of its size; none where no ranges do."""
    place = len(axis.ranges)
    while place and math.prod(map(extent, axis.ranges[place:])) < axis.size:
        place -= 1
    inside = axis.ranges[place:]
    return inside if math.prod(map(extent, inside)) == axis.size and axis.total < 1 << 31 else ()


def _product(frame: Frame, sizes: Sequence[str]) -> str:
    if all(size.isdigit() for size in sizes):
        return str(math.prod(map(int, sizes)))
    return frame.lines.name(" * ".join(sizes))


def bind_scalar(frame: Frame, axis: UOp, digit: str) -> None:
    """Binds a range to one program each."""
    constant = int(digit) if digit.isdigit() else None
    frame.bound[axis] = Block(digit, "int32", constant=constant)
    if is_symbolic(axis):
        text = frame.scalar_condition(f"{digit} < {frame.value(axis.src[0]).text}")
        frame.scalar_masks[axis] = frame.lines.name(text, "mask")


def flat_place(frame: Frame, ranges: Sequence[UOp]) -> Block:
    """The place of an element among all elements of some ranges, the last one changing fastest."""
    total = Block("0", "int32", constant=0)
    step = 1
    for axis in reversed(ranges):
        value = frame.value(axis)
        if step > 1:
            value = frame.new(f"{value.text} * {step}", "int32", value.axes)
        total = (
            value
            if total.constant == 0
            else frame.new(f"{total.text} + {value.text}", "int32", total.axes | value.axes)
        )
        step *= extent(axis)
    return total


def start_of(frame: Frame, digit: str, axis: Axis) -> str:
    """The first element of an axis in a program's tile, by the number of the tile along it."""
    if digit == "0" or axis.size == 1:
        return digit
    wide = axis.total + axis.size >= 1 << 31
    return frame.lines.name(f"{digit}{'.to(tl.int64)' if wide else ''} * {axis.size}", "start")
