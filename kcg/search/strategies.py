"""The registry of all strategies by name, and the two simplest.

A strategy is a function from a `Problem` to an iterator of `Observation`s; see `interface.Strategy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from kcg.errors import UnknownName
from kcg.search.beam import Drafts, draft, full_beam, guided_beam, predicted_beam
from kcg.search.mcts import MctsSettings, mcts
from kcg.search.moves import Way, Ways, fresh, walk
from kcg.search.problem import Ledger, Observation, Problem, Strategy, Trials
from kcg.types import Schedule

# ---- Evolution: schedules as lists of steps that are mutated and crossed, the offspring ranked by the predictor.
#
# The model is the evolutionary search of TVM's MetaSchedule (Shao et al., 2022): between two batches of measurements a
# population, with new random schedules in it, evolves for some generations under the predictor alone, and a small share
# of a batch is random. Crossing two schedules is Ansor's (Zheng et al., 2020). Unlike there the predictor is corrected
# by each batch.


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
            self.ways.with_step,
            self.ways.without_step,
            self.ways.with_other_step,
            self.ways.with_other_amount,
        ]

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
    """Generations under the predictor, then a batch of the best offspring that are no near duplicates."""
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
        new = {trials.key(s): s for s in trials.at_random(made) if trials.observed(s) is None}
        batch = list(new.values())[: problem.batch_size]
        batch += fresh(trials, problem.batch_size - len(batch))
        if not batch:
            return
        yield from trials.measure(batch)


# ---- Searches that go on from what is fast already: greedy, ε-greedy, and simulated annealing.


def greedy(problem: Problem) -> Iterator[Observation]:
    """Hill-climbing from the baseline, then from the start.

    The children of the incumbent are measured a batch at a time, the best predicted first; as soon as a batch holds a
    faster one the search moves there, and it ends where no child is faster. A poor predictor costs measurements, not
    the result.
    """
    trials = Trials(problem)
    yield from trials.baseline()
    for origin in (problem.space.baseline(), problem.space.start()):
        incumbent: Schedule | None = origin
        while incumbent is not None and not trials.out_of_budget:
            incumbent = yield from _climb(trials, incumbent)


def _climb(trials: Trials, incumbent: Schedule) -> Generator[Observation, None, Schedule | None]:
    """Measures children of the incumbent until one is faster, and returns that one."""
    children = trials.ranked(trials.within_evaluations(trials.children(incumbent)))
    for i in range(0, len(children), trials.problem.batch_size):
        batch = children[i : i + trials.problem.batch_size]
        yield from trials.measure(batch, among=children)
        fastest = min(batch, key=trials.time_s)
        if trials.time_s(fastest) < trials.time_s(incumbent):
            return fastest
    return None


def epsilon_greedy(*, epsilon: float = 0.2, parents: int = 8) -> Strategy:
    """The best expected child of the `parents` best measured so far, or with probability `epsilon` a random walk."""

    def search(problem: Problem) -> Iterator[Observation]:
        trials = Trials(problem)
        yield from trials.baseline()
        drafts = Drafts(trials)
        expanded: set[str] = set()
        while not trials.out_of_budget:
            for parent in (problem.space.start(), *trials.fastest(parents)):
                if trials.key(parent) not in expanded and not trials.out_of_budget:
                    expanded.add(trials.key(parent))
                    drafts.add(trials.children(parent))
            walks = sum(problem.rng.random() < epsilon for _ in range(problem.batch_size))
            batch = drafts.best(problem.batch_size - walks)
            batch += fresh(trials, problem.batch_size - len(batch))
            if not batch:
                return
            yield from trials.measure(batch)

    return search


@dataclass(frozen=True)
class AnnealingSettings:
    """Temperatures are in log-runtime: at 0.1, a neighbour that is 10 % slower is taken in 39 of 100 cases."""

    hot: float = 0.1  # temperature at the beginning
    cold: float = 0.02  # when the budget is gone
    unlimited: int = 64  # where nothing limits the search, half of the way is done after so many measurements
    patience: int = 16  # so many neighbours refused in a row and it starts again at one of the best
    restarts: int = 4  # at one of so many
    idle: int = 64  # so many neighbours in a row that were measured before, and a random schedule is


def annealing(*, settings: AnnealingSettings = AnnealingSettings()) -> Strategy:
    """Simulated annealing (Kirkpatrick et al., 1983) on the measured log-runtime; it begins at the baseline.

    A neighbour has one step more, or any one less. What is faster is taken, what is slower with probability
    exp(-difference / temperature). They are measured one at a time, since each depends on the one before.
    """

    def search(problem: Problem) -> Iterator[Observation]:
        trials, rng = Trials(problem), problem.rng
        ways, cooling = Ways(trials), _Cooling(problem.ledger, settings)
        yield from trials.baseline()
        here, refused, idle = ways.of(problem.space.baseline()), 0, 0
        while not trials.out_of_budget:
            there = _neighbour(ways, here)
            idle = idle + 1 if trials.observed(there.schedule) is not None else 0
            if idle > settings.idle:
                if not (new := fresh(trials, 1)):
                    return
                there, idle = ways.of(new[0]), 0
            yield from trials.measure(trials.at_random([there.schedule]))
            if rng.random() < _acceptance(trials, here, there, cooling.temperature()):
                here, refused = there, 0
            else:
                refused += 1
            if refused >= settings.patience and (best := trials.fastest(settings.restarts)):
                here, refused = ways.of(rng.choice(best)), 0

    return search


def _neighbour(ways: Ways, way: Way) -> Way:
    """One step more or one less, each as likely where both can be done; else the same again."""
    changes = [ways.with_step, ways.without_step]
    ways.trials.problem.rng.shuffle(changes)
    return changes[0](way) or changes[1](way) or way


def _acceptance(trials: Trials, here: Way, there: Way, temperature: float) -> float:
    """The probability of going there, by the runtimes measured: from a failure always, to one never."""
    now_s, then_s = trials.time_s(here.schedule), trials.time_s(there.schedule)
    if math.isinf(now_s) or then_s <= now_s:
        return 1.0
    return math.exp(-math.log(then_s / now_s) / temperature)


class _Cooling:
    """The temperature falls geometrically with the share of the budget that is left."""

    def __init__(self, ledger: Ledger, settings: AnnealingSettings) -> None:
        self.ledger, self.settings = ledger, settings
        self.began = (ledger.measurements, ledger.compilations, ledger.clock())

    def temperature(self) -> float:
        hot, cold = self.settings.hot, self.settings.cold
        return float(cold * (hot / cold) ** self.share_left())

    def share_left(self) -> float:
        """1 at the beginning, 0 where any budget is gone."""
        ledger, (measured, compiled, at) = self.ledger, self.began
        limits = [
            (ledger.max_measurements, ledger.measurements, measured),
            (ledger.max_compilations, ledger.compilations, compiled),
            (ledger.deadline, ledger.clock(), at),
        ]
        shares = [
            (limit - now) / (limit - began) for limit, now, began in limits if limit is not None and began < limit
        ]
        half = self.settings.unlimited
        return max(min(shares), 0.0) if shares else half / (half + ledger.measurements - measured)


WIDEST: Final = 1024


def hand_coded(problem: Problem) -> Iterator[Observation]:
    """Measures the baseline and nothing else: tinygrad's own choice, of a kind that has none where a search begins."""
    yield from Trials(problem).baseline()


def random_search(problem: Problem) -> Iterator[Observation]:
    """Random legal walks of every length from the start and from the baseline, until all is measured."""
    trials = Trials(problem)
    yield from trials.baseline()
    while not trials.out_of_budget and (batch := fresh(trials, problem.batch_size)):
        yield from trials.measure(batch)


def prior(problem: Problem) -> Iterator[Observation]:
    """What is known before anything is measured: the space's own choices, then what the predictor expects to be fast,
    both best first. What it measures changes nothing of that."""
    trials = Trials(problem)
    yield from trials.baseline()
    yield from trials.measure(problem.space.prior())
    if not trials.out_of_budget:
        yield from trials.measure(draft(trials))


@dataclass(frozen=True)
class Named:
    """A strategy of the registry."""

    make: Callable[[int], Strategy]  # of a number, which only some have: a beam's width, for example
    about: str
    width: int | None = None  # where none is given
    behind: str = ""  # what its own measurements say to whoever asks for it, where others are ahead


STRATEGIES: dict[str, Named] = {
    "hand-coded": Named(lambda _: hand_coded, "the baseline and nothing else"),
    "random": Named(lambda _: random_search, "random legal walks, every step as likely, until all is measured"),
    "prior": Named(lambda _: prior, "the kind's own choices, then the predictor's, whatever was measured"),
    "epsilon-greedy": Named(lambda _: epsilon_greedy(), "the best expected child of the best so far, or a random walk"),
    "greedy": Named(lambda _: greedy, "hill climbing: measures the best predicted steps, moves while that helps"),
    "evolution": Named(lambda _: evolution(), "mutation and crossing of the best, offspring ranked by the predictor"),
    "unguided-evolution": Named(lambda _: evolution(settings=UNGUIDED), "the same without a predictor"),
    "annealing": Named(lambda _: annealing(), "simulated annealing on measured runtimes, without a predictor"),
    "beam": Named(guided_beam, "BEAM that measures the best predicted of each level", 4),
    "full-beam": Named(full_beam, "BEAM as tinygrad has it: every child of each level is measured", 4),
    "full-beam-from-hand-coded": Named(
        lambda width: full_beam(width, from_hand_coded=True), "the same, begun at the hand-coded schedule", 4
    ),
    "predicted-beam": Named(predicted_beam, "beams over predictions draft, a batch is measured, and again", 4),
    "mcts": Named(lambda _: mcts, "Monte Carlo tree search with the predictor as value and prior"),
    "mcts-no-prior": Named(
        lambda _: partial(mcts, settings=MctsSettings(predictor_prior=False)),
        "the same where every step is as likely at first",
    ),
    "frugal-mcts": Named(
        lambda evaluations: partial(mcts, settings=MctsSettings(evaluations=evaluations)),
        "the same with so many predictions before each batch",
        64,
    ),
}


def strategy(name: str, registry: Mapping[str, Named] = STRATEGIES) -> Strategy:
    """The strategy of a registry called `name`; `beam:8` is a beam of width 8.

    Raises:
        UnknownName: there is none of that name, or the width is not a whole number from 1 to 1024.
    """
    stem, colon, width = name.partition(":")
    named = registry.get(stem)
    if named is not None and not colon:
        return named.make(named.width or 0)
    if named is not None and named.width and width.isascii() and width.isdecimal() and 1 <= int(width[:5]) <= WIDEST:
        return named.make(int(width))
    raise UnknownName("search strategy", name, [*registry, "beam:WIDTH"])
