"""Custom kernels between tinygrad's own: one with a name, run three times; one whose schedule its author fixed, run
twice; and one that no scheduler makes."""

from tinygrad import Tensor, UOp
from tinygrad.uop.ops import AxisType, KernelInfo, Ops


def doubled(out: UOp, x: UOp) -> UOp:
    i = UOp.range(x.shape[0], 0)
    return out[i].store(x[i] * 2).end(i).sink(arg=KernelInfo(name="doubled"))


def spread_out(out: UOp, x: UOp) -> UOp:
    i, j = UOp.range(x.shape[0] // 4, 0, AxisType.GLOBAL), UOp.range(4, 1)
    return out[i * 4 + j].store(x[i * 4 + j] * 2).end(i, j).sink(arg=KernelInfo())


def fixed_sums(out: UOp, x: UOp) -> UOp:
    i, j = UOp.range(4, 0), UOp.range(4, 1, AxisType.REDUCE)
    total = x.reshape(4, 4)[i, j].reduce(j, arg=Ops.ADD)
    return out[i].store(total).end(i).sink(arg=KernelInfo(name="fixed_sums", opts_to_apply=()))


x = Tensor.arange(16).float().clone().realize()
for _ in range(3):
    x = Tensor.empty(16).custom_kernel(x, fxn=doubled)[0].realize()
y = Tensor.empty(16).custom_kernel(x, fxn=spread_out)[0].realize()
for _ in range(2):
    z = Tensor.empty(4).custom_kernel(y, fxn=fixed_sums)[0].realize()
print(f"sum {y.sum().item():.1f}")
