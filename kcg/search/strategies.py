"""The registry of all strategies by name, and the two simplest.

A strategy is a function from a `Problem` to an iterator of `Observation`s; see `interface.Strategy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from kcg.errors import UnknownName
from kcg.search.beams import full_beam, guided_beam, predicted_beam
from kcg.search.evolution import UNGUIDED, evolution
from kcg.search.graph import MctsSettings
from kcg.search.interface import Observation, Problem, Strategy
from kcg.search.local import annealing, epsilon_greedy, greedy
from kcg.search.mcts import mcts
from kcg.search.trials import Trials
from kcg.search.walks import fresh

WIDEST: Final = 1024


def hand_coded(problem: Problem) -> Iterator[Observation]:
    """Measures tinygrad's own choice and nothing else."""
    yield from Trials(problem).baseline()


def random_search(problem: Problem) -> Iterator[Observation]:
    """Random legal walks of every length from the start and from the baseline, until all is measured."""
    trials = Trials(problem)
    yield from trials.baseline()
    while not trials.out_of_budget and (batch := fresh(trials, problem.batch_size)):
        yield from trials.measure(batch)


@dataclass(frozen=True)
class Named:
    """A strategy of the registry."""

    make: Callable[[int], Strategy]  # of a number, which only some have: a beam's width, for example
    about: str
    width: int | None = None  # where none is given


STRATEGIES: dict[str, Named] = {
    "hand-coded": Named(lambda _: hand_coded, "tinygrad's own choice and nothing else"),
    "random": Named(lambda _: random_search, "random legal walks from the start and from the hand-coded schedule"),
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
