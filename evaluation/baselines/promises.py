"""What a search promised itself of each schedule that it measured, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from kcg.kernel.space import KernelSpace
from kcg.optimize.result import read_result
from kcg.predictor.choice import choose_predictor
from kcg.predictor.correction import Correction
from kcg.search.improvement import expected_improvement

from .known import Known, Told, seen_by, tiles_and_traits

FIRST: Final = 4  # measurements of a kernel that only teach


@dataclass(frozen=True)
class Promise:
    """One measurement, as the correction saw it before: shares of the best time then, deviations in log-seconds."""

    deviation: float
    surprise: float  # how many deviations it was slower than expected
    promised: float  # expected improvement
    gained: float


def promises_of(path: Path) -> Iterator[Promise]:
    """Of every measurement in a RESULT.json, a kernel after the other, but the `FIRST` of each."""
    result = read_result(path)
    predictor = choose_predictor("auto", result.target)
    for place, row in enumerate(result.regions):
        told = sorted((e for e in result.expectations if e.region == place), key=lambda e: e.elapsed_s)
        timed: Known = {row.baseline.schedule: row.baseline.cold_s}
        timed |= {e.schedule: e.measured_s for e in told if e.measured_s}
        if len(timed) > FIRST + 1:
            space = KernelSpace(row.region, result.target)
            schedules, seen = seen_by(predictor, space, timed)
            tiles, traits = tiles_and_traits(space, schedules)
            yield from kept(seen, {"tiles": tiles, "traits": traits})


def kept(told: Told, columns: dict[str, Any]) -> Iterator[Promise]:
    """Of n schedules in the order in which they were measured, tinygrad's own first."""
    predicted, doubt, features, log_s = told
    for count in range(FIRST + 1, len(log_s)):
        done, this = slice(count), slice(count, count + 1)
        correction = Correction(features)
        before, asked = ({name: column[which] for name, column in columns.items()} for which in (done, this))
        correction.observe(features[done], predicted[done], log_s[done], **before)
        (mean,), (deviation,) = correction.corrected(features[this], predicted[this], doubt[this], **asked)
        best_s, time_s = float(np.exp(log_s[done].min())), float(np.exp(log_s[count]))
        yield Promise(
            float(deviation), float((log_s[count] - mean) / deviation),
            expected_improvement(float(mean), float(deviation), best_s), max(1.0 - time_s / best_s, 0.0),
        )  # fmt: skip
