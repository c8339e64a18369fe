"""Reductions in blocks with running error bounds; the rules are in `kcg.kernel.evaluate`, which drives this module."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcg.compat.tiny import DType, Ops, dtypes
from kcg.errors import VerificationError
from kcg.kernel.numerics import CONFIDENT, Value, settled, unit_roundoff

Array = NDArray[Any]

LOOKED_AT = 1 << 10  # terms of a sum in which equal ones are looked for, drawn from all of them
COLUMNS = 128  # sums in which they are

_COMBINE = {Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum}


class Fold:
    """A reduction along the first axis, block after block: ADD, MUL or MAX of `count` terms."""

    def __init__(self, op: Ops, dtype: DType, count: int) -> None:
        if op not in _COMBINE:
            raise VerificationError(f"no reference for a reduction by {op.name}")
        self._op, self._dtype, self._count = op, dtype, count
        self._is_float = dtypes.is_float(dtype)
        self._result: Array | None = None
        # running over the terms: Σ term²; Σ |term|; Σ error² (of MUL relative; of MAX and integers the plain maximum or
        # sum); Σ sign(term) · error; whether all terms are exact integers
        self._squares: Array = np.zeros(())
        self._sizes: Array = np.zeros(())
        self._spread: Array = np.zeros(())
        self._shift: Array = np.zeros(())
        self._integral = True
        self._biased = False  # one part is the same every time: so is the error of adding it, and errors do not cancel
        self._drawn: dict[int, list[Array]] = {}  # by part: some terms of some sums, (terms, sums)
        self._random = np.random.default_rng(0)
        self._parts = 1  # a term that is a sum itself is added part by part: `(a + x) + y`, not `a + (x + y)`

    def add(self, term: Value, terms: int, outer_axes: int) -> None:
        """One block of `terms` terms along the first of `outer_axes` + 1 axes; fewer axes: the same term every time."""
        term = settled(term)
        if term.valid is not None and not term.valid.all():  # what tinygrad leaves of a padding may hide none
            raise VerificationError("a reduction over values that are partly invalid")

        def whole(array: Array) -> Array:
            return np.broadcast_to(array, (terms, *array.shape)) if array.ndim <= outer_axes else array

        data, error = whole(term.data), None if term.error is None else whole(term.error)
        combine = _COMBINE[self._op]
        block = np.asarray(combine.reduce(data, axis=0, dtype=data.dtype))
        self._result = block if self._result is None else np.asarray(combine(self._result, block))
        if self._is_float and self._op is Ops.ADD:
            parts = [whole(part) for part in term.terms] or [data]
            self._parts = max(self._parts, len(parts))
            self._biased = self._biased or any(part.ndim <= outer_axes for part in term.terms)
            for place, part in enumerate(parts):
                if not term.terms or term.terms[place].ndim > outer_axes:
                    self._draw(place, np.broadcast_to(part, data.shape))
                self._sizes = self._sizes + np.abs(part).sum(0)
                self._squares = self._squares + np.square(part).sum(0)
                self._integral = self._integral and error is None and bool((part == np.rint(part)).all())
        if error is None:
            return
        if self._op is Ops.MAX:
            self._spread = np.maximum(self._spread, error.max(0))
        elif not self._is_float:
            self._spread = self._spread + error.sum(0)
        elif self._op is Ops.ADD:
            self._spread = self._spread + np.square(error).sum(0)
            self._shift = self._shift + (np.sign(data) * error).sum(0)
        else:
            self._spread = self._spread + np.square(np.where(error == 0, 0.0, error / np.abs(data))).sum(0)

    def _draw(self, place: int, terms: Array) -> None:
        """Keep copies of some terms of some sums."""
        share, columns = LOOKED_AT / self._count, math.prod(terms.shape[1:])
        rows = np.arange(len(terms)) if share >= 1 else np.flatnonzero(self._random.random(len(terms)) < share)
        terms = terms if terms.ndim > 1 else terms[:, None]
        chosen = np.unravel_index(np.arange(0, columns, -(-columns // COLUMNS) or 1), terms.shape[1:])
        self._drawn.setdefault(place, []).append(terms[(rows[:, None], *(axis[None] for axis in chosen))])

    def _alike(self) -> tuple[Array, Array]:
        """Of each sum, about how many of its terms are not 0, and Σ m² over their values, each of which occurs m times;
        the most of those looked at where these are not all.

        Equal terms are rounded alike, so that m errors are one error, m times as large; adding 0 makes none.
        """
        found = []
        for drawn in self._drawn.values():
            columns = np.concatenate(drawn)
            telling = np.isfinite(columns) & (columns != 0)
            count = telling.sum(0)
            ordered = np.sort(np.where(telling, columns, np.nan), axis=0)  # NaN comes last
            # Σ m² is the number of pairs of equal terms, each with itself too: of a run of m equal ones in order, the
            # first has 1, the second adds 2 · 1 + 1, the third 2 · 2 + 1
            new = np.ones(ordered.shape, bool)
            new[1:] = ordered[1:] != ordered[:-1]
            place = np.arange(len(ordered))[:, None]
            run = place - np.maximum.accumulate(np.where(new, place, 0), axis=0)
            pairs = np.where(place < count, 2 * run + 1, 0).sum(0)
            alike = (pairs - count) / np.maximum(count * (count - 1), 1)  # of all pairs of two
            terms = self._count * count / max(len(columns), 1)
            found.append(np.stack([terms, terms * (1 + alike * np.maximum(terms - 1, 0))]))
        if not found:
            return np.zeros(()), np.zeros(())
        terms, pairs = np.max(found, axis=0)
        shape = np.shape(self._squares)
        if terms.size == math.prod(shape):
            return terms.reshape(shape), pairs.reshape(shape)
        return np.max(terms, initial=0.0), np.max(pairs, initial=0.0)

    def value(self) -> Value:
        """The reduction of all blocks."""
        assert self._result is not None, "a range has at least one value"
        result, spread = self._result, self._spread
        if not self._is_float or self._op is Ops.MAX:
            if self._is_float:  # tinygrad compares and selects: with NaN the result depends on the order
                spread = np.where(np.isnan(result) | np.isnan(spread), np.inf, spread)
            return Value(result, spread if np.any(spread) else None)
        accumulated = unit_roundoff(self._dtype) * math.sqrt(self._count * self._parts)
        if self._op is Ops.MUL:
            error = np.abs(result) * (np.sqrt(spread) + accumulated)
        else:
            error = np.sqrt(spread) + np.abs(self._shift)
            # a sum of integers is exact in any order while every partial sum is small: none is above Σ term²
            if not (self._integral and (self._squares * unit_roundoff(self._dtype) <= 0.5).all()):
                size = np.maximum(np.abs(result), np.sqrt(self._squares))
                terms, pairs = self._alike()
                widened = unit_roundoff(self._dtype) * np.sqrt(pairs * self._parts) * size
                # no error is more: each addition's is that of its partial sum, which is half of Σ |term| on average
                bound = unit_roundoff(self._dtype) * terms * self._parts * self._sizes / 2 / CONFIDENT
                error = error + np.maximum(accumulated * size, np.minimum(widened, bound))
                if self._biased:
                    error = error + unit_roundoff(self._dtype) * self._count * size / CONFIDENT  # a bound
        certain = np.isfinite(spread)  # an infinite or NaN result of certain terms is certain
        error = np.where(np.isfinite(result), np.where(np.isnan(error), np.inf, error), np.where(certain, 0.0, np.inf))
        return Value(result, error if np.any(error) else None)
