"""A GPU that is taken away in the middle of an optimisation: the driver shows it to no new process until it is back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.errors import ExitCode
from kcg.optimize import run as run_module
from kcg.optimize.__main__ import run
from kcg.optimize.device import Device
from kcg.optimize.settings import Settings
from kcg.report.result import read_result
from kcg.types import Measurement
from tests.faults.cuda_code import DEV
from tests.faults.test_faults_lost import KERNELS, SCRIPT, rows

pytestmark = pytest.mark.gpu

COMMAND = f"python -m kcg.optimize {SCRIPT.name}"
AT_ROW = KERNELS + 1
HIDING = "CUDA_VISIBLE_DEVICES"


class Taken(Device):
    """A device whose GPU is taken away with the process that has it, when it has measured so many rows."""

    taken_at_s = 0.0
    rows = 0

    def _record(self, measurement: Measurement) -> None:
        super()._record(measurement)
        self.rows += 1
        child = self.service._device._child
        if self.rows == AT_ROW and child is not None:
            os.environ[HIDING] = ""
            os.kill(child, signal.SIGKILL)
            type(self).taken_at_s = time.monotonic()


def test_gpu_that_is_taken_away_and_is_back_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    record_property: Callable[[str, object], None],
) -> None:
    settings = Settings(workload=str(SCRIPT), device=DEV, measurements=KERNELS + 8, command=COMMAND, folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "Device", Taken)
        patch.setenv(HIDING, os.environ.get(HIDING, "0"))  # so that leaving restores what was there
        assert run(settings, dry_run=False, json_mode=False, quiet=True) == ExitCode.DEVICE_UNUSABLE
        record_property("own_s", f"{time.monotonic() - Taken.taken_at_s:.3f}")
        printed = capfd.readouterr().err.splitlines()[-1]
        record_property("reason", printed)
        assert DEV in printed and printed.endswith(f"go on with {COMMAND} --resume")
        before = rows(tmp_path)
        assert len(before) >= AT_ROW and {row[2] for row in before} <= {"ok", "worker_died"}
        assert not read_result(tmp_path / "RESULT.json").complete

        command = [sys.executable, "-m", "kcg.optimize", str(SCRIPT), "--device", DEV]
        too_soon = subprocess.run([*command, "--report", str(tmp_path), "--resume"], capture_output=True, text=True)
        assert too_soon.returncode == ExitCode.DEVICE_UNUSABLE
        assert too_soon.stderr.splitlines()[-1].endswith("the NVIDIA driver finds no GPU here; use --device CPU")
        assert rows(tmp_path) == before

    again = replace(settings, resume=True)
    assert run(again, dry_run=False, json_mode=False, quiet=True) in (ExitCode.OK, ExitCode.NOTHING_IMPROVED)
    whole = read_result(tmp_path / "RESULT.json")
    assert whole.complete
    assert all(row.chosen.verification.passed for row in whole.regions if row.outcome == "improved")
    after = rows(tmp_path)
    assert after[: len(before)] == before, "it goes on where it was"
    measured = [(row[0], row[1]) for row in after if row[2] == "ok"]
    assert len(set(measured)) == len(measured), "nothing is measured twice"
