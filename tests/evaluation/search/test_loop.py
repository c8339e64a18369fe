"""The loop of a run: what starts when, by what is expected; and that this never changes what is verified."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from evaluation.search.loop import (
    CORE,
    DEVICE,
    Chain,
    Outcome,
    Resources,
    Solved,
    State,
    Task,
    Verified,
    add,
    done,
    next_jobs,
    started,
)
from kcg.types import JobKind


def kernels_alone(calls: Mapping[str, float], joined: Mapping[str, frozenset[str]] = {}) -> object:
    """The best plan of kernels, and of regions that each may run in the place of some, one of them at most."""

    def solve(seconds: Mapping[str, float]) -> Solved:
        alone = {kernel: calls[kernel] * seconds[kernel] for kernel in calls}
        plans = [Solved(sum(alone.values()), frozenset(alone))]
        for region, kernels in joined.items():
            if region in seconds:
                left = alone.keys() - kernels
                plans.append(Solved(sum(alone[k] for k in left) + seconds[region], frozenset({region, *left})))
        return min(plans, key=lambda plan: plan.seconds)

    return solve


def state_of(
    own: Mapping[str, float],
    joined: Mapping[str, frozenset[str]] = {},
    *,
    resources: Resources = Resources(4),  # noqa: B008
) -> State:
    solve = kernels_alone(dict.fromkeys(own, 1.0), joined)
    return State(solve, own, resources, least=0.0)  # type: ignore[arg-type]


def judging(
    region: str,
    seconds: float,
    judge_s: float,
    *,
    late_s: float = 0.0,
    passes: float = 1.0,
    after: tuple[str, ...] = (),
    number: int = 0,
    kernels: frozenset[str] = frozenset(),
) -> Chain:
    """A program that was timed and is not judged."""
    task = Task(
        f"judge {region} {number}",
        JobKind.PAIRED,
        region,
        DEVICE,
        judge_s,
        late_s or judge_s,
        passes=passes,
        counts=1.0,
        after=after,
    )
    return Chain(f"{region} {number}", region, 1.0, seconds, 0.0, (task,), kernels or frozenset([region]))


def timing(region: str, seconds: float, deviation: float, *, number: int = 1, time_s: float = 1.0) -> Chain:
    """A program that is compiled and neither timed nor judged."""
    chain = judging(region, seconds, 1.0, number=number)
    task = Task(f"time {region} {number}", JobKind.TIME, region, DEVICE, time_s, time_s)
    return replace(chain, deviation=deviation, tasks=(task, *chain.tasks))


def ids(tasks: Sequence[Task]) -> list[str]:
    return [task.id for task in tasks]


def run(state: State, true_s: Mapping[str, float], failing: frozenset[str], deadline: float = math.inf) -> tuple:
    """What was verified, in the order of its end, and the plan's seconds integrated over time."""
    now, waiting, order, area, plan = 0.0, list[tuple[float, str]](), list[str](), 0.0, state.incumbent.seconds
    while True:
        for task in next_jobs(state, now, deadline):
            state = started(state, [task], now)
            heapq.heappush(waiting, (now + true_s[task.id], task.id))
        if not waiting or waiting[0][0] > deadline:
            return state, order, area
        at, task_id = heapq.heappop(waiting)
        area, now = area + (at - now) / plan, at
        state = done(state, task_id, Outcome(task_id not in failing))
        plan = state.incumbent.seconds
        order.append(task_id)


# ---- order


def test_what_gains_most_a_second_of_the_device_is_judged_first() -> None:
    state = add(state_of({"a": 9.0, "b": 9.0, "c": 9.0}), [judging("a", 5, 4), judging("b", 6, 1), judging("c", 8, 2)])
    assert ids(next_jobs(state, 0.0)) == ["judge b 0"]


def test_a_cheap_judgement_comes_before_one_of_the_same_gain() -> None:
    state = add(state_of({"a": 9.0, "b": 9.0}), [judging("a", 5, 20), judging("b", 5, 1)])
    assert ids(next_jobs(state, 0.0)) == ["judge b 0"]


def test_what_is_likely_to_fail_waits() -> None:
    state = add(state_of({"a": 9.0, "b": 9.0}), [judging("a", 5, 1, passes=0.2), judging("b", 6, 1)])
    assert ids(next_jobs(state, 0.0)) == ["judge b 0"]


def test_the_device_does_not_wait_for_a_reference_and_that_is_begun_at_once() -> None:
    state = add(
        state_of({"a": 90.0, "b": 9.0}),
        [judging("a", 5, 1, after=("reference",)), judging("b", 8, 1)],
        [Task("reference", JobKind.REFERENCE, "a", CORE, 30.0, 30.0)],
    )
    assert ids(next_jobs(state, 0.0)) == ["judge b 0", "reference"]
    state = started(state, next_jobs(state, 0.0), 0.0)
    assert next_jobs(state, 0.5) == []
    state = done(done(state, "judge b 0", Outcome(True)), "reference", Outcome(True))
    assert ids(next_jobs(state, 30.0)) == ["judge a 0"]


def test_nothing_else_runs_while_a_cpu_takes_samples() -> None:
    quiet = state_of({"a": 9.0, "b": 9.0}, resources=Resources(4, quiet=True))
    reference = Task("reference", JobKind.REFERENCE, "b", CORE, 5.0, 5.0)
    state = add(quiet, [judging("a", 1, 1), judging("b", 8, 1, after=("reference",))], [reference])
    first = next_jobs(state, 0.0)
    assert ids(first) == ["judge a 0"]
    state = started(state, first, 0.0)
    assert next_jobs(state, 0.5) == []
    assert ids(next_jobs(done(state, "judge a 0", Outcome(True)), 1.0)) == ["reference"]


def compiling(region: str, seconds: float, compile_s: float, *, number: int = 0) -> Chain:
    """A program that only has to be compiled and judged."""
    chain = judging(region, seconds, 1.0, number=number)
    task = Task(f"compile {region} {number}", JobKind.COMPILE, region, CORE, compile_s, compile_s)
    return replace(chain, deviation=0.01, tasks=(task, *chain.tasks))


def test_a_core_begins_with_what_gains_most_however_long_it_takes() -> None:
    state = state_of({"a": 90.0, "b": 9.0}, resources=Resources(1))
    assert ids(next_jobs(add(state, [compiling("a", 45, 30), compiling("b", 1, 1)]), 0.0)) == ["compile a 0"]


def test_a_core_leaves_a_second_program_while_the_first_is_judged() -> None:
    state = state_of({"a": 9.0, "b": 9.0}, resources=Resources(1))
    state = add(state, [judging("a", 3.0, 1.0), compiling("a", 2.99, 1.0, number=1), compiling("b", 8.0, 1.0)])
    assert ids(next_jobs(state, 0.0)) == ["judge a 0", "compile b 0"]


def test_memory_bounds_what_runs_at_once() -> None:
    state = state_of({"a": 9.0, "b": 9.0}, resources=Resources(4, memory_bytes=100))
    references = [Task(f"reference {n}", JobKind.REFERENCE, n, CORE, 5.0, 5.0, memory_bytes=60) for n in "ab"]
    chains = [judging(n, 5, 1, after=(f"reference {n}",)) for n in "ab"]
    assert len(next_jobs(add(state, chains, references), 0.0)) == 1


# ---- the plan


JOINED = {"ab": frozenset("ab")}


def test_a_region_that_is_ready_comes_before_the_kernels_that_it_replaces() -> None:
    own = {"a": 9.0, "b": 9.0, "c": 9.0}
    region = replace(judging("ab", 2.0, 2.0), kernels=frozenset("ab"))
    state = add(state_of(own, JOINED), [judging("a", 3, 1), judging("b", 3, 1), region, judging("c", 8, 1)])
    assert ids(next_jobs(state, 0.0)) == ["judge ab 0"]
    state = done(started(state, next_jobs(state, 0.0), 0.0), "judge ab 0", Outcome(True))
    assert ids(next_jobs(state, 2.0)) == ["judge c 0"], "what a region took gains nothing"


def test_a_region_that_is_soon_there_comes_before_a_kernel_that_gains_more_a_second() -> None:
    region = replace(judging("ab", 11.0, 1.9), kernels=frozenset("ab"))
    state = add(state_of({"a": 9.0, "b": 9.0, "c": 9.0}, JOINED), [judging("a", 3, 1), region])
    assert ids(next_jobs(state, 0.0)) == ["judge ab 0"]
    alone = add(state_of({"a": 9.0, "b": 9.0, "c": 9.0}, JOINED), [judging("a", 2.0, 1), region])
    assert ids(next_jobs(alone, 0.0)) == ["judge a 0"], "the plan that is expected has the kernel"


def test_kernels_are_judged_meanwhile_where_a_region_has_to_wait() -> None:
    region = replace(judging("ab", 2.0, 2.0, after=("reference",)), kernels=frozenset("ab"))
    reference = Task("reference", JobKind.REFERENCE, "ab", CORE, 60.0, 60.0)
    chains = [judging("a", 3, 1), region, judging("c", 8.9, 1)]
    state = add(state_of({"a": 9.0, "b": 9.0, "c": 9.0}, JOINED), chains, [reference])
    assert ids(next_jobs(state, 0.0)) == ["judge a 0", "reference"]


def test_where_a_region_fails_its_kernels_are_judged() -> None:
    region = replace(judging("ab", 2.0, 2.0), kernels=frozenset("ab"))
    state = add(state_of({"a": 9.0, "b": 9.0}, JOINED), [judging("a", 3, 1), region])
    state = done(started(state, next_jobs(state, 0.0), 0.0), "judge ab 0", Outcome(False))
    assert ids(next_jobs(state, 2.0)) == ["judge a 0"] and state.verified == ()


# ---- searching on


def test_a_further_measurement_is_worth_what_it_may_gain() -> None:
    own = {"a": 9.0, "b": 9.0}
    hopeful, settled = timing("a", 8.0, 0.5), timing("b", 8.0, 0.01)
    state = add(state_of(own), [settled, hopeful])
    assert ids(next_jobs(state, 0.0)) == ["time a 1"], "the less certain may gain more"


def test_the_search_of_a_region_stops_by_itself() -> None:
    state = replace(state_of({"a": 9.0}), verified=(Verified("a 0", "a", 2.0, 1.0),), least=1e-5)
    assert next_jobs(add(state, [timing("a", 3.0, 0.05)]), 0.0) == []
    assert ids(next_jobs(add(state, [timing("a", 2.1, 0.2)]), 0.0)) == ["time a 1"]


def test_a_second_program_waits_while_a_first_is_about_to_be_judged() -> None:
    chains = [judging("a", 3.0, 1.0), timing("a", 2.99, 0.01), judging("b", 8.0, 1.0)]
    state = add(state_of({"a": 9.0, "b": 9.0}), chains)
    state = started(state, next_jobs(state, 0.0), 0.0)
    assert [*state.running] == ["judge a 0"]
    state = done(state, "judge a 0", Outcome(True))
    assert ids(next_jobs(state, 1.0)) == ["judge b 0"]


def test_what_was_timed_is_known_from_then_on() -> None:
    state = add(state_of({"a": 9.0}), [timing("a", 8.0, 0.5)])
    state = done(started(state, next_jobs(state, 0.0), 0.0), "time a 1", Outcome(True, 3.0))
    (chain,) = state.chains.values()
    assert (chain.seconds, chain.is_timed, chain.tasks[0].kind) == (3.0, True, JobKind.PAIRED)


# ---- stress, at the best place to stop


def test_more_stress_comes_after_what_gains_more() -> None:
    first = judging("a", 3.0, 1.0)
    stress = [
        Task(f"stress a {n}", JobKind.STRESS, "a", DEVICE, 1.0, 1.0, counts=share)
        for n, share in ((0, 0.99), (1, 0.01))
    ]
    chain = replace(first, tasks=(replace(first.tasks[0], counts=0.0), *stress))
    state = add(state_of({"a": 90.0, "b": 9.0}), [chain, judging("b", 8.0, 1.0)])
    true_s = dict.fromkeys(["judge a 0", "stress a 0", "stress a 1", "judge b 0"], 1.0)
    state, order, _ = run(state, true_s, frozenset())
    assert order == ["judge a 0", "stress a 0", "judge b 0", "stress a 1"]
    assert {one.chain: one.share for one in state.verified} == {"a 0": 1.0, "b 0": 1.0}


def test_what_fails_late_is_in_no_plan_any_more() -> None:
    first = judging("a", 3.0, 1.0)
    stress = Task("stress a", JobKind.STRESS, "a", DEVICE, 1.0, 1.0, counts=0.1)
    chain = replace(first, tasks=(replace(first.tasks[0], counts=0.9), stress))
    state = done(add(state_of({"a": 9.0}), [chain]), "judge a 0", Outcome(True))
    assert state.incumbent.seconds == 3.0
    assert done(state, "stress a", Outcome(False)).incumbent.seconds == 9.0


# ---- a deadline


def test_a_chain_that_cannot_end_in_time_is_out() -> None:
    chains = [judging("a", 1.0, 5.0), judging("b", 8.0, 2.0)]
    state = add(state_of({"a": 9.0, "b": 9.0}), chains)
    assert ids(next_jobs(state, 0.0, deadline=10.0)) == ["judge a 0"]
    assert ids(next_jobs(state, 0.0, deadline=4.0)) == ["judge b 0"]
    assert next_jobs(state, 0.0, deadline=1.0) == []


def test_nine_times_of_ten_counts() -> None:
    state = add(state_of({"a": 9.0}), [judging("a", 1.0, 5.0, late_s=12.0)])
    assert next_jobs(state, 0.0, deadline=10.0) == [] and next_jobs(state, 0.0, deadline=13.0)


def test_a_reference_that_would_not_be_there_in_time_is_not_begun() -> None:
    reference = Task("reference", JobKind.REFERENCE, "a", CORE, 30.0, 30.0)
    state = add(state_of({"a": 9.0}), [judging("a", 5, 1, after=("reference",))], [reference])
    assert next_jobs(state, 0.0, deadline=20.0) == [] and ids(next_jobs(state, 0.0, deadline=40.0)) == ["reference"]


def test_one_large_gain_comes_before_small_ones_that_leave_no_place_for_it() -> None:
    """By gain a second the small one is first; then the large one would not end in time."""
    chains = [judging("a", 8.0, 1.0), judging("b", 1.0, 10.0)]
    state = add(state_of({"a": 9.0, "b": 9.0, "c": 80.0}), chains)
    assert ids(next_jobs(state, 0.0)) == ["judge a 0"]
    assert ids(next_jobs(state, 0.0, deadline=10.5)) == ["judge b 0"]
    assert ids(next_jobs(state, 0.0, deadline=11.5)) == ["judge a 0"], "both fit"


# ---- what never changes


def _instance(rng: random.Random, count: int) -> tuple[State, dict[str, float], frozenset[str]]:
    names = [f"k{n}" for n in range(count)]
    own = {name: rng.uniform(1.0, 4.0) for name in names}
    chains = [judging(name, rng.uniform(0.2, 0.9) * own[name], rng.uniform(0.5, 5.0)) for name in names]
    state = add(state_of({**own, "rest": 2.0}), chains)
    failing = frozenset(chain.tasks[0].id for chain in chains if rng.random() < 0.2)
    return state, {chain.tasks[0].id: chain.tasks[0].expected_s for chain in chains}, failing


@pytest.mark.parametrize("seed", range(8))
def test_wrong_estimates_change_when_and_never_what(seed: int) -> None:
    rng = random.Random(seed)
    state, true_s, failing = _instance(rng, 6)
    right, order, _ = run(state, true_s, failing)
    orders = {tuple(order)}
    for _ in range(4):
        chains = [
            replace(
                chain,
                tasks=tuple(replace(task, expected_s=task.expected_s * rng.choice((0.5, 2.0))) for task in chain.tasks),
            )
            for chain in state.chains.values()
        ]
        other, order, _ = run(add(state, chains), true_s, failing)
        orders.add(tuple(order))
        assert {*other.verified} == {*right.verified} and other.incumbent == right.incumbent
    assert len(orders) > 1


@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_a_few_jobs_is_much_better(seed: int) -> None:
    """Beside every order of five jobs: the plan's speed, over time, until all are done."""
    state, true_s, _ = _instance(random.Random(seed), 5)
    _, _, area = run(state, true_s, frozenset())
    best = 0.0
    for order in itertools.permutations(state.chains.values()):
        seconds, value = dict(state.own), 0.0
        for chain in order:
            value += true_s[chain.tasks[0].id] / sum(seconds.values())
            seconds[chain.region] = chain.seconds
        best = max(best, value)
    assert area >= 0.97 * best
