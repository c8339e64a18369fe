"""Data on which both outcomes are common, however much a kernel reduces: for `(ids == 0).all(1)` of rows of thousands.

Nearly all elements of a buffer are one value, and so few are others that about half of all rows hold none. Which
value that is follows from what the kernel compares with: a recipe for each choice, of which a kernel gets the first on
which its outputs are not all the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from kcg.compat.tiny import Ops, UOp, dtypes

Array = np.ndarray[Any, Any]

MOSTLY = "mostly-v1"
MOST_CONSTANTS = 3
MOST_OUTCOMES = 48
LONG = 1 << 16  # elements of a row from which on a buffer's numbers, drawn once, hold less than one other element
BLOCKS = (32, 64, 128, 256, 512, 1024)  # of which programs leave out the end, or the beginning
NEAR_ENDS = 0.125  # of the elements next to an end
OTHERS = (-1.0, 0.0, 0.5, 1.0, 2.0)
SMALL = (-1.0, 2.0, 3.0, 0.5, 4.0, 5.0, 6.0, 7.0, 8.0, -2.0, 10.0, 16.0, 100.0)
"""Numbers that nearly all elements may be where nothing says which."""
SPECIAL = (np.inf, -np.inf, np.nan)
FACTOR_SPREAD = 3.0  # of the exponent of a product of all terms
ODD = (-5, -3, -1, 1, 3, 5)  # factors of integers: a product of them is never 0, whatever its length


class Mostly(StrEnum):
    """What nearly all numbers of a buffer are."""

    AT = "at"  # what the kernel compares with
    ABOVE = "above"
    BELOW = "below"
    SPECIAL = "special"  # 1, and the others are infinite or NaN
    INVALID = "invalid"  # NaN
    INFINITE = "infinite"
    RISING = "rising"  # the larger, the higher the number of the buffer
    FALLING = "falling"


class Part(StrEnum):
    """What is drawn for an end of a large buffer."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True)
class Outcome:
    """One choice of what nearly all elements are, and for a buffer how many are others."""

    style: Mostly
    constant: float
    truth: bool  # of booleans
    length: int  # of the rows of which half hold nothing else
    slot: int = 0
    share: float = 0.0  # of other elements
    size: int = 0  # elements of the buffer
    part: Part | None = None  # of a buffer that is not drawn whole

    def of(self, slot: int, size: int, *, largest: int, seed: int) -> Outcome:
        """That of a buffer of a kernel whose largest one is of `largest`.

        Where all is reduced to one result, the first two seeds give one outcome, and the next two the other one. Of
        rows so long that a buffer's numbers are drawn for less than one of them, the first and the last alone have the
        other outcome. What all rows read, or each as a whole, holds no others: none of them would have the first one.
        """
        share = -math.expm1(-math.log(2) / self.length)
        if largest <= self.length:
            return replace(self, slot=slot, size=size, share=share if seed & 2 else 0.0)
        if size <= self.length:
            return replace(self, slot=slot, size=size)
        return replace(self, slot=slot, size=size, share=share)

    def base(self, *, whole: bool) -> float:
        """What nearly all numbers of a buffer are."""
        step = 1.0 if whole else max(1.0, abs(self.constant) / 4)
        return {
            Mostly.AT: self.constant,
            Mostly.ABOVE: self.constant + step,
            Mostly.BELOW: self.constant - step,
            Mostly.SPECIAL: 1.0,
            Mostly.INVALID: 1.0 if whole else math.nan,
            Mostly.INFINITE: 1.0 if whole else math.inf,
            Mostly.RISING: float(self.slot),
            Mostly.FALLING: -float(self.slot),
        }[self.style]

    def others(self, count: int, rng: np.random.Generator) -> Array:
        """Which of `count` elements are others."""
        if self.share == 0.0:
            return np.zeros(count, bool)
        if count == self.size:
            return self._placed(rng)
        found = rng.random(count) < (0.0 if self.length > LONG else self.share)
        if self.part:  # of whichever axis is reduced: the first, or the last, of single results
            near = found if self.part is Part.FIRST else found[::-1]
            beside = min(self.rows, count // 2)
            near[:beside] |= rng.random(beside) < NEAR_ENDS
            near[0] = True
        return found

    @property
    def rows(self) -> int:
        """Results that the buffer is reduced to."""
        return max(1, self.size // self.length)

    def _placed(self, rng: np.random.Generator) -> Array:
        """Others of a buffer that is drawn whole: at least one, and fewer than rows. The first ones are at the ends of
        rows, and of columns, then at those of blocks, and every fourth is anywhere."""
        number = int(np.clip(rng.binomial(self.size, min(self.share, 0.5)), 1, max(1, self.rows - 1)))
        edges = [edge for block in BLOCKS for edge in range(block, self.length, block)]
        near = np.unique([place for edge in edges for place in (edge - 1, edge)]).astype(np.int64)
        place = np.concatenate([[self.length - 1, self.length - 1, 0, 0], rng.permutation(near)])[:number]
        place = np.concatenate([place, rng.integers(0, self.length, number - len(place))])
        anywhere = np.arange(number) % 4 == 3
        place = np.where(anywhere & (np.arange(number) > 3), rng.integers(0, self.length, number), place)
        row = rng.permutation(max(self.rows, number))[:number] % self.rows
        by_rows = np.arange(number) % 2 == 0
        found = np.zeros(self.size, bool)
        found[np.minimum(np.where(by_rows, row * self.length + place, place * self.rows + row), self.size - 1)] = True
        return found


def recipes(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """The names of the recipes of a kernel's outcomes."""
    return tuple(f"{MOSTLY}/{place}" for place in range(len(outcomes)))


def place_of(recipe: str) -> int | None:
    """Which outcome a recipe is of; None where it is of none."""
    return int(recipe.partition("/")[2]) if recipe.startswith(f"{MOSTLY}/") else None


def outcomes_of(asts: Sequence[UOp], constants: Sequence[float]) -> tuple[Outcome, ...]:
    """The choices for kernels that run in order, and compare with some constants."""
    loaded = {u.src[0].dtype for ast in asts for u in ast.toposort() if u.op is Ops.INDEX}
    styles = [(style, c) for c in constants[:MOST_CONSTANTS] for style in (Mostly.AT, Mostly.ABOVE, Mostly.BELOW)]
    styles += [(Mostly.AT, 1.0), (Mostly.AT, 0.0), (Mostly.SPECIAL, 1.0), (Mostly.RISING, 0.0), (Mostly.FALLING, 0.0)]
    styles += [(Mostly.AT, c) for c in SMALL] + [(Mostly.INVALID, 1.0), (Mostly.INFINITE, 1.0)]
    styles = styles if loaded - {dtypes.bool} else styles[:1]
    truths = (True, False) if dtypes.bool in loaded else (True,)
    lengths = sorted({length for ast in asts for length in reduced(ast)}, reverse=True) or [1]
    every = [Outcome(*style, truth, n) for n in (lengths[0], lengths[-1]) for style in styles for truth in truths]
    return tuple(itertools.islice(dict.fromkeys(every), MOST_OUTCOMES))


def reduced(ast: UOp) -> tuple[int, int]:
    """How many terms the longest reduction has, alone and with those inside of it; symbolic extents at their most."""
    alone, nested, inside = 1, 1, dict[UOp, int]()
    for node in ast.toposort():
        within = max((inside[s] for s in node.src), default=1)
        if node.op is Ops.REDUCE:
            own = math.prod(int(r.vmax) + 1 for r in node.src[1:])
            within *= own
            alone, nested = max(alone, own), max(nested, within)
        inside[node] = within
    return alone, nested


def booleans(outcome: Outcome, count: int, rng: np.random.Generator) -> Array:
    """`count` truths."""
    return np.asarray(outcome.others(count, rng) != outcome.truth)


def numbers(outcome: Outcome, count: int, rng: np.random.Generator, *, whole: bool = False) -> Array:
    """`count` numbers, float64; `whole` ones for a buffer of integers."""
    base, is_other = outcome.base(whole=whole), outcome.others(count, rng)
    near = [outcome.constant + by for by in (-2.0, -1.0, 0.0, 1.0, 2.0)]
    others = SPECIAL if outcome.style is Mostly.SPECIAL and not whole else (*OTHERS, *near)
    different = {float(np.trunc(other)) if whole else other for other in others} - {base}
    found: Array = np.where(is_other, rng.choice(np.array(sorted(different)), count), base)
    return found


def factors(length: int, highest: int, count: int, rng: np.random.Generator) -> Array:
    """`count` numbers of which neither a product of `length`, nor one of those among them that are above 1, is beyond
    2^`highest`."""
    spread = min(FACTOR_SPREAD / math.sqrt(length), highest / length)
    signs = np.where(rng.random(count) < 0.5, -1.0, 1.0)
    drawn: Array = signs * np.exp2(rng.standard_normal(count) * spread)
    return drawn
