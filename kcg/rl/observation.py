"""What a policy observes of a schedule: its graph, the numbers of kernel and target, and a row for each legal action.

The graph is the one that predictors see. What an action would do to the loop nest is said by the kernel's space
(`action_features`), since only a kind of schedule knows what its actions are; the last row is always to stop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kcg.kernel.loop_nest import ActionRows
from kcg.predictor.features import MOST_AXES, ScheduleFeatures, encode, graphs, kernel_features, target_features
from kcg.types import Action, Schedule

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space

OBSERVATIONS_KEPT: Final = 2048  # of one kernel; each is about 10 KB


@dataclass(frozen=True)
class ScheduleObservation(ScheduleFeatures):
    """One schedule as a policy sees it: as a predictor does, and with its actions."""

    steps: tuple[Action, ...]  # m legal actions
    rows: ActionRows  # m + 1: theirs, and to stop


class Observer:
    """Observes the schedules of one kernel, and keeps the latest observations.

    `actions` says which steps there are from a schedule: those of the space by default, or those of a recorded table.
    """

    def __init__(self, space: Space, actions: Callable[[Schedule], list[Action]] | None = None) -> None:
        self.space = space
        self._actions = actions or space.actions
        self._kernel_x, self._target_x = kernel_features(space.region), target_features(space.target)
        self._kept: OrderedDict[Schedule, ScheduleObservation] = OrderedDict()

    def observe(self, schedule: Schedule) -> ScheduleObservation:
        """The observation of one. Raises ScheduleError if it does not apply."""
        return self.observe_all([schedule])[0]

    def observe_all(self, schedules: Sequence[Schedule]) -> list[ScheduleObservation]:
        """The observations of several, in order; those not kept are computed together."""
        found = {s: self._kept[s] for s in schedules if s in self._kept}
        missing = [s for s in dict.fromkeys(schedules) if s not in found]
        if missing:
            found |= self._observed(missing)
        for schedule in schedules:
            self._kept[schedule] = found[schedule]
            self._kept.move_to_end(schedule)
        while len(self._kept) > OBSERVATIONS_KEPT:
            self._kept.popitem(last=False)
        return [found[s] for s in schedules]

    def _observed(self, schedules: Sequence[Schedule]) -> dict[Schedule, ScheduleObservation]:
        made, found = graphs(encode(self.space.loop_nests(schedules)), self.space.target), {}
        for i, (schedule, refused) in enumerate(zip(schedules, self.space.refusals(schedules), strict=True)):
            steps = tuple(self._actions(schedule))
            found[schedule] = ScheduleObservation(
                self.space,
                schedule,
                refused,
                made if len(schedules) == 1 else made.take(np.array([i])),
                self._kernel_x,
                self._target_x,
                steps,
                _within_graph(self.space.action_features(schedule, steps)),
            )
        return found


def _within_graph(rows: ActionRows) -> ActionRows:
    """A graph has the first axes of a kernel only: others are no places."""
    return replace(rows, axes=np.where(rows.axes < MOST_AXES, rows.axes, -1))
