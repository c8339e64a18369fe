"""A further kind is one package and one line: a toy one, elementwise kernels as C, goes all the way on a CPU.

Such a run loads no kind that has nothing for its device."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcg.errors import ResultError
from kcg.handover.choices import choices
from kcg.handover.export import export
from kcg.kernel.analysis import contractions
from kcg.kernel.codec import ast_of
from kcg.kernel.kinds import KINDS, Entry, describe
from kcg.predictor.choice import SHIPPED
from kcg.report.page import render_report
from kcg.report.prediction_quality import OPTS, OTHERS, quality_of
from kcg.report.result import read_result
from kcg.report.timeline import timeline_beside
from kcg.shell import interpreter_here, script_here
from kcg.types import RegionResult, Result
from tests.commands import python
from tests.rules import ROOT
from tests.toy_kind.optimizing import LAUNCHES

DEV = "CPU:X86"
SCRIPT = ROOT / "tests" / "scripts" / "polynomial.py"
IMPORTS = {"PYTHONPROFILEIMPORTTIME": "1"}  # each process names what it loads, on stderr


@pytest.fixture(scope="module")
def optimised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a run that knows the kind, and the modules that it and its children loaded, one a line."""
    for _ in range(3):  # a busy machine may hide which one is faster
        folder = tmp_path_factory.mktemp("out")
        limits = ("--regions", "--measurements", "12", "--budget", "3000s", "--quiet", "--report", folder)
        done = python("-m", "tests.toy_kind.optimizing", SCRIPT, "--device", DEV, *limits, cwd=ROOT, **IMPORTS)
        if '"outcome": "improved"' in (folder / "RESULT.json").read_text():
            break
    assert done.returncode == 0, done.stderr
    return folder, loaded_by(done.stderr)


def loaded_by(stderr: str) -> list[str]:
    """The modules that the processes of a run loaded."""
    return [line.rpartition("|")[2].strip() for line in stderr.splitlines()]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "c", Entry("tests.toy_kind.kind", devices=("CPU",)))


@pytest.fixture
def result(optimised: tuple[Path, list[str]], known: None) -> Result:
    return read_result(optimised[0] / "RESULT.json")


@pytest.fixture
def row(result: Result) -> RegionResult:
    (found,) = result.regions
    return found


def test_a_run_on_a_cpu_loads_no_tile_module_and_no_pytorch(optimised: tuple[Path, list[str]]) -> None:
    loaded = optimised[1]
    assert loaded.count("kcg") > 1 and {"kcg.optimize.run", "kcg.measure.child"} <= {*loaded}, "its children's too"
    assert not [name for name in loaded if name.startswith("kcg.kernel.tile")] and "torch" not in loaded


@pytest.mark.slow
def test_nor_does_one_that_finds_regions_and_products_that_are_reduced_at_once(tmp_path: Path) -> None:
    """It is guided by a checkpoint, and no process of it loads PyTorch."""
    script, guide = SCRIPT.with_name("reduced_product.py"), ("--predictor", SHIPPED / "cpu.safetensors")
    limits = (*guide, "--regions", "--measurements", "0", "--budget", "3000s", "--quiet", "--report", tmp_path)
    done = python("-m", "kcg.optimize", script, "--device", DEV, *limits, cwd=ROOT, **IMPORTS)
    assert (tmp_path / "RESULT.json").exists(), done.stderr
    result, loaded = read_result(tmp_path / "RESULT.json"), loaded_by(done.stderr)
    assert any("there is no program for any of" in warning for warning in result.warnings), "candidates were read"
    asts = [ast_of(kernel) for row in result.regions for kernel in row.region.kernels]
    assert any(product.inside for ast in asts for product in contractions(ast))
    assert loaded.count("kcg") > 1 and not [name for name in loaded if name.startswith("kcg.kernel.tile")]
    assert "kcg.predictor.stacked" in loaded and "torch" not in loaded


@pytest.mark.slow
def test_without_measurements_its_first_program_is_chosen_and_compared(tmp_path: Path, known: None) -> None:
    limits = ("--measurements", "0", "--budget", "3000s", "--quiet", "--report", tmp_path)
    done = python("-m", "tests.toy_kind.optimizing", SCRIPT, "--device", DEV, *limits, cwd=ROOT)
    assert done.returncode in (0, 3), done.stderr
    result = read_result(tmp_path / "RESULT.json")
    (row,) = result.regions
    assert result.measurements == 0 and row.baseline.verification.passed
    assert row.chosen.schedule.kind == "c" or "C, 1 lanes" in row.note, "noise may make it a tie"


def test_a_further_kind_is_searched_and_judged_like_all_others(row: RegionResult) -> None:
    assert row.outcome == "improved" and row.chosen.schedule.kind == "c" and row.chosen.verification.passed
    assert describe(row.chosen.schedule).startswith("C, ") and row.chosen.legend.startswith("elementwise C, ")
    assert row.chosen.name == row.baseline.name, "tinygrad's name of the kernel"
    assert row.opts is not None and row.opts.schedule.kind == "opts", "the best Opts stay beside it"


def test_what_needs_stress_has_all_of_its_launches_where_the_budget_allows_it(row: RegionResult) -> None:
    assert (row.chosen.launches, row.chosen.launches_due) == (LAUNCHES, LAUNCHES)
    assert row.chosen.verification.rules[-1] == f"{LAUNCHES} launches under stress bitwise equal"
    assert row.opts is not None and (row.opts.launches, row.opts.launches_due) == (0, 0)


@pytest.mark.usefixtures("drawn")
def test_its_result_is_read_and_rendered(
    optimised: tuple[Path, list[str]], result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in (script_here, interpreter_here):  # the report was written by a process of its own
        monkeypatch.setattr(f"kcg.shell.{found.__name__}", found)
    folder, _ = optimised
    page, path = (folder / "report.html").read_text(), folder / "RESULT.json"
    timeline = timeline_beside(path, result)
    assert page == render_report(result, path=path, timeline=timeline) and "elementwise C, " in page


def test_what_was_expected_of_its_schedules_is_kept_beside_what_was_measured(result: Result) -> None:
    seen = [one for one in result.expectations if one.schedule.kind == "c"]
    assert seen and all(one.predicted_s > 0 and result.regions[one.region].region.kernels for one in seen)
    assert any(one.measured_s for one in seen) and len({one.schedule for one in seen}) == len(seen)
    assert {one.schedule.kind for one in result.expectations} >= {"c", "opts"}
    quality = quality_of(result)
    assert quality is not None
    assert {f"time of {OTHERS}", f"time of {OPTS}"} <= {one.what for one in quality.beside}


def test_without_its_line_it_is_no_kind(optimised: tuple[Path, list[str]]) -> None:
    with pytest.raises(ResultError, match="unknown kind 'c'"):
        read_result(optimised[0] / "RESULT.json")


def test_its_programs_run_in_the_script_and_in_an_exported_module(
    optimised: tuple[Path, list[str]], result: Result, tmp_path: Path
) -> None:
    check = result.model_check
    assert check is not None and check.passed and check.kernels == 1, "the script ran again with it"
    (choice,) = choices(result)[0]
    assert choice.program and choice.noun == "C program"
    written = str(export(optimised[0] / "RESULT.json", tmp_path / "tuned_polynomial.py"))
    assert "1 kernel: 1 as machine code" in written
    assert (tmp_path / "tuned_polynomial.py").read_text().count("Launch(unpacked(") == 1
