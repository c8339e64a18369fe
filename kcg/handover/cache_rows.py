"""Rows of a tinygrad disk cache, written so that they can be taken back: one transaction, and a file that knows how.

The undo file lies beside the cache (`cache.db.kcg-undo.json`). For every row that kcg touched it keeps what was there
before the first write, or that nothing was, and every value that kcg itself wrote. It is on the disk before the first
row changes. A row whose value is none of these was written by somebody else since, and is left alone.
"""

from __future__ import annotations

import base64
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcg.compat.beam import KEY_COLUMNS, create_table_sql
from kcg.errors import DataError, KcgError, UsageError
from kcg.files import is_text, read_foreign, write_whole

SCHEMA = 1
WAIT_S = 10.0  # for another program that holds the cache; tinygrad's own writes take milliseconds
MAX_UNDO_BYTES = 256 << 20

Key = tuple[bytes, int, int, str, str]
"""The values of `KEY_COLUMNS`."""

_WHERE = " AND ".join(f"{name}=?" for name, _ in KEY_COLUMNS)
_KEY_TYPES = (bytes, int, int, str, str)


@dataclass(frozen=True)
class Touched:
    """One row that kcg wrote: what it held before, and what kcg wrote, oldest first."""

    before: bytes | None
    written: tuple[bytes, ...]


@dataclass(frozen=True)
class Written:
    """How many rows of the cache were written, and how many of them held another value before."""

    rows: int
    replaced: int


@dataclass(frozen=True)
class Undone:
    """What became of the rows that kcg had written."""

    cache_db: Path
    restored: int  # hold again what they held before
    removed: int  # did not exist before, and do not exist now
    left_alone: int  # changed by somebody else since
    unchanged: int = 0  # already as they were before

    def __str__(self) -> str:
        text = f"{self.cache_db}: {self.restored} rows restored, {self.removed} removed"
        if self.unchanged:
            text += f", {self.unchanged} were already as before"
        if self.left_alone:
            text += f", {self.left_alone} left alone (another program changed them since)"
        return text


def undo_path(cache_db: Path) -> Path:
    """The undo file of a cache."""
    return cache_db.with_name(f"{cache_db.name}.kcg-undo.json")


def write_rows(cache_db: Path, table: str, rows: Mapping[Key, bytes], *, wait_s: float = WAIT_S) -> Written:
    """Write `rows` into `table`, which is made as tinygrad makes it, after saving what they replace. All or nothing.

    Raises:
        DataError: the cache is locked for longer than `wait_s` seconds, or is no cache; the undo file is damaged.
        UsageError: the cache or the undo file cannot be written.
    """
    path = undo_path(cache_db)
    try:
        cache_db.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder of {cache_db}: {error.strerror}: choose another --cachedb") from None
    with _transaction(cache_db, wait_s) as database:
        database.execute(create_table_sql(table))
        log = _read_log(path, table) if path.exists() else {}
        old_text = path.read_bytes() if path.exists() else None  # which was not too large to be read
        replaced = 0
        for key, value in rows.items():
            now = _value(database, table, key)
            replaced += now is not None and now != value
            touched = log.get(key)
            if touched is None or (now != touched.before and now not in touched.written):
                touched = Touched(now, ())  # not ours, so it is what must come back
            log[key] = Touched(touched.before, tuple(dict.fromkeys((*touched.written, value))))
        write_whole(path, _log_text(table, log))
        try:
            names = ", ".join(name for name, _ in KEY_COLUMNS)
            for key, value in rows.items():
                database.execute(f"REPLACE INTO '{table}' ({names}, val) VALUES (?, ?, ?, ?, ?, ?)", (*key, value))
            database.execute("COMMIT")
        except BaseException:
            # a log that claims too much does no harm, but one left by a first failure would say "undo" for nothing
            if database.in_transaction:  # else an interrupt came just after the commit, and the log is needed
                database.execute("ROLLBACK")
                if old_text is None:
                    path.unlink(missing_ok=True)
                else:
                    write_whole(path, old_text)
            raise
    return Written(len(rows), replaced)


def restore_rows(cache_db: Path, *, wait_s: float = WAIT_S) -> Undone:
    """Give every row that kcg wrote the bytes that it held before, and remove the undo file.

    Raises:
        UsageError: kcg has written nothing into this cache, or it cannot be written.
        DataError: the cache is locked, or it or the undo file is damaged.
    """
    path = undo_path(cache_db)
    if not path.exists():
        raise UsageError(f"nothing to undo: kcg has written nothing into {cache_db} since the last undo")
    if not cache_db.exists():
        count = len(_read_log(path, None))
        path.unlink()
        return Undone(cache_db, restored=0, removed=0, left_alone=count)
    restored = removed = left_alone = unchanged = 0
    with _transaction(cache_db, wait_s) as database:
        table = _table_of(path)
        exists = database.execute("SELECT 1 FROM sqlite_master WHERE type='table' AND name=?", (table,)).fetchone()
        for key, touched in _read_log(path, table).items():
            now = _value(database, table, key) if exists else None
            if now == touched.before:
                unchanged += 1
            elif now not in touched.written:
                left_alone += 1
            elif touched.before is None:
                database.execute(f"DELETE FROM '{table}' WHERE {_WHERE}", key)
                removed += 1
            else:
                database.execute(f"UPDATE '{table}' SET val=? WHERE {_WHERE}", (touched.before, *key))
                restored += 1
        database.execute("COMMIT")
        path.unlink()
    return Undone(cache_db, restored, removed, left_alone, unchanged)


@contextmanager
def _transaction(cache_db: Path, wait_s: float) -> Iterator[sqlite3.Connection]:
    """The only writer of the cache, until the body commits or raises."""
    database: sqlite3.Connection | None = None
    try:
        database = sqlite3.connect(cache_db, timeout=wait_s, isolation_level=None)
        with suppress(sqlite3.OperationalError):  # another program may be setting it: tinygrad does the same
            database.execute("PRAGMA journal_mode=WAL").fetchone()
        database.execute("PRAGMA synchronous=FULL")
        database.execute("BEGIN IMMEDIATE")
        try:
            yield database
        finally:
            if database.in_transaction:
                database.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise DataError(
                f"{cache_db} is locked by another program: wait until it has ended, then try again"
            ) from None
        raise UsageError(f"cannot write {cache_db}: {error}: give a cache that can be written") from None
    except sqlite3.DatabaseError as error:
        raise DataError(f"{cache_db} is not a cache of tinygrad ({error}): give another, or delete it") from None
    finally:
        if database is not None:
            database.close()


def _value(database: sqlite3.Connection, table: str, key: Key) -> bytes | None:
    row = database.execute(f"SELECT val FROM '{table}' WHERE {_WHERE}", key).fetchone()
    if row is None:
        return None
    if not isinstance(row[0], bytes):
        raise DataError(f"{table} holds a row that tinygrad did not write: give another cache, or delete it")
    return row[0]


def _log_text(table: str, log: Mapping[Key, Touched]) -> bytes:
    rows = [
        {
            "key": [_encode(part) for part in key],
            "before": _encode(touched.before),
            "written": [_encode(value) for value in touched.written],
        }
        for key, touched in log.items()
    ]
    return (json.dumps({"schema": SCHEMA, "table": table, "rows": rows}, indent=1) + "\n").encode()


def _encode(value: bytes | int | str | None) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _table_of(path: Path) -> str:
    """The table that an undo file is about; checked, since it becomes a part of statements."""
    table = _document(path).get("table")
    if not isinstance(table, str) or re.fullmatch(r"beam_search_[0-9]{1,6}", table) is None:
        raise _damaged(path, "it names no table of BEAM")
    return table


def _read_log(path: Path, table: str | None) -> dict[Key, Touched]:
    document = _document(path)
    if table is not None and document.get("table") != table:
        raise DataError(f"{path} is about another version of tinygrad's cache: undo that first, with that tinygrad")
    try:
        log = {}
        for row in document["rows"]:
            ast, *rest = row["key"]
            key = (_decode(ast), *rest)
            if tuple(type(part) for part in key) != _KEY_TYPES or not all(_fits_sqlite(part) for part in key):
                raise ValueError("a row's key is malformed")
            before = None if row["before"] is None else _decode(row["before"])
            log[key] = Touched(before, tuple(_decode(value) for value in row["written"]))
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, str(error) or type(error).__name__) from None
    return log


def _fits_sqlite(value: bytes | int | str) -> bool:
    """Whether SQLite can hold a value: numbers of 64 bits, and texts that are text. JSON knows others."""
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return isinstance(value, bytes) or is_text(value)


def _document(path: Path) -> dict[str, Any]:
    try:
        if (data := read_foreign(path, most_bytes=MAX_UNDO_BYTES)) is None:
            raise ValueError("it is too large, or no file")
        document = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise _damaged(path, "it has no schema that this kcg reads")
    return document


def _decode(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError("a value is not text")
    return base64.b64decode(text, validate=True)


def _damaged(path: Path, what: str) -> KcgError:
    line = " ".join(what.split())[:120]
    return DataError(f"{path} is damaged ({line}): delete it to give up the undo")
