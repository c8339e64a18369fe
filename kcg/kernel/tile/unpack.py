"""Numbers of packed words in registers: words are loaded once, and each number is taken out of its word by a mask and
becomes a float exactly, by the bits of a large float (2^23 plus the number).

`kcg.kernel.reading.packed` says which bits of which words a value is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.ast import affine
from kcg.kernel.reading.accesses import BufferSlot
from kcg.kernel.reading.bits import Field, Linear, Steps, Word, summed
from kcg.kernel.reading.packed import WORD_BYTES, Unpacked, raw_words
from kcg.kernel.tile.emit import TYPES, Block, Frame, Writer, compute_type, sliced
from kcg.kernel.tile.needed import VECTOR_BYTES
from kcg.kernel.tile.tiles import is_power_of_two

EXACT_BITS = 23  # of a float's fraction
ONE = 1 << EXACT_BITS  # from here to twice as much, floats are whole numbers
MAGIC = 0x4B000000  # its bits
WIDE_LAYOUT = "neighbours"

_Raw = tuple[int, Steps, int, int | None, int]
"""A word as it is loaded: its buffer, steps and bytes, where it begins if that is anywhere, and its number."""


def from_byte(writer: Writer, low: str, high: str, amount: str) -> str:
    """The word of four bytes that begins so many bits, 31 at most, after the beginning of the lower of two."""
    writer.helpers["_from_byte"] = _FUNNEL if writer.ptx else _PLAIN_FUNNEL
    return f"_from_byte({low}, {high}, {amount})"


class _Held(dict[Word, Block]):
    """Words that are there, and others that are made of them when they are asked for."""

    def __init__(self, made: Callable[[Word], Block]) -> None:
        super().__init__()
        self._made = made

    def __missing__(self, word: Word) -> Block:
        self[word] = block = self._made(word)
        return block


class Words:
    """The words of some values, and what they are made of, written into a frame."""

    def __init__(self, unpacked: Unpacked, frame: Frame, policies: Mapping[int, str] | None = None) -> None:
        """`policies` say of buffers what becomes of what is loaded of them in L2."""
        self.unpacked, self.frame, self.root = unpacked, frame, frame.outermost()
        self.policies = policies or {}
        self.words = _Held(self._moved_down)
        self.wide: dict[Word, str] = {}
        self.known: dict[UOp, Block] = {}  # factors as float32

    # ---- loads

    def _fetched(self) -> dict[_Raw, Block]:
        """Loads all words: those of one address but for a constant as wide as they are aligned."""
        found: dict[_Raw, Block] = {}
        for (slot, steps, nbytes), numbers in self.unpacked.aligned.items():
            pointer, axes = self._moved(self._words_of(slot, nbytes), dict(steps), slot)
            most = most_together(steps, nbytes)
            mask = self.frame.mask_of(axes, [axis for axis, _ in steps])
            for number, text in self._neighbours(pointer, axes, mask, numbers, most, slot, "word"):
                found[slot, steps, nbytes, None, number] = Block(text, f"uint{8 * nbytes}", axes)
        for (slot, steps, first), nbytes in self.unpacked.anywhere.items():
            for number, block in enumerate(self._fetch_anywhere(slot, steps, first, nbytes)):
                found[slot, steps, WORD_BYTES, first, number] = block
        return found

    def _load_words(self) -> None:
        """Makes the words of what is loaded."""
        raw = self._fetched()
        for word in self.unpacked.words:
            if word.anywhere is None:
                block = raw[word.slot, word.steps, word.nbytes, None, word.number]
                self.words[word] = self._down(block, word.moved)
                continue
            key = word.slot, word.steps, word.nbytes, word.anywhere
            low = raw[(*key, word.number)]
            high = raw.get((*key, word.number + 1), low)
            amount = self._bits_before(word.steps, word.anywhere)
            text = from_byte(self.frame.writer, low.text, high.text, amount.text)
            self.words[word] = self.frame.new(text, "uint32", low.axes | amount.axes, "word")

    def _moved_down(self, word: Word) -> Block:
        """A word of which ranges say how far it is moved down, made of the one that is there."""
        for there, block in self.words.items():
            more = summed((*word.moved, *((axis, -step) for axis, step in there.moved)))
            if replace(there, moved=()) == replace(word, moved=()) and all(step > 0 for _, step in more):
                return self._down(block, more)
        raise KeyError(word)

    def _words_of(self, slot: int, nbytes: int) -> str:
        """The pointer of a buffer's words."""
        pointer, type_ = self.frame.buffer(slot), f"uint{8 * nbytes}"
        if type_ == TYPES[buffer_of(self.frame, slot).dtype]:
            return pointer
        return self.root.lines.name(f"{pointer}.to(tl.pointer_type(tl.{type_}))", f"p{slot}_words")

    def _down(self, block: Block, moved: Steps) -> Block:
        """A word moved down by what ranges say."""
        if not moved:
            return block
        amount = self._sum_of(moved)
        return self.frame.new(f"{block.text} >> {amount.text}", block.type, block.axes | amount.axes)

    def _sum_of(self, steps: Steps) -> Block:
        """A sum of ranges times constants."""
        total: Block | None = None
        for axis, step in steps:
            one = self.frame.value(axis)
            one = one if step == 1 else self.frame.new(f"{one.text} * {step}", "int32", one.axes)
            total = (
                one if total is None else self.frame.new(f"{total.text} + {one.text}", "int32", total.axes | one.axes)
            )
        assert total is not None
        return total

    def _fetch_anywhere(self, slot: int, steps: Steps, first: int, nbytes: int) -> Iterator[Block]:
        """The aligned words around so many bytes that begin anywhere."""
        count = raw_words(nbytes, math.gcd(WORD_BYTES, first, *(step for _, step in steps)))
        whole = {axis: step // WORD_BYTES for axis, step in steps if step // WORD_BYTES}
        pointer, axes = self._moved(self._words_of(slot, WORD_BYTES), whole, slot)
        begin, amount = self._begin(steps, first), self._bits_before(steps, first)
        place = self.frame.new(f"{begin.text} // {WORD_BYTES}", "int32", begin.axes)
        axes |= begin.axes
        pointer = self.frame.new(f"{pointer} + {place.text}", "pointer", axes).text
        mask = self.frame.mask_of(axes, [axis for axis, _ in steps])
        own = f", mask={self.frame.all_of(mask)}, other=0" if mask else ""
        for number in range(count):
            at = f"{pointer} + {number}" if number else pointer
            if nbytes <= WORD_BYTES * number:  # of what begins early nothing is in it, and it may be of no buffer
                bits = 8 * (WORD_BYTES * number - nbytes)
                is_more = f"{amount.text} > {bits}"
                is_more = is_more if amount.axes else self.frame.scalar_condition(is_more)
                reached = self.frame.new(is_more, "int1", amount.axes, "mask")
                own = f", mask={self.frame.all_of([*mask, reached.text])}, other=0"
            yield self.frame.new(f"tl.load({at}{own}{self._policy(slot)})", "uint32", axes, f"p{slot}_word")

    def _begin(self, steps: Steps, first: int) -> Block:
        """At which byte of an aligned word, or of those after it, words begin."""
        begin = self._sum_of(tuple((axis, step % WORD_BYTES) for axis, step in steps if step % WORD_BYTES))
        return self.frame.new(f"{begin.text} + {first}", "int32", begin.axes) if first else begin

    def _bits_before(self, steps: Steps, first: int) -> Block:
        """How many bits of the first aligned word stand before them."""
        begin = self._begin(steps, first)
        return self.frame.new(f"{begin.text} % {WORD_BYTES} * 8", "int32", begin.axes)

    def _policy(self, slot: int) -> str:
        return f', eviction_policy="{self.policies[slot]}"' if slot in self.policies else ""

    def _moved(self, pointer: str, steps: Mapping[UOp | None, int], slot: int) -> tuple[str, frozenset[int]]:
        """A pointer at an address that steps so, what changes least added first."""
        wide = "int64" if buffer_of(self.frame, slot).size >= 1 << 31 else "int32"
        axes = frozenset[int]()
        for _, block in sorted(self.frame.parts(steps, wide), key=lambda part: 0 in part[1].axes):
            axes |= block.axes
            if block.constant != 0:
                pointer = self.frame.new(f"{pointer} + {block.text}", "pointer", axes, "at").text
        return pointer, axes

    def _neighbours(
        self, pointer: str, axes: frozenset[int], mask: list[str], numbers: set[int], most: int, slot: int, hint: str
    ) -> Iterator[tuple[int, str]]:
        """Loads the elements at some constants from a pointer: one by one, as where a compiler says how blocks lie."""
        frame, policy = self.frame, self._policy(slot)
        own = f", mask={frame.all_of(mask)}, other=0" if mask and axes else ""
        for number in sorted(numbers):
            at = f"{pointer} + {number}" if number else pointer
            yield number, frame.lines.name(f"tl.load({at}{own}{policy})", f"p{slot}_{hint}")

    # ---- values

    def _times(self, one: Block, other: Block) -> Block:
        return self.frame.new(f"{one.text} * {other.text}", "float32", one.axes | other.axes)

    def _plus(self, one: Block, other: Block) -> Block:
        return self.frame.new(f"{one.text} + {other.text}", "float32", one.axes | other.axes)

    def _linear(self, node: UOp) -> Linear | None:
        """A factor as fields times powers of two; None of any other."""
        linear = self.unpacked.number(node)
        if linear is None:
            return None
        return (
            linear
            if all(is_power_of_two(abs(times)) and one.width <= EXACT_BITS for one, times in linear.terms)
            else None
        )

    def _exactly(self, linear: Linear) -> Block:
        """A sum of fields as a float: they are put into the fraction of 2^23, and that taken away. Both are exact."""
        constant, fields = _without_signs(linear)
        total: Block | None = None
        for together in _side_by_side(fields):
            (field, factor, flipped), *others = together
            bits, shift, axes = self._in_place(field, flipped=flipped)
            for other, times, _ in others:
                bits = self._beside(bits, other, shift + (times // factor).bit_length() - 1)
                axes |= self.words[other.word].axes
            number = self.frame.new(f"{bits}.to(tl.float32, bitcast=True)", "float32", axes)
            scale = factor / (1 << shift)
            number = number if scale == 1 else self.frame.new(f"{number.text} * {scale!r}", "float32", axes)
            offset = ONE * scale
            if total is None and _is_exact(offset - constant):
                offset, constant = offset - constant, 0
            number = self.frame.new(f"{number.text} - {offset!r}", "float32", axes)
            total = number if total is None else self._plus(total, number)
        assert total is not None
        return total if not constant else self.frame.new(f"{total.text} + {float(constant)!r}", "float32", total.axes)

    def _shifted(self, text: str, moved: int) -> str:
        """A word moved up, or down."""
        if not moved:
            return text
        return self.frame.lines.name(f"{text} << {moved}" if moved > 0 else f"{text} >> {-moved}", "word")

    def _masked(self, text: str, mask: int) -> str:
        """Some bits of a word beside those of 2^23."""
        if not self.frame.writer.ptx:
            return self.frame.lines.name(f"{self.frame.lines.name(f'{text} & {mask}', 'bits')} | {MAGIC}", "bits")
        self.frame.writer.helpers[f"_bits_{mask}"] = _BITS.format(mask=mask, power=MAGIC)
        return self.frame.lines.name(f"_bits_{mask}({text})", "bits")

    def _beside(self, bits: str, field: Field, place: int) -> str:
        """Bits of a float with those of another field from a place on."""
        text = self._shifted(self._as_32(field.word), place - field.shift)
        mask = field.most << place
        if not self.frame.writer.ptx:
            return self.frame.lines.name(f"{bits} | ({text} & {mask})", "bits")
        self.frame.writer.helpers[f"_with_{mask}"] = WITH.format(mask=mask)
        return self.frame.lines.name(f"_with_{mask}({bits}, {text})", "bits")

    def _in_place(self, field: Field, *, flipped: bool) -> tuple[str, int, frozenset[int]]:
        """The bits of a float of 2^23 and a field, where that stands in its word, and from which bit on."""
        word = self.words[field.word]
        text, shift = self._as_32(field.word), field.shift
        if flipped:
            signs = sum(0x80 << place for place in range(0, 8 * field.word.nbytes, 8))
            text = self.frame.lines.name(f"{text} ^ {signs}", "word")
        if shift + field.width > EXACT_BITS:
            moved = 16 if shift >= 16 and shift + field.width - 16 <= EXACT_BITS else shift
            text, shift = self._shifted(text, -moved), shift - moved
        mask = field.most << shift
        if shift == 0 and field.width == 8 * field.word.nbytes:
            return self.frame.lines.name(f"{text} | {MAGIC}", "bits"), shift, word.axes
        return self._masked(text, mask), shift, word.axes

    def _as_32(self, word: Word) -> str:
        """A word in 32 bits."""
        if word not in self.wide:
            block = self.words[word]
            self.wide[word] = self.frame.cast(block, "uint32").text
        return self.wide[word]

    def bind(self, node: UOp) -> None:
        """Loads the words, and binds what a value is made of them: numbers that become floats as these."""
        if not self.words:
            self._load_words()
        self._bind(node, floats=True)

    def _bind(self, node: UOp, *, floats: bool = False) -> None:
        """Binds what a value is made of words, so that the frame can write the rest. What is the same for all steps is
        written before the loop, where there are no words yet: as any other value."""
        waiting, seen = [node], set[UOp]()
        while waiting:
            one = waiting.pop()
            if one in seen or self.frame.home(one) is not self.frame:
                continue
            seen.add(one)
            if floats and (number := self._linear(one)) is not None:
                if one not in self.frame.bound:
                    self.frame.bound[one] = self.frame.values[one] = self._exactly(number)
                continue
            linear = self.unpacked.linear(one) if one.op is not Ops.CONST else None
            if linear is not None and linear.terms:
                if one not in self.frame.bound:
                    self.frame.bound[one] = self.frame.values[one] = self._integer(linear, one)
            else:
                waiting.extend(() if one.op is Ops.INDEX else one.src)

    def _integer(self, linear: Linear, node: UOp) -> Block:
        """A sum of fields as an integer of a value's type."""
        type_ = compute_type(node)
        (first, times), *others = linear.terms
        word = self.words[first.word]
        if (
            not others
            and not linear.constant
            and times == 1
            and not first.shift
            and first.width == 8 * first.word.nbytes
        ):
            return self.frame.cast(word, type_)
        low, high = linear.bounds
        wide = "int32" if low >= -(1 << 31) and high < 1 << 31 else "int64"
        total = Block(repr(linear.constant), wide, constant=linear.constant)
        for field, factor in linear.terms:
            block = self.words[field.word]
            text = self._as_32(field.word)
            text = self._shifted(text, -field.shift)
            if field.shift + field.width < 8 * field.word.nbytes:
                text = self.frame.lines.name(f"{text} & {field.most}", "bits")
            part = self.frame.cast(Block(text, "uint32", block.axes), wide)
            if factor != 1:
                part = self.frame.new(f"{part.text} * {factor}", wide, part.axes)
            total = (
                part
                if total.constant == 0
                else self.frame.new(f"{total.text} + {part.text}", wide, part.axes | total.axes)
            )
        return self.frame.cast(total, type_)


class WideWords(Words):
    """The same, neighbours loaded at once as blocks with one axis more, whose layout is said where others are."""

    def _wide_layout(self, axes: frozenset[int], count: int) -> str:
        """How blocks along some axes lie with the threads, each with so many neighbours."""
        raise NotImplementedError

    def _neighbours(
        self, pointer: str, axes: frozenset[int], mask: list[str], numbers: set[int], most: int, slot: int, hint: str
    ) -> Iterator[tuple[int, str]]:
        """Up to `most` neighbours at once."""
        for first, count in together(numbers, most):
            if count == 1 or not axes:
                alone = set(range(first, first + count))
                yield from super()._neighbours(pointer, axes, mask, alone, 1, slot, hint)
                continue
            at, name = f"{pointer} + {first}" if first else pointer, f"p{slot}_{hint}"
            texts = self._vector(at, axes, mask, count, self._policy(slot), name)
            yield from zip(range(first, first + count), texts, strict=True)

    def _load_together(self, buffer: BufferSlot, rest: UOp, nodes: dict[int, UOp]) -> None:
        """Loads what is at some constants from an address, neighbours together."""
        pointer, axes = self._at(buffer.slot, rest)
        itemsize = int(buffer.dtype.itemsize)
        most = math.gcd(min(4, VECTOR_BYTES // itemsize), int(rest.const_factor()) if rest.op is not Ops.CONST else 4)
        mask = self.frame.mask_of(axes, rest.ranges)
        for constant, text in self._neighbours(pointer, axes, mask, set(nodes), most, buffer.slot, "block"):
            block = self.frame.cast(Block(text, TYPES[buffer.dtype], axes), compute_type(nodes[constant]))
            self.known[nodes[constant]] = block
            self.frame.bound[nodes[constant]] = self.frame.values[nodes[constant]] = block

    def _at(self, slot: int, address: UOp) -> tuple[str, frozenset[int]]:
        """The pointers of an address."""
        steps = affine(address)
        if steps is not None:
            return self._moved(self.frame.buffer(slot), {a: s for a, s in steps.items() if a is not None}, slot)
        self._bind(address)
        place = self.frame.value(address)
        pointer = self.frame.new(f"{self.frame.buffer(slot)} + {place.text}", "pointer", place.axes, f"p{slot}_at")
        return pointer.text, place.axes

    def _vector(self, at: str, axes: frozenset[int], mask: list[str], count: int, policy: str, hint: str) -> list[str]:
        """Some neighbours in one load, each as a block."""
        frame, rows = self.frame, ":, " * self.frame.rank + "None"
        lanes, wide = f"tl.arange(0, {count})", ""
        if frame.layout:
            wide = f"{WIDE_LAYOUT}_{count}_of_{'_'.join(frame.word(axis) for axis in sorted(axes))}"
            made = self._wide_layout(axes, count)
            frame.writer.helpers.setdefault(wide, f"{wide} = gl.constexpr({made})\n")
            lanes = f"tl.arange(0, {count}, {sliced(wide, range(frame.rank))})"
        lanes = self.root.lines.name(f"{lanes}[{'None, ' * frame.rank}:]", "lanes")

        def lying(text: str, hint: str) -> str:
            text = frame.lines.name(text, hint) if " " in text else text
            own = f"tl.convert_layout({text}, {sliced(wide, [frame.rank])})"
            return frame.lines.name(own, hint) if wide else text

        base = lying(at, "at")
        own = f", mask={lying(frame.all_of(mask), 'mask')}[{rows}], other=0" if mask else ""
        block = frame.lines.name(f"tl.load({base}[{rows}] + {lanes}{own}{policy})", hint)
        sizes = [size if axis in axes else 1 for axis, size in enumerate(frame.sizes)]
        if count == 2:
            return [frame.laid_as(text) for text in self._halves(block, hint)]
        pairs = frame.lines.name(f"{block}.reshape([{', '.join(map(str, [*sizes, 2, 2]))}])", hint)
        even, odd = self._halves(pairs, hint)
        (one, three), (two, four) = self._halves(even, hint), self._halves(odd, hint)
        return [frame.laid_as(text) for text in (one, two, three, four)]

    def _halves(self, text: str, hint: str) -> tuple[str, str]:
        """The first and the second of each pair."""
        one, other = (self.frame.writer.fresh(hint) for _ in range(2))
        self.frame.lines.add(f"{one}, {other} = tl.split({text})")
        return one, other


_BITS = """
@triton.jit
def _bits_{mask}(word):
    asm: tl.constexpr = "lop3.b32 $0, $1, {mask}, {power}, 0xEA;"
    return tl.inline_asm_elementwise(asm, "=r,r", [word], dtype=tl.uint32, is_pure=True, pack=1)
"""
"""Some bits of a word beside those of 2^23, in one instruction: the compiler takes two."""

WITH = """
@triton.jit
def _with_{mask}(bits, word):
    asm: tl.constexpr = "lop3.b32 $0, $2, {mask}, $1, 0xEA;"
    return tl.inline_asm_elementwise(asm, "=r,r,r", [bits, word], dtype=tl.uint32, is_pure=True, pack=1)
"""
"""Some bits of a word beside others."""

_FUNNEL = """
@triton.jit
def _from_byte(low, high, amount):
    asm: tl.constexpr = "shf.r.clamp.b32 $0, $1, $2, $3;"
    return tl.inline_asm_elementwise(asm, "=r,r,r,r", [low, high, amount], dtype=tl.uint32, is_pure=True, pack=1)
"""
_PLAIN_FUNNEL = """
@triton.jit
def _from_byte(low, high, amount):
    return (((high.to(tl.uint64) << 32) | low.to(tl.uint64)) >> amount.to(tl.uint64)).to(tl.uint32)
"""
"""The word that begins so many bits above the beginning of the first of two."""


def buffer_of(frame: Frame, slot: int) -> BufferSlot:
    return next(b for b in frame.writer.kernel.buffers if b.slot == slot)


def most_together(steps: Steps, nbytes: int) -> int:
    """How many neighbouring words of an address that steps so are aligned as one load."""
    return math.gcd(VECTOR_BYTES // nbytes, *(step for _, step in steps))


def together(numbers: Iterable[int], most: int, counts: tuple[int, ...] = (4, 2, 1)) -> Iterator[tuple[int, int]]:
    """Numbers of words, those in one load together: the first, and how many; `most` at most."""
    left = sorted(numbers)
    while left:
        first = left[0]
        count = next(n for n in counts if n <= most and first % n == 0 and set(range(first, first + n)) <= set(left))
        left = [number for number in left if not first <= number < first + count]
        yield first, count


def _without_signs(linear: Linear) -> tuple[int, list[tuple[Field, int, bool]]]:
    """Fields and their factors, of which a byte with a sign is one with its last bit turned round, and 128 less."""
    constant, terms = linear.constant, dict(linear.terms)
    found = []
    for field, factor in linear.terms:
        sign = Field(field.word, field.shift + 7, 1)
        if field.width == 7 and field.shift % 8 == 0 and terms.get(sign) == -128 * factor:
            found.append((Field(field.word, field.shift, 8), factor, True))
            constant -= 128 * factor
            terms.pop(sign)
            terms.pop(field)
    found += [(field, factor, False) for field, factor in terms.items()]
    return constant, found


def _side_by_side(fields: list[tuple[Field, int, bool]]) -> list[list[tuple[Field, int, bool]]]:
    """Fields in groups, of which each is one number: the first stands lowest in it, and none of them overlap."""
    found: list[list[tuple[Field, int, bool]]] = []
    for one in sorted(fields, key=lambda of: (of[1] < 0, abs(of[1]))):
        field, factor, flipped = one
        for group in found:
            (first, least, turned), *_ = group
            last, most, _ = group[-1]
            low = factor // least if factor > 0 and least > 0 and not flipped and not turned else 0
            base = first.shift if first.shift + first.width <= EXACT_BITS else first.shift - 16
            fits = low >= (most // least) << last.width and base + low.bit_length() - 1 + field.width <= EXACT_BITS
            if low and base >= 0 and fits:
                group.append(one)
                break
        else:
            found.append([one])
    return found


def _is_exact(number: float) -> bool:
    """Whether float32 has a number."""
    return float(np.float32(number)) == number
