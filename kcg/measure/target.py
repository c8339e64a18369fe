"""Reading a `Target` and a `Toolchain` off this machine. Runs in a child: it may open the device."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from kcg.types import Target, Toolchain

GIB = 1024**3


def detect(dev: str, action_space: int) -> tuple[Target, Toolchain]:
    """Target and toolchain of the device that `DEV=dev` selects. Raises DeviceError where it does not open."""
    from kcg.compat.tiny import Device
    from kcg.errors import DeviceError

    device = dev.split(":")[0]
    try:
        opened = Device[device]
        renderer = opened.renderer
    except Exception as error:
        # tinygrad raises many kinds here, from ctypes errors to assertions; each means that the device is unusable
        raise DeviceError(f"{dev} does not open: {first_line(error)}") from error
    name = type(renderer).__name__.removesuffix("Renderer")
    renderer_name = {"Clang": "CLANG", "X86": "X86", "CUDA": "CUDA", "HIP": "HIP", "Metal": "METAL"}.get(
        name, name.upper()
    )
    common: dict[str, Any] = {
        "device": device,
        "renderer": renderer_name,
        "arch": renderer.target.arch,
        "has_local": bool(renderer.has_local),
        "has_threads": bool(renderer.has_threads),
        "max_threads": int(renderer.global_max[0]) if renderer.has_threads and renderer.global_max else 0,
        "shared_bytes": int(renderer.shared_max) if renderer.has_local else 0,
        "tensor_cores": tuple(
            f"{'x'.join(map(str, c.dims))} {c.dtype_in.name}->{c.dtype_out.name}" for c in renderer.tensor_cores
        ),
    }
    facts = _cuda_facts() if device in ("CUDA", "NV") else _cpu_facts() if device == "CPU" else _other_facts(device)
    driver = str(facts.pop("driver"))
    target = Target(**common, **facts)
    return target, Toolchain(
        tinygrad=metadata.version("tinygrad"),
        compiler=_compiler(renderer_name),
        driver=driver,
        triton=_version("triton"),
        action_space=action_space,
    )


def first_line(error: BaseException) -> str:
    """The line of an error's text that says what is wrong, or its type where it has none.

    That is the first one; of a CUDA compiler that only says that it failed, the first error in its log.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if lines[0].endswith("NVRTC_ERROR_COMPILATION"):
        return next((line.strip() for line in lines[1:] if "error" in line), lines[0])[:300]
    return lines[0][:300]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _compiler(renderer: str) -> str:
    if renderer == "X86":
        return "tinygrad X86 assembler"
    if renderer == "CLANG":
        from kcg.compat.device import clang_path

        text = subprocess.run(
            [clang_path() or "clang", "--version"], capture_output=True, text=True, check=False
        ).stdout
        return text.splitlines()[0].strip() if text else "clang"
    if renderer == "CUDA":
        from kcg.compat.hardware import nvrtc_version

        return f"NVRTC {nvrtc_version()}"
    return renderer


def _cpu_facts() -> dict[str, Any]:
    from kcg.compat.hardware import cpu_model

    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # a virtual machine's memory can grow while it runs: the power of two above it does not
    memory = 1 << max(pages - 1, 1).bit_length()
    return {
        "model": cpu_model(), "cores": os.cpu_count() or 1, "memory_bytes": memory, "cache_bytes": _last_level_cache(),
        "driver": "",
    }  # fmt: skip


def _last_level_cache() -> int:
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * {"K": 1024, "M": 1024**2, "G": GIB}[text[-1]])
    return max(sizes) or 32 << 20


def _cuda_facts() -> dict[str, Any]:
    from kcg.compat.hardware import cuda_properties

    driver, power, clock = _nvidia_smi()
    return {**cuda_properties(), "driver": driver, "power_limit_w": power, "clock_limit_mhz": clock}


def _nvidia_smi() -> tuple[str, float | None, float | None]:
    """Driver version, power limit in W and highest SM clock in MHz of the first GPU, as far as the tool tells them."""
    fields = "driver_version,power.limit,clocks.max.sm"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "", None, None
    driver, power, clock = (x.strip() for x in done.stdout.strip().split(","))
    return driver, _number(power), _number(clock)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _other_facts(device: str) -> dict[str, Any]:
    return {
        "model": f"{device} on {platform.machine()}", "cores": 0, "memory_bytes": 0, "cache_bytes": 0, "driver": "",
    }  # fmt: skip


def usable_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)
