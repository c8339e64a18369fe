"""A tile program before it is text: what its programs compute, by what means, and what that takes.

A form makes a plan of a view, a target and parameters. All that is decided is in it, so that whoever writes the text
sees nothing but the plan. Whether a target has room for a program, what it costs, whether it needs a stress test and
what a predictor sees are read off the plan by the functions at the end, which know no form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self

import numpy as np

from kcg.cli import counted
from kcg.compat.tiny import UOp
from kcg.kernel.ast import extent
from kcg.kernel.reading.accesses import Access
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.device import Device, Figures, figures_of
from kcg.kernel.tile.emit import PLAIN, Style, runs_of
from kcg.kernel.tile.estimates import LAUNCH_S, either
from kcg.kernel.tile.needed import VECTOR_BYTES
from kcg.kernel.tile.parameters import PRECISIONS, TF32X3, TMA
from kcg.kernel.tile.tiles import Axis
from kcg.kernel.tile.views import View
from kcg.types import Target

Array = np.ndarray[Any, Any]

UNTRIED = 0.005
"""What an eviction policy (a reduction's first ones aside), a limit of registers or loads ahead in a loop over rows
cost until it is measured: what is known to matter comes first."""
MOST_PARTIALS = (1 << 31) - 1  # values that a launch leaves for a second one
LEAST_COPY = 4  # bytes of an asynchronous copy
OF_TILE = 2  # axes, as features count them


# ---- the parts of a plan


class Way(StrEnum):
    """How what a program reads comes to it."""

    POINTER = "pointers"
    COPY = "asynchronous copies"  # to shared memory, some steps ahead
    TMA = "TMA"


@dataclass(frozen=True)
class Load:
    """One load of a kernel: how it comes, how many bytes a thread may move at once, and what becomes of it in L2
    (`evict_first`, `evict_last` or nothing)."""

    access: Access
    way: Way
    width: int
    eviction: str = ""


@dataclass(frozen=True)
class Loop:
    """A program's main loop: elements that it goes through, those of one step, and programs that share them."""

    over: str
    extent: int
    step: int
    parts: int = 1

    @property
    def steps(self) -> int:
        """Of all parts together; 1 where nothing is gone through."""
        return -(-self.extent // self.step) if self.step else 1


@dataclass(frozen=True)
class Dot:
    """A product on the tensor core, of one step: rows × terms by terms × columns. `precision` is of float32."""

    rows: int
    columns: int
    terms: int
    precision: str


@dataclass(frozen=True)
class Shared:
    """So many blocks of shared memory, in bytes each."""

    of: str
    nbytes: int
    count: int = 1


@dataclass(frozen=True)
class Barriers:
    """Barriers in shared memory, one for each slot of a ring. So many arrivals open one."""

    name: str
    slots: int
    arrivals: int


class Need(NamedTuple):
    """What a program needs of something, and how much of it there is."""

    of: str
    needed: float
    most: float


class Registers(NamedTuple):
    """Registers of a thread for what it holds of a tile, and those that it likely takes; how many programs of a
    multiprocessor shared memory has space for."""

    held: int
    likely: int
    programs: int


class Times(NamedTuple):
    """What a program takes, in seconds. Of what goes on at once the longest counts, and somewhat more; all of it is so
    many times `slower` where registers spill; the rest comes after it."""

    at_once: tuple[float, ...]
    slower: float = 1.0
    after_s: float = 0.0


# ---- the plan


@dataclass(frozen=True, kw_only=True)
class TilePlan:
    """One tile program, decided. Forms add what only they have."""

    form: str
    noun: str  # as the form is called
    in_gluon: bool
    by_layouts: bool  # in Gluon for its layouts alone: without them its text is Triton's
    has_stages: bool  # its loop has stages, always
    style: Style = PLAIN
    view: View
    axes: tuple[Axis, ...]  # of the tile; of several products those of the first
    tile: tuple[int, ...]  # elements along each axis
    tiles: int  # all of them, with the parts of a split loop
    loop: Loop
    programs: int  # of the launch
    threads: int  # of a program
    blocks: int  # of an operand in shared memory, in a loop of so many stages
    ptx: bool  # NVIDIA's own words may be used

    split: int  # programs that share the loop, whose partial results a second launch adds
    tail: int  # programs that share a tile of the last wave
    group: int  # rows of tiles that are taken together
    persistent: int  # programs of a multiprocessor, that take tiles in turn; 0: each has one
    loads_by: str
    num_warps: int
    num_stages: int
    maxnreg: int  # registers of a thread at most; 0: the compiler's choice
    warp_specialize: bool  # by Triton
    epilogue_parts: int
    read_early: bool
    fast_math: bool
    precision: str
    evict_first: tuple[int, ...]
    evict_last: tuple[int, ...]
    unpacked: int  # neighbouring bytes that a thread takes apart at once; 0: nothing is packed

    partials: int = 0  # values that the launch leaves for a second one; 0: there is none

    @classmethod
    def of(cls, decided: Mapping[str, Any], **more: Any) -> Self:
        """The plan with these fields, all of them. A search makes a hundred thousand, so that they are taken as they
        are. Raises UnsupportedTile where a launch has no numbers for so many tiles."""
        made = object.__new__(cls)
        made.__dict__.update(decided, **more)
        if made.tiles >= 1 << 31:
            raise UnsupportedTile("grid", "2^31 programs or more")
        return made

    # ---- what a form works out

    def needs(self, device: Device) -> Iterator[Need]:
        """What the program needs of a device, what is found out with least effort first; also what each of its
        parameters needs to change anything."""
        raise NotImplementedError

    def times(self, target: Target, figures: Figures) -> Times:
        """What the program takes on a target, without its launches."""
        raise NotImplementedError

    def registers(self, device: Device) -> Registers:
        """What a thread holds."""
        held = self.elements // self.threads
        return Registers(held, 2 * held, device.threads_at_once)

    @property
    def shared(self) -> tuple[Shared, ...]:
        """Blocks of shared memory, where these are near the limit."""
        return ()

    @property
    def shared_bytes(self) -> int:
        """About how much shared memory the program takes; 0 where that is never near the limit."""
        return sum(block.nbytes * block.count for block in self.shared)

    @property
    def partial_type(self) -> str:
        """That of these values."""
        return "float32"

    @property
    def barriers(self) -> tuple[Barriers, ...]:
        """What its warps wait at for each other, in the order in which they are allocated; none where the compiler sees
        to that."""
        return ()

    @property
    def exchanges_by_hand(self) -> bool:
        """Whether its threads hand values to each other in shared memory by assembly of its own, more than once."""
        return False

    @property
    def dots(self) -> tuple[Dot, ...]:
        """The products that its text has."""
        return ()

    @property
    def by_tma(self) -> tuple[Access, ...]:
        """The loads that TMA makes."""
        return ()

    @property
    def blocks_along(self) -> tuple[tuple[tuple[UOp, ...], int], ...]:
        """The ranges that blocks lie along, the last one changing fastest, and elements of a block along each."""
        reductions = self.view.kernel.reductions if self.step else ()
        return (
            *((axis.ranges, axis.size) for axis in self.axes),
            *((tuple(one.src[1:]), self.step) for one in reductions),
        )

    def width(self, access: Access) -> int:
        """Bytes that a thread may move at once of an access, by what is known of its address."""
        steps, itemsize = access.steps, int(access.buffer.dtype.itemsize)
        if steps is None or access.gates:
            return itemsize
        found = 1
        for ranges, size in self.blocks_along:
            if not ranges or steps.get(ranges[-1], 0) != 1:
                continue
            first, last = runs_of(ranges, steps)[-1]
            whole = math.prod(extent(r) for r in ranges[first : last + 1])
            others = [step for r, step in steps.items() if r not in ranges[first : last + 1]]
            found = max(found, math.gcd(size, *(() if first == 0 else (whole,)), *others))
        return min(found * itemsize, VECTOR_BYTES)

    # ---- what holds of all

    @property
    def area(self) -> int:
        """Elements of the tile."""
        return math.prod(self.tile)

    @property
    def step(self) -> int:
        """Elements of the loop in one step; 0 where there is none."""
        return self.loop.step

    @property
    def elements(self) -> int:
        """Elements that a program has at once."""
        return self.area

    @property
    def loads(self) -> tuple[Load, ...]:
        """All loads of the kernels that are launched together."""
        described, evictions = {access.node for access in self.by_tma}, self.evictions
        found = []
        for one in self.view.kernel.launched:
            for load in one.loads:
                width = self.width(load)
                copied = self.num_stages > 1 and width >= LEAST_COPY
                way = Way.TMA if load.node in described else Way.COPY if copied else Way.POINTER
                found.append(Load(load, way, width, evictions.get(load.node, "")))
        return tuple(found)

    @property
    def evictions(self) -> dict[UOp, str]:
        """The policies of those loads that have one, by their nodes; each kernel of a launch has the first one's."""
        policies = dict.fromkeys(self.evict_first, "evict_first") | dict.fromkeys(self.evict_last, "evict_last")
        kernels = self.view.kernel.launched if policies else ()
        return {
            load.node: policies[number]
            for one in kernels
            for number, load in enumerate(one.loads)
            if number in policies
        }

    @property
    def untried(self) -> int:
        """Hints that cost something until they are measured."""
        return bool(self.evict_last) + bool(self.maxnreg) + bool(self.evict_first)


# ---- read off any plan


def fits(plan: TilePlan, device: Device) -> bool:
    """Whether a device has room for a program, and every parameter changes something."""
    return all(needed <= most for _, needed, most in plan.needs(device))


def seconds(plan: TilePlan, target: Target, figures: Figures | None = None) -> float:
    """What a program takes by its plan, launches included."""
    figures = figures or figures_of(target)
    times = plan.times(target, figures)
    whole_s = either(*times.at_once, sharp=3) * times.slower + times.after_s
    if plan.split > 1:
        whole_s += LAUNCH_S / 2 + 2 * 4 * plan.partials / figures.partial_bytes
    return LAUNCH_S + whole_s * (1 + UNTRIED * plan.untried)


def workspace_bytes(plan: TilePlan) -> int:
    """Bytes of what a program's launches hand on."""
    return plan.partials * (8 if "64" in plan.partial_type else 4) if plan.partials else 0


def needs_stress(plan: TilePlan) -> bool:
    """Whether a program is of asynchronous copies by TMA, of specialised warps, of barriers or exchanges of its own,
    of several products, or of a product whose staged loads have conditions, as those of a convolution at its edges
    (13 of 2,093 recorded ones were wrong, of 8,507 others none: docs/wrong-programs.md): what is chosen of these has to
    run very often before it is believed."""
    several = len(plan.dots) > 1 or any(dot.precision == TF32X3 for dot in plan.dots)
    if plan.loads_by == TMA or plan.warp_specialize or plan.barriers or plan.exchanges_by_hand or several:
        return True
    staged = plan.num_stages > 1 and bool(plan.dots)
    return staged and any(load.gates for kernel in plan.view.kernel.launched for load in kernel.loads)


def describe(plan: TilePlan) -> str:
    """What a program does: `matmul; tiles of 128 × 256 of 4096 × 9216 outputs, 64 terms a step, …`."""
    tile, whole = (" × ".join(map(str, sizes)) or "1" for sizes in (plan.tile, plan.view.kernel.extents))
    turns = f"{counted(plan.persistent, 'program')} a multiprocessor, each with tiles in turn"
    parts = {
        f"{plan.step} {plan.loop.over} a step": plan.step > 0,
        f"the reduction shared by {plan.split} programs (split-K)": plan.split > 1,
        f"each tile of the last wave shared by {plan.tail} programs (stream-K)": plan.tail > 1,
        "operands by TMA": plan.loads_by == TMA,
        turns: plan.persistent > 0,
        "stored in halves": plan.epilogue_parts > 1,
        "warp specialised": plan.warp_specialize,
        "operands of the epilogue prefetched": plan.read_early,
        "some loads evicted first or last": bool(plan.evict_first or plan.evict_last),
        f"at most {plan.maxnreg} registers a thread": plan.maxnreg > 0,
        f"swizzled by {plan.group} rows of tiles": plan.group > 1,
        counted(plan.num_warps, "warp"): True,
        counted(plan.num_stages, "stage"): plan.has_stages or plan.num_stages > 1,
    }
    words = (text for text, is_so in parts.items() if is_so)
    return ", ".join((f"{plan.noun}; tiles of {tile} of {whole} outputs", *words))


def features(plan: TilePlan) -> Array:
    """A plan as numbers in which neighbours are near: what a predictor sees of it."""
    tile = (*plan.tile, *(1,) * OF_TILE)[:OF_TILE]
    apart = max(1, plan.unpacked)
    sizes = (
        *tile,
        max(1, plan.area // math.prod(tile)),
        max(1, plan.step),
        plan.split,
        plan.tail,
        plan.num_warps,
        apart,
    )
    flags = (
        plan.loads_by == TMA,
        plan.persistent,
        plan.epilogue_parts - 1,
        plan.warp_specialize,
        plan.maxnreg > 0,
        bool(plan.evict_first),
        bool(plan.evict_last),
        plan.precision != PRECISIONS[0],
        plan.fast_math,
        plan.read_early,
        plan.in_gluon,
    )
    return np.array([*(math.log2(x) for x in sizes), plan.num_stages, math.log2(plan.group) / 2, *flags], np.float32)
