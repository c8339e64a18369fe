"""The baseline of gradient-boosted trees: it learns, comes back from a file as it was, and what is none is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from evaluation.predictor.places import CHECKPOINTS
from evaluation.predictor.trees import Trees, TreeSettings, grown, read_trees, tree_rows
from kcg.errors import DataError
from kcg.predictor.features import FEATURES_VERSION
from kcg.predictor.header import FORMAT
from kcg.predictor.metrics import Floors, scores, summary
from kcg.predictor.training_data import TrainingData, load, pool_rows
from kcg.training.fit import FitSettings
from tests.small_dataset import small_dataset

SETTINGS = TreeSettings(rounds=60, leaves=15, least_rows=5, threads=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    families = {"norms": 8, "gpt2": 8, "activations": 6, "softmax": 8, "bert": 8, "flux": 8}
    path = small_dataset(tmp_path_factory.mktemp("small"), families=families)
    return load(path, cache=tmp_path_factory.mktemp("cache"), workers=1)


@pytest.fixture(scope="module")
def trees(data: TrainingData) -> Trees:
    return grown(data, FitSettings(), SETTINGS)


def test_they_rank_kernels_that_they_never_saw_better_than_chance(data: TrainingData, trees: Trees) -> None:
    index = pool_rows(data, "workload", "test")
    random = np.random.default_rng(0).normal(size=len(index))
    found, chance = (
        summary(scores(rank, data.log_s[index], data.kernel[index], data.run[index], Floors()), data.calls)["pairwise"]
        for rank in (trees.predict(tree_rows(data, index)), random)
    )
    assert found > 0.6 and found > chance + 0.1
    assert len(trees.predict(tree_rows(data, index[:0]))) == 0
    with pytest.raises(DataError, match="no schedule with a time"):
        grown(data.take(data.failed), FitSettings(), SETTINGS)


def test_a_file_of_trees_predicts_what_they_did(data: TrainingData, trees: Trees, tmp_path: Path) -> None:
    path, rows = tmp_path / "trees.safetensors", tree_rows(data, np.arange(50))
    packed = torch.frombuffer(bytearray(trees.packed()), dtype=torch.uint8)
    header = {"kcg": json.dumps({"format": FORMAT, "features_version": FEATURES_VERSION})}
    save_file({"trees": packed}, path, header)
    found = read_trees(path)
    assert np.array_equal(found.predict(rows), trees.predict(rows)) and found.packed() == trees.packed()
    save_file({"trees": packed[:100].clone()}, path, header)
    with pytest.raises(DataError, match="trees of a checkpoint cannot be read"):
        read_trees(path)
    save_file({"other": packed}, path, header)
    with pytest.raises(DataError, match="holds no trees"):
        read_trees(path)


def test_those_that_came_before_can_be_read() -> None:
    paths = sorted(CHECKPOINTS.glob("*-trees.safetensors"))
    assert paths and all(read_trees(path).rounds > 10 for path in paths)
