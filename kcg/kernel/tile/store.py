"""The store of a tile: through pointers with a mask, or by the descriptor of the output."""

from __future__ import annotations

from kcg.kernel.tile.descriptors import Described
from kcg.kernel.tile.emit import TYPES, Frame
from kcg.kernel.tile.ir import TileKernel


def store_tile(
    frame: Frame, kernel: TileKernel, described: Described | None = None, starts: tuple[str, str] = ("", "")
) -> None:
    """Stores the kernel's value in the place that it belongs to: by the descriptor of its buffer where there is one, as
    the block that begins at `starts`."""
    value = frame.narrow(kernel.value, TYPES[kernel.store.buffer.dtype])
    if described is not None:
        text = value.text
        if value.axes != frozenset({0, 1}):
            text = f"tl.broadcast_to({frame.atom(value)}, {frame.shape(frozenset({0, 1}))})"
        frame.lines.add(described.store(frame, starts, text))
        return
    pointer, conditions, axes = frame.access(kernel.store, [g for g in kernel.gates if g not in kernel.store.gates])
    place = frame.address(kernel.store.address)
    if axes | value.axes != place.axes:
        pointer = f"{pointer} + tl.zeros({frame.shape(axes | value.axes)}, tl.int32)"
    mask = f", mask={frame.all_of(conditions)}" if conditions else ""
    frame.lines.add(f"tl.store({pointer}, {value.text}{mask})")
