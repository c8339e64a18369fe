"""Matrix-vector products of one vector, each by itself or several in one launch.

Each streams a matrix and stores a value for each row. Alone, one is over before its last programs have made up for the
time that its first ones waited: 113 MB take 48 µs where memory needs 38. In one launch a program has rows of one of
them, by its number. Products that differ in their buffers alone, and in how many rows they have, are one text, whose
pointers are chosen by that number; others are texts one after another, each in a branch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.tile.emit import Chosen, Frame, choice
from kcg.kernel.tile.ir import Access, TileKernel, affine, buffer_of, extent, is_symbolic
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.tiles import launched_with, tiles_of

VECTORS = "products of one vector"
Vector = tuple[int, tuple[int, ...]]
"""A vector that is read: the slot of its buffer, its first element, and step and count along each range."""
Launched = tuple[TileKernel, TileParameters]


def vectors_of(kernel: TileKernel) -> frozenset[Vector]:
    """What a kernel multiplies the rows of a matrix with: what every row reads, in each of its sums. Nothing where it
    is no matrix-vector product: its sums are over the same ranges, one value for each row, none of another one's
    result, and each reads a matrix whose elements nobody else reads."""
    if kernel.contraction is not None or not kernel.reductions or kernel.also or kernel.variables:
        return frozenset()
    outputs, over = set(kernel.outputs), kernel.reductions[0].src[1:]
    if not outputs or any(axis.op is not Ops.RANGE or is_symbolic(axis) for axis in (*outputs, *over)):
        return frozenset()
    found: list[set[Vector]] = []
    for node in kernel.reductions:
        inside = node.src[0].backward_slice_with_self
        loads = [load for load in kernel.loads if load.node in inside]
        is_sum = node.arg[0] is Ops.ADD and node.src[1:] == over and set(node.ranges) == outputs
        if not is_sum or any(one in inside for one in kernel.reductions):
            return frozenset()
        if not any(_is_streamed(load, {*outputs, *over}) for load in loads):
            return frozenset()
        found.append({vector for load in loads if (vector := _vector(load, over)) is not None})
    return frozenset(set.intersection(*found))


def _is_streamed(load: Access, ranges: set[UOp]) -> bool:
    """Whether each point of a product reads an element of its own."""
    steps = load.steps
    if steps is None or load.gates or set(load.address.ranges) != ranges:
        return False
    width = 1
    for axis in sorted(ranges, key=lambda axis: abs(steps.get(axis, 0))):
        if abs(steps.get(axis, 0)) < width:
            return False
        width += abs(steps[axis]) * (extent(axis) - 1)
    return True


def _vector(load: Access, over: tuple[UOp, ...]) -> Vector | None:
    """A load that all rows have alike; None where it is another one."""
    steps = affine(load.address)
    if steps is None or load.gates or set(load.address.ranges) != set(over):
        return None
    along = (number for axis in over for number in (steps.get(axis, 0), extent(axis)))
    return load.buffer.slot, (steps.get(None, 0), *along)


# ---- products of one launch


def alike(kernel: TileKernel, parameters: TileParameters) -> list[list[Launched]]:
    """The products of a launch, those together that are one text."""
    found: list[list[Launched]] = []
    for one in launched_with(kernel, parameters):
        group = next((group for group in found if _are_one_text(group[0], one)), None)
        if group is None:
            found.append([one])
        else:
            group.append(one)
    return found


def _are_one_text(first: Launched, other: Launched) -> bool:
    """Whether two products differ in their buffers alone, and in rows of which no tile has one too many."""
    (mine, own), (theirs, of_theirs) = first, other
    whole = not any(math.prod(one.extents) % p.tile[0] for one, p in ((mine, own), (theirs, of_theirs)))
    if mine.extents[1:] != theirs.extents[1:] or (mine.extents != theirs.extents and not whole):
        return False
    return slots_of(mine, theirs) is not None


def slots_of(first: TileKernel, other: TileKernel) -> dict[int, int] | None:
    """Of each slot of a product that of another one which is the same on buffers of its own; None where it is not."""
    accesses = list(zip((first.store, *first.loads), (other.store, *other.loads), strict=False))
    pairs = {(one.buffer.slot, two.buffer.slot) for one, two in accesses}
    if len(first.loads) != len(other.loads) or len(first.outputs) != len(other.outputs):
        return None
    if any(len({pair[side] for pair in pairs}) < len(pairs) for side in (0, 1)):
        return None  # one buffer in the place of two
    if any(one.buffer.dtype is not two.buffer.dtype for one, two in accesses):
        return None
    new = {buffer_of(two.node): buffer_of(one.node) for one, two in accesses}
    new |= dict(zip(other.outputs, first.outputs, strict=True))
    for mine, own in zip(first.reductions, other.reductions, strict=False):
        new |= dict(zip(own.src[1:], mine.src[1:], strict=False))
    here, there = (UOp.sink(one.store.node, one.value, *one.gates) for one in (first, other))
    return dict(pairs) if there.substitute(new, walk=True) is here else None


def bind_products(frame: Frame, group: Sequence[Launched], number: str) -> str:
    """Binds the buffers of one of some products of one text, by a program's number among all of their tiles. Returns
    the number of its tile."""
    (first, _), *others = group
    if not others:
        return number
    ends = [0]
    for one in group:
        ends.append(ends[-1] + tiles_of(*one)[0])
    conditions = [frame.lines.name(frame.scalar_condition(f"{number} < {end}"), "is") for end in ends[1:-1]]

    maps = [found for one, _ in others if (found := slots_of(first, one)) is not None]
    for slot in sorted(maps[0]):
        slots = (slot, *(found[slot] for found in maps))
        if len(set(slots)) > 1:
            frame.pointers[slot] = Chosen.of(frame.lines, slots, conditions)
    return frame.lines.name(choice(conditions, number, *(f"{number} - {end}" for end in ends[1:-1])), "tile")
