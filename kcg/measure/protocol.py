"""Timing protocol v1: how many samples, in which cache state, and what is reported.

Random finite inputs; one warm-up run; N timed runs by the device's own clock (CUDA events on a GPU, the monotonic clock
around the call on a CPU); full grid; cold samples flush the last-level cache first by writing well over its size; raw
samples are kept and the median is reported. A change of any of this is a new version, never a silent one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

PROTOCOL = 1

MIN_SAMPLES = 5
MAX_SAMPLES = 30
SAMPLING_S = 0.25  # what the samples of one kernel may cost beyond the minimum, flushes not counted
SEARCH_SAMPLES = 3  # during a search; such measurements are marked `early_stop`
FLUSH_FACTOR = 2.0  # bytes written by a flush, as a multiple of the last-level cache
MIN_FLUSH_BYTES = {"CPU": 64 << 20}
DEFAULT_FLUSH_BYTES = 256 << 20  # an H200 has 60 MB of L2 and needs at least 200 MB written


def samples_for(first_s: float) -> int:
    """How many samples a kernel of about `first_s` seconds gets: many for short ones, five for long ones."""
    return max(MIN_SAMPLES, min(MAX_SAMPLES, int(SAMPLING_S / max(first_s, 1e-9))))


def flush_bytes(device: str, cache_bytes: int) -> int:
    """How much a flush writes so that nothing of a kernel's data is left in the last-level cache."""
    return max(MIN_FLUSH_BYTES.get(device, DEFAULT_FLUSH_BYTES), int(FLUSH_FACTOR * cache_bytes))


def median_interval(samples: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float]:
    """A confidence interval of the median from order statistics, free of assumptions on the distribution.

    With fewer than six samples the interval is the whole range (its coverage is then 1 - 2^(1-n)).
    See David and Nagaraja, Order Statistics, section 7.1.
    """
    ordered = sorted(samples)
    count = len(ordered)
    if count < 6:
        return ordered[0], ordered[-1]
    from scipy.stats import binom

    below = int(binom.ppf((1 - confidence) / 2, count, 0.5))
    low = max(below - 1, 0)
    return ordered[low], ordered[count - 1 - low]


def median(samples: Sequence[float]) -> float:
    """The median in seconds."""
    return statistics.median(samples)
