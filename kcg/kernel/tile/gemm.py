"""Matmuls and convolutions on tensor cores, with prologue and epilogue: one kernel or several.

A program has one tile of a product, or takes tiles in turn; programs may share the terms of all tiles (split-K) or of
those of the last wave (stream-K), or halves of these. How the loop over terms is written is in `contraction.py`, what
becomes of its sums in `epilogue.py`.

What it costs: a program is a chain of steps, each waiting for its loads or for the tensor core; the programs of a
multiprocessor share its tensor core, its way to L2 and its memory; they run in waves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kcg.compat.tiny import UOp, dtypes
from kcg.kernel.ast import extent, is_symbolic
from kcg.kernel.reading.accesses import Access
from kcg.kernel.reading.contractions import Contraction, Operand
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.contraction import (
    FEW_ROWS,
    MIN_BYTES_TILE,
    MIN_TILE,
    WGMMA_ROWS,
    Finished,
    Loop,
    Product,
    Sums,
    Turns,
    are_one_loop,
    counts_of,
    describe_operand,
    fits_epilogue,
    in_parts,
    in_the_sum,
    read_before,
    read_for_each,
    stored_blocks,
    stored_width,
    sub_tiles_of,
    swizzled,
    terms_of_part,
    turned,
    write_contraction,
    write_step,
)
from kcg.kernel.tile.descriptors import Described, describe
from kcg.kernel.tile.device import Device, Figures, device_of
from kcg.kernel.tile.emit import Block, Frame, Lines, Writer, compute_type, runs_of
from kcg.kernel.tile.epilogue import store_branch, store_tile
from kcg.kernel.tile.estimates import BESIDE_SUMS, LAUNCH_S, SPECIAL, either, spilled
from kcg.kernel.tile.eviction import deaf_copies, reused, streamed
from kcg.kernel.tile.form import (
    COMPILER_BYTES,
    STAGES,
    UNCERTAIN,
    Axes,
    Form,
    Start,
    powers,
    precisions_of,
    registers_for_sums,
    settled,
    steps_of,
)
from kcg.kernel.tile.needed import VECTOR_BYTES
from kcg.kernel.tile.parameters import CONTRACTION, POINTER, TF32, TMA, TileParameters
from kcg.kernel.tile.reduction import Part, accumulator, stepped_extent
from kcg.kernel.tile.split import SPLITS, may_split, store_partials, write_sums
from kcg.kernel.tile.targets import most_specialized_stages
from kcg.kernel.tile.tiles import (
    Axis,
    axes_of,
    axis_of_others,
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
from kcg.types import Target

BETWEEN = (96, 144, 160, 192, 288, 320, 384)
"""Columns of a tile that are two pieces: they fill the last wave where powers of two do not."""
TAILS = (1, 2, 3, 4, 6, 8)
GROUPS = (1, 4, 8, 12, 16)
LARGEST_SIZE = 256  # of a tile along one axis
MOST_BESIDE = 62  # registers of a thread beside its sums, at most
MOST_SUMS = 16_384  # of a program that multiplies float32 without tensor cores
MOST_UNROLLED = 4_096
"""Multiplications of a thread in one step without tensor cores, each an instruction. 4,096 take 2 s to compile, 10 and
48 are taken by 2 and 4 times as many, which spill (Triton 3.9, sm_90)."""
PAIR_REGISTERS = 1.9  # of a thread for each column that it makes something of, beside its sums
SHARED_COLUMNS = 76  # registers of a thread that puts halves of shared columns together
COPY_REGISTERS = 5  # of a thread for each 16 bytes that it copies in a step
SPECIALIZED_BYTES = 32 << 10  # of the result of a program that Triton specialises, at least
WIDE_TILE = 16_384  # from here on 256 threads
MOST_WARPS = 16  # of a program that multiplies
SHORT_TERMS, SHORT_TILE = 128, (64, 128)
"""A product of so few terms is a stream of bytes where it reads something beside each sum: small tiles, many of them at
once, each of which has asked for all it reads. (46.8 µs for 53.4 with large ones: 256 × 3,136 of 64.)"""
STREAM_K_ROWS = 16  # of a tile, that one program of it adds
_END_OF_TILE = 'tl.inline_asm_elementwise("", "=r,0", [{}], dtype=tl.int32, is_pure=False, pack=1)'
"""No instruction: Triton 3.6 takes what a branch at the end of a flattened loop reads for the loop's results."""
NEIGHBOURS = 16
"""Programs with consecutive numbers that run side by side: a block that several of them ask for comes from L2 once."""
WIDEST = 256  # columns of a product on a tensor core
LARGEST = 128 * WIDEST  # elements of a contraction's tile
LEAST_COPY = 4  # bytes of an asynchronous copy
MOST_APART = 2  # times the work of it, where neighbours of a warp are apart
MOST_COPY = 16  # bytes that a thread moves at once


class Matmul(Form[Any, Any]):
    """Products in Triton: all warps of a program do the same."""

    def view(self, kernel: TileKernel) -> Any:
        return kernel

    name = CONTRACTION
    noun = "matmul"  # a convolution is one too, as implicit GEMM
    is_usual = True
    has_stages = True
    is_of_products = True
    fields = frozenset(("loads", "persistent", "tail", "epilogue_parts", "warp_specialize", "read_early"))
    start_at = Start.WALKED
    uncertainty = UNCERTAIN

    def has(self, kernel: TileKernel, target: Target) -> bool:
        return kernel.attention is None and kernel.rows is None and kernel.contraction is not None

    def preference(self, kernel: TileKernel, target: Target) -> int:
        assert kernel.contraction is not None
        rows, columns = (count_of(kernel, side.ranges) for side in kernel.contraction.sides)
        return 2 if min(rows, columns) >= FEW_ROWS and kernel.reduce_extent >= _least_terms(kernel) // 2 else 0

    def axes(self, kernel: TileKernel) -> tuple[Axes, ...]:
        assert kernel.contraction is not None
        rows, columns = (side.ranges for side in kernel.contraction.sides)
        if any(one.epilogue_uses for one in kernel.launched):  # it is made of neighbouring columns
            return ((rows, columns),)
        few = count_of(kernel, rows) < 64 <= count_of(kernel, columns)
        return ((columns, rows), (rows, columns)) if few else ((rows, columns), (columns, rows))

    def start(self, kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
        made = _first(kernel, target, axes)
        return settled(kernel, target, made, self.elements(made))

    # ---- the values of parameters

    def values(self, kernel: TileKernel, target: Target, p: TileParameters, field: str) -> tuple[Any, ...]:
        match field:
            case "split":
                return SPLITS if may_split(kernel) else (1,)
            case "group":
                return GROUPS
            case "loads":
                return (POINTER, TMA) if device_of(target).has_tma else (POINTER,)
            case "persistent":
                # of pieces none was faster than one program a tile
                return (0, 1, 2) if p.tile[1] not in BETWEEN else (0,)
            case "tail":
                return _tails(kernel, p)
            case "epilogue_parts":
                return (1, 2) if p.tile[1] >= 64 else (1,)
            case "warp_specialize":
                plain = p.loads == TMA and p.num_warps == 4
                shared = p.persistent and p.tail > 1
                return (False, True) if plain and not shared and p.tile[1] not in BETWEEN else (False,)
            case "num_stages":
                return STAGES
            case "read_early":
                alone = p.split == p.tail == 1
                return (False, True) if alone and reads_in_epilogue(kernel, p) else (False,)
            case "evict_first":
                return streamed(kernel, target, p, _deaf(kernel, p))
            case "evict_last":
                return reused(kernel, target, p, _deaf(kernel, p), large=True)
        return super().values(kernel, target, p, field)

    def tiles(self, kernel: TileKernel, p: TileParameters) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = [()]
        for numbers in p.axes:
            count = count_of(kernel, numbers)
            sizes = powers(MIN_TILE, LARGEST_SIZE, count)
            if found != [()]:
                sizes = sorted([*sizes, *(size for size in BETWEEN if size <= power_of_two(count))])
            found = [(*tile, size) for tile in found for size in sizes]
        return found

    def steps(self, kernel: TileKernel) -> tuple[int, ...]:
        least, whole = _least_terms(kernel), power_of_two(stepped_extent(kernel))
        return tuple(size for size in (16, 32, 64, 128, 256) if least <= size <= max(least, whole))

    def may_split(self, kernel: TileKernel) -> bool:
        return may_split(kernel)

    def precisions(self, kernel: TileKernel) -> tuple[str, ...]:
        assert kernel.contraction is not None
        return precisions_of(kernel, (kernel.contraction.sides[0].dtype,), ("tf32x3",))

    def least_parts(self, tile: tuple[int, ...]) -> int:
        return 2 if tile[1] >= 64 else 1

    def held(self, kernel: TileKernel, target: Target, p: TileParameters) -> tuple[int, int, int]:
        device = device_of(target)
        threads = device.threads(p.num_warps)
        beside = self.elements(p) // threads if reads_in_epilogue(kernel, p) else 0
        held = sums_of(kernel, p) // threads
        return held, held + beside + MOST_BESIDE, device.shared_bytes // max(1, shared_taken(kernel, target, p))

    # ---- what fits

    def fits(self, kernel: TileKernel, target: Target, p: TileParameters) -> bool:
        steps, device = steps_of(kernel, p), device_of(target)
        if p.split > 1 and p.split > steps // 2:
            return False
        if not _fits_registers(kernel, target, p):
            return False
        if p.num_stages > steps // p.split + 1 or shared_taken(kernel, target, p) > device.shared_bytes:
            return False
        if not fits_epilogue(kernel, p) or not _may_be_unrolled(kernel, target, p):
            return False
        if p.warp_specialize and (p.num_warps != 4 or p.loads != TMA or p.num_stages > most_specialized_stages()):
            return False
        if p.loads == TMA and not can_describe(kernel, p):
            return False
        programs = self.programs(kernel, p)
        if p.tail > 1:
            slots = max(1, target.cores) * max(1, p.persistent)
            whole, left = divmod(programs, slots)
            if p.split > 1 or not whole or not left or not _fits_stream_k(kernel, target, p, left):
                return False
        if p.persistent and programs <= target.cores * p.persistent:
            return False  # each program has one tile anyway
        return swizzle_matters(kernel, p)

    def shared_bytes(self, kernel: TileKernel, target: Target, p: TileParameters) -> int:
        return shared_taken(kernel, target, p)

    # ---- the program

    def check(self, kernel: TileKernel, p: TileParameters) -> None:
        check_axes(p)
        if p.tail > 1 and (p.split > 1 or not (may_stream_k(kernel) or can_halve(kernel, p))):
            raise UnsupportedTile(
                "tail", "programs share the last tiles of one product, or two each halves of its columns"
            )
        if kernel.grouped and (p.read_early or p.warp_specialize):
            raise UnsupportedTile("form", "products of one launch are not specialised, and read nothing early")
        if p.read_early and (p.split > 1 or p.tail > 1):
            raise UnsupportedTile("read_early", "programs finish a product's tiles themselves, or hold rows")
        if p.warp_specialize and p.loads != TMA:
            raise UnsupportedTile("warp_specialize", "only a product's loop, where its loads are TMA")
        if p.warp_specialize and p.persistent and p.tail > 1:
            raise UnsupportedTile(
                "warp_specialize", "programs that have whole tiles and parts of others have no such loop"
            )

    def write_at_once(self, kernel: TileKernel, target: Target, p: TileParameters, writer: Writer) -> tuple[Lines, int]:
        return _write_launch(kernel, target, p, writer)

    def partials(self, kernel: TileKernel, target: Target, p: TileParameters) -> int:
        if p.split > 1:
            return super().partials(kernel, target, p)
        tail = stream_k_of(kernel, target, p)
        return tail.left * tail.count * math.prod(p.tile) if tail is not None else 0

    def write_second_at_once(
        self, kernel: TileKernel, target: Target, p: TileParameters, writer: Writer
    ) -> tuple[Lines, int]:
        if (tail := stream_k_of(kernel, target, p)) is not None:
            return _write_stream_k(kernel, tail, p, writer)
        return write_sums(kernel, p.split, writer)

    def has_several_products(self, kernel: TileKernel, p: TileParameters) -> bool:
        """A `tl.dot` for each piece of its columns, each contraction, and halves of the last tiles; or one of them that
        is made of three, or goes through several sums."""
        return (
            len(sub_tiles_of(p.tile[1])) > 1
            or bool(kernel.chained or kernel.sharing_operand or kernel.grouped)
            or p.precision == "tf32x3"
            or (p.tail > 1 and can_halve(kernel, p))
        )

    # ---- what it costs

    def seconds(self, kernel: TileKernel, target: Target, p: TileParameters, figures: Figures) -> float:
        return _seconds(kernel, target, p, figures)

    def is_familiar(self, p: TileParameters, prior: TileParameters) -> bool:
        known = {
            "reduce_tile": (32, 64, 128), "num_warps": (4, 8), "split": (1, 2), "tail": (1, 2, 3, 6),
            "persistent": (0, 1, 2), "num_stages": (2, 3, 4, 5, 6), "warp_specialize": (False,), "group": (1, 4, 8, 12),
            "read_early": (False, True),
            "evict_first": ((),), "evict_last": ((),), "maxnreg": (0,), "fast_math": (), "precision": ("ieee",),
        }  # fmt: skip
        sizes = {64, 128, 256, *BETWEEN, *prior.tile}
        if p.loads != TMA and p.persistent and p.num_warps == 4:
            return False  # took up to 1.7 times as long as expected
        return sizes.issuperset(p.tile) and all(getattr(p, n) in (*v, getattr(prior, n)) for n, v in known.items())


def check_axes(p: TileParameters) -> None:
    """Raises UnsupportedTile where a tile is none of a product."""
    if not len(p.axes) == len(p.tile) == 2:
        raise UnsupportedTile("axes", "a product's tile has rows and columns")


def _least_terms(kernel: TileKernel) -> int:
    """Of a step of a tensor core."""
    assert kernel.contraction is not None
    return MIN_BYTES_TILE if kernel.contraction.sides[0].dtype.itemsize == 1 else MIN_TILE


# ---- what fits


def _tails(kernel: TileKernel, p: TileParameters) -> tuple[int, ...]:
    """Programs that may share each tile of the last wave."""
    if p.split > 1:
        return (1,)
    if not may_stream_k(kernel):
        return (1, 2) if can_halve(kernel, p.changed(tail=2)) else (1,)
    ahead = not p.persistent or p.loads == TMA  # else no loads run on from part to part
    return TAILS if ahead else (1,)


def _fits_registers(kernel: TileKernel, target: Target, p: TileParameters) -> bool:
    """Whether the sums of a tile fit into registers, with what is read early."""
    threads, elements = device_of(target).threads(p.num_warps), math.prod(p.tile)
    if not sums_fit(kernel, target, p) or elements < threads:
        return False
    # half as many registers again for two bytes each, and addresses
    early = (sums_of(kernel, p) + elements) // threads if p.read_early else 0
    return early <= registers_for_sums(target, p.num_warps)


def _may_be_unrolled(kernel: TileKernel, target: Target, p: TileParameters) -> bool:
    """Whether products without tensor cores are few enough to be compiled."""
    assert kernel.contraction is not None
    device, dtype = device_of(target), kernel.contraction.sides[0].dtype
    if dtype is not dtypes.float32 or p.precision != "ieee" or device.multiplies(dtype.name):
        return True
    sums = sums_of(kernel, p)
    return sums <= MOST_SUMS and sums * p.reduce_tile // device.threads(p.num_warps) <= MOST_UNROLLED


def swizzle_matters(kernel: TileKernel, p: TileParameters) -> bool:
    """Whether rows of tiles are taken together where that changes anything: of as many as there are, the least."""
    below = max((group for group in GROUPS if group < p.group), default=0)
    tiles = tiles_of(kernel, p)
    return p.group == 1 or (tiles[1] > 1 and tiles[0] > max(below, p.group // 2))


def _fits_stream_k(kernel: TileKernel, target: Target, p: TileParameters, left: int) -> bool:
    """Whether parts of the tiles left have something to do, and are few; or whether halves of them fit into a wave."""
    slots = max(1, target.cores) * max(1, p.persistent)
    if may_stream_k(kernel):
        return p.tail <= steps_of(kernel, p) // 2 and left * p.tail <= 2 * slots
    half = halved(p)
    described, threads = p.loads != TMA or can_describe(kernel, half), device_of(target).threads(p.num_warps)
    return can_halve(kernel, p) and 2 * left <= slots and described and math.prod(half.tile) >= threads


def can_describe(kernel: TileKernel, parameters: TileParameters) -> bool:
    """Whether TMA can load an operand of a contraction in tiles of these parameters."""
    return all(_by_tma(*launched) for launched in launched_with(kernel, parameters))


def described_operands(kernel: TileKernel, parameters: TileParameters) -> tuple[Operand, ...]:
    """The operands of a contraction that TMA loads with these parameters."""
    return _by_tma(kernel, parameters) if parameters.loads == TMA else ()


def _by_tma(kernel: TileKernel, parameters: TileParameters) -> tuple[Operand, ...]:
    """The operands of a contraction that TMA can load in tiles of these parameters: none, maybe."""
    key = parameters.axes, parameters.tile, parameters.reduce_tile
    if key not in kernel.by_tma:  # a search asks some thousand times for each
        kernel.by_tma[key] = _described_operands(kernel, replace(parameters, loads=TMA))
    return kernel.by_tma[key]


def _described_operands(kernel: TileKernel, parameters: TileParameters) -> tuple[Operand, ...]:
    try:
        one, other = axes_of(kernel, parameters)
        top = open_frame(kernel, Writer(kernel), ())
        found = list[Operand]()
        for number, contraction in enumerate(turned(each, parameters) for each in kernel.together):
            describe_both = _described_or_none if number else _described
            rows, columns = describe_both(contraction, kernel, (one, other), top, parameters)
            by_tma = (rows is not None, any(sub_tile is not None for sub_tile in columns))
            found += [side for side, described in zip(contraction.sides, by_tma, strict=True) if described]
    except UnsupportedTile:
        return ()
    return tuple(found)


def may_stream_k(kernel: TileKernel) -> bool:
    """Whether programs may share the last tiles of a contraction, which have one sum each: also what several
    contractions come to together."""
    if kernel.chained:
        sums = [one.reduce for one in (*kernel.chained, *kernel.together)]
        alone = set(sums) == set(kernel.reductions) and not kernel.also and not kernel.sharing_operand
        return alone and not any(map(is_symbolic, (*kernel.outputs, *(r for one in sums for r in one.src[1:]))))
    return may_split(kernel) and not kernel.sharing_operand


def can_halve(kernel: TileKernel, parameters: TileParameters) -> bool:
    """Whether two programs may share a last tile by its columns: of persistent programs, where they cannot share its
    sums, and where no half is outside the result or has less than what is made of it needs."""
    if may_stream_k(kernel) or not parameters.persistent or parameters.tail != 2:
        return False
    launched = launched_with(kernel, parameters)
    whole = all(axes_of(*one)[1].total % parameters.tile[1] == 0 for one in launched)
    return parameters.tile[1] >= 2 * MIN_TILE and whole and fits_epilogue(kernel, halved(parameters))


def halved(parameters: TileParameters) -> TileParameters:
    """The parameters of tiles with half of the columns, whose blocks are finished as wide as before."""
    rows, columns = parameters.tile
    return replace(parameters, tile=(rows, columns // 2), epilogue_parts=1)


def _deaf(kernel: TileKernel, p: TileParameters) -> frozenset[UOp]:
    """The loads for which Triton drops an eviction policy."""
    inside = (node for one in kernel.together for node in one.reduce.backward_slice)
    return deaf_copies(p, inside) | {side.factors[0].node for side in described_operands(kernel, p)}


# ---- registers and shared memory


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
    ring = ring_bytes(kernel, device, parameters)
    widest = max(int(one.store.buffer.dtype.itemsize) for one in kernel.written)
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


def ring_bytes(kernel: TileKernel, device: Device, p: TileParameters) -> int:
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


def sums_fit(kernel: TileKernel, target: Target, p: TileParameters) -> bool:
    """Whether the sums of a contraction's tile fit into the registers of its threads."""
    threads = device_of(target).threads(p.num_warps)
    return sums_of(kernel, p) // threads <= registers_for_sums(target, p.num_warps)


def reads_in_epilogue(kernel: TileKernel, parameters: TileParameters) -> bool:
    """Whether a contraction reads something else for each element of its result, as of a residual."""
    return bool(_loads_of_epilogue(kernel, parameters))


def _loads_of_epilogue(kernel: TileKernel, p: TileParameters) -> list[Access]:
    return [
        x
        for x in kernel.epilogue_loads
        if all(any(kernel.outputs[n] in x.node.ranges for n in axis) for axis in p.axes)
    ]


# ---- the prior


def _first(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    """A tile of at most 128 × 256 and 32,768 accumulators, 8 warps from 16,384, halved while the last wave leaves a
    fifth of the multiprocessors idle: what others measured on Hopper."""
    contraction = kernel.contraction
    assert contraction is not None
    rows, columns = (count_of(kernel, numbers) for numbers in axes)
    count, dtype = kernel.reduce_extent, contraction.sides[0].dtype
    wide = dtype.itemsize == 4
    sums = len(kernel.together)
    most = (64, 64) if wide else (128, 256 // power_of_two(sums))
    tile = [max(MIN_TILE, min(most[0], power_of_two(rows))), max(MIN_TILE, min(most[1], power_of_two(columns)))]
    batch = count_of(kernel, contraction.batch)

    def programs() -> int:
        made = launched_tiles(kernel, TileParameters(CONTRACTION, axes, (tile[0], tile[1])))
        return math.prod(made) * batch

    def efficiency() -> float:
        waves = programs() / target.cores
        return waves / math.ceil(waves)

    while efficiency() < 0.8 and max(tile) > 64:
        tile[0 if tile[0] > tile[1] else 1] //= 2
    step = max(_least_terms(kernel), min(32 if wide else 64, power_of_two(count)))
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
        count_of(one, one.contraction.sides[1].ranges)
        for one in kernel.launched
        if one.contraction and one.epilogue_uses
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


# ---- the program


def _write_launch(kernel: TileKernel, target: Target, parameters: TileParameters, writer: Writer) -> tuple[Lines, int]:
    """The tiles of a contraction, or of several: each program takes a branch by its number, or tiles of all in turn.

    The branches follow each other: of one inside another's `else` Triton adds up the shared memory.
    """
    top = open_frame(kernel, writer, ())
    if parameters.persistent:
        return top.lines, _write_turns(kernel, parameters, target, top)
    if not kernel.grouped:
        return top.lines, _write_tiles(kernel, target, parameters, top)
    number, begin = top.lines.name("tl.program_id(0)", "program"), 0
    for one, own in launched_with(kernel, parameters):
        inside = Frame(Lines(writer, top.lines), (), outer=top)
        tile = inside.lines.name(f"{number} - {begin}", "tile") if begin else number
        end = begin + _write_tiles(one, target, own, inside, number=tile)
        conditions = [f"({number} >= {begin})"] if begin else []
        conditions += [f"({number} < {end})"] if one is not kernel.launched[-1] else []
        top.lines.extend(f"if {' & '.join(conditions)}:", inside.lines)
        begin = end
    return top.lines, begin


def _write_turns(kernel: TileKernel, parameters: TileParameters, target: Target, top: Frame) -> int:
    """A loop over the tiles of each contraction, one loop after the other; then such loops over halves of the tiles
    left, where two programs share each of these. Returns how many programs there are."""
    launched = launched_with(kernel, parameters)
    tiles = [math.prod(counts_of(*one)) for one in launched]
    programs = min(sum(tiles), target.cores * parameters.persistent)
    halves = parameters.tail > 1 and not may_stream_k(kernel)
    whole = sum(tiles) // programs * programs if halves else sum(tiles)
    if halves and not 0 < 2 * (sum(tiles) - whole) <= programs:
        raise UnsupportedTile("tail", "there is no last wave that halves of its tiles fit into")
    before = left = 0
    later = list[tuple[TileKernel, TileParameters, Turns]]()
    for (one, own), count in zip(launched, tiles, strict=True):
        own_whole = max(0, min(count, whole - before))
        if own_whole:
            _write_tiles(one, target, own, top, turns=Turns(programs, before, 0, own_whole))
        if own_whole < count:
            turns = Turns(programs, 2 * left, own_whole, count - own_whole, halves=True)
            later.append((one, halved(own), turns))
        before, left = before + count, left + count - own_whole
    for one, own, turns in later:
        _write_tiles(one, target, own, top, turns=turns)
    return programs


def _write_tiles(
    kernel: TileKernel,
    target: Target,
    parameters: TileParameters,
    top: Frame,
    *,
    number: str = "",
    turns: Turns | None = None,
) -> int:
    """Writes what the program with a number does, by default that of the launch; with `turns` it is a loop over tiles.
    Returns how many programs there are."""
    writer, contraction = top.writer, kernel.contraction
    assert contraction is not None
    one, other = axes_of(kernel, parameters)
    axes = (one, other)
    contraction = turned(contraction, parameters)
    least = _least_terms(kernel)
    if min(parameters.tile) < MIN_TILE or parameters.reduce_tile < least:
        raise UnsupportedTile("tile", f"a tensor core takes at least {MIN_TILE} rows and columns and {least} terms")
    rest = rest_of(kernel, axes)
    rows, columns = (axis.tiles for axis in axes)
    counts = counts_of(kernel, parameters)
    if turns is not None and turns.halves:
        columns, counts[-1] = columns // 2, counts[-1] // 2
    tiles = grid = math.prod(counts)
    if tiles >= 1 << 31:
        raise UnsupportedTile("grid", "2^31 programs or more")
    before = [turned(other, parameters) for other in kernel.chained]
    described = _described(contraction, kernel, axes, top, parameters)
    others = [_described_or_none(other, kernel, axes, top, parameters) for other in before]
    chain = [Product(of, *by_tma) for of, by_tma in zip((*before, contraction), (*others, described), strict=True)]
    in_one_loop = are_one_loop(chain, parameters.reduce_tile) and not parameters.warp_specialize
    number = number or top.lines.name("tl.program_id(0)", "program")
    root = top
    tail = stream_k_of(kernel, target, parameters)
    if turns is not None and tail is not None and in_one_loop:
        _write_items(kernel, parameters, top, axes, chain, Items(tail, turns.programs, number))
        return turns.programs
    if tail is not None:
        tiles = grid = tail.whole + tail.left * tail.count
    if turns is not None:
        grid, program, number = turns.programs, number, writer.fresh("tile")
        root = Frame(Lines(writer, top.lines), (), outer=top)
        if tail is None:
            tiles = turns.tiles * (2 if turns.halves else 1)
    item, part, shared, unit, half = number, None, "", "", ""
    if turns is not None and turns.halves:
        half = root.lines.name(f"{item} % 2", "half")
        number = root.lines.name(f"{turns.begin} + {item} // 2", "tile")
    if tail is not None:
        shared = root.lines.name(f"{item} >= {tail.whole}", "shared")
        unit = root.lines.name(f"{item} - {tail.whole}", "unit")
        part = Part(root.lines.name(f"{unit} % {tail.count}", "part"), tail.count)
        number = root.lines.name(f"tl.where({shared}, {tail.whole} + {unit} // {tail.count}, {item})", "tile")
    digits = split_number(root, number, counts)
    for axis, digit in zip(rest, digits[1:-1], strict=True):
        bind_scalar(root, axis, digit)
    row, column = swizzled(root, digits[-1], rows, columns, parameters.group)
    if half:
        column = root.lines.name(f"{column} * 2 + {half}", "column")
    part = part or Part(digits[0], parameters.split)
    specialized = ", warp_specialize=True" if parameters.warp_specialize else ""
    options = specialized if turns is None else ""
    starts = (start_of(root, row, axes[0]), start_of(root, column, axes[1]))
    if parameters.read_early:
        read_before(root, axes, starts, parameters.epilogue_parts, [load.node for load in read_for_each(kernel, axes)])
    others_of = [turned(other, parameters) for other in kernel.sharing_operand]
    sharing = tuple(Product(other, *_described_or_none(other, kernel, axes, top, parameters)) for other in others_of)
    sums = None
    for *first, last in [chain] if in_one_loop else [[product] for product in chain]:
        loop = Loop(
            parameters.reduce_tile, parameters.precision, last.rows, last.columns, part=part, shared=shared,
            options=options, sharing_operand=sharing, chained=tuple(first),
        )  # fmt: skip
        sums = write_contraction(last.contraction, root, axes, starts, loop, to=sums)
    assert sums is not None
    lines = Lines(writer, root.lines) if tail is not None else root.lines
    blocks = stored_blocks((contraction, *others_of), root, lines, sums, parameters.epilogue_parts)
    _finish(kernel, parameters, axes, blocks, top, part)
    if tail is not None:
        root.lines.extend(f"if {unit} < 0:", lines)
        root.lines.extend("else:", _partial_tile(root, sums, unit, most=_partial_width(parameters)))
    if turns is not None:
        in_branches = flattens_branches(kernel, parameters)
        how = specialized or (", flatten=True" if in_branches or not (kernel.is_branching or tail) else "")
        if in_branches and not writer.interpreted:
            root.lines.add(_END_OF_TILE.format(item))
        begin = turns.first(top.lines, program)
        top.lines.extend(f"for {item} in tl.range({begin}, {tiles}, {grid}{how}):", root.lines)
    return grid


def _finish(
    kernel: TileKernel,
    parameters: TileParameters,
    axes: tuple[Axis, Axis],
    blocks: Sequence[Finished],
    top: Frame,
    part: Part,
) -> None:
    """Stores all that is made of a tile's sums; of a split reduction the sums of a part."""
    for together in [blocks] if _are_of_one_store(kernel, axes[1]) else [[block] for block in blocks]:
        for block in together:
            block.frame.bound |= in_the_sum(kernel)
        for block in together[1:]:
            for plain in kernel.plain:  # asked for before anything is stored
                block.frame.value(plain.value)
        for block in together:
            if parameters.split > 1:
                store_partials(block.frame, kernel, part)
                continue
            for plain in kernel.plain:
                descriptor = None  # masks the tile only
                outer = block.frame.outer
                masked = outer is not None and outer.scalar_masks
                if stores_by_tma(kernel, parameters) and not plain.gates and not masked:
                    descriptor = describe(plain.store, (axes[0], block.columns), top)
                store_tile(block.frame, plain, descriptor, block.starts)
        for branch in kernel.epilogue:
            store_branch(together, kernel, branch)


def flattens_branches(kernel: TileKernel, parameters: TileParameters) -> bool:
    """Whether a persistent program's loops are one although its tiles end in branches."""
    by_tma = parameters.loads == TMA and not parameters.warp_specialize
    return bool(parameters.persistent) and kernel.is_branching and by_tma


def stores_by_tma(kernel: TileKernel, parameters: TileParameters) -> bool:
    """Whether a tile's plain result leaves by TMA where it can. Not where the ring is full while a tile is finished and
    moves of branches or of partial tiles need room beside it, which stores through pointers share."""
    of_parts = parameters.persistent and parameters.tail > 1 and may_stream_k(kernel)
    apart = flattens_branches(kernel, parameters) or of_parts
    return parameters.loads == TMA and not apart


def _are_of_one_store(kernel: TileKernel, columns: Axis) -> bool:
    """Whether what is made of pairs of a contraction's columns is made of whole tiles: a tile is of one store."""
    held = [one for branch in kernel.epilogue for one in (branch.use.first, branch.use.count)]
    return any(branch.pairs for branch in kernel.epilogue) and not any(count % columns.size for count in held)


# ---- the last wave's tiles, each shared by programs: partial tiles in the workspace, added in order


@dataclass(frozen=True)
class StreamK:
    """So many tiles are a program each; those left are shared by `count` programs each."""

    whole: int
    left: int
    count: int


def stream_k_of(kernel: TileKernel, target: Target, parameters: TileParameters) -> StreamK | None:
    """The tiles of a contraction's last wave, where programs share their reductions. Raises UnsupportedTile where there
    is no such wave."""
    if parameters.tail <= 1 or not may_stream_k(kernel):
        return None
    tiles = math.prod(counts_of(kernel, parameters))
    programs = max(1, target.cores) * max(1, parameters.persistent)
    whole = tiles // programs * programs
    if not whole or whole == tiles:
        raise UnsupportedTile("tail", "there is no last wave that is not full")
    if (tiles - whole) * parameters.tail * math.prod(parameters.tile) >= 1 << 31:
        raise UnsupportedTile("tail", "2^31 partial sums or more")
    return StreamK(whole, tiles - whole, parameters.tail)


@dataclass(frozen=True)
class Items:
    """What persistent programs take in turn where they share the last tiles: whole tiles, as many each, then parts."""

    tail: StreamK
    programs: int
    program: str  # the number of one


def _write_items(
    kernel: TileKernel,
    parameters: TileParameters,
    top: Frame,
    axes: tuple[Axis, Axis],
    chain: Sequence[Product],
    items: Items,
) -> None:
    """One loop over the terms of all items of a program, so that loads run ahead from one to the next: Triton flattens
    loops only where the inner one's bounds do not depend on the outer one. What `chain` is, see `are_one_loop`."""
    writer, lines, step, tail = top.writer, top.lines, parameters.reduce_tile, items.tail
    whole, of_part = (terms_of_part(kernel.terms, step, count) for count in (1, tail.count))
    parts = lines.name(
        f"({tail.left * tail.count + items.programs - 1} - {items.program}) // {items.programs}", "parts"
    )
    steps = lines.name(f"{tail.whole // items.programs * (whole // step)} + {parts} * {of_part // step}", "steps")
    item, unit, counter, last, begins = (writer.fresh(hint) for hint in ("item", "unit", "k", "last", "begins"))
    lines.add(f"{item} = {items.program} - {items.programs}")
    for name in (unit, counter, last):
        lines.add(f"{name} = 0")

    body = Lines(writer, lines)
    opening = Frame(Lines(writer, body), (), outer=top)
    opening.lines.add(f"{item} = {item} + {items.programs}")
    opening.lines.add(f"{unit} = {item} - {tail.whole}")
    shared = opening.lines.name(f"{unit} >= 0", "shared")
    opening.lines.add(f"{counter} = tl.where({shared}, {unit} % {tail.count} * {of_part}, 0)")
    opening.lines.add(f"{last} = {counter} + tl.where({shared}, {of_part - step}, {whole - step})")
    number = opening.lines.name(f"tl.where({shared}, {tail.whole} + {unit} // {tail.count}, {item})", "tile")
    digits = split_number(opening, number, counts_of(kernel, parameters)[1:])
    row, column = swizzled(opening, digits[-1], axes[0].tiles, axes[1].tiles, parameters.group)
    found = [start_of(opening, row, axes[0]), start_of(opening, column, axes[1]), *digits[:-1]]
    held = [text if text.isdigit() else writer.fresh("held") for text in found]
    for name, text in zip(held, found, strict=True):
        if not text.isdigit():
            lines.add(f"{name} = 0")
            opening.lines.add(f"{name} = {text}")

    body.add(f"{begins} = {counter} == {last}")
    body.add(f"{counter} = {counter} + {step}")
    body.extend(f"if {begins}:", opening.lines)
    inside, end = Frame(body, (), outer=top), Frame(Lines(writer, body), (), outer=top)
    for frame in (inside, end):
        for axis, digit in zip(rest_of(kernel, axes), held[2:], strict=True):
            bind_scalar(frame, axis, digit)
    *chained, product = chain
    loop = Loop(step, parameters.precision, product.rows, product.columns, chained=tuple(chained))
    sums = write_step(product.contraction, inside, axes, (held[0], held[1]), loop, body, counter=counter)
    finishing = Lines(writer, end.lines)
    blocks = stored_blocks((product.contraction,), end, finishing, sums, parameters.epilogue_parts)
    _finish(kernel, parameters, axes, blocks, top, Part("0", 1))
    end.lines.extend(f"if {unit} < 0:", finishing)
    end.lines.extend("else:", _partial_tile(end, sums, unit, most=_partial_width(parameters)))
    for zero in sums.zeros():
        lines.add(zero)
        end.lines.add(zero)
    body.extend(f"if {counter} == {last}:", end.lines)
    lines.extend(f"for {writer.fresh('step')} in range({steps}):", body)


def _partial_width(parameters: TileParameters) -> int:
    """The most columns of a partial tile that are stored at once: all, or so many that float32 sums take no more room
    beside a ring that is full than a result of 16 bits does."""
    columns = parameters.tile[1]
    return stored_width(columns, 2 * parameters.epilogue_parts) if parameters.persistent else columns


def _partial_tile(root: Frame, sums: Sums, unit: str, *, most: int) -> Lines:
    """Stores what a part of the reduction came to: the pieces of one tile side by side, each row by row."""
    lines = Lines(root.writer, root.lines)
    rows = sums.rows.size
    elements = rows * sum(sub_tile.size for sub_tile in sums.sub_tiles)
    before = 0
    for total, sub_tile in zip(sums.names, sums.sub_tiles, strict=True):
        for name, at, width in in_parts(root, lines, total, (rows, sub_tile.size), most):
            inside = f"tl.arange(0, {rows})[:, None] * {sub_tile.size} + tl.arange(0, {width})[None, :]"
            lines.add(f"tl.store(workspace + {unit} * {elements} + {before + at} + {inside}, {name})")
        before += rows * sub_tile.size
    return lines


def _write_stream_k(kernel: TileKernel, tail: StreamK, parameters: TileParameters, writer: Writer) -> tuple[Lines, int]:
    """The second launch: adds the parts of each tile in order, some rows a program, and finishes them."""
    contraction = kernel.contraction
    assert contraction is not None
    one, other = axes_of(kernel, parameters)
    top = open_frame(kernel, writer, ())
    rest = rest_of(kernel, (one, other))
    height = min(STREAM_K_ROWS, one.size)
    counts = counts_of(kernel, parameters)[1:]
    number, strip = split_number(top, top.lines.name("tl.program_id(0)", "program"), [tail.left, one.size // height])
    tile = top.lines.name(f"{tail.whole} + {number}", "tile")
    digits = split_number(top, tile, counts)
    for axis, digit in zip(rest, digits[:-1], strict=True):
        bind_scalar(top, axis, digit)
    row, column = swizzled(top, digits[-1], one.tiles, other.tiles, parameters.group)
    rows = replace(one, size=height)
    first = top.lines.name(f"{start_of(top, row, one)} + {strip} * {height}", "start")
    elements, type_ = math.prod(parameters.tile), accumulator(kernel.reductions[0])
    for at, width in sub_tiles_of(other.size):
        frame = Frame(top.lines, (height, width), outer=top)
        inside = top.lines.name(
            f"({strip} * {height} + tl.arange(0, {height}))[:, None] * {width} + tl.arange(0, {width})[None, :]", "i"
        )
        place = f"workspace + {number} * {elements * tail.count} + {at * one.size} + {inside}"
        total, counter, body = writer.fresh("acc"), writer.fresh("part"), Lines(writer, top.lines)
        top.lines.add(f"{total} = tl.load({place})")
        body.add(f"{total} = {total} + tl.load({place} + {counter} * {elements})")
        top.lines.extend(f"for {counter} in range(1, {tail.count}):", body)
        start = top.lines.name(f"{start_of(top, column, other)} + {at}", "start")
        bind_axis(frame, rows, 0, first, ragged=one.total % one.size != 0)
        bind_axis(frame, replace(other, size=width), 1, start, ragged=other.total % other.size != 0)
        bound = Block(total, type_, frozenset({0, 1}))
        frame.bound[contraction.reduce] = frame.cast(bound, compute_type(contraction.reduce))
        frame.bound |= in_the_sum(kernel)
        store_tile(frame, kernel.stored[0])
    return top.lines, tail.left * (one.size // height)


def _described_or_none(
    contraction: Contraction, kernel: TileKernel, axes: tuple[Axis, Axis], top: Frame, parameters: TileParameters
) -> tuple[Described | None, tuple[Described | None, ...]]:
    """As `_described`; of a contraction that is added to another one it may be that TMA can load none."""
    try:
        return _described(contraction, kernel, axes, top, parameters)
    except UnsupportedTile:
        return None, ()


def _described(
    contraction: Contraction, kernel: TileKernel, axes: tuple[Axis, Axis], top: Frame, parameters: TileParameters
) -> tuple[Described | None, tuple[Described | None, ...]]:
    """The first operand, and the pieces of the second, where TMA loads them. Raises UnsupportedTile where none can
    be."""
    if parameters.loads != TMA:
        return None, ()
    reduced = Axis(tuple(contraction.reduce.src[1:]), parameters.reduce_tile)
    sub_tiles = [replace(axes[1], size=width) for _, width in sub_tiles_of(axes[1].size)]
    first, second = contraction.sides
    rows = describe_operand(first, kernel, (axes[0], reduced), top)
    columns = tuple(describe_operand(second, kernel, (reduced, sub_tile), top) for sub_tile in sub_tiles)
    if rows is None and not any(columns):
        raise UnsupportedTile("loads", "no operand lies in memory as TMA takes it")
    return rows, columns


# ---- what it costs


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
        return either(alone, programs * (self.shared_s / parts * crowded + end_s / 2), sharp=6)


def _seconds(kernel: TileKernel, target: Target, p: TileParameters, f: Figures) -> float:
    assert kernel.contraction is not None
    batch = math.prod(kernel.extents[n] for n in kernel.contraction.batch)
    counts = launched_tiles(kernel, p)
    tiles = counts[0] * counts[1] * batch * p.split
    together = _resident(kernel, target, p)
    slots = target.cores * together
    nbytes, missing = traffic_of(kernel, p, counts, slots, target.cache_bytes)
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
    return either(busy_s, nbytes / f.memory_bytes, sharp=3) * spilled(
        pair_registers(kernel, target, p), device_of(target).registers_of_thread(p.num_warps), p.maxnreg
    )


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
    held_s = _held_s(kernel, p, f)
    if held_s:  # what goes through registers is waited for in its own step
        step_s += held_s + flight_s
    chain_s = steps * (either(product_s, waiting_s, load_s, apart_s) + step_s)
    shared_s = steps * either(product_s, load_s, apart_s, held_s)
    part_s = 4 * math.prod(p.tile) / f.store_bytes
    opening_s = f.opening_s + f.fill_s + flight_s + (f.descriptors_s if p.loads == TMA else 0.0)
    return Tile(chain_s, shared_s, epilogue_s(kernel, p, f), part_s, opening_s, f.crowding)


def _apart(p: TileParameters, loaded: tuple[int, int], counts: Sequence[int], tiles: int) -> float:
    """Rows and columns for each of some neighbours in one step, where those that several ask for count once."""
    near = max(1, min(NEIGHBOURS, tiles))
    high = min(near, p.group, counts[0]) if counts[1] > 1 else min(near, counts[0])
    wide = min(counts[1], -(-near // high))
    high = max(high, min(counts[0], near // wide))
    return (high * loaded[0] + wide * loaded[1]) / near


def _held_s(kernel: TileKernel, p: TileParameters, f: Figures) -> float:
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


def epilogue_s(kernel: TileKernel, p: TileParameters, f: Figures) -> float:
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


def traffic_of(
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
