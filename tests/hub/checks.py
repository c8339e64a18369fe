"""What the tests of pushing and pulling ask of folders and of errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcg.errors import KcgError
from tests.hub.server import TOKEN


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(error: pytest.ExceptionInfo[KcgError], *, but: str = "") -> str:
    line = str(error.value)
    assert "\n" not in line and len(line) < 300
    assert TOKEN not in line and ".part" not in line.replace(but, "")
    return line


def is_untouched(target: Path) -> bool:
    return list(target.parent.iterdir()) == []
