"""The journal: everything kcg has measured, in one SQLite file. One transaction per measurement, safe under `kill -9`.

The file is in WAL mode with `synchronous=FULL`: what `record` acknowledged is on disk, and several processes may write.
Resume is `known()` or `has()`: neither looks at run or trial. A query of measurements always names one protocol.
Nothing foreign is decoded here: ids are recomputed as the SHA-256 of their text when a row is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from kcg.dataset.schema import (
    BUSY_TIMEOUT_S,
    CHECK_AT_OPEN_BYTES,
    CHECKSUMS_SCHEMA,
    MEASUREMENT_COLUMNS,
    MEASUREMENT_TYPES,
    SCHEMA_VERSION,
    check,
    check_header,
    check_version,
    insertion,
    make_folder,
    migrate,
    opened,
    sealed,
    selection,
    translated,
)
from kcg.dataset.schema import create as create_tables
from kcg.errors import DataError, JournalError, UsageError
from kcg.files import is_text
from kcg.kernel.symbolic import merged, seen_by
from kcg.types import (
    CacheState,
    Job,
    JobOutcome,
    Kernel,
    Measurement,
    Region,
    Schedule,
    Status,
    Target,
    Toolchain,
    Workload,
    WorkloadCall,
    canonical_json,
    content_id,
    malformed,
)

# ---- What the journal and the export hold, as rows and as nouns: the columns of a measurement, and the way there and
# back.
#
# Nothing foreign is decoded here: a row's types, its times and every field of a stored target are checked one by one.

ROW_ERRORS = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)  # of a foreign row


T = TypeVar("T")


@cache
def _unix_s_of_monotonic_0() -> float:
    return time.time() - time.monotonic()


def unix_now_s() -> float:
    """The time as Unix seconds, by the wall clock as it was when this process asked first: it never steps. A doubt is
    about the rows that were recorded after a check, and a clock that was set back would have put them before it."""
    return _unix_s_of_monotonic_0() + time.monotonic()


@dataclass(frozen=True)
class Chosen:
    """Why a schedule was measured, as far as whoever chose it told; what nobody told is empty or None."""

    pool: str = ""  # from what it was drawn, and after a colon how many schedules that has: see `kcg.dataset.choices`
    scores: str = ""  # JSON: what was expected of it, see `Expected`
    probability: float | None = None  # with which one draw of its sampler gives it

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError for what is none, as a file can have it."""
        if not isinstance(self.pool, str) or not isinstance(self.scores, str):
            raise TypeError("a pool and scores are texts")
        if self.probability is not None and not 0.0 <= self.probability <= 1.0:
            raise ValueError("a probability is between 0 and 1")

    @property
    def expected(self) -> Expected | None:
        """What was expected of it."""
        return expected_from_json(self.scores) if self.scores else None


UNSTATED = Chosen()


@dataclass(frozen=True)
class Record:
    """A measurement, when it was recorded, in Unix seconds, and why it was made."""

    measurement: Measurement
    recorded_unix_s: float
    chosen: Chosen = UNSTATED


@dataclass(frozen=True)
class Run:
    """A host, a device and its clocks on one run, described without naming the host."""

    run_id: str
    started: str  # ISO date and time
    command: str
    description: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError where a field is of another type, or no JSON, as a file can have it."""
        texts = (self.run_id, self.started, self.command)
        if not all(isinstance(text, str) for text in texts) or not isinstance(self.description, Mapping):
            raise TypeError("a run has an id, a time and a command, which are texts, and a description by names")
        canonical_json(dict(self.description))  # which Infinity and NaN are not, though Python reads them


@dataclass(frozen=True)
class Doubt:
    """Rows that are not to be trusted: all that were recorded of a run from a Unix time on.

    A host of a fleet that was found to drift may have drifted since its last check that passed (`kcg.fleet.trust`). Its
    run is over then, but rows of it may still come: another host that makes the same binary shares its timing.
    """

    run_id: str
    since_unix_s: float
    why: str  # in one line

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError for what is none, as a file can have it."""
        if not (isinstance(self.run_id, str) and isinstance(self.why, str)):
            raise TypeError("a doubt has a run and a reason, which are texts")
        if not 0 <= self.since_unix_s <= LATEST_UNIX_S:
            raise ValueError("a doubt has a time from which on it is")


@dataclass(frozen=True)
class Expected:
    """What a search expected of a schedule when it chose it: seconds, and a chance."""

    predicted_s: float  # by the predictor alone
    corrected_s: float | None  # by what was measured of its region before, too; None where it does not learn
    failure_probability: float

    @property
    def seconds(self) -> float:
        """What the search went by."""
        return self.predicted_s if self.corrected_s is None else self.corrected_s


def scores_of(expected: Expected) -> str:
    """What is stored of it."""
    return canonical_json(asdict(expected))


def expected_from_json(text: Any) -> Expected | None:
    """What a stored row says of it; None where nobody stated, or it says something else."""
    with contextlib.suppress(*ROW_ERRORS):
        stated = {name: None if value is None else float(value) for name, value in json.loads(text).items()}
        numbers = [value for value in stated.values() if value is not None]
        if all(map(math.isfinite, numbers)) and min(numbers) >= 0 and stated["predicted_s"] is not None:
            return Expected(stated["predicted_s"], stated["corrected_s"], stated["failure_probability"] or 0.0)
    return None


def measurement_row(m: Measurement) -> tuple[Any, ...]:
    """The values of `MEASUREMENT_COLUMNS`. Raises DataError for a sample that is no time, or `ok` without samples."""
    if not _has_times(m):
        raise DataError(f"status {m.status} with samples {m.samples_s} is no timing: record the failure as a status")
    reason = m.reason.encode("utf-8", "replace").decode()  # a compiler's output may not be text
    return (
        m.region_id,
        str(m.schedule.kind),
        m.schedule.body,
        m.target,
        m.toolchain,
        m.protocol,
        str(m.status),
        str(m.cache_state),
        canonical_json(m.variables),
        m.input_recipe,
        canonical_json(m.samples_s),
        reason,
        m.binary_hash,
        int(m.checked),
        int(m.early_stop),
        m.sampler,
        float(m.compile_s),
        canonical_json(m.launch),
        m.run_id,
        m.trial,
        canonical_json(m.clocks),
    )


_UNJUDGED_ONCE = "cannot be judged: "  # how the reason of a `wrong` row began before there was the status `unjudged`


def status_and_reason(status: str, reason: str) -> tuple[Status, str]:
    """The status and the reason of a stored row in today's words: what older kcg called `wrong` where the reference
    could not tell is `unjudged`. Raises ValueError where there is no such status."""
    if status in (Status.WRONG, Status.UNJUDGED) and reason.startswith(_UNJUDGED_ONCE):
        return Status.UNJUDGED, reason.removeprefix(_UNJUDGED_ONCE)
    return Status(status), reason


def measurement_from_row(row: Sequence[Any]) -> Measurement:
    """The inverse of `measurement_row`. Raises one of `ROW_ERRORS` where the row is not one."""
    for (name, kind), value in zip(MEASUREMENT_TYPES.items(), row, strict=True):
        if not isinstance(value, kind):  # SQLite keeps any type in any column
            raise TypeError(f"{name} is a {type(value).__name__}")
    (
        region_id,
        schedule_kind,
        body,
        target,
        toolchain,
        protocol,
        status,
        cache_state,
        variables,
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
    ) = row
    status, reason = status_and_reason(status, reason)
    made = Measurement(
        region_id,
        Schedule(schedule_kind, body),
        target,
        toolchain,
        protocol,
        status,
        CacheState(cache_state),
        variables_from_json(variables),
        input_recipe,
        tuple(float(s) for s in json.loads(samples_s)),
        reason,
        binary_hash,
        bool(checked),
        bool(early_stop),
        sampler,
        compile_s,
        launch_from_json(launch),
        run_id,
        trial,
        tuple((str(name), float(value)) for name, value in json.loads(clocks)),
    )
    if not _has_times(made):
        raise ValueError("its samples are no times")
    if not all(is_text(name) for name, _ in made.clocks):  # JSON can spell what no file holds
        raise ValueError("the name of a reading is no text")
    return made


def job_row(job: Job) -> tuple[Any, ...]:
    """The values of the columns of `jobs`."""
    return (
        str(job.kind),
        job.subject,
        job.resource,
        float(job.start_s),
        float(job.seconds),
        str(job.outcome),
        job.saving_s,
        job.run_id,
        job.schedule,
        " ".join(job.binaries),
        job.sampled_s,
    )


def job_from_row(row: Sequence[Any]) -> Job:
    """The inverse of `job_row`. Raises one of `ROW_ERRORS` where the row is not one."""
    kind, subject, resource, start_s, seconds, outcome, saving_s, run_id, schedule, binaries, sampled_s = row
    if not all(isinstance(text, str) for text in (kind, subject, resource, run_id, schedule, binaries)):
        raise TypeError("a text is none")
    if not all(one is None or math.isfinite(one) for one in (start_s, seconds, saving_s, sampled_s)):
        raise ValueError("a time is none")
    if start_s < 0 or seconds < 0:
        raise ValueError("it takes less than no time, or begins before its run")
    ended, programs = JobOutcome(outcome), tuple(binaries.split())
    return Job(kind, subject, resource, start_s, seconds, ended, saving_s, schedule, programs, sampled_s, run_id)


@lru_cache(1 << 12)
def variables_from_json(text: str) -> tuple[tuple[str, int], ...]:
    """`Measurement.variables`. Raises one of `ROW_ERRORS`."""
    return tuple((str(name), int(value)) for name, value in json.loads(text))


@lru_cache(1 << 14)
def launch_from_json(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`Measurement.launch`. Raises one of `ROW_ERRORS`."""
    grid, local = json.loads(text)
    return tuple(int(x) for x in grid), tuple(int(x) for x in local)


def _has_times(m: Measurement) -> bool:
    return all(math.isfinite(s) and s >= 0 for s in m.samples_s) and (m.status != Status.OK or bool(m.samples_s))


_FIELD_CHECKS: dict[str, Callable[[Any], bool]] = {
    "str": lambda v: isinstance(v, str),
    "int": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "bool": lambda v: isinstance(v, bool),
    "float | None": lambda v: v is None or (isinstance(v, int | float) and not isinstance(v, bool)),
    "tuple[str, ...]": lambda v: isinstance(v, tuple) and all(isinstance(x, str) for x in v),
}


def record_from_json(cls: type[T], text: str) -> T:
    """A Target or a Toolchain from its canonical JSON, every field checked. Raises one of `ROW_ERRORS`."""
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(text).items()}
    for f in fields(cls):  # type: ignore[arg-type]
        if f.name not in values and f.default is not MISSING:
            continue  # written before there was such a field
        if f.name not in values or not _FIELD_CHECKS[str(f.type)](values[f.name]):
            raise ValueError(f"field {f.name!r} is missing or of the wrong type")
    return cls(**values)


def values_of(record: Target | Toolchain, fingerprint: str) -> dict[str, Any]:
    """The fields of a Target or a Toolchain that hash to its fingerprint: without those that are newer than it."""
    values = asdict(record)
    while values and content_id(values) != fingerprint:
        values.popitem()  # new fields are the last
    if not values:
        raise DataError(f"{type(record).__name__} {fingerprint} does not hash to its fingerprint: restore a copy")
    return values


def wiring_json(region: Region) -> list[Any]:
    """What is stored of a region beside its kernels: nothing of one kernel, else its args and its outputs."""
    return [] if len(region.kernels) == 1 else [[list(slots) for slots in region.args], list(region.outputs)]


def region_from_json(kernel_ids: list[str], wiring: list[Any], kernels: Mapping[str, Kernel]) -> Region:
    """A region from its stored JSON values, see `wiring_json`. Raises one of `ROW_ERRORS`."""
    args, outputs = wiring or ((), ())
    made = Region(
        tuple(kernels[k] for k in kernel_ids),
        tuple(tuple(int(number) for number in slots) for slots in args),
        tuple(int(number) for number in outputs),
    )
    if wrong := malformed(made):
        raise ValueError(wrong)
    return made


def identity_of(key: Sequence[Any]) -> bytes:
    """The SHA-256 by which a `Measurement.key` is stored."""
    return bytes.fromhex(content_id(list(key)))


__all__ = ["Chosen", "Doubt", "Journal", "Record", "Run"]

PAGE_ROWS = 1000
LATEST_UNIX_S = 2.0**40  # of a recording: 36,000 years from now
BULK_CACHE_KIB = 256 << 10
IN_DOUBT = "doubts.run_id = measurements.run_id AND measurements.recorded_unix_s >= doubts.since_unix_s"
"""The condition of SQL that holds for a row of measurements and a doubt about it."""


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file a path names; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _text_id(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Journal:
    """One open journal; use `Journal.open`, and `close` it or use it in a `with`.

    It may be shared by threads, not by forked processes: each process opens its own.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self._connection = connection
        self._version = SCHEMA_VERSION
        self._generators: dict[str, int] = {}  # by toolchain
        self._lock = threading.RLock()
        self._place = path.absolute()
        self._file = _file_at(self._place)

    @classmethod
    def open(cls, path: Path | str, *, create: bool = True, read_only: bool = False) -> Journal:
        """Opens a journal, and creates it and its folder where `create` allows and nothing is there.

        `read_only` needs an existing journal and works in a folder that cannot be written.
        Raises JournalError (missing, corrupt, foreign, another schema; the file is left as it is) or UsageError.
        """
        path, create = Path(path), create and not read_only
        exists = check_header(path, create=create)
        mode = "rwc" if create else "rw"
        if not exists:
            make_folder(path.parent)
        elif not (os.access(path.parent, os.W_OK) and os.access(path, os.W_OK)):
            if not read_only:
                raise UsageError(f"{path} cannot be written: copy it to a folder of yours, or open it read-only")
            # SQLite cannot read a WAL without writing its index beside it; without a WAL nobody is writing either
            wal = path.with_name(path.name + "-wal")
            if wal.exists() and wal.stat().st_size:
                raise JournalError(f"{path} has rows in {wal.name}, in a read-only folder: copy both elsewhere")
            mode = "ro&immutable=1"
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        with translated(path):
            connection = sqlite3.connect(
                uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        journal = cls(path, connection, read_only=read_only)
        try:
            with translated(path):
                journal._prepare(create=create and not exists, immutable="immutable" in mode)
        except BaseException:
            connection.close()
            raise
        return journal

    def _prepare(self, *, create: bool, immutable: bool) -> None:
        has_tables = "SELECT 1 FROM sqlite_master LIMIT 1"
        if create and not self._rows(has_tables):
            with self._transaction() as connection:
                if not self._rows(has_tables):  # another process may have been faster
                    create_tables(connection)
        if self.read_only or self.path.stat().st_size <= CHECK_AT_OPEN_BYTES:  # who only reads will read all of it
            self.check()
        self._version = check_version(self.path, self._connection)
        if immutable:
            return
        # the schema was written before WAL began, so that the file's own header always tells what it is
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode=WAL").fetchone()
                break
            except sqlite3.OperationalError as e:  # two processes that create it: the busy timeout does not cover this
                if "locked" not in str(e) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self._connection.execute("PRAGMA synchronous=FULL")
        if self.read_only:
            self._connection.execute("PRAGMA query_only=ON")
        elif self._version < SCHEMA_VERSION:
            with self.bulk():
                if check_version(self.path, self._connection) < SCHEMA_VERSION:  # another process may have been faster
                    migrate(self.path, self._connection)
            self._version = SCHEMA_VERSION

    def check(self) -> None:
        """Reads the whole file and raises JournalError where its structure or a row of it is damaged."""
        with self._lock:
            check(self.path, self._connection)

    def moved(self) -> str:
        """What became of the open file, in words, if it is no longer what its path names: SQLite writes on into a file
        that was deleted, and says nothing. Empty if all is well."""
        found = _file_at(self._place)
        if found == self._file:
            return ""
        return "was deleted" if found is None else "was replaced by another file"

    def close(self) -> None:
        """Closes the file; safe to call twice."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        with self._lock, translated(self.path):
            if self._connection.in_transaction:  # inside a snapshot or a larger transaction
                yield self._connection
                return
            self._connection.execute(begin)
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite itself rolls back when the disk is full
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything read inside is of one moment, whatever other processes write meanwhile. Do not write inside."""
        with self._transaction("BEGIN"):
            yield

    @contextlib.contextmanager
    def bulk(self) -> Iterator[None]:
        """One transaction for all that is written inside: for copying, where a row need not be safe on its own."""
        # identities are random, so each row changes a random page of their index: with SQLite's own 2 MB of cache a row
        # took 50 µs at first and 80 at 600,000
        self._rows(f"PRAGMA cache_size=-{BULK_CACHE_KIB}")
        with self._transaction():
            yield

    # -- writing: each is idempotent, and on disk when it returns; each returns whether something was new
    def record(
        self,
        measurement: Measurement,
        *,
        recorded_unix_s: float | None = None,
        jobs: Sequence[Job] = (),
        chosen: Chosen = UNSTATED,
    ) -> bool:
        """Stores one measurement in one transaction, with `jobs` and why it was made; False where that identity, run
        and trial are already there."""
        recorded = unix_now_s() if recorded_unix_s is None else recorded_unix_s
        values = (identity_of(measurement.key), float(recorded), *measurement_row(measurement))
        with self._transaction():
            self.add_jobs(jobs)
            version = self._generator_of(measurement.toolchain)
            why = (version, chosen.pool or None, chosen.scores or None, chosen.probability)
            return self._insert("measurements", (*values, *why))

    def add_jobs(self, jobs: Sequence[Job]) -> None:
        """Stores what a run did, in one transaction. Not idempotent: nothing tells two jobs from each other."""
        if jobs:
            rows = [sealed("jobs", job_row(job)) for job in jobs]
            with self._transaction() as connection:
                connection.executemany(insertion("jobs"), rows)

    def _generator_of(self, toolchain: str) -> str | None:
        """The version of the generator in a toolchain; None where it has none, or was not added yet."""
        if toolchain not in self._generators:
            self._generators = {fingerprint: one.generator for fingerprint, one in self.toolchains().items()}
        version = self._generators.get(toolchain)
        return str(version) if version else None

    def add_kernel(self, kernel: Kernel, *, workload: str = "") -> bool:
        """`workload` is where it was first seen, as `name/preset`."""
        return self._insert("kernels", (kernel.id, kernel.ast_json, workload))

    def add_region(self, region: Region, *, workload: str = "") -> bool:
        with self._transaction():
            for kernel in region.kernels:
                self.add_kernel(kernel, workload=workload)
            values = (region.id, canonical_json([k.id for k in region.kernels]), canonical_json(wiring_json(region)))
            return self._insert("regions", values)

    def add_workload(self, workload: Workload) -> bool:
        """Stores its regions and calls; a changed definition replaces the old calls, and no kernel is ever removed.

        A row is a call with one set of values of its variables.
        """
        seen = [(c, variables, count) for c in workload.calls for variables, count in seen_by(c)]
        rows = [
            (workload.name, workload.preset, i, c.region.id, canonical_json(variables), count, c.origin)
            for i, (c, variables, count) in enumerate(seen)
        ]
        of_it = "WHERE workload=? AND preset=? ORDER BY position"
        with self._transaction() as connection:
            for call in workload.calls:
                self.add_region(call.region, workload=f"{workload.name}/{workload.preset}")
            values = (workload.name, workload.preset)
            if [tuple(row) for _, *row in self._stored("workload_calls", of_it, values)] == rows:
                return False
            connection.execute("DELETE FROM workload_calls WHERE workload=? AND preset=?", values)
            for row in rows:
                self._insert("workload_calls", row)
            return True

    def add_target(self, target: Target, fingerprint: str = "") -> bool:
        """`fingerprint` is the one it was first stored under, where a field is newer than that."""
        return self._add_device("targets", target, fingerprint or target.fingerprint)

    def add_toolchain(self, toolchain: Toolchain, fingerprint: str = "") -> bool:
        return self._add_device("toolchains", toolchain, fingerprint or toolchain.fingerprint)

    def _add_device(self, table: str, record: Target | Toolchain, fingerprint: str) -> bool:
        values = (fingerprint, canonical_json(values_of(record, fingerprint)))
        return self._insert(table, values)

    def add_devices_of(self, source: Journal) -> None:
        """The targets and toolchains of another journal, as it stores them: a field that is newer changes no id."""
        with self._transaction():
            for table in ("targets", "toolchains"):
                for _, *values in source._stored(table):
                    self._insert(table, values)

    def add_run(self, run: Run) -> bool:
        """The description must not name the host, its user or a device's serial number: journals are published."""
        values = (run.run_id, canonical_json(dict(run.description)), run.started, run.command)
        return self._insert("runs", values)

    def _insert(
        self, table: str, values: Sequence[Any], *, replacing: bool = False, otherwise: str = "DO NOTHING"
    ) -> bool:
        statement = insertion(table, replacing=replacing, otherwise=otherwise)
        with self._transaction() as connection:
            return connection.execute(statement, sealed(table, values)).rowcount == 1

    def add_lattice(self, region_id: str, target: str, toolchain: str, declaration: str) -> bool:
        """Stores what a replay table is to hold, as `kcg.campaign.tables` declares it. Its schedules are rows."""
        return self._insert("lattices", (region_id, target, toolchain, declaration), replacing=True)

    def add_paired_result(self, key: Sequence[Any], text: str) -> bool:
        """Stores what judging showed, as `kcg.judge.kept` puts it, in the place of an earlier one of its key."""
        return self._insert("verdicts", (identity_of(key), text), replacing=True)

    def add_doubt(self, doubt: Doubt) -> bool:
        """Marks what a run recorded as doubtful: no reading gives these rows any more, unless it asks for them. Of two
        doubts about a run the one that reaches further back stays."""
        changed = ", ".join(f"{name}=excluded.{name}" for name in ("since_unix_s", "why", "checksum"))
        return self._insert(
            "doubts",
            (doubt.run_id, float(doubt.since_unix_s), doubt.why),
            otherwise=f"(run_id) DO UPDATE SET {changed} WHERE excluded.since_unix_s < since_unix_s",
        )

    def forget_paired_results(self) -> None:
        """Removes what `verdicts` gives; the measurements, those of validation too, stay."""
        self._rows("DELETE FROM verdicts")

    # -- reading

    def paired_results(self) -> dict[bytes, str]:
        """What judging showed, by the `identity_of` its key."""
        return {identity: text for _, identity, text in self._stored("verdicts")}

    def lattices(self, target: str, toolchain: str) -> dict[str, str]:
        """The declared lattice of each region that has one."""
        rows = self._stored("lattices", "WHERE target=? AND toolchain=? ORDER BY region_id", (target, toolchain))
        return {region_id: declaration for _, region_id, _, _, declaration in rows}

    def doubts(self) -> list[Doubt]:
        """What is marked as doubtful, by run."""
        return list(self.doubtful_rows())

    def doubtful_rows(self) -> dict[Doubt, int]:
        """How many rows each doubt is about."""
        counted, found = "SELECT COUNT(*) FROM measurements WHERE run_id=? AND recorded_unix_s>=?", {}
        for _, *values in self._stored("doubts", "ORDER BY run_id"):
            with self._row("doubts", values[0]):
                doubt = Doubt(*values)
                found[doubt] = int(self._rows(counted, (doubt.run_id, doubt.since_unix_s))[0][0])
        return found

    def _trusted(self) -> str:
        """The condition of SQL that holds for rows of measurements which are not doubtful."""
        return f"NOT EXISTS (SELECT 1 FROM doubts WHERE {IN_DOUBT})" if self._has_table("doubts") else "1"

    def has(self, key: Sequence[Any]) -> bool:
        """Whether a measurement of this `Measurement.key` was recorded, in any run and trial, and is not doubtful."""
        query = f"SELECT 1 FROM measurements WHERE identity=? AND {self._trusted()} LIMIT 1"
        return bool(self._rows(query, (identity_of(key),)))

    def measured_elsewhere(self, target: str, toolchains: Sequence[str], protocol: int) -> int:
        """How many measurements are of another target, toolchain or protocol: a resume keeps and never uses them."""
        here = (target, protocol, *toolchains)
        ours = f"target = ? AND protocol = ? AND toolchain IN ({', '.join('?' * len(toolchains))})"
        return int(self._rows(f"SELECT COUNT(*) FROM measurements WHERE NOT ({ours})", here)[0][0])

    def known(
        self, target: str, toolchain: str, protocol: int, *, region_id: str | None = None, status: Status | None = None
    ) -> Iterator[Measurement]:
        """Every measurement of a target and toolchain (by fingerprint) under one protocol, oldest first; none that is
        doubtful, so that a resume measures it again."""
        where, values = "target=? AND toolchain=?", [target, toolchain]
        if region_id is not None:
            where, values = f"{where} AND region_id=?", [*values, region_id]
        if status is not None:  # what is stored as `wrong` may be `unjudged` in today's words
            where, values = f"{where} AND status IN (?, ?)", [*values, str(status), str(Status.WRONG)]
        found = (r.measurement for r in self._records(protocol, where, values))
        return (m for m in found if status in (None, m.status))

    def schedules_known(
        self, target: str, toolchain: str, protocol: int
    ) -> dict[tuple[str, tuple[tuple[str, int], ...], str], int]:
        """How many schedules a search has measured of each region, values of its variables and kind."""
        rows = self._rows(
            f"""SELECT region_id, variables, schedule_kind, COUNT(DISTINCT schedule_body) FROM measurements
            WHERE target=? AND toolchain=? AND protocol=? AND early_stop=1 AND {self._trusted()}
            GROUP BY region_id, variables, schedule_kind""",
            (target, toolchain, protocol),
        )
        return {
            (region_id, tuple((str(name), int(value)) for name, value in json.loads(variables)), kind): count
            for region_id, variables, kind, count in rows
        }

    def measurements(self, protocol: int) -> Iterator[Measurement]:
        """Every measurement under one protocol that is not doubtful, oldest first."""
        return (r.measurement for r in self._records(protocol, "1", []))

    def records(self, protocol: int, *, doubtful: bool = False) -> Iterator[Record]:
        """Like `measurements`, with the time at which each was recorded; `doubtful` ones, too, where they are asked
        for."""
        return self._records(protocol, "1", [], doubtful=doubtful)

    def _records(self, protocol: int, where: str, values: list[str], *, doubtful: bool = False) -> Iterator[Record]:
        # Page by page: a cursor left open would hold a snapshot, and this connection's next write would fail as stale.
        after = 0
        trusted = "1" if doubtful else self._trusted()
        page = f"WHERE protocol=? AND {where} AND {trusted} AND row>? ORDER BY row LIMIT {PAGE_ROWS}"
        while rows := self._stored("measurements", page, (protocol, *values, after)):
            yield from map(self._record, rows)
            after = rows[-1][0]

    def sorted_records(self) -> Iterator[Record]:
        """Everything that is not doubtful, of every protocol, in an order that does not depend on when it was recorded:
        for an export. Read it inside a `snapshot`, which the open cursor needs."""
        order = "region_id, target, toolchain, protocol, schedule_kind, schedule_body, identity, run_id, trial"
        query = f"{selection('measurements', self._version)} WHERE {self._trusted()} ORDER BY {order}"
        with self._lock, translated(self.path):
            for row in self._connection.execute(query):
                yield self._record(opened(self.path, "measurements", row, self._version))

    def _record(self, row: Sequence[Any]) -> Record:
        number, identity, recorded, *rest = row
        with self._row("measurements", number):
            _, pool, scores, probability = rest[len(MEASUREMENT_COLUMNS) :] or (None,) * 4
            chosen = Chosen(pool or "", scores or "", probability)
            record = Record(measurement_from_row(rest[: len(MEASUREMENT_COLUMNS)]), float(recorded), chosen)
            if not 0 <= record.recorded_unix_s <= LATEST_UNIX_S:
                raise ValueError("the time of its recording is none")
            if identity_of(record.measurement.key) != identity:
                raise ValueError("it does not hash to its identity")
        return record

    def protocols(self) -> list[int]:
        """The versions of the protocol that have measurements."""
        return [row[0] for row in self._rows("SELECT DISTINCT protocol FROM measurements ORDER BY protocol")]

    def constants(self, names: Sequence[str]) -> dict[str, Any]:
        """Of these columns of measurements those in which every row has the same value, with the value; without what is
        doubtful."""
        columns = ", ".join(f"MIN({name}), MAX({name})" for name in names)
        ((rows, *found),) = self._rows(f"SELECT COUNT(*), {columns} FROM measurements WHERE {self._trusted()}")
        least_and_most = zip(names, found[::2], found[1::2], strict=True)
        return {name: least for name, least, most in least_and_most if rows and least == most}

    def has_choices(self) -> bool:
        """Whether some row that is not doubtful says why it was chosen."""
        if self._version < CHECKSUMS_SCHEMA:
            return False
        some = "pool IS NOT NULL OR scores IS NOT NULL OR probability IS NOT NULL"
        return bool(self._rows(f"SELECT 1 FROM measurements WHERE ({some}) AND {self._trusted()} LIMIT 1"))

    def kernels(self) -> dict[str, Kernel]:
        """Every kernel by id, in the order in which they were added."""
        return self._by_id("kernels", "ORDER BY rowid", Kernel)

    def targets(self) -> dict[str, Target]:
        """Every target by fingerprint."""
        return self._by_id("targets", "ORDER BY fingerprint", lambda text: record_from_json(Target, text))

    def toolchains(self) -> dict[str, Toolchain]:
        """Every toolchain by fingerprint."""
        return self._by_id("toolchains", "ORDER BY fingerprint", lambda text: record_from_json(Toolchain, text))

    def _by_id(self, table: str, order: str, build: Callable[[str], T]) -> dict[str, T]:
        found = {}
        for _, row_id, text, *_ in self._stored(table, order):
            with self._row(table, row_id):
                if _text_id(text) != row_id:
                    raise ValueError("its content does not hash to its id")
                found[row_id] = build(text)
        return found

    def regions(self) -> dict[str, Region]:
        """Every region by id."""
        kernels, found = self.kernels(), {}
        for _, row_id, kernel_ids, wiring in self._stored("regions", "ORDER BY rowid"):
            with self._row("regions", row_id):
                found[row_id] = region_from_json(json.loads(kernel_ids), json.loads(wiring), kernels)
                if found[row_id].id != row_id:
                    raise ValueError("its content does not hash to its id")
        return found

    def workloads(self) -> list[Workload]:
        """Every workload, by name and preset, its calls in their order; those of a kernel with variables are one."""
        regions = self.regions()
        calls: dict[tuple[str, str], list[WorkloadCall]] = {}
        rows = self._stored("workload_calls", "ORDER BY workload, preset, position")
        for _, name, preset, position, region_id, variables, count, origin in rows:
            with self._row("workload_calls", f"{name}/{preset} {position}"):
                if not all(isinstance(text, str) for text in (name, preset, origin)):
                    raise TypeError("a name is no text")
                pairs = tuple((str(n), int(v)) for n, v in json.loads(variables))
                calls.setdefault((name, preset), []).append(WorkloadCall(regions[region_id], int(count), pairs, origin))
        return [Workload(name, preset, merged(several)) for (name, preset), several in calls.items()]

    def first_seen(self) -> dict[str, str]:
        """Kernel id -> the workload (`name/preset`) in which it was first seen, empty where none was named."""
        found = {}
        for _, kernel_id, _, name in self._stored("kernels", "ORDER BY rowid"):
            with self._row("kernels", kernel_id):
                if not isinstance(name, str):
                    raise TypeError("the name of its workload is no text")
                found[kernel_id] = name
        return found

    def jobs(self) -> list[Job]:
        """What runs did, about in the order in which it ended; none of a journal of an older schema: nobody said."""
        found = []
        for number, *row in self._stored("jobs", "ORDER BY row") if self._version >= SCHEMA_VERSION else ():
            with self._row("jobs", number):
                found.append(job_from_row(row))
        return found

    def runs(self) -> dict[str, Run]:
        """Every run by id."""
        found = {}
        for _, run_id, text, started, command in self._stored("runs", "ORDER BY run_id"):
            with self._row("runs", run_id):
                found[run_id] = Run(run_id, started, command, dict(json.loads(text)))
        return found

    def counts(self) -> dict[str, int]:
        """Rows of each table."""
        tables = ("kernels", "regions", "workload_calls", "targets", "toolchains", "runs", "measurements")
        return {table: self._rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables}

    def _has_table(self, name: str) -> bool:
        return bool(self._rows("SELECT 1 FROM sqlite_master WHERE name=?", (name,)))

    def _stored(self, table: str, which: str = "", values: tuple[Any, ...] = ()) -> list[Sequence[Any]]:
        """Rows of a table as they were written: a number, and the values of its `COLUMNS`; none of a table that a
        journal of an older schema lacks. Raises JournalError."""
        if self._version < SCHEMA_VERSION and not self._has_table(table):
            return []
        rows = self._rows(f"{selection(table, self._version)} {which}", values)
        return [opened(self.path, table, row, self._version) for row in rows]

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._lock, translated(self.path):
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _row(self, table: str, row: object) -> Iterator[None]:
        try:
            yield
        except ROW_ERRORS as e:
            raise JournalError(f"{self.path}: row {row} of {table} cannot be trusted ({e}): restore a copy") from e
