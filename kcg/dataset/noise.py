"""The noise floor: how far the same binary, timed as A and as B in turns, is from itself.

Read from repeated trials of one identity in one run; differences between schedules below it mean nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from kcg.types import CacheState, Measurement, Status

DURATIONS_S = (20e-6, 100e-6, 1e-3, 10e-3)  # the limits between classes of kernels


@dataclass(frozen=True)
class NoiseFloor:
    """The spread of repeated trials of one target, for kernels of one class of durations. 0.01 is 1 %."""

    target: str  # Target.fingerprint
    shorter_than_s: float | None  # None: the longest
    kernels: int
    median: float
    p90: float


def spreads(rows: Iterable[Measurement]) -> list[tuple[Measurement, float]]:
    """For every identity that one run timed more than once: its first measurement, and the spread of the medians."""
    trials: dict[tuple[object, ...], list[Measurement]] = {}
    for row in rows:
        if row.status == Status.OK and row.cache_state == CacheState.COLD:
            trials.setdefault((*row.key, row.run_id), []).append(row)
    found = []
    for repeated in trials.values():
        if len(repeated) > 1:
            medians = [row.median_s for row in repeated]
            if min(medians) > 0:
                found.append((repeated[0], (max(medians) - min(medians)) / min(medians)))
    return found


def noise_floors(rows: Iterable[Measurement]) -> list[NoiseFloor]:
    """The noise floor of each target in the rows, by the duration of its kernels."""
    groups: dict[tuple[str, float], list[float]] = {}
    longest = float("inf")
    for row, spread in spreads(rows):
        limit = next((d for d in DURATIONS_S if row.median_s < d), longest)
        groups.setdefault((row.target, limit), []).append(spread)
    return [
        NoiseFloor(
            target, None if limit == longest else limit, len(found), statistics.median(found),
            sorted(found)[round(0.9 * (len(found) - 1))],
        )
        for (target, limit), found in sorted(groups.items())
    ]  # fmt: skip
