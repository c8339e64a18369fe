"""A step of the whole model beside the sum of its kernels, and why they differ: what the run recorded, and no more.

A step is shorter where kernels find in the cache what the ones before left (they are timed alone, with cold caches),
and longer by what lies between them (launch gaps); a clock that is not what it was while the kernels were timed makes
it either. How much each of these can account for follows from what was recorded. Where that is less than the
difference, the rest is said to be unexplained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_

from kcg.measure.sensors import HOLDS_BACK, words_of
from kcg.optimize.console import format_seconds
from kcg.types import Finalist, Result

APART = 0.1
"""From this difference on between a step's time and the sum of its kernels, the report asks why."""

GAP_S = 10e-6
"""The most that a gap between two kernels is taken to account for: a host needs 2 to 4 µs for one that is timed alone,
which is in the kernel's own time (`docs/flux.md`), and some hosts are slower."""

SAME_CLOCK = 0.01
"""Clocks that differ by less are the same."""

Clocks = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Step:
    """A whole step beside the sum of its kernels: seconds, with tinygrad's own schedules and with the chosen ones."""

    before_s: float
    after_s: float
    kernels_before_s: float
    kernels_after_s: float
    why: tuple[str, ...]  # sentences, of a side that differs by more than `APART`

    @property
    def apart_before(self) -> float:
        """By what share of the kernels' sum the step is longer; below 0 it is shorter."""
        return self.before_s / self.kernels_before_s - 1

    @property
    def apart_after(self) -> float:
        return self.after_s / self.kernels_after_s - 1

    @property
    def differs(self) -> bool:
        return max(abs(self.apart_before), abs(self.apart_after)) > APART


@dataclass(frozen=True)
class Side:
    """A step with one set of schedules, and its kernels one by one."""

    step_s: float
    cold_s: float  # sum over all launches
    warm_s: float
    launches: int
    cache: str  # what its cache is called
    in_step: Clocks
    of_kernels: tuple[tuple[float, Clocks], ...]  # each with the seconds that all its launches take

    @property
    def apart_s(self) -> float:
        return self.step_s - self.cold_s

    @property
    def differs(self) -> bool:
        return abs(self.apart_s) > APART * self.cold_s


def step_of(result: Result) -> Step | None:
    """The whole model's step beside the sum of its kernels; None where either is not known."""
    check = result.model_check
    before, after = result.total_before_s, result.total_after_s
    if check is None or check.before_s is None or check.after_s is None:
        return None
    if not all(math.isfinite(s) and s > 0 for s in (check.before_s, check.after_s, before, after)):
        return None
    launches = sum(row.calls for row in result.regions)
    cache = "cache" if result.target.device == "CPU" else "L2 cache"
    sides = {
        "Before": Side(
            check.before_s, before, sum(r.calls * _warm_s(r.baseline) for r in result.regions), launches, cache,
            check.clocks_before, tuple((r.before_s, r.clocks) for r in result.regions),
        ),
        "After": Side(
            check.after_s, after, sum(r.calls * _warm_s(r.chosen) for r in result.regions), launches, cache,
            check.clocks_after, tuple((r.after_s, r.clocks) for r in result.regions),
        ),
    }  # fmt: skip
    differing = {when: side for when, side in sides.items() if side.differs}
    why = [" ".join((f"{when}:", *reasons(side))) for when, side in differing.items()]
    return Step(check.before_s, check.after_s, before, after, tuple(why))


def _warm_s(one: Finalist) -> float:
    """Its time with warm caches; with cold ones where no other was taken, which then accounts for nothing."""
    return one.warm_s if math.isfinite(one.warm_s) else one.cold_s


def reasons(side: Side) -> Iterator[str]:
    """Sentences: what can make the step longer or shorter than its kernels, and whether it is enough."""
    longer = side.apart_s > 0
    if longer:
        accounted_s = GAP_S * side.launches
        yield (
            f"a step also has what lies between kernels (launch gaps); spread over its {side.launches:,} launches, the "
            f"difference is {format_seconds(side.apart_s / side.launches)} each."
        )
    else:
        accounted_s = max(side.cold_s - side.warm_s, 0.0)
        yield (
            f"kernels are timed one by one with cold caches; in a step a kernel may find in the {side.cache} what the "
            f"one before left. With warm caches they sum to {format_seconds(side.warm_s)}."
        )
    sentence, share = _of_clocks(side, longer=longer)
    yield sentence
    accounted_s += share * side.cold_s
    if held := _held_back(side, longer=longer):
        yield held
    if abs(side.apart_s) - accounted_s > APART * side.cold_s:
        most = f"accounts for at most {format_seconds(accounted_s)}" if accounted_s > 0 else "accounts for nothing"
        yield f"All this {most} of {format_seconds(abs(side.apart_s))}: the rest is not explained by what was recorded."


def _of_clocks(side: Side, *, longer: bool) -> tuple[str, float]:
    """What the clocks say, and for what share of the kernels' time they account at most."""
    step, kernels = _mhz(dict(side.in_step)), _kernels_mhz(side.of_kernels)
    if not step or not kernels:
        return "What the clock was is not recorded.", 0.0
    both = f"{step:,.0f} MHz in the step and {kernels:,.0f} MHz while its kernels were timed"
    slows = kernels / step - 1  # by what share a step takes longer than its kernels
    if abs(slows) <= SAME_CLOCK:
        return f"The clock does not explain it: it was {both}.", 0.0
    if (slows > 0) is not longer:
        return f"The clock does not explain it: it was {both}, which would make the step differ the other way.", 0.0
    effect = f"{abs(slows):.0%} {'longer' if longer else 'shorter'}"
    return f"The clock was {both}: what depends on it takes {effect}.", abs(slows)


def _mhz(told: Mapping[str, float]) -> float | None:
    """The clock that sensors told: the middle between the lowest and the highest."""
    ends = [told[name] for name in ("sm_mhz_min", "sm_mhz_max", "cpu_mhz") if name in told]
    return sum(ends) / len(ends) if ends else None


def _kernels_mhz(kernels: Iterable[tuple[float, Clocks]]) -> float | None:
    """The clock of kernels, each with the weight of its time; None where it was told of less than half of that."""
    kernels = tuple(kernels)
    known = [(seconds, mhz) for seconds, told in kernels if (mhz := _mhz(dict(told)))]
    if sum(seconds for seconds, _ in known) * 2 < sum(seconds for seconds, _ in kernels) or not known:
        return None
    return sum(seconds * mhz for seconds, mhz in known) / sum(seconds for seconds, _ in known)


def _held_back(side: Side, *, longer: bool) -> str:
    """What the device said that held it back on one side only, where that is the side that took longer; empty where
    there is nothing, or one side did not say."""
    step, kernels = _bits([side.in_step]), _bits(told for _, told in side.of_kernels)
    if step is None or kernels is None:
        return ""
    here, there = ("in the step", "while its kernels were timed")[:: 1 if longer else -1]
    only = step & ~kernels if longer else kernels & ~step
    words = words_of(only, HOLDS_BACK)
    return f"The device was held back {here} ({words}), not {there}." if words else ""


def _bits(told: Iterable[Clocks]) -> int | None:
    """All that held the device back; None where it was never said."""
    said = [int(dict(one)["slowdown_reasons"]) for one in told if "slowdown_reasons" in dict(one)]
    return reduce(or_, said) if said else None
