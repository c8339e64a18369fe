"""What both processes have in common: steps in blocks, what the GPU used meanwhile, and outputs in files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evaluation.pytorch.serving import Command

WEIGHTS, INPUTS, REFERENCE = "weights.safetensors", "inputs.npz", "reference.npy"
WARM_UPS = 2
EXACT = {"timestep": 0.5, "guidance": 4.0}
"""Inputs that bfloat16 has as they are, also 1,000 times as large. diffusers' model multiplies in bfloat16, and so does
PyTorch one operation after the other, where its compiler, like kcg, keeps float32: a timestep of 0.6 and a guidance of
3.5 alone put outputs .55 of their size away from those of float32, where the compiled ones were .012.
"""


class Meter:
    """NVML of the GPU that this process has open."""

    def __init__(self) -> None:
        import pynvml

        from kcg.compat.hardware import cuda_bus_id

        self._nvml: Any = pynvml
        self._nvml.nvmlInit()
        self._gpu = self._nvml.nvmlDeviceGetHandleByPciBusId(cuda_bus_id())

    def joules(self) -> float | None:
        """What it used since its driver was loaded; None where it does not count."""
        return self._told(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu) / 1000)

    def about(self) -> dict[str, Any]:
        """The GPU, and what limits it."""
        nvml, gpu = self._nvml, self._gpu
        return {
            "gpu": self._told(lambda: nvml.nvmlDeviceGetName(gpu)),
            "uuid": self._told(lambda: nvml.nvmlDeviceGetUUID(gpu)),
            "driver": self._told(nvml.nvmlSystemGetDriverVersion),
            "power_limit_w": self._told(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000),
        }

    def now(self) -> dict[str, Any]:
        """Its clock, temperature and memory in use, of all processes."""
        nvml, gpu = self._nvml, self._gpu
        return {
            "sm_mhz": self._told(lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
            "temperature_c": self._told(lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
            "memory_bytes": self._told(lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).used),
        }

    def _told(self, query: Callable[[], Any]) -> Any:
        try:
            return query()
        except self._nvml.NVMLError:
            return None


class NoMeter:
    """On a CPU."""

    def joules(self) -> float | None:
        return None

    def about(self) -> dict[str, Any]:
        return {"gpu": None, "uuid": "CPU", "driver": None, "power_limit_w": None}

    def now(self) -> dict[str, Any]:
        return {}


class Steps(Protocol):
    """The steps of one library, all contenders of which share their weights."""

    def load(self, folder: Path) -> None:
        """Have the weights and inputs of a folder, or make and write them."""
        ...

    def ready(self, name: str, settings: Mapping[str, Any]) -> tuple[Callable[[], object], dict[str, Any]]:
        """A contender's step, and what there is to say of it."""
        ...

    def output(self, call: Callable[[], object]) -> NDArray[np.float32]:
        """What a step gives."""
        ...

    def in_a_row_s(self, call: Callable[[], object], count: int) -> list[float]:
        """Seconds of each of so many steps that follow each other."""
        ...

    def peak_bytes(self) -> int | None:
        """Of the process on the device, since it was last asked."""
        ...

    def reference(self) -> NDArray[np.float32]:
        """What a step in float32 gives. Raises NotImplementedError where the other library says."""
        ...


def commands_of(steps: Steps, meter: Meter | NoMeter) -> Mapping[str, Command]:
    """What a process answers."""
    calls: dict[str, Callable[[], object]] = {}

    def load(order: dict[str, Any]) -> dict[str, Any]:
        begin = time.perf_counter()
        steps.load(Path(order["folder"]))
        return {"load_s": time.perf_counter() - begin}

    def reference(order: dict[str, Any]) -> dict[str, Any]:
        np.save(Path(order["folder"]) / REFERENCE, steps.reference())
        return {}

    def ready(order: dict[str, Any]) -> dict[str, Any]:
        name, begin = order["name"], time.perf_counter()
        call, facts = steps.ready(name, order)
        steps.in_a_row_s(call, 1)
        ready_s = time.perf_counter() - begin
        steps.in_a_row_s(call, WARM_UPS)
        np.save(Path(order["folder"]) / f"{name}.npy", steps.output(call))
        calls[name] = call
        return {"ready_s": ready_s, **facts}

    def block(order: dict[str, Any]) -> dict[str, Any]:
        call, count = calls[order["name"]], int(order["steps"])
        steps.peak_bytes()
        before, begin = meter.joules(), time.perf_counter()
        seconds = steps.in_a_row_s(call, count)
        wall_s, after = time.perf_counter() - begin, meter.joules()
        used = None if before is None or after is None else (after - before) / count
        return {
            "seconds": seconds,
            "wall_s": wall_s / count,
            "joules": used,
            "peak_bytes": steps.peak_bytes(),
            **meter.now(),
        }

    return {
        "about": lambda order: meter.about(),
        "load": load,
        "reference": reference,
        "ready": ready,
        "block": block,
    }
