"""Functions at their price: what stands for sigmoid, silu and gelu, judged by the rules that programs are judged by.

The errors that NVIDIA publishes for its instructions are put in with either sign."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kcg.compat.tiny import UOp, dtypes
from kcg.kernel.arithmetic import CONFIDENT
from kcg.kernel.codec import kernel_of
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.reference import error_ratio, evaluate, sample_points
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.prior import default_parameters
from kcg.measure.inputs import to_values
from kcg.types import Region
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS

SIZE = 1 << 15
F = np.float32
Array = np.ndarray


def flushed(x: Array) -> Array:
    """As `.ftz` gives it: no subnormal numbers."""
    return np.where(np.abs(x) < F(2.0**-126), F(0), x).astype(F)


def reciprocal(x: Array, sign: int) -> Array:
    """`rcp.approx.ftz.f32`: one unit of the last place off."""
    return flushed((1 / flushed(x).astype(np.float64) * (1 + sign * 2.0**-23)).astype(F))


def power(x: Array, sign: int) -> Array:
    """`ex2.approx.ftz.f32`: two units of the last place off."""
    return flushed((np.exp2(x.astype(np.float64)) * (1 + sign * 2.0**-22)).astype(F))


def tanh(x: Array, sign: int) -> Array:
    """`tanh.approx.f32`: 2^-10.987 off, and 1 at most."""
    found = np.tanh(x.astype(np.float64)) * (1 + sign * 2.0**-10.987)
    return np.clip(found, -1, 1).astype(F)


def by_reciprocal(u: Array, one: int, other: int) -> Array:
    return reciprocal(F(1) + power(u, one), other)


def by_tanh(u: Array, one: int, _other: int) -> Array:
    return (F(0.5) - F(0.5) * tanh(u * F(np.log(2) / 2), one)).astype(F)


def gelu(x: Array) -> Array:
    return (x + F(0.044715) * (x * x * x)) * F(-2.302208198144325)


def silu(x: Array) -> Array:
    return x * F(-1.4426950408889634)


def ast_of_(name: str) -> UOp:
    x = empty(SIZE, dtype="float32")
    return kernels_of(getattr(x, name)().cast(dtypes.bfloat16))[-1]


def worst(name: str, sigmoid: Callable[[Array, int, int], Array]) -> float:
    """How many errors away the worst result is, over all x in which something happens and both signs of each error."""
    ast, of = ast_of_(name), {"gelu": gelu, "silu": silu}[name]
    width = 12.0 if name == "gelu" else 110.0
    edges = np.array([0.0, -0.0, 1e-30, -1e-30, 80, -80], F)
    x = np.concatenate([np.linspace(-width, width, SIZE - len(edges)), edges]).astype(F)
    (wanted,) = evaluate(ast, {1: x, 0: np.zeros(SIZE)}, sample_points(ast, SIZE, np.random.default_rng(0)))
    found = 0.0
    with np.errstate(all="ignore"):
        for one in (-1, 1):
            for other in (-1, 1):
                product = (x * sigmoid(of(x), one, other)).astype(F)
                bits = ((product.view(np.uint32) + 0x7FFF + (product.view(np.uint32) >> 16 & 1)) >> 16).astype(
                    np.uint16
                )
                got = np.asarray(to_values(bits, "__bf16"))[wanted.indices]
                found = max(found, float(error_ratio(wanted, got).max()))
    return found


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_what_the_prior_chooses_is_right_in_the_tail_and_tanh_is_not(name: str) -> None:
    assert worst(name, by_reciprocal) < CONFIDENT < worst(name, by_tanh)


def test_the_prior_starts_with_functions_that_are_right() -> None:
    target = KNOWN_TARGETS["sm_90"]
    a, w = empty(256, 512, dtype="bfloat16"), empty(512, 256, dtype="bfloat16")
    for product, exact in (((a @ w).gelu(), True), ((a @ w).silu() + empty(256, 256, dtype="bfloat16"), False)):
        kernel = read_kernel(Region((kernel_of(kernels_of(product)[-1]),)))
        p = default_parameters(kernel, target)
        assert p.fast_math is not exact
        assert ("rcp.approx" in generate_kernel(kernel, target, p).source) == exact
