"""Row reductions: several kernels over the same rows, some rows a program, persistent in one block or looped over.

A tile has one axis for rows, or two where rows share tables: those that read the same ones come first, then those that
read others, then what lies along a row. Then a thread holds elements of one place of several heads, and a table's or a
weight's at that place once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.ast import affine, extent
from kcg.kernel.reading.accesses import Stored
from kcg.kernel.reading.kernel import Pairs, Rows, TileKernel
from kcg.kernel.reading.online import shifted_sums
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.device import Device, Figures, device_of
from kcg.kernel.tile.emit import Frame, Lines, Style, Writer
from kcg.kernel.tile.epilogue import bind_split, store_joined, store_tile
from kcg.kernel.tile.estimates import SPECIAL, bytes_of, spilled, waves_of
from kcg.kernel.tile.form import DEEP_ELEMENTS, EACH, ROWS_TILE, WARPS, Axes, Form, settled, warps_of
from kcg.kernel.tile.needed import VECTOR_BYTES
from kcg.kernel.tile.parameters import ROWS, TileParameters
from kcg.kernel.tile.plan import Loop, Need, TilePlan, Times
from kcg.kernel.tile.reduction import itemsize_of_rows, reducer
from kcg.kernel.tile.tiles import (
    MAX_BLOCK,
    Axis,
    axes_of,
    bind_axis,
    count_of,
    open_frame,
    power_of_two,
    split_number,
    start_of,
)
from kcg.kernel.tile.views import RowsView
from kcg.types import Target

MOST_ELEMENTS = 65_536  # of a program at once
MOST_OF_THREAD = 64
LEAST_STEP = 256  # elements of a row that is gone through in a loop
PERSISTENT_ROW = 32_768  # elements of a row that a program keeps while several kernels' values are made of it
MOST_OF_PRIOR = 128  # registers of a thread that holds rows
LOOPED_ROW = 16_384  # of a longer one in each step
ROW_OF_THREAD = 32  # elements of a row that each thread of one warp holds
SHARING_ROWS = 4  # of a program, that share tables
FEW_PROGRAMS = 4  # of a multiprocessor: then they wait for memory more than for each other
BY_ELEMENT = 3  # times the work of rows whose pairs are loaded element by element: 38 instead of 13 instructions


class RowReductions(Form[RowsView, "RowsPlan"]):
    """Rows of several kernels, each held whole by a program or gone through in steps."""

    name = ROWS
    noun = "row reduction"
    fields = frozenset({"read_early"})
    style = Style(keeps_rows=True)
    sees = RowsView

    def has(self, kernel: TileKernel, target: Target) -> bool:
        return kernel.attention is None and kernel.rows is not None

    def axes(self, view: RowsView) -> tuple[Axes, ...]:
        return tuple(axes for axes in (axes_apart(view), row_axes(view)) if axes)

    def start(self, view: RowsView, target: Target, axes: Axes) -> TileParameters:
        made = _first(view, target, axes)
        return settled(view.kernel, target, made, self.elements(made))

    def values(self, view: RowsView, target: Target, p: TileParameters, field: str) -> tuple[Any, ...]:
        if field != "read_early":
            return super().values(view, target, p, field)
        whole = view.rows.width <= p.reduce_tile and len(p.axes) == 1
        return (False, True) if whole and reads_beside_rows(view) else (False,)

    def steps(self, view: RowsView) -> tuple[int, ...]:
        whole = power_of_two(view.rows.width)
        return tuple(1 << i for i in range(17) if min(whole, LEAST_STEP) <= 1 << i <= whole)

    def warps(self, device: Device) -> tuple[int, ...]:
        return warps_of(device, (*WARPS, 32))

    def elements(self, p: TileParameters) -> int:
        return math.prod(p.tile) * max(1, p.reduce_tile)

    def planned(self, view: RowsView, target: Target, p: TileParameters) -> RowsPlan:
        if p.axes not in (row_axes(view), axes_apart(view)):
            raise UnsupportedTile("axes", "the ranges that number the rows, on one axis or as they share tables")
        if self.elements(p) > MAX_BLOCK:
            raise UnsupportedTile("tile", f"a block has at most {MAX_BLOCK:,} elements")
        sides = _sides(view, p.axes, p.tile, p.reduce_tile)
        axes, is_apart = sides[0].axes, len(p.axes) > 1
        return RowsPlan.of(
            self.decided(target, p, axes, Loop("elements of a row", view.kernel.reduce_extent, p.reduce_tile)),
            view=view, programs=sum(side.programs for side in sides), tiles=math.prod(axis.tiles for axis in axes),
            sides=sides, is_apart=is_apart, own_rows=axes[1].total if is_apart else 0,
        )  # fmt: skip

    def write(self, plan: RowsPlan, writer: Writer) -> Lines:
        return _write_launch(plan, writer)


def row_axes(view: RowsView) -> tuple[tuple[int, ...], ...]:
    """The only axis of a tile of rows: the ranges that number them in what the kernel stores first."""
    row, _ = view.rows.numbers[0]
    return (tuple(view.kernel.outputs.index(axis) for axis in row),)


def axes_apart(view: RowsView) -> tuple[tuple[int, ...], ...]:
    """The two axes of a tile of rows that share tables; none where no rows do."""
    if not view.rows.apart:
        return ()
    return tuple(tuple(view.kernel.outputs.index(axis) for axis in part) for part in view.rows.apart[0])


# ---- the plan


@dataclass(frozen=True)
class RowStore:
    """One store of rows: the axes that number its rows, and the ranges along a row; what is computed of both elements
    of a pair at once."""

    stored: Stored
    axes: tuple[Axis, ...]
    along: tuple[UOp, ...]  # of a value per row none
    pairs: Pairs | None


@dataclass(frozen=True)
class RowsOf:
    """The rows of one kernel: what is stored of them, and how many programs that takes."""

    kernel: TileKernel
    rows: Rows
    axes: tuple[Axis, ...]  # of the tile, as the first of all kernels has them
    stores: tuple[RowStore, ...]

    @staticmethod
    def of(kernel: TileKernel, axes: tuple[Axis, ...], step: int, *, is_apart: bool) -> RowsOf:
        """The rows of a kernel in tiles of such sizes; `is_apart`: those that share tables have an axis of their own.
        Pairs are made of where a block has nothing but a row."""
        rows = kernel.rows
        assert rows is not None
        sizes = [axis.size for axis in axes]
        numbers = rows.apart if is_apart else tuple((row,) for row, _ in rows.numbers)
        pairs = rows.pairs if rows.width == step else (None,) * len(kernel.stored)
        stores = tuple(
            RowStore(
                stored,
                tuple(Axis(part, size) for part, size in zip(numbers[place], sizes, strict=True)),
                along,
                pairs[place] if along else None,
            )
            for place, (stored, (_, along)) in enumerate(zip(kernel.stored, rows.numbers, strict=True))
        )
        return RowsOf(kernel, rows, axes, stores)

    @cached_property
    def programs(self) -> int:
        """As the last store has them: all have as many rows."""
        return math.prod(axis.tiles for axis in self.stores[-1].axes)


@lru_cache(1024)
def _sides(view: RowsView, axes: Axes, tile: tuple[int, ...], step: int) -> tuple[RowsOf, ...]:
    """The rows of each kernel of a launch. A search asks some thousand times for each."""
    of_tile, is_apart = axes_of(view.kernel, TileParameters(ROWS, axes, tile)), len(axes) > 1
    kernels = view.rows.sides if is_apart and view.rows.sides else (view.kernel,)
    return tuple(RowsOf.of(one, of_tile, step, is_apart=is_apart) for one in kernels)


@dataclass(frozen=True, kw_only=True)
class RowsPlan(TilePlan):
    """Rows of several kernels, that a program holds whole or goes through in steps."""

    view: RowsView
    sides: tuple[RowsOf, ...]  # one after the other, each by programs of its own
    is_apart: bool  # rows that share tables have an axis of their own
    own_rows: int  # so many of them, of one table

    @property
    def elements(self) -> int:
        return self.area * max(1, self.step)

    @property
    def is_whole(self) -> bool:
        """Whether a program holds rows whole."""
        return self.view.rows.width <= self.step

    @property
    def lanes(self) -> int:
        """Threads that have a row."""
        return max(1, self.threads // self.area)

    def needs(self, device: Device) -> Iterator[Need]:
        elements = self.elements
        yield Need("elements of a program", elements, MOST_ELEMENTS)
        yield Need("elements of a thread", elements // self.threads, MOST_OF_THREAD)
        if self.num_stages > 1:
            yield Need("stages", self.num_stages, self.loop.steps)
        if self.view.depth > 1:
            yield Need("elements of reductions inside of others", elements, DEEP_ELEMENTS)
        if self.num_warps > 1:
            yield Need("threads with an element each", self.threads, elements)
        # of 65,536 elements with 32 warps 64 registers each hold 64 elements, and spill up to 560 bytes, of 40,000 none
        # (Triton 3.9, sm_90)
        held = self.area * min(self.step, self.view.rows.width)
        yield Need("registers for rows", held + 1, self.threads * device.registers_of_thread(self.num_warps))
        if self.is_apart:
            least = min(power_of_two(self.own_rows), rows_of_threads(self.view, self.threads))
            yield Need("rows that fill the threads", least, self.tile[1])

    def times(self, target: Target, figures: Figures) -> Times:
        return _times(self, target, figures)


# ---- the prior


def _first(view: RowsView, target: Target, axes: Axes) -> TileParameters:
    """Short rows are one warp's, so that nothing is exchanged between warps; long ones are gone through in steps, where
    that happens twice by so few programs at a time that all of their rows fit into L2."""
    step, count, device = power_of_two(view.rows.width), view.rows.count, device_of(target)
    if axes == axes_apart(view) and step <= PERSISTENT_ROW:
        return _rows_apart(view, target, axes)
    if step > PERSISTENT_ROW:
        step = ROWS_TILE if row_loops(view) == 1 else LOOPED_ROW
        warps = device.warps(step // EACH)
        return TileParameters(ROWS, axes, (1,) * len(axes), reduce_tile=step, num_warps=warps, num_stages=1)
    of_warp = ROW_OF_THREAD * device.warp
    each = 2 * of_warp if step <= of_warp else ROWS_TILE
    height = max(1, min(each // step, power_of_two(count)))
    warps = 1 if step <= of_warp else next(w for w in (4, 8, 16, 32) if height * step <= of_warp * w)

    def crowded() -> bool:
        return row_registers(view, height * step / device.threads(warps)) > MOST_OF_PRIOR

    while height > 1 and (count < height * target.cores * 4 or crowded()):
        height //= 2
    while warps < 4 and crowded():
        warps *= 2
    early = reads_beside_rows(view) and -(-count // height) <= FEW_PROGRAMS * target.cores
    return TileParameters(ROWS, axes, (height,), reduce_tile=step, num_warps=warps, num_stages=1, read_early=early)


def row_loops(view: RowsView) -> int:
    """Loops of a program that goes through rows in steps: reductions that need another's result come after it, and what
    is stored of each element comes last."""
    together = {one.node: of for of in view.kernel.reductions for one in shifted_sums(of, view.kernel.reductions)}
    level: dict[UOp, int] = {}
    for node in view.kernel.reductions:  # what is needed first comes first
        if math.prod(map(extent, node.src[1:])) < view.rows.width:
            continue  # it goes through little
        inside = node.src[0].backward_slice_with_self
        before = max((level[o] for o in level if o in inside and o is not together.get(node)), default=0)
        level[node] = max(1 + before, level.get(together.get(node, node), 0))
    return max(level.values(), default=0) + any(along for _, along in view.rows.numbers)


def _rows_apart(view: RowsView, target: Target, axes: Axes) -> TileParameters:
    """Of the rows that read other tables as many as the threads hold at 16 bytes each, and a few that share a table."""
    device, step, (shared, own) = (
        device_of(target),
        view.rows.width,
        (count_of(view.kernel, numbers) for numbers in axes),
    )
    warps = device.warps(max(128, step * itemsize_of_rows(view.kernel) // VECTOR_BYTES))
    while warps > 1 and (
        (rows := rows_of_threads(view, device.threads(warps))) > own or view.rows.count < rows * target.cores * 4
    ):
        warps //= 2
    height = min(rows_of_threads(view, device.threads(warps)), power_of_two(own))
    together = min(SHARING_ROWS, power_of_two(shared))
    while together > 1 and (
        shared % together
        or view.rows.count < height * together * target.cores * 4
        or row_registers(view, together * height * step / device.threads(warps), apart=True) > MOST_OF_PRIOR
    ):
        together //= 2
    return TileParameters(ROWS, axes, (together, height), reduce_tile=step, num_warps=warps, num_stages=1)


def rows_of_threads(view: RowsView, threads: int) -> int:
    """Rows that so many threads hold with 16 bytes each. Of fewer, tables lie with the threads otherwise than rows
    do."""
    return max(1, threads * VECTOR_BYTES // (itemsize_of_rows(view.kernel) * power_of_two(view.rows.width)))


def reads_beside_rows(view: RowsView) -> bool:
    """Whether something is read for each element that no reduction is of."""
    inside = {node for reduction in view.kernel.reductions for node in reduction.backward_slice}
    return any(load.node not in inside and load.address.ranges for load in view.kernel.loads)


def row_registers(view: RowsView, elements: float, *, apart: bool = False) -> float:
    """About how many registers a thread takes that has so many elements of rows: the more, the more of them are loaded
    from other places. Of LayerNorm, softmax and rotations the compiler took 1.0 to 8.4 for each element. Of rows that
    share tables on an axis of their own it took 40 to 52 of 8 elements, 72 to 80 of 32 and 147 of 64."""
    if apart:
        return 32 + 0.9 * len(view.kernel.stored) * elements
    rows = {axis for row, _ in view.rows.numbers for axis in row}
    places = set()
    for load in view.kernel.loads:
        if rows & set(load.address.ranges) and len(load.address.ranges) > len(rows & set(load.address.ranges)):
            steps = affine(load.address) or {}
            places.add((load.buffer.slot, tuple(sorted(steps.values())), bool(load.gates)))
    return 24 + max(1.2, 0.6 * len(places)) * elements


# ---- the program


def _write_launch(plan: RowsPlan, writer: Writer) -> Lines:
    """The rows of each kernel, a branch by the program's number where there are several."""
    top = Lines(writer)
    if len(plan.sides) == 1:
        RowReduction(plan, plan.sides[0], writer, top).write()
        return top
    number, first = top.name("tl.program_id(0)", "program"), 0
    for side in plan.sides:
        lines, end = Lines(writer, top), first + side.programs
        RowReduction(plan, side, writer, lines, first).write()
        conditions = [f"({number} >= {first})"] if first else []
        conditions += [f"({number} < {end})"] if side is not plan.sides[-1] else []
        top.extend(f"if {' & '.join(conditions)}:", lines)
        first = end
    return top


class RowReduction:
    """What the programs from number `first` on do with rows of a kernel."""

    def __init__(self, plan: RowsPlan, side: RowsOf, writer: Writer, lines: Lines, first: int = 0) -> None:
        self.plan, self.side, self.first = plan, side, first
        writer.accesses |= {load.node: load for load in (*side.kernel.loads, *side.rows.loads)}
        words = ("rows", "heads", "cols") if len(plan.tile) > 1 else ("rows", "cols")
        self.root = open_frame(side.kernel, writer, (*plan.tile, plan.step), lines, words)
        self.root.reduce = reducer(side.kernel, first_axis=len(plan.tile), lanes=plan.lanes)

    def write(self) -> None:
        """Writes all that is stored."""
        self._bind_rows()
        plan, root = self.plan, self.root
        loop, counter = Lines(root.writer, root.lines), root.writer.fresh("k")
        written = list[_Store]()
        for one in self.side.stores:
            if not one.along:
                written.append(_Store(root, one.stored))
            elif plan.is_whole:
                inside = self._along(root.lines, one.along, "0")
                half = self._along(root.lines, one.along[:-1], "0", per=2) if one.pairs is not None else None
                written.append(_Store(inside, one.stored, one.pairs, half))
            else:
                written.append(_Store(self._along(loop, one.along, counter), one.stored))
        if plan.is_whole and (plan.is_apart or plan.read_early):
            for store in written:
                store.read()
        # what goes through rows again comes after all reductions
        for store in sorted(written, key=lambda store: store.inside.lines is loop):
            store.store()
        if loop.text:
            about = f"a row, {plan.step} of {self.side.rows.width} elements at a time"
            root.lines.extend(f"for {counter} in range(0, {self.side.rows.width}, {plan.step}):", loop, about)

    def _bind_rows(self) -> None:
        """Binds what numbers the rows in each store."""
        root = self.root
        number = root.lines.name("tl.program_id(0)", "program")
        if self.first:
            number = root.lines.name(f"{number} - {self.first}", "program")
        for store in self.side.stores:
            # rows that share tables are neighbours' in time as well
            counts = [axis.tiles for axis in reversed(store.axes)]
            for place, digit in enumerate(reversed(split_number(root, number, counts))):
                bind_axis(root, store.axes[place], place, start_of(root, digit, store.axes[place]))

    def _along(self, lines: Lines, ranges: tuple[UOp, ...], start: str, *, per: int = 1) -> Frame:
        """A frame that knows what is along rows, `per` elements as one."""
        width, last = self.plan.step // per, len(self.plan.tile)
        frame = self.root.inner(lines)
        frame.sizes = (*self.plan.tile, width)
        if self.plan.is_apart:
            frame.spread = frozenset({1})
        bind_axis(frame, Axis(ranges, width), last, start)
        return frame


class _Store:
    """What is stored of rows, along them in `inside`; of pairs what is computed of both elements, in `half`."""

    def __init__(self, inside: Frame, stored: Stored, pairs: Pairs | None = None, half: Frame | None = None) -> None:
        self.inside, self.stored, self.pairs, self.half = inside, stored, pairs, half
        if pairs is not None and half is not None:
            for whole, both in pairs.tables:
                half.late |= dict.fromkeys(both, functools.partial(self._split, whole, both))

    def read(self) -> None:
        """Asks for all that is read beside reductions, so that it is on its way while these are made."""
        frame, values = self.inside, [self.stored.value]
        if self.pairs is not None and self.half is not None:
            frame, values = self.half, list(self.pairs.values)
            for whole, _ in self.pairs.tables:
                self.inside.read(whole)
        nodes = UOp.sink(*values).toposort(gate=lambda node: node.op is not Ops.REDUCE)
        for node in nodes:
            if node.op is Ops.INDEX and node not in frame.late:
                frame.read(node)

    def store(self) -> None:
        """Writes the store."""
        if self.pairs is None or self.half is None:
            store_tile(self.inside, self.stored)
            return
        store_joined(self.inside, self.half, self.stored, self.pairs.values)

    def _split(self, whole: UOp, both: tuple[UOp, UOp]) -> None:
        """Binds the even and the odd elements of a load."""
        assert self.half is not None
        nodes = [(node, odd) for odd, node in enumerate(both)]
        bind_split(self.half, nodes, self.inside.value(whole))


# ---- what it costs


def _times(plan: RowsPlan, target: Target, f: Figures) -> Times:
    """Rows that are read and written once where a program holds them whole; else once for each loop, from L2 where
    those that are worked on at once fit into it."""
    kernel, rows, height, width = plan.view.kernel, plan.view.rows, plan.area, plan.step
    reads: dict[int, float] = {}
    for load in kernel.loads:
        reads[load.buffer.slot] = max(reads.get(load.buffer.slot, 0.0), bytes_of(load))
    writes = sum(math.prod(s.extents) * s.store.buffer.dtype.itemsize for s in kernel.stored)
    programs = -(-rows.count // height)
    device = device_of(target)
    wanted = row_registers(plan.view, max(1.0, plan.elements / plan.threads), apart=plan.is_apart)
    registers = int(min(device.registers_of_one, plan.maxnreg or wanted))
    together = device.resident(threads=plan.threads, registers=registers)
    slots = target.cores * together
    looped = not plan.is_whole
    loops = row_loops(plan.view) if looped else 1
    in_flight = slots * height * sum(reads.values()) / max(1, rows.count)
    again = 0.0 if in_flight * 2 < target.cache_bytes else loops - 1.0
    nbytes = sum(reads.values()) * (1 + again) + writes
    steps = -(-rows.width // width)
    waves = waves_of(programs / slots)
    late = not (plan.is_apart or plan.read_early or looped) and reads_beside_rows(plan.view)
    chain_s = waves * (f.opening_s + f.cold_s + (loops * steps + late) * f.flight_s)
    work = sum(8 if n.op in SPECIAL else 1 for n in UOp.sink(*(s.value for s in kernel.stored)).toposort())
    padded = programs * height * steps * width
    compute_s = padded * work * loops / (f.plain_ops * min(programs, target.cores)) / 2
    if rows.sides and not plan.is_apart:
        compute_s *= BY_ELEMENT
    moved = padded * loops * sum(reads.values()) / max(1, rows.count * rows.width)
    moved += padded * _table_bytes(plan.view) / (plan.tile[0] if plan.is_apart else 1)
    moved_s = moved / (f.l2_bytes * min(programs, target.cores))
    times = (nbytes / f.memory_bytes, moved_s, compute_s, chain_s)
    return Times(times, slower=spilled(wanted, device.registers_of_thread(plan.num_warps), plan.maxnreg))


def _table_bytes(view: RowsView) -> float:
    """Bytes of tables, for each element of a row, that rows may share."""
    rows, found = view.rows, dict[int, float]()
    for shared, own in rows.apart:
        for load in view.kernel.loads:
            if set(own) & set(load.address.ranges) and not set(shared) & set(load.address.ranges):
                found[load.buffer.slot] = load.buffer.size * load.buffer.dtype.itemsize / math.prod(map(extent, own))
    return sum(found.values()) / rows.width
