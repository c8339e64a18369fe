"""Which region of a workload gets the next batch of measurements.

The rule is `calls × time × expected relative gain`: the next batch goes where it is expected to save the most of the
workload's time. The expected gain of a region starts from a prior. It moves towards what its batches really gained and
so halves with every 16 measurements that gained nothing. Around that rule:

1. A region whose time is not known yet goes first: its share cannot be judged before its baseline is measured.
2. Then every region with a meaningful share gets one batch before any gets a second, the largest share first.
3. Then the rule. Regions below 0.2 % of the total wait until no other is expected to gain 1 % any more, and
   compete by the rule from then on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PRIOR_GAIN = 0.3
"""Expected relative gain of a region before anything is known of it."""

HALF_LIFE = 16.0
"""After so many measurements without improvement the expected gain has halved."""

TINY_SHARE = 0.002
"""Regions below this share of the workload's time come last."""

SETTLED_GAIN = 0.01
"""A region expected to gain less no longer holds back the tiny ones."""


@dataclass
class RegionState:
    """What the allocator knows of one region."""

    region_id: str
    calls: int  # in one execution of the workload
    best_s: float | None = None  # best time of one call so far; None until something was measured
    measurements: int = 0
    batches: int = 0
    gain: float = PRIOR_GAIN  # expected relative gain of the next `HALF_LIFE` measurements
    finished: bool = False

    @property
    def total_s(self) -> float:
        """Time of all its calls; 0 until something was measured."""
        return self.calls * (self.best_s or 0.0)


class Allocator:
    """Deals out batches: ask `next`, run a batch of that region's strategy, report it with `observe`, and again.

    Give a `best_s` only if it was measured; leave it None for a region whose baseline is still to be measured.
    """

    def __init__(self, regions: Iterable[RegionState]) -> None:
        self.regions: dict[str, RegionState] = {}
        for region in regions:
            if region.region_id in self.regions:
                raise ValueError(f"region {region.region_id} is listed twice")
            if region.calls < 0:
                raise ValueError(f"region {region.region_id} is called {region.calls} times")
            self.regions[region.region_id] = region

    def next(self) -> str | None:
        """The region that gets the next batch; None when all are finished."""
        return allocate(list(self.regions.values()))

    def observe(self, region_id: str, observation_count: int, best_s: float | None) -> None:
        """Takes in one batch: how many measurements it made, and the best time of one call so far, if any succeeded.

        A batch that made none still counts as a turn, so that a region which shares all its binaries does not block.
        """
        region = self.regions[region_id]
        gained = 0.0
        if best_s is not None:
            if region.best_s is not None and 0.0 < best_s < region.best_s:
                gained = 1.0 - best_s / region.best_s
            region.best_s = best_s if region.best_s is None else min(region.best_s, best_s)
        region.batches += 1
        region.measurements += observation_count
        weighed = max(observation_count, 1)
        keep = 0.5 ** (weighed / HALF_LIFE)
        region.gain = keep * region.gain + (1.0 - keep) * min(gained * HALF_LIFE / weighed, 1.0)

    def finish(self, region_id: str) -> None:
        """The region's strategy has nothing left to try: it gets no more batches."""
        self.regions[region_id].finished = True


def allocate(regions: list[RegionState]) -> str | None:
    """The rule of this module for one moment: the id of the region that gets the next batch, None if all are finished.

    Equals go in the order listed.
    """
    active = [r for r in regions if not r.finished]
    unknown = [r for r in active if r.best_s is None and r.batches == 0]
    if unknown:
        return max(unknown, key=lambda r: r.calls).region_id
    total_s = sum(r.total_s for r in regions)
    meaningful = [r for r in active if r.total_s >= TINY_SHARE * total_s and r.total_s > 0.0]
    waiting = [r for r in meaningful if r.batches == 0]
    if waiting:
        return max(waiting, key=lambda r: r.total_s).region_id
    hopeful = [r for r in meaningful if r.gain >= SETTLED_GAIN]
    pool = hopeful or active
    if not pool:
        return None
    return max(pool, key=lambda r: (r.total_s * r.gain, -r.measurements)).region_id
