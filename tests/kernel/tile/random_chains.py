"""Chains of kernels drawn at random: values of rows and what is made of the results of matmuls, in odd extents, layouts
and formats, some of them stored in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random

from tinygrad import Tensor, dtypes

from kcg.types import Region, Sequence
from tests.chains import sequence_of
from tests.kernel.tile.random_kernels import FLOATS, FORMATS, _shape, _stored
from tests.kernels import empty

LENGTHS = (3, 7, 8, 16, 17, 32, 33, 48, 64, 100)  # of rows
LONG = (300, 512, 700, 1100)
SMALL = (1, 2, 3, 5, 8)


def _between(rng: Random, x: Tensor, share: float = 0.4) -> Tensor:
    """A value, at random stored as it is or in a narrower format."""
    if rng.random() > share:
        return x
    return rng.choice([x, x.cast(rng.choice(FLOATS)) if dtypes.is_float(x.dtype) else x]).contiguous()


def _row_functions(rng: Random, axes: tuple[int, ...]) -> list[Callable[[Tensor], Tensor]]:
    """What is made of a row and given back to its elements."""
    return [
        lambda x: x - x.sum(axes, keepdim=True),
        lambda x: x * x.max(axes, keepdim=True),
        lambda x: x + x.min(axes, keepdim=True) - x.mean(axes, keepdim=True),
        lambda x: (x - x.mean(axes, keepdim=True)) * (x.var(axes, keepdim=True) + 1e-3).rsqrt(),
        lambda x: x * (x.square().mean(axes, keepdim=True) + 1e-6).rsqrt(),
        lambda x: x.softmax(axes[0]) if len(axes) == 1 else x.exp() / x.exp().sum(axes, keepdim=True),
        lambda x: x + (x * 0.1 + 1).prod(axes, keepdim=True),
        lambda x: (x > x.mean(axes, keepdim=True)).where(x, -x),
    ]


def _element_functions(rng: Random) -> list[Callable[[Tensor], Tensor]]:
    return [
        lambda x: x * (1 + _stored(rng, _shape(x)[-1:], FORMATS.get(x.dtype, "float32"))).cast(x.dtype),
        lambda x: x + _stored(rng, (*_shape(x)[:-1], 1), "float32").cast(x.dtype),
        lambda x: x * _stored(rng, (1,) * x.ndim, "float32").cast(x.dtype),
        lambda x: x + _stored(rng, _shape(x), rng.choice(FLOATS)).cast(x.dtype),
        lambda x: x.silu(),
        lambda x: x * 0.125 + 1,
        lambda x: (_stored(rng, _shape(x), "int32") > 0).where(x, 0),
        lambda x: (_stored(rng, _shape(x)[-1:], "bool")).where(x, 0.5),
        lambda x: x.cast(rng.choice(FLOATS)),
        lambda x: (x * 20).cast(rng.choice(("int8", "int16", "int32", "uint8"))).cast("float32"),
        lambda x: x.pad((*((0, 0),) * (x.ndim - 1), (1, 2))),
        lambda x: x[..., 1:] - x[..., :-1] if _shape(x)[-1] > 3 else x,
        lambda x: _turned(rng, x) if _shape(x)[-1] % 2 == 0 else -x,
        lambda x: x + _gathered(rng, _shape(x)),
    ]


def _turned(rng: Random, x: Tensor) -> Tensor:
    """Pairs of neighbours, turned by tables."""
    *outer, length = _shape(x)
    pairs = x.reshape(*outer, length // 2, 2)
    cos, sin = (_stored(rng, (*outer[-1:], length // 2), "float32").cast(x.dtype) for _ in range(2))
    one, other = pairs[..., 0], pairs[..., 1]
    return Tensor.stack(one * cos - other * sin, one * sin + other * cos, dim=-1).reshape(*outer, length)


def _gathered(rng: Random, shape: tuple[int, ...]) -> Tensor:
    """For each row, one of a table's, by an index."""
    *outer, length = shape
    count = math.prod(outer)
    return empty(9, length)[(empty(count, dtype="int32").abs() % 9)].reshape(shape)


def _as_stored(rng: Random, x: Tensor) -> Tensor:
    """An output, at random in another format or order."""
    x = x.cast(rng.choice(FLOATS)) if dtypes.is_float(x.dtype) else x
    if x.ndim > 1 and rng.random() < 0.3:
        x = x.permute(*rng.sample(range(x.ndim), x.ndim))
    elif x.ndim > 1 and rng.random() < 0.2:
        x = x.reshape(-1, _shape(x)[-1])
    return x.contiguous()


def rows(rng: Random) -> tuple[Tensor, ...]:
    """Functions of rows and of elements in turn; at random an intermediate or a value per row is stored as well."""
    axes = rng.choice((1, 1, 1, 2))
    outer = tuple(rng.choice(SMALL) for _ in range(rng.randint(0, 4 - axes)))
    inner = (rng.choice(LENGTHS),) if axes == 1 else (rng.choice((2, 3, 4, 5)), rng.choice((4, 7, 8, 16)))
    over = tuple(range(-axes, 0))
    x = _stored(rng, (*outer, *inner), rng.choice(FLOATS))
    also: list[Tensor] = []
    for number in range(rng.randint(1, 4)):
        functions = _element_functions(rng) if number % 2 else _row_functions(rng, over)
        x = _between(rng, rng.choice(functions)(x))
        if not also and number == 1 and rng.random() < 0.3:
            x = x.contiguous()
            also.append(x)
    if not also and rng.random() < 0.3:
        also.append(rng.choice([x.float().sum, x.max, x.float().mean])(over).contiguous())
    return (_as_stored(rng, x), *also)


def _of_pairs(x: Tensor) -> Tensor:
    """A value of each pair of neighbours, given to both."""
    pairs = x.reshape(_shape(x)[0], -1, 2)
    return (pairs.square().mean(-1, keepdim=True) + 1).rsqrt().expand(pairs.shape).reshape(x.shape)


def long_rows(rng: Random) -> tuple[Tensor, ...]:
    """Rows that a program may go through in loops: reductions after each other and of several lengths, some masked."""
    x = _stored(rng, (rng.choice((1, 2, 3)), rng.choice(LONG)), rng.choice(FLOATS))
    length = _shape(x)[-1]
    mask = (empty(*_shape(x), dtype="int32") > 0).where(0.0, -float("inf"))
    wide = x.float()
    choices: list[Callable[[], tuple[Tensor, ...]]] = [
        lambda: ((wide * 0.3 + mask).softmax(-1),),
        lambda: (wide.log_softmax(-1), wide.logsumexp(-1)),
        lambda: (wide.softmax(-1).contiguous().layernorm(), wide.max(-1)),
        lambda: ((wide - wide.max(-1, keepdim=True).contiguous()).exp2().sum(-1), wide.max(-1).contiguous()),
        lambda: (wide.layernorm().cast(x.dtype) * _stored(rng, (length,), "float32"),),
        lambda: (wide.var(-1).contiguous(), (wide - wide.mean(-1, keepdim=True)).square().contiguous()),
        lambda: (wide.softmax(-1).sparse_categorical_crossentropy(empty(_shape(x)[0], dtype="int32").abs() % 3),),
        lambda: (wide * _of_pairs(wide) - wide.mean(-1, keepdim=True),),
        lambda: ((wide * 0.01 + 1).prod(-1, keepdim=True) * (wide.sum(-1, keepdim=True) + wide),),
        lambda: (wide.argmax(-1), wide - wide.max(-1, keepdim=True)),
    ]  # fmt: skip
    return tuple(y.contiguous() for y in rng.choice(choices)())


def integers(rng: Random) -> tuple[Tensor, ...]:
    """Rows of integers, stored in between in types that they overflow."""
    shape = (*(rng.choice(SMALL) for _ in range(rng.randint(1, 2))), rng.choice(LENGTHS))
    x = _stored(rng, shape, rng.choice(("int32", "int16", "uint8", "int8")))
    for _ in range(rng.randint(1, 3)):
        kind = rng.choice(("int8", "uint8", "int16", "uint16", "int32"))
        made: list[Callable[[Tensor], Tensor]] = [
            lambda x: x * 3 + x.sum(-1, keepdim=True).cast(x.dtype),
            lambda x: x.maximum(7) - x.max(-1, keepdim=True),
            lambda x: (x > x.min(-1, keepdim=True)).where(x * 5, 1),
            lambda x: x * 100 + _stored(rng, _shape(x)[-1:], "int32").cast(x.dtype),
            lambda x: (x.cast("int32") // 7) ^ x.cast("int32"),
        ]
        x = rng.choice(made)(x).cast(kind)
        x = x.contiguous() if rng.random() < 0.7 else x
    last = x.cast("int32")
    return ((last * 2 - last.sum(-1, keepdim=True)).contiguous(),)


def products(rng: Random) -> tuple[Tensor, ...]:
    """The result of a matmul, stored, and one or two things that are made of it."""
    kind = rng.choice(FLOATS)
    rows, heads, size, terms = rng.choice((7, 16, 24, 33)), rng.choice((1, 2, 4)), rng.choice((16, 32)), 33
    terms = rng.choice((16, 33, 48))
    x = _stored(rng, (rows, terms), kind)
    if rng.random() < 0.3:  # what is made of it before
        x = rng.choice([lambda: x.silu(), lambda: x * _stored(rng, (terms,), kind), lambda: x.gelu().contiguous()])()
    y = x @ _stored(rng, (terms, heads * size), kind)
    if rng.random() < 0.4:
        y = y + _stored(rng, (heads * size,), kind)
    y = y.cast(kind).contiguous()
    if rng.random() < 0.3:  # the sum of two
        y = (_stored(rng, (rows, 40), kind) @ _stored(rng, (40, heads * size), kind) + y).contiguous()
    found = [_made_of(rng, y, heads, size) for _ in range(rng.choice((1, 1, 2)))]
    outputs = [_after_heads(rng, z, kind) for z in found]
    return (*outputs, y) if rng.random() < 0.3 else tuple(outputs)


def _made_of(rng: Random, y: Tensor, heads: int, size: int) -> Tensor:
    parts = y.reshape(_shape(y)[0], heads, size)
    choices: list[Callable[[], Tensor]] = [
        lambda: parts.float().gelu(),
        lambda: parts + _stored(rng, _shape(parts), "float32").cast(y.dtype),
        lambda: parts.float() * (parts.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt(),
        lambda: parts.float().softmax(-1) * _stored(rng, (size,), "float32"),
        lambda: _turned(rng, parts.float()),
        lambda: _turned(rng, parts.float() - parts.float().max(-1, keepdim=True)),
        lambda: parts[:, : max(1, heads // 2)].float().silu(),
        lambda: parts[:, heads // 2 :] * 2,
    ]
    return rng.choice(choices)()


def _after_heads(rng: Random, z: Tensor, kind: str) -> Tensor:
    z = z.cast(kind)
    return (z.permute(1, 0, 2) if rng.random() < 0.5 else z).contiguous()


def prologues(rng: Random) -> tuple[Tensor, ...]:
    """A matmul whose operand is stored by a kernel of its own, and its result by another."""
    kind = rng.choice(FLOATS)
    rows, terms, columns = rng.choice((9, 16, 33)), rng.choice((16, 24, 40)), rng.choice((16, 24, 32, 33))
    x = _stored(rng, (rows, terms), kind)
    x = rng.choice([x.silu(), x * _stored(rng, (terms,), kind), x + _stored(rng, (rows, terms), kind)]).contiguous()
    w = _stored(rng, (terms, columns), kind)
    w = (w * _stored(rng, (1, columns), kind)).contiguous() if rng.random() < 0.3 else w
    y = x @ w
    return (rng.choice([y, (y + _stored(rng, (columns,), kind)).relu(), y.float().sigmoid()]).contiguous(),)


FAMILIES = (rows, long_rows, integers, products, prologues)


def random_chain(family: Callable[[Random], tuple[Tensor, ...]], seed: int) -> Sequence:
    """The calls of a random chain of a family: at least two."""
    while True:
        sequence = sequence_of(*family(Random(f"{family.__name__} of several {seed}")))
        if len(sequence.calls) > 1:
            return sequence
        seed += 1000


def random_regions(sequence: Sequence, rng: Random) -> Iterator[Region]:
    """All calls of a sequence as one region, and some of them with all that is between these."""
    everything = range(len(sequence.calls))
    yield sequence.region(*everything)
    if len(everything) > 2 and len(chosen := _with_those_between(sequence, rng.sample(everything, 2))) > 1:
        yield sequence.region(*chosen)


def _with_those_between(sequence: Sequence, chosen: list[int]) -> list[int]:
    """Some calls, and those through which what one of them writes comes to another."""
    made = [{call.views[slot].buffer for slot in call.writes} for call in sequence.calls]
    used = [{call.views[slot].buffer for slot in call.reads} for call in sequence.calls]
    after, before = set(chosen), set(chosen)
    for place in range(len(made)):
        after |= {place} if any(made[other] & used[place] for other in after if other < place) else set()
    for place in reversed(range(len(made))):
        before |= {place} if any(made[place] & used[other] for other in before if other > place) else set()
    return sorted(after & before)
