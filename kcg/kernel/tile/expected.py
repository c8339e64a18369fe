"""What a tile program is expected to take and what it is like, as predictors ask it (`kcg.kernel.kinds.HasCost`)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from kcg.kernel.kinds import Cost
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.forms import form_of, plan_of
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.plan import features, seconds
from kcg.types import Target

SUSPICIOUS: dict[tuple[str, Any], float] = {("fast_math", True): 8.0, ("warp_specialize", True): 8.0}
"""How much more than others these parameters are suspected: they are known to make wrong programs."""
_NAMES = tuple(field.name for field in fields(TileParameters))


def cost_of(kernel: TileKernel, target: Target, p: TileParameters) -> Cost:
    """The analytic cost of parameters. Raises UnsupportedTile where there is no such program."""
    plan = plan_of(kernel, target, p)
    return Cost(seconds(plan, target), form_of(p).uncertainty, features(plan))


@lru_cache(1 << 16)
def suspects(p: TileParameters) -> Mapping[Hashable, float]:
    """Each parameter's value, and how much it is suspected."""
    values = ((name, getattr(p, name)) for name in _NAMES)
    return {value: SUSPICIOUS.get(value, 1.0) for value in values}
