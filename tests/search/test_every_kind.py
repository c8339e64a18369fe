"""Every strategy on a small space of every kind: each schedule has a time that was made up, of its program alone."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from scipy.stats import chisquare

from kcg.search.moves import walk
from kcg.search.problem import Ledger, Observation, Problem, Trials, best
from kcg.search.replay import charged
from kcg.search.strategies import STRATEGIES, strategy
from kcg.search.workers import FromItsStart
from kcg.types import Prediction, Schedule, Status
from tests.small_spaces import KINDS, programs, space_named, time_s


def problem(kind: str, *, most: int | None = None, seed: int = 0, doubt: float = 0.2) -> Problem:
    """To be searched with so many measurements, by a predictor that is off by `doubt` log-seconds."""
    space, ledger = space_named(kind), Ledger(max_measurements=most)

    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        keys = [space.key(one) for one in schedules]
        return [
            Prediction(math.log(time_s(key)) + random.Random(f"{seed}{key}").gauss(0.0, doubt), doubt) for key in keys
        ]

    def measure(batch: Sequence[Schedule]) -> list[Observation]:
        return [Observation(one, Status.OK, time_s(key := space.key(one)), key) for one in batch]

    return Problem(space, predict, charged(ledger, space.key, measure), ledger, random.Random(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_the_spaces_are_small_and_begin_with_what_the_prior_would_choose(kind: str) -> None:
    space = space_named(kind)
    assert 10 <= len(programs(kind)) <= 60
    first = space.prior()
    assert first[0] == space.baseline() and len({space.key(one) for one in first}) == len(first)
    for one in first:
        space.check(one)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_measures_legal_schedules_each_program_once(name: str, kind: str) -> None:
    space, asked = space_named(kind), problem(kind, most=9)
    seen = list(strategy(name)(asked))
    assert seen[0].schedule == space.baseline() and asked.ledger.measurements <= 9
    assert len({space.key(one.schedule) for one in seen}) == len(seen)
    assert (len(seen) > 1) is (name != "hand-coded")
    for one in seen:
        space.check(one.schedule)


@pytest.mark.parametrize("kind", KINDS)
def test_random_measures_all_and_takes_every_legal_step_as_often(kind: str) -> None:
    space = space_named(kind)
    assert {space.key(o.schedule) for o in strategy("random")(problem(kind))} == set(programs(kind))
    trials = Trials(replace(problem(kind), space=FromItsStart(space), rng=_OneStep(1)))
    steps = Counter(one.schedule for one in space.actions(space.start()))
    met: Counter[Schedule] = Counter()
    while met.total() < 60 * len(steps):
        met[walk(trials)] += 1
    assert set(met) == set(steps)
    expected = [met.total() * count / steps.total() for count in steps.values()]
    assert chisquare([met[one] for one in steps], expected).pvalue > 1e-3


class _OneStep(random.Random):
    """Walks of one step from the start."""

    def randint(self, a: int, b: int) -> int:
        return 1


@pytest.mark.parametrize("kind", KINDS)
def test_prior_begins_with_what_the_space_would_choose_and_goes_on_as_predicted(kind: str) -> None:
    space, asked = space_named(kind), problem(kind)
    seen = [one.schedule for one in strategy("prior")(asked)]
    first = space.prior()
    assert seen[: len(first)] == first
    rest = [one.log_runtime for one in asked.predict(seen[len(first) :])]
    assert rest == sorted(rest) and len(rest) > 4


@pytest.mark.parametrize("kind", KINDS)
def test_mcts_finds_the_best_of_a_small_space_before_all_is_measured(kind: str) -> None:
    fastest = min(map(time_s, programs(kind)))
    for seed in range(3):
        found = best(strategy("mcts")(problem(kind, most=len(programs(kind)) // 2, seed=seed)))
        assert found is not None and found.time_s <= fastest, "neighbours may be faster than what steps lead to"
