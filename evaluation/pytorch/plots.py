"""Pictures of a comparison: lines by size, horizontal bars in groups, their axes, and how each contender looks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, HEIGHT = 860, 480  # pixels, as kcg's other plots have them
LEFT, RIGHT, TOP, BOTTOM = 64, 200, 34, 50  # margins; the names stand in the right one
LABEL_STEP = 15.0  # pixels between two names
BLUE, VERMILION, GREEN, PINK = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY, PURPLE, BLACK, GREY = "#e69f00", "#56b4e9", "#7a5195", "#111111", "#777777"
"""Told apart by the colour-blind (Okabe & Ito, 2008)."""
TICKS = 8  # at most, of a linear axis
UNITS = ((0, "s"), (-3, "ms"), (-6, "µs"), (-9, "ns"))


@dataclass(frozen=True)
class Axis:
    """`place` gives 0 at the axis's begin and 1 at its end; `ticks` are values and their words."""

    place: Callable[[float], float]
    ticks: list[tuple[float, str]]


def seconds_axis(values: Iterable[float]) -> Axis:
    """Logarithmic, whole decades around `values`, which are seconds."""
    values = list(values) or [1e-6]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    return Axis(lambda v: (math.log10(v) - low) / (high - low), [(10.0**p, _decade(p)) for p in range(low, high + 1)])


def rate_axis(values: Iterable[float]) -> Axis:
    """Linear from 0 to the first tick that is not below `values`, which are GB/s."""
    most = max(values, default=1.0)
    steps = (factor * 10.0**power for power in range(-3, 9) for factor in (1, 2, 5))
    step = next(step for step in steps if most / step <= TICKS)
    count = math.ceil(most / step)
    return Axis(lambda v: v / (step * count), [(step * i, f"{step * i:,g}") for i in range(count + 1)])


def ratio_axis(values: Iterable[float]) -> Axis:
    """Logarithmic, with 1 and ticks at 1, 2 and 5 of each decade around `values`, which are quotients."""
    values = [1.0, *values]
    ticks = [factor * 10.0**power for power in range(-6, 7) for factor in (1, 2, 5)]
    low = max(tick for tick in ticks if tick <= min(values))
    high = min(tick for tick in ticks if tick >= max(values) and tick > low)
    shown = [(tick, f"{tick:g}×") for tick in ticks if low <= tick <= high]
    return Axis(lambda v: math.log(v / low) / math.log(high / low), shown)


def _decade(power: int) -> str:
    least, unit = next((u for u in UNITS if power >= u[0]), UNITS[-1])
    return f"{10.0 ** (power - least):g} {unit}"


KNOWN = {
    "tinygrad": ("tinygrad", BLACK), "BEAM=2": ("tinygrad, BEAM=2", PINK), "kcg": ("kcg", BLUE),
    "uops": ("UOps by hand", SKY), "cuda": ("CUDA by hand", ORANGE), "ptx": ("PTX by hand", PURPLE),
    "triton": ("Triton by hand", GREEN), "c": ("C by hand", GREEN), "torch": ("PyTorch", VERMILION),
    "eager": ("PyTorch eager", ORANGE), "compile": ("torch.compile", VERMILION),
    "compile-graphs": ("torch.compile, CUDA graphs", PURPLE), "autotune": ("torch.compile, max-autotune", PINK),
}  # fmt: skip
"""Names in results -> words and colour. `tinygrad` is tinygrad with its hand-coded schedules."""

Found = Mapping[str, Any]
"""What a row says of one contender."""


def in_order(names: Iterable[str]) -> list[str]:
    """Each name once: those known here as they stand above, then all others as they come."""
    order = list(KNOWN)
    return sorted(dict.fromkeys(names), key=lambda name: order.index(name) if name in order else len(order))


def words(name: str) -> str:
    """What a reader calls it."""
    return KNOWN.get(name, (name, ""))[0]


def colour(name: str) -> str:
    """The same in every picture."""
    return KNOWN.get(name, ("", GREY))[1]


def reason(found: Found) -> str:
    """Why there is no time, short enough for a cell or a line."""
    text = " ".join(found["reason"].replace("|", "/").split())
    return text if len(text) <= 60 else text[:59] + "…"


def seconds(found: Found) -> tuple[float, float, float]:
    """Median with flushed caches, and the ends of its 95 % interval."""
    low, high = found["cold_interval_s"]
    return found["cold_s"], low, high


def rate(found: Found) -> tuple[float, float, float]:
    """The same as GB/s."""
    median, low, high = seconds(found)
    return found["gb_s"], found["gb_s"] * median / high, found["gb_s"] * median / low


Point = tuple[float, float, float, float]  # size, value, the ends of its interval
Row = Mapping[str, Any]
NARROW = 40  # pixels between two sizes, below which the second stands on a line of its own


def curves_of(rows: Iterable[Row], figure: Callable[[Found], tuple[float, float, float]]) -> dict[str, list[Point]]:
    """What `figure` tells of every contender, by the tokens of a row's case, where it has a time."""
    curves: dict[str, list[Point]] = {}
    for row in rows:
        for name, found in row["contenders"].items():
            if found["status"] == "ok":
                curves.setdefault(name, []).append((row["case"]["tokens"], *figure(found)))
    return {name: sorted(curves[name]) for name in in_order(curves)}


def lost_in(rows: Iterable[Row]) -> list[str]:
    """A line for each contender without a time: at which size, and why."""
    return [
        f"{words(name)} at {row['case']['tokens']:,}: {reason(found)}"
        for row in rows
        for name, found in row["contenders"].items()
        if found["status"] != "ok"
    ]


def lines_svg(
    title: str,
    across: str,
    curves: Mapping[str, Sequence[Point]],
    axis: Callable[[Iterable[float]], Axis],
    notes: Sequence[str],
) -> str:
    """The picture: sizes across, logarithmic, which `across` names; values upwards on `axis`; `notes` below."""
    sizes = sorted({point[0] for points in curves.values() for point in points}) or [1.0]
    up = axis([end for points in curves.values() for point in points for end in point[2:]])
    first, last = math.log2(sizes[0]), max(math.log2(sizes[-1]), math.log2(sizes[0]) + 1)

    def x(size: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(size) - first) / (last - first)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * up.place(value)

    parts = opened(title, LEFT, HEIGHT + math.ceil(LABEL_STEP) * len(notes))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, across, anchor="middle"))
    parts += [text(LEFT, HEIGHT + 10 + LABEL_STEP * i, note) for i, note in enumerate(notes)]
    for value, label in up.ticks:
        parts += [grid(LEFT, y(value), WIDTH - RIGHT, y(value)), text(LEFT - 8, y(value) + 4, label, "#555", "end")]
    lower, before = False, -math.inf
    for size in sizes:
        lower, before = not lower and x(size) - before < NARROW, x(size)
        parts.append(grid(x(size), TOP, x(size), HEIGHT - BOTTOM))
        parts.append(text(x(size), HEIGHT - BOTTOM + (30 if lower else 16), f"{size:,g}", "#555", "middle"))
    ends = []
    for name, points in curves.items():
        around = [(s, top) for s, _, _, top in points] + [(s, bottom) for s, _, bottom, _ in reversed(points)]
        band = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in around)
        line = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v, _, _ in points)
        parts.append(f'<polygon points="{band}" fill="{colour(name)}" opacity="0.13"/>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour(name)}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="3" fill="{colour(name)}"/>' for s, v, _, _ in points]
        ends.append((y(points[-1][1]), name))
    at = TOP - LABEL_STEP
    for height, name in sorted(ends):
        at = max(height, at + LABEL_STEP)
        parts.append(text(WIDTH - RIGHT + 14, at + 4, words(name), colour(name)))
    return "\n".join([*parts, "</svg>", ""])


def opened(title: str, left: float, height: float) -> list[str]:
    """The first lines of a picture, `WIDTH` pixels wide: its name, a white ground, the title."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" font-family="sans-serif" '
        'font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height:g}" fill="white"/>',
        text(left, 18, title),
    ]


def text(x: float, y: float, label: str, fill: str = "#222", anchor: str = "start") -> str:
    """A line of text whose baseline is at `y`."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}">{escape(label)}</text>'


def grid(x1: float, y1: float, x2: float, y2: float) -> str:
    """A thin grey line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e4e4e4"/>'


NAMES, FIGURES = 190, 150  # pixels left and right of the bars, for what they are and how long
ABOVE, BELOW, STEP, BAR, HEAD = 44, 44, 16, 11, 24  # pixels: margins, from bar to bar, of a bar, above a group


@dataclass(frozen=True)
class Bar:
    """A contender's value, its interval, and its figures in words; of one without a value only the words, which then
    stand where the bar would be."""

    name: str
    label: str
    value: tuple[float, float, float] | None


@dataclass(frozen=True)
class Group:
    """Bars below a line of words, which may be empty."""

    label: str
    bars: Sequence[Bar]


def bars_svg(
    title: str,
    across: str,
    groups: Sequence[Group],
    axis: Callable[[Iterable[float]], Axis],
    begin: float,
    mark: tuple[str, float] | None,
) -> str:
    """The picture: bars from `begin` across on `axis`, which `across` names; a dashed line with words at `mark`."""
    values = [end for group in groups for bar in group.bars for end in bar.value or ()]
    along = axis([*values, *([mark[1]] if mark else [])])
    end = ABOVE + sum((HEAD if group.label else 0) + STEP * len(group.bars) for group in groups) + 6

    def x(value: float) -> float:
        return NAMES + (WIDTH - NAMES - FIGURES) * along.place(value)

    parts = opened(title, 8, end + BELOW)
    parts.append(text((NAMES + WIDTH - FIGURES) / 2, end + BELOW - 8, across, anchor="middle"))
    for value, label in along.ticks:
        parts += [grid(x(value), ABOVE, x(value), end), text(x(value), end + 16, label, "#555", "middle")]
    y = float(ABOVE)
    for group in groups:
        if group.label:
            y += HEAD
            parts.append(text(8, y - 5, group.label))
        first = y
        for bar in group.bars:
            parts += [text(NAMES - 8, y + BAR, words(bar.name), anchor="end"), *_drawn(bar, x, y, x(begin))]
            y += STEP
        parts.append(f'<line x1="{x(begin):.1f}" y1="{first}" x2="{x(begin):.1f}" y2="{y}" stroke="#777"/>')
    if mark is not None:
        at = x(mark[1])
        parts.append(
            f'<line x1="{at:.1f}" y1="{ABOVE - 6}" x2="{at:.1f}" y2="{end:.1f}" stroke="#222" stroke-dasharray="5 3"/>'
        )
        parts.append(text(at, ABOVE - 10, mark[0], anchor="middle"))
    return "\n".join([*parts, "</svg>", ""])


def _drawn(bar: Bar, x: Callable[[float], float], y: float, begin: float) -> list[str]:
    if bar.value is None:
        return [text(begin + 5, y + BAR, bar.label)]
    value, low, high = map(x, bar.value)
    left, width, middle = min(begin, value), abs(value - begin), y + 1 + BAR / 2
    return [
        f'<rect x="{left:.1f}" y="{y + 1:.1f}" width="{width:.1f}" height="{BAR}" fill="{colour(bar.name)}"/>',
        f'<path d="M{low:.1f} {middle - 4:.1f}v8m0-4H{high:.1f}m0-4v8" stroke="#222" fill="none"/>',
        text(WIDTH - FIGURES + 8, y + BAR, bar.label),
    ]
