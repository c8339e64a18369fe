"""Tile programs of a kernel at random, each of its legal programs as likely as any other.

Setting field after field at random (`legal.random_parameters`) prefers what has few choices after it. Here each field
has as many places as it ever has legal values. A place is drawn for each field, and where the place has no value the
draw begins again. So every program is met with one chance in the product of the places, whatever the way to it, and
those that are met are uniform (rejection sampling, von Neumann, 1951). Most draws that end do so at one of the first
fields, which cost least: of a matmul one draw in thirty lasts.

How many places a field needs is seen in some programs that are set at random. If a later draw finds more legal values
than places, there are so many from then on. The number of programs is estimated from the same programs: the mean of
one over the chance of each is unbiased (Knuth, Estimating the efficiency of backtrack programs, 1975). A small number
is counted.
"""

from __future__ import annotations

import itertools
import math
from random import Random
from statistics import fmean
from typing import Any

from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.legal import FIELDS, is_legal, legal_values, starts
from kcg.kernel.tile.parameters import TileParameters
from kcg.types import Target

PILOTS = 48  # programs of each start by which the places are counted
COUNTED = 200  # programs of a start that are counted one by one, where there are about so many at most
TRIES = 4_000  # draws until one lasts
KEPT = 1 << 16  # sets of legal values: those of the first fields are asked for in every draw


class Uniform:
    """The legal programs of a kernel on a target, to be drawn from."""

    def __init__(self, kernel: TileKernel, target: Target) -> None:
        self._kernel, self._target = kernel, target
        self._starts = starts(kernel, target)
        self._known: dict[tuple[TileParameters, str], tuple[Any, ...]] = {}
        rng = Random("pilots")  # the same in every process
        self._places: list[list[int]] = []
        self.count = 0.0
        for start in self._starts:
            counts = [self._pilot(start, rng) for _ in range(PILOTS)]
            self._places.append([max(of_field) for of_field in zip(*counts, strict=True)])
            about = fmean(math.prod(row) for row in counts)
            self.count += about if about > COUNTED else self._counted(start)

    def _counted(self, start: TileParameters) -> int:
        """How many legal programs there are with a start's form and axes."""
        level = [start]
        for field in FIELDS:
            level = [made.changed(**{field: value}) for made in level for value in self._values(made, field)]
        return sum(is_legal(self._kernel, self._target, made) for made in level)

    def _pilot(self, start: TileParameters, rng: Random) -> list[int]:
        """How many legal values each field had on one way at random."""
        made, counts = start, []
        for field in FIELDS:
            values = self._values(made, field)
            counts.append(len(values))
            made = made.changed(**{field: rng.choice(values)})
        return counts

    def _values(self, made: TileParameters, field: str) -> tuple[Any, ...]:
        if (found := self._known.get((made, field))) is None:
            if len(self._known) >= KEPT:
                self._known.clear()
            found = legal_values(self._kernel, self._target, made, field) or (getattr(made, field),)
            self._known[made, field] = found
        return found

    def draw(self, rng: Random) -> TileParameters | None:
        """One of them; None where no draw lasted."""
        for _ in range(TRIES if self._starts else 0):
            ends = [*itertools.accumulate(map(math.prod, self._places))]
            place = rng.randrange(ends[-1])
            number = next(i for i, end in enumerate(ends) if place < end)
            if (found := self._try(number, rng)) is not None:
                return found
        return None

    def _try(self, number: int, rng: Random) -> TileParameters | None:
        made, places = self._starts[number], self._places[number]
        for i, field in enumerate(FIELDS):
            values = self._values(made, field)
            if len(values) > places[i]:
                places[i] = len(values)
                return None
            if (place := rng.randrange(places[i])) >= len(values):
                return None
            made = made.changed(**{field: values[place]})
        return made if is_legal(self._kernel, self._target, made) else None
