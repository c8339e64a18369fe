"""A reduction that leaves out one term, or starts from a number, is refused wherever the term is; and rows are read off
the kernel, whatever its layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor

from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.reading.depth import terms_of
from kcg.kernel.reference import points_of_store
from kcg.kernel.rows import reduced_loads
from kcg.measure.device_info import detect
from kcg.measure.inputs import LOWERED_RECIPE, lowered, numpy_dtype, to_bits, to_values
from kcg.measure.planted import BLOCKS, LAUNCHES, TERMS, Kind, places
from kcg.measure.verify import FINAL_SEEDS, CheckedBench, RefereeWithoutDevice
from kcg.types import Region, Verification
from tests.chains import region_of
from tests.kernels import empty, kernels_of
from tests.slow import every, first, first_rows

TARGET = detect("CPU:X86", 1)[0]
Array = np.ndarray[Any, Any]


def region(tensor: Tensor) -> Region:
    """The last kernel of a tensor."""
    return Region((kernel_of(kernels_of(tensor)[-1]),))


def judged(of: Region, compute: Callable[..., Array]) -> Verification:
    """The verdict on a program that leaves in the only output what `compute` makes of the inputs in slot order."""
    bench = CheckedBench(of, TARGET)
    inputs = [info.slot for info in bench.buffers if info.is_input]
    (out,) = bench.outputs

    def launch() -> float:
        found = compute(*(bench.read(slot) for slot in inputs))
        bench._write(bench._views[out], found.astype(numpy_dtype(bench.by_slot[out].dtype)).reshape(-1))
        return 1e-3

    return bench.check(launch, (), seeds=FINAL_SEEDS, thorough=True)


def largest(shape: tuple[int, ...], *, axis: int = -1, start: float = -np.inf, without: tuple[int, ...] = ()) -> Any:
    """A maximum along an axis, as a program might compute it."""

    def compute(x: Array) -> Array:
        kept = np.delete(x.reshape(shape), without, axis=axis)
        return kept.max(axis, initial=np.array(start).astype(x.dtype) if np.isfinite(start) else None)

    return compute


# ---- where


@pytest.mark.parametrize("terms", [1, 2, 31, 33, 333, 1000, 32_000])
def test_every_place_comes_once_and_where_blocks_begin_first(terms: int) -> None:
    order = places(terms)
    assert sorted(order) == list(range(terms))
    first = set(order[: max(LAUNCHES, 1)].tolist())
    for size in BLOCKS[:3] if terms == 32_000 else BLOCKS:
        begins = np.arange(size, terms, size)
        assert {*begins.tolist(), *(begins - 1).tolist()} <= first
    if terms == 32_000:
        in_blocks = {at // 64 for at in first}
        assert in_blocks == set(range(500)), "no block of 64 is left out"


@pytest.mark.parametrize(
    ("made", "shape", "row"),
    [
        (lambda: empty(7, 33).max(1), (7, 33), lambda at, r, c: at[r, c]),
        (lambda: empty(33, 7).max(0), (33, 7), lambda at, r, c: at[c, r]),
        (lambda: empty(7, 33).flip(1)[:, ::2].max(1), (7, 33), lambda at, r, c: at[r, 32 - 2 * c]),
        (lambda: empty(7, 3, 11).permute(1, 0, 2).max((1, 2)), (7, 3, 11), lambda at, r, c: at[c // 11, r, c % 11]),
        (lambda: empty(7, 33).square().sum(1), (7, 33), lambda at, r, c: at[r, c]),
    ],
)
def test_a_row_is_what_is_reduced_to_one_output_whatever_the_layout(
    made: Callable[[], Tensor], shape: tuple[int, ...], row: Callable[..., Array]
) -> None:
    ast = ast_of(region(made()).kernel)
    (load,) = reduced_loads(ast, {})
    rng = np.random.default_rng(0)
    points = points_of_store(ast, 0, 50, rng)
    terms = rng.integers(0, load.terms, len(points))
    at, opened = load.elements(points, terms, rng)
    assert opened.all() and np.array_equal(at, row(np.arange(np.prod(shape)).reshape(shape), points[:, 0], terms))


# ---- what is left out

SHAPES = [(1, 1000), (4, 1000), (9, 333)]


@pytest.mark.parametrize("dtype", every(2, ["float32", "float16", "uint8", "int32"]))
@pytest.mark.parametrize("shape", first(1, SHAPES))
def test_a_maximum_of_few_rows_without_one_column_is_refused_and_the_whole_one_passes(
    dtype: str, shape: tuple[int, int]
) -> None:
    of = region(empty(*shape, dtype=dtype).max(1))
    result = judged(of, largest(shape))
    assert result.passed, result.reason
    for column in np.random.default_rng(shape[1]).integers(1, shape[1] - 1, 2):
        assert not judged(of, largest(shape, without=(int(column),))).passed, column


@pytest.mark.parametrize("start", every(3, [-1.0, -10.0, -1e4, -1e30, -3.4e38]))
def test_a_maximum_of_few_rows_that_starts_from_a_number_is_refused(start: float) -> None:
    for shape in SHAPES:
        result = judged(region(empty(*shape).max(1)), largest(shape, start=start))
        assert not result.passed and "planted data: all" in " ".join(result.rules)
    assert not judged(region(empty(3, 700).min(1)), lambda x: x.reshape(3, 700).min(1, initial=-start)).passed


@pytest.mark.slow
def test_long_rows_and_other_layouts() -> None:
    assert judged(region(empty(1, 32_000).max(1)), largest((1, 32_000))).passed
    for begin in (0, 64, 8000, 17_984, 31_936):
        left_out = tuple(range(begin, begin + 64))
        assert not judged(region(empty(1, 32_000).max(1)), largest((1, 32_000), without=left_out)).passed, begin
    assert not judged(region(empty(500, 3).max(0)), largest((500, 3), axis=0, without=(123,))).passed


@pytest.mark.parametrize(
    ("made", "right", "wrong"),
    first_rows(
        3,
        [
            (
                lambda: empty(2, 900, dtype="bool").any(1),
                lambda x: x.reshape(2, 900).any(1),
                lambda x: np.delete(x.reshape(2, 900), 411, 1).any(1),
            ),
            (
                lambda: (empty(2, 900) > -9).all(1),
                lambda x: (x.reshape(2, 900) > -9).all(1),
                lambda x: (np.delete(x.reshape(2, 900), 411, 1) > -9).all(1),
            ),
            (
                lambda: empty(2, 900).abs().max(1),
                lambda x: np.abs(x.reshape(2, 900)).max(1),
                lambda x: np.abs(np.delete(x.reshape(2, 900), 411, 1)).max(1),
            ),
            (
                lambda: empty(2, 90).cummax(1)[0],
                lambda x: np.maximum.accumulate(x.reshape(2, 90), 1),
                lambda x: np.maximum.accumulate(np.maximum(x.reshape(2, 90), np.float32(-1e30)), 1),
            ),
            (
                lambda: empty(1, 1, 8, 24).max_pool2d((8, 8)),
                lambda x: x.reshape(8, 3, 8).max((0, 2)),
                lambda x: np.delete(x.reshape(8, 3, 8), 3, 2).max((0, 2)),
            ),
            (
                lambda: empty(2, 900).argmax(1),
                lambda x, m: first_equal(x.reshape(2, 900), m),
                lambda x, m: first_equal(np.where(np.arange(900) == 411, np.nan, x.reshape(2, 900)), m),
            ),
            (
                lambda: empty(2, 900).argmin(1),
                lambda x, m: first_equal(-x.reshape(2, 900), m),
                lambda x, m: first_equal(np.where(np.arange(900) < 500, -x.reshape(2, 900), np.nan), m),
            ),
        ],
    ),
    ids=["any", "all", "size", "running", "window", "argmax", "argmin"],
)
def test_other_reductions_of_which_one_term_decides(
    made: Callable[[], Tensor], right: Callable[..., Array], wrong: Callable[..., Array]
) -> None:
    result = judged(region(made()), right)
    assert result.passed, result.reason
    assert not judged(region(made()), wrong).passed


def first_equal(x: Array, most: Array) -> Array:
    """The place of the first that equals a number, the length of the row where there is none."""
    equal = x == most[:, None]
    return np.where(equal.any(1), equal.argmax(1), x.shape[1]).astype(np.int32)


@pytest.mark.parametrize("column", every(3, [1, 64, 255, 700]))
def test_a_maximum_inside_of_a_region_of_several_kernels(column: int) -> None:
    """`logsumexp` of one long row, in one program: what it makes of an element that is far above all others."""
    of = region_of(empty(1, 1000).logsumexp(1).contiguous())
    assert len(of.kernels) > 1

    def logsumexp(x: Array) -> Array:
        x = x.astype(np.float64)
        return np.log(np.exp(x - x.max()).sum(keepdims=True)) + x.max()

    result = judged(of, logsumexp)
    assert result.passed, result.reason
    assert not judged(of, lambda x: logsumexp(np.delete(x, column))).passed


def test_rows_of_zeros_need_their_guard() -> None:
    def length(floor: float) -> Callable[[Array], Array]:
        return lambda x: np.maximum(np.sqrt(np.square(x.reshape(4, 3000), dtype=np.float64).sum(1)), floor)

    of = region(empty(4, 3000).square().sum(1).sqrt().maximum(1e-12))
    result = judged(of, length(1e-12))
    assert result.passed and f"planted data: {Kind.ZERO}" in result.rules, result.reason
    assert not judged(of, length(0.0)).passed


# ---- what it costs


@pytest.mark.parametrize(("epsilon", "passes"), [(1e-5, True), (1e-6, False), (0.0, False), (2e-5, False)])
def test_rows_near_0_need_their_epsilon(epsilon: float, passes: bool) -> None:
    x = empty(9, 96)
    of = region_of(x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt())

    def scaled(values: Array) -> Array:
        rows = values.reshape(9, 96).astype(np.float64)
        with np.errstate(all="ignore"):
            return rows / np.sqrt((rows**2).mean(1, keepdims=True) + epsilon)

    verdict = judged(of, scaled)
    assert verdict.passed is passes, verdict.reason


def test_nothing_is_planted_where_random_data_tell_as_much_or_it_would_cost_too_much() -> None:
    def plantings(tensor: Tensor) -> list[tuple[Kind, int]]:
        found = RefereeWithoutDevice(region(tensor)).plantings(())
        return [(planting.kind, len(planting.expected)) for planting in found]

    assert not plantings(empty(64, 96) @ empty(96, 80)), "no term of a sum is hidden"
    assert not plantings(empty(4096, 4096).max(1)), "as many rows as columns, and 16 million elements"
    assert all(count <= 20 for _, count in plantings(empty(1200, 301).max(1))), "a hundred rows at once"


def test_of_what_is_made_again_for_each_term_every_term_counts() -> None:
    """The distance of each of some points to the nearest centre, all of them added up: one output, by its largest
    terms of 64, each of which is a sum."""
    for points, terms in ((8, 16_384), (4000, 8_192_000)):
        near = (empty(points, 32) @ empty(32, 64) + empty(64)).max(1).sum()
        of = region(near)
        planter = RefereeWithoutDevice(of).planter(())
        assert terms_of(ast_of(of.kernels[0])) == terms
        assert (planter.launches(Kind.ABOVE) == TERMS // terms) is (points == 4000)


def test_what_is_planted_depends_on_the_kernel_alone() -> None:
    one, other = (RefereeWithoutDevice(region(empty(3, 500).max(1))).planter(()) for _ in range(2))
    for number in (1, 7):
        for slot, (at, bits) in one.edits(Kind.ABOVE, 0, number).items():
            assert all(map(np.array_equal, (at, bits), other.edits(Kind.ABOVE, 0, number)[slot]))


def test_a_compiled_maximum_passes_on_planted_data() -> None:
    for dtype in ("float32", "float16", "int32", "bool"):
        of = region(empty(4, 400, dtype=dtype).max(1))
        bench = CheckedBench(of, TARGET)
        result = bench.check(bench.launcher(compile_schedule(of, RAW, TARGET)), (), seeds=FINAL_SEEDS, thorough=True)
        assert result.passed and f"planted data: {Kind.ABOVE}" in result.rules, result.reason


def test_scores_that_bfloat16_cannot_hold_must_still_leave_numbers() -> None:
    """The reference knows too little of them: what has numbers in the first binary's output has them in all others'."""
    q, k, v = (empty(2, n, 32, dtype="bfloat16") for n in (8, 48, 48))
    of = region_of(((q @ k.transpose(1, 2) * 32**-0.5).contiguous().softmax(-1).contiguous() @ v).contiguous())
    bench = CheckedBench(of, TARGET)
    assert bench.choose_recipe((), place=1) != LOWERED_RECIPE
    query, key = sorted(lowered(bench.chain.asts), key=lambda slot: bench.by_slot[slot].size)
    (value,) = {info.slot for info in bench.buffers if info.is_input} - {query, key}
    (out,) = bench.outputs

    def attention(start: float) -> float:
        a, b, c = (to_values(bench.read(slot), "__bf16").reshape(2, -1, 32) for slot in (query, key, value))
        scored = (a.astype(np.float64) @ b.swapaxes(1, 2) * 32**-0.5).astype(np.float32)
        with np.errstate(all="ignore"):
            powers = np.exp(scored - np.maximum(scored.max(2, keepdims=True), start)).astype(np.float32)
            found = powers @ c / powers.sum(2, keepdims=True)
        bench._write(bench._views[out], to_bits(found.ravel(), "__bf16"))
        return 1e-3

    launches = [lambda start=start: attention(start) for start in (-np.inf, -np.inf, 0.0, -100.0)]
    right, too, *wrong = bench.check_all(launches, (), seeds=FINAL_SEEDS, thorough=True)
    assert right.passed and too.passed, (right.reason, too.reason)
    assert all("is no number, and the first binary's is one" in result.reason for result in wrong)
