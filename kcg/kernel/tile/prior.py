"""The analytic prior: the parameters that a kernel starts with on a target, for each form and arrangement of axes.

The rules are those that others measured on Hopper: a tile of at most 128 × 256 and 32,768 accumulators, 8 warps from
16,384, halved while the last wave leaves a fifth of the multiprocessors idle; 8,192 bytes of an elementwise tile; rows
that fit into registers in one pass.
"""

from __future__ import annotations

import math
from dataclasses import replace

from kcg.compat.tiny import UOp, dtypes
from kcg.kernel.tile.contraction import MIN_BYTES_TILE, MIN_TILE, stored_width
from kcg.kernel.tile.generate import can_describe, fits_held, may_split, row_axes
from kcg.kernel.tile.ir import TileKernel, affine, extent
from kcg.kernel.tile.parameters import CONTRACTION, ELEMENTWISE, REDUCTION, ROWS, TMA, TileParameters
from kcg.kernel.tile.program import TileRefusal
from kcg.kernel.tile.reduction import depth_of
from kcg.types import Target

SHARED_BYTES = {"sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10, "sm_90": 227 << 10, "gfx942": 64 << 10}
"""What a program may take; tinygrad's own limit is that of static shared memory."""

REGISTERS = 65_536  # of a multiprocessor: with 16 warps 128 a thread
THREADS = 2_048  # of a multiprocessor
COMPILER_BYTES = 1_056  # barriers and padding, the most seen
WGMMA_ROWS = 64  # of the result, which a group of four warps holds
SPECIALIZED_BYTES = 32 << 10  # of a warp specialised program's result, at least
Axes = tuple[tuple[int, ...], ...]
"""Which output ranges each axis of a tile holds, see `TileParameters.axes`."""

WIDE_TILE = 16_384  # from here on 8 warps
FEW_ROWS = 8  # below, a tensor core's 16 rows are mostly padding: the product is summed without one
ROW_IN_REGISTERS = 16_384  # elements of a row that one program reduces in one pass
LOOP_TILE = 2_048
ROWS_TILE = 4_096  # elements of a reduction's block
HELD_ROW = 32_768  # elements of a row that a program holds while several kernels' values are made of it
HELD_LOOP = 8_192  # of a longer one in each step


def has_tma(target: Target) -> bool:
    """Whether a target moves blocks by TMA."""
    return target.arch.startswith("sm_") and int(target.arch[3:].rstrip("af")) >= 90


def has_fp8(target: Target) -> bool:
    """Whether a target multiplies floats of 8 bits."""
    return target.arch.startswith("sm_") and int(target.arch[3:].rstrip("af")) >= 89


def shared_bytes(target: Target) -> int:
    """Shared memory of one program on a target, in bytes."""
    return SHARED_BYTES.get(target.arch, target.shared_bytes)


def shared_taken(kernel: TileKernel, parameters: TileParameters) -> int:
    """About how much shared memory a contraction's program takes, in bytes: the ring of its operands' blocks, and with
    TMA the part of the result that is on its way out, which has the ring's place where the program ends with it. Of 50
    programs the compiler said from 28 % less to 1 % more.
    """
    assert kernel.contraction is not None
    rows, columns = parameters.tile
    ring = parameters.num_stages * (rows + columns) * parameters.reduce_tile
    ring *= int(kernel.contraction.sides[0].dtype.itemsize)
    if parameters.loads != TMA:
        if not parameters.persistent:
            return ring
        # the next tile's loads begin while this one is on its way out, through at most 128 bytes a thread
        leaving = rows * stored_width(columns, parameters.epilogue_parts) * int(kernel.store.buffer.dtype.itemsize)
        return ring + min(leaving, 128 * 32 * parameters.num_warps)
    # what is read beside the result for each element is read side by side, so that the float32 sums move there first
    stored = int(kernel.store.buffer.dtype.itemsize)
    itemsize = 4 if reads_beside(kernel, parameters) else stored
    if kernel.held:  # the float32 sums for what is made of them, and what is on its way out
        itemsize = 4 + stored
    elif parameters.epilogue_parts > 1 and WGMMA_ROWS <= rows < parameters.num_warps * WGMMA_ROWS // 4:
        itemsize = 4 + stored  # groups of four warps share columns: halves of these are put together in shared memory
    leaving = rows * stored_width(columns, parameters.epilogue_parts) * itemsize
    if parameters.warp_specialize:
        leaving = max(leaving, SPECIALIZED_BYTES)
    return (ring + leaving if parameters.persistent else max(ring, leaving)) + COMPILER_BYTES


def reads_beside(kernel: TileKernel, parameters: TileParameters) -> bool:
    """Whether a contraction reads something else for each element of its result, as of a residual."""
    assert kernel.contraction is not None
    inside = kernel.contraction.reduce.backward_slice
    beside = [load for load in kernel.loads if load.node not in inside]
    return any(all(any(kernel.outputs[n] in x.node.ranges for n in axis) for axis in parameters.axes) for x in beside)


def default_parameters(kernel: TileKernel, target: Target) -> TileParameters:
    """The prior's choice. Raises TileRefusal where the kernel has no tile program."""
    if not has_fp8(target) and any(buffer.dtype is dtypes.fp8e4m3 for buffer in kernel.buffers):
        raise TileRefusal("data type fp8e4m3", "Triton has it from sm_89 on")
    form = forms(kernel)[-1]
    if kernel.contraction is not None:
        rows, columns = (_count(kernel, side.ranges) for side in kernel.contraction.sides)
        least = MIN_BYTES_TILE if kernel.contraction.sides[0].dtype.itemsize == 1 else MIN_TILE
        if min(rows, columns) >= FEW_ROWS and kernel.reduce_extent >= least // 2:
            form = CONTRACTION
    return parameters_of(kernel, target, form, arrangements(kernel, form)[0])


def parameters_of(kernel: TileKernel, target: Target, form: str, axes: Axes) -> TileParameters:
    """The prior's choice among the programs of one form whose tile has these axes."""
    make = {ELEMENTWISE: _elementwise, REDUCTION: _reduction, CONTRACTION: _contraction, ROWS: _held_rows}[form]
    made = make(kernel, target, axes)
    elements = math.prod(made.tile) * max(1, made.reduce_tile if form in (REDUCTION, ROWS) else 1)
    return replace(made, num_warps=max(1, min(made.num_warps, elements // 32)))  # no thread without an element


def forms(kernel: TileKernel) -> tuple[str, ...]:
    """The forms that a kernel's program may have."""
    if kernel.rows is not None:
        return (ROWS,)
    if kernel.held:
        return (CONTRACTION,)
    if not kernel.reductions:
        return (ELEMENTWISE,)
    return (REDUCTION,) if kernel.contraction is None else (CONTRACTION, REDUCTION)


def arrangements(kernel: TileKernel, form: str) -> tuple[Axes, ...]:
    """Which output ranges may be which axis of the tile, the prior's choice first."""
    numbers = tuple(range(len(kernel.outputs)))
    if form == ROWS:
        return (row_axes(kernel),)
    if form == CONTRACTION:
        assert kernel.contraction is not None
        rows, columns = (side.ranges for side in kernel.contraction.sides)
        if kernel.held:  # it is made of neighbouring columns
            return ((rows, columns),)
        few = _count(kernel, rows) < 64 <= _count(kernel, columns)
        return ((columns, rows), (rows, columns)) if few else ((rows, columns), (columns, rows))
    found: list[Axes] = [(numbers,) if numbers else ()]
    if len(numbers) > 1:
        inner = numbers[-1]
        others = _transposed(kernel)
        beside = [((other,), (inner,)) for other in others]
        found = [*beside, *found] if others and form == ELEMENTWISE else [*found, *beside]
        found += [((inner,),), (numbers[:-1], (inner,))]
        if kernel.contraction is not None:
            rows, columns = (side.ranges for side in kernel.contraction.sides)
            few = min(_count(kernel, rows), _count(kernel, columns)) < FEW_ROWS
            found = [(rows, columns), *found] if few else [*found, (rows, columns)]
    return tuple(dict.fromkeys(found))


def _count(kernel: TileKernel, numbers: tuple[int, ...]) -> int:
    return math.prod(kernel.extents[n] for n in numbers)


def tiles_of(kernel: TileKernel, parameters: TileParameters) -> tuple[int, ...]:
    """Tiles along each axis."""
    rows = zip(parameters.axes, parameters.tile, strict=True)
    return tuple(-(-_count(kernel, numbers) // size) for numbers, size in rows)


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
    return TileParameters(ELEMENTWISE, axes, tile, num_warps=8 if math.prod(tile) >= 4096 else 4, num_stages=1)


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


def _steps_along(kernel: TileKernel, axis: UOp) -> list[int]:
    """The steps of loads along a range, where they are known."""
    found = [affine(load.address) for load in kernel.loads]
    return [abs(steps[axis]) for steps in found if steps is not None and axis in steps]


def _reduction(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    count, rows = kernel.reduce_extent, math.prod(kernel.extents)
    beside = any(1 in _steps_along(kernel, axis) for axis in kernel.reduce_ranges)
    if beside or not axes:
        step = power_of_two(count)
        if step > ROW_IN_REGISTERS:
            step = LOOP_TILE
        height = max(1, min(ROWS_TILE // step, power_of_two(rows)))
        while height > 1 and rows < height * target.cores * 2:
            height //= 2
    else:
        height = min(128, power_of_two(rows))
        while height > 32 and rows < height * target.cores:
            height //= 2
        step = min(power_of_two(count), max(1, ROWS_TILE // height))
    depth = depth_of(kernel.reductions)
    if depth > 1:
        step = min(step, 1024)
    warps = 4 if height * step <= 4096 else 8 if height * step <= 16384 else 16
    tile = _shared_out(height, [_count(kernel, numbers) for numbers in axes])
    made = TileParameters(REDUCTION, axes, tile, reduce_tile=step, num_warps=warps, num_stages=1)
    height = math.prod(tile)
    programs = -(-rows // height)
    if may_split(kernel) and count >= 4 * LOOP_TILE and programs * 2 <= target.cores:
        step = min(step, LOOP_TILE)
        split = min(power_of_two(target.cores // programs), power_of_two(count // (2 * step)), 256)
        if split > 1:
            made = replace(made, reduce_tile=step, split=split, num_warps=4)
    return made


def _held_rows(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    assert kernel.rows is not None
    step = power_of_two(kernel.rows.width)
    if step > HELD_ROW:
        step = HELD_LOOP
    height = max(1, min(ROWS_TILE // step, power_of_two(kernel.rows.count)))
    while height > 1 and kernel.rows.count < height * target.cores * 4:
        height //= 2
    elements = height * step
    warps = next(count for count in (4, 8, 16, 32) if elements <= 1024 * count or count == 32)
    return TileParameters(ROWS, axes, (height,), reduce_tile=step, num_warps=warps, num_stages=1)


def _shared_out(height: int, extents: list[int]) -> tuple[int, ...]:
    """Elements along each axis of a tile of about `height`: as many as there are along short ones, from the last on."""
    tile: list[int] = []
    for size in sorted(extents):
        tile.append(max(1, min(power_of_two(size), height)))
        height = max(1, height // tile[-1])
    order = sorted(range(len(extents)), key=lambda place: extents[place])
    return tuple(tile[order.index(place)] for place in range(len(extents)))


def _contraction(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    contraction = kernel.contraction
    assert contraction is not None
    rows, columns = (_count(kernel, numbers) for numbers in axes)
    count, dtype = kernel.reduce_extent, contraction.sides[0].dtype
    wide = dtype.itemsize == 4
    most = (64, 64) if wide else (128, 256)
    tile = [max(MIN_TILE, min(most[0], power_of_two(rows))), max(MIN_TILE, min(most[1], power_of_two(columns)))]
    batch = _count(kernel, contraction.batch)

    def programs() -> int:
        return -(-rows // tile[0]) * -(-columns // tile[1]) * batch

    def efficiency() -> float:
        waves = programs() / target.cores
        return waves / math.ceil(waves)

    while efficiency() < 0.8 and max(tile) > 64:
        tile[0 if tile[0] > tile[1] else 1] //= 2
    least = MIN_BYTES_TILE if dtype.itemsize == 1 else MIN_TILE
    step = max(least, min(32 if wide else 64, power_of_two(count)))
    itemsize = 4 if wide else dtype.itemsize
    stages = max(1, min(4, shared_bytes(target) // (sum(tile) * step * itemsize), -(-count // step)))
    warps = 8 if tile[0] * tile[1] >= WIDE_TILE else 4
    unit = math.lcm(*(held.unit for held in kernel.held))
    edges = [edge for held in kernel.held for edge in (held.first, held.count, columns)]
    while any(edge % tile[1] for edge in edges) and tile[1] > unit:
        tile[1] //= 2
    tile[1] = max(tile[1], unit, MIN_TILE)
    split = 1
    if may_split(kernel) and programs() * 2 <= target.cores and count >= 16 * step:
        split = min(power_of_two(target.cores // programs()), power_of_two(count // (8 * step) + 1) // 2)
    made = TileParameters(
        CONTRACTION, axes, (tile[0], tile[1]), reduce_tile=step, split=split, group=8 if rows >= 8 * tile[0] else 1,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if kernel.held and not fits_held(kernel, made):
        raise TileRefusal("several kernels", "no tile of the result has what belongs together")
    if wide or not has_tma(target) or split > 1 or not can_describe(kernel, made):
        return made
    made = replace(made, loads=TMA)
    if programs() >= 2 * target.cores:
        halves = tile[1] >= 128 and tile[1] // 2 >= unit
        made = replace(made, persistent=1, epilogue_parts=2 if halves else 1)  # room for a stage
    while made.num_stages > 1 and shared_taken(kernel, made) > shared_bytes(target):
        made = replace(made, num_stages=made.num_stages - 1)
    return made
