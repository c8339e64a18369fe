"""Kernels drawn at random: odd extents, layouts, formats, batch ranges, what happens before and after."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from tinygrad import Tensor, Variable, dtypes

from kcg.compat.tiny import UOp
from tests.kernels import empty, kernels_of

FLOATS = ("float32", "float16", "bfloat16")
FORMATS = {dtypes.float16: "float16", dtypes.bfloat16: "bfloat16"}
FP8 = ("fp8e4m3", "fp8e5m2")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")


def _stored(rng: Random, shape: tuple[int, ...], dtype: str) -> Tensor:
    """An input whose layout in memory is another order of its axes, with a part of it left out, or flipped."""
    order = list(range(len(shape)))
    rng.shuffle(order)
    pads = [rng.choice((0, 0, 0, 3)) for _ in shape]
    whole = empty(*(shape[axis] + pads[axis] for axis in order), dtype=dtype)
    x = whole.permute(*(order.index(axis) for axis in range(len(shape))))
    x = x.shrink(tuple((pad, size + pad) for pad, size in zip(pads, shape, strict=True)))
    return x.flip(rng.randrange(len(shape))) if shape and rng.random() < 0.2 else x


def _size(rng: Random) -> int:
    return rng.choice((1, 2, 3, 5, 7, 8, 13, 16, 17, 24, 31, 32, 33, 40))


def _after(rng: Random, x: Tensor) -> Tensor:
    """Up to two elementwise operations on a result."""
    rows: list[Callable[[Tensor], Tensor]] = [
        lambda x: x + _stored(rng, _shape(x)[-1:], FORMATS.get(x.dtype, "float32")),
        lambda x: x * _stored(rng, _shape(x), "float32").cast(x.dtype),
        lambda x: x.gelu(),
        lambda x: x.silu(),
        lambda x: (_stored(rng, _shape(x)[-1:], "int32") > 0).where(x, 0),
        lambda x: x.pad((*((0, 0),) * (x.ndim - 1), (1, 2)), value=1.5),
        lambda x: x.cast("float32").cast("bfloat16"),
        lambda x: x.cat(x + 1, dim=0),
    ]
    for step in rng.sample(rows, rng.choice((0, 1, 2))) if x.ndim else ():
        x = step(x)
    return x


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(int(size) for size in x.shape)


def _before(rng: Random, x: Tensor) -> Tensor:
    rows: list[Callable[[Tensor], Tensor]] = [
        lambda x: x,
        lambda x: x.relu(),
        lambda x: x * 0.5 + 1,
        lambda x: x.silu(),
        lambda x: x.relu().square(),
        lambda x: x * _stored(rng, _shape(x), "float32").cast(x.dtype),
    ]
    return rng.choice(rows)(x)


def elementwise(rng: Random) -> Tensor:
    shape = tuple(_size(rng) for _ in range(rng.choice((1, 2, 2, 3))))
    if rng.random() < 0.4:
        kind = rng.choice(INTEGERS)
        a, b = _stored(rng, shape, kind), _stored(rng, shape, kind)
        return rng.choice([a + b, a * b, a ^ b, a & b, (a < b).where(a, b), a.maximum(b), a // 3, a % 5, a != b])
    kind = rng.choice(FLOATS)
    x = _before(rng, _stored(rng, shape, kind))
    return _after(rng, x.permute(*rng.sample(range(len(shape)), len(shape))))


def reduction(rng: Random) -> Tensor:
    shape = tuple(_size(rng) for _ in range(rng.choice((1, 2, 3))))
    if rng.random() < 0.2:
        x = _stored(rng, shape, rng.choice(INTEGERS))
        return rng.choice([x.sum, x.max])(axis=rng.randrange(len(shape)))
    axes = tuple(rng.sample(range(len(shape)), rng.choice((1, len(shape)))))
    x = _before(rng, _stored(rng, shape, rng.choice(FLOATS)))
    done = rng.choice([x.sum, x.max, x.mean, x.min, x.square().sum])(axis=axes)
    return _after(rng, done)


def contraction(rng: Random) -> Tensor:
    m, n, k = (rng.choice((8, 9, 16, 17, 24, 33, 40)) for _ in range(3))
    batch = tuple(_size(rng) for _ in range(rng.choice((0, 0, 1))))
    batch = rng.choice((batch, batch, (2, *batch)))
    kind = rng.choice(FLOATS)
    a = _before(rng, _stored(rng, (*batch, m, k), kind))
    b = _stored(rng, (*batch, k, n), kind)
    b = _before(rng, b) if rng.random() < 0.3 else b
    return _after(rng, a @ b)


def narrow_contraction(rng: Random) -> Tensor:
    """Operands of 8 bits, multiplied as they are or widened before, or one of them beside a wider one."""
    m, n, k = (rng.choice((8, 9, 16, 17, 33, 40, 64)) for _ in range(3))
    batch = tuple(_size(rng) for _ in range(rng.choice((0, 0, 1))))
    kind = rng.choice((*FP8, "int8"))
    whole = dtypes.int32 if kind == "int8" else dtypes.float32
    a, b = _stored(rng, (*batch, m, k), kind), _stored(rng, (*batch, k, n), kind)
    done = rng.choice(
        [
            lambda: a.dot(b, dtype=whole),
            lambda: a.cast(whole) @ b.cast(whole),
            lambda: _stored(rng, (*batch, m, k), "bfloat16") @ b.cast("bfloat16"),
            lambda: a.cast("float16") @ _stored(rng, (*batch, k, n), rng.choice(FP8)).cast("float16"),
        ]
    )()
    if not dtypes.is_float(done.dtype):
        return done + _stored(rng, _shape(done)[-1:], "int32")
    return _after(rng, done * _stored(rng, (m, 1), "float32")) if rng.random() < 0.5 else _after(rng, done)


def rows(rng: Random) -> Tensor:
    """Several reductions of one row: softmax, norms, variances, the place of the largest."""
    shape = (*(_size(rng) for _ in range(rng.choice((1, 2)))), rng.choice((7, 33, 64, 100, 300)))
    x = _before(rng, _stored(rng, shape, rng.choice(FLOATS)))
    axis = rng.randrange(len(shape))
    return rng.choice(
        [
            lambda: x.softmax(axis),
            lambda: x.log_softmax(axis),
            lambda: x.layernorm(axis),
            lambda: x.var(axis),
            lambda: x.argmax(axis),
            lambda: x.cumsum(axis),
            lambda: (x > 0).any(axis),
        ]
    )()


def convolution(rng: Random) -> Tensor:
    channels, out = rng.choice((1, 3, 4)), rng.choice((2, 8, 9))
    window, size = rng.choice((1, 2, 3)), rng.choice((5, 8, 9))
    kind = rng.choice(FLOATS)
    x = _stored(rng, (rng.choice((1, 2)), channels, size, size), kind)
    w = _stored(rng, (out, channels, window, window), kind)
    return _after(rng, x.conv2d(w, stride=rng.choice((1, 2)), padding=rng.choice((0, 1)), dilation=rng.choice((1, 2))))


def gather(rng: Random) -> Tensor:
    table, width, count = (_size(rng) for _ in range(3))
    return _after(rng, _stored(rng, (table, width), rng.choice(FLOATS))[_stored(rng, (count,), "int32")])


def symbolic(rng: Random) -> Tensor:
    length = Variable("length", 1, 40).bind(rng.randint(1, 40))
    x = empty(40, 24, dtype=rng.choice(FLOATS))
    weight = empty(24, 17, dtype="float32")
    return rng.choice(
        [
            lambda: (x[:length] * 2).sum(0),
            lambda: (x[:length] + 1).contiguous(),
            lambda: x[:length].sum(1).contiguous(),
            lambda: (x[:length].cast("float32") @ weight).contiguous(),
            lambda: x[:length].max(1).contiguous(),
        ]
    )()


FAMILIES = (elementwise, reduction, rows, contraction, narrow_contraction, convolution, gather, symbolic)


def random_kernel(family: Callable[[Random], Tensor], seed: int) -> UOp:
    """The largest kernel of a random tensor of a family."""
    kernels: list[UOp] = []
    while not kernels:
        rng = Random(f"{family.__name__}{seed}")
        kernels = kernels_of(family(rng))
        seed += 1000
    return max(kernels, key=lambda ast: math.prod(int(n.vmax) + 1 for n in ast.toposort() if n.op.name == "RANGE"))
