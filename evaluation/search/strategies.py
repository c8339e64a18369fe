"""The strategies of a comparison: those of `kcg.search`, baselines for experiments, and those led by a policy.

A strategy that a policy leads is made of the policy for one kernel (`rollouts.Led`); without one it raises UsageError
as soon as it searches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Final

from evaluation.search.rollouts import Led, acting, policy, policy_beam
from evaluation.search.tinygrad_mcts import tinygrad_mcts
from kcg.errors import UsageError
from kcg.search import strategies
from kcg.search.problem import Observation, Problem, Strategy
from kcg.search.strategies import Named

MakeLed = Callable[[Led, int], Strategy]
"""A strategy of a policy and a number, which only some have."""


def _led_by(led: Led | None, make: MakeLed, number: int) -> Strategy:
    def search(problem: Problem) -> Iterator[Observation]:
        if led is None:
            raise UsageError(
                "this search strategy follows a policy, and there is none: choose another, for example mcts"
            )
        return make(led, number)(problem)

    return search


_LED: Final[dict[str, tuple[MakeLed, str, int | None]]] = {
    "policy": (lambda led, _: policy(led), "rollouts of the policy, without a predictor", None),
    "policy-beam": (policy_beam, "a beam over the policy's probabilities, ranked by the predictor", 16),
    "ppo": (
        lambda led, _: acting(led),
        "as `--search ppo`: rollouts in the environment, ranked by the predictor",
        None,
    ),
}


def registry(led: Led | None = None) -> dict[str, Named]:
    """All strategies by name, those that need one with a policy for one kernel."""
    baselines = {
        "tinygrad-mcts": Named(
            tinygrad_mcts,
            "the tree search that tinygrad once had, without a predictor; ends after so many binaries",
            500,
        )
    }
    ours = {
        name: Named(functools.partial(_led_by, led, make), about, width) for name, (make, about, width) in _LED.items()
    }
    return strategies.STRATEGIES | baselines | ours


def strategy(name: str, led: Led | None = None) -> Strategy:
    """The strategy called `name`. Raises UnknownName."""
    return strategies.strategy(name, registry(led))


def needs_policy(name: str) -> bool:
    """Whether a strategy follows a policy."""
    return name.partition(":")[0] in _LED
