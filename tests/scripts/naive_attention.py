"""Attention joined with an MLP without a `.contiguous()`: tinygrad computes a matmul three times.

Weights are linear in the scores: tinygrad's assembler needs seconds for a kernel with an exponential.
"""

import numpy as np
from tinygrad import Tensor

rng = np.random.default_rng(0)


def drawn(*shape: int) -> Tensor:
    return Tensor(rng.normal(size=shape).astype(np.float32)).realize()


q, k, v = (drawn(2, 24, 16) for _ in range(3))
x, weight = drawn(24, 32), drawn(32, 64)
scores = q @ k.transpose(1, 2)
weights = scores - scores.max(-1, keepdim=True)
attended = (weights / weights.sum(-1, keepdim=True)) @ v
attended.permute(1, 0, 2).reshape(24, 32).cat(x @ weight, dim=1).realize()
