"""Quantised inference: 8-bit integers with a scale a row or a group, 4-bit pairs, and argmax of what comes out.

LLM.int8() and SmoothQuant (Dettmers et al., 2022; Xiao et al., 2022) quantise rows; the formats Q8_0 and Q4_0 of
llama.cpp have a scale for every 32 weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters

ABOUT = "8-bit and 4-bit quantisation, matmuls with quantised weights, argmax"

GROUP_SIZE = 32


@dataclass(frozen=True)
class Config:
    """What one preset computes: kinds with their sizes.

    - `quantise`, `dequantise`, `dequantise_groups`, `argmax`: rows, columns;
    - `matmul`: rows, inputs, outputs, of float activations with int8 weights that have a scale an output;
    - `matmul_groups`, `matmul_nibbles`: the same with a scale every GROUP_SIZE inputs, and with two weights in a byte;
    - `matmul_integers`: the same with int8 activations that have a scale a row; it sums in int32.
    """

    dtype: str
    cases: tuple[tuple[str, tuple[int, ...]], ...]


PRESETS = {
    "mini": Config(
        "float32",
        (("quantise", (12, 40)), ("dequantise", (10, 30)), ("dequantise_groups", (6, 64)), ("argmax", (8, 50)),
         ("matmul", (8, 32, 20)), ("matmul_groups", (1, 64, 24)), ("matmul_nibbles", (2, 64, 12)),
         ("matmul_integers", (6, 40, 16))),
    ),
    "mini-f16": Config(
        "float16",
        (("quantise", (64, 256)), ("dequantise", (128, 192)), ("matmul", (32, 128, 192)), ("argmax", (16, 1000)),
         ("matmul_nibbles", (1, 256, 384))),
    ),
    "mini-odd": Config(
        "float32",
        (("quantise", (49, 91)), ("dequantise_groups", (35, 224)), ("matmul", (7, 91, 273)), ("argmax", (21, 637)),
         ("matmul_integers", (13, 147, 65)), ("matmul_groups", (3, 160, 77)), ("matmul_nibbles", (5, 96, 49)),
         ("dequantise", (63, 117))),
    ),
    "llama": Config(  # Llama 3 8B, a prompt
        "float16",
        (("quantise", (2048, 4096)), ("quantise", (2048, 14336)), ("matmul", (512, 4096, 6144)),
         ("matmul", (256, 4096, 14336)), ("matmul", (128, 14336, 4096)), ("matmul_integers", (1024, 4096, 4096)),
         ("dequantise", (14336, 4096)), ("dequantise_groups", (4096, 4096)), ("argmax", (512, 128256))),
    ),
    "llama-decoding": Config(
        "float16",
        (("matmul", (1, 4096, 4096)), ("matmul", (8, 4096, 14336)), ("matmul_groups", (1, 4096, 14336)),
         ("matmul_groups", (4, 14336, 4096)), ("matmul_nibbles", (1, 4096, 6144)), ("matmul_nibbles", (2, 14336, 4096)),
         ("quantise", (8, 4096)), ("argmax", (8, 128256)), ("matmul_integers", (16, 4096, 6144))),
    ),
    "qwen-bf16": Config(  # Qwen2.5 7B
        "bfloat16",
        (("quantise", (3000, 3584)), ("matmul", (384, 3584, 4608)), ("matmul", (16, 18944, 3584)),
         ("matmul_groups", (64, 3584, 18944)), ("matmul_nibbles", (1, 3584, 18944)), ("dequantise", (18944, 3584)),
         ("dequantise_groups", (3584, 3584)), ("matmul_integers", (777, 3584, 3584)), ("argmax", (64, 152064))),
    ),
    "bert-f32": Config(
        "float32",
        (("quantise", (8192, 768)), ("quantise", (4096, 3072)), ("matmul", (512, 768, 768)),
         ("matmul", (384, 768, 3072)), ("matmul", (384, 3072, 768)), ("matmul_integers", (4096, 768, 2304)),
         ("dequantise", (30522, 768)), ("argmax", (614, 30522))),
    ),
    "vision-f32": Config(  # ViT-L, and the classes of ImageNet and of ADE20K
        "float32",
        (("quantise", (9232, 1024)), ("matmul", (577, 1024, 3072)), ("matmul_integers", (2308, 1024, 4096)),
         ("matmul_groups", (197, 1024, 1024)), ("dequantise", (4096, 1024)), ("dequantise_groups", (1024, 4096)),
         ("argmax", (8192, 1000)), ("argmax", (65536, 150))),
    ),
    "diffusion-bf16": Config(  # Flux
        "bfloat16",
        (("quantise", (4608, 3072)), ("matmul", (512, 3072, 9216)), ("matmul", (1536, 3072, 3072)),
         ("matmul_integers", (4608, 3072, 3072)), ("dequantise", (12288, 3072)), ("matmul_nibbles", (256, 3072, 3072)),
         ("dequantise_groups", (3072, 12288)), ("quantise", (1000, 15360))),
    ),
    "gemma": Config(  # Gemma 2 2B and a draft model's decoding
        "float16",
        (("quantise", (1100, 2304)), ("matmul", (100, 2304, 9216)), ("matmul", (3, 9216, 2304)),
         ("matmul_nibbles", (1, 2304, 9216)), ("matmul_groups", (5, 2304, 4096)), ("argmax", (100, 256000)),
         ("dequantise", (25600, 2304)), ("matmul_integers", (100, 2304, 2304))),
    ),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    found = {}
    for i, (kind, sizes) in enumerate(config.cases):
        if kind == "matmul_integers":
            found[f"x{i}"] = Input(sizes[:2], "int8", below=127)
            found[f"row_scale{i}"] = Input((sizes[0], 1), config.dtype)
        elif kind.startswith("matmul") or kind in ("quantise", "argmax"):
            found[f"x{i}"] = Input(sizes[:2], config.dtype)
        if kind in ("quantise", "argmax"):
            continue
        rows, columns = sizes[:2] if kind.startswith("dequantise") else (sizes[2], sizes[1])
        grouped = kind.endswith(("groups", "nibbles"))
        if kind == "matmul_nibbles":
            found[f"weight{i}"] = Input((rows, columns // GROUP_SIZE, GROUP_SIZE // 2), "uint8", below=256)
        else:
            found[f"weight{i}"] = Input((rows, columns), "int8", below=127)
        found[f"scale{i}"] = Input((rows, columns // GROUP_SIZE if grouped else 1), config.dtype)
    return found


def run(p: Parameters, config: Config, **inputs: Tensor) -> tuple[Tensor, ...]:
    """For each case its result; `quantise` gives integers and scales."""
    outputs: list[Tensor] = []
    for i, (kind, _) in enumerate(config.cases):
        x, weight, scale = (inputs.get(f"{name}{i}") for name in ("x", "weight", "scale"))
        if weight is None or scale is None:
            assert x is not None
            outputs += _quantised(x) if kind == "quantise" else [x.argmax(-1)]
        elif kind == "matmul_integers":
            assert x is not None
            # products of int8 do not fit in int8: they are int32 before the sum
            product = (x.cast(dtypes.int32) @ weight.cast(dtypes.int32).transpose()).cast(dtypes.float32)
            out = product * inputs[f"row_scale{i}"].cast(dtypes.float32) * scale.cast(dtypes.float32).transpose()
            outputs.append(out.cast(scale.dtype))
        elif kind == "matmul":  # the scale is one of an output: it is applied after the sum
            assert x is not None
            outputs.append(x @ weight.cast(x.dtype).transpose() * scale.transpose())
        else:
            if kind == "matmul_nibbles":
                weight = (weight & 15).cat(weight.rshift(4), dim=-1).cast(dtypes.int8) - 8
            groups = weight.reshape(int(scale.shape[0]), int(scale.shape[1]), -1).cast(scale.dtype)
            dense = (groups * scale.unsqueeze(-1)).flatten(1)
            outputs.append(dense if x is None else x @ dense.transpose())
    return tuple(outputs)


def _quantised(x: Tensor) -> list[Tensor]:
    """Integers in [-127, 127] and the float32 scale of each row."""
    wide = x.cast(dtypes.float32)
    scale = (wide.abs().max(-1, keepdim=True) / 127).contiguous()
    return [(wide / scale).round().clamp(-127, 127).cast(dtypes.int8), scale]
