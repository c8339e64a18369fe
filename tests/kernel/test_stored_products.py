"""Products that a kernel reduces as soon as it makes them: what they cost, and when it is said to store them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tinygrad import Tensor

from kcg.kernel.analysis import find_recompute, operations
from kcg.kernel.codec import kernel_of
from kcg.kernel.reading.depth import loops_of
from kcg.kernel.reading.kernel import TileKernel, read_kernel
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.device import figures_of
from kcg.kernel.tile.legal import legal_values
from kcg.kernel.tile.prior import default_parameters
from kcg.report.words import done_with as done_with
from kcg.types import Recompute, Region, Target
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS, X86

TARGET = KNOWN_TARGETS["sm_90"]
ROWS, TERMS, COLUMNS = 256, 2048, 1024
REDUCED: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda y: y.sum(1),
    "max": lambda y: y.max(1),
    "min": lambda y: y.min(1),
    "with a step between": lambda y: (y + 1).relu().sum(1),
    "of columns": lambda y: y.max(0),
    "of exponentials": lambda y: y.exp().sum(1),
}


def product() -> Tensor:
    return empty(ROWS, TERMS, dtype="float16") @ empty(TERMS, COLUMNS, dtype="float16")


def read(*outputs: Tensor) -> list[TileKernel]:
    return [read_kernel(Region((kernel_of(ast),))) for ast in kernels_of(*outputs)]


def seconds(kernel: TileKernel, target: Target = TARGET) -> float:
    return predicted_seconds(kernel, target, default_parameters(kernel, target))


@pytest.mark.parametrize("how", REDUCED)
def test_reductions_inside_of_others_take_all_of_their_terms(how: str) -> None:
    (whole,) = read(REDUCED[how](product()))
    (ast,) = kernels_of(REDUCED[how](product()))
    least_s = operations(ast) / (figures_of(TARGET).plain_ops * TARGET.cores)
    assert whole.contraction is None and seconds(whole) > least_s
    stored = read(REDUCED[how](product().contiguous()))
    assert len(stored) == 2 and seconds(whole) > 4 * sum(map(seconds, stored))


def test_all_programs_of_them_are_the_dearer_the_longer_either_loop_is() -> None:
    """Whatever its parameters: the steps of the inner loop are in each step of the outer one."""

    def taken(terms: int, columns: int) -> list[float]:
        (kernel,) = read((empty(512, terms) @ empty(terms, columns)).max(1))
        assert loops_of(kernel.reductions) == [(columns, terms, 1)]
        p = default_parameters(kernel, TARGET)
        assert 256 in legal_values(kernel, TARGET, p, "reduce_tile")  # of terms, however few the columns are
        return [predicted_seconds(kernel, TARGET, replace(p, reduce_tile=step)) for step in (64, 128, 256)]

    for one, longer, wider in zip(taken(2048, 64), taken(8192, 64), taken(2048, 256), strict=True):
        assert longer > 2 * one and wider > 2 * one


# ---- advice


def advice(*outputs: Tensor, target: Target | None = None) -> list[Recompute]:
    return [found for ast in kernels_of(*outputs) if (found := find_recompute(ast, "id", 3, target))]


@pytest.mark.parametrize("how", REDUCED)
def test_a_product_that_is_reduced_at_once_is_named_with_its_remedy(how: str) -> None:
    (found,) = advice(REDUCED[how](product()))
    assert (found.kernel_id, found.calls, found.factor, found.wasted_operations) == ("id", 3, 1.0, 0.0)
    shape = f"{COLUMNS}x{ROWS}" if how == "of columns" else f"{ROWS}x{COLUMNS}"  # what is stored comes first
    assert f"K={TERMS} with value shape {shape} is reduced over" in found.advice
    assert f"call .contiguous() on that intermediate (shape {shape}) before it is reduced" in found.advice
    assert advice(REDUCED[how](product().contiguous())) == []
    assert done_with(found) == "reduces a product at once"


def test_a_product_of_a_batch_and_a_convolution_are_named_too() -> None:
    (found,) = advice((empty(8, 256, 2048) @ empty(8, 2048, 256)).max(-1))
    assert "value shape 8x256x256" in found.advice
    (found,) = advice(empty(4, 64, 32, 32).conv2d(empty(64, 64, 3, 3)).relu().sum((2, 3)))
    assert "value shape 4x64x30x30" in found.advice


def test_a_gpu_without_tile_programs_is_told_by_the_figures_of_another_and_no_cpu_is() -> None:
    ampere = KNOWN_TARGETS["sm_80"]
    assert advice(product().max(1), target=replace(ampere, arch="sm_70")) == advice(product().max(1))
    assert advice(product().max(1), target=ampere) != advice(product().max(1))
    assert advice(product().max(1), target=X86) == []


@pytest.mark.parametrize(
    "made",
    [
        lambda: (empty(16, 16) @ empty(16, 16)).max(1),
        lambda: (empty(64, 6) @ empty(6, 25)).sum(1),
        lambda: product(),
        lambda: (product() + 1).relu(),
        lambda: product().softmax(-1),
        lambda: product().layernorm(),
        lambda: product().argmax(-1),
        lambda: empty(256, 1024).square().sum(-1),
        lambda: (empty(256, 1024) * empty(1024)).sum(-1),
        lambda: empty(1, 4096) @ empty(4096, 4096),
        lambda: empty(1, 4, 128, 64).scaled_dot_product_attention(empty(1, 4, 128, 64), empty(1, 4, 128, 64)),
        lambda: empty(8, 64, 28, 28).conv2d(empty(64, 64, 3, 3), padding=1).max_pool2d(),
        lambda: product() @ empty(COLUMNS, 64, dtype="float16"),
    ],
)
def test_nothing_is_said_where_nothing_is_gained(made: Callable[[], Tensor]) -> None:
    """A small product, and whatever is stored already or whose kernel is a matmul."""
    assert advice(made()) == []
