"""Replays of a `TinyJit` are timed one by one, and run as they would without it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
from tinygrad import Device, Tensor, TinyJit
from tinygrad.engine import jit

from kcg.compat.programs import HIDDEN_MOST_S, HIDDEN_S, StepClock
from kcg.compat.replays import DEVICES, SHAPES, SKIPPED, THREADS, ReplayClock

aside: list[str] = []  # of the blocks in which replays were timed, their begin and end


@contextlib.contextmanager
def noted() -> Iterator[None]:
    aside.append("begin")
    yield
    aside.append("end")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplayClock]:
    for cls in (jit.CapturedJit, jit._TinyJit):
        monkeypatch.setattr(cls, "__call__", cls.__call__)  # which is put back
    aside.clear()
    with (found := ReplayClock(noted)).watch():
        yield found


def values(*shape: int) -> Tensor:
    return Tensor.ones(*shape).contiguous().realize()


def counting() -> tuple[Tensor, Callable[..., Tensor]]:
    """What a step adds its input to, and the step."""
    state = Tensor.zeros(4, 4).contiguous().realize()
    return state, TinyJit(lambda x: state.assign(state + x).realize())


def test_each_replay_runs_once_and_is_timed_but_for_the_first(clock: ReplayClock) -> None:
    state, step = counting()
    for _ in range(7):
        step(values(4, 4))
    assert state.numpy().tolist() == [[7.0] * 4] * 4
    (found,) = clock.steps()
    assert found.executions == 6, "the call that captured it included, the one before it not"
    assert len(found.seconds) == 6 - SKIPPED and all(seconds > 0 for seconds in found.seconds)
    assert aside == ["begin", "end"] * len(found.seconds)
    assert (clock.clock, clock.why_not) == ("wall clock", "")


def test_each_of_several_is_told_apart_by_what_it_is_given(clock: ReplayClock) -> None:
    (_, first), second = counting(), TinyJit(lambda x, y: (x @ y).realize())
    for _ in range(4):
        first(values(4, 4))
    for _ in range(5):
        second(values(2, 3), y=values(3, 2))
    assert [one.executions for one in clock.steps()] == [3, 4]
    assert len({one.given for one in clock.steps()}) == 2 and not clock.why_not


def test_what_changes_shape_is_not_timed(clock: ReplayClock) -> None:
    step = TinyJit(lambda x: (x + 1).realize())
    for rows in (2, 2, 2, 3, 3, 3):
        if step.captured is not None and rows == 3 and clock.why_not == "" and step.cnt == 3:
            step.reset()
        assert step(values(rows, 4)).shape == (rows, 4)
    assert clock.why_not == SHAPES


def test_what_runs_on_several_devices_is_not_timed(clock: ReplayClock) -> None:
    other = f"{Device.DEFAULT}:1"
    step = TinyJit(lambda x: (x.to(other) + 1).realize())
    for _ in range(4):
        step(values(4, 4))
    assert clock.why_not == DEVICES and not clock.steps()[0].seconds


def test_what_runs_in_several_threads_at_once_is_not_timed(clock: ReplayClock, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, first), (_, second) = counting(), counting()
    for _ in range(SKIPPED + 1):
        first(values(4, 4)), second(values(4, 4))
    once = StepClock.once

    def beside(self: StepClock, call: Callable[[], object]) -> tuple[float, bool]:
        thread = threading.Thread(target=lambda: second(values(4, 4)))
        thread.start()
        thread.join()
        return once(self, call)

    monkeypatch.setattr(StepClock, "once", beside)
    first(values(4, 4))
    assert clock.why_not == THREADS


def test_a_replay_in_which_the_device_waited_for_the_host_counts_only_where_all_did() -> None:
    """By the sizes of what is hidden; on a GPU they are those of a device that spins."""
    asked: list[float] = []

    class Slow(StepClock):
        def sample(self, call: Callable[[], object], busy_s: float) -> tuple[float, float]:
            asked.append(busy_s)
            return 1.0, 3 * HIDDEN_S

    clock = Slow(Device.DEFAULT)
    clock.device, calls = "CUDA", list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kcg.compat.programs.synchronize", lambda device: None)
        seen = [clock.once(lambda: calls.append(1)) for _ in range(2)]
    assert seen == [(1.0, False), (1.0, True)] and asked[0] == HIDDEN_S < 3 * HIDDEN_S < asked[1] <= HIDDEN_MOST_S
