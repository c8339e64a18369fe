"""The graph of the tree search, and what corrects predictions in it: shared nodes, values that rise, batches."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest
from replay_table import BASELINE, KERNELS, chain_table, synthetic_table

from kcg.search.calibration import Calibration, Trial
from kcg.search.candidates import candidates
from kcg.search.diversity import seldom
from kcg.search.graph import Graph, MctsSettings
from kcg.search.mcts import mcts
from kcg.search.replay import (
    constant_predict,
    oracle_predict,
)
from kcg.search.trials import Trials
from kcg.types import Opt, Prediction, Schedule


def test_transpositions_share_a_node() -> None:
    table = synthetic_table()
    trials = Trials(table.problem(oracle_predict(table)))
    graph = Graph(trials, MctsSettings())
    while (node := graph.frontier()) is not None:
        graph.expand(node)
    assert len(graph.nodes) == KERNELS < len(table.records)
    top = graph.nodes[table.key(Schedule.from_opts([Opt("LOCAL", 0, 16), Opt("UPCAST", 0, 8)]))]
    assert len(top.parents) == 2
    # a perfect predictor sees the best within reach from the root, whatever the order of steps
    reference = math.log(trials.predict([BASELINE])[0].runtime_s)
    assert graph.root.value == pytest.approx(reference - math.log(table.best_s), abs=1e-9)


def test_measured_values_replace_predicted_ones_up_to_the_root() -> None:
    table = chain_table([4e-6, 3e-6, 2e-6, 1e-6])

    def predict(schedules: Any) -> list[Prediction]:
        return [Prediction(math.log(1e-6 if len(s.opts) == 2 else 4e-6)) for s in schedules]

    trials = Trials(table.problem(predict))
    list(trials.baseline())
    graph = Graph(trials, MctsSettings())
    while (node := graph.frontier()) is not None:
        graph.expand(node)
    promise = graph.root.value
    liar = Schedule.from_opts([Opt("UNROLL", 0, 2)] * 2)
    list(trials.measure([liar]))
    graph.learn()
    assert graph.nodes["2"].own == pytest.approx(math.log(2)) and graph.nodes["2"].doubt == 0
    assert graph.root.value < promise


def test_a_predictor_that_learns_from_measurements_is_asked_again() -> None:
    """It takes one step for as good as three, until it sees that the first gained nothing."""
    table = chain_table([4e-6, 4e-6, 4e-6, 1e-6])

    def predict(schedules: Any) -> list[Prediction]:
        return [Prediction(math.log(1e-6 if s.opts else 4e-6)) for s in schedules]

    def correct(schedules: Any, measured: Any) -> list[Prediction]:
        slow = {len(s.opts) for s, seconds in measured if seconds > 2e-6}
        return [Prediction(math.log(4e-6 if len(s.opts) in slow | {2} else 1e-6), 0.1) for s in schedules]

    problem = table.problem(predict)
    problem.correct = correct
    trials = Trials(problem)
    list(trials.baseline())
    graph = Graph(trials, MctsSettings())
    while (node := graph.frontier()) is not None:
        graph.expand(node)
    assert graph.nodes["2"].own == pytest.approx(0.0), "what is expanded is corrected at once"
    list(trials.measure([Schedule.from_opts([Opt("UNROLL", 0, 2)])]))
    graph.learn()
    assert graph.nodes["2"].own == pytest.approx(0.0) and graph.nodes["2"].doubt == 0.1
    assert graph.nodes["3"].own == pytest.approx(math.log(4))


def test_a_failure_is_a_bad_value_and_closes_when_nothing_is_left() -> None:
    table = chain_table([4e-6, None])
    trials = Trials(table.problem(constant_predict()))
    graph = Graph(trials, MctsSettings())
    while (node := graph.frontier()) is not None:
        graph.expand(node)
    list(trials.measure([table.start(), Schedule.from_opts([Opt("UNROLL", 0, 2)])]))
    graph.learn()
    assert graph.nodes["1"].own == MctsSettings().failure_value
    assert all(n.closed for n in graph.nodes.values())
    assert candidates(graph, 4)[0] == []
    assert graph.simulate() is False


def test_a_batch_holds_no_near_twins_where_others_are_as_good() -> None:
    table = synthetic_table()
    trials = Trials(table.problem(constant_predict()))
    graph = Graph(trials, MctsSettings())
    while (node := graph.frontier()) is not None:
        graph.expand(node)
    chosen = [graph.nodes[table.key(s)].steps for s in candidates(graph, 4)[0]]
    assert all((a ^ b).bit_count() > 2 for a, b in itertools.combinations(chosen, 2))


def test_mcts_with_other_settings() -> None:
    table = synthetic_table()
    problem = table.problem(oracle_predict(table), max_measurements=20)
    assert len(list(mcts(problem, settings=MctsSettings(first=1, expansions=1, simulations=2)))) >= 20


def test_calibration_corrects_offset_neighbours_and_a_backward_predictor() -> None:
    calibration = Calibration()
    assert calibration.expected(Prediction(-3.0), calibration.evidence(1)).log_runtime == -3.0
    calibration.add(Trial(0b1, predicted=-3.0, measured=-5.0))
    assert calibration.expected(Prediction(-4.0), calibration.evidence(0)).log_runtime == pytest.approx(-6.0)
    before = calibration.variance
    for i in range(2, 6):
        calibration.add(Trial(1 << i, predicted=-3.0 - i, measured=-5.0 - i))
    assert calibration.slope == pytest.approx(1.0) and calibration.variance < before
    calibration.add(Trial(0b11 << 60, predicted=-5.0, measured=None))
    near, far = (calibration.evidence(s) for s in (0b1 << 60, 0b1111 << 20))
    sure, unsure = (calibration.expected(Prediction(-5.0), e) for e in (near, far))
    assert sure.failure_probability > 0.2 > unsure.failure_probability

    backward = Calibration()
    for i in range(8):
        backward.add(Trial(1 << i, predicted=float(i), measured=float(-i)))
    assert backward.slope == 0.0


def test_what_was_seldom_measured_gets_every_second_turn() -> None:
    """A correction that saw many of one kind and took the others for worse would never measure those."""
    table = synthetic_table()
    problem = table.problem(constant_predict())
    problem.kind = lambda schedule: len(schedule.opts)
    trials = Trials(problem)
    list(trials.baseline())
    graph = Graph(trials, MctsSettings(broad_from=4))
    while (node := graph.frontier()) is not None:
        graph.expand(node)
    for node in graph.nodes.values():
        node.own -= len(node.schedule.opts)  # corrected: the more steps, the worse
    while len(trials.observations) < 4:
        usual, promised = candidates(graph, 1)
        assert promised == usual and len(usual[0].opts) <= 1
        (graph.nodes[table.key(usual[0])].observation,) = trials.measure(usual)
    seen = {len(o.schedule.opts) for o in trials.observations.values()}
    (broad,), promised = candidates(graph, 1)
    assert len(broad.opts) not in seen, "nothing of its kind was measured"
    assert len(promised[0].opts) in seen, "the batch promises what the usual choice would"
    both, promised = candidates(graph, 2)
    assert {len(s.opts) in seen for s in both} == {True, False} and promised[0] in both


def test_kinds_are_chosen_by_what_is_predicted_and_how_little_is_known() -> None:
    kinds = ["a", "a", "b", "b", "c"]
    predicted = [-10.0, -9.9, -9.95, -9.9, -9.0]
    scores = [1.0, 0.9, 0.1, 0.2, 0.0]
    assert seldom(kinds, predicted, scores, Counter(a=9, b=1), 1) == [3], "the best expected of the kind"
    assert seldom(kinds, predicted, scores, Counter(a=9, b=1), 5) == [3, 2, 0, 1, 4], "c is predicted far slower"
    assert seldom([], [], [], Counter(), 3) == []
