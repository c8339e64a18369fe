"""Searches that go on from what is fast already: greedy, ε-greedy, and simulated annealing."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from kcg.search.draft import Drafts
from kcg.search.interface import Ledger, Observation, Problem, Strategy
from kcg.search.trials import Trials
from kcg.search.walks import Way, Ways, fresh
from kcg.types import Schedule


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
        yield from trials.measure(batch)
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
            yield from trials.measure([there.schedule])
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
