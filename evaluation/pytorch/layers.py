"""Softmax, LayerNorm and a GELU MLP, of tensors as language models have them: the layers of the comparison `models`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from evaluation.pytorch.kind import Array, Case, Entry, Kind, picked

EPSILON = 1e-5
LAYERS = {
    "full": {
        "softmax": ((4096, 4096), (32768, 1024), (2048, 65536)),
        "layernorm": ((4608, 3072), (16384, 1024), (65536, 768)),
        "gelu_mlp": ((2304, 1024), (4608, 3072)),
    },
    "mini": {"softmax": ((24, 40),), "layernorm": ((16, 48),), "gelu_mlp": ((16, 32),)},
}


def entries(size: str) -> list[Entry]:
    """Every layer at each shape."""
    dtype = {"full": "bfloat16", "mini": "float32"}[size]
    return [
        Entry(f"{kind} {rows}x{width}", {"kind": kind, "rows": rows, "width": width, "dtype": dtype})
        for kind, shapes in LAYERS[size].items()
        for rows, width in shapes
    ]


# -- softmax


def _softmax(case: Case, x: Array) -> list[float]:
    rows, columns = picked(*x.shape)
    out = np.exp(x[rows] - x[rows].max(-1, keepdims=True))
    return _compared(out / out.sum(-1, keepdims=True), columns)


def _tinygrad_softmax(case: Case) -> Callable[..., Any]:
    from tinygrad import dtypes

    return lambda x: x.softmax(-1, dtype=dtypes.float32).cast(x.dtype)


def _torch_softmax() -> Callable[..., Any]:
    from torch.nn import functional

    return lambda x: functional.softmax(x, dim=-1)


# -- LayerNorm


def _layernorm(case: Case, x: Array, scale: Array, shift: Array) -> list[float]:
    rows, columns = picked(*x.shape)
    centred = x[rows] - x[rows].mean(-1, keepdims=True)
    out = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + EPSILON) * scale + shift
    return _compared(out, columns)


def _tinygrad_layernorm(case: Case) -> Callable[..., Any]:
    from tinygrad import dtypes

    return lambda x, scale, shift: x.cast(dtypes.float32).layernorm(eps=EPSILON).cast(x.dtype) * scale + shift


def _torch_layernorm() -> Callable[..., Any]:
    from torch.nn import functional

    return lambda x, scale, shift: functional.layer_norm(x, x.shape[-1:], scale, shift, EPSILON)


# -- a GELU MLP


def _gelu_mlp(case: Case, x: Array, up: Array, down: Array) -> list[float]:
    rows, columns = picked(*x.shape)
    between = x[rows] @ up.T
    between = 0.5 * between * (1 + np.tanh(math.sqrt(2 / math.pi) * (between + 0.044715 * between**3)))
    return _compared(between @ down.T, columns)


def _tinygrad_gelu_mlp(case: Case) -> Callable[..., Any]:
    return lambda x, up, down: x.linear(up.transpose()).gelu().contiguous().linear(down.transpose())


def _torch_gelu_mlp() -> Callable[..., Any]:
    from torch.nn import functional

    return lambda x, up, down: functional.linear(functional.gelu(functional.linear(x, up), approximate="tanh"), down)


# -- of all


def _compared(out: Array, columns: Array) -> list[float]:
    """Of rows that are all compared."""
    return [float(v) for v in out[:, columns].ravel()]


def _shape(case: Case) -> tuple[int, int]:
    return case["rows"], case["width"]


KINDS = {
    "softmax": Kind(
        shapes=lambda case: {"x": _shape(case)},
        reference=_softmax,
        in_tinygrad=_tinygrad_softmax,
        in_torch=_torch_softmax,
    ),
    "layernorm": Kind(
        shapes=lambda case: {"x": _shape(case), "scale": (case["width"],), "shift": (case["width"],)},
        reference=_layernorm,
        in_tinygrad=_tinygrad_layernorm,
        in_torch=_torch_layernorm,
    ),
    "gelu_mlp": Kind(
        shapes=lambda case: {
            "x": _shape(case),
            "up": (4 * case["width"], case["width"]),
            "down": (case["width"], 4 * case["width"]),
        },
        reference=_gelu_mlp,
        in_tinygrad=_tinygrad_gelu_mlp,
        in_torch=_torch_gelu_mlp,
        operations=lambda case: 16.0 * case["rows"] * case["width"] ** 2,
        scaled=("up", "down"),
    ),
}
