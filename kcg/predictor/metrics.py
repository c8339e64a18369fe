"""How well predictions rank the schedules of each kernel, as `docs/predictor.md` judges them.

Everything is within a kernel, and kernels are averaged: a kernel with many schedules weighs no more than another. Pairs
whose times differ by less than the noise floor are dropped, because no order of them is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from kcg.dataset.noise import DURATIONS_S, Repeats, Spread
from kcg.dataset.reading import Export
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.features import Array
from kcg.types import CacheState, Status

TOP = (1, 5, 16)
COVERAGE = ((0.5, 0.6745), (0.8, 1.2816), (0.95, 1.96))
"""Shares of a normal distribution, and within how many standard deviations they lie."""


@dataclass(frozen=True)
class Floors:
    """The noise floor as |log ratio| by duration: between two timings of one run, and of different runs.

    `within[i]` is that of schedules that take less than `DURATIONS_S[i]`, the last that of all longer ones.
    """

    within: tuple[float, ...] = (0.02,) * (len(DURATIONS_S) + 1)
    across: tuple[float, ...] = (0.03,) * (len(DURATIONS_S) + 1)

    def of_pairs(self, log_s: Array, same_run: Array) -> Array:
        """(m, m) the floor of every pair of schedules, that of the slower one's duration."""
        place = np.searchsorted(np.log(np.array(DURATIONS_S)), log_s, side="right")
        slower = np.maximum(place[:, None], place[None])
        return np.asarray(np.where(same_run, np.array(self.within)[slower], np.array(self.across)[slower]))


@dataclass(frozen=True)
class KernelScores:
    """One kernel's pool: shares of right pairs, Kendall's tau, and the best time among the first k over the best."""

    kernel: int
    schedules: int
    pairs: int  # above the noise floor
    pairwise: float  # NaN where there are no pairs
    tau: float
    best_s: float
    top_s: tuple[float, ...]  # the best of the first k in the predicted order, for k in `TOP`
    random_s: tuple[float, ...]  # what the best of k random ones takes, in expectation


def kernel_scores(kernel: int, predicted: Array, log_s: Array, run: Array, floors: Floors) -> KernelScores:
    """The scores of one kernel's pool. `predicted` is smaller for what should be faster; all are (m,).

    Equal predictions are half right.
    """
    same = run[:, None] == run[None]
    apart = log_s[:, None] - log_s[None]
    judged = np.triu(np.abs(apart) > floors.of_pairs(log_s, same), 1)
    signs = np.sign(apart[judged]) * np.sign((predicted[:, None] - predicted[None])[judged])
    pairs = len(signs)
    order = np.lexsort((np.arange(len(predicted)), predicted))
    seconds = np.exp(log_s)
    ranked = np.sort(seconds)
    tops = tuple(float(seconds[order[:k]].min()) for k in TOP)
    return KernelScores(
        kernel,
        len(log_s),
        pairs,
        float((signs > 0).mean() + (signs == 0).mean() / 2) if pairs else math.nan,
        float(signs.mean()) if pairs else math.nan,
        float(ranked[0]),
        tops,
        tuple(expected_best(ranked, k) for k in TOP),
    )


def expected_best(ranked: Array, k: int) -> float:
    """The expectation of the least of k drawn without replacement from ascending values."""
    n = len(ranked)
    if k >= n:
        return float(ranked[0])
    # P(the i-th is the least) = C(n - 1 - i, k - 1) / C(n, k)
    chance, total = k / n, 0.0
    for i in range(n - k + 1):
        total += chance * float(ranked[i])
        chance *= (n - i - k) / (n - 1 - i) if i < n - 1 else 0.0
    return total


def scores(predicted: Array, log_s: Array, kernel: Array, run: Array, floors: Floors) -> list[KernelScores]:
    """The scores of every kernel that has at least two schedules with a time; rows that failed have none, NaN."""
    timed = np.isfinite(log_s)
    found = []
    order = np.argsort(kernel[timed], kind="stable")
    index = np.flatnonzero(timed)[order]
    edges = np.flatnonzero(np.diff(kernel[index], prepend=-1))
    for rows in np.split(index, edges[1:]):
        if len(rows) > 1:
            found.append(kernel_scores(int(kernel[rows[0]]), predicted[rows], log_s[rows], run[rows], floors))
    return found


def summary(found: list[KernelScores], calls: Array) -> dict[str, float]:
    """Means over kernels, and the top-k scores: sum of w * best over sum of w * best of the first k, where w is how
    often the kernel runs; `_mean` is their unweighted geometric mean, `random_` what random ones score."""
    pairwise, tau = (np.array([getattr(s, name) for s in found]) for name in ("pairwise", "tau"))
    weights = np.array([calls[s.kernel] for s in found], np.float64)
    best = np.array([s.best_s for s in found])
    values = {
        "kernels": float(len(found)),
        "schedules": float(sum(s.schedules for s in found)),
        "pairwise": _mean(pairwise),
        "kendall_tau": _mean(tau),
    }
    for i, k in enumerate(TOP):
        for name, times in (("top", [s.top_s[i] for s in found]), ("random_top", [s.random_s[i] for s in found])):
            reached = np.array(times)
            values[f"{name}{k}"] = float((weights * best).sum() / (weights * reached).sum()) if found else math.nan
            values[f"{name}{k}_mean"] = float(np.exp(np.log(best / reached).mean())) if found else math.nan
    return values


def score_of(values: Mapping[str, float]) -> float:
    """The one number by which models are chosen: pairwise accuracy plus unweighted top-1, of a `summary`."""
    return values["pairwise"] + values["top1_mean"]


def _mean(values: Array) -> float:
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else math.nan


def log_error(error: Array) -> float:
    """Root mean square of errors in log-seconds; NaN of none."""
    return float(np.sqrt((error**2).mean())) if len(error) else math.nan


def mape(error: Array) -> float:
    """Mean absolute percentage error of runtimes, as a share, from errors in log-seconds; NaN of none."""
    return float(np.abs(np.expm1(error)).mean()) if len(error) else math.nan


def auc(scored: Array, positive: Array) -> float:
    """Area under the ROC curve: the chance that a positive row scores above a negative one; NaN without both."""
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return math.nan
    _, place, ties = np.unique(scored, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]  # from 1, equal ones share theirs
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))


def calibration(z: Array) -> Mapping[str, float]:
    """How often |error| / expected standard deviation stays below what a normal distribution has in 50, 80, 95 %."""
    return {f"{share:.0%}"[:-1]: float((np.abs(z) <= n).mean()) if len(z) else math.nan for share, n in COVERAGE}


# ---- The noise floor of a dataset, from what it timed more than once: differences below it say nothing of an order.

FEWEST = 5  # identities that were timed twice: the median of fewer is no floor


def floors_of(export: Export) -> Floors:
    """The floor within a run (`Repeats.noise`) and across runs (`Repeats.drift`): medians by class of durations.

    A class with too few repeats has the floor of the next longer one that has enough, and that of `Floors()` where
    there is none. Of several targets the largest counts. Timings of one run are never further apart than those of
    different runs. Reads every row, about 30 µs each. Raises DataError where a row is wrong.
    """
    repeats = Repeats()
    for record in export.records(PROTOCOL):
        m = record.measurement
        if m.status == Status.OK and m.cache_state == CacheState.COLD:
            repeats.add(m, record.recorded_unix_s)
    default, noise, drift = Floors(), _by_class(repeats.noise()), _by_class(repeats.drift())
    within, across = [], []
    for usual, usual_across, one_run, runs in zip(default.within, default.across, noise, drift, strict=True):
        far = usual_across if runs is None else runs
        within.append(min(usual, far) if one_run is None else one_run)
        across.append(max(far, within[-1]))
    return Floors(tuple(within), tuple(across))


def _by_class(spreads: Iterable[Spread]) -> list[float | None]:
    """|log ratio| for each class of durations, the shortest first; None where no class as long has enough."""
    found: dict[float, float] = {}
    for spread in spreads:
        if spread.compared >= FEWEST:
            limit = math.inf if spread.shorter_than_s is None else spread.shorter_than_s
            found[limit] = max(found.get(limit, 0.0), math.log1p(spread.median))
    limits = (*DURATIONS_S, math.inf)
    return [next((found[longer] for longer in limits[i:] if longer in found), None) for i in range(len(limits))]
