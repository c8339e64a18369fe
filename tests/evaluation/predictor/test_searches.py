"""kcg's searches on a lattice: what they see of it, and what they measure first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from evaluation.predictor.equal_seconds import Costs
from evaluation.predictor.searches import BY_LEARNED, SEARCHES, Decisions, Search, searches_of
from kcg.kernel.kinds import steps_of
from kcg.predictor.interface import Judge
from kcg.types import Prediction, Schedule
from tests.small_spaces import programs, space_named, time_s

SCHEDULES = [*programs("tile").values()]
TIMES = {one: time_s(key) for key, one in programs("tile").items()}
SECONDS = [TIMES[one] for one in SCHEDULES]


def judge(times: Mapping[Schedule, float]) -> Judge:
    """One that expects these times, surely."""

    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        return [Prediction(math.log(times[one]), 0.0) for one in schedules]

    return Judge(predict, lambda schedules, measured: predict(schedules))


def searches(analytic: Mapping[Schedule, float], learned: Mapping[Schedule, float] = TIMES) -> dict[str, Search]:
    judges = {"analytic": lambda: judge(analytic), "learned": lambda: judge(learned)}
    return {name: one for name, (one,) in searches_of(space_named("tile"), SCHEDULES, SECONDS, judges).items()}


def upside_down() -> dict[Schedule, float]:
    return {one: 1e-8 / seconds for one, seconds in TIMES.items()}


def tree() -> Decisions:
    return Decisions(space_named("tile"), SCHEDULES, [math.log(one) for one in SECONDS])


def test_each_program_is_met_by_one_way_of_steps() -> None:
    found = tree()
    assert found.start() == found.baseline() == min(TIMES, key=TIMES.__getitem__)
    assert found.prior() == [found.start()]
    queue = [found.start()]
    for one in queue:
        queue += [action.schedule for action in found.actions(one)]
    assert len(queue) == len(SCHEDULES) and set(queue) == set(SCHEDULES)


def test_a_step_leaves_what_was_decided_and_leads_to_the_best_of_what_follows() -> None:
    found = tree()
    for one in SCHEDULES:
        labels = steps_of(one)
        for action in found.actions(one):
            number = labels.index(next(mine for mine in labels if mine not in steps_of(action.schedule)))
            its = steps_of(action.schedule)
            assert its[:number] == labels[:number] and its[number] == action.label
            alike = [other for other in SCHEDULES if steps_of(other)[: number + 1] == its[: number + 1]]
            assert action.schedule == min(alike, key=TIMES.__getitem__)


def test_what_is_near_holds_what_differs_in_one_parameter() -> None:
    found = tree()
    for one in SCHEDULES:
        near = found.neighbours(one)
        assert one not in near and len(near) == len(set(near))
        assert near[: len(found.variants(one))] == found.variants(one)
        by_one = [o for o in SCHEDULES if sum(a != b for a, b in zip(steps_of(o), steps_of(one), strict=True)) == 1]
        assert set(by_one) <= set(near)


@pytest.mark.parametrize("name", SEARCHES)
def test_with_a_perfect_model_the_best_is_measured_first_and_nothing_twice(name: str) -> None:
    order = searches(TIMES)[name].order(len(SECONDS))
    assert SECONDS[order[0]] == min(SECONDS)
    assert len(order) == len(set(order)) <= len(SECONDS)


@pytest.mark.parametrize("name", ["mcts, analytic", BY_LEARNED])
def test_mcts_measures_all_in_the_end(name: str) -> None:
    order = searches(upside_down(), upside_down())[name].order(len(SECONDS))
    assert sorted(order) == list(range(len(SECONDS)))
    assert SECONDS[order[0]] == max(SECONDS), "a model that is wrong"


def test_mcts_is_of_the_model_that_it_is_named_after() -> None:
    found = searches(upside_down())
    assert SECONDS[found["mcts, analytic"].order(1)[0]] == max(SECONDS)
    assert SECONDS[found[BY_LEARNED].order(1)[0]] == min(SECONDS)
    without = searches_of(space_named("tile"), SCHEDULES, SECONDS, {"analytic": lambda: judge(TIMES)}, 5)
    assert {name: len(some) for name, some in without.items()} == {"BEAM": 1, "beam": 1, "mcts, analytic": 5}


def test_no_search_learns_of_another_one() -> None:
    one = searches(TIMES)["mcts, analytic"]
    assert one.order(8) == one.order(8) == replace(one, seed=1).order(8)


def test_beam_measures_the_next_programs_of_the_fastest() -> None:
    order = [SCHEDULES[place] for place in searches(upside_down())["BEAM"].order(len(SECONDS))]
    found = Decisions(space_named("tile"), SCHEDULES, [math.log(upside_down()[one]) for one in SCHEDULES])
    level = [action.schedule for action in found.actions(found.start())]
    assert order[: len(level) + 1] == [found.start(), *level]
    best = sorted(level, key=TIMES.__getitem__)[:4]
    following = {action.schedule for one in best for action in found.actions(one)}
    assert set(order[len(level) + 1 :][: len(following)]) <= following


def test_a_search_waits_for_its_batch_and_ends_in_time() -> None:
    search, costs = searches(TIMES)["mcts, analytic"], Costs([1.0] * len(SECONDS), [0.1] * len(SECONDS))
    found = search.timeline(costs, limit_s=2.0, clock=lambda: 0.0)
    assert found.chosen_s == 0.0 and SECONDS[found.first] == min(SECONDS)
    ends = [at for at, _ in found.ended]
    assert ends[0] == pytest.approx(1.1) and ends[1] == pytest.approx(2.2), "what it begins with, then a batch"
    assert len(ends) == 1 + search.batch and all(b - a == pytest.approx(0.1) for a, b in pairwise(ends[1:]))


def test_a_search_that_chooses_slowly_measures_fewer() -> None:
    search, costs = searches(TIMES)["mcts, analytic"], Costs([0.1] * len(SECONDS), [0.01] * len(SECONDS))

    class Ticks:
        now = 0.0

        def __call__(self) -> float:
            self.now += 0.001
            return self.now

    quick, slow = (search.timeline(costs, limit_s=1.0, clock=clock) for clock in (lambda: 0.0, Ticks()))
    assert quick.measured(1.0) > slow.measured(1.0) > 0
    late = search.timeline(costs, begins_s=0.75, limit_s=1.0, clock=lambda: 0.0)
    assert late.measured(1.0) < quick.measured(1.0) and late.chosen_s == 0.75
