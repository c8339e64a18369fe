"""Attention as one kernel in tinygrad's UOps: what it computes, for kcg to put a better one in its place.

It is written for its meaning: three passes over the keys, for a row's maximum, its sum, and the weighted values. Each
makes the scores anew, and none writes them to memory. Tiles in registers bound what is made again.
"""

from __future__ import annotations

import math

from tinygrad import Tensor, UOp, dtypes

from kcg.compat.tiny import AxisType, Device, KernelInfo, Ops

GPU_TILE, CPU_TILE = (4, 4, 16), (4, 2, 8)
"""Of one thread: rows of the output, keys at once, and columns; for each group of these the scores are made anew.

On a GPU they are as large as 3,000 micro-operations allow: at 24 heads of 128 and 4,608 tokens scores are made 3 * 8
times, which is 3 TFLOP, with half a load for each multiplication.
"""


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q kᵀ / sqrt(width)) v of each head; all are (heads, tokens, width) and of one dtype."""
    return Tensor.empty(*q.shape, dtype=q.dtype, device=q.device).custom_kernel(q, k, v, fxn=in_uops)[0]


def in_uops(out: UOp, q: UOp, k: UOp, v: UOp) -> UOp:
    """The kernel. It has no name and no Opts of its own: kcg, and tinygrad's own Opts, take it as one of tinygrad's."""
    heads, tokens, width = (int(extent) for extent in out.shape)
    tile = GPU_TILE if Device[Device.DEFAULT].renderer.has_local else CPU_TILE
    rows, keys, columns = (math.gcd(most, n) for most, n in zip(tile, (tokens, tokens, width), strict=True))
    outer = [UOp.range(n, i, AxisType.WEAK) for i, n in enumerate((width // columns, heads, tokens // rows))]
    row, column = UOp.range(rows, 3, AxisType.UPCAST), UOp.range(columns, 4, AxisType.UPCAST)
    head, i, d = outer[1], outer[2] * rows + row, outer[0] * columns + column

    def scores(axis: int) -> tuple[UOp, UOp, tuple[UOp, UOp]]:
        """Scores of row `i` over its keys in units of log 2, the key, and the ranges that it runs over."""
        block, c = UOp.range(tokens // keys, axis, AxisType.REDUCE), UOp.range(width, axis + 1, AxisType.REDUCE)
        key = UOp.range(keys, axis + 2, AxisType.UNROLL)
        j = block * keys + key
        product = q[head, i, c].cast(dtypes.float32) * k[head, j, c].cast(dtypes.float32)
        score = product.reduce(c, arg=(Ops.ADD, 0)) * (math.log2(math.e) / math.sqrt(width))
        return score, j, (block, key)

    score, _, along = scores(5)
    highest = score.reduce(*along, arg=(Ops.MAX, 0))
    score, j, along = scores(8)
    weight = (score - highest).exp2()
    total = weight.reduce(*along, arg=(Ops.ADD, 0))
    # rounded as tensor cores take it; the sum is of what was not rounded
    weighted = weight.cast(v.dtype).cast(dtypes.float32) * v[head, j, d].cast(dtypes.float32)
    mixed = weighted.reduce(*along, arg=(Ops.ADD, 0))
    stored = out[head, i, d].store((mixed / total).cast(out.dtype))
    return stored.end(*outer, row, column).sink(arg=KernelInfo())
