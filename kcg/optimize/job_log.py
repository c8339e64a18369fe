"""The jobs of a run on one clock, on their way into its journal.

A row costs no transaction of its own where it can be helped: it goes into that of the measurement which comes of it, so
that neither is there without the other. What comes of no measurement is written a second later at the latest, if
anything else happens, and at the end. `kill -9` loses what was not written by then, and what was under way.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
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
        self._waiting: list[Job] = []
        self._since_s = 0.0  # when the first of them came, by `time.monotonic`
        self._lock = threading.Lock()
        self.error: Exception | None = None  # why some could not be written

    def open(self, journal: Journal, run_id: str) -> None:
        """Write them into this journal, as those of this run."""
        self._journal, self._run_id = journal, run_id
        self.write()

    def add(self, job: Job) -> None:
        """A job that ended, its start by `time.monotonic`. Never raises."""
        now = time.monotonic()
        with self._lock:
            if not self._waiting:
                self._since_s = now
            self._waiting.append(replace(job, start_s=max(job.start_s - self._started, 0.0)))
            is_due = self._journal is not None and now - self._since_s > HELD_S
        if is_due:
            self.write()

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

    def take(self, row: Measurement | None = None, saving_s: float | None = None) -> list[Job]:
        """What waits, to be written now; the job that timed `row` with what it saves, if that is known."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        if row is not None and saving_s is not None:
            binary, digits = row.binary_hash, schedule_digits(row.schedule)
            for place, job in reversed([*enumerate(taken)]):
                is_it = job.kind == JobKind.TIME and job.subject == row.region_id and job.schedule in ("", digits)
                if is_it and binary.startswith(job.binaries):
                    taken[place] = replace(job, saving_s=saving_s)
                    break
        return [replace(job, run_id=self._run_id) for job in taken]

    def write(self) -> None:
        """Write what waits, in a transaction of its own. Never raises."""
        if self._journal is None:
            return
        try:
            self._journal.add_jobs(self.take())
        except Exception as error:
            self.error = self.error or error

    def close(self, outcome: JobOutcome = JobOutcome.OK) -> None:
        """The run ends: its own row is the last."""
        seconds = time.monotonic() - self._started
        self.add(Job(JobKind.RUN, self._run_id, MAIN, self._started, seconds, outcome))
        self.write()
        self._journal = None
