"""What follows from why a row was measured: whether it may be reported on, and what it weighs in training.

A cost or a search chose what it expected to be fast, and a figure over such rows says how well that went, not how fast
schedules are. So these rows train only. There each weighs what one draw of all of its pool, each as likely, would weigh
over the probability with which it was chosen (inverse propensity: Horvitz and Thompson, 1952), clipped, since what is
chosen for sure out of thousands would else weigh nothing (Strehl et al., 2010).
"""

from __future__ import annotations

import re
from typing import Final

from kcg.types import Status

HAND_CODED: Final = "hand-coded"  # the sampler of tinygrad's own choice
UNIFORM: Final = "uniform"  # the sampler of what is drawn from all legal schedules
LEGAL: Final = "legal"  # the pool of all legal schedules, each as likely
FOUND: Final = "found"  # the pool of what is measured since it was found before, as finalists
UNTOLD: Final = "untold"  # the pool of what a run chose that did not say from what
CLIP: Final = 10.0  # a chosen row weighs so many times as much, or as little, as others at most
_LIMIT: Final = re.compile(r"no result within ([0-9.e+-]+) s")  # how a job is ended that takes too long


def is_uniform(pool: str) -> bool:
    """Whether a pool is all legal schedules, of which each is as likely."""
    return pool.partition(":")[0] == LEGAL


def is_chosen(pool: str) -> bool:
    """Whether a cost or a search chose from a pool. Of rows that do not say nobody can tell: they count as others."""
    return bool(pool) and not is_uniform(pool)


def weight_of(pool: str, probability: float | None) -> float:
    """What a row weighs in training, where one that was not chosen weighs 1."""
    if not is_chosen(pool):
        return 1.0
    size = pool.split(":")[1] if ":" in pool else ""
    if not probability or not size.isdecimal() or not int(size):
        return 1.0 / CLIP  # as what is chosen for sure out of many
    return min(max(1.0 / (probability * int(size)), 1.0 / CLIP), CLIP)


def at_least_s(status: str, reason: str) -> float | None:
    """Of what took too long and was ended the seconds after which that was: of its inputs, its checks and its launches
    together. None of all else. What was abandoned has its one sample."""
    found = _LIMIT.search(reason) if status == Status.TIMEOUT else None
    return float(found[1]) if found is not None else None
