"""Beams: tinygrad's BEAM as it is, one that the predictor spares measurements, and one over predictions alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from kcg.search.draft import Drafts, grow
from kcg.search.interface import Observation, Problem, Strategy
from kcg.search.trials import Trials
from kcg.search.walks import fresh
from kcg.types import Schedule

MIN_PROGRESS_S: Final = 1e-8
"""BEAM stops when the best improves by less: 0.01 µs, as in tinygrad."""


def guided_beam(width: int, *, draft: int = 8) -> Strategy:
    """tinygrad's BEAM over the problem's own actions: of each level, the `width` fastest lead to the next.

    It begins at the start and stops when a level's best improves on the last by less than 0.01 µs, so it cannot cross a
    valley. BEAM measures all children of a level. Here the predictor spares some: at most `draft * width` are measured,
    the best predicted first, and the others only if none of those was faster.
    """

    def search(problem: Problem) -> Iterator[Observation]:
        trials = Trials(problem)
        yield from trials.baseline()
        kept, record_s = [problem.space.start()], math.inf
        seen = {trials.key(s) for s in kept}
        while not trials.out_of_budget:
            level = _level(trials, kept, seen)
            seen.update(map(trials.key, level))
            candidates = trials.ranked(trials.within_evaluations(level))
            for part in (candidates[: draft * width], candidates[draft * width :]):
                yield from trials.measure(part)
                fastest_s = min(map(trials.time_s, candidates), default=math.inf)
                if fastest_s < record_s - MIN_PROGRESS_S:
                    break
            else:
                return
            record_s = fastest_s
            kept = [s for s in sorted(candidates, key=trials.time_s)[:width] if math.isfinite(trials.time_s(s))]

    return search


def full_beam(width: int, *, from_hand_coded: bool = False) -> Strategy:
    """tinygrad's BEAM as tinygrad has it (codegen/opt/search.py), over the problem's own actions and without a
    predictor: every child of a level is measured.

    Of schedules with the same binary only the first counts. As there, the first level may be slower than where it
    began, and it ends where a level's best is less than 0.01 µs faster than that of the level before.
    """

    def search(problem: Problem) -> Iterator[Observation]:
        trials = Trials(problem)
        yield from trials.baseline()
        kept, record_s = [problem.space.baseline() if from_hand_coded else problem.space.start()], math.inf
        binaries: set[str] = set()
        while not trials.out_of_budget:
            level = _level(trials, kept, set())
            yield from trials.measure(level)
            timed = []
            for schedule in level:
                observation = trials.observed(schedule)
                if observation is None or math.isinf(observation.time_s) or observation.binary_hash in binaries:
                    continue
                timed.append(schedule)
                if observation.binary_hash:
                    binaries.add(observation.binary_hash)
            kept = sorted(timed, key=trials.time_s)[:width]
            if not kept or trials.time_s(kept[0]) > record_s - MIN_PROGRESS_S:
                return
            record_s = trials.time_s(kept[0])

    return search


def _level(trials: Trials, kept: list[Schedule], seen: set[str]) -> list[Schedule]:
    """The children of `kept`, each kernel once, without those seen."""
    level: dict[str, Schedule] = {}
    for schedule in kept:
        if trials.out_of_budget:
            return []
        level.update((key, c) for c in trials.children(schedule) if (key := trials.key(c)) not in seen)
    return list(level.values())


def predicted_beam(width: int, *, optimism: float = 2.0) -> Strategy:
    """Draft, then verify: beams over predictions draft candidates, a batch of them that are no near twins is measured,
    the predictor is corrected by it, and the beams draft again from the corrected predictions.

    They are wider each time by what they have not expanded before, since else their best candidates would soon all be
    measured. `optimism` is how many standard deviations of doubt are added to a candidate for measuring.
    """

    def search(problem: Problem) -> Iterator[Observation]:
        trials = Trials(problem)
        yield from trials.baseline()
        drafts, expanded = Drafts(trials, optimism=optimism), set[str]()

        def cost(schedules: Sequence[Schedule]) -> list[float]:
            drafts.add(schedules)
            return drafts.costs(schedules)

        while not trials.out_of_budget:
            drafts.add(grow(trials, cost, width=width, expanded=expanded))
            batch = drafts.batch(problem.batch_size)
            batch += fresh(trials, problem.batch_size - len(batch))
            if not batch:
                return
            yield from trials.measure(batch, rethink=True)

    return search
