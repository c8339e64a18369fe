"""Schema 3 of an export: which columns its Parquet files have, how they are packed, and what of a row is kept.

- `kernels.parquet`: a kernel. `workloads` that use it, `nodes` of its AST, `operations` (arithmetic) and least traffic
  in `bytes` of one call, its part of each split of `kcg.dataset.splits` with the default seed, and its `twin` and
  `alike` classes. Null where the AST does not decode.
- `measurements.parquet`: a schedule timed once, the default table of the Hub. Beside what was asked and how it ended
  it holds what most readers want without a join (`BESIDE`): the part of each split, `median_s` (null where the status
  is not ok), `n_samples` and `near_in_training`. `timing` is a row of `timings.parquet`, counted from 0. A column other
  than `KEPT` in which every row has one value is left out: the value is in the file's metadata (`kcg_constants`) and on
  the card.
- `timings.parquet`: samples in seconds, the device's readings (`clock_*`), the launch and the binary. Schedules that
  share a binary share the row. `binary_hash` is null where there is no binary.

Rows are sorted by region, target, toolchain, protocol and schedule, so that what is alike is neighbouring. Three things
are rounded, see `as_exported`. Schema 2 had no `BESIDE` and no constants; it is still read. Older exports
of schema 3 lack `ADDED`, which reading makes anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from kcg.dataset.alike import likeness_of
from kcg.dataset.choices import at_least_s, weight_of
from kcg.dataset.journal import Chosen, Record, launch_from_json, status_and_reason, variables_from_json
from kcg.dataset.splits import ALIKE, PARTS, SPLITS, TRAIN, alike_split, make_splits, part_of_kernels, part_of_row
from kcg.errors import CodecError, DataError
from kcg.provenance import provenance
from kcg.types import CacheState, Kernel, Measurement, Schedule, Status, Workload, canonical_json

SCHEMA_VERSION = "3"
READABLE = ("2", SCHEMA_VERSION)
METADATA = {"kcg_schema": SCHEMA_VERSION}
MADE_BY = "kcg_made_by"  # a key of the metadata: revision and dirty of the code that wrote the file, as JSON
CONSTANTS = "kcg_constants"  # a key of the metadata: JSON of the columns that are the same in every row
HASH_BYTES = 8  # of a binary: two of a million are equal by chance with a probability of 3e-8
CLASS_DIGITS = 16
CLOCK = "clock_"  # and the name of a reading
CLOCK_DIGITS = 3
LARGEST = (2 - 2**-23) * 2.0**127  # of float32

BLOCK = 10_000  # rows that are turned into columns at once
ROW_GROUP = 10_000
GROUP_BYTES = 16 << 20
"""Of a row group in memory, at most. The Hub's viewer reads whole groups for a page of 100 rows, and scans no more than
300 MB ("Scan size limit exceeded … limit is 300000000 bytes"; it advises groups of 100 to 300 MB, for large files). A
group of 10,000 of these rows is below 1 MB, and all groups together are as large as one."""
LEVEL = 15  # of zstd
PAGE_BYTES = 64 << 20

TEXTS = (
    "region_id",
    "schedule_kind",
    "target",
    "toolchain",
    "status",
    "cache_state",
    "variables",
    "input_recipe",
    "reason",
    "sampler",
    "run_id",
)
"""Columns of measurements in which few texts come again and again."""

KEPT = ("region_id", "schedule_body", "status", "compile_s", "recorded_unix_s", "timing")
"""Columns of measurements that are always there; of the others those are, in which rows differ."""

SPLIT_PARTS = tuple(f"split_{name}" for name in SPLITS)
NEAR = "near_in_training"
OF_REGION = (*SPLIT_PARTS, NEAR)
"""Columns of measurements that follow from those of the same names of the region's kernels."""

BESIDE = (*OF_REGION, "median_s", "n_samples")
"""Columns of measurements that follow from the other files."""

CHOICE = ("pool", "scores", "probability")
"""Columns of measurements that say why a row was chosen (`kcg.dataset.journal.Chosen`), which are there where some row
has one of them; null where nobody told."""

OF_CHOICE = ("weight", "at_least_s")
"""Columns that follow from those and from how a row ended (`kcg.dataset.choices`); they are there where those are."""

FIRST = ("region_id", *SPLIT_PARTS, "status", "median_s", "n_samples", "schedule_body")
"""The first columns of measurements as they are stored: what a viewer shows without scrolling."""

SPLIT_COLUMNS = (
    "id",
    "split_workload",
    "split_kernel",
    "split_twin",
    "split_alike",
    "twin",
    "workload_twin_in_training",
    "kernel_twin_in_training",
    "alike",
    NEAR,
)
"""Columns of kernels that say where each stands in the splits."""

ADDED = ("split_alike", "alike", NEAR)
"""Those of them that not every export has."""

_SHA256 = re.compile(r"[0-9a-f]{64}|[0-9a-f]{16}")  # whole, or as an export kept it


# -- what is kept of a row


def short_hash(binary_hash: str) -> bytes | None:
    """What an export keeps of a binary's SHA-256: its beginning. Any other text is hashed first; None for no binary."""
    if not binary_hash:
        return None
    if not _SHA256.fullmatch(binary_hash):
        binary_hash = hashlib.sha256(binary_hash.encode()).hexdigest()
    return bytes.fromhex(binary_hash[: 2 * HASH_BYTES])


@lru_cache(1 << 14)
def rounded_clock(value: float) -> float:
    """A reading as it is kept: with three significant digits."""
    return float(f"{value:.{CLOCK_DIGITS}g}")


def as_exported(record: Record) -> Record:
    """The record that comes back from an export: everything as it was, but for

    - samples and `compile_s` as float32 (relative rounding 6e-8, below the resolution of any clock that is used),
    - the time of recording to a second, readings to three significant digits and sorted by name,
    - `binary_hash` shortened to 16 hex digits (a journal keeps all 64).

    Raises OverflowError where a number is too large for float32.
    """
    m = record.measurement
    count = len(m.samples_s) + 1
    numbers = struct.unpack(f"{count}f", struct.pack(f"{count}f", m.compile_s, *m.samples_s))
    short = short_hash(m.binary_hash)
    kept = replace(
        m,
        samples_s=numbers[1:],
        compile_s=numbers[0],
        binary_hash="" if short is None else short.hex(),
        clocks=tuple(sorted((name, rounded_clock(value)) for name, value in dict(m.clocks).items())),
    )
    return Record(kept, float(round(record.recorded_unix_s)), record.chosen)


# -- columns


def kernels_schema() -> Any:
    """The columns of `kernels.parquet`."""
    import pyarrow as pa

    text, flag = pa.string(), pa.bool_()
    required = [("id", text), ("ast_json", text), ("workloads", pa.list_(text))]
    optional = [
        ("nodes", pa.int64()), ("operations", pa.float64()), ("bytes", pa.float64()),
        ("split_workload", text), ("split_kernel", text), ("split_twin", text), ("split_alike", text), ("twin", text),
        ("workload_twin_in_training", flag), ("kernel_twin_in_training", flag), ("alike", text), (NEAR, flag),
    ]  # fmt: skip
    return _schema(required, optional)


def measurements_schema() -> Any:
    """The columns of `measurements.parquet` that say what was measured, constant ones too: those of schema 2."""
    import pyarrow as pa

    columns = [*((name, pa.string()) for name in TEXTS), ("schedule_body", pa.string())]
    columns += [(name, pa.int64()) for name in ("protocol", "trial", "recorded_unix_s", "timing")]
    columns += [("checked", pa.bool_()), ("early_stop", pa.bool_()), ("compile_s", pa.float32())]
    return _schema(columns, [])


def choice_types() -> dict[str, Any]:
    """The type of each of `CHOICE`."""
    import pyarrow as pa

    return dict(zip(CHOICE, (pa.string(), pa.string(), pa.float64()), strict=True))


def stored_schema(constants: Mapping[str, Any], *, with_choices: bool = False) -> Any:
    """The columns of `measurements.parquet` as they are stored, without those that are in `constants`."""
    import pyarrow as pa

    fields = {f.name: f for f in measurements_schema() if f.name not in constants}
    fields |= {name: pa.field(name, pa.string()) for name in SPLIT_PARTS} | {NEAR: pa.field(NEAR, pa.bool_())}
    fields |= {"median_s": pa.field("median_s", pa.float32()), "n_samples": pa.field("n_samples", pa.int32())}
    if with_choices:
        fields |= {name: pa.field(name, kind) for name, kind in choice_types().items()}
        fields |= {name: pa.field(name, pa.float32()) for name in OF_CHOICE}
    names = [*FIRST, *(name for name in fields if name not in FIRST)]
    metadata = METADATA | ({CONSTANTS: canonical_json(dict(constants))} if constants else {})
    return pa.schema([fields[name] for name in names], metadata=metadata)


def constants_in(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """The columns that a file's metadata says to be the same in every row. Raises TypeError or ValueError."""
    found = json.loads((metadata or {}).get(CONSTANTS.encode(), b"{}"))
    if not isinstance(found, dict):
        raise TypeError("its constant columns are no JSON object")
    return found


def constants_of(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """`constants_in` of measurements, each of its column's type. Raises TypeError or ValueError."""
    import pyarrow as pa

    found = constants_in(metadata)
    kinds = {f.name: f.type for f in measurements_schema() if f.name not in KEPT}
    for name, value in found.items():
        if name not in kinds or pa.scalar(value).type != kinds[name]:
            raise TypeError(f"{name} is no constant column")
    return found


def timings_schema(clocks: Iterable[str] = ()) -> Any:
    """The columns of `timings.parquet`, with those of the named readings."""
    import pyarrow as pa

    optional = [("binary_hash", pa.binary(HASH_BYTES)), *((CLOCK + name, pa.float32()) for name in sorted(clocks))]
    return _schema([("launch", pa.string()), ("samples_s", pa.list_(pa.float32()))], optional)


def _schema(required: list[tuple[str, Any]], optional: list[tuple[str, Any]]) -> Any:
    import pyarrow as pa

    fields = [pa.field(name, kind, nullable=False) for name, kind in required]
    return pa.schema([*fields, *(pa.field(name, kind) for name, kind in optional)], metadata=METADATA)


# -- rows into columns


def write_parquet(path: Path, schema: Any, tables: Iterable[Any]) -> None:
    """Writes tables of one schema as row groups; the same tables always give the same bytes, by the same code."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = schema.with_metadata({**(schema.metadata or {}), MADE_BY: canonical_json(dict(provenance()))})
    encodings = {"schedule_body": "DELTA_BYTE_ARRAY", "samples_s.list.element": "BYTE_STREAM_SPLIT"}
    encodings |= {"compile_s": "BYTE_STREAM_SPLIT"}
    encodings |= {"median_s": "BYTE_STREAM_SPLIT"}
    whole = ("recorded_unix_s", "timing", "trial", "protocol", "n_samples")
    encodings |= dict.fromkeys(whole, "DELTA_BINARY_PACKED")
    present = _leaves(schema)
    with (
        path.open("wb") as file,
        parquet.ParquetWriter(
            file,
            schema,
            compression="zstd",
            compression_level=LEVEL,
            write_statistics=False,
            column_encoding={name: encoding for name, encoding in encodings.items() if name in present},
            use_dictionary=[c for c in present if c in TEXTS or c.startswith((CLOCK, "split_", "workloads", "launch"))],
            dictionary_pagesize_limit=PAGE_BYTES,
            data_page_size=PAGE_BYTES,
        ) as writer,
    ):
        waiting: list[Any] = []
        for table in (*tables, None):
            if table is not None:
                waiting.append(table)
            if waiting and (table is None or sum(map(len, waiting)) >= ROW_GROUP):
                joined = pa.concat_tables(waiting).combine_chunks()
                writer.write_table(joined, row_group_size=rows_of_a_group(joined))
                waiting.clear()


def rows_of_a_group(table: Any) -> int:
    """How many rows of a table one row group holds: `ROW_GROUP`, or fewer where those are more than `GROUP_BYTES`."""
    return int(max(1, min(ROW_GROUP, GROUP_BYTES * len(table) // max(table.nbytes, 1))))


def _leaves(schema: Any) -> list[str]:
    import pyarrow as pa

    return [f"{f.name}.list.element" if pa.types.is_list(f.type) else f.name for f in schema]


_Timing = tuple[str, tuple[tuple[int, ...], tuple[int, ...]], tuple[float, ...], tuple[tuple[str, float], ...]]


@dataclass
class MeasurementColumns:
    """Records as tables of measurements; what was timed is gathered meanwhile, in about 60 bytes a row.

    `of_regions` are the values of `OF_REGION` (`values_of_regions`), `constants` the columns that are left out.
    """

    of_regions: Mapping[str, OfRegion] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    with_choices: bool = False  # whether some row has one of `CHOICE`
    _gathered: list[Any] = field(default_factory=list)
    _clocks: set[str] = field(default_factory=set)

    def tables(self, records: Iterable[Record]) -> Iterator[Any]:
        """A table for every `BLOCK` records, which are sorted by region. DataError where a number is too large."""
        known: dict[_Timing, int] = {}  # timings of the region at hand
        region, count = "", 0
        timed: list[_Timing] = []
        rows: list[tuple[Any, ...]] = []
        for record in records:
            m = record.measurement
            if m.region_id != region:
                region, known = m.region_id, {}
            timing = (m.binary_hash, m.launch, m.samples_s, m.clocks)
            if timing not in known:
                known[timing], count = count, count + 1
                timed.append(timing)
            why = record.chosen
            chosen = (why.pool or None, why.scores or None, why.probability)
            follows = (weight_of(why.pool, why.probability), at_least_s(m.status, m.reason))
            rows.append((*_row(record, known[timing]), *self._beside(record), *chosen, *follows))
            if len(timed) == BLOCK:
                self._gather(timed)
            if len(rows) == BLOCK:
                yield self._table(rows)
        self._gather(timed)
        yield self._table(rows)

    def timings(self) -> tuple[Any, Any]:
        """The schema of the timings and their table, when `tables` has ended."""
        import pyarrow as pa

        schema = timings_schema(self._clocks)
        whole = pa.concat_tables(self._gathered, promote_options="default")  # a reading that came later was null before
        return schema, pa.Table.from_arrays([whole[name] for name in schema.names], schema=schema)

    def _beside(self, record: Record) -> tuple[Any, ...]:
        """The values of `BESIDE`."""
        m = record.measurement
        median_s = m.median_s if m.status == Status.OK else None  # a failure has no time
        parts, near = self.of_regions.get(m.region_id, OfRegion())
        return (*(part_of_row(part, record.chosen.pool) for part in parts), near, median_s, len(m.samples_s))

    def _table(self, rows: list[tuple[Any, ...]]) -> Any:
        import pyarrow as pa

        schema = stored_schema(self.constants, with_choices=self.with_choices)
        names = [*measurements_schema().names, *BESIDE, *CHOICE, *OF_CHOICE]
        columns = dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))
        rows.clear()
        return pa.Table.from_arrays([pa.array(columns[f.name], type=f.type) for f in schema], schema=schema)

    def _gather(self, timed: list[_Timing]) -> None:
        import pyarrow as pa

        readings = [{name: rounded_clock(value) for name, value in clocks} for *_, clocks in timed]
        names = sorted({name for reading in readings for name in reading})
        self._clocks.update(names)
        schema = timings_schema(names)
        columns: dict[str, list[Any]] = {
            "launch": [canonical_json(launch) for _, launch, _, _ in timed],
            "samples_s": [samples_s for _, _, samples_s, _ in timed],
            "binary_hash": [short_hash(binary_hash) for binary_hash, *_ in timed],
            **{CLOCK + name: [reading.get(name) for reading in readings] for name in names},
        }
        arrays = [pa.array(columns[f.name], type=f.type) for f in schema]
        self._gathered.append(pa.Table.from_arrays(arrays, schema=schema))
        timed.clear()


def _row(record: Record, timing: int) -> tuple[Any, ...]:
    """The values of `measurements_schema`."""
    m = record.measurement
    if max(m.compile_s, *m.samples_s, *(value for _, value in m.clocks), 0.0) > LARGEST:
        raise DataError(f"a measurement of region {m.region_id} holds a number that float32 does not: leave it out")
    return (
        m.region_id,
        str(m.schedule.kind),
        m.target,
        m.toolchain,
        str(m.status),
        str(m.cache_state),
        canonical_json(m.variables) if m.variables else "[]",
        m.input_recipe,
        m.reason,
        m.sampler,
        m.run_id,
        m.schedule.body,
        m.protocol,
        m.trial,
        round(record.recorded_unix_s),
        timing,
        m.checked,
        m.early_stop,
        m.compile_s,
    )


Splits = Mapping[str, Mapping[str, str | bool | None]]  # kernel id -> the values of `SPLIT_COLUMNS` without the id


def kernels_table(kernels: Mapping[str, Kernel], used: Mapping[str, set[str]], splits: Splits) -> Any:
    """All kernels by id as one table; `used` names the workloads of each, `splits` are those of `split_values`. Opens
    no device and runs nothing."""
    import pyarrow as pa

    rows = []
    for kernel_id in sorted(kernels):
        text = kernels[kernel_id].ast_json
        rows.append(
            (kernel_id, text, sorted(used[kernel_id]), _count_nodes(text), *_costs(text), *splits[kernel_id].values())
        )
    schema = kernels_schema()
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, type=f.type) for column, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def split_values(kernels: Mapping[str, Kernel], workloads: list[Workload]) -> dict[str, dict[str, str | bool | None]]:
    """The columns of each kernel that say where it stands in the splits; all None where it is no AST."""
    from kcg.kernel.analysis import shape_class

    classes: dict[str, tuple[str, str]] = {}
    for kernel in kernels.values():
        with contextlib.suppress(CodecError):
            classes[kernel.id] = shape_class(kernel), likeness_of(kernel).name
    splits = make_splits({k: kernels[k] for k in classes}, workloads)
    found: dict[str, dict[str, str | bool | None]] = {}
    for kernel_id in kernels:
        if kernel_id not in classes:
            found[kernel_id] = dict.fromkeys(SPLIT_COLUMNS[1:])
            continue
        twin, alike = (one[:CLASS_DIGITS] for one in classes[kernel_id])
        parts = {f"split_{name}": splits[name].parts[kernel_id] for name in SPLITS}
        twins = {
            f"{name}_twin_in_training": kernel_id in splits[name].shape_class_in_training
            for name in ("workload", "kernel")
        }
        near = kernel_id in splits[ALIKE].near_in_training
        found[kernel_id] = {**parts, "twin": twin, **twins, "alike": alike, NEAR: near}
    return found


def added_values(kernels: Mapping[str, Kernel], workloads: list[Workload]) -> dict[str, dict[str, str | bool]]:
    """`ADDED` of each kernel as `split_values` has them; nothing of one that is no AST."""
    classes: dict[str, str] = {}
    for kernel in kernels.values():
        with contextlib.suppress(CodecError):
            classes[kernel.id] = likeness_of(kernel).name[:CLASS_DIGITS]
    parts, near = alike_split({k: kernels[k] for k in classes}, workloads)
    return {k: {"split_alike": parts[k], "alike": one, NEAR: k in near} for k, one in classes.items()}


class OfRegion(NamedTuple):
    """`OF_REGION` of a region."""

    parts: tuple[str | None, ...] = (None,) * len(SPLITS)
    near: bool | None = None


def values_of_regions(splits: Splits, regions: Mapping[str, Iterable[str]]) -> dict[str, OfRegion]:
    """`OF_REGION` of every region, `regions` naming the kernels of each; every kernel is a region, too.

    A region of several kernels is in the part of the one that is held out most: with a kernel of the test it is test.
    None where a kernel of it is in no part, unless another is test. Held out under `alike` it has near-duplicates in
    training where each of its kernels is in training or near one that is: then all that is new is how they are joined.
    """

    def of(kernels: tuple[str, ...]) -> OfRegion:
        rows = [splits.get(kernel, {}) for kernel in kernels]
        parts = tuple(
            part_of_kernels({str(part) if (part := row.get(name)) in PARTS else None for row in rows})
            for name in SPLIT_PARTS
        )
        near = [row.get(NEAR) for row in rows]
        if None in near:
            return OfRegion(parts)
        learned = all(one or row.get(f"split_{ALIKE}") == TRAIN for one, row in zip(near, rows, strict=True))
        return OfRegion(parts, learned and any(near))

    members = {kernel: (kernel,) for kernel in splits} | {region: tuple(kernels) for region, kernels in regions.items()}
    return {region: of(kernels) for region, kernels in members.items()}


def _costs(ast_json: str) -> tuple[float | None, float | None]:
    """Arithmetic and least traffic in bytes of one call."""
    from kcg.kernel.analysis import arithmetic, least_bytes
    from kcg.kernel.codec import decode

    try:
        ast = decode(ast_json)
    except CodecError:
        return None, None
    try:
        return arithmetic(ast), float(least_bytes(ast))
    except Exception:  # tinygrad asserts and raises anything where a kernel is foreign, though it decodes
        return None, None


def _count_nodes(ast_json: str) -> int | None:
    """Nodes of an AST by the shape of its text alone: a list of nodes, or an object that holds one as `nodes`."""
    try:
        value = json.loads(ast_json)
    except (ValueError, RecursionError):
        return None
    nodes = value.get("nodes") if isinstance(value, dict) else value
    return len(nodes) if isinstance(nodes, list) else None


# ---- Rows of an export's Parquet files as nouns, and columns as plain values.

TIMINGS = "timings.parquet"


def values_of(array: Any) -> list[Any]:
    """A column as Python values; None for what is missing, and for a text that is none."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        texts = values_of(array.dictionary)
        return [texts[i] if i is not None and 0 <= i < len(texts) else None for i in values_of(array.indices)]
    if pa.types.is_primitive(array.type) and not array.null_count:
        return list(array.to_numpy(zero_copy_only=False).tolist())
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [_text(value) for value in array]


def _text(value: Any) -> str | None:
    try:
        return str(value) if value.is_valid else None
    except UnicodeDecodeError:
        return None


class Timings:
    """Some rows of timings, each taken apart once."""

    def __init__(self, table: Any, numbers: Sequence[int]) -> None:
        self._place = {number: i for i, number in enumerate(numbers)}
        samples = table["samples_s"].combine_chunks()
        self._samples = samples.flatten().to_numpy(zero_copy_only=False).tolist()  # a missing sample is NaN
        self._ends = samples.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).cumsum().tolist()
        self._launches = values_of(table["launch"].combine_chunks())
        self._hashes = values_of(table["binary_hash"].combine_chunks())
        names = [name for name in table.column_names if name.startswith(CLOCK)]
        self._names = [name.removeprefix(CLOCK) for name in sorted(names)]
        self._readings = list(zip(*(values_of(table[name].combine_chunks()) for name in sorted(names)), strict=True))
        self._known: dict[int, tuple[Any, ...]] = {}

    def of(self, number: int) -> tuple[Any, ...]:
        """Samples, binary, launch and readings. Raises one of `ROW_ERRORS`."""
        if number not in self._known:
            i = self._place.get(number)
            if i is None or self._launches[i] is None:
                raise ValueError(f"there is no row {number} in {TIMINGS}, or it has no launch")
            samples = tuple(self._samples[self._ends[i - 1] if i else 0 : self._ends[i]])
            if not all(0 <= s < math.inf for s in samples):
                raise ValueError(f"the samples of row {number} of {TIMINGS} are no times")
            readings = zip(self._names, self._readings[i] if self._readings else (), strict=False)
            clocks = tuple((name, rounded_clock(value)) for name, value in readings if value is not None)
            binary = self._hashes[i]
            self._known[number] = (
                samples,
                "" if binary is None else binary.hex(),
                launch_from_json(self._launches[i]),
                clocks,
            )
        return self._known[number]


def record_of(row: Sequence[Any], timings: Timings) -> Record:
    """The inverse of what `MeasurementColumns` makes, `CHOICE` being the last. Raises one of `ROW_ERRORS`."""
    *row, pool, scores, probability = row
    if None in row:
        raise TypeError(f"{measurements_schema().names[row.index(None)]} is missing")
    (
        region_id,
        kind,
        target,
        toolchain,
        status,
        cache_state,
        variables,
        input_recipe,
        reason,
        sampler,
        run_id,
        body,
        protocol,
        trial,
        recorded,
        timing,
        checked,
        early_stop,
        compile_s,
    ) = row
    samples_s, binary_hash, launch, clocks = timings.of(timing)
    status, reason = status_and_reason(status, reason)
    made = Measurement(
        region_id,
        Schedule(kind, body),
        target,
        toolchain,
        protocol,
        status,
        CacheState(cache_state),
        variables_from_json(variables),
        input_recipe,
        samples_s,
        reason,
        binary_hash,
        checked,
        early_stop,
        sampler,
        compile_s,
        launch,
        run_id,
        trial,
        clocks,
    )
    if made.status == Status.OK and not samples_s:
        raise ValueError(f"status ok, and row {timing} of {TIMINGS} has no samples")
    return Record(made, float(recorded), Chosen(pool or "", scores or "", probability))


def medians(values: Any, lengths: Any) -> Any:
    """The median of each run of `values`: (timings,) float64, NaN for a run of length 0."""
    import numpy as np

    found = np.full(len(lengths), np.nan)
    starts = np.cumsum(lengths) - lengths
    for length in np.unique(lengths[lengths > 0]):
        which = np.flatnonzero(lengths == length)
        found[which] = np.median(values[starts[which, None] + np.arange(length)].astype(np.float64), axis=1)
    return found
