"""What made a kernel faster is tried on its kin, also where a search has long begun or thinks in another process."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import RAW, Opt, opts_of, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.search.allocation import LEAST_LEAD, Allocator, Entry, Hint, Limits, Transfer
from kcg.search.mcts import Graph, MctsSettings
from kcg.search.problem import Ledger, Observation, Problem, Trials
from kcg.search.strategies import strategy
from kcg.search.workers import SearchWorkers
from kcg.types import Prediction, Region, Schedule, Status
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS

TARGET = KNOWN_TARGETS["sm_90"]
GOOD = schedule_of([Opt("LOCAL", 0, 8), Opt("UPCAST", 0, 3), Opt("UNROLL", 0, 4)])


def space_of(rows: int, inner: int) -> KernelSpace:
    """The sums of the rows of a matrix."""
    (ast,) = kernels_of(empty(rows, inner).sum(1))
    return KernelSpace(Region((kernel_of(ast),)), TARGET)


def problem(space: KernelSpace, ledger: Ledger, time_s: Callable[[Schedule], float]) -> Problem:
    """A device that is a formula; of all schedules the same is predicted, as a predictor does that sees nothing."""

    def measure(schedules: Sequence[Schedule]) -> list[Future[Observation]]:
        futures = []
        for schedule in schedules:
            ledger.measurements += 1
            future: Future[Observation] = Future()
            future.set_result(Observation(schedule, Status.OK, time_s(schedule), space.key(schedule)))
            futures.append(future)
        return futures

    known = {s: measure([s])[0].result() for s in [space.baseline()]}
    return Problem(
        space,
        lambda batch: [Prediction(-9.0, 0.1) for _ in batch],
        measure,
        ledger,
        random.Random(1),
        batch_size=2,
        known=known,
    )


class Same:
    """The space of a kernel that every other's schedules apply to."""

    def __init__(self, family: Hashable = "rows") -> None:
        self._family = family

    def family(self) -> Hashable:
        return self._family

    def transfer(self, schedule: Schedule, other: object) -> Schedule:
        return schedule


def test_kernels_are_similar_by_the_kinds_of_their_axes() -> None:
    assert space_of(48, 64).family() == space_of(480, 4096).family()
    (matmul,) = kernels_of(empty(64, 96) @ empty(96, 80))
    assert KernelSpace(Region((kernel_of(matmul),)), TARGET).family() != space_of(48, 64).family()


def test_a_schedule_is_transferred_only_where_each_of_its_steps_is_legal() -> None:
    origin = space_of(48, 64)
    assert {s: space_of(480, 4096).transfer(s, origin) for s in (GOOD, RAW)} == {GOOD: GOOD, RAW: RAW}
    assert space_of(32, 4096).transfer(GOOD, origin) is None, "32 rows are not divided by 3"


def test_a_hint_is_the_best_schedule_of_whoever_leads_and_is_trusted_less_each_time_it_fails() -> None:
    mine, slow, fast, other = (Transfer(Same(of)) for of in ("rows", "rows", "rows", "matmul"))
    for one, best_s in ((mine, 1.0), (slow, 0.8), (fast, 0.5), (other, 0.1)):
        one.saw(RAW, 1.0, own=True)
        one.saw(GOOD if one is not slow else schedule_of(opts_of(GOOD)[:1]), best_s, own=False)
    similar = [mine, slow, fast, other]
    found = mine.hint(similar, lambda s: False)
    assert found is not None and found.schedule == GOOD and found.gain == pytest.approx(0.25)
    mine.failed = 1
    second = mine.hint(similar, lambda s: s == GOOD)
    assert second is not None and second.schedule == slow.best[0][1] and second.gain == pytest.approx(0.05)
    assert fast.hint(similar, lambda s: False) is None, "nobody leads it"
    mine.saw(GOOD, 0.5 * LEAST_LEAD, own=False)
    assert mine.hint(similar, lambda s: False) is None, "nor is this one behind by more than noise"
    assert Transfer(Same()).hint(similar, lambda s: False) is None, "without its own time there is no lead"


def gains(space: KernelSpace) -> Callable[[Schedule], float]:
    """A tenth of the time with `GOOD`, and a spread of a few thousandths among all others."""
    good = space.key(GOOD)
    return lambda s: 1e-4 if space.key(s) == good else 1e-3 * (1 + 0.004 * random.Random(space.key(s)).random())


@pytest.mark.slow
@pytest.mark.parametrize("limits", [Limits(least_saving=0.0), Limits(least_saving=0.0, searching=2, alternate=False)])
def test_what_one_kernel_finds_similar_kernels_measure_also_in_the_middle_of_a_search(limits: Limits) -> None:
    spaces = [space_of(96, 44), space_of(48, 20)]
    found = []
    for similar in (True, False):
        allocator = Allocator(Ledger(max_measurements=20), limits)
        for name, space in zip("ab", spaces, strict=True):
            asked = problem(space, allocator.ledger, gains(space))
            allocator.enter(name, 1, asked, strategy("mcts"), transfer=Transfer(space) if similar else None)
        finder = allocator.entries[0]
        printed: list[int] = []

        def learns(
            name: str, seen: Observation, printed: list[int] = printed, allocator: Allocator = allocator
        ) -> None:
            """After six measurements the first is told of its schedule, as if its search had met it."""
            finder, ledger = allocator.entries[0], allocator.ledger
            if not printed and len(finder.saw) + len(allocator.entries[1].saw) == 6:
                printed.append(ledger.measurements)
                allocator._show_similar(finder, Observation(GOOD, Status.OK, 1e-4, "good"))

        allocator.report = learns
        allocator.run()
        assert printed and finder.saw
        assert allocator.entries[1].gain > 0, "its search goes on, with what it bids now that it knows"
        found.append(allocator.entries[1].best_s)
    assert found == [1e-4, pytest.approx(1e-3, rel=0.01)]


def test_a_search_that_begins_late_begins_with_what_similar_kernels_found() -> None:
    early, late = space_of(480, 4096), space_of(96, 2048)
    allocator = Allocator(Ledger(max_measurements=6), Limits(least_saving=0.0))
    known = problem(early, allocator.ledger, gains(early))
    known.known[GOOD] = Observation(GOOD, Status.OK, 1e-4, "good")
    allocator.enter("early", 1, known, strategy("mcts"), transfer=Transfer(early))
    allocator.enter(
        "late", 1000, problem(late, allocator.ledger, gains(late)), strategy("mcts"), transfer=Transfer(late)
    )
    allocator.run()
    assert allocator.entries[1].saw[0].schedule == GOOD and allocator.ledger.measurements <= 6


def test_a_hint_that_is_no_faster_costs_trust_and_not_patience() -> None:
    space = space_of(480, 4096)
    allocator = Allocator(Ledger(), Limits())
    asked = problem(space, allocator.ledger, lambda s: 2e-3 if s == GOOD else 1e-3)
    entry = allocator.enter("a", 1, asked, strategy("mcts"), transfer=Transfer(space))
    entry.barren = 3
    for hint, failed, barren in ((GOOD, 1, 3), (schedule_of(opts_of(GOOD)[:2]), 2, 3)):
        allocator._measuring += 1
        allocator._follow(entry, Hint(hint, 0.2))
        assert entry.transfer is not None and (entry.transfer.failed, entry.barren) == (failed, barren)
    assert [o.schedule for o in entry.saw] == [*asked.known][1:] and entry.knows(GOOD)


def test_what_no_longer_applies_is_left_aside() -> None:
    space = space_of(48, 64)
    allocator = Allocator(Ledger(max_measurements=8), Limits(least_saving=0.0))
    asked = problem(space, allocator.ledger, gains(space))
    foreign = schedule_of([Opt("UPCAST", 0, 7)])
    asked.known[foreign] = Observation(foreign, Status.COMPILE_ERROR, None)
    entry = allocator.enter("a", 1, asked, strategy("mcts"), transfer=Transfer(space))
    allocator.run()
    assert entry.knows(foreign) and len(entry.saw) > 4


def test_no_search_begins_with_a_hint_that_there_is_no_budget_for() -> None:
    space = space_of(480, 4096)
    allocator = Allocator(Ledger(max_measurements=1), Limits())
    entry = allocator.enter(
        "a", 1, problem(space, allocator.ledger, gains(space)), strategy("mcts"), transfer=Transfer(space)
    )
    leader = Transfer(Same(space.family()), own_s=1.0, best=[(0.1, GOOD)])
    allocator.entries.append(Entry("b", 1, entry.problem, strategy("mcts"), transfer=leader))
    assert allocator.ledger.exhausted
    allocator._begin_with_similar(entry)
    assert not entry.saw
    allocator.ledger.max_measurements = 2
    allocator._begin_with_similar(entry)
    assert [o.schedule for o in entry.saw] == [GOOD]


def test_a_level_of_a_beam_is_whole_also_where_others_measured_meanwhile() -> None:
    measured = []
    for disturbed in (False, True):
        space = space_of(48, 64)
        asked = problem(space, Ledger(max_measurements=60), gains(space))

        def ask(count: int, gain: float, asked: Problem = asked, disturbed: bool = disturbed) -> int:
            if disturbed and len(asked.known) == 9:  # in the middle of the first level
                asked.known[GOOD] = Observation(GOOD, Status.OK, 1e-4, "good")
                return 0
            return count

        asked.ask = ask
        search = strategy("full-beam:2")(asked)
        measured.append({space.key(o.schedule) for o in itertools.islice(search, 40)})
    assert measured[0] == measured[1] and len(measured[0]) == 40


@pytest.mark.slow
def test_a_search_in_another_process_asks_anew_after_a_hint(tmp_path: Path) -> None:
    spaces = [space_of(96, 44), space_of(48, 20)]
    limits = Limits(least_saving=0.0, searching=2, measuring=4, alternate=False)
    allocator = Allocator(Ledger(max_measurements=24), limits)
    with SearchWorkers(1, "roofline", TARGET, ("CPU", os.getpid(), str(tmp_path / "cache.db"))) as search_workers:
        for name, space in zip("ab", spaces, strict=True):
            how = search_workers.strategy("mcts", space.region, place=0, seed=name)
            asked = problem(space, allocator.ledger, gains(space))
            allocator.enter(name, 1, asked, how, transfer=Transfer(space))

        def learns(name: str, seen: Observation) -> None:
            if len(allocator.entries[0].saw) == 4:
                allocator._show_similar(allocator.entries[0], Observation(GOOD, Status.OK, 1e-4, "good"))

        allocator.report = learns
        allocator.run()
    saw = [o.schedule for o in allocator.entries[1].saw]
    assert GOOD in saw and len(saw) > saw.index(GOOD) + 2 and allocator.ledger.measurements == 24


@pytest.mark.slow
def test_a_search_goes_on_from_what_others_measured_while_it_waited(tmp_path: Path) -> None:
    """In this process and in another: it is not asked for again, and steps from it are met."""
    space = space_of(96, 44)
    times = gains(space)
    with SearchWorkers(1, "roofline", TARGET, ("CPU", os.getpid(), str(tmp_path / "cache.db"))) as search_workers:
        for how in (strategy("mcts"), search_workers.strategy("mcts", space.region, place=0, seed="1")):
            ledger = Ledger(max_measurements=12)
            asked = problem(space, ledger, lambda s: times(s) if len(opts_of(s)) < 4 else 1e-3)

            def ask(count: int, gain: float, asked: Problem = asked) -> int:
                if GOOD not in asked.known:
                    asked.known[GOOD] = Observation(GOOD, Status.OK, 1e-4, "good")
                return asked.ledger.remaining(count)

            asked.ask = ask
            seen = [o.schedule for o in how(asked)]
            assert len(seen) >= 8 and space.key(GOOD) not in {space.key(s) for s in seen}
            after = [{*opts_of(GOOD)} <= {*opts_of(s)} for s in seen[2:]]  # a batch may be on its way
            assert sum(after) >= len(after) / 2, "it goes on from there"
            assert all(math.isfinite(o.time_s) for o in asked.known.values())


def test_what_others_measured_is_where_a_tree_search_may_begin() -> None:
    space = space_of(480, 4096)
    asked = problem(space, Ledger(), gains(space))
    trials = Trials(asked)
    graph = Graph(trials, MctsSettings())
    for schedule, time_s in ((GOOD, 1e-4), (schedule_of(opts_of(GOOD)[:1]), None)):
        status = Status.OK if time_s else Status.COMPILE_ERROR
        asked.known[schedule] = Observation(schedule, status, time_s)
    assert trials._take_known() and not trials._take_known()
    graph.learn()
    good, failed = (graph.nodes[space.key(s)] for s in [*asked.known][1:])
    assert good in (graph.root.children or []) and graph.root.value == good.value > 2.0
    assert failed not in (graph.root.children or []) and failed.value < 0
