"""Timing any call by the device's own clock, and CUDA code that was written by hand.

A whole step is timed by a pair of events around it, not by the sum of its kernels. What the host needs to send it off
can be hidden: the device is given something to wait for first (`Spin`), so that all launches are queued when the first
event passes. Whether it was long enough is seen afterwards (`hiding`): a host that was not done by then is given more
time, and the sample is taken again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from kcg.compat.tiny import Device, TinyELF, dtypes

SPIN_SOURCE = """extern "C" __global__ void spin(long long cycles) {
  for (long long begin = clock64(); clock64() - begin < cycles;);
}"""
HIDDEN_S = 0.01  # of what the host does for a whole step, at first
HIDDEN_MOST_S = 0.25
HIDING_TRIES = 4
SPIN_HZ = 2.0e9  # multiprocessors run at up to 1.98 GHz (NVIDIA H200); where they run slower, a spin lasts longer


def device_seconds(device: str, call: Callable[[], object]) -> float:
    """Seconds between two events around `call` on a CUDA device; elsewhere by the host's clock until all is done."""
    if device == "CUDA":
        from tinygrad.runtime.autogen import cuda
        from tinygrad.runtime.ops_cuda import check, cu_time_execution

        check(cuda.cuCtxSetCurrent(Device[device].context))
        return float(cu_time_execution(call, enable=True))
    begin = time.perf_counter()
    call()
    Device[device].synchronize()
    return time.perf_counter() - begin


def clock_of(device: str) -> str:
    """What `device_seconds` reads on a device, in words."""
    return "device events" if device == "CUDA" else "wall clock"


def synchronize(device: str) -> None:
    """Wait until the device has done all."""
    Device[device].synchronize()


class CudaCode:
    """A kernel given as CUDA source or as PTX text, loaded on tinygrad's CUDA device.

    `signature` names its arguments and their dtypes in order, pointers first: `(("out", "float32"), …)`. Raises what
    tinygrad raises where it does not compile or load.
    """

    def __init__(self, name: str, text: str, signature: Sequence[tuple[str, str]], *, pointers: int) -> None:
        device = Device["CUDA"]
        code = text.encode() + b"\0" if ".visible .entry" in text else device.compiler.compile(text)
        named = tuple((arg, slot, getattr(dtypes, dtype), ()) for slot, (arg, dtype) in enumerate(signature))
        self._pointers = pointers
        self._program: Any = device.runtime(TinyELF(code, name, device.renderer.target, named))

    def __call__(self, *arguments: Any, grid: int, block: int) -> None:
        """Launch it on tensors, then integers; the host does not wait."""
        pointers = [buffer_of(tensor).get_buf("CUDA") for tensor in arguments[: self._pointers]]
        self._program(
            *pointers, global_size=(grid, 1, 1), local_size=(block, 1, 1), vals=tuple(arguments[self._pointers :])
        )


class Spin:
    """Keeps the device busy for a time without touching its caches. On other devices than CUDA it does nothing."""

    def __init__(self, device: str) -> None:
        on_cuda = device == "CUDA"
        self._code = CudaCode("spin", SPIN_SOURCE, (("cycles", "int64"),), pointers=0) if on_cuda else None

    def __call__(self, seconds: float) -> None:
        if self._code is not None:
            self._code(int(seconds * SPIN_HZ), grid=1, block=1)


def hidden_s(host_s: float) -> float:
    """How long the device is kept busy, so that it does not wait for a host that takes `host_s` to send a call off."""
    return min(1.5 * host_s + 20e-6, HIDDEN_MOST_S)


def hiding(sample: Callable[[float], tuple[float, float]], busy_s: float) -> tuple[float, float]:
    """A sample whose launches the host had sent off before the device came to them, and how long to keep that busy for
    the next one.

    `sample` keeps the device busy for so many seconds, and says what the call took and how long the host was at it. A
    host that slept before is slower than one that repeats itself, so `busy_s` is only the first guess. Where the host
    waits for the device itself, no time is enough: what the last try shows is taken.
    """
    for _ in range(HIDING_TRIES):
        seconds, host_s = sample(busy_s)
        if host_s < busy_s or busy_s >= HIDDEN_MOST_S:
            break
        busy_s = hidden_s(2 * max(host_s, busy_s))
    return seconds, busy_s


class StepClock:
    """Times a whole step that is launched as a program launches it, on the device alone where it has events."""

    def __init__(self, device: str) -> None:
        self.device, self._spin = device, Spin(device)
        self._busy_s = HIDDEN_S

    def __call__(self, call: Callable[[], object]) -> float:
        """Seconds of `call`, which is done when this returns. On CUDA it is called again where the host was too slow to
        be hidden; the time that was enough is where the next sample begins."""
        synchronize(self.device)
        if self.device != "CUDA":
            return self.sample(call, 0.0)[0]
        seconds, self._busy_s = hiding(lambda busy_s: self.sample(call, busy_s), self._busy_s)
        return seconds

    def sample(self, call: Callable[[], object], busy_s: float) -> tuple[float, float]:
        """Seconds of one `call` behind a device that is busy for `busy_s`, and those that the host took to send it
        off. The device must be idle."""
        begin, sent = time.perf_counter(), []

        def sending() -> None:
            call()
            sent.append(time.perf_counter() - begin)

        self._spin(busy_s)
        return device_seconds(self.device, sending), sent[0]


def buffer_of(tensor: Any) -> Any:
    """The device buffer of a realised tensor."""
    return tensor.uop.base.buffer.ensure_allocated()
