"""A predictor corrected, while searching one kernel, by what was measured.

Three corrections, from what is common to all schedules to what is particular to one:

1. A line through (predicted, measured): measured = intercept + slope × predicted. The slope starts at 1, the
   predictor as it is, and is kept at 0 or above: a predictor that ranks this kernel's schedules backwards is ignored.
2. What remains, averaged over the measured schedules near by: the neighbours of one that was faster than predicted
   are expected to be faster as well. Near means few steps apart.
3. Failures near by raise the probability of failure.

All are closed sums that a new measurement adds to, so correcting 10,000 candidates takes milliseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from kcg.types import Prediction

NEARNESS: Final = tuple(math.exp(-distance) for distance in range(64))
"""Weight of a measured schedule by its distance in steps: one step added is 1, one replaced is 2."""

SLOPE_RIDGE: Final = 1.0  # holds the slope at 1 until the predictions measured spread by more (log-seconds², summed)
LOCAL_RIDGE: Final = 0.5  # weight of the line against the neighbours; one neighbour a step away weighs 0.37
PRIOR_DEVIATION: Final = 0.3  # error expected of a predictor before anything is measured, in log-seconds
PRIOR_COUNT: Final = 2.0  # how many measurements that expectation is worth


def distance(steps: int, others: int) -> int:
    """How many steps two schedules differ by; each is a set of steps, one bit a step."""
    return (steps ^ others).bit_count()


@dataclass(slots=True)
class Evidence:
    """What was measured near one schedule: sums weighted by `NEARNESS`."""

    weight: float = 0.0  # of those that succeeded
    measured: float = 0.0  # log-seconds
    predicted: float = 0.0  # log-seconds
    failed: float = 0.0  # weight of those that failed


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured schedule: its steps, and predicted and measured log-seconds (`measured` is None where it failed)."""

    steps: int
    predicted: float
    measured: float | None


class Calibration:
    """The correction for one kernel. `add` every measurement, then ask `expected`."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.slope = 1.0
        self.intercept = 0.0
        self.variance = PRIOR_DEVIATION**2  # of what the line leaves over

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        done = [(t.predicted, t.measured) for t in self.trials if t.measured is not None]
        if not done:
            return
        mean_p, mean_m = sum(p for p, _ in done) / len(done), sum(m for _, m in done) / len(done)
        spread = sum((p - mean_p) ** 2 for p, _ in done)
        together = sum((p - mean_p) * (m - mean_m) for p, m in done)
        self.slope = min(max((SLOPE_RIDGE + together) / (SLOPE_RIDGE + spread), 0.0), 2.0)
        self.intercept = mean_m - self.slope * mean_p
        left = sum((m - self.intercept - self.slope * p) ** 2 for p, m in done)
        self.variance = (PRIOR_COUNT * PRIOR_DEVIATION**2 + left) / (PRIOR_COUNT + len(done))

    def evidence(self, steps: int) -> Evidence:
        """What was measured so far near a schedule; `extend` keeps it up to date."""
        evidence = Evidence()
        for trial in self.trials:
            self.extend(evidence, steps, trial)
        return evidence

    @staticmethod
    def extend(evidence: Evidence, steps: int, trial: Trial) -> None:
        weight = NEARNESS[min(distance(steps, trial.steps), len(NEARNESS) - 1)]
        if trial.measured is None:
            evidence.failed += weight
        else:
            evidence.weight += weight
            evidence.measured += weight * trial.measured
            evidence.predicted += weight * trial.predicted

    def expected(self, prediction: Prediction, evidence: Evidence) -> Prediction:
        """The prediction corrected; its uncertainty shrinks with what was measured near by."""
        left = evidence.measured - self.intercept * evidence.weight - self.slope * evidence.predicted
        doubt = LOCAL_RIDGE / (LOCAL_RIDGE + evidence.weight)
        near = LOCAL_RIDGE + evidence.weight + evidence.failed
        return Prediction(
            log_runtime=self.intercept + self.slope * prediction.log_runtime + left / (LOCAL_RIDGE + evidence.weight),
            uncertainty=math.sqrt(self.variance * doubt),
            failure_probability=(LOCAL_RIDGE * prediction.failure_probability + evidence.failed) / near,
        )
