"""How many micro-operations a scheduled kernel will have, counted off its schedule state before any code is generated.

tinygrad unrolls every UPCAST and UNROLL axis, so a node of the AST becomes as many operations as those of its axes have
elements ("copies"), less what later passes merge: equal constants, equal addresses, neighbouring loads. Counting takes
about 0.2 ms where code generation takes seconds; `tests/kernel/test_loop_nest.py` compares it with real programs.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kcg.compat.tiny import AxisType, GroupOp, InvalidType, Ops, Scheduler, UOp, dtypes
from kcg.kernel.ast import is_invalid

# ---- The axis table of a scheduled kernel: extents, kinds, and the strides of every memory access over every axis.
#
# Read off a schedule state arithmetically: every index expression is evaluated at the origin and one step along each
# axis, in one vectorised pass. No code is generated.

AXIS_KINDS = (
    "GLOBAL",
    "THREAD",
    "WEAK",
    "LOOP",
    "LOCAL",
    "WARP",
    "GROUP_REDUCE",
    "REDUCE",
    "UNROLL",
    "UPCAST",
    "DEVICE",
    "other",
)
"""Kinds of axes by tinygrad's names; a kind that is none of these is the last. Predictors have a feature of each, in
this order."""

# What an axis means to who runs it. Whoever reads a loop nest asks by these, not by the names of kinds.
GRID = ("GLOBAL",)  # its steps are workgroups, in any order
CORES = ("THREAD",)  # its steps are given to cores of a CPU
LANES = ("LOCAL", "WARP")  # its steps are threads of one workgroup, each with results of its own
SHARED_SUMS = ("GROUP_REDUCE",)  # its steps are threads of one workgroup, which share a reduction
WORKGROUP = (*LANES, *SHARED_SUMS)
SUMMED_IN_TURN = ("REDUCE",)  # one thread adds up its steps one after another
LOOPS = (*SUMMED_IN_TURN, "WEAK", "LOOP")  # one thread takes its steps one after another
HELD = ("UPCAST",)  # one thread computes its steps side by side, and holds the result of each
INNER = (*HELD, "UNROLL")  # its steps are written out one by one
REDUCING = (*SUMMED_IN_TURN, "UNROLL", *SHARED_SUMS)

OPERATIONS_IN = {"EXP2": 20, "LOG2": 20, "SIN": 60, "POW": 45, "THREEFRY": 120}
"""Operations that tinygrad takes a function apart into where the target has no instruction (counted on CPU:X86)."""


@dataclass(frozen=True)
class Access:
    """One load or store. `strides` are elements per step of each axis; `used` marks the axes it depends on."""

    slot: int
    itemsize: int
    is_store: bool
    strides: tuple[int, ...]
    used: tuple[bool, ...]
    elements: int  # size of the buffer


@dataclass(frozen=True)
class AxisTable:
    """A scheduled kernel as numbers. Axes are in tinygrad's order; symbolic extents stand at their maximum."""

    extents: tuple[int, ...]
    kinds: tuple[str, ...]  # AxisType names
    accesses: tuple[Access, ...]
    operations: tuple[tuple[str, tuple[bool, ...]], ...]  # (op name, axes it varies with) of every arithmetic node
    tensor_core: bool
    uops: int = field(default=0, compare=False)  # about how many micro-operations the code has, where it was counted

    def product(self, *kinds: str) -> int:
        """Product of the extents of all axes of these kinds."""
        return math.prod(e for e, k in zip(self.extents, self.kinds, strict=True) if k in kinds)

    @functools.cached_property
    def reductions(self) -> tuple[frozenset[int], ...]:
        """The axes of its reductions: those together of which something varies with several. Loops of others come one
        after the other, as those of a sum of several products."""
        apart = [frozenset({axis}) for axis, kind in enumerate(self.kinds) if kind in REDUCING]
        if len(apart) > 1:
            for used in {*(access.used for access in self.accesses), *(used for _, used in self.operations)}:
                touched = [some for some in apart if any(used[axis] for axis in some)]
                if len(touched) > 1:
                    apart = [some for some in apart if some not in touched] + [frozenset().union(*touched)]
        return tuple(apart)

    def turns(self, *kinds: str) -> int:
        """How many steps the loops over axes of these kinds take: those of a reduction for each of the others, those of
        several reductions one after the other."""
        around, inside = [k for k in kinds if k not in REDUCING], [k for k in kinds if k in REDUCING]
        steps = [
            math.prod(self.extents[axis] for axis in some if self.kinds[axis] in inside) for some in self.reductions
        ]
        return self.product(*around) * (sum(steps) or 1)

    def expanded(self) -> int:
        """About how many operations one thread's code holds, after unrolling and after functions are taken apart."""
        inner = tuple(k for k in self.kinds if k not in INNER)
        size = sum(OPERATIONS_IN.get(op, 1) * self.span(used, skip=inner) for op, used in self.operations)
        return size + sum(self.span(a.used, skip=inner) for a in self.accesses)

    def span(self, used: tuple[bool, ...], *, skip: tuple[str, ...] = ()) -> int:
        """Product of the extents of the marked axes, without those of kinds in `skip`."""
        rows = zip(self.extents, self.kinds, used, strict=True)
        return math.prod(e for e, k, u in rows if u and k not in skip)


STOP: Final = "stop"
KINDS_OF_ACTION: Final = ("UPCAST", "UNROLL", "LOCAL", "GROUP", "GROUPTOP", "TC", "SWAP", "THREAD", "other", STOP)
ACTION_FEATURES: Final = (
    *(f"is {kind}" for kind in KINDS_OF_ACTION),
    "amount",
    "extent",
    "rest",
    "whole",
    "power of two",
    "loads that move",
    "loads in steps of one",
    "stores that move",
    "stores in steps of one",
    "least step",
    "held",
    "held after",
    "threads",
    "threads after",
    "core axes",
    "core padding",
    "depth",
)
"""The columns of `ActionRows`. A policy is kept with their names: where they change, it has to be trained again."""
AXES_OF_ACTION: Final = 2  # it acts on at most so many


@dataclass(frozen=True)
class ActionRows:
    """What each of m actions would do to a loop nest, as numbers, and last what it is to leave it as it is."""

    features: np.ndarray[Any, Any]  # (m + 1, len(ACTION_FEATURES)) float32
    axes: np.ndarray[Any, Any]  # (m + 1, AXES_OF_ACTION) int64: places of the axes that it acts on, -1 for none

    def __len__(self) -> int:
        return len(self.features)


def axis_table(state: Scheduler) -> AxisTable:
    """The axis table of a schedule state."""
    ranges = state.rngs
    extents = tuple(int(r.vmax) + 1 for r in ranges)
    place = {r: i for i, r in enumerate(ranges)}
    nodes = list(state.ast.toposort())
    stored = {u.src[0] for u in nodes if u.op is Ops.STORE}
    index_nodes = nodes_of_addresses(nodes)
    accesses = []
    for u in nodes:
        if u.op is not Ops.INDEX or u.src[0].op is not Ops.PARAM:
            continue
        param = u.src[0]
        strides, used = _strides(u.src[1], place, len(ranges))
        accesses.append(
            Access(
                slot=int(param.arg.slot),
                itemsize=int(param.dtype.itemsize),
                is_store=u in stored,
                strides=strides,
                used=used,
                elements=int(param.max_numel()),
            )
        )
    operations = tuple(
        (u.op.name if u.op is not Ops.REDUCE else u.arg[0].name, _marks(_varies_with(u), place))
        for u in nodes
        if (u.op in GroupOp.ALU or u.op is Ops.REDUCE or u.op is Ops.WMMA) and u not in index_nodes
    )
    return AxisTable(
        extents=extents,
        kinds=tuple(r.arg[-1].name for r in ranges),
        accesses=tuple(accesses),
        operations=operations,
        tensor_core=any(u.op is Ops.WMMA for u in nodes),
    )


def nodes_of_addresses(nodes: list[UOp]) -> set[UOp]:
    """Those of a kernel's nodes (each after its sources) that addresses in buffers are computed from."""
    found: set[UOp] = set()
    for u in reversed(nodes):
        if u in found:
            found.update(u.src)
        elif u.op is Ops.INDEX and u.src[0].op is Ops.PARAM:
            found.update(u.src[1:])
    return found


def _varies_with(node: UOp) -> Any:
    """The ranges over which a node is computed: a reduction runs over those of its source."""
    return node.src[0].ranges if node.op is Ops.REDUCE else node.ranges


def _marks(ranges: Any, place: dict[UOp, int]) -> tuple[bool, ...]:
    marks = [False] * len(place)
    for r in ranges:
        if r in place:
            marks[place[r]] = True
    return tuple(marks)


_INTEGER: dict[Any, Callable[[Any, Any], Any]] = {
    Ops.ADD: operator.add,
    Ops.SUB: operator.sub,
    Ops.MUL: operator.mul,
    Ops.FLOORDIV: lambda a, b: a // np.where(b == 0, 1, b),
    Ops.CDIV: lambda a, b: np.trunc(a / np.where(b == 0, 1, b)).astype(np.int64),
    Ops.FLOORMOD: lambda a, b: a % np.where(b == 0, 1, b),
    Ops.CMOD: lambda a, b: np.fmod(a, np.where(b == 0, 1, b)).astype(np.int64),
    Ops.MAX: np.maximum,
    Ops.CMPLT: operator.lt,
    Ops.CMPNE: operator.ne,
    Ops.CMPEQ: operator.eq,
    Ops.AND: operator.and_,
    Ops.OR: operator.or_,
    Ops.XOR: operator.xor,
    Ops.SHL: operator.lshift,
    Ops.SHR: operator.rshift,
}


def _strides(expression: UOp, place: dict[UOp, int], count: int) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Elements moved by one step along each axis from the origin, and which axes the expression depends on.

    A value loaded from memory (a gather) counts as zero: its stride is unknown.
    """
    points = count + 1  # the origin, then one step along each axis
    values: dict[UOp, Any] = {}
    used = [False] * count
    for node in expression.toposort():
        if node.op is Ops.RANGE and node in place:
            at = np.zeros(points, np.int64)
            at[place[node] + 1] = 1
            used[place[node]] = True
            values[node] = at
        else:
            values[node] = address_value(node, values)
    final = np.broadcast_to(np.asarray(values[expression], np.int64), (points,))
    return tuple(int(x) for x in final[1:] - final[0]), tuple(used)


def address_value(node: UOp, values: dict[UOp, Any]) -> Any:
    """What a node of an address is, by the `values` of what it is made of; zero where these do not say it."""
    if node.op is Ops.CONST:
        return 0 if isinstance(node.arg, InvalidType) else int(node.arg)
    if node.op is Ops.WHERE:
        # the gate hides elements but does not move them: follow the side that is an address
        return values[node.src[1] if not is_invalid(node.src[1]) else node.src[2]]
    if node.op is Ops.CAST:
        return values[node.src[0]]
    if node.op in _INTEGER and len(node.src) == 2:
        with np.errstate(all="ignore"):
            return _INTEGER[node.op](values[node.src[0]], values[node.src[1]])
    return 0


UOPS_PER_ACCUMULATOR = 7
"""An accumulator is indexed three times (cleared, added to, read), loaded twice and stored twice."""

UOPS_PER_GROUPED = 13
"""Beside the first accumulator, one shared with other threads has a second one, and an address, an index, a store and
a load in local memory, twice."""

UOPS_PER_ACCESS = 2
"""An index and a load or a store."""

UOPS_FIXED = 8
UOPS_PER_AXIS = 2
UOPS_PER_BUFFER = 2

UOPS_IN = {"EXP2": 39, "LOG2": 43, "SIN": 172, "THREEFRY": 120, "MAX": 2, "FLOORDIV": 6, "FLOORMOD": 6}
"""Operations that tinygrad takes apart where the renderer has none, and into how many (counted on CPU:CLANG). Floor
division is that of signed data; that of indices, which are never negative, is cheaper."""

UOPS_IN_INDEX = {Ops.FLOORDIV: 2, Ops.FLOORMOD: 3}  # by a power of two: 1


@dataclass(frozen=True)
class Costs:
    """What counted things come to in a renderer's program."""

    plain: float  # one index, load, store or arithmetic operation
    constant: float
    rounded: float  # where bfloat16 is emulated: rounding one float32 to it, beside the operation itself
    widened: float  # where bfloat16 is emulated: making one loaded element a float32, once


SOURCE = Costs(plain=1, constant=2, rounded=18, widened=4)
"""Renderers of source code. A constant is a number and its cast to a type."""

INSTRUCTIONS = Costs(plain=1.28, constant=0, rounded=6.6, widened=20)
"""tinygrad's X86 backend, whose program is instructions: constants are parts of others, and registers are spilled.
Fitted to 108 programs; of those with more than 200 instructions it tells the length within 14 % (median; nine in ten
within 47 %)."""

BF16_COMPUTES = ("CUDA", "NV", "METAL")
BF16_CASTS = ("CUDA", "NV")
"""Devices that have arithmetic in bfloat16, and casts from and to it. For all others tinygrad emulates them."""

VECTORISED = (dtypes.float, dtypes.half, dtypes.int, dtypes.uint, *dtypes.fp8s)
"""Formats of which tinygrad moves neighbouring elements at once."""


def count_uops(state: Scheduler, table: AxisTable) -> int:
    """About how many micro-operations the kernel of `state` has; `table` is the axis table of the same state."""
    return _Count(state, table).total()


class _Count:
    """One count: what is known of the kernel, and the sets of what is written once however often it is used."""

    def __init__(self, state: Scheduler, table: AxisTable) -> None:
        self.table, self.nodes = table, list(state.ast.toposort())
        self.costs = INSTRUCTIONS if hasattr(state.ren, "asm_str") else SOURCE
        self.has: Any = state.ren.code_for_op
        device = state.ren.target.device
        self.casts_bf16, self.emulates_bf16 = device not in BF16_CASTS, device not in BF16_COMPUTES
        self.widest = 4 if state.ren.supports_float4 else 1
        self.ranges = list(state.rngs)
        rows = zip(self.ranges, table.extents, table.kinds, strict=True)
        self.inner: dict[UOp, int] = {r: extent for r, extent, kind in rows if kind in INNER}
        self.offsets: set[int] = set()  # constants of addresses and of places in registers
        self.addresses: set[Any] = set()  # accesses that share one expression share its additions
        self.widens: set[UOp] = set()  # loads of bfloat16 whose elements become float32
        self.rounded = self.widened = 0  # elements
        # a tensor core sums over some unrolled axes: nothing after it has copies along these
        self.fragments: set[UOp] = set()
        self.summed: set[UOp] = set()
        for u in reversed(self.nodes):
            if u.op is Ops.WMMA:
                self.fragments.add(u)
                kept = {number for number, size in u.arg[4][2] if size > 1}
                taken = {number for axes in u.arg[4][:2] for number, size in axes if size > 1} - kept
                self.summed.update(r for r in self.inner if r.arg[0] in taken)
            if u in self.fragments:
                self.fragments.update(u.src)

    def total(self) -> int:
        index_nodes, count = self._indices()
        constants = set()
        for u in self.nodes:
            if u in index_nodes:
                continue
            if u.op is Ops.CONST:
                constants.add((u.arg, u.dtype))
            elif u.op is Ops.WMMA:
                count += self._tensor_core(u)
            elif u.op is Ops.REDUCE:
                count += self._reduction(u)
            elif u.op in (Ops.CAST, Ops.BITCAST):
                count += self._cast(u)
            elif u.op in GroupOp.ALU:
                count += self._arithmetic(u)
        count += self._accesses(index_nodes)
        buffers = sum(u.op is Ops.PARAM for u in self.nodes)
        count += UOPS_FIXED + UOPS_PER_AXIS * len(self.ranges) + UOPS_PER_BUFFER * buffers
        return round(
            self.costs.plain * count
            + self.costs.constant * (len(self.offsets) + len(constants))
            + self.costs.rounded * self.rounded
            + self.costs.widened * self.widened
        )

    def copies(self, node: UOp) -> int:
        """How often unrolling repeats a node: the product of the extents of its unrolled axes."""
        gone = self.summed if node not in self.fragments else ()
        return math.prod(self.inner[r] for r in node.ranges if r in self.inner and r not in gone)

    def _indices(self) -> tuple[dict[UOp, bool], int]:
        """The nodes of addresses, each with whether its copies stay apart, and the operations that they take.

        Copies of sums of axes times constants differ by a constant, and vanish. Those of other operations do not.
        """
        found = nodes_of_addresses(self.nodes)
        apart: dict[UOp, bool] = {}
        count = 0
        for u in self.nodes:
            if u not in found:
                continue
            apart[u] = any(apart.get(s, False) for s in u.src)
            if not (u.op in GroupOp.ALU or u.op is Ops.CAST) or _is_gate(u):
                continue
            folds = u.op in (Ops.ADD, Ops.CAST) or (u.op is Ops.MUL and any(s.op is Ops.CONST for s in u.src))
            if not folds and any(r in self.inner for r in u.ranges):
                apart[u] = True
            takes = UOPS_IN_INDEX.get(u.op, 1)
            count += (1 if takes > 1 and _by_power_of_two(u.src[1]) else takes) * (self.copies(u) if apart[u] else 1)
        return apart, count

    def _accesses(self, index_nodes: dict[UOp, bool]) -> int:
        accesses = [u for u in self.nodes if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM]
        return sum(
            self._access(u, access, apart=index_nodes[_address(u)[0]])
            for u, access in zip(accesses, self.table.accesses, strict=True)
        )

    def _access(self, node: UOp, access: Access, *, apart: bool) -> int:
        address, gate = _address(node)
        steps = dict(zip(self.ranges, access.strides, strict=True))
        unrolled = tuple((steps[r], extent) for r, extent in self.inner.items() if r in address.ranges)
        widest = self.widest if node.src[0].dtype in VECTORISED else 1
        while widest > 1 and any(step % widest for r, step in steps.items() if r not in self.inner):
            widest //= 2  # the address must be aligned whatever the loops and threads are
        if gate is not None and any(steps[r] == 1 for r in gate.ranges if r in self.inner):
            widest = 1  # neighbours with different gates are not loaded at once
        count = 0
        if apart:
            elements = self.copies(node)
            run = math.prod(extent for step, extent in unrolled if step == 1)
            width = widest if run % widest == 0 else 1
            groups, packed, packs = elements // width, elements * (width > 1), elements // width * (width > 1)
        else:
            starts, packed, packs = _packs(unrolled, widest)
            groups = len(starts)
            self.offsets.update(starts)
            if access.strides not in self.addresses:
                self.addresses.add(access.strides)
                count += groups
        if packed:
            self.offsets.update(range(widest))
            count += packs if access.is_store else packed  # a vector is built, or taken apart
        if node in self.widens:
            self.widened += groups
        return count + UOPS_PER_ACCESS * groups

    def _tensor_core(self, node: UOp) -> int:
        held: list[int] = [math.prod(size for _, size in axes) for axes in node.arg[4]]
        sizes = {number: size for axes in node.arg[4] for number, size in axes if size > 1}
        times: int = self.copies(node) // math.prod(sizes.values())
        self.offsets.update(range(held[2]))
        built = sum(self.copies(source) // size for source, size in zip(node.src[:2], held[:2], strict=True))
        return times * (1 + held[2]) + built  # itself, its results one by one, and its operands

    def _reduction(self, node: UOp) -> int:
        results, added = self.copies(node), self.copies(node.src[0])
        kinds = {r.arg[-1] for source in node.src[1:] for r in source.ranges if r not in self.inner}
        if node.src[0].op is Ops.WMMA:
            count = self._accumulate(node.src[0], results)
        else:
            count = self._takes(node.arg[0]) * added
            if node.dtype is dtypes.bfloat16 and self.emulates_bf16:
                self.rounded += added
        if kinds:
            self.offsets.update(range(results))
        if kinds - {AxisType.GROUP_REDUCE}:
            count += UOPS_PER_ACCUMULATOR * results
        if AxisType.GROUP_REDUCE in kinds:
            count += (UOPS_PER_GROUPED + self._takes(node.arg[0])) * results
        return count

    def _accumulate(self, core: UOp, results: int) -> int:
        """Adding a tensor core's results up, which it does itself unless they are added along unrolled axes too.

        It does not, either, where its own axes come last: tinygrad then misses the pattern.
        """
        axes = {number: size for group in core.arg[4] for number, size in group if size > 1}
        held: int = math.prod(size for _, size in core.arg[4][2])
        times: int = self.copies(core) // math.prod(axes.values())
        order = [u.arg[0] for u in self.nodes if u in self.inner]
        last = [number for number, _ in core.arg[4][2]]
        if times * held > results or order[-len(last) :] == last:
            return times * held
        return times

    def _takes(self, op: Any) -> int:
        return 1 if op in self.has else UOPS_IN.get(op.name, 1)

    def _arithmetic(self, node: UOp) -> int:
        copies = self.copies(node)
        if node.dtype is dtypes.bfloat16 and self.emulates_bf16 and node.op is not Ops.WHERE:
            self.rounded += copies
            self.widens.update(s for s in node.src if s.op is Ops.INDEX)
        return self._takes(node.op) * copies

    def _cast(self, node: UOp) -> int:
        copies, source = self.copies(node), node.src[0]
        if not self.casts_bf16 or node.op is not Ops.CAST or dtypes.bfloat16 not in (node.dtype, source.dtype):
            return copies
        if node.dtype is dtypes.bfloat16:
            self.rounded += copies
        elif source.op is Ops.INDEX:
            self.widens.add(source)
        elif not self.emulates_bf16:
            self.widened += copies  # else it is float32 already
        return 0


def _address(node: UOp) -> tuple[UOp, UOp | None]:
    """The address of an INDEX without its gate, and the gate."""
    address = node.src[1]
    if not _is_gate(address):
        return address, None
    return (address.src[2] if is_invalid(address.src[1]) else address.src[1]), address.src[0]


def _by_power_of_two(divisor: UOp) -> bool:
    return divisor.op is Ops.CONST and isinstance(divisor.arg, int) and divisor.arg.bit_count() == 1


def _is_gate(node: UOp) -> bool:
    return node.op is Ops.WHERE and any(is_invalid(s) for s in node.src[1:])


@functools.lru_cache(4096)
def _packs(unrolled: tuple[tuple[int, int], ...], widest: int) -> tuple[frozenset[int], int, int]:
    """How tinygrad packs an access at every combination of `(step, extent)`, at most `widest` neighbours at once.

    Returns where the packs and the single elements start, how many elements are in packs, and how many packs there are.
    """
    offsets = np.zeros(1, np.int64)
    for step, extent in unrolled:
        offsets = (offsets[:, None] + np.arange(extent) * step).ravel()
    rest = np.unique(offsets)
    starts: list[int] = []
    packed = 0
    for width in (4, 2):
        if width <= widest and len(rest) >= width:
            ends, begins = rest[width - 1 :], rest[: 1 - width]
            chosen = begins[(ends - begins == width - 1) & (begins % width == 0)]
            rest = np.setdiff1d(rest, (chosen[:, None] + np.arange(width)).ravel(), assume_unique=True)
            starts.extend(chosen.tolist())
            packed += width * len(chosen)
    return frozenset(starts) | frozenset(rest.tolist()), packed, len(starts)
