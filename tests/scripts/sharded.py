"""Tensors sharded over two devices: a matmul split by rows, a reduction over both, and a copy back."""

from tinygrad import Device, Tensor

devices = tuple(f"{Device.DEFAULT}:{i}" for i in range(2))
Tensor.manual_seed(3)
x = Tensor.randn(8, 16).realize().shard(devices, axis=0).realize()
weight = Tensor.randn(16, 12).realize().shard(devices).realize()
y = (x @ weight).relu().realize()
part = (Tensor.arange(8).shard(devices, axis=0).reshape(8, 1) + y).realize()
print(f"sum {y.sum().item():.3f} {part.sum().item():.3f}")
