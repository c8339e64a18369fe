"""Tile programs in words by their parameters: names for tables, labels of steps. What a program does, its plan says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from kcg.cli import counted
from kcg.kernel.tile.forms import form_of
from kcg.kernel.tile.legal import FIELDS
from kcg.kernel.tile.parameters import LISTS, TMA, TileParameters

DEFAULTS = {f.name: f.default for f in fields(TileParameters)}


def described(p: TileParameters) -> str:
    """`tile 128x256x64, tma, persistent, 8 warps, 3 stages`; whatever is not the usual is said."""
    form, sizes = form_of(p), [*p.tile, *([p.reduce_tile] if p.reduce_tile else [])]
    parts = [
        f"tile {'x'.join(map(str, sizes)) or '1'}",
        "" if form.is_usual else form.noun,
        axes_text(p.axes),
    ]
    parts += [TMA if p.loads == TMA else ""]
    parts += [f"persistent{f' x{p.persistent}' if p.persistent > 1 else ''}" if p.persistent else ""]
    parts += ["epilogue in halves" if p.epilogue_parts > 1 else "", "warp specialised" if p.warp_specialize else ""]
    parts += [f"stream-K {p.tail}" if p.tail > 1 else ""]
    parts += [f"split-K {p.split}" if p.split > 1 else "", f"swizzle {p.group}" if p.group > 1 else ""]
    parts += [
        counted(p.num_warps, "warp"),
        counted(p.num_stages, "stage") if form.has_stages or p.num_stages > 1 else "",
    ]
    parts += ["epilogue prefetched" if p.read_early else ""]
    parts += [f"loads {_listed(p.evict_first)} evicted first" if p.evict_first else ""]
    parts += [f"loads {_listed(p.evict_last)} evicted last" if p.evict_last else ""]
    parts += [f"{p.maxnreg} registers" if p.maxnreg else "", "" if p.fast_math else "exact functions"]
    parts += [p.precision if p.precision != DEFAULTS["precision"] else ""]
    return ", ".join(part for part in parts if part)


def axes_text(axes: Sequence[Sequence[int]]) -> str:
    """`axes 0.1|2`: the ranges of each axis of the tile."""
    return f"axes {'|'.join('.'.join(map(str, axis)) for axis in axes)}" if axes else ""


def label(field: str, value: Any) -> str:
    """A step: the parameter, a comma and its value, so that steps of one parameter are the same with another amount."""
    if field == "axes":
        form, axes = value
        return f"axes,{form}:{axes_text(axes)[5:]}"
    if field in LISTS:
        return f"{field},{_listed(value) or 'none'}"
    text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{field},{text or '1'}"


def _listed(loads: Sequence[int]) -> str:
    return "+".join(map(str, loads))


def labels(p: TileParameters) -> tuple[str, ...]:
    """The label of every parameter, in the order in which a search sets them."""
    return (label("axes", (p.form, p.axes)), *(label(field, getattr(p, field)) for field in FIELDS))
