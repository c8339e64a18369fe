"""Products with packed weights by warps that unpack and warps that multiply, run on the CPU with barriers as the
hardware has them: right, and nobody waits for ever, reads what is overwritten, or what was not made visible."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from kcg.compat.tiny import Ops, dtypes
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.device import device_of
from kcg.kernel.tile.forms import REGISTRY, forms_of, plan_of
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal
from kcg.kernel.tile.parameters import CONTRACTION, UNPACKING, TileParameters
from kcg.kernel.tile.plan import Way, needs_stress
from kcg.kernel.tile.prior import default_parameters, parameters_of
from kcg.kernel.tile.space import schedule_of
from kcg.kernel.tile.unpacking import TILES, UnpackingPlan
from kcg.kernel.tile.views import MatmulView
from kcg.types import Region
from tests.kernel.tile.gluon_on_cpu import ProtocolError, wrong_in_gluon
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case
from tests.kernel.tile.test_tile_packed import blocks_of, slot_of_words
from tests.kernel.tile.test_tile_packed_prompts import UNPACKED, product_of
from tests.known_targets import KNOWN_TARGETS
from tests.slow import every, some

TARGET = replace(KNOWN_TARGETS["sm_90"], cores=2)
"""Of a handful of tiles each multiprocessor has several."""
RUN_ALWAYS = ("q4_k", "q8_0", "q6_k", "q4_0")
SPILLED = {"q4_k": 0, "q8_0": 0, "q4_0": 0, "q6_k": 64}
"""At most so many bytes: of Q6_K a thread has words of three arrays."""
SIZES = {"whole": (512, 768, 256), "ragged": (201, 512, 150), "one tile": (128, 1024, 64)}
"""Rows of the weights, weights of each, vectors."""
UNEVEN = {"q6_k": 2048, "q1_0": 1024}
"""Formats of which rows are multiples of 16 bytes only where they have so many weights."""


def first_of(kernel: TileKernel) -> TileParameters:
    return parameters_of(kernel, TARGET, UNPACKING, REGISTRY[UNPACKING].axes(MatmulView.of(kernel))[0])


def case_of(kind: str, sizes: tuple[int, int, int], **changes: object) -> Case:
    region, kernel = read(kind, sizes)
    p = first_of(kernel).changed(**changes)
    assert is_legal(kernel, TARGET, p), p
    rows, inputs, _ = sizes
    given = {slot_of_words(kernel): blocks_of(kind, rows, inputs)}
    return Case(region, generate_kernel(kernel, TARGET, p), inputs=given)


def sizes_of(kind: str, name: str) -> tuple[int, int, int]:
    rows, inputs, vectors = SIZES[name]
    return rows, UNEVEN.get(kind, inputs), vectors


@cache
def read(kind: str, sizes: tuple[int, int, int]) -> tuple[Region, TileKernel]:
    return product_of(kind, *sizes, "float16")


@pytest.mark.parametrize("kind", some(UNPACKED, RUN_ALWAYS))
@pytest.mark.parametrize("name", SIZES)
def test_products_are_right_and_keep_to_their_protocol(kind: str, name: str) -> None:
    sizes = sizes_of(kind, name)
    kernel = read(kind, sizes)[1]
    tile = TILES[0] if sizes[2] > 128 else TILES[1]
    assert first_of(kernel).tile == tile
    for stages in (2, 3, 4):
        if is_legal(kernel, TARGET, first_of(kernel).changed(num_stages=stages)):
            assert not wrong_in_gluon(case_of(kind, sizes, num_stages=stages)), stages


def test_a_search_compares_it_and_few_vectors_are_left_to_others() -> None:
    for vectors, others in ((32, set()), (64, {UNPACKING}), (512, {UNPACKING})):
        kernel = product_of("q4_k", 256, 512, vectors, "float16")[1]
        assert {form.name for form in forms_of(kernel, TARGET)} & {UNPACKING} == others
        assert default_parameters(kernel, TARGET).form == CONTRACTION
    of_float32 = product_of("q4_k", 256, 512, 256, "float32")[1]
    assert UNPACKING not in {form.name for form in forms_of(of_float32, TARGET)}


def test_rows_that_tma_cannot_load_are_left_to_others() -> None:
    for inputs, has in ((768, False), (2048, True)):
        kernel = product_of("q6_k", 256, inputs, 256, "float16")[1]
        assert (UNPACKING in {form.name for form in forms_of(kernel, TARGET)}) is has


def test_its_plan_says_who_waits_for_whom_and_how_bytes_come() -> None:
    kernel = read("q6_k", sizes_of("q6_k", "whole"))[1]
    p = first_of(kernel)
    plan = plan_of(kernel, TARGET, p)
    assert [(one.name, one.slots, one.arrivals) for one in plan.barriers] == [
        ("full", 3, 2), ("empty", 3, 2), ("arrived", 2, 1), ("used", 2, 2)
    ]  # fmt: skip
    words = 2 * 128 * (80 + 48 + 32 + 16)  # of a row 128 weights: two arrays of bits, scales, and that of a block
    assert needs_stress(plan) and plan.shared_bytes > 3 * 2 * 64 * (256 + 128) + words
    ways = {load.access.buffer.dtype.name: load.way for load in plan.loads}
    assert ways == {"half": Way.TMA, "unsigned char": Way.TMA}
    alone = plan_of(kernel := read("q8_0", SIZES["whole"])[1], TARGET, first_of(kernel))
    assert [(one.name, one.slots, one.arrivals) for one in alone.barriers[2:]] == [("arrived", 2, 1)]
    held = plan.registers(device_of(TARGET))
    assert held.likely + plan.register_shares[1] == 256 and device_of(TARGET).registers == 128 * 2 * 256


def test_both_scales_of_a_block_are_multiplied_once_for_all_weights_that_share_them() -> None:
    """Of Q6_K: 128 weights of a turn, of which 16 have one scale of eight bits and all that of their block."""
    kernel = read("q6_k", sizes_of("q6_k", "whole"))[1]
    plan = plan_of(kernel, TARGET, first_of(kernel))
    assert isinstance(plan, UnpackingPlan)
    terms = plan.product.weights.terms
    products = {node for term in terms for node in term.toposort() if node.op is Ops.MUL and node.dtype is dtypes.float}
    assert len(terms) == 128 and len(products) == 128 + 128 // 16


def test_bytes_that_are_shifted_by_the_number_of_a_range_are_words_moved_down_by_it() -> None:
    """Of Q5_K each of eight groups of 32 weights has a bit of its own of each of 32 bytes; a turn has two groups."""
    source = case_of("q5_k", SIZES["whole"]).program.source
    assert "uint8" not in source[source.index("every other turn") :].split("def tile_kernel")[0]


BROKEN = {
    "a slot is not given back": ("q4_k", r"mbarrier\.arrive\(empty.*count=1\)", "pass"),
    "a slot is given back too early": ("q4_k", r"warpgroup_mma_wait\(1,", "warpgroup_mma_wait(2,"),
    "who unpacks does not wait for a slot": ("q4_k", r"mbarrier\.wait\(empty.*", "pass"),
    "who multiplies does not wait for a slot": ("q4_k", r"mbarrier\.wait\(full.*", "pass"),
    "a slot is full without its weights": ("q4_k", r"mbarrier\.arrive\(full.*", "pass"),
    "a slot is full by the vectors alone": ("q4_k", r"(init\(full.*)count=2", r"\1count=1"),
    "no fence behind the weights": ("q4_k", r"fence_async_shared\(\)(\n +mbarrier\.arrive\(full)", r"pass\1"),
    "no fence behind the words": ("q8_0", r"fence_async_shared\(\)(\n +more)", r"pass\1"),
    "a group has another one's rows": ("q4_k", r"group \* 128", "0 * 128"),
    "words of another turn": ("q4_k", r"(turn\d* = number) \+ 2", r"\1 + 1"),
    "who unpacks does not wait for words": ("q8_0", r"mbarrier\.wait\(arrived.*", "pass"),
    "words of another group": ("q4_0", r"(as_words\(bytes\d)\.index\(group", r"\1.index(1 - group"),
    "words are there a turn before": ("q4_k", r"(arrived\.index\(group\)), taken & 1", r"\1, taken & 1 ^ 1"),
    "words that begin anywhere": ("q6_k", r"(byte\d*) & -16", r"\1"),
    "words that both take are not given back": ("q6_k", r"mbarrier\.arrive\(used.*", "pass"),
    "words are asked for before both took the last": ("q6_k", r"mbarrier\.wait\(used.*", "pass"),
    "both groups make the same slots": ("q6_k", "if group == 1:", "if group >= 0:"),
    "words are asked for once more": ("q8_0", r"more = number \+ 2 < ", "more = number < "),
    "tiles are left out": ("q4_k", r"range\((program), 4, 2\)", r"range(\1, 3, 2)"),
    "vectors of another slot": ("q6_k", r"begin = number \* 128 \+ 64", "begin = number * 128"),
}
"""What is done -> of which format, and how."""


@pytest.mark.parametrize("what", every(3, BROKEN))
def test_a_broken_protocol_is_seen(what: str) -> None:
    kind, text, by = BROKEN[what]
    case = case_of(kind, sizes_of(kind, "whole"), num_stages=3)
    source, count = re.subn(text, by, case.program.source)
    assert count
    broken = replace(case, program=replace(case.program, source=source))
    with pytest.raises(ProtocolError):
        wrong = next(filter(None, (wrong_in_gluon(replace(broken, seed=1 + n)) for n in range(4))), "")
        raise ProtocolError(wrong) if wrong else AssertionError("nobody saw it")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize(("kind", "tile", "most"), [(k, t, m) for k, m in SPILLED.items() for t in TILES])
def test_they_compile_for_a_tensor_core(kind: str, tile: tuple[int, int], most: int) -> None:
    target = replace(KNOWN_TARGETS["sm_90"], cores=132)
    region, kernel = read(kind, (14336, 4096, 512))
    report = dict(
        compile_tile(region, schedule_of(first_of(kernel).changed(tile=tile)), target).launches[0].compiled.report
    )
    assert (report["warps"], report["wgmma"]) == (16, 1)
    assert report["spilled_bytes"] <= (most if tile == TILES[0] else 0), "of smaller tiles registers are left"
