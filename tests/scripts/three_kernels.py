"""A small tinygrad program of three kernels: a matmul, a product, a sum."""

import numpy as np
from tinygrad import Tensor

rng = np.random.default_rng(0)
x, weight = (Tensor(rng.normal(size=shape).astype(np.float32)).realize() for shape in ((24, 8), (8, 16)))
y = (x @ weight).realize()
print(f"sum {(y * y).realize().sum().item():.3f}")
