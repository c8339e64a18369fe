"""Products of tf32 are candidates where the user allows them, of float32 operands alone, and use the tensor core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tinygrad import Tensor

from kcg.kernel.codec import kernel_of
from kcg.kernel.composed import Part, schedule_of_parts
from kcg.kernel.kinds import space_of, traits_of
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal
from kcg.kernel.tile.parameters import CONTRACTION, FLASH_ATTENTION, SPECIALIZED, TileParameters
from kcg.kernel.tile.space import TileSpace, schedule_of
from kcg.types import Region, Schedule, ScheduleKind
from tests.chains import region_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, wrong_of
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.slow import every

TARGET = KNOWN_TARGETS["sm_90"]
pytestmark = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)


def matmul(dtype: str = "float32", size: int = 512) -> Region:
    product = empty(size, size, dtype=dtype) @ empty(size, size, dtype=dtype).T
    return Region((kernel_of(kernels_of(product)[-1]),))


def attention(dtype: str = "float32", rows: int = 256) -> Region:
    return region_of(attended(*(empty(2, rows, 64, dtype=dtype) for _ in range(3))))


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = ((q @ k.transpose(-2, -1)) * 0.125).contiguous()
    return (scores.float().softmax(-1).cast(q.dtype).contiguous() @ v).contiguous()


Made = Callable[..., Region]


def space(region: Region, *, allow_tf32: bool) -> TileSpace:
    found = space_of(region, TARGET, ScheduleKind.TILE, allow_tf32=allow_tf32)
    assert isinstance(found, TileSpace)
    return found


def of_tf32(of: TileSpace, form: str) -> list[Schedule]:
    """What is near the start of a form and rounds to tf32."""
    starts = [of.start(), *(a.schedule for a in of.actions(of.start()))]
    begin = next(s for s in starts if of.parameters(s).form == form)
    return [s for s in of.neighbours(begin) if traits_of(s).tf32]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "form"), [(matmul, CONTRACTION), pytest.param(attention, FLASH_ATTENTION, marks=pytest.mark.slow)]
)
def test_it_is_a_candidate_where_the_user_allows_it(made: Made, form: str) -> None:
    allowed, others = space(made(), allow_tf32=True), space(made(), allow_tf32=False)
    found = of_tf32(allowed, form)
    assert found and not of_tf32(others, form)
    for schedule in found:
        allowed.check(schedule)
        with pytest.raises(Exception, match="is not legal"):
            others.check(schedule)
        assert others.transfer(schedule, allowed) is None
    assert not traits_of(allowed.start()).tf32 and allowed.start() == others.start()
    wide = space(made("bfloat16"), allow_tf32=True)
    forms = {wide.parameters(s).form for s in (wide.start(), *(a.schedule for a in wide.actions(wide.start())))}
    assert not any(of_tf32(wide, one) for one in forms - {SPECIALIZED})


@pytest.mark.slow
def test_it_is_expected_to_be_faster() -> None:
    of = space(matmul(size=4096), allow_tf32=True)
    (schedule, *_) = of_tf32(of, CONTRACTION)
    rounded, exact = (predicted_seconds(of.kernel, TARGET, of.parameters(s)) for s in (schedule, of.start()))
    assert rounded < exact


def test_a_schedule_of_parts_rounds_where_one_of_its_parts_does() -> None:
    (rounded, *_), start = of_tf32(of := space(matmul(), allow_tf32=True), CONTRACTION), of.start()
    assert traits_of(schedule_of_parts([Part((0,), start), Part((1,), rounded)])).tf32
    assert not traits_of(schedule_of_parts([Part((0,), start), Part((1,), Schedule(ScheduleKind.OPTS, "[]"))])).tf32
    assert not traits_of(Schedule(ScheduleKind.TILE, "{}")).tf32


@pytest.mark.slow
@pytest.mark.parametrize(("made", "form"), every(2, [(matmul, CONTRACTION), (attention, FLASH_ATTENTION)]))
def test_it_compiles_to_tensor_cores_and_says_that_it_rounds(
    made: Made, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    of = space(made(), allow_tf32=True)
    (rounded, *_) = of_tf32(of, form)
    exact = schedule_of(replace(of.parameters(rounded), precision="ieee"))
    program, other = (compile_tile(of.region, schedule, TARGET) for schedule in (rounded, exact))
    assert program.tf32 and not other.tf32 and program.binary_hash != other.binary_hash
    reports = [dict(one.launches[0].compiled.report) for one in (program, other)]
    assert [bool(report["wgmma"]) for report in reports] == [True, False] and not reports[0]["spilled_bytes"], reports


def test_without_a_tensor_core_no_step_is_unrolled_far() -> None:
    """16 x 144 x 256 of one warp took 48 s to compile."""
    kernel = space(matmul(), allow_tf32=True).kernel
    start = TileParameters(CONTRACTION, ((0,), (1,)), (64, 64), reduce_tile=64, num_warps=4)
    for made, legal in (
        (start, True),
        (replace(start, num_warps=1), False),
        (replace(start, tile=(16, 128), reduce_tile=256, num_warps=1), False),
        (replace(start, reduce_tile=32, num_warps=1), True),
    ):
        assert is_legal(kernel, TARGET, made) is legal, made
    assert is_legal(kernel, TARGET, replace(start, num_warps=1, tile=(64, 32), reduce_tile=128, precision="tf32"))


@pytest.mark.parametrize(("made", "form"), [(matmul, CONTRACTION), (attention, FLASH_ATTENTION)])
def test_what_it_computes_is_right(made: Made, form: str, tmp_path: Path) -> None:
    """In Triton's interpreter, which rounds nothing to tf32."""
    region = made(size=48) if made is matmul else made(rows=48)
    of = space(region, allow_tf32=True)
    (schedule, *_) = of_tf32(of, form)
    program = generate_kernel(of.kernel, TARGET, of.parameters(schedule), interpreted=True)
    assert program.rounds_to_tf32 and not wrong_of({form: Case(region, program)}, tmp_path)
