"""A finalist is judged everywhere: beside the first binary, and where they differ most by the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kcg.compat.tiny import UOp, dtypes
from kcg.kernel.arithmetic import CONFIDENT
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.opts.schedule import RAW, Opt, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.program import program_of_parts
from kcg.kernel.reference import StoreIndex, StoreValues, evaluate, sample_points
from kcg.measure.device_info import detect
from kcg.measure.inputs import RECIPE, to_bits
from kcg.measure.verify import (
    BESIDE,
    FINAL_SEEDS,
    POINTS,
    PROJECTED,
    REPEATS,
    SUSPECTS,
    CheckedBench,
    Launch,
    WholeOutput,
    as_wide,
    elements_to_points,
    most_different,
)
from kcg.types import Region, Schedule, Target, Verification
from tests.chains import X86, compiled_of, region_of
from tests.kernels import empty, example_asts, kernels_of
from tests.slow import every

TARGET: Target = detect("CPU:X86", 1)[0]
SEED = 1


class Case:
    """A kernel on the bench, and its unoptimised binary."""

    def __init__(self, ast: UOp) -> None:
        self.region = Region((kernel_of(ast),))
        self.bench = CheckedBench(self.region, TARGET)
        self.right = self.launcher(RAW)

    def launcher(self, schedule: Schedule) -> Launch:
        return self.bench.launcher(compile_schedule(self.region, schedule, TARGET))

    def spoiled(self, element: int, factor: float) -> Launch:
        """The right binary, after which one element of its output is multiplied by `factor`."""
        info = self.bench.by_slot[0]

        def launch() -> float:
            seconds = self.right()
            values = self.bench.read(0).astype(np.float32)
            changed = to_bits(values[element : element + 1] * np.float32(factor), info.dtype)
            where = self.bench._views[0].view(info.itemsize, dtypes.uint8, element * info.itemsize).ensure_allocated()
            self.bench._write(where, changed)
            return seconds

        return launch

    def unsampled(self) -> int:
        """An element that no seed of the test looks at."""
        seen: set[int] = set()
        columns = self.bench.by_slot[0].size // 64
        for seed in (0, 1, 2, 3):
            (points,) = sample_points(self.bench.ast, POINTS, np.random.default_rng(seed))
            seen |= {int(p[0]) * columns + int(p[1]) for p in points}
        return next(i for i in range(1000, self.bench.by_slot[0].size) if i not in seen)

    def judge(self, *launches: Launch) -> list[Verification]:
        return self.bench.check_all(launches, (), seeds=(1, 2, 3), thorough=True)


@pytest.fixture(scope="module")
def case() -> Case:
    (ast,) = kernels_of(((empty(64, 40) @ empty(40, 96)) * 0.5).exp2())
    return Case(ast)


def test_one_wrong_element_that_is_not_sampled(case: Case) -> None:
    element = case.unsampled()
    spoiled = case.spoiled(element, 1.001)
    assert case.bench.check(spoiled, (), seeds=(1, 2, 3)).passed, "samples alone do not see it"
    first, second = case.judge(case.right, spoiled)
    assert first.passed and not second.passed
    assert f"element {element} of buffer 0 is" in second.reason and "(seed 1)" in second.reason


def test_one_boolean_that_is_no_truth_and_is_not_sampled() -> None:
    (ast,) = kernels_of(empty(64, 64, dtype="bool") ^ empty(64, 64, dtype="bool"))
    case = Case(ast)
    element = case.unsampled()
    where = case.bench._views[0].view(1, dtypes.uint8, element).ensure_allocated()

    def spoiled() -> float:
        seconds = case.right()
        case.bench._write(where, 2 * case.bench.read(0)[element : element + 1].view(np.uint8))
        return seconds

    assert case.bench.check(spoiled, (), seeds=(1, 2, 3)).passed, "samples alone do not see it"
    first, second = case.judge(case.right, spoiled)
    assert first.passed and second.reason.startswith(f"element {element} of buffer 0 is 2, no truth")


def test_another_order_of_a_sum_passes(case: Case) -> None:
    other = case.launcher(schedule_of([Opt("UPCAST", 1, 4), Opt("UNROLL", 0, 4)]))
    first, second = case.judge(case.right, other)
    assert first.passed and second.passed
    assert BESIDE in second.rules and BESIDE not in first.rules and f"{REPEATS} runs bitwise equal" in first.rules


@pytest.mark.parametrize(
    "name", every(2, ["softmax.0", "conv2d", "argmax.0", "cat", "two_outputs.0", "int_math", "assign", "pad"])
)
def test_what_tinygrad_compiles_passes_every_rule(name: str) -> None:
    case = Case(example_asts()[name])
    baseline = case.launcher(KernelSpace(case.region, TARGET).baseline())
    for result in case.judge(baseline, case.right):
        # without Opts a maximum is read in another order, which NaN shows, and nothing else does
        assert result.passed or (case.bench.nan_seeds and "of NaN" in result.reason), result.reason
        assert result.seeds >= 3


def test_race_that_shows_in_the_seventh_run(case: Case) -> None:
    runs = []

    def launch() -> float:
        runs.append(case.right())
        if len(runs) == 7:
            case.bench._write(
                case.bench._views[0].view(4, dtypes.uint8, 4000).ensure_allocated(), np.ones(1, np.float32)
            )
        return runs[-1]

    (result,) = case.judge(launch)
    assert not result.passed and result.reason == "run 7 differs from the others in buffer 0 (seed 1)"


def test_elements_that_differ_most() -> None:
    a = np.arange(1, 5001, dtype=np.float32)
    b = a.copy()
    b[[17, 4000, 123]] *= np.float32([1.5, 1.01, 1.1])
    b[2500] = np.nan
    assert most_different(a, b, "float", 3).tolist() == [2500, 123, 17], "17 is small beside what is typical"
    assert most_different(a, a, "float").size == 0
    assert most_different(np.zeros(9, np.float32), -np.zeros(9, np.float32), "float").size == 0, "0 and -0 are equal"
    assert len(most_different(a, a + 1, "float")) == SUSPECTS
    assert most_different(np.array([1, 2, 3]), np.array([1, 5, 3]), "int").tolist() == [1]


def test_a_small_element_is_not_hidden_by_huge_ones() -> None:
    a = np.exp(np.linspace(-40, 80, 5000, dtype=np.float32))
    b = a * np.float32(1 + 1e-6)
    b[100] = 0
    assert 100 in most_different(a, b, "float")


def test_payloads_of_nan_hide_nothing() -> None:
    a = np.ones(500, np.float32)
    a[:100] = np.nan
    b = a.copy()
    b.view(np.uint32)[:100] ^= np.uint32(1 << 31)
    b[300] = 7
    assert most_different(a, b, "float").tolist() == [300]
    large = np.array([2**60, 5], np.int64)
    assert most_different(large, large + np.array([1, 0]), "long").tolist() == [0]


def test_points_of_elements_come_back() -> None:
    (ast,) = kernels_of(empty(6, 5, 7).permute(2, 0, 1) + 1)
    bench = CheckedBench(Region((kernel_of(ast),)), TARGET)
    bench.fill(0, RECIPE)
    wanted = np.array([0, 1, 5, 34, 209, 100])
    index = StoreIndex(bench.ast, 0, bench.values())
    points, complete = elements_to_points(index, wanted)
    assert complete
    (stored,) = evaluate(bench.ast, bench.values(), [points], {})
    assert stored.indices.tolist() == wanted.tolist()
    assert elements_to_points(index, wanted[:0])[0].shape == (0, points.shape[1])


def test_projection_sees_one_element_off_by_one() -> None:
    (ast,) = kernels_of(empty(64, 40) @ empty(40, 96))
    case = Case(ast)
    element = case.unsampled()
    spoiled = case.spoiled(element, 1.5)
    alone, right = case.judge(spoiled)[0], case.judge(case.right)[0]
    assert right.passed and PROJECTED in right.rules and "exact on {0,1} inputs" in right.rules
    assert not alone.passed and "the projection of row" in alone.reason
    rules = case.judge(case.right, case.right)[1].rules
    assert {PROJECTED, BESIDE} <= set(rules)


def test_errors_at_few_points_are_no_smaller_than_the_reference_of_the_seed_says() -> None:
    """Of four points random roundings show too little: two right programs in sixty would be refused."""
    values = StoreValues(0, np.arange(4), np.ones(4), np.full(4, 1e-3), share=0.1)
    wide, narrow = (replace(values, error=np.full(4, 1e-2 * share), share=share) for share in (0.4, 0.05))
    assert as_wide(values, wide).error == pytest.approx(4e-3) and as_wide(values, wide).share == 0.4
    assert as_wide(values, narrow) is values
    exact = replace(values, error=np.zeros(4), share=0.0)
    assert as_wide(exact, wide) is exact


@pytest.fixture(scope="module")
def half_attention() -> tuple[CheckedBench, WholeOutput]:
    """Scores, a softmax and its product with values, all stored as float16, as they ran; and the reference of them."""
    q, k, v = (empty(24, 16, dtype="half") for _ in range(3))
    region = region_of((q @ k.T).contiguous().softmax(-1).contiguous() @ v)
    bench = CheckedBench(region, X86)
    assert bench.chain.is_shaken
    run = bench.launcher(program_of_parts(region, [compiled_of(ast_of(kernel)) for kernel in region.kernels]))
    bench.fill(FINAL_SEEDS[0], RECIPE)
    bench.poisoned_run(run)
    reference = bench.reference(FINAL_SEEDS[0], RECIPE, ())
    assert all(0 < store.share < 1 for store in reference.stores)
    return bench, WholeOutput(bench, FINAL_SEEDS[0], {}, only=False, reference=reference)


def test_what_passes_without_random_roundings_takes_none(half_attention: tuple[CheckedBench, WholeOutput]) -> None:
    bench, whole = half_attention
    (index,) = (whole._evaluation(False, shaken=False).index(store) for store in bench.chain.stores)
    points, _ = elements_to_points(index, np.arange(7, 380, 8))
    assert whole._at_points([points], tf32=False) == ""
    assert (False, True) not in whole._evaluations


@pytest.mark.parametrize("errors", [0.3, 2.0, 30.0, 1000.0])
def test_a_verdict_is_that_of_random_roundings(half_attention: tuple[CheckedBench, WholeOutput], errors: float) -> None:
    """One element is off by so many of the errors that count; what is refused, is by what these say."""
    bench, whole = half_attention
    (store,) = bench.chain.stores
    slot, reference = store.slot, whole._reference
    assert reference is not None
    points, _ = elements_to_points(whole._evaluation(False, shaken=False).index(store), np.arange(7, 380, 8))
    (found,) = bench.chain.on(bench.values(), {}).at([points])
    found = as_wide(found, reference.stores[0])
    at, before = int(found.indices[3]), bench.read(slot).copy()
    off = found.values[3] + errors * CONFIDENT * found.error[3]
    where = bench._views[slot].view(1, dtypes.uint16, 2 * at).ensure_allocated()
    bench._write(where, np.asarray([off], np.float16).view(np.uint16))
    try:
        assert whole._at_points([points], tf32=False) == bench.compare([found])
        assert bool(bench.compare([found])) is (errors > 1)
    finally:
        bench._write(where, before[at : at + 1].view(np.uint16))
