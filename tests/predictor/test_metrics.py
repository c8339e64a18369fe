"""Scores of rankings, against their definitions spelled out."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from kcg.predictor.metrics import TOP, Floors, auc, calibration, kernel_scores, scores, summary

NONE = Floors(within=(0.0,) * 5, across=(0.0,) * 5)


def of(predicted: list[float], seconds: list[float], run: list[int] | None = None, floors: Floors = NONE) -> object:
    runs = np.array(run or [0] * len(seconds))
    return kernel_scores(0, np.array(predicted), np.log(np.array(seconds)), runs, floors)


def test_right_wrong_and_no_opinion() -> None:
    times = [1e-3, 2e-3, 4e-3, 8e-3]
    right, wrong, none = of([1, 2, 3, 4], times), of([4, 3, 2, 1], times), of([0, 0, 0, 0], times)
    assert (right.pairwise, right.tau, right.pairs) == (1.0, 1.0, 6)
    assert (wrong.pairwise, wrong.tau) == (0.0, -1.0)
    assert (none.pairwise, none.tau) == (0.5, 0.0)
    assert right.top_s[0] == right.best_s == pytest.approx(1e-3) and wrong.top_s[0] == pytest.approx(8e-3)


def test_pairs_within_the_noise_are_dropped_by_duration_and_by_run() -> None:
    floors = Floors(within=(0.5, 0.1, 0.1, 0.1, 0.1), across=(0.5, 0.4, 0.4, 0.4, 0.4))
    assert of([1, 2], [10e-6, 12e-6], floors=floors).pairs == 0
    assert math.isnan(of([1, 2], [10e-6, 12e-6], floors=floors).pairwise)
    assert of([1, 2], [50e-6, 60e-6], floors=floors).pairs == 1
    assert of([1, 2], [50e-6, 60e-6], [0, 1], floors).pairs == 0
    assert of([1, 2], [50e-6, 90e-6], [0, 1], floors).pairs == 1


def test_tau_is_kendalls() -> None:
    from scipy.stats import kendalltau

    rng = np.random.default_rng(0)
    predicted, times = rng.normal(size=40), np.exp(rng.normal(size=40))
    assert of(list(predicted), list(times)).tau == pytest.approx(kendalltau(predicted, times).statistic)


def test_random_picks_are_the_mean_over_all_choices() -> None:
    times = [random.Random(3).random() + 0.1 for _ in range(9)]
    found = of([0] * 9, times)
    for k, value in zip(TOP, found.random_s, strict=True):
        choices = list(itertools.combinations(times, min(k, 9)))
        assert value == pytest.approx(sum(map(min, choices)) / len(choices))


def test_kernels_are_scored_apart_and_weighed_alike() -> None:
    log_s = np.log([1.0, 2.0, 3.0, 1.0, 2.0, math.nan, 5.0])
    kernel, run = np.array([0, 0, 0, 1, 1, 1, 2]), np.zeros(7, int)
    found = scores(np.array([1.0, 2.0, 3.0, 2.0, 1.0, 0.0, 0.0]), log_s, kernel, run, NONE)
    assert [s.kernel for s in found] == [0, 1], "one schedule ranks nothing; a failure has no time"
    values = summary(found, np.array([1, 3, 1]))
    assert values["pairwise"] == 0.5 and values["kernels"] == 2
    assert values["top1"] == pytest.approx((1 * 1.0 + 3 * 1.0) / (1 * 1.0 + 3 * 2.0)), "weighted by calls"
    assert values["top1_mean"] == pytest.approx(math.sqrt(1.0 * 0.5))
    assert values["random_top1_mean"] < 1 and values["top5"] == 1.0


def test_auc() -> None:
    assert auc(np.array([0.1, 0.2, 0.9]), np.array([False, False, True])) == 1.0
    assert auc(np.array([1.0, 1.0]), np.array([False, True])) == 0.5
    assert math.isnan(auc(np.array([1.0]), np.array([True])))


def test_calibration_of_a_normal_error() -> None:
    z = np.random.default_rng(0).normal(size=20000)
    shares = calibration(z)
    assert [shares[n] for n in ("50", "80", "95")] == pytest.approx([0.5, 0.8, 0.95], abs=0.02)
    assert calibration(z * 3)["95"] < 0.6
