"""A kernel as it is read: what it stores over which ranges, what it reads, and its contraction.

The AST is taken as tinygrad simplifies it before any Opt, so that a rotation's `x // 2` and `x % 2` are ranges of their
own and ranges that always step together are one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from kcg.compat.scheduling import simplified
from kcg.compat.tiny import AxisType, Ops, UOp, dtypes
from kcg.kernel.ast import extent, is_variable
from kcg.kernel.codec import ast_of
from kcg.kernel.reading.accesses import Access, BufferSlot, Stored, access_of, buffers_of, stored_of
from kcg.kernel.reading.contractions import Contraction, Operand, contraction_of, contractions_of, one_hot_sums_of
from kcg.kernel.reading.merging import with_maxima_first, with_reductions_merged
from kcg.kernel.reading.one_hot import OneHot
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.types import Region

T = TypeVar("T")

MAX_REDUCE_DEPTH = 3  # reductions inside reductions: each is an axis of every block
MOST_SHARING = 4  # contractions of one operand: each has a sum of its own in the registers
SEVERAL = "several products"


@dataclass(frozen=True)
class Loading:
    """How an operand's blocks come into a contraction's loop."""

    as_it_is: bool  # one load, of the type that is multiplied
    bytes_each: int  # of an element, in all loads of its rows and terms
    bytes_term: int  # of a term, in all loads that are the same for every row


@dataclass(frozen=True)
class Shifted:
    """A sum over the same ranges as a maximum, whose terms are 2^(factor * maximum + ...) times the rest."""

    node: UOp
    factor: float


@dataclass(frozen=True)
class Attention:
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
class EpilogueUse:
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
    use: EpilogueUse
    count: int = 1  # stores
    member: UOp | None = None  # range that numbers them
    buffers: tuple[tuple[int, ...], ...] = ()  # slots that differ, of each store one: the first stands in `stored`
    pairs: Pairs | None = None

    @property
    def end(self) -> int:
        """The column after the last one that it is of."""
        return self.use.first + self.count * self.use.count

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
    """One kernel, or several that are one (`fuse.py`), read as what one program makes."""

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
    epilogue_uses: tuple[EpilogueUse, ...] = ()  # of a contraction: how each of `also` uses its result
    epilogue: tuple[Branch, ...] = ()  # of a contraction: how `also` is written
    hidden: bool = False  # whether the first of `stored` is only used by the others
    attention: Attention | None = None  # of several kernels: attention
    chained: tuple[Contraction, ...] = ()  # along K: what is added to the contraction, over the same outputs
    sharing_operand: tuple[Contraction, ...] = ()  # with as many terms, each a sum of its own
    one_hot_sums: tuple[OneHot, ...] = ()  # of a contraction: sums over one-hot rows that its result is finished with
    grouped: tuple[TileKernel, ...] = ()  # other contractions, whose tiles are programs of the same launch
    grouped_rows: bool = False  # whether these have other rows and as many columns, not other columns of the same rows
    allows_tf32: bool = False  # whether products may round float32 operands to tf32: the user says so

    @property
    def stored(self) -> tuple[Stored, ...]:
        """All that is stored, the kernel's own first."""
        return (Stored(self.store, self.value, self.gates, self.outputs), *self.also)

    @cached_property
    def written(self) -> tuple[Stored, ...]:
        """Those of `stored` that memory sees."""
        own = self.stored[1:] if self.hidden else self.stored
        return (*own, *(stored for other in self.grouped for stored in other.written))

    @cached_property
    def launched(self) -> tuple[TileKernel, ...]:
        """The kernels whose tiles are programs of one launch, each by itself."""
        return (replace(self, grouped=(), grouped_rows=False), *self.grouped) if self.grouped else (self,)

    @property
    def is_product(self) -> bool:
        """Whether it is what forms of one product are for: no attention, and nothing of whole rows."""
        return self.contraction is not None and self.attention is None and self.rows is None

    @property
    def all_stored(self) -> tuple[Stored, ...]:
        """The `stored` of all that is launched together."""
        return tuple(stored for kernel in self.launched for stored in kernel.stored)

    @cached_property
    def plain(self) -> tuple[Stored, ...]:
        """Those of `written` that are over `outputs`, element by element: all that no `epilogue_uses` are of."""
        return () if self.hidden else self.stored[: len(self.stored) - len(self.epilogue_uses)]

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Of `outputs`, symbolic ones with their largest value."""
        return tuple(extent(r) for r in self.outputs)

    @cached_property
    def views(self) -> dict[type, Any]:
        """What forms of programs see in it, by the view's type, as far as somebody asked."""
        return {}

    def once(self, of: type[T], read: Callable[[TileKernel], T | None]) -> T | None:
        """What it is read as, where a pattern is there: read when somebody first asks."""
        if of not in self.views:
            self.views[of] = read(self)
        found: T | None = self.views[of]
        return found

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

    @cached_property
    def together(self) -> tuple[Contraction, ...]:
        """The contractions that one loop makes, each a sum of its own."""
        return (self.contraction, *self.sharing_operand) if self.contraction else ()

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

    @cached_property
    def is_branching(self) -> bool:
        """Whether something is stored of some columns of a contraction's result only."""
        columns = math.prod(self.extents[n] for n in self.contraction.sides[1].ranges) if self.contraction else 0
        return any(branch.use.first or branch.end != columns for branch in self.epilogue)

    @cached_property
    def epilogue_loads(self) -> tuple[Access, ...]:
        """The loads that are no operand of the contraction."""
        contractions = (*self.chained, *self.together)
        return tuple(x for x in self.loads if not any(x.node in c.reduce.backward_slice for c in contractions))

    @cached_property
    def reduce_ranges(self) -> tuple[UOp, ...]:
        """The ranges of the reduction that is not inside another one; of several, of the longest."""
        others = {one.reduce for one in self.one_hot_sums}
        top = [
            r
            for r in self.reductions
            if r not in others and not any(r in other.src[0].backward_slice_with_self for other in self.reductions)
        ]
        return max((r.src[1:] for r in top), key=lambda ranges: math.prod(map(extent, ranges)), default=())

    @cached_property
    def reduce_extent(self) -> int:
        """Elements that `reduce_ranges` come to; 0 where nothing is reduced."""
        return math.prod(map(extent, self.reduce_ranges)) if self.reductions else 0

    @cached_property
    def terms(self) -> int:
        """Products of each sum of a contraction, with those that are added to it."""
        return self.reduce_extent + sum(math.prod(map(extent, c.reduce.src[1:])) for c in self.chained)


def read_kernel(region: Region) -> TileKernel:
    """The kernel of a region of one, read. Raises UnsupportedTile."""
    if len(region.kernels) != 1:
        raise UnsupportedTile("several kernels", "a tile program is for a region of one kernel")
    return _read(region.kernel.id, region)


@lru_cache(256)
def _read(_id: str, region: Region) -> TileKernel:
    return read_ast(simplified(ast_of(region.kernel)))


def read_ast(ast: UOp) -> TileKernel:
    """See `read_kernel`; of an AST that is simplified already."""
    ast = with_maxima_first(with_reductions_merged(ast))
    refuse_unknown(ast)
    buffers = buffers_of(ast)
    if [b.slot for b in buffers.values()] != list(range(len(buffers))):
        raise UnsupportedTile("buffers not numbered from 0", "a launch passes every slot")
    return kernel_of((stored_of(ast, buffers),), buffers)


def kernel_of(stored: Sequence[Stored], buffers: dict[UOp, BufferSlot]) -> TileKernel:
    """What computes all that is stored; the first is what the axes of its tiles are of. Contractions are found of one
    store alone."""
    if len(stored) > 1:
        return _kernel_of(stored, buffers)
    one_hot_sums = one_hot_sums_of(stored[0])
    contraction, chained = contractions_of(stored[0], beside=one_hot_sums)
    kernel = _kernel_of(stored, buffers, contraction, chained=chained)
    if contraction is not None:
        return replace(kernel, one_hot_sums=one_hot_sums)
    if len(kernel.reductions) > 1:
        with suppress(UnsupportedTile):
            return with_shared_operand(stored, buffers)
    return kernel


def _kernel_of(
    stored: Sequence[Stored],
    buffers: dict[UOp, BufferSlot],
    contraction: Contraction | None = None,
    *,
    chained: tuple[Contraction, ...] = (),
    sharing_operand: tuple[Contraction, ...] = (),
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
        variables=tuple(sorted((n for n in nodes if is_variable(n)), key=lambda n: n.arg.name)),
        loads=tuple(access_of(n, buffers) for n in nodes if n.op is Ops.INDEX),
        reductions=_reductions_of(stored),
        contraction=contraction,
        also=tuple(also),
        chained=chained,
        sharing_operand=sharing_operand,
    )


def _reductions_of(stored: Sequence[Stored]) -> tuple[UOp, ...]:
    return tuple(n for n in UOp.sink(*(s.value for s in stored)).toposort() if n.op is Ops.REDUCE)


def refuse_unknown(ast: UOp) -> None:
    """Raises UnsupportedTile where a kernel has what no program of it could express."""
    if len(ast.src) != 1:
        raise UnsupportedTile("several stores")
    depth: dict[UOp, int] = {}
    for node in ast.toposort():
        depth[node] = max((depth[s] for s in node.src), default=0) + (node.op is Ops.REDUCE)
        if node.op is Ops.RANGE and node.arg[-1] is AxisType.DEVICE:
            raise UnsupportedTile("range over devices")
        if node.op is Ops.RANGE and node.arg[-1] not in _AXES:
            raise UnsupportedTile(f"axis {node.arg[-1].name}", "a kernel that a program scheduled itself")
        if node.dtype in dtypes.fp8s and node.dtype not in (dtypes.fp8e4m3, dtypes.fp8e5m2):
            raise UnsupportedTile(f"data type {node.dtype.name}")
    if max(depth.values()) > MAX_REDUCE_DEPTH:
        raise UnsupportedTile("reductions nested deeply")


_AXES = (AxisType.WEAK, AxisType.LOOP, AxisType.REDUCE)


# ---- Contractions of the same operand.


def with_shared_operand(stored: Sequence[Stored], buffers: dict[UOp, BufferSlot]) -> TileKernel:
    """What is stored, all over the same outputs, of contractions that multiply one operand with one of their own each,
    over the same rows and columns and as many terms. Raises UnsupportedTile."""
    stored = _over_same_terms(stored)
    reductions, outputs = _reductions_of(stored), stored[0].outputs
    if any(one in other.backward_slice for one in reductions for other in reductions):
        raise UnsupportedTile(SEVERAL, "one is of another one's result")
    found = [contraction_of((node,), outputs) for node in reductions]
    known = [contraction for contraction in found if contraction is not None]
    if len(known) < len(found):
        raise UnsupportedTile("reduction beside the product")
    if len(known) > MOST_SHARING or len(set(map(_form, known))) != 1:
        raise UnsupportedTile(SEVERAL, f"they are not 2 to {MOST_SHARING} over the same rows, columns and terms")
    kernel = _kernel_of(stored, buffers, known[0], sharing_operand=tuple(known[1:]))
    if min(kernel.operands) > 1:
        raise UnsupportedTile(SEVERAL, "they share no operand")
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
