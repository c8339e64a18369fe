"""Which calls of a stretch are those of a region, and whether they can run as one program that the region describes.

Calls are found by what they run and what they bind: each runs the region's kernel, and buffers are the same where the
region's are. They can run as one where
- what the region does not store is observed by nobody: no live Tensor, no input, no other call;
- no other call has to run in between (`kcg.compat.hazards`), also by way of calls that are grouped already;
- buffers that are different ones in the region share no memory that is written.

A region may compute some of its calls *again*: their values are made inside, and are not stored. Such a call belongs to
no group of that region and stays where it is, unless nobody is left who reads what it stores. Its value has to be the
only one that its buffer ever holds, and what it reads must be stored, and be the same where the region runs.

Nothing here needs tinygrad: a stretch may be one that is about to run, or one that was captured earlier.

This is part of the module that `export` writes, see `kcg.compat.stretch`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from kcg.compat.hazards import Groups
from kcg.compat.stretch import PlannedCall, Slot

TRIES = 256  # ways to bind a region that are looked at for one first call

LIVE = "a value that it does not store is still alive"
USED = "another call uses a value that it does not store"
BETWEEN = "another call has to run in between"
OVERLAP = "two of its buffers share memory"
REWRITTEN = "what it computes again is stored, or changed, by others too"
UNSTORED = "what it computes again is made of a value that another region does not store"
"""Why calls that match a region are left as they are."""

Bound = dict[int, Slot]
"""Which memory each buffer of a region is."""


class Named(Protocol):
    """A kernel, as far as calls are recognised by it."""

    @property
    def id(self) -> str: ...


class Wiring(Protocol):
    """What of a region tells its calls, see `kcg.types.Region`."""

    @property
    def id(self) -> str: ...

    @property
    def kernels(self) -> Sequence[Named]: ...

    @property
    def args(self) -> tuple[tuple[int, ...], ...]: ...

    @property
    def outputs(self) -> tuple[int, ...]: ...

    @property
    def again(self) -> tuple[int, ...]: ...


class Partition:
    """The calls of one stretch, grouped into regions one by one; a call belongs to the first that claims it."""

    def __init__(self, kernels: Sequence[str | None], read: Callable[[], list[PlannedCall]]) -> None:
        """`kernels` are the ids of what the calls run; `read` gives the calls, once a region asks for them."""
        self.found: dict[str, list[tuple[int, ...]]] = {}  # region id -> sets of calls that it claimed
        self.calls: list[PlannedCall] = []
        self._kernels, self._read_calls = kernels, read
        self._by_kernel: dict[str, list[int]] = defaultdict(list)
        for place, kernel in enumerate(kernels):
            if kernel is not None:
                self._by_kernel[kernel].append(place)
        self._left: list[tuple[str, str, frozenset[int]]] = []  # region id, reason, its calls
        self._taken: set[int] = set()
        self._joined: set[int] = set()  # of these the calls of regions of several kernels
        self._users: dict[object, set[int]] = defaultdict(set)  # memory -> calls that use it
        self._writers: dict[object, set[int]] = defaultdict(set)
        self._hidden: set[object] = set()  # memory that regions do not store
        self._redone: dict[int, set[int]] = defaultdict(set)  # call -> calls of regions that compute it again
        self._by_slot: dict[tuple[str, int, object], list[int]] = defaultdict(list)
        self._groups = Groups(())

    def _read(self) -> None:
        if self.calls:
            return
        self.calls = self._read_calls()
        self._groups = Groups([call.access for call in self.calls])
        for place, call in enumerate(self.calls):
            for number, slot in enumerate(call.slots):
                for base in slot.bases:
                    self._users[base].add(place)
                    self._writers[base].update([place] if number in call.writes else ())
                if (kernel := self._kernels[place]) is not None:
                    self._by_slot[kernel, number, slot.node].append(place)

    def claim(
        self, region: Wiring, refuse: Callable[[list[PlannedCall], Bound], str] = lambda calls, bound: ""
    ) -> list[tuple[tuple[int, ...], Bound]]:
        """Group every set of calls of the region, where that is safe and `refuse` names no reason against it.

        Gives the places of the calls, by kernel of the region, and what they bind; among them those of calls that it
        computes `again`, which are in no group of it.
        """
        kernels = [kernel.id for kernel in region.kernels]
        if any(len(self._by_kernel.get(kernel, ())) < count for kernel, count in Counter(kernels).items()):
            return []
        self._read()
        claimed = []
        for first in self._by_kernel[kernels[_first(region)]]:
            refused: list[tuple[str, frozenset[int]]] = []
            for places, bound in self._matches(region, kernels, first):
                own, again = own_of(region, places), again_of(region, places)
                reason = refuse([self.calls[place] for place in places], bound)
                reason = reason or self._why_unsafe(region, places, bound)
                if not reason and self._groups.merge(own, again):
                    self._taken.update(own)
                    self._joined.update(own if len(places) > 1 else ())
                    self._remember(region, own, again, bound)
                    claimed.append((places, bound))
                    break
                refused.append((reason or BETWEEN, frozenset(own)))
            else:
                self._left.extend((region.id, reason, places) for reason, places in refused[:1])
        if claimed:
            self.found.setdefault(region.id, []).extend(places for places, _ in claimed)
        return claimed

    def left(self) -> Counter[tuple[str, str]]:
        """Region id and reason -> sets of calls that match it, and of which no other region joined any."""
        return Counter((region, why) for region, why, _ in self.left_sets())

    def left_sets(self) -> list[tuple[str, str, frozenset[int]]]:
        """Region id, reason and places of each set that `left` counts."""
        return [one for one in self._left if one[2].isdisjoint(self._joined)]

    def order(self) -> list[list[int]]:
        """All calls but those that are left out, in groups, in an order that keeps every read and write."""
        self._read()
        return [group for group in self._groups.order() if not self._is_unread(group[0])]

    def left_out(self) -> list[int]:
        """The calls that run nowhere: whoever read what they store computes them again."""
        return [place for place in sorted(self._redone) if self._is_unread(place)]

    def _is_unread(self, place: int) -> bool:
        if place in self._taken or place not in self._redone:
            return False
        done = self._redone[place] | {place}
        return all(not slot.held and self._users[base] <= done for slot in self._written(place) for base in slot.bases)

    def _remember(self, region: Wiring, own: tuple[int, ...], again: tuple[int, ...], bound: Bound) -> None:
        """What others have to know of calls that were grouped."""
        written = {slot for place in own for slot in self._written(place)}
        hidden = [s for number, s in bound.items() if s in written and number not in region.outputs]
        self._hidden.update(base for slot in hidden if len(region.kernels) > 1 for base in slot.bases)
        for place in again:
            self._redone[place].update(own)
            for base in self.calls[place].access.reads:
                self._users[base].update(own)

    def _written(self, place: int) -> list[Slot]:
        return [self.calls[place].slots[slot] for slot in self.calls[place].writes]

    # ---- finding ----

    def _matches(self, region: Wiring, kernels: list[str], first: int) -> Iterator[tuple[tuple[int, ...], Bound]]:
        """Calls that run the region's kernels on buffers wired as it says, by kernel; and what its buffers are."""
        if first in self._taken or self._is_unread(first):
            return
        args = region.args or (tuple(range(len(self.calls[first].slots))),)
        order = _connected(args, _first(region))
        tries = TRIES

        def extend(chosen: dict[int, int], bound: Bound) -> Iterator[tuple[dict[int, int], Bound]]:
            nonlocal tries
            if len(chosen) == len(kernels):
                yield chosen, bound
                return
            kernel = order[len(chosen)]
            for place in self._candidates(kernels[kernel], args[kernel], bound) if chosen else [first]:
                if (place in self._taken and kernel not in region.again) or place in chosen.values():
                    continue
                if tries <= 0:
                    return
                tries -= 1
                if (more := _bind(args[kernel], self.calls[place].slots, bound)) is not None:
                    yield from extend({**chosen, kernel: place}, more)

        for chosen, bound in extend({}, {}):
            yield tuple(chosen[kernel] for kernel in range(len(kernels))), bound

    def _candidates(self, kernel: str, numbers: tuple[int, ...], bound: Bound) -> list[int]:
        """The calls of a kernel that use one of the buffers known so far; all of them, where it uses none."""
        found = [
            self._by_slot.get((kernel, slot, bound[number].node), [])
            for slot, number in enumerate(numbers)
            if number in bound
        ]
        return min(found, key=len) if found else self._by_kernel[kernel]

    # ---- safety ----

    def _why_unsafe(self, region: Wiring, places: tuple[int, ...], bound: Bound) -> str:
        calls = [self.calls[place] for place in places]
        written = {slot for place in places for slot in self._written(place)}
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
        own, again = own_of(region, places), again_of(region, places)
        stored = {slot for place in again for slot in self._written(place)}
        if any(bound[number] in stored for number in region.outputs):
            return REWRITTEN
        for number, slot in bound.items():
            if slot in written - stored and number not in region.outputs:
                if slot.held:
                    return LIVE
                if not all(self._users[base] <= set(own) for base in slot.bases):
                    return USED
        return next((reason for place in again if (reason := self._why_not_again(place))), "")

    def _why_not_again(self, place: int) -> str:
        """Why a call cannot be computed again elsewhere, whatever runs in between."""
        access = self.calls[place].access
        if any(self._writers[base] != {place} for base in access.writes) or access.reads & access.writes:
            return REWRITTEN
        return "" if access.reads.isdisjoint(self._hidden) else UNSTORED


def own_of(region: Wiring, places: tuple[int, ...]) -> tuple[int, ...]:
    """Of a set of calls, by kernel of a region, those in whose place it runs."""
    return tuple(place for number, place in enumerate(places) if number not in region.again)


def again_of(region: Wiring, places: tuple[int, ...]) -> tuple[int, ...]:
    """Those that it computes again."""
    return tuple(places[number] for number in region.again)


def _first(region: Wiring) -> int:
    """The first of its own kernels: of each call of that there is one set at most."""
    return next(number for number in range(len(region.kernels)) if number not in region.again)


def _connected(args: Sequence[tuple[int, ...]], first: int) -> list[int]:
    """The kernels in an order in which each shares a buffer with one before it, where that can be."""
    order, known = [first], set(args[first])
    while len(order) < len(args):
        left = [kernel for kernel in range(len(args)) if kernel not in order]
        following = max(left, key=lambda kernel: (len(known.intersection(args[kernel])), -kernel))
        order.append(following)
        known.update(args[following])
    return order


def _bind(numbers: tuple[int, ...], slots: tuple[Slot, ...], bound: Bound) -> Bound | None:
    """`bound` with the buffers of one more call; None where it does not fit: one buffer is one number."""
    if len(numbers) != len(slots):
        return None
    more, back = dict(bound), {slot: number for number, slot in bound.items()}
    for number, slot in zip(numbers, slots, strict=True):
        if more.setdefault(number, slot) != slot or back.setdefault(slot, number) != number:
            return None
    return more
