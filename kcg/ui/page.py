"""The page of all runs: what is found below a folder as HTML and SVG, complete without scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kcg import shell
from kcg.report.formats import cut, format_date, format_seconds, format_speedup
from kcg.report.phases import WORDS
from kcg.report.svg import STYLE, Axis, Canvas, drawable, grid, short_seconds
from kcg.ui.runs import Found, KernelTime, Run, Watched

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_KERNELS: Final = 15  # of one device in the table of trends
MOST_RUNS: Final = 200  # in a list
FOLDERS: Final = (Path(__file__).parent, Path(__file__).parents[1] / "optimize")  # the looks are the report's


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
    return STYLE + "".join(_environment().get_template(name).render() for name in ("report.css.jinja", "ui.css.jinja"))


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
        if drawable(run.before_s, run.after_s):
            wholes.setdefault((run.workload, run.preset), []).append(run)
        for kernel in run.kernels:
            kernels.setdefault((kernel.region, kernel.values), []).append(kernel)
    names = Counter(_name(seen[0]) for seen in kernels.values())
    of_wholes = [
        Trend(f"{workload} {preset}".strip(), of_one[0].before_s, _oldest_first([r.after_s for r in of_one]), 0.0)
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


def _spark(times_s: Sequence[float]) -> str:
    """A line of the size of a word; its scale begins at 0, so that noise looks like noise."""
    canvas = Canvas(120, 28)
    if drawable(*times_s):
        x, y = Axis(0, max(len(times_s) - 1, 1), 4, 116), Axis(0, max(times_s) * 1.1, 26, 2)
        points = [(x(i), y(seconds)) for i, seconds in enumerate(times_s)]
        canvas.path(points, "curve")
        canvas.add("circle", "step", cx=points[-1][0], cy=points[-1][1], r=3)
    return _svg(canvas, ", ".join(map(format_seconds, times_s)), "spark")


def curve(watched: Watched) -> str:
    """The best total of a run over its seconds, for a wide page and for a phone; empty where nothing is known."""
    points = [(p.elapsed_s, p.total_s) for p in watched.live.points if drawable(p.total_s) and 0 <= p.elapsed_s < 1e9]
    if not points:
        return ""
    drawn = []
    for width, look in ((960, "wide"), (350, "narrow")):
        canvas = Canvas(width, 230)
        x = Axis(0, max(watched.elapsed_s, points[-1][0], 1.0), 62, width - 8)
        y = Axis(0, 1.08 * max(total for _, total in points), 180, 28)
        titles = {"title_x": "seconds since the start", "title_y": "best total so far"}
        grid(
            canvas,
            x,
            y,
            tick_x=lambda v: f"{v:g}",
            tick_y=short_seconds,
            most=(8 if look == "wide" else 4, 4),
            **titles,
        )
        path = [(x(points[0][0]), y(points[0][1]))]
        for elapsed, total in points[1:]:
            path += [(x(elapsed), path[-1][1]), (x(elapsed), y(total))]
        canvas.path([*path, (x.end if watched.state == "running" else path[-1][0], path[-1][1])], "curve")
        label = f"best total so far: {format_seconds(points[0][1])} → {format_seconds(points[-1][1])}"
        drawn.append(_svg(canvas, label, look))
    return "".join(drawn)


def _svg(canvas: Canvas, label: str, look: str) -> str:
    return (
        f'<svg class="fig {look}" viewBox="0 0 {canvas.width:g} {canvas.height:g}" role="img" '
        f'aria-label="{escape(label)}">{"".join(canvas.parts)}</svg>'
    )
