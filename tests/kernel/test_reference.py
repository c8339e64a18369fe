"""The float64 reference agrees with what tinygrad computes, and tells a correct kernel from a wrong one."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest
from tinygrad import dtypes
from tinygrad.engine.realize import run_linear
from tinygrad.helpers import Context

from kcg.compat.tiny import AddrSpace, AxisType, Buffer, KernelInfo, Ops, ParamArg, UOp
from kcg.errors import VerificationError
from kcg.kernel.reference import (
    CONFIDENT,
    BufferUse,
    StoreValues,
    buffers,
    error_ratio,
    evaluate,
    float_tolerance,
    sample_points,
)
from tests.calls import calls_of
from tests.kernels import empty, example_asts, examples, kernels_of, round_to_bf16

ASTS = example_asts()
VARIABLES = {"length": 20, "position": 3}

# their integers index something, or are narrow ones that overflow where devices differ
SMALL_INTEGERS = ("embedding", "take_along", "scatter", "one_hot", "cross_entropy", "matmul_int8", "sort", "rand")


def make_input(use: BufferUse, rng: np.random.Generator, *, small: bool) -> np.ndarray:
    """Signed values of mixed scale; integers over their whole range or, if `small`, 0 to 4."""
    if use.dtype_name == "bool":
        return rng.integers(0, 2, use.size).astype(bool)
    if "float" in use.dtype_name:
        values = rng.standard_normal(use.size) * np.where(rng.random(use.size) < 0.2, 4, 1)
        return round_to_bf16(values) if use.dtype_name == "bfloat16" else values.astype(use.dtype_name)
    kind = np.dtype(use.dtype_name)
    if small:
        return rng.integers(0, 5, use.size).astype(kind)
    values = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, use.size, kind, endpoint=True)
    values[values == 0] = 3  # a division by zero is undefined
    return values


def make_inputs(name: str, ast: UOp, rng: np.random.Generator) -> dict[int, np.ndarray]:
    small = name.startswith(SMALL_INTEGERS)
    return {use.slot: make_input(use, rng, small=small) for use in buffers(ast)}


def run_on(device: str, ast: UOp, data: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """What tinygrad computes: the output buffers by slot. In plain loops, which compile in half the time: of its own
    schedules `tests/measure/test_verify.py` shows the same."""
    uses, args = buffers(ast), []
    for use in uses:
        dtype = getattr(dtypes, use.dtype_name)
        values = data[use.slot]
        raw = (values.view(np.uint32) >> 16).astype(np.uint16) if dtype is dtypes.bfloat16 else values
        args.append(UOp.new_buffer(device, use.size, dtype))
        source = Buffer("PYTHON", use.size, dtype, opaque=memoryview(bytearray(raw.tobytes())))
        args[-1].buffer.ensure_allocated().copy_from(source)
    names = {n.arg.name for n in ast.toposort() if n.op is Ops.PARAM and n.arg.addrspace is AddrSpace.ALU}
    with Context(NOOPT=1):
        run_linear(UOp(Ops.LINEAR, src=(ast.call(*args),)), {name: VARIABLES[name] for name in names})
    out = {}
    for use, arg in zip(uses, args, strict=True):
        if use.is_output:
            bits = use.dtype_name == "bfloat16"
            raw = np.frombuffer(arg.buffer.as_memoryview(), np.uint16 if bits else np.dtype(use.dtype_name)).copy()
            out[use.slot] = (raw.astype(np.uint32) << 16).view(np.float32) if bits else raw
    return out


def is_sharded(ast: UOp) -> bool:
    return any(node.op is Ops.RANGE and node.arg[-1] is AxisType.DEVICE for node in ast.toposort())


SHARDED = "sharded.2"
NOT_RUN = [SHARDED, *(name for name in ASTS if "bf16" in name)]  # X86 has no bfloat16


@pytest.mark.parametrize("name", examples(without=NOT_RUN))
def test_agrees_with_the_cpu(name: str) -> None:
    ast, rng = ASTS[name], np.random.default_rng(1)
    data = make_inputs(name, ast, rng)
    expected = evaluate(ast, data, sample_points(ast, 1_000, rng, VARIABLES), VARIABLES)
    got = run_on("CPU", ast, data)
    for store in expected:
        assert error_ratio(store, got[store.slot][store.indices]).max() <= CONFIDENT
        assert store.known_share > 0.9


@pytest.mark.parametrize("name", ["bf16_norm.0", "bf16_norm.1", "int_negative_div", "shift", "symbolic", "tril", "pad"])
def test_agrees_with_the_interpreter(name: str) -> None:
    """tinygrad's PYTHON device is the definition of its operations."""
    ast, rng = example_asts("PYTHON")[name], np.random.default_rng(2)
    data = make_inputs(name, ast, rng)
    got = run_on("PYTHON", ast, data)
    for store in evaluate(ast, data, sample_points(ast, 1_000, rng, VARIABLES), VARIABLES):
        assert error_ratio(store, got[store.slot][store.indices]).max() <= CONFIDENT


def test_buffers() -> None:
    assert buffers(ASTS["matmul_bf16"]) == (
        BufferUse(0, 24 * 32, "bfloat16", is_output=True, is_input=False),
        BufferUse(1, 24 * 40, "bfloat16", is_output=False, is_input=True),
        BufferUse(2, 40 * 32, "bfloat16", is_output=False, is_input=True),
    )
    (in_place,) = [use for use in buffers(ASTS["assign"]) if use.is_output]
    assert in_place.is_input


def test_all_points_of_a_small_output() -> None:
    (points,) = sample_points(ASTS["matmul_f32"], 24 * 32, np.random.default_rng(0))
    assert {tuple(p) for p in points} == {(i, j) for i in range(24) for j in range(32)}
    (scalar,) = sample_points(ASTS["scalar"], 5, np.random.default_rng(0))
    assert scalar.shape == (1, 0)


def test_samples_hold_both_ends_of_every_range() -> None:
    (points,) = sample_points(ASTS["conv2d"], 20, np.random.default_rng(0))
    extents = (2, 6, 9, 9)
    assert points.shape == (20, 4)
    assert (points >= 0).all() and (points < extents).all()
    assert {(0, 0, 0, 0), tuple(e - 1 for e in extents)} <= {tuple(p) for p in points.tolist()}
    assert [set(points[:, axis]) >= {0, e - 1} for axis, e in enumerate(extents)] == [True] * 4


def test_symbolic_ranges_follow_their_variable() -> None:
    ast = ASTS["symbolic_elementwise"]
    (points,) = sample_points(ast, 10_000, np.random.default_rng(0), {"length": 7})
    assert len(points) == 7 * 16
    with pytest.raises(VerificationError, match="variable length"):
        sample_points(ast, 10, np.random.default_rng(0))


def test_the_device_number_reaches_a_sharded_kernel() -> None:
    ast = ASTS[SHARDED]
    assert is_sharded(ast)
    points = sample_points(ast, 100, np.random.default_rng(0))
    zeros = {use.slot: np.zeros(use.size, np.float32) for use in buffers(ast)}
    for number in (0, 1):
        (store,) = evaluate(ast, zeros, points, {"_device_num": number})
        assert store.values.tolist() == [8 * number + i for i in range(8)]


def _matmul_case(dtype: str, seed: int) -> tuple[UOp, dict[int, np.ndarray], StoreValues, list[np.ndarray]]:
    (ast,) = kernels_of(empty(48, 640, dtype=dtype) @ empty(640, 32, dtype=dtype))
    rng = np.random.default_rng(seed)
    data = {use.slot: make_input(use, rng, small=False) for use in buffers(ast)}
    points = sample_points(ast, 64, rng)
    return ast, data, evaluate(ast, data, points)[0], points


def test_matmul_against_numpy() -> None:
    _, data, store, _ = _matmul_case("float32", 0)
    whole = data[1].reshape(48, 640).astype(np.float64) @ data[2].reshape(640, 32).astype(np.float64)
    np.testing.assert_allclose(store.values, whole.reshape(-1)[store.indices], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_a_dropped_term_and_a_shifted_index_fail(seed: int) -> None:
    ast, data, expected, points = _matmul_case("float32", seed)
    (reduce_range,) = [n for n in ast.toposort() if n.op is Ops.RANGE and n.arg[-1] is AxisType.REDUCE]
    shorter = ast.substitute({reduce_range: reduce_range.replace(src=(UOp.const(639),))})
    (load,) = [n for n in ast.toposort() if n.op is Ops.INDEX and n.src[0].arg.slot == 2]
    shifted = ast.substitute({load: load.replace(src=(load.src[0], (load.src[1] + 1) % (640 * 32)))})
    for wrong in (shorter, shifted):
        (got,) = evaluate(wrong, data, points)
        assert (error_ratio(expected, got.values) > CONFIDENT).mean() > 0.9
    one_off = expected.indices - 1
    everything = evaluate(ast, data, sample_points(ast, 10_000, np.random.default_rng(0)))[0]
    table = dict(zip(everything.indices.tolist(), everything.values.tolist(), strict=True))
    moved = np.array([table.get(i, 0.0) for i in one_off.tolist()])
    assert (error_ratio(expected, moved) > CONFIDENT).mean() > 0.9


@pytest.mark.parametrize(("dtype", "accumulate"), [("float32", np.float32), ("float16", np.float32)])
def test_every_order_of_summation_passes(dtype: str, accumulate: Any) -> None:
    _, data, expected, points = _matmul_case(dtype, 5)
    a, b = data[1].reshape(48, 640), data[2].reshape(640, 32)
    terms = (a[points[0][:, 0]] * b[:, points[0][:, 1]].T).astype(accumulate)
    orders = [terms, terms[:, ::-1], -np.sort(-terms, axis=1)]
    for order in orders:
        got = np.cumsum(order, axis=1, dtype=accumulate)[:, -1]
        assert error_ratio(expected, got.astype(dtype)).max() <= CONFIDENT


def test_positive_sums_pass_and_zeros_fail() -> None:
    (ast,) = kernels_of((empty(4, 5_000) + 10).sum(1))
    data = {use.slot: make_input(use, np.random.default_rng(0), small=False) for use in buffers(ast)}
    (expected,) = evaluate(ast, data, sample_points(ast, 4, np.random.default_rng(0)))
    got = np.cumsum(data[1].reshape(4, 5_000) + np.float32(10), axis=1, dtype=np.float32)[:, -1]
    assert error_ratio(expected, got).max() <= CONFIDENT
    assert (error_ratio(expected, np.zeros(4, np.float32)) > 100).all()


def test_integer_valued_floats_must_match_exactly() -> None:
    (ast,) = kernels_of(empty(16, 200, dtype="float16") @ empty(200, 16, dtype="float16"))
    rng = np.random.default_rng(0)
    data = {use.slot: rng.integers(0, 2, use.size).astype(np.float16) for use in buffers(ast)}
    (expected,) = evaluate(ast, data, sample_points(ast, 256, rng))
    assert not expected.error.any()
    assert error_ratio(expected, expected.values.astype(np.float16)).max() == 0
    wrong = expected.values.copy()
    wrong[3] += 1
    assert np.isinf(error_ratio(expected, wrong)).sum() == 1


def test_infinity_and_nan_must_be_where_the_reference_has_them() -> None:
    nothing = np.zeros(3)
    expected = StoreValues(0, np.arange(3), np.array([np.inf, np.nan, 1.0]), nothing + 1e-7)
    assert error_ratio(expected, np.array([np.inf, np.nan, 1.0])).max() == 0
    for wrong in ([-np.inf, np.nan, 1.0], [np.inf, 0.0, 1.0], [np.inf, np.nan, np.nan], [3e38, np.nan, 1.0]):
        assert np.isinf(error_ratio(expected, np.array(wrong))).sum() == 1


def test_large_integers_are_compared_exactly() -> None:
    values = np.array([2**63 - 1, -(2**63)], np.int64)
    expected = StoreValues(0, np.arange(2), values, np.zeros(2))
    assert error_ratio(expected, values).max() == 0
    assert np.isinf(error_ratio(expected, values - np.array([1, -1]))).all()


def test_what_rounding_may_tip_is_uncertain_and_the_rest_is_not() -> None:
    x = empty(3)
    (ast,) = kernels_of((x * 0.1 < 0.3).where(5, -5).cast("float32"))
    exact = next(use.slot for use in buffers(ast) if use.is_input)
    (store,) = evaluate(
        ast, {exact: np.array([3.0, 2.9, 3.1], np.float32)}, sample_points(ast, 3, np.random.default_rng())
    )
    assert store.error.tolist() == [10.0, 0.0, 0.0]
    assert store.values.tolist()[1:] == [5.0, -5.0]


def test_narrow_integers_that_overflow_are_certain_only_where_they_are_stored() -> None:
    a, b = empty(2, dtype="int8"), empty(2, dtype="int8")
    (stored,) = kernels_of(a * b)
    (widened,) = kernels_of((a * b).cast("int32"))
    data = {1: np.array([100, 3], np.int8), 2: np.array([100, 4], np.int8)}
    points = sample_points(stored, 2, np.random.default_rng(0))
    (narrow,), (wide,) = evaluate(stored, data, points), evaluate(widened, data, points)
    assert narrow.values.tolist() == [np.int64(10_000).astype(np.int8), 12] and not narrow.error.any()
    assert wide.values[1] == 12 and np.isinf(wide.error).tolist() == [True, False]
    assert wide.known_share == 0.5


def test_gated_stores_store_nothing() -> None:
    out = UOp(Ops.PARAM, src=(UOp.const(4),), arg=ParamArg(0, dtypes.float32))
    source = UOp(Ops.PARAM, src=(UOp.const(8),), arg=ParamArg(1, dtypes.float32))
    rng = UOp.range(8, 0)
    where = (rng < 4).where(rng, UOp.invalid())
    ast = out.index(where).store(source.index(rng)).end(rng).sink(arg=KernelInfo())
    (store,) = evaluate(ast, {1: np.arange(8, dtype=np.float32)}, sample_points(ast, 8, np.random.default_rng(0)))
    assert store.indices.tolist() == store.values.tolist() == [0, 1, 2, 3]


def test_several_stores_are_all_evaluated() -> None:
    source = UOp(Ops.PARAM, src=(UOp.const(4),), arg=ParamArg(2, dtypes.float32))
    ends = []
    for slot in (0, 1):
        rng = UOp.range(4, slot)
        out = UOp(Ops.PARAM, src=(UOp.const(4),), arg=ParamArg(slot, dtypes.float32))
        ends.append(out.index(rng).store(source.index(rng) * (slot + 1.0)).end(rng))
    ast = UOp.sink(*ends, arg=KernelInfo())
    points = sample_points(ast, 4, np.random.default_rng(0))
    first, second = evaluate(ast, {2: np.arange(4, dtype=np.float32)}, points)
    assert (first.slot, first.values.tolist()) == (0, [0, 1, 2, 3])
    assert (second.slot, second.values.tolist()) == (1, [0, 2, 4, 6])


def test_in_place_kernels_read_the_original_values() -> None:
    ast = ASTS["assign"]
    before = np.arange(64, dtype=np.float32)
    (store,) = evaluate(ast, {0: before}, sample_points(ast, 64, np.random.default_rng(0)))
    np.testing.assert_array_equal(store.values, 2.0 * before[store.indices] + 1)


def test_bad_inputs_are_refused() -> None:
    ast, rng = ASTS["embedding"], np.random.default_rng(0)
    points, data = sample_points(ast, 8, rng), make_inputs("embedding", ast, rng)
    index_slot = next(use.slot for use in buffers(ast) if use.dtype_name == "int32")
    with pytest.raises(VerificationError, match="not among the inputs"):
        evaluate(ast, {}, points)
    with pytest.raises(VerificationError, match="5 elements of int64, not 5 of int32"):
        evaluate(ast, data | {index_slot: data[index_slot].astype(np.int64)}, points)
    with pytest.raises(VerificationError, match="elements"):
        evaluate(ast, data | {index_slot: data[index_slot][:2]}, points)
    with pytest.raises(VerificationError, match="do not fit"):
        evaluate(ast, data, [points[0][:, :1]])


def test_reading_outside_a_buffer_is_refused() -> None:
    out, source = (UOp(Ops.PARAM, src=(UOp.const(4),), arg=ParamArg(slot, dtypes.float32)) for slot in (0, 1))
    rng = UOp.range(4, 0)
    data = {1: np.zeros(4, np.float32)}
    read = out.index(rng).store(source.index(rng + 1)).end(rng).sink(arg=KernelInfo())
    write = out.index(rng + 1).store(source.index(rng)).end(rng).sink(arg=KernelInfo())
    for ast, message in ((read, "a load is outside its buffer 1"), (write, "a store is outside its buffer 0")):
        with pytest.raises(VerificationError, match=message):
            evaluate(ast, data, sample_points(ast, 4, np.random.default_rng(0)))


def test_unknown_operations_are_refused() -> None:
    out = UOp(Ops.PARAM, src=(UOp.const(4),), arg=ParamArg(0, dtypes.float32))
    rng = UOp.range(4, 0)
    ast = out.index(rng).store(UOp(Ops.CUSTOMI, dtypes.float32, (), "1")).end(rng).sink(arg=KernelInfo())
    with pytest.raises(VerificationError, match="no reference for operation CUSTOMI"):
        evaluate(ast, {}, sample_points(ast, 4, np.random.default_rng(0)))


def test_float_tolerance() -> None:
    assert float_tolerance(ASTS["matmul_f32"]) == (2.0**-24, 40)
    assert float_tolerance(ASTS["matmul_f16"]) == (2.0**-11, 40)
    assert float_tolerance(ASTS["matmul_bf16"]) == (2.0**-8, 40)
    assert float_tolerance(ASTS["conv2d"]) == (2.0**-24, 36)
    assert float_tolerance(ASTS["pad"]) == (0.0, 1)
    assert float_tolerance(ASTS["symbolic"], variables={"length": 9}) == (2.0**-24, 9)


def test_a_large_matmul_takes_few_operations_on_arrays_and_little_memory() -> None:
    """64 points with the longest reduction of Flux: well under a second, since no term is looked at by itself."""
    (ast,) = kernels_of(empty(64, 15_360, dtype="float16") @ empty(15_360, 3_072, dtype="float16"))
    data = {use.slot: np.ones(use.size, np.float16) for use in buffers(ast)}
    points = sample_points(ast, 64, np.random.default_rng(0))
    before, found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, list[Any]()
    assert calls_of(lambda: found.extend(evaluate(ast, data, points))) < 5_000
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 256 << 20
    (store,) = found
    assert (store.values == 15_360).all() and not store.error.any()
