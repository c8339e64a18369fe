"""Which calls of a program must keep their order, and which of them can become one without breaking it.

Calls that share memory are ordered by three hazards: a read after a write, a write after a read, a write after a write.
Whatever keeps all three leaves the same values in memory. Here memory is named by anything hashable: what a buffer is,
and which of its parts, is for others to say; whole base buffers are the safe choice.

This is part of the module that `export` writes, see `kcg.compat.stretch`.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator, Sequence

from kcg.compat.records import dataclass


@dataclass(frozen=True)
class Access:
    """What one call reads and writes; what it updates in place is in both."""

    reads: frozenset[Hashable]
    writes: frozenset[Hashable]

    def conflicts(self, other: Access) -> bool:
        """Whether the two must keep their order."""
        return not (
            self.writes.isdisjoint(other.writes)
            and self.writes.isdisjoint(other.reads)
            and self.reads.isdisjoint(other.writes)
        )


def successors_of(accesses: Sequence[Access]) -> list[set[int]]:
    """For each call, later calls that must stay after it: the fewest from which all others follow."""
    after: list[set[int]] = [set() for _ in accesses]
    written: dict[Hashable, int] = {}  # memory -> the call that wrote it last
    readers: dict[Hashable, list[int]] = {}  # memory -> the calls that read it since
    for place, access in enumerate(accesses):
        for memory in access.reads:
            if memory in written:
                after[written[memory]].add(place)
        for memory in access.writes:
            for reader in readers.pop(memory, []):
                after[reader].add(place)
            if memory in written:
                after[written[memory]].add(place)
        for memory in access.writes:
            written[memory] = place
        for memory in access.reads:
            readers.setdefault(memory, []).append(place)
    for place, later in enumerate(after):
        later.discard(place)
    return after


def is_convex(after: Sequence[set[int]], places: Iterable[int]) -> bool:
    """Whether no call outside of `places` has to run between two of them, nothing else being merged. `after` is of
    `successors_of`, so it leads to later places only, and what is past the last of `places` need not be looked at."""
    inside = set(places)
    last, found = max(inside), set[int]()
    stack = [later for place in inside for later in after[place] if later not in inside]
    while stack:
        place = stack.pop()
        if place > last or place in found:
            continue
        found.add(place)
        if not inside.isdisjoint(after[place]):
            return False
        stack += after[place]
    return True


class Groups:
    """Calls, some of them merged into groups that run as one, such that some order of the groups keeps all hazards.

    `merge` is refused where a call outside must run between two of the group: the group is not convex. That depends on
    the groups that were merged before, so it is asked anew for each.
    """

    def __init__(self, accesses: Sequence[Access]) -> None:
        self._accesses = accesses
        self._after = successors_of(accesses)
        self._group = list(range(len(accesses)))  # call -> its group, named by its first member
        self._members: dict[int, list[int]] = {place: [place] for place in range(len(accesses))}

    def is_convex(self, places: Iterable[int]) -> bool:
        """Whether the calls, none of which is in a group yet, can run as one."""
        inside = set(places)
        found, stack = set[int](), list[int]()

        def visit(group: int) -> None:
            for member in self._members[group]:
                for later in self._after[member]:
                    if (other := self._group[later]) not in found and other not in inside:
                        found.add(other)
                        stack.append(other)

        for place in inside:
            visit(place)
        while stack:
            group = stack.pop()
            if any(later in inside for member in self._members[group] for later in self._after[member]):
                return False
            visit(group)
        return True

    def merge(self, places: Iterable[int], again: Iterable[int] = ()) -> bool:
        """Make the calls one group, in their order; False, and nothing is done, where they cannot run as one.

        The group also computes what the calls `again` compute, which stay: it reads what they read, as it is where they
        stand. So it runs after who wrote that last, and before who writes it next.
        """
        chosen = sorted(places)
        edges = {edge for place in again for edge in self._reading(place, chosen)}
        edges = {(before, after) for before, after in edges if after not in self._after[before]}
        for before, after in edges:
            self._after[before].add(after)
        # one call runs by itself wherever what was merged before can run
        if (len(chosen) > 1 or edges) and not self.is_convex(chosen):
            for before, after in edges:
                self._after[before].discard(after)
            return False
        for place in chosen:
            del self._members[place]
            self._group[place] = chosen[0]
        self._members[chosen[0]] = chosen
        return True

    def _reading(self, place: int, group: Sequence[int]) -> Iterator[tuple[int, int]]:
        """What a group, named by its first member, runs after and before where it reads what a call reads."""
        for memory in self._accesses[place].reads:
            writers = [at for at, access in enumerate(self._accesses) if memory in access.writes and at not in group]
            yield from ((at, group[0]) for at in [at for at in writers if at < place][-1:])
            yield from ((group[0], at) for at in [at for at in writers if at > place][:1])

    def order(self) -> list[list[int]]:
        """All groups in an order that keeps every hazard, each as near to its last member's place as that allows."""
        before = dict.fromkeys(self._members, 0)
        edges: dict[int, set[int]] = {group: set() for group in self._members}
        for place, later in enumerate(self._after):
            edges[self._group[place]] |= {self._group[other] for other in later}
        for group, others in edges.items():
            others.discard(group)
            for other in others:
                before[other] += 1
        ready = [(self._members[group][-1], group) for group, count in before.items() if not count]
        heapq.heapify(ready)
        found: list[list[int]] = []
        while ready:
            _, group = heapq.heappop(ready)
            found.append(self._members[group])
            for other in edges[group]:
                before[other] -= 1
                if not before[other]:
                    heapq.heappush(ready, (self._members[other][-1], other))
        return found
