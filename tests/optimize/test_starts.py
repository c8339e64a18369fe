"""Where spaces begin, found apart from their first programs: what is known of the first is not worked out again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from kcg.errors import ScheduleError
from kcg.kernel.codec import kernel_of
from kcg.kernel.kinds import kind_named, space_of
from kcg.measure.child import first_program_job, start_job
from kcg.optimize.device import Device
from kcg.optimize.work import RegionWork
from kcg.types import Region, Schedule, ScheduleKind, WorkloadCall
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS

H200 = KNOWN_TARGETS["sm_90"]
(PRODUCT,) = kernels_of(empty(256, 256, dtype="float16") @ empty(256, 256, dtype="float16"))
MATMUL = Region((kernel_of(PRODUCT),))
FIRST = Schedule(ScheduleKind.TILE, "{}")


class Children:
    """What was asked of the compiling children, to be answered by the test."""

    target = H200

    def __init__(self) -> None:
        self.asked: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.futures: list[Future[Schedule]] = []

    def beside(self, function: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Schedule]:
        self.asked.append((function, args))
        self.futures.append(Future())
        return self.futures[-1]


def begun() -> tuple[Any, Children, RegionWork]:
    """A device whose children are asked for nothing yet, and a product that may be a tile program."""
    device: Any = Device.__new__(Device)
    device.service, device._starts, device._first_programs = Children(), {}, {}
    work = RegionWork(WorkloadCall(MATMUL, 1), space_of(MATMUL, H200))
    space: Any = kind_named("tile").space(MATMUL, H200)
    work.others["tile"] = space
    return device, device.service, work


def test_a_first_program_is_compiled_from_the_start_that_was_found() -> None:
    device, children, work = begun()
    device.find_starts([work])
    (start,) = device.starts([work])[work.id]
    (first,) = device.first_programs([work])[work.id]
    assert [function for function, _ in children.asked] == [start_job], "once, and nothing is compiled before"
    children.futures[0].set_result(FIRST)
    assert start.result() == FIRST
    job, (*_, known) = children.asked[1]
    assert job is first_program_job and known == FIRST and not first.done()
    children.futures[1].set_result(FIRST)
    assert first.result() == FIRST and device.first_programs([work])[work.id] == [first]


@pytest.mark.parametrize("of", [0, 1])
def test_what_goes_wrong_with_either_is_what_comes_of_the_program(of: int) -> None:
    device, children, work = begun()
    device.find_starts([work])
    (first,) = device.first_programs([work])[work.id]
    for number in range(of):
        children.futures[number].set_result(FIRST)
    children.futures[of].set_exception(ScheduleError("there is none"))
    assert isinstance(first.exception(), ScheduleError) and len(children.asked) == 1 + of


def test_the_start_of_a_program_that_is_compiled_is_not_looked_for() -> None:
    device, children, work = begun()
    (first,) = device.first_programs([work])[work.id]
    assert device.starts([work])[work.id] == [first] and [job for job, _ in children.asked] == [first_program_job]


def test_the_start_of_a_space_that_needs_no_looking_is_there_at_once() -> None:
    device, children, work = begun()
    other: Any = SimpleNamespace(start=lambda: FIRST)
    work.others["tile"] = other
    (start,) = device.starts([work])[work.id]
    assert start.result() == FIRST and not children.asked
