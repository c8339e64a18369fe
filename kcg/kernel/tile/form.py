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
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from kcg.compat.tiny import DType, dtypes
from kcg.kernel.reading.factors import NARROW
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.device import Device, device_of
from kcg.kernel.tile.emit import PLAIN, Lines, Style, Writer, keeps_tail, power_of_sigmoid
from kcg.kernel.tile.parameters import EXACT, POINTER, TF32, TileParameters
from kcg.kernel.tile.plan import Loop, TilePlan
from kcg.kernel.tile.targets import MOST_STAGES
from kcg.kernel.tile.tiles import Axis, is_power_of_two, power_of_two
from kcg.kernel.tile.views import View
from kcg.types import Target

V = TypeVar("V", bound=View)
P = TypeVar("P", bound=TilePlan)

Axes = tuple[tuple[int, ...], ...]
"""Which output ranges each axis of a tile holds, see `TileParameters.axes`."""

LEAST: dict[str, Any] = {
    "split": 1, "loads": POINTER, "persistent": 0, "tail": 1, "epilogue_parts": 1, "num_stages": 1,
    "warp_specialize": False, "group": 1, "read_early": False, "evict_first": (), "evict_last": (), "maxnreg": 0,
    "unpacked": 0,
}  # fmt: skip
"""What asks for least of a target: of a field that a form has nothing to choose of, its only value."""

ONLY = {
    "tail": "programs share the last tiles of one product, or two each halves of its columns",
    "loads": "only products have descriptors",
    "persistent": "only products, specialised warps and sums by tables have persistent programs",
    "epilogue_parts": "only products have parts",
    "read_early": "programs finish a product's tiles themselves, or hold rows",
    "warp_specialize": "only a product's loop, where its loads are TMA",
    "unpacked": "only products with packed operands",
}
"""Who has a parameter, where it is not what asks for least."""

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


class Form(Generic[V, P]):
    """One form of programs, of the kernels that it has a view of. What is said here holds of forms that say nothing
    else."""

    name: ClassVar[str]  # as it is stored
    noun: ClassVar[str]  # as it is called
    is_usual: ClassVar[bool] = False  # a program's name leaves the noun out
    has_stages: ClassVar[bool] = False  # its loop has stages, always

    sees: type[V]  # of the kernels that it is of

    # what it has of that others have not
    fields: ClassVar[frozenset[str]] = frozenset()  # parameters
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {}  # values of fields, whatever the kernel
    style: ClassVar[Style] = PLAIN  # of its text
    in_gluon: ClassVar[bool] = False
    by_layouts: ClassVar[bool] = False  # in Gluon for its layouts alone

    # how it is searched
    start_at: ClassVar[Start] = Start.PRIOR
    uncertainty: ClassVar[float] = UNKNOWN  # of its cost, in log-seconds

    # ---- what it is of

    def has(self, kernel: TileKernel, target: Target) -> bool:
        """Whether a kernel may be of this form on a target."""
        raise NotImplementedError

    def preference(self, view: V, target: Target) -> int:
        """The prior takes the form of a kernel that has most, and of equals the last one of the registry."""
        return 1

    def axes(self, view: V) -> tuple[Axes, ...]:
        """Which output ranges may be which axis of the tile, the prior's choice first."""
        raise NotImplementedError

    def start(self, view: V, target: Target, axes: Axes) -> TileParameters:
        """The prior's choice among the programs whose tile has these axes. Raises UnsupportedTile."""
        raise NotImplementedError

    # ---- the values of parameters

    def values(self, view: V, target: Target, p: TileParameters, field: str) -> tuple[Any, ...]:
        """What a field may be, given those before it."""
        match field:
            case "tile":
                return tuple(self.tiles(view, p))
            case "reduce_tile":
                return self.steps(view)
            case "num_warps":
                return self.warps(device_of(target))
            case "maxnreg":
                return (0, *self.register_limits(view, target, p))
            case "fast_math":
                stored = view.kernel.all_stored
                narrow = all(s.store.buffer.dtype in NARROW for s in stored)
                sigmoid = narrow and any(power_of_sigmoid(n) is not None for s in stored for n in s.value.toposort())
                return (True, False) if sigmoid else (True,)
            case "precision":
                return self.precisions(view)
        return (LEAST[field],)

    def tiles(self, view: V, p: TileParameters) -> Iterable[tuple[int, ...]]:
        """Tiles with each axis up to the power of two that holds all of it."""
        return tiles_up_to(view.kernel, p, 1)

    def steps(self, view: V) -> tuple[int, ...]:
        """Elements of a reduction in one step."""
        raise NotImplementedError

    def warps(self, device: Device) -> tuple[int, ...]:
        """Warps of a program."""
        found: tuple[int, ...] = self.fixed.get("num_warps") or warps_of(device, WARPS)
        return found

    def may_split(self, view: V) -> bool:
        """Whether programs may share the kernel's reductions."""
        return False

    def precisions(self, view: V) -> tuple[str, ...]:
        """Of products, where these are of float32."""
        return (EXACT,)

    def least_parts(self, tile: tuple[int, ...]) -> int:
        """Parts of a tile in which its result takes least shared memory."""
        return 1

    def register_limits(self, view: V, target: Target, p: TileParameters) -> tuple[int, ...]:
        """Limits of a thread's registers by which more programs run on a multiprocessor at once, where the compiler by
        itself may take more: a thread has much of the tile to hold."""
        device = device_of(target)
        threads = device.threads(p.num_warps)
        if self.elements(p) // threads < MUCH_HELD or p.warp_specialize or p.persistent == 1:
            return ()  # specialised warps share registers otherwise; a persistent program may be alone in any case
        plan = self.plan(view, target, p)
        held, likely, memory = plan.registers(device)
        counts = (p.persistent,) if p.persistent else TOGETHER
        limits = [
            device.registers // (threads * together) // 8 * 8
            for together in counts
            if together <= memory
            and together * threads <= device.threads_at_once
            and plan.tiles > target.cores * (together - 1)
        ]
        most = min(device.registers_of_one - 1, likely)
        return tuple(limit for limit in limits if held + LEAST_BESIDE <= limit <= most)

    def elements(self, p: TileParameters) -> int:
        """Elements that a program has at once."""
        return math.prod(p.tile)

    # ---- the program

    def check(self, view: V, p: TileParameters) -> None:
        """Raises UnsupportedTile where no kernel has such a program."""

    def view(self, kernel: TileKernel) -> V:
        """What the form sees in a kernel. Raises UnsupportedTile where it is not of it."""
        return self.sees.of(kernel)

    def plan(self, view: V, target: Target, p: TileParameters) -> P:
        """The program of parameters, decided; whether a device has room for it is `plan.fits`'s to say. Raises
        UnsupportedTile, with the construct that is in the way, where there is no such program."""
        self._check(view, p)
        return self.planned(view, target, p)

    def planned(self, view: V, target: Target, p: TileParameters) -> P:
        """See `plan`; of parameters that the form has."""
        raise NotImplementedError

    @cached_property
    def lacking(self) -> tuple[str, ...]:
        """The parameters of some forms that it has not."""
        return tuple(field for field in ONLY if field not in self.fields)

    def _check(self, view: V, p: TileParameters) -> None:
        """Refuses parameters that the form has not for this kernel."""
        kernel = view.kernel
        if kernel.reductions and not is_power_of_two(p.reduce_tile):
            raise UnsupportedTile("reduce_tile", "a power of two")
        if not is_power_of_two(p.num_warps) or p.num_stages < 1 or p.split < 1:
            raise UnsupportedTile("num_warps, num_stages or split")
        if p.split > 1 and not self.may_split(view):
            raise UnsupportedTile(
                "split", "its reductions do not all give one value for each output from the same ranges"
            )
        for field in self.lacking:
            if getattr(p, field) != LEAST[field] or (field == "loads" and p.warp_specialize):
                raise UnsupportedTile(field, ONLY[field])
        self.check(view, p)
        if p.epilogue_parts not in (1, 2) or (p.epilogue_parts == 2 and p.tile[1] < 32):
            raise UnsupportedTile("epilogue_parts", "1, or 2 halves of at least 16 columns")
        if any(n >= len(kernel.loads) for n in (*p.evict_first, *p.evict_last)):
            raise UnsupportedTile("evict_first or evict_last", f"the kernel has {len(kernel.loads)} loads")

    def decided(self, target: Target, p: TileParameters, axes: tuple[Axis, ...], loop: Loop) -> dict[str, Any]:
        """What plans of all forms say: what parameters decide by themselves, and what it is on the target."""
        device = device_of(target)
        return {
            "form": self.name, "noun": self.noun, "has_stages": self.has_stages,
            "in_gluon": self.in_gluon, "by_layouts": self.by_layouts, "style": self.style, "axes": axes, "tile": p.tile,
            "loop": loop, "threads": device.threads(p.num_warps), "blocks": device.blocks(p.num_stages),
            "ptx": device.ptx, "split": p.split, "tail": p.tail, "group": p.group, "persistent": p.persistent,
            "loads_by": p.loads, "num_warps": p.num_warps, "num_stages": p.num_stages, "maxnreg": p.maxnreg,
            "warp_specialize": p.warp_specialize, "epilogue_parts": p.epilogue_parts, "read_early": p.read_early,
            "fast_math": p.fast_math, "precision": p.precision, "evict_first": p.evict_first,
            "evict_last": p.evict_last, "unpacked": p.unpacked,
        }  # fmt: skip

    def write(self, plan: P, writer: Writer) -> Lines:
        """The lines of the program's function. Raises UnsupportedTile where a value has no expression."""
        raise NotImplementedError

    def write_second(self, plan: P, writer: Writer) -> tuple[Lines, int]:
        """The launch that adds what programs left for it; and how many programs it has."""
        raise NotImplementedError

    # ---- what it costs

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


def rows_together(width: int, rows: int, target: Target) -> int:
    """Rows of so many elements that a program has at once: what a block holds, fewer where programs are few."""
    height = max(1, min(ROWS_TILE // width, power_of_two(rows)))
    while height > 1 and rows < height * target.cores * 2:
        height //= 2
    return height


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
        return (EXACT,)
    return (EXACT, *nearly, *((TF32,) if kernel.allows_tf32 else ()))


def registers_for_sums(target: Target, warps: int) -> int:
    """Registers that each thread of a program of so many warps has for sums and for what it holds of rows."""
    return device_of(target).registers_of_thread(warps) - LEAST_BESIDE


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
