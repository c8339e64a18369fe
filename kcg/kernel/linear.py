"""Which stored values are linear, and the terms that they are sums of; `kcg.kernel.projection` computes with these."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kcg.compat.tiny import AddrSpace, Ops, UOp, dtypes
from kcg.kernel.affine import Access, access_of, affine, cast_variance, load_of
from kcg.kernel.evaluate import buffer_of, buffers, store_of
from kcg.kernel.numerics import unit_roundoff


@dataclass(frozen=True, eq=False)
class Term:
    """`scale · Π rows · Π columns · Σ_reduced other · summed`, or an elementwise `element` instead.

    `summed` depends on c, `other`, `rows` and `element`'s other ranges are those of o' (and `reduced`). Variances are
    squares of relative rounding errors.
    """

    scale: float = 1.0
    rows: tuple[UOp, ...] = ()  # factors that do not depend on c
    columns: tuple[UOp, ...] = ()  # factors that depend on c only
    summed: Access | None = None
    other: Access | None = None
    element: UOp | None = None
    reduced: tuple[UOp, ...] = ()
    variance: float = 0.0  # of the term after its sum
    product_variance: float = 0.0  # of each product before it
    sum_variance: float = 0.0  # of the sum, relative to the root sum of squares of the products
    bits: int = 53  # significant bits of the narrowest float computed on the way


@dataclass(frozen=True, eq=False)
class Projection:
    """How to project what one store writes. The rows are o', flattened in the order of the output's memory."""

    ast: UOp
    store: int  # which source of the sink
    slot: int
    column: UOp  # the range c
    columns: int
    row_ranges: tuple[UOp, ...]
    row_shape: tuple[int, ...]
    output: Access
    terms: tuple[Term, ...]
    variance: float  # (relative rounding error)² of casts of the whole value

    @property
    def rows(self) -> int:
        """How many numbers a projection is."""
        return math.prod(self.row_shape)


def plan(ast: UOp, store: int = 0) -> Projection | None:
    """How to project one store; None if it is not linear, or there is no range to project along.

    Of the ranges that would do, the longest: then a projection is the fewest numbers. Of equals the one whose elements
    are closest in memory.
    """
    sink = ast.src[store]
    nodes = ast.toposort()
    if sink.op is not Ops.END or any(node.op is Ops.RANGE and affine(node) is None for node in nodes):
        return None
    if any(node.op is Ops.PARAM and node.arg.addrspace is AddrSpace.ALU for node in nodes):
        return None
    if any(node.op is Ops.INDEX and node.dtype in dtypes.fp8s for node in nodes):
        return None  # their subnormals, of which there are many, may be 0 where tinygrad emulates them
    target, value = store_of(sink).src
    slot = buffer_of(target).arg.slot
    shared = [buffer_of(store_of(s).src[0]).arg.slot for s in ast.src].count(slot) > 1
    in_place = any(use.slot == slot and use.is_input for use in buffers(ast))
    output = access_of(target)
    if any(node.op is Ops.CONST and isinstance(node.arg, float) and not math.isfinite(node.arg) for node in nodes):
        return None  # a mask of -inf: infinities have no sum
    if output is None or output.mask or in_place or shared or not dtypes.is_float(target.dtype):
        return None
    order = sorted(output.strides, key=lambda r: -output.strides[r])
    if set(order) != set(sink.src[1:]) or not _distinct(order, output):
        return None
    variance, bits = 0.0, significant_bits(target)
    while value.op is Ops.CAST and dtypes.is_float(value.src[0].dtype):
        variance, bits = variance + cast_variance(value), min(bits, significant_bits(value))
        value = value.src[0]
    for column in sorted(order, key=lambda r: (-extent(r), output.strides[r])):
        rows = tuple(r for r in order if r is not column)
        found = _terms(value, column, frozenset(rows)) if extent(column) > 1 else None
        if found is not None and any(t.reduced for t in found):
            terms = tuple(replace(t, bits=min(t.bits, bits)) for t in found)
            shape = tuple(map(extent, rows))
            return Projection(ast, store, slot, column, extent(column), rows, shape, output, terms, variance)
    return None


def chain(node: UOp) -> tuple[int, int]:
    """`(terms, factors)` of the longest chain of nested sums in a value: how many products, each of how many loads."""
    known: dict[UOp, tuple[int, int]] = {}
    for n in node.toposort():
        if n.op is Ops.INDEX:
            known[n] = 1, 1
        elif n.op in (Ops.RANGE, Ops.PARAM, Ops.CONST):
            known[n] = 1, 0
        elif n.op is Ops.REDUCE:
            terms, factors = known[n.src[0]]
            known[n] = terms * math.prod(int(r.vmax) + 1 for r in n.src[1:]), factors
        else:
            parts = [known[s] for s in n.src]
            loads = [factors for _, factors in parts]
            combined = sum(loads) if n.op is Ops.MUL else max(loads, default=0)
            known[n] = max((terms for terms, _ in parts), default=1), combined
    return known[node]


def extent(axis: UOp) -> int:
    """The extent of a range that is not symbolic."""
    return int(axis.src[0].arg)


def significant_bits(node: UOp) -> int:
    """The significant bits of a float."""
    return round(-math.log2(unit_roundoff(node.dtype)))


def _distinct(order: list[UOp], output: Access) -> bool:
    """Whether no two points write one element: each stride steps over all that the smaller ones reach."""
    reach = 0
    for axis in reversed(order):
        if output.strides[axis] <= reach:
            return False
        reach += output.strides[axis] * (extent(axis) - 1)
    return True


def _has_sum(node: UOp) -> bool:
    return any(n.op is Ops.REDUCE for n in node.toposort())


def _terms(node: UOp, column: UOp, rows: frozenset[UOp]) -> tuple[Term, ...] | None:
    """The terms of a value, None if it is not a sum of such."""
    if not dtypes.is_float(node.dtype):
        return None
    own = unit_roundoff(node.dtype) ** 2
    found: list[Term] = []
    if node.op is Ops.ADD:
        for source in node.src:
            part = _terms(source, column, rows)
            if part is None:
                return None
            found.extend(part)
    elif not _has_sum(node):
        return (_elementwise(node, column),)
    elif node.op is Ops.REDUCE:
        return _sum(node, column, rows)
    elif node.op is Ops.CAST:
        found, own = list(_terms(node.src[0], column, rows) or ()), cast_variance(node)
    elif node.op is Ops.MUL and not (_has_sum(node.src[0]) and _has_sum(node.src[1])):
        linear, factor = node.src if _has_sum(node.src[0]) else node.src[::-1]
        by = _elementwise(factor, column)
        if by.summed is not None or by.element is not None:
            return None
        for t in _terms(linear, column, rows) or ():
            scale, variance = t.scale * by.scale, t.variance + by.variance
            found.append(
                replace(t, scale=scale, rows=t.rows + by.rows, columns=t.columns + by.columns, variance=variance)
            )
    bits = significant_bits(node)
    return tuple(replace(t, variance=t.variance + own, bits=min(t.bits, bits)) for t in found) or None


def _elementwise(node: UOp, column: UOp) -> Term:
    """A value without sums: its factors by what they depend on. What depends on both c and o' is kept whole."""
    parts = list(_factors(node))
    both = [f for f in parts if column in f.ranges and len(f.ranges) > 1]
    load = load_of(both[0]) if len(both) == 1 else None
    if both and load is None:
        return Term(element=node)
    products = [n for n in node.toposort() if n.op is Ops.MUL and dtypes.is_float(n.dtype)]
    return Term(
        scale=_constant(parts),
        rows=tuple(f for f in parts if column not in f.ranges and f.op is not Ops.CONST),
        columns=tuple(f for f in parts if column in f.ranges and f not in both),
        summed=load,
        variance=sum(unit_roundoff(n.dtype) ** 2 for n in products),
        bits=min(map(significant_bits, products), default=53),
    )


def _constant(factors: list[UOp]) -> float:
    return math.prod((float(f.arg) for f in factors if f.op is Ops.CONST), start=1.0)


def _factors(node: UOp) -> Iterator[UOp]:
    """The factors of a product, through casts that change no value."""
    if node.op is Ops.MUL:
        for source in node.src:
            yield from _factors(source)
    elif node.op is Ops.CAST and dtypes.is_float(node.src[0].dtype) and not cast_variance(node):
        yield from _factors(node.src[0])
    else:
        yield node


def _sum(node: UOp, column: UOp, rows: frozenset[UOp]) -> tuple[Term, ...] | None:
    """A sum of products of constants and at most two loads, of which exactly one depends on c."""
    reduced, body = node.src[1:], node.src[0]
    if node.arg[0] is not Ops.ADD or _has_sum(body):
        return None
    parts = list(_factors(body))
    loads = [load_of(f) for f in parts if f.op is not Ops.CONST]
    known = [load for load in loads if load is not None and {*load.strides} <= {column, *rows, *reduced}]
    with_column = [load for load in known if column in load.strides]
    if len(known) != len(loads) or len(known) > 2 or len(with_column) != 1:
        return None
    products = [n for n in body.toposort() if n.op is Ops.MUL and dtypes.is_float(n.dtype)]
    used = {r for load in known for r in load.strides}
    term = Term(
        scale=_constant(parts) * math.prod(extent(r) for r in reduced if r not in used),
        summed=with_column[0],
        other=next((load for load in known if load is not with_column[0]), None),
        reduced=tuple(r for r in reduced if r in used),
        product_variance=sum(unit_roundoff(n.dtype) ** 2 for n in products) + sum(load.variance for load in known),
        sum_variance=unit_roundoff(node.dtype) ** 2 * math.prod(map(extent, reduced)),
        bits=min(map(significant_bits, [node, *products])),
    )
    return (term,)
