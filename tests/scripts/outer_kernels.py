"""Kernels written by hand for outer_sum.py: one that wins, some that do not, and some that cannot."""

import os

from tinygrad import UOp
from tinygrad.uop.ops import AxisType, KernelInfo, Ops

from kcg.kernels import KernelView, Launch, handwritten

INFO = KernelInfo(name="by_hand", opts_to_apply=())


def summed(kernel: KernelView) -> bool:
    return kernel.ops["REDUCE"] == 1 and len(kernel.buffers) == 3 and kernel.outputs[0].size == 64


def _total(x: UOp, row: UOp, axis: int) -> UOp:
    j = UOp.range(x.numel() // 64, axis, axis_type=AxisType.REDUCE)
    return x.reshape((64, x.numel() // 64))[row, j].reduce(j, arg=(Ops.ADD, 0))


@handwritten.uop(matches=summed)
def apart(out: UOp, x: UOp, y: UOp) -> UOp:
    i = UOp.range(64, 0)
    return out[i].store(_total(x, i, 1) * _total(y, i, 2)).end(i).sink(arg=INFO)


@handwritten.uop(matches=summed)
def as_it_is(out: UOp, x: UOp, y: UOp, *, kernel: KernelView) -> UOp:
    return kernel.ast.replace(arg=INFO)


@handwritten.uop(matches=summed)
def wrong(out: UOp, x: UOp, y: UOp) -> UOp:
    i = UOp.range(64, 0)
    return out[i].store(_total(x, i, 1) + _total(y, i, 2)).end(i).sink(arg=INFO)


@handwritten.uop(matches=summed)
def outside(out: UOp, x: UOp, y: UOp) -> UOp:
    i = UOp.range(64, 0)
    return out[i + 64].store(_total(x, i, 1) * _total(y, i, 2)).end(i).sink(arg=INFO)


@handwritten.uop(matches=summed)
def one_buffer(out: UOp) -> UOp:
    return out.sink()


@handwritten.uop(matches=summed)
def dies(out: UOp, x: UOp, y: UOp) -> UOp:
    os._exit(3)


@handwritten.uop(matches=summed)
def raises(out: UOp, x: UOp, y: UOp) -> UOp:
    raise LookupError("no such tile")


@handwritten.uop(matches=lambda kernel: kernel.no_such_field > 1)
def curious(out: UOp) -> UOp: ...


@handwritten.cuda(matches=summed, launch=Launch((8,), (32,)))
def for_a_gpu(kernel: KernelView) -> str:
    return ""


@handwritten.uop(matches="abcdef0123")
def for_nothing(out: UOp) -> UOp: ...


print("this goes to stderr, not into the JSON")
