"""Regions that a host measures quickly, one of each size."""

from __future__ import annotations

from kcg.kernel.codec import kernel_of
from kcg.types import Region
from tests.kernels import empty, kernels_of


def region_of(size: int, columns: int = 3) -> Region:
    """A kernel that adds its size to a matrix."""
    (ast,) = kernels_of(empty(size, columns) + size)
    return Region((kernel_of(ast),))
