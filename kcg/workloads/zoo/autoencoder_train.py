"""A training step of a convolutional variational autoencoder (Kingma and Welling, 2014).

Strided convolutions down to a mean and a log-variance, a latent made of them and a given noise, transposed convolutions
back to the picture; squared error plus Kullback-Leibler divergence, and the gradients of all parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import Window, conv2d, linear
from kcg.workloads.training import kept, step

ABOUT = "a training step of a convolutional variational autoencoder"


@dataclass(frozen=True)
class Config:
    """Sizes of one step on `batch` square pictures; each width belongs to a halving of the size."""

    dtype: str = "float32"
    batch: int = 128
    channels: int = 3
    size: int = 64
    widths: tuple[int, ...] = (32, 64, 128)
    window: int = 4
    latent: int = 128
    beta: float = 1.0
    rate: float = 0.0  # 0: the step gives the gradients


PRESETS = {
    "mini": Config(batch=2, channels=1, size=8, widths=(6, 8), latent=5),
    "mini-f16": Config(dtype="float16", batch=4, channels=1, size=16, widths=(8, 16), latent=12),
    "mini-odd": Config(batch=3, size=28, widths=(5, 7), latent=13, beta=0.5, rate=0.01),
    "celeba": Config(),
    "celeba-bf16": Config(dtype="bfloat16", batch=64, widths=(32, 64, 128, 256), latent=100),
    "mnist-f16": Config(dtype="float16", batch=512, channels=1, size=28, widths=(32, 64), latent=20, rate=0.001),
    "cifar-f16": Config(dtype="float16", batch=256, size=32, widths=(64, 128, 256), latent=256, beta=4.0),
    "world-bf16": Config(dtype="bfloat16", batch=100, widths=(48, 96, 192), latent=32),
    "large-f16": Config(dtype="float16", batch=24, size=128, widths=(40, 80, 160, 320), latent=512, rate=0.001),
    "svhn": Config(batch=200, size=32, widths=(40, 112), latent=64, beta=2.0, rate=0.001),
}


def inputs(config: Config) -> dict[str, Input]:
    return {
        "pictures": Input((config.batch, config.channels, config.size, config.size), config.dtype),
        "noise": Input((config.batch, config.latent), config.dtype),
    }


def gradients(config: Config) -> list[str]:
    """The parameters whose gradients follow the loss."""
    numbers = range(len(config.widths))
    layers = [*(f"down{i}" for i in numbers), "latent", "first", *(f"up{i}" for i in reversed(numbers))]
    return [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]


def run(p: Parameters, config: Config, *, pictures: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    """The loss, then the gradients (or the new parameters)."""
    x = pictures
    for i, width in enumerate(config.widths):
        x = kept(conv2d(p, f"down{i}", x, width, Window(config.window, stride=2, padding=1)).relu())
    mean, log_variance = kept(linear(p, "latent", x.flatten(1), 2 * config.latent)).chunk(2, dim=1)
    latent = kept(mean + (log_variance * 0.5).exp() * noise)
    shape = tuple(int(n) for n in x.shape)
    x = kept(linear(p, "first", latent, shape[1] * shape[2] * shape[3]).relu()).reshape(shape)
    for i in reversed(range(len(config.widths))):
        x = kept(_up(p, f"up{i}", x, (config.channels, *config.widths)[i], config.window))
        x = kept(x.relu()) if i else x
    wrong = (x.cast(dtypes.float32) - pictures.cast(dtypes.float32)).square().sum() / config.batch
    mean, log_variance = mean.cast(dtypes.float32), log_variance.cast(dtypes.float32)
    divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum() * (0.5 / config.batch)
    loss = wrong + divergence * config.beta  # a sum over pixels: scaled up, its gradients would overflow float16
    return step(p, loss, gradients(config), rate=config.rate, loss_scale=1.0)


def _up(p: Parameters, name: str, x: Tensor, outputs: int, window: int) -> Tensor:
    inputs = int(x.shape[1])
    weight = p(f"{name}.weight", inputs, outputs, window, window, fan_in=inputs * window * window // 4)
    return x.conv_transpose2d(weight, p(f"{name}.bias", outputs), stride=2, padding=1)
