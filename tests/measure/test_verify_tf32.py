"""What rounds float32 operands to tf32 is wrong, unless it is judged as such a program; what rounds more always is."""

from __future__ import annotations

import numpy as np
import pytest

from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.opts.schedule import RAW
from kcg.measure.device_info import detect
from kcg.measure.verify import TF32_ALLOWED, CheckedBench
from kcg.types import Region
from tests.chains import region_of
from tests.kernels import empty, kernels_of

TARGET = detect("CPU:X86", 1)[0]
ROWS, TERMS, COLUMNS = 24, 256, 40


def cut(values: np.ndarray, bits: int) -> np.ndarray:
    """float32 with its last bits cut off: so Hopper's tensor cores take what lies in shared memory."""
    kept = np.uint32(0xFFFFFFFF) << np.uint32(24 - bits)
    return (np.asarray(values, np.float32).view(np.uint32) & kept).view(np.float32)


def rounded(values: np.ndarray, bits: int) -> np.ndarray:
    """The same to nearest."""
    half = np.uint32(1) << np.uint32(23 - bits)
    return cut((np.asarray(values, np.float32).view(np.uint32) + half).view(np.float32), bits)


@pytest.mark.parametrize("how", [cut, rounded])
@pytest.mark.parametrize(("bits", "passes"), [(11, True), (7, False)])
@pytest.mark.parametrize("thorough", [False, True])
def test_a_matmul_of_rounded_factors(how: object, bits: int, passes: bool, thorough: bool) -> None:
    region = Region((kernel_of(kernels_of(empty(ROWS, TERMS) @ empty(TERMS, COLUMNS))[-1]),))
    bench = CheckedBench(region, TARGET)
    run = bench.launcher(compile_schedule(region, RAW, TARGET))

    def launch() -> float:
        seconds = run()
        a, b = (how(bench.inputs[slot], bits) for slot in (1, 2))  # type: ignore[operator]
        product = a.reshape(ROWS, TERMS) @ b.reshape(TERMS, COLUMNS)
        bench._write(bench._views[0], product.astype(np.float32).reshape(-1))
        return seconds

    seeds = (1, 2, 3)
    strict = bench.check(launch, (), seeds=seeds, thorough=thorough)
    assert strict.wrong and TF32_ALLOWED not in strict.rules, strict
    allowed = bench.check(launch, (), seeds=seeds, thorough=thorough, tf32=True)
    assert allowed.passed == passes and TF32_ALLOWED in allowed.rules, allowed
    exact, beside = bench.check_all([run, launch], (), seeds=seeds, thorough=thorough, tf32=[False, True])
    assert exact.passed and TF32_ALLOWED not in exact.rules and beside.passed == passes, (exact, beside)


def test_sums_of_squares_and_of_other_formats_are_judged_as_before() -> None:
    for tensor in (empty(16, 64).square().sum(1), empty(16, 64, dtype="float16") @ empty(64, 24, dtype="float16")):
        bench = CheckedBench(region_of(tensor), TARGET)
        own, allowed = (bench.reference(1, bench.choose_recipe(), (), tf32=tf32) for tf32 in (False, True))
        assert all(np.array_equal(a.error, b.error) for a, b in zip(own.stores, allowed.stores, strict=True))
