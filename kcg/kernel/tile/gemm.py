"""Matmuls and convolutions on tensor cores, with prologue and epilogue: one kernel or several.

A program has one tile of a product, or takes tiles in turn; programs may share the terms of all tiles (split-K) or of
those of the last wave (stream-K), or halves of these. How the loop over terms is written is in `contraction.py`, what
becomes of its sums in `epilogue.py`.

What it costs: a program is a chain of steps, each waiting for its loads or for the tensor core; the programs of a
multiprocessor share its tensor core, its way to L2 and its memory; they run in waves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from kcg.compat.tiny import UOp, dtypes
from kcg.kernel.ast import is_symbolic
from kcg.kernel.reading.accesses import Access, Stored
from kcg.kernel.reading.kernel import Loading, TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.contraction import (
    FEW_ROWS,
    WGMMA_ROWS,
    DescribedProduct,
    Finished,
    ProductLoop,
    Sums,
    TiledProduct,
    Turns,
    held_exactly,
    in_parts,
    in_the_sum,
    products_of,
    read_before,
    read_for_each,
    stored_blocks,
    stored_width,
    sub_tiles_of,
    swizzled,
    terms_of_part,
    unpacks,
    write_contraction,
    write_step,
)
from kcg.kernel.tile.descriptors import Boxes, boxes_of, describe
from kcg.kernel.tile.device import Device, Figures, device_of
from kcg.kernel.tile.emit import Block, Frame, Lines, Writer, compute_type
from kcg.kernel.tile.epilogue import store_branch, store_tile
from kcg.kernel.tile.estimates import BESIDE_SUMS, LAUNCH_S, SPECIAL, either, spilled
from kcg.kernel.tile.eviction import deaf_copies, reused, streamed
from kcg.kernel.tile.form import (
    COMPILER_BYTES,
    LEAST_BESIDE,
    ONLY,
    STAGES,
    UNCERTAIN,
    Axes,
    Form,
    Start,
    powers,
    precisions_of,
    registers_for_sums,
    settled,
)
from kcg.kernel.tile.needed import VECTOR_BYTES
from kcg.kernel.tile.one_hot import bind_one_hot_sums, looked_at, seconds_of
from kcg.kernel.tile.parameters import CONTRACTION, EXACT, POINTER, TF32X3, TMA, TileParameters
from kcg.kernel.tile.plan import LEAST_COPY, MOST_PARTIALS, Dot, Loop, Need, Registers, TilePlan, Times
from kcg.kernel.tile.reduction import Part, accumulator, stepped_extent
from kcg.kernel.tile.split import SPLITS, partials_of, store_partials, write_sums
from kcg.kernel.tile.targets import most_specialized_stages
from kcg.kernel.tile.tiles import (
    Axis,
    bind_axis,
    bind_scalar,
    count_of,
    launched_tiles,
    open_frame,
    power_of_two,
    split_number,
    start_of,
)
from kcg.kernel.tile.views import MIN_TILE, MatmulView
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
SPILLING = 1_024
"""Of these from here on some programs spill: 48 of 261 recorded ones took 12 to 65 times as long as expected, and 2 of
351 with fewer."""
COLUMNS_SPILL = 8.0
"""So many times as long it takes with more of these than that where the columns' operand is computed, as a norm or a
cast: the geometric mean of 40 recorded programs of 9 regions, which the cost expected to take as long as others
(docs/experiments/2026-11-30-products-of-float32.md)."""
SPLIT_TERMS = 512
"""Of a sum, from which on float32 may be three products of tf32. Numbers near the smallest have no lower half there,
which shows where no other term is large: of 15 recorded programs with fewer terms 11 were refused, of 21 others one
(docs/experiments/2026-11-30-products-of-float32.md)."""
COMPUTED_OPERATIONS = 25
"""Of an element of an operand that is computed, whatever it is computed of: by recorded programs of 203 regions of 16
bits (docs/experiments/2026-11-30-computed-operands.md)."""
IN_PIECES = 1.5  # times as long they take where a tile is several products side by side
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
UNPACKED_STEP = 64  # terms of packed weights, of which most formats write two choices out
LARGEST = 128 * WIDEST  # elements of a contraction's tile
MOST_APART = 2  # times the work of it, where neighbours of a warp are apart


class Matmul(Form[MatmulView, "MatmulPlan"]):
    """Products in Triton: all warps of a program do the same."""

    name = CONTRACTION
    noun = "matmul"  # a convolution is one too, as implicit GEMM
    is_usual = True
    has_stages = True
    fields = frozenset(("loads", "persistent", "tail", "epilogue_parts", "warp_specialize", "read_early"))
    start_at = Start.WALKED
    uncertainty = UNCERTAIN
    sees = MatmulView

    def has(self, kernel: TileKernel, target: Target) -> bool:
        return kernel.is_product

    def preference(self, view: MatmulView, target: Target) -> int:
        rows, columns = (count_of(view.kernel, side.ranges) for side in view.contraction.sides)
        return 2 if min(rows, columns) >= FEW_ROWS and view.kernel.reduce_extent >= view.least_terms // 2 else 0

    def axes(self, view: MatmulView) -> tuple[Axes, ...]:
        rows, columns = (side.ranges for side in view.contraction.sides)
        if any(one.epilogue_uses for one in view.kernel.launched):  # it is made of neighbouring columns
            return ((rows, columns),)
        few = count_of(view.kernel, rows) < 64 <= count_of(view.kernel, columns)
        return ((columns, rows), (rows, columns)) if few else ((rows, columns), (columns, rows))

    def start(self, view: MatmulView, target: Target, axes: Axes) -> TileParameters:
        made = _first(view, target, axes, lambda p: self.planned(view, target, p).shared_bytes)
        if unpacks(view.contraction):
            made = made.changed(loads=POINTER, reduce_tile=min(UNPACKED_STEP, power_of_two(view.kernel.reduce_extent)))
            if held_exactly(view.contraction) is not None and device_of(target).ptx:
                made = made.changed(precision=TF32X3)
        if view.kernel.one_hot_sums:
            made = made.changed(persistent=0)
        return settled(view.kernel, target, made, self.elements(made))

    # ---- the values of parameters

    def values(self, view: MatmulView, target: Target, p: TileParameters, field: str) -> tuple[Any, ...]:
        kernel = view.kernel
        match field:
            case "split":
                return SPLITS if view.may_split else (1,)
            case "group":
                return GROUPS
            case "loads":
                return (POINTER, TMA) if device_of(target).has_tma else (POINTER,)
            case "persistent":
                # of pieces none was faster than one program a tile
                return (0, 1, 2) if p.tile[1] not in BETWEEN and not kernel.one_hot_sums else (0,)
            case "tail":
                return _tails(view, p)
            case "epilogue_parts":
                return (1, 2) if p.tile[1] >= 64 else (1,)
            case "warp_specialize":
                # of 159 programs by Triton's own 7 were wrong and 44 did not compile, and of 23 products none was the
                # fastest: docs/wrong-programs.md. What was stored is read, and none is offered
                return (False,)
            case "num_stages":
                return STAGES
            case "read_early":
                alone = p.split == p.tail == 1
                return (False, True) if alone and _reads_for_each(view, p.axes) else (False,)
            case "evict_first":
                return streamed(kernel, target, p, _deaf(view, p))
            case "evict_last":
                return reused(kernel, target, p, _deaf(view, p), large=True)
        return super().values(view, target, p, field)

    def tiles(self, view: MatmulView, p: TileParameters) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = [()]
        for numbers in p.axes:
            count = count_of(view.kernel, numbers)
            sizes = powers(MIN_TILE, LARGEST_SIZE, count)
            if found != [()]:
                sizes = sorted([*sizes, *(size for size in BETWEEN if size <= power_of_two(count))])
            found = [(*tile, size) for tile in found for size in sizes]
        return found

    def steps(self, view: MatmulView) -> tuple[int, ...]:
        least, whole = view.least_terms, power_of_two(stepped_extent(view.kernel))
        return tuple(size for size in (16, 32, 64, 128, 256) if least <= size <= max(least, whole))

    def may_split(self, view: MatmulView) -> bool:
        return view.may_split

    def precisions(self, view: MatmulView) -> tuple[str, ...]:
        in_parts = view.kernel.reduce_extent >= SPLIT_TERMS or held_exactly(view.contraction) is not None
        return precisions_of(view.kernel, (view.contraction.sides[0].dtype,), (TF32X3,) if in_parts else ())

    def least_parts(self, tile: tuple[int, ...]) -> int:
        return 2 if tile[1] >= 64 else 1

    def is_familiar(self, p: TileParameters, prior: TileParameters) -> bool:
        known = {
            "reduce_tile": (32, 64, 128), "num_warps": (4, 8), "split": (1, 2), "tail": (1, 2, 3, 6),
            "persistent": (0, 1, 2), "num_stages": (2, 3, 4, 5, 6), "warp_specialize": (False,), "group": (1, 4, 8, 12),
            "read_early": (False, True),
            "evict_first": ((),), "evict_last": ((),), "maxnreg": (0,), "fast_math": (), "precision": (EXACT,),
        }  # fmt: skip
        sizes = {64, 128, 256, *BETWEEN, *prior.tile}
        if p.loads != TMA and p.persistent and p.num_warps == 4:
            return False  # took up to 1.7 times as long as expected
        return sizes.issuperset(p.tile) and all(getattr(p, n) in (*v, getattr(prior, n)) for n, v in known.items())

    # ---- the program

    def check(self, view: MatmulView, p: TileParameters) -> None:
        check_axes(p)
        if p.tail > 1 and (p.split > 1 or not (view.may_stream_k or can_halve(view, p))):
            raise UnsupportedTile("tail", ONLY["tail"])
        if view.kernel.grouped and (p.read_early or p.warp_specialize):
            raise UnsupportedTile("form", "products of one launch are not specialised, and read nothing early")
        if view.kernel.one_hot_sums and (p.persistent or p.warp_specialize):
            raise UnsupportedTile("form", "programs that finish a product with sums over one-hot rows have one tile")
        if p.read_early and (p.split > 1 or p.tail > 1):
            raise UnsupportedTile("read_early", ONLY["read_early"])
        if p.warp_specialize and p.loads != TMA:
            raise UnsupportedTile("warp_specialize", ONLY["warp_specialize"])
        if p.warp_specialize and p.persistent and p.tail > 1:
            raise UnsupportedTile(
                "warp_specialize", "programs that have whole tiles and parts of others have no such loop"
            )

    def planned(self, view: MatmulView, target: Target, p: TileParameters) -> MatmulPlan:
        """Also raises UnsupportedTile where TMA is to load a product, and can load neither of its operands."""
        products, least = _products_of(view, p), view.least_terms
        if min(p.tile) < MIN_TILE or p.reduce_tile < least:
            raise UnsupportedTile("tile", f"a tensor core takes at least {MIN_TILE} rows and columns and {least} terms")
        if not all(one.fits_epilogue(p.epilogue_parts) for one in products):
            raise UnsupportedTile("tile", "what is made of the result needs other columns in one block")
        halves = p.tail > 1 and not view.may_stream_k
        loaded = (*products, *(one.halved for one in products)) if halves else products
        if p.loads == TMA and not all(one.own.is_described for one in loaded):
            raise UnsupportedTile("loads", "no operand lies in memory as TMA takes it")
        tiles = p.split * sum(one.tiles for one in products)
        slots = max(1, target.cores) * max(1, p.persistent)
        stream_k = _stream_k(products[0], tiles, slots, p.tail) if p.tail > 1 and not halves else None
        programs, partials = tiles, p.split * partials_of(view.kernel) if p.split > 1 else 0
        if stream_k is not None:
            programs, partials = stream_k.items, stream_k.left * stream_k.count * math.prod(p.tile)
        if p.persistent:
            programs = min(tiles, target.cores * p.persistent)
            if halves and not 0 < 2 * (tiles % programs) <= programs:
                raise UnsupportedTile("tail", "there is no last wave that halves of its tiles fit into")
        return MatmulPlan.of(
            self.decided(target, p, products[0].axes, Loop("terms", view.kernel.reduce_extent, p.reduce_tile, p.split)),
            view=view, programs=programs, tiles=tiles, products=products, slots=slots, stream_k=stream_k,
            halves=halves, partials=partials,
        )  # fmt: skip

    def write(self, plan: MatmulPlan, writer: Writer) -> Lines:
        return _write_launch(plan, writer)

    def write_second(self, plan: MatmulPlan, writer: Writer) -> tuple[Lines, int]:
        if plan.stream_k is not None:
            return _write_stream_k(plan, plan.stream_k, writer)
        return write_sums(plan.view.kernel, plan.split, writer)


def _products_of(view: MatmulView, p: TileParameters) -> tuple[TiledProduct, ...]:
    return products_of(view, CONTRACTION, p.axes, p.tile, p.reduce_tile, p.loads == TMA)


def check_axes(p: TileParameters) -> None:
    """Raises UnsupportedTile where a tile is none of a product."""
    if not len(p.axes) == len(p.tile) == 2:
        raise UnsupportedTile("axes", "a product's tile has rows and columns")


# ---- which parameters there are


def _tails(view: MatmulView, p: TileParameters) -> tuple[int, ...]:
    """Programs that may share each tile of the last wave."""
    if p.split > 1:
        return (1,)
    if not view.may_stream_k:
        return (1, 2) if can_halve(view, p.changed(tail=2)) else (1,)
    ahead = not p.persistent or p.loads == TMA  # else no loads run on from part to part
    return TAILS if ahead else (1,)


def can_halve(view: MatmulView, p: TileParameters) -> bool:
    """Whether two programs may share a last tile by its columns: of persistent programs, where they cannot share its
    sums, and where no half is outside the result or has less than what is made of it needs."""
    if view.may_stream_k or not p.persistent or p.tail != 2 or p.tile[1] < 2 * MIN_TILE:
        return False
    products = _products_of(view, p)
    return all(one.axes[1].total % p.tile[1] == 0 and one.halved.fits_epilogue(1) for one in products)


def _reads_for_each(view: MatmulView, axes: Axes) -> bool:
    """Whether a product reads something else for each element of its result, as of a residual."""
    return bool(read_for_each(view.kernel, ([view.kernel.outputs[n] for n in axis] for axis in axes)))


def _deaf(view: MatmulView, p: TileParameters) -> frozenset[UOp]:
    """The loads for which Triton drops an eviction policy."""
    inside = (node for one in view.kernel.together for node in one.reduce.backward_slice)
    by_tma = _products_of(view, p)[0].by_tma if p.loads == TMA else ()
    return deaf_copies(p, inside) | {side.factors[0].node for side in by_tma}


# ---- the plan


@dataclass(frozen=True)
class StreamK:
    """So many tiles are a program each; those left are shared by `count` programs each."""

    whole: int
    left: int
    count: int

    @property
    def items(self) -> int:
        """Whole tiles and parts of others."""
        return self.whole + self.left * self.count


def _stream_k(product: TiledProduct, tiles: int, slots: int, count: int) -> StreamK:
    """The tiles of a product's last wave, of so many programs at once, where `count` programs share their sums. Raises
    UnsupportedTile where there is no such wave."""
    whole = tiles // slots * slots
    if not whole or whole == tiles:
        raise UnsupportedTile("tail", "there is no last wave that is not full")
    if (tiles - whole) * count * product.axes[0].size * product.axes[1].size >= 1 << 31:
        raise UnsupportedTile("tail", "2^31 partial sums or more")
    return StreamK(whole, tiles - whole, count)


@dataclass(frozen=True)
class Share:
    """Tiles of one product that persistent programs take in turn; `plan` is that of halves where they are halves."""

    plan: MatmulPlan
    product: TiledProduct
    turns: Turns


@dataclass(frozen=True, kw_only=True)
class MatmulPlan(TilePlan):
    """Tiles of a product, or of several, each with its prologue and its epilogue."""

    view: MatmulView
    products: tuple[TiledProduct, ...]  # of the launch
    slots: int  # programs that run in turn: of tiles, a wave of so many
    stream_k: StreamK | None = None  # the last wave's tiles are shared by their terms
    halves: bool = False  # they are shared by their columns

    # ---- what its tiles are

    @cached_property
    def counts(self) -> tuple[int, int]:
        """Tiles along each axis: of several products those of all their columns, or of all their rows."""
        found = list(self.products[0].counts)
        for one in self.products[1:]:
            found[self.axis_of_others] += one.counts[self.axis_of_others]
        rows, columns = found
        return rows, columns

    @property
    def axis_of_others(self) -> int:
        """Along which axis the products of one launch lie beside each other."""
        in_order = self.products[0].numbers[1] == self.view.contraction.sides[1].ranges
        return 0 if in_order == self.view.kernel.grouped_rows else 1

    @cached_property
    def halved(self) -> MatmulPlan:
        """Tiles with half of the columns, whose blocks are finished as wide as before."""
        products = tuple(one.halved for one in self.products)
        (axes, tile), tiles = (products[0].axes, products[0].sizes), 2 * self.tiles
        return replace(self, axes=axes, tile=tile, tiles=tiles, products=products, epilogue_parts=1, halves=False)

    @property
    def shares(self) -> tuple[Share, ...]:
        """What persistent programs take in turn: the tiles of each product, one after the other; then halves of the
        tiles left, where two programs share each of these."""
        every = [self.split * one.tiles for one in self.products]
        whole = sum(every) // self.programs * self.programs if self.halves else sum(every)
        before = left = 0
        found, later = list[Share](), list[Share]()
        for number, (product, count) in enumerate(zip(self.products, every, strict=True)):
            own_whole = max(0, min(count, whole - before))
            if own_whole:
                found.append(Share(self, product, Turns(self.programs, before, 0, own_whole)))
            if own_whole < count:
                turns = Turns(self.programs, 2 * left, own_whole, count - own_whole, halves=True)
                later.append(Share(self.halved, self.halved.products[number], turns))
            before, left = before + count, left + count - own_whole
        return (*found, *later)

    @property
    def sums(self) -> int:
        """Sums that a program keeps."""
        return self.products[0].sums

    @property
    def further_sums(self) -> int:
        """Sums over one-hot rows that it keeps while a tile is finished."""
        return len(self.view.kernel.one_hot_sums) * self.tile[0] * stored_width(self.tile[1], self.epilogue_parts)

    @property
    def reduced(self) -> tuple[UOp, ...]:
        """The ranges of the terms."""
        return tuple(self.view.contraction.reduce.src[1:])

    @property
    def blocks_along(self) -> tuple[tuple[tuple[UOp, ...], int], ...]:
        """Rows and columns, the narrowest piece of these, and terms."""
        sizes = [math.gcd(*(width for _, width in sub_tiles_of(axis.size))) for axis in self.axes]
        along = zip((axis.ranges for axis in self.axes), sizes, strict=True)
        return (*along, (self.reduced, self.step))

    @property
    def sub_tiles(self) -> tuple[tuple[int, int], ...]:
        """The pieces of a tile's columns."""
        return sub_tiles_of(self.tile[1])

    @property
    def dots(self) -> tuple[Dot, ...]:
        widths = [width for one in (self, *((self.halved,) if self.halves else ())) for _, width in one.sub_tiles]
        count = sum(len(one.kernel.together) + len(one.kernel.chained) for one in self.products)
        return tuple(Dot(self.tile[0], width, self.step, self.precision) for width in widths for _ in range(count))

    @property
    def by_tma(self) -> tuple[Access, ...]:
        nodes = {side.factors[0].node for one in self.products for side in one.by_tma}
        return tuple(load for one in self.products for load in one.kernel.loads if load.node in nodes)

    # ---- how they are finished

    def flattens_branches(self, product: TiledProduct) -> bool:
        """Whether persistent programs' loops are one although tiles end in branches."""
        by_tma = self.loads_by == TMA and not self.warp_specialize
        return bool(self.persistent) and by_tma and product.kernel.is_branching

    def is_one_loop(self, product: TiledProduct) -> bool:
        """Whether one loop goes through the terms of all that is added to a product."""
        return not self.warp_specialize and product.in_one_loop

    def stores_by_tma(self, product: TiledProduct) -> bool:
        """Whether a tile's plain result leaves by TMA where it can. Not where the ring is full while a tile is finished
        and moves of branches or of partial tiles need room beside it, which stores through pointers share."""
        of_parts = bool(self.persistent) and self.stream_k is not None
        return self.loads_by == TMA and not (self.flattens_branches(product) or of_parts)

    def boxes_of_result(self, product: TiledProduct, plain: Stored, columns: Axis) -> Boxes | None:
        """How blocks of so many columns of a plain result leave by TMA; None where they are stored through pointers."""
        if not self.stores_by_tma(product) or plain.gates or any(map(is_symbolic, product.rest)):
            return None  # a descriptor masks the tile only
        return boxes_of(plain.store, (product.axes[0], columns))

    def is_of_one_store(self, product: TiledProduct) -> bool:
        """Whether what is made of pairs of columns is made of whole tiles: a tile is of one store."""
        branches = product.kernel.epilogue
        edges = [one for branch in branches for one in (branch.use.first, branch.use.count)]
        return any(branch.pairs for branch in branches) and not any(edge % product.axes[1].size for edge in edges)

    @property
    def partial_width(self) -> int:
        """The most columns of a partial tile that are stored at once: all, or so many that float32 sums take no more
        room beside a ring that is full than a result of 16 bits does."""
        return stored_width(self.tile[1], 2 * self.epilogue_parts) if self.persistent else self.tile[1]

    # ---- what they take

    @cached_property
    def shared_bytes(self) -> int:
        """About how much shared memory a program takes: the ring of its operands' blocks, and with TMA the part of the
        result that is on its way out, which has the ring's place where the program ends with it. Of 50 programs whose
        operands are loaded as they stand the compiler said from 28 % less to 1 % more; of 90 whose operands are
        computed, as floats of 16 bits, as much for all but one, which took 14 % more."""
        return max(_shared_bytes(self, one) for one in self.products)

    @cached_property
    def pair_registers(self) -> float:
        """About how many registers a thread takes while it makes something of pairs of columns: for its sums, more for
        each that is in work, and addresses of what it copies for the loop; 0 where nothing is made of pairs. Of 12
        programs of Flux's query, key and value this says of 10 by Triton 3.9, and of 8 by 3.6, whether they spill; of
        those through pointers it expects too much."""
        return max(_pair_registers(self, one) for one in self.products)

    @property
    def shares_columns(self) -> bool:
        """Whether groups of four warps share the columns of a tile: there are more of them than rows."""
        return WGMMA_ROWS <= self.tile[0] < self.num_warps * WGMMA_ROWS // 4

    @property
    def partial_type(self) -> str:
        return accumulator(self.view.kernel.reductions[0])

    @cached_property
    def loaded(self) -> tuple[int, int]:
        """Rows and columns of which a program loads terms."""
        return _loaded_along(self.view, self.products[0].is_turned, self.tile)

    def registers(self, device: Device) -> Registers:
        beside = self.area // self.threads if self.products[0].read_for_each else 0
        held = self.sums // self.threads
        return Registers(held, held + beside + MOST_BESIDE, device.shared_bytes // max(1, self.shared_bytes))

    def needs(self, device: Device) -> Iterator[Need]:
        steps, sums, threads, (rows, columns) = self.loop.steps, self.sums, self.threads, self.products[0].counts
        if self.split > 1:
            yield Need("steps of each part", self.split, steps // 2)
            yield Need("partial sums", self.partials, MOST_PARTIALS)
        most = device.registers_of_thread(self.num_warps) - LEAST_BESIDE
        yield Need("registers for sums", (sums + self.further_sums) // threads, most)
        yield Need("threads with an element each", threads, self.area)
        if self.read_early:  # half as many registers again for two bytes each, and addresses
            yield Need("registers for what is read early", (sums + self.area) // threads, most)
        yield Need("stages", self.num_stages, steps // self.split + 1)
        yield Need("shared memory", self.shared_bytes, device.shared_bytes)
        dtype = self.view.contraction.sides[0].dtype
        if dtype is dtypes.float32 and self.precision == EXACT and not device.multiplies(dtype.name):
            yield Need("sums without tensor cores", sums, MOST_SUMS)
            yield Need("multiplications of a thread and step", sums * self.step // threads, MOST_UNROLLED)
        if self.warp_specialize:
            yield Need("warps", abs(self.num_warps - 4), 0)
            yield Need("stages of specialised warps", self.num_stages, most_specialized_stages())
        if self.stream_k is not None:
            yield Need("steps of each part of a tile", self.tail, steps // 2)
            yield Need("parts of tiles in two waves", self.stream_k.left * self.tail, 2 * self.slots)
        if self.halves:
            yield Need("whole waves", 1, self.tiles // self.slots)
            yield Need("halves of tiles in a wave", 2 * (self.tiles % self.slots), self.slots)
            yield Need("threads with an element of a half each", self.threads, self.halved.area)
        if self.persistent:
            yield Need("tiles for each program in turn", self.slots + 1, self.tiles)
        yield from swizzle_needs(self.group, rows, columns)

    def times(self, target: Target, figures: Figures) -> Times:
        return _times(self, target, figures)


def swizzle_needs(group: int, rows: int, columns: int) -> Iterator[Need]:
    """What rows of tiles that are taken together need to change anything: of as many as there are, the least."""
    if group != 1:
        below = max((size for size in GROUPS if size < group), default=0)
        yield Need("columns of tiles", 2, columns)
        yield Need("rows of tiles", max(below, group // 2) + 1, rows)


# ---- registers and shared memory


def _shared_bytes(plan: MatmulPlan, product: TiledProduct) -> int:
    kernel, (rows, columns) = product.kernel, plan.tile
    ring = ring_bytes(plan, product)
    widest = max(int(one.store.buffer.dtype.itemsize) for one in kernel.written)
    if plan.loads_by != TMA:
        if not plan.persistent or kernel.is_branching or plan.stream_k is not None:
            return ring
        # the next tile's loads begin while this one is on its way out, at most 64 elements of 16 bits a thread at once
        elements = rows * stored_width(columns, plan.epilogue_parts)
        widest = max(widest, *(int(x.buffer.dtype.itemsize) for x in product.read_for_each), 0)
        leaving = (elements if widest >= 4 else min(elements, 64 * plan.threads)) * widest
        return ring + max(leaving, elements * _joined_bytes(plan, product))
    # what is read beside the result for each element is read side by side, so that the float32 sums move there first
    stored = int(kernel.store.buffer.dtype.itemsize)
    itemsize = 4 if product.read_for_each else stored
    joined = _joined_bytes(plan, product)
    if not plan.stores_by_tma(product):  # of few rows or shared columns float32 sums move, halves of these twice
        moved = rows < 2 * WGMMA_ROWS or plan.shares_columns
        itemsize = max(4 if moved else stored, 2 * joined)
    elif kernel.is_branching:  # the loop is not flattened: what no descriptor stores has the ring's place
        itemsize = stored if kernel.plain else 0
    elif kernel.epilogue_uses:  # by a descriptor, and one after another through pointers
        itemsize = joined + widest + (stored if kernel.plain else 0)
    elif joined:
        itemsize = joined + stored
    leaving = rows * stored_width(columns, plan.epilogue_parts) * itemsize
    if plan.warp_specialize:
        leaving = max(leaving, SPECIALIZED_BYTES)
    return (ring + leaving if plan.persistent else max(ring, leaving)) + COMPILER_BYTES


def ring_bytes(plan: MatmulPlan, product: TiledProduct) -> int:
    """What is loaded for a product, in bytes. An operand that is loaded as it stands has a block for each stage; of one
    that is computed each load has one less, and the columns' its result. That of the rows stays in registers, or moves
    through shared memory where the other one is computed too."""
    itemsize, sides = int(product.view.contraction.sides[0].dtype.itemsize), product.kernel.loading
    if product.is_turned:
        sides = sides[::-1]
    both = not any(one.as_it_is for side in sides for one in side)
    total = 0
    for place, (size, operands) in enumerate(zip(plan.tile, sides, strict=True)):
        for one in operands:
            if one.as_it_is:
                total += plan.blocks * itemsize * size
            else:
                held = place == 1 or both
                total += (plan.num_stages - 1) * (one.bytes_each * size + one.bytes_term) + held * itemsize * size
    return total * plan.step


def _pair_registers(plan: MatmulPlan, product: TiledProduct) -> float:
    if not any(branch.pairs for branch in product.kernel.epilogue):
        return 0
    sums, itemsize = plan.area // plan.threads, product.view.contraction.sides[0].dtype.itemsize
    found = sums + PAIR_REGISTERS * (sums / plan.epilogue_parts)
    if plan.epilogue_parts > 1 and plan.shares_columns:
        found += SHARED_COLUMNS
    if plan.loads_by != TMA:
        found += COPY_REGISTERS * (sum(plan.tile) * plan.step * itemsize // (plan.threads * VECTOR_BYTES))
    return found


def _joined_bytes(plan: MatmulPlan, product: TiledProduct) -> int:
    """Bytes of shared memory for each element of a half, where groups of four warps share columns: they put halves
    together there, in float32, and both at once where the result lies in memory along the tile's rows."""
    if plan.epilogue_parts == 1 or not plan.shares_columns:
        return 0
    return 8 if len(product.kernel.outputs) - 1 in product.numbers[0] else 4


def _loaded_along(view: MatmulView, is_turned: bool, tile: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of which a program loads terms: those of its tile, of contractions that share one operand those
    of each one's other operand."""
    one, other = view.kernel.operands[::-1] if is_turned else view.kernel.operands
    return one * tile[0], other * tile[1]


# ---- the prior


def _first(
    view: MatmulView, target: Target, axes: Axes, shared_bytes: Callable[[TileParameters], int]
) -> TileParameters:
    """A tile of at most 128 × 256 and 32,768 accumulators, 8 warps from 16,384, halved while the last wave leaves a
    fifth of the multiprocessors idle: what others measured on Hopper."""
    kernel, contraction = view.kernel, view.contraction
    is_turned = sorted(axes[0]) != sorted(contraction.sides[0].ranges)
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
    step = max(view.least_terms, min(32 if wide else 64, power_of_two(count)))
    itemsize = 4 if wide else dtype.itemsize
    loaded = sum(_loaded_along(view, is_turned, tile))
    stages = max(1, min(4, device_of(target).shared_bytes // (loaded * step * itemsize), -(-count // step)))
    device = device_of(target)
    threads = 256 if tile[0] * tile[1] * sums >= WIDE_TILE else 128
    warps = max(device.figures.group_warps, device.warps(threads))
    helds = [held for one in kernel.launched for held in one.epilogue_uses]
    unit = math.lcm(*(held.unit for held in helds))
    edges = [edge for held in helds for edge in (held.first, held.count)]
    edges += [
        count_of(one.kernel, one.contraction.sides[1].ranges) for one in view.launched if one.kernel.epilogue_uses
    ]
    while any(edge % tile[1] for edge in edges) and tile[1] > unit:
        tile[1] //= 2
    tile[1] = max(tile[1], unit, MIN_TILE)
    tile[0], warps = _held_sums(view, target, (tile[0], tile[1]), warps)
    split = 1
    if view.may_split and programs() * 2 <= target.cores and count >= 16 * step:
        split = min(power_of_two(target.cores // programs()), power_of_two(count // (8 * step) + 1) // 2)
    made = TileParameters(
        CONTRACTION, axes, (tile[0], tile[1]), reduce_tile=step, split=split, num_warps=warps,
        group=8 if rows >= 8 * tile[0] and columns > tile[1] else 1, num_stages=stages,
    )  # fmt: skip
    if not all(one.fits_epilogue(made.epilogue_parts) for one in _products_of(view, made)):
        raise UnsupportedTile("several kernels", "no tile of the result has what belongs together")
    if not wide and split == 1 and count <= SHORT_TERMS and not kernel.grouped and _reads_for_each(view, axes):
        small = (min(tile[0], SHORT_TILE[0]), min(tile[1], SHORT_TILE[1]))
        return replace(made, tile=small, num_warps=4, num_stages=1, read_early=True)
    if not wide and device_of(target).has_tma and split == 1 and _can_describe(view, made):
        made = replace(made, loads=TMA)
        many = programs() >= 2 * target.cores
        if many or kernel.grouped:
            halves = tile[1] >= 128 and tile[1] // 2 >= unit
            made = replace(made, persistent=int(many), epilogue_parts=2 if halves else 1)  # room for a stage
    while made.num_stages > 1 and shared_bytes(made) > device_of(target).shared_bytes:
        made = replace(made, num_stages=made.num_stages - 1)
    return made


def _can_describe(view: MatmulView, p: TileParameters) -> bool:
    """Whether TMA can load an operand of each product in tiles of these parameters."""
    return all(one.own.is_described for one in _products_of(view, p.changed(loads=TMA)))


def _held_sums(view: MatmulView, target: Target, tile: tuple[int, int], warps: int) -> tuple[int, int]:
    """Rows of a contraction's tile, and warps, whose registers hold its sums where columns that belong together are
    many: more warps, then fewer rows. Raises UnsupportedTile where not even a tensor core's fewest rows are held."""
    (rows, columns), device, sums = tile, device_of(target), len(view.kernel.together) + len(view.kernel.one_hot_sums)
    while rows * columns * sums // device.threads(warps) > registers_for_sums(target, warps):
        if warps < MOST_WARPS:
            warps *= 2
        elif rows > MIN_TILE:
            rows //= 2
        else:
            raise UnsupportedTile(
                "several kernels" if view.kernel.epilogue_uses else "tile",
                f"{columns:,} columns of the result belong together, of which the registers do not hold {rows} rows",
            )
    return rows, warps


# ---- the program


def _write_launch(plan: MatmulPlan, writer: Writer) -> Lines:
    """The tiles of a contraction, or of several: each program takes a branch by its number, or tiles of all in turn.

    The branches follow each other: of one inside another's `else` Triton adds up the shared memory.
    """
    top = open_frame(plan.view.kernel, writer, ())
    if plan.persistent:
        for share in plan.shares:
            _write_tiles(share.plan, share.product, top, turns=share.turns)
        return top.lines
    if len(plan.products) == 1:
        _write_tiles(plan, plan.products[0], top)
        return top.lines
    number, begin = top.lines.name("tl.program_id(0)", "program"), 0
    for product in plan.products:
        inside, end = Frame(Lines(writer, top.lines), (), outer=top), begin + plan.split * product.tiles
        _write_tiles(
            plan, product, inside, number=inside.lines.name(f"{number} - {begin}", "tile") if begin else number
        )
        conditions = [f"({number} >= {begin})"] if begin else []
        conditions += [f"({number} < {end})"] if product is not plan.products[-1] else []
        top.lines.extend(f"if {' & '.join(conditions)}:", inside.lines)
        begin = end
    return top.lines


def _write_tiles(
    plan: MatmulPlan, product: TiledProduct, top: Frame, *, number: str = "", turns: Turns | None = None
) -> None:
    """Writes what the program with a number does, by default that of the launch; with `turns` it is a loop over
    tiles."""
    writer, axes, rest, tail = top.writer, product.axes, product.rest, plan.stream_k
    rows, columns = product.counts
    if turns is not None and turns.halves:
        columns //= 2
    counts = [plan.split, *product.places, rows * columns]
    own = product.own.described(top)
    chain = [*(one.described(top) for one in product.chain[:-1]), own]
    in_one_loop = plan.is_one_loop(product)
    number = number or top.lines.name("tl.program_id(0)", "program")
    root, tiles = top, math.prod(counts)
    if turns is not None and tail is not None and in_one_loop:
        _write_items(plan, product, top, chain, Items(tail, turns.programs, number))
        return
    if tail is not None:
        tiles = tail.items
    program = number
    if turns is not None:
        number = writer.fresh("tile")
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
    row, column = swizzled(root, digits[-1], rows, columns, plan.group)
    if half:
        column = root.lines.name(f"{column} * 2 + {half}", "column")
    part = part or Part(digits[0], plan.split)
    specialized = ", warp_specialize=True" if plan.warp_specialize else ""
    options = specialized if turns is None else ""
    starts = (start_of(root, row, axes[0]), start_of(root, column, axes[1]))
    if plan.read_early:
        read_before(root, axes, starts, plan.epilogue_parts, [load.node for load in product.read_for_each])
    sharing = tuple(one.described(top) for one in product.sharing)
    sums = None
    for *first, last in [chain] if in_one_loop else [[one] for one in chain]:
        loop = ProductLoop(
            plan.step, plan.precision, last, part=part, shared=shared, options=options, sharing_operand=sharing,
            chained=tuple(first),
        )  # fmt: skip
        sums = write_contraction(root, axes, starts, loop, to=sums)
    assert sums is not None
    lines = Lines(writer, root.lines) if tail is not None else root.lines
    contractions = tuple(one.contraction for one in (product.own, *product.sharing))
    blocks = stored_blocks(contractions, root, lines, sums, plan.epilogue_parts)
    for block in blocks:
        bind_one_hot_sums(product.kernel, block.frame, (axes[0], block.columns), block.starts)
    _finish(plan, product, blocks, top, part)
    if tail is not None:
        root.lines.extend(f"if {unit} < 0:", lines)
        root.lines.extend("else:", _partial_tile(root, sums, unit, most=plan.partial_width))
    if turns is not None:
        in_branches = plan.flattens_branches(product)
        how = specialized or (", flatten=True" if in_branches or not (product.kernel.is_branching or tail) else "")
        if in_branches and not writer.interpreted:
            root.lines.add(_END_OF_TILE.format(item))
        begin = turns.first(top.lines, program)
        top.lines.extend(
            f"for {item} in tl.range({begin}, {tiles}, {turns.programs}{how}):", root.lines, "this program's tiles"
        )


def _finish(plan: MatmulPlan, product: TiledProduct, blocks: Sequence[Finished], top: Frame, part: Part) -> None:
    """Stores all that is made of a tile's sums; of a split reduction the sums of a part."""
    kernel = product.kernel
    for together in [blocks] if plan.is_of_one_store(product) else [[block] for block in blocks]:
        for block in together:
            block.frame.bound |= in_the_sum(kernel)
        for block in together[1:]:
            for plain in kernel.plain:  # asked for before anything is stored
                block.frame.value(plain.value)
        for block in together:
            if plan.split > 1:
                store_partials(block.frame, kernel, part)
                continue
            for plain in kernel.plain:
                boxes = plan.boxes_of_result(product, plain, block.columns)
                store_tile(block.frame, plain, describe(boxes, top) if boxes is not None else None, block.starts)
        for branch in kernel.epilogue:
            store_branch(together, kernel, branch)


# ---- the last wave's tiles, each shared by programs: partial tiles in the workspace, added in order


@dataclass(frozen=True)
class Items:
    """What persistent programs take in turn where they share the last tiles: whole tiles, as many each, then parts."""

    tail: StreamK
    programs: int
    program: str  # the number of one


def _write_items(
    plan: MatmulPlan, product: TiledProduct, top: Frame, chain: Sequence[DescribedProduct], items: Items
) -> None:
    """One loop over the terms of all items of a program, so that loads run ahead from one to the next: Triton flattens
    loops only where the inner one's bounds do not depend on the outer one. What `chain` is, see `are_one_loop`."""
    writer, lines, step, tail, axes = top.writer, top.lines, plan.step, items.tail, product.axes
    whole, of_part = (terms_of_part(product.kernel.terms, step, count) for count in (1, tail.count))
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
    digits = split_number(opening, number, [*product.places, math.prod(product.counts)])
    row, column = swizzled(opening, digits[-1], axes[0].tiles, axes[1].tiles, plan.group)
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
        for axis, digit in zip(product.rest, held[2:], strict=True):
            bind_scalar(frame, axis, digit)
    *chained, last_of_chain = chain
    loop = ProductLoop(step, plan.precision, last_of_chain, chained=tuple(chained))
    sums = write_step(inside, axes, (held[0], held[1]), loop, body, counter=counter)
    finishing = Lines(writer, end.lines)
    blocks = stored_blocks((last_of_chain.contraction,), end, finishing, sums, plan.epilogue_parts)
    _finish(plan, product, blocks, top, Part("0", 1))
    end.lines.extend(f"if {unit} < 0:", finishing)
    end.lines.extend("else:", _partial_tile(end, sums, unit, most=plan.partial_width))
    for zero in sums.zeros():
        lines.add(zero)
        end.lines.add(zero)
    body.extend(f"if {counter} == {last}:", end.lines)
    lines.extend(f"for {writer.fresh('step')} in range({steps}):", body, "the steps of all of this program's tiles")


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


def _write_stream_k(plan: MatmulPlan, tail: StreamK, writer: Writer) -> tuple[Lines, int]:
    """The second launch: adds the parts of each tile in order, some rows a program, and finishes them."""
    (product,) = plan.products
    kernel, contraction, (one, other) = product.kernel, product.view.contraction, product.axes
    top = open_frame(kernel, writer, ())
    height = min(STREAM_K_ROWS, one.size)
    counts = [*product.places, math.prod(product.counts)]
    number, strip = split_number(top, top.lines.name("tl.program_id(0)", "program"), [tail.left, one.size // height])
    tile = top.lines.name(f"{tail.whole} + {number}", "tile")
    digits = split_number(top, tile, counts)
    for axis, digit in zip(product.rest, digits[:-1], strict=True):
        bind_scalar(top, axis, digit)
    row, column = swizzled(top, digits[-1], one.tiles, other.tiles, plan.group)
    rows = replace(one, size=height)
    first = top.lines.name(f"{start_of(top, row, one)} + {strip} * {height}", "start")
    elements, type_ = plan.area, accumulator(kernel.reductions[0])
    for at, width in sub_tiles_of(other.size):
        frame = Frame(top.lines, (height, width), outer=top, words=("rows", "cols"))
        inside = top.lines.name(
            f"({strip} * {height} + tl.arange(0, {height}))[:, None] * {width} + tl.arange(0, {width})[None, :]", "i"
        )
        place = f"workspace + {number} * {elements * tail.count} + {at * one.size} + {inside}"
        total, counter, body = writer.fresh("acc"), writer.fresh("part"), Lines(writer, top.lines)
        top.lines.add(f"{total} = tl.load({place})")
        body.add(f"{total} = {total} + tl.load({place} + {counter} * {elements})")
        top.lines.extend(f"for {counter} in range(1, {tail.count}):", body, "what other programs summed of the tile")
        start = top.lines.name(f"{start_of(top, column, other)} + {at}", "start")
        bind_axis(frame, rows, 0, first, ragged=one.total % one.size != 0)
        bind_axis(frame, replace(other, size=width), 1, start, ragged=other.total % other.size != 0)
        bound = Block(total, type_, frozenset({0, 1}))
        frame.bound[contraction.reduce] = frame.cast(bound, compute_type(contraction.reduce))
        frame.bound |= in_the_sum(kernel)
        store_tile(frame, kernel.stored[0])
    return top.lines, tail.left * (one.size // height)


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


def _times(plan: MatmulPlan, target: Target, f: Figures) -> Times:
    counts, tiles, area = plan.counts, plan.tiles, plan.area
    together = _resident(plan, device_of(target))
    slots = target.cores * together
    nbytes, missing = traffic_of(plan, counts, slots, target.cache_bytes)
    flight_s = f.flight_s + f.cold_s * max(missing, _cold(plan.group, counts, tiles / slots))
    tile = _tile(plan, f, tiles, flight_s)
    programs = target.cores * max(1, plan.persistent)  # that tiles are counted by where the last wave's are shared
    left = tiles % programs
    sums_s = LAUNCH_S / 2 + 8 * left * plan.tail * area / f.partial_bytes
    if plan.persistent:
        rounds = -(-plan.persistent // together)  # where not all programs run at once
        turns_s = len(plan.products) * tile.opening_s + tiles // programs * tile.wave(together, opens=False)
        if plan.halves:
            turns_s += _tile(plan.halved, f, 2 * tiles, flight_s).wave(together)
        elif left:
            turns_s += -(-left * plan.tail // programs) * tile.wave(together, opens=False, parts=plan.tail)
            turns_s += sums_s / rounds if plan.tail > 1 else 0.0
        busy_s = rounds * turns_s
    elif plan.tail > 1:
        part_s = tile.opening_s + tile.chain_s / plan.tail + tile.part_s
        busy_s = tiles // programs * tile.wave(1) + -(-left * plan.tail // programs) * part_s + sums_s
    else:
        full, left = divmod(tiles, slots)
        last = -(-left // target.cores)
        spare = 1.0 - left / max(1, last * target.cores)
        busy_s = full * tile.wave(together) + (tile.wave(last) * (1.0 - f.spare_share * spare) if left else 0.0)
    most = device_of(target).registers_of_thread(plan.num_warps)
    return Times((busy_s, nbytes / f.memory_bytes), slower=spilled(plan.pair_registers, most, plan.maxnreg))


def _tile(plan: MatmulPlan, f: Figures, tiles: int, flight_s: float) -> Tile:
    """One tile of so many, whose loads take so long from their issue to their data."""
    view, step = plan.view, plan.step
    itemsize = view.contraction.sides[0].dtype.itemsize
    steps = max(1, -(-view.kernel.terms // (step * plan.split)))

    product_s = 2 * plan.sums * step / (f.tensor_ops * _tensor_share(plan, itemsize, f))
    products = len(plan.sub_tiles) * len(view.kernel.together)
    product_s *= 1 + f.piece_share * (products - 1) + f.pointer_share * (plan.loads_by != TMA)
    product_s += _computed_s(plan, f)
    load_s = sum(plan.loaded) * step * itemsize / f.block_bytes
    apart_s = _apart(plan.group, plan.loaded, plan.counts, tiles) * step * itemsize / f.apart_bytes
    waiting_s = (flight_s + load_s + f.product_share * product_s) / max(plan.num_stages - 1, 0.5)
    step_s = f.step_s
    held_s = _held_s(plan, f)
    if held_s:  # what goes through registers is waited for in its own step
        step_s += held_s + flight_s
    chain_s = steps * (either(product_s, waiting_s, load_s, apart_s) + step_s)
    shared_s = steps * either(product_s, load_s, apart_s, held_s)
    part_s = 4 * plan.area / f.store_bytes
    opening_s = f.opening_s + f.fill_s + flight_s + (f.descriptors_s if plan.loads_by == TMA else 0.0)
    return Tile(chain_s, shared_s, epilogue_s(plan, f) + _one_hot_s(plan, f), part_s, opening_s, f.crowding)


def _one_hot_s(plan: MatmulPlan, f: Figures) -> float:
    """Of one tile: sums over one-hot rows."""
    return sum(sum(seconds_of(one, plan.axes, looked_at(one, plan.axes), f)) for one in plan.view.kernel.one_hot_sums)


def _computed_s(plan: MatmulPlan, f: Figures) -> float:
    """Seconds of one step in which operands are computed that do not come as they stand: a norm's, a mask's, a cast."""
    sides = zip(plan.tile, _loading(plan), strict=True)
    computed = (size for size, side in sides if not all(one.as_it_is for one in side))
    elements = sum(computed) * plan.step
    return COMPUTED_OPERATIONS * elements / f.plain_ops


def _loading(plan: MatmulPlan) -> tuple[tuple[Loading, ...], tuple[Loading, ...]]:
    """How the operands of the tile's rows come into the loop, and those of its columns."""
    product, *_ = plan.products
    rows, columns = product.kernel.loading
    return (columns, rows) if product.is_turned else (rows, columns)


def _apart(group: int, loaded: tuple[int, int], counts: Sequence[int], tiles: int) -> float:
    """Rows and columns for each of some neighbours in one step, where those that several ask for count once; `group`
    rows of tiles are taken together."""
    near = max(1, min(NEIGHBOURS, tiles))
    high = min(near, group, counts[0]) if counts[1] > 1 else min(near, counts[0])
    wide = min(counts[1], -(-near // high))
    high = max(high, min(counts[0], near // wide))
    return (high * loaded[0] + wide * loaded[1]) / near


def _held_s(plan: MatmulPlan, f: Figures) -> float:
    """Seconds of one step in which a multiprocessor moves operands through registers, element by element: rows of odd
    length are aligned to less than an asynchronous copy takes."""
    kernel, (rows, columns), step = plan.view.kernel, plan.tile, plan.step
    reduced, of_rows, of_columns = set(plan.reduced), set(plan.axes[0].ranges), set(plan.axes[1].ranges)
    stored = (rows, stored_width(columns, plan.epilogue_parts))
    at_once = plan.width(kernel.store) // int(kernel.store.buffer.dtype.itemsize)
    seconds = 0.0
    for load in kernel.loads:
        ranges = set(load.node.ranges)
        size = rows if ranges & of_rows else columns if ranges & of_columns else 0
        if load in kernel.epilogue_loads or not size or not reduced & ranges:
            continue
        if plan.width(load) >= LEAST_COPY:
            continue
        block = (rows, step) if ranges & of_rows else (step, columns)
        apart = max(1, at_once) if block == stored else 1  # Triton gives a thread as many neighbours as it stores
        seconds += size * step * min(apart, MOST_APART) / f.held_elements
    return seconds


def _cold(group: int, counts: Sequence[int], turns: float) -> float:
    """The share of waves that find blocks of an operand in memory, not in L2: all until each column was taken once."""
    return min(1.0, max(1 / max(turns, 1.0), min(group, counts[0]) / counts[0]))


def _tensor_share(plan: MatmulPlan, itemsize: int, f: Figures) -> float:
    """How much of the tensor core a tile can use, its pieces one after the other."""
    return plan.tile[1] / sum(width / _piece_share(plan, width, itemsize, f) for _, width in plan.sub_tiles)


def _piece_share(plan: MatmulPlan, columns: int, itemsize: int, f: Figures) -> float:
    """How much of the tensor core a product can use: narrow ones wait for their operands in shared memory."""
    rows = plan.tile[0]
    groups = max(1, plan.num_warps // f.group_warps)
    inner = columns if rows >= f.group_rows * groups else max(16, columns * rows // (f.group_rows * groups))
    share = min(1.0, inner / (inner + f.narrow) * (1 + f.narrow / WIDEST))
    if rows < f.group_rows or plan.num_warps < f.group_warps:  # not wgmma
        share *= 0.6 * min(1.0, rows / f.group_rows)
    if itemsize <= 2:
        return float(share * 2 / itemsize)
    sums = plan.sums / len(plan.view.kernel.together) / plan.threads  # of a thread in one product: each is by itself
    of_float32 = f.share_of_float32(plan.precision, sums)
    if plan.precision == TF32X3 and not f.float32_share:  # such products have no wgmma
        products = 3 if held_exactly(plan.view.contraction) is None else 2
        return float(of_float32 * (3 / products))
    if plan.precision != EXACT or f.float32_share:
        return float(share * of_float32)
    unrolled = sums * plan.step
    slower = max(1.0, unrolled / SPILLING) ** 0.25 * (1.0 if len(plan.sub_tiles) == 1 else IN_PIECES)
    if unrolled > SPILLING and not all(one.as_it_is for one in _loading(plan)[1]):
        slower *= COLUMNS_SPILL
    return float(of_float32 / slower)


def _resident(plan: MatmulPlan, device: Device) -> int:
    """Programs that a multiprocessor runs at once."""
    threads = plan.threads
    sums, elements = plan.sums // threads, plan.area // threads
    registers = sums + plan.further_sums // threads + BESIDE_SUMS + (elements // 2 if plan.read_early else 0)
    registers = min(device.registers_of_one, max(registers, int(plan.pair_registers)))
    if plan.warp_specialize:
        threads *= 3
    most = device.resident(threads=threads, registers=registers, shared_bytes=max(1, plan.shared_bytes))
    return min(most, plan.persistent) if plan.persistent else most


def epilogue_s(plan: MatmulPlan, f: Figures) -> float:
    """Of one tile: what is computed of its sums, read beside them, and stored."""
    kernel = plan.view.kernel
    if plan.split > 1:
        return 4 * plan.sums / f.store_bytes
    special = sum(n.op in SPECIAL for n in kernel.finishing)
    if plan.fast_math and special > 1:
        special -= 1  # exponential and reciprocal are one tanh
    nbytes, held = 0.0, 0.0
    read = () if plan.read_early else kernel.epilogue_loads  # else it comes while the loop runs
    for access in (*_stores(kernel), *read):
        share = min(1.0, access.buffer.size / max(1, kernel.store.buffer.size))
        nbytes += access.buffer.dtype.itemsize * share
        held += share * (plan.width(access) < LEAST_COPY)
    moved_s = nbytes / f.store_bytes + held / f.held_elements
    return float(plan.area) * (moved_s + special / f.special_ops + len(kernel.finishing) / f.plain_ops)


def _stores(kernel: TileKernel) -> list[Access]:
    """What is stored of a contraction's sums, element by element; the sums themselves where others use them."""
    return [stored.store for stored in kernel.plain] or [kernel.store]


def traffic_of(plan: MatmulPlan, counts: Sequence[int], slots: int, cache_bytes: int) -> tuple[float, float]:
    """Bytes from and to memory, and the share of the columns' blocks that are not in L2 when a wave asks for them.

    Rows of tiles are gone through in groups; each group asks for all columns again, which L2 holds only if all that is
    asked for in between leaves room for them.
    """
    kernel = plan.view.kernel
    batch = max(1, math.prod(plan.products[0].places))
    itemsize = plan.view.contraction.sides[0].dtype.itemsize
    rows, columns = (count * size * kernel.terms * itemsize for count, size in zip(counts, plan.loaded, strict=True))
    group = min(plan.group, counts[0])
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
        copies[1 - plan.axis_of_others] = len(kernel.launched)
    once = rows * copies[0] + columns * copies[1]
    return batch * (once + columns * (passes - 1) * missing) + others, missing
