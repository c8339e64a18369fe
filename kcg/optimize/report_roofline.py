"""The roofline picture: how fast each kernel computes, before and after, against what the target could do.

Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009. Intensity is a kernel's arithmetic over its least
traffic, which no schedule changes: a better schedule moves a kernel straight up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kcg.optimize.console import format_seconds
from kcg.optimize.report_rows import Row
from kcg.optimize.report_svg import WIDE, Axis, Canvas, Picture, alone, grid, picture, short_count
from kcg.optimize.report_text import drawable, format_count, format_rate, format_schedule, format_share
from kcg.types import Finalist, Target

LABEL = "Roofline: operations per byte against operations per second of each kernel, before and after"

TENSOR_16_BIT = {"sm_80": 2048, "sm_86": 1024, "sm_89": 1024, "sm_90": 4096}
"""Dense operations of one multiprocessor in a cycle on 16-bit inputs (NVIDIA's architecture white papers). The loose
bound of `kcg.measure.limits` is that of the fastest type; here it is that of bf16 and f16."""

PLAIN_32_BIT = {"sm_80": 128, "sm_86": 256, "sm_89": 256, "sm_90": 256}
"""The same without tensor cores, float32."""


@dataclass(frozen=True)
class Roofs:
    """What a target could do at most; `told` is False where it is only the fastest that was seen in this run."""

    bytes_s: float
    peak: float  # operations a second
    plain: float | None = None  # without tensor cores
    told: bool = True
    clock_mhz: float = 0.0

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


def roofs_of(target: Target, points: Sequence[Point]) -> Roofs:
    """The roofs of the target as the hardware tells them, else the fastest of `points`, of which there must be one."""
    cycles_s = target.cores * (target.clock_limit_mhz or 0.0) * 1e6
    if target.arch in TENSOR_16_BIT and drawable(target.bandwidth_bytes_s or 0.0, cycles_s):
        peak, plain = cycles_s * TENSOR_16_BIT[target.arch], cycles_s * PLAIN_32_BIT[target.arch]
        return Roofs(target.bandwidth_bytes_s or 0.0, peak, plain, clock_mhz=target.clock_limit_mhz or 0.0)
    return Roofs(max(p.after / p.intensity for p in points), max(p.after for p in points), told=False)


def roofline_picture(rows: Sequence[Row], target: Target) -> Picture | None:
    """For the page; None where no kernel computes anything."""
    points = points_of(rows)
    if not points:
        return None
    roofs = roofs_of(target, points)
    return picture(
        "roofline", LABEL, lambda c: _draw(c, points, roofs, c.height), heights=(520, 400), tips=_tips(points, roofs),
        words=_words(rows, points, roofs),
    )  # fmt: skip


def roofline_file(rows: Sequence[Row], target: Target) -> str:
    """As a file of its own. There must be a kernel that computes something."""
    points = points_of(rows)
    roofs = roofs_of(target, points)
    return alone(LABEL, lambda c: _draw(c, points, roofs, c.height), height=520, tips=_tips(points, roofs))


def _words(rows: Sequence[Row], points: Sequence[Point], roofs: Roofs) -> list[str]:
    words = []
    after = sum(row.region.after_s for row in rows if row.timed)
    if roofs.told:
        drawn_s = sum(p.row.region.after_s for p in points)
        at_roof_s = sum(p.row.region.calls * p.row.region.operations / roofs.at(p.intensity) for p in points)
        words.append(
            f"At the roof these kernels would take {format_seconds(at_roof_s)}; they take {format_seconds(drawn_s)}, "
            f"so on average they run at {format_share(at_roof_s / drawn_s)} of what the hardware could do."
        )
    else:
        words.append(
            "This device does not tell its bandwidth and peak: the dashed roofs are the fastest seen in this run."
        )
    silent = [row for row in rows if row.timed and row.region.operations <= 0]
    if silent:
        share = sum(row.region.after_s for row in silent) / after
        words.append(f"{len(silent)} kernels only move data and are not drawn ({format_share(share)} of the time).")
    return words


def _tips(points: Sequence[Point], roofs: Roofs) -> list[str]:
    found = []
    for p in points:
        r = p.row.region
        lines = [p.row.words, p.row.label, f"{short_count(p.intensity)} operations per byte"]
        for title, finalist in p.row.sides:
            lines.append(f"{title.lower()}: {_achieved(r.operations, finalist, roofs.at(p.intensity), roofs.told)}")
            lines.append(f"  {format_schedule(finalist.schedule)}")
        found.append("\n".join(lines))
    return found


def _achieved(operations: float, finalist: Finalist, roof: float, told: bool) -> str:
    share = f", {format_share(operations / finalist.cold_s / roof)} of the roof" if told else ""
    return f"{format_rate(operations, finalist.cold_s)}FLOP/s, {format_seconds(finalist.cold_s)}{share}"


def _draw(canvas: Canvas, points: Sequence[Point], roofs: Roofs, height: float) -> None:
    seen = [p.intensity for p in points]
    ridge = roofs.peak / roofs.bytes_s
    left, right = (48, canvas.width - 6) if canvas.narrow else (62, WIDE - 8)
    x = Axis(min(seen) / 2, max(*seen, ridge * 2 if roofs.told else 0) * 2, left, right, log=True)
    low = min(min(p.before, p.after) for p in points) / 2
    y = Axis(low, max(roofs.peak, *(max(p.before, p.after) for p in points)) * 2, height - 48, 26, log=True)
    grid(
        canvas, x, y, tick_x=short_count, tick_y=format_count, title_x="operations per byte of memory traffic",
        title_y="FLOP/s", most=(4, 5) if canvas.narrow else (8, 8),
    )  # fmt: skip
    _roofs(canvas, x, y, roofs, ridge)
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
    _legend(canvas, y)


def _roofs(canvas: Canvas, x: Axis, y: Axis, roofs: Roofs, ridge: float) -> None:
    look = "roof" if roofs.told else "roof dash"
    start = max(x.low, y.low / roofs.bytes_s)
    bend = min(max(ridge, start), x.high)
    canvas.path([(x(start), y(roofs.at(start))), (x(bend), y(roofs.at(bend))), (x(x.high), y(roofs.at(x.high)))], look)
    slope = math.degrees(math.atan2(y(y.low * 10) - y(y.low), x(x.low * 10) - x(x.low)))
    names = (f"{format_count(roofs.bytes_s)}B/s", f"{format_count(roofs.peak)}FLOP/s")
    if roofs.told:
        memory, peak = f"memory {names[0]}", f"tensor cores {names[1]}"
        peak += "" if canvas.narrow else f", 16-bit inputs at {roofs.clock_mhz:g} MHz"
    else:
        memory, peak = (f"{name} was the most seen" for name in names)
    # along the slope, a third of the way up, and above it
    middle = math.exp((2 * math.log(start) + math.log(bend)) / 3)
    at, high = x(middle), y(roofs.at(middle)) - 8
    canvas.text(at, high, memory, "soft m", turned=slope)
    canvas.text(x(x.high), y(roofs.peak) - 7, peak, "soft e")
    if roofs.plain is not None and roofs.plain > y.low:
        begin = max(roofs.plain / roofs.bytes_s, x.low)
        canvas.path([(x(begin), y(roofs.plain)), (x(x.high), y(roofs.plain))], "mute dash")
        plain = f"float32{'' if canvas.narrow else ' without them'} {format_count(roofs.plain)}FLOP/s"
        canvas.text(x(x.high), y(roofs.plain) - 6, plain, "soft small e")


def _legend(canvas: Canvas, y: Axis) -> None:
    top = y.end - 16
    at = canvas.width - (140 if canvas.narrow else 330)
    canvas.add("circle", "old", cx=at, cy=top, r=5)
    canvas.text(at + 11, top + 4, "before", "soft small")
    canvas.line(at + 62, top + 5, at + 62, top - 5, "move")
    canvas.add("circle", "new", cx=at + 74, cy=top, r=5)
    canvas.text(at + 85, top + 4, "after" if canvas.narrow else "after; area: time of all calls", "soft small")
