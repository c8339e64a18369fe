"""The second launch of an attention whose keys are split over programs.

Each part of the keys leaves for each row its largest score, its sums, and its weighted values, all shifted by its own
largest score. A program has one row: it corrects them by the largest score of all parts, adds them in a fixed order,
and computes what the kernel makes of the sums. What a part without keys leaves is 0 and -inf, and counts for nothing.
(Dao et al., Flash-Decoding, 2023.)
"""

from __future__ import annotations

from kcg.compat.tiny import UOp
from kcg.kernel.tile.emit import Block, Frame, Lines, Writer, compute_type
from kcg.kernel.tile.epilogue import store_tile
from kcg.kernel.tile.ir import Shifted, TileKernel, extent
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.stream import Partials, all_rows, padded
from kcg.kernel.tile.tiles import Axis, bind_axis, bind_scalar, flat_place, open_frame, split_number

MOST_TOGETHER = 4_096  # values of parts of a row that a program has at once


def write_stream_sums(kernel: TileKernel, parameters: TileParameters, writer: Writer) -> tuple[Lines, int]:
    """Writes the launch; and how many programs there are: one for each row of all heads."""
    return _Sums(kernel, parameters.split, writer).written()


class _Sums:
    """`out` is the frame of a row's result, `body` one turn of the loop over parts: `together` of them at once."""

    def __init__(self, kernel: TileKernel, split: int, writer: Writer) -> None:
        assert kernel.stream is not None
        self.kernel, self.stream, self.split, self.writer = kernel, kernel.stream, split, writer
        self.partials, self.width = Partials.of(kernel), padded(kernel.stream.columns)
        self.out = open_frame(kernel, writer, (self.width,))
        self.body = Lines(writer, self.out.lines)

    def written(self) -> tuple[Lines, int]:
        out, lines, rows = self.out, self.out.lines, all_rows(self.kernel)
        program = lines.name("tl.program_id(0)", "program")
        for axis, digit in zip(rows, split_number(out, program, [extent(axis) for axis in rows]), strict=True):
            bind_scalar(out, axis, digit)
        vector = bind_axis(out, Axis(self.stream.columns, self.width), 0, "0")
        self.row = flat_place(out, rows).text

        every = 1 << (self.split - 1).bit_length()
        together = min(every, max(1, MOST_TOGETHER // self.width))
        parts = lines.name(f"tl.arange(0, {every})", "i")
        maxima = self._of_row(lines, parts, 0, 'float("-inf")')
        largest = lines.name(f"tl.max({maxima}, 0)", "largest")
        # of nothing but -inf the shift is 0: the factors are 0 then, not NaN
        self.shift = lines.name(f'tl.where({largest} == float("-inf"), 0.0, {largest})', "shift")

        first = self.writer.fresh("part")
        self.parts = self.body.name(f"{first} + tl.arange(0, {together})", "i")
        self.maxima = self._of_row(self.body, self.parts, 0, 'float("-inf")')
        sums = [self._sum(number + 1, one) for number, one in enumerate(self.stream.sums)]
        product = self._product(vector)
        lines.extend(f"for {first} in range(0, {self.split}, {together}):", self.body)

        self._bind(self.stream.maximum, largest, frozenset())
        for one, total in zip(self.stream.sums, sums, strict=True):
            self._bind(one.node, total, frozenset())
        self._bind(self.stream.product.node, product, frozenset({0}))
        store_tile(out, self.kernel.stored[0])
        return lines, self.partials.rows

    def _of_row(self, lines: Lines, parts: str, number: int, outside: str) -> str:
        """What some parts left for a row: the largest score, or a sum from 1 on."""
        place = f"{parts} * {self.partials.count} + {self.partials.of_rows(number)} + {self.row}"
        return lines.name(f"tl.load(workspace + {place}, mask={parts} < {self.split}, other={outside})")

    def _factor(self, one: Shifted) -> str:
        """By what each part's share of a sum changes."""
        return self.body.name(Frame(self.body, ()).exp2(f"({self.shift} - {self.maxima}) * ({one.factor!r})"), "factor")

    def _sum(self, number: int, one: Shifted) -> str:
        """Adds up a sum of shifted terms."""
        total = self.writer.fresh("acc")
        self.out.lines.add(f"{total} = 0.0")
        terms = self._of_row(self.body, self.parts, number, "0.0")
        self.body.add(f"{total} += tl.sum({terms} * {self._factor(one)}, 0)")
        return total

    def _product(self, vector: str) -> str:
        """Adds up the weighted values."""
        total, parts = self.writer.fresh("acc"), f"{self.parts}[:, None]"
        self.out.lines.add(f"{total} = tl.zeros([{self.width}], tl.float32)")
        mask = f"({parts} < {self.split}) & ({vector}[None, :] < {self.partials.columns})"
        place = f"{parts} * {self.partials.count} + {self.row} * {self.partials.columns} + {vector}[None, :]"
        values = self.body.name(f"tl.load(workspace + {place}, mask={mask}, other=0.0)")
        self.body.add(f"{total} += tl.sum({values} * {self._factor(self.stream.product)}[:, None], 0)")
        return total

    def _bind(self, node: UOp, text: str, axes: frozenset[int]) -> None:
        self.out.bound[node] = self.out.cast(Block(text, "float32", axes), compute_type(node))
