"""A kernel that only reads: what products with packed weights are compared with."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def read_words(words, out, count, BLOCK: tl.constexpr, TURNS: tl.constexpr):
    """Each program reads some blocks of words, and stores nothing unless their sum is a certain one."""
    total = tl.zeros([BLOCK], tl.int32)
    first = tl.program_id(0).to(tl.int64) * BLOCK * TURNS
    for turn in tl.static_range(TURNS):
        places = first + turn * BLOCK + tl.arange(0, BLOCK)
        total = total ^ tl.load(words + places, mask=places < count, other=0, eviction_policy="evict_first")
    if tl.sum(total, 0) == 0x1234567:
        tl.store(out, 1)
