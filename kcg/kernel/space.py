"""The action space of one region of one kernel: legal steps, identities, names, for any target, on any machine."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

from kcg.compat import scheduling
from kcg.compat.renderers import planning_renderer
from kcg.compat.tiny import Scheduler
from kcg.kernel.actions import legal_steps, possible_on, try_step
from kcg.kernel.axes import AxisTable, axis_table
from kcg.kernel.codec import ast_of
from kcg.kernel.compiler import UOPS_MAX
from kcg.kernel.uops import count_uops
from kcg.types import RAW, Action, Opt, Region, Schedule, Target

STATES_KEPT = 4096  # schedule states per kernel; each shares most of its nodes with its parent

UOPS_OFFERED = round(1.02 * UOPS_MAX)
"""Steps to kernels that would have more micro-operations (`count_uops`) are not offered: a compilation of seconds would
only refuse them. The margin is by how much the count is usually too high."""


class KernelSpace:
    """An `ActionSpace` over tinygrad's Opts. States are immutable to the outside and kept in a bounded cache."""

    def __init__(self, region: Region, target: Target) -> None:
        self.region, self.target = region, target
        self.ast = ast_of(region.kernel)
        self._root = scheduling.initial_state(self.ast, planning_renderer(target))
        self._states: OrderedDict[Schedule, Scheduler] = OrderedDict()
        self._tables: dict[Schedule, AxisTable] = {}  # of schedules in `_states`
        self._baseline: Schedule | None = None
        self._first: list[Action] = []

    def start(self) -> Schedule:
        return RAW

    def baseline(self) -> Schedule:
        """tinygrad's hand-coded Opts for this kernel on this target."""
        if self._baseline is None:
            self._baseline = scheduling.hand_coded(self._root)
        return self._baseline

    def state(self, schedule: Schedule) -> Scheduler:
        """The state after `schedule`; callers must not change it. Raises ScheduleError if it does not apply."""
        if schedule == RAW:
            return self._root
        if (found := self._states.get(schedule)) is not None:
            self._states.move_to_end(schedule)
            return found
        # a known parent saves applying the whole chain again
        opts = schedule.opts
        parent = self._states.get(Schedule.from_opts(opts[:-1]), self._root if len(opts) == 1 else None)
        state = scheduling.apply(parent, opts[-1:]) if parent is not None else scheduling.apply(self._root, opts)
        self._keep(schedule, state)
        return state

    def table(self, schedule: Schedule) -> AxisTable:
        """The axis table after `schedule`. Raises ScheduleError if it does not apply."""
        found = self._tables.get(schedule)
        if found is None:
            found = axis_table(self.state(schedule))
            if schedule in self._states:
                self._tables[schedule] = found
        return found

    def _keep(self, schedule: Schedule, state: Scheduler) -> None:
        self._states[schedule] = state
        if len(self._states) > STATES_KEPT:
            oldest, _ = self._states.popitem(last=False)
            self._tables.pop(oldest, None)

    def actions(self, schedule: Schedule) -> list[Action]:
        opts, steps = schedule.opts, []
        for opt, after in legal_steps(self.state(schedule), self.target):
            table = axis_table(after)
            if count_uops(after, table) > UOPS_OFFERED:
                continue
            child = Schedule.from_opts((*opts, opt))
            self._keep(child, after)
            self._tables[child] = table
            steps.append(Action(str(opt), child))
        return steps

    def random_step(self, schedule: Schedule, rng: random.Random) -> Schedule | None:
        """One of `actions(schedule)`, each equally likely, in a tenth of the time; None where there is none."""
        if schedule == RAW:  # asked for most often, and the only state whose tensor cores have to be tried
            self._first = self._first or self.actions(RAW)
            return rng.choice(self._first).schedule if self._first else None
        state, possible = self.state(schedule), list(possible_on(self.target))
        rng.shuffle(possible)
        return next((child for opt in possible if (child := self._step(schedule, state, opt)) is not None), None)

    def step(self, schedule: Schedule, opt: Opt) -> Schedule | None:
        """The schedule after one action of kcg's list, None where it is not legal."""
        return self._step(schedule, self.state(schedule), opt)

    def _step(self, schedule: Schedule, state: Scheduler, opt: Opt) -> Schedule | None:
        if (after := try_step(state, opt)) is None:
            return None
        table = axis_table(after)
        if count_uops(after, table) > UOPS_OFFERED:
            return None
        child = Schedule.from_opts((*schedule.opts, opt))
        self._keep(child, after)
        self._tables[child] = table
        return child

    def key(self, schedule: Schedule) -> str:
        return scheduling.canonical_key(self.state(schedule))

    def name(self, schedule: Schedule) -> str:
        """tinygrad's name of the scheduled kernel."""
        return scheduling.kernel_name(self.state(schedule))

    def legend(self, schedule: Schedule) -> str:
        """What the name says, in words: `reduce; global 40 × 2, local 8, upcast 4, reduce 64, unroll 4`."""
        return describe_axes(self.state(schedule))


_AXIS_WORDS = {
    "DEVICE": "device", "GLOBAL": "global", "WARP": "warp", "LOCAL": "local", "WEAK": "loop", "LOOP": "loop",
    "GROUP_REDUCE": "group", "REDUCE": "reduce", "UPCAST": "upcast", "UNROLL": "unroll", "THREAD": "thread",
}  # fmt: skip


def describe_axes(state: Any) -> str:
    """The axes of a schedule state in words, in the order in which tinygrad names them."""
    parts: list[tuple[str, list[str]]] = []
    for extent, axis_type in zip(state.full_shape, state.axis_types, strict=True):
        word = _AXIS_WORDS.get(axis_type.name, axis_type.name.lower())
        text = str(extent) if isinstance(extent, int) else extent.render()
        if parts and parts[-1][0] == word:
            parts[-1][1].append(text)
        else:
            parts.append((word, [text]))
    kind = "reduce" if state.reduceop is not None else "elementwise"
    axes = ", ".join(f"{word} {' × '.join(extents)}" for word, extents in parts)
    return f"{kind}; {axes}" if axes else kind
