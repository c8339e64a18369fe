"""The pictures of the search: the best total as it went on, and what was expected of each measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kcg.report.counts import how_many, nouns_of
from kcg.report.formats import (
    cut,
    format_count,
    format_factor,
    format_rate,
    format_schedule,
    format_seconds,
    format_share,
    format_speedup,
)
from kcg.report.prediction_quality import expected_s, measured_s, timed_expectations
from kcg.report.svg import (
    COLORS,
    NARROW,
    WIDE,
    Axis,
    Canvas,
    Picture,
    Row,
    alone,
    drawable,
    grid,
    picture,
    short_count,
    short_seconds,
)
from kcg.types import Expectation, Finalist, ProgressPoint, Region, RegionResult, Result

# ---- The picture of where the time goes: two bars of all kernels on one scale of time, before above and after below.

SHARE_LABEL = "Share of time per kernel: one bar before and one after, on the same scale; a list of the kernels below"


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
        name = f"{len(rest)} more {nouns_of(row.region.region for row in rest)}"
        found.append(Slice(name, name, before, after, sum(row.share for row in rest), "krest"))
    return found


def share_picture(rows: Sequence[Row]) -> Picture | None:
    """For the page; None where no kernel has a time."""
    slices = slices_of(rows)
    if not slices:
        return None
    heights = (_height(slices, narrow=False), _height(slices, narrow=True))
    return picture("share", SHARE_LABEL, lambda c: _draw_shares(c, slices), heights=heights, tips=_share_tips(slices))


def share_file(rows: Sequence[Row]) -> str:
    """As a file of its own."""
    slices = slices_of(rows)
    return alone(
        SHARE_LABEL, lambda c: _draw_shares(c, slices), height=_height(slices, narrow=False), tips=_share_tips(slices)
    )


def _share_tips(slices: Sequence[Slice]) -> list[str]:
    after = sum(s.after_s for s in slices)
    return [
        f"{s.words}\n"
        + f"{s.name}\n" * (s.words != s.name)
        + f"before {format_seconds(s.before_s)}, {format_share(s.share)}\n"
        f"after {format_seconds(s.after_s)}, {format_share(s.after_s / after)}\n"
        f"{format_speedup(s.before_s, s.after_s)} as fast"
        for s in slices
    ]


_LIST = {False: 232, True: 218}  # where the list begins, by `narrow`
_ROW = {False: 24, True: 39}


def _height(slices: Sequence[Slice], *, narrow: bool) -> float:
    return _LIST[narrow] + _ROW[narrow] * len(slices) + 4


def _draw_shares(canvas: Canvas, slices: Sequence[Slice]) -> None:
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
                space = (end - begin - 12) / 7.2
                shown = next((text for text in words if len(text) <= space), format_share(share))
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


# ---- The roofline picture: how fast each kernel computes, before and after, against what the target could do.
#
# Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009. Intensity is a kernel's arithmetic over its least
# traffic, which no schedule changes: a better schedule moves a kernel straight up.

ROOFLINE_LABEL = "Roofline: operations per byte against operations per second of each kernel, before and after"

TENSOR_16_BIT = {"sm_80": 2048, "sm_86": 1024, "sm_89": 1024, "sm_90": 4096}
"""Dense operations of one multiprocessor in a cycle on 16-bit inputs (NVIDIA's architecture white papers). The loose
bound of `kcg.measure.service` is that of the fastest type; here it is that of bf16 and f16."""

PLAIN_32_BIT = {"sm_80": 128, "sm_86": 256, "sm_89": 256, "sm_90": 256}
"""The same without tensor cores, float32."""

SHORT_TYPES = ("bfloat16", "float16", "float8_e4m3", "float8_e5m2")
"""Types that tensor cores take, as an AST names them."""


@dataclass(frozen=True)
class Roofs:
    """What a target could do at most, as its hardware says it."""

    bytes_s: float
    peak: float  # operations a second on 16-bit inputs
    plain: float  # without tensor cores
    clock_mhz: float
    wide: float  # of kernels whose values are all wider than 16 bits: `plain`, or half the peak where tf32 is allowed

    def peak_of(self, region: Region) -> float:
        """Operations a second that a region could do: tensor cores take no float32."""
        narrow = any(f'"{name}"' in kernel.ast_json for kernel in region.kernels for name in SHORT_TYPES)
        return self.peak if narrow else self.wide

    def least_s(self, row: RegionResult) -> float:
        """What one call takes at the roof: its least traffic or its arithmetic, whichever takes longer."""
        return max(row.bytes / self.bytes_s, row.operations / self.peak_of(row.region))

    def share(self, row: RegionResult, cold_s: float) -> float:
        """How much of the roof a call that takes `cold_s` reaches; NaN where either is not known."""
        least_s = self.least_s(row)
        return least_s / cold_s if drawable(least_s, cold_s) else math.nan

    def at(self, intensity: float) -> float:
        return min(self.peak, self.bytes_s * intensity)


@dataclass(frozen=True)
class Point:
    """One kernel before and after."""

    row: Row
    intensity: float  # operations per byte
    before: float  # operations a second
    after: float


def points_of(rows: Sequence[Row]) -> list[Point]:
    """The kernels that compute something and have a time."""
    points = [
        Point(row, r.operations / r.bytes, r.operations / r.baseline.cold_s, r.operations / r.chosen.cold_s)
        for row in rows
        if drawable((r := row.region).operations, r.bytes) and row.timed
    ]
    return [p for p in points if drawable(p.intensity, p.before, p.after)]


def roofs_of(result: Result) -> Roofs | None:
    """The roofs of the target; None where the hardware does not say them, as no CPU does. The fastest that was seen is
    no roof: it is what these kernels reach, and would say of the best of them that nothing is left to gain."""
    target = result.target
    cycles_s = target.cores * (target.clock_limit_mhz or 0.0) * 1e6
    if target.arch not in TENSOR_16_BIT or not drawable(target.bandwidth_bytes_s or 0.0, cycles_s):
        return None
    peak, plain = cycles_s * TENSOR_16_BIT[target.arch], cycles_s * PLAIN_32_BIT[target.arch]
    return Roofs(
        target.bandwidth_bytes_s or 0.0,
        peak,
        plain,
        target.clock_limit_mhz or 0.0,
        wide=peak / 2 if result.allow_tf32 else plain,
    )


def roofline_picture(rows: Sequence[Row], roofs: Roofs | None) -> Picture | None:
    """For the page; None where no kernel computes anything."""
    points = points_of(rows)
    if not points:
        return None
    return picture(
        "roofline",
        ROOFLINE_LABEL,
        lambda c: _draw_roofline(c, points, roofs, c.height),
        heights=(520, 400),
        tips=_roofline_tips(points, roofs),
        words=_words(rows, points, roofs),
    )


def roofline_file(rows: Sequence[Row], roofs: Roofs | None) -> str:
    """As a file of its own. There must be a kernel that computes something."""
    points = points_of(rows)
    return alone(
        ROOFLINE_LABEL,
        lambda c: _draw_roofline(c, points, roofs, c.height),
        height=520,
        tips=_roofline_tips(points, roofs),
    )


def _words(rows: Sequence[Row], points: Sequence[Point], roofs: Roofs | None) -> list[str]:
    words = []
    timed = [row for row in rows if row.timed]
    after_s = sum(row.region.after_s for row in timed)
    if roofs is None:
        words.append(
            "No roof is drawn, and no kernel has a share of one: this device does not say its memory's bandwidth and "
            "its peak, and this run did not measure them."
        )
    else:
        at_roof_s = sum(row.region.calls * roofs.least_s(row.region) for row in timed)
        words.append(
            f"At the roof these kernels would take {format_seconds(at_roof_s)}; they take {format_seconds(after_s)}, "
            f"so together they run at {format_share(at_roof_s / after_s)} of what the hardware could do. The roof "
            "counts nothing for starting a kernel, so short ones stay far below it."
        )
    silent = [row for row in timed if row.region.operations <= 0]
    if silent:
        share = sum(row.region.after_s for row in silent) / after_s
        words.append(
            f"{how_many(row.region.region for row in silent)} only move data and are not drawn "
            f"({format_share(share)} of the time)."
        )
    return words


def _roofline_tips(points: Sequence[Point], roofs: Roofs | None) -> list[str]:
    found = []
    for p in points:
        lines = [p.row.words, p.row.label, f"{short_count(p.intensity)} operations per byte"]
        for title, finalist in p.row.sides:
            lines.append(f"{title.lower()}: {_achieved(p.row.region, finalist, roofs)}")
            lines.append(f"  {format_schedule(finalist.schedule)}")
        found.append("\n".join(lines))
    return found


def _achieved(row: RegionResult, finalist: Finalist, roofs: Roofs | None) -> str:
    share = "" if roofs is None else f", {format_share(roofs.share(row, finalist.cold_s))} of the roof"
    return f"{format_rate(row.operations, finalist.cold_s)}FLOP/s, {format_seconds(finalist.cold_s)}{share}"


def _draw_roofline(canvas: Canvas, points: Sequence[Point], roofs: Roofs | None, height: float) -> None:
    seen = [p.intensity for p in points]
    left, right = (48, canvas.width - 6) if canvas.narrow else (62, WIDE - 8)
    most_x, most_y = max(seen), max(max(p.before, p.after) for p in points)
    if roofs is not None:
        most_x, most_y = max(most_x, roofs.peak / roofs.bytes_s * 2), max(most_y, roofs.peak)
    x = Axis(min(seen) / 2, most_x * 2, left, right, log=True)
    y = Axis(min(min(p.before, p.after) for p in points) / 2, most_y * 2, height - 48, 26, log=True)
    grid(
        canvas,
        x,
        y,
        tick_x=short_count,
        tick_y=format_count,
        title_x="operations per byte of memory traffic",
        title_y="FLOP/s",
        most=(4, 5) if canvas.narrow else (8, 8),
    )
    if roofs is not None:
        _roofs(canvas, x, y, roofs)
    total = sum(p.row.region.before_s for p in points)
    scale = 9.0 if canvas.narrow else 13.0
    for i, p in sorted(enumerate(points), key=lambda pair: -pair[1].row.region.before_s):
        radius = 2.6 + scale * math.sqrt(p.row.region.before_s / total)
        at, old, new = x(p.intensity), y(p.before), y(p.after)
        if p.row.changed:
            canvas.line(at, old, at, new, "move")
        canvas.add("circle", "old", tip=i, cx=at, cy=old, r=radius)
        if p.row.changed:
            canvas.add("circle", "new", tip=i, cx=at, cy=new, r=max(radius * math.sqrt(p.before / p.after), 2.6))
    if roofs is not None:
        _name_roofs(canvas, x, y, roofs)
    _legend(canvas, y)


def _roofs(canvas: Canvas, x: Axis, y: Axis, roofs: Roofs) -> None:
    start, bend = _ends(x, y, roofs)
    canvas.path(
        [(x(start), y(roofs.at(start))), (x(bend), y(roofs.at(bend))), (x(x.high), y(roofs.at(x.high)))], "roof"
    )
    if roofs.plain > y.low:
        canvas.path(
            [(x(max(roofs.plain / roofs.bytes_s, x.low)), y(roofs.plain)), (x(x.high), y(roofs.plain))], "mute dash"
        )


def _ends(x: Axis, y: Axis, roofs: Roofs) -> tuple[float, float]:
    """The intensities at which the slope begins and ends within the picture."""
    start = max(x.low, y.low / roofs.bytes_s)
    return start, min(max(roofs.peak / roofs.bytes_s, start), x.high)


def _name_roofs(canvas: Canvas, x: Axis, y: Axis, roofs: Roofs) -> None:
    start, bend = _ends(x, y, roofs)
    slope = math.degrees(math.atan2(y(y.low * 10) - y(y.low), x(x.low * 10) - x(x.low)))
    middle = math.exp((2 * math.log(start) + math.log(bend)) / 3)  # a third of the way up
    at, high = x(middle), y(roofs.at(middle)) - 8
    canvas.text(at, high, f"memory {format_count(roofs.bytes_s)}B/s", "soft m", turned=slope)
    peak = f"tensor cores {format_count(roofs.peak)}FLOP/s"
    peak += "" if canvas.narrow else f", 16-bit inputs at {roofs.clock_mhz:g} MHz"
    canvas.text(x(x.high), y(roofs.peak) - 7, peak, "soft e")
    if roofs.plain > y.low:
        plain = f"float32{'' if canvas.narrow else ' without them'} {format_count(roofs.plain)}FLOP/s"
        begin = x(max(roofs.plain / roofs.bytes_s, x.low)) + 8  # where the fewest marks are
        canvas.text(min(begin, canvas.width - 7 * len(plain)), y(roofs.plain) + 16, plain, "soft small")


def _legend(canvas: Canvas, y: Axis) -> None:
    top = y.end - 16
    at = canvas.width - (140 if canvas.narrow else 330)
    canvas.add("circle", "old", cx=at, cy=top, r=5)
    canvas.text(at + 11, top + 4, "before", "soft small")
    canvas.line(at + 62, top + 5, at + 62, top - 5, "move")
    canvas.add("circle", "new", cx=at + 74, cy=top, r=5)
    canvas.text(at + 85, top + 4, "after" if canvas.narrow else "after; area: time of all calls", "soft small")


PROGRESS = "Best total of the workload over the seconds of the search, and over its measurements"
EXPECTED = "Expected against measured time of every measurement of the search, both on logarithmic axes"

MOST_POINTS = 2000
"""More measurements are thinned evenly in the picture; the words count them all."""

# progress


def progress_picture(result: Result) -> Picture | None:
    """None where there is nothing to draw."""
    points = [p for p in result.progress if math.isfinite(p.elapsed_s) and math.isfinite(p.total_s)]
    if len(points) < 2:
        return None
    kept = steps_of(points)
    start, end = kept[0].total_s, kept[-1].total_s
    tips = [
        f"after {format_seconds(p.elapsed_s)} and {p.measurements:,} measurements:\n{format_seconds(p.total_s)}, "
        f"{format_speedup(start, p.total_s)} as fast as at the start"
        for p in kept
    ]
    half = next(p for p in kept if p.total_s <= (start + end) / 2)
    words = [
        f"Half of what the search gained was there after {format_seconds(half.elapsed_s)} and "
        f"{half.measurements:,} measurements."
    ] * (end < start)
    if end < start:
        last = kept[-2] if len(kept) > 2 and kept[-1].total_s == kept[-2].total_s else kept[-1]
        words.append(f"The last improvement came after {format_seconds(last.elapsed_s)}.")
    return picture(
        "progress", PROGRESS, lambda c: _draw_progress(c, kept, result), heights=(330, 560), tips=tips, words=words
    )


def steps_of(points: Sequence[ProgressPoint]) -> list[ProgressPoint]:
    """The first point, each that is better than all before, and the last."""
    kept = [points[0]]
    for p in points[1:]:
        if p.total_s < kept[-1].total_s:
            kept.append(p)
    return kept if kept[-1] is points[-1] else [*kept, points[-1]]


def _draw_progress(canvas: Canvas, points: Sequence[ProgressPoint], result: Result) -> None:
    before, after = result.total_before_s, result.total_after_s
    most = max(p.total_s for p in points)
    high = 1.08 * (max(most, before) if math.isfinite(before) else most)
    panels = (
        ([p.elapsed_s for p in points], "seconds since the start"),
        ([float(p.measurements) for p in points], "measurements"),
    )
    for i, (values, title) in enumerate(panels):
        if canvas.narrow:
            left, right, top = 56, canvas.width - 6, 28 + 280 * i
        else:
            left, right, top = 62 + 490 * i, 62 + 490 * i + 400, 28
        bottom = top + (196 if canvas.narrow else 250)
        x, y = Axis(0, max(values[-1], 1e-9), left, right), Axis(0, high, bottom, top)
        grid(canvas, x, y, tick_x=lambda v: f"{v:g}", tick_y=short_seconds, title_x=title, title_y="", most=(5, 5))
        canvas.text(left - 46, top - 12, "best total, as the search measured it", "soft")
        for total, name, look in ((before, "before", "mute dot"), (after, "after, verified", "mute dash")):
            if math.isfinite(total) and 0 < total <= high:
                canvas.path([(left, y(total)), (right, y(total))], look)
                last = points[-1].total_s
                below = y(min(total, last)) + 17  # below the curve, and above it where the axis is near
                after_at = below if below < bottom - 3 else y(max(total, last)) - 7
                canvas.text(
                    right - 3,
                    y(total) - 6 if name == "before" else after_at,
                    f"{name} {format_seconds(total)}",
                    "soft small e",
                )
        path = [(x(values[0]), y(points[0].total_s))]
        for value, p in zip(values[1:], points[1:], strict=True):
            path += [(x(value), path[-1][1]), (x(value), y(p.total_s))]
        canvas.path(path, "curve")
        for tip, (value, p) in enumerate(zip(values, points, strict=True)):
            canvas.add("circle", "step", tip=tip, cx=x(value), cy=y(p.total_s), r=3.2 if len(points) < 60 else 2)


# expected against measured


def expected_picture(result: Result, rows: Sequence[Row]) -> Picture | None:
    """None where nothing was expected, or no measurement succeeded."""
    timed = timed_expectations(result)
    if not timed:
        return None
    shown = timed[:: math.ceil(len(timed) / MOST_POINTS)]
    names = {row.number: row for row in rows}
    order = {row.number: place for place, row in enumerate(rows)}
    shown.sort(key=lambda e: (order[e.region], e.elapsed_s))  # arrow keys go through a kernel before the next
    tips = [_tip(e, names[e.region]) for e in shown]
    words = [f"{len(shown):,} of {len(timed):,} measurements are drawn."] if len(shown) < len(timed) else []
    return picture("expected", EXPECTED, lambda c: _draw_expected(c, shown), heights=(500, 380), tips=tips, words=words)


def _tip(seen: Expectation, row: Row) -> str:
    lines = [row.words, format_schedule(seen.schedule)]
    if seen.corrected_s is not None:
        lines.append(f"predicted {format_seconds(seen.predicted_s)}, corrected {format_seconds(seen.corrected_s)}")
    else:
        lines.append(f"predicted {format_seconds(seen.predicted_s)}")
    ratio = measured_s(seen) / expected_s(seen)
    lines.append(f"measured {format_seconds(seen.measured_s)}, {format_factor(ratio)} what was expected")
    lines.append(f"after {format_seconds(seen.elapsed_s)}")
    return "\n".join(lines)


def _draw_expected(canvas: Canvas, shown: Sequence[Expectation]) -> None:
    values = [v for e in shown for v in (expected_s(e), measured_s(e))]
    low, high = min(values) / 1.5, max(values) * 1.5
    left, right = (56, canvas.width - 6) if canvas.narrow else (62, WIDE - 8)
    x, y = Axis(low, high, left, right, log=True), Axis(low, high, canvas.height - 48, 26, log=True)
    grid(
        canvas,
        x,
        y,
        tick_x=short_seconds,
        tick_y=short_seconds,
        title_x="expected when it was proposed",
        title_y="measured",
        most=(4, 6) if canvas.narrow else (8, 8),
    )
    canvas.path([(x(low), y(low)), (x(high), y(high))], "roof")
    for factor in (2.0, 0.5):
        a, b = max(low, low / factor), min(high, high / factor)
        canvas.path([(x(a), y(a * factor)), (x(b), y(b * factor))], "mute dot")
    canvas.text(right, 14, "line: as expected; dotted: a factor of 2", "soft small e")
    for i, e in enumerate(shown):
        canvas.add("circle", "seen", tip=i, cx=x(expected_s(e)), cy=y(measured_s(e)), r=3.4)
