"""Searches that a policy leads: rollouts of it, and a beam over its probabilities."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from kcg.errors import UsageError
from kcg.search.draft import Drafts
from kcg.search.interface import Observation, Problem, Proposal, Strategy
from kcg.search.trials import Trials
from kcg.search.walks import fresh
from kcg.types import Schedule


@dataclass(frozen=True)
class RolloutSettings:
    """How schedules are sampled from a policy."""

    longest: int = 16  # steps of a rollout at most: a space may have cycles
    rounds: int = 8  # so many batches of rollouts at each temperature, as long as too few of their ends are new
    temperatures: tuple[float, ...] = (1.0, 2.0, 4.0)  # then random walks


def policy(*, settings: RolloutSettings = RolloutSettings()) -> Strategy:
    """Rollouts of the policy, sampled from its probabilities; each new end is measured. No predictor is asked.

    The first rollout takes the likeliest step each time, from the start; the second likewise from the baseline; the
    others begin at either. Where sampling meets nothing new any more, the temperature rises.
    """

    def search(problem: Problem) -> Iterator[Observation]:
        _need_policy(problem)
        return _rollouts(problem, settings)

    return search


def _need_policy(problem: Problem) -> None:
    if problem.propose is None:
        raise UsageError("this search strategy follows a policy, and there is none: choose another, for example mcts")


def _rollouts(problem: Problem, settings: RolloutSettings) -> Iterator[Observation]:
    trials = Trials(problem)
    yield from trials.baseline()
    origins = [problem.space.start(), problem.space.baseline()]
    if not trials.out_of_budget:
        yield from trials.measure(_ends(trials, origins, 0.0, settings.longest))
    while not trials.out_of_budget:
        batch: dict[str, Schedule] = {}
        for temperature, _ in itertools.product(settings.temperatures, range(settings.rounds)):
            if len(batch) >= problem.batch_size or trials.out_of_budget:
                break
            begun = [problem.rng.choice(origins) for _ in range(problem.batch_size)]
            ends = _ends(trials, begun, temperature, settings.longest)
            batch.update((trials.key(s), s) for s in ends if trials.observed(s) is None)
        new = list(batch.values())[: problem.batch_size]
        new += fresh(trials, problem.batch_size - len(new))
        if not new:
            return
        yield from trials.measure(new)


def _ends(trials: Trials, begun: list[Schedule], temperature: float, longest: int) -> list[Schedule]:
    """Where rollouts from `begun` end, all walking in step; at temperature 0 they take the likeliest steps."""
    ends, walking = list(begun), list(range(len(begun)))
    for _ in range(longest):
        if not walking or trials.out_of_budget:
            break
        proposals = trials.proposals([ends[i] for i in walking])
        on = []
        for i, proposal in zip(walking, proposals, strict=True):
            choice = _choice(trials, proposal, temperature)
            if choice >= 0:
                ends[i] = trials.actions(ends[i])[choice].schedule
                on.append(i)
        walking = on
    return ends


def _choice(trials: Trials, proposal: Proposal, temperature: float) -> int:
    """The place of a step, -1 to stop."""
    weights = (proposal.stop, *proposal.steps)
    if temperature == 0.0 or sum(weights) <= 0.0:
        return max(range(len(weights)), key=weights.__getitem__) - 1
    softened = [w ** (1.0 / temperature) for w in weights]
    return trials.problem.rng.choices(range(-1, len(proposal.steps)), softened)[0]


def policy_beam(width: int, *, longest: int = 16) -> Strategy:
    """A beam over the policy's cumulative probability; where it may end is ranked by the predictor and measured.

    The predictor is corrected by each batch, which holds no near twins. When all that the beam met is measured, a beam
    of twice the width follows.
    """

    def search(problem: Problem) -> Iterator[Observation]:
        _need_policy(problem)
        return _policy_beam(problem, width, longest)

    return search


def _policy_beam(problem: Problem, width: int, longest: int) -> Iterator[Observation]:
    trials = Trials(problem)
    yield from trials.baseline()
    drafts, met = Drafts(trials), -1
    while not trials.out_of_budget:
        likely = _beam_of_policy(trials, width, longest)
        drafts.add(likely)
        while not trials.out_of_budget and (batch := drafts.batch(problem.batch_size)):
            yield from trials.measure(batch)
        yield from trials.measure(likely)  # what the predictor may not be asked about, the likeliest first
        if len(likely) == met:  # a wider beam met no more: the rest is out of its reach
            break
        width, met = 2 * width, len(likely)
    while not trials.out_of_budget and (batch := fresh(trials, problem.batch_size)):
        yield from trials.measure(batch)


def _beam_of_policy(trials: Trials, width: int, longest: int) -> list[Schedule]:
    """What a beam meets, the likeliest end first. A kernel reached by several ways is as likely as all together."""
    space = trials.problem.space
    passing = {trials.key(s): (s, 0.0) for s in (space.start(), space.baseline())}  # and the logarithm of how likely
    ends: dict[str, tuple[Schedule, float]] = {}
    for _ in range(longest + 1):
        if not passing or trials.out_of_budget:
            break
        level: dict[str, tuple[Schedule, float]] = {}
        proposals = trials.proposals([schedule for schedule, _ in passing.values()])
        for (key, (schedule, likely)), proposal in zip(passing.items(), proposals, strict=True):
            ends[key] = (schedule, likely + _log(proposal.stop))
            for action, share in zip(trials.actions(schedule), proposal.steps, strict=True):
                child = trials.key(action.schedule)
                before = level.get(child, (action.schedule, -math.inf))[1]
                level[child] = (action.schedule, _log_sum(before, likely + _log(share)))
        kept = sorted(level.keys() - ends.keys(), key=lambda key: (-level[key][1], key))[:width]
        passing = {key: level[key] for key in kept if math.isfinite(level[key][1])}
    return [schedule for schedule, _ in sorted(ends.values(), key=lambda end: -end[1])]


def _log(share: float) -> float:
    return math.log(share) if share > 0.0 else -math.inf


def _log_sum(one: float, other: float) -> float:
    high = max(one, other)
    return high if math.isinf(high) else high + math.log(math.exp(one - high) + math.exp(other - high))
