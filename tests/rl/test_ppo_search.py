"""A search that the policy leads: it acts in its environment, keeps to the budget, and finds more than a new policy."""

from __future__ import annotations

import contextlib
import json
import math
import random
import sqlite3
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path

import pytest
import torch

from kcg.errors import ExitCode
from kcg.rl.policy import Policy, RolloutSettings, _Acting, policy_search, shipped_policy
from kcg.search.problem import Ledger, Observation, Problem, Trials
from kcg.search.replay import ReplayTable, constant_predict, oracle_predict
from kcg.training.policy_network import PolicyNet
from kcg.types import Prediction, Schedule, Status
from tests.env_tasks import observer_of, recorded_observer, recorded_table
from tests.optimize_run import optimized
from tests.policies import ABOUT, SMALL, opinionated, roofline
from tests.replay_table import noisy_predict
from tests.table_search import best_s, predicted_within_budget


def table() -> ReplayTable:
    return recorded_table()[2]


@cache
def shipped() -> Policy:
    return shipped_policy("CUDA")


def searched(problem: Problem, policy: Policy | None = None, **settings: int) -> list[Observation]:
    how = policy_search(policy or shipped(), recorded_observer(), settings=RolloutSettings(**settings))
    return list(how(problem))


def test_the_shipped_policy_finds_with_few_measurements_what_a_new_one_does_not() -> None:
    """Without a predictor that tells schedules apart: only where the policy goes counts."""

    def mean_log(policy: Policy) -> float:
        ends = []
        for seed in range(4):
            problem = table().problem(constant_predict(), seed=seed, max_measurements=8)
            ends.append(math.log(best_s(searched(problem, policy)) / table().best_s))
        return sum(ends) / len(ends)

    torch.manual_seed(0)
    assert mean_log(shipped()) < 0.5 * mean_log(Policy(PolicyNet(SMALL).network(), ABOUT))


def test_the_predictor_chooses_among_what_the_policy_passes() -> None:
    with_it, without = (
        best_s(searched(table().problem(predict, max_measurements=8)))
        for predict in (noisy_predict(table(), sigma=0.2, seed=0), constant_predict())
    )
    assert with_it <= without and with_it < 1.1 * table().best_s


@pytest.mark.parametrize("budget", [0, 1, 2, 7])
def test_it_keeps_to_the_budget_and_begins_with_the_baseline(budget: int) -> None:
    problem = table().problem(oracle_predict(table()), max_measurements=budget)
    found = searched(problem)
    assert problem.ledger.measurements == budget
    assert [o.schedule for o in found[:1]] == [table().baseline()][:budget]
    assert len({table().key(o.schedule) for o in found}) == len(found)


@pytest.mark.parametrize("evaluations", [0, 1, 60])
def test_no_more_is_predicted_than_allowed_and_it_still_measures(evaluations: int) -> None:
    ledger = Ledger(max_measurements=12, max_evaluations=evaluations)
    problem = table().problem(oracle_predict(table()), ledger=ledger)
    asked = predicted_within_budget(problem)
    searched(problem)
    assert len(asked) == ledger.evaluations < evaluations + RolloutSettings().episodes + 1
    assert ledger.measurements == 12


def test_a_step_that_is_expected_to_fail_is_not_taken() -> None:
    ends = {table().start(), table().baseline()}

    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        return [Prediction(-9.0, 0.1, 0.0 if s in ends else 1.0) for s in schedules]

    acting = _Acting(Trials(table().problem(predict)), shipped(), recorded_observer(), RolloutSettings())
    assert set(acting.episodes(1.0)) == ends and acting.episodes(1.0) == []
    fearless = _Acting(Trials(table().problem(constant_predict())), shipped(), recorded_observer(), RolloutSettings())
    assert len(set(fearless.episodes(1.0)) - ends) > 5


@pytest.mark.parametrize("name", ["no step", "one step"])
def test_an_exhausted_space_ends_the_search(name: str) -> None:
    observer = observer_of(name)
    steps = observer.space.actions(observer.space.start())
    measured: list[Schedule] = []

    def measure(batch: Sequence[Schedule]) -> list[Future[Observation]]:
        futures: list[Future[Observation]] = [Future() for _ in batch]
        for future, schedule in zip(futures, batch, strict=True):
            measured.append(schedule)
            future.set_result(Observation(schedule, Status.OK, 1e-6 * len(measured), f"b{len(measured)}"))
        return futures

    problem = Problem(observer.space, roofline(observer), measure, Ledger(), random.Random(0))
    found = list(policy_search(Policy(opinionated().network(), ABOUT), observer)(problem))
    assert [o.schedule for o in found] == measured and len(set(measured)) == len(measured) == len(steps) + 1


def test_a_search_repeats_itself_under_its_seed() -> None:
    def once(seed: int) -> list[Observation]:
        return searched(table().problem(constant_predict(), seed=seed, max_measurements=16))

    assert once(3) == once(3) != once(4)


def test_a_device_without_a_policy_of_its_own_gets_that_of_cuda() -> None:
    assert shipped_policy("AMD").about == shipped().about


@pytest.mark.slow
def test_the_command_searches_with_it_to_a_verified_result(tmp_path: Path) -> None:
    program = "from tinygrad import Tensor\nx = Tensor.empty(512, 512)\nfor _ in range(3): x.sum(0).realize()"
    limits = ["--budget", "3000s", "--measurements", "12", "--no-script-check"]
    done = optimized("-c", program, "--search", "ppo", *limits, "--json", "--quiet", "--report", tmp_path)
    assert done.returncode in (ExitCode.UNCHECKED, ExitCode.NOTHING_IMPROVED), done.stderr
    (kernel,) = json.loads(done.stdout)["kernels"]
    assert kernel["outcome"] in ("improved", "kept") and kernel["after_s"] <= kernel["before_s"]
    assert kernel["verified"] or kernel["outcome"] == "kept", "what is changed is verified"
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.sqlite")) as journal:
        counts = dict(journal.execute("SELECT sampler, COUNT(*) FROM measurements GROUP BY sampler"))
    assert counts["ppo"] >= 8 and counts["hand-coded"] == 1 and counts["final"] > 0, "the best of them was judged"
