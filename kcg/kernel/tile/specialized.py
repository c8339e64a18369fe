"""Attention by specialised warps, in Gluon, which says where everything lies and who waits for whom.

One group of warps loads keys and values into two rings of shared memory; two or three groups have 64 queries each.
Each of these sends the product of its queries with the next keys to the tensor core, behind it that of its weights with
the values before, and makes weights of the new scores while the second one runs. (Shah et al., FlashAttention-3, 2024:
specialised warps, and two products in flight.) A slot of a ring is free once all groups have read it.

What is between the two products is written as in `flash_attention.py`, once before the loop for the first keys, and
once in it.
Where keys are masked, a program begins with the last ones. A group gives back the blocks that none of its queries
reaches, so that the block before the loop is the one with masks. Are there more of these, a branch masks their scores.

Persistent programs take tiles in turn. All rings go on from tile to tile, that of queries too: a group counts the
blocks of the tiles before as the loads do, also those that it gives back. While groups finish a tile, the next one's
first blocks come. (As in FlashAttention-3.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kcg.compat.tiny import DType
from kcg.kernel.ast import extent
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.attention import blocks_of_tiles
from kcg.kernel.tile.descriptors import Boxes
from kcg.kernel.tile.device import Device, Figures, device_of
from kcg.kernel.tile.emit import Frame, Lines, Writer
from kcg.kernel.tile.flash_attention import (
    AttentionPlan,
    AttentionTile,
    AttentionWriting,
    boxes_of_tile,
    check_tile,
    first_of_attention,
    shared_of,
    steps_of_keys,
    with_bytes,
)
from kcg.kernel.tile.form import Axes, Form
from kcg.kernel.tile.gluon import (
    COMPUTE,
    GROUP_ROWS,
    GROUP_THREADS,
    LOAD,
    REGISTERS,
    add_function,
    allocated,
    arguments_of,
    descriptor,
    descriptor_of_all,
    mma,
    operand,
    sizes_of_all,
    specialized,
)
from kcg.kernel.tile.parameters import SPECIALIZED, TMA, TileParameters
from kcg.kernel.tile.plan import Barriers, Loop, Need, Shared, Times
from kcg.kernel.tile.ring import Place, Ring, add_barriers
from kcg.kernel.tile.targets import most_specialized_stages
from kcg.kernel.tile.tiles import Axis, bind_axis, open_frame, power_of_two
from kcg.kernel.tile.views import AttentionView
from kcg.types import Target

ITEMSIZE = 2  # of an operand's element
PROGRAM_ROWS = tuple(groups * GROUP_ROWS for groups in REGISTERS)
STEPS = (64, 128)  # keys of a step
MOST_SLOTS = 4  # of a ring
QUERY_SLOTS = 2  # of a persistent program: tiles of which it has the queries
BESIDE = 32  # registers of a thread beside scores, weights and sums: none spilled with so many
WIDEST = 128  # elements of a query, and of a value: more take more registers than there are
BUFFERS = ("queries", "keys", "values")
BETWEEN_STEPS = 300  # clocks of a step of specialised warps in which neither is made: a guess
NARROW_HEAD = 64  # elements of a query and of a value
OPENING, HIDDEN = 3, 0.85
"""Blocks of keys that take as long as what a tile of attention takes beside its own, by specialised warps; of this what
is hidden behind the tile before, where a program takes tiles in turn. By five attentions on one H100: in turn they took
.94, .92, 1.05, 1.04 and .91 of what a program a tile takes, by these figures .95, .92, 1.10, 1.01 and .99."""


class SpecializedAttention(Form[AttentionView, "SpecializedPlan"]):
    """Attention by warps that load and warps that compute."""

    name = SPECIALIZED
    noun = "warp-specialised attention"
    has_stages = True
    fields = frozenset(("loads", "persistent"))
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "tile": tuple((rows,) for rows in PROGRAM_ROWS), "num_warps": (4,), "split": (1,), "loads": (TMA,),
        "persistent": (0, 1), "num_stages": tuple(range(2, MOST_SLOTS + 1)), "maxnreg": (0,), "precision": ("ieee",),
    }  # fmt: skip
    in_gluon = True
    sees = AttentionView

    def has(self, kernel: TileKernel, target: Target) -> bool:
        return kernel.attention is not None and self._may_specialize(AttentionView.of(kernel), target)

    def preference(self, view: AttentionView, target: Target) -> int:
        """Its programs share no keys."""
        return int(first_of_attention(view, target).split == 1)

    def axes(self, view: AttentionView) -> tuple[Axes, ...]:
        return (view.axes,)

    def start(self, view: AttentionView, target: Target, axes: Axes) -> TileParameters:
        return _first(view, target)

    def steps(self, view: AttentionView) -> tuple[int, ...]:
        return steps_of_keys(view, STEPS)

    def _may_specialize(self, view: AttentionView, target: Target) -> bool:
        """Whether attention may be by specialised warps: on Hopper, by compilers that make such programs right."""
        if not device_of(target).has_wgmma or not most_specialized_stages() or view.keys < STEPS[0]:
            return False
        if math.prod(map(extent, view.attention.rows)) <= GROUP_ROWS:  # of which the second group has none
            return False
        if not _sizes(view):
            return False
        try:
            self.planned(view, target, _first(view, target))
        except UnsupportedTile:
            return False
        return True

    def planned(self, view: AttentionView, target: Target, p: TileParameters) -> SpecializedPlan:
        """Raises UnsupportedTile where TMA cannot load all operands, or a group has no registers for its part."""
        check_tile(view, p)
        if p.loads != TMA or p.num_warps != 4 or p.tile[0] not in PROGRAM_ROWS:
            raise UnsupportedTile("form", f"specialised warps take {PROGRAM_ROWS} queries, 4 warps a group, TMA")
        tile = AttentionTile(view, Axis(view.attention.rows, p.tile[0]), p.reduce_tile)
        group = AttentionTile(view, Axis(view.attention.rows, GROUP_ROWS), p.reduce_tile)
        itemsizes = {side.dtype.itemsize for side, _ in group.operands}
        if itemsizes != {ITEMSIZE} or max(view.inner, view.width) > WIDEST:
            raise UnsupportedTile("form", f"specialised warps take operands of 16 bits, rows of at most {WIDEST}")
        if not fits_registers(view, p.tile[0], p.reduce_tile):
            groups = p.tile[0] // GROUP_ROWS
            raise UnsupportedTile("form", f"{groups} groups of specialised warps have too few registers for it")
        if p.persistent > 1:
            raise UnsupportedTile(
                "persistent", "specialised warps of one program take all registers of a multiprocessor"
            )
        operands = boxes_of_tile(view, GROUP_ROWS, p.reduce_tile)
        if None in operands:
            raise UnsupportedTile("form", "specialised warps take operands that TMA loads")
        cores = max(1, target.cores)
        tiles = tile.count
        return SpecializedPlan.of(
            self.decided(target, p, (tile.rows,), Loop("keys", view.keys, p.reduce_tile)),
            view=view, programs=min(tiles, cores) if p.persistent else tiles, tiles=tiles, tiled=tile,
            operands=operands, cores=cores, group_of=group,
        )  # fmt: skip

    def write(self, plan: SpecializedPlan, writer: Writer) -> Lines:
        """Writes that of the groups and that of the loads among the helpers."""
        return _Specialized(plan, writer).written()


# ---- the prior


def _first(view: AttentionView, target: Target) -> TileParameters:
    """The tile and the step that take least by products, exponentials and waves (`_clocks_of_steps`). Blocks of narrow
    heads are small and soon gone through: they come two ahead. Without a mask that bounds the keys tiles are taken in
    turn, where multiprocessors have several and shared memory the queries of two: Flux's attention took 393 µs instead
    of 418, causal heads mostly 4 to 5 % longer (one H100)."""
    if not (sizes := _sizes(view)):
        raise UnsupportedTile("form", "specialised warps have too few registers for rows of so many elements")
    rows, step = min(sizes, key=lambda size: _clocks_of_steps(view, target, *size))
    stages, device = 3 if max(view.inner, view.width) <= NARROW_HEAD else 2, device_of(target)
    made = TileParameters(SPECIALIZED, view.axes, (rows,), reduce_tile=step, loads=TMA, num_warps=4, num_stages=stages)
    several = view.tiles(rows) > target.cores > 0 and not view.reach.is_bounded
    taken = shared_of(view, rows, step, device.blocks(stages), tiles=QUERY_SLOTS)
    in_turn = several and sum(one.nbytes * one.count for one in taken) <= device.shared_bytes
    return replace(made, persistent=1) if in_turn else made


def _sizes(view: AttentionView) -> list[tuple[int, int]]:
    """Queries of a program and keys of a step for which groups of specialised warps have registers."""
    most = max(power_of_two(view.keys), STEPS[0])
    steps = [step for step in STEPS if step <= most]
    return [(rows, step) for rows in PROGRAM_ROWS for step in steps if fits_registers(view, rows, step)]


def _clocks_of_steps(view: AttentionView, target: Target, rows: int, step: int) -> float:
    """About how many clocks specialised warps take in all their steps."""
    clocks, turns = _clocks_of_step(view, target, rows, step), view.tiles(rows) / max(1, target.cores)
    mean, steps = view.visited(rows, step)
    if view.reach.is_even:
        return math.ceil(turns) * steps * clocks
    return max(steps, turns * mean) * clocks  # with short tiles last


def _clocks_of_step(view: AttentionView, target: Target, rows: int, step: int) -> float:
    """About how many clocks a step of specialised warps takes: the tensor core's time or that of the exponentials,
    whichever is more, and of the other what no other group hides."""
    f, inner, width = device_of(target).figures, view.inner, view.width
    both = rows * step * (inner + width) / f.products_a_clock, rows * step / f.special_a_clock
    # sums are scaled in each step
    return max(both) + min(both) / (rows // GROUP_ROWS) + rows * width / f.plain_a_clock + BETWEEN_STEPS


def fits_registers(view: AttentionView, rows: int, step: int) -> bool:
    """Whether the threads of a tile's groups hold scores and weights of a step, and sums of values. Three groups have
    no registers left for tiles that go on with the next head's first queries, which mask more."""
    groups, reach, tile = rows // GROUP_ROWS, view.reach, Axis(view.attention.rows, rows)
    bounds = [bound for bound in (reach.lower, reach.upper) if bound is not None]
    if groups > 2 and not all(bound.is_aligned(tile) for bound in bounds):
        return False
    held = GROUP_ROWS * (step + step // 2 + view.width) // GROUP_THREADS
    return held + BESIDE <= REGISTERS[groups]


# ---- the plan


@dataclass(frozen=True, kw_only=True)
class SpecializedPlan(AttentionPlan):
    """Tiles of queries, by one group of warps that loads and two or three that compute, each `group_of` a tile."""

    group_of: AttentionTile

    @property
    def groups(self) -> int:
        """Of warps that compute."""
        return self.tile[0] // GROUP_ROWS

    @property
    def in_turn(self) -> int:
        """Programs that take tiles in turn; 0: each has one."""
        return self.programs if self.persistent else 0

    @property
    def query_slots(self) -> int:
        """Tiles of which a program has the queries at once."""
        return QUERY_SLOTS if self.persistent else 1

    @property
    def shared(self) -> tuple[Shared, ...]:
        return shared_of(self.view, self.tile[0], self.step, self.num_stages, tiles=self.query_slots)

    @property
    def rings(self) -> tuple[Ring, Ring, Ring]:
        """Of queries, keys and values."""
        slots = (self.query_slots, self.num_stages, self.num_stages)
        queries, keys, values = (
            Ring(f"{name}_full", f"{name}_empty", count, self.groups)
            for name, count in zip(BUFFERS, slots, strict=True)
        )
        return queries, keys, values

    @property
    def barriers(self) -> tuple[Barriers, ...]:
        """A slot is full when its bytes are there, and empty when each group has read it: that of queries where the
        next tile's come while this one's are read."""
        queries, *others = self.rings
        found = (queries.of_full, *(one for ring in others for one in (ring.of_full, ring.of_empty)))
        return (*found, queries.of_empty) if self.in_turn else found

    @property
    def is_regular(self) -> bool:
        """Whether tiles begin at numbers that are multiples of their size, where there is an upper bound."""
        upper, tile = self.view.reach.upper, self.tiled.rows
        assert upper is not None
        return tile.ranges[-1] is upper.axis and not upper.variables and upper.is_aligned(tile)

    def _ends(self, at: int, queries: int) -> int:
        """Blocks up to the last one that so many queries reach, the first of which has the number `at`."""
        upper = self.view.reach.upper
        assert upper is not None
        return -(-(at + queries - 1 + upper.keys) // self.step)

    @property
    def may_skip(self) -> bool:
        """Whether a group may reach fewer blocks of keys than others of its program."""
        if self.view.reach.upper is None:
            return False
        size = self.tile[0]
        begins = range(0, self.step, math.gcd(size, self.step))
        return not (all(self._ends(at, GROUP_ROWS) == self._ends(at, size) for at in begins) and self.is_regular)

    @property
    def has_one_masked(self) -> bool:
        """Whether no group has more than one block with masks: without a reach only the last keys."""
        reach = self.view.reach
        if reach.lower is not None or reach.upper is None:
            return reach.lower is None
        begins, keys = range(0, self.step, GROUP_ROWS), reach.upper.keys
        return self.is_regular and max(self._ends(at, GROUP_ROWS) - (at + keys) // self.step for at in begins) <= 1

    def needs(self, device: Device) -> Iterator[Need]:
        if self.persistent:
            yield Need("tiles for each program in turn", self.cores + 1, self.tiles)
        yield Need("shared memory", self.shared_bytes, device.shared_bytes)

    def times(self, target: Target, figures: Figures) -> Times:
        """Judged by clocks, as sustained."""
        clock = figures.tensor_ops / (2 * figures.products_a_clock)
        return with_bytes(self, _clocks(self, target) / clock, figures)


def _clocks(plan: SpecializedPlan, target: Target) -> float:
    """About how many clocks specialised warps take. Programs that take tiles in turn have as many each, which the first
    one has most keys of; else whoever is done has the next tile."""
    view, rows, step, tiles, cores = plan.view, plan.tile[0], plan.step, plan.tiles, max(1, target.cores)
    clocks = _clocks_of_step(view, target, rows, step)
    others = math.ceil(tiles / cores) - 1  # tiles behind the first one
    if not plan.persistent:
        return _clocks_of_steps(view, target, rows, step) + OPENING * (1 + others) * clocks
    counts = blocks_of_tiles(view.reach, plan.tiled.rows, view.keys, step)
    heads, longest_first = tiles // len(counts), sorted(counts, reverse=True)
    steps = sum(longest_first[number // heads] for number in range(0, tiles, cores))
    return (steps + OPENING * (1 + others * (1 - HIDDEN))) * clocks


# ---- the program


class _Specialized(AttentionWriting):
    """`top` and `body` are those of a group; the launched function and that of the loads have lines of their own. In
    persistent programs `done` counts the blocks of keys, and `taken` the tiles, before the one at hand."""

    plan: SpecializedPlan

    def __init__(self, plan: SpecializedPlan, writer: Writer) -> None:
        super().__init__(plan, writer)
        if writer.interpreted:
            raise UnsupportedTile("form", "Triton's interpreter has no specialised warps")
        self.groups, self.tile = plan.groups, plan.tiled.rows  # of a program
        self.height, self.rows = GROUP_ROWS, plan.group_of.rows
        self.queries_ring, self.keys_ring, self.values_ring = plan.rings
        self.boxes = [boxes for boxes in plan.operands if boxes is not None]
        self.types = [side.dtype for side, _ in plan.tiled.operands]

    def written(self) -> Lines:
        main, boxes = open_frame(self.view.kernel, self.writer, ()), self.boxes
        if not self.plan.in_turn:
            self._opened(main, self.plan.tiled)
        extents = [box.extents(main) for box in boxes]
        for name, box, of_box, dtype in zip(BUFFERS, boxes, extents, self.types, strict=True):
            main.lines.add(f"{name}_in_memory = {self._in_memory(box, of_box, dtype, main)}")
        self._allocated(main.lines)
        memory = tuple(f"{name}_in_memory" for name in BUFFERS)
        given = arguments_of(self.view.kernel)
        beside = (*BUFFERS, *(barriers.name for barriers in self.plan.barriers))
        computing, loading = (*given, *beside), (*given, *memory, *beside)
        add_function(self.writer, COMPUTE, computing, self._computing(), group=True)
        add_function(self.writer, LOAD, loading, self._loading())
        main.lines.add(specialized(self.groups, computing, loading))
        return main.lines

    # ---- the launched function

    def _in_memory(self, box: Boxes, extents: Sequence[str], dtype: DType, main: Frame) -> str:
        """The descriptor of an operand's blocks: of those of a program's head, or of all heads."""
        self.writer.has_descriptors = True
        if self.plan.in_turn:
            return descriptor_of_all(box, extents, dtype)
        start = " + ".join([box.buffer, *(f"{main.value(r).text} * {step}" for r, step in box.leading)])
        return descriptor(box, start, extents, dtype)

    def _allocated(self, lines: Lines) -> None:
        """Buffers and barriers."""
        for name, box, dtype in zip(BUFFERS, self.boxes, self.types, strict=True):
            slots = self.queries_ring.slots * self.groups if name == "queries" else self.keys_ring.slots
            sizes = sizes_of_all(box) if self.plan.in_turn else box.ordered(box.sizes)
            lines.add(allocated(name, slots, sizes, dtype))
        for barriers in self.plan.barriers:
            add_barriers(lines, barriers)
        lines.add("fence_async_shared()")

    # ---- tiles in turn, alike in both functions

    def _first_tile(self, function: Frame) -> tuple[Frame, str]:
        """The frame of a tile, and the variable of its number; of a program that has one tile that of the function."""
        if not self.plan.in_turn:
            return function, ""
        function.lines.add("done = 0")
        function.lines.add("taken = 0")
        return Frame(Lines(self.writer, function.lines), (), outer=function), self.writer.fresh("tile")

    def _next_tile(self, function: Frame, frame: Frame, tile: str, blocks: str) -> Lines:
        """Ends the frame of a tile, of so many blocks of keys; the lines of its function."""
        if self.plan.in_turn:
            frame.lines.add(f"done += {blocks}")
            frame.lines.add("taken += 1")
            first = function.lines.name("tl.program_id(0)", "program")
            header = f"for {tile} in range({first}, {self.plan.tiles}, {self.plan.in_turn}):"
            function.lines.extend(header, frame.lines, "this program's tiles")
        return function.lines

    def _place(self, number: str) -> str:
        """The place of a tile's block, which has a number, among all that go through the rings."""
        if not self.plan.in_turn:
            return number
        return "done" if number == "0" else f"(done + {number})"

    def _place_of(self, number: str) -> Place:
        """The place of a block of keys or values in its ring."""
        return self.keys_ring.place_of(self._place(number))

    @property
    def _queries_place(self) -> Place:
        """The place of a tile's queries."""
        return self.queries_ring.place_of("taken" if self.plan.in_turn else "0")

    def _queries_of(self, slot: str, group: str) -> str:
        """The block of a group's queries in a slot."""
        return f"({slot}) * {self.groups} + {group}" if self.plan.in_turn else group

    # ---- the group that loads

    def _loading(self) -> Lines:
        function = open_frame(self.view.kernel, self.writer, ())
        frame, tile = self._first_tile(function)
        start = self._opened(frame, self.plan.tiled, tile)
        lines, body = frame.lines, Lines(self.writer, frame.lines)
        queries, keys, values = self.boxes
        place = self._queries_place
        if self.plan.in_turn:
            lines.add(self.queries_ring.await_empty(place.before))
        lines.add(self.queries_ring.expect(place.index, 2 * self.groups * math.prod(queries.sizes)))
        for group in range(self.groups):
            corner = self._corner(queries, frame, (f"{start} + {group * GROUP_ROWS}", "0"))
            block = f"queries.index({self._queries_of(place.index, str(group))})"
            lines.add(self.queries_ring.fetch("queries_in_memory", corner, place.index, block))
        begin, blocks = self._visited(frame, start)
        found, place = self._place_of("number"), Place("slot", "turn")
        body.add(f"{place.index} = {found.index}")
        body.add(f"{place.phase} = {found.phase}")
        corners = {
            "keys": self._corner(keys, frame, ("0", "key")), "values": self._corner(values, frame, ("key", "0"))
        }  # fmt: skip
        body.add(f"key = {self._key_of('number', begin, blocks)}")
        for name, ring, box in (("keys", self.keys_ring, keys), ("values", self.values_ring, values)):
            body.add(ring.await_empty(place.before))
            body.add(ring.expect(place.index, 2 * math.prod(box.sizes)))
            body.add(ring.fetch(f"{name}_in_memory", corners[name], place.index, f"{name}.index({place.index})"))
        lines.extend(f"for number in range({blocks}):", body, "blocks of keys and values into their rings")
        return self._next_tile(function, frame, tile, blocks)

    def _corner(self, box: Boxes, frame: Frame, starts: tuple[str, str]) -> list[str]:
        """Where a block begins, by its descriptor's axes."""
        heads = [frame.value(r).text for r, _ in box.leading] if self.plan.in_turn else []
        return [*heads, *box.ordered(starts)]

    def _blocks(self, frame: Frame, first: str) -> str:
        """How many blocks of keys there are up to the last one that a program visits, at least one; `first` is its
        first query."""
        return self._count_of(frame, self._end(frame, first, self.tile))

    @property
    def _shift_of_step(self) -> int:
        return self.step.bit_length() - 1

    def _count_of(self, frame: Frame, end: str) -> str:
        """Blocks of so many keys, at least one. By a shift: LLVM divides numbers that are small in 16 bits, and of a
        maximum of these ptxas 13 takes the wrong half for the comparison that begins the loop (13.0 and 13.4)."""
        if end.isdigit():
            return str(-(-int(end) // self.step))
        return frame.lines.name(f"tl.maximum(({end} + {self.step - 1}) >> {self._shift_of_step}, 1)", "blocks")

    def _visited(self, frame: Frame, first: str) -> tuple[str, str]:
        """The first block of keys that a program visits, and how many; `first` is its first query."""
        blocks = self._blocks(frame, first)
        if self.reach.lower is None:
            return "0", blocks
        begin = f"tl.minimum({self._begin(frame, first, self.tile)} >> {self._shift_of_step}, {blocks} - 1)"
        begin = frame.lines.name(begin, "begin")
        return begin, frame.lines.name(f"{blocks} - {begin}", "blocks")

    def _key_of(self, number: str, begin: str, blocks: str) -> str:
        """The first key of the block that a program visits as so many-th, from `begin` on; with masks from the last."""
        if not self.plan.tiled.has_masks:
            return f"{number} * {self.step}" if begin == "0" else f"({begin} + {number}) * {self.step}"
        last = f"{int(blocks) - 1}" if blocks.isdigit() else f"{blocks} - 1"
        return f"({last if begin == '0' else f'{begin} + {last}'} - {number}) * {self.step}"

    def _skipped(self, lines: Lines, begin: str, blocks: str, start: str) -> str:
        """Gives back the blocks that no query of a group reaches, which begins at `start`; how many these are."""
        own = self._count_of(self.top, self._end(self.top, start, self.rows))
        behind = f"{blocks} - {own}" if begin == "0" else f"tl.minimum({begin} + {blocks} - {own}, {blocks} - 1)"
        skipped, body = lines.name(behind, "skipped"), Lines(self.writer, lines)
        place = self._place_of("number")
        for ring in (self.keys_ring, self.values_ring):
            body.add(ring.await_full(place))
            body.add(ring.give_back(place.index))
        lines.extend(f"for number in range({skipped}):", body, "blocks that the group's queries do not see")
        return skipped

    # ---- a group that computes

    def _computing(self) -> Lines:
        scores, values = mma(self.step), mma(self.width)
        function = self.top
        function.lines.add(f"of_scores: gl.constexpr = {scores}")
        function.lines.add(f"of_values: gl.constexpr = {values}")
        function.lines.add("of_weights: gl.constexpr = gl.DotOperandLayout(0, of_values, 2)")
        self.top, tile = self._first_tile(function)
        lines = self.top.lines
        first = self._opened(self.top, self.plan.tiled, tile)
        start = lines.name(f"{first} + group * {GROUP_ROWS}", "start")
        begin, blocks = self._visited(self.top, first)
        sums = self._begun("of_scores", "of_values")
        lines.add(f"none = gl.full([{self.height}, {self.step}], 0.0, gl.float32, of_scores)")
        query, key, value = (operand(box, of_all=bool(self.plan.in_turn)) for box in self.boxes)
        place_of_queries = self._queries_place
        queries = query("queries", self._queries_of(place_of_queries.index, "group"))
        sent = f"warpgroup_mma({queries}, {key('keys', '{slot}')}, none, use_acc=False, is_async=True)"
        weighed = f"warpgroup_mma(weights, {value('values', '{slot}')}, {self.product}, is_async=True)"
        done = f"{self.product} = warpgroup_mma_wait(0, deps=[weighed])"

        lines.add(self.queries_ring.await_full(place_of_queries))
        skipped = self._skipped(lines, begin, blocks, start) if self.plan.may_skip else "0"
        place = self._place_of(skipped)
        lines.add(self.keys_ring.await_full(place))
        lines.add(f"sent = {sent.format(slot=place.index)}")
        lines.add("first_score = warpgroup_mma_wait(0, deps=[sent])")
        lines.add(self.keys_ring.give_back(place.index))
        is_first = not self.plan.tiled.has_masks and begin == "0"
        first_key = "0" if is_first else lines.name(self._key_of(skipped, begin, blocks), "key")
        self.whole = not self.plan.tiled.has_masks
        self._turn(lines, "first_score", first_key, start, sums)
        self.whole = self.plan.has_one_masked or self.on_scores
        masked = ""
        if self.whole and not self.plan.has_one_masked:
            masked = self._masked_numbers(lines, begin, blocks, start)

        body = Lines(self.writer, lines)
        now, previous = self._place_of("number"), self._place_of("(number - 1)")
        body.add(f"slot = {now.index}")
        body.add(f"before = {previous.index}")
        body.add(self.keys_ring.await_full(Place("slot", now.phase)))
        body.add(f"sent = {sent.format(slot='slot')}")
        body.add(self.values_ring.await_full(Place("before", previous.phase)))
        body.add(f"weighed = {weighed.format(slot='before')}")
        body.add("score = warpgroup_mma_wait(1, deps=[sent])")
        body.add(self.keys_ring.give_back("slot"))
        key_at = body.name(self._key_of("number", begin, blocks), "key")
        if masked:
            body.extend(f"if {masked}:", self._branch("score", key_at, start, body))
        factor = self._turn(body, "score", key_at, start, sums, weights="next_weights")
        body.add(done)
        body.add(self.values_ring.give_back("before"))
        body.add(f"{self.product} = {self.product} * gl.convert_layout({factor}, of_values)")
        body.add("weights = next_weights")
        second = "1" if skipped == "0" else f"{skipped} + 1"
        about = "scores of a block of keys, then the weights of the one before times its values"
        lines.extend(f"for number in range({second}, {blocks}):", body, about)

        if self.plan.in_turn:
            lines.add(self.queries_ring.give_back(place_of_queries.index))
        lines.add(f"last = {blocks} - 1")
        place = self._place_of("last")
        lines.add(self.values_ring.await_full(place))
        lines.add(f"weighed = {weighed.format(slot=place.index)}")
        lines.add(done)
        if self.plan.in_turn:
            lines.add(self.values_ring.give_back(place.index))
        of_rows = [lines.name(f"gl.convert_layout({one}, of_values)") for one in (self.largest, *sums)]
        self._stored(start, of_rows, "of_values")
        return self._next_tile(function, self.top, tile, blocks)

    def _masked_numbers(self, lines: Lines, begin: str, blocks: str, start: str) -> str:
        """The condition that a group's block, visited as so many-th, is not whole."""
        behind = blocks if begin == "0" else f"{begin} + {blocks}"
        masked = lines.name(f"{behind} - {self._whole_blocks(self.top, start, self.rows)}", "masked")
        if self.reach.lower is None:
            return f"number < {masked}"
        first = self._first_whole(self.top, start, self.rows)
        last = lines.name(f"{behind} - ({first} >> {self._shift_of_step})", "whole")
        return f"(number < {masked}) | (number >= {last})"

    def _turn(
        self, body: Lines, score: str, key: str, start: str, sums: Sequence[str], *, weights: str = "weights"
    ) -> str:
        """From the scores of one block of keys to weights, sums and the new maximum; the factor of the sum of values
        so far."""
        self.body, self.key = body, key
        scores = self._of_scores(body, key, start)
        self._bind_scores(scores, score)
        self.new = self.writer.fresh("new")
        shift = self._shift(scores)
        for one, total in zip(self.attention.sums, sums, strict=True):
            self._sum(one, total, scores, shift)
        made, factor = self._weights(scores, shift)
        body.add(f"{weights} = gl.convert_layout({made}, of_weights)")
        body.add(f"{self.largest} = {self.new}")
        return factor

    def _of_scores(self, lines: Lines, key: str, start: str) -> Frame:
        """The frame of a block of scores."""
        outer = Frame(
            self.top.lines, (self.height, self.step), outer=self.top, layout="of_scores", words=("rows", "keys")
        )
        self._bind_rows(outer, start)
        scores = outer.inner(lines)
        bind_axis(scores, self.keys, 1, key, whole=self.whole)
        return scores

    def _bind_rows(self, frame: Frame, start: str) -> None:
        """Binds a group's queries, of which a tile may have some past the end though a group is whole."""
        bind_axis(frame, self.rows, 0, start, ragged=self.tile.total % self.tile.size != 0)

    def _branch(self, score: str, key: str, start: str, body: Lines) -> Lines:
        """What masks the scores of a block of keys that are not all within reach."""
        lines, self.whole = Lines(self.writer, body), False
        masked = self._masked(self._of_scores(lines, key, start), score)
        self.whole = True
        lines.add(f"{score} = {masked}")
        return lines
