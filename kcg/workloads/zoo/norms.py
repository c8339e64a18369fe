"""Normalisation layers, forward and backward, on the shapes of published models.

Layer norm (Ba et al., 2016), RMS norm (Zhang and Sennrich, 2019), group norm (Wu and He, 2018) and batch norm with the
statistics of the batch (Ioffe and Szegedy, 2015). They compute in float32 and differ in the axes that they run over and
in the axis of their scale; the gradients are written out, as fused implementations have them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters

EPSILON = 1e-5

ABOUT = "layer, RMS, group and batch norm, forward and backward"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Config:
    """Shapes of one preset: (rows, width) or (batch, tokens, width) over the last axis, the others (n, channels, …)."""

    dtype: str
    layer: tuple[Shape, ...] = ()
    rms: tuple[Shape, ...] = ()
    group: tuple[Shape, ...] = ()
    batch: tuple[Shape, ...] = ()
    groups: int = 32


PRESETS = {
    "mini": Config("float32", layer=((16, 32),), group=((2, 8, 6, 6),), groups=4),
    "mini-f16": Config("float16", rms=((2, 64, 96),), batch=((4, 16, 12, 12),)),
    "mini-odd": Config("float32", ((35, 91),), ((3, 49, 130),), ((3, 21, 13, 7),), ((5, 13, 7, 9),), groups=7),
    "gpt": Config(  # GPT-2 small and XL, T5
        "float16", layer=((4, 1024, 768), (1, 2048, 1600)), rms=((8, 512, 512),)
    ),
    "llama-bf16": Config(  # Llama 3 8B, Qwen2.5 14B, Llama 3.1 70B decoding
        "bfloat16", rms=((1, 2048, 4096), (1, 3000, 5120), (32, 8192))
    ),
    "bert": Config("float32", layer=((16, 512, 768), (8, 384, 1024))),
    "vision": Config(  # ViT-L, ConvNeXt's first stage, DINOv2-g with RMS norm
        "float16", layer=((16, 577, 1024), (8, 3136, 96)), rms=((32, 256, 384),)
    ),
    "resnet-bf16": Config(  # two stages of ResNet-50, the stem of EfficientNet
        "bfloat16", batch=((16, 128, 56, 56), (32, 256, 28, 28), (64, 32, 112, 112))
    ),
    "resnet-f32": Config("float32", batch=((8, 512, 14, 14), (16, 64, 56, 56))),
    "diffusion": Config("float16", group=((1, 320, 64, 64), (2, 1280, 16, 16), (1, 128, 256, 256))),
    "diffusion-bf16": Config(  # a transformer with heads of 128 normalised, and its VAE
        "bfloat16", rms=((24, 4608, 128),), group=((2, 512, 64, 64),)
    ),
    "speech": Config(  # Whisper, wav2vec 2.0
        "float32", layer=((8, 1500, 512),), group=((8, 512, 3199),)
    ),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    found = {}
    for name, shapes in _shapes(config).items():
        for i, shape in enumerate(shapes):
            found[f"{name}{i}"] = found[f"{name}_gradient{i}"] = Input(shape, config.dtype)
    return found


def run(p: Parameters, config: Config, **inputs: Tensor) -> tuple[Tensor, ...]:
    """For each shape the normalised input, then the gradients with respect to the input, the scale and the shift.

    There is no shift in RMS norm.
    """
    outputs: list[Tensor] = []
    for name, shapes in _shapes(config).items():
        for i, shape in enumerate(shapes):
            width = shape[1] if name in ("group", "batch") else shape[-1]
            scale = p(f"{name}{i}.weight", width, around=1.0)
            shift = None if name == "rms" else p(f"{name}{i}.bias", width)
            view, over, scales = _view(name, shape, config.groups)
            outputs += _norm(inputs[f"{name}{i}"], inputs[f"{name}_gradient{i}"], scale, shift, view, over, scales)
    return tuple(outputs)


def _shapes(config: Config) -> dict[str, tuple[Shape, ...]]:
    return {"layer": config.layer, "rms": config.rms, "group": config.group, "batch": config.batch}


def _view(name: str, shape: Shape, groups: int) -> tuple[Shape, Shape, Shape]:
    """How the input is seen, the axes that the norm runs over, and how its scale is seen."""
    if name == "group":
        within = shape[1] // groups
        return (shape[0], groups, within, math.prod(shape[2:])), (2, 3), (1, groups, within, 1)
    if name == "batch":
        return shape, (0, 2, 3), (1, shape[1], 1, 1)
    return shape, (len(shape) - 1,), (*([1] * (len(shape) - 1)), shape[-1])


def _norm(
    x: Tensor, gradient: Tensor, scale: Tensor, shift: Tensor | None, view: Shape, over: Shape, scales: Shape
) -> list[Tensor]:
    wide, upstream = (t.cast(dtypes.float32).reshape(view) for t in (x, gradient))
    # the statistics of a row are materialised: forward and backward share them
    centred = wide if shift is None else wide - wide.mean(over, keepdim=True).contiguous()
    inverse = (centred.square().mean(over, keepdim=True) + EPSILON).rsqrt().contiguous()
    normed = centred * inverse
    out = normed.cast(x.dtype) * scale.reshape(scales)
    if shift is not None:
        out = out + shift.reshape(scales)
    scaled = upstream * scale.cast(dtypes.float32).reshape(scales)
    inner = scaled - normed * (scaled * normed).mean(over, keepdim=True).contiguous()
    if shift is not None:
        inner = inner - scaled.mean(over, keepdim=True).contiguous()
    elsewhere = tuple(i for i, n in enumerate(scales) if n == 1)
    gradients = [(inner * inverse).cast(x.dtype).reshape(x.shape), (upstream * normed).sum(elsewhere).flatten()]
    if shift is not None:
        gradients.append(upstream.sum(elsewhere).flatten())
    return [out.reshape(x.shape), gradients[0], *(g.cast(scale.dtype) for g in gradients[1:])]
