"""What every test of fleets runs under: a command in this process narrows what Dask unpickles here, for good, and what
else runs on this machine makes no host look slow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fleet.lenient import widen
from tests.fleet.unpickling import unpickles_as_imported as unpickles_as_imported


@pytest.fixture(scope="module")
def neighbours() -> Iterator[None]:
    """For tests that drive hosts of this CPU, and what they share: hosts are admitted while that is set up too."""
    with pytest.MonkeyPatch.context() as changed:
        widen(changed)
        yield
