"""Fit the CPU constants of the analytic predictor to a journal, and say how well it ranks kernels left out of the fit.

    python -m kcg.dataset generate --workloads flux --preset mini --device CPU --schedules-per-kernel 40 --out FILE
    python -m evaluation.predictor.fit_roofline FILE

Writes evaluation/results/fit_roofline.json. The constants go into kcg/predictor/roofline.py by hand.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from evaluation.predictor.places import RESULTS
from kcg.cli import run_script
from kcg.dataset.journal import Journal
from kcg.errors import DataError, ScheduleError
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.roofline import CPU_SECONDS, CPU_TERMS, cpu_counts
from kcg.provenance import provenance
from kcg.types import Measurement, Region, Status, Target

LARGE_S = 1e-3
HOLDOUT = 0.3  # share of the kernels whose quality is reported and which the fit does not see
ROUNDS = 40  # of reweighting; the fit settles within about ten


@dataclass(frozen=True)
class Fit:
    """Seconds per event of each term, and the quality on the rows that were fitted."""

    seconds: dict[str, float]
    rows: int
    kernels: int
    median_log_error: float
    kendall_tau: float  # mean over kernels with at least four schedules
    kendall_tau_large: float  # the same over kernels whose median schedule takes at least 1 ms, where noise is small


def fit_cpu(
    measurements: Sequence[Measurement], regions: dict[str, Region], target: Target, *, holdout: float = 0.0
) -> Fit:
    """Non-negative least squares on relative errors, reweighted towards the absolute log error.

    With `holdout`, that share of the kernels (by id) is left out of the fit and the quality is theirs. Raises DataError
    where there are too few rows.
    """
    from scipy.optimize import nnls

    rows, times, groups = _rows(measurements, regions, target)
    if len(rows) < 20:
        raise DataError(f"{len(rows)} usable rows are too few to fit: generate more")
    counts, seconds = np.array(rows), np.array(times)
    left_out = np.array([int(g[:8], 16) / 16**8 < holdout for g in groups])
    fitted = ~left_out
    relative = counts[fitted] / seconds[fitted, None]
    weights = np.ones(len(relative))
    solution = np.zeros(counts.shape[1])
    for _ in range(ROUNDS):
        root = np.sqrt(weights)
        solution, _ = nnls(relative * root[:, None], root)
        error = np.abs(np.log(np.maximum(relative @ solution, 1e-9)))
        weights = 1.0 / np.maximum(error, 0.05)
    judged = left_out if holdout else fitted
    predicted = np.maximum(counts @ solution, 1e-12)
    return Fit(
        seconds=dict(zip(CPU_TERMS, map(float, solution), strict=True)),
        rows=int(judged.sum()),
        kernels=len({g for g, j in zip(groups, judged, strict=True) if j}),
        median_log_error=float(np.median(np.abs(np.log(predicted / seconds))[judged])),
        kendall_tau=mean_tau(predicted, seconds, groups, judged),
        kendall_tau_large=mean_tau(predicted, seconds, groups, judged & _of_large_kernels(seconds, groups)),
    )


def shipped_quality(measurements: Sequence[Measurement], regions: dict[str, Region], target: Target) -> Fit:
    """How well the constants in `kcg.predictor.roofline` do on these rows, all of them."""
    rows, times, groups = _rows(measurements, regions, target)
    constants = CPU_SECONDS.get(target.renderer, CPU_SECONDS["CLANG"])
    predicted = np.maximum(np.array(rows) @ np.array(constants), 1e-12)
    seconds, everything = np.array(times), np.ones(len(rows), bool)
    return Fit(
        seconds=dict(zip(CPU_TERMS, constants, strict=True)),
        rows=len(rows),
        kernels=len(set(groups)),
        median_log_error=float(np.median(np.abs(np.log(predicted / seconds)))),
        kendall_tau=mean_tau(predicted, seconds, groups, everything),
        kendall_tau_large=mean_tau(predicted, seconds, groups, _of_large_kernels(seconds, groups)),
    )


def _rows(
    measurements: Sequence[Measurement], regions: dict[str, Region], target: Target
) -> tuple[list[tuple[float, ...]], list[float], list[str]]:
    spaces: dict[str, KernelSpace] = {}
    rows, times, groups = [], [], []
    for m in measurements:
        if m.status != Status.OK or m.region_id not in regions:
            continue
        if m.region_id not in spaces:
            spaces[m.region_id] = KernelSpace(regions[m.region_id], target)
        try:
            table = spaces[m.region_id].table(m.schedule)
        except ScheduleError:
            continue
        rows.append(cpu_counts(table))
        times.append(min(m.samples_s))
        groups.append(m.region_id)
    return rows, times, groups


def _of_large_kernels(seconds: Any, groups: Sequence[str]) -> Any:
    """Which rows belong to kernels whose median schedule takes at least `LARGE_S`."""
    members: dict[str, list[int]] = defaultdict(list)
    for i, group in enumerate(groups):
        members[group].append(i)
    large = {group for group, at in members.items() if np.median(seconds[at]) >= LARGE_S}
    return np.array([group in large for group in groups])


def mean_tau(predicted: Any, measured: Any, groups: Sequence[str], judged: Any) -> float:
    """Mean Kendall τ within kernels that have at least four judged schedules; NaN where there is none."""
    from scipy.stats import kendalltau

    members: dict[str, list[int]] = defaultdict(list)
    for i, group in enumerate(groups):
        if judged[i]:
            members[group].append(i)
    found = [float(kendalltau(predicted[at], measured[at]).statistic) for at in members.values() if len(at) >= 4]
    found = [t for t in found if not np.isnan(t)]
    return float(np.mean(found)) if found else float("nan")


def main(
    journal: Annotated[Path, typer.Argument(help="measurements of one CPU target")],
    out: Annotated[Path, typer.Option(help="the results file")] = RESULTS / "fit_roofline.json",
) -> None:
    """Fit on all kernels, and once more without the held-out ones for an honest quality."""
    with Journal.open(journal, create=False, read_only=True) as opened:
        targets = [t for t in opened.targets().values() if t.device == "CPU"]
        if len(targets) != 1:
            raise DataError(f"{journal} has {len(targets)} CPU targets; the fit needs exactly one")
        rows, regions = list(opened.measurements(PROTOCOL)), opened.regions()
    target = targets[0]
    judged = fit_cpu(rows, regions, target, holdout=HOLDOUT)
    final = fit_cpu(rows, regions, target)
    shipped = shipped_quality(rows, regions, target)
    headline = {
        "kendall_tau_large_heldout": judged.kendall_tau_large,
        "kendall_tau_large_shipped": shipped.kendall_tau_large,
        "kendall_tau_shipped": shipped.kendall_tau,
        "median_log_error_heldout": judged.median_log_error,
        "median_log_error_shipped": shipped.median_log_error,
        "rows": final.rows,
        "kernels": final.kernels,
    }
    report = json.loads(out.read_text()) if out.exists() else {"headline": {}}
    renderer = target.renderer.lower()
    report["headline"].update({f"{name}_{renderer}": value for name, value in headline.items()})
    report[renderer] = {
        "fitted_to_all": asdict(final), "heldout": asdict(judged), "shipped": asdict(shipped), "target": asdict(target),
        "command": f"python -m evaluation.predictor.fit_roofline {journal.name}", "date": date.today().isoformat(),
        **provenance(),
    }  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    typer.echo(json.dumps(headline, indent=1))
    typer.echo(json.dumps(final.seconds, indent=1))


if __name__ == "__main__":
    run_script(main)
