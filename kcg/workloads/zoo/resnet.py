"""ResNet-50 and its wider kin: stages of bottleneck blocks (He et al., 2015).

Wide ResNet-50-2 (Zagoruyko and Komodakis, 2016) doubles the width inside the blocks; ResNeXt-50 32x4d (Xie et al.,
2016) groups their 3x3 convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import conv_norm, linear

ABOUT = "ResNet-50, the logits of a batch of pictures"


@dataclass(frozen=True)
class Config:
    """Sizes of one forward pass; the first block of a stage changes the shape, the others keep it."""

    dtype: str = "float32"
    batch: int = 16
    height: int = 224
    width: int = 224
    stem: int = 64  # channels
    inner: int = 64  # channels inside the blocks of the first stage
    outer: int = 256  # channels between the blocks of the first stage
    groups: int = 1
    stages: int = 4
    blocks: tuple[int, ...] = (2, 2, 2, 2)  # of each stage: more of them are the same kernels again
    classes: int = 1000


PRESETS = {
    "mini": Config(batch=1, height=32, width=32, stem=8, inner=8, outer=32, stages=2, classes=10),
    "mini-f16": Config("float16", batch=2, height=32, width=48, stem=16, inner=16, outer=64, stages=1, classes=100),
    "mini-odd": Config(batch=3, height=56, width=49, stem=14, inner=14, outer=49, groups=7, classes=21),
    "resnet50-f16": Config("float16", batch=32),
    "resnet50-f32-b1": Config(batch=1),
    "resnet50-bf16-288": Config("bfloat16", batch=24, height=288, width=288),
    "resnet50-f32-160": Config(batch=48, height=160, width=160),
    "wide50-f16": Config("float16", batch=8, inner=128),
    "wide50-bf16-176": Config("bfloat16", batch=12, height=176, width=176, inner=128),
    "resnext50-f32": Config(batch=8, inner=128, groups=32),
    "resnext50-f16-b4": Config("float16", batch=4, height=256, width=192, inner=128, groups=32),
    "resnext101-bf16": Config("bfloat16", batch=6, inner=256, groups=32),
}


def inputs(config: Config) -> dict[str, Input]:
    return {"x": Input((config.batch, 3, config.height, config.width), config.dtype)}


def run(p: Parameters, config: Config, *, x: Tensor) -> Tensor:
    """Logits (batch, classes)."""
    x = conv_norm(p, "stem", x, config.stem, 7, stride=2).relu().contiguous()
    x = x.max_pool2d((3, 3), stride=2, padding=1).contiguous()
    for i in range(config.stages):
        inner, outer = config.inner << i, config.outer << i
        for j in range(config.blocks[i]):
            stride = 2 if i and not j else 1
            x = _bottleneck(p, f"stages.{i}.{j}", x, inner, outer, stride=stride, groups=config.groups)
    return linear(p, "head", x.mean((2, 3)).contiguous(), config.classes)


def _bottleneck(
    p: Parameters, name: str, x: Tensor, inner: int, outer: int, *, stride: int = 1, groups: int = 1
) -> Tensor:
    y = conv_norm(p, f"{name}.1", x, inner, 1).relu().contiguous()
    y = conv_norm(p, f"{name}.2", y, inner, 3, stride=stride, groups=groups).relu().contiguous()
    if stride > 1 or x.shape[1] != outer:
        x = conv_norm(p, f"{name}.downsample", x, outer, 1, stride=stride).contiguous()
    return (conv_norm(p, f"{name}.3", y, outer, 1) + x).relu().contiguous()
