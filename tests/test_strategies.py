"""The field of search strategies: each does what its name says, on made-up spaces and on recorded kernels."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest
from replay_table import BASELINE, KERNELS, RECORDED, chain_table, recorded, synthetic_table, tree_table

from kcg.errors import UsageError
from kcg.search.beams import predicted_beam
from kcg.search.diversity import StepSets, diverse, twins
from kcg.search.draft import Drafts, draft
from kcg.search.interface import Ledger, Observation, Predict, Problem, Proposal, Propose, best
from kcg.search.local import AnnealingSettings, annealing
from kcg.search.replay import (
    Record,
    ReplayTable,
    constant_predict,
    inverted_predict,
    noisy_predict,
    oracle_predict,
)
from kcg.search.strategies import STRATEGIES, strategy
from kcg.search.trials import Trials
from kcg.search.walks import Ways, fresh
from kcg.types import RAW, Action, Opt, Prediction, Schedule

POLICIES = [name for name, named in STRATEGIES.items() if named.needs_policy]
UNGUIDED = ["random", "unguided-evolution", "annealing", "full-beam", "full-beam-from-hand-coded", "policy"]
GUIDED = ["epsilon-greedy", "greedy", "evolution", "beam", "predicted-beam", "policy-beam"]
EXHAUSTING = ["epsilon-greedy", "evolution", "unguided-evolution", "annealing", "predicted-beam", *POLICIES]


def informed(table: ReplayTable, *, sharpness: float = 4.0) -> Propose:
    """A policy that prefers steps by the best within reach of them, and stops where nothing better is."""

    within_reach = {s: r.observation.time_s for s, r in table.records.items()}
    while True:  # steps may lead in circles
        better = {s: min(t, *(within_reach[a.schedule] for a in table.actions(s)), t) for s, t in within_reach.items()}
        if better == within_reach:
            break
        within_reach = better

    def propose(schedules: Sequence[Schedule]) -> list[Proposal]:
        answers = []
        for schedule in schedules:
            ends = [table.records[schedule].observation.time_s]
            ends += [within_reach[a.schedule] for a in table.actions(schedule)]
            weights = [end_s**-sharpness if math.isfinite(end_s) else 0.0 for end_s in ends]
            total = sum(weights) or 1.0
            answers.append(Proposal(weights[0] / total, tuple(w / total for w in weights[1:])))
        return answers

    return propose


def always_on(table: ReplayTable) -> Propose:
    """A policy that is sure of the last step there is and never stops."""

    def propose(schedules: Sequence[Schedule]) -> list[Proposal]:
        counts = [len(table.actions(s)) for s in schedules]
        return [Proposal(0.0 if n else 1.0, tuple(float(i == n - 1) for i in range(n))) for n in counts]

    return propose


def problem_of(
    table: ReplayTable, predict: Predict, *, seed: int = 0, max_measurements: int | None = None,
    ledger: Ledger | None = None,
) -> Problem:  # fmt: skip
    """With a policy, for those that need one."""
    problem = table.problem(predict, seed=seed, max_measurements=max_measurements, ledger=ledger)
    problem.propose = informed(table)
    return problem


def run(name: str, problem: Problem) -> list[Observation]:
    return list(strategy(name)(problem))


def best_s(observations: list[Observation]) -> float:
    found = best(observations)
    assert found is not None
    return found.time_s


# Golden searches

GOLDEN = {
    "random": {"gpt2": (2.123, 24), "rope": (1.0, 24), "flux": (1.687, 24)},
    "epsilon-greedy": {"gpt2": (1.02, 24), "rope": (1.153, 24), "flux": (1.0, 24)},
    "greedy": {"gpt2": (1.313, 24), "rope": (1.357, 16), "flux": (1.201, 20)},
    "evolution": {"gpt2": (1.02, 24), "rope": (1.0, 24), "flux": (1.201, 24)},
    "unguided-evolution": {"gpt2": (1.706, 24), "rope": (1.0, 24), "flux": (1.621, 24)},
    "annealing": {"gpt2": (4.777, 24), "rope": (1.357, 24), "flux": (1.296, 24)},
    "beam": {"gpt2": (2.68, 24), "rope": (1.814, 24), "flux": (1.536, 24)},
    "full-beam": {"gpt2": (2.68, 24), "rope": (2.081, 24), "flux": (1.536, 24)},
    "full-beam-from-hand-coded": {"gpt2": (4.778, 7), "rope": (1.357, 5), "flux": (1.957, 1)},
    "predicted-beam": {"gpt2": (1.02, 24), "rope": (1.153, 24), "flux": (1.0, 24)},
    "policy": {"gpt2": (1.0, 24), "rope": (1.0, 24), "flux": (1.0, 24)},
    "policy-beam": {"gpt2": (1.0, 24), "rope": (1.0, 24), "flux": (1.0, 24)},
}
BEAMS_ALONE = {
    1: {"gpt2": (1.02, 38), "rope": (1.814, 15), "flux": (1.201, 33)},
    2: {"gpt2": (1.02, 41), "rope": (1.153, 27), "flux": (1.0, 53)},
    4: {"gpt2": (1.02, 72), "rope": (1.153, 43), "flux": (1.0, 88)},
    8: {"gpt2": (1.02, 112), "rope": (1.153, 74), "flux": (1.0, 152)},
}
"""BEAM as tinygrad has it, without a limit."""


@pytest.mark.parametrize("name", GOLDEN)
def test_a_search_of_a_recorded_kernel_finds_what_it_found_before(name: str) -> None:
    """Of each kernel: the best found over the optimum, with 24 measurements at most, and how many were made."""
    found = {}
    for kernel in RECORDED:
        table = recorded(kernel)
        problem = problem_of(table, noisy_predict(table, sigma=0.3, seed=1), seed=1, max_measurements=24)
        found[kernel] = (round(best_s(run(name, problem)) / table.best_s, 3), problem.ledger.measurements)
    assert found == GOLDEN[name]


@pytest.mark.parametrize("width", BEAMS_ALONE)
def test_full_beam_of_a_recorded_kernel_ends_by_itself_where_it_did_before(width: int) -> None:
    found = {}
    for kernel in RECORDED:
        problem = recorded(kernel).problem(constant_predict())
        fastest_s = best_s(run(f"full-beam:{width}", problem))
        found[kernel] = (round(fastest_s / recorded(kernel).best_s, 3), problem.ledger.measurements)
    assert found == BEAMS_ALONE[width]


# What they find


@pytest.mark.parametrize("name", ["epsilon-greedy", "evolution", "predicted-beam"])
@pytest.mark.parametrize("make", [constant_predict, inverted_predict])
def test_a_useless_predictor_is_overcome_on_recorded_kernels(name: str, make: Callable[..., Predict]) -> None:
    """With 96 measurements three kernels are twice as fast as hand-coded in the geometric mean, and each is faster."""
    gains = []
    for kernel in RECORDED:
        table = recorded(kernel)
        predict = make(table) if make is inverted_predict else make()
        found = run(name, table.problem(predict, seed=2, max_measurements=96))
        gains.append(found[0].time_s / best_s(found))
    assert min(gains) > 1.0 and math.prod(gains) > 2.0**3


def test_a_good_predictor_saves_measurements() -> None:
    """Each guided search against a like one without guidance, with 16 measurements of three kernels and two seeds."""

    def mean_log(name: str) -> float:
        logs = []
        for kernel, seed in itertools.product(RECORDED, range(2)):
            table = recorded(kernel)
            problem = table.problem(noisy_predict(table, sigma=0.3, seed=seed), seed=seed, max_measurements=16)
            logs.append(math.log(best_s(run(name, problem)) / table.best_s))
        return sum(logs) / len(logs)

    assert mean_log("evolution") < 0.5 * mean_log("unguided-evolution")
    assert mean_log("predicted-beam") < 0.5 * mean_log("full-beam")
    assert mean_log("epsilon-greedy") < 0.75 * mean_log("random")


@pytest.mark.parametrize("name", UNGUIDED)
def test_what_claims_no_predictor_asks_none(name: str) -> None:
    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        raise AssertionError("the predictor was asked")

    table = synthetic_table()
    found = run(name, problem_of(table, predict, max_measurements=30))
    assert best_s(found) < found[0].time_s


# Budgets and ends


@pytest.mark.parametrize("name", GUIDED)
@pytest.mark.parametrize("evaluations", [0, 1, 60])
def test_no_more_is_predicted_than_allowed_and_what_was_found_is_measured(name: str, evaluations: int) -> None:
    table = synthetic_table()
    ledger = Ledger(max_measurements=20, max_evaluations=evaluations)
    problem = problem_of(table, oracle_predict(table), ledger=ledger)
    predict, asked = problem.predict, []

    def strict(schedules: Sequence[Schedule]) -> list[Prediction]:
        assert ledger.may_evaluate
        asked.extend(schedules)
        return predict(schedules)

    problem.predict = strict
    found = run(name, problem)
    assert len(asked) == ledger.evaluations
    assert found[0].schedule == BASELINE
    if name in EXHAUSTING:
        assert ledger.measurements == 20
    if evaluations == 60:
        assert best_s(found) < found[0].time_s


@pytest.mark.parametrize("name", EXHAUSTING)
def test_an_exhausted_space_ends_the_search(name: str) -> None:
    table = synthetic_table()
    found = run(name, problem_of(table, noisy_predict(table, sigma=0.5, seed=0)))
    assert len({table.key(o.schedule) for o in found}) == len(found) == KERNELS


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("budget", [0, 1, 2, 7])
def test_policies_keep_to_the_budget(name: str, budget: int) -> None:
    table = synthetic_table()
    problem = problem_of(table, oracle_predict(table), max_measurements=budget)
    found = run(name, problem)
    assert problem.ledger.measurements == budget
    assert [o.schedule for o in found[:1]] == [BASELINE][:budget]


@pytest.mark.parametrize("name", POLICIES)
def test_policies_on_one_action_none_and_failures(name: str) -> None:
    for runtimes in ([2e-6], [2e-6, 1e-6], [None, None, 3e-6, None]):
        table = chain_table(list(runtimes))
        found = run(name, problem_of(table, oracle_predict(table)))
        assert len(found) == len(runtimes) and best_s(found) == table.best_s


@pytest.mark.parametrize("name", EXHAUSTING)
def test_what_is_random_follows_the_seed(name: str) -> None:
    table = recorded("rope")

    def once(seed: int) -> list[Observation]:
        return run(name, problem_of(table, constant_predict(), seed=seed, max_measurements=24))

    assert once(3) == once(3) != once(4)


# BEAM


def test_full_beam_measures_every_child_of_each_level() -> None:
    table = tree_table({
        "": (100, "0"), "a": (50, "1"), "b": (60, "2"), "c": (70, "3"), "aa": (45, "4"), "ab": (44, "5"),
        "ba": (20, "6"), "ca": (1, "7"), "baa": (20, "8"), "bab": (30, "9"), "baba": (2, "10"),
    })  # fmt: skip

    def order(name: str) -> list[str]:
        return [table.key(o.schedule) for o in run(name, table.problem(constant_predict()))]

    assert order("full-beam:1") == ["", "a", "b", "c", "aa", "ab"]  # nothing below `ab`
    assert order("full-beam:2") == ["", "a", "b", "c", "aa", "ab", "ba", "baa", "bab"]  # `baa` is not faster than `ba`
    assert order("full-beam:3")[6:] == ["ba", "ca", "baa", "bab"]  # none of these is faster than `ca`
    assert order("full-beam:3") == order("full-beam:8")


def test_full_beam_keeps_no_two_of_the_same_binary() -> None:
    runtimes = {"": (100.0, "0"), "a": (50.0, "same"), "b": (50.0, "same"), "c": (70.0, "3"), "ca": (10.0, "4")}
    assert best_s(run("full-beam:2", tree_table(runtimes).problem(constant_predict()))) == pytest.approx(10e-6)
    runtimes["b"] = (50.0, "another")
    assert best_s(run("full-beam:2", tree_table(runtimes).problem(constant_predict()))) == pytest.approx(50e-6)


def test_full_beam_begins_where_it_is_told() -> None:
    table = recorded("gpt2")
    level = {table.key(a.schedule) for a in table.actions(table.baseline())}
    found = run("full-beam-from-hand-coded:8", table.problem(constant_predict()))
    assert {table.key(o.schedule) for o in found[1 : len(level) + 1]} == level


# Draft, then verify


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


def test_a_batch_of_drafts_holds_no_near_twins_where_others_are_as_good() -> None:
    table = synthetic_table()
    trials = Trials(table.problem(constant_predict()))
    drafts, sets = Drafts(trials), StepSets()
    drafts.add(list(table.records))
    for count in (2, 4):
        steps = [sets.of(s) for s in drafts.batch(count)]
        assert len(steps) == count
        assert not any(twins(a, b) for a, b in itertools.combinations(steps, 2))


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
    found = draft(table.problem(oracle_predict(table)), width=8)
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
            chosen.append(max(left, key=lambda i: scores[i] - 0.1 * sum(twins(steps[i], steps[c]) for c in chosen)))
            left.remove(chosen[-1])
        assert diverse(scores, steps, 6, penalty=0.1) == chosen


def test_step_sets_count_repeated_steps_and_take_other_kinds() -> None:
    sets = StepSets()
    one, two = (Schedule.from_opts([Opt("UNROLL", 0, 2)] * n) for n in (1, 2))
    assert sets.of(RAW) == 0 and sets.of(two).bit_count() == 2 and twins(sets.of(one), sets.of(two))
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
        ("UPCAST(0,2)", "UNROLL(0,4)"), ("UPCAST(0,8)", "UNROLL(0,4)"), ("UPCAST(0,4)", "UNROLL(0,8)")
    }  # fmt: skip
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
        assert best_s(run(name, problem_of(table, oracle_predict(table)))) == 3e-6


@pytest.mark.parametrize(("temperature", "reached"), [(5.0, 3), (0.01, 2)])
def test_annealing_goes_uphill_where_it_is_hot(temperature: float, reached: int) -> None:
    """Beyond a schedule that is four times slower waits one that is twice as fast."""
    table = tree_table({"": (2.0, "0"), "a": (8.0, "1"), "ab": (1.0, "2")})
    seconds = itertools.count()
    ledger = Ledger(deadline=1000.0, clock=lambda: float(next(seconds)))
    settings = AnnealingSettings(hot=temperature, cold=temperature, idle=10_000, patience=10_000)
    assert len(list(annealing(settings=settings)(table.problem(constant_predict(), ledger=ledger)))) == reached


def test_annealing_cools_down_with_the_budget() -> None:
    """What is slower is taken less and less: the last that is measured is faster than where it stays hot."""
    table = recorded("flux")

    def mean_of_last(cold: float) -> float:
        logs = []
        for seed in range(4):
            problem = table.problem(constant_predict(), seed=seed, max_measurements=40)
            found = list(annealing(settings=AnnealingSettings(hot=5.0, cold=cold))(problem))
            logs += [math.log(o.time_s) for o in found[-10:] if o.runtime_s is not None]
        return sum(logs) / len(logs)

    assert mean_of_last(0.01) < mean_of_last(5.0) - 0.5


# Policies


@pytest.mark.parametrize("name", POLICIES)
def test_without_a_policy_there_is_an_error_before_anything_is_measured(name: str) -> None:
    problem = synthetic_table().problem(constant_predict())
    with pytest.raises(UsageError, match="follows a policy, and there is none"):
        strategy(name)(problem)
    assert problem.ledger.compilations == 0


def test_the_first_rollouts_take_the_likeliest_steps() -> None:
    table = recorded("gpt2")
    propose = informed(table)

    def likeliest(schedule: Schedule) -> str:
        while True:
            (proposal,) = propose([schedule])
            if not proposal.steps or proposal.stop >= max(proposal.steps):
                return table.key(schedule)
            schedule = table.actions(schedule)[proposal.steps.index(max(proposal.steps))].schedule

    found = run("policy", problem_of(table, constant_predict(), max_measurements=16))
    assert [table.key(o.schedule) for o in found[1:3]] == list(
        dict.fromkeys(map(likeliest, (table.start(), table.baseline())))
    )
    assert best_s(found) == table.best_s


@pytest.mark.parametrize("name", ["policy", "policy-beam:4"])
def test_an_informed_policy_finds_with_fewer_measurements_than_a_blunt_one(name: str) -> None:
    table = recorded("flux")

    def found_s(sharpness: float) -> float:
        problem = table.problem(noisy_predict(table, sigma=0.3, seed=0), max_measurements=8)
        problem.propose = informed(table, sharpness=sharpness)
        return best_s(run(name, problem))

    assert found_s(4.0) < 1.05 * table.best_s < found_s(0.0)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_is_sure_and_wrong_does_not_keep_the_search_from_going_on(name: str) -> None:
    table = recorded("rope")
    problem = table.problem(noisy_predict(table, sigma=0.3, seed=0), max_measurements=60)
    problem.propose = always_on(table)
    found = run(name, problem)
    assert problem.ledger.measurements == 60
    assert best_s(found) < 0.8 * found[0].time_s


def test_a_rollout_does_not_walk_in_circles() -> None:
    ring = chain_table([5e-6, 9e-6, 8e-6, 2e-6])
    table = ReplayTable(
        (
            Record(r.key, r.observation, (Action("on", list(ring.records)[(int(r.key) + 1) % 4]),))
            for r in ring.records.values()
        ),
        start=ring.start(), baseline=ring.baseline(),
    )  # fmt: skip
    problem = table.problem(constant_predict())
    problem.propose = always_on(table)
    found = run("policy", problem)
    assert [table.key(o.schedule) for o in found[:2]] == ["0", "3"]  # once around, and not back to the start
    assert len(found) == 4
