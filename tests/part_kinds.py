"""The kinds of the parts of a region, by name: Opts with all that a space must have."""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcg.errors import ScheduleError
from kcg.kernel.analysis import twin_id
from kcg.kernel.compile import compile_schedule
from kcg.kernel.opts.space import KernelSpace, refusal
from kcg.kernel.parts import PartsKind
from kcg.kernel.program import Compiled
from kcg.types import Region, Schedule, ScheduleKind, Target, Variables


@dataclass(frozen=True)
class Rows:
    """What each action would do, as numbers, and last what none does."""

    features: np.ndarray
    axes: np.ndarray


class OptsSpace(KernelSpace):
    """tinygrad's Opts of one kernel."""

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        return self.variants(schedule) + [action.schedule for action in self.actions(schedule)]

    def sample(self, rng: random.Random, schedule: Schedule | None = None) -> Schedule | None:
        return self.random_step(self.start() if schedule is None else schedule, rng)

    def transfer(self, schedule: Schedule, other: KernelSpace) -> Schedule | None:
        try:
            self.state(schedule)
        except ScheduleError:
            return None
        return schedule

    def family(self) -> Hashable:
        return twin_id(self.region.kernel)

    def groups(self, schedule: Schedule) -> Hashable:
        return tuple(sorted({opt.op for opt in schedule.opts}))

    def loop_nests(self, batch: Sequence[Schedule]) -> list[Any]:
        return [self.table(schedule) for schedule in batch]

    def refusals(self, batch: Sequence[Schedule]) -> list[float]:
        return [refusal(self, schedule) for schedule in batch]

    def action_features(self, schedule: Schedule) -> Rows:
        opts = [action.schedule.opts[-1] for action in self.actions(schedule)]
        axes = [*((-1 if opt.axis is None else opt.axis,) for opt in opts), (-1,)]
        return Rows(np.array([[float(len(opt.op))] for opt in opts] + [[0.0]]), np.array(axes))

    def variants(self, schedule: Schedule) -> list[Schedule]:
        return [Schedule.from_opts(schedule.opts[:-1])] if schedule.opts else []

    def check(self, schedule: Schedule) -> None:
        self.state(schedule)

    def compile(self, schedule: Schedule, variables: Variables = (), also: tuple[Variables, ...] = ()) -> Compiled:
        return compile_schedule(self.region, schedule, self.target, variables=variables, also=also)


class OptsKind:
    """The kind `opts`, of regions of one kernel."""

    def parse(self, body: str) -> Schedule:
        if not all(isinstance(row, list) and len(row) == 3 for row in json.loads(body)):
            raise ScheduleError("Opts are a list of [op, axis, argument]")
        return Schedule(ScheduleKind.OPTS, body)

    def space(self, region: Region, target: Target) -> Any:
        if len(region.kernels) > 1:
            return Refused("Opts are of one kernel")
        return OptsSpace(region, target)

    def describe(self, schedule: Schedule) -> str:
        return str(schedule)

    def steps(self, schedule: Schedule) -> tuple[str, ...]:
        return tuple(map(str, schedule.opts))


class Refused:
    """Why a kind cannot express a region."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def kind_named(name: str) -> OptsKind:
    """The kind of a name. Raises ScheduleError where there is none."""
    if name != ScheduleKind.OPTS:
        raise ScheduleError(f"unknown kind '{name}'")
    return OptsKind()


PARTS = PartsKind(kind_named)
