"""The benchmark of decoding: what it times, what that is compared with, and its headline. No GPU is asked."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.pytorch import beam_token, decode, prompts
from evaluation.pytorch.decode import FIRST, INPUTS, IQ, KINDS, TORCH, headline, programs_of, region_of
from evaluation.rows import Row
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.targets import target_named
from kcg.kernel.tile.contraction import unpacks
from kcg.kernel.tile.parameters import CONTRACTION, PACKED, UNPACKING
from kcg.workloads.packed_weights import FORMATS, PackedWeights, random_blocks
from tests.slow import some

TARGET = target_named("sm_90")
ENDING = {"iq4_xs", "mxfp4"}  # formats of which a kernel ends tinygrad's X86 assembler, and the process with it


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "LEAST_BYTES", 1)
    monkeypatch.setattr(decode, "ROWS_UNIT", 64)


@pytest.mark.parametrize("kind", some(KINDS, ("q4_k", "mxfp4", "iq3_xxs")))
def test_each_format_has_programs_and_all_that_its_kernel_reads(kind: str) -> None:
    region, rows = region_of(kind)
    kernel = read_kernel(region)
    programs = programs_of(region, TARGET)
    assert len(programs) > 4 and {p.form for p in programs} == {PACKED}
    blocks = random_blocks(kind, rows * INPUTS // FORMATS[kind].weights, 0.01, np.random.default_rng(1)).reshape(-1)
    tables = {buffer.slot: values for buffer, values in decode.tables_of(kernel, kind, blocks, rows).items()}
    for buffer in kernel.buffers:
        given = buffer.slot in tables or buffer.written or buffer.size in (INPUTS, blocks.size)
        assert given, f"nobody gives buffer {buffer.slot} of {buffer.size} elements"
    assert all(values.size == kernel.buffers[slot].size for slot, values in tables.items())


@pytest.mark.parametrize(
    "kind", some(sorted(set(KINDS) - {"iq4_xs", "mxfp4"}), ("q8_0",))
)  # these end tinygrad's assembler
def test_the_reference_is_the_product_of_the_unpacked_weights(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcg.compat.device.prepare", lambda _: None)  # tests have no CUDA
    rng = np.random.default_rng(2)
    blocks = random_blocks(kind, 4 * 512 // FORMATS[kind].weights, 0.05, rng).reshape(4, -1)
    one = np.zeros(512, np.float32)
    one[7] = 1.0
    both = one.copy()
    both[300] = -2.0
    first, second = (decode.expected_of(kind, blocks, vector) for vector in (one, both))
    other = np.zeros(512, np.float32)
    other[300] = 1.0
    assert np.allclose(second, first - 2 * decode.expected_of(kind, blocks, other), rtol=0, atol=1e-12)
    assert np.any(first) and first.shape == (4,)


def test_the_fastest_is_chosen_by_one_half_of_the_timings_and_told_by_the_other() -> None:
    seen = {"lucky": [1.0, 5.0, 1.0, 5.0], "steady": [2.0, 2.0, 2.0, 2.0]}
    assert decode.chosen(seen) == ("lucky", 5.0)


def test_programs_of_a_prompts_products_and_what_they_are_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "ROWS", 256)
    weights = PackedWeights()("w", (prompts.ROWS, prompts.INPUTS), "q4_k")
    region = prompts.region_of(weights, "float16")
    contraction = read_kernel(region).contraction
    assert contraction is not None and unpacks(contraction)
    programs = prompts.unpacking(region, TARGET)
    assert len(programs) > 8 and {p.form for p in programs} == {CONTRACTION, UNPACKING}
    scratch = prompts.scratch_region("q4_k")
    others = prompts.cheapest(scratch, TARGET, 8)
    assert len(others) > 4 and {b.size for b in read_kernel(scratch).buffers} == {
        prompts.ROWS * INPUTS,
        FORMATS["q4_k"].bytes_of(prompts.ROWS * INPUTS),
    }


@pytest.mark.slow
def test_a_token_with_what_beam_found_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found in no time: the token is that of schedules by hand."""
    monkeypatch.setenv("DEV", "CPU")
    row = beam_token.row("mini", limit_s=1.0)
    assert row["was_cut"] and row["found"] == 0 and not row["fault"]
    assert row["tokens_per_s"] > 0 and row["width"] == 2


def test_the_headline_has_what_is_there() -> None:
    assert headline({}) == {}
    rows: dict[str, Row] = {f"product {kind}": {"of_read": 0.5} for kind in KINDS}
    rows["product q5_0"] = {"of_read": 0.4}
    rows["product iq2_s"] = {"of_read": 0.1}
    rows["product q8_0"] = {"status": "failed", "reason": "off by 1 of the outputs' size"}
    rows["token llama-1b-f16"] = {"preset": "llama-1b-f16", "token_s": 0.002, "result_s": 90.0, "events_s": 0.001}
    rows["token llama-1b-f16, 60 s"] = {**rows["token llama-1b-f16"], "token_s": 0.009, "events_s": 0.00125}
    rows["token qwen-8b-q8_0"] = {"preset": "qwen-8b-q8_0", "tokens_per_s": 180.0}
    rows["prompt q4_k"] = {"vs_dense": 0.4, "vs_scratch": 0.6}
    rows["prompt q8_0"] = {"vs_dense": 0.3, "vs_scratch": 0.7}
    rows["beam qwen-8b-q4_k_m"] = {"preset": "qwen-8b-q4_k_m", "tokens_per_s": 5.0}
    rows[TORCH] = {"token_s": 0.003}
    found = headline(rows)
    assert "q8_0_of_read" not in found and found["q4_k_of_read"] == 0.5
    assert (found["others_of_read_min"], found["iq_of_read_min"]) == (0.4, 0.1)
    assert (found["llama_1b_ms"], found["llama_1b_vs_compile"], found["result_s"]) == (2.0, 1.5, 90.0)
    assert found["share_60"] == 0.8 and found["qwen_q4_beam_tokens_per_s"] == 5.0
    assert (found["prefill_vs_dense_min"], found["prefill_vs_scratch_min"]) == (0.3, 0.6)
    assert found["qwen_q8_tokens_per_s"] == 180.0 and "qwen_q4_tokens_per_s" not in found
    assert {*FIRST, *IQ} < {*KINDS}
