"""A kernel that hangs, crashes or computes something else ends with the right status, and the next one is measured."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from kcg.kernel.program import Compiled
from kcg.measure.inputs import RECIPE, make_inputs
from kcg.measure.jobs import PairedJob
from kcg.measure.service import MeasureService
from kcg.types import Measurement, Status
from tests.faults import machine_code
from tests.faults.relu import AST, COUNT, DEV, REGION, binary, compiled_relu, sampled_elements, time_code
from tests.faults.relu import unsampled_element as unsampled
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="the faults are x86-64 machine code"
)

TIMEOUT_S = 1.5  # for a kernel that never ends
NAN_BITS, ONE_BITS = 0x7FC00000, 0x3F800000
_variants = count(1)


@pytest.fixture(scope="module")
def service() -> Iterator[MeasureService]:
    with MeasureService(DEV, run_id="faults", compile_workers=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def relu(service: MeasureService) -> Compiled:
    return compiled_relu(service)


def assert_goes_on(service: MeasureService, relu: Compiled) -> None:
    """A correct binary that was not measured before is measured."""
    row = time_code(service, machine_code.right(COUNT, next(_variants)), relu)
    assert (row.status, row.reason, row.checked, len(row.samples_s)) == (Status.OK, "", True, 3)


def assert_one_line(row: Measurement) -> None:
    assert row.reason and "\n" not in row.reason and len(row.reason) <= 300
    assert row.samples_s == () and row.binary_hash


def test_hand_written_code_is_right(service: MeasureService, relu: Compiled) -> None:
    assert_goes_on(service, relu)


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        (machine_code.HANG, Status.TIMEOUT, "no result within 1.5 s"),
        (machine_code.SEGFAULT, Status.WORKER_DIED, "SIGSEGV"),
        (machine_code.ILLEGAL, Status.WORKER_DIED, "SIGILL"),
    ],
    ids=["hang", "segfault", "illegal"],
)
def test_kernel_that_kills_its_child(
    service: MeasureService, relu: Compiled, code: bytes, status: Status, words: str
) -> None:
    replaced = service.children_replaced
    row = time_code(service, code, relu, timeout_s=TIMEOUT_S if status is Status.TIMEOUT else None)
    assert row.status is status and words in row.reason
    assert_one_line(row)
    assert service.children_replaced == replaced + 1
    assert_goes_on(service, relu)


SAMPLED = max(sampled_elements() - {0, COUNT - 1})
WRONG = {
    "writes nothing": (machine_code.RETURN, "is nan, not"),
    "zeros": (machine_code.zeros(COUNT), "is 0, not"),
    "skips a sampled element": (machine_code.skips(COUNT, SAMPLED), f"element {SAMPLED} of buffer 0 is nan"),
    "skips another element": (machine_code.skips(COUNT, unsampled()), f"never wrote element {unsampled()} of buffer 0"),
    "NaN": (machine_code.overwrites_output(COUNT, SAMPLED, NAN_BITS), f"element {SAMPLED} of buffer 0 is nan"),
    "one element": (machine_code.overwrites_output(COUNT, SAMPLED, ONE_BITS), f"element {SAMPLED} of buffer 0 is 1,"),
    "the clock": (machine_code.differs_between_runs(COUNT, unsampled()), f"two runs differ at element {unsampled()}"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_output(service: MeasureService, relu: Compiled, name: str) -> None:
    code, words = WRONG[name]
    row = time_code(service, code, relu)
    assert row.status is Status.WRONG and words in row.reason, row.reason
    assert_one_line(row)
    assert_goes_on(service, relu)


@pytest.mark.parametrize("name", ["past the end", "before the start"])
def test_writes_outside(service: MeasureService, relu: Compiled, name: str) -> None:
    code = machine_code.zeros(COUNT + 1) if name == "past the end" else machine_code.before_start(COUNT)
    replaced = service.children_replaced
    row = time_code(service, code, relu)
    assert row.status is Status.WRONG and row.reason == "wrote outside buffer 0 (seed 0)"
    assert service.children_replaced == replaced + 1, "what such a kernel ran in is not trusted any more"
    assert_goes_on(service, relu)


def test_changes_its_input(service: MeasureService, relu: Compiled) -> None:
    x = make_inputs(AST, 0, recipe=RECIPE)[1]
    negative = int(np.flatnonzero(x < 0)[0])  # another negative number gives the same output
    row = time_code(service, machine_code.overwrites_input(COUNT, negative, 0xBF800000), relu)
    assert row.status is Status.WRONG and row.reason == "changed its input in buffer 1 (seed 0)"
    assert_goes_on(service, relu)


def test_same_binary_is_timed_once_even_if_it_fails(service: MeasureService, relu: Compiled) -> None:
    timed = service.binaries_timed
    first, second = (time_code(service, machine_code.zeros(COUNT - 1), relu) for _ in range(2))
    assert service.binaries_timed == timed + 1
    assert first == second and first.status is Status.WRONG


def test_a_paired_comparison_judges_both_and_survives_a_crash(service: MeasureService, relu: Compiled) -> None:
    right, slow = (binary(code, relu) for code in (machine_code.right(COUNT), machine_code.slow(COUNT, 2_000_000)))
    service.fresh_child()
    won = service.compare_paired(
        PairedJob(REGION, slow, right, service.target, samples=5), timeout_s=PATIENCE_S
    ).result(timeout=PATIENCE_S)
    assert won.baseline_verification.passed and won.baseline_verification.seeds == 3
    assert won.finalist_verification is not None and won.finalist_verification.passed
    assert len(won.baseline_cold_s) == len(won.finalist_cold_s) == 5
    assert np.median(won.finalist_warm_s) < np.median(won.baseline_warm_s)

    # a finalist that is wrong where no sample of the first seed looks: found beside the baseline's whole output
    late = next(iter(sampled_elements(2) - sampled_elements(1)))
    wrong = binary(machine_code.overwrites_output(COUNT, late, NAN_BITS), relu)
    lost = service.compare_paired(
        PairedJob(REGION, right, wrong, service.target, samples=5), timeout_s=PATIENCE_S
    ).result(timeout=PATIENCE_S)
    assert lost.baseline_verification.passed
    assert lost.finalist_verification is not None and not lost.finalist_verification.passed
    assert f"element {late} of buffer 0 is nan" in lost.finalist_verification.reason
    assert lost.baseline_cold_s == lost.finalist_cold_s == (), "what is wrong is not timed"

    crash = PairedJob(REGION, right, binary(machine_code.SEGFAULT, relu), service.target)
    with pytest.raises(Exception, match="SIGSEGV"):
        service.compare_paired(crash, timeout_s=PATIENCE_S).result(timeout=PATIENCE_S)
    alone = service.compare_paired(
        PairedJob(REGION, right, None, service.target, samples=5), timeout_s=PATIENCE_S
    ).result(timeout=PATIENCE_S)
    assert alone.finalist_verification is None and len(alone.baseline_cold_s) == 5
