"""Candidate regions of a sequence: sets of calls that could be one program, by rules over wiring and ASTs.

A rule looks at how one call's addresses take apart what another one stored: into the rows that its points have to
themselves, and what lies beside each other within such a row. Names and layers play no part. What comes out is
generous: a kind of schedule refuses what it cannot express, and what a region saves is measured.

- `ROWS`: calls over the same rows, joined by a value or a tile for each row (a norm, a softmax, a loss);
- `EPILOGUE`: contractions, and what is done to parts of their rows that fit in a tile (a head's norm and rotation);
- `JOINED`: contractions of which one takes the other's result point by point (a sum that a concatenation split);
- `CHAINED`: a contraction, what is made of its result by way of a maximum of each row, and the contraction that takes
  that as an operand (attention);
- `SHARED`: contractions that read the same operand (query, key and value);
- `PROLOGUE`: any of these with the elementwise call that makes an operand, computed on the way; a reduction that reads
  parts of a table which memory says (weights of chosen experts), with the call that makes all of it;
- `BESIDE`: two contractions of which neither needs the other, whose tiles fill waves together (the same layer of two
  streams);
- `VECTOR`: matrix-vector products that read the same vector (a modulation's; query, key and value of one token).

A reduction that tinygrad made in two steps, of parts of a row and then of what these came to, counts as one call.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Self

from kcg.compat.hazards import Access, is_convex, successors_of
from kcg.compat.partition import own_of
from kcg.compat.tiny import DType, Ops, UOp, sym_infer
from kcg.kernel.analysis import arithmetic
from kcg.kernel.ast import affine, extent, is_symbolic
from kcg.kernel.codec import ast_of
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.vectors import vectors_of
from kcg.kernel.symbolic import at_values, mean_values
from kcg.types import Kernel, Region, Sequence, SlotBinding, Variables
from kcg.unexpected import REFUSALS, report

Steps = dict[UOp, int]
"""How far an address moves with each range, in elements."""


class Form(StrEnum):
    """Which rule made a candidate."""

    ROWS = "row group"
    EPILOGUE = "matmul with more in its epilogue"
    JOINED = "joined matmuls"
    CHAINED = "chained matmuls"
    SHARED = "matmuls with a shared operand"
    PROLOGUE = "matmul with more in its prologue"
    BESIDE = "horizontally fused matmuls"
    VECTOR = "products of one vector"


@dataclass(frozen=True)
class Limits:
    """What a candidate may come to."""

    calls: int = 12
    row_bytes: int = 1 << 18  # of what a call leaves of one row, in float32: a multiprocessor's registers
    long_row_bytes: int = 1 << 21  # of a row that is reduced in two steps, in float32: one program reads it in 20 µs
    columns: int = 256  # of a row that an epilogue sees at once: the width of a tile
    points: int = 2  # of an epilogue that need the same element
    sharing: int = 4  # contractions with one operand
    again: int = 16  # operations an element of what is computed more than once
    subsets: int = 64  # of the calls of one group
    near: int = 8  # calls from a contraction, or a matrix-vector product, to one beside it
    products: int = 8  # matrix-vector products of one vector
    few: int = 1 << 23  # elements that the smaller of contractions beside each other stores: a few waves of tiles


@dataclass(frozen=True)
class Candidate:
    """A region that could be one program, wherever it occurs in its sequence."""

    region: Region
    form: Form
    places: tuple[tuple[int, ...], ...]  # of each occurrence, in the order of the region's kernels
    bytes: int  # that one occurrence reads and stores, each element once; with the mean of the values of variables
    # that one occurrence no longer stores and reads, against the calls in whose place it runs; of `BESIDE` maybe 0, and
    # less where what it computes again is made of more
    saved_bytes: int
    again_operations: float  # that one occurrence computes beside what each of its calls does, about

    def own(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """Of one occurrence the calls in whose place it runs."""
        return own_of(self.region, places)

    @property
    def again(self) -> tuple[int, ...]:
        """Numbers of those of its kernels that are computed again: their calls stay for others."""
        return self.region.again

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Those in whose place it runs."""
        return self.region.own


def candidates_of(sequence: Sequence, limits: Limits | None = None) -> list[Candidate]:
    """Every candidate, what saves most bytes first."""
    return _Candidates.of(sequence, limits or Limits(), mean_values(sequence)).run()


# ---- one kernel, as the rules see it


@dataclass(frozen=True)
class _Load:
    steps: Steps | None  # None: not affine
    inside: bool  # whether it is an operand of the kernel's contraction
    elements: Elements


@dataclass(frozen=True)
class Elements:
    """What an access reaches of a buffer: stretches of elements that lie apart."""

    apart: tuple[tuple[int, int], ...]  # step and count of the stretches, along each axis
    low: int
    high: int  # of the first stretch

    @staticmethod
    def of(address: UOp, values: Mapping[str, int]) -> Elements:
        """What an address reaches with these values of its variables; of one that is not affine as many elements as it
        has values, wherever they are."""
        steps = _steps(address)
        if steps is None:
            many = math.prod(_extent_at(r, values) for r in address.ranges)
            return Elements(((0, many), (hash(address), 1)), 0, 1)
        axes, width = list[tuple[int, int]](), 1
        for step, count in sorted((abs(step), _extent_at(r, values)) for r, step in steps.items()):
            if not axes and step <= width:
                width += step * (count - 1)
            elif axes and step == axes[-1][0] * axes[-1][1]:
                axes[-1] = (axes[-1][0], axes[-1][1] * count)
            else:
                axes.append((step, count))
        low = int(address.vmin)
        return Elements(tuple(axes), low, low + width)

    @staticmethod
    def count(some: Iterable[Elements], size: int) -> int:
        """How many elements of a buffer of `size` these reach together, each counted once as far as that is seen."""
        found = 0
        by_axes: dict[tuple[tuple[int, int], ...], list[tuple[int, int]]] = defaultdict(list)
        for one in set(some):
            by_axes[one.apart].append((one.low, one.high))
        for axes, stretches in by_axes.items():
            length, end = 0, -math.inf
            for low, high in sorted(stretches):
                length += max(0, high - int(max(low, end)))
                end = max(end, high)
            found += length * math.prod(count for _, count in axes)
        return min(found, size)


class _Read:
    """A call's kernel, or that of several that count as one, read for the rules. They see symbolic sizes at their
    largest values, for which buffers are laid out; bytes and operations are those with some values of its variables."""

    def __init__(self, region: Region, variables: Variables) -> None:
        tile: TileKernel = read_region(region)
        contraction = tile.contraction
        inside = {n for c in (*tile.chained, *tile.together) for n in c.reduce.backward_slice_with_self}
        self.asts, self.variables = [ast_of(kernel) for kernel in region.kernels], variables
        self.reductions = len(tile.reductions)
        # what picks one term of each sum, as a loss does, is none once it is simplified
        self.reduces = contraction is None and any(
            node.op is Ops.REDUCE for ast in self.asts for node in ast.toposort()
        )
        values = {v.arg.name: int(v.vmax) for v in tile.variables} | dict(variables)
        self.outputs, self.reduce_extent = tile.outputs, tile.reduce_extent
        self.is_contraction, self.is_elementwise = contraction is not None, not tile.reductions
        self.product: tuple[DType, int, int] | None = None  # format, terms and columns, of one of rows by columns
        if contraction is not None and not contraction.batch and not tile.sharing_operand:
            rows, columns = contraction.sides
            self.product = rows.dtype, self.reduce_extent, _count(self.outputs[n] for n in columns.ranges)
        self.has_maximum = any(node.arg[0] is Ops.MAX for node in tile.reductions)
        self.is_reduction = not self.is_contraction and not self.is_elementwise
        self.vectors = vectors_of(tile)
        self.stored = _steps(tile.store.address)
        self.loads: dict[int, list[_Load]] = {}
        for load in tile.loads:
            found = _Load(_steps(load.address), load.node in inside, Elements.of(load.address, values))
            self.loads.setdefault(load.buffer.slot, []).append(found)
        self.written = {tile.store.buffer.slot: Elements.of(tile.store.address, values)}
        self.itemsizes = {b.slot: b.dtype.itemsize for b in tile.buffers}

    @cached_property
    def operations(self) -> float:
        return sum(arithmetic(at_values(ast, self.variables)) for ast in self.asts)

    @cached_property
    def an_element(self) -> float:
        """Operations for each element that it stores."""
        return sum(map(arithmetic, self.asts)) / _count(self.outputs)


def _read(region: Region, variables: Variables) -> _Read | None:
    """None where it cannot be read as one kernel, or where what it stores is not at a sum of ranges, as an update of a
    cache at a position."""
    found = _looked_at(region, variables)
    if isinstance(found, Exception):  # kept, so that each run in which it occurs says so
        report("a tile program of a kernel", found)
        return None
    return found


@lru_cache(1024)
def _looked_at(region: Region, variables: Variables) -> _Read | Exception | None:
    try:
        found = _Read(region, variables)
    except REFUSALS:
        return None
    except Exception as error:
        return error
    return None if found.stored is None else found


def _steps(address: UOp) -> Steps | None:
    found = affine(address)
    return None if found is None else {r: step for r, step in found.items() if r is not None}


def _spread(steps: Steps, rows: Collection[UOp]) -> int:
    """Elements from the first to the last that one row reaches."""
    return 1 + sum(abs(step) * (extent(r) - 1) for r, step in steps.items() if r not in rows)


def _apart(steps: Steps, rows: Collection[UOp]) -> bool:
    """Whether different rows reach different elements, each its own stretch of them."""
    if not all(steps.get(r) for r in rows):
        return False
    width = _spread(steps, rows)
    for r in sorted(rows, key=lambda r: abs(steps[r])):
        if abs(steps[r]) < width:
            return False
        width += abs(steps[r]) * (extent(r) - 1)
    return True


def _count(ranges: Iterable[UOp]) -> int:
    return math.prod(extent(r) for r in ranges)


def _extent_at(axis: UOp, values: Mapping[str, int]) -> int:
    """The number of steps of a range with these values of its variables."""
    return int(sym_infer(axis.src[0], dict(values))) if is_symbolic(axis) else extent(axis)


def _stretches(places: list[int], near: int) -> list[list[int]]:
    """Places in stretches of which each is near the one before."""
    found: list[list[int]] = []
    for place in places:
        if found and place - found[-1][-1] <= near:
            found[-1].append(place)
        else:
            found.append([place])
    return found


def _groups(places: list[int], most: int) -> Iterator[list[int]]:
    """Places in groups: all of them, if they are not too many, and groups of a power of two."""
    sizes = {1 << power for power in range(1, most.bit_length()) if 1 << power <= len(places)}
    for size in sorted(sizes | ({len(places)} if 1 < len(places) <= most else set()), reverse=True):
        yield from (places[at : at + size] for at in range(0, len(places) - size + 1, size))


# ---- calls, and reductions in two steps


class _Wiring:
    """The calls of a sequence by place, and who makes what others read."""

    def __init__(
        self,
        sequence: Sequence,
        limits: Limits,
        kernels: list[_Read | None],
        views: list[tuple[SlotBinding, ...]],
        reads: list[set[SlotBinding]],
        writes: list[set[SlotBinding]],
    ) -> None:
        self.sequence, self.limits = sequence, limits
        self.kernels, self.views, self.reads, self.writes = kernels, views, reads, writes
        self.after = successors_of(
            [
                Access(frozenset(v.buffer for v in read), frozenset(v.buffer for v in written))
                for read, written in zip(reads, writes, strict=True)
            ]
        )
        writers: dict[int, list[int]] = defaultdict(list)
        users: dict[int, int] = {}
        for place, written in enumerate(writes):
            for view in written:
                writers[view.buffer].append(place)
            for view in views[place]:
                users.setdefault(view.buffer, place)
        # values of one call that others read: what is written once, and not updated in place
        self.maker: dict[SlotBinding, int] = {}
        self.readers: dict[int, list[tuple[int, SlotBinding]]] = defaultdict(list)
        for view in {view for written in writes for view in written}:
            made = writers[view.buffer]
            first = users[view.buffer] == made[0] and view not in reads[made[0]]
            if len(made) == 1 and first and kernels[made[0]] is not None:
                self.maker[view] = made[0]
        for place, read in enumerate(reads):
            for view in read:
                if kernels[place] is not None and place > self.maker.get(view, place):
                    self.readers[self.maker[view]].append((place, view))

    @classmethod
    def of(cls, sequence: Sequence, limits: Limits, variables: Variables) -> Self:
        """Each call by itself."""
        return cls(
            sequence,
            limits,
            [
                _read(Region((c.kernel,)), variables) if c.kernel is not None and len(c.devices) < 2 else None
                for c in sequence.calls
            ],
            [call.views for call in sequence.calls],
            [{call.views[slot] for slot in call.reads} for call in sequence.calls],
            [{call.views[slot] for slot in call.writes} for call in sequence.calls],
        )

    def _loads(self, place: int, view: SlotBinding) -> list[_Load]:
        """How a call reads a view."""
        kernel = self.kernels[place]
        assert kernel is not None
        return [
            load for slot, bound in enumerate(self.views[place]) if bound == view for load in kernel.loads.get(slot, ())
        ]


def _in_two_steps(wiring: _Wiring, variables: Variables) -> dict[tuple[int, ...], _Read]:
    """Calls of which the last reduces what the others left for parts of what it reduces, and what they come to as one:
    tinygrad makes a reduction of 32,768 elements or more in two steps."""
    found: dict[int, tuple[tuple[int, ...], _Read]] = {}
    for place, kernel in enumerate(wiring.kernels):
        if kernel is None or not kernel.is_reduction:
            continue
        makers = {m for view in wiring.reads[place] if (m := _first_step(wiring, place, view)) is not None}
        places = {place}.union(*(found[maker][0] if maker in found else (maker,) for maker in makers))
        made = _as_one(wiring, tuple(sorted(places)), variables) if makers else None
        if made is not None:
            found = {last: one for last, one in found.items() if last not in makers}
            found[place] = tuple(sorted(places)), made
    return dict(found.values())


def _as_one(wiring: _Wiring, places: tuple[int, ...], variables: Variables) -> _Read | None:
    """Calls read as one reduction, where they come to one of rows that are not too long."""
    if not is_convex(wiring.after, places):
        return None
    try:
        made = _read(wiring.sequence.region(*places), variables)
    except ValueError:
        return None
    if made is None or not made.is_reduction or 4 * made.reduce_extent > wiring.limits.long_row_bytes:
        return None
    alone = sum(max(1, kernel.reductions) for place in places if (kernel := wiring.kernels[place]) is not None)
    return made if made.reductions + len(places) - 1 <= alone else None


def _first_step(wiring: _Wiring, place: int, view: SlotBinding) -> int | None:
    """The call that leaves parts of reductions in a view, for nothing but the call at a place to reduce these."""
    maker, kernel = wiring.maker.get(view), wiring.kernels[place]
    made = wiring.kernels[maker] if maker is not None and maker < place else None
    if made is None or kernel is None or not made.reduces or wiring.sequence.buffers[view.buffer].held:
        return None
    if not {maker, place}.issuperset(wiring.sequence.users[view.buffer]):
        return None
    reduced = all(load.steps and not set(load.steps) <= set(kernel.outputs) for load in wiring._loads(place, view))
    return maker if reduced else None


def _merged(wiring: _Wiring, steps: Mapping[tuple[int, ...], _Read]) -> _Rules:
    """The rules' view with some calls as one, at the place of the last of them."""
    kernels, views = list(wiring.kernels), list(wiring.views)
    reads, writes = list(wiring.reads), list(wiring.writes)
    whole = dict[int, tuple[int, ...]]()
    for places, made in steps.items():
        inside = set[SlotBinding]().union(*(writes[place] for place in places[:-1]))
        last = places[-1]
        views[last] = tuple(dict.fromkeys(view for place in places for view in wiring.views[place]))
        reads[last] = set[SlotBinding]().union(*(reads[place] for place in places)) - inside
        kernels[last], whole[last] = made, places
        for place in places[:-1]:
            kernels[place], views[place], reads[place], writes[place] = None, (), set(), set()
    found = _Rules(wiring.sequence, wiring.limits, kernels, views, reads, writes)
    found.whole = whole
    return found


# ---- the rules


class _Rules(_Wiring):
    whole: Mapping[int, tuple[int, ...]] = MappingProxyType({})  # by place: the calls that count as one there

    def proposed(self) -> Iterator[tuple[Form, frozenset[int], frozenset[int]]]:
        """Sets of calls, with those of them that are computed again."""
        for places in self.whole.values():
            if self._reads_rows(places[-1]):
                yield Form.ROWS, frozenset(places), frozenset()
        for form, found, again in self._proposed():
            yield form, frozenset(one for place in found for one in self.whole.get(place, (place,))), again

    def _reads_rows(self, place: int) -> bool:
        """Whether a reduction goes along what lies beside each other, as over columns of a matrix none does."""
        kernel = self.kernels[place]
        assert kernel is not None
        loads = (load for loads in kernel.loads.values() for load in loads)
        along = any(load.steps is not None and _apart(load.steps, kernel.outputs) for load in loads)
        return along or not kernel.outputs

    def _proposed(self) -> Iterator[tuple[Form, frozenset[int], frozenset[int]]]:
        none: frozenset[int] = frozenset()
        for group in self._row_groups():
            for places in self._parts_of(group):
                yield Form.ROWS, places, none
        contractions = [place for place, k in enumerate(self.kernels) if k is not None and k.is_contraction]
        bases: dict[frozenset[int], Form] = {frozenset([place]): Form.PROLOGUE for place in contractions}
        for place in contractions:
            for form, places in self._around(place):
                bases.setdefault(places, form)
            if (chained := self._chained(place)) is not None:
                bases.setdefault(chained, Form.CHAINED)
        for shared in self._shared(contractions):
            with_more = frozenset(shared.union(*(self._epilogue(place) for place in shared)))
            bases.setdefault(shared, Form.SHARED)
            bases.setdefault(with_more, Form.SHARED)
        for places, form in bases.items():
            if len(places) > 1:
                yield form, places, none
            makers = self._operands(places)
            if len(makers) > 1:
                yield Form.PROLOGUE, places.union(makers), none
            for maker in makers:
                more = places | {maker}
                yield Form.PROLOGUE, more, none
                held = any(self.sequence.buffers[view.buffer].held for view in self.writes[maker])
                if not held and any(reader not in places for reader, _ in self.readers[maker]):
                    yield Form.PROLOGUE, more, frozenset([maker])
        for places in self._beside(contractions):
            yield Form.BESIDE, places, none
        for places in self._of_vectors():
            yield Form.VECTOR, places, none
        for places in self._of_tables():
            yield Form.PROLOGUE, places, none

    # -- chains

    def _chained(self, place: int) -> frozenset[int] | None:
        """A contraction with all that is made of its result, where that comes to one other contraction by way of a
        maximum of each row: only sums that such a one shifts can be made before it is known."""
        between, ends, waiting = {place}, set[int](), [place]
        while waiting and len(between) < self.limits.calls:
            for reader, _ in self.readers[waiting.pop()]:
                kernel = self.kernels[reader]
                if kernel is not None and kernel.is_contraction:
                    ends.add(reader)
                elif reader not in between:
                    between.add(reader)
                    waiting.append(reader)
        shifts = any((kernel := self.kernels[one]) is not None and kernel.has_maximum for one in between)
        return frozenset(between | ends) if len(ends) == 1 and shifts and not waiting else None

    # -- rows

    def _row_groups(self) -> Iterator[frozenset[int]]:
        """Calls over the same rows as those of each reduction."""
        seen: set[frozenset[int]] = set()
        for anchor, kernel in enumerate(self.kernels):
            if kernel is None or not kernel.is_reduction:
                continue
            rows = {anchor: frozenset(kernel.outputs)}
            waiting = [anchor]
            while waiting and len(rows) < self.limits.calls:
                place = waiting.pop(0)
                if not rows[place] and place not in self.whole:
                    continue  # its rows cannot be told: it is the end of the group
                for other, mine in self._neighbours(place, rows):
                    if other not in rows and len(rows) < self.limits.calls:
                        rows[other] = mine
                        waiting.append(other)
            if (group := frozenset(rows)) not in seen and len(group) > 1:
                seen.add(group)
                yield group

    def _neighbours(self, place: int, rows: dict[int, frozenset[UOp]]) -> Iterator[tuple[int, frozenset[UOp]]]:
        """Calls beside one of a group, each with its rows where it has the same."""
        read = set[SlotBinding]().union(*(self.reads[member] for member in rows))
        for other, view in self.readers[place]:
            if (mine := self._rows_of_reader(place, rows[place], other, view, read)) is not None:
                yield other, mine
        for view in sorted(self.reads[place], key=lambda v: v.buffer):
            maker = self.maker.get(view)
            if maker is not None and maker != place:
                mine = self._rows_of_maker(place, rows[place], maker, view, read)
                if mine is not None:
                    yield maker, mine

    def _rows_of_reader(
        self, maker: int, rows: frozenset[UOp], reader: int, view: SlotBinding, read: set[SlotBinding]
    ) -> frozenset[UOp] | None:
        made, kernel = self.kernels[maker], self.kernels[reader]
        assert made is not None and kernel is not None and made.stored is not None
        if kernel.is_contraction or not _apart(made.stored, rows):
            return None
        width = _spread(made.stored, rows)
        if 4 * width > self.limits.row_bytes or (width == 1 and not self._share_data(view, self.reads[reader], read)):
            return None
        found: set[frozenset[UOp]] = set()
        for load in self._loads(reader, view):
            if load.steps is None:
                return None
            mine = frozenset(r for r, step in load.steps.items() if abs(step) >= width)
            if _spread(load.steps, mine) > width:  # a range runs over rows and over what is in them
                return frozenset() if kernel.is_elementwise and width > 1 else None
            found.add(mine)
        if len(found) != 1:
            return None
        (mine,) = found
        if not rows and not mine:  # there is one row
            return mine
        enough = 4 * _count(mine) >= _count(rows)  # some take a part of all rows: the queries of queries and keys
        return mine if enough and mine and mine <= set(kernel.outputs) else None

    def _rows_of_maker(
        self, reader: int, rows: frozenset[UOp], maker: int, view: SlotBinding, read: set[SlotBinding]
    ) -> frozenset[UOp] | None:
        made = self.kernels[maker]
        assert made is not None and made.stored is not None
        loads = self._loads(reader, view)
        if made.is_contraction or not loads or any(load.steps is None for load in loads):
            return None
        steps = [load.steps for load in loads if load.steps is not None]
        if not all(_apart(one, rows) for one in steps):
            return None
        width = max(_spread(one, rows) for one in steps)
        if 4 * width > self.limits.row_bytes:
            return None
        if made.is_reduction and width == 1 and not self._share_data(view, self.reads[maker], read):
            return None
        if made.is_reduction and width > 1 and not rows:
            return None  # of one row all of its elements are rows
        mine = frozenset(r for r, step in made.stored.items() if abs(step) >= width)
        if _spread(made.stored, mine) > width:
            return frozenset() if made.is_elementwise else None
        return mine if _apart(made.stored, mine) else None

    @staticmethod
    def _share_data(view: SlotBinding, own: set[SlotBinding], read: set[SlotBinding]) -> bool:
        """Whether two calls that pass on a value for each row read the same rows too."""
        return any(other.size > view.size for other in (own & read) - {view})

    def _parts_of(self, group: frozenset[int]) -> Iterator[frozenset[int]]:
        """The group and parts of it that are connected, contain a reduction, and have two calls or more."""
        ordered = sorted(group)
        sizes = range(len(ordered), 1, -1)
        if 2 ** len(ordered) <= self.limits.subsets:
            some = (one for size in sizes for one in itertools.combinations(ordered, size))
        else:
            some = (tuple(ordered[i : i + size]) for size in sizes for i in range(len(ordered) - size + 1))
        for places in some:
            kernels = [self.kernels[place] for place in places]
            if any(k is not None and k.is_reduction for k in kernels) and self._connected(places):
                yield frozenset(places)

    def _connected(self, places: tuple[int, ...]) -> bool:
        left, reached = set(places[1:]), [places[0]]
        used = {place: self.reads[place] | self.writes[place] for place in places}
        made = {place: self.writes[place] for place in places}
        while reached:
            at = reached.pop()
            near = {p for p in left if used[p] & made[at] or used[at] & made[p]}
            left -= near
            reached += near
        return not left

    # -- contractions

    def _around(self, place: int) -> Iterator[tuple[Form, frozenset[int]]]:
        """What a contraction could be one program with: what follows it in its tiles, and other contractions."""
        whole = self._epilogue(place)
        makers = [p for p in whole if (k := self.kernels[p]) is not None and k.is_contraction]
        light = {p for p in whole if (k := self.kernels[p]) is not None and k.is_elementwise and k.an_element <= 1}
        yield Form.EPILOGUE, whole
        yield Form.EPILOGUE, whole - light
        for reader in whole.difference(makers):
            yield Form.EPILOGUE, frozenset([reader, *self._makers_in_tiles(reader)])
        for reader, view in self.readers[place]:
            kernel = self.kernels[reader]
            if kernel is not None and kernel.is_contraction and self._is_in_tile(reader, view):
                yield Form.JOINED, frozenset([place, reader])
                yield Form.JOINED, frozenset([place, *self._epilogue(reader)])

    def _epilogue(self, place: int) -> frozenset[int]:
        """A contraction with all that sees its result by parts of rows, and other contractions that these see so."""
        found, waiting = {place: None}, [place]
        while waiting and len(found) < self.limits.calls:
            at = waiting.pop(0)
            kernel = self.kernels[at]
            assert kernel is not None
            near = [reader for reader, view in self.readers[at] if self._is_epilogue(reader, view)]
            if not kernel.is_contraction:
                near += self._makers_in_tiles(at)
            for other in near:
                if other not in found and len(found) < self.limits.calls:
                    found[other] = None
                    waiting.append(other)
        return frozenset(found)

    def _makers_in_tiles(self, reader: int) -> list[int]:
        """Contractions whose results a call sees by parts of rows."""
        made = [(self.maker[view], view) for view in self.reads[reader] if view in self.maker]
        contractions = [(m, view) for m, view in made if (k := self.kernels[m]) is not None and k.is_contraction]
        return sorted(m for m, view in contractions if self._is_epilogue(reader, view))

    def _is_epilogue(self, reader: int, view: SlotBinding) -> bool:
        kernel = self.kernels[reader]
        return kernel is not None and not kernel.is_contraction and self._is_in_tile(reader, view)

    def _is_in_tile(self, reader: int, view: SlotBinding) -> bool:
        """Whether each point of a call needs a few neighbours of what a view holds, which few other points need: the
        halves of a rotation need both of each pair."""
        kernel = self.kernels[reader]
        assert kernel is not None
        columns, points = (1, 1) if kernel.is_contraction else (self.limits.columns, self.limits.points)
        loads = self._loads(reader, view)
        return bool(loads) and all(
            load.steps is not None
            and not load.inside
            and _apart(load.steps, own := [r for r in kernel.outputs if r in load.steps])
            and _spread(load.steps, own) <= columns
            and _count(kernel.outputs) <= points * _count(own)
            for load in loads
        )

    def _shared(self, contractions: list[int]) -> Iterator[frozenset[int]]:
        """Contractions of the same operand, read in the same way."""
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for place in contractions:
            kernel = self.kernels[place]
            assert kernel is not None
            for slot, loads in kernel.loads.items():
                inside = {
                    (x.elements.low, *sorted((s, extent(r), r in kernel.outputs) for r, s in x.steps.items()))
                    for x in loads
                    if x.inside and x.steps
                }
                if len(loads) == len(inside) == 1:
                    groups[self.views[place][slot], *inside, kernel.reduce_extent].append(place)
        for places in groups.values():
            for size in range(min(len(places), self.limits.sharing), 1, -1):
                if size == len(places) or len(places) <= self.limits.sharing:
                    yield from map(frozenset, itertools.combinations(places, size))

    def _beside(self, contractions: list[int]) -> Iterator[frozenset[int]]:
        """Each contraction with the next one near it of as many terms and columns, where neither needs the other and
        one of them has only a few waves of tiles."""
        for number, place in enumerate(contractions):
            for other in contractions[number + 1 :]:
                if other > place + self.limits.near:
                    break
                if self._may_be_beside(place, other):
                    yield frozenset([place, other])
                    break

    def _may_be_beside(self, place: int, other: int) -> bool:
        one, two = self.kernels[place], self.kernels[other]
        assert one is not None and two is not None
        return (
            one.product is not None
            and one.product == two.product
            and min(_count(one.outputs), _count(two.outputs)) <= self.limits.few
            and other not in self.after[place]
            and is_convex(self.after, [place, other])
        )

    # -- matrix-vector products

    def _of_vectors(self) -> Iterator[frozenset[int]]:
        """Products of each vector: of equal ones that follow each other groups of `Limits.products`, of half as many
        and so on; of a few others all groups, where one that needs another one's result row by row is with that."""
        read: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for place, kernel in enumerate(self.kernels):
            for slot, form in kernel.vectors if kernel is not None else ():
                read[self.views[place][slot], form].append(place)
        for places in read.values():
            for near in _stretches(places, self.limits.near):
                joined = {place: other for other in near for place in near if self._needs_rows(place, other)}
                alone = [frozenset([place]) for place in near if place not in joined]
                some = [*alone, *(frozenset(pair) for pair in joined.items())]
                if len(near) <= self.limits.sharing:
                    for size in range(len(some), 0, -1):
                        groups = (frozenset().union(*parts) for parts in itertools.combinations(some, size))
                        yield from (group for group in groups if len(group) > 1)
                for _, equal in itertools.groupby(near, key=lambda place: self.sequence.calls[place].kernel):
                    yield from map(frozenset, _groups(list(equal), self.limits.products))

    # -- tables

    def _of_tables(self) -> Iterator[frozenset[int]]:
        """Reductions that read parts of a table which memory says, as the weights of chosen experts, each with the call
        that makes all of the table, and with those that make something for that: only what is read has to be made."""
        for place, kernel in enumerate(self.kernels):
            if kernel is None or not kernel.is_reduction:
                continue
            for view in self.reads[place]:
                if all(load.steps is not None for load in self._loads(place, view)):
                    continue
                if (maker := self._made_for(place, view)) is None:
                    continue
                yield frozenset((place, maker))
                before = {other for one in self.reads[maker] if (other := self._made_for(maker, one)) is not None}
                if before:
                    yield frozenset((place, maker, *before))

    def _made_for(self, place: int, view: SlotBinding) -> int | None:
        """The call that makes something element by element for one reader alone; None where there is none."""
        maker = self.maker.get(view)
        if maker is None or maker >= place or self.sequence.buffers[view.buffer].held:
            return None
        if (kernel := self.kernels[maker]) is None or not kernel.is_elementwise:
            return None
        return maker if all(reader == place for reader, _ in self.readers[maker]) else None

    def _needs_rows(self, reader: int, place: int) -> bool:
        """Whether each row of a product needs the same one of another product's result."""
        kernel = self.kernels[reader]
        assert kernel is not None
        loads = [load for other, view in self.readers[place] if other == reader for load in self._loads(reader, view)]
        return bool(loads) and all(
            load.steps is not None and _spread(load.steps, kernel.outputs) == 1 and _apart(load.steps, kernel.outputs)
            for load in loads
        )

    def _operands(self, places: frozenset[int]) -> list[int]:
        """Elementwise calls that make an operand of a contraction among these, at little cost."""
        found = []
        for place in sorted(places):
            kernel = self.kernels[place]
            if kernel is None or not kernel.is_contraction:
                continue
            for view in self.reads[place]:
                maker = self.maker.get(view)
                made = self.kernels[maker] if maker is not None and maker not in places else None
                if made is None or not made.is_elementwise or made.an_element > self.limits.again:
                    continue
                if all(load.inside and load.steps is not None for load in self._loads(place, view)):
                    found.append(maker)
        return sorted({maker for maker in found if maker is not None})


# ---- candidates


class _Candidates(_Wiring):
    def run(self) -> list[Candidate]:
        found: dict[tuple[str, tuple[int, ...]], Candidate] = {}
        seen: set[tuple[frozenset[int], frozenset[int]]] = set()
        for form, places, again in self._proposed():
            if (places, again) in seen:
                continue
            seen.add((places, again))
            if (made := self._candidate(form, places, again)) is None:
                continue
            key = made.region.id, made.again
            if key in found:
                before = found[key]
                made = replace(before, places=(*before.places, *made.places))
            found[key] = made
        in_order = (replace(c, places=tuple(sorted(c.places))) for c in found.values())
        return sorted(in_order, key=lambda c: (-c.saved_bytes * len(c.places), c.places))

    def _proposed(self) -> Iterator[tuple[Form, frozenset[int], frozenset[int]]]:
        """What the rules propose of the calls, and where reductions in two steps count as one."""
        steps = _in_two_steps(self, mean_values(self.sequence))
        for form, places, again in _merged(self, {}).proposed():
            if not any(places.issuperset(reduction) for reduction in steps):
                yield form, places, again
        if steps:
            yield from _merged(self, steps).proposed()

    def _candidate(self, form: Form, places: frozenset[int], again: frozenset[int]) -> Candidate | None:
        ordered = tuple(sorted(places))
        if len(ordered) > self.limits.calls or not self._is_safe(ordered) or not is_convex(self.after, places - again):
            return None
        if again and not is_convex(self.after, places):
            return None
        ordered = self._canonical(ordered)
        try:
            region = self.sequence.region(*ordered, again=again, ordered=True)
        except ValueError:  # they are no region
            return None
        moved = self._bytes(ordered, region)
        saved = sum(self._bytes([place]) for place in ordered if place not in again) - moved
        if saved <= 0 and not again and form is not Form.BESIDE:
            return None
        redone = sum(k.operations for place in again if (k := self.kernels[place]) is not None)
        redone += sum(self._operations_in_tiles(place, ordered) for place in ordered)
        return Candidate(region, form, (ordered,), moved, saved, redone)

    def _canonical(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """The same calls in an order that does not depend on theirs, but for hazards: blocks of one model may run what
        is independent in different orders. What comes next is the least by kernel and wiring."""
        ranks, left, found = self._ranks(places), list(places), list[int]()
        while left:
            ready = [p for p in left if not any(self.writes[q] & self.reads[p] for q in left if q < p)]
            found.append(min(ready, key=lambda place: (ranks[place], place)))
            left.remove(found[-1])
        return tuple(found)

    def _ranks(self, places: tuple[int, ...]) -> dict[int, int]:
        """Numbers of calls by their kernels, and by how they are wired to each other; equal where neither differs."""
        inside = set(places)
        signs: dict[int, tuple[object, ...]] = {}
        for place in places:
            kernel = self.sequence.calls[place].kernel
            stays = [inside.issuperset(self.sequence.users[view.buffer]) for view in self.views[place]]
            signs[place] = (kernel.id if kernel else "", stays)
        for _ in places:
            order = {sign: rank for rank, sign in enumerate(sorted({repr(sign) for sign in signs.values()}))}
            ranks = {place: order[repr(sign)] for place, sign in signs.items()}
            if len(order) == len(places):
                break
            signs = {place: (ranks[place], self._wiring(place, places, ranks)) for place in places}
        return ranks

    def _wiring(self, place: int, places: tuple[int, ...], ranks: dict[int, int]) -> list[list[tuple[int, int]]]:
        """By slot, which calls use the same view in which of their slots."""
        return [
            sorted((ranks[p], slot) for p in places for slot, other in enumerate(self.views[p]) if other == view)
            for view in self.views[place]
        ]

    def _operations_in_tiles(self, reader: int, places: tuple[int, ...]) -> float:
        """What a contraction computes again of its operands, made on the way: for every tile of columns anew."""
        kernel = self.kernels[reader]
        found = 0.0
        for view in self.reads[reader] if kernel is not None and kernel.is_contraction else ():
            made = self.kernels[self.maker[view]] if self.maker.get(view) in places else None
            for load in self._loads(reader, view) if made is not None and made.is_elementwise else ():
                assert kernel is not None and made is not None
                if load.inside and load.steps is not None:
                    tiles = -(-_count(r for r in kernel.outputs if r not in load.steps) // self.limits.columns)
                    found += (tiles - 1) * made.operations
        return found

    def _bytes(self, places: Iterable[int], region: Region | None = None) -> int:
        """What calls read and write as one program, each element once: of a region what it does not leave inside."""
        touched: dict[tuple[bool, SlotBinding], list[Elements]] = defaultdict(list)
        made, itemsizes = set[SlotBinding](), dict[SlotBinding, int]()
        for number, place in enumerate(places):
            kernel = self.kernels[place]
            assert kernel is not None
            for slot, view in enumerate(self.views[place]):
                itemsizes[view] = kernel.itemsizes[slot]
                if view not in made:
                    touched[False, view] += [load.elements for load in kernel.loads.get(slot, ())]
            for slot, elements in kernel.written.items():
                view = self.views[place][slot]
                made.add(view)
                if region is None or len(region.kernels) == 1 or region.args[number][slot] in region.outputs:
                    touched[True, view].append(elements)
        return sum(
            Elements.count(some, view.size // itemsizes[view]) * itemsizes[view] for (_, view), some in touched.items()
        )

    def _is_safe(self, ordered: tuple[int, ...]) -> bool:
        """Whether what is written is written once, and nothing inside reads what it was before."""
        if any(self.kernels[place] is None for place in ordered):
            return False
        read, written = set[int](), set[int]()
        for place in ordered:
            mine = {view.buffer for view in self.writes[place]}
            if mine & (read | written):
                return False
            read |= {view.buffer for view in self.reads[place]}
            written |= mine
        return True
