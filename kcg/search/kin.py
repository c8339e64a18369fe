"""What made a kernel faster is tried on its kin, kernels whose axes are alike.

The matmuls of one network differ in sizes and in what follows them; a schedule that is good for one is often good for
most, also where the predictor, which sees each alone, ranks it behind others. So each kernel looks at what its kin
have gained on tinygrad's own schedule. Where that is more than its own gain, the other's best schedule, step by step,
is worth a measurement: transfer-tuning (Gibson and Cano, 2022), but within one search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kcg.search.neighbours import followed
from kcg.types import RAW, Schedule

if TYPE_CHECKING:
    from kcg.kernel.space import KernelSpace

TRUST: Final = 0.5
"""The share of its kin's lead that a kernel is expected to catch up by one of their schedules; halved each time that
one of them was not faster here."""
LEAST_LEAD: Final = 1.02
"""A smaller lead over the own gain is no news."""
OFFERED: Final = 3
"""Schedules that a kernel has to offer: of those that are about as good here, one may be better there."""


def family(space: KernelSpace) -> Hashable:
    """What kin have in common: the kinds of their axes in order, and whether tinygrad takes tensor cores for them."""
    return space.table(RAW).kinds, space.table(space.baseline()).tensor_core


def adopted(space: KernelSpace, schedule: Schedule) -> Schedule | None:
    """Another kernel's schedule taken step by step; None where one of its steps is not legal here."""
    return followed(space.step, RAW, schedule.opts)


@dataclass(frozen=True)
class Hint:
    """A schedule that was good for a kernel's kin."""

    schedule: Schedule
    gain: float  # expected, relative to the kernel's best


@dataclass(eq=False)
class Relative:
    """One kernel among its kin."""

    family: Hashable
    adopt: Callable[[Schedule], Schedule | None]
    own_s: float = math.nan  # with tinygrad's own schedule
    best: list[tuple[float, Schedule]] = field(default_factory=list)  # seconds, the fastest first
    failed: int = 0  # hints that were not faster
    stale: bool = True  # something was measured of its kin, or of itself, since it was last asked for a hint
    _looked_at: dict[Schedule, Schedule | None] = field(default_factory=dict)  # what adopting each came to

    def lead(self, place: int = 0) -> float:
        """The speed-up of its best schedules over tinygrad's own; 0 before both were measured."""
        return self.own_s / self.best[place][0] if self.best and math.isfinite(self.own_s) else 0.0

    def saw(self, schedule: Schedule, time_s: float, *, own: bool) -> None:
        """Take in what was measured; not finite: it failed."""
        if own:
            self.own_s = time_s
        if math.isfinite(time_s):
            others = [(t, s) for t, s in self.best if s != schedule]
            self.best = sorted([*others, (time_s, schedule)], key=lambda pair: pair[0])[:OFFERED]

    def hint(self, kin: Sequence[Relative], known: Callable[[Schedule], bool]) -> Hint | None:
        """What led furthest among the best schedules of its kin that apply here and were not `known`."""
        self.stale = False
        if not (mine := self.lead()):
            return None
        others = [r for r in kin if r is not self and r.family == self.family]
        offered = [(r.lead(i), s) for r in others for i, (_, s) in enumerate(r.best)]
        for lead, theirs in sorted(offered, key=lambda pair: -pair[0]):
            if lead <= mine * LEAST_LEAD:
                break
            if theirs not in self._looked_at:
                self._looked_at[theirs] = self.adopt(theirs)
            schedule = self._looked_at[theirs]
            if schedule is not None and not known(schedule):
                return Hint(schedule, TRUST * math.exp2(-self.failed) * (1.0 - mine / lead))
        return None
