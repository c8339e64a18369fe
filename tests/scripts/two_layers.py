"""A small tinygrad program, as a user would write it: two layers, run three times."""

import sys

import numpy as np
from tinygrad import Tensor, TinyJit

rng = np.random.default_rng(0)
size = int(sys.argv[1]) if len(sys.argv) > 1 else 64


def drawn(rows: int, columns: int) -> Tensor:
    return Tensor(rng.normal(size=(rows, columns)).astype(np.float32)).realize()


first, second = drawn(size, 2 * size), drawn(2 * size, size)


@TinyJit
def forward(x: Tensor) -> Tensor:
    positive = ((x @ first).relu() @ second).abs()
    return (positive / positive.sum(1, keepdim=True)).realize()


for _ in range(4):
    out = forward(drawn(48, size))
print(f"sum {out.sum().item():.3f}")
