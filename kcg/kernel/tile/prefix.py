"""Prefix sums: tiles of whole rows, each of which is read once and summed by one scan (`tl.cumsum`).

The kernel says that every place of a row is a reduction of its own (`kcg.kernel.reading.prefix`): as `reduction` reads
it, the terms of n places are n^2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kcg.compat.tiny import UOp
from kcg.kernel.ast import extent
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.prefix import prefix_of
from kcg.kernel.tile.device import Device, Figures, device_of
from kcg.kernel.tile.emit import Block, Frame, Lines, Writer, compute_type
from kcg.kernel.tile.epilogue import store_tile
from kcg.kernel.tile.estimates import bytes_of, either, waves_of
from kcg.kernel.tile.form import ROWS_TILE, Axes, Form, powers, rows_together, settled
from kcg.kernel.tile.parameters import PREFIX, TileParameters
from kcg.kernel.tile.plan import Loop, Need, TilePlan, Times
from kcg.kernel.tile.reduction import accumulator
from kcg.kernel.tile.tiles import Tiled, axes_of, bind_tile, count_of, open_frame, power_of_two, split_number
from kcg.kernel.tile.views import PrefixView
from kcg.types import Target

MOST_ELEMENTS = 16_384  # of a program
MOST_OF_THREAD = 64


class PrefixSums(Form[PrefixView, "PrefixPlan"]):
    """Whole rows, each place with the sum of what stands there and before it."""

    name = PREFIX
    noun = "prefix sum"
    sees = PrefixView

    def has(self, kernel: TileKernel, target: Target) -> bool:
        return kernel.attention is None and kernel.rows is None and prefix_of(kernel) is not None

    def preference(self, view: PrefixView, target: Target) -> int:
        return 2

    def axes(self, view: PrefixView) -> tuple[Axes, ...]:
        along = view.kernel.outputs.index(view.prefix.along)
        others = tuple(number for number in range(len(view.kernel.outputs)) if number != along)
        return ((others, (along,)),) if others else (((along,),),)

    def start(self, view: PrefixView, target: Target, axes: Axes) -> TileParameters:
        width, rows = power_of_two(extent(view.prefix.along)), count_of(view.kernel, axes[0])
        height = rows_together(width, rows, target)
        tile = (height, width) if len(axes) > 1 else (width,)
        warps = device_of(target).warps(256 if math.prod(tile) >= ROWS_TILE else 128)
        made = TileParameters(PREFIX, axes, tile, reduce_tile=1, num_warps=warps, num_stages=1)
        return settled(view.kernel, target, made, math.prod(tile))

    def tiles(self, view: PrefixView, p: TileParameters) -> Iterable[tuple[int, ...]]:
        width = power_of_two(extent(view.prefix.along))
        if len(p.axes) == 1:
            return [(width,)]
        return [(height, width) for height in powers(1, MOST_ELEMENTS // width, count_of(view.kernel, p.axes[0]))]

    def steps(self, view: PrefixView) -> tuple[int, ...]:
        return (1,)

    def planned(self, view: PrefixView, target: Target, p: TileParameters) -> PrefixPlan:
        tiled = Tiled(view.kernel, axes_of(view.kernel, p))
        places = extent(view.prefix.along)
        loop = Loop("places", places, power_of_two(places))
        decided = self.decided(target, p, tiled.axes, loop)
        return PrefixPlan.of(decided, view=view, programs=tiled.tiles, tiles=tiled.tiles, tiled=tiled)

    def write(self, plan: PrefixPlan, writer: Writer) -> Lines:
        root = open_frame(plan.view.kernel, writer, plan.tile, words=("rows", "places")[-len(plan.tile) :])
        number = root.lines.name("tl.program_id(0)", "program")
        bind_tile(root, plan.tiled, split_number(root, number, [*plan.tiled.places, *plan.tiled.counts]))
        root.reduce = lambda node, frame: _write_scan(plan, node, frame.home(node))
        for stored in plan.view.kernel.stored:
            store_tile(root, stored)
        return root.lines


@dataclass(frozen=True, kw_only=True)
class PrefixPlan(TilePlan):
    """Tiles of rows; the last axis has all places of a row."""

    view: PrefixView
    tiled: Tiled

    def needs(self, device: Device) -> Iterator[Need]:
        yield Need("elements of a program", self.elements, MOST_ELEMENTS)
        yield Need("elements of a thread", self.elements // self.threads, MOST_OF_THREAD)
        if self.num_warps > 1:
            yield Need("threads with an element each", self.threads, self.elements)

    def times(self, target: Target, figures: Figures) -> Times:
        """A stream of bytes beside the steps of the scan, each of which is an addition and an exchange."""
        nbytes = sum(map(bytes_of, (*self.view.kernel.loads, self.view.kernel.store)))
        busy = min(self.programs, target.cores)
        additions = 2 * self.programs * self.elements * math.log2(max(2, self.tile[-1]))
        resident = device_of(target).resident(threads=self.threads, registers=32)
        waves = waves_of(self.programs / (target.cores * resident))
        at_once = either(nbytes / figures.memory_bytes, additions / (figures.plain_ops * busy))
        return Times((at_once,), after_s=waves * figures.opening_s / 2)


def _write_scan(plan: PrefixPlan, node: UOp, frame: Frame) -> None:
    """The sums of all places of the tile's rows. What stands behind a row's end is in none of those that are stored."""
    axis, type_ = len(plan.tile) - 1, accumulator(node)
    term = frame.cast(frame.value(plan.view.prefix.value), type_)
    axes, text = term.axes | {axis}, frame.atom(term)
    if axis not in term.axes:
        text = f"tl.broadcast_to({text}, {frame.shape(axes)})"
    sums = Block(frame.lines.name(f"tl.cumsum({text}, {axis})", "sums"), type_, axes)
    frame.bound[node] = frame.values[node] = frame.cast(sums, compute_type(node))
