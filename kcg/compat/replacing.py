"""Programs in the place of calls, put there before tinygrad plans memory: the way in which a region is deployed.

Wherever a program is about to plan memory, eagerly or under `TinyJit`, calls are looked for that run a region's kernels
on buffers wired as the region says. Each such set of calls gives way to the launches of a program, on the same buffers,
with new ones for what it stores in between. tinygrad plans, compiles and graphs the result as its own.

It is done only where it is safe (`kcg.compat.partition`). What is left as it was is counted, with the reason. A Tensor
counts as live as long as it exists, which is asked anew at every planning. Calls are put into another order where a
region needs that; every read and write keeps its order.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kcg.compat.capture import why_fixed
from kcg.compat.partition import Partition
from kcg.compat.planning import PlannedCall, Slot, before_planning, stretch_of
from kcg.types import Region

if TYPE_CHECKING:
    from kcg.compat.tiny import UOp

TAG = "kcg-region:"  # begins the tag of a call that was put in the place of others; the region's id follows

DEVICES = "its calls are on several devices, or on one that the program is not for"
UNALIGNED = "one of its buffers does not begin at a multiple of 16 bytes"
"""Why calls are left as they were, beside the reasons of `kcg.compat.partition`."""


@dataclass(frozen=True)
class Launch:
    """One call of what comes instead: a PROGRAM that is compiled, or a kernel's AST with the Opts that it takes."""

    body: UOp
    args: tuple[int, ...]  # by slot of `body`: which buffer of the region, or from `Placed.buffers` on of the scratch


@dataclass(frozen=True)
class Placed:
    """Launches for one device, in order."""

    launches: tuple[Launch, ...]
    buffers: int  # of the region: numbers from here on are of `scratch`
    scratch: tuple[tuple[int, str], ...] = ()  # elements and dtype of each workspace and intermediate buffer
    aligned: bool = False  # whether every buffer has to begin at a multiple of `ALIGNMENT`


@dataclass(frozen=True)
class Replacement:
    """What is put in the place of a region's calls on a device, asked for once; None: nothing on that one."""

    region: Region
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


@contextlib.contextmanager
def replacing_calls(replacements: Sequence[Replacement], id_of: Callable[[UOp], str | None]) -> Iterator[Replaced]:
    """Inside the block, calls of the regions are replaced wherever memory is planned, those named first before others.

    `id_of` gives the id of a kernel's AST, None of what is no kernel. A `TinyJit` that is captured in the block keeps
    what it got. Gives what became of the regions so far.
    """
    from kcg.compat.tiny import Ops

    report = Replaced()
    wanted = [Replacement(one.region, functools.cache(one.place)) for one in replacements]
    ids: dict[bytes, str | None] = {}

    def known_id(ast: UOp) -> str | None:
        if ast.key not in ids:
            ids[ast.key] = None if why_fixed(ast) else id_of(ast)
        return ids[ast.key]

    def rewrite(linear: UOp, _: str) -> UOp:
        kernels = [known_id(c.src[0]) if c.op is Ops.CALL and c.src[0].op is Ops.SINK else None for c in linear.src]
        partition = Partition(kernels, lambda: stretch_of(linear))
        new = {}
        for one in wanted:
            new.update(_replaced(partition, one))
        report.add(Counter({region: len(sets) for region, sets in partition.found.items()}), partition.left())
        return linear if not new else linear.replace(src=tuple(_in_order(linear, partition, new)))

    with before_planning(rewrite):
        yield report


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
        return UNALIGNED if here.aligned and not _aligned(bound) else ""

    new = {}
    for places, bound in partition.claim(replacement.region, refuse):
        like = partition.calls[places[0]]
        here = placed[like.devices]
        assert here is not None
        nodes = {number: slot.node for number, slot in bound.items()}
        for place, (elements, dtype) in enumerate(here.scratch):
            nodes[here.buffers + place] = _new_buffer(like.devices[0], elements, dtype)
        new[min(places)] = [
            like.node.replace(
                src=(launch.body, *(nodes[number] for number in launch.args)), tag=TAG + replacement.region.id
            )
            for launch in here.launches
        ]
    return new


def _in_order(linear: UOp, partition: Partition, new: dict[int, list[UOp]]) -> Iterator[UOp]:
    for group in partition.order():
        yield from new.get(group[0]) or [linear.src[place] for place in group]


def _aligned(bound: dict[int, Slot]) -> bool:
    from kcg.compat.standalone import ALIGNMENT

    return all(slot.offset is not None and slot.offset % ALIGNMENT == 0 for slot in bound.values())


def _new_buffer(device: str, elements: int, dtype: str) -> UOp:
    from kcg.compat.tiny import UOp, dtypes

    return UOp.new_buffer(device, elements, next(d for d in dtypes.all if d.name == dtype))
