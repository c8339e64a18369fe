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
    return [pytest.param(value, marks=() if n < count else pytest.mark.slow) for n, value in enumerate(values)]


def every(step: int, values: Iterable[Any]) -> list[Any]:
    """All values, those between each so many as slow ones. A value of several is a tuple."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=pytest.mark.slow if n % step else ()) for n, row in enumerate(rows)]
