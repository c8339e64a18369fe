"""The replay tables of a dataset: `replay.parquet` in its folder, one row for each kernel that has one; and these
kernels beside their tables."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcg.dataset.bounds import Texts, check_bounds
from kcg.dataset.columns import CONSTANTS, MADE_BY, constants_in, rows_of_a_group
from kcg.dataset.reading import Export
from kcg.dataset.splits import PARTS, TEST, TEST_FAMILY, TRAINING_PREFIX
from kcg.errors import DataError, UnknownName
from kcg.provenance import provenance
from kcg.search.replay import ReplayTable
from kcg.types import Region, Target, canonical_json

FILE = "replay.parquet"
COLUMNS = ("region_id", "target", "toolchain", "actions", "schedules", "best_s", "hand_coded_s", "table")


@dataclass(frozen=True)
class NamedTable:
    """A table, the kernel it is of, and the actions that declare its lattice."""

    region_id: str
    target: str  # fingerprint
    toolchain: str  # fingerprint
    actions: tuple[str, ...]
    table: ReplayTable


def write_tables(tables: Iterable[NamedTable], path: Path) -> None:
    """Write tables, sorted by kernel, as one Parquet file. A target or toolchain that all have is in its metadata."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = sorted(tables, key=lambda named: (named.region_id, named.target, named.toolchain))
    columns: dict[str, list[Any]] = {
        "region_id": [r.region_id for r in rows], "target": [r.target for r in rows],
        "toolchain": [r.toolchain for r in rows], "actions": [list(r.actions) for r in rows],
        "schedules": [len(r.table.records) for r in rows], "best_s": [r.table.best_s for r in rows],
        "hand_coded_s": [r.table.records[r.table.baseline()].observation.time_s for r in rows],
        "table": [r.table.to_json() for r in rows],
    }  # fmt: skip
    types = {
        "region_id": pa.string(), "target": pa.string(), "toolchain": pa.string(), "actions": pa.list_(pa.string()),
        "schedules": pa.int32(), "best_s": pa.float64(), "hand_coded_s": pa.float64(), "table": pa.large_string(),
    }  # fmt: skip
    same = {name: columns[name][0] for name in ("target", "toolchain") if len(set(columns[name])) == 1}
    names = [name for name in COLUMNS if name not in same]
    schema = pa.schema(
        [(name, types[name]) for name in names],
        metadata={CONSTANTS: canonical_json(same), MADE_BY: canonical_json(dict(provenance()))},
    )
    table = pa.table({name: columns[name] for name in names}, schema=schema)
    parquet.write_table(
        table, path, compression="zstd", compression_level=19, row_group_size=rows_of_a_group(table)
    )  # fmt: skip


def read_tables(folder: Path, *, regions: Collection[str] | None = None) -> list[NamedTable]:
    """The tables of a dataset, or those of some region ids. Raises DataError where there is no such file, or it is not
    one."""
    import pyarrow
    from pyarrow import parquet

    path, columns = folder / FILE, ["region_id", "target", "toolchain", "actions", "table"]
    try:
        with parquet.ParquetFile(path) as file:
            how, same = check_bounds(file, path), constants_in(file.schema_arrow.metadata)
        stored = [name for name in columns if name not in same]
        with parquet.ParquetFile(path, read_dictionary=how.dictionaries) as file:
            texts, batches = Texts(path.stat().st_size), file.iter_batches(columns=stored, batch_size=how.rows)
            rows = [same | row for batch in batches for row in texts.plain(batch).to_pylist()]
        wanted = [row for row in rows if regions is None or row["region_id"] in regions]
        named = [(str(row["region_id"]), str(row["target"]), str(row["toolchain"])) for row in wanted]
    except (pyarrow.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({str(error).splitlines()[0]}): export or download it again") from error
    return [
        NamedTable(*ids, tuple(row["actions"]), ReplayTable.from_json(row["table"]))
        for ids, row in zip(named, wanted, strict=True)
    ]


@dataclass(frozen=True)
class RecordedKernel:
    """A kernel with its replay table."""

    named: NamedTable
    region: Region
    target: Target
    family: str = ""
    part: str = TEST  # of the split by workload
    calls: int = 1

    @property
    def table(self) -> ReplayTable:
        return self.named.table

    @property
    def hand_coded_s(self) -> float:
        """tinygrad's own choice, which needs no search: what is known while nothing that was measured succeeded. Where
        it failed, the unoptimised kernel."""
        for schedule in (self.table.baseline(), self.table.start()):
            if math.isfinite(time_s := self.table.records[schedule].observation.time_s):
                return time_s
        return max(t for r in self.table.records.values() if math.isfinite(t := r.observation.time_s))


def kernels_of(export: Export, part: str) -> list[RecordedKernel]:
    """The kernels of a dataset that have replay tables, of one part of the split by workload; `other` is all but the
    test, `all` is all. Calls are those of the workload that runs a kernel most.

    Raises UnknownName for a part, DataError where the dataset has no tables of it.
    """
    if part not in (*PARTS, "other", "all"):
        raise UnknownName("part", part, [*PARTS, "other", "all"])
    tables = read_tables(export.folder)
    parts = {r["id"]: r["split_workload"] for r in export.kernels_table(["id", "split_workload"]).to_pylist()}
    families: dict[str, str] = {}
    calls: dict[str, int] = {}
    for workload in export.workloads():
        for call in workload.calls:
            known = families.get(call.region.id, TRAINING_PREFIX)
            if known.startswith(TRAINING_PREFIX) or workload.name == TEST_FAMILY:
                families[call.region.id] = workload.name
            calls[call.region.id] = max(calls.get(call.region.id, 0), call.calls)
    regions, targets = export.regions(), export.targets()
    found = []
    for named in tables:
        if (region := regions.get(named.region_id)) is None or (target := targets.get(named.target)) is None:
            raise DataError(f"{export.folder}: the replay table of {named.region_id[:12]} is of a kernel not in it")
        its_part = parts[region.kernel.id] or PARTS[0]
        if part in (its_part, "all") or (part == "other" and its_part != TEST):
            family, called = families.get(region.id, ""), calls.get(region.id, 1)
            found.append(RecordedKernel(named, region, target, family, its_part, called))
    if not found:
        raise DataError(f"{export.folder} has no replay tables of the part {part!r}")
    return found
