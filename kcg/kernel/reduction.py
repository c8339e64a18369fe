"""Reductions in blocks with running error bounds; the rules are in `kcg.kernel.evaluate`, which drives this module."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcg.compat.tiny import DType, Ops, dtypes
from kcg.errors import VerificationError
from kcg.kernel.numerics import (
    CONFIDENT,
    OVERFLOWED,
    Value,
    largest_of,
    may_wrap,
    settled,
    smallest_normal,
    subnormal_step,
    unit_roundoff,
)

Array = NDArray[Any]

LOOKED_AT = 1 << 12  # terms of a sum in which equal ones are looked for, drawn from all of them
COLUMNS = 128  # sums in which they are

PARTS = (1.0, 0.5, 0.25)  # of a sum, in each of which its last terms may be added
SPARED_BITS = 4  # of a term's last, where it was rounded itself before it is added
_COMBINE = {Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum}
_NEUTRAL = {Ops.ADD: 0.0, Ops.MUL: 1.0, Ops.MAX: -math.inf}


class Fold:
    """A reduction along the first axis, block after block: ADD, MUL or MAX of `count` terms.

    `unrelated` says that no factor of its terms may be moved out of it: inf - inf is NaN then, in every order.
    """

    def __init__(self, op: Ops, dtype: DType, count: int, *, unrelated: bool = False) -> None:
        if op not in _COMBINE:
            raise VerificationError(f"no reference for a reduction by {op.name}")
        self._op, self._dtype, self._count, self._unrelated = op, dtype, count, unrelated
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
        self._nonzero: Array = np.zeros(())  # terms that are not 0
        self._hidden: Array = np.asarray(False)  # sums of which a term is invalid: tinygrad may add anything for it
        self._settled: Array = np.asarray(False)  # where one term decides alone: a certain True of any(), an infinity
        self._no_number: Array = np.asarray(False)  # where a term is NaN for certain
        self._doubtful: Array = np.asarray(False)  # where a term that is infinite is an overflow
        self._large: Array = np.ones(())  # Π max(|term|, 1) and Π min(|term|, 1): what partial products may come to
        self._small: Array = np.ones(())
        self._wide: Array = np.ones(()) if op is Ops.MUL else np.zeros(())  # the result of integers, in float64
        self._wrapped: Array = np.asarray(False)  # where a term overflowed
        self._parts = 1  # a term that is a sum itself is added part by part: `(a + x) + y`, not `a + (x + y)`

    def add(self, term: Value, terms: int, outer_axes: int) -> None:
        """One block of `terms` terms along the first of `outer_axes` + 1 axes; fewer axes: the same term every time."""
        if self._is_float or self._op is Ops.MAX:
            term = settled(term)

        def whole(array: Array) -> Array:
            return np.broadcast_to(array, (terms, *array.shape)) if array.ndim <= outer_axes else array

        if term.valid is not None and not term.valid.all():
            term = self._hide(term, whole(term.valid))
        data, error = whole(term.data), None if term.error is None else whole(term.error)
        combine = _COMBINE[self._op]
        block = np.asarray(combine.reduce(data, axis=0, dtype=data.dtype))
        self._result = block if self._result is None else np.asarray(combine(self._result, block))
        if self._is_float:
            self._look_at_extremes(data, error, block)
        else:
            self._look_at_integers(data, error, None if term.wrapped is None else whole(term.wrapped))
        if self._is_float and self._op is Ops.ADD:
            parts = [whole(part) for part in term.terms] or [data]
            self._parts = max(self._parts, len(parts))
            self._nonzero = self._nonzero + np.count_nonzero(data, axis=0)
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

    def _hide(self, term: Value, valid: Array) -> Value:
        """The term where it is valid. What tinygrad makes of the others depends on the schedule, so that the result is
        uncertain wherever there is one; it is selected away where padding surrounds a reduction."""
        self._hidden = self._hidden | ~valid.all(0)
        if self._op is not Ops.MAX and not np.isfinite(term.data).all():
            # on tinygrad's X86 assembler a store that is gated off overwrites what gated loads give where they are off,
            # which shows where that is multiplied by an infinity
            self._hidden = np.ones(valid.shape[1:], bool)
        kind = term.data.dtype
        neutral = _NEUTRAL[self._op] if self._is_float or self._op is not Ops.MAX else 0
        error = None if term.error is None else np.where(valid, term.error, 0.0)
        return Value(np.where(valid, term.data, np.asarray(neutral, kind)), error, wrapped=term.wrapped)

    def _look_at_extremes(self, data: Array, error: Array | None, block: Array) -> None:
        """Where infinities and NaN go in, and how far partial products reach."""
        if self._op is Ops.MUL:
            size = np.abs(data)
            self._large = self._large * np.fmax(size, 1.0).prod(0)
            self._small = self._small * np.fmin(size, 1.0).prod(0)
        if np.isfinite(block).all() and not (self._op is Ops.MAX and np.isinf(data).any()):
            return
        sure = np.ones((), bool) if error is None else error == 0
        self._no_number = self._no_number | (np.isnan(data) & sure).any(0)
        self._doubtful = self._doubtful | (np.isinf(data) & ~sure).any(0)
        if self._op is Ops.MAX:
            self._settled = self._settled | ((data == np.inf) & sure).any(0)

    def _look_at_integers(self, data: Array, error: Array | None, wrapped: Array | None) -> None:
        if wrapped is not None:  # the low bits of a sum depend on those of its terms only
            self._wrapped = self._wrapped | wrapped.any(0)
        if data.dtype == bool:
            if error is not None:
                decides = data if self._op is not Ops.MUL else ~data
                self._settled = self._settled | (decides & (error == 0)).any(0)
            else:
                self._settled = self._settled | (data if self._op is not Ops.MUL else ~data).any(0)
        elif self._op is not Ops.MAX and self._dtype is not dtypes.weakint and may_wrap(data.dtype):
            wide = _COMBINE[self._op].reduce(data, axis=0, dtype=np.float64)
            self._wide = self._wide + wide if self._op is Ops.ADD else self._wide * wide

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

        Equal terms are rounded alike, so that m errors are one error, m times as large; adding 0 makes none. Equal are
        terms too that the kernel's own type can hardly tell apart: (x - m)² for an m far above every x.
        """
        found = []
        for drawn in self._drawn.values():
            columns = np.concatenate(drawn)
            columns = _nearly(columns, self._dtype)
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

    def _one_sided(self, size: Array) -> Array:
        """About how much of each sum is lost, or won, where all errors of adding its small terms have one direction;
        the largest share of those looked at where these are not all.

        Where magnitudes differ widely a few terms come to be the sum, of about `size`. Adding another one rounds it to
        a multiple of the sum's last bit: one below half of that bit is lost, and of many between one and two bits, all
        are rounded down if they are nearly equal. The bit is that of the sum, or of a part of it.
        """
        shape = np.shape(self._squares)
        columns = math.prod(shape)
        chosen = np.arange(0, columns, -(-columns // COLUMNS) or 1)
        sizes = np.broadcast_to(size, shape).reshape(-1)[chosen]
        last_bit = np.ldexp(2.0 * unit_roundoff(self._dtype), np.frexp(sizes)[1] - 1)
        share: Array = np.zeros(len(sizes))
        for drawn in self._drawn.values():
            terms = np.concatenate(drawn)
            times = self._count / max(len(terms), 1)
            most: Array = np.zeros(len(sizes))
            for part in PARTS:
                bit = np.where(last_bit > 0, last_bit * part, 1.0)
                lost = np.abs((np.rint(terms / bit) * bit - terms).sum(0))
                by_chance = 1.5 * bit * np.sqrt(len(terms) / 12)  # of errors that are spread over one bit
                most = np.maximum(most, lost - by_chance)
            share = share + most * times / np.where(sizes > 0, sizes, 1.0)
        share = share.reshape(shape) if columns == len(chosen) else np.max(np.nan_to_num(share), initial=0.0)
        return np.asarray(np.nan_to_num(share) * size)

    def value(self) -> Value:
        """The reduction of all blocks."""
        assert self._result is not None, "a range has at least one value"
        result, spread = self._result, self._spread
        if not self._is_float:
            spread = np.where(self._settled, 0.0, np.where(self._hidden, np.inf, spread))
            limits = None if result.dtype == bool else np.iinfo(result.dtype)
            over = self._wrapped
            if limits is not None:
                over = over | (self._wide > limits.max) | (self._wide < limits.min)
            return Value(result, spread if np.any(spread) else None, None, over if np.any(over) else None)
        if self._op is Ops.MAX:  # tinygrad compares and selects: with NaN the result depends on the order
            spread = np.where(self._settled, 0.0, spread)
            spread = np.where(np.isnan(result) | np.isnan(spread) | self._hidden, np.inf, spread)
            return Value(result, spread if np.any(spread) else None)
        error = self._error_of_product() if self._op is Ops.MUL else self._error_of_sum()
        error = np.where(np.isfinite(result), np.where(np.isnan(error), np.inf, error), self._error_beyond())
        if self._hidden.any():
            error = np.where(self._hidden, np.inf, error)
        return self._limited(result, error)

    def _accumulated(self) -> Array | float:
        """The relative error of accumulating: adding 0 makes none, so that a gather written as a sum is exact."""
        if self._op is Ops.MUL or self._parts > 1:
            return unit_roundoff(self._dtype) * math.sqrt(self._count * self._parts)
        additions = np.minimum(self._count, np.where(self._nonzero > 1, 2 * self._nonzero, 0))
        return np.asarray(unit_roundoff(self._dtype) * np.sqrt(additions))

    def _error_of_product(self) -> Array:
        """In any order: a partial product below the normal numbers is off by a part of their distance, which the large
        factors after it multiply."""
        assert self._result is not None
        relative = np.abs(self._result) * (np.sqrt(self._spread) + self._accumulated())
        if self._small.min(initial=1.0) < smallest_normal(self._dtype):
            relative = relative + subnormal_step(self._dtype) * self._large
        return np.asarray(relative)

    def _error_of_sum(self) -> Array:
        assert self._result is not None
        result, unit = self._result, unit_roundoff(self._dtype)
        error: Array = np.sqrt(self._spread) + np.abs(self._shift)
        # a sum of integers is exact in any order while every partial sum is small: none is above Σ term²
        if not (self._integral and (self._squares * unit <= 0.5).all()):
            size = np.maximum(np.abs(result), np.sqrt(self._squares))
            terms, pairs = self._alike()
            widened = unit * np.sqrt(pairs * self._parts) * size
            # no error is more: each addition's is that of its partial sum, which is half of Σ |term| on average
            bound = unit * terms * self._parts * self._sizes / 2 / CONFIDENT
            # of few terms that are not 0 no sample tells how many are alike
            widened = np.where((self._nonzero > 1) | (self._parts > 1), np.minimum(widened, bound), 0.0)
            error = error + np.maximum(self._accumulated() * size, widened)
            # terms of one size are mostly added to a much smaller sum: as many as there are then count as alike
            with_weight = np.square(self._sizes) / np.where(self._squares > 0, self._squares, 1.0)
            unequal = 1.0 - np.minimum(1.0, with_weight / np.maximum(self._nonzero, 1.0))
            error = error + unequal * self._one_sided(size) / 2
            if self._biased:
                error = error + unit * self._count * size / CONFIDENT  # a bound
        return error

    def _error_beyond(self) -> Array:
        """The error beside an infinite result or one that is no number.

        An infinite one of certain terms is certain, and so is NaN where a term is NaN for certain. Infinities that
        cancel make none in every order where they are of the data.
        """
        assert self._result is not None
        certain = np.isfinite(self._spread)
        cancelled = certain & ~self._doubtful & self._unrelated & (self._op is Ops.ADD)
        beside_nan = np.where(self._no_number | cancelled, 0.0, np.inf)
        beside_inf = np.where(certain, np.where(self._doubtful, OVERFLOWED, 0.0), np.inf)
        return np.where(np.isnan(self._result), beside_nan, beside_inf)

    def _limited(self, result: Array, error: Array) -> Value:
        """The result as its type holds it: partial results that are too large for it may make it infinite."""
        largest = largest_of(self._dtype)
        reach = self._sizes if self._op is Ops.ADD else self._large
        if not (reach.size and reach.max() <= largest):
            size = np.abs(result)
            # terms of one sign overflow in every order; so do factors of which no partial product is lost
            steady = reach <= size * 1.001 if self._op is Ops.ADD else self._small >= subnormal_step(self._dtype)
            over = np.isfinite(size) & (size > largest)
            tipping = np.abs(size - largest) <= np.maximum(CONFIDENT * error, largest * unit_roundoff(self._dtype))
            unsure = (reach > largest) & np.isfinite(size) & (~over | ~steady | tipping)
            if self._op is Ops.MUL:
                unsure = unsure | (np.isinf(size) & ~steady)
            result = np.where(over, np.copysign(np.inf, result), result)
            error = np.where(unsure, np.inf, np.where(over, OVERFLOWED, error))
        return Value(result, error if np.any(error) else None)


def _nearly(terms: Array, dtype: DType) -> Array:
    """Terms as a type of a few bits less would hold them: what its arithmetic may make equal is equal."""
    kept = min(52, round(-math.log2(unit_roundoff(dtype))) - SPARED_BITS)
    fraction, exponent = np.frexp(terms)
    return np.asarray(np.ldexp(np.rint(np.ldexp(fraction, kept)), exponent - kept))
