"""Finished rows of a comparison, kept in its results file: one that is cut off goes on where it was."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from kcg.commandline import record_results
from kcg.optimize.settings import parse_budget
from kcg.provenance import provenance

Row = dict[str, Any]


class Rows:
    """The rows of one run in `out`, by key. Each is written as soon as it is there.

    Each tells the `settings` that it was made with. What is there already is kept, whatever its settings, unless
    `again` forgets all of it; with `retry` those in which something failed are made again, each kept until then.
    """

    def __init__(
        self, out: Path, run: str, *, budget: str = "", again: bool = False, retry: bool = False,
        settings: dict[str, Any] | None = None, headline: Callable[[dict[str, Row]], dict[str, Any]] = lambda rows: {},
    ) -> None:  # fmt: skip
        self._out, self._run, self._headline = out, run, headline
        self._until = time.monotonic() + parse_budget(budget) if budget else float("inf")
        self._settings = settings or {}
        self.rows: dict[str, Row] = {}
        self.left = 0  # rows for which there was no time
        kept = json.loads(out.read_text())["runs"].get(run) if out.exists() and not again else None
        if kept is not None:
            self.rows = kept["rows"]
        self._stale = {key for key, row in self.rows.items() if retry and failed(row)}

    def wanted(self, key: str) -> bool:
        """Whether a row is to be made now: it is not there, or to be made again, and there is time."""
        if key in self.rows and key not in self._stale:
            return False
        if time.monotonic() > self._until:
            self.left += 1
            return False
        return True

    def add(self, key: str, row: Row) -> None:
        """Keep a row."""
        self._stale.discard(key)
        self.rows[key] = {**row, **self._settings, **provenance(), "date": date.today().isoformat()}
        command = shlex.join(["python", f"evaluation/{Path(sys.argv[0]).name}", *sys.argv[1:]])
        entry = {"command": command, "rows": self.rows}
        record_results(self._out, self._run, entry, self._headline(self.rows))


def failed(row: Row) -> bool:
    """Whether a row, or one of its contenders, has no time."""
    return any(found.get("status") == "failed" for found in (row, *row.get("contenders", {}).values()))
