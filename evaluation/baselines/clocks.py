"""A clock for either library, by kcg's protocol: device events, the last-level cache flushed or not.

Both hide the host in the same way: before the first event the device is kept busy for as long as the host needs to
send the call off. Whether it was long enough is seen afterwards: a host that was not done by then is given more time,
and the sample is taken again. What a caller waits for, host included, is the state `called`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

from kcg.measure.sensors import Sensors, sensors_for

STATES = ("cold", "warm", "called")
HIDDEN_MOST_S = 0.25
HIDING_TRIES = 4
Call = Callable[[], object]


class Clock(Protocol):
    """`seconds(call, state)` of one sample; `sensors` watch the device."""

    sensors: Sensors

    def seconds(self, call: Call, state: str, host_s: float) -> float: ...
    def synchronize(self) -> None: ...
    def canary(self) -> tuple[float, str]: ...


def host_seconds(clock: Clock, call: Call) -> float:
    """How long the host takes to send `call` off."""
    found = []
    for _ in range(3):
        clock.synchronize()
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    clock.synchronize()
    return min(found)


def hidden_s(host_s: float) -> float:
    """How long the device is kept busy, so that it does not wait for the host."""
    return min(1.5 * host_s + 20e-6, HIDDEN_MOST_S)


def hiding(sample: Callable[[float], tuple[float, float]], host_s: float) -> float:
    """A sample whose launches the host had sent off before the device came to them.

    `sample` keeps the device busy for so many seconds, and says what the call took and how long the host was at it. A
    host that slept before is slower than one that repeats itself, so `host_s` is only the first guess. Where the host
    waits for the device itself, no time is enough: what the last try shows is taken.
    """
    busy_s = hidden_s(host_s)
    for _ in range(HIDING_TRIES):
        seconds, host_s = sample(busy_s)
        if host_s < busy_s or busy_s >= HIDDEN_MOST_S:
            break
        busy_s = hidden_s(2 * max(host_s, busy_s))
    return seconds


class TinyClock:
    """For what runs on tinygrad's device `dev`."""

    def __init__(self, dev: str) -> None:
        from kcg.compat.events import Spin
        from kcg.kernel.actions import ACTION_SPACE_VERSION
        from kcg.measure.target import detect
        from kcg.measure.workbench import CacheFlusher

        self.target, self.toolchain = detect(dev, ACTION_SPACE_VERSION)
        self.dev, self.sensors = dev, sensors_for(self.target)
        self._canary: Any = None
        self._flusher, self._spin = CacheFlusher(self.target), Spin(self.target.device)

    def synchronize(self) -> None:
        from kcg.compat.events import synchronize

        synchronize(self.target.device)

    def seconds(self, call: Call, state: str, host_s: float) -> float:
        from kcg.compat.events import device_seconds

        def sample(busy_s: float) -> tuple[float, float]:
            if state == "cold":
                self._flusher.flush()
            begin, sent = time.perf_counter(), []

            def sending() -> None:
                call()
                sent.append(time.perf_counter() - begin)

            self._spin(busy_s)
            seconds = device_seconds(self.target.device, sending)
            return seconds, sent[0]

        self.synchronize()
        if state == "called":
            begin = time.perf_counter()
            call()
            self.synchronize()
            return time.perf_counter() - begin
        return hiding(sample, host_s) if self.target.device == "CUDA" else sample(0.0)[0]

    def canary(self) -> tuple[float, str]:
        """As `kcg.measure.canary` has it, made once; the whole of its output is looked at every time."""
        import numpy as np
        from tinygrad import Tensor

        from kcg.compat.jit import captured_at_once
        from kcg.measure.canary import CPU_BYTES, DEVICE_BYTES, SAMPLES

        if self._canary is None:
            size = (CPU_BYTES if self.target.device == "CPU" else DEVICE_BYTES) // 4
            values = np.arange(size, dtype=np.int32)
            source, jitted = Tensor(values).realize(), captured_at_once(lambda x: (x * 3 + 7).contiguous())
            jitted(x=source)
            self._canary = (lambda: jitted(x=source), values * 3 + 7)
        call, expected = self._canary
        host_s = host_seconds(self, call)
        taken = [self.seconds(call, "warm", host_s) for _ in range(2 * SAMPLES)][SAMPLES:]
        right = np.array_equal(call().numpy(), expected)
        return statistics.median(taken), "" if right else "its result is wrong"
