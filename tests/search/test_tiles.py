"""What a thread computes, and what is measured of one schedule said of all that compute it so."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from kcg.kernel.opts.space import KernelSpace
from kcg.optimize.search import assigned
from kcg.predictor.correction import CorrectingKernel, Correction
from kcg.predictor.features import Array
from kcg.search.mcts import Graph, MctsSettings
from kcg.search.moves import diverse
from kcg.search.problem import Ledger, Problem, Trials
from kcg.types import RAW, Prediction, Schedule
from tests.kernels import schedule_of, small_matmul


@pytest.fixture(scope="module")
def space() -> KernelSpace:
    return small_matmul()


BASE = schedule_of(("UPCAST", 0, 4), ("UPCAST", 1, 2))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ([("UPCAST", 1, 2), ("UPCAST", 0, 4)], True),
        ([("UPCAST", 0, 2), ("UPCAST", 0, 2), ("UPCAST", 1, 2)], True),
        ([("UPCAST", 0, 4), ("UPCAST", 1, 2), ("LOCAL", 0, 4)], True),  # which thread does it is another matter
        ([("LOCAL", 0, 4), ("UPCAST", 0, 4), ("UPCAST", 1, 2), ("SWAP", 0, 1)], True),
        ([("UPCAST", 0, 2), ("UPCAST", 1, 4)], False),
        ([("UPCAST", 0, 4), ("UPCAST", 1, 2), ("UNROLL", 0, 4)], False),
        ([("UPCAST", 0, 4), ("UPCAST", 1, 2), ("GROUP", 0, 8)], False),
        ([("UPCAST", 0, 8)], False),
    ],
)
def test_a_tile_is_what_a_thread_computes_and_not_which_thread(
    space: KernelSpace, other: list[tuple[str, int, int]], same: bool
) -> None:
    assert (space.tile(schedule_of(*other)) == space.tile(BASE)) == same
    assert space.tile(RAW) == frozenset()


def candidates() -> tuple[Array, Array, Array]:
    """40 schedules of four tiles: all alike for the networks."""
    rng = np.random.default_rng(0)
    return rng.normal(0, 1, (40, 8)), np.full(40, -9.0), np.full(40, 0.4)


def test_a_residual_is_that_of_its_tile() -> None:
    x, predicted, sigma = candidates()
    tiles = np.arange(40) % 4
    truth = predicted + np.array([0.5, 0.0, 0.2, 0.0])[tiles]
    correction = Correction(x)
    first = [i for i in range(16) if tiles[i] != 3]  # of the last tile nothing
    correction.observe(x[first], predicted[first], truth[first], tiles=tiles[first].tolist())
    mean, deviation = correction.corrected(x, predicted, sigma, tiles=tiles.tolist())
    rest = slice(16, 40)
    for tile, least, most in ((0, 0.4, 0.6), (1, -0.1, 0.1), (2, 0.1, 0.3)):
        of_it = (mean - predicted)[rest][tiles[rest] == tile]
        assert least < of_it.mean() < most
    doubt = [deviation[rest][tiles[rest] == tile].mean() for tile in range(4)]
    assert min(doubt[3] / d for d in doubt[:3]) > 1.5, "of another tile less is known"


def test_what_is_wrong_of_a_trait_is_not_held_against_what_has_it_not() -> None:
    x, predicted, sigma = candidates()
    unrolled = np.arange(40) % 2
    truth = predicted + 0.4 * unrolled
    first = [0, *range(1, 13, 2)]  # one that does not unroll, six that do
    rest = [i for i in range(40) if i not in first]
    off = []
    for traits in (None, np.stack([unrolled, np.zeros_like(unrolled)], 1)):
        correction = Correction(x)
        correction.observe(x[first], predicted[first], truth[first], traits=None if traits is None else traits[first])
        mean, _ = correction.corrected(
            x[rest], predicted[rest], sigma[rest], traits=None if traits is None else traits[rest]
        )
        off.append(np.abs(mean - truth[rest])[unrolled[rest] == 0].mean())
    assert 2 * off[1] < 0.1 < off[0]


def test_without_tiles_all_is_as_it_was() -> None:
    x, predicted, sigma = candidates()
    truth = predicted + 0.1 * x[:, 0]
    found = []
    for tiles in (None, [-1] * 40):
        correction = Correction(x)
        correction.observe(x[:9], predicted[:9], truth[:9], tiles=tiles and tiles[:9])
        found.append(correction.corrected(x, predicted, sigma, tiles=tiles))
    assert np.array_equal(found[0][0], found[1][0]) and np.array_equal(found[0][1], found[1][1])


class Blind:
    """Sees nothing in a schedule."""

    def embed(self, space: KernelSpace, some: Sequence[Schedule]) -> tuple[list[Prediction], list[Array | None]]:
        return [Prediction(-9.0, 0.4) for _ in some], [np.zeros(4) for _ in some]


def test_during_a_search_a_kernel_reports_its_tiles(space: KernelSpace) -> None:
    tile = [BASE, *(schedule_of(("UPCAST", 0, 4), ("UPCAST", 1, 2), ("LOCAL", 0, n)) for n in (2, 4, 8))]
    others = [schedule_of(("UPCAST", 0, 2), ("LOCAL", 0, n)) for n in (2, 4, 8)]
    kernel = CorrectingKernel(Blind(), space)
    seen = [(s, float(np.exp(-8.5))) for s in tile[:3]] + [(s, float(np.exp(-9.0))) for s in others[:2]]
    one, other, new = kernel.correct([tile[3], others[2], schedule_of(("UNROLL", 0, 4))], seen)
    assert one.log_runtime > other.log_runtime + 0.2
    assert new.uncertainty > max(one.uncertainty, other.uncertainty)


def test_during_a_search_a_kernel_reports_its_traits(space: KernelSpace) -> None:
    sizes = [(m, n) for m in (2, 4, 8) for n in (2, 4, 8)]
    plain = [schedule_of(("UPCAST", 0, m), ("UPCAST", 1, n)) for m, n in sizes]  # each a tile of its own
    unrolled = [schedule_of(("UPCAST", 0, m), ("UPCAST", 1, n), ("UNROLL", 0, 4)) for m, n in sizes]
    kernel = CorrectingKernel(Blind(), space)
    seen = [(s, float(np.exp(-8.5))) for s in unrolled[:4]] + [(s, float(np.exp(-9.0))) for s in plain[4:6]]
    one, other = kernel.correct([unrolled[8], plain[8]], seen)
    assert one.log_runtime > other.log_runtime + 0.2


def test_a_batch_is_of_many_tiles_where_they_are_about_as_good() -> None:
    steps = [1 << (3 * i) | 2 << (3 * i) | 4 << (3 * i) for i in range(6)]  # no twins
    scores, tiles = [1.0, 0.99, 0.98, 0.95, 0.85, 0.2], ["a", "a", "a", "b", "c", "d"]
    assert diverse(scores, steps, 3) == [0, 1, 2]
    assert diverse(scores, steps, 3, tiles=tiles) == [0, 3, 1]
    assert diverse(scores, steps, 6, tiles=tiles) == [0, 3, 1, 4, 2, 5]


def test_each_tile_is_varied_once_before_any_comes_again(space: KernelSpace) -> None:
    def predict(some: Sequence[Schedule]) -> list[Prediction]:
        return [Prediction(-9.0 - 0.1 * len(s.opts)) for s in some]

    asked = Problem(space, predict, lambda some: [], Ledger(), random.Random(0), step=space.step, tile=space.tile)
    asked.known = {}
    graph = Graph(Trials(asked), MctsSettings())
    for _ in range(12):
        graph.simulate()
    met = {node.tile for node in graph.nodes.values()}
    varied = []
    for _ in range(min(len(met), 8)):
        before = {key for key, node in graph.nodes.items() if node.varied}
        assert graph.vary()
        varied += [node.tile for key, node in graph.nodes.items() if node.varied and key not in before]
    assert len(varied) == len(set(varied)) > 4


def test_thinkers_get_as_much_of_the_time_each() -> None:
    assert assigned([50, 20, 10, 10, 5, 5], 3) == [0, 1, 2, 2, 1, 2]
    assert assigned([1.0], 4) == [0] and assigned([], 2) == [] and assigned([1, 1, 1], 1) == [0, 0, 0]
