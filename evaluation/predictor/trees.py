"""Gradient-boosted trees on pooled graphs (LightGBM): a baseline, what a network has to beat.

A tree takes no graph, so nodes and edges are pooled to their least, greatest and sum; everything else is the same.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kcg.errors import DataError
from kcg.predictor.checkpoint import TREES
from kcg.predictor.features import ACCESS_FEATURES, Array, Graphs
from kcg.predictor.header import check_header, read_tensors
from kcg.predictor.training_data import TrainingData
from kcg.training.fit import FitSettings, rows_of_kernels, validation_rows

MOST_TEXT_BYTES = 64 << 20  # of an unpacked model: more is no model of ours


@dataclass(frozen=True)
class TreeSettings:
    """How the trees are grown."""

    rounds: int = 600
    leaves: int = 63
    learning_rate: float = 0.06
    least_rows: int = 20  # of a leaf
    features: float = 0.4  # share of the features of each tree
    rows: float = 0.7  # share of the rows of each tree
    patience: int = 50  # rounds without a better validation score
    seed: int = 0
    threads: int = 0  # 0: all cores


def pooled(graphs: Graphs, kernel_x: Array, target_x: Array) -> Array:
    """(n, features): the numbers of schedule, kernel (n, …) and target (n, …), and the pooled nodes and edges."""
    stores = graphs.accesses[:, ACCESS_FEATURES.index("store")] > 0
    owner = np.repeat(np.arange(len(graphs)), graphs.n_accesses)
    parts = [graphs.schedule, kernel_x, target_x]
    for chosen in (stores, ~stores):
        counts, rows = np.bincount(owner[chosen], minlength=len(graphs)), graphs.accesses[chosen]
        parts += [_reduced(rows, counts, how) for how in (np.maximum, np.minimum, np.add)]
    parts += [_reduced(graphs.groups, graphs.n_groups, how) for how in (np.maximum, np.add)]
    parts.append(_reduced(graphs.access_edges, graphs.n_axes * graphs.n_accesses, np.add))
    return np.concatenate(parts, 1).astype(np.float32)


def tree_rows(data: TrainingData, index: Array) -> Array:
    """(n, features) what trees see of some rows of a dataset."""
    kernel = data.kernel[index]
    return pooled(data.graphs.take(index), data.kernel_x[kernel], data.target_x[data.target[kernel]])


def _reduced(rows: Array, counts: Array, how: Any) -> Array:
    """(n, columns): rows of each graph, one after another, reduced to one; zero where a graph has none."""
    made = np.zeros((len(counts), rows.shape[1]), np.float32)
    some = counts > 0
    if some.any():
        made[some] = how.reduceat(rows, (np.cumsum(counts) - counts)[some], axis=0)
    return made


class Trees:
    """A trained ensemble of trees that predicts the natural logarithm of runtimes in seconds."""

    def __init__(self, booster: Any) -> None:
        self._booster = booster

    @classmethod
    def train(
        cls,
        x: Array,
        log_s: Array,
        kernel: Array,
        settings: TreeSettings,
        validation: tuple[Array, Array] | None = None,
    ) -> Trees:
        """Grow trees on pooled features (n, …). A kernel's weight is the square root of its number of rows."""
        import lightgbm

        _, place, counts = np.unique(kernel, return_inverse=True, return_counts=True)
        parameters = {
            "objective": "regression",
            "learning_rate": settings.learning_rate,
            "num_leaves": settings.leaves,
            "min_data_in_leaf": settings.least_rows,
            "feature_fraction": settings.features,
            "bagging_fraction": settings.rows,
            "bagging_freq": 1,
            "seed": settings.seed,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": settings.threads,
            "verbose": -1,
        }
        training = lightgbm.Dataset(x, log_s, weight=1 / np.sqrt(counts[place]))
        callbacks, sets = [], []
        if validation is not None and len(validation[0]):
            sets = [lightgbm.Dataset(*validation, reference=training)]
            callbacks = [lightgbm.early_stopping(settings.patience, verbose=False)]
        return cls(lightgbm.train(parameters, training, settings.rounds, valid_sets=sets, callbacks=callbacks))

    def predict(self, x: Array, *, threads: int = 1) -> Array:
        """(n,) the natural logarithm of the seconds of each row."""
        if not len(x):
            return np.zeros(0)
        return np.asarray(self._booster.predict(x, num_threads=threads), np.float64)

    @property
    def rounds(self) -> int:
        return int(self._booster.current_iteration())

    def packed(self) -> bytes:
        """LightGBM's own text format, compressed; the same for the same trees."""
        best = self._booster.best_iteration or None
        return gzip.compress(self._booster.model_to_string(num_iteration=best).encode(), 9, mtime=0)

    @classmethod
    def unpacked(cls, packed: bytes) -> Trees:
        """The inverse of `packed`. Raises DataError."""
        import io

        import lightgbm

        try:
            with gzip.open(io.BytesIO(packed)) as file:
                text = file.read(MOST_TEXT_BYTES + 1)
            if len(text) > MOST_TEXT_BYTES:
                raise ValueError("it is too large")
            return cls(lightgbm.Booster(model_str=text.decode()))
        except (OSError, EOFError, ValueError, lightgbm.basic.LightGBMError) as error:
            raise DataError(f"the trees of a checkpoint cannot be read: {error}") from error


def grown(data: TrainingData, fit: FitSettings, settings: TreeSettings | None = None, *, threads: int = 0) -> Trees:
    """Trees of the training part, with the seed of `fit`, stopped by the validation part. Raises DataError where
    nothing can be trained on."""
    index = np.concatenate([np.zeros(0, np.int64), *rows_of_kernels(data, fit)])
    training = index[~data.failed[index]]
    if not len(training):
        raise DataError(f"the split by {fit.split} leaves no schedule with a time to train on")
    index = validation_rows(data, fit.split)
    timed = index[~data.failed[index]]
    settings = settings or TreeSettings()
    return Trees.train(
        tree_rows(data, training),
        data.log_s[training],
        data.kernel[training],
        replace(settings, seed=fit.seed, threads=threads or settings.threads),
        (tree_rows(data, timed), data.log_s[timed]) if len(timed) else None,
    )


def read_trees(path: Path) -> Trees:
    """The trees of a checkpoint of before, which may hold nothing else. Raises DataError."""
    header, tensors = read_tensors(path, "checkpoint")
    check_header(path, header)
    if TREES not in tensors:
        raise DataError(f"{path} holds no trees")
    return Trees.unpacked(tensors[TREES].tobytes())
