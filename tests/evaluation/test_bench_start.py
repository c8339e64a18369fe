"""What is measured of the start, and what the core is said to weigh."""

from __future__ import annotations

from evaluation.bench_start import COMMANDS, installed_bytes, requirements, start_times


def test_every_command_runs_and_is_timed_as_often_as_the_others() -> None:
    started = start_times(1)
    assert {name: len(starts) for name, starts in started.items()} == dict.fromkeys(COMMANDS, 1)
    assert all(start.wall_s > 0 for starts in started.values() for start in starts)


def test_the_core_is_what_is_required_without_extras() -> None:
    assert {"tinygrad", "typer"} <= set(requirements("kcg")) and "optuna" not in set(requirements("kcg"))
    weights = installed_bytes("kcg")
    assert weights["scipy"] > weights["typer"] > 0 and "shellingham" in weights, "requirements of requirements too"
    assert not {"kcg", "torch", "pyarrow", "wandb", "optuna", "lightgbm"} & weights.keys()
