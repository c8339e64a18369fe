"""The buffers of one kernel on the device, with guard bytes around each, and launching binaries on them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from kcg.compat.hardware import device_memset, device_pieces, device_repeat
from kcg.compat.programs import load_program
from kcg.compat.tiny import Buffer, Device, UOp, dtypes
from kcg.kernel.compiled import Compiled
from kcg.kernel.compiler import to_elf
from kcg.measure.digest import DeviceDigest, copied
from kcg.measure.inputs import BufferInfo, Repeated, buffers_of, make_inputs, numpy_dtype
from kcg.measure.protocol import flush_bytes
from kcg.types import Target

GUARD_BYTES = 4096  # before and after each buffer; a multiple of every device's alignment
WIDE_GUARD_BYTES = 64 << 10  # of a buffer of at least a MiB: a stray row is longer there
GUARD_BYTE = 0xA5
DIGEST_ABOVE_BYTES = 1 << 20  # on a GPU, larger buffers are compared by their digests
SMALL_BYTES = 64 << 10  # up to here one copy of the whole buffer is fastest everywhere
COPY_WHOLE_BYTES = 4 << 20  # up to here one copy of a buffer is faster than a copy of each sampled element
NAN_POISON = 0xFF  # all bits set: NaN for every float, -1 for integers
FINITE_POISON = 0x3C  # a finite pattern for every float


class Workbench:
    """Buffers of one kernel, filled from one seed. A second kernel needs a second workbench."""

    def __init__(self, ast: UOp, target: Target) -> None:
        self.ast, self.target = ast, target
        self.device = target.device
        self.buffers: tuple[BufferInfo, ...] = buffers_of(ast)
        self.by_slot = {info.slot: info for info in self.buffers}
        self._bases: dict[int, Any] = {}
        self._views: dict[int, Any] = {}
        for info in self.buffers:
            width = guard_bytes(info.nbytes)
            base = Buffer(self.device, info.nbytes + 2 * width, dtypes.uint8).allocate()
            self._bases[info.slot] = base
            self._views[info.slot] = base.view(info.nbytes, dtypes.uint8, width).ensure_allocated()
            for guard in self._guards(info.slot):
                self._write(guard, np.full(width, GUARD_BYTE, np.uint8))
        self.inputs: dict[int, Any] = {}  # slot -> stored bits: arrays or `Repeated`
        self.seed: int | None = None
        self.recipe = ""

    @property
    def nbytes(self) -> int:
        """What its buffers take on the device, guards included."""
        return sum(base.nbytes for base in self._bases.values())

    def fill(self, seed: int, recipe: str) -> None:
        """Put the inputs of `seed` on the device, unless they are there."""
        if (self.seed, self.recipe) != (seed, recipe):
            self.seed = None  # until all of them are there
            self.inputs, self.recipe = make_inputs(self.ast, seed, recipe=recipe), recipe
            self.restore_inputs()
            self.seed = seed

    def restore_inputs(self, *, only_outputs: bool = False) -> None:
        """Write the inputs again; `only_outputs` writes just those that the kernel overwrites."""
        for slot, values in self.inputs.items():
            if not only_outputs or self.by_slot[slot].is_output:
                self._write_input(slot, values)

    def _write_input(self, slot: int, values: Any) -> None:
        view = self._views[slot]
        if not isinstance(values, Repeated):
            self._write(view, values)
            return
        (_, block), *others = values.chunks()
        self._write(view.view(block.nbytes, dtypes.uint8, 0).ensure_allocated(), block)
        if device_repeat(self.device, view._buf, block.nbytes, values.nbytes):
            return
        for first, part in others:
            piece = view.view(part.nbytes, dtypes.uint8, first * part.itemsize).ensure_allocated()
            self._write(piece, part)

    def poison(self, byte: int) -> None:
        """Fill every buffer that is only written with `byte`, and put back what in-place kernels read."""
        for info in self.buffers:
            if info.is_output and not info.is_input:
                view = self._views[info.slot]
                if not device_memset(self.device, view._buf, byte, info.nbytes):
                    self._write(view, np.full(info.nbytes, byte, np.uint8))
        self.restore_inputs(only_outputs=True)

    def read(self, slot: int) -> np.ndarray[Any, Any]:
        """The stored bits of one buffer, in its own dtype."""
        bits: np.ndarray[Any, Any] = copied(self._views[slot]).view(numpy_dtype(self.by_slot[slot].dtype))
        return bits

    def snapshot(self, slot: int) -> np.ndarray[Any, Any]:
        """What tells the contents of a buffer from any other: a copy, or a digest of a large one on a GPU."""
        view = self._views[slot]
        if self.device == "CPU" or view.nbytes <= DIGEST_ABOVE_BYTES:
            return copied(view)
        return _digest(self.target).of(view)

    def read_elements(self, slot: int, indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The stored bits of some elements: of a large buffer only these are copied back."""
        info = self.by_slot[slot]
        size, at = info.itemsize, self._views[slot]._buf
        if info.nbytes > SMALL_BYTES and len(indices):
            pieces = device_pieces(self.device, [(at, int(index) * size, size) for index in indices])
            if pieces is not None:
                return pieces.view(numpy_dtype(info.dtype))
        if info.nbytes <= COPY_WHOLE_BYTES:
            whole: np.ndarray[Any, Any] = self.read(slot)[indices]
            return whole
        found = np.empty(len(indices), numpy_dtype(info.dtype))
        raw = found.view(np.uint8).data
        for place, index in enumerate(indices):
            element = self._views[slot].view(size, dtypes.uint8, int(index) * size).ensure_allocated()
            element.allocator._copyout(raw[place * size : (place + 1) * size], element._buf)
        return found

    def _guards(self, slot: int) -> tuple[Any, Any]:
        """The bytes before and after a buffer."""
        base, nbytes = self._bases[slot], self.by_slot[slot].nbytes
        width = guard_bytes(nbytes)
        return tuple(base.view(width, dtypes.uint8, at).ensure_allocated() for at in (0, width + nbytes))

    def guards_intact(self) -> int | None:
        """The first slot whose guard bytes were written, or None. Repairs all guards, for the next binary's sake."""
        broken: int | None = None
        guards = [(slot, guard) for slot in self._bases for guard in self._guards(slot)]
        pieces = device_pieces(self.device, [(guard._buf, 0, guard.nbytes) for _, guard in guards])
        at = 0
        for slot, guard in guards:
            found = copied(guard) if pieces is None else pieces[at : at + guard.nbytes]
            at += guard.nbytes
            if (found != GUARD_BYTE).any():
                self._write(guard, np.full(guard.nbytes, GUARD_BYTE, np.uint8))
                self.seed = None  # what wrote here may have written into the inputs too
                broken = slot if broken is None else broken
        return broken

    def launcher(self, compiled: Compiled, *, as_tinygrad: bool = False) -> Callable[[], float]:
        """Load a binary; the callable launches it once on the whole grid and gives the device's seconds.

        `as_tinygrad` loads exactly what tinygrad would, also where the machine code is at hand and loads faster.
        """
        elf = to_elf(compiled, self.target, as_tinygrad=as_tinygrad)
        runtime = load_program(self.device, elf, shared_bytes=compiled.shared_bytes)
        # the buffers themselves, and not their addresses: whoever holds the callable keeps their memory
        views = [self._views[slot] for slot in compiled.slots]

        def launch() -> float:
            pointers = [view.get_buf(self.device) for view in views]
            seconds = runtime(
                *pointers, global_size=compiled.global_size, local_size=compiled.local_size, vals=compiled.values,
                wait=True,
            )  # fmt: skip
            return float(seconds)

        return launch

    def _write(self, buffer: Any, values: np.ndarray[Any, Any]) -> None:
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        buffer.allocator._copyin(buffer._buf, raw.data)
        Device[self.device].synchronize()


def guard_bytes(nbytes: int) -> int:
    """How many bytes are guarded before and after a buffer."""
    return GUARD_BYTES if nbytes < 1 << 20 else WIDE_GUARD_BYTES


@functools.cache
def _digest(target: Target) -> DeviceDigest:
    return DeviceDigest(target)


def free_cached_memory(target: Target) -> None:
    """Give back what tinygrad keeps of freed buffers for the next of their size, on the device and pinned on the host.

    The next kernel's buffers have other sizes: without this a child grows by every kernel that it has measured.
    """
    allocator = Device[target.device].allocator
    if hasattr(allocator, "free_cache"):
        allocator.free_cache()


class CacheFlusher:
    """Empties the last-level cache by writing well over its size. Allocates once."""

    def __init__(self, target: Target) -> None:
        self.size = flush_bytes(target.device, target.cache_bytes)
        self.device = target.device
        self._host: np.ndarray[Any, Any] | None = None
        self._fill: Callable[[], float] | None = None
        if target.device == "CPU":
            self._host = np.ones(self.size // 8, np.int64)  # touched: zeros would be mapped at the first flush
        else:
            self._fill = self._device_fill(target)

    def _device_fill(self, target: Target) -> Callable[[], float]:
        # a kernel of tinygrad's own that writes the whole buffer: a driver's memset may bypass the cache
        from tinygrad import Tensor

        from kcg.kernel.codec import kernel_of
        from kcg.kernel.compiler import compile_schedule
        from kcg.kernel.space import KernelSpace
        from kcg.types import Region

        elements = self.size // 4
        ast = (Tensor.empty(elements, device=target.device) + 1).schedule_linear().src[0].src[0]
        region = Region((kernel_of(ast),))
        bench = Workbench(ast, target)
        return bench.launcher(compile_schedule(region, KernelSpace(region, target).baseline(), target))

    def flush(self) -> None:
        if self._host is not None:
            self._host += 1
        elif self._fill is not None:
            self._fill()
