"""Random projections see every element of a linear kernel's output; {0,1} inputs make its sums exact."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor

from kcg.compat.tiny import UOp
from kcg.errors import VerificationError
from kcg.kernel.analysis import operations
from kcg.kernel.codec import ast_of
from kcg.kernel.projection import Projection, exact_density, expected, output_view, plan, project, ratio, signs
from kcg.kernel.reference import CONFIDENT, buffers, error_ratio, evaluate, sample_points
from kcg.measure.inputs import BLOCK, Hashed, to_bits, to_values
from kcg.workloads.registry import find
from tests.kernel.test_reference import run_on
from tests.kernels import empty, example_asts, examples, kernels_of
from tests.slow import every

ASTS = example_asts()
MARGIN = CONFIDENT / 2
"""Right kernels stay below half of what is allowed: the largest ratio seen over 50 seeds of these is 1.4, and 1.7 for a
matmul that rounds its products to bfloat16."""


def _gated(dtype: str) -> Tensor:
    """A residual and a gated matmul with two biases, as transformer blocks end."""
    product = empty(40, 96, dtype=dtype) @ empty(64, 96, dtype=dtype).T
    bias, gate, residual = empty(64, dtype=dtype), empty(64), empty(40, 64, dtype=dtype)
    return (residual + gate * (product + bias + empty(40, 64))).cast(dtype)


OWN = {
    "matmul": lambda: empty(48, 96) @ empty(96, 64),
    "bias_bf16": lambda: empty(48, 96, dtype="bfloat16").linear(
        empty(96, 64, dtype="bfloat16"), empty(64, dtype="bfloat16")
    ),
    "transposed": lambda: (empty(24, 40) @ empty(40, 56)).T.contiguous(),
    "batched": lambda: empty(3, 24, 40) @ empty(3, 56, 40).transpose(1, 2),
    "heads": lambda: (empty(3, 24, 40, dtype="half") @ empty(3, 40, 56, dtype="half")).permute(1, 0, 2).contiguous(),
    "normalised": lambda: (empty(3, 24, 40) @ empty(3, 40, 16)) / (empty(3, 24, 1).contiguous() + 0),
    "row_sums": lambda: empty(64, 200, dtype="half").sum(1),
    "column_sums": lambda: empty(200, 64).sum(0),
    "vector": lambda: empty(128) @ empty(128, 48),
    "padded": lambda: empty(1, 6, 12, 12).conv2d(empty(24, 6, 3, 3), empty(24), padding=1),
    "strided": lambda: empty(2, 3, 11, 11, dtype="half").conv2d(empty(8, 3, 3, 3, dtype="half"), stride=2),
    "grouped": lambda: empty(2, 8, 9, 9).conv2d(empty(8, 2, 3, 3), groups=4),
    "gated": lambda: _gated("float32"),
    "gated_bf16": lambda: _gated("bfloat16"),
    "curved_residual": lambda: empty(24, 40) @ empty(40, 56) + empty(24, 56).exp(),
    "scaled": lambda: (empty(24, 40) @ empty(40, 56)) * 0.125,
}


LINEAR = ("matmul_f16", "matmul_f32", "matmul_bf16", "conv2d", "float64", "std.0", *OWN)


@cache
def linear(name: str) -> UOp:
    return kernels_of(OWN[name]())[-1] if name in OWN else ASTS[name]


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    bits = {"bfloat16": "__bf16", "float16": "half", "float64": "double"}.get(dtype, "float")
    return np.asarray(to_values(to_bits(values.astype(np.float64 if bits == "double" else np.float32), bits), bits))


def make_inputs(ast: UOp, rng: np.random.Generator, *, density: float = 0.0) -> dict[int, Any]:
    """Normal values of mixed scale, or 0 and 1."""
    made = {}
    for use in buffers(ast):
        if use.is_input and density:
            made[use.slot] = (rng.random(use.size) < density).astype(np.float32)
        elif use.is_input:
            values = rng.standard_normal(use.size) * np.where(rng.random(use.size) < 0.125, 0.0625, 1)
            made[use.slot] = rounded(values, use.dtype_name)
    return made


def whole_output(ast: UOp, inputs: dict[int, Any], projection: Projection) -> tuple[np.ndarray, np.ndarray]:
    """`(values, expected errors)` of all elements, by the sampled reference."""
    (store,) = evaluate(ast, inputs, sample_points(ast, 1 << 20, np.random.default_rng(0)))
    values, errors = np.zeros((2, projection.output.size))
    values[store.indices], errors[store.indices] = store.values, store.error
    return values, errors


def planned(ast: UOp) -> Projection:
    projection = plan(ast)
    assert projection is not None
    return projection


@pytest.mark.parametrize("name", every(2, LINEAR))
def test_a_right_output_has_the_expected_projection(name: str) -> None:
    ast, rng = linear(name), np.random.default_rng(1)
    projection = planned(ast)
    (dtype,) = [use.dtype_name for use in buffers(ast) if use.slot == projection.slot]
    inputs = make_inputs(ast, rng)
    values, errors = whole_output(ast, inputs, projection)
    stored = rounded(values, dtype)
    for _ in range(10):
        v = signs(projection, rng)
        want, error = expected(projection, inputs, v)
        np.testing.assert_allclose(project(values, projection, v), want, rtol=1e-6, atol=1e-9)
        assert ratio(want, error, project(stored, projection, v)).max() <= MARGIN
        # the evaluator adds the errors of one element up, where here they are independent
        independent = np.sqrt(project(np.square(errors), projection, np.ones(projection.columns)))
        assert 1 / 3 < np.median(error / independent) < 1.5


@pytest.mark.parametrize("name", ["matmul_f32", "matmul_f16", "conv2d", "gated", "padded", "normalised", "row_sums"])
def test_a_compiled_kernel_passes(name: str) -> None:
    ast, rng = linear(name), np.random.default_rng(2)
    projection, inputs = planned(ast), make_inputs(linear(name), np.random.default_rng(3))
    output = {use.slot: np.zeros(use.size, use.dtype_name) for use in buffers(ast) if use.is_output}
    got = run_on("CPU", ast, {**inputs, **output})[projection.slot]
    for _ in range(20):
        v = signs(projection, rng)
        assert ratio(*expected(projection, inputs, v), project(got, projection, v)).max() <= MARGIN


def test_a_mean_of_integers_is_none_of_these_kernels() -> None:
    (ast,) = kernels_of(empty(48, 96, dtype="int32").mean(1))
    assert plan(ast) is None


@pytest.mark.parametrize("name", ["matmul", "heads", "padded", "gated_bf16", "batched", "column_sums"])
def test_some_rows_and_computed_inputs(name: str) -> None:
    ast, rng = linear(name), np.random.default_rng(4)
    projection, v = planned(ast), signs(planned(ast), rng)
    inputs, plain = {}, {}
    for slot, values in make_inputs(ast, rng).items():
        block = np.resize(values.astype(np.float32), BLOCK)
        inputs[slot] = Hashed(block, values.size, 17 + slot, False)
        plain[slot] = inputs[slot].whole()
    want, error = expected(projection, plain, v)
    np.testing.assert_allclose(expected(projection, inputs, v), (want, error), rtol=1e-9)
    rows = rng.integers(0, projection.rows, 7)
    np.testing.assert_allclose(expected(projection, inputs, v, rows), (want[rows], error[rows]), rtol=1e-9)
    values, _ = whole_output(ast, plain, projection)
    np.testing.assert_allclose(project(values, projection, v, rows=rows), want[rows], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", examples(without=["embedding"]))
def test_other_kernels_have_no_projection(name: str) -> None:
    ast = ASTS[name]
    linear = {
        "matmul_f16",
        "matmul_f32",
        "matmul_bf16",
        "conv2d",
        "float64",
        "layernorm.0",
        "std.0",
        "nested_reduce.0",
        "group_norm_style.0",
        "all_reduce.4",
    }
    assert any(plan(ast, i) is not None for i in range(len(ast.src))) == (name in linear)


def test_nonlinear_epilogues_and_masks_have_none() -> None:
    a, b = empty(24, 40), empty(40, 56)
    for out in ((a @ b).gelu(), (a @ b).relu(), (a @ b).square(), a.square().sum(1), (a @ b).tril(), a.max(1)):
        assert plan(kernels_of(out)[-1]) is None
    causal = Tensor.arange(24).reshape(24, 1) >= Tensor.arange(24)
    assert plan(kernels_of(causal.where(a @ empty(40, 24), -np.inf))[-1]) is None


def test_output_views() -> None:
    """How the output is laid out for a reduction on a device: rows are in the order of memory."""
    assert output_view(planned(linear("matmul"))) == (48, 64, 1)
    assert output_view(planned(linear("transposed"))) == (1, 56, 24)
    assert output_view(planned(linear("vector"))) == (1, 48, 1)
    for name, ast in ((name, linear(name)) for name in LINEAR):
        projection, rng = planned(ast), np.random.default_rng(5)
        outer, columns, inner = output_view(projection) or (0, 0, 0)
        assert (columns, outer * inner) == (projection.columns, projection.rows), name
        values, v = rng.standard_normal(projection.output.size), signs(projection, rng)
        by_view = np.einsum("ocj,c->oj", values.reshape(outer, columns, inner), v)
        np.testing.assert_allclose(project(values, projection, v), by_view.reshape(-1), atol=1e-9)


def _big(dtype: str, k: int = 256) -> tuple[UOp, Projection, dict[int, Any], np.ndarray]:
    """A matmul of 512 x k x 512 and its output, as it rounds."""
    ast = kernels_of(empty(512, k, dtype=dtype) @ empty(k, 512, dtype=dtype))[-1]
    inputs = make_inputs(ast, np.random.default_rng(6))
    exact = inputs[1].reshape(512, k).astype(np.float64) @ inputs[2].reshape(k, 512).astype(np.float64)
    return ast, planned(ast), inputs, rounded(exact, dtype)


def _found(case: tuple[UOp, Projection, dict[int, Any], np.ndarray], wrong: np.ndarray, seed: int = 7) -> bool:
    _, projection, inputs, _ = case
    v = signs(projection, np.random.default_rng(seed))
    return bool(ratio(*expected(projection, inputs, v), project(wrong, projection, v)).max() > CONFIDENT)


def test_one_wrong_element_in_bfloat16() -> None:
    """An element with another's value: found by one projection in 7 of 10 cases (measured: 71 to 73 %)."""
    case = _big("bfloat16")
    _, projection, inputs, right = case
    rng, v = np.random.default_rng(8), signs(case[1], np.random.default_rng(9))
    want, error = expected(projection, inputs, v)
    base, found = project(right, projection, v).reshape(512), 0
    assert ratio(want, error, base).max() <= MARGIN
    for _ in range(1000):
        (row, column), other = rng.integers(0, 512, 2), rng.choice(right.reshape(-1))
        got = base[row] + v[column] * (other - right[row, column])  # c is the last axis
        found += bool(ratio(want[row], error[row], got) > CONFIDENT)
    assert output_view(projection) == (512, 512, 1)
    assert found >= 680


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_what_sampled_points_miss_is_found(dtype: str) -> None:
    case = _big(dtype)
    _, _, inputs, right = case
    assert not any(_found(case, right, seed) for seed in range(10))
    tile = right.copy()
    tile[96:112, 208:224] = right[112:128, 208:224]
    swapped = right.copy()
    swapped[[70, 71]] = right[[71, 70]]
    stale = right.copy()
    stale[300] = np.nan
    for wrong in (tile, swapped, stale, np.zeros_like(right), np.where(right > 0, right, 0)):
        assert all(_found(case, wrong, seed) for seed in range(3))
    if dtype == "float32":
        last = inputs[1].reshape(512, -1)[:, -1:] * inputs[2].reshape(-1, 512)[-1:].astype(np.float64)
        assert _found(case, right - last)


def test_exact_inputs_leave_no_error() -> None:
    """One element that is off by 1 among 262144 is always found."""
    ast, projection, _, _ = _big("bfloat16")
    inputs = make_inputs(ast, np.random.default_rng(10), density=exact_density(ast))
    right = inputs[1].reshape(512, -1) @ inputs[2].reshape(-1, 512)
    for in_float32 in (False, True):
        v = signs(projection, np.random.default_rng(11))
        want, error = expected(projection, inputs, v, summed_in_float32=in_float32)
        assert not error.any()
        assert not ratio(want, error, project(right, projection, v)).any()
        right[17, 400] += 1
        away = ratio(want, error, project(right, projection, v))
        assert np.flatnonzero(away).tolist() == [17]
        right[17, 400] -= 1


def test_sums_too_large_for_bfloat16_are_not_called_exact() -> None:
    ast, projection, _, _ = _big("bfloat16", 2048)
    inputs = make_inputs(ast, np.random.default_rng(12), density=0.5)
    v = signs(projection, np.random.default_rng(13))
    want, error = expected(projection, inputs, v)
    right = inputs[1].reshape(512, -1) @ inputs[2].reshape(-1, 512)
    away = ratio(want, error, project(rounded(right, "bfloat16"), projection, v))
    assert error.min() > 0
    assert 0 < away.max() <= MARGIN


@pytest.mark.parametrize(
    "name", ["matmul_bf16", "matmul_f16", "matmul_f32", "conv2d", "padded", "row_sums", "bias_bf16", "gated_bf16"]
)
def test_exact_density_makes_sums_exact(name: str) -> None:
    ast = linear(name)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        inputs = make_inputs(ast, rng, density=exact_density(ast))
        (store,) = evaluate(ast, inputs, sample_points(ast, 2_000, rng))
        assert (store.error == 0).all()
        assert 0 < store.values.max() <= 256


def test_exact_densities() -> None:
    def density(out: Tensor) -> float:
        return exact_density(kernels_of(out)[-1])

    assert density(empty(8, 9600) @ empty(9600, 8)) == pytest.approx((24 / 9600) ** 0.5)
    assert density(empty(8, 9600).sum(1)) == pytest.approx(24 / 9600)
    assert density(empty(8, 40) @ empty(40, 8)) == 0.5
    assert density(empty(8, 40) + 1) == 0.5
    assert density(empty(1, 64, 9, 9).conv2d(empty(8, 64, 3, 3))) == pytest.approx((24 / 576) ** 0.5)


@pytest.mark.slow
def test_a_dropped_term_in_exact_inputs() -> None:
    """It shows in a share p² of the points and of p of the projected rows; with normal data in many rows too."""
    k = 3072
    ast = kernels_of(empty(64, k, dtype="bfloat16") @ empty(k, 512, dtype="bfloat16"))[-1]
    rng, projection, seen, p = np.random.default_rng(14), planned(ast), [], exact_density(ast)
    for density in (0.0, p):
        inputs = make_inputs(ast, rng, density=density)
        left, right = inputs[1].reshape(64, k).astype(np.float64), inputs[2].reshape(k, 512).astype(np.float64)
        short = rounded(left[:, :-1] @ right[:-1], "bfloat16").reshape(-1)
        v = signs(projection, rng)
        want, error = expected(projection, inputs, v)
        seen.append(float((ratio(want, error, project(short, projection, v)) > CONFIDENT).mean()))
    (store,) = evaluate(ast, inputs, sample_points(ast, 1 << 14, rng))
    share = float((error_ratio(store, short[store.indices]) > CONFIDENT).mean())
    assert p**2 / 3 < share < 3 * p**2
    assert seen[0] > 0.1  # measured: 0.25
    assert p / 3 < seen[1] < 3 * p  # the rows whose last factor is 1


def test_bad_data() -> None:
    projection = planned(linear("matmul"))
    v = np.ones(projection.columns)
    with pytest.raises(VerificationError, match="reads buffer 1, which is not among the inputs"):
        expected(projection, {2: np.ones(96 * 64, np.float32)}, v)
    with pytest.raises(VerificationError, match="outside its buffer 2 of 10 elements"):
        expected(projection, {1: np.ones(48 * 96, np.float32), 2: np.ones(10, np.float32)}, v)


@pytest.mark.slow
def test_most_of_flux_has_a_projection() -> None:
    """All its contractions but those with a nonlinear epilogue (gelu, silu), and sums of squares."""
    spec, preset = find("flux", "mini", "CPU")
    covered = total = 0
    for call in spec.capture(preset).calls:
        for ast in map(ast_of, call.region.kernels):
            work = operations(ast) * call.calls
            total += work
            covered += work if len(ast.src) == 1 and plan(ast) is not None else 0
    assert 0.72 < covered / total < 0.74
