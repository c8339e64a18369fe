"""kcg's own searches, and tinygrad's BEAM, on the programs of a lattice.

The strategies are those of the command (`kcg.search.mcts`, `kcg.search.beam`), with their settings, unchanged. What is
made for them here is the space: a tree of decisions of which every node is a recorded program, as in
`kcg.kernel.tile.space` every node is a legal one.

- Parameters are decided in the order of the space: form and axes, then the others (`kcg.kernel.kinds.steps_of`).
- A step decides one of those that were not decided: another value, all before it as they are, all after it as they
  follow. There they follow from the prior; here the recorded program with these values stands for them that the model
  expects to be fastest. So each program is met by one way of steps, and a search begins at what is expected to be
  fastest of all.
- Variants have another value of a parameter that was decided; neighbours another value of any, or differ in one alone.

- `BEAM` is `full-beam`: of each level, the 4 fastest lead to the next, whose programs are all measured, in the order of
  the steps; it ends where a level's best is no faster than that of the level before. The tree is the formula's.
- `beam` is the strategy of that name: the same, but of a level at most 32 are measured, the best by the formula first,
  and the others only where none of those was faster.
- `mcts, analytic`, `mcts, learned`: PUCT over the tree, with priors and values by the formula or by networks, corrected
  by what was measured; simulations draft, the best of what was met is measured, and all values are backed up.

Not as in the command: nothing is drawn uniformly beside a search, tinygrad's own program is not measured first, and
nobody shares the device. By numbers of measurements a strategy measures one program at a time; by seconds as many as
are of use at once: BEAM its level, `beam` its 32, mcts as many as there are cores. Looking for legal steps, and writing
programs to tell which are the same, takes no time here. All that mcts draws is jitter between equals.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from evaluation.predictor.equal_seconds import CORES, SECONDS, Bench, Clock, Costs, Timeline
from kcg.kernel.kinds import Space, steps_of
from kcg.predictor.interface import Judge
from kcg.search.beam import full_beam, guided_beam
from kcg.search.mcts import mcts
from kcg.search.problem import Ledger, Measure, Observation, Problem, Strategy
from kcg.types import Action, Schedule, Status

WIDTH: Final = 4  # of the registry
DRAFT: Final = 8  # of `guided_beam`
BY_LEARNED: Final = "mcts, learned"
SEARCHES: Final = ("BEAM", "beam", "mcts, analytic", BY_LEARNED)
WHOLE_LEVEL: Final = 10_000

Labels = tuple[str, ...]


class Decisions:
    """The programs of a lattice as a tree of decisions: a `StepSpace` (`kcg.kernel.kinds`)."""

    def __init__(self, space: Space, schedules: Sequence[Schedule], expected: Sequence[float]) -> None:
        self._space = space
        self._labels: dict[Schedule, Labels] = {one: steps_of(one) for one in schedules}
        self._first: dict[Labels, Schedule] = {}  # of what begins with these decisions
        self._next: dict[Labels, dict[str, None]] = {}  # which decisions there are after these
        for place in sorted(range(len(schedules)), key=lambda place: (expected[place], place)):
            labels = self._labels[schedules[place]]
            for number in range(len(labels) + 1):
                self._first.setdefault(labels[:number], schedules[place])
        for labels in self._labels.values():
            for number, label in enumerate(labels):
                self._next.setdefault(labels[:number], {})[label] = None

    def start(self) -> Schedule:
        return self._first[()]

    def baseline(self) -> Schedule:
        return self.start()

    def prior(self) -> list[Schedule]:
        return [self.start()]

    def actions(self, schedule: Schedule) -> list[Action]:
        labels = self._labels[schedule]
        decided = next(n for n in range(len(labels) + 1) if self._first[labels[:n]] == schedule)
        return [action for number in range(decided, len(labels)) for action in self._others(labels, number)]

    def _others(self, labels: Labels, number: int) -> list[Action]:
        """Another decision in this place, those before it as they are."""
        before = labels[:number]
        return [Action(one, self._first[*before, one]) for one in self._next[before] if one != labels[number]]

    def variants(self, schedule: Schedule) -> list[Schedule]:
        labels = self._labels[schedule]
        was_decided = [
            n for n in range(len(labels)) if self._first[labels[:n]] != self._first[labels[: n + 1]]
        ]  # the others followed
        return list(dict.fromkeys(one.schedule for n in was_decided for one in self._others(labels, n)))

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        labels = self._labels[schedule]
        found = self.variants(schedule)
        found += [one.schedule for number in range(len(labels)) for one in self._others(labels, number)]
        found += [
            other
            for other, its in self._labels.items()
            if len(its) == len(labels) and sum(a != b for a, b in zip(its, labels, strict=True)) == 1
        ]
        return list(dict.fromkeys(found))

    def key(self, schedule: Schedule) -> str:
        return schedule.body

    def alike(self, schedule: Schedule) -> str:
        return schedule.body

    def groups(self, schedule: Schedule) -> Hashable:
        return self._space.groups(schedule)

    def tile(self, schedule: Schedule) -> Hashable:
        return self._space.tile(schedule)


@dataclass(frozen=True)
class Search:
    """A strategy on one lattice, by one model."""

    strategy: Strategy
    batch: int  # by seconds
    space: Decisions
    judge: Callable[[], Judge]  # one that has seen no measurement
    schedules: Sequence[Schedule]
    seconds: Sequence[float]
    seed: int = 0

    def order(self, count: int) -> list[int]:
        """The first programs that it measures, one at a time; fewer where it ends."""
        places = {one: place for place, one in enumerate(self.schedules)}
        ledger, found = Ledger(max_measurements=count), list[int]()

        def measure(batch: Sequence[Schedule]) -> list[Future[Observation]]:
            ledger.measurements += len(batch)
            found.extend(places[one] for one in batch)
            return [self._answer(places[one]) for one in batch]

        self._run(self._judge(), measure, ledger, 1)
        return found

    def timeline(
        self,
        costs: Costs,
        *,
        begins_s: float = 0.0,
        limit_s: float = max(SECONDS),
        clock: Clock = time.process_time,
    ) -> Timeline:
        """What it does in so many seconds; it has judged all programs by `begins_s`."""
        places = {one: place for place, one in enumerate(self.schedules)}
        bench, chosen, judge = Bench(costs), list[tuple[float, int]](), self._judge()
        now, since = begins_s, clock()

        def at() -> float:
            return now + clock() - since

        def measure(batch: Sequence[Schedule]) -> list[Future[Observation]]:
            nonlocal now, since
            asked = at()
            chosen.extend((asked, places[one]) for one in batch)
            for one in batch:
                bench.compile(places[one], asked)
            bench.run()
            now, since = bench.ended[-1][0], clock()
            return [self._answer(places[one]) for one in batch]

        self._run(judge, measure, Ledger(deadline=limit_s, clock=at), self.batch)
        return Timeline(*(chosen[0] if chosen else (math.inf, 0)), bench.ended)

    def _judge(self) -> Judge:
        """One that has judged all programs."""
        judge = self.judge()
        judge.predict(self.schedules)
        return judge

    def _run(self, judge: Judge, measure: Measure, ledger: Ledger, batch: int) -> None:
        rng = random.Random(self.seed)
        problem = Problem(self.space, judge.predict, measure, ledger, rng, batch_size=batch, correct=judge.correct)
        for _ in self.strategy(problem):
            pass

    def _answer(self, place: int) -> Future[Observation]:
        done: Future[Observation] = Future()
        done.set_result(Observation(self.schedules[place], Status.OK, self.seconds[place], binary_hash=str(place)))
        return done


def searches_of(
    space: Space,
    schedules: Sequence[Schedule],
    seconds: Sequence[float],
    judges: Mapping[str, Callable[[], Judge]],
    seeds: int = 1,
) -> dict[str, list[Search]]:
    """Each search by its name, of the models that there are; those that draw once for each seed."""
    trees = {
        name: Decisions(space, schedules, [one.log_runtime for one in judge().predict(schedules)])
        for name, judge in judges.items()
    }
    how: dict[str, tuple[Strategy, int, str, int]] = {
        "BEAM": (full_beam(WIDTH), WHOLE_LEVEL, "analytic", 1),
        "beam": (guided_beam(WIDTH, draft=DRAFT), DRAFT * WIDTH, "analytic", 1),
        "mcts, analytic": (mcts, CORES, "analytic", seeds),
        BY_LEARNED: (mcts, CORES, "learned", seeds),
    }
    return {
        name: [Search(strategy, batch, trees[model], judges[model], schedules, seconds, seed) for seed in range(draws)]
        for name, (strategy, batch, model, draws) in how.items()
        if model in judges
    }
