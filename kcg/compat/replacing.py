"""Programs in the place of calls, put there before tinygrad plans memory: the way in which a region is deployed.

Wherever a program is about to plan memory, eagerly or under `TinyJit`, calls are looked for that run a region's kernels
on buffers wired as the region says. Each such set of calls gives way to the launches of a program, on the same buffers,
with new ones for what it stores in between. tinygrad plans, compiles and graphs the result as its own.

It is done only where it is safe. What is left as it was is counted, with the reason:
- what is stored no more must be observed by nobody: no live Tensor, no input, no other call. A Tensor counts as live as
  long as it exists; that is asked anew at every planning;
- no other call may have to run in between (`kcg.compat.hazards`), also by way of calls that were replaced before;
- buffers that are different ones in the region must not share memory.
Calls are put into another order where a region needs that; every read and write keeps its order.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kcg.compat.capture import why_fixed
from kcg.compat.hazards import Groups
from kcg.compat.planning import PlannedCall, Slot, before_planning, stretch_of
from kcg.types import Region

if TYPE_CHECKING:
    from kcg.compat.tiny import UOp

TAG = "kcg-region:"  # begins the tag of a call that was put in the place of others; the region's id follows
TRIES = 256  # ways to bind a region that are looked at for one first call

LIVE = "a value that it does not store is still alive"
USED = "another call uses a value that it does not store"
BETWEEN = "another call has to run in between"
OVERLAP = "two of its buffers share memory"
DEVICES = "its calls are on several devices, or on one that the program is not for"
UNALIGNED = "one of its buffers does not begin at a multiple of 16 bytes"


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
    left: Counter[tuple[str, str]] = field(
        default_factory=Counter
    )  # region id, reason -> sets of calls left as they were
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
    report = Replaced()
    wanted = [Replacement(one.region, functools.cache(one.place)) for one in replacements]
    ids: dict[bytes, str | None] = {}

    def known_id(ast: UOp) -> str | None:
        if ast.key not in ids:
            ids[ast.key] = None if why_fixed(ast) else id_of(ast)
        return ids[ast.key]

    def rewrite(linear: UOp, _: str) -> UOp:
        pass_ = _Pass(linear, known_id)
        for replacement in wanted:
            pass_.replace(replacement)
        report.add(pass_.counts, pass_.counted_left())
        return pass_.linear()

    with before_planning(rewrite):
        yield report


class _Pass:
    """One linear on its way to the planner."""

    def __init__(self, linear: UOp, id_of: Callable[[UOp], str | None]) -> None:
        from kcg.compat.tiny import Ops

        self._linear = linear
        self._ids = [id_of(c.src[0]) if c.op is Ops.CALL and c.src[0].op is Ops.SINK else None for c in linear.src]
        self._by_kernel: dict[str, list[int]] = defaultdict(list)
        for place, kernel in enumerate(self._ids):
            if kernel is not None:
                self._by_kernel[kernel].append(place)
        self.counts: Counter[str] = Counter()
        self._left: list[tuple[str, str, frozenset[int]]] = []  # region id, reason, its calls
        self._new: dict[int, list[UOp]] = {}  # first call of a group -> what runs instead
        self._taken: set[int] = set()
        self._calls: list[PlannedCall] = []
        self._groups = Groups(())

    def _read(self) -> None:
        """Look at the whole linear, once there is something to look for."""
        if self._calls:
            return
        self._calls = stretch_of(self._linear)
        self._groups = Groups([call.access for call in self._calls])
        self._users: dict[object, set[int]] = defaultdict(set)  # memory -> calls that use it
        self._by_slot: dict[tuple[str, int, UOp], list[int]] = defaultdict(list)
        for place, call in enumerate(self._calls):
            for number, slot in enumerate(call.slots):
                for base in slot.bases:
                    self._users[base].add(place)
                if (kernel := self._ids[place]) is not None:
                    self._by_slot[kernel, number, slot.node].append(place)

    def replace(self, replacement: Replacement) -> None:
        """Put the replacement in the place of every set of calls of its region, where that is safe."""
        region = replacement.region
        kernels = [kernel.id for kernel in region.kernels]
        needed = Counter(kernels)
        if any(len(self._by_kernel[kernel]) < count for kernel, count in needed.items()):
            return
        self._read()
        for first in self._by_kernel[kernels[0]]:
            refused: list[tuple[str, frozenset[int]]] = []
            for places, bound in self._matches(region, kernels, first):
                reason = self._put(replacement, places, bound)
                if not reason:
                    break
                refused.append((reason, frozenset(places)))
            else:
                self._left.extend((region.id, reason, places) for reason, places in refused[:1])

    # ---- finding ----

    def _matches(
        self, region: Region, kernels: list[str], first: int
    ) -> Iterator[tuple[tuple[int, ...], dict[int, Slot]]]:
        """Calls that run the region's kernels on buffers wired as it says, by kernel; and what its buffers are."""
        if first in self._taken:
            return
        args = region.args or (tuple(range(len(self._calls[first].slots))),)
        order = _connected(args)
        tries = TRIES

        def extend(chosen: dict[int, int], bound: dict[int, Slot]) -> Iterator[tuple[dict[int, int], dict[int, Slot]]]:
            nonlocal tries
            if len(chosen) == len(kernels):
                yield chosen, bound
                return
            kernel = order[len(chosen)]
            for place in [first] if kernel == 0 else self._candidates(kernels[kernel], args[kernel], bound):
                if tries <= 0:
                    return
                tries -= 1
                if place in self._taken or place in chosen.values():
                    continue
                if (more := _bind(args[kernel], self._calls[place].slots, bound)) is not None:
                    yield from extend({**chosen, kernel: place}, more)

        for chosen, bound in extend({}, {}):
            yield tuple(chosen[kernel] for kernel in range(len(kernels))), bound

    def _candidates(self, kernel: str, numbers: tuple[int, ...], bound: dict[int, Slot]) -> list[int]:
        """The calls of a kernel that use one of the buffers known so far; all of them, where it uses none."""
        found = [
            self._by_slot[kernel, slot, bound[number].node] for slot, number in enumerate(numbers) if number in bound
        ]
        return min(found, key=len) if found else self._by_kernel[kernel]

    # ---- safety ----

    def _put(self, replacement: Replacement, places: tuple[int, ...], bound: dict[int, Slot]) -> str:
        """Replace the calls. Returns why not, where it is not safe, and nothing is done then."""
        region, calls = replacement.region, [self._calls[place] for place in places]
        devices = {call.devices for call in calls}
        one = next(iter(devices))
        placed = replacement.place(one[0]) if len(devices) == 1 and len(one) == 1 else None
        if placed is None:
            return DEVICES
        reason = self._why_unsafe(region, places, bound) or (
            UNALIGNED if placed.aligned and not _aligned(bound) else ""
        )
        if reason or not self._groups.merge(places):
            return reason or BETWEEN
        nodes = {number: slot.node for number, slot in bound.items()}
        for place, (elements, dtype) in enumerate(placed.scratch):
            nodes[placed.buffers + place] = _new_buffer(one[0], elements, dtype)
        like = calls[0].node
        self._new[min(places)] = [
            like.replace(src=(launch.body, *(nodes[number] for number in launch.args)), tag=TAG + region.id)
            for launch in placed.launches
        ]
        self._taken.update(places)
        self.counts[region.id] += 1
        return ""

    def _why_unsafe(self, region: Region, places: tuple[int, ...], bound: dict[int, Slot]) -> str:
        calls = [self._calls[place] for place in places]
        written = {call.slots[slot] for call in calls for slot in call.writes}
        slots = list(bound.values())
        for number, slot in enumerate(slots):
            if any(slot.overlaps(other) for other in slots[:number] if slot in written or other in written):
                return OVERLAP
        # the region says in which order its kernels ran; calls that do not conflict may have any
        for later, place in enumerate(places):
            for earlier in range(later):
                if places[earlier] > place and calls[earlier].access.conflicts(calls[later].access):
                    return BETWEEN
        if len(region.kernels) == 1:
            return ""
        inside = set(places)
        for number, slot in bound.items():
            if slot in written and number not in region.outputs:
                if slot.held:
                    return LIVE
                if not all(self._users[base] <= inside for base in slot.bases):
                    return USED
        return ""

    # ---- what comes out ----

    def counted_left(self) -> Counter[tuple[str, str]]:
        """Sets of calls that were left as they were by all of the replacements, with the reason."""
        return Counter((region, why) for region, why, places in self._left if places.isdisjoint(self._taken))

    def linear(self) -> UOp:
        if not self._new:
            return self._linear
        calls: list[UOp] = []
        for group in self._groups.order():
            calls.extend(self._new.get(group[0]) or [self._calls[place].node for place in group])
        return self._linear.replace(src=tuple(calls))


def _connected(args: Sequence[tuple[int, ...]]) -> list[int]:
    """The kernels in an order in which each shares a buffer with one before it, where that can be."""
    order, known = [0], set(args[0])
    while len(order) < len(args):
        left = [kernel for kernel in range(len(args)) if kernel not in order]
        following = max(left, key=lambda kernel: (len(known.intersection(args[kernel])), -kernel))
        order.append(following)
        known.update(args[following])
    return order


def _bind(numbers: tuple[int, ...], slots: tuple[Slot, ...], bound: dict[int, Slot]) -> dict[int, Slot] | None:
    """`bound` with the buffers of one more call; None where it does not fit: one buffer is one number."""
    if len(numbers) != len(slots):
        return None
    more, back = dict(bound), {slot: number for number, slot in bound.items()}
    for number, slot in zip(numbers, slots, strict=True):
        if more.setdefault(number, slot) != slot or back.setdefault(slot, number) != number:
            return None
    return more


def _aligned(bound: dict[int, Slot]) -> bool:
    from kcg.compat.programs import ALIGNMENT

    return all(slot.offset is not None and slot.offset % ALIGNMENT == 0 for slot in bound.values())


def _new_buffer(device: str, elements: int, dtype: str) -> UOp:
    from kcg.compat.tiny import UOp, dtypes

    return UOp.new_buffer(device, elements, next(d for d in dtypes.all if d.name == dtype))
