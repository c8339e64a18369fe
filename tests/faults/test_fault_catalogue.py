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

KEPT = {
    *("affine", "axpy", "byte_compare", "copysign", "half_sum_of_exp", "large", "long_sum", "mask", "pad", "rms"),
    *("sum_of_exp", "take_along", "two_outputs", "doubles"),
}
"""With every kind of fault, in every type and form of a kernel. The others are slow;
`python -m evaluation.measure.fault_catalogue` judges all."""
SOME = [pytest.param(program, marks=() if program in KEPT else pytest.mark.slow) for program in PROGRAMS]
LEAST = {WRONG: 420, RIGHT: 140}  # kernels that the catalogue promises to have


@pytest.fixture(scope="module")
def service() -> Iterator[MeasureService]:
    with Service(os.environ["DEV"], run_id="catalogue", compile_workers=1) as opened:
        yield opened


def everything() -> list[CKernel]:
    return [kernel for program in PROGRAMS for kernel in read(program)]


def test_the_catalogue_has_what_it_promises() -> None:
    kernels = everything()
    results = Counter(kernel.result for kernel in kernels)
    assert all(results[result] >= least for result, least in LEAST.items()), results
    assert {path.stem for path in FOLDER.glob("*.c")} == set(PROGRAMS)
    assert len({kernel.id for kernel in kernels}) == len(kernels)
    for program in PROGRAMS:
        found = Counter(kernel.result for kernel in read(program))
        assert found[RIGHT] >= 1 and found[WRONG] >= 3, program
    assert {kernel.kind for kernel in kernels if kernel.result == NOT_PROMISED} <= {"NaN"}


def test_every_kind_of_fault_is_in_a_program_that_is_not_slow() -> None:
    programs: dict[str, set[str]] = {}
    for kernel in everything():
        programs.setdefault(kernel.kind, set()).add(kernel.program)
    assert all(found & KEPT for found in programs.values()), programs


@pytest.mark.skipif(clang_path() is None, reason="the catalogue is C, and needs clang: pip install ziglang")
@pytest.mark.parametrize("program", SOME)
def test_wrong_kernels_are_refused_and_right_ones_pass(
    service: MeasureService, program: str, record_property: Callable[[str, object], None]
) -> None:
    faults = []
    for kernel in read(program):
        judged = judge(service, kernel)
        record_property(kernel.id, json.dumps([kernel.result, kernel.kind, judged.refused_in, judged.reason]))
        if judged.fault:
            faults.append(judged.fault)
    assert not faults, "\n".join(faults)
