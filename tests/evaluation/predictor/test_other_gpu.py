"""Choices on a GPU that networks never saw, and what a line through fifty of its rows is worth."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from evaluation.predictor.calibrating import errors_of
from evaluation.predictor.intervals import share_figure
from evaluation.predictor.left_out import rows_of_target
from evaluation.predictor.other_gpu import any_choice, kernels_of, shares_of
from kcg.errors import UsageError
from kcg.predictor.training_data import TrainingData


class Rows:
    """Two regions of four programs, and one of two, which says nothing; the last region is of another GPU."""

    kernel = np.array([0] * 4 + [1] * 4 + [2] * 2)
    log_s = np.log([1.0, 2.0, 4.0, 8.0, 1.0, 1.0, 2.0, 4.0, 1.0, 2.0])
    target = np.array([0, 0, 1])
    targets = ("a", "b")


DATA = cast(TrainingData, Rows())
ALL = np.arange(10)


def test_a_share_is_of_the_program_that_is_expected_to_be_fastest() -> None:
    assert np.exp(shares_of(DATA, ALL, DATA.log_s)).tolist() == [1.0, 1.0]
    assert np.exp(shares_of(DATA, ALL, -DATA.log_s)).tolist() == pytest.approx([1 / 8, 1 / 4])
    assert kernels_of(DATA, ALL) == [0, 1]
    assert np.exp(any_choice(DATA, ALL)).tolist() == pytest.approx([64**-0.25, 8**-0.25])
    found = share_figure([np.log(0.5), np.log(1.0)])
    assert found["share"] == pytest.approx(0.70711) and found["interval"] == [0.5, 1.0]


def test_rows_are_of_the_gpus_that_are_named() -> None:
    models = {"a": "NVIDIA H200", "b": "NVIDIA H200, 80 of 132 multiprocessors"}
    assert rows_of_target(DATA, models, "80 of").tolist() == [False] * 8 + [True] * 2
    with pytest.raises(UsageError, match="no GPU of the dataset has 'A100' in its name: NVIDIA H200, "):
        rows_of_target(DATA, models, "A100")


def test_a_line_of_half_of_the_families_is_asked_about_the_other_half() -> None:
    rng = np.random.default_rng(0)
    predicted, families = rng.uniform(-12, -6, 400), np.array([f"family {place % 8}" for place in range(400)])
    found: dict[str, Any] = errors_of(predicted, predicted + 0.4 + rng.normal(0, 0.01, 400), families)
    assert found["before"] == pytest.approx(0.4, abs=0.01) and found["after"] < 0.05 and found["change_95"][1] < 0
