"""Row reductions: several kernels over the same rows, some rows a program, persistent in one block or looped over.

A tile has one axis for rows, or two where rows share tables: those that read the same ones come first, then those that
read others, then what lies along a row. Then a thread holds elements of one place of several heads, and a table's or a
weight's at that place once.
"""

from __future__ import annotations

import functools
import math

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.reading.accesses import Stored
from kcg.kernel.reading.kernel import Pairs, TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.emit import Frame, Lines, Writer
from kcg.kernel.tile.epilogue import bind_split, store_joined, store_tile
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.reduction import reducer
from kcg.kernel.tile.tiles import Axis, bind_axis, open_frame, split_number, start_of

VECTOR_BYTES = 16  # that a thread loads at once
MAX_BLOCK = 1 << 20  # elements of a block: Triton's own limit


def row_axes(kernel: TileKernel) -> tuple[tuple[int, ...], ...]:
    """The only axis of a tile of rows: the ranges that number them in what the kernel stores first."""
    assert kernel.rows is not None
    row, _ = kernel.rows.numbers[0]
    return (tuple(kernel.outputs.index(axis) for axis in row),)


def axes_apart(kernel: TileKernel) -> tuple[tuple[int, ...], ...]:
    """The two axes of a tile of rows that share tables; none where no rows do."""
    assert kernel.rows is not None
    if not kernel.rows.apart:
        return ()
    return tuple(tuple(kernel.outputs.index(axis) for axis in part) for part in kernel.rows.apart[0])


def write_row_reduction(
    kernel: TileKernel, parameters: TileParameters, writer: Writer, *, threads: int
) -> tuple[Lines, int]:
    """The lines and the number of programs, each of so many threads. Raises UnsupportedTile."""
    assert kernel.rows is not None
    if parameters.axes not in (row_axes(kernel), axes_apart(kernel)):
        raise UnsupportedTile("axes", "the ranges that number the rows, on one axis or as they share tables")
    sizes = (*parameters.tile, parameters.reduce_tile)
    if math.prod(sizes) > MAX_BLOCK:
        raise UnsupportedTile("tile", f"a block has at most {MAX_BLOCK:,} elements")
    top = Lines(writer)
    if parameters.axes == row_axes(kernel) or not kernel.rows.sides:
        return top, RowReduction(kernel, parameters, writer, top, threads=threads).write()
    number, first = top.name("tl.program_id(0)", "program"), 0
    for side in kernel.rows.sides:
        lines = Lines(writer, top)
        end = first + RowReduction(side, parameters, writer, lines, first, threads=threads).write()
        conditions = [f"({number} >= {first})"] if first else []
        conditions += [f"({number} < {end})"] if side is not kernel.rows.sides[-1] else []
        top.extend(f"if {' & '.join(conditions)}:", lines)
        first = end
    return top, first


class RowReduction:
    """What the programs from number `first` on do with rows of a kernel."""

    def __init__(
        self,
        kernel: TileKernel,
        parameters: TileParameters,
        writer: Writer,
        lines: Lines,
        first: int = 0,
        *,
        threads: int,
    ) -> None:
        assert kernel.rows is not None
        self.kernel, self.parameters, self.rows, self.first = kernel, parameters, kernel.rows, first
        *self.tile, self.width = *parameters.tile, parameters.reduce_tile
        self.is_apart = len(self.tile) > 1
        writer.accesses |= {load.node: load for load in (*kernel.loads, *self.rows.loads)}
        self.root = open_frame(kernel, writer, (*self.tile, self.width), lines)
        lanes = max(1, threads // math.prod(self.tile))
        self.root.reduce = reducer(kernel, first_axis=len(self.tile), lanes=lanes)

    def write(self) -> int:
        """Writes all that is stored. Returns how many programs that takes."""
        programs = self._bind_rows()
        loop, counter = Lines(self.root.writer, self.root.lines), self.root.writer.fresh("k")
        is_whole = self.rows.width <= self.width
        written = list[_Store]()
        for place, (stored, (_, along)) in enumerate(zip(self.kernel.stored, self.rows.numbers, strict=True)):
            if not along:
                written.append(_Store(self.root, stored))
            elif is_whole:
                pairs = self.rows.pairs[place] if self.rows.width == self.width else None
                inside = self._along(self.root.lines, along, "0")
                half = self._along(self.root.lines, along[:-1], "0", per=2) if pairs is not None else None
                written.append(_Store(inside, stored, pairs, half))
            else:
                written.append(_Store(self._along(loop, along, counter), stored))
        if is_whole and (self.is_apart or self.parameters.read_early):
            for one in written:
                one.read()
        # what goes through rows again comes after all reductions
        for one in sorted(written, key=lambda one: one.inside.lines is loop):
            one.store()
        if loop.text:
            self.root.lines.extend(f"for {counter} in range(0, {self.rows.width}, {self.width}):", loop)
        return programs

    def _bind_rows(self) -> int:
        """Binds what numbers the rows in each store. Returns how many programs there are."""
        root = self.root
        number = root.lines.name("tl.program_id(0)", "program")
        if self.first:
            number = root.lines.name(f"{number} - {self.first}", "program")
        of_store = self.rows.apart if self.is_apart else tuple((row,) for row, _ in self.rows.numbers)
        programs = 0
        for ranges in of_store:
            axes = [Axis(part, size) for part, size in zip(ranges, self.tile, strict=True)]
            counts = [axis.tiles for axis in reversed(axes)]  # rows that share tables are neighbours' in time as well
            programs = math.prod(counts)
            for place, digit in enumerate(reversed(split_number(root, number, counts))):
                bind_axis(root, axes[place], place, start_of(root, digit, axes[place]))
        return programs

    def _along(self, lines: Lines, ranges: tuple[UOp, ...], start: str, *, per: int = 1) -> Frame:
        """A frame that knows what is along rows, `per` elements as one."""
        width, last = self.width // per, len(self.tile)
        frame = self.root.inner(lines)
        frame.sizes = (*self.tile, width)
        if self.is_apart:
            frame.spread = frozenset({1})
        bind_axis(frame, Axis(ranges, width), last, start)
        return frame


class _Store:
    """What is stored of rows, along them in `inside`; of pairs what is computed of both elements, in `half`."""

    def __init__(self, inside: Frame, stored: Stored, pairs: Pairs | None = None, half: Frame | None = None) -> None:
        self.inside, self.stored, self.pairs, self.half = inside, stored, pairs, half
        if pairs is not None and half is not None:
            for whole, both in pairs.tables:
                half.late |= dict.fromkeys(both, functools.partial(self._split, whole, both))

    def read(self) -> None:
        """Asks for all that is read beside reductions, so that it is on its way while these are made."""
        frame, values = self.inside, [self.stored.value]
        if self.pairs is not None and self.half is not None:
            frame, values = self.half, list(self.pairs.values)
            for whole, _ in self.pairs.tables:
                self.inside.read(whole)
        nodes = UOp.sink(*values).toposort(gate=lambda node: node.op is not Ops.REDUCE)
        for node in nodes:
            if node.op is Ops.INDEX and node not in frame.late:
                frame.read(node)

    def store(self) -> None:
        """Writes the store."""
        if self.pairs is None or self.half is None:
            store_tile(self.inside, self.stored)
            return
        store_joined(self.inside, self.half, self.stored, self.pairs.values)

    def _split(self, whole: UOp, both: tuple[UOp, UOp]) -> None:
        """Binds the even and the odd elements of a load."""
        assert self.half is not None
        nodes = [(node, odd) for odd, node in enumerate(both)]
        bind_split(self.half, nodes, self.inside.value(whole))
