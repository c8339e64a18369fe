"""Whatever a kernel reduces to truths, its data give both; what overflows or vanishes on ordinary data gets others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tinygrad import Tensor

from kcg.kernel.codec import kernel_of
from kcg.measure.inputs import RECIPE, make_inputs, outcomes_of, to_values
from kcg.measure.outcomes import MOSTLY, Mostly, Outcome, booleans, place_of, recipes
from kcg.measure.verify import FINAL_SEEDS, JUDGED, RARER, RefereeWithoutDevice, Reference, rarer_truth
from kcg.types import Region
from tests.kernels import empty, kernels_of
from tests.slow import every

ROWS = 64


def bools(*shape: int) -> Tensor:
    return empty(*shape, dtype="bool")


def ints(*shape: int, dtype: str = "int32") -> Tensor:
    return empty(*shape, dtype=dtype)


def halves(*shape: int, dtype: str = "float16") -> Tensor:
    return empty(*shape, dtype=dtype)


def references(built: Tensor, *, kernel: int = -1) -> tuple[str, list[Reference]]:
    """The ordinary recipe of a kernel, and its references on the first seed and on those of the finals."""
    referee = RefereeWithoutDevice(Region((kernel_of(kernels_of(built)[kernel]),)))
    chosen = [referee.choose_recipe(place=place) for place in range(len(FINAL_SEEDS))]
    pairs = [(0, chosen[0]), *zip(FINAL_SEEDS, chosen, strict=True)]
    return chosen[0], [referee.reference(seed, recipe, ()) for seed, recipe in pairs]


TRUTHS: dict[str, Callable[[], Tensor]] = {
    "all of a row": lambda: bools(ROWS, 512).all(1),
    "any of a row": lambda: bools(ROWS, 512).any(1),
    "all of a column": lambda: bools(512, 200).all(0),
    "all of a large one's columns": lambda: bools(512, 2048).all(0),
    "all of a long row": lambda: bools(16, 30_000).all(1),
    "any of few rows": lambda: bools(4, 700).any(1),
    "any of two axes": lambda: bools(8, 32, 48).any((1, 2)),
    "none": lambda: ~bools(ROWS, 512).any(1),
    "as many as there are": lambda: bools(ROWS, 512).sum(1) == 512,
    "integers are 0": lambda: (ints(ROWS, 512) == 0).all(1),
    "integers are 37": lambda: (ints(ROWS, 512) == 37).all(1),
    "a number of many": lambda: ints(4096) == 50_256,
    "bytes are 255": lambda: (ints(ROWS, 512, dtype="uint8") == 255).all(1),
    "one is below -100": lambda: (ints(ROWS, 512) < -100).any(1),
    "a rest of 3": lambda: (ints(ROWS, 512) % 7 == 3).all(1),
    "a quotient of 2": lambda: (ints(ROWS, 512) // 3 == 2).all(1),
    "between": lambda: ((ints(ROWS, 300) >= 10) & (ints(ROWS, 300) < 20)).all(1),
    "one is above": lambda: (empty(ROWS, 512) > 0.5).any(1),
    "all are below": lambda: (empty(ROWS, 512) < 0.5).all(1),
    "one is no number": lambda: empty(ROWS, 512).isnan().any(1),
    "none is a number": lambda: empty(ROWS, 512).isnan().all(1),
    "all are finite": lambda: halves(ROWS, 512).isfinite().all(1),
    "rows are equal": lambda: (empty(ROWS, 512) == empty(ROWS, 512)).all(1),
    "rows are equal to one": lambda: (empty(ROWS, 512) == empty(512)).all(1),
    "rows are below others": lambda: (empty(ROWS, 512) < empty(ROWS, 512)).all(1),
    "rows are above others": lambda: (empty(ROWS, 512) > empty(ROWS, 512)).all(1),
    "a mask or a number": lambda: (bools(ROWS, 200) | (empty(ROWS, 200) > 0)).all(1),
    "all of all": lambda: bools(20_000).all(),
    "any of all": lambda: (ints(3000) == 77).any(),
    "all are above": lambda: (empty(3000) > 0.1).all(),
}


@pytest.mark.parametrize("name", every(6, TRUTHS))
def test_both_outcomes_are_common_however_much_is_reduced(name: str) -> None:
    """Among all outputs of the first seed where there are many; of a single one, among the seeds."""
    _, found = references(TRUTHS[name]())
    assert all(reference.judged() >= JUDGED for reference in found)
    assert rarer_truth(found) >= RARER
    if found[0].points > 1:
        assert rarer_truth(found[:1]) >= RARER


def test_ordinary_data_stay_where_they_tell() -> None:
    for built in (bools(ROWS, 2).all(1), empty(4096) > 0.5, (bools(ROWS, 75).sum(1) % 2) == 1, empty(ROWS, 64).max(1)):
        assert references(built)[0] == RECIPE


OVERFLOWING: dict[str, Callable[[], Tensor]] = {
    "log-softmax": lambda: (halves(ROWS, 512) * 100).log_softmax(1),
    "softmax": lambda: (halves(ROWS, 512) * 100).softmax(1),
    "logsumexp": lambda: (halves(ROWS, 512) * 30).logsumexp(1),
    "a temperature": lambda: (halves(ROWS, 256) / 0.01).log_softmax(1),
    "cross entropy": lambda: (halves(ROWS, 100) * 50).cross_entropy(ints(ROWS)),
    "squares": lambda: (halves(ROWS, 512) * 100).square().sum(1),
    "a norm": lambda: (halves(ROWS, 256) * 50).layernorm(),
    "exponentials": lambda: (halves(4096) * 100).exp(),
    "in bfloat16": lambda: (halves(ROWS, 512, dtype="bfloat16") * 200).log_softmax(1),
    "in float32": lambda: (empty(ROWS, 512) * 200).logsumexp(1),
}


@pytest.mark.parametrize("name", every(2, OVERFLOWING))
def test_what_overflows_on_ordinary_data_is_judged_on_smaller_numbers(name: str) -> None:
    """The maximum of a row is another kernel's, so that 100 x - m is as large as it may be."""
    built = OVERFLOWING[name]()
    for kernel in range(len(kernels_of(built))):
        _, found = references(OVERFLOWING[name](), kernel=kernel)
        assert all(reference.judged() >= JUDGED and reference.telling() >= 0.2 for reference in found), kernel


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "int64", "uint8"])
def test_a_product_of_a_row_is_no_0_and_each_of_its_factors_tells(dtype: str) -> None:
    _, (first, *_) = references(empty(ROWS, 300, dtype=dtype).prod(1))
    (store,) = first.stores
    assert first.judged() == 1.0 and np.count_nonzero(store.values) == store.values.size
    (bits,) = make_inputs(kernels_of(empty(ROWS, 300, dtype=dtype).prod(1))[0], 0, recipe="factors-v1").values()
    assert np.mean(bits == 1) < 0.4


def test_what_is_rare_is_at_the_ends_of_rows_columns_and_blocks() -> None:
    whole = Outcome(Mostly.AT, 1.0, True, 512).of(1, 64 * 512, largest=64 * 512, seed=1)
    found = [~booleans(whole, 64 * 512, np.random.default_rng(seed)) for seed in range(8)]
    for falses in found:
        rows, columns = falses.reshape(64, 512), falses.reshape(512, 64)
        assert rows[:, 0].any() and rows[:, -1].any() and columns[0].any() and columns[-1].any()
        assert 10 < (~rows.any(1)).sum() < 54 and falses.sum() < 64
    assert sum(falses.reshape(64, 512)[:, [31, 32, 63, 64, 255, 256]].sum() for falses in found) > 8


def test_a_large_buffer_has_what_is_rare_at_its_ends() -> None:
    ast = kernels_of(bools(512, 2048).all(0))[0]
    (bits,) = make_inputs(ast, 1, recipe=f"{MOSTLY}/0").values()
    falses = ~bits.whole()
    assert falses[0] and falses[-1] and falses[:2048].any() and 0 < falses.mean() < 0.01


def test_recipes_have_a_place_each_and_are_the_same_every_time() -> None:
    ast = kernels_of((ints(ROWS, 512) == 37).all(1))[0]
    outcomes = outcomes_of((ast,))
    assert [place_of(recipe) for recipe in recipes(outcomes)] == list(range(len(outcomes)))
    assert outcomes[0].constant == 37 and place_of(RECIPE) is None
    for recipe in recipes(outcomes)[:3]:
        (once,), (again,) = (make_inputs(ast, 3, recipe=recipe).values() for _ in range(2))
        assert np.array_equal(once, again) and to_values(once, "int").dtype == np.int32


def test_what_selects_something_stays_in_range() -> None:
    """A row of a table whose every element is 0, wherever its number says: an index beyond it would select nothing."""
    index = ints(ROWS)
    ast = kernels_of((empty(20, 512)[index] == 0).all(1))[-1]
    for recipe in recipes(outcomes_of((ast,))):
        for bits in make_inputs(ast, 1, recipe=recipe).values():
            assert bits.dtype.kind == "f" or (bits.min() >= 0 and bits.max() < 20)
