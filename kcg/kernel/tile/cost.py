"""What a tile program takes, in seconds, from its plan and figures of the target: no program is compiled.

What a form's programs take of a multiprocessor is in its plan; how that adds up is in `plan.py`.
"""

from __future__ import annotations

from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.device import Figures
from kcg.kernel.tile.forms import plan_of
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.plan import seconds
from kcg.types import Target


def predicted_seconds(kernel: TileKernel, target: Target, p: TileParameters, figures: Figures | None = None) -> float:
    """What a program takes, launches included. Raises UnsupportedTile where there is none."""
    return seconds(plan_of(kernel, target, p), target, figures)
