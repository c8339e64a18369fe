"""Buffers on the device with guard bytes around each, such as those of a region, and launching programs on them."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from kcg.compat.hardware import device_memset, device_pieces
from kcg.compat.programs import HIDDEN_MOST_S, Spin, alone_s, device_seconds, hidden_s, spin_on
from kcg.compat.standalone import load_program
from kcg.compat.streams import Stream
from kcg.compat.tiny import Buffer, Device, UOp, dtypes
from kcg.errors import DeviceError
from kcg.kernel.chain import Chain
from kcg.kernel.compile import to_elf
from kcg.kernel.program import Compiled, Executable, Program, Scratch, program_of_parts
from kcg.measure.inputs import (
    BufferInfo,
    Hashed,
    buffers_of_kernels,
    filler,
    launcher_of,
    make_inputs_of_kernels,
    numpy_dtype,
)
from kcg.measure.protocol import flush_bytes
from kcg.types import Region, Target

# ---- Comparing what is on a device without copying it: a digest of a buffer, computed there by kernels of tinygrad's
# own.
#
# Each word of four bytes is mixed (so that a change of its high bits, a sign, reaches the low ones), multiplied by an
# odd number that depends on its place, mixed again, and 4096 of them are summed modulo 2**32. A change of one word
# always changes its sum, any other all but certainly. The kernels are compiled once, for pieces of two sizes, so that
# no buffer needs further ones. The last piece of a buffer reaches back into the one before it: a launch takes the host
# longer than the device needs for a piece.

COLUMNS = 4096  # words that are summed
ROWS = (1024, 64)  # sums of one piece, of 16 MiB or, of smaller buffers, 1 MiB; what is smaller still is copied
ALIGNED = 16  # bytes, at which a piece begins; what is left behind the last one is copied
MIX = 3266489917  # an odd constant of xxHash's last step
ODD = 2654435761  # neighbouring places get unrelated factors (Knuth's multiplicative hash)

Words = np.ndarray[Any, Any]


def expected_sums(words: Words) -> Words:
    """What the kernels compute for whole rows of `words` (uint32), in NumPy."""
    places = np.arange(len(words), dtype=np.uint32)
    factors = (places * np.uint32(ODD)) | np.uint32(1)
    mixed = (words ^ (words >> 15)) * factors
    mixed = (mixed ^ (mixed >> 13)) * np.uint32(MIX)
    sums: Words = (mixed ^ (mixed >> 16)).reshape(-1, COLUMNS).sum(1, dtype=np.uint32)
    return sums


class DeviceDigest:
    """Digests of buffers on one device. Raises DeviceError if the device does not compute them right."""

    def __init__(self, target: Target) -> None:
        self.device = target.device
        self._pieces = [(rows, self._compile(rows, target)) for rows in ROWS]
        for rows, launch in self._pieces:
            self._check(rows, launch)

    def _compile(self, rows: int, target: Target) -> Callable[[Any, Any], None]:
        from tinygrad import Tensor

        words = Tensor.empty(rows, COLUMNS, dtype=dtypes.uint32, device=target.device)
        places = Tensor.arange(rows * COLUMNS, dtype=dtypes.uint32).reshape(rows, COLUMNS)
        mixed = (words ^ (words >> 15)) * (places * ODD).bitwise_or(1)
        mixed = (mixed ^ (mixed >> 13)) * MIX
        summed = (mixed ^ (mixed >> 16)).sum(1, dtype=dtypes.uint32)
        (call,) = summed.schedule_linear().src
        return launcher_of(call.src[0], target)

    def _check(self, rows: int, launch: Callable[[Any, Any], None]) -> None:
        words = np.random.default_rng(rows).integers(0, 1 << 32, rows * COLUMNS, dtype=np.uint32)
        source = Buffer(self.device, words.nbytes, dtypes.uint8).allocate()
        source.allocator._copyin(source._buf, words.view(np.uint8).data)
        sums = Buffer(self.device, 4 * rows, dtypes.uint8).allocate()
        launch(sums, source)
        if not np.array_equal(copied(sums).view(np.uint32), expected_sums(words)):
            raise DeviceError(f"{self.device} does not compute the digest of a buffer right: it cannot be trusted")

    def of(self, buffer: Any) -> Words:
        """The digest of a buffer: equal for equal contents. `buffer` is one of bytes, its view included."""
        rows, launch = next((one for one in self._pieces if 4 * one[0] * COLUMNS <= buffer.nbytes), (0, None))
        if launch is None:
            return copied(buffer)
        size, whole = 4 * rows * COLUMNS, buffer.nbytes // ALIGNED * ALIGNED
        places = [*range(0, whole - size, size), whole - size]
        sums = Buffer(self.device, 4 * rows * len(places), dtypes.uint8).allocate()
        for number, place in enumerate(places):
            launch(_part(sums, 4 * rows, 4 * rows * number), _part(buffer, size, place))
        rest = buffer.nbytes - whole
        return np.concatenate([copied(sums), *([copied(_part(buffer, rest, whole))] if rest else [])])


def _part(buffer: Any, nbytes: int, offset: int) -> Any:
    return buffer.view(nbytes, dtypes.uint8, offset).ensure_allocated()


def copied(buffer: Any) -> Words:
    """The bytes of a buffer on the host, after everything that was launched before."""
    found = np.empty(buffer.nbytes, np.uint8)
    Device[buffer.device].synchronize()
    buffer.allocator._copyout(found.data, buffer._buf)
    return found


HOST_S = 100e-6  # for which the device is kept busy at first, per launch: what the host may take to send it off
HIDES_HOST = ("CUDA",)  # devices that can be kept busy until the host has sent a launch off
LATELY = 4  # runs whose launches say how long the host takes for the next ones
GUARD_BYTES = 4096  # before and after each buffer, at least; a multiple of every device's alignment
WIDE_GUARD_BYTES = 64 << 10  # and at most: a stray row of a large buffer is long
GUARD_BYTE = 0xA5
OTHER_GUARDS = (0xFF, 0x7B, 0xFB)
"""Bytes around the buffers in some runs, so that who reads there computes something else: NaN of every float, then
numbers far above and far below all others (of float32 and bfloat16 1.3e36, of float16 61,000)."""
FILLED_ON_CPU = 1 << 22  # elements from which even a CPU's buffer is filled by a kernel
KEPT_WHOLE_BYTES = 16 << 20  # the inputs of a CPU's smaller buffers are kept whole, to be restored and compared
DIGEST_ABOVE_BYTES = 1 << 20  # on a GPU, larger buffers are compared by their digests
SMALL_BYTES = 64 << 10  # up to here one copy of the whole buffer is fastest everywhere
MOST_PIECES = 1 << 10  # elements of a device's buffer that are written one by one
COPY_WHOLE_BYTES = 4 << 20  # up to here one copy of a buffer is faster than a copy of each sampled element
COMMON_WIDTHS = (2, 4)  # bytes of an element
NAN_POISON = 0xFF  # all bits set: NaN for every float, -1 for integers
FINITE_POISON = 0x3C  # a finite pattern for every float
ZERO_POISON = 0  # what fresh memory often holds


class Bench:
    """Buffers with guards around each, filled from one seed, poisoned before a run and looked at after it."""

    def __init__(self, buffers: Iterable[BufferInfo], target: Target) -> None:
        self.target, self.device = target, target.device
        self.buffers: tuple[BufferInfo, ...] = ()
        self.by_slot: dict[int, BufferInfo] = {}
        self._bases: dict[int, Any] = {}
        self._views: dict[int, Any] = {}
        self._guards: dict[int, list[Any]] = {}  # the bytes before and after each
        for info in buffers:
            self._allocate(info)
        self._guard_byte = -1
        self.guard(GUARD_BYTE)
        self.poisoned_with = NAN_POISON
        self.inputs: dict[int, Any] = {}  # slot -> stored bits: arrays or `Hashed`
        self.seed: int | None = None
        self.recipe = ""

    def _allocate(self, info: BufferInfo) -> None:
        width = guard_bytes(info.nbytes)
        base = Buffer(self.device, info.nbytes + 2 * width, dtypes.uint8).allocate()
        self.buffers, self.by_slot[info.slot] = (*self.buffers, info), info
        self._bases[info.slot] = base
        self._views[info.slot] = base.view(info.nbytes, dtypes.uint8, width).ensure_allocated()
        at = (0, width + info.nbytes)
        self._guards[info.slot] = [base.view(width, dtypes.uint8, place).ensure_allocated() for place in at]

    def _new_inputs(self, seed: int, recipe: str) -> dict[int, Any]:
        """Slot -> stored bits of what is read, as `make_inputs` makes them."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """What its buffers take on the device, guards included."""
        return sum(base.nbytes for base in self._bases.values())

    def fill(self, seed: int, recipe: str) -> None:
        """Put the inputs of `seed` on the device, unless they are there."""
        if (self.seed, self.recipe) != (seed, recipe):
            self.seed = None  # until all of them are there
            self.inputs, self.recipe = self._new_inputs(seed, recipe), recipe
            if self.device == "CPU":
                for slot, bits in self.inputs.items():
                    if isinstance(bits, Hashed) and bits.nbytes <= KEPT_WHOLE_BYTES:
                        self.inputs[slot] = bits.whole()
            self.restore_inputs()
            self.seed = seed

    def restore_inputs(self, *, only_outputs: bool = False) -> None:
        """Write the inputs again; `only_outputs` writes just those that the kernel overwrites."""
        for slot, values in self.inputs.items():
            if not only_outputs or self.by_slot[slot].is_output:
                self._write_input(slot, values)

    def _write_input(self, slot: int, values: Any) -> None:
        view = self._views[slot]
        if not isinstance(values, Hashed):
            self._write(view, values)
        elif self.device != "CPU" or values.size >= FILLED_ON_CPU:
            filler(self.target)(view, values)
        else:
            for first, part in values.chunks():
                self._write(view.view(part.nbytes, dtypes.uint8, first * part.itemsize).ensure_allocated(), part)

    def poison(self, byte: int) -> None:
        """Fill every buffer that is only written with `byte`, and put back what in-place kernels read."""
        self.poisoned_with = byte
        self._set([self._views[i.slot] for i in self.buffers if i.is_output and not i.is_input], byte)
        self.restore_inputs(only_outputs=True)

    def disturb(
        self, slot: int, count: int, rng: np.random.Generator, *, among: np.ndarray[Any, Any] | None = None
    ) -> None:
        """Change up to `count` elements of a buffer: of those in `among`, by default all but the first and the last
        where there are others."""
        info, view = self.by_slot[slot], self._views[slot]
        if among is None:
            first, end = (1, info.size - 1) if info.size > 2 else (0, info.size)
            chosen = np.unique(rng.integers(first, end, count))
        else:
            chosen = rng.choice(among, min(count, among.size), replace=False)
        for element, bits in zip(chosen, self.read_elements(slot, chosen), strict=True):
            part = view.view(info.itemsize, dtypes.uint8, int(element) * info.itemsize).ensure_allocated()
            self._write(part, np.array([bits]).view(np.uint8) ^ np.uint8(0x55))

    def put(self, slot: int, elements: np.ndarray[Any, Any]) -> None:
        """Write some elements of an input, which is kept as an array, as they are there now."""
        view, values = self._views[slot], self.inputs[slot]
        if (host := on_host(view)) is not None:
            host.view(values.dtype)[elements] = values[elements]
        elif values.nbytes <= SMALL_BYTES or len(elements) > MOST_PIECES:
            self._write(view, values)
        else:
            for element in map(int, elements):
                part = view.view(values.itemsize, dtypes.uint8, element * values.itemsize).ensure_allocated()
                self._write(part, values[element : element + 1])

    def guard(self, byte: int) -> None:
        """Fill what lies before and after every buffer with `byte`, unless it holds that."""
        if byte != self._guard_byte:
            self._set([guard for some in self._guards.values() for guard in some], byte)
            self._guard_byte = byte

    def with_guards(self, slot: int, nbytes: int) -> Any:
        """A buffer and as many guard bytes behind it as make `nbytes`."""
        return self._bases[slot].view(nbytes, dtypes.uint8, guard_bytes(self.by_slot[slot].nbytes)).ensure_allocated()

    def fill_with(self, buffer: Any, byte: int) -> None:
        """Fill a buffer on the device of the bench."""
        self._set([buffer], byte)

    def _set(self, buffers: Sequence[Any], byte: int) -> None:
        """Fill buffers, all of one device. A wait for each would take longer than filling a short kernel's."""
        if self.device == "CPU":
            for buffer in buffers:
                host = on_host(buffer)
                assert host is not None
                host.fill(byte)
        elif not device_memset(self.device, [(one._buf, one.nbytes) for one in buffers], byte):
            for buffer in buffers:
                self._write(buffer, np.full(buffer.nbytes, byte, np.uint8))

    def read(self, slot: int) -> np.ndarray[Any, Any]:
        """The stored bits of one buffer, in its own dtype."""
        bits: np.ndarray[Any, Any] = copied(self._views[slot]).view(numpy_dtype(self.by_slot[slot].dtype))
        return bits

    def snapshot(self, slot: int) -> np.ndarray[Any, Any]:
        """What tells the contents of a buffer from any other: a copy, or a digest of a large one on a GPU."""
        return contents_of(self._views[slot], self.target)

    def holds(self, slot: int, snapshot: np.ndarray[Any, Any]) -> bool:
        """Whether a buffer holds what it held when the snapshot was taken."""
        host = on_host(self._views[slot])
        return _same_bits(self.snapshot(slot) if host is None else host, snapshot)

    def holds_input(self, slot: int) -> bool:
        """Whether a buffer holds the inputs that were filled in; a CPU's is looked at in place."""
        host, bits = on_host(self._views[slot]), self.inputs[slot]
        found = self.read(slot) if host is None else host.view(numpy_dtype(self.by_slot[slot].dtype))
        return bits.same_as(found) if isinstance(bits, Hashed) else _same_bits(found, bits)

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

    def guards_intact(self) -> int | None:
        """The first slot whose guard bytes were written, or None. Repairs all guards, for the next binary's sake."""
        broken: int | None = None
        guards = [(slot, guard) for slot, some in self._guards.items() for guard in some]
        pieces = device_pieces(self.device, [(guard._buf, 0, guard.nbytes) for _, guard in guards])
        at = 0
        for slot, guard in guards:
            host = on_host(guard)
            if host is None:
                host = copied(guard) if pieces is None else pieces[at : at + guard.nbytes]
            found = host
            at += guard.nbytes
            if (found != self._guard_byte).any():
                self._set([guard], self._guard_byte)
                self.seed = None  # what wrote here may have written into the inputs too
                broken = slot if broken is None else broken
        return broken

    def _write(self, buffer: Any, values: np.ndarray[Any, Any]) -> None:
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        buffer.allocator._copyin(buffer._buf, raw.data)
        Device[self.device].synchronize()


class Workbench(Bench):
    """Buffers of one region by their numbers, and behind them those of programs for it. A second region needs a second
    workbench.

    A launch has about 5 us of its own between two events, so launches that are timed one by one pay what a program does
    not: those of a region of several kernels follow each other between one pair of events, behind a device that is kept
    busy until the host has sent them all. On a CPU it is one span of the host's clock. That is the same for every
    contender, for programs of one launch too. Programs for one kernel are timed so as well, since a host between the
    two events adds its own noise (on one NVIDIA H200 kernels of 2 and of 4 us read 14 and 15), and pay once what a
    launch alone takes (the same in all processes). Intermediates and workspaces are guarded, and poisoned
    like outputs.
    """

    def __init__(self, region: Region, target: Target) -> None:
        self.region, self.chain = region, Chain(region)
        super().__init__(buffers_of_kernels(self.chain.asts), target)
        self._region_buffers = 1 + max(self.by_slot, default=-1)
        self._scratch: dict[tuple[int, Scratch], int] = {}  # which of a program's, what it is -> slot

    @property
    def ast(self) -> UOp:
        """The kernel of a region of one."""
        (only,) = self.chain.asts
        return only

    @property
    def outputs(self) -> tuple[int, ...]:
        """The slots whose contents count after a run."""
        if self.region.args:
            return self.region.outputs
        return tuple(info.slot for info in self.buffers if info.is_output and info.slot < self._region_buffers)

    @functools.cached_property
    def _spin(self) -> Spin:
        return spin_on(self.device)

    def _new_inputs(self, seed: int, recipe: str) -> dict[int, Any]:
        return make_inputs_of_kernels(self.chain.asts, seed, recipe=recipe)

    def launcher(self, runs: Executable, *, as_tinygrad: bool = False) -> Callable[[], float]:
        """Load a binary or a program; the callable runs it once on the whole grid and gives the device's seconds, of
        several launches those of all of it.

        `as_tinygrad` loads exactly what tinygrad would, also where the machine code is at hand and loads faster.
        """
        sends = self._senders(runs, as_tinygrad)
        if len(sends) == len(self.region.kernels) == 1 and self.device not in HIDES_HOST:
            return lambda: float(sends[0](wait=True))
        together = self._timed_as_one(sends)
        return together if len(self.region.kernels) > 1 else lambda: together() + alone_s(self.device)

    def sender(self, runs: Executable, stream: Stream | None = None) -> Callable[[], None]:
        """As tinygrad would load it; the callable sends all its launches off and waits for none, on tinygrad's own
        stream where no other one is given."""
        sends = self._senders(runs, True, stream)

        def send() -> None:
            for one in sends:
                one()

        return send

    def _senders(self, runs: Executable, as_tinygrad: bool, stream: Stream | None = None) -> list[Callable[..., Any]]:
        program = runs if isinstance(runs, Program) else program_of_parts(self.region, [runs])
        slots = [*range(program.buffers), *(self._slot_of(i, one) for i, one in enumerate(program.scratch))]
        return [
            self._sender(launch.compiled, [self._views[slots[number]] for number in launch.args], as_tinygrad, stream)
            for launch in program.launches
        ]

    def _sender(
        self, compiled: Compiled, views: list[Any], as_tinygrad: bool, stream: Stream | None
    ) -> Callable[..., Any]:
        """One launch on buffers. The buffers themselves, and not their addresses: who holds this keeps their memory."""
        elf = to_elf(compiled, self.target, as_tinygrad=as_tinygrad)
        runtime = load_program(self.device, elf, shared_bytes=compiled.shared_bytes)
        runtime = runtime if stream is None else stream.program(runtime)

        def send(*, wait: bool = False) -> Any:
            pointers = [view.get_buf(self.device) for view in views]
            sizes = {"global_size": compiled.global_size, "local_size": compiled.local_size}
            return runtime(*pointers, **sizes, vals=compiled.values, wait=wait)

        return send

    def _timed_as_one(self, sends: list[Callable[..., Any]]) -> Callable[[], float]:
        least_s = HOST_S * len(sends)
        lately: deque[float] = deque(maxlen=LATELY)  # what the host took to send them off

        def run() -> float:
            begin, sent = time.perf_counter(), 0.0

            def sending() -> None:
                nonlocal sent
                for send in sends:
                    send()
                sent = time.perf_counter() - begin

            # a host that was slower than it had time for gets more; the first launches also load their binaries, which
            # took 15 ms of a run of five and is not waited for again and again
            self._spin(min(max([least_s, *map(hidden_s, lately)]), HIDDEN_MOST_S))
            seconds = device_seconds(self.device, sending)
            lately.append(sent)
            return seconds

        return run

    def _slot_of(self, place: int, scratch: Scratch) -> int:
        """A buffer of a program's own. Programs that ask for the same share it: they never run at once."""
        if (place, scratch) not in self._scratch:
            slot = self._region_buffers + len(self._scratch)
            itemsize = next(d for d in dtypes.all if d.name == scratch.dtype).itemsize
            self._allocate(BufferInfo(slot, scratch.elements, scratch.dtype, itemsize, is_output=True, is_input=False))
            self._scratch[place, scratch] = slot
            self._guard_byte, byte = -1, self._guard_byte  # around the new one too
            self.guard(byte)
        return self._scratch[place, scratch]


def on_host(buffer: Any) -> np.ndarray[Any, Any] | None:
    """The bytes of a CPU's buffer in place, after everything that was launched before; None of any other device."""
    if buffer.device != "CPU":
        return None
    return np.frombuffer(buffer.as_memoryview(force_zero_copy=True), np.uint8)


def _same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays of one type hold the same bits: NaN equals itself, and -0 is not 0."""
    x, y = (np.ascontiguousarray(side).reshape(-1).view(np.uint8) for side in (a, b))
    whole = len(x) // 8 * 8  # byte by byte it takes twice as long
    return len(x) == len(y) and all(
        np.array_equal(x[part].view(kind), y[part].view(kind))
        for part, kind in ((slice(whole), np.uint64), (slice(whole, None), np.uint8))
    )


def guard_bytes(nbytes: int) -> int:
    """How many bytes are guarded before and after a buffer: as many as it has, within limits."""
    return min(max(-(-nbytes // GUARD_BYTES) * GUARD_BYTES, GUARD_BYTES), WIDE_GUARD_BYTES)


def contents_of(buffer: Any, target: Target) -> Words:
    """What tells the contents of a buffer of bytes from any other: a copy, or a digest of a large one on a GPU."""
    if target.device == "CPU" or buffer.nbytes <= DIGEST_ABOVE_BYTES:
        return copied(buffer)
    return _digest(target).of(buffer)


@functools.cache
def _digest(target: Target) -> DeviceDigest:
    return DeviceDigest(target)


def prepare_own_kernels(target: Target) -> None:
    """Compile kcg's own kernels that nearly every bench of a GPU runs: a tenth of a second or more each."""
    if target.device != "CPU":
        _digest(target)
        for width in COMMON_WIDTHS:
            filler(target).prepare(width)


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
        from kcg.kernel.compile import compile_schedule
        from kcg.kernel.kinds import baseline_of

        elements = self.size // 4
        ast = (Tensor.empty(elements, device=target.device) + 1).schedule_linear().src[0].src[0]
        region = Region((kernel_of(ast),))
        bench = Workbench(region, target)
        return bench.launcher(compile_schedule(region, baseline_of(region, target), target))

    def flush(self) -> None:
        if self._host is not None:
            self._host += 1
        elif self._fill is not None:
            self._fill()
