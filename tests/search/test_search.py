"""Search strategies on replayed tables: they find, they stop, they respect the budget, and they repeat themselves."""

from __future__ import annotations

import dataclasses
import itertools
import random
import statistics
from collections.abc import Sequence
from typing import Any

import pytest

from kcg.errors import UnknownName
from kcg.kernel.opts.schedule import Opt, opts_of, schedule_of
from kcg.search.mcts import MctsSettings
from kcg.search.problem import Action, Ledger, Observation, Predict, Problem, best
from kcg.search.replay import ReplayTable, constant_predict, oracle_predict
from kcg.search.strategies import STRATEGIES, strategy
from kcg.types import Prediction, Schedule
from tests.replay_table import BASELINE, KERNELS, Wrapped, chain_table, inverted_predict, noisy_predict, synthetic_table
from tests.slow import every, some
from tests.table_search import EXHAUSTING, best_s, run

NAMES = [*STRATEGIES, "beam:1", "beam:8"]
SEARCHES = [n for n in NAMES if n != "hand-coded"]
SOME = some(SEARCHES, {"random", "prior", "evolution", "beam", "mcts"})


def baseline_s() -> float:
    return synthetic_table().records[BASELINE].observation.time_s


def first_within(name: str, problem: Problem, time_s: float) -> list[Observation]:
    """What is measured until something takes no more than `time_s`, or until the search ends."""
    found = []
    for observation in strategy(name)(problem):
        found.append(observation)
        if observation.time_s <= time_s:
            break
    return found


# What they find


def test_the_synthetic_space_has_the_size_it_claims() -> None:
    table = synthetic_table()
    assert len(table.records) == 3420
    assert len({r.key for r in table.records.values()}) == KERNELS
    assert table.best_s < baseline_s() / 5


@pytest.mark.parametrize("name", ["greedy", "beam", "beam:1", "beam:8"])
def test_beam_and_greedy_stop_before_the_valley(name: str) -> None:
    table = synthetic_table()
    problem = table.problem(oracle_predict(table))  # without a limit: they stop by themselves
    found = best_s(run(name, problem))
    assert 40e-6 < found < baseline_s()


@pytest.mark.parametrize("sigma", [0.0, 0.2, 0.5])
def test_mcts_crosses_the_valley(sigma: float) -> None:
    table = synthetic_table()
    for seed in range(3):
        problem = table.problem(noisy_predict(table, sigma=sigma, seed=seed), seed=seed, max_measurements=60)
        assert best_s(first_within("mcts", problem, table.best_s)) == table.best_s


# all but the prior, which believes it, whatever it sees
@pytest.mark.parametrize("name", every(3, [name for name in SEARCHES if name != "prior"]))
@pytest.mark.parametrize("predictor", ["constant", "inverted"])
def test_a_useless_predictor_does_not_keep_a_search_from_improving(name: str, predictor: str) -> None:
    table = synthetic_table()
    predict = constant_predict() if predictor == "constant" else inverted_predict(table)
    for seed in range(5):
        problem = table.problem(predict, seed=seed, max_measurements=60)
        found = first_within(name, problem, 0.79 * baseline_s())
        assert found[0].schedule == BASELINE
        assert best_s(found) < 0.8 * baseline_s()


def test_mcts_needs_fewer_measurements_than_random() -> None:
    table = synthetic_table()

    def needed(name: str, seed: int) -> int:
        problem = table.problem(noisy_predict(table, sigma=0.2, seed=seed), seed=seed, max_measurements=150)
        first_within(name, problem, 1.2 * table.best_s)
        return problem.ledger.measurements

    mean = {name: statistics.mean(needed(name, seed) for seed in range(8)) for name in ("mcts", "random")}
    assert mean["mcts"] < 0.5 * mean["random"]


def test_mcts_asks_for_few_expansions() -> None:
    table = synthetic_table()
    asked: list[Schedule] = []

    class Counting(Wrapped):
        def actions(self, schedule: Schedule) -> list[Action]:
            asked.append(schedule)
            return super().actions(schedule)

    problem = table.problem(noisy_predict(table, sigma=0.3, seed=0), max_measurements=60)
    problem.space = Counting(table)
    run("mcts", problem)
    assert len({table.key(s) for s in asked}) == len(asked)  # none twice, by whatever order of steps
    assert len(asked) / (problem.ledger.measurements / problem.batch_size) <= MctsSettings().expansions + 2


def test_another_way_to_a_known_kernel_is_not_judged_again() -> None:
    """Where the predictor corrects itself it is asked about every schedule by name, and answers by its networks."""
    table = synthetic_table()
    problem = table.problem(noisy_predict(table, sigma=0.3, seed=0), max_measurements=20)
    predicted: set[Schedule] = set()
    corrected: set[Schedule] = set()
    plain = problem.predict

    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        predicted.update(schedules)
        return plain(schedules)

    def correct(schedules: Sequence[Schedule], measured: Sequence[tuple[Schedule, float]]) -> list[Prediction]:
        corrected.update(schedules)
        return plain(schedules)

    problem.predict, problem.correct = predict, correct
    run("mcts", problem)
    assert len(corrected) > 50 and corrected <= predicted
    assert len({table.key(s) for s in predicted}) == len(predicted)


def test_hand_coded_measures_the_baseline_and_nothing_else() -> None:
    table = synthetic_table()
    assert [o.schedule for o in run("hand-coded", table.problem(constant_predict()))] == [BASELINE]


# Budgets and ends


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", every(2, [0, 1, 2, 7, 33]))
def test_the_budget_is_never_exceeded(name: str, budget: int) -> None:
    table = synthetic_table()
    problem = table.problem(oracle_predict(table), max_measurements=budget)
    found = run(name, problem)
    binaries = {o.binary_hash for o in found if o.binary_hash}
    assert len(binaries) == problem.ledger.measurements <= budget
    assert [o.schedule for o in found[:1]] == [BASELINE][:budget]
    assert len({table.key(o.schedule) for o in found}) == len(found)  # no kernel twice
    if name in ("mcts", "random"):
        assert problem.ledger.measurements == budget


@pytest.mark.parametrize("name", NAMES)
def test_compilations_are_a_budget_too(name: str) -> None:
    table = synthetic_table()
    problem = table.problem(oracle_predict(table), ledger=Ledger(max_compilations=10))
    run(name, problem)
    assert problem.ledger.compilations <= 10


@pytest.mark.parametrize("name", some(["mcts", "random", *EXHAUSTING], {"mcts", "random", EXHAUSTING[0]}))
def test_an_exhausted_space_ends_the_search(name: str) -> None:
    table = synthetic_table(2)
    found = run(name, table.problem(inverted_predict(table)))
    assert {table.key(o.schedule) for o in found} == {r.key for r in table.records.values()}
    assert len(found) == 60 < len(table.records)  # some by two orders of steps


@pytest.mark.parametrize("name", SEARCHES)
def test_one_action_or_none(name: str) -> None:
    for runtimes in ([2e-6], [2e-6, 1e-6]):
        table = chain_table(list(runtimes))
        assert best_s(run(name, table.problem(oracle_predict(table)))) == min(runtimes)


@pytest.mark.parametrize("name", NAMES)
def test_a_space_where_everything_fails_ends(name: str) -> None:
    table = chain_table([None] * 6, baseline=3)
    found = run(name, table.problem(constant_predict()))
    assert best(found) is None
    assert len({o.schedule for o in found}) == len(found)
    if name in ("mcts", "random"):
        assert len(found) == 6


def test_mcts_goes_on_where_the_baseline_fails() -> None:
    table = chain_table([4e-6, 3e-6, None, 1e-6, None], baseline=2)
    assert best_s(run("mcts", table.problem(noisy_predict(table, sigma=0.1, seed=0)))) == 1e-6


def test_a_space_with_cycles_ends() -> None:
    """SWAP twice is the kernel that it began with."""
    ring = [schedule_of([Opt("SWAP", 0, 1)] * i) for i in range(4)]

    class Ring(Wrapped):
        def actions(self, schedule: Schedule) -> list[Action]:
            i = int(self.key(schedule))
            return [Action("next", ring[(i + 1) % 4]), Action("back", ring[i - 1]), Action("stay", ring[i])]

        def key(self, schedule: Schedule) -> str:
            return str(len(opts_of(schedule)) % 4)

    records = chain_table([5e-6, 9e-6, 8e-6, 2e-6]).records.values()
    seen = {ring[i]: dataclasses.replace(r.observation, schedule=ring[i]) for i, r in enumerate(records)}
    table = ReplayTable(
        (dataclasses.replace(r, observation=seen[s], actions=()) for r, s in zip(records, ring, strict=True)),
        start=ring[0],
        baseline=ring[1],
    )
    for name in SEARCHES:
        problem = table.problem(oracle_predict(table))
        problem.space = Ring(table)
        assert best_s(run(name, problem)) == 2e-6


@pytest.mark.parametrize("name", SEARCHES)
def test_a_deadline_is_respected_within_one_step(name: str) -> None:
    """Every call costs fake seconds; after the deadline at most the step in progress and its batch are finished."""
    table = synthetic_table()
    now = [0.0]
    late: list[str] = []

    def spend(seconds: float, what: str) -> None:
        if now[0] >= 20.0:
            late.append(what)
        now[0] += seconds

    class Slow(Wrapped):
        def actions(self, schedule: Schedule) -> list[Action]:
            spend(0.2, "actions")
            return super().actions(schedule)

    ledger = Ledger(deadline=20.0, clock=lambda: now[0])
    problem = table.problem(oracle_predict(table), ledger=ledger)
    predict, measure = problem.predict, problem.measure
    problem.space = Slow(table)

    def slow_predict(schedules: Any) -> list[Prediction]:
        spend(0.01, "predict")
        return predict(schedules)

    def slow_measure(schedules: Any) -> Any:
        spend(0.5 * len(schedules), "measure")
        return measure(schedules)

    problem.predict, problem.measure = slow_predict, slow_measure
    observations = run(name, problem)
    assert best(observations) is not None
    assert now[0] < 20.0 + 0.5 * problem.batch_size + 0.2 * 8  # a batch, or one walk of at most 8 steps
    assert "measure" not in late
    assert late.count("actions") <= 8


# The same again


@pytest.mark.parametrize("name", SOME)
def test_a_search_repeats_itself_under_its_seed(name: str) -> None:
    table = synthetic_table()

    def once(seed: int, predict: Predict) -> list[Observation]:
        return run(name, table.problem(predict, seed=seed, max_measurements=12))

    for predict in (noisy_predict(table, sigma=0.5, seed=1), constant_predict()):
        assert once(3, predict) == once(3, predict)
    if name in ("mcts", "random", *EXHAUSTING):  # where the predictor does not tell schedules apart, the seed does
        assert once(3, constant_predict()) != once(4, constant_predict())


@pytest.mark.parametrize("name", SOME)
def test_a_search_can_be_suspended(name: str) -> None:
    """Two searches taking turns find what each finds alone."""
    table = synthetic_table()

    def problem(seed: int) -> Problem:
        return table.problem(noisy_predict(table, sigma=0.5, seed=1), seed=seed, max_measurements=12)

    alone = [run(name, problem(seed)) for seed in (0, 1)]
    turns: list[list[Observation]] = [[], []]
    searches = [strategy(name)(problem(seed)) for seed in (0, 1)]
    for first, second in itertools.zip_longest(*searches):
        for turn, observation in zip(turns, (first, second), strict=True):
            if observation is not None:
                turn.append(observation)
    assert turns == alone


@pytest.mark.parametrize("name", SOME)
def test_what_is_known_is_used_and_never_measured_again(name: str) -> None:
    table = synthetic_table()
    first = table.problem(noisy_predict(table, sigma=0.5, seed=1), max_measurements=30)
    before = run(name, first)
    assert list(first.known) == [o.schedule for o in before]

    second = table.problem(noisy_predict(table, sigma=0.5, seed=1), max_measurements=30, seed=9)
    second.known = dict(first.known)
    second.known[schedule_of([Opt("TC", 0, 1)])] = before[0]  # no longer in the space
    after = run(name, second)
    assert not {table.key(o.schedule) for o in before} & {table.key(o.schedule) for o in after}
    if name == "mcts":
        assert min(best_s(before), best_s(after)) == table.best_s


def test_the_registry_knows_its_names() -> None:
    assert list(STRATEGIES) == [
        "hand-coded",
        "random",
        "prior",
        "epsilon-greedy",
        "greedy",
        "evolution",
        "unguided-evolution",
        "annealing",
        "beam",
        "full-beam",
        "full-beam-from-hand-coded",
        "predicted-beam",
        "mcts",
        "mcts-no-prior",
        "frugal-mcts",
    ]
    for bad in ("bogus", "beam:0", "beam:", "beam:x", "beam:-1", "beam:²", "beam:99999999999", "mcts:4", ""):
        with pytest.raises(UnknownName, match="unknown search strategy"):
            strategy(bad)


def test_no_strategy_uses_the_global_random_state() -> None:
    table = synthetic_table()
    random.seed(0)
    state = random.getstate()
    for name in NAMES:
        run(name, table.problem(oracle_predict(table), max_measurements=10))
    assert random.getstate() == state
