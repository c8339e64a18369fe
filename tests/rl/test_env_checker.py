"""The environment keeps Gymnasium's contract and its own; the checks refuse those that are wrong in one way each."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from kcg.predictor.features import MOST_AXES
from kcg.rl.env import FAULT_VALUE, KernelScheduleEnv
from tests.env_tasks import (
    TARGETS,
    check_episodes,
    env_of,
    made,
    recorded_observer,
    recorded_task,
    roofline,
    stop,
    task,
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("start", ["raw", "hand-coded", "either"])
def test_the_environment_passes_gymnasiums_checker_and_ours(target: str, start: str) -> None:
    tasks = [task(name, target) for name in ("matmul", "sum")]
    env = gymnasium.make("kcg.rl:kcg/KernelSchedule-v0", tasks=tasks, start=start)
    assert isinstance(env.unwrapped, KernelScheduleEnv)
    check_env(env.unwrapped)
    check_episodes(env.unwrapped)
    observation, _ = env.reset(seed=1)  # as a user has it: wrapped, each step checked once more
    observation, *_ = env.step(int(np.flatnonzero(observation["mask"])[0]))
    assert observation in env.observation_space


@pytest.mark.slow
def test_a_recorded_table_and_a_guide_keep_the_promises_too() -> None:
    check_env(made(KernelScheduleEnv, recorded_task()))
    check_episodes(env_of(recorded_task()), episodes=20)
    check_episodes(env_of(replace(recorded_task(), guide=roofline(recorded_observer()))), episodes=20)


# Broken twins: each is wrong in one way


class Reseeded(KernelScheduleEnv):
    """What it tells is told wrong by `altered`, `paid` or `informed`."""

    def altered(self, observation: Any) -> Any:
        return observation

    def paid(self, reward: float) -> Any:
        return reward

    def informed(self, info: dict[str, Any]) -> Any:
        return info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed, options=options)
        return self.altered(observation), self.informed(info)

    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return self.altered(observation), self.paid(reward), terminated, truncated, self.informed(info)


class NotANumber(Reseeded):
    def altered(self, observation: Any) -> Any:
        observation["schedule"][3] = math.nan
        return observation


class WrongType(Reseeded):
    def altered(self, observation: Any) -> Any:
        return observation | {"axes": observation["axes"].astype(np.float64)}


class WrongShape(Reseeded):
    def altered(self, observation: Any) -> Any:
        return observation | {"mask": observation["mask"][:-1]}


class Outside(Reseeded):
    def altered(self, observation: Any) -> Any:
        observation["counts"][0] = MOST_AXES + 1
        return observation


class MissingKey(Reseeded):
    def altered(self, observation: Any) -> Any:
        return {name: value for name, value in observation.items() if name != "target"}


class SameArray(Reseeded):
    kept: Any = None

    def altered(self, observation: Any) -> Any:
        self.kept = observation["target"] if self.kept is None else self.kept
        return observation | {"target": self.kept}


class NoInfo(Reseeded):
    def informed(self, info: dict[str, Any]) -> Any:
        return None


class NoInfoOfAStep(Reseeded):
    def step(self, action: int) -> Any:
        return *super().step(action)[:4], None


class NoInfoOfAReset(Reseeded):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=options)[0]


class OldSteps(Reseeded):
    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class RewardInWords(Reseeded):
    def paid(self, reward: float) -> Any:
        return str(reward)


class NoReward(Reseeded):
    def paid(self, reward: float) -> Any:
        return None


class NanReward(Reseeded):
    def paid(self, reward: float) -> Any:
        return math.nan


class InfiniteReward(Reseeded):
    def paid(self, reward: float) -> Any:
        return math.inf


class NoSeed(Reseeded):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(options=options)


class OwnDice(Reseeded):
    """Draws its kernels from elsewhere."""

    drawn = itertools.count()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options={"task": next(self.drawn) % len(self.tasks)})


class NoisyReward(Reseeded):
    noise = random.Random(0)

    def paid(self, reward: float) -> Any:
        return reward + self.noise.gauss(0, 1)


class AlwaysCut(Reseeded):
    def step(self, action: int) -> Any:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, True, info


class NumbersForWords(Reseeded):
    def render(self) -> Any:
        return 1.0


GYMNASIUM_REFUSES: dict[type[Reseeded], str] = {
    NotANumber: "not within the observation space",
    WrongType: "not within the observation space",
    WrongShape: "not within the observation space",
    Outside: "not within the observation space",
    MissingKey: "not within the observation space",
    SameArray: "share an object",
    NoInfo: "not a dictionary",
    NoInfoOfAStep: "must be a python dictionary",
    NoInfoOfAReset: "not a tuple",
    OldSteps: "old step API",
    RewardInWords: "must be a float",
    NoReward: "must be a float",
    NanReward: "NaN value",
    InfiniteReward: "inf value",
    NoSeed: "does not call `super",
    OwnDice: "not equivalent",
    NoisyReward: "rewards are not equivalent",
    AlwaysCut: "truncates after 1 step",
    NumbersForWords: "should produce a string",
}


@pytest.mark.parametrize("checker", GYMNASIUM_REFUSES, ids=lambda checker: checker.__name__)
def test_gymnasiums_checker_refuses(checker: type[Reseeded]) -> None:
    env = made(checker, *(task(name) for name in (("matmul", "sum") if checker is OwnDice else ("matmul",))))
    with pytest.raises((AssertionError, UserWarning, DeprecationWarning), match=GYMNASIUM_REFUSES[checker]):
        check_env(env)


class Generous(Reseeded):
    """Pays for each step."""

    def paid(self, reward: float) -> Any:
        return reward + 0.01


class Silent(Reseeded):
    """A schedule that fails is a bad reward and nothing more."""

    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, False, {k: v for k, v in info.items() if k != "fault"}


class Mild(Reseeded):
    """A schedule that fails costs what was gained, and no more."""

    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if truncated:
            info["log_speedup"], reward = 0.0, reward - FAULT_VALUE
        return observation, reward, terminated, truncated, info


class OtherMask(Reseeded):
    """Says that there is a step which there is not."""

    def action_masks(self) -> Any:
        mask = super().action_masks().copy()
        mask[mask.argmin()] = True
        return mask


class LateDice(Reseeded):
    """The second of two plays under a seed is another: `check_env` looks at one step."""

    steps = itertools.count()

    def step(self, action: int) -> Any:
        return super().step(stop(self) if next(self.steps) > 20 else action)


class NumpyReward(Reseeded):
    def paid(self, reward: float) -> Any:
        return np.float32(reward)


OURS_REFUSES: dict[type[Reseeded], str] = {
    Generous: "sum to the log-speedup",
    Silent: "what the cost says",
    Mild: "paid as one",
    OtherMask: "the mask is that",
    LateDice: "the same again|zip",
    NumpyReward: "a reward is a number",
}


@pytest.mark.parametrize("checker", OURS_REFUSES, ids=lambda checker: checker.__name__)
def test_our_checker_refuses_what_gymnasiums_lets_pass(checker: type[Reseeded]) -> None:
    env = made(checker, recorded_task())
    check_env(env)
    with pytest.raises((AssertionError, ValueError), match=OURS_REFUSES[checker]):
        check_episodes(env, episodes=20)
