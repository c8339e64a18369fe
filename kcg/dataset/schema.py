"""The journal as a file: its tables, their checksums, older schemas, what tells it from any other SQLite file, and
SQLite's errors as one line.

Every row ends in a checksum of its table's name and all its values. SQLite itself has none: of 400 flipped bits 18
changed samples, and nobody said so. What a checksum of a row cannot tell, a row that is hidden, `check` finds: an index
and its table must agree, and the schema must be the one that was written, letter by letter.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from kcg.dataset.wal import lost_transactions
from kcg.errors import JournalError, UsageError
from kcg.files import is_disk_full
from kcg.nouns import plain

APPLICATION_ID = 0x6B63676A  # "kcgj", in the header of the file: what tells a journal from any other SQLite file
FIRST_SCHEMA, CHECKSUMS_SCHEMA, SCHEMA_VERSION = 1, 3, 4
"""Schema 2 was that of journals with doubtful rows. The third has checksums, why a row was chosen, and a table of jobs
that nothing filled; in the fourth that has runs, programs and a clock of its own. A journal of an older schema is read
as it is, and becomes one of today's when it is written."""
BUSY_TIMEOUT_S = 60.0
CHECK_AT_OPEN_BYTES = 64 << 20  # larger ones are not checked before they are gone on with: 64 MB took a busy core 3 s
CHECKSUM_BYTES = 8

_TEXT, _INTEGER, _REAL, _BLOB = "TEXT NOT NULL", "INTEGER NOT NULL", "REAL NOT NULL", "BLOB NOT NULL"
MEASUREMENT_COLUMNS = {
    "region_id": _TEXT,
    "schedule_kind": _TEXT,
    "schedule_body": _TEXT,
    "target": _TEXT,
    "toolchain": _TEXT,
    "protocol": _INTEGER,
    "status": _TEXT,
    "cache_state": _TEXT,
    "variables": _TEXT,
    "input_recipe": _TEXT,
    "samples_s": _TEXT,
    "reason": _TEXT,
    "binary_hash": _TEXT,
    "checked": _INTEGER,
    "early_stop": _INTEGER,
    "sampler": _TEXT,
    "compile_s": _REAL,
    "launch": _TEXT,
    "run_id": _TEXT,
    "trial": _INTEGER,
    "clocks": _TEXT,
}
_TYPES = {_TEXT: str, _INTEGER: int, _REAL: float}
MEASUREMENT_TYPES = {name: _TYPES[kind] for name, kind in MEASUREMENT_COLUMNS.items()}
CHOICE_COLUMNS = {
    "generator_version": "TEXT",  # of the program's generator
    "pool": "TEXT",  # what the schedule was chosen from
    "scores": "TEXT",  # JSON: what was expected of it, see `kcg.dataset.journal.Expected`
    "probability": "REAL",  # with which it was chosen
}
"""Why a schedule was measured; NULL where nobody said."""

COLUMNS: Final = {
    "kernels": {"id": "TEXT PRIMARY KEY", "ast_json": _TEXT, "first_seen_workload": _TEXT},
    "regions": {"id": "TEXT PRIMARY KEY", "kernel_ids": _TEXT, "wiring": _TEXT},
    "workload_calls": {
        "workload": _TEXT,
        "preset": _TEXT,
        "position": _INTEGER,
        "region_id": _TEXT,
        "variables": _TEXT,
        "calls": _INTEGER,
        "origin": _TEXT,
    },
    "targets": {"fingerprint": "TEXT PRIMARY KEY", "json": _TEXT},
    "toolchains": {"fingerprint": "TEXT PRIMARY KEY", "json": _TEXT},
    "runs": {"run_id": "TEXT PRIMARY KEY", "json": _TEXT, "started": _TEXT, "command": _TEXT},
    "measurements": {"identity": _BLOB, "recorded_unix_s": _REAL, **MEASUREMENT_COLUMNS, **CHOICE_COLUMNS},
    "jobs": {
        "kind": _TEXT,
        "subject": _TEXT,  # the id of a region, or what else it was about
        "resource": _TEXT,
        "start": _REAL,  # seconds since the command of its run began, by a clock that never steps
        "seconds": _REAL,
        "outcome": _TEXT,
        "saving": "REAL",  # seconds of a call; NULL where it gives none
        "run_id": _TEXT,
        "schedule": _TEXT,  # the first digits of its id; empty where it is of none, or of several
        "binaries": _TEXT,  # the first digits of their hashes, with spaces between
        "sampled": "REAL",  # seconds that the device itself ran what was sampled; NULL where it sampled nothing
    },
    "lattices": {"region_id": _TEXT, "target": _TEXT, "toolchain": _TEXT, "declaration": _TEXT},
    "verdicts": {"identity": "BLOB PRIMARY KEY", "verdict": _TEXT},
    "doubts": {"run_id": "TEXT PRIMARY KEY", "since_unix_s": _REAL, "why": _TEXT},
}
"""The columns of each table, of which its checksum is, in this order."""
_LATER: Final = {
    "measurements": (CHECKSUMS_SCHEMA, tuple(CHOICE_COLUMNS)),
    "jobs": (SCHEMA_VERSION, ("run_id", "schedule", "binaries", "sampled")),
}
"""The columns of a table that it did not have before a schema."""
_NUMBERED: Final = ("measurements", "jobs")
_KEYS: Final = {
    "workload_calls": ", PRIMARY KEY(workload, preset, position)",
    "lattices": ", PRIMARY KEY(region_id, target, toolchain)",
}
_INDEXES: Final = (
    "CREATE UNIQUE INDEX measurements_identity ON measurements(identity, run_id, trial)",
    "CREATE INDEX measurements_region ON measurements(region_id, target, toolchain, protocol)",
    "CREATE INDEX jobs_subject ON jobs(subject, kind)",
)


def _meta(version: int) -> dict[str, str]:
    return {"format": "kcg journal", "schema": str(version)}


def columns_of(table: str, version: int) -> list[str]:
    """The names of the values that `opened` gives of a row, after its number."""
    since, later = _LATER.get(table, (version, ()))
    return [name for name in COLUMNS[table] if version >= since or name not in later]


def _created(table: str, version: int) -> str:
    kinds = {**{name: COLUMNS[table][name] for name in columns_of(table, version)}, "checksum": _BLOB}
    columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    return f"CREATE TABLE {table}({'row INTEGER PRIMARY KEY, ' * (table in _NUMBERED)}{columns}{_KEYS.get(table, '')})"


def _statements(version: int) -> Iterator[str]:
    """What makes the tables of a new journal of a schema that has checksums."""
    yield "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL)"
    yield from (_created(table, version) for table in COLUMNS)
    yield from _INDEXES
    yield from (f"INSERT INTO meta VALUES('{key}', '{value}')" for key, value in _meta(version).items())
    yield f"PRAGMA application_id = {APPLICATION_ID}"
    yield f"PRAGMA user_version = {version}"


def checksum_of(table: str, values: Sequence[object]) -> bytes:
    """The checksum of a row: of its table's name and of its values in the order of `COLUMNS`, as SQLite gives them."""
    # SQLite keeps 0.0 for -0.0
    plain_values = [value + 0.0 if isinstance(value, float) else value for value in values]
    text = json.dumps([table, *plain_values], default=bytes.hex)
    return hashlib.blake2b(text.encode(), digest_size=CHECKSUM_BYTES).digest()


def sealed(table: str, values: Sequence[object]) -> tuple[Any, ...]:
    """A row as it is stored: its values, and NULL for columns that nobody filled yet, and its checksum."""
    every = (*values, *[None] * (len(COLUMNS[table]) - len(values)))
    return *every, checksum_of(table, every)


def insertion(table: str, *, replacing: bool = False, otherwise: str = "DO NOTHING") -> str:
    """The statement that stores a `sealed` row, in the place of the one of its key, or else only if there is none."""
    names = ", ".join((*COLUMNS[table], "checksum"))
    marks = ", ".join("?" * (len(COLUMNS[table]) + 1))
    insert = f"INSERT {'OR REPLACE ' * replacing}INTO {table}({names}) VALUES({marks})"
    return insert if replacing else f"{insert} ON CONFLICT {otherwise}"


def selection(table: str, version: int) -> str:
    """The beginning of the query of a table's rows, in the columns that this version has: a number first."""
    names = columns_of(table, version)
    return f"SELECT {', '.join(['rowid', *names, *['checksum'] * (version >= CHECKSUMS_SCHEMA)])} FROM {table}"


def opened(path: Path, table: str, row: Sequence[Any], version: int) -> Sequence[Any]:
    """A row of a `selection` without its checksum: a number, and the values. Raises JournalError where they are not
    what was written."""
    if version < CHECKSUMS_SCHEMA:
        return row
    number, *values, checksum = row
    if checksum_of(table, values) != checksum:
        line = f"row {number} of {table} is damaged (it does not agree with its checksum)"
        raise JournalError(f"{path}: {line}: restore a copy, or start a new one")
    return [number, *values]


# ---- Checking, and older schemas


def check(path: Path, connection: sqlite3.Connection) -> None:
    """Read the whole file. Raises JournalError where its structure or a row is damaged, or it is of another schema."""
    with translated(path), _snapshot(connection):
        found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise damaged(path, str(found).splitlines()[-1])
        version = check_version(path, connection)
        if version < CHECKSUMS_SCHEMA:
            return
        if _described(connection) != _expected(version):
            raise damaged(path, "its tables are not those of a journal")
        for table in COLUMNS:
            for row in connection.execute(selection(table, version)):
                opened(path, table, row, version)


@contextlib.contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is read inside is of one moment."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def check_version(path: Path, connection: sqlite3.Connection) -> int:
    """The schema of an open journal. Raises JournalError where the file is none, or says two things of itself."""
    ids = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    check_ids(path, *ids)
    stated = dict(connection.execute("SELECT key, value FROM meta"))
    if stated != _meta(ids[1]):
        raise damaged(path, "what it says of its schema does not agree")
    return int(ids[1])


def _described(connection: sqlite3.Connection) -> set[Any]:
    """Every table and index as it was created; the statistics that SQLite's ANALYZE leaves are the user's own."""
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master"
    return {row for row in connection.execute(query) if not str(row[1]).startswith("sqlite_stat")}


@cache
def _expected(version: int) -> set[Any]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create(connection, version)
        return _described(connection)


def create(connection: sqlite3.Connection, version: int = SCHEMA_VERSION) -> None:
    """Make the tables of a new journal."""
    for statement in _statements(version):
        connection.execute(statement)


def migrate(path: Path, connection: sqlite3.Connection) -> None:
    """Make a journal of an older schema one of today's, inside the caller's transaction: the same rows, with
    checksums. Raises JournalError where one of them is damaged."""
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    for (index,) in connection.execute("SELECT name FROM sqlite_master WHERE type='index' AND sql NOT NULL").fetchall():
        connection.execute(f"DROP INDEX {index}")
    for table in found & {"meta", *COLUMNS}:
        connection.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    create(connection)
    for table in COLUMNS:
        if table in found:
            query = selection(table, version).removesuffix(table)
            rows = connection.execute(f"{query} old_{table} ORDER BY rowid")
            read = (opened(path, table, row, version) for row in rows)
            connection.executemany(insertion(table), (sealed(table, values) for _, *values in read))
    for table in found & {"meta", *COLUMNS}:
        connection.execute(f"DROP TABLE old_{table}")


# ---- A glance, the header, and errors


@dataclass(frozen=True)
class Glance:
    """What a journal holds, without reading its rows."""

    started: str  # when its last run began
    command: str  # of that
    measurements: int


def glance(path: Path) -> Glance:
    """A glance at a journal, by a connection that cannot write: `Journal.open(read_only=True)` puts what is in a WAL
    into its file when it is closed. Raises JournalError."""
    with only_reading(path) as connection:
        if path.stat().st_size <= CHECK_AT_OPEN_BYTES:
            check(path, connection)
        (count,) = connection.execute("SELECT count(*) FROM measurements").fetchone()
        last = connection.execute("SELECT started, command FROM runs ORDER BY started DESC LIMIT 1").fetchone()
    started, command = last or ("", "")
    return Glance(str(started), str(command), int(count))


@contextlib.contextmanager
def only_reading(path: Path, *, busy_s: float = BUSY_TIMEOUT_S) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write, and waits so long where the journal is locked. Raises JournalError, also for what
    SQLite raises inside."""
    check_header(path, create=False)
    wal = path.with_name(path.name + "-wal")
    mode = "ro" if wal.exists() and wal.stat().st_size else "ro&immutable=1"  # which leaves no file beside it
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    with (
        translated(path),
        contextlib.closing(sqlite3.connect(uri, uri=True, timeout=busy_s, isolation_level=None)) as connection,
    ):
        yield connection


def check_header(path: Path, *, create: bool) -> bool:
    """Whether the file exists and has content. Looks only, so that a file that is not ours is left as it is."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file for the journal")
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except (FileNotFoundError, NotADirectoryError) as e:
        if create:
            return False
        raise JournalError(f"there is no journal at {path}: check the path, or record something first") from e
    except OSError as e:
        raise UsageError(f"{path} cannot be read: {e.strerror}") from e
    if not header and create:
        return False
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise JournalError(f"{path} is no journal, or it is damaged (no SQLite header): name another file")
    check_ids(path, int.from_bytes(header[68:72], "big"), int.from_bytes(header[60:64], "big"))
    if lost_transactions(path):
        raise damaged(path, f"rows in {path.name}-wal are lost")
    return True


def check_ids(path: Path, application_id: int, user_version: int) -> None:
    """Raises JournalError where the two ids of a SQLite file are not those of a journal of this schema."""
    if application_id != APPLICATION_ID:
        what = "another program's SQLite file, not a journal of kcg, or it is damaged"
        raise JournalError(f"{path} is {what}: name another file")
    if not FIRST_SCHEMA <= user_version <= SCHEMA_VERSION:
        wanted = f"this kcg reads schemas {FIRST_SCHEMA} to {SCHEMA_VERSION}"
        raise JournalError(f"{path} has schema {user_version}, {wanted}: use the kcg that wrote it, or start a new one")


def make_folder(folder: Path) -> None:
    """Makes the folder of a new journal. Raises UsageError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(f"no journal can be created in {folder}: {e.strerror}") from e
    if not os.access(folder, os.W_OK):
        raise UsageError(f"no journal can be created in {folder}: the folder cannot be written")


def damaged(path: Path, detail: object) -> JournalError:
    """The error for a journal that is not what was written."""
    # SQLite quotes what it found, which may be anything
    text = plain(str(detail).partition(" with text ")[0])
    return JournalError(f"{path} is damaged ({text}): restore a copy, or start a new one")


def disk_full(path: Path) -> JournalError:
    """The error for a write to `path` that found no space."""
    return JournalError(f"disk full: {path}: free some space and resume; what was acknowledged is kept")


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors as one line of ours."""
    try:
        yield
    except UnicodeDecodeError as e:  # of SQLite's own message, which quotes a schema that is no text any more
        raise damaged(path, "its schema is no text") from e
    except sqlite3.Error as e:
        match getattr(e, "sqlite_errorcode", 0) & 0xFF:  # without the extended part
            case sqlite3.SQLITE_FULL:
                raise disk_full(path) from e
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_FORMAT | sqlite3.SQLITE_TOOBIG:
                raise damaged(path, e) from e
            case sqlite3.SQLITE_ERROR if isinstance(e, sqlite3.OperationalError):  # a table or a column is not there
                raise damaged(path, e) from e
            case 0 if isinstance(e, sqlite3.OperationalError):  # Python's own: a text is no UTF-8
                raise damaged(path, e) from e
            case sqlite3.SQLITE_BUSY:
                raise JournalError(f"{path} was locked for {BUSY_TIMEOUT_S:.0f} s: end whoever holds it") from e
            case sqlite3.SQLITE_IOERR:
                why = "the disk fails, or a file may not grow any more (ulimit -f)"
                raise JournalError(f"{path} cannot be used ({e}): {why}; what was acknowledged is kept") from e
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN:
                raise JournalError(f"{path} cannot be written ({e}): open it read-only, or copy it") from e
        raise JournalError(f"{path} cannot be used ({plain(str(e))}): what was acknowledged is kept") from e
    except OSError as e:
        if is_disk_full(e):
            raise disk_full(path) from e
        raise
