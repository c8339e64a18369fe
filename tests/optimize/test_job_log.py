"""The jobs of a run on their way into its journal: what they cost it, and what is there after what."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kcg.dataset.journal import Journal
from kcg.measure.job_rows import HASH_DIGITS, MAIN
from kcg.optimize import job_log
from kcg.optimize.job_log import JobLog
from kcg.types import Job, JobKind, JobOutcome, Measurement
from tests.dataset.test_journal import measurement


def of(row: Measurement, kind: JobKind = JobKind.TIME, **changes: object) -> Job:
    binaries = (row.binary_hash[:HASH_DIGITS],)
    return Job(kind, row.region_id, "device:0", time.monotonic(), 0.5, JobOutcome.OK, binaries=binaries, **changes)  # type: ignore[arg-type]


def test_the_jobs_of_a_measurement_are_in_its_transaction(tmp_path: Path) -> None:
    started, commits = time.monotonic(), 0

    def traced(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    log = JobLog(started)
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        log.add(of(measurement(0), JobKind.CAPTURE))
        log.open(journal, "r1")
        journal._connection.set_trace_callback(traced)
        for number in range(60):
            row = measurement(number)
            log.add(of(row, JobKind.COMPILE))
            log.add(of(row))
            journal.record(row, jobs=log.take(row, saving_s=number / 1000))
        assert commits == 60, "a job costs a search no transaction"
        assert journal.jobs()[0].kind == JobKind.CAPTURE, "what was before there was a journal"
        assert [job.saving_s for job in journal.jobs() if job.kind == JobKind.TIME] == [n / 1000 for n in range(60)]
        log.close()
        assert commits == 61
    with Journal.open(tmp_path / "journal.sqlite", read_only=True) as journal:
        *jobs, run = journal.jobs()
    assert len(jobs) == 121 and {job.run_id for job in jobs} == {"r1"}
    assert (run.kind, run.subject, run.start_s) == (JobKind.RUN, "r1", 0.0)
    assert all(0 <= job.start_s <= run.seconds for job in jobs), "on the clock of the run"


def test_a_job_waits_for_its_own_measurement_while_others_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "HELD_S", float("inf"))
    log, first, second = JobLog(time.monotonic()), measurement(0), measurement(1)
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        log.open(journal, "r1")
        for job in (of(first, JobKind.COMPILE), of(first), of(second)):
            log.add(job)
        assert [(job.kind, job.saving_s) for job in log.take(second, 0.5)] == [
            (JobKind.COMPILE, None),
            (JobKind.TIME, 0.5),
        ]
        monkeypatch.setattr(job_log, "HELD_S", -1.0)
        log.add(of(second))
        assert [job.binaries for job in journal.jobs()] == [("b0",)], "one that waited too long, and not the last one"
        assert [job.saving_s for job in log.take(second, 0.25)] == [0.25]


def test_what_comes_of_no_measurement_is_written_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JobLog(time.monotonic())
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        log.open(journal, "r1")
        monkeypatch.setattr(job_log, "HELD_S", float("inf"))
        with log.doing(JobKind.STEP, "model", resource="device:0") as doing:
            doing.outcome, doing.saving_s = JobOutcome.WRONG, 0.25
        with pytest.raises(KeyboardInterrupt), log.doing(JobKind.PREDICTOR):
            raise KeyboardInterrupt
        assert journal.jobs() == []
        monkeypatch.setattr(job_log, "HELD_S", -1.0)
        with pytest.raises(ValueError, match="no"), log.doing(JobKind.REGIONS):
            raise ValueError("no")
        assert len(journal.jobs()) == 2, "what was before it: its own measurement may come next"
        log.close()
        step, *others, _ = journal.jobs()
    assert (step.resource, step.outcome, step.saving_s) == ("device:0", JobOutcome.WRONG, 0.25)
    assert [(job.resource, job.outcome) for job in others] == [(MAIN, JobOutcome.STOPPED), (MAIN, JobOutcome.FAILED)]


def test_a_journal_that_takes_no_jobs_fails_the_run_and_no_pool(tmp_path: Path) -> None:
    log = JobLog(time.monotonic())
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        log.open(journal, "r1")
    log.add(of(measurement()))
    log.close()
    assert "cannot be used" in str(log.error)
