"""A region that ran with several values of its variables: what was seen of a schedule at all ends, as one.

The time of one call is the mean of its times at the smallest and at the largest values, weighted by calls
(`kcg.kernel.symbolic`). A schedule that is wrong at one end is wrong, and one that cannot be timed there has no time:
so at the ends of a region of several kernels that no call counts as. Of a kernel with one set of values, all here is
what was seen with these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kcg.measure.jobs import PairedOutcome
from kcg.report.words import values_text
from kcg.search.problem import Observation
from kcg.types import Measurement, Status, TimedAt, Verification

if TYPE_CHECKING:
    from kcg.kernel.symbolic import End


def mean(ends: Sequence[End], of_ends: Sequence[float]) -> float:
    """One number of a call, such as its seconds, from those at the ends."""
    return sum(end.share * value for end, value in zip(ends, of_ends, strict=True)) if len(ends) > 1 else of_ends[0]


def observed(ends: Sequence[End], rows: Sequence[Measurement]) -> Observation:
    """What a search sees of a schedule that was measured at each end."""
    failed = [row for row in rows if row.status != Status.OK]
    if failed:  # what is wrong at one end is wrong, even where the other end says less
        return Observation.of(next((row for row in failed if row.status == Status.WRONG), failed[0]))
    return replace(Observation.of(rows[0]), runtime_s=mean(ends, [row.median_s for row in rows]))


def reason_at(ends: Sequence[End], end: End, reason: str) -> str:
    """Why something failed, and at which of several ends."""
    return f"{reason}, with {values_text(end.variables)}" if reason and len(ends) > 1 else reason


def outcome(ends: Sequence[End], outcomes: Sequence[PairedOutcome]) -> PairedOutcome:
    """The paired comparisons at all ends as one. Fewer outcomes than ends: the last of them showed something wrong.

    The samples are means of samples at the ends, pair by pair; where one end has more, its last ones count for nothing.
    """
    last = outcomes[-1]
    if len(ends) == 1:
        return last
    validated = [o.finalist_verification for o in outcomes if o.finalist_verification is not None]
    both = PairedOutcome(
        baseline_verification=_verification(ends, [o.baseline_verification for o in outcomes]),
        finalist_verification=_verification(ends, validated) if validated else None,
        input_recipe=last.input_recipe,
        clocks=last.clocks,
        noisy=next((o.noisy for o in outcomes if o.noisy), ""),
        tainted=any(o.tainted for o in outcomes),
    )
    if len(outcomes) < len(ends) or not all(o.baseline_cold_s for o in outcomes):
        return both

    def samples(of_ends: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(mean(ends, pair) for pair in zip(*of_ends, strict=False))

    return replace(
        both,
        baseline_cold_s=samples([o.baseline_cold_s for o in outcomes]),
        again_cold_s=samples([o.again_cold_s for o in outcomes]),
        baseline_warm_s=samples([o.baseline_warm_s for o in outcomes]),
        finalist_cold_s=samples([o.finalist_cold_s for o in outcomes]),
        finalist_warm_s=samples([o.finalist_warm_s for o in outcomes]),
    )


def _verification(ends: Sequence[End], found: Sequence[Verification]) -> Verification:
    """A side's verification at the ends as one: what is wrong at one end is wrong, though the other is unjudged."""
    rules = dict.fromkeys(rule for one in found for rule in one.rules)
    failed = [(end, one) for end, one in zip(ends, found, strict=False) if not one.passed]
    at, worst = min(failed, key=lambda pair: pair[1].unjudged, default=(ends[0], found[0]))
    return Verification(
        passed=not failed,
        rules=tuple(rules),
        max_error=max(one.max_error for one in found),
        seeds=min(one.seeds for one in found),
        reason=reason_at(ends, at, worst.reason),
        unjudged=worst.unjudged,
    )


def timed_at(
    ends: Sequence[End], before_s: Sequence[float] | None, after_s: Sequence[float] | None
) -> tuple[TimedAt, ...]:
    """What a result keeps of several ends. A time that is not known is 0, as elsewhere in a result."""
    if len(ends) == 1:
        return ()
    nothing = [0.0] * len(ends)
    times = zip(ends, before_s or nothing, after_s or nothing, strict=True)
    return tuple(TimedAt(end.variables, end.share, before, after) for end, before, after in times)
