"""The share of a plan's speed that the programs measured first have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluation.regions import first_choice
from kcg.dataset.journal import Journal
from kcg.errors import UsageError
from kcg.kernel.tile.parameters import TileParameters
from kcg.measure.protocol import PROTOCOL
from kcg.report.result import write_result
from kcg.types import Measurement, Region, Result, Schedule, ScheduleKind, Status
from tests.sample_result import sample_plan, sample_result


def measured(result: Result, region: Region, width: int, seconds: float, status: Status = Status.OK) -> Measurement:
    body = TileParameters("rows", ((0,),), (width,), reduce_tile=128).to_json()
    return Measurement(
        region_id=region.id,
        schedule=Schedule(ScheduleKind.TILE, body),
        target=result.target.fingerprint,
        toolchain=result.toolchain.fingerprint,
        protocol=PROTOCOL,
        status=status,
        samples_s=(seconds,) * 3 if status is Status.OK else (),
        reason="" if status is Status.OK else "it is wrong",
    )


def test_first_and_best_are_weighed_by_calls_and_what_failed_is_no_program(tmp_path: Path) -> None:
    result = sample_plan()
    one, other = first_choice.chosen_tiles(result).values()
    alone = next(row.region for row in result.regions if row.chosen.schedule.kind != ScheduleKind.TILE)
    write_result(result, tmp_path / "RESULT.json")
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        journal.add_target(result.target)
        journal.add_toolchain(result.toolchain)
        for region in (one.region, other.region, alone):
            journal.add_region(region)
        journal.record(measured(result, one.region, 1, 1e-9, Status.WRONG))
        order = ((one, 2, 3e-6), (other, 2, 2e-6), (one, 4, 2e-6), (one, 8, 4e-6))
        for row, width, seconds in order:
            journal.record(measured(result, row.region, width, seconds))
        journal.record(measured(result, alone, 2, 1e-9))
    first_choice.main(tmp_path / "RESULT.json", out=tmp_path / "first.json")
    written = json.loads((tmp_path / "first.json").read_text())
    (name,) = written["runs"]
    share = (one.calls * 2 + other.calls * 2) / (one.calls * 3 + other.calls * 2)
    assert written["headline"] == {
        f"first_choice_{name}": pytest.approx(share, rel=1e-4),
        f"first_choice_worst_{name}": pytest.approx(2 / 3, rel=1e-4),
        f"first_choice_regions_{name}": 2,
        f"first_choice_programs_{name}": 4,
    }


def test_a_result_without_tile_programs_is_refused_in_a_line(tmp_path: Path) -> None:
    write_result(sample_result(), tmp_path / "RESULT.json")
    Journal.open(tmp_path / "journal.sqlite").close()
    with pytest.raises(UsageError, match="no tile program"):
        first_choice.main(tmp_path / "RESULT.json", out=tmp_path / "first.json")
    assert not (tmp_path / "first.json").exists()
