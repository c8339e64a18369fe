"""Random projections of a whole output: what a linear kernel must write, seen in every element of it (Freivalds 1977).

For signs v[c] of one output range c, P[o'] = Σ_c v[c] · C[o', c] over the other output ranges o'. Of a matmul, a
convolution or a sum it is also Σ_k X[o', k] · (Σ_c v[c] · Y[c, k]): known at the cost of reading each operand once.

Accepted is a stored value that is a sum of terms, through casts between floats, with constant factors, and factors that
depend on o' or on c only (gates, softmax denominators). A term is a sum over k of one load, or of a product of two of
which one depends on c; or anything elementwise (bias, residual). Loads are affine in the ranges, perhaps padded with
zeros, and of floats; the store is affine and writes no element twice. All else has no projection.

The error of P is that of independent errors, `sqrt(Σ_c error²)`, by the rules of `kcg.kernel.reference`. It is 0 where
all inputs are integers so small that every rounding is exact: then P must match exactly, and one wrong element is seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from kcg.compat.tiny import AddrSpace, Ops, UOp, dtypes
from kcg.errors import VerificationError
from kcg.kernel.arithmetic import Value, significant_bits, unit_roundoff
from kcg.kernel.ast import affine, buffer_of, extent, is_local, is_symbolic, shape_of, store_of, without_gates
from kcg.kernel.reference import MAX_ELEMENTS, Run, buffers

# ---- Which stored values are linear, and the terms that they are sums of.


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
    if sink.op is not Ops.END or any(node.op is Ops.RANGE and not is_fixed(node) for node in nodes):
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
    variance, bits = 0.0, significant_bits(target.dtype)
    while value.op is Ops.CAST and dtypes.is_float(value.src[0].dtype):
        variance, bits = variance + cast_variance(value), min(bits, significant_bits(value.dtype))
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
    bits = significant_bits(node.dtype)
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
        bits=min((significant_bits(product.dtype) for product in products), default=53),
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
        bits=min(significant_bits(one.dtype) for one in (node, *products)),
    )
    return (term,)


# ---- Loads at affine positions, read as strided views of the buffer: no gather, no copy where the strides allow.
#
# A load in a kernel mostly reads element `base + Σ stride · range` of its buffer, perhaps zero outside a mask
# (padding). `Reader` walks such a load over a grid of its ranges in pieces that stay in cache, each a float64 view.

WINDOW = 1 << 20  # elements of one piece: 8 MiB, in cache
COMPUTED_A_PIECE = 1 << 16  # elements that are computed in the time that a piece more takes

Array = NDArray[Any]
Grid = Mapping[UOp, NDArray[np.int64]]
"""The values, ascending, that each range takes."""
Conditions = Callable[[tuple[UOp, ...], Grid], Array]
"""Computes whether all of some conditions hold, on a grid with its axes in the mapping's order."""


@runtime_checkable
class Computed(Protocol):
    """A buffer of `size` elements, each one of `block`, computed when asked for; `kcg.measure.inputs.Hashed` is one."""

    @property
    def block(self) -> Array: ...
    @property
    def size(self) -> int: ...
    def of(self, block: Array) -> Computed:
        """The same with other numbers in the block."""
        ...

    def window(self, first: int, count: int) -> Array:
        """The elements `first` to `first + count`."""
        ...


@dataclass(frozen=True, eq=False)
class Access:
    """Elements `base + Σ strides[range] · range` of a buffer; 0 where a condition of `mask` is false."""

    slot: int
    size: int  # elements of the buffer
    base: int
    strides: Mapping[UOp, int]  # also 0, for ranges that only the mask depends on
    mask: tuple[UOp, ...] = ()
    variance: float = 0.0  # (relative rounding error)² of casts after the load


def is_fixed(node: UOp) -> bool:
    """Whether a node is a range of fixed extent that one device goes through."""
    return is_local(node) and not is_symbolic(node)


def access_of(index: UOp) -> Access | None:
    """The access of an INDEX; None if its position is not affine. A gate (`Invalid`) becomes the mask."""
    source, positions, buffer = index.src[0], index.src[1:], buffer_of(index)
    shaped = source.src[1:] if source.op is Ops.RESHAPE and source.src[0] is buffer else ()
    if not (buffer.op is Ops.PARAM and (shaped or source is buffer) and all(map(_is_sized, (buffer, *shaped)))):
        return None
    if len(dims := shape_of(index)) != len(positions):
        return None
    base, strides, mask = 0, dict[UOp, int](), list[UOp]()
    for dim, place in zip(dims, positions, strict=True):
        position, gates = without_gates(place)
        mask += gates
        if (part := affine(position, is_axis=is_fixed, through_casts=True)) is None:
            return None
        base = base * dim + part.pop(None, 0)
        found = {axis: factor for axis, factor in part.items() if axis is not None}
        strides = {r: strides.get(r, 0) * dim + found.get(r, 0) for r in dict.fromkeys((*strides, *found))}
    return _masked(Access(buffer.arg.slot, int(buffer.src[0].arg), base, strides), mask)


def _is_sized(node: UOp) -> bool:
    """Whether the size of a buffer, or one of those that it is numbered by, is a constant."""
    sizes = node.src if node.op is Ops.STACK else node.src[:1] if node.op is Ops.PARAM else (node,)
    return all(size.op is Ops.CONST for size in sizes)


def load_of(node: UOp) -> Access | None:
    """The access of a value that is a plain float load, perhaps cast between floats, perhaps zero outside a mask."""
    if not dtypes.is_float(node.dtype):
        return None
    match node.op:
        case Ops.INDEX:
            return access_of(node)
        case Ops.CAST:
            if (inner := load_of(node.src[0])) is None:
                return None
            return Access(
                inner.slot, inner.size, inner.base, inner.strides, inner.mask, inner.variance + cast_variance(node)
            )
        case Ops.WHERE if node.src[2].op is Ops.CONST and node.src[2].arg == 0:
            inner = load_of(node.src[1])
            return None if inner is None else _masked(inner, [node.src[0]])
        case _:
            return None


def cast_variance(cast: UOp) -> float:
    """(relative rounding error)² of a cast to a float: 0 to a type that holds all values of its source."""
    source = cast.src[0].dtype
    narrower = not dtypes.is_float(source) or unit_roundoff(cast.dtype) > unit_roundoff(source)
    return unit_roundoff(cast.dtype) ** 2 if narrower else 0.0


def _masked(access: Access, conditions: Sequence[UOp]) -> Access | None:
    """The access under further conditions; None if one depends on anything but ranges of fixed extent."""
    strides = dict(access.strides)
    for condition in conditions:
        for node in condition.toposort():
            if node.op in (Ops.INDEX, Ops.PARAM, Ops.REDUCE):
                return None
            if node.op is Ops.RANGE:
                if not is_fixed(node):
                    return None
                strides.setdefault(node, 0)
    return Access(access.slot, access.size, access.base, strides, (*access.mask, *conditions), access.variance)


class Reader:
    """One buffer as float64, an array or something computed."""

    def __init__(self, values: Array | Computed) -> None:
        self._computed: Computed | None = None
        if isinstance(values, Computed):
            self._computed = values.of(np.asarray(values.block, np.float64))
            self._flat: Array = self._computed.block  # every number that there is
            self.size = int(values.size)
        else:
            self._flat = values.reshape(-1)
            self.size = self._flat.size
        self._integral: bool | None = None

    @property
    def integral(self) -> bool:
        """Whether all values are integers."""
        if self._integral is None:
            parts = (self._flat[s : s + WINDOW] for s in range(0, self._flat.size, WINDOW))
            self._integral = all(bool((np.rint(part) == part).all()) for part in parts)
        return self._integral

    def pieces(self, access: Access, grid: Grid, conditions: Conditions) -> Iterator[tuple[dict[UOp, slice], Array]]:
        """Pieces that together cover the grid of an access: where each lies in the grid, and its values.

        The axes of a piece are the keys of its position, by falling stride. Raises VerificationError for an access
        outside the buffer.
        """
        order = sorted(access.strides, key=lambda r: -abs(access.strides[r]))
        axes = [_Axis.over(r, access.strides[r], grid[r]) for r in order]
        self._check(access, axes)
        # parts are left out unread of the axis of the largest stride: elsewhere that is one piece per part, which costs
        # more than reading them, unless they are computed and large
        options: list[list[_Axis]] = []
        for place, axis in enumerate(axes):
            parts = _consecutive(grid[axis.range]) if axis.length != len(grid[axis.range]) else []
            left_out = (axis.length - len(grid[axis.range])) * abs(axis.stride) // max(1, len(parts))
            apart = bool(parts) and (not place or (self._computed is not None and left_out > COMPUTED_A_PIECE))
            options.append([_Axis.over(axis.range, axis.stride, part) for part in parts] if apart else [axis])
        for head in itertools.product(*options):
            for cut in self._split(head):
                if (piece := self._piece(access, cut, grid, conditions)) is not None:
                    yield piece

    def _check(self, access: Access, axes: Sequence[_Axis]) -> None:
        ends = [sorted((a.stride * a.start, a.stride * (a.start + a.step * (a.length - 1)))) for a in axes]
        low, high = (access.base + sum(end[i] for end in ends) for i in (0, 1))
        if not access.mask and (low < 0 or high >= min(self.size, access.size)):
            raise VerificationError(f"an access is outside its buffer {access.slot} of {self.size} elements")

    def _piece(
        self, access: Access, axes: Sequence[_Axis], grid: Grid, conditions: Conditions
    ) -> tuple[dict[UOp, slice], Array] | None:
        first = access.base + sum(a.stride * a.start for a in axes)
        low = sum(min(0, a.reach) for a in axes)
        window = self._window(first + low, sum(abs(a.reach) for a in axes) + 1)
        view = as_strided(
            window[-low:], [a.length for a in axes], [8 * a.stride * a.step for a in axes], writeable=False
        )
        where: dict[UOp, slice] = {}
        for i, axis in enumerate(axes):
            last = axis.start + axis.step * (axis.length - 1)
            begin, end = np.searchsorted(grid[axis.range], (axis.start, last + 1))
            where[axis.range] = slice(int(begin), int(end))
            if end - begin != axis.length:
                if begin == end:
                    return None
                view = view.take(grid[axis.range][begin:end] - axis.start, i)
        if access.mask:
            view = np.where(conditions(access.mask, {r: grid[r][s] for r, s in where.items()}), view, 0.0)
        return where, view

    def _window(self, first: int, count: int) -> Array:
        begin, end = max(0, first), min(self.size, max(0, first + count))
        if self._computed is not None:
            part = self._computed.window(begin, max(0, end - begin))
        else:
            part = np.asarray(self._flat[begin:end], np.float64)
        if len(part) == count:
            return part
        before = min(count, max(0, -first))  # a padded load: the mask hides what is outside
        return np.pad(part, (before, count - before - len(part)))

    def _split(self, axes: Sequence[_Axis]) -> Iterator[list[_Axis]]:
        """The axes cut into pieces that fit a window: those of the largest strides are cut."""
        if not axes:
            yield []
            return
        axis, rest = axes[0], list(axes[1:])
        inside, count = 1 + sum(abs(a.reach) for a in rest), math.prod(a.length for a in rest)
        fits = inside <= WINDOW and count <= WINDOW
        most = 1
        step = abs(axis.stride * axis.step)
        if fits and not (self._computed is not None and step - inside > COMPUTED_A_PIECE):
            most = min(WINDOW // count, 1 + (WINDOW - inside) // step if step else WINDOW)
        for begin in range(0, axis.length, most):
            part = axis.part(begin, min(most, axis.length - begin))
            if fits:
                yield [part, *rest]
            else:
                yield from ([part, *cut] for cut in self._split(rest))


class _Axis(NamedTuple):
    """Values `start + step · i` of one range, `length` of them."""

    range: UOp
    stride: int  # in elements of the buffer, for 1 of the range
    start: int
    step: int
    length: int

    @classmethod
    def over(cls, axis: UOp, stride: int, values: NDArray[np.int64]) -> _Axis:
        """The values, or all between the first and the last where these are not evenly spaced."""
        first, last = int(values[0]), int(values[-1])
        steps = np.diff(values)
        step = int(steps[0]) if len(steps) and (steps == steps[0]).all() else 1
        return cls(axis, stride, first, step, (last - first) // step + 1)

    @property
    def reach(self) -> int:
        return self.stride * self.step * (self.length - 1)

    def part(self, begin: int, length: int) -> _Axis:
        return self._replace(start=self.start + self.step * begin, length=length)


def _consecutive(values: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return np.split(values, np.flatnonzero(np.diff(values) != 1) + 1)


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
    """How many expected errors `got` is away: a correct kernel stays below `kcg.kernel.reference.CONFIDENT`.

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
