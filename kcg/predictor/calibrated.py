"""What a sweep on one device adds to a predictor: how far off it is there, as a line in log-seconds.

A predictor that never saw a GPU ranks its schedules about as well as those of others, but errs in their level: more for
what is bound by arithmetic than for what is bound by memory, for instance. So for each kind of schedules a line is
fitted to what was measured less what was predicted, over what was predicted: two numbers by ridge regression, since a
sweep has few rows and these come in families. What it is worth is asked of families that it was not fitted on, and a
line that brings nothing is not kept. docs/predictor.md, "A device that nobody recorded", has figures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kcg.errors import DataError
from kcg.files import cache_folder, read_limited, write_whole
from kcg.predictor.features import Array
from kcg.predictor.interface import Judge
from kcg.types import Prediction, Schedule, Target, content_id

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space
    from kcg.predictor.interface import Predictor

FORMAT: Final = 1
FOLDER: Final = "calibrated"  # in the user's cache
MOST_BYTES: Final = 1 << 16
LEVEL, SLOPE = 0.5, 2.0  # ridge: rows that speak for no shift, and squared log-seconds for no slope
LEAST_ROWS: Final = 20  # of a kind, or there is no line
LEAST_FAMILIES: Final = 3
DEVIATIONS: Final = 1.4826  # of a normal distribution: its standard deviation over the median of what lies off it
ENDS: Final = (0.05, 0.95)  # of what was swept, beyond which a line is flat
LEAST_SLOPE: Final = -0.8  # what is predicted to take longer is so with the line, too


@dataclass(frozen=True)
class Line:
    """Log-seconds to add to what is predicted: `level` where that is `centre`, and `slope` more for each beyond it, but
    no more than at the ends of what was swept, `low` and `high`. `deviation` is what is left, a standard deviation;
    `before` and `after` are median errors of families that the line was not fitted on, without it and with it."""

    level: float
    slope: float
    centre: float
    low: float
    high: float
    deviation: float
    rows: int
    before: float = 0.0
    after: float = 0.0

    def shift(self, log_s: float) -> float:
        return self.level + self.slope * (min(max(log_s, self.low), self.high) - self.centre)

    def of(self, one: Prediction) -> Prediction:
        """A prediction on this device."""
        log_s, sigma = one.log_runtime + self.shift(one.log_runtime), max(one.uncertainty, self.deviation)
        return replace(one, log_runtime=log_s, uncertainty=sigma)


@dataclass(frozen=True)
class Calibration:
    """The lines of one device, by kind of schedules, for one predictor."""

    target: str  # its fingerprint
    model: str
    predictor: str  # its name
    lines: Mapping[str, Line]
    about: Mapping[str, Any] = field(default_factory=dict)  # revision, day, and what else may be asked later


def fitted(predicted: Array, measured: Array) -> Line:
    """The line through some rows, in log-seconds."""
    left, centre = np.asarray(measured - predicted), float(np.mean(predicted))
    x = np.stack([np.ones(len(left)), predicted - centre], 1)
    level, slope = np.linalg.solve(x.T @ x + np.diag([LEVEL, SLOPE]), x.T @ left)
    deviation = DEVIATIONS * float(np.median(np.abs(left - x @ [level, slope])))
    low, high = map(float, np.quantile(predicted, ENDS))
    return Line(float(level), max(float(slope), LEAST_SLOPE), centre, low, high, deviation, len(left))


def line_of(predicted: Array, measured: Array, families: Sequence[str]) -> Line | None:
    """The line through some rows, with what it is worth for families that it was not fitted on; None where they are
    too few, or it is worth nothing."""
    names = sorted(set(families))
    if len(predicted) < LEAST_ROWS or len(names) < LEAST_FAMILIES:
        return None
    own, left = np.array(families), np.zeros(len(predicted))
    for name in names:
        inside = own == name
        line = fitted(predicted[~inside], measured[~inside])
        left[inside] = measured[inside] - predicted[inside] - [line.shift(one) for one in predicted[inside]]
    before, after = (float(np.median(np.abs(one))) for one in (measured - predicted, left))
    return replace(fitted(predicted, measured), before=before, after=after) if after < before else None


class Calibrated:
    """A predictor with what a sweep on this device added to it."""

    def __init__(self, inner: Predictor, calibration: Calibration) -> None:
        self.inner, self._calibration = inner, calibration
        self.name = f"{inner.name}, calibrated"

    def predict(self, space: Space, schedules: Sequence[Schedule]) -> list[Prediction]:
        """See `Predictor`."""
        return self._shifted(schedules, self.inner.predict(space, schedules))

    def of(self, space: Space) -> Judge:
        """What it says of one kernel; what is measured of that tells its level, and the line is not asked any more."""
        judge = self.inner.of(space)
        return Judge(lambda schedules: self._shifted(schedules, judge.predict(schedules)), judge.correct)

    def beside(self, other: Predictor) -> Calibrated:
        """The same of another predictor, which judges another kind of schedules."""
        return Calibrated(other, self._calibration)

    def _shifted(self, schedules: Sequence[Schedule], predictions: Sequence[Prediction]) -> list[Prediction]:
        lines = self._calibration.lines
        return [
            one if (line := lines.get(schedule.kind)) is None else line.of(one)
            for schedule, one in zip(schedules, predictions, strict=True)
        ]


# ---- the file


def file_of(target: Target) -> Path:
    """Where that of a target stands."""
    return cache_folder(FOLDER) / f"{content_id(target.fingerprint)[:16]}.json"


def write(path: Path, calibration: Calibration) -> None:
    """Write it, whole or not at all."""
    values = {**asdict(calibration), "lines": {kind: asdict(one) for kind, one in calibration.lines.items()}}
    write_whole(path, json.dumps({"format": FORMAT, **values}, indent=1, sort_keys=True) + "\n")


def read(path: Path) -> Calibration:
    """What `write` wrote. Raises DataError where there is nothing that can be used."""
    try:
        values = json.loads(read_limited(path, most_bytes=MOST_BYTES))
        if values.pop("format") != FORMAT:
            raise DataError(f"{path} is of another version of kcg: run kcg calibrate again")
        lines = {str(kind): Line(**one) for kind, one in values.pop("lines").items()}
        found = Calibration(lines=lines, **values)
        numbers = [number for one in lines.values() for number in asdict(one).values()]
        if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
            raise ValueError("a number of it is none")
        texts = (found.target, found.model, found.predictor, *lines)
        if not all(isinstance(text, str) and text.isprintable() for text in texts):
            raise ValueError("a name of it is none")
        if not (isinstance(found.about, dict) and isinstance(found.about.get("rows", {}), dict)):
            raise ValueError("what it says of itself is none")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no calibration that can be read ({error}): run kcg calibrate again") from error
    return found


def calibration_of(target: Target, predictor: str) -> Calibration | None:
    """That of a target in the user's cache, for a predictor of this name; None where there is none that can be used."""
    if not (path := file_of(target)).exists():
        return None
    try:
        found = read(path)
    except DataError:
        return None
    return found if (found.target, found.predictor) == (target.fingerprint, predictor) else None
