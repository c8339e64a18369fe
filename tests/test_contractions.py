"""Counting contractions, and naming those that are computed more than once."""

from __future__ import annotations

import pytest
from tinygrad import Tensor, Variable

from kcg.compat.tiny import AxisType, KernelInfo, Ops, ParamArg, UOp, dtypes
from kcg.kernel.codec import normalise
from kcg.kernel.contractions import Contraction, arithmetic, contractions, find_recompute, least_bytes, operations


def kernels_of(*tensors: Tensor) -> list[UOp]:
    """The normalised kernel ASTs that realising `tensors` would run; nothing is allocated."""
    linear, _ = tensors[0].linear_with_vars(*tensors[1:])
    return [normalise(call.src[0]) for call in linear.src if call.src[0].op is Ops.SINK]


def only(*tensors: Tensor) -> UOp:
    (ast,) = kernels_of(*tensors)
    return ast


def empty(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor.empty(*shape, dtype=dtype, device="CPU")


def buffer(slot: int, size: int) -> UOp:
    return UOp(Ops.PARAM, dtypes.float, (UOp.const(size, dtypes.weakint),), ParamArg(slot, dtypes.float))


def fused_product(*, rows: int, first: int, middle: int, columns: int) -> UOp:
    """relu(a @ b) @ c in one kernel, as tinygrad would fuse it: the first product is made again for every column."""
    i, j = UOp.range(rows, 0, AxisType.WEAK), UOp.range(columns, 1, AxisType.WEAK)
    k, m = UOp.range(middle, 2, AxisType.REDUCE), UOp.range(first, 3, AxisType.REDUCE)
    a, b, c = buffer(1, rows * first), buffer(2, first * middle), buffer(3, middle * columns)
    inner = (a.index(i * first + m) * b.index(m * middle + k)).reduce(m, arg=(Ops.ADD, 0)).maximum(0.0)
    outer = (inner * c.index(k * columns + j)).reduce(k, arg=(Ops.ADD, 0))
    return buffer(0, rows * columns).index(i * columns + j).store(outer).end(i, j).sink(arg=KernelInfo())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_matmul_is_one_contraction_computed_once(dtype: str) -> None:
    ast = only(empty(24, 40, dtype=dtype) @ empty(40, 32, dtype=dtype))
    (found,) = contractions(ast)
    assert found == Contraction(2 * 24 * 40 * 32, 2 * 24 * 40 * 32, (24, 32), (40,), (), (24, 32))
    assert found.factor == 1
    assert operations(ast) == arithmetic(ast) == 2 * 24 * 40 * 32
    size = 4 if dtype == "float32" else 2
    assert least_bytes(ast) == size * (24 * 40 + 40 * 32 + 24 * 32)
    assert find_recompute(ast, "id", 3) is None


def test_a_convolution_counts_its_kernel_ranges() -> None:
    ast = kernels_of(empty(1, 3, 10, 10).conv2d(empty(8, 3, 3, 3)))[-1]
    assert operations(ast) == 2 * 8 * 8 * 8 * 3 * 3 * 3
    assert find_recompute(ast, "id", 1) is None


def test_squares_of_a_norm_are_contractions_at_factor_one() -> None:
    asts = kernels_of(empty(16, 64).layernorm().contiguous())
    found = [c for ast in asts for c in contractions(ast)]
    assert [(c.operations, c.factor) for c in found] == [(2 * 16 * 64, 1.0)]
    assert all(find_recompute(ast, "id", 1) is None for ast in asts)


def test_sums_and_maxima_are_no_contractions_but_arithmetic() -> None:
    ast = only(empty(16, 64).sum(-1))
    assert contractions(ast) == [] and arithmetic(ast) == 16 * 64
    assert contractions(only(empty(16, 64).max(-1))) == []


def test_two_products_in_one_kernel_both_count() -> None:
    x = empty(16, 8)
    assert operations(only(x @ empty(8, 12) + x @ empty(8, 12))) == 2 * 2 * 16 * 8 * 12


def test_a_symbolic_extent_counts_with_its_largest_value() -> None:
    length = Variable("length", 1, 32).bind(20)
    ast = only(empty(4, 32)[:, :length] @ empty(32, 16)[:length])
    assert operations(ast) == 2 * 4 * 32 * 16


def test_a_product_fused_into_another_is_named_with_its_factor_and_remedy() -> None:
    ast = fused_product(rows=320, first=256, middle=1024, columns=128)
    inner, outer = sorted(contractions(ast), key=lambda c: -c.operations)
    assert inner.factor == 128 and inner.needed == 2 * 320 * 256 * 1024
    assert outer.factor == 1 and outer.operations == 2 * 320 * 1024 * 128
    report = find_recompute(ast, "some-kernel", 7)
    assert report is not None
    assert (report.kernel_id, report.calls, report.factor) == ("some-kernel", 7, 128)
    assert report.wasted_operations == 127 * 2 * 320 * 256 * 1024
    assert report.advice == (
        "the product over range K=256 with value shape 320x1024 is recomputed 128 times inside a contraction over "
        "1024: call .contiguous() on that intermediate (shape 320x1024) before it is used"
    )


def test_attention_joined_with_an_mlp_is_computed_for_every_column_of_the_join() -> None:
    """What tinygrad itself does with the end of a single block of Flux, written naively."""
    query, key, value = (empty(1, 2, 16, 8) for _ in range(3))

    def program(materialise: bool) -> list[UOp]:
        attended = query.scaled_dot_product_attention(key, value).permute(0, 2, 1, 3).reshape(16, 16)
        attended = attended.contiguous() if materialise else attended
        return kernels_of(attended.cat(empty(16, 32).gelu(), dim=-1) @ empty(48, 16))

    reports = [r for ast in program(False) if (r := find_recompute(ast, "id", 1))]
    assert [r.factor for r in reports] == [3]  # 48 columns instead of 16
    assert reports[0].wasted_operations == 2 * 2 * 16 * 16 * 16
    assert "call .contiguous() on that intermediate (shape 16x16) before it is joined" in reports[0].advice
    assert all(find_recompute(ast, "id", 1) is None for ast in program(True))


def test_joined_products_are_computed_for_all_rows() -> None:
    ast = only((empty(16, 8) @ empty(8, 12)).cat(empty(48, 8) @ empty(8, 12), dim=0))
    assert sorted(c.factor for c in contractions(ast)) == [64 / 48, 4]
    report = find_recompute(ast, "id", 1)
    assert report is not None and report.factor == 4  # 16 of 64 rows are used: the largest waste
    assert report.wasted_operations == 2 * 64 * 8 * 12


def test_a_product_broadcast_over_another_axis_is_found() -> None:
    i, j, r = (UOp.range(n, k, AxisType.WEAK) for k, n in enumerate((8, 6, 5)))
    k = UOp.range(4, 3, AxisType.REDUCE)
    product = (buffer(1, 32).index(i * 4 + k) * buffer(2, 24).index(k * 6 + j)).reduce(k, arg=(Ops.ADD, 0))
    ast = buffer(0, 240).index((i * 6 + j) * 5 + r).store(product).end(i, j, r).sink(arg=KernelInfo())
    report = find_recompute(ast, "id", 1)
    assert report is not None and report.factor == 5
    assert "once per element of 5" in report.advice


def test_a_reduction_that_needs_no_range_of_the_one_around_it_is_not_counted_again() -> None:
    """tinygrad computes it before the loop of the outer one."""
    i, k, m = UOp.range(8, 0, AxisType.WEAK), UOp.range(4, 1, AxisType.REDUCE), UOp.range(6, 2, AxisType.REDUCE)
    squares = (buffer(1, 48).index(i * 6 + m) * buffer(1, 48).index(i * 6 + m)).reduce(m, arg=(Ops.ADD, 0))
    outer = (buffer(2, 4).index(k) * squares).reduce(k, arg=(Ops.ADD, 0))
    ast = buffer(0, 8).index(i).store(outer).end(i).sink(arg=KernelInfo())
    assert sorted(c.operations for c in contractions(ast)) == [2 * 8 * 4, 2 * 8 * 6]
    assert find_recompute(ast, "id", 1) is None


def test_arithmetic_counts_what_is_computed_again_and_no_addresses() -> None:
    assert arithmetic(only(empty(16, 32) + empty(16, 32))) == 16 * 32
    assert arithmetic(only(empty(16, 32).permute(1, 0).contiguous())) == 0
    fused = fused_product(rows=4, first=3, middle=5, columns=6)
    # the inner multiply-add, its relu once per (row, middle, column), and the outer multiply-add
    assert arithmetic(fused) == 2 * 4 * 5 * 6 * 3 + 4 * 5 * 6 + 2 * 4 * 5 * 6


def test_least_traffic_takes_what_is_touched_not_what_is_there() -> None:
    x = empty(64, 64)
    assert least_bytes(only((x[:8] + 1).contiguous())) == 2 * 4 * 8 * 64
    assert least_bytes(only(x.assign(x * 2))) == 2 * 4 * 64 * 64  # read once and written once
    assert least_bytes(only(empty(8, 1).expand(8, 64).contiguous())) == 4 * (8 + 8 * 64)
    joined = only(empty(16, 32).cat(empty(48, 32), dim=0))
    assert least_bytes(joined) == 2 * 4 * 64 * 32
