"""Evolution: schedules as lists of steps that are mutated and crossed, the offspring ranked by the predictor.

The model is the evolutionary search of TVM's MetaSchedule (Shao et al., 2022): between two batches of measurements a
population, with new random schedules in it, evolves for some generations under the predictor alone, and a small share
of a batch is random. Crossing two schedules is Ansor's (Zheng et al., 2020). Unlike there the predictor is corrected by
each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kcg.search.draft import Drafts
from kcg.search.interface import Observation, Problem, Strategy
from kcg.search.trials import Trials
from kcg.search.walks import Way, Ways, fresh, walk
from kcg.types import Schedule


@dataclass(frozen=True)
class EvolutionSettings:
    """How a population evolves."""

    guided: bool = True  # offspring are ranked by the predictor; else each one made is measured
    population: int = 32  # parents: the best known, and where guided the best expected
    founders: int = 64  # random schedules that join before each batch; where unguided once, to be measured
    generations: int = 4  # between two batches
    offspring: int = 32  # of each generation
    crossing: float = 0.15  # share of offspring that have two parents
    random: float = 0.05  # share of a batch that is random, as MetaSchedule's ε


UNGUIDED: Final = EvolutionSettings(guided=False, population=8, founders=16)


def evolution(*, settings: EvolutionSettings = EvolutionSettings()) -> Strategy:
    """Mutation and crossing of the best schedules' steps until the budget is gone or all is measured."""

    def search(problem: Problem) -> Iterator[Observation]:
        trials = Trials(problem)
        yield from trials.baseline()
        breed = _guided if settings.guided else _unguided
        yield from breed(trials, _Breeding(trials, settings))

    return search


class _Breeding:
    """Parents to offspring."""

    def __init__(self, trials: Trials, settings: EvolutionSettings) -> None:
        self.trials, self.settings = trials, settings
        self.ways = Ways(trials)
        self.mutations: list[Callable[[Way], Way | None]] = [
            self.ways.with_step, self.ways.without_step, self.ways.with_other_step, self.ways.with_other_amount
        ]  # fmt: skip

    def offspring(self, parents: list[Schedule], count: int) -> list[Schedule]:
        """Children of `parents`, which stand best first; the first has most. Some are known or alike."""
        rng, found = self.trials.problem.rng, []
        weights = [1.0 / rank for rank in range(1, len(parents) + 1)]
        for _ in range(count):
            if self.trials.out_of_budget:
                break
            one, other = map(self.ways.of, rng.choices(parents, weights, k=2))
            crossed = rng.random() < self.settings.crossing
            way = self.ways.crossed(one, other) if crossed else rng.choice(self.mutations)(one)
            if way is not None:
                found.append(way.schedule)
        return found


def _guided(trials: Trials, breeding: _Breeding) -> Iterator[Observation]:
    """Generations under the predictor, then a batch of the best offspring that are no twins."""
    settings, problem = breeding.settings, trials.problem
    drafts = Drafts(trials)
    population = drafts.add([problem.space.start(), problem.space.baseline()])
    while not trials.out_of_budget:
        founders = [walk(trials) for _ in range(settings.founders) if not trials.out_of_budget]
        population = drafts.add([*trials.fastest(settings.population), *population, *founders])
        for _ in range(settings.generations):
            population = _fittest(drafts, population, settings.population)
            if not population or not problem.ledger.may_evaluate:
                break
            population += drafts.add(breeding.offspring(population, settings.offspring))
        walks = sum(problem.rng.random() < settings.random for _ in range(problem.batch_size))
        batch = drafts.batch(problem.batch_size - walks)
        batch += fresh(trials, problem.batch_size - len(batch))
        if not batch:
            return
        yield from trials.measure(batch)


def _fittest(drafts: Drafts, population: list[Schedule], count: int) -> list[Schedule]:
    """The `count` expected to be fastest, each kernel once."""
    alive = list({drafts.trials.key(s): s for s in population}.values())
    costs = drafts.costs(alive)
    return [alive[i] for i in sorted(range(len(alive)), key=costs.__getitem__)[:count]]


def _unguided(trials: Trials, breeding: _Breeding) -> Iterator[Observation]:
    """Random founders, then offspring of the fastest, all measured."""
    settings, problem = breeding.settings, trials.problem
    yield from trials.measure(fresh(trials, settings.founders))
    while not trials.out_of_budget:
        parents = trials.fastest(settings.population)
        made = breeding.offspring(parents, settings.offspring) if parents else []
        new = {trials.key(s): s for s in made if trials.observed(s) is None}
        batch = list(new.values())[: problem.batch_size]
        batch += fresh(trials, problem.batch_size - len(batch))
        if not batch:
            return
        yield from trials.measure(batch)
