"""Attention, forward, over sequence lengths: tinygrad's kernels, kcg's, one kernel in Triton or C, and PyTorch.

Heads are those of Flux, 24 of 128, in bfloat16, without a mask; 4,608 tokens are its 1024 x 1024. `triton` is a program
whose attention is one kernel of UOps, in whose place kcg puts kernels/flash_triton.py; `c` the same on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.pytorch.kind import Array, Case, Comparison, Entry, Kind, Rows, picked
from evaluation.pytorch.plots import curves_of, lines_svg, lost_in, seconds, seconds_axis
from evaluation.pytorch.reports import write_report
from evaluation.pytorch.turns import TINYGRAD, by_hand, in_torch

TOKENS = {"full": (4608, 512, 1024, 2048, 4096), "mini": (32, 64)}
SIZES: dict[str, dict[str, Any]] = {
    "full": {"heads": 24, "width": 128, "dtype": "bfloat16"},
    "mini": {"heads": 2, "width": 16, "dtype": "float32"},
}


def entries(size: str) -> list[Entry]:
    """A case for each length."""
    return [
        Entry(f"{tokens} tokens", {**SIZES[size], "tokens": tokens, "kind": "attention"}) for tokens in TOKENS[size]
    ]


def attended(case: Case, q: Array, k: Array, v: Array) -> list[float]:
    """In float64; each is (heads, tokens, width), and only the compared rows are computed."""
    heads, tokens, width = q.shape
    rows, columns = picked(heads * tokens, width)
    out = []
    for head, row in zip(*divmod(rows, tokens), strict=True):
        scores = k[head] @ q[head, row] / math.sqrt(width)
        weights = np.exp(scores - scores.max())
        out.append(weights / weights.sum() @ v[head][:, columns])
    return [float(value) for value in np.concatenate(out)]


def tinygrad_program(case: Case) -> Callable[..., Any]:
    """As a user writes it; with the `program` "one kernel", a kernel of UOps that kcg replaces."""
    if case.get("program") == "one kernel":
        from evaluation.pytorch.one_kernel import attention

        return attention
    return lambda q, k, v: q.scaled_dot_product_attention(k, v)


def torch_program() -> Callable[..., Any]:
    """Of four dimensions: of three, PyTorch takes none of its fused kernels."""
    from torch.nn import functional

    return lambda q, k, v: functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def write(rows: Rows, out: Path, run: str) -> None:
    """Seconds by tokens."""
    rows = dict(sorted(rows.items(), key=lambda item: item[1]["case"]["tokens"]))
    title, lost = "Attention, forward, L2 flushed: time; bands of 95 %", lost_in(rows.values())
    picture = lines_svg(title, "tokens", curves_of(rows.values(), seconds), seconds_axis, lost)
    write_report("Attention", rows, {"": picture}, out, run)


KINDS = {
    "attention": Kind(
        shapes=lambda case: dict.fromkeys(("q", "k", "v"), (case["heads"], case["tokens"], case["width"])),
        reference=attended,
        in_tinygrad=tinygrad_program,
        in_torch=torch_program,
        operations=lambda case: 4.0 * case["heads"] * case["tokens"] ** 2 * case["width"],
    )
}
COMPARISON = Comparison(
    name="attention",
    entries=entries,
    contenders=(
        *TINYGRAD,
        by_hand("triton", "flash_triton.py", "CUDA"),
        by_hand("c", "flash_c.py", "CPU"),
        *in_torch({"eager": "eager", "compile": "default"}),
    ),
    usual="tinygrad,BEAM=2,kcg,triton,eager,compile",
    write=write,
    limit_s=600.0,
    figures=(("s", "cold_s"), ("tflop_s", "tflop_s")),
    label=lambda key: key.split()[0],
)
