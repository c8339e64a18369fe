"""Products of a prompt's vectors with packed weights, which are unpacked for a tensor core."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.contraction import unpacks
from kcg.kernel.tile.legal import is_legal, random_parameters
from kcg.kernel.tile.parameters import CONTRACTION, TileParameters
from kcg.kernel.tile.plan import SEVERAL
from kcg.kernel.tile.prior import default_parameters
from kcg.types import Region
from kcg.workloads.packed_weights import FORMATS, PackedWeights
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, compare
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
    """The prior's choice, and so many legal programs."""
    rng, found = Random(seed), [default_parameters(kernel, TARGET)]
    assert found[0].form == CONTRACTION
    while len(found) <= count:
        p = random_parameters(kernel, TARGET, rng)
        if p.form == CONTRACTION and p.tile[0] * p.tile[1] <= 4096:
            assert is_legal(kernel, TARGET, p), p
            found.append(p)
    return found


@with_triton
@pytest.mark.parametrize("kind", some(UNPACKED, RUN_ALWAYS))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_programs_of_a_prompt_compute_what_the_kernel_does(kind: str, dtype: str, tmp_path: Path) -> None:
    region, kernel = product_of(kind, 72, 512, 20, dtype)
    assert kernel.contraction is not None and unpacks(kernel.contraction)
    programs = programs_of(kernel, 3)
    if dtype == "float32" and kind != "q1_0":  # whose weights are products of two numbers
        assert programs[0].precision == SEVERAL, "on tensor cores"
    cases = cases_of(region, kernel, programs, lambda number: blocks_of(kind, 72, 512, number))
    assert compare(cases, tmp_path) == [""] * 4
