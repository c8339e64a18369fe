"""Two kernels that tinygrad sums over two ranges at once, though each could be summed alone; the data of the second
hold a number that no verification draws."""

import sys

import numpy as np
from tinygrad import Tensor

rng = np.random.default_rng(0)
n = int(sys.argv[1]) if len(sys.argv) > 1 else 96
RARE = 12345.678


def drawn(*shape: int) -> Tensor:
    values = rng.normal(size=shape).astype(np.float32)
    values[7, 5] = RARE if shape[0] == 48 else values[7, 5]
    return Tensor(values).realize()


def summed(x: Tensor, y: Tensor) -> Tensor:
    rows = x.shape[0]
    return (x.reshape(rows, n, 1) * y.reshape(rows, 1, n)).sum((1, 2)).realize()


first, second = summed(drawn(64, n), drawn(64, n)), summed(drawn(48, n), drawn(48, n))
print(first.numpy().sum(), second.numpy().sum())
