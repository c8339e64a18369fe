"""Measurements of regions of several kernels are recorded, exported, read back, joined, counted and checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kcg.dataset.check import verify
from kcg.dataset.columns import SPLIT_PARTS
from kcg.dataset.export import export, merge, read_export
from kcg.dataset.journal import Journal, Run
from kcg.dataset.stats import stats
from kcg.kernel.opts.schedule import Opt, schedule_of
from kcg.kernel.parts import KIND as PARTS
from kcg.measure.service import MeasureService, Request
from kcg.types import Measurement, Region, Schedule, ScheduleKind, Workload, WorkloadCall, canonical_json
from tests.chains import region_of
from tests.kernels import empty
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def region() -> Region:
    return region_of(empty(6, 48).layernorm().contiguous())


@pytest.fixture(scope="module")
def journal(region: Region, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a service measured of a norm: its baseline, a step of one part and one that does not compile."""
    path = tmp_path_factory.mktemp("regions") / "journal.sqlite"
    with MeasureService("CPU:X86", run_id="r1", compile_workers=1) as service, Journal.open(path) as journal:
        space = PARTS.space(region, service.target)
        backwards = Schedule(ScheduleKind.PARTS, '[[[2],"opts","[]"],[[1],"opts","[]"],[[0],"opts","[]"]]')
        schedules = [space.baseline(), space.actions(space.baseline())[0].schedule, backwards]
        journal.add_workload(Workload("norm", "mini", (WorkloadCall(region, 3),)))
        journal.add_target(service.target)
        journal.add_toolchain(service.toolchain)
        journal.add_run(Run("r1", "2025-01-01T00:00:00+00:00", "kcg", {}))
        service.on_measurement = journal.record
        for future in service.measure([Request(region, one, samples=3, sampler="random") for one in schedules[:2]]):
            assert future.result(timeout=PATIENCE_S).samples_s
        (failed,) = service.measure([Request(region, backwards)])
        assert failed.result(timeout=PATIENCE_S).status == "compile_error"
    return path


def rows_of(journal: Path) -> list[Measurement]:
    with Journal.open(journal, read_only=True) as opened:
        return [record.measurement for record in opened.records(1)]


@pytest.fixture
def folder(journal: Path, tmp_path: Path) -> Path:
    """An export without the failure, as a campaign's is."""
    with Journal.open(tmp_path / "good.sqlite") as good, Journal.open(journal, read_only=True) as source:
        for workload in source.workloads():
            good.add_workload(workload)
        good.add_devices_of(source)
        for run in source.runs().values():
            good.add_run(run)
        for row in rows_of(journal):
            if row.samples_s:
                good.record(row)
        export(good, tmp_path / "out")
    return tmp_path / "out"


def test_a_journal_gives_them_back(journal: Path, region: Region) -> None:
    rows = rows_of(journal)
    assert len(rows) == 3 and {(row.region_id, row.schedule.kind) for row in rows} == {(region.id, "parts")}
    with Journal.open(journal, read_only=True) as opened:
        opened.check()
        assert opened.regions() == {region.id: region} and opened.workloads()[0].calls[0].region == region
        counted = stats(opened)
    assert (counted.rows, counted.ok_rows, counted.schedules, counted.kernels) == (3, 2, 3, 3)


def test_an_export_gives_them_back_and_is_right(folder: Path, journal: Path, region: Region) -> None:
    data = read_export(folder)
    assert data.regions()[region.id] == region and data.workloads()[0].calls[0].region == region
    read = {record.measurement.schedule: record.measurement for record in data.records(1)}
    for row in rows_of(journal):
        if row.samples_s:
            back = read[row.schedule]
            assert (back.region_id, back.launch, back.status) == (region.id, ((), ()), row.status)
            assert back.binary_hash and row.binary_hash.startswith(back.binary_hash)
    assert data.table(1, [*SPLIT_PARTS]).num_rows == 2
    report = verify(folder)
    assert report.problems == () and (report.rows, report.kernels, report.schedules) == (2, 3, 2)


def test_exports_of_them_are_joined(folder: Path, journal: Path, region: Region, tmp_path: Path) -> None:
    assert merge([folder, journal], tmp_path / "joined.sqlite") == 3
    with Journal.open(tmp_path / "joined.sqlite") as joined:
        assert joined.regions()[region.id] == region


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('[[[2],"opts","[]"],[[1],"opts","[]"],[[0],"opts","[]"]]', "runs call"),
        ('[[[0],"opts","[]"]]', "the parts are of 1 calls, the region of 3"),
        ('[[[0],"opts","[]"],[[1],"opts","[]"]', "no JSON"),
    ],
)
def test_parts_that_are_not_of_their_region_are_named(
    body: str, says: str, journal: Path, region: Region, tmp_path: Path
) -> None:
    (line,) = problems(journal, Schedule(ScheduleKind.PARTS, body), tmp_path)
    assert says in line and region.id in line and "\n" not in line


@pytest.mark.slow
def test_opts_of_a_part_that_do_not_apply_are_named(journal: Path, region: Region, tmp_path: Path) -> None:
    foreign = schedule_of([Opt("UPCAST", 0, 7)]).body
    rows = [[[0], "opts", foreign], [[1], "opts", "[]"], [[2], "opts", "[]"]]
    (line,) = problems(journal, Schedule(ScheduleKind.PARTS, canonical_json(rows)), tmp_path)
    assert "does not apply" in line and region.kernels[0].id in line


def problems(journal: Path, schedule: Schedule, tmp_path: Path) -> tuple[str, ...]:
    """What is found where a row of this schedule is added."""
    row = next(row for row in rows_of(journal) if row.samples_s)
    with Journal.open(tmp_path / "bad.sqlite") as bad, Journal.open(journal, read_only=True) as source:
        for workload in source.workloads():
            bad.add_workload(workload)
        bad.add_devices_of(source)
        for run in source.runs().values():
            bad.add_run(run)
        bad.record(replace(row, schedule=schedule, binary_hash="other"))
        export(bad, tmp_path / "out")
    return verify(tmp_path / "out").problems
