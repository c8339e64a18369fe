"""The field of search strategies: each does what its name says, on made-up spaces and on recorded kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest

from kcg.search.problem import Ledger, Predict
from kcg.search.replay import constant_predict, oracle_predict
from kcg.search.strategies import AnnealingSettings, annealing
from kcg.types import Prediction, Schedule
from tests.replay_table import (
    BASELINE,
    RECORDED,
    inverted_predict,
    noisy_predict,
    recorded,
    synthetic_table,
    tree_table,
)
from tests.slow import first
from tests.table_search import EXHAUSTING, best_s, predicted_within_budget, run

UNGUIDED = ["random", "unguided-evolution", "annealing", "full-beam", "full-beam-from-hand-coded"]
GUIDED = ["epsilon-greedy", "greedy", "evolution", "beam", "predicted-beam"]


# Golden searches

GOLDEN = {
    "random": {"gpt2": (2.123, 24), "rope": (1.0, 24), "flux": (1.687, 24)},
    "epsilon-greedy": {"gpt2": (1.02, 24), "rope": (1.153, 24), "flux": (1.0, 24)},
    "greedy": {"gpt2": (1.313, 24), "rope": (1.357, 16), "flux": (1.201, 20)},
    "evolution": {"gpt2": (1.02, 24), "rope": (1.0, 24), "flux": (1.201, 24)},
    "unguided-evolution": {"gpt2": (1.706, 24), "rope": (1.0, 24), "flux": (1.621, 24)},
    "annealing": {"gpt2": (4.777, 24), "rope": (1.357, 24), "flux": (1.296, 24)},
    "beam": {"gpt2": (2.68, 24), "rope": (1.814, 24), "flux": (1.536, 24)},
    "full-beam": {"gpt2": (2.68, 24), "rope": (2.081, 24), "flux": (1.536, 24)},
    "full-beam-from-hand-coded": {"gpt2": (4.778, 7), "rope": (1.357, 5), "flux": (1.957, 1)},
    "predicted-beam": {"gpt2": (1.02, 24), "rope": (1.153, 24), "flux": (1.0, 24)},
}
BEAMS_ALONE = {
    1: {"gpt2": (1.02, 38), "rope": (1.814, 15), "flux": (1.201, 33)},
    2: {"gpt2": (1.02, 41), "rope": (1.153, 27), "flux": (1.0, 53)},
    4: {"gpt2": (1.02, 72), "rope": (1.153, 43), "flux": (1.0, 88)},
    8: {"gpt2": (1.02, 112), "rope": (1.153, 74), "flux": (1.0, 152)},
}
"""BEAM as tinygrad has it, without a limit."""


@pytest.mark.parametrize("name", GOLDEN)
def test_a_search_of_a_recorded_kernel_finds_what_it_found_before(name: str) -> None:
    """Of each kernel: the best found over the optimum, with 24 measurements at most, and how many were made."""
    found = {}
    for kernel in RECORDED:
        table = recorded(kernel)
        problem = table.problem(noisy_predict(table, sigma=0.3, seed=1), seed=1, max_measurements=24)
        found[kernel] = (round(best_s(run(name, problem)) / table.best_s, 3), problem.ledger.measurements)
    assert found == GOLDEN[name]


@pytest.mark.parametrize("width", BEAMS_ALONE)
def test_full_beam_of_a_recorded_kernel_ends_by_itself_where_it_did_before(width: int) -> None:
    found = {}
    for kernel in RECORDED:
        problem = recorded(kernel).problem(constant_predict())
        fastest_s = best_s(run(f"full-beam:{width}", problem))
        found[kernel] = (round(fastest_s / recorded(kernel).best_s, 3), problem.ledger.measurements)
    assert found == BEAMS_ALONE[width]


# What they find


@pytest.mark.parametrize("name", first(1, ["epsilon-greedy", "evolution", "predicted-beam"]))
@pytest.mark.parametrize("make", [constant_predict, inverted_predict])
def test_a_useless_predictor_is_overcome_on_recorded_kernels(name: str, make: Callable[..., Predict]) -> None:
    """With 96 measurements three kernels are twice as fast as hand-coded in the geometric mean, and each is faster."""
    gains = []
    for kernel in RECORDED:
        table = recorded(kernel)
        predict = make(table) if make is inverted_predict else make()
        found = run(name, table.problem(predict, seed=2, max_measurements=96))
        gains.append(found[0].time_s / best_s(found))
    assert min(gains) > 1.0 and math.prod(gains) > 2.0**3


def test_a_good_predictor_saves_measurements() -> None:
    """Each guided search against a like one without guidance, with 16 measurements of three kernels and two seeds."""

    def mean_log(name: str) -> float:
        logs = []
        for kernel, seed in itertools.product(RECORDED, range(2)):
            table = recorded(kernel)
            problem = table.problem(noisy_predict(table, sigma=0.3, seed=seed), seed=seed, max_measurements=16)
            logs.append(math.log(best_s(run(name, problem)) / table.best_s))
        return sum(logs) / len(logs)

    assert mean_log("evolution") < 0.5 * mean_log("unguided-evolution")
    assert mean_log("predicted-beam") < 0.5 * mean_log("full-beam")
    assert mean_log("epsilon-greedy") < 0.75 * mean_log("random")


@pytest.mark.parametrize("name", UNGUIDED)
def test_what_claims_no_predictor_asks_none(name: str) -> None:
    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        raise AssertionError("the predictor was asked")

    table = synthetic_table()
    found = run(name, table.problem(predict, max_measurements=30))
    assert best_s(found) < found[0].time_s


# Budgets and ends


@pytest.mark.parametrize("name", GUIDED)
@pytest.mark.parametrize("evaluations", [0, 1, 60])
def test_no_more_is_predicted_than_allowed_and_what_was_found_is_measured(name: str, evaluations: int) -> None:
    table = synthetic_table()
    ledger = Ledger(max_measurements=20, max_evaluations=evaluations)
    problem = table.problem(oracle_predict(table), ledger=ledger)
    asked = predicted_within_budget(problem)
    found = run(name, problem)
    assert len(asked) == ledger.evaluations
    assert found[0].schedule == BASELINE
    if name in EXHAUSTING:
        assert ledger.measurements == 20
    if evaluations == 60:
        assert best_s(found) < found[0].time_s


# BEAM


def test_full_beam_measures_every_child_of_each_level() -> None:
    table = tree_table(
        {
            "": (100, "0"),
            "a": (50, "1"),
            "b": (60, "2"),
            "c": (70, "3"),
            "aa": (45, "4"),
            "ab": (44, "5"),
            "ba": (20, "6"),
            "ca": (1, "7"),
            "baa": (20, "8"),
            "bab": (30, "9"),
            "baba": (2, "10"),
        }
    )

    def order(name: str) -> list[str]:
        return [table.key(o.schedule) for o in run(name, table.problem(constant_predict()))]

    assert order("full-beam:1") == ["", "a", "b", "c", "aa", "ab"]  # nothing below `ab`
    assert order("full-beam:2") == ["", "a", "b", "c", "aa", "ab", "ba", "baa", "bab"]  # `baa` is not faster than `ba`
    assert order("full-beam:3")[6:] == ["ba", "ca", "baa", "bab"]  # none of these is faster than `ca`
    assert order("full-beam:3") == order("full-beam:8")


def test_full_beam_keeps_no_two_of_the_same_binary() -> None:
    runtimes = {"": (100.0, "0"), "a": (50.0, "same"), "b": (50.0, "same"), "c": (70.0, "3"), "ca": (10.0, "4")}
    assert best_s(run("full-beam:2", tree_table(runtimes).problem(constant_predict()))) == pytest.approx(10e-6)
    runtimes["b"] = (50.0, "another")
    assert best_s(run("full-beam:2", tree_table(runtimes).problem(constant_predict()))) == pytest.approx(50e-6)


def test_full_beam_begins_at_the_given_schedule() -> None:
    table = recorded("gpt2")
    level = {table.key(a.schedule) for a in table.actions(table.baseline())}
    found = run("full-beam-from-hand-coded:8", table.problem(constant_predict()))
    assert {table.key(o.schedule) for o in found[1 : len(level) + 1]} == level


# Annealing


@pytest.mark.parametrize(("temperature", "reached"), [(5.0, 3), (0.01, 2)])
def test_annealing_goes_uphill_where_it_is_hot(temperature: float, reached: int) -> None:
    """Beyond a schedule that is four times slower waits one that is twice as fast."""
    table = tree_table({"": (2.0, "0"), "a": (8.0, "1"), "ab": (1.0, "2")})
    seconds = itertools.count()
    ledger = Ledger(deadline=1000.0, clock=lambda: float(next(seconds)))
    settings = AnnealingSettings(hot=temperature, cold=temperature, idle=10_000, patience=10_000)
    assert len(list(annealing(settings=settings)(table.problem(constant_predict(), ledger=ledger)))) == reached


def test_annealing_cools_down_with_the_budget() -> None:
    """What is slower is taken less and less: the last that is measured is faster than where it stays hot."""
    table = recorded("flux")

    def mean_of_last(cold: float) -> float:
        logs = []
        for seed in range(4):
            problem = table.problem(constant_predict(), seed=seed, max_measurements=40)
            found = list(annealing(settings=AnnealingSettings(hot=5.0, cold=cold))(problem))
            logs += [math.log(o.time_s) for o in found[-10:] if o.runtime_s is not None]
        return sum(logs) / len(logs)

    assert mean_of_last(0.01) < mean_of_last(5.0) - 0.5
