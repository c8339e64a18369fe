"""The numbers of a dataset as one page that needs nothing else, for anyone who opens it.

Built as `kcg/report/page.py` builds its page: pictures are SVG in the page, whose marks say what they are when they are
pointed at; all else is plain HTML. The page has no script and loads nothing: its content security policy forbids both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kcg.dataset.noise import NoiseFloor, Spread
from kcg.dataset.stats import BINS_A_DECADE, Stats, duration, duration_class, percent, share
from kcg.pictures import NARROW, PAGE_STYLE, WIDE, Axis, Panel, Picture, Sheet, Ticks, picture
from kcg.types import Status

MOST_ACTIONS = 40  # Opts with an argument that the picture shows
MOST_BINS = 40  # of schedules per kernel
DECADES = 100  # from this ratio of the largest to the smallest on, an axis is logarithmic
HALF = 460  # width of a picture that stands beside another
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
    pictures = {
        "runtimes": _runtimes(stats),
        "families": _families(stats),
        "actions": _actions(stats),
        "samplers": _samplers(
            stats,
            failures_of(stats),
            name="samplers",
            label="Stacked bars: share of failed rows by sampler; the table below has the same numbers",
            title="rows that failed",
        ),
        "unjudged": _samplers(
            stats,
            [UNJUDGED] * (UNJUDGED in stats.statuses),
            name="unjudged",
            label="Bars: share of rows that cannot be judged by sampler; the table above has the same numbers",
            title="rows that cannot be judged",
        ),
        "schedules": _schedules(stats),
        "walks": _walks(stats),
        "spreads": _spreads(spreads),
    }
    return environment.get_template("stats.html.jinja").render(
        stats=stats,
        title=title,
        pictures=pictures,
        style=PAGE_STYLE,
        share=share,
        failures=failures_of(stats),
        failed=sum(stats.statuses[status] for status in failures_of(stats)),
        causes=_causes(stats),
        spreads=spreads,
        most_actions=MOST_ACTIONS,
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


# ---- pictures


def _amounts(values: Iterable[float], title: str) -> tuple[Axis, str]:
    """An axis of what bars reach to, and its title: logarithmic where some would be too small to see beside others."""
    shown = [value for value in values if value > 0] or [1.0]
    least, most = min(shown), max(shown)
    if most < DECADES * least:
        return Axis(0, 1.05 * most), title
    return Axis(10 ** (math.log10(least) - 0.3), 10 ** (math.log10(most) + 0.1), log=True), f"{title} (log)"


class Bar(NamedTuple):
    """From `low` to `high` on the axis across, as high as its value; with `most`, a line goes on to there."""

    low: float
    high: float
    value: float
    tip: str
    look: str = "main"
    most: float | None = None


Keys = Sequence[tuple[str, str]]
"""Looks, and what they stand for."""


@dataclass(frozen=True)
class _Axes:
    """What is read off a picture of bars."""

    x: Axis
    ticks: Callable[[int], Ticks]  # of the axis across, about as many as it is asked for
    titles: tuple[str, str]
    unit: str = ""  # of the axis upwards


def _columns(
    name: str,
    label: str,
    bars: Sequence[Bar],
    axes: _Axes,
    *,
    height: float = 280,
    wide: float = WIDE,
    keys: Keys = (),
) -> Picture:
    """Bars side by side."""
    x, titles = axes.x, axes.titles
    y, title_y = _amounts((v for bar in bars for v in (bar.value, bar.most or 0)), titles[1])

    def draw(sheet: Sheet) -> None:
        top = 26 + _draw_keys(sheet, keys)
        panel = sheet.panel(x, y, left=62, top=top, right=sheet.width - 8, bottom=sheet.height - 48)
        panel.frame(
            x=axes.ticks(4 if sheet.narrow else 8),
            y=y.ticks(6, lambda value: f"{value:,g}{axes.unit}"),
            title_x=titles[0],
            title_y=title_y,
            lines="y",
        )
        for i, bar in enumerate(bars):
            panel.box((bar.low, bar.high), (y.low, max(bar.value, y.low)), bar.look, tip=i)
            if bar.most is not None:
                middle = (bar.low + bar.high) / 2
                panel.line([(middle, max(bar.value, y.low)), (middle, max(bar.most, y.low))], "whisker")

    return _titled(name, label, draw, height, keys, [bar.tip for bar in bars], wide=wide)


def _titled(
    name: str, label: str, draw: Callable[[Sheet], None], height: float, keys: Keys, tips: Sequence[str], *, wide: float
) -> Picture:
    heights = (height + _height(keys, wide), height + _height(keys, NARROW))
    return picture(name, label, draw, heights=heights, tips=tips, wide=wide, titled=True)


def _places(keys: Keys, width: float) -> list[tuple[float, float]]:
    """Where each key stands, left to right, in as many lines as they need."""
    found, x, y = [], 0.0, 0.0
    for _, words in keys:
        needed = 36 + 7 * len(words)
        if x and x + needed > width:
            x, y = 0.0, y + 20
        found.append((x, y))
        x += needed
    return found


def _height(keys: Keys, width: float) -> float:
    return max((y for _, y in _places(keys, width)), default=-26) + 26


def _draw_keys(sheet: Sheet, keys: Keys) -> float:
    """Above all else. Returns the height that they need."""
    for (x, y), (look, words) in zip(_places(keys, sheet.width), keys, strict=True):
        sheet.paper.box((x, x + 12), (y + 2, y + 14), look)
        sheet.paper.text(x + 18, y + 12, words, "small")
    return _height(keys, sheet.width)


def _rows(sheet: Sheet, names: Sequence[str], x: Axis, ticks: Ticks, title: str, *, keys: Keys = ()) -> Panel:
    """A panel with a row for each name, the first one below."""
    shown = [_cut(name, 18 if sheet.narrow else 28) for name in names]
    left = 14 + 7 * max(map(len, shown))
    top = 8 + _draw_keys(sheet, keys)
    y = Axis(-0.7, len(names) - 0.3)
    panel = sheet.panel(x, y, left=left, top=top, right=sheet.width - 14, bottom=sheet.height - 48)
    panel.frame(x=ticks, y=list(enumerate(shown)), title_x=title, lines="x")
    return panel


def _runtimes(stats: Stats) -> Picture | None:
    """Rows by runtime, on a logarithmic axis."""
    if not stats.runtimes:
        return None
    numbers = [round(BINS_A_DECADE * math.log10(low)) for low, _ in stats.runtimes]
    bars = [
        Bar(
            n + 0.04, n + 0.96, count, f"{duration(low)} to {duration(low * 10 ** (1 / BINS_A_DECADE))}\n{count:,} rows"
        )
        for n, (low, count) in zip(numbers, stats.runtimes, strict=True)
    ]
    decades = [n for n in range(numbers[0], numbers[-1] + 2) if n % BINS_A_DECADE == 0]
    return _columns(
        "runtimes",
        "Bars: rows by runtime",
        bars,
        _Axes(
            Axis(numbers[0] - 0.5, numbers[-1] + 1.5),
            lambda _: [(n, duration(10 ** (n / BINS_A_DECADE))) for n in decades],
            ("median of a row, status ok", "rows"),
        ),
    )


def _families(stats: Stats) -> Picture | None:
    """The gains of each family: quartiles as a box, whiskers to the least and the most, the geometric mean as a dot."""
    shown = sorted(((f.speedup, f) for f in stats.families if f.speedup is not None), key=lambda s: (s[0], s[1].name))
    if not shown:
        return None
    top = max(f.quartiles[4] for _, f in shown) * 1.05
    x = Axis(0.97, max(top, 1.2), log=True)
    values = (1, 1.5, 2, 3, 5, 7, 10) if top < 12 else (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000)
    tips = [
        f"{f.name}\n{f.compared:,} compared, geometric mean {_factor(mean)}\n"
        f"median {_factor(f.quartiles[2])}, most {_factor(f.quartiles[4])}"
        for mean, f in shown
    ]

    def draw(sheet: Sheet) -> None:
        ticks = [(t, f"{t:g}×") for t in values[:: 2 if sheet.narrow else 1] if t <= top]
        panel = _rows(sheet, [f.name for _, f in shown], x, ticks, "times as fast as hand-coded")
        for i, (mean, f) in enumerate(shown):
            low, q1, median, q3, high = (max(q, x.low) for q in f.quartiles)
            panel.line([(low, i), (high, i)], "edge")
            panel.box((q1, q3), (i - 0.31, i + 0.31), "middle", tip=i)
            panel.line([(median, i - 0.31), (median, i + 0.31)], "edge")
            panel.dots([(max(mean, x.low), i)], "accent", radius=3.5, tip=i)

    label = "Boxes: gains over hand-coded by family; the table of families has the same numbers"
    return _titled("families", label, draw, 70 + 22 * max(len(shown), 3), (), tips, wide=WIDE)


def _actions(stats: Stats) -> Picture | None:
    """In what share of the kernels and of the schedules each Opt occurs."""
    found = [a for a in stats.action_coverage if a.arg is not None]
    kept = set(sorted(found, key=lambda a: (-a.regions, a.op, a.arg or ""))[:MOST_ACTIONS])
    shown = [a for a in reversed(found) if a in kept]  # the first row is below
    if not shown:
        return None
    tips = [
        f"{a.op} {a.arg}\n{a.schedules:,} schedules, {share(a.schedules, stats.schedules)}\n"
        f"{a.regions:,} kernels, {share(a.regions, stats.regions_measured)}"
        for a in shown
    ]
    keys = (("main", "kernels"), ("accent", "schedules"))
    x = Axis(0, 101)

    def draw(sheet: Sheet) -> None:
        names = [f"{a.op} {a.arg}" for a in shown]
        ticks = [(t, f"{t}%") for t in range(0, 101, 50 if sheet.narrow else 20)]
        panel = _rows(sheet, names, x, ticks, "share that has it", keys=keys)
        for i, a in enumerate(shown):
            panel.box((0, 100 * a.regions / stats.regions_measured), (i + 0.02, i + 0.38), "main", tip=i)
            panel.box((0, 100 * a.schedules / stats.schedules), (i - 0.38, i - 0.02), "accent", tip=i)

    label = "Bars: share of kernels and of schedules by action; the table below has the same numbers"
    return _titled("actions", label, draw, 66 + 24 * max(len(shown), 3), keys, tips, wide=WIDE)


def _samplers(stats: Stats, statuses: Sequence[str], *, name: str, label: str, title: str) -> Picture | None:
    """What share of each sampler's rows ended as one of `statuses`."""
    if not statuses or not stats.samplers:
        return None
    samplers = list(stats.samplers)[::-1]
    rows = [stats.samplers[s] for s in samplers]
    counts = [[stats.sampler_statuses[s].get(status, 0) for status in statuses] for s in samplers]
    x = Axis(0, 1.05 * max(100 * sum(of_one) / whole for of_one, whole in zip(counts, rows, strict=True)))
    keys = [(f"status-{status}", status) for status in statuses] if len(statuses) > 1 else []
    tips = [
        f"{s or '(none)'}\n{status}: {n:,} of {whole:,}, {share(n, whole)}"
        for s, of_one, whole in zip(samplers, counts, rows, strict=True)
        for status, n in zip(statuses, of_one, strict=True)
    ]

    def draw(sheet: Sheet) -> None:
        names = [f"{s or '(none)'} ({n:,})" for s, n in zip(samplers, rows, strict=True)]
        panel = _rows(sheet, names, x, x.ticks(4 if sheet.narrow else 8, lambda v: f"{v:g}%"), title, keys=keys)
        for i, (of_one, whole) in enumerate(zip(counts, rows, strict=True)):
            end = 0.0
            for j, (status, n) in enumerate(zip(statuses, of_one, strict=True)):
                begin, end = end, end + 100 * n / whole
                if n:
                    panel.box((begin, end), (i - 0.32, i + 0.32), f"status-{status}", tip=i * len(statuses) + j)

    return _titled(name, label, draw, 66 + 34 * max(len(samplers), 2), keys, tips, wide=WIDE)


def _schedules(stats: Stats) -> Picture | None:
    """How many kernels have how many distinct schedules: bins that double where the numbers span decades."""
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
    half = 0.46 * (1 if doubling else width)
    bars = []
    for (first, last), n in bins.items():
        middle = first.bit_length() - 1 if doubling else (first + last) / 2
        tip = f"{first:,}{f' to {last:,}' if last > first else ''} schedules\n{n:,} kernels"
        bars.append(Bar(middle - half, middle + half, n, tip))
    x = Axis(min(bar.low for bar in bars) - half, max(bar.high for bar in bars) + half)
    if not doubling and high - low < 8:
        x = Axis(low - 4, high + 4)
    powers = range(low.bit_length() - 1, high.bit_length(), 2)
    return _columns(
        "schedules",
        "Bars: kernels by their number of distinct schedules",
        bars,
        _Axes(
            x,
            lambda most: [(p, f"{1 << p:,}") for p in powers] if doubling else _whole(x, most),
            ("distinct schedules" + ", from 1, 2, 4, …" * doubling, "kernels"),
        ),
        height=260,
        wide=HALF,
    )


def _walks(stats: Stats) -> Picture | None:
    """How many distinct schedules have how many Opts."""
    if not stats.walk_lengths:
        return None
    whole = sum(stats.walk_lengths.values())
    bars = [
        Bar(length - 0.44, length + 0.44, n, f"{length} Opts\n{n:,} schedules, {share(n, whole)}")
        for length, n in stats.walk_lengths.items()
    ]
    x = Axis(min(stats.walk_lengths) - 0.7, max(stats.walk_lengths) + 0.7)
    return _columns(
        "walks",
        "Bars: distinct schedules by their number of Opts",
        bars,
        _Axes(x, lambda most: _whole(x, 2 * most), ("Opts of a schedule", "distinct schedules")),
        height=260,
        wide=HALF,
    )


def _whole(axis: Axis, most: int) -> Ticks:
    """Whole numbers only."""
    return [(value, words) for value, words in axis.ticks(most, lambda v: f"{v:,g}") if value == round(value) >= 0]


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


def _spreads(kinds: list[_Kind]) -> Picture | None:
    """Noise and drift by the duration of the kernels: bars to the median, whiskers to 90 %."""
    if not kinds:
        return None
    limits = sorted({c.limit for kind in kinds for c in kind.classes})
    targets = sorted({c.target for kind in kinds for c in kind.classes})
    width = 0.7 / (len(kinds) * len(targets))
    bars, keys = [], []
    for i, (kind, target) in enumerate((kind, target) for kind in kinds for target in targets):
        keys.append((kind.color, kind.name if len(targets) == 1 else f"{kind.name}, {_cut(target, 28)}"))
        for c in (c for c in kind.classes if c.target == target):
            low = limits.index(c.limit) - 0.35 + i * width
            tip = (
                f"{keys[-1][1]}, {duration_class(c.shorter_than_s)}\nmedian {percent(c.median)}, "
                f"90% below {percent(c.p90)}\nof {c.compared:,}"
            )
            bars.append(Bar(low, low + width, 100 * c.median, tip, kind.color, 100 * c.p90))
    return _columns(
        "spreads",
        "Bars: noise and drift by duration; the table below has the same numbers",
        bars,
        _Axes(
            Axis(-0.6, len(limits) - 0.4),
            lambda _: [(i, duration(limit) if limit < math.inf else "longer") for i, limit in enumerate(limits)],
            ("kernels that take less than", "difference"),
            unit="%",
        ),
        height=300,
        keys=keys,
    )


def _factor(factor: float | None) -> str:
    if factor is None:
        return "–"
    return f"{factor:.2f}×" if factor < 99.95 else f"{factor:,.0f}×"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
