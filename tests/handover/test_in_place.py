"""Which calls a compiled program of a kernel is put in the place of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kcg.compat.device import prepare
from kcg.compat.tiny import UOp, dtypes
from kcg.handover.in_place import ProgramsInPlace
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.kinds import ACTION_SPACE_VERSION, baseline_of
from kcg.measure.device_info import detect
from kcg.types import Region
from tests.kernels import empty, kernels_of

Make = Callable[..., ProgramsInPlace]
SIZE = 4096


@pytest.fixture(scope="module")
def ast() -> Any:
    (found,) = kernels_of(empty(SIZE) + 1)
    return found


@pytest.fixture(scope="module")
def make(ast: Any) -> Make:
    prepare("CPU:X86")
    target, _ = detect("CPU:X86", ACTION_SPACE_VERSION)
    region = Region((kernel_of(ast),))
    compiled = compile_schedule(region, baseline_of(region, target), target)
    return lambda aligned=False: ProgramsInPlace({region.id: compiled}, target, aligned=aligned)


def call_of(ast: Any, device: str = "CPU", *, offset: int = 0) -> Any:
    """A call of a kernel of two buffers; the second begins `offset` elements into a larger one."""
    out, base = UOp.new_buffer(device, SIZE, dtypes.float32), UOp.new_buffer(device, 2 * SIZE, dtypes.float32)
    return ast.call(out, base.shrink(((offset, offset + SIZE),)))


def test_a_kernel_is_known_by_what_it_computes(make: Make, ast: Any) -> None:
    programs, (other,) = make(), kernels_of(empty(SIZE) + 2)
    first = programs(call_of(ast))
    assert first is not None and first[0] == kernel_of(ast).id
    assert programs(call_of(ast)) == first, "made once"
    assert programs(call_of(other)) is None and programs(call_of(ast, "CUDA")) is None


def test_what_its_author_scheduled_stays(make: Make, ast: Any) -> None:
    """It is no candidate: what was found for others that compute the same is not for it."""
    programs = make()
    for fixed in ({"dont_use_locals": True}, {"opts_to_apply": ()}):
        assert programs(call_of(ast.replace(arg=replace(ast.arg, **fixed)))) is None


def test_a_program_that_loads_whole_vectors_is_not_for_odd_addresses(make: Make, ast: Any) -> None:
    assert make(aligned=True)(call_of(ast, offset=1)) is None
    assert make(aligned=True)(call_of(ast, offset=4)) is None, "a kernel of a CPU may load 64 bytes at once"
    assert make(aligned=True)(call_of(ast, offset=16)) is not None
    assert make()(call_of(ast, offset=1)) is not None
