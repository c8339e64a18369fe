"""Fitting the constants of the roofline's CPU terms to a journal, and how well they rank within a kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kcg.errors import DataError, ScheduleError
from kcg.kernel.space import KernelSpace
from kcg.predictor.roofline import CPU_SECONDS, CPU_TERMS, cpu_counts
from kcg.types import Measurement, Region, Status, Target

LARGE_S = 1e-3
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
    import numpy as np
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
    import numpy as np

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
    import numpy as np

    members: dict[str, list[int]] = defaultdict(list)
    for i, group in enumerate(groups):
        members[group].append(i)
    large = {group for group, at in members.items() if np.median(seconds[at]) >= LARGE_S}
    return np.array([group in large for group in groups])


def mean_tau(predicted: Any, measured: Any, groups: Sequence[str], judged: Any) -> float:
    """Mean Kendall τ within kernels that have at least four judged schedules; NaN where there is none."""
    import numpy as np
    from scipy.stats import kendalltau

    members: dict[str, list[int]] = defaultdict(list)
    for i, group in enumerate(groups):
        if judged[i]:
            members[group].append(i)
    found = [float(kendalltau(predicted[at], measured[at]).statistic) for at in members.values() if len(at) >= 4]
    found = [t for t in found if not np.isnan(t)]
    return float(np.mean(found)) if found else float("nan")
