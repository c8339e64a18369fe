"""Whether a product that a kernel reduces as soon as it is made had better be stored: what both would take.

tinygrad makes `(x @ w).max(1)` one kernel: a loop over terms inside of a loop over columns, which is no matmul that a
tile of registers or a tensor core could make. Stored, it is a matmul and a reduction of its result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kcg.compat.scheduling import simplified
from kcg.compat.tiny import AddrSpace, AxisType, KernelInfo, Ops, ParamArg, UOp, dtypes
from kcg.kernel.ast import extent
from kcg.kernel.reading.kernel import read_ast
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.targets import TARGETS
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.device import unsupported
from kcg.kernel.tile.prior import default_parameters
from kcg.types import Target

GAIN = 2.0
"""From how many times faster on it is said: the costs of reductions were never compared with measurements."""
GAIN_S = 1e-4
"""And from how much on, of one call: small kernels are mostly launches, which other machines have cheaper or dearer."""


@dataclass(frozen=True)
class Stored:
    """What a kernel is expected to take as it is, and as two that store a product which it reduces, in seconds."""

    as_it_is_s: float
    stored_s: float
    model: str  # of the device whose costs these are


def better_stored(ast: UOp, product: UOp, target: Target | None = None) -> Stored | None:
    """What a kernel and two in its place take by the costs of tile programs, where two are faster by `GAIN` and
    `GAIN_S`; else None, and where one of the three kernels has no tile program.

    `product` is a reduction of the AST. Costs are those of `target`, or of an H200 where it has no tile programs.
    """
    target = target if target is not None and not unsupported(target) else TARGETS["sm_90"]
    try:
        whole, first, rest = (_seconds(one, target) for one in (ast, *_parts(ast, product)))
    except UnsupportedTile:
        return None
    gains = whole >= max(GAIN * (first + rest), first + rest + GAIN_S)
    return Stored(whole, first + rest, target.model) if gains else None


def _seconds(ast: UOp, target: Target) -> float:
    kernel = read_ast(simplified(ast))
    return predicted_seconds(kernel, target, default_parameters(kernel, target))


def _parts(ast: UOp, product: UOp) -> tuple[UOp, UOp]:
    """The kernel that stores a product, over all ranges that it depends on, and the one that uses what it stored."""
    ranges = sorted(product.ranges, key=lambda axis: axis.arg)
    size = math.prod(map(extent, ranges))
    slot = 1 + max(int(node.arg.slot) for node in ast.toposort() if _is_buffer(node))
    stored = UOp(Ops.PARAM, product.dtype, (UOp.const(size, dtypes.weakint),), ParamArg(slot, product.dtype))
    address = UOp.const(0, dtypes.weakint)
    for axis in ranges:
        address = address * extent(axis) + axis
    own = {axis: axis.replace(arg=(*axis.arg[:-1], AxisType.WEAK)) for axis in ranges}
    made = stored.index(address).store(product).end(*ranges).substitute(own).sink(arg=KernelInfo())
    return _numbered(made, slot), _numbered(ast.substitute({product: stored.index(address)}), -1)


def _numbered(ast: UOp, first: int) -> UOp:
    """A kernel with its buffers numbered from 0 on, one of them first."""
    buffers = sorted((n for n in ast.toposort() if _is_buffer(n)), key=lambda n: (n.arg.slot != first, n.arg.slot))
    new = {node: node.replace(arg=replace(node.arg, slot=number)) for number, node in enumerate(buffers)}
    return ast.substitute(new, walk=True)


def _is_buffer(node: UOp) -> bool:
    return node.op is Ops.PARAM and node.arg.addrspace is not AddrSpace.ALU
