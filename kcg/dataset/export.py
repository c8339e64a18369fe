"""A journal as immutable files: Parquet (zstd) with checksums, whole or not at all; and journals joined into one.

`kernels.parquet` and `measurements.parquet` are normalised (an AST is stored once, by its hash); `workloads.json` holds
regions and calls, `targets.json`, `toolchains.json` and `runs.json` what the ids of a measurement stand for, and
`checksums.json` the SHA-256 of every other file. Exporting the same journal twice gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from kcg.dataset.journal import Journal
from kcg.dataset.records import (
    MEASUREMENT_COLUMNS,
    ROW_ERRORS,
    Record,
    Run,
    disk_full,
    is_disk_full,
    measurement_from_row,
    measurement_row,
    record_from_json,
    region_from_json,
)
from kcg.errors import DataError, UsageError
from kcg.types import Kernel, Measurement, Region, Target, Toolchain, Workload, WorkloadCall, canonical_json

CHECKSUMS = "checksums.json"
FILES = ("kernels.parquet", "measurements.parquet", "runs.json", "targets.json", "toolchains.json", "workloads.json")
SCHEMA_VERSION = "1"
ROW_GROUP = 50_000

T = TypeVar("T")


def export(journal: Journal, folder: Path | str, *, overwrite: bool = False) -> dict[str, str]:
    """Writes everything in the journal, of one moment, to `folder` and returns the SHA-256 of each file by name.

    Every file is written beside its place and synced before the first takes its name; `checksums.json` comes last.
    Raises UsageError where an export is already there and `overwrite` is false or the folder cannot be written,
    JournalError where the disk is full or the journal cannot be trusted. An earlier export then stays as it was.
    """
    folder = Path(folder)
    present = [name for name in (*FILES, CHECKSUMS) if (folder / name).exists()]
    if present and not overwrite:
        raise UsageError(f"{folder} already holds {present[0]}: name a new folder, or allow overwriting")
    parts: dict[str, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with journal.snapshot():
            writers = _writers(journal)
            for name in FILES:
                parts[name] = folder / f"{name}.{os.getpid()}.part"
                writers[name](parts[name])
        checksums = {name: _sha256(part) for name, part in parts.items()}
        parts[CHECKSUMS] = folder / f"{CHECKSUMS}.{os.getpid()}.part"
        _write_json(parts[CHECKSUMS], checksums)
        for part in parts.values():
            _sync(part)
        for name, part in parts.items():
            part.replace(folder / name)
        _sync(folder)
    except OSError as e:
        if is_disk_full(e):
            raise disk_full(folder) from e
        raise UsageError(f"no export can be written to {folder}: {e.strerror or e}") from e
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    return checksums


def merge(paths: Sequence[Path | str], out: Path | str) -> int:
    """Joins journals into a new one and returns its measurements; equal (identity, run, trial) rows are kept once.

    Where a workload differs between journals the later one's calls are kept. `out` appears when it is complete.
    Raises JournalError where an input cannot be trusted, UsageError where `out` exists.
    """
    out = Path(out)
    if out.exists():
        raise UsageError(f"{out} exists: name a new file to merge into")
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    try:
        with Journal.open(part) as joined:
            for path in paths:
                with Journal.open(path, read_only=True) as source, source.snapshot(), joined.bulk():
                    _copy(source, joined)
            total = joined.counts()["measurements"]
        part.rename(out)
        _sync(out.parent)
        return total
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            part.with_name(part.name + suffix).unlink(missing_ok=True)


@dataclass(frozen=True)
class Export:
    """An export whose checksums agree. It answers the same questions as a Journal; DataError where a row is wrong."""

    folder: Path
    checksums: Mapping[str, str]

    def protocols(self) -> list[int]:
        """The versions of the protocol that have measurements."""
        return sorted({p for (p,) in self._rows("measurements.parquet", ["protocol"])})

    def measurements(self, protocol: int) -> Iterator[Measurement]:
        """Every measurement under one protocol, by region, schedule, run and trial."""
        return (r.measurement for r in self.records(protocol))

    def records(self, protocol: int) -> Iterator[Record]:
        """Like `measurements`, with the time at which each was recorded."""
        columns = [*MEASUREMENT_COLUMNS, "recorded_unix_s"]
        samples, version = columns.index("samples_s"), columns.index("protocol")

        def build(row: Sequence[Any]) -> Record:
            values = [json.dumps(v) if i == samples else v for i, v in enumerate(row)]
            return Record(measurement_from_row(values[:-1]), float(values[-1]))

        for number, row in enumerate(self._rows("measurements.parquet", columns)):
            if row[version] == protocol:
                yield self._built("measurements.parquet", number, build, row)

    def kernels(self) -> dict[str, Kernel]:
        """Every kernel by id."""
        found = {}
        for number, (kernel_id, ast_json) in enumerate(self._rows("kernels.parquet", ["id", "ast_json"])):
            found[kernel_id] = kernel = Kernel(ast_json)
            if kernel.id != kernel_id:
                raise DataError(
                    f"{self.folder / 'kernels.parquet'}: row {number} does not hash to its id: export again"
                )
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
        for region_id, row in self._json("workloads.json", "regions").items():
            found[region_id] = self._built(
                "workloads.json", region_id, lambda r: region_from_json(r[0], r[1], kernels), row
            )
            if found[region_id].id != region_id:
                raise DataError(f"{self.folder / 'workloads.json'}: region {region_id} does not hash to its id")
        return found

    def workloads(self) -> list[Workload]:
        """Every workload, by name and preset, its calls in their order."""
        regions = self.regions()

        def build(row: Any) -> Workload:
            calls = [
                WorkloadCall(regions[region_id], int(calls), tuple((str(n), int(v)) for n, v in variables), str(origin))
                for region_id, calls, variables, origin in row["calls"]
            ]
            return Workload(str(row["name"]), str(row["preset"]), tuple(calls))

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

    def _rows(self, name: str, columns: list[str]) -> Iterator[tuple[Any, ...]]:
        import pyarrow
        from pyarrow import parquet

        try:
            with parquet.ParquetFile(self.folder / name) as file:
                if (file.schema_arrow.metadata or {}).get(b"kcg_schema") != SCHEMA_VERSION.encode():
                    raise DataError(f"{self.folder / name} has another schema than this kcg reads ({SCHEMA_VERSION})")
                for batch in file.iter_batches(columns=columns, batch_size=10_000):
                    yield from zip(*(batch.column(c).to_pylist() for c in columns), strict=True)
        except (pyarrow.ArrowException, OSError, KeyError) as e:
            raise DataError(f"{self.folder / name} cannot be read ({str(e).splitlines()[0]}): export again") from e

    def _built(self, name: str, row: object, build: Callable[[Any], T], value: object) -> T:
        try:
            return build(value)
        except ROW_ERRORS as e:
            raise DataError(f"{self.folder / name}: row {row} cannot be trusted ({e}): export again") from e


def read_export(folder: Path | str) -> Export:
    """An export, once every file is there and agrees with its checksum; DataError otherwise."""
    folder = Path(folder)
    try:
        checksums = json.loads((folder / CHECKSUMS).read_text())
    except (OSError, ValueError) as e:
        raise DataError(f"{folder} is no complete export ({CHECKSUMS} cannot be read): export again") from e
    if not isinstance(checksums, dict) or set(checksums) != set(FILES):
        raise DataError(f"{folder / CHECKSUMS} does not name the files of an export: export again")
    for name in FILES:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing: export or download it again")
        if _sha256(folder / name) != checksums[name]:
            raise DataError(f"{folder / name} does not agree with {CHECKSUMS}: export or download it again")
    return Export(folder, checksums)


def _writers(journal: Journal) -> dict[str, Callable[[Path], None]]:
    regions = {k: [[x.id for x in r.kernels], r.wiring] for k, r in journal.regions().items()}
    workloads = {
        f"{w.name}/{w.preset}": {
            "name": w.name,
            "preset": w.preset,
            "calls": [[c.region.id, c.calls, c.variables, c.origin] for c in w.calls],
        }
        for w in journal.workloads()
    }
    return {
        "kernels.parquet": lambda path: _write_kernels(journal, path),
        "measurements.parquet": lambda path: _write_measurements(journal, path),
        "runs.json": lambda path: _write_json(path, {k: asdict(r) for k, r in journal.runs().items()}),
        "targets.json": lambda path: _write_json(path, {k: asdict(t) for k, t in journal.targets().items()}),
        "toolchains.json": lambda path: _write_json(path, {k: asdict(t) for k, t in journal.toolchains().items()}),
        "workloads.json": lambda path: _write_json(path, {"regions": regions, "workloads": workloads}),
    }


def _write_kernels(journal: Journal, path: Path) -> None:
    import pyarrow as pa

    used: dict[str, set[str]] = {k: {name} if name else set() for k, name in journal.first_seen().items()}
    for workload in journal.workloads():
        for call in workload.calls:
            for kernel in call.region.kernels:
                used[kernel.id].add(f"{workload.name}/{workload.preset}")
    schema = [
        ("id", pa.string()),
        ("ast_json", pa.string()),
        ("workloads", pa.list_(pa.string())),
        ("nodes", pa.int64()),
    ]
    kernels = sorted(journal.kernels().values(), key=lambda k: k.id)
    rows = ((k.id, k.ast_json, sorted(used[k.id]), _count_nodes(k.ast_json)) for k in kernels)
    _write_parquet(path, pa.schema(schema), rows)


def _write_measurements(journal: Journal, path: Path) -> None:
    import pyarrow as pa

    kinds = {"TEXT": pa.string(), "INTEGER": pa.int64(), "REAL": pa.float64()}
    types = {name: kinds[kind.split()[0]] for name, kind in MEASUREMENT_COLUMNS.items()}
    types |= {"samples_s": pa.list_(pa.float64()), "checked": pa.bool_(), "early_stop": pa.bool_()}
    types |= {"median_s": pa.float64(), "recorded_unix_s": pa.float64()}

    def rows() -> Iterator[tuple[Any, ...]]:
        for r in journal.sorted_records():
            m, values = r.measurement, dict(zip(MEASUREMENT_COLUMNS, measurement_row(r.measurement), strict=True))
            values |= {"samples_s": list(m.samples_s), "checked": m.checked, "early_stop": m.early_stop}
            yield (*values.values(), m.median_s if m.samples_s else None, r.recorded_unix_s)

    _write_parquet(path, pa.schema(list(types.items())), rows())


def _write_parquet(path: Path, schema: Any, rows: Iterator[tuple[Any, ...]]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    schema = schema.with_metadata({"kcg_schema": SCHEMA_VERSION})
    with (
        path.open("wb") as file,
        parquet.ParquetWriter(file, schema, compression="zstd", compression_level=9) as writer,
    ):
        block: list[tuple[Any, ...]] = []

        def flush() -> None:
            columns = list(zip(*block, strict=True)) or [()] * len(schema)
            arrays = [pa.array(column, type=f.type) for column, f in zip(columns, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            block.clear()

        for row in rows:
            block.append(row)
            if len(block) == ROW_GROUP:
                flush()
        flush()


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n")


def _count_nodes(ast_json: str) -> int | None:
    """Nodes of an AST by the shape of its text alone: a list of nodes, or an object that holds one as `nodes`."""
    try:
        value = json.loads(ast_json)
    except (ValueError, RecursionError):
        return None
    nodes = value.get("nodes") if isinstance(value, dict) else value
    return len(nodes) if isinstance(nodes, list) else None


def _copy(source: Journal, joined: Journal) -> None:
    first_seen = source.first_seen()
    for kernel in source.kernels().values():
        joined.add_kernel(kernel, workload=first_seen[kernel.id])
    for region in source.regions().values():
        joined.add_region(region)
    for workload in source.workloads():
        joined.add_workload(workload)
    for target in source.targets().values():
        joined.add_target(target)
    for toolchain in source.toolchains().values():
        joined.add_toolchain(toolchain)
    for run in source.runs().values():
        joined.add_run(run)
    for protocol in source.protocols():
        for r in source.records(protocol):
            joined.record(r.measurement, recorded_unix_s=r.recorded_unix_s)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
