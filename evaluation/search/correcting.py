"""Corrections of a predictor compared on recorded schedules: what each would have measured, and found.

Beside no correction there are two: `kcg.search.calibration`, by Opts, and `kcg.predictor.correction`, by what the
networks see in a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kcg.predictor.correction import Correction
from kcg.predictor.features import Array
from kcg.search.calibration import Calibration, Trial
from kcg.search.moves import StepSets
from kcg.search.problem import expected_improvement
from kcg.types import Prediction, Schedule

BUDGETS: Final = (0, 4, 8, 16)  # measurements
BATCH: Final = 4  # of them at a time
ORDERS: Final = ("greedy", "improving", "predicted", "random")


@dataclass(frozen=True)
class Pool:
    """n schedules of one kernel, all measured."""

    predicted: Array  # (n,) log-seconds
    sigma: Array  # (n,) log-seconds
    embedding: Array  # (n, d)
    log_s: Array  # (n,) measured; NaN where it failed
    steps: tuple[int, ...]  # the set of each one's Opts, a bit each
    traits: Array  # (n, t) 0 or 1, see `kcg.predictor.correction`


Corrected = tuple[Array, Array]  # (n,) log-seconds, and their standard deviations


def steps_of(schedules: Sequence[Schedule]) -> tuple[int, ...]:
    """The set of each schedule's Opts, a bit each; an Opt that comes twice has two."""
    sets = StepSets()
    return tuple(sets.of(schedule) for schedule in schedules)


def _nothing(pool: Pool, done: list[int]) -> Corrected:
    return pool.predicted, pool.sigma


def _calibrated(pool: Pool, done: list[int]) -> Corrected:
    line = Calibration()
    for i in done:
        measured = float(pool.log_s[i])
        line.add(Trial(pool.steps[i], float(pool.predicted[i]), None if np.isnan(measured) else measured))
    predicted = zip(pool.predicted.tolist(), pool.steps, strict=True)
    return np.array([line.expected(Prediction(p), line.evidence(s)).log_runtime for p, s in predicted]), pool.sigma


def _regressed(pool: Pool, done: list[int], traits: Array | None = None) -> Corrected:
    correction = Correction(pool.embedding)
    report = None if traits is None else traits[done]
    correction.observe(pool.embedding[done], pool.predicted[done], pool.log_s[done], traits=report)
    return correction.corrected(pool.embedding, pool.predicted, pool.sigma, traits=traits)


def _regressed_with_traits(pool: Pool, done: list[int]) -> Corrected:
    return _regressed(pool, done, pool.traits)


Method = Callable[[Pool, list[int]], Corrected]
METHODS: Final[dict[str, Method]] = {
    "none": _nothing,
    "calibration": _calibrated,
    "regression": _regressed,
    "traits": _regressed_with_traits,
}
"""By name: (n,) corrected log-seconds of a pool, of which some schedules were measured, and the doubt about each."""


def replay(pool: Pool, method: Method, *, order: str, seed: int = 0) -> list[float]:
    """The score after each of `BUDGETS` measurements: the best time over that of the best schedule known.

    `order` says what is measured: the first in the corrected order (greedy), by the improvement that is expected
    (improving, as a search does it) or in the uncorrected order (predicted), and known is the best among the measured
    and the one then predicted best. With random ones the predicted best alone counts, against the best of what is left.
    What failed is as slow as the slowest.
    """
    log_s = np.where(np.isnan(pool.log_s), np.nanmax(pool.log_s), pool.log_s)
    drawn = np.random.default_rng(seed).permutation(len(log_s))
    first = np.argsort(pool.predicted, kind="stable")
    done: list[int] = []
    scores = []
    for budget in BUDGETS:
        while len(done) < min(budget, len(log_s) - 1):
            key = drawn if order == "random" else first
            if order in ("greedy", "improving"):
                mean, deviation = method(pool, done)
                if order == "improving" and done:
                    best_s = float(np.exp(log_s[done].min()))
                    predicted = zip(mean.tolist(), deviation.tolist(), strict=True)
                    mean = np.array([-expected_improvement(m, d, best_s) for m, d in predicted])
                key = np.argsort(mean, kind="stable")
            done += [int(i) for i in key[~np.isin(key, done)][: min(BATCH, budget - len(done))]]
        rest = np.setdiff1d(np.arange(len(log_s)), done)
        picked = log_s[rest[np.argmin(method(pool, done)[0][rest])]]
        if order == "random":
            scores.append(float(np.exp(log_s[rest].min() - picked)))
        else:
            scores.append(float(np.exp(log_s.min() - min(picked, log_s[done].min(initial=picked)))))
    return scores


def table_of(entry: Mapping[str, Any]) -> list[str]:
    """The Markdown table of what a search finds, by what it measures next; 1 is the best schedule there is."""
    titles = {"pools": "pools", "tables": "complete lattices"}
    orders = {"greedy": "best expected", "improving": "expected improvement"}
    after = [f"after {n}" for n in BUDGETS]
    heads = ["schedules", "measured next", "corrected by", *after, "gain on none"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    counts = []
    for kind, title in titles.items():
        if entry.get(kind, {}).get("kernels"):
            counts.append(f"{entry[kind]['kernels']} kernels with {title}")
        for order, chosen in orders.items():
            for name, found in entry.get(kind, {}).get(order, {}).items():
                cells = [f"{found[f'top1_after_{n}']['score']:.3f}" for n in BUDGETS]
                low, high = found["top1_after_8"]["gain_on_none"]
                lines.append(f"| {title} | {chosen} | {name} | {' | '.join(cells)} | {low:.3f} to {high:.3f} |")
    return [*lines, "", ", ".join(counts) + "; gains after eight as ratios, 95 % intervals over kernels."]
