"""The values that each parameter of a tile program may take for a kernel on a target, given those before it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.device import device_of
from kcg.kernel.tile.form import LEAST
from kcg.kernel.tile.forms import form_of, forms_of, plan_of
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.plan import fits
from kcg.types import Target

FIELDS = (
    "unpacked", "tile", "reduce_tile", "num_warps", "split", "loads", "persistent", "tail", "epilogue_parts",
    "num_stages", "warp_specialize", "group", "read_early", "evict_first", "evict_last", "maxnreg", "fast_math",
    "precision",
)  # fmt: skip
"""In the order in which a search sets them, after form and axes: what decides most and what others depend on first."""

SIZES = 5
"""So many of them are sizes that all else is worked out from."""

NVIDIAS: dict[str, Any] = {"evict_first": (), "evict_last": (), "maxnreg": 0, "fast_math": True, "precision": "ieee"}
"""What Triton has for NVIDIA's GPUs alone, and what it is elsewhere."""

ALONE = ("warp_specialize", "read_early", "evict_first", "evict_last")
"""What a matmul's programs have that are all of one kernel."""


def legal_values(kernel: TileKernel, target: Target, parameters: TileParameters, field: str) -> tuple[Any, ...]:
    """The values of one field of FIELDS that are legal with those before it as they are and some of those after it."""
    least = _asking_least(parameters, field)
    return tuple(
        value for value in _candidates(kernel, target, least, field) if _may_fit(kernel, target, least, field, value)
    )


def is_possible(kernel: TileKernel, target: Target, parameters: TileParameters, field: str, value: Any) -> bool:
    """Whether a value is among `legal_values`, of which no other is looked at."""
    least = _asking_least(parameters, field)
    return value in _candidates(kernel, target, least, field) and _may_fit(kernel, target, least, field, value)


def _asking_least(parameters: TileParameters, field: str) -> TileParameters:
    """With what asks for least of a target in all fields after one."""
    later, form = FIELDS[FIELDS.index(field) + 1 :], form_of(parameters)
    least = {name: form.fixed[name][0] if name in form.fixed else LEAST[name] for name in later if name in LEAST}
    if "epilogue_parts" in least:
        least["epilogue_parts"] = form.least_parts(parameters.tile)
    return parameters.changed(**least)


def _may_fit(kernel: TileKernel, target: Target, least: TileParameters, field: str, value: Any) -> bool:
    """Whether a value fits with some of the sizes after it, and all else as it asks for least."""
    made, later = least.changed(**{field: value}), FIELDS[FIELDS.index(field) + 1 :]
    form = form_of(made)
    if field == "tile":
        made = made.changed(epilogue_parts=form.least_parts(value))
    if "reduce_tile" in later:
        made = made.changed(reduce_tile=min(form.steps(form.view(kernel))))
    warps = form.warps(device_of(target)) if "num_warps" in later else (made.num_warps,)
    return any(_fits(kernel, target, made.changed(num_warps=count)) for count in warps)


def is_legal(kernel: TileKernel, target: Target, parameters: TileParameters) -> bool:
    """Whether each value is a candidate, and all of them together are legal."""

    def chosen(fields: Sequence[str]) -> bool:
        return all(getattr(parameters, f) in _candidates(kernel, target, parameters, f) for f in fields)

    return chosen(FIELDS[:SIZES]) and _fits(kernel, target, parameters) and chosen(FIELDS[SIZES:])


def starts(kernel: TileKernel, target: Target) -> tuple[TileParameters, ...]:
    """The prior's choice for each form and each arrangement of axes that has one, the best guess of all first."""
    found = []
    for form in forms_of(kernel, target):
        view = form.view(kernel)
        for axes in form.axes(view):
            with suppress(UnsupportedTile):
                found.append(form.start(view, target, axes))
    return tuple(found)


def random_parameters(kernel: TileKernel, target: Target, rng: Random) -> TileParameters:
    """A program chosen at random, field after field."""
    made = rng.choice(starts(kernel, target))
    for field in FIELDS:
        values = legal_values(kernel, target, made, field)
        made = made.changed(**{field: rng.choice(values or (getattr(made, field),))})
    return made


def _candidates(kernel: TileKernel, target: Target, parameters: TileParameters, field: str) -> tuple[Any, ...]:
    if field in NVIDIAS and not device_of(target).ptx:
        return (NVIDIAS[field],)
    if field in ALONE and kernel.grouped and kernel.contraction is not None:
        return (LEAST[field],)
    form = form_of(parameters)
    found = form.fixed.get(field)
    return form.values(form.view(kernel), target, parameters, field) if found is None else found


def _fits(kernel: TileKernel, target: Target, p: TileParameters) -> bool:
    """Whether registers, shared memory and the loops allow it, and every parameter changes something."""
    try:
        return fits(plan_of(kernel, target, p), device_of(target))
    except UnsupportedTile:
        return False
