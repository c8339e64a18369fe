"""A training step of a vision transformer (Dosovitskiy et al., 2021).

Patches are embedded by a strided convolution, a class token and learned positions are added, pre-norm blocks follow,
and the class token is classified; cross-entropy and its gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import Window, conv2d, linear
from kcg.workloads.training import attention, cross_entropy, kept, layer_norm, step

ABOUT = "a training step of a vision transformer"


@dataclass(frozen=True)
class Config:
    """Sizes of one step on `batch` square pictures cut into square patches."""

    dtype: str = "float32"
    batch: int = 16
    size: int = 224
    patch: int = 16
    layers: int = 2  # the gradients of the first: those of others are the same kernels again
    width: int = 192
    heads: int = 3
    classes: int = 1000


PRESETS = {
    "mini": Config(layers=1, batch=2, size=16, patch=4, width=24, heads=2, classes=10),
    "mini-f16": Config(dtype="float16", batch=2, size=32, patch=8, width=48, heads=4, classes=20),
    "mini-odd": Config(batch=3, size=35, patch=7, width=49, heads=7, classes=13),
    "tiny": Config(),
    "small-f16": Config(dtype="float16", batch=24, width=384, heads=6),
    "base-bf16": Config(dtype="bfloat16", batch=8, width=768, heads=12),
    "base32-f16": Config(dtype="float16", batch=32, patch=32, width=768, heads=12, classes=21843),
    "large-bf16": Config(dtype="bfloat16", batch=4, size=256, width=1024, heads=16, classes=365),
    "cifar": Config(batch=128, size=32, patch=4, width=512, heads=8, classes=100),
    "tiny-imagenet-f16": Config(dtype="float16", batch=64, size=64, patch=8, width=256, heads=4, classes=200),
}


def inputs(config: Config) -> dict[str, Input]:
    return {
        "pictures": Input((config.batch, 3, config.size, config.size), config.dtype),
        "labels": Input((config.batch,), "int32", below=config.classes),
    }


def gradients(config: Config) -> list[str]:
    """The parameters whose gradients follow the loss."""
    layers = ["patches", *(f"h.0.{kind}" for kind in ("norm1", "qkv", "proj", "norm2", "fc1", "fc2")), "norm", "head"]
    return ["class_token", "positions", *(f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias"))]


def run(p: Parameters, config: Config, *, pictures: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """The loss, then the gradients."""
    patches = kept(conv2d(p, "patches", pictures, config.width, Window(config.patch, stride=config.patch, padding=0)))
    x = patches.flatten(2).transpose(1, 2)
    token = p("class_token", 1, 1, config.width).expand(config.batch, 1, config.width)
    x = kept(token.cat(x, dim=1) + p("positions", 1, int(x.shape[1]) + 1, config.width))
    for i in range(config.layers):
        x = _block(p, config, f"h.{i}", x)
    loss = cross_entropy(
        linear(p, "head", layer_norm(p, "norm", x)[:, 0].contiguous_backward(), config.classes), labels
    )
    return step(p, loss, gradients(config))


def _block(p: Parameters, config: Config, name: str, x: Tensor) -> Tensor:
    batch, tokens, width = (int(n) for n in x.shape)
    qkv = kept(linear(p, f"{name}.qkv", layer_norm(p, f"{name}.norm1", x), 3 * width))
    q, k, v = qkv.reshape(batch, tokens, 3, config.heads, -1).permute(2, 0, 3, 1, 4).chunk(3)
    mixed = attention(q.squeeze(0), k.squeeze(0), v.squeeze(0)).transpose(1, 2).reshape(batch, tokens, width)
    x = kept(x + linear(p, f"{name}.proj", mixed, width))
    between = kept(kept(linear(p, f"{name}.fc1", layer_norm(p, f"{name}.norm2", x), 4 * width)).gelu())
    return kept(x + linear(p, f"{name}.fc2", between, width))
