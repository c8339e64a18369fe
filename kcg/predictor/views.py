"""What a policy sees of one schedule: its graph, the numbers of kernel and target, and the table of its actions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from kcg.kernel.actions import ACTIONS
from kcg.kernel.refusals import refusal
from kcg.predictor.actions import ActionRows, action_rows
from kcg.predictor.context import ScheduleFeatures, kernel_features, target_features
from kcg.predictor.encode import encode
from kcg.predictor.features import graphs
from kcg.types import Action, Opt, Schedule

if TYPE_CHECKING:
    from kcg.kernel.space import KernelSpace

VIEWS_KEPT = 2048  # of one kernel; each is about 10 KB


@dataclass(frozen=True)
class View(ScheduleFeatures):
    """One schedule as a policy sees it: as a predictor does, and with its actions."""

    steps: tuple[Action, ...]  # m legal actions
    rows: ActionRows  # m + 1: theirs, and to stop


class Viewer:
    """The views of one kernel's schedules, the latest of them kept.

    `actions` says which steps there are from a schedule: those of the space by default, or those of a recorded table.
    """

    def __init__(self, space: KernelSpace, actions: Callable[[Schedule], list[Action]] | None = None) -> None:
        self.space = space
        self._actions = actions or space.actions
        self._kernel_x, self._target_x = kernel_features(space.region), target_features(space.target)
        self._views: OrderedDict[Schedule, View] = OrderedDict()

    def view(self, schedule: Schedule) -> View:
        """The view of one. Raises ScheduleError if it does not apply."""
        return self.views([schedule])[0]

    def views(self, schedules: Sequence[Schedule]) -> list[View]:
        """The views of several, in order; those not kept are computed together."""
        found = {s: self._views[s] for s in schedules if s in self._views}
        missing = [s for s in dict.fromkeys(schedules) if s not in found]
        if missing:
            tables, lengths = [self.space.table(s) for s in missing], [self.space.uops(s) for s in missing]
            made = graphs(encode(tables, lengths), self.space.target)
            for i, (schedule, table, length) in enumerate(zip(missing, tables, lengths, strict=True)):
                steps = tuple(self._actions(schedule))
                opts, symbolic = [opt_of(step) for step in steps], self.space.symbolic_axes(schedule)
                rows = action_rows(table, opts, depth=len(schedule.opts), symbolic=symbolic)
                one = made if len(missing) == 1 else made.take(np.array([i]))
                found[schedule] = View(
                    self.space, schedule, refusal(self.space, schedule, length), one, self._kernel_x, self._target_x,
                    steps, rows,
                )  # fmt: skip
                self._views[schedule] = found[schedule]
        for schedule in schedules:
            self._views.move_to_end(schedule)
        while len(self._views) > VIEWS_KEPT:
            self._views.popitem(last=False)
        return [found[s] for s in schedules]


def opt_of(action: Action) -> Opt:
    """The Opt that an action applies. Its label says it: in a recorded table a step may lead to a schedule that was
    recorded in another order."""
    known = _by_label().get(action.label)
    return known if known is not None else action.schedule.opts[-1]


@cache
def _by_label() -> dict[str, Opt]:
    return {str(opt): opt for opt in ACTIONS}
