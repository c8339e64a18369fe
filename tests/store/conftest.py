"""The small model's result, and a store of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kcg.compat.device import prepare
from kcg.kernel.kinds import ACTION_SPACE_VERSION
from kcg.measure.device_info import detect
from kcg.store.entry import entries_of
from kcg.store.folder import Store
from kcg.store.location import open_store
from kcg.types import Finalist, Result, Verification
from tests.small_result import small_result

RIGHT = Verification(True, ("float64 reference at sampled points",), seeds=3)


def faster(one: Finalist, cold_s: float) -> Finalist:
    return replace(one, cold_s=cold_s, interval_s=(0.9 * cold_s, 1.1 * cold_s), verification=RIGHT)


@pytest.fixture(scope="module")
def result() -> Result:
    """All kernels but the last have a schedule that is twice as fast as tinygrad's own."""
    prepare("CPU:X86")
    made = small_result(*detect("CPU:X86", ACTION_SPACE_VERSION))
    rows = [replace(row, chosen=faster(row.chosen, 1e-6), baseline=faster(row.baseline, 2e-6)) for row in made.regions]
    return replace(made, regions=tuple(rows), model_check=None)


@pytest.fixture
def store(result: Result, tmp_path: Path) -> Store:
    made = open_store(str(tmp_path / "tuned"), new=True)
    assert all(made.add(entry) for entry in entries_of(result, result.deployed))
    return made
