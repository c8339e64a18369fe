"""What made a kernel faster is tried on its kin, also where a search has long begun or thinks in another process."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from kcg.kernel.codec import kernel_of
from kcg.kernel.space import KernelSpace
from kcg.kernel.targets import KNOWN_TARGETS
from kcg.search.bidding import Auction, Limits
from kcg.search.interface import Ledger, Observation, Problem
from kcg.search.kin import LEAST_LEAD, Relative, adopted, family
from kcg.search.strategies import strategy
from kcg.search.thinking import Thinkers
from kcg.types import RAW, Opt, Prediction, Region, Schedule, Status
from tests.kernels import empty, kernels_of

TARGET = KNOWN_TARGETS["sm_90"]
GOOD = Schedule.from_opts([Opt("LOCAL", 0, 8), Opt("UPCAST", 0, 3), Opt("UNROLL", 0, 4)])


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
    return Problem(space, lambda batch: [Prediction(-9.0, 0.1) for _ in batch], measure, ledger, random.Random(1),
                   batch_size=2, known=known)  # fmt: skip


def relative(space: KernelSpace) -> Relative:
    return Relative(family(space), lambda schedule: adopted(space, schedule))


def test_kernels_are_kin_by_the_kinds_of_their_axes() -> None:
    assert family(space_of(48, 64)) == family(space_of(480, 4096))
    (matmul,) = kernels_of(empty(64, 96) @ empty(96, 80))
    assert family(KernelSpace(Region((kernel_of(matmul),)), TARGET)) != family(space_of(48, 64))


def test_a_schedule_is_adopted_only_where_each_of_its_steps_is_legal() -> None:
    assert adopted(space_of(480, 4096), GOOD) == GOOD and adopted(space_of(480, 4096), RAW) == RAW
    assert adopted(space_of(32, 4096), GOOD) is None, "32 rows are not divided by 3"


def test_a_hint_is_the_best_schedule_of_whoever_leads_and_is_trusted_less_each_time_it_fails() -> None:
    mine, slow, fast, other = (Relative("rows", lambda s: s) for _ in range(4))
    other.family = "matmul"
    for one, best_s in ((mine, 1.0), (slow, 0.8), (fast, 0.5), (other, 0.1)):
        one.saw(RAW, 1.0, own=True)
        one.saw(GOOD if one is not slow else Schedule.from_opts(GOOD.opts[:1]), best_s, own=False)
    kin = [mine, slow, fast, other]
    found = mine.hint(kin, lambda s: False)
    assert found is not None and found.schedule == GOOD and found.gain == pytest.approx(0.25)
    mine.failed = 1
    second = mine.hint(kin, lambda s: s == GOOD)
    assert second is not None and second.schedule == slow.best[0][1] and second.gain == pytest.approx(0.05)
    assert fast.hint(kin, lambda s: False) is None, "nobody leads it"
    mine.saw(GOOD, 0.5 * LEAST_LEAD, own=False)
    assert mine.hint(kin, lambda s: False) is None, "nor is this one behind by more than noise"
    assert Relative("rows", lambda s: s).hint(kin, lambda s: False) is None, "without its own time there is no lead"


def gains(space: KernelSpace) -> Callable[[Schedule], float]:
    """A tenth of the time with `GOOD`, and a spread of a few thousandths among all others."""
    good = space.key(GOOD)
    return lambda s: 1e-4 if space.key(s) == good else 1e-3 * (1 + 0.004 * random.Random(space.key(s)).random())


@pytest.mark.parametrize("limits", [Limits(least_saving=0.0), Limits(least_saving=0.0, thinking=2, alternate=False)])
def test_what_one_kernel_finds_its_kin_measure_also_in_the_middle_of_a_search(limits: Limits) -> None:
    spaces = [space_of(480, 4096), space_of(96, 2048)]
    found = []
    for kin in (True, False):
        auction = Auction(Ledger(max_measurements=40), limits)
        for name, space in zip("ab", spaces, strict=True):
            asked = problem(space, auction.ledger, gains(space))
            auction.enter(name, 1, asked, strategy("mcts"), relative=relative(space) if kin else None)
        finder = auction.bidders[0]
        told: list[int] = []

        def learns(name: str, seen: Observation, told: list[int] = told, auction: Auction = auction) -> None:
            """After ten measurements the first is told of its schedule, as if its search had met it."""
            finder, ledger = auction.bidders[0], auction.ledger
            if not told and len(finder.saw) + len(auction.bidders[1].saw) == 10:
                told.append(ledger.measurements)
                auction._show_kin(finder, Observation(GOOD, Status.OK, 1e-4, "good"))

        auction.told = learns
        auction.run()
        assert told and finder.saw
        assert auction.bidders[1].gain > 0, "its search goes on, with what it bids now that it knows"
        found.append(auction.bidders[1].best_s)
    assert found == [1e-4, pytest.approx(1e-3, rel=0.01)]


def test_a_search_that_begins_late_begins_with_what_its_kin_found() -> None:
    early, late = space_of(480, 4096), space_of(96, 2048)
    auction = Auction(Ledger(max_measurements=6), Limits(least_saving=0.0))
    known = problem(early, auction.ledger, gains(early))
    known.known[GOOD] = Observation(GOOD, Status.OK, 1e-4, "good")
    auction.enter("early", 1, known, strategy("mcts"), relative=relative(early))
    auction.enter("late", 1000, problem(late, auction.ledger, gains(late)), strategy("mcts"), relative=relative(late))
    auction.run()
    assert auction.bidders[1].saw[0].schedule == GOOD and auction.ledger.measurements <= 6


def test_a_search_in_another_process_bids_anew_after_a_hint(tmp_path: Path) -> None:
    spaces = [space_of(480, 4096), space_of(96, 2048)]
    limits = Limits(least_saving=0.0, thinking=2, measuring=4, alternate=False)
    auction = Auction(Ledger(max_measurements=60), limits)
    with Thinkers(1, "roofline", TARGET, ("CPU", os.getpid(), str(tmp_path / "cache.db"))) as thinkers:
        for name, space in zip("ab", spaces, strict=True):
            how = thinkers.strategy("mcts", space.region, place=0, seed=name)
            asked = problem(space, auction.ledger, gains(space))
            auction.enter(name, 1, asked, how, relative=relative(space))

        def learns(name: str, seen: Observation) -> None:
            if len(auction.bidders[0].saw) == 4:
                auction._show_kin(auction.bidders[0], Observation(GOOD, Status.OK, 1e-4, "good"))

        auction.told = learns
        auction.run()
    saw = [o.schedule for o in auction.bidders[1].saw]
    assert GOOD in saw and len(saw) > saw.index(GOOD) + 2 and auction.ledger.measurements == 60


def test_a_search_goes_on_from_what_others_measured_while_it_waited(tmp_path: Path) -> None:
    """In this process and in another: it is not asked for again, and steps from it are met."""
    space = space_of(480, 4096)
    times = gains(space)
    with Thinkers(1, "roofline", TARGET, ("CPU", os.getpid(), str(tmp_path / "cache.db"))) as thinkers:
        for how in (strategy("mcts"), thinkers.strategy("mcts", space.region, place=0, seed="1")):
            ledger = Ledger(max_measurements=12)
            asked = problem(space, ledger, lambda s: times(s) if len(s.opts) < 4 else 1e-3)

            def ask(count: int, gain: float, asked: Problem = asked) -> int:
                if GOOD not in asked.known:
                    asked.known[GOOD] = Observation(GOOD, Status.OK, 1e-4, "good")
                return asked.ledger.remaining(count)

            asked.ask = ask
            seen = [o.schedule for o in how(asked)]
            assert len(seen) >= 8 and space.key(GOOD) not in {space.key(s) for s in seen}
            assert any(s.opts[: len(GOOD.opts)] == GOOD.opts for s in seen), "it goes on from there"
            assert all(math.isfinite(o.time_s) for o in asked.known.values())
