"""What a family computes is in question here, not tinygrad's schedules: plain loops compile in half the time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tinygrad.helpers import Context


@pytest.fixture(autouse=True)
def unoptimised() -> Iterator[None]:
    """No Opts, and no pool of compilers, which costs more than it saves on tiny kernels."""
    with Context(NOOPT=1, PARALLEL=0):
        yield
