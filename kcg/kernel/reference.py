"""What a kernel should compute: a float64 reference in NumPy for any kernel AST, at sampled points of its outputs.

Only what the sampled points need is gathered and computed, so a large matmul at 64 points takes milliseconds.
Integers and bools are computed exactly, in their own widths. Floats are computed in float64 and never rounded between:
beside each value runs an *error*, the absolute rounding error that a correct kernel may make, to first order.

- An operation adds `eps(its dtype) · |result|` (nothing where the exact result is representable, so integer-valued
  data must match exactly), a transcendental function four times that, and passes on its operands' errors by its
  derivative.
- A sum over K terms takes `sqrt(Σ error²)` for independent errors and `|Σ sign(term) · error|` for shared relative
  ones, and adds `eps · sqrt(K) · max(|sum|, sqrt(Σ term²))` for accumulating in any order.
- A sum of sums (`a + (b + c)`) may be added in any order, too: tinygrad has an order of its own. A sum over sums,
  part by part; where one part is the same every time its rounding errors add up linearly. So do those of terms that
  are equal, as the terms of a masked sum are: K is then Σ m² over values that occur m times, up to the bound. Where a
  few large terms come to be the sum, the errors of adding many small ones may have one direction: they are counted.
- x / (1 + x) may be computed as 1 - 1 / (1 + x).
- A comparison or a truncation that rounding may tip makes what depends on it uncertain by as much as it would change;
  not so a comparison of a value with itself (`kcg.kernel.arithmetic`), which is open only where NaN is.
- Below the normal numbers a result is off by a part of their distance (1.4e-45 in float32): subnormals are kept, but by
  approximated functions and by types that tinygrad emulates.
- An infinity of the data or of a constant is exact, and so it stays beside what is off by a little. An overflow is a
  number beyond the largest: infinite in every kernel, but perhaps not in every order of what is done with it.
- A signed integer that wraps around is certain as it is stored, and uncertain for comparisons, quotients and casts.
- A term of a reduction that is `Invalid` may be anything: the result is uncertain unless it is selected away.

So error 0 means: must match bit for bit. A correct kernel stays within `CONFIDENT` errors; infinity means that nothing
can be said (overflow of a 16-bit intermediate, a quotient whose denominator may be 0, NaN in a maximum, whose result
depends on order). Axes: the points are the last axis; each reduction in scope adds one in front, its ranges flattened.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kcg.compat.tiny import AddrSpace, AxisType, DType, Invalid, Ops, UOp, dtypes
from kcg.errors import VerificationError
from kcg.kernel.arithmetic import (
    CONFIDENT,
    OVERFLOWED,
    Identities,
    Noise,
    Value,
    alu,
    as_complement,
    as_tf32,
    beside_padding,
    bit_cast,
    cast,
    compares_in_order,
    complements,
    difference_with_itself,
    identities,
    largest_of,
    may_flush,
    may_wrap,
    noise_now,
    numpy_dtype,
    products_are_tf32,
    settled,
    smallest_normal,
    subnormal_step,
    unit_roundoff,
    with_constants_last,
)
from kcg.kernel.ast import buffer_of, shape_of, store_of

# ---- Reductions in blocks with running error bounds.

Array = NDArray[Any]

LOOKED_AT = 1 << 12  # terms of a sum in which equal ones are looked for, drawn from all of them
COLUMNS = 128  # sums in which they are

PARTS = (1.0, 0.5, 0.25)  # of a sum, in each of which its last terms may be added
NEAR_A_BIT = 2.0  # of a sum's last bits: terms up to that size may all be lost by some way of making them,
MOSTLY = 0.5  # where so many of them are
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
        self._noise = noise_now()
        self._leaves_nan = op is Ops.MAX and self._is_float and compares_in_order()
        self._combine = np.fmax if self._leaves_nan else _COMBINE[op]
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
        self._finite: Array = np.zeros(())  # Σ |term| of a sum without those that are infinite
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
        combine = self._combine
        block = np.asarray(combine.reduce(data, axis=0, dtype=data.dtype))
        self._result = block if self._result is None else np.asarray(combine(self._result, block))
        if self._noise is not None:
            self._squares = self._squares + np.square(data).sum(0) if self._is_float else self._squares
            return
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
                sizes = np.abs(part).sum(0)
                self._sizes = self._sizes + sizes
                if not np.isfinite(sizes).all():
                    sizes = np.where(np.isfinite(part), np.abs(part), 0.0).sum(0)
                self._finite = self._finite + sizes
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
        are rounded down if they are nearly equal. The bit is that of the sum, or of a part of it. What is up to
        `NEAR_A_BIT` of them, where most are, counts as lost by half of one.
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
            most = np.maximum(most, _maybe_lost(terms, last_bit))
            share = share + most * times / np.where(sizes > 0, sizes, 1.0)
        share = share.reshape(shape) if columns == len(chosen) else np.max(np.nan_to_num(share), initial=0.0)
        return np.asarray(np.nan_to_num(share) * size)

    def value(self) -> Value:
        """The reduction of all blocks."""
        assert self._result is not None, "a range has at least one value"
        result, spread = self._result, self._spread
        if self._noise is not None:
            return Value(self._accumulated_at_random(self._noise, result))
        if not self._is_float:
            spread = np.where(self._settled, 0.0, np.where(self._hidden, np.inf, spread))
            limits = None if result.dtype == bool else np.iinfo(result.dtype)
            over = self._wrapped
            if limits is not None:
                over = over | (self._wide > limits.max) | (self._wide < limits.min)
            return Value(result, spread if np.any(spread) else None, None, over if np.any(over) else None)
        if self._leaves_nan:
            result = np.where(np.isnan(result), _NEUTRAL[Ops.MAX], result)
        if self._op is Ops.MAX:  # tinygrad compares and selects: with NaN the result depends on the order
            spread = np.where(self._settled, 0.0, spread)
            spread = np.where(np.isnan(result) | np.isnan(spread) | self._hidden, np.inf, spread)
            return Value(result, spread if np.any(spread) else None)
        error = self._error_of_product() if self._op is Ops.MUL else self._error_of_sum()
        error = np.where(np.isfinite(result), np.where(np.isnan(error), np.inf, error), self._error_beyond())
        if self._hidden.any():
            error = np.where(self._hidden, np.inf, error)
        return self._limited(result, error)

    def _accumulated_at_random(self, noise: Noise, result: Array) -> Array:
        if not self._is_float or self._op is Ops.MAX:
            return result
        size = np.maximum(np.abs(result), np.sqrt(self._squares)) if self._op is Ops.ADD else np.abs(result)
        return np.asarray(result + noise.beside(result) * unit_roundoff(self._dtype) * math.sqrt(self._count) * size)

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
        cancel make none in every order where they are of the data. A term that overflows is infinite in a sum whose
        other terms are too small to pull it back: a multiply-add does not round its product.
        """
        assert self._result is not None
        certain = np.isfinite(self._spread)
        cancelled = certain & ~self._doubtful & self._unrelated & (self._op is Ops.ADD)
        beside_nan = np.where(self._no_number | cancelled, 0.0, np.inf)
        large = largest_of(self._dtype) * unit_roundoff(self._dtype)  # of less the largest float has no bit
        overflowed = np.where((self._finite > large) & (self._op is Ops.ADD), np.inf, OVERFLOWED)
        beside_inf = np.where(certain, np.where(self._doubtful, overflowed, 0.0), np.inf)
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


def _maybe_lost(terms: Array, last_bit: Array) -> Array:
    """What small terms of each sum (columns) come to at most, as far as each is below half of the sum's last bit: in
    x² instead of (x - m)², as in any other way to the same sum, other ones are. 0 where most are no small ones."""
    found: Array = np.zeros(len(last_bit))
    few = np.flatnonzero(np.count_nonzero(np.abs(terms) <= NEAR_A_BIT * last_bit, axis=0) > MOSTLY * len(terms))
    if len(few):
        chosen, bit = terms[:, few], last_bit[few]
        is_small = np.abs(chosen) <= NEAR_A_BIT * bit
        found[few] = np.abs(np.where(is_small, np.clip(chosen, -bit / 2, bit / 2), 0.0).sum(0))
    return found


def _nearly(terms: Array, dtype: DType) -> Array:
    """Terms as a type of a few bits less would hold them: what its arithmetic may make equal is equal."""
    kept = min(52, round(-math.log2(unit_roundoff(dtype))) - SPARED_BITS)
    fraction, exponent = np.frexp(terms)
    return np.asarray(np.ldexp(np.rint(np.ldexp(fraction, kept)), exponent - kept))


MAX_ELEMENTS = 1 << 18  # of one intermediate array: 2 MiB, so that a dozen of them stay in cache and far below 256 MB

LOOKED_THROUGH = 1 << 23  # points of a store among which those that write an element are looked for, one by one

EXPLAINED = 0.05
"""An error of such a share of a store's typical value is rounding: float16 and bfloat16 come to 0.02 in the zoo."""


@dataclass(frozen=True)
class BufferUse:
    """How a kernel uses one of its buffers. An output that the kernel also reads is both."""

    slot: int
    size: int  # elements
    dtype_name: str  # "float32", "bfloat16", ...
    is_output: bool
    is_input: bool


@dataclass(frozen=True, eq=False)
class StoreValues:
    """What one store writes at the sampled points; points whose store is gated off are left out."""

    slot: int
    indices: NDArray[np.int64]  # (points,), elements of the output buffer
    values: Array  # (points,), float64, or the buffer's own integer or bool type
    error: NDArray[np.float64]  # (points,), expected rounding error; 0: must match exactly, inf: unknown
    share: float = 1.0  # of the bound of the error, that random roundings show it to be

    @property
    def known_share(self) -> float:
        """The share of the points about which the reference says anything: near 0, the inputs were badly chosen."""
        return float(np.isfinite(self.error).mean()) if self.error.size else 0.0

    def known(self) -> NDArray[np.bool_]:
        """The points whose value is a number and known: (points,)."""
        sure = np.isfinite(self.error)
        return sure & ~np.isnan(self.values) if self.values.dtype == np.float64 else sure

    def swamped(self) -> NDArray[np.bool_]:
        """The points that prove nothing, because an error as large as the value is expected: (points,).

        What is near 0 among larger values is none of them while its error is small beside those: so are sums that
        cancel here and there. Where all of them cancel, an empty output would pass.
        """
        if self.values.dtype == bool:
            return np.asarray((self.error > 0) & np.isfinite(self.error))
        sizes = np.abs(self.values.astype(np.float64))
        numbers = sizes[self.known() & np.isfinite(sizes)]
        peak = numbers.max(initial=0.0)  # whose square may overflow
        typical = float(peak * np.sqrt(np.mean(np.square(numbers / peak)))) if peak > 0 else 0.0
        return np.asarray((self.error >= sizes) & (self.error > EXPLAINED * typical) & np.isfinite(self.error))


class _Scope(NamedTuple):
    """What is computed inside a reduction (`order`), and what from outside it needs (`inputs`)."""

    order: tuple[UOp, ...]
    inputs: tuple[UOp, ...]


def buffers(ast: UOp) -> tuple[BufferUse, ...]:
    """The buffers of a kernel, by slot."""
    outputs = {buffer_of(store_of(s).src[0]).arg.slot for s in ast.src}
    inputs: set[int] = set()
    for sink in ast.src:
        store = store_of(sink)
        for root in (store.src[1], *store.src[0].src[1:]):
            inputs.update(buffer_of(node).arg.slot for node in root.toposort() if node.op is Ops.INDEX)
    params = {node for node in ast.toposort() if node.op is Ops.PARAM and node.arg.addrspace is AddrSpace.GLOBAL}
    uses = (
        BufferUse(p.arg.slot, int(p.src[0].arg), _name(p.dtype), p.arg.slot in outputs, p.arg.slot in inputs)
        for p in params
    )
    return tuple(sorted(uses, key=lambda use: use.slot))


def sample_points(
    ast: UOp, n: int, rng: np.random.Generator, variables: Mapping[str, int] | None = None
) -> list[NDArray[np.int64]]:
    """`points_of_store` of each store."""
    return [points_of_store(ast, place, n, rng, variables) for place in range(len(ast.src))]


def points_of_store(
    ast: UOp, place: int, n: int, rng: np.random.Generator, variables: Mapping[str, int] | None = None
) -> NDArray[np.int64]:
    """Points of one store, `(points, output ranges)`: all of them where there are at most `n`, else `n` of them.

    The first and the last index of every range are always among them (if `n` allows): blocks, tails and pads end there.
    """
    run, sink = Run(ast, {}, variables), ast.src[place]
    extents = [run.extent(r) for r in sink.src[1:]] if sink.op is Ops.END else []
    if (total := math.prod(extents)) <= n:
        flat = np.arange(total, dtype=np.int64)
        return np.stack(np.unravel_index(flat, extents), 1) if extents else np.zeros((1, 0), np.int64)
    points = np.stack([rng.integers(0, e, n) for e in extents], 1).astype(np.int64)
    last = np.array(extents, np.int64) - 1
    points[:1], points[1:2] = 0, last
    for axis in range(len(extents)):  # each range at its ends, the others anywhere
        points[2 + 2 * axis : 3 + 2 * axis, axis] = 0
        points[3 + 2 * axis : 4 + 2 * axis, axis] = last[axis]
    return points


def evaluate(
    ast: UOp,
    inputs: Mapping[int, Array],
    points: Sequence[NDArray[np.int64]],
    variables: Mapping[str, int] | None = None,
) -> list[StoreValues]:
    """What each store of `ast` writes at its `points` (see `sample_points`), in the order of the sink's sources.

    `inputs` maps slots to flat arrays in the buffer's own NumPy type, before the kernel ran; bfloat16 and 8-bit floats
    come as float32 arrays of values already rounded. `variables` gives symbolic variables by name; the number of the
    device of a sharded kernel is `_device_num`, 0 if absent. Raises VerificationError for an operation that is not
    known, an absent variable or input, and an index outside its buffer.
    """
    run = Run(ast, inputs, variables)
    with np.errstate(all="ignore"):
        return [run.store(sink, chosen) for sink, chosen in zip(ast.src, points, strict=True)]


def error_ratio(expected: StoreValues, got: Array) -> NDArray[np.float64]:
    """How many expected errors `got` (at the same points) is away, per point: a correct kernel stays below `CONFIDENT`.

    Where the error is 0 the ratio is 0 or infinity. NaN and infinity must be where the reference has them.
    """
    want = expected.values
    with np.errstate(all="ignore"):
        same = (got == want) | ((got != got) & (want != want))
        if want.dtype == np.float64:
            difference = np.abs(got.astype(np.float64) - want)
        else:  # exact below 2**53, and far from 0 above
            difference = np.abs(got.astype(np.float64) - want.astype(np.float64)) + (got != want)
        ratio = np.where(np.isfinite(difference), difference, np.inf) / expected.error
    return np.asarray(np.where(same | np.isinf(expected.error), 0.0, np.where(expected.error > 0, ratio, np.inf)))


def float_tolerance(ast: UOp, store: int = 0, *, variables: Mapping[str, int] | None = None) -> tuple[float, int]:
    """`(eps, K)` of one store: the unit roundoff of the least precise float computed on its value's path, and the
    product of the extents of the reductions on it. `eps · sqrt(K) · rms(output)` is the plain tolerance, blind to how
    errors travel. eps is 0 where no float is computed (a copy, integers).
    """
    run, body = Run(ast, {}, variables), store_of(ast.src[store])
    nodes = [node for node in body.src[1].toposort() if dtypes.is_float(node.dtype)]
    computed = [node.dtype for node in nodes if node.op not in (Ops.INDEX, Ops.PARAM, Ops.CONST, Ops.WHERE, Ops.MAX)]
    ranges = {r for node in body.src[1].toposort() if node.op is Ops.REDUCE for r in node.src[1:]}
    return max(map(unit_roundoff, computed), default=0.0), math.prod(run.extent(r) for r in ranges)


def _name(dtype: DType) -> str:
    return str(dtype).removeprefix("dtypes.") if dtype.fmt is None else np.dtype(dtype.fmt).name


def _depends(node: UOp, bound: frozenset[UOp]) -> bool:
    return not bound.isdisjoint(node.ranges)


def _stay_inside(body: UOp, ranges: frozenset[UOp]) -> bool:
    """Whether no factor of a reduction's terms may be moved out of it: Σ x · y is y · Σ x where y does not depend on
    one of the ranges, and Σ Σ x · y is Σ x · Σ y where each depends on one of them."""
    if body.op is not Ops.MUL:
        return body.op is Ops.CONST or all(_depends(body, frozenset((axis,))) for axis in ranges)
    return all(_stay_inside(factor, ranges) for factor in body.src)


def _factors(body: UOp, ranges: frozenset[UOp]) -> list[UOp]:
    """The factors of a float product, through casts to wider floats; what depends on no range is one."""
    if not _depends(body, ranges):
        return [body]
    if body.op is Ops.CAST and dtypes.is_float(source := body.src[0].dtype) and source.itemsize < body.dtype.itemsize:
        return _factors(body.src[0], ranges)
    return [factor for one in body.src for factor in _factors(one, ranges)] if body.op is Ops.MUL else [body]


class _Apart:
    """The sum that is left where factors that are the same for all terms are moved out of it, as tinygrad does: it may
    overflow, or its terms fall below the normal numbers, where Σ x · y does not. So may the product of the factors."""

    def __init__(self, node: UOp) -> None:
        self._dtype, ranges = node.dtype, frozenset(node.src[1:])
        is_sum = node.arg[0] is Ops.ADD and dtypes.is_float(node.dtype) and noise_now() is None
        factors = _factors(node.src[0], ranges) if is_sum else []
        self.fixed = [f for f in factors if not _depends(f, ranges)]
        self.left = [f for f in factors if _depends(f, ranges)] if self.fixed else []
        self._sizes: Array = np.zeros(())
        self._lost: Array = np.zeros(())
        self._over: Array = np.asarray(False)

    def add(self, factors: Sequence[Value], terms: int, outer_axes: int) -> None:
        """One block of `terms` terms: the factors that are left, see `Fold.add`."""
        largest, normal = largest_of(self._dtype), smallest_normal(self._dtype)
        product, lost = np.ones(()), np.zeros(())

        def whole(array: Array) -> Array:
            return np.broadcast_to(array, (terms, *array.shape)) if array.ndim <= outer_axes else array

        for size in (np.abs(factor.data) for factor in factors):
            product = product * size
            if lost.any():
                lost = lost * size
            if (tiny := (product > 0) & (product < normal)).any():
                lost = lost + tiny * subnormal_step(self._dtype)
            if (over := np.isfinite(product) & (product > largest)).any():
                self._over = self._over | whole(over).any(0)
        self._sizes = self._sizes + whole(product).sum(0)
        if lost.any():
            self._lost = self._lost + whole(lost).sum(0)

    def beside(self, total: Value, fixed: Sequence[Value]) -> Value:
        """The sum of all terms, with what it may be off by in that order."""
        sizes = [np.abs(one.data) for one in fixed]
        factor, largest = functools.reduce(np.multiply, sizes), largest_of(self._dtype)
        over = self._over | (np.isfinite(self._sizes) & (self._sizes > largest))
        over = over | (np.isfinite(factor) & (factor > largest))
        lost = np.where(self._lost > 0, self._lost * factor, 0.0)
        if len(sizes) > 1:  # as `Fold._error_of_product`: what is moved out is a product, too
            small, large = (functools.reduce(np.multiply, (f(one, 1.0) for one in sizes)) for f in (np.fmin, np.fmax))
            below = (small > 0) & (small < smallest_normal(self._dtype))
            lost = lost + np.where(below, subnormal_step(self._dtype) * large * self._sizes, 0.0)
        if total.error is not None:  # what overflows with a factor may not without
            over = over | (np.isinf(total.data) & (total.error > 0))
        if not (over.any() or lost.any()):
            return total
        error = (0.0 if total.error is None else total.error) + np.where(over, np.inf, lost)
        return total._replace(error=np.asarray(error))


class _Chain(NamedTuple):
    """The factors of a product, among them a sum: tinygrad moves what is the same for all its terms out of it, and
    multiplies all of them in an order of its own."""

    factors: tuple[UOp, ...]
    inverse: tuple[UOp, ...]  # what is divided by
    apart: tuple[tuple[UOp, tuple[UOp, ...]], ...]  # sums, and what is moved out of each

    @property
    def nodes(self) -> tuple[UOp, ...]:
        return (*self.factors, *self.inverse, *(one for node, fixed in self.apart for one in (node, *fixed)))

    def reorder(self, product: Value, values: Mapping[UOp, Value], dtype: DType) -> Value:
        """The product, unknown where what is multiplied first in some order is beyond the largest float, or below the
        normal ones."""
        if noise_now() is not None:
            return product
        sizes = [np.abs(values[node].data) for node in self.factors]
        with np.errstate(all="ignore"):
            sizes += [1 / np.abs(values[node].data) for node in self.inverse]
            for node, fixed in self.apart:
                own = [np.abs(values[one].data) for one in fixed]
                sizes += [np.abs(values[node].data) / functools.reduce(np.multiply, own), *own]
            large, small = (functools.reduce(np.multiply, (f(size, 1.0) for size in sizes)) for f in (np.fmax, np.fmin))
        lost = (small > 0) & (small < smallest_normal(dtype))
        unsure = np.isfinite(product.data) & (product.data != 0) & ((large > largest_of(dtype)) | lost)
        if product.error is not None:
            unsure = unsure | (np.isinf(product.data) & (product.error > 0))
        if not unsure.any():
            return product
        return product._replace(error=np.where(unsure, np.inf, 0.0 if product.error is None else product.error))


MOST_FACTORS = 16


def _chains(ast: UOp) -> dict[UOp, _Chain]:
    """The products of an AST that are such a chain."""
    found: dict[UOp, _Chain] = {}
    for node in ast.toposort():
        if node.op is Ops.REDUCE and (apart := _Apart(node)).left and apart.fixed:
            found[node] = _Chain((), (), ((node, tuple(apart.fixed)),))
        elif node.op in (Ops.MUL, Ops.RECIPROCAL) and dtypes.is_float(node.dtype):
            parts = [found.get(one, _Chain((one,), (), ())) for one in node.src]
            chain = _Chain(*(tuple(one for part in parts for one in part[at]) for at in range(3)))
            if node.op is Ops.RECIPROCAL:
                chain = _Chain(chain.inverse, chain.factors, chain.apart)
                if chain.apart:  # divided by a sum: what is divided is a number of its own
                    continue
            if len(chain.nodes) <= MOST_FACTORS:
                found[node] = chain
    return {node: chain for node, chain in found.items() if node.op is Ops.MUL and chain.apart}


def products_summed(ast: UOp) -> frozenset[UOp]:
    """The products of two float32 values of which a kernel makes sums: what a tensor core may compute. Squares are
    none."""
    found, waiting = set(), [n.src[0] for n in ast.toposort() if n.op is Ops.REDUCE and n.arg[0] is Ops.ADD]
    while waiting:
        node = waiting.pop()
        if node.op is Ops.MUL and node.dtype is dtypes.float32 and node.src[0] is not node.src[1]:
            found.add(node)
        elif node.op in (Ops.ADD, Ops.CAST, Ops.WHERE):
            waiting += node.src
    return frozenset(found)


class Lazy(Protocol):
    """A flat buffer whose values are computed where they are asked for, and are off by an error."""

    size: int
    dtype: np.dtype[Any]

    def at(self, elements: NDArray[np.int64]) -> tuple[Array, Array]:
        """Values and errors of some elements, in the shape of `elements`."""


class Run:
    """One evaluation: the inputs, the variables, and which node is computed in which scope.

    `spend` is told of how many terms and points are computed: what it raises ends the evaluation.
    """

    def __init__(
        self,
        ast: UOp,
        inputs: Mapping[int, Any],
        variables: Mapping[str, int] | None,
        spend: Callable[[int], None] = lambda terms: None,
    ) -> None:
        self.inputs, self._spend = inputs, spend
        self.variables = dict(variables or {})
        self.scopes: dict[UOp, _Scope] = {}
        self._complements, self._chains = complements(ast), _chains(ast)
        self._ast = ast
        for node in ast.toposort():
            if node.op is Ops.REDUCE:
                self.scopes[node] = self._scope(node.src[:1], frozenset(node.src[1:]))
        self._rounded = products_summed(ast) if products_are_tf32() else frozenset()

    @functools.cached_property
    def _identities(self) -> Identities:
        return identities(self._ast)

    def _needs(self, node: UOp) -> tuple[UOp, ...]:
        """The nodes that must be known before `node`, in its own scope."""
        if node.op is Ops.REDUCE:
            return self.scopes[node].inputs
        if node.op is Ops.INDEX:
            return tuple(node.src[1:])
        if node in self._complements or node in self._chains:
            x, chain = self._complements.get(node), self._chains.get(node)
            return (*node.src, *(() if x is None else (x,)), *(() if chain is None else chain.nodes))
        if node.op is Ops.ADD and dtypes.is_float(node.dtype) and node in self._identities.zero:
            return (self._identities.zero[node],)
        return () if node.op in (Ops.RANGE, Ops.PARAM) else tuple(node.src)

    def _scope(self, roots: Iterable[UOp], bound: frozenset[UOp] | None) -> _Scope:
        """The nodes under `roots` that depend on the ranges `bound` (None: all), sorted, and those that they need."""
        order: dict[UOp, None] = {}
        inputs: dict[UOp, None] = {}
        stack = [(root, False) for root in roots]
        while stack:
            node, ready = stack.pop()
            if node in order or node in inputs:
                continue
            if bound is not None and not _depends(node, bound):
                inputs[node] = None
            elif ready:
                order[node] = None
            else:
                stack.append((node, True))
                stack.extend((need, False) for need in self._needs(node))
        return _Scope(tuple(order), tuple(inputs))

    def extent(self, rng: UOp) -> int:
        """The extent of a range, its variables filled in."""
        root = rng.src[0]
        with np.errstate(all="ignore"):
            return int(self._compute(self._scope((root,), None).order, (root,), {})[root].data)

    def store(self, sink: UOp, points: NDArray[np.int64]) -> StoreValues:
        body = store_of(sink)
        ranges = sink.src[1:] if sink.op is Ops.END else ()
        if points.ndim != 2 or points.shape[1] != len(ranges):
            raise VerificationError(f"points of shape {points.shape} do not fit {len(ranges)} output ranges")
        index, value = body.src
        roots = (value, *index.src[1:])
        order = self._scope(roots, None).order
        parts: list[tuple[Array, Array, Array]] = []
        for start in range(0, len(points), MAX_ELEMENTS // 4):
            chunk = points[start : start + MAX_ELEMENTS // 4]
            self._spend(len(chunk))
            known = {r: Value(np.ascontiguousarray(chunk[:, axis])) for axis, r in enumerate(ranges)}
            values = self._compute(order, roots, known)
            result = values[value] if value.dtype is index.dtype else cast(values[value], value.dtype, index.dtype)
            where, open_gate = self._flat_index(index, values)
            keep = np.ones(len(chunk), bool)
            for gate in (open_gate, result.valid):
                keep &= True if gate is None else gate
            size = int(buffer_of(index).src[0].arg)
            where = np.broadcast_to(where, len(chunk))[keep]
            if where.size and (where.min() < 0 or where.max() >= size):
                raise VerificationError(f"a store is outside its buffer {buffer_of(index).arg.slot} of {size} elements")
            error = np.zeros(()) if result.error is None else result.error
            data, error = (np.broadcast_to(a, len(chunk))[keep] for a in (result.data, error))
            parts.append((where, data, error))
        joined = [np.concatenate([part[i] for part in parts]) for i in range(3)] if parts else [np.zeros(0)] * 3
        return StoreValues(buffer_of(index).arg.slot, joined[0].astype(np.int64), joined[1], joined[2])

    def _compute(self, order: Sequence[UOp], roots: Iterable[UOp], known: dict[UOp, Value]) -> dict[UOp, Value]:
        """Computes `order` on top of `known`; keeps only what is needed, so dead arrays are freed on the way."""
        values = dict(known)
        last_use: dict[UOp, UOp] = {need: node for node in order for need in self._needs(node)}
        dying: dict[UOp, list[UOp]] = {}
        kept = {*roots, *known}
        for need, node in last_use.items():
            if need not in kept:
                dying.setdefault(node, []).append(need)
        for node in order:
            if node not in values:
                values[node] = self._node(node, values)
            for dead in dying.get(node, ()):
                values.pop(dead, None)
        return values

    def _node(self, node: UOp, values: Mapping[UOp, Value]) -> Value:
        match node.op:
            case Ops.CONST:
                return _constant(node)
            case Ops.PARAM:
                return Value(np.array(self._variable(node.arg.name), numpy_dtype(node.dtype)))
            case Ops.RANGE if node.arg[-1] is AxisType.DEVICE:
                return Value(np.array(self.variables.get("_device_num", 0), np.int64))
            case Ops.INDEX:
                return self._load(node, values)
            case Ops.REDUCE:
                return self._reduce(node, values)
            case Ops.CAST:
                return cast(values[node.src[0]], node.src[0].dtype, node.dtype)
            case Ops.BITCAST:
                return bit_cast(values[node.src[0]], node.src[0].dtype, node.dtype)
            case Ops.ADD if node in self._identities.zero:
                return difference_with_itself(values[self._identities.zero[node]])
            case _:
                known = self._identities
                result = alu(
                    node.op,
                    node.dtype,
                    [values[s] for s in node.src],
                    [s.dtype for s in node.src],
                    same=node in known.same,
                    unrelated=node not in known.related,
                    positive=node in known.positive,
                )
                if node in known.padded:
                    result = beside_padding(result, [values[s] for s in node.src])
                if (factor := known.with_constants.get(node)) is not None:
                    result = with_constants_last(result, factor, node.dtype)
                if node in self._rounded:
                    result = as_tf32(result, [values[s] for s in node.src])
                if (chain := self._chains.get(node)) is not None:
                    result = chain.reorder(result, values, node.dtype)
                x = self._complements.get(node)
                return result if x is None else as_complement(result, values[x], node.dtype)

    def _variable(self, name: str) -> int:
        if name not in self.variables:
            raise VerificationError(f"the kernel needs a value of its variable {name}")
        return self.variables[name]

    def _flat_index(self, index: UOp, values: Mapping[UOp, Value]) -> tuple[Array, Array | None]:
        """The element of the buffer, and where the access happens at all (None: everywhere)."""
        flat: Array = np.zeros((), np.int64)
        gate: Array | None = None
        for dim, node in zip(shape_of(index), index.src[1:], strict=True):
            flat = flat * dim + values[node].data.astype(np.int64, copy=False)
            if (valid := values[node].valid) is not None:
                gate = valid if gate is None else gate & valid
        return flat, gate

    def _load(self, index: UOp, values: Mapping[UOp, Value]) -> Value:
        buffer = buffer_of(index)
        slot, size = buffer.arg.slot, int(buffer.src[0].arg)
        if slot not in self.inputs:
            raise VerificationError(f"the kernel reads buffer {slot}, which is not among the inputs")
        held = self.inputs[slot]
        data: Any = held if hasattr(held, "at") else held.reshape(-1)  # `Lazy` is flat
        wanted = numpy_dtype(index.dtype)
        if data.size < size or (data.dtype != wanted and not (dtypes.is_float(index.dtype) and data.dtype.kind == "f")):
            raise VerificationError(
                f"buffer {slot} has {data.size} elements of {data.dtype}, not {size} of {_name(index.dtype)}"
            )
        flat, gate = self._flat_index(index, values)
        if gate is not None:
            flat, gate = np.broadcast_arrays(flat, gate)
            flat = np.where(gate, flat, 0)
        if flat.size and (flat.min() < 0 or flat.max() >= size):
            raise VerificationError(f"a load is outside its buffer {slot} of {size} elements")
        loaded, error = data.at(flat) if hasattr(data, "at") else (data[flat], None)
        loaded = loaded.astype(wanted, copy=False)
        if gate is not None:
            loaded = np.where(gate, loaded, np.zeros((), wanted))
            error = None if error is None else np.where(gate, error, 0.0)
        # an uncertain index may load anything
        unsure = [e for node in index.src[1:] if (e := settled(values[node]).error) is not None]
        if unsure:
            anything = np.where(sum(unsure, np.zeros(())) > 0, np.inf, 0.0)
            error = anything if error is None else error + anything
        if may_flush(index.dtype) and (tiny := np.abs(loaded) < smallest_normal(index.dtype)).any():
            error = np.where(tiny, np.abs(loaded), 0.0) if error is None else error + np.where(tiny, np.abs(loaded), 0)
        if noise_now() is not None:
            return Value(np.asarray(loaded))
        return Value(np.asarray(loaded), error if error is None or error.any() else None)

    def _reduce(self, node: UOp, values: Mapping[UOp, Value]) -> Value:
        """Reduces over the flattened ranges in blocks, so that no array is larger than MAX_ELEMENTS (or the points)."""
        scope, body, ranges = self.scopes[node], node.src[0], node.src[1:]
        extents = [self.extent(r) for r in ranges]
        total = math.prod(extents)
        outer = np.broadcast_shapes(*(values[i].data.shape for i in scope.inputs))
        block = max(1, MAX_ELEMENTS // max(1, math.prod(outer)))
        fold = Fold(node.arg[0], node.dtype, total, unrelated=_stay_inside(body, frozenset(ranges)))
        apart = _Apart(node)
        inside = {i: values[i] for i in scope.inputs}
        for start in range(0, total, block):
            flat = np.arange(start, min(total, start + block), dtype=np.int64)
            flat = flat.reshape(-1, *(1 for _ in outer))
            for rng, extent in zip(reversed(ranges), reversed(extents), strict=True):
                inside[rng] = Value(flat % extent)
                flat = flat // extent
            self._spend(min(block, total - start) * math.prod(outer))
            found = self._compute(scope.order, (body, *apart.left), inside)
            fold.add(found[body], min(block, total - start), len(outer))
            if apart.left:
                apart.add([found[factor] for factor in apart.left], min(block, total - start), len(outer))
        return apart.beside(fold.value(), [values[f] for f in apart.fixed]) if apart.left else fold.value()


def _constant(node: UOp) -> Value:
    wanted = numpy_dtype(node.dtype)
    if node.arg is Invalid:
        return Value(np.zeros((), wanted), None, np.zeros((), bool))
    if wanted.kind in "iu":  # a weak constant may be a large unsigned one: keep its 64 bits
        return Value(np.array(node.arg % (1 << 64), np.uint64).astype(wanted))
    return Value(np.array(node.arg, wanted))


class StoreIndex:
    """Which elements one store writes: of its index alone, so that what is stored is never computed."""

    def __init__(
        self, ast: UOp, place: int, inputs: Mapping[int, Array], variables: Mapping[str, int] | None = None
    ) -> None:
        self._run, sink = Run(ast, inputs, variables), ast.src[place]
        self._index = store_of(sink).src[0]
        self._ranges = sink.src[1:] if sink.op is Ops.END else ()
        self._order = self._run._scope(self._index.src[1:], None).order
        self.slot = int(buffer_of(self._index).arg.slot)
        self.extents = np.array([self._run.extent(r) for r in self._ranges], np.int64)

    def at(self, points: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The element that each of some points writes, and whether it does."""
        known = {r: Value(np.ascontiguousarray(points[:, axis])) for axis, r in enumerate(self._ranges)}
        with np.errstate(all="ignore"):
            where, gate = self._run._flat_index(
                self._index, self._run._compute(self._order, self._index.src[1:], known)
            )
        opened = np.ones(len(points), bool) if gate is None else np.broadcast_to(gate, len(points))
        return np.broadcast_to(where, len(points)), opened

    def points_of(self, elements: NDArray[np.int64], most: int) -> NDArray[np.int64] | None:
        """The points that write some elements, whatever the index: None if all points are more than `most`."""
        if self._total > most:
            return None
        found = [np.zeros((0, len(self.extents)), np.int64)]
        for points, where, opened in self._all_points():
            found.append(points[np.isin(where, elements) & opened])
        return np.concatenate(found)

    def by_strides(self, elements: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """A point for each of some elements, and whether that writes it: as far as the index is a sum of strides, which
        are read off it."""
        first, strides = self._strides
        rest = elements - first
        points = np.zeros((len(elements), len(self.extents)), np.int64)
        for axis in np.argsort(-np.abs(strides), kind="stable"):
            if strides[axis] > 0:
                points[:, axis] = np.clip(rest // strides[axis], 0, self.extents[axis] - 1)
                rest = rest - points[:, axis] * strides[axis]
        where, opened = self.at(points)
        return points, (where == elements) & opened

    def writers(self, elements: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The same whatever the index. Raises VerificationError where it would take too long."""
        points, found = self.by_strides(elements)
        if found.all():
            return points, found
        flat = self._point_of_element[elements]
        if len(self.extents):
            points = np.stack(np.unravel_index(np.maximum(flat, 0), tuple(self.extents)), 1).astype(np.int64)
        return points, flat >= 0

    @property
    def strides(self) -> tuple[int, ...]:
        """By how many elements two points are apart that are next to each other along a range, of each range."""
        return tuple(int(stride) for stride in self._strides[1])

    @functools.cached_property
    def _strides(self) -> tuple[int, NDArray[np.int64]]:
        extents = self.extents
        basis = np.concatenate([np.zeros((1, len(extents)), np.int64), np.diag((extents > 1).astype(np.int64))])
        first = self.at(basis)[0]
        return int(first[0]), np.asarray(first[1:] - first[0])

    @functools.cached_property
    def _point_of_element(self) -> NDArray[np.int64]:
        """For each element of the buffer a point that writes it, or -1."""
        if self._total > LOOKED_THROUGH:
            raise VerificationError(f"which of {self._total:,} stores writes an element takes too long to tell")
        found = np.full(int(buffer_of(self._index).src[0].arg), -1, np.int64)
        start = 0
        for _, where, opened in self._all_points():
            found[where[opened]] = start + np.flatnonzero(opened)
            start += len(where)
        return found

    @property
    def _total(self) -> int:
        return math.prod(int(e) for e in self.extents)

    def _all_points(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]]:
        """All points in blocks, each with the element that it writes and whether it does."""
        for start in range(0, self._total, MAX_ELEMENTS // 4):
            flat = np.arange(start, min(self._total, start + MAX_ELEMENTS // 4), dtype=np.int64)
            axes = np.unravel_index(flat, tuple(self.extents)) if len(self.extents) else ()
            points = np.stack(axes, 1).astype(np.int64) if len(axes) else np.zeros((1, 0), np.int64)
            yield (points, *self.at(points))


def stored_elements(ast: UOp, slot: int) -> int:
    """How many elements of a buffer the kernel's stores write; 0 where a store is gated or symbolic, so unknown."""
    total = 0
    for sink in ast.src:
        target = store_of(sink).src[0]
        if buffer_of(target).arg.slot != slot:
            continue
        gated = any(node.op is Ops.WHERE or node.op is Ops.PARAM for s in target.src[1:] for node in s.toposort())
        extents = [r.src[0] for r in sink.src[1:]] if sink.op is Ops.END else []
        if gated or any(e.op is not Ops.CONST for e in extents):
            return 0
        total += math.prod(int(e.arg) for e in extents)
    return total
