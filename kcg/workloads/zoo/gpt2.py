"""GPT-2: a decoder of pre-norm blocks with learned positions and GELU (Radford et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import attention, layer_norm, linear

ABOUT = "GPT-2, the logits of a prompt"


@dataclass(frozen=True)
class Config:
    """Sizes of one forward pass over `tokens` tokens."""

    dtype: str = "float32"
    batch: int = 1
    tokens: int = 512
    layers: int = 2  # of equal shape: more of them are the same kernels again
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257


PRESETS = {
    "mini": Config(tokens=32, width=96, heads=4, vocabulary=512),
    "mini-f16": Config(dtype="float16", tokens=48, width=64, heads=2, vocabulary=384),
    "small": Config(dtype="float16"),
    "medium-bf16": Config(dtype="bfloat16", tokens=1024, width=1024, heads=16),
    "large-b4": Config(dtype="float16", batch=4, tokens=256, width=1280, heads=20),
    "small-f32": Config(batch=2, tokens=384),
}


def inputs(config: Config) -> dict[str, Input]:
    return {"tokens": Input((config.batch, config.tokens), "int32", below=config.vocabulary)}


def run(p: Parameters, config: Config, *, tokens: Tensor) -> Tensor:
    """Logits (batch, tokens, vocabulary)."""
    table = p("embedding", config.vocabulary, config.width, fan_in=1)
    positions = p("positions", config.tokens, config.width, fan_in=1)
    x = (table[tokens] + positions).contiguous()
    for i in range(config.layers):
        x = _block(p, config, f"h.{i}", x)
    return layer_norm(p, "ln_f", x).linear(table.transpose() * config.width**-0.5)


def _block(p: Parameters, config: Config, name: str, x: Tensor) -> Tensor:
    batch, tokens, width = config.batch, config.tokens, config.width
    qkv = linear(p, f"{name}.attn.c_attn", layer_norm(p, f"{name}.ln_1", x), 3 * width)
    q, k, v = (
        part.reshape(batch, tokens, config.heads, -1).transpose(1, 2) for part in qkv.contiguous().chunk(3, dim=-1)
    )
    mixed = attention(q, k, v, causal=True).transpose(1, 2).reshape(batch, tokens, width)
    x = (x + linear(p, f"{name}.attn.c_proj", mixed, width)).contiguous()
    between = linear(p, f"{name}.mlp.c_fc", layer_norm(p, f"{name}.ln_2", x), 4 * width).gelu().contiguous()
    return (x + linear(p, f"{name}.mlp.c_proj", between, width)).contiguous()
