"""The process that runs Flux in PyTorch: diffusers' transformer on kcg's weights, by several modes.

All contenders share their parameters, but for what a mode itself joins. Inductor's flags of the recipe are set for
good, so it is made ready last.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from evaluation.flux.equal.blocks import INPUTS, WEIGHTS, Meter, NoMeter, commands_of
from evaluation.flux.in_pytorch import build_model, compiled, velocity_of
from evaluation.flux.weights import diffusers_inputs, diffusers_state
from evaluation.pytorch.serving import answering
from kcg.workloads.flux import flux_config

Call = Callable[[], object]


class TorchSteps:
    """See `blocks.Steps`."""

    def __init__(self, preset: str, device: str) -> None:
        self.config, self.device = flux_config(preset), device
        self.dtype: torch.dtype = getattr(torch, self.config.dtype)
        self.model: Any = None
        self.inputs: dict[str, torch.Tensor] = {}

    def load(self, folder: Path) -> None:
        state = diffusers_state(load_file(folder / WEIGHTS, device=self.device), self.config)
        self.model = build_model(self.config, "meta")
        self.model.load_state_dict(state, strict=True, assign=True)
        self.model.requires_grad_(False)
        with np.load(folder / INPUTS) as drawn:
            given = diffusers_inputs({name: drawn[name] for name in drawn.files})
        for name, value in given.items():
            made = torch.from_numpy(value).to(self.device)
            self.inputs[name] = made if name.endswith("_ids") else made.to(self.dtype)

    def reference(self) -> NDArray[np.float32]:
        """The same layers on the same numbers in float32, a layer's weights at a time."""
        model = copy.deepcopy(self.model, {id(one): one for one in self.model.parameters()})
        inputs = {name: value.float() for name, value in self.inputs.items()}
        with torch.no_grad(), _in_float32(model):
            return self.output(lambda: velocity_of(model)(**inputs))

    def ready(self, name: str, settings: Mapping[str, Any]) -> tuple[Call, dict[str, Any]]:
        function: Any = velocity_of(self.model)
        if name != "eager":
            own = name.startswith(("max-autotune", "recipe"))  # what is compiled in place is a copy
            model = copy.deepcopy(self.model, {id(one): one for one in self.model.parameters()}) if own else self.model
            function = compiled(velocity_of(model), name)

        def call() -> object:
            with torch.no_grad():
                return function(**self.inputs)

        return call, {"torch": torch.__version__}

    def output(self, call: Call) -> NDArray[np.float32]:
        found = call()
        assert isinstance(found, torch.Tensor)
        values: NDArray[np.float32] = found.detach().float().cpu().numpy()
        return values

    def in_a_row_s(self, call: Call, count: int) -> list[float]:
        if self.device == "cpu":
            seconds = []
            for _ in range(count):
                begin = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - begin)
            return seconds
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        torch.cuda.synchronize()
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e-3 for a, b in itertools.pairwise(events)]

    def peak_bytes(self) -> int | None:
        if self.device == "cpu":
            return None
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return int(peak)


@contextmanager
def _in_float32(model: Any) -> Iterator[None]:
    """Inside, each layer's parameters are float32 while it runs."""
    hooks = []
    kept: dict[tuple[int, str], torch.Tensor] = {}

    def widen(module: Any, _: object) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            kept[id(module), name] = parameter.data
            setattr(module, name, torch.nn.Parameter(parameter.data.float(), requires_grad=False))

    def narrow(module: Any, *_: object) -> None:
        for name, _parameter in [*module.named_parameters(recurse=False)]:
            setattr(module, name, torch.nn.Parameter(kept.pop((id(module), name)), requires_grad=False))

    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            hooks += [module.register_forward_pre_hook(widen), module.register_forward_hook(narrow)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def opened(job: dict[str, Any]) -> Any:
    """The commands, once the device is open."""
    on_cpu = job["dev"].startswith("CPU")
    steps = TorchSteps(job["preset"], "cpu" if on_cpu else "cuda")
    if not on_cpu:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
    return commands_of(steps, NoMeter() if on_cpu else Meter())


if __name__ == "__main__":
    answering(opened)
