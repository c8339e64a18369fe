"""Counting contractions, and naming those that are computed more than once."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from tinygrad import Tensor, Variable, nn

from kcg.compat.tiny import AxisType, KernelInfo, Ops, ParamArg, UOp, dtypes
from kcg.kernel.analysis import (
    Contraction,
    arithmetic,
    certain_bytes,
    certain_operations,
    certain_work,
    contractions,
    find_recompute,
    least_bytes,
    least_bytes_of_region,
    operations,
)
from kcg.kernel.chain import Chain
from kcg.kernel.codec import ast_of, normalise
from kcg.measure.service import floor_of_region_s, floor_s
from kcg.types import CacheState
from tests.chains import region_of
from tests.known_targets import KNOWN_TARGETS


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
        "the product over range K=256 with value shape 320x1024 is recomputed 128 times inside a matmul over "
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


# -- indexing by a tensor: what is touched, not the table


def integers(*shape: int) -> Tensor:
    return empty(*shape, dtype="int32")


ROWS, WIDTH, PICKED = 5000, 64, 16


def embedded() -> Tensor:
    layer = nn.Embedding(ROWS, WIDTH)
    layer.weight = empty(ROWS, WIDTH)
    return layer(integers(2, PICKED))


@pytest.mark.parametrize(
    ("made", "elements"),
    [
        (embedded, 2 * PICKED + 2 * 2 * PICKED * WIDTH),
        (lambda: empty(ROWS, WIDTH)[integers(PICKED)], PICKED + 2 * PICKED * WIDTH),
        (lambda: empty(ROWS, WIDTH).gather(0, integers(PICKED, WIDTH)), 3 * PICKED * WIDTH),
        (lambda: empty(ROWS, WIDTH).gather(1, integers(ROWS, 3)), 3 * ROWS * 3),
        (lambda: embedded().sum(1), 2 * PICKED + 2 * PICKED * WIDTH + 2 * WIDTH),
        (lambda: empty(ROWS, WIDTH)[Tensor.arange(PICKED)], 2 * PICKED * WIDTH),
        (lambda: empty(3, WIDTH)[integers(ROWS)], 3 * WIDTH + ROWS + ROWS * WIDTH),  # no more than the whole table
    ],
    ids=["embedding", "index", "gather rows", "gather columns", "bag of words", "positions", "small table"],
)
def test_a_table_that_a_tensor_indexes_counts_the_rows_that_are_touched(made: object, elements: int) -> None:
    ast = only(made())  # type: ignore[operator]
    assert least_bytes(ast) == 4 * elements
    assert arithmetic(ast) <= 8 * elements, "the sum over the table, of which tinygrad makes a load, is not computed"
    assert contractions(ast) == []


def test_the_class_that_a_loss_picks_is_one_element_of_each_row() -> None:
    loss = kernels_of(empty(PICKED, ROWS).sparse_categorical_crossentropy(integers(PICKED)))[-1]
    assert least_bytes(loss) == 4 * (4 * PICKED + 1) and arithmetic(loss) < 10 * PICKED and contractions(loss) == []


def test_rows_chosen_by_two_tensors_are_read_once_though_the_sum_over_them_remains() -> None:
    first, second = kernels_of(empty(ROWS, WIDTH)[integers(PICKED), integers(PICKED)])
    assert least_bytes(first) == 4 * (2 * PICKED + PICKED + PICKED * 256), "one element each, not one a partial sum"
    assert least_bytes(second) == 4 * (3 * PICKED + PICKED * 256)


def test_a_scatter_and_a_product_with_a_one_hot_matrix_count_in_full_for_tinygrad_runs_them_so() -> None:
    scattered = only(empty(ROWS, WIDTH).scatter(0, integers(PICKED, WIDTH), empty(PICKED, WIDTH)))
    assert least_bytes(scattered) == 4 * (2 * ROWS * WIDTH + 2 * PICKED * WIDTH)
    assert arithmetic(scattered) >= ROWS * WIDTH * PICKED
    (product,) = contractions(only(integers(PICKED).one_hot(ROWS).float() @ empty(ROWS, WIDTH)))
    assert product.reduce_shape == (ROWS,)


# -- what no program avoids: a bound from below


def reading(extents: tuple[int, ...], factors: tuple[int, ...]) -> UOp:
    """A kernel that reads x[sum of ranges times factors] and writes each to a place of its own."""
    axes = [UOp.range(n, i, AxisType.WEAK) for i, n in enumerate(extents)]
    address = sum((axis * factor for axis, factor in zip(axes, factors, strict=True)), UOp.const(0, dtypes.weakint))
    place, size = UOp.const(0, dtypes.weakint), 1
    for axis, n in zip(axes, extents, strict=True):
        place, size = place * n + axis, size * n
    largest = sum((n - 1) * abs(f) for n, f in zip(extents, factors, strict=True)) + 1
    value = buffer(1, largest).index(address.simplify()) * 2.0
    return buffer(0, size).index(place.simplify()).store(value).end(*axes).sink(arg=KernelInfo())


def test_certain_traffic_never_exceeds_the_distinct_elements_and_meets_them_where_rows_do_not_interleave() -> None:
    rng, exact = random.Random(0), 0
    for _ in range(300):
        count = rng.randint(1, 3)
        extents = tuple(rng.randint(1, 7) for _ in range(count))
        factors = tuple(rng.randint(1, 9) for _ in range(count))
        places = itertools.product(*(range(n) for n in extents))
        touched = {sum(i * f for i, f in zip(place, factors, strict=True)) for place in places}
        written = 1
        for n in extents:
            written *= n
        found = certain_bytes(reading(extents, factors)) // 4 - written
        assert 1 <= found <= len(touched), (extents, factors)
        exact += found == len(touched)
    assert exact > 200


@pytest.mark.parametrize(
    ("made", "elements"),
    [
        (lambda: empty(64, 64) * 2, 2 * 64 * 64),
        (lambda: empty(64, 64) @ empty(64, 64), 3 * 64 * 64),
        (embedded, 2 * PICKED * WIDTH),  # what is written: rows may be equal, or none of the table
        (lambda: empty(64, 64).tril().contiguous(), 64 * 64),  # what is written
        (lambda: (empty(64) > 0).where(empty(64), empty(64)), 2 * 64),  # the condition and what is written
        (lambda: (empty(64).float() * (empty(64) > 0).float()).contiguous(), 2 * 64),
        (lambda: empty(32, 64).pad(((0, 32), (0, 0))).contiguous(), 64 * 64),
        (lambda: empty(64, 64).diagonal().contiguous(), 2 * 64),
    ],
    ids=["product", "matmul", "embedding", "triangle", "where", "mask", "pad", "diagonal"],
)
def test_certain_traffic_leaves_out_what_a_condition_or_an_index_may_spare(made: object, elements: int) -> None:
    ast = only(made())  # type: ignore[operator]
    assert certain_bytes(ast) == 4 * elements <= least_bytes(ast)


def test_a_region_reads_what_it_did_not_write_and_writes_its_outputs() -> None:
    norm = region_of(empty(64, 32).layernorm().contiguous())
    asts = [ast_of(kernel) for kernel in norm.kernels]
    assert len(asts) == 3 and least_bytes_of_region(norm, asts) == 4 * 2 * 64 * 32
    assert sum(map(least_bytes, asts)) > 4 * 4 * 64 * 32


def test_a_symbolic_size_is_certain_only_as_far_as_its_least_value() -> None:
    length = Variable("length", 3, 1000).bind(1000)
    ast = only((empty(64, 1000)[:, :length] * 2).sum(1))
    assert certain_bytes(ast) <= 4 * (64 + 64 * 3) < least_bytes(ast) and certain_operations(ast) == 0
    assert certain_operations(only(empty(64, 32) @ empty(32, 16))) == 2 * 64 * 32 * 16
    assert certain_operations(only(empty(64, 32).tril() @ empty(32, 16))) == 0


def test_the_floor_of_a_kernel_is_its_certain_traffic_beyond_the_cache_at_the_rate_of_the_memory() -> None:
    known = KNOWN_TARGETS["sm_90"]
    target = replace(known, cores=132, clock_limit_mhz=1980.0, bandwidth_bytes_s=4.8e12, cache_bytes=60 << 20)
    assert target.bandwidth_bytes_s
    size = 8 * target.cache_bytes // 4
    copied = only((empty(size) * 2).contiguous())
    assert floor_s(copied, target) == pytest.approx((2 * 4 * size - target.cache_bytes) / target.bandwidth_bytes_s)
    assert floor_s(copied, target, CacheState.WARM) < floor_s(copied, target)
    picked = kernels_of(empty(size // WIDTH, WIDTH)[integers(PICKED)])
    assert [floor_s(ast, target) for ast in picked] == [0.0] * len(picked), "the table is not read"
    chosen = only((empty(size) > 0).where(empty(size), 0.0).contiguous())
    assert 0 < floor_s(chosen, target) <= floor_s(copied, target), "the condition is read, and the result is written"


def test_the_floor_of_a_region_counts_inputs_and_outputs_once_and_all_operations() -> None:
    target = replace(
        KNOWN_TARGETS["sm_90"], cores=132, clock_limit_mhz=1980.0, bandwidth_bytes_s=4.8e12, cache_bytes=60 << 20
    )
    rows, width = 1 << 14, 1 << 13
    region = region_of(empty(rows, width).softmax().contiguous())
    chain = Chain(region)
    assert len(chain.asts) == 3
    assert certain_work(chain.asts, region.outputs) == (2 * 4 * rows * width, 0), "no intermediate, and the input once"
    assert least_bytes_of_region(region, [ast_of(kernel) for kernel in region.kernels]) == 2 * 4 * rows * width
    moved_s = (2 * 4 * rows * width - target.cache_bytes) / target.bandwidth_bytes_s
    assert floor_of_region_s(region, target) == pytest.approx(moved_s)
    projected = region_of(((empty(64, 32) @ empty(32, 48)).contiguous() @ empty(48, 16)).contiguous())
    nbytes, operations = certain_work(Chain(projected).asts, projected.outputs)
    assert nbytes == 4 * (64 * 32 + 32 * 48 + 48 * 16 + 64 * 16) and operations == 2 * 64 * 48 * (32 + 16)
    assert 0 < floor_of_region_s(projected, target) < 1e-9


def test_what_a_mask_may_leave_out_is_no_part_of_a_floor() -> None:
    """A window of one key of 128: nearly nothing of the product needs to be computed, nor all keys be read."""
    q, k, v = (empty(128, 16) for _ in range(3))
    query, key = Tensor.arange(128).reshape(128, 1), Tensor.arange(128).reshape(1, 128)
    mask = (key <= query) & (key >= query)
    for region, computed in (
        (region_of(q.scaled_dot_product_attention(k, v, attn_mask=mask)), 0),
        (region_of(q.scaled_dot_product_attention(k, v)), 2 * 2 * 128 * 128 * 16),
    ):
        nbytes = 4 * 128 * 16 * (4 if computed else 1)
        assert certain_work(Chain(region).asts, region.outputs) == (nbytes, computed)


def test_what_a_later_kernel_may_leave_unused_is_no_part_of_a_floor() -> None:
    region = region_of(((empty(64, 32) @ empty(32, 64)).contiguous()[:8] * 2).contiguous())
    assert len(region.kernels) == 2
    assert certain_work(Chain(region).asts, region.outputs) == (4 * 8 * 64, 0), "most of the product is not read"
