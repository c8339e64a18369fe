"""A workload's candidates, what is expected and measured of them, and the plan, up to the rows of a result."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from kcg.errors import DeviceError, ScheduleError
from kcg.judge.whole import unclear
from kcg.kernel import regions
from kcg.kernel.composed import parts_of
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.regions import Form
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.optimize import joining, proposing, region_search, search
from kcg.optimize.ahead import REFUSED
from kcg.optimize.budget import Budget
from kcg.optimize.planning import planned
from kcg.optimize.region_plans import (
    PLANS,
    Key,
    Proposals,
    WorkloadPlan,
    among,
    as_deployed,
    best_parts,
    expected_saving_s,
    fastest_step,
    key_of,
    marginal_savings,
    next_to_measure,
    plans_of,
    plans_to_time,
    propose,
    rows_of,
    saving_in_place_s,
)
from kcg.optimize.run import expectations_of
from kcg.optimize.search import Weights
from kcg.optimize.settings import EFFORTS, Effort, Settings
from kcg.optimize.work import RegionResults
from kcg.report.result import from_dict, read_result, to_dict
from kcg.search.problem import Observation
from kcg.types import (
    ModelCheck,
    Planning,
    Region,
    RegionResult,
    Result,
    Schedule,
    ScheduleKind,
    Status,
    TriedPlan,
    Workload,
)
from kcg.unexpected import reported_to
from tests.captured import captured
from tests.known_targets import KNOWN_TARGETS
from tests.optimize_run import begun, whole_run
from tests.plans import run
from tests.sample_result import sample_plan, sample_result
from tests.waiting import wait_until, waited

SCRIPT = Path(__file__).parents[1] / "scripts" / "norm_steps.py"
H200 = KNOWN_TARGETS["sm_90"]


@pytest.fixture(scope="module")
def flux() -> Workload:
    return captured("flux", "1024")


@pytest.fixture(scope="module")
def proposals(flux: Workload) -> Proposals:
    return propose(flux)


@pytest.fixture(scope="module")
def alone_s(flux: Workload) -> dict[str, float]:
    kernels = ((c.region.id, read_kernel(c.region)) for c in flux.calls)
    return {name: predicted_seconds(k, H200, default_parameters(k, H200)) for name, k in kernels}


@pytest.fixture(scope="module")
def expected(proposals: Proposals, alone_s: dict[str, float]) -> dict[Key, float]:
    return {key: expected_saving_s(c, alone_s, H200) for key, c in proposals.candidates.items()}


@pytest.fixture(scope="module")
def plans(proposals: Proposals, alone_s: dict[str, float], expected: dict[Key, float]) -> list[WorkloadPlan]:
    return plans_of(proposals, alone_s, expected)


def row(region: Region, seconds: float, *, calls: int = 1, tile: bool = False, before_s: float = 0.0) -> RegionResult:
    """A result of a region, as far as plans look at it."""
    (made, *_) = sample_result().regions
    base = replace(made.baseline, cold_s=before_s or seconds)
    schedule = Schedule(ScheduleKind.TILE if tile else ScheduleKind.PARTS, "{}")
    chosen = replace(base, cold_s=seconds, schedule=schedule)  # else other schedules of its parts
    outcome = "improved" if before_s else "kept"
    return replace(made, region=region, calls=calls, baseline=base, chosen=chosen, outcome=outcome, opts=None, ends=())


@pytest.mark.slow
def test_the_plan_of_a_step_is_the_one_that_a_block_is_known_to_want(plans: list[WorkloadPlan]) -> None:
    assert len(plans) == 6 and not plans[-1].programs, "five, and every call alone"
    assert [p.seconds for p in plans] == sorted(p.seconds for p in plans)
    best = {tuple(sorted(c.places[0])): (c.form, times) for c, times in plans[0].programs}
    assert best[36, 37, 38, 39, 40] == (Form.CHAINED, 19), "attention of the double blocks"
    assert best[120, 121, 122, 123, 124] == (Form.CHAINED, 38), "and of the single ones"
    assert best[112, 113, 114] == (Form.ROWS, 38), "norms of the single blocks"
    assert best[30, 31, 32, 33, 34, 35] == (Form.EPILOGUE, 19), "query, key and value of text and image"
    assert best[41, 42] == best[49, 50] == (Form.BESIDE, 19), "other layers of text and image"
    assert best[51, 52] == (Form.BESIDE, 18) and best[109, 110, 111] == (Form.EPILOGUE, 1), "the last ones are joined"
    assert best[125, 126] == (Form.JOINED, 38), "the two halves of a single block's last matmul"
    assert plans[0].saved_s == pytest.approx(plans[-1].seconds - plans[0].seconds)


def test_the_calls_by_a_plan_are_all_calls_of_the_model(
    flux: Workload,
    proposals: Proposals,
    plans: list[WorkloadPlan],
    alone_s: dict[str, float],
    expected: dict[Key, float],
) -> None:
    plan, *_ = as_deployed(plans, proposals, alone_s, expected)
    calls = {call.region: call.calls for call in planned(flux, plan.regions).calls}
    wanted = {candidate.region: times for candidate, times in plan.programs}
    assert {region: calls[region] for region in wanted} == wanted, "a program finds them where the plan has them"
    for call in flux.calls:
        inside = sum(times * region.kernels.count(call.region.kernel) for region, times in wanted.items())
        assert calls.get(call.region, 0) + inside == call.calls
    regions = {}
    for candidate, _ in plan.programs:
        parts_s = sum(alone_s[kernel.id] for kernel in candidate.region.kernels)
        regions[candidate.region.id] = row(candidate.region, parts_s - expected[key_of(candidate)])
    rows = rows_of(
        flux, [row(c.region, alone_s[c.region.id], calls=c.calls) for c in flux.calls], regions, plan.regions
    )
    assert sum(one.after_s for one in rows) == pytest.approx(plan.seconds)


def test_a_plan_costs_what_its_regions_cost_wherever_a_program_finds_them(
    flux: Workload, proposals: Proposals, alone_s: dict[str, float], expected: dict[Key, float]
) -> None:
    """Also where it wants a region in one of its places only: a program does not know which."""
    ((blocks, candidates),) = proposals.sequences
    key = next(key for key, c in proposals.candidates.items() if c.form == Form.CHAINED and len(c.places) > 2)
    one = next(c for c in candidates if key_of(c) == key)
    narrow = replace(proposals, sequences=((blocks, (replace(one, places=one.places[:1]),)),))
    wanted, alone = plans_of(narrow, alone_s, {key: expected[key]})
    everywhere = planned(flux, [one.region]).calls[-1].calls
    assert [times for _, times in wanted.programs] == [1.0] and everywhere > 1
    made, last = as_deployed([wanted, wanted, alone], narrow, alone_s, {key: expected[key]})
    assert [times for _, times in made.programs] == [everywhere] and not last.programs, "each once"
    assert made.saved_s == pytest.approx(everywhere * expected[key])
    assert made.saved_bytes == everywhere * one.saved_bytes
    assert made.seconds == pytest.approx(last.seconds - made.saved_s)


def test_plans_that_a_program_gets_as_they_are_cost_the_same(
    plans: list[WorkloadPlan], proposals: Proposals, alone_s: dict[str, float], expected: dict[Key, float]
) -> None:
    first, *_ = as_deployed(plans, proposals, alone_s, expected)
    (same,) = as_deployed([first], proposals, alone_s, expected)
    assert first.seconds == pytest.approx(same.seconds) and first.regions == same.regions
    assert plans[0].seconds <= first.seconds <= 1.001 * plans[0].seconds


@pytest.mark.slow
def test_as_many_plans_are_timed_as_there_can_be(
    proposals: Proposals, plans: list[WorkloadPlan], alone_s: dict[str, float], expected: dict[Key, float]
) -> None:
    """Also where the best plans of the sequence come to the same in a program."""
    assert len(as_deployed(plans, proposals, alone_s, expected)) <= PLANS
    timed = plans_to_time(proposals, alone_s, expected)
    assert len(timed) == PLANS + 1 and not timed[-1].programs
    assert len({frozenset(plan.regions) for plan in timed}) == len(timed)
    assert [plan.seconds for plan in timed] == sorted(plan.seconds for plan in timed)
    assert timed[0].seconds == as_deployed(plans, proposals, alone_s, expected)[0].seconds
    (alone,) = plans_to_time(proposals, alone_s, {})
    assert not alone.programs


@pytest.mark.slow
def test_the_plans_that_are_timed_are_the_best_of_all_sets_of_regions(
    proposals: Proposals, alone_s: dict[str, float], expected: dict[Key, float]
) -> None:
    """By all subsets of six regions that do not need each other's calls."""
    some, taken = dict[Key, float](), set[int]()
    for key, candidate in proposals.candidates.items():
        calls = {place for places in candidate.places for place in places}
        if len(some) < 6 and expected[key] > 0 and not calls & taken:
            some[key], taken = expected[key], taken | calls
    subsets = [s for n in range(len(some) + 1) for s in itertools.combinations(some, n)]
    times = {
        round(plans_of(proposals, alone_s, {key: some[key] for key in subset}, count=1)[0].seconds, 9)
        for subset in subsets
    }
    timed = plans_to_time(proposals, alone_s, some)
    assert [plan.seconds for plan in timed[:-1]] == pytest.approx(sorted(times)[:PLANS], abs=1e-8)


@pytest.mark.slow
def test_a_workspace_takes_memory_in_a_plan(
    proposals: Proposals, alone_s: dict[str, float], expected: dict[Key, float], plans: list[WorkloadPlan]
) -> None:
    most, (candidate, _) = max(one.peak_bytes for one in plans[0].sequences), plans[0].programs[0]
    held = {key_of(candidate): most}
    assert all(
        candidate.region not in plan.regions
        for plan in plans_of(proposals, alone_s, expected, memory_bytes=most, workspaces=held, count=1)
    )


def test_every_call_alone_is_the_sum_of_its_kernels(
    flux: Workload, plans: list[WorkloadPlan], alone_s: dict[str, float]
) -> None:
    assert plans[-1].seconds == pytest.approx(sum(call.calls * alone_s[call.region.id] for call in flux.calls))


def test_nothing_is_expected_to_be_faster_than_its_bytes(
    proposals: Proposals, alone_s: dict[str, float], expected: dict[Key, float]
) -> None:
    for key, candidate in proposals.candidates.items():
        parts_s = sum(alone_s[kernel.id] for kernel in candidate.region.kernels)
        assert parts_s - expected[key] >= candidate.bytes / 5e12


def test_what_the_best_plans_want_is_measured_until_nothing_can_be_better(
    proposals: Proposals, alone_s: dict[str, float], expected: dict[Key, float]
) -> None:
    rng = random.Random(0)
    true = {key: saving_s - abs(saving_s) * rng.uniform(0.0, 1.5) for key, saving_s in expected.items()}
    measured: dict[Key, float] = {}

    def best(savings: dict[Key, float]) -> list[WorkloadPlan]:
        return plans_of(proposals, alone_s, savings, count=1)[:1]

    while waiting := next_to_measure(now := best({**expected, **measured}), expected, measured):
        measured.update({key: true[key] for key in waiting})
    assert now[0].seconds == pytest.approx(best(true)[0].seconds)
    assert len(measured) < 0.7 * len(true), "most of the others cannot matter"


def overlapping(proposals: Proposals, expected: dict[Key, float]) -> tuple[Key, Key]:
    """A candidate, and one that has some of its calls wherever it occurs, and saves less."""
    places = {key: [frozenset(one) for one in c.places] for key, c in proposals.candidates.items()}
    return next(
        (large, small)
        for large, small in itertools.permutations(places, 2)
        if 0 < expected[small] < 0.8 * expected[large]
        and proposals.calls[large] == proposals.calls[small] > 1
        and all(any(one < other for other in places[large]) for one in places[small])
    )


def test_a_marginal_saving_is_what_the_best_plan_gains(
    proposals: Proposals, alone_s: dict[str, float], expected: dict[Key, float]
) -> None:
    large, small = overlapping(proposals, expected)
    calls, most_s = proposals.calls[large], expected[small]
    hoped = {large: expected[large], small: most_s}
    found = marginal_savings(proposals, alone_s, {}, hoped)
    assert found[small] == 0.0, "the larger one has its calls"
    assert found[large] == pytest.approx(calls * (expected[large] - most_s), rel=1e-6), "else the plan had the smaller"
    measured = {large: 0.25 * most_s}
    later = marginal_savings(proposals, alone_s, measured, {large: 0.5 * most_s, small: most_s})
    assert later[small] == pytest.approx(0.75 * calls * most_s, rel=1e-6), "the larger one was less than was hoped"
    assert later[large] == 0.0
    alone = marginal_savings(proposals, alone_s, measured, {large: 0.5 * most_s})
    assert alone == pytest.approx({large: 0.25 * calls * most_s}), "nothing else has its calls"


def kernels_of(proposals: Proposals, alone_s: dict[str, float]) -> Any:
    """The kernels of a workload, searched."""
    return [
        SimpleNamespace(id=call.region.id, call=call, best_s=alone_s[call.region.id])
        for call in proposals.workload.calls
    ]


def test_effort_goes_to_what_the_best_plan_would_gain_from(
    proposals: Proposals, alone_s: dict[str, float], expected: dict[Key, float]
) -> None:
    large, small = overlapping(proposals, expected)

    def work(key: Key, **changed: Any) -> Any:
        region = proposals.candidates[key].region
        call = SimpleNamespace(region=region, calls=proposals.calls[key])
        usual = {"call": call, "id": region.id, "others": {"tile": object()}, "searched": []}
        usual |= {"saving_s": 0.0, "found": [], "best_s": 0.0}
        return SimpleNamespace(**(usual | changed))

    kernels = kernels_of(proposals, alone_s)
    works = [work(large), work(small), work(small, id="parts", others={})]
    weights = region_search.ByPlan(proposals, kernels, works, H200)
    unmeasured = {one.id: math.inf for one in works}
    assert weights(unmeasured) == {large[0]: 1.0, small[0]: 0.0}, "only tile programs make another plan"
    works[0].searched.append({Schedule("tile", "{}"): None})  # measured, and slower than its parts
    assert weights({**unmeasured, large[0]: 1e-9}) == {large[0]: 0.0, small[0]: 1.0}
    assert weights({large[0]: 1e-3}) == pytest.approx({large[0]: 1.0}), "nothing else is hoped for"
    works[0].saving_s, works[0].found = works[0].call.calls * expected[large], ["a program"]
    assert weights({**unmeasured, large[0]: 1e-3}) == pytest.approx({large[0]: 1.0, small[0]: 0.0})
    assert weights({large[0]: 0.0}) == {large[0]: 0.0}
    in_place = saving_in_place_s(proposals.candidates[large], expected[large], alone_s)
    best, *_ = plans_of(proposals, alone_s, {large: in_place})
    assert weights.saved_s() == pytest.approx(best.saved_s) and best.saved_s > 0, "what was measured, and no more"
    # where kernels are searched beside them, those whose calls the plan has count where a region is refused
    found = weights({**unmeasured, large[0]: 1e-3} | {kernel.id: 1e-3 for kernel in kernels})
    inside = {kernel.id: count for kernel, count in Counter(proposals.candidates[large].region.own).items()}
    calls = {kernel.id: kernel.call.calls for kernel in kernels}
    shares = {name: count * proposals.calls[large] / calls[name] for name, count in inside.items()}
    assert max(shares.values()) == 1.0, "all calls of one are those of the region"
    assert {name: found[name] for name in calls} == pytest.approx(
        {name: 1.0 - (1.0 - REFUSED) * shares.get(name, 0.0) for name in calls}
    )
    works[0].saving_s = 0.0
    assert weights.saved_s() == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "lora_train"])
def test_a_plan_leaves_what_the_model_leaves(name: str) -> None:
    """Also where operands are made again."""
    proposals = propose(captured(name, "mini"))
    alone_s = {call.region.id: 1e-5 for call in proposals.workload.calls}
    savings = {key: 1e-6 * (1 + len(c.region.kernels)) + 1e-5 * len(c.again) for key, c in proposals.candidates.items()}
    best, *_ = plans_of(proposals, alone_s, savings)
    assert any(candidate.again for candidate, _ in best.programs)
    terms: dict[object, int] = {}
    for (blocks, _), plan in zip(proposals.sequences, best.sequences, strict=True):
        assert run(blocks.sequence, terms, plan) == run(blocks.sequence, terms) != {}


def test_memory_bounds_a_plan(
    proposals: Proposals, alone_s: dict[str, float], expected: dict[Key, float], plans: list[WorkloadPlan]
) -> None:
    most = max(plan.peak_bytes for plan in plans[-1].sequences)
    for plan in plans_of(proposals, alone_s, expected, memory_bytes=most):
        assert all(one.peak_bytes <= most for one in plan.sequences)


def test_the_parts_that_a_region_is_compared_with_are_the_best_known(proposals: Proposals) -> None:
    region = next(iter(proposals.candidates.values())).region
    best = {kernel.id: Schedule(ScheduleKind.OPTS, f'["{kernel.id[:4]}"]') for kernel in region.kernels}
    parts = parts_of(best_parts(region, best))
    assert [(part.places, part.schedule) for part in parts] == [
        ((i,), best[k.id]) for i, k in enumerate(region.kernels)
    ]
    with pytest.raises(ScheduleError, match="is known"):
        best_parts(region, {})


def test_only_what_is_faster_than_the_best_of_its_parts_is_an_option(proposals: Proposals) -> None:
    first, second, third, *_ = dict.fromkeys(c.region for c in proposals.candidates.values() if not c.again)
    rows = [row(first, 2.0, tile=True, before_s=5.0), row(second, 2.0, before_s=5.0), row(third, 2.0)]
    rows[0] = replace(rows[0], opts=replace(rows[0].baseline, cold_s=3.0))
    assert region_search.measured_savings(rows, proposals, {}) == {(first.id, ()): 1.0}
    assert among(proposals, lambda region: region == first).candidates.keys() == {(first.id, ())}


def test_a_region_saves_less_once_its_kernels_are_faster_than_when_it_was_judged(proposals: Proposals) -> None:
    """It joined a search that goes on with its kernels: 3 s for which it takes 2 are no saving where they take 1.5."""
    region = next(c.region for c in proposals.candidates.values() if not c.again)
    kernels = [row(Region((kernel,)), 1.0) for kernel in dict.fromkeys(region.kernels)]
    same = best_parts(region, {one.region.id: one.chosen.schedule for one in kernels})
    judged, before = row(region, 2.0, tile=True, before_s=5.0), Schedule(ScheduleKind.PARTS, "others")
    for schedule, taken_s, saved_s in (
        (before, 4.0, 1.0),
        (before, 3.0, 1.0),
        (before, 2.5, 0.5),
        (before, 1.5, None),
        (same, 2.5, 1.0),  # in other turns these took less
    ):
        judged = replace(judged, opts=replace(judged.baseline, cold_s=3.0, schedule=schedule))
        alone_s = {kernel.id: taken_s / len(region.kernels) for kernel in set(region.kernels)}
        found = region_search.measured_savings([*kernels, judged], proposals, alone_s)
        assert found == ({} if saved_s is None else {(region.id, ()): pytest.approx(saved_s)})


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [
        ([(True, 3.0), (True, 2.0), (True, 2.5)], 1),
        ([(False, 1.0), (None, 1.0), (True, 2.5)], 2),
        ([(True, 5.0), (False, 2.0), (None, None)], 2),  # slower than tinygrad's own
        ([(True, 5.0), (False, 2.0), (False, 3.0)], 0),  # the same, and the kernels alone are wrong
        ([(False, None), (True, None), (None, None)], 1),
        ([(None, None), (True, None), (None, None)], 1),  # what was seen to be right, before what was not seen
        ([(False, None), (None, None), (None, None)], 2),  # the second has most of what the first has
        ([(None, None), (None, None), (None, None)], 0),  # none was tried: each part of a plan was verified
        ([(False, None), (False, None), (False, None)], 2),
    ],
)
def test_the_whole_step_decides(steps: list[tuple[bool | None, float | None]], chosen: int) -> None:
    checks = [ModelCheck(passed, before_s=4.0 if after_s else None, after_s=after_s) for passed, after_s in steps]
    results = [replace(sample_result(), seed=number) for number in range(len(steps))]
    assert fastest_step(results, checks) == (results[chosen], checks[chosen])


def test_of_plans_without_a_verdict_none_is_taken_on_trust() -> None:
    results = [replace(sample_result(), seed=number) for number in range(3)]
    not_run = ModelCheck(None, "not run: there was no time")
    checks = [unclear("the script does not repeat itself"), not_run, not_run]
    assert fastest_step(results, checks) == (results[2], not_run)


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [
        ([2.5, 2.0, 3.0], 1),
        ([2.04, 2.0, 3.0], 0),  # as fast as the fastest, and expected to be the best
        ([2.0, 2.04, 3.0], 0),
        ([2.04, 2.5, 2.0], 2),  # by no more than noise, but slower than every kernel alone
        ([2.04, 2.02, 2.03], 1),
    ],
)
def test_of_steps_that_differ_by_noise_the_best_expected_is_chosen(steps: list[float], chosen: int) -> None:
    checks = [ModelCheck(True, before_s=4.0, after_s=seconds, spread_s=0.03) for seconds in steps]
    results = [replace(sample_result(), seed=number) for number in range(len(steps))]
    assert fastest_step(results, checks) == (results[chosen], checks[chosen])


def test_each_plan_and_why_one_was_chosen_is_kept() -> None:
    sample = sample_result()

    def result(*regions: str) -> Result:
        plan = TriedPlan(regions, 1.0 + len(regions), None, None, "not yet", chosen=True)
        return replace(sample, planning=Planning((), (plan,), "not yet", (), ()), seed=len(regions))

    results = [result("a", "b"), result("a"), result()]
    checks = [
        ModelCheck(False, "it differs", after_s=1.0),
        ModelCheck(True, after_s=2.0),
        ModelCheck(True, after_s=3.0),
    ]
    checks = [replace(check, before_s=4.0) for check in checks]
    chosen, seen = fastest_step(results, checks)
    assert chosen.planning is not None and seen == checks[1]
    assert chosen.planning.why == "its whole step is the fastest of 2 that are right"
    assert [(p.regions, p.step_s, p.passed, p.note, p.chosen) for p in chosen.planning.plans] == [
        (("a", "b"), 1.0, False, "it differs", False),
        (("a",), 2.0, True, "", True),
        ((), 3.0, True, "", False),
    ]


# ---- in a run


def joining_of(
    monkeypatch: pytest.MonkeyPatch,
    ready: Callable[[joining.Joining], None],
    works: list[Any],
    *,
    limit_s: float | None = 60.0,
    until_s: float = 1e6,
) -> tuple[joining.Joining, list[str], Callable[[], None]]:
    """Regions that get `ready` beside the search of kernels, what a run is warned of, and what ends its children."""
    warned, closing = list[str](), list[Callable[[], None]]()
    monkeypatch.setattr(joining.Joining, "_get_ready", ready)
    monkeypatch.setattr(joining, "weights_of", lambda proposed, target: lambda expected_s: {})
    device: Any = SimpleNamespace(
        close_too=closing.append, service=SimpleNamespace(target=H200), check_journal=lambda: None
    )
    looks: Any = SimpleNamespace(is_found=True, end=lambda: None)
    log: Any = SimpleNamespace(warn=warned.append)
    settings, budget = SimpleNamespace(effort="normal"), SimpleNamespace(limit_s=limit_s)
    until = time.monotonic() + until_s
    estimates: Any = SimpleNamespace(works=works, settings=settings, budget=budget, regions_until=lambda: until)
    made = joining.Joining(estimates, looks, device=device, log=log, ahead=looks, begun=lambda proposed: None)
    return made, warned, lambda: [close() for close in closing] and None


def next_of(joins: joining.Joining) -> Any:
    """What joins next, once it is ready."""
    found = list[Any]()
    waited(lambda: (one := joins.turn()) is not None and not found.append(one))
    return found[0]


def timed_kernel(seconds: float, *, searched: bool) -> Any:
    common = {"baseline_s": seconds, "before_s": seconds, "after_s": seconds, "stored": None, "is_missing": True}
    return SimpleNamespace(**common, others={"tile": object()}, searched=[{}] if searched else [])


def test_regions_get_ready_once_the_first_programs_of_kernels_that_matter_were_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the best expected plan join first, the others later; each joins once."""
    one, other = SimpleNamespace(), SimpleNamespace()
    first: Any = SimpleNamespace(estimates="first", timed=[one])
    both: Any = SimpleNamespace(estimates="both", timed=[one, other])
    go_on = threading.Event()

    def ready(self: joining.Joining) -> None:
        self._ready.append(first)
        go_on.wait()
        self._ready.append(both)

    works = [timed_kernel(1.0, searched=True), timed_kernel(0.5, searched=False), timed_kernel(0.01, searched=False)]
    joins, warned, _ = joining_of(monkeypatch, ready, works)
    assert joins.turn() is None and not joins.is_over and joins.proposed is None
    works[1].searched.append({})
    joined = next_of(joins)
    assert (joined.estimates, joined.works) == ("first", [one])
    assert joins.turn() is None and not joins.is_over
    go_on.set()
    joined = next_of(joins)
    assert (joined.estimates, joined.works) == ("both", [other])
    waited(lambda: joins.is_over)
    assert joins.proposed is both and joins.turn() is None
    joins.end(None)
    assert not warned


def test_of_a_budget_regions_get_ready_in_any_case_once_half_of_their_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proposed: Any = SimpleNamespace(estimates="both", timed=["a region"])
    kernels = [timed_kernel(1.0, searched=False)]
    joins, _, _ = joining_of(monkeypatch, lambda self: self._ready.append(proposed), kernels, until_s=0.0)
    assert next_of(joins).works == ["a region"]


def test_a_search_that_ends_before_regions_are_ready_goes_without_them_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joins, warned, _ = joining_of(monkeypatch, lambda self: None, [timed_kernel(1.0, searched=False)])
    joins.end(None)
    assert joins.proposed is None and joins.is_over
    assert warned == ["no region of several kernels was searched: the search was over before they were ready"]


def test_what_goes_wrong_while_regions_get_ready_is_raised_in_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless that is that the run's children were ended."""
    hold = threading.Event()

    def broken(self: joining.Joining) -> None:
        hold.wait()
        raise DeviceError("it is gone")

    kernel = timed_kernel(1.0, searched=True)
    joins, _, close = joining_of(monkeypatch, broken, [kernel])
    close()
    hold.set()
    waited(lambda: joins.is_over)
    assert joins.turn() is None
    joins, _, _ = joining_of(monkeypatch, broken, [kernel])
    with pytest.raises(DeviceError, match="it is gone"):
        next_of(joins)
    assert not joins.is_over
    with pytest.raises(DeviceError, match="it is gone"):  # also where the search ended before it saw that
        joins.end(None)


def test_what_gets_ready_while_others_join_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    first: Any = SimpleNamespace(estimates="first", timed=[])
    both: Any = SimpleNamespace(estimates="both", timed=[])

    class Growing(list[Any]):
        def __getitem__(self, place: Any) -> Any:
            found = super().__getitem__(place)
            if len(self) == 1:
                self.append(both)
            return found

    joins, _, _ = joining_of(monkeypatch, lambda self: None, [timed_kernel(1.0, searched=True)])
    waited(lambda: joins.has_all)
    joins._ready = Growing([first])
    assert next_of(joins).estimates == "first" and joins.proposed is first and not joins.is_over
    assert next_of(joins).estimates == "both" and joins.is_over


def test_nothing_of_regions_goes_to_the_device_once_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    joins, _, _ = joining_of(monkeypatch, lambda self: None, [timed_kernel(1.0, searched=True)])
    sent, works = list[object](), [Mock(others={}), Mock(others={})]
    monkeypatch.setattr(joining, "best_parts", lambda region, best: None)
    cast(Any, joins._device).measure_with_baseline = lambda work, others: sent.append(work) or []
    assert joins._begun(cast(Any, works), [], until=time.monotonic(), most=1) == [] == sent


def test_the_best_parts_of_a_region_are_timed_anew_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Any = Observation(Schedule(ScheduleKind.PARTS, "now"), Status.OK, 1.0, "now")
    answers, never, kept, asked = Future[Observation](), Future[Observation](), list[Observation](), list[object]()
    answers.set_result(seen)
    monkeypatch.setattr(region_search, "best_parts", lambda region, best: seen.schedule)
    work = Mock(known={}, keep=kept.append)
    now = time.monotonic()
    for future, until, wanted in ((answers, now + 60, [seen]), (never, now + 0.1, []), (answers, now, [])):
        device: Any = SimpleNamespace(measure=lambda of, batch, future=future: asked.append(batch) or [future])
        estimates = SimpleNamespace(works=[], judge_until=lambda until=until: until)
        region_search.freshener(cast(Any, SimpleNamespace(estimates=estimates)), device)(work)
        assert kept == wanted
        kept.clear()
    assert asked == [[seen.schedule]] * 2, "nothing more once judging is to end"


def test_a_search_without_a_budget_goes_on_until_the_first_regions_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """They get ready in any case once it had its time, whatever is not begun."""
    hold, some = threading.Event(), SimpleNamespace(estimates="some", timed=[])

    def ready(self: joining.Joining) -> None:
        hold.wait()
        self._ready.append(cast(Any, some))

    kernel = timed_kernel(1.0, searched=False)
    monkeypatch.setitem(cast(Any, EFFORTS), "normal", Effort(0.1, 1e-4))
    joins, _, _ = joining_of(monkeypatch, ready, [kernel], limit_s=None)
    budget = Budget(started=0.0, limit_s=None, measurements=None)
    budget.search_until(time.monotonic())
    searching: Any = SimpleNamespace(joins=joins, budget=budget, ledger=budget.ledger, works=[Mock(proposed=False)])

    def left_s() -> float:
        search._Search._await_first(searching)
        assert budget.ledger.deadline is not None
        return budget.ledger.deadline - time.monotonic()

    assert left_s() > 1.0 and not budget.ledger.exhausted
    hold.set()
    assert next_of(joins).estimates == "some"
    budget.search_until(time.monotonic())
    waited(lambda: joins.is_over)
    assert left_s() <= 0.0


def test_regions_join_the_search_of_kernels_are_judged_and_planned(tmp_path: Path) -> None:
    """Where there is no program for a region its search varies its parts: no plan has any of it, all kernels stay."""
    settings = Settings(str(SCRIPT), device=os.environ["DEV"], measurements=30, folder=tmp_path / "out", regions=True)
    with begun(settings) as run:
        estimates, shown = run.estimates(run.measured(meanwhile=run.guide.read)), list[region_search.Proposed]()
        looks = proposing.Proposing(run.captured.workload, run.device, run.log, usable=lambda region: True)
        looks.begin()
        early: Any = SimpleNamespace(prepare=lambda works: None)
        joins = joining.Joining(estimates, looks, device=run.device, log=run.log, ahead=early, begun=shown.append)
        waited(lambda: joins.has_all)
        best = region_search.best_schedules(run.works)
        kernels = region_search.search(estimates, run.guide, device=run.device, log=run.log, joins=joins)
        joins.end(None)
        (proposed,) = shown
        assert joins.proposed is proposed and joins.is_over
        assert proposed.works and all(work.proposed for work in proposed.works)
        assert kernels.works == [*run.works, *proposed.timed]
        for work in proposed.works:
            assert best_parts(work.call.region, best) in work.known, "measured as one program"
            assert work.call.region.id in run.journal.regions()
        assert any(work.tried > 1 for work in proposed.timed), "they have more to gain than a kernel each"
        assert any(work.id in kernels.expected for work in run.works), "which are searched too"
        proposed = replace(proposed, candidates=replace(kernels, works=proposed.estimates.works))
        results = run.judge(proposed.estimates, proposed.candidates).run()
        assert len(results.rows) == len(run.works) + len(proposed.works)
        (alone,) = region_search.variants(results, proposed, run.captured.workload)
        assert [one.region.id for one in alone.rows] == [work.call.region.id for work in run.works]
        alone_s = {r.region.id: r.chosen.cold_s for r in results.rows if not r.region.args}
        faster, body = [], TileParameters("rows", ((0,),), (16,), reduce_tile=128).to_json()
        for r in results.rows:
            if r.region.args:  # as parts it takes what its kernels take alone, whatever the clock said of both
                parts = replace(r.baseline, cold_s=sum(alone_s[kernel.id] for kernel in r.region.kernels))
                made = replace(parts, cold_s=1e-9, schedule=Schedule("tile", body))
                r = replace(r, outcome="improved", baseline=parts, opts=None, chosen=made)
            faster.append(r)
        first, *_, last = region_search.variants(RegionResults(tuple(faster)), proposed, run.captured.workload)
        assert any(len(one.region.kernels) >= 3 for one in first.rows), "the norm and more, as a program of 1 ns"
        assert sum(one.calls * len(one.region.kernels) for one in first.rows) == sum(one.calls for one in last.rows)
        needed, judged = region_search.needed_by_plans(proposed), {}
        for work, row in zip(proposed.candidates.works, faster, strict=True):
            judged[work.id] = row
        in_plan = {one.region.id for one in first.rows if one.region.args}
        assert not needed({}), "the search found no program"
        assert in_plan <= needed(judged)
        some = {name: row for name, row in judged.items() if row.region.id in in_plan}
        for known in ({}, some):
            so_far = region_search.best_so_far(run.works, known, proposed, run.captured.workload, why="it was killed")
            assert {one.region.id for one in so_far.rows if one.region.args} == (in_plan if known else set())
            assert {one.region.id for one in so_far.rows if one.chosen != one.baseline} == {
                row.region.id for row in known.values()
            }, "nothing that was not judged"
            assert so_far.planning is not None and so_far.planning.why == region_search.UNTRIED
        lost = {name: replace(row, outcome="kept") if row.region.args else row for name, row in judged.items()}
        assert not needed(lost)
        found = Schedule("tile", body)
        region = next(work for work in proposed.works if work.call.region.id in in_plan)
        region.seen_of("tile")[found] = Observation(found, Status.OK, 1e-9, "tile")
        assert needed({}) == {region.call.region.id}, "by the times of the search"
        result = run.result(kernels, first)
        assert len(result.regions) == len(first.rows)
        planning = result.planning
        assert planning is not None and from_dict(to_dict(result)) == result
        several = [one for one in first.rows if one.region.args]
        assert {one.region for one in planning.regions} == {one.region.id for one in several}
        for one in planning.regions:
            (of,) = [row for row in several if row.region.id == one.region]
            assert one.calls == of.calls and len(one.kernels) == len(of.region.kernels) and one.form in set(Form)
            assert one.saved_s == pytest.approx(of.baseline.cold_s - 1e-9) and one.saved_bytes > 0
        shown = {row.region.id for row in result.regions}
        alone_rows = {row.region.id: row for row in last.rows}
        assert {row.region.id for row in planning.inside} == alone_rows.keys() - shown != set()
        assert all(row.chosen == alone_rows[row.region.id].chosen for row in planning.inside)
        assert last.planning is not None and not last.planning.regions and not last.planning.inside
        counts = sum(count for _, count in planning.passed_over)
        assert counts == len(proposing.propose(run.captured.workload).regions) - len(several)


@pytest.mark.slow
def test_what_is_worth_nothing_is_not_searched(tmp_path: Path) -> None:
    settings = Settings(str(SCRIPT), device=os.environ["DEV"], measurements=9, folder=tmp_path / "out")
    with begun(settings) as run:
        estimates, asked = run.estimates(run.measured(meanwhile=run.guide.read)), list[Mapping[str, float]]()
        first, *others = sorted(run.works, key=lambda work: -work.before_s)

        class OfOne(Weights):
            def __call__(self, expected_s: Mapping[str, float]) -> Mapping[str, float]:
                asked.append(expected_s)
                return {work.id: 0.0 for work in others}

        region_search.search(estimates, run.guide, device=run.device, log=run.log, weights=OfOne())
        assert first.tried and not any(work.tried for work in others)
        assert asked[0].keys() == {work.id for work in run.works}
        assert all(saved_s > 0 for saved_s in asked[0].values()), "each would save something of its own"


def test_the_best_total_of_a_search_has_what_regions_save_by_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks at the plan it is the last one's, or what kernels alone take by then where that is less."""

    class Saving(Weights):
        def saved_s(self) -> float:
            return 0.4

    shown = list[Any]()
    kernel = SimpleNamespace(proposed=False, best_s=1.0, after_s=1.0)
    monkeypatch.setattr(search, "Allocator", object)
    one = search._Search.__new__(search._Search)
    facts = {
        "works": [kernel, SimpleNamespace(proposed=True, best_s=0.0, after_s=9.0)],
        "estimates": SimpleNamespace(expected_s=lambda: None, measured=SimpleNamespace(timed=[kernel])),
        "ledger": SimpleNamespace(measurements=3),
        "settings": SimpleNamespace(measurements=None),
        "log": SimpleNamespace(show=lambda total_s, **more: shown.append(total_s)),
        "allocator": SimpleNamespace(entries=[], limits=None),
        "weights": Weights(),
    }
    for name, value in {**facts, "tail": None, "_planned_s": math.inf, "_limits": lambda: None}.items():
        setattr(one, name, value)
    one._show()
    one._weigh()
    one._show()
    one.weights = Saving()
    one._weigh()
    one._show()
    kernel.after_s = 0.7
    one._show()
    kernel.after_s = 0.5
    one._show()
    assert shown == [1.0, 1.0, 0.6, 0.6, 0.5]


def test_what_was_expected_of_regions_that_no_plan_has_is_kept() -> None:
    plan, seen = sample_plan(), sample_result().expectations[0]
    assert plan.planning is not None
    (several, *_) = [row for row in plan.regions if row.region.args]
    other = replace(several.region, outputs=(1,))
    calls = [SimpleNamespace(region=region, variables=()) for region in (several.region, other)]
    timed = [SimpleNamespace(call=call) for call in calls]
    beside = region_search.searched_beside(cast(Any, SimpleNamespace(timed=timed)), plan.regions, plan.deployed)
    assert [(one.region, len(one.kernels)) for one in beside] == [(other.id, len(other.kernels))]
    assert beside[0].kernels == tuple(
        next(row.baseline.name for row in plan.deployed if row.region.id == kernel.id) for kernel in other.kernels
    )
    planning = replace(plan.planning, searched=beside)
    rows = RegionResults(plan.regions, planning=planning)
    unknown = SimpleNamespace(region=replace(several.region, outputs=(0, 1)), variables=())
    found = expectations_of([(cast(Any, call), seen) for call in (*calls, unknown)], rows)
    result = replace(plan, planning=planning, expectations=found)
    assert [one.region for one in found] == [plan.regions.index(several), len(plan.with_inside)]
    assert from_dict(to_dict(result)) == result


def test_kernels_that_the_first_search_did_not_come_to_are_begun_before_regions_are_searched() -> None:
    kept, start = list[Observation](), Schedule(ScheduleKind.TILE, "the start")

    def work(**changed: Any) -> Any:
        others = {"tile": SimpleNamespace(start=lambda: start)}
        usual = {"baseline_s": 1e-3, "before_s": 1e-3, "others": others, "searched": [], "stored": None}
        usual |= {"keep": kept.append}
        return SimpleNamespace(**(usual | changed))

    kernels = [work(), work(others={}), work(searched=[{start: None}]), work(before_s=1e-6), work(baseline_s=None)]
    late = region_search.not_come_to(kernels, least_s=1e-5)
    assert late == kernels[:1]
    waits, answers = Future[Observation](), Future[Observation]()
    answers.set_result(seen := Observation(start, Status.OK, 1e-5, "binary"))
    for future, expected in ((waits, []), (answers, [seen])):
        device: Any = SimpleNamespace(measure=lambda of, batch, future=future: [future] if batch == [start] else [])
        region_search._measure_starts(late, device, until=time.monotonic())
        assert kept == expected, "what is not there in time is not waited for"


def test_regions_that_did_not_run_as_their_best_parts_in_time_are_not_searched(flux: Workload) -> None:
    """Against tinygrad's own parts alone a program would seem to save what its kernels save by themselves."""
    kernel = flux.calls[0].region
    own = Schedule(ScheduleKind.OPTS, "[]")
    region = Region((kernel.kernels[0],) * 2, ((0, 1), (2, 0)), (2,))
    statuses = (Status.OK, Status.NOISY, None)
    works: Any = [SimpleNamespace(call=SimpleNamespace(region=region), keep=lambda seen: None) for _ in statuses]
    kernels: Any = [
        SimpleNamespace(
            call=SimpleNamespace(region=kernel),
            best=Observation(own, Status.OK, 1.0, "own"),
            best_s=1.0,
        )
    ]

    def measure(work: Any, batch: Any, known_s: float) -> list[Any]:
        assert known_s == 2.0, "what its kernels take: ten times faster than tinygrad's own is then no surprise"
        return [sent[works.index(work)]]

    device: Any = SimpleNamespace(measure=measure)
    sent = [Future[Observation]() for _ in statuses]
    for future, status in zip(sent, statuses, strict=True):
        if status is not None:
            future.set_result(Observation(own, status, 1.0, "parts"))
    assert region_search._with_best_parts(works, kernels, device, until=0.0) == works[:1]


def test_what_nobody_looked_at_in_time_has_no_program(proposals: Proposals) -> None:
    there = Future[str]()
    there.set_result("")
    first, *others = dict.fromkeys(candidate.region for candidate in proposals.candidates.values())
    service: Any = SimpleNamespace(
        target=H200, beside=lambda job, region, *more, timeout_s: there if region == first else Future()
    )
    usable = proposing.has_programs(proposals, service, until=lambda: 0.0)
    assert usable(first) and not any(map(usable, others))


def test_first_programs_are_compiled_while_kernels_are_searched_and_no_more_once_regions_are_asked_for(
    proposals: Proposals, alone_s: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposing, "propose", lambda workload: proposals)
    kernels: Any = [
        SimpleNamespace(
            call=SimpleNamespace(region=call.region), best_s=alone_s[call.region.id], others={}, searched=[]
        )
        for call in proposals.workload.calls
    ]
    asked, compiled = list[str](), threading.Semaphore(0)

    def first_programs(works: Any) -> dict[str, list[Future[str]]]:
        for work in works:
            if work.id not in asked:
                compiled.acquire()
                asked.append(work.id)
        (one := Future[str]()).set_result("")
        return {work.id: [one] for work in works}

    begun = list[str]()

    def begin_references(region: Region, values: object) -> None:
        begun.append(region.id)

    service = SimpleNamespace(target=H200, compile_workers=4, begin_references=begin_references)
    device: Any = SimpleNamespace(
        service=service,
        close_too=lambda close: None,
        first_programs=first_programs,
        spaces_of=lambda workload: [
            SimpleNamespace(id=call.region.id, call=call, bindings=((),)) for call in workload.calls
        ],
    )
    log: Any = SimpleNamespace(jobs=SimpleNamespace(doing=lambda *what: contextlib.nullcontext()))
    prepared = list[list[str]]()
    monkeypatch.setattr(proposing, "FIRSTS", 2)
    found = proposing.Proposing(
        proposals.workload,
        device,
        log,
        usable=lambda region: True,
        prepare=lambda works: prepared.append([work.id for work in works if work.id in begun]),
    )
    found.begin()
    found.timed(kernels)
    compiled.release(3)
    wait_until(lambda: len(asked) == 3)
    order = [region.id for region in proposing.regions_of(proposals, alone_s, H200)]
    assert asked == order[:3] and len(order) > 4
    found.end()
    compiled.release()
    assert found.found() == (proposals, proposals) and asked == order[:4]
    assert prepared == [order[:1], *[order[:2]] * 3], "what judging the best expected plan needs, again and again"


def test_where_nothing_is_compiled_it_is_looked_for_where_programs_begin(
    proposals: Proposals, alone_s: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a run that measures nothing, which has programs compiled of the best expected plans alone."""
    monkeypatch.setattr(proposing, "propose", lambda workload: proposals)
    monkeypatch.setattr(proposing, "expected_alone_s", lambda kernels: alone_s)
    sought = list[str]()
    device: Any = SimpleNamespace(
        service=SimpleNamespace(target=H200),
        close_too=lambda close: None,
        find_starts=lambda works: sought.extend(work.call.region.id for work in works),
        spaces_of=lambda workload: [SimpleNamespace(call=call) for call in workload.calls],
    )
    log: Any = SimpleNamespace(jobs=SimpleNamespace(doing=lambda *what: contextlib.nullcontext()))
    kernels: Any = [object()]
    found = proposing.Proposing(proposals.workload, device, log, usable=lambda region: True, compiles=False)
    order = [region.id for region in proposing.regions_of(proposals, alone_s, H200)]
    found.begin(kernels)
    wait_until(lambda: len(sought) == len(order))
    assert sought == order and found.found() == (proposals, proposals)
    first = next(iter(proposals.regions))
    assert among(proposals, {first}.__contains__).call_of(first) is proposals.call_of(first), "planned once"


def begun_beside(
    proposals: Proposals, monkeypatch: pytest.MonkeyPatch, beside: Callable[..., Future[str]]
) -> tuple[proposing.Proposing, list[Callable[[], None]]]:
    """One that looks in a thread for what `beside` says has a program; what ends with the processes of its run."""
    monkeypatch.setattr(proposing, "propose", lambda workload: proposals)
    closing = list[Callable[[], None]]()
    service = SimpleNamespace(target=H200, compile_workers=4, beside=beside)
    device: Any = SimpleNamespace(service=service, close_too=closing.append)
    log: Any = SimpleNamespace(jobs=SimpleNamespace(doing=lambda *what: contextlib.nullcontext()))
    found = proposing.Proposing(proposals.workload, device, log)
    found.begin()
    return found, closing


def test_what_is_looked_at_beside_all_else_is_not_waited_for_longer_than_there_is_time(
    proposals: Proposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is compiled once they are asked for: no cost of a kernel is looked at either."""
    monkeypatch.setattr(proposing, "expected_alone_s", None)
    found, _ = begun_beside(proposals, monkeypatch, lambda *asked, timeout_s: Future[str]())
    lines = list[str]()
    with reported_to(lines.append):
        everything, usable = found.found(until=time.monotonic())
    assert everything is proposals and not usable.candidates and not lines


def test_looking_for_regions_ends_with_the_processes_of_the_run(
    proposals: Proposals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is interrupted never asks for them."""
    (nothing := Future[str]()).set_result("")
    found, closing = begun_beside(proposals, monkeypatch, lambda *asked, timeout_s: nothing)
    (thread,) = (one for one in threading.enumerate() if one.name == "kcg-regions")
    for close in closing:
        close()
    thread.join(60.0)
    assert not thread.is_alive()
    found.end()


def test_a_look_that_fails_unexpectedly_is_told_with_its_place(proposals: Proposals) -> None:
    """Neither a refusal nor a run that goes on hides it; other regions keep their programs."""
    regions = list(dict.fromkeys(candidate.region for candidate in proposals.candidates.values()))
    answers: list[str | Exception] = ["", UnsupportedTile("rows"), ValueError("min() arg is an empty sequence")]
    looks = [Future[str]() for _ in answers]
    for look, answer in zip(looks, answers, strict=True):
        look.set_exception(answer) if isinstance(answer, Exception) else look.set_result(answer)
    by_region = dict(zip(regions, looks, strict=False))
    service: Any = SimpleNamespace(
        target=H200, beside=lambda job, region, *more, timeout_s: by_region.get(region, Future())
    )
    lines: list[str] = []
    with reported_to(lines.append):
        usable = proposing.has_programs(proposals, service, until=lambda: 0.0)
        assert [usable(region) for region in regions[:3]] == [True, False, False]
    (line,) = lines
    assert "ValueError: min() arg is an empty sequence" in line


def test_a_plan_counts_nothing_of_a_region_whose_first_program_does_not_compile(
    proposals: Proposals, alone_s: dict[str, float], expected: dict[Key, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that have calls in common the better one does not compile, or not in time: the plan has the other one, in
    whose search the time goes."""
    large, small = overlapping(proposals, expected)
    kernels = kernels_of(proposals, alone_s)

    def work(key: Key) -> Any:
        region = proposals.candidates[key].region
        call = SimpleNamespace(region=region, calls=proposals.calls[key])
        return SimpleNamespace(
            call=call, id=region.id, others={"tile": object()}, searched=[], saving_s=0.0, stored=None
        )

    works = {key: work(key) for key in (large, small)}
    monkeypatch.setattr(
        region_search,
        "works_of",
        lambda left, kernels, device: [one for key, one in works.items() if key in left.candidates],
    )
    compiled, failed = Future[Schedule](), Future[Schedule]()
    compiled.set_result(Schedule("tile", "{}"))
    failed.set_exception(ScheduleError("it takes 270,592 bytes of shared memory, of 232,448"))
    for bad in (failed, Future[Schedule]()):
        first = {large[0]: bad, small[0]: compiled}
        device: Any = SimpleNamespace(
            first_programs=lambda asked, first=first: {one.id: [first[one.id]] for one in asked}
        )
        left, found, more = region_search._that_compile(
            proposals, kernels, list(works.values()), device=device, until=0.0
        )
        assert found == [works[small]] and not more and large not in left.candidates
        weights = region_search.ByPlan(left, kernels, found, H200)
        assert weights({small[0]: math.inf}) == {small[0]: 1.0}
        best, *_ = plans_of(left, alone_s, {key: expected[key] for key in left.candidates})
        assert all(candidate.region.id != large[0] for candidate, _ in best.programs)


@pytest.mark.slow
def test_a_run_goes_on_where_a_look_fails_and_says_so_in_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("min() arg is an empty sequence")

    monkeypatch.setattr("kcg.kernel.regions._Read", broken)
    regions._looked_at.cache_clear()
    settings = Settings(
        str(SCRIPT), device=os.environ["DEV"], measurements=8, folder=tmp_path / "out", regions=True, script_check=False
    )
    try:
        finished = whole_run(settings)
    finally:
        regions._looked_at.cache_clear()
    said = [line for line in read_result(finished.result_path).warnings if "failed unexpectedly" in line]
    assert len(said) == 1 and said[0].endswith("ValueError: min() arg is an empty sequence")


@pytest.mark.slow
def test_a_run_writes_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here no region has a program of its own: every kernel stays alone, and it is said why."""
    monkeypatch.setattr(proposing, "has_programs", lambda proposals, service, until: lambda region: True)
    settings = Settings(
        str(SCRIPT),
        device=os.environ["DEV"],
        measurements=8,
        folder=tmp_path / "out",
        regions=True,
        script_check=False,
    )
    finished = whole_run(settings)
    planning = read_result(finished.result_path).planning
    assert planning is not None and not planning.regions and planning.passed_over
    assert [(plan.regions, plan.chosen) for plan in planning.plans] == [((), True)]
    assert "every kernel stays alone" in finished.report_path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_run_says_that_there_is_no_program_for_a_region(tmp_path: Path) -> None:
    dev, folder = os.environ["DEV"], tmp_path / "out"
    settings = Settings(str(SCRIPT), device=dev, measurements=8, folder=folder, regions=True, script_check=False)
    finished = whole_run(settings)
    result = read_result(finished.result_path)
    assert any("no region of several kernels was searched: there is no program" in line for line in result.warnings)
    assert all(len(one.region.kernels) == 1 for one in result.regions)
