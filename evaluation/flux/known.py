"""Schedules that a campaign or a run of kcg has timed, as a correction saw them: chosen one after the other by what it
expects of them, and what each promised and what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from evaluation.search.device_journal import DeviceJournal
from kcg.errors import ScheduleError
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.opts.traits import TRAITS
from kcg.measure.protocol import median
from kcg.predictor.choice import choose_predictor
from kcg.predictor.correction import Correction, TileNumbers
from kcg.predictor.features import Array
from kcg.report.result import read_result
from kcg.search.problem import expected_improvement
from kcg.types import Region, Schedule, ScheduleKind, Target

AFTER: Final = (4, 8, 16, 32)  # measurements, tinygrad's own schedule not among them
Known = dict[Schedule, float | None]  # seconds; none where it failed
Data = tuple[Array, Array, Array, Array]  # of n schedules: predicted log-seconds, their doubt, features, measured
CORRECTIONS: Final[dict[str, Callable[[Array, Array], dict[str, Any]]]] = {  # what each is told of tiles and traits
    "features": lambda tiles, traits: {},
    "tiles": lambda tiles, traits: {"tiles": tiles},
    "tiles, kinds of Opts": lambda tiles, traits: {"tiles": tiles, "traits": traits[:, : len(TRAITS)]},
    "tiles, kinds of Opts, axes": lambda tiles, traits: {"tiles": tiles, "traits": traits},
}


def known_of(journals: Sequence[DeviceJournal], results: Sequence[Path]) -> dict[str, Known]:
    """By region: every schedule of Opts that was timed."""
    found: dict[str, Known] = {}
    for path in results:
        result = read_result(path)
        for expectation in result.expectations:
            known = found.setdefault(result.with_inside[expectation.region].region.id, {})
            known[expectation.schedule] = expectation.measured_s
    for journal in journals:
        for region_id, seen in journal.kernels.items():
            known = found.setdefault(region_id, {})
            known |= {s: median(paired["cold_s"]) for s, paired in seen.comparisons.items() if paired.get("cold_s")}
            known |= {schedule: row.runtime_s for schedule, row in seen.rows.items()}
    return {i: {s: t for s, t in known.items() if s.kind == ScheduleKind.OPTS} for i, known in found.items()}


def followed(region: Region, target: Target, known: Known, predictor: Any) -> Iterator[tuple[str, list[float]]]:
    """By correction: how far the best is behind the best known, in log-seconds, after each of `AFTER`."""
    space = KernelSpace(region, target)
    judged, data = seen_by(predictor, space, known)
    tiles, traits = tiles_and_traits(space, judged)
    for name, columns in CORRECTIONS.items():
        yield name, behind(data, columns(tiles, traits), judged.index(space.baseline()))


def tiles_and_traits(space: KernelSpace, schedules: Sequence[Schedule]) -> tuple[Array, Array]:
    """(n,) numbers of tiles and (n, t) traits: what a correction may be told of schedules."""
    numbers = TileNumbers(space)
    traits = [space.groups(schedule) for schedule in schedules]
    return np.array([numbers[schedule] for schedule in schedules]), np.array(traits, np.int64)


def seen_by(predictor: Any, space: KernelSpace, known: Known) -> tuple[list[Schedule], Data]:
    """The schedules, in order, that kcg's action space has and the predictor can judge, and what is told of them."""
    schedules = list[Schedule]()
    for schedule in known:
        with contextlib.suppress(ScheduleError):  # BEAM takes steps that kcg's action space leaves out
            space.state(schedule)
            schedules.append(schedule)
    expectation, states = predictor.embed(space, schedules)
    where = [i for i, state in enumerate(states) if state is not None]
    judged = [schedules[i] for i in where]
    log_s = np.log([seconds if (seconds := known[schedule]) is not None else np.nan for schedule in judged])
    predicted, doubt = (
        np.array([expectation[i].log_runtime for i in where]),
        np.array([expectation[i].uncertainty for i in where]),
    )
    return judged, (predicted, doubt, np.stack([states[i] for i in where]), log_s)


def behind(data: Data, columns: dict[str, Any], first: int) -> list[float]:
    """The same of one correction, which is told of some columns; `first` is measured before any other."""
    predicted, doubt, features, log_s = data
    done, found = [first], list[float]()
    for count in range(1, min(max(AFTER), len(log_s) - 1) + 1):
        correction = Correction(features)
        correction.observe(features[done], predicted[done], log_s[done], **{k: c[done] for k, c in columns.items()})
        mean, deviation = correction.corrected(features, predicted, doubt, **columns)
        best_s = float(np.exp(np.nanmin(log_s[done])))
        gains = [expected_improvement(m, d, best_s) for m, d in zip(mean.tolist(), deviation.tolist(), strict=True)]
        order = np.lexsort((mean, -np.array(gains)))  # where nothing promises more: what is expected to be fastest
        done.append(int(order[~np.isin(order, done)][0]))
        if count in AFTER:
            found.append(float(np.nanmin(log_s[done]) - np.nanmin(log_s)))
    return found + [0.0] * (len(AFTER) - len(found))  # all that is known was measured


FIRST: Final = 4  # measurements of a kernel that only teach


@dataclass(frozen=True)
class Promise:
    """One measurement, as the correction saw it before: shares of the best time then, deviations in log-seconds."""

    deviation: float
    surprise: float  # how many deviations it was slower than expected
    promised: float  # expected improvement
    gained: float


def promises_of(path: Path) -> Iterator[Promise]:
    """Of every measurement in a RESULT.json, a kernel after the other, but the `FIRST` of each."""
    result = read_result(path)
    predictor = choose_predictor("auto", result.target)
    opts = [e for e in result.expectations if e.schedule.kind == ScheduleKind.OPTS]
    for place, row in enumerate(result.with_inside):
        data = sorted((e for e in opts if e.region == place), key=lambda e: e.elapsed_s)
        timed: Known = {row.baseline.schedule: row.baseline.cold_s}
        timed |= {e.schedule: e.measured_s for e in data if e.measured_s}
        if len(timed) > FIRST + 1:
            space = KernelSpace(row.region, result.target)
            schedules, seen = seen_by(predictor, space, timed)
            tiles, traits = tiles_and_traits(space, schedules)
            yield from kept(seen, {"tiles": tiles, "traits": traits})


def kept(data: Data, columns: dict[str, Any]) -> Iterator[Promise]:
    """Of n schedules in the order in which they were measured, tinygrad's own first."""
    predicted, doubt, features, log_s = data
    for count in range(FIRST + 1, len(log_s)):
        done, this = slice(count), slice(count, count + 1)
        correction = Correction(features)
        before, asked = ({name: column[which] for name, column in columns.items()} for which in (done, this))
        correction.observe(features[done], predicted[done], log_s[done], **before)
        (mean,), (deviation,) = correction.corrected(features[this], predicted[this], doubt[this], **asked)
        best_s, time_s = float(np.exp(log_s[done].min())), float(np.exp(log_s[count]))
        yield Promise(
            float(deviation),
            float((log_s[count] - mean) / deviation),
            expected_improvement(float(mean), float(deviation), best_s),
            max(1.0 - time_s / best_s, 0.0),
        )
