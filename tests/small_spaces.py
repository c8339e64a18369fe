"""A small space of every kind, and times that are made up, of each program alone."""

from __future__ import annotations

import math
import random
from functools import cache

from tinygrad import Tensor

from kcg.kernel.kinds import Space, space_of
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.tile.space import TileSpace
from kcg.search.workers import FromItsStart
from kcg.types import Region, Schedule
from tests.chains import region_of
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS

SM_90 = KNOWN_TARGETS["sm_90"]
KINDS = ("opts", "tile", "tile of several kernels", "parts")


def total(rows: int, width: int) -> Tensor:
    return empty(rows, width).sum(1)


def tiles(region: Region) -> Space:
    """What a search sees of tile programs, which no compiler is needed for."""
    return FromItsStart(TileSpace(region, SM_90, read_region(region)))


@cache
def space_named(kind: str) -> Space:
    """10 to 60 programs each."""
    if kind == "opts":
        return space_of(region_of(total(2, 6)), SM_90)
    if kind == "tile":
        return tiles(region_of(total(4, 16)))
    if kind == "parts":
        return space_of(region_of(empty(2, 8).softmax().contiguous()), SM_90)
    return tiles(region_of(empty(6, 48).layernorm().contiguous()))


@cache
def programs(kind: str) -> dict[str, Schedule]:
    """All that steps lead to, by key."""
    space = space_named(kind)
    found = {space.key(one): one for one in (space.baseline(), space.start())}
    queue = list(found.values())
    for schedule in queue:
        for action in space.actions(schedule):
            if (key := space.key(action.schedule)) not in found:
                found[key] = action.schedule
                queue.append(action.schedule)
    return found


def time_s(key: str) -> float:
    return 1e-4 * math.exp(random.Random(key).gauss(0.0, 0.5))
