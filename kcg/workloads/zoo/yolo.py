"""YOLOv8: a backbone of C2f blocks, a feature pyramid, and decoupled heads (Jocher et al., Ultralytics, 2023).

C2f is the cross-stage-partial block of CSPNet (Wang et al., 2019); a box's sides are read from distributions (Li et
al., Generalized Focal Loss, 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import conv2d, conv_norm

ABOUT = "YOLOv8, the boxes and scores of a batch of pictures"


@dataclass(frozen=True)
class Config:
    """Sizes of one forward pass, with one bottleneck in every C2f block.

    The heads read the last `scales` of the backbone's resolutions, which divide the picture.
    """

    dtype: str = "float32"
    batch: int = 4
    height: int = 640
    width: int = 640
    channels: tuple[int, ...] = (16, 32, 64, 128, 256)  # of the backbone, at strides 2, 4, 8, …
    scales: int = 3
    bins: int = 16  # of the distribution of a side
    classes: int = 80


NANO, SMALL, MEDIUM = (16, 32, 64, 128, 256), (32, 64, 128, 256, 512), (48, 96, 192, 384, 576)
PRESETS = {
    "mini": Config(batch=1, height=16, width=24, channels=(4, 6, 8), scales=2, bins=4, classes=3),
    "mini-f16": Config("float16", batch=2, height=16, width=32, channels=(8, 12), scales=1, bins=8, classes=5),
    "mini-odd": Config(batch=3, height=96, width=160, channels=(6, 10, 14, 18, 22), bins=7, classes=13),
    "nano-f16": Config("float16", batch=16),
    "nano-f32-b1": Config(batch=1, height=480, width=640),
    "small-bf16": Config("bfloat16", batch=8, channels=SMALL),
    "small-f32-416": Config(height=416, width=416, channels=SMALL),
    "medium-f16": Config("float16", channels=MEDIUM),
    "nano-p6-bf16": Config("bfloat16", batch=2, height=1280, width=1280, channels=(*NANO, 256), scales=4),
    "medium-bf16-b1": Config("bfloat16", batch=1, height=736, width=1280, channels=MEDIUM, classes=20),
}


def inputs(config: Config) -> dict[str, Input]:
    return {"x": Input((config.batch, 3, config.height, config.width), config.dtype)}


def run(p: Parameters, config: Config, *, x: Tensor) -> tuple[Tensor, ...]:
    """Boxes as centre and size in pixels (batch, 4, anchors), and scores (batch, classes, anchors)."""
    x = _conv(p, "stem", x, config.channels[0], 3, stride=2)
    features = []
    for i, channels in enumerate(config.channels[1:]):
        x = _conv(p, f"backbone.{i}.down", x, channels, 3, stride=2)
        x = _c2f(p, f"backbone.{i}.c2f", x, channels, add=True)
        features.append(x)
    features = [*features[-config.scales : -1], _pooled(p, "backbone.sppf", x)]
    for i in reversed(range(config.scales - 1)):  # up the pyramid: from coarse to fine
        joined = _joined(_upsampled(features[i + 1]), features[i])
        features[i] = _c2f(p, f"up.{i}", joined, int(features[i].shape[1]))
    for i in range(1, config.scales):  # and down again
        finer, channels = features[i - 1], int(features[i].shape[1])
        smaller = _conv(p, f"down.{i}.conv", finer, int(finer.shape[1]), 3, stride=2)
        features[i] = _c2f(p, f"down.{i}.c2f", _joined(smaller, features[i]), channels)
    boxes, scores = zip(*(_head(p, config, f"head.{i}", x) for i, x in enumerate(features)), strict=True)
    return Tensor.cat(*boxes, dim=-1), Tensor.cat(*scores, dim=-1)


def _conv(p: Parameters, name: str, x: Tensor, channels: int, size: int, *, stride: int = 1) -> Tensor:
    return conv_norm(p, name, x, channels, size, stride=stride).silu().contiguous()


def _joined(*parts: Tensor) -> Tensor:
    return Tensor.cat(*parts, dim=1).contiguous()


def _upsampled(x: Tensor) -> Tensor:
    return x.interpolate((2 * int(x.shape[2]), 2 * int(x.shape[3])), mode="nearest")


def _c2f(p: Parameters, name: str, x: Tensor, channels: int, *, add: bool = False) -> Tensor:
    """Half of the channels go through a bottleneck; both halves and its result are joined."""
    kept, last = _conv(p, f"{name}.1", x, channels, 1).chunk(2, dim=1)
    y = _conv(p, f"{name}.bottleneck.1", last, channels // 2, 3)
    y = _conv(p, f"{name}.bottleneck.2", y, channels // 2, 3)
    return _conv(p, f"{name}.2", _joined(kept, last, last + y if add else y), channels, 1)


def _pooled(p: Parameters, name: str, x: Tensor) -> Tensor:
    """Fast spatial pyramid pooling: three max-pools after one another, joined."""
    channels = int(x.shape[1])
    parts = [_conv(p, f"{name}.1", x, channels // 2, 1)]
    for _ in range(3):
        parts.append(parts[-1].max_pool2d((5, 5), stride=1, padding=2).contiguous())
    return _conv(p, f"{name}.2", _joined(*parts), channels, 1)


def _head(p: Parameters, config: Config, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes and scores of one resolution: the expected distance of each side from the middle of its place."""
    batch, channels, height, width = x.shape
    between = max(16, channels // 4, 4 * config.bins)
    sides = _conv(p, f"{name}.box.1", _conv(p, f"{name}.box.0", x, between, 3), between, 3)
    sides = conv2d(p, f"{name}.box.2", sides, 4 * config.bins, 1).contiguous()
    weights = sides.reshape(batch, 4, config.bins, height * width).softmax(2, dtype=dtypes.float32).contiguous()
    distances = (weights * Tensor.arange(config.bins).reshape(1, 1, -1, 1)).sum(2).contiguous()
    between = max(channels, min(config.classes, 100))
    classes = _conv(p, f"{name}.class.1", _conv(p, f"{name}.class.0", x, between, 3), between, 3)
    scores = conv2d(p, f"{name}.class.2", classes, config.classes, 1).sigmoid().contiguous()
    rows = Tensor.arange(height).reshape(-1, 1).expand(height, width).reshape(1, 1, -1) + 0.5
    columns = Tensor.arange(width).reshape(1, -1).expand(height, width).reshape(1, 1, -1) + 0.5
    middle = columns.cat(rows, dim=1)
    near, far = distances.chunk(2, dim=1)
    box = (middle + (far - near) / 2).cat(near + far, dim=1) * (config.height // height)
    return box.contiguous(), scores.flatten(2)
