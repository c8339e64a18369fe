"""What a plan says before there is text: how wide loads are, how they come, and what warps wait at."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tinygrad import Tensor

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.tile.forms import plan_of
from kcg.kernel.tile.parameters import CONTRACTION, PIPELINED, TMA, TileParameters
from kcg.kernel.tile.pipelined import pipelined_axes
from kcg.kernel.tile.plan import TilePlan, Way, needs_stress
from kcg.kernel.tile.prior import default_parameters, parameters_of
from kcg.kernel.tile.specialized import SpecializedPlan
from kcg.kernel.tile.views import MatmulView
from tests.kernel.tile.test_tile_kind import region
from tests.kernel.tile.test_tile_on_gpu import attention_of, matrix, product
from tests.kernel.tile.test_tile_packed import product_of
from tests.kernel.tile.test_tile_specialized import begun
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS

SM_90 = KNOWN_TARGETS["sm_90"]


def matmul_plan(x: Tensor, weight: Tensor, **changes: object) -> TilePlan:
    kernel = read_region(region(x @ weight.T))
    p = TileParameters(CONTRACTION, ((0,), (1,)), (64, 64), reduce_tile=32, num_stages=3)
    return plan_of(kernel, SM_90, replace(p, **changes))


def widths(plan: TilePlan) -> dict[int, tuple[int, Way]]:
    """Of each buffer how wide its load is, and how it comes."""
    return {load.access.buffer.slot: (load.width, load.way) for load in plan.loads}


def test_rows_of_whole_vectors_are_loaded_as_such() -> None:
    plan = matmul_plan(matrix(512, 256), matrix(384, 256))
    assert set(widths(plan).values()) == {(16, Way.COPY)}


def test_rows_of_odd_length_are_loaded_element_by_element() -> None:
    """No asynchronous copy is of two bytes."""
    plan = matmul_plan(matrix(512, 251), matrix(384, 251))
    assert set(widths(plan).values()) == {(2, Way.POINTER)}


def test_rows_are_as_wide_as_where_they_begin_allows() -> None:
    plan = matmul_plan(matrix(512, 252), matrix(384, 252))
    assert set(widths(plan).values()) == {(8, Way.COPY)}


def test_a_program_of_one_stage_copies_nothing_ahead() -> None:
    plan = matmul_plan(matrix(512, 256), matrix(384, 256), num_stages=1)
    assert set(widths(plan).values()) == {(16, Way.POINTER)}


def test_loads_by_descriptors_are_said() -> None:
    plan = matmul_plan(matrix(512, 256), matrix(384, 256), loads=TMA)
    assert {way for _, way in widths(plan).values()} == {Way.TMA}


def test_rows_of_a_softmax_are_loaded_as_vectors() -> None:
    kernel = read_kernel(region(empty(512, 4096, dtype="float16").max(axis=1)))
    plan = plan_of(kernel, SM_90, default_parameters(kernel, SM_90))
    assert {width for width, _ in widths(plan).values()} == {16}


@pytest.mark.parametrize(("kind", "width"), [("q4_k", 16), ("q8_0", 4), ("q6_k", 4)])
def test_packed_words_are_as_wide_as_their_blocks_are_aligned(kind: str, width: int) -> None:
    """144 bytes of a block are whole vectors; 34 and 210 begin anywhere, and are taken word by word."""
    _, kernel = product_of(kind, 64, 2048)
    plan = plan_of(kernel, SM_90, default_parameters(kernel, SM_90))
    assert max(load.width for load in plan.loads if load.access.buffer.dtype.itemsize == 1) == width


# ---- barriers


def test_producers_and_consumers_wait_at_a_ring_of_both_operands() -> None:
    kernel = read_region(region(product(384, 768, 192).cast("bfloat16")))
    axes = pipelined_axes(MatmulView.of(kernel))[0]
    plan = plan_of(kernel, SM_90, parameters_of(kernel, SM_90, PIPELINED, axes))
    assert [(one.name, one.slots) for one in plan.barriers] == [("full", plan.num_stages), ("empty", plan.num_stages)]
    assert [one.arrivals for one in plan.barriers] == [1, plan.tile[0] // 64], "each computing group gives a slot back"
    assert needs_stress(plan)


@pytest.mark.parametrize("persistent", [0, 1])
def test_specialised_attention_has_a_ring_for_each_operand(persistent: int) -> None:
    of = attention_of("whole blocks")
    plan = plan_of(read_region(of), SM_90, replace(begun(of), persistent=persistent))
    assert isinstance(plan, SpecializedPlan)
    given_back = {one.name for one in plan.barriers if one.arrivals == plan.groups}
    assert {"keys_empty", "values_empty"} <= given_back
    assert ("queries_empty" in given_back) == bool(plan.in_turn), "queries of a program's only tile are not replaced"


def test_programs_in_triton_have_none_of_their_own() -> None:
    assert not matmul_plan(matrix(512, 256), matrix(384, 256)).barriers
