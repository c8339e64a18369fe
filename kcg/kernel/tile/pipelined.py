"""Contractions by specialised warps, in Gluon: one group of warps loads, two or three compute.

Programs are persistent. The loading group copies blocks of both operands by TMA into one ring of shared memory, from
one tile to the next without a pause. Each computing group has 64 rows of the tile: it waits for a slot of the ring,
sends its product to the tensor core, and gives back the slot before once that product is done. While it finishes its
rows, the loading group fills the ring for the next tile. (As CUTLASS's cooperative kernels and Gluon's persistent
matmul do it.) Finished blocks go to memory through shared memory and TMA.

With three groups a tile has 192 rows: 192 × 192 fills the last wave of a grid where 128 × 256 leaves most of it empty.

What is made of the sums is written as for every contraction (`epilogue.py`), on blocks that lie as the tensor core
leaves them: a thread has both columns of a pair, four threads have a row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from kcg.compat.tiny import DType, UOp
from kcg.kernel.ast import extent, is_symbolic
from kcg.kernel.reading.accesses import Stored
from kcg.kernel.reading.contractions import Contraction, Operand
from kcg.kernel.reading.kernel import Branch, TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.contraction import (
    Sums,
    TiledProduct,
    block_widths,
    boxes_of_operand,
    in_parts,
    in_the_sum,
    products_of,
    stored_blocks,
    sub_tiles_of,
    swizzled,
)
from kcg.kernel.tile.descriptors import Boxes, boxes_of
from kcg.kernel.tile.device import Device, Figures, device_of
from kcg.kernel.tile.emit import TYPES, Block, Frame, Lines, Writer, compute_type
from kcg.kernel.tile.epilogue import BOTH, PARTS, store_branch, store_tile
from kcg.kernel.tile.form import COMPILER_BYTES, UNCERTAIN, Axes, Form, Start, keeps_small
from kcg.kernel.tile.gemm import GROUPS, MatmulPlan, Share, check_axes, epilogue_s, swizzle_needs, traffic_of
from kcg.kernel.tile.gluon import (
    COMPUTE,
    GROUP_ROWS,
    LOAD,
    REGISTERS,
    add_function,
    allocated,
    arguments_of,
    descriptor,
    end_products,
    operand,
    send_products,
    specialized,
    sums_layout,
)
from kcg.kernel.tile.parameters import PIPELINED, TMA, TileParameters
from kcg.kernel.tile.plan import Barriers, Loop, Need, Shared, Times
from kcg.kernel.tile.ring import HERE, Ring, add_barriers
from kcg.kernel.tile.targets import most_specialized_stages
from kcg.kernel.tile.tiles import (
    Axis,
    aligned,
    count_of,
    is_power_of_two,
    launched_tiles,
    open_frame,
    start_of,
)
from kcg.kernel.tile.views import MatmulView
from kcg.types import Target

TILES = ((128, 256), (192, 192), (128, 192), (192, 128), (128, 128))
STEP = 64  # terms: 128 bytes, as far as TMA spreads a row over shared memory's banks
ITEMSIZE = 2  # of an operand's element
STORED_BYTES = 128  # of a row of a block that is stored at once
LEAVING = 2  # blocks of a group that are on their way to memory
LEAST_SIZE = 128  # rows and columns of a product
TURN = 2_048  # elements of a tile that take as long as what each takes beside them
SUSTAINED = 0.82  # of the tensor core, as sustained over a whole launch: of five matmuls on one H100
PAIRS = 3  # times their epilogue: Flux's query, key and value took 440 µs, by the plain form 392 (one H100)


class PipelinedMatmul(Form[MatmulView, "PipelinedPlan"]):
    """Products by warps that load and warps that compute."""

    name = PIPELINED
    noun = "producer/consumer matmul"
    has_stages = True
    fields = frozenset(("loads", "persistent", "epilogue_parts"))
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "tile": TILES, "reduce_tile": (STEP,), "num_warps": (4,), "split": (1,), "loads": (TMA,), "persistent": (1,),
        "tail": (1,), "num_stages": (3, 4, 5, 6), "warp_specialize": (False,), "read_early": (False,),
        "evict_first": ((),), "evict_last": ((),), "maxnreg": (0,), "precision": ("ieee",),
    }  # fmt: skip
    in_gluon = True
    start_at = Start.COMPARED
    uncertainty = UNCERTAIN
    sees = MatmulView

    def has(self, kernel: TileKernel, target: Target) -> bool:
        return kernel.is_product and not kernel.one_hot_sums and _may_pipeline(MatmulView.of(kernel), target)

    def preference(self, view: MatmulView, target: Target) -> int:
        return -1  # a search compares it

    def axes(self, view: MatmulView) -> tuple[Axes, ...]:
        return pipelined_axes(view)

    def start(self, view: MatmulView, target: Target, axes: Axes) -> TileParameters:
        return replace(_first(view, target, axes), fast_math=not keeps_small(view.kernel, target))

    def values(self, view: MatmulView, target: Target, p: TileParameters, field: str) -> tuple[Any, ...]:
        match field:
            case "group":
                return GROUPS
            case "epilogue_parts":
                return (parts_of(p.tile),)
        return super().values(view, target, p, field)

    def steps(self, view: MatmulView) -> tuple[int, ...]:
        return (STEP,)

    def least_parts(self, tile: tuple[int, ...]) -> int:
        return parts_of(tile)

    def check(self, view: MatmulView, p: TileParameters) -> None:
        check_axes(p)
        if p.loads != TMA or p.num_warps != 4 or p.tile[0] % GROUP_ROWS or p.tile[0] // GROUP_ROWS not in REGISTERS:
            raise UnsupportedTile("form", "two or three groups of 64 rows and 4 warps, TMA")

    def planned(self, view: MatmulView, target: Target, p: TileParameters) -> PipelinedPlan:
        pipelined = _products(view, p.axes, p.tile, p.reduce_tile, p.epilogue_parts)
        if isinstance(pipelined, UnsupportedTile):
            raise pipelined
        products = tuple(one.tiled for one in pipelined)
        tiles = sum(one.tiles for one in products)
        return PipelinedPlan.of(
            self.decided(target, p, products[0].axes, Loop("terms", view.kernel.reduce_extent, p.reduce_tile)),
            view=view, programs=min(tiles, target.cores), tiles=tiles, products=products, slots=target.cores,
            pipelined=pipelined,
        )  # fmt: skip

    def write(self, plan: PipelinedPlan, writer: Writer) -> Lines:
        """Writes that of the groups and that of the loads among the helpers."""
        return _Pipelined(plan, writer).written()


# ---- the prior


def _first(view: MatmulView, target: Target, axes: Axes) -> TileParameters:
    """The tile whose turns take least, with as many stages as shared memory holds."""
    found = [made for tile in TILES if _is_there(view, made := _first_of(view, target, axes, tile))]

    def cost(p: TileParameters) -> float:
        return -(-math.prod(launched_tiles(view.kernel, p)) // target.cores) * (math.prod(p.tile) + TURN)

    return min(found, key=cost)


def _first_of(view: MatmulView, target: Target, axes: Axes, tile: tuple[int, int]) -> TileParameters:
    made = TileParameters(
        PIPELINED, axes, tile, reduce_tile=STEP, loads=TMA, persistent=1, epilogue_parts=parts_of(tile), num_warps=4,
        group=8 if count_of(view.kernel, axes[0]) > 8 * tile[0] else 1, num_stages=4,
    )  # fmt: skip
    taken = sum(one.nbytes * one.count for one in _shared(view, tile, STEP, made.num_stages))
    return made if taken <= device_of(target).shared_bytes else replace(made, num_stages=3)


def pipelined_axes(view: MatmulView) -> tuple[Axes, ...]:
    """Rows and columns of contractions by specialised warps, whose results lie side by side along the columns."""
    one, other = (side.ranges for side in view.contraction.sides)
    last = len(view.kernel.outputs) - 1
    return ((one, other),) if last in other or view.kernel.epilogue_uses else ((other, one),)


def _may_pipeline(view: MatmulView, target: Target) -> bool:
    """Whether a contraction may be by specialised warps: a large product of 16 bits, on Hopper, by compilers that make
    such programs right."""
    if not device_of(target).has_wgmma or not most_specialized_stages():
        return False
    if view.contraction.batch or view.kernel.variables or view.kernel.reduce_extent < 2 * STEP:
        return False
    (axes,) = pipelined_axes(view)
    if any(count_of(view.kernel, numbers) < LEAST_SIZE for numbers in axes):
        return False
    return any(_is_there(view, _first_of(view, target, axes, tile)) for tile in TILES)


def _is_there(view: MatmulView, p: TileParameters) -> bool:
    """Whether there is such a program."""
    return not isinstance(_products(view, p.axes, p.tile, p.reduce_tile, p.epilogue_parts), UnsupportedTile)


# ---- the plan


@dataclass(frozen=True)
class ByRing:
    """What is read for each element of the result and comes by the ring, in blocks as the rows'."""

    node: UOp
    boxes: Boxes


@dataclass(frozen=True)
class Summed:
    """One contraction of a tile: steps of its loop, and how its blocks lie in memory: a group's rows, and each piece of
    the columns."""

    contraction: Contraction
    steps: int
    rows: Boxes
    columns: tuple[Boxes, ...]

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The sizes of these blocks in shared memory."""
        return tuple(boxes.ordered(boxes.sizes) for boxes in (self.rows, *self.columns))


@dataclass(frozen=True)
class PipelinedProduct:
    """One product of the launch."""

    tiled: TiledProduct
    summed: tuple[Summed, ...]  # contractions that are added up, the one that is stored last
    by_ring: tuple[ByRing, ...]

    @cached_property
    def reaches_past_the_end(self) -> bool:
        """Whether a group that has no row, as in the last tile of 320 rows in tiles of 192, would read what is no
        element of a buffer, or store to another one's place. (A group that has some masks the others. TMA stores
        nothing past the end, but where heads are apart the next one begins there.)"""
        rows, branches = self.tiled.axes[0], self.tiled.kernel.epilogue
        if rows.total % rows.size == 0 or rows.total % GROUP_ROWS:
            return False
        of_rows = {*rows.ranges, *(r for branch in branches for r in branch.use.rows)}
        by_ring = {one.node for one in self.by_ring}
        loads = self.tiled.kernel.epilogue_loads
        if any(x.node not in by_ring and not of_rows.isdisjoint(x.node.ranges) for x in loads):
            return True
        return any(_is_apart(branch) for branch in branches)


def _is_apart(branch: Branch) -> bool:
    """Whether what is stored is no matrix of all rows and columns: heads are apart."""
    axes = Axis(branch.use.rows, GROUP_ROWS), Axis(branch.use.columns, STEP)
    return boxes_of(branch.stored.store, axes) is None


@dataclass(frozen=True)
class Leaving:
    """How a block of a result leaves by TMA: some columns at once. Blocks of heads that are `apart` are so many rows
    behind each other."""

    boxes: Boxes
    width: int  # columns
    apart: tuple[tuple[UOp, int], ...]


@dataclass(frozen=True, kw_only=True)
class PipelinedPlan(MatmulPlan):
    """Tiles of a product, or of several, by one group of warps that loads and two or three that compute."""

    pipelined: tuple[PipelinedProduct, ...]

    @property
    def groups(self) -> int:
        """Of warps that compute."""
        return self.tile[0] // GROUP_ROWS

    @property
    def ring(self) -> Ring:
        """Of blocks of both operands."""
        return Ring("full", "empty", self.num_stages, self.groups)

    @property
    def barriers(self) -> tuple[Barriers, ...]:
        return self.ring.of_full, self.ring.of_empty

    @property
    def shared(self) -> tuple[Shared, ...]:
        return _shared(self.view, self.tile, self.step, self.num_stages)

    @property
    def shared_bytes(self) -> int:
        return sum(block.nbytes * block.count for block in self.shared)

    def needs(self, device: Device) -> Iterator[Need]:
        yield Need("shared memory", self.shared_bytes, device.shared_bytes)
        yield Need("stages", self.num_stages, self.loop.steps + 1)
        yield from swizzle_needs(self.group, *self.products[0].counts)

    def leaving(self, stored: Stored, rows: Axis, columns: Axis) -> Leaving:
        """How blocks of so many rows and columns leave."""
        return _leaving(stored, rows, columns, stored_bytes(self.tile))

    def times(self, target: Target, figures: Figures) -> Times:
        """Turns of a tile each, one after the other: loads are never waited for but at the start."""
        f, counts = figures, self.counts
        turns = -(-math.prod(counts) // target.cores)
        steps = max(1, -(-self.view.kernel.terms // self.step))
        step_s = 2 * self.area * self.step / (SUSTAINED * f.tensor_ops)
        nbytes, _ = traffic_of(self, counts, target.cores, target.cache_bytes)
        opening_s = f.opening_s + f.fill_s + f.descriptors_s
        finish_s = epilogue_s(self, f) * (PAIRS if any(b.pairs for b in self.view.kernel.epilogue) else 1)
        return Times((opening_s + turns * (steps * step_s + finish_s), nbytes / f.memory_bytes))


def _shared(view: MatmulView, tile: Sequence[int], step: int, stages: int) -> tuple[Shared, ...]:
    """The ring, blocks that leave it, and what the compiler takes."""
    rows, columns = tile
    types = max(len({one.store.buffer.dtype for one in own.kernel.written}) for own in view.launched)
    return (
        Shared("rows", ITEMSIZE * GROUP_ROWS * step, stages * (rows // GROUP_ROWS)),
        *(
            Shared(f"columns{number}", ITEMSIZE * width * step, stages)
            for number, (_, width) in enumerate(sub_tiles_of(columns))
        ),
        Shared("results", rows * stored_bytes(tile), types * LEAVING),
        Shared("the compiler's", COMPILER_BYTES),
    )


def parts_of(tile: Sequence[int]) -> int:
    """The parts in which a tile's columns are finished: a thread holds little more than the sums of all of them."""
    return 2 if tile[1] > 2 * GROUP_ROWS and is_power_of_two(tile[1]) else 1


def stored_bytes(tile: Sequence[int]) -> int:
    """Bytes of a row of a block that is stored at once: so many that each part of a tile is an even number of blocks,
    which have the two places in turn, and that three groups leave room for a fourth stage."""
    return STORED_BYTES if tile[0] == 2 * GROUP_ROWS and tile[1] % (2 * STEP) == 0 else STORED_BYTES // 2


@lru_cache(1024)
def _products(
    view: MatmulView, axes: Axes, tile: tuple[int, ...], step: int, parts: int
) -> tuple[PipelinedProduct, ...] | UnsupportedTile:
    """The products of a launch in such tiles; why there are none. A search asks some thousand times for each."""
    try:
        found = tuple(_pipelined(one) for one in products_of(view, PIPELINED, axes, tile, step, tma=True))
        first, *others = [summed.shapes for one in found for summed in one.summed]
        if any(other != first for other in others):
            raise UnsupportedTile("form", "products of one ring have operands that lie alike")
        for one in found:
            if not one.tiled.fits_epilogue(parts):
                raise UnsupportedTile("tile", "what is made of the result needs other columns in one block")
            _check_stores(one.tiled, tile, parts)
    except UnsupportedTile as unsupported:
        return unsupported
    return found


def _pipelined(tiled: TiledProduct) -> PipelinedProduct:
    kernel = tiled.kernel
    if kernel.sharing_operand or tiled.rest or any(map(is_symbolic, kernel.outputs)):
        raise UnsupportedTile("form", "specialised warps make one sum of rows by columns")
    summed = tuple(_summed(tiled, product.contraction) for product in tiled.chain)
    return PipelinedProduct(tiled, summed, tuple(_by_ring(tiled)))


def _by_ring(tiled: TiledProduct) -> Iterator[ByRing]:
    """Loads beside the sums that fit where blocks of the rows lie: they come while the last products are made."""
    rows, columns = tiled.axes
    if tiled.kernel.epilogue or columns.size % tiled.step:
        return
    dtype = tiled.view.contraction.sides[0].dtype
    for access in tiled.read_for_each:
        sizes = (replace(rows, size=GROUP_ROWS), replace(columns, size=tiled.step))
        boxes = boxes_of(access, sizes) if access.buffer.dtype is dtype else None
        if boxes is not None and not boxes.leading and not boxes.transposed:
            yield ByRing(access.node, boxes)


def _summed(tiled: TiledProduct, contraction: Contraction) -> Summed:
    rows, columns = tiled.axes
    reduced = Axis(tuple(contraction.reduce.src[1:]), tiled.step)
    if reduced.is_symbolic:
        raise UnsupportedTile("form", "specialised warps make sums of a known length")
    one, other = contraction.sides
    sub_tiles = [replace(columns, size=width) for _, width in sub_tiles_of(columns.size)]
    return Summed(
        contraction,
        reduced.tiles,
        _boxes(one, tiled.kernel, (replace(rows, size=GROUP_ROWS), reduced)),
        tuple(_boxes(other, tiled.kernel, (reduced, sub_tile)) for sub_tile in sub_tiles),
    )


def _boxes(side: Operand, kernel: TileKernel, axes: tuple[Axis, Axis]) -> Boxes:
    """How TMA loads an operand's blocks."""
    boxes = boxes_of_operand(side, kernel, axes) if not side.factors[0].gate else None
    if boxes is None or boxes.leading or side.dtype.itemsize != ITEMSIZE:
        raise UnsupportedTile("form", "specialised warps take operands of 16 bits that TMA loads")
    return boxes


# ---- how results leave


def _check_stores(tiled: TiledProduct, tile: tuple[int, ...], parts: int) -> None:
    """Raises UnsupportedTile where a block of a group's rows cannot leave by TMA as a whole."""
    rows, columns = (axis.ranges for axis in tiled.axes)
    for width in block_widths(tile[1], parts):
        for plain in tiled.kernel.plain:
            _leaving(plain, Axis(rows, GROUP_ROWS), Axis(columns, width), stored_bytes(tile))
        for branch in tiled.kernel.epilogue:
            use = branch.use
            if any(size != width for _, size in use.parts):
                raise UnsupportedTile("reduction beside the product", "over a part of a group's columns")
            along = aligned(Axis(use.columns, width)) or use.columns
            if branch.pairs is None and not _is_block(branch.stored.value, use.rows, along):
                raise UnsupportedTile("form", "specialised warps store whole blocks")
            own = width if branch.pairs is None else width // PARTS
            _leaving(branch.stored, Axis(use.rows, GROUP_ROWS), Axis(along, own), stored_bytes(tile))


def _is_block(value: UOp, rows: Sequence[UOp], columns: Sequence[UOp]) -> bool:
    """Whether a value extends along rows and columns."""
    ranges = set(value.ranges)
    return not ranges.isdisjoint(rows) and not ranges.isdisjoint(columns)


def _leaving(stored: Stored, rows: Axis, columns: Axis, nbytes: int) -> Leaving:
    """How blocks of so many rows and columns leave, with so many bytes of a row at once. Raises UnsupportedTile."""
    if stored.gates or not rows.ranges or not columns.ranges:
        raise UnsupportedTile("form", "specialised warps store whole blocks")
    # of bytes an even number of blocks too
    width = min(columns.size, nbytes // max(2, int(stored.store.buffer.dtype.itemsize)))
    boxes = boxes_of(stored.store, (rows, replace(columns, size=width)))
    if boxes is None or boxes.transposed or any(step % boxes.wide for _, step in boxes.leading):
        raise UnsupportedTile("form", "specialised warps store by TMA, row by row")
    if boxes.leading and rows.total % GROUP_ROWS:
        raise UnsupportedTile("form", "a block of specialised warps ends where its rows do")
    apart = tuple((r, step // boxes.wide) for r, step in boxes.leading)
    total = rows.total + sum((extent(r) - 1) * step for r, step in apart)
    return Leaving(replace(boxes, totals=(total, boxes.totals[1])), width, apart)


# ---- the program


def opened_tile(main: Frame, lines: Lines, share: Share, group: int) -> tuple[Frame, tuple[str, str], str]:
    """The frame of a tile in a function of some warps, its first row and column, and the header of the loop over tiles,
    which is alike in all functions; `group` rows of tiles are taken together."""
    frame, tile = Frame(Lines(lines.writer, lines), (), outer=main), lines.writer.fresh("tile")
    rows, columns = share.product.axes
    row, column = swizzled(frame, tile, rows.tiles, columns.tiles, group)
    first = share.turns.first(lines, lines.name("tl.program_id(0)", "program"))
    header = f"for {tile} in range({first}, {share.turns.tiles}, {share.turns.programs}):"
    return frame, (start_of(frame, row, rows), start_of(frame, column, columns)), header


class _Pipelined:
    def __init__(self, plan: PipelinedPlan, writer: Writer) -> None:
        if writer.interpreted:
            raise UnsupportedTile("form", "Triton's interpreter has no specialised warps")
        self.plan, self.writer, self.ring = plan, writer, plan.ring
        self.groups, self.step, self.sub_tiles = plan.groups, plan.step, plan.sub_tiles
        self.main = open_frame(plan.view.kernel, writer, ())
        self.in_memory: dict[str, str] = {}  # what makes a descriptor -> its name
        self.leaving: dict[str, str] = {}  # what allocates a buffer for results -> its name
        self.sent: Counter[str] = Counter()  # blocks by way of each of these
        self.dtype = plan.view.contraction.sides[0].dtype
        for one in plan.pipelined:  # in this order the program makes them
            for summed in one.summed:
                for boxes in (summed.rows, *summed.columns):
                    self._descriptor(boxes, self.dtype)
            for by_ring in one.by_ring:
                self._descriptor(by_ring.boxes, self.dtype)

    def written(self) -> Lines:
        lines = self.main.lines
        self.writer.store = self._store
        computing, loading = self._computing(), self._loading()
        for text, name in self.in_memory.items():
            lines.add(f"{name} = {text}")
        shapes = self.plan.pipelined[0].summed[0].shapes
        blocks = self.plan.shared[: len(shapes)]
        for block, sizes in zip(blocks, shapes, strict=True):
            lines.add(allocated(block.of, block.count, sizes, self.dtype))
        for text, name in self.leaving.items():
            lines.add(text.format(name))
        for barriers in self.plan.barriers:
            add_barriers(lines, barriers)
        lines.add("fence_async_shared()")
        buffers = [block.of for block in blocks]
        given = (
            *arguments_of(self.plan.view.kernel),
            *self.in_memory.values(),
            *buffers,
            *(barriers.name for barriers in self.plan.barriers),
        )
        add_function(self.writer, COMPUTE, (*given, *self.leaving.values()), computing, group=True)
        add_function(self.writer, LOAD, given, loading)
        lines.add(specialized(self.groups, (*given, *self.leaving.values()), given))
        return lines

    def _descriptor(self, boxes: Boxes, dtype: DType) -> str:
        """The name of a descriptor, which the launched function makes."""
        self.writer.has_descriptors = True
        text = descriptor(boxes, boxes.buffer, boxes.extents(self.main), dtype)
        return self.in_memory.setdefault(text, f"memory{len(self.in_memory)}")

    def _loading(self) -> Lines:
        lines, (rows, columns) = Lines(self.writer), self.plan.tile
        self.ring.begin(lines, fills=True)
        for share, one in zip(self.plan.shares, self.plan.pipelined, strict=True):
            frame, (row, column), header = opened_tile(self.main, lines, share, self.plan.group)
            for summed in one.summed:
                body, counter = Lines(self.writer, frame.lines), self.writer.fresh("k")
                self._expected(body, rows + columns)
                term = body.name(f"{counter} * {self.step}", "term")
                self._fetch_rows(body, summed.rows, row, term)
                for number, ((at, _), boxes) in enumerate(zip(self.sub_tiles, summed.columns, strict=True)):
                    corner, memory = boxes.ordered((term, f"{column} + {at}")), self._descriptor(boxes, self.dtype)
                    body.add(self.ring.fetch(memory, corner, HERE.index, f"columns{number}.index({HERE.index})"))
                self.ring.advance(body)
                about = f"{self.step} terms at a time into the ring"
                frame.lines.extend(f"for {counter} in range({summed.steps}):", body, about)
            for place in range(columns // self.step):
                for by_ring in one.by_ring:
                    self._expected(frame.lines, rows)
                    self._fetch_rows(frame.lines, by_ring.boxes, row, f"{column} + {place * self.step}")
                    self.ring.advance(frame.lines)
            lines.extend(header, frame.lines)
        return lines

    def _expected(self, lines: Lines, vectors: int) -> None:
        """Waits for a slot, and says how much it will have: so many rows and columns of a step."""
        lines.add(self.ring.await_empty(HERE))
        lines.add(self.ring.expect(HERE.index, ITEMSIZE * self.step * vectors))

    def _rows_of(self, group: str) -> str:
        """The block of a group's rows in a slot."""
        return f"{HERE.index} * {self.groups} + {group}"

    def _fetch_rows(self, lines: Lines, boxes: Boxes, row: str, column: str) -> None:
        """Each group's rows, from a column on, where blocks of the first operand lie."""
        memory = self._descriptor(boxes, self.dtype)
        for group in range(self.groups):
            corner = boxes.ordered((f"{row} + {group * GROUP_ROWS}", column))
            lines.add(self.ring.fetch(memory, corner, HERE.index, f"rows.index({self._rows_of(str(group))})"))

    def _computing(self) -> Lines:
        lines = Lines(self.writer)
        self.ring.begin(lines, fills=False)
        for share, one in zip(self.plan.shares, self.plan.pipelined, strict=True):
            frame, starts, header = opened_tile(self.main, lines, share, self.plan.group)
            totals = self._summed(frame.lines, one)
            self._finished(frame, one, starts, totals)
            lines.extend(header, frame.lines)
        lines.add("tma.store_wait(0)")
        return lines

    def _summed(self, lines: Lines, one: PipelinedProduct) -> tuple[str, ...]:
        """The sums of a group's rows, one for each piece of the columns."""
        totals = tuple(self.writer.fresh("acc") for _ in self.sub_tiles)
        for total, (_, width) in zip(totals, self.sub_tiles, strict=True):
            layout = sums_layout(self.writer, width)
            lines.add(f"{total} = gl.zeros([{GROUP_ROWS}, {width}], gl.float32, {layout})")
        for place, product in enumerate(one.summed):
            body, counter = Lines(self.writer, lines), self.writer.fresh("k")
            block = operand(product.rows)("rows", self._rows_of("group"))
            others = [operand(boxes)(f"columns{n}", HERE.index) for n, boxes in enumerate(product.columns)]
            send_products(body, self.ring, totals, block, others, "" if place else f"{counter} > 0")
            lines.extend(f"for {counter} in range({product.steps}):", body, f"{self.step} terms at a time")
        end_products(lines, self.ring, totals)
        return totals

    def _finished(self, frame: Frame, one: PipelinedProduct, starts: tuple[str, str], totals: tuple[str, ...]) -> None:
        """What becomes of the sums of a group's rows."""
        lines, (rows, columns), kernel = frame.lines, one.tiled.axes, one.tiled.kernel
        own = replace(rows, size=GROUP_ROWS)
        row = lines.name(f"{starts[0]} + group * {GROUP_ROWS}", "start")
        sub_tiles = tuple(replace(columns, size=width) for _, width in self.sub_tiles)
        firsts = tuple(lines.name(f"{starts[1]} + {at}", "start") if at else starts[1] for at, _ in self.sub_tiles)
        ragged = columns.total % columns.size != 0
        sums = Sums(totals, "float32", own, sub_tiles, row, firsts, "", ragged, counter="")
        contractions, parts = (one.summed[-1].contraction,), self.plan.epilogue_parts
        blocks = stored_blocks(contractions, frame, lines, sums, parts, lambda size: sums_layout(self.writer, size))
        for block in blocks:
            block.frame.bound |= in_the_sum(kernel)
            self._loads_of_epilogue(block.frame, one)
            if one.reaches_past_the_end:
                block.frame.lines = Lines(self.writer, lines)
            for plain in kernel.plain:
                store_tile(block.frame, plain)
            for branch in kernel.epilogue:
                store_branch([block], kernel, branch)
            if one.reaches_past_the_end:
                lines.extend(f"if {row} < {rows.total}:", block.frame.lines)

    def _loads_of_epilogue(self, frame: Frame, one: PipelinedProduct) -> None:
        """Binds what is read for each element of a block, which the ring brings in parts of its columns."""
        lines, columns = frame.lines, frame.sizes[1]
        parts: dict[UOp, list[str]] = {by_ring.node: [] for by_ring in one.by_ring}
        for _ in range(columns // self.step):
            for node in parts:
                lines.add(self.ring.await_full(HERE))
                layout, held = sums_layout(self.writer, self.step), self.writer.fresh("read")
                lines.add(f"{held} = rows.index({self._rows_of('group')}).load({layout})")
                lines.add("fence_async_shared()")  # it is read before TMA writes there again
                lines.add(self.ring.give_back(HERE.index))
                self.ring.advance(lines)
                parts[node].append(held)
        for node, texts in parts.items():
            while len(texts) > 1:
                texts = [self._side_by_side(frame, *pair) for pair in zip(texts[::2], texts[1::2], strict=True)]
            frame.bound[node] = frame.cast(Block(texts[0], TYPES[node.dtype], BOTH), compute_type(node))

    def _side_by_side(self, frame: Frame, one: str, other: str) -> str:
        """Two blocks as one of twice the columns."""
        joined = f"gl.join({one}, {other}).permute(0, 2, 1).reshape({GROUP_ROWS}, {2 * self.step})"
        return frame.lines.name(f"gl.convert_layout({joined}, {sums_layout(self.writer, 2 * self.step)})")

    # ---- stores

    def _store(self, frame: Frame, stored: Stored, value: Block) -> None:
        """Stores a block by TMA, some columns at once, each after those before have left the buffer."""
        dtype, columns = stored.store.buffer.dtype, frame.sizes[1]
        if value.axes != BOTH or set(frame.flattened) != {0, 1}:
            raise UnsupportedTile("form", "specialised warps store whole blocks")
        rows, along = (Axis(frame.flattened[axis].ranges, frame.sizes[axis]) for axis in (0, 1))
        way = self.plan.leaving(stored, rows, along)
        row = " + ".join([frame.starts[0], *(f"{frame.value(r).text} * {step}" for r, step in way.apart)])
        buffer = self.leaving.setdefault(
            allocated("{}", LEAVING * self.groups, (GROUP_ROWS, way.width), dtype), f"leaving{len(self.leaving)}"
        )
        texts = self._parts(frame, value.text, columns, way.width)
        for number, text in enumerate(texts):
            place = self.sent[buffer] % LEAVING
            self.sent[buffer] += 1
            block = f"{buffer}.index(group * {LEAVING} + {place})"
            frame.lines.add(f"tma.store_wait({LEAVING - 1})")
            frame.lines.add(f"{block}.store({text})")
            frame.lines.add("fence_async_shared()")
            corner = f"[{row}, {frame.starts[1]} + {number * way.width}]"
            self._send(frame, stored, way.boxes, corner, block)

    def _parts(self, frame: Frame, text: str, columns: int, width: int) -> list[str]:
        """A block in parts of so many columns, as the tensor core's sums of so many lie."""
        lines = frame.lines
        text = lines.name(f"gl.convert_layout({text}, {sums_layout(self.writer, columns)})")
        if columns == width:
            return [text]
        layout = sums_layout(self.writer, width)
        parts = in_parts(frame, lines, text, (GROUP_ROWS, columns), width)
        return [lines.name(f"gl.convert_layout({part}, {layout})") for part, *_ in parts]

    def _send(self, frame: Frame, stored: Stored, boxes: Boxes, corner: str, block: str) -> None:
        """Sends a block to the buffer that it is of."""
        slot, dtype = stored.store.buffer.slot, stored.store.buffer.dtype
        chosen = frame.chosen(slot)
        sent = []
        for place in chosen.slots if chosen is not None else (slot,):
            start = f"p{place}{boxes.buffer.removeprefix(f'p{slot}')}"
            name = self._descriptor(replace(boxes, buffer=start), dtype)
            sent.append(f"send({name}, {corner}, {block})")
        for number, condition in enumerate(chosen.conditions if chosen is not None else ()):
            frame.lines.add(f"{'el' if number else ''}if {condition}:")
            frame.lines.add(f"    {sent[number]}")
        if len(sent) > 1:
            frame.lines.add("else:")
        frame.lines.add(f"{'    ' if len(sent) > 1 else ''}{sent[-1]}")
