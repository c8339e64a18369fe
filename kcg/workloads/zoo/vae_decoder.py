"""The decoder of Stable Diffusion's autoencoder, from latents to pixels (Rombach et al., 2021; Esser et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import attention, conv2d, group_norm, residual_block

ABOUT = "the decoder of Stable Diffusion's autoencoder, from latents to pixels"


@dataclass(frozen=True)
class Config:
    """Sizes of one decoding; each resolution has the block that changes the channels and one that keeps them."""

    dtype: str = "float32"
    batch: int = 1
    height: int = 32  # of the latents
    width: int = 32
    latent: int = 4  # channels of the latents
    channels: int = 128  # at the last resolution
    multipliers: tuple[int, ...] = (4, 4, 2, 1)  # of the channels, from the smallest resolution on
    groups: int = 32


PRESETS = {
    "mini": Config(height=8, width=8, channels=8, multipliers=(2, 1), groups=4),
    "mini-f16": Config("float16", 2, 8, 12, latent=16, channels=16, multipliers=(1, 1), groups=8),
    "mini-odd": Config("float32", 1, 7, 5, channels=14, multipliers=(3, 2, 1), groups=7),
    "sd-f16": Config("float16", height=20, width=24),
    "sd-f32-b2": Config(batch=2, height=16, width=12),
    "sd-bf16": Config("bfloat16", height=16, width=32),
    "flux-bf16": Config("bfloat16", height=24, width=18, latent=16),
    "flux-f16-b3": Config("float16", batch=3, height=8, width=16, latent=16),
    "narrow-f32": Config(height=24, width=30, latent=16, channels=96),
    "narrow-bf16": Config("bfloat16", batch=4, height=20, width=28, channels=64),
    "ldm-f8-f32": Config(batch=2, height=28, width=28, latent=16, channels=64, multipliers=(8, 4, 2, 1)),
    "ldm-f4-f16": Config("float16", height=40, width=44, latent=3, multipliers=(4, 2, 1)),
}


def inputs(config: Config) -> dict[str, Input]:
    return {"latents": Input((config.batch, config.latent, config.height, config.width), config.dtype)}


def run(p: Parameters, config: Config, *, latents: Tensor) -> Tensor:
    """Pixels (batch, 3, height, width), larger by 2 at each resolution after the first."""
    groups, widest = config.groups, config.channels * config.multipliers[0]
    x = conv2d(p, "post_quant", latents, config.latent, 1).contiguous()
    x = conv2d(p, "conv_in", x, widest, 3).contiguous()
    x = residual_block(p, "mid.0", x, widest, groups)
    x = _attention_block(p, "mid.attention", x, groups)
    x = residual_block(p, "mid.1", x, widest, groups)
    for i, multiplier in enumerate(config.multipliers):
        channels = config.channels * multiplier
        if i:
            larger = x.interpolate((2 * int(x.shape[2]), 2 * int(x.shape[3])), mode="nearest")
            x = conv2d(p, f"up.{i}.upsample", larger, int(x.shape[1]), 3).contiguous()
        for block in range(2):
            x = residual_block(p, f"up.{i}.{block}", x, channels, groups)
    return conv2d(p, "conv_out", group_norm(p, "norm_out", x, groups).silu().contiguous(), 3, 3)


def _attention_block(p: Parameters, name: str, x: Tensor, groups: int) -> Tensor:
    """One head over all places of the picture."""
    channels = int(x.shape[1])
    normed = group_norm(p, f"{name}.norm", x, groups).contiguous()
    q, k, v = (
        conv2d(p, f"{name}.{key}", normed, channels, 1).contiguous().flatten(2).transpose(1, 2).unsqueeze(1)
        for key in ("q", "k", "v")
    )
    mixed = attention(q, k, v).squeeze(1).transpose(1, 2).reshape(x.shape)
    return (x + conv2d(p, f"{name}.out", mixed, channels, 1)).contiguous()
