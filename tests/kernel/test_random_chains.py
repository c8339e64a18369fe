"""Random chains of row-wise kernels and contractions: the chain's reference beside NumPy in float64, within its stated
error, and tinygrad's own result within it too."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from tinygrad import Tensor

from kcg.kernel.arithmetic import CONFIDENT
from kcg.kernel.chain import Chain
from kcg.kernel.kinds import compile_region
from kcg.kernel.parts import KIND as PARTS
from kcg.measure.inputs import RECIPE, SPIKY_RECIPE, make_inputs_of_kernels
from kcg.measure.verify import CheckedBench
from tests.chains import X86, bound_region
from tests.kernels import empty
from tests.slow import first

Array = np.ndarray
Step = tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Array, Array], Array]]


def centred(x: Array) -> Array:
    return np.asarray(x - x.mean(1, keepdims=True))


def powers(x: Array) -> Array:
    return np.exp(x - x.max(1, keepdims=True))


EPS = float(np.float32(0.0625))
STEPS: dict[str, Step] = {
    "softmax": (lambda x, y: x.softmax(), lambda x, y: powers(x) / powers(x).sum(1, keepdims=True)),
    "layernorm": (
        lambda x, y: x.layernorm(eps=0.0625),
        lambda x, y: centred(x) / np.sqrt(np.square(centred(x)).mean(1, keepdims=True) + EPS),
    ),
    "rmsnorm": (
        lambda x, y: x * (x.square().mean(1, keepdim=True) + 0.0625).rsqrt(),
        lambda x, y: x / np.sqrt(np.square(x).mean(1, keepdims=True) + EPS),
    ),
    "projection": (lambda x, y: x @ y * 0.25, lambda x, y: x @ y * 0.25),
    "with its transpose": (lambda x, y: x @ x.transpose() @ x * 0.0625, lambda x, y: x @ x.T @ x * 0.0625),
    "residual": (lambda x, y: x + x[:, ::-1] * 0.5, lambda x, y: x + x[:, ::-1] * 0.5),
    "largest": (lambda x, y: x - x.max(1, keepdim=True), lambda x, y: x - x.max(1, keepdims=True)),
    "gate": (lambda x, y: x * x.sigmoid(), lambda x, y: x / (1 + np.exp(-x))),
}


def chain_of(rng: random.Random) -> tuple[list[str], int, int]:
    return rng.choices(list(STEPS), k=rng.randint(2, 4)), rng.choice((3, 8, 17)), rng.choice((8, 24, 33))


def expected(names: list[str], x: Array, y: Array) -> Array:
    for name in names:
        x = STEPS[name][1](x, y)
    return x


@pytest.mark.parametrize("dtype", first(2, ["float32", "float16"]))
@pytest.mark.parametrize("seed", first(1, range(8)))
def test_a_random_chain_is_what_numpy_computes_and_tinygrad_is_within_its_error(seed: int, dtype: str) -> None:
    names, rows, width = chain_of(random.Random(seed))

    def build(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        for name in names:
            x = STEPS[name][0](x, y).contiguous()
        return (x,)

    def inputs() -> dict[str, Tensor]:
        return {"x": empty(rows, width, dtype=dtype), "y": empty(width, width, dtype=dtype)}

    try:
        region, numbers, (output,) = bound_region(build, inputs())
    except KeyError:  # no step reads the weight
        region, numbers, (output,) = bound_region(lambda x: build(x, x), {"x": inputs()["x"]})
    chain = Chain(region)
    for recipe in (RECIPE, SPIKY_RECIPE):
        made = make_inputs_of_kernels(chain.asts, seed, recipe=recipe)
        x, y = (
            np.asarray(made[numbers[n]], np.float64).reshape(-1, width) if n in numbers else np.zeros((width, width))
            for n in ("x", "y")
        )
        (one,) = chain.on(made, {}).at(chain.sample_points(1 << 20, np.random.default_rng(0), {}))
        with np.errstate(all="ignore"):
            right = expected(names, x, y).reshape(-1)[one.indices]
        known = np.isfinite(one.error)
        assert one.slot == output and known.mean() > 0.5, names
        assert (np.abs(one.values - right)[known] <= CONFIDENT * one.error[known] + 1e-12).all(), names
    bench = CheckedBench(region, X86)
    parts = compile_region(region, PARTS.space(region, X86).baseline(), X86)
    result = bench.check(bench.launcher(parts), (), seeds=(0, 1, 2))
    assert result.passed and result.max_error < 0.75, (names, result)
