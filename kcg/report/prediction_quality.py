"""How well a run's measurements were predicted: how far off, and whether the faster of two schedules was named.

A search measures what it expects to be fast. So the schedules of a kernel that were measured take nearly the same,
which makes them hard to rank; and nothing is known of those that were not measured. Errors are therefore given beside
the range of the times, by how slow a schedule is, and pairs by how far apart they are.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from kcg.cli import counted
from kcg.pictures import drawable
from kcg.report.formats import format_factor, format_share
from kcg.types import Expectation, RegionResult, Result, ScheduleKind

LEAST_DIFFERENCE = 0.02
"""Two schedules of a kernel that differ by less are a tie, or by less than the kernel's noise."""

LEAST_RANKED = 8
"""A kernel with fewer measurements has no rank correlation."""

APART = (0.1, 0.5, math.inf)
"""Pairs are counted by the share by which the slower one takes longer: up to each of these."""

LEAST_PAIRS = 10
"""Of fewer pairs no share is given: it would say next to nothing."""

LEAST_SPREAD = 10
"""Of fewer measurements it is not said within what nine in ten are."""

LEAST_WITHIN = 4
"""Nor within what half of fewer are."""

OPTS, TILES, REGIONS, OTHERS = (
    "Opts of a kernel",
    "tile programs of a kernel",
    "programs of a region",
    "schedules of other kinds",
)
"""The sorts of schedules of which a time is expected."""


@dataclass(frozen=True)
class Quarter:
    """A quarter of all measurements, in the order of how slow each is beside the fastest measured of its kernel."""

    slower: tuple[float, float]  # factors: from, to
    measurements: int
    within: float  # half of them are within this factor of what was expected
    longer: float  # geometric mean of measured over expected


@dataclass(frozen=True)
class Pairs:
    """Pairs of schedules of one kernel that differ by about as much."""

    apart: tuple[float, float]  # shares by which the slower one takes longer: more than, up to
    pairs: int
    right: int  # of which the predictor alone named the faster one


@dataclass(frozen=True)
class Beside:
    """Predictions of one sort beside what came."""

    what: str
    expected: str  # by what
    came: str  # as what
    count: int
    within: float | None  # half of them are within this factor; None of too few
    longer: float  # geometric mean of what came over what was expected


@dataclass(frozen=True)
class Quality:
    """All of it; `words` are sentences."""

    beside: tuple[Beside, ...]  # predictions of every sort
    words: tuple[str, ...]
    quarters: tuple[Quarter, ...]  # none where there are too few measurements
    pairs: tuple[Pairs, ...]


def quality_of(result: Result) -> Quality | None:
    """None where nothing was expected, or nothing came of it."""
    timed, beside = timed_expectations(result), tuple(_beside(result))
    if not timed:
        return Quality(beside, (), (), ()) if beside else None
    kernels: defaultdict[int, list[Expectation]] = defaultdict(list)
    for seen in timed:
        kernels[seen.region].append(seen)
    noise = {number: row.noise_floor for number, row in enumerate(result.with_inside)}
    ranked = {number: _ranked(found, noise.get(number, 0.0)) for number, found in kernels.items()}
    words = (*_errors(timed), *_ranges(kernels), *_orders(kernels, ranked), *_failed(result, timed))
    return Quality(beside, words, tuple(_quarters(kernels)), tuple(_by_distance(ranked)))


def sort_of(seen: Expectation, result: Result) -> str:
    """What sort of schedule it is whose time was expected."""
    row = row_of(seen, result)
    if row is None or len(row.region.kernels) > 1:
        return REGIONS
    sorts: dict[str, str] = {ScheduleKind.OPTS: OPTS, ScheduleKind.TILE: TILES}
    return sorts.get(seen.schedule.kind, OTHERS)


def _beside(result: Result) -> Iterator[Beside]:
    """Times of schedules, what regions save, and whole steps, each beside what came."""
    sorts: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for seen in timed_expectations(result):
        sorts[sort_of(seen, result)].append((expected_s(seen), measured_s(seen)))
    by = {OPTS: result.predictor or "the predictor"}
    for sort in (OPTS, TILES, REGIONS, OTHERS):
        if found := sorts[sort]:
            yield _one(f"time of {sort}", by.get(sort, "the formula of its cost"), "measured in the search", found)
    if (planning := result.planning) is None:
        return
    saved = [(one.saved_s, one.nearby_s[1]) for one in planning.regions if one.nearby_s is not None]
    if saved := [pair for pair in saved if drawable(*pair)]:
        yield _one("what a region saves", "timed alone, in turns with its parts", "among the calls around it", saved)
    steps = [(plan.expected_s, plan.step_s or 0.0) for plan in planning.plans if plan.passed is not False]
    if steps := [pair for pair in steps if drawable(*pair)]:
        yield _one("a step by a plan", "sum of its kernels", "the whole step", steps)


def _one(what: str, expected: str, came: str, found: Sequence[tuple[float, float]]) -> Beside:
    ratios = [measured / wanted for wanted, measured in found]
    within = _spread(ratios)[0] if len(ratios) >= LEAST_WITHIN else None
    return Beside(what, expected, came, len(ratios), within, statistics.geometric_mean(ratios))


def row_of(seen: Expectation, result: Result) -> RegionResult | None:
    """The result of what it was expected of; None of a region that the plan does not have."""
    rows = result.with_inside
    return rows[seen.region] if seen.region < len(rows) else None


def expected_s(seen: Expectation) -> float:
    """What the search went by: corrected by what was measured before, where the predictor learns from it."""
    return seen.predicted_s if seen.corrected_s is None else seen.corrected_s


def measured_s(seen: Expectation) -> float:
    """The measured time; 0 where there is none."""
    return seen.measured_s if seen.measured_s is not None and math.isfinite(seen.measured_s) else 0.0


def timed_expectations(result: Result) -> list[Expectation]:
    """Those that have both times."""
    return [e for e in result.expectations if drawable(measured_s(e), expected_s(e))]


def _errors(timed: Sequence[Expectation]) -> list[str]:
    ratios = [measured_s(e) / expected_s(e) for e in timed]
    middle, most = _spread(ratios)
    few = len(timed) < LEAST_SPREAD
    nine = "" if few else f", nine in ten within {format_factor(most)}"
    words = [
        f"Half of the {len(timed):,} measurements were within {format_factor(middle)} of what was expected{nine}. In "
        f"the geometric mean they took {format_factor(statistics.geometric_mean(ratios))} what was expected; more than "
        "1 is likely, since what looks fastest is what is measured."
    ]
    alone = [measured_s(e) / e.predicted_s for e in timed if drawable(e.predicted_s)]
    if alone and any(e.corrected_s is not None for e in timed):
        middle, most = _spread(alone)
        words.append(
            "That is after correction by what was measured of the same kernel before; the predictor alone was "
            f"within {format_factor(middle)}{'' if few else f' and {format_factor(most)}'}."
        )
    return words


def _ranges(kernels: dict[int, list[Expectation]]) -> list[str]:
    """How far apart what was measured of one kernel lies, against which its error has to be seen."""
    times = [[measured_s(e) for e in found] for found in kernels.values() if len(found) > 1]
    if not times:
        return []
    middle = statistics.median([max(of_one) / min(of_one) for of_one in times])
    return [
        "What was measured was chosen because it was expected to be fast. In the median of "
        f"{counted(len(times), 'kernel')} the slowest took {format_factor(middle)} as long as the fastest: what is "
        "close on purpose is hard to rank, and how well the schedules are ranked that were not measured is not known."
    ]


Ranked = list[tuple[float, bool]]
"""By what share the slower of two takes longer, and whether the faster one was predicted to be it."""


def _ranked(found: Sequence[Expectation], noise: float) -> Ranked:
    """All pairs of one kernel that differ by more than its noise. The order is that of the predictor alone: what was
    measured between two proposals corrected the second one only."""
    least = 1 + max(LEAST_DIFFERENCE, noise)
    pairs = []
    for one, other in combinations(found, 2):
        fast, slow = sorted((one, other), key=measured_s)
        apart = measured_s(slow) / measured_s(fast)
        if apart > least:
            pairs.append((apart - 1, fast.predicted_s < slow.predicted_s))
    return pairs


def _orders(kernels: dict[int, list[Expectation]], ranked: dict[int, Ranked]) -> list[str]:
    """Kendall's tau within each kernel with enough measurements; ties by noise are left out."""
    taus = sorted(
        2 * sum(right for _, right in pairs) / len(pairs) - 1
        for number, pairs in ranked.items()
        if pairs and len(kernels[number]) >= LEAST_RANKED
    )
    if not taus:
        return [f"No kernel has {LEAST_RANKED} measurements or more that differ, so no rank correlation is given."]
    if len(taus) == 1:
        found = f"{taus[0]:.2f} for the one kernel"
    else:
        found = f"{taus[0]:.2f} to {taus[-1]:.2f}, {statistics.median(taus):.2f} in the median, for {len(taus)} kernels"
    return [
        f"Kendall's rank correlation of the predictor alone is {found} with at least {LEAST_RANKED} measurements; 0 is "
        "chance, 1 the right order. Differences below the noise are left out."
    ]


def _failed(result: Result, timed: Sequence[Expectation]) -> list[str]:
    failed = [e for e in result.expectations if e.measured_s is None]
    if not failed:
        return []
    chance = sum(e.failure_probability for e in failed) / len(failed)
    others = sum(e.failure_probability for e in timed) / len(timed)
    have = "has" if len(failed) == 1 else "have"
    return [
        f"{len(failed)} failed and {have} no time; the expected chance to fail was {format_share(chance)} on average, "
        f"that of the others {format_share(others)}."
    ]


def _quarters(kernels: dict[int, list[Expectation]]) -> list[Quarter]:
    fastest = {number: min(map(measured_s, found)) for number, found in kernels.items()}
    ordered = sorted(
        (measured_s(e) / fastest[number], measured_s(e) / expected_s(e))
        for number, found in kernels.items()
        for e in found
    )
    if len(ordered) < 4 * LEAST_RANKED:
        return []
    quarters = []
    for first, end in pairwise(len(ordered) * i // 4 for i in range(5)):
        slower, ratios = zip(*ordered[first:end], strict=True)
        longer = statistics.geometric_mean(ratios)
        quarters.append(Quarter((slower[0], slower[-1]), len(ratios), _spread(ratios)[0], longer))
    return quarters


def _by_distance(ranked: dict[int, Ranked]) -> list[Pairs]:
    found = [pair for pairs in ranked.values() for pair in pairs]
    rows = []
    for low, high in pairwise((0.0, *APART)):
        right = [named for apart, named in found if low < apart <= high]
        if len(right) >= LEAST_PAIRS:
            rows.append(Pairs((low, high), len(right), sum(right)))
    return rows


def _spread(ratios: Sequence[float]) -> tuple[float, float]:
    """The median and the ninth decile of the factor by which each is off."""
    off = sorted(max(ratio, 1 / ratio) for ratio in ratios)
    return statistics.median(off), off[min(int(0.9 * len(off)), len(off) - 1)]
