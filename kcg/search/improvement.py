"""What measuring a schedule is expected to gain (expected improvement: Jones, Schonlau and Welch, 1998)."""

from __future__ import annotations

import math
from typing import Final

PRIOR_GAIN: Final = 0.3
"""Expected relative gain of a kernel before anything is predicted of it."""
LEAST_DOUBT: Final = 0.03
"""Standard deviation in log-seconds of a predictor that says that it has none."""


def expected_improvement(log_s: float, doubt: float, best_s: float) -> float:
    """The expected share by which a schedule is faster than the best known, 0 where it is slower: its runtime is
    lognormal, of this mean and standard deviation in log-seconds."""
    sigma = max(doubt, LEAST_DOUBT)
    below = (math.log(best_s) - log_s) / sigma
    ratio = math.exp(min(log_s - math.log(best_s) + sigma * sigma / 2, 50.0))
    return max(_normal(below) - ratio * _normal(below - sigma), 0.0)


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))
