"""Regions of several kernels in a run: proposed by rules, searched after the kernels, and put into a plan.

A region is searched like any other, but against the best known schedules of its kernels as one program: these come from
the search of the kernels, and are known of it before its own search begins. What is judged of it is compared with them
in the same turns (`kcg.judge.finalists`). The plans are made of what was judged, and their whole steps are compared.
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from kcg.cli import counted
from kcg.judge.in_context import InContext, Interval
from kcg.kernel.kinds import kind_of, own_kind
from kcg.optimize.ahead import REFUSED
from kcg.optimize.baselines import measure_baselines
from kcg.optimize.expecting import firsts_of, know
from kcg.optimize.judging import as_judged
from kcg.optimize.planning import claimed
from kcg.optimize.proposing import (
    MOST,
    Proposing,
    best_alone_s,
    expected_savings_s,
    has_failed,
    left_s,
    works_of,
)
from kcg.optimize.region_plans import (
    PLANS,
    Key,
    Proposals,
    WorkloadPlan,
    among,
    best_parts,
    counted_elsewhere,
    deployed_plans,
    inside_of,
    key_of,
    marginal_savings,
    next_to_measure,
    plan_by,
    plans_to_time,
    rows_of,
    saving_in_place_s,
)
from kcg.optimize.search import Weights, search
from kcg.optimize.stored import Stored, covered
from kcg.optimize.work import Candidates, RegionResults, RegionWork, total_s
from kcg.report.result import NOT_JUDGED
from kcg.report.words import name_of
from kcg.search.problem import Observation
from kcg.types import (
    Planning,
    Region,
    RegionInPlan,
    RegionResult,
    Schedule,
    SearchedRegion,
    Status,
    Target,
    TriedPlan,
    Workload,
)
from kcg.unexpected import looking

if TYPE_CHECKING:
    from kcg.judge.interface import Bench
    from kcg.kernel.regions import Candidate
    from kcg.kernel.repeats import Blocks
    from kcg.optimize.ahead import Ahead
    from kcg.optimize.device import Device
    from kcg.optimize.estimates import Estimates
    from kcg.optimize.log import RunLog
    from kcg.optimize.search import Guide
    from kcg.predictor.interface import Predictor

NONE = "no region of several kernels was searched"
ROUNDS = 2  # of looking which of them compile: others take the place of those that do not
MOST_IN_CONTEXT = 24  # regions that are timed among the calls around


@dataclass(frozen=True)
class Proposed:
    """The candidates that were searched, and all that a run knows by then."""

    proposals: Proposals
    works: Sequence[RegionWork]  # of the regions
    estimates: Estimates  # of the kernels and the regions
    candidates: Candidates
    timed: Sequence[RegionWork] = ()  # of the regions those that are searched
    impossible: int = 0  # regions that rules proposed and that there is no program for


def propose_regions(
    found: Candidates,
    estimates: Estimates,
    *,
    device: Device,
    log: RunLog,
    usable: Callable[[Region], bool] | None = None,
    proposing: Proposing | None = None,
    store: Stored | None = None,
    judged: dict[str, RegionResult] | None = None,
) -> Proposed | None:
    """The regions that are to be searched, timed as their kernels: by default those that have a program, once the
    search of the kernels is over; None where there are none, or no time for them, which a warning says. Of a budget
    they leave the time in which what was found of kernels is to be judged. What a `store` has of them is put into
    `judged` and not searched, nor are those of which it has that nothing was found."""
    if estimates.budget.ledger.used_up and estimates.settings.regions is None:
        log.warn(f"{NONE}: the measurements were used up")
        return None
    if not estimates.regions_fit():
        log.warn(f"{NONE}: the budget has time only to judge what was found of kernels")
        return None
    until = estimates.regions_until()
    if proposing is None:
        proposing = Proposing(estimates.captured.workload, device, log, usable=usable)
    everything, proposals = proposing.found(until=until)
    if not is_any(everything, proposals, estimates, log):
        return None
    kernels = [work for work in found.works if not work.call.region.args]
    if not estimates.budget.ledger.used_up:
        late = not_come_to(kernels, least_s=estimates.settings.least_saving * (total_s(kernels) or 0.0))
        _measure_starts(late, device, until=until)
    works = works_of(proposals, kernels, device=device)
    device.first_programs(works)
    log.progress.phase(f"searching {counted(len(works), 'region')} of several kernels")
    timed: list[RegionWork] = []
    if store is not None and judged is not None and (held := store.holds(works, device=device, log=log)):
        timed = _timed(held, kernels, estimates, device=device, log=log, until=until)
        store.verify(timed, estimates, device=device, log=log, judged=judged)
        store.measure_unclear(timed, device=device)
        asked = {work.id for work in held}
        rest = [w for w in works if w.id not in asked and not covered(w, [*kernels, *timed])]
        works = [*held, *rest]
    else:
        rest = works
    timed += _timed(rest, kernels, estimates, device=device, log=log, until=until) if rest else []
    proposals, works, more = _that_compile(proposals, kernels, works, device=device, until=until)
    timed = [work for work in timed if work in works]
    timed += _timed(more, kernels, estimates, device=device, log=log, until=until) if more else []
    if not timed:
        log.warn(none_ran(len(works)))
        return None
    impossible = len(everything.regions) - len(proposals.regions)
    proposed = Proposed(proposals, works, with_regions(estimates, works), found, timed, impossible)
    both = proposed.estimates
    if store is not None:
        store.look_for_nothing(timed, estimates.settings, device=device, log=log)
        store.leave_out(timed, both, log=log)
    return replace(proposed, candidates=replace(found, works=both.works))


def expect_regions(
    found: Candidates,
    estimates: Estimates,
    predictor: Predictor | None,
    *,
    device: Device,
    log: RunLog,
    proposing: Proposing | None = None,
    memory_bytes: float = math.inf,
) -> Proposed | None:
    """The regions that may be in a plan, with what is expected of the first program of each and of their kernels as
    they were chosen; None where there are none, which a warning says. Those that the best plans have are compiled."""
    if left_s(until := estimates.regions_until()) == 0.0:
        log.warn(f"{NONE}: the budget has time only to judge what was chosen of kernels")
        return None
    proposing = proposing or Proposing(estimates.captured.workload, device, log)
    everything, proposals = proposing.found(until=until)
    if not is_any(everything, proposals, estimates, log):
        return None
    kernels = [work for work in found.works if not work.call.region.args]
    works = works_of(proposals, kernels, device=device)
    starts = device.starts(works)
    missing = _not_made(works, starts, until=until)
    works = [work for work in works if work.call.region.id not in missing and _expect(work, kernels)]
    for work in works:
        know(work, firsts_of(work, predictor, starts, until=until))

    def proposed() -> Proposed:
        both, impossible = with_regions(estimates, works), len(everything.regions) - len(proposals.regions)
        chosen = [work for work in works if work.by_kind]
        left = without(proposals, missing)
        return Proposed(left, works, both, replace(found, works=both.works), chosen, impossible)

    while gone := _unmade_of_plans(made := proposed(), device, memory_bytes=memory_bytes, until=until):
        missing |= gone
        works = [work for work in works if work.call.region.id not in missing]
    if made.timed:
        return made
    log.warn(f"{NONE}: none is expected to be faster than what was chosen of its kernels")
    return None


def _unmade_of_plans(proposed: Proposed, device: Device, *, memory_bytes: float, until: float | None) -> frozenset[str]:
    """The regions that the best plans have and whose program did not compile, by id. Of all that may be in a plan the
    others are not compiled: of 40 of Flux 768 the plans have 17, and to compile them all took 75 s of cores."""
    if not proposed.timed:
        return frozenset()
    needed = needed_by_plans(proposed, memory_bytes=memory_bytes)({})
    works = [work for work in proposed.timed if work.call.region.id in needed]
    works.sort(key=lambda work: -len(work.call.region.kernels))  # which take longest, seconds each
    return unmade(works, device, until=until)


def _expect(work: RegionWork, kernels: Sequence[RegionWork]) -> bool:
    """Know what a region takes as its kernels, as tinygrad schedules them and as they were chosen; whether that is
    known of all of them."""
    times = {one.call.region.id: (one.baseline_s, one.best_s) for one in kernels}
    inside = [times.get(kernel.id, (0.0, 0.0)) for kernel in work.call.region.kernels]
    if not all(own_s and best_s for own_s, best_s in inside):
        return False
    parts = best_parts(work.call.region, best_schedules(kernels))
    own_s, best_s = (sum(some) for some in zip(*inside, strict=True))
    know(work, {work.space.baseline(): own_s, parts: best_s})
    return True


def search_regions(
    proposed: Proposed, guide: Guide, *, device: Device, log: RunLog, ahead: Ahead | None = None
) -> Proposed:
    """Search the regions that are proposed, with what was found of them; meanwhile `ahead` judges."""
    both, found = proposed.estimates, proposed.candidates
    weights = weights_of(proposed, device.service.target)
    searched = search(both, guide, device=device, log=log, works=proposed.timed, weights=weights, ahead=ahead)
    expected = {**found.expected, **searched.expected}
    settled = found.settled and searched.settled
    return replace(proposed, candidates=replace(found, settled=settled, expected=expected))


def is_any(everything: Proposals, proposals: Proposals, estimates: Estimates, log: RunLog) -> bool:
    """Whether there are regions to search among all that rules propose; where somebody may wonder why not it is
    said."""
    if proposals.candidates:
        return True
    if everything.candidates or estimates.settings.regions is not None:  # else nobody asked for any
        many = counted(len(everything.candidates), "candidate region")
        log.warn(f"{NONE}: there is no program for any of {many}")
    return False


def none_ran(count: int) -> str:
    """What is said where none of so many regions could be timed."""
    return f"{NONE}: none of {counted(count, 'region')} ran as the best schedules of its kernels in time"


def with_regions(estimates: Estimates, works: Sequence[RegionWork]) -> Estimates:
    """What the rest of a run takes once regions are timed, too, by estimates of its kernels."""
    before = estimates.measured
    everything = [*(work for work in estimates.works if not work.proposed), *works]
    measured = replace(before, works=everything, at=time.monotonic(), kernels_at=before.first_at)
    return replace(estimates, measured=measured)


def _that_compile(
    proposals: Proposals,
    kernels: Sequence[RegionWork],
    works: Sequence[RegionWork],
    *,
    device: Device,
    until: float | None,
) -> tuple[Proposals, list[RegionWork], list[RegionWork]]:
    """The candidates without those whose first program did not compile until then: no plan counts that they save
    anything. With the works that are left, others in the place of those that are not among them, and these others."""
    seen, found, fresh = {work.id for work in works}, list(works), list(works)
    for number in range(ROUNDS):
        missing = unmade(fresh, device, until=until)
        found = [work for work in found if work.call.region.id not in missing]
        proposals = without(proposals, missing)
        if not missing or number + 1 == ROUNDS:
            break
        others = [work for work in works_of(proposals, kernels, device=device) if work.id not in seen]
        fresh = others[: MOST - len(found)]
        seen |= {work.id for work in fresh}
        found += fresh
        device.first_programs(fresh)
    before = set(map(id, works))
    return proposals, found, [work for work in found if id(work) not in before]


def without(proposals: Proposals, missing: frozenset[str]) -> Proposals:
    """The candidates but those of some regions, by id."""
    return among(proposals, lambda region: region.id not in missing) if missing else proposals


def unmade(works: Sequence[RegionWork], device: Device, *, until: float | None) -> frozenset[str]:
    """The regions of which the program with which their search begins did not compile, by id; what a store has of one
    was compiled."""
    asked = device.first_programs([work for work in works if work.stored is None])
    return _not_made(works, asked, until=until)


def _not_made(
    works: Sequence[RegionWork], asked: Mapping[str, Sequence[Future[Schedule]]], *, until: float | None
) -> frozenset[str]:
    """The regions of which nothing came that was `asked` by the id of their works, by id."""
    done, _ = wait([first for firsts in asked.values() for first in firsts], timeout=left_s(until))
    by_id = {work.id: work.call.region.id for work in works}
    made = {by_id[name] for name, firsts in asked.items() for one in firsts if one in done and not has_failed(one)}
    return frozenset(by_id[name] for name in asked) - made


def _timed(
    works: Sequence[RegionWork],
    kernels: Sequence[RegionWork],
    estimates: Estimates,
    *,
    device: Device,
    log: RunLog,
    until: float | None,
) -> list[RegionWork]:
    """Those of some regions that ran as tinygrad schedules their kernels, and as the best known schedules of these."""
    seek = functools.partial(device.find_starts, works)
    measure_baselines(works, device, budget=estimates.budget, log=log, meanwhile=seek, until=until)
    return _with_best_parts([work for work in works if work.baseline_s], kernels, device, until=until)


def not_come_to(kernels: Sequence[RegionWork], *, least_s: float) -> list[RegionWork]:
    """Kernels that the first search did not come to, and that take more than `least_s`: milliseconds in all were
    nothing beside seconds, and are now."""
    late = [w for w in kernels if w.baseline_s and w.others and not w.searched and not w.stored]
    return [work for work in late if work.before_s > least_s]


def _measure_starts(kernels: Sequence[RegionWork], device: Device, *, until: float | None) -> None:
    """Measure where each kernel's spaces of other kinds begin, `until` then: a search that has regions to think of
    comes to small kernels last, and their start is most of what they gain."""
    sent = []
    for work in kernels:
        for space in work.others.values():
            with looking("where programs of a kernel begin"):
                sent.append((work, device.measure(work, [space.start()])[0]))
    _kept(sent, until=until)


def _kept(
    sent: Sequence[tuple[RegionWork, Future[Observation]]], *, until: float | None
) -> list[tuple[RegionWork, Observation]]:
    """What came back until then; the regions keep it."""
    done, _ = wait([future for _, future in sent], timeout=left_s(until))
    found = [(work, future.result()) for work, future in sent if future in done]
    for work, seen in found:
        work.keep(seen)
    return found


def _with_best_parts(
    works: Sequence[RegionWork], kernels: Sequence[RegionWork], device: Device, *, until: float | None
) -> list[RegionWork]:
    """Those of some regions that ran as the best known schedules of their kernels, `until` then: what a program of the
    region is compared with."""
    known, alone_s = best_schedules(kernels), best_alone_s(kernels)
    sent = [
        (work, device.measure(work, [best_parts(work.call.region, known)], known_s=_sum_s(work, alone_s))[0])
        for work in works
    ]
    return [work for work, seen in _kept(sent, until=until) if seen.status == Status.OK]


def saved_now_s(work: RegionWork, alone_s: Mapping[str, float]) -> float:
    """What one call of a region saves over its kernels: over these as one program, or where they have become faster
    since that was timed, one after the other."""
    if not work.found:
        return 0.0
    return min(work.saving_s / work.call.calls, _sum_s(work, alone_s) - work.best_s)


def freshener(proposed: Proposed, device: Device) -> Callable[[RegionWork], None]:
    """What times the best schedules of a region's kernels as one program, where these are others than when the region
    joined, if there is time: what is judged of it is compared with them."""
    kernels = [work for work in proposed.estimates.works if not work.proposed]

    def freshen(work: RegionWork) -> None:
        parts, time_s = best_parts(work.call.region, best_schedules(kernels)), left_s(proposed.estimates.judge_until())
        if parts not in work.known and time_s != 0.0:
            done, _ = wait(device.measure(work, [parts]), timeout=time_s)
            for future in done:
                work.keep(future.result())

    return freshen


def _sum_s(work: RegionWork, alone_s: Mapping[str, float]) -> float:
    """What a region's kernels take one after the other, as each was measured."""
    return sum(alone_s.get(kernel.id, 0.0) for kernel in work.call.region.kernels)


def weights_of(proposed: Proposed, target: Target) -> Weights:
    """See `ByPlan`."""
    kernels = [work for work in proposed.estimates.works if not work.proposed]
    return ByPlan(proposed.proposals, kernels, proposed.timed, target)


class ByPlan(Weights):
    """What a second that each region saves is worth to the best plan: all of it where the plan has the region wherever
    it occurs, nothing where others that are better have its calls. One that a kernel saves is worth little where its
    calls are those of regions of the plan: it counts where one of these is refused.

    Of what nothing is measured the plan counts `expected_saving_s`, and what the plan has of these comes first. A
    program that is slower than its parts counts as if it were level with them, so that its search may go on.
    """

    def __init__(
        self, proposals: Proposals, kernels: Sequence[RegionWork], works: Sequence[RegionWork], target: Target
    ) -> None:
        candidates = proposals.candidates
        by_id = {candidate.region.id: key for key, candidate in candidates.items()}
        self._proposals, self._kernels = proposals, kernels
        self._works = {by_id[work.call.region.id]: work for work in works if work.others}
        self._first_s = expected_savings_s({key: candidates[key] for key in self._works}, best_alone_s(kernels), target)

    def __call__(self, expected_s: Mapping[str, float]) -> Mapping[str, float]:
        alone_s, proposals, works = best_alone_s(self._kernels), self._proposals, self._works
        measured = self._measured_s(alone_s)
        hoped = {
            key: self._first_s[key] if math.isinf(next_s) else measured.get(key, 0.0) + next_s / work.call.calls
            for key, work in works.items()
            if (next_s := expected_s.get(work.id)) is not None
        }
        marginal_s = marginal_savings(proposals, alone_s, measured, hoped)
        found = {works[key].id: _share(saved_s, expected_s[works[key].id]) for key, saved_s in marginal_s.items()}
        if any(kernel.id in expected_s for kernel in self._kernels):
            found |= of_kernels(self._kernels, plan_by(proposals, alone_s, {**hoped, **measured}))
        return found

    def saved_s(self) -> float:
        """By the best plan of what is measured alone."""
        alone_s = best_alone_s(self._kernels)
        measured = self._measured_s(alone_s)
        in_place = {
            key: saving_in_place_s(self._proposals.candidates[key], saved_s, alone_s)
            for key, saved_s in measured.items()
            if saved_s > 0
        }
        return max(plan_by(self._proposals, alone_s, in_place).saved_s, 0.0)

    def _measured_s(self, alone_s: Mapping[str, float]) -> dict[Key, float]:
        """What one call of each region saves that the search tried."""
        return {key: saved_now_s(work, alone_s) for key, work in self._works.items() if work.searched}


def of_kernels(kernels: Sequence[RegionWork], plan: WorkloadPlan) -> dict[str, float]:
    """What a second that each kernel saves is worth, by how many of its calls are regions' of the plan."""
    taken: dict[str, float] = defaultdict(float)
    for candidate, times in plan.programs:
        for kernel in candidate.region.own:
            taken[kernel.id] += times
    shares = {work.id: min(taken[work.call.region.id] / work.call.calls, 1.0) for work in kernels}
    return {name: 1.0 - (1.0 - REFUSED) * share for name, share in shares.items()}


def _share(part: float, whole: float) -> float:
    """How much of the whole a part is; of an infinite one all, if there is any."""
    if math.isinf(whole):
        return float(part > 0)
    return min(part / whole, 1.0) if whole > 0 else 0.0


def best_schedules(works: Sequence[RegionWork]) -> dict[str, Schedule]:
    """The best known schedule of each kernel, of whatever kind, by id."""
    found = {}
    for work in works:
        if (seen := work.best) is not None:
            found[work.call.region.id] = seen.schedule
    return found


# ---- judging, and after it


def needed_by_plans(
    proposed: Proposed, *, memory_bytes: float = float("inf")
) -> Callable[[Mapping[str, RegionResult]], frozenset[str]]:
    """Which of the regions that were searched the best plans have, by id: by what was judged, and by the times of the
    search of what was not."""
    kernels = [work for work in proposed.estimates.works if not work.proposed]

    def needed(judged: Mapping[str, RegionResult]) -> frozenset[str]:
        alone_s = best_alone_s(kernels)
        rows = [row for w in kernels if (row := judged.get(w.id)) is not None]
        alone_s |= {row.region.id: row.chosen.cold_s for row in rows}
        schedules, saved_s = best_schedules(kernels) | _chosen(rows), dict[str, float]()
        for work in proposed.works:
            if (row := judged.get(work.id)) is not None:
                saved_s[work.call.region.id] = saving_now_s(row, alone_s, schedules) if beats_its_parts(row) else 0.0
            elif work.by_kind:
                saved_s[work.call.region.id] = saved_now_s(work, alone_s)
        savings = _in_place(proposed.proposals, saved_s, alone_s)
        plans = deployed_plans(proposed.proposals, alone_s, savings, memory_bytes=memory_bytes)
        return frozenset(region.id for plan in plans for region in plan.regions)

    return needed


def savings_in_context(
    results: RegionResults,
    proposed: Proposed,
    estimates: Estimates,
    *,
    device: Device,
    log: RunLog,
    memory_bytes: float = math.inf,
    bench: Bench | None = None,
    most: int = PLANS,
) -> dict[str, Interval]:
    """What one call of each region of the best plans saves in its neighbourhood, by the region's id. Nothing is said of
    what there was no time for, which a warning counts, and of what has no neighbours. What is measured next is what the
    best plans, at `most` so many, have by what is known, until they have nothing left to measure. `bench` is where: by
    default where the search measured."""
    until = estimates.judge_until()
    comparing = InContext(results.rows, bench or device, estimates, estimates.kept, until=until)
    known = comparing.found
    alone_s = alone_s_of(results)

    def waiting() -> list[Candidate]:
        """What the best plans have by what is known now, and was not tried: what saves most first."""
        plans = plans_by(results, proposed, memory_bytes=memory_bytes, in_context=known, most=most)
        savings = measured_savings(results.rows, proposed.proposals, alone_s, known)
        tried = {key: saved_s for key, saved_s in savings.items() if key[0] in comparing.tried}
        keys = next_to_measure(plans, savings, tried)
        return [proposed.proposals.candidates[key] for key in keys[: MOST_IN_CONTEXT - len(comparing.tried)]]

    late = 0
    while not late and any(map(beats_its_parts, results.rows)) and (candidates := waiting()):
        log.progress.phase(f"timing {counted(len(candidates), 'region')} of several kernels among their neighbours")
        late = comparing.compare([(c, _sequence_of(c, proposed.proposals)) for c in candidates])
    if late:
        what = "it saves" if late == 1 else "they save"
        many = counted(late, "region")
        log.warn(f"there was no time to compare {many} among the calls around: what {what} alone counts")
    log.warn(*(f"region {name[:12]} was not compared among the calls around: {why}" for name, why in comparing.failed))
    device.check_journal()
    return known


def _sequence_of(candidate: Candidate, proposals: Proposals) -> Blocks:
    """Where a candidate occurs."""
    return next(blocks for blocks, candidates in proposals.sequences if candidate in candidates)


def best_so_far(
    works: Sequence[RegionWork],
    judged: Mapping[str, RegionResult],
    proposed: Proposed | None,
    workload: Workload,
    *,
    why: str,
    memory_bytes: float = float("inf"),
) -> RegionResults:
    """The results by the best plan of what was judged by now, `works` being the kernels: nothing else of what was
    searched is in it, and `why` is said of that."""
    if proposed is None:
        return as_judged(works, judged, why=why)
    both = as_judged([*works, *proposed.works], judged, why=why)
    return variants(both, proposed, workload, memory_bytes=memory_bytes, most=1)[0]


def variants(
    results: RegionResults,
    proposed: Proposed,
    workload: Workload,
    *,
    in_context: Mapping[str, Interval] = MappingProxyType({}),
    memory_bytes: float = float("inf"),
    most: int = PLANS,
) -> list[RegionResults]:
    """The results by each of the best plans, at `most` so many, the best first, and last by that of every kernel alone.
    `in_context` is what regions save in their neighbourhood, by id."""
    plans = plans_by(results, proposed, in_context=in_context, memory_bytes=memory_bytes, most=most)
    own = {work.call.region.id for work in proposed.works}
    rows = [row for row in results.rows if row.region.id not in own]
    regions = {row.region.id: row for row in results.rows if row.region.id in own}
    made = []
    for plan in plans:
        found = rows_of(workload, rows, regions, plan.regions)
        planning = Planning(
            regions=regions_in(plan, found, rows, workload, in_context),
            plans=(TriedPlan(tuple(r.id for r in plan.regions), plan.seconds, None, None, UNTRIED, chosen=True),),
            why=UNTRIED,
            passed_over=passed_over(list(regions.values()), proposed, plan, in_context),
            inside=inside_of(rows, found),
            unread=unread(plan.regions, rows, workload),
            searched=searched_beside(proposed, found, rows),
        )
        made.append(replace(results, rows=found, planning=planning))
    return made


UNTRIED = "not run: the run ended before whole steps were compared"


def plans_by(
    results: RegionResults,
    proposed: Proposed,
    *,
    in_context: Mapping[str, Interval] = MappingProxyType({}),
    memory_bytes: float = float("inf"),
    most: int = PLANS,
) -> list[WorkloadPlan]:
    """The best plans by what was judged, as programs get them."""
    proposals, alone_s = proposed.proposals, alone_s_of(results)
    savings = measured_savings(results.rows, proposals, alone_s, in_context)
    workspaces = _workspaces(results.rows, proposed)
    return plans_to_time(proposals, alone_s, savings, memory_bytes=memory_bytes, workspaces=workspaces, most=most)


def _workspaces(rows: Sequence[RegionResult], proposed: Proposed) -> dict[Key, int]:
    """What the chosen programs of candidates take of memory beside their buffers, in bytes."""
    target = proposed.estimates.device.service.target
    chosen = [(row.region, row.chosen.schedule) for row in rows if beats_its_parts(row)]
    by_region = {region.id: kind_of(one).workspace_bytes(region, one, target) for region, one in chosen}
    keys = map(key_of, proposed.proposals.candidates.values())
    return {key: taken for key in keys if (taken := by_region.get(key[0], 0))}


def alone_s_of(results: RegionResults) -> dict[str, float]:
    """Seconds of one call of each kernel by its chosen schedule."""
    return {row.region.id: row.chosen.cold_s for row in results.rows if not row.region.args}


def measured_savings(
    rows: Sequence[RegionResult],
    proposals: Proposals,
    alone_s: Mapping[str, float],
    in_context: Mapping[str, Interval] = MappingProxyType({}),
) -> Mapping[Key, float]:
    """What each region that is faster than the best of its parts saves of one call, both timed in the same turns: in
    its neighbourhood where that is known, else alone; less what its parts take that it computes again."""
    chosen = _chosen(rows)
    saved_s = {row.region.id: saving_now_s(row, alone_s, chosen) for row in rows if beats_its_parts(row)}
    saved_s |= {name: median_s for name, (_, median_s, _) in in_context.items() if name in saved_s}
    return _in_place(proposals, saved_s, alone_s)


def _in_place(proposals: Proposals, saved_s: Mapping[str, float], alone_s: Mapping[str, float]) -> dict[Key, float]:
    """What one occurrence of each candidate saves, of regions of which a call saves so much, by id, if anything."""
    return {
        key_of(candidate): saving_in_place_s(candidate, saved, alone_s)
        for candidate in proposals.candidates.values()
        if (saved := saved_s.get(candidate.region.id, 0.0)) > 0
    }


def beats_its_parts(row: RegionResult) -> bool:
    """Whether a region of several kernels has a program that is faster than the best schedules of its parts."""
    return bool(row.region.args) and row.outcome == "improved" and row.chosen.schedule.kind != own_kind(row.region)


def saving_s(row: RegionResult) -> float:
    """What one call of such a region saves by itself, in seconds."""
    return (row.opts or row.baseline).cold_s - row.chosen.cold_s


def saving_now_s(row: RegionResult, alone_s: Mapping[str, float], chosen: Mapping[str, Schedule]) -> float:
    """The same by what its kernels have now, the schedules and seconds by id: where these are others that are faster
    than when it was judged, as while a search goes on, it saves what it takes less than them one after the other."""
    kernels = [kernel.id for kernel in row.region.kernels]
    if not all(name in alone_s and name in chosen for name in kernels):
        return saving_s(row)
    if best_parts(row.region, chosen) == (row.opts or row.baseline).schedule:
        return saving_s(row)  # both were timed in the same turns
    return min(saving_s(row), sum(alone_s[name] for name in kernels) - row.chosen.cold_s)


def _chosen(kernels: Sequence[RegionResult]) -> dict[str, Schedule]:
    """What each kernel runs alone, by id."""
    return {row.region.id: row.chosen.schedule for row in kernels if not row.region.args}


# ---- what is written of a plan


def regions_in(
    plan: WorkloadPlan,
    rows: Sequence[RegionResult],
    kernels: Sequence[RegionResult],
    workload: Workload,
    in_context: Mapping[str, Interval],
) -> tuple[RegionInPlan, ...]:
    """What is said of the regions of a plan, by the results of the plan and those of all `kernels`."""
    names = {row.region.id: name_of(row) for row in kernels}
    by_id, left = {row.region.id: row for row in rows}, claimed(workload, plan.regions).left
    alone_s = {row.region.id: row.chosen.cold_s for row in kernels}
    again = counted_elsewhere(workload, plan.regions, alone_s)
    return tuple(
        RegionInPlan(
            region=region.id,
            kernels=tuple(names.get(kernel.id, kernel.id[:12]) for kernel in region.kernels),
            form=candidate.form,
            calls=by_id[region.id].calls,
            saved_s=saving_now_s(by_id[region.id], alone_s, _chosen(kernels)) - again.get(region.id, 0.0),
            saved_bytes=float(candidate.saved_bytes),
            left=tuple((why, count) for (name, why), count in left.items() if name == region.id),
            nearby_s=in_context.get(region.id),  # which is not known of one that computes calls again
            again=region.again,
        )
        for candidate, _ in plan.programs
        for region in (candidate.region,)
    )


def unread(
    regions: Sequence[Region], kernels: Sequence[RegionResult], workload: Workload
) -> tuple[tuple[str, int], ...]:
    """Names of kernels that a plan with these regions computes again in all who read them, and of how many of their
    calls that is so."""
    names, taken = {row.region.id: name_of(row) for row in kernels}, claimed(workload, regions).left_out
    return tuple((names.get(kernel, kernel[:12]), seen.total()) for kernel, seen in taken.items())


def searched_beside(
    proposed: Proposed, found: Sequence[RegionResult], kernels: Sequence[RegionResult]
) -> tuple[SearchedRegion, ...]:
    """The regions that were searched and that are not `found` in the results by a plan: what was expected of them is
    kept all the same."""
    names, own = {row.region.id: name_of(row) for row in kernels}, {row.region.id for row in found}
    return tuple(
        SearchedRegion(
            region.id, tuple(names.get(kernel.id, kernel.id[:12]) for kernel in region.kernels), work.call.variables
        )
        for work in proposed.timed
        if (region := work.call.region).id not in own and len(region.kernels) > 1
    )


OUT = {
    NOT_JUDGED: "faster than its parts, and no plan among the best has it",
    "undecided": "there was no time to judge a program",
    "not searched": "there was no time to search a program",
    "unjudged": "the reference cannot tell what is right",
    "quarantined": "wrong or failing as tinygrad schedules the kernels",
}
"""Why a region that was searched is in no plan, by its outcome; with others no program is faster."""


def passed_over(
    rows: Sequence[RegionResult], proposed: Proposed, plan: WorkloadPlan, in_context: Mapping[str, Interval]
) -> tuple[tuple[str, int], ...]:
    """Why regions that rules proposed are not in a plan, and how many; `rows` are of those that were searched."""
    reasons = Counter({"no program of them can be made": proposed.impossible})
    reasons["others were expected to save more, and were searched"] = len(proposed.proposals.regions) - len(rows)
    for row in rows:
        if row.region not in plan.regions:
            slower = OUT.get(row.outcome, "no program is faster than the best schedules of the parts")
            lost = row.region.id in in_context and in_context[row.region.id][1] <= 0
            faster = LOST_IN_CONTEXT if lost else BEATEN
            reasons[faster if beats_its_parts(row) else slower] += 1
    return tuple((why, count) for why, count in reasons.most_common() if count > 0)


LOST_IN_CONTEXT = "a program is faster than the parts alone, and not among the calls around it"
BEATEN = "a program is faster than the parts, and the plan is faster without it"
