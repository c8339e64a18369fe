"""Swin: attention within windows of a picture, shifted by half a window in every second block, in stages of falling
resolution (Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import Window, attention, conv2d, layer_norm, linear

ABOUT = "Swin Transformer, the class logits of a batch of pictures"


@dataclass(frozen=True)
class Config:
    """Sizes of one forward pass over square pictures; each stage has a plain block and a shifted one."""

    dtype: str = "float32"
    batch: int = 1
    size: int = 224
    patch: int = 4
    window: int = 7
    width: int = 96  # of the first stage; each further one has twice as many channels and half the resolution
    heads: tuple[int, ...] = (3, 6)  # of each stage
    classes: int = 1000


PRESETS = {
    "mini": Config(size=32, window=2, width=32, heads=(2, 4), classes=10),
    "mini-f16": Config(dtype="float16", size=64, window=4, width=48, heads=(3, 6), classes=100),
    "mini-odd": Config(batch=3, size=42, patch=3, width=35, heads=(5, 7), classes=49),
    "tiny": Config(dtype="float16", batch=8, heads=(3, 6, 12)),
    "small-f32": Config(batch=3, heads=(3, 6, 12, 24)),
    "base-bf16": Config(dtype="bfloat16", batch=6, width=128, heads=(4, 8)),
    "base-384": Config(dtype="float16", size=384, window=12, width=128, heads=(4, 8, 16)),
    "large-f32": Config(batch=2, width=192, heads=(6, 12)),
    "large-384-bf16": Config(dtype="bfloat16", batch=2, size=384, window=12, width=192, heads=(6, 12)),
}


def inputs(config: Config) -> dict[str, Input]:
    return {"pictures": Input((config.batch, 3, config.size, config.size), config.dtype)}


def run(p: Parameters, config: Config, *, pictures: Tensor) -> Tensor:
    """Logits (batch, classes)."""
    stem = conv2d(p, "patch_embed.proj", pictures, config.width, Window(config.patch, stride=config.patch, padding=0))
    x = layer_norm(p, "patch_embed.norm", stem.contiguous().permute(0, 2, 3, 1))
    for stage, heads in enumerate(config.heads):
        if stage > 0:
            x = _merged(p, f"layers.{stage}.downsample", x)
        for block, shift in enumerate((0, config.window // 2)):
            # a picture of one window has nothing to shift
            shift = shift if int(x.shape[1]) > config.window else 0
            x = _block(p, f"layers.{stage}.blocks.{block}", x, heads, config.window, shift)
    return linear(p, "head", layer_norm(p, "norm", x).mean((1, 2)).contiguous(), config.classes)


def _merged(p: Parameters, name: str, x: Tensor) -> Tensor:
    """Four neighbouring places, column by column, become one of twice the channels."""
    n, height, width, channels = (int(size) for size in x.shape)
    x = x.reshape(n, height // 2, 2, width // 2, 2, channels).permute(0, 1, 3, 4, 2, 5)
    x = layer_norm(p, f"{name}.norm", x.reshape(n, height // 2, width // 2, 4 * channels))
    return linear(p, f"{name}.reduction", x, 2 * channels, bias=False).contiguous()


def _block(p: Parameters, name: str, x: Tensor, heads: int, window: int, shift: int) -> Tensor:
    size, channels = int(x.shape[1]), int(x.shape[-1])
    normed = layer_norm(p, f"{name}.norm1", x)
    windows = _windows(normed.roll((-shift, -shift), (1, 2)), window).contiguous()
    bias = _position_bias(p, f"{name}.attn", heads, window)
    if shift:
        bias = bias + _mask(size, window, shift)
    qkv = linear(p, f"{name}.attn.qkv", windows, 3 * channels).contiguous()
    # (batch, windows, heads, places, channels of a head)
    q, k, v = (part.reshape(*part.shape[:3], heads, -1).transpose(2, 3) for part in qkv.chunk(3, dim=-1))
    mixed = attention(q, k, v, bias=bias.contiguous()).transpose(2, 3).reshape(windows.shape)
    whole = _whole(linear(p, f"{name}.attn.proj", mixed, channels).contiguous(), size, window)
    x = (x + whole.roll((shift, shift), (1, 2))).contiguous()
    between = linear(p, f"{name}.mlp.fc1", layer_norm(p, f"{name}.norm2", x), 4 * channels).gelu().contiguous()
    return (x + linear(p, f"{name}.mlp.fc2", between, channels)).contiguous()


def _windows(x: Tensor, window: int) -> Tensor:
    """(batch, height, width, channels) to (batch, windows, places of a window, channels)."""
    n, height, width, channels = (int(size) for size in x.shape)
    x = x.reshape(n, height // window, window, width // window, window, channels).transpose(2, 3)
    return x.reshape(n, -1, window * window, channels)


def _whole(x: Tensor, size: int, window: int) -> Tensor:
    """The inverse of `_windows` for a square picture."""
    n, channels, count = int(x.shape[0]), int(x.shape[-1]), size // window
    x = x.reshape(n, count, count, window, window, channels).transpose(2, 3)
    return x.reshape(n, size, size, channels)


def _position_bias(p: Parameters, name: str, heads: int, window: int) -> Tensor:
    """(heads, places, places): one number for each distance in rows and columns."""
    table = p(f"{name}.relative_position_bias_table", (2 * window - 1) ** 2, heads, fan_in=1)
    place = Tensor.arange(window * window)
    rows, columns = place // window, place % window
    down = rows.unsqueeze(1) - rows.unsqueeze(0) + window - 1
    right = columns.unsqueeze(1) - columns.unsqueeze(0) + window - 1
    return table[down * (2 * window - 1) + right].permute(2, 0, 1)


def _mask(size: int, window: int, shift: int) -> Tensor:
    """(windows, 1, places, places): keeps apart what the shift brought together from opposite edges."""
    along = Tensor.arange(size)
    region = (along >= size - window).int() + (along >= size - shift).int()
    regions = (region.unsqueeze(1) * 3 + region.unsqueeze(0)).reshape(1, size, size, 1)
    of_place = _windows(regions, window).reshape(-1, 1, window * window)
    return (of_place.unsqueeze(-1) != of_place.unsqueeze(-2)).where(-100.0, 0.0)
