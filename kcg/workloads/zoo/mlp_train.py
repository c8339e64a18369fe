"""A training step of a multi-layer perceptron on digits or small pictures (Cireşan et al., 2010).

Forward, cross-entropy, the gradients of all parameters; with a `rate`, the parameters after a step of gradient descent.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import linear
from kcg.workloads.training import cross_entropy, kept, step

ABOUT = "a training step of a multi-layer perceptron"


@dataclass(frozen=True)
class Config:
    """Sizes of one step on `batch` pictures of `features` values."""

    dtype: str = "float32"
    batch: int = 64
    features: int = 784
    hidden: tuple[int, ...] = (512, 512)
    classes: int = 10
    rate: float = 0.0  # 0: the step gives the gradients


PRESETS = {
    "mini": Config(batch=32, features=196, hidden=(64, 48)),
    "mini-f16": Config(dtype="float16", batch=48, hidden=(128, 96, 64)),
    "mini-odd": Config(batch=39, features=245, hidden=(147, 105, 63), classes=26, rate=0.1),
    "mnist-f16": Config(dtype="float16", batch=512, hidden=(800, 800), rate=0.1),
    "ciresan": Config(batch=256, hidden=(2500, 2000, 1500, 1000, 500)),
    "ciresan-bf16": Config(dtype="bfloat16", batch=1024, hidden=(2500, 2000, 1500, 1000, 500), rate=0.01),
    "dropout-f16": Config(dtype="float16", batch=1000, hidden=(1200, 1200, 1024), classes=47),
    "cifar": Config(batch=640, features=3072, hidden=(4096, 2048, 1024), rate=0.05),
    "cifar-bf16": Config(dtype="bfloat16", batch=2048, features=3072, hidden=(3000, 2200, 768), classes=100),
    "timit-f16": Config(dtype="float16", batch=256, features=440, hidden=(2048, 1536, 1280), classes=1955),
    "svhn-bf16": Config(dtype="bfloat16", batch=96, features=1024, hidden=(640, 320, 160)),
}


def inputs(config: Config) -> dict[str, Input]:
    return {
        "pictures": Input((config.batch, config.features), config.dtype),
        "labels": Input((config.batch,), "int32", below=config.classes),
    }


def gradients(config: Config) -> list[str]:
    """The parameters whose gradients follow the loss."""
    return [f"l{i}.{kind}" for i in range(len(config.hidden) + 1) for kind in ("weight", "bias")]


def run(p: Parameters, config: Config, *, pictures: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """The loss, then the gradients (or the new parameters)."""
    x = pictures
    for i, width in enumerate(config.hidden):
        x = kept(linear(p, f"l{i}", x, width).relu())
    loss = cross_entropy(linear(p, f"l{len(config.hidden)}", x, config.classes), labels)
    return step(p, loss, gradients(config), rate=config.rate)
