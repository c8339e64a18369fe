"""Filling a large buffer on the device: `kcg.measure.inputs.Hashed`, as a kernel of tinygrad's own.

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
from kcg.measure.inputs import BLOCK, HASH, SEGMENT, Hashed, slicing
from kcg.types import Region, Target

PIECES = (1 << 22, 1 << 16)  # elements that one launch fills
KEPT = 32  # blocks on the device
UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
WORDS = 4  # of a launch: first segment, key, and the two numbers of `slicing`


@cache
def filler(target: Target) -> DeviceFill:
    """The filler of a target, made once."""
    return DeviceFill(target)


class DeviceFill:
    """Fills buffers of one device. Raises DeviceError if the device does not compute the hash right."""

    def __init__(self, target: Target) -> None:
        self.target, self.device = target, target.device
        self._launches: dict[tuple[int, int], Callable[..., None]] = {}
        # by id: the array, so that it stays, and a copy on the device
        self._blocks: OrderedDict[int, tuple[Any, Any]] = OrderedDict()

    def __call__(self, view: Any, wanted: Hashed) -> None:
        """Write all elements of `wanted` into a buffer of its size in bytes."""
        width, block, at = wanted.dtype.itemsize, self._block(wanted.block), 0
        plan: list[tuple[int, int]] = []
        for piece in PIECES:
            while wanted.size - at >= piece:
                plan.append((piece, at))
                at += piece
        words = np.array([[first // SEGMENT, wanted.key, *slicing(wanted.by_kind)] for _, first in plan], np.uint32)
        if len(plan):
            asked = self._copied(words)
        for place, (piece, first) in enumerate(plan):
            part = view.view(piece * width, dtypes.uint8, first * width).ensure_allocated()
            told = asked.view(4 * WORDS, dtypes.uint8, 4 * WORDS * place).ensure_allocated()
            self._launch(width, piece)(part, block, told)
        if at < wanted.size:
            rest = wanted.window(at, wanted.size - at)
            part = view.view(rest.nbytes, dtypes.uint8, at * width).ensure_allocated()
            part.allocator._copyin(part._buf, rest.view(np.uint8).data)
        for first, values in wanted.ends:
            part = view.view(values.nbytes, dtypes.uint8, first * width).ensure_allocated()
            part.allocator._copyin(part._buf, np.ascontiguousarray(values).view(np.uint8).data)
        Device[self.device].synchronize()

    def _copied(self, values: np.ndarray[Any, Any]) -> Any:
        buffer = Buffer(self.device, values.nbytes, dtypes.uint8).allocate()
        buffer.allocator._copyin(buffer._buf, np.ascontiguousarray(values).view(np.uint8).reshape(-1).data)
        return buffer

    def _block(self, block: np.ndarray[Any, Any]) -> Any:
        if id(block) not in self._blocks:
            while len(self._blocks) >= KEPT:
                self._blocks.popitem(last=False)
            self._blocks[id(block)] = (block, self._copied(block))
        self._blocks.move_to_end(id(block))
        return self._blocks[id(block)][1]

    def _launch(self, width: int, piece: int) -> Callable[..., None]:
        if (width, piece) not in self._launches:
            self._launches[width, piece] = launcher_of(_kernel(width, piece), self.target)
            self._check(width, piece)
        return self._launches[width, piece]

    def _check(self, width: int, piece: int) -> None:
        block = np.random.default_rng(width).integers(0, 256, BLOCK * width, dtype=np.uint8).view(f"u{width}")
        for by_kind in (False, True):
            wanted = Hashed(block, piece, 0x12345678, by_kind)
            buffer = Buffer(self.device, wanted.nbytes, dtypes.uint8).allocate()
            self(buffer, wanted)
            found = np.empty(wanted.nbytes, np.uint8)
            buffer.allocator._copyout(found.data, buffer._buf)
            if not wanted.same_as(found.view(block.dtype)):
                raise DeviceError(f"{self.device} does not fill a buffer right: it cannot be trusted")


def launcher_of(ast: UOp, target: Target) -> Callable[..., None]:
    """A kernel of kcg's own, as tinygrad schedules it: launches it, without waiting, on its buffers in slot order."""
    from kcg.kernel.codec import kernel_of
    from kcg.kernel.space import KernelSpace

    region = Region((kernel_of(ast),))
    compiled = compile_schedule(region, KernelSpace(region, target).baseline(), target)
    runtime = Device[target.device].runtime(to_elf(compiled, target, as_tinygrad=False))

    def launch(*buffers: Any) -> None:
        runtime(
            *(buffers[slot].get_buf(target.device) for slot in compiled.slots), global_size=compiled.global_size,
            local_size=compiled.local_size, vals=compiled.values, wait=False,
        )  # fmt: skip

    return launch


def _kernel(width: int, piece: int) -> UOp:
    """`out[i] = block[start(segment of i) + place in it]` as an AST."""
    from tinygrad import Tensor

    def fill(out: UOp, block: UOp, words: UOp) -> UOp:
        segment, i = UOp.range(piece // SEGMENT, 0), UOp.range(SEGMENT, 1)
        x = (segment.cast(dtypes.uint32) + words[0]) * HASH[0] + words[1]
        x = (x ^ (x >> 15)) * HASH[1]
        x = (x ^ (x >> 13)) * HASH[2]
        start = (x >> 29) * words[2] + ((x >> 8) & words[3])
        value = block[start.cast(dtypes.int) + i]
        return out[segment * SEGMENT + i].store(value).end(segment, i).sink(arg=KernelInfo())

    held = UNSIGNED[width]
    buffers = [
        Tensor.empty(n, dtype=t, device="CPU") for n, t in ((piece, held), (BLOCK, held), (WORDS, dtypes.uint32))
    ]
    filled = buffers[0].custom_kernel(*buffers[1:], fxn=fill)[0]
    ast: UOp = filled.schedule_linear().src[0].src[0]
    return ast
