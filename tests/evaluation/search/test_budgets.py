"""The figures of budgets: of several runs the worst counts, and a run that leaves nothing gives nothing."""

from __future__ import annotations

import pytest

from evaluation.search import budgets
from kcg.errors import UsageError


def row(share: float, *, code: int = 0, improved: int = 1, **more: float) -> dict[str, object]:
    return {"share": share, "exit_code": code, "improved": improved, "s": 50.0, "device": "CPU", **more}


def test_the_worst_run_of_a_cell_and_the_worst_script_of_a_group_count() -> None:
    found = budgets.headline(
        {
            "flux_mini/60/1": row(0.9, overrun_s=1.0),
            "flux_mini/60/2": row(0.7, overrun_s=2.5),
            "flux_mini/120/1": row(0.6),
            "mnist/60/1": row(0.8),
            "unet/60/1": row(0.0, code=6, improved=0),
            "unet/none/1": row(1.0) | {"s": 300.0},
        }
    )
    assert found["cpu_share_60"] == 0.7 and found["cpu_share_120"] == 0.6
    assert found["cpu_scripts_share_60_min"] == 0.0 and found["cpu_scripts_improved_60"] == 1
    assert found["cpu_scripts_exit_0_60"] == 1 and found["cpu_scripts_s_max"] == 300.0
    assert found["cpu_budget_overrun_max"] == 2.5, "a GPU has keys of its own"
    assert found["cpu_worse_with_more_time_max"] == pytest.approx(0.1)


def test_what_has_no_share_yet_is_no_cell_and_other_rows_have_keys_of_their_own() -> None:
    found = budgets.headline(
        {
            "flux_1024/60/1": {"exit_code": 0, "s": 61.0, "device": "CUDA", "overrun_s": 1.0, "device_busy": 0.5}
            | {"cores_busy": 0.25, "after_s": 0.2, "provisional_share": 0.1},
            "flux_1024/thorough": {"exit_code": 0, "s": 500.0, "device": "CUDA", "after_s": 0.1},
            "flux_1024/store": {"exit_code": 0, "s": 70.0, "device": "CUDA", "share": 1.0},
        }
    )
    assert "flux_1024_share_60" not in found
    assert found["store_hit_s"] == 70.0
    assert found["gpu_busy_share"] == 0.5 and found["cpu_busy_share"] == 0.25 and found["provisional_share_max"] == 0.1


def test_what_is_not_there_is_said_in_a_line() -> None:
    assert budgets.workloads_of("CPU", "mnist, unet") == ["mnist", "unet"]
    with pytest.raises(UsageError, match="flux_1024 is no workload for CPU: choose of"):
        budgets.workloads_of("CPU", "flux_1024")
    assert budgets.rows_of("none, 60") == ["none", "60"]
    with pytest.raises(UsageError, match="--budgets 61: choose of 60, 120, 300, none, store, thorough"):
        budgets.rows_of("61")


def test_every_script_that_is_measured_is_there() -> None:
    scripts = [one.arguments[0] for one in budgets.WORKLOADS.values() if one.group == "cpu_scripts"]
    assert len(scripts) == 5 and [name for name in scripts if not (budgets.ROOT / name).is_file()] == []
