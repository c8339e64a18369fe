"""Packed weights: blocks of bytes, as GGUF files hold them, and how they become float16 weights inside a kernel.

A quantised tensor is a row of blocks. A block holds some weights as small integers, with one or more scales. Nothing is
unpacked ahead: a weight is a lazy tensor over the bytes, so each kernel that multiplies with it unpacks it on the way.
The layouts are those of llama.cpp's `ggml-common.h`. The operations and their order are those of tinygrad's own reader
of such files (`tinygrad/llm/gguf.py` at a9069c177a9da9cca18593edf55acd2e6073cca6, the same file as in 0.14.0): a
kernel of kcg's workload is then the kernel of that application, with one identity. A test compares them, and another
one the numbers with a reading in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinygrad import Tensor, dtypes

from kcg.compat.ggml import table
from kcg.workloads.family import generator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Tables = Callable[[str, Sequence[float], str], Tensor]
"""Name, values and dtype of a table -> a flat tensor of it."""


@dataclass(frozen=True)
class Format:
    """How blocks of bytes become weights."""

    weights: int  # in a block
    nbytes: int  # of a block
    unpack: Callable[[Tensor, Tables], Tensor]  # (blocks, nbytes) of uint8 -> floats, block by block
    scale: Scale | None = None  # how random blocks are scaled; None where the bytes are the weights themselves

    def bytes_of(self, count: int) -> int:
        """The bytes of so many weights. Raises ValueError where they are no whole blocks."""
        if count % self.weights:
            raise ValueError(f"{count} weights are no whole blocks of {self.weights}")
        return count // self.weights * self.nbytes


@dataclass(frozen=True)
class Scale:
    """Where the scale of a block lies, and which one gives random bytes weights of deviation 1."""

    at: int  # byte of the block at which it begins
    unit: float  # the deviation of weights whose other bytes are random and whose scale is 1
    minimum_at: int | None = None  # byte of a second one, which moves the weights so that their mean is 0
    minimum: float = 0.0  # times the scale
    is_exponent: bool = False  # it is a byte, an exponent of 2; else a float16


# ---- Parts of blocks.


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at that byte of each block, in float32: (blocks, 1)."""
    return blocks[:, at : at + 2].bitcast(dtypes.float16).cast(dtypes.float32)


def _parts(values: Tensor, bits: int) -> Tensor:
    """Of bytes (…, n) their parts of `bits` bits, (…, n·8/bits): the lowest of all bytes, then the next of all."""
    powers = Tensor.const(tuple(1 << shift for shift in range(0, 8, bits)), values.dtype)
    shifted = values.unsqueeze(-1).div(powers, rounding_mode="trunc")
    return shifted.bitwise_and((1 << bits) - 1).transpose(-1, -2).flatten(-2)


def _signed(values: Tensor) -> Tensor:
    return values.bitcast(dtypes.int8)


def _signs(values: Tensor) -> Tensor:
    """1 or -1 for each bit of bytes (…, n): (…, 8·n) as of `_parts`."""
    return (_parts(values, 1) == 0).where(1.0, -1.0)


def _nibbles_by_byte(values: Tensor) -> Tensor:
    """The lower and the upper half of each byte (n, m) beside each other: (n, 2·m)."""
    return Tensor.stack(values.bitwise_and(0xF), values.rshift(4), dim=2)


# ---- The formats.


def _float32(blocks: Tensor, _: Tables) -> Tensor:
    return blocks.flatten().bitcast(dtypes.float32)


def _float16(blocks: Tensor, _: Tables) -> Tensor:
    return blocks.flatten().bitcast(dtypes.float16)


def _q4_0(blocks: Tensor, _: Tables) -> Tensor:
    return (_signed(_parts(blocks[:, 2:], 4)) - 8) * _half(blocks, 0)


def _q4_1(blocks: Tensor, _: Tables) -> Tensor:
    scale, minimum = _half(blocks, 0), _half(blocks, 2)
    return _signed(_parts(blocks[:, 4:], 4)) * scale + minimum


def _q5(blocks: Tensor, fifth_at: int) -> tuple[Tensor, Tensor]:
    """Scale, and integers in [0, 32) whose fifth bits begin at that byte."""
    scale = _half(blocks, 0)
    fifth = _parts(blocks[:, fifth_at : fifth_at + 4], 1).reshape((-1, 8, 4)).transpose(-1, -2).flatten(-2)
    return scale, _signed(_parts(blocks[:, fifth_at + 4 :], 4)) + _signed(fifth) * 16


def _q5_0(blocks: Tensor, _: Tables) -> Tensor:
    scale, values = _q5(blocks, 2)
    return values * scale + -16 * scale


def _q5_1(blocks: Tensor, _: Tables) -> Tensor:
    scale, values = _q5(blocks, 4)
    return values * scale + _half(blocks, 2)


def _q8_0(blocks: Tensor, _: Tables) -> Tensor:
    return _half(blocks, 0) * _signed(blocks[:, 2:])


def _of_eight_groups(blocks: Tensor, values: Tensor) -> Tensor:
    """Of Q4_K and Q5_K: integers (blocks, 8, 32) times a 6-bit scale of their group, minus a 6-bit minimum.

    The 12 bytes of scales hold four scales, four minima, then the low halves of the four others of both; the upper two
    bits of these are those of the first eight bytes.
    """
    scale, minimum = (_half(blocks, at).unsqueeze(-1) for at in (0, 2))
    packed = blocks[:, 4:16]
    early, late = (packed[:, at : at + 4] for at in (0, 4))
    both = packed[:, 8:12]
    scales = early.bitwise_and(63).cat(both.bitwise_and(0xF).bitwise_or(early.rshift(6).lshift(4)), dim=-1)
    minima = late.bitwise_and(63).cat(both.rshift(4).bitwise_or(late.rshift(6).lshift(4)), dim=-1)
    return (scale * scales.unsqueeze(-1) * values - minimum * minima.unsqueeze(-1)).flatten(-2)


def _halves_of_groups(blocks: Tensor, at: int) -> Tensor:
    """128 bytes in four rows, the lower halves of each row and then its upper ones: (blocks, 8, 32)."""
    return _nibbles_by_byte(blocks[:, at : at + 128].reshape(-1, 4, 32)).reshape(-1, 8, 32)


def _q4_k(blocks: Tensor, _: Tables) -> Tensor:
    return _of_eight_groups(blocks, _halves_of_groups(blocks, 16))


def _q5_k(blocks: Tensor, _: Tables) -> Tensor:
    fifth = _parts(blocks[:, 16:48], 1).reshape(-1, 8, 32)
    return _of_eight_groups(blocks, _halves_of_groups(blocks, 48) + fifth * 16)


def _q6_k(blocks: Tensor, _: Tables) -> Tensor:
    low = _parts(blocks[:, :128].reshape((-1, 2, 64)), 4)
    high = _parts(blocks[:, 128:192].reshape((-1, 2, 32)), 2).lshift(4)
    scales = _signed(blocks[:, 192:208]).unsqueeze(-1).expand((-1, 16, 16)).reshape((-1, 256))
    scale = _half(blocks, 208)
    return scale * (_signed(low.bitwise_or(high)) - 32).flatten(-2) * scales


def _iq2_s(blocks: Tensor, tables: Tables) -> Tensor:
    scale = _half(blocks, 0).reshape((-1, 1, 1, 1))
    fine = _parts(blocks[:, 74:82].reshape((-1, 8, 1)), 4).reshape((-1, 16))
    scales = scale * (fine.cast(dtypes.float32) + 0.5).reshape((-1, 16, 1, 1)) * 0.25
    signs = _signs(blocks[:, 34:66].reshape((-1, 32, 1))).reshape((-1, 16, 2, 8))
    high = _parts(blocks[:, 66:74].reshape((-1, 8, 1)), 2).reshape((-1, 32)).cast(dtypes.uint16)
    rows = blocks[:, 2:34].cast(dtypes.uint16) + high.lshift(8)
    return (scales * _grid(tables, "iq2s_grid", 8)[rows].reshape((-1, 16, 2, 8)) * signs).flatten(-3)


def _iq3_xxs(blocks: Tensor, tables: Tables) -> Tensor:
    scale = _half(blocks, 0).reshape((-1, 1, 1, 1))
    words = blocks[:, 66:98].bitcast(dtypes.uint32)  # four times seven bits of signs, and four of a scale
    scales = scale * (words.rshift(28).cast(dtypes.float32) + 0.5).reshape((-1, 8, 1, 1)) * 0.5
    sevens = words.unsqueeze(-1).rshift(Tensor.const((0, 7, 14, 21), dtypes.uint32)).bitwise_and(0x7F)
    even = [seven | (seven.bit_count() % 2) << 7 for seven in range(128)]  # the eighth makes their number even
    signs = tables("even_signs", even, "uint8")[sevens.reshape((-1, 32)).cast(dtypes.int32)]
    by_weight = _signs(signs.reshape((-1, 32, 1))).reshape((-1, 8, 4, 8))
    values = _grid(tables, "iq3xxs_grid", 4)[blocks[:, 2:66]].reshape((-1, 8, 4, 8))
    return (scales * values * by_weight).flatten(-3)


def _iq3_s(blocks: Tensor, tables: Tables) -> Tensor:
    scale = _half(blocks, 0).reshape((-1, 1, 1, 1))
    fine = 1 + 2 * _parts(blocks[:, 106:110].reshape((-1, 4, 1)), 4).reshape((-1, 8))
    scales = fine.cast(dtypes.float32).reshape((-1, 8, 1, 1))
    ninth = _parts(blocks[:, 66:74].reshape((-1, 8, 1)), 1).reshape((-1, 64)).cast(dtypes.uint16)
    signs = _signs(blocks[:, 74:106].reshape((-1, 32, 1))).reshape((-1, 256)).reshape((-1, 8, 4, 8))
    rows = blocks[:, 2:66].cast(dtypes.uint16) + ninth.lshift(8)
    return (scale * scales * _grid(tables, "iq3s_grid", 4)[rows].reshape((-1, 8, 4, 8)) * signs).flatten(-3)


def _iq4_xs(blocks: Tensor, tables: Tables) -> Tensor:
    scale = _half(blocks, 0).reshape((-1, 1, 1))
    values = tables("kvalues_iq4nl", table("kvalues_iq4nl"), "float32")
    low = _nibbles_by_byte(blocks[:, 4:8]).reshape((-1, 8))
    shifts = Tensor.const(tuple(range(0, 16, 2)), dtypes.uint16)
    high = blocks[:, 2:4].bitcast(dtypes.uint16).unsqueeze(-1).rshift(shifts).bitwise_and(3).reshape((-1, 8))
    fine = _signed(low.bitwise_or(high.cast(dtypes.uint8).lshift(4))) - 32
    packed = blocks[:, 8:].reshape((-1, 8, 16))
    places = packed.bitwise_and(0xF).cat(packed.rshift(4), dim=2)
    return (scale * fine.cast(dtypes.float32).reshape((-1, 8, 1)) * values[places]).flatten(-2)


FP4 = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)  # twice the numbers of E2M1, as the scale is half of 2^(e - 127)
SMALLEST = (0x00200000, 0x00400000)  # the bits of 2^-128 and 2^-127, which are subnormal


def _mxfp4(blocks: Tensor, tables: Tables) -> Tensor:
    exponent = blocks[:, 0].cast(dtypes.uint32)
    small = tables("mxfp4_smallest", SMALLEST, "uint32")[exponent.clip(0, 1).cast(dtypes.int32)]
    scale = (exponent < 2).where(small, (exponent - 1) * 0x00800000).bitcast(dtypes.float32).unsqueeze(-1)
    codes = _parts(blocks[:, 1:17], 4)
    numbers = tables("mxfp4", [*FP4, *(-number for number in FP4)], "float32")
    return (numbers[codes] * scale).flatten(-2)


def _q1_0(blocks: Tensor, _: Tables) -> Tensor:
    scale = blocks[:, :2].bitcast(dtypes.float16)
    bits = _signed(_parts(blocks[:, 2:], 1).reshape(-1, 8, 16).transpose(-1, -2).flatten(-2))
    return scale * (bits * 2 - 1)


def _grid(tables: Tables, name: str, width: int) -> Tensor:
    """A table (rows, width) of bytes, each row of which is one integer there, the first byte the lowest."""
    values = [float(byte) for row in table(name) for byte in row.to_bytes(width, "little")]
    return tables(name, values, "float32").reshape((-1, width))


FORMATS: dict[str, Format] = {
    "f32": Format(1, 4, _float32),
    "f16": Format(1, 2, _float16),
    "q4_0": Format(32, 18, _q4_0, Scale(0, 4.61)),
    "q4_1": Format(32, 20, _q4_1, Scale(0, 4.61, minimum_at=2, minimum=-7.5)),
    "q5_0": Format(32, 22, _q5_0, Scale(0, 9.23)),
    "q5_1": Format(32, 24, _q5_1, Scale(0, 9.23, minimum_at=2, minimum=-15.5)),
    "q8_0": Format(32, 34, _q8_0, Scale(0, 73.9)),
    "q4_k": Format(256, 144, _q4_k, Scale(0, 258.0, minimum_at=2, minimum=7.5)),
    "q5_k": Format(256, 176, _q5_k, Scale(0, 528.0, minimum_at=2, minimum=15.5)),
    "q6_k": Format(256, 210, _q6_k, Scale(208, 1365.0)),
    "iq2_s": Format(256, 82, _iq2_s, Scale(0, 56.1)),
    "iq3_xxs": Format(256, 98, _iq3_xxs, Scale(0, 142.0)),
    "iq3_s": Format(256, 110, _iq3_s, Scale(0, 140.0)),
    "iq4_xs": Format(256, 136, _iq4_xs, Scale(0, 1246.0)),
    "mxfp4": Format(32, 17, _mxfp4, Scale(0, 5.86, is_exponent=True)),
    "q1_0": Format(128, 18, _q1_0, Scale(0, 1.0)),
}
"""By their names in llama.cpp, in lower case. A test checks the units against random blocks."""

MXFP4_BIAS = 128  # the exponent whose scale is 1, for numbers that are doubled


class PackedWeights:
    """The weights of a model, made when first asked for: empty for scheduling, or random blocks for a run.

    Random ones are drawn per name, so that their values do not depend on the order in which they are asked for. They
    have mean 0 and deviation 1/sqrt(fan_in), and every scale is finite.
    """

    def __init__(self, *, seed: int | None = None) -> None:
        self.seed = seed
        self.tensors: dict[str, Tensor] = {}  # the bytes of each weight and the values of each table

    def __call__(self, name: str, shape: tuple[int, ...], kind: str) -> Tensor:
        """The weight `name` in float16, lazily from blocks of the format `kind`: its last axis is that of the inputs.
        Of one axis it is the scales of a norm, which lie around 1.

        Raises ValueError where its rows are no whole blocks.
        """
        packed = FORMATS[kind]
        packed.bytes_of(shape[-1])
        if name not in self.tensors:
            self.tensors[name] = self._blocks(name, shape, kind)
        return packed.unpack(self.tensors[name], self._table).reshape(shape).cast(dtypes.float16)

    def _blocks(self, name: str, shape: tuple[int, ...], kind: str) -> Tensor:
        packed = FORMATS[kind]
        count = math.prod(shape) // packed.weights
        if self.seed is None:
            return Tensor.empty(count, packed.nbytes, dtype=dtypes.uint8)
        rng, deviation = generator(self.seed, name), shape[-1] ** -0.5
        if len(shape) == 1:
            return Tensor(random_blocks(kind, count, 0.1, rng, around=1.0)).realize()
        return Tensor(random_blocks(kind, count, deviation, rng)).realize()

    def _table(self, name: str, values: Sequence[float], dtype: str) -> Tensor:
        if name not in self.tensors:
            held = getattr(dtypes, dtype)
            made = Tensor.empty(len(values), dtype=held) if self.seed is None else Tensor(list(values), dtype=held)
            self.tensors[name] = made if self.seed is None else made.realize()
        return self.tensors[name]


def random_blocks(
    kind: str, count: int, deviation: float, rng: np.random.Generator, *, around: float = 0.0
) -> NDArray[np.uint8]:
    """(count, bytes) of random blocks whose weights have that deviation and the mean 0, or `around` where the bytes are
    the weights themselves. All bytes are random but those of scales, which are up to a half smaller and larger."""
    import numpy as np

    packed = FORMATS[kind]
    if packed.scale is None:
        held = {2: np.float16, 4: np.float32}[packed.nbytes]
        spread = math.sqrt(3) * deviation  # uniform, of 65,536 values: of a billion weights, in seconds
        values = np.linspace(around - spread, around + spread, 1 << 16).astype(held)
        chosen = np.frombuffer(rng.bytes(2 * count), np.uint16)
        return values[chosen].view(np.uint8).reshape(count, packed.nbytes)
    blocks = np.frombuffer(rng.bytes(count * packed.nbytes), np.uint8).reshape(count, packed.nbytes).copy()
    scale, at = deviation / packed.scale.unit, packed.scale.at
    if packed.scale.is_exponent:
        lower = math.floor(math.log2(scale))  # or twice as much, so often that the squares have the mean of its square
        blocks[:, at] = MXFP4_BIAS + lower + (rng.random(count) < ((scale / 2.0**lower) ** 2 - 1) / 3)
        return blocks
    scales = scale * rng.uniform(0.5, 1.5, count)
    _put(blocks, at, scales)
    if packed.scale.minimum_at is not None:
        _put(blocks, packed.scale.minimum_at, scales * packed.scale.minimum)
    return blocks


def _put(blocks: NDArray[np.uint8], at: int, values: NDArray[np.float64]) -> None:
    """Write a float16 into each block."""
    import numpy as np

    blocks[:, at : at + 2] = values.astype(np.float16).reshape(-1, 1).view(np.uint8)
