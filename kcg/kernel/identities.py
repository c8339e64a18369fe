"""What follows from the form of an expression, whatever the data: `y != y` is false unless y is NaN, and `x - x` is 0.

The reference bounds the rounding errors of both sides of a comparison as if they had nothing to do with each other. Two
sides that are one expression are off by the same error, so that their comparison is exact. tinygrad keeps equal
expressions as one node; casts that lose nothing, factors of 1, sums with 0 and double negations are looked through.
"""

from __future__ import annotations

from typing import NamedTuple

from kcg.compat.tiny import DType, GroupOp, Invalid, Ops, UOp, dtypes
from kcg.kernel.numerics import significant_bits

MOST_RELATED = 16  # terms of a sum that are compared with others


class Identities(NamedTuple):
    """The nodes of a kernel whose value or certainty follows from their form."""

    same: frozenset[UOp]  # comparisons of a value with itself
    zero: dict[UOp, UOp]  # x - x: the x of each, which tinygrad folds to 0 whatever x is
    related: frozenset[UOp]  # sums whose operands share a term, so that inf - inf may come out as anything
    positive: frozenset[UOp]  # arguments of roots and logarithms that no rounding makes negative


def identities(ast: UOp) -> Identities:
    """Read the identities off a kernel."""
    same: set[UOp] = set()
    zero: dict[UOp, UOp] = {}
    related: set[UOp] = set()
    positive: set[UOp] = set()
    terms: dict[UOp, frozenset[UOp]] = {}
    known: dict[UOp, bool] = {}
    for node in ast.toposort():
        if node.op in GroupOp.Comparison:
            if _plain(node.src[0]) == _plain(node.src[1]):
                same.add(node)
        elif node.op is Ops.ADD and dtypes.is_float(node.dtype):
            a, b = (terms.get(side, frozenset((_scaled(side)[0],))) for side in node.src)
            if len(a | b) <= MOST_RELATED:
                terms[node] = a | b
            if a & b or len(a | b) > MOST_RELATED:
                related.add(node)
            (x, factor), (y, other) = (_scaled(side) for side in node.src)
            if x is y and factor + other == 0:
                zero[node] = x
        elif node.op in (Ops.SQRT, Ops.LOG2) and _not_negative(node.src[0], known):
            positive.add(node)
    return Identities(frozenset(same), zero, frozenset(related), frozenset(positive))


def _constant(node: UOp) -> float | None:
    if node.op is not Ops.CONST or node.arg is Invalid:
        return None
    return float(node.arg)


def _keeps(source: DType, target: DType) -> bool:
    """Whether a cast loses nothing and keeps what differs different."""
    if source is target or source is dtypes.bool:
        return True
    if dtypes.is_float(source) and dtypes.is_float(target):
        return source not in dtypes.weaks and significant_bits(source) <= significant_bits(target)
    both = dtypes.is_int(source) and dtypes.is_int(target) and source not in dtypes.weaks
    return (
        both and bool(dtypes.is_unsigned(source) == dtypes.is_unsigned(target)) and source.itemsize <= target.itemsize
    )


def _plain(node: UOp) -> tuple[UOp, int]:
    """The expression that a node has the value of, and with which sign."""
    sign = 1
    while True:
        match node.op:
            case Ops.CAST if _keeps(node.src[0].dtype, node.dtype):
                node = node.src[0]
                continue
            case Ops.NEG if dtypes.is_float(node.dtype):
                node, sign = node.src[0], -sign
                continue
            case Ops.MAX | Ops.WHERE if node.src[-1] is node.src[-2]:
                node = node.src[-1]
                continue
        a, b = node.src if len(node.src) == 2 else (node, node)
        neutral = {Ops.ADD: (0.0,), Ops.MUL: (1.0, -1.0) if dtypes.is_float(node.dtype) else (1.0,)}.get(node.op, ())
        factor = next((value for value in map(_constant, (b, a)) if value in neutral), None) if neutral else None
        if factor is None:
            return node, sign
        node, sign = (a if _constant(b) == factor else b), -sign if factor < 0 else sign


def _scaled(node: UOp) -> tuple[UOp, float]:
    """A node as an expression times a constant."""
    if node.op is Ops.NEG:
        return node.src[0], -1.0
    if node.op is Ops.MUL:
        for x, c in (node.src, node.src[::-1]):
            if (factor := _constant(c)) is not None:
                return x, factor
    return node, 1.0


def _not_negative(node: UOp, known: dict[UOp, bool]) -> bool:
    """Whether a right kernel can compute no negative value (NaN aside)."""
    if node not in known:
        known[node] = False  # a node is no part of itself
        known[node] = _made_of_squares(node, known)
    return known[node]


def _made_of_squares(node: UOp, known: dict[UOp, bool]) -> bool:
    if (value := _constant(node)) is not None:
        return value >= 0
    if dtypes.is_unsigned(node.dtype) or node.dtype is dtypes.bool or node.op in (Ops.EXP2, Ops.SQRT):
        return True
    match node.op:
        case Ops.MUL if _plain(node.src[0])[0] is _plain(node.src[1])[0] and dtypes.is_float(node.dtype):
            return _plain(node.src[0])[1] == _plain(node.src[1])[1]
        case Ops.CAST | Ops.RECIPROCAL | Ops.REDUCE:
            return _not_negative(node.src[0], known)
        case Ops.ADD | Ops.MUL:
            return all(_not_negative(side, known) for side in node.src)
        case Ops.MAX:
            return any(_not_negative(side, known) for side in node.src)
        case Ops.WHERE:
            return all(_not_negative(side, known) for side in node.src[1:])
    return False
