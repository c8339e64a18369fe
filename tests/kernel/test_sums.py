"""What another order of a sum's terms may do: how much it is, and kernels whose sums are off by that."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tinygrad import Tensor

from kcg.compat.tiny import UOp
from kcg.kernel.reference import buffers, evaluate, sample_points
from kcg.kernel.sums import rounding_of_sums, summed_otherwise
from tests.kernels import empty, kernels_of

ROWS, TERMS, EPS = 16, 4096, 2.0**-23
EXPECTED = 0.2 * math.sqrt(TERMS) * EPS


def made_of(ast: UOp, *values: np.ndarray) -> np.ndarray:
    """What it stores, without rounding, of inputs of these sizes."""
    by_size = {one.size: one.ravel() for one in values}
    inputs = {use.slot: by_size[use.size] for use in buffers(ast) if use.is_input}
    (store,) = evaluate(ast, inputs, sample_points(ast, ROWS, np.random.default_rng(0)))
    return store.values[np.argsort(store.indices)]


@pytest.mark.parametrize("cancels", [False, True])
def test_sums_are_off_by_what_another_order_does(cancels: bool) -> None:
    """Of terms of one sign by about 0.2·√K·eps of the sum, of others by that much of √K terms, however near to 0."""
    (ast,) = kernels_of(empty(ROWS, TERMS).sum(1))
    values = np.random.default_rng(1).standard_normal((ROWS, TERMS)).astype(np.float32)
    if cancels:
        values[:, TERMS // 2 :] = -values[:, : TERMS // 2]
    else:
        values = np.abs(values)
    changed = summed_otherwise(ast)
    assert changed is not None
    by = np.abs(made_of(changed, values) - made_of(ast, values))
    typical = math.sqrt(TERMS) if cancels else made_of(ast, values)
    assert rounding_of_sums([ast]) == math.sqrt(TERMS) * EPS
    assert np.all(by < 4 * EXPECTED * typical) and np.median(by / typical) > EXPECTED / 4


def test_what_a_sum_is_added_to_is_not_off() -> None:
    """A gradient changes a weight by little: only that is off, by less than the weight is rounded."""
    rate = 1e-6
    _, ast = kernels_of(Tensor.ones(ROWS).contiguous() - empty(ROWS, TERMS).sum(1) * rate)
    changed = summed_otherwise(ast)
    assert changed is not None
    given = np.ones(ROWS, np.float32), np.random.default_rng(1).random((ROWS, TERMS)).astype(np.float32)
    by = np.abs(made_of(changed, *given) - made_of(ast, *given))
    assert np.all(by > 0) and np.all(by < 4 * EXPECTED * rate * TERMS)


def test_where_nothing_is_rounded_there_is_no_other_kernel() -> None:
    whole = empty(ROWS, TERMS, dtype="int32").sum(1)
    for tensor in (empty(ROWS, TERMS) + 1, empty(ROWS, TERMS).max(1), whole):
        (ast,) = kernels_of(tensor)
        assert summed_otherwise(ast) is None and rounding_of_sums([ast]) == 0
    (narrow,) = kernels_of(empty(ROWS, TERMS, dtype="float16").sum(1))
    assert summed_otherwise(narrow) is None and rounding_of_sums([narrow]) > 0
    with_one = Tensor.arange(ROWS) == empty(1, dtype="int32")
    *_, looked_up = kernels_of(with_one.reshape(ROWS, 1).where(empty(ROWS, 8), 0).sum(0))
    assert summed_otherwise(looked_up) is None
