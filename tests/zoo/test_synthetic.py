"""The synthetic families of the zoo against NumPy, and how their shapes are drawn."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from kcg.workloads.synthetic import draw, extent, log_uniform, one_of
from kcg.workloads.zoo import synthetic_conv as conv
from kcg.workloads.zoo import synthetic_gather as gather
from kcg.workloads.zoo import synthetic_matmul as matmul
from kcg.workloads.zoo import synthetic_reduce as reduce
from kcg.workloads.zoo import synthetic_transpose as transpose
from tests.slow import first
from tests.zoo.reference import Array, State, check, conv2d, gelu_tanh, silu


def synthetic_matmul(state: State, config: Any, **given: Array) -> tuple[Array, ...]:
    out = []
    for i, c in enumerate(matmul.cases(config)):
        first = np.maximum(given[f"first{i}"], 0) if c.prologue == "relu" else given[f"first{i}"]
        letters = f"{'bki' if c.first_turned else 'bik'},{'bjk' if c.second_turned else 'bkj'}->bij"
        second = np.broadcast_to(given[f"second{i}"], (c.batch, *given[f"second{i}"].shape[1:]))
        scale = state.get(f"scale{i}", np.ones(c.inner))
        y = np.einsum(f"{letters[:3]},k{letters[3:]}", first, scale, second, optimize=True)
        y = y * (0.5 if c.epilogue == "halved" else 1) + state.get(f"bias{i}", 0) + given.get(f"residual{i}", 0)
        y = gelu_tanh(y) if c.epilogue == "bias_gelu" else y
        out.append(np.maximum(y, 0) if c.epilogue == "bias_relu" else y)
    return tuple(out)


def synthetic_conv(state: State, config: Any, **given: Array) -> tuple[Array, ...]:
    out = []
    for i, c in enumerate(conv.cases(config)):
        x, weight = given[f"x{i}"], state[f"weight{i}"]
        spread = np.zeros((*weight.shape[:2], c.dilation * (c.rows - 1) + 1, c.dilation * (c.columns - 1) + 1))
        spread[:, :, :: c.dilation, :: c.dilation] = weight
        around = [c.padding if size > 1 else 0 for size in (c.rows, c.columns)]
        if c.transposed:  # a convolution of what is spread out, with kernels turned about
            apart = np.zeros((*x.shape[:2], (c.height - 1) * c.stride + 1, (c.width - 1) * c.stride + 1))
            apart[:, :, :: c.stride, :: c.stride] = x
            spread = spread[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
            around = [size - 1 - by for size, by in zip(spread.shape[2:], around, strict=True)]
            x = apart
        x = np.pad(x, ((0, 0), (0, 0), (around[0], around[0]), (around[1], around[1])))
        y = conv2d(x, spread, groups=c.groups, stride=1 if c.transposed else c.stride)
        shifts = state.get(f"bias{i}", state.get(f"shift{i}", np.zeros(c.outputs)))
        y = y * state.get(f"scale{i}", np.ones(c.outputs))[:, None, None] + shifts[:, None, None]
        y = y + given.get(f"residual{i}", 0)
        y = silu(y) if c.epilogue == "norm_silu" else y
        out.append(np.maximum(y, 0) if c.epilogue == "bias_relu" else y)
        assert y.shape[2:] == c.result
    return tuple(out)


def synthetic_reduce(state: State, config: Any, **given: Array) -> tuple[Array, ...]:
    out: list[Any] = []
    for i, c in enumerate(reduce.cases(config)):
        x, keep = given[f"x{i}"], c.epilogue == "kept"
        x = np.abs(x) if c.prologue == "absolute" else np.exp(x / 2) if c.prologue == "exp" else x
        x = x + state.get(f"bias{i}", 0)
        if f"scale{i}" in state:
            x = np.einsum("i...,i->i...", x, state[f"scale{i}"])
        rows = np.moveaxis(x, c.axes, range(-len(c.axes), 0)).reshape(*np.delete(x.shape, c.axes), -1)
        if c.reduction == "dot":
            other = np.moveaxis(given[f"other{i}"], c.axes, range(-len(c.axes), 0)).reshape(rows.shape)
            y = np.einsum("...k,...k->...", rows, other)
        else:
            y = {
                "sum": lambda r: r.sum(-1),
                "mean": lambda r: r.mean(-1),
                "max": lambda r: r.max(-1),
                "min": lambda r: r.min(-1),
                "var": lambda r: r.var(-1),
                "prod": lambda r: (1 + r / 1000).prod(-1),
                "argmax": lambda r: r.argmax(-1),
                "argmin": lambda r: r.argmin(-1),
                "norm": lambda r: np.linalg.norm(r, axis=-1),
                "logsumexp": lambda r: np.log(np.exp(r).sum(-1)),
                "count": lambda r: (r > 0.5).sum(-1),
                "spread": lambda r: np.ptp(r, axis=-1),
            }[c.reduction](rows)
        if c.epilogue == "sqrt" and c.reduction not in ("argmax", "argmin", "count"):
            y = np.sqrt(np.abs(y))
        elif c.epilogue == "residual" and c.reduction not in ("argmax", "argmin", "count"):
            y = y + given[f"residual{i}"]
        out.append(np.expand_dims(y, c.axes) if keep else y)
    return tuple(out)


def synthetic_transpose(state: State, config: Any, **given: Array) -> tuple[Array, ...]:
    out = []
    for i, c in enumerate(transpose.cases(config)):
        x, other, axis, by = given[f"x{i}"], given.get(f"other{i}"), c.axis, c.amount
        length = x.shape[axis]
        if c.movement == "permute":
            y = np.transpose(x, c.order)
        elif c.movement == "flip":
            y = np.flip(x, axis)
        elif c.movement == "pad":
            y = np.pad(x, [(by, 2 * by) if j == axis else (0, 0) for j in range(x.ndim)])
        elif c.movement == "slice":
            y = np.take(x, range(by, length), axis) - np.take(x, range(length - by), axis)
        elif c.movement == "stride":
            y = np.take(x, range(0, length, by + 1), axis)
        elif c.movement == "roll":
            y = np.roll(x, by, axis)
        elif c.movement == "repeat":
            y = np.concatenate([x, x], axis)
        elif c.movement == "triangle":
            y = np.tril(x, by)
        elif c.movement == "outer":
            y = np.einsum("...i,...j->...ij", x, x)
        elif c.movement == "patches":
            y = np.stack([np.take(x, range(part, length // 2 * 2, 2), axis) for part in (0, 1)])
            y = np.moveaxis(y, 0, axis + 1).swapaxes(0, axis + 1)
        else:
            assert other is not None
            y = np.concatenate([x, other], axis) if c.movement == "join" else np.stack([x, other], axis + 1)
        y = y * state.get(f"scale{i}", 1)
        if f"added{i}" in state:
            y = y + state[f"added{i}"].reshape(-1, *([1] * (y.ndim - 1)))
        y = y.astype(np.float16) if c.epilogue == "cast" and config.dtype == "float32" else y
        out.append(np.maximum(y, 0) if c.epilogue == "relu" else y)
    return tuple(out)


def synthetic_gather(state: State, config: Any, **given: Array) -> tuple[Array, ...]:
    out: list[Any] = []
    for i, c in enumerate(gather.cases(config)):
        x, index = given.get(f"x{i}", np.zeros(0)), given.get(f"index{i}", np.zeros(0)).astype(int)
        if c.kind == "cumulative_sum":
            y = np.cumsum(x, c.lookups % 2)
        elif c.kind == "cumulative_max":
            y = np.maximum.accumulate(x, c.lookups % 2)
        elif c.kind == "embedding":
            y = x[index]
        elif c.kind == "bag":
            y = sum(x[index[j : len(index) // 4 * 4 : 4]] for j in range(4))
        elif c.kind == "gather":
            y = x[np.arange(c.rows), index][:, None]
        elif c.kind == "gather_columns":
            y = x[:, index]
        elif c.kind == "pairs":
            y = x[index, given[f"column{i}"].astype(int)]
        elif c.kind == "one_hot":
            y = np.eye(c.rows)[index]
        elif c.kind == "bins":
            y = np.zeros((c.rows, c.width))
            np.add.at(y, index, x)
        elif c.kind == "scatter":
            y = np.full((c.rows, c.width), -1.0)
            np.maximum.at(y, index, x)
        else:
            y = np.where(np.arange(c.width) <= index[:, None], x, 0)
        y = y * state.get(f"scale{i}", 1) + state.get(f"position{i}", 0)
        out.append(np.maximum(y, 0) if c.epilogue == "relu" else y)
    return tuple(out)


FAMILIES = [synthetic_matmul, synthetic_conv, synthetic_reduce, synthetic_transpose, synthetic_gather]


@pytest.mark.parametrize("family", first(1, FAMILIES))
@pytest.mark.parametrize(("preset", "tolerance"), [("mini", 1e-4), ("mini-f16", 2e-2)])
def test_synthetic(family: Any, preset: str, tolerance: float) -> None:
    check(family.__name__, family, preset=preset, tolerance=tolerance)


def test_extents_are_within_bounds_and_often_aligned() -> None:
    rng = Random(0)
    drawn = [extent(rng, 5, 2000) for _ in range(2000)]
    assert min(drawn) >= 5 and max(drawn) <= 2000
    assert 0.5 < np.mean([n % 8 == 0 for n in drawn if n >= 8]) < 0.8
    logs = np.log([log_uniform(rng, 10, 1000) for _ in range(2000)])
    assert abs(logs.mean() - np.log(100)) < 0.1


def test_a_draw_depends_on_its_seed_only() -> None:
    def pair(rng: Random) -> tuple[int, str]:
        return extent(rng, 1, 100), one_of(rng, "ab")

    drawn = draw(1, 20, pair, lambda case: case[0] > 10)
    assert drawn == draw(1, 20, pair, lambda case: case[0] > 10) != draw(2, 20, pair, lambda case: case[0] > 10)
    assert len(set(drawn)) == 20 and all(n > 10 for n, _ in drawn)
