"""Integers that are made of bits of memory's words: by shifts, masks, casts and sums of parts that share no bit.

A word is what one load brings. Of a value it is said of which word's bit each of its own bits is, so that a weight of
four bits, or one whose bits stand apart, is known as such whatever operations took it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kcg.compat.tiny import Ops, UOp, dtypes
from kcg.kernel.ast import affine, is_invalid

INDEX_BITS = 32  # of an index whose type has no size


Steps = tuple[tuple[UOp, int], ...]
"""How an address steps along ranges."""


@dataclass(frozen=True)
class Word:
    """A word of a buffer: of so many bytes, at `number` from where an address has it that steps so along ranges.

    Where parts of a word belong to neighbours, `moved` says by how many bits each step of a range moves it down. A word
    that may begin at any byte has its steps in bytes, and the byte at which the first of those beside it begins.
    """

    slot: int
    steps: Steps  # in words
    nbytes: int
    number: int
    moved: Steps = ()
    anywhere: int | None = None


Bit = tuple[Word, int] | int
"""A bit of a word, the lowest is 0; or 0 or 1."""

Bits = tuple[Bit, ...]
"""Of a value, the lowest first."""


@dataclass(frozen=True)
class Field:
    """Neighbouring bits of a word, as a number: those from `shift` on."""

    word: Word
    shift: int
    width: int

    @property
    def most(self) -> int:
        """The largest number."""
        return (1 << self.width) - 1


@dataclass(frozen=True)
class Linear:
    """A constant, and fields times whole numbers: each field once."""

    constant: int
    terms: tuple[tuple[Field, int], ...] = ()

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest value."""
        low = high = self.constant
        for field, factor in self.terms:
            low, high = low + min(0, factor * field.most), high + max(0, factor * field.most)
        return low, high

    def __add__(self, other: Linear) -> Linear:
        terms = dict(self.terms)
        for field, factor in other.terms:
            terms[field] = terms.get(field, 0) + factor
        return Linear(self.constant + other.constant, tuple((one, times) for one, times in terms.items() if times))

    def __mul__(self, factor: int) -> Linear:
        return Linear(self.constant * factor, tuple((field, times * factor) for field, times in self.terms if factor))


def width_of(node: UOp) -> int:
    """Bits of an integer's type."""
    return INDEX_BITS if node.dtype is dtypes.weakint else 1 if node.dtype is dtypes.bool else 8 * node.dtype.itemsize


def bits_of(node: UOp, loads: Mapping[UOp, Bits], known: dict[UOp, Bits | None]) -> Bits | None:
    """The bits of an integer; None where one of them is computed. `loads` has those of loads; `known` is filled."""
    if node not in known:
        known[node] = _bits_of(node, loads, known)
    return known[node]


def fields_of(bits: Bits, *, signed: bool) -> Linear:
    """A value of such bits as a sum of fields, of which the last bit counts negative where it is signed."""
    total, place = Linear(0), 0
    top = len(bits) - 1 if signed else -1
    while place < len(bits):
        bit = bits[place]
        if isinstance(bit, int):
            total += Linear(bit * (-(1 << place) if place == top else 1 << place))
            place += 1
            continue
        word, shift = bit
        width = 1
        while place != top and place + width < len(bits) and place + width != top and (
            bits[place + width] == (word, shift + width)
        ):  # fmt: skip
            width += 1
        factor = -(1 << place) if place == top else 1 << place
        total += Linear(0, ((Field(word, shift, width), factor),))
        place += width
    return total


def linear_of(node: UOp, loads: Mapping[UOp, Bits], known: dict[UOp, Bits | None]) -> Linear | None:
    """An integer as a constant and fields times whole numbers; None where it is more than that, or may wrap around."""
    bits = bits_of(node, loads, known)
    if bits is not None:
        return fields_of(bits, signed=_is_signed(node))
    found: Linear | None = None
    if not _is_integer(node):
        return None
    match node.op:
        case Ops.ADD:
            one, other = (linear_of(source, loads, known) for source in node.src)
            found = one + other if one is not None and other is not None else None
        case Ops.MUL:
            for one, other in (node.src, node.src[::-1]):
                if other.op is Ops.CONST and not is_invalid(other):
                    part = linear_of(one, loads, known)
                    found = part * int(other.arg) if part is not None else None
        case Ops.CAST | Ops.BITCAST if dtypes.is_int(node.src[0].dtype) or node.src[0].dtype is dtypes.bool:
            found = linear_of(node.src[0], loads, known)
    if found is None:
        return None
    low, high = found.bounds
    size = width_of(node)
    least, most = (-(1 << (size - 1)), (1 << (size - 1)) - 1) if _is_signed(node) else (0, (1 << size) - 1)
    return found if least <= low and high <= most else None


def _is_integer(node: UOp) -> bool:
    return dtypes.is_int(node.dtype) or node.dtype in (dtypes.bool, dtypes.weakint)


def _is_signed(node: UOp) -> bool:
    return node.dtype is dtypes.weakint or node.dtype in dtypes.sints


def _bits_of(node: UOp, loads: Mapping[UOp, Bits], known: dict[UOp, Bits | None]) -> Bits | None:
    if node in loads:
        return loads[node]
    if not _is_integer(node) or is_invalid(node):
        return None
    size = width_of(node)
    if node.op is Ops.CONST:
        return tuple((int(node.arg) >> place) & 1 for place in range(size))
    if node.op in (Ops.CAST, Ops.BITCAST):
        if dtypes.is_float(node.src[0].dtype) or node.dtype is dtypes.bool:
            return None
        inner = bits_of(node.src[0], loads, known)
        return None if inner is None else _extended(inner, size, signed=_is_signed(node.src[0]))
    if node.op is Ops.AND and (found := _of_moved(node, loads, known)) is not None:
        return found
    if node.op not in (Ops.AND, Ops.OR, Ops.XOR, Ops.ADD, Ops.SHL, Ops.SHR, Ops.MUL, Ops.CDIV, Ops.FLOORDIV,
                       Ops.CMOD, Ops.FLOORMOD):  # fmt: skip
        return None
    one, other = (bits_of(source, loads, known) for source in node.src)
    if one is None or other is None:
        return None
    return _combined(
        node, *(_extended(x, size, signed=_is_signed(s)) for x, s in zip((one, other), node.src, strict=True))
    )


def _of_moved(node: UOp, loads: Mapping[UOp, Bits], known: dict[UOp, Bits | None]) -> Bits | None:
    """The lowest bits of a value that ranges move down: the same bits of words that are moved down by these."""
    for moved, mask in (node.src, node.src[::-1]):
        if moved.op is not Ops.SHR or mask.op is not Ops.CONST or is_invalid(mask):
            continue
        value, amount = moved.src
        bits = bits_of(value, loads, known)
        steps = affine(amount.src[0] if amount.op is Ops.CAST else amount)
        count = int(mask.arg).bit_length()
        if bits is None or steps is None or not steps.keys() - {None} or int(mask.arg) != (1 << count) - 1:
            continue
        if any(step < 0 for step in steps.values()) or int(amount.vmax) + count > len(bits):
            continue
        first, more = steps.get(None, 0), tuple((axis, step) for axis, step in steps.items() if axis is not None)
        if isinstance(bits[0], int):
            continue
        word, begin = bits[0]
        if bits != tuple((word, begin + n) for n in range(len(bits))):
            continue
        own = replace(word, moved=summed((*word.moved, *more)))
        return _extended(tuple((own, begin + first + n) for n in range(count)), width_of(node), signed=False)
    return None


def summed(steps: Steps) -> Steps:
    """Steps with one of each range, where that is one."""
    found: dict[UOp, int] = {}
    for axis, step in steps:
        found[axis] = found.get(axis, 0) + step
    return tuple((axis, step) for axis, step in found.items() if step)


def _combined(node: UOp, one: Bits, other: Bits) -> Bits | None:
    size, constant = len(one), _constant(other)
    is_negative = _is_signed(node.src[0]) and one[-1] != 0
    match node.op:
        case Ops.AND:
            return _each(one, other, lambda x, y: 0 if 0 in (x, y) else x if y == 1 else y if x == 1 else None)
        case Ops.OR:
            return _each(one, other, lambda x, y: 1 if 1 in (x, y) else x if y == 0 else y if x == 0 else None)
        case Ops.XOR:
            return _each(one, other, lambda x, y: x if y == 0 else y if x == 0 else None)
        case Ops.ADD:  # of parts that share no bit nothing is carried
            return _each(one, other, lambda x, y: x if y == 0 else y if x == 0 else None)
        case Ops.SHL if constant is not None:
            return _shifted(one, constant)
        case Ops.SHR if constant is not None and not is_negative:
            return _shifted(one, -constant)
    if constant is None or constant < 1 or constant & (constant - 1):
        return None
    if node.op is not Ops.MUL and (is_negative or (_is_signed(node) and other[-1])):  # a quotient of what is below 0
        return None
    places = constant.bit_length() - 1
    match node.op:
        case Ops.MUL:
            return _shifted(one, places)
        case Ops.CDIV | Ops.FLOORDIV:
            return _shifted(one, -places)
        case _:
            return one[:places] + (0,) * (size - places)


def _each(one: Bits, other: Bits, of: object) -> Bits | None:
    assert callable(of)
    found = [of(x, y) for x, y in zip(one, other, strict=True)]
    return None if None in found else tuple(found)


def _shifted(bits: Bits, places: int) -> Bits:
    size = len(bits)
    if places >= 0:
        return ((0,) * places + bits)[:size]
    return bits[-places:] + (0,) * min(size, -places)


def _extended(bits: Bits, size: int, *, signed: bool) -> Bits:
    more: Bit = bits[-1] if signed else 0
    return (bits + (more,) * (size - len(bits)))[:size]


def _constant(bits: Sequence[Bit]) -> int | None:
    if not all(isinstance(bit, int) for bit in bits):
        return None
    return sum(int(bit) << place for place, bit in enumerate(bits) if isinstance(bit, int))
