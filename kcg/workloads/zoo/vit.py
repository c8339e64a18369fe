"""ViT: an encoder of pre-norm blocks over the patches of a picture (Dosovitskiy et al., "An Image is Worth 16x16 Words:
Transformers for Image Recognition at Scale", 2020). The logits are read from a class token before the patches.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import Window, attention, conv2d, layer_norm, linear

ABOUT = "Vision Transformer, the class logits of a batch of pictures"


@dataclass(frozen=True)
class Config:
    """Sizes of one forward pass over square pictures of `size` pixels a side."""

    dtype: str = "float32"
    batch: int = 1
    size: int = 224
    patch: int = 16
    layers: int = 1  # all blocks are of one shape
    width: int = 768
    heads: int = 12
    classes: int = 1000

    @property
    def patches(self) -> int:
        return (self.size // self.patch) ** 2


PRESETS = {
    "mini": Config(size=32, patch=8, layers=2, width=64, heads=4, classes=10),
    "mini-f16": Config(dtype="float16", batch=2, size=64, width=96, heads=3, classes=100),
    "mini-odd": Config(batch=3, size=49, patch=7, width=105, heads=5, classes=37),
    "mini-tiny": Config(size=128, width=192, heads=3),
    "base-16": Config(dtype="float16", batch=8),
    "tiny-16-f32": Config(batch=16, width=192, heads=3),
    "small-16-bf16": Config(dtype="bfloat16", batch=32, width=384, heads=6),
    "base-32-bf16": Config(dtype="bfloat16", batch=64, patch=32),
    "base-16-384-f32": Config(batch=2, size=384),
    "base-8": Config(dtype="float16", patch=8, classes=21843),
    "large-16-bf16": Config(dtype="bfloat16", batch=4, width=1024, heads=16, classes=21843),
    "large-14-336": Config(dtype="float16", batch=3, size=336, patch=14, width=1024, heads=16),
    "huge-14-f32": Config(batch=2, patch=14, width=1280, heads=16),
}


def inputs(config: Config) -> dict[str, Input]:
    return {"pictures": Input((config.batch, 3, config.size, config.size), config.dtype)}


def run(p: Parameters, config: Config, *, pictures: Tensor) -> Tensor:
    """Logits (batch, classes)."""
    width = config.width
    patches = conv2d(
        p, "patch_embed", pictures, width, Window(config.patch, stride=config.patch, padding=0)
    ).contiguous()
    token = p("cls_token", 1, 1, width, fan_in=1).expand(config.batch, 1, width)
    positions = p("pos_embed", 1, config.patches + 1, width, fan_in=1)
    x = (token.cat(patches.flatten(2).transpose(1, 2), dim=1) + positions).contiguous()
    for i in range(config.layers):
        x = _block(p, config, f"blocks.{i}", x)
    return linear(p, "head", layer_norm(p, "norm", x[:, 0]), config.classes)


def _block(p: Parameters, config: Config, name: str, x: Tensor) -> Tensor:
    batch, tokens, width = config.batch, config.patches + 1, config.width
    qkv = linear(p, f"{name}.attn.qkv", layer_norm(p, f"{name}.norm1", x), 3 * width).contiguous()
    q, k, v = qkv.reshape(batch, tokens, 3, config.heads, -1).permute(2, 0, 3, 1, 4).chunk(3)
    mixed = attention(q[0], k[0], v[0]).transpose(1, 2).reshape(batch, tokens, width)
    x = (x + linear(p, f"{name}.attn.proj", mixed, width)).contiguous()
    between = linear(p, f"{name}.mlp.fc1", layer_norm(p, f"{name}.norm2", x), 4 * width).gelu().contiguous()
    return (x + linear(p, f"{name}.mlp.fc2", between, width)).contiguous()
