"""Reading an export: its files once their checksums agree, row by row as nouns, or whole as columns.

Nothing of an export is trusted: columns have the types of the schema, ids are hashed again, every row is checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kcg.dataset.columns import (
    BLOCK,
    CLOCK,
    SCHEMA_VERSION,
    TEXTS,
    kernels_schema,
    measurements_schema,
    timings_schema,
)
from kcg.dataset.records import (
    ROW_ERRORS,
    Record,
    Run,
    record_from_json,
    region_from_json,
)
from kcg.dataset.rows import TIMINGS, Timings, medians, record_of, values_of
from kcg.errors import DataError
from kcg.kernel.symbolic import merged
from kcg.types import (
    Kernel,
    Measurement,
    Region,
    Target,
    Toolchain,
    Workload,
    WorkloadCall,
    canonical_json,
)

CHECKSUMS = "checksums.json"
KERNELS, MEASUREMENTS = "kernels.parquet", "measurements.parquet"
FILES = (KERNELS, MEASUREMENTS, "runs.json", "targets.json", TIMINGS, "toolchains.json", "workloads.json")
OPTIONAL_FILES = ("README.md", "replay.parquet")
"""What other parts of kcg add to an export; checked where `checksums.json` lists them."""

T = TypeVar("T")
Skip = Callable[[str], None]


@dataclass(frozen=True)
class Export:
    """An export whose checksums agree. It answers the same questions as a Journal; DataError where a row is wrong."""

    folder: Path
    checksums: Mapping[str, str]

    def protocols(self) -> list[int]:
        """The versions of the protocol that have measurements."""
        found = {p for batch in self._batches(MEASUREMENTS, ["protocol"]) for p in values_of(batch.column(0))}
        return sorted(found - {None})  # a row without one is wrong, as `records` says

    def measurements(self, protocol: int) -> Iterator[Measurement]:
        """Every measurement under one protocol, by region, target, toolchain, schedule, run and trial."""
        return (r.measurement for r in self.records(protocol))

    def records(
        self, protocol: int, *, skip: Skip | None = None, regions: Collection[str] | None = None
    ) -> Iterator[Record]:
        """Like `measurements`, with the time at which each was recorded. About 30 µs each; those of some `regions` only
        where they are named.

        What is rounded in them says `kcg.dataset.columns.as_exported`. A row that is wrong raises DataError; with
        `skip`, that is told what is wrong with it, and reading goes on.
        """
        import pyarrow as pa

        names = measurements_schema().names
        place, version = names.index("timing"), names.index("protocol")
        timings, first = self._timings(), 0
        for batch in self._batches(MEASUREMENTS, names):
            places, last = list(range(first, first + len(batch))), first + len(batch)
            if regions is not None:
                chosen = [i for i, region in enumerate(values_of(batch["region_id"])) if region in regions]
                batch, places = batch.take(pa.array(chosen, type=pa.int64())), [first + i for i in chosen]
            rows = list(zip(*(values_of(column) for column in batch.columns), strict=True))
            numbers = sorted({row[place] for row in rows if row[place] is not None and 0 <= row[place] < len(timings)})
            timed = Timings(timings.take(pa.array(numbers, type=pa.int64())), numbers)
            for number, row in zip(places, rows, strict=True):
                if row[version] not in (protocol, None):
                    continue
                try:
                    record = record_of(row, timed)
                except ROW_ERRORS as e:
                    line = self._wrong(MEASUREMENTS, number, e)
                    if skip is None:
                        raise DataError(line) from e
                    skip(line)
                else:
                    yield record
            first = last

    def table(self, protocol: int, columns: Sequence[str] | None = None) -> Any:
        """Measurements under one protocol as one `pyarrow.Table`, in the order of `records`: for training.

        It has the columns of measurements and of timings (see `kcg.dataset.columns`), joined, and `median_s`, the
        median of the samples in seconds, NaN where there are none; of these those in `columns`, all where it is None.
        Texts are dictionaries. Raises DataError where a row has no timing or a time is none; what else could be wrong
        with a row only `records` looks at.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        own = [n for n in measurements_schema().names if columns is None or n in ("protocol", "timing", *columns)]
        timings = self._timings(valid=True)
        empty = timings_schema([n.removeprefix(CLOCK) for n in timings.column_names if n.startswith(CLOCK)])
        batches = list(self._batches(MEASUREMENTS, own, valid=True))
        table = pa.Table.from_batches(batches).unify_dictionaries() if batches else measurements_schema().empty_table()
        index = table["timing"].combine_chunks()
        if index.null_count or (len(index) and not 0 <= pc.min(index).as_py() <= pc.max(index).as_py() < len(timings)):
            raise DataError(f"{self.folder / MEASUREMENTS}: a row has no timing in {TIMINGS}: export again")
        samples = timings["samples_s"].combine_chunks()
        values, ends = samples.flatten().to_numpy(zero_copy_only=False), samples.value_lengths().fill_null(0)
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise DataError(f"{self.folder / TIMINGS}: a sample is no time: export again")
        median_s = medians(values, ends.to_numpy(zero_copy_only=False))
        timings = timings.append_column("median_s", pa.array(median_s))
        table = table.filter(pc.equal(table["protocol"], protocol))
        for name in [*empty.names, "median_s"]:
            if columns is None or name in columns:
                table = table.append_column(name, timings[name].take(table["timing"]))
        return table if columns is None else table.select(list(columns))

    def kernels_table(self, columns: Sequence[str] | None = None) -> Any:
        """`kernels.parquet` as one `pyarrow.Table`, with splits and costs; all its columns where none are named."""
        import pyarrow as pa

        names = list(columns or kernels_schema().names)
        schema = pa.schema([kernels_schema().field(name) for name in names])
        batches = self._batches(KERNELS, names, valid=True)
        return pa.Table.from_batches([batch.select(names).cast(schema) for batch in batches], schema)

    def kernels(self) -> dict[str, Kernel]:
        """Every kernel by id."""
        found: dict[str, Kernel] = {}
        for batch in self._batches(KERNELS, ["id", "ast_json"]):
            for kernel_id, ast_json in zip(*(values_of(c) for c in batch.columns), strict=True):
                kernel = self._built(KERNELS, len(found), Kernel, ast_json or "")
                if kernel.id != kernel_id or kernel_id in found:
                    line = f"{self.folder / KERNELS}: row {len(found)} does not hash to its id, or comes twice"
                    raise DataError(f"{line}: export again")
                found[kernel_id] = kernel
        return found

    def targets(self) -> dict[str, Target]:
        """Every target by fingerprint."""
        return self._by_fingerprint("targets.json", Target)

    def toolchains(self) -> dict[str, Toolchain]:
        """Every toolchain by fingerprint."""
        return self._by_fingerprint("toolchains.json", Toolchain)

    def runs(self) -> dict[str, Run]:
        """Every run by id."""
        return {k: self._built("runs.json", k, lambda run: Run(**run), v) for k, v in self._json("runs.json").items()}

    def regions(self) -> dict[str, Region]:
        """Every region by id."""
        kernels, found = self.kernels(), {}

        def build(row: Any) -> Region:  # null is the kernel of that id
            return Region((kernels[region_id],)) if row is None else region_from_json(row[0], row[1], kernels)

        for region_id, row in self._json("workloads.json", "regions").items():
            found[region_id] = self._built("workloads.json", region_id, build, row)
            if found[region_id].id != region_id:
                raise DataError(f"{self.folder / 'workloads.json'}: region {region_id} does not hash to its id")
        return found

    def workloads(self) -> list[Workload]:
        """Every workload, by name and preset, its calls in their order; those of a kernel with variables are one."""
        regions = self.regions()

        def build(row: Any) -> Workload:
            calls = [
                WorkloadCall(regions[region_id], int(calls), tuple((str(n), int(v)) for n, v in variables), str(origin))
                for region_id, calls, variables, origin in row["calls"]
            ]
            return Workload(str(row["name"]), str(row["preset"]), merged(calls))

        rows = self._json("workloads.json", "workloads").items()
        return [self._built("workloads.json", name, build, row) for name, row in rows]

    def _by_fingerprint(self, name: str, cls: type[T]) -> dict[str, T]:
        found: dict[str, T] = {}
        for fingerprint, values in self._json(name).items():
            text = canonical_json(values)
            if hashlib.sha256(text.encode()).hexdigest() != fingerprint:
                raise DataError(f"{self.folder / name}: {fingerprint} does not hash to its fingerprint: export again")
            found[fingerprint] = self._built(name, fingerprint, lambda t: record_from_json(cls, t), text)
        return found

    def _json(self, name: str, section: str | None = None) -> dict[str, Any]:
        def parse(text: bytes) -> dict[str, Any]:
            value = json.loads(text) if section is None else json.loads(text)[section]
            if not isinstance(value, dict):
                raise ValueError("not a JSON object")
            return value

        return self._built(name, section or "0", parse, (self.folder / name).read_bytes())

    def _timings(self, *, valid: bool = False) -> Any:
        import pyarrow as pa

        with self._opened(TIMINGS, timings_schema()) as file:
            clocks = [n for n in file.schema_arrow.names if n.startswith(CLOCK)]
            _check_types(file.schema_arrow, timings_schema([n.removeprefix(CLOCK) for n in clocks]))
            table = file.read(columns=[*timings_schema().names, *clocks])
            if valid:
                table.validate(full=True)
        return pa.table({name: table[name].combine_chunks() for name in table.column_names})

    def _batches(self, name: str, columns: list[str], *, valid: bool = False) -> Iterator[Any]:
        """`valid` refuses what would not be safe to compute with: texts that are none, indices that lead nowhere."""
        schema = kernels_schema() if name == KERNELS else measurements_schema()
        with self._opened(name, schema) as file:
            for batch in file.iter_batches(columns=columns, batch_size=BLOCK):
                if valid:
                    batch.validate(full=True)
                yield batch

    @contextmanager
    def _opened(self, name: str, schema: Any) -> Iterator[Any]:
        """A Parquet file of this schema; all that Arrow says about it is a DataError, inside the block too."""
        import pyarrow
        from pyarrow import parquet

        try:
            with parquet.ParquetFile(self.folder / name) as file:
                if (found := _version_of(file)) != SCHEMA_VERSION:
                    raise DataError(_other_schema(self.folder / name, found))
                _check_types(file.schema_arrow, schema)
            texts = [text for text in (*TEXTS, "launch") if text in schema.names]
            with parquet.ParquetFile(self.folder / name, read_dictionary=texts) as file:
                yield file
        except (pyarrow.ArrowException, OSError, TypeError, ValueError) as e:  # names may be no text
            line = (str(e) or type(e).__name__).splitlines()[0]
            raise DataError(f"{self.folder / name} cannot be read ({line}): export again") from e

    def _wrong(self, name: str, row: object, error: BaseException) -> str:
        line = " ".join(str(error).split()) or type(error).__name__
        return f"{self.folder / name}: row {row} cannot be trusted ({line}): export again"

    def _built(self, name: str, row: object, build: Callable[[Any], T], value: object) -> T:
        try:
            return build(value)
        except ROW_ERRORS as e:
            raise DataError(self._wrong(name, row, e)) from e


def read_export(folder: Path | str) -> Export:
    """An export, once every file is there and agrees with its checksum; DataError otherwise.

    Files of `OPTIONAL_FILES` need not be listed, and are then not looked at.
    """
    folder = Path(folder)
    try:
        checksums = json.loads((folder / CHECKSUMS).read_text())
    except (OSError, ValueError) as e:
        raise DataError(f"{folder} is no complete export ({CHECKSUMS} cannot be read): export again") from e
    if not isinstance(checksums, dict) or not set(FILES) <= set(checksums) <= {*FILES, *OPTIONAL_FILES}:
        if (found := _version_at(folder / MEASUREMENTS)) not in ("", SCHEMA_VERSION):
            raise DataError(_other_schema(folder, found))
        raise DataError(f"{folder / CHECKSUMS} does not name the files of an export: export again")
    for name in checksums:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing: export or download it again")
        if sha256_of(folder / name) != checksums[name]:
            raise DataError(f"{folder / name} does not agree with {CHECKSUMS}: export or download it again")
    return Export(folder, checksums)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, as `checksums.json` holds it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version_at(path: Path) -> str:
    """The schema that a Parquet file says it has; empty where it says nothing or is none."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            return _version_of(file)
    except (pyarrow.ArrowException, OSError, ValueError):
        return ""


def _version_of(file: Any) -> str:
    found: bytes = (file.schema_arrow.metadata or {}).get(b"kcg_schema", b"")
    return found.decode(errors="replace")


def _other_schema(path: Path, found: str) -> str:
    return f"{path} has schema {found or 'unknown'}, this kcg reads {SCHEMA_VERSION}: export again with this kcg"


def _check_types(found: Any, schema: Any) -> None:
    """Raises TypeError where a column is missing, or of another type."""
    import pyarrow as pa

    def plain(kind: Any) -> Any:
        if pa.types.is_dictionary(kind):
            return kind.value_type
        return pa.list_(kind.value_type) if pa.types.is_list(kind) else kind  # whatever its items are called

    for field in schema:
        if found.names.count(field.name) != 1:
            raise TypeError(f"there is no column {field.name}, or more than one")
        if plain(kind := found.field(field.name).type) != plain(field.type):
            raise TypeError(f"column {field.name} is {kind}, not {field.type}")
