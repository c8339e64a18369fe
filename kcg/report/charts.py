"""The pictures of a report: where the time goes, the roofline, how the search went, and what was expected of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from kcg.pictures import COLORS, NARROW, WIDE, Axis, Panel, Picture, Sheet, alone, drawable, picture
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
    short_count,
    short_seconds,
)
from kcg.report.prediction_quality import (
    OPTS,
    OTHERS,
    REGIONS,
    TILES,
    expected_s,
    measured_s,
    sort_of,
    timed_expectations,
)
from kcg.report.rows import Row, inside_of
from kcg.report.times import is_compared
from kcg.types import Expectation, Finalist, Region, RegionResult, Result

# ---- The picture of where the time goes: two bars of all kernels on one scale of time, before above and after below.

SHARE_LABEL = "Share of time per kernel: one bar before and one after, on the same scale; a list of the kernels below"


@dataclass(frozen=True)
class Slice:
    """One kernel of both bars, or all those that have no colour of their own. Where none was compared, its time after
    is that of before, and is not said."""

    words: str
    name: str
    before_s: float
    after_s: float
    share: float
    look: str
    outcome: str  # of what was not compared; else empty


def slices_of(rows: Sequence[Row]) -> list[Slice]:
    """The kernels that take most, before or after, in the order of before; the others together."""
    timed = [row for row in rows if row.timed]
    by_weight = sorted(timed, key=lambda row: -max(row.region.before_s, row.region.after_s))
    most = COLORS if len(timed) > COLORS + 1 else len(timed)
    own = {row.number for row in by_weight[:most]}
    found = [
        Slice(
            row.words, row.label, row.region.before_s, row.region.after_s, row.share, f"k{i % COLORS}", _outcome([row])
        )
        for i, row in enumerate(row for row in timed if row.number in own)
    ]
    if rest := [row for row in timed if row.number not in own]:
        before, after = sum(row.region.before_s for row in rest), sum(row.region.after_s for row in rest)
        name = f"{len(rest)} more {nouns_of(row.region.region for row in rest)}"
        found.append(Slice(name, name, before, after, sum(row.share for row in rest), "krest", _outcome(rest)))
    return found


def _outcome(rows: Sequence[Row]) -> str:
    """What became of kernels of which none was compared; empty where one was."""
    if any(is_compared(row.region) for row in rows):
        return ""
    outcomes = {row.region.outcome for row in rows}
    return outcomes.pop() if len(outcomes) == 1 else "not compared"


def _has_after(slices: Sequence[Slice]) -> bool:
    """Whether there is a bar after: nothing differs from before where nothing improved."""
    return any(s.after_s != s.before_s for s in slices)


def share_picture(rows: Sequence[Row]) -> Picture | None:
    """For the page; None where no kernel has a time."""
    slices = slices_of(rows)
    if not slices:
        return None
    heights = (_height(slices, narrow=False), _height(slices, narrow=True))
    return picture(
        "share", SHARE_LABEL, lambda sheet: _draw_shares(sheet, slices), heights=heights, tips=_share_tips(slices)
    )


def share_file(rows: Sequence[Row]) -> str:
    """As a file of its own."""
    slices = slices_of(rows)
    return alone(
        SHARE_LABEL,
        lambda sheet: _draw_shares(sheet, slices),
        height=_height(slices, narrow=False),
        tips=_share_tips(slices),
    )


def _share_tips(slices: Sequence[Slice]) -> list[str]:
    after = sum(s.after_s for s in slices)
    return [
        f"{s.words}\n"
        + f"{s.name}\n" * (s.words != s.name)
        + (
            f"{format_seconds(s.before_s)}, {format_share(s.share)}\n{s.outcome}"
            if s.outcome
            else f"before {format_seconds(s.before_s)}, {format_share(s.share)}\n"
            f"after {format_seconds(s.after_s)}, {format_share(s.after_s / after)}\n"
            f"{format_speedup(s.before_s, s.after_s)} as fast"
        )
        for s in slices
    ]


_LIST = {False: 232, True: 218}  # where the list begins, by `narrow`
_SECOND = {False: 100, True: 92}  # how far below the first bar the second one begins
_ROW = {False: 24, True: 39}


def _height(slices: Sequence[Slice], *, narrow: bool) -> float:
    return _list_begins(slices, narrow=narrow) + _ROW[narrow] * len(slices) + 4


def _list_begins(slices: Sequence[Slice], *, narrow: bool) -> float:
    return _LIST[narrow] - (0 if _has_after(slices) else _SECOND[narrow])


def _draw_shares(sheet: Sheet, slices: Sequence[Slice]) -> None:
    before, after = sum(s.before_s for s in slices), sum(s.after_s for s in slices)
    left, right = (0, NARROW) if sheet.narrow else (70, WIDE - 4)
    both = _has_after(slices)
    top, thick = (24, 44) if sheet.narrow else (10, 48)
    second = top + both * _SECOND[sheet.narrow]
    end = second + thick + (22 if sheet.narrow else 5)
    x = Axis(0.0, max(before, after))
    bars = sheet.panel(x, Axis(end, top), left=left, top=top, right=right, bottom=end)  # downwards it is in pixels
    bars.frame(x=x.ticks(4 if sheet.narrow else 8, short_seconds), y=(), lines="x")
    gained = f"after {format_seconds(after)}, {format_speedup(before, after)} as fast"
    named = [(top, "before", before), (second, "after", after)] if both else [(top, "time", before)]
    if sheet.narrow:
        sheet.paper.text(0, top - 8, f"{named[0][1]} {format_seconds(before)}", "b")
        if both:
            sheet.paper.text(0, second + thick + 17, gained, "b")
    else:
        for y, name, total in named:
            sheet.paper.text(0, y + thick / 2 - 3, name, "b")
            sheet.paper.text(0, y + thick / 2 + 14, format_seconds(total))
    pixel = x.high / (right - left)
    a = c = 0.0
    for i, s in enumerate(slices):
        b, d = a + s.before_s, c + s.after_s
        if both:
            bars.shape([(a, top + thick), (b, top + thick), (d, second), (c, second)], f"{s.look} f", tip=i)
        for begin, close, y, share in ((a, b, top, s.share), (c, d, second, s.after_s / after))[: 1 + both]:
            width = (close - begin) / pixel
            gap = 1 if width > 3 else 0  # a thin line between neighbours
            bars.box((begin, begin + pixel * max(width - gap, 0.3)), (y, y + thick), s.look, tip=i)
            if width > 38:
                words = [f"{format_share(share)} {', '.join(s.words.split(', ')[:n])}" for n in (4, 3, 2, 1)]
                shown = next((text for text in words if len(text) <= (width - 12) / 7.2), format_share(share))
                bars.text(begin, y + thick / 2, shown, "on", by=(6, 4))
        a, c = b, d
    _list(sheet, slices)


def _list(sheet: Sheet, slices: Sequence[Slice]) -> None:
    y, paper = _list_begins(slices, narrow=sheet.narrow), sheet.paper
    columns = ((560, "share"), (660, "before"), (760, "after"), (852, "speed-up"), (WIDE - 4, "saved"))
    if not sheet.narrow:
        paper.text(24, y - 25, "kernel, with all its calls", "soft small")
        for place, title in columns:
            paper.text(place, y - 25, title, "soft small e")
    for i, s in enumerate(slices):
        at = y + i * _ROW[sheet.narrow]
        paper.box((0, 14), (at - 11, at + 3), s.look, tip=i)
        saved, fast = s.before_s - s.after_s, format_speedup(s.before_s, s.after_s)
        if sheet.narrow:
            paper.text(22, at, cut(s.words, 41))
            later = f", {s.outcome}" if s.outcome else f" → {format_seconds(s.after_s)}"
            paper.text(22, at + 16, f"{format_share(s.share)} · {format_seconds(s.before_s)}{later}", "soft")
            paper.text(NARROW, at + 16, "–" if s.outcome else fast, "e good" if saved > 0 else "e soft")
            continue
        paper.text(24, at, cut(s.words, 62))
        gain = format_seconds(saved) if saved > 0 else "–"
        known = (s.outcome, "–", "–") if s.outcome else (format_seconds(s.after_s), fast, gain)
        cells = (format_share(s.share), format_seconds(s.before_s), *known)
        for (place, title), cell in zip(columns, cells, strict=True):
            paper.text(place, at, cell, "e good" if saved > 0 and title in ("speed-up", "saved") else "e")


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
        lambda sheet: _draw_roofline(sheet, points, roofs),
        heights=(520, 400),
        tips=_roofline_tips(points, roofs),
        words=_words(rows, points, roofs),
    )


def roofline_file(rows: Sequence[Row], roofs: Roofs | None) -> str:
    """As a file of its own. There must be a kernel that computes something."""
    points = points_of(rows)
    return alone(
        ROOFLINE_LABEL,
        lambda sheet: _draw_roofline(sheet, points, roofs),
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


def _draw_roofline(sheet: Sheet, points: Sequence[Point], roofs: Roofs | None) -> None:
    seen = [p.intensity for p in points]
    most_x, most_y = max(seen), max(max(p.before, p.after) for p in points)
    if roofs is not None:
        most_x, most_y = max(most_x, roofs.peak / roofs.bytes_s * 2), max(most_y, roofs.peak)
    x = Axis(min(seen) / 2, most_x * 2, log=True)
    y = Axis(min(min(p.before, p.after) for p in points) / 2, most_y * 2, log=True)
    left, right = (48, NARROW - 6) if sheet.narrow else (62, WIDE - 8)
    panel = sheet.panel(x, y, left=left, top=26, right=right, bottom=sheet.height - 48)
    panel.frame(
        x=x.ticks(4 if sheet.narrow else 8, short_count),
        y=y.ticks(5 if sheet.narrow else 8, format_count),
        title_x="operations per byte of memory traffic",
        title_y="FLOP/s",
    )
    if roofs is not None:
        start, bend = _ends(panel, roofs)
        panel.line([(start, roofs.at(start)), (bend, roofs.at(bend)), (x.high, roofs.at(x.high))], "roof")
        if roofs.plain > y.low:
            panel.line([(max(roofs.plain / roofs.bytes_s, x.low), roofs.plain), (x.high, roofs.plain)], "mute dash")
    total = sum(p.row.region.before_s for p in points)
    scale = 9.0 if sheet.narrow else 13.0
    for i, p in sorted(enumerate(points), key=lambda pair: -pair[1].row.region.before_s):
        radius = 2.6 + scale * math.sqrt(p.row.region.before_s / total)
        old, new = (p.intensity, p.before), (p.intensity, p.after)
        if p.row.changed:
            panel.line([old, new], "move")
        panel.dots([old], "old", radius=radius, tip=i)
        if p.row.changed:
            panel.dots([new], "new", radius=max(radius * math.sqrt(p.before / p.after), 2.6), tip=i)
    if roofs is not None:
        _name_roofs(sheet, panel, roofs)
    _legend(sheet, panel)


def _ends(panel: Panel, roofs: Roofs) -> tuple[float, float]:
    """The intensities at which the slope begins and ends within the picture."""
    start = max(panel.x.low, panel.y.low / roofs.bytes_s)
    return start, min(max(roofs.peak / roofs.bytes_s, start), panel.x.high)


def _name_roofs(sheet: Sheet, panel: Panel, roofs: Roofs) -> None:
    start, bend = _ends(panel, roofs)
    (left, bottom), (right, top) = (
        panel.at(start, roofs.bytes_s * start),
        panel.at(2 * start, roofs.bytes_s * 2 * start),
    )
    slope = math.degrees(math.atan2(bottom - top, right - left))
    middle = math.exp((2 * math.log(start) + math.log(bend)) / 3)  # a third of the way up
    panel.text(middle, roofs.at(middle), f"memory {format_count(roofs.bytes_s)}B/s", "soft m", by=(0, -8), turned=slope)
    peak = f"tensor cores {format_count(roofs.peak)}FLOP/s"
    peak += "" if sheet.narrow else f", 16-bit inputs at {roofs.clock_mhz:g} MHz"
    panel.text(panel.x.high, roofs.peak, peak, "soft e", by=(0, -7))
    if roofs.plain > panel.y.low:
        plain = f"float32{'' if sheet.narrow else ' without them'} {format_count(roofs.plain)}FLOP/s"
        across, down = panel.at(max(roofs.plain / roofs.bytes_s, panel.x.low), roofs.plain)
        # where the fewest marks are
        sheet.paper.text(min(across + 8, sheet.width - 7 * len(plain)), down + 16, plain, "soft small")


def _legend(sheet: Sheet, panel: Panel) -> None:
    paper, y = sheet.paper, panel.top - 16
    x = sheet.width - (140 if sheet.narrow else 330)
    paper.dots([(x, y)], "old", radius=5)
    paper.text(x + 11, y + 4, "before", "soft small")
    paper.line([(x + 62, y + 5), (x + 62, y - 5)], "move")
    paper.dots([(x + 74, y)], "new", radius=5)
    paper.text(x + 85, y + 4, "after" if sheet.narrow else "after; area: time of all calls", "soft small")


EXPECTED = "Expected against measured time of every measurement of the search, both on logarithmic axes"

LOOKS = {OPTS: "seen", TILES: "seen k1", REGIONS: "seen k3", OTHERS: "seen k0"}
"""The sorts of schedules in the picture of what was expected, and their colours."""

MOST_POINTS = 2000
"""More measurements are thinned evenly in the picture; the words count them all."""

# expected against measured


def expected_picture(result: Result, rows: Sequence[Row]) -> Picture | None:
    """None where nothing was expected, or no measurement succeeded."""
    timed = timed_expectations(result)
    if not timed:
        return None
    shown = timed[:: math.ceil(len(timed) / MOST_POINTS)]
    rows = [*rows, *inside_of(result)]
    names = {row.number: row.words for row in rows}
    names |= {len(rows) + n: f"{' + '.join(one.kernels)}, not in the plan" for n, one in enumerate(result.searched)}
    sorts = [sort for sort in LOOKS if any(sort_of(e, result) == sort for e in shown)]
    order = {number: place for place, number in enumerate(names)}
    # arrow keys go through a kernel before the next
    shown.sort(key=lambda e: (order[e.region], sort_of(e, result), e.elapsed_s))
    tips = [_tip(e, names[e.region]) for e in shown]
    words = [f"{len(shown):,} of {len(timed):,} measurements are drawn."] if len(shown) < len(timed) else []
    looks = [LOOKS[sort_of(e, result)] for e in shown]

    def draw(sheet: Sheet) -> None:
        _draw_expected(sheet, shown, looks)
        if len(sorts) > 1:
            _name_sorts(sheet, sorts)

    return picture("expected", EXPECTED, draw, heights=(500, 400), tips=tips, words=words)


def _name_sorts(sheet: Sheet, sorts: Sequence[str]) -> None:
    """What the colours stand for, at the lower right, where few marks are."""
    for number, sort in enumerate(reversed(sorts)):
        y = sheet.height - 66 - 18 * number
        sheet.paper.dots([(sheet.width - 24, y - 4)], LOOKS[sort], radius=4)
        sheet.paper.text(sheet.width - 36, y, sort, "soft small e")


def _tip(seen: Expectation, words: str) -> str:
    lines = [words, format_schedule(seen.schedule)]
    if seen.corrected_s is not None:
        lines.append(f"predicted {format_seconds(seen.predicted_s)}, corrected {format_seconds(seen.corrected_s)}")
    else:
        lines.append(f"predicted {format_seconds(seen.predicted_s)}")
    ratio = measured_s(seen) / expected_s(seen)
    lines.append(f"measured {format_seconds(seen.measured_s)}, {format_factor(ratio)} what was expected")
    lines.append(f"after {format_seconds(seen.elapsed_s)}")
    return "\n".join(lines)


def _draw_expected(sheet: Sheet, shown: Sequence[Expectation], looks: Sequence[str]) -> None:
    points = [(expected_s(e), measured_s(e)) for e in shown]
    low, high = min(map(min, points)) / 1.5, max(map(max, points)) * 1.5
    axis = Axis(low, high, log=True)
    left, right = (56, NARROW - 6) if sheet.narrow else (62, WIDE - 8)
    panel = sheet.panel(axis, axis, left=left, top=26, right=right, bottom=sheet.height - 48)
    panel.frame(
        x=axis.ticks(4 if sheet.narrow else 8, short_seconds),
        y=axis.ticks(6 if sheet.narrow else 8, short_seconds),
        title_x="expected when it was proposed",
        title_y="measured",
    )
    panel.line([(low, low), (high, high)], "roof")
    for factor in (2.0, 0.5):
        a, b = max(low, low / factor), min(high, high / factor)
        panel.line([(a, a * factor), (b, b * factor)], "mute dot")
    sheet.paper.text(right, 14, "line: as expected; dotted: a factor of 2", "soft small e")
    tip = 0
    for look, found in itertools.groupby(zip(looks, points, strict=True), key=lambda pair: pair[0]):
        some = [point for _, point in found]
        panel.dots(some, look, radius=3.4, tip=tip)
        tip += len(some)
