"""A `Result` by a plan, for tests of its deployment: the norm of `tests/scripts/norm_steps.py` is one program."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kcg.kernel.composed import Part, schedule_of_parts
from kcg.kernel.kinds import ACTION_SPACE_VERSION, space_of
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.regions import Form
from kcg.measure.device_info import detect
from kcg.optimize.planning import planned
from kcg.optimize.region_plans import inside_of
from kcg.types import (
    Finalist,
    Planning,
    Region,
    RegionInPlan,
    RegionResult,
    Result,
    Schedule,
    Target,
    TriedPlan,
    Verification,
    Workload,
)
from tests.captured import captured_script
from tests.sample_result import sample_result

SCRIPT = Path(__file__).parent / "scripts" / "norm_steps.py"


def norm_workload() -> tuple[Workload, Region]:
    """The captured script, and mean, deviation and norm of its step."""
    workload = captured_script(SCRIPT)
    (steady,) = [sequence for sequence in workload.sequences if sequence.steady]
    return workload, steady.region(1, 2, 3)


def others(space: KernelSpace) -> list[Schedule]:
    """Two schedules that are other programs than tinygrad's own, and than each other."""
    found = {space.key(space.baseline()): space.baseline()}
    for action in space.actions(space.start()):
        if action.label.startswith(("UNROLL", "UPCAST")) or "elements" in action.label:
            found.setdefault(space.key(action.schedule), action.schedule)
    _, first, second, *_ = found.values()
    return [first, second]


def finalist(schedule: Schedule, name: str, seconds: float) -> Finalist:
    return Finalist(schedule, seconds, seconds, (seconds, seconds), Verification(True), name=name)


def kernel_rows(workload: Workload, target: Target) -> list[RegionResult]:
    """Every kernel alone, each with a schedule that is better than tinygrad's own."""
    rows = []
    for call in workload.calls:
        space = KernelSpace(call.region, target)
        name = space.name(space.baseline())
        base, chosen = finalist(space.baseline(), name, 2e-6), finalist(others(space)[0], name, 1.5e-6)
        made = RegionResult(call.region, call.calls, base, chosen, 1, "improved", replayed=call.replayed)
        rows.append(made)
    return rows


def region_row(region: Region, target: Target, calls: int, replayed: int) -> RegionResult:
    """The region as a program: here its kernels with other schedules than they have alone."""
    space = space_of(region, target)
    parts = (Part((i,), others(KernelSpace(Region((k,)), target))[1]) for i, k in enumerate(region.kernels))
    base, chosen = space.baseline(), schedule_of_parts(parts)
    name = space.name(base)
    made = (finalist(base, name, 6e-6), finalist(chosen, name, 3e-6))
    return RegionResult(region, calls, *made, 1, "improved", replayed=replayed, opts=finalist(base, name, 4.5e-6))


def planned_result(workload: Workload, *regions: Region) -> Result:
    """By a plan with these regions."""
    target, toolchain = detect(os.environ["DEV"], ACTION_SPACE_VERSION)
    kernels, calls = kernel_rows(workload, target), planned(workload, regions).calls
    counts = {call.region.id: call for call in calls}
    alone = [replace(r, calls=counts[r.region.id].calls) for r in kernels if r.region.id in counts]
    alone = [replace(r, replayed=counts[r.region.id].replayed) for r in alone]
    rows = [*alone, *(region_row(c.region, target, c.calls, c.replayed) for c in calls if c.region.args)]
    return replace(
        sample_result(),
        workload=workload.name,
        preset=workload.preset,
        target=target,
        toolchain=toolchain,
        regions=tuple(rows),
        steps=workload.steps,
        recomputes=(),
        expectations=(),
        planning=planning_of(rows, kernels),
    )


def planning_of(rows: Sequence[RegionResult], kernels: Sequence[RegionResult]) -> Planning:
    """The record of a plan of which these are the results."""
    names = {row.region.id: row.baseline.name for row in kernels}
    regions = tuple(
        RegionInPlan(
            region=row.region.id,
            kernels=tuple(names[kernel.id] for kernel in row.region.kernels),
            form=Form.ROWS,
            calls=row.calls,
            saved_s=1.5e-6,
            saved_bytes=4096.0,
            again=row.region.again,
        )
        for row in rows
        if row.region.args
    )
    plan = TriedPlan(tuple(one.region for one in regions), 1e-4, 1.1e-4, True, "", chosen=True)
    alone = replace(plan, regions=(), expected_s=1.2e-4, step_s=1.3e-4, chosen=False)
    plans = (plan, alone) if regions else (replace(alone, chosen=True),)
    return Planning(regions, plans, "its whole step is the fastest of 2 that are right", (), inside_of(kernels, rows))
