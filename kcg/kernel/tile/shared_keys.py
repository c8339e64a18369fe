"""How programs share the keys of an attention: all of them, or those of the last tiles.

Each part of the keys leaves its sums for the second launch (`stream_sums.py`), which adds them in order.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from kcg.kernel.tile.emit import Lines
from kcg.kernel.tile.ir import TileKernel, extent, is_symbolic
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.program import TileRefusal
from kcg.kernel.tile.stream import all_rows, reach_of

OPENING = 2  # blocks of keys that take as long as what a program does beside its blocks: a guess


@dataclass(frozen=True)
class Partials:
    """Where a part of the keys leaves what it came to, in float32: for each row the weighted values, then the largest
    score of each row, then each sum."""

    rows: int
    columns: int
    sums: int

    @staticmethod
    def of(kernel: TileKernel, rows: int = 0) -> Partials:
        """Of all rows, or of so many."""
        assert kernel.stream is not None
        every, columns = (math.prod(map(extent, ranges)) for ranges in (all_rows(kernel), kernel.stream.columns))
        return Partials(rows or every, columns, len(kernel.stream.sums))

    @property
    def count(self) -> int:
        """Values of one part, in whole blocks of 16 bytes."""
        return -(-self.rows * (self.columns + 1 + self.sums) // 4) * 4

    def of_rows(self, number: int) -> int:
        """The first of the largest scores, or of a sum from 1 on."""
        return self.rows * (self.columns + number)


def stream_tiles(kernel: TileKernel, height: int) -> int:
    """Tiles of so many queries of an attention, of all heads."""
    assert kernel.stream is not None
    rows = math.prod(map(extent, kernel.stream.rows))
    return math.prod(map(extent, all_rows(kernel))) // rows * -(-rows // height)


def may_share_keys(kernel: TileKernel) -> bool:
    """Whether programs may share the keys of an attention's last tiles: as many of each tile, known beforehand."""
    stream = kernel.stream
    if stream is None or any(map(is_symbolic, (*kernel.outputs, stream.keys))):
        return False
    return not reach_of(stream).is_bounded


@dataclass(frozen=True)
class KeyTail:
    """The tiles of a last wave that is not full: `count` programs share the blocks of keys of each.

    They are last in the grid, the first parts of all tiles before the second ones and so on. Each first part has a
    multiprocessor from the start, and those left have the other parts in turn: see `_first_part`.
    """

    whole: int  # tiles that are a program each
    left: int  # tiles that are shared
    count: int
    blocks: int  # of keys
    first: int  # of these a first part has
    busy: int  # blocks that take as long as the parts of all tiles

    @staticmethod
    def of(kernel: TileKernel, parameters: TileParameters, cores: int) -> KeyTail:
        """Raises TileRefusal where there is no such wave, or where there are more parts than blocks."""
        assert kernel.stream is not None
        tiles, blocks = stream_tiles(kernel, *parameters.tile), -(-extent(kernel.stream.keys) // parameters.reduce_tile)
        left, others = tiles % max(1, cores), parameters.tail - 1
        if not left or left == tiles:
            raise TileRefusal("tail", "there is no last wave that is not full")
        if parameters.tail > blocks:
            raise TileRefusal("tail", "there are more programs than blocks of keys")
        busy, first = _first_part(left, cores - left, others, blocks)
        return KeyTail(tiles - left, left, parameters.tail, blocks, first, busy)

    @property
    def programs(self) -> int:
        return self.whole + self.left * self.count

    def partials(self, kernel: TileKernel, parameters: TileParameters) -> Partials:
        """What each part leaves, of the rows of all shared tiles."""
        return Partials.of(kernel, self.left * parameters.tile[0])

    def end_of(self, part: str) -> str:
        """The expression of the block behind the last one of a part."""
        others = self.count - 1
        return f"{self.first} + ({part} * {self.blocks - self.first} + {others - 1}) // {others}"


@functools.lru_cache(maxsize=4096)
def _first_part(tiles: int, idle: int, others: int, blocks: int) -> tuple[int, int]:
    """By how many blocks of the first part all parts of some tiles are done first; and, before it, how many blocks that
    takes. As many multiprocessors as there are tiles have a first part each, `idle` ones the others' from the start."""

    def busy(first: int) -> int:
        each, end = -(-(blocks - first) // others) + OPENING, first
        while idle * ((end + OPENING) // each) + tiles * ((end - first) // each) < tiles * others:
            end += 1
        return end

    return min((busy(first), first) for first in range(-(-blocks // (others + 1)), blocks - others + 1))


@dataclass(frozen=True)
class Taken:
    """What a program has where tiles are shared, as variables: below 0 `unit` says that it has a whole tile."""

    unit: str
    part: str  # of the tile's keys
    place: str  # of the tile among those that are shared
    tile: str

    @staticmethod
    def of(tail: KeyTail, lines: Lines, program: str) -> Taken:
        unit = lines.name(f"{program} - {tail.whole}", "unit")
        part, place = lines.name(f"{unit} // {tail.left}", "part"), lines.name(f"{unit} % {tail.left}", "place")
        tile = lines.name(f"tl.where({unit} < 0, {program}, {tail.whole} + {place})", "tile")
        return Taken(unit, part, place, tile)

    def blocks(self, tail: KeyTail, lines: Lines) -> tuple[str, str]:
        """The first block of keys that a program has, and the one behind its last."""
        begin = lines.name(f"tl.where({self.part} > 0, {tail.end_of(f'({self.part} - 1)')}, 0)", "begin")
        return begin, lines.name(f"tl.where({self.unit} < 0, {tail.blocks}, {tail.end_of(self.part)})", "end")
