"""Pointwise kernels, and row reductions without a tensor core: tiles of one kernel's outputs.

Also matrix-vector products of one vector, several in a launch (`vectors.py`). What reductions are written as is in
`reduction.py`. A program is a stream of bytes, slower where few are in flight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kcg.compat.tiny import UOp
from kcg.kernel.ast import affine, extent
from kcg.kernel.reading.accesses import Access
from kcg.kernel.reading.depth import depth_of, loops_of
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.contraction import FEW_ROWS
from kcg.kernel.tile.device import Figures, device_of
from kcg.kernel.tile.emit import Frame, Lines, Style, Writer
from kcg.kernel.tile.epilogue import store_tile
from kcg.kernel.tile.estimates import SPECIAL, bytes_of, either, spans_of, waves_of
from kcg.kernel.tile.eviction import deaf_copies, read_once, reused, streamed
from kcg.kernel.tile.form import EACH, ROWS_TILE, Axes, Form, settled, steps_of, tiles_up_to
from kcg.kernel.tile.parameters import ELEMENTWISE, REDUCTION, TileParameters
from kcg.kernel.tile.reduction import Part, itemsize_of_rows, reducer, stepped_extent
from kcg.kernel.tile.split import SPLITS, may_split, store_partials
from kcg.kernel.tile.tiles import (
    MAX_BLOCK,
    axes_of,
    bind_axis,
    bind_scalar,
    count_of,
    launched_tiles,
    launched_with,
    open_frame,
    power_of_two,
    rest_of,
    split_number,
    start_of,
    tiles_of,
)
from kcg.kernel.tile.vectors import alike, bind_products
from kcg.types import Target

ROW_STAGES = (1, 2, 3, 4)  # of a loop over rows, whose next loads are then copied to shared memory
LEAST_ELEMENTS = 64  # of a pointwise tile
ROW_IN_REGISTERS = 16_384  # elements of a row that one program reduces in one pass
LOOP_TILE = 2_048
STEP_BYTES = 16_384  # of a row in one step: what a program of 256 threads keeps in flight
STRIDED_TILE = 8_192  # elements of a block whose rows are reduced along another axis than memory's
ENOUGH = 6  # programs of a multiprocessor, for its memory to be busy while some of them wait
MOST_HELD = 64  # elements of a thread in rows: with 128 the compiler spilled, and a program took three times its bytes
SECTOR = 32  # bytes that memory moves at least


class Pointwise(Form):
    """Every element of the output by itself."""

    name = ELEMENTWISE
    noun = "elementwise"
    reduces = False
    style = Style(by_parts=True)
    most_elements, most_of_thread = 16_384, 128

    def has(self, kernel: TileKernel, target: Target) -> bool:
        return kernel.attention is None and kernel.rows is None and not kernel.reductions

    def axes(self, kernel: TileKernel) -> tuple[Axes, ...]:
        return _arrangements(kernel, aside=True)

    def start(self, kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
        made = _first_of_elements(kernel, target, axes)
        return settled(kernel, target, made, self.elements(made))

    def values(self, kernel: TileKernel, target: Target, p: TileParameters, field: str) -> tuple[Any, ...]:
        match field:
            case "evict_first":
                return streamed(kernel, target, p)
            case "evict_last":
                return reused(kernel, target, p)
        return super().values(kernel, target, p, field)

    def tiles(self, kernel: TileKernel, p: TileParameters) -> Iterable[tuple[int, ...]]:
        held = count_of(kernel, [n for numbers in p.axes for n in numbers])
        return [tile for tile in tiles_up_to(kernel, p, 1) if math.prod(tile) >= min(LEAST_ELEMENTS, held)]

    def steps(self, kernel: TileKernel) -> tuple[int, ...]:
        return (0,)

    def fits(self, kernel: TileKernel, target: Target, p: TileParameters) -> bool:
        return self.fits_threads(kernel, target, p)

    def write(self, kernel: TileKernel, target: Target, p: TileParameters, writer: Writer) -> tuple[Lines, int]:
        return _write_launch(kernel, p, writer)

    def seconds(self, kernel: TileKernel, target: Target, p: TileParameters, figures: Figures) -> float:
        return _seconds(kernel, target, p, figures)


class Reduction(Form):
    """Rows of one kernel, each reduced to a value or to several."""

    name = REDUCTION
    noun = "reduction"
    style = Style(by_parts=True)
    most_elements, most_of_thread = 32_768, 128

    def has(self, kernel: TileKernel, target: Target) -> bool:
        if kernel.attention is not None or kernel.rows is not None or not kernel.reductions:
            return False
        return kernel.contraction is None or not (kernel.epilogue_uses or kernel.grouped)

    def axes(self, kernel: TileKernel) -> tuple[Axes, ...]:
        return _arrangements(kernel, aside=not _reads_rows(kernel))

    def start(self, kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
        made = _first_of_rows(kernel, target, axes)
        return settled(kernel, target, made, self.elements(made))

    def values(self, kernel: TileKernel, target: Target, p: TileParameters, field: str) -> tuple[Any, ...]:
        match field:
            case "split":
                return SPLITS if may_split(kernel) else (1,)
            case "num_stages":
                return ROW_STAGES if copied_bytes(kernel, p) else (1,)
            case "evict_first":
                return streamed(kernel, target, p, _deaf(kernel, p), always=True)
            case "evict_last":
                return reused(kernel, target, p, _deaf(kernel, p))
        return super().values(kernel, target, p, field)

    def steps(self, kernel: TileKernel) -> tuple[int, ...]:
        count = stepped_extent(kernel)
        whole = power_of_two(count)
        most = max(whole, whole_row(count, itemsize_of_rows(kernel)))
        return tuple(1 << i for i in range(15) if 1 << i <= most and (1 << i >= min(whole, 4)))

    def may_split(self, kernel: TileKernel) -> bool:
        return may_split(kernel)

    def elements(self, p: TileParameters) -> int:
        return math.prod(p.tile) * max(1, p.reduce_tile)

    def fits(self, kernel: TileKernel, target: Target, p: TileParameters) -> bool:
        device, steps = device_of(target), steps_of(kernel, p)
        if (p.split > 1 and p.split > steps // 2) or not self.fits_threads(kernel, target, p):
            return False
        copied = copied_bytes(kernel, p) if p.num_stages > 1 else 0
        return device.blocks(p.num_stages) * copied <= device.shared_bytes

    def check(self, kernel: TileKernel, p: TileParameters) -> None:
        if kernel.grouped and kernel.contraction is not None:
            raise UnsupportedTile("form", "products of one launch are matmuls")
        if kernel.grouped and p.axes != (tuple(range(len(kernel.outputs))),):
            raise UnsupportedTile("axes", "products of one launch have tiles of rows")

    def write(self, kernel: TileKernel, target: Target, p: TileParameters, writer: Writer) -> tuple[Lines, int]:
        return _write_launch(kernel, p, writer)

    def seconds(self, kernel: TileKernel, target: Target, p: TileParameters, figures: Figures) -> float:
        displaced = _displaced(kernel, target, p)
        return _seconds(kernel, target, p, figures, ahead=p.num_stages, displaced=displaced)

    def is_untried(self, p: TileParameters) -> bool:
        return p.num_stages > 1


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
        height = max(1, min(ROWS_TILE // step, power_of_two(rows)))
        while height > 1 and rows < height * target.cores * 2:
            height //= 2
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


def _write_launch(kernel: TileKernel, parameters: TileParameters, writer: Writer) -> tuple[Lines, int]:
    """Tiles of a kernel, or of each product of a launch: a branch by the program's number where these are no one
    text."""
    depth = depth_of(kernel.reductions)
    sizes = (*parameters.tile, *_block_steps(kernel, parameters, depth))
    if math.prod(sizes) > MAX_BLOCK:
        raise UnsupportedTile("tile", f"a block has at most {MAX_BLOCK:,} elements")
    if not kernel.grouped:
        root = open_frame(kernel, writer, sizes)
        return root.lines, _write_tiles(kernel, parameters, root, root.lines.name("tl.program_id(0)", "program"))
    lines, groups, begin = Lines(writer), alike(kernel, parameters), 0
    number = lines.name("tl.program_id(0)", "program")
    for group in groups:
        (first, own), *_ = group
        frame = open_frame(first, writer, sizes, lines if len(groups) == 1 else Lines(writer, lines))
        inside = frame.lines.name(f"{number} - {begin}", "tile") if begin else number
        tiles = sum(math.prod(tiles_of(*one)) for one in group)
        _write_tiles(first, own, frame, bind_products(frame, group, inside))
        conditions = [f"({number} >= {begin})"] if begin else []
        conditions += [f"({number} < {begin + tiles})"] if group is not groups[-1] else []
        if conditions:
            lines.extend(f"if {' & '.join(conditions)}:", frame.lines)
        begin += tiles
    if begin >= 1 << 31:
        raise UnsupportedTile("grid", "2^31 programs or more")
    return lines, begin


def _write_tiles(kernel: TileKernel, parameters: TileParameters, root: Frame, number: str) -> int:
    """Writes what the program with a number does. Returns how many programs there are."""
    axes = axes_of(kernel, parameters)
    rest = rest_of(kernel, axes)
    counts = [parameters.split, *(extent(r) for r in rest), *(axis.tiles for axis in axes)]
    grid = math.prod(counts)
    if grid >= 1 << 31:
        raise UnsupportedTile("grid", "2^31 programs or more")
    digits = split_number(root, number, counts)
    for axis, digit in zip(rest, digits[1 : 1 + len(rest)], strict=True):
        bind_scalar(root, axis, digit)
    for place, (axis, digit) in enumerate(zip(axes, digits[1 + len(rest) :], strict=True)):
        bind_axis(root, axis, place, start_of(root, digit, axis))
    part = Part(digits[0], parameters.split)
    root.reduce = reducer(kernel, first_axis=len(axes), part=part, stages=parameters.num_stages)
    if parameters.split > 1:
        store_partials(root, kernel, part)
    else:
        for stored in kernel.stored:
            store_tile(root, stored)
    return grid


def _block_steps(kernel: TileKernel, parameters: TileParameters, depth: int) -> tuple[int, ...]:
    """The steps of reductions: the longest has that of the parameters, those inside or around it take one element."""
    if depth <= 1:
        return (parameters.reduce_tile,) * depth
    return (*(1,) * (depth - 1), parameters.reduce_tile)


# ---- what it costs


def _seconds(
    kernel: TileKernel, target: Target, p: TileParameters, f: Figures, *, ahead: int = 1, displaced: float = 0.0
) -> float:
    """A stream of bytes; loads of so many steps are on their way `ahead`, and of L2 so many bytes are displaced."""
    per_program = math.prod(p.tile) * max(1, p.reduce_tile)
    outputs = math.prod(kernel.extents)
    terms, steps = _terms_and_steps(kernel, p)
    held = {n for axis in p.axes for n in axis}
    others = math.prod(e for n, e in enumerate(kernel.extents) if n not in held)
    programs = math.prod(launched_tiles(kernel, p)) * others * p.split
    nbytes, used, moved = 0.0, 0.0, 0.0  # from memory; of each element in flight, and from L2
    for one, own in launched_with(kernel, p):
        for access in (*one.loads, one.store):
            # some parts of sectors come twice
            nbytes += bytes_of(access) * (1 + (_spread(access, one, own) - 1) / 2)
    for access in (*kernel.loads, kernel.store):
        each = min(1.0, spans_of(access) / max(1, outputs * terms)) * access.buffer.dtype.itemsize
        used += each
        moved += each * _spread(access, kernel, p)
    device = device_of(target)
    threads = device.threads(p.num_warps)
    elements = max(1, per_program // threads)
    whole = sum(spans_of(load) >= outputs * terms for load in kernel.loads)
    # of sums and maxima the compiler took 40 to 79 of 16 and 32 elements, of products of two 59 and 102, 180 of 64
    registers = min(device.registers_of_one, int(24 + (1.2 + 0.6 * max(1, whole)) * elements))
    together = device.resident(threads=threads, registers=registers)
    busy = min(programs, target.cores)
    turns = programs / (target.cores * together)
    waves = waves_of(turns)
    at_once = max(1.0, min(programs / target.cores, together))
    all_elements = programs * per_program * steps  # also those that do not exist
    nbytes += f.written_share * displaced
    flying = at_once * per_program * max(used, 0.5)
    stream_s = either(
        nbytes / f.memory_bytes,
        all_elements * moved / (f.l2_bytes * busy),
        all_elements * used / (flying / f.loaded_s * busy),
    )
    stream_s *= max(1.0, elements / MOST_HELD)
    work = sum(4 if n.op in SPECIAL else 1 for n in kernel.value.toposort())
    compute_s = all_elements * work / (f.plain_ops * busy) / 4
    # what one program waits for, others of its multiprocessor fill
    chain_s = waves * (f.opening_s / 2 + steps * (f.flight_s + f.cold_s) / ahead) / min(at_once, ENOUGH)
    return either(stream_s, compute_s, sharp=3) + chain_s


def _terms_and_steps(kernel: TileKernel, p: TileParameters) -> tuple[int, int]:
    """Terms of each value that is stored, and steps of a program's loops: of a reduction inside of others as many as it
    takes in all of theirs, of which each goes element by element."""
    terms = max(1, kernel.reduce_extent)
    deepest = depth_of(kernel.reductions) - 1
    if deepest < 1 or not p.reduce_tile:
        return terms, -(-terms // (p.reduce_tile * p.split)) if p.reduce_tile else 1
    loops = loops_of(kernel.reductions)
    steps = (times * -(-count // (p.reduce_tile if depth == deepest else 1)) for times, count, depth in loops)
    return max(times * count for times, count, _ in loops), -(-max(steps) // p.split)


def _displaced(kernel: TileKernel, target: Target, p: TileParameters) -> float:
    """Bytes of L2 that a reduction takes for what it reads: what kernels before wrote there has to go to memory."""
    kept: dict[int, float] = {}
    for one in kernel.launched:
        for number, load in enumerate(one.loads):
            if number not in p.evict_first:
                kept[load.buffer.slot] = bytes_of(load)
    return min(sum(kept.values()), float(target.cache_bytes))


def _spread(access: Access, kernel: TileKernel, p: TileParameters) -> float:
    """How many bytes move for one that is used, by the step along the direction in which a tile is longest."""
    steps = affine(access.address)
    if steps is None:
        return 2.0
    beside = [r for r, step in steps.items() if r is not None and abs(step) == 1]
    if not beside:
        return 1.0
    (axis,) = beside[:1]
    along = 1
    if axis in kernel.outputs:
        number = kernel.outputs.index(axis)
        for held, size in zip(p.axes, p.tile, strict=True):
            if number in held:  # ranges after it change faster
                faster = math.prod(kernel.extents[n] for n in held[held.index(number) + 1 :])
                along = max(1, size // faster)
    elif p.reduce_tile:
        along = p.reduce_tile
    width = min(along, extent(axis)) * access.buffer.dtype.itemsize
    return float(max(1.0, SECTOR / max(1, width)))
