"""The simple strategies, and the registry of all by name.

A strategy is a function from a `Problem` to an iterator of `Observation`s; see `interface.Strategy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator

from kcg.errors import UnknownName
from kcg.search.interface import Observation, Problem, Strategy
from kcg.search.mcts import mcts
from kcg.search.trials import Trials
from kcg.types import Schedule

LONGEST_WALK = 8
"""Steps of the longest random walk; 22 of 24 winners of BEAM=2 on Flux have more than 3, few have more than 6."""

WALKS_BEFORE_LISTING = 32
"""Random walks in a row that met nothing new before the space is listed instead."""

BEAM_MIN_PROGRESS_S = 1e-8
"""BEAM stops when the best improves by less: 0.01 µs, as in tinygrad."""


def hand_coded(problem: Problem) -> Iterator[Observation]:
    """Measures tinygrad's own choice and nothing else."""
    yield from Trials(problem).baseline()


def random_search(problem: Problem) -> Iterator[Observation]:
    """Random legal walks of every length from the start and from the baseline, until all is measured."""
    trials = Trials(problem)
    yield from trials.baseline()
    while not trials.out_of_budget:
        batch: dict[str, Schedule] = {}
        misses = 0
        while len(batch) < problem.batch_size and misses < WALKS_BEFORE_LISTING and not trials.out_of_budget:
            schedule = _walk(trials)
            if trials.observed(schedule) is None and trials.key(schedule) not in batch:
                batch[trials.key(schedule)] = schedule
            else:
                misses += 1
        if not batch:  # nearly all within reach of a walk is measured: list what is left
            batch = {trials.key(s): s for s, _ in zip(trials.unmeasured(), range(problem.batch_size), strict=False)}
        if not batch:
            return
        yield from trials.measure(list(batch.values()))


def _walk(trials: Trials) -> Schedule:
    rng, space = trials.problem.rng, trials.problem.space
    schedule = rng.choice((space.start(), space.baseline()))
    for _ in range(rng.randint(0, LONGEST_WALK)):
        actions = trials.actions(schedule)
        if not actions:
            break
        schedule = rng.choice(actions).schedule
    return schedule


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
    children = trials.ranked(trials.children(incumbent))
    for i in range(0, len(children), trials.problem.batch_size):
        batch = children[i : i + trials.problem.batch_size]
        yield from trials.measure(batch)
        fastest = min(batch, key=trials.time_s)
        if trials.time_s(fastest) < trials.time_s(incumbent):
            return fastest
    return None


def beam(width: int, *, draft: int = 8) -> Strategy:
    """tinygrad's BEAM over the problem's own actions: of each level, the `width` fastest lead to the next.

    It begins at the start and stops when a level's best improves on the last by less than 0.01 µs, so it cannot cross a
    valley. BEAM measures all children of a level. Here the predictor spares some: at most `draft * width` are measured,
    the best predicted first, and the others only if none of those was faster.
    """

    def beam_search(problem: Problem) -> Iterator[Observation]:
        trials = Trials(problem)
        yield from trials.baseline()
        kept, record_s = [problem.space.start()], math.inf
        seen = {trials.key(s) for s in kept}
        while not trials.out_of_budget:
            level: dict[str, Schedule] = {}
            for schedule in kept:
                if trials.out_of_budget:
                    return
                level.update({trials.key(c): c for c in trials.children(schedule) if trials.key(c) not in seen})
            seen.update(level)
            candidates = trials.ranked(list(level.values()))
            for part in (candidates[: draft * width], candidates[draft * width :]):
                yield from trials.measure(part)
                fastest_s = min(map(trials.time_s, candidates), default=math.inf)
                if fastest_s < record_s - BEAM_MIN_PROGRESS_S:
                    break
            else:
                return
            record_s = fastest_s
            kept = [s for s in sorted(candidates, key=trials.time_s)[:width] if math.isfinite(trials.time_s(s))]

    return beam_search


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "hand-coded": lambda: hand_coded,
    "random": lambda: random_search,
    "greedy": lambda: greedy,
    "beam": lambda: beam(4),
    "mcts": lambda: mcts,
}


def strategy(name: str) -> Strategy:
    """The strategy called `name`; `beam:8` is a beam of width 8.

    Raises:
        UnknownName: there is none of that name, or the width is not a whole number from 1 to 1024.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]()
    stem, _, width = name.partition(":")
    if stem == "beam" and width.isascii() and width.isdecimal() and 1 <= int(width[:5]) <= 1024:
        return beam(int(width))
    raise UnknownName("search strategy", name, [*STRATEGIES, "beam:WIDTH"])
