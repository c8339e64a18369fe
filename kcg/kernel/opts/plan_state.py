"""What arithmetic on schedules starts from: a schedule state of tinygrad read once, as numbers.

Every Opt after it only splits axes or renames them, so each range of the state that was read (an "origin") stays a sum
of `step * axis` over the axes split off it. The axis table and the micro-operation count of any later schedule follow
from the strides of the origins at those steps and from which nodes depend on which origins.
`kcg.kernel.opts.planner` does the Opts. Sets of origins are bit masks
throughout.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kcg.compat.scheduling import canonical_key
from kcg.compat.tiny import AxisType, GroupOp, Ops, Scheduler, UOp, axis_to_pos, dtypes
from kcg.kernel import loop_nest
from kcg.kernel.loop_nest import (
    INNER,
    REDUCING,
    Access,
    AxisTable,
    _address,
    _by_power_of_two,
    _Count,
    _is_gate,
    _packs,
    _varies_with,
    address_value,
    nodes_of_addresses,
)

UOPS_PER_SPLIT = 2  # the product and the sum that take the place of a split range
MOST_TRIED = 1 << 20  # as divisors of an extent: no device holds one of 2^40, but a file's kernel may have it


class Axis(NamedTuple):
    """One axis of a scheduled kernel. Axes sort as tinygrad's ranges do."""

    position: int
    number: tuple[int, ...]  # tinygrad's own of the range
    extent: int
    kind: str  # AxisType name
    origin: int  # index of the initial axis that it is a part of
    step: int  # by how much the origin moves with one step along this axis
    uid: int  # stays through splits and swaps: index of the initial axis, or of the split that made it after these


class Split(NamedTuple):
    """One split of the axis `uid`: tinygrad writes `factor * high + low` in its place."""

    uid: int
    extent: int  # of what keeps the uid
    amount: int  # extent of the new axis
    top: bool  # the new axis is the high one
    kind: str  # of the new axis


class _Part:
    """A node of the expression that took the place of an origin: an axis, or the sum of two parts."""

    def __init__(self, uid: int, extent: int) -> None:
        self.uid, self.extent = uid, extent
        self.high: _Part | None = None
        self.low: _Part | None = None
        self.factor = 0

    def divide(self, split: Split, uid: int) -> tuple[_Part, _Part]:
        """Splits this axis; returns what is left of it, and the new one."""
        old, new = _Part(self.uid, split.extent), _Part(uid, split.amount)
        self.high, self.low = (new, old) if split.top else (old, new)
        self.factor = self.low.extent
        return old, new

    def parts(self) -> Iterator[_Part]:
        """All parts, in the order in which tinygrad visits them."""
        if self.high is not None and self.low is not None:
            yield from self.high.parts()
            yield from self.low.parts()
        yield self

    def operations(self) -> Iterator[tuple[str, _Part]]:
        """The operations of the expression, in tinygrad's order, each with the part that it depends on."""
        if self.high is not None and self.low is not None:
            yield from self.high.operations()
            yield "MUL", self.high
            yield from self.low.operations()
            yield "ADD", self

    def axes(self) -> list[int]:
        """The uids of the axes that it depends on."""
        return [part.uid for part in self.parts() if part.high is None]


class Touched(NamedTuple):
    """A load or store: what `Access` says of it, and which origins its parts depend on."""

    slot: int
    itemsize: int
    is_store: bool
    elements: int
    used: int
    address: int
    apart: int  # unrolling over these leaves the copies of the address apart
    gate: int
    copied: int
    widest: int  # elements moved at once
    widens: bool


class Core(NamedTuple):
    """A tensor core instruction."""

    copied: int
    sources: tuple[tuple[int, int], ...]  # (origins, elements held) of both operands
    elements: int  # over all of its axes
    results: int  # it holds per thread
    last: tuple[int, ...]  # numbers of the axes of its results


class Reduction(NamedTuple):
    copied: int
    added: int
    over: int
    reduces: bool  # over an axis that is not one of threads or unrolled
    groups: bool  # over an axis of threads
    takes: int
    rounds: bool
    core: Core | None


def _tuples(value: Any) -> Any:
    return tuple([_tuples(v) for v in value]) if isinstance(value, list | tuple) else value


def _core_of(row: Any) -> Core:
    return Core(*_tuples(row))


@dataclass(frozen=True, eq=False)
class InitialNest:
    """A schedule state as numbers. Tuples by origin unless it says otherwise."""

    key: str  # identity of the scheduled kernel
    axes: tuple[Axis, ...]
    reduce_bytes: int  # item size of the first reduction; 0 where there is none
    groupable: int  # reductions that are in no other one
    threadable: int
    core_held: int  # elements of a tensor core that one thread holds; 0 without one
    no_locals: bool
    columns: dict[tuple[int, int], tuple[int, ...]]  # (origin, step) -> elements that every access moves
    touched: tuple[Touched, ...]
    operations: tuple[tuple[str, int], ...]  # (name, origins) in tinygrad's order; name "" is the place of an origin
    tensor_core: bool
    in_data: int  # origins that no address depends on: their expressions are computed as data
    place: tuple[int, ...]  # order in which tinygrad visits the origins
    plain: tuple[tuple[int, int, int], ...]  # (origins, of which one must be unrolled or 0, operations)
    rounded: tuple[tuple[int, int], ...]  # (origins, conversions)
    widened: tuple[tuple[int, int], ...]
    cores: tuple[Core, ...]
    reductions: tuple[Reduction, ...]
    constants: int  # those that no split can add to
    index_constants: frozenset[int]
    data_constants: frozenset[int]
    fixed: int  # operations that are there once, whatever is unrolled
    costs: loop_nest.Costs
    adds: tuple[int, int]  # what a sum and a product take

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, from which `from_json` makes an equal nest."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["columns"] = [[origin, step, column] for (origin, step), column in self.columns.items()]
        fields |= {name: sorted(fields[name]) for name in ("index_constants", "data_constants")}
        return {**fields, "costs": astuple(self.costs)}

    @staticmethod
    def from_json(value: dict[str, Any]) -> InitialNest:
        """The nest of what `to_json` gave, also after a trip through JSON's text."""
        reductions = [Reduction._make([*r[:-1], _core_of(r[-1]) if r[-1] else None]) for r in value["reductions"]]
        return InitialNest(
            **{
                **{name: _tuples(v) for name, v in value.items()},
                "axes": tuple([Axis(*_tuples(a)) for a in value["axes"]]),
                "columns": {(origin, step): tuple(column) for origin, step, column in value["columns"]},
                "touched": tuple([Touched(*t) for t in value["touched"]]),
                "cores": tuple([_core_of(c) for c in value["cores"]]),
                "reductions": tuple(reductions),
                "index_constants": frozenset(value["index_constants"]),
                "data_constants": frozenset(value["data_constants"]),
                "costs": loop_nest.Costs(*value["costs"]),
            }
        )

    def table(self, axes: tuple[Axis, ...], splits: tuple[Split, ...]) -> AxisTable:
        """The axis table after splits."""
        origins = [1 << a.origin for a in axes]
        marks: dict[int, tuple[bool, ...]] = {}

        def marked(mask: int) -> tuple[bool, ...]:
            if (found := marks.get(mask)) is None:
                found = marks[mask] = tuple([bool(mask & origin) for origin in origins])
            return found

        columns = [self.columns[a.origin, a.step] for a in axes]
        rows = zip(*columns, strict=True) if columns else iter([()] * len(self.touched))
        operations: list[tuple[str, tuple[bool, ...]]] = []
        for name, mask in self.operations:
            if name:
                operations.append((name, marked(mask)))
            elif splits:
                operations.extend(self._computed(axes, splits, mask))
        return AxisTable(
            extents=tuple([a.extent for a in axes]),
            kinds=tuple([a.kind for a in axes]),
            accesses=tuple(
                [
                    Access(t.slot, t.itemsize, t.is_store, row, marked(t.used), t.elements)
                    for t, row in zip(self.touched, rows, strict=True)
                ]
            ),
            operations=tuple(operations),
            tensor_core=self.tensor_core,
        )

    def _computed(
        self, axes: tuple[Axis, ...], splits: tuple[Split, ...], mask: int
    ) -> Iterator[tuple[str, tuple[bool, ...]]]:
        """The operations of the expression of an origin that is data."""
        uids = [a.uid for a in axes]
        for root in self._expressions(splits, mask):
            for name, over in root.operations():
                depends = set(over.axes())
                yield name, tuple([uid in depends for uid in uids])

    def _expressions(self, splits: tuple[Split, ...], mask: int) -> list[_Part]:
        """What took the place of each masked origin, in the order in which tinygrad visits them."""
        roots = {o: _Part(o, self.axes[o].extent) for o in self.place if mask >> o & 1}
        leaves = dict(roots)
        for uid, split in enumerate(splits, start=len(self.axes)):
            if split.uid in leaves:
                leaves[split.uid], leaves[uid] = leaves[split.uid].divide(split, uid)
        return list(roots.values())

    def uops(self, axes: tuple[Axis, ...], splits: tuple[Split, ...]) -> int:
        """The number of micro-operations after splits, as `count_uops` has it."""
        return _Counted(self, axes, splits).total()

    def fits(self, axes: tuple[Axis, ...], splits: tuple[Split, ...], most: int) -> bool:
        """Whether there are at most so many micro-operations; mostly told without counting them."""
        unrolled = math.prod([a.extent for a in axes if a.kind in INNER])
        once, repeated, per_split = self._bounds
        bound = (
            once
            + repeated * unrolled
            + len(splits) * per_split * unrolled
            + self.costs.plain * loop_nest.UOPS_PER_AXIS * len(axes)
        )
        if bound <= most:
            return True
        counted = _Counted(self, axes, splits)
        return counted.at_most() <= most or counted.total() <= most

    @cached_property
    def _bounds(self) -> tuple[float, float, float]:
        """No count is above `once + repeated * u + per_split * u * splits`, beside the axes, where u is unrolled.

        Each term of `_Counted` is taken as if every unrolled axis repeated it.
        """
        costs, rows, held = self.costs, len(self.touched), sum(c.results for c in self.cores)
        plain = sum(operations for *_, operations in self.plain) + 3 * len(self.cores) + held
        plain += rows * (loop_nest.UOPS_PER_ACCESS + 2)
        for r in self.reductions:
            plain += loop_nest.UOPS_PER_ACCUMULATOR + loop_nest.UOPS_PER_GROUPED + 2 * r.takes
            plain += r.core.results if r.core else 0
        rounded = sum(times for _, times in self.rounded) + sum(r.rounds for r in self.reductions)
        widened = sum(times for _, times in self.widened) + sum(t.widens for t in self.touched)
        once = costs.plain * self.fixed + costs.constant * (self.constants + len(self.data_constants) + held + 4)
        once += costs.constant * (len(self.axes) if self.in_data else 0) + 1
        repeated = costs.plain * plain + costs.constant * (rows + 1) + costs.rounded * rounded + costs.widened * widened
        return once, repeated, costs.plain * (UOPS_PER_SPLIT + sum(self.adds)) + 2 * costs.constant


class _Counted:
    """One count: the extents that are unrolled, and the sets of what is written once however often it is used."""

    def __init__(self, initial: InitialNest, axes: tuple[Axis, ...], splits: tuple[Split, ...]) -> None:
        self.initial, self.axes, self.splits = initial, axes, splits
        self.inner = [a for a in axes if a.kind in INNER]
        self.unrolled = 0
        self.sizes: dict[int, int] = {}
        for a in self.inner:
            self.unrolled |= 1 << a.origin
            self.sizes[1 << a.origin] = self.sizes.get(1 << a.origin, 1) * a.extent
        self.grouped = 0
        self.split = 0
        part_of = list(range(len(initial.axes)))
        for s in splits:
            part_of.append(part_of[s.uid])
            if s.kind == "GROUP_REDUCE":
                self.grouped |= 1 << part_of[s.uid]
            self.split += not initial.in_data >> part_of[s.uid] & 1
        self.products: dict[int, int] = {}
        self.offsets: set[int] = set()

    def copies(self, mask: int) -> int:
        """The product of the unrolled extents of the masked origins."""
        if (found := self.products.get(mask)) is None:
            found = self.products[mask] = math.prod([size for origin, size in self.sizes.items() if mask & origin])
        return found

    def total(self) -> int:
        taken, widened = self._accesses()
        return self._sum(taken, widened, 0, self._constants())

    def at_most(self) -> int:
        """No less than `total`, without looking how accesses are packed and which constants are the same."""
        taken = widened = offsets = 0
        for t in self.initial.touched:
            elements = self.copies(t.copied if t.apart & self.unrolled else t.address)
            taken += (2 + loop_nest.UOPS_PER_ACCESS) * elements
            widened += elements if t.widens else 0
            offsets += elements + t.widest
        constants = len(self.initial.data_constants) + len(self.initial.axes) + 2 * len(self.splits)
        return self._sum(taken, widened, offsets, constants)

    def _sum(self, taken: int, more: int, offsets: int, constants: int) -> int:
        """`offsets` beside those in the set, `constants` beside those of the kernel itself."""
        initial, costs = self.initial, self.initial.costs
        count = initial.fixed + loop_nest.UOPS_PER_AXIS * len(self.axes) + UOPS_PER_SPLIT * self.split
        for copied, apart, operations in initial.plain:
            count += operations * (self.copies(copied) if not apart or apart & self.unrolled else 1)
        if initial.in_data and self.splits:
            count += self._data()
        rounded = sum(times * self.copies(mask) for mask, times in initial.rounded)
        widened = sum(times * self.copies(mask) for mask, times in initial.widened)
        for core in initial.cores:
            count += self._core(core)
        for reduction in initial.reductions:
            count += self._reduction(reduction)
            rounded += reduction.rounds * self.copies(reduction.added)
        return round(
            costs.plain * (count + taken)
            + costs.constant * (len(self.offsets) + offsets + initial.constants + constants)
            + costs.rounded * rounded
            + costs.widened * (widened + more)
        )

    def _constants(self) -> int:
        """How many extents and factors are constants of data; those that are in addresses too are not counted."""
        initial = self.initial
        if not initial.in_data and not initial.data_constants:
            return 0
        values = {True: set(initial.data_constants), False: set(initial.index_constants)}
        extents = {o: initial.axes[o].extent for o in initial.place}
        is_data = {o: bool(initial.in_data >> o & 1) for o in initial.place}
        for uid, split in enumerate(self.splits, start=len(initial.axes)):
            if split.uid in extents:
                is_data[uid] = is_data[split.uid]
                extents[split.uid], extents[uid] = split.extent, split.amount
                values[is_data[uid]].add(split.extent if split.top else split.amount)  # the factor
        for uid, extent in extents.items():
            values[is_data[uid]].add(extent)
        return len(values[True] - values[False])

    def _data(self) -> int:
        extents = {a.uid: a.extent for a in self.inner}
        count, (add, mul) = 0, self.initial.adds
        for root in self.initial._expressions(self.splits, self.initial.in_data):
            for name, over in root.operations():
                count += (add if name == "ADD" else mul) * math.prod([extents.get(uid, 1) for uid in over.axes()])
        return count

    def _core(self, core: Core) -> int:
        times = self.copies(core.copied) // core.elements
        self.offsets.update(range(core.results))
        return times * (1 + core.results) + sum(self.copies(mask) // held for mask, held in core.sources)

    def _reduction(self, reduction: Reduction) -> int:
        results = self.copies(reduction.copied)
        count = reduction.takes * self.copies(reduction.added)
        if reduction.core is not None:
            count = self._accumulate(reduction.core, results)
        groups = reduction.groups or bool(reduction.over & self.grouped)
        if reduction.reduces or groups:
            self.offsets.update(range(results))
        if reduction.reduces:
            count += loop_nest.UOPS_PER_ACCUMULATOR * results
        if groups:
            count += (loop_nest.UOPS_PER_GROUPED + reduction.takes) * results
        return count

    def _accumulate(self, core: Core, results: int) -> int:
        times = self.copies(core.copied) // core.elements
        if times * core.results > results:
            return times * core.results
        numbers = {a.uid: a.number[0] for a in self.inner}
        roots = self.initial._expressions(self.splits, -1)
        order = [numbers[uid] for root in roots for uid in root.axes() if uid in numbers]
        return times * core.results if order[-len(core.last) :] == list(core.last) else times

    def _accesses(self) -> tuple[int, int]:
        """Operations of loads and stores, and how many elements are made float32."""
        initial, count, widened = self.initial, 0, 0
        columns = [(a, 1 << a.origin, initial.columns[a.origin, a.step]) for a in self.axes]
        inner = [(a.extent, origin, column) for a, origin, column in columns if a.kind in INNER]
        outer = [column for a, _, column in columns if a.kind not in INNER]
        addresses: set[tuple[int, ...]] = set()
        for i, t in enumerate(initial.touched):
            widest = t.widest
            while widest > 1 and any(column[i] % widest for column in outer):
                widest //= 2
            if t.gate and any(column[i] == 1 for _, origin, column in inner if t.gate & origin):
                widest = 1
            unrolled = tuple([(column[i], extent) for extent, origin, column in inner if t.address & origin])
            if t.apart & self.unrolled:
                elements = self.copies(t.copied)
                run = math.prod([extent for step, extent in unrolled if step == 1])
                width = widest if run % widest == 0 else 1
                groups, packed, packs = elements // width, elements * (width > 1), elements // width * (width > 1)
            else:
                starts, packed, packs = _packs(unrolled, widest)
                groups = len(starts)
                self.offsets.update(starts)
                strides = tuple([column[i] for _, _, column in columns])
                if strides not in addresses:
                    addresses.add(strides)
                    count += groups
            if packed:
                self.offsets.update(range(widest))
                count += packs if t.is_store else packed
            if t.widens:
                widened += groups
            count += loop_nest.UOPS_PER_ACCESS * groups
        return count, widened


# ---- Reading a schedule state of tinygrad into an `InitialNest`: strides, dependences and weights, once per kernel.

POSITION: dict[str, int] = {kind.name: place for kind, place in axis_to_pos.items()}
"""Where axes of a kind stand among others; axes of one position are ordered by their number."""


def initial_nest(state: Scheduler) -> InitialNest | None:
    """The loop nest of a schedule state, None where arithmetic does not describe it: an extent is symbolic."""
    if any(r.src[0].op is not Ops.CONST or r.dtype is not dtypes.weakint or len(r.src) > 1 for r in state.rngs):
        return None
    if len({(POSITION[r.arg[-1].name], r.arg[:-1]) for r in state.rngs}) < len(state.rngs):
        return None  # their order is not that of their numbers
    return _NestReader(state).initial()


class _NestReader:
    """One reading: the nodes of the state, and which of its ranges ("origins") they depend on, as bit masks."""

    def __init__(self, state: Scheduler) -> None:
        self.state, self.ranges = state, state.rngs
        self.nodes: list[UOp] = list(state.ast.toposort())
        self.bit: dict[UOp, int] = {r: 1 << i for i, r in enumerate(self.ranges)}
        self.extents = tuple(int(r.vmax) + 1 for r in self.ranges)
        self.kinds: tuple[str, ...] = tuple(r.arg[-1].name for r in self.ranges)
        self.index_nodes = nodes_of_addresses(self.nodes)
        self.count = _Count(state, AxisTable(self.extents, self.kinds, (), (), False))  # for what it knows of a target
        self.summed = self.mask(self.count.summed)
        self.widens: set[UOp] = set()
        self.plain: Counter[tuple[int, int]] = Counter()
        self.rounded: Counter[int] = Counter()
        self.widened: Counter[int] = Counter()
        self.apart: dict[UOp, int] = {}
        self.fixed = loop_nest.UOPS_FIXED + loop_nest.UOPS_PER_BUFFER * sum(u.op is Ops.PARAM for u in self.nodes)

    def mask(self, ranges: Iterable[UOp]) -> int:
        found = 0
        for r in ranges:
            found |= self.bit.get(r, 0)
        return found

    def copied(self, node: UOp) -> int:
        """Over which origins unrolling repeats a node."""
        found = self.mask(node.ranges)
        return found if node in self.count.fragments else found & ~self.summed

    def initial(self) -> InitialNest:
        in_data = self.mask(r for r in self.ranges if r not in self.index_nodes)
        self._weigh_addresses()
        self._weigh_data()
        core, reductions = getattr(self.state, "tensor_core", None), [u for u in self.nodes if u.op is Ops.REDUCE]
        accesses = [u for u in self.nodes if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM]
        stored = {u.src[0] for u in self.nodes if u.op is Ops.STORE}
        constants, of_addresses, of_data = self._constants()
        return InitialNest(
            key=canonical_key(self.state),
            axes=tuple(
                Axis(POSITION[kind], r.arg[:-1], extent, kind, origin=i, step=1, uid=i)
                for i, (r, extent, kind) in enumerate(zip(self.ranges, self.extents, self.kinds, strict=True))
            ),
            reduce_bytes=int(reductions[0].dtype.itemsize) if reductions else 0,
            groupable=self._groupable(reductions),
            threadable=self._threadable(),
            core_held=math.prod(core.dims) // core.threads if core else 0,
            no_locals=bool(self.state.dont_use_locals),
            columns=self._columns(accesses),
            touched=tuple(self._touched(u, u in stored) for u in accesses),
            operations=tuple(self._operations()),
            tensor_core=any(u.op is Ops.WMMA for u in self.nodes),
            in_data=in_data,
            place=tuple(self.bit[u].bit_length() - 1 for u in self.nodes if u in self.bit),
            plain=tuple((copied, apart, times) for (copied, apart), times in self.plain.items()),
            rounded=tuple(self.rounded.items()),
            widened=tuple(self.widened.items()),
            cores=tuple(self._core(u) for u in self.nodes if u.op is Ops.WMMA and u not in self.index_nodes),
            reductions=tuple(self._reduction(u) for u in reductions if u not in self.index_nodes),
            constants=constants,
            index_constants=of_addresses,
            data_constants=of_data,
            fixed=self.fixed,
            costs=self.count.costs,
            adds=(self.count._takes(Ops.ADD), self.count._takes(Ops.MUL)),
        )

    # what decides which Opts are legal

    def _groupable(self, reductions: list[UOp]) -> int:
        found = 0
        for r in self.ranges:
            over = next((u for u in reductions if any(r in source.ranges for source in u.src[1:])), None)
            if over is not None and not any(outer.arg[-1].name in REDUCING for outer in over.ranges):
                found |= self.bit[r]
        return found

    def _threadable(self) -> int:
        ends = [u for u in self.state.ast.src if u.op is Ops.END]
        found = self.mask(r for u in ends for source in u.src[1:] for r in source.ranges)
        for u in self.nodes:
            if u.op is Ops.STAGE:
                found &= self.mask(u.ranges)
        return found

    # what the axis table is made of

    def _operations(self) -> Iterable[tuple[str, int]]:
        for u in self.nodes:
            if u in self.index_nodes:
                continue
            if u in self.bit:
                yield "", self.bit[u]
            elif u.op in GroupOp.ALU or u.op in (Ops.REDUCE, Ops.WMMA):
                yield (u.arg[0] if u.op is Ops.REDUCE else u.op).name, self.mask(_varies_with(u))

    def _columns(self, accesses: list[UOp]) -> dict[tuple[int, int], tuple[int, ...]]:
        """How far every access moves with every step that an axis of an origin can have: a divisor of its extent."""
        steps = [(i, d) for i, extent in enumerate(self.extents) for d in _divisors(extent)]
        values = self._evaluate(steps)
        moved = np.zeros((len(accesses), len(steps)), np.int64)
        for row, u in zip(moved, accesses, strict=True):
            found = np.broadcast_to(np.asarray(values[u.src[1]], np.int64), (len(steps) + 1,))
            row[:] = found[1:] - found[0]
        return dict(zip(steps, map(tuple, moved.T.tolist()), strict=True))

    def _evaluate(self, steps: list[tuple[int, int]]) -> dict[UOp, Any]:
        """Every node of the addresses, as `axis_table` evaluates it: at the origin, then one step along one range."""
        values: dict[UOp, Any] = {r: np.zeros(len(steps) + 1, np.int64) for r in self.ranges}
        for place, (i, step) in enumerate(steps, start=1):
            values[self.ranges[i]][place] = step
        for node in self.nodes:
            if node in self.index_nodes and node not in self.bit:
                values[node] = address_value(node, values)
        return values

    # what the count of micro-operations is made of

    def _weigh_addresses(self) -> None:
        for u in self.nodes:
            if u not in self.index_nodes:
                continue
            apart = 0
            for source in u.src:
                apart |= self.apart.get(source, 0)
            if (u.op in GroupOp.ALU or u.op is Ops.CAST) and not _is_gate(u):
                if not (u.op in (Ops.ADD, Ops.CAST) or (u.op is Ops.MUL and any(s.op is Ops.CONST for s in u.src))):
                    apart |= self.mask(u.ranges)
                takes = loop_nest.UOPS_IN_INDEX.get(u.op, 1)
                takes = 1 if takes > 1 and _by_power_of_two(u.src[1]) else takes
                if apart:
                    self.plain[self.copied(u), apart] += takes
                else:
                    self.fixed += takes
            self.apart[u] = apart

    def _weigh_data(self) -> None:
        for u in self.nodes:
            if u in self.index_nodes or u.op in (Ops.WMMA, Ops.REDUCE):
                continue
            if u.op in (Ops.CAST, Ops.BITCAST):
                self._weigh_cast(u)
            elif u.op in GroupOp.ALU:
                if u.dtype is dtypes.bfloat16 and self.count.emulates_bf16 and u.op is not Ops.WHERE:
                    self.rounded[self.copied(u)] += 1
                    self.widens.update(s for s in u.src if s.op is Ops.INDEX)
                self.plain[self.copied(u), 0] += self.count._takes(u.op)

    def _weigh_cast(self, node: UOp) -> None:
        source = node.src[0]
        if not self.count.casts_bf16 or node.op is not Ops.CAST or dtypes.bfloat16 not in (node.dtype, source.dtype):
            self.plain[self.copied(node), 0] += 1
        elif node.dtype is dtypes.bfloat16:
            self.rounded[self.copied(node)] += 1
        elif source.op is Ops.INDEX:
            self.widens.add(source)
        elif not self.count.emulates_bf16:
            self.widened[self.copied(node)] += 1

    def _touched(self, node: UOp, is_store: bool) -> Touched:
        address, gate = _address(node)
        param = node.src[0]
        return Touched(
            slot=int(param.arg.slot),
            itemsize=int(param.dtype.itemsize),
            is_store=is_store,
            elements=int(param.max_numel()),
            used=self.mask(u for u in node.src[1].toposort() if u.op is Ops.RANGE),
            address=self.mask(address.ranges),
            apart=self.apart[address],
            gate=self.mask(gate.ranges) if gate is not None else 0,
            copied=self.copied(node),
            widest=self.count.widest if param.dtype in loop_nest.VECTORISED else 1,
            widens=node in self.widens,
        )

    def _core(self, node: UOp) -> Core:
        held = [math.prod(size for _, size in axes) for axes in node.arg[4]]
        sizes = {number: size for axes in node.arg[4] for number, size in axes if size > 1}
        return Core(
            copied=self.copied(node),
            sources=tuple((self.copied(s), size) for s, size in zip(node.src[:2], held[:2], strict=True)),
            elements=math.prod(sizes.values()),
            results=held[2],
            last=tuple(number for number, _ in node.arg[4][2]),
        )

    def _reduction(self, node: UOp) -> Reduction:
        ended = [r for source in node.src[1:] for r in source.ranges]
        kinds = {r.arg[-1] for r in ended if not (r in self.bit and r.arg[-1].name in INNER)}
        source = node.src[0]
        return Reduction(
            copied=self.copied(node),
            added=self.copied(source),
            over=self.mask(ended),
            reduces=bool(kinds - {AxisType.GROUP_REDUCE}),
            groups=AxisType.GROUP_REDUCE in kinds,
            takes=self.count._takes(node.arg[0]),
            core=self._core(source) if source.op is Ops.WMMA else None,
            rounds=source.op is not Ops.WMMA and node.dtype is dtypes.bfloat16 and self.count.emulates_bf16,
        )

    def _constants(self) -> tuple[int, frozenset[int], frozenset[int]]:
        """How many constants of data no split adds to; the other integers in addresses, and in data.

        Without the extents of the ranges that can be split: these change.
        """
        kept = {s for u in self.nodes if u not in self.bit for s in u.src if s.op is Ops.CONST}
        # a constant is part of an address if it is one's anywhere
        in_addresses = {s for u in self.nodes if u in self.index_nodes and u not in self.bit for s in u.src}
        for u in self.nodes:
            if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM:
                in_addresses.update(u.src[1:])
        data = {(u.arg, u.dtype) for u in kept - in_addresses}
        varying = frozenset(int(value) for value, dtype in data if dtype is dtypes.weakint)
        addresses = frozenset(int(u.arg) for u in kept & in_addresses if u.dtype is dtypes.weakint)
        return len(data) - len(varying), addresses, varying


def _divisors(extent: int) -> list[int]:
    small = [d for d in range(1, min(math.isqrt(extent), MOST_TRIED) + 1) if extent % d == 0]
    return sorted({*small, *(extent // d for d in small)})
