"""Which plans a budget has time to compare, and what is said of the others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kcg.judge import whole_model, whole_script
from kcg.optimize import model_check
from kcg.optimize.model_check import check_models
from kcg.optimize.settings import Settings
from kcg.optimize.work import Captured
from kcg.types import ModelCheck, Result, Workload
from tests.sample_result import sample_result

ONE_S, FURTHER_S = 40.0, 10.0


class Run:
    """What a check asks of a run: how long it takes, and where its warnings go."""

    def __init__(self, left_s: float | None) -> None:
        self.warnings: list[str] = []
        over_at = None if left_s is None else time.monotonic() + left_s
        budget = SimpleNamespace(over_at=over_at, limit_s=None if left_s is None else 0.0)
        kept = SimpleNamespace(forget=lambda: 0)
        settings = Settings("flux")
        self.log: Any = SimpleNamespace(
            warn=self.warnings.append, progress=SimpleNamespace(phase=lambda words: None), lose=None, interrupt=None
        )
        self.estimates: Any = SimpleNamespace(
            budget=budget,
            kept=kept,
            works=(),
            settings=settings,
            whole_s=self.whole_s,
            captured=Captured(Workload("flux", "mini", ())),
        )
        self.settings: Any = settings
        service = SimpleNamespace(check_device=lambda: None)
        self.device: Any = SimpleNamespace(service=service, own_programs=lambda works: {})

    def whole_s(self, *, changed: int, plans: int) -> float:
        return ONE_S + (plans - 1) * FURTHER_S


@pytest.mark.parametrize(
    ("left_s", "asked"),
    [(None, [0, 1, 2, 3]), (75.0, [0, 1, 2, 3]), (65.0, [0, 1, 3]), (55.0, [0, 3]), (45.0, [3]), (35.0, [])],
)
def test_a_budget_compares_the_best_plans_and_the_kernels_alone(
    left_s: float | None, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    def check(results: Sequence[Result], **options: Any) -> list[ModelCheck]:
        compared.extend(result.seed for result in results)
        return [ModelCheck(True, after_s=1.0) for _ in results]

    monkeypatch.setattr(whole_model, "check_models", check)
    monkeypatch.setattr(whole_model, "why_not_needed", lambda *args, **options: "")
    plans, run = [replace(sample_result(), seed=number) for number in range(4)], Run(left_s)
    checks = check_models(plans, run.settings, estimates=run.estimates, planning=None, device=run.device, log=run.log)
    assert compared == asked
    assert [place for place, seen in enumerate(checks) if seen.passed] == asked
    assert all("not run: " in seen.reason for place, seen in enumerate(checks) if place not in asked)
    assert len(run.warnings) == (not asked), "one line for all of them"


@pytest.mark.parametrize(
    ("passed", "said"),
    [
        ((True, None), []),
        ((None, None), ["was not compared"]),
        ((True, False), ["with schedules that are not chosen: --resume"]),
        ((False, None), ["with these schedules: --resume", "was not compared"]),
        ((False, False), ["with these schedules: --resume"]),
    ],
)
def test_what_is_said_is_of_what_may_be_chosen(
    passed: tuple[bool | None, ...], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_model, "check_models", lambda results, **options: [ModelCheck(one) for one in passed])
    monkeypatch.setattr(whole_model, "why_not_needed", lambda *args, **options: "")
    run = Run(None)
    run.estimates.kept.forget = lambda: True
    check_models(
        [sample_result()] * 2, run.settings, estimates=run.estimates, planning=None, device=run.device, log=run.log
    )
    assert len(run.warnings) == len(said) and all(one in line for one, line in zip(said, run.warnings, strict=True))


def test_where_the_kernels_alone_change_nothing_the_best_plans_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def check(results: Sequence[Result], **options: Any) -> list[ModelCheck]:
        compared.extend(result.seed for result in results)
        return [ModelCheck(True, after_s=1.0) for _ in results]

    def why_not(settings: Any, result: Result, *, ended_early: bool) -> str:
        return "not run: no schedule was changed" if result.seed == 3 else ""

    monkeypatch.setattr(whole_model, "check_models", check)
    monkeypatch.setattr(whole_model, "why_not_needed", why_not)
    plans, run = [replace(sample_result(), seed=number) for number in range(4)], Run(55.0)
    model_check.check_models(
        plans, run.settings, estimates=run.estimates, planning=None, device=run.device, log=run.log
    )
    assert compared == [0, 1]


@pytest.mark.parametrize(
    ("steps", "left_s", "asked"),
    [
        (9, None, [0, 1, 2, 3]),
        (9, 65.0, [0, 1, 3]),
        (9, 45.0, [3]),
        (0, None, [0, 3]),  # no step of it can be timed: one plan that is right is enough
    ],
)
@pytest.mark.parametrize("long", [False, True])
def test_a_script_runs_with_the_best_plans_and_with_every_kernel_alone(
    steps: int, left_s: float | None, asked: list[int], long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long one without a budget with the best one alone."""
    compared: list[tuple[int, float]] = []

    def check(results: Sequence[Result], settings: Any, *, rounds_s: float, **options: Any) -> list[ModelCheck]:
        compared.extend((result.seed, rounds_s) for result in results)
        return [ModelCheck(True, after_s=1.0) for _ in results]

    monkeypatch.setattr(whole_script, "check_scripts", check)
    monkeypatch.setattr(whole_script, "why_not_needed", lambda *args, **options: "")
    if long:
        monkeypatch.setattr(whole_script, "LEAST_TIMEOUT_S", ONE_S)
        asked = [0, 3] if left_s is None else asked
    plans, run = [replace(sample_result(), seed=number, steps=steps) for number in range(4)], Run(left_s)
    run.settings = run.estimates.settings = Settings("script.py")
    checks = check_models(plans, run.settings, estimates=run.estimates, planning=None, device=run.device, log=run.log)
    assert [seed for seed, _ in compared] == asked
    assert all(rounds_s <= (left_s or whole_script.ROUNDS_S) for _, rounds_s in compared)
    assert all(seen.passed or seen.reason.startswith("not run: ") for seen in checks)
