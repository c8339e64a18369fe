"""Searches led by a policy on recorded tables, with policies that know the table and one that is sure and wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from evaluation.search.rollouts import Led
from evaluation.search.strategies import needs_policy, registry, strategy
from kcg.errors import UsageError
from kcg.rl.policy import Proposal
from kcg.search import strategies
from kcg.search.problem import Ledger, Observation, Problem
from kcg.search.replay import Record, ReplayTable, constant_predict, oracle_predict
from kcg.types import Action, Prediction, Schedule
from tests.replay_table import BASELINE, RECORDED, chain_table, noisy_predict, recorded, synthetic_table
from tests.table_search import best_s

POLICIES = ["policy", "policy-beam"]


def run(name: str, problem: Problem, led: Led) -> list[Observation]:
    return list(strategy(name, led)(problem))


def informed(table: ReplayTable, *, sharpness: float = 4.0) -> Led:
    """A policy that prefers steps by the best within reach of them, and stops where nothing better is."""

    within_reach = {s: r.observation.time_s for s, r in table.records.items()}
    while True:  # steps may lead in circles
        better = {s: min(t, *(within_reach[a.schedule] for a in table.actions(s)), t) for s, t in within_reach.items()}
        if better == within_reach:
            break
        within_reach = better

    def propose(schedules: Sequence[Schedule]) -> list[Proposal]:
        answers = []
        for schedule in schedules:
            ends = [table.records[schedule].observation.time_s]
            ends += [within_reach[a.schedule] for a in table.actions(schedule)]
            weights = [end_s**-sharpness if math.isfinite(end_s) else 0.0 for end_s in ends]
            total = sum(weights) or 1.0
            answers.append(Proposal(weights[0] / total, tuple(w / total for w in weights[1:])))
        return answers

    return Led(propose)


def always_on(table: ReplayTable) -> Led:
    """A policy that is sure of the last step there is and never stops."""

    def propose(schedules: Sequence[Schedule]) -> list[Proposal]:
        counts = [len(table.actions(s)) for s in schedules]
        return [Proposal(0.0 if n else 1.0, tuple(float(i == n - 1) for i in range(n))) for n in counts]

    return Led(propose)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("budget", [0, 1, 2, 7])
def test_policies_keep_to_the_budget(name: str, budget: int) -> None:
    table = synthetic_table()
    problem = table.problem(oracle_predict(table), max_measurements=budget)
    found = run(name, problem, informed(table))
    assert problem.ledger.measurements == budget
    assert [o.schedule for o in found[:1]] == [BASELINE][:budget]


@pytest.mark.parametrize("name", POLICIES)
def test_policies_on_one_action_none_and_failures(name: str) -> None:
    for runtimes in ([2e-6], [2e-6, 1e-6], [None, None, 3e-6, None]):
        table = chain_table(list(runtimes))
        found = run(name, table.problem(oracle_predict(table)), informed(table))
        assert len(found) == len(runtimes) and best_s(found) == table.best_s


@pytest.mark.parametrize("name", POLICIES)
def test_without_a_policy_there_is_an_error_before_anything_is_measured(name: str) -> None:
    problem = synthetic_table().problem(constant_predict())
    with pytest.raises(UsageError, match="follows a policy, and there is none"):
        strategy(name)(problem)
    assert problem.ledger.compilations == 0


def test_the_first_rollouts_take_the_likeliest_steps() -> None:
    table = recorded("gpt2")
    led = informed(table)

    def likeliest(schedule: Schedule) -> str:
        while True:
            (proposal,) = led.proposals([schedule])
            if not proposal.steps or proposal.stop >= max(proposal.steps):
                return table.key(schedule)
            schedule = table.actions(schedule)[proposal.steps.index(max(proposal.steps))].schedule

    found = run("policy", table.problem(constant_predict(), max_measurements=16), led)
    assert [table.key(o.schedule) for o in found[1:3]] == list(
        dict.fromkeys(map(likeliest, (table.start(), table.baseline())))
    )
    assert best_s(found) == table.best_s


@pytest.mark.parametrize("name", ["policy", "policy-beam:4"])
def test_an_informed_policy_finds_with_fewer_measurements_than_a_blunt_one(name: str) -> None:
    table = recorded("flux")

    def found_s(sharpness: float) -> float:
        problem = table.problem(noisy_predict(table, sigma=0.3, seed=0), max_measurements=8)
        return best_s(run(name, problem, informed(table, sharpness=sharpness)))

    assert found_s(4.0) < 1.05 * table.best_s < found_s(0.0)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_is_sure_and_wrong_does_not_keep_the_search_from_going_on(name: str) -> None:
    table = recorded("rope")
    problem = table.problem(noisy_predict(table, sigma=0.3, seed=0), max_measurements=60)
    found = run(name, problem, always_on(table))
    assert problem.ledger.measurements == 60
    assert best_s(found) < 0.8 * found[0].time_s


def test_a_rollout_does_not_walk_in_circles() -> None:
    ring = chain_table([5e-6, 9e-6, 8e-6, 2e-6])
    table = ReplayTable(
        (
            Record(r.key, r.observation, (Action("on", list(ring.records)[(int(r.key) + 1) % 4]),))
            for r in ring.records.values()
        ),
        start=ring.start(),
        baseline=ring.baseline(),
    )
    problem = table.problem(constant_predict())
    found = run("policy", problem, always_on(table))
    assert [table.key(o.schedule) for o in found[:2]] == ["0", "3"]  # once around, and not back to the start
    assert len(found) == 4


# Golden searches, and what the field's other strategies promise too

GOLDEN = {
    "policy": {"gpt2": (1.0, 24), "rope": (1.0, 24), "flux": (1.0, 24)},
    "policy-beam": {"gpt2": (1.0, 24), "rope": (1.0, 24), "flux": (1.0, 24)},
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_search_of_a_recorded_kernel_finds_what_it_found_before(name: str) -> None:
    """Of each kernel: the best found over the optimum, with 24 measurements at most, and how many were made."""
    found = {}
    for kernel in RECORDED:
        table = recorded(kernel)
        problem = table.problem(noisy_predict(table, sigma=0.3, seed=1), seed=1, max_measurements=24)
        seen = run(name, problem, informed(table))
        found[kernel] = (round(best_s(seen) / table.best_s, 3), problem.ledger.measurements)
    assert found == GOLDEN[name]


def test_rollouts_ask_no_predictor() -> None:
    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        raise AssertionError("the predictor was asked")

    table = synthetic_table()
    found = run("policy", table.problem(predict, max_measurements=30), informed(table))
    assert best_s(found) < found[0].time_s


@pytest.mark.parametrize("evaluations", [0, 1, 60])
def test_a_beam_over_a_policy_predicts_no_more_than_allowed(evaluations: int) -> None:
    table = synthetic_table()
    ledger = Ledger(max_measurements=20, max_evaluations=evaluations)
    problem = table.problem(oracle_predict(table), ledger=ledger)
    predict, asked = problem.predict, []

    def strict(schedules: Sequence[Schedule]) -> list[Prediction]:
        assert ledger.may_evaluate
        asked.extend(schedules)
        return predict(schedules)

    problem.predict = strict
    found = run("policy-beam", problem, informed(table))
    assert len(asked) == ledger.evaluations and ledger.measurements == 20
    assert found[0].schedule == BASELINE and (evaluations < 60 or best_s(found) < found[0].time_s)


@pytest.mark.parametrize("name", POLICIES)
def test_an_exhausted_space_ends_the_search(name: str) -> None:
    table = synthetic_table(2)
    found = run(name, table.problem(noisy_predict(table, sigma=0.5, seed=0)), informed(table))
    assert {table.key(o.schedule) for o in found} == {r.key for r in table.records.values()} and len(found) == 60


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_random_follows_the_seed(name: str) -> None:
    table = recorded("rope")

    def once(seed: int) -> list[Observation]:
        return run(name, table.problem(constant_predict(), seed=seed, max_measurements=24), informed(table))

    assert once(3) == once(3) != once(4)


def test_the_registry_extends_that_of_the_command() -> None:
    assert list(registry()) == [*strategies.STRATEGIES, "tinygrad-mcts", "policy", "policy-beam", "ppo"]
    assert [name for name in registry() if needs_policy(name)] == ["policy", "policy-beam", "ppo"]
    with pytest.raises(UsageError, match="cannot act"):
        run("ppo", synthetic_table().problem(constant_predict()), informed(synthetic_table()))
