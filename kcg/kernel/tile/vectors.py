"""Matrix-vector products of one launch: a program has rows of one of them, by its number.

Products that differ in their buffers alone, and in how many rows they have, are one text, whose pointers are chosen by
that number; others are texts one after another, each in a branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kcg.compat.tiny import UOp
from kcg.kernel.ast import buffer_of
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.emit import Chosen, Frame, Lines, Writer, choice
from kcg.kernel.tile.tiles import Tiled


def alike(products: Sequence[Tiled]) -> list[list[Tiled]]:
    """The products of a launch, those together that are one text."""
    found: list[list[Tiled]] = []
    for one in products:
        group = next((group for group in found if _are_one_text(group[0], one)), None)
        if group is None:
            found.append([one])
        else:
            group.append(one)
    return found


def _are_one_text(first: Tiled, other: Tiled) -> bool:
    """Whether two products differ in their buffers alone, and in rows of which no tile has one too many."""
    mine, theirs = first.kernel, other.kernel
    whole = not any(math.prod(one.kernel.extents) % one.axes[0].size for one in (first, other))
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


def write_launch(
    products: Sequence[Tiled],
    writer: Writer,
    opened: Callable[[Tiled, Lines | None], Frame],
    write: Callable[[Tiled, Frame, str], None],
) -> Lines:
    """Tiles of a kernel, or of each product of a launch: a branch by the program's number where these are no one text.
    `opened` gives the frame of a kernel, with lines of its own where there are none; `write` writes what the tile with
    a number is."""
    first, *others = products
    if not others:
        root = opened(first, None)
        write(first, root, root.lines.name("tl.program_id(0)", "program"))
        return root.lines
    lines, groups, begin = Lines(writer), alike(products), 0
    number = lines.name("tl.program_id(0)", "program")
    for group in groups:
        (first, *_) = group
        frame = opened(first, lines if len(groups) == 1 else Lines(writer, lines))
        inside = frame.lines.name(f"{number} - {begin}", "tile") if begin else number
        write(first, frame, bind_products(frame, group, inside))
        tiles = sum(one.tiles for one in group)
        conditions = [f"({number} >= {begin})"] if begin else []
        conditions += [f"({number} < {begin + tiles})"] if group is not groups[-1] else []
        if conditions:
            lines.extend(f"if {' & '.join(conditions)}:", frame.lines)
        begin += tiles
    return lines


def bind_products(frame: Frame, group: Sequence[Tiled], number: str) -> str:
    """Binds the buffers of one of some products of one text, by a program's number among all of their tiles. Returns
    the number of its tile."""
    first, *others = group
    if not others:
        return number
    ends = [0]
    for one in group:
        ends.append(ends[-1] + one.tiles)
    conditions = [frame.lines.name(frame.scalar_condition(f"{number} < {end}"), "below") for end in ends[1:-1]]

    maps = [found for one in others if (found := slots_of(first.kernel, one.kernel)) is not None]
    for slot in sorted(maps[0]):
        slots = (slot, *(found[slot] for found in maps))
        if len(set(slots)) > 1:
            frame.pointers[slot] = Chosen.of(frame.lines, slots, conditions)
    return frame.lines.name(choice(conditions, number, *(f"{number} - {end}" for end in ends[1:-1])), "tile")
