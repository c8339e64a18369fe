"""What each resource did over time, with what was verified by then: the jobs of a run's journal as a picture.

Time is cut into slices. In each a row shows how much of it its resource was busy with one sort of job, as the height of
its bar; slices beside each other that were about as busy are one bar. So a row is as readable with 20,000 jobs as with
400, and a page no larger.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kcg.dataset.job_use import CORE, busy
from kcg.dataset.journal import Journal, Run
from kcg.errors import JournalError, UsageError
from kcg.pictures import NARROW, WIDE, Axis, Picture, Sheet, drawable, picture
from kcg.report.formats import format_seconds, format_share, format_speedup, short_seconds
from kcg.report.times import totals_of
from kcg.types import Job, JobKind, JobOutcome, ProgressPoint, Result

LABEL: Final = "What each resource did over the seconds of the run, and what was verified by then"
SLICES: Final = 180
LEVELS: Final = 5  # of how busy a resource was: a bar has one of so many heights
DEVICE: Final = "device"  # begins the names of its resources

SEARCH, JUDGING, STRESS, WHOLE, PROCESSES = "search", "judging", "stress", "whole", "processes"
CORES, REFERENCES, MAIN_PROCESS = "compile cores", "references", "main process"
LOOKS: Final = {
    SEARCH: "k0",
    JUDGING: "k2",
    STRESS: "k1",
    WHOLE: "k3",
    PROCESSES: "krest",
    CORES: "k5",
    REFERENCES: "k4",
    MAIN_PROCESS: "k11",
}
"""The rows, in their order, and their colours: the first five are what the device does."""
ON_DEVICE: Final = (SEARCH, JUDGING, STRESS, WHOLE, PROCESSES)
_ROW_OF: Final = {
    JobKind.PAIRED: JUDGING,
    JobKind.JOINT: JUDGING,
    JobKind.NAN: JUDGING,
    JobKind.IN_CONTEXT: JUDGING,
    JobKind.STRESS: STRESS,
    JobKind.STEP: WHOLE,
    JobKind.PROCESSES: PROCESSES,
}


# ---- rows


@dataclass(frozen=True)
class Bar:
    """Some time in which a resource was about as busy. Times are in seconds since the start."""

    begin_s: float
    end_s: float
    share: float  # of that time, times the cores where there are several
    kinds: Mapping[str, int]  # jobs that went on then, by their kind


@dataclass(frozen=True)
class Row:
    """One sort of job on one sort of resource."""

    name: str
    cores: int  # that do it at once, else 1
    busy_s: float  # of several cores together
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Timeline:
    """What a run did."""

    seconds: float  # until its last job ended
    jobs: int
    device_s: float  # that the device was busy, with whatever
    rows: tuple[Row, ...]


def timeline_of(jobs: Sequence[Job], *, cores: int = 1, least_s: float = 0.0) -> Timeline | None:
    """The jobs of one run, which took `least_s` or longer; None where there are none that took time."""
    done = [job for job in jobs if job.kind != JobKind.RUN and job.outcome != JobOutcome.TAKEN_OVER and job.seconds]
    if not done:
        return None
    seconds = max(least_s, *(job.start_s + job.seconds for job in done))
    by_row: defaultdict[str, list[Job]] = defaultdict(list)
    for job in done:
        by_row[row_of(job)].append(job)
    rows = tuple(_row(name, by_row[name], cores, seconds) for name in LOOKS if name in by_row)
    device = (job for job in done if job.resource.startswith(DEVICE))
    device_s = sum(end - begin for begin, end in busy(device))
    return Timeline(seconds, len(done), device_s, rows)


def row_of(job: Job) -> str:
    """In which row a job is."""
    if job.kind == JobKind.REFERENCE:
        return REFERENCES
    if job.resource.startswith(DEVICE):
        return _ROW_OF.get(JobKind(job.kind), SEARCH) if job.kind in set(JobKind) else SEARCH
    return CORES if job.resource == CORE else MAIN_PROCESS


def _row(name: str, jobs: Sequence[Job], cores: int, seconds: float) -> Row:
    several = cores if any(job.resource == CORE for job in jobs) else 1
    when = [(job.start_s, job.start_s + job.seconds) for job in jobs] if several > 1 else busy(jobs)
    width, busy_s = seconds / SLICES, [0.0] * SLICES
    for begin, end in when:
        for place in _slices(begin, end, width):
            busy_s[place] += max(min(end, (place + 1) * width) - max(begin, place * width), 0.0)
    shares = [min(one / (width * several), 1.0) for one in busy_s]
    levels = [math.ceil(LEVELS * share - 1e-9) for share in shares]
    changes = [bool(place) and levels[place] != levels[place - 1] for place in range(SLICES)]
    begins = [0, *itertools.compress(range(SLICES), changes)]
    number = list(itertools.accumulate(changes, initial=0))[1:]  # of the bar that a slice is of
    kinds: list[Counter[str]] = [Counter() for _ in begins]
    for job in jobs:
        places = _slices(job.start_s, job.start_s + job.seconds, width)
        for bar in range(number[places[0]], number[places[-1]] + 1):
            kinds[bar][job.kind] += 1
    bars = []
    for bar, (begin, end) in enumerate(zip(begins, [*begins[1:], SLICES], strict=True)):
        if levels[begin]:
            bars.append(Bar(begin * width, end * width, sum(shares[begin:end]) / (end - begin), kinds[bar]))
    return Row(name, several, sum(end - begin for begin, end in when), tuple(bars))


def _slices(begin: float, end: float, width: float) -> range:
    """The slices that an interval touches."""
    first = min(int(begin / width), SLICES - 1)
    return range(first, max(min(math.ceil(end / width), SLICES), first + 1))


def timeline_in(journal: Journal, result: Result) -> Timeline | None:
    """What the last run did that wrote jobs into a journal; None where none did, as those of before there were any, or
    where it cannot be read: no report is worth less for that."""
    found: defaultdict[str, list[Job]] = defaultdict(list)
    runs: list[Run] = []
    with contextlib.suppress(JournalError):
        for job in journal.jobs():
            found[job.run_id].append(job)
        runs = [run for run in journal.runs().values() if run.run_id in found]
    if not runs:
        return None
    last = max(runs, key=lambda run: run.started)
    cores = last.description.get("cores")
    cores = cores if isinstance(cores, int) and cores > 0 else 1
    return timeline_of(found[last.run_id], cores=cores, least_s=result.search_s)


def timeline_beside(path: Path, result: Result) -> Timeline | None:
    """The same of the journal beside a result; None where there is none that can be read."""
    journal = path.with_name("journal.sqlite")
    with contextlib.suppress(JournalError, UsageError):
        if journal.exists():
            with Journal.open(journal, read_only=True) as opened:
                return timeline_in(opened, result)
    return None


# ---- as a picture


def timeline_picture(timeline: Timeline | None, result: Result) -> Picture | None:
    """None where there is nothing to draw."""
    if timeline is None:
        return None
    points = [p for p in result.verified_progress if 0 <= p.elapsed_s <= timeline.seconds and drawable(p.total_s)]
    if points and not drawable(result.total_before_s):
        points = []
    drawn = _Drawn(timeline, result, points)
    heights = (drawn.height, drawn.height)
    return picture("timeline", LABEL, drawn.draw, heights=heights, tips=list(drawn.tips()), words=list(drawn.words()))


@dataclass(frozen=True)
class _Drawn:
    timeline: Timeline
    result: Result
    points: Sequence[ProgressPoint]  # what was verified

    CURVE = 150.0  # pixels high
    PITCH, THICK = 25.0, 19.0  # of rows

    def _top(self) -> float:
        """Where the rows begin."""
        return 28 + (self.CURVE + 22) * bool(self.points)

    @property
    def height(self) -> float:
        return self._top() + self.PITCH * len(self.timeline.rows) + 46

    def draw(self, sheet: Sheet) -> None:
        left, right = (96, NARROW - 6) if sheet.narrow else (132, WIDE - 8)
        x = Axis(0, self.timeline.seconds)
        ticks = x.ticks(4 if sheet.narrow else 10, lambda value: f"{value:g}")
        if self.points:
            self._draw_curve(sheet, x, ticks, left, right)
        top, rows = self._top(), self.timeline.rows
        bottom = top + self.PITCH * len(rows)
        panel = sheet.panel(x, Axis(bottom, top), left=left, top=top, right=right, bottom=bottom)  # downwards in pixels
        panel.frame(x=ticks, y=(), lines="x", title_x="seconds since the start")
        tip = len(self.points)
        pixel = self.timeline.seconds / (right - left)
        for number, row in enumerate(rows):
            base = top + self.PITCH * number + self.THICK + 3
            name = f"device: {row.name}" if row.name in ON_DEVICE and not sheet.narrow else row.name
            sheet.paper.text(left - 8, base - 5, name, "small e")
            panel.line([(0, base), (self.timeline.seconds, base)], "grid")
            for bar in row.bars:
                level = math.ceil(LEVELS * bar.share - 1e-9) / LEVELS
                end = max(bar.end_s, bar.begin_s + pixel)
                panel.box((bar.begin_s, end), (base, base - self.THICK * level), LOOKS[row.name], tip=tip)
                tip += 1

    def _draw_curve(self, sheet: Sheet, x: Axis, ticks: Sequence[tuple[float, str]], left: float, right: float) -> None:
        before, after, end = self.result.total_before_s, self.result.total_after_s, self.timeline.seconds
        y = Axis(0, 1.08 * max(before, *(p.total_s for p in self.points)))
        panel = sheet.panel(x, y, left=left, top=28, right=right, bottom=28 + self.CURVE)
        panel.frame(x=[(value, "") for value, _ in ticks], y=y.ticks(4, short_seconds))
        if totals_of(self.result).after_s is None:
            title = f"{format_seconds(before)}, nothing verified is faster"
        else:
            fast = f"{format_seconds(after)}, {format_speedup(before, after)} as fast"
            title = f"verified {fast}" if sheet.narrow else f"best total by what was verified: {fast} in the end"
        sheet.paper.text(0, 14, title, "soft")
        if len(found := [p for p in self.result.progress if 0 <= p.elapsed_s <= end and 0 < p.total_s <= y.high]) > 1:
            panel.line([(p.elapsed_s, p.total_s) for p in found] + [(end, found[-1].total_s)], "mute", steps=True)
            grey = "grey: by the search" if sheet.narrow else "grey: as the search measured it"
            sheet.paper.text(right, 14, grey, "soft small e")
        path = [(0.0, before), *((p.elapsed_s, p.total_s) for p in self.points), (end, self.points[-1].total_s)]
        panel.line(path, "curve", steps=True)
        panel.dots(path[1:-1], "step", radius=3.2 if len(self.points) < 60 else 2, tip=0)

    def tips(self) -> Iterator[str]:
        before = self.result.total_before_s
        for p in self.points:
            fast = format_speedup(before, p.total_s)
            yield f"verified after {format_seconds(p.elapsed_s)}:\n{format_seconds(p.total_s)}, {fast} as fast"
        for row in self.timeline.rows:
            where = f"device: {row.name}" if row.name in ON_DEVICE else row.name
            for bar in row.bars:
                when = f"{format_seconds(bar.begin_s)} to {format_seconds(bar.end_s)} after the start"
                kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(bar.kinds.items(), key=_most))
                yield f"{where}\n{when}\nbusy {format_share(bar.share)}{_of_cores(row)}\njobs: {kinds}"

    def words(self) -> Iterator[str]:
        timeline = self.timeline
        share = format_share(timeline.device_s / timeline.seconds)
        parts = ", ".join(f"{row.name} {format_seconds(row.busy_s)}" for row in timeline.rows if row.name in ON_DEVICE)
        yield f"The device had a job {share} of {format_seconds(timeline.seconds)}: {parts}."
        others = (row for row in timeline.rows if row.name not in ON_DEVICE)
        beside = ", ".join(f"{row.name} {format_seconds(row.busy_s)}{_of_cores(row)}" for row in others)
        yield f"{timeline.jobs:,} {'job' if timeline.jobs == 1 else 'jobs'} in all; beside the device: {beside or '–'}."


def _of_cores(row: Row) -> str:
    """Of how many cores what a row says is, where these are several."""
    return f" of {row.cores} cores" if row.cores > 1 else ""


def _most(kind: tuple[str, int]) -> tuple[int, str]:
    return -kind[1], kind[0]
