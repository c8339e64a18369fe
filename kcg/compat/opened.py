"""The device that a running program uses, as far as that process can tell cheaply: no children, no tools."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

from kcg.compat.device import choose_device, clang_of_tinygrad, prepare
from kcg.compat.hardware import cpu_model
from kcg.compat.tiny import DEV, Device, Ops, UOp
from kcg.errors import DeviceError


@dataclass(frozen=True)
class OpenedDevice:
    """A few fields of a `Target`, with the same names and values."""

    device: str
    renderer: str
    arch: str
    model: str
    max_threads: int


def open_default(cpu_renderer: str = "") -> OpenedDevice:
    """tinygrad's default device, opened if it is not yet.

    Where plain tinygrad could not open the CPU for want of clang, kcg opens it, with `cpu_renderer` if the program did
    not ask for one, else with what it finds. Raises DeviceError where the device does not open.
    """
    asked = DEV.value[0]
    plain_cpu = asked.device == "CPU" and asked.renderer in ("", "X86") and len(DEV.value) == 1
    chosen_cpu = ":".join(filter(None, ("CPU", asked.renderer or cpu_renderer)))
    if plain_cpu and "CPU" not in Device._opened_devices and clang_of_tinygrad() is None:
        prepare(choose_device(chosen_cpu).dev)
    try:
        name = Device.DEFAULT
    except RuntimeError:  # tinygrad's "no usable devices": nothing else than the CPU, and no clang
        prepare(choose_device(chosen_cpu).dev)
        name = Device.DEFAULT
    try:
        renderer = Device[name].renderer
    except Exception as error:
        # tinygrad raises many kinds here, from ctypes errors to assertions; each means that the device is unusable
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DeviceError(f"{name} does not open: {line}: set DEV to a device that works here") from error
    device = str(renderer.target.device)
    return OpenedDevice(
        device=device,
        renderer=type(renderer).__name__.removesuffix("Renderer").upper(),
        arch=str(renderer.target.arch),
        model=_model(device),
        max_threads=int(renderer.global_max[0]) if renderer.has_threads and renderer.global_max else 0,
    )


def _model(device: str) -> str:
    if device == "CPU":
        return cpu_model()
    if device in ("CUDA", "NV"):
        from kcg.compat.hardware import cuda_properties

        return str(cuda_properties()["model"])
    return f"{device} on {platform.machine()}"


def devices_of(ast: UOp) -> set[str]:
    """The devices, without their numbers, that the buffers of a kernel are on."""
    found: set[str] = set()
    for node in ast.toposort():
        if node.op is Ops.PARAM and node.arg.slot >= 0 and node.arg.device is not None:
            names: Any = node.arg.device
            found.update(name.split(":")[0] for name in ((names,) if isinstance(names, str) else names))
    return found


def opts_to_tiny(opts: Any) -> tuple[Any, ...]:
    """tinygrad's Opts of kcg's, as `KernelInfo.opts_to_apply` takes them."""
    from kcg.compat.scheduling import to_tiny

    return tuple(to_tiny(o) for o in opts)
