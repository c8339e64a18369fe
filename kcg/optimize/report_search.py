"""The pictures of the search: the best total as it went on, and what was expected of each measurement."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

from kcg.measure.protocol import median
from kcg.optimize.console import format_seconds, format_speedup
from kcg.optimize.report_rows import Row
from kcg.optimize.report_svg import WIDE, Axis, Canvas, Picture, grid, picture, short_seconds
from kcg.optimize.report_text import drawable, format_factor, format_schedule, format_share
from kcg.types import Expectation, ProgressPoint, Result

PROGRESS = "Best total of the workload over the seconds of the search, and over its measurements"
EXPECTED = "Expected against measured time of every measurement of the search, both on logarithmic axes"

MOST_POINTS = 2000
"""More measurements are thinned evenly in the picture; the words count them all."""

LEAST_DIFFERENCE = 0.02
"""Two schedules of a kernel that differ by less are a tie, or by less than the kernel's noise."""

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
        grid(
            canvas, x, y, tick_x=lambda v: f"{v:g}", tick_y=short_seconds, title_x=title, title_y="", most=(5, 5)
        )  # fmt: skip
        canvas.text(left - 46, top - 12, "best total, as the search measured it", "soft")
        for total, name, look in ((before, "before", "mute dot"), (after, "after, verified", "mute dash")):
            if math.isfinite(total) and 0 < total <= high:
                canvas.path([(left, y(total)), (right, y(total))], look)
                place = y(total) - 6 if name == "before" else y(min(total, points[-1].total_s)) + 17  # below the curve
                canvas.text(right - 3, place, f"{name} {format_seconds(total)}", "soft small e")
        path = [(x(values[0]), y(points[0].total_s))]
        for value, p in zip(values[1:], points[1:], strict=True):
            path += [(x(value), path[-1][1]), (x(value), y(p.total_s))]
        canvas.path(path, "curve")
        for tip, (value, p) in enumerate(zip(values, points, strict=True)):
            canvas.add("circle", "step", tip=tip, cx=x(value), cy=y(p.total_s), r=3.2 if len(points) < 60 else 2)


# expected against measured


def expected_picture(result: Result, rows: Sequence[Row]) -> Picture | None:
    """None where nothing was expected, or no measurement succeeded."""
    timed = _timed(result)
    if not timed:
        return None
    shown = timed[:: math.ceil(len(timed) / MOST_POINTS)]
    names = {row.number: row for row in rows}
    order = {row.number: place for place, row in enumerate(rows)}
    shown.sort(key=lambda e: (order[e.region], e.elapsed_s))  # arrow keys go through a kernel before the next
    tips = [_tip(e, names[e.region]) for e in shown]
    words = error_words(result)
    if len(shown) < len(timed):
        words.append(f"{len(shown):,} of them are drawn.")
    return picture("expected", EXPECTED, lambda c: _draw_expected(c, shown), heights=(500, 380), tips=tips, words=words)


def expected_s(seen: Expectation) -> float:
    """What the search went by: corrected by what was measured before, where the predictor learns from it."""
    return seen.predicted_s if seen.corrected_s is None else seen.corrected_s


def _timed(result: Result) -> list[Expectation]:
    return [e for e in result.expectations if drawable(_measured(e), expected_s(e))]


def _measured(seen: Expectation) -> float:
    return seen.measured_s if seen.measured_s is not None and math.isfinite(seen.measured_s) else 0.0


def error_words(result: Result) -> list[str]:
    """How far measurements were from what was expected, in sentences."""
    timed = _timed(result)
    if not timed:
        return []
    ratios = [_measured(e) / expected_s(e) for e in timed]
    middle, most = _spread(ratios)
    words = [
        f"Half of the {len(timed):,} measurements were within {format_factor(middle)} of what was expected, "
        f"nine in ten within {format_factor(most)}. In the geometric mean they took "
        f"{format_factor(statistics.geometric_mean(ratios))} what was expected; more than 1 is likely, since what "
        "looks fastest is what is measured."
    ]
    alone = [_measured(e) / e.predicted_s for e in timed if drawable(e.predicted_s)]
    if alone and any(e.corrected_s is not None for e in timed):
        middle, most = _spread(alone)
        words.append(
            "That is after correction by what was measured of the same kernel before; the predictor alone was "
            f"within {format_factor(middle)} and {format_factor(most)}."
        )
    right, pairs = _ranked(timed, {i: row.noise_floor for i, row in enumerate(result.regions)})
    if pairs:
        words.append(
            f"Of two schedules of one kernel the faster one was named in {format_share(right / pairs)} of "
            f"{pairs:,} pairs."
        )
    failed = [e for e in result.expectations if e.measured_s is None]
    if failed:
        chance = sum(e.failure_probability for e in failed) / len(failed)
        others = sum(e.failure_probability for e in timed) / len(timed)
        words.append(
            f"{len(failed)} failed and have no time; their expected chance to fail was {format_share(chance)} on "
            f"average, that of the others {format_share(others)}."
        )
    return words


def _spread(ratios: Sequence[float]) -> tuple[float, float]:
    """The median and the ninth decile of the factor by which each is off."""
    off = sorted(max(ratio, 1 / ratio) for ratio in ratios)
    return median(off), off[min(int(0.9 * len(off)), len(off) - 1)]


def _ranked(timed: Sequence[Expectation], noise: dict[int, float]) -> tuple[int, int]:
    """Of how many pairs of one kernel the faster one was expected to be it, and how many pairs there are."""
    kernels: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for seen in timed:
        kernels[seen.region].append((_measured(seen), expected_s(seen)))
    right = pairs = 0
    for region, found in kernels.items():
        least = 1 + max(LEAST_DIFFERENCE, noise.get(region, 0.0))
        for (a, said_a), (b, said_b) in combinations(found, 2):
            if max(a, b) > least * min(a, b):
                pairs += 1
                right += (a < b) == (said_a < said_b) and said_a != said_b
    return right, pairs


def _tip(seen: Expectation, row: Row) -> str:
    lines = [row.words, format_schedule(seen.schedule)]
    if seen.corrected_s is not None:
        lines.append(f"predicted {format_seconds(seen.predicted_s)}, corrected {format_seconds(seen.corrected_s)}")
    else:
        lines.append(f"predicted {format_seconds(seen.predicted_s)}")
    ratio = _measured(seen) / expected_s(seen)
    lines.append(f"measured {format_seconds(seen.measured_s)}, {format_factor(ratio)} what was expected")
    lines.append(f"after {format_seconds(seen.elapsed_s)}")
    return "\n".join(lines)


def _draw_expected(canvas: Canvas, shown: Sequence[Expectation]) -> None:
    values = [v for e in shown for v in (expected_s(e), _measured(e))]
    low, high = min(values) / 1.5, max(values) * 1.5
    left, right = (56, canvas.width - 6) if canvas.narrow else (62, WIDE - 8)
    x, y = Axis(low, high, left, right, log=True), Axis(low, high, canvas.height - 48, 26, log=True)
    grid(
        canvas, x, y, tick_x=short_seconds, tick_y=short_seconds, title_x="expected when it was proposed",
        title_y="measured", most=(4, 6) if canvas.narrow else (8, 8),
    )  # fmt: skip
    canvas.path([(x(low), y(low)), (x(high), y(high))], "roof")
    for factor in (2.0, 0.5):
        a, b = max(low, low / factor), min(high, high / factor)
        canvas.path([(x(a), y(a * factor)), (x(b), y(b * factor))], "mute dot")
    canvas.text(right, 14, "line: as expected; dotted: a factor of 2", "soft small e")
    for i, e in enumerate(shown):
        canvas.add("circle", "seen", tip=i, cx=x(expected_s(e)), cy=y(_measured(e)), r=3.4)
