"""A policy leads a tree search that measuring corrects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from replay_table import KERNELS, chain_table, synthetic_table

from kcg.search.candidates import candidates
from kcg.search.graph import Graph, MctsSettings
from kcg.search.interface import Ledger, Predict, Proposal, Propose, best
from kcg.search.mcts import mcts
from kcg.search.replay import ReplayTable, constant_predict, inverted_predict, noisy_predict, oracle_predict
from kcg.search.tables import read_tables
from kcg.search.trials import Trials
from kcg.types import Prediction, Schedule
from tests.policies import grown

DATASET = Path(__file__).parent.parent / "datasets" / "h200"
RECORDED = "2ba8d632"
DEFAULTS = MctsSettings(first=32, expansions=32)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@cache
def recorded() -> ReplayTable:
    import pyarrow.parquet as parquet

    ids = parquet.read_table(DATASET / "replay.parquet", columns=["region_id"])["region_id"].to_pylist()
    (named,) = read_tables(DATASET, regions=[i for i in ids if i.startswith(RECORDED)])
    return named.table


@cache
def tables() -> list[ReplayTable]:
    return [synthetic_table(), recorded()]


@cache
def even(table: ReplayTable) -> Propose:
    """Every step and stopping alike."""
    counts = {s: 1 + len(table.actions(s)) for s in table.records}
    return lambda schedules: [Proposal(1 / (n := counts[s]), (1 / n,) * (n - 1)) for s in schedules]


@cache
def knowing(table: ReplayTable, *, sign: float = 1.0) -> Propose:
    """Prefers steps by the best within reach of them, and stops where nothing better is; with sign -1 the reverse."""
    reach = {s: r.observation.time_s for s, r in table.records.items()}
    changed = True
    while changed:  # steps may lead in circles
        after = {s: min([t, *(reach[a.schedule] for a in table.records[s].actions)]) for s, t in reach.items()}
        changed, reach = after != reach, after

    def propose(schedules: Sequence[Schedule]) -> list[Proposal]:
        answers = []
        for schedule in schedules:
            ends = [table.records[schedule].observation.time_s, *(reach[a.schedule] for a in table.actions(schedule))]
            weights = [end_s ** (-4.0 * sign) if math.isfinite(end_s) else 0.0 for end_s in ends]
            total = sum(weights) or 1.0
            answers.append(Proposal(weights[0] / total, tuple(w / total for w in weights[1:])))
        return answers

    return propose


def misled(table: ReplayTable) -> Propose:
    """Prefers what leads astray."""
    return knowing(table, sign=-1.0)


def searched(
    table: ReplayTable, predict: Predict, propose: Propose | None, *, seed: int = 0,
    settings: MctsSettings = DEFAULTS, **limits: int,
) -> tuple[float, Ledger]:  # fmt: skip
    """The best runtime found over the optimum of the table, and what it cost."""
    ledger = Ledger(**limits)
    problem = table.problem(predict, seed=seed, ledger=ledger)
    problem.propose = propose
    found = best(mcts(problem, settings=settings))
    assert found is not None
    return found.time_s / table.best_s, ledger


def evaluations_needed(table: ReplayTable, predict: Predict, propose: Propose, *, seed: int) -> int:
    """Until a schedule within 2 % of the optimum is measured."""
    problem = table.problem(predict, seed=seed)
    problem.propose = propose
    for seen in mcts(problem, settings=MctsSettings(widen=4, first=4, expansions=4)):
        if seen.time_s <= 1.02 * table.best_s:
            break
    return problem.ledger.evaluations


def test_a_policy_that_knows_the_way_needs_fewer_evaluations() -> None:
    needed = {
        make: sum(
            evaluations_needed(table, noisy_predict(table, sigma=2.0, seed=seed), make(table), seed=seed)
            for table, seed in itertools.product(tables(), range(2))
        )
        for make in (knowing, even)
    }
    assert needed[knowing] < 0.7 * needed[even], needed


def test_with_few_evaluations_it_finds_what_a_uniform_policy_does_not() -> None:
    settings, table = MctsSettings(widen=2, first=4, expansions=4), synthetic_table()
    for seed in range(3):
        knew, _ = searched(table, constant_predict(), knowing(table), seed=seed, settings=settings, max_evaluations=50)
        did_not, _ = searched(table, constant_predict(), even(table), seed=seed, settings=settings, max_evaluations=50)
        assert knew < 1.02 and did_not > 1.2


@pytest.mark.parametrize(("predictor", "make"), [("constant", even), ("inverted", knowing), ("inverted", misled)])
def test_a_useless_predictor_and_policy_are_overcome_by_measuring(make: Any, predictor: str) -> None:
    for table in tables():
        predict = constant_predict() if predictor == "constant" else inverted_predict(table)
        baseline_s = table.records[table.baseline()].observation.time_s
        problem = table.problem(predict, seed=1, max_measurements=96)
        problem.propose = make(table)
        found = []
        for seen in mcts(problem, settings=DEFAULTS):
            found.append(seen.time_s)
            if seen.time_s < 0.8 * baseline_s:
                break
        assert found[0] == baseline_s and min(found) < 0.8 * baseline_s


@pytest.mark.parametrize("widen", [2, 12])
@pytest.mark.parametrize("limit", [1, 2, 10, 37, 100])
def test_evaluations_end_within_a_batch_of_children(limit: int, widen: int) -> None:
    for table in tables():
        settings = MctsSettings(widen=widen)
        ratio, ledger = searched(table, oracle_predict(table), even(table), settings=settings, max_evaluations=limit)
        assert min(limit, 2) <= ledger.evaluations < max(limit, 2) + widen
        assert ledger.measurements >= 1 and ratio < math.inf, "what was found is still measured"
        _, ledger = searched(table, oracle_predict(table), None, max_evaluations=limit)
        most = max(len(r.actions) for r in table.records.values())
        assert ledger.evaluations < max(limit, 2) + most


def test_no_evaluation_is_counted_twice() -> None:
    table, asked = synthetic_table(), list[str]()
    oracle = oracle_predict(table)

    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        asked.extend(table.key(s) for s in schedules)
        return oracle(schedules)

    _, ledger = searched(table, predict, even(table), max_measurements=12)
    assert ledger.evaluations == len(asked) == len(set(asked)) < KERNELS


@pytest.mark.parametrize(("make", "widen"), [(even, 1), (knowing, 2), (even, 2), (knowing, 12)])
def test_progressive_widening_reaches_every_schedule_in_the_end(make: Any, widen: int) -> None:
    table = synthetic_table(2)
    problem = table.problem(constant_predict(), batch_size=32)
    problem.propose = make(table)
    seen = [table.key(o.schedule) for o in mcts(problem, settings=MctsSettings(widen=widen, simulations=2))]
    assert set(seen) == {r.key for r in table.records.values()} and len(seen) == 60


@pytest.mark.parametrize("widen", [1, 3])
def test_what_is_exhausted_is_closed(widen: int) -> None:
    """The last choices of a node may all be closed from elsewhere before it is widened to them."""
    table = synthetic_table()
    problem = table.problem(constant_predict())
    problem.propose = even(table)
    trials = Trials(problem)
    graph = Graph(trials, MctsSettings(widen=widen))
    while True:
        for _ in range(16):
            graph.simulate()
        if batch := candidates(graph, 32)[0]:
            list(trials.measure(batch))
            graph.learn()
        elif (node := graph.frontier()) is None:
            break
        elif node.held_back:
            graph.widen(node)
        else:
            graph.expand(node)
    assert len(graph.nodes) == KERNELS and all(node.closed for node in graph.nodes.values())
    assert graph.simulate() is False


def test_the_policys_first_choices_are_predicted_first() -> None:
    table = synthetic_table()
    propose = knowing(table)
    graph = grown(propose, widen=3)
    node = graph.nodes[table.key(table.start())]
    graph.expand(node)
    (proposal,) = propose([table.start()])
    chances = dict(zip((a.schedule for a in table.actions(table.start())), proposal.steps, strict=True))
    order = sorted(chances, key=lambda s: -chances[s])
    assert node.children is not None and [c.schedule for c in node.children] == order[:3]
    assert node.priors == [chances[s] for s in order[:3]] and node.stop_prior == proposal.stop
    assert [s for s, _ in node.held_back] == order[3:]
    visits = 0
    while len(node.children) == 3:
        assert visits <= 3
        graph.simulate(node)
        visits = sum(node.visits)
    assert [c.schedule for c in node.children] == order[:6] and len(node.priors) == len(node.visits) == 6


def test_without_a_prior_every_option_is_as_likely() -> None:
    table = synthetic_table()
    problem = table.problem(oracle_predict(table))
    graph = Graph(Trials(problem), MctsSettings(predictor_prior=False))
    node = graph.nodes[table.key(table.start())]
    graph.expand(node)
    options = [(-1, node.own, node.own, 0), *((i, c.own, c.value, 0) for i, c in enumerate(node.children or ()))]
    assert graph._priors(node, options) == pytest.approx([1 / len(options)] * len(options))
    ignoring = table.problem(oracle_predict(table))
    ignoring.propose = lambda schedules: pytest.fail("it is not asked")
    Graph(Trials(ignoring), MctsSettings(policy=False)).simulate()


@pytest.mark.parametrize("led", [False, True])
def test_noise_stirs_the_priors_and_they_stay_shares(led: bool) -> None:
    table = synthetic_table()

    def stirred(share: float, seed: int = 0) -> tuple[Graph, Any, list[float]]:
        graph = grown(knowing(table) if led else None, widen=4, seed=seed)
        node = graph.nodes[table.key(table.start())]
        graph.stir(node, share=share, alpha=0.3)
        return graph, node, [node.stop_prior, *node.priors]

    graph, node, calm = stirred(0.0)
    _, _, noisy = stirred(0.25)
    assert sum(calm) == pytest.approx(1.0) == sum(noisy)
    assert stirred(0.25)[2] == noisy and stirred(0.25, seed=1)[2] != noisy != calm
    assert all(abs(a - b) <= 0.25 for a, b in zip(calm, noisy, strict=True)) and min(noisy) >= 0
    if led:
        assert calm[1:] == sorted(calm[1:], reverse=True), "in the order of the policy"
    for _ in range(200):  # it goes on, also where it is widened
        graph.simulate(node)
    assert node.children is not None and len(node.priors) == len(node.children) == len(node.visits)
    assert sum(node.visits) + node.stops > 100


def test_simulations_that_begin_at_a_node_stay_below_it() -> None:
    table = synthetic_table()
    graph = grown(even(table))
    begin = graph.nodes[table.key(table.baseline())]
    for _ in range(40):
        graph.simulate(begin)
    steps = {str(o) for o in table.baseline().opts}
    expanded = [n for n in graph.nodes.values() if n.children is not None]
    assert len(expanded) > 5 and all(steps <= {str(o) for o in n.schedule.opts} for n in expanded)


@pytest.mark.parametrize("runtimes", [[4e-6], [4e-6, 2e-6], [None, 2e-6], [4e-6, None]])
def test_one_step_none_and_failures_with_a_policy(runtimes: list[float | None]) -> None:
    table = chain_table(runtimes, baseline=len(runtimes) - 1 if runtimes[0] is None else 0)
    problem = table.problem(constant_predict())
    problem.propose = even(table)
    assert len(list(mcts(problem))) == len(runtimes)
