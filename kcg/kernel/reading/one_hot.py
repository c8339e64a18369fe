"""Sums over one-hot rows: each term is added to one row, whose number is read, and is 0 in all others.

So tinygrad makes the gradient of a table whose rows were read, as of an embedding: for each row of the table it goes
through all that was read. A program that first looks which terms its rows have goes through those alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kcg.compat.tiny import Ops, UOp, dtypes
from kcg.kernel.ast import extent, is_symbolic
from kcg.kernel.reading.factors import is_zero

MOST_OF_ROW = 8
"""Terms of a row, on average: a program adds them one after the other, and of more it goes through all at once."""


@dataclass(frozen=True)
class OneHot:
    """A sum of which a row has a term only where a number that is read is its own."""

    reduce: UOp
    chosen: UOp  # whether a row has a term, over the row's ranges and the sum's
    rows: tuple[UOp, ...]  # output ranges that number the rows

    @property
    def terms(self) -> int:
        """Of all rows."""
        return math.prod(map(extent, self.reduce.src[1:]))

    @property
    def terms_of_row(self) -> float:
        """On average."""
        return self.terms / math.prod(map(extent, self.rows))


def one_hot(reduce: UOp) -> OneHot | None:
    """A reduction as a sum over one-hot rows. None where it is none, is symbolic, is made of other reductions, or has
    few rows for its terms."""
    if reduce.arg[0] is not Ops.ADD or any(map(is_symbolic, reduce.src[1:])):
        return None
    if any(node.op is Ops.REDUCE for node in reduce.src[0].toposort()):
        return None
    term = reduce.src[0]
    while term.op is Ops.CAST and dtypes.is_float(term.dtype):
        term = term.src[0]
    if term.op is not Ops.WHERE or not dtypes.is_float(term.dtype):
        return None
    condition, one, other = term.src
    if is_zero(one) == is_zero(other):
        return None
    chosen = condition.ne(True) if is_zero(one) else condition
    rows = _rows_of(condition, frozenset(reduce.src[1:]), equal=is_zero(other))
    found = OneHot(reduce, chosen, rows)
    return found if rows and found.terms_of_row <= MOST_OF_ROW else None


def _rows_of(condition: UOp, terms: frozenset[UOp], *, equal: bool) -> tuple[UOp, ...]:
    """The ranges that number the rows, where a condition compares a row's number with one that is read for a term,
    and holds if they are `equal` or if they are not; none where it is another."""
    if condition.op is not (Ops.CMPEQ if equal else Ops.CMPNE):
        return ()
    for row, number in (condition.src, condition.src[::-1]):
        is_read = any(node.op is Ops.INDEX for node in number.toposort())
        if any(node.op is Ops.INDEX for node in row.toposort()) or not is_read:
            continue
        if terms & {*row.ranges} or dtypes.is_float(row.dtype) or any(map(is_symbolic, row.ranges)):
            continue
        if row.ranges and number.ranges and {*number.ranges} <= terms:
            return tuple(row.ranges)
    return ()
