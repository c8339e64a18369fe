"""A sum of exponentials that are shifted by a maximum, in the loop that finds the maximum.

A softmax's sum needs the maximum of its row, so that a row that is not held is read twice. The dependence can be
broken: where each term has the maximum m of x only in factors 2^(q (m - x) + c), a sum made with a smaller maximum is
right once it is multiplied by 2^(q (m' - m)). That the factor is of the same x keeps it below 2^c. (Milakov and
Gimelshein, Online normalizer calculation for softmax, 2018.)

Each thread keeps a maximum and sums of its own, of a few neighbouring elements in each step, so that a step needs no
exchange between threads and one correction for several elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kcg.compat.tiny import Ops, UOp, dtypes
from kcg.kernel.ast import is_invalid
from kcg.kernel.reading.factors import NARROW
from kcg.kernel.reading.kernel import Shifted

FLOATS = (dtypes.float32, *NARROW)
"""Formats that are computed as float32."""


def shifted_sums(maximum: UOp, reductions: Sequence[UOp]) -> list[Shifted]:
    """The reductions that the loop of a maximum can make."""
    if maximum.arg[0] is not Ops.MAX or not dtypes.is_float(maximum.dtype):
        return []
    found = []
    for node in reductions:
        if node.arg[0] is not Ops.ADD or node.src[1:] != maximum.src[1:] or not dtypes.is_float(node.dtype):
            continue
        inside = node.src[0].backward_slice_with_self
        others = [other for other in reductions if other in inside and other not in (maximum, node)]
        if maximum not in inside or any(not set(node.src[1:]) & set(other.ranges) for other in others):
            continue  # what is made anew for each term is part of it
        factor = _factor(node.src[0], maximum)
        if factor is not None and factor < 0:
            found.append(Shifted(node, factor))
    return found


def _factor(term: UOp, maximum: UOp) -> float | None:
    """The q of a term that is 2^(q maximum) times what does not depend on it; 0 where nothing does; else None."""
    if maximum not in term.backward_slice_with_self:
        return 0.0
    match term.op:
        case Ops.EXP2:
            return _slope(term.src[0], maximum)
        case Ops.CAST if dtypes.is_float(term.dtype):
            return _factor(term.src[0], maximum)
        case Ops.MUL:
            found = [_factor(s, maximum) for s in term.src]
            return None if None in found else math.fsum(f for f in found if f is not None)
        case Ops.WHERE if _is_zero(term.src[2]) and maximum not in term.src[0].backward_slice_with_self:
            return _factor(term.src[1], maximum)
        case Ops.WHERE if _is_zero(term.src[1]) and maximum not in term.src[0].backward_slice_with_self:
            return _factor(term.src[2], maximum)
    return None


def _is_zero(node: UOp) -> bool:
    return bool(node.op is Ops.CONST and node.arg == 0)


def _slope(node: UOp, maximum: UOp) -> float | None:
    """The q of an exponent q (m - x) + c, where m is the maximum of x; None of any other."""
    found = linear(node)
    slope = found.pop(maximum, 0.0)
    of = linear(maximum.src[0])
    places = (set(found) | set(of)) - {None}
    same = all(math.isclose(found.get(n, 0.0), -slope * of.get(n, 0.0), rel_tol=1e-5) for n in places)
    return slope if same else None


def linear(node: UOp) -> dict[UOp | None, float]:
    """A value as a sum of others times constants; at None the constant."""
    match node.op:
        case Ops.CONST if not is_invalid(node):
            return {None: float(node.arg)}
        case Ops.CAST if dtypes.is_float(node.dtype) and dtypes.is_float(node.src[0].dtype):
            return linear(node.src[0])
        case Ops.ADD:
            total: dict[UOp | None, float] = {}
            for part in map(linear, node.src):
                for place, factor in part.items():
                    total[place] = total.get(place, 0.0) + factor
            return total
        case Ops.MUL:
            for one, other in (node.src, node.src[::-1]):
                if other.op is Ops.CONST and not is_invalid(other):
                    return {place: factor * float(other.arg) for place, factor in linear(one).items()}
    return {node: 1.0}


def scaled(node: UOp) -> tuple[UOp, float]:
    """A value as another one times a constant; rounding to 16 bits in between is left out, as everywhere."""
    factor = 1.0
    while True:
        match node.op:
            case Ops.MUL if node.src[1].op is Ops.CONST and dtypes.is_float(node.dtype) and not is_invalid(node.src[1]):
                node, factor = node.src[0], factor * float(node.src[1].arg)
            case Ops.CAST if node.dtype in FLOATS and node.src[0].dtype in FLOATS:
                node = node.src[0]
            case _:
                return node, factor


def running(maximum: UOp, of: Shifted) -> tuple[UOp, UOp]:
    """What stands for the maximum so far, which changes in the loop, and the sum made with it."""
    stand_in = UOp(Ops.NOOP, maximum.dtype, src=(*maximum.src[1:], *maximum.ranges))
    return stand_in, of.node.replace(src=(of.node.src[0].substitute({maximum: stand_in}), *of.node.src[1:]))


def is_running(node: UOp) -> bool:
    """Whether a value is a maximum so far, maybe times a constant."""
    return scaled(node)[0].op is Ops.NOOP
