"""Convolutions of drawn shapes: no real program. Strided, grouped, depthwise, dilated, transposed, in 1-d and 2-d."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.synthetic import draw, extent, gpu_presets, one_of

ABOUT = "synthetic convolutions"


@dataclass(frozen=True)
class Config:
    """`count` convolutions that take from `least` to `most` operations each."""

    dtype: str
    seed: int
    count: int = 28
    least: float = 5e7
    most: float = 2e10
    widest: int = 1024  # channels
    largest: int = 256  # extent of a picture


class Case(NamedTuple):
    """A convolution of (batch, channels, height, width) with `outputs` kernels of rows × columns."""

    batch: int
    channels: int
    outputs: int
    height: int
    width: int
    rows: int
    columns: int
    stride: int
    padding: int
    dilation: int
    groups: int
    transposed: bool
    epilogue: str

    @property
    def result(self) -> tuple[int, int]:
        """Height and width of the output."""
        ends = []
        for places, size in ((self.height, self.rows), (self.width, self.columns)):
            around, reach = 2 * (self.padding if size > 1 else 0), self.dilation * (size - 1)
            ends.append(
                (places - 1) * self.stride - around + reach + 1
                if self.transposed
                else (places + around - reach - 1) // self.stride + 1
            )
        return ends[0], ends[1]


PRESETS = {
    "mini": Config("float32", 24, count=5, least=1e3, most=1e5, widest=12, largest=16),
    "mini-f16": Config("float16", 12, count=5, least=1e4, most=1e7, widest=64, largest=40),
    "mini-odd": Config("float32", 3, count=20, least=1e5, most=6e7, widest=128, largest=64),
    **gpu_presets(Config),
}

MOST_ELEMENTS = 3e7


@functools.cache
def cases(config: Config) -> tuple[Case, ...]:
    """The convolutions of a preset."""

    def make(rng: Random) -> Case:
        kind = one_of(rng, ("plain", "plain", "plain", "grouped", "depthwise", "dilated", "transposed", "line"))
        channels, outputs = extent(rng, 3, config.widest), extent(rng, 4, config.widest)
        height, width = extent(rng, 5, config.largest), extent(rng, 5, config.largest)
        if rng.random() < 0.7:
            width = height
        rows, groups = one_of(rng, (1, 2, 3, 3, 3, 4, 5, 7)), 1
        if kind == "grouped":
            groups = one_of(rng, (2, 4, 8))
            channels, outputs = channels // groups * groups, outputs // groups * groups
        elif kind == "depthwise":
            groups, outputs, rows = channels, channels, max(rows, 3)
        elif kind == "line":  # 1-d, a picture of height 1
            height, width, rows = 1, extent(rng, 16, 16 * config.largest), 1
        columns = one_of(rng, (3, 5, 8, 31)) if kind == "line" else rows
        return Case(
            batch=extent(rng, 1, 64),
            channels=channels,
            outputs=outputs,
            height=height,
            width=width,
            rows=rows,
            columns=columns,
            stride=2 if kind == "transposed" else one_of(rng, (1, 1, 1, 2, min(4, columns))),
            padding=one_of(rng, (0, columns // 2, columns // 2)),
            dilation=one_of(rng, (2, 3)) if kind == "dilated" else 1,
            groups=groups,
            transposed=kind == "transposed",
            epilogue=one_of(rng, ("", "bias", "bias_relu", "norm_silu", "residual")),
        )

    def fits(c: Case) -> bool:
        if min(c.channels, c.outputs) < 1 or min(c.result) < 1:
            return False
        places = c.batch * c.result[0] * c.result[1]
        work = 2 * places * c.outputs * c.channels // c.groups * c.rows * c.columns
        elements = max(c.batch * c.channels * c.height * c.width, places * c.outputs)
        return config.least <= work <= config.most and elements <= MOST_ELEMENTS

    return draw(config.seed, config.count, make, fits)


def inputs(config: Config) -> dict[str, Input]:
    found = {}
    for i, c in enumerate(cases(config)):
        found[f"x{i}"] = Input((c.batch, c.channels, c.height, c.width), config.dtype)
        if c.epilogue == "residual":
            found[f"residual{i}"] = Input((c.batch, c.outputs, *c.result), config.dtype)
    return found


def run(p: Parameters, config: Config, **inputs: Tensor) -> tuple[Tensor, ...]:
    """The outputs (batch, outputs, height, width)."""
    outputs = []
    for i, c in enumerate(cases(config)):
        x, around = inputs[f"x{i}"], (c.padding if c.rows > 1 else 0, c.padding if c.columns > 1 else 0)
        if c.transposed:
            weight = p(f"weight{i}", c.channels, c.outputs, c.rows, c.columns, fan_in=c.channels * c.rows * c.columns)
            out = x.conv_transpose2d(weight, stride=c.stride, padding=around, dilation=c.dilation)
        else:
            weight = p(f"weight{i}", c.outputs, c.channels // c.groups, c.rows, c.columns)
            out = x.conv2d(weight, groups=c.groups, stride=c.stride, padding=around, dilation=c.dilation)
        if c.epilogue.startswith("bias"):
            out = out + p(f"bias{i}", c.outputs).reshape(-1, 1, 1)
            out = out.relu() if c.epilogue == "bias_relu" else out
        elif c.epilogue == "norm_silu":
            scale, shift = p(f"scale{i}", c.outputs, around=1.0), p(f"shift{i}", c.outputs)
            out = (out * scale.reshape(-1, 1, 1) + shift.reshape(-1, 1, 1)).silu()
        elif c.epilogue == "residual":
            out = out + inputs[f"residual{i}"]
        outputs.append(out)
    return tuple(outputs)
