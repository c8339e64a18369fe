"""Which of tinygrad's own schedules are timed of a budget, and in which order: the clock and the device are made up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tinygrad import Tensor

from kcg.compat.tiny import Context
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.space import KernelSpace
from kcg.optimize import handwritten
from kcg.optimize.baselines import BESIDE, ENOUGH, HEAD, TAIL, measure_baselines
from kcg.optimize.budget import Budget
from kcg.optimize.console import progress
from kcg.optimize.log import RunLog
from kcg.optimize.run import Preparing, baselines, say_untimed
from kcg.optimize.settings import Settings
from kcg.optimize.work import Measured, RegionWork, noun_for, total_s
from kcg.search.problem import Observation
from kcg.types import Region, Status, WorkloadCall
from tests.kernels import empty, kernels_of
from tests.known_targets import X86

EACH_S = 0.75  # compiling and timing one, as of a CNN's training loop on two cores


class Clock:
    """Measures whatever it is sent, each in so many seconds; `own_s` says what a call takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, own_s: Callable[[RegionWork], float], *, is_cpu: bool) -> None:
        self.now_s, self.own_s, self.is_cpu = 1000.0, own_s, is_cpu
        self.batches: list[list[RegionWork]] = []
        self.spared_s = 0.0  # of each
        self.each_s: Callable[[RegionWork], float] = lambda work: EACH_S
        self.service = SimpleNamespace(compile_workers=2, spared_s=lambda regions: self.spared_s * len([*regions]))
        self.spread = SimpleNamespace(spent_s={"load": 1.0})
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)

    def measure_baselines(self, works: Sequence[RegionWork]) -> list[Future[Observation]]:
        self.batches.append(list(works))
        done = []
        for work in works:
            self.now_s += self.each_s(work)
            future = Future[Observation]()
            future.set_result(Observation(work.space.baseline(), Status.OK, self.own_s(work), work.id))
            done.append(future)
        return done

    def check_journal(self) -> None:
        pass

    @property
    def sent(self) -> list[RegionWork]:
        return [work for batch in self.batches for work in batch]


def timed(clock: Clock, works: Sequence[RegionWork], *, left_s: float | None, **options: Any) -> Measured:
    """With so much of a budget left, of which a minute went to recording."""
    budget = Budget(started=clock.now_s - 60.0, limit_s=left_s and 60.0 + left_s, measurements=None)
    device: Any = clock
    with progress(quiet=True) as shown:
        return measure_baselines(works, device, budget=budget, log=RunLog(shown, started=clock.now_s), **options)


def work_of(tensor: Tensor, calls: int = 1) -> RegionWork:
    (ast,) = kernels_of(tensor)
    region = Region((kernel_of(ast),))
    return RegionWork(WorkloadCall(region, calls), KernelSpace(region, X86))


@cache
def sums() -> tuple[RegionWork, ...]:
    return tuple(work_of(empty(n) + 1) for n in range(1, 41))


def many_small_one_big() -> list[RegionWork]:
    """As in a script that ends with its matmul: nothing is measured of them yet."""
    return [RegionWork(work.call, work.space) for work in (*sums(), work_of(empty(512, 512) @ empty(512, 512)))]


def training_loop() -> list[RegionWork]:
    """130 kernels of which 18 take 95 % of the time, in an order that says nothing of it."""
    (like, *_) = sums()
    return [
        RegionWork(WorkloadCall(like.call.region, round(1e6 * 0.85 ** (i * 37 % 130)) + 1), like.space)
        for i in range(130)
    ]


def own_s(work: RegionWork) -> float:
    """Twice what is expected of it, or half of that."""
    return work.expected_s / work.call.calls * (2.0 if work.call.calls % 2 else 1.0)


def test_what_takes_nearly_all_of_the_time_is_timed_first_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    works = many_small_one_big()
    *_, matmul = works
    clock = Clock(monkeypatch, lambda work: 0.5 if work is matmul else 40e-6, is_cpu=True)
    measured = timed(clock, works, left_s=20.0)
    assert clock.sent[0] is matmul and len(clock.batches[0]) == 2, "as many as there are compilers"
    assert measured.untimed == len(works) - len(clock.sent) > 30 and measured.untimed_share < 1 - ENOUGH
    assert clock.now_s - 1000.0 <= TAIL * 20.0, "what takes little is timed where that takes little"
    assert total_s(works) is None and total_s(measured.timed) == pytest.approx(0.5, rel=0.01)


def test_a_search_does_not_wait_for_what_adds_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """600 kernels of 40 us beside a matmul of .3 s take a fourteenth of the time, and a budget has time for a few."""
    *some, matmul = many_small_one_big()
    tiny = [RegionWork(work.call, work.space) for work in some for _ in range(15)]
    clock = Clock(monkeypatch, lambda work: 0.3 if work is matmul else 40e-6, is_cpu=True)
    measured = timed(clock, [*tiny, matmul], left_s=30.0)
    assert len(clock.sent) == 2 and clock.sent[0] is matmul and measured.untimed == 599
    assert measured.untimed_share > 1 - ENOUGH, "more than need not be timed"


@pytest.mark.parametrize("is_cpu", [True, False])
def test_a_search_begins_once_most_of_the_expected_time_is_timed(monkeypatch: pytest.MonkeyPatch, is_cpu: bool) -> None:
    works = training_loop()
    clock = Clock(monkeypatch, own_s, is_cpu=is_cpu)
    measured = timed(clock, works, left_s=73.0)
    assert measured.untimed_share < 1 - ENOUGH and 15 < len(clock.sent) < 30
    total, seen = (sum(own_s(w) * w.call.calls for w in some) for some in (works, clock.sent))
    assert seen > 0.9 * total and clock.now_s - 1000.0 <= HEAD * 73.0 + EACH_S
    assert [w.call.calls for w in clock.sent] == sorted((w.call.calls for w in works), reverse=True)[: len(clock.sent)]


def test_a_kernel_whose_reference_takes_long_waits_for_those_that_gain_more_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GAN's step, of which three sums over 33 million terms took 19 of 60 s."""
    with Context(SPLIT_REDUCEOP=0):
        long = [work_of((empty(1 << 25) * n).sum()) for n in (2, 3, 4)]
    others = [work_of(empty(512, 256 + n) @ empty(256 + n, 512)) for n in range(20)]
    assert {work.reference_terms for work in long} == {1 << 25} and others[0].reference_terms == 96 * 256
    assert min(work.expected_s for work in long) > max(work.expected_s for work in others)
    clock = Clock(monkeypatch, lambda work: work.expected_s, is_cpu=True)
    clock.each_s = lambda work: 6.5 if work.reference_terms == 1 << 25 else 0.3
    timed(clock, [*long, *others], left_s=33.0)
    assert {id(work) for work in clock.sent} == {id(work) for work in others}
    assert clock.now_s - 1000.0 <= HEAD * 33.0
    longer = Clock(monkeypatch, lambda work: work.expected_s, is_cpu=True)
    longer.each_s = clock.each_s
    timed(longer, [RegionWork(work.call, work.space) for work in (*long, *others)], left_s=200.0)
    assert len(longer.sent) >= 22, "with more time those that matter are timed, too"


@pytest.mark.parametrize("left_s", [20.0, 5.0, 0.0, -20.0])
def test_a_budget_that_leaves_little_times_what_it_can_and_one_in_any_case(
    monkeypatch: pytest.MonkeyPatch, left_s: float
) -> None:
    works = training_loop()
    clock = Clock(monkeypatch, own_s, is_cpu=True)
    measured = timed(clock, works, left_s=left_s)
    took_s = clock.now_s - 1000.0
    assert took_s <= max(HEAD * left_s, 2 * EACH_S), "no batch outlives the time that it was given"
    assert len(clock.sent) >= 2 and measured.untimed == 130 - len(clock.sent) and measured.untimed_share > 0.05
    assert measured.baseline_s == pytest.approx(EACH_S) and all(work.is_timed for work in measured.timed)


@pytest.mark.parametrize("left_s", [None, 2000.0])
def test_where_there_is_time_all_are_timed(monkeypatch: pytest.MonkeyPatch, left_s: float | None) -> None:
    works = training_loop()
    clock = Clock(monkeypatch, own_s, is_cpu=True)
    measured = timed(clock, works, left_s=left_s)
    assert len(clock.sent) == 130 and (measured.untimed, measured.untimed_share) == (0, 0.0)
    assert max(map(len, clock.batches)) == 16 and measured.timed is works, "eight for each compiler"


@pytest.mark.parametrize("left_s", [None, 200.0])
def test_what_takes_little_is_timed_while_a_search_goes_on(
    monkeypatch: pytest.MonkeyPatch, left_s: float | None
) -> None:
    works = training_loop()
    clock = Clock(monkeypatch, own_s, is_cpu=False)
    measured = timed(clock, works, left_s=left_s, leaves_tail=True)
    first, tail = [work for work in works if work.is_timed], measured.tail
    assert tail is not None and 15 < len(first) < 30
    assert measured.untimed == 130 - len(first) and measured.untimed_share <= 1 - ENOUGH
    later: list[RegionWork] = []
    while not tail.is_over:
        later += (some := tail.turn())
        assert len(some) <= BESIDE, "no more than a few are with the device"
    assert [id(w) for w in works if w.is_timed] == [id(w) for w in works if any(w is one for one in [*first, *later])]
    assert (len(first) + len(later) == 130) == (left_s is None), "a budget leaves some out"


@pytest.mark.parametrize("left_s", [None, 60.0])
def test_on_a_gpu_a_search_waits_for_nothing_that_adds_next_to_nothing(
    monkeypatch: pytest.MonkeyPatch, left_s: float | None
) -> None:
    """Whatever was sent before it is measured before it."""
    some, matmul = sums(), work_of(empty(2048, 2048) @ empty(2048, 2048))
    tiny = [RegionWork(work.call, work.space) for work in some for _ in range(15)]
    clock = Clock(monkeypatch, lambda work: 0.3 if work is matmul else 4e-6, is_cpu=False)
    clock.service.compile_workers = 16
    measured = timed(clock, [*tiny, matmul], left_s=left_s, leaves_tail=True)
    assert clock.sent[0] is matmul and len(clock.sent) == BESIDE and measured.untimed == 601 - BESIDE
    assert measured.untimed_share < 1 - ENOUGH
    assert measured.tail is not None and not measured.tail.is_over and measured.tail.turn() == []
    assert len(clock.sent) == 2 * BESIDE and len(measured.tail.turn()) == BESIDE
    measured.tail.finish(None if left_s is None else 10.0)
    assert (sum(work.is_timed for work in [*tiny, matmul]) == 601) == (left_s is None), "without a budget all are"
    assert measured.tail.is_over


def test_what_one_sample_says_of_the_others_begins_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that cannot be judged counts as a second a call: it would be all that is sent."""
    some = sums()
    works = [RegionWork(WorkloadCall(work.call.region, 1), work.space) for work in some]
    monkeypatch.setattr(RegionWork, "expected_s", property(lambda work: 57.0 if work is works[0] else 1e-5))
    clock = Clock(monkeypatch, lambda work: 1e-3, is_cpu=False)
    clock.service.compile_workers = 16
    measured = timed(clock, works, left_s=None, leaves_tail=True)
    assert len(clock.sent) > 30 and measured.untimed_share <= 1 - ENOUGH


def test_a_run_that_goes_on_has_the_tail_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    some, matmul = sums(), work_of(empty(2048, 2048) @ empty(2048, 2048))
    works = [matmul, *(RegionWork(work.call, work.space) for work in some)]
    for work in works[:6]:
        work.keep(Observation(work.space.baseline(), Status.OK, 0.3 if work is matmul else 4e-6, work.id))
    clock = Clock(monkeypatch, lambda work: 4e-6, is_cpu=False)
    tail = timed(clock, works, left_s=None, leaves_tail=True).tail
    assert tail is not None
    while not tail.is_over:
        tail.turn()
    assert all(work.is_timed for work in works)


def test_on_a_cpu_nothing_is_timed_beside_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    works = training_loop()
    measured = timed(Clock(monkeypatch, own_s, is_cpu=True), works, left_s=None, leaves_tail=True)
    assert measured.tail is None and all(work.is_timed for work in works)


def test_what_a_run_before_has_timed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    works = training_loop()
    clock = Clock(monkeypatch, own_s, is_cpu=True)
    timed(clock, works, left_s=73.0)
    clock.batches.clear()
    measured = timed(clock, works, left_s=-1.0)
    assert not clock.sent and measured.untimed_share < 1 - ENOUGH, "it may search at once"


def test_a_search_is_expected_to_compile_what_need_not_be_compiled_of_baselines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, own_s, is_cpu=True)
    clock.spared_s = 2.0
    assert timed(clock, training_loop(), left_s=73.0).baseline_s == pytest.approx(EACH_S + 2.0)


def test_with_an_end_of_their_own_regions_are_timed_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    works = training_loop()
    clock = Clock(monkeypatch, own_s, is_cpu=True)
    timed(clock, works, left_s=20.0, until=1000.0 + 20.0)
    assert clock.sent == works[:32], "batches of 16 until then"


def test_what_was_not_timed_is_said_with_its_share_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    works = many_small_one_big()
    works[-1].keep(Observation(works[-1].space.baseline(), Status.OK, 0.5, "matmul"))
    with progress(quiet=True) as shown:
        log = RunLog(shown, started=0.0)
        say_untimed(Measured(works, 0.0, 40, untimed_share=0.0031), log)
        assert log.warnings == [
            "40 of 41 kernels were not timed, and are not searched: they are expected to take 0.3% of the time, which "
            "is in no total"
        ]
        say_untimed(Measured(works[-1:], 0.0), log)
    assert len(log.warnings) == 1 and noun_for(works) == "kernel"


@pytest.mark.parametrize("is_cpu", [False, True])
def test_what_searches_begin_with_is_compiled_while_baselines_are_timed(
    is_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, whose compilers are idle then: what takes longest, one for each of them, where the others begin, and
    nothing of what a store says all of."""
    clock = Clock(monkeypatch, lambda work: 1e-3, is_cpu=is_cpu)
    works = [work_of(empty(size, size).sum(1), size) for size in (16, 64, 32, 8)]
    compiled: list[list[RegionWork]] = []
    sought: list[RegionWork] = []
    device: Any = clock
    device.first_programs, device.find_starts, device.use_others = compiled.append, sought.extend, lambda works: None
    guide, ahead = SimpleNamespace(read=lambda: None, wanted=False), SimpleNamespace(prepare=lambda works: None)
    monkeypatch.setattr(handwritten, "measure", lambda works, device, log: None)
    preparing: Any = Preparing(cast(Any, guide), cast(Any, ahead), None, [works[2].id])
    budget, settings = Budget(started=clock.now_s, limit_s=None, measurements=None), Settings("mlp")
    with progress(quiet=True) as shown:
        log = RunLog(shown, started=clock.now_s)
        baselines(settings, works, preparing, device=device, budget=budget, log=log)
    assert (compiled, sought) == (([], works) if is_cpu else ([[works[1], works[0]]], [works[3]]))
