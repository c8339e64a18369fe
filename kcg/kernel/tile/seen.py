"""A tile program as predictors see it (`kcg.kernel.seen`): its plan in numbers. Nothing is compiled for it.

Sizes, counts and shares are base-2 logarithms, so that a factor is a difference. Times are shares of what the program
takes by its analytic cost, of which a predictor learns what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from kcg.compat.tiny import GroupOp, Ops, UOp
from kcg.kernel.ast import extent
from kcg.kernel.reading.accesses import Access, Stored
from kcg.kernel.seen import Seen, Words
from kcg.kernel.tile.device import Device, Figures, device_of, figures_of
from kcg.kernel.tile.estimates import SPECIAL
from kcg.kernel.tile.forms import REGISTRY
from kcg.kernel.tile.parameters import PRECISIONS
from kcg.kernel.tile.plan import Array, TilePlan, Way, features, seconds
from kcg.types import Target

MOST_AXES: Final = 4  # of the tile and its loop: the last of more are left out, no form has them
MOST_ACCESSES: Final = 16
MOST_GROUPS: Final = 8
SECTOR_BYTES: Final = 32  # what a GPU moves between its caches at once
PARTS: Final = 6  # of what goes on at once, of those that a plan tells
NOTHING: Final = -20.0  # the logarithm of what is not there
BEFORE_LOG: Final = 17.0  # is added to logarithms of seconds: 0 at 7.6 µs

AXES: Final = ("reduces", "total", "size", "count", "filled", "power of two", "ranges")
ACCESSES: Final = (
    "store", "itemsize", "elements of a block", "run", "reached", "apart", "width", "waste", "gates", "divisions",
    "ranges", "not affine", "buffer", "TMA", "copied", "evicted first", "evicted last", "elements of a thread",
    "moved_s", "unique_s",
)  # fmt: skip
ACCESS_EDGES: Final = ("touches", "still", "contiguous", "stride", "bytes", "size", "total")
GROUPS: Final = (
    "dot", "rows", "columns", "terms", *(f"by {name}" for name in PRECISIONS), "operations", "functions", "reductions",
    "selections", "divisions", "elements of a thread", "elements",
)  # fmt: skip
GROUP_EDGES: Final = ("varies", "size")
WHOLE: Final = (
    *(f"plan {number}" for number in range(21)), "cost_s", *(f"part {number}" for number in range(PARTS)),
    *(f"largest {number}" for number in range(3)), "slower", "after", "held", "likely", "programs at once", "waves",
    "last wave", "programs", "tiles", "threads", "terms", "steps", "parts of a loop", "shared bytes", "fullest",
    "loads", "by TMA", "by copies", "loaded bytes", "least width", "mean width", "dots", "operations of a step",
    "partials", "barriers", "launched", "itemsize", "outputs", "kernels",
    "l2_s", "stored_s", "memory_s", "loads_s", "stores_s", "most waste", "waste of stores", "least run", "gates",
    "divisions", "not affine", "loaded by a thread", "operations", "functions", "reductions", "selections",
    "elements of a thread", "elements", "tiles of a multiprocessor", "reuse", "work of a thread",
    *(f"is {name}" for name in REGISTRY),
)  # fmt: skip
VERSION: Final = 1  # also of the analytic cost, shares of which these are
WORDS: Final = Words(AXES, ACCESSES, GROUPS, ACCESS_EDGES, GROUP_EDGES, WHOLE, VERSION)


def seen(plan: TilePlan, target: Target) -> Seen:
    """The plan of a program for a target."""
    return _Look(plan, target).seen()


def _log(value: float) -> float:
    return math.log2(value) if value > 1e-6 else NOTHING


def _count(value: float) -> float:
    return math.log2(1.0 + value)


@dataclass(frozen=True)
class _Moved:
    """One load or store of a program."""

    access: Access
    is_store: bool
    itemsize: int
    block: float  # elements of a block, of one step
    run: int  # neighbours in memory among them
    reached: float  # elements of all blocks
    apart: float  # blocks of ranges that no axis has
    width: int  # bytes that a thread moves at once

    @property
    def waste(self) -> float:
        """How many times as many bytes move as are asked for."""
        return max(1.0, SECTOR_BYTES / max(1, self.run * self.itemsize))


class _Look:
    def __init__(self, plan: TilePlan, target: Target) -> None:
        self.plan, self.target = plan, target
        self.device: Device = device_of(target)
        self.figures: Figures = figures_of(target)
        self.seconds = seconds(plan, target, self.figures)
        self.axes = plan.blocks_along[:MOST_AXES]
        self.moved = [
            self._moved(access, is_store)
            for kernel in plan.view.kernel.launched
            for accesses, is_store in ((kernel.loads, False), ([one.store for one in kernel.stored], True))
            for access in accesses
        ]
        self.steps, self.tiles, self.threads = max(1, plan.loop.steps), max(1, plan.tiles), max(1, plan.threads)

    def seen(self) -> Seen:
        moved = self._shown()
        groups = self._groups()
        return Seen(
            _rows([self._axis(ranges, size, i) for i, (ranges, size) in enumerate(self.axes)], AXES),
            _rows([self._access(one) for one in moved], ACCESSES),
            _rows(groups, GROUPS),
            _rows([self._edge(axis, one) for axis in self.axes for one in moved], ACCESS_EDGES),
            _rows([(1.0, _log(size)) for _, size in self.axes for _ in groups], GROUP_EDGES),
            _rows([self._whole()], WHOLE)[0],
            math.log(self.seconds),
        )

    def _shown(self) -> list[_Moved]:
        """Stores, and the loads that move most."""
        stores = [one for one in self.moved if one.is_store]
        loads = sorted((one for one in self.moved if not one.is_store), key=lambda one: -one.reached * one.itemsize)
        return (stores + loads)[:MOST_ACCESSES]

    # nodes

    def _moved(self, access: Access, is_store: bool) -> _Moved:
        steps, ranges = access.steps or {}, _address(access.address).ranges
        block, run, held = 1.0, 1, set[UOp]()
        for along, size in self.plan.blocks_along:
            held.update(along)
            if not any(one in ranges for one in along):
                continue
            inner = 1
            for one in reversed(along):
                count = min(extent(one), max(1, -(-size // inner)))
                block *= count if one in ranges else 1
                inner *= extent(one)
                if inner >= size:
                    break
            if steps.get(along[-1], 0) == 1:
                run = max(run, min(size, extent(along[-1])))
        reached = math.prod(float(extent(one)) for one in ranges)
        apart = math.prod(float(extent(one)) for one in ranges if one not in held)
        return _Moved(
            access, is_store, int(access.buffer.dtype.itemsize), block, run, reached, apart, self.plan.width(access)
        )

    def _axis(self, ranges: Sequence[UOp], size: int, number: int) -> tuple[float, ...]:
        total = math.prod(map(extent, ranges)) or 1
        count = -(-total // max(1, size))
        reduces = number >= len(self.plan.axes)
        return (
            reduces, _log(total), _log(size), _log(count), _log(total / (count * max(1, size))),
            size & (size - 1) == 0, len(ranges),
        )  # fmt: skip

    def _access(self, one: _Moved) -> tuple[float, ...]:
        times = 1 if one.is_store else self.steps
        moved = self.tiles * times * one.block * one.itemsize * one.waste
        unique = min(one.reached, one.access.buffer.size) * one.itemsize
        way, eviction = self._ways.get(one.access.node, ("", ""))
        return (
            one.is_store, one.itemsize / 4, _log(one.block), _log(one.run), _log(one.reached), _log(one.apart),
            _log(one.width), _log(one.waste), len(one.access.gates),
            _address(one.access.address).divisions, len(_address(one.access.address).ranges),
            one.access.steps is None, _log(one.access.buffer.size), way == Way.TMA,
            way == Way.COPY,
            eviction == "evict_first", eviction == "evict_last", _log(one.block / self.threads),
            self._share(moved / (self.figures.l2_bytes * self.target.cores)),
            self._share(unique / self.figures.memory_bytes),
        )  # fmt: skip

    def _edge(self, axis: tuple[Sequence[UOp], int], one: _Moved) -> tuple[float, ...]:
        ranges, size = axis
        inside = _address(one.access.address).ranges
        reached = [each for each in ranges if each in inside]
        stride = abs((one.access.steps or {}).get(ranges[-1], 0)) if ranges else 0
        total = math.prod(map(extent, reached))
        return (
            bool(reached), not reached, stride == 1, _count(stride), _count(stride * one.itemsize), _log(size),
            _log(total),
        )  # fmt: skip

    def _groups(self) -> list[tuple[float, ...]]:
        plan = self.plan
        found: list[tuple[float, ...]] = []
        nothing = (0.0,) * len(PRECISIONS)
        for dot in plan.dots:
            by = tuple(float(dot.precision == name) for name in PRECISIONS)
            work = dot.rows * dot.columns * dot.terms
            found.append(
                (1, _log(dot.rows), _log(dot.columns), _log(dot.terms), *by, _log(work), 0, 0, 0, 0,
                 _log(dot.rows * dot.columns / self.threads), _log(dot.rows * dot.columns))
            )  # fmt: skip
        for stored in plan.view.kernel.all_stored:
            found.append(
                (0, 0, 0, 0, *nothing, *map(_count, _operations(stored)), _log(plan.elements / self.threads),
                 _log(plan.elements))
            )  # fmt: skip
        return found[:MOST_GROUPS]

    @cached_property
    def _ways(self) -> dict[UOp, tuple[str, str]]:
        """How each load comes, and its eviction."""
        return {one.access.node: (one.way, one.eviction) for one in self.plan.loads}

    # the whole

    def _share(self, part_s: float) -> float:
        return _log(part_s / self.seconds)

    def _whole(self) -> tuple[float, ...]:
        plan, target, s = self.plan, self.target, self.seconds
        times, registers = plan.times(target, self.figures), plan.registers(self.device)
        parts = [self._share(one) for one in times.at_once]
        largest = sorted(parts, reverse=True)[:3]
        waves = plan.programs / (target.cores * max(1, registers.programs))
        needs = [_log(need.needed / need.most) if need.most > 0 else 0.0 for need in plan.needs(self.device)]
        ways = [way for way, _ in self._ways.values()]
        loads = [one for one in self.moved if not one.is_store]
        stores = [one for one in self.moved if one.is_store]
        loaded = sum(min(one.reached, one.access.buffer.size) * one.itemsize for one in loads)
        wide = sum(min(one.reached, one.access.buffer.size) * one.itemsize * one.width for one in loads)
        work = sum(dot.rows * dot.columns * dot.terms for dot in plan.dots)
        l2 = sum(self.tiles * self.steps * one.block * one.itemsize * one.waste for one in loads)
        stored = sum(self.tiles * one.block * one.itemsize * one.waste for one in stores)
        unique = sum(min(one.reached, one.access.buffer.size) * one.itemsize for one in self.moved)
        issued = sum(self.tiles * self.steps * max(self.threads, one.block * one.itemsize / one.width) for one in loads)
        written = sum(self.tiles * one.block * one.itemsize / one.width for one in stores)
        lanes = target.cores * self.figures.plain_ops / 4
        counts = [sum(each) for each in zip(*map(_operations, plan.view.kernel.all_stored), strict=True)]
        return (
            *features(plan), _log(s) + BEFORE_LOG, *_filled(parts, PARTS), *_filled(largest, 3),
            _log(times.slower), self._share(times.after_s), _count(registers.held), _count(registers.likely),
            _count(registers.programs), _log(waves), _log(math.ceil(waves) / waves) if 0 < waves < 64 else 0.0,
            _log(plan.programs), _log(plan.tiles), _log(plan.threads), _log(plan.loop.extent or 1), _log(self.steps),
            plan.loop.parts, _count(plan.shared_bytes), max(needs, default=0.0), len(ways),
            sum(way == Way.TMA for way in ways), sum(way == Way.COPY for way in ways), _count(loaded),
            _log(min((one.width for one in loads), default=16)), _count(wide / max(loaded, 1)), len(plan.dots),
            _count(work), _count(plan.partials), len(plan.barriers), len(plan.view.kernel.launched),
            int(plan.view.kernel.store.buffer.dtype.itemsize), _log(math.prod(plan.view.kernel.extents)),
            len(plan.view.kernel.all_stored),
            self._share(l2 / (self.figures.l2_bytes * target.cores)),
            self._share(stored / (self.figures.l2_bytes * target.cores)),
            self._share(unique / self.figures.memory_bytes),
            self._share(issued / lanes), self._share(written / lanes),
            _log(max((one.waste for one in loads if one.block > 1), default=1.0)),
            _log(max((one.waste for one in stores), default=1.0)),
            _log(min((one.run * one.itemsize for one in loads), default=1e6)),
            sum(len(one.access.gates) for one in loads), sum(_address(one.access.address).divisions for one in loads),
            sum(one.access.steps is None for one in loads),
            _log(max((one.block for one in loads), default=0.0) / self.threads),
            *map(_count, counts[:4]), _log(plan.elements / self.threads), _log(plan.elements),
            _log(self.tiles / target.cores), _log(l2 / max(unique, 1)), _log(plan.elements * self.steps / self.threads),
            *(float(plan.form == name) for name in REGISTRY),
        )  # fmt: skip


def _filled(values: Sequence[float], count: int) -> tuple[float, ...]:
    return (*values, *(NOTHING,) * count)[:count]


def _rows(rows: Iterable[Sequence[float]], names: Sequence[str]) -> Array:
    """(n, features) float32; never infinite, never NaN."""
    made = np.array(list(rows), np.float32).reshape(-1, len(names))
    return made if np.isfinite(made).all() else np.nan_to_num(made, nan=0.0, posinf=64.0, neginf=-64.0)


KEPT: Final = 4096  # addresses and values, whose numbers no program changes


@dataclass(frozen=True)
class _Address:
    ranges: frozenset[UOp]
    divisions: int  # that computing it takes


@lru_cache(KEPT)
def _address(address: UOp) -> _Address:
    return _Address(frozenset(address.ranges), sum(map(_divides, address.toposort())))


def _operations(stored: Stored) -> tuple[int, ...]:
    """Simple operations, functions, reductions, selections and divisions of what is stored."""
    return _operations_of(stored.value)


@lru_cache(KEPT)
def _operations_of(value: UOp) -> tuple[int, ...]:
    nodes = list(value.toposort())
    return (
        sum(one.op in GroupOp.ALU for one in nodes),
        sum(one.op in SPECIAL for one in nodes),
        sum(one.op is Ops.REDUCE for one in nodes),
        sum(one.op is Ops.WHERE for one in nodes),
        sum(_divides(one) for one in nodes),
    )


def _divides(node: UOp) -> bool:
    return node.op.name in ("FLOORDIV", "FLOORMOD", "CDIV", "CMOD")
