"""What strategies are made of: drafts that are verified, no near twins, and ways of steps that can be changed."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from kcg.kernel.opts.schedule import RAW, Opt, schedule_of
from kcg.search.beam import Drafts, draft, predicted_beam
from kcg.search.moves import StepSets, Ways, diverse, fresh, near_duplicates
from kcg.search.problem import Trials
from kcg.search.replay import Record, ReplayTable, constant_predict, oracle_predict
from kcg.search.strategies import strategy
from kcg.types import Prediction, Schedule
from tests.replay_table import BASELINE, RECORDED, chain_table, noisy_predict, recorded, synthetic_table, tree_table
from tests.table_search import EXHAUSTING, best_s, run

# Draft, then verify


@pytest.mark.slow
def test_each_draft_is_from_predictions_corrected_by_what_was_measured() -> None:
    """A predictor that knows nothing until it has seen four measurements, and then all."""
    table = recorded("flux")
    oracle, seen = oracle_predict(table), []

    def correct(schedules: Sequence[Schedule], measured: Sequence[tuple[Schedule, float]]) -> list[Prediction]:
        seen.append(len(measured))
        return (oracle if len(measured) >= 4 else constant_predict())(schedules)

    def measured(name: str, seed: int, *, corrected: bool) -> int:
        problem = table.problem(constant_predict(), seed=seed, max_measurements=100)
        problem.correct = correct if corrected else None
        for observation in strategy(name)(problem):
            if observation.time_s == table.best_s:
                break
        return problem.ledger.measurements

    for name in ("predicted-beam", "evolution"):
        seen.clear()
        assert measured(name, 0, corrected=True) <= 24
        assert sorted(seen) == seen and seen[0] == 1 and seen[-1] >= 5
        blind = [measured(name, seed, corrected=False) for seed in range(3)]
        assert sum(measured(name, seed, corrected=True) for seed in range(3)) < 0.5 * sum(blind)


def test_a_batch_of_drafts_holds_no_near_duplicates_where_others_are_as_good() -> None:
    table = synthetic_table()
    trials = Trials(table.problem(constant_predict()))
    drafts, sets = Drafts(trials), StepSets()
    drafts.add(list(table.records))
    for count in (2, 4):
        steps = [sets.of(s) for s in drafts.batch(count)]
        assert len(steps) == count
        assert not any(near_duplicates(a, b) for a, b in itertools.combinations(steps, 2))


def test_drafts_expect_what_was_measured_near_by() -> None:
    table = chain_table([4e-6, 4e-6, 1e-6, 2e-6])
    trials = Trials(table.problem(constant_predict()))
    drafts = Drafts(trials)
    schedules = drafts.add(list(table.records))
    assert len(set(drafts.costs(schedules))) == 1
    list(trials.measure(schedules[2:]))
    assert drafts.costs(schedules)[2:] == [math.log(1e-6), math.log(2e-6)]
    assert drafts.costs(schedules)[1] < drafts.costs(schedules)[0] < math.log(1e-3)
    assert drafts.unmeasured() == schedules[:2] and drafts.best(1) == [schedules[1]]


def test_a_draft_that_is_not_measured_is_best_first() -> None:
    table = recorded("gpt2")
    found = draft(Trials(table.problem(oracle_predict(table))), width=8)
    times = [table.records[s].observation.time_s for s in found]
    assert times == sorted(times) and table.baseline() in found
    assert times[0] < 0.5 * table.records[table.baseline()].observation.time_s


def test_a_wider_beam_over_predictions_predicts_more() -> None:
    table = recorded("flux")
    counts = []
    for width in (1, 4, 16):
        problem = table.problem(noisy_predict(table, sigma=0.3, seed=0), max_measurements=8)
        list(predicted_beam(width)(problem))
        counts.append(problem.ledger.evaluations)
    assert counts == sorted(set(counts))


# No near twins


def test_diverse_picks() -> None:
    steps = [0b1, 0b11, 0b111, 0b1110000, 0b11110000]
    assert diverse([5.0, 4.0, 3.0, 2.0, 1.0], steps, 2, penalty=0.0) == [0, 1]
    assert diverse([1.00, 0.99, 0.98, 0.95, 0.2], steps, 3, penalty=0.1) == [0, 3, 1]
    assert diverse([1.00, 0.99, 0.98, 0.5, 0.4], steps, 3, penalty=0.1) == [0, 1, 2]
    assert diverse([1.0, 1.0], [0b1, 0b10], 9) == [0, 1]
    assert diverse([], [], 4) == [] == diverse([1.0], [1], 0)


def test_diverse_is_the_same_as_trying_all() -> None:
    rng = random.Random(0)
    for _ in range(50):
        scores = [rng.gauss(0.0, 0.2) for _ in range(30)]
        steps = [rng.getrandbits(5) for _ in range(30)]
        left, chosen = list(range(30)), []
        for _ in range(6):
            chosen.append(
                max(left, key=lambda i: scores[i] - 0.1 * sum(near_duplicates(steps[i], steps[c]) for c in chosen))
            )
            left.remove(chosen[-1])
        assert diverse(scores, steps, 6, penalty=0.1) == chosen


def test_step_sets_count_repeated_steps_and_take_other_kinds() -> None:
    sets = StepSets()
    one, two = (schedule_of([Opt("UNROLL", 0, 2)] * n) for n in (1, 2))
    assert sets.of(RAW) == 0 and sets.of(two).bit_count() == 2 and near_duplicates(sets.of(one), sets.of(two))
    assert sets.of(Schedule("source", '"a"')).bit_count() == 1
    assert sets.of(Schedule("source", '"a"')) != sets.of(Schedule("source", '"b"'))


# Schedules as lists of steps


@pytest.mark.parametrize("kernel", RECORDED)
def test_every_change_of_a_schedule_is_reached_by_legal_steps(kernel: str) -> None:
    table = recorded(kernel)
    trials = Trials(table.problem(constant_predict()))
    ways = Ways(trials)
    changes = [ways.with_step, ways.without_step, ways.with_other_step, ways.with_other_amount]
    way, lengths, rng = ways.of(table.baseline()), set(), random.Random(0)
    for schedule in fresh(trials, 40):
        crossed = ways.crossed(way, ways.of(schedule))
        way = rng.choice(changes)(crossed) or crossed
        lengths.add(len(way.labels))
        here = way.origin
        for label in way.labels:
            (here,) = [a.schedule for a in table.actions(here) if a.label == label]
        assert table.key(here) == table.key(way.schedule)
    assert {1, 2, 3} <= lengths


def test_one_step_of_a_way_is_changed() -> None:
    table = synthetic_table()
    ways = Ways(Trials(table.problem(constant_predict())))
    way = ways.of(BASELINE)
    assert way.labels == ("UPCAST(0,4)", "UNROLL(0,4)") and way.origin == RAW
    for _ in range(20):
        more, less, other = ways.with_step(way), ways.without_step(way), ways.with_other_step(way)
        assert more is not None and set(way.labels) < set(more.labels)
        assert less is not None and len(less.labels) == 1 and set(less.labels) < set(way.labels)
        assert other is not None and len(set(other.labels) & set(way.labels)) == 1
    amounts = {ways.with_other_amount(way) for _ in range(20)}
    assert {w.labels for w in amounts if w} == {
        ("UPCAST(0,2)", "UNROLL(0,4)"),
        ("UPCAST(0,8)", "UNROLL(0,4)"),
        ("UPCAST(0,4)", "UNROLL(0,8)"),
    }
    assert ways.without_step(ways.of(RAW)) is None
    followed = ways.follow(RAW, ["UNROLL(0,4)", "nonsense", "UNROLL(0,8)", "LOCAL(0,4)"])
    assert sorted(followed.labels) == ["LOCAL(0,4)", "UNROLL(0,4)"]


def test_what_steps_do_not_reach_stands_alone() -> None:
    """A hand-coded schedule may take Opts that the space does not offer."""
    runtimes = {"": (9.0, "0"), "a": (8.0, "1"), "ab": (3.0, "2")}
    whole = tree_table(runtimes)
    records = [Record(r.key, r.observation, () if r.key == "" else r.actions) for r in whole.records.values()]
    baseline = records[1].observation.schedule
    table = ReplayTable(records, start=RAW, baseline=baseline)
    ways = Ways(Trials(table.problem(constant_predict())))
    way = ways.of(baseline)
    assert (way.origin, way.labels) == (baseline, ()) and ways.without_step(way) is None
    assert ways.of(records[2].observation.schedule).origin == baseline
    for name in EXHAUSTING:
        assert best_s(run(name, table.problem(oracle_predict(table)))) == 3e-6
