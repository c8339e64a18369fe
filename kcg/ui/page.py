"""The page of all runs: what is found below a folder as HTML and SVG, complete without scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kcg import shell
from kcg.pictures import PAGE_STYLE, Axis, Sheet, drawable, one_width, picture
from kcg.report.formats import cut, format_date, format_seconds, format_speedup, short_seconds
from kcg.report.phases import WORDS
from kcg.ui.runs import Found, KernelTime, Run, Watched

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_KERNELS: Final = 15  # of one device in the table of trends
MOST_RUNS: Final = 200  # in a list
FOLDERS: Final = (Path(__file__).parent, Path(__file__).parents[1] / "report")  # the looks are the report's


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
    return (
        _environment()
        .get_template("ui.html.jinja")
        .render(
            found=found,
            folder=str(folder),
            example=shell.command("kcg optimize flux --report", folder / "flux"),
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
            speedup=format_speedup,
        )
    )


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
    environment.filters |= {"seconds": format_seconds, "date": format_date, "cut": cut}
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
    """The best total of a run over its seconds, for a wide page and for a phone; empty where nothing is known."""
    points = [(p.elapsed_s, p.total_s) for p in watched.live.points if drawable(p.total_s) and 0 <= p.elapsed_s < 1e9]
    if not points:
        return ""
    x = Axis(0, max(watched.elapsed_s, points[-1][0], 1.0))
    y = Axis(0, 1.08 * max(total for _, total in points))
    path = [*points, (x.high, points[-1][1])] if watched.state == "running" else points

    def draw(sheet: Sheet) -> None:
        panel = sheet.panel(x, y, left=62, top=28, right=sheet.width - 8, bottom=180)
        panel.frame(
            x=x.ticks(4 if sheet.narrow else 8, lambda v: f"{v:g}"),
            y=y.ticks(4, short_seconds),
            title_x="seconds since the start",
            title_y="best total so far",
        )
        panel.line(path, "curve", steps=True)

    label = f"best total so far: {format_seconds(points[0][1])} → {format_seconds(points[-1][1])}"
    drawn = picture("", label, draw, heights=(230, 230))
    return drawn.wide + drawn.narrow
