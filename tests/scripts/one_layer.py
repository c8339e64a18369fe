"""The smallest tinygrad program worth searching: one layer, run four times."""

import sys

import numpy as np
from tinygrad import Tensor, TinyJit

rng = np.random.default_rng(0)
size = int(sys.argv[1]) if len(sys.argv) > 1 else 64


def drawn(rows: int, columns: int) -> Tensor:
    return Tensor(rng.normal(size=(rows, columns)).astype(np.float32)).realize()


weight = drawn(size, 2 * size)


@TinyJit
def forward(x: Tensor) -> Tensor:
    return (x @ weight).relu().realize()


for _ in range(4):
    out = forward(drawn(48, size))
