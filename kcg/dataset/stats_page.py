"""The numbers of a dataset as one page that needs nothing else, for anyone who opens it.

Built as `kcg/report/page.py` builds its page: pictures by plotly.js, which travels compressed inside the page;
everything else is plain HTML with the same numbers, for where scripts are off. The page loads nothing: its content
security policy forbids it.
"""

from __future__ import annotations

import base64
import gzip
import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kcg.dataset.noise import NoiseFloor, Spread
from kcg.dataset.stats import BINS_A_DECADE, Stats, duration, duration_class, percent, share
from kcg.types import Status

MOST_ACTIONS = 40  # Opts with an argument that the picture shows
MOST_BINS = 40  # of schedules per kernel
DECADES = 100  # from this ratio of the largest to the smallest on, an axis is logarithmic
UNJUDGED = str(Status.UNJUDGED)


@dataclass(frozen=True)
class _Class:
    """One class of durations of one target."""

    target: str  # in words
    shorter_than_s: float | None
    compared: int
    median: float
    p90: float

    @property
    def limit(self) -> float:
        return self.shorter_than_s or math.inf


@dataclass(frozen=True)
class _Kind:
    """What is said of timings that were repeated in one way."""

    name: str
    color: str
    words: str
    classes: tuple[_Class, ...]


def render_page(stats: Stats, *, title: str) -> str:
    """The whole page as text; `title` says what was counted."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # names and causes are foreign text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "count": lambda n: f"{n:,g}" if isinstance(n, float) else f"{n:,}",
        "percent": percent,
        "duration": duration,
        "duration_class": duration_class,
        "factor": _factor,
    }
    environment.filters.update(filters)
    spreads = _found_spreads(stats)
    figures = {
        "runtimes": _runtimes(stats), "families": _families(stats), "actions": _actions(stats),
        "samplers": _samplers(stats, failures_of(stats), "rows that failed"),
        "unjudged": _samplers(stats, [UNJUDGED] * (UNJUDGED in stats.statuses), "rows that cannot be judged"),
        "schedules": _schedules(stats), "walks": _walks(stats),
        "spreads": _spreads(spreads),
    }  # fmt: skip
    return environment.get_template("stats.html.jinja").render(
        stats=stats,
        title=title,
        figures={name: figure.to_plotly_json() for name, figure in figures.items() if figure is not None},
        share=share,
        failures=failures_of(stats),
        failed=sum(stats.statuses[status] for status in failures_of(stats)),
        causes=_causes(stats),
        spreads=spreads,
        most_actions=MOST_ACTIONS,
        plotly_gzip=plotly_gzip(),
    )


def failures_of(stats: Stats) -> list[str]:
    """What went wrong, the most rows first. `unjudged` is none of it: such a row ran, and may be right."""
    return [status for status in stats.statuses if status not in (Status.OK, UNJUDGED)]


def _causes(stats: Stats) -> dict[str, list[tuple[str, int]]]:
    """The causes of each status that is not ok, failures first and `unjudged` last."""
    found: dict[str, list[tuple[str, int]]] = {}
    for status in (*failures_of(stats), UNJUDGED):
        mine = [(why.partition(": ")[2], n) for why, n in stats.reasons.items() if why.partition(": ")[0] == status]
        if mine:
            found[status] = mine
    return found


def _amounts(values: Iterable[float], title: str, **axis: Any) -> dict[str, Any]:
    """An axis of what bars reach to: logarithmic where some would be too small to see beside others."""
    shown = [value for value in values if value > 0]
    if not shown or max(shown) < DECADES * min(shown):
        return {"title": {"text": title}, "rangemode": "tozero", **axis}
    low, high = math.log10(min(shown)) - 0.3, math.log10(max(shown)) + 0.1
    return {"title": {"text": f"{title} (log)"}, "type": "log", "dtick": 1, "range": [low, high], **axis}


@cache
def plotly_gzip() -> str:
    """plotly.js, gzip, base64."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)).decode()


def _figure(
    traces: list[Any], *, height: int, x: Mapping[str, Any], y: Mapping[str, Any], legend: str = "", **layout: Any
) -> Any:
    """`legend` is the order of its entries, as plotly calls it; empty for none."""
    from plotly.graph_objects import Figure

    figure = Figure(traces)
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 8, "r": 16, "t": 34 if legend else 10, "b": 44},
        xaxis={"fixedrange": True, "automargin": True, "tickangle": 0, **x},
        yaxis={"fixedrange": True, "automargin": True, **({"ticklabelstandoff": 6} if "tickvals" in y else {}), **y},
        showlegend=bool(legend),
        **layout,
    )
    if legend:
        figure.update_layout(
            legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": legend, "itemclick": False}
        )
    return figure


def _runtimes(stats: Stats) -> Any:
    """Rows by runtime, on a logarithmic axis."""
    from plotly.graph_objects import Bar

    if not stats.runtimes:
        return None
    numbers = [round(BINS_A_DECADE * math.log10(low)) for low, _ in stats.runtimes]
    hover = [
        f"{duration(low)} to {duration(low * 10 ** (1 / BINS_A_DECADE))}<br>{count:,} rows"
        for low, count in stats.runtimes
    ]
    decades = [n for n in range(numbers[0], numbers[-1] + 2) if n % BINS_A_DECADE == 0]
    bar = Bar(
        x=[n + 0.5 for n in numbers],
        y=[count for _, count in stats.runtimes],
        meta="main",
        hovertext=hover,
        hoverinfo="text",
    )
    return _figure(
        [bar],
        height=280,
        bargap=0.08,
        y=_amounts((count for _, count in stats.runtimes), "rows"),
        x={
            "title": {"text": "median of a row, status ok"},
            "tickmode": "array",
            "tickvals": decades,
            "ticktext": [duration(10 ** (n / BINS_A_DECADE)) for n in decades],
            "showgrid": True,
            "range": [numbers[0] - 0.5, numbers[-1] + 1.5],
        },
    )


def _families(stats: Stats) -> Any:
    """The gains of each family: quartiles as a box, whiskers to the least and the most, the geometric mean as a dot."""
    from plotly.graph_objects import Box, Scatter

    shown = sorted(((f.speedup, f) for f in stats.families if f.speedup is not None), key=lambda s: (s[0], s[1].name))
    if not shown:
        return None
    places = list(range(len(shown)))
    low, q1, median, q3, high = zip(*(f.quartiles for _, f in shown), strict=True)
    hover = [
        f"<b>{_label(f.name)}</b><br>{f.compared:,} compared, geometric mean {_factor(mean)}<br>"
        f"median {_factor(f.quartiles[2])}, most {_factor(f.quartiles[4])}"
        for mean, f in shown
    ]
    top = max(high) * 1.05
    fine = (1, 1.5, 2, 3, 5, 7, 10)
    ticks = [t for t in (fine if top < 12 else (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000)) if t <= top]
    box = Box(
        y=places,
        q1=q1,
        median=median,
        q3=q3,
        lowerfence=low,
        upperfence=high,
        orientation="h",
        meta="main",
        hoverinfo="skip",
        showlegend=False,
        line={"width": 1.2},
        width=0.62,
    )
    mean = Scatter(
        x=[mean for mean, _ in shown],
        y=places,
        mode="markers",
        marker={"size": 7},
        meta="accent",
        hovertext=hover,
        hoverinfo="text",
        showlegend=False,
    )
    return _figure(
        [box, mean],
        height=70 + 22 * max(len(shown), 3),
        hovermode="closest",
        x={
            "title": {"text": "times as fast as hand-coded"},
            "type": "log",
            "tickmode": "array",
            "tickvals": ticks,
            "ticktext": [f"{t:g}×" for t in ticks],
            "range": [math.log10(0.97), math.log10(max(top, 1.2))],
        },
        y={
            "tickmode": "array",
            "tickvals": places,
            "ticktext": [_cut(f.name, 28) for _, f in shown],
            "range": [-0.7, len(shown) - 0.3],
            "showgrid": False,
            "zeroline": False,
        },
    )


def _actions(stats: Stats) -> Any:
    """In what share of the kernels and of the schedules each Opt occurs."""
    from plotly.graph_objects import Bar

    found = [a for a in stats.action_coverage if a.arg is not None]
    kept = set(sorted(found, key=lambda a: (-a.regions, a.op, a.arg or ""))[:MOST_ACTIONS])
    shown = [a for a in reversed(found) if a in kept]  # plotly counts from the bottom
    if not shown:
        return None
    places = list(range(len(shown)))
    hover = [
        f"<b>{_label(f'{a.op} {a.arg}')}</b><br>{a.schedules:,} schedules, {share(a.schedules, stats.schedules)}<br>"
        f"{a.regions:,} kernels, {share(a.regions, stats.regions_measured)}"
        for a in shown
    ]
    common: dict[str, Any] = {"y": places, "orientation": "h", "hovertext": hover, "hoverinfo": "text"}
    return _figure(
        [
            Bar(x=[100 * a.schedules / stats.schedules for a in shown], name="schedules", meta="accent", **common),
            Bar(x=[100 * a.regions / stats.regions_measured for a in shown], name="kernels", meta="main", **common),
        ],
        height=90 + 24 * max(len(shown), 3),
        barmode="group",
        bargap=0.24,
        bargroupgap=0.04,
        legend="reversed",
        x={"title": {"text": "share that has it"}, "ticksuffix": "%", "range": [0, 101], "dtick": 20},
        y={
            "tickmode": "array",
            "tickvals": places,
            "ticktext": [_cut(f"{a.op} {a.arg}", 28) for a in shown],
            "range": [-0.7, len(shown) - 0.3],
            "showgrid": False,
            "zeroline": False,
        },
    )


def _samplers(stats: Stats, statuses: Sequence[str], title: str) -> Any:
    """What share of each sampler's rows ended as one of `statuses`."""
    from plotly.graph_objects import Bar

    if not statuses:
        return None
    samplers = list(stats.samplers)[::-1]
    rows = [stats.samplers[s] for s in samplers]
    traces = []
    for status in statuses:
        counts = [stats.sampler_statuses[s].get(status, 0) for s in samplers]
        hover = [
            f"<b>{_label(s or '(none)')}</b><br>{status}: {n:,} of {whole:,}, {share(n, whole)}"
            for s, n, whole in zip(samplers, counts, rows, strict=True)
        ]
        shares = [100 * n / whole for n, whole in zip(counts, rows, strict=True)]
        traces.append(
            Bar(
                x=shares,
                y=list(range(len(samplers))),
                orientation="h",
                name=status,
                meta=f"status-{status}",
                hovertext=hover,
                hoverinfo="text",
            )
        )
    names = [f"{_cut(s or '(none)', 24)} ({n:,})" for s, n in zip(samplers, rows, strict=True)]
    return _figure(
        traces,
        height=110 + 34 * max(len(samplers), 2),
        barmode="stack",
        bargap=0.35,
        legend="normal" if len(statuses) > 1 else "",
        x={"title": {"text": title}, "ticksuffix": "%", "rangemode": "tozero"},
        y={
            "tickmode": "array",
            "tickvals": list(range(len(samplers))),
            "ticktext": names,
            "showgrid": False,
            "zeroline": False,
        },
    )


def _schedules(stats: Stats) -> Any:
    """How many kernels have how many distinct schedules: bins that double where the numbers span decades."""
    from plotly.graph_objects import Bar

    if not stats.schedule_counts:
        return None
    low, high = min(stats.schedule_counts), max(stats.schedule_counts)
    doubling = high >= DECADES * low
    width = math.ceil((high - low + 1) / MOST_BINS)
    bins: dict[tuple[int, int], int] = {}  # first and last size -> kernels
    for size, kernels in stats.schedule_counts.items():
        first = 1 << (size.bit_length() - 1) if doubling else low + (size - low) // width * width
        found = (first, 2 * first - 1 if doubling else first + width - 1)
        bins[found] = bins.get(found, 0) + kernels
    hover = [
        f"{first:,}{f' to {last:,}' if last > first else ''} schedules<br>{n:,} kernels"
        for (first, last), n in bins.items()
    ]
    places = [first.bit_length() - 1 if doubling else (first + last) / 2 for first, last in bins]
    bar = Bar(
        x=places,
        y=list(bins.values()),
        width=0.92 * (1 if doubling else width),
        meta="main",
        hovertext=hover,
        hoverinfo="text",
    )
    axis: dict[str, Any] = {"title": {"text": "distinct schedules"}, "showgrid": False, "zeroline": False}
    if doubling:
        axis |= {"title": {"text": "distinct schedules, from 1, 2, 4, …"}, "tickmode": "array"}
        powers = list(range(low.bit_length() - 1, high.bit_length(), 2))
        axis |= {"tickvals": powers, "ticktext": [f"{1 << power:,}" for power in powers]}
    elif high - low < 8:
        axis |= {"range": [low - 4, high + 4], "dtick": 1}
    return _figure([bar], height=260, y=_amounts(bins.values(), "kernels"), x=axis)


def _walks(stats: Stats) -> Any:
    """How many distinct schedules have how many Opts."""
    from plotly.graph_objects import Bar

    if not stats.walk_lengths:
        return None
    whole = sum(stats.walk_lengths.values())
    bar = Bar(
        x=list(stats.walk_lengths),
        y=list(stats.walk_lengths.values()),
        meta="main",
        hoverinfo="text",
        hovertext=[f"{length} Opts<br>{n:,} schedules, {share(n, whole)}" for length, n in stats.walk_lengths.items()],
    )
    return _figure(
        [bar],
        height=260,
        bargap=0.12,
        y=_amounts(stats.walk_lengths.values(), "distinct schedules"),
        x={"title": {"text": "Opts of a schedule"}, "dtick": 1, "showgrid": False, "zeroline": False},
    )


def _found_spreads(stats: Stats) -> list[_Kind]:
    """What there is of noise and drift."""

    def classes(found: Iterable[Spread | NoiseFloor]) -> tuple[_Class, ...]:
        return tuple(
            _Class(
                stats.targets.get(s.target, s.target[:12]),
                s.shorter_than_s,
                s.compared if isinstance(s, Spread) else s.kernels,
                s.median,
                s.p90,
            )
            for s in found
        )

    kinds = (
        _Kind("noise", "noise-floor", "a schedule timed in full, twice in one run", classes(stats.noise_floors)),
        _Kind("search noise", "search-noise", "the few samples of a search, twice in one run",
              classes(stats.search_noise)),
        _Kind("drift", "drift", "search timings of a later run against those of the first", classes(stats.drift)),
    )  # fmt: skip
    return [kind for kind in kinds if kind.classes]


def _spreads(kinds: list[_Kind]) -> Any:
    """Noise and drift by the duration of the kernels: bars to the median, whiskers to 90 %."""
    from plotly.graph_objects import Bar

    if not kinds:
        return None
    limits = sorted({c.limit for kind in kinds for c in kind.classes})
    targets = sorted({c.target for kind in kinds for c in kind.classes})
    traces = []
    for kind in kinds:
        for target in targets:
            mine = [c for c in kind.classes if c.target == target]
            whiskers = {
                "type": "data",
                "symmetric": False,
                "array": [100 * (c.p90 - c.median) for c in mine],
                "arrayminus": [0] * len(mine),
                "thickness": 1.2,
                "width": 4,
            }
            hover = [
                f"{kind.name}, {duration_class(c.shorter_than_s)}<br>median {percent(c.median)}, "
                f"90% below {percent(c.p90)}<br>of {c.compared:,}"
                for c in mine
            ]
            traces.append(
                Bar(
                    x=[limits.index(c.limit) for c in mine],
                    y=[100 * c.median for c in mine],
                    meta=kind.color,
                    name=kind.name if len(targets) == 1 else f"{kind.name}, {_label(target)}",
                    error_y=whiskers,
                    hovertext=hover,
                    hoverinfo="text",
                )
            )
    return _figure(
        traces,
        height=300,
        barmode="group",
        bargap=0.3,
        legend="normal",
        y=_amounts(
            (100 * value for kind in kinds for c in kind.classes for value in (c.median, c.p90)),
            "difference",
            ticksuffix="%",
        ),
        x={
            "tickmode": "array",
            "tickvals": list(range(len(limits))),
            "range": [-0.6, len(limits) - 0.4],
            "title": {"text": "kernels that take less than"},
            "ticktext": [duration(limit) if limit < math.inf else "longer" for limit in limits],
            "showgrid": False,
        },
    )


def _factor(factor: float | None) -> str:
    if factor is None:
        return "–"
    return f"{factor:.2f}×" if factor < 99.95 else f"{factor:,.0f}×"


def _label(text: str) -> str:
    """A foreign text for plotly, which takes `<b>` and the like for markup and decodes `&lt;`, but not `&quot;`."""
    return html.escape(text, quote=False)


def _cut(text: str, length: int) -> str:
    return _label(text if len(text) <= length else text[: length - 1] + "…")
