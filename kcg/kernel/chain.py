"""What several kernels in a row should compute: the float64 reference of a region, at sampled points of its outputs.

What one kernel leaves for the next is computed where an output needs it, kept, and never rounded: the rounding of its
storage is part of its error, as of any other value. So a program that keeps intermediates in registers is right, and
one that stores them is right too, while a term that is left out is beyond the error of both. An intermediate that
overflowed in the type that it is stored in is unknown: who does not store it has a number.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kcg.compat.tiny import AddrSpace, Ops, UOp, dtypes
from kcg.errors import VerificationError
from kcg.kernel.arithmetic import Noise, numpy_dtype, products_are_tf32, rounding_at_random, significant_bits
from kcg.kernel.ast import buffer_of, store_of
from kcg.kernel.codec import ast_of
from kcg.kernel.reference import (
    Array,
    BufferUse,
    Run,
    StoreIndex,
    StoreValues,
    buffers,
    points_of_store,
    stored_elements,
)
from kcg.types import Region

MOST_TERMS = 1 << 24
"""Terms of reductions, and values, that one evaluation of several kernels may compute: one to four seconds on one core,
with the random roundings three times that."""
ENOUGH_TERMS = 1 << 23
"""How many are computed for more points than a few: of attention over 4,608 keys a point takes a million."""
PAGE_BITS = 8
PAGE = 1 << PAGE_BITS  # elements of a buffer that are kept together
TILE = 64  # elements of which tiles of programs are multiples
PROBED = 12  # points that are computed first where all may take too long
FEWEST = 4  # points that are computed in any case, unless they take more than `MOST_TERMS`

SHAKEN = 2
"""How often a chain that stores 16 bits in between is evaluated with random roundings."""
SEEN = 8  # random errors from which on something is known of their size


class Store(NamedTuple):
    """A store of one of the kernels, by their places, and the buffer of the region that it writes."""

    kernel: int
    place: int
    slot: int


class Chain:
    """The kernels of a region in order, on buffers that have the region's numbers."""

    def __init__(self, region: Region) -> None:
        asts = [ast_of(kernel) for kernel in region.kernels]
        if region.args:
            asts = [renumbered(ast, slots) for ast, slots in zip(asts, region.args, strict=True)]
        self.asts = tuple(asts)
        self._outputs = region.outputs

    @cached_property
    def uses(self) -> tuple[dict[int, BufferUse], ...]:
        """How each kernel uses which of its buffers."""
        return tuple({use.slot: use for use in buffers(ast)} for ast in self.asts)

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        """The stores whose values are observed: those to outputs that no later kernel overwrites whole."""
        found: list[Store] = []
        hidden: set[int] = set()
        for kernel in reversed(range(len(self.asts))):
            ast = self.asts[kernel]
            slots = [int(buffer_of(store_of(sink).src[0]).arg.slot) for sink in ast.src]
            here = [Store(kernel, place, slot) for place, slot in enumerate(slots) if slot not in hidden]
            found = [store for store in here if len(self.asts) == 1 or store.slot in self._outputs] + found
            hidden.update(slot for slot in set(slots) if covers(ast, slot, self.uses[kernel][slot].size))
        return tuple(found)

    def covers(self, slot: int, size: int) -> bool:
        """Whether one of the kernels certainly writes every element of a buffer."""
        return any(covers(ast, slot, size) for ast in self.asts)

    def writer_before(self, slot: int, kernel: int) -> int | None:
        """The last kernel before the one at `kernel` that writes a buffer."""
        return next((k for k in reversed(range(kernel)) if slot in self.uses[k] and self.uses[k][slot].is_output), None)

    def sample_points(self, n: int, rng: np.random.Generator, variables: Mapping[str, int]) -> list[NDArray[np.int64]]:
        """Points of each of `stores`, see `kcg.kernel.reference.points_of_store`.

        Of several kernels many are where tiles of a program may end, and the first ones at the ends of all ranges.
        """
        points = [points_of_store(self.asts[s.kernel], s.place, n, rng, variables) for s in self.stores]
        return points if len(self.asts) == 1 else [_at_tiles(chosen, n, rng) for chosen in points]

    @cached_property
    def rounds_between(self) -> bool:
        """Whether something that is stored in between, and read again, has less than the bits of float32."""
        stored = [store_of(sink).src[0] for ast in self.asts[:-1] for sink in ast.src]
        kinds = {index.dtype for index in stored if dtypes.is_float(index.dtype)}
        return any(significant_bits(kind) < significant_bits(dtypes.float32) for kind in kinds)

    @property
    def is_shaken(self) -> bool:
        """Whether random roundings tighten the bounds of what the chain computes."""
        return len(self.asts) > 1 and self.rounds_between

    def on(
        self, inputs: Mapping[int, Any], variables: Mapping[str, int], *, enough: int = 0, shaken: bool = True
    ) -> Evaluation:
        """The chain on the values of some inputs, as `kcg.kernel.reference.evaluate` takes them. Of several kernels a
        few points are computed in any case, more for `enough` terms: by default `ENOUGH_TERMS`. Not `shaken` no random
        roundings tighten the bounds: a third of the time, for data on which what is wrong is far off."""
        return Evaluation(self, inputs, variables, enough=enough or ENOUGH_TERMS, shaken=shaken)


class _TooMuch(VerificationError):
    """An evaluation computes more than `MOST_TERMS`."""


class Evaluation:
    """A chain on some inputs: what its kernels leave in their buffers, kept as far as it was asked for."""

    def __init__(
        self,
        chain: Chain,
        inputs: Mapping[int, Any],
        variables: Mapping[str, int],
        noise: Noise | None = None,
        *,
        enough: int = 0,
        shaken: bool = True,
    ) -> None:
        self.chain, self._inputs, self._variables, self._noise, self._enough = chain, inputs, variables, noise, enough
        # tf32 may cut all factors in one direction, which no random roundings show
        is_shaken = shaken and noise is None and chain.is_shaken and not products_are_tf32()
        seeds = range(SHAKEN) if is_shaken else ()
        self._shaken = [Evaluation(chain, inputs, variables, Noise(seed)) for seed in seeds]
        self._contents: dict[tuple[int, int], _Contents] = {}
        self._runs: dict[int, Run] = {}
        self._indices: dict[tuple[int, int], StoreIndex] = {}
        self._left: float = math.inf
        self._count = 0  # points of each store at which it was computed

    def at(self, points: list[NDArray[np.int64]]) -> list[StoreValues]:
        """What each of the chain's `stores` writes at its points: at fewer of them where several kernels would take too
        long for all. Raises VerificationError, as `kcg.kernel.reference.evaluate`, and where one point takes too long.
        """
        if len(self.chain.asts) == 1:
            return self._at(points)
        found = self._as_many_as_affordable(points)
        points = [chosen[: self._count] for chosen in points]
        shaken = [other._at(points) for other in self._shaken]
        return [tightened(store, [other[i] for other in shaken]) for i, store in enumerate(found)] if shaken else found

    def _as_many_as_affordable(self, points: list[NDArray[np.int64]]) -> list[StoreValues]:
        """The stores at a few points, from their beginning, and at as many more as that many terms are enough for by
        what the first ones take; what was computed for these is kept."""
        most = max(map(len, points), default=0)
        found: list[StoreValues] = []
        affordable, self._count = FEWEST, 0
        while self._count < min(affordable, most):
            count = min(affordable, most)
            # what is kept costs nothing again, so that the first points may have told too little
            self._left = limit = min(MOST_TERMS, 2 * self._enough) if self._count else MOST_TERMS
            try:
                found = self._at([chosen[:count] for chosen in points])
            except _TooMuch:
                if not self._count:
                    raise
                break
            spent = max(1, limit - self._left)
            affordable = PROBED if self._count == 0 else most
            affordable = max(count, min(affordable, self._enough * (count - self._count) // spent))
            self._count = count
        return found

    def _at(self, points: list[NDArray[np.int64]]) -> list[StoreValues]:
        noisy = contextlib.nullcontext() if self._noise is None else rounding_at_random(self._noise)
        with np.errstate(all="ignore"), noisy:
            return [self._store(s, chosen) for s, chosen in zip(self.chain.stores, points, strict=True)]

    def index(self, store: Store) -> StoreIndex:
        """Which elements a store writes."""
        key = store.kernel, store.place
        if key not in self._indices:
            ast = self.chain.asts[store.kernel]
            self._indices[key] = StoreIndex(ast, store.place, self._found_by(store.kernel), self._variables)
        return self._indices[key]

    def run(self, kernel: int) -> Run:
        """The evaluation of one of the kernels, on what those before it left."""
        if kernel not in self._runs:
            ast = self.chain.asts[kernel]
            self._runs[kernel] = Run(ast, self._found_by(kernel), self._variables, self._spend)
        return self._runs[kernel]

    def contents(self, slot: int, kernel: int) -> Any:
        """What a buffer holds before a kernel: an input, or something `Lazy`; None if nobody wrote it."""
        writer = self.chain.writer_before(slot, kernel)
        if writer is None:
            return self._inputs.get(slot)
        if (slot, writer) not in self._contents:
            self._contents[slot, writer] = _Contents(self, slot, writer)
        return self._contents[slot, writer]

    def _found_by(self, kernel: int) -> dict[int, Any]:
        if not kernel:
            return dict(self._inputs)
        found = {slot: self.contents(slot, kernel) for slot in self.chain.uses[kernel]}
        return {slot: held for slot, held in found.items() if held is not None}

    def _store(self, store: Store, points: NDArray[np.int64]) -> StoreValues:
        last = len(self.chain.asts)
        if self.chain.writer_before(store.slot, last) == store.kernel:
            return self.run(store.kernel).store(self.chain.asts[store.kernel].src[store.place], points)
        where, opened = self.index(store).at(points)
        data, error = self.contents(store.slot, last).at(where[opened])
        return StoreValues(store.slot, where[opened], data, error)

    def _spend(self, terms: int) -> None:
        self._left -= terms
        if self._left < 0:
            raise _TooMuch(
                f"the reference of these {len(self.chain.asts)} kernels takes more than {MOST_TERMS:,} terms"
            )


class _Contents:
    """What a buffer holds after a kernel that writes into it: `kcg.kernel.reference.Lazy`."""

    def __init__(self, evaluation: Evaluation, slot: int, writer: int) -> None:
        ast = evaluation.chain.asts[writer]
        sinks = [(place, sink, store_of(sink).src[0]) for place, sink in enumerate(ast.src)]
        self._sinks = [(Store(writer, p, slot), sink) for p, sink, to in sinks if buffer_of(to).arg.slot == slot]
        self.size = evaluation.chain.uses[writer][slot].size
        self.dtype = numpy_dtype(store_of(self._sinks[0][1]).src[0].dtype)
        self._evaluation, self._slot, self._writer = evaluation, slot, writer
        self._kept = _Pages(self.size, self.dtype)

    def at(self, elements: NDArray[np.int64]) -> tuple[Array, Array]:
        """Values and errors of some elements."""
        missing = distinct(elements[~self._kept.knows(elements)])
        if missing.size:
            self._compute(missing)
        return self._kept.of(elements)

    def _compute(self, missing: NDArray[np.int64]) -> None:
        for store, sink in self._sinks:
            points, found = self._evaluation.index(store).writers(missing)
            if found.any():
                written = self._evaluation.run(self._writer).store(sink, points[found])
                self._keep(written.indices, written.values, written.error)
        left = missing[~self._kept.knows(missing)]
        if not left.size:
            return
        before = self._evaluation.contents(self._slot, self._writer)
        if before is None:  # nobody wrote it: it may hold anything
            self._keep(left, np.zeros(len(left), self.dtype), np.full(len(left), np.inf))
        elif hasattr(before, "at"):
            self._keep(left, *before.at(left))
        else:
            self._keep(left, before.reshape(-1)[left], np.zeros(len(left)))

    def _keep(self, elements: NDArray[np.int64], values: Array, error: Array) -> None:
        stored = values.astype(self.dtype)
        if self.dtype.kind == "f" and (overflowed := np.isinf(stored)).any():
            error = np.where(overflowed & (error > 0), np.inf, error)
        self._kept.keep(elements, stored, error)


class _Pages:
    """Values and errors of some elements of a buffer, in pages of `PAGE` that are made when one of theirs is kept.

    Of what attention stores in between, half a billion elements, a reference keeps some rows: in arrays of its whole
    size Linux clears two megabytes for each row, which took half of the reference's time.
    """

    def __init__(self, size: int, dtype: np.dtype[Any]) -> None:
        self._page = np.zeros(-(-size // PAGE), np.int64)  # of each PAGE elements; 0: none
        self._count = 1  # pages, of which the first holds nothing
        self._data: Array = np.zeros(PAGE, dtype)
        self._error: Array = np.zeros(PAGE)
        self._known = np.zeros(PAGE, bool)

    def knows(self, elements: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of some elements are kept."""
        known: NDArray[np.bool_] = self._known[self._places(elements)]
        return known

    def of(self, elements: NDArray[np.int64]) -> tuple[Array, Array]:
        """Values and errors of elements that are kept."""
        places = self._places(elements)
        return self._data[places], self._error[places]

    def keep(self, elements: NDArray[np.int64], values: Array, error: Array) -> None:
        """Keep values and errors of some elements."""
        pages = elements >> PAGE_BITS
        new = distinct(pages[self._page[pages] == 0])
        self._page[new] = np.arange(self._count, self._count + len(new))
        self._count += len(new)
        if (size := self._count * PAGE) > len(self._known):
            size = max(size, 2 * len(self._known))
            self._data, self._error, self._known = (_longer(a, size) for a in (self._data, self._error, self._known))
        places = self._places(elements)
        self._data[places], self._error[places], self._known[places] = values, error, True

    def _places(self, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        pages: NDArray[np.int64] = self._page[elements >> PAGE_BITS]
        return (pages << PAGE_BITS) + (elements & (PAGE - 1))


def _longer(array: Array, size: int) -> Array:
    """An array with zeros behind its own elements."""
    longer: Array = np.zeros(size, array.dtype)
    longer[: len(array)] = array
    return longer


def distinct(elements: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each once, in order: `np.unique` of a million, which NumPy 2.3 and later hash, takes ten times as long."""
    ordered = np.sort(elements, axis=None)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if ordered.size else ordered


def _at_tiles(points: NDArray[np.int64], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Sampled points, of which every second one lies where tiles meet: at a multiple of `TILE` or just before it."""
    if len(points) < n or n < 2:
        return points
    points, extents = points.copy(), points[1] + 1  # the second point is the last one
    for axis in np.flatnonzero(extents > TILE):
        places = np.arange(2 + 2 * len(extents), n, 2)
        places = places[rng.random(len(places)) < 0.75]
        points[places, axis] = TILE * rng.integers(1, -(-extents[axis] // TILE), len(places)) - rng.integers(
            0, 2, len(places)
        )
    return points


def tightened(expected: StoreValues, shaken: Sequence[StoreValues]) -> StoreValues:
    """What a store writes, with the errors that random roundings of all that is computed and stored show.

    The running bounds add the errors of a value that is used twice, as the maximum of a softmax is, though they cancel.
    How they change from point to point is right; how large all of them are is what the random errors say.
    """
    if expected.values.dtype != np.float64 or any(len(one.values) != len(expected.values) for one in shaken):
        return expected
    telling = (expected.error > 0) & np.isfinite(expected.error) & np.isfinite(expected.values)
    if telling.sum() * len(shaken) < SEEN:
        return expected
    with np.errstate(all="ignore"):
        shares = [(np.abs(one.values - expected.values) / expected.error)[telling].max() for one in shaken]
    share = min(1.0, max(float(np.nan_to_num(share, nan=np.inf)) for share in shares))
    error = expected.error.copy()
    error[np.isfinite(error)] *= share  # nothing is known where there is no bound, however small the share
    return replace(expected, error=error, share=share)


def covers(ast: UOp, slot: int, size: int) -> bool:
    """Whether a kernel's stores certainly reach every element of a buffer: some only write a slice of it."""
    return stored_elements(ast, slot) >= size


def renumbered(ast: UOp, slots: tuple[int, ...]) -> UOp:
    """A kernel's AST with other numbers for its buffers: `slots[i]` for slot i. Inputs are drawn by these numbers, so
    that two buffers of a region never hold the same."""
    params = {
        u: u.replace(arg=replace(u.arg, slot=slots[u.arg.slot]))
        for u in ast.toposort()
        if u.op is Ops.PARAM and u.addrspace != AddrSpace.ALU
    }
    return ast.substitute(params, walk=True)
