"""What is certain however data are rounded: NaN guards, infinities, underflow, padding; and what proves nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from tinygrad import Tensor, dtypes

from kcg.compat.tiny import KernelInfo, Ops, ParamArg, UOp
from kcg.kernel.reference import CONFIDENT, StoreValues, buffers, error_ratio, evaluate, sample_points
from kcg.measure.verify import JUDGED, Reference
from tests.kernel.test_reference import run_on
from tests.kernels import empty, kernels_of
from tests.slow import every

INF = math.inf


def computed(size: int = 40) -> Tensor:
    """A value that is off by rounding everywhere."""
    return (empty(size) * 1.25).sin() * 1.5


def data_of(ast: UOp, rng: np.random.Generator, *, infinities: float = 0.0) -> dict[int, np.ndarray]:
    """Normal floats, or floats of a wide range of which a share is infinite; integers over their whole range."""
    made = {}
    for use in buffers(ast):
        kind = np.dtype(use.dtype_name)
        if kind.kind == "f":
            values = rng.standard_normal(use.size)
            if infinities:
                values = np.sign(values) * 10 ** rng.uniform(-5, 4.78 if kind.itemsize == 2 else 6, use.size)
                values[rng.random(use.size) < infinities] *= INF
            made[use.slot] = values.astype(kind)
        elif kind.kind == "b":
            made[use.slot] = rng.random(use.size) < 0.5
        else:
            made[use.slot] = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, use.size, kind, endpoint=True)
    return made


def reference(ast: UOp, data: dict[int, np.ndarray]) -> StoreValues:
    return evaluate(ast, data, sample_points(ast, 400, np.random.default_rng(1)))[0]


def judged(store: StoreValues) -> float:
    return Reference((store,)).judged()


def in_both_formats(names: Iterable[str], *, halves: Collection[str]) -> list[ParameterSet]:
    """Parameters `(name, dtype)`: all in float32, those of `halves` in float16, `slow` are the others in float16."""
    return [
        pytest.param(name, dtype, marks=() if dtype == "float32" or name in halves else pytest.mark.slow)
        for name in names
        for dtype in ("float32", "float16")
    ]


# -- guards against NaN and infinity

GUARDS: dict[str, Callable[[Tensor], Tensor]] = {
    "not equal to itself": lambda y: y != y,
    "not (equal to itself)": lambda y: (y == y).logical_not(),
    "below itself": lambda y: y < y,
    "above itself": lambda y: y > y,
    "isnan": lambda y: y.isnan(),
    "isinf": lambda y: y.isinf(),
    "not isfinite": lambda y: y.isfinite().logical_not(),
    "not isclose": lambda y: y.isclose(y).logical_not(),
    "beside a wider cast": lambda y: y.cast(dtypes.float64) != y,
    "beside itself and 0": lambda y: y + 0 != y,
    "beside itself times 1": lambda y: y * 1 != y,
    "beside its negation twice": lambda y: y.neg().neg() != y,
    "beside a maximum with itself": lambda y: y.maximum(y) != y,
    "beyond infinity": lambda y: y > INF,
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_against_nan_leaves_an_empty_output_and_no_doubt(name: str) -> None:
    y = computed()
    (ast,) = kernels_of(GUARDS[name](y).where(7, y))
    data = data_of(ast, np.random.default_rng(0))
    store = reference(ast, data)
    (x,) = (data[use.slot] for use in buffers(ast) if use.is_input)
    values = np.sin(x.astype(np.float64) * 1.25) * 1.5
    np.testing.assert_allclose(store.values, values[store.indices], atol=1e-6)
    assert (store.error < 1e-5).all() and judged(store) == 1.0
    assert (error_ratio(store, x[store.indices] * 1e-30) > CONFIDENT).mean() > 0.9


def test_a_difference_with_itself_is_0() -> None:
    """tinygrad folds it while it schedules, where it sees it; a kernel of other hands may hold it."""
    out, source = (UOp(Ops.PARAM, src=(UOp.const(4),), arg=ParamArg(slot, dtypes.float32)) for slot in (0, 1))
    at = UOp.range(4, 0)
    y = source.index(at).sin()
    difference = UOp(Ops.ADD, src=(y, UOp(Ops.MUL, src=(y, UOp.const(-1.0)))))
    guarded = (difference != UOp.const(0.0)).where(UOp.const(7.0), y)
    ast = out.index(at).store(guarded.cast(dtypes.float32)).end(at).sink(arg=KernelInfo())
    store = reference(ast, {1: np.array([1, 2, INF, 3], np.float32)})
    order = np.argsort(store.indices)
    assert np.isinf(store.error[order]).tolist() == [False, False, True, False], "0, or NaN where y is none"
    np.testing.assert_allclose(store.values[order][[0, 1, 3]], np.sin([1, 2, 3]))


def test_a_guard_is_in_doubt_where_nan_is() -> None:
    (ast,) = kernels_of((lambda y: (y != y).where(5, y))((empty(4) * 1.1 - 1.1).sqrt()))
    (slot,) = (use.slot for use in buffers(ast) if use.is_input)
    store = reference(ast, {slot: np.array([4, 1, -4, 1.5], np.float32)})
    order = np.argsort(store.indices)
    assert np.isinf(store.error[order]).tolist() == [False, True, False, False], "the root of what may be below 0"
    assert store.values[order][2] == 5.0


def test_what_only_looks_like_a_comparison_with_itself_stays_in_doubt() -> None:
    y = computed()
    (narrower,) = kernels_of((y.cast(dtypes.float16) != y).where(7, y))
    (negated,) = kernels_of((y.neg() != y).where(7, y))
    (product,) = kernels_of((y * empty(40) != empty(40) * y).where(7, y))
    for ast in (narrower, negated, product):
        store = reference(ast, data_of(ast, np.random.default_rng(0)))
        assert ((store.values == 7) | (store.error > 5)).all()


ISCLOSE: dict[str, Callable[[], Tensor]] = {
    "itself": lambda: (lambda a: a.isclose(a))(empty(60)),
    "nearly itself": lambda: (lambda a: a.isclose(a + 1e-6))(empty(60)),
    "computed": lambda: (lambda y: y.isclose(y))(computed()),
    "another": lambda: empty(60).isclose(empty(60), rtol=0.5, atol=0.2),
    "NaN too": lambda: (lambda y: y.isclose(y, equal_nan=True))(computed()),
    "infinite": lambda: (empty(60) * 1.1).isinf(),
    "finite": lambda: (empty(60) * 1.1).isfinite(),
    "all": lambda: (lambda y: y.isclose(y).all())(computed()),
}


@pytest.mark.parametrize("name", ISCLOSE)
def test_booleans_of_closeness_are_all_judged(name: str) -> None:
    for ast in kernels_of(ISCLOSE[name]()):
        for infinities in (0.0, 0.1):
            data = data_of(ast, np.random.default_rng(0), infinities=infinities)
            store = reference(ast, data)
            assert judged(store) > 0.9
            got = run_on("CPU", ast, data)[store.slot][store.indices]
            assert error_ratio(store, got).max() <= CONFIDENT


# -- what proves nothing


def test_errors_as_large_as_the_values_prove_nothing() -> None:
    y = computed()
    (ast,) = kernels_of((y.cast(dtypes.float16) != y).where(0, y))  # nothing is rounded between, so who knows
    store = reference(ast, data_of(ast, np.random.default_rng(0)))
    assert np.isfinite(store.error).all() and error_ratio(store, np.zeros(40)).max() <= CONFIDENT
    assert judged(store) < JUDGED, "an empty output would pass"


def test_a_sum_that_always_cancels_proves_nothing() -> None:
    (ast,) = kernels_of((empty(16, 64) + empty(16, 1)).sum(1))
    x = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    means = -x.astype(np.float64).mean(1)
    nothing, something = (reference(ast, {1: x.reshape(-1), 2: (means + add).astype(np.float32)}) for add in (0, 0.5))
    assert judged(nothing) < JUDGED and judged(something) == 1.0


def test_a_value_near_0_among_larger_ones_is_known() -> None:
    error = np.full(20, 1e-6)
    values = np.where(np.arange(20) % 4 == 0, 1e-8, 1.0)
    assert judged(StoreValues(0, np.arange(20), values, error)) == 1.0
    assert judged(StoreValues(0, np.arange(20), values * 1e-8, error)) == 0.0
    assert judged(StoreValues(0, np.arange(20), values * 1e300, error * 1e300)) == 1.0
    assert judged(StoreValues(0, np.arange(20), np.zeros(20), np.zeros(20))) == 1.0, "exactly 0: `nothing` is for that"


def test_of_several_stores_the_least_known_counts() -> None:
    one = StoreValues(0, np.arange(8), np.ones(8), np.full(8, 1e-6))
    other = StoreValues(1, np.arange(8), np.ones(8), np.full(8, 2.0))
    assert Reference((one, one)).judged() == 1.0
    assert Reference((one, other)).judged() == 0.0


# -- infinities


def causal(scores: Tensor) -> Tensor:
    return Tensor.ones(16, 16, dtype=dtypes.bool, device="CPU").tril().where(scores, -INF)


INFINITE: dict[str, Callable[[str], Tensor]] = {
    "masked softmax": lambda d: causal(empty(3, 16, 16, dtype=d)).softmax(-1),
    "masked log softmax": lambda d: causal(empty(3, 16, 16, dtype=d)).log_softmax(-1),
    "masked logsumexp": lambda d: causal(empty(3, 16, 16, dtype=d)).logsumexp(-1),
    "logsumexp": lambda d: empty(6, 40, dtype=d).logsumexp(1),
    "logcumsumexp": lambda d: empty(4, 30, dtype=d).logcumsumexp(1),
    "a long logcumsumexp": lambda d: empty(1, 300, dtype=d).logcumsumexp(1),
    "masked exp": lambda d: causal(empty(16, 16, dtype=d) * 1.1).exp(),
    "masked maximum": lambda d: causal(empty(16, 16, dtype=d) * 1.1).max(-1),
    "a mask that is added": lambda d: (
        empty(16, 16, dtype=d) * 0.125 + Tensor.full((16, 16), -INF, device="CPU").triu(1).cast(d)
    ).softmax(-1),
    "attention": lambda d: empty(1, 2, 16, 8, dtype=d).scaled_dot_product_attention(
        empty(1, 2, 16, 8, dtype=d), empty(1, 2, 16, 8, dtype=d), is_causal=True
    ),
    "times infinity": lambda d: empty(40, dtype=d).exp() * INF,
    "infinity by": lambda d: INF / empty(40, dtype=d).exp(),
    "infinity without": lambda d: INF - empty(40, dtype=d).exp(),
    "sigmoid": lambda d: (empty(40, dtype=d) > 0).where(empty(40, dtype=d) * 1.1, -INF).sigmoid(),
    "tanh": lambda d: (empty(40, dtype=d) > 0).where(empty(40, dtype=d) * 1.1, INF).tanh(),
    "softplus": lambda d: (empty(40, dtype=d) > 0).where(empty(40, dtype=d) * 1.1, -INF).softplus(),
    "padded maximum": lambda d: (empty(5, 6, dtype=d) * 1.1).pad(((1, 2), (0, 3)), value=-INF).max(1),
    "matmul": lambda d: empty(8, 20, dtype=d) @ empty(20, 8, dtype=d),
    "mean": lambda d: empty(8, 40, dtype=d).mean(1),
    "relu": lambda d: (empty(40, dtype=d) * 3).relu(),
}


IN_HALVES = ("masked softmax", "logsumexp", "softplus", "matmul", "mean")


@pytest.mark.parametrize(("name", "dtype"), every(5, in_both_formats(INFINITE, halves=IN_HALVES)))
def test_infinities_are_certain_and_right(name: str, dtype: str) -> None:
    for ast in kernels_of(INFINITE[name](dtype)):
        for infinities in (0.0, 0.02):
            data = data_of(ast, np.random.default_rng(3), infinities=infinities)
            store = reference(ast, data)
            got = run_on("CPU", ast, data)[store.slot][store.indices]
            assert error_ratio(store, got).max() <= CONFIDENT
            if not infinities:
                assert judged(store) > 0.9


def test_an_infinity_times_what_may_be_0_is_in_doubt() -> None:
    x = empty(4)
    (ast,) = kernels_of((x * 1.1 - 1.1) * INF)
    (slot,) = (use.slot for use in buffers(ast) if use.is_input)
    store = reference(ast, {slot: np.array([2, 1, -3, 1], np.float32)})
    order = np.argsort(store.indices)
    assert np.isinf(store.error[order]).tolist() == [False, True, False, True]
    assert store.values[order][[0, 2]].tolist() == [INF, -INF] and (store.error[order][[0, 2]] < INF).all()


def test_infinities_that_cancel_are_no_number_and_so_must_be_the_output() -> None:
    (ast,) = kernels_of(empty(3) + empty(3))
    data = {1: np.array([INF, INF, 1], np.float32), 2: np.array([-INF, INF, -INF], np.float32)}
    store = reference(ast, data)
    order = np.argsort(store.indices)
    assert np.isnan(store.values[order][0]) and store.values[order][1:].tolist() == [INF, -INF]
    assert not store.error.any()
    assert np.isinf(error_ratio(store, np.array([0.0, INF, -INF])[store.indices])).sum() == 1


def test_overflows_that_cancel_prove_nothing() -> None:
    (ast,) = kernels_of((empty(2) * 1.5).exp() - (empty(2) * 1.25).exp())
    data = {use.slot: np.array([100, 1], np.float32) for use in buffers(ast) if use.is_input}
    store = reference(ast, data)
    assert np.isinf(store.error[store.indices == 0]).all() and (store.error[store.indices == 1] < 1e-4).all()


def test_a_product_that_overflows_without_its_constants_is_in_doubt() -> None:
    """tinygrad computes x / (2 y) / 4096 as x / y / 8192: the gradient of a batch norm's variance has that form."""
    (ast,) = kernels_of(empty(4) * (empty(4) * 2.0).reciprocal() * 2.0**-12)
    x, y = np.array([2e31, 1e31, -2e31, 2e31], np.float32), np.array([5e-8, 5e-8, 5e-8, 5e-7], np.float32)
    store = reference(ast, data := {0: np.zeros(4, np.float32), 1: x, 2: y})
    assert np.isinf(store.error[np.argsort(store.indices)]).tolist() == [True, False, True, False]
    got = run_on("CPU", ast, data)[store.slot]
    assert np.isinf(got).tolist() == [True, False, True, False] and error_ratio(store, got[store.indices]).max() < 1
    assert np.isfinite(store.values).all()


# -- underflow


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_product_that_underflows_is_off_by_a_part_of_the_distance_of_subnormals(dtype: str) -> None:
    small = 1e-20 if dtype == "float32" else 1e-3
    (ast,) = kernels_of(empty(200, dtype=dtype) * empty(200, dtype=dtype))
    rng = np.random.default_rng(0)
    data = {slot: (rng.standard_normal(200) * small).astype(dtype) for slot in (1, 2)}
    store = reference(ast, data)
    got = (data[1] * data[2])[store.indices]
    step = float(np.finfo(dtype).smallest_subnormal)
    assert error_ratio(store, got).max() <= 1
    assert (error_ratio(store, got + (np.sign(got) * 8 * step).astype(dtype)) > CONFIDENT).mean() > 0.9
    assert 0 < np.median(store.error) <= step


@pytest.mark.parametrize("length", [64, 300])
def test_cumulative_products_that_underflow_pass(length: int) -> None:
    (ast,) = kernels_of(empty(8, length).cumprod(1))[-1:]
    data = {slot: values * np.float32(0.3) for slot, values in data_of(ast, np.random.default_rng(0)).items()}
    store = reference(ast, data)
    got = run_on("CPU", ast, data)[store.slot][store.indices]
    assert (np.abs(store.values) < np.finfo(np.float32).tiny).any()
    assert error_ratio(store, got).max() <= CONFIDENT
    large = np.abs(store.values) > 1e-20
    assert (error_ratio(store, got * np.float32(1.01))[large] > CONFIDENT).all()


def test_a_factor_far_below_the_smallest_float_is_not_exact() -> None:
    (ast,) = kernels_of(empty(4) * empty(4))
    power = np.full(4, 2.0**-100, np.float32)  # of 2, so that every bit of the product is held: it is 0 all the same
    store = reference(ast, {1: power, 2: power})
    assert error_ratio(store, np.zeros(4, np.float32)).max() <= CONFIDENT


def test_numbers_of_8_bits_are_as_devices_without_them_compute() -> None:
    """tinygrad emulates them: subnormals are 0, and what is too large becomes the largest. Others do otherwise."""
    (widened,) = kernels_of(empty(3, dtype="fp8e4m3").cast("float32") + 0)
    store = reference(widened, {1: np.array([2.0**-8, 2.0**-6, -448], np.float32)})
    exact, flushed = store.values.copy(), np.where(np.abs(store.values) < 2.0**-6, 0, store.values)
    assert error_ratio(store, exact).max() <= CONFIDENT and error_ratio(store, flushed).max() <= CONFIDENT
    assert (error_ratio(store, np.zeros(3)) > CONFIDENT).sum() == 2
    (narrowed,) = kernels_of(empty(3).cast("fp8e4m3"))
    store = reference(narrowed, {1: np.array([1000, -INF, 1.5], np.float32)})
    assert np.isinf(store.error[store.indices < 2]).all() and not store.error[store.indices == 2].any()


def test_bfloat16_below_the_normal_numbers_may_be_0_where_it_is_loaded() -> None:
    """tinygrad computes it in float32 on what lacks it, and takes its subnormals for 0."""
    (ast,) = kernels_of(empty(3, dtype="bfloat16") * 2.0**30)
    store = reference(ast, {1: np.array([2.0**-130, -(2.0**-129), 2.0**-125], np.float32)})
    flushed = np.where(store.indices < 2, 0.0, store.values)
    assert error_ratio(store, store.values).max() <= CONFIDENT and error_ratio(store, flushed).max() <= CONFIDENT
    assert (error_ratio(store, np.zeros(3)) > CONFIDENT).sum() == 1


def test_a_bfloat16_may_be_too_large_for_float16() -> None:
    (ast,) = kernels_of(empty(2, dtype="bfloat16").cast("float16"))
    store = reference(ast, {1: np.array([-(2.0**20), 2.0], np.float32)})
    assert store.values.tolist() == np.array([-INF, 2.0])[store.indices].tolist()


FLOATS = {"float32": np.float32, "float16": np.float16, "float64": np.float64}


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_logarithm_of_a_negative_subnormal_may_be_that_of_0(dtype: str) -> None:
    tiny = float(np.finfo(FLOATS[dtype]).smallest_subnormal)
    (ast,) = kernels_of(empty(4, dtype=dtype).log2())
    data = {0: np.zeros(4, FLOATS[dtype]), 1: np.array([-tiny, -1.0, -0.0, 4.0], FLOATS[dtype])}
    store = reference(ast, data)
    assert np.isinf(store.error[store.indices == 0]).all() and np.isfinite(store.error[store.indices > 0]).all()
    got = run_on("CPU", ast, data)[store.slot][store.indices]
    assert error_ratio(store, got).max() <= CONFIDENT
    assert (error_ratio(store, np.zeros(4)) > CONFIDENT).sum() == 3


def test_a_quotient_may_be_one_division_where_the_inverse_overflows() -> None:
    (quotient,) = kernels_of(empty(2) / empty(2))
    data = {use.slot: np.zeros(2, np.float32) for use in buffers(quotient)}
    data |= {1: np.array([-0.75, -0.75], np.float32), 2: np.array([2.5e-39, 2.5], np.float32)}
    store = reference(quotient, data)
    got = run_on("CPU", quotient, data)[store.slot][store.indices]
    assert np.isfinite(got).all() and error_ratio(store, got).max() <= CONFIDENT
    assert (error_ratio(store, np.zeros(2)) > CONFIDENT).sum() == 1


def test_what_lies_between_subnormals_of_float64_is_rounded() -> None:
    (ast,) = kernels_of(empty(40, dtype="float64") * (1 / 64))
    data = {1: np.full(40, 1e-308) * np.random.default_rng(0).random(40)}
    store = reference(ast, data)
    step = float(np.finfo(np.float64).smallest_subnormal)
    assert error_ratio(store, store.values + step).max() <= CONFIDENT < error_ratio(store, store.values * 2).min()


def test_the_sine_of_a_large_float64_is_not_known() -> None:
    (ast,) = kernels_of(empty(2, dtype="float64").sin())
    store = reference(ast, {1: np.array([29.0, 1e6])})
    assert np.isinf(store.error).tolist() == (store.indices == 1).tolist()


# -- padding around a reduction

POOLED: dict[str, Callable[[str], Tensor]] = {
    "conv, relu, max pool": lambda d: (
        empty(1, 3, 12, 12, dtype=d)
        .conv2d(empty(4, 3, 7, 7, dtype=d), stride=2, padding=3)
        .relu()
        .max_pool2d(3, stride=2, padding=1)
    ),
    "1d": lambda d: (
        empty(2, 4, 20, dtype=d).conv2d(empty(6, 4, 5, dtype=d), padding=2).relu().max_pool2d((3,), stride=2, padding=1)
    ),
    "3d": lambda d: (
        empty(1, 2, 6, 6, 6, dtype=d).conv2d(empty(3, 2, 3, 3, 3, dtype=d), padding=1).max_pool2d((2, 2, 2), padding=1)
    ),
    "transposed": lambda d: (
        empty(1, 4, 5, 5, dtype=d)
        .conv_transpose2d(empty(4, 3, 3, 3, dtype=d), stride=2)
        .relu()
        .max_pool2d(3, 2, padding=1)
    ),
    "average pool": lambda d: (
        empty(1, 3, 12, 12, dtype=d).conv2d(empty(4, 3, 3, 3, dtype=d), padding=1).avg_pool2d(3, stride=2, padding=1)
    ),
    "a padded sum": lambda d: empty(5, 6, dtype=d).sum(1).pad((2, 3)).relu(),
    "a padded maximum": lambda d: empty(5, 6, dtype=d).max(1).pad((2, 3), value=-INF).exp(),
}


@pytest.mark.parametrize(
    ("name", "dtype"), every(4, in_both_formats(POOLED, halves=("conv, relu, max pool", "a padded sum")))
)
def test_a_reduction_that_padding_selects_away_is_judged(name: str, dtype: str) -> None:
    for ast in kernels_of(POOLED[name](dtype)):
        for infinities in (0.0, 0.06):
            data = data_of(ast, np.random.default_rng(7), infinities=infinities)
            store = reference(ast, data)
            got = run_on("CPU", ast, data)[store.slot][store.indices]
            assert error_ratio(store, got).max() <= CONFIDENT
            assert infinities or judged(store) > 0.9


def test_padding_times_what_is_no_number_may_be_0() -> None:
    """tinygrad folds what it multiplies by 0 to 0, where a loop over places is unrolled."""
    padded = empty(6).pad((2, 0))
    (ast,) = kernels_of(padded * empty(8))
    slots = {use.size: use.slot for use in buffers(ast) if use.is_input}
    factors = np.array([math.nan, INF, 1, INF, math.nan, 1, 1, 1], np.float32)
    store = reference(ast, {slots[6]: np.ones(6, np.float32), slots[8]: factors})
    order = np.argsort(store.indices)
    assert np.isinf(store.error[order]).tolist() == [True, True, *[False] * 6]
    assert np.isnan(store.values[order][4]), "which is certain"


# -- integers over their whole range

WRAPPING: dict[str, Callable[[], Tensor]] = {
    "stored": lambda: empty(60, dtype="int32") * empty(60, dtype="int32") + empty(60, dtype="int32"),
    "summed": lambda: empty(6, 50, dtype="int32").sum(1),
    "multiplied": lambda: empty(6, 10, dtype="int32") @ empty(10, 6, dtype="int32"),
    "widened": lambda: (empty(60, dtype="int32") + empty(60, dtype="int32")).cast("int64"),
    "halved": lambda: (empty(60, dtype="int32") * 2) // 2,
    "compared": lambda: (empty(60, dtype="int32") + 1 > empty(60, dtype="int32")).cast("int32"),
    "64 bits": lambda: (empty(60, dtype="int64") * empty(60, dtype="int64")) // 3,
    "unsigned": lambda: (empty(60, dtype="uint32") * empty(60, dtype="uint32")) >> 3,
    "of bytes": lambda: empty(60, dtype="int8") * empty(60, dtype="int8"),
    "their size": lambda: empty(60, dtype="int32").abs(),
    "their mean": lambda: empty(6, 50, dtype="int32").mean(1),
}


@pytest.mark.parametrize("name", WRAPPING)
def test_integers_that_wrap_around_are_right_or_in_doubt(name: str) -> None:
    (ast,) = kernels_of(WRAPPING[name]())
    data = data_of(ast, np.random.default_rng(0))
    store = reference(ast, data)
    got = run_on("CPU", ast, data)[store.slot][store.indices]
    assert error_ratio(store, got).max() <= CONFIDENT
    if name in ("stored", "summed", "multiplied", "unsigned", "of bytes"):
        assert not store.error.any()
