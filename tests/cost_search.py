"""A search of tile programs in which each takes as long as kcg's own cost predicts, for tests of the benches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import Future

from evaluation.tiles.searching import strategies
from kcg.kernel.kinds import kind_named, space_of
from kcg.predictor.cost import KnownCost
from kcg.search.problem import Ledger, Observation, Problem
from kcg.types import Region, Schedule, ScheduleKind, Status, Target


def searched_by_cost(region: Region, target: Target, most: int) -> tuple[Schedule, list[Observation]]:
    """What a region's tile programs are searched from, and what is measured by `tile:mcts`, `most` of them."""
    space, ledger = kind_named(ScheduleKind.TILE).space(region, target), Ledger(max_measurements=most)

    def measure(batch: Sequence[Schedule]) -> list[Future[Observation]]:
        ledger.measurements += len(batch)
        predicted = KnownCost().predict(space, batch)
        return [
            _done(Observation(s, Status.OK, p.runtime_s, space.key(s))) for s, p in zip(batch, predicted, strict=True)
        ]

    opts = space_of(region, target)
    problem = Problem(opts, predict=lambda batch: [], measure=measure, ledger=ledger, rng=random.Random(0))
    return space.start(), list(strategies("tile:mcts")(problem))


def _done(observation: Observation) -> Future[Observation]:
    future: Future[Observation] = Future()
    future.set_result(observation)
    return future
