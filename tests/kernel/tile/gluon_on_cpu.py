"""Programs in Gluon run on the CPU, where Triton's interpreter knows no specialised warps.

The generated functions run as they are, on NumPy's arrays: `gl` and what it has for Hopper are stand-ins. Each group of
warps is a generator that stops where it waits or tells others something, and copies by TMA land whenever the schedule
says so, in both directions. Barriers have phases as the hardware's do. What the hardware would not notice is an error
here: a block that is overwritten while it is read or sent, a read of a block that is on its way, an arrival too many,
no fence between what a group and TMA do with a block, an element outside of a buffer or stored twice; and so is a
program of which all wait.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from kcg.compat.tiny import dtypes
from kcg.kernel.tile.program import TileSource
from kcg.measure.inputs import numpy_dtype, to_values
from tests.kernel.tile.running import Case, differing, question_of

TOGETHER = 16  # rows of a product that are made at once: of so few BLAS wakes no threads, which took most of the time
TYPES = ("float32", "float16", "bfloat16", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
ALIGNED = 16  # bytes at which TMA begins, after the corner of a block too: else an illegal instruction
LAYOUTS = ("NVMMADistributedLayout", "DistributedLinearLayout", "DotOperandLayout", "SliceLayout")
Condition = Callable[[], bool]


class ProtocolError(AssertionError):
    """Groups of warps that wait for each other, or that do not wait where they should."""


class Block(np.ndarray):
    """A tensor, as far as programs use one: integers are divided towards 0, and shifted ones keep their type."""

    def to(self, dtype: str, bitcast: bool = False) -> Block:
        return block(as_bits(self, dtype) if bitcast else rounded(self, dtype))

    def __lshift__(self, other: Any) -> Any:
        return block(np.left_shift(np.asarray(self), np.asarray(other).astype(self.dtype)))

    def __rshift__(self, other: Any) -> Any:
        return block(np.right_shift(np.asarray(self), np.asarray(other).astype(self.dtype)))

    def __floordiv__(self, other: Any) -> Any:
        return block(np.trunc(np.asarray(self) / np.asarray(other)).astype(np.int64))

    def __mod__(self, other: Any) -> Any:
        return block(np.fmod(np.asarray(self), np.asarray(other)))

    def permute(self, *order: Any) -> Block:
        return block(self.transpose(*order))

    def split(self) -> tuple[Block, Block]:
        return block(self[..., 0]), block(self[..., 1])


def block(values: Any) -> Block:
    return np.asarray(values).view(Block)


def rounded(values: Any, dtype: str) -> np.ndarray:
    """Values as a type holds them, in one that NumPy computes with."""
    values = np.asarray(values)
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        even = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(values), np.float32("nan"), even.view(np.float32))
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    return values.astype(dtype)


def as_bits(values: Any, dtype: str) -> np.ndarray:
    """The values that bits of integers are in another type, in one that NumPy computes with."""
    values = np.asarray(values)
    if not np.issubdtype(values.dtype, np.integer) or values.dtype.itemsize != np.dtype(dtype).itemsize:
        raise NotImplementedError(f"bits of {values.dtype} as {dtype}")
    found = values.view(dtype)
    return found.astype(np.float32) if dtype == "float16" else found


# ---- memory


@dataclass
class Memory:
    """A buffer's elements, and how often each was stored."""

    values: np.ndarray
    type: str
    stores: np.ndarray


@dataclass(frozen=True)
class Pointer:
    memory: Memory
    offset: Any = 0
    type: str = ""  # of integers that are made of bytes; else the buffer's own

    def __add__(self, other: Any) -> Pointer:
        return replace(self, offset=self.offset + other)

    def __getitem__(self, place: Any) -> Pointer:
        return replace(self, offset=self.offset[place])

    def to(self, dtype: str) -> Pointer:
        return replace(self, type=dtype)

    @property
    def values(self) -> np.ndarray:
        """The buffer's elements, whole ones of this type."""
        values = self.memory.values
        return values[: len(values) & -np.dtype(self.type).itemsize].view(self.type) if self.type else values

    def load(self, mask: Any = True, other: Any = 0) -> Block:
        places, mask = np.broadcast_arrays(self.offset, mask)
        self._check(places[mask])
        found = self.values[np.where(mask, places, 0)]
        return block(np.where(mask, found, other).astype(found.dtype))

    def store(self, values: Any, mask: Any = True) -> None:
        places, mask, values = np.broadcast_arrays(self.offset, mask, values)
        self._check(places[mask])
        self.memory.values[places[mask]] = rounded(values[mask], self.memory.type)
        np.add.at(self.memory.stores, places[mask], 1)

    def _check(self, places: np.ndarray) -> None:
        if places.size and not 0 <= places.min() <= places.max() < self.values.size:
            raise ProtocolError("an element outside of its buffer")


@dataclass(frozen=True)
class Descriptor:
    """Blocks in memory, of which elements outside are 0."""

    start: Pointer
    shape: Sequence[int]
    strides: Sequence[int]
    sizes: tuple[int, ...]

    def read(self, corner: Sequence[Any]) -> np.ndarray:
        places, exists = self._places(corner)
        return np.asarray(places.load(exists))

    def write(self, corner: Sequence[Any], values: np.ndarray) -> None:
        places, exists = self._places(corner)
        places.store(values, exists)

    def _places(self, corner: Sequence[Any]) -> tuple[Pointer, np.ndarray]:
        """Where a block's elements are, and which of them are inside."""
        places, exists = np.zeros(self.sizes, np.int64), np.ones(self.sizes, bool)
        for axis, first in enumerate(corner):
            numbers = np.arange(self.sizes[axis]) + int(first)
            numbers = numbers.reshape([-1 if a == axis else 1 for a in range(len(self.sizes))])
            places = places + numbers * int(self.strides[axis])
            exists = exists & (numbers >= 0) & (numbers < int(self.shape[axis]))
        return self.start + np.where(exists, places, 0), exists


@dataclass
class Slot:
    """A block of shared memory."""

    name: str
    values: np.ndarray
    itemsize: int  # bytes of an element, which NumPy may hold in more
    running: Callable[[], Warps]  # the group that runs now
    filling: bool = False
    readers: int = 0  # products that run, and blocks that are sent
    fills: int = 0
    unfenced: list[Warps] = field(default_factory=list)  # who used it with no fence since, before which TMA may not
    stored: list[Warps] = field(default_factory=list)  # who stored it with no fence since: no product may read it


def as_it_is(values: np.ndarray) -> np.ndarray:
    return values


@dataclass(frozen=True)
class View:
    """A slot, or several, as an operand."""

    slots: list[Slot]
    turn: Callable[[np.ndarray], np.ndarray] = as_it_is

    @property
    def slot(self) -> Slot:
        (slot,) = self.slots
        return slot

    def index(self, number: Any) -> View:
        if not 0 <= int(number) < len(self.slots):
            raise ProtocolError(f"slot {number} of {len(self.slots)}")
        return View([self.slots[int(number)]])

    def reshape(self, sizes: tuple[int, ...]) -> View:
        return View(self.slots, lambda values: self.turn(values).reshape(sizes))

    def permute(self, order: tuple[int, ...]) -> View:
        return View(self.slots, lambda values: self.turn(values).transpose(order))

    def reinterpret(self, dtype: str, sizes: Sequence[int], _layout: None) -> View:
        """A block of bytes as words of these."""
        return View(self.slots, lambda values: np.ascontiguousarray(self.turn(values)).view(dtype).reshape(sizes))

    def read(self) -> np.ndarray:
        if self.slot.filling or not self.slot.fills:
            raise ProtocolError(f"{self.slot.name} is read before its copy is there")
        return self.turn(self.slot.values)

    def load(self, _layout: None) -> Block:
        """The block in registers of a group."""
        self.slot.unfenced.append(self.slot.running())
        return block(self.read())

    def store(self, values: np.ndarray) -> None:
        """Of registers of a group."""
        slot = self.slot
        if slot.filling or slot.readers:
            raise ProtocolError(f"{slot.name} is overwritten while it is filled or read")
        if slot.values.shape != values.shape:
            raise ProtocolError(f"a block of {values.shape} for one of {slot.values.shape}")
        slot.values, slot.fills = np.array(values), slot.fills + 1
        slot.unfenced.append(slot.running())
        slot.stored.append(slot.running())


@dataclass
class Barrier:
    """A barrier of shared memory: `wait` for a phase's parity returns once a phase with it has ended."""

    name: str
    count: int = 0
    left: int = 0  # arrivals
    nbytes: int = 0
    phase: int = 0

    def arrive(self, count: int = 1, nbytes: int = 0) -> None:
        if self.left < count:
            raise ProtocolError(f"{self.name}: more arrivals than it counts")
        self.left -= count
        self.nbytes += nbytes
        self.end()

    def end(self) -> None:
        """End the phase once all arrived, bytes too."""
        if not self.left and not self.nbytes:
            self.left, self.phase = self.count, self.phase ^ 1


@dataclass(frozen=True)
class Barriers:
    barriers: list[Barrier]

    def index(self, number: Any) -> Barrier:
        if not 0 <= int(number) < len(self.barriers):
            raise ProtocolError(f"barrier {number} of {len(self.barriers)}")
        return self.barriers[int(number)]


@dataclass
class Copy:
    """A block on its way."""

    values: np.ndarray
    barrier: Barrier
    slot: Slot

    def land(self) -> None:
        self.slot.values, self.slot.filling = self.values, False
        self.slot.fills += 1
        self.barrier.nbytes -= self.slot.itemsize * self.values.size
        self.barrier.end()


@dataclass
class Sent:
    """A block on its way to memory, which is read from shared memory as it lands."""

    memory: Descriptor
    corner: Sequence[Any]
    slot: Slot
    is_there: bool = False

    def land(self) -> None:
        self.memory.write(self.corner, self.slot.values)
        self.slot.readers -= 1
        self.is_there = True


# ---- warps


@dataclass
class Product:
    """A product on the tensor core, which reads its operands until it is waited for."""

    one: Any
    other: View
    added: Any
    seen: list[int]
    value: Block | None = None

    @property
    def shared(self) -> list[Slot]:
        return [side.slot for side in (self.one, self.other) if isinstance(side, View)]

    def finish(self) -> None:
        if [slot.fills for slot in self.shared] != self.seen:
            raise ProtocolError("an operand changed while a product was made")
        one, other = (side.read() if isinstance(side, View) else np.asarray(side) for side in (self.one, self.other))
        added = self.added.value if isinstance(self.added, Product) else self.added
        parts = one.astype(np.float32).reshape(-1, TOGETHER, one.shape[1])
        self.value = block((parts @ other.astype(np.float32)).reshape(len(one), -1) + added)
        for slot in self.shared:
            slot.readers -= 1


@dataclass
class Warps:
    """A group of warps."""

    name: str
    code: Generator[Condition | None, None, None]
    waits: Condition | None = None
    products: list[Product] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)


@dataclass
class Machine:
    """Runs a source's programs, one after another, each with a schedule of its own: in turn another group of warps is
    the slowest, the loading one too, and copies land early, late or at random."""

    source: TileSource
    memory: dict[int, Memory]  # by slot
    variables: dict[str, int]
    random: Random
    slowest: int = 0  # the group that is so in the first program
    program: int = 0
    copies: list[Copy | Sent] = field(default_factory=list)
    warps: list[Warps] = field(default_factory=list)
    shared: list[Slot] = field(default_factory=list)
    running: Warps | None = None

    def run(self) -> None:
        functions, (launch,) = self._functions(), self.source.launches
        given = [
            self.variables[a.variable] if a.slot is None else Pointer(self.memory[a.slot]) for a in launch.arguments
        ]
        for self.program in range(launch.grid):
            self.shared.clear()
            functions[launch.entry](*given)
            self._schedule()

    def _functions(self) -> dict[str, Any]:
        """The source's functions, those of warps as generators."""
        text = re.sub(r"^(?:import|from) triton[^(\n]*(?:\([^)]*\))?$", "", self.source.source, flags=re.M)
        text = re.sub(
            r"^( +)((?:mbarrier\.wait|mbarrier\.arrive|fetch|send|tma\.store_wait)\(.*)$",
            r"\1yield \2",
            text,
            flags=re.M,
        )
        text = re.sub(r"^( +)([\w, ]+ = warpgroup_mma_wait\()", r"\1yield\n\1\2", text, flags=re.M)
        names = self._words()
        exec(compile(text, "program", "exec"), names)
        return names

    def _schedule(self) -> None:
        """Run all warps of a program to their end. Raises ProtocolError where all wait."""
        if not self.warps:
            return
        slowest = self.warps[(self.slowest + self.program) % len(self.warps)]
        lands = self.random.choice([1.0, 0.5, 0.0])
        while self.warps:
            ready = [one for one in self.warps if one.waits is None or one.waits()]
            fast = [one for one in ready if one is not slowest]
            if self.copies and (not fast or self.random.random() < lands):
                self.copies.pop(self.random.randrange(len(self.copies))).land()
            elif ready:
                self._step(self.random.choice(fast or ready))
            else:
                raise ProtocolError(f"program {self.program}: {', '.join(one.name for one in self.warps)} wait")
        if self.copies:
            raise ProtocolError("copies are on their way when the program ends")

    def _step(self, one: Warps) -> None:
        self.running = one
        try:
            one.waits = next(one.code)
        except StopIteration:
            if one.products:
                raise ProtocolError(f"{one.name} ended before its products") from None
            if not all(sent.is_there for sent in one.sent):
                raise ProtocolError(f"{one.name} ended before its blocks had left") from None
            self.warps.remove(one)

    # ---- what the source's words mean

    def _words(self) -> dict[str, Any]:
        plain = lambda function: function  # noqa: E731
        gl = SimpleNamespace(
            **{name: name for name in TYPES},
            **{name: lambda *_, **__: None for name in LAYOUTS},
            NVMMASharedLayout=SimpleNamespace(get_default_for=lambda *_: None),
            constexpr=plain,
            pointer_type=plain,
            program_id=lambda _: block(self.program),
            arange=lambda first, last, *_: block(np.arange(first, last)),
            full=lambda sizes, value, dtype, *_: block(np.full(sizes, value, "float32" if "float" in dtype else dtype)),
            maximum=lambda one, other: block(np.maximum(one, other)),
            minimum=lambda one, other: block(np.minimum(one, other)),
            zeros=lambda sizes, *_: block(np.zeros(sizes, np.float32)),
            where=chosen,
            join=lambda one, other: block(np.stack((one, other), -1)),
            split=lambda x: (block(x[..., 0]), block(x[..., 1])),
            broadcast_to=lambda x, sizes: block(np.broadcast_to(x, sizes)),
            sqrt=lambda x: block(np.sqrt(x)),
            max=lambda x, axis, keep_dims=False: block(np.max(x, axis, keepdims=keep_dims)),
            sum=lambda x, axis, keep_dims=False: block(np.sum(x, axis, keepdims=keep_dims)),
            convert_layout=lambda x, _: x,
            inline_asm_elementwise=assembly,
            shared_memory_descriptor=View,
            load=lambda pointer, **given: pointer.load(**given),
            store=lambda pointer, values, **given: pointer.store(values, **given),
            allocate_shared_memory=self._allocate,
            warp_specialize=self._specialize,
        )
        mbarrier = SimpleNamespace(
            MBarrierLayout=lambda: None,
            init=self._init,
            wait=lambda barrier, phase, pred=True: lambda: not pred or barrier.phase != int(phase),
            arrive=lambda barrier, count, pred=True: barrier.arrive(count) if pred else None,
            expect=lambda barrier, nbytes, pred=True: barrier.arrive(1, nbytes) if pred else None,
        )
        described = lambda start, *, shape, strides, block_shape, layout: Descriptor(  # noqa: E731
            start, shape, strides, tuple(block_shape)
        )
        return {
            "gl": gl, "mbarrier": mbarrier, "warpgroup_mma": self._multiply,
            "gluon": SimpleNamespace(jit=plain),
            "tma": SimpleNamespace(
                make_tensor_descriptor=described, async_load=self._fetch, async_store=self._send,
                store_wait=self._leave,
            ),
            "warpgroup_mma_wait": self._finish, "fence_async_shared": self._fence,
        }  # fmt: skip

    def _allocate(self, dtype: str, sizes: Sequence[int], _layout: None) -> View | Barriers:
        slots, *of_slot = sizes
        if dtype == "int64":
            return Barriers([Barrier(f"barrier of {slots}") for _ in range(slots)])
        names = [f"block {n} of {slots}" for n in range(slots)]
        empty = np.zeros(of_slot, dtype) if "int" in dtype else np.full(of_slot, np.nan, np.float32)
        itemsize = getattr(dtypes, dtype).itemsize
        self.shared += [Slot(name, empty, itemsize, self._running) for name in names]
        return View(self.shared[-slots:])

    def _init(self, barrier: Barrier, count: int) -> None:
        barrier.count = barrier.left = count

    def _specialize(self, calls: Sequence[tuple[Any, tuple[Any, ...]]], _warps: Any, _registers: Any) -> None:
        self.warps = [
            Warps(f"{function.__name__} {number}", function(*given)) for number, (function, given) in enumerate(calls)
        ]

    def _fetch(self, memory: Descriptor, corner: Sequence[Any], barrier: Barrier, view: View, pred: Any = True) -> None:
        slot = view.slot
        if not pred:
            return
        if slot.filling or slot.readers:
            raise ProtocolError(f"{slot.name} is overwritten while it is filled or read")
        self._check(memory, corner, slot)
        slot.filling = True
        self.copies.append(Copy(memory.read(corner), barrier, slot))

    def _send(self, memory: Descriptor, corner: Sequence[Any], view: View) -> None:
        view.read()
        self._check(memory, corner, view.slot)
        view.slot.readers += 1
        sent = Sent(memory, corner, view.slot)
        self._running().sent.append(sent)
        self.copies.append(sent)

    def _check(self, memory: Descriptor, corner: Sequence[Any], slot: Slot) -> None:
        """What is asked of each block that TMA moves."""
        if slot.values.shape != memory.sizes:
            raise ProtocolError(f"a block of {memory.sizes} for one of {slot.values.shape}")
        if int(corner[-1]) * slot.itemsize % ALIGNED:
            raise ProtocolError(f"a block that begins at {int(corner[-1])}, no multiple of {ALIGNED} bytes")
        if slot.unfenced:
            raise ProtocolError(f"{slot.name} is moved by TMA with no fence after {slot.unfenced[0].name} used it")

    def _leave(self, count: int) -> Condition:
        """All blocks that the running group sent but the last so many are read from shared memory."""
        sent = self._running().sent
        before = sent[: max(0, len(sent) - count)]
        return lambda: all(one.is_there for one in before)

    def _fence(self) -> None:
        for slot in self.shared:
            slot.unfenced = [one for one in slot.unfenced if one is not self.running]
            slot.stored = [one for one in slot.stored if one is not self.running]

    def _running(self) -> Warps:
        assert self.running is not None
        return self.running

    def _multiply(self, one: Any, other: View, added: Any, *, use_acc: bool = True, is_async: bool) -> Product:
        assert is_async
        made = Product(one, other, added if use_acc else 0, [])
        for slot in made.shared:
            View([slot]).read()
            if slot.stored:
                raise ProtocolError(f"{slot.name} is multiplied with no fence after {slot.stored[0].name} stored it")
            slot.readers += 1
            made.seen.append(slot.fills)
        self._running().products.append(made)
        return made

    def _finish(self, count: int, deps: Sequence[Product]) -> Any:
        """Wait for all products but so many; what those of `deps` came to."""
        products = self._running().products
        while len(products) > count:
            products.pop(0).finish()
        found = [asked if asked.value is None else asked.value for asked in deps]
        return found if len(found) > 1 else found[0]


def chosen(condition: Any, one: Any, other: Any) -> Any:
    if isinstance(one, Pointer):
        return one if condition else other
    return block(np.where(condition, one, other))


def assembly(text: str, _constraints: str, given: Sequence[Any], **_how: Any) -> Block:
    name, *operands = text.rstrip(";").replace(",", "").split()
    if name in INTEGERS:
        taken = [np.asarray(given[int(one[1:]) - 1] if one[0] == "$" else int(one, 0)) for one in operands[1:]]
        return block(INTEGERS[name](*(one.astype(np.uint64) for one in taken)).astype(np.uint32))
    (x,) = given
    functions = {"ex2.approx": np.exp2, "tanh.approx": np.tanh, "rcp.approx": np.reciprocal}
    return block(next(function for name, function in functions.items() if text.startswith(name))(x))


def by_table(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The bits that a table says of each three."""
    found = np.zeros_like(a | b | c)
    for number in range(8):
        if int(table) >> number & 1:
            one, other, last = (x if number >> place & 1 else ~x for x, place in ((a, 2), (b, 1), (c, 0)))
            found |= one & other & last
    return found


def funnel(low: np.ndarray, high: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """The word that begins so many bits above the beginning of the first of two."""
    return (high << np.uint64(32) | low) >> np.minimum(amount, np.uint64(32))


INTEGERS: dict[str, Callable[..., np.ndarray]] = {"lop3.b32": by_table, "shf.r.clamp.b32": funnel}
"""Instructions of PTX on words of 32 bits, held in 64."""


def wrong_in_gluon(case: Case) -> str:
    """What is wrong with what a program stored; empty where nothing is. Each element of the result is
    stored once. Raises ProtocolError."""
    question, memory = question_of(case), dict[int, Memory]()
    for argument in (a for launch in case.program.launches for a in launch.arguments if a.slot is not None):
        info = question.infos[argument.slot]
        given = question.given[f"p{argument.slot}"].view(numpy_dtype(info.dtype))
        values = np.array(given if argument.type == "*u8" else to_values(given, info.dtype).astype(np.float32))
        type_ = {"*bf16": "bfloat16", "*fp16": "float16"}.get(argument.type, "float32")
        memory[argument.slot] = Memory(values, type_, np.zeros(values.size, int))
    with np.errstate(all="ignore"):
        Machine(case.program, memory, dict(case.variables), Random(case.seed), case.seed).run()
    for wanted in question.wanted:
        stored = memory[wanted.slot]
        if (stored.stores != 1).any():
            return f"of {stored.stores.size} elements {(stored.stores == 0).sum()} were not stored, others twice"
        if text := differing(wanted, stored.values[wanted.indices]):
            return text
    return ""
