"""`kcg dataset`, which also notes each row once the journal has acknowledged it: a count that is not the journal's own.

    python -m evaluation.fleet.acknowledged FILE generate …

A line of FILE is a row's identity, run and trial. What is written is the kernel's, and survives `kill -9`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from kcg.cli import guarded
from kcg.dataset.journal import Journal, identity_of

Row = tuple[str, str, int]  # identity, run, trial


def noted(path: Path) -> set[Row]:
    """The rows in a file of acknowledged rows."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {(identity, run, int(trial)) for identity, run, trial in map(str.split, lines)}


def _note_into(path: Path) -> None:
    file, record = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), Journal.record

    def acknowledged(self: Journal, row: Any, **more: Any) -> bool:
        new = record(self, row, **more)
        os.write(file, f"{identity_of(row.key).hex()} {row.run_id} {row.trial}\n".encode())
        return new

    Journal.record = acknowledged  # type: ignore[method-assign]


if __name__ == "__main__":
    from kcg.dataset.__main__ import main

    _note_into(Path(sys.argv.pop(1)))
    guarded(main)
