"""A clock for either library, by kcg's protocol: device events, the last-level cache flushed or not.

Both hide the host in the same way: before the first event the device is kept busy for as long as the host needs to
send the call off. Whether it was long enough is seen afterwards: a host that was not done by then is given more time,
and the sample is taken again. What a caller waits for, host included, is the state `called`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from kcg.measure.sensors import Sensors

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
