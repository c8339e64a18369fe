"""Llama's attention in PyTorch: rotary positions, grouped queries, and a cache that one token is written into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Tensor = torch.Tensor


def turns(config: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle of every position that is read and every pair of channels."""
    pairs = config.width // config.heads // 2
    frequencies = config.theta ** -(torch.arange(pairs, device=device) / pairs)
    first = config.position
    positions = torch.arange(first, first + (1 if first else config.tokens), device=device)
    angles = positions[:, None] * frequencies
    return angles.cos(), angles.sin()


def _rotated(x: Tensor, at: tuple[Tensor, Tensor]) -> Tensor:
    """x (batch, heads, tokens, d): channel i and channel i + d/2 are a pair."""
    (first, second), (cos, sin) = x.float().chunk(2, dim=-1), at
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


def attended(
    p: Any, config: Any, name: str, normed: Tensor, at: tuple[Tensor, Tensor], linear: Callable[..., Tensor]
) -> Tensor:  # fmt: skip
    """What attention adds to the residual, (batch, tokens, width)."""
    batch, tokens, width = normed.shape
    d, start = width // config.heads, config.position
    q, k, v = (
        linear(p, f"{name}.attention.w{letter}", normed, heads * d, bias=False)
        .reshape(batch, tokens, heads, d)
        .transpose(1, 2)
        for letter, heads in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads))
    )
    q, k = _rotated(q, at), _rotated(k, at)
    if start:
        caches = []
        for letter, new in (("k", k), ("v", v)):
            shape = (batch, config.kv_heads, config.context, d)
            cache = p(f"{name}.cache_{letter}", *shape, fan_in=1)
            cache[:, :, start : start + 1] = new
            caches.append(cache[:, :, : start + 1])
        k, v = caches
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=not start, enable_gqa=True)
    mixed = mixed.transpose(1, 2).reshape(batch, tokens, width)
    return linear(p, f"{name}.attention.wo", mixed, width, bias=False)
