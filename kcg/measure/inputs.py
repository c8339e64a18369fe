"""Random inputs for one kernel: floats of a recipe, integers in the range of what they index, the same everywhere.

A large buffer is made of segments, and each is a slice of the numbers that the recipe drew, from where a counter-based
hash of seed, slot and segment says. So there is no period, a device fills a buffer at the speed of its memory, a
process without a device computes the elements that a reference needs, and whoever reads all of them
(`kcg.kernel.projection`) does so at the speed of a copy. Small buffers are drawn element by element.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from kcg.compat.streams import Stream
from kcg.compat.tiny import Buffer, Device, Invalid, KernelInfo, Ops, UOp, dtypes, fp8_to_float
from kcg.errors import DeviceError, KcgError
from kcg.kernel.ast import affine, shape_of, slot_of, without_gates
from kcg.kernel.chain import covers
from kcg.kernel.compile import compile_schedule, to_elf
from kcg.kernel.projection import exact_density
from kcg.kernel.reference import StoreIndex
from kcg.measure import outcomes
from kcg.measure.outcomes import Outcome
from kcg.types import Region, Target, content_id

Array = np.ndarray[Any, Any]

RECIPE = "normal-v2"  # signed, of mixed scale: what is timed, and what a candidate is checked on
POSITIVE_RECIPE = "positive-v2"
UNIT_RECIPE = "unit-v2"  # floats between 0 and 1, and integers that are not 0: for log(1 - x), asin(x) or n // m
FEW_RECIPE = "few-v2"  # four floats and four integers, so that many are equal: for x == max(x)
FLAGS_RECIPE = "flags-v1"  # numbers are 0 or 1: for what counts flags, and asks for one count
FEW_SPECIAL_RECIPE = "few-special-v2"  # the same with infinities, NaN and both zeros: for isinf(x), or x == y
LOWERED_RECIPE = "lowered-v1"  # all scores of softmax and attention far below 0: see `lowered`
SMALLER_RECIPES = {f"smaller-{by}-v1": by for by in (3, 6, 9, 12)}  # by 2^-3: for exp(100 x - m) in 16 bits
SMALLER_POSITIVE_RECIPES = {f"smaller-positive-{by}-v1": by for by in (3, 6, 9, 12)}
FACTORS_RECIPE = "factors-v1"  # floats near ±1, and odd integers: a product of a row of them is neither 0 nor infinite
BINARY_RECIPE = "binary-v2"  # floats are 0 or 1, few enough ones that every sum is exact in the narrowest type

# of segments of their own kinds, see `SEGMENT`
NEGATIVE_RECIPE = "negative-v3"  # all below 0, some rows hold huge ones only, some a -inf: a maximum that starts from 0
BELOW_ZERO_RECIPE = "below-zero-v3"  # the same without the huge and the infinite ones
SPECIAL_RECIPE = "special-v4"  # wide, and some infinities and NaN
WIDE_RECIPE = "wide-v4"  # magnitudes over the whole type, subnormal ones too; integers of all bits
WIDE_POSITIVE_RECIPE = "wide-positive-v4"
SPIKY_RECIPE = "spiky-v1"  # some elements much larger than the others, rows of other sizes: of several kernels
MODEST_RECIPE = "modest-v3"  # between 2^-8 and 2^8, integers between -1000 and 1000

WITH_NAN = "+nan-v1"  # ends the name of a recipe whose numbers are mixed with NaN where a kernel compares: `with_nan`

TIMED_SEED = 0  # of the inputs on which a kernel is timed
FEW = (-1.0, -0.5, 0.5, 1.0)
FEW_SPECIAL = (-np.inf, -1.0, -0.0, 0.0, 0.5, 1.0, np.inf, np.nan)
TIES = tuple(half / 2 for half in range(-8, 9))  # where rounding and many a case decide
MOST_CONSTANTS = 16
WITH_ENDS = 16  # elements from which a buffer's first and last one are the largest and the smallest of all
MEETING_SHARE = 16  # the part of a small buffer, before its middle, in which extreme numbers meet those of others
SMALL_INTEGERS = 8  # integers that index nothing are drawn from [-8, 8) by most recipes
STRAYS = 0.1  # of the indices that a kernel compares with bounds, those that are outside of them
SMALL = 1 << 16  # elements up to which a buffer is drawn itself
SEGMENT_BITS = 12
SEGMENT = (
    1 << SEGMENT_BITS
)  # consecutive elements of a large buffer that are one slice, and of one kind under a recipe of kinds
KINDS = 8  # of segments: each has an eighth of the numbers
BLOCK = SMALL + SEGMENT  # numbers that a recipe draws for large buffers: a slice begins at any of the first 65,536
CHUNK = 1 << 20  # elements that are written at once
KEPT_BLOCKS = 64

HASH = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)  # odd: Knuth's, and two of xxHash's steps
STEP = BLOCK // KINDS  # numbers of a kind; of these a slice begins at any of the first 4,096

# exponents of the smallest normal and of the largest number
FLOATS = {
    "half": (-14, 15),
    "float": (-126, 127),
    "double": (-1022, 1023),
    "__bf16": (-126, 127),
    "float8_e4m3": (-6, 8),
    "float8_e5m2": (-14, 15),
    "float8_e4m3fnuz": (-7, 7),
    "float8_e5m2fnuz": (-15, 15),
}
HELD_AS_BITS = {"__bf16": np.uint16, **dict.fromkeys((name for name in FLOATS if "8" in name), np.uint8)}

_ARITHMETIC = frozenset(
    {Ops.ADD, Ops.SUB, Ops.MUL, Ops.MULACC, Ops.FDIV, Ops.RECIPROCAL, Ops.POW, Ops.EXP2, Ops.REDUCE, Ops.CAST}
)
_SEGMENTED = frozenset(
    {
        NEGATIVE_RECIPE,
        BELOW_ZERO_RECIPE,
        SPIKY_RECIPE,
        SPECIAL_RECIPE,
        WIDE_RECIPE,
        WIDE_POSITIVE_RECIPE,
        MODEST_RECIPE,
    }
)
_WITH_STRAYS = frozenset(
    {
        NEGATIVE_RECIPE,
        BELOW_ZERO_RECIPE,
        LOWERED_RECIPE,
        SPECIAL_RECIPE,
        WIDE_RECIPE,
        WIDE_POSITIVE_RECIPE,
        MODEST_RECIPE,
    }
)
"""Of these a seed of a finalist has one: see `guarded_indices`."""
_MEETING = frozenset({SPECIAL_RECIPE, WIDE_RECIPE, WIDE_POSITIVE_RECIPE})
"""Of small buffers extreme numbers are at one place in all of them too: what adds or compares two of them shows what it
makes of two subnormal numbers, or of two large integers that differ in their last bits."""
_NUMPY: dict[str, Any] = {
    "bool": np.bool_,
    "signed char": np.int8,
    "unsigned char": np.uint8,
    "short": np.int16,
    "unsigned short": np.uint16,
    "int": np.int32,
    "unsigned int": np.uint32,
    "long": np.int64,
    "unsigned long": np.uint64,
    "half": np.float16,
    "float": np.float32,
    "double": np.float64,
    **HELD_AS_BITS,
}


def starts(segment: Array, key: int, *, by_kind: bool) -> Array:
    """Where in a block each of some segments (uint32) begins. The same is computed on a device."""
    x = segment * np.uint32(HASH[0]) + np.uint32(key)
    x ^= x >> 15
    x *= np.uint32(HASH[1])
    x ^= x >> 13
    x *= np.uint32(HASH[2])
    step, mask = slicing(by_kind)
    return ((x >> 29) * np.uint32(step) + ((x >> 8) & np.uint32(mask))).astype(np.int64)


def slicing(by_kind: bool) -> tuple[int, int]:
    """What the top three bits of a segment's hash are multiplied by, and the mask of those that are added."""
    return (STEP, SEGMENT - 1) if by_kind else (0, SMALL - 1)


@dataclass(frozen=True)
class Exponent:
    """Every `period`-th element of a buffer of integers, from `at` on, that holds exponents of floats: some of its bits
    are always the same, so that the float is finite and of moderate size."""

    period: int
    at: int
    kept: int  # a mask of the bits that are as they were drawn
    bits: int  # the others

    def bounded(self, values: Array) -> Array:
        """The same with those bits; numbers may be held as floats."""
        held = values.astype(np.int64) & self.kept | self.bits
        return held.astype(values.dtype)

    def words(self, width: int) -> tuple[int, int, int, int]:
        """Period, place and masks of elements of so many bytes, as a device has them."""
        every = (1 << 8 * width) - 1
        return self.period, self.at, self.kept & every, self.bits & every


def bound_exponents(values: Array, exponents: Sequence[Exponent], first: int = 0) -> None:
    """Bound those of consecutive elements from `first` on, in place."""
    for one in exponents:
        begin = (one.at - first) % one.period
        values[begin :: one.period] = one.bounded(values[begin :: one.period])


@dataclass(frozen=True, eq=False)
class Hashed:
    """A large buffer whose elements are computed where they are asked for. Indexing gives elements, as of an array."""

    block: Array  # (BLOCK,), stored bits or values; two segments more where those at its ends are of their own
    size: int
    key: int  # of its hash, 32 bits
    by_kind: bool
    exponents: tuple[Exponent, ...] = ()  # of floats that integers are the bits of

    @property
    def dtype(self) -> Any:
        return self.block.dtype

    @property
    def nbytes(self) -> int:
        return self.size * self.block.itemsize

    def __getitem__(self, index: Any) -> Any:
        wanted = np.asarray(index)
        at = self._starts[wanted >> SEGMENT_BITS] + (wanted & (SEGMENT - 1))
        if len(self.block) > BLOCK:
            tail = self.size - SEGMENT
            if (in_tail := wanted >= tail).any():
                at = np.where(in_tail, BLOCK + SEGMENT + wanted - tail, at)
        found = self.block[at]
        for one in self.exponents:
            found = np.where(wanted % one.period == one.at, one.bounded(found), found)
        return found

    @functools.cached_property
    def _starts(self) -> Array:
        """Where in the block each segment begins; the first is of its own where the ends are."""
        count = -(-self.size // SEGMENT)
        begin = starts(np.arange(count, dtype=np.uint32), self.key, by_kind=self.by_kind)
        begin[:1] = BLOCK if len(self.block) > BLOCK else begin[:1]
        return begin

    @functools.cached_property
    def _slices(self) -> Array:
        return sliding_window_view(self.block, SEGMENT)

    @property
    def ends(self) -> tuple[tuple[int, Array], ...]:
        """`(first element, elements)` of the first and the last segment, where they are of their own."""
        first, last = self.block[BLOCK : BLOCK + SEGMENT], self.block[BLOCK + SEGMENT :]
        return ((0, first), (self.size - SEGMENT, last)) if len(last) else ()

    def reshape(self, shape: int) -> Hashed:
        """Flat as it is; the name is NumPy's, so that readers of arrays can read this too."""
        if shape != -1:
            raise ValueError(f"a computed buffer is flat, not of shape {shape}")
        return self

    def window(self, first: int, count: int) -> Array:
        """The elements `first` to `first + count`."""
        begin, end = first // SEGMENT, -(-(first + count) // SEGMENT)
        slices = self._slices[self._starts[begin:end]].reshape(-1)
        found: Array = slices[first - begin * SEGMENT : first - begin * SEGMENT + count]
        tail = self.size - SEGMENT
        if len(self.block) > BLOCK and first + count > tail:
            low = max(first, tail)
            found[low - first :] = self.block[BLOCK + SEGMENT + low - tail :][: first + count - low]
        bound_exponents(found, self.exponents, first)
        return found

    def chunks(self) -> Iterator[tuple[int, Array]]:
        """`(first element, elements)` of consecutive parts."""
        for first in range(0, self.size, CHUNK):
            yield first, self.window(first, min(CHUNK, self.size - first))

    def same_as(self, other: Array) -> bool:
        """Whether an array of `size` elements holds these."""
        kind = np.dtype(f"u{self.block.itemsize}")  # bits: NaN equals itself
        parts = ((other[first : first + len(part)], part) for first, part in self.chunks())
        return all(np.array_equal(ours.view(kind), part.view(kind)) for ours, part in parts)

    def whole(self) -> Array:
        """All elements as one array."""
        return self.window(0, self.size)

    def of(self, block: Array) -> Hashed:
        """The same with other numbers in the block."""
        return replace(self, block=block)


Stored = Array | Hashed
"""The bits of one buffer."""


@dataclass(frozen=True)
class BufferInfo:
    """One buffer of a kernel."""

    slot: int
    size: int  # elements
    dtype: str  # tinygrad's name of the dtype, e.g. "float", "__bf16"
    itemsize: int
    is_output: bool
    is_input: bool

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize


def buffers_of(ast: UOp) -> tuple[BufferInfo, ...]:
    """The buffers of a normalised AST in slot order; symbolic sizes at their maximum."""
    nodes = list(ast.toposort())
    stored = {slot_of(u.src[0]) for u in nodes if u.op is Ops.STORE}
    targets = {u.src[0] for u in nodes if u.op is Ops.STORE}
    read = {slot_of(u) for u in nodes if u.op is Ops.INDEX and (u not in targets or _is_read(u, nodes))}
    params = sorted((u for u in nodes if u.op is Ops.PARAM and u.arg.slot >= 0), key=lambda u: u.arg.slot)
    return tuple(
        BufferInfo(
            slot=u.arg.slot,
            size=int(u.max_numel()),
            dtype=u.dtype.name,
            itemsize=u.dtype.itemsize,
            is_output=u.arg.slot in stored,
            is_input=u.arg.slot in read,
        )
        for u in params
    )


def _is_read(index: UOp, nodes: list[UOp]) -> bool:
    return any(index in (u.src[1:] if u.op is Ops.STORE else u.src) for u in nodes)


def integer_bounds(ast: UOp, packed: Collection[int] = ()) -> dict[int, int]:
    """For integer buffers whose values select something: slot -> how many there are to select from. Of `packed` ones
    only those of which some value selects nothing: four bits select one of sixteen, whatever the byte.

    A value selects where it is compared with a range (tinygrad's gather before its loads collapse) or is part of an
    index. Out of range, a gather is gated off and an empty kernel would verify.
    """
    bounds: dict[int, int] = {}

    def note(expression: UOp, extent: int) -> None:
        always = packed and expression.vmin >= 0 and expression.vmax < extent
        for slot in _integers_under(expression).difference(packed if always else ()):
            bounds[slot] = min(bounds.get(slot, extent), extent)

    for u in ast.toposort():
        if u.op in (Ops.CMPNE, Ops.CMPEQ):
            for ours, other in (u.src, u.src[::-1]):
                plain = other.src[0] if other.op is Ops.CAST else other
                if plain.op is Ops.RANGE:
                    note(ours, int(plain.vmax) + 1)
        elif u.op is Ops.INDEX:
            for position, extent in zip(u.src[1:], shape_of(u), strict=True):
                guards = _guards(position) if position.op is Ops.WHERE else {}
                note(position, min(guards.values(), default=extent))
    return bounds


def _integers_under(expression: UOp) -> set[int]:
    """The slots of the integers on which an expression depends."""
    loads = (u for u in expression.toposort() if u.op is Ops.INDEX and dtypes.is_int(u.src[0].dtype))
    return {slot_of(u) for u in loads}


SPREAD = 3  # bits of an exponent that are drawn: floats then have sizes between 2^-7 and 2


def exponents_of(asts: Sequence[UOp]) -> dict[int, tuple[Exponent, ...]]:
    """For buffers of packed values, whose elements may be anything: slot -> where exponents are. These are integers
    that some kernels put together to floats, as packed weights have their scales: of random bytes one half in 32 is no
    number, and all that is multiplied with it is none. Others have no exponents: bytes of which a part selects
    something, and no part could select what is not there.
    """
    found: dict[int, dict[Exponent, None]] = {}
    for ast in asts:
        for slot in integer_bounds(ast):
            if any(info.slot == slot and info.dtype == dtypes.uint8.name for info in buffers_of(ast)):
                found.setdefault(slot, {})
        for node in ast.toposort():
            if node.op is Ops.BITCAST and dtypes.is_float(node.dtype) and dtypes.is_int(node.src[0].dtype):
                for index, shift in _joined_bits(node.src[0], 0):
                    for one in _exponents(node.dtype, index, shift):
                        found.setdefault(slot_of(index), {})[one] = None
    return {
        slot: tuple(ones) for slot, ones in found.items() if all(slot not in integer_bounds(a, found) for a in asts)
    }


def _joined_bits(node: UOp, shift: int) -> Iterator[tuple[UOp, int]]:
    """The loads of integers whose bits a value is put together of, and by how many bits each is shifted."""
    if node.op is Ops.INDEX:
        yield node, shift
    elif node.op in (Ops.ADD, Ops.OR, Ops.XOR):
        for source in node.src:
            yield from _joined_bits(source, shift)
    elif node.op is Ops.CAST and dtypes.is_int(node.src[0].dtype):
        yield from _joined_bits(node.src[0], shift)
    elif node.op in (Ops.SHL, Ops.MUL) and node.src[1].op is Ops.CONST:
        factor = int(node.src[1].arg)
        by = factor if node.op is Ops.SHL else factor.bit_length() - 1
        if node.op is Ops.SHL or factor == 1 << by:
            yield from _joined_bits(node.src[0], shift + by)


def _exponents(dtype: Any, index: UOp, shift: int) -> Iterator[Exponent]:
    """The element of a load that holds bits of an exponent, where its places are a multiple of something apart."""
    exponent_bits, mantissa_bits = dtypes.finfo(dtype)
    held = index.src[0].dtype
    most = (1 << 8 * held.itemsize) - 1
    fixed = (1 << exponent_bits - SPREAD) - 1  # the upper bits: 01…1 is below 1, and all that is drawn below them above
    here = (fixed << mantissa_bits + SPREAD) >> shift & most
    place = affine(without_gates(index.src[1])[0], is_axis=lambda node: node.op not in (Ops.ADD, Ops.MUL, Ops.CONST))
    if here and len(index.src) == 2 and place is not None:
        period = math.gcd(*(factor for axis, factor in place.items() if axis is not None)) or 1
        bits = (fixed >> 1 << mantissa_bits + SPREAD) >> shift & most
        yield Exponent(period, place.get(None, 0) % period, most & ~here, bits)


def guarded_indices(asts: Sequence[UOp]) -> frozenset[int]:
    """The slots of integers that select something, and may be anything: they are only compared with ranges, or with
    both bounds where they are part of an index. Of no others an index outside of its bounds is ever drawn: it would be
    a load outside of a buffer.
    """
    bounded = {slot for ast in asts for slot in integer_bounds(ast)}
    for ast in asts:
        for u in ast.toposort():
            for position in u.src[1:] if u.op is Ops.INDEX else ():
                bounded -= _integers_under(position) - _guards(position).keys()
    return frozenset(bounded)


def _guards(position: UOp) -> dict[int, int]:
    """Of an index that is `Invalid` where a value is below 0 or not below a number: the slots that the value, and
    nothing else in the index, depends on, and that number."""
    if position.op is not Ops.WHERE or position.src[2].arg is not Invalid:
        return {}
    below: dict[UOp, int] = {}
    above: set[UOp] = set()
    waiting = [position.src[0]]
    while waiting:
        u = waiting.pop()
        if u.op is Ops.AND:
            waiting += u.src
        elif u.op is Ops.CMPLT and u.src[1].op is Ops.CONST:
            below[u.src[0]] = int(u.src[1].arg)
        elif u.op is Ops.CMPLT and u.src[0].op is Ops.CONST and u.src[0].arg >= -1:
            above.add(u.src[1])
        elif u.op is Ops.CMPNE and u.src[1].arg is True and u.src[0].op is Ops.CMPLT:  # not below
            value, number = u.src[0].src
            if number.op is Ops.CONST and number.arg >= 0:
                above.add(value)
    found: dict[int, int] = {}
    for value, extent in below.items():
        if value in above:
            outside = set(position.src[1].toposort(gate=lambda u, value=value: u is not value))
            others = {slot_of(u) for u in outside if u.op is Ops.INDEX}
            found |= dict.fromkeys(_integers_under(value) - others, extent)
    return found


def compared_constants(ast: UOp) -> tuple[float, ...]:
    """The numbers with which a kernel compares what it loaded, or of which it takes the larger: there, cases differ."""
    found: dict[float, None] = {}
    for u in ast.toposort():
        if u.op not in (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ, Ops.MAX):
            continue
        for ours, other in (u.src, u.src[::-1]):
            plain = other.src[0] if other.op is Ops.CAST else other
            if plain.op is not Ops.CONST or isinstance(plain.arg, bool) or not isinstance(plain.arg, int | float):
                continue
            if np.isfinite(float(plain.arg)) and any(node.op is Ops.INDEX for node in ours.toposort()):
                found[plain.arg] = None
    return tuple(found)[:MOST_CONSTANTS]


def outcomes_of(asts: Sequence[UOp]) -> tuple[Outcome, ...]:
    """What nearly all elements may be of the inputs of kernels that run in order, see `kcg.measure.outcomes`."""
    return outcomes.outcomes_of(asts, [c for ast in asts for c in compared_constants(ast)])


def outcome_of(asts: Sequence[UOp], recipe: str) -> Outcome | None:
    """That of a recipe; None where it is of none."""
    place = outcomes.place_of(recipe)
    return None if place is None else outcomes_of(asts)[place]


def divisors(ast: UOp) -> frozenset[int]:
    """The slots of integers by which a kernel divides: dividing by 0 ends a process, or leaves anything."""
    whole = (Ops.CDIV, Ops.CMOD, Ops.FLOORDIV, Ops.FLOORMOD)
    quotients = [u for u in ast.toposort() if u.op in whole and dtypes.is_int(u.dtype)]
    loads = (n for u in quotients for n in u.src[1].toposort() if n.op is Ops.INDEX)
    return frozenset(slot_of(n) for n in loads if dtypes.is_int(n.src[0].dtype))


class Role(StrEnum):
    """What becomes of a buffer of floats."""

    PLAIN = "plain"
    NORMALISED = "normalised"  # a root is taken of its squares: what is added there matters where all of it is small
    PROJECTED = "projected"  # sums of its products with something are normalised
    EXPONENT = "exponent"  # its elements are exponents, but for steps, shifts and constant factors
    SCORED = "scored"  # sums of its products with something are exponents


def roles(asts: Sequence[UOp]) -> dict[int, Role]:
    """The role of each buffer of kernels that run in order, as far as it is not plain."""
    exponents, roots = _beneath(asts, Ops.EXP2), _beneath(asts, Ops.SQRT)
    single, squared = _beneath(asts, Ops.EXP2, through=_by_a_step), _beneath(asts, Ops.SQRT, through=_by_no_contraction)
    found = dict.fromkeys(exponents, Role.SCORED) | dict.fromkeys(single, Role.EXPONENT)
    found |= dict.fromkeys(roots - single, Role.PROJECTED)
    return found | dict.fromkeys(squared - single, Role.NORMALISED)


def _beneath(asts: Sequence[UOp], op: Ops, *, through: Callable[[UOp], bool] = lambda node: True) -> set[int]:
    """The float buffers on which an operand of some operation depends by nodes that one may go `through`."""
    found: set[int] = set()
    for ast in reversed(asts):
        nodes = list(ast.toposort())
        stack = [u.src[0] for u in nodes if u.op is op]
        stack += [u.src[1] for u in nodes if u.op is Ops.STORE and slot_of(u.src[0]) in found]
        seen = set[UOp]()
        while stack:
            node = stack.pop()
            if node in seen or not dtypes.is_float(node.dtype):
                continue
            seen.add(node)
            if node.op is Ops.INDEX:
                found.add(slot_of(node))
            elif through(node):
                stack.extend(node.src)
    return found


LOWER = -300.0
"""Of scores: the exponentials of what is 104 below 0 are 0 in float32, and float16 tells 300 from 301."""
OPPOSED = 220.0
"""About the size of scores that are sums of products, where these are divided by the root of their number; else they
are larger. The exponentials of 220 below a maximum that begins at -100 are 0 too, and float16 is off by .06 there."""
KINDS_OF_ROWS = (1.0, 0.5, 1.0)  # of the first queries: what is one row's maximum tells beside the next
ALIKE = 1 / 64  # the deviation of factors of scores, as a part of their size: rows of scores then differ by a few


@dataclass(frozen=True)
class Lower:
    """What lowers scores, of one of the buffers that they are made of."""

    size: float  # is added to scores themselves, below 0; of factors of scores about what their elements are
    row: int = 0  # of queries the elements of one, whose size is halved at random: scores of two rows differ by much


def lowered(asts: Sequence[UOp]) -> dict[int, Lower]:
    """What makes all scores of a softmax or an attention far below 0, for buffers of kernels that run in order: queries
    are above 0, and keys below. Empty where no exponents have a maximum: without one most exponentials would be 0.
    """
    found: dict[int, Lower] = {}
    beneath = [
        one for k, ast in enumerate(asts) for u in ast.toposort() if u.op is Ops.EXP2 for one in _under(asts, k, u)
    ]
    if not any(u.op is Ops.REDUCE and u.arg[0] is Ops.MAX for _, u in beneath):
        return found
    for k, u in beneath:
        if u.op is not Ops.REDUCE or u.arg[0] is not Ops.ADD:
            continue
        product = u.src[0]
        while product.op is Ops.CAST:
            product = product.src[0]
        if product.op is Ops.MUL and product.src[0] is not product.src[1]:
            one, other = (_floats_under(asts, k, side) for side in product.src)
            depth = math.prod(int(r.vmax) + 1 for r in u.src[1:])
            size = math.sqrt(OPPOSED / math.sqrt(depth))
            first, second = (depth if _are_rows(asts[k], u, side) else 0 for side in product.src)
            found |= dict.fromkeys(one - other, Lower(size, first)) | dict.fromkeys(other - one, Lower(-size, second))
    return found or dict.fromkeys(_beneath(asts, Ops.EXP2, through=_by_a_step), Lower(LOWER))


def _are_rows(ast: UOp, scores: UOp, factor: UOp) -> bool:
    """Whether a factor of scores is the same for all scores that are stored one beside the other: it is the queries."""
    for place, sink in enumerate(ast.src):
        if sink.op is Ops.END and scores in sink.toposort() and not ast.variables():
            strides = StoreIndex(ast, place, {}).strides
            beside = {r for r, stride in zip(sink.src[1:], strides, strict=True) if abs(stride) == 1}
            return bool(beside) and beside.isdisjoint(factor.ranges)
    return False


def _under(asts: Sequence[UOp], kernel: int, node: UOp) -> Iterator[tuple[int, UOp]]:
    """The floats on which one of a kernel depends, each with its kernel, through what earlier ones stored."""
    stack, seen = [(kernel, node)], set[tuple[int, UOp]]()
    while stack:
        k, u = one = stack.pop()
        if one in seen or not dtypes.is_float(u.dtype):
            continue
        seen.add(one)
        yield one
        if u.op is not Ops.INDEX:
            stack += [(k, source) for source in u.src]
            continue
        stores = [
            (j, s)
            for j in range(k)
            for s in asts[j].toposort()
            if s.op is Ops.STORE and slot_of(s.src[0]) == slot_of(u)
        ]
        stack += [(j, s.src[1]) for j, s in stores]


def _floats_under(asts: Sequence[UOp], kernel: int, node: UOp) -> set[int]:
    return {slot_of(u) for _, u in _under(asts, kernel, node) if u.op is Ops.INDEX}


def nan_slots(asts: Sequence[UOp]) -> tuple[int, ...]:
    """The inputs of kernels that run in order from which NaN comes into a maximum, a minimum or another comparison of
    floats, as far as their types have NaN."""
    met: set[int] = set()
    for ast in reversed(asts):
        nodes = list(ast.toposort())
        stack = [operand for u in nodes if _compares(u) for operand in (u.src[:1] if u.op is Ops.REDUCE else u.src)]
        stack += [u.src[1] for u in nodes if u.op is Ops.STORE and slot_of(u.src[0]) in met]
        seen = set[UOp]()
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                if node.op is Ops.INDEX:
                    met.add(slot_of(node))
                else:
                    stack.extend(node.src)
    inputs = (info for info in buffers_of_kernels(asts) if info.is_input and info.slot in met)
    return tuple(info.slot for info in inputs if info.dtype in FLOATS and info.dtype not in _WITHOUT_INFINITY)


def _compares(node: UOp) -> bool:
    """Whether a node compares floats, as all that selects one of several does."""
    if node.op is Ops.MAX or (node.op is Ops.REDUCE and node.arg[0] is Ops.MAX):
        return bool(dtypes.is_float(node.dtype))
    return node.op in (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ) and bool(dtypes.is_float(node.src[0].dtype))


def _by_no_contraction(node: UOp) -> bool:
    product = node.src[0] if node.op is Ops.REDUCE else node
    while product.op is Ops.CAST:
        product = product.src[0]
    different = product.op is Ops.MUL and product.src[0] is not product.src[1]
    return node.op is not Ops.REDUCE or not different or any(side.op is Ops.CONST for side in product.src)


def _by_a_step(node: UOp) -> bool:
    if node.op is Ops.REDUCE:
        return bool(node.arg[0] is Ops.MAX)
    return node.op is not Ops.MUL or any(side.op is Ops.CONST for side in node.src)


def numpy_dtype(dtype: str) -> Any:
    """The NumPy dtype that holds a tinygrad dtype's bits: bfloat16 is held in uint16, 8-bit floats in uint8."""
    try:
        return _NUMPY[dtype]
    except KeyError:
        raise KcgError(f"kcg cannot make inputs of dtype {dtype}") from None


@functools.cache
def _codes(dtype: str) -> tuple[Array, Array, Array]:
    """`(value of each of the 256 codes, its numbers in order, their codes)` of an 8-bit float."""
    kind = next(t for t in dtypes.fp8s if t.name == dtype)
    decoded = np.array([fp8_to_float(code, kind) for code in range(256)], np.float32)
    codes = np.flatnonzero(np.isfinite(decoded))
    codes = codes[np.argsort(decoded[codes], kind="stable")]
    return decoded, decoded[codes], codes.astype(np.uint8)


def to_bits(values: Array, dtype: str) -> Array:
    """Floats as the device stores them; of 8-bit floats the nearest finite one."""
    if dtype == "__bf16":
        bits = values.astype(np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
    if dtype in HELD_AS_BITS:
        _, numbers, codes = _codes(dtype)
        found: Array = codes[np.searchsorted((numbers[1:] + numbers[:-1]) / 2, values)]
        return found
    return values.astype(numpy_dtype(dtype))


def to_values(bits: Any, dtype: str) -> Any:
    """What the device stored, as numbers NumPy can compute with (16- and 8-bit floats that it lacks become float32): an
    array, or `Hashed`."""
    if isinstance(bits, Hashed):
        return bits.of(to_values(bits.block, dtype))
    if dtype == "__bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return _codes(dtype)[0][bits] if dtype in HELD_AS_BITS else bits


def make_inputs(
    ast: UOp,
    seed: int,
    *,
    recipe: str = RECIPE,
    become: Mapping[int, Role] | None = None,
    lower: Mapping[int, Lower] | None = None,
    guarded: frozenset[int] | None = None,
    among: Outcome | None = None,
    exponents: Mapping[int, tuple[Exponent, ...]] | None = None,
) -> dict[int, Any]:
    """Slot -> stored bits (an array, `Hashed` beyond `SMALL` elements), for every buffer that the kernel reads.

    `become` are the roles that spiky data go by: see `roles`; `lower` what lowered ones do: see `lowered`; `guarded`
    the indices that may be anything, by default those of this kernel: see `guarded_indices`. `among` is what nearly all
    elements are by a recipe of `outcomes`, where that of the kernel alone is not meant; `exponents` by default those of
    this kernel: see `exponents_of`.
    """
    exponents = exponents_of([ast]) if exponents is None else exponents
    strays = (guarded_indices([ast]) if guarded is None else guarded) if recipe in _WITH_STRAYS else frozenset[int]()
    bounds, constants, divide = integer_bounds(ast, exponents), compared_constants(ast), divisors(ast)
    density = exact_density(ast) if recipe == BINARY_RECIPE else 0.0
    ends = recipe in _SEGMENTED or (recipe == RECIPE and seed != TIMED_SEED)
    compares = not any(u.op in _ARITHMETIC and dtypes.is_float(u.dtype) for u in ast.toposort())
    outcome = outcome_of((ast,), recipe) if among is None else among
    terms = max(outcomes.reduced(ast)) if recipe == FACTORS_RECIPE else 1
    infos = buffers_of(ast)
    largest = max((info.size for info in infos if info.is_input), default=0)
    made: dict[int, Any] = {}
    for info in infos:
        if not info.is_input:
            continue
        asked = _Asked(
            recipe,
            info.dtype,
            density,
            bounds.get(info.slot, 0),
            constants,
            compares,
            ends,
            info.slot in divide,
            (become or {}).get(info.slot, Role.PLAIN),
            (lower or {}).get(info.slot),
            info.slot in strays,
            None if outcome is None else outcome.of(info.slot, info.size, largest=largest, seed=seed),
            terms,
        )
        exponent = exponents.get(info.slot, ())
        if info.slot in exponents:
            asked = replace(asked, ends=False, outcome=None, packed=True)
        if info.size <= SMALL:
            # the seed depends on the slot but not on the process
            made[info.slot] = _small(asked, info.size, _generator(seed, info.slot, recipe))
            bound_exponents(made[info.slot], exponent)
        else:
            key = int(content_id([seed, info.slot, recipe])[:8], 16)
            block = _block(asked, seed, info.slot)
            made[info.slot] = Hashed(block, info.size, key, recipe in _SEGMENTED, exponent)
    return made


def buffers_of_kernels(asts: Sequence[UOp]) -> tuple[BufferInfo, ...]:
    """The buffers of kernels that run in order, by number: read is what nothing before has certainly written whole."""
    found: dict[int, BufferInfo] = {}
    whole: set[int] = set()
    for ast in asts:
        infos = buffers_of(ast)
        for info in infos:
            before = found.get(info.slot, replace(info, is_output=False, is_input=False))
            found[info.slot] = replace(
                info,
                is_output=before.is_output or info.is_output,
                is_input=before.is_input or (info.is_input and info.slot not in whole),
            )
        if len(asts) > 1:
            whole |= {info.slot for info in infos if info.is_output and covers(ast, info.slot, info.size)}
    return tuple(found[slot] for slot in sorted(found))


def make_inputs_of_kernels(asts: Sequence[UOp], seed: int, *, recipe: str = RECIPE) -> dict[int, Any]:
    """`make_inputs` of kernels that run in order. Of a buffer that several read, integers are those of the kernel that
    has the least to select from.

    A recipe `WITH_NAN` has NaN in one of the inputs that `nan_slots` gives, in turns by seed: in all of them at once
    there would be nothing but NaN. Every other turn they are dense."""
    if recipe.endswith(WITH_NAN):
        plain, slots = make_inputs_of_kernels(asts, seed, recipe=recipe.removesuffix(WITH_NAN)), nan_slots(asts)
        turn, place = divmod(seed, len(slots))
        slot = slots[place]
        (dtype,) = (info.dtype for info in buffers_of_kernels(asts) if info.slot == slot)
        rng = _generator(seed, slot, recipe)
        return {**plain, slot: with_nan(plain[slot], dtype, rng, dense=bool(turn % 2))}
    made: dict[int, Any] = {}
    bounds: dict[int, int] = {}
    read = {info.slot for info in buffers_of_kernels(asts) if info.is_input}
    become = roles(asts) if recipe == SPIKY_RECIPE else None
    lower = lowered(asts) if recipe == LOWERED_RECIPE else None
    guarded = guarded_indices(asts) if recipe in _WITH_STRAYS else None
    among, exponents = outcome_of(asts, recipe), exponents_of(asts)
    for ast in asts:
        bound = integer_bounds(ast, exponents) if len(asts) > 1 else {}
        made_here = make_inputs(
            ast,
            seed,
            recipe=recipe,
            become=become,
            lower=lower,
            guarded=guarded,
            among=among,
            exponents=exponents,
        )
        for slot, values in made_here.items():
            closer = slot in bound and bound[slot] < bounds.get(slot, bound[slot] + 1)
            if slot in read and (slot not in made or closer):
                made[slot] = values
                bounds[slot] = bound.get(slot, bounds.get(slot, 1 << 62))
    return made


# ---- NaN in what maxima and comparisons meet.

NAN_SHARES = (0.0, 1 / 64, 0.0, 1 / 2, 1 / 512, 0.0, 1 / 2, 1.0)
"""The shares of NaN in eight parts of a buffer: few among many numbers, as many as numbers, and nothing else."""
NAN_BEFORE = 3  # elements before one that stands out: whoever reads some at once begins with NaN
STANDS_OUT = 64  # one of so many elements, at either end


def with_nan(stored: Stored, dtype: str, rng: np.random.Generator, *, dense: bool) -> Stored:
    """The same with NaN: where it is `dense` in half of all elements and before the largest and the smallest, which
    stay, else in parts of a buffer by `NAN_SHARES`.

    Of a large buffer NaN is put into the numbers that its segments are slices of.
    """
    block = stored.block if isinstance(stored, Hashed) else stored
    is_nan = _dense_nan(to_values(block, dtype), rng) if dense else _sparse_nan(len(block), stored, rng)
    changed = block.copy()
    changed[is_nan] = to_bits(np.array([np.nan]), dtype)[0]
    return stored.of(changed) if isinstance(stored, Hashed) else changed


def _sparse_nan(count: int, stored: Stored, rng: np.random.Generator) -> Array:
    length = SEGMENT if isinstance(stored, Hashed) else max(1, -(-count // KINDS))
    parts = np.concatenate([rng.permutation(NAN_SHARES) for _ in range(-(-count // (length * KINDS)))])
    return np.asarray(rng.random(count) < parts[np.arange(count) // length])


def _dense_nan(values: Array, rng: np.random.Generator) -> Array:
    is_nan = rng.random(len(values)) < 0.5
    each = max(1, len(values) // STANDS_OUT)
    order = np.argsort(values[1:-1], kind="stable") + 1  # not the ends, which are the first that anything reads
    standing = np.concatenate([order[:each], order[-each:]])
    for before in range(1, NAN_BEFORE + 1):
        is_nan[np.maximum(standing - before, 0)] = True
    is_nan[[0, -1]] = len(values) > 1
    is_nan[standing] = False
    return is_nan


@dataclass(frozen=True)
class _Asked:
    """What the elements of one buffer are to be."""

    recipe: str
    dtype: str
    density: float  # the share of ones of {0,1} floats
    bound: int  # of integers that select something: how many there are; else 0
    constants: tuple[float, ...] = ()  # with which the kernel compares something
    compares: bool = False  # whether the kernel does no arithmetic of floats, so that nothing overflows
    ends: bool = False  # whether the first and the last element stand out
    divides: bool = False  # integers are divided by these, and 0 or the least integer by -1 end a process
    role: Role = Role.PLAIN  # that spiky data go by
    lower: Lower | None = None  # of lowered data
    strays: bool = False  # whether some of what selects something is outside of what there is
    outcome: Outcome | None = None  # what nearly all elements are
    terms: int = 1  # of the longest product
    packed: bool = False  # whether integers are the bits of several things, floats among them: any are drawn


def _generator(seed: int, slot: int, recipe: str) -> np.random.Generator:
    return np.random.default_rng([seed, slot, int(content_id(recipe)[:8], 16)])


@functools.lru_cache(maxsize=KEPT_BLOCKS)
def _block(asked: _Asked, seed: int, slot: int) -> Array:
    """The numbers of a large buffer: `KINDS` parts where segments have kinds. Nobody writes into it.

    Each slot has its own: where two slices of one block are multiplied, term by term, some agree in all terms.
    """
    rng = _generator(seed, slot, asked.recipe)
    if asked.recipe in _SEGMENTED:
        parts = [_drawn(asked, kind, STEP, rng) for kind in range(KINDS)]
    else:
        parts = [_drawn(asked, 0, BLOCK, rng)]
    if asked.outcome is not None:
        both = (replace(asked, outcome=replace(asked.outcome, part=part)) for part in outcomes.Part)
        parts += [_drawn(one, 0, SEGMENT, rng) for one in both]
    elif len(ends := _ends(asked, parts[0].dtype)):
        first, last = (_drawn(asked, kind, SEGMENT, rng) for kind in _kinds_of_ends(asked))
        first[0], last[-1] = ends
        parts += [first, last]
    return np.concatenate(parts)


def _small(asked: _Asked, size: int, rng: np.random.Generator) -> Array:
    """The elements of a small buffer; its segments are so short that each kind comes, in an order of its own."""
    if asked.recipe in _SEGMENTED:
        length = min(SEGMENT, -(-size // KINDS))
        kinds = _kinds(asked, -(-size // length), rng)
        drawn = np.concatenate([_drawn(asked, kind, length, rng) for kind in kinds])[:size]
        if asked.recipe in _MEETING and (count := size // MEETING_SHARE):
            drawn[size // 2 - count : size // 2] = _drawn(asked, _EXTREME, count, rng)
    else:
        drawn = _drawn(asked, 0, size, rng)
    if size >= WITH_ENDS and len(ends := _ends(asked, drawn.dtype)):
        drawn[0], drawn[-1] = ends
    return drawn


def _kinds(asked: _Asked, count: int, rng: np.random.Generator) -> list[int]:
    """The kind of each of `count` segments of a small buffer: what its ends are, stands out from where they lie."""
    kinds = [int(kind) for kind in rng.permutation(KINDS)]
    for kind, at in zip(_kinds_of_ends(asked), (0, (count - 1) % KINDS), strict=True):
        other = kinds.index(kind)
        kinds[at], kinds[other] = kinds[other], kinds[at]
    middle = (count - 1) // 2 % KINDS
    if asked.recipe in _MEETING and kinds[middle] == _ALL_LARGE and asked.dtype != "bool":
        other = kinds.index(_EXTREME)  # which is what comes there: it would overwrite the only NaN and infinities
        kinds[middle], kinds[other] = kinds[other], kinds[middle]
    return [kinds[at % KINDS] for at in range(count)]


def _kinds_of_ends(asked: _Asked) -> tuple[int, int]:
    """The kinds of the first and the last segment."""
    if asked.recipe == SPIKY_RECIPE:
        return 1, 7
    if asked.dtype != "bool":
        return 1, _POSITIVE
    return (_ALL_LARGE, _ALL_SMALL) if _rises(asked) else (_ALL_SMALL, _ALL_LARGE)


def _rises(asked: _Asked) -> bool:
    """Whether the last element is the largest and the first the smallest; else the other way round."""
    return asked.recipe in (NEGATIVE_RECIPE, BELOW_ZERO_RECIPE)


def _ends(asked: _Asked, held: Any) -> Array:
    """The first and the last element: the largest and the smallest of all, or the other way round, so that a maximum, a
    minimum, an any or an all that leaves one of them out is seen. Empty where they are as the others.
    """
    if asked.bound and asked.recipe == SPIKY_RECIPE:
        return np.array([min(asked.bound - 1, int(np.iinfo(held).max)), 0], held)
    if not asked.ends or asked.bound or asked.divides:
        return np.zeros(0, held)
    if asked.dtype in FLOATS:
        pair = to_bits(np.array(_float_ends(asked), np.float64), asked.dtype)
    else:
        pair = np.array((False, True) if asked.dtype == "bool" else _integer_ends(asked, np.iinfo(held)), held)
    return pair if _rises(asked) else pair[::-1]


def _float_ends(asked: _Asked) -> tuple[float, float]:
    """Just above and below all finite numbers of a recipe."""
    lowest, highest = FLOATS[asked.dtype]
    if asked.recipe == SPIKY_RECIPE:
        return ENDS.get(asked.role, (14.0, 16.0))
    if asked.recipe == RECIPE:
        return -8.0, 8.0
    if _rises(asked):
        return -(2.0 ** (0.45 * highest)) if asked.recipe == NEGATIVE_RECIPE else -64.0, -(2.0**-6)
    top = 1.5 * 2.0 ** (min(8, highest) if asked.recipe == MODEST_RECIPE else _largest_exponent(asked.dtype))
    return 2.0**lowest if asked.recipe == WIDE_POSITIVE_RECIPE else -top, top


def _integer_ends(asked: _Asked, limits: Any) -> tuple[int, int]:
    low, high = int(limits.min), int(limits.max)
    if _rises(asked):
        low, high = (low if asked.recipe == NEGATIVE_RECIPE else -65, -1) if low else (0, 65)
    elif asked.recipe in (RECIPE, MODEST_RECIPE):
        most = SMALL_INTEGERS + 1 if asked.recipe == RECIPE else 1001
        low, high = -most, most
    elif asked.recipe == WIDE_POSITIVE_RECIPE:
        low = 1
    return max(low, int(limits.min)), min(high, int(limits.max))


def _drawn(asked: _Asked, kind: int, count: int, rng: np.random.Generator) -> Array:
    """`count` elements of one kind of segment (of any recipe without kinds: kind 0) as stored bits."""
    if asked.dtype in FLOATS:
        return to_bits(_floats(asked, kind, count, rng), asked.dtype)
    if asked.dtype == "bool" and asked.outcome is not None:
        return outcomes.booleans(asked.outcome, count, rng)
    if asked.dtype == "bool":
        return rng.random(count) < (TRUTHS[kind] if asked.recipe in _SEGMENTED else 0.5)
    return _integers(asked, kind, count, rng)


# kinds of segments with a meaning for all types
_POSITIVE, _EXTREME, _ALL_SMALL, _ALL_LARGE = 0, 5, 6, 7
TRUTHS = (0.5, 1 / 8, 7 / 8, 1 / 64, 63 / 64, 1 / 1024, 0.0, 1.0)  # by kind: one in a row decides any() and all()


def _floats(asked: _Asked, kind: int, count: int, rng: np.random.Generator) -> Array:
    recipe = asked.recipe
    if asked.outcome is not None:
        values = outcomes.numbers(asked.outcome, count, rng)
        return np.nan_to_num(values) if asked.dtype in _WITHOUT_INFINITY else values
    if recipe == FACTORS_RECIPE:
        return outcomes.factors(asked.terms, FLOATS[asked.dtype][1], count, rng)
    if recipe in SMALLER_RECIPES or recipe in SMALLER_POSITIVE_RECIPES:
        values = rng.standard_normal(count, dtype=np.float32)
        if recipe in SMALLER_RECIPES:
            return values * np.float32(2.0 ** -SMALLER_RECIPES[recipe])
        return (np.abs(values) + np.float32(0.0625)) * np.float32(2.0 ** -SMALLER_POSITIVE_RECIPES[recipe])
    if recipe == BINARY_RECIPE:
        return (rng.random(count, dtype=np.float32) < asked.density).astype(np.float32)
    if recipe == UNIT_RECIPE:
        return 0.0625 + 0.875 * rng.random(count, dtype=np.float32)
    if recipe == FEW_SPECIAL_RECIPE:
        lowest, highest = FLOATS[asked.dtype]
        ends = [sign * end for sign in (-1, 1) for end in (2.0 ** (lowest - 1), 1.5 * 2.0**highest)]
        return rng.choice(np.array([*FEW_SPECIAL, *ends, *_fitting(asked)]), count)
    if recipe == FEW_RECIPE:
        return rng.choice(np.array(FEW, np.float32), count)
    if recipe == FLAGS_RECIPE:
        return rng.integers(0, 1, count, endpoint=True).astype(np.float32)
    if recipe == SPIKY_RECIPE:
        return _spiky(asked, kind, count, rng)
    if recipe == LOWERED_RECIPE:
        return _lowered(asked.lower, rng.standard_normal(count, dtype=np.float32), rng)
    if recipe in (RECIPE, POSITIVE_RECIPE, NEGATIVE_RECIPE, BELOW_ZERO_RECIPE):
        if recipe == NEGATIVE_RECIPE and kind == _ALL_LARGE:
            highest = FLOATS[asked.dtype][1]
            return -_magnitudes(
                asked.dtype, 0.33 * highest, 0.43 * highest, count, rng
            )  # whose squares do not overflow
        values = rng.standard_normal(count, dtype=np.float32)
        values[rng.random(count, dtype=np.float32) < 0.125] *= 0.0625
        sign = {RECIPE: 0.0, POSITIVE_RECIPE: 1.0}.get(recipe, -1.0)
        values = values if not sign else np.float32(sign) * (np.abs(values) + np.float32(0.0625))
        if recipe == NEGATIVE_RECIPE and kind == _EXTREME and asked.dtype not in _WITHOUT_INFINITY:
            values[rng.random(count) < 1 / 32] = -np.inf  # masked places
        return values
    modest = recipe == MODEST_RECIPE
    values = _magnitudes(asked.dtype, -8, 8, count, rng) if modest else _wide(asked.dtype, kind, count, rng)
    if kind == _POSITIVE:
        return values
    if recipe != WIDE_POSITIVE_RECIPE:
        values = _signed(values, rng)
    if kind == _EXTREME:
        return _with_ties(asked, values, rng)
    if recipe == WIDE_POSITIVE_RECIPE:
        return values
    if recipe != SPECIAL_RECIPE or asked.dtype in _WITHOUT_INFINITY:
        return values
    if kind == _ALL_SMALL:  # whole rows of a mask
        values[: count // 2] = -np.inf
        values[count // 2 : 5 * count // 8] = 0.0
    if kind == _ALL_LARGE:
        # up to the largest number, and not only as far as products are finite
        values = np.copysign(_magnitudes(asked.dtype, -8.0, FLOATS[asked.dtype][1], count, rng), values)
        chance = rng.random(count)
        values[chance < 1 / 32] = np.inf
        values[chance < 1 / 64] = -np.inf
        values[chance > 63 / 64] = np.nan
        if count >= KINDS:  # however few there are
            values[[count // 4, count // 2, 3 * count // 4]] = np.inf, -np.inf, np.nan
    return values


def _lowered(lower: Lower | None, values: Array, rng: np.random.Generator) -> Array:
    if lower is None:
        return values
    if lower.size <= LOWER:
        return lower.size + values
    values = lower.size * (1 + ALIKE * values)
    if lower.row:
        halved = np.where(rng.random(-(-len(values) // lower.row)) < 0.5, 0.5, 1.0)
        halved[: len(KINDS_OF_ROWS)] = KINDS_OF_ROWS[: len(halved)]  # however few there are
        values = values * np.repeat(halved, lower.row)[: len(values)]
    return values


SPIKES = {
    Role.PLAIN: ((1 / 8, 3, 3),) * KINDS,
    Role.NORMALISED: ((1 / 64, 1, 5), (1 / 16, 0, 3), (1 / 8, 0, 3), (0, 0, 0)) * 2,
    Role.PROJECTED: ((1 / 64, 1, 3), (1 / 16, 0, 3), (0, 0, 0), (0, 0, 0)) * 2,
    Role.EXPONENT: ((1 / 64, 1, 4), (1 / 256, 2, 6), (1 / 8, 0, 2), (0, 0, 0)) * 2,
    Role.SCORED: ((1, -2, -2),) * 6 + ((1, -1, -1),) * 2,
}
"""By role, and kind of segment: the share of elements that are spikes, and by which powers of two they are larger."""
ENDS = {Role.EXPONENT: (112.0, 128.0), Role.SCORED: (1.5, 2.0), Role.PROJECTED: (1.5, 2.0)}  # the others: 14 and 16
TINY = 2.0**-9  # the size of what is normalised, near the root of what is added to its variance
TINY_KINDS = (1, 3, 5, 7)
FAN_IN = (
    0.125  # the size of both factors of what is normalised, so that sums of thousands of their products are about 1
)
SHIFTED_KIND, SHIFT = 4, 3.0
LOWERED_KINDS, LOWERED = (1, 3, 5), -200.0


def _spiky(asked: _Asked, kind: int, count: int, rng: np.random.Generator) -> Array:
    """Data in which single elements decide: a few large scores of a softmax, or a few large values that it weights,
    where scores are all alike.

    What is normalised is in many rows so small that what is added to a variance matters, and in some has a mean above
    its deviation. Rows of exponents are so far below 0 that all exponentials are 0, without a maximum of the row's own.
    """
    share, low, high = SPIKES[asked.role][kind]
    values = rng.standard_normal(count)
    values *= np.where(rng.random(count) < share, np.exp2(rng.uniform(low, high, count)), 1.0)
    if asked.role in (Role.NORMALISED, Role.PROJECTED) and kind in TINY_KINDS:
        values *= max(TINY, 2.0 ** (FLOATS[asked.dtype][0] + 4))
    if asked.role is Role.PROJECTED:
        values *= FAN_IN
    if asked.role is Role.NORMALISED and kind == SHIFTED_KIND:
        values += SHIFT
    if asked.role is Role.EXPONENT and kind in LOWERED_KINDS:
        values += LOWERED
    return values


def _with_ties(asked: _Asked, values: Array, rng: np.random.Generator) -> Array:
    """The same, with halves and with what the kernel compares with: many of them in one half, few in the other."""
    constants, ties = np.array(_fitting(asked)), np.array(TIES)
    if asked.recipe == SPECIAL_RECIPE:
        highest = FLOATS[asked.dtype][1]
        reached = (highest, 0.9 * highest, 0.6 * highest) if asked.compares else (0.45 * highest,)
        ties = np.array([*TIES, *(sign * 1.5 * 2.0**e for sign in (-1, 1) for e in reached)])
    if asked.recipe == WIDE_POSITIVE_RECIPE:
        constants, ties = constants[constants > 0], ties[ties > 0]
    chance = rng.random(len(values)) * np.where(np.arange(len(values)) < len(values) // 2, 1.0, 8.0)
    drawn = rng.choice(ties, len(values))
    if len(constants):
        drawn = np.where(rng.random(len(values)) < 0.5, rng.choice(constants, len(values)), drawn)
    return np.where(chance < 0.25, drawn, values)


def _fitting(asked: _Asked) -> list[float]:
    """What the kernel compares with, and its neighbours in a float type."""
    lowest, highest = FLOATS[asked.dtype]
    fits = [float(c) for c in asked.constants if 2.0**lowest <= abs(c) < 2.0**highest or c == 0]
    if asked.dtype in HELD_AS_BITS:
        near = 2.0 ** -(7 if asked.dtype == "__bf16" else 3)
        return [c * factor for c in fits for factor in (1.0, 1.0 + near, 1.0 - near)]
    held = np.array(fits, numpy_dtype(asked.dtype))
    return [
        float(value)
        for side in (held, np.nextafter(held, -held.dtype.type(np.inf)), np.nextafter(held, held.dtype.type(np.inf)))
        for value in side
    ]


_WITHOUT_INFINITY = frozenset(name for name in FLOATS if "8" in name)


def _wide(dtype: str, kind: int, count: int, rng: np.random.Generator) -> Array:
    """Magnitudes over the whole of a float type, float64: each kind of segment has its own decades."""
    lowest, highest = FLOATS[dtype]
    if kind == _EXTREME:  # subnormal ones, and zeros
        return rng.random(count) * 2.0**lowest * (rng.random(count) > 0.125)
    if kind in (_ALL_SMALL, _ALL_LARGE):  # a mixture
        low, high = (-0.3 * highest, 2.0) if kind == _ALL_SMALL else (-8.0, 0.3 * highest)
        return _magnitudes(dtype, low, high, count, rng)
    large = _largest_exponent(dtype)
    low, high = ((-4.0, 4.0), (-2.0, 7.0), (4.0, 12.0), (min(12.0, 0.7 * highest), large), (-0.3 * highest, -4.0))[kind]
    return _magnitudes(dtype, low, high, count, rng)


def _largest_exponent(dtype: str) -> float:
    """Of wide data: all of what float16 has, and in other types so much that a product is finite."""
    highest = FLOATS[dtype][1]
    return max(0.3 * highest, min(highest, 15.0))


def _magnitudes(dtype: str, low: float, high: float, count: int, rng: np.random.Generator) -> Array:
    """Positive numbers, evenly spread over the exponents from `low` to `high` as far as the type has them: float64."""
    lowest, highest = FLOATS[dtype]
    low, high = max(low, lowest), min(high, highest)
    return np.exp2(rng.uniform(min(low, high - 1), high, count))


def _signed(values: Array, rng: np.random.Generator) -> Array:
    return np.where(rng.random(len(values)) < 0.5, -values, values)


def _integers(asked: _Asked, kind: int, count: int, rng: np.random.Generator) -> Array:
    """Integers of a recipe; what selects something stays among what there is, what divides is no 0."""
    values = _any_integers(asked, kind, count, rng)
    if asked.divides:
        values[values == 0] = 3
        if values.dtype.kind == "i" and asked.recipe in _SEGMENTED:
            values[values == -1] = -3
    return values


def _with_strays(values: Array, extent: int, rng: np.random.Generator) -> Array:
    """The same, but for some that are below 0, at the extent and beyond: next to where a comparison tips, a whole
    extent away, where few bits would make them right, and anywhere near."""
    near = [-1, -2, 1 - extent, -extent, -extent - 1, extent, extent + 1, 2 * extent - 1, -100]
    near += [(1 << 8) + extent // 2] if extent <= 1 << 8 else []
    limits = np.iinfo(values.dtype)
    anywhere = rng.integers(-extent - SMALL_INTEGERS, 2 * extent, len(values))
    drawn = np.where(rng.random(len(values)) < 0.5, rng.choice(near, len(values)), anywhere)
    fits = (drawn >= limits.min) & (drawn <= limits.max) & ((drawn < 0) | (drawn >= extent))
    return np.where(fits & (rng.random(len(values)) < STRAYS), drawn, values).astype(values.dtype)


def _any_integers(asked: _Asked, kind: int, count: int, rng: np.random.Generator) -> Array:
    held = np.dtype(numpy_dtype(asked.dtype))
    limits, recipe = np.iinfo(held), asked.recipe
    if asked.packed:
        return rng.integers(limits.min, limits.max, count, dtype=held, endpoint=True)
    if asked.bound:
        last = max(0, min(asked.bound - 1, int(limits.max)))
        if recipe in _SEGMENTED and kind == _EXTREME:
            values = rng.choice(np.array([0, last]), count).astype(held)
        elif asked.outcome is not None and not 0 <= asked.outcome.base(whole=True) <= last:
            values = np.where(asked.outcome.others(count, rng), last, 0).astype(held)
        elif asked.outcome is not None:
            drawn = outcomes.numbers(asked.outcome, count, rng, whole=True)
            values = np.clip(drawn, 0, last).astype(held)
        else:
            values = rng.integers(0, last, count, dtype=held, endpoint=True)
        return _with_strays(values, asked.bound, rng) if asked.strays else values
    if asked.outcome is not None:
        drawn = outcomes.numbers(asked.outcome, count, rng, whole=True)
        return np.clip(drawn, int(limits.min), min(int(limits.max), 1 << 53)).astype(held)
    if recipe == FACTORS_RECIPE:
        return rng.choice(np.array([f for f in outcomes.ODD if f >= limits.min], held), count)
    if recipe == FEW_SPECIAL_RECIPE:  # some agree in their lower half, others in all but the last bits
        few = [-1, 0, 1, 2, limits.min, limits.min + 1, limits.max, limits.max - 1, 1 + (1 << 4 * held.itemsize)]
        return rng.choice(np.array([one for one in few if limits.min <= one <= limits.max], held), count)
    low, high = {
        UNIT_RECIPE: (1, SMALL_INTEGERS),
        FEW_RECIPE: (0, len(FEW) - 1),
        FLAGS_RECIPE: (0, 1),
        MODEST_RECIPE: (-1000, 1000),
        NEGATIVE_RECIPE: (-64, -2),
        BELOW_ZERO_RECIPE: (-64, -2),
    }.get(recipe, (-SMALL_INTEGERS, SMALL_INTEGERS - 1))
    if recipe == NEGATIVE_RECIPE and kind == _ALL_LARGE:
        low = int(limits.min)
    if recipe in (SPECIAL_RECIPE, WIDE_RECIPE, WIDE_POSITIVE_RECIPE):
        if kind == _EXTREME:
            ends = [limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1, 2]
            ends += [int(c) + by for c in asked.constants if float(c).is_integer() for by in (-1, 0, 1)]
            ends = [end for end in ends if limits.min <= end <= limits.max]
            ends = [end for end in ends if end > 0] if recipe == WIDE_POSITIVE_RECIPE else ends
            return rng.choice(np.array(ends, held), count)
        bits = (4, 7, 12, 16, 24, 0, 31, 8 * held.itemsize - 1)[kind]
        bits = min(bits, 8 * held.itemsize - 1)
        low, high = -(1 << bits), (1 << bits) - 1
    if recipe == WIDE_POSITIVE_RECIPE or (recipe in (SPECIAL_RECIPE, WIDE_RECIPE, MODEST_RECIPE) and kind == _POSITIVE):
        low = 1
    if held.kind == "u":
        low, high = (0, min(-low, int(limits.max))) if recipe in (NEGATIVE_RECIPE, BELOW_ZERO_RECIPE) else (low, high)
        low, high = (max(low, 0), 2 * high + 1) if high > 1 << 6 else (max(low, 0), high)
    low, high = max(low, int(limits.min)), min(high, int(limits.max))
    return rng.integers(low, max(low, high), count, dtype=held, endpoint=True)


# ---- Filling a large buffer on the device: `Hashed`, as a kernel of tinygrad's own.
#
# One kernel for each width of an element and each of two sizes of a piece; what is left over is copied from the host.
# The kernels are checked once against the host.

PIECES = (1 << 22, 1 << 16)  # elements that one launch fills
KEPT = 32  # blocks on the device
UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
WORDS = 4  # of a launch: first segment, key, and the two numbers of `slicing`; as many of each `Exponent`
MOST_EXPONENTS = 8  # that a launch bounds; of more the host does


@cache
def filler(target: Target) -> DeviceFill:
    """The filler of a target, made once."""
    return DeviceFill(target)


class DeviceFill:
    """Fills buffers of one device. Raises DeviceError if the device does not compute the hash right."""

    def __init__(self, target: Target) -> None:
        self.target, self.device = target, target.device
        self._launches: dict[tuple[int, int, int], Callable[..., None]] = {}
        # by id: the array, so that it stays, and a copy on the device
        self._blocks: OrderedDict[int, tuple[Any, Any]] = OrderedDict()

    def __call__(self, view: Any, wanted: Hashed) -> None:
        """Write all elements of `wanted` into a buffer of its size in bytes."""
        if not _fills(wanted):
            for first, values in wanted.chunks():
                self._put(view, first, values)
            Device[self.device].synchronize()
            return
        width, block, at, exponents = wanted.dtype.itemsize, self._block(wanted.block), 0, wanted.exponents
        plan: list[tuple[int, int]] = []
        for piece in PIECES:
            while wanted.size - at >= piece:
                plan.append((piece, at))
                at += piece
        alike = [wanted.key, *slicing(wanted.by_kind), *(word for one in exponents for word in one.words(width))]
        words = np.array([[first // SEGMENT, *alike] for _, first in plan], np.uint32)
        if len(plan):
            asked = self._copied(words)
        for place, (piece, first) in enumerate(plan):
            part = view.view(piece * width, dtypes.uint8, first * width).ensure_allocated()
            nbytes = 4 * words.shape[1]
            written = asked.view(nbytes, dtypes.uint8, nbytes * place).ensure_allocated()
            self._launch(width, piece, len(exponents))(part, block, written)
        if at < wanted.size:
            self._put(view, at, wanted.window(at, wanted.size - at))
        for first, values in wanted.ends:
            held = values.copy()
            bound_exponents(held, exponents, first)
            self._put(view, first, held)
        Device[self.device].synchronize()

    def prepare(self, width: int) -> None:
        """Compile what fills buffers whose elements have so many bytes."""
        for piece in PIECES:
            self._launch(width, piece, 0)

    @staticmethod
    def _put(view: Any, first: int, values: np.ndarray[Any, Any]) -> None:
        """Copy elements from the host to their places from `first` on."""
        part = view.view(values.nbytes, dtypes.uint8, first * values.itemsize).ensure_allocated()
        part.allocator._copyin(part._buf, np.ascontiguousarray(values).view(np.uint8).data)

    def _copied(self, values: np.ndarray[Any, Any]) -> Any:
        buffer = Buffer(self.device, values.nbytes, dtypes.uint8).allocate()
        buffer.allocator._copyin(buffer._buf, np.ascontiguousarray(values).view(np.uint8).reshape(-1).data)
        return buffer

    def _block(self, block: np.ndarray[Any, Any]) -> Any:
        if id(block) not in self._blocks:
            while len(self._blocks) >= KEPT:
                self._blocks.popitem(last=False)
            self._blocks[id(block)] = (block, self._copied(block))
        self._blocks.move_to_end(id(block))
        return self._blocks[id(block)][1]

    def _launch(self, width: int, piece: int, exponents: int) -> Callable[..., None]:
        key = width, piece, exponents
        if key not in self._launches:
            self._launches[key] = launcher_of(_kernel(*key), self.target)
            self._check(*key)
        return self._launches[key]

    def _check(self, width: int, piece: int, exponents: int) -> None:
        block = np.random.default_rng(width).integers(0, 256, BLOCK * width, dtype=np.uint8).view(f"u{width}")
        bounded = tuple(Exponent(2 * place + 3, place + 1, 0x55, 0x0A) for place in range(exponents))
        for by_kind in (False, True):
            wanted = Hashed(block, piece, 0x12345678, by_kind, bounded)
            buffer = Buffer(self.device, wanted.nbytes, dtypes.uint8).allocate()
            self(buffer, wanted)
            found = np.empty(wanted.nbytes, np.uint8)
            buffer.allocator._copyout(found.data, buffer._buf)
            if not wanted.same_as(found.view(block.dtype)):
                raise DeviceError(f"{self.device} does not fill a buffer right: it cannot be trusted")


def launcher_of(ast: UOp, target: Target, stream: Stream | None = None, *, wide: bool = False) -> Callable[..., None]:
    """A kernel of kcg's own, as tinygrad schedules it, or `wide` (`kcg.kernel.kinds.wide_of`): launches it, without
    waiting, on its buffers in slot order; on tinygrad's own stream where no other one is given."""
    from kcg.kernel.codec import kernel_of
    from kcg.kernel.kinds import baseline_of, wide_of

    region = Region((kernel_of(ast),))
    compiled = compile_schedule(region, (wide_of if wide else baseline_of)(region, target), target)
    runtime = Device[target.device].runtime(to_elf(compiled, target, as_tinygrad=False))
    runtime = runtime if stream is None else stream.program(runtime)

    def launch(*buffers: Any) -> None:
        runtime(
            *(buffers[slot].get_buf(target.device) for slot in compiled.slots),
            global_size=compiled.global_size,
            local_size=compiled.local_size,
            vals=compiled.values,
            wait=False,
        )

    return launch


def _fills(wanted: Hashed) -> bool:
    """Whether a device fills a buffer: not one of which elements are bounded that are too wide for its words, or too
    many."""
    whole = wanted.dtype.kind in "ui" and wanted.dtype.itemsize <= 4 and wanted.size < 1 << 32
    return not wanted.exponents or (whole and len(wanted.exponents) <= MOST_EXPONENTS)


def _kernel(width: int, piece: int, exponents: int) -> UOp:
    """`out[i] = block[start(segment of i) + place in it]` as an AST, of which so many `Exponent`s bound some."""
    from tinygrad import Tensor

    held = UNSIGNED[width]

    def fill(out: UOp, block: UOp, words: UOp) -> UOp:
        segment, i = UOp.range(piece // SEGMENT, 0), UOp.range(SEGMENT, 1)
        number = segment.cast(dtypes.uint32) + words[0]
        x = number * HASH[0] + words[1]
        x = (x ^ (x >> 15)) * HASH[1]
        x = (x ^ (x >> 13)) * HASH[2]
        start = (x >> 29) * words[2] + ((x >> 8) & words[3])
        value = block[start.cast(dtypes.int) + i]
        place = number * SEGMENT + i.cast(dtypes.uint32)
        for first in range(WORDS, WORDS * (1 + exponents), WORDS):
            period, at, kept, bits = (words[first + n] for n in range(WORDS))
            bounded = (value & kept.cast(held)) | bits.cast(held)
            value = place.mod(period).eq(at).where(bounded, value)
        return out[segment * SEGMENT + i].store(value).end(segment, i).sink(arg=KernelInfo())

    sizes = ((piece, held), (BLOCK, held), (WORDS * (1 + exponents), dtypes.uint32))
    buffers = [Tensor.empty(n, dtype=t, device="CPU") for n, t in sizes]
    filled = buffers[0].custom_kernel(*buffers[1:], fxn=fill)[0]
    ast: UOp = filled.schedule_linear().src[0].src[0]
    return ast
