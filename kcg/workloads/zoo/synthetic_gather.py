"""Lookups and scans of drawn shapes: no real program. Embeddings, gathers, sums into bins, cumulative sums."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.synthetic import draw, extent, gpu_presets, one_of

ABOUT = "synthetic gathers, scatters and cumulative sums"

LOOKUPS = (
    "embedding",
    "embedding",
    "bag",
    "gather",
    "gather_columns",
    "pairs",
    "one_hot",
    "bins",
    "cumulative_sum",
    "cumulative_sum",
    "cumulative_max",
    "scatter",
    "mask",
)


@dataclass(frozen=True)
class Config:
    """`count` lookups that read or write `least` to `most` elements, of up to `rows` rows."""

    dtype: str
    seed: int
    count: int = 18
    least: float = 1e5
    most: float = 3e7
    rows: int = 100000


class Case(NamedTuple):
    """`lookups` indices into a table (rows, width)."""

    kind: str
    rows: int
    width: int
    lookups: int
    epilogue: str


PRESETS = {
    "mini": Config("float32", 27, count=8, least=1e2, most=3e3, rows=50),
    "mini-f16": Config("float16", 15, count=6, least=1e3, most=1e5, rows=1000),
    "mini-odd": Config("float32", 3, count=22, least=1e4, most=2e6, rows=3000),
    **gpu_presets(Config),
}


@functools.cache
def cases(config: Config) -> tuple[Case, ...]:
    """The lookups of a preset."""

    def make(rng: Random) -> Case:
        rows, width, lookups = extent(rng, 8, config.rows), extent(rng, 4, 4096), extent(rng, 8, config.rows // 2)
        return Case(one_of(rng, LOOKUPS), rows, width, lookups, one_of(rng, ("", "", "scale", "position", "relu")))

    def fits(c: Case) -> bool:
        # before tinygrad turns a sum over all rows into a load, a lookup counts as one
        if c.rows * c.width > config.most or c.lookups * c.rows * c.width > 2000 * config.most:
            return False
        if c.kind in ("bins", "scatter"):  # each bin looks at every index
            return c.lookups * c.rows * c.width <= 25 * config.most and c.lookups * c.width >= config.least / 10
        if c.kind.startswith("cumulative"):  # each element looks at those before it, up to 256 of them at a time
            return config.least <= c.rows * c.width <= config.most / 8
        if c.kind in ("gather", "pairs"):  # few elements from all over the table
            return (c.rows if c.kind == "gather" else c.lookups) >= config.least / 20
        return config.least <= c.lookups * (c.rows if c.kind == "one_hot" else c.width) <= config.most

    return draw(config.seed, config.count, make, fits)


def inputs(config: Config) -> dict[str, Input]:
    found = {}
    for i, c in enumerate(cases(config)):
        shape = (c.lookups, c.width) if c.kind in ("bins", "scatter", "mask") else (c.rows, c.width)
        if c.kind == "gather_columns":
            shape = shape[::-1]
        if c.kind != "one_hot":
            found[f"x{i}"] = Input(shape, config.dtype)
        below = c.width if c.kind in ("gather", "mask") else c.rows
        if not c.kind.startswith("cumulative"):
            found[f"index{i}"] = Input((c.rows if c.kind == "gather" else c.lookups,), "int32", below=below)
        if c.kind == "pairs":
            found[f"column{i}"] = Input((c.lookups,), "int32", below=c.width)
    return found


def run(p: Parameters, config: Config, **inputs: Tensor) -> tuple[Tensor, ...]:
    """What is found, in the dtype of the preset."""
    outputs = []
    for i, c in enumerate(cases(config)):
        x, index = inputs.get(f"x{i}"), inputs.get(f"index{i}")
        out = _scanned(x, c) if index is None else _found(x, index, inputs.get(f"column{i}"), c)
        out = out.cast(dtypes.float32)
        if c.epilogue == "scale":
            out = out * p(f"scale{i}", int(out.shape[-1]), around=1.0)
        elif c.epilogue == "position":
            out = out + p(f"position{i}", *(int(n) for n in out.shape), fan_in=1)
        elif c.epilogue == "relu":
            out = out.relu()
        outputs.append(out.cast(getattr(dtypes, config.dtype)))
    return tuple(outputs)


def _scanned(x: Tensor | None, c: Case) -> Tensor:
    assert x is not None
    wide, axis = x.cast(dtypes.float32), c.lookups % 2
    return wide.cumsum(axis) if c.kind == "cumulative_sum" else wide.cummax(axis)[0]


def _found(x: Tensor | None, index: Tensor, column: Tensor | None, c: Case) -> Tensor:
    if x is None:
        return index.one_hot(c.rows)
    match c.kind:
        case "embedding":
            return x[index]
        case "bag":  # the sum of four rows each
            return x[index[: c.lookups // 4 * 4].reshape(-1, 4)].cast(dtypes.float32).sum(1)
        case "gather":
            return x.gather(1, index.unsqueeze(1))
        case "gather_columns":
            return x[:, index]
        case "pairs":
            return x[index, column]
        case "bins":
            return index.one_hot(c.rows).transpose().cast(x.dtype) @ x
        case "scatter":
            bins = Tensor.full((c.rows, c.width), -1.0, dtype=x.dtype)
            return bins.scatter_reduce(0, index.unsqueeze(1).expand(c.lookups, c.width), x, "amax")
        case _:
            return (Tensor.arange(c.width) <= index.unsqueeze(1)).where(x, 0)
