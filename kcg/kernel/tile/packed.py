"""Products with packed weights, of few vectors: every thread takes some words of a row and unpacks them in registers.

`kcg.kernel.reading.packed` says which bits of which words a term is made of. What a thread takes is written out: words
are loaded once and as wide as they are aligned, each number is taken out of its word by a mask and becomes a float
exactly, by the bits of a large float (2^23 plus the number), and the scales that numbers share multiply what they come
to. Sums are of float32. A program has some rows, whose threads all hold the same part of the vectors, and goes through
them in a loop; what its threads come to is added at the end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Any

from kcg.compat.tiny import UOp, dtypes
from kcg.kernel.ast import extent
from kcg.kernel.reading.accesses import Access, loads_of
from kcg.kernel.reading.bits import Field, Linear
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.packed import (
    WORD_BYTES,
    Group,
    Packed,
    Term,
    Unpacked,
    is_lookup,
    packed_sums,
    rows_of,
    without_constant,
)
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.bit_tables import (
    ENTRY_BYTES,
    ROWS_TOGETHER,
    BitTables,
    ByFours,
    Pass,
    allocated,
    allocated_for_tables,
    bytes_of_tables,
    keep,
    kept_sums,
    make_bit_tables,
    over_lanes,
    waited,
)
from kcg.kernel.tile.device import Device, Figures, device_of
from kcg.kernel.tile.emit import TYPES, Block, Frame, Lines, Writer, compute_type
from kcg.kernel.tile.epilogue import store_tile
from kcg.kernel.tile.estimates import bytes_of, either, waves_of
from kcg.kernel.tile.eviction import streamed
from kcg.kernel.tile.form import Axes, Form, powers, warps_of
from kcg.kernel.tile.parameters import PACKED, TileParameters
from kcg.kernel.tile.plan import MOST_PARTIALS, Loop, Need, Registers, Shared, TilePlan, Times, fits, seconds
from kcg.kernel.tile.reduction import Part
from kcg.kernel.tile.split import SPLITS, SUM_WARPS, partials_of, store_partials, write_sums
from kcg.kernel.tile.tables import HALF_BYTES, LANES, NO_TABLES, Copy, Tables, copy_tables
from kcg.kernel.tile.tiles import (
    Axis,
    Tiled,
    bind_axis,
    bind_scalar,
    bind_tile,
    count_of,
    is_power_of_two,
    open_frame,
    power_of_two,
    split_number,
    start_of,
    tiled_of,
)
from kcg.kernel.tile.unpack import ONE, most_together, together
from kcg.kernel.tile.vectors import alike, write_launch
from kcg.kernel.tile.views import PackedView
from kcg.types import Target

MOST_VECTORS = 16  # that a word is unpacked for
MOST_ROWS = 16  # of a program
MOST_HELD, MOST_WORDS = 64, 200  # sums of a thread, and words that it takes at once: of more of them it spilled
LEAST_STEP, MOST_STEP = 32, 4096  # parts of a row
FIRST_ROWS, FIRST_PROGRAMS = 4, 8  # where a search begins: rows of a program, and programs of a multiprocessor
SIGN_BIT = 31  # of a float
HALF_BITS, HALF, SIGNS_OF_HALVES = 16, 0xFFFF, 0x80008000  # of a word of two float16
ENTRIES = (8, 4, 2, 1)  # of a table in shared memory, that are loaded at once
LAYOUT, SUM_LAYOUT = "threads", "elements"
OPERATIONS = 5  # of a number that is unpacked and multiplied
OPERATIONS_BY_FOURS = 1.5  # of one that is of a sum by four bits
MAKING = 2.5  # operations of an entry of such a sum's table
LEAST_ROWS, MOST_ROWS_BY_FOURS = 64, 1024  # of a program, for which tables of sums pay, and at most
MOST_PASSES = 8  # of a program through its rows: each is written out
PERSISTENT = (0, 2, 3, 4, 6)  # of these, programs of a multiprocessor that take tiles in turn
FIRST_PERSISTENT, FIRST_ROUNDS = 4, 3  # of these where a search begins, if each has so many tiles
FOURS_WARPS, FIRST_TILES = 8, 2  # where a search of these begins: warps, and tiles of a multiprocessor at least
MOST_SHARED = 40 * 1024  # bytes of tables: of what a program declares ptxas takes 48 KiB
PAYS = 2  # terms of a program for each entry of its tables, from which on copying them costs less than it saves
SHARING_WARPS = 4  # of a program with tables, where a search begins, and times as many rows as others have at most
MOST_TURNS = 4  # in which a thread copies a table: of more it spilled
COPYING = 6  # operations of an entry that is copied


class PackedProducts(Form[PackedView, "PackedPlan"]):
    """Rows of packed weights with few vectors."""

    name = PACKED
    noun = "packed product"
    in_gluon = True
    by_layouts = True
    fields = frozenset({"unpacked", "persistent"})
    sees = PackedView

    def has(self, kernel: TileKernel, target: Target) -> bool:
        if not all(map(packed_sums, kernel.launched)):
            return False
        view = PackedView.of(kernel)
        if len({_chosen_rows(one) for one in kernel.launched}) > 1:
            return False  # some have rows that memory chooses, and others none, or others
        most = 1 if kernel.grouped else MOST_VECTORS
        return bool(rows_of(kernel, view.packed[0])) and vectors_of(view) <= most and bool(view.widths)

    def preference(self, view: PackedView, target: Target) -> int:
        return 3 if all(reads_words(one, view.slots) for one in view.kernel.launched) else 0

    def axes(self, view: PackedView) -> tuple[Axes, ...]:
        rows = rows_of(view.kernel, view.packed[0])
        others = vectors_along(view.kernel, view.packed[0])
        return ((rows, others),) if others else ((rows,),)

    def start(self, view: PackedView, target: Target, axes: Axes) -> TileParameters:
        vectors = tuple(power_of_two(count_of(view.kernel, numbers)) for numbers in axes[1:])
        rows = power_of_two(count_of(view.kernel, axes[0]))
        most = max(1, FIRST_ROWS // math.prod(vectors))
        every = math.prod(view.kernel.extents) // math.prod(count_of(view.kernel, numbers) for numbers in axes[1:])
        while rows > 1 and (rows > most or every < rows * target.cores * FIRST_PROGRAMS):
            rows //= 2
        first = TileParameters(
            PACKED, axes, (rows, *vectors), reduce_tile=device_of(target).warp, num_warps=1, num_stages=1,
            unpacked=view.widths[0],
        )  # fmt: skip
        if may_be_by_fours(view, first) and (by_fours := self._start_by_fours(view, target, first)) is not None:
            return min(by_fours, first, key=lambda p: seconds(self.planned(view, target, p), target))
        if not view.has_lookups or rows * SHARING_WARPS > power_of_two(count_of(view.kernel, axes[0])):
            return first
        sharing = first.changed(tile=(rows * SHARING_WARPS, *vectors), num_warps=SHARING_WARPS)
        return sharing if self.planned(view, target, sharing).tables else first

    def _start_by_fours(self, view: PackedView, target: Target, first: TileParameters) -> TileParameters | None:
        """A program whose sums by four bits come from tables, where there are rows enough for all multiprocessors."""
        rows = sum(math.prod(one.extents) for one in view.kernel.launched)
        tiles = powers(LEAST_ROWS, MOST_ROWS_BY_FOURS, MOST_ROWS_BY_FOURS)[::-1]
        for split, width, tile in itertools.product(SPLITS if view.may_split else (1,), view.widths, tiles):
            found = first.changed(tile=(tile,), num_warps=FOURS_WARPS, split=split, unpacked=width)
            plan = self.planned(view, target, found)
            if plan.by_fours and rows * split >= FIRST_TILES * tile * target.cores and fits(plan, device_of(target)):
                many = rows >= FIRST_ROUNDS * LEAST_ROWS * FIRST_PERSISTENT * target.cores
                if many and may_be_in_turn(view, found):
                    in_turn = found.changed(tile=(LEAST_ROWS,), persistent=FIRST_PERSISTENT)
                    plan = self.planned(view, target, in_turn)
                    if plan.by_fours and fits(plan, device_of(target)):
                        return in_turn
                return found
        return None

    def values(self, view: PackedView, target: Target, p: TileParameters, field: str) -> tuple[Any, ...]:
        match field:
            case "unpacked":
                return view.widths
            case "split":
                return SPLITS if view.may_split else (1,)
            case "persistent":
                return PERSISTENT if may_be_in_turn(view, p) else (0,)
            case "evict_first":
                return streamed(view.kernel, target, p, always=True)
        return super().values(view, target, p, field)

    def tiles(self, view: PackedView, p: TileParameters) -> Iterable[tuple[int, ...]]:
        vectors = tuple(power_of_two(count_of(view.kernel, numbers)) for numbers in p.axes[1:])
        most = MOST_ROWS * (SHARING_WARPS if view.has_lookups else 1)
        most = MOST_ROWS_BY_FOURS if may_be_by_fours(view, p) else most
        return [(rows, *vectors) for rows in powers(1, most, count_of(view.kernel, p.axes[0]))]

    def steps(self, view: PackedView) -> tuple[int, ...]:
        places = max(math.prod(map(extent, one.unpacked(view.widths[-1]).ranges)) for one in view.packed)
        return tuple(powers(LEAST_STEP, MOST_STEP, places))

    def warps(self, device: Device) -> tuple[int, ...]:
        return warps_of(device, (1, 2, 4, 8))

    def may_split(self, view: PackedView) -> bool:
        return view.may_split

    def check(self, view: PackedView, p: TileParameters) -> None:
        if p.unpacked not in view.widths:
            raise UnsupportedTile("unpacked", f"one of {view.widths}")
        if p.axes != self.axes(view)[0]:
            raise UnsupportedTile("axes", "rows of words, and vectors")
        if p.persistent and not may_be_in_turn(view, p):
            raise UnsupportedTile("persistent", "one product whose sums by four bits come from tables")

    def planned(self, view: PackedView, target: Target, p: TileParameters) -> PackedPlan:
        tiled = tiled_of(view.kernel, p)
        taken = tuple(one.unpacked(p.unpacked) for one in view.packed)
        places = max(math.prod(map(extent, one.ranges)) for one in taken)
        tiles = p.split * sum(one.tiles for one in tiled)
        return PackedPlan.of(
            self.decided(target, p, tiled[0].axes, Loop("parts of a row", places, p.reduce_tile, p.split)),
            view=view, programs=min(tiles, p.persistent * target.cores) if p.persistent else tiles, tiles=tiles,
            tiled=tiled, taken=taken,
            partials=p.split * partials_of(view.kernel) if p.split > 1 else 0,
        )  # fmt: skip

    def write(self, plan: PackedPlan, writer: Writer) -> Lines:
        words = (*("rows", "vectors")[: len(plan.tile)], "places")

        def opened(tiled: Tiled, lines: Lines | None) -> Frame:
            frame = open_frame(tiled.kernel, writer, (*plan.block, plan.step), lines, words)
            if not writer.interpreted:
                frame.layout = LAYOUT
                layout = _layout(plan, frozenset(range(len(plan.tile))))
                writer.helpers[LAYOUT] = f"{LAYOUT} = gl.constexpr({layout})\n"
            return frame

        return write_launch(plan.tiled, writer, opened, lambda *tile: _write_tile(plan, *tile))

    def write_second(self, plan: PackedPlan, writer: Writer) -> tuple[Lines, int]:
        if writer.interpreted:
            return write_sums(plan.view.kernel, plan.split, writer)
        warp = plan.threads // plan.num_warps
        writer.helpers[SUM_LAYOUT] = (
            f"{SUM_LAYOUT} = gl.constexpr(gl.BlockedLayout([1], [{warp}], [{SUM_WARPS}], [0]))\n"
        )
        return write_sums(plan.view.kernel, plan.split, writer, SUM_LAYOUT)


def may_be_by_fours(view: PackedView, p: TileParameters) -> bool:
    """Whether sums by four bits may come from tables: those of one vector."""
    return len(p.axes) == 1 and bool(view.bit_sums(p.unpacked))


def may_be_in_turn(view: PackedView, p: TileParameters) -> bool:
    """Whether programs by such tables may take tiles in turn: those of one product, all of whose outputs are rows."""
    one = len(view.kernel.launched) == 1 and p.split == 1 and len(view.kernel.outputs) == len(p.axes[0])
    return one and may_be_by_fours(view, p)


def reads_words(kernel: TileKernel, slots: frozenset[int]) -> bool:
    """Whether words are most of what each row reads: not where they are masks of floats."""
    rows = {kernel.outputs[number] for number in rows_of(kernel, packed_sums(kernel)[0])}
    read = {
        load.buffer: load.buffer.size * int(load.buffer.dtype.itemsize)
        for load in kernel.loads
        if load.buffer.slot in slots or (load.steps is not None and rows & set(load.steps))
    }
    return 2 * sum(read[buffer] for buffer in read if buffer.slot in slots) >= sum(read.values())


def vectors_of(view: PackedView) -> int:
    """How many vectors each row is multiplied with: the most of any kernel of a launch."""
    return max(count_of(one, vectors_along(one, packed_sums(one)[0])) for one in view.kernel.launched)


def _chosen_rows(kernel: TileKernel) -> tuple[tuple[int, int], ...]:
    """The output ranges that number chosen rows, as experts: their numbers and how many there are."""
    apart = packed_sums(kernel)[0].apart
    return tuple((number, extent(axis)) for number, axis in enumerate(kernel.outputs) if axis in apart)


def vectors_along(kernel: TileKernel, packed: Packed) -> tuple[int, ...]:
    """The output ranges that number vectors. What numbers neither these nor rows, as experts, is a program each."""
    rows = rows_of(kernel, packed)
    others = (number for number, axis in enumerate(kernel.outputs) if axis not in packed.apart)
    return tuple(number for number in others if number not in rows)


# ---- the plan


@dataclass(frozen=True, kw_only=True)
class PackedPlan(TilePlan):
    """Tiles of rows and vectors of a kernel, or of rows of each kernel of a launch; threads go through a row together.
    Of several sums of a row one comes after the other."""

    view: PackedView
    tiled: tuple[Tiled, ...]  # of each kernel of the launch
    taken: tuple[Unpacked, ...]  # what a thread takes at once, of each sum of the view

    @property
    def along(self) -> int:
        """Warps that have rows of their own. All go through a row together, but where they share tables: there each
        has as many rows as one alone has best, and no sum is of several."""
        return min(self.num_warps, self.tile[0]) if self.tables or self.by_fours else 1

    @property
    def exchanges_by_hand(self) -> bool:
        return self.by_fours

    @property
    def by_fours(self) -> bool:
        """Whether sums by four bits come from tables, which the program makes before it goes through its rows."""
        return self.passes > 0

    @cached_property
    def passes(self) -> int:
        """How often a program goes through its rows, each time with tables for a part of the terms; 0: there are none
        that fit, or rows too few to pay for them."""
        if not self.ptx or len(self.tile) > 1 or self.tile[0] < LEAST_ROWS or not self.view.bit_sums(self.unpacked):
            return 0
        if len({self.steps_of(one) for one in self.taken}) > 1 or self.axes[0].is_symbolic:
            return 0
        steps = self.steps_of(self.taken[0])
        counts = sorted({-(-steps // most) for most in powers(1, steps, steps)} & {*range(MOST_PASSES + 1)})
        return next((count for count in counts if self._bit_bytes(count) <= MOST_SHARED), 0)

    def _bit_bytes(self, passes: int) -> int:
        """Shared memory of tables, and of sums that are kept between passes."""
        found, kept = self.view.bit_sums(self.unpacked), ENTRY_BYTES * self.kept_rows if passes > 1 else 0
        texts = alike(self.tiled) if len(self.tiled) > 1 else [self.tiled]
        return sum(
            bytes_of_tables(found[one.reduce], self._places_of(one.unpacked(self.unpacked), passes)) + kept
            for first, *_ in texts
            for one in packed_sums(first.kernel)
        )

    @property
    def kept_rows(self) -> int:
        """Rows of a program, in all tiles that it takes."""
        return self.area * -(-self.tiles // self.programs) if self.persistent else self.area

    def steps_of(self, unpacked: Unpacked) -> int:
        """Steps of a program of what is gone through."""
        return -(-math.prod(map(extent, unpacked.ranges)) // (self.step * self.split))

    def _places_of(self, unpacked: Unpacked, passes: int) -> int:
        """Places that tables of one of some passes are for: as blocks have them."""
        return power_of_two(-(-self.steps_of(unpacked) // passes)) * self.step

    def pass_of(self, unpacked: Unpacked, start: str, number: int, passes: int) -> Pass:
        """One of some passes of a program whose part of a row begins at a place, as text."""
        steps, places = self.steps_of(unpacked), self._places_of(unpacked, passes)
        most = -(-steps // passes)
        first, before = number * most * self.step, (self.split - 1) * steps * self.step
        text = f"{start} + {first}" if start != "0" and first else start if not first else str(first)
        is_ragged = before + first + places > math.prod(map(extent, unpacked.ranges))
        return Pass(text, min(most, steps - number * most), places, is_ragged)

    @property
    def turns(self) -> int:
        """In which a program goes through its rows."""
        return max(1, self.tile[0] // (self.along * ROWS_TOGETHER)) if self.by_fours else 1

    @property
    def block(self) -> tuple[int, ...]:
        """Rows of a turn, and vectors."""
        rows, *vectors = self.tile
        return rows // self.turns, *vectors

    @property
    def rows_of_warp(self) -> int:
        """Those of a turn, of a warp with rows of its own."""
        return self.block[0] // self.along

    @property
    def sums_over_lanes(self) -> bool:
        """Whether each lane of a warp has one place, and the warp all of its rows."""
        return self.by_fours and self.step == LANES and self.num_warps == self.along

    @property
    def held(self) -> int:
        """Sums of a thread."""
        return math.prod(self.block) // self.along * max(1, self.step // (self.threads // self.along))

    def needs(self, device: Device) -> Iterator[Need]:
        steps = self.loop.steps
        if self.split > 1:
            yield Need("steps of each part", self.split, steps if self.by_fours else steps // 2)
            yield Need("partial sums", self.partials, MOST_PARTIALS)
            yield Need("parts that differ where a sum is made again", self._parts_that_differ, 0)
        if self.persistent:
            yield Need("tables of sums", 1, self.passes)
            yield Need("tiles", self.programs + 1, self.tiles)
        yield Need("threads with a part of a row each", self.threads // self.along, self.step)
        yield Need("parts of a row", self.step, max(LEAST_STEP, power_of_two(self.loop.extent)))
        yield Need("sums of a thread", self.held, MOST_HELD)
        yield Need("words of a thread", self.words, MOST_WORDS)
        yield Need("shared memory", self.shared_bytes, device.shared_bytes)

    @property
    def _parts_that_differ(self) -> int:
        """Sums of which a program has another part than that which it would make again, if it is not finite."""
        again = [packed.unpacked(self.view.widths[-1]) for packed in self.view.packed]
        pairs = [(one, other) for one, other in zip(self.taken, again, strict=True) if one.is_apart]
        return sum(self.steps_of(one) * one.width != self.steps_of(other) * other.width for one, other in pairs)

    @property
    def words(self) -> int:
        """Registers of a thread for what it takes of rows and vectors at once, about: words come with others that stand
        around them."""
        rows, *vectors = self.block
        of_row = 2 * (self.taken[0].width // WORD_BYTES + 1)
        written = 0 if self.by_fours else max(one.written for one in self.taken)
        parts = max(1, self.step // (self.threads // self.along))
        return parts * (rows // self.along * of_row + written * math.prod(vectors))

    @property
    def tables(self) -> dict[int, int]:
        """Tables that a program copies to shared memory before it goes through its rows, by their buffers; entries of
        each. None where it has too few terms to pay for that."""
        found = self.view.tables_of(self.unpacked) if self.ptx else {}
        if not found:
            return found
        terms = self.area * self.loop.extent * self.taken[0].written / self.split
        copies = self._copies(found)
        is_worth = all(PAYS * sum(one.padded for one in each) <= terms for each in copies)
        is_worth &= all(one.turns <= MOST_TURNS for each in copies for one in each)
        return found if is_worth and sum(one.nbytes for each in copies for one in each) <= MOST_SHARED else {}

    def _copies(self, tables: Mapping[int, int]) -> list[list[Copy]]:
        """How these come to shared memory, of each text of the launch: it has memory of its own."""
        found = []
        for first, *_ in alike(self.tiled) if len(self.tiled) > 1 and tables else [self.tiled]:
            read = {load.buffer.slot for load in first.kernel.loads}
            found.append([Copy.of(entries, self.threads) for slot, entries in tables.items() if slot in read])
        return found

    @property
    def shared(self) -> tuple[Shared, ...]:
        if self.by_fours:
            return (Shared("sums by four bits", self._bit_bytes(self.passes)),)
        return tuple(Shared("table", one.nbytes) for each in self._copies(self.tables) for one in each)

    def width(self, access: Access) -> int:
        """Of words those that are loaded together."""
        slot = access.buffer.slot
        if slot not in self.view.slots:
            return super().width(access)
        widest = [WORD_BYTES for taken in self.taken for own, *_ in taken.anywhere if own == slot]
        for taken in self.taken:
            for (own, steps, nbytes), numbers in taken.aligned.items():
                if own == slot:
                    widest += [nbytes * count for _, count in together(numbers, most_together(steps, nbytes))]
        return max(widest, default=super().width(access))

    def registers(self, device: Device) -> Registers:
        held = self.held + self.words
        return Registers(held, 2 * held, device.threads_at_once)

    def times(self, target: Target, figures: Figures) -> Times:
        """A stream of bytes, beside what is computed of each number."""
        launched = self.view.kernel.launched
        nbytes = sum(bytes_of(access) for kernel in launched for access in (*kernel.loads, kernel.store))
        terms, written = 0, self.taken[0].written
        for kernel in launched:
            for packed in packed_sums(kernel):
                taken = packed.unpacked(self.unpacked)
                terms += math.prod(kernel.extents) * math.prod(map(extent, taken.ranges)) * taken.written
        busy = min(self.programs, target.cores)
        resident = device_of(target).resident(
            threads=self.threads,
            registers=32 + self.registers(device_of(target)).held,
            shared_bytes=self.shared_bytes,
        )
        waves = waves_of(self.programs / (target.cores * resident))
        at_once = min(resident, max(1.0, self.programs / target.cores))
        flying = at_once * self.threads * (self.block[0] // self.along) * max(1, written // 2)
        stream_s = either(nbytes / figures.memory_bytes, nbytes / (flying / figures.loaded_s * busy))
        loops = self.kept_rows / self.area * self.turns * self.loop.steps / self.split
        chain_s = waves * (figures.opening_s / 2 + loops * figures.flight_s / at_once)
        copied = max(self._copies(self.tables), key=lambda each: sum(one.padded for one in each))
        chain_s += waves * figures.flight_s * sum(one.turns for one in copied)
        operations: float = OPERATIONS * terms + COPYING * self.programs * sum(one.padded for one in copied)
        if self.by_fours:
            entries = self.passes * self._bit_bytes(self.passes) / ENTRY_BYTES
            operations = OPERATIONS_BY_FOURS * terms + MAKING * self.programs * entries
        return Times((stream_s, operations / (figures.plain_ops * busy)), after_s=chain_s)


def _layout(plan: PackedPlan, axes: frozenset[int], neighbours: int = 0) -> str:
    """Where blocks along some axes lie: a thread has all rows of its warp and all vectors of some places; of what it
    loads at once also so many neighbours."""
    rows, *vectors = plan.block
    sizes = [size if axis in axes else 1 for axis, size in enumerate((rows // plan.along, *vectors))]
    ones, more = [1] * len(vectors), [neighbours] if neighbours else []
    warp = [plan.threads // plan.num_warps, *([1] if neighbours else [])]
    warps = [plan.num_warps // plan.along, *([1] if neighbours else [])]
    order = list(reversed(range(len(sizes) + 1 + len(more))))
    return f"gl.BlockedLayout({[*sizes, 1, *more]}, {[1, *ones, *warp]}, {[plan.along, *ones, *warps]}, {order})"


# ---- the sum


def _write_tile(plan: PackedPlan, tiled: Tiled, root: Frame, number: str) -> None:
    """Writes what the program with a number does, of the tiles of one kernel."""
    part, *digits = split_number(root, number, [plan.split, *tiled.places, *tiled.counts])
    own = Part(part, plan.split)
    if plan.by_fours:
        _write_turns(plan, tiled, root, own, digits)
        return
    bind_tile(root, tiled, digits)
    tables = copy_tables(plan.tables, tiled.kernel, root, plan.threads)
    root.reduce = lambda node, frame: _write_sum(plan, node, frame.home(node), own, tables)
    _store(plan, tiled.kernel, root, own)


def _store(plan: PackedPlan, kernel: TileKernel, frame: Frame, part: Part) -> None:
    """Stores what is made of the sums, or these where a second launch adds them."""
    if plan.split > 1:
        store_partials(frame, kernel, part)
    else:
        for stored in kernel.stored:
            store_tile(frame, stored)


def _write_turns(plan: PackedPlan, tiled: Tiled, root: Frame, part: Part, digits: list[str]) -> None:
    """Writes tables of sums and the turns in which a program goes through its rows, as often as it has tables."""
    *rest, digit = digits
    for of_rest, place in zip(tiled.rest, rest, strict=True):
        bind_scalar(root, of_rest, place)
    sums = packed_sums(tiled.kernel)
    passes = plan.passes if root.writer.ptx else 1
    memory = {one.reduce: _memory(plan, one, root, passes) for one in sums} if root.writer.ptx else {}
    for number in range(passes):
        tables = {}
        if number:  # all have read those before
            waited(root, next(iter(memory.values()))[0])
        for one in sums:
            taken, (address, kept) = one.unpacked(plan.unpacked), memory.get(one.reduce, ("", ""))
            of = plan.pass_of(taken, _first_place(plan, taken, root, part), number, passes)
            of = replace(of, first=of.first if of.first.isalnum() else root.lines.name(of.first, "start"))
            made = make_bit_tables(
                plan.view.bit_sums(plan.unpacked)[one.reduce], taken.ranges, of, root, plan.num_warps, address
            )
            tables[one.reduce] = replace(made, kept=kept, is_first=number == 0, is_last=number == passes - 1)
        if root.writer.ptx:
            tables = {node: replace(one, address=waited(root, one.address)) for node, one in tables.items()}
        _write_pass(plan, tiled, root, part, digit, tables)


def _memory(plan: PackedPlan, packed: Packed, root: Frame, passes: int) -> tuple[str, str]:
    """The addresses of a sum's tables, and of what is kept between passes."""
    sums, taken = plan.view.bit_sums(plan.unpacked)[packed.reduce], packed.unpacked(plan.unpacked)
    tables = allocated_for_tables(root, bytes_of_tables(sums, plan.pass_of(taken, "0", 0, passes).places))
    return tables, allocated(root, ENTRY_BYTES * plan.kept_rows) if passes > 1 else ""


def _write_pass(
    plan: PackedPlan, tiled: Tiled, root: Frame, part: Part, digit: str, tables: Mapping[UOp, BitTables]
) -> None:
    """Writes the turns in which a program goes through its rows: those of a tile by its number, or of that and others
    as far from each other as there are programs."""
    (axis,), (rows,) = tiled.axes, plan.block
    tile, lines, of_tile = digit, root.lines, root
    if plan.persistent:
        tile, lines = root.writer.fresh("tile"), Lines(root.writer, root.lines)
        of_tile = root.inner(lines)
    start = start_of(of_tile, tile, axis)
    body = Lines(root.writer, lines)
    frame, turn = of_tile.inner(body), root.writer.fresh("turn")
    bind_axis(frame, replace(axis, size=rows), 0, turn)
    own = frame.flattened[0].block.text
    own = own if start == "0" else body.name(f"{own} - {start}", "rows")
    if plan.persistent:
        own = body.name(f"{own} + ({tile} - {digit}) // {plan.programs} * {axis.size}", "rows")
    frame.reduce = lambda node, inner: _write_sum(plan, node, inner.home(node), part, tables[node], own)
    if all(one.is_last for one in tables.values()):
        _store(plan, tiled.kernel, frame, part)
    else:
        for node, one in tables.items():
            keep(frame, one.kept, own, frame.value(node))
    end = str(axis.size) if start == "0" else lines.name(f"{start} + {axis.size}", "end")
    if axis.total % axis.size:
        end = lines.name(f"tl.minimum({end}, {axis.total})", "end")
    lines.extend(f"for {turn} in range({start}, {end}, {rows}):", body, f"{rows} rows at a time")
    if plan.persistent:
        root.lines.extend(f"for {tile} in range({digit}, {axis.tiles}, {plan.programs}):", lines)


def _first_place(plan: PackedPlan, unpacked: Unpacked, frame: Frame, part: Part) -> str:
    """Where a program's part of a row begins."""
    steps = plan.steps_of(unpacked)
    return frame.lines.name(f"{part.number} * {steps * plan.step}", "start") if part.count > 1 else "0"


def _write_sum(
    plan: PackedPlan, node: UOp, frame: Frame, part: Part, tables: Tables | BitTables, rows: str = ""
) -> None:
    """Binds a kernel's sum. Where sums of its terms were taken apart and it is no finite number, it is made again as it
    stands: of infinite vectors both parts may be infinite, or one none. So it is where a table's entries are no
    float16, with the table as it is."""
    number, packed = len(plan.tile), next(one for one in plan.view.packed if one.reduce is node)
    taken, root = packed.unpacked(plan.unpacked), frame.outermost()
    is_there = _look_up(packed, root)
    made = _summed(plan, taken, frame, part, taken.groups, tables)
    if number not in made.axes:
        raise UnsupportedTile("form", "a sum of what no thread has a part of")
    inexact: tuple[str, ...] = ()
    sums: Block | None = None
    if not isinstance(tables, BitTables):
        inexact = tables.inexact
    elif plan.sums_over_lanes and not taken.is_apart:
        sums = over_lanes(frame, made, plan.rows_of_warp)
    axes, total = made.axes - {number}, frame.writer.fresh("total")
    if sums is not None:
        axes = sums.axes
        frame.lines.add(f"{total} = {sums.text}")
    else:
        frame.lines.add(f"{total} = tl.sum({made.text}, {number}, keep_dims=True)")
    if isinstance(tables, BitTables):
        if not tables.is_first:
            frame.lines.add(f"{total} = {total} + {kept_sums(frame, tables.kept, rows)}")
        if not tables.is_last:
            frame.bound[node] = frame.values[node] = Block(total, "float32", axes)
            return
    if taken.is_apart or inexact:
        again = ""
        if taken.is_apart:
            again = f"tl.where({total} - {total} == 0, 0, 1)"
            for _ in range(frame.rank):
                again = f"tl.max({again}, 0)"
        for wrong in inexact:
            found = f"tl.max({wrong}, 0)"
            again = f"tl.maximum({again}, {found})" if again else found
        about = "not finite: without taking sums apart" if taken.is_apart else "as the tables are"
        body = Lines(frame.writer, frame.lines)
        inner = replace(frame, lines=body, outer=frame, bound={}, values={})
        least = packed.unpacked(plan.view.widths[-1])  # which takes few registers
        whole = _summed(plan, least, inner, part, least.whole_groups, NO_TABLES)
        body.add(f"{total} = tl.sum({whole.text}, {number}, keep_dims=True)")
        frame.lines.extend(f"if {frame.lines.name(again, 'again')} > 0:", body, about)
    if is_there:  # where a weight is 0 a vector that is not finite gives none, either
        frame.lines.add(f"{total} = {total} * tl.where({is_there}, 1.0, 0.0)")
    frame.bound[node] = frame.values[node] = frame.cast(Block(total, "float32", axes), compute_type(node))


def _look_up(packed: Packed, root: Frame) -> str:
    """Binds what memory says of where rows are. Returns the condition under which there are any; empty where that is
    always so."""
    gates = [root.atom(block) for gate in packed.gates if not (block := root.value(gate)).constant]
    is_there = root.all_of(gates) if gates else ""
    for axis, value in packed.looked_up:
        block = root.value(value)
        text = root.lines.name(f"tl.where({is_there}, {block.text}, 0)", "place") if is_there else block.text
        root.bound[axis] = replace(block, text=text)
    return is_there


def _summed(
    plan: PackedPlan,
    unpacked: Unpacked,
    frame: Frame,
    part: Part,
    groups: tuple[Group, ...],
    tables: Tables | BitTables,
) -> Block:
    """What threads make of a row: in a loop over parts of it, if there is more than one step."""
    axis, number = Axis(unpacked.ranges, plan.step), len(plan.tile)
    start, steps = "0", plan.steps_of(unpacked)
    if isinstance(tables, BitTables):
        start, steps = tables.of.first, tables.of.steps

    def made(inside: Frame) -> Block:
        if not isinstance(tables, BitTables):
            return _existing(_Sum(plan, unpacked, inside, tables).write(groups), inside, number)
        places = _among(tables, inside, number)
        return _existing(_Sum(plan, unpacked, inside, NO_TABLES).write_by_fours(tables, places), inside, number)

    if (axis.tiles == 1 and part.count == 1) or (steps == 1 and isinstance(tables, BitTables)):
        inside = frame.inner(frame.lines)
        bind_axis(inside, axis, number, start, ragged=isinstance(tables, BitTables) and tables.of.ragged)
        return made(inside)
    body = Lines(frame.writer, frame.lines)
    inside = frame.inner(body)
    counter, acc = frame.writer.fresh("k"), frame.writer.fresh("acc")
    bind_axis(inside, axis, number, counter)
    total = made(inside)
    layout = f", {frame.layout}" if frame.layout else ""
    frame.lines.add(f"{acc} = tl.zeros({frame.shape(total.axes)}, tl.float32{layout})")
    body.add(f"{acc} = {acc} + {total.text}")
    end = str(axis.total)
    if part.count > 1 and not isinstance(tables, BitTables):
        start = _first_place(plan, unpacked, frame, part)
    if part.count > 1 or isinstance(tables, BitTables):
        end = frame.lines.name(f"tl.minimum({start} + {steps * plan.step}, {axis.total})", "end")
    about = f"{unpacked.written} terms of each of {plan.step} parts of a row at a time"
    frame.lines.extend(f"for {counter} in range({start}, {end}, {plan.step}):", body, about)
    return Block(acc, "float32", total.axes)


def _among(tables: BitTables, frame: Frame, number: int) -> Block:
    """The numbers of a step's places among those of tables."""
    axes, first = frozenset({number}), tables.of.first
    if tables.of.steps > 1:
        places = frame.flattened[number].block
        return places if first == "0" else frame.new(f"{places.text} - {first}", "int32", axes)
    root = frame.outermost()
    vector = root.lines.name(root.elements(root.sizes[number], number), root.word(number))
    return Block(root.lines.name(root.along(vector, number), root.word(number)), "int32", axes)


def _existing(made: Block, frame: Frame, number: int) -> Block:
    """What threads come to, of which those without a part of the row have none: what they loaded is 0, but a term of it
    may be another number, or none."""
    if (mask := frame.masks.get(number)) is None:
        return made
    return frame.new(f"tl.where({mask}, {made.text}, 0.0)", "float32", made.axes | {number})


@dataclass(frozen=True)
class _Pair:
    """An entry of a table in a word of two, and the other one."""

    word: Block
    half: int
    other: UOp | None


class _Sum(ByFours):
    """What a thread makes of the words of one step, written into a frame."""

    def __init__(self, plan: PackedPlan, unpacked: Unpacked, frame: Frame, tables: Tables) -> None:
        super().__init__(unpacked, frame, {one.access.buffer.slot: one.eviction for one in plan.loads if one.eviction})
        self.plan, self.tables = plan, tables
        self.pairs: dict[UOp, _Pair] = {}  # entries of tables that are copied
        self.signs: dict[UOp, Field] = {}  # of such entries, by what their signs are turned round

    def write(self, groups: tuple[Group, ...]) -> Block:
        """The sum of all terms."""
        self._load_words()
        self._load_others()
        for term in (term for group in groups for term in group.terms):
            self._see_sign(term)
        total: Block | None = None
        for group in groups:
            inner = self._of_terms(group.terms)
            for scale in group.scales:
                inner = self._times(inner, self._float(scale))
            total = inner if total is None else self._plus(total, inner)
        assert total is not None
        return total

    def write_by_fours(self, tables: BitTables, places: Block) -> Block:
        """The same by tables, where the step has places with these numbers among those of the tables."""
        rest = [node for sums in tables.sums.groups for term in sums.rest for node in (*term.inner, *term.others)]
        self._load_words()
        self._load_others(
            {load.node for load in loads_of(*rest, *(s for sums in tables.sums.groups for s in sums.scales))}
        )
        first, total = self._first_entries(tables, places), None
        for sums in tables.sums.groups:
            parts = [self._four(tables, first, four, number) for four, number in sums.fours]
            parts += [self._of_terms(sums.rest)] if sums.rest else []
            inner = reduce(self._plus, parts)
            for scale in sums.scales:
                inner = self._times(inner, self._float(scale))
            total = inner if total is None else self._plus(total, inner)
        assert total is not None
        return total

    # ---- loads

    def _load_others(self, asked: Container[UOp] | None = None) -> None:
        """All that is read in each step and is no word, or what is asked for of it; neighbours together. What is the
        same for all steps is read by whoever asks for it, before the loop."""
        groups: dict[tuple[int, UOp], list[tuple[int, UOp, Access]]] = {}
        for node, load in self.unpacked.loads.items():
            if asked is not None and node not in asked:
                continue
            if self.frame.home(node) is not self.frame:
                self.frame.writer.accesses.setdefault(node, load)
                continue
            if node in self.unpacked.bits:
                continue
            if load.gates:
                raise UnsupportedTile("packed", "a load under a condition")
            if self._is_held(load):
                self.frame.bound[node] = self.frame.values[node] = self._looked_up(load)
                continue
            constant, rest = without_constant(load.address)
            groups.setdefault((load.buffer.slot, rest), []).append((constant, node, load))
        for (slot, rest), members in groups.items():
            (_, _, load), *_ = members
            if slot in self.tables.places and len(members) > 1 and is_lookup(load):
                self._look_up(slot, rest, {constant: node for constant, node, _ in members})
                continue
            self._load_together(load.buffer, rest, {constant: node for constant, node, _ in members})

    def _look_up(self, slot: int, rest: UOp, nodes: dict[int, UOp]) -> None:
        """Takes neighbouring entries of a table that was copied, two to a word; each becomes a number where it is
        asked for."""
        place, table = self._place(rest), self.tables.places[slot]
        most = math.gcd(ENTRIES[0], int(rest.const_factor()))
        for first, count in together(nodes, most, ENTRIES):
            for number, word in enumerate(self._entries(table, place, first, count)):
                for half in range(min(2, count)):
                    own = nodes[first + 2 * number + half]
                    other = nodes[first + 2 * number + 1 - half] if count > 1 else None
                    self.pairs[own] = _Pair(Block(word, "uint32", place.axes), half, other)
                    self.frame.late[own] = partial(self._bind_entry, own)

    def _place(self, rest: UOp) -> Block:
        """Where an entry begins, in bytes: by the bits of words where these are side by side in it."""
        frame, linear = self.frame, self.unpacked.linear(rest)
        fields = sorted(linear.terms, key=lambda term: term[1]) if linear is not None and not linear.constant else []
        end, text, axes = 0, "", frozenset[int]()
        for field, factor in fields:
            low = (factor * HALF_BYTES).bit_length() - 1
            if factor < 1 or not is_power_of_two(factor) or low < end or low + field.width > SIGN_BIT:
                break
            word = self._shifted(self._as_32(field.word), low - field.shift)
            alone = frame.lines.name(f"{word} & {field.most << low}", "bits") if not text else ""
            text = self._beside(text, field, low) if text else alone
            end, axes = low + field.width, axes | self.words[field.word].axes
        else:
            if text:
                return frame.cast(Block(text, "uint32", axes), "int32")
        self._bind(rest)
        place = frame.value(rest)
        return frame.new(f"{place.text} * {HALF_BYTES}", place.type, place.axes)

    def _entries(self, table: str, place: Block, first: int, count: int) -> list[str]:
        """Words of two entries each, from a place and so many on."""
        frame, halves = self.frame, max(1, count // 2)
        if not frame.writer.ptx:
            frame.writer.helpers["_two_halves"] = _PLAIN_HALVES
            text = frame.lines.name(f"{table} + {place.text} // {HALF_BYTES}", "at")
            return [frame.lines.name(f"_two_halves({text} + {first + 2 * n}, {min(2, count)})") for n in range(halves)]
        name, words = f"_entries_{count}_at_{first}", [frame.writer.fresh("halves") for _ in range(halves)]
        frame.writer.helpers[name] = _entries_helper(name, first, count)
        frame.lines.add(f"{', '.join(words)} = {name}({table} + {place.text})")
        return words

    def _bind_entry(self, node: UOp) -> None:
        self.frame.bound[node] = self.frame.values[node] = self._float(node)

    def _is_held(self, load: Access) -> bool:
        """Whether what is loaded is a number's entry in a table that the lanes of a warp hold, one entry each."""
        small = load.buffer.size <= LANES and int(load.buffer.dtype.itemsize) <= WORD_BYTES
        return small and load.steps is None and self.frame.writer.ptx

    def _looked_up(self, load: Access) -> Block:
        """An entry of such a table: each lane gets it from the one that holds it."""
        root, number, count = self.root, len(self.plan.tile), power_of_two(load.buffer.size)
        lanes = root.along(root.lines.name(root.elements(self.plan.step, number), root.word(number)), number)
        place = f"{lanes} % {count}"
        if load.buffer.size < count:
            place = f"tl.minimum({place}, {load.buffer.size - 1})"
        place = root.lines.name(place, "lanes")
        name = root.buffer(load.buffer.slot)
        held = Block(root.lines.name(f"tl.load({name} + {place})", "entries"), TYPES[load.buffer.dtype])
        type_ = "float32" if dtypes.is_float(load.buffer.dtype) else "int32"
        held = root.cast(replace(held, axes=frozenset({number})), type_)
        index = self._entry(load.address, count)
        helper = f"_entry_of_{count}_{type_}"
        register, clamp = "f" if type_ == "float32" else "r", (LANES - count) << 8 | (LANES - 1)
        self.frame.writer.helpers[helper] = _ENTRY.format(name=helper, clamp=clamp, register=register, type=type_)
        made = self.frame.new(f"{helper}({held.text}, {index.text})", type_, index.axes | {number}, "entry")
        return self.frame.cast(made, compute_type(load.node))

    def _entry(self, address: UOp, count: int) -> Block:
        """The number of an entry, of which the lowest bits count."""
        linear = self.unpacked.linear(address)
        if linear is not None and linear.constant == 0 and len(linear.terms) == 1:
            ((field, times),) = linear.terms
            if times == 1 and 1 << field.width == count:
                word = self.words[field.word]
                return self.frame.new(f"{word.text} >> {field.shift}", word.type, word.axes) if field.shift else word
        self._bind(address)
        return self.frame.value(address)

    def _wide_layout(self, axes: frozenset[int], count: int) -> str:
        return _layout(self.plan, axes, count)

    # ---- values

    def _of_terms(self, terms: Iterable[Term]) -> Block:
        """The sum of some terms."""
        made = self._with_constants(tuple(terms))
        factors = {factor for _, factor, _ in made}
        common = factors.pop() if len(factors) == 1 else 1.0
        sums: dict[bool, Block] = {}  # of what is of rows, and of what is the same for all
        for inner, factor, others in made:
            product: Block | None = None
            for block in sorted((*inner, *map(self._float, others)), key=lambda one: len(one.axes)):
                product = block if product is None else self._times(product, block)
            if product is None:
                product = Block(repr(factor / common), "float32", constant=factor / common)
            elif factor != common:
                product = self.frame.new(f"{product.text} * {factor / common!r}", "float32", product.axes)
            of_rows = 0 in product.axes
            sums[of_rows] = self._plus(sums[of_rows], product) if of_rows in sums else product
        total, *more = sums.values()
        for one in more:
            total = self._plus(total, one)
        return total if common == 1 else self.frame.new(f"{total.text} * {common!r}", "float32", total.axes)

    def _with_constants(self, terms: tuple[Term, ...]) -> list[tuple[tuple[Block, ...], float, tuple[UOp, ...]]]:
        """Terms with their inner factors as blocks; what is added to a number times the same is added to the number."""
        added = {term.others: term.factor for term in terms if not term.inner and term.others}
        found: list[tuple[tuple[Block, ...], float, tuple[UOp, ...]]] = []
        merged = set()
        for term in terms:
            (first, *others) = term.inner or (None,)
            linear = self._linear(first) if first is not None and not others else None
            constant = added.get(term.others, 0.0) / term.factor if linear is not None else 0.0
            if constant and constant.is_integer() and abs(constant) < ONE and term.others not in merged:
                assert linear is not None
                merged.add(term.others)
                linear += Linear(int(constant))
            if linear is not None:
                found.append(((self._exactly(linear),), term.factor, term.others))
            elif term.inner:
                found.append(self._with_signs(term))
        rest = [((), term.factor, term.others) for term in terms if not term.inner and term.others not in merged]
        return [*found, *rest]

    def _with_signs(self, term: Term) -> tuple[tuple[Block, ...], float, tuple[UOp, ...]]:
        """A term with its inner factors as blocks. Those that are a sign turn another one round."""
        signs = {node: sign for node in term.inner if (sign := self._sign(node)) is not None}
        numbers = [node for node in term.inner if node not in signs]
        if not numbers:
            return tuple(map(self._float, term.inner)), term.factor, term.others
        factor = term.factor * math.prod(without for _, without in signs.values())
        fields = [field for field, _ in signs.values()]
        numbers.sort(key=lambda node: node not in self.pairs)
        first = self._turned_beside(numbers[0], fields)
        if first is None:
            first = self._float(numbers[0])
            for field in fields:
                first = self._turned(first, field)
        return (first, *map(self._float, numbers[1:])), factor, term.others

    def _see_sign(self, term: Term) -> None:
        """Keeps by which bit a term's entry of a table is turned round."""
        entries = [node for node in term.inner if node in self.pairs]
        signs = [sign for node in term.inner if node not in self.pairs and (sign := self._sign(node)) is not None]
        if len(entries) == 1 == len(signs):
            self.signs.setdefault(entries[0], signs[0][0])

    def _sign(self, node: UOp) -> tuple[Field, int] | None:
        """A factor that is 1 or -1 by a bit: the bit, and what it is where that is 0."""
        linear = self._linear(node)
        if linear is None or len(linear.terms) != 1 or abs(linear.constant) != 1:
            return None
        ((field, times),) = linear.terms
        return (field, linear.constant) if field.width == 1 and times == -2 * linear.constant else None

    def _turned_beside(self, node: UOp, fields: list[Field]) -> Block | None:
        """An entry of a table whose sign is turned round by a bit, beside the one in its word whose is by the next bit:
        both at once. None where that is not so."""
        pair = self.pairs.get(node)
        if pair is None or pair.other is None or fields != [self.signs.get(node)]:
            return None
        one, other = (self.signs.get(entry) for entry in (node, pair.other)[:: 1 - 2 * pair.half])
        if one is None or other is None or (other.word, other.shift) != (one.word, one.shift + 1):
            return None
        if (place := one.shift % HALF_BITS) == HALF_BITS - 1:
            return None
        lines, signs = self.frame.lines, self._as_32(one.word)
        if one.word.nbytes == WORD_BYTES:
            signs = lines.name(f"{signs} >> {HALF_BITS}" if one.shift >= HALF_BITS else f"{signs} & {HALF}", "signs")
        signs = lines.name(f"{signs} | (({signs} >> 1) << {HALF_BITS})", "signs")  # of each two bits one in each half
        signs = self._shifted(signs, HALF_BITS - 1 - place)
        axes = pair.word.axes | self.words[one.word].axes
        turned = self.frame.new(f"{pair.word.text} ^ ({signs} & {SIGNS_OF_HALVES})", "uint32", axes, "halves")
        return self._half(turned, pair.half)

    def _half(self, word: Block, half: int) -> Block:
        """One of two float16 in a word."""
        name = ("_low_half", "_high_half")[half]
        writer = self.frame.writer
        writer.helpers[name] = (_HALF if writer.ptx else _PLAIN_HALF).format(
            name=name, into=("{half, other}", "{other, half}")[half], shift=HALF_BITS * half
        )
        return self.frame.new(f"{name}({word.text})", "float32", word.axes, "entry")

    def _turned(self, number: Block, field: Field) -> Block:
        """A number, with its sign turned round where a bit is set: of infinite ones and of zeros too."""
        bits = self.frame.new(f"{number.text}.to(tl.uint32, bitcast=True)", "uint32", number.axes, "bits")
        sign = self._shifted(self._as_32(field.word), SIGN_BIT - field.shift)
        axes = number.axes | self.words[field.word].axes
        bits = self.frame.new(f"{bits.text} ^ ({sign} & {1 << SIGN_BIT})", "uint32", axes, "bits")
        return self.frame.new(f"{bits.text}.to(tl.float32, bitcast=True)", "float32", axes)

    def _float(self, node: UOp) -> Block:
        """A factor as float32."""
        if node not in self.known:
            self.known[node] = self._new_float(node)
        return self.known[node]

    def _new_float(self, node: UOp) -> Block:
        if (pair := self.pairs.get(node)) is not None:
            return self._half(pair.word, pair.half)
        if (linear := self._linear(node)) is not None:
            return self._exactly(linear)
        self._bind(node)
        return self.frame.cast(self.frame.value(node), "float32")


def _entries_helper(name: str, first: int, count: int) -> str:
    """A function that loads neighbours from a place in shared memory, two to a word. It is pure: nothing changes a
    table whose address is known."""
    words = max(1, count // 2)
    results = [f"${number}" for number in range(words)]
    into = results[0] if words == 1 else f"{{{', '.join(results)}}}"
    width = ".b32" if words == 1 else f".v{words}.b32"
    load = f"ld.shared{width} {into}, [${words} + {HALF_BYTES * first}];"
    if count == 1:
        load = f"{{ .reg .b16 low; ld.shared.b16 low, [$1 + {HALF_BYTES * first}]; cvt.u32.u16 $0, low; }}"
    types = "tl.uint32" if words == 1 else f"({', '.join(['tl.uint32'] * words)})"
    return f"""
@triton.jit
def {name}(place):
    asm: tl.constexpr = "{load}"
    return tl.inline_asm_elementwise(asm, "{"=r," * words}r", [place], dtype={types}, is_pure=True, pack=1)
"""


_HALF = """
@triton.jit
def {name}(word):
    asm: tl.constexpr = "{{ .reg .b16 half, other; mov.b32 {into}, $1; cvt.f32.f16 $0, half; }}"
    return tl.inline_asm_elementwise(asm, "=f,r", [word], dtype=tl.float32, is_pure=True, pack=1)
"""
_PLAIN_HALF = """
@triton.jit
def {name}(word):
    return ((word >> {shift}) & 65535).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
"""
"""One of two float16 in a word."""

_PLAIN_HALVES = """
@triton.jit
def _two_halves(table, count: tl.constexpr):
    low = tl.load(table).to(tl.float32).to(tl.float16).to(tl.uint16, bitcast=True).to(tl.uint32)
    if count == 1:
        return low
    high = tl.load(table + 1).to(tl.float32).to(tl.float16).to(tl.uint16, bitcast=True).to(tl.uint32)
    return low | (high << 16)
"""

_ENTRY = """
@triton.jit
def {name}(entries, index):
    asm: tl.constexpr = "shfl.sync.idx.b32 $0, $1, $2, {clamp}, 0xffffffff;"
    index = index.to(tl.int32)
    return tl.inline_asm_elementwise(asm, "={register},{register},r", [entries, index], tl.{type}, is_pure=True, pack=1)
"""
"""The entry with a number, of a table that neighbouring lanes hold. To load each takes a turn of the L1 cache, which
binds these products."""
