"""Candidates from the predictor: `grow`, beams over predictions, and `Drafts`, what was found so far and is expected.

`draft` is for `--measurements 0`. A search that drafts, measures some and drafts again keeps `Drafts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kcg.search.calibration import Calibration, Evidence, Trial
from kcg.search.moves import StepSets, diverse, fresh, leaders
from kcg.search.problem import FAILURE_COST, Ledger, Observation, Problem, Strategy, Trials
from kcg.types import Prediction, Schedule

Cost = Callable[[Sequence[Schedule]], list[float]]
"""What to rank schedules by, the lowest first."""


def grow(
    trials: Trials, cost: Cost, *, width: int, depth: int = 8, patience: int = 2, expanded: set[str] | None = None
) -> list[Schedule]:
    """Everything that two beams over `cost` meet, one from the start and one from the baseline, each kernel once.

    They are apart since the levels of one are no measure for those of the other: what is a step from the baseline is
    nearly always faster than what is a step from the start, and what is three steps from it need not be.

    Of each level the `width` best lead to the next, and on top of them those whose keys are in `expanded`, which the
    beams add to: grown again they cost as much again and are wider. A beam stops at `depth` steps, when `patience`
    levels in a row bring nothing better, when the predictor may not be asked any more, or at the ledger's deadline.
    """
    space, expanded = trials.problem.space, set() if expanded is None else expanded
    found: dict[str, Schedule] = {}
    for origin in (space.start(), space.baseline()):
        met = _beam(trials, origin, cost, expanded, width=width, depth=depth, patience=patience)
        found = met | found
    return list(found.values())


def _beam(
    trials: Trials, origin: Schedule, cost: Cost, expanded: set[str], *, width: int, depth: int, patience: int
) -> dict[str, Schedule]:
    ledger = trials.problem.ledger
    clock_only = Ledger(deadline=ledger.deadline, clock=ledger.clock)
    found = {trials.key(s): s for s in trials.within_evaluations([origin])}
    frontier, best, worse = list(found.values()), math.inf, 0
    for _ in range(depth):
        children: dict[str, Schedule] = {}
        for schedule in frontier:
            if clock_only.exhausted:
                break
            expanded.add(trials.key(schedule))
            children.update((key, c) for c in trials.children(schedule) if (key := trials.key(c)) not in found)
        level = {trials.key(s): s for s in trials.within_evaluations(list(children.values()))}
        if not level:
            break
        found |= level
        costs = dict(zip(level, cost(list(level.values())), strict=True))
        order = sorted(level, key=costs.__getitem__)
        new = [key for key in order if key not in expanded][:width]
        frontier = [level[key] for key in order if key in expanded or key in new]
        worse = 0 if costs[order[0]] < best else worse + 1
        if worse >= patience:
            break
        best = min(best, costs[order[0]])
    return found


def draft(trials: Trials, *, width: int = 6) -> list[Schedule]:
    """Schedules that the predictor expects to be fast, best first; the baseline is among them."""
    return trials.ranked(grow(trials, trials.costs, width=width))


class Drafts:
    """Schedules found so far and what is expected of each after all that was measured.

    Corrected is as in `mcts`: by the predictor itself where it learns from measurements, else by `calibration`, which
    judges failures in any case. Only what the predictor may still be asked about is taken in.
    """

    def __init__(self, trials: Trials, *, optimism: float = 2.0) -> None:
        self.trials = trials
        self.optimism = optimism  # standard deviations of doubt added to a candidate for measuring
        self.calibration = Calibration()
        self._found: dict[str, Schedule] = {}
        self._jitter: dict[str, float] = {}  # breaks ties: a predictor may not tell schedules apart
        self._sets = StepSets()
        self._steps: dict[str, int] = {}
        self._evidence: dict[str, tuple[Evidence, int]] = {}  # and how many of the trials it holds
        self._learned: set[str] = set()
        self._expected: dict[str, Prediction] = {}  # since the last measurement

    def add(self, schedules: Sequence[Schedule]) -> list[Schedule]:
        """Takes in schedules, predicted in one batch; returns those that are in."""
        allowed = self.trials.within_evaluations(schedules)
        self.trials.predict(allowed)
        for schedule in allowed:
            key = self.trials.key(schedule)
            if key not in self._found:
                self._found[key] = schedule
                self._jitter[key] = 1e-6 * self.trials.problem.rng.random()
        return allowed

    def expected(self, schedules: Sequence[Schedule]) -> list[Prediction]:
        """The corrected prediction of each; of what was measured too."""
        self._learn()
        missing = {self.trials.key(s): s for s in schedules if self.trials.key(s) not in self._expected}
        if missing:
            asked = list(missing.values())
            predictions = self.trials.predict(asked)
            corrected = self.trials.corrected(asked)
            for i, key in enumerate(missing):
                made = self.calibration.expected(predictions[i], self._near(key, asked[i]))
                if corrected is not None:
                    made = Prediction(corrected[i].log_runtime, corrected[i].uncertainty, made.failure_probability)
                self._expected[key] = made
        return [self._expected[self.trials.key(s)] for s in schedules]

    def costs(self, schedules: Sequence[Schedule]) -> list[float]:
        """Log-runtime of each, measured where it was, else expected; what fails is worse by `FAILURE_COST`."""
        costs = []
        for schedule, expected in zip(schedules, self.expected(schedules), strict=True):
            observation = self.trials.like(schedule)
            if observation is None:
                costs.append(expected.log_runtime + FAILURE_COST * expected.failure_probability)
            elif 0 < observation.time_s < math.inf:
                costs.append(math.log(observation.time_s))
            else:
                costs.append(expected.log_runtime + FAILURE_COST)
        return costs

    def unmeasured(self) -> list[Schedule]:
        """Those found and not measured, in the order found; those like measured ones only if there are no others."""
        left = [s for s in self._found.values() if self.trials.observed(s) is None]
        return [s for s in left if self.trials.like(s) is None] or left

    def best(self, count: int) -> list[Schedule]:
        """The `count` unmeasured ones that are expected to be fastest, near duplicates or not."""
        pool = self.unmeasured()
        costs = [c + self._jitter[self.trials.key(s)] for c, s in zip(self.costs(pool), pool, strict=True)]
        return [pool[i] for i in sorted(range(len(pool)), key=costs.__getitem__)[:count]]

    def batch(self, count: int) -> list[Schedule]:
        """`count` unmeasured ones worth measuring: fast or doubtful, and no near duplicates of each other."""
        pool = self.unmeasured()
        keys = [self.trials.key(s) for s in pool]
        doubts = [p.uncertainty for p in self.expected(pool)]
        scores = [
            self.optimism * d - c - self._jitter[k] for d, c, k in zip(doubts, self.costs(pool), keys, strict=True)
        ]
        places = leaders([self.trials.alike(s) for s in pool], scores)
        steps = [self._set(keys[i], pool[i]) for i in places]
        return [pool[places[i]] for i in diverse([scores[i] for i in places], steps, count)]

    def _set(self, key: str, schedule: Schedule) -> int:
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._sets.of(schedule)
        return found

    def _near(self, key: str, schedule: Schedule) -> Evidence:
        """What was measured near a schedule."""
        steps, trials = self._set(key, schedule), self.calibration.trials
        evidence, taken = self._evidence.get(key, (Evidence(), 0))
        for trial in trials[taken:]:
            self.calibration.extend(evidence, steps, trial)
        self._evidence[key] = (evidence, len(trials))
        return evidence

    def _learn(self) -> None:
        """Takes in what was measured since the last call, as far as the predictor may be asked about it."""
        fresh = [(k, o) for k, o in self.trials.observations.items() if k not in self._learned]
        if not fresh:
            return
        self._learned.update(key for key, _ in fresh)
        self._expected.clear()
        asked = self.trials.within_evaluations([o.schedule for _, o in fresh])
        predicted = dict(zip(map(self.trials.key, asked), self.trials.predict(asked), strict=True))
        for key, observation in fresh:
            if key in predicted:
                measured = math.log(observation.time_s) if 0 < observation.time_s < math.inf else None
                self.calibration.add(Trial(self._set(key, observation.schedule), predicted[key].log_runtime, measured))


# ---- Beams: tinygrad's BEAM as it is, one that the predictor spares measurements, and one over predictions alone.

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
                yield from trials.measure(part, among=candidates)
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
            yield from trials.measure(level, among=level)
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
    """Draft, then verify: beams over predictions draft candidates, a batch of them that are no near duplicates is
    measured, the predictor is corrected by it, and the beams draft again from the corrected predictions.

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
