"""What is told of a contender's samples, and how far its output is from what it should be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kcg.measure.protocol import median, median_interval

FAR = {"float64": 1e-9, "float32": 1e-4, "float16": 3e-2, "bfloat16": 6e-2}
"""How far outputs may be apart, of their size: rounding of some layers, not a wrong result."""

SIGNIFICANT = 5  # digits of what is written


def figures(samples: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """State -> its median, the 95 % interval of that, and how many samples: `cold_s`, `cold_interval_s`, …"""
    told: dict[str, Any] = {}
    for state, taken in samples.items():
        told[f"{state}_s"] = rounded(median(taken))
        told[f"{state}_interval_s"] = [rounded(end) for end in median_interval(taken)]
        told["samples"] = len(taken)
    return told


def rounded(value: float) -> float:
    """As many digits as are worth writing."""
    return float(f"{value:.{SIGNIFICANT}g}")


def distance(values: Sequence[float], reference: Sequence[float]) -> float:
    """How far apart some values of an output are, of their size; infinite where one is not finite or missing."""
    if len(values) != len(reference) or not all(map(math.isfinite, values)):
        return math.inf
    size = math.sqrt(sum(r * r for r in reference))
    apart = math.sqrt(sum((v - r) ** 2 for v, r in zip(values, reference, strict=True)))
    return apart / size if size else math.inf


def speed(seconds: float, *, operations: float = 0.0, bytes: float = 0.0) -> dict[str, float]:
    """TFLOP/s and GB/s of one call, as far as its arithmetic and its least traffic are known."""
    told = {}
    if operations:
        told["tflop_s"] = rounded(operations / seconds * 1e-12)
    if bytes:
        told["gb_s"] = rounded(bytes / seconds * 1e-9)
    return told


def key_of(*words: object) -> str:
    """Words as a name of the headline: `BEAM=2`, `sum` -> `beam2_sum`."""
    return "_".join(str(word) for word in words).lower().replace("=", "").replace("-", "_").replace(" ", "_")


def cold_seconds(run: str) -> Callable[[dict[str, Any]], dict[str, float]]:
    """A headline: the cold seconds of every contender, by case."""

    def made(rows: dict[str, Any]) -> dict[str, float]:
        return {
            key_of(name, key, "s", run): found["cold_s"]
            for key, row in rows.items()
            for name, found in row["contenders"].items()
            if found["status"] == "ok"
        }

    return made
