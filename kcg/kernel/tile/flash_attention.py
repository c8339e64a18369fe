"""The program of an attention: one loop over the keys.

It needs neither all scores of a row nor its maximum: it goes through the keys in blocks, keeps for each row the largest
score so far, and corrects its sums where that rises. (Dao et al., FlashAttention, 2022.)

Masks are computed where they matter: blocks of which every query of the tile has weights for every key have a loop of
their own, without a causal mask or a bound of the keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kcg.compat.tiny import UOp, dtypes
from kcg.kernel.ast import extent, is_symbolic
from kcg.kernel.reading.accesses import Access
from kcg.kernel.reading.attention import LEAST, WIDEST
from kcg.kernel.reading.contractions import Operand
from kcg.kernel.reading.kernel import Attention, Shifted, TileKernel
from kcg.kernel.reading.online import running, scaled
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.attention import Bound, reached_share
from kcg.kernel.tile.attention_sums import Partials, write_attention_sums
from kcg.kernel.tile.contraction import (
    WGMMA_ROWS,
    boxes_of_operand,
    described_block,
    interpreted_type,
    operand_block,
)
from kcg.kernel.tile.descriptors import Boxes, Described, describe
from kcg.kernel.tile.device import Device, Figures, device_of
from kcg.kernel.tile.emit import TYPES, Block, Frame, Lines, Writer, compute_type
from kcg.kernel.tile.epilogue import BOTH, store_tile
from kcg.kernel.tile.estimates import BESIDE_SUMS, bytes_of, waves_of
from kcg.kernel.tile.form import COMPILER_BYTES, LEAST_BESIDE, STAGES, Axes, Form, precisions_of, tiles_up_to
from kcg.kernel.tile.parameters import FLASH_ATTENTION, POINTER, TMA, TileParameters
from kcg.kernel.tile.plan import MOST_PARTIALS, Dot, Loop, Need, Shared, TilePlan, Times
from kcg.kernel.tile.reduction import accumulator, masked_term
from kcg.kernel.tile.tiles import (
    Axis,
    bind_axis,
    bind_scalar,
    count_of,
    flat_place,
    is_power_of_two,
    open_frame,
    power_of_two,
    split_number,
    start_of,
    total_of,
)
from kcg.kernel.tile.views import AttentionView
from kcg.types import Target

KEPT_BYTES = 32 << 20  # of keys and values that L2 keeps while programs go through them (FlashAttention-3's limit)
OUT = 'float("-inf")'
"""The score of a key that is left out."""
APART_ROWS = 64  # of a tile: with fewer a loop waits for its loads, and a second one would wait twice
STEPS = (16, 32, 64, 128)  # keys of a step
MOST_QUERIES = 128  # of a program
MOST_WAVES = 4  # of programs that share keys
BETWEEN_BOUNDS = 64  # keys of a step of four warps, where three loops go through them: of 128 they spilled 468 bytes
MOST_WARPS = 8
MOST_UNROLLED = 2_048
"""Multiplications of a thread in one step without tensor cores, each an instruction. 2,048 take 5 to 12 s to compile;
4,096 take up to 14 s and spill 33 to 37 KB, 8,192 take 38 s and spill 82 KB (Triton 3.9, sm_90)."""
KEY_SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128)
"""Programs that share the keys of an attention."""
BUSY, NEARLY = 0.8, 0.85  # of the multiprocessors, and of the best wave's efficiency
FEW_STEPS = 4  # of keys, which are not split
STEP_S = 1e-7  # of a step of attention beside its loads, products and weights: a guess


class FlashAttention(Form[AttentionView, "AttentionPlan"]):
    """Attention in Triton: all warps of a program do the same."""

    name = FLASH_ATTENTION
    noun = "flash attention"
    has_stages = True
    fields = frozenset({"loads"})
    sees = AttentionView

    def has(self, kernel: TileKernel, target: Target) -> bool:
        return kernel.attention is not None

    def axes(self, view: AttentionView) -> tuple[Axes, ...]:
        return (view.axes,)

    def start(self, view: AttentionView, target: Target, axes: Axes) -> TileParameters:
        return first_of_attention(view, target)

    # ---- the values of parameters

    def values(self, view: AttentionView, target: Target, p: TileParameters, field: str) -> tuple[Any, ...]:
        match field:
            case "split":
                return KEY_SPLITS
            case "loads":
                return (POINTER, TMA) if device_of(target).has_tma else (POINTER,)
            case "num_stages":
                return STAGES
            case "maxnreg":
                return (0,)
        return super().values(view, target, p, field)

    def tiles(self, view: AttentionView, p: TileParameters) -> list[tuple[int, ...]]:
        return tiles_up_to(view.kernel, p, LEAST)

    def steps(self, view: AttentionView) -> tuple[int, ...]:
        return steps_of_keys(view, STEPS)

    def may_split(self, view: AttentionView) -> bool:
        return True

    def precisions(self, view: AttentionView) -> tuple[str, ...]:
        return precisions_of(view.kernel, (view.attention.scores.sides[0].dtype, view.attention.values.dtype))

    # ---- the program

    def planned(self, view: AttentionView, target: Target, p: TileParameters) -> AttentionPlan:
        """Also raises UnsupportedTile where TMA is to load, and can load neither keys nor values."""
        check_tile(view, p)
        if not is_power_of_two(p.tile[0]):
            raise UnsupportedTile("tile", "a power of two")
        tile = AttentionTile(view, Axis(view.attention.rows, p.tile[0]), p.reduce_tile)
        operands: tuple[Boxes | None, ...] = (None,) * 3
        if p.loads == TMA:
            operands = boxes_of_tile(view, p.tile[0], p.reduce_tile)
            if operands[1] is None and operands[2] is None:
                raise UnsupportedTile("loads", "no operand lies in memory as TMA takes it")
        tiles = p.split * tile.count
        return AttentionPlan.of(
            self.decided(target, p, (tile.rows,), Loop("keys", view.keys, p.reduce_tile, p.split)),
            view=view, programs=tiles, tiles=tiles, tiled=tile, operands=operands, cores=target.cores,
            partials=p.split * Partials.of(view).count if p.split > 1 else 0,
        )  # fmt: skip

    def write(self, plan: AttentionPlan, writer: Writer) -> Lines:
        return AttentionWriting(plan, writer).written()

    def write_second(self, plan: AttentionPlan, writer: Writer) -> tuple[Lines, int]:
        return write_attention_sums(plan.view, plan.split, writer)


def check_tile(view: AttentionView, p: TileParameters) -> None:
    """Raises UnsupportedTile where a tile is none of an attention."""
    if p.axes != view.axes or len(p.tile) != 1:
        raise UnsupportedTile("axes", "the tile's only axis has the queries")
    if min(p.tile[0], p.reduce_tile) < LEAST or max(view.inner, view.width) > WIDEST:
        raise UnsupportedTile("tile", f"a tensor core takes at least {LEAST}, and a row has at most {WIDEST} elements")


def steps_of_keys(view: AttentionView, steps: Sequence[int]) -> tuple[int, ...]:
    """Those numbers of keys of a step that are not far more than there are."""
    return tuple(size for size in steps if size <= max(STEPS[0], power_of_two(view.keys)))


# ---- the plan


@dataclass(frozen=True, eq=False)
class AttentionTile:
    """Some queries of one head, and the keys of a step."""

    view: AttentionView
    rows: Axis
    step: int

    @property
    def keys(self) -> Axis:
        """The keys, in blocks of a step."""
        return Axis((self.view.attention.keys,), self.step)

    @property
    def terms(self) -> Axis:
        """What scores are summed over, in one block."""
        return Axis(self.view.terms, self.view.inner)

    @property
    def columns(self) -> Axis:
        """Elements of a value, in one block."""
        return Axis(self.view.attention.columns, self.view.width)

    @property
    def operands(self) -> tuple[tuple[Operand, tuple[Axis, Axis]], ...]:
        """Queries, keys and values, each with the axes of its blocks."""
        queries, keys = self.view.attention.scores.sides
        values = self.view.attention.values
        return (queries, (self.rows, self.terms)), (keys, (self.terms, self.keys)), (values, (self.keys, self.columns))

    @property
    def count(self) -> int:
        """Such tiles, of all heads."""
        return self.view.tiles(self.rows.size)

    @property
    def has_ragged_keys(self) -> bool:
        """Whether the last block of keys may have some that do not exist."""
        return is_symbolic(self.view.attention.keys) or self.view.keys % self.step != 0

    @property
    def has_masks(self) -> bool:
        """Whether a block of keys has any that do not exist, or that a query of the tile does not reach."""
        return self.view.reach.is_bounded or self.has_ragged_keys

    @property
    def may_be_whole(self) -> bool:
        """Whether some block of keys may be within reach of all queries of a tile."""
        reach, lower, upper = self.view.reach, self.view.reach.lower, self.view.reach.upper
        if reach.is_bounded and not reach.masks:
            return False  # as of blocks along the diagonal
        if lower is None or upper is None or not lower.is_like(upper):
            return True
        return upper.keys - lower.keys - lower.spread(self.rows) >= self.step

    @property
    def order(self) -> LongestFirst | None:
        """In which order tiles are taken where the last queries have most keys; None where that does not matter."""
        reach, heads = self.view.reach, math.prod(map(extent, self.view.heads))
        upper = reach.upper
        if upper is None or upper.axis is None or reach.is_even or self.rows.tiles == 1:
            return None
        (scores, values), inner, width = self.view.itemsizes, self.view.inner, self.view.width
        nbytes = self.view.keys * (inner * scores + width * values)
        together = max(n for n in range(1, heads + 1) if heads % n == 0 and (n == 1 or n * nbytes <= KEPT_BYTES))
        place = self.rows.ranges.index(upper.axis)
        outer = math.prod(map(extent, self.rows.ranges[:place])) if upper.is_aligned(self.rows) else 1
        return LongestFirst(heads // together, self.rows.tiles // outer, together, outer)


@lru_cache(1024)
def boxes_of_tile(view: AttentionView, height: int, step: int) -> tuple[Boxes | None, ...]:
    """How blocks of queries, keys and values lie in memory, of those that TMA can load, in tiles of so many queries. A
    search asks some hundred times for each."""
    tile = AttentionTile(view, Axis(view.attention.rows, height), step)
    return tuple(boxes_of_operand(side, view.kernel, axes) for side, axes in tile.operands)


@dataclass(frozen=True)
class LongestFirst:
    """What a program's number counts through where the last queries have most keys: of some heads together the last
    tiles are first, so that short ones fill the last wave. L2 keeps the keys and values of so many heads."""

    groups: int  # of heads
    tiles: int  # along the axis by which keys grow, from the last one on
    together: int  # heads
    rows: int  # of such tiles


@dataclass(frozen=True, kw_only=True)
class AttentionPlan(TilePlan):
    """Tiles of queries, each of which goes through the keys that it reaches."""

    view: AttentionView
    tiled: AttentionTile
    operands: tuple[Boxes | None, ...]  # how blocks of queries, keys and values lie in memory, of those that TMA loads
    cores: int

    @property
    def shared(self) -> tuple[Shared, ...]:
        return shared_of(self.view, self.tile[0], self.step, self.blocks)

    @property
    def by_tma(self) -> tuple[Access, ...]:
        sides = [side for (side, _), boxes in zip(self.tiled.operands, self.operands, strict=True) if boxes is not None]
        nodes = {side.factors[0].node for side in sides}
        return tuple(load for load in self.view.kernel.loads if load.node in nodes)

    @property
    def blocks_along(self) -> tuple[tuple[tuple[UOp, ...], int], ...]:
        """Queries, keys, what scores are summed over, and elements of a value."""
        axes = (self.tiled.rows, self.tiled.keys, self.tiled.terms, self.tiled.columns)
        return tuple((axis.ranges, axis.size) for axis in axes)

    @property
    def dots(self) -> tuple[Dot, ...]:
        height, view = self.tile[0], self.view
        return (
            Dot(height, self.step, view.inner, self.precision),
            Dot(height, view.width, self.step, self.precision),
        )

    @property
    def loops_apart(self) -> bool:
        """Whether blocks of keys that need no mask have a loop of their own."""
        return self.split == 1 and self.tile[0] >= APART_ROWS and self.tiled.may_be_whole

    def needs(self, device: Device) -> Iterator[Need]:
        height, view = self.tile[0], self.view
        yield Need("queries", height, MOST_QUERIES)
        yield Need("warps", self.num_warps, MOST_WARPS)
        yield Need("threads with an element each", self.threads, height * max(self.step, view.width))
        if self.split > 1:
            yield Need("partial sums", self.partials, MOST_PARTIALS)
        yield from registers_of(view, device, (height, self.step), self.num_warps, self.precision)
        _, steps = view.visited(height, self.step)
        if self.split > 1:
            yield Need("steps of each part", self.split, steps)
            yield Need("waves of programs that share keys", self.programs, MOST_WAVES * self.cores)
        yield Need("stages", self.num_stages, -(-steps // self.split) + 1)
        yield Need("shared memory", self.shared_bytes, device.shared_bytes)

    def times(self, target: Target, figures: Figures) -> Times:
        return _times(self, target, figures)


def registers_of(
    view: AttentionView, device: Device, sizes: tuple[int, int], warps: int, precision: str
) -> Iterator[Need]:
    """Scores, weights and sums in the registers of threads; and products without tensor cores, which are to be few
    enough to be compiled. `sizes` are queries and keys of a step."""
    (height, step), threads = sizes, device.threads(warps)
    scores, values = view.attention.scores.sides[0], view.attention.values
    plain = sum(
        height * step * size // threads
        for size, dtype in ((view.inner, scores.dtype), (view.width, values.dtype))
        if dtype is dtypes.float32 and precision == "ieee" and not device.multiplies(dtype.name)
    )
    most = device.registers_of_thread(warps) - LEAST_BESIDE
    yield Need("registers", height * (step + view.width) // threads, most)
    yield Need("multiplications of a thread and step", plain, MOST_UNROLLED)


def shared_of(view: AttentionView, height: int, step: int, blocks: int, *, tiles: int = 1) -> tuple[Shared, ...]:
    """About how much shared memory an attention's program takes: the queries of so many tiles, and rings of keys and
    values."""
    scores, values = view.itemsizes
    return (
        Shared("queries", height * view.inner * scores, tiles),
        Shared("keys", step * view.inner * scores, blocks),
        Shared("values", step * view.width * values, blocks),
        Shared("the compiler's", COMPILER_BYTES),
    )


# ---- the prior


def first_of_attention(view: AttentionView, target: Target) -> TileParameters:
    """Of Inductor's attention on an H100: 128 queries by 128 keys and 4 warps for heads of 64, by 64 keys and 8 warps
    for heads of 128, 64 by 32 for heads of 256; fewer queries where there are few programs."""
    widest, reach = max(view.inner, view.width), view.reach
    sizes = {64: (128, 128, 4, 3), 128: (128, 64, 8, 3), 256: (64, 32, 4, 3), WIDEST: (64, 32, 8, 2)}
    height, step, warps, stages = next(found for most, found in sizes.items() if widest <= most)
    if view.itemsizes[1] == 4:
        height, step, warps, stages = 64, 32, 4, 2
    if reach.lower is not None and warps == 4:
        step = min(step, BETWEEN_BOUNDS)
    height = max(LEAST, min(height, power_of_two(count_of(view.kernel, view.axes[0]))))
    while height > 64 and view.tiles(height) < target.cores:
        height //= 2
    step = max(LEAST, min(step, power_of_two(view.keys)))
    device, threads = device_of(target), 32 * warps if height >= WGMMA_ROWS else 128
    sizes_held = (height, step, max(device.figures.group_warps, device.warps(threads)), stages)
    height, step, warps, stages = _held_attention(view, device, sizes_held)
    _, steps = view.visited(height, step)
    split = _split_of_keys(view.tiles(height), steps, target.cores)
    return TileParameters(
        FLASH_ATTENTION, view.axes, (height,), reduce_tile=step, split=split, num_warps=warps,
        num_stages=min(stages, -(-steps // split) + 1),
    )  # fmt: skip


def _held_attention(view: AttentionView, device: Device, sizes: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Queries, keys of a step, warps and stages that the target's registers and shared memory hold: fewer stages than
    the sizes that are wished for, then more warps for the registers, then a smaller step, then fewer queries. Raises
    UnsupportedTile where there are none."""
    height, step, warps, stages = sizes

    def crowded() -> bool:
        needs = registers_of(view, device, (height, step), warps, "ieee")
        return any(needed > most for _, needed, most in needs)

    def too_large() -> bool:
        blocks = shared_of(view, height, step, device.blocks(stages))
        return sum(one.nbytes * one.count for one in blocks) > device.shared_bytes

    while (is_crowded := crowded()) or too_large():
        if is_crowded and warps < MOST_WARPS:
            warps *= 2
        elif not is_crowded and stages > 1:
            stages -= 1
        elif step > LEAST:
            step //= 2
        elif height > LEAST:
            height //= 2
        else:
            raise UnsupportedTile(
                "tile", "no block of this attention fits into the target's registers and shared memory"
            )
    return height, step, warps, stages


def _split_of_keys(tiles: int, steps: int, cores: int) -> int:
    """The fewest parts of so many steps by which nearly as many multiprocessors are busy as by any (the rule of
    FlashAttention-3); 1 where tiles do that by themselves."""
    if tiles >= BUSY * cores or steps <= FEW_STEPS:
        return 1

    def efficiency(split: int) -> float:
        waves = tiles * split / cores
        return waves / math.ceil(waves)

    # of parts that leave as many steps to the longest one fewer do as well
    found = {-(-steps // split): split for split in reversed(KEY_SPLITS) if split <= min(steps, cores)}
    enough = NEARLY * max(map(efficiency, found.values()))
    return min(split for split in found.values() if efficiency(split) >= enough)


# ---- what it costs


def _times(plan: AttentionPlan, target: Target, f: Figures) -> Times:
    """Two products in each step and the exponentials between them, which wait for each other unless other warps have
    something to do meanwhile. Where a mask bounds the keys, tiles with few of them are last and fill the last wave."""
    view, device, height, step, threads = plan.view, device_of(target), plan.tile[0], plan.step, plan.threads
    reach, inner, width = view.reach, view.inner, view.width
    programs = plan.tiles
    mean, most = view.visited(height, step)
    longest = -(-most // plan.split)
    steps = max(1.0, mean / plan.split) if reach.is_bounded else longest  # of a tile, on average
    itemsize = view.itemsizes[1]
    groups = max(1, plan.num_warps // f.group_warps)
    whole = height >= f.group_rows * groups and plan.num_warps >= f.group_warps
    share = 2 / itemsize if itemsize <= 2 else f.share_of_float32(plan.precision, height * (step + width) / threads)
    tensor = f.tensor_ops * share * (1.0 if whole else 0.5)
    products_s = 2 * height * step * (inner + width) / tensor
    special, between = view.operations
    weights_s = height * step * (special / f.special_ops + (between + 6) / f.plain_ops)
    load_s = step * (inner + width) * itemsize / f.l2_bytes
    registers = min(device.registers_of_one, height * (step + width) // threads + BESIDE_SUMS)
    together = device.resident(threads=threads, registers=registers, shared_bytes=plan.shared_bytes)
    together = max(1, min(together, -(-programs // max(1, target.cores))))
    groups *= together
    waiting_s = (f.flight_s + load_s) / max(plan.num_stages - 0.5, 0.5)
    alone_s = products_s + weights_s + waiting_s * 0.5
    step_s = max(products_s, weights_s, load_s, alone_s / (1 + 0.5 * (groups - 1))) + STEP_S
    turns = programs / (target.cores * together)
    waves = waves_of(turns) if reach.is_even else max(turns, longest / steps / together)
    busy_s = waves * together * steps * step_s
    return with_bytes(plan, busy_s, f)


def with_bytes(plan: AttentionPlan, busy_s: float, f: Figures) -> Times:
    """What an attention takes whose programs are busy for so long: its bytes may take longer."""
    kernel, keys = plan.view.kernel, plan.view.attention.keys
    opening_s = f.opening_s + f.flight_s + (f.descriptors_s if plan.loads_by == TMA else 0.0)
    share = reached_share(plan.view.reach, keys)
    nbytes = sum(bytes_of(x) * (share if keys in x.address.ranges else 1.0) for x in (*kernel.loads, kernel.store))
    return Times((busy_s + opening_s, nbytes / f.memory_bytes))


# ---- the program


class AttentionWriting:
    """A program that is being written: its queries, the loop over the keys, and the result.

    Above the loop `top` has what is carried through it, each with a row for each query: the largest score so far, the
    sums of shifted terms, and the sum of weighted values. `body` is one turn of it, over `step` keys; `whole` says that
    all of these exist and are within reach of all queries.
    """

    def __init__(self, plan: AttentionPlan, writer: Writer) -> None:
        self.plan, self.writer, self.view, self.attention = plan, writer, plan.view, plan.view.attention
        self.height, self.step, self.inner, self.width = plan.tile[0], plan.step, plan.view.inner, plan.view.width
        self.tiled, self.rows, self.keys = plan.tiled, plan.tiled.rows, plan.tiled.keys
        self.terms, self.columns = plan.tiled.terms, plan.tiled.columns
        self.top = open_frame(plan.view.kernel, writer, ())
        self.body, self.key, self.whole = Lines(writer, self.top.lines), "", False
        self.largest, self.new = writer.fresh("largest"), writer.fresh("new")
        self.product = writer.fresh("acc")
        self.reach, self.on_scores = plan.view.reach, plan.view.masks_scores
        self.part = "0"  # which of the parts of the keys a program has

    def written(self) -> Lines:
        described = tuple(describe(one, self.top) if one is not None else None for one in self.plan.operands)
        start = self._opened(self.top, self.tiled)
        sums = self._begun()
        end = self._end(self.top, start, self.rows)
        begin, end = self._part_of(self._begin(self.top, start, self.rows), end)
        for first, last, whole in self._loops(begin, end, start):
            self.whole = whole
            self._loop(first, last, start, described, sums)
        leaving = self._stored if self.plan.split == 1 else self._left
        leaving(start, (self.largest, *sums))
        return self.top.lines

    def _loops(self, begin: str, end: str, start: str) -> list[tuple[str, str, bool]]:
        """The loops over the keys from `begin` to `end`, each with its first and its last key and whether its blocks
        are whole."""
        if not self.tiled.has_masks:
            return [(begin, end, True)]
        if not self.plan.loops_apart:
            return [(begin, end, False)]
        lines, last, loops = self.top.lines, self._whole_blocks(self.top, start, self.rows), []
        if last == "0":
            return [(begin, end, False)]
        if self.reach.lower is None:
            middle = lines.name(f"{last} * {self.step}", "whole")
        else:
            first = self._first_whole(self.top, start, self.rows)
            loops.append((begin, lines.name(f"tl.minimum({first}, {end})", "end"), False))
            if self.reach.upper is None and not self.tiled.has_ragged_keys:
                return [*loops, (first, end, True)]
            begin, middle = first, lines.name(f"tl.maximum({last} * {self.step}, {first})", "whole")
        return [*loops, (begin, middle, True), (middle, end, False)]

    def _loop(
        self, first: str, last: str, start: str, described: tuple[Described | None, ...], sums: Sequence[str]
    ) -> None:
        """One loop over keys."""
        query, key, value = described
        self.body, self.key = Lines(self.writer, self.top.lines), self.writer.fresh("key")
        keys = self.body.name(f"{self.key} + tl.arange(0, {self.step})", "keys")
        self.new = self.writer.fresh("new")
        scores = self._scores(query, key, start, keys)
        shift = self._shift(scores)
        for one, total in zip(self.attention.sums, sums, strict=True):
            self._sum(one, total, scores, shift)
        self._weighted(value, scores, shift, keys)
        self.body.add(f"{self.largest} = {self.new}")
        self.top.lines.extend(
            f"for {self.key} in range({first}, {last}, {self.step}):", self.body, f"{self.step} keys at a time"
        )

    def _begun(self, scores: str = "", values: str = "") -> list[str]:
        """What is carried through the loop, before it; the names of the sums. The layouts of what has a score's and
        of what has a value's rows are said where the program has any."""
        lines, rows = self.top.lines, f"[{self.height}, 1]"
        of_scores, of_values = (f", {layout}" if layout else "" for layout in (scores, values))
        lines.add(f'{self.largest} = tl.full({rows}, float("-inf"), tl.float32{of_scores})')
        sums = [self.writer.fresh("acc") for _ in self.attention.sums]
        for total in sums:
            lines.add(f"{total} = tl.full({rows}, 0.0, tl.float32{of_scores})")
        lines.add(f"{self.product} = tl.full([{self.height}, {self.width}], 0.0, tl.float32{of_values})")
        return sums

    def _opened(self, frame: Frame, tiled: AttentionTile, program: str = "") -> str:
        """At which query a program begins; binds what is a program each. `program` is its number where that is not the
        launch's."""
        heads, tile, order = self.view.heads, tiled.rows, tiled.order
        extents = [extent(r) for r in heads]
        program = program or frame.lines.name("tl.program_id(0)", "program")
        if order is None:
            self.part, *digits, number = split_number(frame, program, [self.plan.split, *extents, tile.tiles])
        else:
            digits, number = self._longest_first(frame, program, extents, order)
        for axis, digit in zip(heads, digits, strict=True):
            bind_scalar(frame, axis, digit)
        return start_of(frame, number, tile)

    def _longest_first(
        self, frame: Frame, program: str, heads: list[int], order: LongestFirst
    ) -> tuple[list[str], str]:
        """Which head and which tile a program has."""
        lines = frame.lines
        counts = [self.plan.split, order.groups, order.tiles, order.together, order.rows]
        self.part, group, turn, head, row = split_number(frame, program, counts)
        number = lines.name(f"{order.tiles - 1} - {turn}") if order.tiles > 1 else "0"
        if order.rows > 1:
            number = lines.name(f"{row} * {order.tiles} + {number}")
        if group != "0":
            head = lines.name(f"{group} * {order.together} + {head}")
        return split_number(frame, head, heads), number

    def _begin(self, frame: Frame, start: str, tile: Axis) -> str:
        """The first key of the first block of which a tile of queries that begins at `start` may have weights."""
        if self.reach.lower is None:
            return "0"
        least = self._least(frame, start, tile, self.reach.lower)
        return frame.lines.name(f"tl.maximum({least}, 0) & -{self.step}", "begin")

    def _end(self, frame: Frame, start: str, tile: Axis) -> str:
        """The key behind the last one of which a tile of queries that begins at `start` has weights, or a later one."""
        total, _ = total_of(frame, (self.attention.keys,))
        if self.reach.upper is None:
            return total
        # a tile that goes on with 0 has been to the last one before
        return frame.lines.name(f"tl.minimum({total}, {self._most(frame, start, tile, self.reach.upper)})", "end")

    def _most(self, frame: Frame, start: str, tile: Axis, bound: Bound) -> str:
        """The largest bound of a tile of queries that begins at `start`, or a larger one."""
        return self._at(frame, bound, self._number(frame, start, tile, bound), bound.spread(tile))

    def _least(self, frame: Frame, start: str, tile: Axis, bound: Bound) -> str:
        """The least bound of a tile of queries that begins at `start`."""
        first = self._number(frame, start, tile, bound)
        if bound.axis is not None and not bound.is_aligned(tile):  # it may go on with 0
            last = extent(bound.axis) - 1 - bound.spread(tile)
            first = frame.lines.name(f"tl.where({first} > {last}, 0, {first})")
        return self._at(frame, bound, first)

    def _number(self, frame: Frame, start: str, tile: Axis, bound: Bound) -> str:
        """The number of a tile's first query by which its bound grows."""
        if bound.axis is None:
            return "0"
        inner, first = bound.inner(tile), start
        if inner > 1:
            first = frame.lines.name(f"{first} // {inner}")
        if tile.ranges.index(bound.axis):
            first = frame.lines.name(f"{first} % {extent(bound.axis)}")
        return first

    def _at(self, frame: Frame, bound: Bound, number: str, more: int = 0) -> str:
        """The expression of the bound of a query that has a number, or so much more."""
        variables = [(frame.value(variable).text, factor) for variable, factor in bound.variables]
        terms = [text if factor == 1 else f"{text} * {factor}" for text, factor in variables]
        return " + ".join([*([] if bound.axis is None else [number]), *terms, str(bound.keys + more)])

    def _first_whole(self, frame: Frame, start: str, tile: Axis) -> str:
        """The first key of the first block that each query of a tile that begins at `start` has behind its lower
        bound."""
        assert self.reach.lower is not None
        most = self._most(frame, start, tile, self.reach.lower)
        return frame.lines.name(f"(tl.maximum({most}, 0) + {self.step - 1}) & -{self.step}", "whole")

    def _whole_blocks(self, frame: Frame, start: str, tile: Axis) -> str:
        """Of a tile of queries that begins at `start`: how many blocks, from the first key on, have only keys that
        exist and that are before each query's upper bound."""
        total, _ = total_of(frame, (self.attention.keys,))
        if self.reach.upper is None:
            return str(int(total) // self.step) if total.isdigit() else frame.lines.name(f"{total} // {self.step}")
        keys = f"tl.minimum({total}, {self._least(frame, start, tile, self.reach.upper)})"
        return frame.lines.name(f"tl.maximum({keys}, 0) // {self.step}", "blocks")

    def _part_of(self, first: str, end: str) -> tuple[str, str]:
        """The keys of a program's part of all from `first` up to `end`, in whole steps: of short ones the last parts
        have none."""
        split, lines = self.plan.split, self.top.lines
        if split == 1:
            return first, end
        count, before = (end, "") if first == "0" else (f"{end} - {first}", f"{first} + ")
        chunk = lines.name(f"({count} + {self.step * split - 1}) // {self.step * split} * {self.step}", "chunk")
        begin = lines.name(f"{before}{self.part} * {chunk}", "begin")
        return begin, lines.name(f"tl.minimum({begin} + {chunk}, {end})", "end")

    def _scores(self, query: Described | None, key: Described | None, start: str, keys: str) -> Frame:
        """The frame of one block of scores, in which they are bound; the queries are loaded above the loop."""
        node = self.attention.scores.reduce
        reduced = frozenset(node.src[1:])
        of_queries = self._frame(self.top.lines, (self.rows, start), (self.terms, "0"))
        queries = _block(self.attention.scores.sides[0], of_queries, query, (start, "0"), 1, reduced)
        of_keys = Frame(self.body, (self.inner, self.step), outer=self.top, words=("terms", "keys"))
        bind_axis(of_keys, self.terms, 0, "0")
        bind_axis(of_keys, self.keys, 1, self.key, vector=keys, whole=self.whole)
        taken = _block(self.attention.scores.sides[1], of_keys, key, ("0", self.key), 0, reduced)
        outer = Frame(self.top.lines, (self.height, self.step), outer=self.top, words=("rows", "keys"))
        bind_axis(outer, self.rows, 0, start)
        scores = outer.inner(self.body)
        bind_axis(scores, self.keys, 1, self.key, vector=keys, whole=self.whole)
        text = f"tl.dot({queries.text}, {taken.text}{self._precision(queries)}, out_dtype=tl.float32)"
        self._bind_scores(scores, self.body.name(text, "score"))
        return scores

    def _bind_scores(self, scores: Frame, text: str) -> None:
        """Binds a block of scores, masked if its keys are not whole and masks are put on scores."""
        node = self.attention.scores.reduce
        if self.on_scores and not self.whole:
            text = self._masked(scores, text)
        scores.bound[node] = scores.cast(Block(text, "float32", BOTH), compute_type(node))

    def _masked(self, scores: Frame, text: str) -> str:
        """Scores that are -inf where a key does not exist or is out of reach."""
        for mask, kept in self.reach.masks:
            condition, first, _ = mask.src
            one, other = (text, OUT) if first is kept else (OUT, text)
            text = scores.lines.name(f"tl.where({scores.value(condition).text}, {one}, {other})", "score")
        if (exists := scores.masks.get(1)) is not None:
            text = scores.lines.name(f"tl.where({exists}, {text}, {OUT})", "score")
        return text

    def _term(self, node: UOp, scores: Frame) -> str:
        """What a block of keys adds to a reduction along each row."""
        node = node.replace(src=(self._within(node.src[0]), *node.src[1:]))
        if self.on_scores:
            return scores.atom(scores.cast(scores.value(node.src[0]), accumulator(node)))
        return scores.atom(masked_term(node, scores, 1))

    def _shift(self, scores: Frame) -> str:
        """What the exponents of this turn are shifted by: the largest score of each row so far."""
        score, factor = scaled(self._within(self.attention.maximum.src[0]))
        if factor <= 0:
            score, factor = self._within(self.attention.maximum.src[0]), 1.0
        term = self._term(self.attention.maximum.replace(src=(score, *self.attention.maximum.src[1:])), scores)
        largest = f"tl.max({term}, 1, keep_dims=True)" + (f" * {factor!r}" if factor != 1 else "")
        self.body.add(f"{self.new} = tl.maximum({self.largest}, {largest})")
        # of nothing but -inf so far the shift is 0: the terms are 0 then, not NaN
        return self.body.name(f'tl.where({self.new} == float("-inf"), 0.0, {self.new})', "shift")

    def _within(self, node: UOp) -> UOp:
        """A value without the mask that all keys of a whole block pass, or that is put on scores."""
        return self.reach.within(node) if self.whole or self.on_scores else node

    def _corrected(self, one: Shifted, scores: Frame, shift: str) -> tuple[UOp, UOp, str]:
        """Let the terms of a sum be shifted by the maximum so far: what stands for the maximum in them, the sum of
        these, and the factor by which the sum so far changes."""
        stand_in, node = running(self.attention.maximum, one)
        scores.bound[stand_in] = Block(shift, compute_type(self.attention.maximum), frozenset({0}))
        exponent = f"({shift} - {self.largest}) * ({one.factor!r})"
        return stand_in, node, self.body.name(scores.exp2(exponent), "factor")

    def _sum(self, one: Shifted, total: str, scores: Frame, shift: str) -> None:
        """Adds to a sum of shifted terms along each row."""
        _, node, factor = self._corrected(one, scores, shift)
        term = self._term(node, scores)
        self.body.add(f"{total} = {total} * {factor} + tl.sum({term}, 1, keep_dims=True)")

    def _weights(self, scores: Frame, shift: str) -> tuple[str, str]:
        """The weights of values as a tensor core takes them, and the factor by which their sum so far changes."""
        attention = self.attention
        stand_in, _, factor = self._corrected(attention.product, scores, shift)
        weight = self._within(attention.weight.substitute({attention.maximum: stand_in}))
        return _weight(attention, weight, scores, masked=not self.on_scores), factor

    def _weighted(self, value: Described | None, scores: Frame, shift: str, keys: str) -> None:
        """Adds to the sum of values, weighted."""
        attention = self.attention
        weight, factor = self._weights(scores, shift)
        of_values = Frame(self.body, (self.step, self.width), outer=self.top, words=("keys", "cols"))
        bind_axis(of_values, self.keys, 0, self.key, vector=keys, whole=self.whole)
        bind_axis(of_values, self.columns, 1, "0")
        loaded = _block(attention.values, of_values, value, (self.key, "0"), 0, frozenset({attention.keys}))
        dot = (
            f"tl.dot({weight}, {loaded.text}, {self.product} * {factor}{self._precision(loaded)}, out_dtype=tl.float32)"
        )
        self.body.add(f"{self.product} = {dot}")

    def _stored(self, start: str, of_rows: Sequence[str], layout: str = "") -> None:
        """The result of each query. `of_rows` are the largest score and the sums of each row."""
        out = self._of_values(start, layout)
        row, product = frozenset({0}), self.attention.product.node
        out.bound[self.attention.maximum] = Block(of_rows[0], compute_type(self.attention.maximum), row)
        for one, total in zip(self.attention.sums, of_rows[1:], strict=True):
            out.bound[one.node] = out.cast(Block(total, "float32", row), compute_type(one.node))
        out.bound[product] = out.cast(Block(self.product, "float32", BOTH), compute_type(product))
        store_tile(out, self.view.kernel.stored[0])

    def _left(self, start: str, of_rows: Sequence[str]) -> None:
        """Leaves what a part of the keys came to for the second launch; `of_rows` as of `_stored`."""
        lines, partials, every = self.top.lines, Partials.of(self.view), self.view.all_rows
        offset = lines.name(f"{self.part} * {partials.count}", "offset")
        rows = Frame(lines, (self.height, 1), outer=self.top, words=("rows",))
        self._bind_rows(rows, start)
        for number, text in enumerate(of_rows):
            first = f"{offset} + {partials.of_rows(number)}"
            _store_partial(rows, first, flat_place(rows, every), text, self.attention.rows)
        out = self._of_values(start)
        row, column = flat_place(out, every), flat_place(out, self.attention.columns)
        place = out.new(f"{row.text} * {partials.columns} + {column.text}", "int32", BOTH)
        _store_partial(out, offset, place, self.product, (*self.attention.rows, *self.attention.columns))

    def _of_values(self, start: str, layout: str = "") -> Frame:
        """The frame of the sums of values."""
        out = Frame(self.top.lines, (self.height, self.width), outer=self.top, layout=layout, words=("rows", "cols"))
        self._bind_rows(out, start)
        bind_axis(out, self.columns, 1, "0")
        return out

    def _bind_rows(self, frame: Frame, start: str) -> None:
        """Binds the queries of a frame, whose first axis they are."""
        bind_axis(frame, self.rows, 0, start)

    def _frame(self, lines: Lines, *axes: tuple[Axis, str]) -> Frame:
        """A frame of some axes, each from a start on."""
        frame = Frame(lines, tuple(axis.size for axis, _ in axes), outer=self.top, words=("rows", "cols"))
        for place, (axis, start) in enumerate(axes):
            bind_axis(frame, axis, place, start)
        return frame

    def _precision(self, block: Block) -> str:
        return self.writer.precision(self.plan.precision) if block.type == "float32" else ""


def _store_partial(frame: Frame, first: str, place: Block, text: str, ranges: Sequence[UOp]) -> None:
    conditions = frame.mask_of(place.axes, ranges)
    mask = f", mask={frame.all_of(conditions)}" if conditions else ""
    frame.lines.add(f"tl.store(workspace + {first} + {place.text}, {text}{mask})")


def _block(
    side: Operand,
    frame: Frame,
    described: Described | None,
    corner: tuple[str, str],
    axis: int,
    reduced: frozenset[UOp],
) -> Block:
    """The block of an operand that begins at a corner; `axis` is that of the ranges that are reduced."""
    if described is None:
        return operand_block(side, frame, axis, reduced)
    return described_block(side, frame, described, corner)


def _weight(attention: Attention, node: UOp, scores: Frame, *, masked: bool) -> str:
    """The block of weights as a tensor core takes it; `masked`: 0 where there is no key, by a choice."""
    type_ = TYPES[attention.values.dtype]
    if scores.writer.interpreted:
        type_ = interpreted_type(type_)
    block = scores.narrow(node, type_)
    text = scores.atom(block)
    if masked and (mask := scores.masks.get(1)) is not None:
        text = scores.lines.name(f"tl.where({mask}, {text}, tl.full([], 0.0, tl.{type_}))", "weight")
    return text if block.axes == BOTH else scores.lines.name(f"tl.broadcast_to({text}, {scores.shape(BOTH)})", "weight")
