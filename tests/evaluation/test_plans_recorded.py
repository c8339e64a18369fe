"""Recording a program on this machine, and what plans are worth that nothing was measured for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.plans.record import main as record
from evaluation.plans.unmeasured import figures, first_choices, longer_s, plan_of_expected
from kcg.errors import DataError, UnknownName, UsageError
from kcg.rl.plan_env import Replay
from kcg.rl.plan_recording import Candidate, Part, PlanRecording, TimedPlan, read_recording

JOBS = (0.1, 0.1, 0.5, 0.0)


def recording(*candidates: Candidate, plans: tuple[TimedPlan, ...]) -> PlanRecording:
    part = Part("k", ("k",), "", 10e-6, 10e-6, 0.1, ((0,), (1,)), candidates)
    return PlanRecording("w", "p", (("k", 1.0), ("k", 1.0)), (part,), plans, 30e-6, 1.0, 2.0, 3.0, 4, "a GPU")


def test_the_choice_of_what_is_expected_is_compared_with_the_fastest_plan() -> None:
    one = recording(
        Candidate("tile:{}", 3e-6, JOBS, 8e-6, 8e-6),
        Candidate('tile:{"a":1}', 4e-6, JOBS, 5e-6, 5e-6),
        plans=(TimedPlan((("k", 1),), 20e-6, True), TimedPlan((("k", 0),), 25e-6, True)),
    )
    assert first_choices(one.parts[0]) == (0, 0)
    assert plan_of_expected(one).step_s == 25e-6 and longer_s(one, one.plans[1]) == 0.0
    entry, headline = figures([one, one])
    assert headline == {"zero_measurement_geomean": 0.8, "zero_measurement_min": 0.8}, "both plans were timed"
    assert entry["programs"]["w/p"]["share"] == 0.8 == entry["first_choices"]["min"]
    with pytest.raises(DataError, match="record it again"):
        plan_of_expected(replace(one, plans=one.plans[:1]))


def test_a_first_choice_that_was_not_judged_makes_the_step_longer() -> None:
    one = recording(
        Candidate("tile:{}", 2e-6, JOBS, 9e-6),  # too slow to be judged
        Candidate('tile:{"a":1}', 4e-6, JOBS, 5e-6, 5e-6),
        plans=(TimedPlan((("k", 1),), 20e-6, True),),
    )
    assert first_choices(one.parts[0]) == (1, 0)
    assert longer_s(one, plan_of_expected(one)) == pytest.approx(2 * 4e-6)
    wrong = replace(one.parts[0].candidates[0], fails="judge")
    worse = replace(one, parts=(replace(one.parts[0], candidates=(wrong, one.parts[0].candidates[1])),))
    assert longer_s(worse, worse.plans[0]) == pytest.approx(2 * 5e-6), "tinygrad's own then"


def test_a_program_that_is_none_is_said_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="mlp_trian"):
        record(tmp_path, "mlp_trian/mini", "CPU")
    with pytest.raises(UsageError, match="name a preset too"):
        record(tmp_path, "mlp_train", "CPU")


@pytest.mark.slow
def test_a_program_is_recorded_and_replayed(tmp_path: Path) -> None:
    record(tmp_path, "mlp_train/mini", "CPU", candidates=2, plans=3, kernels=3)
    (path,) = tmp_path.glob("*.json")
    found = read_recording(path)
    tried = [one for part in found.parts for one in part.candidates]
    assert tried and all(one.judged_s for one in tried if not one.fails)
    assert found.own_step_s > 0 and found.plans
    replay = Replay(found)
    assert all(replay.steps.step_s(plan) > 0 for plan in replay.steps.timed)
    record(tmp_path, "mlp_train/mini", "CPU")  # is there already
    assert read_recording(path) == found
