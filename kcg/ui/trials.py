"""The trials of a run as its journal has them, also while they are written: each schedule of a kernel that was timed.

A journal is read by a connection that cannot write, and of one that grows only what is new: whoever watches a run on a
CPU takes little of it. Each row is checked by its checksum. What cannot be trusted is counted and left out, and a
journal that is damaged, locked or of another program is a sentence, never an error.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

from kcg.dataset.journal import ROW_ERRORS, expected_from_json, measurement_from_row
from kcg.dataset.schema import MEASUREMENT_COLUMNS, check_version, columns_of, only_reading, opened, selection
from kcg.errors import KcgError
from kcg.kernel.kinds import describe
from kcg.kernel.origins import TOGETHER, line_of
from kcg.nouns import plain
from kcg.report.formats import cut
from kcg.report.words import values_text
from kcg.types import Measurement, Schedule, Status, Variables
from kcg.ui.tables import Asked, Column

MOST_ROWS: Final = 100_000  # of measurements that are shown, the oldest first
AT_ONCE: Final = 10_000  # rows that are read for one look: more are read for the next
LONGEST_BYTES: Final = 16 << 20  # of one value: SQLite makes none that is longer
LOOK_S: Final = 5.0  # a query that takes longer is ended: a foreign file may hold one that never ends
BUSY_S: Final = 2.0

BASELINE, JUDGE = "hand-coded", "final"
"""The samplers of tinygrad's own schedules and of what is re-timed: `kcg.dataset.choices.HAND_CODED` and
`kcg.measure.service.SAMPLER`, which take seconds to import."""
OWN, TIMED, JUDGED, CHOSEN, DOUBTFUL = "tinygrad's own", "timed", "judged", "chosen", "doubtful"

Place = tuple[str, Variables]
"""Id of a region, and values of its variables."""


@dataclass
class Trial:
    """One schedule of a region, with all that was measured of it so far."""

    region: str
    variables: Variables
    schedule: Schedule
    at_s: float  # when it was measured first, in Unix seconds
    run_id: str
    sampler: str
    status: Status
    reason: str = ""
    measured_s: float | None = None  # as a search measures
    judged_s: float | None = None  # in turns with tinygrad's own, caches cold
    expected_s: float | None = None  # by what the search went; None where nobody said
    doubtful: bool = False

    @property
    def place(self) -> Place:
        return self.region, self.variables

    @property
    def ok(self) -> bool:
        return self.status == Status.OK


@dataclass(frozen=True)
class Looked:
    """What a journal has by now."""

    trials: tuple[Trial, ...]  # the oldest first
    newest: frozenset[str]  # ids of the newest run: several where several devices measured
    started: str  # when that began, ISO date and time
    kernels: Mapping[str, tuple[str, ...]]  # of each region
    origins: Mapping[str, str]  # of regions: the layer or line, where the journal says it
    unread: int = 0  # rows that cannot be trusted
    why: str = ""  # what is wrong, of a row or of all; empty where nothing is
    waiting: int = 0  # rows that the next look reads
    beyond: int = 0  # rows beyond those that are shown


@dataclass
class Journaled:
    """A journal that is looked at again and again. Threads may share it."""

    path: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _version: tuple[int, ...] = ()  # which file, and of which schema
    _last: int = 0  # number of the last row that was read
    _rows: int = 0
    _unread: int = 0
    _why: str = ""  # of the first row that cannot be trusted
    _trials: dict[tuple[str, Variables, Schedule], Trial] = field(default_factory=dict)
    _kernels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _origins: dict[str, str] = field(default_factory=dict)

    def look(self) -> Looked:
        """What is there now; where it cannot be read, what was there before, and why."""
        with self._lock:
            newest, started, waiting, why = frozenset[str](), "", 0, ""
            try:
                with self._connected() as connection:
                    newest, started = self._runs(connection)
                    waiting = self._read(connection)
                    self._doubt(connection)
                    if not {trial.region for trial in self._trials.values()} <= self._kernels.keys():
                        self._describe(connection)
            except KcgError as error:
                why = str(error).replace(f"{self.path} ", "it ").replace(f"{self.path}: ", "")
            except ROW_ERRORS as error:
                why = f"it cannot be read ({type(error).__name__}: {plain(str(error))})"
            return Looked(
                tuple(self._trials.values()),
                newest,
                started,
                dict(self._kernels),
                dict(self._origins),
                self._unread,
                why or self._why,
                waiting if self._rows < MOST_ROWS else 0,
                waiting if self._rows >= MOST_ROWS else 0,
            )

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        until_s = time.monotonic() + LOOK_S
        with only_reading(self.path, busy_s=BUSY_S) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_BYTES)
            connection.set_progress_handler(lambda: time.monotonic() > until_s, 10_000)
            version = check_version(self.path, connection)
            seen = self.path.stat()
            if self._version != (which := (seen.st_dev, seen.st_ino, version)):
                self._begin_anew(which)
            connection.execute("BEGIN")  # all of one moment
            yield connection

    def _begin_anew(self, which: tuple[int, ...]) -> None:
        self._version, self._last, self._rows, self._unread, self._why = which, 0, 0, 0, ""
        self._trials, self._kernels, self._origins = {}, {}, {}

    def _stored(self, connection: sqlite3.Connection, table: str, rest: str = "", values: Any = ()) -> Iterator[Any]:
        """The rows of a table, each checked by its checksum; none of a table that an older schema lacks."""
        has = "SELECT 1 FROM sqlite_master WHERE type='table' AND name=?"
        if connection.execute(has, (table,)).fetchone() is not None:
            version = self._version[2]
            for row in connection.execute(f"{selection(table, version)} {rest}", values):
                yield opened(self.path, table, row, version)

    def _runs(self, connection: sqlite3.Connection) -> tuple[frozenset[str], str]:
        runs = [(str(started), str(run_id)) for _, run_id, _, started, _ in self._stored(connection, "runs")]
        newest = max((started for started, _ in runs), default="")
        return frozenset(run_id for started, run_id in runs if started == newest), newest

    def _read(self, connection: sqlite3.Connection) -> int:
        """Read what is new, and say how many rows there are beyond that."""
        version = self._version[2]
        query = f"{selection('measurements', version)} WHERE row>? ORDER BY row LIMIT ?"
        most = min(AT_ONCE, MOST_ROWS - self._rows)
        for row in connection.execute(query, (self._last, most)).fetchall() if most > 0 else ():
            self._last, self._rows = int(row[0]), self._rows + 1
            try:
                _, _, recorded, *values = opened(self.path, "measurements", row, version)
                named = dict(zip(columns_of("measurements", version)[2:], values, strict=True))
                measurement = measurement_from_row(values[: len(MEASUREMENT_COLUMNS)])
                expected = expected_from_json(named.get("scores"))
                self._add(measurement, float(recorded), None if expected is None else expected.seconds)
            except (KcgError, *ROW_ERRORS) as error:
                self._unread += 1
                reason = str(error).replace(f"{self.path}: ", "")
                self._why = self._why or plain(reason, 200)
        (left,) = connection.execute("SELECT count(*) FROM measurements WHERE row>?", (self._last,)).fetchone()
        return int(left)

    def _add(self, row: Measurement, recorded_unix_s: float, expected_s: float | None) -> None:
        key = (row.region_id, row.variables, row.schedule)
        trial = self._trials.get(key)
        if trial is None or (trial.sampler == JUDGE and row.sampler != JUDGE):
            trial = self._trials[key] = Trial(*key, recorded_unix_s, row.run_id, row.sampler, row.status)
        seconds = row.median_s if row.status == Status.OK else None
        if row.status != Status.OK:
            trial.status, trial.reason = row.status, row.reason
        if row.sampler != JUDGE:
            trial.measured_s = seconds if trial.measured_s is None else trial.measured_s
            trial.expected_s = expected_s if trial.expected_s is None else trial.expected_s
        elif str(row.cache_state) == "cold":
            trial.judged_s = seconds

    def _doubt(self, connection: sqlite3.Connection) -> None:
        doubts = [(run_id, float(since)) for _, run_id, since, _ in self._stored(connection, "doubts")]
        for trial in self._trials.values() if doubts else ():
            trial.doubtful = any(trial.run_id == run_id and trial.at_s >= since for run_id, since in doubts)

    def _describe(self, connection: sqlite3.Connection) -> None:
        for _, region_id, kernel_ids, _ in self._stored(connection, "regions"):
            self._kernels[str(region_id)] = tuple(map(str, json.loads(kernel_ids)))
        for _, _, _, _, region_id, _, _, origin in self._stored(connection, "workload_calls", "ORDER BY position"):
            self._origins.setdefault(str(region_id), line_of(str(origin)) or str(origin))


def own_times(trials: Sequence[Trial]) -> dict[Place, float]:
    """What tinygrad's own schedule of each region takes, as the search measured it."""
    return {one.place: one.measured_s for one in trials if one.sampler == BASELINE and one.measured_s}


# ---- as a table


class Known(Protocol):
    """What a result says of its regions, where there is one (`kcg.ui.runs.Details`)."""

    @property
    def names(self) -> Mapping[str, tuple[str, str]]:
        """Of regions and kernels: the name, and the layer or line."""

    @property
    def expected_s(self) -> Mapping[tuple[Place, Schedule], float]: ...

    @property
    def chosen(self) -> Mapping[Place, Schedule]: ...


@dataclass(frozen=True)
class TrialRow:
    """One trial as the table shows it."""

    trial: Trial
    layer: str
    name: str  # of the kernel, as tinygrad calls it; empty where that is not known yet
    values: str
    expected_s: float | None
    own_s: float | None  # what tinygrad's own schedule takes, measured alike
    state: str
    after_s: float | None  # when it was measured, since the start of its run
    earlier: bool  # of an earlier run of the same journal

    @property
    def speedup(self) -> float | None:
        """Against tinygrad's own schedule, as the search measured both."""
        return self.own_s / self.trial.measured_s if self.own_s and self.trial.measured_s else None

    @property
    def schedule(self) -> str:
        return _described(self.trial.schedule)

    @property
    def failed(self) -> bool:
        return not self.trial.ok

    def text(self) -> str:
        """What is looked through for words."""
        return f"{self.layer} {self.name} {self.values} {self.schedule} {self.state} {self.trial.region}"


@lru_cache(maxsize=1 << 14)
def _described(schedule: Schedule) -> str:
    return cut(describe(schedule), 600)


COLUMNS: Final[tuple[Column[TrialRow], ...]] = (
    Column("layer", "Layer", lambda row: row.layer),
    Column("schedule", "Schedule", lambda row: row.schedule),
    Column("expected", "Expected", lambda row: row.expected_s, "n"),
    Column("measured", "Measured", lambda row: row.trial.measured_s, "n"),
    Column("speedup", "Speed-up", lambda row: row.speedup, "n"),
    Column("state", "State", lambda row: row.state),
    Column("when", "When", lambda row: row.trial.at_s, "n"),
)
START: Final = Asked("when", down=True)
EVERY: Final = ""
GROUPS: Final[Mapping[str, Callable[[TrialRow], bool]]] = {
    EVERY: lambda row: not row.earlier,
    CHOSEN: lambda row: not row.earlier and row.state == CHOSEN,
    JUDGED: lambda row: not row.earlier and row.trial.judged_s is not None,
    TIMED: lambda row: not row.earlier and row.state == TIMED,
    "own": lambda row: not row.earlier and row.trial.sampler == BASELINE,
    "failed": lambda row: not row.earlier and row.failed,
    "earlier": lambda row: row.earlier,
}
"""Which rows a name in the address shows."""
GROUP_WORDS: Final = {EVERY: "all", "own": OWN, "earlier": "of earlier runs"}


def group_of(name: str) -> str:
    """A group of this name; all where there is none."""
    return name if name in GROUPS else EVERY


def groups_of(rows: Sequence[TrialRow]) -> list[tuple[str, str, int]]:
    """The groups that have rows: name, words, how many."""
    counted = [(name, GROUP_WORDS.get(name, name), sum(map(has, rows))) for name, has in GROUPS.items()]
    return [one for one in counted if one[2] or one[0] == EVERY]


def rows_of(looked: Looked, known: Known | None) -> list[TrialRow]:
    """The trials as rows, with what a result knows of them."""
    own_s, started_s = own_times(looked.trials), _unix_s(looked.started)
    rows = []
    for trial in looked.trials:
        name, layer = _names_of(trial.region, looked, known)
        expected_s = trial.expected_s
        if expected_s is None and known is not None:
            expected_s = known.expected_s.get((trial.place, trial.schedule))
        earlier = bool(looked.newest) and trial.run_id not in looked.newest
        rows.append(
            TrialRow(
                trial,
                layer or name or trial.region[:8],
                name if layer else "",
                values_text(trial.variables),
                expected_s,
                own_s.get(trial.place),
                _state_of(trial, known),
                trial.at_s - started_s if started_s is not None and not earlier else None,
                earlier,
            )
        )
    return rows


def _names_of(region: str, looked: Looked, known: Known | None) -> tuple[str, str]:
    """The name of a region and its layer; of one of several kernels that no result names, those of its kernels."""
    names = known.names if known is not None else {}
    kernels = looked.kernels.get(region, (region,))
    if region in names or len(kernels) == 1:
        name, layer = names.get(region, ("", ""))
        return name, layer or looked.origins.get(region, "")
    layers = dict.fromkeys(names.get(one, ("", ""))[1] or looked.origins.get(one, "") for one in kernels)
    return f"{len(kernels)} kernels as one", TOGETHER.join(filter(None, layers))


def _state_of(trial: Trial, known: Known | None) -> str:
    if not trial.ok:
        return str(trial.status).replace("_", " ")
    if trial.doubtful:
        return DOUBTFUL
    if trial.sampler == BASELINE:
        return OWN
    if known is not None and known.chosen.get(trial.place) == trial.schedule:
        return CHOSEN
    return TIMED if trial.judged_s is None else JUDGED


def _unix_s(moment: str) -> float | None:
    """The Unix seconds of an ISO date and time with its zone; None where it is none."""
    try:
        found = datetime.fromisoformat(moment)
        return found.timestamp() if found.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
