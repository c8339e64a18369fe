"""From a workload to plans with regions of several kernels: what is proposed, expected, measured next, and chosen.

Functions of values, in the order in which a run calls them:

    propose -> Proposals    expected_saving_s, next_to_measure    saving_in_place_s    plans_of -> WorkloadPlans
    as_deployed    marginal_savings    plans_to_time    rows_of, inside_of    fastest_step

A saving is against the best known schedules of a region's parts as one program (`best_parts`), both timed in turns. So
the cost of a region in a plan is what its calls take alone, by the best that is known of each, minus that saving.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from kcg.errors import ScheduleError
from kcg.judge.whole import was_tried
from kcg.kernel.composed import Part, schedule_of_parts
from kcg.kernel.kinds import KINDS, JoinsKernels, kind_named
from kcg.kernel.repeats import Blocks, blocks_of_workload
from kcg.optimize.exact_plan import Option, SequencePlan, best_plans
from kcg.optimize.planning import claimed, planned
from kcg.types import ModelCheck, Region, RegionResult, Result, Schedule, Target, TriedPlan, Workload, WorkloadCall

if TYPE_CHECKING:
    from kcg.kernel.regions import Candidate, Limits

PLANS = 5  # whole steps that are timed, beside that of every kernel alone
Key = tuple[str, tuple[int, ...]]
"""A candidate: its region, and which of its kernels are computed again."""


def key_of(candidate: Candidate) -> Key:
    return candidate.region.id, candidate.again


@dataclass(frozen=True)
class Proposals:
    """The candidate regions of a workload, by sequence."""

    workload: Workload
    sequences: tuple[tuple[Blocks, tuple[Candidate, ...]], ...]
    _alone: dict[Region, WorkloadCall | None] = field(default_factory=dict, repr=False, compare=False)

    def call_of(self, region: Region) -> WorkloadCall | None:
        """The calls of a region, were it the only one; None where it occurs nowhere. What was found is shared with
        proposals of some of these candidates."""
        if region not in self._alone:
            call = planned(self.workload, [region], wanted=False).calls[-1]
            self._alone[region] = call if call.region == region else None
        return self._alone[region]

    @cached_property
    def candidates(self) -> dict[Key, Candidate]:
        """One of each, what saves most bytes of the whole workload first."""
        found = {key_of(c): c for _, candidates in self.sequences for c in candidates}
        order = sorted(found, key=lambda key: -self.calls[key] * found[key].saved_bytes)
        return {key: found[key] for key in order}

    @cached_property
    def regions(self) -> frozenset[Region]:
        """Of all candidates."""
        return frozenset(candidate.region for candidate in self.candidates.values())

    @cached_property
    def calls(self) -> dict[Key, float]:
        """How often each could run in one execution of the workload, were it chosen wherever it occurs."""
        found: dict[Key, float] = defaultdict(float)
        for blocks, candidates in self.sequences:
            for candidate in candidates:
                times = sum(blocks.weight(places) for places in candidate.places)
                found[key_of(candidate)] += times * blocks.sequence.executions
        return dict(found)


def propose(workload: Workload, *, limits: Limits | None = None) -> Proposals:
    """Candidates of each sequence of a workload. A region either computes a call `again` wherever it is, or nowhere:
    one that needs to nowhere else does not."""
    from kcg.kernel.regions import candidates_of

    found = [(blocks, candidates_of(blocks.sequence, limits)) for blocks in blocks_of_workload(workload)]
    without = {c.region.id for _, candidates in found for c in candidates if not c.again}
    kept = ((b, tuple(c for c in some if not c.again or c.region.id not in without)) for b, some in found)
    return Proposals(workload, tuple(kept))


def among(proposals: Proposals, usable: Callable[[Region], bool]) -> Proposals:
    """Those candidates of whose regions there is a program; each region is asked for once."""
    kept = {region.id: usable(region) for region in {c.region for c in proposals.candidates.values()}}
    sequences = ((b, tuple(c for c in candidates if kept[c.region.id])) for b, candidates in proposals.sequences)
    return replace(proposals, sequences=tuple(sequences))


# ---- what is expected


def expected_saving_s(candidate: Candidate, alone_s: Mapping[str, float], target: Target) -> float:
    """What one occurrence is expected to save, before anything is measured, by the kind that expects most of it."""
    joining = [kind for kind in map(kind_named, KINDS) if isinstance(kind, JoinsKernels)]
    return max((kind.saving_s(candidate, alone_s, target) for kind in joining), default=0.0)


def saving_in_place_s(candidate: Candidate, saving_s: float, alone_s: Mapping[str, float]) -> float:
    """What one occurrence saves of the calls in whose place it runs, where its program takes `saving_s` less than all
    of its kernels. What it computes again takes its time elsewhere all the same, unless the plan leaves it out: so this
    may be less than nothing where that still pays."""
    return saving_s - computed_again_s(candidate, alone_s)


def computed_again_s(candidate: Candidate, alone_s: Mapping[str, float]) -> float:
    """What the calls take alone that an occurrence computes again."""
    return sum(alone_s.get(candidate.region.kernels[number].id, 0.0) for number in candidate.again)


def best_parts(region: Region, best: Mapping[str, Schedule]) -> Schedule:
    """Every call of a region alone, with the best known schedule of its kernel, by id. Raises ScheduleError where one
    has none."""
    missing = [kernel.id for kernel in region.kernels if kernel.id not in best]
    if missing:
        raise ScheduleError(f"no schedule of kernel {missing[0][:12]} is known")
    return schedule_of_parts(Part((place,), best[kernel.id]) for place, kernel in enumerate(region.kernels))


# ---- plans


@dataclass(frozen=True)
class WorkloadPlan:
    """How a workload runs: a plan of each of its sequences."""

    sequences: tuple[SequencePlan, ...]
    seconds: float  # of all kernels, in one execution of the workload
    programs: tuple[tuple[Candidate, float], ...]  # with how often each runs, what saves most time first
    saved_s: float  # against every call alone
    saved_bytes: float

    @property
    def regions(self) -> tuple[Region, ...]:
        """In the order in which they are put into a program: what saves most first."""
        return tuple(dict.fromkeys(candidate.region for candidate, _ in self.programs))


def plans_of(
    proposals: Proposals,
    alone_s: Mapping[str, float],
    savings: Mapping[Key, float],
    *,
    memory_bytes: float = float("inf"),
    workspaces: Mapping[Key, int] = MappingProxyType({}),
    count: int = PLANS,
) -> list[WorkloadPlan]:
    """The best plans of the whole workload, the best first, and last that of every call alone, where it is not among
    them.

    `alone_s` are seconds of kernels by id, `savings` those of one occurrence of a candidate; what has none is no
    option. `memory_bytes` is what the intermediates of one sequence and a program's workspace may take, `workspaces`
    those of candidates that have one, in bytes.
    """
    ways: list[tuple[float, tuple[SequencePlan, ...]]] = [(0.0, ())]
    for blocks, candidates in proposals.sequences:
        options = options_of(blocks, candidates, alone_s, savings, workspaces)
        plans = best_plans(blocks, options, count=count, memory_bytes=memory_bytes)
        alone = best_plans(blocks, [option for option in options if option.is_alone], count=1)
        plans += [plan for plan in alone if all(other.programs for other in plans)]
        times = blocks.sequence.executions
        joined = (
            (spent + times * plan.seconds, (*chosen, plan)) for (spent, chosen), plan in itertools.product(ways, plans)
        )
        everything = list(joined)
        ways = heapq.nsmallest(count, everything, key=lambda way: way[0])
        bare = [way for way in everything if not any(plan.programs for plan in way[1])]
        ways += [way for way in bare if way not in ways]
    return [_workload_plan(proposals, chosen, seconds, alone_s) for seconds, chosen in ways]


def options_of(
    blocks: Blocks,
    candidates: Iterable[Candidate],
    alone_s: Mapping[str, float],
    savings: Mapping[Key, float],
    workspaces: Mapping[Key, int] = MappingProxyType({}),
) -> list[Option]:
    """Every call alone, and every occurrence of each candidate that something is known of."""
    calls = blocks.sequence.calls
    each_s = [alone_s.get(call.kernel.id, 0.0) if call.kernel else 0.0 for call in calls]
    options = [Option((place,), seconds) for place, seconds in enumerate(each_s)]
    for candidate in candidates:
        if (saving_s := savings.get(key_of(candidate))) is None:
            continue
        for places in candidate.places:
            own = tuple(sorted(candidate.own(places)))
            again = tuple(sorted(set(places).difference(own)))
            seconds = max(0.0, sum(each_s[place] for place in own) - saving_s)
            key = key_of(candidate)
            options.append(Option(own, seconds, again, key, workspaces.get(key, 0)))
    return options


def _workload_plan(
    proposals: Proposals, chosen: tuple[SequencePlan, ...], seconds: float, alone_s: Mapping[str, float]
) -> WorkloadPlan:
    times: dict[Key, float] = defaultdict(float)
    saved: dict[Key, float] = defaultdict(float)
    left_out_s = 0.0
    for (blocks, _), plan in zip(proposals.sequences, chosen, strict=True):
        calls = blocks.sequence.calls
        for option in plan.programs:
            many, key = blocks.weight(option.places) * blocks.sequence.executions, cast(Key, option.name)
            parts = [kernel for place in option.own if (kernel := calls[place].kernel) is not None]
            times[key] += many
            saved[key] += many * (sum(alone_s.get(kernel.id, 0.0) for kernel in parts) - option.seconds)
        for place in plan.left_out:
            many, kernel = blocks.weight((place,)) * blocks.sequence.executions, calls[place].kernel
            left_out_s += many * alone_s.get(kernel.id, 0.0) if kernel is not None else 0.0
    order = sorted(times, key=lambda key: -saved[key])
    programs = tuple((proposals.candidates[key], times[key]) for key in order)
    saved_bytes = sum(many * candidate.saved_bytes for candidate, many in programs)
    return WorkloadPlan(chosen, seconds, programs, sum(saved.values()) + left_out_s, saved_bytes)


def as_deployed(
    plans: Iterable[WorkloadPlan], proposals: Proposals, alone_s: Mapping[str, float], savings: Mapping[Key, float]
) -> list[WorkloadPlan]:
    """The plans as programs get them, each once, the best first and last that of every call alone.

    A running program does not know in which of its places a plan wants a region: it is put in wherever its calls match
    and it is safe. So that is what a plan costs, also where it wanted the region in some of these places only.
    """
    found: dict[frozenset[tuple[str, float]], WorkloadPlan] = {}
    for plan in plans:
        taken = claimed(proposals.workload, plan.regions)
        programs = tuple((c, float(many)) for c, _ in plan.programs if (many := taken.found[c.region.id]))
        saved_s = sum(
            many * min(savings[key_of(c)], sum(alone_s.get(kernel.id, 0.0) for kernel in c.kernels))
            for c, many in programs
        )
        saved_s += sum(alone_s.get(kernel, 0.0) * seen.total() for kernel, seen in taken.left_out.items())
        made = replace(
            plan,
            programs=programs,
            seconds=plan.seconds + plan.saved_s - saved_s,
            saved_s=saved_s,
            saved_bytes=sum(many * candidate.saved_bytes for candidate, many in programs),
        )
        found.setdefault(frozenset((c.region.id, many) for c, many in programs), made)
    return sorted(found.values(), key=lambda plan: (not plan.programs, plan.seconds))


def deployed_plans(
    proposals: Proposals,
    alone_s: Mapping[str, float],
    savings: Mapping[Key, float],
    *,
    memory_bytes: float = float("inf"),
) -> list[WorkloadPlan]:
    """The plans of `plans_of` as programs get them; several that come to the same there are one."""
    plans = plans_of(proposals, alone_s, savings, memory_bytes=memory_bytes)
    return as_deployed(plans, proposals, alone_s, savings)


def plans_to_time(
    proposals: Proposals,
    alone_s: Mapping[str, float],
    savings: Mapping[Key, float],
    *,
    memory_bytes: float = float("inf"),
    workspaces: Mapping[Key, int] = MappingProxyType({}),
    most: int = PLANS,
) -> list[WorkloadPlan]:
    """The best plans with different regions as programs get them, at `most` so many, the best first, and last that of
    every call alone.

    Plans of sequences that differ often come to the same in a program. So the next best one is looked for as the best
    without one of the regions of a plan before it (branching as in Murty, 1968).
    """

    def best(without: frozenset[str]) -> list[WorkloadPlan]:
        left = {key: saving_s for key, saving_s in savings.items() if key[0] not in without}
        plans = plans_of(proposals, alone_s, left, memory_bytes=memory_bytes, workspaces=workspaces, count=1)
        return as_deployed(plans, proposals, alone_s, savings)

    *first, alone = best(frozenset())
    seen, found = {frozenset[str]()}, dict[tuple[Region, ...], WorkloadPlan]()
    waiting = [(plan.seconds, number, frozenset[str](), plan) for number, plan in enumerate(first)]
    while waiting and len(found) < most:
        _, _, without, plan = heapq.heappop(waiting)
        if found.setdefault(plan.regions, plan) is not plan or len(found) == most:
            continue
        for region in plan.regions:
            if (others := without | {region.id}) not in seen:
                seen.add(others)
                *next_best, _ = best(others)
                waiting += [(one.seconds, len(seen), others, one) for one in next_best]
        heapq.heapify(waiting)
    return [*found.values(), alone]


def next_to_measure(
    plans: Sequence[WorkloadPlan], savings: Mapping[Key, float], measured: Mapping[Key, float]
) -> list[Key]:
    """Which candidates are worth a measurement: those of the best plans that nothing is measured of, by what they are
    expected to save in all. With expectations that are too good rather than too bad, plans are made and measured in
    turns until the best has nothing left to measure: no other plan can be better then."""
    waiting: dict[Key, float] = {}
    for plan in plans:
        for candidate, times in plan.programs:
            if (key := key_of(candidate)) not in measured:
                waiting[key] = max(waiting.get(key, 0.0), times * savings[key])
    return sorted(waiting, key=lambda key: -waiting[key])


def plan_by(proposals: Proposals, alone_s: Mapping[str, float], savings: Mapping[Key, float]) -> WorkloadPlan:
    """The best plan by what one occurrence of each candidate saves, or would cost where that is below 0."""
    positive = {key: saving_s for key, saving_s in savings.items() if saving_s > 0}
    return plans_of(proposals, alone_s, positive, count=1)[0]


def marginal_savings(
    proposals: Proposals, alone_s: Mapping[str, float], measured: Mapping[Key, float], hoped: Mapping[Key, float]
) -> dict[Key, float]:
    """By how many seconds the best plan becomes shorter if one candidate comes to save what it is `hoped` to, of each
    of these: nothing where better ones have its calls all the same.

    Both are seconds of one call. Others count what is `measured` of them, or what they are hoped to save, where nothing
    is.
    """

    best = functools.partial(plan_by, proposals, alone_s)
    now = {**hoped, **measured}
    plan = best(now)
    times = {key_of(candidate): many for candidate, many in plan.programs}
    found = {}
    for key, saving_s in hoped.items():
        if key in measured and key in times:
            found[key] = times[key] * (saving_s - measured[key])
        elif key in measured:
            found[key] = plan.seconds - best({**now, key: saving_s}).seconds
        else:
            found[key] = best({**now, key: 0.0}).seconds - plan.seconds if key in times else 0.0
    return {key: max(saved_s, 0.0) for key, saved_s in found.items()}


# ---- what comes of a plan


def rows_of(
    workload: Workload, rows: Sequence[RegionResult], regions: Mapping[str, RegionResult], wanted: Sequence[Region]
) -> tuple[RegionResult, ...]:
    """The results of a workload by a plan with the regions that are `wanted`: these beside the kernels that still
    run alone, each as often as it is put into the program. A region whose calls were taken by those before it is left
    out.

    `rows` are of the kernels, `regions` of regions, by id.
    """
    calls = {call.region.id: call for call in planned(workload, wanted, wanted=False).calls}
    before_s = {row.region.id: row.baseline.cold_s for row in rows}
    again = counted_elsewhere(workload, wanted, before_s)
    found = []
    for row in (*rows, *(regions[region.id] for region in wanted)):
        if (call := calls.get(row.region.id)) is not None:
            again_s = min(again.get(row.region.id, 0.0), row.baseline.cold_s)
            found.append(replace(row, calls=call.calls, replayed=call.replayed, again_s=again_s))
    return tuple(found)


def counted_elsewhere(workload: Workload, regions: Sequence[Region], seconds: Mapping[str, float]) -> dict[str, float]:
    """Of one call of each region, by id, the `seconds` of its kernels that it computes again and that count elsewhere,
    as the mean over its calls."""
    taken, found = claimed(workload, regions), defaultdict[str, float](float)
    for region, number in itertools.chain(*(itertools.product([r], r.again) for r in regions)):
        if many := taken.found[region.id]:
            share = taken.elsewhere[region.id, number] / many
            found[region.id] += share * seconds.get(region.kernels[number].id, 0.0)
    return dict(found)


def inside_of(rows: Sequence[RegionResult], found: Sequence[RegionResult]) -> tuple[RegionResult, ...]:
    """Of the results of kernels those that are not `found` in the results by a plan: its regions run all their calls.
    Each is what its kernel gets where such a region cannot be put in."""
    shown = {(row.region.id, row.variables) for row in found}
    return tuple(replace(row, calls=0, replayed=0) for row in rows if (row.region.id, row.variables) not in shown)


def fastest_step(results: Sequence[Result], checks: Sequence[ModelCheck]) -> tuple[Result, ModelCheck]:
    """Of the results of several plans, the last of which has every kernel alone, the one whose whole step is the
    fastest and right, by their `checks`: what is measured of the whole step decides, since costs of parts do not add
    up. Of steps that differ by no more than noise it is the best expected one that is not slower than the last plan's.
    Where no step is timed it is the first that is right. Where none was tried, or a budget ended before any was there,
    it is the first: each of its parts was verified by itself. Else it is the last. What was seen of each plan is in its
    `Result.planning`."""
    at, why = _fastest(checks)
    chosen = results[at]
    if chosen.planning is None:
        return chosen, checks[at]
    plans = tuple(
        replace(_seen(one, seen), chosen=place == at)
        for place, (result, seen) in enumerate(zip(results, checks, strict=True))
        if result.planning is not None
        for one in result.planning.plans
    )
    return replace(chosen, planning=replace(chosen.planning, plans=plans, why=why)), checks[at]


def _fastest(checks: Sequence[ModelCheck]) -> tuple[int, str]:
    """Which of the checks of the plans is the best, and why."""
    last = len(checks) - 1
    right = [place for place, seen in enumerate(checks) if seen.passed]
    timed = {place: seconds for place in right if (seconds := checks[place].after_s) is not None}
    if timed:
        before_s = min((seen.before_s for seen in checks if seen.before_s is not None), default=math.inf)
        fastest = min(timed, key=lambda place: timed[place])
        as_fast_s = timed[fastest] + checks[fastest].spread_s
        level = [place for place, seconds in timed.items() if seconds - checks[place].spread_s <= as_fast_s]
        best = next(place for place in level if timed[place] <= timed.get(last, math.inf))
        if timed[best] <= before_s:
            why = "its whole step is the fastest" if best == fastest else "no whole step is faster by more than noise"
            return best, f"{why} of {len(timed)} that are right"
        if checks[last].passed is False:
            return best, "no whole step is faster than with tinygrad's own schedules, and that of the kernels is wrong"
        return last, "no whole step is faster than with tinygrad's own schedules"
    if right:
        untimed = f" ({checks[right[0]].untimed})" if checks[right[0]].untimed else ""
        why = f"no whole step was timed{untimed}: of those that are right it is the best by the times of its kernels"
        return right[0], why
    if all(seen.passed is False for seen in checks):
        return last, "the whole step of every plan is wrong"
    if not any(map(was_tried, checks)):
        return 0, "no whole step was compared: it is the best by the times of its parts, each of which was verified"
    return last, "no whole step was seen to be right: a plan with regions is taken only by what its step shows"


def _seen(plan: TriedPlan, check: ModelCheck) -> TriedPlan:
    """A plan with what its whole step showed."""
    return replace(plan, step_s=check.after_s, passed=check.passed, note=check.reason)
