"""A training step of low-rank adapters on a frozen language model (LoRA; Hu et al., 2022).

A pre-norm decoder without positions other than a causal mask, frozen; the query, value and both feed-forward matrices
carry adapters, whose gradients (and no others) follow the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import linear
from kcg.workloads.training import attention, cross_entropy, kept, rms_norm, step

ABOUT = "a training step of low-rank adapters on a frozen decoder"
ADAPTED = ("q", "v", "up", "down")


@dataclass(frozen=True)
class Config:
    """Sizes of one step on `batch` texts of `tokens` tokens; adapters have the given rank."""

    dtype: str = "float32"
    batch: int = 4
    tokens: int = 256
    layers: int = 2  # the gradients of the first's adapters: those of others are the same kernels again
    width: int = 768
    heads: int = 12
    hidden: int = 3072
    rank: int = 8
    alpha: float = 16.0
    vocabulary: int = 4096


PRESETS = {
    "mini": Config(layers=1, batch=2, tokens=16, width=32, heads=2, hidden=64, rank=4, vocabulary=96),
    "mini-f16": Config(dtype="float16", batch=2, tokens=24, width=64, heads=4, hidden=96, rank=8, vocabulary=80),
    "mini-odd": Config(batch=3, tokens=21, width=65, heads=5, hidden=91, rank=3, vocabulary=77),
    "base": Config(),
    "base-f16": Config(dtype="float16", batch=8, tokens=384, rank=16, vocabulary=8192),
    "llama1b-bf16": Config(
        dtype="bfloat16", batch=1, tokens=512, width=2048, heads=32, hidden=8192, rank=64, vocabulary=16000
    ),
    "large-f16": Config(
        dtype="float16", batch=2, tokens=320, width=1280, heads=20, hidden=5120, rank=4, vocabulary=8192
    ),
    "medium-bf16": Config(
        dtype="bfloat16", batch=6, tokens=192, width=1024, heads=16, hidden=4096, rank=32, vocabulary=12000
    ),
    "small": Config(batch=16, tokens=128, width=512, heads=8, hidden=1376, rank=12, vocabulary=6000),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    tokens = Input((config.batch, config.tokens), "int32", below=config.vocabulary)
    return {"tokens": tokens, "following": tokens}


def gradients(config: Config) -> list[str]:
    """The parameters whose gradients follow the loss."""
    return [f"h.0.{layer}.{factor}" for layer in ADAPTED for factor in ("lora_a", "lora_b")]


def run(p: Parameters, config: Config, *, tokens: Tensor, following: Tensor) -> tuple[Tensor, ...]:
    """The loss, then the gradients."""
    x = p("embedding", config.vocabulary, config.width, fan_in=1)[tokens].contiguous()
    for i in range(config.layers):
        x = _block(p, config, f"h.{i}", x)
    logits = linear(p, "output", rms_norm(p, "norm", x), config.vocabulary, bias=False)
    return step(p, cross_entropy(logits, following), gradients(config))


def _adapted(p: Parameters, config: Config, name: str, x: Tensor, outputs: int) -> Tensor:
    low = kept(x.linear(p(f"{name}.lora_a", config.rank, int(x.shape[-1])).transpose()))
    change = kept(low.linear(p(f"{name}.lora_b", outputs, config.rank).transpose()))
    return kept(linear(p, name, x, outputs, bias=False)) + change * (config.alpha / config.rank)


def _block(p: Parameters, config: Config, name: str, x: Tensor) -> Tensor:
    batch, tokens, width = config.batch, config.tokens, config.width
    normed = rms_norm(p, f"{name}.norm1", x)
    made = (
        kept(_adapted(p, config, f"{name}.q", normed, width)),
        kept(linear(p, f"{name}.k", normed, width, bias=False)),
        kept(_adapted(p, config, f"{name}.v", normed, width)),
    )
    q, k, v = (part.reshape(batch, tokens, config.heads, -1).transpose(1, 2) for part in made)
    mixed = attention(q, k, v, causal=True).transpose(1, 2).reshape(batch, tokens, width)
    x = kept(x + linear(p, f"{name}.o", mixed, width, bias=False))
    between = kept(_adapted(p, config, f"{name}.up", rms_norm(p, f"{name}.norm2", x), config.hidden).gelu())
    return kept(x + _adapted(p, config, f"{name}.down", between, width))
