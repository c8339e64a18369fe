"""The runs below a folder: the results, states and journals that kcg wrote there, read and never written.

A folder may come from anywhere: only plain files with kcg's own names are looked at, links are not followed, and what
cannot be read is shown with its reason. What was read is kept until its file changes.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, Generic, TypeVar

from kcg.dataset.schema import Glance, glance
from kcg.errors import ExitCode, KcgError, ResultError
from kcg.files import read_foreign
from kcg.measure.lock import is_locked
from kcg.nouns import plain
from kcg.optimize import live
from kcg.optimize.live import Live, read_live
from kcg.report import compare
from kcg.report.counts import share_of
from kcg.report.endings import exit_code_of, is_checked, whole_is_checked
from kcg.report.page import FILE_NAME as REPORT
from kcg.report.prediction_quality import expected_s
from kcg.report.result import UNTIMED, read_result
from kcg.report.times import is_compared, totals_of
from kcg.report.words import name_of, origin_of, values_of
from kcg.types import ProgressPoint, Result, Schedule, Variables
from kcg.ui.trials import Journaled, Looked

RESULT, JOURNAL = "RESULT.json", "journal.sqlite"
EARLIER: Final = re.compile(r"RESULT(-\d{8}-\d{6})\.json")  # as a run sets aside what an earlier one left
BY_CONTENT: Final = re.compile(r"[0-9a-f]{32}")  # the folder of a result that `kcg.autotuned` keeps
MOST_ENTRIES: Final = 50_000  # of files and folders that are looked at
DEEPEST: Final = 8
MOST_OF_REPORT: Final = 64 << 20  # bytes; one has less than 3 MB
MOST_POINTS: Final = 2000  # of what was verified by and by
MOST_OPEN: Final = 4  # runs of which the trials are kept, those that were asked for last

FINISHED, INCOMPLETE, INTERRUPTED, LOST, WRONG = "finished", "incomplete", "interrupted", "device lost", "wrong"
NOTHING_IMPROVED, NOTHING_SEARCHED, UNCHECKED = "nothing improved", "nothing searched", "whole not checked"
PROVISIONAL = "provisional"  # finished, with parts that are
RUNNING, KILLED = "running", "killed"

_ENDS = {ExitCode.INTERRUPTED: INTERRUPTED, ExitCode.DEVICE_UNUSABLE: LOST}
_COMPLETE = {ExitCode.NOTHING_IMPROVED: NOTHING_IMPROVED}
_INCOMPLETE = {ExitCode.NOTHING_SEARCHED: NOTHING_SEARCHED, ExitCode.UNCHECKED: UNCHECKED}
"""What a result says of itself, by `kcg.report.endings`; else it is finished, or incomplete."""

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KernelTime:
    """One kernel in one run: one call, in seconds."""

    region: str  # its id
    values: str  # of its variables, in words
    name: str
    calls: int
    before_s: float
    after_s: float
    outcome: str
    layer: str = ""  # or line that most calls come from


@dataclass(frozen=True)
class Run:
    """What the page shows of one result."""

    id: str  # of its file
    place: str  # its folder, below the one that is shown
    workload: str
    preset: str
    model: str  # of the device
    device: str  # as tinygrad calls it
    target: str  # fingerprint
    search: str
    created: str
    measurements: int
    search_s: float
    before_s: float  # NaN where nothing was timed
    after_s: float  # NaN where nothing improved
    chosen_s: float  # of all calls, to stand beside other runs: NaN where the run ended before it had timed all of them
    kernels: tuple[KernelTime, ...]
    share: str  # how many kernels and regions improved, in words
    complete: bool
    wrong: bool
    code: ExitCode  # that its command ended with, by the result alone
    verified: tuple[ProgressPoint, ...] = ()  # what the workload took by what was verified
    provisional: bool = False  # whether parts of it have launches under stress to pass yet
    state: str = ""
    report: Path | None = None
    file: Path = Path()

    @property
    def is_kept(self) -> bool:
        """Whether `kcg.autotuned` keeps it, to use it again."""
        return BY_CONTENT.fullmatch(self.place.rpartition("/")[2]) is not None


@dataclass(frozen=True)
class Watched:
    """A run that goes on, or that was killed."""

    place: str
    live: Live
    state: str
    elapsed_s: float  # since it began, by now; of one that was killed until it was heard of last
    id: str = ""  # of its result, which may not be there yet
    file: Path = Path()
    verified: tuple[ProgressPoint, ...] = ()  # what the workload took by what was verified, while it goes on


@dataclass(frozen=True)
class Unfinished:
    """A journal of which there is no result."""

    place: str
    journal: Glance
    id: str = ""
    file: Path = Path()


Place = tuple[str, Variables]
"""Id of a region, and values of its variables."""


@dataclass(frozen=True)
class Details:
    """What the page of one run shows of its result."""

    created: str
    progress: tuple[ProgressPoint, ...]  # as the search measured
    verified: tuple[ProgressPoint, ...]
    names: Mapping[str, tuple[str, str]]  # of regions and kernels: its name, and the layer or line
    expected_s: Mapping[tuple[Place, Schedule], float]
    chosen: Mapping[Place, Schedule]


@dataclass(frozen=True)
class Opened:
    """One run as a page of its own: its result, where there is one, and its journal. `details` may be why not."""

    place: str
    run: Run | None
    watched: Watched | None
    details: Details | str
    trials: Looked | None  # None: there is no journal


@dataclass(frozen=True)
class Refused:
    """A file that has the name of one of kcg's, and cannot be trusted."""

    place: str
    reason: str


@dataclass(frozen=True)
class Found:
    """All that is below a folder; the newest first."""

    runs: tuple[Run, ...]
    watched: tuple[Watched, ...]
    unfinished: tuple[Unfinished, ...]
    refused: tuple[Refused, ...]
    all_seen: bool  # False: there is more than is looked at

    @property
    def is_empty(self) -> bool:
        return not (self.runs or self.watched or self.unfinished or self.refused)


class Kept(Generic[T]):
    """What was read of files, until they change: a value, or why there is none."""

    def __init__(self, read: Callable[[Path], T]) -> None:
        self._read = read
        self._seen: dict[Path, tuple[tuple[int, ...], T | str]] = {}

    def __call__(self, path: Path) -> T | str:
        try:
            stat = path.lstat()
            version = stat.st_mtime_ns, stat.st_size, stat.st_ino
            if path not in self._seen or self._seen[path][0] != version:
                self._seen[path] = version, self._value(path)
        except OSError as error:
            return error.strerror or type(error).__name__
        return self._seen[path][1]

    def _value(self, path: Path) -> T | str:
        return _or_why(self._read, path)


def _or_why(read: Callable[[Path], T], path: Path) -> T | str:
    """What a file says, or why it says nothing."""
    try:
        return read(path)
    except KcgError as error:
        return str(error)
    except OSError:
        raise
    except Exception as error:  # one file never ends the page of all the others
        log.warning("%s cannot be read", path, exc_info=error)
        return f"it cannot be read ({type(error).__name__}: {plain(str(error))})"


class Folder:
    """A folder of runs. Threads may share it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._results, self._states, self._journals = Kept(_read_run), Kept(read_live), Kept(glance)
        self._killed: set[tuple[Path, str]] = set()  # which are not asked about again
        self._opened: OrderedDict[Path, Journaled] = OrderedDict()

    def look(self) -> Found:
        """What is there now."""
        with self._lock:
            runs, watched, unfinished, refused = list[Run](), list[Watched](), list[Unfinished](), list[Refused]()
            folders, all_seen = self._folders()
            for folder, names in folders:
                state = self._state(folder) if live.FILE_NAME in names else None
                if isinstance(state, Refused):
                    refused.append(state)
                if isinstance(state, Watched) and state.state in (RUNNING, KILLED):
                    watched.append(state)
                seen_as = state if isinstance(state, Watched) else None
                for name in names:
                    if name == RESULT or EARLIER.fullmatch(name):
                        one = self._run(folder, name, names, seen_as if name == RESULT else None)
                        (runs if isinstance(one, Run) else refused).append(one)  # type: ignore[arg-type]
                if JOURNAL in names and RESULT not in names and not isinstance(state, Watched):
                    seen = self._journals(folder / JOURNAL)
                    if isinstance(seen, str):
                        refused.append(self._refused(folder / JOURNAL, seen))
                    else:
                        file = folder / RESULT
                        unfinished.append(Unfinished(self._place(folder), seen, _id_of(file), file))
            return Found(
                tuple(sorted(runs, key=lambda run: run.created, reverse=True)),
                tuple(sorted(watched, key=lambda one: one.live.created, reverse=True)),
                tuple(sorted(unfinished, key=lambda one: one.journal.started, reverse=True)),
                tuple(sorted(refused, key=lambda one: one.place)),
                all_seen,
            )

    def report(self, run_id: str) -> bytes | None:
        """The report of a run; None where there is none (any more). Raises ResultError where it is too large for one:
        a hole of gigabytes takes no disk, and would take that much memory."""
        run = next((run for run in self.look().runs if run.id == run_id), None)
        if run is None or run.report is None:
            return None
        try:
            found = read_foreign(run.report, most_bytes=MOST_OF_REPORT, follow=False)
        except OSError:
            return None
        if found is None:
            raise ResultError(f"{run.report.name} is larger than {MOST_OF_REPORT >> 20} MiB, and no report of kcg's")
        return found

    def open(self, run_id: str) -> Opened | None:
        """One run with its trials; None where there is none of this id (any more)."""
        found = self.look()
        run = next((one for one in found.runs if one.id == run_id), None)
        watched = next((one for one in found.watched if one.id == run_id), None)
        journal = next((one for one in found.unfinished if one.id == run_id), None)
        if (one := run or watched or journal) is None:
            return None
        return Opened(one.place, run, watched, self._details(one.file, watched), self._trials(one.file))

    def compared(self, *ids: str) -> str:
        """Two runs side by side as a page, the older one as A. Raises ResultError where one is not there (any more),
        UsageError where they have no kernel in common."""
        found = {run.id: run for run in self.look().runs}
        if not found.keys() >= set(ids):
            raise ResultError("One of the two runs is not there any more: select two in the list of all runs.")
        a, b = sorted((found[one] for one in ids), key=lambda run: (run.created, run.place))
        names = tuple(f"{run.place}/{run.file.name}".removeprefix("./") for run in (a, b))
        return compare.render(compare.match(read_result(a.file), read_result(b.file), names=(names[0], names[1])))

    def _details(self, file: Path, watched: Watched | None) -> Details | str:
        try:
            seen = file.lstat()
            found = _details_of(file, (seen.st_mtime_ns, seen.st_size, seen.st_ino))
        except OSError:
            return "it has no result yet" if watched is not None and watched.state == RUNNING else "it has no result"
        if isinstance(found, Details) and watched is not None and found.created < watched.live.created:
            return "it has no result yet; the one that is there is of an earlier run"
        return found

    def _trials(self, file: Path) -> Looked | None:
        path = file.with_name(JOURNAL.replace(".", f"{file.name[len('RESULT') : -len('.json')]}."))
        if path.is_symlink() or not path.is_file():
            return None
        with self._lock:
            reader = self._opened.pop(path, None) or Journaled(path)
            self._opened[path] = reader
            while len(self._opened) > MOST_OPEN:
                self._opened.popitem(last=False)
        return reader.look()

    def _folders(self) -> tuple[list[tuple[Path, list[str]]], bool]:
        """Each folder and the names of the plain files in it; and whether these are all."""
        left, found, waiting = MOST_ENTRIES, list[tuple[Path, list[str]]](), [(self.root, 0)]
        while waiting and left > 0:
            folder, depth = waiting.pop()
            names, below = list[str](), list[Path]()
            try:
                with os.scandir(folder) as entries:
                    for entry in itertools.islice(entries, left):
                        left -= 1
                        if entry.is_file(follow_symlinks=False):
                            names.append(entry.name)
                        elif entry.is_dir(follow_symlinks=False):
                            below.append(folder / entry.name)
            except OSError:
                continue  # it may not be read, or is gone
            found.append((folder, sorted(names)))
            if depth < DEEPEST:
                waiting += [(one, depth + 1) for one in below]
        return found, left > 0

    def _run(self, folder: Path, name: str, names: list[str], watched: Watched | None) -> Run | Refused:
        read = self._results(folder / name)
        if isinstance(read, str):
            return self._refused(folder / name, read)
        report = REPORT if name == RESULT else REPORT.replace(".", f"{name[len('RESULT') : -len('.json')]}.")
        return replace(
            read,
            id=_id_of(folder / name),
            file=folder / name,
            place=self._place(folder),
            state=_state_of(read, watched),
            report=folder / report if report in names else None,
        )

    def _state(self, folder: Path) -> Watched | Refused:
        path = folder / live.FILE_NAME
        read = self._states(path)
        if isinstance(read, str):
            return self._refused(path, read)
        seen = Watched(self._place(folder), read, FINISHED, read.elapsed_s)
        if read.exit_code is not None:
            return seen
        file = folder / RESULT
        seen = replace(seen, id=_id_of(file), file=file, verified=self._verified(file, read))
        # the lock of a run that was killed is looked for once
        killed = (path, read.created) in self._killed or not is_locked(folder)
        if killed:
            self._killed.add((path, read.created))
            return replace(seen, state=KILLED)
        try:
            since_s = max(time.time() - path.stat().st_mtime, 0.0)
        except OSError:
            since_s = 0.0
        return replace(seen, state=RUNNING, elapsed_s=read.elapsed_s + since_s)

    def _verified(self, file: Path, state: Live) -> tuple[ProgressPoint, ...]:
        """What was verified of a run by and by, as its result says, which is there from its first verdict on."""
        read = self._results(file) if not file.is_symlink() else ""
        return read.verified if isinstance(read, Run) and read.created >= state.created else ()

    def _place(self, path: Path) -> str:
        return _text(path.relative_to(self.root).as_posix())

    def _refused(self, path: Path, reason: str) -> Refused:
        return Refused(self._place(path), _text(reason.replace(f"{path} ", "it ")))


def _read_run(path: Path) -> Run:
    """A result, with what the page shows of it. Raises ResultError."""
    result = read_result(path)
    check = result.model_check
    return Run(
        id="",
        place="",
        workload=result.workload,
        preset=result.preset,
        model=result.target.model,
        device=result.target.tinygrad_device,
        target=result.target.fingerprint,
        search=result.search,
        created=result.created,
        measurements=result.measurements,
        search_s=result.search_s,
        before_s=_or_nan(totals_of(result).before_s),
        after_s=_or_nan(totals_of(result).after_s),
        chosen_s=math.nan if any(row.note == UNTIMED for row in result.regions) else result.total_after_s,
        kernels=_kernels(result),
        share=share_of(
            (row.region for row in result.regions if row.outcome == "improved"), (row.region for row in result.regions)
        ),
        complete=result.complete,
        wrong=check is not None and check.passed is False,
        code=exit_code_of(result),
        verified=result.verified_progress[-MOST_POINTS:],
        provisional=whole_is_checked(result) and not is_checked(result),
    )


def _or_nan(seconds: float | None) -> float:
    return math.nan if seconds is None else seconds


def _kernels(result: Result) -> tuple[KernelTime, ...]:
    """Those that a search reached and that have times."""
    rows = (
        KernelTime(
            row.region.id,
            values_of(row),
            name_of(row),
            row.calls,
            row.baseline.cold_s,
            row.chosen.cold_s,
            row.outcome,
            origin_of(row),
        )
        for row in result.regions
        if is_compared(row)
    )
    return tuple(rows)


@lru_cache(maxsize=MOST_OPEN)
def _details_of(path: Path, version: tuple[int, ...]) -> Details | str:
    """Of this version of a file, or why there is none."""
    return _or_why(_read_details, path)


def _read_details(path: Path) -> Details:
    result = read_result(path)
    rows, places = result.with_inside, result.places
    return Details(
        created=result.created,
        progress=result.progress,
        verified=result.verified_progress,
        names={row.region.id: (name_of(row), origin_of(row)) for row in rows}
        | {one.region: (f"{len(one.kernels)} kernels: {'; '.join(one.kernels)}", "") for one in result.searched},
        expected_s={
            (places[one.region], one.schedule): seconds
            for one in result.expectations
            if one.region < len(places) and math.isfinite(seconds := expected_s(one)) and seconds > 0
        },
        chosen={(row.region.id, row.variables): row.chosen.schedule for row in rows},
    )


def _id_of(file: Path) -> str:
    """By which an address names the run of a result."""
    return hashlib.sha256(os.fsencode(file)).hexdigest()[:16]


def _state_of(run: Run, watched: Watched | None) -> str:
    if run.wrong:
        return WRONG
    if run.complete:
        return PROVISIONAL if run.provisional else _COMPLETE.get(run.code, FINISHED)
    if watched is not None and watched.live.exit_code is None:  # the best so far of a run that goes on, or was killed
        return watched.state
    if watched is not None and watched.live.exit_code in _ENDS:
        return _ENDS[ExitCode(watched.live.exit_code)]
    return PROVISIONAL if run.provisional else _INCOMPLETE.get(run.code, INCOMPLETE)


def _text(name: str) -> str:
    """A file's name as text, whatever bytes it has."""
    return name.encode("utf-8", "replace").decode()
