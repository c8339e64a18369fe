"""The script that tells how fast compiled programs are measured, on a CPU: that it works, no figure."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from evaluation.dataset.measure_rate import measured
from kcg.campaign.compiling import CompilesOnly
from kcg.campaign.generate import generate_on
from kcg.campaign.settings import CampaignSettings, Stage
from kcg.errors import UsageError
from kcg.kernel.codec import kernel_of
from kcg.measure.service import MeasureService
from kcg.types import Region, Workload, WorkloadCall
from tests.kernels import empty, kernels_of


def test_it_says_rows_a_second_and_where_the_time_goes(tmp_path: Path) -> None:
    (ast,) = kernels_of(empty(28) + 1)
    calls = (WorkloadCall(Region((kernel_of(ast),)), 1),)
    with MeasureService("CPU:X86", run_id="looks", compile_workers=1) as service:
        target = service.target
    out = tmp_path / "j.sqlite"
    settings = CampaignSettings(out, schedules_per_kernel=4, stage=Stage.COMPILE)
    with CompilesOnly(target, compile_workers=1) as compiling:
        generate_on(
            settings,
            [(compiling, [Workload("small", "x", calls)])],
            began=time.monotonic(),
            log=lambda line, eta_s: None,
        )
    found = measured(out, "CPU:X86", None)
    assert found["rows"] == found["statuses"]["ok"] >= 4 and found["rows_per_s_steady"] > 0
    assert {"load", "sample"} <= found["ms_a_row"].keys() and found["children_replaced"] == 0
    with pytest.raises(UsageError, match="nothing was measured"):
        measured(out, "CPU:X86", None)
