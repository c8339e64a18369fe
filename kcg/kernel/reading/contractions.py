"""Contractions: sums of the product of two operands, one with rows and one with columns."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kcg.compat.tiny import DType, Ops, UOp, dtypes
from kcg.kernel.ast import extent
from kcg.kernel.reading.accesses import Stored
from kcg.kernel.reading.factors import Factor, factors_of, product_dtype
from kcg.kernel.reading.one_hot import OneHot, one_hot


@dataclass(frozen=True)
class Operand:
    """One side of a contraction: a product of factors, each a value over `ranges`, the reduced ranges and `batch`.

    A gate is a factor of both sides: where the product is 0, neither operand's infinity or NaN may be left to multiply.
    """

    factors: tuple[Factor, ...]
    ranges: tuple[int, ...]  # output ranges that it depends on and the other side does not
    dtype: DType  # of the block that is multiplied


@dataclass(frozen=True)
class Contraction:
    """A sum over `reduce`'s ranges of the product of two operands, which share the ranges `batch`."""

    reduce: UOp
    sides: tuple[Operand, Operand]
    batch: tuple[int, ...]  # output ranges of both, or of neither


def contractions_of(
    stored: Stored, beside: Collection[OneHot] = ()
) -> tuple[Contraction | None, tuple[Contraction, ...]]:
    """The contraction of a value, and others that are added to it before anything else becomes of them: sums of
    products that a concatenation split. Sums over one-hot rows may stand `beside` them."""
    one_hot_sums = {one.reduce for one in beside}
    reductions = tuple(n for n in stored.value.toposort() if n.op is Ops.REDUCE and n not in one_hot_sums)
    if len(reductions) < 2:
        return contraction_of(reductions, stored.outputs), ()
    found = [contraction_of((node,), stored.outputs) for node in reductions]
    known = [c for c in found if c is not None]
    if len(known) != len(reductions) or not _are_added(stored.value, reductions):
        return None, ()
    first, *rest = known
    if any(c.batch != first.batch or _spans(c) != _spans(first) or c.reduce.dtype != first.reduce.dtype for c in rest):
        return None, ()
    *others, last = sorted((first, *rest), key=lambda c: math.prod(map(extent, c.reduce.src[1:])))
    return last, tuple(others)


def one_hot_sums_of(stored: Stored) -> tuple[OneHot, ...]:
    """The sums over one-hot rows of a value that has other reductions too, of which none is made of another."""
    reductions = [n for n in stored.value.toposort() if n.op is Ops.REDUCE]
    found = [one for one in map(one_hot, reductions) if one is not None]
    if not found or len(found) == len(reductions):
        return ()
    if any(a in b.backward_slice for a in reductions for b in reductions):
        return ()
    return tuple(found)


def _spans(contraction: Contraction) -> list[tuple[int, ...]]:
    return [side.ranges for side in contraction.sides]


def _are_added(value: UOp, reductions: tuple[UOp, ...]) -> bool:
    """Whether reductions are only used as terms of one sum of floats."""
    nodes = list(value.toposort())
    users: dict[UOp, list[UOp]] = {}
    for node in nodes:
        for source in node.src:
            users.setdefault(source, []).append(node)

    def through_casts(node: UOp) -> UOp | None:
        """The one use of a value that is more than a cast of floats."""
        while len(found := users.get(node, [])) == 1:
            (node,) = found
            if node.op is not Ops.CAST or not dtypes.is_float(node.dtype):
                return node
        return None

    def sum_of(node: UOp) -> UOp | None:
        """The whole sum that a value is a term of."""
        found = through_casts(node)
        while found is not None and found.op is Ops.ADD and dtypes.is_float(found.dtype):
            above = users.get(found, [])
            if len(above) != 1 or above[0].op is not Ops.ADD:
                return found
            found = above[0]
        return None

    sums = {sum_of(node) for node in reductions}
    return len(sums) == 1 and None not in sums


def contraction_of(reductions: tuple[UOp, ...], outputs: tuple[UOp, ...]) -> Contraction | None:
    """The kernel's contraction, where its only reduction is a sum of products of two operands with rows and columns."""
    if len(reductions) != 1 or reductions[0].arg[0] is not Ops.ADD:
        return None
    (reduce,) = reductions
    factors = factors_of(reduce.src[0])
    number = {r: i for i, r in enumerate(outputs)}
    over = {f: frozenset(number[r] for r in f.node.ranges if r in number) for f in factors}
    values, gates = [f for f in factors if not f.gate], [f for f in factors if f.gate]
    pairs = [(f, g) for f in values for g in values if over[f] - over[g] and over[g] - over[f]]
    if not pairs:
        return None

    def weight(pair: tuple[Factor, Factor]) -> int:
        f, g = pair
        return min(_size(over[f] - over[g], outputs), _size(over[g] - over[f], outputs))

    first, second = max(pairs, key=weight)
    sides: list[list[Factor]] = [[first], [second]]
    spans = [set(over[first]), set(over[second])]
    others = list(values)  # of a square one of two equal factors is left
    others.remove(first)
    others.remove(second)
    for factor in others:
        place = next((i for i in (0, 1) if not over[factor] & (spans[1 - i] - spans[i])), None)
        if place is None:
            return None  # it joins rows with columns: no product of two operands
        sides[place].append(factor)
        spans[place] |= over[factor]
    batch = spans[0] & spans[1]
    own = [tuple(sorted(span - batch)) for span in spans]
    if not all(own):
        return None
    if any(over[gate] & {*own[0], *own[1]} for gate in gates):
        return None  # the other side has nowhere to leave its values out
    dtype = product_dtype(reduce, sides)
    if dtype is None:
        return None
    rest = set(range(len(outputs))) - set(own[0]) - set(own[1])
    operands = [Operand((*side, *gates), ranges, dtype) for side, ranges in zip(sides, own, strict=True)]
    columns = 1 if max(own[1]) > max(own[0]) else 0  # what is stored side by side
    return Contraction(reduce, (operands[1 - columns], operands[columns]), tuple(sorted(rest)))


def _size(numbers: Iterable[int], outputs: tuple[UOp, ...]) -> int:
    return math.prod(extent(outputs[n]) for n in numbers)
