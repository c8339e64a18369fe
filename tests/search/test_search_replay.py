"""Recorded tables in the place of a device, and the budget across regions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kcg.errors import DataError, ScheduleError
from kcg.kernel.opts.schedule import RAW, Opt, schedule_of
from kcg.search.problem import Observation, Predict, Trials, best
from kcg.search.replay import ReplayTable, constant_predict, oracle_predict
from kcg.types import Schedule, Status
from tests.replay_table import chain_table, inverted_predict, noisy_predict, synthetic_table
from tests.table_search import run

# Replay


def test_a_table_survives_json() -> None:
    table = synthetic_table()
    again = ReplayTable.from_json(table.to_json())
    assert again.records == table.records
    assert (again.start(), again.baseline()) == (table.start(), table.baseline())
    assert again.to_json() == table.to_json()


@pytest.mark.slow
def test_a_table_is_recorded_from_a_search() -> None:
    table = synthetic_table()
    observations = run("random", table.problem(constant_predict(), max_measurements=150))
    observations += list(Trials(table.problem(constant_predict())).measure([RAW]))
    recorded = ReplayTable.record(table, observations)
    assert {r.key for r in recorded.records.values()} == {table.key(o.schedule) for o in observations}
    steps = sum(len(r.actions) for r in recorded.records.values())
    assert steps > len(recorded.records)
    reached = [run(name, recorded.problem(oracle_predict(recorded))) for name in ("mcts", "random")]
    assert {o.schedule for o in reached[0]} == {o.schedule for o in reached[1]} <= {o.schedule for o in observations}
    with pytest.raises(DataError, match="was not observed"):
        ReplayTable.record(table, observations[:1])


def corruptions() -> list[Callable[[Any], Any]]:
    def put(name: str, value: Any) -> Callable[[Any], Any]:
        return lambda data: data | {name: value}

    def put_row(name: str, value: Any, row: int = 0) -> Callable[[Any], Any]:
        def change(data: Any) -> Any:
            data["schedules"][row][name] = value
            return data

        return change

    return [
        lambda data: [],
        lambda data: None,
        lambda data: {},
        put("extra", 1),
        put("format", "kcg-replay-9"),
        put("start", 9),
        put("start", True),
        put("baseline", -1),
        put("schedules", {}),
        put("schedules", [1]),
        put_row("kind", "bogus"),
        put_row("kind", []),
        put_row("body", "x"),
        put_row("body", [["UPCAST", 0]]),
        put_row("body", [["UPCAST", 0.5, 1]]),
        put_row("body", [["UNROLL", 0, 2]]),
        put_row("key", 3),
        put_row("status", "fine"),
        put_row("status", "timeout"),
        put_row("runtime_s", 0),
        put_row("runtime_s", -1.0),
        put_row("runtime_s", None),
        put_row("runtime_s", "1"),
        put_row("runtime_s", True),
        put_row("runtime_s", 1, 1),
        put_row("actions", None),
        put_row("actions", [["a"]]),
        put_row("actions", [["a", 2]]),
        put_row("actions", [[0, 0]]),
        put_row("actions", [["a", "0"]]),
        put_row("extra", 1),
    ]


@pytest.mark.parametrize("change", corruptions())
def test_a_corrupted_table_is_refused(change: Callable[[Any], Any]) -> None:
    data = json.loads(chain_table([1e-6, None]).to_json())
    with pytest.raises(DataError, match="replay table"):
        ReplayTable.from_json(json.dumps(change(data)))


@pytest.mark.parametrize("text", ["", "{", "NaN", "[" * 100_000, '{"format":Infinity}', "1" * 5000])
def test_text_that_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="replay table"):
        ReplayTable.from_json(text)


def test_a_truncated_table_is_refused() -> None:
    text = chain_table([1e-6, None]).to_json()
    for end in range(len(text)):
        with pytest.raises(DataError, match="replay table"):
            ReplayTable.from_json(text[:end])


def test_a_table_charges_each_binary_once() -> None:
    table = synthetic_table()
    problem = table.problem(constant_predict())
    same = [schedule_of([Opt("UNROLL", 0, n)]) for n in (4, 8)]
    for _ in range(2):
        first, second = (future.result() for future in problem.measure(same))
        assert first.binary_hash == second.binary_hash
    assert (problem.ledger.measurements, problem.ledger.compilations) == (1, 2)
    with pytest.raises(ScheduleError, match="not in the replay table"):
        problem.measure([schedule_of([Opt("TC", 0, 1)])])


def test_the_predictors_for_ablation() -> None:
    table = synthetic_table()
    schedules = [s for s, r in table.records.items() if r.observation.runtime_s is not None][:50]
    failing = next(s for s, r in table.records.items() if r.observation.runtime_s is None)

    def order(predict: Predict) -> list[Schedule]:
        predictions = predict(schedules)
        return [schedules[i] for i in sorted(range(50), key=lambda i: predictions[i].log_runtime)]

    oracle, backward = oracle_predict(table), inverted_predict(table)
    times = [table.records[s].observation.time_s for s in order(oracle)]
    assert times == sorted(times)
    assert [table.records[s].observation.time_s for s in order(backward)] == times[::-1]
    assert len(set(constant_predict()(schedules))) == 1
    noisy = noisy_predict(table, sigma=0.3, seed=1)
    assert noisy(schedules) == noisy(schedules) != noisy_predict(table, sigma=0.3, seed=2)(schedules)
    assert oracle([failing])[0].failure_probability == 1.0


def test_best_of_observations() -> None:
    ok, better = (Observation(RAW, Status.OK, s) for s in (2e-6, 1e-6))
    failed = Observation(RAW, Status.TIMEOUT, None)
    assert best([]) is None and best([failed]) is None
    assert best(iter([ok, failed, better])) is better
