"""What the device tells about itself while it is measured: clocks, temperature, power, and why it slows down.

On an NVIDIA GPU through NVML; on a CPU under Linux from /proc and /sys; elsewhere nothing. Reading never fails a
measurement: what is not told is left out.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from kcg.compat.versions import tinygrad_version
from kcg.errors import DeviceError
from kcg.nouns import uncoloured
from kcg.types import Target, Toolchain

# NVML's clocks event reasons; a power cap (4), a sync boost (16) and idling (1) disqualify nothing
POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
SLOWDOWNS = {
    SW_THERMAL: "thermal slow-down by the driver",
    HW_THERMAL: "thermal slow-down by the hardware",
    HW_POWER_BRAKE: "power brake",
    HW_SLOWDOWN: "hardware slow-down",
}


HOLDS_BACK = {POWER_CAP: "power cap", **SLOWDOWNS}
"""What lowers a clock, whether it disqualifies a sample or not."""


class Sensors(Protocol):
    """Watches one set of samples: `begin`, `look` after each sample, then `readings` and `slowdown`."""

    def begin(self) -> None: ...

    def look(self) -> None: ...

    def readings(self) -> tuple[tuple[str, float], ...]:
        """`(name, value)` of what was seen since `begin`, for `Measurement.clocks`."""
        ...

    def slowdown(self) -> str:
        """Why the samples since `begin` are not to be trusted; empty if they are."""
        ...


def sensors_for(target: Target) -> Sensors:
    """The sensors of a target, as far as there are any. Called in the child that owns the device."""
    if target.device in ("CUDA", "NV"):
        try:
            return NvidiaSensors()
        except Exception:  # NVML is absent or refuses: many kinds of error, all of which mean that nothing is told
            return NoSensors()
    return LinuxCpuSensors() if target.device == "CPU" and Path("/proc/stat").exists() else NoSensors()


class NoSensors:
    """A device that tells nothing."""

    def begin(self) -> None:
        pass

    def look(self) -> None:
        pass

    def readings(self) -> tuple[tuple[str, float], ...]:
        return ()

    def slowdown(self) -> str:
        return ""


class NvidiaSensors:
    """NVML of the GPU that tinygrad opened. A look takes some microseconds."""

    def __init__(self) -> None:
        import pynvml

        from kcg.compat.hardware import cuda_bus_id

        self._nvml: Any = pynvml
        self._nvml.nvmlInit()
        self._gpu = self._nvml.nvmlDeviceGetHandleByPciBusId(cuda_bus_id())
        self._reasons = 0
        self._clocks: list[float] = []
        self.begin()
        self.look()  # the first queries take milliseconds

    def begin(self) -> None:
        self._reasons, self._clocks = 0, []

    def look(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._reasons |= int(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._gpu))
            self._clocks.append(float(self._nvml.nvmlDeviceGetClockInfo(self._gpu, self._nvml.NVML_CLOCK_SM)))

    def readings(self) -> tuple[tuple[str, float], ...]:
        found = [("slowdown_reasons", float(self._reasons))]
        if self._clocks:
            found += [("sm_mhz_min", min(self._clocks)), ("sm_mhz_max", max(self._clocks))]
        queries: tuple[tuple[str, Callable[[], Any]], ...] = (
            ("memory_mhz", lambda: self._nvml.nvmlDeviceGetClockInfo(self._gpu, self._nvml.NVML_CLOCK_MEM)),
            ("temperature_c", lambda: self._nvml.nvmlDeviceGetTemperature(self._gpu, self._nvml.NVML_TEMPERATURE_GPU)),
            ("power_w", lambda: self._nvml.nvmlDeviceGetPowerUsage(self._gpu) / 1000),
        )
        for name, query in queries:
            with contextlib.suppress(self._nvml.NVMLError):
                found.append((name, float(query())))
        return tuple(sorted(found))

    def slowdown(self) -> str:
        return describe(self._reasons, min(self._clocks, default=0.0))


def describe(reasons: int, clock_mhz: float) -> str:
    """The slow-down among NVML's clocks event reasons in words; empty where none of them disqualifies a sample."""
    words = words_of(reasons, SLOWDOWNS)
    return f"{words}, at {clock_mhz:.0f} MHz" if words else ""


def words_of(reasons: int, known: Mapping[int, str]) -> str:
    """Those of NVML's clocks event reasons that are known, in words."""
    return ", ".join(text for bit, text in known.items() if reasons & bit)


class LinuxCpuSensors:
    """Frequency, the counters of thermal throttling, and the share of time that a hypervisor took away."""

    def __init__(self) -> None:
        self._throttles = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_count"))
        self.begin()

    def begin(self) -> None:
        self._throttled_before, self._ticks_before = self._throttled(), _cpu_ticks()

    def look(self) -> None:
        pass  # the counters tell at the end what happened in between

    def readings(self) -> tuple[tuple[str, float], ...]:
        found = [("throttle_events", float(self._throttled() - self._throttled_before))]
        if (mhz := _cpu_mhz()) is not None:
            found.append(("cpu_mhz", mhz))
        ticks = [after - before for before, after in zip(self._ticks_before, _cpu_ticks(), strict=False)]
        if len(ticks) > 7 and sum(ticks) > 0:
            found.append(("steal_share", ticks[7] / sum(ticks)))
        return tuple(sorted(found))

    def slowdown(self) -> str:
        events = self._throttled() - self._throttled_before
        return f"the CPU was throttled for its temperature, {events} times" if events > 0 else ""

    def _throttled(self) -> int:
        total = 0
        for path in self._throttles:
            with contextlib.suppress(OSError, ValueError):
                total += int(path.read_text())
        return total


BUSY_STEAL = 0.05
"""The share of a machine's time that a hypervisor gives to others, from which on it is said."""
LEAST_TICKS = 20  # of all CPUs, a fifth of a second of one: less says nothing of a share


class Neighbours:
    """What else this machine has to do: looked at when it is made, before this process begins to work, and told later.

    The load average where the system has one, against all cores of the machine, since it counts what runs on any of
    them; and what a hypervisor took away in between, where /proc tells it.
    """

    def __init__(self) -> None:
        self._load: float | None = None
        with contextlib.suppress(AttributeError, OSError):  # not on every system
            self._load = os.getloadavg()[0]
        self._ticks = _cpu_ticks()

    def words(self) -> str:
        """Why this machine is busy; empty if it is not, or does not tell."""
        cores, found = os.cpu_count() or 1, []
        if self._load is not None and self._load > cores:
            found.append(f"its load average was {self._load:.1f} on {cores} core{'s' * (cores > 1)}")
        share = _steal_share(self._ticks)
        if share is not None and share > BUSY_STEAL:
            found.append(f"its hypervisor gave {share:.0%} of its time to others")
        return ", and ".join(found)


def _steal_share(before: list[int]) -> float | None:
    """The share of all CPUs' time since `before` that a hypervisor took away; None where that is not known."""
    ticks = [after - since for since, after in zip(before, _cpu_ticks(), strict=False)]
    return ticks[7] / sum(ticks) if len(ticks) > 7 and sum(ticks) >= LEAST_TICKS else None


def _cpu_ticks() -> list[int]:
    """User, nice, system, idle, iowait, irq, softirq, steal of all CPUs, in ticks since the machine started."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return []


def _cpu_mhz() -> float | None:
    """The frequency of the first CPU that this process may run on, if the system tells it."""
    cpu = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq").read_text()) / 1000
    return None


# ---- Reading a `Target` and a `Toolchain` off this machine. Runs in a child: it may open the device.

GIB = 1024**3
CACHE_BYTES = "KCG_CACHE_BYTES"


def detect(dev: str, action_space: int) -> tuple[Target, Toolchain]:
    """Target and toolchain of the device that `DEV=dev` selects. Raises DeviceError where it does not open."""
    from kcg.compat.green import open_device

    device = dev.split(":")[0]
    try:
        opened = open_device(device)
        renderer = opened.renderer
    except DeviceError:
        raise
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
    return target, toolchain_for(target, driver, action_space)


def toolchain_for(target: Target, driver: str, action_space: int) -> Toolchain:
    """What compiles for a target here; `compiler` is empty where tinygrad's own is missing. Opens no device."""
    from kcg.kernel.generator import GENERATOR_VERSION

    using = _assembler(target)
    return Toolchain(
        tinygrad=tinygrad_version(),
        compiler=_compiler(target.renderer),
        driver=driver,
        triton=version_of("triton"),
        action_space=action_space,
        assembler=using,
        generator=GENERATOR_VERSION if using else 0,
    )


def first_line(error: BaseException) -> str:
    """The line of an error's text that says what is wrong, without tinygrad's colours, or its type where it has none.

    That is the first one; of a CUDA compiler that only says that it failed, the first error in its log.
    """
    lines = uncoloured(str(error)).strip().splitlines() or [type(error).__name__]
    if lines[0].endswith("NVRTC_ERROR_COMPILATION"):
        return next((line.strip() for line in lines[1:] if "error" in line), lines[0])[:300]
    return lines[0][:300]


def _assembler(target: Target) -> str:
    """The assembler of a kind that has one of its own; empty where there is none for the target."""
    from kcg.kernel.kinds import tools_for

    return next((tools.assembler for _, tools in tools_for(target) if tools.assembler), "")


def version_of(package: str) -> str:
    """The version of an installed package; empty where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def clang_version() -> str:
    """What the clang of the CPU device says that it is; empty where there is none."""
    from kcg.compat.device import clang_path

    if (path := clang_path()) is None:
        return ""
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return text.splitlines()[0].strip() if text else ""


def _compiler(renderer: str) -> str:
    if renderer == "X86":
        return "tinygrad X86 assembler"
    if renderer == "CLANG":
        return clang_version() or "clang"
    if renderer == "CUDA":
        from kcg.compat.hardware import nvrtc_version

        try:
            return f"NVRTC {nvrtc_version()}"
        except AttributeError:  # tinygrad's word for a library that is not here
            return ""
    return renderer


def _cpu_facts() -> dict[str, Any]:
    from kcg.compat.standalone import cpu_model

    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # a virtual machine's memory can grow while it runs: the power of two above it does not
    memory = 1 << max(pages - 1, 1).bit_length()
    return {
        "model": cpu_model(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": memory,
        "cache_bytes": _last_level_cache(),
        "driver": "",
    }


def _last_level_cache() -> int:
    """What the system says, or `KCG_CACHE_BYTES`: a virtual machine may be told of the whole cache of a socket of which
    it has two cores, and emptying that takes longer than most kernels."""
    if given := os.environ.get(CACHE_BYTES):
        if not given.isdecimal() or int(given) == 0:
            raise DeviceError(f"{CACHE_BYTES}={given}: write the bytes of the last-level cache, or unset it")
        return int(given)
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
    """Driver version, power limit in W and highest SM clock in MHz of the first GPU that CUDA shows, as far as the tool
    tells them. It numbers all GPUs, whatever `CUDA_VISIBLE_DEVICES` says, and in another order."""
    from kcg.compat.device import visible_gpu
    from kcg.compat.hardware import cuda_bus_id

    fields, gpu = "driver_version,power.limit,clocks.max.sm", cuda_bus_id() or visible_gpu(0)
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--id={gpu}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        driver, power, clock = (x.strip() for x in done.stdout.strip().split(","))
    except (OSError, subprocess.SubprocessError, ValueError):
        return "", None, None
    return driver, _number(power), _number(clock)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _other_facts(device: str) -> dict[str, Any]:
    return {
        "model": f"{device} on {platform.machine()}",
        "cores": 0,
        "memory_bytes": 0,
        "cache_bytes": 0,
        "driver": "",
    }


def usable_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)
