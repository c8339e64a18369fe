"""Products whose weights are of one bit: four neighbouring bits say one of 16 sums of a vector, which a program makes
once for all of its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor, dtypes

from kcg.kernel.reading.bit_sums import bit_sums_of
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.packed import packed_sums
from kcg.kernel.tile.compile import compiled_launch
from kcg.kernel.tile.emit import Writer
from kcg.kernel.tile.forms import plan_of
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal
from kcg.kernel.tile.packed import PackedPlan
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.plan import seconds
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.views import PackedView
from kcg.workloads.packed_weights import FORMATS, PackedWeights
from tests.chains import region_of
from tests.kernel.tile.assembly_on_cpu import assembled
from tests.kernel.tile.running import Case, compare, question_of, wrong_of
from tests.kernel.tile.test_tile_packed import (
    TARGET,
    Odd,
    _half,
    _signs,
    blocks_of,
    cases_of,
    instructions_of,
    listing_of,
    product_of,
    products,
    slot_of_words,
    with_triton,
)
from tests.kernels import empty
from tests.slow import some

MOST_INSTRUCTIONS = 1.45
"""Machine instructions a weight of Q1_0, of those in the loop."""


def _planes(values: Tensor) -> Tensor:
    """(blocks, bytes) -> (blocks, eight times as many): the lowest bits of all bytes, then the next of all."""
    bits = Tensor.stack(*(values.rshift(place).bitwise_and(1) for place in range(8)), dim=1)
    return bits.reshape(values.shape[0], -1).cast(dtypes.int32).cast(dtypes.float32)


def _in_order(values: Tensor) -> Tensor:
    """The same, the bits of a byte beside each other."""
    bits = Tensor.stack(*(values.rshift(place).bitwise_and(1) for place in range(8)), dim=2)
    return bits.reshape(values.shape[0], -1).cast(dtypes.int32).cast(dtypes.float32)


OF_ONE_BIT = {
    "bits in order": Odd(18, lambda b: _in_order(b[:, 2:]) * _half(b)),
    "planes, between -1 and 3": Odd(10, lambda b: (_planes(b[:, 2:]) * 4 - 1) * _half(b), blocks=20),
    "signs": Odd(6, lambda b: _signs(b[:, 2:]) * _half(b), blocks=9),
    "a minimum": Odd(20, lambda b: _in_order(b[:, 4:]) * _half(b) - _half(b, 2), halves=(0, 2)),
    "a scale of a half": Odd(
        36, lambda b: _in_order(b[:, 4:]) * _half(b) * b[:, 2:4].reshape(-1, 2, 1).expand(-1, 2, 128).reshape(-1, 256)
    ),
    "a vector times another": Odd(18, lambda b: _in_order(b[:, 2:]) * _half(b), x=lambda x: x * empty(1, 2048) + 1),
    "no scale": Odd(32, _in_order, blocks=4, halves=()),
    "two bits of planes, and a constant": Odd(
        34, lambda b: (_in_order(b[:, 2:18]) + _in_order(b[:, 18:34]) * 2 - 1) * _half(b)
    ),
}  # fmt: skip


def programs_by_fours(kernel: TileKernel, count: int = 6) -> list[TileParameters]:
    """Programs of different shapes whose sums come from tables."""
    first = default_parameters(kernel, TARGET).changed(split=1)
    view = PackedView.of(kernel)
    shapes = [
        (tile, warps, split, step, width)
        for tile, warps, split, step in (
            (64, 8, 1, 32),
            (64, 2, 2, 32),
            (128, 4, 4, 32),
            (64, 1, 1, 64),
            (128, 8, 2, 64),
        )
        for width in view.widths
    ]
    found = [
        first.changed(tile=(tile,), num_warps=warps, split=split, reduce_tile=step, unpacked=width)
        for tile, warps, split, step, width in shapes
    ]
    found += [found[0].changed(tile=(64,), persistent=2, num_warps=warps, split=1) for warps in (8, 4)]
    found = [p for p in found if is_legal(kernel, TARGET, p) and by_fours(kernel, p)]
    assert found
    return found[:: max(1, len(found) // count)]


def by_fours(kernel: TileKernel, p: TileParameters) -> bool:
    plan = plan_of(kernel, TARGET, p)
    assert isinstance(plan, PackedPlan)
    return plan.by_fours


def vector_of(kernel: TileKernel) -> int:
    """The slot of the first vector."""
    return next(b.slot for b in kernel.buffers if b.dtype is dtypes.float32 and not b.written)


def test_only_terms_of_one_bit_are_summed_by_fours() -> None:
    found = {}
    for kind in FORMATS:
        _, kernel = product_of(kind, 64, 512)
        sums = [bit_sums_of(one, one.widths[0]) for one in packed_sums(kernel)]
        found[kind] = [one.tables for one in sums if one is not None]
    assert {kind for kind, tables in found.items() if tables} == {"q1_0"} and found["q1_0"] == [16]
    others = {"a minimum": 0, "bits in order": 16, "signs": 8, "planes, between -1 and 3": 16}
    for name, tables in others.items():
        (packed,) = packed_sums(OF_ONE_BIT[name].read(64)[1])
        one = bit_sums_of(packed, packed.widths[0])
        assert (one.tables if one is not None else 0) == tables, name


@with_triton
@pytest.mark.parametrize(("rows", "inputs"), [(96, 1408), (130, 4096)])
def test_sums_by_four_bits_are_right(rows: int, inputs: int, tmp_path: Path) -> None:
    """Rows that end inside of a turn, and terms inside of a step."""
    region, kernel = product_of("q1_0", rows, inputs)
    programs = programs_by_fours(kernel)
    assert len({p.split for p in programs}) > 1
    cases = cases_of(region, kernel, programs, lambda n: blocks_of("q1_0", rows, inputs, n))
    assert compare(cases, tmp_path) == [""] * len(cases)


@with_triton
@pytest.mark.parametrize("name", some(OF_ONE_BIT, {"bits in order", "planes, between -1 and 3"}))
def test_a_format_of_one_bit_that_nobody_has_is_right_too(name: str, tmp_path: Path) -> None:
    odd = OF_ONE_BIT[name]
    region, kernel = odd.read(70)
    if name == "a minimum":
        assert not any(by_fours(kernel, p) for p in [default_parameters(kernel, TARGET).changed(tile=(64,))])
        return
    cases = cases_of(region, kernel, programs_by_fours(kernel), lambda number: odd.given(70, number))
    assert all(np.isfinite(question_of(case).wanted[0].error).all() for case in cases)
    assert compare(cases, tmp_path) == [""] * len(cases)


class Assembled(Writer):
    """Writes assembly for the interpreter, too."""

    def __init__(self, kernel: TileKernel, *, ptx: bool, **rest: Any) -> None:
        super().__init__(kernel, ptx=ptx, **rest)
        self.ptx = ptx


@with_triton
@pytest.mark.parametrize(("rows", "inputs"), [(96, 1408), (130, 4096), (70, 5632)])
def test_assembly_finds_the_sums_in_shared_memory(
    rows: int, inputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcg.kernel.tile.generate.Writer", Assembled)
    region, kernel = product_of("q1_0", rows, inputs)
    cases = cases_of(region, kernel, programs_by_fours(kernel), lambda n: blocks_of("q1_0", rows, inputs, n))
    texts = [assembled(case.program.source) for case in cases]
    assert all("ld.shared" in text and "st.shared" in text for text in texts)
    assert len({"shfl" in text for text in texts}) == 2
    cases = [replace(case, program=replace(case.program, source=text)) for case, text in zip(cases, texts, strict=True)]
    assert compare(cases, tmp_path) == [""] * len(cases)


@with_triton
def test_two_sums_of_a_row_have_tables_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcg.kernel.tile.generate.Writer", Assembled)
    x, made = empty(1, 4096), PackedWeights()
    gate, up = (x.dot(made(name, (96, 4096), "q1_0").T, dtype="float32") for name in ("gate", "up"))
    region = region_of(gate.contiguous() * up)
    kernel = read_region(region)
    assert len(kernel.reductions) == 2
    given = {b.slot: blocks_of("q1_0", 1, b.size // 18 * 128) for b in kernel.buffers if b.dtype is dtypes.uint8}
    cases = {}
    for number, p in enumerate(programs_by_fours(kernel, 4)):
        program = generate_kernel(kernel, TARGET, p, interpreted=True)
        program = replace(program, source=assembled(program.source))
        cases[str(number)] = Case(region, program, inputs=given, seed=number + 1)
    assert not wrong_of(cases, tmp_path)


@with_triton
@pytest.mark.parametrize("rows", [330, 640])
def test_programs_that_take_tiles_in_turn_are_right(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six and ten tiles of four programs, the last of which is not whole; sums of all of them are kept."""
    monkeypatch.setattr("kcg.kernel.tile.generate.Writer", Assembled)
    target = replace(TARGET, cores=2)
    region, kernel = product_of("q1_0", rows, 4096)
    first = default_parameters(kernel, TARGET).changed(tile=(64,), persistent=2, split=1, reduce_tile=32)
    programs = [first.changed(num_warps=warps, unpacked=width) for warps in (8, 4) for width in (8, 4)]
    assert all(is_legal(kernel, target, p) and plan_of(kernel, target, p).programs == 4 for p in programs)
    cases = {}
    for number, p in enumerate(programs):
        made = generate_kernel(kernel, target, p, interpreted=True)
        made = replace(made, source=assembled(made.source))
        given = {slot_of_words(kernel): blocks_of("q1_0", rows, 4096, number)}
        cases[str(number)] = Case(region, made, inputs=given, seed=number + 1)
    assert not wrong_of(cases, tmp_path)


VECTORS: dict[str, Callable[[np.ndarray], None]] = {
    "one infinite": lambda x: x.__setitem__(5, np.inf),
    "two infinite in four": lambda x: x.__setitem__(slice(5, 7), [np.inf, -np.inf]),
    "two infinite in different ones": lambda x: x.__setitem__([5, 700], np.inf),
    "one infinite where parts of a row meet": lambda x: x.__setitem__(len(x) // 2 + 5, np.inf),
    "one that is none": lambda x: x.__setitem__(77, np.nan),
    "large": lambda x: x.__imul__(1e36),
    "zeros below 0": lambda x: x.__setitem__(slice(0, 64), -0.0),
}


@with_triton
@pytest.mark.parametrize("name", ["q1_0", "bits in order", "planes, between -1 and 3"])
def test_a_vector_that_is_not_finite_gives_what_the_kernel_says(name: str, tmp_path: Path) -> None:
    """Also where a number is 0 by its bit, or is a bit and a constant that were taken apart."""
    if name in OF_ONE_BIT:
        region, kernel = OF_ONE_BIT[name].read(64)
        given = OF_ONE_BIT[name].given(64, 1)
    else:
        region, kernel = product_of(name, 64, 1024)
        given = blocks_of(name, 64, 1024)
    slot, programs = vector_of(kernel), programs_by_fours(kernel, 2)
    cases = {}
    for vector, change in VECTORS.items():
        x = np.random.default_rng(3).standard_normal(next(b.size for b in kernel.buffers if b.slot == slot))
        x = x.astype(np.float32)
        change(x)
        for number, case in enumerate(cases_of(region, kernel, programs, lambda _: given)):
            cases[f"{vector}, {number}"] = replace(case, inputs={**case.inputs, slot: x})
    assert not np.isfinite(question_of(cases["one infinite, 0"]).wanted[0].values).any()
    assert not wrong_of(cases, tmp_path)


@with_triton
def test_products_of_one_launch_have_tables_of_their_own(tmp_path: Path) -> None:
    region = region_of(*products(("q1_0", 64), ("q1_0", 96)))
    kernel = read_region(region)
    assert len(kernel.launched) == 2
    programs = programs_by_fours(kernel, 4)
    given = {b.slot: blocks_of("q1_0", 1, b.size // 18 * 128) for b in kernel.buffers if b.dtype is dtypes.uint8}
    cases = {
        str(number): Case(region, generate_kernel(kernel, TARGET, p, interpreted=True), inputs=given, seed=number + 1)
        for number, p in enumerate(programs)
    }
    assert not wrong_of(cases, tmp_path)


def test_a_search_begins_with_tables_where_rows_pay_for_them() -> None:
    _, kernel = product_of("q1_0", 65536, 4096)
    first = default_parameters(kernel, TARGET)
    plan = plan_of(kernel, TARGET, first)
    assert isinstance(plan, PackedPlan) and plan.passes == 2 and plan.shared_bytes == 32768 + 2048 + 4 * first.tile[0]
    others = [first.changed(tile=(rows,), num_warps=1, split=1) for rows in (2, 4, 8)]
    assert not any(by_fours(kernel, p) for p in others)
    assert seconds(plan_of(kernel, TARGET, first), TARGET) < 0.8 * min(
        seconds(plan_of(kernel, TARGET, p), TARGET) for p in others
    )
    for rows, vectors in ((512, 1), (65536, 4)):
        _, kernel = product_of("q1_0", rows, 4096, vectors)
        assert not by_fours(kernel, default_parameters(kernel, TARGET))


# ---- what programs compile to


@with_triton
def test_machine_instructions_of_a_weight_of_one_bit(tmp_path: Path) -> None:
    """Of each four a shift, a mask, a load and an addition; tables are stored before one of them is read."""
    _, kernel = product_of("q1_0", 65536, 4096)
    p = default_parameters(kernel, TARGET)
    plan = plan_of(kernel, TARGET, p)
    assert isinstance(plan, PackedPlan) and plan.by_fours
    source = generate_kernel(kernel, TARGET, p)
    made = compiled_launch(source, source.launches[0], TARGET)
    report = dict(made.report)
    assert report["spilled_bytes"] == 0 and report["shared_bytes"] - made.shared_bytes == plan.shared_bytes
    found, weights = instructions_of(made.cubin, tmp_path), plan.held * plan.taken[0].written
    assert found.total() / weights <= MOST_INSTRUCTIONS, found.most_common(8)
    assert found["LDS"] == weights // 4 and found["SHFL"] == 10  # of four rows
    names = [name.partition(".")[0] for name in listing_of(made.cubin, tmp_path)]
    barrier = names.index("BAR")
    assert plan.passes == 2 and names.count("BAR") == 3  # for tables, for what reads those before, and for the others
    assert names[:barrier].count("STS") == 32768 // 4 // plan.threads and "LDS" not in names[:barrier]
