"""Pictures as a part of a page: matplotlib draws them, and what it writes as SVG is dressed for the page.

A chart says what is drawn: panels with axes, and on them lines, boxes, dots and texts, each with the classes of its
look and the number of what it says when it is pointed at. From matplotlib come scales, ticks, places and paths; colours
are CSS, since a page is light or dark. So a picture is a few kilobytes, is there without scripts, and stands alone as a
file.

Each picture is drawn twice, for a wide page and for a phone: text in an SVG shrinks with it, so one size cannot do.
"""

from __future__ import annotations

import io
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any, Final
from xml.etree import ElementTree

WIDE, NARROW = 960, 350
"""Widths in the units of a picture; its text is 13 of them high, at which a character is about 7 wide."""

UNITS_PER_INCH: Final = 72  # an inch of matplotlib has so many points, in which it gives sizes of texts and marks

COLORS = 12
"""How many parts of a whole have a colour of their own."""

_LIGHT = (
    "--card:#fff;--text:#1b2430;--soft:#5b6776;--line:#dfe3e8;--before:#8c99a8;--after:#0f7b6c;--rest:#66727f;"
    "--on:#fff;--warn:#8a5a00;--bad:#b3261e",
    "#2563a8 #b4481f #2f7d4f #8a4fa3 #8a6100 #0f7584 #b0356b #5b6f1f #5a54c4 #a33a3a #3f6b6b #7a5a3a",
)
_DARK = (
    "--card:#1a2129;--text:#e6eaef;--soft:#9aa7b5;--line:#2e3843;--before:#8b99a8;--after:#35c4ae;--rest:#8a96a3;"
    "--on:#10151b;--warn:#f2c25b;--bad:#ff8a80",
    "#6aa8ea #f0936b #6cc493 #c99be0 #dcb04a #4fc3d1 #ee86b4 #adc45c #a5a0f5 #f08c8c #8fbcbc #c9a581",
)

_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # what XML cannot hold


def _variables(theme: tuple[str, str]) -> str:
    return theme[0] + "".join(f";--k{i}:{color}" for i, color in enumerate(theme[1].split()))


STYLE = (
    f":root{{{_variables(_LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_variables(_DARK)}}}}}"
    ".fig text{font-size:13px;fill:var(--text)}.fig .soft{fill:var(--soft)}.fig .small{font-size:12px}"
    ".fig text{paint-order:stroke;stroke:var(--card);stroke-width:3px;stroke-linejoin:round}"
    ".fig .b{font-weight:650}.fig .on{fill:var(--on);stroke:none;pointer-events:none}"
    ".fig .good{fill:var(--after)}.fig .e{text-anchor:end}"
    ".fig .m{text-anchor:middle}.fig .grid{stroke:var(--line)}.fig .axis{stroke:var(--soft)}"
    ".fig .roof{stroke:var(--text);stroke-width:1.6;fill:none}.fig .dash{stroke-dasharray:5 4}"
    ".fig .dot{stroke-dasharray:1.5 3.5;stroke-linecap:round}.fig .mute{stroke:var(--soft);stroke-width:1.4;fill:none}"
    ".fig .curve{stroke:var(--after);stroke-width:2.4;fill:none}.fig .move{stroke:var(--after);stroke-width:1.6}"
    ".fig .old{fill:var(--card);stroke:var(--before);stroke-width:1.7}"
    ".fig .new{fill:var(--after);fill-opacity:.82;stroke:var(--card)}"
    ".fig .step{fill:var(--after)}.fig .seen{fill:var(--after);fill-opacity:.5}"
    ".fig .region{fill:var(--card);stroke:var(--k1);stroke-width:2.2}"
    ".fig .f{fill-opacity:.26}.fig .krest{fill:var(--rest)}"
    ".fig .card{fill:var(--card)}" + "".join(f".fig .k{i}{{fill:var(--k{i})}}" for i in range(COLORS))
)
"""Colours of both themes and the classes of all shapes; for the page and for a picture that stands alone."""

PAGE_STYLE = STYLE + (
    ".fig{display:block;width:100%;height:auto;-webkit-tap-highlight-color:transparent}"
    ".fig.narrow{display:none;max-width:560px;margin:0 auto}"
    "@media (max-width:900px){.fig.wide{display:none}.fig.narrow{display:block}}"
)
"""The same, and which of its two widths a page shows."""


def drawable(*values: float) -> bool:
    """Whether all are numbers that a picture can show: above 0, finite, and not so far out that a ratio overflows. A
    result from anywhere may hold others."""
    return all(1e-30 < value < 1e30 for value in values)


@dataclass(frozen=True)
class Picture:
    """One picture in both widths. `tips` are what its marks say when pointed at; `label` is for a screen reader."""

    name: str
    label: str
    wide: str
    narrow: str
    tips: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  # what it shows, in sentences


Point = tuple[float, float]

Ticks = Sequence[tuple[float, str]]
"""Places on an axis, and what is written there."""


@dataclass(frozen=True)
class Axis:
    """Values from `low`, at the left or the bottom, to `high`; by ratio where `log`."""

    low: float
    high: float
    log: bool = False

    def ticks(self, most: int, words: Callable[[float], str]) -> list[tuple[float, str]]:
        """About `most` round values at most, in `words`."""
        from matplotlib.ticker import LogLocator, MaxNLocator

        linear = MaxNLocator(max(most, 1), steps=(1, 2, 5, 10))
        if not self.log:
            return self._within(linear, words)
        found = self._within(LogLocator(numticks=most), words)
        if len(found) < 3:  # too few decades
            found = self._within(LogLocator(subs=(1, 2, 5)), words)
        return found if len(found) > 1 else self._within(linear, words)  # so close that both scales look alike

    def _within(self, locator: Any, words: Callable[[float], str]) -> list[tuple[float, str]]:
        low, high = self.low - 1e-9 * abs(self.low), self.high + 1e-9 * abs(self.high)  # 0.1 + 0.2 is above 0.3
        values = map(float, locator.tick_values(self.low, self.high))
        return [(value, words(value)) for value in values if low <= value <= high]


class Panel:
    """A rectangle of a sheet, in its pixels, with an axis across and one upwards; places are values of these. What is
    drawn later lies above. `look` are classes of `STYLE` or of the page, `tip` is the number of what a mark says."""

    def __init__(self, sheet: Sheet, x: Axis, y: Axis, *, left: float, top: float, right: float, bottom: float) -> None:
        from matplotlib.scale import LogTransform
        from matplotlib.transforms import Bbox, BboxTransform, IdentityTransform, blended_transform_factory

        self.x, self.y, self.left, self.top, self.right, self.bottom = x, y, left, top, right, bottom
        self._sheet = sheet
        scale = blended_transform_factory(*(LogTransform(10) if axis.log else IdentityTransform() for axis in (x, y)))
        values = Bbox(scale.transform(((x.low, y.low), (x.high, y.high))))
        pixels = Bbox.from_extents(left, sheet.height - bottom, right, sheet.height - top)  # matplotlib's go upwards
        self._place = scale + BboxTransform(values, pixels)

    def at(self, x: float, y: float) -> Point:
        """A place in pixels from the left and the top of the sheet."""
        across, up = self._place.transform((x, y))
        return float(across), self._sheet.height - float(up)

    def line(self, points: Sequence[Point], look: str, *, steps: bool = False) -> None:
        """Through the points; with `steps` each value holds until the next."""
        from matplotlib.lines import Line2D

        kind = "steps-post" if steps else "default"
        self._add(Line2D(*zip(*points, strict=True), drawstyle=kind, transform=self._place), look)

    def dots(self, points: Sequence[Point], look: str, *, radius: float, tip: int | None = None) -> None:
        """Circles of `radius` pixels; `tip` is that of the first, and the others follow."""
        from matplotlib.lines import Line2D

        across, up = zip(*points, strict=True)
        circles = Line2D(across, up, linestyle="none", marker="o", markersize=2 * radius, transform=self._place)
        self._add(circles, look, tip, radius)

    def box(self, x: tuple[float, float], y: tuple[float, float], look: str, *, tip: int | None = None) -> None:
        """From one value to another on each axis."""
        self.shape([(x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[0], y[1])], look, tip=tip)

    def shape(self, corners: Sequence[Point], look: str, *, tip: int | None = None) -> None:
        from matplotlib.patches import Polygon

        self._add(Polygon(corners, transform=self._place), look, tip)

    def text(self, x: float, y: float, words: str, look: str = "", *, by: Point = (0, 0), turned: float = 0.0) -> None:
        """A line of text that begins there on its baseline, or ends (class `e`) or has its middle there (`m`); moved by
        so many pixels to the right and down, turned by so many degrees against the clock."""
        from matplotlib.text import Text
        from matplotlib.transforms import IdentityTransform

        across, down = self.at(x, y)
        written = Text(
            across + by[0],
            self._sheet.height - down - by[1],
            _clean(words),
            ha=_alignment(look),
            va="baseline",
            rotation=turned,
            rotation_mode="anchor",
        )
        written.set_transform(IdentityTransform())  # its place is in pixels
        self._add(written, look)

    def _add(self, artist: Any, look: str, tip: int | None = None, radius: float = 0) -> None:
        """Above all others; the name of its group in the SVG tells `_marks` what it is."""
        self._sheet.drawn += 1
        artist.set(gid=f"{look}|{'' if tip is None else tip}|{_number(radius)}", zorder=self._sheet.drawn)
        self._sheet.figure.add_artist(artist)

    def frame(self, *, x: Ticks, y: Ticks, title_x: str = "", title_y: str = "", lines: str = "xy") -> None:
        """What is written along the axes, lines at these places of the axes named, and what the axes are: that of y is
        above it, at the left."""
        wide, high = self._sheet.width, self._sheet.height
        axes = self._sheet.figure.add_axes(
            (
                self.left / wide,
                1 - self.bottom / high,
                (self.right - self.left) / wide,
                (self.bottom - self.top) / high,
            ),
            xlim=(self.x.low, self.x.high),
            ylim=(self.y.low, self.y.high),
            xscale="log" if self.x.log else "linear",
            yscale="log" if self.y.log else "linear",
        )
        for name, axis, ticks in (("x", axes.xaxis, x), ("y", axes.yaxis, y)):
            axis.set_ticks([value for value, _ in ticks], labels=[_clean(words) for _, words in ticks])
            axis.set_ticks([], minor=True)
            for line in axis.get_gridlines() if name in lines else ():
                line.set_gid("grid||")
            for label, (value, _) in zip(axis.get_ticklabels(), ticks, strict=True):
                look = "soft small" + (self._edge(value) if name == "x" else " e")
                label.set(gid=f"{look}||", ha=_alignment(look))
        axes.spines["bottom"].set_gid("axis||" if y else None)
        self._sheet.paper.text(self.right, self.bottom + 37, title_x, "soft e")
        self._sheet.paper.text(0, self.top - 12, title_y, "soft")

    def _edge(self, value: float) -> str:
        """A number below an axis has its middle there, unless it would reach beyond the sheet."""
        place = self.at(value, self.y.low)[0]
        return "" if place < 12 else " e" if self._sheet.width - place < 20 else " m"


class Sheet:
    """What one picture is drawn on, in one width."""

    def __init__(self, width: float, height: float, *, narrow: bool = False) -> None:
        from matplotlib.figure import Figure

        self.width, self.height, self.narrow = width, height, narrow
        self.figure = Figure(figsize=(width / UNITS_PER_INCH, height / UNITS_PER_INCH), dpi=UNITS_PER_INCH)
        self.drawn = 0  # marks so far

    def panel(self, x: Axis, y: Axis, *, left: float, top: float, right: float, bottom: float) -> Panel:
        return Panel(self, x, y, left=left, top=top, right=right, bottom=bottom)

    @cached_property
    def paper(self) -> Panel:
        """All of it, whose places are pixels from the left and the top."""
        across, down = Axis(0, self.width), Axis(self.height, 0)
        return self.panel(across, down, left=0, top=0, right=self.width, bottom=self.height)


Draw = Callable[[Sheet], None]


def picture(
    name: str,
    label: str,
    draw: Draw,
    *,
    heights: tuple[float, float],
    tips: Sequence[str] = (),
    words: Sequence[str] = (),
    wide: float = WIDE,
    titled: bool = False,
) -> Picture:
    """`draw` in both widths; `heights` of the wide one and of the narrow one, `wide` the width of the wide one. Where
    it is `titled`, each mark carries its tip as a title, for a page without a script; else a script shows them."""
    shown, titles = ("", tips) if titled else (name, ())
    drawn = [
        one_width(label, draw, width=width, height=height, look=look, name=shown, titles=titles)
        for width, height, look in ((wide, heights[0], "wide"), (NARROW, heights[1], "narrow"))
    ]
    return Picture(name, label, drawn[0], drawn[1], tuple(tips), tuple(words))


def one_width(
    label: str, draw: Draw, *, width: float, height: float, look: str, name: str = "", titles: Sequence[str] = ()
) -> str:
    """As a part of a page; `look` is its class. With a `name` it is focusable, since a script then shows the tips, and
    its marks are walked through by key. With `titles` each mark carries its own, which needs no script."""
    marks = _drawn(draw, width, height, narrow=look == "narrow", titles=titles)
    walked = f'data-figure="{name}" tabindex="0" ' if name else ""
    return (
        f'<svg class="fig {look}" viewBox="0 0 {_number(width)} {_number(height)}" {walked}role="img" '
        f'aria-label="{escape(_clean(label))}">{"".join(marks)}</svg>'
    )


def alone(label: str, draw: Draw, *, height: float, tips: Sequence[str]) -> str:
    """The wide picture as a file of its own, with its colours and a background; each mark says its tip."""
    border = 14
    width, tall = WIDE + 2 * border, height + 2 * border
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fig" viewBox="{-border} {-border} {_number(width)} '
        f'{_number(tall)}" font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, sans-serif" '
        f'role="img">\n<title>{escape(_clean(label))}</title>\n<style>{STYLE}</style>\n'
        f'<rect class="card" x="{-border}" y="{-border}" width="{_number(width)}" height="{_number(tall)}"/>\n'
        + "\n".join(_drawn(draw, WIDE, height, titles=tips))
        + "\n</svg>\n"
    )


# ---- what matplotlib draws, and what of it is kept

_SVG: Final = "{http://www.w3.org/2000/svg}"
_ALIGNMENTS: Final = {"e": "right", "m": "center"}

_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # texts stay texts
    "text.parse_math": False,  # and no `$` in a kernel's name is a formula
    "axes.grid": True,
    "axes.axisbelow": True,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "xtick.major.pad": 7,
    "ytick.major.pad": 7,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
_ONE_AT_A_TIME: Final = threading.Lock()  # matplotlib's settings and the warnings are of the whole process


def _drawn(draw: Draw, width: float, height: float, *, narrow: bool = False, titles: Sequence[str] = ()) -> list[str]:
    """The marks as elements of SVG; with `titles` each carries its own."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it would tell of its font cache
    import matplotlib

    written = io.BytesIO()
    with _ONE_AT_A_TIME, matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # whatever a user's matplotlibrc says
        matplotlib.rcParams.update(_SETTINGS)
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the reader's browser has it
        sheet = Sheet(width, height, narrow=narrow)
        draw(sheet)
        sheet.figure.savefig(written, format="svg", metadata={"Date": None})
    return list(_marks(ElementTree.fromstring(written.getvalue()), titles))


def get_ready() -> None:
    """Load what drawing takes, which the first picture waits for otherwise, by drawing nothing."""
    _drawn(lambda sheet: None, WIDE, NARROW)


def _marks(svg: ElementTree.Element, titles: Sequence[str]) -> Iterator[str]:
    """Of each group that `Panel` named: its texts, paths and circles, with classes in the place of colours."""
    for group in svg.iter(f"{_SVG}g"):
        look, named, rest = group.get("id", "").partition("|")
        if not named:
            continue
        first, _, radius = rest.partition("|")
        for i, (tag, attributes, text) in enumerate(_shapes(group, radius)):
            tip = f' data-i="{int(first) + i}"' if first else ""
            inside = f"<title>{_escaped(titles[int(first) + i])}</title>" if first and titles else _escaped(text)
            start = f'<{tag} class="{escape(look)}"{tip} {attributes}'
            yield f"{start}>{inside}</{tag}>" if inside else f"{start}/>"


def _shapes(group: ElementTree.Element, radius: str) -> Iterator[tuple[str, str, str]]:
    """Tag, attributes and text of each shape of a group; what is within `defs` is the form of its dots."""
    for element in group:
        if element.tag == f"{_SVG}text":
            place = _place(element, "x", "y")
            turn = element.get("transform", "")
            turned = "" if turn.startswith("rotate(-0 ") else f' transform="{_rounded(turn)}"'
            yield "text", place + turned, element.text or ""
        elif element.tag == f"{_SVG}path":
            yield "path", f'd="{_rounded(" ".join(element.get("d", "").split()))}"', ""
        elif element.tag == f"{_SVG}g":
            for dot in element.iter(f"{_SVG}use"):
                yield "circle", f'{_place(dot, "cx", "cy")} r="{radius}"', ""


def _place(element: ElementTree.Element, x: str, y: str) -> str:
    across, down = (_number(float(element.get(name, "nan"))) for name in "xy")
    return f'{x}="{across}" {y}="{down}"'


def _alignment(look: str) -> str:
    return next((_ALIGNMENTS[word] for word in look.split() if word in _ALIGNMENTS), "left")


def _clean(text: str) -> str:
    return _CONTROLS.sub("�", text).replace("\n", " ")


def _escaped(text: str) -> str:
    return escape(_CONTROLS.sub("�", text), quote=False)


def _rounded(text: str) -> str:
    """Numbers with at most two digits after the point, and no space that a path does not need."""
    return re.sub(r" ?([A-Za-z]) ?", r"\1", re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda n: _number(float(n[0])), text))


def _number(value: float) -> str:
    """A coordinate with at most two digits after the point."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
