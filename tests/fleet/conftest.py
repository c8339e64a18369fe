"""What every test of fleets runs under: a command in this process narrows what Dask unpickles here, for good, and what
else runs on this machine makes no host look slow."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator

import pytest
from distributed.protocol import pickle as dasks

from tests.fleet.lenient import widen


@pytest.fixture(autouse=True)
def unpickles_as_before() -> Iterator[None]:
    """Other tests talk to Dask itself, in the same process."""
    names = [
        (module, name, value)
        for place, module in list(sys.modules.items())
        if place.partition(".")[0] == "distributed"
        for name, value in list(vars(module).items())
        if value is pickle or value is pickle.loads or value is dasks.loads
    ]
    yield
    for module, name, value in names:
        setattr(module, name, value)


@pytest.fixture
def neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that drive hosts of this CPU."""
    widen(monkeypatch)
