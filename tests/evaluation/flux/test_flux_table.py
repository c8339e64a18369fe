"""The methods table: pieces that go on, choices that are timed again, and figures that follow from what was kept."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evaluation.flux import searching
from evaluation.flux.campaign import Campaign, Unit, budgets_s, part_before, piece_of, turn_of
from evaluation.flux.methods_table import (
    ONE_RUN,
    by_duration,
    columns,
    described,
    floor_of,
    headline,
    interval,
    markdown,
    overall,
    strays,
    worse,
    write_down,
)
from evaluation.flux.retiming import Choices, choices, retime
from evaluation.flux.searching import command_of, keep_report, run_of, together
from evaluation.search.device_journal import DeviceJournal, Shard
from evaluation.search.on_device import DeviceBench
from kcg.errors import DeviceError, MismatchError, UsageError
from kcg.kernel.codec import kernel_of
from kcg.kernel.kinds import describe
from kcg.kernel.opts.schedule import RAW
from kcg.measure.service import MeasureService
from kcg.predictor.choice import choose_predictor
from kcg.predictor.interface import Predictor
from kcg.provenance import provenance
from kcg.report.result import write_result
from kcg.types import Region, RegionResult
from tests.kernels import empty, kernels_of
from tests.sample_result import sample_result

DEV = os.environ["DEV"]
METHODS = ("tinygrad-beam:1", "random:3", "no-tensor-cores", "raw", "kcg:quick")


@pytest.fixture(scope="module")
def service() -> Iterator[MeasureService]:
    with MeasureService(DEV, run_id="table", compile_workers=1) as opened:
        yield opened


def guide(service: MeasureService) -> Predictor:
    return choose_predictor("roofline", service.target)


def regions() -> list[Region]:
    programs = (empty(24, 16) + 1, empty(16, 40).sum(1), empty(6) * 2)
    return [Region((kernel_of(ast),)) for program in programs for ast in kernels_of(program)]


def campaign_of(path: Path, service: MeasureService, *, shard: str = "", lines: list[str] | None = None) -> Campaign:
    journal = DeviceJournal(path / "table.jsonl", shard=Shard.parse(shard))
    journal.set(*service.facts, [(r, 2, s) for r, s in zip(regions(), (5e-3, 4.6e-3, 4e-4), strict=True)])
    log = lines.append if lines is not None else lambda line: None
    return Campaign(journal, "mini", DEV, METHODS, log=log)


@pytest.fixture(scope="module")
def finished(service: MeasureService, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A campaign after all its pieces: its folder, and the results file."""
    folder = tmp_path_factory.mktemp("campaign")
    with pytest.raises(UsageError, match="begin it once without --shard"):
        campaign_of(folder, service, shard="0/2")
    campaign_of(folder, service)
    for shard in ("0/2", "1/2"):  # two processes with a kernel each
        campaign = campaign_of(folder, service, shard=shard)
        searching.fly_canary(campaign, service)
        for unit in campaign.units():
            if unit.region is not None:
                searching.search(campaign, service, guide(service), unit)
    campaign, found = campaign_of(folder, service), sample_result()
    (first, *_), row = campaign.searched(), found.regions[0]
    bench = next(choices(campaign, service, None)).bench
    report = replace(row.baseline, schedule=bench.space.baseline())
    kcgs: RegionResult = replace(
        row, region=first[0], baseline=report, chosen=replace(report, schedule=RAW), measurements=7
    )
    write_result(replace(found, regions=(kcgs,), expectations=()), folder / "RESULT.json")
    campaign.journal.add_run("kcg:quick", run_of(folder / "RESULT.json"))
    for chosen in choices(campaign, service, None):
        retime(campaign, chosen)
    write_down(campaign, [*choices(campaign, service, None)], folder / "none.json", folder / "out.json", None)
    return folder, folder / "out.json"


def test_all_methods_search_the_kernels_that_make_most_of_the_time(service: MeasureService, tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, service)
    assert [calls for _, calls in campaign.searched()] == [2, 2], "the third is under five percent"
    assert sum(1 for unit in campaign.units() if unit.region is None) == 1, "kcg's own command deals with all kernels"


def test_the_table_holds_every_method(finished: tuple[Path, Path]) -> None:
    entry = next(iter(json.loads(finished[1].read_text())["runs"].values()))
    assert set(entry["methods"]) == {"hand-coded", *METHODS}
    for method, row in entry["methods"].items():
        total, low, high = row["total_s"]
        assert 0 < low <= total <= high and math.isfinite(high), method
        assert row["wrong"] == 0
    assert entry["methods"]["kcg:quick"]["measurements"] == 7
    assert entry["methods"]["kcg:quick"]["not_tried"] == 1, "its result holds one kernel of two"
    assert entry["methods"]["random:3"]["measurements"] <= 6
    assert entry["methods"]["tinygrad-beam:1"]["wall_s"] > 0
    assert entry["rest_s"] == pytest.approx(2 * 4e-4)
    assert [piece["journal"] for piece in entry["pieces"]] == ["table.0.jsonl", "table.1.jsonl"]
    assert [piece["canary_s"] for piece in entry["pieces"]] == entry["canaries_s"]
    (first, _) = entry["kernels"]
    assert first["seconds"]["kcg:quick"] > 0 and first["choices"]["kcg:quick"] == describe(RAW)
    assert len(first["launch"]["hand-coded"]) == len(first["launch"]["raw"]) == 2 and not first["failed"]
    assert "kcg:quick" not in first["hand_coded_stands"]
    lines = set(json.loads(finished[1].read_text())["headline"])
    assert lines == {"kcg_step_ms_mini", "hand_coded_step_ms_mini"}, "there is no total of what left a kernel out"


def test_a_report_replaces_only_that_of_its_device(service: MeasureService, tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, service)
    here, there = (replace(campaign, dev=dev) for dev in ("CPU:X86", "CUDA"))
    for number, kept_by in enumerate((here, there, here)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in (f"{number}.html", "journal.sqlite-wal"):
            (folder / name).write_text("")
        keep_report(kept_by, "kcg:quick", folder)
    kept = {str(p.relative_to(tmp_path / "runs")) for p in (tmp_path / "runs").rglob("*") if p.is_file()}
    assert kept == {"CPU-X86-mini-quick/2.html", "CUDA-mini-quick/1.html"}


def test_what_is_done_is_not_done_again(service: MeasureService, finished: tuple[Path, Path]) -> None:
    folder, out = finished
    files = {path: path.read_bytes() for path in folder.iterdir() if path.suffix == ".jsonl"}
    lines: list[str] = []
    campaign = campaign_of(folder, service, lines=lines)
    for unit in campaign.units():
        searching.search(campaign, service, guide(service), unit)
    for chosen in choices(campaign, service, None):
        retime(campaign, chosen)
    assert not lines and files == {path: path.read_bytes() for path in files}
    before = json.loads(out.read_text())["headline"]
    write_down(campaign, [*choices(campaign, campaign.setting, None)], folder / "none.json", out, None)
    assert json.loads(out.read_text())["headline"] == before, "the table needs no device"


def test_a_piece_on_a_slower_device_is_refused(
    service: MeasureService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = campaign_of(tmp_path, service)
    campaign.journal.add_canary(1e-9)
    campaign.dev = "CUDA"  # on a CPU, which is shared, nothing is refused
    with pytest.raises(DeviceError, match=r"the canary takes .* here, 0\.0 µs in the first piece"):
        searching.fly_canary(campaign, service)
    assert len(campaign.journal.canaries) == 1


def test_a_piece_says_when_on_what_and_with_which_revision_it_was_made(tmp_path: Path) -> None:
    path, known = tmp_path / "table.jsonl", sample_result()
    path.write_text('{"runtime_s":1e-3,"what":"canary"}\n{"what":"of a later kcg"}\n')
    campaign = Campaign(DeviceJournal(path), "mini", "CUDA", (), canary_s=1e-3)
    assert campaign.journal.canaries == [1e-3] and campaign.journal.pieces == [], "a journal of before it was kept"
    campaign.journal.add_piece(piece_of(campaign, SimpleNamespace(facts=(known.target, known.toolchain))))
    (piece,) = DeviceJournal(path).pieces
    assert datetime.now(UTC) - datetime.fromisoformat(piece["began"]) < timedelta(minutes=1)
    assert (
        (piece["revision"], piece["dirty"]) == tuple(provenance().values())
        and piece["cpu_cores"] >= 1
        and piece["journal"] == "table.jsonl"
    )
    assert (piece["device"], piece["driver"], piece["canary_s"]) == ("NVIDIA H200", "550.54.15", 1e-3)


def test_what_has_no_time_left_is_reported(service: MeasureService, tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, service)
    campaign.until = 0.0
    for unit in campaign.units():
        searching.search(campaign, service, guide(service), unit)
    assert set(campaign.left) == set(METHODS)
    assert not [seen for seen in campaign.journal.kernels.values() if seen.tiny or seen.replays or seen.rows]


def test_a_search_that_is_cut_goes_on_from_what_it_measured(
    service: MeasureService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    campaign = replace(campaign_of(tmp_path, service, lines=lines), methods=("full-beam:1",))
    unit = next(campaign.units())
    assert unit.region is not None
    seen, keep = campaign.journal.of(unit.region.id), DeviceBench._keep

    def keep_and_tire(bench: DeviceBench, *row: Any) -> None:
        keep(bench, *row)
        bench.until = 0.0 if len(seen.rows) > 2 else bench.until

    monkeypatch.setattr(DeviceBench, "_keep", keep_and_tire)
    searching.search(campaign, service, guide(service), unit)
    rows = set(seen.rows)
    assert campaign.left == ["full-beam:1"] and "cut, no time" in lines[0] and len(rows) > 2 and not seen.replays
    monkeypatch.undo()
    again = replace(campaign_of(tmp_path, service), methods=campaign.methods)
    kept, times = again.journal.of(unit.region.id), dict(seen.row_s)
    searching.search(again, service, guide(service), unit)
    assert again.done(unit) and set(kept.rows) > rows
    assert {s: kept.row_s[s] for s in times} == times, "measured once"


def choice(service: MeasureService, folder: Path, speedups: dict[str, float]) -> Choices:
    """A kernel with duels that were made up: `speedups` over tinygrad's own schedule, by method."""
    campaign = campaign_of(folder, service)
    made = next(choices(campaign, service, None))
    own, by_method = [1e-3, 1.1e-3, 0.9e-3] * 3, {}
    steps = [action.schedule for action in made.bench.space.actions(RAW)]
    for schedule, (method, factor) in zip(steps, speedups.items(), strict=False):
        times = [s / factor for s in own]
        made.bench.seen.comparisons[schedule] = {"own_s": own, "own_again_s": own, "cold_s": times, "reason": ""}
        by_method[method] = schedule
    return Choices(made.bench, made.calls, by_method)


def test_totals_follow_from_paired_speedups(service: MeasureService, tmp_path: Path) -> None:
    kernel = choice(service, tmp_path, {"kcg:quick": 2.0, "tinygrad-beam:8": 2.5})
    table = {c.method: c for c in columns([kernel], ["kcg:quick", "tinygrad-beam:8", "random:3"])}
    assert interval(table["kcg:quick"].totals) == pytest.approx([1e-3] * 3), "two calls of half the time"
    assert interval(table["random:3"].totals) == pytest.approx([2e-3] * 3) and not table["random:3"].there.any()
    assert worse([kernel], [*table.values()], "kcg:quick", []) == [f"{kernel.bench.label}: 1.250"]
    assert worse([kernel], [*table.values()], "tinygrad-beam:8", []) == []


def test_the_markdown_says_what_is_missing_and_what_was_published() -> None:
    row = {"total_s": [1.0, 0.9, 1.1], "gflops": 2e4, "not_tried": 0, "wrong": 0, "over_kcg": [1.2, 1.1, 1.3]}
    rows = {
        "tinygrad-beam:8": {**row, "measurements": 9, "wall_s": 1234.0},
        "raw": {**row, "not_tried": 3, "wrong": 2, "over_kcg": []},
    }
    lines = markdown(rows, {"torch_s": {"default": 0.07, "eager": 0.1}}, "768")
    assert lines[0] == ONE_RUN and "One run of each method" in ONE_RUN
    heads = [cell.strip() for cell in lines[2].split("|")[1:-1]]
    assert heads.index("over kcg, same kernels") < heads.index("total"), "what compares alike comes first"
    assert "| BEAM=8 | 1.200× (1.100–1.300) | 1,000.0 ms | 900.0–1,100.0 | 20 | 9 | 1,234 s |" in lines
    assert any("2 wrong, 3 not tried: hand-coded there" in line for line in lines)
    eager, compiled = lines[6:8]
    assert eager.startswith("| PyTorch, eager: the whole step |  | 100.0 ms |")
    assert compiled.startswith("| PyTorch, torch.compile, default: the whole step |  | 70.0 ms |")
    published = [line.split("|")[1:4:2] for line in lines[8:]]
    assert [float(ms.removesuffix(" ms ").replace(",", "")) for _, ms in published] == [
        201654.09,
        7989.64,
        6317.52,
        825.11,
        594.45,
        592.4,
    ], "each once"
    assert published[-1][0] == " published, H100: the best of these five for each kernel "
    assert len(markdown(rows, {"torch_s": {}}, "1024")) == 6, "another size has no published figures"


def test_the_slowest_on_the_same_kernels_comes_first_whatever_its_total() -> None:
    def row(total_s: float, over_kcg: list[float]) -> dict[str, object]:
        return {"total_s": [total_s] * 3, "gflops": 1.0, "not_tried": 0, "wrong": 0, "over_kcg": over_kcg}

    rows = {
        "kcg:quick": row(1.0, [1.0, 1.0, 1.0]),
        "tinygrad-beam:8": row(9.0, [1.1, 1.1, 1.1]),
        "tinygrad-beam:4": row(2.0, [1.3, 1.3, 1.3]),
        "tinygrad-beam:2": row(3.0, []),
    }
    report = [line.split("|")[1].strip() for line in markdown(rows, {"torch_s": {}}, "1024")[4:]]
    assert report == ["BEAM=2", "BEAM=4", "BEAM=8", "kcg, quick"]


@pytest.mark.parametrize(
    ("method", "says"),
    [
        *((name, "write a width or an effort after it") for name in ("tinygrad-beam", "tinygrad-beam:wide", "kcg")),
        ("kcg::5m", "unknown effort ''"),
        ("kcg:hasty", "unknown effort 'hasty'"),
        ("kcg:quick:soon", "'soon' is not a positive time"),
    ],
)
def test_a_method_that_is_none(service: MeasureService, tmp_path: Path, method: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Campaign(DeviceJournal(tmp_path / "x.jsonl"), "mini", DEV, (method,))


def test_names_of_methods() -> None:
    assert turn_of("full-beam:4") == ("full-beam:4", 0, None) and turn_of("random") == ("random", 0, 256)
    assert turn_of("random:64") == ("random", 0, 64) and described("full-beam:2") == "BEAM=2 over kcg's actions"
    assert command_of("kcg:quick", "mini", "CUDA").endswith("flux --preset mini --device CUDA --effort quick")
    assert command_of("kcg:thorough:5m", "mini", "CUDA").endswith("--effort thorough --budget 5m")
    assert described("kcg:thorough:5m") == "kcg, thorough in 5m"
    assert command_of("kcg:thorough:5m+4m", "mini", "CUDA").endswith("--effort thorough --budget 4m --resume")
    assert budgets_s("kcg:thorough:5m+4m") == [300.0, 240.0] and budgets_s("kcg:quick") == []
    assert part_before("kcg:thorough:5m+4m+4m") == "kcg:thorough:5m+4m" and part_before("kcg:thorough:5m") == ""


def test_a_run_that_went_on_took_what_both_took() -> None:
    first = {
        "search_s": 9.0,
        "compilations": 5,
        "measurements": 4,
        "phases": [["search", 6.0], ["model", 3.0]],
        "command": "one",
    }
    later = {
        "search_s": 7.0,
        "compilations": 2,
        "measurements": 6,
        "phases": [["search", 2.0], ["judging", 5.0]],
        "command": "two",
    }
    report = together(first, later)
    assert dict(report["phases"]) == {"search": 8.0, "model": 3.0, "judging": 5.0}
    assert (report["search_s"], report["compilations"], report["measurements"]) == (16.0, 7, 6)
    assert report["command"] == "one && two"


@pytest.mark.slow
def test_a_run_goes_on_where_an_earlier_one_ended(
    service: MeasureService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "sum.py"
    script.write_text("from tinygrad import Tensor\nTensor.empty(512, 512).sum(1).realize()\n")

    def command(method: str, preset: str, dev: str) -> str:
        report = command_of(method, preset, dev)
        return report.replace(f"flux --preset {preset}", str(script))

    monkeypatch.setattr(searching, "command_of", command)
    lines: list[str] = []
    campaign = campaign_of(tmp_path, service, lines=lines)
    searching.search(campaign, service, None, Unit("kcg:quick:15s+16s"))
    first, both = (campaign.journal.runs[f"kcg:quick:{budget}"] for budget in ("15s", "15s+16s"))
    assert both["search_s"] > first["search_s"] and both["measurements"] >= first["measurements"] > 1
    assert both["command"].endswith("--budget 16s --resume") and "--budget 15s &&" in both["command"]
    shutil.rmtree(tmp_path / "runs" / "CPU-X86-mini-quick-15s")
    campaign.journal.runs.pop("kcg:quick:15s+16s")
    searching.search(campaign, service, None, Unit("kcg:quick:15s+16s"))
    assert len(lines) == 4, "what it went on from was not here any more"


def test_a_table_of_nothing_says_so(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "evaluation.flux.table",
        "--preset",
        "mini",
        "--device",
        DEV,
        "--part",
        "table",
        "--work",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "holds no campaign yet" in done.stderr, done.stderr


def test_of_several_presets_the_dearest_search_and_every_wrong_kernel_count() -> None:
    lines = {
        "measurements_vs_beam4_768": 0.04,
        "measurements_vs_beam4_1024": 0.05,
        "wrong_kernels_768": 1.0,
        "wrong_kernels_1024": 2.0,
        "opts_total_ms_768": 7.0,
    }
    assert overall(lines) == {"measurements_vs_beam4": 0.05, "wrong_kernels": 3.0} == overall(lines | overall(lines))
    assert overall(lines | {"measurements_vs_beam4_mini": 0.9, "wrong_kernels_mini": 7.0}) == overall(lines), (
        "mini is none"
    )
    assert overall({"wrong_kernels_mini": 7.0}) == overall({}) == {}


def test_the_headline_compares_what_is_complete_and_as_fast(service: MeasureService, tmp_path: Path) -> None:
    kernel = choice(
        service, tmp_path, {"kcg:quick": 2.0, "kcg:normal": 2.4, "tinygrad-beam:4": 2.2, "tinygrad-mcts:9": 2}
    )
    campaign = campaign_of(tmp_path, service)
    table = columns([kernel], [*kernel.by_method, "tinygrad-beam:8"])
    cost = {"measurements": 10, "wall_s": 50.0, "whole_command_s": 80.0}
    spent = {
        "kcg:quick": cost,
        "kcg:normal": {**cost, "measurements": 20},
        "tinygrad-beam:4": {**cost, "wall_s": 500.0},
    }
    rows = {c.method: {"total_s": interval(c.totals), "not_tried": 0, **spent.get(c.method, {})} for c in table[:-1]}
    entry = {
        "steps_s": {"kcg_step_ms": 1.5},
        "torch_s": {"default": 0.2, "eager": 0.1},
        "worse_than_baselines": {"kcg:quick": ["a kernel: 1.100"], "kcg:normal": []},
    }
    found = headline(campaign, table, rows, entry, 0.0)
    assert found["measurements_vs_beam4_mini"] == 2.0, "the quick run is not as fast as BEAM=4"
    assert found["search_wall_vs_beam4_mini"] == 0.1 and found["whole_command_vs_beam4_mini"] == 0.16
    assert found["measurements_vs_beam4_by_total_mini"] == 2.0, "nor is its total"
    assert found["kernels_behind_mini"] == 0, "of the run that is best"
    assert found["mcts_total_ms_mini"] == pytest.approx(1.0) and "beam8_total_ms_mini" not in found
    assert found["torch_compile_ms_mini"] == 200 and found["kcg_step_ms_mini"] == 1500 and "gain_pct_mini" not in found
    rows["tinygrad-beam:8"] = {"total_s": interval(table[-1].totals), "not_tried": 0}
    found = headline(campaign, table, rows, entry, 0.0)
    assert found["gain_pct_mini"] == pytest.approx(100 * (1 - 2 / 2.4))
    assert found["mcts_over_opts_mini"] == pytest.approx(2.4 / 2)


def test_a_kernel_is_behind_where_two_processes_do_not_differ_as_much(service: MeasureService, tmp_path: Path) -> None:
    """`choice` has each method run at a multiple of the baseline's speed; a call of it takes a millisecond."""
    kernel = choice(service, tmp_path, {"kcg:quick": 2.0, "tinygrad-beam:4": 2.2})
    table = columns([kernel], [*kernel.by_method])
    assert worse([kernel], table, "kcg:quick", []) == [f"{kernel.bench.label}: 1.100"]
    best_s = float(table[2].seconds[0, 0]) / kernel.calls
    like = by_duration([(best_s, best_s * (1 + 0.12 * (turn % 2))) for turn in range(40)])
    assert [(stray.pairs, round(stray.most, 2)) for stray in like] == [(40, 0.12)]
    assert worse([kernel], table, "kcg:quick", like) == [], "one binary differs by more from process to process"
    assert floor_of(like, 1e6 * best_s) == like[0].most and floor_of(like, 1e-6) == 0.0
    assert by_duration([(best_s, best_s)] * 4) == [], "too few to say anything"


def test_what_kcgs_own_process_reported_is_compared_with_the_campaigns(service: MeasureService, tmp_path: Path) -> None:
    kernel = choice(service, tmp_path, {"kcg:quick": 2.0, "tinygrad-beam:4": 2.2})
    campaign = campaign_of(tmp_path, service)
    assert strays(campaign, [kernel] * 5) == [], "a run that was kept before its times were"
    seconds = statistics.median(kernel.bench.seen.comparisons[kernel.by_method["kcg:quick"]]["cold_s"])
    campaign.journal.runs["kcg:quick"] = {"cold_s": {kernel.bench.region.id: 0.95 * seconds}}
    (found,) = strays(campaign, [kernel] * 5)
    assert found.pairs == 5 and found.least_s <= seconds < found.below_s
    assert found.median == found.most == pytest.approx(1 / 0.95 - 1)


def test_a_cut_journal_goes_on_on_a_line_of_its_own(service: MeasureService, tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, service)
    campaign.journal.add_canary(1e-3)
    path = campaign.journal.path
    path.write_bytes(path.read_bytes()[:-9])  # cut off in the middle of the canary
    again = campaign_of(tmp_path, service)
    again.journal.add_canary(2e-3)
    assert DeviceJournal(path).canaries == [2e-3] and DeviceJournal(path).setting is not None


def test_a_campaign_that_another_driver_began_is_not_gone_on_with(service: MeasureService, tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, service)
    other = replace(campaign.setting.toolchain, driver="9.9")
    with pytest.raises(MismatchError, match=r"and driver none, this is .* and driver 9\.9: give another --work"):
        campaign.journal.set(campaign.setting.target, other, [])


def test_what_crashes_when_it_is_timed_again_is_no_unit_that_is_missing(
    service: MeasureService, tmp_path: Path
) -> None:
    kernel = choice(service, tmp_path, {"random:3": 2.0})
    kernel.bench.seen.comparisons[kernel.by_method["random:3"]] = {"reason": "it hangs"}
    column = columns([kernel], ["random:3"])[1]
    assert (column.failed, column.wrong, column.there.any()) == (1, 0, False)
