"""The analytic prior: the parameters that a kernel starts with on a target, for each form and arrangement of axes.

The rules are those that others measured on Hopper: a tile of at most 128 × 256 and 32,768 accumulators, 8 warps from
16,384, halved while the last wave leaves a fifth of the multiprocessors idle; 8,192 bytes of an elementwise tile; rows
that fit into registers in one pass, 16 elements a thread; sums along another axis than memory's by 32 to 64 bytes of
many rows.
"""

from __future__ import annotations

import math
from dataclasses import replace

from kcg.compat.tiny import UOp, dtypes
from kcg.kernel.ast import affine, extent
from kcg.kernel.reading.accesses import Access
from kcg.kernel.reading.attention import LEAST, WIDEST, padded
from kcg.kernel.reading.depth import depth_of
from kcg.kernel.reading.factors import NARROW
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.online import shifted_sums
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.attention import attention_axes, attention_tiles, reach_of, visited_blocks
from kcg.kernel.tile.contraction import MIN_BYTES_TILE, MIN_TILE, fits_epilogue, stored_width
from kcg.kernel.tile.device import Device, device_of
from kcg.kernel.tile.emit import keeps_tail
from kcg.kernel.tile.eviction import read_once
from kcg.kernel.tile.generate import can_describe, may_split, may_stream_k, stores_by_tma
from kcg.kernel.tile.gluon import GROUP_ROWS
from kcg.kernel.tile.parameters import (
    ATTENTION,
    CONTRACTION,
    ELEMENTWISE,
    FLASH_ATTENTION,
    PIPELINED,
    REDUCTION,
    ROWS,
    SPECIALIZED,
    TMA,
    TileParameters,
)
from kcg.kernel.tile.pipelined import STEP, TILES, can_pipeline, leaving_bytes, parts_of
from kcg.kernel.tile.reduction import stepped_extent
from kcg.kernel.tile.row_reduction import VECTOR_BYTES, axes_apart, row_axes
from kcg.kernel.tile.specialized import PROGRAM_ROWS, QUERY_SLOTS, STEPS, can_specialize, fits_registers
from kcg.kernel.tile.targets import most_specialized_stages
from kcg.kernel.tile.tiles import Axis, launched_with, tiles_of
from kcg.types import Target

COMPILER_BYTES = 1_056  # barriers and padding, the most seen
BETWEEN_BOUNDS = 64  # keys of a step of four warps, where three loops go through them: of 128 they spilled 468 bytes
WGMMA_ROWS = 64  # of the result, which a group of four warps holds
PAIR_REGISTERS = 1.9  # of a thread for each column that it makes something of, beside its sums
SHARED_COLUMNS = 76  # registers of a thread that puts halves of shared columns together
COPY_REGISTERS = 5  # of a thread for each 16 bytes that it copies in a step
BETWEEN_STEPS = 300  # clocks of a step of specialised warps in which neither is made: a guess
NARROW_HEAD = 64  # elements of a query and of a value
SPECIALIZED_BYTES = 32 << 10  # of a warp specialised program's result, at least
Axes = tuple[tuple[int, ...], ...]
"""Which output ranges each axis of a tile holds, see `TileParameters.axes`."""

WIDE_TILE = 16_384  # from here on 256 threads
LEAST_PIPELINED = 128  # rows and columns of a product by specialised warps
TURN = 2_048  # elements of a tile that take as long as what each takes beside them
LEAST_BESIDE = 31  # registers of a thread beside its sums
MOST_WARPS = 16  # of a program that multiplies
MOST_ATTENTION_WARPS = 8  # of an attention
MOST_UNROLLED = {FLASH_ATTENTION: 2_048, CONTRACTION: 4_096}
"""Multiplications of a thread in one step without tensor cores, each an instruction. Of contractions 4,096 take 2 s to
compile, 10 and 48 are taken by 2 and 4 times as many, which spill. Of attention, which makes two products, 2,048 take 5
to 12 s; 4,096 take up to 14 s and spill 33 to 37 KB, 8,192 take 38 s and spill 82 KB (Triton 3.9, sm_90)."""
FEW_ROWS = 8  # below, a tensor core's 16 rows are mostly padding: the product is summed without one
ROW_IN_REGISTERS = 16_384  # elements of a row that one program reduces in one pass
LOOP_TILE = 2_048
STEP_BYTES = 16_384  # of a row in one step: what a program of 256 threads keeps in flight
STRIDED_TILE = 8_192  # elements of a block whose rows are reduced along another axis than memory's
EACH = 16  # elements of a thread, by which 8 programs of 256 threads fill a multiprocessor
ROWS_TILE = 4_096  # elements of a reduction's block
PERSISTENT_ROW = 32_768  # elements of a row that a program keeps while several kernels' values are made of it
MOST_OF_PRIOR = 128  # registers of a thread that holds rows
LOOPED_ROW = 16_384  # of a longer one in each step
ROW_OF_THREAD = 32  # elements of a row that each thread of one warp holds
SHARING_ROWS = 4  # of a program, that share tables
KEY_SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128)
"""Programs that share the keys of an attention."""
BUSY, NEARLY = 0.8, 0.85  # of the multiprocessors, and of the best wave's efficiency
FEW_STEPS = 4  # of keys, which are not split
FEW_PROGRAMS = 4  # of a multiprocessor: then they wait for memory more than for each other
SHORT_TERMS, SHORT_TILE = 128, (64, 128)
"""A contraction of so few terms is a stream of bytes where it reads something beside each sum: small tiles, many of
them at once, each of which has asked for all it reads. (46.8 µs for 53.4 with large ones: 256 × 3,136 of 64.)"""


def shared_taken(kernel: TileKernel, target: Target, parameters: TileParameters) -> int:
    """About how much shared memory a contraction's program takes, in bytes: the ring of its operands' blocks, and with
    TMA the part of the result that is on its way out, which has the ring's place where the program ends with it. Of 50
    programs whose operands are loaded as they stand the compiler said from 28 % less to 1 % more; of 90 whose operands
    are computed, as floats of 16 bits, as much for all but one, which took 14 % more.
    """
    assert kernel.contraction is not None
    if kernel.grouped:
        return max(shared_taken(one, target, own) for one, own in launched_with(kernel, parameters))
    rows, columns = parameters.tile
    device = device_of(target)
    ring = _ring_bytes(kernel, device, parameters)
    widest = max(int(one.store.buffer.dtype.itemsize) for one in kernel.written)
    if parameters.form == PIPELINED:
        return ring + leaving_bytes(kernel, parameters) + COMPILER_BYTES
    if parameters.loads != TMA:
        if not parameters.persistent or kernel.is_branching or (parameters.tail > 1 and may_stream_k(kernel)):
            return ring
        # the next tile's loads begin while this one is on its way out, at most 64 elements of 16 bits a thread at once
        elements = rows * stored_width(columns, parameters.epilogue_parts)
        widest = max(widest, *(int(x.buffer.dtype.itemsize) for x in _loads_of_epilogue(kernel, parameters)), 0)
        leaving = (elements if widest >= 4 else min(elements, 64 * device.threads(parameters.num_warps))) * widest
        return ring + max(leaving, elements * _joined_bytes(kernel, parameters))
    # what is read beside the result for each element is read side by side, so that the float32 sums move there first
    stored = int(kernel.store.buffer.dtype.itemsize)
    itemsize = 4 if reads_in_epilogue(kernel, parameters) else stored
    joined = _joined_bytes(kernel, parameters)
    if not stores_by_tma(kernel, parameters):  # of few rows or shared columns float32 sums move, halves of these twice
        moved = rows < 2 * WGMMA_ROWS or shares_columns(parameters)
        itemsize = max(4 if moved else stored, 2 * joined)
    elif kernel.is_branching:  # the loop is not flattened: what no descriptor stores has the ring's place
        itemsize = stored if kernel.plain else 0
    elif kernel.epilogue_uses:  # by a descriptor, and one after another through pointers
        itemsize = joined + widest + (stored if kernel.plain else 0)
    elif joined:
        itemsize = joined + stored
    leaving = rows * stored_width(columns, parameters.epilogue_parts) * itemsize
    if parameters.warp_specialize:
        leaving = max(leaving, SPECIALIZED_BYTES)
    return (ring + leaving if parameters.persistent else max(ring, leaving)) + COMPILER_BYTES


def _ring_bytes(kernel: TileKernel, device: Device, p: TileParameters) -> int:
    """What is loaded for a contraction, in bytes. An operand that is loaded as it stands has a block for each stage; of
    one that is computed each load has one less, and the columns' its result. That of the rows stays in registers, or
    moves through shared memory where the other one is computed too."""
    assert kernel.contraction is not None
    itemsize, sides = int(kernel.contraction.sides[0].dtype.itemsize), kernel.loading
    if sorted(p.axes[0]) != sorted(kernel.contraction.sides[0].ranges):
        sides = sides[::-1]
    both = not any(one.as_it_is for side in sides for one in side)
    total = 0
    for place, (size, operands) in enumerate(zip(p.tile, sides, strict=True)):
        for one in operands:
            if one.as_it_is:
                total += device.blocks(p.num_stages) * itemsize * size
            else:
                held = place == 1 or both
                total += (p.num_stages - 1) * (one.bytes_each * size + one.bytes_term) + held * itemsize * size
    return total * p.reduce_tile


def shares_columns(p: TileParameters) -> bool:
    """Whether groups of four warps share the columns of a contraction's tile: there are more of them than rows."""
    return WGMMA_ROWS <= p.tile[0] < p.num_warps * WGMMA_ROWS // 4


def pair_registers(kernel: TileKernel, target: Target, p: TileParameters) -> float:
    """About how many registers a thread takes while it makes something of pairs of a contraction's columns: for its
    sums, more for each that is in work, and addresses of what it copies for the loop; 0 where nothing is made of pairs.
    Of 12 programs of Flux's query, key and value this says of 10 by Triton 3.9, and of 8 by 3.6, whether they spill; of
    those through pointers it expects too much.
    """
    assert kernel.contraction is not None
    if kernel.grouped:
        return max(pair_registers(one, target, own) for one, own in launched_with(kernel, p))
    if not any(branch.pairs for branch in kernel.epilogue):
        return 0
    threads, itemsize = device_of(target).threads(p.num_warps), kernel.contraction.sides[0].dtype.itemsize
    sums = math.prod(p.tile) // threads
    found = sums + PAIR_REGISTERS * (sums / p.epilogue_parts)
    if p.epilogue_parts > 1 and shares_columns(p):
        found += SHARED_COLUMNS
    if p.loads != TMA:
        found += COPY_REGISTERS * (sum(p.tile) * p.reduce_tile * itemsize // (threads * VECTOR_BYTES))
    return found


def _joined_bytes(kernel: TileKernel, parameters: TileParameters) -> int:
    """Bytes of shared memory for each element of a half, where groups of four warps share columns: they put halves
    together there, in float32, and both at once where the result lies in memory along the tile's rows."""
    if parameters.epilogue_parts == 1 or not shares_columns(parameters):
        return 0
    return 8 if len(kernel.outputs) - 1 in parameters.axes[0] else 4


def loaded_along(kernel: TileKernel, parameters: TileParameters) -> tuple[int, int]:
    """Rows and columns of which a contraction's program loads terms: those of its tile, of contractions that share
    one operand those of each one's other operand."""
    assert kernel.contraction is not None
    rows, columns = parameters.tile
    one, other = kernel.operands
    if sorted(parameters.axes[0]) != sorted(kernel.contraction.sides[0].ranges):
        one, other = other, one
    return one * rows, other * columns


def sums_of(kernel: TileKernel, parameters: TileParameters) -> int:
    """Sums that a contraction's program keeps: one for each element of its tile and each contraction."""
    return math.prod(parameters.tile) * len(kernel.together)


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


def registers_for_sums(target: Target, warps: int) -> int:
    """Registers that each thread of a program of so many warps has for sums and for what it holds of rows."""
    return device_of(target).registers_of_thread(warps) - LEAST_BESIDE


def sums_fit(kernel: TileKernel, target: Target, p: TileParameters) -> bool:
    """Whether the sums of a contraction's tile fit into the registers of its threads."""
    threads = device_of(target).threads(p.num_warps)
    return sums_of(kernel, p) // threads <= registers_for_sums(target, p.num_warps)


def attention_fits_registers(kernel: TileKernel, target: Target, p: TileParameters) -> bool:
    """Whether scores, weights and sums of an attention fit into the registers of its threads; and whether its products
    without tensor cores are few enough to be compiled."""
    attention = kernel.attention
    assert attention is not None
    device, (height,), step = device_of(target), p.tile, p.reduce_tile
    threads = device.threads(p.num_warps)
    inner, width = padded(attention.scores.reduce.src[1:]), padded(attention.columns)
    plain = sum(
        height * step * size // threads
        for size, dtype in ((inner, attention.scores.sides[0].dtype), (width, attention.values.dtype))
        if dtype is dtypes.float32 and p.precision == "ieee" and not device.multiplies(dtype.name)
    )
    held = height * (step + width) // threads
    return held <= registers_for_sums(target, p.num_warps) and plain <= MOST_UNROLLED[FLASH_ATTENTION]


def reads_in_epilogue(kernel: TileKernel, parameters: TileParameters) -> bool:
    """Whether a contraction reads something else for each element of its result, as of a residual."""
    return bool(_loads_of_epilogue(kernel, parameters))


def _loads_of_epilogue(kernel: TileKernel, p: TileParameters) -> list[Access]:
    return [
        x
        for x in kernel.epilogue_loads
        if all(any(kernel.outputs[n] in x.node.ranges for n in axis) for axis in p.axes)
    ]


def default_parameters(kernel: TileKernel, target: Target) -> TileParameters:
    """The prior's choice. Raises UnsupportedTile where the kernel has no tile program."""
    fp8 = dtypes.fp8e4m3
    if not device_of(target).multiplies(fp8.name) and any(buffer.dtype is fp8 for buffer in kernel.buffers):
        raise UnsupportedTile("data type fp8e4m3", "tile programs have it where tensor cores multiply it")
    form = forms(kernel, target)[-1]
    if kernel.contraction is not None:
        rows, columns = (_count(kernel, side.ranges) for side in kernel.contraction.sides)
        least = MIN_BYTES_TILE if kernel.contraction.sides[0].dtype.itemsize == 1 else MIN_TILE
        if min(rows, columns) >= FEW_ROWS and kernel.reduce_extent >= least // 2:
            form = CONTRACTION
    made = parameters_of(kernel, target, form, arrangements(kernel, form)[0])
    if form == SPECIALIZED:  # which programs do not share keys
        plain = parameters_of(kernel, target, FLASH_ATTENTION, made.axes)
        made = plain if plain.split > 1 else made
    return made


def parameters_of(kernel: TileKernel, target: Target, form: str, axes: Axes) -> TileParameters:
    """The prior's choice among the programs of one form whose tile has these axes."""
    make = {
        ELEMENTWISE: _elementwise,
        REDUCTION: _reduction,
        CONTRACTION: _contraction,
        ROWS: _row_reduction,
        FLASH_ATTENTION: _attention,
        SPECIALIZED: _specialized,
        PIPELINED: _pipelined,
    }[form]
    made = make(kernel, target, axes)
    if form in ATTENTION:
        return made
    device, stored = device_of(target), kernel.all_stored
    tail = device.ptx and any(s.store.buffer.dtype in NARROW and keeps_tail(s.value) for s in stored)
    if form == PIPELINED:
        return replace(made, fast_math=not tail)
    elements = math.prod(made.tile) * max(1, made.reduce_tile if form in (REDUCTION, ROWS) else 1)
    if tail:
        made = replace(made, fast_math=False)
    return replace(made, num_warps=max(1, min(made.num_warps, elements // device.warp)))  # no thread without an element


def forms(kernel: TileKernel, target: Target) -> tuple[str, ...]:
    """The forms that a kernel's program may have."""
    if kernel.attention is not None:
        return ATTENTION if _may_specialize(kernel, target) else (FLASH_ATTENTION,)
    if kernel.rows is not None:
        return (ROWS,)
    if not kernel.reductions:
        return (ELEMENTWISE,)
    if kernel.contraction is None:
        return (REDUCTION,)
    found = (PIPELINED, CONTRACTION) if _may_pipeline(kernel, target) else (CONTRACTION,)
    return found if kernel.epilogue_uses or kernel.grouped else (*found, REDUCTION)


def arrangements(kernel: TileKernel, form: str) -> tuple[Axes, ...]:
    """Which output ranges may be which axis of the tile, the prior's choice first."""
    numbers = tuple(range(len(kernel.outputs)))
    if form == ROWS:
        return tuple(axes for axes in (axes_apart(kernel), row_axes(kernel)) if axes)
    if form in ATTENTION:
        return (attention_axes(kernel),)
    if form == PIPELINED:
        return pipelined_axes(kernel)
    if form == CONTRACTION:
        assert kernel.contraction is not None
        rows, columns = (side.ranges for side in kernel.contraction.sides)
        if any(one.epilogue_uses for one in kernel.launched):  # it is made of neighbouring columns
            return ((rows, columns),)
        few = _count(kernel, rows) < 64 <= _count(kernel, columns)
        return ((columns, rows), (rows, columns)) if few else ((rows, columns), (columns, rows))
    found: list[Axes] = [(numbers,) if numbers else ()]
    if len(numbers) > 1 and not kernel.grouped:
        inner = numbers[-1]
        others = _transposed(kernel)
        beside = [((other,), (inner,)) for other in others]
        aside = form == ELEMENTWISE or (others and not _reads_rows(kernel))
        found = [*beside, *found] if others and aside else [*found, *beside]
        found += [((inner,),), (numbers[:-1], (inner,))]
        if kernel.contraction is not None:
            rows, columns = (side.ranges for side in kernel.contraction.sides)
            few = min(_count(kernel, rows), _count(kernel, columns)) < FEW_ROWS
            found = [(rows, columns), *found] if few else [*found, (rows, columns)]
    return tuple(dict.fromkeys(found))


def _count(kernel: TileKernel, numbers: tuple[int, ...]) -> int:
    return math.prod(kernel.extents[n] for n in numbers)


def launched_tiles(kernel: TileKernel, parameters: TileParameters) -> tuple[int, ...]:
    """Tiles along each axis; of several contractions those of all their columns, or of all their rows, of products of
    one vector those of all their rows."""
    found = list(tiles_of(kernel, parameters))
    for launched in launched_with(kernel, parameters)[1:]:
        place = axis_of_others(kernel, parameters)
        found[place] += tiles_of(*launched)[place]
    return tuple(found)


def axis_of_others(kernel: TileKernel, parameters: TileParameters) -> int:
    """Along which axis of a tile the kernels of one launch lie beside each other."""
    if kernel.contraction is None:
        return 0
    in_order = parameters.axes[1] == kernel.contraction.sides[1].ranges
    return 0 if in_order == kernel.grouped_rows else 1


def power_of_two(size: int) -> int:
    """The least power of two that is not below `size`."""
    return 1 << max(0, size - 1).bit_length()


def _elementwise(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    total = math.prod(kernel.extents)
    itemsize = max((b.dtype.itemsize for b in kernel.buffers), default=4)
    size = max(256, min(4096, 8192 // itemsize))
    while size > 256 and total < size * target.cores * 8:
        size //= 2
    if len(axes) == 2:
        outer, inner = (power_of_two(_count(kernel, numbers)) for numbers in axes)
        inner = min(64, inner)
        tile: tuple[int, ...] = (min(max(32, size // inner), outer), inner)
    else:
        tile = tuple(min(size, power_of_two(_count(kernel, numbers))) for numbers in axes)
    warps = device_of(target).warps(256 if math.prod(tile) >= 4096 else 128)
    return TileParameters(ELEMENTWISE, axes, tile, num_warps=warps, num_stages=1)


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


def _reduction(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    count, rows = stepped_extent(kernel), sum(math.prod(one.extents) for one in kernel.launched)
    itemsize = itemsize_of_rows(kernel)
    beside = _reads_rows(kernel)
    along = None if beside or not axes else _side_by_side(kernel, axes)
    if beside or not axes:
        step = _row_step(count, itemsize)
        height = max(1, min(ROWS_TILE // step, power_of_two(rows)))
        while height > 1 and rows < height * target.cores * 2:
            height //= 2
        tile = _shared_out(height, [_count(kernel, numbers) for numbers in axes])
    else:
        # 64 bytes side by side of many rows at once, or 32 where programs are few
        height = min(max(1, 64 // itemsize), power_of_two(rows if along is None else _count(kernel, axes[along])))
        while height * itemsize > 32 and rows < height * target.cores * 2:
            height //= 2
        step = min(power_of_two(count), STRIDED_TILE // height)
        if along is None:
            tile = _shared_out(height, [_count(kernel, numbers) for numbers in axes])
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


def _row_reduction(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
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
    device, step, (shared, own) = device_of(target), kernel.rows.width, (_count(kernel, numbers) for numbers in axes)
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


def _attention(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    """Of Inductor's attention on an H100: 128 queries by 128 keys and 4 warps for heads of 64, by 64 keys and 8 warps
    for heads of 128, 64 by 32 for heads of 256; fewer queries where there are few programs."""
    attention = kernel.attention
    assert attention is not None
    widest = max(padded(attention.scores.reduce.src[1:]), padded(attention.columns))
    sizes = {64: (128, 128, 4, 3), 128: (128, 64, 8, 3), 256: (64, 32, 4, 3), WIDEST: (64, 32, 8, 2)}
    height, step, warps, stages = next(found for most, found in sizes.items() if widest <= most)
    if attention.values.dtype.itemsize == 4:
        height, step, warps, stages = 64, 32, 4, 2
    reach = reach_of(attention)
    if reach.lower is not None and warps == 4:
        step = min(step, BETWEEN_BOUNDS)
    height = max(LEAST, min(height, power_of_two(_count(kernel, axes[0]))))
    while height > 64 and attention_tiles(kernel, height) < target.cores:
        height //= 2
    step = max(LEAST, min(step, power_of_two(extent(attention.keys))))
    device, threads = device_of(target), 32 * warps if height >= WGMMA_ROWS else 128
    sizes_held = (height, step, max(device.figures.group_warps, device.warps(threads)), stages)
    height, step, warps, stages = _held_attention(kernel, target, axes, sizes_held)
    _, steps = visited_blocks(reach, Axis(attention.rows, height), extent(attention.keys), step)
    split = _split_of_keys(attention_tiles(kernel, height), steps, target.cores)
    return TileParameters(
        FLASH_ATTENTION, axes, (height,), reduce_tile=step, split=split, num_warps=warps,
        num_stages=min(stages, -(-steps // split) + 1),
    )  # fmt: skip


def _held_attention(
    kernel: TileKernel, target: Target, axes: Axes, sizes: tuple[int, int, int, int]
) -> tuple[int, int, int, int]:
    """Queries, keys of a step, warps and stages that the target's registers and shared memory hold: fewer stages than
    the sizes that are wished for, then more warps for the registers, then a smaller step, then fewer queries. Raises
    UnsupportedTile where there are none."""
    height, step, warps, stages = sizes

    def made() -> TileParameters:
        return TileParameters(FLASH_ATTENTION, axes, (height,), reduce_tile=step, num_warps=warps, num_stages=stages)

    most = device_of(target).shared_bytes
    while not attention_fits_registers(kernel, target, made()) or attention_bytes(kernel, target, made()) > most:
        crowded = not attention_fits_registers(kernel, target, made())
        if crowded and warps < MOST_ATTENTION_WARPS:
            warps *= 2
        elif not crowded and stages > 1:
            stages -= 1
        elif step > LEAST:
            step //= 2
        elif height > LEAST:
            height //= 2
        else:
            raise UnsupportedTile(
                "tile", "no block of this attention fits into the target's registers and shared memory"
            )
    return height, step, warps, stages


def _split_of_keys(tiles: int, steps: int, cores: int) -> int:
    """The fewest parts of so many steps by which nearly as many multiprocessors are busy as by any (the rule of
    FlashAttention-3); 1 where tiles do that by themselves."""
    if tiles >= BUSY * cores or steps <= FEW_STEPS:
        return 1

    def efficiency(split: int) -> float:
        waves = tiles * split / cores
        return waves / math.ceil(waves)

    # of parts that leave as many steps to the longest one fewer do as well
    found = {-(-steps // split): split for split in reversed(KEY_SPLITS) if split <= min(steps, cores)}
    enough = NEARLY * max(map(efficiency, found.values()))
    return min(split for split in found.values() if efficiency(split) >= enough)


def _specialized(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    """The tile and the step that take least by products, exponentials and waves (`attention_clocks`). Blocks of narrow
    heads are small and soon gone through: they come two ahead. Without a mask that bounds the keys tiles are taken in
    turn, where multiprocessors have several and shared memory the queries of two: Flux's attention took 393 µs instead
    of 418, causal heads mostly 4 to 5 % longer (one H100)."""
    attention = kernel.attention
    assert attention is not None
    width = padded(attention.columns)
    if not (sizes := _specialized_sizes(kernel)):
        raise UnsupportedTile("form", "specialised warps have too few registers for rows of so many elements")
    rows, step = min(sizes, key=lambda size: attention_clocks(kernel, target, *size))
    narrow = max(padded(attention.scores.reduce.src[1:]), width) <= NARROW_HEAD
    made = TileParameters(
        SPECIALIZED, axes, (rows,), reduce_tile=step, loads=TMA, num_warps=4, num_stages=3 if narrow else 2
    )
    in_turn = replace(made, persistent=1)
    several = attention_tiles(kernel, rows) > target.cores > 0 and not reach_of(attention).is_bounded
    return in_turn if several and attention_bytes(kernel, target, in_turn) <= device_of(target).shared_bytes else made


def _specialized_sizes(kernel: TileKernel) -> list[tuple[int, int]]:
    """Queries of a program and keys of a step for which groups of specialised warps have registers."""
    assert kernel.attention is not None
    most = max(power_of_two(extent(kernel.attention.keys)), STEPS[0])
    steps = [step for step in STEPS if step <= most]
    return [(rows, step) for rows in PROGRAM_ROWS for step in steps if fits_registers(kernel, rows, step)]


def attention_clocks(kernel: TileKernel, target: Target, rows: int, step: int) -> float:
    """About how many clocks specialised warps take in all their steps."""
    attention, clocks = kernel.attention, step_clocks(kernel, target, rows, step)
    assert attention is not None
    reach, turns = reach_of(attention), attention_tiles(kernel, rows) / max(1, target.cores)
    mean, steps = visited_blocks(reach, Axis(attention.rows, rows), extent(attention.keys), step)
    if reach.is_even:
        return math.ceil(turns) * steps * clocks
    return max(steps, turns * mean) * clocks  # with short tiles last


def step_clocks(kernel: TileKernel, target: Target, rows: int, step: int) -> float:
    """About how many clocks a step of specialised warps takes: the tensor core's time or that of the exponentials,
    whichever is more, and of the other what no other group hides."""
    attention, f = kernel.attention, device_of(target).figures
    assert attention is not None
    inner, width = padded(attention.scores.reduce.src[1:]), padded(attention.columns)
    both = rows * step * (inner + width) / f.products_a_clock, rows * step / f.special_a_clock
    # sums are scaled in each step
    return max(both) + min(both) / (rows // GROUP_ROWS) + rows * width / f.plain_a_clock + BETWEEN_STEPS


def _may_specialize(kernel: TileKernel, target: Target) -> bool:
    """Whether attention may be by specialised warps: on Hopper, by compilers that make such programs right."""
    assert kernel.attention is not None
    if not device_of(target).has_wgmma or not most_specialized_stages() or extent(kernel.attention.keys) < STEPS[0]:
        return False
    if math.prod(map(extent, kernel.attention.rows)) <= GROUP_ROWS:  # of which the second group has none
        return False
    if not _specialized_sizes(kernel):
        return False
    return can_specialize(kernel, target, _specialized(kernel, target, attention_axes(kernel)))


def _pipelined(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    """The tile whose turns take least, with as many stages as shared memory holds."""
    found = [made for tile in TILES if can_pipeline(kernel, target, made := _pipelined_of(kernel, target, axes, tile))]

    def cost(p: TileParameters) -> float:
        return -(-math.prod(launched_tiles(kernel, p)) // target.cores) * (math.prod(p.tile) + TURN)

    return min(found, key=cost)


def _pipelined_of(kernel: TileKernel, target: Target, axes: Axes, tile: tuple[int, int]) -> TileParameters:
    made = TileParameters(
        PIPELINED, axes, tile, reduce_tile=STEP, loads=TMA, persistent=1, epilogue_parts=parts_of(tile), num_warps=4,
        group=8 if _count(kernel, axes[0]) > 8 * tile[0] else 1, num_stages=4,
    )  # fmt: skip
    return made if shared_taken(kernel, target, made) <= device_of(target).shared_bytes else replace(made, num_stages=3)


def pipelined_axes(kernel: TileKernel) -> tuple[Axes, ...]:
    """Rows and columns of contractions by specialised warps, whose results lie side by side along the columns."""
    assert kernel.contraction is not None
    one, other = (side.ranges for side in kernel.contraction.sides)
    last = len(kernel.outputs) - 1
    return ((one, other),) if last in other or kernel.epilogue_uses else ((other, one),)


def _may_pipeline(kernel: TileKernel, target: Target) -> bool:
    """Whether a contraction may be by specialised warps: a large product of 16 bits, on Hopper, by compilers that make
    such programs right."""
    contraction = kernel.contraction
    if contraction is None or not device_of(target).has_wgmma or not most_specialized_stages():
        return False
    if contraction.batch or kernel.variables or kernel.reduce_extent < 2 * STEP:
        return False
    axes = pipelined_axes(kernel)[0]
    if any(_count(kernel, numbers) < LEAST_PIPELINED for numbers in axes):
        return False
    return any(can_pipeline(kernel, target, _pipelined_of(kernel, target, axes, tile)) for tile in TILES)


def attention_bytes(kernel: TileKernel, target: Target, parameters: TileParameters) -> int:
    """About how much shared memory an attention's program takes: its queries, and the ring of keys and values. A
    persistent one has the next tile's queries too."""
    attention = kernel.attention
    assert attention is not None
    inner, width = padded(attention.scores.reduce.src[1:]), padded(attention.columns)
    scores, values = int(attention.scores.sides[0].dtype.itemsize), int(attention.values.dtype.itemsize)
    ring = device_of(target).blocks(parameters.num_stages) * parameters.reduce_tile * (inner * scores + width * values)
    tiles = QUERY_SLOTS if parameters.persistent else 1
    return tiles * parameters.tile[0] * inner * scores + ring + COMPILER_BYTES


def itemsize_of_rows(kernel: TileKernel) -> int:
    """Bytes of an element of the largest buffer that a kernel reads."""
    largest = max((load.buffer for load in kernel.loads), key=lambda buffer: buffer.size, default=kernel.store.buffer)
    return int(largest.dtype.itemsize)


def whole_row(count: int, itemsize: int) -> int:
    """Elements of a block that holds a row: with space for what lies before its first one in 16 bytes."""
    whole = power_of_two(count)
    return 2 * whole if count % max(1, 16 // itemsize) and whole < count + 16 // itemsize else whole


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


def _held_sums(kernel: TileKernel, target: Target, axes: Axes, tile: tuple[int, int], warps: int) -> tuple[int, int]:
    """Rows of a contraction's tile, and warps, whose registers hold its sums where columns that belong together are
    many: more warps, then fewer rows. Raises UnsupportedTile where not even a tensor core's fewest rows are held."""
    rows, columns = tile
    while not sums_fit(kernel, target, TileParameters(CONTRACTION, axes, (rows, columns), num_warps=warps)):
        if warps < MOST_WARPS:
            warps *= 2
        elif rows > MIN_TILE:
            rows //= 2
        else:
            raise UnsupportedTile(
                "several kernels" if kernel.epilogue_uses else "tile",
                f"{columns:,} columns of the result belong together, of which the registers do not hold {rows} rows",
            )
    return rows, warps


def _contraction(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    contraction = kernel.contraction
    assert contraction is not None
    rows, columns = (_count(kernel, numbers) for numbers in axes)
    count, dtype = kernel.reduce_extent, contraction.sides[0].dtype
    wide = dtype.itemsize == 4
    sums = len(kernel.together)
    most = (64, 64) if wide else (128, 256 // power_of_two(sums))
    tile = [max(MIN_TILE, min(most[0], power_of_two(rows))), max(MIN_TILE, min(most[1], power_of_two(columns)))]
    batch = _count(kernel, contraction.batch)

    def programs() -> int:
        made = launched_tiles(kernel, TileParameters(CONTRACTION, axes, (tile[0], tile[1])))
        return math.prod(made) * batch

    def efficiency() -> float:
        waves = programs() / target.cores
        return waves / math.ceil(waves)

    while efficiency() < 0.8 and max(tile) > 64:
        tile[0 if tile[0] > tile[1] else 1] //= 2
    least = MIN_BYTES_TILE if dtype.itemsize == 1 else MIN_TILE
    step = max(least, min(32 if wide else 64, power_of_two(count)))
    itemsize = 4 if wide else dtype.itemsize
    loaded = sum(loaded_along(kernel, TileParameters(CONTRACTION, axes, (tile[0], tile[1]))))
    stages = max(1, min(4, device_of(target).shared_bytes // (loaded * step * itemsize), -(-count // step)))
    device = device_of(target)
    threads = 256 if tile[0] * tile[1] * sums >= WIDE_TILE else 128
    warps = max(device.figures.group_warps, device.warps(threads))
    helds = [held for one in kernel.launched for held in one.epilogue_uses]
    unit = math.lcm(*(held.unit for held in helds))
    edges = [edge for held in helds for edge in (held.first, held.count)]
    edges += [
        _count(one, one.contraction.sides[1].ranges) for one in kernel.launched if one.contraction and one.epilogue_uses
    ]
    while any(edge % tile[1] for edge in edges) and tile[1] > unit:
        tile[1] //= 2
    tile[1] = max(tile[1], unit, MIN_TILE)
    tile[0], warps = _held_sums(kernel, target, axes, (tile[0], tile[1]), warps)
    split = 1
    if may_split(kernel) and programs() * 2 <= target.cores and count >= 16 * step:
        split = min(power_of_two(target.cores // programs()), power_of_two(count // (8 * step) + 1) // 2)
    made = TileParameters(
        CONTRACTION, axes, (tile[0], tile[1]), reduce_tile=step, split=split, num_warps=warps,
        group=8 if rows >= 8 * tile[0] and columns > tile[1] else 1, num_stages=stages,
    )  # fmt: skip
    if not fits_epilogue(kernel, made):
        raise UnsupportedTile("several kernels", "no tile of the result has what belongs together")
    if not wide and split == 1 and count <= SHORT_TERMS and not kernel.grouped and reads_in_epilogue(kernel, made):
        small = (min(tile[0], SHORT_TILE[0]), min(tile[1], SHORT_TILE[1]))
        return replace(made, tile=small, num_warps=4, num_stages=1, read_early=True)
    if not wide and device_of(target).has_tma and split == 1 and can_describe(kernel, made):
        made = replace(made, loads=TMA)
        many = programs() >= 2 * target.cores
        if many or kernel.grouped:
            halves = tile[1] >= 128 and tile[1] // 2 >= unit
            made = replace(made, persistent=int(many), epilogue_parts=2 if halves else 1)  # room for a stage
    while made.num_stages > 1 and shared_taken(kernel, target, made) > device_of(target).shared_bytes:
        made = replace(made, num_stages=made.num_stages - 1)
    return made
