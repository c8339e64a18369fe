"""What each resource did over time, as the report shows it: rows of bars by the jobs of a run's journal."""

from __future__ import annotations

import random
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.dataset.journal import Journal, Run
from kcg.report.page import write_report
from kcg.report.timeline import (
    CORES,
    JUDGING,
    MAIN_PROCESS,
    PROCESSES,
    REFERENCES,
    SEARCH,
    SLICES,
    STRESS,
    WHOLE,
    Timeline,
    timeline_beside,
    timeline_in,
    timeline_of,
    timeline_picture,
)
from kcg.types import Job, JobKind, JobOutcome, ProgressPoint, Result
from tests.sample_result import sample_result


def job(kind: str, resource: str, start_s: float, seconds: float, outcome: JobOutcome = JobOutcome.OK) -> Job:
    return Job(kind, "", resource, start_s, seconds, outcome)


SOME = [
    job(JobKind.CAPTURE, "main", 0.0, 2.0),
    job(JobKind.PROCESSES, "device:0", 0.0, 1.0),
    job(JobKind.COMPILE, "core", 2.0, 1.0),
    job(JobKind.COMPILE, "core", 2.0, 2.0),
    job(JobKind.REFERENCE, "core", 4.0, 1.0),
    job(JobKind.TIME, "device:0", 3.0, 3.0),
    job("tiny beam", "device:1", 5.0, 2.0),
    job(JobKind.JOINT, "device:0", 7.0, 1.0, JobOutcome.WRONG),
    job(JobKind.STRESS, "device:0", 8.0, 1.0),
    job(JobKind.PAIRED, "main", 8.0, 0.0, JobOutcome.TAKEN_OVER),
    job(JobKind.STEP, "device:0", 9.0, 9.0),
    job(JobKind.RUN, "main", 0.0, 18.0),
]


def some(*jobs: Job, cores: int = 2) -> Timeline:
    found = timeline_of(jobs, cores=cores)
    assert found is not None
    return found


def test_each_sort_of_job_has_a_row_and_a_bar_where_it_was() -> None:
    found = some(*SOME)
    rows = {row.name: row for row in found.rows}
    assert [*rows] == [SEARCH, JUDGING, STRESS, WHOLE, PROCESSES, CORES, REFERENCES, MAIN_PROCESS]
    assert (found.seconds, found.jobs, found.device_s) == (18.0, 10, pytest.approx(16.0))
    where = {name: [(bar.begin_s, bar.end_s, round(bar.share, 2)) for bar in row.bars] for name, row in rows.items()}
    assert where[SEARCH] == [(3.0, 7.0, 1.0)], "jobs of one row that touch are one bar"
    assert where[JUDGING] == [(7.0, 8.0, 1.0)] and where[WHOLE] == [(9.0, 18.0, 1.0)]
    assert where[CORES] == [(2.0, 3.0, 1.0), (3.0, 4.0, 0.5)], "as many cores as were busy"
    assert dict(rows[SEARCH].bars[0].kinds) == {"time": 1, "tiny beam": 1}
    assert timeline_of([SOME[-1], SOME[-3]]) is None, "nothing that took time"


def test_twenty_thousand_jobs_are_as_few_bars_and_lose_no_second() -> None:
    rng, jobs = random.Random(7), list[Job]()
    for kind, resource, seconds in ((JobKind.TIME, "device:0", 0.01), *[(JobKind.COMPILE, "core", 0.1)] * 8):
        at = 0.0
        while at < 100:
            took = rng.expovariate(1 / seconds)
            jobs.append(job(kind, resource, at, took))
            at += took + rng.expovariate(1 / seconds)
    found = some(*jobs, cores=8)
    assert len(jobs) > 8_000
    for row in found.rows:
        assert 0 < len(row.bars) <= SLICES
        shown_s = sum((bar.end_s - bar.begin_s) * bar.share * row.cores for bar in row.bars)
        assert shown_s == pytest.approx(row.busy_s, rel=1e-6)
    shown = timeline_picture(found, sample_result())
    assert shown is not None and len(shown.wide) + len(shown.narrow) + sum(map(len, shown.tips)) < 200_000


def test_every_mark_says_what_it_is_with_what_was_verified_by_then() -> None:
    result = sample_result()
    verified = (ProgressPoint(8.0, 3, 0.9 * result.total_before_s), ProgressPoint(9.5, 3, result.total_after_s))
    shown = timeline_picture(some(*SOME), replace(result, verified_progress=verified))
    assert shown is not None
    for drawn in (shown.wide, shown.narrow):
        assert sorted(int(i) for i in re.findall(r'data-i="(\d+)"', drawn)) == list(range(len(shown.tips)))
    assert shown.tips[0].startswith("verified after 8.00 s:") and shown.tips[2].startswith("device: search")
    assert "busy 50% of 2 cores\njobs: compile 1" in "\n".join(shown.tips)
    assert "best total by what was verified" in shown.wide and "device: stress" in shown.wide
    assert shown.words[0].startswith("The device had a job 89% of 18.0 s: search 4.00 s, judging 1.00 s")
    bare = timeline_picture(some(*SOME), result)
    assert bare is not None and "best total" not in bare.wide, "a result of before that was kept"


# ---- from the journal beside a result


def some_runs(path: Path) -> None:
    """A journal of two runs, and a third one that did nothing."""
    with Journal.open(path) as journal:
        for number, name in enumerate(("first", "second", "third")):
            journal.add_run(Run(name, f"2026-11-2{number}T10:00:00+00:00", "kcg optimize", {"cores": 2}))
        journal.add_jobs([replace(one, run_id="first", start_s=one.start_s + 100) for one in SOME])
        journal.add_jobs([replace(one, run_id="second") for one in SOME])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    some_runs(tmp_path / "journal.sqlite")
    return tmp_path


def test_the_report_shows_what_the_last_run_of_the_journal_did(folder: Path) -> None:
    result: Result = replace(sample_result(), search_s=18.0)
    page = write_report(result, folder).read_text()
    assert "What the run did when" in page and 'data-figure="timeline"' in page and '"timeline":' in page
    assert "10 jobs in all; beside the device: compile cores 3.00 s of 2 cores" in page


@pytest.mark.parametrize("what", ["none", "damaged", "older"])
def test_without_jobs_there_is_no_picture(folder: Path, what: str) -> None:
    path = folder / "journal.sqlite"
    if what == "none":
        path.unlink()
    elif what == "damaged":
        path.write_bytes(path.read_bytes()[:5000])
    else:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("DELETE FROM jobs")
    assert timeline_beside(folder / "RESULT.json", sample_result()) is None
    assert timeline_picture(None, sample_result()) is None


def test_a_journal_that_cannot_be_read_any_more_costs_no_report(folder: Path) -> None:
    journal = Journal.open(folder / "journal.sqlite")
    journal.close()
    assert timeline_in(journal, sample_result()) is None
