"""Searches of a recorded table: the problem with a policy that knows the table, and what a strategy finds in it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kcg.search.interface import Ledger, Observation, Predict, Problem, Proposal, Propose, best
from kcg.search.replay import ReplayTable
from kcg.search.strategies import STRATEGIES, strategy
from kcg.types import Schedule

POLICIES = [name for name, named in STRATEGIES.items() if named.needs_policy]
EXHAUSTING = ["epsilon-greedy", "evolution", "unguided-evolution", "annealing", "predicted-beam", *POLICIES]


def informed(table: ReplayTable, *, sharpness: float = 4.0) -> Propose:
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

    return propose


def problem_of(
    table: ReplayTable, predict: Predict, *, seed: int = 0, max_measurements: int | None = None,
    ledger: Ledger | None = None,
) -> Problem:  # fmt: skip
    """With a policy, for those that need one."""
    problem = table.problem(predict, seed=seed, max_measurements=max_measurements, ledger=ledger)
    problem.propose = informed(table)
    return problem


def run(name: str, problem: Problem) -> list[Observation]:
    return list(strategy(name)(problem))


def best_s(observations: list[Observation]) -> float:
    found = best(observations)
    assert found is not None
    return found.time_s
