"""The noise floor of a dataset, from what it timed more than once: differences below it say nothing of an order."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kcg.dataset.noise import DURATIONS_S
from kcg.dataset.reading import Export
from kcg.dataset.repeats import Repeats, Spread
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.metrics import Floors
from kcg.types import CacheState, Status

FEWEST = 5  # identities that were timed twice: the median of fewer is no floor


def floors_of(export: Export) -> Floors:
    """The floor within a run (`Repeats.noise`) and across runs (`Repeats.drift`): medians by class of durations.

    A class with too few repeats has the floor of the next longer one that has enough, and that of `Floors()` where
    there is none. Of several targets the largest counts. Timings of one run are never further apart than those of
    different runs. Reads every row, about 30 µs each. Raises DataError where a row is wrong.
    """
    repeats = Repeats()
    for record in export.records(PROTOCOL):
        m = record.measurement
        if m.status == Status.OK and m.cache_state == CacheState.COLD:
            repeats.add(m, record.recorded_unix_s)
    default, noise, drift = Floors(), _by_class(repeats.noise()), _by_class(repeats.drift())
    within, across = [], []
    for usual, usual_across, one_run, runs in zip(default.within, default.across, noise, drift, strict=True):
        far = usual_across if runs is None else runs
        within.append(min(usual, far) if one_run is None else one_run)
        across.append(max(far, within[-1]))
    return Floors(tuple(within), tuple(across))


def _by_class(spreads: Iterable[Spread]) -> list[float | None]:
    """|log ratio| for each class of durations, the shortest first; None where no class as long has enough."""
    found: dict[float, float] = {}
    for spread in spreads:
        if spread.compared >= FEWEST:
            limit = math.inf if spread.shorter_than_s is None else spread.shorter_than_s
            found[limit] = max(found.get(limit, 0.0), math.log1p(spread.median))
    limits = (*DURATIONS_S, math.inf)
    return [next((found[longer] for longer in limits[i:] if longer in found), None) for i in range(len(limits))]
