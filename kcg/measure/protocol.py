"""Timing protocol v1: how many samples, in which cache state, what disqualifies them, and what is reported.

Random finite inputs of the ordinary recipe; one warm-up run; N timed runs by the device's own clock (CUDA events on a
GPU, the monotonic clock around the call on a CPU); full grid. Before each cold sample the outputs are poisoned, and
then the last-level cache is flushed by writing well over its size. Warm samples follow each other, after one run on
poisoned outputs that is not timed. After each cold sample, and after the last warm one, the outputs must be those of
the first run, or the binary is wrong (`kcg.measure.verify.Watched`). Raw samples are kept and the median is reported.
Clock, temperature and power are recorded where the device tells them. Samples taken under a thermal or hardware
slow-down are taken again, a bounded number of times, and then the measurement is `noisy`; a power cap alone is no
reason (large matmuls run at it by nature).

A change of any of this is a new version, never a silent one. Poisoning and looking are outside of what the clock sees:
`evaluation/measure/watched_timing.py` compares the medians with and without, which differ by no more than noise, so the
version stayed 1. So it did when kernels of CUDA came to be timed behind a busy device, with a constant for what a lone
launch takes beside them (`kcg.compat.programs.ALONE_S`), which is in what two events tell. How many samples a search
takes is no part of it: rows of one are marked, and no figure is.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence

PROTOCOL = 1

MIN_SAMPLES = 5
SAMPLING_S = 0.1  # what the samples of one kernel may take beyond the minimum, flushes included
MOST_SAMPLES = ((20e-6, 120), (100e-6, 60), (float("inf"), 30))
"""Kernels shorter than so many seconds get at most so many samples. On one NVIDIA H200 medians of ten spread by 8 % at
6 µs (the floor: launch and events), 2 % at 50 µs, 0.4 % at 400 µs."""
SEARCH_SAMPLES = ((20e-6, 9), (100e-6, 5), (float("inf"), 3))
"""The same during a search; such measurements are marked `early_stop`."""
SHORT_S = 200e-6
"""A shorter kernel gets as many in a `careful` search as otherwise, where they take no longer than `CAREFUL_S`. With
the few above, times that searches told on one NVIDIA H200 strayed by 13 % below 20 µs, 9 % below 50 and 3 % below 200
from one run to the next, and by 0.9 % above: among schedules of short kernels a search chose by chance."""
CAREFUL_S = 0.05  # less than a tenth of what compiling a candidate takes

LEAST_LIMIT_S = 0.03
"""What takes less gets its samples however slow it is beside others: three cost little."""

SLOWDOWN_WAITS_S = (0.5, 1.0, 2.0)  # before samples that a slow-down spoiled are taken again

FLUSH_FACTOR = 2.0  # bytes written by a flush, as a multiple of the last-level cache
MIN_FLUSH_BYTES = {"CPU": 64 << 20}
DEFAULT_FLUSH_BYTES = 256 << 20  # an H200 has 60 MB of L2 and needs at least 200 MB written


def samples_for(first_s: float, *, flush_s: float = 0.0, early_stop: bool = False, careful: bool = False) -> int:
    """How many samples a kernel gets that took `first_s` seconds: many for short ones, few for long ones.

    `flush_s` is what the flush before each sample takes; `early_stop` asks for the few of a search, and `careful` for
    more of them where the kernel is short and flushing is quick.
    """
    each_s = max(first_s + flush_s, 1e-9)
    most, few = (next(n for limit, n in counts if first_s < limit) for counts in (MOST_SAMPLES, SEARCH_SAMPLES))
    if not early_stop:
        return max(MIN_SAMPLES, min(most, int(SAMPLING_S / each_s)))
    return max(few, min(most, int(CAREFUL_S / each_s))) if careful and first_s < SHORT_S else few


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
    low = max(_fair_quantile(count, (1 - confidence) / 2) - 1, 0)
    return ordered[low], ordered[count - 1 - low]


@functools.cache
def _fair_quantile(count: int, chance: float) -> int:
    """The least k that so many fair coins exceed in at most 1 - `chance` of cases: scipy's `binom.ppf(chance, count,
    0.5)`, whose import takes longer than a small kernel's whole measurement."""
    reached, k = 1, 0
    while reached / 2**count < chance:
        k += 1
        reached += math.comb(count, k)
    return k


def median(samples: Sequence[float]) -> float:
    """The median in seconds."""
    return statistics.median(samples)


def spread(first: Sequence[float], again: Sequence[float]) -> float:
    """How far two sets of samples of the same binary are apart: 0.01 where their medians differ by 1 %."""
    a, b = median(first), median(again)
    return abs(a - b) / min(a, b) if min(a, b) > 0 else 0.0
