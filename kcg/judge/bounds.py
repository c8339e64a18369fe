"""A region that ran with several values of its variables: what was seen of a schedule at all bounds, as one.

The time of one call is the mean of its times at the smallest and at the largest values, weighted by calls
(`kcg.kernel.symbolic`). A schedule that is wrong at one bound is wrong, and one that cannot be timed there has no time:
so at the bounds of a region of several kernels that no call counts as. Of a kernel with one set of values, all here is
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
    from kcg.kernel.symbolic import Bound


def mean(bounds: Sequence[Bound], of_bounds: Sequence[float]) -> float:
    """One number of a call, such as its seconds, from those at the bounds."""
    if len(bounds) == 1:
        return of_bounds[0]
    return sum(bound.share * value for bound, value in zip(bounds, of_bounds, strict=True))


def observed(bounds: Sequence[Bound], rows: Sequence[Measurement]) -> Observation:
    """What a search sees of a schedule that was measured at each bound."""
    failed = [row for row in rows if row.status != Status.OK]
    if failed:  # what is wrong at one bound is wrong, even where the other bound says less
        return Observation.of(next((row for row in failed if row.status == Status.WRONG), failed[0]))
    return replace(Observation.of(rows[0]), runtime_s=mean(bounds, [row.median_s for row in rows]))


def reason_at(bounds: Sequence[Bound], bound: Bound, reason: str) -> str:
    """Why something failed, and at which of several bounds."""
    return f"{reason}, with {values_text(bound.variables)}" if reason and len(bounds) > 1 else reason


def outcome(bounds: Sequence[Bound], outcomes: Sequence[PairedOutcome]) -> PairedOutcome:
    """The paired comparisons at all bounds as one. Fewer outcomes than bounds: the last of them showed something wrong.

    The samples are means of samples at the bounds, pair by pair; where one has more, its last ones count for nothing.
    """
    last = outcomes[-1]
    if len(bounds) == 1:
        return last
    validated = [o.finalist_verification for o in outcomes if o.finalist_verification is not None]
    both = PairedOutcome(
        baseline_verification=_verification(bounds, [o.baseline_verification for o in outcomes]),
        finalist_verification=_verification(bounds, validated) if validated else None,
        input_recipe=last.input_recipe,
        clocks=last.clocks,
        noisy=next((o.noisy for o in outcomes if o.noisy), ""),
        tainted=any(o.tainted for o in outcomes),
    )
    if len(outcomes) < len(bounds) or not all(o.baseline_cold_s for o in outcomes):
        return both

    def samples(of_bounds: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(mean(bounds, pair) for pair in zip(*of_bounds, strict=False))

    return replace(
        both,
        baseline_cold_s=samples([o.baseline_cold_s for o in outcomes]),
        again_cold_s=samples([o.again_cold_s for o in outcomes]),
        baseline_warm_s=samples([o.baseline_warm_s for o in outcomes]),
        finalist_cold_s=samples([o.finalist_cold_s for o in outcomes]),
        finalist_warm_s=samples([o.finalist_warm_s for o in outcomes]),
    )


def _verification(bounds: Sequence[Bound], found: Sequence[Verification]) -> Verification:
    """A side's verification at the bounds as one: what is wrong at one bound is wrong, though the other is unjudged."""
    rules = dict.fromkeys(rule for one in found for rule in one.rules)
    failed = [(bound, one) for bound, one in zip(bounds, found, strict=False) if not one.passed]
    at, worst = min(failed, key=lambda pair: pair[1].unjudged, default=(bounds[0], found[0]))
    return Verification(
        passed=not failed,
        rules=tuple(rules),
        max_error=max(one.max_error for one in found),
        seeds=min(one.seeds for one in found),
        reason=reason_at(bounds, at, worst.reason),
        unjudged=worst.unjudged,
    )


def timed_at(
    bounds: Sequence[Bound], before_s: Sequence[float] | None, after_s: Sequence[float] | None
) -> tuple[TimedAt, ...]:
    """What a result keeps of several bounds. A time that is not known is 0, as elsewhere in a result."""
    if len(bounds) == 1:
        return ()
    nothing = [0.0] * len(bounds)
    times = zip(bounds, before_s or nothing, after_s or nothing, strict=True)
    return tuple(TimedAt(bound.variables, bound.share, before, after) for bound, before, after in times)
