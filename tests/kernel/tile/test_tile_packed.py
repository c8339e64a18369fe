"""Products with packed weights: what is read of any format, and what programs of them compute."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tinygrad import Tensor, dtypes

from kcg.kernel.codec import kernel_of
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel, read_kernel
from kcg.kernel.reading.packed import _holds, packed_sums, rows_of
from kcg.kernel.regions import Form
from kcg.kernel.tile.compile import compiled_launch
from kcg.kernel.tile.forms import plan_of
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal, random_parameters
from kcg.kernel.tile.packed import PackedPlan
from kcg.kernel.tile.parameters import PACKED, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.optimize.region_plans import propose
from kcg.types import Region
from kcg.workloads.llm import PRESETS
from kcg.workloads.packed_weights import FORMATS, PackedWeights, random_blocks
from kcg.workloads.registry import spec_of
from tests.chains import region_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, compare, question_of, wrong_of
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.slow import first, first_rows, some

TARGET = KNOWN_TARGETS["sm_90"]
with_triton = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)

RUN_ALWAYS = ("q4_k", "q8_0")
MOST_INSTRUCTIONS = {
    "q4_k": 9.0, "mxfp4": 4.5, "iq4_xs": 5.5, "q6_k": 13.0, "q8_0": 14.0, "iq3_s": 6.0, "iq3_xxs": 5.5, "iq2_s": 5.0,
}  # fmt: skip
"""Machine instructions a weight, of those that read a model at the memory's speed."""


# ---- products


def product_of(
    kind: str, rows: int, inputs: int, vectors: int = 1, dtype: str = "float32"
) -> tuple[Region, TileKernel]:
    """The kernel of a product with packed weights."""
    weights = PackedWeights()("w", (rows, inputs), kind)
    return _read(empty(vectors, inputs).dot(weights.T, dtype="float32"))


def _read(made: Tensor) -> tuple[Region, TileKernel]:
    *_, ast = kernels_of(made)
    region = Region((kernel_of(ast),))
    return region, read_kernel(region)


def blocks_of(kind: str, rows: int, inputs: int, seed: int = 1) -> np.ndarray:
    """The bytes of random weights."""
    rng = np.random.default_rng(seed)
    return random_blocks(kind, rows * inputs // FORMATS[kind].weights, inputs**-0.5, rng).reshape(-1)


def slot_of_words(kernel: TileKernel) -> int:
    """The buffer of the bytes."""
    (slot,) = {b.slot for b in kernel.buffers if b.dtype is dtypes.uint8 and b.size == _most_bytes(kernel)}
    return slot


def _most_bytes(kernel: TileKernel) -> int:
    return max(b.size for b in kernel.buffers if b.dtype is dtypes.uint8)


def cases_of(
    region: Region, kernel: TileKernel, programs: Iterable[TileParameters], given: Callable[[int], np.ndarray]
) -> list[Case]:
    """A case of each program, with bytes by its number."""
    slot = slot_of_words(kernel)
    return [
        Case(
            region, generate_kernel(kernel, TARGET, p, interpreted=True), inputs={slot: given(number)}, seed=number + 1
        )
        for number, p in enumerate(programs)
    ]


def programs_of(kernel: TileKernel, count: int, seed: int = 3) -> list[TileParameters]:
    """The prior's choice, and so many legal ones of the form."""
    rng, found = Random(seed), [default_parameters(kernel, TARGET)]
    assert found[0].form == PACKED
    while len(found) <= count:
        p = random_parameters(kernel, TARGET, rng)
        if p.form == PACKED:
            assert is_legal(kernel, TARGET, p), p
            found.append(p)
    return found


# ---- formats that nobody has


@dataclass(frozen=True)
class Invented:
    """A packed format: a scale, and planes of bits that numbers are put together of, one behind the other."""

    weights: int  # of a block: a power of two
    planes: tuple[int, ...]  # bits of each plane, the lowest first
    stride: int  # neighbours in a byte are so many weights apart
    offset: int  # that is taken from numbers
    behind: int  # bytes that nothing is in
    scale_first: bool = True
    minimum: bool = False

    @property
    def nbytes(self) -> int:
        return 2 * (1 + self.minimum) + sum(self.weights * bits // 8 for bits in self.planes) + self.behind

    def unpacked(self, blocks: Tensor) -> Tensor:
        """(blocks, weights) of float16."""
        at = 2 * (1 + self.minimum) if self.scale_first else 0
        numbers = None
        low = 0
        for bits in self.planes:
            size = self.weights * bits // 8
            plane = blocks[:, at : at + size].reshape(-1, max(1, size // self.stride), min(size, self.stride))
            parts = [plane.rshift(place).bitwise_and((1 << bits) - 1) for place in range(0, 8, bits)]
            part = Tensor.stack(*parts, dim=2).reshape(-1, self.weights).cast(dtypes.int32)
            numbers = part if numbers is None else numbers + part * (1 << low)
            low, at = low + bits, at + size
        assert numbers is not None
        held = [0, 2] if self.scale_first else [at, at + 2]
        scale, least = (blocks[:, i : i + 2].bitcast(dtypes.float16).cast(dtypes.float32) for i in held)
        made = (numbers - self.offset).cast(dtypes.float32) * scale
        return (made - least if self.minimum else made).cast(dtypes.float16)

    def blocks(self, count: int, rng: np.random.Generator) -> np.ndarray:
        found = rng.integers(0, 256, (count, self.nbytes), dtype=np.uint8)
        first = 0 if self.scale_first else sum(self.weights * bits // 8 for bits in self.planes)
        for at in (first, first + 2)[: 1 + self.minimum]:
            scales = (rng.uniform(0.5, 1.5, count) * 0.01).astype(np.float16)
            found[:, at : at + 2] = scales.reshape(-1, 1).view(np.uint8)
        return found.reshape(-1)


INVENTED = {
    "three bits in two planes": Invented(64, (2, 1), 8, 4, 0),
    "seven bytes": Invented(32, (1,), 4, 0, 1),
    "six bits, the scale last": Invented(128, (2, 4), 32, 32, 0, scale_first=False),
    "eight bits and a minimum": Invented(16, (8,), 16, 0, 3, minimum=True),
    "four bits by neighbours": Invented(32, (4,), 1, 8, 0),
}


def invented(name: str, rows: int, blocks: int) -> tuple[Invented, Region, TileKernel]:
    packed = INVENTED[name]
    held = empty(rows * blocks, packed.nbytes, dtype="uint8")
    weights = packed.unpacked(held).reshape(rows, blocks * packed.weights)
    return packed, *_read(empty(1, blocks * packed.weights).dot(weights.T, dtype="float32"))


# ---- numbers and sums that no format has


@dataclass(frozen=True)
class Odd:
    """Weights that are made of blocks in another way, and what they are multiplied with."""

    nbytes: int  # of a block
    made: Callable[[Tensor], Tensor]  # (blocks, bytes) -> (blocks, weights) of float32
    blocks: int = 16  # of a row
    vectors: int = 1
    x: Callable[[Tensor], Tensor] = lambda x: x
    halves: tuple[int, ...] = (0,)  # where float16 scales are

    def read(self, rows: int) -> tuple[Region, TileKernel]:
        weights = self.made(empty(rows * self.blocks, self.nbytes, dtype="uint8")).reshape(rows, -1)
        return _read(self.x(empty(self.vectors, int(weights.shape[1]))).dot(weights.T, dtype="float32"))

    def given(self, rows: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        found = rng.integers(0, 256, (rows * self.blocks, self.nbytes), dtype=np.uint8)
        for at in self.halves:
            scales = (rng.uniform(0.5, 1.5, len(found)) * 0.01).astype(np.float16)
            found[:, at : at + 2] = scales.reshape(-1, 1).view(np.uint8)
        return found.reshape(-1)


def _half(blocks: Tensor, at: int = 0) -> Tensor:
    return blocks[:, at : at + 2].bitcast(dtypes.float16).cast(dtypes.float32)


def _nibbles(values: Tensor) -> Tensor:
    """(blocks, bytes) of uint8 -> (blocks, twice as many) of float32, between -8 and 7."""
    parts = Tensor.stack(values.bitwise_and(15), values.rshift(4), dim=1)
    return (parts.reshape(values.shape[0], -1).cast(dtypes.int32) - 8).cast(dtypes.float32)


def _twice(values: Tensor) -> Tensor:
    """Each half of a byte in both halves of a number: the same bits twice."""
    low, high = values.bitwise_and(15).cast(dtypes.int32), values.rshift(4).cast(dtypes.int32)
    return Tensor.stack(low + low * 16, high + values.bitwise_and(240).cast(dtypes.int32), dim=1)


def _split_words(values: Tensor) -> Tensor:
    """Words of 32 bits as numbers of 24 and of 8: the first are wider than a float's fraction."""
    words = values.bitcast(dtypes.uint32)
    return Tensor.stack(words.bitwise_and(0xFFFFFF), words.rshift(24), dim=1)


def _signs(values: Tensor, of_set: float = -1.0) -> Tensor:
    """(blocks, bytes) of uint8 -> (blocks, eight times as many): 1 or -1 by each bit."""
    bits = Tensor.stack(*(values.rshift(place).bitwise_and(1) for place in range(8)), dim=2)
    return (bits.reshape(values.shape[0], -1) != 0).where(of_set, -of_set)


def _flat(values: Tensor) -> Tensor:
    return values.reshape(values.shape[0], -1).cast(dtypes.float32)


ODD = {
    "a scale at an odd byte": Odd(18, lambda b: _nibbles(b[:, 3:11]) * _half(b, 1), halves=(1,)),
    "bits twice": Odd(18, lambda b: _flat(_twice(b[:, 2:])) * _half(b)),
    "signed bytes, wider": Odd(
        34, lambda b: (b[:, 2:].bitcast(dtypes.int8).cast(dtypes.int32) - 3).cast(dtypes.float32) * _half(b)
    ),
    "24 bits": Odd(36, lambda b: _flat(_split_words(b[:, 4:])) * _half(b)),
    "no scale": Odd(200, _nibbles, blocks=1, vectors=3, x=lambda x: x + 1, halves=()),
    "a divisor": Odd(18, lambda b: _nibbles(b[:, 2:]) / _half(b), blocks=25),
    "a scale and a minimum of a row": Odd(
        204, lambda b: _nibbles(b[:, 4:]) * _half(b) - _half(b, 2), blocks=1, vectors=3, halves=(0, 2)
    ),
    "a mean of each vector": Odd(
        18, lambda b: _nibbles(b[:, 2:]) * _half(b), blocks=13, vectors=3,
        x=lambda x: (x - (mean := empty(3, 1))) * mean * empty(416),
    ),
    "signs": Odd(12, lambda b: _nibbles(b[:, 2:10]) * _signs(b[:, 10:12]) * _half(b)),
    "two signs, one by a bit that is not set": Odd(
        14, lambda b: _nibbles(b[:, 2:10]) * _signs(b[:, 10:12]) * _signs(b[:, 12:14], 1.0) * _half(b)
    ),
    "numbers that are 0": Odd(
        18, lambda b: _flat(Tensor.stack(_nibbles(b[:, 2:]) * 0.0, _nibbles(b[:, 2:]), dim=2)) * _half(b)
    ),
}  # fmt: skip


ODD_ALWAYS = ("a scale at an odd byte", "bits twice", "24 bits", "no scale", "a scale and a minimum of a row", "signs")

# ---- tests


@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_every_format_is_read_by_its_addresses_and_operations(kind: str) -> None:
    _, kernel = product_of(kind, 64, 512)
    (packed,) = packed_sums(kernel)
    assert packed is not None
    unpacked = packed.unpacked(packed.widths[0])
    assert unpacked.written > 1 and unpacked.ranges
    assert default_parameters(kernel, TARGET).form == PACKED


@with_triton
@pytest.mark.parametrize("kind", some(sorted(FORMATS), RUN_ALWAYS))
def test_programs_of_every_format_are_right(kind: str, tmp_path: Path) -> None:
    region, kernel = product_of(kind, 32, 1024)
    programs = programs_of(kernel, 3)
    assert compare(cases_of(region, kernel, programs, lambda n: blocks_of(kind, 32, 1024, n)), tmp_path) == [""] * 4


@with_triton
@pytest.mark.parametrize("name", some(INVENTED, ("three bits in two planes", "seven bytes")))
def test_a_format_that_nobody_has_is_right_too(name: str, tmp_path: Path) -> None:
    packed, region, kernel = invented(name, 16, 24)
    rng = np.random.default_rng(5)
    given = [packed.blocks(16 * 24, rng) for _ in range(3)]
    assert compare(cases_of(region, kernel, programs_of(kernel, 2), lambda n: given[n]), tmp_path) == [""] * 3


@with_triton
@pytest.mark.parametrize(
    ("kind", "rows", "inputs", "vectors"),
    first_rows(
        2, [("q4_0", 13, 96, 1), ("q8_0", 7, 352, 3), ("q6_k", 13, 768, 1), ("q5_1", 29, 2080, 5), ("q4_k", 3, 512, 16)]
    ),
)
def test_odd_rows_several_vectors_and_rows_that_end_inside_of_a_tile(
    kind: str, rows: int, inputs: int, vectors: int, tmp_path: Path
) -> None:
    region, kernel = product_of(kind, rows, inputs, vectors)
    programs = programs_of(kernel, 2)
    assert compare(cases_of(region, kernel, programs, lambda n: blocks_of(kind, rows, inputs, n)), tmp_path) == [""] * 3


@with_triton
@pytest.mark.parametrize("kind", first(1, ["q4_k", "q4_1", "q5_k", "q8_0"]))
@pytest.mark.parametrize("scale", ["largest", "subnormal"])
def test_the_largest_and_the_smallest_scales_are_right(kind: str, scale: str, tmp_path: Path) -> None:
    region, kernel = product_of(kind, 16, 1024)
    packed = FORMATS[kind]
    given = blocks_of(kind, 16, 1024).reshape(-1, packed.nbytes)
    assert packed.scale is not None
    bits = {"largest": 0x5400, "subnormal": 0x0003}[scale]  # 64, and 3 * 2^-24
    for at in filter(lambda one: one is not None, (packed.scale.at, packed.scale.minimum_at)):
        given[:, at : at + 2] = np.array([bits], np.uint16).view(np.uint8)
    assert compare(cases_of(region, kernel, programs_of(kernel, 1), lambda _: given.reshape(-1)), tmp_path) == [""] * 2


@with_triton
def test_terms_of_one_sign_are_right(tmp_path: Path) -> None:
    """4,096 terms that do not cancel, of numbers that stand beside a power of two: its share is taken away exactly."""
    region, kernel = product_of("q4_1", 8, 4096)
    slot = next(b.slot for b in kernel.buffers if b.dtype is dtypes.float32 and not b.written)
    given = np.full((8 * 4096 // 32, 20), 0, np.uint8)
    given[:, 0:2] = np.float16(0.01).reshape(1).view(np.uint8)
    given[:, 4:] = np.random.default_rng(1).integers(0, 256, (len(given), 16), dtype=np.uint8)
    ones = np.random.default_rng(2).uniform(0.5, 1.5, 4096).astype(np.float32)
    cases = [
        replace(case, inputs={**case.inputs, slot: ones})
        for case in cases_of(region, kernel, programs_of(kernel, 2), lambda _: given.reshape(-1))
    ]
    assert compare(cases, tmp_path) == [""] * 3


@with_triton
def test_an_infinite_vector_gives_what_the_kernel_says(tmp_path: Path) -> None:
    """Of a number with a minimum one part may be 0 and the other infinite, where their sum is infinite: the sum of all
    is no number then if sums are taken apart."""
    region, kernel = product_of("q4_1", 8, 64)
    slot = next(b.slot for b in kernel.buffers if b.dtype is dtypes.float32 and not b.written)
    blocks = np.zeros((16, 20), np.uint8)
    blocks[:, 0:4] = np.array([0.5, 0.25], np.float16).view(np.uint8)  # all numbers are 0, and their minima are not
    vector = np.ones(64, np.float32)
    vector[5] = np.inf
    case = cases_of(region, kernel, programs_of(kernel, 0), lambda _: blocks.reshape(-1))[0]
    assert compare([replace(case, inputs={**case.inputs, slot: vector})], tmp_path) == [""]


@with_triton
@pytest.mark.parametrize("name", some(ODD, ODD_ALWAYS))
def test_numbers_and_sums_that_no_format_has(name: str, tmp_path: Path) -> None:
    odd = ODD[name]
    region, kernel = odd.read(12)
    programs = programs_of(kernel, 3)
    cases = cases_of(region, kernel, programs, lambda number: odd.given(12, number))
    assert all(np.isfinite(question_of(case).wanted[0].error).all() for case in cases)  # the reference can tell
    assert compare(cases, tmp_path) == [""] * 4


@with_triton
def test_parts_of_a_sum_end_where_it_ends(tmp_path: Path) -> None:
    """5 steps in two parts, and 10 in four: the last part is shorter, though each step is whole."""
    region, kernel = product_of("q4_0", 8, 5 * 32 * 32)
    first = default_parameters(kernel, TARGET)
    programs = [first.changed(unpacked=16, split=2), first.changed(unpacked=8, split=4)]
    assert all(is_legal(kernel, TARGET, p) for p in programs)
    assert compare(cases_of(region, kernel, programs, lambda n: blocks_of("q4_0", 8, 5120, n)), tmp_path) == [""] * 2


def test_sums_that_other_forms_have() -> None:
    """Loads under conditions that hold for some of a thread's places, images whose bytes several outputs read; masks
    that are less than the floats beside them may be packed sums, but a search does not begin there."""
    weights = PackedWeights()("w", (64, 512), "q4_0")
    assert packed_sums(_read(empty(1, 500).pad(((0, 0), (5, 7))).dot(weights.T, dtype="float32"))[1]) == ()
    image = empty(1, 3, 12, 12, dtype="uint8").cast("float32")
    assert packed_sums(_read(image.conv2d(empty(4, 3, 4, 4)))[1]) == ()
    masked = _read((empty(512, 64) * empty(512, 64, dtype="uint8").cast("float32")).sum(1))[1]
    assert packed_sums(masked) and default_parameters(masked, TARGET).form != PACKED


def test_what_is_no_packed_sum_has_no_such_program() -> None:
    plain = _read(empty(1, 256).dot(empty(64, 256).T))[1]
    assert packed_sums(plain) == ()
    assert packed_sums(_read(empty(64, 256, dtype="uint8").cast("float32").exp())[1]) == ()


def test_words_come_as_wide_as_they_are_aligned() -> None:
    _, kernel = product_of("q4_k", 64, 2048)
    p = default_parameters(kernel, TARGET).changed(unpacked=16, tile=(4,), num_warps=1, reduce_tile=32)
    text = generate_kernel(kernel, TARGET, p).source
    text, _, _ = text.partition("if again")  # of infinite vectors it goes byte by byte
    assert text.count("gl.load(") == len(re.findall(r"gl\.load\(\w+\[", text))  # each of four neighbours
    _, kernel = product_of("q4_0", 64, 2048)
    p = default_parameters(kernel, TARGET).changed(unpacked=16, tile=(4,), num_warps=1, reduce_tile=32)
    text = generate_kernel(kernel, TARGET, p).source
    assert "uint32" in text and "uint8" not in text  # blocks of 18 bytes, of which none is aligned
    assert text.count("_from_byte(") == 1 + 5  # the helper, and the words of 18 bytes


# ---- tables


@dataclass(frozen=True)
class Grid:
    """Weights of which several neighbours are a row of a table, each times a sign by a bit."""

    rows: int  # of the table
    width: int  # of each
    row: Callable[[Tensor], Tensor]  # bytes -> rows
    blocks: int = 16  # of a row of weights: each of 16
    signs: Callable[[Tensor], Tensor] = _signs

    @property
    def nbytes(self) -> int:
        return 4 + 16 // self.width

    def read(self, rows: int) -> tuple[Region, TileKernel]:
        blocks = empty(rows * self.blocks, self.nbytes, dtype="uint8")
        table = empty(self.rows * self.width).reshape(self.rows, self.width)
        made = table[self.row(blocks[:, 4:])].reshape(rows * self.blocks, 16) * self.signs(blocks[:, 2:4])
        weights = (made * _half(blocks)).reshape(rows, -1)
        return _read(empty(1, 16 * self.blocks).dot(weights.T, dtype="float32"))

    def given(self, rows: int, seed: int) -> np.ndarray:
        return Odd(self.nbytes, _flat, blocks=self.blocks).given(rows, seed)


def _of_four(signs: Tensor) -> Tensor:
    return signs.reshape(-1, 4, 4)[:, :, :1].expand(-1, 4, 4).reshape(-1, 16)


GRIDS = {
    "256 rows of four": Grid(256, 4, lambda b: b),
    "64 rows of eight": Grid(64, 8, lambda b: b.bitwise_and(63)),
    "300 pairs": Grid(300, 2, lambda b: b.cast("int32") + b.bitwise_and(3).cast("int32") * 14),
    "99 rows of four": Grid(99, 4, lambda b: b.bitwise_and(63).cast("int32") + b.rshift(6).cast("int32") * 11),
    "rows by bits that stand apart": Grid(128, 4, lambda b: b.bitwise_and(15) + b.bitwise_and(224).rshift(1)),
    "a sign of four": Grid(256, 4, lambda b: b, signs=lambda b: _of_four(_signs(b))),
}  # fmt: skip

ENTRIES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "whole": lambda rng, count: rng.integers(0, 63, count),
    "float16, with zeros below 0": lambda rng, count: np.where(
        rng.random(count) < 0.2, -0.0, rng.standard_normal(count).astype(np.float16)
    ),
    "the least and the largest float16": lambda rng, count: rng.choice([6e-8, -6e-8, 65504, -65504, 1], count),
    "no float16": lambda rng, count: rng.standard_normal(count),
    "one of them no float16": lambda rng, count: np.where(np.arange(count) == count - 1, 1 / 3, 2.0),
    "beyond float16": lambda rng, count: rng.choice([1e30, -1e-30, 70000, 3.0], count),
}  # fmt: skip
"""Values of tables, as float32 has them."""


def sharing_programs(kernel: TileKernel) -> list[TileParameters]:
    """Programs whose warps have rows of their own and a table for all."""
    first = default_parameters(kernel, TARGET)
    (packed,) = packed_sums(kernel)
    found = [
        first.changed(tile=(rows,), num_warps=warps, reduce_tile=step, unpacked=width)
        for width in packed.widths
        for rows, warps, step in ((16, 4, 32), (8, 1, 32), (8, 8, 64), (4, 8, 64))
    ]
    found = [p for p in found if is_legal(kernel, TARGET, p)]
    assert found and any(plan_of(kernel, TARGET, p).shared for p in found)
    return found


@with_triton
@pytest.mark.parametrize("name", some(GRIDS, {"256 rows of four", "99 rows of four"}))
def test_programs_that_copy_a_table_are_right(name: str, tmp_path: Path) -> None:
    grid = GRIDS[name]
    region, kernel = grid.read(21)
    (slot,) = (b.slot for b in kernel.buffers if b.size == grid.rows * grid.width)
    programs = sharing_programs(kernel)
    rng = np.random.default_rng(4)
    cases = {}
    for entries, draw in ENTRIES.items():
        table = draw(rng, grid.rows * grid.width).astype(np.float32)
        for number, case in enumerate(cases_of(region, kernel, programs, lambda n: grid.given(21, n))):
            cases[f"{entries}, {number}"] = replace(case, inputs={**case.inputs, slot: table})
    assert not wrong_of(cases, tmp_path)


@with_triton
def test_an_infinite_entry_of_a_table_is_infinite(tmp_path: Path) -> None:
    """So it is in float16; its sign is turned round as that of any other."""
    grid = GRIDS["256 rows of four"]
    region, kernel = grid.read(16)
    (slot,) = (b.slot for b in kernel.buffers if b.size == 1024)
    (vector,) = (b.slot for b in kernel.buffers if b.size == 256)
    table = np.ones(1024, np.float32)
    table[4 * 7 + 2] = np.inf
    blocks = grid.given(16, 1).reshape(-1, grid.nbytes)
    blocks[:, 4:] = np.where(blocks[:, 4:] == 7, 8, blocks[:, 4:])
    blocks[::16, 4] = 7  # one a row
    given = {slot: table, vector: np.ones(256, np.float32)}
    cases = [
        replace(case, inputs={**case.inputs, **given})
        for case in cases_of(region, kernel, sharing_programs(kernel), lambda _: blocks.reshape(-1))
    ]
    assert np.isinf(question_of(cases[0]).wanted[0].values).all()
    assert compare(cases, tmp_path) == [""] * len(cases)


@with_triton
@pytest.mark.parametrize("kind", first(1, ["iq3_s", "iq3_xxs", "iq2_s"]))
def test_formats_with_a_table_are_right_where_it_is_copied(kind: str, tmp_path: Path) -> None:
    region, kernel = product_of(kind, 40, 1024)
    tables = PackedWeights(seed=1)
    FORMATS[kind].unpack(Tensor.empty(1, FORMATS[kind].nbytes, dtype="uint8"), tables._table)
    sizes = {one.numel(): one.numpy() for one in tables.tensors.values()}
    given = {b.slot: sizes[b.size] for b in kernel.buffers if b.size in sizes and b.dtype is dtypes.float32}
    programs = [p for p in sharing_programs(kernel) if plan_of(kernel, TARGET, p).shared]
    cases = cases_of(region, kernel, programs, lambda n: blocks_of(kind, 40, 1024, n))
    cases = [replace(case, inputs={**case.inputs, **given}) for case in cases]
    assert programs and compare(cases, tmp_path) == [""] * len(cases)


@with_triton
def test_products_of_one_launch_copy_what_they_read(tmp_path: Path) -> None:
    """Each has a table of its own; programs of 16 rows are two texts, since they do not divide 40."""
    region = region_of(*products(("iq3_s", 32), ("iq3_s", 40)))
    kernel = read_region(region)
    assert len(kernel.launched) == 2
    first = default_parameters(kernel, TARGET)
    programs = [first.changed(tile=(rows,), num_warps=warps) for rows, warps in ((16, 4), (16, 1), (8, 2))]
    programs = [p.changed(unpacked=width) for p in programs for width in (2, 1)]
    programs = [p for p in programs if is_legal(kernel, TARGET, p)]
    assert {plan_of(kernel, TARGET, p).shared_bytes for p in programs} == {2 * 4096, 4096}
    given = {b.slot: random_rows(b.size) for b in kernel.buffers if b.dtype is dtypes.uint8}
    cases = {
        str(number): Case(region, generate_kernel(kernel, TARGET, p, interpreted=True), inputs=given, seed=number + 1)
        for number, p in enumerate(programs)
    }
    assert not wrong_of(cases, tmp_path)
    source = generate_kernel(kernel, TARGET, programs[0])
    made = compiled_launch(source, source.launches[0], TARGET)
    own = dict(made.report)["shared_bytes"] - made.shared_bytes
    assert own == plan_of(kernel, TARGET, programs[0]).shared_bytes


def test_a_table_is_copied_where_a_program_has_terms_enough() -> None:
    _, kernel = product_of("iq2_s", 4096, 4096)
    first = default_parameters(kernel, TARGET)
    plan = plan_of(kernel, TARGET, first)
    assert isinstance(plan, PackedPlan) and plan.shared_bytes == 2 * 8192 and plan.along == first.num_warps > 1
    few = first.changed(tile=(1,), num_warps=1)
    assert not plan_of(kernel, TARGET, few).shared
    _, kernel = product_of("q4_k", 4096, 4096)
    assert not plan_of(kernel, TARGET, default_parameters(kernel, TARGET)).shared


# ---- what programs compile to


def disassembled(cubin: bytes, folder: Path) -> str:
    tool = Path(sysconfig.get_paths()["purelib"], "triton", "backends", "nvidia", "bin", "nvdisasm")
    if not tool.exists() and shutil.which("nvdisasm") is None:
        pytest.skip("there is no nvdisasm")
    path = folder / "program.cubin"
    path.write_bytes(cubin)
    return subprocess.run(
        [str(tool) if tool.exists() else "nvdisasm", "-c", path], capture_output=True, text=True, check=True
    ).stdout


def listing_of(cubin: bytes, folder: Path) -> list[str]:
    """All machine instructions of a program, by their whole names."""
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", disassembled(cubin, folder))


def instructions_of(cubin: bytes, folder: Path) -> Counter[str]:
    """The machine instructions of a program's first loop, by name."""
    found: list[str] = []
    labels: dict[str, int] = {}
    for line in disassembled(cubin, folder).splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            labels[label[1]] = len(found)
        if not (one := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", line)):
            continue
        found.append(one[1])
        if one[1] == "BRA" and (to := re.search(r"\.L_\w+", line)) and to[0] in labels:
            return Counter(found[labels[to[0]] :])
    raise AssertionError("the program has no loop")


@with_triton
@pytest.mark.parametrize("kind", first(1, ["iq3_s", "iq2_s"]))
def test_a_table_is_stored_before_it_is_read(kind: str, tmp_path: Path) -> None:
    """All threads have stored their entries, and wait for each other, before one of them loads any."""
    _, kernel = product_of(kind, 4096, 4096)
    p = default_parameters(kernel, TARGET)
    source = generate_kernel(kernel, TARGET, p)
    made = compiled_launch(source, source.launches[0], TARGET)
    listed = listing_of(made.cubin, tmp_path)
    names = [name.partition(".")[0] for name in listed]
    copy = plan_of(kernel, TARGET, p).shared_bytes
    assert dict(made.report)["shared_bytes"] == copy + made.shared_bytes < copy + 1024
    barrier = names.index("BAR")
    assert names.count("STS") >= names[:barrier].count("STS") == copy // 8 // 32 // p.num_warps
    assert "LDS" not in names[:barrier] and names[barrier:].count("LDS") >= 16
    assert dict(made.report)["spilled_bytes"] == 0


@with_triton
@pytest.mark.parametrize("kind", some(MOST_INSTRUCTIONS, ("q4_k",)))
def test_machine_instructions_of_a_weight(kind: str, tmp_path: Path) -> None:
    _, kernel = product_of(kind, 4096, 4096)
    (packed,) = packed_sums(kernel)
    assert packed is not None
    p = default_parameters(kernel, TARGET).changed(unpacked=packed.widths[0], tile=(4,), num_warps=1, reduce_tile=32)
    if kind.startswith("iq") and kind != "iq4_xs":
        p = p.changed(tile=(16,), num_warps=4)
    plan = plan_of(kernel, TARGET, p)
    assert isinstance(plan, PackedPlan)
    source = generate_kernel(kernel, TARGET, p)
    made = compiled_launch(source, source.launches[0], TARGET)
    found = instructions_of(made.cubin, tmp_path)
    weights = plan.held * plan.taken[0].written
    assert dict(made.report)["spilled_bytes"] == 0
    assert found.total() / weights <= MOST_INSTRUCTIONS[kind], found.most_common(8)


@pytest.mark.parametrize(("name", "signs"), [("signs", 1), ("two signs, one by a bit that is not set", 2)])
def test_a_sign_by_a_bit_turns_the_sign_bit_of_a_number(name: str, signs: int) -> None:
    """No number is made of it, so that none is multiplied with."""
    _, kernel = ODD[name].read(12)
    text = generate_kernel(kernel, TARGET, default_parameters(kernel, TARGET)).source
    assert len(re.findall(r" \^ \(\w+ & 2147483648\)", text)) == 16 * signs


@pytest.mark.parametrize(("kind", "entries"), [("mxfp4", 16), ("iq4_xs", 16), ("iq3_xxs", 0)])
def test_a_small_table_is_held_by_the_lanes_of_a_warp(kind: str, entries: int) -> None:
    """One load a thread, before the loop; a larger one is read number by number."""
    _, kernel = product_of(kind, 64, 1024)
    text = generate_kernel(kernel, TARGET, default_parameters(kernel, TARGET)).source
    before, loop = text.split("    for ", 1) if "    for " in text else (text, text)
    tables = {f"x{n}" for n in ("", 2, 3, 4)}
    held = re.findall(r"(entries\w*) = gl.load\((\w+) \+ lanes\w*\)", before)
    assert len(held) == bool(entries) and tables.issuperset(name for _, name in held)
    assert f"_entry_of_{entries}_float32" in loop if entries else "_entry_of" not in text
    assert not any(f"gl.load({name} +" in loop.replace(f"gl.load({name} + lanes", "") for _, name in held)


# ---- several products of one vector


def products(*kinds_and_rows: tuple[str, int]) -> tuple[Tensor, ...]:
    """Query and key of one token: each has weights of its own."""
    x = empty(1, 512)
    weights = [PackedWeights()(f"w{i}", (rows, 512), kind) for i, (kind, rows) in enumerate(kinds_and_rows)]
    return tuple(x.dot(one.T, dtype="float32") for one in weights)


def gate_and_up(kind: str, rows: int) -> tuple[Tensor, ...]:
    """Two sums of each row: the second kernel reads the first one's result."""
    gate, up = products((kind, rows), (kind, rows))
    return (gate.silu().contiguous() * up,)


TOGETHER: dict[str, tuple[Callable[[], tuple[Tensor, ...]], int]] = {
    "of equal rows": (lambda: products(("q4_k", 24), ("q4_k", 24)), 2),
    "of different rows": (lambda: products(("q8_0", 48), ("q8_0", 16), ("q8_0", 16)), 3),
    "rows that no tile divides": (lambda: products(("q6_k", 13), ("q6_k", 7)), 2),
    "gate and up": (lambda: gate_and_up("q4_k", 21), 1),
    "gate and up of odd blocks": (lambda: gate_and_up("q5_0", 16), 1),
    "float16": (lambda: products(("f16", 16), ("f16", 8)), 2),
    "two formats": (lambda: products(("q4_k", 24), ("q6_k", 16)), 2),
}
"""Name -> tensors, and products of the launch."""


LOOKED_UP = ("iq3_xxs", "mxfp4")
"""Formats of which tinygrad looks something up in a kernel of its own, as it cuts a product: signs, or scales."""


@with_triton
@pytest.mark.parametrize("kind", first(1, LOOKED_UP))
def test_a_product_and_what_is_looked_up_for_it_are_one_program(kind: str, tmp_path: Path) -> None:
    weights = PackedWeights()("w", (13, 1024), kind)
    region = region_of(empty(1, 1024).dot(weights.T, dtype="float32"))
    kernel = read_region(region)
    assert len(region.kernels) == 2 and len(packed_sums(kernel)) == 1
    (slot,) = (b.slot for b in kernel.buffers if b.size == FORMATS[kind].bytes_of(13 * 1024))
    given = {slot: blocks_of(kind, 13, 1024)}
    cases = {
        str(number): Case(region, generate_kernel(kernel, TARGET, p, interpreted=True), inputs=given, seed=number + 1)
        for number, p in enumerate(programs_of(kernel, 3))
    }
    assert not wrong_of(cases, tmp_path)


@pytest.mark.parametrize(("limit", "narrow", "gated"), [(1, False, False), (2, False, True), (1, True, True)])
def test_conditions_that_always_hold_are_none(limit: int, narrow: bool, gated: bool) -> None:
    """A table of two is asked for the smaller of a number and `limit`; what is compared may be less than the number."""
    words = empty(64, 2, dtype="uint16")
    number = words[:, :1].cast("uint8").cast("uint32") if narrow else words[:, :1].cast("uint32")
    place = (number > limit).where(limit, words[:, :1].cast("uint32") if narrow else number).cast("int32")
    (load,) = (one for one in read_kernel(_region_of(empty(2)[place])).loads if one.buffer.size == 2)
    assert bool(load.gates) and (not all(map(_holds, load.gates))) == gated


def _region_of(made: Tensor) -> Region:
    *_, ast = kernels_of(made)
    return Region((kernel_of(ast),))


def random_rows(size: int) -> np.ndarray:
    """Random weights, rows of 512, of the format that so many bytes are whole rows of."""
    kinds = ("q4_k", "q8_0", "q6_k", "q5_0", "f16", "iq3_s")
    kind = next(kind for kind in kinds if size % FORMATS[kind].bytes_of(512) == 0)
    return blocks_of(kind, size // FORMATS[kind].bytes_of(512), 512)


@with_triton
@pytest.mark.parametrize("name", some(TOGETHER, {"gate and up"}))
def test_products_of_one_vector_are_one_launch(name: str, tmp_path: Path) -> None:
    build, launched = TOGETHER[name]
    region = region_of(*build())
    kernel = read_region(region)
    assert len(kernel.launched) == launched and len(region.kernels) > 1
    programs = programs_of(kernel, 2)
    given = {b.slot: random_rows(b.size) for b in kernel.buffers if b.dtype is dtypes.uint8}
    cases = {
        str(number): Case(region, generate_kernel(kernel, TARGET, p, interpreted=True), inputs=given, seed=number + 1)
        for number, p in enumerate(programs)
    }
    assert not wrong_of(cases, tmp_path)
    assert [len(case.program.launches) for case in cases.values()] == [1 + (p.split > 1) for p in programs]


# ---- weights of which memory says where they are

EXPERTS = 5


def of_experts(kind: str, rows: int, *, own_vectors: bool = False, chosen: Callable[[], Tensor]) -> Tensor:
    """(chosen, rows): the products with the chosen ones of some matrices, of one vector or of one each."""
    places = chosen()
    weights = PackedWeights()("w", (EXPERTS, rows, 512), kind)[places]
    x = empty(places.shape[0] if own_vectors else 1, 1, 512)
    return x.matmul(weights.transpose(-1, -2), dtype="float32").contiguous()


def in_memory() -> Tensor:
    return empty(3, dtype="int32")


def by_ranks() -> Tensor:
    """The places of the three largest ranks, as a router's choice is found."""
    ranks = empty(EXPERTS, dtype="int32")
    found = ranks.reshape(1, EXPERTS) == Tensor.arange(2, 5).reshape(3, 1)
    return (found.cast("int32") * Tensor.arange(EXPERTS).reshape(1, EXPERTS)).sum(1)


CHOSEN = {
    "in memory": ("q4_k", 24, False, in_memory),
    "by ranks": ("q8_0", 16, False, by_ranks),
    "vectors of their own": ("q6_k", 13, True, in_memory),
    "blocks that begin anywhere": ("q5_0", 7, True, by_ranks),
    "whole numbers and a minimum": ("q4_1", 16, False, in_memory),
}
"""Name -> format, rows of an expert, whether each has a vector of its own, and where it is said which are chosen."""


@with_triton
def test_a_row_of_one_block_is_right(tmp_path: Path) -> None:
    """Its scales are the same for all steps: they are no words of a step."""
    region, kernel = product_of("q5_k", 21, 256)
    first = default_parameters(kernel, TARGET)
    programs = [first.changed(unpacked=8)]
    assert compare(cases_of(region, kernel, programs, lambda n: blocks_of("q5_k", 21, 256, n)), tmp_path) == [""] * len(
        programs
    )


@with_triton
@pytest.mark.parametrize("name", some(CHOSEN, {"by ranks", "blocks that begin anywhere"}))
def test_products_with_chosen_experts_are_packed(name: str, tmp_path: Path) -> None:
    kind, rows, own_vectors, chosen = CHOSEN[name]
    region, kernel = _read(of_experts(kind, rows, own_vectors=own_vectors, chosen=chosen))
    (packed,) = packed_sums(kernel)
    assert packed.looked_up and len(rows_of(kernel, packed)) == 1, "which expert it is numbers no row"
    programs = programs_of(kernel, 3)
    assert all(p.axes == programs[0].axes and len(p.tile) == 1 for p in programs), "a program is of one expert"
    (places,) = (b.slot for b in kernel.buffers if b.dtype is dtypes.int32)
    wanted = {3: [4, 0, 3], EXPERTS: [3, 0, 4, 1, 2]}[next(b.size for b in kernel.buffers if b.slot == places)]
    given = {slot_of_words(kernel): blocks_of(kind, EXPERTS * rows, 512), places: np.array(wanted, np.int32)}
    cases = {
        str(number): Case(region, generate_kernel(kernel, TARGET, p, interpreted=True), inputs=given, seed=number + 1)
        for number, p in enumerate(programs)
    }
    assert not wrong_of(cases, tmp_path)


@with_triton
@pytest.mark.parametrize(("kinds", "rows"), first_rows(1, [(("q4_k", "q6_k"), 24), (("q4_k", "q4_k"), 16)]))
def test_products_of_one_vector_with_chosen_experts_are_one_launch(
    kinds: tuple[str, str], rows: int, tmp_path: Path
) -> None:
    """As gate and up, also of two formats: programs of each expert of the first, then those of the second."""
    places, x = in_memory(), empty(1, 1, 512)
    weights = [PackedWeights()(kind + str(n), (EXPERTS, rows, 512), kind)[places] for n, kind in enumerate(kinds)]
    region = region_of(*(x.matmul(one.transpose(-1, -2), dtype="float32").contiguous() for one in weights))
    kernel = read_region(region)
    assert len(kernel.launched) == len(region.kernels) == 2
    programs = programs_of(kernel, 3)
    assert all(p.form == PACKED for p in programs)
    chosen = next(b.slot for b in kernel.buffers if b.dtype is dtypes.int32)
    held = sorted((b.slot, b.size) for b in kernel.buffers if b.dtype is dtypes.uint8)
    given = {slot: random_rows(size) for slot, size in held} | {chosen: np.array([4, 0, 3], np.int32)}
    cases = {
        str(number): Case(region, generate_kernel(kernel, TARGET, p, interpreted=True), inputs=given, seed=number + 1)
        for number, p in enumerate(programs)
    }
    assert not wrong_of(cases, tmp_path)


@with_triton
def test_an_expert_that_does_not_exist_has_no_weights(tmp_path: Path) -> None:
    """tinygrad gives zeros where a place is none, and reads nothing there."""
    region, kernel = _read(of_experts("q4_k", 8, chosen=in_memory))
    programs = programs_of(kernel, 1)
    (places,) = (b.slot for b in kernel.buffers if b.dtype is dtypes.int32)
    given = {slot_of_words(kernel): blocks_of("q4_k", EXPERTS * 8, 512), places: np.array([7, -1, -9], np.int32)}
    cases = [Case(region, generate_kernel(kernel, TARGET, p, interpreted=True), inputs=given) for p in programs]
    assert compare(cases, tmp_path) == [""] * len(cases)


@with_triton
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kernels"), [("iq3_xxs", 3), ("mxfp4", 3), ("iq2_s", 2)])
def test_of_a_table_that_is_made_whole_only_the_chosen_rows_are(
    kind: str, kernels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tinygrad makes float16 of all experts' weights before it takes those of the chosen ones."""
    config = replace(PRESETS["mini-moe"], file=kind)
    monkeypatch.setitem(PRESETS, "mini-moe", config)
    proposals = propose(spec_of("llm").capture("mini-moe"))
    found = [one.region for one in proposals.candidates.values() if one.form is Form.PROLOGUE]
    sums = {region: packed_sums(read_region(region)) for region in found if len(region.kernels) == kernels}
    chosen = [region for region, packed in sums.items() if packed and packed[0].looked_up]
    assert len(chosen) == 2, "gate and up, and down"
    cases = {}
    for region in chosen:
        kernel = read_region(region)
        (ranks,) = (b.slot for b in kernel.buffers if b.dtype is dtypes.int32)
        _, slot = max((b.size, b.slot) for b in kernel.buffers if b.dtype is dtypes.uint8)
        (size,) = (b.size for b in kernel.buffers if b.slot == slot)
        blocks = random_blocks(kind, size // FORMATS[kind].nbytes, 0.05, np.random.default_rng(3)).reshape(-1)
        given = {slot: blocks, ranks: np.array([2, 0, 3, 1], np.int32)}
        first = default_parameters(kernel, TARGET).changed(tile=(16,))
        for number, p in enumerate([first, first.changed(unpacked=1)]):
            assert is_legal(kernel, TARGET, p)
            program = generate_kernel(kernel, TARGET, p, interpreted=True)
            cases[f"{len(cases)}"] = Case(region, program, inputs=given, seed=number + 1)
    assert not wrong_of(cases, tmp_path)
