"""The jobs of a run on one clock, on their way into its journal.

A row costs no transaction of its own where it can be helped: it goes into that of the measurement which comes of it, so
that neither is there without the other. What comes of no measurement is written a second later at the latest, if
anything else happens, and at the end. `kill -9` loses what was not written by then, and what was under way.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kcg.measure.job_rows import MAIN, schedule_digits
from kcg.types import Job, JobKind, JobOutcome, Measurement

if TYPE_CHECKING:
    from kcg.dataset.journal import Journal

HELD_S: Final = 1.0  # how long a job may wait for a measurement to be written with


class Doing:
    """A job of the run's own process, while it is done: its outcome and saving may be told until it ends."""

    def __init__(self) -> None:
        self.outcome = JobOutcome.OK
        self.saving_s: float | None = None  # of one execution


class JobLog:
    """Takes jobs from any thread. Until a journal is there it keeps them."""

    def __init__(self, started: float) -> None:
        """`started` is when the command began, by `time.monotonic`."""
        self._started = started
        self._journal: Journal | None = None
        self._run_id = ""
        self._waiting: list[tuple[float, Job]] = []  # since when, by `time.monotonic`
        self._lock = threading.Lock()
        self.error: Exception | None = None  # why some could not be written

    def open(self, journal: Journal, run_id: str) -> None:
        """Write them into this journal, as those of this run."""
        self._journal, self._run_id = journal, run_id
        self.write()

    def add(self, job: Job) -> None:
        """A job that ended, its start by `time.monotonic`. Never raises."""
        now, due = time.monotonic(), list[Job]()
        with self._lock:
            if self._journal is not None:  # not this one: its measurement may come next
                due = [job for at, job in self._waiting if now - at > HELD_S]
                self._waiting = [one for one in self._waiting if now - one[0] <= HELD_S]
            self._waiting.append((now, replace(job, start_s=max(job.start_s - self._started, 0.0))))
        if due:
            self._write(due)

    @contextlib.contextmanager
    def doing(self, kind: JobKind, subject: str = "", *, resource: str = MAIN) -> Iterator[Doing]:
        """A block of the run's own process as a job; what it raises is its outcome."""
        begin, doing = time.monotonic(), Doing()
        try:
            yield doing
        except BaseException as error:
            doing.outcome = JobOutcome.FAILED if isinstance(error, Exception) else JobOutcome.STOPPED
            raise
        finally:
            seconds = time.monotonic() - begin
            self.add(Job(kind, subject, resource, begin, seconds, doing.outcome, doing.saving_s))

    def take(self, row: Measurement, saving_s: float | None = None) -> list[Job]:
        """What is to be written with a measurement: what waits, but for what timed others a moment ago. The job that
        timed this one says what it saves, where that is known."""
        now, taken, left = time.monotonic(), list[Job](), list[tuple[float, Job]]()
        with self._lock:
            for at, job in self._waiting:
                if job.kind == JobKind.TIME and not _timed(job, row) and now - at <= HELD_S:
                    left.append((at, job))
                else:
                    taken.append(job)
            self._waiting = left
        place = max((i for i, job in enumerate(taken) if _timed(job, row)), default=None)
        if place is not None:
            taken[place] = replace(taken[place], saving_s=saving_s)
        return self._named(taken)

    def write(self) -> None:
        """Write what waits, in a transaction of its own. Never raises."""
        if self._journal is None:
            return
        with self._lock:
            taken, self._waiting = self._waiting, []
        self._write([job for _, job in taken])

    def _write(self, jobs: Sequence[Job]) -> None:
        try:
            if self._journal is not None:
                self._journal.add_jobs(self._named(jobs))
        except Exception as error:
            self.error = self.error or error

    def _named(self, jobs: Sequence[Job]) -> list[Job]:
        return [replace(job, run_id=self._run_id) for job in jobs]

    def close(self, outcome: JobOutcome = JobOutcome.OK) -> None:
        """The run ends: its own row is the last."""
        seconds = time.monotonic() - self._started
        self.add(Job(JobKind.RUN, self._run_id, MAIN, self._started, seconds, outcome))
        self.write()
        self._journal = None


def _timed(job: Job, row: Measurement) -> bool:
    """Whether a measurement comes of a job."""
    is_of = job.kind == JobKind.TIME and job.subject == row.region_id
    return is_of and row.binary_hash.startswith(job.binaries) and job.schedule in ("", schedule_digits(row.schedule))
