"""Softmax, LayerNorm, a GELU MLP, and a step of ResNet-50, GPT-2 and Llama: kcg against tinygrad and PyTorch.

tinygrad hand-coded, with BEAM=2 and with kcg's schedules, a whole step under TinyJit; PyTorch eager, compiled, and
compiled into CUDA graphs. The models are those of `kcg.workloads`, with the same weights in both libraries
(`models_torch.py`); Llama decodes one token with a cache.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.pytorch.kind import Array, Case, Comparison, Entry, Kind, Rows, picked
from evaluation.pytorch.plots import Bar, Group, bars_svg, in_order, ratio_axis, reason, seconds, words
from evaluation.pytorch.reports import Row, write_report
from evaluation.pytorch.turns import TINYGRAD, in_torch
from kcg.report.formats import format_seconds

EPSILON = 1e-5
LAYERS = {
    "full": {
        "softmax": ((4096, 4096), (32768, 1024), (2048, 65536)),
        "layernorm": ((4608, 3072), (16384, 1024), (65536, 768)),
        "gelu_mlp": ((2304, 1024), (4608, 3072)),
    },
    "mini": {"softmax": ((24, 40),), "layernorm": ((16, 48),), "gelu_mlp": ((16, 32),)},
}
MODELS = {
    "full": {"resnet": "resnet50-f16", "gpt2": "small", "llama": "3.2-1b-decode"},
    "mini": {"resnet": "mini", "gpt2": "mini", "llama": "mini-decode"},
}
PYTORCH = {"eager": "eager", "compile": "default", "compile-graphs": "reduce-overhead"}
FIRST = "tinygrad"  # with whose time all others are compared
TITLES = {
    "softmax": "softmax",
    "layernorm": "LayerNorm",
    "gelu_mlp": "GELU MLP",
    "resnet": "ResNet",
    "gpt2": "GPT-2",
    "llama": "Llama",
}


def entries(size: str) -> list[Entry]:
    """Every layer at each shape, then every model."""
    dtype = {"full": "bfloat16", "mini": "float32"}[size]
    found = [
        Entry(f"{kind} {rows}x{width}", {"kind": kind, "rows": rows, "width": width, "dtype": dtype})
        for kind, shapes in LAYERS[size].items()
        for rows, width in shapes
    ]
    for name, preset in MODELS[size].items():
        config = importlib.import_module(f"kcg.workloads.zoo.{name}").PRESETS[preset]
        case = {"kind": "family", "name": name, "preset": preset, "dtype": config.dtype}
        found.append(Entry(f"{name} {preset}", case))
    return found


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


# -- the comparison


def _compared(out: Array, columns: Array) -> list[float]:
    """Of rows that are all compared."""
    return [float(v) for v in out[:, columns].ravel()]


def _shape(case: Case) -> tuple[int, int]:
    return case["rows"], case["width"]


def write(rows: Rows, out: Path, run: str) -> None:
    """Of each layer and model, how many times as fast as tinygrad's hand-coded schedules every other contender is."""

    def place(item: tuple[str, Row]) -> tuple[int, int]:
        case, kinds = item[1]["case"], list(TITLES)
        return kinds.index(case.get("name", case["kind"])), case.get("rows", 0) * case.get("width", 0)

    rows = dict(sorted(rows.items(), key=place))
    groups = [_group(key, row["contenders"]) for key, row in rows.items()]
    title = "Layers and models, L2 flushed: times as fast as tinygrad's hand-coded schedules; intervals of 95 %"
    picture = bars_svg(title, "times as fast as hand-coded, logarithmic", groups, ratio_axis, 1.0, None)
    write_report("Layers and models", rows, {"": picture}, out, run)


def _group(key: str, contenders: Mapping[str, Row]) -> Group:
    kind, _, rest = key.partition(" ")
    first = contenders.get(FIRST, {"status": "failed", "reason": "not timed"})
    slow = first["cold_s"] if first["status"] == "ok" else None
    bars = [_against(slow, name, contenders[name]) for name in in_order(contenders) if name != FIRST]
    label = format_seconds(slow) if slow is not None else reason(first)
    return Group(f"{TITLES[kind]} {rest}; {words(FIRST)} hand-coded: {label}", bars)


def _against(slow: float | None, name: str, found: Row) -> Bar:
    if found["status"] != "ok":
        return Bar(name, reason(found), None)
    if slow is None:
        return Bar(name, format_seconds(found["cold_s"]), None)
    times, most, least = (slow / value for value in seconds(found))
    digits = 2 if times < 9.995 else 1
    return Bar(name, f"{times:.{digits}f}×, {format_seconds(found['cold_s'])}", (times, least, most))


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
COMPARISON = Comparison(
    name="layers_torch",
    entries=entries,
    contenders=(*TINYGRAD, *in_torch(PYTORCH)),
    usual=",".join(("tinygrad,BEAM=2,kcg", *PYTORCH)),
    write=write,
)
