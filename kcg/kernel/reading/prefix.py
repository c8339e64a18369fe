"""Prefix sums: a reduction over a window that ends at an output's own place, before whose first element all is 0.

tinygrad makes a cumulative sum so (`Tensor.cumsum`): of n elements of a row it pads n - 1 zeros in front and sums a
window of n at each place. Read as it stands that is n terms of each output; one pass over the row gives all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kcg.compat.tiny import AxisType, Ops, UOp
from kcg.kernel.ast import extent, is_symbolic
from kcg.kernel.reading.accesses import Access, loads_of
from kcg.kernel.reading.indices import decided, moved
from kcg.kernel.reading.kernel import TileKernel


@dataclass(frozen=True)
class Prefix:
    """The sum of what stands at each place of a row and at all places before it."""

    reduce: UOp
    along: UOp  # the output range that numbers the places
    value: UOp  # what stands there
    loads: tuple[Access, ...]  # of the kernel, where each place is read once


def prefix_of(kernel: TileKernel) -> Prefix | None:
    """The prefix sum that is a kernel's only reduction; None where it has none."""
    return kernel.once(Prefix, _prefix_of)


def _prefix_of(kernel: TileKernel) -> Prefix | None:
    if len(kernel.reductions) != 1 or len(kernel.stored) != 1 or kernel.grouped:
        return None
    (reduce,) = kernel.reductions
    if reduce.arg[0] is not Ops.ADD or len(reduce.src) != 2 or is_symbolic(reduce.src[1]):
        return None
    window = reduce.src[1]
    for along in kernel.outputs:
        if not is_symbolic(along) and extent(along) == extent(window) > 1 and _is_prefix(reduce.src[0], along, window):
            value = decided(moved(reduce.src[0], {window: window.const_like(extent(window) - 1)}))
            whole = kernel.value.substitute({reduce: value})
            return Prefix(reduce, along, value, tuple(loads_of(whole, *kernel.store.node.src[1:], *kernel.gates)))
    return None


def _is_prefix(body: UOp, along: UOp, window: UOp) -> bool:
    """Whether the terms of an output are those of its place and of all before it: they follow from the sum of both
    ranges alone, and are 0 where that is less than a window's last place."""
    last = extent(window) - 1
    anywhere, before = (UOp.range(count, -1, AxisType.REDUCE) for count in (2 * last + 1, last))
    anything, nothing = (decided(moved(body, {along: place - window})) for place in (anywhere, before))
    return not {along, window} & {*anything.ranges} and nothing.op is Ops.CONST and not nothing.arg
