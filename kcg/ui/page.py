"""The pages: all runs below a folder, one run with its trials, all kernels over all runs; complete without scripts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kcg import shell
from kcg.commands import typed
from kcg.pictures import PAGE_STYLE, Axis, Sheet, drawable, one_width, picture
from kcg.report.formats import cut, format_date, format_seconds, format_share, format_speedup, short_seconds
from kcg.report.phases import WORDS
from kcg.types import ProgressPoint
from kcg.ui import kernels, trials
from kcg.ui.runs import RUNNING, Details, Found, KernelTime, Opened, Run, Watched
from kcg.ui.tables import Asked, shown

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_KERNELS: Final = 15  # of one device in the table of trends
MOST_RUNS: Final = 200  # in a list
MOST_DRAWN: Final = 500  # points of a line
FOLDERS: Final = (Path(__file__).parent, Path(__file__).parents[1] / "report")  # the looks are the report's


Query = Mapping[str, Sequence[str]]
"""What stands behind the `?` of an address."""


@dataclass(frozen=True)
class Trend:
    """What one kernel, or the whole of a workload, took in the runs on one device: seconds, the oldest first."""

    name: str
    before_s: float  # in the newest run
    times_s: tuple[float, ...]
    weight_s: float  # of all calls in the newest run

    @property
    def best_s(self) -> float:
        return min(self.times_s)

    @property
    def spark(self) -> str:
        """The times as a line."""
        return _spark(self.times_s)


@dataclass(frozen=True)
class DeviceTrends:
    """The trends on one device."""

    model: str
    device: str
    runs: int
    wholes: tuple[Trend, ...]  # of workloads
    kernels: tuple[Trend, ...]  # the slowest first
    more: int  # kernels that are not shown


def render(found: Found, folder: Path) -> str:
    """The whole page."""
    return _rendered(
        "ui.html.jinja",
        found=found,
        folder=str(folder),
        example=shell.command(typed("optimize"), "flux", "--report", folder / "flux"),
        running=[one for one in found.watched if one.state == "running"],
        killed=[one for one in found.watched if one.state == "killed"],
        lists=[
            ("runs", "Runs", [run for run in found.runs if not run.is_kept]),
            ("kept", "Kept by kcg.autotuned", [run for run in found.runs if run.is_kept]),
        ],
        most=MOST_RUNS,
        trends=trends_of(found.runs),
        words=WORDS,
        curve=curve,
    )


def render_run(opened: Opened, folder: Path, query: Query) -> str:
    """One run: where it stands or what it came to, and its trials as a table; `query` says which of them."""
    details = opened.details if isinstance(opened.details, Details) else None
    asked = Asked.of(query, trials.START, columns=[column.name for column in trials.COLUMNS])
    rows = trials.rows_of(opened.trials, details) if opened.trials is not None else []
    asked = replace(asked, only=trials.group_of(asked.only))
    some = [row for row in rows if trials.GROUPS[asked.only](row)]
    watched = opened.watched
    live = watched.live if watched is not None else None
    searched = live.points if live is not None else details.progress if details is not None else ()
    verified = details.verified if details is not None else ()
    before_s = opened.run.before_s if opened.run is not None else math.nan
    begun = [ProgressPoint(0.0, 0, before_s)] if verified and drawable(before_s) else []
    elapsed_s = watched.elapsed_s if watched is not None else opened.run.search_s if opened.run is not None else 0.0
    return _rendered(
        "run.html.jinja",
        opened=opened,
        run=opened.run,
        live=live,
        state=watched.state if watched is not None else opened.run.state if opened.run is not None else "",
        why="" if details is not None else opened.details,
        folder=str(folder),
        table=shown(some, trials.COLUMNS, asked, text=trials.TrialRow.text),
        groups=trials.groups_of(rows),
        words=WORDS,
        elapsed_s=elapsed_s,
        verified=verified,
        chart=_curves(
            searched, [*begun, *verified], elapsed_s, goes_on=watched is not None and watched.state == RUNNING
        ),
    )


def render_kernels(found: Found, folder: Path, query: Query) -> str:
    """Every kernel over all runs; `query` says in which order, and which."""
    rows = kernels.over_runs([run for run in found.runs if not run.is_kept])
    asked = Asked.of(query, kernels.START, columns=[column.name for column in kernels.COLUMNS])
    return _rendered(
        "kernels.html.jinja",
        folder=str(folder),
        table=shown(rows, kernels.COLUMNS, asked, text=kernels.OverRuns.text),
        runs=len({run.id for row in rows for run, _ in row.seen}),
        spark=_spark,
    )


def render_refusal(words: str, folder: Path) -> str:
    """Why there is nothing to be seen at an address."""
    return _rendered("refusal.html.jinja", words=words, folder=str(folder))


def _rendered(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(speedup=format_speedup, **values)


@cache
def style() -> str:
    """The page's looks: those of the report, and a few of its own."""
    return PAGE_STYLE + "".join(
        _environment().get_template(name).render() for name in ("report.css.jinja", "ui.css.jinja")
    )


@cache
def script() -> str:
    return _environment().get_template("ui.js.jinja").render()


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDERS),
        autoescape=True,  # names, places and reasons are foreign text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"seconds": format_seconds, "date": format_date, "cut": cut, "share": format_share}
    return environment


# ---- trends: the same kernel of the same target, run after run


def trends_of(runs: Sequence[Run]) -> list[DeviceTrends]:
    """The trends of each target that has two runs or more; `runs` are the newest first."""
    by_target: dict[str, list[Run]] = {}
    for run in runs:
        by_target.setdefault(run.target, []).append(run)
    return [_of_device(of_one) for of_one in by_target.values() if len(of_one) > 1]


def _of_device(runs: Sequence[Run]) -> DeviceTrends:
    wholes: dict[tuple[str, str], list[Run]] = {}
    kernels: dict[tuple[str, str], list[KernelTime]] = {}
    for run in runs:
        if drawable(run.before_s, run.chosen_s):
            wholes.setdefault((run.workload, run.preset), []).append(run)
        for kernel in run.kernels:
            kernels.setdefault((kernel.region, kernel.values), []).append(kernel)
    names = Counter(_name(seen[0]) for seen in kernels.values())
    of_wholes = [
        Trend(f"{workload} {preset}".strip(), of_one[0].before_s, _oldest_first([r.chosen_s for r in of_one]), 0.0)
        for (workload, preset), of_one in wholes.items()
        if len(of_one) > 1
    ]
    of_kernels = [
        Trend(
            _name(seen[0]) + (f" ({seen[0].region[:8]})" if names[_name(seen[0])] > 1 else ""),
            seen[0].before_s,
            _oldest_first([kernel.after_s for kernel in seen]),
            seen[0].before_s * seen[0].calls,
        )
        for seen in kernels.values()
        if len(seen) > 1
    ]
    of_kernels.sort(key=lambda trend: -trend.weight_s)
    more = max(len(of_kernels) - MOST_KERNELS, 0)
    return DeviceTrends(
        runs[0].model, runs[0].device, len(runs), tuple(of_wholes), tuple(of_kernels[:MOST_KERNELS]), more
    )


def _name(kernel: KernelTime) -> str:
    return ", ".join(filter(None, (kernel.name, kernel.values)))


def _oldest_first(times_s: Sequence[float]) -> tuple[float, ...]:
    return tuple(reversed(times_s))


# ---- pictures


@lru_cache(maxsize=1024)  # a page is drawn anew every few seconds, and what runs came to stays
def _spark(times_s: tuple[float, ...]) -> str:
    """A line of the size of a word; its scale begins at 0, so that noise looks like noise."""
    width, height = 120, 28

    def draw(sheet: Sheet) -> None:
        if not drawable(*times_s):
            return
        x, y = Axis(0, max(len(times_s) - 1, 1)), Axis(0, max(times_s) * 1.1)
        panel = sheet.panel(x, y, left=4, top=2, right=width - 4, bottom=height - 2)
        points = [(float(i), seconds) for i, seconds in enumerate(times_s)]
        panel.line(points, "curve")
        panel.dots(points[-1:], "step", radius=3)

    return one_width(", ".join(map(format_seconds, times_s)), draw, width=width, height=height, look="spark")


def curve(watched: Watched) -> str:
    """The curves of a run that goes on; empty where nothing is known."""
    goes_on = watched.state == RUNNING
    return _curves(watched.live.points, watched.verified, watched.elapsed_s, goes_on=goes_on)


Line = tuple[tuple[float, float], ...]
"""Seconds since the start, and seconds of the workload."""


def _curves(
    searched: Sequence[ProgressPoint], verified: Sequence[ProgressPoint], elapsed_s: float, *, goes_on: bool
) -> str:
    lines = [_line(searched), _line(verified)]
    ends = [line[-1][0] for line in lines if line]
    # to whole seconds: what stays is not drawn anew for a few milliseconds
    end_s = max(round(elapsed_s), *ends, 1.0) if ends else 0.0
    # what was verified stands to the end, what was searched until it is measured again
    last = [line and ((*line, (end_s, line[-1][1])) if goes_on or line is lines[1] else line) for line in lines]
    return _drawn_curves(last[0], last[1], end_s)


def _line(points: Sequence[ProgressPoint]) -> Line:
    """What of it can be drawn; of many points every second one, until they are few."""
    line = tuple((p.elapsed_s, p.total_s) for p in points if drawable(p.total_s) and 0 <= p.elapsed_s < 1e9)
    while len(line) > MOST_DRAWN:
        line = (*line[:-1:2], line[-1])
    return line


@lru_cache(maxsize=64)
def _drawn_curves(searched: Line, verified: Line, end_s: float) -> str:
    """The total of the workload over the seconds of a run, by the search and by what was verified, for a wide page and
    for a phone; empty where neither is known."""
    totals = [total for _, total in (*searched, *verified)]
    if not totals:
        return ""
    x, y = Axis(0, end_s), Axis(0, 1.08 * max(totals))

    def draw(sheet: Sheet) -> None:
        panel = sheet.panel(x, y, left=62, top=56 if sheet.narrow else 28, right=sheet.width - 8, bottom=200)
        panel.frame(
            x=x.ticks(4 if sheet.narrow else 8, lambda v: f"{v:g}"),
            y=y.ticks(4, short_seconds),
            title_x="seconds since the start",
            title_y="total of the workload",
        )
        left = 62.0 if sheet.narrow else sheet.width - 300.0
        for line, look, words in ((searched, "curve dash", "as searched"), (verified, "curve", "as verified")):
            if line:
                panel.line(line, look, steps=True)
                high = 12.0
                sheet.paper.line([(left, high), (left + 26, high)], look)
                sheet.paper.text(left + 34, high + 4, words, "soft small")
            left += 150

    in_words = [
        f"{words} {format_seconds(line[0][1])} → {format_seconds(line[-1][1])}"
        for line, words in ((searched, "as searched"), (verified, "as verified"))
        if line
    ]
    drawn = picture("", f"best total so far: {', '.join(in_words)}", draw, heights=(250, 250))
    return drawn.wide + drawn.narrow
