"""MLP-Mixer: patches of a picture mixed by MLPs alone, over the patches and over the channels in turn (Tolstikhin et
al., "MLP-Mixer: An all-MLP Architecture for Vision", 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import Window, conv2d, layer_norm, linear

ABOUT = "MLP-Mixer, the class logits of a batch of pictures"


@dataclass(frozen=True)
class Config:
    """Sizes of one forward pass over square pictures of `size` pixels a side."""

    dtype: str = "float32"
    batch: int = 1
    size: int = 224
    patch: int = 16
    layers: int = 1  # all blocks are of one shape
    width: int = 768
    token_width: int = 384  # between the two layers of the MLP over patches
    channel_width: int = 3072
    classes: int = 1000


PRESETS = {
    "mini": Config(size=32, patch=8, layers=2, width=64, token_width=32, channel_width=256, classes=10),
    "mini-f16": Config(
        dtype="float16", batch=2, size=64, width=96, token_width=48, channel_width=384, classes=100
    ),
    "mini-odd": Config(batch=3, size=49, patch=7, width=105, token_width=65, channel_width=315, classes=37),
    "mini-small": Config(size=112, width=256, token_width=128, channel_width=1024),
    "base-16": Config(dtype="float16", batch=16),
    "small-32-f32": Config(batch=32, patch=32, width=512, token_width=256, channel_width=2048),
    "small-16-bf16": Config(dtype="bfloat16", batch=24, width=512, token_width=256, channel_width=2048),
    "base-32-bf16": Config(dtype="bfloat16", batch=64, patch=32, classes=21843),
    "base-16-f32": Config(batch=4),
    "large-32": Config(dtype="float16", batch=20, patch=32, width=1024, token_width=512, channel_width=4096),
    "large-16-bf16": Config(dtype="bfloat16", batch=6, width=1024, token_width=512, channel_width=4096),
    "large-16-448-f32": Config(size=448, width=1024, token_width=512, channel_width=4096),
    "huge-14": Config(
        dtype="float16", batch=8, patch=14, width=1280, token_width=640, channel_width=5120, classes=21843
    ),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    return {"pictures": Input((config.batch, 3, config.size, config.size), config.dtype)}


def run(p: Parameters, config: Config, *, pictures: Tensor) -> Tensor:
    """Logits (batch, classes)."""
    stem = conv2d(p, "stem", pictures, config.width, Window(config.patch, stride=config.patch, padding=0)).contiguous()
    x = stem.flatten(2).transpose(1, 2)
    for i in range(config.layers):
        across = layer_norm(p, f"blocks.{i}.norm1", x).transpose(1, 2)
        x = (x + _mlp(p, f"blocks.{i}.mlp_tokens", across, config.token_width).transpose(1, 2)).contiguous()
        along = layer_norm(p, f"blocks.{i}.norm2", x)
        x = (x + _mlp(p, f"blocks.{i}.mlp_channels", along, config.channel_width)).contiguous()
    pooled = layer_norm(p, "norm", x).mean(1).contiguous()
    return linear(p, "head", pooled, config.classes)


def _mlp(p: Parameters, name: str, x: Tensor, width: int) -> Tensor:
    between = linear(p, f"{name}.fc1", x, width).gelu().contiguous()
    return linear(p, f"{name}.fc2", between, int(x.shape[-1]))
