"""Products with packed weights by specialised warps, in Gluon: groups of warps unpack, others multiply.

Programs are persistent. Two groups take the steps of the loop over terms in turn: each loads words of the weights,
makes numbers of 16 bits of them, and stores these into a slot of a ring of shared memory, as the tensor core reads them;
TMA brings the vectors' block into the same slot. Two other groups, of half of the tile's rows each, multiply (as in
`pipelined.py`). So the tensor core has products to make while weights are unpacked: one program that does both in turn
takes about as long as both together.

Which numbers are made of which bits is written as for every product with packed weights (`unpack.py`). A step has whole
runs of terms, of which those that one choice among the numbers of shared bytes says are a piece. Words of a group's
next step are asked for before it stores this one's weights.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from kcg.compat.tiny import Ops, UOp, dtypes
from kcg.kernel.ast import extent, is_symbolic
from kcg.kernel.reading.accesses import Access
from kcg.kernel.reading.contractions import Contraction
from kcg.kernel.reading.factors import NARROW
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.packed import Unpacked, written_out
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.contraction import (
    Sums,
    TiledProduct,
    boxes_of_operand,
    frame_of_terms,
    products_of,
    stored_blocks,
    unpacked_block,
    unpacks,
)
from kcg.kernel.tile.descriptors import Boxes
from kcg.kernel.tile.device import Device, Figures, device_of
from kcg.kernel.tile.emit import Frame, Lines, Writer
from kcg.kernel.tile.epilogue import store_tile
from kcg.kernel.tile.form import COMPILER_BYTES, UNCERTAIN, Axes, Form, Start, keeps_small
from kcg.kernel.tile.gemm import GROUPS, MatmulPlan, check_axes, epilogue_s, swizzle_needs, traffic_of
from kcg.kernel.tile.gluon import (
    COMPUTE,
    Partition,
    add_function,
    allocated,
    arguments_of,
    descriptor,
    end_products,
    operand,
    partitioned,
    send_products,
    sums_layout,
)
from kcg.kernel.tile.parameters import TMA, UNPACKING, TileParameters
from kcg.kernel.tile.pipelined import LEAST_SIZE, SUSTAINED, opened_tile
from kcg.kernel.tile.plan import Barriers, Load, Loop, Need, Registers, Shared, Times, Way
from kcg.kernel.tile.ring import HERE, Place, Ring, add_barriers
from kcg.kernel.tile.targets import most_specialized_stages
from kcg.kernel.tile.tiles import Axis, bind_axis, count_of, is_power_of_two, open_frame
from kcg.kernel.tile.unpack import Words
from kcg.kernel.tile.views import MIN_TILE, MatmulView
from kcg.types import Target

TILES = ((256, 128), (128, 128))
"""Vectors and weights' rows: the more vectors, the less often a weight is unpacked."""
STEPS = (64, 128)  # terms: 128 bytes, as far as TMA spreads a row over shared memory's banks, and twice as many
STAGES = (2, 3, 4)
ITEMSIZE = 2  # of a number as it is multiplied
GROUPS_EACH = 2  # groups of four warps that multiply, and as many that unpack
REGISTERS = {COMPUTE: 160, "unpack": 96}  # of each of their threads: all that there are
UNPACK = "unpack"
BESIDE = 32  # registers of a thread that multiplies beside its sums
ALONG = 16  # neighbouring terms that a thread unpacks: a word of 16 bytes, where these are aligned
LANE_BITS = 5  # of a thread's number in its warp
LEAST_VECTORS = 64
INSTRUCTIONS = 10  # of a weight that is unpacked, by count of four formats: 7 to 16
ISSUED = 0.6  # of a multiprocessor's instructions that eight warps issue: a guess


class UnpackingMatmul(Form[MatmulView, "UnpackingPlan"]):
    """Products by warps that unpack and warps that multiply."""

    name = UNPACKING
    noun = "matmul by warps that unpack"
    has_stages = True
    fields = frozenset(("loads", "persistent"))
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "tile": TILES, "num_warps": (4,), "split": (1,), "loads": (TMA,), "persistent": (1,), "num_stages": STAGES,
        "maxnreg": (0,), "precision": ("ieee",), "group": GROUPS,
    }  # fmt: skip
    in_gluon = True
    start_at = Start.COMPARED
    uncertainty = UNCERTAIN
    sees = MatmulView

    def has(self, kernel: TileKernel, target: Target) -> bool:
        if kernel.attention is not None or kernel.rows is not None or kernel.contraction is None:
            return False
        return unpacks(kernel.contraction) and _may_unpack(MatmulView.of(kernel), target)

    def preference(self, view: MatmulView, target: Target) -> int:
        return -1  # a search compares it

    def axes(self, view: MatmulView) -> tuple[Axes, ...]:
        return (_axes(view.contraction),)

    def start(self, view: MatmulView, target: Target, axes: Axes) -> TileParameters:
        made = _first(view, target, axes)
        if made is None:
            raise UnsupportedTile("form", "no step has whole runs of terms")
        return replace(made, fast_math=not keeps_small(view.kernel, target))

    def steps(self, view: MatmulView) -> tuple[int, ...]:
        return STEPS

    def check(self, view: MatmulView, p: TileParameters) -> None:
        check_axes(p)
        if p.tile not in TILES or p.loads != TMA or p.num_warps != 4 or p.persistent != 1:
            raise UnsupportedTile("form", f"tiles {TILES}, 4 warps a group, TMA, programs that take tiles in turn")

    def planned(self, view: MatmulView, target: Target, p: TileParameters) -> UnpackingPlan:
        found = _unpacking(view, p.axes, p.tile, p.reduce_tile)
        if isinstance(found, UnsupportedTile):
            raise found
        tiles = found.tiled.tiles
        return UnpackingPlan.of(
            self.decided(target, p, found.tiled.axes, Loop("terms", view.kernel.reduce_extent, p.reduce_tile)),
            view=view, programs=min(tiles, target.cores), tiles=tiles, products=(found.tiled,), slots=target.cores,
            product=found,
        )  # fmt: skip

    def write(self, plan: UnpackingPlan, writer: Writer) -> Lines:
        """Writes that of the groups among the helpers."""
        return _Unpacking(plan, writer).written()


# ---- the prior


def _axes(contraction: Contraction) -> Axes:
    """Vectors along the rows, weights' rows along the columns."""
    vectors, weights = (side.ranges for side in _sorted(contraction).sides)
    return vectors, weights


def _sorted(contraction: Contraction) -> Contraction:
    """A contraction with the operand first that is not of bytes."""
    first = [factor.node for factor in contraction.sides[0].factors]
    return replace(contraction, sides=contraction.sides[::-1]) if any(map(_is_packed, first)) else contraction


def _is_packed(value: UOp) -> bool:
    return any(n.op is Ops.INDEX and n.dtype in (dtypes.uint8, dtypes.int8) for n in value.toposort())


def _first(view: MatmulView, target: Target, axes: Axes) -> TileParameters | None:
    """As many vectors as there are, the shortest step, and the stages that shared memory holds; None where no step has
    whole runs of terms."""
    tile = TILES[0] if count_of(view.kernel, axes[0]) > TILES[-1][0] else TILES[-1]
    for step in STEPS:
        found = _unpacking(view, axes, tile, step)
        if isinstance(found, UnsupportedTile):
            continue
        steps = found.steps
        for stages in sorted(STAGES, reverse=True):
            if _nbytes(tile, step, stages) <= device_of(target).shared_bytes and stages <= steps:
                group = 4 if found.tiled.counts[0] > 4 else 1
                return TileParameters(
                    UNPACKING, axes, tile, reduce_tile=step, loads=TMA, persistent=1, num_warps=4, num_stages=stages,
                    group=group,
                )  # fmt: skip
    return None


def _may_unpack(view: MatmulView, target: Target) -> bool:
    """Whether a contraction may be by warps that unpack: of enough vectors of 16 bits that TMA loads, on Hopper, by
    compilers that make such programs right."""
    if not device_of(target).has_wgmma or not most_specialized_stages():
        return False
    axes = _axes(view.contraction)
    if count_of(view.kernel, axes[0]) < LEAST_VECTORS or count_of(view.kernel, axes[1]) < LEAST_SIZE:
        return False
    return _first(view, target, axes) is not None


# ---- the plan


@dataclass(frozen=True)
class Piece:
    """Neighbouring terms of a step that are made alike: where they begin among those of one choice, the number of the
    choice, and their place among all terms of the step."""

    start: int
    choice: int
    place: int


@dataclass(frozen=True, eq=False)
class UnpackingProduct:
    """A product, how blocks of its vectors lie in memory, and what a step of its weights is made of."""

    tiled: TiledProduct
    contraction: Contraction  # the vectors first
    boxes: Boxes  # of the vectors: those of a group
    weights: Unpacked
    pieces: tuple[Piece, ...]  # as they are written: all choices of some terms, then of the next
    width: int  # terms of a piece

    @cached_property
    def steps(self) -> int:
        """Of the loop over terms."""
        return self.tiled.view.kernel.reduce_extent // self.tiled.step


@lru_cache(1024)
def _unpacking(
    view: MatmulView, axes: Axes, tile: tuple[int, ...], step: int
) -> UnpackingProduct | UnsupportedTile:
    """The product of a launch in such tiles; why there is none. A search asks some thousand times for each."""
    try:
        return _product(view, axes, tile, step)
    except UnsupportedTile as unsupported:
        return unsupported


def _product(view: MatmulView, axes: Axes, tile: tuple[int, ...], step: int) -> UnpackingProduct:
    kernel, contraction = view.kernel, _sorted(view.contraction)
    (tiled,) = _alone(products_of(view, UNPACKING, axes, tile, step, tma=False))
    several = kernel.sharing_operand or kernel.chained or kernel.grouped or kernel.epilogue or kernel.also
    if several or tiled.rest or kernel.variables or any(map(is_symbolic, contraction.reduce.src[1:])):
        raise UnsupportedTile("form", "warps that unpack make one plain product of known sizes")
    if axes != _axes(view.contraction):
        raise UnsupportedTile("axes", "the vectors are the rows")
    vectors, weights = contraction.sides
    is_plain = len(vectors.factors) == 1 and not vectors.factors[0].gate and vectors.dtype in NARROW
    reduced = Axis(tuple(contraction.reduce.src[1:]), step)
    rows = replace(tiled.axes[0], size=tile[0] // GROUPS_EACH)
    boxes = boxes_of_operand(vectors, kernel, (rows, reduced)) if is_plain else None
    if boxes is None or boxes.leading or boxes.transposed or not any(_is_packed(f.node) for f in weights.factors):
        raise UnsupportedTile("form", "warps that unpack take vectors of 16 bits that TMA loads")
    if reduced.total % step or reduced.total < 2 * step:
        raise UnsupportedTile("reduce_tile", "two steps or more of whole runs of terms")
    operands, width = written_out(
        [[factor.node for factor in side.factors] for side in contraction.sides], reduced.ranges, step, MIN_TILE
    )
    if any(gate for factor in weights.factors if (gate := factor.gate)):
        raise UnsupportedTile("form", "weights under a condition")
    return UnpackingProduct(tiled, contraction, boxes, operands[1], _pieces(operands[0], width, step), width)


def _alone(products: tuple[TiledProduct, ...]) -> tuple[TiledProduct, ...]:
    if len(products) > 1:
        raise UnsupportedTile("form", "warps that unpack make one product a launch")
    return products


def _pieces(vectors: Unpacked, width: int, step: int) -> tuple[Piece, ...]:
    """What a step consists of, by the places of its terms in the vectors. Raises UnsupportedTile where a step's terms
    do not lie beside each other: TMA loads them as one block."""
    along = step // vectors.written
    steps = [vectors.loads[_load(term)].steps or {} for term in vectors.terms]
    found = tuple(
        Piece(at, choice, steps[choice].get(None, 0) - steps[0].get(None, 0) + _place(vectors, steps[0], at))
        for at in range(0, along, width)
        for choice in range(vectors.written)
    )
    together = sorted(piece.place for piece in found) == list(range(0, step, width))
    total = math.prod(map(extent, vectors.ranges))
    begins = all(_place(vectors, steps[0], at) == at * vectors.written for at in range(0, total, along))
    inside = all(_place(vectors, steps[0], at) == at for at in range(width))
    if not (together and begins and inside and is_power_of_two(len(found))):
        raise UnsupportedTile("reduce_tile", "a step's terms lie beside each other in the vectors")
    return found


def _load(term: UOp) -> UOp:
    """The only load of a term of the vectors."""
    (node,) = term.src
    if node.op is not Ops.INDEX:
        raise UnsupportedTile("form", "vectors that are computed")
    return node


def _place(unpacked: Unpacked, steps: Mapping[UOp | None, int], number: int) -> int:
    """Where a term, by its number among those of one choice, is in memory, from the first on."""
    place = 0
    for axis in reversed(unpacked.ranges):
        number, digit = divmod(number, extent(axis))
        place += digit * steps.get(axis, 0)
    return place


@dataclass(frozen=True, kw_only=True)
class UnpackingPlan(MatmulPlan):
    """Tiles of a product, by groups of warps that unpack and groups that multiply."""

    product: UnpackingProduct

    @property
    def group_rows(self) -> int:
        """Of a tile, that a group multiplies."""
        return self.tile[0] // GROUPS_EACH

    @property
    def ring(self) -> Ring:
        """Of blocks of vectors, which TMA brings, and of weights, which a group stores."""
        return Ring("full", "empty", self.num_stages, GROUPS_EACH, arrivals=2)

    @property
    def barriers(self) -> tuple[Barriers, ...]:
        return self.ring.of_full, self.ring.of_empty

    @property
    def shared(self) -> tuple[Shared, ...]:
        return _shared(self.tile, self.step, self.num_stages)

    @property
    def shared_bytes(self) -> int:
        return _nbytes(self.tile, self.step, self.num_stages)

    @property
    def by_tma(self) -> tuple[Access, ...]:
        node = self.product.contraction.sides[0].factors[0].node
        return tuple(load for load in self.view.kernel.loads if load.node is node)

    @property
    def loads(self) -> tuple[Load, ...]:
        """Those of words go through registers."""
        return tuple(replace(one, way=Way.POINTER) if one.way is Way.COPY else one for one in super().loads)

    def registers(self, device: Device) -> Registers:
        """Of a thread that multiplies."""
        held = self.sums // (GROUPS_EACH * self.threads)
        return Registers(held, REGISTERS[COMPUTE], 1)

    def needs(self, device: Device) -> Iterator[Need]:
        held = self.registers(device)
        yield Need("registers for sums", held.held + BESIDE, REGISTERS[COMPUTE])
        yield Need("shared memory", self.shared_bytes, device.shared_bytes)
        yield Need("stages", self.num_stages, self.loop.steps)
        yield from swizzle_needs(self.group, *self.products[0].counts)

    def times(self, target: Target, figures: Figures) -> Times:
        """Turns of a tile each, whose steps take as long as the tensor core or those who unpack, whoever takes
        longer."""
        f, counts = figures, self.counts
        turns = -(-math.prod(counts) // target.cores)
        clock = f.tensor_ops / (2 * f.products_a_clock)
        product_s = 2 * self.area * self.step / (SUSTAINED * f.tensor_ops)
        unpack_s = INSTRUCTIONS * self.tile[1] * self.step / (ISSUED * f.plain_a_clock * clock)
        nbytes, _ = traffic_of(self, counts, target.cores, target.cache_bytes)
        opening_s = f.opening_s + f.fill_s + f.descriptors_s
        tile_s = self.product.steps * max(product_s, unpack_s) + epilogue_s(self, f)
        return Times((opening_s + turns * tile_s, nbytes / f.memory_bytes))


def _shared(tile: Sequence[int], step: int, stages: int) -> tuple[Shared, ...]:
    """The ring, and what the compiler takes."""
    rows, columns = tile
    return (
        Shared("rows", ITEMSIZE * step * rows // GROUPS_EACH, stages * GROUPS_EACH),
        Shared("columns", ITEMSIZE * step * columns, stages),
        Shared("the compiler's", COMPILER_BYTES),
    )


def _nbytes(tile: Sequence[int], step: int, stages: int) -> int:
    return sum(block.nbytes * block.count for block in _shared(tile, step, stages))


# ---- the program


def pieces_layout(writer: Writer, width: int, rows: int) -> str:
    """The name of the layout of a piece of the weights, so many neighbouring terms of so many rows: a thread has
    neighbouring terms of a row, as many as a wide load brings. Threads side by side have rows beside each other, which
    lie in different banks of shared memory."""
    name, along = f"pieces_of_{width}", min(ALONG, width).bit_length() - 1
    terms = [[1 << bit, 0] for bit in range(width.bit_length() - 1)]
    of_rows = [[0, 1 << bit] for bit in range(rows.bit_length() - 1)]
    count = LANE_BITS - len(terms[along:])  # bits of a lane's number that say its row
    lanes, warps, more = [*of_rows[:count], *terms[along:]], of_rows[count : count + 2], of_rows[count + 2 :]
    held = [*terms[:along], *more]
    writer.helpers.setdefault(
        name,
        f"{name} = gl.constexpr(gl.DistributedLinearLayout({held}, {lanes}, {warps}, [], [{width}, {rows}]))\n",
    )
    return name


class _Unpacking:
    def __init__(self, plan: UnpackingPlan, writer: Writer) -> None:
        if writer.interpreted:
            raise UnsupportedTile("form", "Triton's interpreter has no specialised warps")
        self.plan, self.writer, self.ring, self.product = plan, writer, plan.ring, plan.product
        self.main = open_frame(plan.view.kernel, writer, ())
        self.dtype = self.product.contraction.sides[0].dtype
        self.rows, self.columns = self.product.tiled.axes
        (self.share,) = plan.shares

    def written(self) -> Lines:
        lines, boxes, step = self.main.lines, self.product.boxes, self.plan.step
        computing, unpacking = self._computing(), self._unpacking()
        self.writer.has_descriptors = True
        lines.add(f"memory = {descriptor(boxes, boxes.buffer, boxes.extents(self.main), self.dtype)}")
        stages = self.plan.num_stages
        lines.add(allocated("rows", stages * GROUPS_EACH, (self.plan.group_rows, step), self.dtype))
        lines.add(allocated("columns", stages, (self.columns.size, step), self.dtype))
        for barriers in self.plan.barriers:
            add_barriers(lines, barriers)
        lines.add("fence_async_shared()")
        beside = ("rows", "columns", *(barriers.name for barriers in self.plan.barriers))
        given = arguments_of(self.plan.view.kernel)
        for name, arguments, own in (
            (COMPUTE, (*given, *beside), computing),
            (UNPACK, (*given, "memory", *beside), unpacking),
        ):
            add_function(self.writer, name, arguments, own, group=True)
        lines.add(
            partitioned(
                Partition(COMPUTE, (*given, *beside), REGISTERS[COMPUTE], GROUPS_EACH),
                Partition(UNPACK, (*given, "memory", *beside), REGISTERS[UNPACK], GROUPS_EACH),
            )
        )
        return lines

    def _rows_of(self, slot: str, group: str) -> str:
        """The block of a group's vectors in a slot."""
        return f"rows.index({slot} * {GROUPS_EACH} + {group})"

    # ---- the groups that unpack

    def _unpacking(self) -> Lines:
        function, steps = open_frame(self.plan.view.kernel, self.writer, ()), self.product.steps
        lines = function.lines
        lines.add("done = 0")  # steps of the tiles before
        frame, (row, column), header = opened_tile(function, lines, self.share, self.plan.group)
        wait, weights, text = self._unpacked(frame, column)
        own = frame.lines
        own.add(f"first = (group + done) % {GROUPS_EACH}")
        own.add(f"term = first * {self.plan.step}")
        for line in wait:
            own.add(line)
        body = Lines(self.writer, own)
        for line in weights:
            body.add(line)
        here = Place("slot", "phase")
        found = self.ring.place_of("place")
        body.add(f"place = done + number")
        body.add(f"{here.index} = {found.index}")
        body.add(f"{here.phase} = {found.phase}")
        body.add(f"begin = number * {self.plan.step}")
        body.add(f"term = gl.minimum(number + {GROUPS_EACH}, {steps - 1}) * {self.plan.step}")
        for line in wait:
            body.add(line)
        body.add(self.ring.await_empty(here.before))
        body.add(self.ring.expect(here.index, ITEMSIZE * self.plan.step * self.rows.size))
        for group in range(GROUPS_EACH):
            corner = (f"{row} + {group * self.plan.group_rows}", "begin")
            body.add(self.ring.fetch("memory", corner, here.index, self._rows_of(here.index, str(group))))
        body.add(f"columns.index({here.index}).store({text}.permute(1, 0))")
        body.add("fence_async_shared()")  # the tensor core reads it
        body.add(self.ring.stored(here.index))
        about = "weights of every other step, whose words are here, and words of the next one"
        own.extend(f"for number in range(first, {steps}, {GROUPS_EACH}):", body, about)
        own.add(f"done += {steps}")
        lines.extend(header, own)
        return lines

    def _unpacked(self, frame: Frame, column: str) -> tuple[list[str], list[str], str]:
        """The weights of a step from `term` on: the lines that load words, those that make numbers of them, and the
        block that these come to."""
        product, writer = self.product, self.writer
        writer.exact_bytes = writer.ptx
        weights = product.contraction.sides[1]
        choices, width = product.weights.written, product.width
        layout = pieces_layout(writer, width, self.columns.size)
        outer = Frame(frame.lines, (width, self.columns.size), outer=frame, layout=layout, words=("ks", "cols"))
        bind_axis(outer, self.columns, 1, column)
        body = Lines(writer, frame.lines)
        axis = Axis(product.weights.ranges, width)
        begin = body.name(f"term // {choices}", "start") if choices > 1 else "term"
        texts: dict[int, str] = {}
        for at, pieces in itertools.groupby(product.pieces, key=lambda piece: piece.start):
            start = body.name(f"{begin} + {at}", "start") if at else begin
            inside = frame_of_terms(outer, body, axis, 1, start)
            words = Words(product.weights, inside)
            for piece in pieces:
                texts[piece.place] = unpacked_block(weights, words, 0, piece.choice).text
        found = [texts[place] for place in sorted(texts)]
        while len(found) > 1:
            found = [self._side_by_side(body, *pair, width) for pair in zip(found[::2], found[1::2], strict=True)]
            width *= 2
        loads, others = parted(body.text)
        return loads, others, found[0]

    def _side_by_side(self, lines: Lines, one: str, other: str, width: int) -> str:
        """Two blocks of so many terms as one of twice as many."""
        return lines.name(f"gl.join({one}, {other}).permute(2, 0, 1).reshape({2 * width}, {self.columns.size})")

    # ---- the groups that multiply

    def _computing(self) -> Lines:
        lines, height, columns = Lines(self.writer), self.plan.group_rows, self.columns
        self.ring.begin(lines, fills=False)
        frame, starts, header = opened_tile(self.main, lines, self.share, self.plan.group)
        layout, total = sums_layout(self.writer, columns.size), self.writer.fresh("acc")
        frame.lines.add(f"{total} = gl.zeros([{height}, {columns.size}], gl.float32, {layout})")
        body, counter = Lines(self.writer, frame.lines), self.writer.fresh("k")
        other = f"columns.index({HERE.index}).permute((1, 0))"
        send_products(body, self.ring, (total,), self._rows_of(HERE.index, "group"), (other,), f"{counter} > 0")
        frame.lines.extend(f"for {counter} in range({self.product.steps}):", body, f"{self.plan.step} terms at a time")
        end_products(frame.lines, self.ring, (total,))
        self._finished(frame, starts, total)
        lines.extend(header, frame.lines)
        return lines

    def _finished(self, frame: Frame, starts: tuple[str, str], total: str) -> None:
        """Stores what becomes of the sums of a group's rows."""
        lines, height, (rows, columns) = frame.lines, self.plan.group_rows, self.product.tiled.axes
        row = lines.name(f"{starts[0]} + group * {height}", "start")
        ragged = columns.total % columns.size != 0
        own = replace(rows, size=height)
        sums = Sums((total,), "float32", own, (columns,), row, (starts[1],), "", ragged, counter="")
        layout = lambda size: sums_layout(self.writer, size)  # noqa: E731
        contractions = (self.product.contraction,)
        for block in stored_blocks(contractions, frame, lines, sums, self.plan.epilogue_parts, layout):
            for plain in self.product.tiled.kernel.plain:
                store_tile(block.frame, plain)


_WORD = re.compile(r"[A-Za-z_]\w*")


def parted(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Statements that each set variables: those that loads need, these among them, and the others."""
    needed: set[str] = set()
    loads, others = [], []
    for line in reversed(lines):
        names, _, text = line.partition(" = ")
        is_needed = "tl.load(" in text or not needed.isdisjoint(_WORD.findall(names))
        (loads if is_needed else others).append(line)
        needed.update(_WORD.findall(text) if is_needed else ())
    return loads[::-1], others[::-1]
