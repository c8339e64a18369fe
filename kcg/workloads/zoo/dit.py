"""DiT: a diffusion transformer over patches of latents, whose norms are modulated by timestep and class (Peebles and
Xie, "Scalable Diffusion Models with Transformers", 2022): scale and shift after each norm, a gate after each branch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import Window, attention, conv2d, linear

ABOUT = "DiT, the noise and variance of a batch of latents"

TIME_CHANNELS = 256  # of the sinusoids that a timestep becomes
CHANNELS = 4  # of a latent


@dataclass(frozen=True)
class Config:
    """Sizes of one denoising step of square latents of `size` places a side."""

    dtype: str = "float32"
    batch: int = 2
    size: int = 32
    patch: int = 2
    layers: int = 1  # all blocks are of one shape
    width: int = 384
    heads: int = 6
    classes: int = 1000

    @property
    def tokens(self) -> int:
        return (self.size // self.patch) ** 2


PRESETS = {
    "mini": Config(size=8, layers=2, width=64, heads=4, classes=10),
    "mini-f16": Config(dtype="float16", size=16, width=96, heads=6, classes=20),
    "mini-odd": Config(batch=3, size=21, patch=3, width=84, heads=7, classes=13),
    "mini-small": Config(batch=1, size=24, width=192, heads=3),
    "small-2": Config(dtype="float16", batch=16),
    "small-4-f32": Config(batch=40, patch=4),
    "base-2-bf16": Config(dtype="bfloat16", batch=8, width=768, heads=12),
    "base-4-f32": Config(batch=24, size=64, patch=4, width=768, heads=12),
    "large-2": Config(dtype="float16", batch=4, width=1024, heads=16),
    "xl-2-f32": Config(width=1152, heads=16),
    "xl-2-512-bf16": Config(dtype="bfloat16", size=64, width=1152, heads=16),
    "xl-4": Config(dtype="float16", batch=12, patch=4, width=1152, heads=16),
}


def inputs(config: Config) -> dict[str, Input]:
    return {
        "latents": Input((config.batch, CHANNELS, config.size, config.size), config.dtype),
        "timesteps": Input((config.batch,), "int32", below=1000),
        "classes": Input((config.batch,), "int32", below=config.classes),
    }


def run(p: Parameters, config: Config, *, latents: Tensor, timesteps: Tensor, classes: Tensor) -> Tensor:
    """Noise and variance (batch, 8, size, size)."""
    width, patch, side = config.width, config.patch, config.size // config.patch
    patches = conv2d(p, "x_embedder", latents, width, Window(patch, stride=patch, padding=0)).contiguous()
    x = (patches.flatten(2).transpose(1, 2) + _positions(side, width).cast(latents.dtype)).contiguous()
    condition = _condition(p, config, timesteps, classes)
    for i in range(config.layers):
        x = _block(p, config, f"blocks.{i}", x, condition)
    shift, scale = linear(p, "final_layer.adaLN_modulation", condition, 2 * width).contiguous().chunk(2, dim=-1)
    x = linear(p, "final_layer.linear", _modulated(x, shift, scale), patch * patch * 2 * CHANNELS).contiguous()
    pixels = x.reshape(config.batch, side, side, patch, patch, 2 * CHANNELS).permute(0, 5, 1, 3, 2, 4)
    return pixels.reshape(config.batch, 2 * CHANNELS, config.size, config.size).contiguous()


def _sinusoids(values: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Sine and cosine of the values times each of channels / 2 frequencies."""
    frequencies = (Tensor.arange(channels // 2) * (-math.log(10000) / (channels // 2))).exp()
    angles = values.cast(dtypes.float32).unsqueeze(-1) * frequencies
    return angles.sin(), angles.cos()


def _positions(side: int, width: int) -> Tensor:
    """(side · side, width): the first half of the channels says the column, the second half the row."""
    along = Tensor.cat(*_sinusoids(Tensor.arange(side), width // 2), dim=-1)
    columns = along.reshape(1, side, -1).expand(side, side, -1)
    return columns.cat(columns.transpose(0, 1), dim=-1).reshape(side * side, width)


def _condition(p: Parameters, config: Config, timesteps: Tensor, classes: Tensor) -> Tensor:
    """(batch, width), after the activation that precedes every modulation."""
    sines, cosines = _sinusoids(timesteps, TIME_CHANNELS)
    time = cosines.cat(sines, dim=-1).cast(getattr(dtypes, config.dtype)).contiguous()
    time = linear(p, "t_embedder.0", time, config.width).silu().contiguous()
    table = p("y_embedder.embedding", config.classes + 1, config.width, fan_in=1)  # the last row is of no class
    return (linear(p, "t_embedder.2", time, config.width).contiguous() + table[classes]).silu().contiguous()


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    normed = x.cast(dtypes.float32).layernorm(eps=1e-6).cast(x.dtype)
    return (normed * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)).contiguous()


def _block(p: Parameters, config: Config, name: str, x: Tensor, condition: Tensor) -> Tensor:
    batch, tokens, width = config.batch, config.tokens, config.width
    modulation = linear(p, f"{name}.adaLN_modulation", condition, 6 * width).contiguous()
    shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation.chunk(6, dim=-1)
    qkv = linear(p, f"{name}.attn.qkv", _modulated(x, shift, scale), 3 * width).contiguous()
    q, k, v = (part.reshape(batch, tokens, config.heads, -1).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    mixed = attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
    x = (x + gate.unsqueeze(1) * linear(p, f"{name}.attn.proj", mixed, width)).contiguous()
    between = linear(p, f"{name}.mlp.fc1", _modulated(x, mlp_shift, mlp_scale), 4 * width).gelu().contiguous()
    return (x + mlp_gate.unsqueeze(1) * linear(p, f"{name}.mlp.fc2", between, width)).contiguous()
