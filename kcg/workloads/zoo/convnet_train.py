"""A training step of a small convolutional net on digits, as in tinygrad's `beautiful_mnist`.

Two pairs of convolutions, each followed by batch normalisation with the batch's statistics and max-pooling, then a
linear classifier; cross-entropy and the gradients of all parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import Window, conv2d, linear
from kcg.workloads.training import batch_norm, cross_entropy, kept, step

ABOUT = "a training step of a small convolutional net with batch normalisation"


@dataclass(frozen=True)
class Config:
    """Sizes of one step on `batch` square pictures."""

    dtype: str = "float32"
    batch: int = 512
    channels: int = 1
    size: int = 28
    widths: tuple[int, int] = (32, 64)
    windows: tuple[int, int] = (5, 3)  # of the first and the second pair of convolutions
    padded: bool = False
    classes: int = 10
    rate: float = 0.0  # 0: the step gives the gradients


PRESETS = {
    "mini": Config(batch=4, size=20, widths=(4, 8), windows=(3, 3)),
    "mini-f16": Config(dtype="float16", batch=8, widths=(6, 8)),
    "mini-odd": Config(batch=5, channels=3, size=26, widths=(7, 13), windows=(3, 3), padded=True, rate=0.1),
    "mnist": Config(),
    "mnist-f16": Config(dtype="float16", batch=320, widths=(48, 96), rate=0.1),
    "cifar-bf16": Config(
        dtype="bfloat16", batch=192, channels=3, size=32, widths=(64, 128), windows=(3, 3), padded=True
    ),
    "cifar-f16": Config(dtype="float16", batch=44, channels=3, size=32, widths=(96, 192), padded=True, classes=100),
    "stl": Config(batch=28, channels=3, size=96, widths=(32, 80), windows=(5, 5), padded=True, rate=0.05),
    "emnist-bf16": Config(dtype="bfloat16", batch=448, widths=(40, 72), classes=62, rate=0.1),
    "tiny-imagenet-f16": Config(
        dtype="float16", batch=18, channels=3, size=64, widths=(56, 112), windows=(7, 3), padded=True, classes=200
    ),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    return {
        "pictures": Input((config.batch, config.channels, config.size, config.size), config.dtype),
        "labels": Input((config.batch,), "int32", below=config.classes),
    }


def gradients(config: Config) -> list[str]:
    """The parameters whose gradients follow the loss."""
    layers = [f"{kind}{i}" for i in range(2) for kind in ("a", "b", "norm")]
    return [f"{layer}.{kind}" for layer in [*layers, "out"] for kind in ("weight", "bias")]


def run(p: Parameters, config: Config, *, pictures: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """The loss, then the gradients (or the new parameters)."""
    x = pictures
    for i, (width, window) in enumerate(zip(config.widths, config.windows, strict=True)):
        padding = window // 2 if config.padded else 0
        x = kept(conv2d(p, f"a{i}", x, width, Window(window, padding=padding)).relu())
        x = kept(conv2d(p, f"b{i}", x, width, Window(window, padding=padding)).relu())
        x = kept(kept(batch_norm(p, f"norm{i}", x)).max_pool2d())
    loss = cross_entropy(linear(p, "out", x.flatten(1), config.classes), labels)
    return step(p, loss, gradients(config), rate=config.rate)
