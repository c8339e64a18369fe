"""The graph of the tree search, and what corrects predictions in it: shared nodes, values that rise, batches."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from replay_table import BASELINE, KERNELS, chain_table, synthetic_table

from kcg.search.calibration import Calibration, Trial
from kcg.search.mcts import Graph, MctsSettings, candidates, mcts
from kcg.search.moves import least_explored
from kcg.search.problem import Ledger, Trials, best
from kcg.search.replay import constant_predict, oracle_predict
from kcg.types import Opt, Prediction, Schedule
from tests.policies import grown


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


def test_a_batch_holds_no_near_duplicates_where_others_are_as_good() -> None:
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


def test_what_was_rarely_measured_gets_every_second_turn() -> None:
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
    assert least_explored(kinds, predicted, scores, Counter(a=9, b=1), 1) == [3], "the best expected of the kind"
    assert least_explored(kinds, predicted, scores, Counter(a=9, b=1), 5) == [3, 2, 0, 1, 4], (
        "c is predicted far slower"
    )
    assert least_explored([], [], [], Counter(), 3) == []


# Evaluations


@pytest.mark.parametrize("limit", [1, 2, 10, 37, 100])
def test_evaluations_end_within_a_batch_of_children(limit: int) -> None:
    table = synthetic_table()
    most = max(len(r.actions) for r in table.records.values())
    problem = table.problem(oracle_predict(table), ledger=Ledger(max_evaluations=limit))
    found = best(mcts(problem))
    assert min(limit, 2) <= problem.ledger.evaluations < max(limit, 2) + most
    assert problem.ledger.measurements >= 1 and found is not None, "what was found is still measured"


def test_no_evaluation_is_counted_twice() -> None:
    table, asked = synthetic_table(), list[str]()
    oracle = oracle_predict(table)

    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        asked.extend(table.key(s) for s in schedules)
        return oracle(schedules)

    problem = table.problem(predict, max_measurements=12)
    list(mcts(problem))
    assert problem.ledger.evaluations == len(asked) == len(set(asked)) <= KERNELS


def test_what_is_exhausted_is_closed() -> None:
    table = synthetic_table()
    trials = Trials(table.problem(constant_predict()))
    graph = Graph(trials, MctsSettings(near_from=10 * KERNELS))  # what is beside a schedule leads back to it
    while True:
        for _ in range(16):
            graph.simulate()
        if batch := candidates(graph, 32)[0]:
            list(trials.measure(batch))
            graph.learn()
        elif (node := graph.frontier()) is None:
            break
        else:
            graph.expand(node)
    assert [len(graph.nodes), sum(node.closed for node in graph.nodes.values())] == [KERNELS, KERNELS]
    assert graph.simulate() is False


# Priors


def test_without_a_prior_every_option_is_as_likely() -> None:
    table = synthetic_table()
    graph = Graph(Trials(table.problem(oracle_predict(table))), MctsSettings(predictor_prior=False))
    node = graph.nodes[table.key(table.start())]
    graph.expand(node)
    options = [(-1, node.own, node.own, 0), *((i, c.own, c.value, 0) for i, c in enumerate(node.children or ()))]
    assert graph._priors(node, options) == pytest.approx([1 / len(options)] * len(options))


def test_noise_stirs_the_priors_and_they_stay_shares() -> None:
    table = synthetic_table()

    def stirred(share: float, seed: int = 0) -> tuple[Graph, Any, list[float]]:
        graph = grown(seed=seed)
        node = graph.nodes[table.key(table.start())]
        graph.stir(node, share=share, alpha=0.3)
        return graph, node, [node.stop_prior, *node.priors]

    graph, node, calm = stirred(0.0)
    _, _, noisy = stirred(0.25)
    assert sum(calm) == pytest.approx(1.0) == sum(noisy)
    assert noisy != calm and stirred(0.25)[2] == noisy != stirred(0.25, seed=1)[2]
    assert all(abs(a - b) <= 0.25 for a, b in zip(calm, noisy, strict=True)) and min(noisy) >= 0
    for _ in range(200):  # it goes on
        graph.simulate(node)
    assert node.children is not None and len(node.priors) == len(node.children) == len(node.visits)
    assert sum(node.visits) + node.stops > 100
    assert graph.vary()
    assert len(node.priors) == len(node.children) == len(node.visits), "what is linked beside it has no noise"


def test_simulations_that_begin_at_a_node_stay_below_it() -> None:
    table = synthetic_table()
    graph = grown()
    begin = graph.nodes[table.key(table.baseline())]
    for _ in range(40):
        graph.simulate(begin)
    steps = {str(o) for o in table.baseline().opts}
    expanded = [n for n in graph.nodes.values() if n.children is not None]
    assert len(expanded) > 5 and all(steps <= {str(o) for o in n.schedule.opts} for n in expanded)
