"""What a family computes is in question here, not tinygrad's schedules: plain loops compile in half the time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tinygrad.helpers import Context


@pytest.fixture(autouse=True)
def unoptimised() -> Iterator[None]:
    """No Opts, and no pool of compilers, which costs more than it saves on tiny kernels."""
    with Context(NOOPT=1, PARALLEL=0):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In float16 a family is the same program with other types: `make test ARGS="-m slow"` checks that, too."""
    here = Path(__file__).parent
    for item in items:
        presets = [v for v in getattr(getattr(item, "callspec", None), "params", {}).values() if isinstance(v, str)]
        if here in item.path.parents and any(preset.endswith("-f16") for preset in presets):
            item.add_marker(pytest.mark.slow)
