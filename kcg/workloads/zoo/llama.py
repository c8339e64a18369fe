"""Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU (Touvron et al., 2023; Grattafiori et al., 2024).

A prompt gives the logits of its last token. Decoding reads one token at a symbolic position, writes its key and value
into a cache, and attends to the cache up to there: one kernel serves every position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tinygrad import Tensor, UOp, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import cached, linear, rms_norm, start_position

ABOUT = "Llama, the next token's logits: of a prompt, or with a cache"


@dataclass(frozen=True)
class Config:
    """Sizes of a forward pass over `tokens` tokens, or of one token after `position` others in a cache of `context`."""

    dtype: str = "float32"
    batch: int = 1
    tokens: int = 512
    position: int = 0  # 0: a prompt
    context: int = 2048
    layers: int = 2  # of equal shape: more of them are the same kernels again
    width: int = 2048
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 8192
    vocabulary: int = 32000
    theta: float = 500000.0


FeedForward = Callable[[Parameters, Any, str, Tensor], Tensor]


PRESETS = {
    "mini": Config(tokens=24, width=64, heads=4, kv_heads=2, hidden=160, vocabulary=320),
    "mini-f16": Config(dtype="float16", batch=2, tokens=40, width=96, heads=6, kv_heads=2, hidden=256, vocabulary=512),
    "mini-odd": Config(batch=3, tokens=35, width=84, heads=7, kv_heads=1, hidden=196, vocabulary=273),
    "mini-decode": Config(position=37, context=64, width=96, heads=6, kv_heads=3, hidden=224, vocabulary=448),
    "smollm-135m": Config(dtype="float16", width=576, heads=9, kv_heads=3, hidden=1536, vocabulary=49152, theta=1e4),
    "smollm-360m-b4": Config(batch=4, tokens=192, width=960, heads=15, kv_heads=5, hidden=2560, vocabulary=49152),
    "tinyllama": Config(dtype="bfloat16", tokens=256, kv_heads=4, hidden=5632, theta=1e4),
    "3.2-1b-b2": Config(dtype="bfloat16", batch=2, tokens=384, vocabulary=128256),
    "3.2-3b": Config(dtype="float16", tokens=128, width=3072, heads=24, vocabulary=128256),
    "mistral-7b": Config(tokens=100, width=4096, hidden=14336, theta=1e4),
    "2-7b-decode": Config(
        dtype="float16", position=700, context=1024, width=4096, kv_heads=32, hidden=11008, theta=1e4
    ),
    "3.2-1b-decode": Config(dtype="bfloat16", position=1500, context=4096, vocabulary=128256),
    "mistral-decode-b8": Config(
        dtype="float16", batch=8, position=600, width=4096, hidden=14336, vocabulary=32768, theta=1e6
    ),
    "smollm-decode-b16": Config(
        batch=16, position=300, context=512, width=576, heads=9, kv_heads=3, hidden=1536, vocabulary=49152, theta=1e4
    ),
}


def inputs(config: Config) -> dict[str, Input]:
    tokens = 1 if config.position else config.tokens
    return {"tokens": Input((config.batch, tokens), "int32", below=config.vocabulary)}


def variables(config: Config) -> dict[str, UOp]:
    """The bound variables of a step, which `run` takes too: `TinyJit` replays those that it was given."""
    return start_position(config.position, config.context)


def run(p: Parameters, config: Config, *, tokens: Tensor, start_pos: UOp | None = None) -> Tensor:
    """Logits (batch, vocabulary) of the token after the last."""
    return decoder(p, config, tokens, start_pos, _feed_forward)


def decoder(p: Parameters, config: Config, tokens: Tensor, start_pos: UOp | None, feed_forward: FeedForward) -> Tensor:
    """The whole model with `feed_forward(p, config, name, normed)` in every block, not materialised."""
    start = variables(config).get("start_pos") if start_pos is None else start_pos
    turns = _turns(config, start)
    x = p("embedding", config.vocabulary, config.width, fan_in=1)[tokens].contiguous()
    for i in range(config.layers):
        x = _attended(p, config, f"layers.{i}", x, turns, start)
        x = (x + feed_forward(p, config, f"layers.{i}", rms_norm(p, f"layers.{i}.ffn_norm", x))).contiguous()
    return linear(p, "output", rms_norm(p, "norm", x[:, -1]), config.vocabulary, bias=False)


def _turns(config: Config, start: UOp | None) -> list[Tensor]:
    """Cosine and sine of the angle of every position and pair of channels in a head."""
    pairs = config.width // config.heads // 2
    frequencies = config.theta ** -(Tensor.arange(pairs) / pairs)
    if start is not None:  # of one position: made where they are used
        angles = Tensor.arange(config.context)[start : start + 1].unsqueeze(1) * frequencies
        return [angles.cos(), angles.sin()]
    angles = Tensor.arange(config.tokens).unsqueeze(1) * frequencies
    return [angles.cos().clone(), angles.sin().clone()]  # `contiguous` does not materialise what reads no buffer


def _rotated(x: Tensor, turns: list[Tensor]) -> Tensor:
    """x (batch, heads, tokens, d): channel i and channel i + d/2 are a pair."""
    (first, second), (cos, sin) = x.cast(dtypes.float32).chunk(2, dim=-1), turns
    return (first * cos - second * sin).cat(first * sin + second * cos, dim=-1).cast(x.dtype).contiguous()


def _attended(p: Parameters, config: Config, name: str, x: Tensor, turns: list[Tensor], start: UOp | None) -> Tensor:
    batch, tokens, width = (int(n) for n in x.shape)
    d, groups = width // config.heads, config.heads // config.kv_heads
    normed = rms_norm(p, f"{name}.attention_norm", x)
    q, k, v = (
        linear(p, f"{name}.attention.w{letter}", normed, heads * d, bias=False)
        .contiguous()
        .reshape(batch, tokens, heads, d)
        .transpose(1, 2)
        for letter, heads in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads))
    )
    q, k = _rotated(q, turns), _rotated(k, turns)
    if start is not None:
        k, v = (cached(p, f"{name}.cache_{n}", config.context, new, start) for n, new in (("k", k), ("v", v)))
    q = q.reshape(batch, config.kv_heads, groups, tokens, d)  # heads that share a key are neighbours
    scores = (q @ k.unsqueeze(2).transpose(-2, -1)).cast(dtypes.float32) * d**-0.5
    if start is None:
        scores = scores + Tensor.full((tokens, tokens), float("-inf"), buffer=False).triu(1)
    weights = scores.cast(x.dtype).contiguous().softmax(-1, dtype=dtypes.float32).cast(x.dtype).contiguous()
    mixed = (weights @ v.unsqueeze(2)).contiguous().reshape(batch, config.heads, tokens, d)
    mixed = mixed.transpose(1, 2).reshape(batch, tokens, width)
    return (x + linear(p, f"{name}.attention.wo", mixed, width, bias=False)).contiguous()


def _feed_forward(p: Parameters, config: Config, name: str, normed: Tensor) -> Tensor:
    gate = linear(p, f"{name}.feed_forward.w1", normed, config.hidden, bias=False).silu().contiguous()
    between = (gate * linear(p, f"{name}.feed_forward.w3", normed, config.hidden, bias=False)).contiguous()
    return linear(p, f"{name}.feed_forward.w2", between, config.width, bias=False)
