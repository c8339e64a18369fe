"""Loads that a kernel needs for some elements only: conditions of ranges are their gates, as wide as what a thread
loads."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tinygrad import Tensor

from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.tile.needed import needed_loads
from kcg.kernel.tile.prior import default_parameters
from kcg.types import Region
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernel.tile.test_tile_kind import region
from tests.kernel.tile.test_tile_programs import TARGET, case_of, check
from tests.kernels import empty

interpreted = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)


def causal(size: int, dtype: str = "bfloat16") -> Tensor:
    """Scores of which each row has one more than the row before."""
    rows, columns = Tensor.arange(size).reshape(size, 1), Tensor.arange(size).reshape(1, size)
    return (rows < columns).where(float("-inf"), empty(3, size, size, dtype=dtype))


def gates(of: Region) -> list[list[str]]:
    """What the loads of a kernel are under."""
    kernel = read_kernel(of)
    return [[gate.render() for gate in load.gates] for load in needed_loads(kernel).values()]


@pytest.mark.slow
@interpreted
def test_what_is_not_chosen_is_not_loaded_and_numbers_stay(tmp_path: Path) -> None:
    x, mask = empty(3, 40, 40), empty(40, 40, dtype="bool")
    below = Tensor.arange(40).reshape(40, 1) >= Tensor.arange(40).reshape(1, 40)
    found = {
        **{f"maxima of {size}": region(causal(size).max(2)) for size in (33, 64)},
        **{f"powers of {size}": region(causal(size).exp2()) for size in (33, 64)},
        "under a mask that is loaded": region((below & mask).where(x, float("-inf")).max(2)),
        "from the other end": region(below.where(0.0, x).sum(2)),
    }
    assert all(any(gates(one)) for one in found.values())
    cases = {name: case_of(one, Random(1), default_parameters(read_kernel(one), TARGET)) for name, one in found.items()}
    for case in cases.values():
        assert "mask=" in case.program.source
    check(cases, tmp_path)
    check({name: case_of(one, Random(name)) for name, one in found.items()}, tmp_path)


def test_a_gate_is_the_same_for_what_a_thread_loads_at_once() -> None:
    ((wide,),) = gates(region(causal(64).max(2)))
    ((single,),) = gates(region(causal(33).max(2)))
    assert "//8" in wide and "//" not in single


def test_what_is_used_elsewhere_too_is_loaded() -> None:
    x = empty(64, 64)
    below = Tensor.arange(64).reshape(64, 1) < Tensor.arange(64).reshape(1, 64)
    assert gates(region(below.where(x, 0.0) + x.exp2())) == [[]]
    assert gates(region((x > 0).where(empty(64, 64), 0.0))) == [[], []], "a condition that is loaded itself"
    assert gates(region((below & (x > 0)).where(empty(64), 0.0)))[1] == [], "a load that does not know the column"
