"""Sums that look something up round nothing; others do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tinygrad import Tensor, dtypes

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.choices import choosing_sums
from tests.kernels import empty, kernels_of

ROWS = 64


def table(rows: int = ROWS, dtype: str = "float16") -> Tensor:
    return empty(rows, 8, dtype=dtype)


def looked_up(rows: int = ROWS) -> Tensor:
    """As tinygrad's `Embedding` does it."""
    wanted = empty(1, 1, dtype="int32").reshape(1, 1, 1)
    chosen = Tensor.arange(rows).reshape(1, rows, 1) == wanted
    return chosen.where(table(rows).reshape(1, rows, 8), 0).sum(1, dtype=dtypes.float16)


def of_blocks() -> Tensor:
    """Two rows have the number that is asked for."""
    wanted, numbers = empty(1, 1, dtype="int32"), Tensor.arange(ROWS).reshape(ROWS, 1) // 2
    return (numbers == wanted).where(table(), 0).sum(0, dtype=dtypes.float16)


def all_but_one() -> Tensor:
    wanted, numbers = empty(1, 1, dtype="int32"), Tensor.arange(ROWS).reshape(ROWS, 1)
    return (numbers == wanted).where(0, table()).sum(0, dtype=dtypes.float16)


def over_another_axis() -> Tensor:
    """Each of its terms is the row that is asked for, or none is."""
    wanted, numbers = empty(1, 1, dtype="int32"), Tensor.arange(ROWS).reshape(ROWS, 1)
    return (numbers == wanted).where(table(), 0).sum(1, dtype=dtypes.float16)


def up_to_one() -> Tensor:
    wanted, numbers = empty(1, 1, dtype="int32"), Tensor.arange(ROWS).reshape(ROWS, 1)
    return (numbers < wanted).where(table(), 0).sum(0, dtype=dtypes.float16)


def sums_of(asts: list[UOp]) -> set[UOp]:
    nodes = {node for ast in asts for node in ast.toposort()}
    return {node for node in nodes if node.op is Ops.REDUCE and node.dtype is dtypes.half}


def test_a_row_of_a_table_is_looked_up() -> None:
    asts = list(kernels_of(looked_up()))
    assert choosing_sums(asts) == sums_of(asts) and len(sums_of(asts)) == 1


def test_both_steps_of_a_long_one_are() -> None:
    asts = list(kernels_of(looked_up(1 << 16)))
    assert len(sums_of(asts)) == 2 and choosing_sums(asts) == sums_of(asts)


def test_a_second_step_by_itself_is_a_sum_of_what_nobody_knows() -> None:
    *_, second = kernels_of(looked_up(1 << 16))
    assert sums_of([second]) and not choosing_sums([second])


@pytest.mark.parametrize("build", [of_blocks, all_but_one, over_another_axis, up_to_one])
def test_a_sum_of_several_terms_is_none(build: Callable[[], Tensor]) -> None:
    asts = list(kernels_of(build()))
    assert sums_of(asts) and not choosing_sums(asts)
