"""The workloads that kcg knows by name, each with its presets. Models are imported when they are asked for.

Every module of `kcg.workloads.zoo` is a workload (`kcg.workloads.family` says what is in one). Beside them stand Flux,
which also loads published weights, and a language model, whose weights are packed.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.errors import UnknownName, UsageError
from kcg.types import Workload

if TYPE_CHECKING:
    from tinygrad import Tensor

    from kcg.compat.tiny import UOp
    from kcg.workloads.family import Step

CPU_PREFIX = "mini"  # of the presets that suit a CPU


@dataclass(frozen=True)
class Published:
    """The published weights of a workload: a file, or a repository that is known by name."""

    check: Callable[[str, str, bool], None]  # preset, weights, whether to download them; raises WeightsError
    runnable: Callable[[str, int, str], Step]  # as of `WorkloadSpec`, with these weights


@dataclass(frozen=True)
class WorkloadSpec:
    """How to make a workload: its presets, which one a device gets by default, and the functions that make it."""

    name: str
    about: str
    presets: tuple[str, ...]
    auto_preset: Callable[[str], str]  # device, e.g. "CPU" -> preset
    capture: Callable[[str], Workload]
    runnable: Callable[[str, int], Step] | None = None  # preset, seed -> the same program, ready to run
    plan: Callable[[str], UOp] | None = None  # schedules it as a whole, on nothing: its calls; tinygrad knows them then
    published: Published | None = None
    weights_bytes: Callable[[str], int] | None = None  # preset -> what its parameters take, where that is known

    def presets_for(self, device: str) -> tuple[str, ...]:
        """All presets that suit a device."""
        on_cpu = device.startswith("CPU")
        return tuple(p for p in self.presets if p.startswith(CPU_PREFIX) == on_cpu)


def _flux() -> WorkloadSpec:
    from kcg.workloads import flux, flux_weights
    from kcg.workloads.capture import of_repeated, step_workload

    def capture(preset: str) -> Workload:
        def with_blocks(double: int, single: int) -> Workload:
            def build() -> tuple[tuple[Tensor], dict[str, Tensor]]:
                model, inputs = flux.build(preset, double_blocks=double, single_blocks=single)
                return (flux.step(model, inputs),), model.parameters

            return step_workload("flux", preset, build)

        config = flux.flux_config(preset)
        return of_repeated(with_blocks, config.double_blocks, config.single_blocks)

    def plan(preset: str) -> UOp:
        model, inputs = flux.build(preset)
        calls: UOp = flux.step(model, inputs).linear_with_vars()[0]
        return calls

    def check(preset: str, published: str, download: bool) -> None:
        model, _ = flux.build(preset)
        if published in flux_weights.REPOSITORIES and not download:
            flux_weights.check_repository(model, published)
        else:
            flux_weights.weights_file(model, published)

    def step(preset: str, seed: int, published: str = "") -> Step:
        from kcg.workloads.family import Step

        model, _ = flux.build(preset)
        if published:
            flux_weights.load_weights(model, published)
        else:
            flux_weights.random_weights(model, seed)
        inputs = flux_weights.random_inputs(model.config, seed + 1)
        varied = {name: inputs.pop(name) for name in ("img", "txt", "y")}
        return Step(varied, functools.partial(model, **inputs))

    def weights_bytes(preset: str) -> int:
        from math import prod

        from tinygrad import dtypes

        config = flux.flux_config(preset)
        itemsize: int = getattr(dtypes, config.dtype).itemsize
        return itemsize * sum(map(prod, flux.parameter_shapes(config).values()))

    about, presets = "one denoising step of Flux.1-dev", tuple(flux.PRESETS)
    loaded = Published(check, step)
    return WorkloadSpec("flux", about, presets, flux.auto_preset, capture, step, plan, loaded, weights_bytes)


def _llm() -> WorkloadSpec:
    from kcg.workloads import llm

    def capture(preset: str) -> Workload:
        from kcg.workloads.capture import step_workload

        return step_workload("llm", preset, functools.partial(llm.build, llm.llm_config(preset)))

    def plan(preset: str) -> UOp:
        (token,), _ = llm.build(llm.llm_config(preset))
        calls: UOp = token.linear_with_vars()[0]
        return calls

    return WorkloadSpec(
        name="llm",
        about="a token, or a piece of a prompt, of a language model with packed weights",
        presets=tuple(llm.PRESETS),
        auto_preset=llm.auto_preset,
        capture=capture,
        runnable=lambda preset, seed: llm.runnable(llm.llm_config(preset), seed),
        plan=plan,
        weights_bytes=lambda preset: llm.weights_bytes(llm.llm_config(preset)),
    )


def _of_the_zoo(name: str) -> WorkloadSpec:
    from kcg.workloads import family

    module: Any = importlib.import_module(f"kcg.workloads.zoo.{name}")
    presets = tuple(module.PRESETS)
    mini, default = (next(p for p in presets if p.startswith(CPU_PREFIX) == small) for small in (True, False))
    in_place = getattr(module, "IN_PLACE", False)
    return WorkloadSpec(
        name=name,
        about=module.ABOUT,
        presets=presets,
        auto_preset=lambda device: mini if device.startswith("CPU") else default,
        capture=functools.partial(family.capture, module, name),
        runnable=None if in_place else functools.partial(family.runnable, module),
    )


WORKLOADS: dict[str, Callable[[], WorkloadSpec]] = {
    "flux": _flux,
    "llm": _llm,
    **{
        found.name: functools.partial(_of_the_zoo, found.name)
        for found in pkgutil.iter_modules([str(Path(__file__).parent / "zoo")])
    },
}
"""Name -> what makes its spec, which imports the model."""


@functools.cache
def spec_of(name: str) -> WorkloadSpec:
    """The workload of that name. Raises UnknownName."""
    if name not in WORKLOADS:
        raise UnknownName("workload", name, list(WORKLOADS))
    return WORKLOADS[name]()


def find(name: str, preset: str, device: str) -> tuple[WorkloadSpec, str]:
    """The workload of that name and the preset that `preset` means on `device`. Raises UnknownName."""
    spec = spec_of(name)
    chosen = spec.auto_preset(device) if preset == "auto" else preset
    if chosen not in spec.presets:
        raise UnknownName(f"preset of {name}", chosen, [*spec.presets, "auto"])
    return spec, chosen


def named_preset(text: str, preset: str = "auto") -> tuple[str, str]:
    """Name and preset of what a user calls `flux/mini`, or `flux` with `preset`; the path of a program stays whole.

    Raises UsageError where both name a preset, and not the same.
    """
    name, slash, own = text.partition("/")
    is_path = text.startswith(("/", ".")) or Path(text).suffix or Path(text).exists()
    if not slash or (name not in WORKLOADS and is_path):
        return text, preset
    if preset not in ("auto", own):
        raise UsageError(f"{text} and --preset {preset}: name one preset")
    return name, own


def completions(typed: str) -> list[str]:
    """What a workload's name may be that begins so; presets where the workload is clear, since that imports it."""
    name, slash, _ = typed.partition("/")
    names = [name] if slash and name in WORKLOADS else [one for one in WORKLOADS if one.startswith(typed)]
    presets = [f"{one}/{preset}" for one in names for preset in spec_of(one).presets] if len(names) == 1 else []
    return [one for one in (*names, *presets) if one.startswith(typed)]
