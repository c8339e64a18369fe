"""Which plans a budget has time to compare, and what is said of the others."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kcg.judge.whole import Cost, Runner, was_tried
from kcg.optimize.job_log import JobLog
from kcg.optimize.model_check import check_models
from kcg.optimize.region_plans import fastest_step
from kcg.types import ModelCheck, Result
from tests.sample_result import sample_result

ONE_S, FURTHER_S = 40.0, 10.0


class Whole(Runner):
    """A whole that takes so long to compare, and is right with what is `passed`; what it was asked to compare."""

    what = "whole"

    def __init__(
        self, *passed: bool | None, most_s: float = math.inf, nothing: Sequence[int] = (), reason: str = ""
    ) -> None:
        self.most_s, self._passed, self._nothing, self._reason = most_s, passed, nothing, reason
        self.compared: list[int] = []
        self.rounds_s = 0.0

    def why_not(self, results: Sequence[Result]) -> list[str]:
        return ["not run: no schedule was changed" if result.seed in self._nothing else "" for result in results]

    def announced(self, plans: str) -> str:
        return plans

    def expected_s(self, cost: Cost) -> float:
        return ONE_S + (cost.plans - 1) * FURTHER_S

    def checks(self, results: Sequence[Result], *, timeout_s: float, rounds_s: float) -> list[ModelCheck]:
        self.compared, self.rounds_s = [result.seed for result in results], rounds_s
        return [ModelCheck(one, self._reason, after_s=1.0) for one in self._passed or [True] * len(results)]


class Run:
    """What a check asks of a run: how long it takes, and where its warnings go."""

    def __init__(self, whole: Whole, left_s: float | None = None, *, effort: str = "thorough") -> None:
        self.whole, self.warnings = whole, list[str]()
        over_at = None if left_s is None else time.monotonic() + left_s
        budget = SimpleNamespace(over_at=over_at, limit_s=None if left_s is None else 0.0)
        progress = SimpleNamespace(phase=lambda words: None)
        jobs = JobLog(0.0)
        self.log: Any = SimpleNamespace(warn=self.warnings.append, progress=progress, ended_early=False, jobs=jobs)
        kept = SimpleNamespace(forget=lambda: True)
        took = self.took = list[tuple[float, float]]()
        self.estimates: Any = SimpleNamespace(
            budget=budget,
            settings=SimpleNamespace(effort=effort),
            kept=kept,
            whole_s=self.whole_s,
            took_whole=lambda expected_s, spent_s: took.append((expected_s, spent_s)),
        )

    def whole_s(self, **of: int) -> float:
        return self.whole.expected_s(Cost(**of))

    def checks(self, plans: int) -> list[ModelCheck]:
        results = [replace(sample_result(), seed=number) for number in range(plans)]
        return check_models(results, self.whole, estimates=self.estimates, log=self.log)


@pytest.mark.parametrize(
    ("left_s", "asked"),
    [(None, [0, 1, 2, 3]), (75.0, [0, 1, 2, 3]), (65.0, [0, 1, 3]), (55.0, [0, 3]), (45.0, [0]), (35.0, [])],
)
def test_a_budget_compares_the_best_plans_and_the_kernels_alone(left_s: float | None, asked: list[int]) -> None:
    """Where there is time for one it is the best plan: each of its parts was verified."""
    run = Run(whole := Whole(), left_s)
    checks = run.checks(4)
    assert whole.compared == asked and whole.rounds_s <= (left_s or math.inf)
    assert [place for place, seen in enumerate(checks) if seen.passed] == asked
    assert all("not run: " in seen.reason for place, seen in enumerate(checks) if place not in asked)
    assert len(run.warnings) == (not asked), "one line for all of them"


@pytest.mark.parametrize(("left_s", "asked"), [(None, [0, 1, 3]), (75.0, [0, 1, 3]), (55.0, [0, 3])])
def test_two_plans_with_regions_are_compared_where_the_effort_is_not_thorough(
    left_s: float | None, asked: list[int]
) -> None:
    run = Run(whole := Whole(), left_s, effort="normal")
    checks = run.checks(4)
    assert whole.compared == asked
    assert "--effort thorough" in checks[2].reason and not run.warnings


@pytest.mark.parametrize(("most_s", "asked"), [(65.0, [0, 1, 3]), (ONE_S, [0, 3])])
def test_without_a_budget_a_long_one_runs_with_the_best_plan_and_with_every_kernel_alone(
    most_s: float, asked: list[int]
) -> None:
    checks = Run(whole := Whole(most_s=most_s)).checks(4)
    assert whole.compared == asked
    assert {seen.reason for seen in checks if not seen.passed} == {"not run: a run of the whole is long"}


@pytest.mark.parametrize(
    ("several_s", "keeps", "asked"),
    [(ONE_S + 3 * FURTHER_S, 1, [0, 1, 3]), (ONE_S + FURTHER_S, 1, [0, 3]), (ONE_S, 1, [0]), (ONE_S, 2, [0, 3])],
)
def test_without_a_budget_plans_are_compared_where_that_is_soon_done(
    several_s: float, keeps: int, asked: list[int]
) -> None:
    """Else as many as a budget keeps time for; who asked for thorough effort has all."""

    class Long(Whole):
        plans = keeps

    whole, thorough = Long(), Long()
    whole.several_s = thorough.several_s = several_s
    Run(whole, effort="normal").checks(4)
    Run(thorough).checks(4)
    assert (whole.compared, thorough.compared) == (asked, [0, 1, 2, 3])


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
def test_what_is_said_is_of_what_may_be_chosen(passed: tuple[bool | None, ...], said: list[str]) -> None:
    run = Run(Whole(*passed))
    run.checks(2)
    assert len(run.warnings) == len(said) and all(one in line for one, line in zip(said, run.warnings, strict=True))


@pytest.mark.parametrize(("left_s", "chosen"), [(55.0, 0), (None, 1)])
def test_what_a_budget_cut_short_says_nothing_of_the_schedules(left_s: float | None, chosen: int) -> None:
    """The best plan stands, as where there was no time at all. Without a budget there was time enough: it may hang."""
    late = "no verdict: the whole's run did not finish in 19 s (running the chosen schedules)"
    run = Run(Whole(None, None, reason=late), left_s)
    checks = run.checks(2)
    assert [was_tried(check) for check in checks] == [left_s is None] * 2
    assert all("did not finish in 19 s" in check.reason for check in checks) and "did not finish" in run.warnings[0]
    results = [replace(sample_result(), seed=number) for number in range(2)]
    assert fastest_step(results, checks)[0].seed == chosen


def test_where_the_kernels_alone_change_nothing_the_best_plans_are_compared() -> None:
    Run(whole := Whole(nothing=[3]), 55.0).checks(4)
    assert whole.compared == [0, 1]


def test_what_there_was_no_time_for_says_that_the_plan_that_ran_is_wrong() -> None:
    *_, last = Run(Whole(False), 45.0).checks(3)
    assert last.passed is None and "no time for so many plans, and what was run is wrong: " in last.reason
