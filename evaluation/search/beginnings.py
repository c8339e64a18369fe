"""How soon a run begins: what its jobs show of the time until its search, by kind.

    python -m evaluation.search.beginnings kcg-out/flux/journal.sqlite other/journal.sqlite

Of each journal's last run: when each kind of job began first and ended last on a resource, how long these took and how
busy they kept it, up to the first sample of a candidate (`--until` seconds instead). Baselines are the timings before a
kernel's first candidate. Nothing is measured, and nothing written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from kcg.cli import run_script
from kcg.dataset.job_use import busy
from kcg.dataset.journal import Journal
from kcg.errors import DataError
from kcg.types import Job, JobKind, JobOutcome

BASELINE: Final = "baseline"  # a kind of this page alone
CANDIDATE: Final = "candidate"


@dataclass(frozen=True)
class Line:
    """The jobs of one kind on one resource, in seconds since the command began."""

    resource: str
    kind: str
    jobs: int
    first_s: float
    last_s: float
    seconds: float
    at_once: float  # how many of them, while there were some


@dataclass(frozen=True)
class Beginning:
    """What a run did before its search, and what it did first."""

    until_s: float
    searched: bool  # else it ended before its search
    lines: tuple[Line, ...]
    device_busy_s: float  # between the first baseline's begin and `until_s`
    baselines_s: float  # that time


def beginning(jobs: Iterable[Job], until_s: float | None = None) -> Beginning:
    """What the jobs of one run show. Those that go on at the end are cut there."""
    named = _named([job for job in jobs if job.kind != JobKind.RUN and job.outcome != JobOutcome.TAKEN_OVER])
    candidates = [job.start_s for kind, job in named if kind == CANDIDATE]
    ends = [job.start_s + job.seconds for _, job in named]
    end_s = until_s if until_s is not None else min(candidates, default=max(ends, default=0.0))
    by_kind: defaultdict[tuple[str, str], list[Job]] = defaultdict(list)
    for kind, job in named:
        if job.start_s < end_s:
            by_kind[job.resource, kind].append(job)
    lines = [_line(resource, kind, some, end_s) for (resource, kind), some in by_kind.items()]
    timed = [job for kind, job in named if kind == BASELINE and job.start_s < end_s]
    begun_s = min((job.start_s for job in timed), default=end_s)
    on_device = [job for _, job in named if timed and job.resource == timed[0].resource]
    device_busy_s = _busy_s(on_device, begun_s, end_s)
    lines.sort(key=lambda line: (line.first_s, line.last_s))
    return Beginning(end_s, bool(candidates), tuple(lines), device_busy_s, end_s - begun_s)


def _named(jobs: Sequence[Job]) -> list[tuple[str, Job]]:
    """Jobs with their kinds, in the order in which they began; timings as those of baselines or of candidates."""
    seen: set[str] = set()
    found = []
    for job in sorted(jobs, key=lambda job: job.start_s):
        kind = str(job.kind)
        if job.kind == JobKind.TIME:
            kind = CANDIDATE if job.subject in seen else BASELINE
            seen.add(job.subject)
        found.append((kind, job))
    return found


def _line(resource: str, kind: str, jobs: Sequence[Job], end_s: float) -> Line:
    cut = [(job.start_s, min(job.start_s + job.seconds, end_s)) for job in jobs]
    seconds, some_s = sum(end - begin for begin, end in cut), _busy_s(jobs, 0.0, end_s)
    return Line(
        resource,
        kind,
        len(jobs),
        min(begin for begin, _ in cut),
        max(end for _, end in cut),
        seconds,
        seconds / some_s if some_s else 0.0,
    )


def _busy_s(jobs: Iterable[Job], begin_s: float, end_s: float) -> float:
    """How much of that time there was a job."""
    return sum(max(min(end, end_s) - max(begin, begin_s), 0.0) for begin, end in busy(jobs))


def render(found: Beginning) -> str:
    """As lines of text."""
    what = "the search's first sample" if found.searched else "no search"
    text = [
        f"{what} after {found.until_s:.1f} s",
        f"{'resource':10} {'kind':14} {'jobs':>5} {'first':>7} {'last':>7} {'seconds':>8} {'at once':>8}",
    ]
    text += [
        f"{one.resource:10} {one.kind:14} {one.jobs:5} {one.first_s:7.1f} {one.last_s:7.1f} {one.seconds:8.1f} "
        f"{one.at_once:8.1f}"
        for one in found.lines
    ]
    share = found.device_busy_s / found.baselines_s if found.baselines_s > 0 else 0.0
    text.append(f"device busy for {found.device_busy_s:.1f} of {found.baselines_s:.1f} s of baselines, {share:.0%}")
    return "\n".join(text)


def last_run(path: Path) -> list[Job]:
    """The jobs of a journal's last run. Raises DataError where it has none."""
    with Journal.open(path, create=False, read_only=True) as journal:
        jobs = journal.jobs()
    if not jobs:
        raise DataError(f"{path} has no jobs: make it again with this kcg")
    return [job for job in jobs if job.run_id == jobs[-1].run_id]


def main(
    journals: Annotated[list[Path], typer.Argument(metavar="FILE", help="journals of runs")],
    until: Annotated[float | None, typer.Option(help="seconds since the command began")] = None,
) -> None:
    """Print one table a journal."""
    for path in journals:
        typer.echo(f"{path}: {render(beginning(last_run(path), until))}\n")


if __name__ == "__main__":
    run_script(main)
