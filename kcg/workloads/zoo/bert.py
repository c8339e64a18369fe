"""BERT: a post-norm encoder with learned positions and segments (Devlin et al., 2018), and its three usual heads.

`words` predicts masked words at 15 % of the places, `span` marks the start and end of an answer, `classes` reads the
first token. Sentences end at their own length: what follows is padding, which no token attends to.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import attention, layer_norm, linear

ABOUT = "BERT, an encoder with a head for masked words, answer spans, or classes"


@dataclass(frozen=True)
class Config:
    """Sizes of one forward pass over `tokens` tokens."""

    dtype: str = "float32"
    batch: int = 1
    tokens: int = 512
    layers: int = 2  # of equal shape: more of them are the same kernels again
    width: int = 768
    heads: int = 12
    vocabulary: int = 30522
    head: str = "words"
    classes: int = 2

    @property
    def predictions(self) -> int:
        """Masked words in a sequence."""
        return max(1, self.tokens * 15 // 100)


PRESETS = {
    "mini": Config(batch=2, tokens=24, width=64, heads=4, vocabulary=320),
    "mini-f16": Config(dtype="float16", tokens=48, layers=1, width=128, heads=2, vocabulary=512, head="classes"),
    "mini-odd": Config(batch=3, tokens=35, width=84, heads=7, vocabulary=245, head="span"),
    "base": Config(dtype="float16", batch=4, tokens=384),
    "large": Config(dtype="bfloat16", width=1024, heads=16),
    "large-span": Config(dtype="float16", batch=2, tokens=384, width=1024, heads=16, head="span"),
    "base-classes": Config(batch=32, tokens=128, head="classes", classes=3),
    "multilingual": Config(dtype="bfloat16", batch=2, tokens=256, vocabulary=119547),
    "medium": Config(batch=8, tokens=256, width=512, heads=8),
    "small-classes": Config(dtype="float16", batch=64, tokens=64, width=512, heads=8, head="classes", classes=20),
    "tiny-span": Config(dtype="bfloat16", batch=24, tokens=320, width=128, heads=2, head="span"),
    "narrow": Config(batch=16, tokens=100, width=256, heads=4),
}


def inputs(config: Config) -> dict[str, Input]:
    shape = (config.batch, config.tokens)
    wanted = {
        "tokens": Input(shape, "int32", below=config.vocabulary),
        "segments": Input(shape, "int32", below=2),
        "last": Input((config.batch,), "int32", below=config.tokens),  # the last token of each sentence
    }
    if config.head == "words":
        wanted["masked"] = Input((config.batch, config.predictions), "int32", below=config.tokens)
    return wanted


def run(
    p: Parameters, config: Config, *, tokens: Tensor, segments: Tensor, last: Tensor, masked: Tensor | None = None
) -> Tensor:
    """Logits: (batch, predictions, vocabulary), (batch, tokens, 2), or (batch, classes)."""
    width = config.width
    words = p("word_embedding", config.vocabulary, width, fan_in=1)
    x = words[tokens] + p("position_embedding", config.tokens, width, fan_in=1)
    x = layer_norm(p, "embeddings.norm", (x + p("segment_table", 2, width, fan_in=1)[segments]).contiguous())
    seen = Tensor.arange(config.tokens).unsqueeze(0) <= last.unsqueeze(1)
    padding = seen.where(0.0, float("-inf")).reshape(config.batch, 1, 1, config.tokens)
    for i in range(config.layers):
        x = _block(p, config, f"layer.{i}", x, padding)
    if config.head == "span":
        return linear(p, "span", x, 2)
    if config.head == "classes":
        return linear(p, "classifier", linear(p, "pooler", x[:, 0], width).tanh().contiguous(), config.classes)
    assert masked is not None
    x = x.gather(1, masked.unsqueeze(-1).expand(-1, -1, width)).contiguous()
    x = layer_norm(p, "transform.norm", linear(p, "transform", x, width).gelu().contiguous())
    return x.linear(words.transpose() * width**-0.5) + p("words.bias", config.vocabulary)


def _block(p: Parameters, config: Config, name: str, x: Tensor, padding: Tensor) -> Tensor:
    batch, tokens, width = config.batch, config.tokens, config.width
    q, k, v = (
        linear(p, f"{name}.{part}", x, width).contiguous().reshape(batch, tokens, config.heads, -1).transpose(1, 2)
        for part in ("query", "key", "value")
    )
    mixed = attention(q, k, v, bias=padding).transpose(1, 2).reshape(batch, tokens, width)
    x = layer_norm(p, f"{name}.attention.norm", (x + linear(p, f"{name}.attention.output", mixed, width)).contiguous())
    between = linear(p, f"{name}.intermediate", x, 4 * width).gelu().contiguous()
    return layer_norm(p, f"{name}.output.norm", (x + linear(p, f"{name}.output", between, width)).contiguous())
