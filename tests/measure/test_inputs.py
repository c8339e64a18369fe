"""Inputs are what their recipe says, the same in every process, in the range of what they index, and stored as on the
device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from tinygrad.dtype import float_to_fp8

from kcg.compat.tiny import Buffer, DType, KernelInfo, UOp, dtypes
from kcg.kernel.chain import Chain
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.reference import buffers, evaluate, sample_points
from kcg.measure.device_info import detect
from kcg.measure.inputs import (
    BELOW_ZERO_RECIPE,
    BINARY_RECIPE,
    BLOCK,
    FEW,
    FEW_RECIPE,
    FEW_SPECIAL_RECIPE,
    FLAGS_RECIPE,
    LOWERED_RECIPE,
    MODEST_RECIPE,
    NEGATIVE_RECIPE,
    PIECES,
    POSITIVE_RECIPE,
    RECIPE,
    SEGMENT,
    SMALL_INTEGERS,
    SPECIAL_RECIPE,
    UNIT_RECIPE,
    WIDE_POSITIVE_RECIPE,
    WIDE_RECIPE,
    Exponent,
    Hashed,
    buffers_of,
    buffers_of_kernels,
    exponents_of,
    filler,
    integer_bounds,
    lowered,
    make_inputs,
    make_inputs_of_kernels,
    numpy_dtype,
    to_bits,
    to_values,
)
from kcg.measure.workbench import Workbench
from kcg.types import Region
from tests.chains import region_of
from tests.commands import python
from tests.kernels import TYPICAL, empty, example_asts, example_region, examples, kernels_of

ASTS = example_asts()
VARIABLES = {"length": 20, "position": 3}


@cache
def example(name: str) -> UOp:
    return ast_of(example_region(name).kernel)


def digest() -> str:
    """One hash of the inputs of typical examples under both recipes."""
    total = hashlib.sha256()
    for name in TYPICAL:
        for recipe in (RECIPE, POSITIVE_RECIPE):
            for slot, bits in sorted(make_inputs(example(name), 3, recipe=recipe).items()):
                total.update(f"{name} {recipe} {slot} {bits.dtype}".encode() + bits.tobytes())
    return total.hexdigest()


@pytest.mark.slow
def test_same_in_every_process() -> None:
    code = "from tests.measure.test_inputs import digest; print(digest())"
    other = python("-c", code, PYTHONHASHSEED="7")
    assert other.stdout.strip() == digest()


@pytest.mark.parametrize("name", examples())
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


@pytest.mark.parametrize("name", examples())
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


def test_flags_are_0_and_1_in_every_type() -> None:
    for name, slot in (("matmul_f32", 1), ("integer_sum", 1)):
        drawn = make_inputs(example(name), 0, recipe=FLAGS_RECIPE)[slot]
        assert {*np.unique(drawn)} == {0, 1} and 0.4 < drawn.mean() < 0.6


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
    with pytest.raises(Exception, match="cannot make inputs of dtype uint4"):
        numpy_dtype("uint4")


@pytest.mark.parametrize("kind", sorted(dtypes.fp8s, key=lambda t: t.name), ids=lambda t: t.name)
def test_8_bit_floats_survive_the_way_there_and_back(kind: DType) -> None:
    every = np.arange(256, dtype=np.uint8)
    values = to_values(every, kind.name)
    assert [float_to_fp8(float(v), kind) for v in values[np.isfinite(values)]] == every[np.isfinite(values)].tolist()
    finite = values[np.isfinite(values)]
    assert np.array_equal(to_values(to_bits(finite, kind.name), kind.name), finite)
    drawn = np.linspace(finite.min() * 0.9, finite.max() * 0.9, 4001).astype(np.float32)
    away = np.abs(to_values(to_bits(drawn, kind.name), kind.name) - drawn)
    assert (away <= np.abs(finite[:, None] - drawn).min(0)).all(), "the nearest"


LARGE = ("half", "float", "int", "uchar", "bool", "double")
SEGMENTED = (NEGATIVE_RECIPE, BELOW_ZERO_RECIPE, SPECIAL_RECIPE, WIDE_RECIPE, WIDE_POSITIVE_RECIPE, MODEST_RECIPE)


@cache
def copied(rows: int, columns: int, dtype: str) -> UOp:
    """A kernel that reads one buffer."""
    (ast,) = kernels_of(empty(rows, columns, dtype=dtype).cast(dtypes.float32) + 1)
    return ast_of(kernel_of(ast))


def drawn(recipe: str, dtype: str, seed: int = 0, rows: int = 700, columns: int = 301) -> Any:
    (bits,) = make_inputs(copied(rows, columns, dtype), seed, recipe=recipe).values()
    return bits


@pytest.mark.parametrize("recipe", [RECIPE, BINARY_RECIPE, *SEGMENTED])
def test_a_large_buffer_is_the_same_by_element_by_part_and_as_a_whole(recipe: str) -> None:
    """And a changed element anywhere is seen."""
    bits = drawn(recipe, "float", rows=5000)
    assert isinstance(bits, Hashed) and bits.size == 5000 * 301
    whole = bits.whole()
    index = np.random.default_rng(0).integers(0, bits.size, (50, 40))
    assert np.array_equal(bits[index], whole[index], equal_nan=True) and bits.same_as(whole)
    assert np.array_equal(np.concatenate([part for _, part in bits.chunks()]), whole, equal_nan=True)
    assert np.array_equal(bits.window(70_001, 123), whole[70_001 : 70_001 + 123], equal_nan=True)
    whole[-1] = np.nan if whole[-1] == whole[-1] else 1.0
    assert not bits.same_as(whole)


@pytest.mark.parametrize("recipe", [RECIPE, WIDE_RECIPE])
def test_a_large_buffer_has_no_period(recipe: str) -> None:
    """Shifted by any of the lengths that a wrong index would wrap at, it is another one."""
    whole = drawn(recipe, "float", rows=9000).whole()
    for period in (301, 4096, 1 << 16, 1 << 18, 1 << 20, 1_048_573, 1 << 21):
        same = (whole[period:] == whole[:-period]).mean()
        assert same < 0.05, period


@pytest.mark.parametrize("dtype", LARGE)
@pytest.mark.parametrize("rows", [3, 700])
def test_recipes_are_what_they_say(dtype: str, rows: int) -> None:
    def values(recipe: str) -> Any:
        bits = drawn(recipe, dtype, rows=rows)
        return (bits.whole() if isinstance(bits, Hashed) else bits).astype(np.float64)

    if dtype == "bool":
        assert set(values(WIDE_RECIPE)) == {0.0, 1.0}
        return
    if dtype != "uchar":
        assert (values(NEGATIVE_RECIPE) < 0).all() and (values(BELOW_ZERO_RECIPE) < 0).all()
        assert (values(WIDE_RECIPE) < -8).any()
    wide = values(WIDE_RECIPE)
    assert np.isfinite(wide).all() and (wide > 100).any() and (values(WIDE_POSITIVE_RECIPE) >= 0).all()
    if dtype in ("half", "float", "double"):
        held = {"half": np.float16, "float": np.float32, "double": np.float64}[dtype]
        smallest = float(np.finfo(held).smallest_normal)
        tiny = (np.abs(wide) < smallest) & (wide != 0)
        assert tiny.any() and np.abs(wide).max() > 1e4
        special = values(SPECIAL_RECIPE)
        assert np.isnan(special).any() and (special == np.inf).any() and (special == -np.inf).any()
        assert np.isfinite(special).mean() > 0.9
        assert (values(NEGATIVE_RECIPE) < (-30 if dtype == "half" else -1e12)).any()
    if dtype == "int":
        assert (wide == 2**31 - 1).any() and (wide == -(2**31)).any() and (np.abs(wide) > 2**24).mean() > 0.1


@pytest.mark.parametrize("recipe", [WIDE_RECIPE, SPECIAL_RECIPE])
def test_extreme_numbers_meet_each_other(recipe: str) -> None:
    """What adds or compares two inputs is seen to flush both, and to compare large integers as floats."""
    ast = kernels_of(empty(4099) < empty(4099))[0]
    for seed in (1, 2, 3):
        first, second = (np.abs(bits) for bits in make_inputs(ast, seed, recipe=recipe).values())
        assert ((first < 2.0**-126) & (second < 2.0**-126) & (first != second)).sum() > 50
    for dtype, as_float in (("int32", np.float32), ("int64", np.float64)):
        ast = kernels_of(empty(4099, dtype=dtype) < empty(4099, dtype=dtype))[0]
        first, second = make_inputs(ast, 3, recipe=recipe).values()
        assert ((first != second) & (first.astype(as_float) == second.astype(as_float))).any()


def test_few_integers_differ_in_one_half_only_too() -> None:
    for dtype, half in (("int32", np.int16), ("int64", np.int32)):
        ast = kernels_of(empty(4099, dtype=dtype) == empty(4099, dtype=dtype))[0]
        first, second = make_inputs(ast, 3, recipe=FEW_SPECIAL_RECIPE).values()
        assert ((first != second) & (first.astype(half) == second.astype(half))).any()
        assert (first == second).any()


def test_some_rows_hold_huge_negative_numbers_only() -> None:
    """So that a maximum that starts from a number, however small, is seen."""
    rows = drawn(NEGATIVE_RECIPE, "float").whole().reshape(700, 301)
    assert (rows.max(1) < -1e12).sum() >= 10 and (rows.max(1) > -10).sum() >= 400


def test_large_buffers_of_one_recipe_share_a_block_and_are_others() -> None:
    one, other = drawn(RECIPE, "float"), drawn(RECIPE, "float", rows=701)
    assert one.block is other.block and one.key == other.key, "drawn once"
    (ast,) = kernels_of(empty(700, 301) + empty(700, 301))
    first, second = make_inputs(ast_of(kernel_of(ast)), 0).values()
    assert (first.whole() == second.whole()).mean() < 0.01
    assert not np.isin(first.block, second.block).all(), "or slices of both would agree term by term"


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("by_kind", [False, True])
@pytest.mark.parametrize("dev", ["CPU", pytest.param("CUDA", marks=pytest.mark.gpu)])
def test_a_device_fills_a_buffer_as_the_host_computes_it(dev: str, width: int, by_kind: bool) -> None:
    target = detect("CPU:X86" if dev == "CPU" else dev, 1)[0]
    block = np.random.default_rng(0).integers(0, 256, BLOCK * width, dtype=np.uint8).view(f"u{width}")
    wanted = Hashed(block, 3 * PIECES[1] + 77, 0xFEDCBA98, by_kind)
    buffer = Buffer(target.device, wanted.nbytes, dtypes.uint8).allocate()
    filler(target)(buffer, wanted)
    found = np.empty(wanted.nbytes, np.uint8)
    buffer.allocator._copyout(found.data, buffer._buf)
    assert wanted.same_as(found.view(block.dtype))


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("dev", ["CPU", pytest.param("CUDA", marks=pytest.mark.gpu)])
def test_a_device_bounds_exponents_as_the_host_does(
    dev: str, ends: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of bytes that stand for floats, wherever a piece begins and in what has its own ends."""
    target = detect("CPU:X86" if dev == "CPU" else dev, 1)[0]
    elements = BLOCK + (2 * SEGMENT if ends else 0)
    block = np.random.default_rng(0).integers(0, 256, elements * width, dtype=np.uint8).view(f"u{width}")
    exponents = (Exponent(34, 1, 0x83, 0x38), Exponent(7, 6, ~0x70, 0x10))
    wanted = Hashed(block, 3 * PIECES[1] + 77, 0xFEDCBA98, False, exponents)
    buffer = Buffer(target.device, wanted.nbytes, dtypes.uint8).allocate()
    launched = filler(target)._launch(width, PIECES[1], len(exponents))
    launches = list[Any]()
    key = width, PIECES[1], len(exponents)
    monkeypatch.setitem(filler(target)._launches, key, lambda *buffers: launches.append(launched(*buffers)))
    filler(target)(buffer, wanted)
    found = np.empty(wanted.nbytes, np.uint8)
    buffer.allocator._copyout(found.data, buffer._buf)
    assert wanted.same_as(found.view(block.dtype)) and len(launches) == 3, "by the device"


@pytest.mark.parametrize("dev", ["CPU", pytest.param("CUDA", marks=pytest.mark.gpu)])
def test_large_inputs_are_on_the_device_as_they_were_drawn(dev: str) -> None:
    target = detect("CPU:X86" if dev == "CPU" else dev, 1)[0]
    (ast,) = kernels_of(empty(3000, 1100, dtype="half") + 1)
    bench = Workbench(Region((kernel_of(ast),)), target)
    bench.fill(2, RECIPE)
    (slot,) = bench.inputs
    assert bench.holds_input(slot)
    assert bench.guards_intact() is None


@pytest.mark.parametrize("dtype", ("float32", "float16", "int32", "uint8", "bool"))
def test_the_ends_of_a_buffer_are_its_largest_and_its_smallest_value(dtype: str) -> None:
    for size in (1000, 200_003):
        (ast,) = kernels_of(empty(size, dtype=dtype).cast("float32") + 1)
        for recipe in (RECIPE, BELOW_ZERO_RECIPE, NEGATIVE_RECIPE, MODEST_RECIPE):
            if dtype == "bool" and recipe == RECIPE:
                continue
            bits = make_inputs(ast, 3, recipe=recipe)[1]
            whole = bits.whole() if isinstance(bits, Hashed) else bits
            rises = recipe in (BELOW_ZERO_RECIPE, NEGATIVE_RECIPE)
            least, most = (whole[0], whole[-1]) if rises else (whole[-1], whole[0])
            finite = whole[np.isfinite(whole)]  # some are -inf
            assert (least, most) == (finite.min(), finite.max()), (dtype, size, recipe)
            if isinstance(bits, Hashed):
                some = np.r_[0, 1, SEGMENT - 1 : SEGMENT + 2, size // 2, size - SEGMENT - 1 : size]
                assert np.array_equal(bits[some], whole[some]) and np.array_equal(bits.window(7, 9000), whole[7:9007])


def test_what_is_timed_has_no_ends_of_its_own() -> None:
    (ast,) = kernels_of(empty(200_000) + 1)
    assert not make_inputs(ast, 0)[1].ends and make_inputs(ast, 1)[1].ends


def test_what_a_kernel_compares_with_is_among_its_inputs() -> None:
    for ast in kernels_of((empty(4099) > 0.3).where(empty(4099), 2.0)):
        held = make_inputs(ast, 3, recipe=WIDE_RECIPE)[1]
        threshold = np.float32(0.3)
        for value in (threshold, np.nextafter(threshold, np.float32(1)), np.nextafter(threshold, np.float32(0)), 2.5):
            assert (held == value).any(), value


def test_what_divides_is_never_0() -> None:
    (ast,) = kernels_of(empty(5000, dtype="int32") // empty(5000, dtype="int32"))
    for recipe in (RECIPE, POSITIVE_RECIPE, FEW_RECIPE, *SEGMENTED):
        divisor = make_inputs(ast, 3, recipe=recipe)[2]
        assert divisor.all(), recipe
        assert recipe not in SEGMENTED or (divisor != -1).all(), "the least integer by -1"


# ---- indices outside of their bounds, and scores far below 0


def selecting(made: Callable[[UOp, UOp], UOp], count: int = 2000) -> UOp:
    """A kernel `out[i] = table[made(index[i], ...)]` of a table of 300, as written by hand."""
    out, index, table = (
        UOp.placeholder((n,), dtype, slot)
        for slot, (n, dtype) in enumerate(((count, dtypes.float32), (count, dtypes.int32), (300, dtypes.float32)))
    )
    i = UOp.range(count, 0)
    return UOp.sink(out[i].store(table[made(index[i], i)]).end(i), arg=KernelInfo())


@pytest.mark.parametrize(
    ("made", "slot", "extent"),
    [
        (lambda: kernels_of(empty(300, 6)[empty(2000, dtype="int32")])[0], 1, 300),
        (lambda: kernels_of(empty(60, 10).gather(1, empty(60, 40, dtype="int32")))[0], 1, 10),
        (lambda: kernels_of(empty(2000, dtype="int32").one_hot(6).cast("int32"))[0], 1, 6),
        (lambda: kernels_of(empty(500, 6).scatter(1, empty(500, 2, dtype="int32"), empty(500, 2)))[0], 1, 6),
        (lambda: selecting(lambda k, i: k.valid((k >= 0) & (k < 300))), 1, 300),
    ],
    ids=["rows", "along", "one_hot", "scatter", "with both bounds"],
)
def test_a_tenth_of_the_indices_that_are_compared_with_bounds_is_outside(
    made: Callable[[], UOp], slot: int, extent: int
) -> None:
    """On one seed's data; never on what is timed, or where the kernel reads whatever place an index says."""
    ast = made()
    for recipe in (NEGATIVE_RECIPE, BELOW_ZERO_RECIPE):
        drawn = make_inputs(ast, 2, recipe=recipe)[slot]
        outside = (drawn < 0) | (drawn >= extent)
        assert 0.02 < outside.mean() < 0.15
        assert {-1, -extent, extent} <= {*drawn.tolist()}, "and where comparisons tip"
    for recipe in (RECIPE, POSITIVE_RECIPE, FEW_RECIPE, BINARY_RECIPE):
        drawn = make_inputs(ast, 0, recipe=recipe)[slot]
        assert drawn.min() >= 0 and drawn.max() < extent


@pytest.mark.parametrize(
    "made",
    [
        lambda k, i: k,
        lambda k, i: k.valid(i < 100),
        lambda k, i: k.valid(k < 300),
        lambda k, i: k.valid(k >= 0),
        lambda k, i: (k + k * i).valid((k * i >= 0) & (k * i < 300)),
    ],
    ids=["no gate", "another gate", "one bound", "the other bound", "of another number"],
)
def test_no_index_is_outside_where_it_would_be_a_load_outside(made: Callable[[UOp, UOp], UOp]) -> None:
    ast = selecting(made)
    for recipe in SEGMENTED:
        drawn = make_inputs(ast, 2, recipe=recipe)[1]
        assert drawn.min() >= 0 and drawn.max() < 300


@pytest.mark.parametrize("width", [16, 128])
def test_all_scores_of_an_attention_are_below_what_has_an_exponential(width: int) -> None:
    """Those of one row differ by a few, so that many of its keys count; those of two rows by much, so that a row's
    maximum is no other's."""
    q, k, v = (empty(2, n, width) for n in (24, 40, 40))
    asts = Chain(region_of(q.scaled_dot_product_attention(k, v).contiguous())).asts
    size = {info.slot: info.size for info in buffers_of_kernels(asts)}
    query, key = lowered(asts)
    made = make_inputs_of_kernels(asts, 2, recipe=LOWERED_RECIPE)
    if size[query] > size[key]:
        query, key = key, query
    scores = made[query].reshape(2, 24, width) @ made[key].reshape(2, 40, width).swapaxes(1, 2) / np.sqrt(width)
    assert (scores < -100).all() and (scores > -900).all()
    rows = scores.max(2)
    assert 0.2 < (rows < -204).mean() < 0.8, "also beside a maximum that begins at -100"
    assert np.ptp(rows, axis=1).min() > 89
    assert (np.ptp(scores, axis=2) < 60).all() and (np.ptp(scores, axis=2) > 0.5).all()


def test_what_goes_into_a_softmax_is_lowered_and_what_has_no_maximum_is_not() -> None:
    asts = Chain(region_of(empty(4, 3000).softmax().contiguous())).asts
    (slot,) = {info.slot for info in buffers_of_kernels(asts) if info.is_input}
    assert (make_inputs_of_kernels(asts, 2, recipe=LOWERED_RECIPE)[slot] < -204).all()
    assert not lowered([*kernels_of(empty(40).exp())]) and not lowered([*kernels_of(empty(40).gelu())])


def test_numbers_up_to_the_largest_zeros_of_both_signs_and_rows_of_zeros_are_drawn() -> None:
    values = drawn(SPECIAL_RECIPE, "float", rows=40)
    sizes = np.abs(values[np.isfinite(values)])
    exponents = {int(e) for e in np.frexp(sizes[sizes > 1e18])[1]}
    assert len(exponents & set(range(61, 128))) > 50, "a band of any width has some"
    zeros = values[values == 0]
    assert np.signbit(zeros).any() and not np.signbit(zeros).all()
    longest = max(len(run) for run in "".join("0" if v == 0 else "x" for v in values).split("x"))
    assert longest >= 150


# ---- Packed weights: bytes of which some are put together to floats.


def packed(rows: int, *, apart: int = 34) -> UOp:
    """Rows of blocks of bytes: a half, then signed bytes that it scales; their sums."""
    blocks = empty(rows, 6, apart, dtype="uint8")
    scales = blocks[:, :, :2].bitcast(dtypes.half).cast(dtypes.float)
    (ast,) = kernels_of((blocks[:, :, 2:].bitcast(dtypes.int8) * scales).flatten(1).sum(1))
    return ast_of(kernel_of(ast))


@pytest.mark.parametrize("recipe", [RECIPE, WIDE_RECIPE, SPECIAL_RECIPE, FEW_RECIPE])
@pytest.mark.parametrize("rows", [150, 3000], ids=["small", "large"])
def test_bytes_that_are_put_together_to_floats_are_moderate_ones(recipe: str, rows: int) -> None:
    (stored,) = make_inputs(packed(rows), 3, recipe=recipe).values()
    found = stored.whole() if isinstance(stored, Hashed) else stored
    blocks = np.asarray(found).reshape(rows * 6, 34)
    scales = np.abs(np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(float))
    assert scales.min() >= 2.0**-7 and scales.max() < 2
    assert len(np.unique(blocks[:, 0])) > 160 and len(np.unique(blocks[:, 1])) == 64, "sign, and all other bits"
    assert len(np.unique(blocks[:, 2:])) == 256, "what is no exponent is any byte"


def test_places_of_exponents_are_kept_wherever_a_large_buffer_is_read() -> None:
    (stored,) = make_inputs(packed(3000), 0).values()
    assert isinstance(stored, Hashed)
    whole, places = stored.whole(), np.random.default_rng(0).integers(0, stored.size, 5000)
    assert np.array_equal(stored[places], whole[places])
    assert np.array_equal(stored.window(123_457, 10_000), whole[123_457:133_457])
    wide = stored.of(np.asarray(stored.block, np.float64))
    assert np.array_equal(wide.window(55, 4000), whole[55:4055]), "numbers that are held as floats are the same"


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "float", "double"])
def test_every_type_of_float_is_put_together(dtype: str) -> None:
    held = getattr(dtypes, dtype)
    (ast,) = kernels_of(empty(900, held.itemsize, dtype="uint8").bitcast(held).cast(dtypes.float) + 1)
    (stored,) = make_inputs(ast_of(kernel_of(ast)), 1, recipe=WIDE_RECIPE).values()
    bits = np.ascontiguousarray(stored).view(f"u{held.itemsize}")
    values = np.abs(to_values(bits if dtype == "bfloat16" else bits.view(numpy_dtype(held.name)), held.name))
    assert values.min() >= 2.0**-7 and 1 < values.max() < 2


def test_half_a_byte_selects_what_is_there_whatever_the_byte() -> None:
    codes, table = empty(600, dtype="uint8"), empty(16)
    (ast,) = kernels_of(table[codes & 15] + table[codes >> 4])
    normal = ast_of(kernel_of(ast))
    (slot,) = (info.slot for info in buffers_of(normal) if info.dtype == "unsigned char")
    assert exponents_of([normal]) == {slot: ()}
    assert len(np.unique(make_inputs(normal, 0)[slot])) > 200
    (ast,) = kernels_of(table[codes])
    direct = ast_of(kernel_of(ast))
    assert exponents_of([direct]) == {} and set(integer_bounds(direct).values()) == {16}


def test_a_device_holds_packed_weights_as_they_were_drawn() -> None:
    region = Region((kernel_of(packed(8000)),))
    bench = Workbench(region, detect("CPU:X86", 1)[0])
    bench.fill(2, RECIPE)
    (slot,) = bench.inputs
    assert bench.holds_input(slot)
