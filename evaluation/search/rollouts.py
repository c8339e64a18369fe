"""Searches that a policy leads: rollouts, a beam over its probabilities, and `--search ppo` on recorded tables."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kcg.errors import UsageError
from kcg.rl.observation import Viewer
from kcg.rl.policy import Policy, Proposal, Propose, ppo
from kcg.search.beam import Drafts
from kcg.search.moves import fresh
from kcg.search.problem import Observation, Problem, Strategy, Trials
from kcg.types import Schedule

LONGEST: Final = 16
"""Steps of a rollout; the fastest schedule of none of 60 recorded kernels has more than 9."""


class Led:
    """A policy on one kernel, asked once about each schedule. `acts` is what acts in the environment, where it can."""

    def __init__(self, propose: Propose, acts: tuple[Policy, Viewer] | None = None) -> None:
        self._propose, self.acts = propose, acts
        self._known: dict[Schedule, Proposal] = {}

    @classmethod
    def by(cls, policy: Policy, viewer: Viewer) -> Led:
        return cls(policy.of(viewer), (policy, viewer))

    def proposals(self, schedules: Sequence[Schedule]) -> list[Proposal]:
        """What the policy would do at each."""
        missing = [s for s in dict.fromkeys(schedules) if s not in self._known]
        if missing:
            self._known.update(zip(missing, self._propose(missing), strict=True))
        return [self._known[s] for s in schedules]


def acting(led: Led) -> Strategy:
    """`kcg.rl.policy.ppo`. Raises UsageError where nothing can act."""
    if led.acts is None:
        raise UsageError("this policy proposes steps and cannot act in an environment")
    return ppo(*led.acts)


@dataclass(frozen=True)
class RolloutSettings:
    """How schedules are sampled from a policy."""

    longest: int = LONGEST  # steps of a rollout at most
    rounds: int = 8  # so many batches of rollouts at each temperature, as long as too few of their ends are new
    temperatures: tuple[float, ...] = (1.0, 2.0, 4.0)  # then random walks


def policy(led: Led, *, settings: RolloutSettings = RolloutSettings()) -> Strategy:
    """Rollouts of the policy, sampled from its probabilities; each new end is measured. No predictor is asked.

    The first rollout takes the likeliest step each time, from the start; the second likewise from the baseline; the
    others begin at either. Where sampling meets nothing new any more, the temperature rises.
    """

    def search(problem: Problem) -> Iterator[Observation]:
        return _policy(problem, led, settings)

    return search


def _policy(problem: Problem, led: Led, settings: RolloutSettings) -> Iterator[Observation]:
    trials = Trials(problem)
    yield from trials.baseline()
    origins = [problem.space.start(), problem.space.baseline()]
    if not trials.out_of_budget:
        yield from trials.measure(rollouts(trials, led, origins, temperature=0.0, longest=settings.longest))
    while not trials.out_of_budget:
        batch: dict[str, Schedule] = {}
        for temperature, _ in itertools.product(settings.temperatures, range(settings.rounds)):
            if len(batch) >= problem.batch_size or trials.out_of_budget:
                break
            begun = [problem.rng.choice(origins) for _ in range(problem.batch_size)]
            ends = rollouts(trials, led, begun, temperature=temperature, longest=settings.longest)
            batch.update((trials.key(s), s) for s in ends if trials.observed(s) is None)
        new = list(batch.values())[: problem.batch_size]
        new += fresh(trials, problem.batch_size - len(new))
        if not new:
            return
        yield from trials.measure(new)


def rollouts(
    trials: Trials, led: Led, begun: Sequence[Schedule], *, temperature: float, longest: int = LONGEST
) -> list[Schedule]:
    """Where rollouts of the policy from each of `begun` end, all walking in step; none comes back to where it was.

    A step is drawn in proportion to its probability to the power of 1 / `temperature`; at 0 the likeliest is taken.
    """
    ends, walking = list(begun), list(range(len(begun)))
    seen = [{trials.key(schedule)} for schedule in begun]
    for _ in range(longest):
        if not walking or trials.out_of_budget:
            break
        proposals = dict(zip(walking, led.proposals([ends[i] for i in walking]), strict=True))
        for i, proposal in proposals.items():
            actions = trials.actions(ends[i])
            new = [trials.key(action.schedule) not in seen[i] for action in actions]
            steps = [share if is_new else 0.0 for share, is_new in zip(proposal.steps, new, strict=True)]
            choice = _choice(trials.problem.rng, (proposal.stop, *steps), temperature)
            if choice == 0:
                walking.remove(i)
            else:
                ends[i] = actions[choice - 1].schedule
                seen[i].add(trials.key(ends[i]))
    return ends


def _choice(rng: random.Random, weights: Sequence[float], temperature: float) -> int:
    """The place of one of `weights`; the first where all are 0."""
    if temperature == 0.0 or sum(weights) <= 0.0:
        return max(range(len(weights)), key=weights.__getitem__)
    return rng.choices(range(len(weights)), [w ** (1.0 / temperature) for w in weights])[0]


def policy_beam(led: Led, width: int, *, longest: int = LONGEST) -> Strategy:
    """A beam over the policy's cumulative probability; what it meets is ranked by the predictor and measured.

    The predictor is corrected by each batch, which holds no near duplicates. The beam is wider by half of `width` each
    time: its first candidates would else all be measured before the policy's next are looked at.
    """

    def search(problem: Problem) -> Iterator[Observation]:
        return _policy_beam(problem, led, width, longest)

    return search


def _policy_beam(problem: Problem, led: Led, width: int, longest: int) -> Iterator[Observation]:
    trials = Trials(problem)
    yield from trials.baseline()
    drafts, now = Drafts(trials), width
    while not trials.out_of_budget:
        likely = _beam_of_policy(trials, led, now, longest)
        drafts.add(likely)
        batch = drafts.batch(problem.batch_size)
        if not batch:  # the predictor may not be asked any more: the likeliest first
            batch = [s for s in likely if trials.observed(s) is None][: problem.batch_size]
        batch += fresh(trials, problem.batch_size - len(batch))
        if not batch:
            return
        yield from trials.measure(batch)
        now += max(width // 2, 1)


def _beam_of_policy(trials: Trials, led: Led, width: int, longest: int) -> list[Schedule]:
    """What a beam meets, the likeliest end first. A kernel reached by several ways is as likely as all together."""
    space = trials.problem.space
    passing = {trials.key(s): (s, 0.0) for s in (space.start(), space.baseline())}  # and the logarithm of how likely
    ends: dict[str, tuple[Schedule, float]] = {}
    for _ in range(longest + 1):
        if not passing or trials.out_of_budget:
            break
        level: dict[str, tuple[Schedule, float]] = {}
        proposals = led.proposals([schedule for schedule, _ in passing.values()])
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
