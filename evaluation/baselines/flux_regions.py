"""One part of a step of Flux in PyTorch on random inputs, and the ceilings that parts are judged by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kcg.workloads.flux import PRESETS

from .cases import ITEM_BYTES
from .figures import rounded, speed
from .flux_parts import Part, Tensor, linear, parts

MATMUL, COPY = "ceiling matmul", "ceiling copy"
Row = dict[str, Any]


def build_region(case: dict[str, Any], device: str) -> tuple[Callable[..., Tensor], dict[str, Tensor]]:
    """The part `name` of `preset` on random inputs; weights are scaled by fan-in. Ceilings are parts too."""
    config = PRESETS[case["preset"]]
    part = (parts(config) | ceilings(device))[case["name"]]
    dtype, generator = getattr(torch, config.dtype), torch.Generator(device).manual_seed(0)
    made = {}
    for name, shape in part.shapes.items():
        deviation = shape[-1] ** -0.5 if name == "weight" and len(shape) > 1 else 1.0
        made[name] = torch.randn(shape, generator=generator, device=device, dtype=dtype) * deviation
    return part.call, made


def _copy(x: Tensor) -> Tensor:
    return x.clone()


def ceilings(device: str) -> dict[str, Part]:
    """What this device reaches: a large matmul, and a copy of many times its cache."""
    side, elements = (8192, 1 << 29) if device == "cuda" else (512, 1 << 22)
    square = {"x": (side, side), "weight": (side, side), "bias": (side,)}
    return {
        "ceiling matmul": Part(linear, square, 0, 3 * side * side, 2 * side**3),
        "ceiling copy": Part(_copy, {"x": (elements,)}, 0, 2 * elements),
    }


def names(preset: str) -> list[str]:
    """The ceilings, then the parts of a preset."""
    return [MATMUL, COPY, *parts(PRESETS[preset])]


def told(row: Row, name: str, preset: str, device: str, rows: dict[str, Row]) -> Row:
    """A row with its part's calls in a step, the rates of each contender, and its share of the roofline of this device,
    which the ceilings among `rows` give."""
    part = (parts(PRESETS[preset]) | ceilings(device))[name]
    moved = part.values * ITEM_BYTES[PRESETS[preset].dtype]
    peak, bandwidth = (ceiling(rows, key, what) for key, what in ((MATMUL, "tflop_s"), (COPY, "gb_s")))
    for found in row.values():
        if found["status"] != "ok":
            continue
        found.update(speed(found["cold_s"], operations=part.operations, bytes=moved))
        if peak and bandwidth:
            floor_s = max(part.operations / (peak * 1e12), moved / (bandwidth * 1e9))
            found["roofline_share"] = rounded(floor_s / found["cold_s"])
    return {"calls": part.calls, "operations": part.operations, "bytes": moved, "contenders": row}


def ceiling(rows: dict[str, Row], key: str, what: str) -> float:
    """The best of a ceiling's contenders; 0 where there is none."""
    of = rows.get(f"region {key}", {"contenders": {}})["contenders"]
    return max((found.get(what, 0.0) for found in of.values()), default=0.0)
