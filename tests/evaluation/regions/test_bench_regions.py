"""The benchmark of regions, as far as it goes without a GPU: which are found, what is compared with what, summed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from evaluation.regions.bench_regions import (
    CONTRACTION,
    OUT,
    STREAM,
    RegionBench,
    has_contraction,
    main,
    parts_of,
    planned,
    shown,
)
from evaluation.regions.cases import (
    SHAPES,
    Case,
    attention_case,
    attentions_of_flux,
    cases,
    causally_attended,
    decoded,
    layer,
    projections,
    small_parts,
    vectors_of_workload,
    whole_of,
)
from evaluation.regions.functions import BACKENDS
from evaluation.regions.summary import BESIDE_COMPILE, BESIDE_PYTORCH, headline, small_seconds, table, tables
from evaluation.rows import Rows
from evaluation.tiles.bench import Contenders, Effort
from evaluation.tiles.bench_tiles import planned_for
from evaluation.tiles.cases import FLUX, Sums
from evaluation.tiles.pairing import Order, Settings, Table, in_torch, reference, stored, tensors_of
from evaluation.tiles.searching import Found, Searches
from kcg.compat.assembler import assembler
from kcg.kernel.chain import Chain
from kcg.kernel.composed import parts_of as parts_of_schedule
from kcg.kernel.composed import region_of_part
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.space import TileSpace, schedule_of
from kcg.kernel.tile.targets import triton_version
from kcg.measure.service import MeasureService
from kcg.types import Schedule, ScheduleKind
from tests.cost_search import searched_by_cost
from tests.kernel.tile.running import HAS_TRITON, WITHOUT

H100 = planned_for()


def small(name: str, rows: int = 24, width: int = 40, dtype: str = "float32") -> Case:
    region, function = layer(name, rows, width, dtype)
    return Case("norms", "short", f"{name} {rows}x{width}", region, 1, 1 << 16, 1.0, function, (whole_of(region),))


@pytest.fixture(scope="module")
def parts_of_flux() -> list[Case]:
    return [*small_parts("mini"), *projections("mini")]


def as_pytorch_computes(case: Case) -> float:
    """How far PyTorch's function is from the float64 reference of a region's calls, of its tolerance."""
    tensors = tensors_of(case, "cpu")
    chain = Chain(case.region)
    inputs = {number: tensor.numpy() for number, tensor in enumerate(tensors)}
    points = chain.sample_points(16, np.random.default_rng(0), {})
    for view, made in zip(stored(case, tensors), reference(case.against, tensors), strict=True):
        view.copy_(made.reshape(view.shape))
    seen, worst = set(), 0.0
    for wanted in chain.on(inputs, {}).at(points):
        found = tensors[wanted.slot].double().numpy().reshape(-1)[wanted.indices]
        given = found != 0.0  # PyTorch has no use for all of a projection
        seen.add(wanted.slot)
        assert given.any()
        worst = max(worst, float(np.abs(found - wanted.values)[given].max() / np.abs(wanted.values).max()))
    assert seen == set(case.region.outputs)
    return worst


@pytest.mark.parametrize("name", SHAPES)
def test_torch_is_given_the_layers(name: str) -> None:
    assert as_pytorch_computes(small(name)) < 1e-4


@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize("name", ["projected", "joined_projections"])
@pytest.mark.parametrize("preset", FLUX)
def test_projections_of_flux_spill_nothing(
    preset: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a search begins with, of query, key and value with norms and rotations in one program: of one stream, and of
    two that are joined."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    case = next(case for case in projections(preset) if case.against.name == name)
    kernel = read_region(case.region)
    space = TileSpace(case.region, H100, kernel)
    for schedule in (schedule_of(default_parameters(kernel, H100)), space.start()):
        report = dict(space.compile(schedule).launches[0].compiled.report)
        assert report["wgmma"] and not report["spilled_bytes"], space.name(schedule)


def test_torch_is_given_what_the_regions_of_flux_compute(parts_of_flux: list[Case]) -> None:
    assert {case.against.name for case in parts_of_flux} == {
        "modulated_norm", "rotations", "joined_rotations", "projected", "joined_projections",
    }  # fmt: skip
    for case in parts_of_flux:
        assert as_pytorch_computes(case) < 1e-3, case.key


def test_torch_is_given_the_attentions() -> None:
    of_flux = list(attentions_of_flux("mini"))
    assert {case.calls for case in of_flux} == {2, 4} and len({case.key for case in of_flux}) == 2
    causal = attention_case("causal", "small", causally_attended(2, 40, 16, "float32"), "causal_attention")
    region = causally_attended(4, 40, 16, "float32", of_keys=2)
    grouped = attention_case("causal", "grouped", region, "grouped_causal_attention")
    one_token = attention_case("4k", "one token", decoded(4, 2, 300, 16, "float32"), "decoding_attention")
    for case in (*of_flux, causal, grouped, one_token):
        assert as_pytorch_computes(case) < 1e-3, case.key
        assert in_torch(case, tensors_of(case, "cpu"), Settings()).keys() == BACKENDS.keys()


def test_every_attention_begins_with_a_program() -> None:
    """Those of one token with keys that are split, the others by specialised warps."""
    lines = list(planned([*cases("attention", H100), *cases("decode", H100)], H100))
    assert len(lines) == 22 and not any("refused" in line for line in lines)
    decode = [line for line in lines if "flash attention" in line]
    assert len(decode) == 4 and all("split" in line for line in decode)
    assert sum("warp-specialised attention" in line for line in lines) == 7


def test_products_of_one_vector_are_compared_with_a_sum_of_as_many_bytes() -> None:
    of = {case.name.partition(", ")[2]: case for case in vectors_of_workload("llama", "mini-decode")}
    assert {"1 x 96 and 2 x 48 of 96", "2 x 224 of 96"} <= of.keys()
    for case in of.values():
        assert isinstance(case.against, Sums) and case.against.columns == 96
        assert case.against.rows * 96 * 4 <= case.bytes < case.against.rows * 96 * 4 * 1.1
        tensors = tensors_of(case, "cpu")
        assert len(stored(case, tensors)) == len(case.region.outputs)
        found = Table("cpu").row(Order(case, {}, {}, Settings(samples=1, modes=())))
        assert found["contenders"].keys() == {"sum", "sum of rows"}
    assert all("reduction" in line for line in planned(of.values(), H100) if line.startswith("  "))


def test_regions_are_found_by_wiring(parts_of_flux: list[Case]) -> None:
    norms = [case for case in parts_of_flux if case.against.name == "modulated_norm"]
    assert {case.against.takes[0].size for case in norms} == {(64, 256), (256, 256), (320, 256)}
    joined = next(case for case in parts_of_flux if case.against.name == "joined_projections")
    assert [len(cut) for cut in joined.cuts] == [1, 3, 4]
    assert all(sorted(p for places in cut for p in places) == list(range(6)) for cut in joined.cuts)
    contractions = [region for region in parts_of(joined) if has_contraction(region)]
    assert [len(region.kernels) for region in contractions] == [6, 1, 1]


def test_equal_parts_of_a_step_are_one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluation.regions.cases.FLUX", ("mini",))
    found = cases("small", H100)
    calls = {case.name: case.calls for case in found}
    assert len(calls) == len(found)
    # of 2 double blocks two norms of each stream, of 4 single blocks one, and the last layer's
    assert calls["flux mini norm 64x256"] == 4 and calls["flux mini norm 256x256"] == 5
    assert calls["flux mini norm 320x256"] == 4
    assert calls["flux mini rotations of 1 stream of 320"] == 4


def test_layers_are_classed_by_bytes_and_width() -> None:
    groups = {case.name: case.group for case in cases("norms", H100)}
    assert groups["softmax 2048x65536"] == groups["cross_entropy 8192x128256"] == "wide"
    assert set(groups.values()) == {"short", "wide"}
    assert len(groups) == sum(map(len, SHAPES.values()))


def test_a_plan_says_what_becomes_of_each_cut(parts_of_flux: list[Case]) -> None:
    joined = next(case for case in parts_of_flux if case.against.name == "joined_projections")
    lines = list(planned([joined, small("softmax")], H100))
    assert len(lines) == 2 + sum(map(len, joined.cuts)) + 1
    assert lines[1].startswith("  [0, 1, 2, 3, 4, 5]: ") and "row reduction" in lines[-1]


def test_contenders_are_timed_in_turns() -> None:
    row = Table("cpu").row(Order(small("layer_norm"), {}, {}, Settings(samples=3, modes=())))
    assert row["contenders"].keys() == {"copy", "copy by a kernel"} and row["tile"] == ""
    assert all(timed["status"] == "ok" and timed["samples"] == 3 for timed in row["contenders"].values())


def test_inputs_of_a_region_are_what_no_kernel_of_it_writes() -> None:
    case = small("cross_entropy", 24, 40)
    tensors = tensors_of(case, "cpu")
    labels = next(t for t in tensors if t.dtype == torch.int32 and t.abs().max() > 0)
    assert int(labels.min()) >= 0 and int(labels.max()) < 40
    assert all(not tensors[number].any() for number in case.region.outputs)


def test_parts_are_joined_with_the_best_of_each(parts_of_flux: list[Case], tmp_path: Path) -> None:
    case = next(case for case in parts_of_flux if case.against.name == "projected")
    tile, opts = Schedule(ScheduleKind.TILE, "fast"), Schedule(ScheduleKind.OPTS, "[]")

    searches = Searches.__new__(Searches)  # without its processes: nothing is searched
    searches.found = {
        region.id: Found(region.id, "x", [{"body": tile.body, "s": 1e-5}], opts={"body": opts.body, "s": 2e-5})
        for region in parts_of(case)
    }
    first = searches.found[region_of_part(case.region, (0,))[0].id]
    first.tiles[0]["s"] = 3e-5
    bench = RegionBench(None, searches, Contenders(tmp_path), Effort({}, 1, 1, 1.0), shown)  # type: ignore[arg-type]
    found = bench.found_of(case)
    assert found.keys() == {"tile 0", "opts", "tile cut 0", "parts"}
    assert [(part.places, part.schedule) for part in parts_of_schedule(found["tile cut 0"])] == [
        ((0,), opts),
        ((1, 2, 3), tile),
    ]
    assert [part.schedule for part in parts_of_schedule(found["parts"])] == [opts, tile, tile, tile]
    first.tiles, first.opts = [], {}
    assert bench.found_of(case).keys() == {"tile 0", "opts"}


@pytest.mark.skipif(not triton_version() or assembler() is None, reason="no Triton, or no ptxas")
def test_programs_of_a_region_are_searched_by_their_own_cost() -> None:
    region = small("softmax", 4096, 1024, "bfloat16").region
    start, seen = searched_by_cost(region, H100, 8)
    assert len(seen) == 8 and {o.schedule.kind for o in seen} == {ScheduleKind.TILE}
    assert seen[0].schedule == start


@pytest.mark.slow
def test_a_bench_keeps_what_it_found_and_goes_on(tmp_path: Path) -> None:
    """On a CPU, where no program of kcg can be loaded beside PyTorch: all else is as on a GPU."""
    out, of = tmp_path / "bench_regions.json", [small("softmax")]
    out.write_text(json.dumps({"headline": {"plan_s": 1.5}, "runs": {}}))
    effort = Effort({CONTRACTION: 2, STREAM: 2}, opts=1, samples=3, search_s=120.0, modes=())
    with (
        MeasureService("CPU:X86", run_id="t", compile_workers=2) as service,
        Contenders(tmp_path, device="cpu") as contenders,
        Searches(service, tmp_path, predictor="roofline") as searches,
    ):
        RegionBench(service, searches, contenders, effort, shown).run(of, Rows(out, "cpu", headline=headline))
        assert len(searches.found) == 4 and searches.found[of[0].region.id].refused
    report = json.loads(out.read_text())
    (row,) = report["runs"]["cpu"]["rows"].values()
    assert report["headline"]["plan_s"] == 1.5
    assert row["contenders"]["parts"]["reason"] == "it does not load: there is no CUDA device"
    assert row["contenders"]["copy"]["status"] == "ok"
    assert row["parts_program"] and len(row["searches"]) == 3
    assert not [case for case in of if Rows(out, "cpu").wanted(case.key)]


def row(section: str, group: str, calls: int = 1, **seconds: float) -> dict[str, Any]:
    contenders = {name.replace("_", " "): {"status": "ok", "cold_s": s} for name, s in seconds.items()}
    return {"section": section, "group": group, "calls": calls, "tile": "tile 1", "contenders": contenders}


def test_figures_are_torchs_time_over_ours_and_of_small_parts_a_share() -> None:
    compiled = {"default": 3e-4, "max-autotune-no-cudagraphs": 2e-4}
    rows = {
        "norms a": row("norms", "short", **{"tile 1": 1e-4, "parts": 3e-4, "copy": 0.95e-4}, **compiled),
        "norms b": row("norms", "wide", **{"tile 1": 2e-4, "copy": 1.8e-4}, **compiled),
        "norms c": row("norms", "short", **compiled),
        "qkv a": row("qkv", "1024", **{"tile 1": 2.5e-4, "tile 0": 1e-4, "parts": 3e-4}, **compiled),
        "small a": row("small", "1024", 10, **{"tile 1": 1e-4}, **compiled),
        "small b": row("small", "1024", 30, **{"tile 1": 3e-4, "parts": 0.5e-4}, **compiled),
        "small c": row("small", "768", 30, **{"tile 1": 1e-4}),
    }
    figures = headline(rows)
    assert figures["norms_vs_compile_min"] == pytest.approx(1.0)
    assert figures["norms_vs_compile_cases"] == 2
    assert figures["norms_of_copy_bandwidth_min"] == pytest.approx(0.95)
    assert figures["wide_norms_of_copy_bandwidth_min"] == pytest.approx(0.9)
    assert figures["qkv_vs_compile_min"] == pytest.approx(0.8)
    assert figures["norms_vs_parts_min"] == pytest.approx(3.0)
    # 10 of 100 µs and 30 of 50 µs, where torch.compile takes 200 µs each
    assert figures["small_parts_vs_compile"] == pytest.approx(2.5 / 8, rel=1e-4)
    assert small_seconds(rows, "768") is None and "small_parts_vs_compile_768" not in figures
    lines = list(tables({"runs": {"h100": {"rows": rows}}}, "h100"))
    assert "| softmax, norms, cross-entropy | 2 of 3 | 1.41 | 1.00 | worst 1 |" in lines
    widths = {line.count("|") for line in table("qkv", {"qkv a": rows["qkv a"]})}
    assert widths == {sum(map(len, BESIDE_COMPILE)) + 5}
    attention = {"attention a": row("attention", "1024", **{"tile 1": 2e-4, "cudnn": 1.9e-4, "flash": 3e-4})}
    assert headline(attention)["attention_vs_sdpa_1024_min"] == pytest.approx(0.95)
    header, _, line = table("attention", attention)
    assert header.count("|") == line.count("|") == sum(map(len, BESIDE_PYTORCH)) + 5 and "| 0.95 |" in line
    vectors = {
        "vectors a": row("vectors", "flux", **{"tile 1": 3e-4, "parts": 3.6e-4, "sum": 3.3e-4, "sum opts": 2.4e-4})
    }
    assert headline(vectors)["vectors_vs_parts_min"] == pytest.approx(1.2)
    assert headline(vectors)["vectors_of_read_bandwidth_min"] == pytest.approx(0.8)
    header, _, line = table("vectors", vectors)
    assert header.count("|") == line.count("|") and "| 300.0 | 360.0 | 240.0 | 0.80 | 1.20 |" in line
    decode = {"decode a": row("decode", "4k", **{"tile 1": 1e-5, "flash": 1.2e-5})}
    assert headline(attention | decode)["decode_vs_sdpa_4k"] == pytest.approx(1.2)
    assert "decode_vs_sdpa_32k" not in headline(decode)
    assert any("| 1.20 |" in line for line in table("decode", decode))


def test_the_tables_are_of_what_this_script_timed(capsys: pytest.CaptureFixture[str]) -> None:
    """The committed results hold rows of another script too."""
    assert {"plan_time", "nvidia_h100_80gb_hbm3"} <= json.loads(OUT.read_text())["runs"].keys()
    main(table=True, out=OUT)
    printed = capsys.readouterr().out
    assert "nvidia_h100_80gb_hbm3:" in printed and "plan_time" not in printed
    assert "| softmax, norms, cross-entropy | 10 |" in printed
