"""Matrix products of drawn shapes: no real program. Batched, transposed, odd, with prologues and epilogues."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.synthetic import draw, extent, gpu_presets, one_of

ABOUT = "synthetic matrix products"


@dataclass(frozen=True)
class Config:
    """`count` products that take from `least` to `most` operations each, of extents up to `longest`."""

    dtype: str
    seed: int
    count: int = 32
    least: float = 1e8
    most: float = 4e10
    longest: int = 16384


class Case(NamedTuple):
    """(batch, rows, inner) times (batch, inner, columns)."""

    batch: int
    rows: int
    inner: int
    columns: int
    first_turned: bool  # stored as (batch, inner, rows)
    second_turned: bool
    shared: bool  # one second matrix for the whole batch
    prologue: str
    epilogue: str


PRESETS = {
    "mini": Config("float32", 10, count=6, least=1e3, most=1e5, longest=64),
    "mini-f16": Config("float16", 18, count=6, least=1e4, most=2e7, longest=512),
    "mini-odd": Config("float32", 3, count=24, least=1e5, most=8e7, longest=1024),
    **gpu_presets(Config),
}

MOST_ELEMENTS = 5e7


@functools.cache
def cases(config: Config) -> tuple[Case, ...]:
    """The products of a preset."""

    def make(rng: Random) -> Case:
        batch = one_of(rng, (1, 1, 1, extent(rng, 2, 96)))
        # a matrix times few vectors, as in decoding, is a class of its own
        rows = extent(rng, 1, 16) if rng.random() < 0.15 else extent(rng, 8, config.longest)
        inner, columns = extent(rng, 8, config.longest), extent(rng, 8, config.longest)
        return Case(
            batch,
            rows,
            inner,
            columns,
            one_of(rng, (False, False, True)),
            one_of(rng, (False, True)),
            batch > 1 and one_of(rng, (False, False, True)),
            one_of(rng, ("", "", "", "relu", "scale", "cast")),
            one_of(rng, ("", "", "bias", "bias_gelu", "bias_relu", "residual", "halved")),
        )

    def fits(c: Case) -> bool:
        largest = c.batch * max(c.rows * c.inner, c.inner * c.columns, c.rows * c.columns)
        return config.least <= 2 * c.batch * c.rows * c.inner * c.columns <= config.most and largest <= MOST_ELEMENTS

    return draw(config.seed, config.count, make, fits)


def inputs(config: Config) -> dict[str, Input]:
    found = {}
    other = "float16" if config.dtype == "float32" else "float32"
    for i, c in enumerate(cases(config)):
        first = (c.batch, c.inner, c.rows) if c.first_turned else (c.batch, c.rows, c.inner)
        second = (c.columns, c.inner) if c.second_turned else (c.inner, c.columns)
        found[f"first{i}"] = Input(first, other if c.prologue == "cast" else config.dtype)
        found[f"second{i}"] = Input((1 if c.shared else c.batch, *second), config.dtype)
        if c.epilogue == "residual":
            found[f"residual{i}"] = Input((c.batch, c.rows, c.columns), config.dtype)
    return found


def run(p: Parameters, config: Config, **inputs: Tensor) -> tuple[Tensor, ...]:
    """The products (batch, rows, columns)."""
    outputs = []
    for i, c in enumerate(cases(config)):
        first, second = inputs[f"first{i}"].cast(inputs[f"second{i}"].dtype), inputs[f"second{i}"]
        first = first.transpose(1, 2) if c.first_turned else first
        second = second.transpose(1, 2) if c.second_turned else second
        if c.prologue == "scale":
            first = first * p(f"scale{i}", c.inner, around=1.0)
        elif c.prologue == "relu":
            first = first.relu()
        out = first @ second
        if c.epilogue.startswith("bias"):
            out = out + p(f"bias{i}", c.columns)
        if c.epilogue.endswith(("gelu", "relu")):
            out = out.gelu() if c.epilogue == "bias_gelu" else out.relu()
        elif c.epilogue == "residual":
            out = out + inputs[f"residual{i}"]
        elif c.epilogue == "halved":
            out = out * 0.5
        outputs.append(out)
    return tuple(outputs)
