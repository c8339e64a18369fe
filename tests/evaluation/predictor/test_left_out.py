"""Families are left out of training, and figures are of what networks say of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluation.dataset.record import FROZEN
from evaluation.predictor.left_out import (
    average_precision,
    coverage_of,
    failures_of,
    figures_of,
    limit_of,
    parts_of,
    trained_without,
)
from kcg.dataset.splits import PARTS, TRAIN, VALIDATION
from kcg.predictor.metrics import Floors
from kcg.predictor.training_data import TrainingData, load
from kcg.types import ScheduleKind, Status
from tests.small_dataset import TILES, small_dataset

FAMILIES = {"norms": 4, "softmax": 4, "bert": 4, "flux": 3, "whisper": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    folder = small_dataset(tmp_path_factory.mktemp("tiles"), families=FAMILIES, of=TILES)
    return load(folder, kind=ScheduleKind.TILE, cache=tmp_path_factory.mktemp("cache"), workers=1)


def test_each_family_is_left_out_once_and_the_frozen_ones_always(data: TrainingData) -> None:
    parts = parts_of(data.families, 2)
    assert set(parts) == set(FAMILIES) - set(FROZEN) and set(parts.values()) == {0, 1}
    for part in (0, 1):
        mine = trained_without(data, parts, part)
        families = {mine.families[k] for k in mine.kernel}
        assert families == {name for name, own in parts.items() if own != part}
        roles = {PARTS[mine.parts[k, 0]] for k in mine.kernel}
        assert roles == {TRAIN, VALIDATION}


def test_nothing_is_learned_of_regions_of_which_no_workload_is_known(data: TrainingData) -> None:
    """They may be of a family that is left out, or of a frozen one."""
    hidden = replace(data, families=tuple("" if name == "norms" else name for name in data.families))
    parts = parts_of(hidden.families, 2)
    assert set(parts) == set(FAMILIES) - {*FROZEN, "norms"}
    for part in (0, 1):
        mine = trained_without(hidden, parts, part)
        assert "" not in {mine.families[k] for k in mine.kernel}


def test_figures_are_those_of_what_was_told(data: TrainingData) -> None:
    floors = Floors()
    nothing = {"log_sigma": np.zeros(len(data)), "failure": np.zeros(len(data))}
    right = figures_of(data, {"rank": data.log_s, **nothing}, floors)
    assert right["pairwise_uniform"] == right["pairwise_near_best"] == 1.0 and right["coverage_50_as_told"] == 1.0
    formula = figures_of(data, {"rank": data.base, **nothing}, floors)
    assert formula["pairwise_uniform"] == formula["analytic_pairwise_uniform"] < 1.0
    wrong = figures_of(data, {"rank": -data.log_s, **nothing}, floors)
    assert wrong["pairwise_uniform"] == 0.0
    assert average_precision(np.array([3.0, 2.0, 1.0]), np.array([True, False, True])) == pytest.approx(5 / 6, abs=1e-4)
    assert average_precision(np.zeros(2), np.zeros(2, bool)) is None


def test_an_interval_is_as_wide_as_the_other_parts_families_ask_for(data: TrainingData) -> None:
    """Twice as wide as is told of both parts where errors are; what one part is off by does not count for itself."""
    assert limit_of(np.array([1.0, 2.0, 3.0, 100.0]), np.array([0, 0, 0, 1]), 0.5) == 3.0, "every region counts alike"
    rng, kinds = np.random.default_rng(0), np.array(["matmul"] * len(data))
    told = {"rank": np.nan_to_num(data.log_s) + 2.0 * rng.standard_normal(len(data)), "log_sigma": np.zeros(len(data))}
    part = data.kernel % 2
    found = coverage_of(data, told, part, kinds)
    assert found["coverage_80"] == found["coverage_by_kind"]["matmul"]["80"] > 0.5
    worse = np.where(part == 0, 100.0, 1.0) * (told["rank"] - np.nan_to_num(data.log_s))
    other = coverage_of(data, {**told, "rank": np.nan_to_num(data.log_s) + worse}, part, kinds)
    assert other["coverage_95"] < found["coverage_95"], "the other part's limits are too narrow for it"


def test_failures_are_told_by_class_from_what_ran() -> None:
    statuses = np.array([Status.OK, Status.WRONG, Status.OK, Status.RESOURCE])
    found = failures_of(np.array([0.1, 0.9, 0.2, 0.0]), statuses)
    assert found["wrong"] == {"rows": 1, "average_precision": 1.0}
    assert found["resource"]["rows"] == 1 and found["resource"]["average_precision"] == pytest.approx(1 / 3, abs=1e-4)
