"""Whatever flips in a journal: a reader gives the rows that were written, or says that it is damaged."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from kcg.dataset import wal
from kcg.dataset.journal import Doubt, Journal
from kcg.dataset.schema import APPLICATION_ID, CHOICE_COLUMNS, COLUMNS, SCHEMA_VERSION, glance
from kcg.errors import JournalError
from kcg.types import Job, JobKind, JobOutcome
from tests.dataset.test_journal import TARGET, TOOLCHAIN, fill, measurement

IDS = (TARGET.fingerprint, TOOLCHAIN.fingerprint, 1)

JOBS = [
    Job(JobKind.COMPILE, "a region", "core", 1.5, 0.25, JobOutcome.OK, None, "12ab", ("34cd",), None, "r1"),
    Job(JobKind.PAIRED, "a region", "device:0", 2.0, 1.0, JobOutcome.OK, 1e-5, "", ("34cd", "56ef"), 0.5, "r1"),
    Job("draw timed", "", "core", 0.5, 9.0, JobOutcome.STOPPED, run_id="r2"),
]


def filled(path: Path) -> Path:
    """A journal with rows in every table that has a reader, and with free pages."""
    with Journal.open(path) as journal:
        fill(journal)
        for number in range(10, 40):
            journal.record(
                measurement(number, early_stop=number % 2 == 0, reason="x" * number * 20), recorded_unix_s=1e9
            )
        journal.record(measurement(50, run_id="r2"), recorded_unix_s=1e9)
        journal.add_lattice("a region", TARGET.fingerprint, TOOLCHAIN.fingerprint, '{"points": 3}')
        journal.add_paired_result(["gone"], "y" * 30_000)
        journal.forget_paired_results()
        journal.add_paired_result(["key"], '{"outcome": 1}')
        journal.add_doubt(Doubt("r2", 1e9, "its host drifts"))
        journal.add_jobs(JOBS)
    return path


def seen(journal: Journal) -> list[Any]:
    """All that a journal tells."""
    with journal.snapshot():
        exported = list(journal.sorted_records())
    return [
        exported,
        list(journal.records(1, doubtful=True)),
        list(journal.known(*IDS)),
        [journal.has(measurement(number).key) for number in (0, 10, 25, 39, 50, 99)],
        journal.schedules_known(*IDS),
        journal.measured_elsewhere(IDS[0], [IDS[1]], 1),
        journal.protocols(),
        journal.constants(["sampler", "protocol", "target"]),
        journal.kernels(),
        journal.regions(),
        journal.workloads(),
        journal.first_seen(),
        journal.targets(),
        journal.toolchains(),
        journal.runs(),
        journal.counts(),
        journal.jobs(),
        journal.paired_results(),
        journal.lattices(*IDS[:2]),
        journal.doubtful_rows(),
    ]


def read(path: Path, **how: bool) -> list[Any] | None:
    """What readers say of a journal; None where it is refused in one line."""
    try:
        with Journal.open(path, create=False, **how) as journal:
            return seen(journal)
    except JournalError as error:
        assert "\n" not in str(error) and str(error).isprintable() and str(path) in str(error)
        return None


def glanced(path: Path) -> Any:
    try:
        return glance(path)
    except JournalError:
        return None


def damages(data: bytes, count: int, rng: random.Random) -> list[bytes]:
    """Copies of a file, each with one bit or one byte changed; half of them among what is in use."""
    found = []
    for number in range(count):
        place = rng.randrange(len(data))
        while number % 2 and not data[place]:
            place = rng.randrange(len(data))
        changed = data[place] ^ (1 << rng.randrange(8) if number % 3 else rng.randrange(1, 256))
        found.append(data[:place] + bytes([changed]) + data[place + 1 :])
    return found


@pytest.mark.parametrize(
    ("seed", "count"), [(0, 30), *(pytest.param(seed, 1500, marks=pytest.mark.slow) for seed in range(1, 5))]
)
def test_no_reader_gives_what_was_not_written(tmp_path: Path, seed: int, count: int) -> None:
    whole = filled(tmp_path / "whole.sqlite")
    truth, first, path, refused = read(whole, read_only=True), glance(whole), tmp_path / "damaged.sqlite", 0
    assert truth is not None
    for data in damages(whole.read_bytes(), count, random.Random(seed)):
        path.write_bytes(data)
        assert glanced(path) in (first, None)
        found = read(path, read_only=True)
        assert found in (truth, None)
        refused += found is None
        path.write_bytes(data)
        assert read(path) in (truth, None), "also who writes on"
    assert refused > count / 10


@pytest.mark.parametrize(("seed", "count"), [(0, 20), pytest.param(1, 1500, marks=pytest.mark.slow)])
def test_no_row_that_another_follows_is_lost_with_a_wal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, count: int
) -> None:
    """As a process that was killed leaves it. Who writes last may be torn by a power cut, and nobody can tell."""
    monkeypatch.setattr(wal, "PAUSE_S", 0.0)  # nobody writes
    path, beside = tmp_path / "damaged.sqlite", tmp_path / "damaged.sqlite-wal"

    def copied(journal: Journal) -> tuple[bytes, bytes]:
        return journal.path.read_bytes(), journal.path.with_name("whole.sqlite-wal").read_bytes()

    def put(data: bytes, log: bytes) -> None:
        for name in tmp_path.glob("damaged*"):
            name.unlink()
        path.write_bytes(data), beside.write_bytes(log)

    with Journal.open(tmp_path / "whole.sqlite") as journal:
        fill(journal)
        for n in range(10, 20):
            journal.record(measurement(n), recorded_unix_s=1e9)
        before = copied(journal)
        journal.record(measurement(20), recorded_unix_s=1e9)
        data, log = copied(journal)
    put(*before)
    without_last = read(path, read_only=True)
    put(data, log)
    truth = read(path, read_only=True)
    assert truth is not None and without_last not in (truth, None)
    refused = 0
    for changed in damages(log, count, random.Random(seed)):
        put(data, changed)
        found = read(path, read_only=True)
        assert found in (truth, without_last, None)
        refused += found is None
        place = next(at for at, (a, b) in enumerate(zip(log, changed, strict=True)) if a != b)
        assert found is None or place < 32 or place >= len(before[1]) or found == truth
    assert refused > count / 2


OLD = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE kernels(id TEXT PRIMARY KEY, ast_json TEXT NOT NULL, first_seen_workload TEXT NOT NULL);
CREATE TABLE regions(id TEXT PRIMARY KEY, kernel_ids TEXT NOT NULL, wiring TEXT NOT NULL);
CREATE TABLE workload_calls(workload TEXT NOT NULL, preset TEXT NOT NULL, position INTEGER NOT NULL,
  region_id TEXT NOT NULL, variables TEXT NOT NULL, calls INTEGER NOT NULL, origin TEXT NOT NULL,
  PRIMARY KEY(workload, preset, position));
CREATE TABLE targets(fingerprint TEXT PRIMARY KEY, json TEXT NOT NULL);
CREATE TABLE toolchains(fingerprint TEXT PRIMARY KEY, json TEXT NOT NULL);
CREATE TABLE runs(run_id TEXT PRIMARY KEY, json TEXT NOT NULL, started TEXT NOT NULL, command TEXT NOT NULL);
CREATE TABLE measurements(row INTEGER PRIMARY KEY, identity BLOB NOT NULL, recorded_unix_s REAL NOT NULL,
  region_id TEXT NOT NULL, schedule_kind TEXT NOT NULL, schedule_body TEXT NOT NULL, target TEXT NOT NULL,
  toolchain TEXT NOT NULL, protocol INTEGER NOT NULL, status TEXT NOT NULL, cache_state TEXT NOT NULL,
  variables TEXT NOT NULL, input_recipe TEXT NOT NULL, samples_s TEXT NOT NULL, reason TEXT NOT NULL,
  binary_hash TEXT NOT NULL, checked INTEGER NOT NULL, early_stop INTEGER NOT NULL, sampler TEXT NOT NULL,
  compile_s REAL NOT NULL, launch TEXT NOT NULL, run_id TEXT NOT NULL, trial INTEGER NOT NULL, clocks TEXT NOT NULL);
CREATE UNIQUE INDEX measurements_identity ON measurements(identity, run_id, trial);
CREATE INDEX measurements_region ON measurements(region_id, target, toolchain, protocol);
"""
WITH_DOUBTS = """
CREATE TABLE lattices(region_id TEXT NOT NULL, target TEXT NOT NULL,
  toolchain TEXT NOT NULL, declaration TEXT NOT NULL, PRIMARY KEY(region_id, target, toolchain));
CREATE TABLE verdicts(identity BLOB PRIMARY KEY, verdict TEXT NOT NULL);
CREATE TABLE doubts(run_id TEXT PRIMARY KEY, since_unix_s REAL NOT NULL, why TEXT NOT NULL);
"""


JOBS_OF_SCHEMA_3 = """
DROP TABLE jobs;
CREATE TABLE jobs(row INTEGER PRIMARY KEY, kind TEXT NOT NULL, subject TEXT NOT NULL, resource TEXT NOT NULL, \
start REAL NOT NULL, seconds REAL NOT NULL, outcome TEXT NOT NULL, saving REAL, checksum BLOB NOT NULL);
CREATE INDEX jobs_subject ON jobs(subject, kind);
UPDATE meta SET value = '3' WHERE key = 'schema';
PRAGMA user_version = 3;
"""


def of_schema(version: int, new: Path, old: Path) -> Path:
    """The same rows as that version of kcg kept them. The first had no doubts, the third checksums."""
    if version == 3:
        shutil.copy(new, old)
        with contextlib.closing(sqlite3.connect(old, isolation_level=None)) as connection:
            connection.executescript(JOBS_OF_SCHEMA_3)
        return old
    with contextlib.closing(sqlite3.connect(old, isolation_level=None)) as connection:
        connection.executescript(OLD + WITH_DOUBTS * (version > 1))
        connection.execute("INSERT INTO meta VALUES('format', 'kcg journal'), ('schema', ?)", (str(version),))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("ATTACH ? AS new", (str(new),))
        tables = {name for (name,) in connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")}
        for table in tables - {"meta"}:
            names = ", ".join(name for name in COLUMNS[table] if name not in CHOICE_COLUMNS)
            connection.execute(f"INSERT INTO {table}({names}) SELECT {names} FROM new.{table} ORDER BY rowid")
    return old


@pytest.mark.parametrize("version", [1, 2, 3])
def test_journals_of_older_schemas_are_read_and_become_todays_when_they_are_written(
    tmp_path: Path, version: int
) -> None:
    new = filled(tmp_path / "new.sqlite")
    with Journal.open(new) as journal:
        for table in ("jobs", *(("doubts", "verdicts", "lattices") if version == 1 else ())):
            journal._rows(f"DELETE FROM {table}")
    truth, old = read(new, read_only=True), of_schema(version, new, tmp_path / "old.sqlite")
    assert truth is not None and read(old, read_only=True) == truth
    assert glance(old) == glance(new)
    with contextlib.closing(sqlite3.connect(old)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (version,), "who reads writes nothing"
    assert read(old) == truth, "one that is gone on with"
    with contextlib.closing(sqlite3.connect(old)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    with Journal.open(old) as journal:
        assert not journal.record(measurement(11)) and journal.record(measurement(60))
    assert read(old, read_only=True) is not None
    data = old.read_bytes()
    place = data.index(measurement(60).binary_hash.encode() + b"")
    old.write_bytes(data[:place] + b"B" + data[place + 1 :])
    with pytest.raises(JournalError, match="of measurements is damaged"):
        Journal.open(old, read_only=True)


def test_why_a_row_was_chosen_and_jobs_have_their_places(tmp_path: Path) -> None:
    path = filled(tmp_path / "journal.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        columns = {
            table: [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
            for table in ("measurements", "jobs")
        }
    assert columns["measurements"][-5:] == ["generator_version", "pool", "scores", "probability", "checksum"]
    assert columns["jobs"][1:8] == ["kind", "subject", "resource", "start", "seconds", "outcome", "saving"]
    with Journal.open(path, read_only=True) as journal:
        assert journal.jobs() == JOBS, "in the order in which they were written"


@pytest.mark.slow
def test_each_bit_of_a_frames_header_loses_the_transactions_that_it_ends(tmp_path: Path) -> None:
    """The last one is not counted: a power cut may have torn it. The kind of a frame is told though it is damaged."""
    with Journal.open(tmp_path / "whole.sqlite") as journal:
        fill(journal)
        log = (tmp_path / "whole.sqlite-wal").read_bytes()
    step = wal.FRAME_HEADER_BYTES + int.from_bytes(log[8:12], "big")
    starts = range(wal.HEADER_BYTES, len(log) - step + 1, step)
    ends = [at for at in starts if any(log[at + 4 : at + 8])]
    assert len(ends) > 3 and len(ends) < len(starts)
    for at in starts[-6:]:
        for bit in range(8 * wal.FRAME_HEADER_BYTES):
            place = at + bit // 8
            changed = log[:place] + bytes([log[place] ^ (1 << bit % 8)]) + log[place + 1 :]
            assert wal._lost(changed) == max(0, sum(end >= at for end in ends) - 1), (at, bit)
