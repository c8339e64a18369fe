"""What every test of fleets runs under: a command in this process narrows what Dask unpickles here, for good, and what
else runs on this machine makes no host look slow."""

from __future__ import annotations

import pytest

from tests.fleet.lenient import widen
from tests.fleet.unpickling import unpickles_as_imported as unpickles_as_imported


@pytest.fixture
def neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that drive hosts of this CPU."""
    widen(monkeypatch)
