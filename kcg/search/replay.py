"""A recorded table in the place of a device: the same search space, the same costs, no waiting.

A `ReplayTable` holds schedules of one region with what measuring each showed, and the legal steps between them. It is
a `StepSpace` (`kcg.kernel.kinds`), measures from its records and charges the ledger as a device would, so strategies
are tested and compared on equal terms. Its JSON is made to be kept beside tests and evaluations.
"""

from __future__ import annotations

import copy
import json
import math
import random
import statistics
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcg.dataset.bounds import check_bounds
from kcg.dataset.columns import CONSTANTS, MADE_BY, constants_in, rows_of_a_group
from kcg.dataset.journal import status_and_reason
from kcg.dataset.reading import Export
from kcg.dataset.splits import PARTS, TEST, families_of
from kcg.errors import DataError, ScheduleError, UnknownName
from kcg.kernel.kinds import KnowsSteps, StepSpace, describe, kind_of, parse
from kcg.provenance import provenance
from kcg.search.problem import Ledger, Measure, Observation, Predict, Problem
from kcg.types import Action, Prediction, Region, Schedule, Status, Target, canonical_json

# ---- The replay tables of a dataset: `replay.parquet` in its folder, one row for each kernel that has one; and these
# kernels beside their tables.

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
        "region_id": [r.region_id for r in rows],
        "target": [r.target for r in rows],
        "toolchain": [r.toolchain for r in rows],
        "actions": [list(r.actions) for r in rows],
        "schedules": [len(r.table.records) for r in rows],
        "best_s": [r.table.best_s for r in rows],
        "hand_coded_s": [r.table.records[r.table.baseline()].observation.time_s for r in rows],
        "table": [r.table.to_json() for r in rows],
    }
    types = {
        "region_id": pa.string(),
        "target": pa.string(),
        "toolchain": pa.string(),
        "actions": pa.list_(pa.string()),
        "schedules": pa.int32(),
        "best_s": pa.float64(),
        "hand_coded_s": pa.float64(),
        "table": pa.large_string(),
    }
    same = {name: columns[name][0] for name in ("target", "toolchain") if len(set(columns[name])) == 1}
    names = [name for name in COLUMNS if name not in same]
    schema = pa.schema(
        [(name, types[name]) for name in names],
        metadata={CONSTANTS: canonical_json(same), MADE_BY: canonical_json(dict(provenance()))},
    )
    table = pa.table({name: columns[name] for name in names}, schema=schema)
    parquet.write_table(table, path, compression="zstd", compression_level=19, row_group_size=rows_of_a_group(table))


def read_tables(folder: Path, *, regions: Collection[str] | None = None) -> list[NamedTable]:
    """The tables of a dataset, or those of some region ids. Raises DataError where there is no such file, or it is not
    one."""
    import pyarrow
    from pyarrow import parquet

    path, columns = folder / FILE, ["region_id", "target", "toolchain", "actions", "table"]
    try:
        check_bounds(path)
        with parquet.ParquetFile(path) as file:
            same = constants_in(file.schema_arrow.metadata)
            stored = [name for name in columns if name not in same]
            rows = [same | row for row in file.read(columns=stored).to_pylist()]
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
    part: str = TEST  # of the split that was asked for
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


def kernels_of(export: Export, part: str, *, split: str = "workload") -> list[RecordedKernel]:
    """The kernels of a dataset that have replay tables, of one part of a split; `other` is all but the test, `all` is
    all. Calls are those of the workload that runs a kernel most.

    Raises UnknownName for a part, DataError where the dataset has no tables of it.
    """
    if part not in (*PARTS, "other", "all"):
        raise UnknownName("part", part, [*PARTS, "other", "all"])
    tables = read_tables(export.folder)
    column = f"split_{split}"
    parts = {r["id"]: r[column] for r in export.kernels_table(["id", column]).to_pylist()}
    workloads = export.workloads()
    families = families_of(workloads)
    calls: dict[str, int] = {}
    for workload in workloads:
        for call in workload.calls:
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


FORMAT = "kcg-replay-1"


@dataclass(frozen=True)
class Record:
    """One schedule of a table: its identity for transpositions, what measuring it showed, and the steps from it."""

    key: str
    observation: Observation
    actions: tuple[Action, ...] = ()


@dataclass(frozen=True)
class Traits:
    """What a table does not hold of its schedules; without these each kernel speaks for itself. See `StepSpace`."""

    alike: Callable[[Schedule], str] | None = None
    groups: Callable[[Schedule], Hashable] | None = None
    tile: Callable[[Schedule], Hashable] | None = None


class ReplayTable:
    """Recorded schedules of one region. Every action must lead to a schedule of the table.

    Raises:
        DataError: the start, the baseline or the target of an action is not recorded, or a schedule is there twice.
    """

    def __init__(self, records: Iterable[Record], *, start: Schedule, baseline: Schedule) -> None:
        self.records: dict[Schedule, Record] = {}
        self._traits = Traits()
        for record in records:
            if record.observation.schedule in self.records:
                raise DataError(f"replay table: schedule {describe(record.observation.schedule)} is recorded twice")
            self.records[record.observation.schedule] = record
        self._start, self._baseline = start, baseline
        ends = {a.schedule for r in self.records.values() for a in r.actions}
        for schedule in (start, baseline, *sorted(ends, key=describe)):
            if schedule not in self.records:
                raise DataError(f"replay table: schedule {describe(schedule)} is not recorded")

    # a StepSpace

    def start(self) -> Schedule:
        return self._start

    def baseline(self) -> Schedule:
        return self._baseline

    def actions(self, schedule: Schedule) -> list[Action]:
        return list(self._record(schedule).actions)

    def step(self, schedule: Schedule, step: object) -> Schedule | None:
        """Where a step leads, None where the table has no such step."""
        return next((a.schedule for a in self._record(schedule).actions if a.label == str(step)), None)

    def key(self, schedule: Schedule) -> str:
        return self._record(schedule).key

    def prior(self) -> list[Schedule]:
        return [self.baseline()]

    def variants(self, schedule: Schedule) -> list[Schedule]:
        kind = kind_of(schedule)
        return kind.variants(self, schedule) if isinstance(kind, KnowsSteps) else []

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        kind = kind_of(schedule)
        moved = kind.moved(self, schedule) if isinstance(kind, KnowsSteps) else []
        return [*self.variants(schedule), *moved]

    def alike(self, schedule: Schedule) -> str:
        return self._traits.alike(schedule) if self._traits.alike else self.key(schedule)

    def groups(self, schedule: Schedule) -> Hashable:
        return self._traits.groups(schedule) if self._traits.groups else None

    def tile(self, schedule: Schedule) -> Hashable:
        return self._traits.tile(schedule) if self._traits.tile else self.key(schedule)

    def with_traits(self, traits: Traits) -> ReplayTable:
        """The same records, where it is known what schedules have in common."""
        found = copy.copy(self)
        found._traits = traits
        return found

    def _record(self, schedule: Schedule) -> Record:
        if schedule not in self.records:
            raise ScheduleError(f"schedule {describe(schedule)} is not in the replay table")
        return self.records[schedule]

    # measuring

    def measurer(self, ledger: Ledger) -> Measure:
        """A `measure` that answers at once and charges `ledger` once for what is new.

        Each kernel costs a compilation and each binary a measurement. What failed before there was a binary
        (`binary_hash` is empty) costs its compilation only.
        """
        return charged(ledger, self.key, lambda schedules: [self._record(s).observation for s in schedules])

    def problem(
        self,
        predict: Predict,
        *,
        seed: int = 0,
        max_measurements: int | None = None,
        ledger: Ledger | None = None,
        batch_size: int = 4,
    ) -> Problem:
        """This table as a problem of its own, with a budget in measurements or a ledger of the caller's."""
        ledger = ledger or Ledger(max_measurements=max_measurements)
        rng, measure = random.Random(seed), self.measurer(ledger)
        return Problem(self, predict, measure, ledger, rng, batch_size=batch_size)

    @property
    def best_s(self) -> float:
        """The fastest runtime of the table in seconds; infinite where everything failed."""
        return min(r.observation.time_s for r in self.records.values())

    @staticmethod
    def record(space: StepSpace, observations: Iterable[Observation]) -> ReplayTable:
        """A table of what was observed, start and baseline among it; steps to schedules not observed are left out.

        A step may lead to the same kernel by another order of steps: it is recorded as leading to the one observed.

        Raises:
            DataError: the start or the baseline was not observed.
        """
        by_key: dict[str, Observation] = {}
        for observation in observations:
            by_key.setdefault(space.key(observation.schedule), observation)
        records = []
        for key, observation in by_key.items():
            steps = [(a.label, by_key.get(space.key(a.schedule))) for a in space.actions(observation.schedule)]
            actions = tuple(Action(label, end.schedule) for label, end in steps if end is not None)
            records.append(Record(key, observation, actions))
        ends = [by_key.get(space.key(s)) for s in (space.start(), space.baseline())]
        if ends[0] is None or ends[1] is None:
            raise DataError("replay table: the start or the baseline was not observed")
        return ReplayTable(records, start=ends[0].schedule, baseline=ends[1].schedule)

    # JSON

    def to_json(self) -> str:
        """The table as JSON; schedules are named by their place in the list."""
        places = {schedule: i for i, schedule in enumerate(self.records)}
        rows = []
        for record in self.records.values():
            seen = record.observation
            rows.append(
                {
                    "kind": str(seen.schedule.kind),
                    "body": json.loads(seen.schedule.body),
                    "key": record.key,
                    "status": str(seen.status),
                    "runtime_s": seen.runtime_s,
                    "binary_hash": seen.binary_hash,
                    "reason": seen.reason,
                    "actions": [[a.label, places[a.schedule]] for a in record.actions],
                }
            )
        table = {"format": FORMAT, "start": places[self._start], "baseline": places[self._baseline], "schedules": rows}
        return canonical_json(table)

    @staticmethod
    def from_json(text: str) -> ReplayTable:
        """Reads what `to_json` wrote, and nothing else.

        Raises:
            DataError: it is not JSON, not a replay table, or a value in it is of the wrong kind or out of range.
        """
        try:
            data = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise DataError(f"replay table: not JSON ({str(error).splitlines()[0]})") from error
        _fields(data, {"format", "start", "baseline", "schedules"}, "table")
        if data["format"] != FORMAT:
            raise DataError(f"replay table: format {data['format']!r} is not {FORMAT!r}")
        rows = data["schedules"]
        if not isinstance(rows, list):
            raise DataError("replay table: schedules is not a list")
        observations = [_observation(row, i) for i, row in enumerate(rows)]
        records = []
        for i, (row, observation) in enumerate(zip(rows, observations, strict=True)):
            if not isinstance(row["actions"], list):
                raise DataError(f"replay table: actions of schedule {i} are not a list")
            actions = []
            for pair in row["actions"]:
                if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
                    raise DataError(f"replay table: an action of schedule {i} is not [label, place]")
                actions.append(Action(pair[0], observations[_place(pair[1], len(rows))].schedule))
            records.append(Record(row["key"], observation, tuple(actions)))
        ends = [observations[_place(data[name], len(rows))].schedule for name in ("start", "baseline")]
        return ReplayTable(records, start=ends[0], baseline=ends[1])


def charged(
    ledger: Ledger, key: Callable[[Schedule], str], answer: Callable[[Sequence[Schedule]], list[Observation]]
) -> Measure:
    """A `measure` that answers at once by `answer`, and charges each kernel and each binary once."""
    compiled: set[str] = set()
    timed: set[str] = set()

    def measure(schedules: Sequence[Schedule]) -> list[Future[Observation]]:
        futures = []
        for schedule, observation in zip(schedules, answer(schedules), strict=True):
            if (identity := key(schedule)) not in compiled:
                compiled.add(identity)
                ledger.compilations += 1
                if observation.binary_hash and observation.binary_hash not in timed:
                    timed.add(observation.binary_hash)
                    ledger.measurements += 1
            future: Future[Observation] = Future()
            future.set_result(observation)
            futures.append(future)
        return futures

    return measure


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")


def _fields(value: Any, names: set[str], what: str) -> None:
    if not isinstance(value, dict) or set(value) != names:
        raise DataError(f"replay table: {what} does not have exactly the fields {', '.join(sorted(names))}")


def _place(value: Any, count: int) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise DataError(f"replay table: {value!r} is not the place of one of {count} schedules")
    return value


_ROW = {"kind", "body", "key", "status", "runtime_s", "binary_hash", "reason", "actions"}


def _observation(row: Any, i: int) -> Observation:
    _fields(row, _ROW, f"schedule {i}")
    for name in ("kind", "key", "status", "binary_hash", "reason"):
        if not isinstance(row[name], str):
            raise DataError(f"replay table: {name} of schedule {i} is not a string")
    if row["status"] not in set(Status):
        raise DataError(f"replay table: schedule {i} has an unknown kind or status")
    try:
        schedule = parse(row["kind"], canonical_json(row["body"]))
    except ScheduleError as error:
        raise DataError(f"replay table: schedule {i}: {error}") from None
    runtime_s = row["runtime_s"]
    if row["status"] == Status.OK:
        if type(runtime_s) not in (int, float) or not 0 < runtime_s < math.inf:
            raise DataError(f"replay table: runtime of schedule {i} is not a positive number")
        runtime_s = float(runtime_s)
    elif runtime_s is not None:
        raise DataError(f"replay table: schedule {i} failed and has a runtime")
    status, reason = status_and_reason(row["status"], row["reason"])
    return Observation(schedule, status, runtime_s, row["binary_hash"], reason)


# Predictors for ablations


def oracle_predict(table: ReplayTable) -> Predict:
    """Knows every runtime and every failure; of what fails it says the mean of the others."""
    logs = [math.log(r.observation.runtime_s) for r in table.records.values() if r.observation.runtime_s is not None]
    mean = statistics.fmean(logs) if logs else 0.0

    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        times_s = [table.records[schedule].observation.time_s for schedule in schedules]
        return [Prediction(mean, 0.0, 1.0) if math.isinf(t) else Prediction(math.log(t)) for t in times_s]

    return predict


def constant_predict() -> Predict:
    """Knows nothing: a millisecond for every schedule."""
    return lambda schedules: [Prediction(math.log(1e-3)) for _ in schedules]
