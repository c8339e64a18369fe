"""What forms see in a kernel: typed views of its reading, one for each pattern.

A reading (`TileKernel`) says of every pattern whether it is there. A view is made where its own is, and has what that
pattern is made of, so that a form asks for no other. A kernel has one view of each kind: what follows from it is worked
out once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from kcg.compat.tiny import UOp
from kcg.kernel.ast import extent, is_symbolic
from kcg.kernel.reading.attention import padded
from kcg.kernel.reading.bit_sums import BitSums, bit_sums_of
from kcg.kernel.reading.contractions import Contraction
from kcg.kernel.reading.depth import depth_of
from kcg.kernel.reading.kernel import Attention, Rows, TileKernel
from kcg.kernel.reading.one_hot import OneHot, one_hot
from kcg.kernel.reading.packed import Packed, packed_sums
from kcg.kernel.reading.prefix import Prefix, prefix_of
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.attention import Reach, masks_scores, reach_of, visited_blocks
from kcg.kernel.tile.estimates import SPECIAL
from kcg.kernel.tile.naming import numbered
from kcg.kernel.tile.reduction import may_split
from kcg.kernel.tile.tiles import Axis

MIN_TILE = 16  # of `tl.dot`, along each of its axes
MIN_BYTES_TILE = 32  # of its reduced axis, where elements have 8 bits


@dataclass(frozen=True, eq=False)
class View:
    """What is stored over which ranges, and what is read: what every form sees."""

    kernel: TileKernel

    @classmethod
    def of(cls, kernel: TileKernel) -> Self:
        """The view of a kernel. Raises UnsupportedTile where its pattern is not there."""
        found = kernel.views.get(cls)
        if found is None:
            found = kernel.views[cls] = cls._of(kernel)
        assert isinstance(found, cls)
        return found

    @classmethod
    def _of(cls, kernel: TileKernel) -> Self:
        _refuse(attention=kernel.attention is not None, rows=kernel.rows is not None)
        return cls(kernel)

    @cached_property
    def buffers(self) -> dict[int, str]:
        """What each buffer is called in a program, by slot: what is stored `out`, operands by their `roles`, and all
        that is read besides `x`."""
        words: dict[int, str] = dict.fromkeys((one.store.buffer.slot for one in self.kernel.written), "out")
        for word, values in self.roles:
            nodes = {node for value in values for node in value.toposort()}
            for load in (load for one in self.kernel.launched for load in one.loads if load.node in nodes):
                words.setdefault(load.buffer.slot, word)
        words |= {b.slot: "x" for b in self.kernel.buffers if b.slot not in words}
        order = sorted(words)
        return dict(zip(order, numbered(words[slot] for slot in order), strict=True))

    @property
    def roles(self) -> tuple[tuple[str, tuple[UOp, ...]], ...]:
        """What operands are called, and the values that they are."""
        return ()

    @cached_property
    def may_split(self) -> bool:
        """Whether programs may share its sums."""
        return may_split(self.kernel)

    @cached_property
    def depth(self) -> int:
        """Reductions inside of each other."""
        return depth_of(self.kernel.reductions)

    @cached_property
    def one_hot_sums(self) -> tuple[OneHot, ...]:
        """The sums over one-hot rows that are all that it reduces, of the same rows."""
        found = tuple(one for one in map(one_hot, self.kernel.reductions) if one is not None)
        alike = len(found) == len(self.kernel.reductions) and len({one.rows for one in found}) == 1
        return found if alike and self.depth == 1 else ()


@dataclass(frozen=True, eq=False)
class PointwiseView(View):
    """Values of single elements: nothing is reduced."""

    @classmethod
    def _of(cls, kernel: TileKernel) -> Self:
        if kernel.reductions:
            raise UnsupportedTile("form", f"elements by themselves, with {len(kernel.reductions)} reductions")
        return super()._of(kernel)


@dataclass(frozen=True, eq=False)
class ReductionView(View):
    """Values that are made of reductions over ranges of their own; of one launch several, of one vector."""

    @classmethod
    def _of(cls, kernel: TileKernel) -> Self:
        if not kernel.reductions:
            raise UnsupportedTile("form", "a reduction, where nothing is reduced")
        return super()._of(kernel)


@dataclass(frozen=True, eq=False)
class PrefixView(View):
    """Sums of what stands at each place of a row and before it. Its kernel reads each place once."""

    prefix: Prefix

    @classmethod
    def _of(cls, kernel: TileKernel) -> Self:
        _refuse(attention=kernel.attention is not None, rows=kernel.rows is not None)
        if (prefix := prefix_of(kernel)) is None:
            raise UnsupportedTile("form", "its reduction is no prefix sum")
        return cls(replace(kernel, loads=prefix.loads), prefix)


@dataclass(frozen=True, eq=False)
class PackedView(View):
    """Sums whose terms stand several to a word of memory: those of one kernel, or of each that is launched together."""

    packed: tuple[Packed, ...]

    @classmethod
    def _of(cls, kernel: TileKernel) -> Self:
        sums = tuple(map(packed_sums, kernel.launched))
        if not all(sums):
            raise UnsupportedTile("form", "no sum of packed terms")
        return cls(kernel, tuple(one for each in sums for one in each))

    @cached_property
    def slots(self) -> frozenset[int]:
        """The buffers that hold words."""
        return frozenset().union(*(one.slots for one in self.packed))

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """So many neighbouring bytes a thread may take at once, of every sum."""
        first, *others = self.packed
        return tuple(width for width in first.widths if all(width in one.widths for one in others))

    @cached_property
    def has_lookups(self) -> bool:
        """Whether entries of larger tables of floats are among what is read."""
        return any(one.has_lookups for one in self.packed)

    def tables_of(self, width: int) -> dict[int, int]:
        """The larger tables that neighbours are taken of by threads which take so many bytes at once, by their buffers;
        entries of each."""
        if width not in self._tables:
            found = [item for one in self.packed if one.has_lookups for item in one.unpacked(width).tables.items()]
            self._tables[width] = dict(found)
        return self._tables[width]

    @cached_property
    def _tables(self) -> dict[int, dict[int, int]]:
        return {}

    def bit_sums(self, width: int) -> dict[UOp, BitSums]:
        """Of each sum the tables of sums by four bits, for threads which take so many bytes at once; none where one of
        the sums has none."""
        if width not in self._bit_sums:
            found = {one.reduce: bit_sums_of(one, width) for one in self.packed}
            some = {reduce: sums for reduce, sums in found.items() if sums is not None}
            self._bit_sums[width] = some if len(some) == len(found) else {}
        return self._bit_sums[width]

    @cached_property
    def _bit_sums(self) -> dict[int, dict[UOp, BitSums]]:
        return {}

    @property
    def roles(self) -> tuple[tuple[str, tuple[UOp, ...]], ...]:
        loads = (load for one in self.kernel.launched for load in one.loads)
        looked_up = tuple(value for one in self.packed for _, value in one.looked_up)
        return (("i", looked_up), ("w", tuple(load.node for load in loads if load.buffer.slot in self.slots)))


@dataclass(frozen=True, eq=False)
class RowsView(View):
    """Several kernels over the same rows."""

    rows: Rows

    @classmethod
    def _of(cls, kernel: TileKernel) -> Self:
        if kernel.rows is None:
            raise UnsupportedTile("form", "the kernels are not over the same rows")
        return cls(kernel, kernel.rows)


@dataclass(frozen=True, eq=False)
class MatmulView(View):
    """A product of two operands with rows and columns, its prologue in the operands and its epilogue in what is stored;
    of one launch several (`TileKernel.grouped`)."""

    contraction: Contraction

    @classmethod
    def _of(cls, kernel: TileKernel) -> Self:
        _refuse(attention=kernel.attention is not None, rows=kernel.rows is not None)
        if kernel.contraction is None:
            raise UnsupportedTile("form", "the kernel is no product of two operands with rows and columns")
        return cls(kernel, kernel.contraction)

    @property
    def roles(self) -> tuple[tuple[str, tuple[UOp, ...]], ...]:
        products = [one for kernel in self.kernel.launched for one in (*kernel.chained, *kernel.together)]
        return tuple(
            (word, tuple(factor.node for product in products for factor in product.sides[side].factors))
            for side, word in enumerate("ab")
        )

    @cached_property
    def least_terms(self) -> int:
        """Terms of a step of a tensor core."""
        return MIN_BYTES_TILE if self.contraction.sides[0].dtype.itemsize == 1 else MIN_TILE

    @cached_property
    def launched(self) -> tuple[MatmulView, ...]:
        """The products whose tiles are programs of one launch, each by itself."""
        return tuple(map(MatmulView.of, self.kernel.launched)) if self.kernel.grouped else (self,)

    @cached_property
    def may_stream_k(self) -> bool:
        """Whether programs may share the last tiles, which have one sum each: also what several contractions come to
        together."""
        kernel = self.kernel
        if kernel.chained:
            sums = [one.reduce for one in (*kernel.chained, *kernel.together)]
            alone = set(sums) == set(kernel.reductions) and not kernel.also and not kernel.sharing_operand
            return alone and not any(map(is_symbolic, (*kernel.outputs, *(r for one in sums for r in one.src[1:]))))
        return self.may_split and not kernel.sharing_operand


@dataclass(frozen=True, eq=False)
class AttentionView(View):
    """Weights of keys, made of scores, times values."""

    attention: Attention

    @classmethod
    def _of(cls, kernel: TileKernel) -> Self:
        if kernel.attention is None:
            raise UnsupportedTile("form", "the kernel is no attention")
        return cls(kernel, kernel.attention)

    @property
    def roles(self) -> tuple[tuple[str, tuple[UOp, ...]], ...]:
        operands = zip("qkv", (*self.attention.scores.sides, self.attention.values), strict=True)
        return tuple((word, tuple(factor.node for factor in operand.factors)) for word, operand in operands)

    @cached_property
    def reach(self) -> Reach:
        """Which keys a query can have a weight for."""
        return reach_of(self.attention)

    @cached_property
    def masks_scores(self) -> bool:
        """Whether masks are put on scores."""
        return masks_scores(self.attention, self.reach)

    @cached_property
    def inner(self) -> int:
        """Elements of a query and of a key, as a block holds them."""
        return padded(self.terms)

    @cached_property
    def width(self) -> int:
        """Elements of a value, as a block holds them."""
        return padded(self.attention.columns)

    @cached_property
    def terms(self) -> tuple[UOp, ...]:
        """What a score is summed over."""
        return tuple(self.attention.scores.reduce.src[1:])

    @cached_property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """The only axis of its tiles: the ranges of its queries, by their numbers."""
        return (tuple(self.kernel.outputs.index(axis) for axis in self.attention.rows),)

    @cached_property
    def heads(self) -> tuple[UOp, ...]:
        """The output ranges that number its heads: a tile has one of them."""
        held = (*self.attention.rows, *self.attention.columns)
        return tuple(axis for axis in self.kernel.outputs if axis not in held)

    @cached_property
    def all_rows(self) -> tuple[UOp, ...]:
        """The output ranges that number its rows: of all heads."""
        return tuple(axis for axis in self.kernel.outputs if axis not in self.attention.columns)

    @cached_property
    def keys(self) -> int:
        """Of a query, at most."""
        return extent(self.attention.keys)

    @cached_property
    def itemsizes(self) -> tuple[int, int]:
        """Bytes of an element of queries and keys, and of one of values, as they are multiplied."""
        return int(self.attention.scores.sides[0].dtype.itemsize), int(self.attention.values.dtype.itemsize)

    def tiles(self, height: int) -> int:
        """Tiles of so many queries, of all heads."""
        rows = math.prod(map(extent, self.attention.rows))
        return math.prod(map(extent, self.heads)) * -(-rows // height)

    def visited(self, height: int, step: int) -> tuple[float, int]:
        """How many blocks of `step` keys each of such tiles visits, on average and at most."""
        return visited_blocks(self.reach, Axis(self.attention.rows, height), self.keys, step)

    @cached_property
    def operations(self) -> tuple[int, int]:
        """What is computed between its products for each score: special functions, and all operations."""
        between = self.reach.within(self.attention.weight).toposort(
            gate=lambda node: node is not self.attention.scores.reduce
        )
        return sum(node.op in SPECIAL for node in between), len(between)


def _refuse(*, attention: bool, rows: bool) -> None:
    if attention:
        raise UnsupportedTile("form", "the kernel is an attention")
    if rows:
        raise UnsupportedTile("form", "the kernels are over the same rows")
