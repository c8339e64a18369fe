"""The clock of what runs in tinygrad."""

from __future__ import annotations

import statistics
import time
from typing import Any

from kcg.measure.sensors import sensors_for

from .clocks import Call, host_seconds


class TinyClock:
    """For what runs on tinygrad's device `dev`."""

    def __init__(self, dev: str) -> None:
        from kcg.compat.events import StepClock
        from kcg.kernel.actions import ACTION_SPACE_VERSION
        from kcg.measure.target import detect
        from kcg.measure.workbench import CacheFlusher

        self.target, self.toolchain = detect(dev, ACTION_SPACE_VERSION)
        self.dev, self.sensors = dev, sensors_for(self.target)
        self._canary: Any = None
        self._flusher, self._clock = CacheFlusher(self.target), StepClock(self.target.device)

    def synchronize(self) -> None:
        from kcg.compat.events import synchronize

        synchronize(self.target.device)

    def seconds(self, call: Call, state: str, host_s: float) -> float:
        from kcg.compat.events import hidden_s, hiding

        def sample(busy_s: float) -> tuple[float, float]:
            if state == "cold":
                self._flusher.flush()
            return self._clock.sample(call, busy_s)

        self.synchronize()
        if state == "called":
            begin = time.perf_counter()
            call()
            self.synchronize()
            return time.perf_counter() - begin
        return hiding(sample, hidden_s(host_s))[0] if self.target.device == "CUDA" else sample(0.0)[0]

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
