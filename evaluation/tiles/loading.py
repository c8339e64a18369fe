"""Compiled programs in PyTorch's own CUDA context, so that one process and one clock serve all contenders.

tinygrad opens a context of its own, and work of two contexts takes turns on a GPU. So a program's machine code is
loaded by the driver where PyTorch is, and launched on PyTorch's stream on its memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from kcg.compat.tiny import dtypes
from kcg.errors import DeviceError
from kcg.kernel.program import Compiled, Program, ProgramLaunch

LIBRARY = "libcuda.so.1"
DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
ITEM_BYTES = {dtype.name: dtype.itemsize for dtype in dtypes.all}
INTEGERS: dict[str, Any] = {"int": ctypes.c_int32, "unsigned int": ctypes.c_uint32, "long": ctypes.c_int64}
"""By tinygrad's names."""


class Driver:
    """The CUDA driver in this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        torch.cuda.init()
        torch.empty(1, device="cuda")  # its context is the current one of this thread from now on

    def call(self, name: str, *arguments: Any) -> None:
        """Raises DeviceError where a call fails."""
        if status := getattr(self._library, name)(*arguments):
            words = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(words))
            raise DeviceError(f"{name}: {(words.value or b'unknown').decode()}")

    def function(self, compiled: Compiled) -> ctypes.c_void_p:
        """The loaded function of a binary: machine code, or PTX, which the driver assembles as tinygrad has it do."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(compiled.binary + b"\0"))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, compiled.function_name.encode())
        if compiled.shared_bytes:
            self.call("cuFuncSetAttribute", function, ctypes.c_int(DYNAMIC_SHARED), ctypes.c_int(compiled.shared_bytes))
        return function


class Loaded:
    """A program on tensors, of which each is as large as the buffer of its number. Calling it launches all of it."""

    def __init__(self, driver: Driver | None, program: Program, buffers: Sequence[torch.Tensor]) -> None:
        if driver is None:
            raise DeviceError("there is no CUDA device")
        self._driver = driver
        scratch = [
            torch.empty(one.elements * ITEM_BYTES[one.dtype], dtype=torch.uint8, device="cuda")
            for one in program.scratch
        ]
        self._tensors = [*buffers[: program.buffers], *scratch]  # whoever holds this keeps their memory
        self._launches = [
            (driver.function(launch.compiled), *self._sizes(launch.compiled), *self._arguments(launch))
            for launch in program.launches
        ]

    def __call__(self) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for function, sizes, shared, array, _ in self._launches:
            self._driver.call("cuLaunchKernel", function, *sizes, shared, stream, array, None)

    def _sizes(self, compiled: Compiled) -> tuple[tuple[ctypes.c_uint, ...], ctypes.c_uint]:
        sizes = [(*size, 1, 1, 1)[:3] for size in (compiled.global_size, compiled.local_size)]
        return tuple(ctypes.c_uint(n) for size in sizes for n in size), ctypes.c_uint(compiled.shared_bytes)

    def _arguments(self, launch: ProgramLaunch) -> tuple[Any, list[Any]]:
        """What `cuLaunchKernel` takes, and the values that it points to."""
        values: list[Any] = [ctypes.c_uint64(self._tensors[number].data_ptr()) for number in launch.args]
        compiled = launch.compiled
        for (_, _, dtype), value in zip(compiled.signature[len(launch.args) :], compiled.values, strict=True):
            values.append(INTEGERS[dtype](value))
        return (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values)), values
