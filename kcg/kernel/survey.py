"""Reading a schedule state of tinygrad into a `Ground`: strides, dependences and weights, once per kernel."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from kcg.compat.scheduling import canonical_key
from kcg.compat.tiny import AxisType, GroupOp, InvalidType, Ops, Scheduler, UOp, axis_to_pos, dtypes
from kcg.kernel import uops as costs_of
from kcg.kernel.axes import _INTEGER, INNER, REDUCING, AxisTable, _is_invalid, _varies_with, nodes_of_addresses
from kcg.kernel.ground import Axis, Core, Ground, Reduction, Touched
from kcg.kernel.uops import _address, _by_power_of_two, _Count, _is_gate

POSITION: dict[str, int] = {kind.name: place for kind, place in axis_to_pos.items()}
"""Where axes of a kind stand among others; axes of one position are ordered by their number."""


def ground_of(state: Scheduler) -> Ground | None:
    """The ground of a schedule state, None where arithmetic does not describe it: an extent is symbolic."""
    if any(r.src[0].op is not Ops.CONST or r.dtype is not dtypes.weakint or len(r.src) > 1 for r in state.rngs):
        return None
    if len({(POSITION[r.arg[-1].name], r.arg[:-1]) for r in state.rngs}) < len(state.rngs):
        return None  # their order is not that of their numbers
    return _Survey(state).ground()


class _Survey:
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
        self.fixed = costs_of.UOPS_FIXED + costs_of.UOPS_PER_BUFFER * sum(u.op is Ops.PARAM for u in self.nodes)

    def mask(self, ranges: Iterable[UOp]) -> int:
        found = 0
        for r in ranges:
            found |= self.bit.get(r, 0)
        return found

    def copied(self, node: UOp) -> int:
        """Over which origins unrolling repeats a node."""
        found = self.mask(node.ranges)
        return found if node in self.count.fragments else found & ~self.summed

    def ground(self) -> Ground:
        in_data = self.mask(r for r in self.ranges if r not in self.index_nodes)
        self._weigh_addresses()
        self._weigh_data()
        core, reductions = getattr(self.state, "tensor_core", None), [u for u in self.nodes if u.op is Ops.REDUCE]
        accesses = [u for u in self.nodes if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM]
        stored = {u.src[0] for u in self.nodes if u.op is Ops.STORE}
        constants, of_addresses, of_data = self._constants()
        return Ground(
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
            if node not in self.index_nodes or node in self.bit:
                continue
            if node.op is Ops.CONST:
                values[node] = 0 if isinstance(node.arg, InvalidType) else int(node.arg)
            elif node.op is Ops.WHERE:
                values[node] = values[node.src[1] if not _is_invalid(node.src[1]) else node.src[2]]
            elif node.op is Ops.CAST:
                values[node] = values[node.src[0]]
            elif node.op in _INTEGER and len(node.src) == 2:
                with np.errstate(all="ignore"):
                    values[node] = _INTEGER[node.op](values[node.src[0]], values[node.src[1]])
            else:
                values[node] = 0
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
                takes = costs_of.UOPS_IN_INDEX.get(u.op, 1)
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
            slot=int(param.arg.slot), itemsize=int(param.dtype.itemsize), is_store=is_store,
            elements=int(param.max_numel()),
            used=self.mask(u for u in node.src[1].toposort() if u.op is Ops.RANGE),
            address=self.mask(address.ranges), apart=self.apart[address],
            gate=self.mask(gate.ranges) if gate is not None else 0,
            copied=self.copied(node), widest=self.count.widest if param.dtype in costs_of.VECTORISED else 1,
            widens=node in self.widens,
        )  # fmt: skip

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
            copied=self.copied(node), added=self.copied(source), over=self.mask(ended),
            reduces=bool(kinds - {AxisType.GROUP_REDUCE}), groups=AxisType.GROUP_REDUCE in kinds,
            takes=self.count._takes(node.arg[0]), core=self._core(source) if source.op is Ops.WMMA else None,
            rounds=source.op is not Ops.WMMA and node.dtype is dtypes.bfloat16 and self.count.emulates_bf16,
        )  # fmt: skip

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
    small = [d for d in range(1, math.isqrt(extent) + 1) if extent % d == 0]
    return sorted({*small, *(extent // d for d in small)})
