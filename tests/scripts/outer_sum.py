"""A kernel that tinygrad sums over two ranges at once, though each could be summed alone; and one beside it."""

import sys

import numpy as np
from tinygrad import Tensor, TinyJit

rng = np.random.default_rng(0)
n = int(sys.argv[1]) if len(sys.argv) > 1 else 160


def drawn(*shape: int) -> Tensor:
    return Tensor(rng.normal(size=shape).astype(np.float32)).realize()


a, b = drawn(64, n), drawn(64, n)


@TinyJit
def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    summed = (x.reshape(64, n, 1) * y.reshape(64, 1, n)).sum((1, 2))
    return summed.realize(), (x * y + 1).realize()


for _ in range(3):
    summed, added = (value.numpy() for value in forward(a, b))
expected = a.numpy().sum(1) * b.numpy().sum(1)
print("error", float(np.abs(summed - expected).max() / np.abs(expected).max()))
