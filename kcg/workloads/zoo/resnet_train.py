"""A training step of a residual net of bottlenecks (He et al., 2016; stride in the 3x3 as in its later versions).

The stem, bottlenecks with projected shortcuts and without, batch normalisation with the batch's own statistics,
cross-entropy; the gradients of one parameter of each kind.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import Window, conv2d, linear
from kcg.workloads.training import batch_norm, cross_entropy, kept, step

ABOUT = "a training step of a ResNet of bottlenecks"


@dataclass(frozen=True)
class Config:
    """Sizes of one step on `batch` square pictures; `strides` has one entry a bottleneck."""

    dtype: str = "float32"
    batch: int = 16
    size: int = 128
    stem: int = 64
    widths: tuple[int, ...] = (64, 64, 128, 256)  # inside the bottlenecks; outside it is four times that
    strides: tuple[int, ...] = (1, 1, 2, 2)
    classes: int = 1000


PRESETS = {
    "mini": Config(batch=2, size=32, stem=8, widths=(4,), strides=(2,), classes=10),
    "mini-f16": Config(dtype="float16", batch=4, size=48, stem=12, widths=(8, 8, 12), strides=(1, 1, 2), classes=16),
    "mini-odd": Config(batch=3, size=56, stem=9, widths=(5, 7, 13), strides=(1, 2, 2), classes=35),
    "resnet50": Config(),
    "resnet50-f16": Config(dtype="float16", batch=32, size=224, widths=(64, 128, 256, 512), strides=(1, 2, 2, 2)),
    "resnet50-bf16": Config(dtype="bfloat16", batch=64, size=160, widths=(64, 128, 256), strides=(1, 2, 2)),
    "wide-f16": Config(dtype="float16", batch=24, size=96, widths=(128, 256, 512), strides=(1, 2, 2), classes=200),
    "slim-bf16": Config(dtype="bfloat16", batch=48, size=192, stem=32, widths=(32, 80), strides=(1, 2), classes=365),
}


def inputs(config: Config) -> dict[str, Input]:
    return {
        "pictures": Input((config.batch, 3, config.size, config.size), config.dtype),
        "labels": Input((config.batch,), "int32", below=config.classes),
    }


def gradients(config: Config) -> list[str]:
    """The parameters whose gradients follow the loss."""
    blocks = [f"b{i}" for i in range(len(config.widths))]
    convolutions = [f"{block}.{kind}.weight" for block in blocks for kind in ("reduce", "conv", "grow")]
    shortcuts = [
        f"{block}.short.weight" for block, projected in zip(blocks, _projected(config), strict=True) if projected
    ]
    norms = ["stem_norm.weight", "b0.reduce_norm.bias", f"{blocks[-1]}.grow_norm.weight"]
    return ["stem.weight", *convolutions, *shortcuts, *norms, "out.weight", "out.bias"]


def run(p: Parameters, config: Config, *, pictures: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """The loss, then the gradients."""
    x = kept(_conv(p, "stem", pictures, config.stem, 7, stride=2).relu())
    x = kept(x.max_pool2d(kernel_size=(3, 3), stride=2, padding=1))
    for i, (width, stride, projected) in enumerate(zip(config.widths, config.strides, _projected(config), strict=True)):
        x = _block(p, f"b{i}", x, width, stride=stride, projected=projected)
    pooled = kept(x.mean((2, 3)))
    return step(p, cross_entropy(linear(p, "out", pooled, config.classes), labels), gradients(config))


def _projected(config: Config) -> list[bool]:
    outer = [config.stem, *(4 * width for width in config.widths)]
    grown = (before != after for before, after in itertools.pairwise(outer))
    return [stride != 1 or other for stride, other in zip(config.strides, grown, strict=True)]


def _conv(p: Parameters, name: str, x: Tensor, width: int, window: int, *, stride: int = 1) -> Tensor:
    return batch_norm(p, f"{name}_norm", kept(conv2d(p, name, x, width, Window(window, stride=stride), bias=False)))


def _block(p: Parameters, name: str, x: Tensor, width: int, *, stride: int, projected: bool) -> Tensor:
    inner = kept(_conv(p, f"{name}.reduce", x, width, 1).relu())
    inner = kept(_conv(p, f"{name}.conv", inner, width, 3, stride=stride).relu())
    short = _conv(p, f"{name}.short", x, 4 * width, 1, stride=stride) if projected else x
    return kept((_conv(p, f"{name}.grow", inner, 4 * width, 1) + short).relu())
