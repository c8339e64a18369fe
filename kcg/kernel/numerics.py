"""tinygrad's arithmetic in NumPy with running error bounds: what each operation computes, and how far off it may be.

The rules for the errors are in `kcg.kernel.evaluate`, which drives this module.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kcg.compat.tiny import DType, GroupOp, Ops, dtypes
from kcg.errors import VerificationError

Array = NDArray[Any]

CONFIDENT = 4.0
"""How many errors away a correct kernel may be: the largest seen over the tests' kernels and seeds is below 1.5."""

TIPPING = 8.0
"""A comparison whose sides are closer than so many errors may come out either way in a correct kernel."""

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
    """The values of one node. Arrays broadcast against each other."""

    data: Array  # float64 for floats, else the node's own integer or bool type (weak integers: int64)
    error: Array | None = None  # float64; None: exact
    valid: Array | None = None  # bool; None: everywhere
    wrapped: Array | None = None  # bool: an 8- or 16-bit result that overflowed; None: nowhere
    terms: tuple[Array, ...] = ()  # of a float sum of sums: what is added up


def settled(value: Value) -> Value:
    """The value for anybody but wrapping arithmetic and a store of its own width.

    C computes 8- and 16-bit integers in 32 bits, an interpreter in their own width: after an overflow, a wider cast, a
    comparison or a division may see either. So what overflowed is uncertain from here on.
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


def unit_roundoff(dtype: DType) -> float:
    """Half the distance of neighbouring floats, relative: 2**-24 for float32."""
    return 2.0 ** -_FLOATS[dtype][0]


def _representable(data: Array, dtype: DType) -> Array:
    """Where a float64 is a value of `dtype` (subnormals and overflow aside). False for float64, which is no test."""
    bits = _FLOATS[dtype][0]
    single = data.astype(np.float32)
    same = (single == data) & (bits <= 24)
    if bits < 24:
        same = same & ((single.view(np.int32) & ((1 << (24 - bits)) - 1)) == 0)
    return np.asarray(same)


def rounded(
    data: Array, error: Array | None, dtype: DType, ulps: float = 0.5, *, made_of: tuple[Array, ...] = ()
) -> Value:
    """A float result as `dtype` would hold it: its own rounding added to the operands' `error`.

    `ulps` 0.5 is an operation that rounds correctly, hence is exact where it can be; a larger one never is. A product
    or sum that is no number though all that it is `made_of` are (0 · inf) is uncertain: another order may give one.
    """
    bits, largest, floor = _FLOATS[dtype]
    size = np.abs(data)
    if ulps == 0.5 and bits < 24 and dtype is not dtypes.bfloat16:
        floor *= 2.0**-bits  # half a subnormal: arithmetic flushes those of float32's exponents only
    own = 2.0 * ulps * unit_roundoff(dtype) * size + floor * (size > 0)
    if ulps == 0.5:
        own = np.where(_representable(data, dtype), 0.0, own)
    total = own if error is None else own + error
    if not (size.size and size.max() <= largest):  # also where something is NaN
        # float32 and its like overflow to infinity everywhere; an 11-bit intermediate may be held in a wider register
        over = (size > largest) & np.isfinite(size)
        if dtype in (dtypes.float16, *dtypes.fp8s):
            total = np.where(over, np.inf, total)
        else:
            data = np.where(over, np.copysign(np.inf, data), data)
        unsure = np.zeros(()) if error is None else np.where(np.isinf(error), np.inf, 0.0)
        if made_of:
            numbers = np.logical_and.reduce([~np.isnan(part) for part in np.broadcast_arrays(*made_of)])
            unsure = np.where(np.isnan(data) & numbers, np.inf, unsure)
        total = np.where(np.isfinite(data), total, unsure)
    total = np.where(np.isnan(total), np.inf, total)
    return Value(data, total if np.any(total) else None)


def cast(value: Value, source: DType, target: DType) -> Value:
    """CAST, as C converts: to an integer by truncation, to a narrower integer by wrapping."""
    if source is target:
        return value
    wanted = numpy_dtype(target)
    if wanted.kind in "iu" and value.wrapped is not None and wanted.itemsize <= value.data.itemsize:
        value = value._replace(wrapped=None)  # truncates explicitly: all agree
    data, error, valid = settled(value)[:3]
    if target is dtypes.bool:
        unsure = None if error is None else np.where(np.abs(data) <= TIPPING * error, 1.0, 0.0)
        return Value(data != 0, unsure, valid)
    if dtypes.is_float(target):
        data = data.astype(np.float64)
        if target is dtypes.weakfloat or (dtypes.is_float(source) and _FLOATS[source][0] <= _FLOATS[target][0]
                                          and source is not dtypes.weakfloat):  # fmt: skip
            return Value(data, error, valid)
        return rounded(data, error, target)._replace(valid=valid)
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


def alu(op: Ops, dtype: DType, operands: Sequence[Value], types: Sequence[DType]) -> Value:
    """One arithmetic operation with result `dtype`. Raises VerificationError for one that is not known."""
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
        result = _compare(op, *(cast(v, t, common) for v, t in zip(operands, types, strict=True)))
    else:
        values = [cast(v, t, dtype) for v, t in zip(operands, types, strict=True)]
        if dtypes.is_float(dtype):
            result = _float_alu(op, dtype, values)
        else:
            result = _int_alu(op, dtype, values)
            if op in _WRAPPING and numpy_dtype(dtype).kind in "iu" and numpy_dtype(dtype).itemsize <= 2:
                result = result._replace(wrapped=_overflow(op, values, result.data))
    return result if op is Ops.WHERE else result._replace(valid=valid)


def _overflow(op: Ops, values: Sequence[Value], narrow: Array) -> Array | None:
    """Where a narrow integer result, or an operand already, is not the integer that 32 bits would hold."""
    wide = _int_alu(op, dtypes.int32, [v._replace(data=v.data.astype(np.int32)) for v in values]).data
    over = np.asarray(wide != narrow)
    for value in values:
        if value.wrapped is not None:
            over = over | value.wrapped
    return over if over.any() else None


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
        gap = np.where((yes.data == no.data) | np.isnan(gap), 0.0, gap)
        both = gap + _some(yes.error) + _some(no.error)
        error = np.where(condition.error > 0, both, _some(error))
    valid: Array | None = None
    if yes.valid is not None or no.valid is not None or condition.valid is not None:
        everywhere = np.ones((), bool)
        parts = [everywhere if v.valid is None else v.valid for v in (condition, yes, no)]
        valid = parts[0] & np.where(condition.data, parts[1], parts[2])
    data = np.where(condition.data, yes.data, no.data)
    return Value(data, error, valid)


def _compare(op: Ops, a: Value, b: Value) -> Value:
    data = {Ops.CMPLT: np.less, Ops.CMPNE: np.not_equal, Ops.CMPEQ: np.equal}[op](a.data, b.data)
    if (error := _plus(a.error, b.error)) is None:
        return Value(data)
    gap = np.abs(a.data.astype(np.float64) - b.data.astype(np.float64))
    unsure = (error > 0) & ((gap <= TIPPING * error) | np.isinf(error))
    return Value(data, np.where(unsure, 1.0, 0.0) if unsure.any() else None)


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
    error = _plus(total.error, own if own.any() else None)
    return total._replace(error=error, terms=terms if len(terms) < MOST_TERMS else ())


def _float_alu(op: Ops, dtype: DType, values: Sequence[Value]) -> Value:
    a, b = values[0], values[1] if len(values) > 1 else values[0]
    x, y = a.data, b.data
    match op:
        case Ops.NEG:
            return Value(-x, a.error)
        case Ops.TRUNC:
            if a.error is None:
                return Value(np.trunc(x))
            spread = np.trunc(x + TIPPING * a.error) - np.trunc(x - TIPPING * a.error)
            return Value(np.trunc(x), np.where(np.isnan(spread), np.inf, spread))
        case Ops.MAX:  # tinygrad compares and selects: with NaN the result depends on the order
            unsure = np.where(np.isnan(x) | np.isnan(y), np.inf, 0.0)
            either = np.maximum(_some(a.error), _some(b.error)) + unsure
            return Value(np.maximum(x, y), either if either.any() else None)
        case Ops.ADD:
            return _reordered(rounded(x + y, _plus(a.error, b.error), dtype, made_of=(x, y)), a, b, dtype)
        case Ops.SUB:
            return rounded(x - y, _plus(a.error, b.error), dtype, made_of=(x, y))
        case Ops.MUL:
            cross = None if a.error is None or b.error is None else _times(a.error, b.error)
            return rounded(x * y, _plus(_times(x, b.error), _times(y, a.error), cross), dtype, made_of=(x, y))
        case Ops.MULACC:
            product = _float_alu(Ops.MUL, dtype, values[:2])
            return _float_alu(Ops.ADD, dtype, (product, values[2]))
        case Ops.RECIPROCAL:
            return _float_alu(Ops.FDIV, dtype, (Value(np.ones(())), a))
        case Ops.FDIV:
            # the divisor may be smaller by its error: no bound where that reaches 0
            near = np.abs(y) if b.error is None else np.maximum(np.abs(y) - b.error, 0.0)
            error = _plus(_times(1 / near, a.error), _times(x / (y * near), b.error))
            return rounded(x / y, error, dtype, 1.0)
        case Ops.SQRT:
            root = np.sqrt(x)
            passed = None if a.error is None else np.minimum(_some(_times(0.5 / root, a.error)), np.sqrt(a.error))
            return rounded(root, passed, dtype, 1.0)
        case Ops.EXP2:
            power = np.exp2(x)
            passed = None if a.error is None else _times(power, np.expm1(LOG_2 * a.error))
            return rounded(power, passed, dtype, 2.0)
        case Ops.LOG2:
            # relative to 1 near 1: hardware gives log2 with an absolute error there
            near = np.abs(x) if a.error is None else np.maximum(np.abs(x) - a.error, 0.0)
            absolute = np.where(np.isfinite(x) & (x > 0), 4 * unit_roundoff(dtype), 0.0)
            return rounded(np.log2(x), _plus(_times(1 / (LOG_2 * near), a.error), absolute), dtype, 2.0)
        case Ops.SIN:
            absolute = np.where(x == 0, 0.0, 4 * unit_roundoff(dtype))
            passed = None if a.error is None else np.minimum(a.error, 2.0)
            return rounded(np.sin(x), _plus(passed, absolute), dtype, 2.0)
        case Ops.POW:
            power = np.power(x, y)
            passed = _plus(_times(y * power / x, a.error), _times(power * np.log(np.abs(x)), b.error))
            # usually computed as exp2(y · log2 x): the exponent's rounding counts as often as the exponent is large
            return rounded(
                power, passed, dtype, 2.0 * (1 + float(np.nanmax(np.abs(y * np.log2(np.abs(x) + 2.0**-126)))))
            )
        case _:
            raise VerificationError(f"no reference for {op.name} of floats")


def _some(error: Array | None) -> Array:
    return np.zeros(()) if error is None else error


def _int_alu(op: Ops, dtype: DType, values: Sequence[Value]) -> Value:
    a, b = values[0], values[1] if len(values) > 1 else values[0]
    x, y = a.data, b.data
    errors = [v.error for v in values]
    unsure = _all_or_nothing(errors)
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
            by_zero = _all_or_nothing([np.where(y == 0, 1.0, 0.0)]) if (y == 0).any() else None  # undefined in C
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
