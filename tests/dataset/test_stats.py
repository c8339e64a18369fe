"""The numbers of a dataset, checked on a journal made by hand."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kcg.dataset.job_use import idle, uses
from kcg.dataset.job_use import render as show_jobs
from kcg.dataset.journal import Journal, Run
from kcg.dataset.stats import render, stats, to_json
from kcg.errors import DataError
from kcg.kernel.opts.schedule import Opt, schedule_of
from kcg.types import (
    CacheState,
    Job,
    JobKind,
    JobOutcome,
    Measurement,
    Region,
    Schedule,
    Status,
    Workload,
    WorkloadCall,
)
from tests.dataset.test_journal import KERNELS, fill, measurement


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def test_stats_of_a_journal_made_by_hand(path: Path) -> None:
    a, b = Region((KERNELS[0],)), Region((KERNELS[1],))

    def row(region: Region, opts: tuple[Opt, ...], seconds: float, **changes: object) -> Measurement:
        plain = {"variables": (), "region_id": region.id, "schedule": schedule_of(opts), "samples_s": (seconds,)}
        return measurement(**(plain | changes))

    up, local = Opt("UPCAST", 0, 4), Opt("LOCAL", 0, 8)
    rows = [
        row(a, (up,), 4.0, sampler="hand-coded", binary_hash="x"),
        row(a, (up, local), 1.0, binary_hash="y"),
        row(a, (local,), 0.1, cache_state=CacheState.WARM, binary_hash="y"),  # warm is not compared with cold
        row(a, (up, up), 0.5, status=Status.WRONG),  # nor is what failed
        row(a, (up, up), 0.5, status=Status.WRONG, trial=1),
        row(b, (), 9.0, sampler="hand-coded", binary_hash="z"),
        row(b, (up,), 9.5, run_id="r2", binary_hash=""),
    ]
    with Journal.open(path) as journal:
        journal.add_workload(Workload("w", "one", (WorkloadCall(a, 3), WorkloadCall(a, 1), WorkloadCall(b, 1))))
        journal.add_workload(Workload("w", "two", (WorkloadCall(a, 3),)))
        journal.add_workload(Workload("w", "unmeasured", (WorkloadCall(Region((KERNELS[2],)), 3),)))
        for i, m in enumerate(rows):
            journal.record(m, recorded_unix_s=100.0 + i * 0.5)
        found = stats(journal)
    assert (found.rows, found.kernels, found.regions_measured) == (7, 3, 2)
    assert found.unique_binaries == 4  # x, y, z and the b0 of what failed
    assert found.statuses == {"ok": 5, "wrong": 2}
    assert found.samplers == {"random": 5, "hand-coded": 2}
    assert found.protocols == {1: 7}
    assert found.schedules_per_kernel == (2, 3.0, 4)
    assert found.actions == {"UPCAST": 5, "LOCAL": 2}
    assert found.rows_per_second == {"r1": 5 / 2.5}
    one, two, unmeasured = found.workloads
    assert (one.name, one.kernels, one.rows, one.compared) == ("w/one", 2, 7, 2)
    assert one.speedup == pytest.approx(2.0)  # the geometric mean of 4 and 1
    assert (two.speedup, two.rows) == (4.0, 5)
    assert (unmeasured.speedup, unmeasured.rows, unmeasured.compared) == (None, 0, 0)
    assert json.loads(to_json(found))["workloads"][0]["compared"] == 2


def test_what_could_not_be_judged_is_neither_ok_nor_wrong(path: Path) -> None:
    from rich.console import Console

    with Journal.open(path) as journal:
        rows = [
            measurement(0, region_id=KERNELS[0].id, status=Status.UNJUDGED, samples_s=(), reason="cannot be judged: 0"),
            measurement(1, region_id=KERNELS[0].id, status=Status.UNJUDGED, samples_s=(), reason="cannot be judged: 0"),
            measurement(2, region_id=KERNELS[1].id, status=Status.UNJUDGED, samples_s=(), reason="cannot be judged: 1"),
            measurement(3, region_id=KERNELS[1].id),
            measurement(4, region_id=KERNELS[2].id, status=Status.WRONG, samples_s=(), reason="element 1 is 0"),
        ]
        for row in rows:
            journal.record(row)
        found = stats(journal)
    assert (found.rows, found.ok_rows, found.unjudged_rows, found.unjudged_regions) == (5, 1, 3, 1)
    assert found.statuses == {"unjudged": 3, "ok": 1, "wrong": 1}
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    with console.file:
        render(found, console)
    text = " ".join(console.export_text().split())
    assert "1 ok and 3 unjudged" in text
    assert "3 rows: the reference cannot tell whether they are right; 1 kernels have none that is ok" in text


def test_stats_are_readable_and_do_not_read_markup(path: Path) -> None:
    from rich.console import Console

    with Journal.open(path) as journal:
        fill(journal)
        journal.record(measurement(7, sampler="[bold]mcts\x1b[31m"))
        console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
        with console.file:
            render(stats(journal), console)
    text = console.export_text()
    for expected in ("flux/tiny", "compile_error", r"[bold]mcts\x1b[31m", "UPCAST", "unique binaries"):
        assert expected in text


def test_what_a_run_did_is_shown_by_resource_and_kind_of_job(path: Path) -> None:
    def job(kind: str, resource: str, start_s: float, seconds: float, **more: Any) -> Job:
        return Job(kind, "", resource, start_s, seconds, **{"outcome": JobOutcome.OK, "run_id": "r1", **more})

    jobs = [
        job(JobKind.COMPILE, "core", 1.0, 4.0),
        job(JobKind.COMPILE, "core", 1.0, 6.0, outcome=JobOutcome.LATE),
        job(JobKind.TIME, "device:0", 7.0, 2.0, sampled_s=0.25),
        job(JobKind.TIME, "device:0", 9.0, 1.0, outcome=JobOutcome.WRONG),
        job(JobKind.TIME, "main", 9.0, 0.0, outcome=JobOutcome.TAKEN_OVER),
        job(JobKind.RUN, "main", 0.0, 20.0),
        job(JobKind.TIME, "device:0", 3.0, 2.0, run_id="[bold]killed"),
    ]
    with Journal.open(path) as journal:
        journal.add_run(Run("r1", "2026-01-01T00:00:00+00:00", "kcg", {"cores": 2}))
        journal.add_jobs(jobs)
        one, killed = uses(journal.jobs(), journal.runs())
        found = json.loads(to_json(stats(journal), [one, killed]))
    assert (one.seconds, one.ended, killed.seconds, killed.ended) == (20.0, True, 5.0, False)
    core, device, main = one.resources
    assert (core.count, core.busy_s, core.idle_s) == (2, 10.0, 30.0)
    assert (device.busy_s, device.idle_s, device.kinds[0].sampled_s) == (3.0, 17.0, 0.25)
    assert device.kinds[0].outcomes == {"ok": 1, "wrong": 1}
    assert (main.kinds[0].jobs, main.kinds[0].taken_over) == (0, 1)
    assert idle([*jobs[2:4]], 20.0) == [(0.0, 7.0), (10.0, 20.0)]
    assert found["jobs"][0]["resources"][1]["kinds"][0]["kind"] == "time"
    console = Console(width=100, record=True, file=io.StringIO())
    show_jobs([one, killed], console)
    text = " ".join(console.export_text().split())
    assert "core × 2 2 10.0 25 % compile 2 10.0 25 % 1 ok, 1 late idle 30.0 75 %" in text
    assert "What run [bold]ki did, in 5.0 s to its last job: it did not end by itself" in text


def test_stats_refuse_a_foreign_schedule(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.record(measurement(schedule=Schedule("opts", "[1]")))
        with pytest.raises(DataError, match="does not decode"):
            stats(journal)
