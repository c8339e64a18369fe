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
from tests.sample_result import sample_plan, sample_result


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


@pytest.mark.usefixtures("drawn")
def test_every_mark_says_what_it_is_with_what_was_verified_by_then() -> None:
    result = sample_result()
    verified = (ProgressPoint(8.0, 3, 0.9 * result.total_before_s), ProgressPoint(9.5, 3, result.total_after_s))
    shown = timeline_picture(some(*SOME), replace(result, progress=(), verified_progress=verified))
    assert shown is not None
    for drawn in (shown.wide, shown.narrow):
        assert sorted(int(i) for i in re.findall(r'data-i="(\d+)"', drawn)) == list(range(len(shown.tips)))
    assert shown.tips[0].startswith("verified after 8.00 s and 3 measurements:")
    assert shown.tips[2] == "the whole step in the end: 39.1 ms" and shown.tips[3].startswith("device: search")
    assert "busy 50% of 2 cores\njobs: compile 1" in "\n".join(shown.tips)
    assert "what was verified: 36.7 ms, 1.89× as fast in the end" in shown.wide and "device: stress" in shown.wide
    assert (
        shown.words[0]
        == "Half of what was gained was verified after 9.50 s and 3 measurements, the last of it after 9.50 s."
    )
    assert shown.words[1].startswith("The device had a job 89% of 18.0 s: search 4.00 s, judging 1.00 s")
    before = timeline_picture(some(*SOME), result)
    assert before is not None and "what was verified" not in before.wide, "a result of before that was kept"


def of_a_plan() -> tuple[Result, Timeline]:
    """Both regions of the sample are verified, the second one twice, after 4 and after 6 seconds of 18."""
    plan = sample_plan()
    assert plan.planning is not None
    attention, norm = (one.region for one in plan.planning.regions)
    verdicts = [
        replace(job(JobKind.JOINT, "device:0", 3.0, 1.0), subject=attention),
        replace(job(JobKind.PAIRED, "device:0", 4.5, 0.5, JobOutcome.UNJUDGED), subject=norm),
        replace(job(JobKind.PAIRED, "device:0", 5.0, 1.0), subject=norm),
        replace(job(JobKind.PAIRED, "device:0", 7.0, 1.0), subject=norm),
        replace(job(JobKind.JOINT, "device:0", 8.0, 1.0), subject="a region that no plan has"),
    ]
    verified = (ProgressPoint(5.0, 3, 0.8 * plan.total_before_s), ProgressPoint(9.0, 4, plan.total_after_s))
    return replace(plan, progress=(), verified_progress=verified), some(*SOME, *verdicts)


@pytest.mark.usefixtures("drawn")
def test_the_curve_has_each_region_of_the_plan_where_it_was_verified() -> None:
    result, timeline = of_a_plan()
    shown = timeline_picture(timeline, result)
    assert shown is not None
    regions = [tip for tip in shown.tips if tip.startswith("region verified")]
    assert [tip.splitlines()[0] for tip in regions] == ["region verified after 4.00 s", "region verified after 6.00 s"]
    assert regions[1].splitlines()[1:] == ["flux.py:269", "row group", "saves 18.2 µs a call, called 76 times"]
    rings = re.findall(r'<circle class="region" data-i="\d+" cx="([\d.]+)" cy="([\d.]+)"', shown.wide)
    dots = re.findall(r'<circle class="step" data-i="\d+" cx="([\d.]+)" cy="([\d.]+)"', shown.wide)
    assert len(rings) == len(dots) == 2
    (first_x, first_y), (second_x, second_y) = ((float(x), float(y)) for x, y in rings)
    (x, y), (last_x, _) = ((float(x), float(y)) for x, y in dots)
    second_s = (last_x - x) / 4  # pixels: the dots are at 5 and at 9 seconds
    assert first_x == pytest.approx(x - second_s, abs=0.1) and second_x == pytest.approx(x + second_s, abs=0.1)
    assert first_y < second_y == pytest.approx(y, abs=0.1), "on what was verified by then"


@pytest.mark.usefixtures("drawn")
def test_a_gain_of_many_times_is_drawn_by_ratio_and_the_end_is_the_runs() -> None:
    result, _ = of_a_plan()
    early = replace(result, search_s=40.0)
    fast = replace(early.verified_progress[-1], total_s=early.total_before_s / 100)
    shown = timeline_picture(timeline_of(SOME, least_s=40.0), replace(early, verified_progress=(fast,)))
    assert shown is not None and re.search(r"what was verified", shown.wide)
    (curve,) = re.findall(r'<path class="curve" d="([^"]+)"', shown.wide)
    ends = [float(n) for n in re.findall(r"-?[\d.]+", curve)[::2]]
    (at,) = re.findall(r'<circle class="step" data-i="0" cx="([\d.]+)"', shown.wide)
    assert (float(at) - ends[0]) / (ends[-1] - ends[0]) == pytest.approx(9 / 40, abs=1e-3)
    ticks = re.findall(r">(\d+ ms)</text>", shown.wide)
    assert ticks == ["1 ms", "2 ms", "5 ms", "10 ms", "20 ms", "50 ms"]


@pytest.mark.usefixtures("drawn")
def test_without_a_journal_the_curve_stands_alone() -> None:
    result, _ = of_a_plan()
    shown = timeline_picture(None, result)
    assert shown is not None and "seconds since the start" in shown.wide and "device" not in shown.wide
    assert len(shown.words) == 1 and not any(tip.startswith("region") for tip in shown.tips), "nobody knows when"
    nothing = replace(result, progress=(), verified_progress=())
    assert timeline_picture(None, nothing) is None
    jobs = timeline_picture(timeline_of(SOME), nothing)
    assert jobs is not None and "what was verified" not in jobs.wide and "device: search" in jobs.wide


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
    assert (
        "How the run went" in page
        and "Below is how busy each resource was" in page
        and 'data-figure="timeline"' in page
        and '"timeline":' in page
    )
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
    page = write_report(sample_result(), folder).read_text()
    assert "How the run went" in page and "how busy each resource was" not in page


def test_a_journal_that_cannot_be_read_any_more_costs_no_report(folder: Path) -> None:
    journal = Journal.open(folder / "journal.sqlite")
    journal.close()
    assert timeline_in(journal, sample_result()) is None
