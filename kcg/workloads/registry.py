"""The workloads that kcg knows by name, each with its presets. Models are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kcg.errors import UnknownName
from kcg.types import Workload


@dataclass(frozen=True)
class WorkloadSpec:
    """How to make a workload: its presets, which one a device gets by default, and the function that captures it."""

    name: str
    about: str
    presets: tuple[str, ...]
    auto_preset: Callable[[str], str]  # device, e.g. "CPU" -> preset
    capture: Callable[[str], Workload]


def _flux(preset: str) -> Workload:
    from kcg.workloads import flux
    from kcg.workloads.capture import lazy_workload

    model, inputs = flux.build(preset)
    return lazy_workload("flux", preset, flux.step(model, inputs))


WORKLOADS: dict[str, WorkloadSpec] = {
    spec.name: spec
    for spec in (
        WorkloadSpec(
            name="flux",
            about="one denoising step of Flux.1-dev",
            presets=("mini", "768", "1024"),
            auto_preset=lambda device: "mini" if device == "CPU" else "1024",
            capture=_flux,
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
