"""The stages of a check, by the clock of its child."""

from __future__ import annotations

import pytest

from evaluation.flux import staged_check
from evaluation.flux.ready import show
from evaluation.flux.staged_check import Clock


class Hands:
    """What the time is."""

    now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


def test_stages_are_told_in_the_order_in_which_they_began_since_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hands = Hands()
    monkeypatch.setattr(staged_check, "time", hands)
    clock = Clock()

    def inner(seconds: float) -> None:
        hands.now_s += seconds

    timed = clock.around("inner", inner)

    def outer() -> None:
        timed(1.0)
        timed(0.001)
        timed(2.0)

    timed(3.0)
    clock.job_s = hands.now_s
    hands.now_s += 0.5
    clock.around("outer", outer)()
    assert clock.told() == [
        ("inner", 0.0, 3.0, 0),
        ("outer", 0.5, 3.001, 0),
        ("inner", 0.5, 1.0, 1),
        ("inner", 1.501, 2.0, 1),
    ]
    show(clock.told())
    assert capsys.readouterr().out.splitlines()[2] == "    0.50 s     1.00 s  inner"


def test_every_stage_is_a_function_that_there_is() -> None:
    for place in staged_check.STAGES:
        assert callable(staged_check.function_at(place)[2]), place
