"""What is computed, apart from any library: a case as a plain dictionary, its inputs, its float64 reference.

A case has a `kind`, sizes, and a `dtype`. Inputs are normal, drawn by name and seed as those of `kcg.workloads` are, so
that every library starts from the same numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcg.workloads.family import generator

Array = NDArray[Any]
Case = dict[str, Any]

PICKED_ROWS, PICKED_COLUMNS = 8, 32  # of an output, for a comparison
REPEATED = 1 << 22  # so many values are drawn; a larger input repeats them
THETA = 10_000.0
EPSILON = 1e-5
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every input, weights included; those that are tables of positions are no inputs."""
    if case["kind"] in ("sum", "copy"):
        return {"x": (case["elements"],)}
    if case["kind"] == "rope":
        return {"x": (case["tokens"], case["heads"], case["width"])}  # backward: the gradient of the output
    if case["kind"] == "attention":
        return dict.fromkeys(("q", "k", "v"), (case["heads"], case["tokens"], case["width"]))
    shape = (case["rows"], case["width"])
    if case["kind"] == "softmax":
        return {"x": shape}
    if case["kind"] == "layernorm":
        return {"x": shape, "scale": shape[1:], "shift": shape[1:]}
    if case["kind"] == "gelu_mlp":
        return {"x": shape, "up": (4 * shape[1], shape[1]), "down": (shape[1], 4 * shape[1])}
    raise ValueError(f"no case of kind {case['kind']!r}")


def arrays(case: Case, seed: int = 0) -> dict[str, Array]:
    """The inputs, rounded by nobody yet. Weights of matmuls are scaled by fan-in."""
    made = {}
    for name, shape in shapes(case).items():
        deviation = shape[-1] ** -0.5 if name in ("up", "down") else 1.0
        mean = 1.0 if case["kind"] == "sum" else 0.0  # a sum that does not cancel
        count = math.prod(shape)
        drawn = generator(seed, name).standard_normal(min(count, REPEATED), np.float32)
        values = np.resize(drawn, shape)  # a gigabyte of new numbers takes longer than all else
        made[name] = values * np.float32(deviation) + np.float32(mean)
    return made


def angles(case: Case) -> Array:
    """Of every position and pair, (tokens, width / 2)."""
    pairs = case["width"] // 2
    return np.outer(np.arange(case["tokens"]), THETA ** (-np.arange(pairs) / pairs)).astype(np.float32)


def picked(rows: int, columns: int) -> tuple[Array, Array]:
    """Which rows and columns of an output are compared: the first and the last among them."""
    return tuple(  # type: ignore[return-value]
        np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))
        for n, most in ((rows, PICKED_ROWS), (columns, PICKED_COLUMNS))
    )


def values_of(output: Any) -> list[float]:
    """The compared values of an output, a NumPy array: rows are all axes but the last."""
    flat = np.asarray(output).reshape(-1, output.shape[-1] if output.ndim else 1)
    rows, columns = picked(*flat.shape)
    return [float(v) for v in flat[np.ix_(rows, columns)].ravel()]


def reference(case: Case, seed: int = 0) -> list[float] | None:
    """The same values in float64, of the inputs as the dtype rounds them; None where there is no reference."""
    if case["kind"] == "family":
        return None
    made = {name: as_stored(values, case["dtype"]).astype(np.float64) for name, values in arrays(case, seed).items()}
    if case["kind"] == "attention":
        from .attended import attended

        return attended(**made)
    x = made["x"]
    if case["kind"] == "sum":
        return [float(x.sum())]
    if case["kind"] == "copy":
        return values_of(x)
    if case["kind"] == "rope":
        a, b = x[..., 0::2], x[..., 1::2]
        turn = angles(case).astype(np.float64)[:, None, :] * (-1 if case["backward"] else 1)
        out = np.stack((a * np.cos(turn) - b * np.sin(turn), a * np.sin(turn) + b * np.cos(turn)), axis=-1)
        return values_of(out.reshape(x.shape))
    rows, columns = picked(*x.shape)
    x = x[rows]
    if case["kind"] == "softmax":
        out = np.exp(x - x.max(-1, keepdims=True))
        out /= out.sum(-1, keepdims=True)
    elif case["kind"] == "layernorm":
        centred = x - x.mean(-1, keepdims=True)
        out = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + EPSILON) * made["scale"] + made["shift"]
    else:
        between = x @ made["up"].T
        between = 0.5 * between * (1 + np.tanh(math.sqrt(2 / math.pi) * (between + 0.044715 * between**3)))
        out = between @ made["down"].T
    return [float(v) for v in out[:, columns].ravel()]


def as_stored(values: Array, dtype: str) -> Array:
    """Rounded to `dtype`, as float32 or wider."""
    if dtype == "bfloat16":  # to nearest, ties to even
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return values.astype(np.dtype(dtype))
