"""What the hardware tells about itself: memory, and CUDA and NVRTC through tinygrad's own bindings."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def nvrtc_version() -> str:
    """The version of the CUDA compiler that tinygrad loads, e.g. `12.4`."""
    from tinygrad.runtime.autogen import nvrtc

    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(major, minor)
    return f"{major.value}.{minor.value}"


def cuda_properties() -> dict[str, Any]:
    """Model, multiprocessors, L2, memory and its bandwidth of the first GPU; the driver must have been initialised.
    Where this process opened a part of it (`kcg.compat.green`), of that."""
    from tinygrad.runtime.autogen import cuda

    from kcg.compat.green import name_of_part, part_used

    def attribute(which: int) -> int:
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), which, 0)
        return value.value

    name = ctypes.create_string_buffer(128)
    cuda.cuDeviceGetName(name, 128, 0)
    total = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
    model, multiprocessors = name.value.decode(), attribute(cuda.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    if (part := part_used()) is not None:
        model = name_of_part(model, part, multiprocessors)
    return {
        "model": model,
        "cores": part or multiprocessors,
        "cache_bytes": attribute(cuda.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
        "memory_bytes": total.value,
        # two transfers a cycle on every pin; in kHz and bits
        "bandwidth_bytes_s": 2e3
        * attribute(cuda.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)
        * attribute(cuda.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)
        / 8
        or None,
    }


def memory_of(device: str) -> tuple[int, int] | None:
    """Bytes of a device's memory that are free now, and all of them; None where it does not tell.

    Of the first GPU that CUDA shows through NVML, which needs no context; of the CPU what the system can give without
    swapping.
    """
    if device == "CPU":
        return _host_memory()
    if device not in ("CUDA", "NV"):
        return None
    try:
        import pynvml
        from tinygrad.runtime.autogen import cuda

        cuda.cuInit(0)
        pynvml.nvmlInit()
        memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByPciBusId(cuda_bus_id()))
    except Exception:  # NVML is absent or refuses: many kinds of error, all of which mean that nothing is told
        return None
    return int(memory.free), int(memory.total)


def allocated_bytes() -> int:
    """Bytes of the buffers that this process has allocated through tinygrad and not given back."""
    from tinygrad import GlobalCounters

    return int(GlobalCounters.mem_used)


def _host_memory() -> tuple[int, int] | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        memory = {words[0]: int(words[1]) << 10 for words in lines}
        return memory["MemAvailable:"], memory["MemTotal:"]
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no Linux: only how much there is
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return total, total
    return None


def cuda_bus_id() -> str:
    """The PCI bus id of the first GPU that CUDA shows, by which other tools know it; the driver must be initialised."""
    from tinygrad.runtime.autogen import cuda

    device, text = ctypes.c_int(), ctypes.create_string_buffer(32)
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetPCIBusId(text, 32, device.value)
    return text.value.decode()


_pinned: dict[str, tuple[Any, int]] = {}  # by device: host memory that the GPU writes into directly, and its size


def device_pieces(device: str, pieces: Sequence[tuple[Any, int, int]]) -> np.ndarray[Any, Any] | None:
    """Bytes of device memory, one piece `(buffer, offset, bytes)` after the other, with one wait for all of them.

    A copy of its own for each piece waits each time: a hundred single elements take milliseconds. None where the device
    offers no such call. Everything that was launched before is finished first.
    """
    if device != "CUDA":
        return None
    import numpy as np
    from tinygrad.device import BufferSpec
    from tinygrad.runtime.autogen import cuda
    from tinygrad.runtime.ops_cuda import check

    from kcg.compat.tiny import Device

    opened, total = Device[device], sum(nbytes for _, _, nbytes in pieces)
    opened.synchronize()
    if device not in _pinned or _pinned[device][1] < total:
        size = max(1 << 20, 1 << (total - 1).bit_length())
        _pinned[device] = (opened.allocator.alloc(size, BufferSpec(host=True)), size)
    host = _pinned[device][0].value
    check(cuda.cuCtxSetCurrent(opened.context))
    at = host
    for buffer, offset, nbytes in pieces:
        source = cuda.CUdeviceptr_v2(buffer.value + offset)
        check(cuda.cuMemcpyDtoHAsync_v2(ctypes.c_void_p(at), source, nbytes, None))
        at += nbytes
    opened.synchronize()
    return np.ctypeslib.as_array((ctypes.c_uint8 * total).from_address(host)).copy()


def device_memset(device: str, buffers: Sequence[tuple[Any, int]], byte: int) -> bool:
    """Fill device memory, some `(buffer, bytes)`, with a byte without copying from the host, with one wait for all of
    them; False where this device offers no such call."""
    if device != "CUDA":
        return False
    from tinygrad.runtime.autogen import cuda

    from kcg.compat.tiny import Device

    cuda.cuCtxSetCurrent(Device[device].context)
    done = [cuda.cuMemsetD8_v2(buffer, byte, nbytes) == 0 for buffer, nbytes in buffers]
    Device[device].synchronize()
    return all(done)
