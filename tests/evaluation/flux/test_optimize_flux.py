"""`evaluation.flux.optimize`: what it keeps of a run, and that it keeps the runs that were there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.flux import optimize
from kcg.compat.device import clang_path
from kcg.errors import UsageError
from kcg.report.result import read_result, write_result
from tests.sample_result import sample_plan, sample_result
from tests.waiting import PATIENCE_S

MODULE = "evaluation.flux.optimize"


@pytest.fixture
def keep() -> Callable[..., None]:
    """The program's `main`, in this process."""
    return optimize.main


def test_a_result_is_taken_in_beside_those_that_are_there(tmp_path: Path, keep: Callable[..., None]) -> None:
    out, path = tmp_path / "kept.json", tmp_path / "RESULT.json"
    for preset in ("768", "1024"):
        command = f"python -m kcg.optimize flux --preset {preset} --report /somebody/else"
        write_result(replace(sample_result(), workload="flux", preset=preset, command=command), path)
        keep(result=path, out=out)
    kept, report = json.loads(out.read_text()), read_result(path)
    device = report.target.tinygrad_device.lower()
    assert list(kept["runs"]) == [f"1024_{device}", f"768_{device}"]
    for name, run in kept["runs"].items():
        assert run["command"] == f"python -m kcg.optimize flux --preset {name.split('_')[0]}", "the folder is nobody's"
        assert run["speedup"] == report.total_before_s / report.total_after_s == kept["headline"][f"speedup_{name}"] > 1
        assert len(run["kernels"]) == sum(run["outcomes"].values()) == len(report.regions) >= run["verified"] > 0
        row = report.regions[0]
        assert run["kernels"][0]["after_s"] == pytest.approx(row.calls * row.chosen.cold_s)
        assert (
            run["measurements"] == report.measurements and run["progress"][-1]["total_s"] == report.progress[-1].total_s
        )


def test_a_plan_of_regions_is_kept_beside_a_run_without(tmp_path: Path, keep: Callable[..., None]) -> None:
    out, path = tmp_path / "kept.json", tmp_path / "RESULT.json"
    for result in (sample_result(), sample_plan()):
        write_result(replace(result, workload="flux", preset="1024", revision="f00d", dirty=True), path)
        keep(result=path, out=out)
    without, planned = sorted(json.loads(out.read_text())["runs"].items())
    assert planned[0] == f"{without[0]}_regions" and "plan" not in without[1]
    assert planned[1]["of_revision"] == {"revision": "f00d", "dirty": True}, "of the run, not of who keeps it"
    assert [region["calls"] for region in planned[1]["plan"]] == [57, 76]
    assert [plan["step_s"] for plan in planned[1]["plans"]] == [0.0391, 0.0402, None, 0.0419]


def test_without_a_preset_or_a_result_it_says_what_to_write(tmp_path: Path, keep: Callable[..., None]) -> None:
    with pytest.raises(UsageError, match=r"say a preset and devices, .* mini CPU:X86, or --result RESULT\.json"):
        keep(preset="mini", out=tmp_path / "kept.json")
    assert not [*tmp_path.iterdir()]


def test_the_median_of_several_runs_is_kept_under_its_budget(
    tmp_path: Path, keep: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"total_before_s": 1.5, "exit_code": 0}
    speedups = {0: 1.5, 1: 1.2, 2: 1.25}
    made = {seed: entry | {"seed": seed, "speedup": s, "total_after_s": 1.5 / s} for seed, s in speedups.items()}
    monkeypatch.setattr(optimize, "measure", lambda settings: made[settings.seed])
    keep(preset="mini", devices=["CPU:CLANG"], budget="60s", runs=3, out=tmp_path / "kept.json")
    kept = json.loads((tmp_path / "kept.json").read_text())
    run = kept["runs"]["mini_cpu_clang_60s"]
    assert run["seed"] == 2 and run["speedups"] == [1.5, 1.2, 1.25] and run["exit_codes"] == [0, 0, 0]
    assert kept["headline"]["speedup_mini_cpu_clang_60s"] == 1.25


@pytest.mark.slow
def test_flux_is_optimised_and_kept(tmp_path: Path) -> None:
    device = "CPU:CLANG" if clang_path() else "CPU:X86"
    command = [sys.executable, "-m", MODULE, "mini", device, "--budget", "150s", "--out", str(tmp_path / "kept.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads((tmp_path / "kept.json").read_text())["runs"].values()
    assert run["complete"] and len(run["kernels"]) > 10 and run["verified"] >= run["outcomes"].get("improved", 0)
    assert run["model_check"]["passed"] is not False, "it is not run where nothing was faster"
    assert run["total_after_s"] <= run["total_before_s"]
