"""A model of many equal blocks is captured from a few of them, exactly, or as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tinygrad import Tensor

from kcg.types import Workload
from kcg.workloads.capture import lazy_workload, of_repeated, watched
from kcg.workloads.flux import PRESETS, build, step
from kcg.workloads.registry import spec_of
from tests.kernels import empty

WIDTH = 8


def wide(x: Tensor, _: int) -> Tensor:
    return (x @ empty(WIDTH, WIDTH)).relu().contiguous()


def narrow(x: Tensor, _: int) -> Tensor:
    return (x * x.sum(axis=-1, keepdim=True).contiguous()).contiguous()


def growing(x: Tensor, place: int) -> Tensor:
    """Every block has kernels of its own."""
    return (x @ empty(WIDTH, WIDTH + place) @ empty(WIDTH + place, WIDTH)).contiguous()


def from_the_third(x: Tensor, place: int) -> Tensor:
    """The first two blocks are alike, and the others are not."""
    return (x + (1 if place < 2 else 2)).contiguous()


Block = Callable[[Tensor, int], Tensor]


class Model:
    """Blocks of two kinds, one after the other; it remembers what was captured."""

    def __init__(self, first: Block, second: Block, *, rounds: bool = False) -> None:
        self.first, self.second, self.rounds = first, second, rounds
        self.captured: list[tuple[int, int]] = []

    def __call__(self, firsts: int, seconds: int) -> Workload:
        self.captured.append((firsts, seconds))
        x = empty(4, WIDTH)
        for place in range(firsts):
            x = self.first(x, place)
            for second in range(seconds if self.rounds else 0):
                x = self.second(x, second)
        for place in range(0 if self.rounds else seconds):
            x = self.second(x, place)
        return lazy_workload("blocks", "small", x)


def test_counts_follow_from_few_blocks() -> None:
    model, early = Model(wide, narrow), list[tuple[int, Workload]]()
    with watched(lambda workload: early.append((len(model.captured), workload))):
        found = of_repeated(model, 9, 11)
    assert max(map(sum, model.captured)) == 6
    assert {call.region.id for call in early[0][1].calls} == {call.region.id for call in found.calls}
    assert early[0][0] == 1, "the kernels are known after the first capture of several"
    assert found == Model(wide, narrow)(9, 11), "every kernel, its calls, and their order"


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(Model(growing, narrow), id="other kernels"),
        pytest.param(Model(wide, from_the_third), id="another kernel from the third block on"),
        pytest.param(Model(wide, narrow, rounds=True), id="blocks within blocks", marks=pytest.mark.slow),
    ],
)
def test_what_is_not_linear_is_captured_whole(model: Model) -> None:
    found = of_repeated(model, 8, 9)
    assert model.captured[-1] == (8, 9)
    assert found == Model(model.first, model.second, rounds=model.rounds)(8, 9)


def test_few_blocks_are_captured_as_they_are() -> None:
    model = Model(wide, narrow)
    of_repeated(model, 2, 4)
    assert model.captured == [(2, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_flux_is_the_same_as_captured_whole(preset: str) -> None:
    model, inputs = build(preset)
    assert spec_of("flux").capture(preset) == lazy_workload("flux", preset, step(model, inputs))
