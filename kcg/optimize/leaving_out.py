"""Where the whole is wrong with what was chosen: the result without that, so that one kernel never costs the rest.

Each kernel and region was verified alone, and yet a model, a script or a function is wrong with all of them.
`kcg.judge.whole.right_part` finds which part of what was chosen is right: at the end of a run (`model_check`), or later
(`completing`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from kcg.cli import counted
from kcg.judge.whole import Parts, right_part
from kcg.kernel.kinds import describe
from kcg.optimize.region_plans import inside_of, rows_of
from kcg.optimize.region_search import UNTRIED, unread
from kcg.report.words import name_of
from kcg.types import (
    Dropped,
    Expectation,
    ModelCheck,
    Planning,
    Region,
    RegionResult,
    Result,
    SearchedRegion,
    Status,
    TriedPlan,
    Workload,
)

LEFT_OUT = "the whole was wrong with it"
"""Why a region of a plan is in it no more."""
Compare = Callable[[Result, str], ModelCheck | None]
"""Compares the whole with the schedules of a result, which part of what was found that is in words; None where there is
no time for it."""


def right_part_of(
    whole: Result,
    failed: ModelCheck,
    compare: Compare,
    *,
    alone: Result,
    workload: Workload,
    changed: Sequence[str],
    what: str,
    apart: Collection[str] = (),
) -> tuple[Result, ModelCheck, list[str]]:
    """A result that is wrong as a whole `what`, as it is with that of the `changed` kernels and regions with which it
    is right, its check, and what is to be said of the others. Where none was seen to be right, that is the same result
    and check, with what is known to be wrong."""

    def check(right: frozenset[str]) -> ModelCheck | None:
        asked = keeping(whole, right, alone=alone, workload=workload)
        return compare(asked, f", {counted(len(right), 'schedule')} of {len(changed)} that were found")

    parts = right_part(changed, failed, check, apart=apart)
    left_out = dropped(parts, whole, alone)
    lines = words_of(left_out, what)
    if parts.check is None:
        if parts.untried:
            lines.append(f"the whole {what} is wrong, and there was no time to find the part of it that is right")
        return replace(whole, dropped=left_out), failed, lines
    right = keeping(whole, parts.right, alone=alone, workload=workload)
    return replace(right, dropped=left_out), parts.check, lines


def keeping(result: Result, right: Collection[str], *, alone: Result, workload: Workload) -> Result:
    """A result with those of its schedules that are `right`, and of kernels that its regions run otherwise; else with
    tinygrad's own. `alone` is the result of the same run in which every kernel is alone."""
    rows = result.regions
    kept = [row.region for row in rows if len(row.region.kernels) > 1 and not _is_dropped(row, right)]
    if result.planning is not None and len(kept) < sum(len(row.region.kernels) > 1 for row in rows):
        by_id = {row.region.id: row for row in rows}
        rows = rows_of(workload, alone.regions, by_id, kept)
    own = tuple(_own(row) if _is_dropped(row, right) else row for row in rows)
    planning = None if result.planning is None else _planning(result.planning, own, kept, alone, workload, right)
    if planning is not None and result.planning is not None:
        names = {one.region: one.kernels for one in result.planning.regions}
        seen = {row.region.id for row in own}
        lost = [row for row in result.regions if row.region.id in names and row.region.id not in seen]
        more = (SearchedRegion(row.region.id, names[row.region.id], row.variables) for row in lost)
        planning = replace(planning, searched=(*planning.searched, *more))
    kept_rows = replace(result, regions=own, planning=planning, expectations=())
    return replace(kept_rows, expectations=_expectations(result, kept_rows))


def dropped(parts: Parts, *results: Result) -> tuple[Dropped, ...]:
    """What was left out of the results of a run, and why."""
    rows = {row.region.id: row for result in results for row in result.deployed if _is_changed(row)}

    def one(name: str, status: Status, reason: str) -> Dropped:
        row = rows[name]
        return Dropped(name, name_of(row), row.chosen.schedule, status, reason)

    late = "the time was over before the whole was compared without the others"
    return (
        *(one(name, Status.WRONG, seen.reason) for name, seen in parts.wrong.items()),
        *(one(name, Status.UNJUDGED, seen.reason) for name, seen in parts.unclear.items()),
        *(one(name, Status.UNJUDGED, late) for name in sorted(parts.untried)),
    )


def words_of(some: Sequence[Dropped], what: str) -> list[str]:
    """What is said of schedules that were left out of a whole `what`, a line for each that is known by itself."""
    lines = []
    for one in some:
        if one.status == Status.WRONG:
            lines.append(
                f"{describe(one.schedule)} of {one.name} is left out: the whole {what} is wrong with it, and right "
                f"without it: {one.reason}"
            )
    if others := [one for one in some if one.status != Status.WRONG]:
        names = ", ".join(dict.fromkeys(one.name for one in others))
        lines.append(
            f"what was found for {names} is left out: the whole {what} was not seen to be right with it: "
            f"{others[0].reason}"
        )
    return lines


def changed_in(result: Result, alone: Result, changed: Collection[str]) -> list[str]:
    """The ids of what may be left out of a result, what saves most last: its regions and kernels that are `changed`,
    and kernels that are once a region of it is left out."""
    found = {row.region.id: row for row in result.regions if row.region.id in changed}
    if any(len(row.region.kernels) > 1 for row in found.values()):
        found |= {row.region.id: row for row in alone.regions if _is_changed(row) and row.region.id not in found}
    return sorted(found, key=lambda name: (found[name].before_s - found[name].after_s, name))


def _is_changed(row: RegionResult) -> bool:
    return row.chosen.schedule != row.baseline.schedule and row.chosen.verification.passed


def _is_dropped(row: RegionResult, right: Collection[str]) -> bool:
    return _is_changed(row) and row.region.id not in right


def _own(row: RegionResult) -> RegionResult:
    """A kernel with tinygrad's own schedule, since the whole was wrong with what was chosen for it."""
    note = f"{describe(row.chosen.schedule)}: {LEFT_OUT}; {row.note}".removesuffix("; ")
    at_bounds = tuple(replace(end, after_s=end.before_s) for end in row.ends)
    fates = tuple(
        (name, f"left out: {LEFT_OUT}; it {fate}" if name == row.chosen.name else fate)
        for name, fate in row.handwritten
    )
    row = replace(row, chosen=row.baseline, opts=None, outcome="kept", note=note, ends=at_bounds, handwritten=fates)
    return replace(row, store="")


def _planning(
    planning: Planning,
    rows: Sequence[RegionResult],
    kept: Sequence[Region],
    alone: Result,
    workload: Workload,
    right: Collection[str],
) -> Planning:
    """The planning of a plan of which some regions are left out."""
    by_id = {row.region.id: row for row in rows}
    regions = tuple(replace(one, calls=by_id[one.region].calls) for one in planning.regions if one.region in by_id)
    lost = [one for one in planning.regions if one.region not in by_id]
    inside = tuple(_own(row) if _is_dropped(row, right) else row for row in inside_of(alone.regions, rows))
    if not lost:
        return replace(planning, inside=inside)
    plan = next(one for one in planning.plans if one.chosen)
    expected_s = plan.expected_s + sum(one.saved_s * one.calls for one in lost)
    return replace(
        planning,
        regions=regions,
        plans=(TriedPlan(tuple(one.region for one in regions), expected_s, None, None, UNTRIED, chosen=True),),
        passed_over=(*planning.passed_over, (LEFT_OUT, len(lost))),
        inside=inside,
        unread=unread(kept, alone.regions, workload),
    )


def _expectations(before: Result, after: Result) -> tuple[Expectation, ...]:
    """What was expected, by the places in the result without what is left out."""
    keys, places = before.places, {key: place for place, key in enumerate(after.places)}
    pairs = ((one, places.get(keys[one.region])) for one in before.expectations)
    return tuple(replace(one, region=place) for one, place in pairs if place is not None)
