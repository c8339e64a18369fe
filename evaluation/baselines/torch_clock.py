"""The clock of what runs in PyTorch."""

from __future__ import annotations

import time
from typing import Any

from kcg.compat.events import SPIN_HZ, hidden_s, hiding
from kcg.measure.protocol import flush_bytes
from kcg.measure.sensors import NoSensors, NvidiaSensors, Sensors

from .clocks import Call


class TorchClock:
    """For what runs in PyTorch on `cpu` or `cuda`."""

    def __init__(self, device: str) -> None:
        import torch

        self.torch: Any = torch
        self.on_cuda = device == "cuda"
        self.device = device
        cache = torch.cuda.get_device_properties(0).L2_cache_size if self.on_cuda else 0
        elements = flush_bytes("CUDA" if self.on_cuda else "CPU", cache) // 4
        self._flush = torch.ones(elements, dtype=torch.int32, device=device)
        self.sensors: Sensors = _sensors() if self.on_cuda else NoSensors()

    def synchronize(self) -> None:
        if self.on_cuda:
            self.torch.cuda.synchronize()

    def seconds(self, call: Call, state: str, host_s: float) -> float:
        def sample(busy_s: float) -> tuple[float, float]:
            flush()
            first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin = time.perf_counter()
            self.torch.cuda._sleep(int(busy_s * SPIN_HZ))
            first.record()
            call()
            sent_s = time.perf_counter() - begin
            last.record()
            last.synchronize()
            return float(first.elapsed_time(last)) * 1e-3, sent_s

        def flush() -> None:
            if state == "cold":
                self._flush.add_(1)  # a kernel that writes: a driver's memset may bypass the cache
                self.synchronize()

        self.synchronize()
        if state != "called" and self.on_cuda:
            return hiding(sample, hidden_s(host_s))[0]
        flush()
        begin = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - begin

    def canary(self) -> tuple[float, str]:
        """The median of some copies that compute, as `kcg.measure.canary` has them, and what of them is wrong."""
        from statistics import median

        from kcg.measure.canary import CPU_BYTES, DEVICE_BYTES, SAMPLES

        source = self.torch.arange((DEVICE_BYTES if self.on_cuda else CPU_BYTES) // 4, device=self.device)
        source = source.to(self.torch.int32)
        taken = [self.seconds(lambda: source * 3 + 7, "warm", 50e-6) for _ in range(2 * SAMPLES)][SAMPLES:]
        right = bool(((source * 3 + 7).long() == source.long() * 3 + 7).all())
        return median(taken), "" if right else "its result is wrong"


def _sensors() -> Sensors:
    try:
        return NvidiaSensors()
    except Exception:  # NVML is absent or refuses: many kinds of error, all of which mean that nothing is told
        return NoSensors()
