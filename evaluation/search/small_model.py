"""A small model to optimise: matmul with GELU, matmul, sum of rows. Three kernels, under a millisecond on a GPU.

python -m kcg.optimize evaluation/search/small_model.py --budget 10s
"""

from __future__ import annotations

import numpy as np
from tinygrad import Device, Tensor

ROWS, WIDTH = (64, 128) if Device.DEFAULT == "CPU" else (1024, 1024)


def model(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Shapes: x (ROWS, WIDTH), up (WIDTH, 2 WIDTH), down (2 WIDTH, WIDTH); the result is (ROWS,)."""
    hidden = (x @ up).gelu().contiguous()
    return (hidden @ down).contiguous().sum(1)


if __name__ == "__main__":
    shapes = (ROWS, WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH)
    rng = np.random.default_rng(0)  # and not tinygrad's, whose kernels would be optimised too
    model(*(Tensor(rng.standard_normal(shape, np.float32)) for shape in shapes)).realize()
