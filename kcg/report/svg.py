"""The pictures of the report as SVG text: shapes, axes, colours. No library, so that a picture is a few kilobytes, is
there without scripts, and stands alone as a file.

Each picture is drawn twice, for a wide page and for a phone: text in an SVG shrinks with it, so one size cannot do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from kcg.report.formats import format_count, format_seconds, format_share
from kcg.report.words import values_of, values_text
from kcg.types import Finalist, RegionResult, Result

# ---- Numbers as the report writes them: three digits, a unit, `–` where there is nothing to say.


def drawable(*values: float) -> bool:
    """Whether all are numbers that a picture can show: above 0, finite, and not so far out that a ratio overflows. A
    result from anywhere may hold others."""
    return all(1e-30 < value < 1e30 for value in values)


WIDE, NARROW = 960, 350
"""Widths in the units of a picture; its text is 13 of them high, at which a character is about 7 wide."""

COLORS = 12
"""How many kernels have a colour of their own."""

_LIGHT = (
    (
        "#2563a8",
        "#b4481f",
        "#2f7d4f",
        "#8a4fa3",
        "#8a6100",
        "#0f7584",
        "#b0356b",
        "#5b6f1f",
        "#5a54c4",
        "#a33a3a",
        "#3f6b6b",
        "#7a5a3a",
    ),
    "--card:#fff;--text:#1b2430;--soft:#5b6776;--line:#dfe3e8;--before:#8c99a8;--after:#0f7b6c;--rest:#66727f;"
    "--on:#fff;--warn:#8a5a00;--bad:#b3261e",
)
_DARK = (
    (
        "#6aa8ea",
        "#f0936b",
        "#6cc493",
        "#c99be0",
        "#dcb04a",
        "#4fc3d1",
        "#ee86b4",
        "#adc45c",
        "#a5a0f5",
        "#f08c8c",
        "#8fbcbc",
        "#c9a581",
    ),
    "--card:#1a2129;--text:#e6eaef;--soft:#9aa7b5;--line:#2e3843;--before:#8b99a8;--after:#35c4ae;--rest:#8a96a3;"
    "--on:#10151b;--warn:#f2c25b;--bad:#ff8a80",
)

_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # what XML cannot hold


def _variables(theme: tuple[tuple[str, ...], str]) -> str:
    return theme[1] + "".join(f";--k{i}:{color}" for i, color in enumerate(theme[0]))


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
    ".fig .f{fill-opacity:.26}.fig .krest{fill:var(--rest)}"
    ".fig .card{fill:var(--card)}" + "".join(f".fig .k{i}{{fill:var(--k{i})}}" for i in range(COLORS))
)
"""Colours of both themes and the classes of all shapes; for the page and for a picture that stands alone."""


@dataclass(frozen=True)
class Picture:
    """One picture in both widths. `tips` are what its marks say when pointed at; `label` is for a screen reader."""

    name: str
    label: str
    wide: str
    narrow: str
    tips: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  # what it shows, in sentences


class Canvas:
    """Shapes of one picture. With `tips`, each mark carries its own as a title, for a file that stands alone."""

    def __init__(self, width: float, height: float, *, tips: Sequence[str] | None = None) -> None:
        self.width, self.height, self.tips = width, height, tips
        self.parts: list[str] = []

    @property
    def narrow(self) -> bool:
        return self.width < WIDE

    def add(
        self, tag: str, look: str = "", *, tip: int | None = None, text: str = "", **attributes: float | str
    ) -> None:
        """One element: `look` is its classes, `tip` the number of what it says, `text` its content."""
        words = [tag]
        if look:
            words.append(f'class="{look}"')
        for name, value in attributes.items():
            shown = value if isinstance(value, str) else number(value)
            words.append(f'{name.replace("_", "-")}="{escape(shown)}"')
        inside = escape(_CONTROLS.sub("�", text), quote=False)
        if tip is not None:
            words.append(f'data-i="{tip}"')
            if self.tips is not None:
                inside += f"<title>{escape(_CONTROLS.sub('�', self.tips[tip]), quote=False)}</title>"
        self.parts.append(f"<{' '.join(words)}>{inside}</{tag}>" if inside else f"<{' '.join(words)}/>")

    def text(self, x: float, y: float, text: str, look: str = "", *, turned: float = 0.0) -> None:
        """`turned` by so many degrees around its place."""
        turn = {"transform": f"rotate({number(turned)} {number(x)} {number(y)})"} if turned else {}
        self.add("text", look, tip=None, text=text, x=x, y=y, **turn)

    def line(self, x1: float, y1: float, x2: float, y2: float, look: str = "grid") -> None:
        self.add("line", look, x1=x1, y1=y1, x2=x2, y2=y2)

    def path(self, points: Sequence[tuple[float, float]], look: str) -> None:
        self.add("path", look, d="M" + "L".join(f"{number(x)} {number(y)}" for x, y in points))

    def svg(self, name: str, label: str, *, look: str) -> str:
        """As a part of the page: focusable, since its marks can be walked through by key."""
        return (
            f'<svg class="fig {look}" viewBox="0 0 {number(self.width)} {number(self.height)}" data-figure="{name}" '
            f'tabindex="0" role="img" aria-label="{escape(label)}">{"".join(self.parts)}</svg>'
        )

    def file(self, label: str) -> str:
        """As a file of its own, with its colours and a background."""
        border = 14
        width, height = self.width + 2 * border, self.height + 2 * border
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="fig" viewBox="{-border} {-border} {number(width)} '
            f'{number(height)}" font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, sans-serif" '
            f'role="img">\n<title>{escape(label)}</title>\n<style>{STYLE}</style>\n'
            f'<rect class="card" x="{-border}" y="{-border}" width="{number(width)}" height="{number(height)}"/>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


Draw = Callable[[Canvas], None]


def picture(
    name: str, label: str, draw: Draw, *, heights: tuple[float, float], tips: Sequence[str], words: Sequence[str] = ()
) -> Picture:
    """`draw` in both widths; `heights` of the wide one and of the narrow one."""
    drawn = []
    for width, height, look in ((WIDE, heights[0], "wide"), (NARROW, heights[1], "narrow")):
        canvas = Canvas(width, height)
        draw(canvas)
        drawn.append(canvas.svg(name, label, look=look))
    return Picture(name, label, drawn[0], drawn[1], tuple(tips), tuple(words))


def alone(label: str, draw: Draw, *, height: float, tips: Sequence[str]) -> str:
    """The wide picture as a file of its own."""
    canvas = Canvas(WIDE, height, tips=tips)
    draw(canvas)
    return canvas.file(label)


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` on pixels from `begin` to `end`, by ratio where `log`."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (
            (math.log(self.low), math.log(self.high), math.log(max(value, 1e-300)))
            if self.log
            else (self.low, self.high, value)
        )
        return self.begin + (value - low) / ((high - low) or 1.0) * (self.end - self.begin)

    def ticks(self, most: int) -> list[float]:
        """At most about `most` round values."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            if last - first >= 2:
                step = max(1, math.ceil((last - first + 1) / most))
                return [10.0**power for power in range(first, last + 1, step)]
            fine = [d * 10.0**power for power in range(first - 1, last + 1) for d in (1, 2, 5)]
            if len(found := [value for value in fine if self.low <= value <= self.high]) > 1:
                return found  # else so close together that both scales look alike
        rough = (self.high - self.low) / max(most, 1) or 1.0
        power = 10.0 ** math.floor(math.log10(rough))
        apart = next(power * d for d in (1, 2, 5, 10) if power * d >= rough * 0.999)
        return [i * apart for i in range(math.ceil(self.low / apart - 1e-9), math.floor(self.high / apart + 1e-9) + 1)]


def grid(
    canvas: Canvas,
    x: Axis,
    y: Axis,
    *,
    tick_x: Callable[[float], str],
    tick_y: Callable[[float], str],
    title_x: str,
    title_y: str,
    most: tuple[int, int] = (8, 6),
) -> None:
    """Lines at round values, their numbers, and what the axes are; the title of y is above it, at the left."""
    right = max(x.begin, x.end)
    for value in x.ticks(most[0]):
        at = x(value)
        canvas.line(at, y.begin, at, y.end)
        edge = "e" if canvas.width - at < 20 else "m"
        canvas.text(min(at, canvas.width - 1) if edge == "e" else at, y.begin + 18, tick_x(value), f"soft small {edge}")
    for value in y.ticks(most[1]):
        canvas.line(x.begin, y(value), right, y(value))
        canvas.text(x.begin - 7, y(value) + 4, tick_y(value), "soft small e")
    canvas.line(x.begin, y.begin, right, y.begin, "axis")
    canvas.text(right, y.begin + 37, title_x, "soft e")
    canvas.text(0, y.end - 12, title_y, "soft")


def short_seconds(seconds: float) -> str:
    """`50 ms`, `0.1 µs`: a round time at an axis."""
    if seconds == 0:
        return "0"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale * 0.9999:
            return f"{seconds / scale:g} {unit}" if seconds < 1e4 else format_seconds(seconds)
    return f"{seconds / 1e-9:g} ns"


def short_count(value: float) -> str:
    return f"{value:.3g}" if 0.01 <= value < 999.5 else format_count(value)


def number(value: float) -> str:
    """A coordinate with at most two digits after the point."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


# ---- The kernels of a result in the order in which the report shows them, with what each picture and table needs.


@dataclass(frozen=True)
class Row:
    """One kernel as the report shows it."""

    number: int  # its place in `Result.regions`
    region: RegionResult
    label: str  # tinygrad's name of it
    share: float  # of the total before; NaN where there is none

    @property
    def title(self) -> str:
        """Its name; a region of several kernels by its form, which says more: `5 kernels as one: row group`."""
        kernels = self.region.region.kernels
        if len(kernels) == 1:
            return self.label
        form = self.region.chosen.legend.partition(";")[0]
        return f"{len(kernels)} kernels as one" + f": {form}" * (self.changed and form != self.label)

    @property
    def words(self) -> str:
        """What it is, whatever its schedule: `img_attn.qkv, 609 GFLOP, 173 MB, 38 calls, position 1 to 12`; the layer
        or line that most calls come from, or else what kind of kernel it is."""
        r = self.region
        kind = r.origins[0][0] if r.origins else r.chosen.legend.partition(";")[0]  # what follows is of the schedule
        kind = kind or self.label
        work = [f"{format_count(r.operations)}FLOP"] * (r.operations > 0) + [f"{format_count(r.bytes)}B"] * (
            r.bytes > 0
        )
        return ", ".join(filter(None, [kind, *work, f"{r.calls} call{'s' * (r.calls != 1)}", values_of(r)]))

    @property
    def at_ends(self) -> str:
        """What a call takes at each end of the values of its variables; empty where there is one set.

        `a call takes 40 µs → 31 µs with position 1, as 54% of the calls count, and …`
        """
        parts = [
            f"{format_seconds(end.before_s)} → {format_seconds(end.after_s)} with {values_text(end.variables)}, "
            f"as {format_share(end.share) if end.share else 'none'} of the calls count"
            for end in self.region.ends
        ]
        return f"a call takes {', and '.join(parts)}" if parts else ""

    @property
    def timed(self) -> bool:
        """Whether it has times that can be drawn."""
        region = self.region
        return drawable(region.before_s, region.after_s, region.baseline.cold_s, region.chosen.cold_s)

    @property
    def changed(self) -> bool:
        return self.region.chosen.schedule != self.region.baseline.schedule

    @property
    def sides(self) -> tuple[tuple[str, Finalist], ...]:
        """What there is to describe: baseline and chosen, or the one that is both; then the best not chosen."""
        if not self.changed:
            return (("Baseline, kept", self.region.baseline),)
        title = "Best of its parts" if self.region.region.args else "Best Opts"
        opts = self.region.opts
        best = () if opts is None or opts.schedule == self.region.baseline.schedule else ((title, opts),)
        return (("Baseline", self.region.baseline), ("Chosen", self.region.chosen), *best)


def rows_of(result: Result) -> list[Row]:
    """The regions, those that took longest before first; those without a time last."""
    numbered = sorted(
        enumerate(result.regions), key=lambda r: -r[1].before_s if math.isfinite(r[1].before_s) else math.inf
    )
    total = result.total_before_s
    return [
        Row(
            number,
            region,
            region.chosen.name or region.baseline.name or region.region.id[:12],
            region.before_s / total if total > 0 else math.nan,
        )
        for number, region in numbered
    ]
