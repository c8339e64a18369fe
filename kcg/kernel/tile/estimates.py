"""What the analytic costs of all forms share: how times add up, and what accesses move.

A handful of constants is fitted to measured times (`Figures`); the rest is published. A cost is to rank programs of one
kernel: what all of them pay alike is only roughly right.
"""

from __future__ import annotations

import math

from kcg.compat.tiny import Ops
from kcg.kernel.ast import extent
from kcg.kernel.reading.accesses import Access

LAUNCH_S = 5e-6
"""Of a launch between two events, whatever it does."""
BESIDE_SUMS = 56  # registers of a thread beside its float32 sums
SPECIAL = (Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.SQRT, Ops.RECIPROCAL)
SPILLED = 32  # registers too few of a thread for which a program takes twice as long


def either(*seconds: float, sharp: float = 4) -> float:
    """Whatever takes longest, and somewhat more where several take about as long."""
    longest = max(seconds)
    return longest * float(sum((s / longest) ** sharp for s in seconds)) ** (1 / sharp) if longest > 0 else 0.0


def spilled(wanted: float, most: int, limit: int) -> float:
    """How many times as long it takes for want of registers, of which a thread has so many at most; `limit`: and no
    more than that, where it is not 0."""
    return 1 + max(0.0, wanted - min(limit or most, most)) / SPILLED


def bytes_of(access: Access) -> float:
    """Bytes of memory that an access reaches."""
    return min(spans_of(access), access.buffer.size) * int(access.buffer.dtype.itemsize)


def spans_of(access: Access) -> float:
    """Elements that an access reaches."""
    return float(math.prod(extent(r) for r in access.address.ranges))


def waves_of(turns: float) -> float:
    """Waves of so many turns of all programs that run at once: of many, how full the last one is matters little."""
    return max(1.0, math.ceil(turns) if turns < 4 else turns)
