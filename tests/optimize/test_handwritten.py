"""Hand-written kernels in an optimisation: used where they win, else it is said why, and only from the user's file."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kcg
from kcg.errors import ExitCode, MismatchError, ResultError, UsageError
from kcg.handover.apply import apply
from kcg.handover.choices import choices
from kcg.handover.export import export
from kcg.judge.step import compare
from kcg.kernel.kinds import describe
from kcg.optimize.settings import Settings
from kcg.report.page import render_report
from kcg.report.result import from_dict, read_result, to_dict, write_result
from kcg.report.timeline import timeline_beside
from kcg.types import ModelCheck, RegionResult, Result, ScheduleKind
from kcg.workloads.family import Step
from tests.commands import Ended, python
from tests.optimize_run import begun, optimized
from tests.without_clang import stand_in

SCRIPTS = Path(__file__).parents[1] / "scripts"
DEV = "CPU:X86"
SCRIPT, KERNELS = SCRIPTS / "outer_sum.py", SCRIPTS / "outer_kernels.py"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "kcg.optimize", "--device", DEV, *arguments)


@pytest.fixture(scope="module")
def optimised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    for _ in range(3):  # a busy machine may hide which one is faster
        folder = tmp_path_factory.mktemp("out")
        limits = ("--budget", "3000s", "--measurements", "9", "--report", folder, "--json")
        done = optimized(SCRIPT, "--device", DEV, "--kernels", KERNELS, *limits, "--", "160")
        if done.returncode == ExitCode.OK and "won against" in (folder / "RESULT.json").read_text():
            break
    assert done.returncode == ExitCode.OK, done.stderr
    return done, folder


@pytest.fixture(scope="module")
def result(optimised: tuple[Ended, Path]) -> Result:
    return read_result(optimised[1] / "RESULT.json")


@pytest.fixture(scope="module")
def row(result: Result) -> RegionResult:
    (found,) = [r for r in result.regions if r.handwritten]
    return found


@pytest.mark.slow
def test_the_faster_one_is_chosen_and_verified_by_every_rule(row: RegionResult) -> None:
    assert row.outcome == "improved" and row.chosen.schedule.kind == ScheduleKind.SOURCE
    assert row.chosen.name == "apart" and describe(row.chosen.schedule) == "source:apart"
    assert row.chosen.cold_s < row.baseline.cold_s
    assert set(row.chosen.verification.rules) >= {
        "float64 reference at sampled points",
        "guard bytes",
        "10 runs bitwise equal",
        "inputs unchanged",
    }
    assert "written by hand (uop)" in row.chosen.legend and row.chosen.source


def test_the_script_ran_again_with_it_and_left_the_same(optimised: tuple[Ended, Path], result: Result) -> None:
    check = result.model_check
    assert check is not None and check.passed, check
    assert check.kernels == sum(row.outcome == "improved" for row in result.regions)
    assert check.runs >= 1 and "returned by its last TinyJit step" in check.compared
    assert "again, with the chosen schedules" in optimised[0].stderr


def test_the_best_opts_of_its_region_stay_in_the_result(row: RegionResult) -> None:
    assert row.opts is not None and row.opts.schedule.kind == ScheduleKind.OPTS
    assert row.opts.verification.passed and row.opts.cold_s > row.chosen.cold_s


def test_each_other_one_has_its_reason(row: RegionResult, result: Result) -> None:
    fates = dict(row.handwritten)
    assert set(fates) == {"apart", "as_it_is", "wrong", "outside", "one_buffer", "dies", "raises"}
    assert fates["apart"].startswith("won against ") and "× as fast, 95 % interval" in fates["apart"]
    assert fates["as_it_is"].startswith("lost")
    assert fates["wrong"].startswith("rejected: wrong: element ")
    assert fates["outside"].startswith("rejected: wrong: wrote outside buffer 0")
    assert fates["one_buffer"].startswith("rejected: it takes other arguments than the 3 buffers")
    assert "exit code 3" in fates["dies"]
    assert fates["raises"].startswith("rejected: LookupError: no such tile (line ")
    warnings = "\n".join(result.warnings)
    assert "curious was left out: its predicate raised AttributeError" in warnings
    assert "for_a_gpu is for CUDA and this is CPU: it was left out" in warnings
    assert "for_nothing is for no kernel of the workload" in warnings


@pytest.mark.usefixtures("drawn")
def test_what_the_file_prints_is_not_in_the_json_and_the_report_reports_all(
    optimised: tuple[Ended, Path], result: Result, row: RegionResult
) -> None:
    done, folder = optimised
    answer = json.loads(done.stdout)
    assert answer["total_after_s"] < answer["total_before_s"]
    page = (folder / "report.html").read_text()
    assert "Written by hand" in page and "source:apart" in page and row.opts is not None
    assert ("Best Opts" in page) == (row.opts.schedule != row.baseline.schedule)
    path = folder / "RESULT.json"
    assert page == render_report(result, path=path, timeline=timeline_beside(path, result))


@pytest.mark.slow
def test_resuming_measures_none_of_them_again(optimised: tuple[Ended, Path], tmp_path: Path) -> None:
    _, folder = optimised
    folder = shutil.copytree(folder, tmp_path / "again")

    def searched() -> list[tuple[str, str]]:
        with contextlib.closing(sqlite3.connect(folder / "journal.sqlite")) as connection:
            return connection.execute(
                "SELECT schedule_kind, schedule_body FROM measurements WHERE sampler != 'final'"
            ).fetchall()

    before = searched()
    assert sum(kind == "source" for kind, _ in before) == 4
    done = run(
        SCRIPT,
        "--kernels",
        KERNELS,
        "--budget",
        "3000s",
        "--measurements",
        "9",
        "--report",
        folder,
        "--resume",
        "--quiet",
        "--",
        "160",
    )
    assert done.returncode == ExitCode.OK, done.stderr
    assert sorted(searched()) == sorted(before), "nothing is measured twice"
    assert any(r.chosen.name == "apart" for r in read_result(folder / "RESULT.json").regions)


def test_without_the_file_a_journal_of_them_is_only_rows(optimised: tuple[Ended, Path], tmp_path: Path) -> None:
    shutil.copytree(optimised[1], tmp_path / "again")
    settings = Settings(str(SCRIPT), device=DEV, resume=True, folder=tmp_path / "again", script_args=("160",))
    with begun(settings) as run_again:
        works = run_again.works
    assert all(schedule.kind == ScheduleKind.OPTS for work in works for schedule in work.known)
    assert sum(len(work.seen_of("source")) for work in works) == 4, "a search does not see them"


# -- deploying


def test_apply_writes_the_best_opts_and_says_so(
    optimised: tuple[Ended, Path], result: Result, row: RegionResult, tmp_path: Path
) -> None:
    facts = (result.target, result.toolchain)
    applied = apply(optimised[1] / "RESULT.json", widths=(2,), cache_db=tmp_path / "cache.db", facts=facts)
    notes = [line for line in str(applied).splitlines() if "written by hand" in line]
    assert notes == [
        "note: 1 kernel is faster written by hand and takes the best Opts: BEAM's cache holds nothing else; "
        "kcg.tuned(..., kernels=FILE) uses it"
    ]
    assert row.opts is not None
    (choice,) = [c for c in choices(result)[0] if c.handwritten is not None]
    assert choice.schedule == row.opts.schedule and choice.handwritten == row.chosen.schedule


def forward_twice() -> tuple[list[float], list[str]]:
    """The sums of the script by `TinyJit`, and the names of the programs that were captured."""
    from tinygrad import Tensor, TinyJit

    rng = np.random.default_rng(0)
    x, y = (Tensor(rng.normal(size=(64, 160)).astype(np.float32)).realize() for _ in range(2))

    @TinyJit
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return (x.reshape(64, 160, 1) * y.reshape(64, 1, 160)).sum((1, 2)).realize()

    for _ in range(4):
        out = forward(x, y)
    expected = (x.numpy().astype("float64").sum(1) * y.numpy().astype("float64").sum(1)).tolist()
    assert out.numpy().tolist() == pytest.approx(expected, rel=1e-4, abs=1e-3)
    return out.tolist(), [call.src[0].arg.function_name for call in forward.captured.linear.src]


def test_the_kernel_runs_inside_of_a_captured_program(optimised: tuple[Ended, Path], row: RegionResult) -> None:
    with kcg.tuned(optimised[1] / "RESULT.json", kernels=KERNELS):
        tuned, names = forward_twice()
    assert names == ["kernel"], "the entry of a lowered UOp kernel"
    own, other = forward_twice()
    assert other != names and own == pytest.approx(tuned, rel=1e-4, abs=1e-3)


@pytest.mark.slow
def test_an_exported_module_brings_it_and_so_does_an_unchanged_program(
    optimised: tuple[Ended, Path], tmp_path: Path
) -> None:
    path, module = optimised[1] / "RESULT.json", tmp_path / "tuned_model.py"
    assert "1 as machine code" in str(export(path, module, kernels=[KERNELS]))
    code = "import json, runpy, sys, tuned_model\nrunpy.run_path(sys.argv.pop(1))\n"
    code += "print(json.dumps([dict(tuned_model.installed[0].counts), 'kcg' in sys.modules]))"
    settings = {"DEV": DEV, "PYTHONPATH": str(tmp_path), "CACHEDB": str(tmp_path / "cache.db")}
    alone = python("-c", code, SCRIPT, "160", **settings, **stand_in(tmp_path))
    assert alone.returncode == 0, alone.stderr
    counts, has_kcg = json.loads(alone.stdout.splitlines()[-1])
    assert list(counts.values()) == [2] and next(iter(counts)).endswith(" replaced") and not has_kcg
    ran = python("-m", "kcg.run", "--result", path, "--kernels", KERNELS, SCRIPT, "160")
    assert ran.returncode == 0 and re.search(r"2 of 2 kernels served: .* [12] by schedules that were found", ran.stderr)
    for done in (alone, ran):
        assert float(done.stdout.split()[1]) < 1e-5
    code = "from tinygrad import Tensor; Tensor.ones(9).contiguous().realize()"
    without = python("-m", "kcg.run", "--result", path, "-c", code)
    assert "1 kernel is faster written by hand and takes the best Opts: give the file" in without.stderr


def test_without_the_file_the_opts_are_taken_and_a_warning_says_so(
    optimised: tuple[Ended, Path],
) -> None:
    path = optimised[1] / "RESULT.json"
    with pytest.warns(UserWarning, match="1 kernel is faster written by hand"), kcg.tuned(path):
        assert forward_twice()[1] != ["kernel"]


def test_a_result_never_brings_its_own_code(optimised: tuple[Ended, Path], tmp_path: Path) -> None:
    """Another file, or a result whose code was changed: what does not come out of the user's file does not run."""
    path, other = optimised[1] / "RESULT.json", tmp_path / "other.py"
    other.write_text(KERNELS.read_text().replace("_total(x, i, 1) * _total", "_total(x, i, 1) / _total"))
    with (
        pytest.raises(MismatchError, match="source:apart: the file gives another kernel"),
        kcg.tuned(path, kernels=other),
    ):
        raise AssertionError("not reached")
    other.write_text("import no_such_package\n")
    missing = r"cannot be imported: ModuleNotFoundError.*\(line 1\)"
    with pytest.raises(UsageError, match=missing), kcg.tuned(path, kernels=[other]):
        raise AssertionError("not reached")
    document = json.loads(path.read_text())
    for region in document["regions"]:
        if region["chosen"]["schedule"]["kind"] == "source":
            body = json.loads(region["chosen"]["schedule"]["body"])
            region["chosen"]["schedule"]["body"] = json.dumps({**body, "code": body["code"], "extra": 1})
    for entry, region in zip(document["kernels"], document["regions"], strict=True):
        entry["schedule"] = region["chosen"]["schedule"]
    with pytest.raises(ResultError, match="lacks a field or has one too many"):
        from_dict(document)


def test_results_of_before_are_read_without_the_new_fields(result: Result, tmp_path: Path) -> None:
    regions = tuple(replace(r, chosen=r.opts or r.chosen, opts=None, handwritten=(), clocks=()) for r in result.regions)
    regions = tuple(replace(r, replayed=0, origins=()) for r in regions)
    check = result.model_check
    later = ("clock", "clocks_before", "clocks_after", "weights", "runs", "compared", "replaced", "left")
    later = (*later, "spread_s", "untimed", "steady", "unsteady")
    check = None if check is None else replace(check, **{name: getattr(ModelCheck, name) for name in later})
    old = replace(result, regions=regions, expectations=(), clocks=(), phases=(), model_check=check)
    old = replace(old, left_out=(), seen_as=(), revision="", dirty=None, steps=0, outlook=None, verified_progress=())
    new = ("expectations", "clocks", "phases", "left_out", "seen_as", "revision", "dirty", "steps")
    new = (*new, "planning", "allow_tf32", "dropped", "outlook", "verified_progress")
    document = {name: value for name, value in to_dict(old).items() if name not in new}
    del document["toolchain"]["assembler"], document["toolchain"]["generator"]
    for region in document["regions"]:
        del region["opts"], region["handwritten"], region["clocks"], region["ends"]
        del region["replayed"], region["again_s"], region["origins"], region["store"]
        region["region"] = {"kernels": region["region"]["kernels"], "wiring": []}
        for side in ("baseline", "chosen"):
            del region[side]["verification"]["unjudged"], region[side]["launches"], region[side]["launches_due"]
    for name in later if document["model_check"] is not None else ():
        del document["model_check"][name]
    assert from_dict({**document, "schema": 3}) == old
    write_result(old, tmp_path / "r.json")
    assert read_result(tmp_path / "r.json") == old


@pytest.mark.slow
def test_the_whole_model_is_compared_with_it(result: Result) -> None:
    """By default the script is, in its run."""
    from tinygrad import Tensor

    def model(x: Tensor, y: Tensor) -> Tensor:
        summed = (x.reshape(64, 160, 1) * y.reshape(64, 1, 160)).sum((1, 2)).contiguous()
        return (summed * 2).reshape(1, 64).contiguous()

    Tensor.manual_seed(0)
    inputs = {name: Tensor.randn(64, 160).contiguous().realize() for name in "xy"}
    only = replace(result, regions=tuple(r for r in result.regions if r.handwritten))
    (check,) = compare(Step(run=model, inputs=inputs), [only], seed=0, kernels=[KERNELS])
    assert check.passed, check
    assert check.kernels == 1


# -- what is refused, and dry runs


@pytest.mark.slow
def test_a_dry_run_says_what_fits(tmp_path: Path) -> None:
    done = run(SCRIPT, "--kernels", KERNELS, "--dry-run", "--report", tmp_path / "none", "--", "160")
    assert done.returncode == ExitCode.OK, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("written by hand: ")]
    assert sum(line.endswith(": fits") for line in lines) == 4
    assert any("raises for " in line and "LookupError" in line for line in lines)
    assert not (tmp_path / "none").exists()


def test_a_file_that_cannot_be_read_ends_the_run_in_one_line_before_anything_is_captured(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("import os\nos._exit(5)\n")
    for given, says in (
        (path, "its process died with exit code 5"),
        (tmp_path / "none.py", "there is no file of kernels"),
    ):
        done = optimized(SCRIPT, "--device", DEV, "--kernels", given, "--report", tmp_path / "out")
        assert done.returncode == ExitCode.USAGE, done.stderr
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("kcg: ")]
        assert says in line and "Traceback" not in done.stderr
        assert "running" not in done.stderr and not (tmp_path / "out" / "RESULT.json").exists()
