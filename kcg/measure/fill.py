"""Filling a large buffer on the device: the hash of `kcg.measure.inputs.places`, as a kernel of tinygrad's own.

One kernel for each width of an element and each of two sizes of a piece; what is left over is copied from the host.
The kernels are checked once against the host.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from kcg.compat.tiny import Buffer, Device, KernelInfo, UOp, dtypes
from kcg.errors import DeviceError
from kcg.kernel.compiler import compile_schedule, to_elf
from kcg.measure.inputs import HASH, KINDS, SEGMENT, TABLE, Hashed
from kcg.types import Region, Target

PIECES = (1 << 22, 1 << 16)  # elements that one launch fills
KEPT = 32  # tables on the device
UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
WORDS = 4  # of a launch: first element, key, mask of the hash of the element, mask of that of its segment


@cache
def filler(target: Target) -> DeviceFill:
    """The filler of a target, made once."""
    return DeviceFill(target)


class DeviceFill:
    """Fills buffers of one device. Raises DeviceError if the device does not compute the hash right."""

    def __init__(self, target: Target) -> None:
        self.target, self.device = target, target.device
        self._launches: dict[tuple[int, int], Callable[..., None]] = {}
        self._tables: OrderedDict[int, tuple[Any, Any]] = (
            OrderedDict()
        )  # by id: the array, so that it stays, and a copy

    def __call__(self, view: Any, wanted: Hashed) -> None:
        """Write all elements of `wanted` into a buffer of its size in bytes."""
        width, table, at = wanted.dtype.itemsize, self._table(wanted.table), 0
        plan: list[tuple[int, int]] = []
        for piece in PIECES:
            while wanted.size - at >= piece:
                plan.append((piece, at))
                at += piece
        masks = (TABLE // KINDS - 1, TABLE - TABLE // KINDS) if wanted.by_kind else (TABLE - 1, 0)
        words = np.array([[first & 0xFFFFFFFF, wanted.key, *masks] for _, first in plan], np.uint32)
        if len(plan):
            asked = self._copied(words)
        for place, (piece, first) in enumerate(plan):
            part = view.view(piece * width, dtypes.uint8, first * width).ensure_allocated()
            told = asked.view(4 * WORDS, dtypes.uint8, 4 * WORDS * place).ensure_allocated()
            self._launch(width, piece)(part, table, told)
        if at < wanted.size:
            rest = wanted.window(at, wanted.size - at)
            part = view.view(rest.nbytes, dtypes.uint8, at * width).ensure_allocated()
            part.allocator._copyin(part._buf, rest.view(np.uint8).data)
        Device[self.device].synchronize()

    def _copied(self, values: np.ndarray[Any, Any]) -> Any:
        buffer = Buffer(self.device, values.nbytes, dtypes.uint8).allocate()
        buffer.allocator._copyin(buffer._buf, np.ascontiguousarray(values).view(np.uint8).reshape(-1).data)
        return buffer

    def _table(self, table: np.ndarray[Any, Any]) -> Any:
        if id(table) not in self._tables:
            while len(self._tables) >= KEPT:
                self._tables.popitem(last=False)
            self._tables[id(table)] = (table, self._copied(table))
        self._tables.move_to_end(id(table))
        return self._tables[id(table)][1]

    def _launch(self, width: int, piece: int) -> Callable[..., None]:
        if (width, piece) not in self._launches:
            self._launches[width, piece] = self._compile(width, piece)
            self._check(width, piece)
        return self._launches[width, piece]

    def _compile(self, width: int, piece: int) -> Callable[..., None]:
        from kcg.kernel.codec import kernel_of
        from kcg.kernel.space import KernelSpace

        region = Region((kernel_of(_kernel(width, piece)),))
        compiled = compile_schedule(region, KernelSpace(region, self.target).baseline(), self.target)
        runtime = Device[self.device].runtime(to_elf(compiled, self.target, as_tinygrad=False))

        def launch(*buffers: Any) -> None:
            runtime(
                *(buffers[slot].get_buf(self.device) for slot in compiled.slots), global_size=compiled.global_size,
                local_size=compiled.local_size, vals=compiled.values, wait=False,
            )  # fmt: skip

        return launch

    def _check(self, width: int, piece: int) -> None:
        table = np.random.default_rng(width).integers(0, 256, TABLE * width, dtype=np.uint8).view(f"u{width}")
        for by_kind in (False, True):
            wanted = Hashed(table, piece, 0x12345678, by_kind)
            buffer = Buffer(self.device, wanted.nbytes, dtypes.uint8).allocate()
            self(buffer, wanted)
            found = np.empty(wanted.nbytes, np.uint8)
            buffer.allocator._copyout(found.data, buffer._buf)
            if not wanted.same_as(found.view(table.dtype)):
                raise DeviceError(f"{self.device} does not fill a buffer right: it cannot be trusted")


def _kernel(width: int, piece: int) -> UOp:
    """`out[i] = table[place(first + i)]` as an AST."""
    from tinygrad import Tensor

    def fill(out: UOp, table: UOp, words: UOp) -> UOp:
        i = UOp.range(piece, 0)
        index = i.cast(dtypes.uint32) + words[0]
        x = index * HASH[0] + words[1]
        x = (x ^ (x >> 15)) * HASH[1]
        x = (x ^ (x >> 13)) * HASH[2]
        kind = (index // SEGMENT) * HASH[0] + words[1]
        kind = (kind ^ (kind >> 15)) * HASH[1]
        place = ((x >> 16) & words[2]) | ((kind >> 16) & words[3])
        return out[i].store(table[place.cast(dtypes.int)]).end(i).sink(arg=KernelInfo())

    held = UNSIGNED[width]
    buffers = [
        Tensor.empty(n, dtype=t, device="CPU") for n, t in ((piece, held), (TABLE, held), (WORDS, dtypes.uint32))
    ]
    filled = buffers[0].custom_kernel(*buffers[1:], fxn=fill)[0]
    ast: UOp = filled.schedule_linear().src[0].src[0]
    return ast
