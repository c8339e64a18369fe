"""The noise floor: how far the same binary, timed as A and as B in turns, is from itself.

Read from repeated trials of one identity in one run; differences between schedules below it mean nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from kcg.dataset.journal import identity_of
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
            target,
            None if limit == longest else limit,
            len(found),
            statistics.median(found),
            sorted(found)[round(0.9 * (len(found) - 1))],
        )
        for (target, limit), found in sorted(groups.items())
    ]


# ---- Identities that were timed more than once: how far the timings of one run are apart, and those of different runs.
#
# A row in a journal is timed once, so that repeats exist on purpose only: to know what a difference means.

RETIMED = "retime"  # the sampler of what was timed again in another run


@dataclass(frozen=True)
class Spread:
    """How far timings of one identity are apart, for one class of durations: 0.01 is 1 %."""

    target: str  # Target.fingerprint
    shorter_than_s: float | None  # None: the longest
    compared: int
    median: float
    p90: float


class Repeats:
    """Medians of identities that were timed more than once, within a run or in several."""

    def __init__(self) -> None:
        self._first: dict[bytes, tuple[str, float, float]] = {}  # identity -> run, time of recording, median
        self._again: dict[bytes, tuple[str, bool, list[tuple[str, float, float]]]] = {}

    def add(self, m: Measurement, at: float) -> None:
        """Takes a row of status ok, recorded at the Unix time `at`."""
        identity, timed = identity_of(m.key), (m.run_id, at, m.median_s)
        first = self._first.setdefault(identity, timed)
        if first is not timed:
            self._again.setdefault(identity, (m.target, m.early_stop, [first]))[2].append(timed)

    def noise(self) -> tuple[Spread, ...]:
        """Of search timings (`early_stop`), repeated in one run: most over least median, less one."""
        found = []
        for target, early_stop, timed in self._again.values():
            for medians in _by_run(timed):
                if early_stop and len(medians) > 1 and min(medians) > 0:
                    found.append((target, medians[0], (max(medians) - min(medians)) / min(medians)))
        return _spreads(found)

    def drift(self) -> tuple[Spread, ...]:
        """|ratio - 1| of the median of a later run and that of the first."""
        found = []
        for target, _, timed in self._again.values():
            first, *later = [statistics.median(medians) for medians in _by_run(timed)]
            found += [(target, first, abs(median / first - 1)) for median in later if first > 0]
        return _spreads(found)


def _by_run(timed: list[tuple[str, float, float]]) -> list[list[float]]:
    """The medians of each run, the earliest run and row first."""
    runs: dict[str, list[float]] = defaultdict(list)
    for run, _, median in sorted(timed, key=lambda t: (t[1], t[0], t[2])):
        runs[run].append(median)
    return list(runs.values())


def _spreads(found: Iterable[tuple[str, float, float]]) -> tuple[Spread, ...]:
    """Of (target, seconds, spread): the classes of durations that have some."""
    classes: dict[tuple[str, float], list[float]] = defaultdict(list)
    for target, seconds, spread in found:
        classes[target, next((d for d in DURATIONS_S if seconds < d), math.inf)].append(spread)
    return tuple(
        Spread(
            target,
            limit if limit < math.inf else None,
            len(v),
            statistics.median(v),
            sorted(v)[round(0.9 * (len(v) - 1))],
        )
        for (target, limit), v in sorted(classes.items())
    )
