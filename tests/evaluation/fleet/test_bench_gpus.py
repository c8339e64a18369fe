"""The benchmark of two GPUs: every round is in the results as it ends, and a CPU's say nothing of GPUs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from evaluation.fleet.bench_gpus import LIMIT_S, MINI, ROUNDS, Bench, run
from kcg.cli import record_results
from kcg.compat.device import DeviceChoice

CPU = DeviceChoice("CPU:X86", "")


def found(rows_per_s: float) -> dict[str, float]:
    return {"rows": 10.0, "rows_per_s": rows_per_s}


def test_what_is_measured_is_merged_as_it_goes(tmp_path: Path) -> None:
    out = tmp_path / "bench_fleet.json"
    record_results(out, "kills", {"killed": 20}, {"kills": 20, "rows_lost": 0})
    bench = Bench(DeviceChoice("CUDA", ""), out, mini=False, about={"command": "…"}, started=time.monotonic())
    for kind, gpus, rate in (
        ("compiled", 1, 30.0),
        ("compiled", 2, 59.0),
        ("compiled", 2, 61.0),
        ("compiling", 1, 20.0),
    ):
        bench.took(kind, gpus, found(rate), since=time.monotonic())
    report = json.loads(out.read_text())
    assert report["headline"] == {
        "kills": 20, "rows_lost": 0, "two_gpus_vs_one": 2.0, "rows_per_s_one_gpu": 30.0, "rows_per_s_two_gpus": 60.0,
        "rows_per_s_one_gpu_compiling": 20.0,
    }  # fmt: skip
    assert report["runs"]["kills"]["killed"] == 20 and len(report["runs"]["gpus"]["rounds"]["compiled"]) == 3
    assert len(report["runs"]["gpus"]["revision"]) == 40


def test_no_round_begins_that_would_end_too_late() -> None:
    bench = Bench(CPU, None, mini=True, about={}, started=time.monotonic() - LIMIT_S + 50)
    assert bench.has_time("compiled")
    bench.took("compiled", 1, found(1.0), since=time.monotonic() - 100)
    assert not bench.has_time("compiled") and not bench.has_time("compiling")


@pytest.mark.slow
def test_it_runs_on_a_cpu_and_states_no_figure(tmp_path: Path) -> None:
    out = tmp_path / "bench_fleet.json"
    bench = Bench(CPU, out, mini=True, about={}, started=time.monotonic())
    run(MINI, bench)
    report = json.loads(out.read_text())
    assert report["headline"] == {} and report["runs"].keys() == {"gpus_mini"}
    rounds = report["runs"]["gpus_mini"]["rounds"]
    gpus = {kind: [one["gpus"] for one in some] for kind, some in rounds.items()}
    wanted = {kind: [count for name, count in ROUNDS if name == kind] for kind in rounds}
    assert all(gpus[kind] == wanted[kind][: len(gpus[kind])] for kind in rounds) and gpus["compiled"], (
        "on a slow machine"
    )
    assert {one["rows"] for kind in rounds for one in rounds[kind]} == {report["runs"]["gpus_mini"]["schedules"]}
    assert all(len(one["rows_by_service"]) == one["gpus"] for kind in rounds for one in rounds[kind])
