"""The workloads that kcg knows by name, each with its presets. Models are imported when they are asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kcg.errors import UnknownName
from kcg.types import Workload

if TYPE_CHECKING:
    from tinygrad import Tensor


@dataclass(frozen=True)
class Step:
    """One execution of a workload on random weights and inputs, all of them realised on the default device.

    Weights are scaled by fan-in (standard deviation `1/sqrt(fan_in)`), so that bfloat16 does not overflow.
    `run(**inputs)` gives the outputs, not realised; it may be called many times and must make the kernels that the
    workload's `capture` yields. How far the output moves when floating inputs change by a rounding unit is measured, so
    at least one is floating (a model that reads only tokens has its embedding table among the inputs), and what is
    exact by nature, such as positions or a timestep, is no input but bound in `run`.
    """

    inputs: dict[str, Tensor]
    run: Callable[..., Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True)
class WorkloadSpec:
    """How to make a workload: its presets, which one a device gets by default, and the functions that make it."""

    name: str
    about: str
    presets: tuple[str, ...]
    auto_preset: Callable[[str], str]  # device, e.g. "CPU" -> preset
    capture: Callable[[str], Workload]
    runnable: Callable[[str, int], Step] | None = None  # preset, seed -> the same program, ready to run


def _flux(preset: str) -> Workload:
    from kcg.workloads import flux
    from kcg.workloads.capture import lazy_workload

    model, inputs = flux.build(preset)
    return lazy_workload("flux", preset, flux.step(model, inputs))


def _flux_step(preset: str, seed: int) -> Step:
    from kcg.workloads import flux, weights

    model, _ = flux.build(preset)
    weights.random_weights(model, seed)
    inputs = weights.random_inputs(model.config, seed + 1)
    varied = {name: inputs.pop(name) for name in ("img", "txt", "y")}
    return Step(varied, functools.partial(model, **inputs))


WORKLOADS: dict[str, WorkloadSpec] = {
    spec.name: spec
    for spec in (
        WorkloadSpec(
            name="flux",
            about="one denoising step of Flux.1-dev",
            presets=("mini", "768", "1024"),
            auto_preset=lambda device: "mini" if device == "CPU" else "1024",
            capture=_flux,
            runnable=_flux_step,
        ),
    )
}


def find(name: str, preset: str, device: str) -> tuple[WorkloadSpec, str]:
    """The workload of that name and the preset that `preset` means on `device`. Raises UnknownName."""
    if name not in WORKLOADS:
        raise UnknownName("workload", name, list(WORKLOADS))
    spec = WORKLOADS[name]
    chosen = spec.auto_preset(device) if preset == "auto" else preset
    if chosen not in spec.presets:
        raise UnknownName(f"preset of {name}", chosen, [*spec.presets, "auto"])
    return spec, chosen
