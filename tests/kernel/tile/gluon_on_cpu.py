"""Attention in Gluon run on the CPU, where Triton's interpreter knows no specialised warps.

The generated functions run as they are, on NumPy's arrays: `gl` and what it has for Hopper are stand-ins. Each group of
warps is a generator that stops where it waits or tells others something, and copies by TMA land whenever the schedule
says so. Barriers have phases as the hardware's do. What the hardware would not notice is an error here: a block that is
overwritten while it is read, a read of a block that is on its way, an arrival too many, an element stored twice; and so
is a program of which all wait.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from kcg.kernel.tile.program import TileSource
from kcg.measure.inputs import numpy_dtype, to_values
from tests.kernel.tile.running import Case, differing, question_of

ITEM = 2  # bytes of an operand's element
TOGETHER = 16  # rows of a product that are made at once: of so few BLAS wakes no threads, which took most of the time
Condition = Callable[[], bool]


class ProtocolError(AssertionError):
    """Groups of warps that wait for each other, or that do not wait where they should."""


class Block(np.ndarray):
    """A tensor, as far as attention uses one: integers are divided towards 0."""

    def to(self, dtype: str) -> Block:
        return block(rounded(self, dtype))

    def __floordiv__(self, other: Any) -> Any:
        return block(np.trunc(np.asarray(self) / np.asarray(other)).astype(np.int64))

    def __mod__(self, other: Any) -> Any:
        return block(np.fmod(np.asarray(self), np.asarray(other)))


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

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.memory, self.offset + other)

    def load(self, mask: Any = True, other: Any = 0) -> Block:
        places, mask = np.broadcast_arrays(self.offset, mask)
        self._check(places[mask])
        found = self.memory.values[np.where(mask, places, 0)]
        return block(np.where(mask, found, other).astype(found.dtype))

    def store(self, values: Any, mask: Any = True) -> None:
        places, mask, values = np.broadcast_arrays(self.offset, mask, values)
        self._check(places[mask])
        self.memory.values[places[mask]] = rounded(values[mask], self.memory.type)
        np.add.at(self.memory.stores, places[mask], 1)

    def _check(self, places: np.ndarray) -> None:
        if places.size and not 0 <= places.min() <= places.max() < self.memory.values.size:
            raise ProtocolError("an element outside of its buffer")


@dataclass(frozen=True)
class Descriptor:
    """Blocks in memory, of which elements outside are 0."""

    start: Pointer
    shape: Sequence[int]
    strides: Sequence[int]
    sizes: tuple[int, ...]

    def read(self, corner: Sequence[Any]) -> np.ndarray:
        places, exists = np.zeros(self.sizes, np.int64), np.ones(self.sizes, bool)
        for axis, first in enumerate(corner):
            numbers = np.arange(self.sizes[axis]) + int(first)
            numbers = numbers.reshape([-1 if a == axis else 1 for a in range(len(self.sizes))])
            places = places + numbers * int(self.strides[axis])
            exists = exists & (numbers >= 0) & (numbers < int(self.shape[axis]))
        return np.asarray((self.start + np.where(exists, places, 0)).load(exists))


@dataclass
class Slot:
    """A block of shared memory."""

    name: str
    values: np.ndarray
    filling: bool = False
    readers: int = 0  # products that run
    fills: int = 0


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

    def read(self) -> np.ndarray:
        if self.slot.filling or not self.slot.fills:
            raise ProtocolError(f"{self.slot.name} is read before its copy is there")
        return self.turn(self.slot.values)


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
        self.barrier.nbytes -= ITEM * self.values.size
        self.barrier.end()


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


@dataclass
class Machine:
    """Runs a source's programs, one after another, each with a schedule of its own: in turn another group of warps is
    the slowest, the loading one too, and copies land early, late or at random."""

    source: TileSource
    memory: dict[str, Memory]
    variables: dict[str, int]
    random: Random
    program: int = 0
    copies: list[Copy] = field(default_factory=list)
    warps: list[Warps] = field(default_factory=list)
    running: Warps | None = None

    def run(self) -> None:
        functions, (launch,) = self._functions(), self.source.launches
        given = [
            self.variables[a.variable] if a.slot is None else Pointer(self.memory[a.name]) for a in launch.arguments
        ]
        for self.program in range(launch.grid):
            functions[launch.entry](*given)
            self._schedule()

    def _functions(self) -> dict[str, Any]:
        """The source's functions, those of warps as generators."""
        text = re.sub(r"^(?:import|from) triton[^(\n]*(?:\([^)]*\))?$", "", self.source.source, flags=re.M)
        text = re.sub(r"^( +)((?:mbarrier\.wait|mbarrier\.arrive|fetch)\(.*)$", r"\1yield \2", text, flags=re.M)
        text = re.sub(r"^( +)(\w+ = warpgroup_mma_wait\()", r"\1yield\n\1\2", text, flags=re.M)
        names = self._words()
        exec(compile(text, "program", "exec"), names)
        return names

    def _schedule(self) -> None:
        """Run all warps of a program to their end. Raises ProtocolError where all wait."""
        if not self.warps:
            return
        slowest = self.warps[self.program % len(self.warps)]
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
            self.warps.remove(one)

    # ---- what the source's words mean

    def _words(self) -> dict[str, Any]:
        plain = lambda function: function  # noqa: E731
        gl = SimpleNamespace(
            **{name: name for name in ("float32", "float16", "bfloat16", "int32", "int64", "constexpr")},
            **{name: lambda *_, **__: None for name in ("NVMMADistributedLayout", "DotOperandLayout", "SliceLayout")},
            NVMMASharedLayout=SimpleNamespace(get_default_for=lambda *_: None),
            program_id=lambda _: block(self.program),
            arange=lambda first, last, *_: block(np.arange(first, last)),
            full=lambda sizes, value, dtype, *_: block(np.full(sizes, value, "float32" if "float" in dtype else dtype)),
            maximum=lambda one, other: block(np.maximum(one, other)),
            minimum=lambda one, other: block(np.minimum(one, other)),
            where=lambda condition, one, other: block(np.where(condition, one, other)),
            max=lambda x, axis, keep_dims=False: block(np.max(x, axis, keepdims=keep_dims)),
            sum=lambda x, axis, keep_dims=False: block(np.sum(x, axis, keepdims=keep_dims)),
            convert_layout=lambda x, _: x,
            inline_asm_elementwise=assembly,
            load=lambda pointer, **given: pointer.load(**given),
            store=lambda pointer, values, **given: pointer.store(values, **given),
            allocate_shared_memory=self._allocate,
            warp_specialize=self._specialize,
        )
        mbarrier = SimpleNamespace(
            MBarrierLayout=lambda: None,
            init=self._init,
            wait=lambda barrier, phase: lambda: barrier.phase != int(phase),
            arrive=lambda barrier, count: barrier.arrive(count),
            expect=lambda barrier, nbytes: barrier.arrive(1, nbytes),
        )
        described = lambda start, *, shape, strides, block_shape, layout: Descriptor(  # noqa: E731
            start, shape, strides, tuple(block_shape)
        )
        return {
            "gl": gl, "mbarrier": mbarrier, "warpgroup_mma": self._multiply,
            "gluon": SimpleNamespace(jit=plain),
            "tma": SimpleNamespace(make_tensor_descriptor=described, async_load=self._fetch, async_store=plain),
            "warpgroup_mma_wait": self._finish, "fence_async_shared": lambda: None,
        }  # fmt: skip

    def _allocate(self, dtype: str, sizes: Sequence[int], _layout: None) -> View | Barriers:
        slots, *of_slot = sizes
        if dtype == "int64":
            return Barriers([Barrier(f"barrier of {slots}") for _ in range(slots)])
        return View([Slot(f"block {n} of {slots}", np.full(of_slot, np.nan, np.float32)) for n in range(slots)])

    def _init(self, barrier: Barrier, count: int) -> None:
        barrier.count = barrier.left = count

    def _specialize(self, calls: Sequence[tuple[Any, tuple[Any, ...]]], _warps: Any, _registers: Any) -> None:
        self.warps = [
            Warps(f"{function.__name__} {number}", function(*given)) for number, (function, given) in enumerate(calls)
        ]

    def _fetch(self, memory: Descriptor, corner: Sequence[Any], barrier: Barrier, view: View) -> None:
        slot = view.slot
        if slot.filling or slot.readers:
            raise ProtocolError(f"{slot.name} is overwritten while it is filled or read")
        if slot.values.shape != memory.sizes:
            raise ProtocolError(f"a block of {memory.sizes} for one of {slot.values.shape}")
        slot.filling = True
        self.copies.append(Copy(memory.read(corner), barrier, slot))

    def _multiply(self, one: Any, other: View, added: Any, *, use_acc: bool = True, is_async: bool) -> Product:
        assert is_async and self.running is not None
        made = Product(one, other, added if use_acc else 0, [])
        for slot in made.shared:
            View([slot]).read()
            slot.readers += 1
            made.seen.append(slot.fills)
        self.running.products.append(made)
        return made

    def _finish(self, count: int, deps: Sequence[Product]) -> Any:
        """Wait for all products but so many; what the first one of `deps` came to."""
        assert self.running is not None
        products = self.running.products
        while len(products) > count:
            products.pop(0).finish()
        (asked,) = deps
        return asked if asked.value is None else asked.value


def assembly(text: str, _constraints: str, given: Sequence[Any], **_how: Any) -> Block:
    (x,) = given
    functions = {"ex2.approx": np.exp2, "tanh.approx": np.tanh, "rcp.approx": np.reciprocal}
    return block(next(function for name, function in functions.items() if text.startswith(name))(x))


def wrong_in_gluon(case: Case) -> str:
    """What is wrong with what a program of an attention stored; empty where nothing is. Each element of the result is
    stored once. Raises ProtocolError."""
    question, memory = question_of(case), {}
    for argument in (a for launch in case.program.launches for a in launch.arguments if a.slot is not None):
        info = question.infos[argument.slot]
        values = np.array(to_values(question.given[argument.name].view(numpy_dtype(info.dtype)), info.dtype))
        values = values.astype(np.float32)
        type_ = {"*bf16": "bfloat16", "*fp16": "float16"}.get(argument.type, "float32")
        memory[argument.name] = Memory(values, type_, np.zeros(values.size, int))
    with np.errstate(all="ignore"):
        Machine(case.program, memory, dict(case.variables), Random(case.seed)).run()
    for wanted in question.wanted:
        stored = memory[f"p{wanted.slot}"]
        if (stored.stores != 1).any():
            return f"of {stored.stores.size} elements {(stored.stores == 0).sum()} were not stored, others twice"
        if text := differing(wanted, stored.values[wanted.indices]):
            return text
    return ""
