"""RoPE, forward and backward, over sequence lengths: tinygrad, kcg, PyTorch eager and compiled, and Triton.

Heads are those of Flux: 24 of 128, neighbours in pairs, bfloat16. Beside the pictures of time and GB/s the report has
what the profilers of PyTorch and of kcg say of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.pytorch.kind import Array, Case, Comparison, Entry, Kind, Rows, values_of
from evaluation.pytorch.plots import curves_of, lines_svg, lost_in, rate, rate_axis, seconds, seconds_axis
from evaluation.pytorch.reports import profiles_text, write_report
from evaluation.pytorch.turns import TINYGRAD, in_torch

THETA = 10_000.0
TOKENS = {"full": (512, 1024, 2048, 4096, 8192, 16384), "mini": (32, 64)}
SIZES: dict[str, dict[str, Any]] = {
    "full": {"heads": 24, "width": 128, "dtype": "bfloat16"},
    "mini": {"heads": 2, "width": 16, "dtype": "float32"},
}
DIRECTIONS = ("forward", "backward")


def entries(size: str) -> list[Entry]:
    """Both directions at each length; the longest is profiled."""
    return [
        Entry(
            f"{direction} {tokens}",
            {**SIZES[size], "tokens": tokens, "kind": "rope", "backward": direction == "backward"},
            profiled=tokens == TOKENS[size][-1],
        )
        for direction in DIRECTIONS
        for tokens in TOKENS[size]
    ]


def angles(case: Case) -> Array:
    """Of every position and pair, (tokens, width / 2), as float32 has them."""
    pairs = case["width"] // 2
    turn = np.outer(np.arange(case["tokens"]), THETA ** (-np.arange(pairs) / pairs))
    return turn.astype(np.float32).astype(np.float64)


def tables(case: Case) -> dict[str, Array]:
    """Cosine and sine of the angles, float32."""
    turn = angles(case)
    return {"cos": np.cos(turn).astype(np.float32), "sin": np.sin(turn).astype(np.float32)}


def rotated(case: Case, x: Array) -> list[float]:
    """In float64. The gradient of a rotation is the rotation back: `x` is then that of the output."""
    a, b = x[..., 0::2], x[..., 1::2]
    turn = angles(case)[:, None, :] * (-1 if case["backward"] else 1)
    out = np.stack((a * np.cos(turn) - b * np.sin(turn), a * np.sin(turn) + b * np.cos(turn)), axis=-1)
    return values_of(out.reshape(x.shape))


def tinygrad_program(case: Case) -> Callable[..., Any]:
    """Neighbours are pairs, as in Flux: x (tokens, heads, width), tables (tokens, width / 2)."""
    from tinygrad import Tensor, dtypes

    def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        pairs = x.cast(dtypes.float32).reshape(*x.shape[:-1], -1, 2)
        a, b, cos, sin = pairs[..., 0], pairs[..., 1], cos.unsqueeze(1), sin.unsqueeze(1)
        return (a * cos - b * sin).stack(a * sin + b * cos, dim=-1).reshape(x.shape).cast(x.dtype)

    def backward(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        given = Tensor.empty(*x.shape, dtype=x.dtype, device=x.device)  # a rotation's gradient does not read it
        (gradient,) = rope(given, cos, sin).gradient(given, gradient=x)
        return gradient

    return backward if case["backward"] else rope


def torch_program() -> Callable[..., Any]:
    """The same forward; its backward pass is autograd's."""
    import torch

    def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        pairs = x.float().unflatten(-1, (-1, 2))
        a, b, cos, sin = pairs[..., 0], pairs[..., 1], cos.unsqueeze(1), sin.unsqueeze(1)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)

    return rope


def triton_program() -> Callable[..., Any]:
    """A kernel by hand."""
    from evaluation.pytorch.rope_triton import rope

    return rope


def write(rows: Rows, out: Path, run: str) -> None:
    """Of each direction seconds and GB/s by tokens, and what both profilers say."""
    rows = dict(sorted(rows.items(), key=lambda item: (item[1]["case"]["backward"], item[1]["case"]["tokens"])))
    pictures = {}
    for direction in DIRECTIONS:
        if part := [row for key, row in rows.items() if key.startswith(direction)]:
            title, lost = f"RoPE, {direction}, L2 flushed", lost_in(part)
            times, rates = curves_of(part, seconds), curves_of(part, rate)
            pictures[direction] = lines_svg(f"{title}: time; bands of 95 %", "tokens", times, seconds_axis, lost)
            pictures[f"{direction}_gb_s"] = lines_svg(f"{title}: GB/s; bands of 95 %", "tokens", rates, rate_axis, lost)
    profiled = [line for key, row in rows.items() if row.get("profiles") for line in profiles_text(key, row)]
    write_report("RoPE", rows, pictures, out, run, profiled)


KINDS = {
    "rope": Kind(
        shapes=lambda case: {"x": (case["tokens"], case["heads"], case["width"])},
        reference=rotated,
        in_tinygrad=tinygrad_program,
        in_torch=torch_program,
        in_triton=triton_program,
        tables=tables,
    )
}
COMPARISON = Comparison(
    name="rope",
    entries=entries,
    contenders=(*TINYGRAD, *in_torch({"eager": "eager", "triton": "triton", "compile": "default"})),
    usual="tinygrad,kcg,eager,compile,triton",
    write=write,
    tune="30s",
    label=lambda key: key.split()[0],  # the longest sequence in each direction is told
    place=lambda key: int(key.split()[1]),
)
