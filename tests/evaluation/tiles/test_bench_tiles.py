"""The benchmark of tile programs, as far as it goes without a GPU: what is compared with what, searched, and summed."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tinygrad import Tensor, dtypes

from evaluation.rows import Rows
from evaluation.tiles.bench import Bench, Contenders, Effort, Lost
from evaluation.tiles.bench_tiles import generator, of_sections, planned_for, shown
from evaluation.tiles.cases import Case, Convolution, convolution_of, linear_of, sums
from evaluation.tiles.generating import Cost, summed
from evaluation.tiles.pairing import Order, Settings, Table, apart, in_torch, reference, tensors_of
from evaluation.tiles.searching import Searches
from evaluation.tiles.summary import COLUMNS, GROUPS, headline, table, tables
from kcg.compat.assembler import assembler
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.reference import evaluate, sample_points
from kcg.kernel.tile.targets import triton_version
from kcg.measure.service import MeasureService
from kcg.types import Region, ScheduleKind
from kcg.workloads.registry import spec_of
from tests.commands import python
from tests.cost_search import searched_by_cost
from tests.known_targets import KNOWN_TARGETS

H100 = planned_for()


def region_of(tensor: Tensor) -> Region:
    (call,) = tensor.schedule_linear().src
    return Region((kernel_of(call.src[0]),))


def case_of(region: Region, section: str, group: str, against: Any = None) -> Case:
    return Case(section, group, "small", region, 1, 1 << 16, 1.0, against)


def test_torch_is_given_what_the_kernels_of_flux_compute() -> None:
    seen = set()
    for call in spec_of("flux").capture("mini").calls:
        kernel = read_kernel(call.region)
        if (linear := linear_of(kernel)) is None:
            continue
        seen.add(linear.epilogue)
        tensors = tensors_of(case_of(call.region, "matmul", "1024", linear), "cpu")
        (made,) = reference(linear, tensors)
        expected = made.double().numpy()
        ast = ast_of(call.region.kernel)
        points = sample_points(ast, 64, np.random.default_rng(0))
        (stored,) = evaluate(ast, {i: t.numpy() for i, t in enumerate(tensors)}, points)
        rows, columns = np.divmod(stored.indices - linear.out.offset, linear.out.stride[0])
        assert np.allclose(expected[rows, columns], stored.values, rtol=1e-4, atol=1e-4), linear.epilogue
    assert seen == {"bias", "bias gelu", "bias gate residual", "bias partial gate residual", "nothing"}


def test_batched_products_are_no_linear_layers() -> None:
    product = region_of(Tensor.empty(4, 64, 32) @ Tensor.empty(4, 32, 64))
    assert linear_of(read_kernel(product)) is None


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (7, 2)])
def test_shapes_of_convolutions_are_read_off_kernels(window: int, stride: int) -> None:
    x, w = Tensor.empty(2, 6, 16, 16, dtype=dtypes.half), Tensor.empty(10, 6, window, window, dtype=dtypes.half)
    kernel = read_kernel(region_of(x.conv2d(w, stride=stride, padding=window // 2)))
    expected = Convolution((2, 6, 16, 16), (10, 6, window, window), stride, window // 2)
    assert convolution_of(kernel) == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own compiler
def test_a_residual_is_told_by_its_size_and_added_in_pytorch_too() -> None:
    x, w = Tensor.empty(2, 4, 8, 8), Tensor.empty(6, 4, 1, 1)
    made = x.conv2d(w)
    assert convolution_of(read_kernel(region_of((made + Tensor.empty(2, 6, 8, 8)).relu()))).residual
    of = convolution_of(read_kernel(region_of((made + Tensor.empty(1, 6, 1, 1)).relu())))
    assert not of.residual
    tensors = [torch.zeros(1)]
    case = case_of(region_of(made), "conv", "1x1", replace(of, residual=True))
    assert in_torch(case, tensors, Settings()).keys() - in_torch(
        replace(case, against=of), tensors, Settings()
    ).keys() == {
        "cudnn with residual",
        "default with residual",
    }


def test_every_case_has_a_class() -> None:
    found = of_sections(["gemv", "conv"], H100, "", 0)
    classes = {(group.section, group.group) for group in GROUPS}
    for of in found.values():
        assert of and len({case.key for case in of}) == len(of)
        assert {(case.section, case.group) for case in of} <= classes
    assert {case.group for case in found["conv"]} == {"1x1", "3x3", "7x7"}
    assert {case.group for case in found["gemv"]} == {"from 16 MB", "from 64 MB"}
    assert len(of_sections(["conv"], H100, "", 7)["conv"]) == 7
    assert all("of 64" in case.key for case in of_sections(["conv"], H100, "of 64", 0)["conv"])


def test_rows_are_larger_than_the_cache_and_classed_by_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluation.tiles.cases.FLUX", ("mini",))  # scheduling the others takes seconds
    found = of_sections(["rows"], H100, "softmax bert", 0)["rows"]
    assert {case.group for case in found} == {"short", "wide"}
    assert all("of 30522" in case.name for case in found if case.group == "wide")
    assert all(case.bytes > H100.cache_bytes for case in found)


def test_contenders_are_timed_in_turns_and_told_apart() -> None:
    kernel_region = region_of((Tensor.empty(32, 48) @ Tensor.empty(64, 48).T) + Tensor.empty(64))
    linear = linear_of(read_kernel(kernel_region))
    of_sums = sums(16, 32, "float")
    convolution = Convolution((1, 4, 8, 8), (4, 4, 3, 3), 1, 1)
    row_region = region_of(Tensor.empty(16, 64).max(1))
    at = Table("cpu")
    for section, region, against, names in (
        ("matmul", kernel_region, linear, {"cublas"}),
        ("gemv", of_sums.region, of_sums, {"sum", "sum of rows"}),
        ("conv", kernel_region, convolution, {"cudnn", "cudnn channels last"}),
        ("rows", row_region, None, {"copy", "copy by a kernel"}),
    ):
        row = at.row(Order(case_of(region, section, "", against), {}, {}, Settings(samples=3, modes=())))
        assert row["contenders"].keys() == names and row["tile"] == ""
        for timed in row["contenders"].values():
            assert timed["status"] == "ok" and timed["samples"] == 3 and timed["cold_s"] > 0


def test_copies_move_as_many_bytes() -> None:
    case = case_of(region_of(Tensor.empty(16, 64).max(1)), "rows", "short")
    made = in_torch(case, [torch.ones(1)], Settings())["copy"]()
    assert 2 * made.numel() * made.element_size() == case.bytes


def test_outputs_are_told_apart() -> None:
    a = torch.tensor([1.0, 2.0, math.inf])
    assert apart(a, a) == 0.0
    assert apart(torch.tensor([1.0, 2.0, 3.0]), a) == math.inf
    assert apart(torch.tensor([1.1, 2.0, math.inf]), a) == pytest.approx(0.1 / math.sqrt(5), rel=1e-3)


@pytest.mark.skipif(not triton_version() or assembler() is None, reason="no Triton, or no ptxas")
def test_tile_programs_are_searched_by_their_own_cost() -> None:
    target = KNOWN_TARGETS["sm_90"]
    a, b = (Tensor.empty(1024, 1024, dtype=dtypes.half) for _ in range(2))
    region = region_of(a @ b.T)
    start, seen = searched_by_cost(region, target, 12)
    assert len(seen) == 12 and {o.schedule.kind for o in seen} == {ScheduleKind.TILE}
    assert seen[0].schedule == start
    assert min(o.time_s for o in seen) <= seen[0].time_s


@pytest.mark.slow
def test_a_bench_keeps_what_it_found_and_goes_on(tmp_path: Path) -> None:
    """On a CPU, where no program of kcg can be loaded beside PyTorch: all else is as on a GPU."""
    products = sums(16, 32, "float")
    of = [
        case_of(region_of(Tensor.empty(64, 96).max(1)), "rows", "short"),
        replace(case_of(products.region, "gemv", "from 64 MB", products), name="other"),
    ]
    (logs := tmp_path / "logs").mkdir()
    out, effort = tmp_path / "bench_tiles.json", Effort({"rows": 4, "gemv": 4}, opts=3, samples=3, search_s=120.0)
    with (
        MeasureService("CPU:X86", run_id="t", compile_workers=2) as service,
        Contenders(logs, device="cpu") as contenders,
    ):
        with Searches(service, tmp_path, predictor="roofline") as searches:
            rows = Rows(out, "cpu", headline=headline, locks=logs)
            Bench(service, searches, contenders, effort, shown).run(of, rows)
            found = searches.found[of[0].region.id]
            assert found.refused and not found.tiles
            assert found.opts["from"] == "search, 3 measured" and found.opts["s"] <= found.hand_coded_s
        rows = json.loads(out.read_text())["runs"]["cpu"]["rows"]
        assert rows.keys() == {case.key for case in of}
        timed = rows["rows small"]["contenders"]
        assert timed["opts"]["reason"] == "it does not load: there is no CUDA device"
        assert timed["copy"]["samples"] == 3 and rows["rows small"]["opts_from"] == found.opts["from"]
        assert rows["gemv other"]["contenders"]["sum"]["status"] == "ok"
        with (tmp_path / "searched.jsonl").open("a") as journal:
            journal.write(json.dumps({**asdict(found), "region": "x", "card": "another"}) + "\n")
        with Searches(service, tmp_path, predictor="roofline") as again:
            assert again.found[of[0].region.id] == found and "x" not in again.found
            assert not [case for case in of if Rows(out, "cpu").wanted(case.key)]
    assert {path.name for path in tmp_path.iterdir()} == {"bench_tiles.json", "searched.jsonl", "logs"}


@pytest.mark.slow
def test_the_command_leaves_results_and_journal_alone_in_their_folders(tmp_path: Path) -> None:
    """On a CPU; with both in one folder, as results are brought from another machine."""
    arguments = ["--only", "rows", "--match", "softmax", "--most", "1", "--row-tiles", "2", "--opts", "1"]
    arguments += ["--samples", "2", "--device", "cpu", "--search", "60s", "--predictor", "roofline"]
    arguments += ["--work", str(tmp_path), "--out", str(tmp_path / "bench_tiles.json")]
    done = python("-m", "evaluation.tiles.bench_tiles", *arguments)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"bench_tiles.json", "searched.jsonl", "logs"}
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"torch.log"}


def test_contenders_that_are_lost_are_said_to_be(tmp_path: Path) -> None:
    case = case_of(region_of(Tensor.empty(64, 96).max(1)), "rows", "short")
    with Contenders(tmp_path, device="cpu") as contenders:
        with pytest.raises(Lost, match="Error: "):
            contenders.time(Order(replace(case, bytes=1 << 62), {}, {}, Settings(samples=1)))
        answer = contenders.time(Order(case, {}, {}, Settings(samples=1)))
        assert answer["contenders"]["copy"]["status"] == "ok"


def row(section: str, group: str, **seconds: float) -> dict[str, Any]:
    contenders = {name.replace("_", " "): {"status": "ok", "cold_s": s} for name, s in seconds.items()}
    return {"section": section, "group": group, "calls": 1, "tile": "tile 1", "contenders": contenders}


def test_figures_are_the_fastest_contender_over_ours() -> None:
    compiled = {"default": 3e-4, "max-autotune-no-cudagraphs": 2e-4}
    rows = {
        "matmul a": row("matmul", "1024", **{"tile 1": 2e-4, "opts": 1e-5}, **compiled),
        "matmul b": row("matmul", "768", **{"tile 1": 2.5e-4}, **compiled),
        "matmul c": row("matmul", "768", **compiled),
        "rows a": row("rows", "short", **{"tile 1": 2e-4, "opts": 1.25e-4, "copy": 1.2e-4, "copy by a kernel": 1e-4}),
        "rows b": row("rows", "wide", **{"tile 1": 1e-4, "copy": 0.9e-4}),
        "gemv a": row("gemv", "from 64 MB", **{"tile 1": 1e-4, "sum": 2e-4, "sum tile 0": 0.95e-4}),
        "conv a": row("conv", "1x1", **{"tile 1": 1e-4, "cudnn": 0.7e-4, "cudnn channels last": 0.1e-4}),
    }
    figures = headline(rows)
    assert figures["regions_vs_compile_geomean"] == pytest.approx(math.sqrt(0.8), rel=1e-4)
    assert figures["regions_vs_compile_min"] == pytest.approx(0.8)
    assert figures["regions_vs_compile_cases"] == 2
    assert figures["rows_of_copy_bandwidth_min"] == pytest.approx(0.8)
    assert figures["wide_rows_of_copy_bandwidth_min"] == pytest.approx(0.9)
    assert figures["gemv_of_read_bandwidth"] == pytest.approx(0.95)
    assert figures["conv1_vs_cudnn"] == pytest.approx(0.7)
    assert "conv3_vs_cudnn" not in figures
    lines = list(tables({"runs": {"h100": {"rows": rows}}}, "h100"))
    assert "| matmuls, all | 2 of 3 | 0.89 | 0.80 | mean 1, worst 0.87 |" in lines
    widths = {line.count("|") for line in table("matmul", {k: r for k, r in rows.items() if k.startswith("matmul")})}
    assert widths == {len(COLUMNS["matmul"]) + 7}


def test_costs_are_summed_without_those_that_failed() -> None:
    costs = [Cost("a", 0, 0.01, 0.5), Cost("a", 1, 0.03, 0.7, "aborted"), Cost("b", 0, failure="refused")]
    entry = summed(costs)
    assert (entry["cases"], entry["cases_generated"], entry["compiled"]) == (2, 1, 1)
    assert entry["generate_ms"] == pytest.approx(20) and entry["compile_s"] == 0.5
    assert entry["failures"] == {"aborted": 1, "refused": 1}


@pytest.mark.skipif(not triton_version() or assembler() is None, reason="no Triton, or no ptxas")
def test_a_dry_run_compiles_programs_of_a_section(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = spec_of("resnet").capture("mini").calls
    monkeypatch.setattr("evaluation.tiles.bench_tiles.all_calls", lambda: [(str(i), c) for i, c in enumerate(calls)])
    generator(["gemv"], "", 1, 2, out=tmp_path / "bench_tiles.json", logs=tmp_path / "logs")
    assert {path.name for path in tmp_path.iterdir()} == {"bench_tiles.json", "logs"}
    assert "gemv: 1 cases" in capsys.readouterr().out
    report = json.loads((tmp_path / "bench_tiles.json").read_text())
    assert report["headline"].keys() == {"compile_s", "generate_ms", "generated_share"}
    entry = report["runs"]["generator"]
    assert (entry["compiled"], entry["kernels"]) == (2, len(calls))
    assert entry["generated_share"] == 1.0 if entry["kernels_generated"] == len(calls) else entry["refused"]
