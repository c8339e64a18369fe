"""Optimiser steps over the parameters of published models, in place as in `tinygrad.nn.optim`.

SGD with momentum and with Nesterov's (Sutskever et al., 2013), Adam (Kingma and Ba, 2014), AdamW (Loshchilov and
Hutter, 2017) with and without float32 master weights, LAMB (You et al., 2019), Muon (Jordan et al., 2024), clipping by
the global norm (Pascanu et al., 2013), and an exponential moving average of the weights. All but parameters and
gradients is float32. The learning rate and the powers of the decays are in memory, so that a step can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters

ABOUT = "optimiser steps, gradient clipping and weight averaging"
IN_PLACE = True

MOMENTUM, BETA1, BETA2, EPSILON, DECAY, MAX_NORM, AVERAGING = 0.9, 0.9, 0.95, 1e-8, 0.1, 1.0, 0.999
NEWTON_SCHULZ, ITERATIONS = (3.4445, -4.775, 2.0315), 2  # users take 5 iterations; more of them are the same kernels

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Config:
    """What one preset steps: kinds of steps, each over parameters of these shapes."""

    dtype: str
    steps: tuple[tuple[str, tuple[Shape, ...]], ...]


LENET: tuple[Shape, ...] = ((6, 1, 5, 5), (16, 6, 5, 5), (120, 400), (84,))
SMALL: tuple[Shape, ...] = ((384, 64), (192, 64))
ODD: tuple[Shape, ...] = ((91, 49), (35, 13, 3, 3), (273,))
RESNET: tuple[Shape, ...] = (
    (64, 3, 7, 7),
    (64,),
    (64, 64, 3, 3),
    (256, 64, 1, 1),
    (128, 128, 3, 3),
    (512, 256, 1, 1),
    (256, 256, 3, 3),
    (512, 512, 3, 3),
    (2048, 512, 1, 1),
    (1000, 2048),
)
GPT2: tuple[Shape, ...] = ((50257, 768), (1024, 768), (2304, 768), (768, 768), (3072, 768))
LLAMA: tuple[Shape, ...] = ((32000, 2048), (2048, 2048), (256, 2048), (5632, 2048))
BERT: tuple[Shape, ...] = ((30522, 1024), (512, 1024), (1024, 1024), (4096, 1024))
VIT: tuple[Shape, ...] = ((1024, 3, 14, 14), (257, 1024), (3072, 1024), (4096, 1024), (1000, 1024))
UNET: tuple[Shape, ...] = (
    (320, 4, 3, 3),
    (320, 320, 3, 3),
    (640, 320, 3, 3),
    (1280, 640, 3, 3),
    (1280, 2560, 3, 3),
    (2560, 320),
    (1280, 768),
)
NANO: tuple[Shape, ...] = ((768, 768), (3072, 768), (768, 3072))
WIDE: tuple[Shape, ...] = ((2048, 2048), (512, 2048), (5504, 2048))

PRESETS = {
    "mini": Config(
        "float32",
        (("sgd", LENET[:1]), ("adam", LENET[3:]), ("lamb", LENET[1:2]), ("muon", ((24, 8),)), ("clip", LENET[2:]),
         ("average", LENET[3:])),
    ),
    "mini-f16": Config(
        "float16", (("master", SMALL[1:]), ("adamw", SMALL[:1]), ("nesterov", SMALL[:1]))
    ),
    "mini-odd": Config(
        "float32", (("adam", ODD), ("nesterov", ODD[:2]), ("lamb", ODD[1:2]), ("muon", ODD[:1]), ("clip", ODD[1:]))
    ),
    "resnet": Config("float32", (("sgd", RESNET[2:]), ("average", RESNET[6:]))),
    "resnet-f16": Config("float16", (("nesterov", RESNET[5:]), ("clip", RESNET[6:8]))),
    "gpt2": Config("float32", (("adamw", GPT2), ("clip", GPT2[2:4]))),
    "llama-bf16": Config("bfloat16", (("master", LLAMA), ("clip", LLAMA[2:]))),
    "bert": Config("float32", (("lamb", (*BERT[:1], *BERT[3:])),)),
    "bert-f16": Config("float16", (("lamb", BERT[2:3]), ("adam", BERT[2:]))),
    "vit-bf16": Config("bfloat16", (("adamw", VIT[2:]), ("average", VIT[1:4]))),
    "unet": Config("float32", (("adam", UNET[:4]), ("average", UNET[4:]))),
    "nano-bf16": Config("bfloat16", (("muon", NANO), ("average", NANO[:1]))),
    "wide-f16": Config("float16", (("muon", WIDE),)),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    return {
        f"gradient{i}_{j}": Input(shape, config.dtype)
        for i, (kind, shapes) in enumerate(config.steps)
        if kind not in ("clip", "average")
        for j, shape in enumerate(shapes)
    }


def run(p: Parameters, config: Config, **inputs: Tensor) -> tuple[Tensor, ...]:
    """Everything that the steps change: for each parameter what `_step` says, for clipping the gradients."""
    changed: list[Tensor] = []
    if any(kind in ("adam", "adamw", "master", "lamb") for kind, _ in config.steps):
        for beta, power in zip((BETA1, BETA2), _powers(p), strict=True):
            changed.append(power.assign(power * beta))
    for i, (kind, shapes) in enumerate(config.steps):
        if kind == "clip":
            changed += _clip([p(f"{i}.{j}.gradient", *shape) for j, shape in enumerate(shapes)])
            continue
        for j, shape in enumerate(shapes):
            gradient = inputs[f"gradient{i}_{j}"].cast(dtypes.float32) if kind != "average" else None
            changed += _step(p, f"{i}.{j}", kind, shape, gradient)
    return tuple(changed)


def _powers(p: Parameters) -> tuple[Tensor, Tensor]:
    """The decays of Adam to the power of the number of steps so far."""
    first, second = (p(f"beta{i}_power", 1, around=0.5, fan_in=10000, dtype="float32") for i in (1, 2))
    return first, second


def _step(p: Parameters, name: str, kind: str, shape: Shape, gradient: Tensor | None) -> list[Tensor]:
    """The moments, then the master weights if any, then the weights, which are float32 only for `average`."""
    weights = p(f"{name}.weights", *shape)
    wide = weights.cast(dtypes.float32)
    if gradient is None:
        average = p(f"{name}.average", *shape, dtype="float32")
        return [average.assign(AVERAGING * average + (1 - AVERAGING) * wide)]
    rate = p("rate", 1, around=0.01, fan_in=10**8, dtype="float32")
    first = p(f"{name}.first", *shape, dtype="float32")
    if kind in ("sgd", "nesterov", "muon"):
        if kind != "muon":  # its decay does not pass through the momentum
            gradient = gradient + DECAY * wide
        first.assign(MOMENTUM * first + gradient)
        update = first if kind == "sgd" else gradient + MOMENTUM * first
        if kind == "muon":
            update = _orthogonal(update.cast(weights.dtype)).cast(dtypes.float32) + DECAY * wide
        return [first, weights.assign((wide - rate * update).cast(weights.dtype))]
    second = p(f"{name}.second", *shape, around=1.0, fan_in=100, dtype="float32")
    first.assign(BETA1 * first + (1 - BETA1) * gradient)
    second.assign(BETA2 * second + (1 - BETA2) * gradient.square())
    power1, power2 = _powers(p)
    update = first / (1 - power1) / ((second / (1 - power2)).sqrt() + EPSILON)
    if kind == "master":
        master = p(f"{name}.master", *shape, dtype="float32")
        master.assign(master - rate * (update + DECAY * master))
        return [first, second, master, weights.assign(master.cast(weights.dtype))]
    if kind == "adamw":
        update = update + DECAY * wide
    elif kind == "lamb":
        update = (update + DECAY * wide).contiguous()
        update = update * (wide.square().sum().sqrt() / update.square().sum().sqrt()).contiguous()
    return [first, second, weights.assign((wide - rate * update).cast(weights.dtype))]


def _clip(gradients: list[Tensor]) -> list[Tensor]:
    squares = [g.cast(dtypes.float32).square().sum().contiguous() for g in gradients]
    norm = Tensor.stack(*squares).sum().sqrt()
    factor = (MAX_NORM / (norm + 1e-6)).minimum(1.0).contiguous()
    return [g.assign((g.cast(dtypes.float32) * factor).cast(g.dtype)) for g in gradients]


def _orthogonal(matrix: Tensor) -> Tensor:
    """The nearest orthogonal matrix, roughly, by Newton-Schulz iteration."""
    a, b, c = NEWTON_SCHULZ
    turned = int(matrix.shape[0]) > int(matrix.shape[1])
    x = (matrix.transpose() if turned else matrix).contiguous()
    norm = x.cast(dtypes.float32).square().sum().sqrt().contiguous()
    x = (x / (norm + 1e-7)).cast(matrix.dtype).contiguous()
    for _ in range(ITERATIONS):
        gram = (x @ x.transpose()).contiguous()
        x = (a * x + (b * gram + c * (gram @ gram)).contiguous() @ x).contiguous()
    return x.transpose() if turned else x
