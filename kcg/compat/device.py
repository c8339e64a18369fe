"""Which tinygrad device is used, and opening it where plain tinygrad 0.14.0 cannot."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from kcg.clang import cc_of_others, packaged_clang
from kcg.compat.cpu_opening import clang_named, clang_of_tinygrad, needs_helpers, open_cpu_without_helpers
from kcg.errors import DeviceError

GPU_DEVICES = ("CUDA", "NV", "AMD", "METAL", "QCOM", "CL", "WEBGPU")


@dataclass(frozen=True)
class DeviceChoice:
    """What `DEV=` will be, and why."""

    dev: str  # e.g. "CPU:X86", "CUDA"
    why: str  # one line for the user

    @property
    def device(self) -> str:
        """The device without its renderer: `CPU`."""
        return self.dev.split(":")[0]


def clang_path() -> str | None:
    """The clang that the CPU device can use: `CC` if it is one, else `clang`, else that of the package `ziglang`.

    tinygrad passes options that only clang knows, so a `CC` that names another compiler does not help it.
    """
    for name in (os.environ.get("CC"), "clang"):
        if name and (path := clang_named(name)) is not None:
            return path
    return packaged_clang()


def clang_of_others() -> str | None:
    """The clang that plain tinygrad finds in another process that the user starts: without what importing kcg or
    `prepare` set here."""
    return clang_named(_replaced_cc[0] if _replaced_cc else cc_of_others())


_replaced_cc: list[str] = []  # what the user's `CC` said before `prepare` replaced it, once that did


def _cuda_driver() -> ctypes.CDLL | None:
    """The CUDA driver, initialised; None where there is none. Opens no context."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None


def cuda_count() -> int:
    """How many GPUs the CUDA driver shows to this process. Opens no context."""
    count, driver = ctypes.c_int(0), _cuda_driver()
    return count.value if driver is not None and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def cuda_uuid(gpu: int = 0) -> str | None:
    """Which GPU is the `gpu`-th one that the CUDA driver shows, whatever `CUDA_VISIBLE_DEVICES` calls it: its UUID as
    `nvidia-smi -L` writes it, without `GPU-` before it; of a part of a GPU (MIG) that of the part. Opens no context.
    None where the driver does not tell (before 11.4) or shows no such GPU.
    """
    device, uuid, driver = ctypes.c_int(0), (ctypes.c_ubyte * 16)(), _cuda_driver()
    if driver is None or driver.cuDeviceGet(ctypes.byref(device), gpu) != 0:
        return None
    try:
        answer = driver.cuDeviceGetUuid_v2(uuid, device)
    except AttributeError:  # an older driver
        return None
    return str(UUID(bytes=bytes(uuid))) if answer == 0 else None


def has_cuda() -> bool:
    """Whether the CUDA driver finds a GPU. Opens no context."""
    return cuda_count() > 0


def visible_gpu(gpu: int) -> str:
    """The name by which `CUDA_VISIBLE_DEVICES` knows the `gpu`-th GPU that is shown to this process."""
    names = [n for n in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if n.strip()]
    return names[gpu].strip() if names else str(gpu)


def check_gpus(choice: DeviceChoice, wanted: int | None) -> int:
    """How many GPUs are used: as many as `wanted`, or all that are shown; of other devices than CUDA there is one.
    Raises DeviceError where there are fewer."""
    there = cuda_count() if choice.device == "CUDA" else 1
    if wanted is not None and wanted > there:
        raise DeviceError(f"--gpus {wanted}: {choice.dev} has {there} here: give at most that many")
    return there if wanted is None else wanted


def choose_cpu() -> DeviceChoice:
    """The CPU with clang where it is found, else with tinygrad's own X86 assembler."""
    if (clang := clang_path()) is not None:
        return DeviceChoice("CPU:CLANG", f"the CPU, compiled by {clang}")
    if platform.machine().lower() in ("x86_64", "amd64"):
        return DeviceChoice(
            "CPU:X86",
            "no clang found: the CPU through tinygrad's own X86 assembler, whose kernels are about 3 times slower",
        )
    raise DeviceError(
        f"no clang found, and tinygrad's own assembler is for x86-64, not {platform.machine()}: install clang "
        "(Debian: apt install clang, or pip install ziglang)"
    )


def choose_device(requested: str = "auto") -> DeviceChoice:
    """What `--device` means here: `auto` is `DEV` if it is set, else a GPU if there is one, else the CPU.

    Raises DeviceError where the device cannot be used; nothing is opened.
    """
    if requested == "auto":
        if os.environ.get("DEV"):
            return choose_device(os.environ["DEV"])
        if has_cuda():
            return DeviceChoice("CUDA", "an NVIDIA GPU was found")
        if sys.platform == "darwin" and platform.machine() == "arm64":
            return DeviceChoice("METAL", "an Apple GPU was found")
        return choose_cpu()
    dev = requested.upper()
    device, _, renderer = dev.partition(":")
    if device == "CPU":
        if renderer == "":
            return choose_cpu()
        if renderer == "CLANG" and clang_path() is None:
            raise DeviceError(
                "--device CPU:CLANG needs clang: install it (apt install clang, or pip install ziglang), or use CPU:X86"
            )
        if renderer not in ("X86", "CLANG"):
            raise DeviceError(f"unknown CPU renderer {renderer!r}: use CPU, CPU:CLANG or CPU:X86")
        return DeviceChoice(dev, f"asked for {dev}")
    if device in ("CUDA", "NV") and not has_cuda():
        raise DeviceError(f"--device {requested}: the NVIDIA driver finds no GPU here; use --device CPU")
    if device == "AMD" and not Path("/dev/kfd").exists():
        raise DeviceError(f"--device {requested}: there is no AMD GPU here (/dev/kfd is missing); use --device CPU")
    if device == "METAL" and sys.platform != "darwin":
        raise DeviceError(f"--device {requested}: METAL needs macOS; use --device CPU")
    if device not in GPU_DEVICES:
        raise DeviceError(f"unknown device {requested!r}: use auto, CPU, {', '.join(GPU_DEVICES)}")
    return DeviceChoice(dev, f"asked for {dev}")


def prepare(dev: str) -> None:
    """Make `dev` tinygrad's device in this process and its children; must precede the first use of a device."""
    os.environ["DEV"] = dev
    from kcg.compat.tiny import DEV

    DEV.value = dev
    if not dev.startswith("CPU"):
        return
    clang = clang_path()
    if not needs_helpers():
        open_cpu_without_helpers()
    elif clang is None:
        raise DeviceError("HCQ2=1 needs clang on the CPU: install clang or unset HCQ2")
    if clang is not None and clang != clang_of_tinygrad():
        _replaced_cc.append(cc_of_others())
        os.environ["CC"] = clang  # tinygrad itself would find none, or another compiler
        from tinygrad.helpers import getenv

        getenv.cache_clear()  # tinygrad may have read CC in an attempt that failed


@contextlib.contextmanager
def keeping_default() -> Iterator[None]:
    """After the block tinygrad's device, here and in the environment, is what it was before."""
    from kcg.compat.tiny import DEV

    chosen, named = DEV.value, os.environ.get("DEV")
    try:
        yield
    finally:
        DEV.value = chosen
        os.environ.pop("DEV", None)
        if named is not None:
            os.environ["DEV"] = named


@contextlib.contextmanager
def prepared(dev: str) -> Iterator[None]:
    """`prepare` inside the block only, for whoever captures in a process of a user."""
    with keeping_default():
        prepare(dev)
        yield


def import_runtime(device: str) -> None:
    """Load tinygrad's code for a device (`CPU`, `CUDA`), and open none."""
    importlib.import_module(f"tinygrad.runtime.ops_{device.lower()}")


def use_cache(path: str) -> None:
    """Make the file `path` tinygrad's disk cache, also where tinygrad has read `CACHEDB`; before it is first used."""
    os.environ["CACHEDB"] = path
    import tinygrad.helpers

    tinygrad.helpers.CACHEDB = path
