"""MobileNetV3: inverted residuals with hard-swish and hard squeeze-and-excitation (Howard et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import conv2d, conv_norm, linear

ABOUT = "MobileNetV3, the logits of a batch of pictures"


@dataclass(frozen=True)
class Block:
    """One row of the paper's tables."""

    size: int  # of the depthwise convolution
    inner: int
    outer: int
    squeeze: bool
    swish: bool  # hard-swish instead of ReLU
    stride: int = 1


LARGE = (
    Block(3, 16, 16, False, False), Block(3, 64, 24, False, False, 2), Block(3, 72, 24, False, False),
    Block(5, 72, 40, True, False, 2), Block(5, 120, 40, True, False), Block(3, 240, 80, False, True, 2),
    Block(3, 200, 80, False, True), Block(3, 184, 80, False, True), Block(3, 480, 112, True, True),
    Block(3, 672, 112, True, True), Block(5, 672, 160, True, True, 2), Block(5, 960, 160, True, True),
)  # fmt: skip
SMALL = (
    Block(3, 16, 16, True, False, 2), Block(3, 72, 24, False, False, 2), Block(3, 88, 24, False, False),
    Block(5, 96, 40, True, True, 2), Block(5, 240, 40, True, True), Block(5, 120, 48, True, True),
    Block(5, 144, 48, True, True), Block(5, 288, 96, True, True, 2), Block(5, 576, 96, True, True),
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Sizes of one forward pass; `scale` multiplies all channels. Rows of equal shape stand once."""

    dtype: str = "float32"
    batch: int = 64
    height: int = 224
    width: int = 224
    scale: float = 1.0
    stem: int = 16
    blocks: tuple[Block, ...] = LARGE
    last: int = 960  # channels of the last convolution
    hidden: int = 1280  # between the two linear layers
    classes: int = 1000


small = partial(Config, blocks=SMALL, last=576, hidden=1024)
PRESETS = {
    "mini": Config(
        batch=1, height=16, width=16, stem=8, blocks=(Block(3, 16, 8, True, False, 2), Block(5, 24, 8, False, True)),
        last=32, hidden=48, classes=10,
    ),
    "mini-f16": Config(
        "float16", batch=2, height=32, width=32, blocks=(Block(3, 16, 16, False, False), Block(5, 64, 24, True, True)),
        last=96, hidden=128, classes=20,
    ),
    "mini-odd": Config(
        batch=3, height=65, width=49, stem=13, last=91, hidden=105, classes=21,
        blocks=(Block(3, 13, 13, False, False), Block(3, 35, 21, False, False, 2), Block(5, 63, 27, True, True, 2)),
    ),
    "large-f16": Config("float16", batch=128),
    "large-f32": Config(),
    "large-bf16-256": Config("bfloat16", batch=96, height=256, width=256),
    "large75-f32-192": Config(batch=32, height=192, width=192, scale=0.75),
    "large125-f16": Config("float16", scale=1.25),
    "small-bf16": small("bfloat16", batch=256),
    "small-f32-b8": small(batch=8, height=256, width=256),
    "small75-f16-160": small("float16", batch=192, height=160, width=160, scale=0.75),
    "small-bf16-320": small("bfloat16", batch=48, height=320, width=240),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    return {"x": Input((config.batch, 3, config.height, config.width), config.dtype)}


def run(p: Parameters, config: Config, *, x: Tensor) -> Tensor:
    """Logits (batch, classes)."""
    x = conv_norm(p, "stem", x, _scaled(config.stem, config), 3, stride=2).hardswish().contiguous()
    for i, block in enumerate(config.blocks):
        x = _inverted_residual(p, f"blocks.{i}", x, block, config)
    x = conv_norm(p, "last", x, _scaled(config.last, config), 1).hardswish().contiguous()
    hidden = linear(p, "hidden", x.mean((2, 3)).contiguous(), config.hidden).hardswish().contiguous()
    return linear(p, "classifier", hidden, config.classes)


def _scaled(channels: int, config: Config) -> int:
    """A multiple of eight, at most a tenth below; untouched without a scale."""
    return channels if config.scale == 1.0 else _multiple_of_eight(channels * config.scale)


def _multiple_of_eight(channels: float) -> int:
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _inverted_residual(p: Parameters, name: str, x: Tensor, block: Block, config: Config) -> Tensor:
    before, inner, outer = int(x.shape[1]), _scaled(block.inner, config), _scaled(block.outer, config)
    activate = Tensor.hardswish if block.swish else Tensor.relu
    y = activate(conv_norm(p, f"{name}.expand", x, inner, 1)).contiguous() if inner != before else x
    y = conv_norm(p, f"{name}.depthwise", y, inner, block.size, stride=block.stride, groups=inner)
    y = activate(y).contiguous()
    if block.squeeze:
        squeezed = y.mean((2, 3), keepdim=True).contiguous()
        squeezed = conv2d(p, f"{name}.reduce", squeezed, _multiple_of_eight(inner / 4), 1).relu().contiguous()
        y = (y * conv2d(p, f"{name}.excite", squeezed, inner, 1).contiguous().hardsigmoid()).contiguous()
    y = conv_norm(p, f"{name}.project", y, outer, 1)
    return (x + y if block.stride == 1 and before == outer else y).contiguous()
