"""Which plans a budget has time to compare, and what is said of the others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kcg.optimize import model_check, whole_model, whole_script
from kcg.optimize.model_check import check_models
from kcg.optimize.settings import Settings
from kcg.optimize.work import Captured
from kcg.types import ModelCheck, Result, Workload
from tests.sample_result import sample_result

ONE_S, FURTHER_S = 40.0, 10.0
RIGHT_BEFORE = "not run: a plan that is expected to be faster is right"


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
            settings=settings,
            whole_s=self.whole_s,
            captured=Captured(Workload("flux", "mini", ())),
        )
        self.settings: Any = settings
        self.device: Any = SimpleNamespace(service=SimpleNamespace(check_device=lambda: None))

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
    ("right", "ran", "seen_of"),
    [
        ([True, True, True], [0], [True, None, None]),
        ([False, None, True], [0, 2], [False, None, True]),
        ([None, True, True], [0], [None, None, None]),
    ],
)
def test_a_script_runs_with_the_best_plan_and_where_that_is_wrong_with_every_kernel_alone(
    right: list[bool | None], ran: list[int], seen_of: list[bool | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step of it is timed. One that leaves no verdict, as it does not repeat itself, does so with any schedules."""
    seen: list[int] = []

    def check(result: Result, settings: Any, **options: Any) -> ModelCheck:
        seen.append(result.seed)
        return ModelCheck(right[result.seed])

    monkeypatch.setattr(whole_script, "check_script", check)
    monkeypatch.setattr(whole_script, "why_not_needed", lambda *args, **options: "")
    plans, run = [replace(sample_result(), seed=number) for number in range(3)], Run(None)
    run.settings = run.estimates.settings = Settings("script.py")
    checks = check_models(plans, run.settings, estimates=run.estimates, planning=None, device=run.device, log=run.log)
    assert seen == ran and [one.passed for one in checks] == seen_of
    assert checks[1].reason.startswith("not run: of the plans of a script")
    assert checks[2].passed or checks[2].reason in (checks[0].reason, RIGHT_BEFORE)
