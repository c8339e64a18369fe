"""Which cases of a test run by default: some of each kind, the others with `-m slow`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some(names: Iterable[str], kept: Collection[str]) -> list[Any]:
    """All names, those that are not kept as slow ones."""
    return [pytest.param(name, marks=() if name in kept else pytest.mark.slow) for name in names]


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """All values, those after the first so many as slow ones."""
    return [_case((value,), slow=n >= count) for n, value in enumerate(values)]


def first_rows(count: int, rows: Iterable[Any]) -> list[Any]:
    """The same of cases of several values."""
    return [_case(row, slow=n >= count) for n, row in enumerate(rows)]


def every(step: int, values: Iterable[Any]) -> list[Any]:
    """All values, those between each so many as slow ones. A value of several is a tuple."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [_case(row, slow=n % step != 0) for n, row in enumerate(rows)]


def _case(row: Any, *, slow: bool) -> Any:
    """A case; one that is a `pytest.param` already keeps its marks and its name."""
    one = next((v for v in (row, row[0]) if hasattr(v, "marks")), None) or pytest.param(*row)
    return pytest.param(*one.values, marks=[*one.marks, *([pytest.mark.slow] if slow else [])], id=one.id)
