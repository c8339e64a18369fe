"""report.html: a `Result` as one page that needs nothing else, for anyone who opens it.

Two pictures are drawn by plotly.js, which travels inside the page: compressed, because the plain library is 4.8 MB and
the page should go through a mail; the browser inflates it. Everything else is plain HTML, so the page is complete where
scripts are off. The page loads nothing: its content security policy forbids it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kcg.optimize.console import format_seconds, format_speedup
from kcg.optimize.result import write_whole
from kcg.types import Finalist, RegionResult, Result, Schedule

FILE_NAME = "report.html"

TOP = 20
"""How many kernels the picture shows; the rest is one bar."""

SOURCE_CHARACTERS = 20_000
"""A longer source is cut on the page; RESULT.json has all of it."""

ALL_SOURCES_CHARACTERS = 700_000
"""Together no more than this: a page of 16 kernels has 2.1 MB, one of 320 3.7 MB. The slowest kernels come first."""

_OUTCOMES = {
    "improved": "a faster schedule was found and verified",
    "kept": "tinygrad's own schedule is kept",
    "quarantined": "not optimised, because its results could not be trusted",
}

_FAILURES = {
    "compile_error": "did not compile",
    "compile_timeout": "took too long to compile",
    "resource": "needed more registers, memory or threads than the device has",
    "launch_error": "could not be started on the device",
    "timeout": "ran too long and was stopped",
    "wrong": "computed something else than the kernel says",
    "worker_died": "took the measuring process down with it",
    "noisy": "gave times that varied too much to be compared",
}


@dataclass(frozen=True)
class _Source:
    """One kernel's text on the page; `cut` says how much is missing."""

    title: str
    text: str
    cut: str = ""


@dataclass(frozen=True)
class _Row:
    """One kernel as the template shows it."""

    region: RegionResult
    label: str
    share: float  # of the total before; NaN where there is none
    sources: tuple[_Source, ...]

    @property
    def changed(self) -> bool:
        return self.region.chosen.schedule != self.region.baseline.schedule

    @property
    def sides(self) -> tuple[tuple[str, Finalist], ...]:
        """What there is to describe: baseline and chosen, or the one that is both."""
        if not self.changed:
            return (("Baseline, kept", self.region.baseline),)
        best = () if self.region.opts is None else (("Best Opts", self.region.opts),)
        return (("Baseline", self.region.baseline), *best, ("Chosen", self.region.chosen))


def write_report(result: Result, folder: Path) -> Path:
    """Write `report.html` into `folder`, which is made where it does not exist, and return its path.

    Raises:
        UsageError: the folder cannot be written.
    """
    path = folder / FILE_NAME
    write_whole(path, render_report(result).encode("utf-8", "replace"))
    return path


def render_report(result: Result) -> str:
    """The whole page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from kcg.dataset.page import plotly_gzip

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # kernel sources, commands and notes are foreign text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "seconds": format_seconds, "share": _format_share, "schedule": _format_schedule, "count": _format_count,
        "rate": _format_rate, "error": _format_error, "binary": _format_bytes,
    }  # fmt: skip
    environment.filters.update(filters)
    rows = _rows(result)
    outcomes = [(name, words, [r for r in rows if r.region.outcome == name]) for name, words in _OUTCOMES.items()]
    return environment.get_template("report.html.jinja").render(
        result=result,
        rows=rows,
        outcomes=outcomes,
        speedup=format_speedup,
        created=_format_date(result.created),
        failures=[(status, count, _FAILURES.get(status, "")) for status, count in result.failures],
        labels={row.region.region.id: row.label for row in rows},
        kernels_figure=_plain(_kernels_figure(rows)),
        progress_figure=_plain(_progress_figure(result)),
        plotly_gzip=plotly_gzip(),
        top=TOP,
    )


def _rows(result: Result) -> list[_Row]:
    """The regions, those that took longest before first; those without a time last."""
    ordered = sorted(result.regions, key=lambda r: -r.before_s if math.isfinite(r.before_s) else math.inf)
    total = result.total_before_s
    left = ALL_SOURCES_CHARACTERS
    rows = []
    for region in ordered:
        share = region.before_s / total if total > 0 else math.nan
        sides = [("Baseline", region.baseline)]
        if region.chosen.source != region.baseline.source:
            sides.append(("Chosen", region.chosen))
        else:
            sides = [("Baseline, kept", region.baseline)]
        sources = []
        for title, finalist in sides:
            if not finalist.source:
                continue
            length = min(len(finalist.source), SOURCE_CHARACTERS, left)
            missing = len(finalist.source) - length
            left -= length
            cut = f"{missing:,} more characters are in the result file" if missing else ""
            sources.append(_Source(f"{title}: {finalist.name}", finalist.source[:length], cut))
        label = region.chosen.name or region.baseline.name or region.region.id[:12]
        rows.append(_Row(region, label, share, tuple(sources)))
    return rows


def _kernels_figure(rows: list[_Row]) -> Any:
    """Bars of the time of all calls before and after, the slowest on top."""
    from plotly.graph_objects import Bar, Figure

    timed = [r for r in rows if math.isfinite(r.region.before_s) and math.isfinite(r.region.after_s)]
    shown, rest = timed[:TOP], timed[TOP:]
    bars = [(_cut(r.label, 24), r.label, r.region.before_s, r.region.after_s, r.share) for r in shown]
    if rest:
        name = f"{len(rest)} more kernels"
        before, after = sum(r.region.before_s for r in rest), sum(r.region.after_s for r in rest)
        bars.append((name, name, before, after, sum(r.share for r in rest)))
    bars.reverse()  # plotly counts from the bottom
    scale, unit = _unit(max((max(b[2], b[3]) for b in bars), default=1.0))
    places = list(range(len(bars)))
    hover = [
        f"<b>{_label(name)}</b><br>{_label(_format_share(share))} of the time before<br>"
        f"before {format_seconds(before)}, after {format_seconds(after)}<br>{format_speedup(before, after)} as fast"
        for _, name, before, after, share in bars
    ]
    befores = [_label(f"{format_seconds(before)} ({_format_share(share)})") for _, _, before, _, share in bars]
    afters = [
        format_seconds(after) + (f", {format_speedup(before, after)}" if after < before else "")
        for _, _, before, after, _ in bars
    ]
    common: dict[str, Any] = {
        "y": places, "orientation": "h", "hovertext": hover, "hoverinfo": "text", "textposition": "outside",
        "cliponaxis": False, "constraintext": "none", "textfont": {"size": 10.5},
    }  # fmt: skip
    figure = Figure(
        [
            Bar(x=[b[3] / scale for b in bars], name="after", meta="after", text=afters, **common),
            Bar(x=[b[2] / scale for b in bars], name="before", meta="before", text=befores, **common),
        ]
    )
    longest = max((b[2] / scale for b in bars), default=1.0)
    figure.update_layout(
        template="none", barmode="group", bargap=0.28, bargroupgap=0.06, height=90 + 34 * max(len(bars), 2),
        margin={"l": 8, "r": 8, "t": 34, "b": 44},
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "reversed"},
        xaxis={"title": {"text": f"time of all calls ({unit})"}, "range": [0, longest * 1.16], "fixedrange": True},
        yaxis={
            "tickmode": "array", "tickvals": places, "ticktext": [_label(b[0]) for b in bars],
            "automargin": True, "fixedrange": True, "showgrid": False,
        },
    )  # fmt: skip
    return figure


def _progress_figure(result: Result) -> Any:
    """The best total so far over the seconds of the search; None where there is nothing to draw."""
    from plotly.graph_objects import Figure, Scatter

    points = [p for p in result.progress if math.isfinite(p.elapsed_s) and math.isfinite(p.total_s)]
    if len(points) < 2:
        return None
    scale, unit = _unit(max(p.total_s for p in points))
    hover = [
        f"after {format_seconds(p.elapsed_s)}, {p.measurements} measured:<br>{format_seconds(p.total_s)}"
        for p in points
    ]
    figure = Figure([
        Scatter(
            x=[p.elapsed_s for p in points], y=[p.total_s / scale for p in points], mode="lines", meta="after",
            line={"shape": "hv", "width": 2.5}, hovertext=hover, hoverinfo="text", showlegend=False,
        )
    ])  # fmt: skip
    before = result.total_before_s / scale
    if math.isfinite(before):
        figure.add_hline(
            y=before, line_dash="dot", line_width=1.5, annotation_text="before", annotation_position="top right"
        )
    figure.update_layout(
        template="none", height=300, margin={"l": 8, "r": 12, "t": 16, "b": 44},
        xaxis={"title": {"text": "seconds since the start"}, "rangemode": "tozero", "fixedrange": True},
        yaxis={"title": {"text": f"total ({unit})"}, "rangemode": "tozero", "automargin": True, "fixedrange": True},
    )  # fmt: skip
    return figure


def _plain(figure: Any) -> dict[str, Any] | None:
    """A figure as JSON values, without plotly's default template."""
    if figure is None:
        return None
    body: dict[str, Any] = figure.to_plotly_json()
    return body


def _unit(seconds: float) -> tuple[float, str]:
    """The scale of an axis that reaches to `seconds`."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale:
            return scale, unit
    return 1e-9, "ns"


def _label(text: str) -> str:
    """A foreign text for plotly, which takes `<b>` and the like for markup and decodes `&lt;`, but not `&quot;`."""
    return html.escape(text, quote=False)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _format_share(share: float) -> str:
    if not math.isfinite(share):
        return "–"
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}" if share >= 0.0005 else "<0.1%"


def _format_schedule(schedule: Schedule) -> str:
    try:
        return str(schedule)
    except (ValueError, TypeError):  # an opts body of another version
        return schedule.body


def _format_count(number: float) -> str:
    """`2.4 G`: three digits and a decimal prefix."""
    for scale, prefix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= scale:
            return f"{number / scale:.3g}{prefix}"
    return f"{number:.3g}"


def _format_rate(amount: float, seconds: float) -> str:
    """`amount` per second, `–` where either is missing."""
    if not (math.isfinite(seconds) and seconds > 0 and amount > 0):
        return "–"
    text = _format_count(amount / seconds)
    return text if text[-1].isalpha() else text + " "


def _format_error(error: float) -> str:
    return f"{error:.2g}" if math.isfinite(error) else "not finite"


def _format_bytes(number: int) -> str:
    for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= scale:
            return f"{number / scale:.4g} {unit}"
    return f"{number} B"


def _format_date(created: str) -> str:
    """`14 March 2026, 15:09 UTC` of an ISO date and time."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    zone = moment.strftime("%Z") if moment.tzinfo else ""
    return f"{moment.day} {moment:%B %Y, %H:%M} {zone}".strip()
