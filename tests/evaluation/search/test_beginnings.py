"""What jobs show of the time until a search."""

from __future__ import annotations

import pytest

from evaluation.search.beginnings import BASELINE, beginning, render
from kcg.types import Job, JobKind, JobOutcome


def job(kind: str, subject: str, resource: str, start_s: float, seconds: float) -> Job:
    return Job(kind, subject, resource, start_s, seconds, JobOutcome.OK)


JOBS = [
    job(JobKind.CAPTURE, "flux", "main", 1.0, 4.0),
    job(JobKind.COMPILE, "a", "core", 5.0, 2.0),
    job(JobKind.COMPILE, "b", "core", 5.0, 4.0),
    job(JobKind.TIME, "a", "device:0", 7.0, 1.0),
    job(JobKind.COMPILE, "a", "core", 8.0, 4.0),
    job(JobKind.TIME, "b", "device:0", 9.0, 1.0),
    job(JobKind.TIME, "a", "device:0", 11.0, 1.0),
    job(JobKind.RUN, "", "main", 0.0, 30.0),
]


def test_the_beginning_ends_with_the_first_sample_of_a_candidate() -> None:
    found = beginning(JOBS)
    assert found.searched and found.until_s == 11.0
    by_kind = {(line.resource, line.kind): line for line in found.lines}
    compiling, baselines = by_kind["core", JobKind.COMPILE], by_kind["device:0", BASELINE]
    assert (compiling.jobs, compiling.first_s, compiling.last_s, compiling.seconds) == (3, 5.0, 11.0, 9.0)
    assert compiling.at_once == pytest.approx(9.0 / 6.0) and (baselines.jobs, baselines.seconds) == (2, 2.0)
    assert (found.device_busy_s, found.baselines_s) == (2.0, 4.0) and "2.0 of 4.0 s of baselines, 50%" in render(found)


def test_one_that_was_cut_off_before_is_looked_at_to_its_end() -> None:
    found = beginning(JOBS[:4])
    assert not found.searched and found.until_s == 9.0 and found.device_busy_s == 1.0
    assert beginning(JOBS, until_s=6.0).lines[-1].seconds == 2.0, "two jobs, a second of each"
    assert not beginning([]).lines
