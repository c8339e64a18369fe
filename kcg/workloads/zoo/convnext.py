"""ConvNeXt: depthwise 7x7 convolutions, layer norms over the channels and inverted bottlenecks (Liu et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import Window, conv2d, layer_norm, linear

ABOUT = "ConvNeXt, the logits of a batch of pictures"


@dataclass(frozen=True)
class Config:
    """Sizes of one forward pass with one block a stage: the others of a stage are the same kernels again."""

    dtype: str = "float32"
    batch: int = 16
    height: int = 224
    width: int = 224
    channels: tuple[int, ...] = (96, 192, 384, 768)  # of each stage
    classes: int = 1000


SMALL, BASE, LARGE = (96, 192, 384, 768), (128, 256, 512, 1024), (192, 384, 768, 1536)
PRESETS = {
    "mini": Config(batch=1, height=32, width=32, channels=(16, 24), classes=10),
    "mini-f16": Config("float16", batch=2, height=32, width=48, channels=(16, 32), classes=100),
    "mini-odd": Config(batch=3, height=56, width=112, channels=(15, 21, 49), classes=13),
    "tiny-f16": Config("float16", channels=SMALL),
    "tiny-f32-b1": Config(batch=1, channels=SMALL),
    "base-bf16": Config("bfloat16", batch=8, channels=BASE),
    "base-f32-288": Config(batch=4, height=288, width=288, channels=BASE),
    "large-f16": Config("float16", batch=8, channels=LARGE),
    "large-bf16-384": Config("bfloat16", batch=2, height=384, width=384, channels=LARGE),
    "atto-f32": Config(batch=32, channels=(40, 80, 160, 320)),
    "nano-bf16": Config("bfloat16", batch=24, height=192, width=192, channels=(80, 160, 320, 640)),
    "xlarge-f16-b1": Config("float16", batch=1, height=320, width=256, channels=(256, 512, 1024, 2048)),
}


def inputs(config: Config) -> dict[str, Input]:
    return {"x": Input((config.batch, 3, config.height, config.width), config.dtype)}


def run(p: Parameters, config: Config, *, x: Tensor) -> Tensor:
    """Logits (batch, classes)."""
    x = conv2d(p, "stem", x, config.channels[0], Window(4, stride=4, padding=0)).contiguous()
    x = _channel_norm(p, "stem_norm", x)
    for i, channels in enumerate(config.channels):
        if i:
            x = _channel_norm(p, f"stages.{i}.norm", x)
            x = conv2d(p, f"stages.{i}.downsample", x, channels, Window(2, stride=2, padding=0)).contiguous()
        x = _block(p, f"stages.{i}.0", x)
    pooled = x.mean((2, 3)).contiguous()
    return linear(p, "head", layer_norm(p, "norm", pooled, epsilon=1e-6), config.classes)


def _channel_norm(p: Parameters, name: str, x: Tensor) -> Tensor:
    """A layer norm over the channels of (n, channels, height, width)."""
    return layer_norm(p, name, x.permute(0, 2, 3, 1), epsilon=1e-6).permute(0, 3, 1, 2)


def _block(p: Parameters, name: str, x: Tensor) -> Tensor:
    channels = int(x.shape[1])
    y = conv2d(p, f"{name}.depthwise", x, channels, Window(7, groups=channels)).contiguous()
    y = layer_norm(p, f"{name}.norm", y.permute(0, 2, 3, 1), epsilon=1e-6)
    y = linear(p, f"{name}.expand", y, 4 * channels).gelu().contiguous()
    y = linear(p, f"{name}.project", y, channels) * p(f"{name}.scale", channels)
    return (x + y.permute(0, 3, 1, 2)).contiguous()
