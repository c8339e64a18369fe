"""A `Result` for the small model of `tests/scripts`, with schedules chosen by hand, for tests of what becomes of it."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

from kcg.compat.capture import calls_of
from kcg.kernel.opts.space import KernelSpace
from kcg.types import Finalist, RegionResult, Result, Schedule, Target, Toolchain, Verification
from kcg.workloads.capture import to_workload
from tests.sample_result import sample_result

SCRIPTS = Path(__file__).parent / "scripts"


def finalist(space: KernelSpace, schedule: Schedule, *, passed: bool = True) -> Finalist:
    """A schedule as if it had been timed and verified."""
    return Finalist(schedule, 2e-6, 1e-6, (1e-6, 3e-6), Verification(passed), name=space.name(schedule))


def unlike_baseline(space: KernelSpace) -> Schedule:
    """Two steps that end in another kernel than tinygrad's own schedule."""
    for first in space.actions(space.start()):
        for second in space.actions(first.schedule):
            if space.key(second.schedule) != space.key(space.baseline()):
                return second.schedule
    raise AssertionError("the kernel is too small for the test")


def small_result(target: Target, toolchain: Toolchain) -> Result:
    """All kernels of the small model have another schedule than tinygrad's, but the last, which keeps its baseline."""
    model = runpy.run_path(str(SCRIPTS / "small_model.py"))
    workload = to_workload("small_model", "", calls_of(model["output"]()))
    regions = []
    for call in workload.calls:
        space = KernelSpace(call.region, target)
        base = finalist(space, space.baseline())
        last = call is workload.calls[-1]
        chosen = base if last else finalist(space, unlike_baseline(space))
        regions.append(RegionResult(call.region, call.calls, base, chosen, 1, "kept" if last else "improved"))
    assert len(regions) >= 3
    return replace(
        sample_result(), target=target, toolchain=toolchain, regions=tuple(regions), recomputes=(), expectations=()
    )
