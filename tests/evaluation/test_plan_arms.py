"""Ways to choose what is done next in `kcg/Plan-v0`, beliefs, and the experiment, on made-up programs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evaluation.plans import arms, regret
from evaluation.plans.arms import ARMS, Setting, Simulation
from evaluation.plans.beliefs import PASSED, fitted, posterior, sampled
from evaluation.plans.made_up import made_up, main
from evaluation.plans.regret import Bench, Budget, Task, detectable, frozen_families, hindsight_s, settings
from kcg.errors import DataError, UsageError
from kcg.rl.plan_env import FAILED, JUDGE, JUDGE_FASTEST, STOP, TIME_NEXT, TIMED, Replay, Seen, read_recordings
from kcg.rl.plan_recording import Candidate, Part, PlanRecording

LONG = 3e5  # steps
SPLIT = ["family2", "family3", "family5", "family7"]


@pytest.fixture(scope="module")
def replays() -> list[Replay]:
    return [Replay(made_up(seed)) for seed in range(8)]


def cost_s(replay: Replay, arm: str, others: Sequence[Replay], horizon: float, *, seed: int = 0) -> float:
    belief, rng = fitted(others), np.random.default_rng(seed)
    seen = replay.begin(horizon)
    while (action := ARMS[arm](seen, belief, Setting(), rng)) != STOP:
        assert seen.masks()[action]
        replay.act(seen, action)
    return replay.cost(seen)


# ---- arms


def test_on_long_horizons_the_heuristic_is_near_hindsight_and_beats_random_and_stopping(replays: list[Replay]) -> None:
    for replay in replays[:3]:
        cost = {
            arm: cost_s(replay, arm, replays[3:], LONG)
            for arm in ("stop", "random", "everything", "heuristic", "gradient")
        }
        best = hindsight_s(replay, LONG)
        assert best <= min(cost.values())
        assert max(cost["heuristic"], cost["gradient"]) < 1.15 * best
        assert cost["heuristic"] < min(cost["stop"], cost["random"], cost["everything"])


def test_rollouts_are_near_hindsight_too(replays: list[Replay]) -> None:
    assert cost_s(replays[0], "rollouts", replays[3:], 5e4) < 1.15 * hindsight_s(replays[0], 5e4)


@pytest.mark.parametrize("arm", ["heuristic", "gradient", "rollouts"])
def test_nothing_is_begun_that_cannot_pay(replays: list[Replay], arm: str) -> None:
    assert ARMS[arm](replays[0].begin(1.0), fitted(replays[3:]), Setting(), np.random.default_rng(0)) == STOP


def otherwise(recording: PlanRecording, seen: Seen) -> PlanRecording:
    """The same program in which everything that was not done is otherwise."""

    def changed(part: Part, row: int, number: int) -> Candidate:
        one = part.candidates[number]
        if not np.isnan(seen.job_s[row, number, JUDGE]):
            return one
        if seen.status[row, number] == TIMED:
            return replace(one, judged_s=0.1 * one.expected_s, fails="stress", job_s=(*one.job_s[:JUDGE], 99.0, 99.0))
        if seen.status[row, number] == FAILED:
            return one
        times = (0.2 * one.expected_s, 0.2 * one.expected_s)
        return replace(one, timed_s=times[0], judged_s=times[1], fails="", job_s=(9.0, 9.0, 9.0, 9.0))

    parts = tuple(
        replace(part, candidates=tuple(changed(part, row, n) for n in range(len(part.candidates))))
        for row, part in enumerate(recording.parts)
    )
    return replace(recording, parts=parts, plans=(), plan_job_s=77.0, first_plan_job_s=777.0)


@pytest.mark.parametrize("arm", ["heuristic", "gradient", "rollouts"])
def test_arms_never_look_at_what_was_not_done(replays: list[Replay], arm: str) -> None:
    belief, seen = fitted(replays[3:]), replays[0].begin(LONG)
    done: list[int] = []
    for number in range(6):
        action = ARMS[arm](seen, belief, Setting(), np.random.default_rng(number))
        done.append(action)
        replays[0].act(seen, action)
    other = Replay(otherwise(replays[0].recording, seen))
    again = other.begin(LONG)
    for number, action in enumerate(done):
        assert ARMS[arm](again, belief, Setting(), np.random.default_rng(number)) == action
        other.act(again, action)


@pytest.mark.parametrize("arm", ["random", "everything"])
def test_random_and_everything_do_only_what_may_be_done(replays: list[Replay], arm: str) -> None:
    belief, seen, rng = fitted(replays[3:]), replays[0].begin(LONG), np.random.default_rng(0)
    while (action := ARMS[arm](seen, belief, Setting(stopping=0.01), rng)) != STOP:
        assert seen.masks()[action]
        replays[0].act(seen, action)
    assert arm == "random" or ((seen.tried == seen.program.counts).all() and (seen.fastest < 0).all() and seen.plans)


def test_stopping_in_worlds_costs_what_the_belief_says(replays: list[Replay]) -> None:
    belief, seen = fitted(replays[3:]), replays[0].begin(LONG)
    while len(seen.plan()[0]) < 2:
        replays[0].act(seen, arms.heuristic(seen, belief, Setting(), np.random.default_rng(0)))
    believed = posterior(belief, seen)
    worlds = sampled(believed, seen, 4000, np.random.default_rng(0))
    costs = Simulation(seen, believed, worlds, Setting()).costs_s([0])
    (mean, deviation), log_speedup = believed.factor, float(seen.program.log_speedup(seen.plan()[1]))
    step_s = seen.program.own_step_s * math.exp(-mean * log_speedup + (deviation * log_speedup) ** 2 / 2)
    expected = seen.seconds + LONG * step_s
    assert costs[1].mean() == pytest.approx(expected, rel=0.01)
    assert costs[2].mean() >= costs[1].mean() - 0.05 * expected and costs.shape == (3, 4000)


# ---- beliefs


def test_a_belief_finds_what_made_the_programs() -> None:
    belief = fitted([Replay(made_up(seed)) for seed in range(40)])
    assert math.sqrt(belief.noise_variance) == pytest.approx(0.2, rel=0.1)
    assert math.sqrt(belief.part_variance) == pytest.approx(0.25, rel=0.2)
    assert belief.offsets["attention"][0] < belief.offsets["tile"][0] < belief.offsets["rows"][0]
    assert belief.factor[0] == pytest.approx(0.95, abs=0.03) and belief.passes[2] == pytest.approx(0.92, abs=0.02)
    with pytest.raises(UsageError, match="training programs"):
        fitted([])


def test_what_was_seen_of_a_part_says_more_of_it_than_of_others(replays: list[Replay]) -> None:
    belief, replay = fitted(replays[3:]), replays[0]
    seen = replay.begin(LONG)
    before = posterior(belief, seen)
    part = int(np.flatnonzero(replay.program.is_kernel)[0])
    for _ in range(4):
        replay.act(seen, TIME_NEXT + part)
    after = posterior(belief, seen)
    other = int(np.flatnonzero(replay.program.is_kernel)[1])
    assert after.variance[part] < 0.3 * before.variance[part] and after.variance[other] <= before.variance[other]
    known = seen.timed_s[part, ~np.isnan(seen.timed_s[part])]
    worlds = sampled(after, seen, 50, np.random.default_rng(0))
    assert (worlds.time_s[:, part, ~np.isnan(seen.timed_s[part])] == known).all()
    assert ((worlds.fails >= 0) & (worlds.fails <= PASSED)).all()


def test_samples_are_of_the_posterior(replays: list[Replay]) -> None:
    belief, replay = fitted(replays[3:]), replays[1]
    seen = replay.begin(LONG)
    for part in (0, 0, 1, 6):
        replay.act(seen, TIME_NEXT + part)
    believed = posterior(belief, seen)
    logs = np.log(sampled(believed, seen, 20_000, np.random.default_rng(0)).time_s)
    number = int(seen.program.counts[0]) - 1  # was not tried
    assert np.allclose(logs[:, :, number].mean(0), believed.log_expected[:, number] + believed.mean, atol=0.02)
    assert np.allclose(logs[:, :, number].var(0), believed.variance + believed.noise_variance, rtol=0.06)


# ---- hindsight and the experiment


def test_hindsight_of_a_small_program_is_the_best_of_all_sets() -> None:
    replay = Replay(made_up(11, kernels=3, regions=2, candidates=2, plans=4))
    for horizon in (1e3, 3e4, 1e6):
        options = [
            [-1, *(n for n, one in enumerate(part.candidates) if not one.fails)] for part in replay.recording.parts
        ]
        chosen = np.array([*itertools.product(*options)])
        best = float(regret._costs_s(replay, horizon, chosen)[0].min())
        assert best * (1 - 1e-9) <= hindsight_s(replay, horizon) <= best * 1.01


def test_hindsight_does_the_jobs_of_what_it_deploys_alone(replays: list[Replay]) -> None:
    replay = replays[0]
    seen = replay.begin(LONG)
    replay.act(seen, TIME_NEXT)
    replay.act(seen, JUDGE_FASTEST)
    assert seen.best[0] >= 0
    chosen = np.full((1, len(seen.tried)), -1)
    chosen[0, 0] = seen.best[0]
    assert regret._costs_s(replay, LONG, chosen)[0][0] == pytest.approx(replay.cost(seen))


def test_the_split_is_fixed() -> None:
    families = [f"family{number // 2}" for number in range(20)]
    frozen = frozen_families(families)
    assert sorted(frozen) == SPLIT and sum(family in frozen for family in families) == 8
    assert frozen_families(families[::-1]) == frozen
    assert frozen_families([*families, "yolo"]) >= {"yolo"}  # is frozen everywhere
    assert sum(family in frozen_families(families[:10]) for family in families[:10]) == 4


def test_every_arm_is_tuned_with_as_many_settings_the_defaults_first() -> None:
    assert len(settings(5)) == 5 and settings(5)[0] == Setting() and settings(5) == settings(8)[:5]


def test_what_is_detected_shrinks_with_programs() -> None:
    logs = np.array([0.0, 0.02, -0.02, 0.04, -0.04])
    assert detectable(logs, 20) < detectable(logs, 8) < detectable(logs, 3) and detectable(logs, 1) == math.inf
    assert detectable(logs, 8) == pytest.approx(math.expm1((2.365 + 0.896) * logs.std(ddof=1) / math.sqrt(8)), rel=1e-3)


def test_the_experiment_looks_at_frozen_programs_last(tmp_path: Path) -> None:
    main(tmp_path, 6)
    bench = Bench([made_up(seed, kernels=3, regions=1, candidates=3) for seed in range(6)])
    assert [one.name for one in bench.recordings] == [one.name for one in read_recordings(tmp_path)]
    asked: list[Task] = []
    lines: list[str] = []

    def run(tasks: Sequence[Task]) -> list[list[float]]:
        assert bool({task.program for task in tasks} & {*bench.frozen}) == bool(lines)
        asked.extend(tasks)
        return [bench.costs_s(task) for task in tasks]

    budget = Budget(settings=2, horizons=(1e3, 1e5), tuned_at=(1e4,))
    entry = regret.experiment(bench, run, budget, log=lines.append)
    assert len(lines) == 1 and "80 % power" in lines[0]
    tried = {arm: sum(task.arm == arm and task.horizons == (1e4,) for task in asked) for arm in regret.TUNED}
    assert len({*tried.values()}) == 1
    assert (
        entry["arms"]["heuristic"]["frozen"]["regret"]["value"]
        < entry["arms"]["everything"]["frozen"]["regret"]["value"]
    )
    assert {row["part"] for row in entry["programs"].values()} == {"training", "frozen"}
    assert entry["passed"] == (entry["rollouts_vs_heuristic"]["frozen"]["value"] >= 1.03)


def test_too_few_programs_are_one_line() -> None:
    with pytest.raises(DataError, match="too few"):
        Bench([made_up(0), made_up(1)])
