"""Movements of drawn shapes: no real program. Permuted, flipped, padded, joined, sliced, with little arithmetic."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.synthetic import draw, extent, gpu_presets, one_of

ABOUT = "synthetic transposes, pads, slices and joins"

MOVEMENTS = (
    "permute",
    "permute",
    "permute",
    "permute",
    "flip",
    "pad",
    "slice",
    "stride",
    "join",
    "roll",
    "repeat",
    "triangle",
    "stack",
    "patches",
    "outer",
)


@dataclass(frozen=True)
class Config:
    """`count` movements of `least` to `most` elements each."""

    dtype: str
    seed: int
    count: int = 18
    least: float = 1e6
    most: float = 6e7


class Case(NamedTuple):
    """What moves how, and what is done to it on the way."""

    shape: tuple[int, ...]
    movement: str
    order: tuple[int, ...]  # of the axes, for `permute`
    axis: int
    amount: int  # by which is padded, rolled, strided, …
    epilogue: str


PRESETS = {
    "mini": Config("float32", 31, count=10, least=1e2, most=3e3),
    "mini-f16": Config("float16", 18, count=8, least=1e3, most=1e5),
    "mini-odd": Config("float32", 3, count=22, least=1e4, most=4e6),
    **gpu_presets(Config),
}


@functools.cache
def cases(config: Config) -> tuple[Case, ...]:
    """The movements of a preset."""

    def make(rng: Random) -> Case:
        dims = one_of(rng, (2, 2, 3, 3, 4))
        shape = tuple(extent(rng, 4, round(config.most ** (1.4 / dims))) for _ in range(dims))
        order = list(range(dims))
        for i in range(dims - 1):  # a permutation that moves at least one axis
            j = i + int(rng.random() * (dims - i))
            order[i], order[j] = order[j], order[i]
        if order == sorted(order):
            order = order[::-1]
        axis, amount = int(rng.random() * dims), one_of(rng, (1, 2, 3, 5))
        epilogue = one_of(rng, ("", "", "cast", "scale", "added", "relu"))
        return Case(shape, one_of(rng, MOVEMENTS), tuple(order), axis, amount, epilogue)

    def fits(c: Case) -> bool:
        elements = math.prod(c.shape) * (c.shape[-1] if c.movement == "outer" else 1)
        return config.least <= elements <= config.most and c.shape[c.axis] > 3 * c.amount

    return draw(config.seed, config.count, make, fits)


def inputs(config: Config) -> dict[str, Input]:
    found = {}
    for i, c in enumerate(cases(config)):
        found[f"x{i}"] = Input(c.shape, config.dtype)
        if c.movement in ("join", "stack"):
            found[f"other{i}"] = Input(c.shape, config.dtype)
    return found


def run(p: Parameters, config: Config, **inputs: Tensor) -> tuple[Tensor, ...]:
    """What each input becomes."""
    outputs = []
    for i, c in enumerate(cases(config)):
        x = inputs[f"x{i}"]
        out = _moved(x, c, inputs.get(f"other{i}"))
        if c.epilogue == "cast":
            out = out.cast(dtypes.float32 if config.dtype != "float32" else dtypes.float16)
        elif c.epilogue == "scale":
            out = out * p(f"scale{i}", int(out.shape[-1]), around=1.0)
        elif c.epilogue == "added":
            out = out + p(f"added{i}", int(out.shape[0]), around=1.0).reshape(-1, *([1] * (out.ndim - 1)))
        elif c.epilogue == "relu":
            out = out.relu()
        outputs.append(out.contiguous())
    return tuple(outputs)


def _moved(x: Tensor, c: Case, other: Tensor | None) -> Tensor:
    axis, amount, extent = c.axis, c.amount, c.shape[c.axis]
    on_axis = [slice(None)] * x.ndim
    match c.movement:
        case "permute":
            return x.permute(c.order)
        case "flip":
            return x.flip(axis)
        case "pad":
            return x.pad(tuple((amount, 2 * amount) if i == axis else None for i in range(x.ndim)))
        case "slice":
            on_axis[axis] = slice(amount, None)
            return x[tuple(on_axis)] - x.shrink(tuple((0, n - amount * (i == axis)) for i, n in enumerate(c.shape)))
        case "stride":
            on_axis[axis] = slice(None, None, amount + 1)
            return x[tuple(on_axis)]
        case "roll":
            return x.roll(amount, axis)
        case "repeat":
            return x.repeat(tuple(2 if i == axis else 1 for i in range(x.ndim)))
        case "triangle":
            return x.tril(amount)
        case "outer":
            return x.unsqueeze(-1) * x.unsqueeze(-2)
        case "patches":  # the largest even part of the axis in two, as windows of a picture
            on_axis[axis] = slice(0, extent // 2 * 2)
            halves = x[tuple(on_axis)].reshape(*c.shape[:axis], extent // 2, 2, *c.shape[axis + 1 :])
            return halves.transpose(0, axis + 1)
    assert other is not None
    return x.cat(other, dim=axis) if c.movement == "join" else x.stack(other, dim=axis + 1)
