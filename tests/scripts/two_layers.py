"""A small tinygrad program, as a user would write it: two layers, run three times."""

import sys

from tinygrad import Tensor, TinyJit

Tensor.manual_seed(0)
size = int(sys.argv[1]) if len(sys.argv) > 1 else 64
first, second = Tensor.randn(size, 2 * size).realize(), Tensor.randn(2 * size, size).realize()


@TinyJit
def forward(x: Tensor) -> Tensor:
    return ((x @ first).relu() @ second).softmax().realize()


for _ in range(4):
    out = forward(Tensor.randn(48, size).realize())
print(f"sum {out.sum().item():.3f}")
