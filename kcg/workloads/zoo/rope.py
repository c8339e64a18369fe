"""Rotary position embedding, forward and backward (Su et al., "RoFormer", 2021).

Pairs are either the two halves of a head (GPT-NeoX; Hugging Face's Llama, which turns projections (batch, tokens,
heads, width) and rotates heads first) or neighbours (GPT-J, Meta's Llama, Flux, which rotate projections as they
are). Some models rotate only the first `rotary` elements of a head. Most cache the table of cosines and sines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters

ABOUT = "rotary position embedding of queries and keys, forward and backward"


class Shape(NamedTuple):
    """Queries of `heads` and keys of `kv_heads` heads, `tokens` of them from position `start` on."""

    batch: int
    heads: int
    kv_heads: int
    tokens: int
    width: int
    rotary: int = 0  # elements of a head that are rotated; 0: all of them
    start: int = 0
    theta: float = 10000.0  # neither matters where the table is cached


@dataclass(frozen=True)
class Config:
    """The shapes of one preset, all with the same kind of pairs."""

    dtype: str
    interleaved: bool
    shapes: tuple[Shape, ...]
    cached: bool = True  # the table is read from memory; otherwise computed where it is used


PRESETS = {
    "mini": Config("float32", False, (Shape(1, 4, 2, 32, 16), Shape(2, 3, 3, 8, 24, rotary=8, start=5))),
    "mini-f16": Config(
        "float16", True, (Shape(1, 6, 2, 64, 32), Shape(2, 4, 1, 24, 40, rotary=20), Shape(8, 8, 8, 1, 64, start=100))
    ),
    "mini-odd": Config(
        "float32", True, (Shape(3, 5, 1, 49, 14), Shape(1, 7, 7, 91, 26), Shape(5, 3, 3, 21, 28, rotary=14, start=9)),
        cached=False,
    ),
    "llama": Config(  # Llama 3 8B and 70B, Mistral 7B
        "float16", False, (
            Shape(1, 32, 8, 2048, 128, theta=500000.0), Shape(1, 64, 8, 1024, 128), Shape(4, 32, 8, 777, 128),
            Shape(16, 32, 8, 1, 128, start=1500), Shape(2, 24, 8, 3000, 128),
        ),
    ),
    "llama-meta-bf16": Config(  # with neighbours as pairs; the 1B has heads of 64
        "bfloat16", True, (
            Shape(1, 32, 8, 4096, 128, theta=500000.0), Shape(8, 32, 8, 512, 64), Shape(2, 40, 40, 1024, 128),
            Shape(64, 32, 8, 1, 64, start=900),
        ),
    ),
    "gpt-neox": Config(  # Pythia 410M, 1.4B and 12B and GPT-NeoX 20B: a quarter of a head
        "float32", False, (
            Shape(2, 16, 16, 2048, 64, rotary=16), Shape(1, 16, 16, 2048, 128, rotary=32),
            Shape(1, 40, 40, 1024, 128, rotary=32), Shape(1, 64, 64, 2048, 96, rotary=24),
            Shape(8, 64, 64, 128, 96, rotary=24),
        ),
    ),
    "gpt-j": Config(  # GPT-J 6B, CodeGen 350M and ChatGLM2
        "float16", True, (
            Shape(1, 16, 16, 2048, 256, rotary=64), Shape(4, 16, 16, 600, 64, rotary=32),
            Shape(2, 32, 2, 1024, 128, rotary=64), Shape(32, 16, 16, 1, 256, rotary=64, start=512),
        ),
        cached=False,
    ),
    "qwen-bf16": Config(  # Qwen2.5 0.5B, 7B and 32B, Qwen3 4B
        "bfloat16", False, (
            Shape(4, 14, 2, 1024, 64, theta=1e6), Shape(1, 28, 4, 3072, 128, theta=1e6),
            Shape(1, 40, 8, 1536, 128, theta=1e6), Shape(2, 32, 8, 640, 128, theta=1e6),
        ),
        cached=False,
    ),
    "gemma-f32": Config(  # Gemma 2B, 7B and Gemma 2 9B: heads of 256
        "float32", False, (
            Shape(1, 8, 1, 2048, 256), Shape(2, 16, 16, 512, 256), Shape(1, 16, 8, 1100, 256),
            Shape(24, 8, 1, 1, 256, start=333),
        ),
    ),
    "phi": Config(  # Phi-1.5, Phi-2 and Phi-3 mini
        "float16", False, (
            Shape(2, 32, 32, 1024, 64, rotary=32), Shape(1, 32, 32, 2048, 80, rotary=32), Shape(1, 32, 32, 2000, 96),
            Shape(1, 40, 10, 4096, 128),
        ),
    ),
    "diffusion-f32": Config(  # Flux at 512, 768 and 1024 pixels; HunyuanDiT
        "float32", True, (
            Shape(1, 24, 24, 1536, 128), Shape(1, 24, 24, 2816, 128), Shape(1, 24, 24, 4608, 128),
            Shape(2, 16, 16, 1024, 88),
        ),
    ),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    found = {}
    for i, s in enumerate(config.shapes):
        for name, heads in (("q", s.heads), ("k", s.kv_heads)):
            projected = (s.batch, s.tokens, heads, s.width)
            rotated = projected if config.interleaved else (s.batch, heads, s.tokens, s.width)
            found[f"{name}{i}"] = Input(projected, config.dtype)
            found[f"{name}_gradient{i}"] = Input(rotated, config.dtype)  # of a loss, with respect to what was rotated
    return found


def run(p: Parameters, config: Config, **inputs: Tensor) -> tuple[Tensor, ...]:
    """For each shape: rotated queries and keys, then the gradients with respect to the queries and keys."""
    outputs = []
    for i, s in enumerate(config.shapes):
        pairs = (s.rotary or s.width) // 2
        if config.cached:
            table = p(f"table{i}", 2, s.tokens, pairs, fan_in=1, dtype="float32")
        else:
            frequencies = 1.0 / s.theta ** (Tensor.arange(pairs).cast(dtypes.float32) / pairs)
            positions = Tensor.arange(s.start, s.start + s.tokens).cast(dtypes.float32)
            angles = positions.unsqueeze(1) * frequencies.unsqueeze(0)
            table = angles.cos().stack(angles.sin())
        heads_first = table.unsqueeze(2) if config.interleaved else table
        cos, sin = heads_first[0], heads_first[1]
        for name in ("q", "k"):
            x = inputs[f"{name}{i}"] if config.interleaved else inputs[f"{name}{i}"].transpose(1, 2)
            outputs.append(_rotated(x, cos, sin, config.interleaved).contiguous())
        for name in ("q", "k"):  # the transpose of a rotation is the rotation back
            x = _rotated(inputs[f"{name}_gradient{i}"], cos, -sin, config.interleaved)
            outputs.append((x if config.interleaved else x.transpose(1, 2)).contiguous())
    return tuple(outputs)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    rotary = 2 * int(cos.shape[-1])
    turned, kept = x[..., :rotary].cast(dtypes.float32), x[..., rotary:]
    if interleaved:
        pairs = turned.reshape(*turned.shape[:-1], rotary // 2, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        out = (a * cos - b * sin).stack(a * sin + b * cos, dim=-1).flatten(-2)
    else:
        a, b = turned.chunk(2, dim=-1)
        out = (a * cos - b * sin).cat(a * sin + b * cos, dim=-1)
    out = out.cast(x.dtype)
    return out.cat(kept, dim=-1) if rotary < int(x.shape[-1]) else out
