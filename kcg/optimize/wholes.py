"""What is checked as a whole at the end of a run: its model, its script or its function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kcg.judge import whole_model
from kcg.judge.whole_function import Function
from kcg.judge.whole_model import Model
from kcg.judge.whole_script import Script
from kcg.workloads.registry import find

if TYPE_CHECKING:
    from kcg.judge.whole import Runner
    from kcg.measure.isolated import IsolatedProcess
    from kcg.optimize.device import Device
    from kcg.optimize.settings import Settings
    from kcg.optimize.work import Captured, RegionWork


def is_runnable(settings: Settings, workload: str) -> bool:
    """Whether the workload is one that kcg can run as a whole model."""
    return not settings.is_script and whole_model.is_runnable(workload)


def child_of(settings: Settings, device: Device) -> IsolatedProcess | None:
    """The process of a model's check, begun before anything is captured. None on a CPU, where it would disturb what is
    timed, with published weights, and of what is no model of kcg's."""
    if device.is_cpu or settings.weights or not is_runnable(settings, settings.workload):
        return None
    spec, preset = find(settings.workload, settings.preset, device.choice.device)
    return whole_model.begun(spec.name, preset, settings.seed, device.choice.dev)


def runner_of(
    settings: Settings,
    captured: Captured,
    device: Device,
    works: Sequence[RegionWork],
    child: IsolatedProcess | None = None,
) -> Runner:
    """What runs the whole of a run's workload; a model in a `child` that was begun."""
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
            steps=workload.steps,
            programs=lambda: {kernel: one.as_tinygrad for kernel, one in service.lowered.items()},
            check_device=service.check_device,
            dev=device.choice.dev,
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
        child=child,
        placed=child is not None,
        captured_s=captured.recorded_s,
    )
