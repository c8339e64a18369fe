"""Verification passes what tinygrad compiles right, and rejects what it compiles wrong and what a cheat would write."""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import operator
import pickle
import platform
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor, Variable

from kcg.compat.tiny import Device, UOp
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.opts.schedule import RAW, Opt, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.program import Compiled
from kcg.kernel.reference import StoreValues
from kcg.measure import child, float_state
from kcg.measure import verify as verify_module
from kcg.measure.device_info import detect
from kcg.measure.inputs import (
    BINARY_RECIPE,
    FEW_RECIPE,
    FLAGS_RECIPE,
    NEGATIVE_RECIPE,
    POSITIVE_RECIPE,
    RECIPE,
    SPECIAL_RECIPE,
    UNIT_RECIPE,
    WIDE_RECIPE,
    to_values,
)
from kcg.measure.verify import (
    EXTREMES,
    FINAL_SEEDS,
    JUDGED,
    PARTS,
    PROBE_POINTS,
    CheckedBench,
    Referee,
    RefereeWithoutDevice,
    Reference,
    first_references_job,
    joined_references,
    references_job,
)
from kcg.measure.workbench import FINITE_POISON, GUARD_BYTES, NAN_POISON, copied
from kcg.types import Region, Schedule, Target, Variables, Verification
from tests.chains import region_of
from tests.kernels import empty, example_ast, example_asts, kernels_of
from tests.slow import every, first

DEV = "CPU:X86"
TARGET: Target = detect(DEV, 1)[0]
VARIABLES = (("length", 20),)
SEEDS = (1, 2, 3)
_TOWARDS_0 = 0xC00 if platform.machine().lower() in ("x86_64", "amd64") else 0xC00000  # FE_TOWARDZERO of fenv.h


def bench_of(ast: UOp) -> tuple[CheckedBench, Region]:
    region = Region((kernel_of(ast),))
    return CheckedBench(region, TARGET), region


def verify(
    ast: UOp, schedule: Schedule = RAW, *, variables: tuple[tuple[str, int], ...] = (), seeds: tuple[int, ...] = SEEDS
) -> Verification:
    bench, region = bench_of(ast)
    compiled = compile_schedule(region, schedule, TARGET, variables=variables)
    return bench.check(bench.launcher(compiled), variables, seeds=seeds)


def verify_fake(bench: CheckedBench, region: Region, spoil: Callable[[], None]) -> Verification:
    """The verdict on the right kernel after which `spoil` changes buffers."""
    compiled = compile_schedule(region, RAW, TARGET)
    run = bench.launcher(compiled)

    def launch() -> float:
        seconds = run()
        spoil()
        return seconds

    return bench.check(launch, (), seeds=SEEDS)


RIGHT = (
    "matmul_f32",
    "softmax",
    "layernorm",
    "conv2d",
    "embedding",
    "take_along",
    "cat",
    "pad",
    "argmax",
    "causal_mask",
    "assign",
    "set_item",
    "int_math",
    "bool_logic",
    "special_floats",
    "max_pool",
    "one_hot",
    "trigonometry",
    "two_outputs",
    "scatter",
    "logsumexp",
    "power",
    "float_to_int",
    "integer_sum",
)


def examples_of(tensor: str) -> list[UOp]:
    """The kernels of one tensor of the examples."""
    return [example_ast(name) for name in example_asts() if name.split(".")[0] == tensor]


@pytest.mark.parametrize("name", every(2, RIGHT))
def test_what_tinygrad_compiles_passes(name: str) -> None:
    for ast in examples_of(name):
        for schedule in (RAW, KernelSpace(Region((kernel_of(ast),)), TARGET).baseline()):
            result = verify(ast, schedule, seeds=(1,))
            assert result.passed, result.reason
            assert result.max_error <= 1 and result.seeds == 1


FINALISTS = (*RIGHT, "matmul_bf16", "f16_softmax", "bf16_norm", "float64", "cross_entropy", "gelu")
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "log": Tensor.log,
    "exp": Tensor.exp,
    "sin": Tensor.sin,
    "rsqrt": Tensor.rsqrt,
    "tanh": Tensor.tanh,
    "floor": Tensor.floor,
    "divide": lambda x: x / x.flip(0),
    "cast": lambda x: x.cast("int32"),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    every(
        5,
        [
            *every(3, ((name, "") for name in example_asts() if name.split(".")[0] in FINALISTS)),
            *every(3, itertools.product(OPERATIONS, ("float32", "float16", "bfloat16", "float64"))),
        ],
    ),
)
def test_what_tinygrad_compiles_passes_as_a_finalist(name: str, dtype: str) -> None:
    """On data of every kind: tinygrad's own schedule of a kernel is not called wrong."""
    bench, region = bench_of(
        kernels_of(OPERATIONS[name](empty(40, 64, dtype=dtype)))[0] if dtype else example_ast(name)
    )
    schedules = (KernelSpace(region, TARGET).baseline(), RAW)
    launches = [bench.launcher(compile_schedule(region, schedule, TARGET)) for schedule in schedules]
    own, raw = bench.check_all(launches, (), seeds=FINAL_SEEDS, thorough=True)
    assert own.passed, own.reason
    # without Opts a maximum is read in another order, which NaN shows, and nothing else does
    assert raw.passed or (bench.nan_seeds and "of NaN" in raw.reason), raw.reason


@pytest.mark.parametrize("name", ["symbolic", "symbolic_elementwise"])
def test_symbolic_shapes_pass(name: str) -> None:
    result = verify(example_ast(name), variables=VARIABLES)
    assert result.passed, result.reason


# -- kernels that tinygrad compiles wrong


def test_padded_and_unrolled_reduce() -> None:
    """tinygrad 0.14.0 reads the padding of a reduced axis of 16, padded to 32, if all of it is unrolled."""
    x, w = empty(8, 16), empty(16, 8)
    for ast, expected in (
        (kernels_of(x @ w)[0], lambda a, b: a.reshape(8, 16) @ b.reshape(16, 8)),
        (kernels_of(x.max(1))[0], lambda a: a.reshape(8, 16).max(1)),
    ):
        bench, region = bench_of(ast)
        reduced = len(KernelSpace(region, TARGET).state(RAW).full_shape) - 1
        wrong = []
        for unroll in (16, 32, 0):
            schedule = schedule_of([Opt("PADTO", reduced, 32), Opt("UNROLL", 0, unroll)])
            compiled = compile_schedule(region, schedule, TARGET)
            launch = bench.launcher(compiled)
            result = bench.check(launch, (), seeds=SEEDS)

            bench.fill(5, RECIPE)
            bench.poison(NAN_POISON)
            launch()
            inputs = [bench.inputs[slot].astype(np.float64) for slot in sorted(bench.inputs)]
            is_right = np.allclose(bench.read(0), expected(*inputs).reshape(-1), rtol=1e-4, atol=1e-4)
            assert result.passed == is_right, (unroll, result.reason)
            wrong += [unroll] if not result.passed else []
        assert 16 not in wrong
        assert wrong == [32, 0], "tinygrad computes this right now: say so in the field notes"


# -- outputs and buffers that are spoiled


@pytest.mark.parametrize("name", ["matmul_f32", "softmax.0", "embedding", "argmax.0", "int_math", "bool_logic"])
@pytest.mark.parametrize("fill", [0, NAN_POISON, FINITE_POISON])
def test_constant_output_is_rejected(name: str, fill: int) -> None:
    bench, region = bench_of(example_ast(name))
    result = verify_fake(
        bench, region, lambda: bench._write(bench._views[0], np.full(bench.by_slot[0].nbytes, fill, np.uint8))
    )
    assert not result.passed and result.reason and "\n" not in result.reason


def test_gather_compares_what_its_indices_select() -> None:
    bench, region = bench_of(example_ast("embedding"))
    bench.fill(1, RECIPE)
    table = bench.inputs[2].reshape(20, 8)
    reference = bench.reference(1, RECIPE, ())
    (store,) = reference.stores
    assert reference.judged() == 1.0
    assert np.array_equal(store.values, table[bench.inputs[1]].reshape(-1)[store.indices])
    assert np.count_nonzero(store.values) == store.values.size
    assert verify(example_ast("embedding")).passed
    off_by_one = np.roll(table, 1, 0)[bench.inputs[1]].reshape(-1)
    result = verify_fake(bench, region, lambda: bench._write(bench._views[0], off_by_one))
    assert not result.passed


def test_logarithms_get_positive_inputs() -> None:
    (ast,) = kernels_of(empty(64).log() + empty(64).sqrt())
    bench, _ = bench_of(ast)
    assert bench.choose_recipe() == POSITIVE_RECIPE
    assert verify(ast).passed
    assert bench_of(example_ast("matmul_f32"))[0].choose_recipe() == RECIPE


def test_what_is_a_number_only_between_0_and_1_gets_such_inputs() -> None:
    """As in a sum over `Tensor.randn`, whose every term is not a number where one of its inputs is above 1."""
    (normal,) = kernels_of(((empty(8, 64) * 6.28).cos() * ((1 - empty(8, 64)).log() * -2).sqrt()).sum(1))
    (quotient,) = kernels_of((empty(8, 64, dtype="int32") // empty(8, 64, dtype="int32")).sum(1))
    for ast, recipe in ((normal, UNIT_RECIPE), (quotient, RECIPE)):  # what divides is never 0
        assert bench_of(ast)[0].choose_recipe() == recipe
        assert verify(ast).passed


def test_one_number_that_decides_over_all_outputs_is_tried_on_every_seed() -> None:
    """A step of a diffusion sampler: the first seed draws a number between 0 and 1, and others do not."""
    at = empty(1)
    (ast,) = kernels_of(empty(4, 64) * at.sqrt() + empty(4, 64) * (1 - at).sqrt())
    assert bench_of(ast)[0].choose_recipe() == UNIT_RECIPE
    assert verify(ast).passed


def a_row_of_a_cache() -> Tensor:
    cache, at = empty(64, 32), Variable("length", 0, 60).bind(3)
    cache[at : at + 1].assign(empty(1, 32) * 2)
    return cache


def some_rows() -> Tensor:
    cache = empty(64, 32)
    cache[4:8].assign(empty(4, 32) + 1)
    return cache


def some_columns_in_place() -> Tensor:
    table = empty(64, 32)
    table[:, 4:8].assign(table[:, 8:12] + 1)
    return table


def the_first_rows() -> Tensor:
    return (empty(64, 32)[0 : Variable("length", 1, 64).bind(3)] * 2).contiguous()


def unless_done(bench: CheckedBench, run: Callable[[], float], first: int) -> Callable[[], float]:
    """Runs only where there is poison in the first element that it writes."""

    def launch() -> float:
        bits = bench.read(bench.outputs[0])[first : first + 1].view(np.uint8)
        return run() if (bits == NAN_POISON).all() or (bits == FINITE_POISON).all() else 1e-5

    return launch


@pytest.mark.parametrize("made", [a_row_of_a_cache, some_rows, some_columns_in_place, the_first_rows])
def test_a_kernel_that_writes_a_part_of_a_buffer_is_right_and_must_write_it_every_time(
    made: Callable[[], Tensor],
) -> None:
    """What it does not write is as the last run left it, also where that is not what it was."""
    for ast in kernels_of(made()):
        bench, region = bench_of(ast)
        variables = VARIABLES if ast.variables() else ()
        run = bench.launcher(compile_schedule(region, RAW, TARGET, variables=variables))
        assert bench.check(run, variables, seeds=FINAL_SEEDS, thorough=True).passed
        (slot,) = bench.outputs
        if bench.by_slot[slot].is_input:
            continue  # it may not look at what it has written: that is restored
        run()
        before = bench.read(slot).copy()
        bench.poison(FINITE_POISON)
        first = int((bench.read(slot) != before).argmax())
        result = bench.check(unless_done(bench, run, first), variables, seeds=FINAL_SEEDS, thorough=True)
        assert not result.passed and "it may leave what looks done" in result.reason


@pytest.mark.parametrize("shape", [(5, 5), (8, 8), (3, 40)])
def test_inputs_that_drown_the_only_output_in_rounding_are_not_chosen(shape: tuple[int, int]) -> None:
    """The largest of a few sums: huge negative numbers make every sum's error larger than the largest sum."""
    (ast,) = kernels_of(empty(*shape).sum(0).max())
    bench, _ = bench_of(ast)
    for place in range(3):
        reference = bench.reference(FINAL_SEEDS[place], bench.choose_recipe(place=place), ())
        assert reference.judged() >= JUDGED
    assert verify(ast, seeds=FINAL_SEEDS).passed


def test_data_of_which_a_few_points_tell_and_most_do_not_give_way_to_the_next() -> None:
    """Of a convolution with a clamp after it 32 points of wide data told, and of 96 most did not."""

    class OfManyPoints(RefereeWithoutDevice):
        def reference(self, seed: int, recipe: str, variables: Variables, *, tf32: bool = False) -> Reference:
            found = super().reference(seed, recipe, variables, tf32=tf32)
            unknown = tuple(replace(store, error=np.full_like(store.error, np.inf)) for store in found.stores)
            return replace(found, stores=unknown) if recipe == WIDE_RECIPE else found

    region = Region((kernel_of(example_ast("matmul_f32")),))
    few, many = (of(region).choose_recipe(place=2) for of in (RefereeWithoutDevice, OfManyPoints))
    assert few == WIDE_RECIPE and many in EXTREMES[2][2:]


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
def test_what_counts_flags_gets_flags(dtype: str) -> None:
    """Conway's life: of other numbers next to none add up to 2 or 3, whose few ones no point would show."""
    cells = empty(32, 32, dtype=dtype)
    around = [cells.roll((i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
    count = functools.reduce(operator.add, around)
    (ast,) = kernels_of(((count == 3) | ((count == 2) & (cells == 1))).cast(dtype))
    bench, _ = bench_of(ast)
    assert bench.choose_recipe() == FLAGS_RECIPE
    assert all(bench.reference(seed, bench.choose_recipe(), ()).can_judge() for seed in FINAL_SEEDS)
    assert verify(ast).passed


def test_what_is_0_unless_two_numbers_are_equal_gets_few_different_ones() -> None:
    x, y, g = empty(8, 32), empty(8, 32), empty(8, 32)
    (gradient,) = kernels_of((x == y).where(g, 0))  # of a max-pool
    (counted,) = kernels_of((empty(8, 32, dtype="int32") * 1000 == empty(8, 32, dtype="int32") * 1000 + 1).sum(1))
    assert bench_of(gradient)[0].choose_recipe() == FEW_RECIPE
    assert verify(gradient).passed
    result = verify(counted)
    assert not result.passed and "every output is 0" in result.reason, "nothing shows that it is right"


@pytest.mark.parametrize(
    ("name", "recipes"),
    [
        ("max", (RECIPE, NEGATIVE_RECIPE, SPECIAL_RECIPE)),
        ("relu", (RECIPE, RECIPE, SPECIAL_RECIPE)),  # of nothing above 0 all is 0
        ("matmul", (RECIPE, NEGATIVE_RECIPE, WIDE_RECIPE)),  # one NaN or infinity is in every sum
        ("log", (POSITIVE_RECIPE, POSITIVE_RECIPE, SPECIAL_RECIPE)),
    ],
)
def test_each_seed_has_data_of_its_own_where_the_reference_can_judge(name: str, recipes: tuple[str, ...]) -> None:
    made = {
        "max": empty(70, 301).max(1),
        "relu": empty(70, 301).relu(),
        "matmul": empty(64, 64) @ empty(64, 64),
        "log": empty(70, 301).log(),
    }
    (ast,) = kernels_of(made[name])
    bench, region = bench_of(ast)
    assert tuple(bench.choose_recipe(place=place) for place in range(len(FINAL_SEEDS))) == recipes
    launch = bench.launcher(compile_schedule(region, RAW, TARGET))
    result = bench.check(launch, (), seeds=FINAL_SEEDS, thorough=True)
    assert result.passed and {f"data of recipe {recipe}" for recipe in recipes} <= {*result.rules}, result.reason


def test_data_of_0_and_1_that_give_no_numbers_prove_nothing_and_are_left_out() -> None:
    """A quotient by one of many zeros: what the rule cannot judge it does not hold against the kernel."""
    (ast,) = kernels_of((empty(16, 8) * empty(16, 1).reciprocal()).sum())
    bench, _ = bench_of(ast)
    assert bench.reference(0, BINARY_RECIPE, ()).judged() == 0.0
    result = verify(ast)
    assert result.passed and "exact on {0,1} inputs" not in result.rules


def test_kernel_of_which_nothing_is_known_is_not_passed() -> None:
    x = empty(64)
    (ast,) = kernels_of((-(x.abs()) - 1).log())  # NaN whatever the input
    result = verify(ast)
    assert (result.passed, result.unjudged, result.wrong) == (False, True, False)
    assert result.reason == "most outputs are not numbers (seed 1)"


def test_guards_of_all_buffers_are_repaired() -> None:
    bench, region = bench_of(example_ast("matmul_f32"))
    compiled = compile_schedule(region, RAW, TARGET)
    run = bench.launcher(compiled)
    spoiled = []

    def launch() -> float:
        seconds = run()
        if not spoiled:
            for slot, base in bench._bases.items():
                offset = GUARD_BYTES - 4 if slot != 1 else GUARD_BYTES + bench.by_slot[slot].nbytes
                bench._write(base.view(4, base.dtype, offset).ensure_allocated(), np.zeros(4, np.uint8))
                spoiled.append(slot)
        return seconds

    first = bench.check(launch, (), seeds=SEEDS)
    assert spoiled == [0, 1, 2] and first.reason == "wrote outside buffer 0 (seed 1)" and bench.tainted
    assert bench.check(run, (), seeds=SEEDS).passed, "the next binary is not blamed for it"


def test_what_changes_how_its_process_rounds_is_refused_and_nothing_else_is_blamed() -> None:
    library = ctypes.CDLL(None)
    bench, region = bench_of(example_ast("matmul_f32"))
    run = bench.launcher(compile_schedule(region, RAW, TARGET))

    def launch() -> float:
        seconds = run()
        assert not library.fesetround(_TOWARDS_0)
        return seconds

    try:
        own, other = bench.check_all([run, launch], (), seeds=SEEDS, thorough=True)
        assert own.passed and not float_state.changed()
    finally:
        float_state.restore()
    assert other.reason.startswith("left the floating-point settings of its process changed") and bench.tainted


def test_changed_input_is_found_and_put_back() -> None:
    bench, region = bench_of(example_ast("matmul_f32"))
    result = verify_fake(
        bench, region, lambda: bench._write(bench._views[2], np.zeros(bench.by_slot[2].size, np.float32))
    )
    assert not result.passed
    compiled = compile_schedule(region, RAW, TARGET)
    assert bench.check(bench.launcher(compiled), (), seeds=SEEDS).passed


def test_check_of_a_large_kernel_does_not_blame_the_next_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "LARGE_BYTES", 0)
    bench, region = bench_of(example_ast("matmul_f32"))
    compiled = compile_schedule(region, RAW, TARGET)
    run = bench.launcher(compiled)

    def changes_its_input() -> float:
        seconds = run()
        bench._write(bench._views[2], np.zeros(bench.by_slot[2].size, np.float32))
        return seconds

    assert bench.is_large and bench.check(changes_its_input, (), seeds=(1,)).passed is False  # by its second run
    monkeypatch.setattr(verify_module, "SECOND_RUN_BELOW_S", 0.0)
    assert bench.check(changes_its_input, (), seeds=(1,)).passed, "it does not look there"
    assert bench.check(run, (), seeds=(1,)).passed
    bench._write(bench._views[2], np.zeros(bench.by_slot[2].size, np.float32))
    assert not bench.check(lambda: 0.0, (), seeds=(1,)).passed


def test_what_returns_because_its_output_looks_done_is_refused() -> None:
    bench, region = bench_of(example_ast("matmul_f32"))
    run = bench.launcher(compile_schedule(region, RAW, TARGET))
    done: dict[float, np.ndarray[Any, Any]] = {}  # by a number of the input, what it computed

    def launch() -> float:
        key = float(bench.inputs[1][0])
        if key in done and np.array_equal(bench.read_elements(0, np.array([0])), done[key][:1]):
            return 1e-9
        seconds = run()
        done[key] = bench.read(0)
        return seconds

    assert bench.check(launch, (), seeds=(1,)).passed, "of poison nothing looks done"
    result = bench.check(launch, (), seeds=(1,), thorough=True)
    assert not result.passed and "it may leave what looks done" in result.reason


@pytest.mark.parametrize("name", ["cache_update.0", "symbolic_elementwise"])
def test_a_kernel_that_writes_a_part_of_its_output_is_a_right_one(name: str) -> None:
    """What it does not write stays as it was, whatever that is."""
    variables = (("length", 20), ("position", 3))
    bench, region = bench_of(example_ast(name))
    launch = bench.launcher(compile_schedule(region, RAW, TARGET, variables=variables))
    result = bench.check(launch, variables, seeds=FINAL_SEEDS, thorough=True)
    assert result.passed and "outputs that look done" in result.rules, result.reason


@pytest.mark.parametrize("dtype", first(1, ["fp8e4m3", "fp8e5m2"]))
def test_numbers_of_8_bits_are_made_and_verified(dtype: str) -> None:
    x = empty(40, 64, dtype=dtype).cast("float32")
    for made in (x.sum(1), x @ empty(64, 16), x.max(1), empty(40, 64).cast(dtype)):
        (ast,) = kernels_of(made)
        bench, region = bench_of(ast)
        space = KernelSpace(region, TARGET)
        result = bench.check(
            bench.launcher(compile_schedule(region, space.baseline(), TARGET)), (), seeds=FINAL_SEEDS, thorough=True
        )
        assert result.passed, result.reason


@pytest.mark.parametrize(
    ("got", "want", "error", "words"),
    [
        (1.5, 1.0, 1e-7, "1.5, not 1"),
        (1.0000001, 1.0, 1e-9, "1.0000001, off by 1e-07 where 4e-09 is tolerated"),
        (7, 8, 0.0, "7, not 8"),
    ],
)
def test_what_is_wrong_is_reported_so_that_it_shows(got: float, want: float, error: float, words: str) -> None:
    store = StoreValues(0, np.array([5]), np.array([want]), np.array([error]))
    assert verify_module._in_words(got, store, 0) == words


@pytest.mark.parametrize("fooled", [0, 1, 2])
def test_what_reads_outside_its_buffers_is_refused(fooled: int) -> None:
    """What it finds there, times 0, is added to an element: seen with NaN, with large or with negative numbers."""
    bench, region = bench_of(example_ast("matmul_f32"))
    run = bench.launcher(compile_schedule(region, RAW, TARGET))

    def launch() -> float:
        seconds = run()
        (before, _) = bench._guards[1]
        outside = copied(before).view(np.float32)[-1]
        if (np.isnan(outside), outside > 1e30, outside < -1e30)[fooled]:
            bench._write(bench._views[0], bench.read(0) * np.float32(1.5))
        return seconds

    result = bench.check(launch, (), seeds=FINAL_SEEDS, thorough=True)
    assert not result.passed and "outside its buffers" in result.reason.replace("outside them", "outside its buffers")


def test_timed_runs_count_as_runs() -> None:
    """A kernel that computes the first times only is not timed as a miracle."""
    bench, region = bench_of(example_ast("matmul_f32"))
    run = bench.launcher(compile_schedule(region, RAW, TARGET))
    bench.fill(0, RECIPE)
    for computed, reason in ((100, ""), (3, "timed run 3 left something else in buffer 0")):
        left = iter(range(computed))
        watched = bench.watch(lambda left=left: run() if next(left, None) is not None else 1e-9)  # type: ignore[misc]
        for _ in range(5):
            watched(flush=lambda: None)
        assert watched.runs == 5 and watched.result().startswith(reason) and bool(watched.result()) == bool(reason)


def test_in_place_kernel_starts_from_its_inputs_every_time() -> None:
    ast = example_ast("assign")
    bench, region = bench_of(ast)
    compiled = compile_schedule(region, RAW, TARGET)
    launch = bench.launcher(compiled)
    for _ in range(2):
        assert bench.check(launch, (), seeds=(1,)).passed
        assert np.array_equal(bench.read(0), bench.inputs[0] * 2 + 1)
        launch()


def test_result_counts_seeds_and_error() -> None:
    result = verify(example_ast("matmul_f32"))
    assert result.seeds == 3 and 0 < result.max_error < 0.6 and len(result.rules) >= 5


# -- memory


def test_launcher_keeps_the_memory_that_it_writes() -> None:
    gc.freeze()  # a collection looks through nothing of what earlier tests left: a second each
    bench, region = bench_of(example_ast("matmul_f32"))
    launch = bench.launcher(compile_schedule(region, RAW, TARGET))
    freed = Device["CPU"].allocator.cache
    Device["CPU"].allocator.free_cache()
    del bench
    gc.collect()
    assert not any(freed.values()) and launch() > 0
    del launch
    gc.collect()
    assert sum(map(len, freed.values())) == 3, "and lets go of it"


def test_child_holds_the_memory_of_one_kernel() -> None:
    Device["CPU"].allocator.free_cache()
    sizes = []
    for columns in (40_000, 50_000, 60_000):
        (ast,) = kernels_of(empty(columns) + 1)
        bench = child.bench_for(Region((kernel_of(ast),)), TARGET)
        bench.fill(0, RECIPE)
        sizes.append(sum(size * len(free) for (size, _), free in Device["CPU"].allocator.cache.items()))
        del bench
    assert sizes == [0, 0, 0]
    child._benches.clear()


def test_output_of_bfloat16_reads_back_as_stored() -> None:
    bench, _ = bench_of(example_ast("matmul_bf16"))
    bench.fill(0, RECIPE)
    stored = bench.read(1)
    assert stored.dtype == np.uint16 and np.array_equal(stored, bench.inputs[1])
    assert np.isfinite(to_values(stored, "__bf16")).all()


def test_signature_is_that_of_the_binary() -> None:
    """A binary of another kernel is told apart by what it computes, not by its name."""
    bench, region = bench_of(kernels_of(empty(64) + 1)[0])
    other: Compiled = compile_schedule(Region((kernel_of(kernels_of(empty(64) + 2)[0]),)), RAW, TARGET)
    ours = compile_schedule(region, RAW, TARGET)
    swapped = replace(ours, binary=other.binary)
    assert bench.check(bench.launcher(ours), (), seeds=SEEDS).passed
    assert not bench.check(bench.launcher(swapped), (), seeds=SEEDS).passed


@pytest.mark.parametrize("name", ["matmul_f32", "softmax", "symbolic", "logsumexp", "argmax"])
def test_references_of_another_process_are_those_that_verifying_computes(name: str) -> None:
    variables = VARIABLES if name == "symbolic" else ()
    for ast in examples_of(name):
        bench, region = bench_of(ast)
        compiled = compile_schedule(region, RAW, TARGET, variables=variables)
        plain = bench.check(bench.launcher(compiled), variables, seeds=SEEDS, thorough=True)
        assert plain.passed, plain.reason

        other, _ = bench_of(ast)
        report = pickle.loads(pickle.dumps(references_job(region, variables, SEEDS)))
        other.use_references(report, variables)
        count = len(other._references), len(other.projections)
        assert other.check(other.launcher(compiled), variables, seeds=SEEDS, thorough=True) == plain
        assert (len(other._references), len(other.projections)) == count, "nothing was missing"
        for (*key, tf32), reference in other._references.items():
            for one, here in zip(reference.stores, bench.reference(*key, tf32=tf32).stores, strict=True):
                assert np.array_equal(one.values, here.values, equal_nan=True)
                assert np.array_equal(one.error, here.error) and np.array_equal(one.indices, here.indices)


@pytest.mark.parametrize("name", ["matmul_f32", "symbolic", "region"])
def test_references_in_parts_are_those_of_one_job(name: str) -> None:
    variables = VARIABLES if name == "symbolic" else ()
    if name == "region":
        region = region_of((empty(48, 32) @ empty(32, 48)).contiguous().softmax().contiguous())
    else:
        _, region = bench_of(next(iter(examples_of(name))))
    first = first_references_job(region, variables)
    whole = references_job(region, variables, SEEDS, first)
    parts = [pickle.loads(pickle.dumps(references_job(region, variables, SEEDS, first, n))) for n in range(PARTS)]
    found = joined_references(parts)
    assert found.recipes == whole.recipes and dict(found.references).keys() == dict(whole.references).keys()
    assert dict(found.projections).keys() == dict(whole.projections).keys()
    assert (found.plantings is None) == (whole.plantings is None)
    for key, reference in whole.references:
        for one, other in zip(reference.stores, dict(found.references)[key].stores, strict=True):
            assert np.array_equal(one.values, other.values, equal_nan=True) and np.array_equal(one.error, other.error)
    assert all(part.seconds < found.seconds for part in parts)


def test_an_extreme_recipe_of_a_region_is_one_by_which_it_can_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe of several kernels is of few points, perhaps the few that are numbers."""
    region = region_of((empty(48, 32) @ empty(32, 48)).contiguous().softmax().contiguous())
    referee = RefereeWithoutDevice(region)
    preferred = referee.choose_recipe((), place=1)
    assert preferred in EXTREMES[1]
    whole = Referee._evaluate

    def hardly_known(
        self: Referee, inputs: Any, seed: int, count: int, variables: Any, *, enough: int = 0
    ) -> Reference:
        found = whole(self, inputs, seed, count, variables, enough=enough)
        if count == PROBE_POINTS or self.recipe != preferred:  # `fill` sets the recipe of a whole reference
            return found
        stores = tuple(replace(s, error=np.full(len(s.error), np.inf)) for s in found.stores)
        return Reference(stores)

    monkeypatch.setattr(Referee, "_evaluate", hardly_known)
    fresh = RefereeWithoutDevice(region)
    assert fresh.choose_recipe((), place=1) != preferred
