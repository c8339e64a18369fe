"""T5's encoder, version 1.1: relative position buckets, RMSNorm, gated GELU, scores that are not scaled (Raffel et al.,
2020). Sizes are those of Flan-T5, mT5 and ByT5; the largest is the text encoder of many image models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import linear, rms_norm

ABOUT = "T5, the encoder's hidden states"

BUCKETS, FARTHEST = 32, 128  # of relative positions: half of them for each direction, the last for all that is farther


@dataclass(frozen=True)
class Config:
    """Sizes of one forward pass over `tokens` tokens."""

    dtype: str = "float32"
    batch: int = 1
    tokens: int = 512
    layers: int = 2  # of equal shape: more of them are the same kernels again
    width: int = 768
    heads: int = 12
    head_width: int = 64
    hidden: int = 2048
    vocabulary: int = 32128


PRESETS = {
    "mini": Config(tokens=24, width=64, heads=4, head_width=16, hidden=160, vocabulary=320),
    "mini-f16": Config(
        dtype="float16", batch=2, tokens=40, layers=1, width=96, heads=3, head_width=32, hidden=256, vocabulary=384
    ),
    "mini-odd": Config(batch=3, tokens=35, width=98, heads=5, head_width=21, hidden=195, vocabulary=259),
    "base": Config(dtype="float16", batch=4),
    "small": Config(dtype="bfloat16", batch=16, tokens=256, width=512, heads=6, hidden=1024),
    "large": Config(batch=2, tokens=384, width=1024, heads=16, hidden=2816),
    "xl": Config(dtype="bfloat16", tokens=256, width=2048, heads=32, hidden=5120),
    "xxl": Config(dtype="float16", tokens=256, width=4096, heads=64, hidden=10240),
    "xxl-short": Config(dtype="bfloat16", batch=2, tokens=77, width=4096, heads=64, hidden=10240),
    "mt5-small": Config(batch=8, tokens=128, width=512, heads=6, hidden=1024, vocabulary=250112),
    "byt5-small": Config(dtype="float16", tokens=1024, width=1472, heads=6, hidden=3584, vocabulary=384),
    "byt5-base": Config(batch=2, tokens=300, width=1536, heads=12, hidden=3968, vocabulary=384),
}


def inputs(config: Config) -> dict[str, Input]:
    return {"tokens": Input((config.batch, config.tokens), "int32", below=config.vocabulary)}


def run(p: Parameters, config: Config, *, tokens: Tensor) -> Tensor:
    """Hidden states (batch, tokens, width)."""
    x = p("embedding", config.vocabulary, config.width, fan_in=1)[tokens].contiguous()
    table = p("relative_attention_bias", BUCKETS, config.heads, fan_in=1)
    bias = table[_buckets(config.tokens)].permute(2, 0, 1).contiguous()
    for i in range(config.layers):
        x = _block(p, config, f"block.{i}", x, bias)
    return rms_norm(p, "final_layer_norm", x)


def _buckets(tokens: int) -> Tensor:
    """The bucket of every key as seen from every query: exact for small distances, logarithmic for larger ones."""
    offset = Tensor.arange(tokens).unsqueeze(0) - Tensor.arange(tokens).unsqueeze(1)
    distance, exact = offset.abs(), BUCKETS // 4
    bucket = distance.minimum(exact)
    for i in range(1, exact):
        bucket = bucket + (distance >= math.ceil(exact * (FARTHEST / exact) ** (i / exact)))
    return bucket + (offset > 0) * (BUCKETS // 2)


def _block(p: Parameters, config: Config, name: str, x: Tensor, bias: Tensor) -> Tensor:
    batch, tokens, inner = config.batch, config.tokens, config.heads * config.head_width
    normed = rms_norm(p, f"{name}.attention.norm", x)
    p(f"{name}.attention.q.weight", inner, config.width, fan_in=config.width * config.head_width)  # in place of a scale
    q, k, v = (
        linear(p, f"{name}.attention.{letter}", normed, inner, bias=False)
        .contiguous()
        .reshape(batch, tokens, config.heads, config.head_width)
        .transpose(1, 2)
        for letter in "qkv"
    )
    scores = ((q @ k.transpose(-2, -1)).cast(dtypes.float32) + bias).cast(x.dtype).contiguous()
    weights = scores.softmax(-1, dtype=dtypes.float32).cast(x.dtype).contiguous()
    mixed = (weights @ v).contiguous().transpose(1, 2).reshape(batch, tokens, inner)
    x = (x + linear(p, f"{name}.attention.o", mixed, config.width, bias=False)).contiguous()
    normed = rms_norm(p, f"{name}.feed_forward.norm", x)
    gate = linear(p, f"{name}.feed_forward.wi_0", normed, config.hidden, bias=False).gelu().contiguous()
    between = (gate * linear(p, f"{name}.feed_forward.wi_1", normed, config.hidden, bias=False)).contiguous()
    return (x + linear(p, f"{name}.feed_forward.wo", between, config.width, bias=False)).contiguous()
