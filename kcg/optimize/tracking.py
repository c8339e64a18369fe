"""`--wandb`: a finished run at Weights & Biases, in the way of `kcg.predictor.tracking`.

All is sent when the result is written, so that nothing of it runs beside what is timed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kcg.kernel.kinds import describe
from kcg.predictor.tracking import Tracking, WandbRun
from kcg.report.times import is_compared, is_timed, totals_of
from kcg.types import Result

PROJECT: Final = "kcg-optimize"

COLUMNS: Final = ["kernel", "calls", "before_s", "after_s", "speedup", "outcome", "schedule"]
"""Of the table of kernels: seconds of all calls, and text."""


def send(result: Result, report: Path, *, mode: str, warn: Callable[[str], object]) -> None:
    """Keep `result` and its report at Weights & Biases: `online`, or `offline` in the report's folder.

    Whatever fails there is one line to `warn`; it takes no longer than starting and uploading may.
    """
    name = " ".join(filter(None, (result.workload, result.preset)))
    tracking = Tracking(mode, config=_config(result), project=PROJECT)
    run = WandbRun(report.parent, tracking, name=name, warn=warn, instead=f"the result is in {report.parent} only")
    run.begin()
    run.guarded(lambda started: _log(started, result))
    run.artifact(report, re.sub(r"[^\w.-]+", "-", f"{name} report", flags=re.ASCII).strip("-"), kind="report")
    run.finish()


def _config(result: Result) -> dict[str, Any]:
    """What was asked for, of which device and by which code."""
    named = ("workload", "preset", "search", "predictor", "seed", "budget", "allow_tf32", "created", "kcg_version")
    return {
        **{name: getattr(result, name) for name in (*named, "revision", "dirty")},
        "target": {name: getattr(result.target, name) for name in ("model", "device", "renderer", "arch")},
        "toolchain": {name: getattr(result.toolchain, name) for name in ("tinygrad", "compiler", "driver", "triton")},
    }


def _log(run: Any, result: Result) -> None:
    """The search, the kernels and the totals. The best total has two names, since a metric has one axis."""
    import wandb

    axes = {"best total over seconds": "elapsed_s", "best total over measurements": "measurements"}
    for name, axis in axes.items():
        run.define_metric(name, step_metric=axis)
    for point in result.progress:
        if math.isfinite(point.total_s):
            place = {axis: getattr(point, axis) for axis in axes.values()}
            run.log(place | dict.fromkeys(axes, point.total_s))
    run.log({"kernels": wandb.Table(columns=COLUMNS, data=_rows(result))})
    run.summary.update({name: value for name, value in _totals(result).items() if value is not None})


def _rows(result: Result) -> list[list[Any]]:
    """One row for each kernel, the slowest first; a time that is not known is None, and that after of a kernel that was
    not compared."""
    rows = sorted(result.regions, key=lambda row: -row.before_s if math.isfinite(row.before_s) else math.inf)
    return [
        [
            row.chosen.name or row.region.id[:12],
            row.calls,
            row.before_s if is_timed(row) else None,
            row.after_s if is_compared(row) else None,
            _ratio(row.before_s, row.after_s) if is_compared(row) else None,
            row.outcome,
            describe(row.chosen.schedule),
        ]
        for row in rows
    ]


def _totals(result: Result) -> dict[str, Any]:
    check = result.model_check
    before, after, _ = totals_of(result)
    return {
        "total_before_s": before,
        "total_after_s": after,
        "speedup": None if before is None or after is None else _ratio(before, after),
        "step_before_s": check and check.before_s,
        "step_after_s": check and check.after_s,
        "whole_verified": check and check.passed,
        "complete": result.complete,
        "measured": result.measurements,
        "compilations": result.compilations,
        "search_s": result.search_s,
        **{f"kernels {outcome}": count for outcome, count in Counter(row.outcome for row in result.regions).items()},
    }


def _ratio(before_s: float, after_s: float) -> float | None:
    return before_s / after_s if math.isfinite(before_s) and math.isfinite(after_s) and after_s > 0 else None
