"""Intervals hold the value, and are as wide as a sample is small."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.predictor.intervals import half_width, interval
from kcg.predictor.metrics import Floors, scores, summary

NONE = Floors(within=(0.0,) * 5, across=(0.0,) * 5)


def test_intervals_over_kernels_hold_the_value_and_shrink() -> None:
    rng = np.random.default_rng(1)

    def made(kernels: int) -> tuple[float, float, float]:
        kernel = np.repeat(np.arange(kernels), 8)
        log_s = rng.normal(size=len(kernel))
        found = scores(log_s + rng.normal(size=len(kernel)), log_s, kernel, np.zeros(len(kernel), int), NONE)
        low, high = interval(found, np.ones(kernels), "pairwise")
        return low, summary(found, np.ones(kernels))["pairwise"], high

    few, many = made(12), made(200)
    assert few[0] < few[1] < few[2] and many[0] < many[1] < many[2]
    assert many[2] - many[0] < few[2] - few[0]


def test_the_interval_over_seeds_is_students() -> None:
    assert half_width([1.0]) == 0.0
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.30265 / 3**0.5, rel=1e-4), "t for two degrees of freedom"
