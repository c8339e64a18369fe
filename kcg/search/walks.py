"""Schedules reached by steps drawn at random, and schedules as lists of steps that can be changed.

A step is known by its label. A list of steps is followed through the space's own `actions`, and what is not legal where
its turn comes is left out: whatever is changed, the outcome was reached by legal steps only.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kcg.search.interface import Action
from kcg.search.neighbours import same_but_amount
from kcg.search.trials import Trials
from kcg.types import Schedule, ScheduleKind

LONGEST_WALK: Final = 8
"""Steps of the longest random walk; 22 of 24 winners of BEAM=2 on Flux have more than 3, few have more than 6."""

WALKS_BEFORE_LISTING: Final = 32
"""Random walks in a row that met nothing new before the space is listed instead."""


def walk(trials: Trials) -> Schedule:
    """The end of a random walk of any length from the start or from the baseline."""
    rng, space = trials.problem.rng, trials.problem.space
    schedule = rng.choice((space.start(), space.baseline()))
    for _ in range(rng.randint(0, LONGEST_WALK)):
        actions = trials.actions(schedule)
        if not actions:
            break
        schedule = rng.choice(actions).schedule
    return schedule


def fresh(trials: Trials, count: int) -> list[Schedule]:
    """Up to `count` unmeasured ends of random walks, each kernel once; where walks meet nothing new, what is left of
    the space. Empty when all of it is measured, or the budget is gone."""
    found: dict[str, Schedule] = {}
    misses = 0
    while len(found) < count and misses < WALKS_BEFORE_LISTING and not trials.out_of_budget:
        schedule = walk(trials)
        if trials.observed(schedule) is None and trials.key(schedule) not in found:
            found[trials.key(schedule)] = schedule
        else:
            misses += 1
    if not found and count > 0:  # nearly all within reach of a walk is measured: list what is left
        return list(itertools.islice(trials.unmeasured(), count))
    return list(found.values())


@dataclass(frozen=True)
class Way:
    """The labels of the steps that lead from `origin` to `schedule`."""

    origin: Schedule
    labels: tuple[str, ...]
    schedule: Schedule


class Ways:
    """How schedules are reached, and what a change of one step makes of them. None stands for a change that cannot be
    made there."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self._known: dict[str, Way] = {}

    @property
    def _rng(self) -> random.Random:
        return self.trials.problem.rng

    def of(self, schedule: Schedule) -> Way:
        """A way to `schedule`: from the start or the baseline; else it stands alone and can only be added to."""
        key = self.trials.key(schedule)
        if (known := self._known.get(key)) is not None:
            return known
        labels = _labels(schedule)
        for origin in (self.trials.problem.space.start(), self.trials.problem.space.baseline()):
            before = _labels(origin)
            if labels[: len(before)] == before:
                way = self.follow(origin, labels[len(before) :])
                if self.trials.key(way.schedule) == key:
                    return way
        return self._known.setdefault(key, Way(schedule, (), schedule))

    def follow(self, origin: Schedule, labels: Sequence[str]) -> Way:
        """Where the steps lead, those left out that are not legal when their turn comes."""
        schedule, taken = origin, []
        for label in labels:
            action = next((a for a in self.trials.actions(schedule) if a.label == label), None)
            if action is not None:
                schedule = action.schedule
                taken.append(label)
        return self._known.setdefault(self.trials.key(schedule), Way(origin, tuple(taken), schedule))

    # changes

    def with_step(self, way: Way) -> Way | None:
        """One legal step more."""
        actions = self.trials.actions(way.schedule)
        return self._stepped(way.origin, way.labels, self._rng.choice(actions)) if actions else None

    def without_step(self, way: Way) -> Way | None:
        """One step less, the last as likely as any other."""
        if not way.labels:
            return None
        i = self._rng.randrange(len(way.labels))
        return self.follow(way.origin, way.labels[:i] + way.labels[i + 1 :])

    def with_other_step(self, way: Way) -> Way | None:
        """One step replaced by another that is legal in its place."""
        return self._replaced(way, amount_only=False)

    def with_other_amount(self, way: Way) -> Way | None:
        """One step replaced by the same on the same axis with another amount."""
        return self._replaced(way, amount_only=True)

    def _replaced(self, way: Way, *, amount_only: bool) -> Way | None:
        if not way.labels:
            return None
        i = self._rng.randrange(len(way.labels))
        before = self.follow(way.origin, way.labels[:i])
        others = [a for a in self.trials.actions(before.schedule) if a.label != way.labels[i]]
        if amount_only:
            others = [a for a in others if same_but_amount(a.label, way.labels[i])]
        if not others:
            return None
        middle = self._stepped(before.origin, before.labels, self._rng.choice(others))
        return self.follow(middle.origin, middle.labels + way.labels[i + 1 :])

    def crossed(self, one: Way, other: Way) -> Way:
        """The first steps of one and the last of the other."""
        i, j = self._rng.randint(0, len(one.labels)), self._rng.randint(0, len(other.labels))
        return self.follow(one.origin, one.labels[:i] + other.labels[j:])

    def _stepped(self, origin: Schedule, labels: tuple[str, ...], action: Action) -> Way:
        key = self.trials.key(action.schedule)
        return self._known.setdefault(key, Way(origin, (*labels, action.label), action.schedule))


def _labels(schedule: Schedule) -> tuple[str, ...]:
    return tuple(str(o) for o in schedule.opts) if schedule.kind == ScheduleKind.OPTS else ()
