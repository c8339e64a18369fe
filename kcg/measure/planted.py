"""Data in which one element decides: for reductions of which a term may be left out unseen, as a maximum's or an any's.

Of a maximum of few long rows random data show a few terms only, those that are the largest. So a run has every element
far below 0, whatever a maximum starts from, and then one element of each row far above: launch after launch at another
place, those first where blocks begin and end. The same the other way round is for minima and all. Where a reduction
asks which elements equal a number, as an argmax does, one does. In one run some rows are zeros: a scale needs a guard
against them. In one they are so small that an epsilon matters.

Which elements are a row, and how many there are, is read off the kernels alone. What a kernel must give is its float64
reference's on the same data. Only a few elements change between two launches, so a launch costs little; of kernels with
much to compute there are fewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcg.compat.tiny import Ops, UOp, dtypes
from kcg.kernel.ast import store_of
from kcg.kernel.chain import Chain
from kcg.kernel.reading.depth import terms_of
from kcg.kernel.reference import Run, StoreValues, points_of_store
from kcg.kernel.rows import ReducedLoad, reduced_loads
from kcg.measure.inputs import (
    FLOATS,
    BufferInfo,
    Hashed,
    divisors,
    integer_bounds,
    numpy_dtype,
    to_bits,
    to_values,
)

Array = NDArray[Any]
Edits = dict[int, tuple[NDArray[np.int64], Array]]
"""Slot -> some of its elements, and the bits that are written there."""

POINTS = 96  # outputs of a kernel whose rows are planted in
OF_SEVERAL = 16  # outputs of several kernels that are looked at
LAUNCHES = 512  # with a planted element, at most
EVERY = 1024  # launches, up to which every term is planted in some row, where the place makes no difference
ROWS_EACH = 4  # rows in which a term is planted, where there are so many
LAUNCHES_OF_SEVERAL = 128  # of a region of several kernels: its reference is computed anew for each
TERMS_OF_SEVERAL = 1 << 20  # that all of these references may take
FEWEST_OF_SEVERAL = 16
TERMS = 1 << 25  # elements that all launches together may read, and terms that all references may take
BEGUN_BELOW = 1 << 22  # elements of a kernel that runs on such data at all
MANY_ABOVE = 1 << 18  # elements, from which on so many rows
MANY_ROWS = 64  # tell enough by themselves: in random data each has its largest element elsewhere
BLOCKS = (1024, 512, 256, 128, 64, 32)  # of which rows are made, perhaps
ADDED_BELOW = 1e-2  # a larger constant is no guard: ordinary rows show it
ZERO_ROWS = 8
ZEROS_BELOW = 1 << 22  # elements of a buffer, and terms of a kernel, that get rows of zeros


class Kind(StrEnum):
    """What the rows are, and what is planted in them."""

    ABOVE = "all far below 0, and one of each row far above"
    BELOW = "all far above 0, and one of each row far below"
    EQUAL = "one of each row equal to what it is compared with"
    LEAST = "all the least that there is"
    MOST = "all the largest that there is"
    ZERO = "some rows of zeros"
    SMALL = "some rows so small that what is added to them matters"


VALUED = (Kind.ABOVE, Kind.BELOW)
OF_ROWS = (Kind.ZERO, Kind.SMALL)
LEVELS = 4  # of how far "far" is


@dataclass(frozen=True)
class Planting:
    """One kind of data for a region, and what its stores must write on them."""

    kind: Kind
    level: int
    expected: tuple[tuple[StoreValues, ...], ...] = field(repr=False)  # of each launch; the first has nothing planted


def places(terms: int) -> NDArray[np.int64]:
    """All terms of a row in the order in which they are planted: the ends and the parts of the row, where blocks begin
    and the element before, the element behind, of large blocks first; then the others at random."""
    rng = np.random.default_rng(terms)
    begins: list[int] = [0, terms, *(terms * part // whole for whole in (2, 4, 8) for part in range(1, whole))]
    for size in BLOCKS:
        inner = rng.permutation(np.arange(size, terms, size))
        if len(inner):
            begins += [int(inner.max()), size]
        begins += map(int, inner)
    begin = np.array(begins, np.int64)
    order = np.concatenate([np.stack([begin, begin - 1], 1).ravel(), begin + 1, rng.permutation(terms)])
    order = order[(order >= 0) & (order < terms)]
    _, first = np.unique(order, return_index=True)
    return np.asarray(order[np.sort(first)])


@dataclass(frozen=True, eq=False)
class _Target:
    """A load that is planted in, and the outputs whose rows are."""

    load: ReducedLoad
    points: NDArray[np.int64]
    rows: int  # of all outputs

    def wanted(self) -> int:
        """Launches until each term was planted in `ROWS_EACH` rows."""
        count = len(self.points)
        return -(-self.load.terms * min(count, ROWS_EACH) // max(count, 1))

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return places(self.load.terms)

    def at(self, number: int) -> NDArray[np.int64]:
        """The term that is planted in the row of each point, in one launch: neighbours in the order of places, from one
        time to the next in other rows."""
        turn = number * len(self.points) + np.arange(len(self.points))
        at: NDArray[np.int64] = self._order[(turn + turn // self.load.terms) % self.load.terms]
        return at


class Planter:
    """Where and what is planted in the inputs of a region: a function of its kernels and of other inputs alone."""

    def __init__(
        self, chain: Chain, buffers: Sequence[BufferInfo], variables: Mapping[str, int], inputs: Mapping[int, Any]
    ) -> None:
        """`inputs` are the ordinary ones, stored bits by slot."""
        self._chain, self._variables, self.ordinary = chain, variables, inputs
        self._by_slot = {info.slot: info for info in buffers}
        self._size = sum(info.size for info in buffers)
        self._at: dict[bool, dict[int, tuple[NDArray[np.int64], NDArray[np.bool_], Array]]] = {}

    # ---- where

    @cached_property
    def _loads(self) -> list[tuple[int, ReducedLoad]]:
        """The loads of reductions that are inputs of the region and may hold any number, each with its kernel."""
        chain, found = self._chain, []
        kept = {slot for ast in chain.asts for slot in (*integer_bounds(ast), *divisors(ast))}
        for kernel, ast in enumerate(chain.asts):
            for load in reduced_loads(ast, self._variables):
                if (
                    load.slot in self.ordinary
                    and load.slot not in kept
                    and chain.writer_before(load.slot, kernel) is None
                ):
                    found.append((kernel, load))
        return found

    @cached_property
    def _targets(self) -> dict[bool, list[_Target]]:
        """What is planted in, by whether it is compared for equality; of each buffer the first load."""
        found: dict[bool, dict[int, _Target]] = {False: {}, True: {}}
        for _, load in self._loads:
            equal = load.equals is not None
            if load.decides and load.slot not in found[equal] and (not equal or len(self._chain.asts) == 1):
                found[equal][load.slot] = _Target(load, self._points(load), self._rows(load))
        return {equal: list(targets.values()) for equal, targets in found.items()}

    def _points(self, load: ReducedLoad) -> NDArray[np.int64]:
        return points_of_store(load.ast, load.place, POINTS, np.random.default_rng(load.place), self._variables)

    def _rows(self, load: ReducedLoad) -> int:
        sink, run = load.ast.src[load.place], Run(load.ast, {}, self._variables)
        return math.prod(run.extent(r) for r in sink.src[1:]) if sink.op is Ops.END else 1

    def kinds(self) -> list[Kind]:
        """The kinds of data that can tell something."""
        valued, equal = self._targets[False], self._targets[True]
        kinds: list[Kind] = []
        if valued and self._work(valued) <= BEGUN_BELOW:
            kinds += VALUED
            kinds += (Kind.LEAST, Kind.MOST) if len(self._chain.asts) == 1 else ()
        if self._are_few(equal):
            kinds.append(Kind.EQUAL)
        if self._zero_rows:
            kinds += OF_ROWS if self._added else (Kind.ZERO,)
        return kinds

    def _are_few(self, targets: Sequence[_Target]) -> bool:
        """Whether there are rows that are so few, or so short, that planting in them is worth its launches. What a
        maximum starts from is looked at in any case."""
        work = self._work(targets)
        return any(work <= (MANY_ABOVE if target.rows >= MANY_ROWS else BEGUN_BELOW) for target in targets)

    def _work(self, targets: Sequence[_Target]) -> int:
        """About how much one launch reads."""
        return max([self._size, *(target.rows * target.load.terms for target in targets)])

    def _terms(self, target: _Target) -> int:
        """Terms that the reference adds up for one output: those of what is made again for each term, too."""
        asts = self._chain.asts
        return max(target.load.terms, terms_of(target.load.ast) if len(asts) == 1 else 0)

    def launches(self, kind: Kind) -> int:
        """How many launches have something planted, at most."""
        targets = self._targets[kind is Kind.EQUAL]
        if kind not in (*VALUED, Kind.EQUAL) or not self._are_few(targets):
            return 0
        terms = max(len(target.points) * self._terms(target) for target in targets)
        most = LAUNCHES
        if len(self._chain.asts) > 1:
            # each takes the terms of some kernels
            affordable = TERMS_OF_SEVERAL // (len(self._chain.asts) * terms)
            most = min(LAUNCHES_OF_SEVERAL, max(FEWEST_OF_SEVERAL, affordable))
        if self._is_same_anywhere and kind is not Kind.EQUAL:  # of which the reference is computed once
            each = -(-targets[0].load.terms // len(targets[0].points))
            most = max(LAUNCHES, each) if each <= EVERY else LAUNCHES
        wanted = max(target.wanted() for target in targets)
        return min(most, wanted, TERMS // max(self._work(targets), terms))

    # ---- what

    def base(self, kind: Kind, level: int, *, again: bool = False) -> dict[int, Array]:
        """Slot -> stored bits of the buffers that are not as they are ordinarily, or are written into later; `again`
        others of the same kind."""
        if kind in OF_ROWS:
            made = {slot: _whole(self.ordinary[slot]) for slot in self._zero_rows}
            for slot, at in self._zero_rows.items():
                values = np.random.default_rng(slot).standard_normal(len(at)) * self._added
                made[slot][at] = 0 if kind is Kind.ZERO else to_bits(values, self._by_slot[slot].dtype)
            return made
        if kind is Kind.EQUAL:
            return {target.load.slot: _whole(self.ordinary[target.load.slot]) for target in self._targets[True]}
        made = {}
        for slot in (target.load.slot for target in self._targets[False]):
            info, rng = self._by_slot[slot], np.random.default_rng([slot, level, again])
            made[slot] = _far(info.dtype, info.size, kind, level, rng)
        return made

    def edits(self, kind: Kind, level: int, number: int) -> Edits:
        """What is planted in the launch of this number, from 1 on."""
        found: Edits = {}
        for slot, (elements, opened, equal) in self._planted_at(kind).items():
            at, here = elements[number - 1], opened[number - 1]
            bits = equal
            if kind is not Kind.EQUAL:
                bits = np.broadcast_to(_planted(self._by_slot[slot].dtype, kind, level), len(at))
            found[slot] = at[here], bits[here]
        return found

    def _planted_at(self, kind: Kind) -> dict[int, tuple[NDArray[np.int64], NDArray[np.bool_], Array]]:
        """Slot -> the elements that are planted, `(launches, points)`, whether they are read, and bits of `EQUAL`."""
        equal = kind is Kind.EQUAL
        if equal not in self._at:
            found, count = {}, self.launches(kind)
            for target in self._targets[equal]:
                rng, shape = np.random.default_rng(0), (count, len(target.points))
                terms = np.concatenate([target.at(number) for number in range(count)])
                at, opened = target.load.elements(np.tile(target.points, (count, 1)), terms, rng)
                bits = np.zeros(0)
                if equal:
                    other, elements = target.load.compared(target.points, rng)
                    bits = target.load.equal_to(_whole(self.ordinary[other])[elements])
                found[target.load.slot] = at.reshape(shape), opened.reshape(shape), bits
            self._at[equal] = found
        return self._at[equal]

    @cached_property
    def _zero_rows(self) -> dict[int, NDArray[np.int64]]:
        """Slot -> elements that become 0: all that a few outputs are reduced from, where 0 is a case of its own."""
        found: dict[int, list[NDArray[np.int64]]] = {}
        if not _zero_tells(self._chain.asts):
            return {}
        for _, load in self._loads:
            info = self._by_slot[load.slot]
            work = max(info.size, ZERO_ROWS * load.terms, self._rows(load) * load.terms)
            if info.dtype not in FLOATS or work > ZEROS_BELOW:
                continue
            points = self._points(load)[:ZERO_ROWS]
            points = points[: max(1, min(len(points), self._rows(load) // 2))]
            terms = np.tile(np.arange(load.terms), len(points))
            at, opened = load.elements(np.repeat(points, load.terms, axis=0), terms, np.random.default_rng(0))
            found.setdefault(load.slot, []).append(at[opened])
        return {slot: np.unique(np.concatenate(parts)) for slot, parts in found.items()}

    @cached_property
    def _added(self) -> float:
        """The size of elements for which the least constant that kernels add to floats, or compare them with, matters
        as much as what is reduced of them, as the epsilon of a norm; 0 where there is none."""
        nodes = [u for ast in self._chain.asts for u in ast.toposort()]
        constants = [
            float(source.arg)
            for u in nodes
            if u.op in (Ops.ADD, Ops.MAX, Ops.CMPLT) and dtypes.is_float(u.src[0].dtype)
            for source in u.src
            if source.op is Ops.CONST and 0 < source.arg <= ADDED_BELOW
        ]
        squares = any(u.op is Ops.MUL and u.src[0] is u.src[1] for u in nodes)
        least = min(constants, default=0.0)
        return math.sqrt(least) if squares else least

    # ---- what must come out

    def references(self, kind: Kind, level: int) -> Iterator[tuple[StoreValues, ...]]:
        """What each launch must leave, the first one without anything planted."""
        values = self._values({**self.ordinary, **self.base(kind, level)}, kind)
        evaluate = self._evaluator(kind, values)
        yield evaluate()
        count = self.launches(kind)
        if count and kind in VALUED and self._is_same_anywhere:
            others = self._values({**self.ordinary, **self.base(kind, level, again=True)}, kind)
            for changed in (values, others):
                for slot, (at, bits) in self.edits(kind, level, 1).items():
                    changed[slot][at] = to_values(bits, self._by_slot[slot].dtype)
            # the one element alone decides, or it decides nothing: it was the maximum of all below it, perhaps
            if same_values(expected := evaluate(), self._evaluator(kind, others)()):
                yield from [expected] * count
            return
        for number in range(1, count + 1):
            before = []
            for slot, (at, bits) in self.edits(kind, level, number).items():
                before.append((slot, at, values[slot][at]))
                values[slot][at] = to_values(bits, self._by_slot[slot].dtype)
            yield evaluate()
            for slot, at, held in before:
                values[slot][at] = held

    def _values(self, inputs: dict[int, Any], kind: Kind) -> dict[int, Any]:
        """Inputs as numbers, of which those that something is planted in may be written into."""
        values = {slot: to_values(bits, self._by_slot[slot].dtype) for slot, bits in inputs.items()}
        return {slot: np.array(v) if slot in self.base_slots(kind) else v for slot, v in values.items()}

    @cached_property
    def _is_same_anywhere(self) -> bool:
        """Whether it makes no difference to the outputs at which place of its row the one element is."""
        if len(self._targets[False]) != 1:
            return False
        (target,) = self._targets[False]
        readers = [k for k, uses in enumerate(self._chain.uses) if target.load.slot in uses]
        loads = [(k, load) for k, load in self._loads if load.slot == target.load.slot]
        terms, rng = np.arange(len(target.points)) % target.load.terms, np.random.default_rng(0)
        at = target.load.elements(target.points, terms, rng)[0]
        return [k for k, _ in loads] == readers and all(
            load.is_alike_for_all_terms
            and load.terms == target.load.terms
            and np.array_equal(self._points(load), target.points)
            and np.array_equal(load.elements(target.points, terms, rng)[0], at)
            for _, load in loads
        )

    def base_slots(self, kind: Kind) -> frozenset[int]:
        """The buffers that something is planted in."""
        if kind in OF_ROWS:
            return frozenset(self._zero_rows)
        return frozenset(target.load.slot for target in self._targets[kind is Kind.EQUAL])

    def _evaluator(self, kind: Kind, values: dict[int, Any]) -> Any:
        chain = self._chain
        if len(chain.asts) > 1:
            points = chain.sample_points(OF_SEVERAL, np.random.default_rng(0), self._variables)
            return lambda: tuple(chain.on(values, self._variables, shaken=False).at(points))
        run, (ast,) = Run(chain.asts[0], values, self._variables), chain.asts
        loads = (
            [load for _, load in self._loads]
            if kind in OF_ROWS
            else [target.load for target in self._targets[kind is Kind.EQUAL]]
        )
        at = {load.place: self._points(load) for load in loads}

        def evaluate() -> tuple[StoreValues, ...]:
            with np.errstate(all="ignore"):
                return tuple(run.store(ast.src[place], points) for place, points in at.items())

        return evaluate


def same_values(one: Sequence[StoreValues], other: Sequence[StoreValues]) -> bool:
    """Whether all stores write the same at the same points."""
    return all(np.array_equal(a.values, b.values, equal_nan=True) for a, b in zip(one, other, strict=True))


def _whole(bits: Any) -> Array:
    whole: Array = bits.whole() if isinstance(bits, Hashed) else np.array(bits)
    return whole


def _far(dtype: str, count: int, kind: Kind, level: int, rng: np.random.Generator) -> Array:
    """Stored bits of elements that are all far below 0, far above, or all the least or the largest."""
    below = kind in (Kind.ABOVE, Kind.LEAST)
    held = np.dtype(numpy_dtype(dtype))
    if dtype == "bool":
        return np.full(count, not below)
    if dtype in FLOATS:
        if kind in (Kind.LEAST, Kind.MOST):
            return to_bits(np.full(count, -np.inf if below else np.inf), dtype)
        far = _far_float(dtype, level)
        return to_bits(rng.uniform(0.5 * far, far, count) * (-1.0 if below else 1.0), dtype)
    low, high = _far_integers(held, level)
    if kind in (Kind.LEAST, Kind.MOST):
        return np.full(count, low if below else high, held)
    middle = (low + high) // 2
    quarter = (high - low) // 4
    return (
        rng.integers(low, middle - quarter, count, held, endpoint=True)
        if below
        else (rng.integers(middle + quarter, high, count, held, endpoint=True))
    )


def _planted(dtype: str, kind: Kind, level: int) -> Array:
    """The bits of the one element that is on the other side, and of a larger size than all others."""
    above = kind is Kind.ABOVE
    if dtype == "bool":
        return np.array(above)
    if dtype in FLOATS:
        bits: Array = to_bits(np.array([1.5 * _far_float(dtype, level) * (1.0 if above else -1.0)]), dtype)
        return np.asarray(bits[0])
    held = np.dtype(numpy_dtype(dtype))
    low, high = _far_integers(held, level)
    return np.array(high if above else low, held)


def _far_float(dtype: str, level: int) -> float:
    """As far as the type goes, so far that squares are finite, beyond all that has an exponential, and not very far."""
    highest = FLOATS[dtype][1]
    return float(2.0 ** min(highest, (highest, 0.45 * highest, math.log2(600), 2)[level]))


def _far_integers(held: np.dtype[Any], level: int) -> tuple[int, int]:
    limits = np.iinfo(held)
    if not level:
        return int(limits.min), int(limits.max)
    most = (1000, 64, 8)[level - 1]
    return max(int(limits.min), -most), min(int(limits.max), most)


_CASES = (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ, Ops.MAX, Ops.WHERE, Ops.RECIPROCAL, Ops.FDIV, Ops.SQRT, Ops.LOG2, Ops.POW)


def _zero_tells(asts: Sequence[UOp]) -> bool:
    """Whether kernels compare, divide by or take the root of floats that were reduced, in one of them or before."""
    reduced = False
    for ast in asts:
        nodes = [u for sink in ast.src for u in store_of(sink).src[1].toposort()]
        after = frozenset(s for u in nodes if u.op is Ops.REDUCE for s in u.src[0].toposort())
        cases = [u for u in nodes if u.op in _CASES and any(dtypes.is_float(s.dtype) for s in u.src)]
        sums = {u for u in nodes if u.op is Ops.REDUCE}
        if cases and (reduced or any(u not in after and not sums.isdisjoint(u.toposort()) for u in cases)):
            return True
        reduced = reduced or bool(sums)
    return False
