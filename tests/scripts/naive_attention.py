"""Attention joined with an MLP without a `.contiguous()`: tinygrad computes a matmul three times."""

from tinygrad import Tensor

q, k, v = (Tensor.rand(2, 24, 16).realize() for _ in range(3))
x, weight = Tensor.rand(24, 32).realize(), Tensor.rand(32, 64).realize()
attended = (q @ k.transpose(1, 2)).softmax() @ v
attended.permute(1, 0, 2).reshape(24, 32).cat(x @ weight, dim=1).realize()
