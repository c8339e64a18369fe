"""Axes of pictures: where a value stands between 0 and 1, and which values are written beside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

TICKS = 8  # at most, of a linear axis
UNITS = ((0, "s"), (-3, "ms"), (-6, "µs"), (-9, "ns"))


@dataclass(frozen=True)
class Axis:
    """`place` gives 0 at the axis's begin and 1 at its end; `ticks` are values and their words."""

    place: Callable[[float], float]
    ticks: list[tuple[float, str]]


def seconds_axis(values: Iterable[float]) -> Axis:
    """Logarithmic, whole decades around `values`, which are seconds."""
    values = list(values) or [1e-6]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    return Axis(lambda v: (math.log10(v) - low) / (high - low), [(10.0**p, _decade(p)) for p in range(low, high + 1)])


def rate_axis(values: Iterable[float]) -> Axis:
    """Linear from 0 to the first tick that is not below `values`, which are GB/s."""
    most = max(values, default=1.0)
    steps = (factor * 10.0**power for power in range(-3, 9) for factor in (1, 2, 5))
    step = next(step for step in steps if most / step <= TICKS)
    count = math.ceil(most / step)
    return Axis(lambda v: v / (step * count), [(step * i, f"{step * i:,g}") for i in range(count + 1)])


def ratio_axis(values: Iterable[float]) -> Axis:
    """Logarithmic, with 1 and ticks at 1, 2 and 5 of each decade around `values`, which are quotients."""
    values = [1.0, *values]
    ticks = [factor * 10.0**power for power in range(-6, 7) for factor in (1, 2, 5)]
    low = max(tick for tick in ticks if tick <= min(values))
    high = min(tick for tick in ticks if tick >= max(values) and tick > low)
    shown = [(tick, f"{tick:g}×") for tick in ticks if low <= tick <= high]
    return Axis(lambda v: math.log(v / low) / math.log(high / low), shown)


def _decade(power: int) -> str:
    least, unit = next((u for u in UNITS if power >= u[0]), UNITS[-1])
    return f"{10.0 ** (power - least):g} {unit}"
