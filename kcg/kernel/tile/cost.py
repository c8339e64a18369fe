"""What a tile program takes, in seconds, from its parameters and figures of the target: no program is compiled.

What a form's programs take of a multiprocessor is in the form's own file; here is what all of them take beside that.
"""

from __future__ import annotations

from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.device import Figures, figures_of
from kcg.kernel.tile.estimates import LAUNCH_S
from kcg.kernel.tile.forms import form_of
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.plan import seconds as seconds_of
from kcg.types import Target

UNTRIED = 0.005
"""What an eviction policy (a reduction's first ones aside), a limit of registers or loads ahead in a loop over rows
cost until it is measured: what is known to matter comes first."""


def predicted_seconds(kernel: TileKernel, target: Target, p: TileParameters, figures: Figures | None = None) -> float:
    """What a program takes, launches included."""
    figures, form = figures or figures_of(target), form_of(p)
    if form.plans:
        return seconds_of(form.plan(form.view(kernel), target, p), target, figures)
    seconds = form.seconds(kernel, target, p, figures)
    if p.split > 1:
        partials = 4 * p.split * form.partials_of(kernel)
        seconds += LAUNCH_S / 2 + 2 * partials / figures.partial_bytes
    untried = bool(p.evict_last) + bool(p.maxnreg) + form.is_untried(p)
    return LAUNCH_S + seconds * (1 + UNTRIED * untried)
