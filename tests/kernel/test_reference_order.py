"""What a right kernel may be off by where the order of its arithmetic is tinygrad's to choose, above all in sums."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from tinygrad import dtypes

from kcg.compat.tiny import AxisType, Invalid, KernelInfo, Ops, ParamArg, UOp
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.reference import CONFIDENT, buffers, error_ratio, evaluate, sample_points
from kcg.measure.inputs import (
    MODEST_RECIPE,
    NEGATIVE_RECIPE,
    RECIPE,
    SPECIAL_RECIPE,
    WIDE_RECIPE,
    Hashed,
    buffers_of,
    make_inputs,
    to_values,
)
from tests.kernels import empty, kernels_of, round_to_bf16
from tests.slow import first


def test_a_sum_of_sums_may_be_added_in_any_order() -> None:
    # as one kernel of a training step on an H200 did: exact from right to left, and 0.20703125 from left to right
    x = {1: 0.0732421875, 2: 0.74609375, 3: -2.453125}
    (ast,) = kernels_of(empty(8, dtype="bfloat16") + (empty(8, dtype="bfloat16") + empty(8, dtype="bfloat16") * 0.25))
    points = sample_points(ast, 8, np.random.default_rng(0))
    (expected,) = evaluate(ast, {slot: np.full(8, value, np.float32) for slot, value in x.items()}, points)
    assert expected.values[0] == 0.2060546875
    for got, passes in ((0.20703125, True), (0.2060546875, True), (0.2578125, False), (0.0, False)):
        assert (error_ratio(expected, np.full(len(expected.values), got)).max() <= CONFIDENT) == passes
    (whole,) = evaluate(ast, {i: np.full(8, v, np.float32) for i, v in {1: 3.0, 2: 5.0, 3: -8.0}.items()}, points)
    assert whole.values[0] == 6.0 and not whole.error.any(), "integers are exact in any order"


def test_a_sum_over_sums_may_be_added_part_by_part() -> None:
    # as clang does, and as tinygrad writes it: a constant that is added 488 times is rounded the same way each time
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(488, 64)).astype(np.float32), np.full(64, 0.023364564, np.float32)
    (ast,) = kernels_of((empty(488, 64) + empty(64)).sum(0))
    (expected,) = evaluate(ast, {1: x.reshape(-1), 2: y}, sample_points(ast, 64, rng))
    total = np.zeros(64, np.float32)
    for row in x:
        total = (total + row) + y
    got = total[expected.indices]
    assert error_ratio(expected, got).max() <= CONFIDENT
    assert error_ratio(expected, got + 0.01).min() > CONFIDENT


@pytest.mark.parametrize(("count", "dropped"), [(3136, 1), (12_544, 16), (25_088, 64)])
def test_equal_terms_are_rounded_alike(count: int, dropped: int) -> None:
    # the gradient of a batch norm after a ReLU: the terms of a channel are one value or 0
    rng = np.random.default_rng(0)
    mask, scale = rng.normal(size=(64, count)).astype(np.float32), rng.normal(size=64).astype(np.float32)
    (ast,) = kernels_of((empty(64, count) > 0).where(empty(64, 1).expand(64, count), 0).sum(1))
    (expected,) = evaluate(ast, {1: mask.reshape(-1), 2: scale}, sample_points(ast, 64, rng))
    got = np.cumsum(np.where(mask > 0, scale[:, None], np.float32(0)), axis=1, dtype=np.float32)[expected.indices]
    off = np.abs(got[:, -1] - expected.values) / (2.0**-24 * np.sqrt(count) * np.abs(expected.values))
    assert off.max() > CONFIDENT, "more than independent errors would be"
    assert error_ratio(expected, got[:, -1]).max() <= CONFIDENT
    ends = got[:, -1] - np.float32(max(1, dropped // 2)) * scale[expected.indices]  # half of those dropped are 0
    assert error_ratio(expected, ends).min() > CONFIDENT


def test_zeros_are_no_sum_of_equal_terms_in_sixteen_bits() -> None:
    rng = np.random.default_rng(0)
    for dtype, count in (("float16", 1024), ("float16", 4096), ("bfloat16", 256)):
        mask, scale = rng.normal(size=(16, count)).astype(np.float32), rng.normal(size=16).astype(np.float32)
        picked = (empty(16, count) > 0).where(empty(16, 1, dtype=dtype).expand(16, count), 0)
        (ast,) = kernels_of(picked.sum(1, dtype=dtype))
        (expected,) = evaluate(ast, {1: mask.reshape(-1), 2: _narrow(scale, dtype)}, sample_points(ast, 16, rng))
        assert (error_ratio(expected, np.zeros(len(expected.values), np.float32)) > CONFIDENT).all(), (dtype, count)


@pytest.mark.parametrize(("dtype", "count"), [("bfloat16", 3000), ("float32", 3000), ("float16", 100)])
def test_a_gather_that_is_written_as_a_sum_is_exact(dtype: str, count: int) -> None:
    rng = np.random.default_rng(0)
    (ast,) = kernels_of(empty(count, 8, dtype=dtype)[empty(5, dtype="int32")])
    table = _narrow(rng.normal(size=count * 8).astype(np.float32), dtype)
    chosen = rng.integers(0, count, 5).astype(np.int32)
    slots = {use.dtype_name: use.slot for use in buffers(ast) if use.is_input}
    (expected,) = evaluate(ast, {slots["int32"]: chosen, slots[dtype]: table}, sample_points(ast, 40, rng))
    assert not expected.error.any()
    right = table.reshape(count, 8)[chosen].reshape(-1)[expected.indices]
    assert error_ratio(expected, right).max() == 0
    assert np.isinf(error_ratio(expected, right * np.float32(1.01))).all()


def _narrow(values: np.ndarray, dtype: str) -> np.ndarray:
    return round_to_bf16(values) if dtype == "bfloat16" else values.astype(dtype)


def test_terms_that_differ_are_not_taken_for_equal_ones() -> None:
    """Whatever another sum of the kernel is made of."""
    rng = np.random.default_rng(0)
    (ast,) = kernels_of(empty(16, 30_000).sum(1))
    data = rng.normal(size=(16, 30_000)).astype(np.float32)
    data[3], data[5, 7] = 0.3, np.nan
    (expected,) = evaluate(ast, {1: data.reshape(-1)}, sample_points(ast, 16, rng))
    size = np.sqrt(np.square(data.astype(np.float64)).sum(1))[expected.indices]
    usual = 1.2 * 2.0**-24 * np.sqrt(30_000) * np.maximum(size, np.abs(expected.values))
    assert {*expected.indices[~(expected.error <= usual)]} <= {3, 5}
    assert expected.error[expected.indices == 3] > usual[expected.indices == 3]


def test_an_overflow_that_another_order_avoids_is_uncertain() -> None:
    # in the gradient of a GELU: x / (1 + e)² · e, where e is infinite, was 0 as tinygrad orders it
    (ast,) = kernels_of(empty(4) * (empty(4).exp2() + 1).reciprocal() * empty(4).exp2())
    used = [use.slot for use in buffers(ast) if use.is_input]
    data = {slot: np.array([1, 2, 200, 3], np.float32) for slot in used}
    (store,) = evaluate(ast, data, sample_points(ast, 4, np.random.default_rng(0)))
    assert np.isinf(store.error).tolist() == [False, False, True, False] and np.isnan(store.values[2])
    (ast,) = kernels_of(empty(4).sqrt() * 2)
    (store,) = evaluate(ast, {1: np.array([1, -1, 4, 9], np.float32)}, sample_points(ast, 4, np.random.default_rng(0)))
    assert not np.isinf(store.error).any() and np.isnan(store.values[1]), "no order makes a number of that"


def test_a_product_beyond_the_largest_float_may_be_pulled_back_by_the_sum_that_it_is_added_to() -> None:
    """A multiply-add does not round it: of an attention's gradient on a CPU a sum was 1.3e38, and a loop's infinite."""
    (ast,) = kernels_of(empty(1, 3) @ empty(3, 1))
    (alone,) = kernels_of(empty(3) * empty(3) + empty(3))

    def of_sum(*y: float) -> tuple[float, float]:
        data = {1: np.array([2e19, 2e19, 1], np.float32), 2: np.array(y, np.float32)}
        (store,) = evaluate(ast, data, sample_points(ast, 1, np.random.default_rng(0)))
        return float(store.values[0]), float(store.error[0])

    assert of_sum(-1.53e19, 1.75e19, 1) == (np.inf, np.inf), "3.5e38 - 3.06e38 is 4.4e37"
    assert of_sum(-1, 1.75e19, 1) == (np.inf, 1.0), "infinite in every order"
    data = {1: np.full(3, 2e19, np.float32), 2: np.full(3, 1.75e19, np.float32)}
    data[3] = np.array([-3.06e38, -1e20, 3e38], np.float32)
    (store,) = evaluate(alone, data, sample_points(alone, 3, np.random.default_rng(0)))
    assert np.isinf(store.values).all() and store.error[np.argsort(store.indices)].tolist() == [np.inf, 1.0, 1.0]


def test_an_overflow_of_a_sum_that_a_factor_was_moved_out_of_is_uncertain() -> None:
    """Of a norm before a matmul Σ (x · r · g) · w, with one r for all terms, tinygrad makes r · Σ (x · g) · w."""
    (ast,) = kernels_of((empty(6, 8) * empty(6, 1) * empty(8)) @ empty(8, 3))
    x, factor, weight = np.ones((6, 8), np.float32), np.ones(6, np.float32), np.ones((8, 3), np.float32)
    x[1, :], factor[1] = 1e30, 1e-30  # x · g overflows
    x[2, :], factor[2], weight[:, 1] = 1e26, 1e-26, 2e3  # the sum does, of one column
    x[3, :], factor[3] = 1e-32, 1e32  # x · g is below the normal numbers of float32, and off by a part of 1.4e-45
    x[4, 0] = np.inf
    x[5, :], factor[5] = 1e20, 1e20  # x · r overflows, and r · Σ (x · g) · w does not
    data = {1: x.reshape(-1), 2: factor, 3: np.full(8, 1e9, np.float32), 4: weight.reshape(-1)}
    assert [int(np.prod(p.src[0].arg)) for p in ast.toposort() if p.op is Ops.PARAM][1:] == [48, 6, 8, 24]
    data[3][:] = np.where(np.arange(8) < 4, 1e9, 1e-9)
    data[1].reshape(6, 8)[[[3], [5]], :4] = 0
    points = np.stack(np.meshgrid(np.arange(6), np.arange(3), indexing="ij"), -1).reshape(-1, 2)
    (store,) = evaluate(ast, data, [points])
    values, error = store.values.reshape(6, 3), store.error.reshape(6, 3)
    assert np.isfinite(error[0]).all() and (error[0] < 1e-5 * values[0]).all()
    assert np.isinf(error[1]).all() and np.isfinite(values[1]).all()
    assert np.isinf(error[2]).tolist() == [False, True, False]
    assert np.isfinite(error[3]).all() and (error[3] > 1e-5 * values[3]).all()
    assert np.isinf(values[4]).all() and not error[4].any(), "an infinity of the data is one in every order"
    assert np.isinf(error[5]).all()


def test_what_is_moved_out_of_a_sum_is_multiplied_in_any_order() -> None:
    """As in the gradient of a norm: Σ (x · f) · y / p³ becomes (Σ x · y) / p / p / p · f."""
    f, p = empty(6), empty(6)
    (ast,) = kernels_of((empty(6, 8) * f.reshape(6, 1) * empty(6, 8)).sum(1) * (p * p * p * 2).reciprocal())
    slots = {use.slot: use.size for use in buffers(ast) if use.is_input}
    (x, _, y, last) = (np.ones(size, np.float32) for size in slots.values())
    factor = np.array([1, 1e-10, 1, 1e10, 1e-30, 1], np.float32)
    x.reshape(6, 8)[1:4] = [[1e19], [1e-30], [1e-25]]
    x.reshape(6, 8)[4] = 1e27
    last[1:] = [3e-10, 1e-3, 1e5, 1e-4, 10]
    (store,) = evaluate(
        ast, dict(zip(slots, (x, factor, y, last), strict=True)), sample_points(ast, 6, np.random.default_rng(0))
    )
    unknown = np.isinf(store.error)[np.argsort(store.indices)]
    assert np.isfinite(store.values).all() and unknown.tolist() == [False, True, False, True, True, False]


@pytest.mark.parametrize("by_gradient", [False, True])
def test_a_product_that_is_computed_as_a_complement_may_be_0_where_it_is_small(by_gradient: bool) -> None:
    """Also where a constant is below the line, as in the gradient of a logarithm."""
    exponents = empty(4)
    x = exponents.exp2()
    product = x * (x + 1).reciprocal()
    if by_gradient:
        (product,) = (x + 1).log2().sum().gradient(exponents)
    (ast,) = kernels_of(empty(4) * product + empty(4))
    inputs = {use.slot: np.ones(4, np.float32) for use in buffers(ast) if use.is_input}
    exponent = next(n.src[0].src[0].arg.slot for n in ast.toposort() if n.op is Ops.EXP2)
    points = sample_points(ast, 4, np.random.default_rng(0))
    inputs[exponent] = np.array([-23, -10, 0, 3], np.float32)
    (store,) = evaluate(ast, inputs, points)
    share = 1 / (1 + np.exp2(-inputs[exponent]))
    as_tinygrad = np.float32(1) + (np.float32(1) - np.float32(1) / (np.float32(1) + np.exp2(inputs[exponent])))
    assert error_ratio(store, as_tinygrad).max() <= CONFIDENT
    assert (error_ratio(store, np.ones(4, np.float32)) > CONFIDENT).tolist() == [False, True, True, True], share
    added = next(n for n in ast.toposort() if n.op is Ops.STORE).src[1].src[1].src[0].arg.slot
    inputs[exponent][0], inputs[added] = -25, np.zeros(4, np.float32)
    (store,) = evaluate(ast, inputs, points)
    as_tinygrad = np.float32(1) - np.float32(1) / (np.float32(1) + np.exp2(inputs[exponent]))
    assert as_tinygrad[0] == 0 and error_ratio(store, as_tinygrad).max() <= CONFIDENT


def test_an_infinity_times_a_complement_that_may_be_0_is_unknown() -> None:
    """As in the gradient of `tanh`: 4 s e / (1 + e)² becomes 4 s (1 - 1 / (1 + e)) / (1 + e)."""
    x, scale = empty(4), empty(4)
    (ast,) = kernels_of(x * scale * (scale + 1).reciprocal())
    slots = [use.slot for use in buffers(ast) if use.is_input]
    factor = next(n for n in ast.toposort() if n.op is Ops.ADD and n.dtype == dtypes.float32).src[0].src[0].arg.slot
    inputs = {slot: np.full(4, -np.inf, np.float32) for slot in slots}
    inputs[factor] = np.array([4e-39, 1e-9, 1e-3, 1], np.float32)
    (store,) = evaluate(ast, inputs, sample_points(ast, 4, np.random.default_rng(0)))
    unknown = np.isinf(store.error)[np.argsort(store.indices)]
    assert np.isneginf(store.values).all() and unknown.tolist() == [True, True, False, False]


def test_a_sum_after_a_bias_that_all_rows_share() -> None:
    rng = np.random.default_rng(0)
    (ast,) = kernels_of((empty(1, 512).expand(64, 512) + empty(64, 512)).sum(1))
    bias, x = rng.normal(size=512).astype(np.float32), rng.normal(size=(64, 512)).astype(np.float32)
    (expected,) = evaluate(ast, {1: bias, 2: x.reshape(-1)}, sample_points(ast, 64, rng))
    got = (bias + x).sum(1, dtype=np.float32)[expected.indices]
    assert error_ratio(expected, got).max() <= CONFIDENT


@pytest.mark.parametrize("hidden", [0, 1])
def test_a_padding_that_hides_no_term_of_a_sum_is_none(hidden: int) -> None:
    # the gradient of a strided convolution: tinygrad leaves a condition that is always true, and Invalid beside it.
    # Of a sum that hides one, nothing is known
    out = UOp(Ops.PARAM, src=(UOp.const(1),), arg=ParamArg(0, dtypes.float32))
    source = UOp(Ops.PARAM, src=(UOp.const(8),), arg=ParamArg(1, dtypes.float32))
    row = UOp.range(8, 0, AxisType.REDUCE)
    padded = (row < 8 - hidden).where(source.index(row), UOp.const(Invalid))
    ast = out.index(UOp.const(0)).store(padded.reduce(row, arg=Ops.ADD)).sink(arg=KernelInfo())
    points = sample_points(ast, 1, np.random.default_rng(0))
    (store,) = evaluate(ast, {1: np.arange(8, dtype=np.float32)}, points)
    assert store.known_share == 1 - hidden
    assert hidden or (store.values.tolist() == [28.0] and not store.error.any())


def test_a_sum_of_sums_takes_little_memory() -> None:
    (ast,) = kernels_of(empty(2, 64, 14, 14).conv2d(empty(64, 64, 3, 3)).relu().mean((0, 2, 3)))
    rng = np.random.default_rng(0)
    data = {use.slot: rng.normal(size=use.size).astype(np.float32) for use in buffers(ast)}
    tracemalloc.start()
    evaluate(ast, data, sample_points(ast, 64, rng))
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_a_long_reduction_to_one_point_is_blocked() -> None:
    out = UOp(Ops.PARAM, src=(UOp.const(1),), arg=ParamArg(0, dtypes.float32))
    source = UOp(Ops.PARAM, src=(UOp.const(1 << 22),), arg=ParamArg(1, dtypes.float32))
    rows, columns = UOp.range(1 << 11, 0, AxisType.REDUCE), UOp.range(1 << 11, 1, AxisType.REDUCE)
    total = source.index(rows * (1 << 11) + columns).reduce(rows, columns, arg=Ops.ADD)
    ast = out.index(UOp.const(0)).store(total).sink(arg=KernelInfo())
    values = np.random.default_rng(0).standard_normal(1 << 22).astype(np.float32)
    (store,) = evaluate(ast, {1: values}, sample_points(ast, 64, np.random.default_rng(0)))
    assert store.values[0] == pytest.approx(values.astype(np.float64).sum(), rel=1e-12)
    assert error_ratio(store, values.sum(dtype=np.float32).reshape(1)).max() <= CONFIDENT


@pytest.mark.parametrize("recipe", first(1, [RECIPE, WIDE_RECIPE, MODEST_RECIPE, NEGATIVE_RECIPE]))
@pytest.mark.parametrize("squared", [False, True])
def test_what_one_large_term_swallows_is_held_against_no_order(recipe: str, squared: bool) -> None:
    """Where magnitudes differ widely, each small term that is added after a large one is lost, and always downwards."""
    rows, columns = 64, 12288
    x = empty(rows, columns)
    (ast,) = kernels_of((x.square() if squared else x).sum(1))
    ast = ast_of(kernel_of(ast))
    for seed in (1, 2, 3):
        ((slot, drawn),) = make_inputs(ast, seed, recipe=recipe).items()
        assert isinstance(drawn, Hashed)
        terms = drawn.whole().reshape(rows, columns)
        terms = terms * terms if squared else terms
        largest_first = np.take_along_axis(terms, np.argsort(-np.abs(terms), axis=1), 1)
        (store,) = evaluate(ast, {slot: drawn}, [np.arange(rows)[:, None]])
        for ordered in (terms, largest_first):
            total = np.zeros(rows, np.float32)
            for column in range(columns):
                total = total + ordered[:, column]
            assert error_ratio(store, total[store.indices]).max() < 0.75 * CONFIDENT
            assert (error_ratio(store, 1.001 * store.values) > CONFIDENT).mean() > 0.5, (
                "which is no reason to pass more"
            )


@pytest.mark.parametrize("recipe", [RECIPE, WIDE_RECIPE, NEGATIVE_RECIPE, SPECIAL_RECIPE])
def test_terms_that_rounding_makes_equal_count_as_equal(recipe: str) -> None:
    """(x - m)² for an m far above every x: each of 3,072 additions is rounded in the same direction."""
    rows, columns = 96, 3072
    shifted = empty(rows, columns, dtype="bfloat16").cast("float32") - empty(rows, 1)
    (ast,) = kernels_of(shifted.square().sum(1))
    ast = ast_of(kernel_of(ast))
    infos = {info.slot: info for info in buffers_of(ast)}
    for seed in (1, 2, 3):
        made = make_inputs(ast, seed, recipe=recipe)
        values = {slot: to_values(bits, infos[slot].dtype) for slot, bits in made.items()}
        (x,) = (values[slot] for slot in values if infos[slot].size == rows * columns)
        (m,) = (values[slot] for slot in values if infos[slot].size == rows)
        with np.errstate(all="ignore"):
            terms = np.square(x.whole().reshape(rows, columns) - m[:, None])
            total = np.zeros(rows, np.float32)
            for column in range(columns):
                total = total + terms[:, column]
        (store,) = evaluate(ast, values, [np.arange(rows)[:, None]])
        assert error_ratio(store, total[store.indices]).max() <= CONFIDENT


def test_factors_of_other_ranges_may_be_summed_apart() -> None:
    """Σ Σ x · y is Σ x · Σ y, which is no NaN where the products are infinities of both signs."""
    (ast,) = kernels_of((empty(4, 3, 1) * empty(4, 1, 5)).sum((1, 2)))
    x, y = np.ones(12, np.float32), np.tile(np.array([1, -1, 1, -1, 1], np.float32), 4)
    x[0] = np.inf
    (store,) = evaluate(ast, {1: x, 2: y}, [np.arange(4)[:, None]])
    assert np.isnan(store.values[0]) and np.isinf(store.error[0]) and np.isfinite(store.error[1:]).all()


def test_factors_that_are_moved_out_of_a_sum_may_fall_below_the_normal_numbers_together() -> None:
    """Σ x · (1/√v · y), the gradient of a batch norm in a training loop on a CPU: x / √v is a subnormal number of a few
    bits, and Σ y so large that the result is none."""
    count = 512
    (ast,) = kernels_of((empty(4, 1) * ((empty(4, 1) + 1e-5).sqrt().reciprocal() * empty(4, count))).sum(1))
    rng = np.random.default_rng(0)
    x, v = np.array([3.02e-37, -3.02e-37, 0.5, 2.0], np.float32), np.array([1e11, 2e10, 1e11, 1.0], np.float32)
    y = rng.uniform(1e8, 4e11, (4, count)).astype(np.float32)
    (store,) = evaluate(ast, {1: x, 2: v, 3: y.reshape(-1)}, [np.arange(4)[:, None]])
    moved_out = x / np.sqrt(v + np.float32(1e-5))
    found = y.sum(1, dtype=np.float64).astype(np.float32) * moved_out
    assert 0 < abs(moved_out[0]) < 1e-41 and abs(found[0] / store.values[0] - 1) > 1e-5
    assert (error_ratio(store, found) < CONFIDENT).all()
    wrong = found * np.array([1.5, 1.5, 1.0001, 1.0001], np.float32)
    assert (error_ratio(store, wrong) > CONFIDENT).all()


def test_small_terms_beside_a_large_one_may_be_lost_however_they_are_made() -> None:
    """(x - m)² of a row of one large number and thousands of tiny ones, added one by one as x² - m²: right. The sum
    without its largest term's neighbour is not, on ordinary numbers."""
    count = 3072
    x = np.random.default_rng(0).standard_normal((2, count)).astype(np.float32)
    x[0] *= 2.0**-9
    x[0, 0] = 16.0
    mean = x.mean(1, dtype=np.float64).astype(np.float32)
    (ast,) = kernels_of((empty(2, count) - empty(2, 1)).square().sum(1))
    (expected,) = evaluate(ast_of(kernel_of(ast)), {1: x.reshape(-1), 2: mean}, [np.arange(2)[:, None]])

    def one_by_one(terms: Any) -> Any:
        return np.add.accumulate(terms, axis=1, dtype=np.float32)[:, -1]

    squares = one_by_one(np.square(x)) - np.float32(count) * np.square(mean)
    for right in (one_by_one(np.square(x - mean[:, None])), squares):
        assert (error_ratio(expected, right) < CONFIDENT).all()
    without = one_by_one(np.square(np.delete(x, 1, 1) - mean[:, None]))
    assert error_ratio(expected, without)[1] > CONFIDENT
