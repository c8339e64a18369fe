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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kcg.compat.tiny import DType, Ops, UOp
from kcg.kernel.ast import extent, is_symbolic
from kcg.kernel.reading.accesses import Stored
from kcg.kernel.reading.contractions import Contraction, Operand
from kcg.kernel.reading.kernel import Branch, TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.contraction import (
    Sums,
    Turns,
    counts_of,
    fits_epilogue,
    in_parts,
    in_the_sum,
    read_for_each,
    stored_blocks,
    sub_tiles_of,
    swizzled,
    turned,
)
from kcg.kernel.tile.descriptors import Boxes, boxes_of
from kcg.kernel.tile.device import Figures, device_of
from kcg.kernel.tile.emit import TYPES, Block, Frame, Lines, Writer, compute_type
from kcg.kernel.tile.epilogue import BOTH, store_branch, store_tile
from kcg.kernel.tile.estimates import either
from kcg.kernel.tile.form import COMPILER_BYTES, UNCERTAIN, Axes, Form, Start, keeps_small, steps_of
from kcg.kernel.tile.gemm import GROUPS, check_axes, epilogue_s, ring_bytes, swizzle_matters, traffic_of
from kcg.kernel.tile.gluon import (
    COMPUTE,
    GROUP_ROWS,
    LOAD,
    REGISTERS,
    add_function,
    allocated,
    arguments_of,
    descriptor,
    operand,
    specialized,
    sums_layout,
)
from kcg.kernel.tile.parameters import PIPELINED, TMA, TileParameters
from kcg.kernel.tile.ring import HERE, Ring
from kcg.kernel.tile.targets import most_specialized_stages
from kcg.kernel.tile.tiles import (
    Axis,
    axes_of,
    count_of,
    is_power_of_two,
    launched_tiles,
    launched_with,
    open_frame,
    rest_of,
    start_of,
)
from kcg.types import Target

TILES = ((128, 256), (192, 192), (128, 192), (192, 128), (128, 128))
STEP = 64  # terms: 128 bytes, as far as TMA spreads a row over shared memory's banks
STORED_BYTES = 128  # of a row of a block that is stored at once
LEAVING = 2  # blocks of a group that are on their way to memory
LEAST_SIZE = 128  # rows and columns of a product
TURN = 2_048  # elements of a tile that take as long as what each takes beside them
SUSTAINED = 0.82  # of the tensor core, as sustained over a whole launch: of five matmuls on one H100
PAIRS = 3  # times their epilogue: Flux's query, key and value took 440 µs, by the plain form 392 (one H100)


class PipelinedMatmul(Form[Any, Any]):
    """Products by warps that load and warps that compute."""

    def view(self, kernel: TileKernel) -> Any:
        return kernel

    name = PIPELINED
    noun = "producer/consumer matmul"
    has_stages = True
    is_of_products = True
    fields = frozenset(("loads", "persistent", "epilogue_parts"))
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "tile": TILES, "reduce_tile": (STEP,), "num_warps": (4,), "split": (1,), "loads": (TMA,), "persistent": (1,),
        "tail": (1,), "num_stages": (3, 4, 5, 6), "warp_specialize": (False,), "read_early": (False,),
        "evict_first": ((),), "evict_last": ((),), "maxnreg": (0,), "precision": ("ieee",),
    }  # fmt: skip
    in_gluon = True
    needs_stress = True
    start_at = Start.COMPARED
    uncertainty = UNCERTAIN

    def has(self, kernel: TileKernel, target: Target) -> bool:
        return kernel.attention is None and kernel.rows is None and _may_pipeline(kernel, target)

    def preference(self, kernel: TileKernel, target: Target) -> int:
        return -1  # a search compares it

    def axes(self, kernel: TileKernel) -> tuple[Axes, ...]:
        return pipelined_axes(kernel)

    def start(self, kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
        return replace(_first(kernel, target, axes), fast_math=not keeps_small(kernel, target))

    def values(self, kernel: TileKernel, target: Target, p: TileParameters, field: str) -> tuple[Any, ...]:
        match field:
            case "group":
                return GROUPS
            case "epilogue_parts":
                return (parts_of(p.tile),)
        return super().values(kernel, target, p, field)

    def steps(self, kernel: TileKernel) -> tuple[int, ...]:
        return (STEP,)

    def least_parts(self, tile: tuple[int, ...]) -> int:
        return parts_of(tile)

    def fits(self, kernel: TileKernel, target: Target, p: TileParameters) -> bool:
        shared = self.shared_bytes(kernel, target, p) <= device_of(target).shared_bytes
        in_time = p.num_stages <= steps_of(kernel, p) + 1
        return shared and in_time and swizzle_matters(kernel, p) and can_pipeline(kernel, target, p)

    def shared_bytes(self, kernel: TileKernel, target: Target, p: TileParameters) -> int:
        return _shared_bytes(kernel, target, p)

    def check(self, kernel: TileKernel, p: TileParameters) -> None:
        check_axes(p)

    def write_at_once(self, kernel: TileKernel, target: Target, p: TileParameters, writer: Writer) -> tuple[Lines, int]:
        """Writes that of the groups and that of the loads among the helpers."""
        return _Pipelined(kernel, target, p, writer).written()

    def seconds(self, kernel: TileKernel, target: Target, p: TileParameters, figures: Figures) -> float:
        return _seconds(kernel, target, p, figures)


# ---- the prior


def _first(kernel: TileKernel, target: Target, axes: Axes) -> TileParameters:
    """The tile whose turns take least, with as many stages as shared memory holds."""
    found = [made for tile in TILES if can_pipeline(kernel, target, made := _first_of(kernel, target, axes, tile))]

    def cost(p: TileParameters) -> float:
        return -(-math.prod(launched_tiles(kernel, p)) // target.cores) * (math.prod(p.tile) + TURN)

    return min(found, key=cost)


def _first_of(kernel: TileKernel, target: Target, axes: Axes, tile: tuple[int, int]) -> TileParameters:
    made = TileParameters(
        PIPELINED, axes, tile, reduce_tile=STEP, loads=TMA, persistent=1, epilogue_parts=parts_of(tile), num_warps=4,
        group=8 if count_of(kernel, axes[0]) > 8 * tile[0] else 1, num_stages=4,
    )  # fmt: skip
    return (
        made if _shared_bytes(kernel, target, made) <= device_of(target).shared_bytes else replace(made, num_stages=3)
    )


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
    if any(count_of(kernel, numbers) < LEAST_SIZE for numbers in axes):
        return False
    return any(can_pipeline(kernel, target, _first_of(kernel, target, axes, tile)) for tile in TILES)


def _shared_bytes(kernel: TileKernel, target: Target, p: TileParameters) -> int:
    """About how much shared memory a program takes, in bytes: the ring, and blocks that leave it."""
    if kernel.grouped:
        return max(_shared_bytes(one, target, own) for one, own in launched_with(kernel, p))
    return ring_bytes(kernel, device_of(target), p) + leaving_bytes(kernel, p) + COMPILER_BYTES


# ---- what it costs


def _seconds(kernel: TileKernel, target: Target, p: TileParameters, f: Figures) -> float:
    """Turns of a tile each, one after the other: loads are never waited for but at the start."""
    counts = launched_tiles(kernel, p)
    turns = -(-math.prod(counts) // target.cores)
    steps = max(1, -(-kernel.terms // p.reduce_tile))
    step_s = 2 * math.prod(p.tile) * p.reduce_tile / (SUSTAINED * f.tensor_ops)
    nbytes, _ = traffic_of(kernel, p, counts, target.cores, target.cache_bytes)
    opening_s = f.opening_s + f.fill_s + f.descriptors_s
    finish_s = epilogue_s(kernel, p, f) * (PAIRS if any(b.pairs for b in kernel.epilogue) else 1)
    busy_s = opening_s + turns * (steps * step_s + finish_s)
    return either(busy_s, nbytes / f.memory_bytes, sharp=3)


# ---- the program


def can_pipeline(kernel: TileKernel, target: Target, parameters: TileParameters) -> bool:
    """Whether there is such a program of a contraction."""
    key = parameters.axes, parameters.tile, parameters.reduce_tile, parameters.epilogue_parts
    if key not in kernel.pipelined:  # a search asks some thousand times for each
        try:
            _Pipelined(kernel, target, parameters, Writer(kernel, ptx=True)).written()
            kernel.pipelined[key] = fits_epilogue(kernel, parameters)
        except UnsupportedTile:
            kernel.pipelined[key] = False
    return kernel.pipelined[key]


def parts_of(tile: tuple[int, ...]) -> int:
    """The parts in which a tile's columns are finished: a thread holds little more than the sums of all of them."""
    return 2 if tile[1] > 2 * GROUP_ROWS and is_power_of_two(tile[1]) else 1


def leaving_bytes(kernel: TileKernel, parameters: TileParameters) -> int:
    """Shared memory of the blocks that leave it."""
    types = {one.store.buffer.dtype for one in kernel.written}
    return len(types) * LEAVING * parameters.tile[0] * stored_bytes(parameters.tile)


def stored_bytes(tile: tuple[int, ...]) -> int:
    """Bytes of a row of a block that is stored at once: so many that each part of a tile is an even number of blocks,
    which have the two places in turn, and that three groups leave room for a fourth stage."""
    return STORED_BYTES if tile[0] == 2 * GROUP_ROWS and tile[1] % (2 * STEP) == 0 else STORED_BYTES // 2


@dataclass(frozen=True)
class _Product:
    """One contraction of a tile: how its blocks lie in memory, and the names of their descriptors."""

    steps: int
    rows: tuple[Boxes, str]
    columns: tuple[tuple[Boxes, str], ...]  # of each piece


@dataclass(frozen=True)
class _Tiled:
    """One kernel of the launch, with the axes of its tiles and its contractions, which are added up."""

    kernel: TileKernel
    parameters: TileParameters
    axes: tuple[Axis, Axis]
    contractions: tuple[Contraction, ...]
    products: tuple[_Product, ...]
    beside: tuple[tuple[UOp, Boxes, str], ...]  # what is read for each element of the result and comes by the ring
    turns: Turns


class _Pipelined:
    def __init__(self, kernel: TileKernel, target: Target, parameters: TileParameters, writer: Writer) -> None:
        self.kernel, self.writer, self.stages = kernel, writer, parameters.num_stages
        rows, columns = parameters.tile
        self.groups = rows // GROUP_ROWS
        self.ring = Ring("full", "empty", self.stages, self.groups)
        if writer.interpreted:
            raise UnsupportedTile("form", "Triton's interpreter has no specialised warps")
        if parameters.loads != TMA or parameters.num_warps != 4 or rows % GROUP_ROWS or self.groups not in REGISTERS:
            raise UnsupportedTile("form", "two or three groups of 64 rows and 4 warps, TMA")
        self.step, self.sub_tiles = parameters.reduce_tile, sub_tiles_of(columns)
        self.main = open_frame(kernel, writer, ())
        self.in_memory: dict[str, str] = {}  # what makes a descriptor -> its name
        self.leaving: dict[str, str] = {}  # what allocates a buffer for results -> its name
        self.sent: Counter[str] = Counter()  # blocks by way of each of these
        self.stored_bytes = stored_bytes(parameters.tile)
        launched = launched_with(kernel, parameters)
        tiles = [math.prod(counts_of(*one)) for one in launched]
        self.programs = min(sum(tiles), target.cores)
        self.tiled = [
            self._tiled(one, own, Turns(self.programs, sum(tiles[:place]), 0, tiles[place]))
            for place, (one, own) in enumerate(launched)
        ]
        self.dtype = self.tiled[0].contractions[0].sides[0].dtype
        first, *others = [product for one in self.tiled for product in one.products]
        self.shapes = [self._shape(first.rows[0]), *(self._shape(boxes) for boxes, _ in first.columns)]
        for other in others:
            if self.shapes != [self._shape(other.rows[0]), *(self._shape(boxes) for boxes, _ in other.columns)]:
                raise UnsupportedTile("form", "products of one ring have operands that lie alike")

    def written(self) -> tuple[Lines, int]:
        lines = self.main.lines
        self.writer.store = self._store
        computing, loading = self._computing(), self._loading()
        buffers = ["rows", *(f"columns{number}" for number in range(len(self.sub_tiles)))]
        for text, name in self.in_memory.items():
            lines.add(f"{name} = {text}")
        for number, (name, sizes) in enumerate(zip(buffers, self.shapes, strict=True)):
            lines.add(allocated(name, self.stages * (1 if number else self.groups), sizes, self.dtype))
        for text, name in self.leaving.items():
            lines.add(text.format(name))
        self.ring.add_full(lines)
        self.ring.add_empty(lines)
        lines.add("fence_async_shared()")
        given = (*arguments_of(self.kernel), *self.in_memory.values(), *buffers, self.ring.full, self.ring.empty)
        add_function(self.writer, COMPUTE, (*given, *self.leaving.values()), computing, group=True)
        add_function(self.writer, LOAD, given, loading)
        lines.add(specialized(self.groups, (*given, *self.leaving.values()), given))
        return lines, self.programs

    # ---- what a tile is made of

    def _tiled(self, kernel: TileKernel, parameters: TileParameters, turns: Turns) -> _Tiled:
        one, other = axes_of(kernel, parameters)
        contraction = kernel.contraction
        assert contraction is not None
        if kernel.sharing_operand or rest_of(kernel, (one, other)) or any(map(is_symbolic, kernel.outputs)):
            raise UnsupportedTile("form", "specialised warps make one sum of rows by columns")
        contractions = tuple(turned(each, parameters) for each in (*kernel.chained, contraction))
        products = tuple(self._product(each, (one, other)) for each in contractions)
        beside = tuple(self._beside(kernel, (one, other), contraction.sides[0].dtype))
        return _Tiled(kernel, parameters, (one, other), contractions, products, beside, turns)

    def _beside(self, kernel: TileKernel, axes: tuple[Axis, Axis], dtype: DType) -> Iterator[tuple[UOp, Boxes, str]]:
        """Loads beside the sums that fit where blocks of the rows lie: they come while the last products are made."""
        if kernel.epilogue or axes[1].size % self.step:
            return
        for access in read_for_each(kernel, axes):
            sizes = (replace(axes[0], size=GROUP_ROWS), replace(axes[1], size=self.step))
            boxes = boxes_of(access, sizes, self.main) if access.buffer.dtype is dtype else None
            if boxes is not None and not boxes.leading and not boxes.transposed:
                yield access.node, boxes, self._descriptor(boxes, dtype)

    def _product(self, contraction: Contraction, axes: tuple[Axis, Axis]) -> _Product:
        reduced = Axis(tuple(contraction.reduce.src[1:]), self.step)
        if reduced.is_symbolic:
            raise UnsupportedTile("form", "specialised warps make sums of a known length")
        one, other = contraction.sides
        rows = self._described(one, (replace(axes[0], size=GROUP_ROWS), reduced))
        columns = tuple(self._described(other, (reduced, replace(axes[1], size=width))) for _, width in self.sub_tiles)
        return _Product(reduced.tiles, rows, columns)

    def _described(self, side: Operand, axes: tuple[Axis, Axis]) -> tuple[Boxes, str]:
        """How TMA loads an operand's blocks."""
        (factor, *others) = side.factors
        if not others and not factor.gate and factor.node.op is Ops.INDEX and factor.node.dtype is side.dtype:
            boxes = boxes_of(self.writer.accesses[factor.node], axes, self.main)
            if boxes is not None and not boxes.leading and side.dtype.itemsize == 2:
                return boxes, self._descriptor(boxes, side.dtype)
        raise UnsupportedTile("form", "specialised warps take operands of 16 bits that TMA loads")

    def _descriptor(self, boxes: Boxes, dtype: DType) -> str:
        self.writer.has_descriptors = True
        text = descriptor(boxes, boxes.buffer, dtype)
        return self.in_memory.setdefault(text, f"memory{len(self.in_memory)}")

    def _shape(self, boxes: Boxes) -> tuple[int, int]:
        return boxes.ordered(boxes.sizes)

    # ---- loops over tiles, alike in both functions

    def _opened(self, lines: Lines, one: _Tiled) -> tuple[Frame, tuple[str, str], str]:
        """The frame of a tile, its first row and column, and the header of the loop over tiles."""
        frame = Frame(Lines(self.writer, lines), (), outer=self.main)
        tile = self.writer.fresh("tile")
        rows, columns = one.axes
        row, column = swizzled(frame, tile, rows.tiles, columns.tiles, one.parameters.group)
        first = one.turns.first(lines, lines.name("tl.program_id(0)", "program"))
        header = f"for {tile} in range({first}, {one.turns.tiles}, {self.programs}):"
        return frame, (start_of(frame, row, rows), start_of(frame, column, columns)), header

    def _loading(self) -> Lines:
        lines = Lines(self.writer)
        self.ring.begin(lines, fills=True)
        for one in self.tiled:
            frame, (row, column), header = self._opened(lines, one)
            for product in one.products:
                body, counter = Lines(self.writer, frame.lines), self.writer.fresh("k")
                self._expected(body, sum(one.parameters.tile))
                term = body.name(f"{counter} * {self.step}", "term")
                self._fetch_rows(body, *product.rows, row, term)
                for number, ((at, _), (boxes, memory)) in enumerate(zip(self.sub_tiles, product.columns, strict=True)):
                    corner = boxes.ordered((term, f"{column} + {at}"))
                    body.add(self.ring.fetch(memory, corner, HERE.index, f"columns{number}.index({HERE.index})"))
                self.ring.advance(body)
                frame.lines.extend(f"for {counter} in range({product.steps}):", body)
            for place in range(one.parameters.tile[1] // self.step):
                for _, boxes, memory in one.beside:
                    self._expected(frame.lines, one.parameters.tile[0])
                    self._fetch_rows(frame.lines, boxes, memory, row, f"{column} + {place * self.step}")
                    self.ring.advance(frame.lines)
            lines.extend(header, frame.lines)
        return lines

    def _expected(self, lines: Lines, vectors: int) -> None:
        """Waits for a slot, and says how much it will have: so many rows and columns of a step."""
        lines.add(self.ring.await_empty(HERE))
        lines.add(self.ring.expect(HERE.index, 2 * self.step * vectors))

    def _rows_of(self, group: str) -> str:
        """The block of a group's rows in a slot."""
        return f"{HERE.index} * {self.groups} + {group}"

    def _fetch_rows(self, lines: Lines, boxes: Boxes, memory: str, row: str, column: str) -> None:
        """Each group's rows, from a column on, where blocks of the first operand lie."""
        for group in range(self.groups):
            corner = boxes.ordered((f"{row} + {group * GROUP_ROWS}", column))
            lines.add(self.ring.fetch(memory, corner, HERE.index, f"rows.index({self._rows_of(str(group))})"))

    def _computing(self) -> Lines:
        lines = Lines(self.writer)
        self.ring.begin(lines, fills=False)
        for one in self.tiled:
            frame, starts, header = self._opened(lines, one)
            totals = self._summed(frame.lines, one)
            self._finished(frame, one, starts, totals)
            lines.extend(header, frame.lines)
        lines.add("tma.store_wait(0)")
        return lines

    def _summed(self, lines: Lines, one: _Tiled) -> tuple[str, ...]:
        """The sums of a group's rows, one for each piece of the columns."""
        totals = tuple(self.writer.fresh("acc") for _ in self.sub_tiles)
        for total, (_, width) in zip(totals, self.sub_tiles, strict=True):
            layout = sums_layout(self.writer, width)
            lines.add(f"{total} = gl.zeros([{GROUP_ROWS}, {width}], gl.float32, {layout})")
        before = self.ring.last()
        for place, product in enumerate(one.products):
            body, counter = Lines(self.writer, lines), self.writer.fresh("k")
            body.add(self.ring.await_full(HERE))
            block = operand(product.rows[0])("rows", self._rows_of("group"))
            for number, (total, (boxes, _)) in enumerate(zip(totals, product.columns, strict=True)):
                other = operand(boxes)(f"columns{number}", HERE.index)
                body.add(f"{total} = warpgroup_mma({block}, {other}, {total}, is_async=True)")
            names = ", ".join(totals)
            body.add(f"{names} = warpgroup_mma_wait({len(totals)}, deps=[{names}])")
            body.add(self.ring.give_back(before, only="" if place else f"{counter} > 0"))
            self.ring.advance(body)
            lines.extend(f"for {counter} in range({product.steps}):", body)
        lines.add(f"{names} = warpgroup_mma_wait(0, deps=[{names}])")
        lines.add(self.ring.give_back(before))
        return totals

    def _finished(self, frame: Frame, one: _Tiled, starts: tuple[str, str], totals: tuple[str, ...]) -> None:
        """What becomes of the sums of a group's rows."""
        lines, (rows, columns) = frame.lines, one.axes
        own = replace(rows, size=GROUP_ROWS)
        row = lines.name(f"{starts[0]} + group * {GROUP_ROWS}", "start")
        sub_tiles = tuple(replace(columns, size=width) for _, width in self.sub_tiles)
        firsts = tuple(lines.name(f"{starts[1]} + {at}", "start") if at else starts[1] for at, _ in self.sub_tiles)
        ragged = columns.total % columns.size != 0
        sums = Sums(totals, "float32", own, sub_tiles, row, firsts, "", ragged, counter="")
        contraction = one.contractions[-1]
        blocks = stored_blocks(
            (contraction,),
            frame,
            lines,
            sums,
            one.parameters.epilogue_parts,
            lambda size: sums_layout(self.writer, size),
        )
        guarded = self._reach_past_the_end(one)
        for block in blocks:
            block.frame.bound |= in_the_sum(one.kernel)
            self._loads_of_epilogue(block.frame, one)
            if guarded:
                block.frame.lines = Lines(self.writer, lines)
            for plain in one.kernel.plain:
                store_tile(block.frame, plain)
            for branch in one.kernel.epilogue:
                store_branch([block], one.kernel, branch)
            if guarded:
                lines.extend(f"if {row} < {rows.total}:", block.frame.lines)

    def _reach_past_the_end(self, one: _Tiled) -> bool:
        """Whether a group that has no row, as in the last tile of 320 rows in tiles of 192, would read what is no
        element of a buffer, or store to another one's place. (A group that has some masks the others. TMA stores
        nothing past the end, but where heads are apart the next one begins there.)"""
        (rows, _), branches = one.axes, one.kernel.epilogue
        if rows.total % rows.size == 0 or rows.total % GROUP_ROWS:
            return False
        of_rows = {*rows.ranges, *(r for branch in branches for r in branch.use.rows)}
        by_ring = {node for node, _, _ in one.beside}
        if any(x.node not in by_ring and not of_rows.isdisjoint(x.node.ranges) for x in one.kernel.epilogue_loads):
            return True
        return any(self._is_apart(branch) for branch in branches)

    def _is_apart(self, branch: Branch) -> bool:
        """Whether what is stored is no matrix of all rows and columns: heads are apart."""
        axes = Axis(branch.use.rows, GROUP_ROWS), Axis(branch.use.columns, STEP)
        return boxes_of(branch.stored.store, axes, self.main) is None

    def _loads_of_epilogue(self, frame: Frame, one: _Tiled) -> None:
        """Binds what is read for each element of a block, which the ring brings in parts of its columns."""
        lines, columns = frame.lines, frame.sizes[1]
        parts: dict[UOp, list[str]] = {node: [] for node, _, _ in one.beside}
        for _ in range(columns // self.step):
            for node, _, _ in one.beside:
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
        if value.axes != BOTH or stored.gates or set(frame.flattened) != {0, 1}:
            raise UnsupportedTile("form", "specialised warps store whole blocks")
        width = min(columns, self.stored_bytes // max(2, dtype.itemsize))  # of bytes an even number of blocks too
        rows, along = (Axis(frame.flattened[axis].ranges, frame.sizes[axis]) for axis in (0, 1))
        boxes = boxes_of(stored.store, (rows, replace(along, size=width)), self.main)
        if boxes is None or boxes.transposed or any(step % boxes.wide for _, step in boxes.leading):
            raise UnsupportedTile("form", "specialised warps store by TMA, row by row")
        if boxes.leading and rows.total % GROUP_ROWS:
            raise UnsupportedTile("form", "a block of specialised warps ends where its rows do")
        apart = [(r, step // boxes.wide) for r, step in boxes.leading]
        total = rows.total + sum((extent(r) - 1) * step for r, step in apart)
        boxes = replace(boxes, totals=(str(total), boxes.totals[1]))
        row = " + ".join([frame.starts[0], *(f"{frame.value(r).text} * {step}" for r, step in apart)])
        buffer = self.leaving.setdefault(
            allocated("{}", LEAVING * self.groups, (GROUP_ROWS, width), dtype), f"leaving{len(self.leaving)}"
        )
        texts = self._parts(frame, value.text, columns, width)
        for number, text in enumerate(texts):
            place = self.sent[buffer] % LEAVING
            self.sent[buffer] += 1
            block = f"{buffer}.index(group * {LEAVING} + {place})"
            frame.lines.add(f"tma.store_wait({LEAVING - 1})")
            frame.lines.add(f"{block}.store({text})")
            frame.lines.add("fence_async_shared()")
            corner = f"[{row}, {frame.starts[1]} + {number * width}]"
            self._send(frame, stored, boxes, corner, block)

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
