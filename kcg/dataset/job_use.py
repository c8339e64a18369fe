"""How busy a run kept its device and cores, by kind of job: what its journal's jobs add up to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kcg.nouns import printable
from kcg.types import Job, JobKind, JobOutcome

if TYPE_CHECKING:
    from rich.console import Console

    from kcg.dataset.journal import Run

CORE: Final = "core"  # the one resource that does several jobs at once

Interval = tuple[float, float]
"""From when to when, in seconds since the command of a run began."""


@dataclass(frozen=True)
class KindUse:
    """The jobs of one kind on one resource."""

    kind: str
    jobs: int  # without what was taken over
    taken_over: int
    seconds: float
    sampled_s: float  # of these the device itself ran what was sampled
    outcomes: Mapping[str, int]


@dataclass(frozen=True)
class ResourceUse:
    """What a run did on one resource. Busy and idle together are the run's seconds, times `count`."""

    resource: str
    count: int  # of cores; else 1
    busy_s: float
    idle_s: float
    kinds: tuple[KindUse, ...]  # those that took longest first


@dataclass(frozen=True)
class RunUse:
    """What one run did."""

    run_id: str
    seconds: float  # from the command's start
    ended: bool  # else it was killed, and this is the end of its last job
    resources: tuple[ResourceUse, ...]


def uses(jobs: Iterable[Job], runs: Mapping[str, Run]) -> list[RunUse]:
    """What each run of a journal did, in the order in which they came."""
    by_run: defaultdict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        by_run[job.run_id].append(job)
    return [_use_of(run_id, found, _cores_of(runs.get(run_id))) for run_id, found in by_run.items()]


def _cores_of(run: Run | None) -> int:
    cores = run.description.get("cores") if run is not None else None
    return cores if isinstance(cores, int) and cores > 0 else 1


def _use_of(run_id: str, jobs: Sequence[Job], cores: int) -> RunUse:
    whole = [job for job in jobs if job.kind == JobKind.RUN]
    seconds = max((job.start_s + job.seconds for job in whole or jobs), default=0.0)
    on: defaultdict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        if job.kind != JobKind.RUN:
            on[job.resource].append(job)
    found = []
    for resource, of_it in sorted(on.items()):
        count = cores if resource == CORE else 1
        busy_s = sum(j.seconds for j in of_it) if count > 1 else sum(end - begin for begin, end in busy(of_it))
        idle_s = max(count * seconds - busy_s, 0.0)
        found.append(ResourceUse(resource, count, busy_s, idle_s, tuple(_kinds(of_it))))
    return RunUse(run_id, seconds, bool(whole), tuple(found))


def _kinds(jobs: Sequence[Job]) -> Iterator[KindUse]:
    by_kind: defaultdict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        by_kind[job.kind].append(job)
    for kind, some in sorted(by_kind.items(), key=lambda one: -sum(job.seconds for job in one[1])):
        done = [job for job in some if job.outcome != JobOutcome.TAKEN_OVER]
        yield KindUse(
            kind,
            len(done),
            len(some) - len(done),
            sum(job.seconds for job in done),
            sum(job.sampled_s or 0.0 for job in done),
            dict(Counter(str(job.outcome) for job in done).most_common()),
        )


def busy(jobs: Iterable[Job]) -> list[Interval]:
    """When a resource had a job: intervals that do not touch, in their order."""
    found: list[Interval] = []
    for begin, end in sorted((job.start_s, job.start_s + job.seconds) for job in jobs if job.seconds):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def idle(jobs: Iterable[Job], seconds: float) -> list[Interval]:
    """When it had none, in a run that took so long."""
    ends = [0.0, *(at for interval in busy(jobs) for at in interval), seconds]
    return [(begin, end) for begin, end in zip(ends[::2], ends[1::2], strict=True) if end > begin]


# ---- On a terminal


def render(found: Sequence[RunUse], console: Console) -> None:
    """Print one table a run; nothing of a journal that has no jobs."""
    from rich.table import Table
    from rich.text import Text

    for run in found:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("resource and job", overflow="fold", min_width=12)
        for column in ("jobs", "seconds", "share", "sampled"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("ended", overflow="fold")
        for use in run.resources:
            all_s = use.count * run.seconds
            name = f"{use.resource} × {use.count}" if use.count > 1 else use.resource
            jobs, busy_share = sum(kind.jobs for kind in use.kinds), _share(use.busy_s, all_s)
            table.add_row(Text(printable(name), style="bold"), f"{jobs:,}", f"{use.busy_s:.1f}", busy_share, "", "")
            for kind in use.kinds:
                sampled = f"{kind.sampled_s:.3g}" if kind.sampled_s else ""
                row = f"{kind.jobs:,}", f"{kind.seconds:.1f}", _share(kind.seconds, all_s), sampled
                table.add_row(Text(printable(f"  {kind.kind}")), *row, Text(printable(_words(kind))))
            table.add_row("  idle", "", f"{use.idle_s:.1f}", _share(use.idle_s, all_s), "", "")
        console.print()
        end = "" if run.ended else " to its last job: it did not end by itself"
        console.print(Text(printable(f"What run {run.run_id[:8]} did, in {run.seconds:.1f} s{end}")))
        console.print(table)


def _share(seconds: float, of_s: float) -> str:
    return f"{100 * seconds / of_s:.0f} %" if of_s else "–"


def _words(kind: KindUse) -> str:
    ended = dict(kind.outcomes)
    if kind.taken_over:
        ended[str(JobOutcome.TAKEN_OVER)] = kind.taken_over
    return ", ".join(f"{count:,} {word}" for word, count in ended.items())
