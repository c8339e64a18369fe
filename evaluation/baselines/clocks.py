"""A clock for either library, by kcg's protocol: device events, the last-level cache flushed or not.

Both hide the host in the same way (`kcg.compat.events.hiding`): before the first event the device is kept busy for as
long as the host needs to send the call off. What a caller waits for, host included, is the state `called`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from kcg.measure.sensors import Sensors

STATES = ("cold", "warm", "called")
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
