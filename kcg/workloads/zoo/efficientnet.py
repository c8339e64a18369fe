"""EfficientNet: inverted bottlenecks with depthwise convolutions and squeeze-and-excitation (Tan and Le, 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import conv2d, conv_norm, linear

ABOUT = "EfficientNet, the logits of a batch of pictures"


@dataclass(frozen=True)
class Stage:
    """One stage: its first block changes the shape, a second one keeps it."""

    expansion: int
    size: int  # of the depthwise convolution
    stride: int
    channels: int
    blocks: int = 2  # of equal shape from the second on


B0 = (
    Stage(1, 3, 1, 16, blocks=1),
    Stage(6, 3, 2, 24),
    Stage(6, 5, 2, 40),
    Stage(6, 3, 2, 80),
    Stage(6, 5, 1, 112),
    Stage(6, 5, 2, 192),
    Stage(6, 3, 1, 320, blocks=1),
)


@dataclass(frozen=True)
class Config:
    """Sizes of one forward pass; `scale` multiplies the channels of every stage."""

    dtype: str = "float32"
    batch: int = 16
    height: int = 224
    width: int = 224
    scale: float = 1.0
    stem: int = 32
    stages: tuple[Stage, ...] = B0
    head: int = 1280
    classes: int = 1000


PRESETS = {
    "mini": Config(
        batch=1, height=16, width=16, stem=8, stages=(Stage(4, 3, 2, 8, blocks=1), Stage(4, 5, 1, 8, blocks=1)),
        head=64, classes=10,
    ),
    "mini-f16": Config(
        "float16", batch=2, height=32, width=48, stem=16,
        stages=(Stage(1, 5, 1, 16, blocks=1), Stage(6, 3, 2, 24, blocks=1)), head=64, classes=20,
    ),
    "mini-odd": Config(
        batch=3, height=49, width=65, stem=7, stages=(Stage(1, 3, 1, 7), Stage(5, 3, 2, 13), Stage(3, 5, 2, 21)),
        head=105, classes=13,
    ),
    "b0-f16": Config("float16", batch=64),
    "b0-f32-b4": Config(batch=4),
    "b1-bf16": Config("bfloat16", batch=32, height=240, width=240),
    "b2-f32": Config(batch=8, height=260, width=260, scale=1.1),
    "b4-f16": Config("float16", batch=8, height=380, width=380, scale=1.4),
    "b5-bf16": Config("bfloat16", batch=4, height=456, width=456, scale=1.6),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    return {"x": Input((config.batch, 3, config.height, config.width), config.dtype)}


def run(p: Parameters, config: Config, *, x: Tensor) -> Tensor:
    """Logits (batch, classes)."""
    x = conv_norm(p, "stem", x, _scaled(config.stem, config), 3, stride=2).silu().contiguous()
    for i, stage in enumerate(config.stages):
        for block in range(stage.blocks):
            x = _block(
                p, f"stages.{i}.{block}", x, stage, _scaled(stage.channels, config), 1 if block else stage.stride
            )
    x = conv_norm(p, "head", x, _scaled(config.head, config), 1).silu().contiguous()
    return linear(p, "classifier", x.mean((2, 3)).contiguous(), config.classes)


def _scaled(channels: int, config: Config) -> int:
    """Rounded to a multiple of eight, at most a tenth below; untouched without a scale."""
    if config.scale == 1.0:
        return channels
    rounded = max(8, int(channels * config.scale + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels * config.scale else rounded


def _block(p: Parameters, name: str, x: Tensor, stage: Stage, channels: int, stride: int) -> Tensor:
    before = int(x.shape[1])
    inner = before * stage.expansion
    y = conv_norm(p, f"{name}.expand", x, inner, 1).silu().contiguous() if stage.expansion > 1 else x
    y = conv_norm(p, f"{name}.depthwise", y, inner, stage.size, stride=stride, groups=inner).silu().contiguous()
    squeezed = y.mean((2, 3), keepdim=True).contiguous()
    squeezed = conv2d(p, f"{name}.reduce", squeezed, max(1, before // 4), 1).silu().contiguous()
    y = (y * conv2d(p, f"{name}.excite", squeezed, inner, 1).contiguous().sigmoid()).contiguous()
    y = conv_norm(p, f"{name}.project", y, channels, 1)
    return (x + y if stride == 1 and before == channels else y).contiguous()
