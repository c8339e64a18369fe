"""95 % intervals of figures: over seeds for single networks, over kernels or regions for all else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from evaluation.rows import rounded
from kcg.predictor.features import Array
from kcg.predictor.metrics import KernelScores, summary

RESAMPLES = 1000


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean over seeds (Student's t); 0 for one seed."""
    from scipy.special import stdtrit  # of `scipy.stats`, which takes a second longer to import, `t.ppf` is this

    n = len(values)
    return float(stdtrit(n - 1, 0.975)) * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else 0.0


def interval(
    found: list[KernelScores], calls: Array, name: str, *, seed: int = 0, share: float = 0.95
) -> tuple[float, float]:
    """A bootstrap interval over kernels of one entry of `summary`."""
    rng = np.random.default_rng(seed)
    drawn = [
        summary([found[i] for i in rng.integers(0, len(found), len(found))], calls)[name] for _ in range(RESAMPLES)
    ]
    low, high = np.nanquantile(drawn, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


def share_figure(logs: Sequence[float]) -> dict[str, Any]:
    """Of shares, as logarithms: the geometric mean, its interval, and the tenth percentile."""
    return {
        "share": rounded(float(np.exp(np.mean(logs)))),
        "interval": [rounded(float(end)) for end in np.exp(ratio_interval([(one, 1.0) for one in logs]))],
        "p10": rounded(float(np.quantile(np.exp(logs), 0.1))),
    }


def ratio_interval(parts: Sequence[tuple[float, float]], *, seed: int = 0) -> tuple[float, float]:
    """The bootstrap interval of a ratio of sums, the parts (of a region each) drawn with replacement. Of a mean every
    second number is 1."""
    values = np.array(parts, np.float64)
    rng = np.random.default_rng(seed)
    sums = values[rng.integers(0, len(values), (RESAMPLES, len(values)))].sum(1)
    with np.errstate(all="ignore"):
        low, high = np.nanquantile(sums[:, 0] / sums[:, 1], (0.025, 0.975))
    return float(low), float(high)
