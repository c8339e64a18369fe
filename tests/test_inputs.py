"""Inputs are finite, the same in every process, in the range of what they index, and stored as on the device."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

import kcg.measure.inputs as inputs_module
from kcg.compat.hardware import repetitions
from kcg.compat.tiny import UOp
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.evaluate import buffers, evaluate, sample_points
from kcg.measure.inputs import (
    BLOCK,
    FEW,
    FEW_RECIPE,
    POSITIVE_RECIPE,
    RECIPE,
    SMALL_INTEGERS,
    UNIT_RECIPE,
    Repeated,
    _block,
    buffers_of,
    integer_bounds,
    make_inputs,
    numpy_dtype,
    to_bits,
    to_values,
)
from kcg.measure.target import detect
from kcg.measure.workbench import Workbench
from tests.kernels import empty, example_asts, example_region, kernels_of

ASTS = example_asts()
VARIABLES = {"length": 20, "position": 3}


@cache
def example(name: str) -> UOp:
    return ast_of(example_region(name).kernel)


def digest() -> str:
    """One hash of the inputs of every example under both recipes."""
    total = hashlib.sha256()
    for name in sorted(ASTS):
        for recipe in (RECIPE, POSITIVE_RECIPE):
            for slot, bits in sorted(make_inputs(example(name), 3, recipe=recipe).items()):
                total.update(f"{name} {recipe} {slot} {bits.dtype}".encode() + bits.tobytes())
    return total.hexdigest()


def test_same_in_every_process() -> None:
    code = "from tests.test_inputs import digest; print(digest())"
    other = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "7"}, stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    assert other.stdout.strip() == digest()


@pytest.mark.parametrize("name", ASTS)
def test_every_kernel_gets_what_it_reads(name: str) -> None:
    ast = example(name)
    infos = {info.slot: info for info in buffers_of(ast)}
    assert [(i.slot, i.size, i.is_output, i.is_input) for i in infos.values()] == [
        (use.slot, use.size, use.is_output, use.is_input) for use in buffers(ast)
    ]
    for recipe in (RECIPE, POSITIVE_RECIPE):
        inputs = make_inputs(ast, 0, recipe=recipe)
        assert set(inputs) == {slot for slot, info in infos.items() if info.is_input}
        for slot, bits in inputs.items():
            values = to_values(bits, infos[slot].dtype)
            assert bits.size == infos[slot].size and bits.nbytes == infos[slot].nbytes
            assert bits.dtype == numpy_dtype(infos[slot].dtype)
            if values.dtype.kind == "f":
                assert np.isfinite(values).all()
                assert (values > 0).all() if recipe == POSITIVE_RECIPE else ((values < 0).any() or values.size < 8)


@pytest.mark.parametrize("name", ASTS)
def test_no_index_leaves_its_buffer(name: str) -> None:
    ast = example(name)
    infos = {info.slot: info for info in buffers_of(ast)}
    for seed in range(3):
        values = {slot: to_values(bits, infos[slot].dtype) for slot, bits in make_inputs(ast, seed).items()}
        points = sample_points(ast, 64, np.random.default_rng(seed), VARIABLES)
        for store in evaluate(ast, values, points, VARIABLES):  # raises where an index does
            assert len(store.indices) == len(store.values)


@pytest.mark.parametrize(
    ("name", "slot", "extent"),
    [("embedding", 1, 20), ("take_along", 1, 10), ("one_hot", 1, 6), ("cross_entropy.2", 4, 10), ("scatter", 1, 6)],
)
def test_integers_cover_what_they_index(name: str, slot: int, extent: int) -> None:
    assert integer_bounds(example(name))[slot] == extent
    drawn = np.concatenate([make_inputs(example(name), seed)[slot] for seed in range(40)])
    assert drawn.min() == 0 and drawn.max() == extent - 1


def test_other_integers_are_small_and_signed() -> None:
    (signed,) = {slot for slot, info in ((i.slot, i) for i in buffers_of(example("int_min"))) if info.is_input}
    drawn = make_inputs(example("int_min"), 0)[signed]
    assert drawn.min() == -SMALL_INTEGERS and drawn.max() == SMALL_INTEGERS - 1
    unsigned = make_inputs(example("integer_sum"), 0)[1]
    assert unsigned.dtype == np.uint8 and unsigned.max() == SMALL_INTEGERS - 1


def test_few_numbers_are_few_in_every_type() -> None:
    assert {*np.unique(make_inputs(example("matmul_f32"), 0, recipe=FEW_RECIPE)[1])} == {*FEW}
    assert {*np.unique(make_inputs(example("integer_sum"), 0, recipe=FEW_RECIPE)[1])} == {0, 1, 2, 3}


def test_a_recipe_stays_between_0_and_1_and_without_a_0() -> None:
    drawn = make_inputs(example("matmul_f32"), 0, recipe=UNIT_RECIPE)
    assert all(0 < values.min() < 0.2 and 0.8 < values.max() < 1 for values in drawn.values())
    drawn = make_inputs(example("int_min"), 0, recipe=UNIT_RECIPE)
    assert {(values.min(), values.max()) for values in drawn.values()} == {(1, SMALL_INTEGERS)}
    indices = make_inputs(example("embedding"), 0, recipe=UNIT_RECIPE)[1]
    assert indices.max() < 20, "what selects something stays in its range"


def test_seeds_slots_and_recipes_differ() -> None:
    ast = example("matmul_f32")
    drawn = [make_inputs(ast, seed, recipe=recipe) for seed in (0, 1) for recipe in (RECIPE, POSITIVE_RECIPE)]
    arrays = [inputs[slot][:900].tobytes() for inputs in drawn for slot in sorted(inputs)]
    assert len(arrays) == 8 and len(set(arrays)) == 8
    values = drawn[0][1]
    assert 0.9 < np.std(values) < 1.1 and 0.03 < np.mean(np.abs(values) < 0.0625) < 0.3, "mixed scales"


def bfloat16_of(value: float) -> int:
    """Round to nearest, ties to even, by exact arithmetic on all neighbours: slow and beyond doubt."""
    down = int(np.float32(value).view(np.uint32)) >> 16  # towards zero
    exact = Fraction(value)
    low, high = (Fraction(float(np.uint32(bits << 16).view(np.float32))) for bits in (down, down + 1))
    below, above = abs(exact - low), abs(high - exact)
    return down if below < above or (below == above and down % 2 == 0) else down + 1


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 4000, dtype=np.uint32)
    bits[:1000] = bits[:1000] & 0xFFFF0000 | 0x8000  # ties
    bits[1000:1200] &= 0x807FFFFF  # subnormals
    values = bits.view(np.float32)
    values = values[np.isfinite(values) & (np.abs(values) < 3e38)]
    got = to_bits(values, "__bf16")
    assert got.dtype == np.uint16
    assert got.tolist() == [bfloat16_of(float(v)) for v in values]


def test_bfloat16_survives_the_way_there_and_back() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    values = to_values(every, "__bf16")
    finite = np.isfinite(values)
    assert np.array_equal(to_bits(values[finite], "__bf16"), every[finite])


def test_dtype_that_cannot_be_made() -> None:
    with pytest.raises(Exception, match="cannot make inputs of dtype fp8e4m3"):
        numpy_dtype("fp8e4m3")


def test_a_large_buffer_repeats_its_block_on_the_device_and_for_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made, written, read and compared in blocks, and a changed element in any repetition is seen."""
    monkeypatch.setattr(inputs_module, "BLOCK", 101)
    made = make_inputs(example(next(name for name in ASTS if "matmul" in name)), 0)
    large = [bits for bits in made.values() if isinstance(bits, Repeated)]
    assert large
    for bits in large:
        whole = np.resize(bits.block, bits.size)
        index = np.arange(bits.size)
        assert np.array_equal(bits[index], whole) and bits.same_as(whole)
        whole[-1] += 1
        assert not bits.same_as(whole)
        parts = [part for _, part in bits.chunks()]
        assert sum(map(len, parts)) == bits.size


def test_large_buffers_share_a_block_that_stays_as_it_was_drawn() -> None:
    def inputs(columns: int) -> Repeated:
        (ast,) = kernels_of(empty(1024, columns) + 1)
        (bits,) = make_inputs(ast_of(kernel_of(ast)), 5).values()
        assert isinstance(bits, Repeated)
        return bits

    one, other = inputs(1100), inputs(1500)
    assert one.block is other.block and (one.size, other.size) == (1024 * 1100, 1024 * 1500)
    again = _block(5, 1, RECIPE, "float", BLOCK, 0.0, 0, 0)
    assert np.array_equal(one.block, again) and one.block is not again


@pytest.mark.parametrize("total", [7, 8, 13, 14, 15, 100, 7 * 64])
def test_copies_within_the_device_repeat_a_block(total: int) -> None:
    memory = np.full(total + 5, -1)
    memory[:7] = np.arange(7)
    for at, length in repetitions(7, total):
        memory[at : at + length] = memory[:length].copy()
    assert (memory[:total] == np.arange(total) % 7).all() and (memory[total:] == -1).all()


@pytest.mark.parametrize("dev", ["CPU", pytest.param("CUDA", marks=pytest.mark.gpu)])
def test_large_inputs_are_on_the_device_as_they_were_drawn(dev: str) -> None:
    """Elements of two bytes: the block then ends at no multiple of four."""
    target = detect("CPU:X86" if dev == "CPU" else dev, 1)[0]
    (ast,) = kernels_of(empty(3000, 1100, dtype="half") + 1)
    bench = Workbench(ast_of(kernel_of(ast)), target)
    bench.fill(2, RECIPE)
    (slot,) = bench.inputs
    assert isinstance(bench.inputs[slot], Repeated) and bench.inputs[slot].same_as(bench.read(slot))
    assert bench.guards_intact() is None
