"""Training on tile programs: the same command, told the kind."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from kcg.dataset.reading import read_export
from kcg.errors import DataError, UnknownName
from kcg.kernel.kinds import space_of
from kcg.kernel.tile.seen import WORDS
from kcg.predictor.checkpoint import read
from kcg.predictor.features import widths_of
from kcg.predictor.plans import PlanPredictor
from kcg.predictor.training_data import TrainingData, load
from kcg.training.predictor import TrainingSettings, names_of, train, with_values
from kcg.types import ScheduleKind
from tests.small_dataset import TILES, small_dataset

FAMILIES = {"norms": 4, "softmax": 4, "bert": 4, "flux": 3, "whisper": 2}
SMALL = {"net.kind": "tile", "members": 1, "epochs": 2, "net.hidden": 8, "net.layers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_dataset(tmp_path_factory.mktemp("tiles"), families=FAMILIES, of=TILES)


@pytest.fixture(scope="module")
def data(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return load(folder, kind=ScheduleKind.TILE, cache=tmp_path_factory.mktemp("cache"), workers=1)


def test_rows_of_programs_have_plans_and_what_the_formula_says(data: TrainingData) -> None:
    assert len(data) > 50 and data.graphs.schedule.shape[1] == len(WORDS.whole)
    assert np.isfinite(data.base).all() and (data.base < 0).all()
    some = data.take(np.arange(3))
    assert len(some.base) == 3 and (some.base == data.base[:3]).all()
    error = np.abs(data.base - data.log_s)
    assert float(np.nanmedian(error)) < math.log(4), "seconds, and about those that were measured"


def test_a_checkpoint_of_programs_predicts_them(folder: Path, tmp_path: Path, data: TrainingData) -> None:
    settings = with_values(TrainingSettings(), SMALL)
    assert "net.widths" not in names_of(settings)
    trained = train(folder, tmp_path / "run", settings)
    kept = read(trained.path)
    assert kept.nets[0].settings.widths == widths_of(WORDS) and 0 < kept.about.trust <= 1
    export = read_export(folder)
    row = next(r for r in export.measurements(1) if r.schedule.kind == ScheduleKind.TILE)
    space = space_of(export.regions()[row.region_id], export.targets()[row.target], ScheduleKind.TILE)
    (found,) = PlanPredictor(kept).predict(space, [row.schedule])
    assert math.isfinite(found.log_runtime) and found.uncertainty > 0
    assert train(folder, tmp_path / "run", settings).path == trained.path, "what is there is gone on with"
    with pytest.raises(UnknownName, match="kind"):
        with_values(TrainingSettings(), {"net.kind": "tiles"})
    with pytest.raises(DataError, match="nothing is learned"):
        load(folder, kind=ScheduleKind.SOURCE, cache=tmp_path)
