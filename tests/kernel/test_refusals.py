"""Which schedules the compiler will refuse is known beforehand: proven on the compiler itself."""

from __future__ import annotations

from typing import Any

import pytest

from kcg.errors import KcgError
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import UOPS_MAX, render_schedule
from kcg.kernel.opts.schedule import Opt, schedule_of
from kcg.kernel.opts.space import KernelSpace, refusal, too_long
from kcg.types import Region, Schedule
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.slow import first

H200 = KNOWN_TARGETS["sm_90"]
CORE = ("TC", 0, (-1, 0, 1))
LIKELY = 0.9


def batched(dtype: str = "float16") -> Region:
    """Six products of matrices of which each is to be multiplied by one of its own."""
    (ast,) = kernels_of(empty(64, 6, 96, dtype=dtype).permute(1, 0, 2) @ empty(6, 96, 64, dtype=dtype))
    return Region((kernel_of(ast),))


def compiles(space: KernelSpace, schedule: Schedule) -> bool:
    try:
        render_schedule(space.region, schedule, space.target)
    except (KcgError, AssertionError):
        return False
    return True


@pytest.mark.parametrize(
    "steps",
    first(
        3,
        [
            (),
            (("UPCAST", 0, 2),),
            (("UPCAST", 0, 0),),
            (("UPCAST", 1, 2),),
            (("UPCAST", 2, 2),),
            (("LOCAL", 0, 2),),
            (("UPCAST", 0, 2), ("UPCAST", 1, 2)),
            (("UPCAST", 0, 2), ("UNROLL", 0, 2)),
            (("UPCAST", 0, 2), ("LOCAL", 0, 3)),
        ],
    ),
    ids=str,
)
def test_a_tensor_core_that_tinygrad_cannot_lower_is_known_before(steps: tuple[tuple[str, int, Any], ...]) -> None:
    space = KernelSpace(batched(), H200)
    schedule = schedule_of([Opt(*step) for step in (CORE, *steps)])
    assert space.table(schedule).tensor_core
    assert (refusal(space, schedule) > LIKELY) != compiles(space, schedule)


def test_without_a_tensor_core_the_same_steps_compile() -> None:
    space = KernelSpace(batched("float32"), H200)
    schedule = schedule_of([Opt("UPCAST", 0, 2)])
    assert refusal(space, schedule) < 1e-3 and compiles(space, schedule)


def test_the_longer_the_code_the_likelier_it_is_refused() -> None:
    chances = [too_long(round(share * UOPS_MAX)) for share in (0.0, 0.5, 0.9, 0.97, 1.0, 1.03, 1.1, 2.0)]
    assert chances == sorted(chances) and chances[1] < 1e-6 and chances[2] < 0.01 and chances[-2] > LIKELY
    assert 0.4 < chances[5] < 0.6
