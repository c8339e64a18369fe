"""A part of a kernel's space that is small enough to be measured completely: what a replay table is made of.

The space itself cannot be exhausted (a matmul has over 200,000 schedules of four Opts). A lattice is declared by a few
schedules that it must contain, such as the hand-coded one and BEAM's winners, and by a sub-list of actions: those that
lead to these schedules, then others drawn at random. It holds every schedule that these actions reach, the nearest to
the given ones first, up to a limit; with each schedule a way to it is inside. "Optimum" always means of the lattice.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Sequence

from kcg.kernel.kinds import Lattice, Steps
from kcg.kernel.opts.schedule import RAW, Opt, opts_of, schedule_of
from kcg.types import Action, Schedule

LIMIT = 1000
MOST_ACTIONS = 40  # so many at most, whatever the space offers
MOST_REPEATS = 2  # of an action that was drawn


def prefixes(schedule: Schedule) -> list[Schedule]:
    """The schedule after each of its Opts, the unoptimised one first."""
    opts = opts_of(schedule)
    return [schedule_of(opts[:n]) for n in range(len(opts) + 1)]


def lattice(space: Steps, given: Sequence[Schedule], *, rng: random.Random, limit: int = LIMIT) -> Lattice:
    """The lattice around `given`, each of which must apply; the hand-coded schedule is always among them.

    An action may be taken as often as a given schedule has it. Where the given ones take a step that the space does
    not offer, the schedules on their way are inside all the same. Raises ScheduleError where one does not apply.
    """
    wanted = [space.baseline(), *given]
    growth = _Growth(space, wanted, limit)
    growth.fill()
    others = growth.others()
    rng.shuffle(others)
    while len(growth.by_key) < limit and len(growth.most) < MOST_ACTIONS and others:
        growth.declare(others.pop())
        growth.fill()
    growth.add_ways(wanted)
    steps = {
        schedule: tuple(
            Action(str(opt), growth.by_key[to])
            for opt, to in growth.edges.get(key, {}).items()
            if to in growth.by_key and to != key
        )
        for key, schedule in growth.by_key.items()
    }
    keys = {schedule: key for key, schedule in growth.by_key.items()}
    return Lattice(tuple(growth.most), steps, keys, growth.by_key[space.key(space.baseline())], RAW)


class _Growth:
    """A lattice in the making: best-first from the unoptimised kernel by the distance from the given schedules."""

    def __init__(self, space: Steps, given: Sequence[Schedule], limit: int) -> None:
        self.space, self.limit = space, limit
        self.near = {space.key(p): p for schedule in given for p in prefixes(schedule)}
        self.most: Counter[Opt] = Counter()
        for schedule in given:
            self.most |= Counter(opts_of(schedule))
        self.by_key: dict[str, Schedule] = {}
        self.edges: dict[str, dict[Opt, str]] = {}
        self._waiting: list[tuple[int, int, int, str, Schedule]] = []
        self._queued: set[str] = set()
        self._offer(RAW, space.key(RAW), 0)

    def _offer(self, schedule: Schedule, key: str, distance: int) -> None:
        if key in self._queued:
            return
        self._queued.add(key)
        entry = (0 if key in self.near else distance, len(opts_of(schedule)), len(self._queued), key, schedule)
        heapq.heappush(self._waiting, entry)

    def fill(self) -> None:
        """Take in what the actions reach, the nearest first, until there is nothing more or the limit is met."""
        while self._waiting and len(self.by_key) < self.limit:
            distance, _, _, key, schedule = heapq.heappop(self._waiting)
            self.by_key[key] = schedule
            for opt in self.most:
                self._follow(key, opt, distance)

    def _follow(self, key: str, opt: Opt, distance: int) -> None:
        schedule, edges = self.by_key[key], self.edges.setdefault(key, {})
        if opt in edges or opts_of(schedule).count(opt) >= self.most[opt]:
            return
        child = self.space.step(schedule, opt)
        if child is not None:
            edges[opt] = self.space.key(child)
            self._offer(child, edges[opt], distance + 1)

    def declare(self, opt: Opt) -> None:
        """One action more."""
        self.most[opt] = MOST_REPEATS
        for key in list(self.by_key):
            self._follow(key, opt, 0 if key in self.near else 1)

    def others(self) -> list[Opt]:
        """Actions that are legal from one of the given schedules or on its way, and not declared."""
        found = {opts_of(action.schedule)[-1] for near in self.near.values() for action in self.space.actions(near)}
        return sorted(found - set(self.most), key=str)

    def add_ways(self, wanted: Sequence[Schedule]) -> None:
        """Put every given schedule inside with the way to it, if a step that the space does not offer kept it out."""
        for schedule in wanted:
            way = prefixes(schedule)
            for before, after in itertools.pairwise(way):
                first, second = self.space.key(before), self.space.key(after)
                self.by_key.setdefault(second, after)
                self.edges.setdefault(first, {}).setdefault(opts_of(after)[-1], second)
