"""A picture of horizontal bars in groups: a bar for each contender, with its interval and its figures in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from evaluation.search.comparison_text import WIDTH

from .axes import Axis
from .contenders import colour, words
from .plots import grid, opened, text

NAMES, FIGURES = 190, 150  # pixels left and right of the bars, for what they are and how long
TOP, BOTTOM, STEP, BAR, HEAD = 44, 44, 16, 11, 24  # pixels: margins, from bar to bar, of a bar, above a group


@dataclass(frozen=True)
class Bar:
    """A contender's value, its interval, and its figures in words; of one without a value only the words, which then
    stand where the bar would be."""

    name: str
    said: str
    value: tuple[float, float, float] | None


@dataclass(frozen=True)
class Group:
    """Bars below a line of words, which may be empty."""

    said: str
    bars: Sequence[Bar]


def bars_svg(
    title: str, across: str, groups: Sequence[Group], axis: Callable[[Iterable[float]], Axis], begin: float,
    mark: tuple[str, float] | None,
) -> str:  # fmt: skip
    """The picture: bars from `begin` across on `axis`, which `across` names; a dashed line with words at `mark`."""
    values = [end for group in groups for bar in group.bars for end in bar.value or ()]
    along = axis([*values, *([mark[1]] if mark else [])])
    end = TOP + sum((HEAD if group.said else 0) + STEP * len(group.bars) for group in groups) + 6

    def x(value: float) -> float:
        return NAMES + (WIDTH - NAMES - FIGURES) * along.place(value)

    parts = opened(title, 8, end + BOTTOM)
    parts.append(text((NAMES + WIDTH - FIGURES) / 2, end + BOTTOM - 8, across, anchor="middle"))
    for value, said in along.ticks:
        parts += [grid(x(value), TOP, x(value), end), text(x(value), end + 16, said, "#555", "middle")]
    y = float(TOP)
    for group in groups:
        if group.said:
            y += HEAD
            parts.append(text(8, y - 5, group.said))
        first = y
        for bar in group.bars:
            parts += [text(NAMES - 8, y + BAR, words(bar.name), anchor="end"), *_drawn(bar, x, y, x(begin))]
            y += STEP
        parts.append(f'<line x1="{x(begin):.1f}" y1="{first}" x2="{x(begin):.1f}" y2="{y}" stroke="#777"/>')
    if mark is not None:
        at = x(mark[1])
        parts.append(f'<line x1="{at:.1f}" y1="{TOP - 6}" x2="{at:.1f}" y2="{end:.1f}" stroke="#222" '
                     'stroke-dasharray="5 3"/>')  # fmt: skip
        parts.append(text(at, TOP - 10, mark[0], anchor="middle"))
    return "\n".join([*parts, "</svg>", ""])


def _drawn(bar: Bar, x: Callable[[float], float], y: float, begin: float) -> list[str]:
    if bar.value is None:
        return [text(begin + 5, y + BAR, bar.said)]
    value, low, high = map(x, bar.value)
    left, width, middle = min(begin, value), abs(value - begin), y + 1 + BAR / 2
    return [
        f'<rect x="{left:.1f}" y="{y + 1:.1f}" width="{width:.1f}" height="{BAR}" fill="{colour(bar.name)}"/>',
        f'<path d="M{low:.1f} {middle - 4:.1f}v8m0-4H{high:.1f}m0-4v8" stroke="#222" fill="none"/>',
        text(WIDTH - FIGURES + 8, y + BAR, bar.said),
    ]
