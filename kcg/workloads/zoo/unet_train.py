"""A training step of a small diffusion UNet: predict the noise in a picture (Ho et al., 2020).

A picture is mixed with given noise after a cosine schedule (Nichol and Dhariwal, 2021); residual blocks with group norm
and a time embedding on a way down and a way up with skips, attention in the middle; mean-squared error, its gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import Window, conv2d, group_norm, linear
from kcg.workloads.training import attention, kept, step

ABOUT = "a training step of a diffusion UNet"
STEPS = 1000  # of the diffusion


@dataclass(frozen=True)
class Config:
    """Sizes of one step on `batch` square pictures; `widths` are those of the stages, each half as large."""

    dtype: str = "float32"
    batch: int = 16
    channels: int = 3
    size: int = 32
    widths: tuple[int, ...] = (64, 128)
    groups: int = 32
    heads: int = 4


PRESETS = {
    "mini": Config(batch=2, channels=1, size=8, widths=(8,), groups=4, heads=2),
    "mini-f16": Config(dtype="float16", batch=2, channels=1, size=12, widths=(8, 16), groups=4, heads=2),
    "mini-odd": Config(batch=3, size=14, widths=(14, 21), groups=7, heads=3),
    "cifar": Config(batch=32),
    "cifar-f16": Config(dtype="float16", batch=64, widths=(128, 256)),
    "cifar-bf16": Config(dtype="bfloat16", batch=24, widths=(96, 192, 288)),
    "mnist-f16": Config(dtype="float16", batch=96, channels=1, size=28, widths=(48, 96), groups=8),
    "faces-bf16": Config(dtype="bfloat16", batch=6, size=64, widths=(128, 192, 256), heads=8),
    "latent": Config(batch=4, channels=4, size=64, widths=(64, 160), heads=5),
}


def inputs(config: Config) -> dict[str, Input]:
    picture = Input((config.batch, config.channels, config.size, config.size), config.dtype)
    return {"pictures": picture, "noise": picture, "times": Input((config.batch,), "int32", below=STEPS)}


def gradients(config: Config) -> list[str]:
    """The parameters whose gradients follow the loss."""
    last = len(config.widths) - 1
    names = [
        *("time1.weight", "in.weight", "in.bias", "down0.norm1.weight", "down0.conv1.weight", "down0.time.weight"),
        *("down0.conv2.weight", "middle.norm.weight", "middle.qkv.weight", "middle.proj.weight"),
        *("up0.conv1.weight", "up0.short.weight", "up0.norm2.bias", "out.weight", "out.bias"),
    ]
    if last:
        names += ["shrink0.weight", "grow0.weight", f"down{last}.short.weight", f"up{last}.conv1.weight"]
    return names


def run(p: Parameters, config: Config, *, pictures: Tensor, noise: Tensor, times: Tensor) -> tuple[Tensor, ...]:
    """The loss, then the gradients."""
    angle = (times.cast(dtypes.float32) * (math.pi / 2 / STEPS)).reshape(-1, 1, 1, 1)
    mixed = (angle.cos() * pictures + angle.sin() * noise).cast(pictures.dtype).contiguous()
    predicted = kept(_predict(p, config, mixed, times)).cast(dtypes.float32)
    return step(p, (predicted - noise.cast(dtypes.float32)).square().mean(), gradients(config))


def _predict(p: Parameters, config: Config, x: Tensor, times: Tensor) -> Tensor:
    widths, last = config.widths, len(config.widths) - 1
    embedded = _sinusoids(times, widths[0]).cast(x.dtype).contiguous()
    time = kept(linear(p, "time2", kept(linear(p, "time1", embedded, 4 * widths[0]).silu()), 4 * widths[0]).silu())
    x = kept(conv2d(p, "in", x, widths[0], 3))
    skips = []
    for i, width in enumerate(widths):
        x = _residual(p, config, f"down{i}", x, time, width)
        skips.append(x)
        if i < last:
            x = kept(conv2d(p, f"shrink{i}", x, width, Window(3, stride=2)))
    x = _attend(p, config, "middle", x)
    for i in reversed(range(len(widths))):
        if i < last:
            x = kept(conv2d(p, f"grow{i}", _doubled(x), widths[i], 3))
        x = _residual(p, config, f"up{i}", kept(x.cat(skips[i], dim=1)), time, widths[i])
    return conv2d(p, "out", kept(group_norm(p, "norm", x, config.groups).silu()), config.channels, 3)


def _sinusoids(times: Tensor, width: int) -> Tensor:
    frequencies = (Tensor.arange(width // 2, dtype=dtypes.float32) * (-2 * math.log(10000) / width)).exp()
    angles = times.cast(dtypes.float32).unsqueeze(1) * frequencies
    return angles.cos().cat(angles.sin(), dim=1)


def _doubled(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return kept(x.reshape(n, c, h, 1, w, 1).expand(n, c, h, 2, w, 2).reshape(n, c, 2 * h, 2 * w))


def _residual(p: Parameters, config: Config, name: str, x: Tensor, time: Tensor, width: int) -> Tensor:
    inner = kept(group_norm(p, f"{name}.norm1", x, config.groups).silu())
    shift = kept(linear(p, f"{name}.time", time, width)).reshape(-1, width, 1, 1)
    inner = kept(kept(conv2d(p, f"{name}.conv1", inner, width, 3)) + shift)
    inner = kept(group_norm(p, f"{name}.norm2", inner, config.groups).silu())
    short = x if int(x.shape[1]) == width else kept(conv2d(p, f"{name}.short", x, width, 1))
    return kept(conv2d(p, f"{name}.conv2", inner, width, 3) + short)


def _attend(p: Parameters, config: Config, name: str, x: Tensor) -> Tensor:
    batch, width, height, across = (int(n) for n in x.shape)
    normed = kept(group_norm(p, f"{name}.norm", x, config.groups))
    qkv = kept(conv2d(p, f"{name}.qkv", normed, 3 * width, 1))
    q, k, v = qkv.reshape(batch, 3, config.heads, -1, height * across).permute(1, 0, 2, 4, 3).chunk(3)
    mixed = attention(q.squeeze(0), k.squeeze(0), v.squeeze(0)).transpose(2, 3).reshape(batch, width, height, across)
    return kept(x + conv2d(p, f"{name}.proj", mixed, width, 1))
