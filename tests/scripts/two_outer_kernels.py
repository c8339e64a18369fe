"""Kernels written by hand for two_outer_sums.py: both are right on all that verification draws, one on all numbers."""

from tinygrad import UOp
from tinygrad.uop.ops import AxisType, KernelInfo, Ops

from kcg.kernels import handwritten

INFO = KernelInfo(name="by_hand", opts_to_apply=())
RARE = 12345.678


def _total(x: UOp, rows: int, row: UOp, axis: int, *, but: float | None = None) -> UOp:
    j = UOp.range(x.numel() // rows, axis, axis_type=AxisType.REDUCE)
    element = x.reshape((rows, x.numel() // rows))[row, j]
    element = element if but is None else (element != but).where(element, element.const_like(0.0))
    return element.reduce(j, arg=(Ops.ADD, 0))


@handwritten.uop(matches=lambda kernel: kernel.ops["REDUCE"] == 1 and kernel.outputs[0].size == 64)
def right(out: UOp, x: UOp, y: UOp) -> UOp:
    i = UOp.range(64, 0)
    return out[i].store(_total(x, 64, i, 1) * _total(y, 64, i, 2)).end(i).sink(arg=INFO)


@handwritten.uop(matches=lambda kernel: kernel.ops["REDUCE"] == 1 and kernel.outputs[0].size == 48)
def wrong_where_it_is_rare(out: UOp, x: UOp, y: UOp) -> UOp:
    i = UOp.range(48, 0)
    return out[i].store(_total(x, 48, i, 1, but=RARE) * _total(y, 48, i, 2)).end(i).sink(arg=INFO)
