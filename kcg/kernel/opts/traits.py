"""What schedules of Opts have in common: a predictor that misjudges one of them may misjudge the others alike."""

from __future__ import annotations

from typing import Final

from kcg.kernel.opts.schedule import opts_of
from kcg.types import Schedule, ScheduleKind

TRAITS: Final = ({"UNROLL"}, {"GROUP", "GROUPTOP"}, {"LOCAL"})  # a schedule has one where it uses one of the Opts
UPCAST_AXES: Final = 4  # for each of the first axes: whether a thread computes several elements along it


def traits_of(schedule: Schedule) -> tuple[int, ...]:
    """Which traits a schedule has, 1 or 0 each: the `TRAITS`, then `UPCAST_AXES`. What is no schedule of Opts has
    none."""
    found = [0] * (len(TRAITS) + UPCAST_AXES)
    for opt in opts_of(schedule) if schedule.kind == ScheduleKind.OPTS else ():
        for place, of in enumerate(TRAITS):
            found[place] |= opt.op in of
        if opt.op == "UPCAST" and isinstance(opt.axis, int) and opt.axis < UPCAST_AXES:
            found[len(TRAITS) + opt.axis] = 1
    return tuple(found)
