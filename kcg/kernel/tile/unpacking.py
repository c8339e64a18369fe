"""Products with packed weights by specialised warps, in Gluon: groups of warps unpack, others multiply.

Programs are persistent. Two groups unpack in turns: each takes words of the weights apart, makes numbers of 16 bits of
them, and stores these into a slot of a ring of shared memory, as the tensor core reads them; TMA brings the vectors'
block into the same slot. Two other groups, of half of the tile's rows each, multiply (as in `pipelined.py`). So the
tensor core has products to make while weights are unpacked: one program that does both in turn takes about as long as
both together.

Which numbers are made of which bits is written as for every product with packed weights (`unpack.py`). A turn has all
numbers that share bytes, of one slot or of several after each other, and a thread makes those of a row. The bytes of
each row come by TMA as well, into two buffers of a group's own: it asks for those of its next turn before it takes
this one's apart. TMA begins at any byte, so words are aligned in shared memory whatever the size of a block of weights
is, and rows far from each other cost no cycles of the L1 cache: loads through registers took most of them.
"""

from __future__ import annotations

import itertools
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
from kcg.kernel.reading.packed import WORD_BYTES, Unpacked, written_out
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
from kcg.kernel.tile.descriptors import ALIGNED, Boxes
from kcg.kernel.tile.device import Device, Figures, device_of
from kcg.kernel.tile.emit import Block, Frame, Lines, Writer
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
    descriptor_of,
    end_products,
    partitioned,
    send_products,
    shared_layout,
    sums_layout,
)
from kcg.kernel.tile.packed_rows import PackedRows, RowBytes, packed_rows
from kcg.kernel.tile.parameters import TMA, UNPACKING, TileParameters
from kcg.kernel.tile.pipelined import LEAST_SIZE, SUSTAINED, opened_tile
from kcg.kernel.tile.plan import Barriers, Loop, Need, Registers, Shared, Times
from kcg.kernel.tile.ring import HERE, Place, Ring, add_barriers
from kcg.kernel.tile.targets import most_specialized_stages
from kcg.kernel.tile.tiles import Axis, count_of, open_frame
from kcg.kernel.tile.unpack import Words, from_byte
from kcg.kernel.tile.views import MatmulView
from kcg.types import Target

TILES = ((256, 128), (128, 128))
"""Vectors and weights' rows: the more vectors, the less often a weight is unpacked."""
STEP = 64  # terms of a slot: 128 bytes, as far as TMA spreads a row over shared memory's banks
TURNS = (64, 128, 256)  # terms that a group unpacks at once: whole runs of those that share bytes
STAGES = (2, 3, 4)
ITEMSIZE = 2  # of a number as it is multiplied
GROUPS_EACH = 2  # groups of four warps that multiply, and as many that unpack
UNPACK, OF_ROWS, ARRIVED, USED, AS_WORDS = "unpack", "of_rows", "arrived", "used", "as_words"
_AS_WORDS = """
as_words = getattr(gl.shared_memory_descriptor, "reinterpret", None) or gl.shared_memory_descriptor._reinterpret
"""
REGISTERS = 256  # of a thread that multiplies and of one that unpacks together: all that there are
BESIDE = 32  # registers of a thread that multiplies beside its sums: with 24 all of these were spilled
BUFFERS = 2  # of words: one of each group that unpacks, or of each of two turns
ASKING = 0  # the group that asks for words that both take
ALONG = 64  # neighbouring terms that a thread unpacks: all of a row's
LANE_BITS = 5  # of a thread's number in its warp
LEAST_VECTORS = 64
INSTRUCTIONS = 6  # of a weight that is unpacked, by count of four formats: 5 to 8
ISSUED = 0.23
"""Of a multiprocessor's instructions that eight warps issue, each of which waits for its own: 117 to 142 us of eight
formats on NVIDIA H200s (512 vectors, 14,336 rows of 4,096), 128 by this."""


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
    stages = [n for n in STAGES if _nbytes(tile, STEP, n, found.rows) <= most and n <= steps]
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


@dataclass(frozen=True, eq=False)
class UnpackingProduct:
    """A product, how blocks of its vectors and of its weights lie in memory, and what a turn of these is made of."""

    tiled: TiledProduct
    contraction: Contraction  # the vectors first
    boxes: Boxes  # of the vectors: those of a group
    weights: Unpacked
    rows: PackedRows
    parts: tuple[tuple[int, ...], ...]  # of each slot which of the turn's terms are in it, in their order

    @property
    def is_shared(self) -> bool:
        """Whether each turn has slots for both groups that unpack, which need the same words then."""
        return len(self.parts) > 1

    @cached_property
    def turns(self) -> int:
        """Of the loop over terms."""
        return self.tiled.view.kernel.reduce_extent // (len(self.parts) * STEP)


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
            (of_vectors, of_weights), _ = written_out(factors, reduced.ranges, turn, 1, ALONG)
            if parts := _parts(of_vectors, turn):
                packed = packed_rows(of_weights, tiled.axes[1])
                return UnpackingProduct(tiled, contraction, boxes, of_weights, packed, parts)
    raise UnsupportedTile("reduce_tile", "no turn has whole runs of terms")


def _alone(products: tuple[TiledProduct, ...]) -> tuple[TiledProduct, ...]:
    if len(products) > 1:
        raise UnsupportedTile("form", "warps that unpack make one product a launch")
    return products


def _parts(vectors: Unpacked, turn: int) -> tuple[tuple[int, ...], ...]:
    """Which terms of a turn each slot has, by their places in the vectors; none where a turn's terms do not lie beside
    each other, since TMA loads them as blocks, or are not all written out."""
    if vectors.written != turn:
        return ()
    steps = [vectors.loads[_load(term)].steps or {} for term in vectors.terms]
    along = {axis: step for axis, step in steps[0].items() if axis is not None}
    if any({axis: step for axis, step in one.items() if axis is not None} != along for one in steps):
        return ()
    if any(_place(vectors, along, at) != at * turn for at in range(math.prod(map(extent, vectors.ranges)))):
        return ()
    first = min(one.get(None, 0) for one in steps)
    places = [one.get(None, 0) - first for one in steps]
    if sorted(places) != list(range(turn)):
        return ()
    ordered = sorted(range(turn), key=places.__getitem__)
    return tuple(tuple(ordered[n : n + STEP]) for n in range(0, turn, STEP))


def _load(term: UOp) -> UOp:
    """The only load of a term of the vectors."""
    (node,) = term.src
    if node.op is not Ops.INDEX:
        raise UnsupportedTile("form", "vectors that are computed")
    return node


def _place(unpacked: Unpacked, steps: Mapping[UOp | None, int], number: int) -> int:
    """Where the terms of a turn begin, by its number, in memory, from the first turn on."""
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
        of_words = (self.words.of_full, self.words.of_empty) if self.product.is_shared else (self.words.of_full,)
        return self.ring.of_full, self.ring.of_empty, *of_words

    @property
    def words(self) -> Ring:
        """Of words of a turn, which TMA brings: a group's own, or those of the next two turns."""
        return Ring(ARRIVED, USED, BUFFERS, GROUPS_EACH)

    @property
    def shared(self) -> tuple[Shared, ...]:
        return _shared(self.tile, self.step, self.num_stages, self.product.rows)

    @property
    def shared_bytes(self) -> int:
        return _nbytes(self.tile, self.step, self.num_stages, self.product.rows)

    @property
    def by_tma(self) -> tuple[Access, ...]:
        return self.view.kernel.loads

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


def _shared(tile: Sequence[int], step: int, stages: int, packed: PackedRows) -> tuple[Shared, ...]:
    """The ring, words, and what the compiler takes."""
    rows, columns = tile
    return (
        Shared("rows", ITEMSIZE * step * rows // GROUPS_EACH, stages * GROUPS_EACH),
        Shared("columns", ITEMSIZE * step * columns, stages),
        *(Shared(_name(n), nbytes * columns, BUFFERS) for n, nbytes in enumerate(packed.boxes)),
        Shared("the compiler's", COMPILER_BYTES),
    )


def _nbytes(tile: Sequence[int], step: int, stages: int, packed: PackedRows) -> int:
    return sum(block.nbytes * block.count for block in _shared(tile, step, stages, packed))


def _name(number: int) -> str:
    """Of a box's buffers in shared memory."""
    return f"bytes{number}"


def _memory(number: int) -> str:
    """Of a box's descriptor."""
    return f"packed{number}"


# ---- the program


def rows_layout(rows: int, words: int = 1) -> str:
    """How blocks of rows, with so many words of each, lie with the threads of a group: a thread has all of a row."""
    held = [[0, 1 << bit] for bit in range(words.bit_length() - 1)]
    bits = [[1 << bit, 0] for bit in range(rows.bit_length() - 1)]
    lanes, warps, more = bits[:LANE_BITS], bits[LANE_BITS : LANE_BITS + 2], bits[LANE_BITS + 2 :]
    return f"gl.DistributedLinearLayout({[*held, *more]}, {lanes}, {warps}, [], {[rows, words]})"


class _RowWords(Words):
    """The words of a turn, of which TMA brought those of each row to shared memory."""

    def __init__(self, product: UnpackingProduct, frame: Frame, held: Sequence[Sequence[str]]) -> None:
        """`held` are the words of each part, of four bytes."""
        super().__init__(product.weights, frame)
        self.rows, self.held = product.rows, held

    def _load_words(self) -> None:
        for word in self.unpacked.words:
            part, first = self.rows.places[word]
            text, bits = self.held[part][first // WORD_BYTES], 8 * (first % WORD_BYTES)
            text = f"{text} >> {bits}" if bits else text
            block = Block(self.frame.lines.name(text, "word") if bits else text, "uint32", frozenset({0}))
            self.words[word] = self._down(self.frame.cast(block, f"uint{8 * word.nbytes}"), word.moved)


class _Unpacking:
    """A group waits for every other slot alone. Of a barrier it sees the phase's parity, by which it would take the
    round before the last for the last one: since slots are given back in order, and it waited for the one before the
    last, that round is over."""

    def __init__(self, plan: UnpackingPlan, writer: Writer) -> None:
        if writer.interpreted:
            raise UnsupportedTile("form", "Triton's interpreter has no specialised warps")
        self.plan, self.writer, self.ring, self.product = plan, writer, plan.ring, plan.product
        self.main = open_frame(plan.view.kernel, writer, ())
        self.dtype = self.product.contraction.sides[0].dtype
        self.rows, self.columns = self.product.tiled.axes
        self.words = plan.words
        (self.share,) = plan.shares

    def written(self) -> Lines:
        lines, boxes = self.main.lines, self.product.boxes
        computing, unpacking = self._computing(), self._unpacking()
        self.writer.has_descriptors = True
        lines.add(f"memory = {descriptor(boxes, boxes.buffer, boxes.extents(self.main), self.dtype)}")
        stages = self.plan.num_stages
        lines.add(allocated("rows", stages * GROUPS_EACH, (self.plan.group_rows, STEP), self.dtype))
        lines.add(allocated("columns", stages, (self.columns.size, STEP), self.dtype))
        of_words = self.product.rows.boxes
        numbers = range(len(of_words))
        for number, nbytes in enumerate(of_words):
            lines.add(f"{_memory(number)} = {self._described(nbytes)}")
            lines.add(allocated(_name(number), BUFFERS, (self.columns.size, nbytes), dtypes.uint8))
        for barriers in self.plan.barriers:
            add_barriers(lines, barriers)
        lines.add("fence_async_shared()")
        beside = ("rows", "columns", *(barriers.name for barriers in self.plan.barriers))
        given = arguments_of(self.plan.view.kernel)
        more = ("memory", *map(_memory, numbers), *map(_name, numbers))
        add_function(self.writer, COMPUTE, (*given, *beside), computing, group=True)
        add_function(self.writer, UNPACK, (*given, *more, *beside), unpacking, group=True)
        own, others = self.plan.register_shares
        lines.add(
            partitioned(
                Partition(COMPUTE, (*given, *beside), own, GROUPS_EACH),
                Partition(UNPACK, (*given, *more, *beside), others, GROUPS_EACH),
            )
        )
        return lines

    def _described(self, nbytes: int) -> str:
        """What makes the descriptor of boxes of so many bytes of each row."""
        packed = self.product.rows
        pointer = f"{self.main.buffer(packed.slot)}.to(tl.pointer_type(tl.uint8))"
        pointer = f"{pointer} + {packed.start}" if packed.start else pointer
        sizes = (self.columns.size, nbytes)
        return descriptor_of(
            pointer, (str(self.columns.total), str(packed.used)), (packed.pitch, 1), sizes, dtypes.uint8
        )

    def _rows_of(self, slot: str, group: str) -> str:
        """The block of a group's vectors in a slot."""
        return f"rows.index({slot} * {GROUPS_EACH} + {group})"

    # ---- the groups that unpack

    def _unpacking(self) -> Lines:
        function = open_frame(self.plan.view.kernel, self.writer, ())
        lines = function.lines
        lines.add("done = 0")  # turns of the tiles before
        if not self.product.is_shared:
            lines.add("taken = 0")  # of them by this group
        frame, (row, column), header = opened_tile(function, lines, self.share, self.plan.group)
        (self._together if self.product.is_shared else self._in_turns)(frame, row, column)
        frame.lines.add(f"done += {self.product.turns}")
        lines.extend(header, frame.lines)
        return lines

    def _in_turns(self, frame: Frame, row: str, column: str) -> None:
        """Each group makes the slot of every other turn, of which it asks for the words itself."""
        own, body, turns = frame.lines, Lines(self.writer, frame.lines), self.product.turns
        own.add(f"first = (group + done) % {GROUPS_EACH}")
        self._asked(frame, own, column, "first", "group")
        body.add(self.words.await_full(Place("group", "taken & 1")))
        body.add("taken += 1")
        held = self._held(frame, body, "group")
        body.add("fence_async_shared()")  # TMA brings others where these were
        body.add(f"more = number + {GROUPS_EACH} < {turns}")
        self._asked(frame, body, column, f"number + {GROUPS_EACH}", "group", "more")
        self._add_slot(frame, body, held, row, 0)
        own.extend(f"for number in range(first, {turns}, {GROUPS_EACH}):", body, "every other turn")

    def _together(self, frame: Frame, row: str, column: str) -> None:
        """Both groups make slots of each turn, one after the other in turns, of words that the first group asks for."""
        own, body, turns = frame.lines, Lines(self.writer, frame.lines), self.product.turns
        for number in range(BUFFERS):
            own.extend(f"if group == {ASKING}:", self._asked_when_read(frame, own, column, str(number)))
        body.add("turn = done + number")
        place = self.words.place_of("turn")
        body.add(f"held = {place.index}")
        body.add(self.words.await_full(Place("held", place.phase)))
        held = self._held(frame, body, "held")
        body.add("fence_async_shared()")  # TMA brings others where these were
        body.add(self.words.give_back("held"))
        for group in range(GROUPS_EACH):
            inside = Lines(self.writer, body)
            for number in range(group, len(self.product.parts), GROUPS_EACH):
                self._add_slot(frame, inside, held, row, number)
            body.extend(f"if group == {group}:", inside)
        body.add(f"more = number + {BUFFERS} < {turns}")
        asking = self._asked_when_read(frame, body, column, f"number + {BUFFERS}", "more")
        body.extend(f"if group == {ASKING}:", asking)
        own.extend(f"for number in range({turns}):", body)

    def _add_slot(self, frame: Frame, body: Lines, held: Sequence[Sequence[str]], row: str, number: int) -> None:
        """Makes a slot of the turn `number`, of words that are `held`, beside the vectors that TMA brings."""
        count, made = len(self.product.parts), Lines(self.writer, body)
        text = self._unpacked(frame, made, held, self.product.parts[number])
        body.text += made.text
        body.add(f"place = (done + number) * {count} + {number}")
        body.add(f"begin = number * {count * STEP} + {number * STEP}")
        self._opened(body, row)
        body.add(f"columns.index({HERE.index}).store({text})")
        body.add("fence_async_shared()")  # the tensor core reads it
        body.add(self.ring.stored(HERE.index))

    def _asked_when_read(self, frame: Frame, outer: Lines, column: str, turn: str, only: str = "") -> Lines:
        """The lines that ask for the words of a turn, once both groups have read what was in their buffer."""
        lines = Lines(self.writer, outer)
        lines.add(f"asked = done + {turn}")
        place = self.words.place_of("asked")
        lines.add(f"into = {place.index}")
        lines.add(self.words.await_empty(Place("into", place.phase).before, only))
        self._asked(frame, lines, column, turn, "into", only)
        return lines

    def _asked(self, frame: Frame, lines: Lines, column: str, turn: str, buffer: str, only: str = "") -> None:
        """Asks for the words of a turn; `only` under a condition. Of a group's own buffer the compiler has all of the
        group wait until each has read what was there."""
        packed, numbers = self.product.rows, itertools.count()
        inside = self._at(frame, lines, lines.name(turn, "turn"))
        lines.add(self.words.expect(buffer, packed.nbytes * self.columns.size, only))
        for part in packed.parts:
            begin = self._begin(inside, lines, part)
            if part.aligned < ALIGNED:
                begin = lines.name(f"{begin} & {-ALIGNED}", "byte")
            for offset, number in zip(itertools.accumulate(part.boxes[:-1], initial=0), numbers, strict=False):
                corner = (column, f"{begin} + {offset}" if offset else begin)
                lines.add(self.words.fetch(_memory(number), corner, buffer, f"{_name(number)}.index({buffer})", only))

    def _begin(self, inside: Frame, lines: Lines, part: RowBytes) -> str:
        """Where the bytes of a part begin in a row."""
        terms = [f"{inside.value(axis).text} * {step}" for axis, step in part.steps]
        return lines.name(" + ".join([*terms, *([str(part.first)] if part.first or not terms else [])]), "byte")

    def _at(self, frame: Frame, lines: Lines, turn: str) -> Frame:
        """Where a turn's terms begin is known, and each thread has a row."""
        return frame_of_terms(self._of_rows(frame), lines, Axis(self.product.weights.ranges, 1), 0, turn)

    def _of_rows(self, frame: Frame) -> Frame:
        sizes = (self.columns.size, 1)
        self.writer.helpers[OF_ROWS] = f"{OF_ROWS} = gl.constexpr({rows_layout(self.columns.size)})\n"
        return Frame(frame.lines, sizes, outer=frame, layout=OF_ROWS, words=("cols", "ks"))

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

    def _unpacked(self, frame: Frame, made: Lines, held: Sequence[Sequence[str]], part: Sequence[int]) -> str:
        """The block of a slot of the turn `number`, made of the words of each part of a row."""
        side = self.product.contraction.sides[1]
        self.writer.exact_bytes = self.writer.ptx
        words = _RowWords(self.product, self._at(frame, made, "number"), held)
        return self._joined(made, [unpacked_block(side, words, 1, choice).text for choice in part])

    def _held(self, frame: Frame, lines: Lines, buffer: str) -> list[list[str]]:
        """The words of each part of a row and the turn `number`, as blocks of rows."""
        inside, numbers, found = self._at(frame, lines, "number"), itertools.count(), []
        for part in self.product.rows.parts:
            words = [word for nbytes in part.boxes for word in self._words_of(lines, next(numbers), nbytes, buffer)]
            if part.aligned < ALIGNED:
                before = lines.name(f"{self._begin(inside, lines, part)} & {ALIGNED - 1}", "before")
                words = self._from(lines, words, before, part)
            found.append(words)
        return found

    def _from(self, lines: Lines, words: list[str], before: str, part: RowBytes) -> list[str]:
        """The words of a part, before which there are so many bytes of others: by halves of 16, then by bytes."""
        count, most = -(-part.nbytes // WORD_BYTES), ALIGNED - part.aligned
        for size in (8, 4):
            if most & size:
                most &= size - 1
                is_behind = lines.name(f"({before} & {size}) != 0", "behind")
                wanted, step = count + -(-most // WORD_BYTES), size // WORD_BYTES
                words = [
                    lines.name(f"gl.where({is_behind}, {words[min(n + step, len(words) - 1)]}, {words[n]})", "word")
                    for n in range(min(wanted, len(words)))
                ]
        if not most:
            return words
        bits = lines.name(f"({before} & {WORD_BYTES - 1}) * 8", "bits")
        pairs = zip(words, [*words[1:], words[-1]], strict=True)
        return [lines.name(from_byte(self.writer, low, high, bits), "word") for low, high in pairs]

    def _words_of(self, lines: Lines, number: int, nbytes: int, buffer: str) -> list[str]:
        """The words of a box, each as a block of rows."""
        rows, count = self.columns.size, nbytes // WORD_BYTES
        name, bits = f"words_of_{count}", count.bit_length() - 1
        self.writer.helpers[name] = f"{name} = gl.constexpr({rows_layout(rows, count)})\n"
        self.writer.helpers[AS_WORDS] = _AS_WORDS
        shared = shared_layout((rows, count), dtypes.uint32)
        text = f"{AS_WORDS}({_name(number)}.index({buffer}), gl.uint32, [{rows}, {count}], {shared}).load({name})"
        block = lines.name(text, "words")
        return self._apart(lines, lines.name(f"{block}.reshape({[rows, 1, *[2] * bits]})"), bits)

    def _apart(self, lines: Lines, text: str, bits: int) -> list[str]:
        """What lies along the last axes of a block, of two elements each, as blocks of their own."""
        if not bits:
            return [lines.name(f"tl.convert_layout({text}, {OF_ROWS})", "word")]
        even, odd = (self.writer.fresh("words") for _ in range(2))
        lines.add(f"{even}, {odd} = tl.split({text})")
        halves = (self._apart(lines, one, bits - 1) for one in (even, odd))
        return [word for pair in zip(*halves, strict=True) for word in pair]

    def _joined(self, lines: Lines, blocks: Sequence[str]) -> str:
        """The numbers of a slot as a block of rows by terms. Each bit of a term's number is an axis first."""
        found, bits = list(blocks), len(blocks).bit_length() - 1
        while len(found) > 1:
            found = [lines.name(f"gl.join({a}, {b})") for a, b in zip(found[::2], found[1::2], strict=True)]
        rows, order = self.columns.size, [0, *range(bits, 0, -1)]
        text = f"{found[0]}.reshape({[rows, *[2] * bits]}).permute({order}).reshape([{rows}, {STEP}])"
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
