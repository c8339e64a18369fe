"""Measured schedules to train on: `kcg.data.load("h200")` as Arrow, pandas, `datasets` or torch-geometric.

    import kcg.data

    data = kcg.data.load("h200")           # of a checkout; or a path; or "OWNER/NAME@REVISION" of the Hugging Face Hub
    frame = data.to_pandas()               # a row for each schedule that was measured: its family, its time, …
    parts = data.to_datasets()             # train, validation and test, no kernel in two of them
    graphs = data.to_pyg("train")          # what the predictor sees, with the logarithm of the runtime
    table = data.to_arrow(parameters=True)  # with a column for each parameter of tile programs

A row of the table is one schedule that was timed, or how it failed. `COLUMNS` says what its columns mean. Importing
this module loads neither pandas nor torch; `pip install 'kcg[data]'` brings pandas and `datasets`.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import typing
import weakref
from collections.abc import Iterator, Mapping, Sequence
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
from kcg.errors import DataError, KcgError, ScheduleError, UnknownName, UsageError
from kcg.kernel.kinds import KINDS, HasParameters, kind_named
from kcg.measure.protocol import PROTOCOL
from kcg.types import Schedule, Status

if TYPE_CHECKING:
    from kcg.predictor.pyg import ScheduleGraphs

__all__ = ["COLUMNS", "Data", "load", "names"]

FAMILY: Final = "family"
OF_REGIONS: Final = {
    FAMILY: "the workload that the region is of, without its preset",
    "n_kernels": "how many kernels the region has",
    "operations": "arithmetic of one call, of all its kernels",
    "bytes": "least memory traffic of one call, of all its kernels, each by itself",
}
OF_ROWS: Final = {
    "device": "the model of the hardware",
    "binary_hash": "the program: the first 16 hex digits of the SHA-256 of its binary; null where there is none",
}
COLUMNS: Final[dict[str, str]] = (
    OF_REGIONS
    | OF_ROWS
    | {
        column: words
        for columns, words in OF_FILES[MEASUREMENTS].items()
        for column in columns.split(", ")
        if column != "timing"  # a row of another file
    }
)
"""What each column of the table means, by its name."""

_ARROW: Final = {FAMILY: "string", "n_kernels": "int32", "operations": "float64", "bytes": "float64"}
_READABLE: Final = (FAMILY, "median_s", "status", "schedule_body", "n_samples", *OF_REGIONS, "device")
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

    def to_arrow(self, columns: Sequence[str] | None = None, *, parameters: bool = False) -> Any:
        """The table as `pyarrow.Table`: all rows under today's timing protocol, the columns that are named or all of
        `COLUMNS`. Texts that come again and again are dictionaries. With `parameters` there is a column for each of
        `parameter_names`, too; some of them may be named instead. Raises UnknownName, DataError."""
        import pyarrow.compute as pc

        wanted = list(_column_names() if columns is None else columns)
        known = parameter_names() if parameters or not COLUMNS.keys() >= set(wanted) else []
        wanted += [name for name in known if parameters and name not in wanted]
        for name in wanted:
            if name not in COLUMNS and name not in known:
                raise UnknownName("column", name, [*COLUMNS, *known])
        of_others = dict.fromkeys(OF_REGIONS, ("region_id",)) | dict.fromkeys(known, ("schedule_kind", "schedule_body"))
        of_others |= {"median_s": ("median_s", "status"), "device": ("target",)}  # what each follows from
        stored = dict.fromkeys(column for name in wanted for column in of_others.get(name, (name,)))
        table = self.export.table(PROTOCOL, list(stored))
        if of_regions := [name for name in OF_REGIONS if name in wanted]:
            values = self._of_regions(of_regions)
            for name in of_regions:
                table = table.append_column(name, _looked_up(table["region_id"], values[name], _ARROW[name]))
        if "device" in wanted:
            models = {fingerprint: target.model for fingerprint, target in self.export.targets().items()}
            table = table.append_column("device", _looked_up(table["target"], models, "string"))
        if "binary_hash" in wanted:
            table = table.set_column(table.column_names.index("binary_hash"), "binary_hash", _hex(table["binary_hash"]))
        if "median_s" in wanted:
            timed = pc.equal(table["status"].cast("string"), str(Status.OK))
            seconds = pc.if_else(timed, table["median_s"], None)  # a failure has no time
            table = table.set_column(table.column_names.index("median_s"), "median_s", seconds)
        if of_kinds := [name for name in wanted if name in known]:
            for name, column in self._parameters(table, of_kinds):
                table = table.append_column(name, column)
        return table.select(wanted)

    def _of_regions(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The values of these columns of `OF_REGIONS`, each by the region's id; None where they are not known."""
        found: dict[str, dict[str, Any]] = {}
        if FAMILY in names:
            found[FAMILY] = dict(families_of(self.export.workloads()))
        if len(names) > len(found):
            of_kernels = self.kernels(["id", "operations", "bytes"]).to_pylist()
            costs = {row["id"]: row for row in of_kernels}
            members = {region: [kernel.id for kernel in r.kernels] for region, r in self.export.regions().items()}
            members |= {kernel: [kernel] for kernel in costs}
            found["n_kernels"] = {region: len(kernels) for region, kernels in members.items()}
            for name in ("operations", "bytes"):
                each = {region: [costs[k][name] for k in kernels] for region, kernels in members.items()}
                found[name] = {region: None if None in values else sum(values) for region, values in each.items()}
        return found

    def _parameters(self, table: Any, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """These parameters of each row's schedule; null where its kind does not have them."""
        import pyarrow as pa

        schedules = list(zip(table["schedule_kind"].to_pylist(), table["schedule_body"].to_pylist(), strict=True))
        kinds = {name: kind for name in KINDS if isinstance(kind := kind_named(name), HasParameters)}
        read: dict[tuple[str, str], dict[str, Any]] = {}
        for kind, body in set(schedules):
            if kind in kinds:
                try:
                    read[kind, body] = kinds[kind].parameters(Schedule(kind, body))
                except ScheduleError as error:
                    raise DataError(
                        f"{self.export.folder}: a schedule of kind {kind} cannot be read ({error})"
                    ) from error
        types = {name: of_type for kind in kinds.values() for name, of_type in kind.parameter_types().items()}
        for name in names:
            values = [read.get(schedule, {}).get(name) for schedule in schedules]
            yield name, pa.array(values, _arrow_type(types[name]))

    def kernels(self, columns: Sequence[str] | None = None) -> Any:
        """The kernels as `pyarrow.Table`, whose `id` is the `region_id` of rows: the columns of `kernels.parquet`."""
        return self.export.kernels_table(columns)

    def to_pandas(self, columns: Sequence[str] | None = None, *, parameters: bool = False) -> Any:
        """`to_arrow` as `pandas.DataFrame`; texts that come again and again are categories. Raises UsageError where
        there is no pandas."""
        _imported("pandas")
        return self.to_arrow(columns, parameters=parameters).to_pandas()

    def to_datasets(
        self, split: str = "workload", columns: Sequence[str] | None = None, *, parameters: bool = False
    ) -> Any:
        """`to_arrow` as `datasets.DatasetDict` of `train`, `validation` and `test` under one of `kcg.dataset.splits`:
        `workload`, `kernel`, `twin` or `alike`. A kernel's rows are all in one part; of `twin` all kernels that differ
        in sizes only, of `alike` all of one form, data types and rounded extents. Rows that are in no part are left
        out. Raises UsageError where there is no `datasets`."""
        library = _imported("datasets")
        parts = self.parts(split, columns, parameters=parameters)
        return library.DatasetDict({part: library.Dataset(table) for part, table in parts.items()})

    def parts(
        self, split: str = "workload", columns: Sequence[str] | None = None, *, parameters: bool = False
    ) -> dict[str, Any]:
        """`to_datasets` as one `pyarrow.Table` for each part, with plain texts."""
        import pyarrow as pa
        import pyarrow.compute as pc

        of_split = f"split_{_known_split(split)}"
        wanted = [*(_column_names() if columns is None else columns), *(parameter_names() if parameters else ())]
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


def parameter_names() -> list[str]:
    """The columns that parameters of schedules make: those of tile programs, named as the fields of
    `kcg.kernel.tile.parameters.TileParameters`, which says what they mean."""
    kinds = (kind_named(name) for name in KINDS)
    return list(dict.fromkeys(name for k in kinds if isinstance(k, HasParameters) for name in k.parameter_types()))


def _looked_up(keys: Any, values: Mapping[str, Any], of_type: str) -> Any:
    """What stands for each text of a column of dictionaries: texts as such a column again; null for what is missing."""
    import pyarrow as pa

    keys = keys.combine_chunks()
    found = pa.array([values.get(key) for key in keys.dictionary.to_pylist()], pa.type_for_alias(of_type))
    return found.take(keys.indices).dictionary_encode() if of_type == "string" else found.take(keys.indices)


def _hex(hashes: Any) -> Any:
    """Bytes as hex digits, as a column of dictionaries."""
    import pyarrow as pa

    encoded = hashes.combine_chunks().dictionary_encode()
    digits = [one.hex() for one in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(digits, pa.string()))


def _arrow_type(of_type: Any) -> Any:
    """The Arrow type of a parameter's type."""
    import pyarrow as pa

    if arguments := typing.get_args(of_type):
        return pa.list_(_arrow_type(arguments[0]))
    return {bool: pa.bool_(), int: pa.int32(), str: pa.string()}[of_type]


def _column_names() -> list[str]:
    """All columns, those first that a reader wants first, and last those of ids."""
    named = dict.fromkeys([*_READABLE, *FIRST, *measurements_schema().names, *BESIDE, *CHOICE, *OF_CHOICE, *OF_ROWS])
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
