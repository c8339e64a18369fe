"""A script computes with the chosen schedules what it computes with tinygrad's own, or the result is refused."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import threading
from ast import literal_eval
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from rich.console import Console

from kcg.compat.observing import ALIVE, READ, RETURNED, Piece
from kcg.compat.replays import Replayed
from kcg.errors import ExitCode, VerificationError
from kcg.handover.checks import check_model_result
from kcg.judge import whole_script
from kcg.judge.script_run import Ran
from kcg.judge.whole import (
    Cost,
    Rounding,
    equal,
    judge_first,
    rounding_of,
    same_layout,
)
from kcg.judge.whole_script import Script
from kcg.kernel.compile import compile_schedule
from kcg.kernel.composed import parts_of, schedule_of_parts
from kcg.kernel.handwritten import KernelFile, describe_job, lower_job, match_job
from kcg.kernel.kinds import ACTION_SPACE_VERSION
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.device_info import detect
from kcg.optimize.console import print_result
from kcg.optimize.region_plans import _fastest, fastest_step
from kcg.report.endings import exit_code_of
from kcg.report.formats import format_seconds
from kcg.report.page import render_report, step_of
from kcg.report.result import from_dict, to_dict
from kcg.report.words import step_lines
from kcg.types import Kernel, ModelCheck, Region, RegionResult, Result, Schedule, ScheduleKind
from kcg.workloads.script import Form, Program
from tests.captured import captured_script
from tests.judge.test_whole_model import WRONG, another, finalist
from tests.planned_result import planned_result
from tests.sample_result import sample_result
from tests.waiting import wait_until

DEV = os.environ["DEV"]
SCRIPTS = Path(__file__).parents[1] / "scripts"
SCRIPT = SCRIPTS / "left_over.py"
OUTER, BY_HAND = SCRIPTS / "outer_sum.py", SCRIPTS / "outer_kernels.py"
TIMEOUT_S = 900.0  # much more than it takes, on a machine that does much else


def result_of(script: Path, *arguments: str) -> Result:
    """A result of a script, every kernel with another schedule than tinygrad's where there is one that compiles."""
    target, toolchain = detect(DEV, ACTION_SPACE_VERSION)
    workload, rows = captured_script(script, *arguments), []
    for call in workload.calls:
        space = KernelSpace(call.region, target)
        base, ours = finalist(space, space.baseline()), finalist(space, another(space))
        outcome = "kept" if base.schedule == ours.schedule else "improved"
        rows.append(RegionResult(call.region, call.calls, base, ours, 1, outcome))
    return replace(
        sample_result(),
        workload=workload.name,
        preset=workload.preset,
        target=target,
        toolchain=toolchain,
        regions=tuple(rows),
        recomputes=(),
        expectations=(),
    )


@pytest.fixture(scope="module")
def right() -> Result:
    """Of the model that every way of leaving its results has."""
    return result_of(SCRIPT, "alive")


@pytest.fixture(scope="module")
def wrong(right: Result) -> Result:
    """The same with a schedule of its maximum that writes nothing: see test_whole_model."""
    rows = []
    for row in right.regions:
        space = KernelSpace(row.region, right.target)
        with contextlib.suppress(Exception):  # it does not apply to the others
            space.state(WRONG)
            row = replace(row, chosen=finalist(space, WRONG), outcome="improved")
        rows.append(row)
    assert sum(row.chosen.schedule == WRONG for row in rows) == 1
    return replace(right, regions=tuple(rows))


def check(result: Result, *arguments: str, timeout_s: float = TIMEOUT_S, **settings: Any) -> ModelCheck:
    (seen,) = script_of(SCRIPT, *arguments, **settings).checks([result], timeout_s=timeout_s)
    return seen


def script_of(path: Path, *arguments: str, **settings: Any) -> Script:
    return Script(Program(Form.SCRIPT, str(path), arguments), **settings)


# ---- real runs ----


@pytest.mark.slow
def test_what_is_alive_is_compared_and_seeds_and_side_effects_repeat(right: Result, tmp_path: Path) -> None:
    file = tmp_path / "runs.txt"
    result = check(right, "alive", str(file), seed=7)
    assert result.passed, result
    assert result.compared == "1 tensor alive at its end", "neither what it began with, nor the generator's own"
    assert result.kernels == sum(row.outcome == "improved" for row in right.regions)
    assert result.error is not None and result.tolerance is not None and result.error <= result.tolerance < 1e-4
    assert (result.runs, result.seed) == (2, 7)
    first, second = file.read_text().splitlines()
    assert first == second, "Python's, NumPy's and tinygrad's random numbers, and the order of sets"
    drawn = literal_eval(first)
    assert drawn[4] == "" and len({float(number) for number in (*drawn[:3], *drawn[5:])}) == 5, "each is another"


@pytest.mark.slow
def test_what_its_recording_lowered_is_not_lowered_again(right: Result) -> None:
    alone = [row.region for row in right.regions if not row.variables]
    spaces = {region.id: KernelSpace(region, right.target) for region in alone}
    own = {name: compile_schedule(s.region, s.baseline(), right.target) for name, s in spaces.items()}
    script = script_of(SCRIPT, "alive", programs=lambda: own)
    (seen,) = script.checks([right], timeout_s=TIMEOUT_S)
    assert seen.passed and seen.kernels == sum(row.outcome == "improved" for row in right.regions), seen
    (ran,) = script.known
    assert ran.given == len(own) > 2


def test_a_run_is_expected_to_take_what_the_recording_took_without_lowering() -> None:
    cost = Cost(changed=3, plans=2, compile_s=0.5)
    recorded = script_of(SCRIPT, recorded_s=40.0)
    assert replace(recorded, spared_s=30.0).expected_s(cost) < recorded.expected_s(cost) / 2
    assert replace(recorded, spared_s=30.0).expected_s(cost) > 3 * 10.0 + 2 * 1.5


@pytest.fixture(scope="module")
def jitted(wrong: Result, right: Result) -> list[ModelCheck]:
    """What three plans came to in a script that is a function, which leaves nothing but what its jitted step returned,
    and replays that once."""
    return script_of(SCRIPT, "jitted").checks([wrong, right, right], timeout_s=TIMEOUT_S)


def test_a_wrong_schedule_fails_and_the_result_is_refused(wrong: Result, jitted: list[ModelCheck]) -> None:
    result = jitted[0]
    assert result.passed is False, result
    assert result.compared.endswith(", each from the same values with both")
    assert result.reason.startswith("a tensor (8 float) written by a step is not finite where it is with ")
    assert result.runs == 3 + 1, "with each, once more with trials of its steps, and one for what is right"
    failed = replace(wrong, model_check=result)
    assert exit_code_of(failed) == ExitCode.VERIFICATION_FAILED
    with pytest.raises(VerificationError, match=r"the whole script: a tensor \(8 float\)"):
        check_model_result(failed)


@pytest.mark.slow
def test_a_script_that_fails_with_the_chosen_schedules_only_fails_by_name(wrong: Result) -> None:
    result = check(wrong, "checks-itself")
    assert result.passed is False and result.runs == 3, result
    assert result.reason.startswith("a tensor (8 float) written by a step is not finite"), "it shows before it raises"


@pytest.mark.slow
def test_how_it_ends_is_told_by_two_runs_with_tinygrads_own_where_no_step_proves_a_fault(
    wrong: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_script, "_by_steps", lambda chosen, proven=False: None)
    result = check(wrong, "checks-itself")
    assert result.passed is False and result.runs == 5, "one more without comparing steps"
    report = (
        "the script fails with the chosen schedules, and not with tinygrad's own: it raised AssertionError: off by "
    )
    assert result.reason.startswith(report) and "(line " in result.reason


@pytest.mark.slow
@pytest.mark.parametrize("how", ["random", "as many as lines", "chaos", "choices"])
def test_a_script_that_does_not_repeat_itself_or_makes_much_of_rounding_is_compared_step_by_step(
    how: str, tmp_path: Path
) -> None:
    """It depends on the system's random numbers, on a file, or its values on rounding alone."""
    arguments = (how, str(tmp_path / "runs.txt")) if " " in how else (how,)
    result = check(result_of(SCRIPT, *arguments), *arguments)
    assert result.passed and result.runs == 2 + (how == "chaos"), "with trials, where one kernel does not explain it"
    assert re.fullmatch(r"\d+ steps?, each from the same values with both", result.compared), result


@pytest.mark.slow
def test_what_is_wrong_in_such_a_script_is_found(wrong: Result) -> None:
    result = check(wrong, "random")
    assert result.passed is False and result.runs == 3 and "written by a step" in result.reason, result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "compared"),
    [
        ("local", "1 tensor read by it"),
        pytest.param("raises", "1 tensor alive at its end", marks=pytest.mark.slow),
        pytest.param("leaves", "1 tensor alive at its end", marks=pytest.mark.slow),
        pytest.param("exits", "1 tensor alive at its end", marks=pytest.mark.slow),
        pytest.param("reads", "1 tensor alive at its end", marks=pytest.mark.slow),
        pytest.param("nothing", "1 step, each from the same values with both", marks=pytest.mark.slow),
    ],
)
def test_however_it_ends_what_it_left_is_compared(right: Result, how: str, compared: str) -> None:
    result = check(right, how)
    assert result.passed and result.compared == compared, result


@pytest.mark.slow
def test_what_cannot_be_compared_says_why(right: Result) -> None:
    late = check(right, "waits", timeout_s=1.0)
    report = (
        r"no verdict: the script does not run again: with tinygrad's own schedules it did not finish in (1|0\.\d+) s"
    )
    assert (late.passed, late.runs) == (None, 1) and re.fullmatch(report, late.reason), late.reason


def test_ctrl_c_ends_it_and_the_script(right: Result, tmp_path: Path) -> None:
    file = tmp_path / "runs.txt"

    def interrupt() -> None:
        if wait_until(file.exists):
            os.kill(os.getpid(), signal.SIGINT)

    report = threading.Thread(target=interrupt)
    report.start()
    with pytest.raises(KeyboardInterrupt):
        check(right, "waits", str(file))
    report.join()
    assert not [child for child in psutil.Process().children() if whole_script.CHILD in child.cmdline()]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "passed"), [("apart", True), ("wrong", False)])
def test_hand_written_kernels_run_in_it(name: str, passed: bool) -> None:
    """Forced into a result: one that is right, as in the run of test_handwritten, and one that adds what it should
    multiply."""
    own = result_of(OUTER, "24")
    kernels = {kernel.name: kernel for kernel in describe_job(KernelFile(BY_HAND, _digest(BY_HAND)))}
    (summed,) = [row for row in own.regions if match_job(kernels["wrong"], [row.region], own.target)]
    schedule = lower_job(kernels[name], summed.region, own.target)
    chosen = replace(summed.chosen, schedule=schedule)
    only = replace(own, regions=(replace(summed, chosen=chosen, opts=summed.baseline, outcome="improved"),))
    (result,) = script_of(OUTER, "24", kernels=(BY_HAND,)).checks([only], timeout_s=TIMEOUT_S)
    assert result.passed is passed and result.kernels == 1, result


def _digest(path: Path) -> str:
    from kcg.kernel.source.kernels import file_digest

    return file_digest(path)


# ---- steps


def with_step(result: Result, kernel: Kernel, body: str) -> Result:
    """A result by one plan in which `kernel` has a schedule of kind opts, also within a region."""
    rows, schedule = [], Schedule(ScheduleKind.OPTS, body)
    for row in result.regions:
        chosen = row.chosen
        if row.region == Region((kernel,)):
            row = replace(row, chosen=replace(chosen, schedule=schedule))
        elif kernel in row.region.kernels:
            parts = parts_of(chosen.schedule)
            parts = [replace(p, schedule=schedule) if row.region.kernels[p.places[0]] == kernel else p for p in parts]
            row = replace(row, chosen=replace(chosen, schedule=schedule_of_parts(parts)))
        rows.append(row)
    assert result.planning is not None
    return replace(result, regions=tuple(rows), planning=replace(result.planning, plans=result.planning.plans[:1]))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_plan_whose_steps_are_slower_loses_by_them(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is expected best. Both really run; how long a step of each takes is made up, so that it is known."""
    monkeypatch.setattr(whole_script, "ROUNDS", rounds)
    monkeypatch.setattr(whole_script, "ROUNDS_S", TIMEOUT_S)
    script = SCRIPTS / "product_steps.py"
    workload = captured_script(script)
    (steady,) = [sequence for sequence in workload.sequences if sequence.steady]
    region = steady.region(0, 1, 2)
    product = steady.calls[0].kernel
    assert product is not None
    quick = KernelSpace(Region((product,)), detect(DEV, ACTION_SPACE_VERSION)[0]).baseline().body
    slow = with_step(planned_result(workload, region), product, "[]")
    alone = with_step(planned_result(workload), product, quick)
    found = script_of(script).checks([slow, alone], timeout_s=TIMEOUT_S, rounds_s=TIMEOUT_S)
    assert all(one.after_s for one in found), found
    checks = [replace(one, after_s=seconds) for one, seconds in zip(found, (9e-3, 2e-3), strict=True)]
    chosen, seen = fastest_step([slow, alone], checks)
    assert seen.passed and all(one.passed for one in checks), checks
    assert dict(checks[0].replaced) == {region.id: 1} and not checks[1].replaced, "where no local name holds a part"
    assert (
        seen.clock == f"wall clock, median of 4 replays in {'one run each' if rounds == 1 else '2 runs each, in turns'}"
    )
    assert seen.runs == 3 * rounds, "with tinygrad's own schedules, and with those of each plan"
    assert seen.before_s and seen.after_s and checks[0].after_s and not seen.untimed
    assert chosen.planning is not None
    assert [(plan.step_s, plan.chosen) for plan in chosen.planning.plans] == [
        (checks[0].after_s, False),
        (seen.after_s, True),
    ]
    result = replace(chosen, model_check=seen)
    (line, *_) = step_lines(result)
    assert line.startswith(f"one step of 6: {format_seconds(seen.before_s)} → {format_seconds(seen.after_s)}")
    assert seen.clock in line and "the sum of its kernels" in line
    assert (shown := step_of(result)) is not None and (shown.before_s, shown.after_s) == (seen.before_s, seen.after_s)
    assert shown.kernels_before_s == pytest.approx(4 * 2e-6), "the four kernels of a step, not all that the script ran"


def test_where_no_step_is_timed_the_first_plan_that_is_right_is_enough(jitted: list[ModelCheck]) -> None:
    wrong, first, second = jitted
    assert first.passed and first.after_s is None and first.runs == wrong.runs
    assert first.untimed == whole_script.NO_REPLAYS
    assert (second.passed, second.reason, second.runs) == (None, whole_script.RIGHT_BEFORE, 0)
    _, why = _fastest([first, second])
    assert why.startswith(f"no whole step was timed ({whole_script.NO_REPLAYS}): ")


def ran(*steps: Replayed) -> Ran:
    return Ran("", "", (), 0, 0, steps=steps)


def test_of_several_captured_steps_the_most_frequent_one_is_the_step() -> None:
    often, seldom = Replayed("x", 10, (1.0, 2.0, 9.0)), Replayed("y", 5, (4.0, 4.0, 4.0))
    once = Replayed("z", 2, ())
    assert whole_script._step_s(ran(often, seldom, once)) == 2.0 + 5 / 10 * 4.0
    assert whole_script._spread_s([ran(often)]) == 2.0, "half of what is between the quartiles 1.5 and 5.5"
    assert whole_script._spread_s([ran(replace(often, seconds=(s,) * 3)) for s in (1.0, 1.5, 4.0)]) == 2.5
    assert whole_script._same_steps(ran(often), ran(replace(often, seconds=(3.0,) * 3)))
    for other in (ran(often, once), ran(replace(often, executions=9)), ran(replace(often, given="y"))):
        assert not whole_script._same_steps(ran(often), other)


class Rounds:
    """In the place of a script's runs: each leaves its place and takes so long, until one ends in another way."""

    def __init__(self, taken_s: dict[int | None, float], *, time_for: int = 100, fails_at: int = 100) -> None:
        self.order: list[int | None] = []
        self.changed, self._taken_s, self.script = [set[str]()] * len(taken_s), taken_s, script_of(SCRIPT)
        self._time_for, self._fails_at, self.recorded = time_for, fails_at, None

    @property
    def count(self) -> int:
        return len(self.order)

    def own(self) -> Ran:
        return self.run()

    def run(self, place: int | None = None, *, compared: bool = True, **how: bool) -> Ran:
        assert compared is (place not in self.order), "what the first run of each leaves is compared"
        self.order.append(place)
        seconds = self._taken_s[place] + 0.01 * self.order.count(place)
        ended = "it broke" if self.count == self._fails_at else ""
        return replace(ran(Replayed("x", 5, (seconds,) * 3)), ended=ended, pieces=(piece(VALUES),), clock="wall clock")

    def has_time_for(self, *some: Ran, until: float = math.inf) -> bool:
        return self.count + len(some) <= self._time_for


@pytest.mark.parametrize(
    ("limits", "whole"),
    [({}, whole_script.ROUNDS), ({"time_for": 9}, 3), ({"time_for": 8}, 2), ({"fails_at": 8}, 2), ({"time_for": 3}, 1)],
)
def test_plans_that_are_right_run_in_turns_as_long_as_there_is_time(
    limits: dict[str, int], whole: int, right: Result
) -> None:
    """Only whole rounds count."""
    runs: Any = Rounds({None: 3.0, 0: 1.0, 1: 2.0}, **limits)
    first, last = whole_script._Comparison([right, right], runs, math.inf).checks()
    assert runs.order == ([None, 0, 1] * whole_script.ROUNDS)[: runs.count]
    middle = 0.01 * (whole + 1) / 2
    assert first.passed and last.passed and first.before_s == last.before_s == pytest.approx(3.0 + middle)
    assert (first.after_s, last.after_s) == pytest.approx((1.0 + middle, 2.0 + middle))
    assert first.spread_s == pytest.approx(0.01 * (whole - 1) / 2)
    assert f"{whole} runs each, in turns" in first.clock or (whole == 1 and first.clock.endswith("in one run each"))


# ---- the verdict ----

RNG = np.random.default_rng(0)
EPS = 2.0**-23
ROUNDING = Rounding(sums=16 * EPS, stored=EPS, floats=True)
VALUES = RNG.normal(size=(64, 32)).astype(np.float32)


def piece(values: Any, place: str = ALIVE) -> Piece:
    values = np.asarray(values)
    eps = float(np.finfo(values.dtype).eps) if values.dtype.kind == "f" else 0.0
    return Piece(place, values.dtype.name, eps, values)


def test_what_one_kernel_may_do_passes_at_once() -> None:
    for factor, passes in ((1.0, True), (1 + 20 * EPS, True), (1 + 1e-3, False)):
        result = judge_first([piece(VALUES * np.float32(factor))], [piece(VALUES)], ROUNDING)
        assert (result is not None and result.passed is True) is passes
    assert judge_first([piece(VALUES[::-1])], [piece(VALUES)], ROUNDING) is None


def test_layouts_and_bytes() -> None:
    own = [piece(VALUES), piece(VALUES[0], RETURNED)]
    assert same_layout(own, own) and equal(own, own)
    for other in (own[:1], own[::-1], [own[0], piece(VALUES[0], READ)], [own[0], piece(VALUES[0].astype("f8"))]):
        assert not same_layout(own, other)
    assert not equal(own, [own[0], piece(VALUES[1], RETURNED)])
    nan = [piece(np.full(3, math.nan))]
    assert equal(nan, nan)


def test_the_rounding_of_a_result(right: Result) -> None:
    assert rounding_of(right).stored == EPS and rounding_of(right).floats
    assert rounding_of(right).sums >= 4 * EPS


# ---- what becomes of it ----


def test_when_it_is_not_run(right: Result) -> None:
    script = script_of(Path("a.py"), recorded_s=10.0)
    without, whole = replace(script, wanted=False), replace(right, complete=True)
    unchanged = replace(whole, regions=tuple(replace(r, outcome="kept") for r in right.regions))
    assert script.why_not([whole, whole]) == ["", ""]
    assert without.why_not([whole]) == ["not run: left out by --no-script-check"]
    assert script.why_not([unchanged]) == ["not run: no schedule was changed"]
    assert script.why_not([replace(whole, complete=False)])[0].startswith("not run: the run ended before")
    three = [replace(whole, steps=0)] * 3
    assert script.why_not(three) == ["", whole_script.NO_STEPS, ""], "no step of it can be timed"
    assert script.expected_s(Cost(changed=1)) == 25.0 and without.expected_s(Cost(changed=1)) == 0


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (
            ModelCheck(True, "", 1e-7, 1e-5, runs=2, compared="1 tensor alive at its end"),
            "whole script: verified, error 1e-07 of a tolerated 1e-05 (1 tensor alive at its end); it ran twice more",
        ),
        (
            ModelCheck(False, "it raised OSError", runs=3),
            "whole script: FAILED, do not use this result: it raised OSError",
        ),
        (ModelCheck(None, "no verdict: it does not repeat", runs=3), "whole script: no verdict: it does not repeat"),
        (
            ModelCheck(None, "not run: left out by --no-script-check"),
            "whole script: not run: left out by --no-script-check",
        ),
    ],
)
def test_summary_and_report_say_it_and_that_side_effects_repeated(
    right: Result, outcome: ModelCheck, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = replace(right, model_check=outcome)
    print_result(result, Console(width=400))
    report = " ".join(capsys.readouterr().out.split())
    assert " ".join(says.split()) in report
    assert ("its side effects with it" in report) is (outcome.runs > 0)
    page = render_report(result)
    assert ("its side effects with it" in page) is (outcome.runs > 0)
    assert outcome.compared in page and "whole model" not in page
    assert from_dict(to_dict(result)) == result


def test_other_schedules_are_of_kind_opts(right: Result) -> None:
    """Else the runs above would compare a script with itself."""
    changed = [row for row in right.regions if row.outcome == "improved"]
    assert len(changed) >= 3 and all(isinstance(row.chosen.schedule, Schedule) for row in changed)
    assert all(row.chosen.schedule != row.baseline.schedule for row in changed)
