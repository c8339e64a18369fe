"""Schedules reached by steps drawn at random, and schedules as lists of steps that can be changed.

A step is known by its label. A list of steps is followed through the space's own `actions`, and what is not legal where
its turn comes is left out: whatever is changed, the outcome was reached by legal steps only.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from kcg.kernel.kinds import same_but_amount, steps_of
from kcg.search.calibration import distance
from kcg.search.problem import Trials
from kcg.types import Action, Schedule

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
    return list(trials.at_random(list(found.values())))


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
        labels = steps_of(schedule)
        for origin in (self.trials.problem.space.start(), self.trials.problem.space.baseline()):
            before = steps_of(origin)
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


# ---- A batch that is not one idea measured many times: near duplicates are kept apart.
#
# Near duplicates differ by at most one step: one more, or one replaced. What is measured of one tells most of the
# other. `least_explored` looks further: at whole kinds of schedules that a search has passed by.

DUPLICATE_DISTANCE: Final = 2  # in steps, as `calibration.distance` counts them
DUPLICATE_PENALTY: Final = 0.1  # log-speedup
NOVELTY: Final = 0.3  # log-seconds that a kind of which nothing was measured may be misjudged by


class StepSets:
    """Schedules as sets of their steps, one bit a step; an Opt that is taken twice has two."""

    def __init__(self) -> None:
        self._bits: dict[tuple[str, int], int] = {}

    def of(self, schedule: Schedule) -> int:
        """The set of one schedule."""
        names = steps_of(schedule)
        bits = 0
        for i, name in enumerate(names):
            bits |= 1 << self._bits.setdefault((name, names[:i].count(name)), len(self._bits))
        return bits


def near_duplicates(steps: int, others: int) -> bool:
    """Whether two sets of steps are one step apart."""
    return distance(steps, others) <= DUPLICATE_DISTANCE


def leaders(groups: Sequence[Hashable], scores: Sequence[float]) -> list[int]:
    """The place of the highest score of each group, the first of equals, by where the groups begin."""
    top: dict[Hashable, int] = {}
    for i, group in enumerate(groups):
        if group not in top or scores[top[group]] < scores[i]:
            top[group] = i
    return [*top.values()]


def least_explored(
    kinds: Sequence[Hashable], predicted: Sequence[float], scores: Sequence[float], seen: Counter[Hashable], count: int
) -> list[int]:
    """The places of `count` candidates of kinds of which little is known: one after the other the kind is chosen whose
    best `predicted` log-seconds, less `NOVELTY` for what was `seen` of it, are least, and of it the highest score.

    A correction that saw 30 schedules of one kind and one of another judges the other by that one, and what it judges
    so is not measured. The prediction that was not corrected is no better, but what it says of a kind is soon settled.
    """
    seen, best = seen.copy(), dict[Hashable, list[int]]()
    for i in sorted(range(len(scores)), key=lambda i: (-scores[i], i)):
        best.setdefault(kinds[i], []).append(i)
    least = {kind: min(predicted[i] for i in places) for kind, places in best.items()}
    chosen: list[int] = []
    while best and len(chosen) < count:
        kind = min(best, key=lambda k: least[k] - NOVELTY / math.sqrt(1 + seen[k]))
        chosen.append(best[kind].pop(0))
        seen[kind] += 1
        if not best[kind]:
            del best[kind]
    return chosen


def diverse(
    scores: Sequence[float],
    steps: Sequence[int],
    count: int,
    *,
    penalty: float = DUPLICATE_PENALTY,
    tiles: Sequence[Hashable] | None = None,
) -> list[int]:
    """The places of `count` of the highest scores, in the order chosen, the first of equals first.

    One after the other is chosen, and each loses `penalty` for every near duplicate, and what is of its tile, among
    those chosen before.
    """
    kinds = range(len(scores)) if tiles is None else tiles
    pool = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    chosen: list[int] = []
    while pool and len(chosen) < count:
        # a near duplicate loses at most `penalty` for each already chosen: nothing further down the pool can win
        reach = scores[pool[0]] - penalty * len(chosen)
        top, highest = 0, float("-inf")
        for place, i in enumerate(pool):
            if scores[i] < reach:
                break
            score = scores[i] - penalty * sum(
                kinds[i] == kinds[c] or near_duplicates(steps[i], steps[c]) for c in chosen
            )
            if score > highest:
                top, highest = place, score
        chosen.append(pool.pop(top))
    return chosen
