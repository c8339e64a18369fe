"""Lists of Opts of a kernel at random, each as likely as any other.

A small space is listed, and each program of it is as likely. In a larger one each list of at most `STEPS` steps from
the unoptimised kernel is, so that a program comes as often as lists lead to it. What has very long code is none of
them. As for tile programs
(`kcg.kernel.tile.uniform`) each step has as many places as there ever are legal ones, and one more at which the list
ends. A place is drawn for every step; where it has no step, or one follows the end, the draw begins again. What is left
is uniform (rejection sampling, von Neumann, 1951). The number of lists is estimated from walks: the mean of the
products of choices on the way to each is unbiased (Knuth, Estimating the efficiency of backtrack programs, 1975).
"""

from __future__ import annotations

from random import Random
from statistics import fmean
from typing import Protocol

from kcg.kernel.kinds import LONG_UOPS, CountsUops, StepSpace, programs_of
from kcg.types import Schedule

STEPS = 6  # of the longest list: 22 of 24 winners of BEAM=2 on Flux have more than 3, few have more than 6
PILOTS = 24  # walks by which the places are counted
TRIES = 4_000  # draws until one lasts
LISTED = 500  # programs of a space that is listed, at most


class _Space(StepSpace, CountsUops, Protocol):
    """What lists are drawn from."""


class Uniform:
    """The lists of Opts of a space, to be drawn from."""

    def __init__(self, space: _Space) -> None:
        self._space = space
        self._listed = [one for one in programs_of(space, most=LISTED) if self._is_short(one)]
        self._places = [1] * STEPS
        self.count = float(len(self._listed))
        if not self._listed:
            rng = Random("pilots")  # the same in every process
            self.count = fmean(self._pilot(rng) for _ in range(PILOTS))

    def _is_short(self, schedule: Schedule) -> bool:
        return self._space.uops(schedule) <= LONG_UOPS

    def _pilot(self, rng: Random) -> float:
        """How many lists there are, if all walks are as one at random: of no step, of one, and so on."""
        schedule, lists = self._space.start(), 1.0
        found = float(self._is_short(schedule))
        for step in range(STEPS):
            actions = self._space.actions(schedule)
            self._places[step] = max(self._places[step], 1 + len(actions))
            if not actions:
                break
            schedule, lists = rng.choice(actions).schedule, lists * len(actions)
            found += lists * self._is_short(schedule)
        return found

    def draw(self, rng: Random) -> Schedule | None:
        """One of them; None where no draw lasted."""
        if self._listed:
            return rng.choice(self._listed)
        return next((found for _ in range(TRIES) if (found := self._try(rng)) is not None), None)

    def _try(self, rng: Random) -> Schedule | None:
        schedule, ended = self._space.start(), False
        for step in range(STEPS):
            place = rng.randrange(self._places[step])
            if ended or not place:
                if place:
                    return None
                ended = True
                continue
            actions = self._space.actions(schedule)
            if len(actions) >= self._places[step]:
                self._places[step] = 1 + len(actions)
                return None
            if place > len(actions):
                return None
            schedule = actions[place - 1].schedule
        return schedule if self._is_short(schedule) else None
