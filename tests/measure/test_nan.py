"""What a finalist makes of NaN in a maximum, a minimum or a comparison is what tinygrad's own schedule makes of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tinygrad import Tensor

from kcg.kernel.arithmetic import comparing_in_order
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.kinds import baseline_of
from kcg.kernel.opts.schedule import RAW, Opt, schedule_of
from kcg.measure import verify
from kcg.measure.device_info import detect
from kcg.measure.inputs import RECIPE, SMALL, WITH_NAN, Hashed, make_inputs_of_kernels, nan_slots, to_values
from kcg.measure.verify import NAN_RULE, CheckedBench, Launch, Rounding, differing_in_nan, spread_over
from kcg.types import Region, Schedule, Target
from tests.chains import region_of
from tests.kernels import empty, kernels_of

TARGET: Target = detect("CPU:X86", 1)[0]
SEVEN = schedule_of([Opt("UNROLL", 0, 7)])


class Case:
    """A kernel on the bench, beside tinygrad's own schedule of it."""

    def __init__(self, tensor: Tensor) -> None:
        (self.ast,) = kernels_of(tensor)
        self.region = Region((kernel_of(self.ast),))
        self.bench = CheckedBench(self.region, TARGET)
        self.own = self.launcher(baseline_of(self.region, TARGET))

    def launcher(self, schedule: Schedule) -> Launch:
        return self.bench.launcher(compile_schedule(self.region, schedule, TARGET))

    def instead(self, compute: Callable[..., np.ndarray]) -> Launch:
        """A program written by hand: what NumPy makes of the inputs."""

        def launch() -> float:
            read = [self.bench.read(slot) for slot in sorted(self.bench.inputs)]
            self.bench._write(self.bench._views[0], np.ascontiguousarray(compute(*read)))
            return 1e-6

        return launch

    def judged(self, other: Launch) -> str:
        own, found = self.bench.check_all([self.own, other], (), seeds=(1, 2, 3), thorough=True)
        assert own.passed, own.reason
        assert NAN_RULE in own.rules
        return found.reason


@pytest.mark.parametrize("make", [lambda x: x.max(1), lambda x: x.min(1)], ids=["max", "min"])
def test_another_order_of_reading_makes_something_else_of_nan(make: Callable[[Tensor], Tensor]) -> None:
    """UNROLL compares seven at once: a NaN that is the first of them hides the others."""
    case = Case(make(empty(64, 77)))
    assert "makes something else of NaN than tinygrad's own schedule: element" in case.judged(case.launcher(SEVEN))
    assert case.judged(case.launcher(schedule_of([Opt("UPCAST", 0, 8)]))) == "", "which reads in the same order"
    assert case.judged(case.launcher(RAW)) == ""


def left_out(x: np.ndarray) -> np.ndarray:
    """The largest number of each row; of none the least of all."""
    return np.fmax.reduce(x.reshape(64, 77), axis=1, initial=np.float32(-np.inf))


def let_through(x: np.ndarray) -> np.ndarray:
    """NaN of each row that has one."""
    return x.reshape(64, 77).max(1)


def hidden(x: np.ndarray) -> np.ndarray:
    """A NaN hides the element after it."""
    rows = x.reshape(64, 77).copy()
    rows[:, 1:][np.isnan(rows[:, :-1])] = -np.inf
    return left_out(rows)


def of_others(x: np.ndarray) -> np.ndarray:
    """Where a row has NaN its largest number is that of another one."""
    found = left_out(x)
    return np.where(np.isnan(let_through(x)), np.roll(found, 1), found)


@pytest.mark.parametrize(
    ("instead", "is_right"), [(left_out, True), (let_through, True), (hidden, False), (of_others, False)]
)
def test_what_loses_no_number_beside_nan_is_right_where_tinygrads_own_schedule_does(
    instead: Callable[[np.ndarray], np.ndarray], is_right: bool
) -> None:
    """Own is a schedule with UNROLL: a NaN that is the first of seven hides the others."""
    case = Case(empty(64, 77).max(1))
    case.own = case.launcher(SEVEN)
    assert (case.judged(case.instead(instead)) == "") is is_right
    assert case.judged(case.launcher(RAW)) == ""


def test_a_large_maximum_is_seen_alone_and_with_few_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before a region is judged: no reference is known of it then, whose data would take the place of these."""
    monkeypatch.setattr(verify, "NAN_TERMS", 77 * 60)
    case = Case(empty(4096, 77).max(1))
    assert case.bench._nan_reread == 60
    seven = case.launcher(SEVEN)
    assert case.bench.treats_nan([seven, case.launcher(RAW)], ()) == ["", ""]
    again = Case(empty(4096, 77).max(1))
    assert "of NaN" in again.bench.treats_nan([again.launcher(RAW), again.launcher(SEVEN)], ())[1]


def test_a_weight_that_is_nan_counts_where_padding_is_0() -> None:
    """Also where tinygrad's own schedule leaves 0 times NaN out, since it unrolls a window."""
    case = Case(empty(1, 16, 4, 4).conv2d(empty(16, 16, 3, 3), padding=1).relu())

    def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        rows, found = np.pad(x.reshape(16, 4, 4), ((0, 0), (1, 1), (1, 1))), np.zeros((16, 4, 4), np.float32)
        for i, j in np.ndindex(3, 3):
            found += np.einsum("chw,oc->ohw", rows[:, i : i + 4, j : j + 4], w.reshape(16, 16, 3, 3)[:, :, i, j])
        return np.where(found > 0, found, np.float32(0.0))

    unrolled = schedule_of([Opt("UPCAST", 2, 0), Opt("UPCAST", 1, 0), Opt("UNROLL", 2, 0), Opt("UNROLL", 1, 0)])
    others = [case.launcher(unrolled), case.instead(convolved), case.launcher(RAW)]
    outputs = []
    case.bench.fill(1, RECIPE + WITH_NAN)
    for launch in others:
        launch()
        outputs.append(case.bench.read(0))
    assert not np.allclose(outputs[0], outputs[1])
    case.own = others[0]
    assert [case.judged(other) for other in others] == ["", "", ""]
    wrong = case.instead(lambda x, w: np.where(np.isnan(w).any(), np.float32(1.0), convolved(x, w)))
    assert "of NaN" in case.judged(wrong)


@pytest.mark.parametrize("rows", [(7,), (100, 101, 102, 103), tuple(range(900, 1400, 100))])
def test_a_few_wrong_rows_are_not_lost_among_those_that_let_nan_through(rows: tuple[int, ...]) -> None:
    case = Case(empty(4096, 77).max(1))

    def largest(x: np.ndarray) -> np.ndarray:
        found = x.reshape(4096, 77).max(1)
        found[[row for row in rows if np.isnan(found[row])]] = 123.0
        return found

    assert case.judged(case.instead(lambda x: x.reshape(4096, 77).max(1))) == ""
    assert "is 123.0, not" in case.judged(case.instead(largest))


@pytest.mark.parametrize(
    "make", [lambda x: x.max(1) > 0.5, lambda x: (x.max(1) * 100).cast("int32")], ids=["bool", "int"]
)
def test_what_is_made_of_a_maximum_is_no_float_and_may_be_read_in_order(make: Callable[[Tensor], Tensor]) -> None:
    case = Case(make(empty(64, 77)))
    case.own = case.launcher(SEVEN)
    assert case.judged(case.launcher(RAW)) == ""
    assert case.judged(case.instead(lambda x: np.zeros(64, case.bench.read(0).dtype))) != ""


def test_a_region_is_held_against_its_kernels_compared_in_order() -> None:
    """The NaN of a row is left out of its maximum, whose sum with another is a number."""
    made = region_of((empty(32, 44) + 1).contiguous().max(1) * 2)
    bench = CheckedBench(made, TARGET)
    bench.fill(2, RECIPE + WITH_NAN)
    (slot,) = bench.outputs
    rows = bench.values()[min(bench.inputs)].reshape(32, 44).astype(np.float64)
    elements = np.arange(32)
    with comparing_in_order():
        (store,) = bench._stores_at(slot, elements, ())
    want = (np.fmax.reduce(rows + 1, axis=1, initial=-np.inf) * 2)[store.indices]
    assert len(made.kernels) > 1 and np.isnan(rows).any(1).sum() > 8
    assert np.allclose(store.values, want, atol=1e-5) and np.isfinite(store.error).all()
    (plain,) = bench._stores_at(slot, elements, ())
    assert np.isnan(plain.values).any(), "as it is by itself a maximum lets NaN through"


def test_nothing_is_proven_of_elements_that_the_reference_does_not_compute() -> None:
    """Of two products one after the other it computes a few; a maximum that lets NaN through is right in all."""
    made = region_of((empty(256, 512) @ empty(512, 1024)).contiguous().max(1))
    bench = CheckedBench(made, TARGET)
    (slot,) = bench.outputs
    bench.fill(1, RECIPE + WITH_NAN)
    found = [values.astype(np.float32) for _, values in sorted(bench.values().items())]
    product = found[0].reshape(256, 512) @ found[1].reshape(512, 1024)
    let_through = product.max(1)
    elements = np.arange(256)
    (store,) = bench._stores_at(slot, elements, ())
    assert 0 < len(store.indices) < 256 and np.isnan(let_through).any()
    rounding = Rounding(1e-2, 1e-3, exact=False)
    own = np.full(256, -np.inf, np.float32)
    assert not bench._made_otherwise(slot, elements, (own, let_through), rounding, ()).any()
    wrong = np.where(np.isnan(let_through), np.float32(123.0), let_through)
    assert bench._made_otherwise(slot, elements, (own, wrong), rounding, ()).any()


@pytest.mark.parametrize("length", [40, 1000, 9000])
def test_a_maximum_of_one_row_is_seen_too(length: int) -> None:
    case = Case(empty(length).max())
    other = schedule_of([Opt("UNROLL", 0, 2)]) if "UNROLL" in baseline_of(case.region, TARGET).body else None
    other = schedule_of([Opt("UNROLL", 0, 5)]) if other is None else other
    assert "of NaN" in case.judged(case.launcher(other))


@pytest.mark.parametrize(
    ("tensor", "right", "wrong"),
    [
        # tinygrad: (x < 0) ? 0 : x in some form; NumPy's fmax leaves NaN out, as the functions of C and Triton do
        (lambda: empty(24, 40).maximum(0.25), lambda x: np.where(x < 0.25, np.float32(0.25), x), np.fmax),
        (lambda: empty(24, 40).minimum(0.25), lambda x: np.where(x > 0.25, np.float32(0.25), x), np.fmin),
    ],
    ids=["maximum", "minimum"],
)  # fmt: skip
def test_a_program_written_by_hand_is_held_against_tinygrads_own(
    tensor: Callable[[], Tensor], right: Callable[..., np.ndarray], wrong: Callable[..., np.ndarray]
) -> None:
    case = Case(tensor())
    assert case.judged(case.instead(lambda x: right(x))) == ""
    assert "of NaN" in case.judged(case.instead(lambda x: wrong(x, np.float32(0.25))))


def test_what_is_rounded_in_another_way_is_right() -> None:
    case = Case((empty(24, 40) @ empty(40, 48)).relu())
    assert case.judged(case.launcher(schedule_of([Opt("UNROLL", 0, 8), Opt("UPCAST", 1, 4)]))) == ""


def test_a_clamp_may_let_nan_through_and_makes_no_number_of_it() -> None:
    def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x.reshape(24, 40) @ y.reshape(40, 48)

    case = Case((empty(24, 40) @ empty(40, 48)).relu())
    assert case.judged(case.instead(lambda x, y: np.maximum(product(x, y), 0.0))) == "", "as in PyTorch"
    ones = case.instead(lambda x, y: np.where(np.isnan(z := product(x, y)), np.float32(1.0), np.fmax(z, 0.0)))
    assert case.judged(ones).startswith("makes something else of NaN")


def test_kernels_that_compare_no_floats_have_no_such_runs() -> None:
    for tensor in (empty(8, 8) @ empty(8, 8), empty(64).exp2(), empty(64, dtype="int32").maximum(3)):
        (ast,) = kernels_of(tensor)
        assert not nan_slots([ast]) and not CheckedBench(Region((kernel_of(ast),)), TARGET).nan_seeds


def test_nan_is_in_one_input_at_a_time_and_every_other_turn_it_is_dense() -> None:
    (ast,) = kernels_of(empty(40, 60).maximum(empty(40, 60)))
    slots = nan_slots([ast])
    assert len(slots) == 2
    for seed in range(4):
        made = make_inputs_of_kernels([ast], seed, recipe=RECIPE + WITH_NAN)
        shares = [float(np.isnan(made[slot]).mean()) for slot in slots]
        assert shares[1 - seed % 2] == 0, "there would be nothing but NaN"
        assert 0.4 < shares[seed % 2] < 0.6 if seed >= 2 else 0.15 < shares[seed % 2] < 0.4
        again = make_inputs_of_kernels([ast], seed, recipe=RECIPE + WITH_NAN)
        assert all(np.array_equal(made[slot], again[slot], equal_nan=True) for slot in made)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_large_buffers_and_all_types_have_nan(dtype: str) -> None:
    for size in (SMALL // 2, 3 * SMALL):
        (ast,) = kernels_of(empty(size // 64, 64, dtype=dtype).max(1))
        made = make_inputs_of_kernels([ast], 0, recipe=RECIPE + WITH_NAN)[1]
        names = {"float32": "float", "float16": "half", "bfloat16": "__bf16", "float64": "double"}
        bits = made.whole() if isinstance(made, Hashed) else made
        assert 0.1 < float(np.isnan(to_values(bits, names[dtype])).mean()) < 0.5


def test_intermediates_of_a_region_lead_to_its_inputs() -> None:
    asts = kernels_of(((empty(16, 24) + 1).contiguous().max(1) * 2).contiguous())
    region = Region(tuple(map(kernel_of, asts)), ((1, 0), (2, 1), (3, 2))[: len(asts)], (len(asts),))
    assert nan_slots(CheckedBench(region, TARGET).chain.asts) == (0,)


def test_numbers_may_differ_by_rounding_and_nan_by_nothing() -> None:
    near, exact = Rounding(1e-4, 1e-5, exact=False), Rounding(0.0, 0.0, exact=True)
    own = np.array([1.0, np.nan, np.inf, -3.0], np.float32)
    assert not len(differing_in_nan(own, own.copy(), exact))
    assert not len(differing_in_nan(own, own + np.float32(5e-5), near))
    assert differing_in_nan(own, own + np.float32(5e-5), exact).tolist() == [0, 3]
    for at, value in ((0, np.nan), (1, 1.0), (2, np.nan), (2, -np.inf), (3, np.inf), (3, -2.9)):
        other = own.copy()
        other[at] = value
        assert differing_in_nan(own, other, near).tolist() == [at]
    places = np.arange(1000)
    others = np.where(places < 9, -1, places)
    assert not len(differing_in_nan(places, others, near)), "rounding may turn a comparison"
    assert differing_in_nan(places, others, exact).tolist() == [*range(9)]


@pytest.mark.parametrize("size", [262_145, 400_000, 56_623_104])
def test_places_of_a_large_output_are_in_order_all_over_it_and_drawn_once(size: int) -> None:
    count = 1 << 18
    found = spread_over(size, count, seed=3)
    assert len(found) == count and (np.diff(found) >= 0).all() and found[0] >= 0 and found[-1] < size
    stretch = size / count
    assert (np.abs(found - stretch * np.arange(count)) <= stretch + 1).all()
    assert spread_over(size, count, seed=3) is found, "drawing takes longer than looking at them"
    assert not np.array_equal(found, spread_over(size, count, seed=4))
