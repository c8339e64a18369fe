"""Sums whose terms stand several to a word of memory: products with block-quantised weights.

A block has a few scales and many small numbers, whose bits may stand apart, and neighbours share words. Which term is
which part of a word is said by ranges that choose shifts, masks or operands. Written out for each of their values the
choices are gone, terms that are of one word stand beside each other, and the scales that several terms share are
factors of what these come to. All of it follows from addresses and operations: no format has a name here.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kcg.compat.tiny import AxisType, Ops, PatternMatcher, UOp, UPat, dtypes, graph_rewrite
from kcg.kernel.arithmetic import significant_bits
from kcg.kernel.ast import affine, extent, is_invalid, is_symbolic
from kcg.kernel.reading.accesses import Access, loads_of
from kcg.kernel.reading.bits import Bits, Linear, Steps, Word, linear_of
from kcg.kernel.reading.indices import decided, moved
from kcg.kernel.reading.kernel import TileKernel

MOST_TERMS = 64  # that are written out
WORD_BYTES = 4  # of a word at most
WIDTHS = (16, 8, 4, 2, 1)  # neighbouring bytes that a thread may take at once
SHARED = 2  # terms of which a factor is taken out of the sum
SIGNIFICANT_BITS = significant_bits(dtypes.float32)
LEAST_FACTORS = 3  # of a product of which some come first
SMALL_TABLE = 32  # entries at most, which the lanes of a warp hold
BYTES = (dtypes.uint8, dtypes.int8)
FLOATS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.weakfloat)


@dataclass(frozen=True)
class Term:
    """A product: what it has of the words, times the rest."""

    factor: float
    inner: tuple[UOp, ...]  # made of words
    others: tuple[UOp, ...]  # made of no word


@dataclass(frozen=True)
class Group:
    """Terms whose sum is multiplied by what they share."""

    scales: tuple[UOp, ...]
    terms: tuple[Term, ...]


@dataclass(frozen=True, eq=False)
class Packed:
    """A sum of a kernel, before it is said how many bytes a thread takes at once."""

    reduce: UOp
    body: UOp  # a term, over the ranges below
    chosen: tuple[UOp, ...]  # ranges that are written out, whatever a thread takes
    bytes: UOp | None  # the range along which bytes lie side by side
    ranges: tuple[UOp, ...]  # all that is summed over
    slots: frozenset[int]  # the buffers that hold words
    looked_up: tuple[tuple[UOp, UOp], ...] = ()  # ranges that stand in addresses for values which memory says
    gates: tuple[UOp, ...] = ()  # conditions on these, without which weights are 0

    @property
    def apart(self) -> frozenset[UOp]:
        """The ranges that decide where rows begin otherwise than by sums: which expert's rows they are."""
        return frozenset(axis for _, value in self.looked_up for axis in value.ranges)

    @cached_property
    def has_lookups(self) -> bool:
        """Whether entries of larger tables of floats are among what is read."""
        return any(map(is_lookup, loads_of(self.body)))

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """So many neighbouring bytes a thread may take at once."""
        if self.bytes is None:
            return (1,)
        size, terms = extent(self.bytes), math.prod(map(extent, self.chosen))
        return tuple(n for n in WIDTHS if size % n == 0 and n * terms <= MOST_TERMS)

    @cached_property
    def _unpacked(self) -> dict[int, Unpacked]:
        return {}

    def unpacked(self, width: int) -> Unpacked:
        """As threads go through it that take so many neighbouring bytes at once."""
        if width not in self._unpacked:
            body, ranges, inner = self._with_bytes(width)
            chosen = (*self.chosen, *inner)
            rest = tuple(axis for axis in ranges if axis not in chosen)
            self._unpacked[width] = Unpacked(body, chosen, rest, self.slots, width)
        return self._unpacked[width]

    def by_bytes(self, width: int) -> tuple[Unpacked, UOp | None]:
        """The same, of which these bytes are no terms that are written out but a range, the last one; none where it is
        one byte."""
        body, ranges, inner = self._with_bytes(width)
        rest = tuple(axis for axis in ranges if axis not in (*self.chosen, *inner))
        return Unpacked(body, self.chosen, (*rest, *inner), self.slots, width), (*inner, None)[0]

    def _with_bytes(self, width: int) -> tuple[UOp, tuple[UOp, ...], tuple[UOp, ...]]:
        """A term, its ranges, and the one of them that numbers so many neighbouring bytes, if these are several."""
        if self.bytes is None or (width == 1 and extent(self.bytes) > 1):
            return self.body, self.ranges, ()
        if width == extent(self.bytes):
            return self.body, self.ranges, (self.bytes,)
        body, ranges = _split(self.body, self.ranges, self.bytes, width)
        return body, ranges, (ranges[self.ranges.index(self.bytes) + 1],)


@dataclass(frozen=True, eq=False)
class Unpacked:
    """A sum as what a thread makes of some neighbouring words, for each place of the ranges that are left."""

    body: UOp
    chosen: tuple[UOp, ...]  # ranges that are written out
    ranges: tuple[UOp, ...]  # those that threads go through, the last one fastest
    slots: frozenset[int]
    width: int  # neighbouring bytes that a thread takes at once

    @property
    def written(self) -> int:
        """Terms that are written out."""
        return math.prod(map(extent, self.chosen))

    @cached_property
    def terms(self) -> tuple[UOp, ...]:
        """What is summed, for each value of the chosen ranges."""
        found = []
        for values in itertools.product(*(range(extent(axis)) for axis in self.chosen)):
            at = {axis: axis.const_like(value) for axis, value in zip(self.chosen, values, strict=True)}
            found.append(with_shifts(decided(moved(self.body, at))).simplify())
        return tuple(found)

    @cached_property
    def loads(self) -> dict[UOp, Access]:
        """All loads of these terms, by their nodes."""
        return {load.node: load for load in loads_of(*self.terms)}

    @cached_property
    def bits(self) -> dict[UOp, Bits]:
        """Of each load of words the bits."""
        return _bits_of_loads(self.loads, self.slots)

    @cached_property
    def tables(self) -> dict[int, int]:
        """The buffers of floats of which neighbours are taken, at places that words say; elements of each."""
        lookups = [load for node, load in self.loads.items() if node not in self.bits and is_lookup(load)]
        together = Counter((load.buffer, without_constant(load.address)[1]) for load in lookups)
        return {buffer.slot: buffer.size for (buffer, _), count in together.items() if count > 1}

    @cached_property
    def words(self) -> dict[Word, int]:
        """The words, and how many of their bytes are used."""
        found: dict[Word, int] = {}
        for bits in self.bits.values():
            for bit in bits:
                if not isinstance(bit, int):
                    found[bit[0]] = max(found.get(bit[0], 0), bit[1] // 8 + 1)
        return found

    @cached_property
    def aligned(self) -> dict[tuple[int, Steps, int], set[int]]:
        """The numbers of the words that are aligned, by their buffer, steps and bytes."""
        found: dict[tuple[int, Steps, int], set[int]] = {}
        for word in self.words:
            if word.anywhere is None:
                found.setdefault((word.slot, word.steps, word.nbytes), set()).add(word.number)
        return found

    @cached_property
    def anywhere(self) -> dict[tuple[int, Steps, int], int]:
        """The bytes that are used of words that begin anywhere, by their buffer, steps and first byte."""
        found: dict[tuple[int, Steps, int], int] = {}
        for word, nbytes in self.words.items():
            if word.anywhere is not None:
                key, end = (word.slot, word.steps, word.anywhere), WORD_BYTES * word.number + nbytes
                found[key] = max(end, found.get(key, 0))
        return found

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The sum of all terms, with what several of them share taken out. Sums are taken apart where nothing shares
        them and a part is made of words."""
        return self._grouped(
            (factor * times, (*kept, *more))
            for factor, factors, shared in self._whole
            for kept in [tuple(f for f in factors if f in shared or not self._is_sum(f))]
            for times, more in self._apart([f for f in factors if f not in kept])
        )

    @cached_property
    def whole_groups(self) -> tuple[Group, ...]:
        """The same, of which no sum is taken apart: of numbers that are infinite a part may be what the sum is not."""
        return self._grouped((factor, factors) for factor, factors, _ in self._whole)

    @property
    def is_apart(self) -> bool:
        """Whether sums are taken apart."""
        return any(self._is_sum(f) and f not in shared for _, factors, shared in self._whole for f in factors)

    @cached_property
    def _whole(self) -> list[tuple[float, tuple[UOp, ...], set[UOp]]]:
        """The factors of each term, and those that several terms share."""
        whole = [self._product(term) for term in self.terms]
        shared = self._shared(factors for _, factors in whole)
        return [(factor, factors, shared) for factor, factors in whole]

    def _grouped(self, terms: Iterable[tuple[float, tuple[UOp, ...]]]) -> tuple[Group, ...]:
        products = list(terms)
        shared = self._shared(factors for _, factors in products)
        grouped: dict[tuple[UOp, ...], list[Term]] = {}
        for factor, factors in products:
            scales = tuple(sorted((f for f in factors if f in shared), key=_order))
            inner = tuple(f for f in factors if f not in shared and self._is_of_rows(f))
            others = tuple(f for f in factors if not self._is_of_rows(f))
            grouped.setdefault(scales, []).append(Term(factor, inner, others))
        groups = (Group(scales, tuple(_together(terms))) for scales, terms in grouped.items())
        return tuple(group for group in groups if group.terms)

    def _shared(self, products: Iterable[tuple[UOp, ...]]) -> set[UOp]:
        """The factors of several terms that are of a row of words: what is of no row is the same for all rows."""
        counts = Counter(factor for factors in products for factor in set(factors))
        return {factor for factor, count in counts.items() if count >= SHARED and self._is_of_rows(factor)}

    @cached_property
    def _rows(self) -> frozenset[UOp]:
        """What numbers rows of words."""
        ranges = {axis for node in self.bits for axis in node.ranges}  # what is summed is of every row
        return frozenset(ranges - set(self.ranges))

    def _is_of_rows(self, node: UOp) -> bool:
        return not self._rows.isdisjoint(node.ranges)

    def linear(self, node: UOp) -> Linear | None:
        """An integer as fields of words; None where it is more than that."""
        return linear_of(node, self.bits, self._known)

    def number(self, node: UOp) -> Linear | None:
        """A float that is an integer, as fields of words; None of any other."""
        linear = None
        if node.op is Ops.CAST and dtypes.is_float(node.dtype) and not dtypes.is_float(node.src[0].dtype):
            linear = self.linear(node.src[0])
        elif node.op is Ops.WHERE:
            linear = self._chosen(node)
        return linear if linear is not None and linear.terms else None

    def _chosen(self, node: UOp) -> Linear | None:
        """One of two whole numbers by a bit, as a number times that bit."""
        condition, one, other = node.src
        if condition.op is not Ops.CMPNE or any(n.op is not Ops.CONST or is_invalid(n) for n in (one, other)):
            return None
        bit, zero = condition.src
        found = self.linear(bit) if zero.op is Ops.CONST and zero.arg == 0 else None
        whole = all(float(n.arg).is_integer() for n in (one, other))
        if found is None or found.constant or len(found.terms) != 1 or found.bounds != (0, 1) or not whole:
            return None
        return found * (int(one.arg) - int(other.arg)) + Linear(int(other.arg))

    @cached_property
    def numbers(self) -> dict[tuple[UOp, ...], int]:
        """The numbers of terms by their factors that are made of no word, where no two terms have the same."""
        found: dict[tuple[UOp, ...], list[int]] = {}
        for number, (_, factors, _) in enumerate(self._whole):
            others = tuple(sorted((f for f in factors if not self._is_of_rows(f)), key=_order))
            found.setdefault(others, []).append(number)
        return {others: numbers[0] for others, numbers in found.items() if len(numbers) == 1 and others}

    @cached_property
    def _known(self) -> dict[UOp, Bits | None]:
        return {}

    def _is_packed(self, node: UOp) -> bool:
        return any(n in self.bits for n in node.toposort())

    def _is_sum(self, node: UOp) -> bool:
        """Whether a value is a sum of which a part is made of words."""
        return node.op is Ops.ADD and node.dtype in FLOATS and self._is_packed(node)

    def _product(self, node: UOp) -> tuple[float, tuple[UOp, ...]]:
        """A value as a product: rounding to 16 bits in between is left out."""
        if node.op is Ops.CAST and node.dtype in FLOATS and node.src[0].dtype in FLOATS:
            return self._product(node.src[0])
        if node.op is Ops.CONST and not is_invalid(node):
            return float(node.arg), ()
        if node.dtype in FLOATS and node.op is Ops.NEG:
            factor, factors = self._product(node.src[0])
            return -factor, factors
        if node.dtype in FLOATS and node.op is Ops.MUL and self._is_packed(node):
            (x, one), (y, other) = map(self._product, node.src)
            return x * y, (*one, *other)
        return 1.0, (node,)

    def _apart(self, sums: list[UOp]) -> list[tuple[float, tuple[UOp, ...]]]:
        """A product of sums as a sum of products."""
        found: list[tuple[float, tuple[UOp, ...]]] = [(1.0, ())]
        for one in sums:
            parts = [self._product(source) for source in one.src]
            parts = [
                (factor * times, (*[f for f in factors if not self._is_sum(f)], *more))
                for factor, factors in parts
                for times, more in self._apart([f for f in factors if self._is_sum(f)])
            ]
            found = [(x * y, (*a, *b)) for x, a in found for y, b in parts]
        return found


@dataclass(frozen=True)
class _Sums:
    """Those of a kernel."""

    packed: tuple[Packed, ...]


def packed_sums(kernel: TileKernel) -> tuple[Packed, ...]:
    """The sums of packed terms that a kernel's reductions are; none where one of these is another one, or where they
    have different rows."""
    found = kernel.once(_Sums, _packed_sums)
    return found.packed if found is not None else ()


def rows_of(kernel: TileKernel, packed: Packed) -> tuple[int, ...]:
    """The output ranges that number rows of words which lie at even distances."""
    words = {axis for load in kernel.loads if load.buffer.slot in packed.slots for axis in load.node.ranges}
    return tuple(number for number, axis in enumerate(kernel.outputs) if axis in words - packed.apart)


def _packed_sums(kernel: TileKernel) -> _Sums | None:
    if len(kernel.stored) != 1 or kernel.grouped or kernel.attention or kernel.rows:
        return None
    found = []
    for reduce in kernel.reductions:
        if any(other in reduce.src[0].backward_slice_with_self for other in kernel.reductions):
            return None
        if (packed := _packed_of(kernel, reduce)) is None:
            return None
        found.append(packed)
    return _Sums(tuple(found)) if len({(rows_of(kernel, one), one.apart) for one in found}) == 1 else None


def _packed_of(kernel: TileKernel, reduce: UOp) -> Packed | None:
    if reduce.arg[0] is not Ops.ADD or reduce.dtype not in FLOATS or any(map(is_symbolic, reduce.src[1:])):
        return None
    inside = reduce.backward_slice_with_self
    if not any(load.buffer.dtype in BYTES and load.node in inside for load in kernel.loads):
        return None
    looked_up = _with_ranges_looked_up(_without_true_gates(reduce.src[0]), set(reduce.src[1:]))
    body, ranges = _with_digits(looked_up.body, tuple(reduce.src[1:]))
    loads = loads_of(body)
    slots = _slots_of_words(loads, set(ranges), set(kernel.outputs))
    if not slots:
        return None
    chosen = [axis for axis in _choosing(body) if axis in ranges]
    words = [load for load in loads if load.buffer.slot in slots]
    beside = _beside(words, tuple(axis for axis in ranges if axis not in chosen))
    chosen.sort(key=ranges.index)
    while math.prod(map(extent, chosen)) > MOST_TERMS // 2:  # those of the largest steps are left to threads
        chosen.pop(0)
    if not all(set(gate.ranges) <= set(chosen) for load in loads for gate in load.gates):
        return None  # whether something is loaded is not decided by what is written out
    if any(_reads(load, chosen) > load.buffer.size for load in words):
        return None  # as of images that are convolved, of which outputs share bytes
    found = Packed(reduce, body, tuple(chosen), beside, ranges, slots, looked_up.ranges, looked_up.gates)
    return found if chosen or found.widths[0] > 1 else None


def _slots_of_words(loads: list[Access], summed: set[UOp], outputs: set[UOp]) -> frozenset[int]:
    """The buffers of integers that a sum's terms are read from, each byte of which is of few outputs."""
    found = [load for load in loads if _is_word(load) and set(load.node.ranges) & summed]
    if not any(set(load.node.ranges) & outputs for load in found):
        return frozenset()
    return frozenset(load.buffer.slot for load in found)


# ---- products with many vectors, whose weights are unpacked for a tensor core


def written_out(
    operands: Sequence[Sequence[UOp]], ranges: tuple[UOp, ...], size: int, least: int, width: int = 1
) -> tuple[tuple[Unpacked, ...], int]:
    """The factors of each operand of a product over the ranges of its sum, of which a step has `size` terms, in blocks
    of terms that lie beside each other: at least so many. Ranges that choose shifts, masks or factors are written out,
    as far as a step has all choices; so are `width` neighbours, or as many as there are, and then all but those that
    remain of a block. A term is a sink of the factors. Also gives how many terms a block has."""
    body, ranges = _with_digits(UOp.sink(*(UOp.sink(*factors) for factors in operands)), ranges)
    inside = len(ranges) - 1
    while inside and math.prod(map(extent, ranges[inside:])) < least:
        inside -= 1
    block = math.gcd(size, math.prod(map(extent, ranges[inside:])))
    chosen = sorted((axis for axis in _choosing(body) if axis in ranges[:inside]), key=ranges.index)
    while size % (block * math.prod(map(extent, chosen))):
        chosen.pop(0)
    if (width := math.gcd(width, block, extent(ranges[-1]))) > 1:
        kept = ranges[inside:-1]
        if width < extent(ranges[-1]):
            body, ranges = _split(body, ranges, ranges[-1], width)
            kept = (*kept, ranges[-2])
        chosen, block = [*chosen, ranges[-1]], block // width
        body, ranges, chosen = _with_neighbours(body, ranges, chosen, kept, size // block)
    body = _shared_first(body, frozenset(chosen))
    slots = frozenset(load.buffer.slot for load in loads_of(body) if _is_word(load))
    rest = tuple(axis for axis in ranges if axis not in chosen)
    return tuple(Unpacked(factors, tuple(chosen), rest, slots, width) for factors in body.src), block


def _shared_first(body: UOp, chosen: frozenset[UOp]) -> UOp:
    """Terms whose products of several factors multiply those first that more terms share, as both scales of a block:
    where their product is exact, so that no more is rounded than before."""
    ordered: dict[UOp, UOp] = {}
    products = [node for node in body.toposort() if node.op is Ops.MUL and node.dtype is dtypes.float32]
    inside = {factor for node in products for factor in node.src}
    for node in products:
        factors = sorted(node.split_uop(Ops.MUL), key=lambda factor: len(chosen.intersection(factor.ranges)))
        if node in inside or len(factors) < LEAST_FACTORS:
            continue
        *shared, last = factors
        most = len(chosen.intersection(last.ranges))
        are_shared = all(len(chosen.intersection(factor.ranges)) < most for factor in shared)
        if are_shared and sum(map(_significant_bits, shared)) <= SIGNIFICANT_BITS:
            ordered[node] = functools.reduce(UOp.mul, factors)
    return body.substitute(ordered, walk=True) if ordered else body


def _significant_bits(value: UOp) -> int:
    """Bits of a float32 that a value has at most, from the first one that is set to the last one."""
    if value.op is not Ops.CAST:
        return SIGNIFICANT_BITS
    given = value.src[0]
    if dtypes.is_float(given.dtype):
        return min(SIGNIFICANT_BITS, significant_bits(given.dtype))
    return int(max(abs(int(given.vmin)), abs(int(given.vmax)))).bit_length()


def _with_neighbours(
    body: UOp, ranges: tuple[UOp, ...], chosen: list[UOp], kept: tuple[UOp, ...], count: int
) -> tuple[UOp, tuple[UOp, ...], list[UOp]]:
    """Terms of which so many are written out, where there are that many: also along the innermost ranges that are
    neither `chosen` yet nor `kept`."""
    left = count // math.prod(map(extent, chosen))
    for axis in [axis for axis in reversed(ranges) if axis not in (*chosen, *kept)]:
        if left > 1 and left % extent(axis) and extent(axis) % left == 0:
            place = ranges.index(axis)
            body, ranges = _split(body, ranges, axis, left)
            axis = ranges[place + 1]
        if left == 1 or left % extent(axis):
            break
        chosen, left = [*chosen, axis], left // extent(axis)
    return body, ranges, chosen


def _is_word(load: Access) -> bool:
    return load.buffer.dtype in BYTES and load.steps is not None and not load.gates


# ---- ranges


@dataclass(frozen=True, eq=False)
class _LookedUp:
    """A term whose addresses have ranges in the place of values that memory says, as which expert's weights a row is
    of; these ranges with their values; and the conditions under which the values are places at all."""

    body: UOp
    ranges: tuple[tuple[UOp, UOp], ...] = ()
    gates: tuple[UOp, ...] = ()


def _without_true_gates(body: UOp) -> UOp:
    """A term whose loads have no conditions that always hold: a table is asked for the smaller of a number and its last
    place."""
    plain = {
        load.node: load.node.replace(src=(load.node.src[0], load.address))
        for load in loads_of(body)
        if load.gates and all(map(_holds, load.gates))
    }
    return body.substitute(plain, walk=True) if plain else body


def _holds(gate: UOp) -> bool:
    """Whether a value is below a constant, whatever it is."""
    return gate.op is Ops.CMPLT and gate.src[1].op is Ops.CONST and _most(gate.src[0]) < gate.src[1].arg


def _most(value: UOp) -> float:
    """The largest that an integer may be: of the smaller of two numbers that of either."""
    if value.op is Ops.CAST and dtypes.is_int(value.src[0].dtype):
        return _most(value.src[0]) if value.src[0].vmin >= 0 else float(value.vmax)
    if value.op is not Ops.WHERE:
        return float(value.vmax)
    condition, one, other = value.src
    largest = _most(other)
    if condition.op is Ops.CMPLT and condition.src[0].op is Ops.CONST:
        is_compared = _plain(condition.src[1]) is _plain(other)
        largest = min(largest, float(condition.src[0].arg)) if is_compared else largest
    return max(_most(one), largest)


def _plain(value: UOp) -> UOp:
    """A number without its casts to wider integers, none of which is below 0."""
    if value.op is not Ops.CAST or not dtypes.is_int(value.src[0].dtype) or value.src[0].vmin < 0:
        return value
    is_same = value.dtype is dtypes.weakint or value.dtype.itemsize > value.src[0].dtype.itemsize
    return _plain(value.src[0]) if is_same else value


def _with_ranges_looked_up(body: UOp, summed: set[UOp]) -> _LookedUp:
    """A term without values in its addresses that memory says and no range of the sum changes."""
    found: dict[UOp, UOp] = {}
    plain: dict[UOp, UOp] = {}  # loads without their conditions
    gates: dict[UOp, None] = {}
    used = max((n.arg[0] for n in body.toposort() if n.op is Ops.RANGE), default=0)
    for load in loads_of(body):
        if load.steps is not None or not all(summed.isdisjoint(gate.ranges) for gate in load.gates):
            continue
        if not (parts := _looked_up(load.address, summed, 1)):
            continue
        for value, step in parts:
            if value not in found:
                count = max(1, min(int(value.vmax) + 1, load.buffer.size // step))
                found[value] = UOp.range(count, used + 1 + len(found), AxisType.WEAK)
        plain[load.node] = load.node.replace(src=(load.node.src[0], load.address))
        gates |= dict.fromkeys(load.gates)
    if not found:
        return _LookedUp(body)
    made = body.substitute(plain, walk=True).substitute(found, walk=True)
    return _LookedUp(made, tuple((axis, value) for value, axis in found.items()), tuple(gates))


def _looked_up(address: UOp, summed: set[UOp], step: int) -> list[tuple[UOp, int]]:
    """The parts of an address that memory says, without ranges of the sum, and how far each moves it; none where it is
    of another kind."""
    if address.op is Ops.ADD:
        return [part for source in address.src for part in _looked_up(source, summed, step)]
    if address.op is Ops.MUL and address.src[1].op is Ops.CONST:
        return _looked_up(address.src[0], summed, step * int(address.src[1].arg))
    is_value = address.dtype is dtypes.weakint and any(node.op is Ops.INDEX for node in address.toposort())
    return [(address, step)] if is_value and step > 0 and summed.isdisjoint(address.ranges) else []


def _with_digits(body: UOp, ranges: tuple[UOp, ...]) -> tuple[UOp, tuple[UOp, ...]]:
    """A term over more ranges: one that is divided by a constant is two, the quotient and the rest."""
    while (found := _divided(body, ranges)) is not None:
        axis, size = found
        body, ranges = _split(body, ranges, axis, size)
    return body, ranges


def _divided(body: UOp, ranges: tuple[UOp, ...]) -> tuple[UOp, int] | None:
    for node in body.toposort():
        if node.op in (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD) and node.src[0] in ranges:
            axis, by = node.src
            if by.op is Ops.CONST and 1 < int(by.arg) < extent(axis) and extent(axis) % int(by.arg) == 0:
                return axis, int(by.arg)
    return None


def _split(body: UOp, ranges: tuple[UOp, ...], axis: UOp, size: int) -> tuple[UOp, tuple[UOp, ...]]:
    """A term over two ranges in one's place: its number is that of the first times `size`, and the second's."""
    used = max((n.arg[0] for n in body.toposort() if n.op is Ops.RANGE), default=0)
    outer = UOp.range(extent(axis) // size, used + 1, AxisType.REDUCE)
    inner = UOp.range(size, used + 2, AxisType.REDUCE)
    place = ranges.index(axis)
    body = moved(body, {axis: outer * size + inner}).simplify()
    return body, (*ranges[:place], outer, inner, *ranges[place + 1 :])


def _choosing(body: UOp) -> tuple[UOp, ...]:
    """The ranges that a value depends on otherwise than by sums in addresses: by conditions, shifts, or as numbers."""
    found: dict[UOp, None] = {}
    waiting, seen = [body], set[UOp]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op is Ops.RANGE:
            found[node] = None
        elif node.op is Ops.INDEX:
            for place in node.src[1:]:
                waiting.extend(() if affine(place) is not None else _of_place(place))
        else:
            waiting.extend(node.src)
    return tuple(found)


def _of_place(place: UOp) -> Iterable[UOp]:
    """The parts of a place in memory that is no sum of steps."""
    if place.op is Ops.ADD:
        return [part for source in place.src for part in _of_place(source)]
    return [place]


def _beside(words: Sequence[Access], ranges: tuple[UOp, ...]) -> UOp | None:
    """The range along which parts of words lie nearest to each other, the longest one: bytes, or pairs of them where
    two bytes are a number."""
    along = {axis: [step for load in words if (step := (load.steps or {}).get(axis, 0)) > 0] for axis in ranges}
    nearest = {axis: min(steps) for axis, steps in along.items() if steps}
    least = min(nearest.values(), default=0)
    found = [axis for axis, step in nearest.items() if step == least <= WORD_BYTES]
    return max(found, key=extent, default=None)


def _reads(load: Access, chosen: Sequence[UOp]) -> int:
    """How many elements a load takes, for each value of the ranges that it steps along but for those chosen ones."""
    return math.prod(extent(axis) for axis in load.steps or () if axis is not None and axis not in chosen)


# ---- bits


def _bits_of_loads(loads: Mapping[UOp, Access], slots: frozenset[int]) -> dict[UOp, Bits]:
    """The bits of each load of words: those of one address but for its constant share words."""
    together: dict[tuple[int, int, Steps], dict[UOp, int]] = {}
    for node, load in loads.items():
        steps = load.steps
        if load.buffer.slot in slots and steps is not None and not load.gates:
            own = sorted(((axis, step) for axis, step in steps.items() if axis is not None and step), key=_by_range)
            key = load.buffer.slot, load.buffer.size, tuple(own)
            together.setdefault(key, {})[node] = steps.get(None, 0)
    found: dict[UOp, Bits] = {}
    for (slot, size, along), places in together.items():
        for node, (word, first) in _words(slot, size, along, places).items():
            found[node] = tuple((word, first + place) for place in range(8))
    return found


def _words(slot: int, nbytes: int, steps: Steps, places: Mapping[UOp, int]) -> dict[UOp, tuple[Word, int]]:
    """Of each byte at a constant from an address the word that it comes with, and from which bit on. The buffer has so
    many bytes: no word is of others too."""
    whole = math.gcd(WORD_BYTES, nbytes)
    size = math.gcd(whole, *(step for _, step in steps))
    if size < whole == WORD_BYTES and all(step > 0 for _, step in steps) and min(places.values()) >= 0:
        small = tuple((axis, step) for axis, step in steps if step % WORD_BYTES)
        reach = sum((extent(axis) - 1) * step for axis, step in small)
        if all(at % WORD_BYTES + reach < WORD_BYTES for at in places.values()):
            # what a range chooses is in one word with what it does not
            large = tuple((axis, step // WORD_BYTES) for axis, step in steps if step % WORD_BYTES == 0)
            moved = tuple((axis, 8 * step) for axis, step in small)
            return {
                node: (Word(slot, large, WORD_BYTES, at // WORD_BYTES, moved), 8 * (at % WORD_BYTES))
                for node, at in places.items()
            }
        first, last = min(places.values()), max(places.values())
        if len({at // size for at in places.values()}) > raw_words(last + 1 - first, math.gcd(size, first)):
            return {
                node: (Word(slot, steps, WORD_BYTES, (at - first) // WORD_BYTES, (), first), 8 * ((at - first) % 4))
                for node, at in places.items()
            }
    own = tuple((axis, step // size) for axis, step in steps)
    return {node: (Word(slot, own, size, at // size), 8 * (at % size)) for node, at in places.items()}


def is_lookup(load: Access) -> bool:
    """Whether a load takes an entry of a larger table of floats, at a place that memory says."""
    if load.steps is not None or load.gates or load.buffer.dtype not in FLOATS or load.buffer.size <= SMALL_TABLE:
        return False
    return any(node.op is Ops.INDEX for node in load.address.toposort())


def without_constant(address: UOp) -> tuple[int, UOp]:
    """An address as a constant and the rest."""
    constant, rest = 0, list[UOp]()
    waiting = [address]
    while waiting:
        node = waiting.pop()
        if node.op is Ops.ADD:
            waiting.extend(reversed(node.src))
        elif node.op is Ops.CONST and not is_invalid(node):
            constant += int(node.arg)
        else:
            rest.append(node)
    if not rest:
        return constant, address.const_like(0)
    total = rest[0]
    for node in rest[1:]:
        total = total + node
    return constant, total


def raw_words(nbytes: int, aligned: int) -> int:
    """In how many words of memory so many bytes are, which begin at a multiple of `aligned`."""
    return (WORD_BYTES - aligned + nbytes - 1) // WORD_BYTES + 1


def _by_range(step: tuple[UOp, int]) -> bytes:
    return bytes(step[0].key)


# ---- terms


def _order(node: UOp) -> bytes:
    return bytes(node.key)


def _together(terms: Iterable[Term]) -> Iterable[Term]:
    """Terms of a sum, equal ones as one."""
    found: dict[tuple[tuple[UOp, ...], tuple[UOp, ...]], float] = {}
    for term in terms:
        key = tuple(sorted(term.inner, key=_order)), tuple(sorted(term.others, key=_order))
        found[key] = found.get(key, 0.0) + term.factor
    return [Term(factor, inner, others) for (inner, others), factor in found.items() if factor]


# ---- divisions by a power of two that a range chooses


def with_shifts(value: UOp) -> UOp:
    """A value whose divisions by one of some powers of two, by the number that a range has, are shifts."""
    return graph_rewrite(value, _SHIFTS, walk=True)


def _as_shift(x: UOp, choice: UOp) -> UOp | None:
    amount = _power(choice)
    if amount is None or not dtypes.is_unsigned(x.dtype):
        return None
    return x >> _as_number(amount).cast(x.dtype)


def _as_number(choice: UOp) -> UOp:
    """A choice among constants by whether a number is 0, is 1, ..., as a constant times that number and another one;
    the choice itself where it is none of these."""
    number, cases, left = None, dict[int, int](), choice
    while left.op is Ops.WHERE:
        condition, others, chosen = left.src
        if condition.op is not Ops.CMPNE or any(n.op is not Ops.CONST for n in (condition.src[1], chosen)):
            return choice
        if number not in (None, condition.src[0]):
            return choice
        number = condition.src[0]
        cases.setdefault(int(condition.src[1].arg), int(chosen.arg))
        left = others
    if number is None or left.op is not Ops.CONST or number.vmax - number.vmin >= MOST_TERMS:
        return choice
    first, last = int(number.vmin), int(number.vmax)
    values = [cases.get(n, int(left.arg)) for n in range(first, last + 1)]
    step = values[-1] - values[0] if len(values) < 2 else values[1] - values[0]
    if values != [values[0] + step * n for n in range(len(values))]:
        return choice
    return number * step + (values[0] - step * first)


def _power(choice: UOp) -> UOp | None:
    """The exponents of a choice among powers of two; None where it has another value."""
    if choice.op is Ops.CONST and not is_invalid(choice):
        value = int(choice.arg)
        return choice.const_like(value.bit_length() - 1) if value > 0 and value & (value - 1) == 0 else None
    if choice.op is not Ops.WHERE:
        return None
    one, other = map(_power, choice.src[1:])
    return None if one is None or other is None else choice.replace(src=(choice.src[0], one, other))


_SHIFTS = PatternMatcher([(UPat(Ops.CDIV, src=(UPat.var("x"), UPat(Ops.WHERE, name="choice"))), _as_shift)])
