"""Two kernels: a matmul, and one whose output is NaN whatever its input, so that no reference can judge it."""

import sys

import numpy as np
from tinygrad import Tensor

rng = np.random.default_rng(0)
x, weight = (Tensor(rng.normal(size=shape).astype(np.float32)).realize() for shape in ((24, 64), (64, 48)))
if "alone" not in sys.argv:
    print((x @ weight).numpy())  # read, so that the script is compared with what its matmul left
(-(x.abs()) - 1).log().realize()
