"""The analytic prior: the parameters that a kernel starts with on a target.

What each form starts with is in its own file, by rules that others measured on Hopper.
"""

from __future__ import annotations

from kcg.compat.tiny import dtypes
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.device import device_of
from kcg.kernel.tile.form import Axes
from kcg.kernel.tile.forms import REGISTRY, forms_of
from kcg.kernel.tile.parameters import TileParameters
from kcg.types import Target


def default_parameters(kernel: TileKernel, target: Target) -> TileParameters:
    """The prior's choice. Raises UnsupportedTile where the kernel has no tile program."""
    fp8 = dtypes.fp8e4m3
    if not device_of(target).multiplies(fp8.name) and any(buffer.dtype is fp8 for buffer in kernel.buffers):
        raise UnsupportedTile("data type fp8e4m3", "tile programs have it where tensor cores multiply it")
    form = max(reversed(forms_of(kernel, target)), key=lambda one: one.preference(one.view(kernel), target))
    view = form.view(kernel)
    return parameters_of(kernel, target, form.name, form.axes(view)[0])


def parameters_of(kernel: TileKernel, target: Target, form: str, axes: Axes) -> TileParameters:
    """The prior's choice among the programs of one form whose tile has these axes."""
    made: TileParameters = REGISTRY[form].start(REGISTRY[form].view(kernel), target, axes)
    return made
