"""LSTM: stacked cells unrolled over a few steps (Hochreiter and Schmidhuber, 1997), all gates in one matmul.

Sizes are those of well-known language models and encoders: Zaremba et al. (2014), AWD-LSTM (Merity et al., 2017),
GNMT (Wu et al., 2016), RNN-T (Graves, 2012), and with a projection of the output (Sak et al., 2014) those of
Jozefowicz et al. (2016).
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import linear

ABOUT = "a stacked LSTM over a few steps of a batch of texts"


@dataclass(frozen=True)
class Config:
    """Sizes of `steps` steps of a batch."""

    dtype: str = "float32"
    batch: int = 20
    steps: int = 4
    embedding: int = 650
    hidden: tuple[int, ...] = (650, 650)  # of each layer
    projection: int = 0  # width of the output of a layer; 0: that of its cell
    vocabulary: int = 10000


PRESETS = {
    "mini": Config(batch=4, steps=3, embedding=32, hidden=(48, 48), vocabulary=200),
    "mini-f16": Config(
        dtype="float16", batch=8, steps=2, embedding=48, hidden=(96, 64), projection=32, vocabulary=256
    ),
    "mini-odd": Config(batch=7, steps=5, embedding=35, hidden=(49, 21), vocabulary=195),
    "zaremba-large": Config(dtype="float16", steps=5, embedding=1500, hidden=(1500, 1500)),
    "zaremba-medium": Config(dtype="bfloat16", batch=32),
    "awd": Config(batch=80, embedding=400, hidden=(1150, 1150, 400), vocabulary=33278),
    "gnmt": Config(dtype="float16", batch=128, steps=6, embedding=1024, hidden=(1024, 1024), vocabulary=32000),
    "billion-words": Config(
        dtype="bfloat16", batch=128, steps=3, embedding=1024, hidden=(8192, 8192), projection=1024, vocabulary=32000
    ),
    "elmo": Config(batch=64, embedding=512, hidden=(4096, 4096), projection=512, vocabulary=16000),
    "rnnt-encoder": Config(dtype="bfloat16", batch=256, embedding=240, hidden=(1024, 1024), vocabulary=1024),
    "rnnt-predictor": Config(dtype="float16", batch=64, steps=8, embedding=320, hidden=(320, 320), vocabulary=1024),
    "serving-b1": Config(batch=1, steps=6, embedding=1024, hidden=(2048, 1024), vocabulary=32000),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    wanted = {"tokens": Input((config.batch, config.steps), "int32", below=config.vocabulary)}
    for i, hidden in enumerate(config.hidden):
        wanted[f"cell_{i}"] = Input((config.batch, hidden), config.dtype)
        wanted[f"output_{i}"] = Input((config.batch, config.projection or hidden), config.dtype)
    return wanted


def run(p: Parameters, config: Config, *, tokens: Tensor, **state: Tensor) -> tuple[Tensor, ...]:
    """Logits (batch, steps, vocabulary), then the cell of every layer."""
    table = p("embedding", config.vocabulary, config.embedding, fan_in=1)
    outputs = []
    for step in range(config.steps):
        x = table[tokens[:, step]].contiguous()
        for i in range(len(config.hidden)):
            state[f"cell_{i}"], x = _step(p, config, i, x, state[f"cell_{i}"], state[f"output_{i}"])
            state[f"output_{i}"] = x
        outputs.append(x)
    logits = linear(p, "decoder", Tensor.stack(*outputs, dim=1).contiguous(), config.vocabulary)
    return logits, *(state[f"cell_{i}"] for i in range(len(config.hidden)))


def _step(p: Parameters, config: Config, layer: int, x: Tensor, cell: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """The next cell and output of one layer."""
    joined = x.cat(output, dim=1).contiguous()
    gates = linear(p, f"layer.{layer}.gates", joined, 4 * config.hidden[layer]).contiguous()
    write, forget, new, show = (gate.cast(dtypes.float32) for gate in gates.chunk(4, dim=1))
    cell = (forget.sigmoid() * cell + write.sigmoid() * new.tanh()).cast(x.dtype).contiguous()
    output = (show.sigmoid() * cell.cast(dtypes.float32).tanh()).cast(x.dtype).contiguous()
    if config.projection:
        output = linear(p, f"layer.{layer}.projection", output, config.projection, bias=False).contiguous()
    return cell, output
