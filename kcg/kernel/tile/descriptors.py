"""Blocks of memory moved by TMA: descriptors that the program makes itself, of operands and results that allow it.

A block can be described where the address is a sum of steps along the tile's two axes and along ranges that are a
program each, one of the two axes has its elements side by side, and all other steps are multiples of 16 bytes.
Elements outside are read as 0 and not written, so no masks are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from kcg.compat.tiny import UOp
from kcg.kernel.ast import extent
from kcg.kernel.reading.accesses import Access
from kcg.kernel.tile.emit import Frame
from kcg.kernel.tile.tiles import Axis, total_of

V = TypeVar("V")
ALIGNED = 16  # bytes
MOST_AXES = 5
MOST_ALONG = 256  # elements of a block along one axis


Total = int | tuple[UOp, ...]
"""Elements along an axis; or its ranges, where these say so only when the program runs."""


@dataclass(frozen=True)
class Boxes:
    """How blocks of an access lie in memory, where TMA can move them."""

    buffer: str  # where its first element is
    leading: tuple[tuple[UOp, int], ...]  # ranges of one element each, and their steps
    transposed: bool  # the first axis is the one whose elements lie side by side
    sizes: tuple[int, int]  # elements of a block along the two axes
    totals: tuple[Total, Total]
    wide: int  # the step along the other axis

    def ordered(self, of: tuple[V, V]) -> tuple[V, V]:
        """What is said of the two axes, in the order of memory."""
        return of[::-1] if self.transposed else of

    def extents(self, frame: Frame) -> tuple[str, str]:
        """The expressions of how many elements there are along the axes, in the order of memory."""
        one, other = (str(of) if isinstance(of, int) else total_of(frame, of)[0] for of in self.totals)
        return self.ordered((one, other))


@dataclass(frozen=True)
class Described:
    """A descriptor as the program has it."""

    name: str
    leading: tuple[UOp, ...]  # ranges of one element each, before the two axes
    transposed: bool  # the first axis is the one whose elements lie side by side
    sizes: tuple[int, int]  # elements of a block along the two axes

    def load(self, frame: Frame, starts: tuple[str, str]) -> str:
        """The expression of the block that begins at two elements."""
        text = f"{self.name}.load([{self._place(frame, starts)}])"
        if self.leading:
            sizes = self.sizes[::-1] if self.transposed else self.sizes
            text += f".reshape({sizes[0]}, {sizes[1]})"
        return f"{text}.T" if self.transposed else text

    def store(self, frame: Frame, starts: tuple[str, str], value: str) -> str:
        """The statement that stores a block."""
        if self.transposed:
            value = f"{value}.T"
        if self.leading:
            sizes = self.sizes[::-1] if self.transposed else self.sizes
            value = f"{value}.reshape({', '.join(['1'] * len(self.leading))}, {sizes[0]}, {sizes[1]})"
        return f"{self.name}.store([{self._place(frame, starts)}], {value})"

    def _place(self, frame: Frame, starts: tuple[str, str]) -> str:
        ordered = starts[::-1] if self.transposed else starts
        return ", ".join([*(frame.value(r).text for r in self.leading), *ordered])


def boxes_of(access: Access, axes: tuple[Axis, Axis]) -> Boxes | None:
    """How TMA can move the blocks of an access; None where it cannot."""
    steps = access.steps
    if steps is None or access.gates:
        return None
    itemsize = access.buffer.dtype.itemsize
    along = [step_along(steps, axis.ranges) for axis in axes]
    if None in along or 1 not in along or min(s for s in along if s is not None) < 1:
        return None
    transposed = along[0] == 1 and along[1] != 1
    wide = along[1] if transposed else along[0]
    held = {*axes[0].ranges, *axes[1].ranges}
    leading = tuple(r for r in steps if r is not None and r not in held and steps[r])
    others = [wide, *(steps[r] for r in leading), steps.get(None, 0)]
    if any(step is None or step < 0 or step * itemsize % ALIGNED for step in others) or len(leading) + 2 > MOST_AXES:
        return None
    sizes = (axes[0].size, axes[1].size)
    inner = sizes[0] if transposed else sizes[1]
    if inner * itemsize < ALIGNED or max(sizes) > MOST_ALONG:
        return None
    first, second = (axis.ranges if axis.is_symbolic else axis.total for axis in axes)
    start = f"p{access.buffer.slot}" + (f" + {steps[None]}" if steps.get(None) else "")
    assert wide is not None
    return Boxes(start, tuple((r, steps[r]) for r in leading), transposed, sizes, (first, second), wide)


def describe(boxes: Boxes, outer: Frame) -> Described:
    """Writes the descriptor of such blocks before all else."""
    outer.writer.has_descriptors = True
    shape = [*(str(extent(r)) for r, _ in boxes.leading), *boxes.extents(outer)]
    strides = [*(str(step) for _, step in boxes.leading), str(boxes.wide), "1"]
    block = [*("1" for _ in boxes.leading), *map(str, boxes.ordered(boxes.sizes))]
    name = outer.lines.name(
        f"tl.make_tensor_descriptor({boxes.buffer}, shape=[{', '.join(shape)}], strides=[{', '.join(strides)}], "
        f"block_shape=[{', '.join(block)}])",
        "block",
    )
    return Described(name, tuple(r for r, _ in boxes.leading), boxes.transposed, boxes.sizes)


def step_along(steps: dict[UOp | None, int], ranges: Sequence[UOp]) -> int | None:
    """The step from one element to the next along ranges that are flattened; None where it is not always the same."""
    last = steps.get(ranges[-1], 0)
    inner = 1
    for axis in reversed(ranges):
        if steps.get(axis, 0) != last * inner:
            return None
        inner *= extent(axis)
    return last if math.prod(map(extent, ranges)) < 1 << 31 else None
