"""What is paid in an episode is the log-speedup, and a fault is never silent."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from kcg.errors import UsageError
from kcg.kernel.kinds import describe
from kcg.kernel.opts.action_features import ACTION_FEATURES, KINDS_OF_ACTION
from kcg.kernel.opts.schedule import RAW, Opt, opts_of, schedule_of
from kcg.rl.env import FAULT_VALUE, MOST_ACTIONS, Cost, KernelScheduleEnv, Reading, padded, predicted
from kcg.rl.observation import Observer
from kcg.search.replay import ReplayTable
from kcg.types import Action, Prediction, Schedule
from tests.env_tasks import (
    TARGETS,
    check_episodes,
    env_of,
    made,
    observer_of,
    recorded_observer,
    recorded_table,
    recorded_task,
    roofline,
    stop,
    task,
)

# Rewards, faults and ends


def episode(env: KernelScheduleEnv, choose: Callable[[KernelScheduleEnv], int], **options: Any) -> tuple[float, Any]:
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
        return [step.label for step in env.observed.steps].index(left.pop(0)) if left else stop(env)

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
        queue += sorted(fresh, key=describe)
    return seen


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("start", ["raw", "hand-coded"])
def test_an_episode_is_paid_by_what_the_cost_says_of_its_end(start: str, guided: bool) -> None:
    _, _, table = recorded_table()
    ours = replace(recorded_task(), guide=roofline(recorded_observer()) if guided else None)
    env = env_of(ours, start=start)
    rng = random.Random(1)
    begin = table.start() if start == "raw" else table.baseline()
    for _ in range(10):
        paid, (*_, info) = episode(env, lambda env: rng.randrange(stop(env) + 1))
        first_s, last_s = (table.records[s].observation.runtime_s for s in (begin, env.observed.schedule))
        if "fault" not in info:
            assert first_s and last_s and paid == pytest.approx(math.log(first_s / last_s))
            assert info["log_s"] == math.log(last_s) and info["schedule"] == describe(env.observed.schedule)


def test_with_a_guide_the_steps_are_paid_by_the_guide() -> None:
    guide = roofline(recorded_observer())
    env = env_of(replace(recorded_task(), guide=guide))
    env.reset()
    before = guide(env.observed.schedule).log_s
    _, reward, *_ = env.step(0)
    assert reward == pytest.approx(before - guide(env.observed.schedule).log_s) and reward != 0.0


@pytest.mark.parametrize("guided", [False, True])
def test_a_schedule_that_fails_truncates_with_its_reason(guided: bool) -> None:
    """By the cost at once; behind a guide that expects nothing of it, when the episode stops there."""
    _, _, table = recorded_table()
    bad = failing(table)
    labels = way_to(table, bad)
    assert len(labels) >= 2
    guide: Cost = lambda schedule: Reading(-10.0 - len(opts_of(schedule)))  # noqa: E731
    env = env_of(replace(recorded_task(), guide=guide if guided else None))
    paid, (observation, _, terminated, truncated, info) = episode(env, along(labels))
    assert truncated and not terminated and paid == pytest.approx(FAULT_VALUE)
    assert info["fault"] and info["log_speedup"] == FAULT_VALUE and info["schedule"] == describe(bad)
    assert math.isnan(info["log_s"]), "what failed has no time, that of the schedule before least of all"
    assert env.render() == f"recorded: {describe(bad)} ({info['fault']})"
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
        return [Prediction(-9.0, 0.1, float(bool(opts_of(s)))) for s in schedules]

    env = env_of(replace(task("matmul"), cost=predicted(predict)))
    for _ in range(2):
        paid, (*_, truncated, info) = episode(env, lambda env: 3)
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
    wrong = schedule_of([Opt("UPCAST", 77, 4)])
    observer = Observer(observer_of("matmul").space, lambda schedule: [Action("UPCAST(77,4)", wrong)])
    for cost in (lambda schedule: Reading(-9.0), predicted(lambda s: [Prediction(len(observer.observe(s[0]).rows))])):
        env = env_of(replace(task("matmul"), observer=observer, cost=cost))
        paid, (*_, truncated, info) = episode(env, lambda env: 0)
        assert truncated and paid == FAULT_VALUE and "UPCAST" in info["fault"]


@pytest.mark.parametrize("guided", [False, True])
def test_a_start_that_fails_says_so_and_can_only_be_left(guided: bool) -> None:
    bad: Cost = lambda schedule: Reading(math.nan, "out of registers")  # noqa: E731
    ours = replace(task("matmul"), cost=bad, guide=roofline(observer_of("matmul")) if guided else None)
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


def test_episodes_start_where_the_options_say() -> None:
    space = observer_of("matmul").space
    ends = {"raw": describe(space.start()), "hand-coded": describe(space.baseline())}
    for start, schedule in ends.items():
        assert env_of(task("matmul"), start=start).reset()[1]["schedule"] == schedule
    env = env_of(task("matmul"), start="either")
    env.reset(seed=0)
    report = [env.reset()[1] for _ in range(30)]
    assert {info["start"] for info in report} == set(ends)
    assert all(info["schedule"] == ends[info["start"]] for info in report)


@pytest.mark.parametrize(
    ("tasks", "settings", "message"),
    [
        ([], {}, "needs tasks"),
        ([{"weight": -1.0}], {}, "weights from 0"),
        ([{"weight": 0.0}], {}, "not all 0"),
        ([{"weight": math.nan}], {}, "needs tasks"),
        ([{}], {"start": "somewhere"}, "start='somewhere': an episode starts raw, hand-coded or either"),
        ([{}], {"max_steps": 0}, "max_steps=0: an episode has at least one step"),
    ],
)
def test_settings_that_cannot_be_meant_are_one_line(tasks: Any, settings: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
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
    observer = observer_of("matmul")
    steps = observer.space.actions(RAW) * 4
    crowded = Observer(observer.space, lambda schedule: steps)
    assert len(steps) >= MOST_ACTIONS
    env = env_of(replace(task("matmul"), observer=crowded))
    observation, _ = env.reset()
    assert observation["mask"].all()
    stopping = ACTION_FEATURES.index("is stop")
    assert observation["actions"][:, stopping].tolist() == [0.0] * (MOST_ACTIONS - 1) + [1.0]
    assert env.step(MOST_ACTIONS - 1)[2], "the last row stops"


def test_a_padded_observation_holds_all_of_it() -> None:
    observation = observer_of("conv2d").observe(observer_of("conv2d").space.baseline())
    report = padded(observation)
    g, n = observation.graph, len(observation.rows)
    axes, accesses, groups = report["counts"]
    assert (axes, accesses, groups) == (g.n_axes[0], g.n_accesses[0], g.n_groups[0])
    assert np.array_equal(report["axes"][:axes], g.axes) and not report["axes"][axes:].any()
    edges = report["access_edges"][:axes, :accesses]
    assert np.array_equal(edges.reshape(-1, edges.shape[-1]), g.access_edges)
    assert np.abs(report["access_edges"]).sum() == pytest.approx(np.abs(g.access_edges).sum(), rel=1e-5)
    assert np.array_equal(report["actions"][:n], observation.rows.features) and not report["actions"][n:].any()
    assert np.array_equal(report["action_axes"][:n], observation.rows.axes) and (report["action_axes"][n:] == -1).all()
    assert report["mask"].tolist() == [1] * n + [0] * (MOST_ACTIONS - n)
    assert padded(observation, only_stop=True)["mask"].tolist() == [0] * (n - 1) + [1] + [0] * (MOST_ACTIONS - n)
