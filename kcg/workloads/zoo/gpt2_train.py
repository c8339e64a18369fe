"""A training step of GPT-2: next-word cross-entropy and its gradients (Radford et al., 2019).

Pre-norm blocks with learned positions; the logits are the products with the embedding table, whose gradient is thus
that of a lookup plus that of a matmul.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import linear
from kcg.workloads.training import attention, cross_entropy, kept, layer_norm, step

ABOUT = "a training step of GPT-2"


@dataclass(frozen=True)
class Config:
    """Sizes of one step on `batch` texts of `tokens` tokens."""

    dtype: str = "float32"
    batch: int = 4
    tokens: int = 256
    layers: int = 2
    trained: int = 1  # blocks of which there are gradients, from the first: those of others are the same kernels again
    width: int = 384
    heads: int = 6
    vocabulary: int = 65


PRESETS = {
    "mini": Config(layers=1, batch=2, tokens=16, width=32, heads=2, vocabulary=96),
    "mini-f16": Config(dtype="float16", batch=2, tokens=24, width=48, heads=3, vocabulary=128),
    "mini-odd": Config(batch=3, tokens=35, width=63, heads=3, vocabulary=91),
    "small-f16": Config(dtype="float16", batch=1, tokens=256, width=768, heads=12, vocabulary=50257),
    "characters": Config(batch=64),
    "characters-bf16": Config(dtype="bfloat16", batch=32, tokens=512, width=512, heads=8, vocabulary=256),
    "medium-bf16": Config(dtype="bfloat16", batch=2, tokens=512, width=1024, heads=16, vocabulary=6400),
    "large-f16": Config(dtype="float16", batch=1, tokens=1024, width=1280, heads=20, vocabulary=4096),
    "stories": Config(batch=16, tokens=192, width=288, heads=6, vocabulary=4096),
    "distil-f16": Config(dtype="float16", batch=8, tokens=128, width=768, heads=12, vocabulary=8192),
}


def inputs(config: Config) -> dict[str, Input]:
    tokens = Input((config.batch, config.tokens), "int32", below=config.vocabulary)
    return {"tokens": tokens, "following": tokens}


def gradients(config: Config) -> list[str]:
    """The parameters whose gradients follow the loss."""
    kinds = ("ln_1", "c_attn", "c_proj", "ln_2", "c_fc", "mlp_proj")
    layers = [*(f"h.{i}.{kind}" for i in range(config.trained) for kind in kinds), "ln_f"]
    return ["embedding", "positions", *(f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias"))]


def run(p: Parameters, config: Config, *, tokens: Tensor, following: Tensor) -> tuple[Tensor, ...]:
    """The loss, then the gradients."""
    table = p("embedding", config.vocabulary, config.width, fan_in=1)
    x = kept(table[tokens] + p("positions", config.tokens, config.width, fan_in=1))
    for i in range(config.layers):
        x = _block(p, config, f"h.{i}", x)
    logits = layer_norm(p, "ln_f", x).linear(table.transpose() * config.width**-0.5)
    return step(p, cross_entropy(logits, following), gradients(config))


def _block(p: Parameters, config: Config, name: str, x: Tensor) -> Tensor:
    batch, tokens, width = config.batch, config.tokens, config.width
    qkv = kept(linear(p, f"{name}.c_attn", layer_norm(p, f"{name}.ln_1", x), 3 * width))
    q, k, v = (part.reshape(batch, tokens, config.heads, -1).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    mixed = attention(q, k, v, causal=True).transpose(1, 2).reshape(batch, tokens, width)
    x = kept(x + linear(p, f"{name}.c_proj", mixed, width))
    between = kept(kept(linear(p, f"{name}.c_fc", layer_norm(p, f"{name}.ln_2", x), 4 * width)).gelu())
    return kept(x + linear(p, f"{name}.mlp_proj", between, width))
