"""What Dask unpickles in a process of tests: a command of a fleet narrows it for good."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator

import distributed.nanny
import distributed.scheduler
import distributed.shuffle
import distributed.worker  # noqa: F401  # all that is narrowed
import pytest
from distributed.protocol import pickle as dasks
from distributed.protocol.serialize import import_allowed_module, msgpack_decode_default

REPLACED = (pickle, pickle.loads, dasks.loads, msgpack_decode_default, import_allowed_module)
# tests are collected, and none has run: a fixture of a module narrows before any fixture of a test
AS_IMPORTED = [
    (module, name, value)
    for place, module in list(sys.modules.items())
    if place.partition(".")[0] == "distributed"
    for name, value in list(vars(module).items())
    if any(value is one for one in REPLACED)
]


@pytest.fixture(autouse=True)
def unpickles_as_imported() -> Iterator[None]:
    """Other tests talk to Dask itself, in the same process."""
    _restore()
    yield
    _restore()


def _restore() -> None:
    for module, name, value in AS_IMPORTED:
        setattr(module, name, value)
