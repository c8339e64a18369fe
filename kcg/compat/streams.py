"""A second stream of a device: what tinygrad loaded runs on it beside what tinygrad launches.

tinygrad launches everything on CUDA's default stream. One that is made as non-blocking waits for that only where it is
asked to.

Private: `CUDAProgram.dev`, `prg`, `smem` and `signature`, `ops_cuda.encode_args` and `check`. The launch is that of
`CUDAProgram.__call__`, on another stream.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from kcg.compat.tiny import Device


def has_second_stream(device: str) -> bool:
    """Whether `second_stream` gives one."""
    return device == "CUDA"


@functools.cache
def second_stream(device: str) -> Stream | None:
    """The second stream of a device in this process; None where its launches cannot run beside each other."""
    return Stream(device) if has_second_stream(device) else None


class Stream:
    """A stream of a CUDA device. Raises what tinygrad raises where the driver refuses something."""

    def __init__(self, device: str) -> None:
        from tinygrad.runtime.autogen import cuda
        from tinygrad.runtime.ops_cuda import check

        self._cuda, self._check, self._context = cuda, check, Device[device].context
        self._stream, self._event = cuda.CUstream(), cuda.CUevent()
        check(cuda.cuCtxSetCurrent(self._context))
        check(cuda.cuStreamCreate(ctypes.byref(self._stream), cuda.CU_STREAM_NON_BLOCKING))
        check(cuda.cuEventCreate(ctypes.byref(self._event), cuda.CU_EVENT_DISABLE_TIMING))

    def follow(self) -> None:
        """What is sent from here on begins when all is done that tinygrad launched before."""
        self._check(self._cuda.cuCtxSetCurrent(self._context))
        self._check(self._cuda.cuEventRecord(self._event, None))
        self._check(self._cuda.cuStreamWaitEvent(self._stream, self._event, 0))

    def wait(self) -> None:
        """Wait until all is done that was sent here."""
        self._check(self._cuda.cuCtxSetCurrent(self._context))
        self._check(self._cuda.cuStreamSynchronize(self._stream))

    def program(self, loaded: Any) -> Callable[..., None]:
        """A program that tinygrad loaded, to be called as that is, but launched here; the host does not wait."""
        from tinygrad.runtime.ops_cuda import encode_args

        given: Any = None
        launching: Any = None

        def launch(
            *pointers: Any,
            global_size: tuple[int, ...],
            local_size: tuple[int, ...],
            vals: tuple[int, ...] = (),
            wait: bool = False,
        ) -> None:
            nonlocal given, launching
            assert not wait, "what runs beside others is not timed"
            self._check(self._cuda.cuCtxSetCurrent(self._context))
            if launching is None:
                given, launching = encode_args(pointers, vals, loaded.signature)
            for kind, values in (("f", pointers), ("v", vals)):
                for place, value in enumerate(values):
                    setattr(given, f"{kind}{place}", value)
            sizes = (*global_size, *local_size, loaded.smem)
            self._check(self._cuda.cuLaunchKernel(loaded.prg, *sizes, self._stream, None, launching))

        return launch
