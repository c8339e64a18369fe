"""What a result knows of times, and what is said where it knows nothing.

A kernel that no search reached has its own time, and no time after: it is not "as fast as before". A run in which
nothing improved has one total, and one that timed nothing has none.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kcg.pictures import drawable
from kcg.report.counts import share_of
from kcg.report.formats import format_seconds, format_speedup
from kcg.types import RegionResult, Result

COMPARED: Final = ("improved", "kept")
"""Outcomes of a kernel or region that came to an answer: what it takes afterwards is known."""

NOT_TIMED: Final = "not timed"
NONE: Final = "–"


def is_timed(row: RegionResult) -> bool:
    """Whether tinygrad's own schedule of a kernel or region has a time."""
    return drawable(row.baseline.cold_s)


def is_compared(row: RegionResult) -> bool:
    """Whether a search of it came to an answer, so that it has a time after."""
    return row.outcome in COMPARED and is_timed(row) and drawable(row.chosen.cold_s)


def before_text(row: RegionResult) -> str:
    """What all its calls take as tinygrad schedules it: `20.3 µs`, or `not timed`."""
    return format_seconds(row.before_s) if is_timed(row) else NOT_TIMED


def after_text(row: RegionResult) -> str:
    """The same with what was chosen; `–` where it was not compared."""
    return format_seconds(row.after_s) if is_compared(row) else NONE


def speedup_text(row: RegionResult) -> str:
    """`1.52×`; `–` where it was not compared."""
    return format_speedup(row.before_s, row.after_s) if is_compared(row) else NONE


def change_text(row: RegionResult) -> str:
    """`20.3 µs → 12.1 µs, improved`; `20.3 µs, not searched`; `not timed, not searched`."""
    times = f"{before_text(row)} → {after_text(row)}" if is_compared(row) else before_text(row)
    return f"{times}, {row.outcome}"


class Totals(NamedTuple):
    """What all calls of the kernels and regions that were timed take, in seconds."""

    before_s: float | None  # None: none was timed
    after_s: float | None  # None: nothing improved, so that nothing takes another time than before
    part: str  # `15 of 55 kernels` where not all were timed; else empty


def totals_of(result: Result) -> Totals:
    """The totals of a result, as far as there are any."""
    timed = [row for row in result.regions if is_timed(row)]
    if not timed:
        return Totals(None, None, "")
    every = [row.region for row in result.regions]
    part = share_of((row.region for row in timed), every) if len(timed) < len(every) else ""
    has_after = any(row.outcome == "improved" for row in timed)
    return Totals(result.total_before_s, result.total_after_s if has_after else None, part)


def totals_text(result: Result) -> str:
    """`148 ms → 88.3 ms, 1.67× as fast`; `146 ms as tinygrad schedules it (1 of 55 kernels timed)`; `no kernel was
    timed`."""
    before_s, after_s, part = totals_of(result)
    if before_s is None:
        return "no kernel was timed"
    some = f" ({part} timed)" if part else ""
    if after_s is None:
        return f"{format_seconds(before_s)} as tinygrad schedules it{some}"
    return f"{format_seconds(before_s)} → {format_seconds(after_s)}, {format_speedup(before_s, after_s)} as fast{some}"
