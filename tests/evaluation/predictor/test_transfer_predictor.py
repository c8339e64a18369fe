"""A predictor of one target goes on learning on a share of another's data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from evaluation.predictor.transfer import FRESH, TUNED, table_of, transfer
from kcg.errors import DataError
from kcg.predictor.checkpoint import About, Checkpoint
from kcg.predictor.metrics import Floors
from kcg.predictor.network import NetSettings
from kcg.predictor.training_data import TrainingData, load
from kcg.training.fit import STATE, Fit, FitSettings
from kcg.training.network import Net
from tests.small_dataset import small_dataset

SHAPE = NetSettings(hidden=8, layers=1)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    families = {"norms": 10, "softmax": 10, "bert": 6, "flux": 8}
    return small_dataset(tmp_path_factory.mktemp("transfer"), families=families)


@pytest.fixture(scope="module")
def data(folder: Path) -> TrainingData:
    return load(folder, workers=1)


@pytest.fixture(scope="module")
def start(data: TrainingData, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    settings = FitSettings(epochs=1, net=SHAPE)
    nets = [
        Fit(data, replace(settings, seed=seed), tmp_path_factory.mktemp("start"), floors=Floors()).run()
        for seed in range(2)
    ]
    about = About("other", (), (), "workload", ())
    return Checkpoint(about, tuple(net.network() for net in nets))


@pytest.mark.slow
def test_a_share_teaches_what_the_start_did_not_know(folder: Path, start: Checkpoint, tmp_path: Path) -> None:
    lines: list[str] = []
    report = transfer(folder, start, tmp_path, shares=(0.0, 0.5), seeds=2, steps=24, log=lines.append)
    none, half = report["shares"]["0"], report["shares"]["0.5"]
    assert none["rows"] == 0 and FRESH not in none and half["rows"] > 0
    errors = zip(half[TUNED]["log_error"], none[TUNED]["log_error"], strict=True)
    assert all(after < before for after, before in errors)
    assert len(half[FRESH]["pairwise"]) == 2 and len(lines) >= 3
    table = table_of(report)
    assert sum(line.startswith("| 50%") for line in table) == 2 and "2 seeds" in table[-1]
    again = transfer(folder, start, tmp_path, shares=(0.0, 0.5), seeds=2, steps=24)
    assert again["shares"] == report["shares"], "what is trained is not trained again"


def test_training_begins_with_the_numbers_that_it_is_given(
    data: TrainingData, start: Checkpoint, tmp_path: Path
) -> None:
    settings = FitSettings(epochs=2, net=SHAPE)
    fit = Fit(data, settings, tmp_path, floors=Floors(), start=Net.of(start.nets[0]))
    for name, values in start.nets[0].numbers.items():
        np.testing.assert_allclose(fit.net.state_dict()[name].numpy(), values, rtol=1e-6)
    fit.run()
    assert (tmp_path / STATE).exists()
    with pytest.raises(DataError, match="other settings"):
        Fit(data, settings, tmp_path, floors=Floors(), start=Net.of(start.nets[1])).run()
    with pytest.raises(DataError, match="other settings"):
        Fit(data, settings, tmp_path, floors=Floors()).run()
    assert Net(SHAPE).settings == SHAPE
