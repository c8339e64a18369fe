"""Softmax over the last axis, forward and backward: of attention scores, of routers, of vocabularies.

- `plain`: softmax of attention scores or of a router over its experts;
- `log`: log-softmax, as in beam search;
- `causal`: of (…, queries, keys) scores, where a query sees only keys before it (Vaswani et al., 2017);
- `masked`: with a boolean mask (batch, keys) of what is seen, as with padded sentences (Devlin et al., 2018);
- `warm`: of logits divided by a temperature after capping them with tanh (Gemma 2, 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters

ABOUT = "softmax, log-softmax, masked and causal, forward and backward"

TEMPERATURE, CAP = 0.7, 30.0

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Config:
    """Shapes of one preset: each is a kind of softmax and the shape of its scores."""

    dtype: str
    cases: tuple[tuple[str, Shape], ...]


PRESETS = {
    "mini": Config(
        "float32",
        (
            ("log", (6, 50)), ("causal", (2, 10, 16)), ("warm", (5, 64)),
        ),
    ),
    "mini-f16": Config("float16", (("plain", (4, 32, 64)), ("masked", (2, 4, 48, 48)))),
    "mini-odd": Config(
        "float32", (("plain", (3, 7, 49, 49)), ("masked", (5, 3, 13, 91)), ("log", (21, 637)), ("warm", (7, 1001)))
    ),
    "gpt2": Config(  # and its vocabulary
        "float16", (("causal", (4, 12, 1024, 1024)), ("log", (1024, 50257)))
    ),
    "llama-bf16": Config(
        "bfloat16", (("causal", (1, 25, 1777, 1777)), ("plain", (16, 32, 1, 4000)))
    ),
    "bert": Config(
        "float32", (("masked", (16, 12, 512, 512)), ("log", (614, 30522)))
    ),
    "vision": Config(  # ViT-B, Swin's windows, the classes of ImageNet
        "float16", (("plain", (64, 12, 197, 197)), ("plain", (2048, 4, 49, 49)), ("log", (2048, 1000)))
    ),
    "experts-f32": Config(  # routers of Mixtral and OLMoE, Flux
        "float32", (("plain", (16384, 8)), ("plain", (8192, 64)), ("plain", (1, 24, 1536, 1536))),
    ),
    "gemma-bf16": Config(  # Gemma 2 caps scores and logits
        "bfloat16", (("warm", (2, 16, 1024, 1024)), ("warm", (128, 256000)))
    ),
    "speech": Config(  # Whisper's encoder, and attention to padded sounds
        "float16", (("plain", (2, 20, 1500, 1500)), ("masked", (8, 8, 96, 1500)))
    ),
    "decoding-f32": Config(
        "float32", (("masked", (64, 32, 1, 1024)), ("warm", (16, 151936)))
    ),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    found = {}
    for i, (kind, shape) in enumerate(config.cases):
        found[f"scores{i}"] = found[f"gradient{i}"] = Input(shape, config.dtype)
        if kind == "masked":
            found[f"seen{i}"] = Input((shape[0], shape[-1]), "uint8", below=2)
    return found


def run(p: Parameters, config: Config, **inputs: Tensor) -> tuple[Tensor, ...]:
    """For each case the softmax, then the gradient with respect to the scores."""
    outputs = []
    for i, (kind, shape) in enumerate(config.cases):
        given, upstream = inputs[f"scores{i}"], inputs[f"gradient{i}"].cast(dtypes.float32)
        scores = given.cast(dtypes.float32)
        if kind == "causal":
            rows, columns = shape[-2:]
            seen = Tensor.ones(rows, columns, dtype=dtypes.bool).tril(columns - rows)
            scores = seen.where(scores, float("-inf"))
        elif kind == "masked":
            seen = inputs[f"seen{i}"].reshape(shape[0], *([1] * (len(shape) - 2)), shape[-1])
            scores = seen.bool().where(scores, -1e9)
        elif kind == "warm":
            scores = (scores / CAP).tanh() * (CAP / TEMPERATURE)
        out = (scores.log_softmax() if kind == "log" else scores.softmax()).cast(given.dtype).contiguous()
        # the backward pass reads what the forward pass has stored
        stored = out.cast(dtypes.float32)
        if kind == "log":
            back = upstream - stored.exp() * upstream.sum(-1, keepdim=True).contiguous()
        else:
            back = stored * (upstream - (upstream * stored).sum(-1, keepdim=True).contiguous())
        if kind == "warm":
            back = back * (1 - (given.cast(dtypes.float32) / CAP).tanh().square()) / TEMPERATURE
        outputs += [out, back.cast(given.dtype)]
    return tuple(outputs)
