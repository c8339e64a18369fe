"""One measurement in twenty is drawn uniformly, and every measurement knows why it was chosen."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace

import pytest

from kcg.kernel.kinds import Space
from kcg.search.problem import Ledger, Observation, Problem, Trials
from kcg.search.strategies import strategy
from kcg.search.uniform import CERTAIN, EVERY, UNKNOWN, Chance, Draws, pool_name
from kcg.types import Prediction, Schedule, Status
from tests.small_spaces import programs, space_named, time_s


def problem(kind: str = "tile", *, measurements: int = 200, seed: str = "0", draws: bool = True) -> Problem:
    space: Space = space_named(kind)

    def measure(batch: list[Schedule]) -> list[Future[Observation]]:
        found.ledger.measurements += len(batch)
        futures = []
        for one in batch:
            futures.append(Future[Observation]())
            futures[-1].set_result(Observation(one, Status.OK, time_s(space.key(one)), space.key(one)))
        return futures

    def predict(batch: list[Schedule]) -> list[Prediction]:
        return [Prediction(-9.0 + 0.01 * (len(space.key(one)) % 7)) for one in batch]

    found = Problem(
        space,
        predict,
        measure,
        Ledger(measurements),
        random.Random(seed),
        chances={},
        expected={},  # type: ignore[arg-type]
    )
    return replace(found, draws=Draws(space, predict, seed)) if draws else found  # type: ignore[arg-type]


def test_one_in_twenty_is_drawn_of_many_searches_and_never_the_first() -> None:
    drawn, asked = Counter[int](), 0
    for number in range(200):
        one = problem(seed=str(number))
        draws = one.draws
        assert draws is not None
        for place in range(30):
            drawn[place] += draws.are_due(1)
            asked += 1
    assert drawn[0] == 0
    assert drawn.total() / asked == pytest.approx(1 / EVERY, rel=0.1)
    assert max(drawn.values()) < 25, "any place but the first is as likely"


@pytest.mark.parametrize("kind", ["opts", "tile", "tile of several kernels", "parts"])
@pytest.mark.parametrize("name", ["mcts", "beam", "prior", "random", "evolution", "predicted-beam"])
def test_what_is_measured_knows_its_pool_and_its_probability(name: str, kind: str) -> None:
    asked = problem(kind)
    seen = [one.schedule for one in strategy(name)(asked)]
    assert asked.chances is not None and asked.chances.keys() == set(seen) and len(seen) == len(set(seen))
    assert asked.chances[seen[0]] == CERTAIN, "where a search begins"
    uniform = [one for one in seen if asked.chances[one].is_uniform]
    assert len(uniform) <= len(seen) / EVERY + 1
    for one in uniform:
        pool, _, size = asked.chances[one].pool.partition(":")
        assert pool == "legal" and int(size) == pytest.approx(len(programs(kind)), rel=0.05)
        assert asked.chances[one].probability == pytest.approx(1 / int(size), rel=0.05)
        assert asked.expected is not None and one in asked.expected, "what was expected of it is known too"
    for one in set(seen[1:]) - set(uniform):
        chance = asked.chances[one]
        if chance == UNKNOWN:
            assert name in ("random", "evolution", "predicted-beam"), "of walks at random nobody can tell"
        elif chance != CERTAIN:
            assert chance.probability == 1.0 and chance.pool.startswith("candidates:")
            assert int(chance.pool.split(":")[1]) <= len(programs(kind)) or kind == "parts", (
                "which has neighbours besides"
            )


def test_a_search_repeats_itself_and_finds_all_that_it_finds_without_draws() -> None:
    for name in ("mcts", "beam", "greedy", "full-beam"):
        first, again = ([one.schedule for one in strategy(name)(problem())] for _ in range(2))
        assert first == again
        alone = [one.schedule for one in strategy(name)(problem(draws=False))]
        assert set(alone) <= set(first), "what gave way to a draw comes after it"


def test_what_is_drawn_stands_in_the_place_of_the_last_of_a_batch() -> None:
    asked = problem(measurements=8)
    assert asked.draws is not None
    asked.draws._next = 6
    wanted = list(programs("tile").values())[:8]
    seen = [one.schedule for one in Trials(asked).measure(wanted)]
    assert asked.chances is not None
    assert [asked.chances[one].is_uniform for one in seen] == [False] * 7 + [True]
    assert seen[:7] == wanted[:7] and len(seen) == 8, "it costs no more than its place"


def test_equal_pools_have_one_name() -> None:
    assert pool_name("candidates", ["a", "b"]) == pool_name("candidates", {"b", "a"})
    assert pool_name("candidates", ["a", "b"]).startswith("candidates:2:")
    assert pool_name("candidates", ["a", "c"]) != pool_name("candidates", ["a", "b"])
    assert Chance("legal:5", 0.2).is_uniform and not Chance("candidates:5", 1.0).is_uniform
