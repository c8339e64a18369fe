"""Searches of a table: what a strategy finds in it, and what it asks the predictor."""

from __future__ import annotations

from collections.abc import Sequence

from kcg.search.problem import Observation, Problem, best
from kcg.search.strategies import strategy
from kcg.types import Prediction, Schedule

EXHAUSTING = ["epsilon-greedy", "evolution", "unguided-evolution", "annealing", "predicted-beam"]


def run(name: str, problem: Problem) -> list[Observation]:
    return list(strategy(name)(problem))


def best_s(observations: list[Observation]) -> float:
    found = best(observations)
    assert found is not None
    return found.time_s


def predicted_within_budget(problem: Problem) -> list[Schedule]:
    """What is predicted from now on. Raises AssertionError where the ledger allows no more."""
    predict, asked = problem.predict, list[Schedule]()

    def strict(schedules: Sequence[Schedule]) -> list[Prediction]:
        assert problem.ledger.may_evaluate
        asked.extend(schedules)
        return predict(schedules)

    problem.predict = strict
    return asked
