"""How far the times of one binary are apart in two processes: what a difference between two methods must exceed.

Samples of one process agree far better than two processes do: the host's gap before a launch is in every sample, the
same for minutes and another in the next process, and memory lies elsewhere. kcg's own command timed what it chose in a
process of its own, and the campaign timed the same again, so every run of kcg in a campaign tells of this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kcg.measure.protocol import median

from .campaign import Campaign
from .choosing import Choices
from .method_names import KCG

LIMITS_S = (0.0, 50e-6, 200e-6, math.inf)  # kernels of like duration are taken together
FEWEST = 5  # pairs, for less nothing is said
SHARE = 0.95


@dataclass(frozen=True)
class Stray:
    """Of kernels between two durations in seconds: how far apart the times of one binary are, as a share."""

    least_s: float
    below_s: float
    pairs: int
    median: float
    most: float  # of 95 in 100


def strays(campaign: Campaign, chosen: Sequence[Choices]) -> list[Stray]:
    """By duration, where there is enough to tell: what kcg's runs and the campaign's duels say of the same choices."""
    pairs = list[tuple[float, float]]()
    for kernel in chosen:
        for method, schedule in kernel.by_method.items():
            told_s = campaign.journal.runs.get(method, {}).get("cold_s", {}).get(kernel.bench.region.id)
            duel = kernel.bench.seen.duels.get(schedule, {})
            if method.startswith(KCG) and told_s and duel.get("cold_s"):
                pairs.append((told_s, median(duel["cold_s"])))
    return by_duration(pairs)


def by_duration(pairs: Iterable[tuple[float, float]]) -> list[Stray]:
    """Pairs of seconds of one binary each, one of either process."""
    apart = [(one, abs(math.log(other / one))) for one, other in pairs]
    found = []
    for least_s, below_s in pairwise(LIMITS_S):
        logs = sorted(far for seconds, far in apart if least_s <= seconds < below_s)
        if len(logs) >= FEWEST:
            most = logs[min(len(logs) - 1, math.ceil(SHARE * len(logs)) - 1)]
            found.append(Stray(least_s, below_s, len(logs), math.expm1(median(logs)), math.expm1(most)))
    return found


def floor_of(found: Iterable[Stray], seconds: float) -> float:
    """What a kernel's times in two processes are apart, most of the time; nothing where nothing is known of it."""
    return next((stray.most for stray in found if stray.least_s <= seconds < stray.below_s), 0.0)
