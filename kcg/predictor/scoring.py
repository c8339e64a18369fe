"""Other people's predictions, scored on the test part of a dataset as the shipped predictor is (`docs/predictor.md`).

A file of predictions has a row for each schedule: the columns of `IDENTITY` that tell it from others, as the dataset
has them, and `predicted_us`, microseconds. It may have more rows than are judged: those of the pool that was drawn
before any predictor was trained (`kcg.predictor.training_data.POOL`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kcg.cli import counted
from kcg.dataset.bounds import check_bounds
from kcg.dataset.reading import Export, read_export
from kcg.dataset.splits import TEST
from kcg.errors import DataError, UsageError
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.features import Array
from kcg.predictor.metrics import Floors, floors_of, log_error, mape, scores, summary
from kcg.predictor.training_data import TrainingData, load

IDENTITY = ("region_id", "schedule_body", "variables", "target")
"""What tells a row from others. Of the last two a file has those in which the rows to be judged differ."""
NEEDED = IDENTITY[:2]
PREDICTED = "predicted_us"
ALL = "all"
METRICS = {
    "pairwise": "pairwise",
    "kendall_tau": "Kendall τ",
    "top1": "top-1",
    "top1_mean": "top-1, unweighted",
    "top5": "top-5",
    "top5_mean": "top-5, unweighted",
    "log_error": "log error",
    "mape": "MAPE",
}
"""What is shown of a summary, and its words."""

Key = tuple[str, ...]

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Pool:
    """The rows on which predictions are judged."""

    export: Export
    data: TrainingData  # m rows
    floors: Floors
    rows: tuple[dict[str, str], ...]  # (m,) their `IDENTITY`

    def scored(self, log_predicted: Array) -> dict[str, dict[str, float]]:
        """The figures of (m,) predictions in log-seconds: of `ALL`, and of each workload by its name."""
        families = np.array(self.data.families)[self.data.kernel]
        found = {ALL: self._scored(log_predicted, np.ones(len(self.data), bool))}
        return found | {str(f): self._scored(log_predicted, families == f) for f in sorted(set(families))}

    def _scored(self, log_predicted: Array, chosen: Array) -> dict[str, float]:
        data, predicted = self.data.take(chosen), log_predicted[chosen]
        found = scores(predicted, data.log_s, data.kernel, data.run, self.floors)
        error = (predicted - data.log_s)[~data.failed]
        return summary(found, data.calls) | {"log_error": log_error(error), "mape": mape(error)}


def pool_of(folder: Path, split: str) -> Pool:
    """The pool of the test part of a split. Raises DataError where the export cannot be trusted, or has none."""
    export, data = read_export(folder), load(folder, part=(split, TEST), pool=True)
    columns = export.table(PROTOCOL, IDENTITY).take(data.row).to_pylist()
    return Pool(export, data, floors_of(export), tuple(columns))


# ---- reading a file


def read_predictions(path: Path) -> dict[str, list[Any]]:
    """`PREDICTED` and those of `IDENTITY` that a Parquet or CSV file has, as columns. Raises DataError."""
    import pyarrow as pa

    if not path.is_file():
        raise UsageError(f"there is no file {path}: give the Parquet or CSV file of your predictions")
    try:
        found = _csv(path) if path.suffix.lower() == ".csv" else _parquet(path)
        columns = {name: found[name].cast(pa.float64() if name == PREDICTED else pa.string()) for name in found}
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} cannot be read ({line}): write Parquet, or CSV with a header") from error
    if missing := [name for name in (*NEEDED, PREDICTED) if name not in columns]:
        raise DataError(f"{path} has no column {missing[0]}: it needs {', '.join(NEEDED)} and {PREDICTED}")
    return {name: column.to_pylist() for name, column in columns.items()}


def _parquet(path: Path) -> dict[str, Any]:
    from pyarrow import parquet

    check_bounds(path)
    with parquet.ParquetFile(path) as file:
        table = file.read(columns=[name for name in (*IDENTITY, PREDICTED) if name in file.schema_arrow.names])
    return {name: table[name] for name in table.column_names}


def _csv(path: Path) -> dict[str, Any]:
    import pyarrow as pa
    from pyarrow import csv

    types = dict.fromkeys(IDENTITY, pa.string()) | {PREDICTED: pa.float64()}
    table = csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=types))
    return {name: table[name] for name in (*IDENTITY, PREDICTED) if name in table.column_names}


# ---- matching it with what is judged


@dataclass(frozen=True)
class Matched:
    """Predictions of a pool: `log_s` (m,) is NaN only for schedules that failed. `notes` are lines for the user."""

    log_s: Array
    notes: tuple[str, ...]


def match(pool: Pool, found: dict[str, list[Any]], path: Path) -> Matched:
    """The predictions of `read_predictions` for the rows of a pool. Raises DataError for rows that are missing, that
    are given twice with different times, and whose prediction is no time above 0."""
    names = [name for name in IDENTITY if name in found]
    _check_names(pool, names, path)
    wanted = [tuple(row[name] for name in names) for row in pool.rows]
    timed = {key for key, failed in zip(wanted, pool.data.failed, strict=True) if not failed}
    given: dict[Key, float] = {}
    twice, bad, extra = [], [], 0
    known = set(wanted)
    for key, value in zip(zip(*(found[name] for name in names), strict=True), found[PREDICTED], strict=True):
        if key not in known:
            extra += 1
        elif value is None or not (math.isfinite(value) and value > 0):
            bad.append(key)
        elif given.setdefault(key, value) != value:
            twice.append(key)
    missing = sorted(timed - given.keys() - set(bad))
    lines = [*_wrong("no prediction", missing), *_wrong("two different predictions", twice)]
    lines += _wrong("a prediction that is no time above 0", [key for key in bad if key in timed])
    if lines:
        raise DataError(f"{path}: {'; '.join(lines)}")
    notes = (f"{counted(extra, 'row')} of {path.name} that are not judged are left out",) if extra else ()
    return Matched(np.log([given.get(key, math.nan) for key in wanted]) - math.log(1e6), notes)


def _check_names(pool: Pool, names: Sequence[str], path: Path) -> None:
    """Raises DataError where rows to be judged differ in columns alone that the file does not have, with those that
    tell them apart: one of them if one does."""
    absent = [name for name in IDENTITY if name not in names]

    def distinct(more: Sequence[str]) -> int:
        return len({tuple(row[name] for name in (*names, *more)) for row in pool.rows})

    if distinct(()) < (rows := distinct(absent)):
        needed = next(([name] for name in absent if distinct([name]) == rows), absent)
        noun = "column" if len(needed) == 1 else "columns"
        raise DataError(
            f"{path} has no {noun} {' and '.join(needed)}, in which alone rows to be judged differ: add it as the "
            "dataset has it"
        )


def _wrong(what: str, keys: Sequence[Key]) -> Iterator[str]:
    if keys:
        yield f"{counted(len(keys), 'row')} with {what}, the first {keys[0][0][:12]} {keys[0][1]}"


# ---- the shipped predictor beside it


def shipped_scores(pool: Pool, split: str) -> tuple[str, dict[str, dict[str, float]] | None]:
    """The name of the predictor that comes with kcg for the dataset's targets, and what it reaches on a pool. Where
    there is none, or it saw rows of the pool in training, the reason and None."""
    from kcg.predictor.checkpoint import read
    from kcg.predictor.choice import shipped_path
    from kcg.predictor.ensemble import averaged, outputs_by

    paths = {shipped_path(target) for target in pool.export.targets().values()}
    path = paths.pop() if len(paths) == 1 else None
    if path is None:
        return "kcg comes with no predictor for these targets", None
    checkpoint = read(path)
    if checkpoint.about.split != split:
        return f"{checkpoint.about.name}, which comes with kcg, was trained on a part of these rows", None
    log_s = averaged(outputs_by(checkpoint.nets, pool.data, np.arange(len(pool.data))))["rank"]
    return checkpoint.about.name, pool.scored(log_s)


# ---- for people


def finite(found: Any) -> Any:
    """Figures as JSON has them: no figure is null, where there were no pairs to judge."""
    if isinstance(found, dict):
        return {name: finite(value) for name, value in found.items()}
    return found if math.isfinite(found) else None


def table(title: str, by: dict[str, dict[str, dict[str, float]]]) -> Table:
    """Every workload and all of them, a line for each of those who predicted: `by` name, then as of `Pool.scored`."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=Text(title), title_justify="left")
    made.add_column("workload (kernels)", overflow="fold")
    made.add_column("predictor", no_wrap=True)
    for words in METRICS.values():
        made.add_column(words, justify="right")
    first = next(iter(by.values()))
    for workload in [*(name for name in first if name != ALL), ALL]:
        for place, (name, found) in enumerate(by.items()):
            head = "" if place else f"{workload} ({found[workload]['kernels']:.0f})"
            cells = [f"{found[workload][metric]:.3f}" for metric in METRICS]
            made.add_row(*(Text(cell) for cell in (head, name, *cells)))
        made.add_section()
    return made
