"""What a tile program takes, in seconds, from its parameters and figures of the target: no program is compiled.

Contractions: a program is a chain of steps, each waiting for its loads or for the tensor core; the programs of a
multiprocessor share its tensor core, its way to L2 and its memory; they run in waves. Everything else is a stream of
bytes, slower where few are in flight. A handful of constants is fitted to measured times (`Figures`); the rest is
published. It is to rank programs of one kernel: what all of them pay alike is only roughly right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.ast import affine, extent
from kcg.kernel.reading.accesses import Access
from kcg.kernel.reading.attention import padded
from kcg.kernel.reading.depth import depth_of, loops_of
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.attention import attention_tiles, blocks_of_tiles, reach_of, reached_share, visited_blocks
from kcg.kernel.tile.contraction import stored_width, sub_tiles_of
from kcg.kernel.tile.device import Figures, device_of, figures_of
from kcg.kernel.tile.emit import runs_of
from kcg.kernel.tile.generate import halved, may_stream_k, partials_of
from kcg.kernel.tile.parameters import (
    ATTENTION,
    CONTRACTION,
    PIPELINED,
    REDUCTION,
    ROWS,
    SPECIALIZED,
    TF32,
    TMA,
    TileParameters,
)
from kcg.kernel.tile.prior import (
    attention_bytes,
    attention_clocks,
    axis_of_others,
    launched_tiles,
    loaded_along,
    pair_registers,
    reads_beside_rows,
    row_loops,
    row_registers,
    shared_taken,
    step_clocks,
    sums_of,
)
from kcg.kernel.tile.tiles import Axis, launched_with
from kcg.types import Target

UNTRIED = 0.005
"""What an eviction policy (a reduction's first ones aside), a limit of registers or loads ahead in a loop over rows
cost until it is measured: what is known to matter comes first."""
LAUNCH_S = 5e-6
"""Of a launch between two events, whatever it does."""
BESIDE_SUMS = 56  # registers of a thread beside its float32 sums
OPENING, HIDDEN = 3, 0.85
"""Blocks of keys that take as long as what a tile of attention takes beside its own, by specialised warps; of this what
is hidden behind the tile before, where a program takes tiles in turn. By five attentions on one H100: in turn they took
.94, .92, 1.05, 1.04 and .91 of what a program a tile takes, by these figures .95, .92, 1.10, 1.01 and .99."""
ATTENTION_STEP_S = 1e-7  # of a step of attention beside its loads, products and weights: a guess
ENOUGH = 6  # programs of a multiprocessor, for its memory to be busy while some of them wait
NEIGHBOURS = 16
"""Programs with consecutive numbers that run side by side: a block that several of them ask for comes from L2 once."""
SPECIAL = (Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.SQRT, Ops.RECIPROCAL)
WIDEST = 256  # columns of a product on a tensor core
LARGEST = 128 * WIDEST  # elements of a contraction's tile
LEAST_COPY = 4  # bytes of an asynchronous copy
MOST_APART = 2  # times the work of it, where neighbours of a warp are apart
MOST_COPY = 16  # bytes that a thread moves at once
PIPELINED_SHARE = 0.82  # of the tensor core, as sustained over a whole launch: of five matmuls on one H100
PIPELINED_PAIRS = 3  # times their epilogue: Flux's query, key and value took 440 µs, by the plain form 392 (one H100)
MOST_HELD = 64  # elements of a thread in rows: with 128 the compiler spilled, and a program took three times its bytes
BY_ELEMENT = 3  # times the work of rows whose pairs are loaded element by element: 38 instead of 13 instructions
SPILLED = 32  # registers too few of a thread for which a program takes twice as long
SECTOR = 32  # bytes that memory moves at least


def predicted_seconds(kernel: TileKernel, target: Target, p: TileParameters, figures: Figures | None = None) -> float:
    """What a program takes, launches included."""
    figures = figures or figures_of(target)
    busy = {
        CONTRACTION: _contraction,
        PIPELINED: _pipelined,
        ROWS: _row_reduction,
        **dict.fromkeys(ATTENTION, _attention),
    }.get(p.form, _rows)
    seconds = busy(kernel, target, p, figures)
    if p.split > 1:
        partials = 4 * p.split * partials_of(kernel)
        seconds += LAUNCH_S / 2 + 2 * partials / figures.partial_bytes
    untried = bool(p.evict_last) + bool(p.maxnreg)
    untried += p.num_stages > 1 if p.form == REDUCTION else bool(p.evict_first)
    return LAUNCH_S + seconds * (1 + UNTRIED * untried)


# ---- contractions


def idle_share(kernel: TileKernel, target: Target) -> float:
    """The share of a contraction's time for which its last wave leaves multiprocessors idle, with the largest tiles."""
    waves = math.prod(kernel.extents) / (LARGEST * max(1, target.cores))
    return 1 - waves / math.ceil(waves)


@dataclass(frozen=True)
class Tile:
    """What a program takes for one tile of a contraction, in seconds."""

    chain_s: float  # its steps, each waiting for the one before
    shared_s: float  # of these what programs of a multiprocessor share
    epilogue_s: float
    part_s: float  # in place of the epilogue: a part of its sums is stored
    opening_s: float
    crowding: float

    def wave(self, programs: int, *, opens: bool = True, parts: int = 1) -> float:
        """So many programs on a multiprocessor, each with one tile, or one of so many parts of it."""
        end_s = self.epilogue_s if parts == 1 else self.part_s
        alone = self.chain_s / parts + end_s + (self.opening_s if opens else 0.0)
        crowded = 1 + self.crowding if programs > 1 else 1.0
        return _either(alone, programs * (self.shared_s / parts * crowded + end_s / 2), sharp=6)


def _contraction(kernel: TileKernel, target: Target, p: TileParameters, f: Figures) -> float:
    assert kernel.contraction is not None
    batch = math.prod(kernel.extents[n] for n in kernel.contraction.batch)
    counts = launched_tiles(kernel, p)
    tiles = counts[0] * counts[1] * batch * p.split
    together = _resident(kernel, target, p)
    slots = target.cores * together
    nbytes, missing = _traffic(kernel, p, counts, slots, target.cache_bytes)
    flight_s = f.flight_s + f.cold_s * max(missing, _cold(p, counts, tiles / slots))
    tile = _tile(kernel, p, f, tiles, flight_s)
    programs = target.cores * max(1, p.persistent)  # that tiles are counted by where the last wave's are shared
    left = tiles % programs
    sums_s = LAUNCH_S / 2 + 8 * left * p.tail * math.prod(p.tile) / f.partial_bytes
    if p.persistent:
        rounds = -(-p.persistent // together)  # where not all programs run at once
        turns_s = len(kernel.launched) * tile.opening_s + tiles // programs * tile.wave(together, opens=False)
        if p.tail > 1 and not may_stream_k(kernel):
            turns_s += _tile(kernel, halved(p), f, 2 * tiles, flight_s).wave(together)
        elif left:
            turns_s += -(-left * p.tail // programs) * tile.wave(together, opens=False, parts=p.tail)
            turns_s += sums_s / rounds if p.tail > 1 else 0.0
        busy_s = rounds * turns_s
    elif p.tail > 1:
        part_s = tile.opening_s + tile.chain_s / p.tail + tile.part_s
        busy_s = tiles // programs * tile.wave(1) + -(-left * p.tail // programs) * part_s + sums_s
    else:
        full, left = divmod(tiles, slots)
        last = -(-left // target.cores)
        spare = 1.0 - left / max(1, last * target.cores)
        busy_s = full * tile.wave(together) + (tile.wave(last) * (1.0 - f.spare_share * spare) if left else 0.0)
    return _either(busy_s, nbytes / f.memory_bytes, sharp=3) * _spilled(pair_registers(kernel, target, p), target, p)


def _tile(kernel: TileKernel, p: TileParameters, f: Figures, tiles: int, flight_s: float) -> Tile:
    """One tile of so many, whose loads take so long from their issue to their data."""
    contraction = kernel.contraction
    assert contraction is not None
    itemsize = contraction.sides[0].dtype.itemsize
    counts = launched_tiles(kernel, p)
    steps = max(1, -(-kernel.terms // (p.reduce_tile * p.split)))

    product_s = 2 * sums_of(kernel, p) * p.reduce_tile / (f.tensor_ops * _tensor_share(p, itemsize, f))
    products = len(sub_tiles_of(p.tile[1])) * len(kernel.together)
    product_s *= 1 + f.piece_share * (products - 1) + f.pointer_share * (p.loads != TMA)
    loaded = loaded_along(kernel, p)
    load_s = sum(loaded) * p.reduce_tile * itemsize / f.block_bytes
    apart_s = _apart(p, loaded, counts, tiles) * p.reduce_tile * itemsize / f.apart_bytes
    waiting_s = (flight_s + load_s + f.product_share * product_s) / max(p.num_stages - 1, 0.5)
    step_s = f.step_s
    held_s = _held(kernel, p, f)
    if held_s:  # what goes through registers is waited for in its own step
        step_s += held_s + flight_s
    chain_s = steps * (_either(product_s, waiting_s, load_s, apart_s) + step_s)
    shared_s = steps * _either(product_s, load_s, apart_s, held_s)
    part_s = 4 * math.prod(p.tile) / f.store_bytes
    opening_s = f.opening_s + f.fill_s + flight_s + (f.descriptors_s if p.loads == TMA else 0.0)
    return Tile(chain_s, shared_s, _epilogue(kernel, p, f), part_s, opening_s, f.crowding)


def _pipelined(kernel: TileKernel, target: Target, p: TileParameters, f: Figures) -> float:
    """Turns of a tile each, one after the other: loads are never waited for but at the start."""
    counts = launched_tiles(kernel, p)
    turns = -(-math.prod(counts) // target.cores)
    steps = max(1, -(-kernel.terms // p.reduce_tile))
    step_s = 2 * math.prod(p.tile) * p.reduce_tile / (PIPELINED_SHARE * f.tensor_ops)
    nbytes, _ = _traffic(kernel, p, counts, target.cores, target.cache_bytes)
    opening_s = f.opening_s + f.fill_s + f.descriptors_s
    finish_s = _epilogue(kernel, p, f) * (PIPELINED_PAIRS if any(b.pairs for b in kernel.epilogue) else 1)
    busy_s = opening_s + turns * (steps * step_s + finish_s)
    return _either(busy_s, nbytes / f.memory_bytes, sharp=3)


def _spilled(registers: float, target: Target, p: TileParameters) -> float:
    """How many times as long it takes for want of registers."""
    most = device_of(target).registers_of_thread(p.num_warps)
    return 1 + max(0.0, registers - min(p.maxnreg or most, most)) / SPILLED


def _apart(p: TileParameters, loaded: tuple[int, int], counts: Sequence[int], tiles: int) -> float:
    """Rows and columns for each of some neighbours in one step, where those that several ask for count once."""
    near = max(1, min(NEIGHBOURS, tiles))
    high = min(near, p.group, counts[0]) if counts[1] > 1 else min(near, counts[0])
    wide = min(counts[1], -(-near // high))
    high = max(high, min(counts[0], near // wide))
    return (high * loaded[0] + wide * loaded[1]) / near


def _held(kernel: TileKernel, p: TileParameters, f: Figures) -> float:
    """Seconds of one step in which a multiprocessor moves operands through registers, element by element: rows of odd
    length are aligned to less than an asynchronous copy takes."""
    contraction = kernel.contraction
    assert contraction is not None
    reduced = tuple(contraction.reduce.src[1:])
    sizes = {p.axes[0]: p.tile[0], p.axes[1]: p.tile[1]}
    stored = (p.tile[0], stored_width(p.tile[1], p.epilogue_parts))
    at_once = _at_once(kernel, kernel.store, p) // kernel.store.buffer.dtype.itemsize
    seconds = 0.0
    for load in kernel.loads:
        own = {number for number, axis in enumerate(kernel.outputs) if axis in load.node.ranges}
        size = next((size for held, size in sizes.items() if own & set(held)), 0)
        if load in kernel.epilogue_loads or not size or not set(reduced) & set(load.node.ranges):
            continue
        if _at_once(kernel, load, p) >= LEAST_COPY:
            continue
        block = (p.tile[0], p.reduce_tile) if own & set(p.axes[0]) else (p.reduce_tile, p.tile[1])
        apart = max(1, at_once) if block == stored else 1  # Triton gives a thread as many neighbours as it stores
        seconds += size * p.reduce_tile * min(apart, MOST_APART) / f.held_elements
    return seconds


def _at_once(kernel: TileKernel, access: Access, p: TileParameters) -> int:
    """Bytes that a thread may move at once of an access of a contraction's tile, by what is known of its address."""
    assert kernel.contraction is not None
    steps, itemsize = access.steps, access.buffer.dtype.itemsize
    if steps is None or access.gates:
        return int(itemsize)
    axes: list[tuple[tuple[UOp, ...], int]] = [(tuple(kernel.contraction.reduce.src[1:]), p.reduce_tile)]
    axes += [
        (tuple(kernel.outputs[n] for n in held), math.gcd(*(width for _, width in sub_tiles_of(size))))
        for held, size in zip(p.axes, p.tile, strict=True)
    ]
    found: int = 1
    for ranges, size in axes:
        first, last = runs_of(ranges, steps)[-1]
        if steps.get(ranges[-1], 0) == 1:
            whole = math.prod(extent(r) for r in ranges[first : last + 1])
            others = [step for r, step in steps.items() if r not in ranges[first : last + 1]]
            found = max(found, math.gcd(size, *(() if first == 0 else (whole,)), *others))
    return min(found * int(itemsize), MOST_COPY)


def _cold(p: TileParameters, counts: Sequence[int], turns: float) -> float:
    """The share of waves that find blocks of an operand in memory, not in L2: all until each column was taken once."""
    return min(1.0, max(1 / max(turns, 1.0), min(p.group, counts[0]) / counts[0]))


def _either(*seconds: float, sharp: float = 4) -> float:
    """Whatever takes longest, and somewhat more where several take about as long."""
    longest = max(seconds)
    return longest * float(sum((s / longest) ** sharp for s in seconds)) ** (1 / sharp) if longest > 0 else 0.0


def _tensor_share(p: TileParameters, itemsize: int, f: Figures) -> float:
    """How much of the tensor core a tile can use, its pieces one after the other."""
    widths = [width for _, width in sub_tiles_of(p.tile[1])]
    return p.tile[1] / sum(width / _piece_share(p, width, itemsize, f) for width in widths)


def _piece_share(p: TileParameters, columns: int, itemsize: int, f: Figures) -> float:
    """How much of the tensor core a product can use: narrow ones wait for their operands in shared memory."""
    rows = p.tile[0]
    groups = max(1, p.num_warps // f.group_warps)
    inner = columns if rows >= f.group_rows * groups else max(16, columns * rows // (f.group_rows * groups))
    share = min(1.0, inner / (inner + f.narrow) * (1 + f.narrow / WIDEST))
    if rows < f.group_rows or p.num_warps < f.group_warps:  # not wgmma
        share *= 0.6 * min(1.0, rows / f.group_rows)
    of_float32 = f.tf32_share if p.precision == TF32 else f.float32_share
    return float(share * (2 / itemsize if itemsize <= 2 else of_float32))


def _resident(kernel: TileKernel, target: Target, p: TileParameters) -> int:
    """Programs that a multiprocessor runs at once."""
    device = device_of(target)
    threads = device.threads(p.num_warps)
    sums, elements = (count // threads for count in (sums_of(kernel, p), math.prod(p.tile)))
    registers = sums + BESIDE_SUMS + (elements // 2 if p.read_early else 0)
    registers = min(device.registers_of_one, max(registers, int(pair_registers(kernel, target, p))))
    if p.warp_specialize:
        threads *= 3
    shared = max(1, shared_taken(kernel, target, p))
    most = device.resident(threads=threads, registers=registers, shared_bytes=shared)
    return min(most, p.persistent) if p.persistent else most


def _epilogue(kernel: TileKernel, p: TileParameters, f: Figures) -> float:
    """Of one tile: what is computed of its sums, read beside them, and stored."""
    contraction = kernel.contraction
    assert contraction is not None
    elements = math.prod(p.tile)
    if p.split > 1:
        return 4 * sums_of(kernel, p) / f.store_bytes
    special = sum(n.op in SPECIAL for n in kernel.finishing)
    if p.fast_math and special > 1:
        special -= 1  # exponential and reciprocal are one tanh
    nbytes, held = 0.0, 0.0
    read = () if p.read_early else kernel.epilogue_loads  # else it comes while the loop runs
    for access in (*_stores(kernel), *read):
        share = min(1.0, access.buffer.size / max(1, kernel.store.buffer.size))
        nbytes += access.buffer.dtype.itemsize * share
        held += share * (_at_once(kernel, access, p) < LEAST_COPY)
    moved_s = nbytes / f.store_bytes + held / f.held_elements
    return float(elements) * (moved_s + special / f.special_ops + len(kernel.finishing) / f.plain_ops)


def _stores(kernel: TileKernel) -> list[Access]:
    """What is stored of a contraction's sums, element by element; the sums themselves where others use them."""
    return [stored.store for stored in kernel.plain] or [kernel.store]


def _traffic(
    kernel: TileKernel, p: TileParameters, counts: Sequence[int], slots: int, cache_bytes: int
) -> tuple[float, float]:
    """Bytes from and to memory, and the share of the columns' blocks that are not in L2 when a wave asks for them.

    Rows of tiles are gone through in groups; each group asks for all columns again, which L2 holds only if all that is
    asked for in between leaves room for them.
    """
    contraction = kernel.contraction
    assert contraction is not None
    batch = max(1, math.prod(kernel.extents[n] for n in contraction.batch))
    itemsize = contraction.sides[0].dtype.itemsize
    loaded = loaded_along(kernel, p)
    rows, columns = (count * size * kernel.terms * itemsize for count, size in zip(counts, loaded, strict=True))
    group = min(p.group, counts[0])
    passes = max(1.0, min(counts[0] / group, counts[0] * counts[1] / slots))
    between = columns + group * rows / counts[0]
    missing = min(1.0, max(0.0, 2 * between / max(1, cache_bytes) - 1)) if passes > 1 else 0.0
    others = sum(
        min(access.buffer.size, kernel.store.buffer.size) * access.buffer.dtype.itemsize
        for one in kernel.launched
        for access in (*_stores(one), *one.epilogue_loads)
    )
    copies = [1, 1]
    if kernel.grouped_rows:  # each has an operand of its own on either side
        copies[1 - axis_of_others(kernel, p)] = len(kernel.launched)
    once = rows * copies[0] + columns * copies[1]
    return batch * (once + columns * (passes - 1) * missing) + others, missing


# ---- everything else is a stream of bytes


def _rows(kernel: TileKernel, target: Target, p: TileParameters, f: Figures) -> float:
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
            nbytes += _bytes(one, access) * (1 + (_spread(access, one, own) - 1) / 2)
    for access in (*kernel.loads, kernel.store):
        each = min(1.0, _spans(kernel, access) / max(1, outputs * terms)) * access.buffer.dtype.itemsize
        used += each
        moved += each * _spread(access, kernel, p)
    device = device_of(target)
    threads = device.threads(p.num_warps)
    elements = max(1, per_program // threads)
    whole = sum(_spans(kernel, load) >= outputs * terms for load in kernel.loads)
    # of sums and maxima the compiler took 40 to 79 of 16 and 32 elements, of products of two 59 and 102, 180 of 64
    registers = min(device.registers_of_one, int(24 + (1.2 + 0.6 * max(1, whole)) * elements))
    together = device.resident(threads=threads, registers=registers)
    busy = min(programs, target.cores)
    turns = programs / (target.cores * together)
    waves = max(1.0, math.ceil(turns) if turns < 4 else turns)
    at_once = max(1.0, min(programs / target.cores, together))
    all_elements = programs * per_program * steps  # also those that do not exist
    nbytes += f.written_share * _displaced(kernel, target, p)
    flying = at_once * per_program * max(used, 0.5)
    stream_s = _either(
        nbytes / f.memory_bytes,
        all_elements * moved / (f.l2_bytes * busy),
        all_elements * used / (flying / f.loaded_s * busy),
    )
    stream_s *= max(1.0, elements / MOST_HELD)
    work = sum(4 if n.op in SPECIAL else 1 for n in kernel.value.toposort())
    compute_s = all_elements * work / (f.plain_ops * busy) / 4
    ahead = p.num_stages if p.form == REDUCTION else 1
    # what one program waits for, others of its multiprocessor fill
    chain_s = waves * (f.opening_s / 2 + steps * (f.flight_s + f.cold_s) / ahead) / min(at_once, ENOUGH)
    return _either(stream_s, compute_s, sharp=3) + chain_s


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
    if p.form != REDUCTION:
        return 0.0
    for one in kernel.launched:
        for number, load in enumerate(one.loads):
            if number not in p.evict_first:
                kept[load.buffer.slot] = _bytes(one, load)
    return min(sum(kept.values()), float(target.cache_bytes))


def _bytes(kernel: TileKernel, access: Access) -> float:
    """Bytes of memory that an access reaches."""
    return min(_spans(kernel, access), access.buffer.size) * int(access.buffer.dtype.itemsize)


def _spans(kernel: TileKernel, access: Access) -> float:
    """Elements that an access reaches."""
    return float(math.prod(extent(r) for r in access.address.ranges))


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


# ---- several kernels over the same rows


def _row_reduction(kernel: TileKernel, target: Target, p: TileParameters, f: Figures) -> float:
    """Rows that are read and written once where a program holds them whole; else once for each loop, from L2 where
    those that are worked on at once fit into it."""
    assert kernel.rows is not None
    rows, height, width = kernel.rows, math.prod(p.tile), p.reduce_tile
    reads: dict[int, float] = {}
    for load in kernel.loads:
        reads[load.buffer.slot] = max(reads.get(load.buffer.slot, 0.0), _bytes(kernel, load))
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
    waves = max(1.0, math.ceil(turns) if turns < 4 else turns)
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
    return _either(nbytes / f.memory_bytes, moved_s, compute_s, chain_s, sharp=3) * _spilled(wanted, target, p)


def _table_bytes(kernel: TileKernel) -> float:
    """Bytes of tables, for each element of a row, that rows may share."""
    assert kernel.rows is not None
    rows, found = kernel.rows, dict[int, float]()
    for shared, own in rows.apart:
        for load in kernel.loads:
            if set(own) & set(load.address.ranges) and not set(shared) & set(load.address.ranges):
                found[load.buffer.slot] = load.buffer.size * load.buffer.dtype.itemsize / math.prod(map(extent, own))
    return sum(found.values()) / rows.width


# ---- attention


def _attention(kernel: TileKernel, target: Target, p: TileParameters, f: Figures) -> float:
    """Two products in each step and the exponentials between them, which wait for each other unless other warps have
    something to do meanwhile. Specialised warps are judged by clocks. Where a mask bounds the keys, tiles with few of
    them are last and fill the last wave."""
    attention = kernel.attention
    assert attention is not None
    opening_s = f.opening_s + f.flight_s + (f.descriptors_s if p.loads == TMA else 0.0)
    reach = reach_of(attention)
    nbytes = sum(
        _bytes(kernel, x) * (reached_share(reach, attention.keys) if attention.keys in x.address.ranges else 1.0)
        for x in (*kernel.loads, kernel.store)
    )
    if p.form == SPECIALIZED:
        busy_s = _specialized_clocks(kernel, target, p) / (f.tensor_ops / (2 * f.products_a_clock))  # as sustained
        return _either(busy_s + opening_s, nbytes / f.memory_bytes, sharp=3)
    device, (height,), step = device_of(target), p.tile, p.reduce_tile
    threads = device.threads(p.num_warps)
    inner, width = padded(attention.scores.reduce.src[1:]), padded(attention.columns)
    programs = attention_tiles(kernel, height) * p.split
    mean, most = visited_blocks(reach, Axis(attention.rows, height), extent(attention.keys), step)
    longest = -(-most // p.split)
    steps = max(1.0, mean / p.split) if reach.is_bounded else longest  # of a tile, on average
    itemsize = attention.values.dtype.itemsize
    groups = max(1, p.num_warps // f.group_warps)
    whole = height >= f.group_rows * groups and p.num_warps >= f.group_warps
    tensor = f.tensor_ops * (2 / itemsize if itemsize <= 2 else f.float32_share) * (1.0 if whole else 0.5)
    products_s = 2 * height * step * (inner + width) / tensor
    between = reach.within(attention.weight).toposort(gate=lambda n: n is not attention.scores.reduce)
    special, plain = sum(n.op in SPECIAL for n in between), len(between) + 6
    weights_s = height * step * (special / f.special_ops + plain / f.plain_ops)
    load_s = step * (inner + width) * itemsize / f.l2_bytes
    registers = min(device.registers_of_one, height * (step + width) // threads + BESIDE_SUMS)
    shared = attention_bytes(kernel, target, p)
    together = device.resident(threads=threads, registers=registers, shared_bytes=shared)
    together = max(1, min(together, -(-programs // max(1, target.cores))))
    groups *= together
    waiting_s = (f.flight_s + load_s) / max(p.num_stages - 0.5, 0.5)
    alone_s = products_s + weights_s + waiting_s * 0.5
    step_s = max(products_s, weights_s, load_s, alone_s / (1 + 0.5 * (groups - 1))) + ATTENTION_STEP_S
    slots = target.cores * together
    turns = programs / slots
    if reach.is_even:
        waves = max(1.0, math.ceil(turns) if turns < 4 else turns)
    else:
        waves = max(turns, longest / steps / together)
    return _either(waves * together * steps * step_s + opening_s, nbytes / f.memory_bytes, sharp=3)


def _specialized_clocks(kernel: TileKernel, target: Target, p: TileParameters) -> float:
    """About how many clocks specialised warps take. Programs that take tiles in turn have as many each, which the first
    one has most keys of; else whoever is done has the next tile."""
    attention, (rows,), cores = kernel.attention, p.tile, max(1, target.cores)
    assert attention is not None
    tiles, clocks = attention_tiles(kernel, rows), step_clocks(kernel, target, rows, p.reduce_tile)
    others = math.ceil(tiles / cores) - 1  # tiles behind the first one
    if not p.persistent:
        return attention_clocks(kernel, target, rows, p.reduce_tile) + OPENING * (1 + others) * clocks
    counts = blocks_of_tiles(reach_of(attention), Axis(attention.rows, rows), extent(attention.keys), p.reduce_tile)
    heads, longest_first = tiles // len(counts), sorted(counts, reverse=True)
    steps = sum(longest_first[number // heads] for number in range(0, tiles, cores))
    return (steps + OPENING * (1 + others * (1 - HIDDEN))) * clocks
