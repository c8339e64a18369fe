"""Attention in one pass over the keys, in Triton, for kcg to put into a program whose attention is one kernel.

    python -m kcg.optimize program.py --device CUDA --kernels evaluation/pytorch/kernels/flash_triton.py

A row's maximum and sum are kept as they are so far, and what was added up before is scaled when the maximum grows
(Milakov and Gimelshein 2018; Dao et al. 2022, Dao 2023). No mask; products take what is stored, sums are float32.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kcg.kernels import KernelView, Launch, handwritten

ROWS, KEYS = 128, 64  # of a tile; shorter sequences take smaller ones
SHORT = (16, 32, 64)
WIDTHS = (16, 32, 64, 128)
PRECISION = {"bfloat16": "tf32", "float16": "tf32", "float32": "ieee"}  # of what is stored, it counts for float32 only


def shape_of(kernel: KernelView) -> tuple[int, int, int]:
    """(heads, tokens, width) of a kernel that makes scores for the maximum, makes them again, and mixes the values."""
    (_, (width,)), _, (_, keys) = kernel.contractions
    tokens = math.prod(keys)
    return kernel.outputs[0].size // (tokens * width), tokens, width


def is_attention(kernel: KernelView) -> bool:
    """Whether it has the shapes and operations of one. If it is another kernel with these, what is found is wrong."""
    if len(kernel.contractions) != 3 or len(kernel.buffers) != 4 or "EXP2" not in kernel.ops:
        return False
    if any(len(reduced) != 1 for _, reduced in kernel.contractions[:2]) or len({b.size for b in kernel.buffers}) > 1:
        return False
    _, tokens, width = shape_of(kernel)
    tiled = tokens % ROWS == 0 or tokens in SHORT
    return tiled and width in WIDTHS and kernel.inputs[0].dtype in PRECISION


def sizes(kernel: KernelView) -> dict[str, int | float | str]:
    _, tokens, width = shape_of(kernel)
    return {
        "TOKENS": tokens,
        "WIDTH": width,
        "ROWS": min(ROWS, tokens),
        "KEYS": min(KEYS, tokens),
        "SCALE": math.log2(math.e) / math.sqrt(width),
        "PRECISION": PRECISION[kernel.inputs[0].dtype],
    }


def tiles(kernel: KernelView) -> Launch:
    heads, tokens, _ = shape_of(kernel)
    return Launch((heads * (tokens // min(ROWS, tokens)),))


@handwritten.triton(matches=is_attention, launch=tiles, constants=sizes, warps=8, stages=3)
@triton.jit
def flash_attention(
    out,
    q,
    k,
    v,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of rows of one head; all buffers are (heads, TOKENS, WIDTH)."""
    tile = tl.program_id(0)
    head = tile // (TOKENS // ROWS) * (TOKENS * WIDTH)
    rows = tile % (TOKENS // ROWS) * ROWS + tl.arange(0, ROWS)
    columns, keys = tl.arange(0, WIDTH), tl.arange(0, KEYS)
    mine = head + rows[:, None] * WIDTH + columns[None, :]
    query = tl.load(q + mine)
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(0, TOKENS, KEYS):
        theirs = head + (first + keys) * WIDTH
        key = tl.load(k + theirs[None, :] + columns[:, None])
        score = tl.dot(query, key, input_precision=PRECISION)
        peak = tl.maximum(highest, tl.max(score, 1))
        weight = tl.exp2(score * SCALE - (peak * SCALE)[:, None])
        shrunk = tl.exp2((highest - peak) * SCALE)
        total = total * shrunk + tl.sum(weight, 1)
        value = tl.load(v + theirs[:, None] + columns[None, :])
        mixed = tl.dot(weight.to(value.dtype), value, mixed * shrunk[:, None], input_precision=PRECISION)
        highest = peak
    tl.store(out + mine, (mixed / total[:, None]).to(out.dtype.element_ty))
