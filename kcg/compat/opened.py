"""The device that a running program uses, as far as that process can tell cheaply: no children, no tools."""

from __future__ import annotations

from typing import Any

from kcg.compat.cpu_opening import clang_of_tinygrad
from kcg.compat.device import choose_device, prepare
from kcg.compat.standalone import Opened, opened_device
from kcg.compat.tiny import DEV, Device
from kcg.errors import DeviceError


def open_default(cpu_renderer: str = "") -> Opened:
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
    if name == "CPU" and not asked.device and clang_of_tinygrad() is None:
        prepare(choose_device(chosen_cpu).dev)  # it opened by what tinygrad's cache holds, and would compile nothing
    try:
        return opened_device(name)
    except Exception as error:
        # tinygrad raises many kinds here, from ctypes errors to assertions; each means that the device is unusable
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DeviceError(f"{name} does not open: {line}: set DEV to a device that works here") from error


def opts_to_tiny(opts: Any) -> tuple[Any, ...]:
    """tinygrad's Opts of kcg's, as `KernelInfo.opts_to_apply` takes them."""
    from kcg.compat.scheduling import to_tiny

    return tuple(to_tiny(o) for o in opts)
