"""`kcg/Plan-v0` replays recorded programs: what actions cost and give, what is known when, and what is deployed."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from evaluation.plans.made_up import made_up
from kcg.errors import DataError, KcgError, UsageError
from kcg.rl.plan_env import (
    ACTIONS,
    COMPILE,
    FAILED,
    JUDGE_FASTEST,
    MOST_PARTS,
    OWN,
    STOP,
    TIME_NEXT,
    TIME_PLAN,
    PlanEnv,
    Replay,
    SeenPlan,
    Steps,
    completed,
    parts_of,
    program_of,
    step_errors,
)
from kcg.rl.plan_recording import JOBS, Candidate, Part, PlanRecording, TimedPlan, write_recording

ID = "kcg.rl:kcg/Plan-v0"
JOB_S = (8.0, 1.0, 4.0, 2.0)


def candidate(timed_s: float, fails: str = "") -> Candidate:
    reached = JOBS.index(fails) if fails else len(JOBS)
    times = (timed_s if reached > 1 else None), (timed_s if reached > 2 else None)
    return Candidate(f"tile:{timed_s}", 0.9 * timed_s, JOB_S, *times, fails)


def kernel(name: str, own_s: float, calls: tuple[int, ...], *candidates: Candidate) -> Part:
    return Part(name, (name,), "", own_s, own_s, 0.5, tuple((call,) for call in calls), candidates)


def small(**more: Any) -> PlanRecording:
    """Three kernels, two calls each, and two regions that share the call of b."""
    calls = (("a", 2.0), ("b", 2.0), ("c", 2.0), ("a", 1.0), ("b", 1.0), ("c", 1.0))
    parts = (
        kernel("a", 10.0, (0, 3), candidate(9.0), candidate(8.0, "judge"), candidate(7.0)),
        kernel("b", 10.0, (1, 4), candidate(9.5)),
        kernel("c", 10.0, (2, 5), candidate(6.0, "compile"), candidate(9.0, "time"), candidate(8.0, "stress")),
        Part("ab", ("a", "b"), "rows", 20.0, 20.0, 0.5, ((0, 1), (3, 4)), (candidate(12.0),)),
        Part("bc", ("b", "c"), "rows", 20.0, 20.0, 0.5, ((1, 2), (4, 5)), (candidate(10.0),)),
    )
    made = PlanRecording(
        "small", "one", calls, parts, (TimedPlan((("a", 0),), 88.0, True),), own_step_s=91.0, plan_job_s=3.0,
        first_plan_job_s=30.0, begin_s=5.0, cores=4, device="made up",
    )  # fmt: skip
    return replace(made, **more)


def env_of(*recordings: PlanRecording, **more: Any) -> PlanEnv:
    env = gymnasium.make(ID, recordings=recordings, **more).unwrapped
    assert isinstance(env, PlanEnv)
    return env


def did(env: PlanEnv, *actions: int) -> tuple[dict[str, Any], float]:
    """The last observation, and the sum of rewards."""
    observation, total = env.reset(seed=0)[0], 0.0
    for action in actions:
        assert env.action_masks()[action], action
        observation, reward, *_ = env.step(action)
        total += reward
    return observation, total


def time_(part: int) -> int:
    return TIME_NEXT + part


def judge(part: int) -> int:
    return JUDGE_FASTEST + part


def test_it_passes_gymnasiums_checker_and_its_spec_makes_it_again(tmp_path: Path) -> None:
    write_recording(made_up(0), tmp_path / "one.json")
    write_recording(small(), tmp_path / "two.json")
    env = gymnasium.make(ID, recordings=str(tmp_path))
    check_env(env.unwrapped)
    assert env.spec is not None
    again = gymnasium.make(EnvSpec.from_json(json.dumps(json.loads(env.spec.to_json()))))
    first, second = env.reset(seed=3), again.reset(seed=3)
    assert first[1] == second[1] and all(np.array_equal(first[0][name], second[0][name]) for name in first[0])


def test_rewards_sum_to_what_was_saved_of_the_cost_of_stopping_at_once() -> None:
    rng, env = np.random.default_rng(0), env_of(*(made_up(seed) for seed in range(3)))
    for episode in range(30):
        observation, info = env.reset(seed=episode)
        unit_s, total, over = info["cost_s"], 0.0, False
        assert unit_s == pytest.approx(env.seen.unit_s)
        while not over:
            assert observation in env.observation_space
            assert np.array_equal(observation["mask"].astype(bool), env.action_masks())
            action = int(rng.choice(np.flatnonzero(env.action_masks())))
            observation, reward, over, truncated, info = env.step(action)
            assert not truncated
            total += reward
        assert total == pytest.approx(1 - info["cost_s"] / unit_s)


def test_horizons_are_drawn_log_uniformly_or_given() -> None:
    env = env_of(small())
    drawn = np.log10([env.reset(seed=seed)[1]["horizon"] for seed in range(400)])
    assert drawn.min() >= 2 and drawn.max() <= 6 and abs(drawn.mean() - 4) < 0.2 and abs(np.median(drawn) - 4) < 0.3
    assert env_of(small(), horizon=500).reset(seed=0)[1]["horizon"] == 500
    assert env.reset(options={"horizon": 7e4, "program": 0})[1]["horizon"] == 7e4


def test_an_illegal_action_ends_the_episode_as_stopping_would() -> None:
    env = env_of(small())
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(judge(0))
    assert reward == 0.0 and truncated and not terminated and info["fault"]
    with pytest.raises(UsageError, match="reset"):
        env.step(STOP)


# ---- what is known when


def hidden(recording: PlanRecording, done: set[tuple[str, int]]) -> PlanRecording:
    """The same program in which everything that was not done is otherwise."""

    def changed(part: Part, number: int) -> Candidate:
        one = part.candidates[number]
        if (part.id, number) in done:
            return one
        job_s = tuple(7.0 * seconds + 1.0 for seconds in one.job_s)
        fails = "" if one.fails else "compile"
        times = (None, None) if fails else (3.0 * one.expected_s, 0.1 * one.expected_s)
        return replace(one, job_s=job_s, timed_s=times[0], judged_s=times[1], fails=fails)

    parts = [
        replace(part, candidates=tuple(changed(part, number) for number in range(len(part.candidates))))
        for part in recording.parts
    ]
    return replace(recording, parts=tuple(parts), plans=(), plan_job_s=99.0, first_plan_job_s=999.0)


def test_observations_have_nothing_of_what_was_not_done() -> None:
    actions = [time_(0), time_(0), time_(3), judge(0), time_(4), judge(3)]
    done = {("a", 0), ("a", 1), ("ab", 0), ("bc", 0)}
    first, second = env_of(small(), horizon=1e3), env_of(hidden(small(), done), horizon=1e3)
    for count in range(len(actions) + 1):
        seen = [did(env, *actions[:count])[0] for env in (first, second)]
        assert all(np.array_equal(seen[0][name], seen[1][name]) for name in seen[0]), count
    assert not np.array_equal(*(did(env, *actions, time_(0))[0]["parts"] for env in (first, second)))


def test_a_job_costs_its_seconds_and_compiling_a_share_of_the_cores() -> None:
    env = env_of(small(), horizon=1e3)
    did(env)
    begin_s = env.seen.seconds
    assert begin_s == 5.0 + 5 * 0.5
    did(env, time_(0))
    assert env.seen.seconds - begin_s == 8 / 4 + 1
    did(env, time_(0), judge(0))
    assert env.seen.seconds - begin_s == 8 / 4 + 1 + 4 + 2
    did(env, time_(0), judge(0), TIME_PLAN)
    assert env.seen.seconds - begin_s == 9 + 30
    assert not env.action_masks()[TIME_PLAN]  # it was timed


def test_what_fails_costs_the_jobs_up_to_it_and_gives_nothing() -> None:
    env = env_of(small(), horizon=1e3)
    did(env)
    begin_s, compiled, timed = env.seen.seconds, 8 / 4, 8 / 4 + 1
    did(env, time_(2))
    assert env.seen.seconds - begin_s == compiled and not env.action_masks()[judge(2)]
    did(env, time_(2), time_(2))
    assert env.seen.seconds - begin_s == compiled + timed and not env.action_masks()[judge(2)]
    did(env, time_(2), time_(2), time_(2), judge(2))
    assert env.seen.seconds - begin_s == compiled + 2 * timed + 4 + 2
    assert (env.seen.status[2, :3] == FAILED).all() and env.seen.deployed() == OWN
    assert not env.action_masks()[[time_(2), judge(2), TIME_PLAN]].any()


def test_only_what_passed_judging_runs_and_the_fastest_is_judged_first() -> None:
    env = env_of(small(), horizon=1e3)
    did(env, time_(0), time_(0))
    assert env.seen.deployed() == OWN and env.seen.fastest[0] == 1  # 8 s, before 9 s
    did(env, time_(0), time_(0), judge(0))
    assert env.seen.deployed() == OWN and env.seen.fastest[0] == 0  # it failed
    did(env, time_(0), time_(0), judge(0), judge(0))
    assert env.seen.deployed() == {(0, 0)}


def test_what_was_not_judged_takes_the_median_ratio_of_what_was_and_fails_where_all_of_it_did() -> None:
    slow = replace(candidate(8.0), judged_s=None, job_s=(*JOB_S[:3], 0.0))
    judged = replace(candidate(5.0), judged_s=6.0)
    part = completed(kernel("a", 10.0, (0,), slow, judged, candidate(4.0, "time")))
    assert part.candidates[0].judged_s == pytest.approx(8.0 * 6 / 5) and part.candidates[0].job_s == JOB_S
    assert part.candidates[1:] == (judged, candidate(4.0, "time"))
    assert completed(kernel("a", 10.0, (0,), slow, candidate(5.0, "judge"))).candidates[0].fails == "judge"


# ---- plans


def test_regions_that_share_calls_are_put_in_by_what_an_occurrence_saves() -> None:
    program = program_of(small())
    savings = np.array([[3.0, 0.5, 0.0, 8.0, 0.0], [0.0, 0.0, 0.0, 8.0, 10.0], [3.0, 0.5, 0.0, 8.0, 4.0]])
    weights = program.places.weights(savings)
    assert weights[0].tolist() == [0, 0, 0, 3, 0]  # both calls, of which one counts twice
    assert weights[1].tolist() == [0, 0, 0, 0, 3]  # saves more than what shares its calls
    assert weights[2].tolist() == [0, 0, 0, 3, 0]  # 4.5 beyond its kernels, the other 3.5
    alone = program.places.weights(np.array([[3.0, 0.5, 0.0, 3.4, 0.0]]))
    assert alone[0].tolist() == [3, 3, 0, 0, 0]  # its kernels save more


def test_the_entry_of_a_part_is_where_the_plan_gets_better() -> None:
    recording = made_up(3)
    program, rng = program_of(recording), np.random.default_rng(0)
    places = program.places

    def saved(savings: np.ndarray) -> float:
        return float((places.weights(savings[None]) * savings).sum())

    for _ in range(20):
        savings = program.own_s * rng.uniform(0.0, 0.5, len(program.own_s)) * rng.integers(0, 2, len(program.own_s))
        entries = places.entries(savings[None], program.own_s)[0]
        for part, own_s in enumerate(program.own_s):
            without = savings.copy()
            without[part] = own_s
            assert places.alone[part] * entries[part] == pytest.approx(saved(without) - saved(savings))
            if not entries[part] >= own_s:
                assert saved(without) >= saved(savings) - 1e-12  # a call that took no time never hurts here


def greedy(recording: PlanRecording, savings: np.ndarray, left_out: frozenset[int] = frozenset()) -> list[float]:
    """How often each part runs, one after the other, without some regions."""
    parts, taken = parts_of(recording), set[int]()
    useful = {part.id: max(saving, 0.0) for part, saving in zip(parts, savings, strict=True) if part.is_kernel}
    net = [saving - sum(useful[k] for k in part.kernels) for part, saving in zip(parts, savings, strict=True)]
    found = [0.0] * len(parts)
    for number in sorted({*range(len(parts))} - left_out, key=lambda n: -net[n]):
        if not parts[number].is_kernel and net[number] > 0.0:
            for place in parts[number].places:
                if not taken & {*place}:
                    taken |= {*place}
                    found[number] += min(recording.calls[call][1] for call in place)
    for number, part in enumerate(parts):
        if part.is_kernel and savings[number] > 0.0:
            found[number] = sum(recording.calls[call][1] for (call,) in part.places if call not in taken)
    return found


@pytest.mark.parametrize("regions", [2, 6])
def test_a_plan_leaves_regions_out_whose_calls_are_worth_more_to_others(regions: int) -> None:
    """As the best of all sets of regions, each put in greedily, nearly always; and never worse than with all."""
    recording, rng = made_up(5, kernels=5, regions=regions, candidates=2, plans=2), np.random.default_rng(regions)
    program = program_of(recording)
    rows = [number for number, is_kernel in enumerate(program.is_kernel.tolist()) if not is_kernel]
    sets = [frozenset(some) for count in range(len(rows) + 1) for some in itertools.combinations(rows, count)]
    share, gained = [], 0
    for savings in program.own_s * rng.uniform(-0.2, 0.6, (40, len(program.own_s))):
        found = float(program.places.weights(savings[None])[0] @ savings)
        every = [float(np.array(greedy(recording, savings, some)) @ savings) for some in sets]
        assert found >= every[0] * (1 - 1e-9) and found <= max(every) * (1 + 1e-9)
        share.append(found / max(every))
        gained += found > every[0] * (1 + 1e-9)
    assert np.mean(np.array(share) > 1 - 1e-9) >= 0.9 and min(share) > 0.95
    assert gained or regions == 2, "somewhere one is left out"


def test_many_savings_at_once_are_as_each_alone() -> None:
    program, rng = program_of(made_up(5, regions=6)), np.random.default_rng(1)
    savings = program.own_s * rng.uniform(-0.2, 0.6, (50, len(program.own_s)))
    together = program.places.weights(savings)
    alone = np.concatenate([program.places.weights(one[None]) for one in savings])
    assert np.array_equal(together, alone)


def test_the_step_of_a_timed_plan_is_what_was_timed() -> None:
    steps = Steps(small())
    assert steps.step_s(OWN) == 91.0 and steps.step_s(frozenset({(0, 0)})) == 88.0
    assert steps.step_s(frozenset({(3, 0)})) == pytest.approx(
        91.0 * (90 - 3 * 8) / 90
    )  # one plan says nothing of others
    assert Steps(small(plans=(TimedPlan((("a", 0),), 50.0, False),))).step_s(frozenset({(0, 0)})) == 91.0
    both = TimedPlan((("ab", 0), ("bc", 0)), 60.0, None)  # they share a call: the one that saves more is in it
    assert Steps(small(plans=(both,))).step_s(frozenset({(4, 0)})) == 60.0


def test_steps_of_other_plans_are_predicted_by_those_that_were_timed() -> None:
    recording = made_up(1)
    errors = step_errors(recording)
    assert errors.plans == 16 and errors.fitted < errors.sums < 0.1
    steps = Steps(recording)

    def by_sums(plan: TimedPlan) -> float:
        sum_s = steps.sum_s(frozenset((ids(recording)[part], number) for part, number in plan.chosen))
        return recording.own_step_s * (1 - sum_s / steps.program.total_s)

    exact = tuple(replace(plan, step_s=by_sums(plan)) for plan in recording.plans)
    assert step_errors(replace(recording, plans=exact)).fitted == pytest.approx(0.0, abs=1e-12)


def ids(recording: PlanRecording) -> dict[str, int]:
    return {part.id: number for number, part in enumerate(parts_of(recording))}


def test_a_plan_that_was_timed_slower_is_not_deployed() -> None:
    slow = small(plans=(TimedPlan((("a", 0),), 95.0, True),))
    env = env_of(slow, horizon=1e3)
    _, before = did(env, time_(0), judge(0))
    assert env.seen.deployed() == {(0, 0)} and before < 0.0
    did(env, time_(0), judge(0), TIME_PLAN)
    assert env.seen.deployed() == OWN
    wrong = env_of(small(plans=(TimedPlan((("a", 0),), 50.0, False),)), horizon=1e3)
    did(wrong, time_(0), judge(0), TIME_PLAN)
    assert wrong.seen.deployed() == OWN and wrong.seen.factor() == 1.0


def test_a_better_plan_is_deployed_untimed_by_what_timed_ones_saved_of_their_sums() -> None:
    env = env_of(small(), horizon=1e3)
    did(env, time_(0), judge(0), TIME_PLAN, time_(4), judge(4))
    assert env.seen.factor() == pytest.approx(np.log(91 / 88) / np.log(90 / 87)) and env.seen.deployed() == {
        (0, 0),
        (4, 0),
    }


# ---- bad recordings


def with_candidate(**more: Any) -> PlanRecording:
    (first, *others), made = small().parts, small()
    one = replace(first, candidates=(replace(first.candidates[0], **more), *first.candidates[1:]))
    return replace(made, parts=(one, *others))


@pytest.mark.parametrize(
    ("recording", "reason"),
    [
        (small(parts=()), "no part has candidates"),
        (small(own_step_s=0.0), "no time"),
        (small(cores=0), "no core"),
        (small(begin_s=float("nan")), "took no seconds"),
        (small(parts=(*small().parts, small().parts[0])), "are one"),
        (small(calls=small().calls[:3]), "place at no call"),
        (small(calls=(("b", 1.0),) * 6), "calls of other kernels"),
        (small(plans=(TimedPlan((("d", 0),), 1.0, True),)), "which there is not"),
        (small(plans=(TimedPlan((("c", 0),), 1.0, True),)), "which was not judged"),
        (with_candidate(job_s=(1.0,)), "no seconds of each"),
        (with_candidate(fails="guess"), "which is no job"),
        (with_candidate(timed_s=None), "was not timed"),
        (with_candidate(judged_s=float("nan")), "was judged, and has no time"),
        (with_candidate(expected_s=0.0), "no expected time"),
    ],
)
def test_a_recording_that_does_not_hold_together_is_one_line(recording: PlanRecording, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as error:
        PlanEnv([recording])
    assert "\n" not in str(error.value) and "small/one" in str(error.value) and "record" in str(error.value)


def test_too_many_parts_nothing_and_what_is_no_recording_are_one_line(tmp_path: Path) -> None:
    parts = [kernel(f"k{n}", 1.0, (n,), candidate(0.5)) for n in range(MOST_PARTS + 1)]
    calls = tuple((part.id, 1.0) for part in parts)
    with pytest.raises(DataError, match=f"{MOST_PARTS + 1} parts"):
        PlanEnv(small(parts=tuple(parts), calls=calls, plans=()))
    (tmp_path / "bad.json").write_text("{}")
    cases: list[tuple[Any, dict[str, Any]]] = [
        ([], {}), (tmp_path / "none", {}), (tmp_path / "bad.json", {}), (small(), {"horizon": 0}),
        (small(), {"horizon": "many"}),
    ]  # fmt: skip
    for recordings, more in cases:
        with pytest.raises(KcgError) as error:
            PlanEnv(recordings, **more)
        assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="no program 1"):
        PlanEnv(small()).reset(options={"program": 1})


def test_parts_without_candidates_are_only_timed_at_the_beginning() -> None:
    bare = replace(small(), parts=(*small().parts, kernel("d", 1.0, (), candidate(1.0)), kernel("e", 1.0, (0,))))
    replay = Replay(bare)
    assert replay.program.parts == ("a", "b", "c", "ab", "bc")
    assert replay.program.begin_s == 5.0 + 7 * 0.5 and COMPILE == 0


def test_all_orders_of_what_is_done_end_in_the_same_plan() -> None:
    env = env_of(small(), horizon=1e3)
    ends = set()
    for order in itertools.permutations([(time_(0), judge(0)), (time_(3), judge(3)), (time_(4), judge(4))]):
        did(env, *itertools.chain(*order))
        ends.add((env.seen.deployed(), round(env.seen.seconds, 9)))
    assert len(ends) == 1 and ACTIONS == 2 * MOST_PARTS + 2


def test_a_plan_that_gains_nothing_by_its_calls_says_nothing_of_others() -> None:
    replay = Replay(made_up(5, regions=3))
    seen = replay.begin(1e5)
    own = seen.program.own_step_s
    seen.plans[frozenset({(0, 0)})] = SeenPlan(0.001 * seen.program.total_s, own / 2, True)
    assert seen.factor() == 1.0 and seen.factors() == []
    some = 0.5 * seen.program.total_s
    seen.plans[frozenset({(1, 0)})] = SeenPlan(some, own / 4, True)
    assert seen.factor() == pytest.approx(math.log(4) / float(seen.program.log_speedup(some)))
