"""Pointwise kernels, and row reductions without a tensor core: tiles of one kernel's outputs.

Also matrix-vector products of one vector, several in a launch (`vectors.py`). What reductions are written as is in
`reduction.py`. A program is a stream of bytes, slower where few are in flight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from kcg.compat.tiny import UOp
from kcg.kernel.ast import affine, extent
from kcg.kernel.reading.accesses import Access
from kcg.kernel.reading.depth import depth_of, loops_of
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.one_hot import OneHot
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.contraction import FEW_ROWS
from kcg.kernel.tile.device import Device, Figures, device_of
from kcg.kernel.tile.emit import Frame, Lines, Style, Writer
from kcg.kernel.tile.epilogue import store_tile
from kcg.kernel.tile.estimates import SPECIAL, bytes_of, either, spans_of, waves_of
from kcg.kernel.tile.eviction import deaf_copies, read_once, reused, streamed
from kcg.kernel.tile.form import DEEP_ELEMENTS, EACH, LEAST, Axes, Form, rows_together, settled, tiles_up_to
from kcg.kernel.tile.one_hot import choosing, rows_of, seconds_of
from kcg.kernel.tile.parameters import ELEMENTWISE, REDUCTION, TileParameters
from kcg.kernel.tile.plan import MOST_PARTIALS, Loop, Need, Shared, TilePlan, Times
from kcg.kernel.tile.reduction import Part, accumulator, itemsize_of_rows, may_split, reducer, stepped_extent
from kcg.kernel.tile.split import SPLITS, partials_of, store_partials, write_sums
from kcg.kernel.tile.tiles import (
    MAX_BLOCK,
    Tiled,
    bind_tile,
    count_of,
    open_frame,
    power_of_two,
    split_number,
    tiled_of,
)
from kcg.kernel.tile.vectors import write_launch
from kcg.kernel.tile.views import PointwiseView, ReductionView, View
from kcg.types import Target

ROW_STAGES = (1, 2, 3, 4)  # of a loop over rows, whose next loads are then copied to shared memory
LEAST_ELEMENTS = 64  # of a pointwise tile
ROW_IN_REGISTERS = 16_384  # elements of a row that one program reduces in one pass
LOOP_TILE = 2_048
STEP_BYTES = 16_384  # of a row in one step: what a program of 256 threads keeps in flight
STRIDED_TILE = 8_192  # elements of a block whose rows are reduced along another axis than memory's
OF_A_CLOCK = 4
"""Operations of an element that take a lane as long as one: many are addresses that neighbours share. Of products 1 is
nearer, by recorded ones of 429 regions (docs/experiments/2026-11-30-products-of-float32.md); those that are reduced at
once are taken to be as these."""
ENOUGH = 6  # programs of a multiprocessor, for its memory to be busy while some of them wait
NO_LOOP = Loop("nothing", 0, 0)
MOST_OF_THREAD = 128  # elements
MOST_HELD = 64  # elements of a thread in rows: with 128 the compiler spilled, and a program took three times its bytes
ONE_HOT_TILE, ONE_HOT_STEP = (64, 128), 256  # of a sum over one-hot rows
SECTOR = 32  # bytes that memory moves at least


class Pointwise(Form[PointwiseView, "StreamPlan"]):
    """Every element of the output by itself."""

    name = ELEMENTWISE
    noun = "elementwise"
    style = Style(by_parts=True)
    sees = PointwiseView

    def has(self, kernel: TileKernel, target: Target) -> bool:
        return kernel.attention is None and kernel.rows is None and not kernel.reductions

    def axes(self, view: PointwiseView) -> tuple[Axes, ...]:
        return _arrangements(view.kernel, aside=True)

    def start(self, view: PointwiseView, target: Target, axes: Axes) -> TileParameters:
        made = _first_of_elements(view.kernel, target, axes)
        return settled(view.kernel, target, made, self.elements(made))

    def values(self, view: PointwiseView, target: Target, p: TileParameters, field: str) -> tuple[Any, ...]:
        match field:
            case "evict_first":
                return streamed(view.kernel, target, p)
            case "evict_last":
                return reused(view.kernel, target, p)
        return super().values(view, target, p, field)

    def tiles(self, view: PointwiseView, p: TileParameters) -> Iterable[tuple[int, ...]]:
        held = count_of(view.kernel, [n for numbers in p.axes for n in numbers])
        return [tile for tile in tiles_up_to(view.kernel, p, 1) if math.prod(tile) >= min(LEAST_ELEMENTS, held)]

    def steps(self, view: PointwiseView) -> tuple[int, ...]:
        return (0,)

    def planned(self, view: PointwiseView, target: Target, p: TileParameters) -> StreamPlan:
        tiled = _tiled(view, p.axes, p.tile)
        return StreamPlan.of(
            self.decided(target, p, tiled[0].axes, NO_LOOP),
            view=view, programs=tiled[0].tiles, tiles=tiled[0].tiles, tiled=tiled, most_elements=16_384,
        )  # fmt: skip

    def write(self, plan: StreamPlan, writer: Writer) -> Lines:
        return _write_launch(plan, writer)


class Reduction(Form[ReductionView, "StreamPlan"]):
    """Rows of one kernel, each reduced to a value or to several."""

    name = REDUCTION
    noun = "reduction"
    style = Style(by_parts=True)
    sees = ReductionView

    def has(self, kernel: TileKernel, target: Target) -> bool:
        if kernel.attention is not None or kernel.rows is not None or not kernel.reductions:
            return False
        return kernel.contraction is None or not (kernel.epilogue_uses or kernel.grouped)

    def axes(self, view: ReductionView) -> tuple[Axes, ...]:
        if view.one_hot_sums and (by_rows := _by_rows(view.kernel, view.one_hot_sums[0])):
            return (by_rows,)
        return _arrangements(view.kernel, aside=not _reads_rows(view.kernel))

    def start(self, view: ReductionView, target: Target, axes: Axes) -> TileParameters:
        made = _first_of_rows(view.kernel, target, axes)
        if view.one_hot_sums:
            made = _first_of_one_hot(view.kernel, target, made)
        return settled(view.kernel, target, made, self.elements(made))

    def values(self, view: ReductionView, target: Target, p: TileParameters, field: str) -> tuple[Any, ...]:
        match field:
            case "split":
                return SPLITS if view.may_split else (1,)
            case "num_stages" | "evict_first" | "evict_last" | "maxnreg" if view.one_hot_sums:
                return (LEAST[field],)
            case "num_stages":
                return ROW_STAGES if copied_bytes(view.kernel, p) else (1,)
            case "evict_first":
                return streamed(view.kernel, target, p, _deaf(view.kernel, p), always=True)
            case "evict_last":
                return reused(view.kernel, target, p, _deaf(view.kernel, p))
        return super().values(view, target, p, field)

    def steps(self, view: ReductionView) -> tuple[int, ...]:
        count = stepped_extent(view.kernel)
        whole = power_of_two(count)
        most = max(whole, whole_row(count, itemsize_of_rows(view.kernel)))
        return tuple(1 << i for i in range(15) if 1 << i <= most and (1 << i >= min(whole, 4)))

    def may_split(self, view: ReductionView) -> bool:
        return view.may_split

    def elements(self, p: TileParameters) -> int:
        return math.prod(p.tile) * max(1, p.reduce_tile)

    def check(self, view: ReductionView, p: TileParameters) -> None:
        kernel = view.kernel
        if kernel.grouped and kernel.contraction is not None:
            raise UnsupportedTile("form", "products of one launch are matmuls")
        if kernel.grouped and p.axes != (tuple(range(len(kernel.outputs))),):
            raise UnsupportedTile("axes", "products of one launch have tiles of rows")

    def planned(self, view: ReductionView, target: Target, p: TileParameters) -> StreamPlan:
        tiled = _tiled(view, p.axes, p.tile)
        tiles = p.split * sum(one.tiles for one in tiled)
        plan = StreamPlan.of(
            self.decided(target, p, tiled[0].axes, Loop("terms", view.kernel.reduce_extent, p.reduce_tile, p.split)),
            view=view, programs=tiles, tiles=tiles, tiled=tiled, depth=view.depth, most_elements=32_768,
            copied=copied_bytes(view.kernel, p) if p.num_stages > 1 else 0,
            partials=p.split * partials_of(view.kernel) if p.split > 1 else 0,
        )  # fmt: skip
        if plan.elements > MAX_BLOCK:
            raise UnsupportedTile("tile", f"a block has at most {MAX_BLOCK:,} elements")
        return plan

    def write(self, plan: StreamPlan, writer: Writer) -> Lines:
        return _write_launch(plan, writer)

    def write_second(self, plan: StreamPlan, writer: Writer) -> tuple[Lines, int]:
        return write_sums(plan.view.kernel, plan.split, writer)


@dataclass(frozen=True, kw_only=True)
class StreamPlan(TilePlan):
    """Tiles of a kernel, or of each product of a launch, whose reductions are loops inside of them."""

    tiled: tuple[Tiled, ...]  # of each kernel of the launch
    most_elements: int  # of a program at once
    depth: int = 0  # reductions inside of each other
    copied: int = 0  # bytes of a step that a loop over rows copies to shared memory ahead

    @property
    def elements(self) -> int:
        if sums := self.view.one_hot_sums:  # their terms are added one after the other
            return max(self.area, rows_of(sums[0], self.axes) * self.step)
        return self.area * max(1, self.step)

    @property
    def partial_type(self) -> str:
        return accumulator(self.view.kernel.reductions[0])

    @property
    def steps_of_reductions(self) -> tuple[int, ...]:
        """Elements in one step of the reductions by depth: the longest has the loop's, those inside or around it take
        one element."""
        return (*(1,) * (self.depth - 1), self.step) if self.depth else ()

    @property
    def shared(self) -> tuple[Shared, ...]:
        return (Shared("steps of rows", self.copied, self.blocks),)

    @property
    def untried(self) -> int:
        """Of a reduction evicting first is known to matter."""
        ahead = self.num_stages > 1 if self.depth else bool(self.evict_first)
        return bool(self.evict_last) + bool(self.maxnreg) + ahead

    def needs(self, device: Device) -> Iterator[Need]:
        steps, elements = self.loop.steps, self.elements
        if self.split > 1:
            yield Need("steps of each part", self.split, steps // 2)
            yield Need("partial sums", self.partials, MOST_PARTIALS)
        yield Need("elements of a program", elements, self.most_elements)
        yield Need("elements of a thread", elements // self.threads, MOST_OF_THREAD)
        if self.num_stages > 1:
            yield Need("stages", self.num_stages, steps // self.split)
            yield Need("shared memory", self.shared_bytes, device.shared_bytes)
        if self.depth > 1:
            yield Need("elements of reductions inside of others", elements, DEEP_ELEMENTS)
        if self.num_warps > 1:
            yield Need("threads with an element each", self.threads, elements)

    def times(self, target: Target, figures: Figures) -> Times:
        return _times(self, target, figures)


@lru_cache(4096)
def _tiled(view: View, axes: Axes, tile: tuple[int, ...]) -> tuple[Tiled, ...]:
    """The tiles of each kernel of a launch. A search asks some thousand times for each."""
    p = TileParameters((view.kernel.reductions and REDUCTION) or ELEMENTWISE, axes, tile)
    return tiled_of(view.kernel, p)


# ---- the axes of a tile


def _arrangements(kernel: TileKernel, *, aside: bool) -> tuple[Axes, ...]:
    """Which output ranges may be which axis of the tile; `aside`: what lies side by side in memory does so along output
    ranges."""
    numbers = tuple(range(len(kernel.outputs)))
    found: list[Axes] = [(numbers,) if numbers else ()]
    if len(numbers) > 1 and not kernel.grouped:
        inner = numbers[-1]
        others = _transposed(kernel)
        beside = [((other,), (inner,)) for other in others]
        found = [*beside, *found] if others and aside else [*found, *beside]
        found += [((inner,),), (numbers[:-1], (inner,))]
        if kernel.contraction is not None:
            rows, columns = (side.ranges for side in kernel.contraction.sides)
            few = min(count_of(kernel, rows), count_of(kernel, columns)) < FEW_ROWS
            found = [(rows, columns), *found] if few else [*found, (rows, columns)]
    return tuple(dict.fromkeys(found))


def _transposed(kernel: TileKernel) -> tuple[int, ...]:
    """The output ranges along which a large buffer is read side by side, where the output is not written so."""
    inner = kernel.outputs[-1]
    if extent(inner) < 8:
        return ()
    found = set()
    for load in kernel.loads:
        steps = affine(load.address)
        if steps is None or abs(steps.get(inner, 0)) == 1 or load.buffer.size * 4 < kernel.store.buffer.size:
            continue
        for number, axis in enumerate(kernel.outputs[:-1]):
            if abs(steps.get(axis, 0)) == 1 and extent(axis) >= 8:
                found.add(number)
    return tuple(sorted(found))


def _reads_rows(kernel: TileKernel) -> bool:
    """Whether most that lies side by side in memory does so along a reduction, not along an output range."""
    rows = columns = 0
    for load in kernel.loads:
        steps, nbytes = affine(load.address) or {}, load.buffer.size * load.buffer.dtype.itemsize
        if any(abs(steps.get(axis, 0)) == 1 for axis in kernel.reduce_ranges):
            rows += nbytes
        elif any(abs(steps.get(axis, 0)) == 1 for axis in kernel.outputs):
            columns += nbytes
    return rows > 0 and rows >= columns


def _by_rows(kernel: TileKernel, one: OneHot) -> Axes:
    """The rows of a sum over one-hot rows, and all else; nothing where they are all."""
    rows = tuple(n for n, axis in enumerate(kernel.outputs) if axis in one.rows)
    others = tuple(n for n in range(len(kernel.outputs)) if n not in rows)
    return (rows, others) if others and not kernel.grouped and len(rows) == len(one.rows) else ()


# ---- the prior


def _first_of_elements(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    """8,192 bytes of a tile, fewer where there are few programs."""
    total = math.prod(kernel.extents)
    itemsize = max((b.dtype.itemsize for b in kernel.buffers), default=4)
    size = max(256, min(4096, 8192 // itemsize))
    while size > 256 and total < size * target.cores * 8:
        size //= 2
    if len(axes) == 2:
        outer, inner = (power_of_two(count_of(kernel, numbers)) for numbers in axes)
        inner = min(64, inner)
        tile: tuple[int, ...] = (min(max(32, size // inner), outer), inner)
    else:
        tile = tuple(min(size, power_of_two(count_of(kernel, numbers))) for numbers in axes)
    warps = device_of(target).warps(256 if math.prod(tile) >= 4096 else 128)
    return TileParameters(ELEMENTWISE, axes, tile, num_warps=warps, num_stages=1)


def _first_of_rows(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    """Rows that fit into registers in one pass, 16 elements a thread; sums along another axis than memory's by 32 to 64
    bytes of many rows."""
    count, rows = stepped_extent(kernel), sum(math.prod(one.extents) for one in kernel.launched)
    itemsize = itemsize_of_rows(kernel)
    beside = _reads_rows(kernel)
    along = None if beside or not axes else _side_by_side(kernel, axes)
    if beside or not axes:
        step = _row_step(count, itemsize)
        height = rows_together(step, rows, target)
        tile = _shared_out(height, [count_of(kernel, numbers) for numbers in axes])
    else:
        # 64 bytes side by side of many rows at once, or 32 where programs are few
        height = min(max(1, 64 // itemsize), power_of_two(rows if along is None else count_of(kernel, axes[along])))
        while height * itemsize > 32 and rows < height * target.cores * 2:
            height //= 2
        step = min(power_of_two(count), STRIDED_TILE // height)
        if along is None:
            tile = _shared_out(height, [count_of(kernel, numbers) for numbers in axes])
        else:
            tile = tuple(height if place == along else 1 for place in range(len(axes)))
    if depth_of(kernel.reductions) > 1:
        step = min(step, 1024)
    made = TileParameters(REDUCTION, axes, tile, reduce_tile=step, num_stages=1)
    height = math.prod(tile)
    device = device_of(target)
    most = device.warps(256 if height * step <= 8192 else 512)
    made = replace(made, num_warps=max(1, min(most, device.warps(height * step // EACH))))
    programs = -(-rows // height)
    if may_split(kernel) and count >= 4 * LOOP_TILE and programs * 2 <= target.cores:
        step = min(step, LOOP_TILE)
        split = min(power_of_two(target.cores // programs), power_of_two(count // (2 * step)), 256)
        if split > 1:
            made = replace(made, reduce_tile=step, split=split, num_warps=device.warps(128))
    return replace(made, evict_first=read_once(kernel, target, made)) if device.ptx else made


def _first_of_one_hot(kernel: TileKernel, target: Target, made: TileParameters) -> TileParameters:
    """Few rows of many columns: looking for terms is done once for all of these."""
    sizes = zip(ONE_HOT_TILE[-len(made.axes) :], made.axes, strict=True)
    tile = tuple(min(size, power_of_two(count_of(kernel, numbers))) for size, numbers in sizes)
    step = min(ONE_HOT_STEP, power_of_two(kernel.reduce_extent))
    made = replace(made, tile=tile, reduce_tile=step, split=1, evict_first=(), num_stages=1)
    return replace(made, num_warps=device_of(target).warps(128))


def _row_step(count: int, itemsize: int) -> int:
    """Elements of a row in one step: the whole row in one pass, with room to begin before its first element, else what
    16 KB hold or less, where the last step would be empty by more than a seventh of the row."""
    whole = whole_row(count, itemsize)
    if whole <= ROW_IN_REGISTERS // 2 or (whole <= ROW_IN_REGISTERS and count * 8 >= whole * 7):
        return whole
    step = max(LOOP_TILE, STEP_BYTES // itemsize)
    while step > LOOP_TILE // 2 and -(-count // step) * step * 7 > count * 8:
        step //= 2
    return step


def whole_row(count: int, itemsize: int) -> int:
    """Elements of a block that holds a row: with space for what lies before its first one in 16 bytes."""
    whole = power_of_two(count)
    return 2 * whole if count % max(1, 16 // itemsize) and whole < count + 16 // itemsize else whole


def _side_by_side(kernel: TileKernel, axes: Axes) -> int | None:
    """The axis of the tile along which most is read side by side; None where there is none."""
    found: dict[int, int] = {}
    for load in kernel.loads:
        steps = affine(load.address) or {}
        for place, numbers in enumerate(axes):
            if any(abs(steps.get(kernel.outputs[n], 0)) == 1 for n in numbers):
                found[place] = found.get(place, 0) + load.buffer.size * load.buffer.dtype.itemsize
    return max(found, key=found.__getitem__, default=None)


def _shared_out(height: int, extents: list[int]) -> tuple[int, ...]:
    """Elements along each axis of a tile of about `height`: as many as there are along short ones, from the last on."""
    tile: list[int] = []
    for size in sorted(extents):
        tile.append(max(1, min(power_of_two(size), height)))
        height = max(1, height // tile[-1])
    order = sorted(range(len(extents)), key=lambda place: extents[place])
    return tuple(tile[order.index(place)] for place in range(len(extents)))


# ---- loads


def copied_bytes(kernel: TileKernel, p: TileParameters) -> int:
    """What a loop over rows copies to shared memory for one step ahead; 0 where the compiler copies nothing: less than
    4 bytes side by side, known to be aligned."""
    if depth_of(kernel.reductions) != 1 or kernel.reduce_extent <= p.reduce_tile:
        return 0
    copied = 0
    for load in kernel.loads:
        if not any(axis in load.address.ranges for axis in kernel.reduce_ranges):
            continue
        steps, itemsize = affine(load.address), int(load.buffer.dtype.itemsize)
        if steps is None or load.gates:
            return 0
        unit = next((axis for axis, step in steps.items() if axis is not None and step == 1), None)
        others = [step for axis, step in steps.items() if axis is not unit]
        sizes = [*others, extent(unit)] if unit is not None else []
        if itemsize >= 4 or (sizes and not any(size * itemsize % 4 for size in sizes)):
            copied += math.prod(p.tile) * p.reduce_tile * itemsize
    return copied


def _deaf(kernel: TileKernel, p: TileParameters) -> frozenset[UOp]:
    """The loads for which Triton drops an eviction policy."""
    return deaf_copies(p, (node for reduction in kernel.reductions for node in reduction.backward_slice))


# ---- the program


def _write_launch(plan: StreamPlan, writer: Writer) -> Lines:
    sizes = (*plan.tile, *plan.steps_of_reductions)
    words = ("rows", "cols")[: len(plan.tile)] if plan.depth or len(plan.tile) > 1 else ()

    def opened(tiled: Tiled, lines: Lines | None) -> Frame:
        return open_frame(tiled.kernel, writer, sizes, lines, words)

    return write_launch(plan.tiled, writer, opened, lambda *tile: _write_tiles(plan, *tile))


def _write_tiles(plan: StreamPlan, tiled: Tiled, root: Frame, number: str) -> None:
    """Writes what the program with a number does, of the tiles of one kernel."""
    kernel = tiled.kernel
    part, *digits = split_number(root, number, [plan.split, *tiled.places, *tiled.counts])
    bind_tile(root, tiled, digits)
    own, terms = Part(part, plan.split), len(tiled.axes)
    root.reduce = choosing(reducer(kernel, first_axis=terms, part=own, stages=plan.num_stages), terms, own)
    if plan.split > 1:
        store_partials(root, kernel, own)
    else:
        for stored in kernel.stored:
            store_tile(root, stored)


# ---- what it costs


def _times(plan: StreamPlan, target: Target, f: Figures) -> Times:
    """A stream of bytes; loads of so many steps are on their way ahead as there are stages, and a reduction displaces
    bytes of L2."""
    device, kernel, (first, *_) = device_of(target), plan.view.kernel, plan.tiled
    outputs = math.prod(kernel.extents)
    terms, steps = _terms_and_steps(plan)
    programs, per_program = plan.programs, plan.elements
    nbytes, used, moved = 0.0, 0.0, 0.0  # from memory; of each element in flight, and from L2
    for one in plan.tiled:
        for access in (*one.kernel.loads, *(stored.store for stored in one.kernel.written)):
            # some parts of sectors come twice
            nbytes += bytes_of(access) * (1 + (_spread(access, one, plan.step) - 1) / 2)
    for access in (*kernel.loads, *(stored.store for stored in kernel.stored)):
        each = min(1.0, spans_of(access) / max(1, outputs * terms)) * access.buffer.dtype.itemsize
        used += each
        moved += each * _spread(access, first, plan.step)
    elements = max(1, per_program // plan.threads)
    whole = sum(spans_of(load) >= outputs * terms for load in kernel.loads)
    # of sums and maxima the compiler took 40 to 79 of 16 and 32 elements, of products of two 59 and 102, 180 of 64
    registers = min(device.registers_of_one, int(24 + (1.2 + 0.6 * max(1, whole)) * elements))
    together = device.resident(threads=plan.threads, registers=registers)
    busy = min(programs, target.cores)
    waves = waves_of(programs / (target.cores * together))
    at_once = max(1.0, min(programs / target.cores, together))
    all_elements = programs * per_program * steps  # also those that do not exist
    nbytes += f.written_share * (_displaced(plan, target.cache_bytes) if plan.depth else 0.0)
    flying = at_once * per_program * max(used, 0.5)
    stream_s = either(
        nbytes / f.memory_bytes,
        all_elements * moved / (f.l2_bytes * busy),
        all_elements * used / (flying / f.loaded_s * busy),
    )
    if sums := plan.view.one_hot_sums:
        each = [seconds_of(one, plan.axes, plan.step, f) for one in sums]
        waiting_s, computing_s = (sum(seconds) for seconds in zip(*each, strict=True))
        written_s = sum(bytes_of(stored.store) for stored in kernel.written) / f.memory_bytes
        chain_s = waves * (f.opening_s + waiting_s)
        return Times((written_s, programs * computing_s / busy), after_s=chain_s / min(at_once, ENOUGH))
    stream_s *= max(1.0, elements / MOST_HELD)
    nodes = {node for stored in kernel.stored for node in stored.value.toposort()}
    work = sum(4 if node.op in SPECIAL else 1 for node in nodes)
    each = 1 if kernel.contraction is not None or plan.depth > 1 else OF_A_CLOCK
    compute_s = all_elements * work / (f.plain_ops * busy) / each
    # what one program waits for, others of its multiprocessor fill
    ahead = plan.num_stages if plan.depth else 1
    chain_s = waves * (f.opening_s / 2 + steps * (f.flight_s + f.cold_s) / ahead) / min(at_once, ENOUGH)
    return Times((stream_s, compute_s), after_s=chain_s)


def _terms_and_steps(plan: StreamPlan) -> tuple[int, int]:
    """Terms of each value that is stored, and steps of a program's loops: of a reduction inside of others as many as it
    takes in all of theirs, of which each goes element by element."""
    terms, step, deepest = max(1, plan.loop.extent), plan.step, plan.depth - 1
    if deepest < 1 or not step:
        return terms, -(-terms // (step * plan.split)) if step else 1
    loops = loops_of(plan.view.kernel.reductions)
    steps = (times * -(-count // (step if depth == deepest else 1)) for times, count, depth in loops)
    return max(times * count for times, count, _ in loops), -(-max(steps) // plan.split)


def _displaced(plan: StreamPlan, cache_bytes: int) -> float:
    """Bytes of L2 that a reduction takes for what it reads: what kernels before wrote there has to go to memory."""
    evictions = plan.evictions
    loads = (load for one in plan.view.kernel.launched for load in one.loads)
    kept = {load.buffer.slot: bytes_of(load) for load in loads if evictions.get(load.node) != "evict_first"}
    return min(sum(kept.values()), float(cache_bytes))


def _spread(access: Access, tiled: Tiled, step: int) -> float:
    """How many bytes move for one that is used, by the step along the direction in which a tile is longest; `step` is
    that of the reduction."""
    steps = access.steps
    if steps is None:
        return 2.0
    beside = next((r for r, size in steps.items() if r is not None and abs(size) == 1), None)
    if beside is None:
        return 1.0
    along = 1
    if beside in tiled.kernel.outputs:
        for axis in tiled.axes:
            if beside in axis.ranges:  # ranges after it change faster
                faster = math.prod(map(extent, axis.ranges[axis.ranges.index(beside) + 1 :]))
                along = max(1, axis.size // faster)
    elif step:
        along = step
    width = min(along, extent(beside)) * access.buffer.dtype.itemsize
    return float(max(1.0, SECTOR / max(1, width)))
