"""Row reductions: several kernels over the same rows, some rows a program, persistent in one block or looped over.

A tile has one axis for rows, or two where rows share tables: those that read the same ones come first, then those that
read others, then what lies along a row. Then a thread holds elements of one place of several heads, and a table's or a
weight's at that place once.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.ast import affine, extent
from kcg.kernel.reading.accesses import Stored
from kcg.kernel.reading.kernel import Pairs, TileKernel
from kcg.kernel.reading.online import shifted_sums
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.device import Device, Figures, device_of
from kcg.kernel.tile.emit import Frame, Lines, Style, Writer
from kcg.kernel.tile.epilogue import bind_split, store_joined, store_tile
from kcg.kernel.tile.estimates import SPECIAL, bytes_of, either, spilled, waves_of
from kcg.kernel.tile.form import EACH, ROWS_TILE, WARPS, Axes, Form, settled, warps_of
from kcg.kernel.tile.needed import VECTOR_BYTES
from kcg.kernel.tile.parameters import ROWS, TileParameters
from kcg.kernel.tile.reduction import itemsize_of_rows, reducer
from kcg.kernel.tile.tiles import (
    MAX_BLOCK,
    Axis,
    bind_axis,
    count_of,
    open_frame,
    power_of_two,
    split_number,
    start_of,
    tiles_of,
)
from kcg.types import Target

LEAST_STEP = 256  # elements of a row that is gone through in a loop
PERSISTENT_ROW = 32_768  # elements of a row that a program keeps while several kernels' values are made of it
MOST_OF_PRIOR = 128  # registers of a thread that holds rows
LOOPED_ROW = 16_384  # of a longer one in each step
ROW_OF_THREAD = 32  # elements of a row that each thread of one warp holds
SHARING_ROWS = 4  # of a program, that share tables
FEW_PROGRAMS = 4  # of a multiprocessor: then they wait for memory more than for each other
BY_ELEMENT = 3  # times the work of rows whose pairs are loaded element by element: 38 instead of 13 instructions


class RowReductions(Form[Any, Any]):
    """Rows of several kernels, each held whole by a program or gone through in steps."""

    def view(self, kernel: TileKernel) -> Any:
        return kernel

    name = ROWS
    noun = "row reduction"
    is_of_rows = True
    fields = frozenset({"read_early"})
    style = Style(keeps_rows=True)
    most_elements, most_of_thread = 65_536, 64

    def has(self, kernel: TileKernel, target: Target) -> bool:
        return kernel.attention is None and kernel.rows is not None

    def axes(self, kernel: TileKernel) -> tuple[Axes, ...]:
        return tuple(axes for axes in (axes_apart(kernel), row_axes(kernel)) if axes)

    def start(self, kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
        made = _first(kernel, target, axes)
        return settled(kernel, target, made, self.elements(made))

    def values(self, kernel: TileKernel, target: Target, p: TileParameters, field: str) -> tuple[Any, ...]:
        if field != "read_early":
            return super().values(kernel, target, p, field)
        assert kernel.rows is not None
        whole = kernel.rows.width <= p.reduce_tile and len(p.axes) == 1
        return (False, True) if whole and reads_beside_rows(kernel) else (False,)

    def steps(self, kernel: TileKernel) -> tuple[int, ...]:
        assert kernel.rows is not None
        whole = power_of_two(kernel.rows.width)
        return tuple(1 << i for i in range(17) if min(whole, LEAST_STEP) <= 1 << i <= whole)

    def warps(self, device: Device) -> tuple[int, ...]:
        return warps_of(device, (*WARPS, 32))

    def elements(self, p: TileParameters) -> int:
        return math.prod(p.tile) * max(1, p.reduce_tile)

    def programs(self, kernel: TileKernel, p: TileParameters) -> int:
        return math.prod(tiles_of(kernel, p))

    def fits(self, kernel: TileKernel, target: Target, p: TileParameters) -> bool:
        if not self.fits_threads(kernel, target, p) or not _fits_registers(kernel, target, p):
            return False
        if len(p.axes) == 1:
            return True
        own = power_of_two(count_of(kernel, p.axes[1]))
        return p.tile[1] >= min(own, rows_of_threads(kernel, device_of(target).threads(p.num_warps)))

    def write_at_once(self, kernel: TileKernel, target: Target, p: TileParameters, writer: Writer) -> tuple[Lines, int]:
        return _write_launch(kernel, p, writer, threads=device_of(target).threads(p.num_warps))

    def seconds(self, kernel: TileKernel, target: Target, p: TileParameters, figures: Figures) -> float:
        return _seconds(kernel, target, p, figures)


def row_axes(kernel: TileKernel) -> tuple[tuple[int, ...], ...]:
    """The only axis of a tile of rows: the ranges that number them in what the kernel stores first."""
    assert kernel.rows is not None
    row, _ = kernel.rows.numbers[0]
    return (tuple(kernel.outputs.index(axis) for axis in row),)


def axes_apart(kernel: TileKernel) -> tuple[tuple[int, ...], ...]:
    """The two axes of a tile of rows that share tables; none where no rows do."""
    assert kernel.rows is not None
    if not kernel.rows.apart:
        return ()
    return tuple(tuple(kernel.outputs.index(axis) for axis in part) for part in kernel.rows.apart[0])


def _fits_registers(kernel: TileKernel, target: Target, p: TileParameters) -> bool:
    """Whether threads that hold rows whole have a register for each element, and some beside: of 65,536 elements with
    32 warps 64 registers each hold 64 elements, and spill up to 560 bytes, of 40,000 none (Triton 3.9, sm_90)."""
    assert kernel.rows is not None
    device = device_of(target)
    held = math.prod(p.tile) * min(p.reduce_tile, kernel.rows.width)
    return held < device.threads(p.num_warps) * device.registers_of_thread(p.num_warps)


# ---- the prior


def _first(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    """Short rows are one warp's, so that nothing is exchanged between warps; long ones are gone through in steps, where
    that happens twice by so few programs at a time that all of their rows fit into L2."""
    assert kernel.rows is not None
    step, count, device = power_of_two(kernel.rows.width), kernel.rows.count, device_of(target)
    if axes == axes_apart(kernel) and step <= PERSISTENT_ROW:
        return _rows_apart(kernel, target, axes)
    if step > PERSISTENT_ROW:
        step = ROWS_TILE if row_loops(kernel) == 1 else LOOPED_ROW
        warps = device.warps(step // EACH)
        return TileParameters(ROWS, axes, (1,) * len(axes), reduce_tile=step, num_warps=warps, num_stages=1)
    of_warp = ROW_OF_THREAD * device.warp
    each = 2 * of_warp if step <= of_warp else ROWS_TILE
    height = max(1, min(each // step, power_of_two(count)))
    warps = 1 if step <= of_warp else next(w for w in (4, 8, 16, 32) if height * step <= of_warp * w)

    def crowded() -> bool:
        return row_registers(kernel, height * step / device.threads(warps)) > MOST_OF_PRIOR

    while height > 1 and (count < height * target.cores * 4 or crowded()):
        height //= 2
    while warps < 4 and crowded():
        warps *= 2
    early = reads_beside_rows(kernel) and -(-count // height) <= FEW_PROGRAMS * target.cores
    return TileParameters(ROWS, axes, (height,), reduce_tile=step, num_warps=warps, num_stages=1, read_early=early)


def row_loops(kernel: TileKernel) -> int:
    """Loops of a program that goes through rows in steps: reductions that need another's result come after it, and what
    is stored of each element comes last."""
    assert kernel.rows is not None
    together = {one.node: of for of in kernel.reductions for one in shifted_sums(of, kernel.reductions)}
    level: dict[UOp, int] = {}
    for node in kernel.reductions:  # what is needed first comes first
        if math.prod(map(extent, node.src[1:])) < kernel.rows.width:
            continue  # it goes through little
        inside = node.src[0].backward_slice_with_self
        before = max((level[o] for o in level if o in inside and o is not together.get(node)), default=0)
        level[node] = max(1 + before, level.get(together.get(node, node), 0))
    return max(level.values(), default=0) + any(along for _, along in kernel.rows.numbers)


def _rows_apart(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    """Of the rows that read other tables as many as the threads hold at 16 bytes each, and a few that share a table."""
    assert kernel.rows is not None
    device, step, (shared, own) = device_of(target), kernel.rows.width, (count_of(kernel, numbers) for numbers in axes)
    warps = device.warps(max(128, step * itemsize_of_rows(kernel) // VECTOR_BYTES))
    while warps > 1 and (
        (rows := rows_of_threads(kernel, device.threads(warps))) > own or kernel.rows.count < rows * target.cores * 4
    ):
        warps //= 2
    height = min(rows_of_threads(kernel, device.threads(warps)), power_of_two(own))
    together = min(SHARING_ROWS, power_of_two(shared))
    while together > 1 and (
        shared % together
        or kernel.rows.count < height * together * target.cores * 4
        or row_registers(kernel, together * height * step / device.threads(warps), apart=True) > MOST_OF_PRIOR
    ):
        together //= 2
    return TileParameters(ROWS, axes, (together, height), reduce_tile=step, num_warps=warps, num_stages=1)


def rows_of_threads(kernel: TileKernel, threads: int) -> int:
    """Rows that so many threads hold with 16 bytes each. Of fewer, tables lie with the threads otherwise than rows
    do."""
    assert kernel.rows is not None
    return max(1, threads * VECTOR_BYTES // (itemsize_of_rows(kernel) * power_of_two(kernel.rows.width)))


def reads_beside_rows(kernel: TileKernel) -> bool:
    """Whether something is read for each element that no reduction is of."""
    inside = {node for reduction in kernel.reductions for node in reduction.backward_slice}
    return any(load.node not in inside and load.address.ranges for load in kernel.loads)


def row_registers(kernel: TileKernel, elements: float, *, apart: bool = False) -> float:
    """About how many registers a thread takes that has so many elements of rows: the more, the more of them are loaded
    from other places. Of LayerNorm, softmax and rotations the compiler took 1.0 to 8.4 for each element. Of rows that
    share tables on an axis of their own it took 40 to 52 of 8 elements, 72 to 80 of 32 and 147 of 64."""
    assert kernel.rows is not None
    if apart:
        return 32 + 0.9 * len(kernel.stored) * elements
    rows = {axis for row, _ in kernel.rows.numbers for axis in row}
    places = set()
    for load in kernel.loads:
        if rows & set(load.address.ranges) and len(load.address.ranges) > len(rows & set(load.address.ranges)):
            steps = affine(load.address) or {}
            places.add((load.buffer.slot, tuple(sorted(steps.values())), bool(load.gates)))
    return 24 + max(1.2, 0.6 * len(places)) * elements


# ---- the program


def _write_launch(kernel: TileKernel, parameters: TileParameters, writer: Writer, *, threads: int) -> tuple[Lines, int]:
    """The lines and the number of programs, each of so many threads. Raises UnsupportedTile."""
    assert kernel.rows is not None
    if parameters.axes not in (row_axes(kernel), axes_apart(kernel)):
        raise UnsupportedTile("axes", "the ranges that number the rows, on one axis or as they share tables")
    sizes = (*parameters.tile, parameters.reduce_tile)
    if math.prod(sizes) > MAX_BLOCK:
        raise UnsupportedTile("tile", f"a block has at most {MAX_BLOCK:,} elements")
    top = Lines(writer)
    if parameters.axes == row_axes(kernel) or not kernel.rows.sides:
        return top, RowReduction(kernel, parameters, writer, top, threads=threads).write()
    number, first = top.name("tl.program_id(0)", "program"), 0
    for side in kernel.rows.sides:
        lines = Lines(writer, top)
        end = first + RowReduction(side, parameters, writer, lines, first, threads=threads).write()
        conditions = [f"({number} >= {first})"] if first else []
        conditions += [f"({number} < {end})"] if side is not kernel.rows.sides[-1] else []
        top.extend(f"if {' & '.join(conditions)}:", lines)
        first = end
    return top, first


class RowReduction:
    """What the programs from number `first` on do with rows of a kernel."""

    def __init__(
        self,
        kernel: TileKernel,
        parameters: TileParameters,
        writer: Writer,
        lines: Lines,
        first: int = 0,
        *,
        threads: int,
    ) -> None:
        assert kernel.rows is not None
        self.kernel, self.parameters, self.rows, self.first = kernel, parameters, kernel.rows, first
        *self.tile, self.width = *parameters.tile, parameters.reduce_tile
        self.is_apart = len(self.tile) > 1
        writer.accesses |= {load.node: load for load in (*kernel.loads, *self.rows.loads)}
        self.root = open_frame(kernel, writer, (*self.tile, self.width), lines)
        lanes = max(1, threads // math.prod(self.tile))
        self.root.reduce = reducer(kernel, first_axis=len(self.tile), lanes=lanes)

    def write(self) -> int:
        """Writes all that is stored. Returns how many programs that takes."""
        programs = self._bind_rows()
        loop, counter = Lines(self.root.writer, self.root.lines), self.root.writer.fresh("k")
        is_whole = self.rows.width <= self.width
        written = list[_Store]()
        for place, (stored, (_, along)) in enumerate(zip(self.kernel.stored, self.rows.numbers, strict=True)):
            if not along:
                written.append(_Store(self.root, stored))
            elif is_whole:
                pairs = self.rows.pairs[place] if self.rows.width == self.width else None
                inside = self._along(self.root.lines, along, "0")
                half = self._along(self.root.lines, along[:-1], "0", per=2) if pairs is not None else None
                written.append(_Store(inside, stored, pairs, half))
            else:
                written.append(_Store(self._along(loop, along, counter), stored))
        if is_whole and (self.is_apart or self.parameters.read_early):
            for one in written:
                one.read()
        # what goes through rows again comes after all reductions
        for one in sorted(written, key=lambda one: one.inside.lines is loop):
            one.store()
        if loop.text:
            self.root.lines.extend(f"for {counter} in range(0, {self.rows.width}, {self.width}):", loop)
        return programs

    def _bind_rows(self) -> int:
        """Binds what numbers the rows in each store. Returns how many programs there are."""
        root = self.root
        number = root.lines.name("tl.program_id(0)", "program")
        if self.first:
            number = root.lines.name(f"{number} - {self.first}", "program")
        of_store = self.rows.apart if self.is_apart else tuple((row,) for row, _ in self.rows.numbers)
        programs = 0
        for ranges in of_store:
            axes = [Axis(part, size) for part, size in zip(ranges, self.tile, strict=True)]
            counts = [axis.tiles for axis in reversed(axes)]  # rows that share tables are neighbours' in time as well
            programs = math.prod(counts)
            for place, digit in enumerate(reversed(split_number(root, number, counts))):
                bind_axis(root, axes[place], place, start_of(root, digit, axes[place]))
        return programs

    def _along(self, lines: Lines, ranges: tuple[UOp, ...], start: str, *, per: int = 1) -> Frame:
        """A frame that knows what is along rows, `per` elements as one."""
        width, last = self.width // per, len(self.tile)
        frame = self.root.inner(lines)
        frame.sizes = (*self.tile, width)
        if self.is_apart:
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


def _seconds(kernel: TileKernel, target: Target, p: TileParameters, f: Figures) -> float:
    """Rows that are read and written once where a program holds them whole; else once for each loop, from L2 where
    those that are worked on at once fit into it."""
    assert kernel.rows is not None
    rows, height, width = kernel.rows, math.prod(p.tile), p.reduce_tile
    reads: dict[int, float] = {}
    for load in kernel.loads:
        reads[load.buffer.slot] = max(reads.get(load.buffer.slot, 0.0), bytes_of(load))
    writes = sum(math.prod(s.extents) * s.store.buffer.dtype.itemsize for s in kernel.stored)
    programs = -(-rows.count // height)
    device, elements = device_of(target), height * width
    threads = device.threads(p.num_warps)
    apart = len(p.axes) > 1
    wanted = row_registers(kernel, max(1.0, elements / threads), apart=apart)
    registers = int(min(device.registers_of_one, p.maxnreg or wanted))
    together = device.resident(threads=threads, registers=registers)
    slots = target.cores * together
    looped = rows.width > width
    loops = row_loops(kernel) if looped else 1
    in_flight = slots * height * sum(reads.values()) / max(1, rows.count)
    again = 0.0 if in_flight * 2 < target.cache_bytes else loops - 1.0
    nbytes = sum(reads.values()) * (1 + again) + writes
    steps = -(-rows.width // width)
    turns = programs / slots
    waves = waves_of(turns)
    late = not (apart or p.read_early or looped) and reads_beside_rows(kernel)
    chain_s = waves * (f.opening_s + f.cold_s + (loops * steps + late) * f.flight_s)
    work = sum(8 if n.op in SPECIAL else 1 for n in UOp.sink(*(s.value for s in kernel.stored)).toposort())
    padded = programs * height * steps * width
    compute_s = padded * work * loops / (f.plain_ops * min(programs, target.cores)) / 2
    if rows.sides and not apart:
        compute_s *= BY_ELEMENT
    moved = padded * loops * sum(reads.values()) / max(1, rows.count * rows.width)
    moved += padded * _table_bytes(kernel) / (p.tile[0] if apart else 1)
    moved_s = moved / (f.l2_bytes * min(programs, target.cores))
    return either(nbytes / f.memory_bytes, moved_s, compute_s, chain_s, sharp=3) * spilled(wanted, target, p)


def _table_bytes(kernel: TileKernel) -> float:
    """Bytes of tables, for each element of a row, that rows may share."""
    assert kernel.rows is not None
    rows, found = kernel.rows, dict[int, float]()
    for shared, own in rows.apart:
        for load in kernel.loads:
            if set(own) & set(load.address.ranges) and not set(shared) & set(load.address.ranges):
                found[load.buffer.slot] = load.buffer.size * load.buffer.dtype.itemsize / math.prod(map(extent, own))
    return sum(found.values()) / rows.width
