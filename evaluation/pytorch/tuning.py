"""kcg on a case: the schedules that it finds, and what they cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kcg.errors import KcgError
from kcg.kernel.kinds import describe
from kcg.optimize.console import progress
from kcg.optimize.run import optimize
from kcg.optimize.settings import Settings
from kcg.report.result import read_result
from kcg.types import Result, ScheduleKind, content_id
from kcg.workloads.script import Form

PROGRAM = "evaluation.pytorch.program"
FOLDER = Path(__file__).parent / "kernels"


def tune(
    case: dict[str, Any],
    dev: str,
    *,
    budget_s: float,
    folder: Path,
    search: str = "mcts",
    kernels: str = "",
    only: str = "",
) -> dict[str, Any]:
    """Optimise the kernels of a case on the device; `result` is the path of its RESULT.json, `tuned` what is kept.

    With a file of `kernels` written by hand, for `only` one kind of device, nothing is searched: kcg verifies them,
    times them beside tinygrad's own schedule, and must choose one. A result that is in `folder` already is taken, if it
    was made with this budget. Raises KcgError as kcg does.
    """
    if not dev.startswith(only):
        raise KcgError(f"{kernels} runs on {only} only")
    if case["kind"] == "family" and "sizes" not in case:
        what: dict[str, Any] = {"workload": case["name"], "preset": case["preset"]}
    else:
        what = {"workload": PROGRAM, "form": Form.MODULE, "script_args": (json.dumps(case),)}
    if kernels:
        what |= {"kernels": (FOLDER / kernels,), "measurements": 1}  # tinygrad's own, and what is written by hand
    else:
        what |= {"budget_s": budget_s}
    settings = Settings(**what, device=dev, folder=folder, search=search)
    path = folder / "RESULT.json"
    result = read_result(path) if path.exists() else None
    if result is None or result.budget != settings.budget_text or result.target.tinygrad_device != dev:
        with progress(quiet=True) as shown:
            result = optimize(settings, shown).result
    if kernels:
        check_chosen(result)
    report = [
        {
            "name": row.chosen.name,
            "calls": row.calls,
            "before_s": row.baseline.cold_s,
            "after_s": row.chosen.cold_s,
            "schedule": describe(row.chosen.schedule),
            "bytes": row.bytes,
            "outcome": row.outcome,
        }
        for row in result.regions
    ]
    facts = {
        "search_s": result.search_s,
        "measurements": result.measurements,
        "predictor": result.predictor,
        "before_s": result.total_before_s,
        "after_s": result.total_after_s,
        "kernels": report,
    }
    return {"result": str(path), "tuned": facts}


def folder_of(case: dict[str, Any], kernels: str) -> str:
    """The name of a folder for kcg's result on a case, another one once the file of kernels changed."""
    return content_id({**case, "kernels": (FOLDER / kernels).read_text()} if kernels else case)[:12]


def check_chosen(result: Result) -> None:
    """Raises KcgError, with kcg's reasons, where a kernel of the result is not one that is written by hand."""
    for row in result.regions:
        if row.chosen.schedule.kind != ScheduleKind.SOURCE:
            fates = [f"{name} {fate}" for name, fate in row.handwritten] or [row.note]
            raise KcgError(f"kcg chose {describe(row.chosen.schedule)} for {row.chosen.name}: {'; '.join(fates)}")
