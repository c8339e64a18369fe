"""The space that tests of moves and tiles walk in."""

from __future__ import annotations

import pytest

from kcg.kernel.opts.space import KernelSpace
from tests.kernels import small_matmul


@pytest.fixture(scope="session")
def space() -> KernelSpace:
    return small_matmul()
