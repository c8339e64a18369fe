"""A training step of an LSTM language model by backpropagation through time (Zaremba et al., 2014).

Words are embedded, two layers of LSTM cells are unrolled over a few steps, a softmax over the vocabulary predicts the
next word; the gradients of all parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import linear
from kcg.workloads.training import cross_entropy, kept, step

ABOUT = "a training step of an LSTM language model"


@dataclass(frozen=True)
class Config:
    """Sizes of one step on `batch` sequences of `steps` words."""

    dtype: str = "float32"
    batch: int = 20
    steps: int = 4
    layers: int = 2
    embedded: int = 650
    width: int = 650
    vocabulary: int = 10000


PRESETS = {
    "mini": Config(batch=3, steps=2, layers=1, embedded=24, width=32, vocabulary=64),
    "mini-f16": Config(dtype="float16", batch=4, steps=3, embedded=32, width=48, vocabulary=96),
    "mini-odd": Config(batch=5, steps=3, embedded=35, width=49, vocabulary=91),
    "medium": Config(),
    "large-f16": Config(dtype="float16", batch=64, steps=4, embedded=1500, width=1500),
    "awd-bf16": Config(dtype="bfloat16", batch=80, steps=3, layers=3, embedded=400, width=1152),
    "characters-f16": Config(dtype="float16", batch=128, steps=6, layers=1, embedded=128, width=1024, vocabulary=205),
    "projected": Config(batch=96, steps=4, layers=1, embedded=512, width=2048, vocabulary=8192),
    "small-bf16": Config(dtype="bfloat16", batch=256, steps=5, layers=2, embedded=200, width=300, vocabulary=5000),
}


def inputs(config: Config) -> dict[str, Input]:
    words = Input((config.batch, config.steps), "int32", below=config.vocabulary)
    return {"words": words, "following": words}


def gradients(config: Config) -> list[str]:
    """The parameters whose gradients follow the loss."""
    kinds = ("input.weight", "input.bias", "hidden.weight", "hidden.bias")
    cells = [f"l{layer}.{kind}" for layer in range(config.layers) for kind in kinds]
    return ["embedding", *cells, "out.weight", "out.bias"]


def run(p: Parameters, config: Config, *, words: Tensor, following: Tensor) -> tuple[Tensor, ...]:
    """The loss, then the gradients."""
    embedded = kept(p("embedding", config.vocabulary, config.embedded, fan_in=1)[words])
    outputs = [embedded[:, i].contiguous_backward() for i in range(config.steps)]
    for layer in range(config.layers):
        outputs = _layer(p, config, f"l{layer}", outputs)
    x = kept(outputs[0].stack(*outputs[1:], dim=1))
    return step(p, cross_entropy(linear(p, "out", x, config.vocabulary), following), gradients(config))


def _layer(p: Parameters, config: Config, name: str, xs: list[Tensor]) -> list[Tensor]:
    outputs: list[Tensor] = []
    hidden = cell = Tensor.zeros(config.batch, config.width, dtype=xs[0].dtype)
    for x in xs:
        both = linear(p, f"{name}.input", x, 4 * config.width) + linear(p, f"{name}.hidden", hidden, 4 * config.width)
        admit, forget, update, out = kept(both).chunk(4, dim=1)
        cell = kept(forget.sigmoid() * cell + admit.sigmoid() * update.tanh())
        hidden = kept(out.sigmoid() * cell.tanh())
        outputs.append(hidden)
    return outputs
