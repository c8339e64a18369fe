"""Which regions are recorded, and which of them are lattices."""

from __future__ import annotations

from typing import Any

from evaluation.dataset.record import (
    CONVOLUTION,
    FROZEN,
    LATTICES,
    PACKED,
    PRODUCT,
    ROWS,
    SEVERAL,
    WORKLOADS,
    group_of,
)
from kcg.kernel.codec import kernel_of
from kcg.kernel.targets import target_named
from kcg.types import Region
from kcg.workloads.packed_weights import PackedWeights
from kcg.workloads.registry import WORKLOADS as REGISTRY
from kcg.workloads.registry import spec_of
from tests.kernels import empty, kernels_of
from tests.small_spaces import space_named

TARGET = target_named("h200")


def one(value: Any) -> str:
    (ast,) = kernels_of(value)
    return group_of(Region((kernel_of(ast),)), TARGET)


def test_regions_are_grouped_by_what_they_compute() -> None:
    assert one(empty(256, 512, dtype="half") @ empty(512, 128, dtype="half")) == PRODUCT
    assert one(empty(1, 32, 30, 30, dtype="half").conv2d(empty(64, 32, 3, 3, dtype="half"))) == CONVOLUTION
    assert one(empty(256, 512).sum(1)) == ROWS
    assert one(empty(256, 512) + 1) == "", "nothing is chosen there but a block"
    weights = PackedWeights()("w", (512, 1024), "q4_k")
    assert one(empty(1, 1024).dot(weights.T, dtype="float32")) == PACKED
    assert group_of(space_named("tile of several kernels").region, TARGET) == SEVERAL


def test_every_family_is_recorded_and_forty_lattices_are() -> None:
    names = [name.partition("/") for name in WORKLOADS.split(",")]
    assert {family for family, _, _ in names} == set(REGISTRY) and set(FROZEN) < set(REGISTRY)
    assert all(preset in spec_of(family).presets for family, _, preset in names)
    assert sum(LATTICES.values()) == 40
