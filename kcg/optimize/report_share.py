"""The picture of where the time goes: two bars of all kernels on one scale of time, before above and after below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kcg.optimize.console import format_seconds, format_speedup
from kcg.optimize.report_rows import Row
from kcg.optimize.report_svg import COLORS, NARROW, WIDE, Axis, Canvas, Picture, alone, picture, short_seconds
from kcg.optimize.report_text import cut, format_share

LABEL = "Share of time per kernel: one bar before and one after, on the same scale; a list of the kernels below"


@dataclass(frozen=True)
class Slice:
    """One kernel of both bars, or all those that have no colour of their own."""

    words: str
    name: str
    before_s: float
    after_s: float
    share: float
    look: str


def slices_of(rows: Sequence[Row]) -> list[Slice]:
    """The kernels that take most, before or after, in the order of before; the others together."""
    timed = [row for row in rows if row.timed]
    by_weight = sorted(timed, key=lambda row: -max(row.region.before_s, row.region.after_s))
    most = COLORS if len(timed) > COLORS + 1 else len(timed)
    own = {row.number for row in by_weight[:most]}
    found = [
        Slice(row.words, row.label, row.region.before_s, row.region.after_s, row.share, f"k{i % COLORS}")
        for i, row in enumerate(row for row in timed if row.number in own)
    ]
    if rest := [row for row in timed if row.number not in own]:
        before, after = sum(row.region.before_s for row in rest), sum(row.region.after_s for row in rest)
        name = f"{len(rest)} more kernels"
        found.append(Slice(name, name, before, after, sum(row.share for row in rest), "krest"))
    return found


def share_picture(rows: Sequence[Row]) -> Picture | None:
    """For the page; None where no kernel has a time."""
    slices = slices_of(rows)
    if not slices:
        return None
    heights = (_height(slices, narrow=False), _height(slices, narrow=True))
    return picture("share", LABEL, lambda c: _draw(c, slices), heights=heights, tips=_tips(slices))


def share_file(rows: Sequence[Row]) -> str:
    """As a file of its own."""
    slices = slices_of(rows)
    return alone(LABEL, lambda c: _draw(c, slices), height=_height(slices, narrow=False), tips=_tips(slices))


def _tips(slices: Sequence[Slice]) -> list[str]:
    after = sum(s.after_s for s in slices)
    return [
        f"{s.words}\n" + f"{s.name}\n" * (s.words != s.name)
        + f"before {format_seconds(s.before_s)}, {format_share(s.share)}\n"
        f"after {format_seconds(s.after_s)}, {format_share(s.after_s / after)}\n"
        f"{format_speedup(s.before_s, s.after_s)} as fast"
        for s in slices
    ]  # fmt: skip


_LIST = {False: 232, True: 218}  # where the list begins, by `narrow`
_ROW = {False: 24, True: 39}


def _height(slices: Sequence[Slice], *, narrow: bool) -> float:
    return _LIST[narrow] + _ROW[narrow] * len(slices) + 4


def _draw(canvas: Canvas, slices: Sequence[Slice]) -> None:
    before, after = sum(s.before_s for s in slices), sum(s.after_s for s in slices)
    left, right = (0, NARROW) if canvas.narrow else (70, WIDE - 4)
    x = Axis(0.0, max(before, after), left, right)
    top, bottom, thick = (24, 116, 44) if canvas.narrow else (10, 110, 48)
    for value in x.ticks(4 if canvas.narrow else 8):
        canvas.line(x(value), top, x(value), bottom + thick + 5)
        look = "soft small " + ("m" if left + 12 < x(value) < right - 12 else "e" if x(value) > left + 12 else "")
        canvas.text(x(value), bottom + thick + (40 if canvas.narrow else 20), short_seconds(value), look)
    gained = f"after {format_seconds(after)}, {format_speedup(before, after)} as fast"
    if canvas.narrow:
        canvas.text(0, top - 8, f"before {format_seconds(before)}", "b")
        canvas.text(0, bottom + thick + 17, gained, "b")
    else:
        for y, name, total in ((top, "before", before), (bottom, "after", after)):
            canvas.text(0, y + thick / 2 - 3, name, "b")
            canvas.text(0, y + thick / 2 + 14, format_seconds(total))
    above = below = 0.0
    for i, s in enumerate(slices):
        a, b = x(above), x(above + s.before_s)
        c, d = x(below), x(below + s.after_s)
        corners = ((a, top + thick), (b, top + thick), (d, bottom), (c, bottom))
        canvas.add("polygon", f"{s.look} f", tip=i, points=" ".join(f"{px:.1f},{py:.1f}" for px, py in corners))
        for begin, end, y, share in ((a, b, top, s.share), (c, d, bottom, s.after_s / after)):
            gap = 1 if end - begin > 3 else 0  # a thin line between neighbours
            canvas.add("rect", s.look, tip=i, x=begin, y=y, width=max(end - begin - gap, 0.3), height=thick)
            if end - begin > 38:
                words = [f"{format_share(share)} {', '.join(s.words.split(', ')[:n])}" for n in (4, 3, 2, 1)]
                room = (end - begin - 12) / 7.2
                shown = next((text for text in words if len(text) <= room), format_share(share))
                canvas.text(begin + 6, y + thick / 2 + 4, shown, "on")
        above += s.before_s
        below += s.after_s
    _list(canvas, slices)


def _list(canvas: Canvas, slices: Sequence[Slice]) -> None:
    y = _LIST[canvas.narrow]
    columns = ((560, "share"), (660, "before"), (760, "after"), (852, "speed-up"), (WIDE - 4, "saved"))
    if not canvas.narrow:
        canvas.text(24, y - 25, "kernel, with all its calls", "soft small")
        for at, title in columns:
            canvas.text(at, y - 25, title, "soft small e")
    for i, s in enumerate(slices):
        at = y + i * _ROW[canvas.narrow]
        canvas.add("rect", s.look, tip=i, x=0, y=at - 11, width=14, height=14, rx=3)
        saved, fast = s.before_s - s.after_s, format_speedup(s.before_s, s.after_s)
        if canvas.narrow:
            canvas.text(22, at, cut(s.words, 41))
            times = f"{format_share(s.share)} · {format_seconds(s.before_s)} → {format_seconds(s.after_s)}"
            canvas.text(22, at + 16, times, "soft")
            canvas.text(NARROW, at + 16, fast, "e good" if saved > 0 else "e soft")
            continue
        canvas.text(24, at, cut(s.words, 62))
        gain = format_seconds(saved) if saved > 0 else "–"
        cells = (format_share(s.share), format_seconds(s.before_s), format_seconds(s.after_s), fast, gain)
        for (place, title), cell in zip(columns, cells, strict=True):
            look = "e good" if saved > 0 and title in ("speed-up", "saved") else "e"
            canvas.text(place, at, cell, look)
