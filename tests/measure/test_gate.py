"""Two pools that share a device: their jobs never overlap, each has its share, and neither trusts blindly."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kcg.kernel.kinds import registered
from kcg.measure import canary
from kcg.measure.canary import CanaryReading
from kcg.measure.gate import Gate
from kcg.measure.pools import DevicePool
from tests.conftest import CPU
from tests.waiting import PATIENCE_S


def interval(seconds: float) -> tuple[float, float]:
    """When a job ran, by a clock that all processes share."""
    begin = time.monotonic()
    time.sleep(seconds)
    return begin, time.monotonic()


def wrong_glance(dev: str, known: object = None) -> CanaryReading:
    return CanaryReading(1.0, (1.0,), "its element 3 is 0, not 16")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[DevicePool, DevicePool]]:
    """Two pools of one CPU."""
    initargs = (CPU, os.getpid(), str(tmp_path / "cache.db"), "", registered())
    with ExitStack() as opened:
        first = DevicePool(CPU, initargs, open_timeout_s=PATIENCE_S)
        second = DevicePool(CPU, initargs, open_timeout_s=PATIENCE_S, gate=first.gate)
        opened.callback(first.close)
        opened.callback(second.close)
        yield first, second


def test_jobs_of_two_pools_of_one_device_never_overlap(two: tuple[DevicePool, DevicePool]) -> None:
    jobs = [pool.submit(interval, 0.01, timeout_s=PATIENCE_S) for pool in two * 4]
    ran = sorted(job.result(timeout=PATIENCE_S) for job in jobs)
    assert len(ran) == 8 and all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ran))
    assert [pool.replaced for pool in two] == [0, 0], "after each other's turns the device was as before"


def test_a_child_that_finds_the_device_changed_by_another_one_is_replaced(
    two: tuple[DevicePool, DevicePool], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    monkeypatch.setattr(canary, "glance_job", wrong_glance)
    for pool in (first, second, first):
        pool.submit(interval, 0.0, timeout_s=PATIENCE_S).result(timeout=PATIENCE_S)
    assert (first.replaced, second.replaced) == (1, 0), "the second one's child had passed the whole canary just before"
    assert first.canaries == 2


def test_closing_ends_a_job_that_waits_for_the_device(two: tuple[DevicePool, DevicePool]) -> None:
    first, second = two
    first.submit(interval, PATIENCE_S, timeout_s=PATIENCE_S)
    waiting = second.submit(interval, 0.0, timeout_s=PATIENCE_S)
    second.close()
    assert waiting.exception(timeout=PATIENCE_S) is not None and not second._thread.is_alive()


# ---- whose turn it is


class Turns:
    """Pools whose jobs take what they say, by a clock of their own."""

    def __init__(self, *waiting: tuple[str, list[float]]) -> None:
        self.now_s, self.order = 0.0, list[str]()
        self.gate = Gate(clock=lambda: self.now_s)
        for pool, jobs in waiting:
            for _ in jobs:
                self.gate.want(pool)
        threads = [threading.Thread(target=self.run, args=one, daemon=True) for one in waiting]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)

    def run(self, pool: str, jobs: list[float]) -> None:
        for seconds in jobs:
            with self.gate.turn(pool, threading.Event()):
                self.order.append(pool)
                self.now_s += seconds
            self.gate.done(pool)


def test_each_pool_has_as_much_of_the_time_while_both_have_work() -> None:
    order = Turns(("search", [0.25] * 12), ("judging", [1.0] * 3)).order
    searched = ["search"] * 4
    assert order == ["search", "judging", *searched, "judging", *searched, "judging", *searched[1:]]


def test_nobody_waits_for_a_pool_that_is_not_ready() -> None:
    turns = Turns(("search", [1.0] * 3))
    gate, never = turns.gate, threading.Event()
    gate.want("judging")
    with gate.away("judging"):
        gate.want("search")
        for _ in range(2):
            with gate.turn("search", never):
                turns.now_s += 1.0
    assert gate._next() == "judging", "it has its turn as soon as it is"


def test_a_pool_that_was_idle_has_no_claim_for_that() -> None:
    turns = Turns(("search", [1.0] * 50))
    gate = turns.gate
    gate.want("search")
    gate.want("judging")
    taken = []
    for _ in range(4):
        taken.append(gate._next())
        with gate.turn(taken[-1], threading.Event()):
            turns.now_s += 1.0
    assert taken == ["search", "judging"] * 2
