"""Lists of Opts of a kernel at random, each as likely as any other.

A small space is listed, and each program of it is as likely. In a larger one each list of at most `STEPS` steps from
the unoptimised kernel is, so that a program comes as often as lists lead to it. As for tile programs
(`kcg.kernel.tile.uniform`) each step has as many places as there ever are legal ones, and one more at which the list
ends. A place is drawn for every step; where it has no step, or one follows the end, the draw begins again. What is left
is uniform (rejection sampling, von Neumann, 1951). The number of lists is estimated from walks: the mean of the
products of choices on the way is unbiased (Knuth, Estimating the efficiency of backtrack programs, 1975).
"""

from __future__ import annotations

from random import Random
from statistics import fmean

from kcg.kernel.kinds import StepSpace, programs_of
from kcg.types import Action, Schedule

STEPS = 6  # of the longest list: 22 of 24 winners of BEAM=2 on Flux have more than 3, few have more than 6
PILOTS = 48  # walks by which the places are counted
TRIES = 4_000  # draws until one lasts
LISTED = 500  # programs of a space that is listed, at most


class Uniform:
    """The lists of Opts of a space, to be drawn from."""

    def __init__(self, space: StepSpace) -> None:
        self._space = space
        self._listed = programs_of(space, most=LISTED)
        self.count = float(len(self._listed))
        if not self._listed:
            rng = Random("pilots")  # the same in every process
            counts = [self._pilot(rng) for _ in range(PILOTS)]
            self._places = [1 + max(of_step) for of_step in zip(*counts, strict=True)]
            self.count = fmean(map(_lists, counts))

    def _pilot(self, rng: Random) -> list[int]:
        """How many steps there were at each place of one walk at random; 0 after its end."""
        schedule, counts = self._space.start(), list[int]()
        for _ in range(STEPS):
            actions = self._space.actions(schedule)
            counts.append(len(actions))
            if not actions:
                break
            schedule = rng.choice(actions).schedule
        return [*counts, *[0] * (STEPS - len(counts))]

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
            actions: list[Action] = self._space.actions(schedule)
            if len(actions) >= self._places[step]:
                self._places[step] = 1 + len(actions)
                return None
            if place > len(actions):
                return None
            schedule = actions[place - 1].schedule
        return schedule


def _lists(counts: list[int]) -> float:
    """How many lists there are, if all walks are as this one: those of no step, of one, and so on."""
    found = product = 1.0
    for count in counts:
        product *= count
        found += product
    return found
