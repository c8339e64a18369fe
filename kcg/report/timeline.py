"""What the workload took by what was verified at each moment of a run, and what each resource did meanwhile.

The curve is of the result; it has the regions of the plan where each was verified, and goes to the end of the run. The
rows below it are the jobs of the run's journal; without one there is the curve alone.

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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kcg.cli import counted
from kcg.dataset.job_use import CORE, busy
from kcg.dataset.journal import Journal, Run
from kcg.errors import JournalError, UsageError
from kcg.pictures import NARROW, WIDE, Axis, Picture, Sheet, Ticks, drawable, picture
from kcg.report.formats import format_seconds, format_share, format_speedup, short_seconds
from kcg.report.words import layers_of
from kcg.types import Job, JobKind, JobOutcome, ProgressPoint, RegionInPlan, Result

LABEL: Final = "What was verified by each moment of the run, and what each resource did"
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
    judged: Mapping[str, float] = field(default_factory=dict)  # id of a region, and when its first verdict was there


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
    judged: dict[str, float] = {}
    for job in sorted(done, key=lambda job: job.start_s):
        if job.kind in (JobKind.PAIRED, JobKind.JOINT) and job.outcome == JobOutcome.OK:
            judged.setdefault(job.subject, job.start_s + job.seconds)
    return Timeline(seconds, len(done), device_s, rows, judged)


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

LOG_FROM: Final = 4  # times between the most and the least that is drawn, above which the axis is logarithmic
FEW: Final = 60  # points that are drawn as large as others


def timeline_picture(timeline: Timeline | None, result: Result) -> Picture | None:
    """None where there is nothing to draw."""
    drawn = _Drawn.of(timeline, result)
    if not drawn.points and not drawn.timeline.rows:
        return None
    heights = (drawn.height, drawn.height)
    return picture("timeline", LABEL, drawn.draw, heights=heights, tips=list(drawn.tips()), words=list(drawn.words()))


def steps_of(points: Sequence[ProgressPoint]) -> list[ProgressPoint]:
    """The first point, each that is better than all before, and the last."""
    kept = [points[0]]
    for p in points[1:]:
        if p.total_s < kept[-1].total_s:
            kept.append(p)
    return kept if kept[-1] is points[-1] else [*kept, points[-1]]


@dataclass(frozen=True)
class _Drawn:
    timeline: Timeline
    result: Result
    verified: Sequence[ProgressPoint]  # what all took by what was verified
    searched: Sequence[ProgressPoint]  # by what the search measured
    regions: Sequence[tuple[float, RegionInPlan]]  # of the plan, and when each was verified

    CURVE = 210.0  # pixels high
    PITCH, THICK = 25.0, 19.0  # of rows

    @classmethod
    def of(cls, timeline: Timeline | None, result: Result) -> _Drawn:
        verified, searched = (
            [p for p in points if 0 <= p.elapsed_s < 1e9 and drawable(p.total_s)] if _has_total(result) else []
            for points in (result.verified_progress if _is_improved(result) else (), result.progress)
        )
        ends = [p.elapsed_s for p in (*verified, *searched)]
        if timeline is None:
            seconds = max([result.search_s if drawable(result.search_s) else 0.0, *ends])
            timeline = Timeline(seconds, 0, 0.0, ())
        else:
            timeline = replace(timeline, seconds=max([timeline.seconds, *ends]))
        if not drawable(timeline.seconds):
            verified, searched = [], []
        planned = result.planning.regions if result.planning is not None and verified else ()
        when = [(timeline.judged[one.region], one) for one in planned if one.region in timeline.judged]
        when.sort(key=lambda pair: pair[0])
        return cls(timeline, result, verified, steps_of(searched) if len(searched) > 1 else [], when)

    @property
    def points(self) -> Sequence[ProgressPoint]:
        """Those that are marked: what was verified; of a result of before that was kept, what was measured."""
        return self.verified or self.searched

    @property
    def whole_s(self) -> float | None:
        """The whole step, where it was timed and its time is above 0."""
        check = self.result.model_check
        after_s = check.after_s if check is not None else None
        return after_s if self.points and after_s is not None and drawable(after_s) else None

    def _top(self) -> float:
        """Where the rows begin."""
        return 28 + (self.CURVE + 22) * bool(self.points)

    @property
    def height(self) -> float:
        return self._top() + self.PITCH * len(self.timeline.rows) + 46

    def draw(self, sheet: Sheet) -> None:
        left, right = (96, NARROW - 6) if sheet.narrow else (132, WIDE - 12)
        x = Axis(0, self.timeline.seconds)
        ticks = x.ticks(4 if sheet.narrow else 10, lambda value: f"{value:g}")
        if self.points:
            self._draw_curve(sheet, x, ticks, left, right)
        if self.timeline.rows:
            self._draw_rows(sheet, x, ticks, left, right)

    def _draw_rows(self, sheet: Sheet, x: Axis, ticks: Ticks, left: float, right: float) -> None:
        top, rows = self._top(), self.timeline.rows
        bottom = top + self.PITCH * len(rows)
        panel = sheet.panel(x, Axis(bottom, top), left=left, top=top, right=right, bottom=bottom)  # downwards in pixels
        panel.frame(x=ticks, y=(), lines="x", title_x="seconds since the start")
        tip = len(self.points) + len(self.regions) + (self.whole_s is not None)
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

    def _draw_curve(self, sheet: Sheet, x: Axis, ticks: Ticks, left: float, right: float) -> None:
        before, after, end = self.result.total_before_s, self.result.total_after_s, self.timeline.seconds
        most, least = max(before, *(p.total_s for p in self.points)), min(after, *(p.total_s for p in self.points))
        if (whole := self.whole_s) is not None:
            most, least = max(most, whole), min(least, whole)
        y = Axis(0.8 * least, 1.2 * most, log=True) if most > LOG_FROM * least else Axis(0, 1.08 * most)
        panel = sheet.panel(x, y, left=left, top=28, right=right, bottom=28 + self.CURVE)
        under = not self.timeline.rows
        panel.frame(
            x=ticks if under else [(value, "") for value, _ in ticks],
            y=y.ticks(5, short_seconds),
            title_x="seconds since the start" if under else "",
        )
        self._draw_titles(sheet, right)
        searched = [(p.elapsed_s, p.total_s) for p in self.searched if y.low <= p.total_s <= y.high]
        if self.verified:
            if len(searched) > 1:
                panel.line([*searched, (end, searched[-1][1])], "mute", steps=True)
            path = [(p.elapsed_s, p.total_s) for p in self.verified]
            panel.line([(0.0, before), *path, (end, path[-1][1])], "curve", steps=True)
        else:
            path = [(p.elapsed_s, p.total_s) for p in self.searched]
            panel.line([*path, (end, path[-1][1])], "curve", steps=True)
            for total, look in ((before, "mute dot"), (after, "mute dash")):
                panel.line([(0.0, total), (end, total)], look)
        panel.dots(path, "step", radius=3.2 if len(path) < FEW else 2, tip=0)
        tip = len(path)
        for number, (at, _) in enumerate(self.regions):
            panel.dots([(at, self._incumbent_s(at))], "region", radius=4.5, tip=tip + number)
        if whole is not None:
            panel.dots([(end, whole)], "k3", radius=5, tip=tip + len(self.regions))

    def _draw_titles(self, sheet: Sheet, right: float) -> None:
        before, after = self.result.total_before_s, self.result.total_after_s
        fast = f"{format_seconds(after)}, {format_speedup(before, after)} as fast"
        if not self.verified:
            words = "measured by the search" if sheet.narrow else "best total, as the search measured it"
            sheet.paper.text(0, 14, words, "soft")
            beside = "dashes: verified" if sheet.narrow else f"dots: before; dashes: verified, {fast}"
            if _is_improved(self.result):
                sheet.paper.text(right, 14, beside, "soft small e")
            return
        sheet.paper.text(0, 14, f"verified {fast}" if sheet.narrow else f"what was verified: {fast} in the end", "soft")
        if len(self.searched) > 1:
            grey = "grey: search" if sheet.narrow else "grey: best plan by what the search measured"
            sheet.paper.text(right, 14, grey, "soft small e")

    def _incumbent_s(self, at: float) -> float:
        """What the workload took by what was verified by then."""
        before = [p.total_s for p in self.verified if p.elapsed_s <= at]
        return before[-1] if before else self.result.total_before_s

    def tips(self) -> Iterator[str]:
        result, before = self.result, self.result.total_before_s
        how = "verified" if self.verified else "measured by the search"
        for p in self.points:
            fast = format_speedup(before, p.total_s)
            after = f"after {format_seconds(p.elapsed_s)} and {p.measurements:,} measurements"
            yield f"{how} {after}:\n{format_seconds(p.total_s)}, {fast} as fast"
        layers = layers_of(result)
        for at, one in self.regions:
            saves = f"saves {format_seconds(one.counted_s)} a call, called {counted(one.calls, 'time')}"
            where = f"{layers[one.region]}\n" * bool(layers.get(one.region))
            yield f"region verified after {format_seconds(at)}\n{where}{one.form}\n{saves}"
        if self.whole_s is not None:
            yield f"the whole step in the end: {format_seconds(self.whole_s)}"
        for row in self.timeline.rows:
            name = f"device: {row.name}" if row.name in ON_DEVICE else row.name
            for bar in row.bars:
                when = f"{format_seconds(bar.begin_s)} to {format_seconds(bar.end_s)} after the start"
                kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(bar.kinds.items(), key=_most))
                yield f"{name}\n{when}\nbusy {format_share(bar.share)}{_of_cores(row)}\njobs: {kinds}"

    def words(self) -> Iterator[str]:
        yield from _gained(self.verified or self.searched, self.result, "verified" if self.verified else "measured")
        timeline = self.timeline
        if not timeline.rows:
            return
        share = format_share(timeline.device_s / timeline.seconds)
        parts = ", ".join(f"{row.name} {format_seconds(row.busy_s)}" for row in timeline.rows if row.name in ON_DEVICE)
        yield f"The device had a job {share} of {format_seconds(timeline.seconds)}: {parts}."
        others = (row for row in timeline.rows if row.name not in ON_DEVICE)
        beside = ", ".join(f"{row.name} {format_seconds(row.busy_s)}{_of_cores(row)}" for row in others)
        yield f"{timeline.jobs:,} {'job' if timeline.jobs == 1 else 'jobs'} in all; beside the device: {beside or '–'}."


def _has_total(result: Result) -> bool:
    return drawable(result.total_before_s, result.total_after_s)


def _is_improved(result: Result) -> bool:
    """Whether anything faster was verified; else a curve of what was would be a line across."""
    return any(row.outcome == "improved" for row in result.regions)


def _gained(points: Sequence[ProgressPoint], result: Result, how: str) -> Iterator[str]:
    """When half of what was gained was there, and when the last of it."""
    start, end = result.total_before_s, min((p.total_s for p in points), default=math.inf)
    if not end < start:
        return
    half = next(p for p in points if p.total_s <= (start + end) / 2)
    last = next(p for p in points if p.total_s == end)
    yield (
        f"Half of what was gained was {how} after {format_seconds(half.elapsed_s)} and {half.measurements:,} "
        f"measurements, the last of it after {format_seconds(last.elapsed_s)}."
    )


def _of_cores(row: Row) -> str:
    """Of how many cores what a row says is, where these are several."""
    return f" of {row.cores} cores" if row.cores > 1 else ""


def _most(kind: tuple[str, int]) -> tuple[int, str]:
    return -kind[1], kind[0]
