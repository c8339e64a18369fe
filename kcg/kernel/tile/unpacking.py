"""Products with packed weights by specialised warps, in Gluon: groups of warps unpack, others multiply.

Programs are persistent. Two groups unpack in turns: each loads words of the weights, makes numbers of 16 bits of them,
and stores these into a slot of a ring of shared memory, as the tensor core reads them; TMA brings the vectors' block
into the same slot. Two other groups, of half of the tile's rows each, multiply (as in `pipelined.py`). So the tensor
core has products to make while weights are unpacked: one program that does both in turn takes about as long as both
together.

Which numbers are made of which bits is written as for every product with packed weights (`unpack.py`). A turn has all
numbers that share bytes, of one slot or of several after each other. A thread takes neighbouring bytes apart: what it
makes of one byte at one choice among its numbers is a piece, and pieces become a slot's block without a move. A group
asks for the words of its next turn as soon as this one's weights are stored; the other one unpacks meanwhile.
"""

from __future__ import annotations

import math
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
from kcg.kernel.tile.gemm import GROUPS, MatmulPlan, check_axes, epilogue_s, swizzle_needs
from kcg.kernel.tile.gluon import (
    COMPUTE,
    Partition,
    add_function,
    allocated,
    arguments_of,
    descriptor,
    end_products,
    partitioned,
    send_products,
    sums_layout,
)
from kcg.kernel.tile.naming import words_of
from kcg.kernel.tile.parameters import TMA, UNPACKING, TileParameters
from kcg.kernel.tile.pipelined import LEAST_SIZE, SUSTAINED, opened_tile
from kcg.kernel.tile.plan import Barriers, Load, Loop, Need, Registers, Shared, Times, Way
from kcg.kernel.tile.ring import HERE, Ring, add_barriers
from kcg.kernel.tile.targets import most_specialized_stages
from kcg.kernel.tile.tiles import Axis, bind_axis, count_of, open_frame
from kcg.kernel.tile.unpack import WideWords, Words
from kcg.kernel.tile.views import MIN_TILE, MatmulView
from kcg.types import Target

TILES = ((256, 128), (128, 128))
"""Vectors and weights' rows: the more vectors, the less often a weight is unpacked."""
STEP = 64  # terms of a slot: 128 bytes, as far as TMA spreads a row over shared memory's banks
TURNS = (64, 128, 256)  # terms that a group unpacks at once: whole runs of those that share bytes
STAGES = (2, 3, 4)
ITEMSIZE = 2  # of a number as it is multiplied
GROUPS_EACH = 2  # groups of four warps that multiply, and as many that unpack
UNPACK, PIECES = "unpack", "pieces"
REGISTERS = 256  # of a thread that multiplies and of one that unpacks together: all that there are
BESIDE = 32  # registers of a thread that multiplies beside its sums: with 24 all of these were spilled
ALONG = 16  # neighbouring terms that a thread unpacks: 16 bytes, one load where they are aligned
LANE_BITS = 5  # of a thread's number in its warp
LEAST_VECTORS = 64
INSTRUCTIONS = 6  # of a weight that is unpacked, by count of four formats: 4.8 to 9
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
        if not kernel.is_product or kernel.one_hot_sums:
            return False
        view = MatmulView.of(kernel)
        return unpacks(view.contraction) and _may_unpack(view, target)

    def preference(self, view: MatmulView, target: Target) -> int:
        return -1  # a search compares it

    def axes(self, view: MatmulView) -> tuple[Axes, ...]:
        return (_axes(view.contraction),)

    def start(self, view: MatmulView, target: Target, axes: Axes) -> TileParameters:
        made = _first(view, target, axes)
        if made is None:
            raise UnsupportedTile("form", "no turn of warps that unpack has whole runs of terms")
        return replace(made, fast_math=not keeps_small(view.kernel, target))

    def steps(self, view: MatmulView) -> tuple[int, ...]:
        return (STEP,)

    def check(self, view: MatmulView, p: TileParameters) -> None:
        check_axes(p)
        if p.tile not in TILES or p.reduce_tile != STEP or p.loads != TMA or p.num_warps != 4 or p.persistent != 1:
            raise UnsupportedTile("form", f"tiles {TILES}, {STEP} terms, 4 warps a group, TMA, tiles in turn")

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
    """As many vectors as there are, and the stages that shared memory holds; None where there is no such program."""
    tile = TILES[0] if count_of(view.kernel, axes[0]) > TILES[-1][0] else TILES[-1]
    found = _unpacking(view, axes, tile, STEP)
    if isinstance(found, UnsupportedTile):
        return None
    steps, most = view.kernel.reduce_extent // STEP, device_of(target).shared_bytes
    stages = [n for n in STAGES if _nbytes(tile, STEP, n) <= most and len(found.parts) < n <= steps]
    if not stages:
        return None
    return TileParameters(
        UNPACKING, axes, tile, reduce_tile=STEP, loads=TMA, persistent=1, num_warps=4, num_stages=stages[-1],
        group=4 if found.tiled.counts[0] > 4 else 1,
    )  # fmt: skip


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
    """Terms of a turn that are made alike: the number of the first among those of one choice, the choice, and the place
    of each among all terms of the turn."""

    start: int
    choice: int
    places: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class UnpackingProduct:
    """A product, how blocks of its vectors lie in memory, and what a turn of its weights is made of."""

    tiled: TiledProduct
    contraction: Contraction  # the vectors first
    boxes: Boxes  # of the vectors: those of a group
    weights: Unpacked
    parts: tuple[tuple[Piece, ...], ...]  # the pieces of each slot, by their first places

    @cached_property
    def turns(self) -> int:
        """Of the loop over terms."""
        return self.tiled.view.kernel.reduce_extent // (len(self.parts) * STEP)

    @property
    def height(self) -> int:
        """Terms of a piece."""
        return len(self.parts[0][0].places)


@lru_cache(1024)
def _unpacking(view: MatmulView, axes: Axes, tile: tuple[int, ...], step: int) -> UnpackingProduct | UnsupportedTile:
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
    if any(factor.gate for factor in weights.factors):
        raise UnsupportedTile("form", "weights under a condition")
    factors = [[factor.node for factor in side.factors] for side in contraction.sides]
    for turn in TURNS:
        if reduced.total % turn == 0 and reduced.total >= GROUPS_EACH * turn:
            (of_vectors, of_weights), height = written_out(factors, reduced.ranges, turn, MIN_TILE, ALONG)
            if parts := _parts(of_vectors, height, turn):
                return UnpackingProduct(tiled, contraction, boxes, of_weights, parts)
    raise UnsupportedTile("reduce_tile", "no turn has whole runs of terms")


def _alone(products: tuple[TiledProduct, ...]) -> tuple[TiledProduct, ...]:
    if len(products) > 1:
        raise UnsupportedTile("form", "warps that unpack make one product a launch")
    return products


def _parts(vectors: Unpacked, height: int, turn: int) -> tuple[tuple[Piece, ...], ...]:
    """The pieces of each slot of a turn, so many terms each, by the places of these in the vectors; none where a turn's
    terms do not lie beside each other, since TMA loads them as blocks."""
    along = turn // vectors.written
    steps = [vectors.loads[_load(term)].steps or {} for term in vectors.terms]
    first = steps[0].get(None, 0)
    total = math.prod(map(extent, vectors.ranges))
    if not along or any(_place(vectors, steps[0], at) != at * vectors.written for at in range(0, total, along)):
        return ()
    found = [
        Piece(at, choice, tuple(one.get(None, 0) - first + _place(vectors, one, at + n) for n in range(height)))
        for at in range(0, along, height)
        for choice, one in enumerate(steps)
    ]
    found.sort(key=lambda piece: piece.places)
    parts = tuple(tuple(p for p in found if p.places[0] // STEP == n) for n in range(turn // STEP))
    return parts if all(_is_whole(part, n * STEP) for n, part in enumerate(parts)) else ()


def _is_whole(part: Sequence[Piece], begin: int) -> bool:
    """Whether pieces have all terms of a slot, each by some bits of its place: see `_joined`."""
    if sorted(place for piece in part for place in piece.places) != list(range(begin, begin + STEP)):
        return False
    inside = _bits_inside(part)
    others = [bit for bit in range(STEP.bit_length() - 1) if bit not in inside]
    return all(
        place - begin == _spread(number, others) + _spread(n, inside)
        for number, piece in enumerate(part)
        for n, place in enumerate(piece.places)
    )


def _bits_inside(part: Sequence[Piece]) -> list[int]:
    """Which bits of a place say which term of its piece it is, the lowest first."""
    first, *others = part[0].places
    return [(others[(1 << n) - 1] - first).bit_length() - 1 for n in range(len(others).bit_length())]


def _spread(number: int, bits: Sequence[int]) -> int:
    """A number whose bits stand at some places."""
    return sum((number >> n & 1) << bit for n, bit in enumerate(bits) if bit >= 0)


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

    @property
    def register_shares(self) -> tuple[int, int]:
        """Registers of a thread that multiplies, and of one that unpacks."""
        own = self.sums // (GROUPS_EACH * self.threads) + BESIDE
        return own, REGISTERS - own

    def registers(self, device: Device) -> Registers:
        """Of a thread that multiplies."""
        return Registers(self.register_shares[0] - BESIDE, self.register_shares[0], 1)

    def needs(self, device: Device) -> Iterator[Need]:
        yield Need("shared memory", self.shared_bytes, device.shared_bytes)
        yield Need("stages", self.num_stages, self.loop.steps)
        yield Need("slots of a turn, and one", len(self.product.parts) + 1, self.num_stages)
        yield from swizzle_needs(self.group, *self.products[0].counts)

    def times(self, target: Target, figures: Figures) -> Times:
        """Turns of a tile each, whose steps take as long as the tensor core or those who unpack, whoever takes
        longer."""
        f, counts = figures, self.counts
        turns = -(-math.prod(counts) // target.cores)
        clock = f.tensor_ops / (2 * f.products_a_clock)
        product_s = 2 * self.area * self.step / (SUSTAINED * f.tensor_ops)
        unpack_s = INSTRUCTIONS * self.tile[1] * self.step / (ISSUED * f.plain_a_clock * clock)
        opening_s = f.opening_s + f.fill_s + f.descriptors_s
        tile_s = self.loop.steps * max(product_s, unpack_s) + epilogue_s(self, f)
        return Times((opening_s + turns * tile_s, self._traffic(target.cache_bytes) / f.memory_bytes))

    def _traffic(self, cache_bytes: int) -> float:
        """Bytes from and to memory. Each group of rows of tiles asks for all weights again, of which L2 holds what is
        left beside what is asked for in between, as `traffic_of` has it of other products."""
        held = {b.slot: b.size * int(b.dtype.itemsize) for b in self.view.kernel.buffers}
        words = sum(held[slot] for slot in self.product.weights.slots)
        again = -(-self.counts[0] // self.group) - 1
        return sum(held.values()) + again * words * min(1.0, max(0.0, 2 * words / max(1, cache_bytes) - 1))


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


def pieces_layout(height: int, rows: int, neighbours: int = 0, *, of_rows: bool = False) -> str:
    """How pieces of the weights lie with the threads of a group, so many terms of so many rows: a thread has one of the
    terms, and threads side by side have rows beside each other, which lie in different banks of shared memory. Of what
    it loads at once a thread has so many neighbours. `of_rows`: blocks of rows alone."""
    zeros = [0] * bool(neighbours)
    terms = [[0 if of_rows else 1 << bit, 0, *zeros] for bit in range(height.bit_length() - 1)]
    bits = [[0, 1 << bit, *zeros] for bit in range(rows.bit_length() - 1)]
    held = [[0, 0, 1 << bit] for bit in range(neighbours.bit_length() - 1)] if neighbours else []
    count = LANE_BITS - len(terms)  # bits of a lane's number that say its row
    lanes, warps, more = [*bits[:count], *terms], bits[count : count + 2], bits[count + 2 :]
    sizes = [1 if of_rows else height, rows, *([neighbours] if neighbours else [])]
    return f"gl.DistributedLinearLayout({[*held, *more]}, {lanes}, {warps}, [], {sizes})"


class _Pieces(WideWords):
    """The words of a piece's rows."""

    def _wide_layout(self, axes: frozenset[int], count: int) -> str:
        height, rows = self.frame.sizes
        return pieces_layout(height, rows, count, of_rows=0 not in axes)


class _Unpacking:
    """A group waits for every other turn's slots alone. Of a barrier it sees the phase's parity, by which it would take
    the round before the last for the last one: since slots are given back in order, and it waited for its turn before,
    that round is over once a ring has more slots than a turn (`needs`)."""

    def __init__(self, plan: UnpackingPlan, writer: Writer) -> None:
        if writer.interpreted:
            raise UnsupportedTile("form", "Triton's interpreter has no specialised warps")
        self.plan, self.writer, self.ring, self.product = plan, writer, plan.ring, plan.product
        self.main = open_frame(plan.view.kernel, writer, ())
        self.dtype = self.product.contraction.sides[0].dtype
        self.rows, self.columns = self.product.tiled.axes
        (self.share,) = plan.shares

    def written(self) -> Lines:
        lines, boxes = self.main.lines, self.product.boxes
        computing, unpacking = self._computing(), self._unpacking()
        self.writer.has_descriptors = True
        lines.add(f"memory = {descriptor(boxes, boxes.buffer, boxes.extents(self.main), self.dtype)}")
        stages = self.plan.num_stages
        lines.add(allocated("rows", stages * GROUPS_EACH, (self.plan.group_rows, STEP), self.dtype))
        lines.add(allocated("columns", stages, (self.columns.size, STEP), self.dtype))
        for barriers in self.plan.barriers:
            add_barriers(lines, barriers)
        lines.add("fence_async_shared()")
        beside = ("rows", "columns", *(barriers.name for barriers in self.plan.barriers))
        given = arguments_of(self.plan.view.kernel)
        add_function(self.writer, COMPUTE, (*given, *beside), computing, group=True)
        add_function(self.writer, UNPACK, (*given, "memory", *beside), unpacking, group=True)
        own, others = self.plan.register_shares
        lines.add(
            partitioned(
                Partition(COMPUTE, (*given, *beside), own, GROUPS_EACH),
                Partition(UNPACK, (*given, "memory", *beside), others, GROUPS_EACH),
            )
        )
        return lines

    def _rows_of(self, slot: str, group: str) -> str:
        """The block of a group's vectors in a slot."""
        return f"rows.index({slot} * {GROUPS_EACH} + {group})"

    # ---- the groups that unpack

    def _unpacking(self) -> Lines:
        function, product = open_frame(self.plan.view.kernel, self.writer, ()), self.product
        lines, turns, count = function.lines, product.turns, len(product.parts)
        lines.add("done = 0")  # turns of the tiles before
        frame, (row, column), header = opened_tile(function, lines, self.share, self.plan.group)
        parts, waiting = self._unpacked(frame, column)
        own, body = frame.lines, Lines(self.writer, frame.lines)
        own.add(f"first = (group + done) % {GROUPS_EACH}")
        own.add(f"term = first * {count * STEP}")
        own.text += waiting
        for number, (text, made) in enumerate(parts):
            body.text += made
            body.add(f"place = (done + number) * {count} + {number}")
            body.add(f"begin = number * {count * STEP} + {number * STEP}")
            self._opened(body, row)
            body.add(f"columns.index({HERE.index}).store({text})")
            body.add("fence_async_shared()")  # the tensor core reads it
            body.add(self.ring.stored(HERE.index))
        body.add(f"term = gl.minimum(number + {GROUPS_EACH}, {turns - 1}) * {count * STEP}")
        body.text += waiting
        about = "every other turn, of which the words are here, and words of the next one"
        own.extend(f"for number in range(first, {turns}, {GROUPS_EACH}):", body, about)
        own.add(f"done += {turns}")
        lines.extend(header, own)
        return lines

    def _opened(self, body: Lines, row: str) -> None:
        """Waits for the slot of a `place` among all steps; TMA brings the vectors' terms from where they `begin`."""
        found = self.ring.place_of("place")
        body.add(f"{HERE.index} = {found.index}")
        body.add(f"{HERE.phase} = {found.phase}")
        body.add(self.ring.await_empty(HERE.before))
        body.add(self.ring.expect(HERE.index, ITEMSIZE * STEP * self.rows.size))
        for group in range(GROUPS_EACH):
            corner = (f"{row} + {group * self.plan.group_rows}", "begin")
            body.add(self.ring.fetch("memory", corner, HERE.index, self._rows_of(HERE.index, str(group))))

    def _unpacked(self, frame: Frame, column: str) -> tuple[list[tuple[str, list[str]]], list[str]]:
        """The weights of a turn from `term` on: the block of each slot and the lines that make it; and those that load
        words."""
        product, writer, sides = self.product, self.writer, self.product.contraction.sides
        writer.exact_bytes = writer.ptx
        choices, sizes = product.weights.written, (product.height, self.columns.size)
        writer.helpers[PIECES] = f"{PIECES} = gl.constexpr({pieces_layout(*sizes)})\n"
        outer = Frame(frame.lines, sizes, outer=frame, layout=PIECES, words=("ks", "cols"))
        bind_axis(outer, self.columns, 1, column)
        body = Lines(writer, frame.lines)
        axis = Axis(product.weights.ranges, product.height)
        begin = body.name(f"term // {choices}", "start") if choices > 1 else "term"
        words: dict[int, Words] = {}
        parts, ends = [], []
        for part in product.parts:
            blocks = []
            for piece in part:
                if piece.start not in words:
                    start = body.name(f"{begin} + {piece.start}", "start") if piece.start else begin
                    words[piece.start] = _Pieces(product.weights, frame_of_terms(outer, body, axis, 1, start))
                blocks.append(unpacked_block(sides[1], words[piece.start], 0, piece.choice).text)
            parts.append(self._joined(body, part, blocks))
            ends.append(len(body.text))
        loads = needed_by_loads(body.text)
        waiting = [line for line, is_load in zip(body.text, loads, strict=True) if is_load]
        made = [
            [body.text[n] for n in range(first, end) if not loads[n]]
            for first, end in zip([0, *ends], ends, strict=False)
        ]
        return list(zip(parts, made, strict=True)), waiting

    def _joined(self, lines: Lines, part: Sequence[Piece], blocks: Sequence[str]) -> str:
        """The pieces of a slot as a block of rows by terms. Every bit of a place is an axis of its own first: those
        inside of a piece, the rows, and those of the pieces' numbers."""
        found, rows, inside = list(blocks), self.columns.size, _bits_inside(part)
        while len(found) > 1:
            found = [lines.name(f"gl.join({a}, {b})") for a, b in zip(found[::2], found[1::2], strict=True)]
        others = [bit for bit in range(STEP.bit_length() - 1) if bit not in inside]
        order = [*reversed(inside), None, *others]
        sizes = [rows if bit is None else 2 for bit in order]
        places = [order.index(None), *(order.index(bit) for bit in reversed(range(STEP.bit_length() - 1)))]
        text = f"{found[0]}.reshape({sizes}).permute({places}).reshape([{rows}, {STEP}])"
        return lines.name(text, "weights")

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
        steps = self.product.turns * len(self.product.parts)
        frame.lines.extend(f"for {counter} in range({steps}):", body, f"{STEP} terms at a time")
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
        behind = rows.total % rows.size and not rows.total % height  # a group has no row: no mask says so
        for block in stored_blocks(contractions, frame, lines, sums, self.plan.epilogue_parts, layout):
            if behind:
                block.frame.lines = Lines(self.writer, lines)
            for plain in self.product.tiled.kernel.plain:
                store_tile(block.frame, plain)
            if behind:
                lines.extend(f"if {row} < {rows.total}:", block.frame.lines)


def needed_by_loads(lines: Sequence[str]) -> list[bool]:
    """Of statements that each set variables whether loads need them; loads do."""
    needed: set[str] = set()
    found = []
    for line in reversed(lines):
        names, _, text = line.partition(" = ")
        found.append("tl.load(" in text or not needed.isdisjoint(words_of(names)))
        needed.update(words_of(text) if found[-1] else ())
    return found[::-1]
