"""The second launch of an attention whose keys are split over programs.

Each part of the keys leaves for each row its largest score, its sums, and its weighted values, all shifted by its own
largest score. A program has one row: it corrects these by the largest score of all parts, adds them in a fixed order,
and computes what the kernel makes of the sums. What a part without keys leaves is 0 and -inf, and counts for nothing.
(Dao et al., Flash-Decoding, 2023.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kcg.compat.tiny import UOp
from kcg.kernel.ast import extent
from kcg.kernel.reading.kernel import Shifted
from kcg.kernel.tile.emit import Block, Frame, Lines, Writer, compute_type
from kcg.kernel.tile.epilogue import store_tile
from kcg.kernel.tile.tiles import Axis, bind_axis, bind_scalar, open_frame, split_number
from kcg.kernel.tile.views import AttentionView

MOST_TOGETHER = 4_096  # values of parts of its row that a program has at once


@dataclass(frozen=True)
class Partials:
    """Where a part of the keys leaves what it came to, in float32: for each row the weighted values, then the largest
    score of each row, then each sum."""

    rows: int
    columns: int
    sums: int

    @staticmethod
    def of(view: AttentionView) -> Partials:
        """Those of an attention."""
        rows, columns = (math.prod(map(extent, ranges)) for ranges in (view.all_rows, view.attention.columns))
        return Partials(rows, columns, len(view.attention.sums))

    @property
    def count(self) -> int:
        """Values of one part, in whole blocks of 16 bytes."""
        return -(-self.rows * (self.columns + 1 + self.sums) // 4) * 4

    def of_rows(self, number: int) -> int:
        """The first of the largest scores, or of a sum from 1 on."""
        return self.rows * (self.columns + number)


def write_attention_sums(view: AttentionView, parts: int, writer: Writer) -> tuple[Lines, int]:
    """Writes the launch that adds so many parts; and how many programs there are."""
    return _Sums(view, parts, writer).written()


class _Sums:
    """`out` is the frame of the row's result, `body` one turn of the loop over parts: `together` of them at once."""

    def __init__(self, view: AttentionView, parts: int, writer: Writer) -> None:
        self.view, self.attention, self.count = view, view.attention, parts
        self.partials, self.width = Partials.of(view), view.width
        self.writer, self.out = writer, open_frame(view.kernel, writer, (1, self.width), words=("rows", "cols"))
        self.body = Lines(writer, self.out.lines)

    def written(self) -> tuple[Lines, int]:
        out, lines = self.out, self.out.lines
        program = lines.name("tl.program_id(0)", "program")
        self._bind_row(program)
        vector = bind_axis(out, Axis(self.attention.columns, self.width), 1, "0")
        self.rows = lines.name(f"{program} + tl.arange(0, 1)", "rows")

        every = 1 << (self.count - 1).bit_length()
        together = min(every, max(1, MOST_TOGETHER // self.width))
        parts = lines.name(f"tl.arange(0, {every})", "parts")
        maxima = self._of_rows(lines, parts, 0, 'float("-inf")')
        largest = lines.name(f"tl.max({maxima}, 0)", "largest")
        # of nothing but -inf the shift is 0: the factors are 0 then, not NaN
        self.shift = lines.name(f'tl.where({largest} == float("-inf"), 0.0, {largest})', "shift")

        first = self.writer.fresh("part")
        self.parts = self.body.name(f"{first} + tl.arange(0, {together})", "parts")
        self.maxima = self._of_rows(self.body, self.parts, 0, 'float("-inf")')
        sums = [self._sum(number + 1, one) for number, one in enumerate(self.attention.sums)]
        product = self._product(vector)
        lines.extend(
            f"for {first} in range(0, {self.count}, {together}):", self.body, "the parts of a row, some at a time"
        )

        of_rows = frozenset({0})
        self._bind(self.attention.maximum, f"{largest}[:, None]", of_rows)
        for one, total in zip(self.attention.sums, sums, strict=True):
            self._bind(one.node, f"{total}[:, None]", of_rows)
        self._bind(self.attention.product.node, product, frozenset({0, 1}))
        store_tile(out, self.view.kernel.stored[0])
        return lines, self.partials.rows

    def _bind_row(self, program: str) -> None:
        """Binds the row of a program, one of all heads'."""
        rows = self.view.all_rows
        for axis, digit in zip(rows, split_number(self.out, program, [extent(axis) for axis in rows]), strict=True):
            bind_scalar(self.out, axis, digit)

    def _of_rows(self, lines: Lines, parts: str, number: int, outside: str) -> str:
        """What some parts left for the row: the largest scores, or a sum from 1 on."""
        place = f"{parts}[:, None] * {self.partials.count} + {self.partials.of_rows(number)} + {self.rows}[None, :]"
        return lines.name(f"tl.load(workspace + {place}, mask={parts}[:, None] < {self.count}, other={outside})")

    def _factor(self, one: Shifted) -> str:
        """By what each part's share of a sum changes."""
        exponent = f"({self.shift}[None, :] - {self.maxima}) * ({one.factor!r})"
        return self.body.name(Frame(self.body, ()).exp2(exponent), "factor")

    def _sum(self, number: int, one: Shifted) -> str:
        """Adds up a sum of shifted terms."""
        total = self.writer.fresh("acc")
        self.out.lines.add(f"{total} = tl.zeros([1], tl.float32)")
        terms = self._of_rows(self.body, self.parts, number, "0.0")
        self.body.add(f"{total} += tl.sum({terms} * {self._factor(one)}, 0)")
        return total

    def _product(self, vector: str) -> str:
        """Adds up the weighted values."""
        total, parts, columns = self.writer.fresh("acc"), f"{self.parts}[:, None, None]", f"{vector}[None, None, :]"
        self.out.lines.add(f"{total} = tl.zeros([1, {self.width}], tl.float32)")
        mask = f"({parts} < {self.count}) & ({columns} < {self.partials.columns})"
        row = f"{self.rows}[None, :, None] * {self.partials.columns}"
        place = f"{parts} * {self.partials.count} + {row} + {columns}"
        values = self.body.name(f"tl.load(workspace + {place}, mask={mask}, other=0.0)")
        self.body.add(f"{total} += tl.sum({values} * {self._factor(self.attention.product)}[:, :, None], 0)")
        return total

    def _bind(self, node: UOp, text: str, axes: frozenset[int]) -> None:
        block = Block(self.out.lines.name(text), "float32", axes)
        self.out.bound[node] = self.out.cast(block, compute_type(node))
