"""Where the whole is wrong, what it is wrong with is left out, and the rest keeps its gain."""

from __future__ import annotations

import io
import os
import shlex
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tinygrad import Tensor

import kcg.check
from kcg.errors import ExitCode
from kcg.judge.whole import Parts, Runner, right_part
from kcg.judge.whole_function import Function
from kcg.judge.whole_model import Model
from kcg.judge.whole_script import Script
from kcg.kernel.handwritten import KernelFile, describe_job, lower_job, match_job
from kcg.kernel.kinds import ACTION_SPACE_VERSION, compile_region, describe
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.device_info import detect
from kcg.measure.verify import FINAL_SEEDS, CheckedBench
from kcg.optimize.console import print_result
from kcg.optimize.job_log import JobLog
from kcg.optimize.leaving_out import changed_in, dropped, keeping
from kcg.optimize.model_check import check_models, leave_out_wrong
from kcg.optimize.region_plans import fastest_step
from kcg.optimize.settings import Settings
from kcg.optimize.stored import _in_wrong_plans
from kcg.optimize.work import Captured
from kcg.report.endings import exit_code_of
from kcg.report.page import render_report
from kcg.report.result import from_dict, read_result, to_dict, write_result
from kcg.types import ModelCheck, RegionResult, Result, Workload
from kcg.workloads.function import Call, capture_call
from kcg.workloads.script import Form, Program
from tests.commands import ended
from tests.judge.test_whole_model import CHILD, MAXIMUM, WRONG, Make, finalist, make  # noqa: F401
from tests.judge.test_whole_script import _digest, result_of
from tests.planned_result import norm_workload, planned_result
from tests.sample_result import sample_result

DEV = os.environ["DEV"]
SCRIPTS = Path(__file__).parents[1] / "scripts"
OUTER_SUMS, OUTER_KERNELS = SCRIPTS / "two_outer_sums.py", SCRIPTS / "two_outer_kernels.py"
RIGHT, WRONG_CHECK, UNCLEAR = ModelCheck(True, "", 0.0, 1.0), ModelCheck(False, "it differs"), ModelCheck(None, "none")
ALL = "abcdefghijklmnop"


class Whole:
    """What comparing a whole with parts of what was chosen would show, and how often it was compared."""

    def __init__(self, is_wrong: Callable[[frozenset[str]], bool | None], *, most: int = 1000) -> None:
        self._is_wrong, self._most, self.right = is_wrong, most, list[frozenset[str]]()
        self.count = 0

    def __call__(self, chosen: frozenset[str]) -> ModelCheck | None:
        if self.count == self._most:
            return None
        self.count += 1
        wrong = self._is_wrong(chosen)
        if wrong is False:
            self.right.append(chosen)
        return {True: WRONG_CHECK, False: RIGHT, None: UNCLEAR}[wrong]


@pytest.mark.parametrize("culprits", ["a", "p", "g", "ab", "ap", "fgh", ALL])
def test_what_the_whole_is_wrong_with_is_found_and_all_else_is_kept(culprits: str) -> None:
    whole = Whole(lambda chosen: bool(chosen.intersection(culprits)))
    parts = right_part(ALL, WRONG_CHECK, whole)
    assert set(parts.wrong) == set(culprits) and parts.right == set(ALL) - set(culprits)
    assert not parts.untried and not parts.unclear
    assert (parts.check is RIGHT) == bool(parts.right), "it was seen to be right as it is"
    assert not parts.right or parts.right in whole.right
    assert whole.count <= 5 * len(culprits)


def test_what_feeds_nothing_that_differs_is_the_first_that_is_kept() -> None:
    whole = Whole(lambda chosen: "p" in chosen)
    parts = right_part(ALL, WRONG_CHECK, whole, apart=ALL[:14])
    assert whole.right[0] == set(ALL[:14]) and whole.count <= 3 and set(parts.wrong) == {"p"}


def test_two_that_are_wrong_together_cost_one_of_them() -> None:
    whole = Whole(lambda chosen: {"c", "k"} <= chosen)
    parts = right_part(ALL, WRONG_CHECK, whole)
    assert len(parts.right) == len(ALL) - 1 and parts.right in whole.right


@pytest.mark.parametrize("most", range(12))
def test_when_the_time_is_over_only_what_was_seen_to_be_right_is_kept(most: int) -> None:
    whole = Whole(lambda chosen: bool(chosen & {"d", "k"}), most=most)
    parts = right_part(ALL, WRONG_CHECK, whole)
    assert parts.right in [frozenset(), *whole.right] and whole.count <= most
    assert parts.right.union(parts.wrong, parts.untried) == set(ALL)
    assert set(parts.wrong) <= {"d", "k"}, "nothing is called wrong that was not proven"


def test_where_the_whole_says_nothing_of_one_it_is_left_out_and_not_called_wrong() -> None:
    whole = Whole(lambda chosen: None if "e" in chosen else False)
    parts = right_part(ALL, WRONG_CHECK, whole)
    assert set(parts.unclear) == {"e"} and not parts.wrong and parts.right == set(ALL) - {"e"}


# ---- results


def left_out(result: Result, right: Collection[str], *, alone: Result, workload: Workload) -> Result:
    kept = keeping(result, right, alone=alone, workload=workload)
    checked = replace(kept, model_check=RIGHT)
    assert from_dict(to_dict(checked)) == checked, "it is a result like any other"
    return kept


def test_without_a_region_its_kernels_run_alone_again_each_with_its_best() -> None:
    workload, region = norm_workload()
    whole, alone = planned_result(workload, region), planned_result(workload)
    place = next(place for place, row in enumerate(whole.regions) if row.region == region)
    expected = replace(sample_result().expectations[0], region=place)
    whole = replace(whole, expectations=(expected,))
    changed = changed_in(whole, alone, [row.region.id for row in whole.regions])
    assert {*changed} == {region.id, *(row.region.id for row in alone.regions)}
    kept = left_out(whole, set(changed) - {region.id}, alone=alone, workload=workload)
    assert [row.region.id for row in kept.regions] == [row.region.id for row in alone.regions]
    assert [row.chosen for row in kept.regions] == [row.chosen for row in alone.regions]
    assert [row.calls for row in kept.regions] == [row.calls for row in alone.regions]
    assert kept.planning is not None and not kept.planning.regions and not kept.planning.inside
    assert ("the whole was wrong with it", 1) in kept.planning.passed_over
    assert [one.region for one in kept.searched] == [region.id], "what was expected of it is known all the same"
    assert [one.region for one in kept.expectations] == [len(kept.with_inside)]
    (inside, *_) = region.kernels
    both = left_out(whole, set(changed) - {region.id, inside.id}, alone=alone, workload=workload)
    (row,) = [row for row in both.regions if row.region.id == inside.id]
    assert row.outcome == "kept" and row.chosen == row.baseline and "the whole was wrong with it" in row.note
    only = left_out(whole, {region.id}, alone=alone, workload=workload)
    assert [row.outcome for row in only.regions if row.region == region] == ["improved"]
    assert all(row.outcome == "kept" for row in (*only.regions, *only.planning.inside) if row.region != region)  # type: ignore[union-attr]


def test_what_was_left_out_is_in_the_result_and_in_no_store() -> None:
    sample = sample_result()
    (row, *_) = [row for row in sample.regions if row.chosen.schedule != row.baseline.schedule]
    seen = dropped(Parts(wrong={row.region.id: WRONG_CHECK}), sample)
    result = replace(sample, dropped=seen)
    assert from_dict(to_dict(result)).dropped == seen
    assert (seen[0].status, seen[0].reason, seen[0].schedule) == ("wrong", "it differs", row.chosen.schedule)
    assert row.region.id in _in_wrong_plans(result)


# ---- real wholes


class Run:
    """What leaving out asks of a run."""

    def __init__(self, runner: Runner, workload: Workload, *, left_s: float | None = None, **settings: Any) -> None:
        self.runner, self.warnings, self.phases = runner, list[str](), list[str]()
        over_at = None if left_s is None else time.monotonic() + left_s
        budget = SimpleNamespace(over_at=over_at, limit_s=None if left_s is None else 0.0)
        progress = SimpleNamespace(phase=self.phases.append)
        self.log: Any = SimpleNamespace(
            warn=lambda *lines: self.warnings.extend(lines), progress=progress, ended_early=False, jobs=JobLog(0.0)
        )
        self.estimates: Any = SimpleNamespace(
            budget=budget,
            kept=SimpleNamespace(forget=lambda: 0),
            settings=Settings("whole", **settings),
            whole_s=lambda **_: 1.0,
            captured=Captured(workload),
        )

    def checked(self, *results: Result) -> tuple[Result, ModelCheck]:
        results = tuple(replace(result, complete=True) for result in results)
        checks = check_models(results, self.runner, estimates=self.estimates, log=self.log)
        assert checks[0].passed is False, checks
        return fastest_step(*leave_out_wrong(results, checks, self.runner, estimates=self.estimates, log=self.log))


def names_kept(result: Result) -> list[str]:
    return [row.region.id for row in result.regions if row.outcome == "improved"]


@pytest.mark.slow
def test_a_model_keeps_all_but_the_kernel_that_it_is_wrong_with(
    make: Make,  # noqa: F811
) -> None:
    whole, workload = make("float32", WRONG), Workload("tiny", "float32", ())
    run = Run(Model(workload, DEV, module=CHILD), workload)
    result, check = run.checked(whole)
    wrong = whole.regions[MAXIMUM]
    assert check.passed and exit_code_of(replace(result, model_check=check)) == ExitCode.OK
    assert names_kept(result) == [row.region.id for row in whole.regions if row is not wrong]
    ((name, status),) = [(one.region, one.status) for one in result.dropped]
    assert (name, status) == (wrong.region.id, "wrong")
    said = f"{describe(WRONG)} of {wrong.baseline.name} is left out: the whole model is wrong with it, and right "
    assert [line for line in run.warnings if line.startswith(said)]


def rows_of_a_function(call: Call) -> tuple[Workload, list[RegionResult]]:
    target, _ = detect(DEV, ACTION_SPACE_VERSION)
    workload, rows = capture_call(call, device="CPU").workload, []
    for one in workload.calls:
        space = KernelSpace(one.region, target)
        other = RAW if space.baseline() != RAW else next(iter(space.actions(space.start()))).schedule
        base, chosen = finalist(space, space.baseline()), finalist(space, other)
        rows.append(RegionResult(one.region, one.calls, base, chosen, 1, "improved"))
    return workload, rows


@pytest.mark.slow
def test_a_function_keeps_all_but_the_kernel_that_it_is_wrong_with() -> None:
    x = Tensor.rand(16, 48).contiguous().realize()
    call = Call(lambda x: (x.max(axis=0), (x * 3 + 1).contiguous().sum(1)), (x,))
    workload, rows = rows_of_a_function(call)
    target, toolchain = detect(DEV, ACTION_SPACE_VERSION)
    (place,) = [at for at, row in enumerate(rows) if '"MAX"' in row.region.kernel.ast_json]
    rows[place] = replace(rows[place], chosen=finalist(KernelSpace(rows[place].region, target), WRONG))
    sample = replace(sample_result(), target=target, toolchain=toolchain, regions=tuple(rows), expectations=())
    whole = replace(sample, workload=workload.name, preset=workload.preset, recomputes=())
    run = Run(Function(call), workload)
    result, check = run.checked(whole)
    assert check.passed and names_kept(result) == [row.region.id for at, row in enumerate(rows) if at != place]
    assert [one.region for one in result.dropped] == [rows[place].region.id] and len(run.warnings) == 1
    late = Run(run.runner, workload, left_s=-60.0)
    checks = [ModelCheck(False, "it differs")]
    ((kept,), (seen,)) = leave_out_wrong([whole], checks, late.runner, estimates=late.estimates, log=late.log)
    assert seen.passed is False and kept.regions == whole.regions, "nothing that was not seen to be right"
    assert "there was no time to find the part of it that is right" in late.warnings[-1]
    assert {one.status for one in kept.dropped} == {"unjudged"}


@pytest.fixture(scope="module")
def outer_sums() -> tuple[Result, dict[str, RegionResult]]:
    """Two kernels written by hand that pass every rule; one is wrong on a number that no verification draws."""
    own = result_of(OUTER_SUMS, "24")
    kernels = describe_job(KernelFile(OUTER_KERNELS, _digest(OUTER_KERNELS)))
    rows: dict[str, RegionResult] = {}
    for kernel in kernels:
        (row,) = [row for row in own.regions if match_job(kernel, [row.region], own.target)]
        schedule = lower_job(kernel, row.region, own.target)
        bench = CheckedBench(row.region, own.target)
        sides = [compile_region(row.region, one, own.target) for one in (row.baseline.schedule, schedule)]
        verified = bench.check_all([bench.launcher(side) for side in sides], (), seeds=FINAL_SEEDS, thorough=True)
        assert all(one.passed for one in verified), verified
        chosen = replace(row.baseline, schedule=schedule, name=kernel.name, cold_s=1e-6)
        fates = ((kernel.name, "won"),)
        rows[kernel.name] = replace(row, chosen=chosen, opts=row.baseline, outcome="improved", handwritten=fates)
    return replace(own, regions=tuple(rows.values())), rows


@pytest.mark.slow
def test_a_script_keeps_all_but_the_kernel_that_is_wrong_on_its_data(
    outer_sums: tuple[Result, dict[str, RegionResult]],
) -> None:
    whole, rows = outer_sums
    runner = Script(Program(Form.SCRIPT, str(OUTER_SUMS), ("24",)), kernels=(OUTER_KERNELS,))
    run = Run(runner, Workload(whole.workload, "", ()), kernels=(OUTER_KERNELS,))
    result, check = run.checked(whole)
    assert check.passed, check
    kept = replace(result, model_check=check, warnings=tuple(run.warnings))
    assert exit_code_of(kept) == ExitCode.OK
    assert [row.chosen.name for row in kept.regions if row.outcome == "improved"] == ["right"]
    ((what, status),) = [(describe(one.schedule), one.status) for one in kept.dropped]
    assert (what, status) == ("source:wrong_where_it_is_rare", "wrong")
    fates = {name: fate for row in kept.regions for name, fate in row.handwritten}
    assert fates == {"right": "won", "wrong_where_it_is_rare": "left out: the whole was wrong with it; it won"}
    assert runner.apart == {rows["right"].region.id}, "which feeds nothing that differs"
    assert len(run.phases) == 2, "so many times the script was compared"
    said = f"source:wrong_where_it_is_rare of {kept.dropped[0].name} is left out: the whole script is wrong with it"
    assert [line for line in run.warnings if line.startswith(said)]
    shown = Console(file=io.StringIO(), width=400)
    print_result(kept, shown)
    assert said in shown.file.getvalue() and said in render_report(kept)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_script_that_was_not_compared_is_so_later_and_keeps_the_same(
    outer_sums: tuple[Result, dict[str, RegionResult]], tmp_path: Path
) -> None:
    whole, rows = outer_sums
    command = shlex.join(["kcg", "optimize", str(OUTER_SUMS), "--kernels", str(OUTER_KERNELS), "--", "24"])
    missing = ModelCheck(None, "not run: no time")
    write_result(replace(whole, command=command, model_check=missing, complete=False), tmp_path / "RESULT.json")
    done = ended(kcg.check.main, tmp_path)
    assert done.returncode == ExitCode.OK, done.stderr
    found = read_result(tmp_path / "RESULT.json")
    assert [row.chosen.name for row in found.regions if row.outcome == "improved"] == ["right"]
    assert [(one.region, one.status) for one in found.dropped] == [(rows["wrong_where_it_is_rare"].region.id, "wrong")]
