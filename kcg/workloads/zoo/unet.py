"""The denoiser of Stable Diffusion: residual blocks and transformer blocks over text (Rombach et al., 2021).

Going down, each resolution has one block (Stable Diffusion has two of them) and what it puts out is concatenated to
what comes up again. Stable Diffusion XL (Podell et al., 2023) has another depth of transformers at each resolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import Window, attention, conv2d, group_norm, layer_norm, linear, residual_block

ABOUT = "Stable Diffusion's U-Net, one denoising step"


@dataclass(frozen=True)
class Config:
    """Sizes of one step over latents of `height` x `width`; `batch` counts guidance too."""

    dtype: str = "float16"
    batch: int = 2
    height: int = 64
    width: int = 64
    channels: int = 320
    multipliers: tuple[int, ...] = (1, 2, 4)  # of the channels, at each resolution
    transformers: tuple[int, ...] = (1, 1, 1)  # blocks of attention at each resolution
    head_size: int = 40
    text: int = 768  # width of the text's embedding
    tokens: int = 77
    groups: int = 32


PRESETS = {
    "mini": Config("float32", 1, 8, 8, channels=16, multipliers=(1, 2), transformers=(1, 0), head_size=16, text=24,
                   tokens=7, groups=4),
    "mini-f16": Config("float16", 2, 8, 16, channels=32, multipliers=(1,), transformers=(1,), head_size=16, text=32,
                       tokens=10, groups=8),
    "mini-odd": Config("float32", 1, 14, 10, channels=21, multipliers=(1, 3), transformers=(1, 1), head_size=21,
                       text=35, tokens=13, groups=7),
    "sd15-f16": Config(batch=1),
    "sd15-f32": Config("float32", 2, 48, 40, multipliers=(1, 2), transformers=(1, 1)),
    "sd15-bf16-b3": Config("bfloat16", 3, 16, 28, multipliers=(2, 4), transformers=(1, 1)),
    "sd21-f16-b2": Config(height=48, width=32, multipliers=(1, 2), transformers=(1, 1), head_size=64, text=1024),
    "sdxl-bf16": Config("bfloat16", 1, 64, 48, transformers=(0, 1, 1), head_size=64, text=2048),
    "sdxl-f32": Config("float32", 2, 32, 24, multipliers=(2, 4), transformers=(1, 1), head_size=64, text=2048),
    "small-bf16-b8": Config("bfloat16", 8, 32, 32, channels=192, transformers=(0, 1, 1), head_size=64, text=640),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    return {
        "x": Input((config.batch, 4, config.height, config.width), config.dtype),
        "timestep": Input((config.batch,), "int32", below=1000),
        "text": Input((config.batch, config.tokens, config.text), config.dtype),
    }


def run(p: Parameters, config: Config, *, x: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
    """The noise (batch, 4, height, width)."""
    time = _time_embedding(p, config, timestep)
    levels = [
        (i, config.channels * m, depth)
        for i, (m, depth) in enumerate(zip(config.multipliers, config.transformers, strict=True))
    ]
    x = conv2d(p, "conv_in", x, config.channels, 3).contiguous()
    skips = [x]
    for i, channels, depth in levels:
        if i:
            x = conv2d(p, f"down.{i}.downsample", x, int(x.shape[1]), Window(3, stride=2)).contiguous()
            skips.append(x)
        x = _stage(p, config, f"down.{i}", x, channels, depth, time, text)
        skips.append(x)
    x = _stage(p, config, "mid.0", x, levels[-1][1], levels[-1][2], time, text)
    x = residual_block(p, "mid.1.residual", x, levels[-1][1], config.groups, time=time)
    for i, channels, depth in reversed(levels):
        for block in range(2):
            joined = x.cat(skips.pop(), dim=1).contiguous()
            x = _stage(p, config, f"up.{i}.{block}", joined, channels, depth, time, text)
        if i:
            larger = x.interpolate((2 * int(x.shape[2]), 2 * int(x.shape[3])), mode="nearest")
            x = conv2d(p, f"up.{i}.upsample", larger, channels, 3).contiguous()
    return conv2d(p, "conv_out", group_norm(p, "norm_out", x, config.groups).silu().contiguous(), 4, 3)


def _time_embedding(p: Parameters, config: Config, timestep: Tensor) -> Tensor:
    """Sines and cosines of the timestep through two layers; SiLU again, as every residual block begins with it."""
    half, width = config.channels // 2, 4 * config.channels
    frequencies = (Tensor.arange(half).float() * (-math.log(10000) / half)).exp()
    angles = timestep.float().reshape(-1, 1) * frequencies
    waves = angles.cos().cat(angles.sin(), dim=-1).cast(config.dtype).contiguous()
    hidden = linear(p, "time.0", waves, width).silu().contiguous()
    return linear(p, "time.1", hidden, width).silu().contiguous()


def _stage(
    p: Parameters, config: Config, name: str, x: Tensor, channels: int, depth: int, time: Tensor, text: Tensor
) -> Tensor:
    """A residual block, then transformer blocks over the places of the picture."""
    x = residual_block(p, f"{name}.residual", x, channels, config.groups, time=time)
    if not depth:
        return x
    batch, _, height, width = x.shape
    y = group_norm(p, f"{name}.norm", x, config.groups).flatten(2).transpose(1, 2).contiguous()
    y = linear(p, f"{name}.proj_in", y, channels).contiguous()
    for i in range(depth):
        block = f"{name}.blocks.{i}"
        normed = layer_norm(p, f"{block}.norm1", y)
        y = (y + _attend(p, config, f"{block}.self", normed, normed)).contiguous()
        y = (y + _attend(p, config, f"{block}.cross", layer_norm(p, f"{block}.norm2", y), text)).contiguous()
        between = linear(p, f"{block}.ff.in", layer_norm(p, f"{block}.norm3", y), 8 * channels).contiguous()
        value, gate = between.chunk(2, dim=-1)
        y = (y + linear(p, f"{block}.ff.out", (value * gate.gelu()).contiguous(), channels)).contiguous()
    y = linear(p, f"{name}.proj_out", y, channels).transpose(1, 2).reshape(batch, channels, height, width)
    return (x + y).contiguous()


def _attend(p: Parameters, config: Config, name: str, x: Tensor, context: Tensor) -> Tensor:
    """Heads of `head_size` from x over the context, projected; not materialised."""
    batch, tokens, channels = x.shape
    q, k, v = (
        linear(p, f"{name}.{key}", source, channels, bias=False)
        .contiguous()
        .reshape(batch, source.shape[1], -1, config.head_size)
        .transpose(1, 2)
        for key, source in (("q", x), ("k", context), ("v", context))
    )
    mixed = attention(q, k, v).transpose(1, 2).reshape(batch, tokens, channels)
    return linear(p, f"{name}.out", mixed, channels)
