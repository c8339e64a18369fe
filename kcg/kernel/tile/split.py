"""Split reductions: programs leave what their part comes to in the workspace, and a second launch adds it in order."""

from __future__ import annotations

import math

from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.emit import Block, Frame, Lines, Writer, compute_type
from kcg.kernel.tile.epilogue import store_tile
from kcg.kernel.tile.reduction import Part, accumulator, combine
from kcg.kernel.tile.tiles import Axis, bind_axis, flat_place, open_frame, start_of

SPLITS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SUM_TILE, SUM_WARPS = 1024, 4  # of the launch that adds partial sums


def partials_of(kernel: TileKernel) -> int:
    """How many values each part of a split reduction leaves for the second launch."""
    return len(kernel.reductions) * math.prod(kernel.extents)


def store_partials(frame: Frame, kernel: TileKernel, part: Part) -> None:
    """Stores what this part of the reductions came to, where the second launch looks for it."""
    place = flat_place(frame, kernel.outputs)
    conditions = frame.mask_of(place.axes, kernel.outputs)
    count = math.prod(kernel.extents)
    mask = f", mask={frame.all_of(conditions)}" if conditions else ""
    for which, node in enumerate(kernel.reductions):
        value = frame.value(node)
        offset = frame.lines.name(f"{part.number} * {len(kernel.reductions) * count} + {which * count}", "offset")
        if part.count * len(kernel.reductions) * count >= 1 << 31:
            raise UnsupportedTile("split", "2^31 partial sums or more")
        text = frame.cast(value, accumulator(node)).text
        at = f"workspace + {offset} + {place.text}"
        if not value.axes <= place.axes:  # the same for all elements along an axis, each of which stores it
            at += f" + tl.zeros({frame.shape(value.axes | place.axes)}, tl.int32{frame.layout and f', {frame.layout}'})"
        frame.lines.add(f"tl.store({at}, {text}{mask})")


def write_sums(kernel: TileKernel, parts: int, writer: Writer, layout: str = "") -> tuple[Lines, int]:
    """The second launch: adds so many parts in order, and computes what the kernel makes of the sums. Its blocks lie by
    a layout, where the program says so."""
    count = math.prod(kernel.extents)
    size = min(SUM_TILE, 1 << max(0, count - 1).bit_length())
    axis = Axis(kernel.outputs, size)
    frame = open_frame(kernel, writer, (size,), words=("elements",))
    frame.layout = layout
    number = frame.lines.name("tl.program_id(0)", "program")
    vector = bind_axis(frame, axis, 0, start_of(frame, number if axis.tiles > 1 else "0", axis))
    mask = f", mask={frame.masks[0]}, other=0" if frame.masks else ""
    body = Lines(writer, frame.lines)
    counter = writer.fresh("part")
    totals = []
    for which, node in enumerate(kernel.reductions):
        total = writer.fresh("acc")
        place = f"workspace + {counter} * {len(kernel.reductions) * count} + {which * count} + {vector}"
        first = place.replace(f"{counter} * {len(kernel.reductions) * count} + ", "")
        frame.lines.add(f"{total} = tl.load({first}{mask})")
        term = body.name(f"tl.load({place}{mask})")
        body.add(f"{total} = {combine(node, total, term)}")
        totals.append(total)
    frame.lines.extend(f"for {counter} in range(1, {parts}):", body, "what other programs summed")
    for node, total in zip(kernel.reductions, totals, strict=True):
        bound = Block(total, accumulator(node), frozenset({0}))
        frame.bound[node] = frame.cast(bound, compute_type(node))
    store_tile(frame, kernel.stored[0])
    return frame.lines, axis.tiles
