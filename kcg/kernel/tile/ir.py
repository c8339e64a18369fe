"""A kernel as the generator sees it: what it stores over which ranges, what it reads, and its contraction.

The AST is taken as tinygrad simplifies it before any Opt, so that a rotation's `x // 2` and `x % 2` are ranges of their
own and ranges that always step together are one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from kcg.compat.scheduling import simplified
from kcg.compat.tiny import AddrSpace, AxisType, DType, InvalidType, Ops, UOp, dtypes
from kcg.kernel.codec import ast_of
from kcg.kernel.tile.program import TileRefusal
from kcg.types import Region

MAX_REDUCE_DEPTH = 3  # reductions inside reductions: each is an axis of every block
MOST_SHARING = 4  # contractions of one operand: each has a sum of its own in the registers
SEVERAL = "several contractions"
NARROW = (dtypes.float16, dtypes.bfloat16)
"""Formats that are computed in float32 and rounded only where they are stored or multiplied by a tensor core."""


@dataclass(frozen=True)
class BufferSlot:
    """One buffer of the kernel."""

    slot: int
    dtype: DType
    size: int  # elements
    written: bool


@dataclass(frozen=True)
class Factor:
    """One factor of a contraction's product: a value, or (with `gate`) a condition without which the product is 0."""

    node: UOp
    gate: bool = False
    inverted: bool = False


@dataclass(frozen=True)
class Operand:
    """One side of a contraction: a product of factors, each a value over `ranges`, the reduced ranges and `batch`.

    A gate is a factor of both sides: where the product is 0, neither operand's infinity or NaN may be left to multiply.
    """

    factors: tuple[Factor, ...]
    ranges: tuple[int, ...]  # output ranges that it depends on and the other side does not
    dtype: DType  # of the block that is multiplied


@dataclass(frozen=True)
class Loading:
    """How an operand's blocks come into a contraction's loop."""

    as_it_is: bool  # one load, of the type that is multiplied
    bytes_each: int  # of an element, in all loads of its rows and terms
    bytes_term: int  # of a term, in all loads that are the same for every row


@dataclass(frozen=True)
class Contraction:
    """A sum over `reduce`'s ranges of the product of two operands, which share the ranges `batch`."""

    reduce: UOp
    sides: tuple[Operand, Operand]
    batch: tuple[int, ...]  # output ranges of both, or of neither


@dataclass(frozen=True)
class Shifted:
    """A sum over the same ranges as a maximum, whose terms are 2^(factor * maximum + ...) times the rest."""

    node: UOp
    factor: float


@dataclass(frozen=True)
class Stream:
    """A product of weights with values, over keys that a program goes through once."""

    scores: Contraction  # rows by keys, over ranges of its own: what the weights are made of
    maximum: UOp  # of each row
    sums: tuple[Shifted, ...]  # of weights, one for each row
    product: Shifted  # the sum of the weights times the values
    weight: UOp
    values: Operand  # keys by columns
    rows: tuple[UOp, ...]  # output ranges
    columns: tuple[UOp, ...]

    @property
    def keys(self) -> UOp:
        """The range that is gone through."""
        (found,) = self.maximum.src[1:]
        return found


@dataclass(frozen=True)
class Access:
    """One load or store. `address` is the element, without the gate under which the access happens."""

    node: UOp  # the INDEX
    buffer: BufferSlot
    address: UOp
    gates: tuple[UOp, ...]

    @cached_property
    def steps(self) -> dict[UOp | None, int] | None:
        """How far it steps along each range, see `affine`."""
        return affine(self.address)


@dataclass(frozen=True)
class Stored:
    """What is stored into one buffer: a value over ranges of its own."""

    store: Access
    value: UOp  # what is stored
    gates: tuple[UOp, ...]  # conditions without which nothing is stored
    outputs: tuple[UOp, ...]  # ranges of the store, the one with the largest step first

    @property
    def extents(self) -> tuple[int, ...]:
        """Of `outputs`, symbolic ones with their largest value."""
        return tuple(extent(r) for r in self.outputs)


@dataclass(frozen=True)
class Rows:
    """How several kernels share rows: of each store the ranges that number the rows, and those along a row.

    `apart` is there where rows read the same of a table, as heads of one token do of a rotation's: of each store the
    ranges that number these rows, and those by which they read something else, each of as many elements in all stores.
    Where values change from one bound of the second kind on, as of two streams that are joined, `sides` are the kernels
    between bounds.
    """

    count: int  # rows
    width: int  # elements of a row, as many as each reduction is of
    numbers: tuple[tuple[tuple[UOp, ...], tuple[UOp, ...]], ...]  # by store; of a value per row nothing along it
    pairs: tuple[Pairs | None, ...] = ()  # by store
    loads: tuple[Access, ...] = ()  # that `pairs` have
    apart: tuple[tuple[tuple[UOp, ...], tuple[UOp, ...]], ...] = ()  # by store
    sides: tuple[TileKernel, ...] = ()


SAME, EVEN, ODD, SWAPPED = "same", "even", "odd", "swapped"
"""How a value is moved along the columns of a tile: not, the first or the second of each pair, each for the other."""


@dataclass(frozen=True)
class Held:
    """How something that is stored beside a contraction's result uses it: its ranges, as rows and columns of that
    result, and where in its value the result stands."""

    rows: tuple[UOp, ...]  # ranges that number the rows
    columns: tuple[UOp, ...]  # and those that number the columns, from `first` on
    first: int
    loads: tuple[tuple[UOp, str], ...]  # INDEX of the result, and how it is moved
    parts: tuple[tuple[UOp, int], ...]  # range of a reduction, and of how many neighbouring columns that is

    @property
    def count(self) -> int:
        """Columns of the result that it is of."""
        return math.prod(map(extent, self.columns))

    @property
    def unit(self) -> int:
        """Columns that have to be in one block."""
        return math.lcm(1 if self.pair is None else 2, *(size for _, size in self.parts))

    @property
    def pair(self) -> UOp | None:
        """The range that numbers the two columns of a pair, where the result is moved within pairs."""
        return self.columns[-1] if any(move != SAME for _, move in self.loads) else None


@dataclass(frozen=True)
class Pairs:
    """A value that is computed for both columns of each pair at once, on blocks of half the columns."""

    values: tuple[UOp, UOp]  # of the even column, and of the odd one
    result: tuple[tuple[UOp, int], ...]  # INDEX of the contraction's result in these, and of which of the two it is
    tables: tuple[tuple[UOp, tuple[UOp, UOp]], ...]  # what is read for each column, and what it is in the two values
    scaled: tuple[UOp, tuple[UOp, UOp]] | None = None  # a factor of the result for each unit, and the values without it


@dataclass(frozen=True)
class Branch:
    """What is made of some columns of a contraction's result and stored: of several stores that follow each other and
    differ in nothing but buffers and constants, one that chooses these."""

    stored: Stored  # the first of them; a constant that differs depends on `member`
    held: Held
    count: int = 1  # stores
    member: UOp | None = None  # range that numbers them
    buffers: tuple[tuple[int, ...], ...] = ()  # slots that differ, of each store one: the first stands in `stored`
    pairs: Pairs | None = None

    @property
    def end(self) -> int:
        """The column after the last one that it is of."""
        return self.held.first + self.count * self.held.count

    @property
    def loads(self) -> tuple[UOp, ...]:
        """The loads that are written, and those of the contraction's result."""
        values, halves = [self.stored.value], set[UOp]()
        if self.pairs is not None:
            values = [*self.pairs.values, *(whole for whole, _ in self.pairs.tables)]
            halves = {half for _, both in self.pairs.tables for half in both}
        nodes = UOp.sink(*values, *self.stored.store.node.src[1:], *self.stored.gates).toposort()
        return tuple(node for node in nodes if node.op is Ops.INDEX and node not in halves)


@dataclass(frozen=True)
class TileKernel:
    """One kernel, or several that are one (`fuse.py`), read for tile programs."""

    store: Access
    value: UOp  # what is stored
    gates: tuple[UOp, ...]  # conditions without which nothing is stored
    outputs: tuple[UOp, ...]  # ranges of the store, the one with the largest step first
    buffers: tuple[BufferSlot, ...]  # by slot
    variables: tuple[UOp, ...]  # symbolic sizes and positions, by name
    loads: tuple[Access, ...]
    reductions: tuple[UOp, ...]  # in order: what is needed first comes first
    contraction: Contraction | None
    also: tuple[Stored, ...] = ()  # of several kernels: what else is stored, over ranges of its own
    rows: Rows | None = None  # of several kernels: how they share rows
    held: tuple[Held, ...] = ()  # of a contraction: how each of `also` uses its result
    branches: tuple[Branch, ...] = ()  # of a contraction: how `also` is written
    hidden: bool = False  # whether the first of `stored` is only used by the others
    stream: Stream | None = None  # of several kernels: attention
    before: tuple[Contraction, ...] = ()  # what is added to the contraction, over the same outputs
    sharing: tuple[Contraction, ...] = ()  # others with the same operand and as many terms, each a sum of its own
    others: tuple[TileKernel, ...] = ()  # other contractions, whose tiles are programs of the same launch
    stacked: bool = False  # whether `others` have other rows and as many columns, not other columns of the same rows
    allows_tf32: bool = False  # whether products may round float32 operands to tf32: the user says so

    @property
    def stored(self) -> tuple[Stored, ...]:
        """All that is stored, the kernel's own first."""
        return (Stored(self.store, self.value, self.gates, self.outputs), *self.also)

    @property
    def written(self) -> tuple[Stored, ...]:
        """Those of `stored` that memory sees."""
        own = self.stored[1:] if self.hidden else self.stored
        return (*own, *(stored for other in self.others for stored in other.written))

    @cached_property
    def launched(self) -> tuple[TileKernel, ...]:
        """The kernels whose tiles are programs of one launch, each by itself."""
        return (replace(self, others=(), stacked=False), *self.others) if self.others else (self,)

    @property
    def all_stored(self) -> tuple[Stored, ...]:
        """The `stored` of all that is launched together."""
        return tuple(stored for kernel in self.launched for stored in kernel.stored)

    @property
    def plain(self) -> tuple[Stored, ...]:
        """Those of `written` that are over `outputs`, element by element: all that nothing in `held` is of."""
        return () if self.hidden else self.stored[: len(self.stored) - len(self.held)]

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Of `outputs`, symbolic ones with their largest value."""
        return tuple(extent(r) for r in self.outputs)

    @cached_property
    def pipelined(self) -> dict[tuple[Any, ...], bool]:
        """Whether specialised warps make a contraction, by axes and sizes of a tile, as far as somebody asked."""
        return {}

    @cached_property
    def by_tma(self) -> dict[tuple[Any, ...], tuple[Operand, ...]]:
        """Operands that TMA loads, by axes and sizes of a tile, as far as somebody asked (`can_describe`)."""
        return {}

    @cached_property
    def compared(self) -> frozenset[UOp]:
        """What comparisons of floats are made of, which a value that overflowed on the way would decide otherwise."""
        nodes = {node for stored in self.all_stored for node in stored.value.toposort()}
        found = [n for n in nodes if n.op in (Ops.CMPNE, Ops.CMPEQ, Ops.CMPLT) and dtypes.is_float(n.src[0].dtype)]
        return frozenset(below for node in found for below in node.backward_slice)

    @cached_property
    def stores_float32(self) -> bool:
        """Whether memory sees a float32: 16 bits hide what float32 rounds."""
        return any(stored.store.node.dtype is dtypes.float32 for stored in self.written)

    @cached_property
    def finishing(self) -> tuple[UOp, ...]:
        """What is computed of a contraction's sums."""
        inside = {node for c in self.together for node in c.reduce.backward_slice_with_self}
        values = [s.value for s in self.plain] or [self.value]
        nodes = dict.fromkeys(node for value in values for node in value.toposort())
        return tuple(node for node in nodes if node not in inside)

    @property
    def together(self) -> tuple[Contraction, ...]:
        """The contractions that one loop makes, each a sum of its own."""
        return (self.contraction, *self.sharing) if self.contraction else ()

    @cached_property
    def operands(self) -> tuple[int, int]:
        """How many different operands the contractions of one loop have on each side."""
        one, other = self.loading
        return len(one), len(other)

    @cached_property
    def loading(self) -> tuple[tuple[Loading, ...], tuple[Loading, ...]]:
        """Of each side its different operands in the contractions of one loop."""

        def different(number: int) -> tuple[Loading, ...]:
            found = {frozenset(Counter(c.sides[number].factors).items()): c for c in self.together}
            return tuple(self._loading(c, c.sides[number]) for c in found.values())

        return different(0), different(1)

    def _loading(self, contraction: Contraction, side: Operand) -> Loading:
        terms, rows = set(contraction.reduce.src[1:]), {self.outputs[n] for n in side.ranges}
        inside = {node for factor in side.factors for node in factor.node.toposort()}
        loads = [load for load in self.loads if load.node in inside and terms & set(load.node.ranges)]
        each, term = (
            sum(load.buffer.dtype.itemsize for load in loads if bool(rows & set(load.node.ranges)) is of_rows)
            for of_rows in (True, False)
        )
        (factor, *others) = side.factors
        as_it_is = not others and factor.node.op is Ops.INDEX and factor.node.dtype is side.dtype
        return Loading(as_it_is, each, term)

    @property
    def is_branching(self) -> bool:
        """Whether something is stored of some columns of a contraction's result only."""
        columns = math.prod(self.extents[n] for n in self.contraction.sides[1].ranges) if self.contraction else 0
        return any(branch.held.first or branch.end != columns for branch in self.branches)

    @cached_property
    def beside(self) -> tuple[Access, ...]:
        """The loads that are no operand of the contraction."""
        contractions = (*self.before, *self.together)
        return tuple(x for x in self.loads if not any(x.node in c.reduce.backward_slice for c in contractions))

    @property
    def reduce_ranges(self) -> tuple[UOp, ...]:
        """The ranges of the reduction that is not inside another one; of several, of the longest."""
        top = [
            r
            for r in self.reductions
            if not any(r in other.src[0].backward_slice_with_self for other in self.reductions)
        ]
        return max((r.src[1:] for r in top), key=lambda ranges: math.prod(map(extent, ranges)), default=())

    @property
    def reduce_extent(self) -> int:
        """Elements that `reduce_ranges` come to; 0 where nothing is reduced."""
        return math.prod(map(extent, self.reduce_ranges)) if self.reductions else 0

    @property
    def terms(self) -> int:
        """Products of each sum of a contraction, with those that are added to it."""
        return self.reduce_extent + sum(math.prod(map(extent, c.reduce.src[1:])) for c in self.before)


def extent(axis: UOp) -> int:
    """The largest number of steps of a range."""
    return int(axis.src[0].vmax)


def is_symbolic(axis: UOp) -> bool:
    """Whether a range's extent is known only when the program runs."""
    return bool(axis.src[0].op is not Ops.CONST)


def read_kernel(region: Region) -> TileKernel:
    """The kernel of a region of one, read for tile programs. Raises TileRefusal."""
    if len(region.kernels) != 1:
        raise TileRefusal("several kernels", "a tile program is for a region of one kernel")
    return _read(region.kernel.id, region)


@lru_cache(256)
def _read(_id: str, region: Region) -> TileKernel:
    return read_ast(simplified(ast_of(region.kernel)))


def read_ast(ast: UOp) -> TileKernel:
    """See `read_kernel`; of an AST that is simplified already."""
    ast = _with_maxima_first(with_reductions_merged(ast))
    refuse_unknown(ast)
    buffers = buffers_of(ast)
    if [b.slot for b in buffers.values()] != list(range(len(buffers))):
        raise TileRefusal("buffers not numbered from 0", "a launch passes every slot")
    return kernel_of((stored_of(ast, buffers),), buffers)


def buffers_of(ast: UOp) -> dict[UOp, BufferSlot]:
    """The buffers of a kernel by their PARAM, in the order of their slots."""
    nodes = list(ast.toposort())
    written = {buffer_of(n.src[0]) for n in nodes if n.op is Ops.STORE}
    params = sorted((n for n in nodes if n.op is Ops.PARAM and not _is_variable(n)), key=lambda n: n.arg.slot)
    return {p: BufferSlot(p.arg.slot, p.dtype, int(p.src[0].arg), p in written) for p in params}


def stored_of(ast: UOp, buffers: dict[UOp, BufferSlot]) -> Stored:
    """The only store of a kernel."""
    end = ast.src[0]
    store = end if end.op is Ops.STORE else end.src[0]
    ranges = () if end.op is Ops.STORE else tuple(end.src[1:])
    value, gates = _without_invalid(store.src[1])
    target = access_of(store.src[0], buffers)
    steps = affine(target.address) or {}
    outputs = sorted(ranges, key=lambda r: (-abs(steps.get(r, 0)), r.arg))
    return Stored(target, value, (*target.gates, *gates), tuple(outputs))


def kernel_of(stored: Sequence[Stored], buffers: dict[UOp, BufferSlot]) -> TileKernel:
    """What computes all that is stored; the first is what the axes of its tiles are of. Contractions are found of one
    store alone."""
    if len(stored) > 1:
        return _kernel_of(stored, buffers)
    contraction, before = contractions_of(stored[0])
    kernel = _kernel_of(stored, buffers, contraction, before=before)
    if contraction is None and len(kernel.reductions) > 1:
        with suppress(TileRefusal):
            return with_shared_operand(stored, buffers)
    return kernel


def _kernel_of(
    stored: Sequence[Stored],
    buffers: dict[UOp, BufferSlot],
    contraction: Contraction | None = None,
    *,
    before: tuple[Contraction, ...] = (),
    sharing: tuple[Contraction, ...] = (),
) -> TileKernel:
    first, *also = stored
    bodies = [n for s in stored for n in (s.value, *s.store.node.src[1:], *s.gates)]
    nodes = list(UOp.sink(*bodies).toposort())
    return TileKernel(
        store=first.store,
        value=first.value,
        gates=first.gates,
        outputs=first.outputs,
        buffers=tuple(buffers.values()),
        variables=tuple(sorted((n for n in nodes if _is_variable(n)), key=lambda n: n.arg.name)),
        loads=tuple(access_of(n, buffers) for n in nodes if n.op is Ops.INDEX),
        reductions=_reductions_of(stored),
        contraction=contraction,
        also=tuple(also),
        before=before,
        sharing=sharing,
    )


def _reductions_of(stored: Sequence[Stored]) -> tuple[UOp, ...]:
    return tuple(n for n in UOp.sink(*(s.value for s in stored)).toposort() if n.op is Ops.REDUCE)


def with_reductions_merged(ast: UOp) -> UOp:
    """The AST with a sum of sums as one sum over all ranges: the gradient of a convolution is then a contraction. So
    with the largest of several largest, and products.

    Between them may be casts of floats, and between sums conditions that give 0 otherwise.
    """
    return _merged(ast, _place_of_sum)


def with_steps_merged(ast: UOp) -> UOp:
    """The same of the values of several kernels, one of which reduces what another one left for parts: that may have
    drawn a factor out of its sums, or scaled its maxima."""
    return _merged(ast, lambda node, how, over: _place_of_step(node, how, over) or _place_of_sum(node, how, over))


Place = tuple[int, bool]
"""Which source of a node may be reduced instead of it, and whether the node is then outside of all reductions."""


def _merged(ast: UOp, place_of: Callable[[UOp, Ops, Sequence[UOp]], Place | None]) -> UOp:
    for node in ast.toposort():
        if node.op is Ops.REDUCE and node.arg[0] in (Ops.ADD, Ops.MAX, Ops.MUL):
            path, inner = list[tuple[UOp, Place]](), node.src[0]
            while (place := place_of(inner, node.arg[0], node.src[1:])) is not None:
                path.append((inner, place))
                inner = inner.src[place[0]]
            if inner.op is not Ops.REDUCE or inner.arg != node.arg or not set(node.src[1:]) & set(inner.ranges):
                continue
            if any(r.op is not Ops.RANGE for r in (*node.src[1:], *inner.src[1:])):
                continue
            term = _around(inner.src[0], [(step, place) for step, (place, outside) in path if not outside])
            merged = node.replace(src=(term, *node.src[1:], *inner.src[1:]))
            outside = _around(merged, [(step, place) for step, (place, outside) in path if outside])
            return _merged(ast.substitute({node: outside}), place_of)
    return ast


def _around(value: UOp, path: list[tuple[UOp, int]]) -> UOp:
    """A value in the place of what is at the end of a path of nodes."""
    for step, place in reversed(path):
        value = step.replace(src=(*step.src[:place], value, *step.src[place + 1 :]))
    return value


def _with_maxima_first(ast: UOp) -> UOp:
    """The AST with the largest value of a growing function as the function of the largest value, and of a falling one
    as that of the smallest: an exponential for each row, not for each element. Only where rows have elements."""
    for node in ast.toposort():
        if node.op is not Ops.REDUCE or node.arg[0] is not Ops.MAX or any(map(is_symbolic, node.src[1:])):
            continue
        path, inner, grows = [], node.src[0], True
        while (step := _monotone(inner)) is not None:
            place, growing = step
            path.append((inner, place))
            grows, inner = grows == growing, inner.src[place]
        if not any(step.op is Ops.EXP2 for step, _ in path) or inner.dtype is not node.dtype:
            continue
        found = node.replace(src=(inner if grows else inner * -1, *node.src[1:]))
        value = found if grows else found * -1
        for step, place in reversed(path):
            value = step.replace(src=(*step.src[:place], value, *step.src[place + 1 :]))
        return _with_maxima_first(ast.substitute({node: value}))
    return ast


def _monotone(node: UOp) -> tuple[int, bool] | None:
    """Of a function of one value beside constants which source that is, and whether it grows with it."""
    if not dtypes.is_float(node.dtype):
        return None
    if node.op is Ops.EXP2:
        return 0, True
    if node.op is Ops.RECIPROCAL and _is_positive(node.src[0]):
        return 0, False
    if node.op in (Ops.ADD, Ops.MUL):
        for place, other in ((0, node.src[1]), (1, node.src[0])):
            if other.op is not Ops.CONST or is_invalid(other) or not math.isfinite(number := float(other.arg)):
                continue
            if node.op is Ops.ADD or number:
                return place, node.op is Ops.ADD or number > 0
    return None


def _is_positive(node: UOp) -> bool:
    """Whether a value is a sum of a positive number and an exponential."""
    if node.op is not Ops.ADD:
        return False
    return any(
        one.op is Ops.CONST and not is_invalid(one) and float(one.arg) > 0 and power.op is Ops.EXP2
        for one, power in (node.src, node.src[::-1])
    )


def _place_of_sum(node: UOp, how: Ops, _over: Sequence[UOp]) -> Place | None:
    """Of a node which source may be a sum that can be added up outside of it, or the largest of some."""
    if node.op is Ops.CAST and dtypes.is_float(node.dtype) and dtypes.is_float(node.src[0].dtype):
        return 0, False
    if how is not Ops.ADD:
        return None
    if node.op is Ops.WHERE and _is_zero(node.src[2]):
        return 1, False
    if node.op is Ops.WHERE and _is_zero(node.src[1]):
        return 2, False
    return None


def _place_of_step(node: UOp, how: Ops, over: Sequence[UOp]) -> Place | None:
    """The same of a growing function of a maximum, and of a product of a sum and what is the same for all of the ranges
    that are summed over, which is then multiplied with once."""
    if how is Ops.MAX:
        of = _monotone(node)
        return (of[0], False) if of is not None and of[1] else None
    if how is Ops.ADD and node.op is Ops.MUL and dtypes.is_float(node.dtype):
        for place, other in ((0, node.src[1]), (1, node.src[0])):
            if not set(over) & set(other.ranges) and set(over) & set(node.src[place].ranges):
                return place, True
    return None


def refuse_unknown(ast: UOp) -> None:
    """Raises TileRefusal where a kernel has what no tile program can express."""
    if len(ast.src) != 1:
        raise TileRefusal("several stores")
    depth: dict[UOp, int] = {}
    for node in ast.toposort():
        depth[node] = max((depth[s] for s in node.src), default=0) + (node.op is Ops.REDUCE)
        if node.op is Ops.RANGE and node.arg[-1] is AxisType.DEVICE:
            raise TileRefusal("range over devices")
        if node.op is Ops.RANGE and node.arg[-1] not in _AXES:
            raise TileRefusal(f"axis {node.arg[-1].name}", "a kernel that a program scheduled itself")
        if node.dtype in dtypes.fp8s and node.dtype not in (dtypes.fp8e4m3, dtypes.fp8e5m2):
            raise TileRefusal(f"data type {node.dtype.name}")
    if max(depth.values()) > MAX_REDUCE_DEPTH:
        raise TileRefusal("reductions nested deeply")


_AXES = (AxisType.WEAK, AxisType.LOOP, AxisType.REDUCE)


def _is_variable(node: UOp) -> bool:
    return bool(node.op is Ops.PARAM and node.arg.addrspace is AddrSpace.ALU)


def is_invalid(node: UOp) -> bool:
    """Whether a node is tinygrad's mark of a value that is not there."""
    return bool(node.op is Ops.CONST and isinstance(node.arg, InvalidType))


def buffer_of(index: UOp) -> UOp:
    """The PARAM that an INDEX is of."""
    base = index.src[0]
    return base if base.op is Ops.PARAM else base.src[0]


def access_of(index: UOp, buffers: dict[UOp, BufferSlot]) -> Access:
    places, gates = [], list[UOp]()
    for source in index.src[1:]:
        place, more = _without_invalid(source)
        places.append(place)
        gates += [gate for gate in more if gate not in gates]
    address = places[0] if places else UOp.const(0, dtypes.weakint)
    if len(places) > 1:
        shape = [int(s.arg) for s in index.src[0].src[1].src]
        for size, place in zip(shape[1:], places[1:], strict=True):
            address = address * size + place
    return Access(index, buffers[buffer_of(index)], address, tuple(gates))


def _without_invalid(node: UOp) -> tuple[UOp, list[UOp]]:
    """A value without the conditions under which it is there, and these."""
    gates = []
    while node.op is Ops.WHERE and any(is_invalid(s) for s in node.src[1:]):
        valid = is_invalid(node.src[2])
        gates.append(node.src[0] if valid else node.src[0].logical_not())
        node = node.src[1] if valid else node.src[2]
    return node, gates


def affine(address: UOp) -> dict[UOp | None, int] | None:
    """The factor of each range in an address that is a sum of ranges times constants, and at None the constant; None
    where it is another."""
    if address.op is Ops.CONST:
        return {None: int(address.arg)} if address.arg else {}
    if address.op is Ops.RANGE:
        return {address: 1}
    if address.op is Ops.ADD:
        parts = [affine(s) for s in address.src]
        total: dict[UOp | None, int] = {}
        for part in parts:
            if part is None:
                return None
            for axis, factor in part.items():
                total[axis] = total.get(axis, 0) + factor
        return total
    if address.op is Ops.MUL:
        for one, other in (address.src, address.src[::-1]):
            if other.op is Ops.CONST and (part := affine(one)) is not None:
                return {axis: factor * int(other.arg) for axis, factor in part.items()}
    return None


# ---- The contraction of a kernel.


def contractions_of(stored: Stored) -> tuple[Contraction | None, tuple[Contraction, ...]]:
    """The contraction of a value, and others that are added to it before anything else becomes of them: sums of
    products that a concatenation split."""
    reductions = tuple(n for n in stored.value.toposort() if n.op is Ops.REDUCE)
    if len(reductions) < 2:
        return contraction_of(reductions, stored.outputs), ()
    found = [contraction_of((node,), stored.outputs) for node in reductions]
    known = [c for c in found if c is not None]
    if len(known) != len(reductions) or not _are_added(stored.value, reductions):
        return None, ()
    first, *rest = known
    if any(c.batch != first.batch or _spans(c) != _spans(first) or c.reduce.dtype != first.reduce.dtype for c in rest):
        return None, ()
    *others, last = sorted((first, *rest), key=lambda c: math.prod(map(extent, c.reduce.src[1:])))
    return last, tuple(others)


def _spans(contraction: Contraction) -> list[tuple[int, ...]]:
    return [side.ranges for side in contraction.sides]


def with_shared_operand(stored: Sequence[Stored], buffers: dict[UOp, BufferSlot]) -> TileKernel:
    """What is stored, all over the same outputs, of contractions that multiply one operand with one of their own each,
    over the same rows and columns and as many terms. Raises TileRefusal."""
    stored = _over_same_terms(stored)
    reductions, outputs = _reductions_of(stored), stored[0].outputs
    if any(one in other.backward_slice for one in reductions for other in reductions):
        raise TileRefusal(SEVERAL, "one is of another one's result")
    found = [contraction_of((node,), outputs) for node in reductions]
    known = [contraction for contraction in found if contraction is not None]
    if len(known) < len(found):
        raise TileRefusal("reduction beside the contraction")
    if len(known) > MOST_SHARING or len(set(map(_form, known))) != 1:
        raise TileRefusal(SEVERAL, f"they are not 2 to {MOST_SHARING} over the same rows, columns and terms")
    kernel = _kernel_of(stored, buffers, known[0], sharing=tuple(known[1:]))
    if min(kernel.operands) > 1:
        raise TileRefusal(SEVERAL, "they share no operand")
    return kernel


def _over_same_terms(stored: Sequence[Stored]) -> Sequence[Stored]:
    """Values whose reductions are over the same ranges where they have the same extents."""
    ranges: dict[tuple[UOp, ...], tuple[UOp, ...]] = {}
    at: dict[UOp, UOp] = {}
    for node in _reductions_of(stored):
        over = node.src[1:]
        if all(axis.op is Ops.RANGE for axis in over):
            at |= zip(over, ranges.setdefault(tuple(axis.src[0] for axis in over), over), strict=True)
    return [replace(one, value=one.value.substitute(at)) for one in stored]


def _form(contraction: Contraction) -> tuple[object, ...]:
    """What contractions that one loop makes have in common."""
    sides = [(side.ranges, side.dtype) for side in contraction.sides]
    return (contraction.reduce.src[1:], contraction.reduce.dtype, contraction.batch, *sides)


def _are_added(value: UOp, reductions: tuple[UOp, ...]) -> bool:
    """Whether reductions are only used as terms of one sum of floats."""
    nodes = list(value.toposort())
    users: dict[UOp, list[UOp]] = {}
    for node in nodes:
        for source in node.src:
            users.setdefault(source, []).append(node)

    def through_casts(node: UOp) -> UOp | None:
        """The one use of a value that is more than a cast of floats."""
        while len(found := users.get(node, [])) == 1:
            (node,) = found
            if node.op is not Ops.CAST or not dtypes.is_float(node.dtype):
                return node
        return None

    def sum_of(node: UOp) -> UOp | None:
        """The whole sum that a value is a term of."""
        found = through_casts(node)
        while found is not None and found.op is Ops.ADD and dtypes.is_float(found.dtype):
            above = users.get(found, [])
            if len(above) != 1 or above[0].op is not Ops.ADD:
                return found
            found = above[0]
        return None

    sums = {sum_of(node) for node in reductions}
    return len(sums) == 1 and None not in sums


def contraction_of(reductions: tuple[UOp, ...], outputs: tuple[UOp, ...]) -> Contraction | None:
    """The kernel's contraction, where its only reduction is a sum of products of two operands with rows and columns."""
    if len(reductions) != 1 or reductions[0].arg[0] is not Ops.ADD:
        return None
    (reduce,) = reductions
    factors = factors_of(reduce.src[0])
    number = {r: i for i, r in enumerate(outputs)}
    over = {f: frozenset(number[r] for r in f.node.ranges if r in number) for f in factors}
    values, gates = [f for f in factors if not f.gate], [f for f in factors if f.gate]
    pairs = [(f, g) for f in values for g in values if over[f] - over[g] and over[g] - over[f]]
    if not pairs:
        return None

    def weight(pair: tuple[Factor, Factor]) -> int:
        f, g = pair
        return min(_size(over[f] - over[g], outputs), _size(over[g] - over[f], outputs))

    first, second = max(pairs, key=weight)
    sides: list[list[Factor]] = [[first], [second]]
    spans = [set(over[first]), set(over[second])]
    others = list(values)  # of a square one of two equal factors is left
    others.remove(first)
    others.remove(second)
    for factor in others:
        place = next((i for i in (0, 1) if not over[factor] & (spans[1 - i] - spans[i])), None)
        if place is None:
            return None  # it joins rows with columns: no product of two operands
        sides[place].append(factor)
        spans[place] |= over[factor]
    batch = spans[0] & spans[1]
    own = [tuple(sorted(span - batch)) for span in spans]
    if not all(own):
        return None
    if any(over[gate] & {*own[0], *own[1]} for gate in gates):
        return None  # the other side has nowhere to leave its values out
    dtype = product_dtype(reduce, sides)
    if dtype is None:
        return None
    rest = set(range(len(outputs))) - set(own[0]) - set(own[1])
    operands = [Operand((*side, *gates), ranges, dtype) for side, ranges in zip(sides, own, strict=True)]
    columns = 1 if max(own[1]) > max(own[0]) else 0  # what is stored side by side
    return Contraction(reduce, (operands[1 - columns], operands[columns]), tuple(sorted(rest)))


def _size(numbers: Iterable[int], outputs: tuple[UOp, ...]) -> int:
    return math.prod(extent(outputs[n]) for n in numbers)


def factors_of(node: UOp) -> list[Factor]:
    """The factors of a product, through casts to wider floats, products and conditions that give 0 otherwise."""
    if node.op is Ops.CAST and _widens(node):
        return factors_of(node.src[0])
    if node.op is Ops.MUL and node.dtype is not dtypes.bool:
        return [f for s in node.src for f in factors_of(s)]
    if node.op is Ops.WHERE and dtypes.is_float(node.dtype):
        condition, one, other = node.src
        if _is_zero(other) and _is_product(one):
            return [Factor(condition, gate=True), *factors_of(one)]
        if _is_zero(one) and _is_product(other):
            return [Factor(condition, gate=True, inverted=True), *factors_of(other)]
    return [Factor(node)]


def _is_product(node: UOp) -> bool:
    while node.op is Ops.CAST and _widens(node):
        node = node.src[0]
    return bool(node.op is Ops.MUL)


def _widens(node: UOp) -> bool:
    """Whether a cast keeps every value."""
    source = node.src[0].dtype
    if dtypes.is_float(node.dtype):
        narrow = dtypes.fp8s if source in dtypes.fp8s else NARROW
        return source in narrow and node.dtype not in narrow
    return source is dtypes.int8 and node.dtype is dtypes.int32


def _is_zero(node: UOp) -> bool:
    return bool(node.op is Ops.CONST and not isinstance(node.arg, InvalidType) and float(node.arg) == 0)


def product_dtype(reduce: UOp, sides: list[list[Factor]]) -> DType | None:
    """The format in which the operands are multiplied: a narrow one only where that loses nothing that the kernel
    keeps. None where tensor cores have none."""
    values = [[f.node for f in side if not f.gate] for side in sides]
    found = {node.dtype for side in values for node in side}
    if dtypes.is_int(reduce.dtype):
        return dtypes.int8 if found == {dtypes.int8} and all(len(side) == 1 for side in values) else None
    if not dtypes.is_float(reduce.dtype) or reduce.dtype is dtypes.float64 or dtypes.float64 in found:
        return None
    single = all(len(side) == 1 for side in values)
    if single and found <= set(dtypes.fp8s):
        return found.pop() if len(found) == 1 else dtypes.float16
    narrow = [d for d in found if d in NARROW]
    if len(narrow) == 1 and found <= {*narrow, *dtypes.fp8s, dtypes.weakfloat}:  # which hold all values of 8 bits
        product = reduce.src[0]
        while product.op is Ops.CAST:
            product = product.src[0]
        if single or product.dtype in NARROW:
            return narrow[0]
    return dtypes.float32
