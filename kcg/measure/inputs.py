"""Random inputs for one kernel: finite, signed, of mixed scale; integers from the range of what they index.

Everything is a function of the AST and a seed, so that any process makes the same inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcg.compat.tiny import Ops, UOp, dtypes
from kcg.errors import KcgError
from kcg.kernel.projection import exact_density
from kcg.types import content_id

RECIPE = "normal-v1"
POSITIVE_RECIPE = "positive-v1"
UNIT_RECIPE = "unit-v1"  # floats between 0 and 1, and integers that are not 0: for log(1 - x), asin(x) or n // m
FEW_RECIPE = "few-v1"  # four floats and four integers, so that many are equal: for x == max(x)
BINARY_RECIPE = "binary-v1"  # floats are 0 or 1, few enough ones that every sum is exact in the narrowest type
FEW = (-1.0, -0.5, 0.5, 1.0)
SMALL_INTEGERS = 8  # integers that index nothing are drawn from [-8, 8)
BLOCK = 1_048_573  # random elements drawn for one buffer; a longer one repeats them, and a prime length fits no tile

KEPT_BLOCKS = 64  # of large buffers, at most 4 MB each but for float64

FLOATS = ("half", "float", "double", "__bf16")

_NUMPY: dict[str, Any] = {
    "bool": np.bool_, "signed char": np.int8, "unsigned char": np.uint8, "short": np.int16, "unsigned short": np.uint16,
    "int": np.int32, "unsigned int": np.uint32, "long": np.int64, "unsigned long": np.uint64, "half": np.float16,
    "float": np.float32, "double": np.float64,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Repeated:
    """A large buffer as the block that it repeats. Indexing gives elements, as of an array of `size` elements."""

    block: np.ndarray[Any, Any]
    size: int

    @property
    def dtype(self) -> Any:
        return self.block.dtype

    @property
    def nbytes(self) -> int:
        return self.size * self.block.itemsize

    def __getitem__(self, index: Any) -> Any:
        return self.block[np.asarray(index) % len(self.block)]

    def reshape(self, shape: int) -> Repeated:
        """Flat as it is; the name is NumPy's, so that readers of arrays can read this too."""
        if shape != -1:
            raise ValueError(f"a repeated block is flat, not of shape {shape}")
        return self

    def chunks(self) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        """`(first element, values)` of each repetition, the last one cut."""
        for first in range(0, self.size, len(self.block)):
            yield first, self.block[: self.size - first]

    def same_as(self, other: np.ndarray[Any, Any]) -> bool:
        """Whether an array of `size` elements holds these."""
        return all(np.array_equal(other[first : first + len(part)], part) for first, part in self.chunks())


Stored = np.ndarray[Any, Any] | Repeated
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
    stored = {_buffer_slot(u.src[0]) for u in nodes if u.op is Ops.STORE}
    targets = {u.src[0] for u in nodes if u.op is Ops.STORE}
    read = {_buffer_slot(u) for u in nodes if u.op is Ops.INDEX and (u not in targets or _is_read(u, nodes))}
    params = sorted((u for u in nodes if u.op is Ops.PARAM and u.arg.slot >= 0), key=lambda u: u.arg.slot)
    return tuple(
        BufferInfo(
            slot=u.arg.slot, size=int(u.max_numel()), dtype=u.dtype.name, itemsize=u.dtype.itemsize,
            is_output=u.arg.slot in stored, is_input=u.arg.slot in read,
        )
        for u in params
    )  # fmt: skip


def _buffer_slot(index: UOp) -> int:
    node = index
    while node.op is not Ops.PARAM:
        node = node.src[0]
    return int(node.arg.slot)


def _is_read(index: UOp, nodes: list[UOp]) -> bool:
    return any(index in (u.src[1:] if u.op is Ops.STORE else u.src) for u in nodes)


def integer_bounds(ast: UOp) -> dict[int, int]:
    """For integer buffers whose values select something: slot -> how many there are to select from.

    A value selects where it is compared with a range (tinygrad's gather before its loads collapse) or is part of an
    index. Out of range, a gather is gated off and an empty kernel would verify.
    """
    bounds: dict[int, int] = {}

    def note(expression: UOp, extent: int) -> None:
        for u in expression.toposort():
            if u.op is Ops.INDEX and dtypes.is_int(u.src[0].dtype):
                slot = _buffer_slot(u)
                bounds[slot] = min(bounds.get(slot, extent), extent)

    for u in ast.toposort():
        if u.op in (Ops.CMPNE, Ops.CMPEQ):
            for ours, other in (u.src, u.src[::-1]):
                plain = other.src[0] if other.op is Ops.CAST else other
                if plain.op is Ops.RANGE:
                    note(ours, int(plain.vmax) + 1)
        elif u.op is Ops.INDEX:
            for position, extent in zip(u.src[1:], _extents(u.src[0]), strict=True):
                note(position, extent)
    return bounds


def _extents(source: UOp) -> list[int]:
    """The extent of each index into a buffer: flat, or in the shape that it is given for the access."""
    if source.op is Ops.RESHAPE:
        return [int(s.vmax) for s in (source.src[1].src if source.src[1].op is Ops.STACK else source.src[1:])]
    return [int(source.max_numel())]


def numpy_dtype(dtype: str) -> Any:
    """The NumPy dtype that holds a tinygrad dtype's bits; bfloat16 is held in uint16."""
    if dtype == "__bf16":
        return np.uint16
    try:
        return _NUMPY[dtype]
    except KeyError:
        raise KcgError(f"kcg cannot make inputs of dtype {dtype}") from None


def to_bits(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """float32 values as the device stores them."""
    if dtype == "__bf16":
        bits = values.astype(np.float32).view(np.uint32)
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        return (rounded >> 16).astype(np.uint16)
    return values.astype(numpy_dtype(dtype))


def to_values(bits: Any, dtype: str) -> Any:
    """What the device stored, as numbers NumPy can compute with (bfloat16 becomes float32): an array, or `Repeated`."""
    if isinstance(bits, Repeated):
        return Repeated(to_values(bits.block, dtype), bits.size)
    if dtype == "__bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits


def make_inputs(ast: UOp, seed: int, *, recipe: str = RECIPE) -> dict[int, Any]:
    """Slot -> stored bits (an array, `Repeated` beyond `BLOCK` elements), for every buffer that the kernel reads."""
    bounds = integer_bounds(ast)
    density = exact_density(ast) if recipe == BINARY_RECIPE else 0.0
    made: dict[int, Any] = {}
    for info in buffers_of(ast):
        if not info.is_input:
            continue
        drawn = min(info.size, BLOCK)
        low, high = _integers(info, bounds, recipe)
        draw = _kept_block if drawn == BLOCK else _block
        block = draw(seed, info.slot, recipe, info.dtype, drawn, density, low, high)
        made[info.slot] = block if drawn == info.size else Repeated(block, info.size)
    return made


def _integers(info: BufferInfo, bounds: dict[int, int], recipe: str) -> tuple[int, int]:
    """The range from which the integers of a buffer are drawn, by the recipe where they index nothing; (0, 0) for other
    types."""
    if info.dtype in FLOATS or info.dtype == "bool":
        return 0, 0
    numpy_type = np.dtype(numpy_dtype(info.dtype))
    low, high = -SMALL_INTEGERS, SMALL_INTEGERS
    if info.slot in bounds:
        low, high = 0, bounds[info.slot]
    elif recipe == UNIT_RECIPE:
        low, high = 1, SMALL_INTEGERS + 1
    elif recipe == FEW_RECIPE:
        low, high = 0, len(FEW)
    elif numpy_type.kind == "u":
        low = 0
    high = min(high, int(np.iinfo(numpy_type).max))
    return low, max(high, low + 1)


def _block(
    seed: int, slot: int, recipe: str, dtype: str, drawn: int, density: float, low: int, high: int
) -> np.ndarray[Any, Any]:
    """The random elements of one buffer, a function of its arguments alone."""
    # the seed depends on the slot but not on the process
    rng = np.random.default_rng([seed, slot, int(content_id(recipe)[:8], 16)])
    if dtype in FLOATS and recipe == BINARY_RECIPE:
        return to_bits((rng.random(drawn, dtype=np.float32) < density).astype(np.float32), dtype)
    if dtype in FLOATS and recipe == UNIT_RECIPE:
        return to_bits(0.0625 + 0.875 * rng.random(drawn, dtype=np.float32), dtype)
    if dtype in FLOATS and recipe == FEW_RECIPE:
        return to_bits(rng.choice(np.array(FEW, np.float32), drawn), dtype)
    if dtype in FLOATS:
        values = rng.standard_normal(drawn, dtype=np.float32)
        values[rng.random(drawn, dtype=np.float32) < 0.125] *= 0.0625
        return to_bits(np.abs(values) + 0.0625 if recipe == POSITIVE_RECIPE else values, dtype)
    if dtype == "bool":
        return rng.random(drawn) < 0.5
    return rng.integers(low, high, drawn, dtype=np.dtype(numpy_dtype(dtype)))


_kept_block = functools.lru_cache(maxsize=KEPT_BLOCKS)(_block)
"""Drawing one takes 20 to 40 ms, and the large buffers of different kernels have the same. Nobody writes into it."""
