"""Reading an export: its files once their checksums agree, row by row as nouns, or whole as columns.

Nothing of an export is trusted: columns have the types of the schema, ids are hashed again, every row is checked.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from kcg.dataset.bounds import check_bounds
from kcg.dataset.choices import at_least_s, weight_of
from kcg.dataset.columns import (
    ADDED,
    BESIDE,
    BLOCK,
    CHOICE,
    CLOCK,
    KEPT,
    NEAR,
    OF_CHOICE,
    OF_REGION,
    READABLE,
    SPLIT_PARTS,
    TEXTS,
    TIMINGS,
    OfRegion,
    Timings,
    added_values,
    choice_types,
    constants_of,
    kernels_schema,
    measurements_schema,
    medians,
    record_of,
    stored_schema,
    timings_schema,
    values_of,
    values_of_regions,
)
from kcg.dataset.journal import ROW_ERRORS, Doubt, Record, Run, record_from_json, region_from_json, status_and_reason
from kcg.dataset.splits import part_of_row
from kcg.errors import DataError
from kcg.files import read_limited, sha256_of
from kcg.kernel.symbolic import merged
from kcg.types import Kernel, Measurement, Region, Target, Toolchain, Workload, WorkloadCall, canonical_json

CHECKSUMS = "checksums.json"
MOST_OF_LIST: Final = 1 << 20  # bytes of `checksums.json`
MOST_OF_JSON: Final = 256 << 20  # of another file of JSON; the largest of kcg's own datasets has 0.6 MB
KERNELS, MEASUREMENTS = "kernels.parquet", "measurements.parquet"
FILES = (KERNELS, MEASUREMENTS, "runs.json", "targets.json", TIMINGS, "toolchains.json", "workloads.json")
DOUBTS = "doubts.json"
OPTIONAL_FILES = ("README.md", DOUBTS, "replay.parquet")
"""What not every export has; checked where `checksums.json` lists them."""

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

        names = [*measurements_schema().names, *CHOICE]
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

    def sorted_records(self) -> Iterator[Record]:
        """Every row of every protocol in the order of the file, as a journal gives them for an export."""
        versions = self.protocols()
        if len(versions) < 2:
            return (record for version in versions for record in self.records(version))
        return heapq.merge(*map(self.records, versions), key=_place_of)

    def constants(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Of these columns of measurements those in which every row has the same value, with the value. Where no names
        are given, those that the file leaves out for that."""
        with self._opened(MEASUREMENTS, measurements_schema()) as file:
            stored = constants_of(file.schema_arrow.metadata)
        if names is None:
            return stored
        found: dict[str, set[Any]] = {name: set() for name in names}
        for batch in self._batches(MEASUREMENTS, list(names)):
            for name in names:
                found[name].update(values_of(batch[name].unique()))
        return {name: values.pop() for name, values in found.items() if len(values) == 1 and values != {None}}

    def workloads_of_kernels(self) -> dict[str, set[str]]:
        """Every `name/preset` that a kernel was seen in, by the kernel's id."""
        rows = self.kernels_table(["id", "workloads"]).to_pylist()
        return {row["id"]: {str(name) for name in row["workloads"] or ()} for row in rows}

    def stored(self) -> Any | None:
        """`BESIDE` and `OF_CHOICE` as far as `measurements.parquet` holds them, with `status`, as a `pyarrow.Table`;
        None in schema 2, which had none of it. `table` makes the same anew from the other files, and is what kcg itself
        trains on."""
        import pyarrow as pa

        with self._opened(MEASUREMENTS, measurements_schema()) as file:
            if _version_of(file) == READABLE[0]:
                return None
            optional = {name for name in (*ADDED, *OF_CHOICE) if name not in file.schema_arrow.names}
            names = [name for name in (*BESIDE, *OF_CHOICE, "status") if name not in optional]
            table = file.read(columns=names)
            wanted = pa.schema([stored_schema({}, with_choices=True).field(name) for name in names])
            return table.select(names).cast(wanted)

    def has_choices(self) -> bool:
        """Whether some row says why it was chosen."""
        with self._opened(MEASUREMENTS, measurements_schema()) as file:
            return set(CHOICE) <= set(file.schema_arrow.names)

    def table(self, protocol: int | None, columns: Sequence[str] | None = None) -> Any:
        """Measurements under one protocol (or all) as one `pyarrow.Table`, in the order of `records`: for training.

        It has the columns of measurements and of timings (see `kcg.dataset.columns`), joined, and `BESIDE`, made from
        the other files: the parts of the splits, the number of samples, and `median_s`, the median of the samples in
        seconds, NaN where there are none; and `OF_CHOICE`. Of these those in `columns`, all where it is None. Texts are
        dictionaries. Raises DataError where a row has no timing or a time is none; what else could be wrong with a row
        only `records` looks at.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = {"protocol", "timing", "region_id", *(columns or ())}
        wanted |= {"status", "reason"} if wanted & {"status", "reason", *OF_CHOICE} else set()
        wanted |= {"pool", "probability"} if wanted & {*SPLIT_PARTS, *OF_CHOICE} else set()
        own = [n for n in (*measurements_schema().names, *CHOICE) if columns is None or n in wanted]
        timings = self._timings(valid=True)
        empty = timings_schema([n.removeprefix(CLOCK) for n in timings.column_names if n.startswith(CLOCK)])
        batches = list(self._batches(MEASUREMENTS, own, valid=True))
        none = pa.schema([*measurements_schema(), *choice_types().items()]).empty_table()
        table = pa.Table.from_batches(batches).unify_dictionaries() if batches else none
        index = table["timing"].combine_chunks()
        if index.null_count or (len(index) and not 0 <= pc.min(index).as_py() <= pc.max(index).as_py() < len(timings)):
            raise DataError(f"{self.folder / MEASUREMENTS}: a row has no timing in {TIMINGS}: export again")
        samples = timings["samples_s"].combine_chunks()
        values, ends = samples.flatten().to_numpy(zero_copy_only=False), samples.value_lengths().fill_null(0)
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise DataError(f"{self.folder / TIMINGS}: a sample is no time: export again")
        median_s = medians(values, ends.to_numpy(zero_copy_only=False))
        timings = timings.append_column("median_s", pa.array(median_s)).append_column("n_samples", ends)
        table = _in_todays_words(table)
        if protocol is not None:
            table = table.filter(pc.equal(table["protocol"], protocol))
        for name in [*empty.names, "median_s", "n_samples"]:
            if columns is None or name in columns:
                table = table.append_column(name, timings[name].take(table["timing"]))
        if of_region := [name for name in OF_REGION if columns is None or name in wanted]:
            table = self._of_regions(table, of_region)
        if columns is None or wanted & set(OF_CHOICE):
            table = _with_weights(table)
        return table if columns is None else table.select(list(columns))

    def _of_regions(self, table: Any, names: Sequence[str]) -> Any:
        """A table of measurements with those of `OF_REGION` that are named."""
        import pyarrow as pa

        also = ["split_alike"] if NEAR in names and "split_alike" not in names else []
        rows = self.kernels_table(["id", *names, *also]).to_pylist()
        regions = {k: v[0] for k, v in self._json("workloads.json", "regions").items() if isinstance(v, list) and v}
        known = self._built(
            "workloads.json", "regions", lambda found: values_of_regions({r["id"]: r for r in rows}, found), regions
        )
        of_rows = [known.get(region, OfRegion()) for region in table["region_id"].to_pylist()]
        pools = [pool or "" for pool in table["pool"].to_pylist()] if "pool" in table.column_names else []
        for name in names:
            if name == NEAR:
                table = table.append_column(name, pa.array([row.near for row in of_rows], pa.bool_()))
                continue
            place = SPLIT_PARTS.index(name)
            parts = [part_of_row(row.parts[place], pool) for row, pool in zip(of_rows, pools, strict=True)]
            table = table.append_column(name, pa.array(parts, pa.string()))
        return table

    def kernels_table(self, columns: Sequence[str] | None = None) -> Any:
        """`kernels.parquet` as one `pyarrow.Table`, with splits and costs; all its columns where none are named. What
        it lacks of `ADDED` is made anew."""
        import pyarrow as pa

        names = list(columns or kernels_schema().names)
        lacks = self.lacks(KERNELS) if set(ADDED) & set(names) else set()
        stored = [name for name in names if name not in lacks] + (["id"] if lacks and "id" not in names else [])
        schema = pa.schema([kernels_schema().field(name) for name in stored])
        batches = self._batches(KERNELS, stored, valid=True)
        table = pa.Table.from_batches([batch.select(stored).cast(schema) for batch in batches], schema)
        if missing := lacks & set(names):
            made = added_values(self.kernels(), self.workloads())
            for name in missing:
                values = [made.get(kernel, {}).get(name) for kernel in table["id"].to_pylist()]
                table = table.append_column(name, pa.array(values, kernels_schema().field(name).type))
        return table.select(names)

    def lacks(self, name: str) -> set[str]:
        """Those of `ADDED` that its file of kernels or of measurements does not have."""
        with self._opened(name, kernels_schema() if name == KERNELS else measurements_schema()) as file:
            return set(ADDED) - set(file.schema_arrow.names)

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

    def doubts(self) -> list[Doubt]:
        """What was doubtful in the journal, by run."""
        return list(self.doubtful_rows())

    def doubtful_rows(self) -> dict[Doubt, int]:
        """How many rows of the journal each doubt was about: they were left out of the export."""

        def build(run: Any) -> tuple[Doubt, int]:
            run_id, values = run[0], dict(run[1])
            rows = values.pop("rows")
            if type(rows) is not int or rows < 0:
                raise TypeError("the number of its rows is none")
            return Doubt(run_id, **values), rows

        runs = self._json(DOUBTS) if DOUBTS in self.checksums else {}
        return dict(self._built(DOUBTS, run[0], build, run) for run in runs.items())

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
            text = self._built(name, fingerprint, canonical_json, values)
            if hashlib.sha256(text.encode()).hexdigest() != fingerprint:
                raise DataError(f"{self.folder / name}: {fingerprint} does not hash to its fingerprint: export again")
            found[fingerprint] = self._built(name, fingerprint, lambda t: record_from_json(cls, t), text)
        return found

    def _json(self, name: str, section: str | None = None) -> dict[str, Any]:
        def parse(path: Path) -> dict[str, Any]:
            text = read_limited(path, most_bytes=MOST_OF_JSON)
            value = json.loads(text) if section is None else json.loads(text)[section]
            if not isinstance(value, dict):
                raise ValueError("not a JSON object")
            return value

        return self._built(name, section or "0", parse, self.folder / name)

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
            same = constants_of(file.schema_arrow.metadata) if name == MEASUREMENTS else {}
            lacks = set(CHOICE) - set(file.schema_arrow.names)
            same = {k: v for k, v in {**same, **dict.fromkeys(lacks)}.items() if k in columns}
            stored = [column for column in columns if column not in same] or [KEPT[0]]
            for batch in file.iter_batches(columns=stored, batch_size=BLOCK):
                if valid:
                    batch.validate(full=True)
                yield _with_constants(_plain(batch), same, columns)

    @contextmanager
    def _opened(self, name: str, schema: Any) -> Iterator[Any]:
        """A Parquet file of this schema; all that Arrow says about it is a DataError, inside the block too."""
        import pyarrow
        from pyarrow import parquet

        try:
            with parquet.ParquetFile(self.folder / name) as file:
                if (found := _version_of(file)) not in READABLE:
                    raise DataError(_other_schema(self.folder / name, found))
                optional = ADDED if name == KERNELS else constants_of(file.schema_arrow.metadata)
                _check_types(file.schema_arrow, schema, optional)
                texts = _dictionaries(file.metadata)
            check_bounds(self.folder / name)
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
        checksums = json.loads(read_limited(folder / CHECKSUMS, most_bytes=MOST_OF_LIST))
    except (OSError, ValueError) as e:
        raise DataError(f"{folder} is no complete export ({CHECKSUMS} cannot be read): export again") from e
    if not isinstance(checksums, dict) or not set(FILES) <= set(checksums) <= {*FILES, *OPTIONAL_FILES}:
        if (found := _version_at(folder / MEASUREMENTS)) not in ("", *READABLE):
            raise DataError(_other_schema(folder, found))
        raise DataError(f"{folder / CHECKSUMS} does not name the files of an export: export again")
    for name in checksums:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing: export or download it again")
        if sha256_of(folder / name) != checksums[name]:
            raise DataError(f"{folder / name} does not agree with {CHECKSUMS}: export or download it again")
    return Export(folder, checksums)


def _with_weights(table: Any) -> Any:
    """A table of measurements with `OF_CHOICE`."""
    import pyarrow as pa

    why = zip(table["pool"].to_pylist(), table["probability"].to_pylist(), strict=True)
    ended = zip(table["status"].to_pylist(), table["reason"].to_pylist(), strict=True)
    weights = [weight_of(pool or "", probability) for pool, probability in why]
    bounds = [at_least_s(status, reason or "") for status, reason in ended]
    for name, values in zip(OF_CHOICE, (weights, bounds), strict=True):
        table = table.append_column(name, pa.array(values, pa.float32()))
    return table


def _in_todays_words(table: Any) -> Any:
    """A table with the columns `status` and `reason`, if it has them, as `status_and_reason` reads them."""
    import pyarrow as pa

    if "status" not in table.column_names:
        return table
    stored = list(zip(*(values_of(table[name].combine_chunks()) for name in ("status", "reason")), strict=True))
    today: dict[Any, Any] = {pair: pair for pair in stored if None in pair}  # of such only `records` says what is wrong
    for pair in set(stored) - set(today):
        with suppress(ValueError):  # of an unknown status too
            today[pair] = status_and_reason(*pair)
    if all(today.get(pair, pair) == pair for pair in set(stored)):
        return table
    for place, name in enumerate(("status", "reason")):
        texts = pa.array([today.get(pair, pair)[place] for pair in stored], pa.string()).dictionary_encode()
        table = table.set_column(table.column_names.index(name), name, texts)
    return table


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
    return (
        f"{path} has schema {found or 'unknown'}, this kcg reads {' and '.join(READABLE)}: export again with this kcg"
    )


def _place_of(record: Record) -> tuple[object, ...]:
    """Where a row stands in an export among those of other protocols."""
    m = record.measurement
    return m.region_id, m.target, m.toolchain, m.protocol


def _dictionaries(metadata: Any) -> list[str]:
    """The columns of texts that come again and again, but for those of which Arrow makes no dictionary."""
    chunks = [
        metadata.row_group(group).column(number)
        for group in range(metadata.num_row_groups)
        for number in range(metadata.num_columns)
    ]
    others = {c.path_in_schema for c in chunks if any(encoding.startswith("DELTA") for encoding in c.encodings)}
    names = {metadata.schema.column(i).path for i in range(metadata.num_columns)}
    return sorted((names - others).intersection((*TEXTS, "launch")))


def _plain(batch: Any) -> Any:
    """A batch in which no other columns are dictionaries."""
    import pyarrow as pa

    arrays = [
        array.dictionary_decode() if name not in TEXTS and pa.types.is_dictionary(array.type) else array
        for name, array in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _with_constants(batch: Any, constants: Mapping[str, Any], columns: Sequence[str]) -> Any:
    """A batch of measurements with the columns that are the same in every row, or of `CHOICE` null, all in the order of
    `columns`."""
    import pyarrow as pa

    if not constants:
        return batch
    arrays = {name: batch[name] for name in columns if name not in constants}
    for name, value in constants.items():
        if isinstance(value, str):
            arrays[name] = pa.DictionaryArray.from_arrays(pa.array([0] * len(batch), pa.int32()), [value])
        elif name in CHOICE:
            arrays[name] = pa.nulls(len(batch), choice_types()[name])
        else:
            arrays[name] = pa.array([value] * len(batch), measurements_schema().field(name).type)
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns], list(columns))


def _check_types(found: Any, schema: Any, optional: Collection[str] = ()) -> None:
    """Raises TypeError where a column is missing that is not among the `optional`, or is of another type."""
    import pyarrow as pa

    def plain(kind: Any) -> Any:
        if pa.types.is_dictionary(kind):
            return kind.value_type
        return pa.list_(kind.value_type) if pa.types.is_list(kind) else kind  # whatever its items are called

    for field in schema:
        if field.name in optional and field.name not in found.names:
            continue
        if found.names.count(field.name) != 1:
            raise TypeError(f"there is no column {field.name}, or more than one")
        if plain(kind := found.field(field.name).type) != plain(field.type):
            raise TypeError(f"column {field.name} is {kind}, not {field.type}")
