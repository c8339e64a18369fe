"""Measured schedules to train on: `kcg.data.load("h200")` as Arrow, pandas, `datasets` or torch-geometric.

    import kcg.data

    data = kcg.data.load("h200")           # of a checkout; or a path; or "OWNER/NAME@REVISION" of the Hugging Face Hub
    frame = data.to_pandas()               # a row for each schedule that was measured: its family, its time, …
    parts = data.to_datasets()             # train, validation and test, no kernel in two of them
    graphs = data.to_pyg("train")          # what the predictor sees, with the logarithm of the runtime

A row of the table is one schedule that was timed, or how it failed. `COLUMNS` says what its columns mean. Importing
this module loads neither pandas nor torch; `pip install 'kcg[data]'` brings pandas and `datasets`.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kcg.cli import counted, pip_install
from kcg.dataset.columns import BESIDE, CHOICE, FIRST, OF_CHOICE, measurements_schema
from kcg.dataset.export import export
from kcg.dataset.journal import Journal
from kcg.dataset.publish import COLUMNS as OF_FILES
from kcg.dataset.reading import MEASUREMENTS, Export, read_export
from kcg.dataset.sources import names, place_of
from kcg.dataset.splits import PARTS, SPLITS, families_of
from kcg.errors import KcgError, UnknownName, UsageError
from kcg.measure.protocol import PROTOCOL
from kcg.types import Status

if TYPE_CHECKING:
    from kcg.predictor.pyg import ScheduleGraphs

__all__ = ["COLUMNS", "Data", "load", "names"]

FAMILY: Final = "family"
COLUMNS: Final[dict[str, str]] = {FAMILY: "the workload that the kernel is of, without its preset"} | {
    column: words
    for columns, words in OF_FILES[MEASUREMENTS].items()
    for column in columns.split(", ")
    if column != "timing"  # a row of another file
}
"""What each column of the table means, by its name."""

_READABLE: Final = (FAMILY, "median_s", "status", "schedule_body", "n_samples")
_IDS: Final = ("region_id", "target", "toolchain", "run_id")


@dataclass(frozen=True)
class Data:
    """A dataset that was read and whose checksums agree. `export` has all of it (`kcg.dataset.reading.Export`)."""

    name: str
    export: Export

    def __repr__(self) -> str:
        try:
            table, targets = self.to_arrow([FAMILY, "region_id"]), self.export.targets().values()
        except (KcgError, OSError):  # such as a journal's files, which went with another `Data`
            return f"Data({self.name!r})"
        families, kernels = (len(table[name].unique().drop_null()) for name in table.column_names)
        models = ", ".join(sorted({target.model for target in targets}))
        counts = f"{counted(kernels, 'kernel')} of {counted(families, 'family', 'families')}"
        return f"Data({self.name!r}: {len(table):,} schedules of {counts}, on {models})"

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """The table as `pyarrow.Table`: all rows under today's timing protocol, the columns that are named or all of
        `COLUMNS`. Texts that come again and again are dictionaries. Raises UnknownName, DataError."""
        import pyarrow.compute as pc

        wanted = list(_column_names() if columns is None else columns)
        for name in wanted:
            if name not in COLUMNS:
                raise UnknownName("column", name, list(COLUMNS))
        of_others = {FAMILY: "region_id", "median_s": "status"}  # what these two follow from
        stored = [name for name in (*wanted, *(of_others.get(n, n) for n in wanted)) if name != FAMILY]
        table = self.export.table(PROTOCOL, list(dict.fromkeys(stored)))
        if FAMILY in wanted:
            table = table.append_column(FAMILY, self._families(table["region_id"]))
        if "median_s" in wanted:
            timed = pc.equal(table["status"].cast("string"), str(Status.OK))
            seconds = pc.if_else(timed, table["median_s"], None)  # a failure has no time
            table = table.set_column(table.column_names.index("median_s"), "median_s", seconds)
        return table.select(wanted)

    def _families(self, region_ids: Any) -> Any:
        """The family of each row, as a dictionary; null where no workload has the kernel."""
        import pyarrow as pa

        ids, known = region_ids.combine_chunks(), families_of(self.export.workloads())
        names = pa.array([known.get(one) for one in ids.dictionary.to_pylist()], pa.string())
        return names.take(ids.indices).dictionary_encode()

    def kernels(self, columns: Sequence[str] | None = None) -> Any:
        """The kernels as `pyarrow.Table`, whose `id` is the `region_id` of rows: the columns of `kernels.parquet`."""
        return self.export.kernels_table(columns)

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """The table as `pandas.DataFrame`; texts that come again and again are categories. Raises UsageError where
        there is no pandas."""
        _imported("pandas")
        return self.to_arrow(columns).to_pandas()

    def to_datasets(self, split: str = "workload", columns: Sequence[str] | None = None) -> Any:
        """The table as `datasets.DatasetDict` of `train`, `validation` and `test` under one of `kcg.dataset.splits`:
        `workload`, `kernel` or `twin`. A kernel's rows are all in one part; of `twin` all kernels that differ in sizes
        only. Rows that are in no part are left out. Raises UsageError where there is no `datasets`."""
        library = _imported("datasets")
        return library.DatasetDict({part: library.Dataset(table) for part, table in self.parts(split, columns).items()})

    def parts(self, split: str = "workload", columns: Sequence[str] | None = None) -> dict[str, Any]:
        """`to_datasets` as one `pyarrow.Table` for each part, with plain texts."""
        import pyarrow as pa
        import pyarrow.compute as pc

        of_split = f"split_{_known_split(split)}"
        wanted = list(_column_names() if columns is None else columns)
        table = self.to_arrow(list(dict.fromkeys([*wanted, of_split])))
        for i, field in enumerate(table.schema):
            if pa.types.is_dictionary(field.type):
                table = table.set_column(i, field.name, table[field.name].cast(field.type.value_type))
        return {part: table.filter(pc.equal(table[of_split], part)).select(wanted) for part in PARTS}

    def to_pyg(self, part: str = "train", *, split: str = "workload") -> ScheduleGraphs:
        """The graphs that predictors see of the rows of a part that were timed, as a `torch_geometric.data.Dataset`:
        see `kcg.predictor.pyg.ScheduleGraphs`.

        Left out are rows timed again, of a warm cache, and of schedules of other kinds than Opts. The first call
        computes the graphs, a fraction of a millisecond each, and keeps them in the user's cache.
        """
        if part not in PARTS:
            raise UnknownName("part", part, list(PARTS))
        _known_split(split)
        for package in ("torch", "torch_geometric"):
            _found(package, "graphs", ", or take to_arrow()")
        import numpy as np

        from kcg.predictor.pyg import ScheduleGraphs
        from kcg.predictor.training_data import load as load_graphs

        rows = load_graphs(self.export.folder, part=(split, part))
        return ScheduleGraphs(rows, np.arange(len(rows)))


def load(source: str | Path) -> Data:
    """A dataset: by its name in a checkout (`names`), as the path of an export or a journal, or of the Hugging Face Hub
    as `OWNER/NAME@REVISION`, the revision with all 40 hex digits, downloaded once into the cache of the Hub's client.

    Raises UsageError, UnknownName where there is none, DataError where it cannot be trusted or the Hub not be reached.
    """
    _found("pyarrow", "data")
    place = place_of(source)
    if place.is_dir():
        return Data(str(source), read_export(place))
    with Journal.open(place, create=False, read_only=True) as journal:
        folder = tempfile.mkdtemp(prefix="kcg-data-")
        export(journal, folder)
    data = Data(str(source), read_export(folder))
    weakref.finalize(data, shutil.rmtree, folder, ignore_errors=True)
    return data


def _column_names() -> list[str]:
    """All columns, those first that a reader wants first, and last those of ids."""
    named = dict.fromkeys([*_READABLE, *FIRST, *measurements_schema().names, *BESIDE, *CHOICE, *OF_CHOICE])
    return [name for name in (*(n for n in named if n not in _IDS), *_IDS) if name in COLUMNS]


def _known_split(split: str) -> str:
    if split not in SPLITS:
        raise UnknownName("split", split, list(SPLITS))
    return split


def _imported(package: str) -> Any:
    """An optional package. Raises UsageError where it is missing."""
    _found(package, "data", ", or take to_arrow()")
    return importlib.import_module(package)


def _found(package: str, extra: str, other: str = "") -> None:
    """Raises UsageError where an optional package is missing, with what else may be done."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:  # a folder of that name, as a checkout has one
        raise UsageError(f"{package} is not installed: {pip_install(extra)}{other}")
