"""A picture of times or rates by size: a line for each contender, drawn as kcg's other plots are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from evaluation.search.comparison_text import BOTTOM, HEIGHT, LABEL_STEP, LEFT, RIGHT, TOP, WIDTH

from .axes import Axis
from .contenders import Found, colour, in_order, reason, words

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
    title: str, across: str, curves: Mapping[str, Sequence[Point]], axis: Callable[[Iterable[float]], Axis],
    notes: Sequence[str],
) -> str:  # fmt: skip
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
    for value, said in up.ticks:
        parts += [grid(LEFT, y(value), WIDTH - RIGHT, y(value)), text(LEFT - 8, y(value) + 4, said, "#555", "end")]
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


def text(x: float, y: float, said: str, fill: str = "#222", anchor: str = "start") -> str:
    """A line of text whose baseline is at `y`."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}">{escape(said)}</text>'


def grid(x1: float, y1: float, x2: float, y2: float) -> str:
    """A thin grey line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e4e4e4"/>'
