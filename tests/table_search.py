"""Searches of a recorded table: what a strategy finds in it."""

from __future__ import annotations

from kcg.search.problem import Observation, Problem, best
from kcg.search.strategies import strategy

EXHAUSTING = ["epsilon-greedy", "evolution", "unguided-evolution", "annealing", "predicted-beam"]


def run(name: str, problem: Problem) -> list[Observation]:
    return list(strategy(name)(problem))


def best_s(observations: list[Observation]) -> float:
    found = best(observations)
    assert found is not None
    return found.time_s
