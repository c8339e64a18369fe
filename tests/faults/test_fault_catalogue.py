"""Every wrong kernel of the catalogue is refused, and every right one passes, as an optimisation judges them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from kcg.compat.device import clang_path
from kcg.measure.service import MeasureService
from tests.faults.catalogue import FOLDER, NOT_PROMISED, RIGHT, WRONG, CKernel, read
from tests.faults.catalogue.judging import Service, judge
from tests.faults.catalogue.programs import PROGRAMS

LEAST = {WRONG: 80, RIGHT: 25}  # kernels that the catalogue promises to have

TODAY: dict[str, str] = {
    "affine": (
        "below_10 infinity_is_nan leans_on_the_next looks_done looks_done_in_places no_infinity "
        "reads_ahead reads_back twenty_launches within_100 within_1000 within_5 within_8"
    ),
    "byte_compare": "all_bits lower_bits short_difference with_sign",
    "byte_sum": "from_4_bits saturating_pairs symmetric",
    "convolution": "weighs_nothing",
    "doubles": "beyond_float",
    "exponential": (
        "above_minus_20 around_zero below_88 early_infinity early_zero infinity_is_nan masked_is_nan within_10"
    ),
    "gelu": "within_7",
    "half_matmul": "within_256",
    "int_division": "in_float short_product",
    "int_product": "from_16_bits from_24_bits in_double in_float saturates",
    "int_sum": "from_24_bits from_8_bits in_16_bits in_float saturates",
    "large": "looks_done period_of_a_prime",
    "long_sum": "in_32_bits in_double saturates",
    "mask": "below_4",
    "matmul": "rows_done term_more within_64",
    "pad": "weighs_nothing",
    "pair_max": "from_1000 from_1e30 from_smallest",
    "relu": "by_product no_denormals no_tiny relu6",
    "rms": "half_squares",
    "row_max": "at_most_6 finite_only from_least_positive from_zero past_the_end",
    "row_min": "a_million by_difference from_zero in_16_bits in_float",
    "row_sum": "before_the_start looks_done masked_tail past_the_end within_1000",
    "sum_of_exp": "at_least_minus_8 at_most_20 masked_is_nan",
    "to_float": "by_bits by_half of_16_bits",
    "to_int": "in_8_bits",
    "two_outputs": "no_denormals",
}
PASSES_TODAY = frozenset(f"{program}/{name}" for program, names in TODAY.items() for name in names.split())
"""Wrong kernels that are not refused yet: to be empty. One that is refused now has to be taken out."""


@pytest.fixture(scope="module")
def service() -> Iterator[MeasureService]:
    with Service(os.environ["DEV"], run_id="catalogue", compile_workers=1) as opened:
        yield opened


def everything() -> list[CKernel]:
    return [kernel for program in PROGRAMS for kernel in read(program)]


def test_the_catalogue_has_what_it_promises() -> None:
    kernels = everything()
    verdicts = Counter(kernel.verdict for kernel in kernels)
    assert all(verdicts[verdict] >= least for verdict, least in LEAST.items()), verdicts
    assert {path.stem for path in FOLDER.glob("*.c")} == set(PROGRAMS)
    assert len({kernel.id for kernel in kernels}) == len(kernels)
    for program in PROGRAMS:
        found = Counter(kernel.verdict for kernel in read(program))
        assert found[RIGHT] >= 1 and found[WRONG] >= 3, program
    assert {kernel.id for kernel in kernels if kernel.verdict == WRONG} >= PASSES_TODAY
    assert {kernel.kind for kernel in kernels if kernel.verdict == NOT_PROMISED} <= {"NaN"}


@pytest.mark.skipif(clang_path() is None, reason="the catalogue is C, and needs clang: pip install ziglang")
@pytest.mark.parametrize("program", PROGRAMS)
def test_wrong_kernels_are_refused_and_right_ones_pass(
    service: MeasureService, program: str, record_property: Callable[[str, object], None]
) -> None:
    faults = {}
    for kernel in read(program):
        judged = judge(service, kernel)
        record_property(kernel.id, json.dumps([kernel.verdict, kernel.kind, judged.refused_in, judged.reason]))
        if judged.fault:
            faults[kernel.id] = judged.fault
    told = "\n".join(fault for name, fault in faults.items() if name not in PASSES_TODAY)
    assert not told, told
    expected = {name for name in PASSES_TODAY if name.startswith(f"{program}/")}
    assert set(faults) == expected, f"refused now, take them out of PASSES_TODAY: {expected - set(faults)}"
