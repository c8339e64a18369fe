"""A batch that is not one idea measured many times: near twins are kept apart.

Twins differ by at most one step: one more, or one replaced. What is measured of one tells most of the other. `seldom`
looks further: at whole kinds of schedules that a search has passed by.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final

from kcg.search.calibration import distance
from kcg.types import Schedule, ScheduleKind

TWIN_DISTANCE: Final = 2  # in steps, as `calibration.distance` counts them
TWIN_PENALTY: Final = 0.1  # log-speedup
NOVELTY: Final = 0.3  # log-seconds that a kind of which nothing was measured may be misjudged by


class StepSets:
    """Schedules as sets of their steps, one bit a step; an Opt that is taken twice has two."""

    def __init__(self) -> None:
        self._bits: dict[tuple[str, int], int] = {}

    def of(self, schedule: Schedule) -> int:
        """The set of one schedule. What has no Opts is a single step of its own."""
        names = [str(o) for o in schedule.opts] if schedule.kind == ScheduleKind.OPTS else [schedule.id]
        bits = 0
        for i, name in enumerate(names):
            bits |= 1 << self._bits.setdefault((name, names[:i].count(name)), len(self._bits))
        return bits


def twins(steps: int, others: int) -> bool:
    """Whether two sets of steps are one step apart."""
    return distance(steps, others) <= TWIN_DISTANCE


def leaders(groups: Sequence[Hashable], scores: Sequence[float]) -> list[int]:
    """The place of the highest score of each group, the first of equals, by where the groups begin."""
    top: dict[Hashable, int] = {}
    for i, group in enumerate(groups):
        if group not in top or scores[top[group]] < scores[i]:
            top[group] = i
    return [*top.values()]


def seldom(
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
    scores: Sequence[float], steps: Sequence[int], count: int, *, penalty: float = TWIN_PENALTY,
    tiles: Sequence[Hashable] | None = None,
) -> list[int]:  # fmt: skip
    """The places of `count` of the highest scores, in the order chosen, the first of equals first.

    One after the other is chosen, and each loses `penalty` for every near twin, and what is of its tile, among those
    chosen before.
    """
    kinds = range(len(scores)) if tiles is None else tiles
    pool = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    chosen: list[int] = []
    while pool and len(chosen) < count:
        # a twin loses at most `penalty` for each already chosen: nothing further down the pool can win
        reach = scores[pool[0]] - penalty * len(chosen)
        top, highest = 0, float("-inf")
        for place, i in enumerate(pool):
            if scores[i] < reach:
                break
            score = scores[i] - penalty * sum(kinds[i] == kinds[c] or twins(steps[i], steps[c]) for c in chosen)
            if score > highest:
                top, highest = place, score
        chosen.append(pool.pop(top))
    return chosen
