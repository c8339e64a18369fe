"""kcg on a case: the schedules that it finds, and what they cost."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from kcg.optimize.console import progress
from kcg.optimize.run import optimize
from kcg.optimize.settings import Settings

PROGRAM = Path(__file__).parent.parent / "run_case.py"


def tune(case: dict[str, Any], dev: str, *, budget_s: float, folder: Path, search: str = "mcts") -> dict[str, Any]:
    """Optimise the kernels of a case on the device; `result` is the path of its RESULT.json, the rest what to keep."""
    begin = time.monotonic()
    if case["kind"] == "family":
        what: dict[str, Any] = {"workload": case["name"], "preset": case["preset"]}
    else:
        what = {"workload": str(PROGRAM), "script_args": (json.dumps(case),)}
    settings = Settings(**what, device=dev, budget_s=budget_s, folder=folder, search=search)
    with progress(quiet=True) as shown:
        finished = optimize(settings, shown)
    result = finished.result
    kernels = [
        {
            "name": row.chosen.name, "calls": row.calls, "before_s": row.baseline.cold_s, "after_s": row.chosen.cold_s,
            "schedule": str(row.chosen.schedule), "launch": row.chosen.launch, "bytes": row.bytes,
            "operations": row.operations, "outcome": row.outcome,
        }
        for row in result.regions
    ]  # fmt: skip
    facts = {
        "search_s": time.monotonic() - begin, "measurements": result.measurements, "predictor": result.predictor,
        "before_s": result.total_before_s, "after_s": result.total_after_s, "kernels": kernels,
        "exit_code": int(finished.exit_code),
    }  # fmt: skip
    return {"result": str(finished.result_path), "tuned": facts}
