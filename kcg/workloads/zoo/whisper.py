"""Whisper's encoder: two convolutions over a log-mel spectrogram, then pre-norm blocks (Radford et al., "Robust Speech
Recognition via Large-Scale Weak Supervision", 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import attention, layer_norm, linear

ABOUT = "Whisper's encoder, the features of speech"


@dataclass(frozen=True)
class Config:
    """Sizes of one forward pass over `frames` frames of 10 ms, of which the encoder makes half as many tokens."""

    dtype: str = "float32"
    batch: int = 1
    frames: int = 3000
    mels: int = 80
    layers: int = 1  # all blocks are of one shape
    width: int = 512
    heads: int = 8


PRESETS = {
    "mini": Config(frames=60, layers=2, width=64, heads=4),
    "mini-f16": Config(dtype="float16", frames=96, width=96, heads=6),
    "mini-odd": Config(batch=3, frames=98, mels=49, width=126, heads=7),
    "mini-tiny": Config(frames=200, width=192, heads=3),
    "base": Config(dtype="float16"),
    "tiny-f32": Config(batch=2, width=384, heads=6),
    "base-5s-bf16": Config(dtype="bfloat16", batch=8, frames=500),
    "small-bf16": Config(dtype="bfloat16", width=768, heads=12),
    "small-10s-f32": Config(batch=2, frames=1000, width=768, heads=12),
    "medium": Config(dtype="float16", width=1024, heads=16),
    "medium-20s-bf16": Config(dtype="bfloat16", frames=2000, width=1024, heads=16),
    "large-v3-10s-f32": Config(frames=1000, mels=128, width=1280, heads=20),
    "large-v3": Config(dtype="float16", mels=128, width=1280, heads=20),
}


def inputs(config: Config) -> dict[str, Input]:
    return {"spectrogram": Input((config.batch, config.mels, config.frames), config.dtype)}


def run(p: Parameters, config: Config, *, spectrogram: Tensor) -> Tensor:
    """Features (batch, frames / 2, width)."""
    x = _conv1d(p, "conv1", spectrogram, config.width).gelu().contiguous()
    x = _conv1d(p, "conv2", x, config.width, stride=2).gelu().contiguous()
    x = (x.transpose(1, 2) + _sinusoids(config.frames // 2, config.width).cast(x.dtype)).contiguous()
    for i in range(config.layers):
        x = _block(p, config, f"blocks.{i}", x)
    return layer_norm(p, "ln_post", x)


def _conv1d(p: Parameters, name: str, x: Tensor, outputs: int, *, stride: int = 1) -> Tensor:
    weight = p(f"{name}.weight", outputs, int(x.shape[1]), 3)
    return x.conv2d(weight, p(f"{name}.bias", outputs), stride=stride, padding=1)


def _sinusoids(tokens: int, width: int) -> Tensor:
    """Positions (tokens, width): sines in the first half of the channels, cosines in the second."""
    step = math.log(10000) / (width // 2 - 1)
    angles = Tensor.arange(tokens).unsqueeze(1) * (Tensor.arange(width // 2) * -step).exp()
    return angles.sin().cat(angles.cos(), dim=1)


def _block(p: Parameters, config: Config, name: str, x: Tensor) -> Tensor:
    batch, tokens, width = (int(n) for n in x.shape)
    normed = layer_norm(p, f"{name}.attn_ln", x)
    q, k, v = (
        # all of the three but the key have a bias
        linear(p, f"{name}.attn.{part}", normed, width, bias=part != "key")
        .contiguous()
        .reshape(batch, tokens, config.heads, -1)
        .transpose(1, 2)
        for part in ("query", "key", "value")
    )
    mixed = attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
    x = (x + linear(p, f"{name}.attn.out", mixed, width)).contiguous()
    between = linear(p, f"{name}.mlp.0", layer_norm(p, f"{name}.mlp_ln", x), 4 * width).gelu().contiguous()
    return (x + linear(p, f"{name}.mlp.2", between, width)).contiguous()
