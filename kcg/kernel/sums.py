"""The sums of a kernel: by how much another order of their terms may change them, and the kernel with such sums.

K terms added one after the other have a relative error of about 0.2·√K rounding units of the dtype that they are summed
in (a random walk). Sums that look a row of a table up round nothing (`kcg.kernel.choices`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from kcg.compat.tiny import DType, Ops, UOp, dtypes
from kcg.kernel.choices import choosing_sums

WALK = 0.2
_WIDE = (dtypes.float32, dtypes.float64)


def eps_of(dtype: DType) -> float:
    """Distance from 1 to the next number of a floating dtype."""
    return float(2.0 ** -dtypes.finfo(dtype)[1])


def rounding_of_sums(asts: Iterable[UOp]) -> float:
    """The largest √K·eps of all sums of some kernels, which choose from tables that one of them may make of another."""
    return max((_root(node) for node in _rounding_sums(list(asts))), default=0.0)


def summed_otherwise(ast: UOp) -> UOp | None:
    """A kernel whose sums differ from those of this one by what another order of their terms may do, e = 0.2·√K·eps:
    three of seven terms are 1 + e times as large, the others 1 - e times, which moves a sum that cancels as rounding
    does, and the sum is 1 + e times as large, which moves one that does not. None where nothing rounds, or what is
    stored is of less than 32 bits: the rounding of that hides it."""
    if not any(node.op is Ops.STORE and node.src[1].dtype in _WIDE for node in ast.toposort()):
        return None
    new = {node: _otherwise(node) for node in _rounding_sums([ast])}
    return ast.substitute(new) if new else None


def _rounding_sums(asts: list[UOp]) -> Iterator[UOp]:
    exact = choosing_sums(asts)
    for ast in asts:
        for node in ast.toposort():
            is_sum = node.op is Ops.REDUCE and node.arg[0] is Ops.ADD and dtypes.is_float(node.dtype)
            if is_sum and node not in exact:
                yield node


def _root(node: UOp) -> float:
    terms = math.prod(int(axis.vmax) + 1 for axis in node.src[1:])
    return math.sqrt(terms) * eps_of(node.dtype)


def _otherwise(node: UOp) -> UOp:
    by = max(WALK * _root(node), eps_of(node.dtype))
    term, ranges = node.src[0], node.src[1:]
    place = sum(ranges[1:], ranges[0])
    one = (place % 7 < 3).where(term.const_like(1 + by), term.const_like(1 - by))
    return node.replace(src=(term * one, *ranges)) * node.const_like(1 + by)
