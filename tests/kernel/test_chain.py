"""The float64 reference of several kernels: each intermediate where it is needed, never rounded, its rounding known."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from tinygrad import Tensor, Variable

from kcg.errors import VerificationError
from kcg.kernel import chain as chain_module
from kcg.kernel.arithmetic import CONFIDENT
from kcg.kernel.chain import Chain
from kcg.kernel.reference import StoreValues, error_ratio
from kcg.measure.inputs import RECIPE, make_inputs_of_kernels, to_values
from kcg.types import Region
from tests.chains import region_of
from tests.kernels import empty, example_asts, example_region
from tests.slow import first

Array = np.ndarray


def inputs_of(chain: Chain, seed: int = 0) -> dict[int, Array]:
    dtypes = {slot: use.dtype_name for of in chain.uses for slot, use in of.items()}
    c_names = {"float16": "half", "float32": "float", "int32": "int", "bfloat16": "__bf16"}
    made = make_inputs_of_kernels(chain.asts, seed, recipe=RECIPE)
    return {slot: to_values(bits, c_names[dtypes[slot]]) for slot, bits in made.items()}


def evaluated(region: Region, points: int = 1 << 20) -> tuple[list[StoreValues], dict[int, Array], Chain]:
    chain = Chain(region)
    inputs = inputs_of(chain)
    sampled = chain.sample_points(points, np.random.default_rng(0), {})
    return chain.on(inputs, {}).at(sampled), inputs, chain


def in_order(stored: StoreValues) -> Array:
    assert sorted(stored.indices) == list(range(len(stored.indices)))
    return stored.values[np.argsort(stored.indices)]


def close(stored: StoreValues, expected: Array) -> None:
    found = in_order(stored)
    np.testing.assert_allclose(found, expected.reshape(-1), rtol=1e-9, atol=1e-12)


def normed(x: Array) -> Array:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + np.float64(np.float32(1e-5)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_intermediates_are_not_rounded(dtype: str) -> None:
    region = region_of(empty(6, 48, dtype=dtype).layernorm().contiguous())
    (stored,), inputs, _ = evaluated(region)
    x = inputs[1].reshape(6, 48).astype(np.float64)
    assert stored.slot == 3 and len(region.kernels) == 3
    tolerance = 1e-9 if dtype == "float32" else 1e-4  # tinygrad's epsilon is of the type itself
    np.testing.assert_allclose(in_order(stored), normed(x).reshape(-1), rtol=tolerance, atol=tolerance)
    rounding = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    share = stored.error / np.maximum(np.abs(stored.values), 0.1)
    assert rounding / 2 < np.median(share) < 20 * rounding, "that of the storage is in the error"


def test_what_float16_would_overflow_in_is_unknown() -> None:
    """The sum does not fit into the intermediate: who keeps it in a register has a number."""
    x = empty(4, 64, dtype="float16")
    region = region_of((x.sum(1, keepdim=True).contiguous() * 0.0625 + x).contiguous())
    chain = Chain(region)
    (slot,) = inputs_of(chain)
    large = np.full(4 * 64, 2000.0, np.float32).astype(np.float16)
    large[64:] = 1.0
    (stored,) = chain.on({slot: large}, {}).at(chain.sample_points(1 << 20, np.random.default_rng(0), {}))
    of_first = stored.indices < 64
    assert np.isinf(stored.error[of_first]).all() and np.isfinite(stored.error[~of_first]).all()
    fused = np.full(int(of_first.sum()), 64 * 2000 * 0.0625 + 2000)
    first = StoreValues(stored.slot, stored.indices[of_first], stored.values[of_first], stored.error[of_first])
    assert error_ratio(first, fused).max() == 0


def test_a_quotient_by_what_overflowed_is_unknown_wherever_it_is_alone() -> None:
    """The deviation of a norm does not fit into float16, and a norm in float32 is right: at one point as at many."""
    region = region_of(empty(2, 48, dtype="float16").layernorm().contiguous())
    chain = Chain(region)
    (slot,) = inputs_of(chain)
    x = np.tile(np.array([-600.0, 600.0], np.float16), 48)
    point = np.array([[1, 3]])
    (stored,) = chain.on({slot: x}, {}).at([point])
    assert np.isinf(stored.error).all()


def attention(keys: int, dtype: str) -> tuple[Region, Callable[[dict[int, Array], slice], Array]]:
    def new(n: int) -> Tensor:
        return empty(1, 1, n, 16, dtype=dtype)

    region = region_of(new(8).scaled_dot_product_attention(new(keys), new(keys)).contiguous())
    query, key, value = 1, 2, 6

    def expected(inputs: dict[int, Array], kept: slice) -> Array:
        q, k, v = (
            np.asarray(inputs[slot][np.arange(inputs[slot].size)]).reshape(-1, 16).astype(np.float64)
            for slot in (query, key, value)
        )
        weights = np.exp(q @ k[kept].T / 4)
        return np.asarray((weights / weights.sum(1, keepdims=True)) @ v[kept])

    return region, expected


@pytest.mark.parametrize("dtype", first(1, ["bfloat16", "float16"]))
def test_a_fused_attention_passes_and_one_without_the_last_key_does_not(dtype: str) -> None:
    """Intermediates of 16 bits are further from the truth than float32, and 1 key of 4,608 is still seen."""
    region, expected = attention(4608, dtype)
    assert len(region.kernels) == 4
    chain = Chain(region)
    inputs = inputs_of(chain, 1)
    (stored,) = chain.on(inputs, {}).at(chain.sample_points(1 << 20, np.random.default_rng(0), {}))
    whole, without = (expected(inputs, kept).reshape(-1)[stored.indices] for kept in (slice(None), slice(-1)))
    assert error_ratio(stored, whole).max() < 1
    assert error_ratio(stored, without).max() > CONFIDENT


def test_an_update_in_place_is_seen_by_who_comes_later() -> None:
    state, x = empty(6, 16), empty(6, 16)
    updated = state.assign(state + (x * 2).contiguous())
    region = region_of(updated)
    (stored,), inputs, chain = evaluated(region)
    ((doubled, state_slot),) = [(a[0], b) for a, b in [(region.args[0], region.outputs[0])]]
    assert doubled not in inputs
    other = next(slot for slot in inputs if slot != state_slot)
    close(stored, inputs[state_slot].astype(np.float64) + 2 * inputs[other])
    assert chain.uses[1][state_slot].is_input and chain.uses[1][state_slot].is_output


POSITION = {"position": 3}


def put_in(state: Tensor, x: Tensor) -> Tensor:
    """A row of `state` is overwritten where it is, as in a cache."""
    position = Variable("position", 0, 7).bind(POSITION["position"])
    return state[position : position + 1].assign(x)


def test_a_row_is_written_and_the_rest_is_what_it_was() -> None:
    state, x = empty(8, 4), empty(1, 4)
    put_in(state, x + 1)
    region = region_of(state, (state * 2).contiguous())
    chain = Chain(region)
    inputs = inputs_of(chain)
    kept = next(slot for slot in region.outputs if slot in inputs)
    (x_slot,), (doubled,) = (slot for slot in inputs if slot != kept), (s for s in region.outputs if s != kept)
    sampled = chain.sample_points(1 << 20, np.random.default_rng(0), POSITION)
    by_slot = {one.slot: one for one in chain.on(inputs, POSITION).at(sampled)}
    right = inputs[kept].reshape(8, 4).astype(np.float64)
    right[3] = inputs[x_slot].astype(np.float64) + 1
    close(by_slot[doubled], right * 2)
    assert sorted(by_slot[kept].indices) == list(range(12, 16)), "only what is written is looked at"
    np.testing.assert_allclose(by_slot[kept].values, right.reshape(-1)[by_slot[kept].indices], rtol=1e-9)
    assert not chain.covers(kept, 32) and chain.covers(doubled, 32)


def test_what_a_later_kernel_overwrites_in_part_is_what_it_is_in_the_end() -> None:
    """The first kernel writes all of its output, the second one row of it."""
    whole = region_of((empty(8, 4) * 3).contiguous())
    state = empty(8, 4)
    row = region_of(put_in(state, empty(1, 4) + 1))
    region = Region((*whole.kernels, *row.kernels), ((0, 1), (0, 2)), (0,))
    chain = Chain(region)
    assert [store.kernel for store in chain.stores] == [0, 1], "one more looks at what is left of the first"
    inputs = inputs_of(chain)
    assert sorted(inputs) == [1, 2]
    right = inputs[1].reshape(8, 4).astype(np.float64) * 3
    right[3] = inputs[2].astype(np.float64) + 1
    stored = chain.on(inputs, POSITION).at(chain.sample_points(1 << 20, np.random.default_rng(0), POSITION))
    assert [len(one.indices) for one in stored] == [32, 4]
    for one in stored:
        np.testing.assert_allclose(one.values, right.reshape(-1)[one.indices], rtol=1e-9)
    both = Region((*row.kernels, *whole.kernels), ((0, 1), (0, 2)), (0,))
    assert [store.kernel for store in Chain(both).stores] == [1], "the row is overwritten whole"


def test_what_nobody_wrote_is_unknown() -> None:
    row = region_of(put_in(empty(8, 4), empty(1, 4) + 1))
    doubled = region_of((empty(8, 4) * 2).contiguous())
    chain = Chain(Region((*row.kernels, *doubled.kernels), ((0, 1), (2, 0)), (2,)))
    inputs = {1: inputs_of(chain)[1]}
    (stored,) = chain.on(inputs, POSITION).at(chain.sample_points(1 << 20, np.random.default_rng(0), POSITION))
    assert sorted(stored.indices[np.isfinite(stored.error)]) == [12, 13, 14, 15]


def test_an_index_that_one_kernel_computes_is_followed_by_the_next() -> None:
    scores, table = empty(6, 17), empty(17, 8)
    region = region_of(table[scores.argmax(1).contiguous()].contiguous())
    assert len(region.kernels) >= 2
    (stored,), inputs, _ = evaluated(region)
    by_size = sorted(inputs, key=lambda slot: inputs[slot].size)
    rows = inputs[by_size[0]].reshape(6, 17).argmax(1)
    close(stored, inputs[by_size[1]].reshape(17, 8)[rows].astype(np.float64))


def test_only_what_the_points_need_is_computed() -> None:
    region = region_of((empty(64, 32) @ empty(32, 64)).contiguous().softmax().contiguous())
    chain = Chain(region)
    (points,) = chain.sample_points(1 << 20, np.random.default_rng(0), {})
    row = points[points[:, 0] == 5]
    values = chain.on(inputs_of(chain), {})
    values.at([row])
    held = values.contents(region.args[0][0], len(chain.asts))
    known = held._kept.knows(np.arange(64 * 64))
    assert known.reshape(64, 64).sum(1).tolist() == [64 if i == 5 else 0 for i in range(64)]


def test_of_half_a_billion_values_in_between_those_asked_for_take_memory() -> None:
    region = region_of((empty(24, 4608, 8) @ empty(24, 8, 4608)).contiguous().max(-1).contiguous())
    chain = Chain(region)
    inputs = inputs_of(chain)
    points = chain.sample_points(16, np.random.default_rng(0), {})
    tracemalloc.start()
    (stored,) = chain.on(inputs, {}).at(points)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(stored.values) == 16
    assert peak < 24 * 4608 * 4608 / 2, "half a byte for each"


def test_what_takes_too_long_is_looked_at_in_fewer_places(monkeypatch: pytest.MonkeyPatch) -> None:
    region = region_of((empty(64, 32) @ empty(32, 64)).contiguous().softmax().contiguous())
    chain = Chain(region)
    points = chain.sample_points(96, np.random.default_rng(0), {})
    values = chain.on(inputs_of(chain), {})
    (all_of_them,) = values.at(points)
    monkeypatch.setattr(chain_module, "MOST_TERMS", 20 * 64 * 34)
    (some,) = chain.on(inputs_of(chain), {}).at(points)
    assert 4 < len(some.values) < len(all_of_them.values) == 96
    shown = dict(zip(all_of_them.indices, all_of_them.values, strict=True))
    assert [shown[i] for i in some.indices] == list(some.values)
    monkeypatch.setattr(chain_module, "MOST_TERMS", 64)
    with pytest.raises(VerificationError, match=r"the reference of these 4 kernels takes more than 64 terms"):
        chain.on(inputs_of(chain), {}).at(points)


def test_points_are_at_the_ends_of_ranges_first_and_where_tiles_meet() -> None:
    region = region_of((empty(300, 32) @ empty(32, 200)).contiguous().softmax().contiguous())
    chain = Chain(region)
    (points,) = chain.sample_points(96, np.random.default_rng(0), {})
    assert len(points) == 96 and (points < (300, 200)).all() and (points >= 0).all()
    assert points[0].tolist() == [0, 0] and points[1].tolist() == [299, 199]
    assert set(points[:6, 0]) >= {0, 299} and set(points[:6, 1]) >= {0, 199}, "however few are taken"
    for axis, starts in ((0, {64, 128, 192, 256}), (1, {64, 128, 192})):
        assert set(points[:, axis]) & starts and set(points[:, axis]) & {start - 1 for start in starts}
        assert starts <= {place + by for place in points[:, axis] for by in (0, 1)}
    assert len({tuple(point) for point in points[7::2]}) > 40, "the others are anywhere"


def test_one_kernel_is_evaluated_as_ever() -> None:
    from kcg.kernel.reference import evaluate, sample_points

    for name in ("two_outputs.0", "set_item", "softmax.1"):
        chain, ast = Chain(example_region(name)), example_asts()[name]
        points = sample_points(ast, 40, np.random.default_rng(1))
        ours = chain.sample_points(40, np.random.default_rng(1), {})
        assert all((a == b).all() for a, b in zip(points, ours, strict=True))
        inputs = inputs_of(chain)
        for a, b in zip(evaluate(chain.asts[0], inputs, points), chain.on(inputs, {}).at(ours), strict=True):
            assert (a.values == b.values).all() and (a.error == b.error).all() and (a.indices == b.indices).all()


def test_where_nothing_bounds_an_error_nothing_is_known_of_it_however_small_the_others_are() -> None:
    values, error = np.arange(32.0), np.full(32, 1.0)
    error[3] = np.inf
    expected = StoreValues(0, np.arange(32), values, error)
    for off, share in ((0.0, 0.0), (0.25, 0.25)):
        found = chain_module.tightened(expected, [StoreValues(0, np.arange(32), values + off, error)])
        assert found.share == share and np.isinf(found.error[3])
        assert np.array_equal(np.delete(found.error, 3), np.full(31, share))
