"""Reductions of drawn shapes: no real program. Over the first, a middle, the last, two or all axes."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.synthetic import draw, extent, gpu_presets, one_of

ABOUT = "synthetic reductions"

REDUCTIONS = (
    "sum",
    "sum",
    "max",
    "max",
    "min",
    "mean",
    "mean",
    "var",
    "prod",
    "argmax",
    "argmin",
    "norm",
    "dot",
    "logsumexp",
    "count",
    "spread",
)


@dataclass(frozen=True)
class Config:
    """`count` reductions of `least` to `most` elements each."""

    dtype: str
    seed: int
    count: int = 17
    least: float = 5e5
    most: float = 1e8


class Case(NamedTuple):
    """What is reduced over which axes, with what before and after it."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    reduction: str
    prologue: str
    epilogue: str


PRESETS = {
    "mini": Config("float32", 46, count=9, least=1e2, most=3e3),
    "mini-f16": Config("float16", 24, count=8, least=1e3, most=1e5),
    "mini-odd": Config("float32", 3, count=24, least=1e4, most=5e6),
    **gpu_presets(Config),
}


@functools.cache
def cases(config: Config) -> tuple[Case, ...]:
    """The reductions of a preset."""

    def make(rng: Random) -> Case:
        dims = one_of(rng, (1, 2, 2, 2, 3, 3, 3, 4))
        shape = tuple(extent(rng, 2, round(config.most ** (1.4 / dims))) for _ in range(dims))
        axes = one_of(
            rng, ((0,), (dims - 1,), (dims - 1,), (dims // 2,), tuple(range(dims)), (0, dims - 1), (dims - 2, dims - 1))
        )
        reduction = one_of(rng, REDUCTIONS)
        if reduction.startswith(("arg", "log")):  # tinygrad has these for one axis only
            axes = axes[-1:]
        prologue = one_of(rng, ("", "", "", "absolute", "exp", "bias", "scale"))
        axes = tuple(sorted({axis % dims for axis in axes}))
        return Case(shape, axes, reduction, prologue, one_of(rng, ("", "", "sqrt", "residual", "kept")))

    def fits(c: Case) -> bool:
        elements, kept = math.prod(c.shape), math.prod(n for i, n in enumerate(c.shape) if i not in c.axes)
        reduced = elements // kept
        # an argmax, a minimum and a product over very many elements of one row is a chain that no schedule helps
        long = reduced > 200000 and c.reduction in ("argmax", "argmin", "prod")
        return config.least <= elements <= config.most and reduced >= 4 and not long

    return draw(config.seed, config.count, make, fits)


def inputs(config: Config) -> dict[str, Input]:
    found = {}
    for i, c in enumerate(cases(config)):
        found[f"x{i}"] = Input(c.shape, config.dtype)
        if c.reduction == "dot":
            found[f"other{i}"] = Input(c.shape, config.dtype)
        if c.epilogue == "residual" and not c.reduction.startswith("arg"):
            found[f"residual{i}"] = Input(tuple(n for j, n in enumerate(c.shape) if j not in c.axes), config.dtype)
    return found


def run(p: Parameters, config: Config, **inputs: Tensor) -> tuple[Tensor, ...]:
    """What is left of each input; integers from `argmax`, `argmin` and `count`."""
    outputs = []
    for i, c in enumerate(cases(config)):
        x = inputs[f"x{i}"].cast(dtypes.float32)
        if c.prologue == "absolute":
            x = x.abs()
        elif c.prologue == "exp":
            x = (x * 0.5).exp()
        elif c.prologue == "bias":
            x = x + p(f"bias{i}", c.shape[-1])
        elif c.prologue == "scale":
            x = x * p(f"scale{i}", c.shape[0], around=1.0).reshape(-1, *([1] * (len(c.shape) - 1)))
        out = _reduced(x, c, inputs.get(f"other{i}"))
        if c.epilogue == "sqrt" and dtypes.is_float(out.dtype):
            out = out.abs().sqrt()
        elif f"residual{i}" in inputs:
            out = out + inputs[f"residual{i}"]
        outputs.append(out.cast(config.dtype) if dtypes.is_float(out.dtype) else out)
    return tuple(outputs)


def _reduced(x: Tensor, c: Case, other: Tensor | None) -> Tensor:
    keep = c.epilogue == "kept"
    match c.reduction:
        case "argmax":
            return x.argmax(c.axes[0], keepdim=keep)
        case "argmin":
            return x.argmin(c.axes[0], keepdim=keep)
        case "prod":  # of numbers near 1, so that it stays finite
            return (1 + x * 0.001).prod(c.axes, keepdim=keep)
        case "norm":
            return x.square().sum(c.axes, keepdim=keep).sqrt()
        case "dot":
            assert other is not None
            return (x * other).sum(c.axes, keepdim=keep)
        case "count":
            return (x > 0.5).sum(c.axes, keepdim=keep)
        case "spread":
            return x.max(c.axes, keepdim=keep) - x.min(c.axes, keepdim=keep)
        case "var":
            centred = x - x.mean(c.axes, keepdim=True).contiguous()
            return centred.square().mean(c.axes, keepdim=keep)
        case "logsumexp":
            return x.logsumexp(c.axes[0], keepdim=keep)
        case "sum":
            return x.sum(c.axes, keepdim=keep)
        case "mean":
            return x.mean(c.axes, keepdim=keep)
        case "max":
            return x.max(c.axes, keepdim=keep)
        case _:
            return x.min(c.axes, keepdim=keep)
