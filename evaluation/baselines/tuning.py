"""kcg on a case: the schedules that it finds, and what they cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kcg.optimize.console import progress
from kcg.optimize.result import read_result
from kcg.optimize.run import optimize
from kcg.optimize.settings import Settings

PROGRAM = Path(__file__).parent.parent / "run_case.py"


def tune(case: dict[str, Any], dev: str, *, budget_s: float, folder: Path, search: str = "mcts") -> dict[str, Any]:
    """Optimise the kernels of a case on the device; `result` is the path of its RESULT.json, `tuned` what is kept.

    A result that is in `folder` already is taken, if it was made with this budget. Raises KcgError as kcg does.
    """
    if case["kind"] == "family":
        what: dict[str, Any] = {"workload": case["name"], "preset": case["preset"]}
    else:
        what = {"workload": str(PROGRAM), "script_args": (json.dumps(case),)}
    settings = Settings(**what, device=dev, budget_s=budget_s, folder=folder, search=search)
    path = folder / "RESULT.json"
    result = read_result(path) if path.exists() else None
    if result is None or result.budget != settings.budget_text or result.target.tinygrad_device != dev:
        with progress(quiet=True) as shown:
            result = optimize(settings, shown).result
    kernels = [
        {
            "name": row.chosen.name, "calls": row.calls, "before_s": row.baseline.cold_s, "after_s": row.chosen.cold_s,
            "schedule": str(row.chosen.schedule), "bytes": row.bytes, "outcome": row.outcome,
        }
        for row in result.regions
    ]  # fmt: skip
    facts = {
        "search_s": result.search_s, "measurements": result.measurements, "predictor": result.predictor,
        "before_s": result.total_before_s, "after_s": result.total_after_s, "kernels": kernels,
    }  # fmt: skip
    return {"result": str(path), "tuned": facts}
