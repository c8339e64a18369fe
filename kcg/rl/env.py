"""The Gymnasium environment: a schedule is built step by step; the return of an episode is its log-speedup.

    env = gymnasium.make("kcg.rl:kcg/KernelSchedule-v0", tasks=[task])

`kcg.rl.schedule_env` makes the tasks from names.

An action is a row of a padded table of action features (`kcg.rl.observation`): each legal step, and to stop. What a
row means changes from state to state; `action_masks` says which rows there are. What a schedule costs is injected: a
predictor, a recorded table or a device stand behind the same callable.

The reward of a step is its improvement in log-runtime. With a `guide` (usually a predictor) the steps are paid by the
guide, and stopping by what the cost itself says of the end, less what was paid: potential-based shaping (Ng, Harada
and Russell, 1999). Either way the rewards of an episode sum to the logarithm of the cost's speedup. A schedule that
fails ends the episode by truncation, with the reason in `info["fault"]`, and the rewards then sum to `FAULT_VALUE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict

import gymnasium
import numpy as np
from gymnasium import spaces

from kcg.errors import ScheduleError, UsageError
from kcg.kernel.kinds import describe
from kcg.kernel.loop_nest import ACTION_FEATURES, AXES_OF_ACTION
from kcg.predictor.features import (
    ACCESS_EDGES,
    ACCESS_FEATURES,
    AXIS_FEATURES,
    GROUP_EDGES,
    GROUP_FEATURES,
    KERNEL_FEATURES,
    MOST_ACCESSES,
    MOST_AXES,
    MOST_GROUPS,
    SCHEDULE_FEATURES,
    TARGET_FEATURES,
    Array,
)
from kcg.rl.observation import Observer, ScheduleObservation
from kcg.types import Prediction, Schedule

if TYPE_CHECKING:
    from kcg.predictor.learned import LearnedPredictor
    from kcg.search.replay import ReplayTable

MOST_ACTIONS: Final = 96
"""Rows of the table of actions. Of 76,397 states of the H200 dataset's 2,662 kernels (raw, hand-coded, and on random
walks from both) none had more than 69 steps, and 8 more than 64; what is beyond is left out."""
FAULT_VALUE: Final = -2.0
"""Log-speedup of a schedule that fails or is expected to, and of an illegal step."""
LIKELY_FAULT: Final = 0.5  # probability of failure from which a prediction counts as one
LARGEST: Final = 1e6  # no feature is larger: nearly all are logarithms
STARTS: Final = ("raw", "hand-coded", "either")


@dataclass(frozen=True)
class Reading:
    """What one schedule costs: log-seconds, or why it failed (then `log_s` is NaN)."""

    log_s: float
    fault: str = ""

    @classmethod
    def of(cls, prediction: Prediction) -> Reading:
        """What a predictor expects."""
        if prediction.failure_probability > LIKELY_FAULT:
            return cls(math.nan, f"it is expected to fail (probability {prediction.failure_probability:.2f})")
        return cls(prediction.log_runtime)


Cost = Callable[[Schedule], Reading]


class Ends(Protocol):
    """Where an episode may begin."""

    def start(self) -> Schedule:
        """The unoptimised schedule."""

    def baseline(self) -> Schedule:
        """tinygrad's own choice."""


def predicted(predict: Callable[[Sequence[Schedule]], list[Prediction]]) -> Cost:
    """The cost that a predictor expects; each schedule is asked for once."""
    known: dict[Schedule, Reading] = {}

    def cost(schedule: Schedule) -> Reading:
        if schedule not in known:
            known[schedule] = Reading.of(predict([schedule])[0])
        return known[schedule]

    return cost


def learned(predictor: LearnedPredictor, observer: Observer) -> Cost:
    """The cost that a learned predictor expects, read off the same graphs that the policy sees."""
    return predicted(lambda schedules: predictor.predict_features(observer.observe_all(schedules)))


def recorded(table: ReplayTable) -> Cost:
    """The cost that was measured, of a table of records."""

    def cost(schedule: Schedule) -> Reading:
        found = table.records[schedule].observation
        if found.runtime_s is None:
            return Reading(math.nan, found.reason or str(found.status))
        return Reading(math.log(found.runtime_s))

    return cost


@dataclass(frozen=True, eq=False)
class Task:
    """One kernel to be scheduled."""

    name: str
    ends: Ends
    observer: Observer
    cost: Cost
    guide: Cost | None = None  # pays for the steps; the cost by default
    weight: float = 1.0  # how often it is drawn, relative to others


def observation_space() -> spaces.Dict:
    """Padded arrays: `counts` says how many axes, accesses and groups there are, `mask` which actions."""

    def box(*shape: int) -> spaces.Box:
        return spaces.Box(-LARGEST, LARGEST, shape, np.float32)

    return spaces.Dict(
        {
            "axes": box(MOST_AXES, len(AXIS_FEATURES)),
            "accesses": box(MOST_ACCESSES, len(ACCESS_FEATURES)),
            "groups": box(MOST_GROUPS, len(GROUP_FEATURES)),
            "access_edges": box(MOST_AXES, MOST_ACCESSES, len(ACCESS_EDGES)),
            "group_edges": box(MOST_AXES, MOST_GROUPS, len(GROUP_EDGES)),
            "counts": spaces.Box(0, max(MOST_AXES, MOST_ACCESSES, MOST_GROUPS), (3,), np.int64),
            "schedule": box(len(SCHEDULE_FEATURES)),
            "kernel": box(len(KERNEL_FEATURES)),
            "target": box(len(TARGET_FEATURES)),
            "actions": box(MOST_ACTIONS, len(ACTION_FEATURES)),
            "action_axes": spaces.Box(-1, MOST_AXES, (MOST_ACTIONS, AXES_OF_ACTION), np.int64),
            "mask": spaces.Box(0, 1, (MOST_ACTIONS,), np.int8),
        }
    )


def padded(observation: ScheduleObservation, *, only_stop: bool = False) -> dict[str, Array]:
    """An observation as the arrays of `observation_space`; with `only_stop` that is the only action."""
    g, rows = observation.graph, observation.rows
    n_axes, n_accesses, n_groups = int(g.n_axes[0]), int(g.n_accesses[0]), int(g.n_groups[0])
    steps = min(len(rows) - 1, MOST_ACTIONS - 1)
    made: dict[str, Array] = {
        name: np.zeros(space.shape, space.dtype) for name, space in _BOXES.items() if space.shape is not None
    }
    made["axes"][:n_axes], made["accesses"][:n_accesses], made["groups"][:n_groups] = g.axes, g.accesses, g.groups
    # not -1 for the last: there may be no axes or no operations
    made["access_edges"][:n_axes, :n_accesses] = g.access_edges.reshape(n_axes, n_accesses, len(ACCESS_EDGES))
    made["group_edges"][:n_axes, :n_groups] = g.group_edges.reshape(n_axes, n_groups, len(GROUP_EDGES))
    made["counts"][:] = n_axes, n_accesses, n_groups
    made["schedule"][:] = g.schedule[0]
    made["kernel"][:], made["target"][:] = observation.kernel_x, observation.target_x
    made["actions"][:steps], made["actions"][steps] = rows.features[:steps], rows.features[-1]
    made["action_axes"].fill(-1)
    made["action_axes"][:steps] = rows.axes[:steps]
    made["mask"][0 if not only_stop else steps : steps + 1] = 1
    return made


_BOXES: Final[Mapping[str, Any]] = observation_space().spaces


class Episodes(TypedDict, total=False):
    """What `KernelScheduleEnv` takes beside its tasks."""

    start: str
    max_steps: int
    render_mode: str | None


class KernelScheduleEnv(gymnasium.Env[Any, Any]):
    """See the module. `reset(options={"task": i})` chooses a task, otherwise one is drawn by weight."""

    # Gymnasium's own name and type; its checker wants frames a second also of what has no frames
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self, tasks: Sequence[Task], *, start: str = "raw", max_steps: int = 12, render_mode: str | None = None
    ) -> None:
        """`start` is one of `STARTS`; after `max_steps` steps stopping is the only action.

        Raises UsageError for no task, a weight below 0, an unknown start or fewer than one step.
        """
        weights = np.array([task.weight for task in tasks], np.float64)
        if not len(weights) or not np.isfinite(weights).all() or weights.min() < 0 or weights.sum() <= 0:
            raise UsageError("the environment needs tasks, with weights from 0 that are not all 0")
        if start not in STARTS:
            raise UsageError(f"start={start!r}: an episode starts {', '.join(STARTS[:-1])} or {STARTS[-1]}")
        if max_steps < 1:
            raise UsageError(f"max_steps={max_steps}: an episode has at least one step")
        self.tasks, self.start, self.max_steps, self.render_mode = list(tasks), start, max_steps, render_mode
        self._shares = weights / weights.sum()
        self.observation_space = observation_space()
        self.action_space = spaces.Discrete(MOST_ACTIONS)
        self.task: Task | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Begin an episode. Where the start itself fails, `info["fault"]` says so and stopping is the only action."""
        super().reset(seed=seed)
        options = options or {}
        chosen = options.get("task")
        if chosen is None:
            index = int(self.np_random.choice(len(self.tasks), p=self._shares))
        elif not isinstance(chosen, int | np.integer) or not 0 <= (index := int(chosen)) < len(self.tasks):
            raise UsageError(f"there is no task {chosen!r}: there are {len(self.tasks)}, from 0")
        self.task = task = self.tasks[index]
        start = self.start if self.start != "either" else STARTS[int(self.np_random.integers(2))]
        schedule = task.ends.start() if start == "raw" else task.ends.baseline()
        self._observed = task.observer.observe(schedule)
        self._depth, self._paid, self._over = 0, 0.0, False
        self._first = task.cost(schedule)
        self._now = self._first if task.guide is None else task.guide(schedule)
        self._fault = self._first.fault or self._now.fault
        return self._observation(), self._info(start=start)

    @property
    def observed(self) -> ScheduleObservation:
        """The schedule as it is now, as a policy sees it; there is none before the first reset."""
        return self._observed

    def action_masks(self) -> Array:
        """(MOST_ACTIONS,) bool: the legal actions, as sb3-contrib's MaskablePPO asks for them."""
        return self._mask

    def step(self, action: int) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Take one step, or stop. An action that is not legal ends the episode as a fault."""
        assert self.task is not None, "reset comes before the first step"
        if self._over:
            raise UsageError("the episode is over: reset comes before the next step")
        steps = self._observed.steps[: MOST_ACTIONS - 1]
        if self._fault:
            return self._faulted(self._fault)
        if not (0 <= action < MOST_ACTIONS and self._mask[action]):
            return self._faulted("the action is not legal here")
        if action == len(steps):
            return self._stopped()
        child = steps[action].schedule
        try:
            observation = self.task.observer.observe(child)
            reading = (self.task.guide or self.task.cost)(child)
        except ScheduleError as error:
            return self._faulted(str(error))
        before, self._observed, self._now = self._now, observation, reading
        if reading.fault:
            return self._faulted(reading.fault)
        reward = before.log_s - reading.log_s
        self._depth += 1
        self._paid += reward
        return self._observation(), float(reward), False, False, self._info()

    def _stopped(self) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        assert self.task is not None
        if self.task.guide is None:
            end = self._now
        elif (end := self.task.cost(self._observed.schedule)).fault:
            self._now = end
            return self._faulted(end.fault)
        speedup = self._first.log_s - end.log_s
        reward = speedup - self._paid
        self._over = True
        return self._observation(), float(reward), True, False, self._info(log_speedup=speedup, log_s=end.log_s)

    def _faulted(self, fault: str) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        reward = FAULT_VALUE - self._paid
        self._over = True
        return self._observation(), float(reward), False, True, self._info(fault=fault, log_speedup=FAULT_VALUE)

    def _observation(self) -> dict[str, Array]:
        made = padded(self._observed, only_stop=self._depth >= self.max_steps or bool(self._fault))
        self._mask = made["mask"].astype(bool)
        return made

    def _info(self, **more: Any) -> dict[str, Any]:
        assert self.task is not None
        info = {"kernel": self.task.name, "schedule": describe(self._observed.schedule), "log_s": self._now.log_s}
        return info | ({"fault": self._fault} if self._fault else {}) | more

    def render(self) -> str:
        """The kernel, its schedule, and what it costs, in one line."""
        if self.task is None:
            return "no kernel"
        cost = self._fault or self._now.fault or f"{math.exp(self._now.log_s) * 1e6:.3g} µs"
        return f"{self.task.name}: {describe(self._observed.schedule)} ({cost})"
