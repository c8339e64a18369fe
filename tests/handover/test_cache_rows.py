"""Rows of tinygrad's cache are written whole or not at all, and what was there before comes back."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from kcg.compat.beam import cache_table
from kcg.errors import DataError
from kcg.handover.cache_rows import restore_rows, undo_path, write_rows
from tests.beam_cache import put, rows_of


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "cache.db"


def test_undo_after_an_interrupted_apply_changes_nothing(cache: Path) -> None:
    """The undo file is on the disk before the first row changes: a crash in between leaves it with the old rows."""
    key = (b"k", 2, 1, "CPU", "")
    put(cache, {key: b"old"})
    write_rows(cache, cache_table(), {key: b"new"})
    put(cache, {key: b"old"})
    undone = restore_rows(cache)
    assert (undone.restored, undone.left_alone, undone.unchanged) == (0, 0, 1) and rows_of(cache) == {key: b"old"}


def test_a_locked_cache_is_one_line_and_changes_nothing(cache: Path) -> None:
    key = (b"k", 2, 1, "CPU", "")
    put(cache, {key: b"old"})
    other = sqlite3.connect(cache, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DataError, match="locked by another program"):
        write_rows(cache, cache_table(), {key: b"new"}, wait_s=0.05)
    assert not undo_path(cache).exists()
    other.execute("ROLLBACK")
    write_rows(cache, cache_table(), {key: b"new"})
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DataError, match="locked by another program"):
        restore_rows(cache, wait_s=0.05)
    other.close()
    assert undo_path(cache).exists() and rows_of(cache) == {key: b"new"}


def test_a_file_that_is_no_cache_is_refused(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_bytes(b"certainly not a database " * 100)
    with pytest.raises(DataError, match="not a cache of tinygrad"):
        write_rows(cache, cache_table(), {(b"k", 2, 1, "CPU", ""): b"v"})


@pytest.mark.parametrize(
    "part", ["\\ud800", 1 << 63, -(1 << 63) - 1, 1 << 2000, 1e999, True, None, [], {}], ids=lambda part: str(part)[:12]
)
@pytest.mark.parametrize("place", range(5))
def test_what_sqlite_cannot_hold_is_damage(cache: Path, place: int, part: object) -> None:
    key = (b"k", 2, 1, "CPU", "")
    write_rows(cache, cache_table(), {key: b"v"})
    log = json.loads(undo_path(cache).read_text())
    log["rows"][0]["key"][place] = "\ud800" if isinstance(part, str) else part
    undo_path(cache).write_text(json.dumps(log))
    with pytest.raises(DataError, match=r"is damaged .*: delete it to give up the undo$") as caught:
        restore_rows(cache)
    assert "\n" not in str(caught.value)
    assert rows_of(cache) == {key: b"v"}


def test_a_damaged_undo_file_is_refused_and_the_rows_stay(cache: Path) -> None:
    key = (b"k", 2, 1, "CPU", "")
    write_rows(cache, cache_table(), {key: b"v"})
    intact = undo_path(cache).read_text()
    for text in (
        intact[:-30],
        "[]",
        "{}",
        intact.replace('"table": "', '"table": "x\'; '),
        intact.replace("aw==", "?"),
    ):
        assert text != intact
        undo_path(cache).write_text(text)
        with pytest.raises(DataError, match="damaged"):
            restore_rows(cache)
        with pytest.raises(DataError):
            write_rows(cache, cache_table(), {key: b"w"})
        assert rows_of(cache) == {key: b"v"}
