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
  not so a comparison of a value with itself (`kcg.kernel.identities`), which is open only where NaN is.
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kcg.compat.tiny import AddrSpace, AxisType, DType, Invalid, Ops, UOp, dtypes
from kcg.errors import VerificationError
from kcg.kernel.complements import as_complement, complements
from kcg.kernel.identities import Identities, identities
from kcg.kernel.numerics import CONFIDENT as CONFIDENT
from kcg.kernel.numerics import (
    Value,
    alu,
    bit_cast,
    cast,
    difference_with_itself,
    may_flush,
    numpy_dtype,
    settled,
    smallest_normal,
    unit_roundoff,
)
from kcg.kernel.reduction import Fold

MAX_ELEMENTS = 1 << 18  # of one intermediate array: 2 MiB, so that a dozen of them stay in cache and far below 256 MB

EXPLAINED = 0.05
"""An error of such a share of a store's typical value is rounding: float16 and bfloat16 come to 0.02 in the zoo."""

Array = NDArray[Any]


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
    uses = (BufferUse(p.arg.slot, int(p.src[0].arg), _name(p.dtype), p.arg.slot in outputs, p.arg.slot in inputs)
            for p in params)  # fmt: skip
    return tuple(sorted(uses, key=lambda use: use.slot))


def sample_points(
    ast: UOp, n: int, rng: np.random.Generator, variables: Mapping[str, int] | None = None
) -> list[NDArray[np.int64]]:
    """Points of each store, `(points, output ranges)`: all of them where there are at most `n`, else `n` of them.

    The first and the last index of every range are always among them (if `n` allows): blocks, tails and pads end there.
    """
    samples = []
    for sink in ast.src:
        run = Run(ast, {}, variables)
        extents = [run.extent(r) for r in sink.src[1:]] if sink.op is Ops.END else []
        if (total := math.prod(extents)) <= n:
            flat = np.arange(total, dtype=np.int64)
            samples.append(np.stack(np.unravel_index(flat, extents), 1) if extents else np.zeros((1, 0), np.int64))
            continue
        points = np.stack([rng.integers(0, e, n) for e in extents], 1).astype(np.int64)
        last = np.array(extents, np.int64) - 1
        points[:1], points[1:2] = 0, last
        for axis in range(len(extents)):  # each range at its ends, the others anywhere
            points[2 + 2 * axis : 3 + 2 * axis, axis] = 0
            points[3 + 2 * axis : 4 + 2 * axis, axis] = last[axis]
        samples.append(points)
    return samples


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


def store_of(sink: UOp) -> UOp:
    return sink.src[0] if sink.op is Ops.END else sink


def buffer_of(index: UOp) -> UOp:
    source = index.src[0]
    return source.src[0] if source.op is Ops.RESHAPE else source


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


class Run:
    """One evaluation: the inputs, the variables, and which node is computed in which scope."""

    def __init__(self, ast: UOp, inputs: Mapping[int, Array], variables: Mapping[str, int] | None) -> None:
        self.inputs = inputs
        self.variables = dict(variables or {})
        self.scopes: dict[UOp, _Scope] = {}
        self._complements = complements(ast)
        self._ast = ast
        for node in ast.toposort():
            if node.op is Ops.REDUCE:
                self.scopes[node] = self._scope(node.src[:1], frozenset(node.src[1:]))

    @functools.cached_property
    def _identities(self) -> Identities:
        return identities(self._ast)

    def _needs(self, node: UOp) -> tuple[UOp, ...]:
        """The nodes that must be known before `node`, in its own scope."""
        if node.op is Ops.REDUCE:
            return self.scopes[node].inputs
        if node.op is Ops.INDEX:
            return tuple(node.src[1:])
        if node in self._complements:
            return (*node.src, self._complements[node])
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
                    node.op, node.dtype, [values[s] for s in node.src], [s.dtype for s in node.src],
                    same=node in known.same, unrelated=node not in known.related, positive=node in known.positive,
                )  # fmt: skip
                x = self._complements.get(node)
                return result if x is None else as_complement(result, values[x], node.dtype)

    def _variable(self, name: str) -> int:
        if name not in self.variables:
            raise VerificationError(f"the kernel needs a value of its variable {name}")
        return self.variables[name]

    def _flat_index(self, index: UOp, values: Mapping[UOp, Value]) -> tuple[Array, Array | None]:
        """The element of the buffer, and where the access happens at all (None: everywhere)."""
        source = index.src[0]
        if source.op is Ops.RESHAPE:
            dims = [int(s.arg) for s in (source.src[1].src if source.src[1].op is Ops.STACK else source.src[1:])]
        else:
            dims = [0]
        flat: Array = np.zeros((), np.int64)
        gate: Array | None = None
        for dim, node in zip(dims, index.src[1:], strict=True):
            flat = flat * dim + values[node].data.astype(np.int64, copy=False)
            if (valid := values[node].valid) is not None:
                gate = valid if gate is None else gate & valid
        return flat, gate

    def _load(self, index: UOp, values: Mapping[UOp, Value]) -> Value:
        buffer = buffer_of(index)
        slot, size = buffer.arg.slot, int(buffer.src[0].arg)
        if slot not in self.inputs:
            raise VerificationError(f"the kernel reads buffer {slot}, which is not among the inputs")
        data = self.inputs[slot].reshape(-1)
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
        loaded = data[flat].astype(wanted, copy=False)
        if gate is not None:
            loaded = np.where(gate, loaded, np.zeros((), wanted))
        # an uncertain index may load anything
        unsure = [e for node in index.src[1:] if (e := settled(values[node]).error) is not None]
        error = np.where(sum(unsure, np.zeros(())) > 0, np.inf, 0.0) if unsure else None
        if may_flush(index.dtype) and (tiny := np.abs(loaded) < smallest_normal(index.dtype)).any():
            error = np.where(tiny, np.abs(loaded), 0.0) if error is None else error + np.where(tiny, np.abs(loaded), 0)
        return Value(np.asarray(loaded), error)

    def _reduce(self, node: UOp, values: Mapping[UOp, Value]) -> Value:
        """Reduces over the flattened ranges in blocks, so that no array is larger than MAX_ELEMENTS (or the points)."""
        scope, body, ranges = self.scopes[node], node.src[0], node.src[1:]
        extents = [self.extent(r) for r in ranges]
        total = math.prod(extents)
        outer = np.broadcast_shapes(*(values[i].data.shape for i in scope.inputs))
        block = max(1, MAX_ELEMENTS // max(1, math.prod(outer)))
        fold = Fold(node.arg[0], node.dtype, total, unrelated=_stay_inside(body, frozenset(ranges)))
        inside = {i: values[i] for i in scope.inputs}
        for start in range(0, total, block):
            flat = np.arange(start, min(total, start + block), dtype=np.int64)
            flat = flat.reshape(-1, *(1 for _ in outer))
            for rng, extent in zip(reversed(ranges), reversed(extents), strict=True):
                inside[rng] = Value(flat % extent)
                flat = flat // extent
            result = self._compute(scope.order, (body,), inside)[body]
            fold.add(result, min(block, total - start), len(outer))
        return fold.value()


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
        if (total := math.prod(int(e) for e in self.extents)) > most:
            return None
        found = [np.zeros((0, len(self.extents)), np.int64)]
        for start in range(0, total, MAX_ELEMENTS // 4):
            flat = np.arange(start, min(total, start + MAX_ELEMENTS // 4), dtype=np.int64)
            axes = np.unravel_index(flat, tuple(self.extents)) if len(self.extents) else ()
            points = np.stack(axes, 1).astype(np.int64) if len(axes) else np.zeros((1, 0), np.int64)
            where, opened = self.at(points)
            found.append(points[np.isin(where, elements) & opened])
        return np.concatenate(found)


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
