"""Rotary position embedding in Triton, forward and backward: neighbours are pairs, as in Flux."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

ROWS = 16  # of (token, head) of one program: 4 KB of a bfloat16 tensor with heads of 128
WARPS = 4


@triton.jit
def rotate(x_ptr, cos_ptr, sin_ptr, out_ptr, heads, rows, SIGN: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of x (tokens · heads, 2 · PAIRS) turned by SIGN times the angles of their token, whose tables are
    (tokens, PAIRS). Whole rows are read and written in order; pairs are taken apart in registers."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None]
    at = row[:, None] * (2 * PAIRS) + tl.arange(0, 2 * PAIRS)[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(x, (BLOCK, PAIRS, 2)))
    table = (row // heads)[:, None] * PAIRS + tl.arange(0, PAIRS)[None, :]
    cos = tl.load(cos_ptr + table, mask=inside, other=0.0)
    sin = tl.load(sin_ptr + table, mask=inside, other=0.0) * SIGN
    out = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (BLOCK, 2 * PAIRS))
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)


def launch(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, sign: int) -> torch.Tensor:
    """x (tokens, heads, width), contiguous; tables (tokens, width / 2), float32. The width is a power of two."""
    tokens, heads, width = x.shape
    out, rows = torch.empty_like(x), tokens * heads
    rotate[(triton.cdiv(rows, ROWS),)](
        x, cos, sin, out, heads, rows, SIGN=sign, PAIRS=width // 2, BLOCK=ROWS, num_warps=WARPS
    )
    return out


class _Rope(torch.autograd.Function):
    """The gradient of a rotation is the rotation back."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(cos, sin)
        return launch(x, cos, sin, 1)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return launch(gradient.contiguous(), *context.saved_tensors, -1), None, None


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As `torch_cases.rope`."""
    return _Rope.apply(x, cos, sin)
