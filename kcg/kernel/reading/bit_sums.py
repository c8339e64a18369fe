"""Terms whose numbers are neighbouring bits of a word: what four of them come to is one of 16 sums of the vector's.

Of one vector these sums are the same for all rows. A term is a factor of what is of no row, which is `low` where its
bit is 0 and `high` where it is 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kcg.compat.tiny import UOp
from kcg.kernel.reading.accesses import loads_of
from kcg.kernel.reading.bits import Field, Word
from kcg.kernel.reading.packed import Group, Packed, Term, Unpacked

FOUR = 4
LEAST_SHARE = 0.5  # of the terms, that are in sums of four


@dataclass(frozen=True)
class Bit:
    """A term: the bit that says its number, and what the rest of it is multiplied by where that is 0, or 1."""

    field: Field
    number: int  # of the term
    low: float
    high: float
    others: tuple[UOp, ...]


@dataclass(frozen=True)
class Four:
    """Four terms, by neighbouring bits of a word from `shift` on."""

    word: Word
    shift: int
    bits: tuple[Bit, ...]


@dataclass(frozen=True)
class Sums:
    """The terms of a group that share scales: fours, each with the number of its table; and the others."""

    scales: tuple[UOp, ...]
    fours: tuple[tuple[Four, int], ...]
    rest: tuple[Term, ...]


@dataclass(frozen=True, eq=False)
class BitSums:
    """Tables of 16 sums each: so many for each of some neighbouring bytes of a place, those of one byte together."""

    width: int  # bytes
    unpacked: Unpacked  # of which a place is a byte
    inner: UOp | None  # the range that numbers the bytes
    fours: tuple[Four, ...]  # of a byte: a table each
    groups: tuple[Sums, ...]  # of what is unpacked with so many bytes at once

    @property
    def tables(self) -> int:
        """Of a place."""
        return self.width * len(self.fours)


def bit_sums_of(packed: Packed, width: int) -> BitSums | None:
    """The sums of four of a packed sum whose threads take so many bytes at once; None where few of its terms are by
    one bit, or where something is read at a place that memory says."""
    taken, (byte, inner) = packed.unpacked(width), packed.by_bytes(width)
    if (
        packed.has_lookups
        or packed.looked_up
        or packed.gates
        or any(load.steps is None or load.gates for load in taken.loads.values())
    ):
        return None
    fours = tuple(four for group in byte.groups for four in _fours_of(byte, group)[0])
    if any(load.node in byte.bits for four in fours for bit in four.bits for load in loads_of(*bit.others)):
        return None
    places = {tuple((b.number, b.low, b.high) for b in four.bits): place for place, four in enumerate(fours)}
    groups, found = [], 0
    for group in taken.groups:
        own, rest = _fours_of(taken, group)
        numbered = []
        for four in own:
            at = {bit.number % width for bit in four.bits}
            place = places.get(tuple((b.number // width, b.low, b.high) for b in four.bits))
            if len(at) != 1 or place is None:
                return None
            numbered.append((four, at.pop() * len(fours) + place))
        found += FOUR * len(numbered)
        groups.append(Sums(group.scales, tuple(numbered), rest))
    if min(found, taken.written - sum(len(sums.rest) for sums in groups)) < LEAST_SHARE * taken.written:
        return None
    return BitSums(width, byte, inner, fours, tuple(groups))


def _fours_of(unpacked: Unpacked, group: Group) -> tuple[list[Four], tuple[Term, ...]]:
    """The fours of a group, and its terms that are in none."""
    bits = {bit.field: (bit, terms) for bit, terms in _bits_of(unpacked, group.terms)}
    found, used = [], set[Term]()
    for word in dict.fromkeys(field.word for field in bits):
        places = sorted(field.shift for field in bits if field.word == word)
        while places:
            first = places.pop(0)
            four = [Field(word, first + place, 1) for place in range(FOUR)]
            if not all(field in bits for field in four):
                continue
            places = [place for place in places if place >= first + FOUR]
            found.append(Four(word, first, tuple(bits[field][0] for field in four)))
            used.update(term for field in four for term in bits[field][1])
    return found, tuple(term for term in group.terms if term not in used)


def _bits_of(unpacked: Unpacked, terms: Sequence[Term]) -> Iterator[tuple[Bit, tuple[Term, ...]]]:
    """Terms whose number is one bit, each with what is added to it times the same."""
    added = {term.others: term for term in terms if not term.inner}
    for term in terms:
        number = unpacked.numbers.get(term.others)
        linear = unpacked.number(term.inner[0]) if number is not None and len(term.inner) == 1 else None
        if number is None or linear is None or len(linear.terms) != 1:
            continue
        ((field, times),) = linear.terms
        if field.width == 1:
            more = (added.pop(term.others),) if term.others in added else ()  # with one bit of several
            low = term.factor * linear.constant + sum(one.factor for one in more)
            yield Bit(field, number, low, low + term.factor * times, term.others), (term, *more)
