"""What a tile program is expected to take and what it is like, as predictors ask it (`kcg.kernel.kinds.HasCost`)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np

from kcg.kernel.kinds import Cost
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.forms import form_of
from kcg.kernel.tile.parameters import PRECISIONS, TMA, TileParameters
from kcg.types import Target

Array = np.ndarray[Any, Any]

SUSPICIOUS: dict[tuple[str, Any], float] = {("fast_math", True): 8.0, ("warp_specialize", True): 8.0}
"""How much more than others these parameters are suspected: they are known to make wrong programs."""
_NAMES = tuple(field.name for field in fields(TileParameters))
AXES = 2  # of a tile, as embeddings count them


def cost_of(kernel: TileKernel, target: Target, p: TileParameters) -> Cost:
    """The analytic cost of parameters."""
    return Cost(predicted_seconds(kernel, target, p), form_of(p).uncertainty, embedding(p))


@lru_cache(1 << 16)
def suspects(p: TileParameters) -> Mapping[Hashable, float]:
    """Each parameter's value, and how much it is suspected."""
    values = ((name, getattr(p, name)) for name in _NAMES)
    return {value: SUSPICIOUS.get(value, 1.0) for value in values}


def embedding(p: TileParameters) -> Array:
    """Parameters as numbers in which neighbours are near."""
    tile = (*p.tile, *(1,) * AXES)[:AXES]
    sizes = (*tile, max(1, math.prod(p.tile) // math.prod(tile)), max(1, p.reduce_tile), p.split, p.tail, p.num_warps)
    flags = (
        p.loads == TMA,
        p.persistent,
        p.epilogue_parts - 1,
        p.warp_specialize,
        p.maxnreg > 0,
        bool(p.evict_first),
        bool(p.evict_last),
        p.precision != PRECISIONS[0],
        p.fast_math,
        p.read_early,
        form_of(p).in_gluon,
    )
    return np.array([*(math.log2(x) for x in sizes), p.num_stages, math.log2(p.group) / 2, *flags], np.float32)
