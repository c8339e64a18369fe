"""Regions of several kernels in a run: proposed by rules, searched after the kernels, and put into a plan.

A region is searched like any other, but against the best known schedules of its kernels as one program: these come from
the search of the kernels, and are known of it before its own search begins. What is judged of it is compared with them
in the same turns (`kcg.optimize.finals`). The plans are made of what was judged, and their whole steps are compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kcg.cli import counted
from kcg.measure.child import refusal_job
from kcg.optimize.baselines import measure_baselines
from kcg.optimize.planning import planned
from kcg.optimize.region_plans import (
    Key,
    Proposals,
    WorkloadPlan,
    among,
    best_parts,
    expected_saving_s,
    key_of,
    next_to_measure,
    plans_of,
    propose,
    rows_of,
)
from kcg.optimize.search import search
from kcg.optimize.work import Candidates, RegionResults, RegionWork
from kcg.search.problem import best
from kcg.types import Region, RegionResult, Schedule, ScheduleKind, Workload

if TYPE_CHECKING:
    from kcg.measure.service import MeasureService
    from kcg.optimize.device import Device
    from kcg.optimize.estimates import Estimates
    from kcg.optimize.log import RunLog
    from kcg.optimize.search import Guide

LOOKING_TIMEOUT_S = 30.0  # of looking whether a region has a program
MOST = 24  # regions that are searched: those of the best expected plans, then what is expected to save most


@dataclass(frozen=True)
class Proposed:
    """The candidates that were searched, and all that a run knows by then."""

    proposals: Proposals
    works: Sequence[RegionWork]  # of the regions
    estimates: Estimates  # of the kernels and the regions
    candidates: Candidates


def has_tile_programs(proposals: Proposals, service: MeasureService) -> Callable[[Region], bool]:
    """Whether a region of several kernels can be generated as one program: the compiling children look."""
    regions = {candidate.region.id: candidate.region for candidate in proposals.candidates.values()}
    asked = {
        name: service.beside(refusal_job, region, ScheduleKind.TILE, service.target, timeout_s=LOOKING_TIMEOUT_S)
        for name, region in regions.items()
    }

    def usable(region: Region) -> bool:
        found = asked[region.id]
        return found.exception() is None and not found.result()

    return usable


def search_regions(
    found: Candidates,
    estimates: Estimates,
    guide: Guide,
    *,
    device: Device,
    log: RunLog,
    usable: Callable[[Region], bool] | None = None,
) -> Proposed | None:
    """Propose regions and search those that are `usable`, by default those with tile programs; None where there are
    none, which a warning says. The search of the kernels is over."""
    everything = propose(estimates.captured.workload)
    proposals = among(everything, usable or has_tile_programs(everything, device.service))
    if not proposals.candidates:
        many = counted(len(everything.candidates), "candidate region")
        log.warn(f"no region of several kernels was searched: there is no program for any of {many}")
        return None
    kernels = [work for work in found.works if not work.call.region.args]
    works = _works(proposals, kernels, device=device)
    log.progress.phase(f"searching {counted(len(works), 'region')} of several kernels")
    measure_baselines(works, device, budget=estimates.budget, log=log, meanwhile=lambda: device.find_starts(works))
    known = best_schedules(kernels)
    for work in works:
        for future in device.measure(work, [best_parts(work.call.region, known)]):
            work.keep(future.result())
    both = replace(estimates, measured=replace(estimates.measured, works=[*found.works, *works], at=time.monotonic()))
    searched = search(both, guide, device=device, log=log, works=works)
    return Proposed(
        proposals, works, both, replace(found, works=both.works, settled=found.settled and searched.settled)
    )


def _works(proposals: Proposals, kernels: Sequence[RegionWork], *, device: Device) -> list[RegionWork]:
    """What is searched: of each region its kernels' best times say what it may save."""
    alone_s = {work.call.region.id: work.best_s for work in kernels if work.best_s}
    target, workload = device.service.target, proposals.workload
    timed = {
        key: candidate
        for key, candidate in proposals.candidates.items()
        if all(kernel.id in alone_s for kernel in candidate.region.kernels)
    }
    savings = {key: expected_saving_s(candidate, alone_s, target) for key, candidate in timed.items()}
    savings = {key: saving_s for key, saving_s in savings.items() if saving_s > 0}
    first = next_to_measure(plans_of(proposals, alone_s, savings), savings, {})
    rest = sorted(savings, key=lambda key: -savings[key] * proposals.calls[key])
    keys = list(dict.fromkeys([*first, *rest]))[:MOST]
    regions = dict.fromkeys(proposals.candidates[key].region for key in keys)
    found = [planned(workload, [region], wanted=False).calls[-1] for region in regions]
    calls = tuple(call for call, region in zip(found, regions, strict=True) if call.region == region)
    for region in regions:
        if device.journal is not None:
            device.journal.add_region(region, workload=f"{workload.name}/{workload.preset}")
    works = device.plan(replace(workload, calls=calls))
    for work in works:
        work.proposed = True
    return works


def best_schedules(works: Sequence[RegionWork]) -> dict[str, Schedule]:
    """The best known schedule of each kernel, of whatever kind, by id."""
    found = {}
    for work in works:
        if (seen := best([*work.known.values(), *work.of_tiles.values()])) is not None:
            found[work.call.region.id] = seen.schedule
    return found


# ---- after judging


def variants(
    results: RegionResults, proposed: Proposed, workload: Workload, *, memory_bytes: float = float("inf")
) -> list[RegionResults]:
    """The results by each of the best plans, the best first, and last by that of every kernel alone."""
    plans = plans_by(results, proposed, memory_bytes=memory_bytes)
    own = {work.call.region.id for work in proposed.works}
    rows = [row for row in results.rows if row.region.id not in own]
    regions = {row.region.id: row for row in results.rows if row.region.id in own}
    return [replace(results, rows=rows_of(workload, rows, regions, plan)) for plan in plans]


def plans_by(results: RegionResults, proposed: Proposed, *, memory_bytes: float = float("inf")) -> list[WorkloadPlan]:
    """The best plans by what was judged."""
    alone_s = {row.region.id: row.chosen.cold_s for row in results.rows if not row.region.args}
    return plans_of(
        proposed.proposals, alone_s, measured_savings(results.rows, proposed.proposals), memory_bytes=memory_bytes
    )


def measured_savings(rows: Sequence[RegionResult], proposals: Proposals) -> Mapping[Key, float]:
    """What each region that is faster than the best of its parts saves of one call, both timed in the same turns."""
    by_region = {row.region.id: row for row in rows if row.region.args and row.outcome == "improved"}
    found = {}
    for candidate in proposals.candidates.values():
        row = by_region.get(candidate.region.id)
        if row is not None and row.chosen.schedule.kind != ScheduleKind.PARTS:
            found[key_of(candidate)] = (row.opts or row.baseline).cold_s - row.chosen.cold_s
    return found
