"""What `python -m kcg.optimize` shows while it works and when it is done.

Progress goes to stderr: a bar on a terminal, plain lines elsewhere. The table of kernels goes to the console that the
caller gives.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO

from kcg.cli import counted
from kcg.kernel.kinds import describe, noun_of
from kcg.nouns import printable
from kcg.report.counts import how_many, share_of
from kcg.report.endings import incomplete, outlook_lines
from kcg.report.formats import format_seconds, format_speedup
from kcg.report.next_steps import NextStep, next_steps
from kcg.report.result import OUTCOMES, UNTIMED
from kcg.report.times import is_timed, totals_of, totals_text
from kcg.report.words import (
    checked_as,
    done_with,
    end_of,
    name_of,
    origin_of,
    plan_line,
    plan_rows,
    provisional_line,
    repeated,
    replayed,
    step_lines,
    steps_line,
    values_of,
)
from kcg.types import ModelCheck, Planning, RegionResult, Result

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

LINE_INTERVAL_S = 2.0
"""Where there is no terminal, the least time between two lines of progress within a phase."""

MAX_WIDTH = 100
SCREEN = 24  # lines of a terminal
LEAST_ROWS = 4  # of the table of kernels, whatever else there is
PLAN_ROWS = 2  # of a plan's regions, and then the least of kernels
MAX_ROWS = 40  # of what is written by hand
LEAST_NAME, LEAST_SCHEDULE = 12, 12  # columns
INDENT = 2
BAR_WIDTH = 16
LEFT = "\0"  # stands for the time that is left, which is known when it is drawn
MAX_NAMED = 10  # kernels that are named for one reason

_ASCII = str.maketrans({"µ": "u", "×": "x", "→": ">", "–": "-", "…": "."})


class Progress:
    """Phases and counts of a run, on stderr; use it as a context manager, made by `progress`.

    On a terminal it is one line with a bar that is redrawn; elsewhere plain lines, at most one every two seconds
    within a phase. It never writes to stdout. What is left is counted down between updates too, and never 0 while
    something goes on: past a budget, or later than expected, it says by how much.
    """

    def __init__(self, *, quiet: bool, plain: bool, stream: TextIO | None) -> None:
        self._quiet = quiet
        self._stream = sys.stderr if stream is None else stream
        self._phase = ""
        self._doing = "working"
        self._began = time.monotonic()
        self._end: float | None = None  # when the run should end, by `time.monotonic`
        self._is_budget = False  # whether that is given; else it is expected
        self._next_line = -math.inf  # when a plain line may be written again
        self._bar: Any = None
        self._task: Any = None
        if not quiet and not plain and self._stream.isatty():
            self._bar = _bar(self._stream, self)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside the block there is no bar: somebody else writes to the terminal."""
        if self._bar is not None:
            self._bar.stop()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.start()

    def until(self, over_at: float | None) -> None:
        """A budget ends then, by `time.monotonic`; None: there is none."""
        self._end, self._is_budget = over_at, over_at is not None

    def goes_on(self, doing: str) -> None:
        """What is said to go on where a budget is over, e.g. `judging`."""
        self._doing = doing

    def phase(self, name: str) -> None:
        """A new part of the work begins, e.g. `capturing flux mini`; said at once."""
        self._phase = name
        self._next_line = -math.inf
        self.line(f"{name} ...")
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task("", total=None, details=())

    def update(
        self,
        *,
        done_s: float,
        budget_s: float | None = None,
        measurements: int | None = None,
        total_s: float | None = None,
        kernels: tuple[int, int] | None = None,
        nouns: str = "kernels",
        note: str = "",
        verified_s: tuple[float, float] | None = None,
    ) -> None:
        """Where the run stands.

        Args:
            done_s, budget_s: seconds spent, and expected in all where no budget says it (`until`).
            measurements: binaries timed so far.
            total_s: the best total of the workload so far.
            kernels: how many are done, of how many.
            nouns: what these are, where regions are among them.
            note: a few words, e.g. which kernel is being searched.
            verified_s: what the workload takes by what was verified so far, and by tinygrad's own schedules.
        """
        if self._quiet:
            return
        now = time.monotonic()
        self._began = now - done_s
        if not self._is_budget:
            self._end = None if budget_s is None else self._began + budget_s
        parts = []
        if kernels is not None:
            parts.append(f"{kernels[0]}/{kernels[1]} {nouns}")
        if measurements is not None:
            parts.append(f"{measurements} measured")
        if total_s is not None:
            parts.append(f"best {format_seconds(total_s)}")
        if verified_s is not None:
            parts.append("verified {} of {}".format(*map(format_seconds, verified_s)))
        if self._bar is not None:
            if self._task is None:
                self.phase(self._phase or "working")
            done, total = kernels or (0, None)
            self._bar.update(self._task, completed=done, total=total, details=(*parts, LEFT, note))
            return
        if now >= self._next_line:
            self._next_line = now + LINE_INTERVAL_S
            parts = [_clock(done_s), *parts, *filter(None, [self.left(now), note])]
            self.line(f"{self._phase or 'working'}: {', '.join(parts)}")

    def left(self, now: float) -> str:
        """The time that is left, or by how much it is exceeded; empty where no end is known."""
        if self._end is None:
            return ""
        if (left_s := self._end - now) > 0:
            return f"{_clock(math.ceil(left_s - 0.01) or 1)} left"
        over = _clock(math.ceil(-left_s) or 1)
        return f"{over} over, still {self._doing}" if self._is_budget else f"{over} longer than expected"

    def share(self, now: float, done: float, total: float | None) -> float | None:
        """How much of the run is over; where its end is not known, of its phase. None past the end: nobody knows."""
        if self._end is not None:
            return (now - self._began) / (self._end - self._began) if now < self._end else None
        return done / total if total and done < total else None

    def line(self, text: str, *, important: bool = False) -> None:
        """A line that stays, e.g. that a worker was replaced. `important` is shown in spite of `--quiet`."""
        if self._quiet and not important:
            return
        if self._bar is not None:
            self._bar.console.print(_fit(text, self._stream.encoding), markup=False, highlight=False, soft_wrap=True)
        else:
            with contextlib.suppress(OSError):  # a full disk, or a reader that went away: no reason to end the work
                self._stream.write(_fit(text, self._stream.encoding) + "\n")
                self._stream.flush()


def progress(*, quiet: bool = False, json_mode: bool = False, stream: TextIO | None = None) -> Progress:
    """The progress of a run, on stderr (or on `stream`).

    With `json_mode` there is no bar even on a terminal: the object on stdout would be printed across it.
    """
    return Progress(quiet=quiet, plain=json_mode, stream=stream)


def print_result(result: Result, console: Console, *, files: tuple[Path, Path] | None = None) -> None:
    """The kernels that improved, the slowest first, and the rest counted; then totals, failures and warnings. At most
    100 columns wide, and `SCREEN` lines high unless there is much to warn of.

    `files`, of the result and its report, are named at the end, with what to do next."""
    width = min(console.width, MAX_WIDTH)
    plan = _plan_parts(result, result.planning, console, width) if result.planning is not None else []
    below: list[Any] = [] if plan else [_text(console, "")]
    below += [_text(console, line, style) for line, style in _summary(result)]
    commands = [] if files is None else [f"result: {files[0]}", f"report: {files[1]}"]
    steps = () if files is None else next_steps(result, files[0])

    options = console.options.update(width=width)
    taken = sum(len(console.render_lines(part, options, pad=False)) for part in (*plan, *below))
    ahead = outlook_lines(result)
    taken += len(commands) + len(ahead) + len(steps) + bool(steps) + 1  # the shell's next prompt
    for part in (*_kernel_parts(result, console, width, lines=SCREEN - taken), *plan, *below):
        console.print(part, width=width)
    for line in (*commands, *ahead):
        console.print(_text(console, line), soft_wrap=True)
    _print_steps(steps, console, width)


def _text(console: Console, content: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(_fit(content, console.encoding), style="" if console.no_color else style)


def _table(console: Console, width: int) -> Table:
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), width=width, header_style="")


def _slowest_first(rows: Iterable[RegionResult]) -> list[RegionResult]:
    return sorted(rows, key=lambda r: -r.before_s if math.isfinite(r.before_s) else math.inf)


def _kernel_parts(result: Result, console: Console, width: int, *, lines: int) -> list[Any]:
    """What improved, in at most so many lines but in no fewer than `LEAST_ROWS` rows, and what did not, counted."""
    improved = _slowest_first(row for row in result.regions if row.outcome == "improved")
    counts = [_text(console, line, "dim") for line in unimproved_lines(result)]
    least = LEAST_ROWS if result.planning is None else PLAN_ROWS
    most = max(lines - 1 - len(counts), least)
    shown = improved[: most if len(improved) <= most else max(most - 1, least)]
    parts: list[Any] = [_kernel_table(shown, console, width)] if shown else []
    if rest := improved[len(shown) :]:
        before, after = (sum(getattr(r, name) for r in rest) or None for name in ("before_s", "after_s"))
        more = f"... and {len(rest)} more improved: {format_seconds(before)} → {format_seconds(after)}, see the report"
        parts.append(_text(console, more))
    return [*parts, *counts]


def _kernel_table(rows: Sequence[RegionResult], console: Console, width: int) -> Table:
    names = [_fit(origin_of(row) or row.chosen.name or row.region.id[:12], None) for row in rows]
    cells = [
        [
            values_of(row),
            str(row.calls),
            format_seconds(row.before_s or None),
            format_seconds(row.after_s or None),
            format_speedup(row.before_s, row.after_s),
        ]
        for row in rows
    ]
    titles = [VALUES, "calls", "before", "after", "speed-up"]
    if not any(row[0] for row in cells):
        titles, cells = titles[1:], [row[1:] for row in cells]
    table = _table(console, width)
    taken = sum(2 + max(len(cell) for cell in column) for column in zip(titles, *cells, strict=True))
    wide = min(max(map(len, names)), width - taken - LEAST_SCHEDULE)
    named = any(row.origins for row in rows)
    table.add_column(_text(console, "layer" if named else "kernel", "bold"), no_wrap=True, width=max(wide, LEAST_NAME))
    for title in titles:
        justify: Literal["left", "right"] = "left" if title == VALUES else "right"
        table.add_column(_text(console, title, "bold"), justify=justify, no_wrap=True)
    overflow: Literal["ellipsis", "crop"] = "ellipsis" if _is_unicode(console.encoding) else "crop"
    table.add_column(_text(console, "schedule", "bold"), no_wrap=True, overflow=overflow, ratio=1)
    for row, name, values in zip(rows, names, cells, strict=True):
        texts = [_text(console, value, "green" if "×" in value else "") for value in values]
        schedule = _text(console, describe(row.chosen.schedule), "dim")
        table.add_row(_text(console, end_of(name, max(wide, LEAST_NAME))), *texts, schedule)
    return table


def unimproved_lines(result: Result) -> list[str]:
    """One line for the kernels that did not improve, and one for those that were not searched."""
    lines = []
    others = [row for row in result.regions if row.outcome not in ("improved", "not searched")]
    if others:
        outcomes = Counter(row.outcome for row in others)
        counts = ", ".join(f"{outcomes[name]} {name}" for name in OUTCOMES if outcomes[name])
        lines.append(f"not improved: {counts}{_share(others, result)}")
    idle = [row for row in result.regions if row.outcome == "not searched"]
    for rows, what in (
        ([row for row in idle if is_timed(row)], ""),
        ([row for row in idle if not is_timed(row)], ", which were not timed"),
    ):
        if rows:
            notes = Counter(row.note for row in rows if row.note not in ("", UNTIMED))
            why = f": {notes.most_common(1)[0][0]}" if notes else ""
            lines.append(f"not searched: {len(rows)}{what}{_share(rows, result)}{why}")
    return lines


def _share(rows: Sequence[RegionResult], result: Result) -> str:
    """The time of some kernels, and how much of all that is, where all were timed."""
    before, total = sum(row.before_s for row in rows), result.total_before_s
    if not (before > 0 and math.isfinite(total)):
        return ""
    share = "" if totals_of(result).part else f", {100 * before / total:.0f} % of the time"
    return f", {format_seconds(before)}{share}"


def _print_steps(steps: Sequence[NextStep], console: Console, width: int) -> None:
    """Commands whole, so that they can be copied, each with what it does where there is room."""
    if not steps:
        return
    console.print(_text(console, "next:", "bold"))
    fits = [len(step.command) for step in steps if len(step.command) + len(step.does) + INDENT + 4 <= width]
    for command, does in steps:
        line = _text(console, " " * INDENT + command)
        column = max([size for size in fits if size + len(does) + INDENT + 4 <= width], default=0)
        if len(command) <= column:
            line.append_text(_text(console, " " * (column - len(command)) + f"  # {does}", "dim"))
        console.print(line, soft_wrap=True)


def _plan_parts(result: Result, planning: Planning, console: Console, width: int) -> list[Any]:
    """The plan: what became one program, of many a few, and the whole steps that were compared."""

    overflow: Literal["ellipsis", "crop"] = "ellipsis" if _is_unicode(console.encoding) else "crop"

    def table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
        made = _table(console, width)
        for place, title in enumerate(titles):
            last = place in (0, len(titles) - 1)
            justify: Literal["left", "right"] = "left" if last else "right"
            ratio = 2 if not place else 1 if last else None
            made.add_column(
                _text(console, title, "bold"), justify=justify, ratio=ratio, no_wrap=True, overflow=overflow
            )
        for row in rows:
            made.add_row(*(_text(console, cell) for cell in row))
        return made

    parts: list[Any] = [_text(console, plan_line(result, planning), "bold")]
    origins = {row.region.id: origin_of(row) for row in result.regions}
    if planning.regions:
        titles = ("became one program", "calls", "saves a call", "bytes", "put in")
        rows = plan_rows(result, planning)[:PLAN_ROWS]
        names = [origins.get(one.region) or row.kernels for one, row in zip(planning.regions, rows, strict=False)]
        cells = [
            (f"{row.form}: {name}", row.calls, row.saved, row.bytes, row.put)
            for row, name in zip(rows, names, strict=True)
        ]
        parts.append(table(titles, cells))
        if rest := planning.regions[PLAN_ROWS:]:
            saved = format_seconds(sum(one.calls * one.counted_s for one in rest))
            parts.append(_text(console, f"... and {counted(len(rest), 'more region', 'more regions')}: save {saved}"))
    if len(planning.plans) > 1:
        parts.append(_text(console, steps_line(planning)))
    return parts


VALUES = "values"  # of symbolic variables: a column where a kernel has some


def _summary(result: Result) -> list[tuple[str, str]]:
    """The lines below the table, each with its style."""
    workload = " ".join(filter(None, (result.workload, result.preset)))
    regions = [row.region for row in result.regions]
    improved = share_of((row.region for row in result.regions if row.outcome == "improved"), regions)
    nouns = Counter(noun_of(row.chosen.schedule) for row in result.regions if row.outcome == "improved")
    of_these = "".join(f", {counted(count, noun)}" for noun, count in nouns.items() if noun)
    lines = [
        (f"{workload}: {totals_text(result)}; {improved} improved{of_these}", "bold"),
        *((line, "bold") for line in step_lines(result)),
        (
            f"{result.measurements} measurements, {result.compilations} compilations, "
            f"{format_seconds(result.search_s)} ({result.search}{_guide(result)}, seed {result.seed})",
            "",
        ),
    ]
    if stored := [row for row in result.regions if row.store]:
        lines.append((f"{counted(len(stored), 'schedule')} from the store {stored[0].store}, verified here", ""))
    lines += _left_as_they_are(result)
    by_hand = [
        f"{name} for {row.baseline.name or row.region.id[:12]}: {fate}"
        for row in result.regions
        for name, fate in row.handwritten
    ]
    lines += [(line, "") for line in by_hand[:MAX_ROWS]]
    if len(by_hand) > MAX_ROWS:
        lines.append((f"... and {len(by_hand) - MAX_ROWS} more written by hand: see the report", ""))
    if result.model_check is not None:
        lines.append(_model_line(result.model_check, f"whole {checked_as(result)}"))
    if line := provisional_line(result):
        lines.append((line, "yellow"))
    for found in result.recomputes:
        name = next((r.chosen.name for r in result.regions if r.region.id == found.kernel_id), found.kernel_id[:12])
        lines.append((f"{name} {done_with(found)}: {found.advice}", "yellow"))
    if result.failures:
        lines.append(("failed: " + ", ".join(f"{count} {status}" for status, count in result.failures), "dim"))
    if unverified := sum(r.outcome == "improved" and not r.chosen.verification.passed for r in result.regions):
        reported = (
            f"{unverified} of the improved are not verified: these keep tinygrad's own schedule wherever it is used"
        )
        lines.append((reported, "yellow"))
    lines += [(str(left), "yellow") for left in result.left_out]
    if why := incomplete(result):
        lines.append((f"incomplete: {why}", "yellow"))
    return lines + [(f"warning: {warning}", "yellow") for warning in result.warnings if warning != why]


def _left_as_they_are(result: Result) -> list[tuple[str, str]]:
    """The kernels of which nothing can be said, by reason: they keep tinygrad's own schedule."""
    rows = [row for row in result.regions if row.outcome in ("unjudged", "quarantined")]
    names: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        names.setdefault((row.outcome, row.note), []).append(name_of(row))
    lines = []
    for (outcome, note), found in names.items():
        more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
        verb = "keeps" if len(found) == 1 else "keep"
        lines.append(f"{outcome}: {', '.join(found[:MAX_NAMED])}{more} {verb} tinygrad's own schedule: {note}")
    has_total = totals_of(result).before_s is not None
    if has_total and (untimed := sum(not row.before_s > 0 for row in rows)):
        lines.append(f"{untimed} of these could not be timed: the totals are without them")
    without = [row for row in result.regions if row not in rows and not row.before_s > 0]
    others = [row.region for row in without if row.note != UNTIMED]  # of those a warning says more
    if has_total and others:
        were = "was" if len(others) == 1 else "were"
        lines.append(f"{how_many(others)} {were} not timed: the totals are without them")
    return [(line, "yellow") for line in lines]


def _guide(result: Result) -> str:
    return f" guided by {result.predictor}" if result.predictor else ""


def _model_line(check: ModelCheck, what: str) -> tuple[str, str]:
    """The verdict on the whole model, or on a script, in one line, with its style."""
    again = f"; {repeated(check.runs)}" if check.runs else ""
    if check.passed is None:
        return f"{what}: {check.reason}{again}", ""
    if not check.passed:
        return f"{what}: FAILED, do not use this result: {check.reason}{again}", "bold red"
    on = f" on {check.weights}" if check.weights else ""
    text = f"{what}: verified{on}, error {check.error:.2g} of a tolerated {check.tolerance:.2g}"
    if check.runs:
        return f"{text} ({check.compared}){again}", "green"
    clock = check.clock.partition(",")[0]
    text += f"; one step {format_seconds(check.before_s)} → {format_seconds(check.after_s)} by {clock}"
    return f"{text}{replayed(check)}", "green"


def _bar(stream: TextIO, shown: Progress) -> Any:
    """rich's progress display on `stream`: what depends on the clock is worked out whenever it is drawn."""
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
    from rich.progress import Progress as Display
    from rich.progress_bar import ProgressBar
    from rich.table import Column
    from rich.text import Text

    class Bar(BarColumn):
        def render(self, task: Task) -> ProgressBar:
            share = shown.share(time.monotonic(), task.completed, task.total)
            if share is None:
                return ProgressBar(width=BAR_WIDTH, total=None, pulse=True, animation_time=task.get_time())
            return ProgressBar(width=BAR_WIDTH, total=1.0, completed=share)

    class Details(ProgressColumn):
        def render(self, task: Task) -> Text:
            parts = task.fields["details"] or (LEFT,)
            words = [shown.left(time.monotonic()) if part == LEFT else part for part in parts]
            return Text(_fit(" ".join(", ".join(filter(None, words)).split()), stream.encoding))

    console = Console(file=stream, highlight=False)
    if console.is_dumb_terminal:
        return None
    return Display(
        SpinnerColumn(),
        Bar(bar_width=BAR_WIDTH),
        TimeElapsedColumn(),
        Details(table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        console=console,
        expand=True,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # a file behind stdout must keep what is printed to it
    )


def _clock(seconds: float) -> str:
    """`4:18` or `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _fit(content: str, encoding: str | None) -> str:
    """`content` in characters that the stream can take: an old locale must not end a search with UnicodeEncodeError,
    nor may the name of a layer steer the terminal."""
    content = content.encode("utf-8", "replace").decode()  # half a character, as JSON can spell one, is no text
    content = "\n".join(map(printable, content.split("\n")))
    if _is_unicode(encoding):
        return content
    return content.translate(_ASCII).encode("ascii", "replace").decode()


def _is_unicode(encoding: str | None) -> bool:
    return (encoding or "utf-8").lower().startswith("utf")
