"""The environment keeps Gymnasium's contract and its own: what is paid is the log-speedup, and a fault is never silent.

The checks are themselves tested, on environments that are wrong in one way each.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from tinygrad import Variable

from kcg.compat.scheduling import to_tiny
from kcg.dataset.reading import read_export
from kcg.env import FAULT_VALUE, ID, MOST_ACTIONS, Cost, KernelScheduleEnv, Reading, Task, observation_of, predicted
from kcg.errors import ScheduleError, UsageError
from kcg.kernel.codec import kernel_of
from kcg.kernel.plan import SHARED
from kcg.kernel.space import KernelSpace
from kcg.kernel.targets import KNOWN_TARGETS
from kcg.predictor.actions import ACTION_FEATURES, AXES_OF_ACTION, KINDS_OF_ACTION, action_rows
from kcg.predictor.encode import MOST_AXES
from kcg.predictor.roofline import Roofline
from kcg.predictor.views import VIEWS_KEPT, Viewer, opt_of
from kcg.search.replay import ReplayTable
from kcg.search.tables import read_tables
from kcg.types import RAW, Action, Opt, Prediction, Region, Schedule, Target
from tests.kernels import empty, example_ast, kernels_of

DATASET = Path(__file__).parent.parent / "datasets" / "h200"
RECORDED = "b6807720"
"""A recorded kernel of 600 schedules, 10 of which fail."""
CPU = Target(
    device="CPU", renderer="X86", arch="x86_64,native", model="test", cores=8, has_local=False, has_threads=True,
    max_threads=8, shared_bytes=0, memory_bytes=1 << 30, cache_bytes=1 << 20,
)  # fmt: skip
TARGETS = {"CUDA": KNOWN_TARGETS["sm_90"], "CPU": CPU}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@cache
def region_of(name: str) -> Region:
    """A kernel of `tests.kernels`, or one that says which steps it has."""
    made = {
        "one step": lambda: empty(11) + 1, "no step": lambda: empty(17) + 1, "no axis": lambda: empty(1) + 1,
        "copy": lambda: empty(8, 4).permute(1, 0).contiguous(), "sum": lambda: empty(64, 48).sum(1),
        "matmul": lambda: empty(64, 96) @ empty(96, 80),
        "symbolic sum": lambda: empty(32, 24, 16)[: Variable("length", 1, 32).bind(20)].sum((0, 2)),
    }  # fmt: skip
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

    def play() -> Iterator[tuple[Any, ...]]:
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

    for one, other in zip(list(play()), list(play()), strict=True):
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


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("start", ["raw", "hand-coded", "either"])
def test_the_environment_passes_gymnasiums_checker_and_ours(target: str, start: str) -> None:
    tasks = [task(name, target) for name in ("matmul", "sum")]
    env = gymnasium.make(ID, tasks=tasks, start=start)
    assert isinstance(env.unwrapped, KernelScheduleEnv)
    check_env(env.unwrapped)
    check_episodes(env.unwrapped)
    observation, _ = env.reset(seed=1)  # as a user has it: wrapped, each step checked once more
    observation, *_ = env.step(int(np.flatnonzero(observation["mask"])[0]))
    assert observation in env.observation_space


def test_a_recorded_table_and_a_guide_keep_the_promises_too() -> None:
    check_env(made(KernelScheduleEnv, recorded_task()))
    check_episodes(env_of(recorded_task()), episodes=20)
    check_episodes(env_of(replace(recorded_task(), guide=roofline(recorded_viewer()))), episodes=20)


# Broken twins: each is wrong in one way


class Twin(KernelScheduleEnv):
    """What it tells is told wrong by `observed`, `paid` or `informed`."""

    def observed(self, observation: Any) -> Any:
        return observation

    def paid(self, reward: float) -> Any:
        return reward

    def informed(self, info: dict[str, Any]) -> Any:
        return info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed, options=options)
        return self.observed(observation), self.informed(info)

    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return self.observed(observation), self.paid(reward), terminated, truncated, self.informed(info)


class NotANumber(Twin):
    def observed(self, observation: Any) -> Any:
        observation["schedule"][3] = math.nan
        return observation


class WrongType(Twin):
    def observed(self, observation: Any) -> Any:
        return observation | {"axes": observation["axes"].astype(np.float64)}


class WrongShape(Twin):
    def observed(self, observation: Any) -> Any:
        return observation | {"mask": observation["mask"][:-1]}


class Outside(Twin):
    def observed(self, observation: Any) -> Any:
        observation["counts"][0] = MOST_AXES + 1
        return observation


class MissingKey(Twin):
    def observed(self, observation: Any) -> Any:
        return {name: value for name, value in observation.items() if name != "target"}


class SameArray(Twin):
    kept: Any = None

    def observed(self, observation: Any) -> Any:
        self.kept = observation["target"] if self.kept is None else self.kept
        return observation | {"target": self.kept}


class NoInfo(Twin):
    def informed(self, info: dict[str, Any]) -> Any:
        return None


class NoInfoOfAStep(Twin):
    def step(self, action: int) -> Any:
        return *super().step(action)[:4], None


class NoInfoOfAReset(Twin):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=options)[0]


class OldSteps(Twin):
    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class RewardInWords(Twin):
    def paid(self, reward: float) -> Any:
        return str(reward)


class NoReward(Twin):
    def paid(self, reward: float) -> Any:
        return None


class NanReward(Twin):
    def paid(self, reward: float) -> Any:
        return math.nan


class InfiniteReward(Twin):
    def paid(self, reward: float) -> Any:
        return math.inf


class NoSeed(Twin):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(options=options)


class OwnDice(Twin):
    """Draws its kernels from elsewhere."""

    drawn = itertools.count()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options={"task": next(self.drawn) % len(self.tasks)})


class NoisyReward(Twin):
    noise = random.Random(0)

    def paid(self, reward: float) -> Any:
        return reward + self.noise.gauss(0, 1)


class AlwaysCut(Twin):
    def step(self, action: int) -> Any:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, True, info


class NumbersForWords(Twin):
    def render(self) -> Any:
        return 1.0


GYMNASIUM_REFUSES: dict[type[Twin], str] = {
    NotANumber: "not within the observation space", WrongType: "not within the observation space",
    WrongShape: "not within the observation space", Outside: "not within the observation space",
    MissingKey: "not within the observation space", SameArray: "share an object",
    NoInfo: "not a dictionary", NoInfoOfAStep: "must be a python dictionary", NoInfoOfAReset: "not a tuple",
    OldSteps: "old step API", RewardInWords: "must be a float", NoReward: "must be a float", NanReward: "NaN value",
    InfiniteReward: "inf value", NoSeed: "does not call `super", OwnDice: "not equivalent",
    NoisyReward: "rewards are not equivalent", AlwaysCut: "truncates after 1 step",
    NumbersForWords: "should produce a string",
}  # fmt: skip


@pytest.mark.parametrize("twin", GYMNASIUM_REFUSES, ids=lambda twin: twin.__name__)
def test_gymnasiums_checker_refuses(twin: type[Twin]) -> None:
    env = made(twin, *(task(name) for name in (("matmul", "sum") if twin is OwnDice else ("matmul",))))
    with pytest.raises((AssertionError, UserWarning, DeprecationWarning), match=GYMNASIUM_REFUSES[twin]):
        check_env(env)


class Generous(Twin):
    """Pays for each step."""

    def paid(self, reward: float) -> Any:
        return reward + 0.01


class Silent(Twin):
    """A schedule that fails is a bad reward and nothing more."""

    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, False, {k: v for k, v in info.items() if k != "fault"}


class Mild(Twin):
    """A schedule that fails costs what was gained, and no more."""

    def step(self, action: int) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if truncated:
            info["log_speedup"], reward = 0.0, reward - FAULT_VALUE
        return observation, reward, terminated, truncated, info


class OtherMask(Twin):
    """Says that there is a step which there is not."""

    def action_masks(self) -> Any:
        mask = super().action_masks().copy()
        mask[mask.argmin()] = True
        return mask


class LateDice(Twin):
    """The second of two plays under a seed is another: `check_env` looks at one step."""

    steps = itertools.count()

    def step(self, action: int) -> Any:
        return super().step(stop(self) if next(self.steps) > 20 else action)


class NumpyReward(Twin):
    def paid(self, reward: float) -> Any:
        return np.float32(reward)


OURS_REFUSES: dict[type[Twin], str] = {
    Generous: "sum to the log-speedup", Silent: "what the cost says", Mild: "paid as one",
    OtherMask: "the mask is that", LateDice: "the same again|zip", NumpyReward: "a reward is a number",
}  # fmt: skip


@pytest.mark.parametrize("twin", OURS_REFUSES, ids=lambda twin: twin.__name__)
def test_our_checker_refuses_what_gymnasiums_lets_pass(twin: type[Twin]) -> None:
    env = made(twin, recorded_task())
    check_env(env)
    with pytest.raises((AssertionError, ValueError), match=OURS_REFUSES[twin]):
        check_episodes(env, episodes=20)


# Rewards, faults and ends


def play(env: KernelScheduleEnv, choose: Callable[[KernelScheduleEnv], int], **options: Any) -> tuple[float, Any]:
    """An episode: what was paid, and the last step."""
    env.reset(options=options)
    paid, last = 0.0, (None, 0.0, False, False, {})
    while not (last[2] or last[3]):
        last = env.step(choose(env))
        paid += last[1]
    return paid, last


def along(labels: Sequence[str]) -> Callable[[KernelScheduleEnv], int]:
    """Takes steps by their labels, then stops."""
    left = list(labels)

    def choose(env: KernelScheduleEnv) -> int:
        return [step.label for step in env.view.steps].index(left.pop(0)) if left else stop(env)

    return choose


def way_to(table: ReplayTable, end: Schedule) -> list[str]:
    """The labels of the steps from the start of a table to one of its schedules."""
    ways = {table.start(): list[str]()}
    for schedule in (queue := [table.start()]):
        for step in table.actions(schedule):
            if step.schedule not in ways:
                ways[step.schedule] = [*ways[schedule], step.label]
                queue.append(step.schedule)
    return ways[end]


def failing(table: ReplayTable) -> Schedule:
    """A schedule that failed two steps from the start or more, and has a way there on which nothing fails."""
    bad = [s for s, r in table.records.items() if r.observation.runtime_s is None and s in _reached(table)]
    return min(bad, key=lambda s: (len(way_to(table, s)) < 2, len(way_to(table, s))))


def _reached(table: ReplayTable) -> set[Schedule]:
    seen = {table.start()}
    for schedule in (queue := [table.start()]):
        fresh = {step.schedule for step in table.actions(schedule)} - seen
        seen |= fresh
        queue += sorted(fresh, key=str)
    return seen


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("start", ["raw", "hand-coded"])
def test_an_episode_is_paid_by_what_the_cost_says_of_its_end(start: str, guided: bool) -> None:
    _, _, table = recorded_table()
    ours = replace(recorded_task(), guide=roofline(recorded_viewer()) if guided else None)
    env = env_of(ours, start=start)
    rng = random.Random(1)
    begin = table.start() if start == "raw" else table.baseline()
    for _ in range(10):
        paid, (*_, info) = play(env, lambda env: rng.randrange(stop(env) + 1))
        first_s, last_s = (table.records[s].observation.runtime_s for s in (begin, env.view.schedule))
        if "fault" not in info:
            assert first_s and last_s and paid == pytest.approx(math.log(first_s / last_s))
            assert info["log_s"] == math.log(last_s) and info["schedule"] == str(env.view.schedule)


def test_with_a_guide_the_steps_are_paid_by_the_guide() -> None:
    guide = roofline(recorded_viewer())
    env = env_of(replace(recorded_task(), guide=guide))
    env.reset()
    before = guide(env.view.schedule).log_s
    _, reward, *_ = env.step(0)
    assert reward == pytest.approx(before - guide(env.view.schedule).log_s) and reward != 0.0


@pytest.mark.parametrize("guided", [False, True])
def test_a_schedule_that_fails_truncates_with_its_reason(guided: bool) -> None:
    """By the cost at once; behind a guide that expects nothing of it, when the episode stops there."""
    _, _, table = recorded_table()
    bad = failing(table)
    labels = way_to(table, bad)
    assert len(labels) >= 2
    guide: Cost = lambda schedule: Reading(-10.0 - len(schedule.opts))  # noqa: E731
    env = env_of(replace(recorded_task(), guide=guide if guided else None))
    paid, (observation, _, terminated, truncated, info) = play(env, along(labels))
    assert truncated and not terminated and paid == pytest.approx(FAULT_VALUE)
    assert info["fault"] and info["log_speedup"] == FAULT_VALUE and info["schedule"] == str(bad)
    assert observation in env.observation_space
    assert env._depth == len(labels) - (not guided)
    with pytest.raises(UsageError, match=r"^the episode is over: reset comes before the next step$"):
        env.step(0)
    assert env.reset()[1].get("fault") is None, "the next episode begins as any"


def test_a_certain_failure_is_a_fault_before_anything_is_measured() -> None:
    assert Reading.of(Prediction(-9.0, 0.1, 0.51)).fault and math.isnan(Reading.of(Prediction(-9.0, 0.1, 0.51)).log_s)
    assert Reading.of(Prediction(-9.0, 0.1, 0.5)) == Reading(-9.0)
    asked: list[Schedule] = []

    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        asked.extend(schedules)
        return [Prediction(-9.0, 0.1, float(bool(s.opts))) for s in schedules]

    env = env_of(replace(task("matmul"), cost=predicted(predict)))
    for _ in range(2):
        paid, (*_, truncated, info) = play(env, lambda env: 3)
        assert paid == FAULT_VALUE and truncated and "expected to fail (probability 1.00)" in info["fault"]
    assert len(asked) == len(set(asked)) == 2, "each schedule is asked for once"


@pytest.mark.parametrize("action", [-1, MOST_ACTIONS - 1, MOST_ACTIONS, 10_000])
def test_an_illegal_action_is_a_fault(action: int) -> None:
    env = env_of(task("matmul"))
    env.reset(seed=0)
    _, gained, *_ = env.step(0)
    assert gained != 0 and not (0 <= action < MOST_ACTIONS and env.action_masks()[action])
    _, reward, terminated, truncated, info = env.step(action)
    assert truncated and not terminated and info["fault"] == "the action is not legal here"
    assert gained + reward == pytest.approx(FAULT_VALUE)


def test_actions_of_numpy_are_actions() -> None:
    env = env_of(task("matmul"))
    env.reset()
    assert env.step(np.int64(0))[3] is False  # type: ignore[arg-type]
    assert env.reset(options={"task": np.int64(0)})[1]["kernel"] == "matmul"


def test_a_step_that_does_not_apply_is_a_fault() -> None:
    """A table recorded under another action space may name one."""
    wrong = Schedule.from_opts([Opt("UPCAST", 77, 4)])
    viewer = Viewer(viewer_of("matmul").space, lambda schedule: [Action("UPCAST(77,4)", wrong)])
    for cost in (lambda schedule: Reading(-9.0), predicted(lambda s: [Prediction(len(viewer.view(s[0]).rows))])):
        env = env_of(replace(task("matmul"), viewer=viewer, cost=cost))
        paid, (*_, truncated, info) = play(env, lambda env: 0)
        assert truncated and paid == FAULT_VALUE and "UPCAST" in info["fault"]


@pytest.mark.parametrize("guided", [False, True])
def test_a_start_that_fails_says_so_and_can_only_be_left(guided: bool) -> None:
    bad: Cost = lambda schedule: Reading(math.nan, "out of registers")  # noqa: E731
    ours = replace(task("matmul"), cost=bad, guide=roofline(viewer_of("matmul")) if guided else None)
    env = env_of(ours, render_mode="ansi")
    observation, info = env.reset()
    assert info["fault"] == "out of registers" and observation in env.observation_space
    assert np.flatnonzero(env.action_masks()).tolist() == [stop(env)]
    assert "out of registers" in env.render()
    _, reward, terminated, truncated, info = env.step(stop(env))
    assert truncated and not terminated and reward == FAULT_VALUE == info["log_speedup"]


def test_after_the_most_steps_only_stopping_is_left() -> None:
    env = env_of(task("matmul"), max_steps=2)
    env.reset()
    for _ in range(2):
        assert env.action_masks().sum() > 1
        env.step(0)
    assert np.flatnonzero(env.action_masks()).tolist() == [stop(env)] and stop(env) > 0
    assert env.step(0)[4]["fault"] == "the action is not legal here"
    env.reset()
    assert env.action_masks()[0], "the next episode may step again"


# Kernels of every kind


@pytest.mark.parametrize(("name", "steps"), [("one step", 1), ("no step", 0), ("no axis", 0)])
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_with_one_step_and_with_none(name: str, steps: int, target: str) -> None:
    env = made(KernelScheduleEnv, task(name, target))
    env.reset()
    assert env.action_masks().sum() == steps + 1
    assert env.step(stop(env))[1:4] == (0.0, True, False)
    check_episodes(env)
    if steps:
        check_env(env)


@pytest.mark.parametrize("name", ["symbolic", "symbolic_elementwise", "cache_update.0", "cache_update.1"])
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_of_symbolic_extents(name: str, target: str) -> None:
    check_episodes(env_of(task(name, target), start="either"))


def test_every_kind_of_kernel_keeps_the_promises() -> None:
    env = env_of(*(task(name) for name in ("softmax.1", "copy", "argmax.1", "embedding", "scatter", "matmul_f16")))
    assert env.reset(options={"task": 5})[0]["actions"][:, KINDS_OF_ACTION.index("TC")].any()
    check_episodes(env, episodes=12)


# Tasks and settings


def test_tasks_are_drawn_by_weight_or_chosen() -> None:
    tasks = [replace(task("sum"), name=str(i), weight=weight) for i, weight in enumerate((0.0, 1.0, 3.0))]
    env = env_of(*tasks)
    env.reset(seed=0)
    drawn = [env.reset()[1]["kernel"] for _ in range(400)]
    assert "0" not in drawn and 250 < drawn.count("2") < 350
    assert env.reset(options={"task": 0})[1]["kernel"] == "0"
    assert [env.reset(seed=3)[1]["kernel"] for _ in range(3)] == [env.reset(seed=3)[1]["kernel"]] * 3


def test_episodes_start_where_they_are_told_to() -> None:
    space = viewer_of("matmul").space
    ends = {"raw": str(space.start()), "hand-coded": str(space.baseline())}
    for start, schedule in ends.items():
        assert env_of(task("matmul"), start=start).reset()[1]["schedule"] == schedule
    env = env_of(task("matmul"), start="either")
    env.reset(seed=0)
    told = [env.reset()[1] for _ in range(30)]
    assert {info["start"] for info in told} == set(ends)
    assert all(info["schedule"] == ends[info["start"]] for info in told)


@pytest.mark.parametrize(
    ("tasks", "settings", "said"),
    [
        ([], {}, "needs tasks"),
        ([{"weight": -1.0}], {}, "weights from 0"),
        ([{"weight": 0.0}], {}, "not all 0"),
        ([{"weight": math.nan}], {}, "needs tasks"),
        ([{}], {"start": "somewhere"}, "start='somewhere': an episode starts raw, hand-coded or either"),
        ([{}], {"max_steps": 0}, "max_steps=0: an episode has at least one step"),
    ],
)
def test_settings_that_cannot_be_meant_are_one_line(tasks: Any, settings: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        KernelScheduleEnv([replace(task("sum"), **changes) for changes in tasks], **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("chosen", [1, -1, "sum", 0.0, True])
def test_a_task_that_is_not_there_is_one_line(chosen: Any) -> None:
    with pytest.raises(UsageError, match=r"there is no task .*: there are 1, from 0"):
        env_of(task("sum")).reset(options={"task": chosen})


def test_rendering_is_one_line() -> None:
    env = env_of(task("matmul"), render_mode="ansi")
    assert env.render() == "no kernel"
    env.reset()
    env.step(0)
    assert env.render().startswith("matmul: UPCAST(0,0) (") or env.render().startswith("matmul: UPCAST(0,")
    assert env.render().endswith(" µs)") and "\n" not in env.render()


# Observations


def test_what_has_more_actions_than_rows_loses_the_last_and_keeps_stopping() -> None:
    viewer = viewer_of("matmul")
    steps = viewer.space.actions(RAW) * 4
    crowded = Viewer(viewer.space, lambda schedule: steps)
    assert len(steps) >= MOST_ACTIONS
    env = env_of(replace(task("matmul"), viewer=crowded))
    observation, _ = env.reset()
    assert observation["mask"].all()
    stopping = ACTION_FEATURES.index("is stop")
    assert observation["actions"][:, stopping].tolist() == [0.0] * (MOST_ACTIONS - 1) + [1.0]
    assert env.step(MOST_ACTIONS - 1)[2], "the last row stops"


def test_an_observation_holds_the_view() -> None:
    view = viewer_of("conv2d").view(viewer_of("conv2d").space.baseline())
    told = observation_of(view)
    g, n = view.graph, len(view.rows)
    axes, accesses, groups = told["counts"]
    assert (axes, accesses, groups) == (g.n_axes[0], g.n_accesses[0], g.n_groups[0])
    assert np.array_equal(told["axes"][:axes], g.axes) and not told["axes"][axes:].any()
    edges = told["access_edges"][:axes, :accesses]
    assert np.array_equal(edges.reshape(-1, edges.shape[-1]), g.access_edges)
    assert np.abs(told["access_edges"]).sum() == pytest.approx(np.abs(g.access_edges).sum(), rel=1e-5)
    assert np.array_equal(told["actions"][:n], view.rows.features) and not told["actions"][n:].any()
    assert np.array_equal(told["action_axes"][:n], view.rows.axes) and (told["action_axes"][n:] == -1).all()
    assert told["mask"].tolist() == [1] * n + [0] * (MOST_ACTIONS - n)
    assert observation_of(view, only_stop=True)["mask"].tolist() == [0] * (n - 1) + [1] + [0] * (MOST_ACTIONS - n)


# Actions as rows


def walked(space: KernelSpace, *, walks: int = 3, seed: int = 0) -> list[Schedule]:
    """Schedules on random walks from raw, and the hand-coded one."""
    rng, found = random.Random(seed), {RAW: None, space.baseline(): None}
    for _ in range(walks):
        schedule: Schedule | None = RAW
        while schedule is not None and len(schedule.opts) < 5:
            found[schedule] = None
            schedule = space.random_step(schedule, rng)
    return list(found)


KINDS_OF_KERNEL = [
    "matmul", "softmax.1", "conv2d", "matmul_f16", "nested_reduce.1", "symbolic", "symbolic_elementwise",
    "cache_update.1", "symbolic sum",
]  # fmt: skip


@pytest.mark.parametrize("name", KINDS_OF_KERNEL)
@pytest.mark.parametrize("target", TARGETS)
def test_a_row_names_the_axes_that_tinygrad_acts_on_and_what_it_leads_to(name: str, target: str) -> None:
    space = viewer_of(name, target).space
    after = {name: ACTION_FEATURES.index(f"{name} after") for name in ("held", "threads")}
    rest, extent = (ACTION_FEATURES.index(name) for name in ("rest", "extent"))
    seen = 0
    for schedule in walked(space):
        view = Viewer(space).view(schedule)
        state, table = space.state(schedule), space.table(schedule)
        assert len(view.rows) == len(view.steps) + 1
        assert (view.rows.axes[-1] == -1).all() and view.rows.features[-1, ACTION_FEATURES.index("is stop")] == 1
        for step, row, places in zip(view.steps, view.rows.features, view.rows.axes, strict=False):
            opt = opt_of(step)
            assert opt == step.schedule.opts[-1]
            assert row[: len(KINDS_OF_ACTION)].sum() == 1 and row[KINDS_OF_ACTION.index(opt.op)] == 1
            if opt.op == "TC":
                assert (places == -1).all()
                continue
            real = state.real_axis(to_tiny(opt).op, opt.axis)
            assert places.tolist() == [real, opt.arg if opt.op == "SWAP" else -1], (schedule, opt)
            child = space.table(step.schedule)
            assert row[extent] == pytest.approx(math.log2(table.extents[real]))
            if opt.op != "SWAP":
                amount = opt.arg or table.extents[real]
                assert isinstance(amount, int) and row[rest] == pytest.approx(math.log2(table.extents[real] / amount))
            assert row[after["held"]] == pytest.approx(math.log2(child.product("UPCAST", "UNROLL")), abs=1e-5)
            assert row[after["threads"]] == pytest.approx(math.log2(child.product(*SHARED)), abs=1e-5), (schedule, opt)
            seen += 1
    assert seen > 5


def test_the_order_of_rows_is_that_of_the_actions_and_says_nothing() -> None:
    space = viewer_of("matmul").space
    schedule = space.actions(RAW)[3].schedule
    opts = [opt_of(step) for step in space.actions(schedule)]
    rows = action_rows(space.table(schedule), opts, depth=1)
    order = random.Random(0).sample(range(len(opts)), len(opts))
    mixed = action_rows(space.table(schedule), [opts[i] for i in order], depth=1)
    assert np.array_equal(mixed.features, rows.features[[*order, -1]])
    assert np.array_equal(mixed.axes, rows.axes[[*order, -1]])
    told = {(*row, *axes) for row, axes in zip(rows.features.tolist(), rows.axes.tolist(), strict=True)}
    assert len(told) == len(rows), "no two actions look alike"


def test_a_row_says_how_loads_and_stores_move_along_its_axis() -> None:
    """A matmul (64, 96) @ (96, 80): its rows are read by one factor and stored, in steps of 80; its columns by the
    other, in steps of one."""
    view = viewer_of("matmul").view(RAW)
    first = ACTION_FEATURES.index("loads that move")
    told = {str(opt_of(s)): r[first : first + 5].tolist() for s, r in zip(view.steps, view.rows.features, strict=False)}
    assert told["UPCAST(0,4)"] == [1, 0, 1, 0, pytest.approx(math.log2(81))]
    assert told["UPCAST(1,4)"] == [1, 1, 1, 1, 1]
    assert told["UNROLL(0,4)"] == [2, 1, 0, 0, 1]


def test_places_beyond_what_a_graph_holds_are_no_places() -> None:
    """Of a kernel of 26 axes the graph has the first 24."""
    x = empty(*(2,) * 26).permute(*range(25, -1, -1))
    space = KernelSpace(Region((kernel_of(kernels_of((x + 1).contiguous())[-1]),)), TARGETS["CUDA"])
    table = space.table(RAW)
    extents = len(table.extents)
    if extents <= MOST_AXES:
        pytest.fail("the kernel has too few axes to show anything")
    rows = action_rows(table, [Opt("UPCAST", i, 0) for i in range(extents)])
    assert rows.axes[:, 0].tolist() == [*range(MOST_AXES), *[-1] * (extents - MOST_AXES), -1]
    (made_of,) = Viewer(space).view(RAW).graph.n_axes
    assert made_of == MOST_AXES and rows.axes.max() < made_of


def test_an_action_without_a_place_in_kcgs_list_is_read_off_its_schedule() -> None:
    opt = Opt("UPCAST", 0, 6)
    assert opt_of(Action("six", Schedule.from_opts([Opt("LOCAL", 1, 2), opt]))) == opt
    table = viewer_of("matmul").space.table(RAW)
    rows = action_rows(table, [Opt("NOLOCALS", None, None), Opt("PADTO", 0, 32), Opt("UNROLL", 7, 4)])
    other = KINDS_OF_ACTION.index("other")
    assert rows.features[:2, other].tolist() == [1.0, 1.0] and (rows.axes == -1).all()
    assert rows.axes.shape == (4, AXES_OF_ACTION)


# Views


def test_views_are_kept_the_latest_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    viewer = Viewer(viewer_of("sum").space)
    steps = [step.schedule for step in viewer.space.actions(RAW)]
    assert len(steps) > 4 and VIEWS_KEPT > 100
    monkeypatch.setattr("kcg.predictor.views.VIEWS_KEPT", 3)
    found = viewer.views([*steps, RAW, steps[0]])
    assert [view.schedule for view in found] == [*steps, RAW, steps[0]], "more at once than are kept"
    assert found[0] is found[-1]
    assert viewer.view(steps[0]) is found[0] and viewer.view(RAW) is found[-2]
    again = viewer.view(steps[1])
    assert again is not found[1] and np.array_equal(again.graph.axes, found[1].graph.axes)


def test_views_of_several_are_those_of_each() -> None:
    space = viewer_of("softmax.1").space
    schedules = [RAW, space.baseline(), *(step.schedule for step in space.actions(RAW)[:5])]
    for one, schedule in zip(Viewer(space).views(schedules), schedules, strict=True):
        alone = Viewer(space).view(schedule)
        assert one.steps == alone.steps and np.array_equal(one.rows.features, alone.rows.features)
        for name, rows in one.graph.counts().items():
            assert len(getattr(one.graph, name)) == rows.sum()
            assert np.allclose(getattr(one.graph, name), getattr(alone.graph, name), atol=1e-5)


def test_a_schedule_that_does_not_apply_has_no_view() -> None:
    viewer = viewer_of("sum")
    with pytest.raises(ScheduleError):
        viewer.view(Schedule.from_opts([Opt("UPCAST", 77, 4)]))
