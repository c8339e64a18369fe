"""What a result comes to, for the top of its report: the whole before and after, whether it is verified, what made it.

The whole is one step of a model, a script or a function, where that was timed; else it is the sum of its kernels. What
was not timed has no number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kcg.pictures import drawable
from kcg.report.counts import how_many
from kcg.report.endings import is_checked, whole_is_checked
from kcg.report.formats import format_error
from kcg.report.rows import Row
from kcg.report.words import checked_as, replayed
from kcg.types import ModelCheck, Result, ScheduleKind


@dataclass(frozen=True)
class Headline:
    """The whole in a line, and whether it can be relied on."""

    what: str  # the times are of
    before_s: float | None  # None: nothing was timed
    after_s: float | None  # None: nothing faster was verified
    state: str  # whether it is verified, in a few words
    look: str  # `good`, `bad` or `doubt`
    why: str  # what that goes by, in a sentence without its full stop; may be empty


def headline_of(result: Result) -> Headline:
    """See the module."""
    noun, check = checked_as(result), result.model_check
    what, before_s, after_s = f"one step of the whole {noun}", *_step_s(check)
    if before_s is None:
        what, (before_s, after_s) = "sum of all kernels in one execution", _sums_s(result)
    if not any(row.outcome == "improved" for row in result.regions):
        after_s = None
    if before_s is None:
        what, after_s = "nothing was timed", None
    state, look, why = _state_of(result, noun, check)
    if wrong := [row.region for row in result.regions if row.chosen.verification.wrong]:
        own = f"tinygrad's own schedule of {how_many(wrong)} is wrong"
        look, why = "doubt" if look == "good" else look, "; ".join(filter(None, [why, own]))
    return Headline(what, before_s, after_s, state, look, why)


def _step_s(check: ModelCheck | None) -> tuple[float | None, float | None]:
    if check is None or not drawable(check.before_s or 0.0, check.after_s or 0.0):
        return None, None
    return check.before_s, check.after_s


def _sums_s(result: Result) -> tuple[float | None, float | None]:
    before_s, after_s = result.total_before_s, result.total_after_s
    return (before_s, after_s) if drawable(before_s, after_s) else (None, None)


def _state_of(result: Result, noun: str, check: ModelCheck | None) -> tuple[str, str, str]:
    """In a few words, its look, and what it goes by."""
    if check is not None and check.passed is False:
        return f"wrong as a whole {noun}: do not use it", "bad", check.reason
    if not any(row.outcome == "improved" for row in result.regions):
        return "nothing faster was verified", "doubt", "tinygrad's own schedules stay"
    if check is not None and check.passed:
        against = f"{_left(noun)} what tinygrad's own schedules give"
        if check.error is not None and check.tolerance is not None:
            against += f": error {format_error(check.error)}, at most {format_error(check.tolerance)} passes"
        against += replayed(check)
        if is_checked(result):
            return f"verified as a whole {noun}", "good", against
        return f"verified as a whole {noun}, parts provisional", "doubt", against
    why = check.reason.removeprefix("not run: ") if check is not None else ""
    if not whole_is_checked(result):
        return f"not verified as a whole {noun}, part by part only", "doubt", why
    return "verified part by part", "good", why


def _left(noun: str) -> str:
    return "it leaves" if noun == "script" else "its output is"


# ---- what made it


KEPT: Final = "tinygrad's own, kept"
_KERNELS: Final[dict[str, str]] = {
    ScheduleKind.TILE: "kernels as generated tile programs",
    ScheduleKind.OPTS: "kernels with other Opts",
    ScheduleKind.SOURCE: "kernels written by hand",
}
_REGIONS: Final[dict[str, str]] = {
    ScheduleKind.TILE: "regions of several kernels, each one tile program",
    ScheduleKind.PARTS: "regions, each of their kernels with its best schedule",
    ScheduleKind.SOURCE: "regions written by hand, each one program",
}


@dataclass(frozen=True)
class Made:
    """What programs of one sort came to. Times are seconds of one execution."""

    sort: str
    programs: int
    calls: int
    before_s: float
    after_s: float
    share: float  # of all that is saved; NaN of what is kept

    @property
    def kept(self) -> bool:
        return self.sort == KEPT

    @property
    def saved_s(self) -> float:
        return self.before_s - self.after_s


def made_of(rows: Sequence[Row]) -> list[Made]:
    """What the speed-up is made of, what saves most first, and last what is kept; nothing where nothing was improved.
    What has no time is left out."""
    sorts: dict[str, list[Row]] = {}
    for row in rows:
        if row.timed:
            sorts.setdefault(_sort_of(row), []).append(row)
    saved_s = sum(row.region.before_s - row.region.after_s for row in rows if row.timed and row.changed)
    if set(sorts) <= {KEPT} or not saved_s > 0:
        return []
    made = [_made(sort, found, saved_s) for sort, found in sorts.items()]
    return sorted(made, key=lambda one: (one.kept, -one.saved_s))


def _made(sort: str, rows: Sequence[Row], saved_s: float) -> Made:
    before_s, after_s = (sum(getattr(row.region, name) for row in rows) for name in ("before_s", "after_s"))
    share = math.nan if sort == KEPT else (before_s - after_s) / saved_s
    return Made(sort, len(rows), sum(row.region.calls for row in rows), before_s, after_s, share)


def _sort_of(row: Row) -> str:
    """What sort of program a kernel or region got."""
    kind = row.region.chosen.schedule.kind
    if not row.changed:
        return KEPT
    if len(row.region.region.kernels) > 1:
        return _REGIONS.get(kind, f"regions of kind {kind}")
    return _KERNELS.get(kind, f"kernels of kind {kind}")
