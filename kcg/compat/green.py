"""A GPU with fewer multiprocessors: kernels run on a part of them, in a green context of CUDA 12.4 or later.

That part has all of the memory, its bandwidth and the last-level cache, so it is no smaller GPU of its own; its target
says what it is. The clock does not know of it: fewer multiprocessors may run faster.

See "Green Contexts" in the CUDA driver's documentation. Private: `CUDADevice.context`, which all that tinygrad does on
the device makes current first.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from kcg.compat.tiny import Device
from kcg.errors import DeviceError

MULTIPROCESSORS = "KCG_MULTIPROCESSORS"
"""The environment variable by which a user asks for so many."""

_OF_MULTIPROCESSORS = 1  # CU_DEV_RESOURCE_TYPE_SM
_WITH_DEFAULT_STREAM = 1  # CU_GREEN_CTX_DEFAULT_STREAM
_RESOURCE_BYTES, _COUNT_AT = 512, 96  # more than any version's CUdevResource has, and where its `sm.smCount` is

_part: list[int | None] = []  # how many multiprocessors this process uses, once that was asked for; None: all


def wanted() -> int | None:
    """How many are asked for; None for all. Raises DeviceError where that is no number."""
    given = os.environ.get(MULTIPROCESSORS)
    if not given:
        return None
    if not given.isdecimal() or int(given) == 0:
        raise DeviceError(f"{MULTIPROCESSORS}={given}: write how many of the GPU's multiprocessors, or unset it")
    return int(given)


def name_of_part(model: str, count: int, there: int) -> str:
    """What a GPU is called of whose multiprocessors so many are used."""
    return f"{model}, {count} of {there} multiprocessors"


def part_used() -> int | None:
    """How many multiprocessors the GPU's part has that this process opened; None where it opened all of a GPU."""
    return _part[0] if _part else None


def open_device(device: str) -> Any:
    """tinygrad's device, opened; of a GPU that part which is asked for. Raises DeviceError where the driver cannot give
    one, and what tinygrad raises."""
    opened = Device[device]
    if device == "CUDA" and (count := wanted()) is not None and not _part:
        if (context := _context_of(opened, count)) is not None:
            opened.context = context
        _part.append(None if context is None else count)
    return opened


def _context_of(opened: Any, count: int) -> Any:
    """A context of so many multiprocessors of tinygrad's device, in the place of that which it opened; None where these
    are all of them."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        function = getattr(driver, name, None)
        if function is None:
            raise DeviceError(f"{MULTIPROCESSORS}={count}: this driver has no green contexts, CUDA 12.4's has")
        if code := function(*arguments):
            raise DeviceError(f"{MULTIPROCESSORS}={count}: {name} failed with CUDA error {code}")

    every, part, rest = ((ctypes.c_ubyte * _RESOURCE_BYTES)() for _ in range(3))
    call("cuDeviceGetDevResource", opened.cu_device, every, _OF_MULTIPROCESSORS)
    groups, there = ctypes.c_uint(1), _multiprocessors(every)
    if count > there:
        raise DeviceError(f"{MULTIPROCESSORS}={count}: the GPU has {there}")
    if count == there:
        return None
    call("cuDevSmResourceSplitByCount", part, ctypes.byref(groups), every, rest, 0, count)
    if (given := _multiprocessors(part)) != count:
        raise DeviceError(f"{MULTIPROCESSORS}={count}: the driver gives groups, such as one of {given}")
    described, green, context = (ctypes.c_void_p() for _ in range(3))
    call("cuDevResourceGenerateDesc", ctypes.byref(described), part, 1)
    call("cuGreenCtxCreate", ctypes.byref(green), described, opened.cu_device, _WITH_DEFAULT_STREAM)
    call("cuCtxFromGreenCtx", ctypes.byref(context), green)
    call("cuCtxDestroy_v2", opened.context)
    call("cuCtxSetCurrent", context)
    return ctypes.cast(context, type(opened.context))


def _multiprocessors(resource: Any) -> int:
    return int.from_bytes(bytes(resource[_COUNT_AT : _COUNT_AT + 4]), "little")
