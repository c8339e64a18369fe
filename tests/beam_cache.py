"""The rows of a cache of tinygrad's BEAM as another program reads and writes them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from kcg.compat.beam import cache_table, create_table_sql

Rows = dict[tuple[Any, ...], bytes]


def rows_of(cache: Path) -> Rows:
    database = sqlite3.connect(cache)
    try:
        return {tuple(row[:-1]): row[-1] for row in database.execute(f"SELECT * FROM {cache_table()}")}
    finally:
        database.close()


def put(cache: Path, rows: Rows) -> None:
    """Rows as another program would write them."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(cache)
    with database:
        database.execute(create_table_sql(cache_table()))
        database.executemany(f"REPLACE INTO {cache_table()} VALUES (?,?,?,?,?,?)", [(*k, v) for k, v in rows.items()])
    database.close()
