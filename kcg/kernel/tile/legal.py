"""The values that each parameter of a tile program may take for a kernel on a target, given those before it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from kcg.compat.tiny import dtypes
from kcg.kernel.ast import extent
from kcg.kernel.reading.attention import LEAST as LEAST_QUERIES
from kcg.kernel.reading.attention import padded
from kcg.kernel.reading.depth import depth_of
from kcg.kernel.reading.factors import NARROW
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.attention import attention_tiles, reach_of, visited_blocks
from kcg.kernel.tile.contraction import MIN_BYTES_TILE, MIN_TILE, fits_epilogue
from kcg.kernel.tile.device import device_of
from kcg.kernel.tile.emit import power_of_sigmoid
from kcg.kernel.tile.eviction import reused, streamed
from kcg.kernel.tile.flash_attention import can_load_by_tma
from kcg.kernel.tile.generate import can_describe, can_halve, halved, may_split, may_stream_k, partials_of
from kcg.kernel.tile.parameters import (
    ATTENTION,
    CONTRACTION,
    CONTRACTIONS,
    ELEMENTWISE,
    FLASH_ATTENTION,
    PIPELINED,
    POINTER,
    REDUCTION,
    ROWS,
    SPECIALIZED,
    TF32,
    TMA,
    TileParameters,
)
from kcg.kernel.tile.pipelined import STEP, TILES, can_pipeline, parts_of
from kcg.kernel.tile.prior import (
    KEY_SPLITS,
    LEAST_BESIDE,
    MOST_ATTENTION_WARPS,
    MOST_UNROLLED,
    arrangements,
    attention_bytes,
    attention_fits_registers,
    copied_bytes,
    forms,
    itemsize_of_rows,
    launched_tiles,
    parameters_of,
    power_of_two,
    reads_beside_rows,
    reads_in_epilogue,
    registers_for_sums,
    rows_of_threads,
    shared_taken,
    sums_fit,
    sums_of,
    whole_row,
)
from kcg.kernel.tile.reduction import stepped_extent
from kcg.kernel.tile.specialized import MOST_SLOTS, PROGRAM_ROWS, STEPS, can_specialize
from kcg.kernel.tile.targets import MOST_STAGES, most_specialized_stages
from kcg.kernel.tile.tiles import Axis, tiles_of
from kcg.types import Target

FIELDS = (
    "tile", "reduce_tile", "num_warps", "split", "loads", "persistent", "tail", "epilogue_parts", "num_stages",
    "warp_specialize", "group", "read_early", "evict_first", "evict_last", "maxnreg", "fast_math", "precision",
)  # fmt: skip
"""In the order in which a search sets them, after form and axes: what decides most and what others depend on first."""

SIZES = 4
"""So many of them are sizes that all else is worked out from."""

LEAST: dict[str, Any] = {
    "split": 1, "loads": POINTER, "persistent": 0, "tail": 1, "epilogue_parts": 1, "num_stages": 1,
    "warp_specialize": False, "group": 1, "read_early": False, "evict_first": (), "evict_last": (), "maxnreg": 0,
}  # fmt: skip
"""What asks for least of a target."""

NVIDIAS: dict[str, Any] = {"evict_first": (), "evict_last": (), "maxnreg": 0, "fast_math": True, "precision": "ieee"}
"""What Triton has for NVIDIA's GPUs alone, and what it is elsewhere."""

ALONE = ("warp_specialize", "read_early", "evict_first", "evict_last")
"""What a contraction's programs have that are all of one kernel."""

SPECIALIZEDS: dict[str, tuple[Any, ...]] = {
    "tile": tuple((rows,) for rows in PROGRAM_ROWS), "num_warps": (4,), "split": (1,), "loads": (TMA,),
    "num_stages": tuple(range(2, MOST_SLOTS + 1)),
}  # fmt: skip
"""What attention by specialised warps has alone."""

PIPELINEDS: dict[str, tuple[Any, ...]] = {
    "tile": TILES, "reduce_tile": (STEP,), "num_warps": (4,), "split": (1,), "loads": (TMA,), "persistent": (1,),
    "tail": (1,), "num_stages": (3, 4, 5, 6), "warp_specialize": (False,), "read_early": (False,), "evict_first": ((),),
    "evict_last": ((),), "maxnreg": (0,), "precision": ("ieee",),
}  # fmt: skip
"""And contractions by specialised warps."""

OWN = {SPECIALIZED: SPECIALIZEDS, PIPELINED: PIPELINEDS}

BETWEEN = (96, 144, 160, 192, 288, 320, 384)
"""Columns of a contraction's tile that are two pieces: they fill the last wave where powers of two do not."""

WARPS = (1, 2, 4, 8, 16)
MANY_WARPS = (*WARPS, 32)  # of rows that are held whole
TOGETHER = (2, 3, 4)  # programs of a multiprocessor for which registers are limited
MUCH_HELD = 32  # elements of the tile that a thread holds; below, the compiler took 20 to 70 registers
MOST_BESIDE = 62  # registers of a thread beside its sums, at most
MOST_ELEMENTS = {ELEMENTWISE: 16_384, REDUCTION: 32_768, ROWS: 65_536}
MOST_OF_THREAD = {ELEMENTWISE: 128, REDUCTION: 128, ROWS: 64}
MOST_SUMS = 16_384  # of a program that multiplies float32 without tensor cores
LEAST_STEP = 256  # elements of a row that is gone through in a loop
MOST_WAVES = 4  # of programs that share keys
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TAILS = (1, 2, 3, 4, 6, 8)
GROUPS = (1, 4, 8, 12, 16)
STAGES = tuple(range(1, MOST_STAGES + 1))
ROW_STAGES = (1, 2, 3, 4)  # of a loop over rows, whose next loads are then copied to shared memory


def legal_values(kernel: TileKernel, target: Target, parameters: TileParameters, field: str) -> tuple[Any, ...]:
    """The values of one field of FIELDS that are legal with those before it as they are and some of those after it."""
    least = _asking_least(parameters, field)
    return tuple(
        value for value in _candidates(kernel, target, least, field) if _may_fit(kernel, target, least, field, value)
    )


def is_possible(kernel: TileKernel, target: Target, parameters: TileParameters, field: str, value: Any) -> bool:
    """Whether a value is among `legal_values`, of which no other is looked at."""
    least = _asking_least(parameters, field)
    return value in _candidates(kernel, target, least, field) and _may_fit(kernel, target, least, field, value)


def _asking_least(parameters: TileParameters, field: str) -> TileParameters:
    """With what asks for least of a target in all fields after one."""
    later = FIELDS[FIELDS.index(field) + 1 :]
    least = {name: LEAST[name] for name in later if name in LEAST}
    own = OWN.get(parameters.form, {})
    least |= {name: own[name][0] for name in least if name in own}
    if "epilogue_parts" in least and parameters.form == CONTRACTION and parameters.tile[1] >= 64:
        least["epilogue_parts"] = 2  # takes less shared memory than the whole tile
    if "epilogue_parts" in least and parameters.form == PIPELINED:
        least["epilogue_parts"] = parts_of(parameters.tile)
    return parameters.changed(**least)


def _may_fit(kernel: TileKernel, target: Target, least: TileParameters, field: str, value: Any) -> bool:
    """Whether a value fits with some of the sizes after it, and all else as it asks for least."""
    made, later = least.changed(**{field: value}), FIELDS[FIELDS.index(field) + 1 :]
    if field == "tile" and made.form == CONTRACTION:
        made = made.changed(epilogue_parts=2 if value[1] >= 64 else 1)
    if field == "tile" and made.form == PIPELINED:
        made = made.changed(epilogue_parts=parts_of(value))
    if "reduce_tile" in later:
        made = made.changed(reduce_tile=min(_reduce_tiles(kernel, made)))
    warps = _warps(target, made) if "num_warps" in later else (made.num_warps,)
    return any(_fits(kernel, target, made.changed(num_warps=count)) for count in warps)


def is_legal(kernel: TileKernel, target: Target, parameters: TileParameters) -> bool:
    """Whether each value is a candidate, and all of them together are legal."""

    def chosen(fields: Sequence[str]) -> bool:
        return all(getattr(parameters, f) in _candidates(kernel, target, parameters, f) for f in fields)

    return chosen(FIELDS[:SIZES]) and _fits(kernel, target, parameters) and chosen(FIELDS[SIZES:])


def starts(kernel: TileKernel, target: Target) -> tuple[TileParameters, ...]:
    """The prior's choice for each form and each arrangement of axes that has one, the best guess of all first."""
    found = []
    for form in forms(kernel, target):
        for axes in arrangements(kernel, form):
            with suppress(UnsupportedTile):
                found.append(parameters_of(kernel, target, form, axes))
    return tuple(found)


def random_parameters(kernel: TileKernel, target: Target, rng: Random) -> TileParameters:
    """A program chosen at random, field after field."""
    made = rng.choice(starts(kernel, target))
    for field in FIELDS:
        values = legal_values(kernel, target, made, field)
        made = made.changed(**{field: rng.choice(values or (getattr(made, field),))})
    return made


def _candidates(kernel: TileKernel, target: Target, parameters: TileParameters, field: str) -> tuple[Any, ...]:
    if field in NVIDIAS and not device_of(target).ptx:
        return (NVIDIAS[field],)
    if field in ALONE and kernel.grouped and kernel.contraction is not None:
        return (LEAST[field],)
    if field in (own := OWN.get(parameters.form, {})):
        return own[field]
    match field:
        case "tile":
            return tuple(_tiles(kernel, parameters))
        case "reduce_tile":
            return _reduce_tiles(kernel, parameters)
        case "split":
            if kernel.attention is not None:
                return KEY_SPLITS
            return SPLITS if kernel.reductions and may_split(kernel) else (1,)
        case "group":
            return GROUPS if parameters.form in CONTRACTIONS else (1,)
        case "loads":
            described = parameters.form in (CONTRACTION, FLASH_ATTENTION) and device_of(target).has_tma
            return (POINTER, TMA) if described else (POINTER,)
        case "persistent":
            if parameters.form == SPECIALIZED:
                return (0, 1)
            # of pieces none was faster than one program a tile
            return (0, 1, 2) if parameters.form == CONTRACTION and parameters.tile[1] not in BETWEEN else (0,)
        case "tail":
            if parameters.form != CONTRACTION or parameters.split > 1:
                return (1,)
            if not may_stream_k(kernel):
                return (1, 2) if can_halve(kernel, parameters.changed(tail=2)) else (1,)
            ahead = not parameters.persistent or parameters.loads == TMA  # else no loads run on from part to part
            return TAILS if ahead else (1,)
        case "epilogue_parts" if parameters.form == PIPELINED:
            return (parts_of(parameters.tile),)
        case "epilogue_parts":
            return (1, 2) if parameters.form == CONTRACTION and parameters.tile[1] >= 64 else (1,)
        case "warp_specialize":
            # of attention, by Triton 3.6, one program of two ended in NaN, the other never
            plain = parameters.form == CONTRACTION and parameters.loads == TMA and parameters.num_warps == 4
            shared = parameters.persistent and parameters.tail > 1
            return (False, True) if plain and not shared and parameters.tile[1] not in BETWEEN else (False,)
        case "num_warps":
            return _warps(target, parameters)
        case "num_stages":
            if parameters.form == REDUCTION and copied_bytes(kernel, parameters):
                return ROW_STAGES
            return STAGES if parameters.form in (CONTRACTION, FLASH_ATTENTION) else (1,)
        case "read_early" if parameters.form == ROWS:
            assert kernel.rows is not None
            whole = kernel.rows.width <= parameters.reduce_tile and len(parameters.axes) == 1
            return (False, True) if whole and reads_beside_rows(kernel) else (False,)
        case "read_early":
            alone = parameters.form == CONTRACTION and parameters.split == parameters.tail == 1
            return (False, True) if alone and reads_in_epilogue(kernel, parameters) else (False,)
        case "evict_first" | "evict_last" if parameters.form in (ROWS, *ATTENTION):
            return ((),)  # what several values are made of is read once
        case "evict_first":
            return streamed(kernel, target, parameters)
        case "evict_last":
            return reused(kernel, target, parameters)
        case "maxnreg":
            return (0, *_register_limits(kernel, target, parameters))
        case "fast_math":
            stored = kernel.all_stored
            narrow = all(s.store.buffer.dtype in NARROW for s in stored)
            sigmoid = narrow and any(power_of_sigmoid(n) is not None for s in stored for n in s.value.toposort())
            return (True, False) if sigmoid else (True,)
        case "precision":
            if dtypes.float32 not in _multiplied(kernel, parameters):
                return ("ieee",)
            nearly = ("tf32x3",) if parameters.form == CONTRACTION else ()
            return ("ieee", *nearly, *((TF32,) if kernel.allows_tf32 else ()))
    raise KeyError(field)


def _multiplied(kernel: TileKernel, parameters: TileParameters) -> tuple[Any, ...]:
    """The formats of operands of `tl.dot`."""
    if parameters.form == FLASH_ATTENTION:
        assert kernel.attention is not None
        return (kernel.attention.scores.sides[0].dtype, kernel.attention.values.dtype)
    return (kernel.contraction.sides[0].dtype,) if parameters.form == CONTRACTION and kernel.contraction else ()


def _tiles(kernel: TileKernel, parameters: TileParameters) -> Iterator[tuple[int, ...]]:
    """Tiles with each axis up to the power of two that holds all of it."""
    least = {CONTRACTION: MIN_TILE, FLASH_ATTENTION: LEAST_QUERIES}.get(parameters.form, 1)
    most = 256 if parameters.form == CONTRACTION else 8192
    found: list[tuple[int, ...]] = [()]
    for numbers in parameters.axes:
        whole = power_of_two(math.prod(kernel.extents[n] for n in numbers))
        sizes = [1 << i for i in range(14) if least <= 1 << i <= max(least, min(most, whole))]
        if parameters.form == CONTRACTION and found != [()]:
            sizes = sorted([*sizes, *(size for size in BETWEEN if size <= whole)])
        found = [(*tile, size) for tile in found for size in sizes]
    held = math.prod(kernel.extents[n] for numbers in parameters.axes for n in numbers)
    for tile in found:
        if parameters.form == ELEMENTWISE and math.prod(tile) < min(64, held):
            continue
        yield tile


def _warps(target: Target, parameters: TileParameters) -> tuple[int, ...]:
    if own := OWN.get(parameters.form, {}).get("num_warps"):
        return own
    device = device_of(target)
    counts = MANY_WARPS if parameters.form == ROWS else WARPS
    return tuple(count for count in counts if device.threads(count) <= device.threads_of_program)


def _reduce_tiles(kernel: TileKernel, parameters: TileParameters) -> tuple[int, ...]:
    if parameters.form == ELEMENTWISE:
        return (0,)
    count = stepped_extent(kernel)
    whole = power_of_two(kernel.rows.width if kernel.rows else count)
    if parameters.form in ATTENTION:
        assert kernel.attention is not None
        sizes = STEPS if parameters.form == SPECIALIZED else (16, 32, 64, 128)
        return tuple(size for size in sizes if size <= max(16, power_of_two(extent(kernel.attention.keys))))
    if parameters.form == PIPELINED:
        return PIPELINEDS["reduce_tile"]
    if parameters.form == ROWS:
        return tuple(1 << i for i in range(17) if min(whole, LEAST_STEP) <= 1 << i <= whole)
    if parameters.form == CONTRACTION:
        assert kernel.contraction is not None
        least = MIN_BYTES_TILE if kernel.contraction.sides[0].dtype.itemsize == 1 else MIN_TILE
        return tuple(size for size in (16, 32, 64, 128, 256) if least <= size <= max(least, whole))
    most = max(whole, whole_row(count, itemsize_of_rows(kernel)))
    return tuple(1 << i for i in range(15) if 1 << i <= most and (1 << i >= min(whole, 4)))


def _register_limits(kernel: TileKernel, target: Target, p: TileParameters) -> tuple[int, ...]:
    """Limits of a thread's registers by which more programs run on a multiprocessor at once, where the compiler by
    itself may take more: a thread has much of the tile to hold."""
    device = device_of(target)
    threads = device.threads(p.num_warps)
    held = math.prod(p.tile) * max(1, p.reduce_tile if p.form in (REDUCTION, ROWS) else 1) // threads
    if p.form in ATTENTION or held < MUCH_HELD or p.warp_specialize or p.persistent == 1:
        return ()  # specialised warps share registers otherwise; a persistent program may be alone in any case
    likely, memory = 2 * held, device.threads_at_once  # of rows
    if p.form == CONTRACTION:
        beside = held if reads_in_epilogue(kernel, p) else 0
        held = sums_of(kernel, p) // threads
        likely = held + beside + MOST_BESIDE
        memory = device.shared_bytes // max(1, shared_taken(kernel, target, p))
    counts = (p.persistent,) if p.persistent else TOGETHER
    limits = [
        device.registers // (threads * together) // 8 * 8
        for together in counts
        if together <= memory
        and together * threads <= device.threads_at_once
        and _programs(kernel, p) > target.cores * (together - 1)
    ]
    return tuple(limit for limit in limits if held + LEAST_BESIDE <= limit <= min(device.registers_of_one - 1, likely))


def _programs(kernel: TileKernel, p: TileParameters) -> int:
    """Tiles, with the parts of a split reduction."""
    held = {n for numbers in p.axes for n in numbers}
    if p.form == ROWS:
        return math.prod(tiles_of(kernel, p))
    if p.form in ATTENTION:
        return p.split * attention_tiles(kernel, *p.tile)
    rest = math.prod(e for n, e in enumerate(kernel.extents) if n not in held)
    return p.split * rest * math.prod(launched_tiles(kernel, p) if kernel.grouped else tiles_of(kernel, p))


def _fits(kernel: TileKernel, target: Target, p: TileParameters) -> bool:
    """Whether registers, shared memory and the loops allow it, and every parameter changes something."""
    device = device_of(target)
    threads = device.threads(p.num_warps)
    elements = math.prod(p.tile) * max(1, p.reduce_tile if p.form in (REDUCTION, ROWS) else 1)
    steps = -(-kernel.reduce_extent // p.reduce_tile) if p.reduce_tile else 1
    if p.split > 1 and p.split * partials_of(kernel) >= 1 << 31:
        return False
    if p.form != FLASH_ATTENTION and p.split > 1 and p.split > steps // 2:
        return False
    if p.form == FLASH_ATTENTION:
        return _fits_attention(kernel, target, p)
    if p.form == SPECIALIZED:
        many = not p.persistent or _programs(kernel, p) > target.cores
        fits = attention_bytes(kernel, target, p) <= device.shared_bytes
        return many and fits and can_specialize(kernel, target, p)
    if p.form == PIPELINED:
        fits = p.num_stages <= steps + 1 and shared_taken(kernel, target, p) <= device.shared_bytes
        return fits and _groups(kernel, p) and can_pipeline(kernel, target, p)
    if p.form != CONTRACTION:
        if elements > MOST_ELEMENTS[p.form] or elements // threads > MOST_OF_THREAD[p.form]:
            return False
        if not _rows_fit_registers(kernel, target, p):
            return False
        if p.form == ROWS and len(p.axes) > 1:
            own = power_of_two(math.prod(kernel.extents[n] for n in p.axes[1]))
            if p.tile[1] < min(own, rows_of_threads(kernel, threads)):
                return False
        if p.num_stages > 1 and p.num_stages > steps // p.split:
            return False
        if p.num_stages > 1 and device.blocks(p.num_stages) * copied_bytes(kernel, p) > device.shared_bytes:
            return False
        return not (elements < threads and p.num_warps > 1) and (depth_of(kernel.reductions) < 2 or elements <= 8192)
    assert kernel.contraction is not None
    dtype = kernel.contraction.sides[0].dtype
    rows, columns = p.tile
    if not sums_fit(kernel, target, p) or rows * columns < threads:
        return False
    if p.read_early and (sums_of(kernel, p) + rows * columns) // threads > registers_for_sums(target, p.num_warps):
        return False  # half as many registers again for two bytes each, and addresses
    if p.num_stages > steps // p.split + 1 or shared_taken(kernel, target, p) > device.shared_bytes:
        return False
    if not fits_epilogue(kernel, p):
        return False
    if dtype is dtypes.float32 and p.precision == "ieee" and not device.multiplies(dtype.name):
        sums = sums_of(kernel, p)
        if sums > MOST_SUMS or sums * p.reduce_tile // threads > MOST_UNROLLED[CONTRACTION]:
            return False
    if p.warp_specialize and (p.num_warps != 4 or p.loads != TMA or p.num_stages > most_specialized_stages()):
        return False
    if p.loads == TMA and not can_describe(kernel, p):
        return False
    programs = _programs(kernel, p)
    if p.tail > 1:
        slots = max(1, target.cores) * max(1, p.persistent)
        whole, left = divmod(programs, slots)
        if p.split > 1 or not whole or not left or not _fits_stream_k(kernel, target, p, left):
            return False
    if p.persistent and programs <= target.cores * p.persistent:
        return False  # each program has one tile anyway
    return _groups(kernel, p)


def _rows_fit_registers(kernel: TileKernel, target: Target, p: TileParameters) -> bool:
    """Whether threads that hold rows whole have a register for each element, and some beside: of 65,536 elements with
    32 warps 64 registers each hold 64 elements, and spill up to 560 bytes, of 40,000 none (Triton 3.9, sm_90)."""
    if p.form != ROWS:
        return True
    assert kernel.rows is not None
    device = device_of(target)
    held = math.prod(p.tile) * min(p.reduce_tile, kernel.rows.width)
    return held < device.threads(p.num_warps) * device.registers_of_thread(p.num_warps)


def _groups(kernel: TileKernel, p: TileParameters) -> bool:
    """Whether rows of tiles are taken together where that changes anything: of as many as there are, the least."""
    below = max((group for group in GROUPS if group < p.group), default=0)
    tiles = tiles_of(kernel, p)
    return p.group == 1 or (tiles[1] > 1 and tiles[0] > max(below, p.group // 2))


def _fits_stream_k(kernel: TileKernel, target: Target, p: TileParameters, left: int) -> bool:
    """Whether parts of the tiles left have something to do, and are few; or whether halves of them fit into a wave."""
    slots = max(1, target.cores) * max(1, p.persistent)
    if may_stream_k(kernel):
        steps = -(-kernel.reduce_extent // p.reduce_tile)
        return p.tail <= steps // 2 and left * p.tail <= 2 * slots
    half = halved(p)
    described, threads = p.loads != TMA or can_describe(kernel, half), device_of(target).threads(p.num_warps)
    return can_halve(kernel, p) and 2 * left <= slots and described and math.prod(half.tile) >= threads


def _fits_attention(kernel: TileKernel, target: Target, p: TileParameters) -> bool:
    """Whether scores, weights and sums of an attention fit into the registers of its threads, and the rest into shared
    memory."""
    attention = kernel.attention
    assert attention is not None
    device, (height,), step = device_of(target), p.tile, p.reduce_tile
    threads = device.threads(p.num_warps)
    width = padded(attention.columns)
    if not 16 <= height <= 128 or p.num_warps > MOST_ATTENTION_WARPS or height * max(step, width) < threads:
        return False
    if not attention_fits_registers(kernel, target, p):
        return False
    _, steps = visited_blocks(reach_of(attention), Axis(attention.rows, height), extent(attention.keys), step)
    if p.split > 1 and (p.split > steps or _programs(kernel, p) > MOST_WAVES * target.cores):
        return False
    if p.num_stages > -(-steps // p.split) + 1 or attention_bytes(kernel, target, p) > device.shared_bytes:
        return False
    return p.loads != TMA or can_load_by_tma(kernel, p)
