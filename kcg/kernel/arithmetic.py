"""tinygrad's arithmetic in NumPy with running error bounds: what each operation computes, and how far off it may be.

The rules for the errors are in `kcg.kernel.reference`, which drives this module.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kcg.compat.tiny import DType, GroupOp, Invalid, Ops, UOp, dtypes
from kcg.errors import VerificationError

Array = NDArray[Any]
Marked = TypeVar("Marked")

CONFIDENT = 4.0
"""How many errors away a correct kernel may be: the largest seen over the tests' kernels and seeds is below 1.5."""

TIPPING = 8.0
"""A comparison whose sides are closer than so many errors may come out either way in a correct kernel."""

OVERFLOWED = 1.0
"""The error beside an infinity that is no infinity but a number beyond the largest float: another order of the
arithmetic may avoid it. An infinity with error 0 is one: it comes out of the data or of a constant."""

SMALL_ANGLE = 30.0  # up to which a sine of float64 is one

MOST_TERMS = 16  # of a sum of sums; what is added to more counts as added to one

LOG_2 = math.log(2.0)

# the low bits of the result depend on the low bits of the operands only
_WRAPPING = frozenset({Ops.ADD, Ops.SUB, Ops.MUL, Ops.MULACC, Ops.NEG, Ops.SHL, Ops.AND, Ops.OR, Ops.XOR})

# significant bits, largest finite value, smallest normal number
_FLOATS: dict[DType, tuple[int, float, float]] = {
    dtypes.float64: (53, float(np.finfo(np.float64).max), 2.0**-1022),
    dtypes.float32: (24, float(np.finfo(np.float32).max), 2.0**-126),
    dtypes.weakfloat: (24, float(np.finfo(np.float32).max), 2.0**-126),
    dtypes.bfloat16: (8, 3.3895313892515355e38, 2.0**-126),
    dtypes.float16: (11, 65504.0, 2.0**-14),
    dtypes.fp8e4m3: (4, 448.0, 2.0**-6),
    dtypes.fp8e4m3fnuz: (4, 240.0, 2.0**-7),
    dtypes.fp8e5m2: (3, 57344.0, 2.0**-14),
    dtypes.fp8e5m2fnuz: (3, 57344.0, 2.0**-15),
}


class Value(NamedTuple):
    """The values of one node. Arrays broadcast against each other. The error beside an infinity: see `OVERFLOWED`."""

    data: Array  # float64 for floats, else the node's own integer or bool type (weak integers: int64)
    error: Array | None = None  # float64; None: exact
    valid: Array | None = None  # bool; None: everywhere
    wrapped: Array | None = None  # bool: a signed or narrow integer that overflowed; None: nowhere
    terms: tuple[Array, ...] = ()  # of a float sum of sums: what is added up


class Noise:
    """Roundings at random, instead of bounds of them: inside `rounding_at_random` every float result is off by a random
    part of the rounding error that it may have, and has no bound."""

    def __init__(self, seed: int) -> None:
        self._drawn, state = _drawn(seed)
        self._random = np.random.default_rng(seed)
        self._random.bit_generator.state = state

    def beside(self, data: Array) -> Array:
        """Numbers between -1 and 1, one for each of some values: not to be written to."""
        begin = int(self._random.integers(0, NOISE))
        end = begin + data.size
        drawn = self._drawn[begin:end] if end <= NOISE else self._drawn.take(np.arange(begin, end), mode="wrap")
        return drawn.reshape(data.shape)

    def rounded(self, data: Array, dtype: DType, ulps: float) -> Array:
        """A float result as `dtype` may hold it."""
        bits, largest, _ = _FLOATS[dtype]
        drawn, size = self.beside(data), np.abs(data)
        off: Array  # by how much at most, then by how much; in place: it is a tenth of what a reference takes
        if bits < 24:  # the distance of its neighbours is that of the power of two below a number
            off = np.asarray((np.asarray(data, np.float64).view(np.int64) & _EXPONENT).view(np.float64))
            off *= 2.0 * unit_roundoff(dtype)
        else:
            off = np.asarray(size * (2.0 * unit_roundoff(dtype)))
        np.maximum(off, subnormal_step(dtype), out=off)
        off *= ulps
        off *= drawn
        if bits < 24 and ulps == 0.5:
            np.copyto(off, 0.0, where=_representable(data, dtype))
        off += data
        return off if size.size and size.max() <= largest else np.where(size > largest, np.copysign(np.inf, data), off)


@functools.lru_cache(4)
def _drawn(seed: int) -> tuple[Array, Any]:
    """The numbers of a seed, and the state of the generator after them: to draw them takes ten milliseconds."""
    random = np.random.default_rng(seed)
    drawn = random.uniform(-1.0, 1.0, NOISE)
    drawn.flags.writeable = False
    return drawn, random.bit_generator.state


_EXPONENT = 0x7FF << 52  # of a float64
NOISE = 1 << 20  # numbers that are drawn once; a slice of them begins anywhere
_noise: ContextVar[Noise | None] = ContextVar("noise", default=None)


@contextlib.contextmanager
def _inside(mark: ContextVar[Marked], value: Marked) -> Iterator[None]:
    """A block in which a mark has a value."""
    before = mark.set(value)
    try:
        yield
    finally:
        mark.reset(before)


@contextlib.contextmanager
def rounding_at_random(noise: Noise) -> Iterator[None]:
    """Inside the block arithmetic has no bounds of its errors, but errors: see `Noise`."""
    with _inside(_noise, noise):
        yield


def noise_now() -> Noise | None:
    """The noise of arithmetic at the moment; None where it has bounds."""
    return _noise.get()


TF32_BITS = 11
"""Significant bits of what a tensor core takes of a float32 number where a product is of tf32."""

_tf32: ContextVar[bool] = ContextVar("tf32", default=False)


@contextlib.contextmanager
def products_of_tf32() -> Iterator[None]:
    """Inside the block the factors of products that are summed may be rounded, or cut, to `TF32_BITS`."""
    with _inside(_tf32, True):
        yield


def products_are_tf32() -> bool:
    """Whether this is inside of `products_of_tf32`."""
    return _tf32.get()


def as_tf32(product: Value, factors: Sequence[Value]) -> Value:
    """A product with the error of rounding its factors to tf32, as far as they are no such numbers."""
    share = sum(np.where(_has_bits(one.data, TF32_BITS), 0.0, 2.0**-TF32_BITS) for one in factors)
    return product._replace(error=_plus(product.error, share * np.abs(product.data)))


_in_order: ContextVar[bool] = ContextVar("in order", default=False)


@contextlib.contextmanager
def comparing_in_order() -> Iterator[None]:
    """Inside the block a maximum makes of NaN what tinygrad's kernels without Opts make of it, which compare one
    element after the other: of two the first one stays, and a reduction leaves NaN out."""
    with _inside(_in_order, True):
        yield


def compares_in_order() -> bool:
    """Whether this is inside of `comparing_in_order`."""
    return _in_order.get()


def settled(value: Value) -> Value:
    """The value for anybody but wrapping arithmetic and a store of its own width.

    C computes 8- and 16-bit integers in 32 bits, an interpreter in their own width, and tinygrad simplifies signed ones
    as if they were unbounded (`x * 2 // 2` is x): after an overflow, a wider cast, a comparison or a division may see
    either. So what overflowed is uncertain from here on.
    """
    if value.wrapped is None:
        return value
    return value._replace(error=np.where(value.wrapped, np.inf, _some(value.error)), wrapped=None)


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """What values of a tinygrad dtype are held in. Raises VerificationError for one that has no values."""
    if dtypes.is_float(dtype):
        return np.dtype(np.float64)
    if dtype is dtypes.weakint:
        return np.dtype(np.int64)
    if dtype.fmt is None:
        raise VerificationError(f"no reference for data type {dtype.name}")
    held: np.dtype[Any] = np.dtype(dtype.fmt)
    return held


def significant_bits(dtype: DType) -> int:
    """Of the mantissa of a float type, the implicit one included: 24 of float32."""
    return _FLOATS[dtype][0]


def unit_roundoff(dtype: DType) -> float:
    """Half the distance of neighbouring floats, relative: 2**-24 for float32."""
    return 2.0 ** -_FLOATS[dtype][0]


def largest_of(dtype: DType) -> float:
    """The largest finite value."""
    return _FLOATS[dtype][1]


def smallest_normal(dtype: DType) -> float:
    """The smallest positive value that has all significant bits."""
    return _FLOATS[dtype][2]


def subnormal_step(dtype: DType) -> float:
    """The distance of the floats next to 0: 1.4e-45 for float32."""
    bits, _, normal = _FLOATS[dtype]
    return normal * 2.0 ** (1 - bits)


def _is_narrow(dtype: DType) -> bool:
    """Whether a kernel may hold intermediate values of a type in a wider register, where they do not overflow."""
    return dtype is dtypes.float16 or dtype in dtypes.fp8s


def _representable(data: Array, dtype: DType) -> Array:
    """Where a float64 is a value of `dtype` (subnormals and overflow aside). False for float64, which is no test."""
    return _has_bits(data, _FLOATS[dtype][0])


def _has_bits(data: Array, bits: int) -> Array:
    """Where a float64 has so few significant bits, at most the 24 of float32."""
    single = data.astype(np.float32)
    same = (single == data) & (bits <= 24)
    if bits < 24:
        same = same & ((single.view(np.int32) & ((1 << (24 - bits)) - 1)) == 0)
    return np.asarray(same)


def rounded(
    data: Array,
    error: Array | None,
    dtype: DType,
    ulps: float = 0.5,
    *,
    made_of: Sequence[Value],
    doubt: Callable[[], Array | bool] | None = None,
    certain_nan: bool = False,
    exact: Callable[[], Array] | None = None,
) -> Value:
    """A float result as `dtype` would hold it: its own rounding added to the operands' `error`.

    `ulps` 0.5 is an operation that rounds correctly, hence is exact where it can be; a larger one never is. For
    infinities and NaN: `made_of` are the operands, `doubt` is where the sign of one of them is open, `exact` where a
    result that is infinite is so by definition (1 / 0), and `certain_nan` says that what is no number though all of
    `made_of` are (sqrt(-1), inf - inf) is none in every order of the arithmetic.
    """
    if (noise := _noise.get()) is not None:
        return Value(noise.rounded(data, dtype, ulps))
    _, largest, normal = _FLOATS[dtype]
    size = np.abs(data)
    own = (2.0 * ulps * unit_roundoff(dtype)) * size
    if ulps == 0.5:
        own = np.where(_representable(data, dtype), 0.0, own)
    tiny = (size < normal) & (size > 0)
    if tiny.any():
        own = np.array(own)
        own[tiny] = _subnormal(data[tiny], dtype, ulps)
    total = own if error is None else own + error
    if not (size.size and size.max() <= largest):  # also where something is NaN
        data, total = _beyond(data, total, dtype, made_of, doubt, certain_nan, exact)
    peak = total.max(initial=0.0)
    if np.isnan(peak):
        total = np.where(np.isnan(total), np.inf, total)
    return Value(data, total if peak != 0 else None)


def may_flush(dtype: DType) -> bool:
    """Whether subnormals of a type, loaded ones too, may be taken for 0: by tinygrad's arithmetic for types that a
    device does not have (`f2f` in tinygrad/codegen/decomp/dtype.py)."""
    return dtype is dtypes.bfloat16 or dtype in dtypes.fp8s


def _subnormal(data: Array, dtype: DType, ulps: float) -> Array:
    """The own rounding of results below the normal numbers: CPUs and CUDA keep subnormals, so that it is a part of
    their distance. A function that hardware approximates may give 0 instead."""
    step = subnormal_step(dtype)
    if ulps > 0.5 or may_flush(dtype):
        return np.asarray(np.abs(data) + ulps * step)
    if dtype is dtypes.float64:  # as it is computed here: no test
        return np.full(data.shape, max(ulps, 1.0) * step)
    on_grid = (data == np.rint(data / step) * step) & (np.abs(data) >= step)
    return np.where(on_grid, 0.0, ulps * step)


def _beyond(
    data: Array,
    total: Array,
    dtype: DType,
    made_of: Sequence[Value],
    doubt: Callable[[], Array | bool] | None,
    certain_nan: bool,
    exact: Callable[[], Array] | None,
) -> tuple[Array, Array]:
    """Results and errors where some are infinite, too large for `dtype`, or no numbers: `rounded` has the words.

    An exact infinity plus or times a number that is off by a little is an exact infinity. float32 and its like overflow
    to infinity everywhere; an 11-bit intermediate may be held in a wider register.
    """
    largest = largest_of(dtype)
    unsure = np.asarray(False if doubt is None else doubt())
    infinite, numbers, beyond = np.asarray(False), np.asarray(True), np.asarray(False)
    for part in made_of:
        error = _some(part.error)
        unsure = unsure | np.isinf(error)
        infinite = infinite | (np.isinf(part.data) & (error == 0))
        beyond = beyond | (np.isinf(part.data) & (error > 0))
        numbers = numbers & (~np.isnan(part.data) | np.isinf(error))
    if exact is not None:
        infinite = infinite | exact()
    size, narrow = np.abs(data), _is_narrow(dtype)
    limit = largest * (1 + unit_roundoff(dtype) / 2)  # what is closer to the largest float is rounded to that
    over = (size >= limit) & ~infinite
    unsure = unsure | (np.isfinite(size) & (np.abs(size - limit) <= CONFIDENT * total) & (total > 0))
    if narrow:  # what was beyond is known only as it is
        unsure = unsure | beyond
    if dtype in dtypes.fp8s:  # some devices saturate
        unsure = unsure | over | np.isinf(data)
    data = np.where(over, np.copysign(np.inf, data), data)
    error = np.where(np.isinf(data), np.where(over, OVERFLOWED, 0.0), total)
    error = np.where(unsure, np.inf, error)
    certain = (certain_nan & ~unsure) if certain_nan else False
    return data, np.where(np.isnan(data), np.where(~numbers | certain, 0.0, np.inf), error)


def _holds_all(target: DType, source: DType) -> bool:
    """Whether a float type has every value of another one; float16 has the bits of bfloat16, and not its range."""
    (bits, largest, normal), (needed, most, least) = _FLOATS[target], _FLOATS[source]
    return needed <= bits and most <= largest and normal <= least


def cast(value: Value, source: DType, target: DType) -> Value:
    """CAST, as C converts: to an integer by truncation, to a narrower integer by wrapping."""
    if source is target:
        return value
    wanted = numpy_dtype(target)
    if wanted.kind in "iu" and value.wrapped is not None and wanted.itemsize <= value.data.itemsize:
        value = value._replace(wrapped=None)  # truncates explicitly: all agree
    data, error, valid = settled(value)[:3]
    if target is dtypes.bool:
        unsure = None if error is None else np.where((np.abs(data) <= TIPPING * error) & (error > 0), 1.0, 0.0)
        return Value(data != 0, unsure, valid)
    if dtypes.is_float(target):
        data = data.astype(np.float64)
        if target is dtypes.weakfloat or (
            dtypes.is_float(source) and source is not dtypes.weakfloat and _holds_all(target, source)
        ):
            if error is not None and _is_narrow(source) and source is not target and np.isinf(data).any():
                error = np.where(np.isinf(data) & (error > 0), np.inf, error)  # perhaps a number in a wider register
            return Value(data, error, valid)
        operand = Value(data, error)
        if error is not None and np.isinf(data).any():  # of a wide type: infinite in every register
            operand = Value(data, np.where(np.isinf(data) & np.isfinite(error), 0.0, error))
        return rounded(data, error, target, made_of=(operand,))._replace(valid=valid)
    if not dtypes.is_float(source):
        return Value(data.astype(wanted), error, valid)
    whole = np.trunc(data)
    limits = np.iinfo(wanted)
    inside = (whole >= float(limits.min)) & (whole < float(limits.max) + 1)  # NaN is not
    spread = np.zeros(()) if error is None else np.trunc(data + TIPPING * error) - np.trunc(data - TIPPING * error)
    spread = np.where(inside & ~np.isnan(spread), spread, np.inf)
    return Value(np.where(inside, whole, 0).astype(wanted), spread if np.any(spread) else None, valid)


def bit_cast(value: Value, source: DType, target: DType) -> Value:
    """BITCAST between types of one size. Raises VerificationError for 8-bit floats."""
    data, error, valid = settled(value)[:3]
    for dtype in (source, target):
        if dtype in dtypes.fp8s or dtype in dtypes.weaks:
            raise VerificationError(f"no reference for a bitcast of {dtype.name}")
    if dtypes.is_float(source):
        if source is dtypes.bfloat16:
            data = (data.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        else:
            data = data.astype(np.dtype(source.fmt))
    if target is dtypes.bfloat16:
        data = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        data = data.view(np.dtype(target.fmt))
    return Value(data.astype(numpy_dtype(target)), _all_or_nothing([error]), valid)


def alu(
    op: Ops,
    dtype: DType,
    operands: Sequence[Value],
    types: Sequence[DType],
    *,
    same: bool = False,
    unrelated: bool = False,
    positive: bool = False,
) -> Value:
    """One arithmetic operation with result `dtype`. Raises VerificationError for one that is not known.

    What is known of the form of the expression: `same` says that a comparison's sides are one
    value, `unrelated` that a sum's operands share nothing, `positive` that rounding makes no operand negative.
    """
    if op not in GroupOp.ALU:
        raise VerificationError(f"no reference for operation {op.name}")
    valid: Array | None = None
    for operand in operands:
        if operand.valid is not None:
            valid = operand.valid if valid is None else valid & operand.valid
    if op not in _WRAPPING:
        operands = [settled(operand) for operand in operands]
    if op is Ops.WHERE:
        result = _where(dtype, operands, types)
    elif op in GroupOp.Comparison:
        common = next((t for t in types if t not in dtypes.weaks), types[0])
        if any(dtypes.is_float(t) for t in types) and not dtypes.is_float(common):
            common = dtypes.weakfloat
        sides = [cast(v, t, common) for v, t in zip(operands, types, strict=True)]
        result = _compare_same(op, *sides) if same else _compare(op, *sides, narrow=_narrow_float(common))
    else:
        values = [cast(v, t, dtype) for v, t in zip(operands, types, strict=True)]
        if dtypes.is_float(dtype):
            result = _float_alu(op, dtype, values, unrelated=unrelated, positive=positive)
        else:
            result = _int_alu(op, dtype, values)
            if op in _WRAPPING and dtype is not dtypes.weakint and may_wrap(numpy_dtype(dtype)):
                result = result._replace(wrapped=_overflow(op, values, result.data))
    return result if op is Ops.WHERE else result._replace(valid=valid)


def _narrow_float(dtype: DType) -> bool:
    return dtypes.is_float(dtype) and _is_narrow(dtype)


def may_wrap(kind: np.dtype[Any]) -> bool:
    """Whether an overflow of an integer type is not the same everywhere: that of wide unsigned ones is."""
    return kind.kind == "i" or (kind.kind == "u" and kind.itemsize <= 2)


def _overflow(op: Ops, values: Sequence[Value], result: Array) -> Array | None:
    """Where an integer result, or an operand already, is not the integer that unbounded ones would give."""
    if op in (Ops.AND, Ops.OR, Ops.XOR) or result.dtype.itemsize == 8:
        # bits of a wider register may differ only where an operand did; 64 bits are looked at in float64
        over = np.asarray(np.abs(_size(op, [v.data for v in values])) >= 2.0**63)
    else:
        larger = np.int32 if result.dtype.itemsize <= 2 else np.int64
        wider = {np.int32: dtypes.int32, np.int64: dtypes.int64}[larger]
        over = np.asarray(_int_alu(op, wider, [v._replace(data=v.data.astype(larger)) for v in values]).data != result)
    for value in values:
        if value.wrapped is not None:
            over = over | value.wrapped
    return over if over.any() else None


def _size(op: Ops, values: Sequence[Array]) -> Array:
    """About what arithmetic gives in unbounded integers; 0 for operations on bits."""
    x, y = values[0].astype(np.float64), values[-1].astype(np.float64)
    match op:
        case Ops.ADD:
            return x + y
        case Ops.SUB:
            return x - y
        case Ops.MUL:
            return x * y
        case Ops.MULACC:
            return x * values[1].astype(np.float64) + y
        case Ops.NEG:
            return -x
        case Ops.SHL:
            return x * np.exp2(y)
    return np.zeros(())


def _all_or_nothing(errors: Sequence[Array | None]) -> Array | None:
    """Infinity wherever any operand is uncertain."""
    known = [e for e in errors if e is not None]
    return np.where(sum(known, np.zeros(())) > 0, np.inf, 0.0) if known else None


def _plus(*errors: Array | None) -> Array | None:
    known = [e for e in errors if e is not None]
    return np.asarray(sum(known[1:], known[0])) if known else None


def _times(weight: Array, error: Array | None) -> Array | None:
    """An error passed on by a derivative; no error stays none, even by an infinite derivative."""
    if error is None:
        return None
    passed = np.abs(weight) * error
    # where the derivative is NaN so is the value, and that is certain; 0 · inf is not
    return np.where((error == 0) | np.isnan(weight), 0.0, np.where(np.isnan(passed), np.inf, passed))


def _where(dtype: DType, operands: Sequence[Value], types: Sequence[DType]) -> Value:
    condition = operands[0]
    yes, no = (cast(v, t, dtype) for v, t in zip(operands[1:], types[1:], strict=True))
    error: Array | None = None
    if yes.error is not None or no.error is not None:
        error = np.where(condition.data, _some(yes.error), _some(no.error))
    if condition.error is not None:
        gap = np.abs(yes.data.astype(np.float64) - no.data.astype(np.float64))
        alike = (yes.data == no.data) | ((yes.data != yes.data) & (no.data != no.data))
        gap = np.where(alike, 0.0, np.where(np.isnan(gap), np.inf, gap))
        both = gap + _some(yes.error) + _some(no.error)
        error = np.where(condition.error > 0, both, _some(error))
    valid: Array | None = None
    if yes.valid is not None or no.valid is not None or condition.valid is not None:
        everywhere = np.ones((), bool)
        parts = [everywhere if v.valid is None else v.valid for v in (condition, yes, no)]
        valid = parts[0] & np.where(condition.data, parts[1], parts[2])
    data = np.where(condition.data, yes.data, no.data)
    return Value(data, error, valid)


_COMPARE = {Ops.CMPLT: np.less, Ops.CMPNE: np.not_equal, Ops.CMPEQ: np.equal}


def _compare(op: Ops, a: Value, b: Value, *, narrow: bool) -> Value:
    data = _COMPARE[op](a.data, b.data)
    if (error := _plus(a.error, b.error)) is None:
        return Value(data)
    gap = np.abs(a.data.astype(np.float64) - b.data.astype(np.float64))
    unsure = (error > 0) & ((gap <= TIPPING * error) | np.isinf(error))
    if narrow:  # both infinite, and one perhaps a number in a wider register
        unsure = unsure | ((error > 0) & np.isinf(a.data) & (a.data == b.data))
    if unsure.any():
        for side in (a, b):  # what is no number compares in one way with all others
            unsure = unsure & ~((side.data != side.data) & ~np.isinf(_some(side.error)))
    return Value(data, np.where(unsure, 1.0, 0.0) if unsure.any() else None)


def _compare_same(op: Ops, a: Value, b: Value) -> Value:
    """A value beside itself: whatever it is off by, so is the other side. In doubt only where it may be no number."""
    data = _COMPARE[op](a.data, b.data)
    if (error := _plus(a.error, b.error)) is None or op is Ops.CMPLT or a.data.dtype.kind != "f":
        return Value(data)
    unsure = np.isinf(error)
    return Value(data, np.where(unsure, 1.0, 0.0) if unsure.any() else None)


def difference_with_itself(x: Value) -> Value:
    """`x - x`: tinygrad makes it a constant 0, other compilers only where x is a number and finite."""
    sure = np.isfinite(x.data) & ~np.isinf(_some(x.error))
    data = np.zeros(np.shape(x.data))
    return Value(data, None if sure.all() else np.where(sure, 0.0, np.inf), x.valid)


def _reordered(total: Value, a: Value, b: Value, dtype: DType) -> Value:
    """A sum whose operands are sums: tinygrad adds its terms in an order of its own, so that it is off by what adding
    them in any order may be, as in a reduction, also where one order is exact."""
    terms = (a.terms or (a.data,)) + (b.terms or (b.data,))
    if len(terms) == 2:
        return total._replace(terms=terms)
    squares = np.asarray(sum((np.square(t) for t in terms), np.zeros(())))
    own = unit_roundoff(dtype) * math.sqrt(len(terms)) * np.maximum(np.abs(total.data), np.sqrt(squares))
    integral = (squares * unit_roundoff(dtype) <= 0.5) & functools.reduce(
        np.logical_and, [t == np.rint(t) for t in terms]
    )
    own = np.where(np.isfinite(own) & ~integral, own, 0.0)
    if (noise := _noise.get()) is not None:
        return Value(total.data + noise.beside(own) * own, terms=terms if len(terms) < MOST_TERMS else ())
    error = _plus(total.error, own if own.any() else None)
    return total._replace(error=error, terms=terms if len(terms) < MOST_TERMS else ())


def _float_alu(
    op: Ops, dtype: DType, values: Sequence[Value], *, unrelated: bool = False, positive: bool = False
) -> Value:
    a, b = values[0], values[1] if len(values) > 1 else values[0]
    x, y = a.data, b.data
    match op:
        case Ops.NEG:
            return Value(-x, a.error)
        case Ops.TRUNC:
            if a.error is None:
                return Value(np.trunc(x))
            spread = np.trunc(x + TIPPING * a.error) - np.trunc(x - TIPPING * a.error)
            spread = np.where(np.isfinite(x), spread, a.error)
            return Value(np.trunc(x), np.where(np.isnan(spread), np.inf, spread))
        case Ops.MAX:
            return _maximum(a, b)
        case Ops.ADD:
            passed = _plus(a.error, b.error)
            total = rounded(
                x + y, passed, dtype, made_of=(a, b), certain_nan=unrelated, doubt=lambda: _pulled_back(a, b, dtype)
            )
            return _reordered(total, a, b, dtype)
        case Ops.SUB:
            return rounded(x - y, _plus(a.error, b.error), dtype, made_of=(a, b))
        case Ops.MUL:
            cross = None if a.error is None or b.error is None else _times(a.error, b.error)
            passed = _plus(_times(x, b.error), _times(y, a.error), cross)
            return rounded(x * y, passed, dtype, made_of=(a, b), doubt=lambda: _infinity_of_open_sign(a, b))
        case Ops.MULACC:
            product = _float_alu(Ops.MUL, dtype, values[:2])
            return _float_alu(Ops.ADD, dtype, (product, values[2]))
        case Ops.RECIPROCAL:
            inverse = _float_alu(Ops.FDIV, dtype, (Value(np.ones(())), a))
            if inverse.error is None or not (over := np.isinf(inverse.data) & (x != 0)).any():
                return inverse
            return inverse._replace(error=np.where(over, np.inf, inverse.error))  # tinygrad divides: y · 1/x is y / x
        case Ops.FDIV:
            return _quotient(a, b, dtype)
        case Ops.SQRT:
            root = np.sqrt(x)
            passed = None if a.error is None else np.minimum(_some(_times(0.5 / root, a.error)), np.sqrt(a.error))
            if a.error is not None and not positive:  # else a root of less than 0 is no number
                passed = np.where(_may_be_negative(a), np.inf, np.where(np.isnan(root), 0.0, _some(passed)))
            return rounded(
                root,
                passed,
                dtype,
                1.0,
                made_of=(a,),
                certain_nan=True,
                doubt=None if positive else lambda: _may_be_negative(a),
            )
        case Ops.EXP2:
            power = np.exp2(x)
            passed = None if a.error is None else _times(power, np.expm1(LOG_2 * a.error))
            limit = math.log2(largest_of(dtype))
            return rounded(
                power,
                passed,
                dtype,
                2.0,
                made_of=(a,),
                certain_nan=True,
                doubt=lambda: (power > largest_of(dtype)) & np.isfinite(x) & (x - TIPPING * _some(a.error) <= limit),
            )
        case Ops.LOG2:
            # relative to 1 near 1: hardware gives log2 with an absolute error there
            near = np.abs(x) if a.error is None else np.maximum(np.abs(x) - a.error, 0.0)
            absolute = np.where(np.isfinite(x) & (x > 0), 4 * unit_roundoff(dtype), 0.0)
            passed = _plus(_times(1 / (LOG_2 * near), a.error), absolute)
            if a.error is not None and not positive:
                passed = np.where(_may_be_negative(a), np.inf, _some(passed))
            if (tiny := (x < 0) & (x > -smallest_normal(dtype))).any():  # tinygrad's own takes them for -0
                passed = np.where(tiny, np.inf, _some(passed))
            return rounded(
                np.log2(x),
                passed,
                dtype,
                2.0,
                made_of=(a,),
                certain_nan=True,
                doubt=lambda: np.isinf(_some(passed)),
                exact=lambda: (x == 0) & (_some(a.error) == 0),
            )
        case Ops.SIN:
            absolute = np.where(x == 0, 0.0, 4 * unit_roundoff(dtype))
            if dtype is dtypes.float64:  # tinygrad reduces larger angles with fewer bits (`xsin`)
                absolute = np.where(np.abs(x) < SMALL_ANGLE, absolute, np.inf)
            passed = None if a.error is None else np.minimum(a.error, 2.0)
            return rounded(np.sin(x), _plus(passed, absolute), dtype, 2.0, made_of=(a,), certain_nan=True)
        case Ops.POW:
            return _power(a, b, dtype)
        case _:
            raise VerificationError(f"no reference for {op.name} of floats")


def _maximum(a: Value, b: Value) -> Value:
    """tinygrad compares and selects: with NaN the result depends on the order."""
    x, y = a.data, b.data
    in_order = compares_in_order()
    data = np.where(x < y, y, x) if in_order else np.maximum(x, y)
    unsure = np.isnan(data) & (not in_order)
    if a.error is None and b.error is None:
        return Value(data, np.where(unsure, np.inf, 0.0) if unsure.any() else None)
    ours, theirs = _some(a.error), _some(b.error)
    gap, reach = x - y, TIPPING * (ours + theirs)
    # by so much larger that no rounding tips it, or infinite: then its own error counts
    either = np.where(gap > reach, ours, np.where(-gap > reach, theirs, np.maximum(ours, theirs)))
    either = np.where(unsure, np.inf, either)
    return Value(data, either if either.any() else None)


def _pulled_back(a: Value, b: Value, dtype: DType) -> Array:
    """Where an overflow is added to an infinity, or a large number, of the other sign: a multiply-add does not round
    its product, and so 3.5e38 - 3e38 may be a number where the product alone is infinite."""
    over = [np.isinf(part.data) & (_some(part.error) > 0) for part in (a, b)]
    large = largest_of(dtype) * unit_roundoff(dtype)  # of anything smaller the largest float has no bit
    opposed = (np.sign(a.data) == -np.sign(b.data)) & (np.minimum(np.abs(a.data), np.abs(b.data)) > large)
    return np.asarray(opposed & (over[0] | over[1]))


def _infinity_of_open_sign(a: Value, b: Value) -> Array:
    """Where a factor is infinite, and whether the other is positive, negative or 0 is a matter of rounding."""
    open_sign = [
        np.isinf(u.data) & (_some(v.error) > 0) & (np.abs(v.data) <= TIPPING * _some(v.error)) & ~np.isinf(v.data)
        for u, v in ((a, b), (b, a))
    ]
    return np.asarray(open_sign[0] | open_sign[1])


def _may_be_negative(a: Value) -> Array:
    """Where a number may or may not be below 0."""
    error = _some(a.error)
    return np.asarray((np.abs(a.data) < CONFIDENT * error) & ~np.isinf(a.data))


def _quotient(a: Value, b: Value, dtype: DType) -> Value:
    x, y = a.data, b.data
    # the divisor may be smaller by its error: no bound where that reaches 0
    near = np.abs(y) if b.error is None else np.maximum(np.abs(y) - b.error, 0.0)
    error = _plus(_times(1 / near, a.error), _times(x / (y * near), b.error))
    if b.error is not None and (beyond := np.isinf(y)).any():
        bounded = np.where(np.isinf(b.error), np.inf, 1 / largest_of(dtype))
        error = np.where(beyond & (b.error > 0), bounded, _some(error))
    return rounded(
        x / y,
        error,
        dtype,
        1.0,
        made_of=(a, b),
        doubt=lambda: (near == 0) & (_some(b.error) > 0),
        exact=lambda: (y == 0) & (_some(b.error) == 0),
    )


def _power(a: Value, b: Value, dtype: DType) -> Value:
    x, y = a.data, b.data
    power = np.power(x, y)
    passed = _plus(_times(y * power / x, a.error), _times(power * np.log(np.abs(x)), b.error))
    # usually computed as exp2(y · log2 x): the exponent's rounding counts as often as the exponent is large
    exponent = np.abs(y * np.log2(np.abs(x) + 2.0**-126))
    own = np.where(np.isfinite(power) & (power != 0), 4 * unit_roundoff(dtype) * np.abs(power) * exponent, 0.0)
    unsure = np.isnan(power) if a.error is None else np.isnan(power) | _may_be_negative(a)
    certain = np.where(unsure & (_some(a.error) + _some(b.error) > 0), np.inf, 0.0)
    return rounded(
        power,
        _plus(passed, own, certain),
        dtype,
        2.0,
        made_of=(a, b),
        certain_nan=True,
        exact=lambda: (x == 0) & (_some(a.error) == 0),
        doubt=lambda: np.isinf(certain),
    )


def _some(error: Array | None) -> Array:
    return np.zeros(()) if error is None else error


_BOOLEAN = {Ops.ADD: Ops.OR, Ops.MAX: Ops.OR, Ops.MUL: Ops.AND}
"""What arithmetic of bools is."""


def _int_alu(op: Ops, dtype: DType, values: Sequence[Value]) -> Value:
    a, b = values[0], values[1] if len(values) > 1 else values[0]
    x, y = a.data, b.data
    errors = [v.error for v in values]
    unsure = _all_or_nothing(errors)
    if dtype is dtypes.bool:
        op = _BOOLEAN.get(op, op)
    match op:
        case Ops.ADD:
            return Value(x + y, _plus(a.error, b.error))
        case Ops.SUB if dtype is not dtypes.bool:
            return Value(x - y, _plus(a.error, b.error))
        case Ops.MUL:
            cross = None if a.error is None or b.error is None else _times(a.error, b.error)
            x_size, y_size = np.abs(x.astype(np.float64)), np.abs(y.astype(np.float64))
            return Value(x * y, _plus(_times(x_size, b.error), _times(y_size, a.error), cross))
        case Ops.NEG if dtype is not dtypes.bool:
            return Value(np.negative(x), a.error)
        case Ops.MAX:
            return Value(np.maximum(x, y), _plus(a.error, b.error))
        case Ops.AND | Ops.OR if dtype is dtypes.bool and unsure is not None:
            data = x & y if op is Ops.AND else x | y
            # one side settles the result where it is certain, and False for AND or True for OR
            settles = [(_some(v.error) == 0) & (v.data == (op is Ops.OR)) for v in (a, b)]
            return Value(data, np.where(settles[0] | settles[1], 0.0, _some(unsure)))
        case Ops.AND:
            return Value(x & y, unsure)
        case Ops.OR:
            return Value(x | y, unsure)
        case Ops.XOR:
            return Value(x ^ y, unsure)
        case Ops.SHL:
            return Value(x << y, unsure)
        case Ops.SHR:
            return Value(x >> y, unsure)
        case Ops.MULACC:
            return _int_alu(Ops.ADD, dtype, (_int_alu(Ops.MUL, dtype, values[:2]), values[2]))
        case Ops.CDIV | Ops.CMOD | Ops.FLOORDIV | Ops.FLOORMOD:
            undefined = y == 0  # in C
            if x.dtype.kind == "i":
                undefined = undefined | ((y == -1) & (x == np.iinfo(x.dtype).min))
            by_zero = np.where(undefined, np.inf, 0.0) if undefined.any() else None
            down, rest = np.floor_divide(x, y), np.remainder(x, y)
            if op in (Ops.CDIV, Ops.CMOD):
                up = ((rest != 0) & ((x < 0) != (y < 0))).astype(down.dtype)
                down, rest = down + up, rest - up * y
            return Value(down if op in (Ops.CDIV, Ops.FLOORDIV) else rest, _plus(unsure, by_zero))
        case Ops.POW:
            return Value(np.power(x, np.maximum(y, 0)), _plus(unsure, np.where(y < 0, np.inf, 0.0)))
        case Ops.TRUNC:
            return a
        case Ops.THREEFRY:
            return Value(_threefry(x, y), unsure)
        case _:
            raise VerificationError(f"no reference for {op.name} of {dtype.name}")


def _threefry(counter: Array, key: Array) -> Array:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011) on uint64 pairs, low word first."""
    x0, x1 = (v.astype(np.uint32) for v in (counter, counter >> np.uint64(32)))
    k0, k1 = (v.astype(np.uint32) for v in (key, key >> np.uint64(32)))
    keys = (k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA), k0)
    x0, x1 = x0 + keys[2], x1 + keys[0]
    for i in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x0 = x0 + x1
            x1 = x0 ^ ((x1 << np.uint32(turn)) | (x1 >> np.uint32(32 - turn)))
        x0, x1 = x0 + keys[i % 3], x1 + keys[(i + 1) % 3] + np.uint32(i + 1)
    return np.asarray((x1.astype(np.uint64) << np.uint64(32)) | x0.astype(np.uint64))


# ---- What follows from the form of an expression, whatever the data: `y != y` is false unless y is NaN, and `x - x` is
# 0.
#
# The reference bounds the rounding errors of both sides of a comparison as if they had nothing to do with each other.
# Two sides that are one expression are off by the same error, so that their comparison is exact. tinygrad keeps equal
# expressions as one node; casts that lose nothing, factors of 1, sums with 0 and double negations are looked through.

MOST_RELATED = 16  # terms of a sum that are compared with others


class Identities(NamedTuple):
    """The nodes of a kernel whose value or certainty follows from their form."""

    same: frozenset[UOp]  # comparisons of a value with itself
    zero: dict[UOp, UOp]  # x - x: the x of each, which tinygrad folds to 0 whatever x is
    related: frozenset[UOp]  # sums whose operands share a term, so that inf - inf may come out as anything
    positive: frozenset[UOp]  # arguments of roots and logarithms that no rounding makes negative
    padded: frozenset[UOp]  # products with a factor that is 0 in some places, whatever the data are
    with_constants: dict[UOp, float]  # products with constants below 1, and what these come to


def identities(ast: UOp) -> Identities:
    """Read the identities off a kernel."""
    same: set[UOp] = set()
    zero: dict[UOp, UOp] = {}
    related: set[UOp] = set()
    positive: set[UOp] = set()
    padded: set[UOp] = set()
    terms: dict[UOp, frozenset[UOp]] = {}
    known: dict[UOp, bool] = {}
    constants: dict[UOp, tuple[float, float]] = {}
    for node in ast.toposort():
        constants[node] = _constants_in(node, constants)
        if node.op in GroupOp.Comparison:
            if _plain(node.src[0]) == _plain(node.src[1]):
                same.add(node)
        elif node.op is Ops.ADD and dtypes.is_float(node.dtype):
            a, b = (terms.get(side, frozenset((_scaled(side)[0],))) for side in node.src)
            if len(a | b) <= MOST_RELATED:
                terms[node] = a | b
            if a & b or len(a | b) > MOST_RELATED:
                related.add(node)
            (x, factor), (y, other) = (_scaled(side) for side in node.src)
            if x is y and factor + other == 0:
                zero[node] = x
        elif node.op in (Ops.SQRT, Ops.LOG2) and _not_negative(node.src[0], known):
            positive.add(node)
        elif node.op is Ops.MUL and dtypes.is_float(node.dtype) and any(map(_is_padded, node.src)):
            padded.add(node)
    with_constants = {node: small for node, (small, _) in constants.items() if node.op is Ops.MUL and small < 1}
    return Identities(frozenset(same), zero, frozenset(related), frozenset(positive), frozenset(padded), with_constants)


def _constants_in(node: UOp, known: Mapping[UOp, tuple[float, float]]) -> tuple[float, float]:
    """What the constant factors below 1 of a float come to, and those above."""
    if not dtypes.is_float(node.dtype):
        return 1.0, 1.0
    if node.op is Ops.CONST:
        size = abs(_constant(node) or 0.0)
        return (min(size, 1.0), max(size, 1.0)) if 0 < size < math.inf else (1.0, 1.0)
    if node.op is Ops.MUL:
        (small, large), (other_small, other_large) = (known[side] for side in node.src)
        return small * other_small, large * other_large
    if node.op is Ops.RECIPROCAL:
        small, large = known[node.src[0]]
        return 1 / large, 1 / small if small else 1.0
    return known[node.src[0]] if node.op is Ops.CAST and dtypes.is_float(node.src[0].dtype) else (1.0, 1.0)


def _is_padded(node: UOp) -> bool:
    """Whether a factor is 0 where a condition of places alone, and not of data, has it so."""
    while node.op is Ops.CAST:
        node = node.src[0]
    if node.op is not Ops.WHERE or not any(_constant(side) == 0 for side in node.src[1:]):
        return False
    return not any(one.op is Ops.INDEX for one in node.src[0].toposort())


def beside_padding(product: Value, factors: Sequence[Value]) -> Value:
    """A product of `Identities.padded`: where padding is multiplied by what is no number, it may be 0. So
    tinygrad folds it, where loops are unrolled and it sees that the factor is 0 there."""
    open_ = np.isnan(product.data) & functools.reduce(np.logical_or, (factor.data == 0 for factor in factors))
    if not open_.any():
        return product
    return product._replace(error=np.where(open_, np.inf, _some(product.error)))


_BEYOND = 1.001  # what is no larger may be the largest float, divided by what it was multiplied by


def with_constants_last(product: Value, factor: float, dtype: DType) -> Value:
    """A product of `Identities.with_constants`, which tinygrad moves behind all else: 1 / (2 y) · x / 4 becomes
    x / y / 8. What is beyond the largest float without them may be infinite."""
    if _noise.get() is not None or _is_narrow(dtype):
        return product
    with np.errstate(all="ignore"):
        beyond = np.isfinite(product.data) & (np.abs(product.data) / factor > _BEYOND * largest_of(dtype))
    return product._replace(error=np.where(beyond, np.inf, _some(product.error))) if beyond.any() else product


def _constant(node: UOp) -> float | None:
    if node.op is not Ops.CONST or node.arg is Invalid:
        return None
    return float(node.arg)


def _keeps(source: DType, target: DType) -> bool:
    """Whether a cast loses nothing and keeps what differs different."""
    if source is target or source is dtypes.bool:
        return True
    if dtypes.is_float(source) and dtypes.is_float(target):
        return source not in dtypes.weaks and significant_bits(source) <= significant_bits(target)
    both = dtypes.is_int(source) and dtypes.is_int(target) and source not in dtypes.weaks
    return (
        both and bool(dtypes.is_unsigned(source) == dtypes.is_unsigned(target)) and source.itemsize <= target.itemsize
    )


def _plain(node: UOp) -> tuple[UOp, int]:
    """The expression that a node has the value of, and with which sign."""
    sign = 1
    while True:
        match node.op:
            case Ops.CAST if _keeps(node.src[0].dtype, node.dtype):
                node = node.src[0]
                continue
            case Ops.NEG if dtypes.is_float(node.dtype):
                node, sign = node.src[0], -sign
                continue
            case Ops.MAX | Ops.WHERE if node.src[-1] is node.src[-2]:
                node = node.src[-1]
                continue
        a, b = node.src if len(node.src) == 2 else (node, node)
        neutral = {Ops.ADD: (0.0,), Ops.MUL: (1.0, -1.0) if dtypes.is_float(node.dtype) else (1.0,)}.get(node.op, ())
        factor = next((value for value in map(_constant, (b, a)) if value in neutral), None) if neutral else None
        if factor is None:
            return node, sign
        node, sign = (a if _constant(b) == factor else b), -sign if factor < 0 else sign


def _scaled(node: UOp) -> tuple[UOp, float]:
    """A node as an expression times a constant."""
    if node.op is Ops.NEG:
        return node.src[0], -1.0
    if node.op is Ops.MUL:
        for x, c in (node.src, node.src[::-1]):
            if (factor := _constant(c)) is not None:
                return x, factor
    return node, 1.0


def _not_negative(node: UOp, known: dict[UOp, bool]) -> bool:
    """Whether a right kernel can compute no negative value (NaN aside)."""
    if node not in known:
        known[node] = False  # a node is no part of itself
        known[node] = _made_of_squares(node, known)
    return known[node]


def _made_of_squares(node: UOp, known: dict[UOp, bool]) -> bool:
    if (value := _constant(node)) is not None:
        return value >= 0
    if dtypes.is_unsigned(node.dtype) or node.dtype is dtypes.bool or node.op in (Ops.EXP2, Ops.SQRT):
        return True
    match node.op:
        case Ops.MUL if _plain(node.src[0])[0] is _plain(node.src[1])[0] and dtypes.is_float(node.dtype):
            return _plain(node.src[0])[1] == _plain(node.src[1])[1]
        case Ops.CAST | Ops.RECIPROCAL | Ops.REDUCE:
            return _not_negative(node.src[0], known)
        case Ops.ADD | Ops.MUL:
            return all(_not_negative(side, known) for side in node.src)
        case Ops.MAX:
            return any(_not_negative(side, known) for side in node.src)
        case Ops.WHERE:
            return all(_not_negative(side, known) for side in node.src[1:])
    return False


# ---- Products that tinygrad computes as a complement: x / (1 + x) becomes 1 - 1 / (1 + x), which is never 0 · inf.
#
# After the rules for it in tinygrad/uop/symbolic.py (0.14.0). The result is as good as its distance from 1, not
# as its size: where x is small it may be 0.

_ROUNDINGS = 4  # of 1 + x, of its reciprocal (two), and of the difference


def complements(ast: UOp) -> dict[UOp, UOp]:
    """The x of every product in which x and 1 / (1 + x) come together, as factors of factors."""
    factors: dict[UOp, frozenset[UOp]] = {}
    found: dict[UOp, UOp] = {}
    for node in ast.toposort():
        if node.op is not Ops.MUL or not dtypes.is_float(node.dtype):
            continue
        a, b = (factors.get(side, frozenset((side,))) for side in node.src)
        factors[node] = a | b
        x = next((x for ours, theirs in ((a, b), (b, a)) for d in theirs for x in _below(d) if x in ours), None)
        if x is not None:
            found[node] = x
    return found


def _below(node: UOp) -> tuple[UOp, ...]:
    """The x of 1 / (1 + x), also times a constant below the line: tinygrad takes that out first."""
    if node.op is not Ops.RECIPROCAL:
        return ()
    below, factor = node.src[0], 0.0
    while factor != 1.0:
        below, factor = _scaled(below)
    if below.op is not Ops.ADD:
        return ()
    one, other = below.src
    return tuple(x for c, x in ((one, other), (other, one)) if c.op is Ops.CONST and c.arg == 1)


def as_complement(product: Value, x: Value, dtype: DType) -> Value:
    """The product with the error that it has as a complement too. An infinity times a complement that may be 0 is
    unknown: there that is NaN."""
    if _noise.get() is not None:
        return product
    size: NDArray[np.float64] = np.abs(product.data)
    with np.errstate(all="ignore"):
        share = np.abs(x.data / (1 + x.data))  # of the product: the rest is |product| / share
        off = _ROUNDINGS * unit_roundoff(dtype)
        error = np.where((share > 0) & np.isfinite(size), off * size / share, 0.0)
        error = np.where(np.isinf(size) & (share <= off), np.inf, np.nan_to_num(error))
    return product._replace(error=error if product.error is None else product.error + error)
