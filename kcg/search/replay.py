"""A recorded table in the place of a device: the same search space, the same costs, no waiting.

A `ReplayTable` holds schedules of one region with what measuring each showed, and the legal steps between them. It is
an `ActionSpace`, measures from its records and charges the ledger as a device would, so strategies are tested and
compared on equal terms. Its JSON is made to be kept beside tests and evaluations.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from kcg.dataset.records import status_and_reason
from kcg.errors import DataError, ScheduleError
from kcg.search.interface import Action, ActionSpace, Ledger, Measure, Observation, Predict, Problem
from kcg.types import Opt, Prediction, Schedule, ScheduleKind, Status, canonical_json

FORMAT = "kcg-replay-1"


@dataclass(frozen=True)
class Record:
    """One schedule of a table: its identity for transpositions, what measuring it showed, and the steps from it."""

    key: str
    observation: Observation
    actions: tuple[Action, ...] = ()


class ReplayTable:
    """Recorded schedules of one region. Every action must lead to a schedule of the table.

    Raises:
        DataError: the start, the baseline or the target of an action is not recorded, or a schedule is there twice.
    """

    def __init__(self, records: Iterable[Record], *, start: Schedule, baseline: Schedule) -> None:
        self.records: dict[Schedule, Record] = {}
        for record in records:
            if record.observation.schedule in self.records:
                raise DataError(f"replay table: schedule {record.observation.schedule} is recorded twice")
            self.records[record.observation.schedule] = record
        self._start, self._baseline = start, baseline
        ends = {a.schedule for r in self.records.values() for a in r.actions}
        for schedule in (start, baseline, *sorted(ends, key=str)):
            if schedule not in self.records:
                raise DataError(f"replay table: schedule {schedule} is not recorded")

    # an ActionSpace

    def start(self) -> Schedule:
        return self._start

    def baseline(self) -> Schedule:
        return self._baseline

    def actions(self, schedule: Schedule) -> list[Action]:
        return list(self._record(schedule).actions)

    def step(self, schedule: Schedule, opt: Opt) -> Schedule | None:
        """Where an Opt leads, None where the table has no such step."""
        return next((a.schedule for a in self._record(schedule).actions if a.label == str(opt)), None)

    def key(self, schedule: Schedule) -> str:
        return self._record(schedule).key

    def _record(self, schedule: Schedule) -> Record:
        if schedule not in self.records:
            raise ScheduleError(f"schedule {schedule} is not in the replay table")
        return self.records[schedule]

    # measuring

    def measurer(self, ledger: Ledger) -> Measure:
        """A `measure` that answers at once and charges `ledger` once for what is new.

        Each kernel costs a compilation and each binary a measurement. What failed before there was a binary
        (`binary_hash` is empty) costs its compilation only.
        """
        return charged(ledger, self.key, lambda schedules: [self._record(s).observation for s in schedules])

    def problem(
        self, predict: Predict, *, seed: int = 0, max_measurements: int | None = None, ledger: Ledger | None = None,
        batch_size: int = 4,
    ) -> Problem:  # fmt: skip
        """This table as a problem of its own, with a budget in measurements or a ledger of the caller's."""
        ledger = ledger or Ledger(max_measurements=max_measurements)
        rng, measure = random.Random(seed), self.measurer(ledger)
        return Problem(self, predict, measure, ledger, rng, batch_size=batch_size, step=self.step)

    @property
    def best_s(self) -> float:
        """The fastest runtime of the table in seconds; infinite where everything failed."""
        return min(r.observation.time_s for r in self.records.values())

    @staticmethod
    def record(space: ActionSpace, observations: Iterable[Observation]) -> ReplayTable:
        """A table of what was observed, start and baseline among it; steps to schedules not observed are left out.

        A step may lead to the same kernel by another order of steps: it is recorded as leading to the one observed.

        Raises:
            DataError: the start or the baseline was not observed.
        """
        by_key: dict[str, Observation] = {}
        for observation in observations:
            by_key.setdefault(space.key(observation.schedule), observation)
        records = []
        for key, observation in by_key.items():
            steps = [(a.label, by_key.get(space.key(a.schedule))) for a in space.actions(observation.schedule)]
            actions = tuple(Action(label, end.schedule) for label, end in steps if end is not None)
            records.append(Record(key, observation, actions))
        ends = [by_key.get(space.key(s)) for s in (space.start(), space.baseline())]
        if ends[0] is None or ends[1] is None:
            raise DataError("replay table: the start or the baseline was not observed")
        return ReplayTable(records, start=ends[0].schedule, baseline=ends[1].schedule)

    # JSON

    def to_json(self) -> str:
        """The table as JSON; schedules are named by their place in the list."""
        places = {schedule: i for i, schedule in enumerate(self.records)}
        rows = []
        for record in self.records.values():
            seen = record.observation
            rows.append({
                "kind": str(seen.schedule.kind), "body": json.loads(seen.schedule.body), "key": record.key,
                "status": str(seen.status), "runtime_s": seen.runtime_s, "binary_hash": seen.binary_hash,
                "reason": seen.reason, "actions": [[a.label, places[a.schedule]] for a in record.actions],
            })  # fmt: skip
        table = {"format": FORMAT, "start": places[self._start], "baseline": places[self._baseline], "schedules": rows}
        return canonical_json(table)

    @staticmethod
    def from_json(text: str) -> ReplayTable:
        """Reads what `to_json` wrote, and nothing else.

        Raises:
            DataError: it is not JSON, not a replay table, or a value in it is of the wrong kind or out of range.
        """
        try:
            data = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise DataError(f"replay table: not JSON ({str(error).splitlines()[0]})") from error
        _fields(data, {"format", "start", "baseline", "schedules"}, "table")
        if data["format"] != FORMAT:
            raise DataError(f"replay table: format {data['format']!r} is not {FORMAT!r}")
        rows = data["schedules"]
        if not isinstance(rows, list):
            raise DataError("replay table: schedules is not a list")
        observations = [_observation(row, i) for i, row in enumerate(rows)]
        records = []
        for i, (row, observation) in enumerate(zip(rows, observations, strict=True)):
            if not isinstance(row["actions"], list):
                raise DataError(f"replay table: actions of schedule {i} are not a list")
            actions = []
            for pair in row["actions"]:
                if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
                    raise DataError(f"replay table: an action of schedule {i} is not [label, place]")
                actions.append(Action(pair[0], observations[_place(pair[1], len(rows))].schedule))
            records.append(Record(row["key"], observation, tuple(actions)))
        ends = [observations[_place(data[name], len(rows))].schedule for name in ("start", "baseline")]
        return ReplayTable(records, start=ends[0], baseline=ends[1])


def charged(
    ledger: Ledger, key: Callable[[Schedule], str], answer: Callable[[Sequence[Schedule]], list[Observation]]
) -> Measure:
    """A `measure` that answers at once by `answer`, and charges each kernel and each binary once."""
    compiled: set[str] = set()
    timed: set[str] = set()

    def measure(schedules: Sequence[Schedule]) -> list[Future[Observation]]:
        futures = []
        for schedule, observation in zip(schedules, answer(schedules), strict=True):
            if (identity := key(schedule)) not in compiled:
                compiled.add(identity)
                ledger.compilations += 1
                if observation.binary_hash and observation.binary_hash not in timed:
                    timed.add(observation.binary_hash)
                    ledger.measurements += 1
            future: Future[Observation] = Future()
            future.set_result(observation)
            futures.append(future)
        return futures

    return measure


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")


def _fields(value: Any, names: set[str], what: str) -> None:
    if not isinstance(value, dict) or set(value) != names:
        raise DataError(f"replay table: {what} does not have exactly the fields {', '.join(sorted(names))}")


def _place(value: Any, count: int) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise DataError(f"replay table: {value!r} is not the place of one of {count} schedules")
    return value


_ROW = {"kind", "body", "key", "status", "runtime_s", "binary_hash", "reason", "actions"}


def _observation(row: Any, i: int) -> Observation:
    _fields(row, _ROW, f"schedule {i}")
    for name in ("kind", "key", "status", "binary_hash", "reason"):
        if not isinstance(row[name], str):
            raise DataError(f"replay table: {name} of schedule {i} is not a string")
    if row["kind"] not in set(ScheduleKind) or row["status"] not in set(Status):
        raise DataError(f"replay table: schedule {i} has an unknown kind or status")
    if row["kind"] == ScheduleKind.OPTS and not _is_opts(row["body"]):
        raise DataError(f"replay table: body of schedule {i} is not a list of [op, axis, arg]")
    runtime_s = row["runtime_s"]
    if row["status"] == Status.OK:
        if type(runtime_s) not in (int, float) or not 0 < runtime_s < math.inf:
            raise DataError(f"replay table: runtime of schedule {i} is not a positive number")
        runtime_s = float(runtime_s)
    elif runtime_s is not None:
        raise DataError(f"replay table: schedule {i} failed and has a runtime")
    schedule = Schedule(row["kind"], canonical_json(row["body"]))
    status, reason = status_and_reason(row["status"], row["reason"])
    return Observation(schedule, status, runtime_s, row["binary_hash"], reason)


def _is_opts(body: Any) -> bool:
    def is_arg(arg: Any) -> bool:
        return arg is None or type(arg) is int or (isinstance(arg, list) and all(type(x) is int for x in arg))

    return isinstance(body, list) and all(
        isinstance(o, list) and len(o) == 3 and isinstance(o[0], str) and (o[1] is None or type(o[1]) is int)
        and is_arg(o[2]) for o in body
    )  # fmt: skip


# Predictors for ablations


def oracle_predict(table: ReplayTable) -> Predict:
    """Knows every runtime and every failure; of what fails it says the mean of the others."""
    logs = [math.log(r.observation.runtime_s) for r in table.records.values() if r.observation.runtime_s is not None]
    mean = statistics.fmean(logs) if logs else 0.0

    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        times_s = [table.records[schedule].observation.time_s for schedule in schedules]
        return [Prediction(mean, 0.0, 1.0) if math.isinf(t) else Prediction(math.log(t)) for t in times_s]

    return predict


def constant_predict() -> Predict:
    """Knows nothing: a millisecond for every schedule."""
    return lambda schedules: [Prediction(math.log(1e-3)) for _ in schedules]
