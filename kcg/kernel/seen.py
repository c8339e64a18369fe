"""What a predictor sees of a schedule that is no loop nest: a plan as a small graph of numbers.

Its nodes are the axes of a plan, its loads and stores, and the groups of operations that it computes together; every
axis has an edge to every load, store and group. Which numbers stand for what, a kind says by their names (`Words`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Words:
    """The names of all numbers, in their order. What was learned of others is not read."""

    axes: tuple[str, ...]
    accesses: tuple[str, ...]
    groups: tuple[str, ...]
    access_edges: tuple[str, ...]
    group_edges: tuple[str, ...]
    whole: tuple[str, ...]
    version: int  # changes where numbers of the same names mean something else


@dataclass(frozen=True)
class Seen:
    """One schedule, float32. Edges are in the order of the axes, and for each axis in that of the others."""

    axes: Array  # (a, features)
    accesses: Array  # (m, features)
    groups: Array  # (g, features)
    access_edges: Array  # (a * m, features)
    group_edges: Array  # (a * g, features)
    whole: Array  # (features,)
    log_s: float  # natural logarithm of the seconds that it takes by its kind's own formula
