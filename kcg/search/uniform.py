"""Why a search measures what it measures: the pool of a choice and its probability; and one measurement in twenty that
is drawn uniformly, whatever the search would have chosen.

What a cost chose says little of what it is wrong about. So every search draws one in `EVERY` of its measurements from
all legal schedules, each as likely (`kcg.kernel.kinds.DrawsUniformly`). Which one it is begins at random, so that many
short searches draw their share too; it is never the first of a search. What is drawn takes part in the search like any
candidate. The draws have a generator of their own: a search under the same seed chooses the same otherwise.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from kcg.dataset.choices import LEGAL, UNIFORM, is_uniform
from kcg.kernel.kinds import DrawsUniformly, StepSpace, programs_of
from kcg.types import Prediction, Schedule

CANDIDATES: Final = "candidates"  # the pool of what a search knew and had not measured when it chose
EVERY: Final = 20
SLOWEST_S: Final = 2.0
"""What is expected to take longer is no part of any pool: one of them costs as much as a hundred."""
MOST_LISTED: Final = 2_000  # schedules of a space that are listed, where the space cannot draw by itself
TRIES: Final = 16  # draws until one may be measured and was not
ID_DIGITS: Final = 8


@dataclass(frozen=True)
class Chance:
    """From what a schedule was chosen, and the probability with which one draw gives it.

    Draws are independent. What is known already is left out, so that of a sampler's n draws a schedule is among the
    rows with a probability of 1 - (1 - p)^n.
    """

    pool: str = ""  # what it is called, after a colon how many schedules it has, and after another which these are
    probability: float | None = None  # 1 of what is chosen for sure; None where nobody can tell

    @property
    def is_uniform(self) -> bool:
        """Whether it was drawn from all legal schedules, each as likely."""
        return is_uniform(self.pool)


UNKNOWN: Final = Chance()
CERTAIN: Final = Chance("", 1.0)  # of what always comes


def pool_name(name: str, keys: Collection[str]) -> str:
    """What the pool of schedules with these keys is called: its name, its size, and digits that are equal for equal
    pools."""
    text = "\n".join(sorted(keys)).encode()
    return f"{name}:{len(keys)}:{hashlib.blake2b(text, digest_size=ID_DIGITS // 2).hexdigest()}"


class Legal:
    """All legal schedules of a space, to be drawn from, each as likely."""

    def __init__(self, space: StepSpace) -> None:
        self._space = space

    @functools.cached_property
    def _listed(self) -> list[Schedule]:
        return programs_of(self._space, most=MOST_LISTED)

    def draw(self, rng: random.Random) -> Schedule | None:
        """One of them; None where none was met, or the space is too large and cannot draw."""
        if isinstance(self._space, DrawsUniformly):
            return self._space.uniform(rng)
        return rng.choice(self._listed) if self._listed else None

    @property
    def count(self) -> float:
        """About how many there are; 0 where nobody can tell."""
        return self._space.count() if isinstance(self._space, DrawsUniformly) else float(len(self._listed))

    @property
    def chance(self) -> Chance:
        """That of each of them. Raises ZeroDivisionError where there is none."""
        return Chance(f"{LEGAL}:{self.count:.0f}", min(1.0 / self.count, 1.0))


class Draws:
    """The measurements of one search that are drawn uniformly."""

    def __init__(self, space: StepSpace, predict: Callable[[Sequence[Schedule]], list[Prediction]], seed: str) -> None:
        """`predict` says what is expected of schedules before anything was measured."""
        self._predict, self._legal = predict, Legal(space)
        self._rng = random.Random(f"{seed}:{UNIFORM}")
        self._next = self._rng.randrange(1, EVERY + 1)  # the number of the measurement that is drawn
        self._asked = 0

    def are_due(self, count: int) -> bool:
        """Whether one of the next `count` measurements of the search, which are made, is to be drawn."""
        self._asked += count
        if self._asked <= self._next:
            return False
        self._next += EVERY
        return True

    def draw(self, known: Callable[[Schedule], bool]) -> tuple[Schedule, Chance] | None:
        """A schedule that is not `known`, and its chance; None where none is met in some tries."""
        for _ in range(TRIES if self._legal.count else 0):
            found = self._legal.draw(self._rng)
            if found is not None and not known(found) and self._may_be_measured(found):
                return found, self._legal.chance
        return None

    def _may_be_measured(self, schedule: Schedule) -> bool:
        return self._predict([schedule])[0].runtime_s <= SLOWEST_S
