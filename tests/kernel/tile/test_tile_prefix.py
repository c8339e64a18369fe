"""Prefix sums: what is one, the text of its programs, and what these compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tinygrad import Tensor

from kcg.kernel.codec import kernel_of
from kcg.kernel.reading.kernel import TileKernel, read_kernel
from kcg.kernel.reading.prefix import prefix_of
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal, legal_values, starts
from kcg.kernel.tile.parameters import PREFIX, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.types import Region
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, compile_first_choices, wrong_of
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS

TARGET = KNOWN_TARGETS["sm_90"]
with_triton = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)

SUMS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: empty(4, 100).cumsum(1),
    "one row": lambda: empty(300).cumsum(0),
    "columns": lambda: empty(5, 64, 7).cumsum(1),
    "the first of three": lambda: empty(40, 3, 9).cumsum(0),
    "two places": lambda: empty(9, 2).cumsum(1),
    "of what is made": lambda: (empty(6, 33, dtype="bfloat16").float() * 2 + 1).cumsum(1),
    "and something made of it": lambda: (empty(6, 33).cumsum(1) * empty(6, 33)).relu(),
    "counted": lambda: (empty(8, 50) > 0).cast("int32").cumsum(1),
    "halves": lambda: empty(3, 128, dtype="float16").cumsum(1),
    "the parts of a long row": lambda: empty(3, 1000).cumsum(1),
}
OTHERS: dict[str, Callable[[], Tensor]] = {
    "a sum": lambda: empty(64, 64).sum(1),
    "a square product": lambda: empty(16, 16) @ empty(16, 16),
    "a moving sum": lambda: _window(64, 32),
    "a sum to both sides": lambda: _window(64, 64, behind=31),
    "a window with something before it": lambda: _window(64, 64, value=1.0),
    "maxima": lambda: empty(4, 100).cummax(1)[0],
    "a convolution": lambda: empty(1, 1, 64).pad((63, 0)).conv2d(empty(1, 1, 64)),
}


def _window(count: int, width: int, *, behind: int = 0, value: float = 0.0) -> Tensor:
    """Sums over windows of so many places, of which so many are behind the output's own."""
    padded = empty(3, count).pad((None, (width - 1 - behind, behind)), value=value)
    return padded._pool((width,), 1).sum(-1)


def regions_of(made: Callable[[], Tensor]) -> list[Region]:
    return [Region((kernel_of(ast),)) for ast in kernels_of(made())]


def sums_in(made: Callable[[], Tensor]) -> list[tuple[Region, TileKernel]]:
    """The kernels that are prefix sums."""
    read = ((region, read_kernel(region)) for region in regions_of(made))
    return [(region, kernel) for region, kernel in read if prefix_of(kernel) is not None]


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_all_places_before_are_found_and_preferred(name: str) -> None:
    for _, kernel in (found := sums_in(SUMS[name])):
        best = default_parameters(kernel, TARGET)
        assert best.form == PREFIX and is_legal(kernel, TARGET, best)
        others = [one for one in starts(kernel, TARGET) if one.form != PREFIX]
        assert others, "what it was before is a program too"
        text = generate_kernel(kernel, TARGET, best).source
        assert "tl.cumsum(" in text and "tl.sum(" not in text and text.count("tl.load(") == len(_read_once(kernel))
    assert len(found) == (2 if "parts" in name else 1)


def _read_once(kernel: TileKernel) -> tuple[object, ...]:
    prefix = prefix_of(kernel)
    assert prefix is not None
    return prefix.loads


@pytest.mark.parametrize("name", OTHERS)
def test_no_other_window_is_one(name: str) -> None:
    assert sums_in(OTHERS[name]) == []


def test_many_places_cost_less_than_a_reduction_of_each() -> None:
    ((_, kernel),) = sums_in(lambda: empty(4096, 512).cumsum(1))
    seconds = {one.form: predicted_seconds(kernel, TARGET, one) for one in starts(kernel, TARGET)}
    assert 4 * seconds.pop(PREFIX) < min(seconds.values())


def programs_of(kernel: TileKernel, rng: Random) -> list[TileParameters]:
    """The prior's choice, and others with another tile and other threads."""
    found = [default_parameters(kernel, TARGET)]
    for field in ("tile", "num_warps"):
        values = legal_values(kernel, TARGET, found[0], field)
        found.append(found[0].changed(**{field: rng.choice(values)}))
    return [one for one in dict.fromkeys(found) if is_legal(kernel, TARGET, one)]


@with_triton
def test_they_compute_what_the_kernels_do(tmp_path: Path) -> None:
    cases = {
        f"{name}, kernel {number}, {one}": Case(region, generate_kernel(kernel, TARGET, one, interpreted=True))
        for name in SUMS
        for number, (region, kernel) in enumerate(sums_in(SUMS[name]))
        for one in programs_of(kernel, Random(name))
    }
    assert len(cases) > 2 * len(SUMS) and wrong_of(cases, tmp_path) == {}


@with_triton
@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_they_compile(target: str) -> None:
    compile_first_choices((one for made in SUMS.values() for one in sums_in(made)), KNOWN_TARGETS[target])
