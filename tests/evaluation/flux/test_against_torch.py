"""A step of Flux in PyTorch: its parts are those of kcg's model, finished rows are kept, what is missing is said."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.flux.gaps import REST, as_row, beside, gaps, markdown, of_result, of_run, put_beside
from evaluation.flux.in_pytorch import check_installed
from evaluation.flux.parts import ENDS, JOINED, build_region, names, part_of, parts, reported
from evaluation.rows import Rows
from kcg.errors import UsageError
from kcg.kernel.codec import ast_of
from kcg.report.result import write_result
from kcg.types import Region
from kcg.workloads import flux
from kcg.workloads.capture import lazy_workload
from kcg.workloads.flux import PRESETS, analytic_operations
from kcg.workloads.registry import spec_of
from tests.sample_result import sample_result
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
PROGRAM = [sys.executable, "-m", "evaluation.flux.against_torch"]


def run(*arguments: str, out: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "evaluation.flux.against_torch",
        "--preset",
        "mini",
        "--device",
        "CPU:X86",
        "--out",
        str(out),
    ]
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_the_parts_are_nearly_all_of_a_steps_arithmetic(preset: str) -> None:
    """What is left out are norms, embedders and the last layer: under 2 % at full size."""
    whole = analytic_operations(PRESETS[preset])
    of_parts = sum(part.calls * part.operations for part in parts(PRESETS[preset]).values())
    assert (0.95 if preset == "mini" else 0.98) * whole < of_parts <= whole


@pytest.mark.parametrize("name", [n for n in names("mini") if not n.startswith("ceiling")])
def test_every_part_runs_and_its_bytes_are_those_of_its_tensors(name: str) -> None:
    call, inputs = build_region({"preset": "mini", "name": name}, "cpu")
    output, part = call(**inputs), parts(PRESETS["mini"])[name]
    assert output.isfinite().all()
    assert part.values == sum(t.numel() for t in inputs.values()) + output.numel() - small(name, inputs)


def small(name: str, inputs: dict[str, Any]) -> int:
    """Values that are not counted: vectors beside a norm or a rotation."""
    if name.startswith("modulated_norm"):
        return sum(inputs[n].numel() for n in ("shift", "scale"))
    return inputs["weight"].numel() if name.startswith("norm_rope") else 0


def test_rates_and_the_roofline_come_from_times_and_ceilings() -> None:
    name = next(n for n in names("mini") if n.startswith("gelu"))
    part = parts(PRESETS["mini"])[name]
    rows = {
        "region ceiling matmul": {"contenders": {"eager": {"tflop_s": 1.0}, "default": {"tflop_s": 2.0}}},
        "region ceiling copy": {"contenders": {"eager": {"gb_s": 10.0}, "default": {"status": "failed"}}},
    }
    moved = part.values * 4
    row = reported(
        {"eager": {"status": "ok", "cold_s": moved / 5e9}, "x": {"status": "failed"}}, name, "mini", "cpu", rows
    )
    assert row["contenders"]["eager"]["gb_s"] == pytest.approx(5.0)
    assert row["contenders"]["eager"]["roofline_share"] == pytest.approx(0.5)
    assert row["contenders"]["x"] == {"status": "failed"}


def test_every_kernel_with_a_matmul_belongs_to_a_part() -> None:
    """Each part's kernels occur as often in kcg's model as the part says; the last linear of a single block is two."""
    model, inputs = flux.build("1024", double_blocks=1, single_blocks=1)
    config, seen = model.config, Counter[str]()
    for call in lazy_workload("flux", "1024", flux.step(model, inputs)).calls:
        seen[part_of(ast_of(call.region.kernel), config)] += call.calls
    for name, part in parts(config).items():
        if name.startswith("linear"):
            assert seen[name] == part.calls * (2 if name.endswith(f"x{config.hidden + config.mlp_hidden}") else 1), name
        elif name.startswith("attention"):
            assert seen[name] == 5 * part.calls  # scores, their maximum, weights, their sum, the product with values


def test_kernels_of_a_result_stand_beside_their_parts(tmp_path: Path) -> None:
    """Two kernels of one part add up to one call of it."""
    config = PRESETS["mini"]
    (name,) = (n for n in parts(config) if n.startswith("attention"))
    calls = parts(config)[name].calls
    of_attention = [
        call for call in spec_of("flux").capture("mini").calls if part_of(ast_of(call.region.kernel), config) == name
    ][:2]
    first = sample_result().regions[0]
    rows = tuple(replace(first, region=call.region, calls=calls) for call in of_attention)
    result = replace(sample_result(), workload="flux", preset="mini", regions=rows, expectations=(), recomputes=())
    write_result(result, tmp_path / "RESULT.json")
    device = result.target.device
    kernels = of_result(tmp_path / "RESULT.json", "mini", device)
    found = beside(kernels, "mini")
    assert list(found) == [name] and len(found[name]["kernels"]) == 2
    assert found[name]["cold_s"] == pytest.approx(2 * first.chosen.cold_s, rel=1e-4)
    assert found[name]["hand_coded_s"] == pytest.approx(2 * first.baseline.cold_s, rel=1e-4)
    kept = Rows(tmp_path / "rows.json", "run")
    theirs = {"eager": {"status": "ok", "cold_s": 2e-6, "roofline_share": 0.5}, "default": {"status": "failed"}}
    kept.add(f"region {name}", {"calls": calls, "contenders": theirs})
    kept.add("step default", {"cold_s": 1e-3, "status": "ok"})
    kept.add("step max-autotune", {"status": "failed", "reason": "no time"})
    document = tmp_path / "flux.md"
    document.write_text("before\n<!-- generated: flux-gap-mini -->\n<!-- end -->\nafter\n")
    put_beside(kept, kernels, "mini", document)
    made = json.loads((tmp_path / "rows.json").read_text())["runs"]["run"]["rows"]
    assert made[f"region {name}"]["contenders"] == theirs | {"kcg": found[name]}
    part, rest = made["where the time is"]["parts"]
    assert part["torch_ms"] == pytest.approx(2e-3 * calls) and part["roof_ms"] == pytest.approx(1e-3 * calls)
    assert part["kcg_ms"] == pytest.approx(1e3 * calls * found[name]["cold_s"], rel=1e-4)
    assert part["torch_ms"] + rest["torch_ms"] == pytest.approx(1.0), "together the whole step"
    assert part["kcg_ms"] + rest["kcg_ms"] == pytest.approx(1e3 * result.total_after_s, rel=1e-3, abs=1e-4)
    with pytest.raises(UsageError, match=f"is of flux mini on {device}: give the result of flux 768 on {device}"):
        of_result(tmp_path / "RESULT.json", "768", device)
    one, other = (call.region.kernel for call in of_attention)
    both = replace(first, region=Region((one, other), ((0, 1, 2), (3, 0, 4)), (3,)))
    with pytest.raises(UsageError, match="has regions of several kernels"):
        write_result(replace(result, regions=(both,)), tmp_path / "RESULT.json")
        of_result(tmp_path / "RESULT.json", "mini", device)
    report = document.read_text()
    assert report.startswith("before") and report.endswith("after\n") and f"| {REST} |" in report


def test_a_part_without_pytorchs_time_comes_last_and_says_nothing_of_the_rest() -> None:
    def part(ours: float, *theirs: float) -> dict[str, Any]:
        of_torch = {f"t{i}": {"status": "ok", "cold_s": s, "roofline_share": 0.5} for i, s in enumerate(theirs)}
        return {"calls": 1, "contenders": {"kcg": {"cold_s": ours, "hand_coded_s": ours, "status": "ok"}, **of_torch}}

    rows = {
        "region a": part(0.06, 0.01),
        "region b": part(0.5),
        "region c": part(0.3, 0.01, 0.02),
        "step eager": part(1),
    }
    rows["step eager"] = {"status": "ok", "cold_s": 0.5}
    found = gaps(rows, [], "mini")
    assert [gap.name for gap in found] == ["c", "a", "b", REST]
    assert found[0].lost_ms == pytest.approx(290) and math.isnan(found[3].torch_ms)
    assert "nan" not in "\n".join(markdown(found)) and "nan" not in json.dumps(as_row(found)).lower()


@pytest.mark.parametrize("preset", ["1024", "768"])
def test_every_kernel_of_the_results_has_its_part_and_they_are_the_whole_step(preset: str) -> None:
    config, found = PRESETS[preset], Counter[str]()
    kernels = of_run(preset, "CUDA")
    for kernel in kernels:
        found[part_of(kernel.ast, config)] += 1
    assert set(found) <= {*parts(config), JOINED, ENDS} and {JOINED, ENDS} < set(found)
    norms = [name for name in found if name.startswith("modulated_norm")]
    assert len(norms) == 3 and all(found[name] >= 2 for name in norms)
    kept = json.loads((ROOT / "evaluation/results/flux_torch.json").read_text())["runs"][f"{preset}_cuda"]["rows"]
    report = kept["where the time is"]["parts"]
    assert sum(part["kcg_ms"] for part in report) == pytest.approx(1e3 * sum(k.kcg_s for k in kernels), rel=1e-3)


def test_a_part_is_timed_once_and_kept(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    arguments = ("--part", "regions", "--only", "gelu 320", "--no-compiled")
    first = run(*arguments, out=out)
    assert first.returncode == 0, first.stderr
    row = json.loads(out.read_text())["runs"]["mini_cpu_x86"]["rows"]["region gelu 320x1024"]["contenders"]["eager"]
    assert row["status"] == "ok" and row["samples"] >= 5
    assert "error" not in row  # nothing was there to compare it with
    for state in ("cold", "warm", "called"):
        low, high = row[f"{state}_interval_s"]
        assert 0 < low <= row[f"{state}_s"] <= high < 10
    assert len(row["canary_s"]) == 2 and min(row["canary_s"]) > 0
    before = out.read_text()
    assert "region gelu 320x1024: " in first.stdout
    assert "region gelu 320x1024: " not in run(*arguments, out=out).stdout and out.read_text() == before


def test_no_row_is_begun_after_the_budget(tmp_path: Path) -> None:
    done = run("--part", "regions", "--budget", "0.000001s", out=tmp_path / "rows.json")
    assert done.returncode == 0 and f"{len(names('mini'))} rows are left" in done.stdout
    assert not (tmp_path / "rows.json").exists()


def test_without_diffusers_it_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)  # as if it could not be imported
    with pytest.raises(UsageError) as raised:
        check_installed()
    assert "pip install diffusers==0.42.1" in str(raised.value) and "--part regions" in str(raised.value)


def test_a_step_in_tinygrad_by_the_same_protocol(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    done = run("--part", "steps", "--modes", "tinygrad", "--samples", "1", out=out)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    row = report["runs"]["mini_cpu_x86"]["rows"]["step tinygrad"]
    assert row["status"] == "ok" and any(row["values"]) and "error" not in row
    assert report["headline"] == {"tinygrad_s_mini_cpu_x86": row["cold_s"]}


def test_a_step_with_kcg_needs_its_result(tmp_path: Path) -> None:
    done = run("--part", "steps", "--modes", "tinygrad,kcg", out=tmp_path / "rows.json")
    assert done.returncode == 2 and "--result RESULT.json" in done.stderr


def test_a_step_of_diffusers_is_the_one_that_kcg_runs(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    done = run("--part", "steps", "--modes", "eager", out=out)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    row = report["runs"]["mini_cpu_x86"]["rows"]["step eager"]
    assert row["status"] == "ok" and any(row["values"])
    assert report["headline"]["best_s_mini_cpu_x86"] == row["cold_s"] == report["headline"]["eager_s_mini_cpu_x86"]
