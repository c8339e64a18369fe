"""A picture of times by size: a line for each contender, both axes logarithmic, drawn as kcg's other plots are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from kcg.search.comparison_text import BOTTOM, COLOURS, HEIGHT, LABEL_STEP, LEFT, RIGHT, TOP, WIDTH

Point = tuple[float, float, float, float]  # size, value, the ends of its interval


def curves_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """The cold seconds of every contender by the tokens of a row's case, where they are known."""
    curves: dict[str, list[Point]] = {}
    for row in rows:
        for name, found in row["contenders"].items():
            if found["status"] == "ok":
                point = (row["case"]["tokens"], found["cold_s"], *found["cold_interval_s"])
                curves.setdefault(name, []).append(point)
    return curves


def lines_svg(title: str, across: str, curves: Mapping[str, Sequence[Point]]) -> str:
    """The picture; values are seconds, `across` says what a size is. Curves without a point are left out."""
    curves = {name: sorted(points) for name, points in curves.items() if points}
    sizes = [point[0] for points in curves.values() for point in points] or [1.0]
    values = [end for points in curves.values() for point in points for end in point[2:]] or [1e-6]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    first, last = math.log2(min(sizes)), max(math.log2(max(sizes)), math.log2(min(sizes)) + 1)

    def x(size: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(size) - first) / (last - first)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(value) - low) / max(high - low, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" fill="#222">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 10}" fill="#222" text-anchor="middle">'
        f"{escape(across)}</text>",
    ]
    for power in range(low, high + 1):
        parts.append(_grid(LEFT, y(10.0**power), WIDTH - RIGHT, y(10.0**power)))
        parts.append(f'<text x="{LEFT - 8}" y="{y(10.0**power) + 4:.1f}" fill="#555" text-anchor="end">'
                     f"{_seconds(power)}</text>")  # fmt: skip
    for size in sorted(set(sizes)):
        parts.append(_grid(x(size), TOP, x(size), HEIGHT - BOTTOM))
        parts.append(f'<text x="{x(size):.1f}" y="{HEIGHT - BOTTOM + 18}" fill="#555" text-anchor="middle">'
                     f"{size:g}</text>")  # fmt: skip
    ends = []
    for place, (name, points) in enumerate(curves.items()):
        colour = COLOURS[place % len(COLOURS)]
        around = [(s, top) for s, _, _, top in points] + [(s, bottom) for s, _, bottom, _ in reversed(points)]
        band = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in around)
        parts.append(f'<polygon points="{band}" fill="{colour}" opacity="0.13"/>')
        line = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v, _, _ in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="3" fill="{colour}"/>' for s, v, _, _ in points]
        ends.append((y(points[-1][1]), name, colour))
    at = TOP - LABEL_STEP
    for height, name, colour in sorted(ends):
        at = max(height, at + LABEL_STEP)
        parts.append(f'<text x="{WIDTH - RIGHT + 14}" y="{at + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _grid(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e4e4e4"/>'


def _seconds(power: int) -> str:
    for least, unit in ((0, "s"), (-3, "ms"), (-6, "µs")):
        if power >= least:
            return f"{10 ** (power - least)} {unit}"
    return f"{10.0 ** (power + 9):g} ns"
