"""The journal as a file: its tables, what tells it from any other SQLite file, and SQLite's errors as one line."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from kcg.dataset.records import MEASUREMENT_COLUMNS, disk_full
from kcg.errors import JournalError, UsageError
from kcg.files import is_disk_full

APPLICATION_ID = 0x6B63676A  # "kcgj", in the header of the file: what tells a journal from any other SQLite file
SCHEMA_VERSION = 1
BUSY_TIMEOUT_S = 60.0

SCHEMA = f"""
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
  {", ".join(f"{name} {kind}" for name, kind in MEASUREMENT_COLUMNS.items())});
CREATE UNIQUE INDEX measurements_identity ON measurements(identity, run_id, trial);
CREATE INDEX measurements_region ON measurements(region_id, target, toolchain, protocol);
INSERT INTO meta VALUES('format', 'kcg journal'), ('schema', '{SCHEMA_VERSION}');
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""

LATTICES = """CREATE TABLE IF NOT EXISTS lattices(region_id TEXT NOT NULL, target TEXT NOT NULL,
  toolchain TEXT NOT NULL, declaration TEXT NOT NULL, PRIMARY KEY(region_id, target, toolchain))"""
VERDICTS = "CREATE TABLE IF NOT EXISTS verdicts(identity BLOB PRIMARY KEY, verdict TEXT NOT NULL)"
"""Made when the first of it is stored: journals without replay tables, or of a run that judged nothing, have none."""


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
        raise JournalError(f"{path} is no journal, or it is corrupt (no SQLite header): name another file")
    check_ids(path, int.from_bytes(header[68:72], "big"), int.from_bytes(header[60:64], "big"))
    return True


def check_ids(path: Path, application_id: int, user_version: int) -> None:
    """Raises JournalError where the two ids of a SQLite file are not those of a journal of this schema."""
    if application_id != APPLICATION_ID:
        raise JournalError(f"{path} is another program's SQLite file, not a journal of kcg: name another file")
    if user_version != SCHEMA_VERSION:
        wanted = f"this kcg reads schema {SCHEMA_VERSION}"
        raise JournalError(f"{path} has schema {user_version}, {wanted}: use the kcg that wrote it, or start a new one")


def make_folder(folder: Path) -> None:
    """Makes the folder of a new journal. Raises UsageError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(f"no journal can be created in {folder}: {e.strerror}") from e
    if not os.access(folder, os.W_OK):
        raise UsageError(f"no journal can be created in {folder}: the folder cannot be written")


def corrupt(path: Path, detail: object) -> JournalError:
    """The error for a journal whose structure is damaged."""
    return JournalError(f"{path} is corrupt ({detail}): restore a copy, or start a new one")


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors as one line of ours."""
    try:
        yield
    except sqlite3.Error as e:
        match getattr(e, "sqlite_errorcode", 0) & 0xFF:  # without the extended part
            case sqlite3.SQLITE_FULL:
                raise disk_full(path) from e
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                raise corrupt(path, e) from e
            case sqlite3.SQLITE_BUSY:
                raise JournalError(f"{path} was locked for {BUSY_TIMEOUT_S:.0f} s: end whoever holds it") from e
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN:
                raise JournalError(f"{path} cannot be written ({e}): open it read-only, or copy it") from e
        raise JournalError(f"{path} cannot be used ({e}): what was acknowledged is kept") from e
    except OSError as e:
        if is_disk_full(e):
            raise disk_full(path) from e
        raise
