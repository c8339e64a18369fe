"""A device that goes away in the middle of an optimisation, as a GPU that is taken back: nothing measured is lost."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kcg.errors import ExitCode
from kcg.judge import whole_model
from kcg.measure import service
from kcg.measure.pools import DevicePool
from kcg.optimize import run as run_module
from kcg.optimize.__main__ import run
from kcg.optimize.device import Device
from kcg.optimize.estimates import Estimates
from kcg.optimize.judging import Judging
from kcg.optimize.settings import Settings
from kcg.optimize.work import RegionResults
from kcg.report.result import read_result
from kcg.types import Measurement
from kcg.workloads import registry
from tests.faults import bad_jobs
from tests.faults.relu import DEV
from tests.tiny_models import TINY

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kills as Linux does")

SCRIPT = Path(__file__).parent.parent / "scripts" / "three_kernels.py"
KERNELS = 3
COMMAND = "python -m kcg.optimize three_kernels.py"


class Losing(Device):
    """A device whose child is killed, and opens no more, when there are so many rows of search or finals, or
    once all is judged."""

    canaries: Path  # the plan of those that fly from now on
    at_row = at_final = -1
    at_model = False
    rows = finals = 0

    def _record(self, measurement: Measurement) -> None:
        super()._record(measurement)
        if measurement.sampler != "final":
            self.rows += 1
            self._lose(self.rows == self.at_row)

    def record(self, measurements: Sequence[Measurement]) -> None:
        super().record(measurements)
        self.finals += 1
        self._lose(self.finals == self.at_final, judging=True)

    def close_children(self) -> None:
        super().close_children()
        if self.at_model:
            self.canaries.write_text("wrong")

    def _lose(self, now: bool, *, judging: bool = False) -> None:
        child = (self.bench.service if judging else self.service)._device._child
        if now and child is not None:
            self.canaries.write_text("wrong")
            os.kill(child, signal.SIGKILL)


def rows(folder: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{folder / 'journal.sqlite'}?mode=ro", uri=True) as journal:
        return journal.execute(
            "SELECT region_id, schedule_body, status, samples_s, run_id FROM measurements WHERE sampler != 'final'"
        ).fetchall()


def comparisons(folder: Path) -> dict[str, set[str]]:
    """By region, the runs that judged it."""
    found: dict[str, set[str]] = {}
    with sqlite3.connect(f"file:{folder / 'journal.sqlite'}?mode=ro", uri=True) as journal:
        for region, run_id in journal.execute("SELECT region_id, run_id FROM measurements WHERE sampler = 'final'"):
            found.setdefault(region, set()).add(run_id)
    return found


SCRIPTED = Settings(workload=str(SCRIPT), device=DEV, measurements=KERNELS + 4, command=COMMAND)


def lose(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings = SCRIPTED, *, resume: bool = False, **when: int
) -> ExitCode:
    """Run until the device is lost; the exit code."""
    plan = folder / "plan"
    plan.write_text("1")
    job = partial(bad_jobs.planned_canary, str(folder))
    monkeypatch.setattr(service, "DevicePool", partial(DevicePool, canary_job=job))
    monkeypatch.setattr(run_module, "Device", type("Lost", (Losing,), {"canaries": plan, **when}))
    command = f"{settings.command} --resume" if resume else settings.command
    settings = replace(settings, folder=folder, command=command, resume=resume)
    return run(settings, dry_run=False, json_mode=False, quiet=True)


@pytest.mark.slow
def test_device_that_goes_away_in_the_search_and_once_more_in_the_finals_which_then_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Estimates, "is_due", lambda estimates, work: True)  # whatever the search finds in so few rows
    assert lose(tmp_path, monkeypatch, at_row=KERNELS + 1) == ExitCode.DEVICE_UNUSABLE
    printed = capfd.readouterr().err.splitlines()[-1]
    assert "cannot be trusted: its canary is wrong" in printed and printed.endswith(f"go on with {COMMAND} --resume")
    result = read_result(tmp_path / "RESULT.json")
    assert not result.complete and not any(r.chosen.verification.passed for r in result.regions)
    assert any(warning.startswith("the device was lost: ") for warning in result.warnings)
    before = rows(tmp_path)
    assert KERNELS < len(before) < KERNELS + 4, "what was measured is kept"
    assert {row[2] for row in before} <= {"ok", "worker_died"}

    assert lose(tmp_path, monkeypatch, resume=True, at_final=2) == ExitCode.DEVICE_UNUSABLE
    assert capfd.readouterr().err.splitlines()[-1].endswith(f"go on with {COMMAND} --resume")
    after = rows(tmp_path)
    assert after[: len(before)] == before and len(after) > len(before), "it goes on where it was"
    measured = [(row[0], row[1]) for row in after if row[2] == "ok"]
    assert len(set(measured)) == len(measured), "nothing is measured twice"
    result = read_result(tmp_path / "RESULT.json")
    judged = [r for r in result.regions if r.chosen.verification.passed]
    assert not result.complete and len(judged) == 2 and all(r.chosen.warm_s > 0 for r in judged)
    assert {r.note for r in result.regions if r not in judged} == {"the device was lost: not verified"}

    assert lose(tmp_path, monkeypatch, resume=True) in (ExitCode.OK, ExitCode.NOTHING_IMPROVED)
    whole = read_result(tmp_path / "RESULT.json")
    assert whole.complete and all(r.chosen.verification.passed for r in whole.regions)
    taken_over = {r.region.id: r for r in whole.regions if r.region.id in {j.region.id for j in judged}}
    for one in judged:
        again = taken_over[one.region.id]
        assert (again.baseline, again.chosen, again.outcome) == (one.baseline, one.chosen, one.outcome)
    by = comparisons(tmp_path)
    assert len(by) == KERNELS and all(len(runs) == 1 for runs in by.values()), "no kernel is judged twice"
    assert len({run for runs in by.values() for run in runs}) == 2, "only the rest was left to the last run"
    assert f"the verdicts on 2 of {KERNELS} kernels are those of an earlier run" in " ".join(whole.warnings)


TAKEN_OVER = "are those of an earlier run: they were not judged again"
MODEL = Settings(
    workload="tiny", preset="dies-when-tuned", device=DEV, measurements=4, command="python -m kcg.optimize tiny"
)


@pytest.mark.slow
def test_device_that_goes_away_in_the_check_of_the_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The model's child dies, and a child after it finds the device unusable."""
    judge = Judging.run

    def changed(judging: Judging) -> RegionResults:
        judged = judge(judging)
        rows = tuple(replace(row, outcome="improved") for row in judged.rows)  # else there is nothing to check
        return replace(judged, rows=rows)

    monkeypatch.setattr(Estimates, "is_due", lambda estimates, work: True)
    monkeypatch.setitem(registry.WORKLOADS, "tiny", lambda: TINY)
    monkeypatch.setattr(Judging, "run", changed)
    monkeypatch.setattr(whole_model, "CHILD", "tests.tiny_models")

    assert lose(tmp_path, monkeypatch, MODEL, at_model=True) == ExitCode.DEVICE_UNUSABLE
    printed = capfd.readouterr().err.splitlines()[-1]
    assert "cannot be trusted: its canary is wrong" in printed and printed.endswith(
        f"go on with {MODEL.command} --resume"
    )
    result = read_result(tmp_path / "RESULT.json")
    assert not result.complete and all(r.chosen.verification.passed for r in result.regions), "the result is kept"
    assert any(warning.startswith("the device was lost: ") for warning in result.warnings)
    assert result.model_check is not None and result.model_check.passed is None
    assert result.model_check.reason == "not run: the device was lost"

    assert lose(tmp_path, monkeypatch, MODEL, resume=True) == ExitCode.VERIFICATION_FAILED, "the device is back"
    again = read_result(tmp_path / "RESULT.json")
    assert again.model_check is not None and again.model_check.passed is False, "its own schedules do run"
    assert [r.chosen for r in again.regions] == [r.chosen for r in result.regions], "no kernel is judged twice"
    assert TAKEN_OVER in " ".join(again.warnings) and "--resume judges every kernel again" in again.warnings[-1]

    assert lose(tmp_path, monkeypatch, MODEL, resume=True) == ExitCode.VERIFICATION_FAILED
    anew = read_result(tmp_path / "RESULT.json")
    assert not {r.chosen for r in anew.regions} & {r.chosen for r in again.regions}, "each is judged again"
    assert TAKEN_OVER not in " ".join(anew.warnings) and {len(runs) for runs in comparisons(tmp_path).values()} == {2}
