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

LOOKED_AT = 1 << 13  # terms of a sum in which equal ones are looked for, drawn from all of them
COLUMNS = 8  # sums in which they are

_COMBINE = {Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum}


class Fold:
    """A reduction along the first axis, block after block: ADD, MUL or MAX of `count` terms."""

    def __init__(self, op: Ops, dtype: DType, count: int) -> None:
        if op not in _COMBINE:
            raise VerificationError(f"no reference for a reduction by {op.name}")
        self._op, self._dtype, self._count = op, dtype, count
        self._is_float = dtypes.is_float(dtype)
        self._result: Array | None = None
        # running over the terms: Σ term²; Σ error² (of MUL relative; of MAX and integers the plain maximum or sum);
        # Σ sign(term) · error; whether all terms are exact integers
        self._squares: Array = np.zeros(())
        self._spread: Array = np.zeros(())
        self._shift: Array = np.zeros(())
        self._integral = True
        self._biased = False  # one part is the same every time: so is the error of adding it, and errors do not cancel
        self._drawn: list[Array] = []  # terms of some sums, (terms, sums)
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
                    self._draw(part)
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

    def _draw(self, terms: Array) -> None:
        """Keep some terms of some sums."""
        share = LOOKED_AT / self._count
        chosen = terms if share >= 1 else terms[self._random.random(len(terms)) < share]
        columns = math.prod(terms.shape[1:])
        self._drawn.append(chosen.reshape(len(chosen), columns)[:, :: max(1, columns // COLUMNS)][:, :COLUMNS])

    def _repeats(self) -> float:
        """Σ m² / K of the K terms of a sum in which a value occurs m times: 1 where all differ.

        Equal terms are rounded alike, so that m errors are one error, m times as large; adding 0 makes none.
        """
        found = 1.0
        for column in np.concatenate(self._drawn).T if self._drawn else ():
            values = column[column != 0]
            if len(values) > 1:
                times = np.unique(values, return_counts=True)[1].astype(np.float64)
                alike = (np.square(times).sum() - len(values)) / (len(values) * (len(values) - 1))  # of all pairs
                found = max(found, 1 + alike * (self._count * len(values) / len(column) - 1))
        return found

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
                error = error + accumulated * math.sqrt(self._repeats()) * size
                if self._biased:
                    error = error + unit_roundoff(self._dtype) * self._count * size / CONFIDENT  # a bound
        certain = np.isfinite(spread)  # an infinite or NaN result of certain terms is certain
        error = np.where(np.isfinite(result), np.where(np.isnan(error), np.inf, error), np.where(certain, 0.0, np.inf))
        return Value(result, error if np.any(error) else None)
