"""Products of a prompt's vectors with packed weights, which are unpacked for a tensor core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tinygrad import Tensor, Variable

from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.contraction import unpacks
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal, random_parameters
from kcg.kernel.tile.parameters import CONTRACTION, TF32X3, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.types import Region, Variables
from kcg.workloads.packed_weights import FORMATS, PackedWeights
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, compare
from tests.kernel.tile.test_tile_packed import TARGET, _read, blocks_of, cases_of
from tests.kernels import empty
from tests.slow import some

with_triton = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)

UNPACKED = tuple(kind for kind in FORMATS if kind not in ("f32", "f16", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs", "mxfp4"))
"""Of the others tinygrad makes the weights in a kernel of their own."""
RUN_ALWAYS = ("q4_k", "q5_0")


def product_of(kind: str, rows: int, inputs: int, vectors: int, dtype: str) -> tuple[Region, TileKernel]:
    """The kernel of a product of vectors with packed weights."""
    weights = PackedWeights()("w", (rows, inputs), kind)
    if dtype == "float32":
        return _read(empty(vectors, inputs).dot(weights.T, dtype="float32"))
    return _read(empty(vectors, inputs, dtype=dtype).dot(weights.T, dtype="float32"))


def programs_of(kernel: TileKernel, count: int, seed: int = 3) -> list[TileParameters]:
    """So many legal programs."""
    rng, found = Random(seed), list[TileParameters]()
    while len(found) < count:
        p = random_parameters(kernel, TARGET, rng)
        if p.form == CONTRACTION and p.tile[0] * p.tile[1] <= 4096:
            assert is_legal(kernel, TARGET, p), p
            found.append(p)
    return found


def plain_bytes() -> Tensor:
    """Weights of eight bits with a scale for each row."""
    weights = empty(48, 96, dtype="int8").cast("float16") * empty(48, 1, dtype="float16")
    return empty(40, 96, dtype="float16").dot(weights.T, dtype="float32")


def both_packed() -> Tensor:
    """Two operands of bytes, each with scales of its blocks."""
    left, right = (empty(rows, 3, 32, dtype="uint8").cast("float16") for rows in (40, 48))
    scaled = [x * empty(rows, 3, 1, dtype="float16") for x, rows in ((left, 40), (right, 48))]
    one, other = (x.reshape(-1, 96) for x in scaled)
    return one.dot(other.T, dtype="float32")


def symbolic_terms() -> Tensor:
    """As many bytes as a variable says."""
    length = Variable("length", 1, 64).bind(37)
    return empty(24, 64, dtype="float16")[:, :length].dot(
        empty(64, 32, dtype="uint8")[:length].cast("float16"), dtype="float32"
    )


@with_triton
@pytest.mark.parametrize(
    ("made", "variables"),
    [(plain_bytes, ()), (both_packed, ()), (symbolic_terms, (("length", 37),))],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_other_operands_of_bytes_are_right_too(
    made: Callable[[], Tensor], variables: Variables, tmp_path: Path
) -> None:
    region, kernel = _read(made())
    assert kernel.contraction is not None and unpacks(kernel.contraction) is not bool(variables)
    programs = programs_of(kernel, 4)
    cases = [
        Case(region, generate_kernel(kernel, TARGET, p, interpreted=True), variables, seed=number + 1)
        for number, p in enumerate(programs)
    ]
    assert compare(cases, tmp_path) == [""] * len(programs)


@with_triton
def test_words_that_begin_where_a_scalar_says_are_read_no_further_than_they_go(tmp_path: Path) -> None:
    """Blocks of 210 bytes begin at any even byte; which one it is, is a scalar where each choice is written out."""
    region, kernel = product_of("q6_k", 48, 512, 32, "float16")
    first = default_parameters(kernel, TARGET)
    programs = [first.changed(tile=(16, 16), reduce_tile=step, num_warps=2) for step in (64, 128, 256)]
    cases = cases_of(region, kernel, programs, lambda number: blocks_of("q6_k", 48, 512, number))
    assert compare(cases, tmp_path) == [""] * 3


@with_triton
@pytest.mark.parametrize("kind", some(UNPACKED, RUN_ALWAYS))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_programs_of_a_prompt_compute_what_the_kernel_does(kind: str, dtype: str, tmp_path: Path) -> None:
    region, kernel = product_of(kind, 72, 512, 20, dtype)
    assert kernel.contraction is not None and unpacks(kernel.contraction)
    programs = [default_parameters(kernel, TARGET), *programs_of(kernel, 3)]
    assert programs[0].form == CONTRACTION
    if dtype == "float32" and kind != "q1_0":  # whose weights are products of two numbers
        assert programs[0].precision == TF32X3, "on tensor cores"
    cases = cases_of(region, kernel, programs, lambda number: blocks_of(kind, 72, 512, number))
    assert compare(cases, tmp_path) == [""] * 4
