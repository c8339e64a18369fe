"""Activations and gated units with what is fused around them, and gradients of some.

GELU (Hendrycks and Gimpel, 2016), SiLU/Swish (Ramachandran et al., 2017), Mish (Misra, 2019), squared ReLU (So et al.,
2021), the gated units GLU, GeGLU and SwiGLU (Shazeer, 2020). A shape is that of the output; a gated unit reads twice
its last axis, gate first. Gradients are those of a loss of which the upstream gradient is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters

ABOUT = "activations, gated units and their epilogues, forward and backward"

Shape = tuple[int, ...]

PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": Tensor.gelu,
    "quick_gelu": Tensor.quick_gelu,
    "gelu_erf": lambda x: 0.5 * x * (1 + (x * 0.5**0.5).erf()),
    "silu": Tensor.silu,
    "mish": Tensor.mish,
    "squared_relu": lambda x: x.relu().square(),
    "hardswish": Tensor.hardswish,
    "elu": Tensor.elu,
    "leaky_relu": lambda x: x.leaky_relu(0.1),
    "softplus": Tensor.softplus,
}
GATED = {"glu": Tensor.sigmoid, "geglu": Tensor.gelu, "swiglu": Tensor.silu}


@dataclass(frozen=True)
class Config:
    """What one preset computes: names of activations, each at one shape.

    A name is one of PLAIN or GATED; `…_backward` is its gradient; `bias_…_residual` adds a bias before and what goes
    round the block after, `scale_…` multiplies each channel with a scale and adds a shift before.
    """

    dtype: str
    cases: tuple[tuple[str, Shape], ...]


def _cases(shape: Shape, *names: str) -> tuple[tuple[str, Shape], ...]:
    return tuple((name, shape) for name in names)


PRESETS = {
    "mini": Config(
        "float32", (
            *_cases((12, 20), "gelu", "silu_backward", "swiglu", "swiglu_backward", "bias_gelu_residual"),
            *_cases((2, 6, 24), "geglu", "geglu_backward", "gelu_backward", "bias_gelu_backward"),
            *_cases((2, 3, 5, 7), "scale_silu", "hardswish", "mish", "leaky_relu"),
        ),
    ),
    "mini-f16": Config(
        "float16", (
            *_cases((64, 512), "gelu", "gelu_backward", "swiglu", "swiglu_backward", "squared_relu"),
            *_cases((2, 32, 28, 28), "scale_silu", "hardswish", "elu"),
        ),
    ),
    "mini-odd": Config(
        "float32", (
            *_cases((49, 273), "gelu_erf", "bias_gelu_residual", "geglu", "glu_backward", "softplus"),
            *_cases((3, 13, 21, 35), "scale_silu", "mish", "leaky_relu", "elu_backward"),
        ),
    ),
    "gpt2": Config(
        "float16", (
            *_cases((4, 1024, 3072), "gelu", "gelu_backward", "bias_gelu_backward"),
            *_cases((1, 1024, 6400), "gelu", "gelu_backward", "bias_gelu"),
            *_cases((8, 777, 768), "bias_gelu_residual"),
        ),
    ),
    "llama-bf16": Config(
        "bfloat16", (
            *_cases((1, 2048, 14336), "swiglu", "swiglu_backward", "silu"),
            *_cases((4, 512, 8192), "swiglu", "swiglu_backward"),
            *_cases((32, 1, 28672), "swiglu"),
            *_cases((1, 3000, 11008), "swiglu", "swiglu_backward"),
        ),
    ),
    "bert": Config(
        "float32", (
            *_cases((16, 512, 3072), "gelu_erf", "gelu_erf_backward", "bias_gelu_erf"),
            *_cases((8, 384, 4096), "gelu_erf", "gelu_erf_backward"),
            *_cases((32, 128, 1024), "bias_gelu_erf_residual", "bias_elu"),
        ),
    ),
    "gemma": Config(  # and T5 1.1
        "float16", (
            *_cases((1, 2048, 16384), "geglu", "geglu_backward"),
            *_cases((8, 512, 2816), "geglu", "geglu_backward"),
            *_cases((1, 1000, 24576), "geglu"),
            *_cases((2, 4096, 6912), "squared_relu", "squared_relu_backward"),
        ),
    ),
    "vision": Config(  # ViT-L and CLIP, the stages of a ConvNeXt
        "float16", (
            *_cases((32, 257, 4096), "quick_gelu", "quick_gelu_backward", "bias_quick_gelu"),
            *_cases((16, 3136, 384), "gelu", "bias_gelu", "gelu_backward"),
            *_cases((64, 49, 3072), "bias_gelu_residual", "swiglu"),
        ),
    ),
    "cnn-f32": Config(  # MobileNetV3, EfficientNet, YOLO
        "float32", (
            *_cases((32, 96, 112, 112), "scale_silu", "scale_hardswish"),
            *_cases((16, 144, 56, 56), "scale_silu_residual", "hardswish_backward"),
            *_cases((64, 240, 14, 14), "hardswish", "scale_silu", "mish"),
            *_cases((8, 255, 76, 76), "scale_mish", "scale_leaky_relu", "mish_backward"),
        ),
    ),
    "cnn-bf16": Config(
        "bfloat16", (
            *_cases((32, 64, 112, 112), "scale_silu", "leaky_relu"),
            *_cases((16, 256, 56, 56), "scale_mish_residual", "silu_backward", "scale_elu"),
            *_cases((8, 512, 38, 38), "scale_leaky_relu", "leaky_relu_backward", "softplus"),
        ),
    ),
    "diffusion-bf16": Config(  # the U-Net of Stable Diffusion, transformers of Flux and SD 3
        "bfloat16", (
            *_cases((1, 4608, 12288), "gelu", "gelu_backward"),
            *_cases((2, 4096, 1280), "geglu", "geglu_backward"),
            *_cases((2, 640, 32, 32), "scale_silu", "scale_silu_residual"),
            *_cases((4, 1178, 6144), "bias_gelu", "bias_gelu_backward"),
        ),
    ),
    "speech-f32": Config(  # Whisper, Conformer, wav2vec 2.0
        "float32", (
            *_cases((8, 1500, 2048), "gelu", "bias_gelu", "gelu_backward"),
            *_cases((16, 801, 512), "glu", "glu_backward", "silu", "silu_backward"),
            *_cases((8, 3199, 512), "gelu_erf", "softplus_backward"),
        ),
    ),
    "state-space": Config(  # Mamba's gates and steps
        "float16", (
            *_cases((4, 2048, 5120), "silu", "silu_backward", "bias_softplus"),
            *_cases((8, 1000, 1536), "swiglu", "bias_softplus", "softplus_backward"),
        ),
    ),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    found = {}
    for i, (name, shape) in enumerate(config.cases):
        found[f"x{i}"] = Input((*shape[:-1], 2 * shape[-1]) if _base(name) in GATED else shape, config.dtype)
        if name.endswith(("_backward", "_residual")):
            found[f"other{i}"] = Input(shape, config.dtype)
    return found


def run(p: Parameters, config: Config, **inputs: Tensor) -> tuple[Tensor, ...]:
    """For each case one tensor: the activation or the gradient with respect to its input."""
    return tuple(
        _epilogue(p, f"{i}", name, inputs[f"x{i}"], inputs.get(f"other{i}")) for i, (name, _) in enumerate(config.cases)
    )


def _base(name: str) -> str:
    """The activation in the name of a case."""
    for start in ("bias_", "scale_"):
        name = name.removeprefix(start)
    return name.removesuffix("_backward").removesuffix("_residual")


def _epilogue(p: Parameters, key: str, name: str, x: Tensor, other: Tensor | None) -> Tensor:
    base, before = _base(name), x.cast(dtypes.float32)
    if name.startswith("bias_"):
        before = before + p(f"bias{key}", int(x.shape[-1]))
    elif name.startswith("scale_"):  # a folded batch norm
        scale, shift = p(f"scale{key}", int(x.shape[1]), around=1.0), p(f"shift{key}", int(x.shape[1]))
        before = before * scale.reshape(-1, 1, 1) + shift.reshape(-1, 1, 1)
    if base in GATED:
        gate, value = before.chunk(2, dim=-1)
        out = GATED[base](gate) * value
    else:
        out = PLAIN[base](before)
    if name.endswith("_backward"):
        assert other is not None
        (out,) = out.gradient(before, gradient=other.cast(dtypes.float32))
    elif name.endswith("_residual"):
        assert other is not None
        out = out + other
    return out.cast(x.dtype).contiguous()
