"""Products with packed weights by warps that unpack and warps that multiply, run on the CPU with barriers as the
hardware has them: right, and nobody waits for ever, reads what is overwritten, or what was not made visible."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.forms import REGISTRY, forms_of, plan_of
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal
from kcg.kernel.tile.parameters import CONTRACTION, UNPACKING, TileParameters
from kcg.kernel.tile.plan import Way, needs_stress
from kcg.kernel.tile.prior import default_parameters, parameters_of
from kcg.kernel.tile.unpacking import TILES
from kcg.kernel.tile.views import MatmulView
from kcg.types import Region
from tests.kernel.tile.gluon_on_cpu import ProtocolError, wrong_in_gluon
from tests.kernel.tile.running import Case
from tests.kernel.tile.test_tile_packed import blocks_of, slot_of_words
from tests.kernel.tile.test_tile_packed_prompts import UNPACKED, product_of
from tests.known_targets import KNOWN_TARGETS
from tests.slow import every, some

TARGET = replace(KNOWN_TARGETS["sm_90"], cores=2)
"""Of a handful of tiles each multiprocessor has several."""
RUN_ALWAYS = ("q4_k", "q8_0", "q6_k", "q4_0")
SIZES = {"whole": (256, 768, 256), "ragged": (201, 512, 150), "one tile": (128, 1024, 64)}
"""Rows of the weights, weights of each, vectors."""


def first_of(kernel: TileKernel) -> TileParameters:
    return parameters_of(kernel, TARGET, UNPACKING, REGISTRY[UNPACKING].axes(MatmulView.of(kernel))[0])


def case_of(kind: str, sizes: tuple[int, int, int], **changes: object) -> Case:
    region, kernel = read(kind, sizes)
    p = first_of(kernel).changed(**changes)
    assert is_legal(kernel, TARGET, p), p
    rows, inputs, _ = sizes
    given = {slot_of_words(kernel): blocks_of(kind, rows, inputs)}
    return Case(region, generate_kernel(kernel, TARGET, p), inputs=given)


@cache
def read(kind: str, sizes: tuple[int, int, int]) -> tuple[Region, TileKernel]:
    return product_of(kind, *sizes, "float16")


@pytest.mark.parametrize("kind", some(UNPACKED, RUN_ALWAYS))
@pytest.mark.parametrize("name", SIZES)
def test_products_are_right_and_keep_to_their_protocol(kind: str, name: str) -> None:
    sizes = SIZES[name]
    kernel = read(kind, sizes)[1]
    if UNPACKING not in {form.name for form in forms_of(kernel, TARGET)}:
        pytest.skip("a turn has no whole runs of terms")
    tile = TILES[0] if sizes[2] > 128 else TILES[1]
    assert first_of(kernel).tile == tile
    for stages in (2, 3, 4):
        if is_legal(kernel, TARGET, first_of(kernel).changed(num_stages=stages)):
            assert not wrong_in_gluon(case_of(kind, sizes, num_stages=stages)), stages
