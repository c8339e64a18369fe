"""GPT-2: a decoder of pre-norm blocks with learned positions and GELU (Radford et al., 2019).

A prompt gives the logits of all its tokens. Decoding reads one token at a symbolic position, as in `llama`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor, UOp

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import attention, cached, layer_norm, linear, start_position

ABOUT = "GPT-2, the logits of a prompt, or of one token with a cache"


@dataclass(frozen=True)
class Config:
    """Sizes of a forward pass over `tokens` tokens, or of one token after `position` others in a cache of `context`."""

    dtype: str = "float32"
    batch: int = 1
    tokens: int = 512
    position: int = 0  # 0: a prompt
    context: int = 1024
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
    tokens = 1 if config.position else config.tokens
    return {"tokens": Input((config.batch, tokens), "int32", below=config.vocabulary)}


def variables(config: Config) -> dict[str, UOp]:
    """The bound variables of a step, which `run` takes too: `TinyJit` replays those that it was given."""
    return start_position(config.position, config.context)


def run(p: Parameters, config: Config, *, tokens: Tensor, start_pos: UOp | None = None) -> Tensor:
    """Logits (batch, tokens, vocabulary)."""
    start = variables(config).get("start_pos") if start_pos is None else start_pos
    table = p("embedding", config.vocabulary, config.width, fan_in=1)
    positions = p("positions", config.tokens if start is None else config.context, config.width, fan_in=1)
    x = (table[tokens] + (positions if start is None else positions[start : start + 1])).contiguous()
    for i in range(config.layers):
        x = _block(p, config, f"h.{i}", x, start)
    return layer_norm(p, "ln_f", x).linear(table.transpose() * config.width**-0.5)


def _block(p: Parameters, config: Config, name: str, x: Tensor, start: UOp | None) -> Tensor:
    batch, tokens, width = (int(n) for n in x.shape)
    qkv = linear(p, f"{name}.attn.c_attn", layer_norm(p, f"{name}.ln_1", x), 3 * width)
    q, k, v = (
        part.reshape(batch, tokens, config.heads, -1).transpose(1, 2) for part in qkv.contiguous().chunk(3, dim=-1)
    )
    if start is not None:
        k, v = (cached(p, f"{name}.cache_{n}", config.context, new, start) for n, new in (("k", k), ("v", v)))
    mixed = attention(q, k, v, causal=start is None).transpose(1, 2).reshape(batch, tokens, width)
    x = (x + linear(p, f"{name}.attn.c_proj", mixed, width)).contiguous()
    between = linear(p, f"{name}.mlp.c_fc", layer_norm(p, f"{name}.ln_2", x), 4 * width).gelu().contiguous()
    return (x + linear(p, f"{name}.mlp.c_proj", between, width)).contiguous()
