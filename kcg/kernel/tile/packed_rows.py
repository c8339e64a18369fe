"""Rows of packed weights as TMA brings their bytes: which of them a turn of a product needs, and in which boxes.

TMA begins at multiples of 16 bytes, and what it begins elsewhere is an illegal instruction. Blocks of 18, 34 or 210
bytes begin anywhere, so the 16 bytes around the first one come too, and whoever takes the words moves them by as many
bytes as stand before them: the same for all rows, since rows are multiples of 16 bytes apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kcg.kernel.ast import extent
from kcg.kernel.reading.bits import Steps, Word
from kcg.kernel.reading.packed import Unpacked
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.descriptors import ALIGNED, step_along
from kcg.kernel.tile.tiles import Axis

MOST_BYTES = 128  # of a row in one box, as far as TMA spreads a row over shared memory's banks


@dataclass(frozen=True)
class RowBytes:
    """Bytes beside each other of each row of a tile's weights that a turn needs, from an address on that steps along
    ranges of terms, and how many there are. TMA begins at multiples of 16: it brings those around them as well."""

    steps: Steps
    first: int
    nbytes: int

    @property
    def aligned(self) -> int:
        """Of what they begin at a multiple, 16 at most."""
        return math.gcd(ALIGNED, self.first, *(step for _, step in self.steps))

    @property
    def boxes(self) -> tuple[int, ...]:
        """Powers of two of bytes that TMA brings, beside each other."""
        left, found = ALIGNED * -(-(self.nbytes + ALIGNED - self.aligned) // ALIGNED), []
        while left:
            found.append(min(MOST_BYTES, 1 << (left.bit_length() - 1)))
            left -= found[-1]
        return tuple(found)


@dataclass(frozen=True, eq=False)
class PackedRows:
    """How rows of packed weights lie in memory, and which of their bytes a turn needs. All in bytes."""

    slot: int  # of the buffer
    start: int  # where the first row's begin that are used, and before them no more than a descriptor has to have
    pitch: int  # from a row to the next one
    used: int  # of a row, from `start` on
    parts: tuple[RowBytes, ...]
    places: Mapping[Word, tuple[int, int]]
    """In which part a word is, and where it begins there."""

    @property
    def boxes(self) -> tuple[int, ...]:
        """The bytes of the boxes of all parts, in their order."""
        return tuple(nbytes for part in self.parts for nbytes in part.boxes)

    @property
    def nbytes(self) -> int:
        """That TMA brings of a row and a turn."""
        return sum(self.boxes)


def packed_rows(weights: Unpacked, rows: Axis) -> PackedRows:
    """How TMA brings the words of some rows. Raises UnsupportedTile where it cannot."""
    if not weights.words or any(node not in weights.bits for node in weights.loads):
        raise UnsupportedTile("form", "weights that are made of more than bytes")
    slots = {word.slot for word in weights.words}
    lying = {word: _lying(word, weights, rows) for word in weights.words}
    pitches = {pitch for pitch, _, _ in lying.values()}
    if len(slots) > 1 or len(pitches) > 1:
        raise UnsupportedTile("form", "rows of weights in several buffers, or at several distances")
    ((slot,), (pitch,)) = slots, pitches
    start = min(first for _, _, first in lying.values()) // ALIGNED * ALIGNED
    if pitch <= 0 or pitch % ALIGNED or start < 0:
        raise UnsupportedTile("form", f"rows of weights at {pitch} bytes from each other, of which TMA needs {ALIGNED}")
    parts: list[RowBytes] = []
    places: dict[Word, tuple[int, int]] = {}
    for steps in dict.fromkeys(steps for _, steps, _ in lying.values()):
        firsts = {word: first - start for word, (_, own, first) in lying.items() if own == steps}
        for first, words in _beside(firsts):
            places |= {word: (len(parts), firsts[word] - first) for word in words}
            end = max(firsts[word] + weights.words[word] for word in words)
            parts.append(RowBytes(steps, first, end - first))
    used = max(
        first - start + sum((extent(axis) - 1) * step for axis, step in steps) + weights.words[word]
        for word, (_, steps, first) in lying.items()
    )
    if any(step < 0 for part in parts for _, step in part.steps) or used > pitch:
        raise UnsupportedTile("form", "rows of weights that overlap")
    return PackedRows(slot, start, pitch, used, tuple(parts), places)


def _lying(word: Word, weights: Unpacked, rows: Axis) -> tuple[int, Steps, int]:
    """Bytes from a row's word to the next row's, how it steps along ranges of terms, and where the first one is."""
    unit = word.nbytes if word.anywhere is None else 1
    steps = {axis: step * unit for axis, step in word.steps}
    first = word.number * word.nbytes + (word.anywhere or 0)
    pitch = step_along(dict(steps), rows.ranges)
    terms = tuple((axis, steps[axis]) for axis in weights.ranges if axis in steps)
    if pitch is None or set(steps) - {*rows.ranges, *weights.ranges}:
        raise UnsupportedTile("form", "rows of weights at uneven distances")
    return pitch, terms, first


def _beside(firsts: Mapping[Word, int]) -> Iterator[tuple[int, list[Word]]]:
    """Words with no more than a few bytes between them, and where the first one begins: each is aligned from there."""
    together: list[Word] = []
    begin = end = 0
    for word in sorted(firsts, key=firsts.__getitem__):
        first = firsts[word]
        if together and (first - end >= ALIGNED or (first - begin) % word.nbytes):
            yield begin, together
            together = []
        if not together:
            begin = end = first
        together.append(word)
        end = max(end, first + word.nbytes)
    yield begin, together
