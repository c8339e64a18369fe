"""A search that a policy leads: it acts in the environment, and the predictor ranks what it passes.

An episode is one rollout in `kcg.env`: steps are drawn from the policy, and one that the predictor expects to fail ends
it. All schedules that episodes pass are candidates. They are corrected by what was measured, and a batch of the best
that are no near twins is measured; then the policy acts again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kcg.env import MOST_ACTIONS, KernelScheduleEnv, Reading, Task
from kcg.predictor.views import Viewer
from kcg.search.draft import Drafts
from kcg.search.interface import Observation, Problem, Strategy
from kcg.search.policy import Policy, Proposal
from kcg.search.trials import Trials
from kcg.search.walks import fresh
from kcg.types import Action, Schedule


@dataclass(frozen=True)
class RolloutSettings:
    """How a policy acts."""

    episodes: int = 8  # at once, half of them from the unoptimised schedule, half from tinygrad's own
    longest: int = 12  # steps of an episode; the fastest schedule of none of 60 recorded kernels has more than 9
    rounds: int = 4  # of such episodes before a batch, as long as they pass too little that is new
    hotter: float = 1.5  # the temperature rises by this factor where they do
    hottest: float = 4.0


def ppo(policy: Policy, viewer: Viewer, *, settings: RolloutSettings = RolloutSettings()) -> Strategy:
    """The search of one kernel, whose schedules and steps `viewer` shows to the policy.

    The first episodes take the likeliest step each time. The others draw a step in proportion to its probability to the
    power of 1 / temperature. Where all that episodes pass was measured, random walks go on.
    """

    def search(problem: Problem) -> Iterator[Observation]:
        trials = Trials(problem)
        yield from trials.baseline()
        acting, drafts, temperature = _Acting(trials, policy, viewer, settings), Drafts(trials), 1.0
        drafts.add(acting.episodes(0.0))
        while not trials.out_of_budget:
            for _ in range(settings.rounds):
                if len(drafts.add(acting.episodes(temperature))) >= problem.batch_size or trials.out_of_budget:
                    break
                temperature = min(settings.hotter * temperature, settings.hottest)
            batch = drafts.batch(problem.batch_size)
            batch += fresh(trials, problem.batch_size - len(batch))
            if not batch:
                return
            yield from trials.measure(batch)

    return search


class _Acting:
    """The environments of one kernel, which walk in step, so that policy and predictor are asked in batches."""

    def __init__(self, trials: Trials, policy: Policy, viewer: Viewer, settings: RolloutSettings) -> None:
        space = trials.problem.space
        self.trials, self.policy, self.rng = trials, policy, trials.problem.rng
        self.ends = [space.start(), space.baseline()]
        task = Task("", space, viewer, lambda schedule: Reading.of(trials.predict([schedule])[0]))
        starts = ("raw", "hand-coded") * max(settings.episodes // 2, 1)
        self.envs = [KernelScheduleEnv([task], start=start, max_steps=settings.longest) for start in starts]
        self.passed: set[str] = set()  # keys

    def episodes(self, temperature: float) -> list[Schedule]:
        """What one episode in each environment passes that none passed before; at temperature 0 one from each end."""
        walking = self.envs if temperature > 0.0 else self.envs[:2]
        if not self._predicted(self.ends):
            return []
        for env in walking:
            env.reset()
        found = {self.trials.key(schedule): schedule for schedule in self.ends}
        while walking:
            proposals = self.policy.propose([env.view for env in walking])
            taken = [(env, _drawn(self.rng, env, p, temperature)) for env, p in zip(walking, proposals, strict=True)]
            if not self._predicted([_steps(env)[place].schedule for env, place in taken if place < len(_steps(env))]):
                break
            going = []
            for env, action in taken:
                _, _, terminated, truncated, _ = env.step(action)
                if not (terminated or truncated):
                    found[self.trials.key(env.view.schedule)] = env.view.schedule
                    going.append(env)
            walking = going
        new = [schedule for key, schedule in found.items() if key not in self.passed]
        self.passed |= found.keys()
        return new

    def _predicted(self, schedules: Sequence[Schedule]) -> bool:
        """Whether the predictor could be asked about all of them, in one batch, so that an environment asks nothing."""
        if self.trials.out_of_budget or len(self.trials.within_evaluations(schedules)) < len(schedules):
            return False
        self.trials.predict(schedules)
        return True


def _steps(env: KernelScheduleEnv) -> tuple[Action, ...]:
    """The legal steps that the environment has rows for; the row after them is stopping."""
    return env.view.steps[: MOST_ACTIONS - 1]


def _drawn(rng: random.Random, env: KernelScheduleEnv, proposal: Proposal, temperature: float) -> int:
    """The action that an environment takes: the place of a legal step, or of stopping."""
    shares = np.array([*proposal.steps[: len(_steps(env))], proposal.stop])
    shares *= env.action_masks()[: len(shares)]
    if temperature == 0.0 or shares.sum() <= 0.0:
        return int(shares.argmax()) if shares.sum() > 0.0 else len(shares) - 1
    return rng.choices(range(len(shares)), (shares ** (1.0 / temperature)).tolist())[0]
