"""Random projections of a whole output: what a linear kernel must write, seen in every element of it (Freivalds 1977).

For signs v[c] of one output range c, P[o'] = Σ_c v[c] · C[o', c] over the other output ranges o'. Of a matmul, a
convolution or a sum it is also Σ_k X[o', k] · (Σ_c v[c] · Y[c, k]): known at the cost of reading each operand once.

Accepted is a stored value that is a sum of terms, through casts between floats, with constant factors, and factors that
depend on o' or on c only (gates, softmax denominators). A term is a sum over k of one load, or of a product of two of
which one depends on c; or anything elementwise (bias, residual). Loads are affine in the ranges, perhaps padded with
zeros, and of floats; the store is affine and writes no element twice. All else has no projection.

The error of P is that of independent errors, `sqrt(Σ_c error²)`, by the rules of `kcg.kernel.evaluate`. It is 0 where
all inputs are integers so small that every rounding is exact: then P must match exactly, and one wrong element is seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kcg.compat.tiny import Ops, UOp, dtypes
from kcg.errors import VerificationError
from kcg.kernel.affine import Access, Array, Grid, Reader
from kcg.kernel.evaluate import MAX_ELEMENTS, Run
from kcg.kernel.linear import Projection, Term, chain, extent, plan
from kcg.kernel.numerics import Value, unit_roundoff

__all__ = ["Projection", "exact_density", "expected", "output_view", "plan", "project", "ratio", "signs"]

SAMPLED_COLUMNS = 256  # of c, for the sizes of the terms
SAMPLED_TERMS = 1024  # of the longest reduced range, for the same
EXACT_SUM = 24.0  # {0,1} products that a sum should have: far below 256, where bfloat16 has its first gap
FAR = 16.0  # standard deviations: no element of an output is that far from the mean of its row


def signs(projection: Projection, rng: np.random.Generator) -> NDArray[np.float64]:
    """Random v, `(columns,)` of -1 and 1."""
    return np.where(rng.random(projection.columns) < 0.5, -1.0, 1.0)


def output_view(projection: Projection) -> tuple[int, int, int] | None:
    """`(outer, C, inner)`: the whole output buffer as a row-major array whose middle axis is c; None if it is not.

    Row `i` of the projection is then `(i // inner, i % inner)` of the other two axes.
    """
    strides, inner, step = projection.output.strides, 1, 1
    for axis in sorted(strides, key=lambda r: strides[r]):
        if strides[axis] != step:
            return None
        inner = step if axis is projection.column else inner
        step *= extent(axis)
    if projection.output.base != 0 or step != projection.output.size:
        return None
    return step // projection.columns // inner, projection.columns, inner


def project(
    output_values: Any, projection: Projection, v: Array, *, rows: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """P of an output buffer, `(rows,)`, summed in float64."""
    work = _Work(projection, {projection.slot: output_values}, rows)
    axes, sums = work.along_column(projection.output, v, work.grid)
    return work.chosen(work.as_rows(axes, sums))


def expected(
    projection: Projection,
    inputs: Mapping[int, Any],
    v: Array,
    rows: NDArray[np.int64] | None = None,
    *,
    summed_in_float32: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`(values, error)` of P at `rows` (flat indices of o'; all if None), each `(rows,)`.

    `inputs` is as `evaluate` takes it; what has a `block` is computed where it is read. A few rows cost
    less only if they share their outermost indices. `summed_in_float32`: so is the P that this is compared with.
    Raises VerificationError for an absent input and a load outside its buffer.
    """
    work = _Work(projection, inputs, rows)
    with np.errstate(all="ignore"):
        values, error = work.expected(v, summed_in_float32=summed_in_float32)
    return work.chosen(values), work.chosen(error)


def ratio(values: Array, error: Array, got: Array) -> NDArray[np.float64]:
    """How many expected errors `got` is away: a correct kernel stays below `kcg.kernel.evaluate.CONFIDENT`.

    NaN is infinitely far. Where the expected value is not finite, or its error is infinite, nothing is said (0).
    """
    with np.errstate(all="ignore"):
        away = np.abs(np.asarray(got, np.float64) - values)
        away = np.where(away == 0, 0.0, np.where(np.isnan(away), np.inf, away) / error)
    return np.where(np.isfinite(values) & np.isfinite(error), away, 0.0)


def exact_density(ast: UOp) -> float:
    """The share of ones in {0,1} inputs with which a sum of K products is about 24, so exact in any 16-bit float.

    K is that of the longest chain of nested sums: (24 / K)^(1/n) for products of n loads. At most 0.5.
    """
    longest, density = 1, 0.5
    for node in ast.toposort():
        if node.op is Ops.REDUCE and node.arg[0] is Ops.ADD:
            terms, factors = chain(node)
            wanted = min(0.5, (EXACT_SUM / terms) ** (1 / max(1, factors)))
            if terms > longest or (terms == longest and wanted < density):
                longest, density = terms, wanted
    return density


class _Part(NamedTuple):
    """One term in all rows: its P, and means over c of its elements."""

    value: Array
    mean: Array
    products: Array  # mean of the sum of its products²
    squares: Array  # mean of its elements²
    variance: Array  # (relative error)² of its factors
    integral: bool  # whether all elements are integers, computed without any rounding


class _Work:
    """One projection of given data at given rows: computed on the smallest box of o' that holds the rows."""

    def __init__(self, projection: Projection, inputs: Mapping[int, Any], rows: NDArray[np.int64] | None) -> None:
        self.plan, self.inputs = projection, inputs
        self._run = Run(projection.ast, inputs, None)
        self._readers: dict[int, Reader] = {}
        ranges = [node for node in projection.ast.toposort() if node.op is Ops.RANGE]
        self.grid: dict[UOp, NDArray[np.int64]] = {r: np.arange(extent(r)) for r in ranges}
        self._place: tuple[Any, ...] | None = None
        self._count = projection.rows if rows is None else len(rows)
        if rows is not None:
            places = np.unravel_index(rows, projection.row_shape) if projection.row_shape else ()
            for axis, place in zip(projection.row_ranges, places, strict=True):
                self.grid[axis] = np.unique(place)
            self._place = tuple(
                np.searchsorted(self.grid[r], place) for r, place in zip(projection.row_ranges, places, strict=True)
            )
        self._shape = tuple(len(self.grid[r]) for r in projection.row_ranges)
        # evenly spaced, so that they are read as one view
        self._sample = np.arange(0, projection.columns, -(-projection.columns // SAMPLED_COLUMNS))

    def chosen(self, values: Array) -> NDArray[np.float64]:
        """Values in the box, at the rows asked for."""
        box = np.broadcast_to(values, self._shape)
        flat = box.reshape(-1) if self._place is None else np.broadcast_to(box[self._place], self._count)
        return np.array(flat, np.float64)

    def as_rows(self, axes: tuple[UOp, ...], data: Array) -> Array:
        """An array over some of the row ranges, with an axis for each of them."""
        rows = self.plan.row_ranges
        data = data.transpose([axes.index(r) for r in rows if r in axes])
        return data.reshape([len(self.grid[r]) if r in axes else 1 for r in rows])

    def along_column(
        self, access: Access, weights: Array, grid: Grid, *, square: bool = False
    ) -> tuple[tuple[UOp, ...], Array]:
        """`(axes, sums)`: `Σ_c weight · load` (or load²) over the other ranges of a load."""
        column = self.plan.column
        axes = tuple(sorted((r for r in access.strides if r is not column), key=lambda r: -abs(access.strides[r])))
        sums = np.zeros([len(grid[r]) for r in axes])
        for where, piece in self._reader(access.slot).pieces(access, grid, self._holds):
            at, shape = list(where).index(column), piece.shape
            block = piece.reshape(math.prod(shape[:at]), shape[at], math.prod(shape[at + 1 :]))
            block = np.square(block) if square else block
            # not BLAS: beside busy cores its threads wait for each other up to 40 times as long as one of them works
            done = np.einsum("c,acb->ab", weights[where[column]], block)
            sums[tuple(where[r] for r in axes)] += done.reshape(shape[:at] + shape[at + 1 :])
        return axes, sums

    def expected(self, v: Array, *, summed_in_float32: bool) -> tuple[Array, Array]:
        """`(values, error)` in the box."""
        columns, terms = self.plan.columns, self.plan.terms
        parts = [self._part(term, v) for term in terms]
        mean: Array = np.sum(np.broadcast_arrays(np.zeros(self._shape), *(p.mean for p in parts)), 0)
        spread: Array = np.zeros(self._shape)  # variance over c of the output
        variance: Array = np.zeros(self._shape)  # of the error of one element
        largest: Array = np.zeros(self._shape)
        for term, part in zip(terms, parts, strict=True):
            own = part.products if term.reduced else np.maximum(0.0, part.squares - np.square(part.mean))
            spread = spread + own
            largest = largest + np.abs(part.mean) + FAR * np.sqrt(own)
            variance = variance + (term.variance + part.variance) * part.squares
            variance = variance + (term.product_variance + term.sum_variance) * (part.products + np.square(part.mean))
        total = np.square(mean) + spread
        variance = variance + self.plan.variance * total
        if summed_in_float32:
            variance = variance + unit_roundoff(dtypes.float32) ** 2 * columns * total
        error = np.sqrt(columns * variance)
        if all(part.integral for part in parts):
            exact = largest <= 2.0 ** min(term.bits for term in terms)
            exact &= columns * largest <= 2.0 ** (24 if summed_in_float32 else 53)
            error = np.where(exact, 0.0, error)
        values: Array = np.sum(np.broadcast_arrays(np.zeros(self._shape), *(p.value for p in parts)), 0)
        return values, np.where(np.isnan(error), np.inf, error)

    def _reader(self, slot: int) -> Reader:
        if slot not in self.inputs:
            raise VerificationError(f"the kernel reads buffer {slot}, which is not among the inputs")
        if slot not in self._readers:
            self._readers[slot] = Reader(self.inputs[slot])
        return self._readers[slot]

    def _compute(self, nodes: tuple[UOp, ...], known: Mapping[UOp, Array]) -> list[Value]:
        """Elementwise nodes, given the values of their ranges."""
        order = self._run._scope(nodes, None).order
        found = self._run._compute(order, nodes, {r: Value(values) for r, values in known.items()})
        return [found[node] for node in nodes]

    def _product(self, nodes: tuple[UOp, ...], axes: tuple[UOp, ...]) -> tuple[Array, Array]:
        """`(values, (relative error)²)` of a product of elementwise nodes over the box, an axis for each of `axes`."""
        known = {r: self.grid[r].reshape([-1 if r is axis else 1 for axis in axes]) for r in axes}
        value: Array = np.ones([1] * len(axes))
        variance: Array = np.zeros([1] * len(axes))
        for factor in self._compute(nodes, known):
            value = value * factor.data
            if factor.error is not None:
                relative = np.where(factor.error == 0, 0.0, factor.error / np.abs(factor.data))
                variance = variance + np.square(relative)
        return value, variance

    def _holds(self, conditions: tuple[UOp, ...], grid: Grid) -> Array:
        axes = tuple(grid)
        known = {r: grid[r].reshape([-1 if r is axis else 1 for axis in axes]) for r in axes}
        holds: Array = np.ones([1] * len(axes), bool)
        for condition in self._compute(conditions, known):
            holds = holds & condition.data
        return holds

    def _part(self, term: Term, v: Array) -> _Part:
        if term.element is not None:
            return self._element(term.element, v)
        column_range = self.plan.column
        row, row_variance = self._product(term.rows, self.plan.row_ranges)
        column, column_variance = self._product(term.columns, (column_range,))
        column = np.broadcast_to(column, self.plan.columns)
        factor = term.scale * row
        variance = row_variance + column_variance.mean()
        exact = not variance.any() and bool((np.rint(factor) == factor).all() and (np.rint(column) == column).all())
        if term.summed is None:
            squares = np.square(factor) * np.square(column).mean()
            return _Part(factor * (v @ column), factor * column.mean(), squares, squares, variance, exact)
        loads = [load for load in (term.summed, term.other) if load is not None]
        exact = exact and all(self._reader(load.slot).integral for load in loads)
        sampled, grid = column[self._sample], {**self.grid, column_range: self._sample}
        axes, value = self.along_column(term.summed, v * column, self.grid)
        _, mean = self.along_column(term.summed, sampled / len(sampled), grid)
        _, squares = self.along_column(term.summed, np.square(sampled) / len(sampled), grid, square=True)
        if term.other is None:
            inner = tuple(axes.index(r) for r in term.reduced)
            axes = tuple(r for r in axes if r not in term.reduced)
            value, mean, squares = (self.as_rows(axes, part.sum(inner)) for part in (value, mean, squares))
        else:
            value = self._times(term.other, axes, value, term.reduced)
            mean = self._sampled_times(term.other, axes, mean, term.reduced)
            squares = self._sampled_times(term.other, axes, squares, term.reduced, square=True)
        value, mean, squares = factor * value, factor * mean, np.square(factor) * squares
        if not term.reduced:
            return _Part(value, mean, squares, squares, variance + term.summed.variance, exact)
        return _Part(value, mean, squares, squares + np.square(mean), variance, exact)

    def _sampled_times(
        self, access: Access, axes: tuple[UOp, ...], data: Array, reduced: tuple[UOp, ...], *, square: bool = False
    ) -> Array:
        """About `_times`, from the first indices of the longest reduced range only."""
        longest = max(reduced, key=extent)
        kept = min(extent(longest), SAMPLED_TERMS)
        if longest in axes:
            data = data.take(range(kept), axes.index(longest))
        cut = {**self.grid, longest: np.arange(kept)}
        return self._times(access, axes, data, reduced, grid=cut, square=square) * (extent(longest) / kept)

    def _times(
        self,
        access: Access,
        axes: tuple[UOp, ...],
        data: Array,
        reduced: tuple[UOp, ...],
        *,
        grid: Grid | None = None,
        square: bool = False,
    ) -> Array:
        """`Σ_reduced load · data` (or load² · data) over the rows; `data` is over `axes`."""
        grid, own = grid or self.grid, access.strides
        idle = [r for r in axes if r in reduced and r not in own]  # the load does not depend on these
        data = data.sum(tuple(axes.index(r) for r in idle))
        axes = tuple(r for r in axes if r not in idle)
        lone = [r for r in own if r not in axes and r in reduced]  # nor the data on these
        shared = tuple(r for r in axes if r in own and r not in reduced)
        inner = tuple(r for r in axes if r in own and r in reduced)
        alone = tuple(r for r in axes if r not in own)
        free = tuple(r for r in own if r not in axes and r not in reduced)
        data = data.transpose([axes.index(r) for r in (*shared, *inner, *alone)])
        tail = data.shape[len(shared) + len(inner) :]
        sums = np.zeros([*(len(grid[r]) for r in (*shared, *free)), math.prod(tail)])
        for where, piece in self._reader(access.slot).pieces(access, grid, self._holds):
            values, names = np.square(piece) if square else piece, list(where)
            if lone:
                values = values.sum(tuple(names.index(r) for r in lone))
                names = [r for r in names if r not in lone]
            values = values.transpose([names.index(r) for r in (*shared, *free, *inner)])
            sizes = [math.prod(where[r].stop - where[r].start for r in group) for group in (shared, free, inner)]
            right = data[tuple(where[r] for r in (*shared, *inner))].reshape(sizes[0], sizes[2], -1)
            target = sums[tuple(where[r] for r in (*shared, *free))]
            values = values.reshape(sizes)
            one = right.shape[2] == 1  # then not BLAS, as above
            done = np.einsum("afk,ak->af", values, right[:, :, 0]) if one else np.matmul(values, right)
            target += done.reshape(target.shape)
        return self.as_rows((*shared, *free, *alone), sums.reshape((*sums.shape[:-1], *tail)))

    def _element(self, node: UOp, v: Array) -> _Part:
        """An elementwise term that is no plain load: computed in full, some rows at a time."""
        rows, column = self.plan.row_ranges, self.plan.column
        total, step = math.prod(self._shape), max(1, MAX_ELEMENTS // self.plan.columns)
        sums, integral = np.zeros((4, total)), True
        for start in range(0, total, step):
            here = slice(start, min(total, start + step))
            places = np.unravel_index(np.arange(here.start, here.stop), self._shape) if rows else ()
            known = {r: self.grid[r][place][:, None] for r, place in zip(rows, places, strict=True)}
            (found,) = self._compute((node,), {**known, column: self.grid[column][None, :]})
            shape = (here.stop - here.start, self.plan.columns)
            data = np.broadcast_to(np.asarray(found.data, np.float64), shape)
            error = np.broadcast_to(np.zeros(()) if found.error is None else found.error, shape)
            integral = integral and not error.any() and bool((np.rint(data) == data).all())
            sums[:, here] = data @ v, data.mean(1), np.square(data).mean(1), np.square(error).mean(1)
        value, mean, squares, errors = sums.reshape(4, *self._shape)
        variance = np.where(errors == 0, 0.0, errors / squares)
        return _Part(value, mean, squares, squares, variance, integral)
