"""What is checked as a whole at the end of a run: its model, its script or its function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kcg.judge import whole_model
from kcg.judge.whole_function import Function
from kcg.judge.whole_model import Model
from kcg.judge.whole_script import Script

if TYPE_CHECKING:
    from kcg.judge.whole import Runner
    from kcg.optimize.device import Device
    from kcg.optimize.settings import Settings
    from kcg.optimize.work import Captured, RegionWork


def is_runnable(settings: Settings, workload: str) -> bool:
    """Whether the workload is one that kcg can run as a whole model."""
    return not settings.is_script and whole_model.is_runnable(workload)


def runner_of(settings: Settings, captured: Captured, device: Device, works: Sequence[RegionWork]) -> Runner:
    """What runs the whole of a run's workload."""
    workload, service = captured.workload, device.service
    if (program := settings.program) is not None:
        return Script(
            program,
            seed=settings.seed,
            kernels=settings.kernels,
            wanted=settings.script_check,
            recorded_s=captured.recorded_s,
            recorded=captured.recorded,
            spared_s=service.spared_s(work.call.region for work in works),
            programs=lambda: {kernel: one.as_tinygrad for kernel, one in service.lowered.items()},
            check_device=service.check_device,
        )
    if (call := captured.call) is not None:
        kernels, once = len(workload.calls), captured.why_once
        return Function(call, seed=settings.seed, why_once=once, recorded_s=captured.recorded_s, kernels=kernels)
    return Model(
        workload,
        device.choice.dev,
        runnable=is_runnable(settings, workload.name),
        seed=settings.seed,
        weights=settings.weights,
        kernels=settings.kernels,
        compilers=service.compile_workers,
        programs=lambda: device.own_programs(works),
        check_device=service.check_device,
        target=service.target,
    )
