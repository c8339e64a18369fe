"""A training step of a LLaMA: next-word cross-entropy and its gradients (Touvron et al., 2023).

Pre-norm blocks with RMSNorm, rotary positions, grouped key-value heads and a SwiGLU; the output layer is a matrix of
its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import linear
from kcg.workloads.training import attention, cross_entropy, kept, rms_norm, step

ABOUT = "a training step of a LLaMA"


@dataclass(frozen=True)
class Config:
    """Sizes of one step on `batch` texts of `tokens` tokens."""

    dtype: str = "float32"
    batch: int = 8
    tokens: int = 256
    layers: int = 2  # the gradients of the first: those of others are the same kernels again
    width: int = 288
    heads: int = 6
    shared: int = 6  # key-value heads
    hidden: int = 768
    vocabulary: int = 4096


PRESETS = {
    "mini": Config(layers=1, batch=2, tokens=16, width=32, heads=4, shared=2, hidden=48, vocabulary=96),
    "mini-f16": Config(dtype="float16", batch=2, tokens=24, width=48, heads=3, shared=3, hidden=128, vocabulary=112),
    "mini-odd": Config(batch=3, tokens=28, width=84, heads=6, shared=3, hidden=91, vocabulary=105),
    "stories15m": Config(),
    "stories110m-f16": Config(dtype="float16", tokens=384, width=768, heads=12, shared=12, hidden=2048),
    "tinyllama-bf16": Config(dtype="bfloat16", batch=1, tokens=512, width=2048, heads=32, shared=4, hidden=5632),
    "smollm-bf16": Config(
        dtype="bfloat16", batch=4, tokens=352, width=576, heads=9, shared=3, hidden=1536, vocabulary=12288
    ),
    "llama3-1b-f16": Config(dtype="float16", batch=2, width=2048, heads=32, shared=8, hidden=8192, vocabulary=8192),
    "stories42m": Config(batch=4, tokens=320, width=512, heads=8, shared=8, hidden=1376, vocabulary=6000),
    "danube-f16": Config(dtype="float16", batch=1, tokens=768, width=1024, heads=16, shared=4, hidden=2816),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    tokens = Input((config.batch, config.tokens), "int32", below=config.vocabulary)
    return {"tokens": tokens, "following": tokens}


def gradients(config: Config) -> list[str]:
    """The parameters whose gradients follow the loss."""
    block = ("attention_norm", "wq", "wk", "wv", "wo", "ffn_norm", "w1", "w2", "w3")
    return ["embedding", *(f"h.0.{kind}.weight" for kind in block), "norm.weight", "output.weight"]


def run(p: Parameters, config: Config, *, tokens: Tensor, following: Tensor) -> tuple[Tensor, ...]:
    """The loss, then the gradients."""
    x = kept(p("embedding", config.vocabulary, config.width, fan_in=1)[tokens])
    cos, sin = _rotations(config)
    for i in range(config.layers):
        x = _block(p, config, f"h.{i}", x, cos, sin)
    logits = linear(p, "output", rms_norm(p, "norm", x), config.vocabulary, bias=False)
    return step(p, cross_entropy(logits, following), gradients(config))


def _rotations(config: Config) -> tuple[Tensor, Tensor]:
    half = config.width // config.heads // 2
    frequencies = 10000.0 ** (-Tensor.arange(half, dtype=dtypes.float32) / half)
    angles = Tensor.arange(config.tokens, dtype=dtypes.float32).unsqueeze(1) * frequencies
    return angles.cos().contiguous(), angles.sin().contiguous()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Of (batch, heads, tokens, d), in halves as in GPT-NeoX."""
    first, second = x.cast(dtypes.float32).chunk(2, dim=-1)
    turned = (first * cos - second * sin).cat(second * cos + first * sin, dim=-1)
    return kept(turned.cast(x.dtype))


def _block(p: Parameters, config: Config, name: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    batch, tokens, width, head = config.batch, config.tokens, config.width, config.width // config.heads
    normed = rms_norm(p, f"{name}.attention_norm", x)
    q, k, v = (
        kept(linear(p, f"{name}.{kind}", normed, heads * head, bias=False))
        .reshape(batch, tokens, heads, head)
        .transpose(1, 2)
        for kind, heads in (("wq", config.heads), ("wk", config.shared), ("wv", config.shared))
    )
    repeats = config.heads // config.shared
    k, v = (part.repeat_interleave(repeats, dim=1) for part in (_rotate(k, cos, sin), v))
    mixed = attention(_rotate(q, cos, sin), k, v, causal=True).transpose(1, 2).reshape(batch, tokens, width)
    x = kept(x + linear(p, f"{name}.wo", mixed, width, bias=False))
    normed = rms_norm(p, f"{name}.ffn_norm", x)
    gate, up = (kept(linear(p, f"{name}.{kind}", normed, config.hidden, bias=False)) for kind in ("w1", "w3"))
    return kept(x + linear(p, f"{name}.w2", kept(gate.silu() * up), width, bias=False))
