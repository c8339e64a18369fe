"""What a form of tile programs decides: one object each, in the file that writes its programs.

A form is asked for the kernels and the axes that it has programs of, the values that each parameter may take, what of
these fits a target, the prior's choice, the program's text, and what it costs. Whoever asks goes through the registry
(`forms.py`) and names no form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, ClassVar

from kcg.compat.tiny import DType, dtypes
from kcg.kernel.reading.depth import depth_of
from kcg.kernel.reading.factors import NARROW
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.device import Device, Figures, device_of
from kcg.kernel.tile.emit import PLAIN, Lines, Style, Writer, keeps_tail, power_of_sigmoid
from kcg.kernel.tile.parameters import POINTER, TF32, TileParameters
from kcg.kernel.tile.reduction import accumulator
from kcg.kernel.tile.split import partials_of, write_sums
from kcg.kernel.tile.targets import MOST_STAGES
from kcg.kernel.tile.tiles import launched_tiles, power_of_two, tiles_of
from kcg.types import Target

Axes = tuple[tuple[int, ...], ...]
"""Which output ranges each axis of a tile holds, see `TileParameters.axes`."""

LEAST: dict[str, Any] = {
    "split": 1, "loads": POINTER, "persistent": 0, "tail": 1, "epilogue_parts": 1, "num_stages": 1,
    "warp_specialize": False, "group": 1, "read_early": False, "evict_first": (), "evict_last": (), "maxnreg": 0,
}  # fmt: skip
"""What asks for least of a target: of a field that a form has nothing to choose of, its only value."""

COMPILER_BYTES = 1_056  # of shared memory: barriers and padding, the most seen
WARPS = (1, 2, 4, 8, 16)
STAGES = tuple(range(1, MOST_STAGES + 1))
TOGETHER = (2, 3, 4)  # programs of a multiprocessor for which registers are limited
MUCH_HELD = 32  # elements of the tile that a thread holds; below, the compiler took 20 to 70 registers
LEAST_BESIDE = 31  # registers of a thread beside its sums
LARGEST_ALONG = 8_192  # elements of a tile along one axis
DEEP_ELEMENTS = 8_192  # of a block with reductions inside of others, at most
EACH = 16  # elements of a thread, by which 8 programs of 256 threads fill a multiprocessor
ROWS_TILE = 4_096  # elements of a block of rows
UNCERTAIN = 0.25
"""Log-seconds by which a matmul's cost is off, twice what it is on matmuls of Flux within one kernel; of other forms
it was never measured."""
UNKNOWN = 0.6


class Start(StrEnum):
    """Where a search for programs of a form begins."""

    PRIOR = "prior"  # at the prior's choice
    COMPARED = "compared"  # there too, if its cost is the least
    WALKED = "walked"  # where the cost is least, which is fitted: downhill from the prior's choice


class Form:
    """One form of programs. What is said here holds of forms that say nothing else."""

    name: ClassVar[str]  # as it is stored
    noun: ClassVar[str]  # as it is called
    is_usual: ClassVar[bool] = False  # a program's name leaves the noun out
    has_stages: ClassVar[bool] = False  # its loop has stages, always

    # the kernels that it is of
    is_of_products: ClassVar[bool] = False
    is_of_attention: ClassVar[bool] = False
    is_of_rows: ClassVar[bool] = False
    reduces: ClassVar[bool] = True

    # what it has of that others have not
    fields: ClassVar[frozenset[str]] = frozenset()  # parameters
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {}  # values of fields, whatever the kernel
    style: ClassVar[Style] = PLAIN  # of its text
    in_gluon: ClassVar[bool] = False
    needs_stress: ClassVar[bool] = False  # every program of it needs a stress test

    # how it is searched
    start_at: ClassVar[Start] = Start.PRIOR
    uncertainty: ClassVar[float] = UNKNOWN  # of its cost, in log-seconds
    most_elements: ClassVar[int] = 0  # of a program at once, and of a thread; 0: others say what fits
    most_of_thread: ClassVar[int] = 0

    # ---- what it is of

    def has(self, kernel: TileKernel, target: Target) -> bool:
        """Whether a kernel may be of this form on a target."""
        raise NotImplementedError

    def preference(self, kernel: TileKernel, target: Target) -> int:
        """The prior takes the form of a kernel that has most, and of equals the last one of the registry."""
        return 1

    def axes(self, kernel: TileKernel) -> tuple[Axes, ...]:
        """Which output ranges may be which axis of the tile, the prior's choice first."""
        raise NotImplementedError

    def start(self, kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
        """The prior's choice among the programs whose tile has these axes. Raises UnsupportedTile."""
        raise NotImplementedError

    # ---- the values of parameters

    def values(self, kernel: TileKernel, target: Target, p: TileParameters, field: str) -> tuple[Any, ...]:
        """What a field may be, given those before it."""
        match field:
            case "tile":
                return tuple(self.tiles(kernel, p))
            case "reduce_tile":
                return self.steps(kernel)
            case "num_warps":
                return self.warps(device_of(target))
            case "maxnreg":
                return (0, *self.register_limits(kernel, target, p))
            case "fast_math":
                stored = kernel.all_stored
                narrow = all(s.store.buffer.dtype in NARROW for s in stored)
                sigmoid = narrow and any(power_of_sigmoid(n) is not None for s in stored for n in s.value.toposort())
                return (True, False) if sigmoid else (True,)
            case "precision":
                return self.precisions(kernel)
        return (LEAST[field],)

    def tiles(self, kernel: TileKernel, p: TileParameters) -> Iterable[tuple[int, ...]]:
        """Tiles with each axis up to the power of two that holds all of it."""
        return tiles_up_to(kernel, p, 1)

    def steps(self, kernel: TileKernel) -> tuple[int, ...]:
        """Elements of a reduction in one step."""
        raise NotImplementedError

    def warps(self, device: Device) -> tuple[int, ...]:
        """Warps of a program."""
        found: tuple[int, ...] = self.fixed.get("num_warps") or warps_of(device, WARPS)
        return found

    def may_split(self, kernel: TileKernel) -> bool:
        """Whether programs may share the kernel's reductions."""
        return False

    def precisions(self, kernel: TileKernel) -> tuple[str, ...]:
        """Of products, where these are of float32."""
        return ("ieee",)

    def least_parts(self, tile: tuple[int, ...]) -> int:
        """Parts of a tile in which its result takes least shared memory."""
        return 1

    def register_limits(self, kernel: TileKernel, target: Target, p: TileParameters) -> tuple[int, ...]:
        """Limits of a thread's registers by which more programs run on a multiprocessor at once, where the compiler by
        itself may take more: a thread has much of the tile to hold."""
        device = device_of(target)
        threads = device.threads(p.num_warps)
        if self.elements(p) // threads < MUCH_HELD or p.warp_specialize or p.persistent == 1:
            return ()  # specialised warps share registers otherwise; a persistent program may be alone in any case
        held, likely, memory = self.held(kernel, target, p)
        counts = (p.persistent,) if p.persistent else TOGETHER
        limits = [
            device.registers // (threads * together) // 8 * 8
            for together in counts
            if together <= memory
            and together * threads <= device.threads_at_once
            and self.programs(kernel, p) > target.cores * (together - 1)
        ]
        most = min(device.registers_of_one - 1, likely)
        return tuple(limit for limit in limits if held + LEAST_BESIDE <= limit <= most)

    def held(self, kernel: TileKernel, target: Target, p: TileParameters) -> tuple[int, int, int]:
        """Registers of a thread for what it holds of a tile, those that it likely takes, and programs that shared
        memory has space for."""
        device = device_of(target)
        held = self.elements(p) // device.threads(p.num_warps)
        return held, 2 * held, device.threads_at_once

    # ---- what fits

    def elements(self, p: TileParameters) -> int:
        """Elements that a program has at once."""
        return math.prod(p.tile)

    def programs(self, kernel: TileKernel, p: TileParameters) -> int:
        """Tiles, with the parts of a split reduction."""
        held = {n for numbers in p.axes for n in numbers}
        rest = math.prod(e for n, e in enumerate(kernel.extents) if n not in held)
        return p.split * rest * math.prod(launched_tiles(kernel, p) if kernel.grouped else tiles_of(kernel, p))

    def fits(self, kernel: TileKernel, target: Target, p: TileParameters) -> bool:
        """Whether registers, shared memory and the loops allow it, and every parameter changes something."""
        raise NotImplementedError

    def fits_threads(self, kernel: TileKernel, target: Target, p: TileParameters) -> bool:
        """Whether the threads of a program have elements each, and no more than they hold, and its stages steps."""
        threads, elements = device_of(target).threads(p.num_warps), self.elements(p)
        if elements > self.most_elements or elements // threads > self.most_of_thread:
            return False
        if p.num_stages > 1 and p.num_stages > steps_of(kernel, p) // p.split:
            return False
        if depth_of(kernel.reductions) > 1 and elements > DEEP_ELEMENTS:
            return False
        return elements >= threads or p.num_warps == 1

    def shared_bytes(self, kernel: TileKernel, target: Target, p: TileParameters) -> int:
        """About how much shared memory a program takes; 0 where that is never near the limit."""
        return 0

    # ---- the program

    def check(self, kernel: TileKernel, p: TileParameters) -> None:
        """Raises UnsupportedTile where no kernel has such a program."""

    def write(self, kernel: TileKernel, target: Target, p: TileParameters, writer: Writer) -> tuple[Lines, int]:
        """The lines of the program's function, and how many programs there are. Raises UnsupportedTile."""
        raise NotImplementedError

    def partials_of(self, kernel: TileKernel) -> int:
        """How many values each part of a split reduction leaves for the second launch."""
        return partials_of(kernel)

    def partials(self, kernel: TileKernel, target: Target, p: TileParameters) -> int:
        """How many values all programs leave for it; 0 where there is none."""
        return p.split * self.partials_of(kernel) if p.split > 1 else 0

    def partial_type(self, kernel: TileKernel) -> str:
        """Their type."""
        return accumulator(kernel.reductions[0])

    def write_second(self, kernel: TileKernel, target: Target, p: TileParameters, writer: Writer) -> tuple[Lines, int]:
        """The launch that adds them; and how many programs it has."""
        return write_sums(kernel, p, writer)

    def has_several_products(self, kernel: TileKernel, p: TileParameters) -> bool:
        """Whether a program of a form of products has more than one on the tensor core."""
        return False

    # ---- what it costs

    def seconds(self, kernel: TileKernel, target: Target, p: TileParameters, figures: Figures) -> float:
        """What a program takes, without its launches."""
        raise NotImplementedError

    def is_untried(self, p: TileParameters) -> bool:
        """Whether a program has hints that cost something until they are measured, beside those of all forms."""
        return bool(p.evict_first)

    def is_familiar(self, p: TileParameters, prior: TileParameters) -> bool:
        """Whether all values are among those that the cost was fitted on, or the prior's own."""
        return True


# ---- what several forms choose alike


def tiles_up_to(kernel: TileKernel, p: TileParameters, least: int) -> list[tuple[int, ...]]:
    """Tiles with each axis from so many elements on up to the power of two that holds all of it."""
    found: list[tuple[int, ...]] = [()]
    for numbers in p.axes:
        sizes = powers(least, LARGEST_ALONG, math.prod(kernel.extents[n] for n in numbers))
        found = [(*tile, size) for tile in found for size in sizes]
    return found


def powers(least: int, most: int, count: int) -> list[int]:
    """Powers of two from `least` on, up to the one that holds so many elements; none above `most`."""
    end = max(least, min(most, power_of_two(count)))
    return [1 << i for i in range(14) if least <= 1 << i <= end]


def warps_of(device: Device, counts: Iterable[int]) -> tuple[int, ...]:
    """Those numbers of warps that a program may have."""
    return tuple(count for count in counts if device.threads(count) <= device.threads_of_program)


def precisions_of(kernel: TileKernel, operands: Iterable[DType], nearly: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The precisions of products of such operands."""
    if dtypes.float32 not in operands:
        return ("ieee",)
    return ("ieee", *nearly, *((TF32,) if kernel.allows_tf32 else ()))


def registers_for_sums(target: Target, warps: int) -> int:
    """Registers that each thread of a program of so many warps has for sums and for what it holds of rows."""
    return device_of(target).registers_of_thread(warps) - LEAST_BESIDE


def steps_of(kernel: TileKernel, p: TileParameters) -> int:
    """Steps of a program's loop over all terms."""
    return -(-kernel.reduce_extent // p.reduce_tile) if p.reduce_tile else 1


def keeps_small(kernel: TileKernel, target: Target) -> bool:
    """Whether a result in few bits shows what an approximation loses far from 0."""
    stored = kernel.all_stored
    return device_of(target).ptx and any(s.store.buffer.dtype in NARROW and keeps_tail(s.value) for s in stored)


def settled(kernel: TileKernel, target: Target, p: TileParameters, elements: int) -> TileParameters:
    """The prior's choice of a program with so many elements at once: in full accuracy where a result shows it, and no
    thread without an element."""
    if keeps_small(kernel, target):
        p = replace(p, fast_math=False)
    return replace(p, num_warps=max(1, min(p.num_warps, elements // device_of(target).warp)))
