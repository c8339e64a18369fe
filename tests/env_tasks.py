"""Tasks for tests of the environment: real small kernels, a recorded table, and what an environment has to keep."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from tinygrad import Variable

from kcg.dataset.reading import read_export
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.space import KernelSpace
from kcg.predictor.roofline import Roofline
from kcg.rl.env import FAULT_VALUE, Cost, KernelScheduleEnv, Reading, Task, predicted
from kcg.rl.observation import Viewer
from kcg.search.replay import ReplayTable, read_tables
from kcg.types import Region, Schedule, Target
from tests.kernels import empty, example_ast, kernels_of
from tests.known_targets import KNOWN_TARGETS

DATASET = Path(__file__).parent.parent / "datasets" / "h200"
RECORDED = "b6807720"
"""A recorded kernel of 600 schedules, 10 of which fail."""
CPU = Target(
    device="CPU",
    renderer="X86",
    arch="x86_64,native",
    model="test",
    cores=8,
    has_local=False,
    has_threads=True,
    max_threads=8,
    shared_bytes=0,
    memory_bytes=1 << 30,
    cache_bytes=1 << 20,
)
TARGETS = {"CUDA": KNOWN_TARGETS["sm_90"], "CPU": CPU}


@cache
def region_of(name: str) -> Region:
    """A kernel of `tests.kernels`, or one that says which steps it has."""
    made = {
        "one step": lambda: empty(11) + 1,
        "no step": lambda: empty(17) + 1,
        "no axis": lambda: empty(1) + 1,
        "copy": lambda: empty(8, 4).permute(1, 0).contiguous(),
        "sum": lambda: empty(64, 48).sum(1),
        "matmul": lambda: empty(64, 96) @ empty(96, 80),
        "symbolic sum": lambda: empty(32, 24, 16)[: Variable("length", 1, 32).bind(20)].sum((0, 2)),
    }
    return Region((kernel_of(kernels_of(made[name]())[-1] if name in made else example_ast(name)),))


@cache
def viewer_of(name: str, target: str = "CUDA") -> Viewer:
    return Viewer(KernelSpace(region_of(name), TARGETS[target]))


def roofline(viewer: Viewer) -> Cost:
    return predicted(Roofline().of(viewer.space).predict)


@cache
def task(name: str, target: str = "CUDA") -> Task:
    viewer = viewer_of(name, target)
    return Task(name, viewer.space, viewer, roofline(viewer))


@cache
def recorded_table() -> tuple[Region, Target, ReplayTable]:
    export = read_export(DATASET)
    (named,) = read_tables(DATASET, regions=[r for r in export.regions() if r.startswith(RECORDED)])
    return export.regions()[named.region_id], export.targets()[named.target], named.table


@cache
def recorded_viewer() -> Viewer:
    region, target, table = recorded_table()
    return Viewer(KernelSpace(region, target), table.actions)


def measured(table: ReplayTable) -> Cost:
    """What was measured of each schedule."""

    def cost(schedule: Schedule) -> Reading:
        seen = table.records[schedule].observation
        if seen.runtime_s is None:
            return Reading(math.nan, seen.reason or str(seen.status))
        return Reading(math.log(seen.runtime_s))

    return cost


@cache
def recorded_task() -> Task:
    table = recorded_table()[2]
    return Task("recorded", table, recorded_viewer(), measured(table))


def env_of(*tasks: Task, **settings: Any) -> KernelScheduleEnv:
    return KernelScheduleEnv(tasks or [task("matmul")], **settings)


def made(env_class: type[KernelScheduleEnv], *tasks: Task, **settings: Any) -> KernelScheduleEnv:
    """As `gymnasium.make` makes it, without what it wraps around."""
    spec = EnvSpec("kcg/Twin-v0", entry_point=env_class)
    return gymnasium.make(spec, disable_env_checker=True, tasks=list(tasks), **settings).unwrapped  # type: ignore[return-value]


def stop(env: KernelScheduleEnv) -> int:
    """The action that stops here."""
    return len(env.view.steps)


# What an environment has to keep, beyond what Gymnasium checks


def check_episodes(env: KernelScheduleEnv, *, episodes: int = 6, seed: int = 0) -> None:
    """Plays at random, twice alike. Raises AssertionError where the environment breaks its promises."""

    def episode() -> Iterator[tuple[Any, ...]]:
        rng = random.Random(seed)
        for episode in range(episodes):
            observation, info = env.reset(seed=seed + episode)
            check_observation(env, observation, info)
            assert env.task is not None
            first_s, paid, over = env.task.cost(env.view.schedule).log_s, 0.0, False
            while not over:
                action = rng.choice(np.flatnonzero(env.action_masks()).tolist())
                observation, reward, terminated, truncated, info = env.step(action)
                check_observation(env, observation, info)
                assert type(reward) is float and math.isfinite(reward), "a reward is a number"
                assert type(terminated) is bool and type(truncated) is bool
                assert truncated == ("fault" in info), "what fails is said, and ends the episode by truncation"
                paid, over = paid + reward, terminated or truncated
                yield observation, reward, terminated, truncated, info
            assert paid == pytest.approx(info["log_speedup"], abs=1e-9), "rewards sum to the log-speedup"
            assert truncated or info["log_speedup"] == pytest.approx(first_s - info["log_s"], abs=1e-9), (
                "what is paid is what the cost says of the end"
            )
            assert not truncated or paid == pytest.approx(FAULT_VALUE), "a fault is paid as one"

    for one, other in zip(list(episode()), list(episode()), strict=True):
        assert one[1:4] == other[1:4] and str(one[4]) == str(other[4]), "the same again under the same seed"
        assert all(np.array_equal(one[0][name], other[0][name]) for name in one[0])


def check_observation(env: KernelScheduleEnv, observation: dict[str, Any], info: dict[str, Any]) -> None:
    assert observation in env.observation_space
    for name, space in env.observation_space.spaces.items():
        assert observation[name].dtype == space.dtype and observation[name].shape == space.shape
    rows = observation["mask"].astype(bool)
    assert rows.any() and np.array_equal(env.action_masks(), rows), "the mask is that of the observation"
    assert not observation["actions"][np.flatnonzero(rows)[-1] + 1 :].any(), "nothing beyond the last row"
    assert {"kernel", "schedule", "log_s"} <= info.keys()
