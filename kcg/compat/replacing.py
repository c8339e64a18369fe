"""Programs in the place of calls, put there before tinygrad plans memory: the way in which a region is deployed.

Wherever a program is about to plan memory, eagerly or under `TinyJit`, calls are looked for that run a region's kernels
on buffers wired as the region says. Each such set of calls gives way to the launches of a program, on the same buffers,
with new ones for what it stores in between. tinygrad plans, compiles and graphs the result as its own.

It is done only where it is safe (`kcg.compat.partition`). What is left as it was is counted, with the reason. A Tensor
counts as live as long as it exists, which is asked anew at every planning. Calls are put into another order where a
region needs that; every read and write keeps its order.

This is part of the module that `export` writes, see `kcg.compat.stretch`.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from kcg.compat.partition import Partition, Wiring, again_of, own_of
from kcg.compat.records import dataclass
from kcg.compat.stretch import PlannedCall, Slot, stretch_of

if TYPE_CHECKING:
    from tinygrad.uop.ops import UOp

TAG = "kcg-region:"  # begins the tag of a call that was put in the place of others; the region's id follows
ALIGNMENT, CPU_ALIGNMENT = 16, 64  # bytes; what vector loads of a program may rely on

DEVICES = "its calls are on several devices, or on one that the program is not for"
UNALIGNED = f"one of its buffers does not begin at a multiple of {ALIGNMENT} bytes, {CPU_ALIGNMENT} on a CPU"
"""Why calls are left as they were, beside the reasons of `kcg.compat.partition`."""


def alignment(device: str) -> int:
    """The bytes that an aligned program's buffers begin at a multiple of; a CPU's vectors are wider than a GPU's."""
    return CPU_ALIGNMENT if device.split(":")[0] == "CPU" else ALIGNMENT


@dataclass(frozen=True)
class OwnKernel:
    """One of the region's own kernels, which tinygrad compiles with these Opts, for any values of variables."""

    place: int  # among the region's kernels
    opts: tuple[Any, ...]


@dataclass(frozen=True)
class PlacedLaunch:
    """One call of what comes instead: a PROGRAM that is compiled, or a kernel of the region."""

    body: UOp | OwnKernel
    args: tuple[int, ...]  # by slot of `body`: the number of a buffer of the region, or of the scratch


@dataclass(frozen=True)
class Placed:
    """Launches for one device, in order."""

    launches: tuple[PlacedLaunch, ...]
    scratch: Mapping[int, tuple[int, str]] = field(default_factory=dict)  # number -> elements and dtype
    aligned: bool = False  # whether every buffer has to begin at a multiple of `alignment`


@dataclass(frozen=True)
class Replacement:
    """What is put in the place of a region's calls on a device, asked for once; None: nothing on that one."""

    region: Wiring
    place: Callable[[str], Placed | None]


@dataclass
class Replaced:
    """What became of the regions so far, over all that was planned. Threads may share it."""

    counts: Counter[str] = field(default_factory=Counter)  # region id -> sets of calls that were replaced
    left: Counter[tuple[str, str]] = field(default_factory=Counter)  # region id, reason -> sets left as they were
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, counts: Counter[str], left: Counter[tuple[str, str]]) -> None:
        with self._lock:
            self.counts.update(counts)
            self.left.update(left)


class Replacing:
    """What becomes of a linear that is about to be planned: calls of the regions are replaced, those named first before
    others. `report` says what became of them so far.

    `id_of` gives the id of a kernel's AST, None of what is no kernel whose schedule is free.
    """

    def __init__(self, replacements: Sequence[Replacement], id_of: Callable[[UOp], str | None]) -> None:
        self.report = Replaced()
        self._wanted = [Replacement(one.region, functools.cache(one.place)) for one in replacements]
        self._id_of, self._ids = id_of, dict[bytes, str | None]()

    def __call__(self, linear: UOp) -> UOp:
        partition = Partition([self._kernel_of(call) for call in linear.src], lambda: stretch_of(linear))
        new = {}
        for one in self._wanted:
            new.update(_replaced(partition, one))
        self.report.add(Counter({region: len(sets) for region, sets in partition.found.items()}), partition.left())
        return linear if not new else linear.replace(src=tuple(_in_order(linear, partition, new)))

    def _kernel_of(self, call: UOp) -> str | None:
        from tinygrad.uop import Ops

        if call.op is not Ops.CALL or call.src[0].op is not Ops.SINK:
            return None
        ast = call.src[0]
        if ast.key not in self._ids:
            self._ids[ast.key] = self._id_of(ast)
        return self._ids[ast.key]


def _replaced(partition: Partition, replacement: Replacement) -> dict[int, list[UOp]]:
    """First call of each set of calls that gives way, and what runs instead."""
    placed: dict[tuple[str, ...], Placed | None] = {}

    def refuse(calls: list[PlannedCall], bound: dict[int, Slot]) -> str:
        devices = calls[0].devices
        if any(call.devices != devices for call in calls) or len(devices) != 1:
            return DEVICES
        placed[devices] = here = replacement.place(devices[0])
        if here is None:
            return DEVICES
        return UNALIGNED if here.aligned and not _aligned(bound, devices[0]) else ""

    new = {}
    for places, bound in partition.claim(replacement.region, refuse):
        calls = [partition.calls[place] for place in places]
        here = placed[calls[0].devices]
        assert here is not None
        nodes = {number: slot.node for number, slot in bound.items()}
        scratch = dict(here.scratch) | _made_again(partition, again_of(replacement.region, places), bound)
        for number, (elements, dtype) in scratch.items():
            nodes[number] = _new_buffer(calls[0].devices[0], elements, dtype)
        new[min(own_of(replacement.region, places))] = [
            calls[0].node.replace(
                src=(_body_of(launch, calls), *(nodes[number] for number in launch.args)),
                tag=TAG + replacement.region.id,
            )
            for launch in here.launches
        ]
    return new


def _made_again(partition: Partition, again: tuple[int, ...], bound: dict[int, Slot]) -> dict[int, tuple[int, str]]:
    """Elements and dtype of what calls store that are computed again, by number: a program that stores it too has a
    buffer of its own for it."""
    stored = {partition.calls[place].slots[slot] for place in again for slot in partition.calls[place].writes}
    made = {number: slot for number, slot in bound.items() if slot in stored}
    return {number: (slot.size // int(slot.node.dtype.itemsize), slot.dtype) for number, slot in made.items()}


def _body_of(launch: PlacedLaunch, calls: list[PlannedCall]) -> UOp:
    if not isinstance(launch.body, OwnKernel):
        return launch.body
    ast = calls[launch.body.place].node.src[0]
    return ast.replace(arg=replace(ast.arg, opts_to_apply=launch.body.opts, beam=0))


def _in_order(linear: UOp, partition: Partition, new: dict[int, list[UOp]]) -> Iterator[UOp]:
    for group in partition.order():
        yield from new.get(group[0]) or [linear.src[place] for place in group]


def _aligned(bound: dict[int, Slot], device: str) -> bool:
    return all(slot.offset is not None and slot.offset % alignment(device) == 0 for slot in bound.values())


def _new_buffer(device: str, elements: int, dtype: str) -> UOp:
    from tinygrad.dtype import dtypes
    from tinygrad.uop.ops import UOp

    return UOp.new_buffer(device, elements, next(d for d in dtypes.all if d.name == dtype))
