"""Tensors sharded over two devices: a matmul split by rows, a reduction over both, and a copy back."""

from tinygrad import Device, Tensor

devices = tuple(f"{Device.DEFAULT}:{i}" for i in range(2))


def table(rows: int, columns: int) -> Tensor:
    return Tensor([[((7 * i + 3 * j) % 11) / 11 - 0.4 for j in range(columns)] for i in range(rows)]).realize()


x = table(8, 16).shard(devices, axis=0).realize()
weight = table(16, 12).shard(devices).realize()
y = (x @ weight).relu().realize()
part = (Tensor.arange(8).shard(devices, axis=0).reshape(8, 1) + y).realize()
print(f"sum {y.sum().item():.3f} {part.sum().item():.3f}")
