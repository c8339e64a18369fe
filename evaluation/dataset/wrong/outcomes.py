"""What became of a program of the raw space: a row, the journal that rows are in, and the words for outcomes."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from kcg.errors import UsageError
from kcg.measure.canary import is_sticky
from kcg.types import Status

Row = dict[str, Any]

OK, NAN, WRONG, DIFFERS, OUTSIDE = "ok", "nan", "wrong", "differs", "outside"
FAULT, LAUNCH_ERROR, TIMEOUT = "fault", "launch_error", "timeout"
COMPILE_ERROR, COMPILE_TIMEOUT, COMPILER_DIED, RESOURCE = (
    "compile_error",
    "compile_timeout",
    "compiler_died",
    "resource",
)
UNJUDGED, NOISY, CUT = "unjudged", "noisy", "class_cut"

WRONG_ONES: Final = (NAN, WRONG, DIFFERS, OUTSIDE)
"""It ran and did not do what it should: NaN where the reference is a number; another value; another one in some
launches; it wrote outside its buffers."""
FAULTS: Final = (FAULT, LAUNCH_ERROR, TIMEOUT)
"""It was launched and did not end: the device's context is lost, the launch is refused, or time is over."""
LAUNCHED: Final = (OK, *WRONG_ONES, *FAULTS)
COMPILING: Final = (COMPILE_ERROR, COMPILE_TIMEOUT, COMPILER_DIED, RESOURCE)
UNKNOWN: Final = (UNJUDGED, NOISY, CUT)
"""Not known: the reference cannot tell, no samples can be trusted, or others of its class lost the device."""
OUTCOMES: Final = (*LAUNCHED, *COMPILING, *UNKNOWN)

_DIFFERS = re.compile(r"two runs differ|timed run \d+ left|run \d+ differs from|of \d+ launches one")
_NAN = re.compile(r" is -?nan\b")
_OUTSIDE = "wrote outside"


def of_wrong(reason: str) -> str:
    """The word for what a verification says is wrong."""
    if reason.startswith(_OUTSIDE):
        return OUTSIDE
    if _DIFFERS.search(reason):
        return DIFFERS
    return NAN if _NAN.search(reason) else WRONG


def of_failure(status: Status, reason: str) -> str:
    """The word for a job on the device that ended otherwise than with a verification."""
    if status == Status.LAUNCH_ERROR:
        return FAULT if is_sticky(RuntimeError(reason)) else LAUNCH_ERROR
    return {Status.TIMEOUT: TIMEOUT, Status.WORKER_DIED: FAULT, Status.RESOURCE: RESOURCE}[status]


def of_compiler(status: Status) -> str:
    """The word for a program that was not compiled."""
    words = {Status.COMPILE_TIMEOUT: COMPILE_TIMEOUT, Status.WORKER_DIED: COMPILER_DIED, Status.RESOURCE: RESOURCE}
    return words.get(status, COMPILE_ERROR)


def alike(reason: str) -> str:
    """A reason without its numbers and names: what equal failures have in common."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", reason)
    return re.sub(r"\d[\d,.]*(e[-+]?\d+)?", "#", text)[:120]


class Results:
    """Rows in a file of JSON lines, by the key of their program; the first line says what they are of. Each is on the
    disk before `add` returns. What was cut off while it was written is left out when the file is opened again."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """Raises UsageError where the file is of other programs, or cannot be written."""
        self._lock = threading.Lock()
        self.rows: dict[str, Row] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            old = _whole_lines(path)
            if old and json.loads(old[0]) != dict(about):
                raise UsageError(f"{path} has the results of other programs or settings: name another file with --out")
            for line in old[1:]:
                row = json.loads(line)
                self.rows.setdefault(row["key"], row)
            self._file: TextIO = path.open("a")
            if not old:
                self._write(about)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None

    def add(self, row: Row) -> bool:
        """Keep a row; False where there is one of its key."""
        with self._lock:
            if row["key"] in self.rows:
                return False
            self.rows[row["key"]] = row
            self._write(row)
            return True

    def _write(self, values: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _whole_lines(path: Path) -> list[str]:
    """The lines of a file that were written to their ends; what follows them is cut off."""
    if not path.exists():
        return []
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        with path.open("r+b") as file:
            file.truncate(end)
    return data[:end].decode().splitlines()


def read_results(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """What rows are of, and the rows of whole lines. Raises UsageError where there are none."""
    try:
        text = path.read_text()
        head, *rows = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} has no rows ({error}): measure writes them") from None
    return head, [*{row["key"]: row for row in reversed(rows)}.values()][::-1]
