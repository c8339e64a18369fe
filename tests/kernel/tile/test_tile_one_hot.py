"""Sums over one-hot rows, as an embedding's gradient: what is one, the text of its programs, and what these compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tinygrad import Tensor, dtypes, nn

from kcg.kernel.codec import kernel_of
from kcg.kernel.kinds import space_of
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel, read_kernel
from kcg.kernel.reading.one_hot import MOST_OF_ROW, one_hot
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal, legal_values, starts
from kcg.kernel.tile.parameters import CONTRACTION, REDUCTION, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.program import TileSource
from kcg.types import Region
from tests.chains import region_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, compile_first_choices, wrong_of
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS

TARGET = KNOWN_TARGETS["sm_90"]
with_triton = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
ROWS, WIDTH, READ = 96, 48, 60  # of a table, and how many of its rows are read
MOST_PROGRAMS = 16


def ids(*shape: int) -> Tensor:
    return empty(*shape, dtype="int32")


def gradient(*shape: int, dtype: str = "float32", rows: int = ROWS, width: int = WIDTH) -> Tensor:
    """What a table gets whose rows are read by numbers of such a shape."""
    table = nn.Embedding(rows, width)
    table.weight = empty(rows, width, dtype=dtype)
    (found,) = (table(ids(*shape)) * empty(*shape, width, dtype=dtype)).sum().gradient(table.weight)
    return found


def tied(dtype: str, rows: int = ROWS, width: int = WIDTH, read: int = READ) -> Tensor:
    """The same of a table that is the weight of the last product too: what both come to, in one kernel."""
    of_product = empty(read, rows, dtype=dtype).T @ empty(read, width, dtype=dtype)
    taken = Tensor.arange(rows).reshape(rows, 1, 1) == ids(read).reshape(1, read, 1)
    return of_product * 0.25 + taken.where(empty(read, width, dtype=dtype).reshape(1, read, width), 0).sum(1)


def by_expert(rows: int = 24, width: int = 16, experts: int = 3, terms: int = 16) -> Tensor:
    """Products of several pairs, and sums whose rows are the pairs: what is read for a sum has rows and columns."""
    products = empty(experts, rows, terms, dtype="float16") @ empty(experts, terms, width, dtype="float16")
    taken = Tensor.arange(experts).reshape(experts, 1, 1, 1) == ids(20).reshape(1, 20, 1, 1)
    return products + taken.where(empty(20, rows, width, dtype="float16").reshape(1, 20, rows, width), 0).sum(1)


def read_twice() -> Tensor:
    """The gradient of a table that is read by two lists of numbers."""
    table = nn.Embedding(ROWS, WIDTH)
    table.weight = empty(ROWS, WIDTH)
    both = (table(ids(READ)) * empty(READ, WIDTH)).sum() + (table(ids(40)) * empty(40, WIDTH)).sum()
    (found,) = both.gradient(table.weight)
    return found


def two_ranges() -> Tensor:
    """Rows that two ranges number, which are not stored first."""
    row = Tensor.arange(8).reshape(1, 8, 1, 1) * 12 + Tensor.arange(12).reshape(1, 1, 12, 1)
    taken = row == empty(READ, dtype="int64").reshape(1, 1, 1, READ)
    return taken.where(empty(5, READ).reshape(5, 1, 1, READ), 0).sum(3)


SUMS: dict[str, Callable[[], Tensor]] = {
    "an embedding": lambda: gradient(READ),
    "of two dimensions": lambda: gradient(4, 15),
    "bfloat16": lambda: gradient(READ, dtype="bfloat16"),
    "of no power of two": lambda: gradient(37, rows=71, width=37),
    "one column": lambda: gradient(READ, width=1),
    "tied, float32": lambda: tied("float32"),
    "tied, float16": lambda: tied("float16"),
    "two lists": read_twice,
    "two ranges, and numbers of 64 bits": two_ranges,
    "tied, by expert": by_expert,
    "tied, of no power of two": lambda: tied("float16", 71, 56, 37),
}
OTHERS: dict[str, Callable[[], Tensor]] = {
    "an embedding": lambda: nn.Embedding(ROWS, WIDTH)(ids(READ)),
    "few rows": lambda: gradient(READ, rows=READ // (MOST_OF_ROW + 2)),
    "rows below a number": lambda: _chosen(lambda row, number: row < number),
    "all rows but one": lambda: _chosen(lambda row, number: row != number),
    "rows by a float": lambda: _chosen(lambda row, number: row.float() == number.float()),
    "the same row": lambda: _chosen(lambda row, number: row == number * 0 + 7),
    "maxima": lambda: _taken().max(1),
    "a number that is read once": lambda: (
        (Tensor.arange(ROWS).reshape(ROWS, 1) == ids(1)).where(empty(1, READ), 0).sum(1)
    ),
    "a diagonal": lambda: (Tensor.eye(ROWS) * empty(ROWS, ROWS)).sum(1),
}


def _chosen(condition: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return _taken(condition).sum(1)


def _taken(condition: Callable[[Tensor, Tensor], Tensor] = lambda row, number: row == number) -> Tensor:
    taken = condition(Tensor.arange(ROWS).reshape(ROWS, 1, 1), ids(READ).reshape(1, READ, 1))
    return taken.where(empty(READ, WIDTH).reshape(1, READ, WIDTH), 0)


def sums_in(made: Callable[[], Tensor]) -> list[tuple[Region, TileKernel]]:
    """The kernels that have such a sum."""
    regions = [Region((kernel_of(ast),)) for ast in kernels_of(made())]
    return [(r, k) for r in regions for k in [read_kernel(r)] if any(one_hot(node) for node in k.reductions)]


def programs_of(kernel: TileKernel) -> list[TileParameters]:
    """The prior's choice of each form, and others with another tile, other steps and other threads."""
    rng, found = Random(0), list(starts(kernel, TARGET))
    for first in list(found):
        for field in ("tile", "reduce_tile", "num_warps", "epilogue_parts", "split"):
            values = [one for one in legal_values(kernel, TARGET, first, field) if one != 1]
            found += [first.changed(**{field: rng.choice(values)})] if values else []
    return [one for one in dict.fromkeys(found) if is_legal(kernel, TARGET, one)]


def interpreted(kernel: TileKernel) -> dict[TileParameters, TileSource]:
    """Those that are not of many, since the interpreter takes one after another."""
    found = {
        one: generate_kernel(kernel, TARGET, one.changed(fast_math=False), interpreted=True)
        for one in programs_of(kernel)
    }
    return {one: made for one, made in found.items() if made.launches[0].grid <= MOST_PROGRAMS}


@pytest.mark.parametrize("name", SUMS)
def test_a_program_looks_which_terms_its_rows_have(name: str) -> None:
    ((_, kernel),) = sums_in(SUMS[name])
    best = default_parameters(kernel, TARGET)
    assert best.form == (CONTRACTION if "tied" in name else REDUCTION) and is_legal(kernel, TARGET, best)
    text = generate_kernel(kernel, TARGET, best).source
    sums = 2 if name == "two lists" else 1
    assert text.count("while ") == sums * best.epilogue_parts and ("tl.dot(" in text) is ("tied" in name)


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_else_is_such_a_sum(name: str) -> None:
    assert sums_in(OTHERS[name]) == []


def test_it_costs_less_than_going_through_all_terms_of_each_row() -> None:
    """An embedding of a vocabulary of 50,257: 14.9 ms were measured of the whole gradient of a tied one."""
    ((_, kernel),) = sums_in(lambda: gradient(4, 512, dtype="bfloat16", rows=50_257, width=768))
    assert predicted_seconds(kernel, TARGET, default_parameters(kernel, TARGET)) < 3e-4
    ((_, kernel),) = sums_in(lambda: tied("bfloat16", 50_257, 768, 2_048))
    assert predicted_seconds(kernel, TARGET, default_parameters(kernel, TARGET)) < 2e-3


def test_several_kernels_are_no_program_with_it() -> None:
    ((region, kernel),) = sums_in(SUMS["tied, float16"])
    assert kernel.one_hot_sums and read_region(region).one_hot_sums
    product = empty(ROWS, READ, dtype="float16") @ empty(READ, WIDTH, dtype="float16")
    for made in (
        tied("float16").contiguous() * empty(ROWS, WIDTH, dtype="float16"),
        product + gradient(READ, dtype="float16").contiguous(),
    ):
        with pytest.raises(UnsupportedTile):
            read_region(region_of(made))


def test_nothing_is_read_early_of_what_a_sum_reads() -> None:
    """It reads for each row and column, and for each term."""
    ((region, kernel),) = sums_in(by_expert)
    space = space_of(region, TARGET, "tile")
    assert space.neighbours(space.start())
    assert legal_values(kernel, TARGET, default_parameters(kernel, TARGET), "read_early") == (False,)


def test_a_product_with_it_has_no_persistent_programs_and_none_that_share_sums() -> None:
    ((_, kernel),) = sums_in(lambda: tied("float16", 4_096, 768, 512))
    first = default_parameters(kernel, TARGET)
    for field in ("persistent", "split", "tail", "read_early"):
        assert len(legal_values(kernel, TARGET, first, field)) == 1
    for changed in (first.changed(persistent=1), first.changed(split=2)):
        assert not is_legal(kernel, TARGET, changed)


def numbers_and_terms(kernel: TileKernel, rng: np.random.Generator) -> dict[int, np.ndarray]:
    """Numbers of rows of which most are nobody's, some somebody else's, and many the same; and of terms that go
    nowhere infinities and NaN."""
    one, *others = [found for found in map(one_hot, kernel.reductions) if found]
    if others:
        return {}
    inside = one.reduce.toposort()
    loads = {load.buffer.slot: load.buffer for load in kernel.loads if load.node in inside}
    (numbers,) = [slot for slot, buffer in loads.items() if dtypes.is_int(buffer.dtype)]
    (terms,) = [slot for slot in loads if slot != numbers]
    count = loads[numbers].size
    rows = rng.integers(0, 30, count, dtype=np.int32)
    rows[::5], rows[1::7] = rng.integers(1_000, 2_000, len(rows[::5])), 7
    values = rng.standard_normal((count, loads[terms].size // count)).astype(np.float32)
    nowhere = rows >= 1_000
    values[nowhere] = np.resize(np.array([np.inf, -np.inf, np.nan], np.float32), values[nowhere].shape)
    given = {dtypes.float32: values, dtypes.float16: values.astype(np.float16)}
    given[dtypes.bfloat16] = (values.view(np.uint32) >> 16).astype(np.uint16)
    kind = np.int32 if loads[numbers].dtype is dtypes.int32 else np.int64
    return {numbers: rows.astype(kind), terms: given[loads[terms].dtype].reshape(-1)}


@with_triton
def test_they_compute_what_the_kernels_do(tmp_path: Path) -> None:
    cases = {
        f"{name}, {one}, {'given' if inputs else 'drawn'}": Case(region, program, inputs=inputs)
        for name in SUMS
        for region, kernel in sums_in(SUMS[name])
        for one, program in interpreted(kernel).items()
        for inputs in ({}, numbers_and_terms(kernel, np.random.default_rng(1)))
    }
    assert len(cases) > 4 * len(SUMS) and wrong_of(cases, tmp_path) == {}


@with_triton
@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_they_compile(target: str) -> None:
    compile_first_choices((one for made in SUMS.values() for one in sums_in(made)), KNOWN_TARGETS[target])
