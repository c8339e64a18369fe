"""Candidates from the predictor alone, without measuring: a beam over predictions, for `--measurements 0`."""

from __future__ import annotations

from kcg.search.interface import Ledger, Problem
from kcg.search.trials import Trials
from kcg.types import Schedule


def draft(problem: Problem, *, width: int = 6, depth: int = 6) -> list[Schedule]:
    """Schedules that the predictor expects to be fast, best first; the baseline is among them.

    A beam from the unoptimised kernel and from the baseline. It stops when a level brings nothing better, at `depth`
    Opts, or at the ledger's deadline.
    """
    clock_only = Ledger(deadline=problem.ledger.deadline, clock=problem.ledger.clock)
    trials = Trials(problem)
    baseline = problem.space.baseline()
    frontier = [problem.space.start(), baseline]
    found: dict[str, Schedule] = {trials.key(s): s for s in reversed(frontier)}
    best = trials.predict(frontier)[0].log_runtime
    for _ in range(depth):
        if clock_only.exhausted:
            break
        children = [
            child for schedule in frontier for child in trials.children(schedule) if trials.key(child) not in found
        ]
        if not children:
            break
        found.update((trials.key(child), child) for child in children)
        frontier = trials.ranked(children)[:width]
        level = trials.predict(frontier)[0].log_runtime
        if level >= best:
            break
        best = level
    return trials.ranked(list(found.values()))
