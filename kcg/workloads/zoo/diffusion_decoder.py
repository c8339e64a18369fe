"""The sampling side of latent diffusion: what happens after the noise is predicted, up to the pixels.

Classifier-free guidance (Ho and Salimans, 2022), one step of DDIM (Song et al., 2020), of Euler's method (Karras et
al., 2022) or of a latent consistency model (Luo et al., 2023), and a decoder of residual blocks that doubles the
resolution from level to level (Rombach et al., "High-Resolution Image Synthesis with Latent Diffusion Models", 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import conv2d, group_norm

ABOUT = "one guided sampling step of latent diffusion and the decoder to pixels"

CHANNELS = 4  # of a latent
TIMESTEPS = 1000
STRIDE = 20  # timesteps that a sampling step goes back
LATENT_SCALE = 0.18215
CONSISTENCY_SIGMA = 0.5  # deviation of the data that a consistency model's boundary condition assumes


@dataclass(frozen=True)
class Config:
    """Sizes of one step of latents of `size` places a side; each level of the decoder but the first doubles them."""

    dtype: str = "float32"
    batch: int = 1
    size: int = 64
    sampler: str = "ddim"  # or "euler" or "consistency"
    guidance: float = 7.5
    widths: tuple[int, ...] = (256, 128, 64)  # channels of each level
    blocks: int = 1  # of each level
    groups: int = 32


PRESETS = {
    "mini": Config(size=8, widths=(16, 8), groups=4),
    "mini-f16": Config(dtype="float16", size=12, sampler="euler", widths=(24, 12), groups=6),
    "mini-odd": Config(batch=3, size=7, sampler="consistency", guidance=2.0, widths=(35, 21, 14), groups=7),
    "mini-small": Config(size=16, sampler="euler", widths=(48, 24), groups=8, blocks=2),
    "256": Config(dtype="float16", size=32, widths=(512, 256, 128)),
    "512-f32": Config(sampler="euler"),
    "512-bf16": Config(dtype="bfloat16", sampler="consistency", guidance=1.5, widths=(384, 192, 96), blocks=2),
    "256-b4-f32": Config(batch=4, size=32, sampler="consistency", guidance=1.5, widths=(256, 128)),
    "256-b6-bf16": Config(dtype="bfloat16", batch=6, size=32, widths=(128, 128, 64, 64)),
    "768": Config(dtype="float16", size=96, sampler="euler", guidance=5.0, widths=(256, 128)),
    "1024": Config(dtype="float16", size=128, sampler="consistency", guidance=1.0, widths=(64, 64, 32), blocks=2),
}


def inputs(config: Config) -> dict[str, Input]:
    latents = (config.batch, CHANNELS, config.size, config.size)
    needed = {
        "latents": Input(latents, config.dtype),
        "noise": Input((2, *latents), config.dtype),  # predicted without and with the condition
        "timesteps": Input((config.batch,), "int32", below=TIMESTEPS),
    }
    # noise that a consistency model adds again
    return needed | ({"fresh": Input(latents, config.dtype)} if config.sampler == "consistency" else {})


def run(
    p: Parameters, config: Config, *, latents: Tensor, noise: Tensor, timesteps: Tensor, fresh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The next latents, and the pixels (batch, 3, side, side) in [0, 1] that they stand for."""
    unconditional, conditional = noise.cast(dtypes.float32)
    guided = unconditional + config.guidance * (conditional - unconditional)
    signal, before = _signal(timesteps), _signal(timesteps - STRIDE)
    x = latents.cast(dtypes.float32)
    clean = (x - (1 - signal).sqrt() * guided) / signal.sqrt()
    if config.sampler == "ddim":
        x = before.sqrt() * clean + (1 - before).sqrt() * guided
    elif config.sampler == "euler":  # in the space of a constant signal and noise of deviation sigma
        sigma, target = ((1 - s).sqrt() / s.sqrt() for s in (signal, before))
        x = (x / signal.sqrt() + (target - sigma) * guided) * before.sqrt()
    else:
        time = timesteps.reshape(-1, 1, 1, 1) / 0.1
        kept = CONSISTENCY_SIGMA**2 / (time.square() + CONSISTENCY_SIGMA**2)
        assert fresh is not None
        clean = kept * x + time / (time.square() + CONSISTENCY_SIGMA**2).sqrt() * clean
        x = before.sqrt() * clean + (1 - before).sqrt() * fresh
    x = x.cast(latents.dtype).contiguous()
    return x, _decoded(p, config, x / LATENT_SCALE)


def _signal(timesteps: Tensor) -> Tensor:
    """The share of signal in the variance, (batch, 1, 1, 1): all of it before the first timestep.

    Latent diffusion's schedule, whose noise per timestep has a deviation that rises linearly, as an integral.
    """
    first, rise = 0.00085**0.5, 0.012**0.5 - 0.00085**0.5
    passed = timesteps.maximum(0) / TIMESTEPS
    noise = ((passed * rise + first) ** 3 - first**3) * (TIMESTEPS / (3 * rise))
    return (-noise).exp().reshape(-1, 1, 1, 1).contiguous()


def _decoded(p: Parameters, config: Config, x: Tensor) -> Tensor:
    x = conv2d(p, "post_quant_conv", x, CHANNELS, 1).contiguous()
    x = conv2d(p, "conv_in", x, config.widths[0], 3).contiguous()
    for level, width in enumerate(config.widths):
        if level > 0:
            x = conv2d(p, f"up.{level}.upsample", _doubled(x), int(x.shape[1]), 3).contiguous()
        for block in range(config.blocks):
            x = _block(p, f"up.{level}.block.{block}", x, width, config.groups)
    pixels = conv2d(p, "conv_out", _activated(p, "norm_out", x, config.groups), 3, 3)
    return (pixels / 2 + 0.5).clip(0, 1)


def _doubled(x: Tensor) -> Tensor:
    """Each place becomes four equal ones."""
    n, channels, height, width = (int(size) for size in x.shape)
    wide = x.reshape(n, channels, height, 1, width, 1).expand(n, channels, height, 2, width, 2)
    return wide.reshape(n, channels, 2 * height, 2 * width)


def _activated(p: Parameters, name: str, x: Tensor, groups: int) -> Tensor:
    return group_norm(p, name, x, groups, epsilon=1e-6).silu().contiguous()


def _block(p: Parameters, name: str, x: Tensor, width: int, groups: int) -> Tensor:
    h = conv2d(p, f"{name}.conv1", _activated(p, f"{name}.norm1", x, groups), width, 3).contiguous()
    h = conv2d(p, f"{name}.conv2", _activated(p, f"{name}.norm2", h, groups), width, 3)
    if int(x.shape[1]) != width:
        x = conv2d(p, f"{name}.nin_shortcut", x, width, 1).contiguous()
    return (x + h).contiguous()
