"""Several kernels searched at once: who is granted what, when it ends, and that a process can do the thinking."""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.kernel.codec import kernel_of
from kcg.kernel.kinds import StepSpace, describe, kind_named
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.tile.space import TileSpace
from kcg.optimize.search import watched
from kcg.optimize.settings import strategy_of
from kcg.predictor.cost import KnownCost
from kcg.predictor.interface import Judge
from kcg.predictor.roofline import Roofline
from kcg.search.allocation import MOST_ALONE, MOST_AT_ONCE, Allocator, Hint, Limits
from kcg.search.problem import Ledger, Measure, Observation, Problem, expected_improvement
from kcg.search.replay import ReplayTable, constant_predict, oracle_predict
from kcg.search.strategies import strategy
from kcg.search.uniform import Draws
from kcg.search.workers import FromItsStart, SearchJob, SearchWorkers, _Worker
from kcg.types import Region, Schedule, ScheduleKind, Status
from kcg.unexpected import reported_to
from tests.faults import processes
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.replay_table import chain_table, synthetic_table
from tests.waiting import PATIENCE_S, wait_until


def entered(
    allocator: Allocator, table: ReplayTable, name: str = "a", *, calls: int = 1, search: str = "mcts"
) -> Problem:
    problem = table.problem(oracle_predict(table), ledger=allocator.ledger)
    allocator.enter(name, calls, problem, strategy(search))
    return problem


def test_expected_improvement_is_the_mean_of_what_a_lognormal_runtime_saves() -> None:
    steps = 20_000
    for log_s, doubt, best_s in ((-7.0, 0.3, 1e-3), (-6.0, 0.5, 1e-3), (-7.5, 0.1, 6e-4)):
        draws = [log_s + doubt * _quantile((i + 0.5) / steps) for i in range(steps)]
        mean = sum(max(0.0, 1.0 - math.exp(x) / best_s) for x in draws) / steps
        assert expected_improvement(log_s, doubt, best_s) == pytest.approx(mean, abs=2e-4)
    assert expected_improvement(0.0, 0.0, 1e-6) == pytest.approx(0.0, abs=1e-9)


def _quantile(p: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(p)


def test_the_budget_is_spent_where_it_saves_most_and_never_exceeded() -> None:
    fast = chain_table([1e-3, 9e-4, 8e-4, 7e-4, 6e-4, 5e-4])
    ledger, order = Ledger(max_measurements=13), list[str]()
    allocator = Allocator(ledger, Limits(measuring=2, batch=1), report=lambda name, _: order.append(name))
    for name, calls in (("often", 1000), ("seldom", 1)):
        entered(allocator, fast, name, calls=calls)
    allocator.run()
    often, least_explored = allocator.entries
    assert ledger.measurements <= 13 and often.best_s == 5e-4
    assert order[:3] == ["often", "seldom", "often"], "both as tinygrad schedules them, then where it counts"
    assert len(often.saw) >= len(least_explored.saw) and often.saw[0].schedule == fast.baseline()


def test_what_arrives_while_others_are_searched_is_searched_too() -> None:
    asked = list[int]()

    def arriving() -> bool:
        asked.append(len(allocator.entries))
        if len(asked) == 3:
            entered(allocator, chain_table([1e-3, 9e-4, 8e-4]), "late")
        return len(asked) < 3

    limits = Limits(measuring=4, searching=2, alternate=False)
    allocator = Allocator(Ledger(max_measurements=20), limits, arriving=arriving)
    allocator.run()
    assert asked == [0, 0, 0], "it ends only once there is nothing more to come"
    assert [entry.best_s for entry in allocator.entries] == [8e-4] and allocator.settled


def test_what_saves_less_than_the_device_is_worth_to_others_meanwhile_waits() -> None:
    """tinygrad's own schedule does not: without it there is nothing to save."""
    order, asked = list[str](), list[int]()

    def elsewhere() -> float:
        asked.append(len(order))
        return 1e9 if asked.count(1) < 3 else 0.0

    limits = Limits(measuring=2, searching=1, alternate=False)
    allocator = Allocator(
        Ledger(max_measurements=5), limits, report=lambda name, _: order.append(name), elsewhere=elsewhere
    )
    entered(allocator, chain_table([1e-3, 9e-4, 8e-4, 7e-4, 6e-4, 5e-4]))
    allocator.run()
    assert asked.count(1) >= 3, "it neither measures nor ends"
    assert len(order) > 1 and allocator.entries[0].best_s == 5e-4


def test_what_saves_more_by_a_schedule_does_not_wait_behind_what_saves_most() -> None:
    """4 s of eight schedules are less than 3 of one, where a schedule is worth 1 s to others."""
    limits = Limits(measuring=8, alternate=False, device_s=1.0)
    allocator = Allocator(Ledger(max_measurements=20), limits, elsewhere=lambda: 1.0)
    for name in ("most", "more"):
        entered(allocator, chain_table([1.0, 0.9]), name)
    most, more = allocator.entries
    for entry, gain, wanted in ((most, 4.0, 8), (more, 3.0, 1)):
        entry.gain, entry.wanted, entry.thread = gain, wanted, threading.current_thread()
        entry.own_s = entry.incumbent.best_s = 1.0
    with allocator._changed:
        assert allocator._next() and more.granted == 1
        assert not allocator._next() and not most.granted
        assert allocator._worthwhile() is most, "it is not over"


def test_a_search_that_cannot_ask_the_device_ends_and_others_go_on() -> None:
    """Once it hung: what was granted and never asked for counted as being measured."""
    order = list[str]()
    allocator = Allocator(Ledger(max_measurements=6), Limits(), report=lambda name, _: order.append(name))
    table = chain_table([1e-3, 9e-4, 8e-4])
    entered(allocator, table, "good")

    def broken(schedules: Sequence[Schedule]) -> list[Future[Observation]]:
        raise TypeError("measure() got an unexpected keyword argument")

    problem = replace(table.problem(oracle_predict(table), ledger=allocator.ledger), measure=broken)
    allocator.enter("broken", 10, problem, watched(strategy("mcts")))
    with reported_to(lambda line: None):
        allocator.run()
    assert set(order) == {"good"} and allocator.entries[0].best_s == 8e-4


def test_taking_turns_repeats_itself() -> None:
    orders = []
    for _ in range(2):
        allocator = Allocator(Ledger(max_measurements=20), Limits(measuring=2, batch=2))
        for name in "abc":
            entered(allocator, synthetic_table(), name)
        allocator.run()
        orders.append([[describe(o.schedule) for o in entry.saw] for entry in allocator.entries])
    assert orders[0] == orders[1] and all(len(seen) > 2 for seen in orders[0])


@pytest.mark.parametrize("limits", [Limits(), Limits(measuring=2, searching=3, alternate=False)])
def test_it_ends_where_nothing_is_worth_its_measurements(limits: Limits) -> None:
    flat = chain_table([1e-3, *(1.5e-3 for _ in range(8))])
    allocator = Allocator(Ledger(), limits)
    entered(allocator, flat)
    tiny = entered(allocator, chain_table([1e-9, 1e-10]), "tiny")
    allocator.run()
    assert allocator.settled
    assert len(tiny.known) == 1 or not limits.alternate, "no more than its own schedule, once the other's time is known"
    assert 1 <= len(allocator.entries[0].saw) < 5, "what the predictor knows to be no faster is not measured"


def test_it_ends_where_the_last_part_of_its_time_brought_next_to_nothing() -> None:
    now = [0.0]
    ledger = Ledger(deadline=1e9, clock=lambda: now[0])
    allocator = Allocator(ledger, Limits(least_saving=1e-4))
    entered(allocator, chain_table([1e-3, 9e-4]))
    (entry,) = allocator.entries
    entry.thread = threading.current_thread()
    seen = Observation(entry.problem.space.baseline(), Status.OK, 1.0, "one")

    def stalled(at_s: float, best_s: float, measured: int) -> bool:
        now[0], entry.incumbent.best_s = at_s, best_s
        entry.saw.extend([seen] * measured)
        return allocator._stalled()

    assert not stalled(0.0, 1.0, 1) and not stalled(10.0, 0.5, 60)
    assert not stalled(12.0, 0.5, 60), "in its last quarter it still became faster"
    assert not stalled(20.0, 0.499, 10), "too little was measured to tell"
    assert stalled(20.0, 0.499, 50)
    allocator.limits = replace(allocator.limits, stalls=False)
    assert not stalled(20.0, 0.499, 0), "there is a budget for it"
    allocator.limits = replace(allocator.limits, stalls=True)
    ledger.max_measurements = 1000
    assert not stalled(20.0, 0.499, 0), "they were asked for"
    ledger.max_measurements, entry.thread, entry.gain = None, None, 0.9
    assert not stalled(20.0, 0.499, 0), "much is expected of what has not begun"


def test_a_predictor_that_promises_what_never_comes_loses_its_weight() -> None:
    """Constant predictions of a millisecond for kernels of a second: measuring never finds any of it."""
    allocator = Allocator(Ledger(max_measurements=60), Limits(batch=2))
    slow = chain_table([1.0] * 200)
    for name, calls in (("promised", 30), ("other", 1)):
        allocator.enter(name, calls, slow.problem(constant_predict(), ledger=allocator.ledger), strategy("greedy"))
    allocator.run()
    _, other = allocator.entries
    assert other.saw, "the one with a thirtieth of the time gets its turn"


def test_what_is_worth_nothing_gets_nothing_until_it_is_weighed_anew() -> None:
    """As a region whose calls another one has, until that one turns out to save less."""
    fast, order, weighed = chain_table([1e-3, 9e-4, 8e-4, 7e-4]), list[str](), list[int]()

    def weigh() -> None:
        weighed.append(len(order))
        if len(weighed) == 2:
            covered.weight = 0.5

    allocator = Allocator(Ledger(), Limits(), report=lambda name, _: order.append(name), weigh=weigh)
    for name in ("covered", "chosen"):
        entered(allocator, fast, name)
    covered, chosen = allocator.entries
    covered.weight = 0.0
    assert covered.expected_s == math.inf and covered.saving_s == 0.0 and chosen.saving_s == math.inf
    chosen.weight = 0.0
    assert allocator._over() and weighed == [0], "nothing is worth anything"
    chosen.weight, allocator.settled = 1.0, False
    allocator.run()
    first = order.index("covered")
    assert set(order[:first]) == {"chosen"} and weighed[:2] == [0, first], "weighed before it would end"
    assert allocator.settled and covered.best_s == chosen.best_s == 7e-4
    assert covered.saving_s == 0.5 * covered.expected_s


def test_a_kernel_whose_own_schedule_fails_is_left_alone() -> None:
    allocator = Allocator(Ledger(), Limits())
    entered(allocator, chain_table([None, 1e-3, 2e-3]))
    allocator.run()
    assert len(allocator.entries[0].saw) == 1 and allocator.entries[0].best_s is None


def test_a_search_whose_start_failed_goes_on_where_another_kind_runs() -> None:
    """As one that is resumed finds it."""
    allocator = Allocator(Ledger(), Limits(batch=1))
    entered(allocator, chain_table([4e-6, 3e-6]))
    table = chain_table([None, 1e-6])
    problem = table.problem(oracle_predict(table), ledger=allocator.ledger)
    problem.known[table.baseline()] = table.records[table.baseline()].observation
    own = allocator.entries[0]
    own.problem.known[own.problem.space.baseline()] = Observation(own.problem.space.baseline(), Status.OK, 4e-6)
    allocator._improve(own, 4e-6)
    entry = allocator.enter("a", 1, problem, strategy("mcts"))
    assert not entry.ended
    allocator.run()
    assert entry.best_s == 1e-6


def test_entries_of_one_region_share_its_best_time() -> None:
    allocator = Allocator(Ledger(), Limits(batch=1))
    entered(allocator, chain_table([4e-6, 3e-6]), "a", calls=2)
    entered(allocator, chain_table([5e-6, 1e-6]), "a", calls=2)
    entered(allocator, chain_table([7e-6, 6e-6]), "b")
    allocator.run()
    one, other, third = allocator.entries
    assert one.best_s == other.best_s == 1e-6 and third.best_s == 6e-6
    assert allocator._total_s() == pytest.approx(2 * 1e-6 + 6e-6), "each region counts once"


def test_what_is_slower_than_another_kinds_best_saves_nothing() -> None:
    allocator = Allocator(Ledger(), Limits())
    table = chain_table([4e-6, 3e-6])
    problem = table.problem(oracle_predict(table), ledger=allocator.ledger)
    problem.known[table.baseline()] = table.records[table.baseline()].observation
    entry = allocator.enter("a", 10, problem, strategy("mcts"))
    entry.thread = threading.current_thread()  # it has begun, and asks for something
    entry.gain = 0.25
    assert entry.saving_s == pytest.approx(10 * 4e-6 * 0.25), "its own is the best"
    entry.incumbent.best_s = 2e-6  # by schedules of another kind
    assert entry.saving_s == 0.0, "also what it asked for before that was found"
    entry.gain = 0.75
    assert entry.saving_s == pytest.approx(10 * 2e-6 * 0.5)
    entry.gain, entry.hint = 0.0, Hint(table.baseline(), 0.75)
    assert entry.saving_s == pytest.approx(10 * 2e-6 * 0.5), "what similar kernels have on offer counts alike"


def test_what_has_not_begun_is_taken_at_its_word() -> None:
    allocator = Allocator(Ledger(), Limits())
    table = chain_table([4e-6, 3e-6])
    known = {table.baseline(): table.records[table.baseline()].observation}
    for gain in (0.3, 0.9):
        problem = table.problem(oracle_predict(table), ledger=allocator.ledger)
        problem.known.update(known)
        allocator.enter("a", 1, problem, strategy("mcts"), gain=gain)
    first = allocator._worthwhile()
    assert first is not None and first.gain == 0.9, "what is expected to gain most begins first"


@pytest.mark.parametrize(
    ("calls", "sizes"),
    [
        ((90, 10, 1, 1), [MOST_AT_ONCE, 1, 1, 1]),
        ((2, 1, 1, 1, 1, 1), [3, 1, 1, 1, 1, 1]),
        ((5,), [MOST_ALONE]),
        ((1, 1), [6, 6]),
        ((1,) * 30, [1] * 30),
    ],
)
def test_where_more_is_to_be_saved_more_is_measured_at_once(calls: tuple[int, ...], sizes: list[int]) -> None:
    allocator = Allocator(Ledger(), Limits(measuring=12, searching=6, alternate=False))
    for place, count in enumerate(calls):
        entered(allocator, synthetic_table(), str(place), calls=count)
        allocator.entries[-1].incumbent.best_s = 1e-4
    assert [allocator._batch_size(entry) for entry in allocator.entries] == sizes
    allocator.entries[-1].incumbent.best_s = None  # nothing was measured of it: that is no share of what is expected
    assert allocator._batch_size(allocator.entries[-1]) == 1
    for entry in allocator.entries[1:]:
        entry.ended = True
    if len(calls) > 1:
        assert allocator._batch_size(allocator.entries[0]) == MOST_ALONE, "the device is its own"


def test_what_a_search_raises_reaches_the_caller_and_ends_the_others() -> None:
    def breaks(problem: Problem) -> Iterator[Observation]:
        yield from strategy("hand-coded")(problem)
        raise ZeroDivisionError("of the search")

    allocator = Allocator(Ledger(), Limits(measuring=4, searching=2, alternate=False))
    entered(allocator, synthetic_table(), search="random")
    allocator.enter("b", 1, synthetic_table().problem(constant_predict(), ledger=allocator.ledger), breaks)
    with pytest.raises(ZeroDivisionError, match="of the search"):
        allocator.run()
    assert not any(t.name.startswith("search ") for t in threading.enumerate())


class Slow:
    """Measures on a made-up clock: each schedule of a kernel takes so many seconds, as those do that take turns."""

    def __init__(self, *, deadline_s: float) -> None:
        self.now_s, self.order = 0.0, list[str]()
        self.ledger = Ledger(deadline=deadline_s, clock=lambda: self.now_s)
        self.allocator = Allocator(self.ledger, Limits(), report=lambda name, _: self.order.append(name))

    def enter(
        self, name: str, seconds: float, *, calls: int = 1, expected_s: float = 0.0, until_s: float | None = None
    ) -> None:
        table = synthetic_table()
        problem = table.problem(oracle_predict(table), ledger=self.ledger)
        measure = problem.measure

        def measured(schedules: Sequence[Schedule]) -> list[Future[Observation]]:
            self.now_s += seconds * len(schedules)
            return measure(schedules)

        (own,) = measure([table.baseline()])
        problem.known[table.baseline()] = own.result()
        problem.measure = measured
        self.allocator.enter(name, calls, problem, strategy("random"), each_s=expected_s, until=lambda: until_s)


@pytest.mark.parametrize(("deadline_s", "count"), [(20.0, 6), (11.9, 3), (3.0, 1), (2.9, 0)])
def test_no_batch_outlives_the_time_for_searching(deadline_s: float, count: int) -> None:
    """What comes after it waits until the device is done: four schedules of three seconds took the time for judging."""
    slow = Slow(deadline_s=deadline_s)
    slow.enter("a", 3.0, expected_s=3.0)
    slow.allocator.run()
    assert len(slow.order) == count and slow.now_s <= deadline_s
    assert not slow.allocator.settled, "its time was over"


def test_what_measuring_takes_is_learned_from_the_last_batch() -> None:
    slow = Slow(deadline_s=20.0)
    slow.enter("a", 3.0)
    slow.allocator.run()
    assert len(slow.order) == 6 and slow.now_s == 18.0, "four, then two"
    slow = Slow(deadline_s=20.0)
    slow.enter("a", 3.0, expected_s=30.0)
    slow.allocator.run()
    assert not slow.order, "by what its own schedule took it is too long"


def test_where_the_best_is_too_long_another_has_the_rest_of_the_time() -> None:
    slow = Slow(deadline_s=20.0)
    slow.enter("long", 8.0, calls=100, expected_s=8.0)
    slow.enter("short", 1.0, expected_s=1.0)
    slow.allocator.run()
    assert slow.order == ["long"] * 2 + ["short"] * 4 and slow.now_s == 20.0


def test_of_a_budget_the_next_seconds_are_where_they_save_most() -> None:
    slow = Slow(deadline_s=60.0)
    slow.enter("long", 8.0, calls=30, expected_s=8.0, until_s=60.0)
    slow.enter("short", 1.0, calls=20, expected_s=1.0, until_s=60.0)
    slow.allocator.run()
    assert slow.order[0] == "short" and "long" in slow.order


def test_what_would_be_found_too_late_to_be_judged_is_not_measured() -> None:
    """Others are, until the deadline of all."""
    slow = Slow(deadline_s=20.0)
    slow.enter("judged in no time", 1.0, expected_s=1.0)
    slow.enter("judged for long", 1.0, calls=100, expected_s=1.0, until_s=6.5)
    slow.allocator.run()
    assert slow.order[:6] == ["judged for long"] * 6 and set(slow.order[6:]) == {"judged in no time"}
    assert not slow.allocator.settled


def test_when_its_time_is_over_it_says_what_was_still_on_offer() -> None:
    slow = Slow(deadline_s=20.0)
    slow.enter("long", 8.0, calls=100, expected_s=8.0)
    slow.enter("short", 1.0, expected_s=1.0)
    long, _ = slow.allocator.entries
    before_s = long.expected_s
    slow.allocator.run()
    assert 0 < slow.allocator.expected["long"] <= before_s, "what another batch was expected to save"
    settled = Slow(deadline_s=1e9)
    settled.enter("a", 3.0, expected_s=3.0)
    settled.allocator.run()
    assert settled.allocator.settled and settled.allocator.expected == {}


def test_an_interrupt_ends_every_search() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    allocator = Allocator(Ledger(), Limits(), seen=interrupted)
    entered(allocator, synthetic_table())
    with pytest.raises(KeyboardInterrupt):
        allocator.run()
    assert allocator.closed


# With processes


def matmul() -> tuple[Region, KernelSpace]:
    (ast,) = kernels_of(empty(7, 24) @ empty(24, 10))
    region = Region((kernel_of(ast),))
    return region, KernelSpace(region, KNOWN_TARGETS["sm_90"])


def asked(space: StepSpace, ledger: Ledger, *, judge: Judge | None = None) -> Problem:
    """A problem whose device is an analytic predictor: as good as any to see that two searches are the same."""
    if judge is None:
        assert isinstance(space, KernelSpace)
        judge = Roofline().of(space)
    predict = judge.predict

    def measure(schedules: Sequence[Schedule]) -> list[Future[Observation]]:
        futures = []
        for schedule, printed in zip(schedules, predict(schedules), strict=True):
            ledger.measurements += 1
            future: Future[Observation] = Future()
            future.set_result(Observation(schedule, Status.OK, math.exp(printed.log_runtime), schedule.id))
            futures.append(future)
        return futures

    return Problem(
        space,
        predict,
        measure,
        ledger,
        random.Random("1"),
        batch_size=2,
        correct=judge.correct,
    )


@pytest.fixture(scope="module")
def search_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchWorkers]:
    cache: Path = tmp_path_factory.mktemp("thinkers") / "cache.db"
    with SearchWorkers(1, "roofline", KNOWN_TARGETS["sm_90"], ("CPU", os.getpid(), str(cache))) as started:
        yield started


def test_a_search_in_a_process_is_the_one_it_would_be_here(search_workers: SearchWorkers) -> None:
    region, space = matmul()
    seen = []
    for how in (strategy("mcts"), search_workers.strategy("mcts", region, place=0, seed="1")):
        ledger = Ledger(max_measurements=24)
        seen.append([(o.schedule, o.time_s) for o in how(asked(space, ledger))])
        assert ledger.measurements == 24 and ledger.evaluations > 24
    assert seen[0] == seen[1] and len(seen[0]) == 24
    assert len({space.alike(schedule) for schedule, _ in seen[0]}) == 24


def test_a_search_in_a_process_draws_the_same_and_says_why_it_chose(search_workers: SearchWorkers) -> None:
    region, space = matmul()
    told = []
    for how in (strategy("mcts"), search_workers.strategy("mcts", region, place=0, seed="1")):
        plain = asked(space, Ledger(max_measurements=24))
        problem = replace(plain, expected={}, chances={}, draws=Draws(space, plain.predict, "1"))
        seen = [o.schedule for o in how(problem)]
        assert problem.chances is not None and problem.expected is not None
        assert problem.chances.keys() == set(seen) and len(seen) == 24
        drawn = [one for one in seen if problem.chances[one].is_uniform]
        assert len(drawn) in (1, 2) and all(one in problem.expected for one in drawn)
        told.append([(one, problem.chances[one]) for one in seen])
    assert told[0] == told[1]


def test_what_is_drawn_does_not_speak_against_a_search() -> None:
    """Whoever finds nothing faster is asked less and less; a draw says nothing of what a search would find."""

    class Always(Draws):
        def are_due(self, count: int) -> bool:
            return True

    barren = []
    for draws in (True, False):
        allocator, table = Allocator(Ledger(max_measurements=12), Limits()), synthetic_table()
        problem = entered(allocator, table, search="random")
        problem.chances, problem.batch_size = {}, 1
        problem.draws = Always(problem.space, problem.predict, "0") if draws else None
        allocator.run()
        assert any(one.is_uniform for one in problem.chances.values()) == draws
        barren.append(allocator.entries[0].barren)
    assert barren[0] == 0 < barren[1]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
def test_a_process_searches_the_schedules_of_another_kind(search_workers: SearchWorkers) -> None:
    region, _ = matmul()
    space = kind_named(ScheduleKind.TILE).space(region, KNOWN_TARGETS["sm_90"])
    assert isinstance(space, TileSpace)
    seen = []
    remote = search_workers.strategy("mcts", region, place=0, seed="1", kind=ScheduleKind.TILE)
    for how in (strategy("mcts"), remote):
        problem = asked(FromItsStart(space), Ledger(max_measurements=12), judge=KnownCost().of(space))
        seen.append([o.schedule for o in how(problem)])
    assert seen[0] == seen[1] and len(set(seen[0])) == 12
    assert seen[0][0] == space.start(), "it begins with its start, not with tinygrad's own schedule"


@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
def test_a_process_is_given_the_start_of_tile_programs(
    search_workers: SearchWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would take a second to find it again, however the space is wrapped."""
    region, opts = matmul()
    tiles = kind_named(ScheduleKind.TILE).space(region, KNOWN_TARGETS["sm_90"])
    assert isinstance(tiles, TileSpace)
    jobs: list[SearchJob] = []

    def search(child: _Worker, job: SearchJob, problem: Problem) -> Iterator[Observation]:
        jobs.append(job)
        yield from ()

    monkeypatch.setattr(_Worker, "search", search)
    for space, kind in ((opts, ""), (FromItsStart(tiles), ScheduleKind.TILE)):
        how = search_workers.strategy("mcts", region, place=0, seed="1", kind=kind)
        problem = asked(space, Ledger(max_measurements=1), judge=KnownCost().of(tiles))
        assert not list(how(problem))
    assert [job.start for job in jobs] == [None, tiles.start()]


def test_a_search_in_a_process_knows_how_many_it_may_ask_for_before_it_chooses_them(
    search_workers: SearchWorkers,
) -> None:
    region, space = matmul()
    batches = []
    for how in (strategy("mcts"), search_workers.strategy("mcts", region, place=0, seed="1")):
        allocator = Allocator(Ledger(max_measurements=20), Limits(measuring=8, searching=2, alternate=False))
        problem, sizes = asked(space, allocator.ledger), list[int]()

        def measure(
            schedules: Sequence[Schedule], problem_measure: Measure = problem.measure, sizes: list[int] = sizes
        ) -> list[Future[Observation]]:
            sizes.append(len(schedules))
            return problem_measure(schedules)

        problem.measure = measure
        allocator.enter("a", 1, problem, how)
        allocator.run()
        batches.append(sizes)
    assert batches[0] == batches[1] and max(batches[0]) == MOST_ALONE


@pytest.mark.slow
def test_processes_search_for_an_allocator(search_workers: SearchWorkers) -> None:
    region, space = matmul()
    allocator = Allocator(
        Ledger(max_measurements=10), Limits(measuring=4, searching=2, alternate=False, least_saving=0.0)
    )
    for name in "ab":
        how = search_workers.strategy("mcts", region, place=0, seed=name)
        allocator.enter(name, 1, asked(space, allocator.ledger), how)
    allocator.run()
    assert allocator.ledger.measurements == 10 and all(b.best_s for b in allocator.entries)


def test_an_error_in_a_process_is_raised_here(search_workers: SearchWorkers) -> None:
    region, space = matmul()
    with pytest.raises(Exception, match="unknown search strategy 'soon'"):
        list(search_workers.strategy("soon", region, place=0, seed="1")(asked(space, Ledger())))


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")
def test_a_process_that_thinks_takes_one_core(search_workers: SearchWorkers) -> None:
    (child,) = search_workers._children
    printed = Path(f"/proc/{child._process.pid}/environ").read_bytes().split(b"\0")
    assert b"OPENBLAS_NUM_THREADS=1" in printed


@pytest.mark.slow
def test_a_process_finds_the_strategies_of_the_command(tmp_path: Path) -> None:
    region, space = matmul()
    initargs = ("CPU", os.getpid(), str(tmp_path / "cache.db"))
    with SearchWorkers(1, "roofline", KNOWN_TARGETS["sm_90"], initargs, strategies=strategy_of) as of_the_command:
        ledger = Ledger(max_measurements=3)
        seen = [o.schedule for o in of_the_command.strategy("ppo", region, place=0, seed="1")(asked(space, ledger))]
    assert len(set(seen)) == len(seen) == 3
    assert seen == [o.schedule for o in strategy_of("ppo")(asked(space, Ledger(max_measurements=3)))]


@pytest.mark.slow
def test_where_a_process_dies_the_search_goes_on_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    region, space = matmul()
    with SearchWorkers(
        1, "roofline", KNOWN_TARGETS["sm_90"], ("CPU", os.getpid(), str(tmp_path / "cache.db"))
    ) as mortal:
        ledger = Ledger(max_measurements=8)
        search = mortal.strategy("mcts", region, place=0, seed="1")(asked(space, ledger))
        first = [next(search), next(search)]
        (child,) = mortal._children
        assert isinstance(child, _Worker) and child._process.pid is not None
        os.kill(child._process.pid, signal.SIGKILL)
        rest = list(search)
    assert "died" in caplog.text and ledger.measurements == 8
    assert len({o.schedule for o in first + rest}) == 8, "nothing is measured twice"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every process begins afresh")
def test_processes_are_forked_from_one_that_has_read_the_predictor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    region, space = matmul()
    ready = threading.Event()
    initargs = ("CPU", os.getpid(), str(tmp_path / "cache.db"))
    with SearchWorkers(3, "roofline", None, initargs, ready=ready.set) as several:
        several.know(KNOWN_TARGETS["sm_90"])
        assert ready.wait(PATIENCE_S)
        (first,) = {child._process.pid for child in several._children}
        assert first is not None
        forked = processes.below(first) - processes.guardians(first)
        other = min(forked)
        assert len(forked) == 2
        seen = []
        for place in (0, 1, 2):
            how = several.strategy("mcts", region, place=place, seed="1")
            seen.append([o.schedule for o in how(asked(space, Ledger(max_measurements=1)))])
        assert seen[0] == seen[1] == seen[2] and len(seen[0]) == 1 and not caplog.text
        os.kill(other, signal.SIGKILL)
        for place in (0, 1, 2):
            how = several.strategy("mcts", region, place=place, seed="1")
            assert [o.schedule for o in how(asked(space, Ledger(max_measurements=1)))] == seen[0]
        assert caplog.text.count("died") == 1, "its searches go on here, and those of the others in their processes"
    assert wait_until(lambda: not processes.alive(forked)), "all end with the first"


def test_a_search_whose_process_is_closed_ends_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kcg.search.workers._serve", processes.wait_for_end)  # it never answers
    region, space = matmul()
    ledger = Ledger(max_measurements=8)
    with SearchWorkers(1, "roofline", KNOWN_TARGETS["sm_90"], ("CPU", os.getpid(), "")) as closed:
        search = closed.strategy("mcts", region, place=0, seed="1")(asked(space, ledger))
        closing = threading.Timer(0.2, closed.close)
        closing.start()
        assert list(search) == [] and ledger.measurements == 0, "it is not gone on with here"
        closing.join()
    assert "died" not in caplog.text


def test_what_never_comes_back_from_the_device_is_not_waited_for_when_the_search_is_over() -> None:
    table, sent = chain_table([1e-3, 9e-4]), threading.Event()
    ledger, never = Ledger(), Future[Observation]()

    def measure(batch: Sequence[Schedule]) -> list[Future[Observation]]:
        ledger.deadline = 0.0  # over, while this is on its way
        sent.set()
        return [never for _ in batch]

    problem = table.problem(oracle_predict(table), ledger=ledger)
    problem.measure = measure
    allocator = Allocator(ledger, Limits(patience_s=lambda: 0.1))
    allocator.enter("stopped", 1, problem, strategy("mcts"))
    allocator.run()  # a minute by default, which the test's own limit would see
    assert sent.is_set() and not never.done() and not allocator.entries[0].saw
    never.set_result(Observation(table.baseline(), Status.OK, 1e-3))  # its thread ends
    thread = allocator.entries[0].thread
    assert thread is not None
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
