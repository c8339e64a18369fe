"""The pictures of a report show the numbers of its result."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kcg.pictures import COLORS
from kcg.report.charts import points_of, roofline_file, roofs_of, share_file, slices_of
from kcg.report.formats import format_seconds, format_share
from kcg.report.page import render_report
from kcg.report.prediction_quality import LEAST_PAIRS, OPTS, REGIONS, TILES, expected_s, quality_of
from kcg.report.rows import rows_of
from kcg.report.sources import difference, sources_of
from kcg.report.timeline import steps_of
from kcg.types import Kernel, Region, SearchedRegion
from tests.html_page import Page
from tests.sample_result import sample_plan, sample_result

pytestmark = pytest.mark.usefixtures("drawn")


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render_report(sample_result()))


def figure(page: Page, name: str, kind: str = "wide") -> list[tuple[str, dict[str, str | None]]]:
    """The shapes of one picture: what follows its `svg` up to the next."""
    begin = next(
        i
        for i, (tag, a) in enumerate(page.tags)
        if tag == "svg" and a["data-figure"] == name and kind in (a["class"] or "")
    )
    rest = itertools.takewhile(lambda t: t[0] != "svg" and t[0] != "section", page.tags[begin + 1 :])
    return list(rest)


def numbers(shapes: list[tuple[str, dict[str, str | None]]], tag: str, *names: str, look: str) -> list[list[float]]:
    """Attributes of the marks of one kind."""
    return [
        [float(a[name] or "nan") for name in ("data-i", *names)]
        for t, a in shapes
        if t == tag and "data-i" in a and look in (a["class"] or "")
    ]


def corners(path: str | None) -> tuple[float, float, float]:
    """Left, top and right of a box."""
    values = [float(n) for n in re.findall(r"-?[\d.]+", path or "")]
    return min(values[::2]), min(values[1::2]), max(values[::2])


@pytest.mark.parametrize("kind", ["wide", "narrow"])
def test_share_picture_has_both_bars_on_one_scale(page: Page, kind: str) -> None:
    sample = sample_result()
    rows = rows_of(sample)
    slices = slices_of(rows)
    assert len(slices) == COLORS + 1 and slices[-1].name == f"{len(rows) - COLORS} more kernels"
    assert sum(s.before_s for s in slices) == pytest.approx(sample.total_before_s)
    assert sum(s.after_s for s in slices) == pytest.approx(sample.total_after_s)
    shapes = [a for tag, a in figure(page, "share", kind) if tag == "path" and "data-i" in a]
    boxes = [corners(a["d"]) for a in shapes if "f" not in (a["class"] or "").split()]
    tops = sorted({box[1] for box in boxes})[:2]
    bars = [sum(right - left + 1 for left, top, right in boxes if top == place) for place in tops]
    assert tops[0] < 100
    assert bars[1] / bars[0] == pytest.approx(sample.total_after_s / sample.total_before_s, rel=0.05)


def test_kernels_that_grow_to_a_large_share_keep_a_colour() -> None:
    rows = rows_of(sample_result())
    small = replace(rows[-1], region=replace(rows[-1].region, chosen=replace(rows[-1].region.chosen, cold_s=1.0)))
    assert small.label in [s.name for s in slices_of([*rows[:-1], small])]


def test_roofline_has_the_targets_roofs_and_every_kernel_that_computes(page: Page) -> None:
    sample = sample_result()
    points = points_of(rows_of(sample))
    assert len(points) == sum(r.operations > 0 for r in sample.regions)
    roofs = roofs_of(sample)
    assert roofs is not None and roofs.bytes_s == 4.8e12
    assert roofs.peak == pytest.approx(1070e12, rel=0.01) and roofs.plain == pytest.approx(66.9e12, rel=0.01)
    for point in points:
        r = point.row.region
        assert point.intensity == r.operations / r.bytes and point.after == r.operations / r.chosen.cold_s
    for kind in ("wide", "narrow"):
        shapes = figure(page, "roofline", kind)
        old = {i: (x, y) for i, x, y in numbers(shapes, "circle", "cx", "cy", look="old")}
        new = {i: (x, y) for i, x, y in numbers(shapes, "circle", "cx", "cy", look="new")}
        assert len(old) == len(points) and len(new) == sum(p.row.changed for p in points)
        for i, (x, y) in new.items():
            assert x == old[i][0] and y < old[i][1], "a better schedule moves a kernel straight up"
    text = " ".join(page.text)
    assert "2 kernels only move data" in text and "of what the hardware could do" in text


def test_a_share_of_the_roof_is_of_the_hardware_and_never_of_what_was_seen(page: Page) -> None:
    sample = sample_result()
    roofs = roofs_of(sample)
    assert roofs is not None
    matmul, norm = sample.regions[0], sample.regions[3]
    assert roofs.least_s(matmul) == matmul.operations / roofs.peak > matmul.bytes / roofs.bytes_s
    assert roofs.least_s(norm) == norm.bytes / 4.8e12
    assert roofs.share(norm, norm.chosen.cold_s) == pytest.approx(3.1e6 / 4.8e12 / 12.06e-6)
    wide = replace(matmul, region=Region((Kernel(matmul.region.kernel.ast_json.replace("bfloat16", "float32")),)))
    assert roofs.least_s(wide) == matmul.operations / roofs.plain, "tensor cores take no float32"
    rounded = roofs_of(replace(sample, allow_tf32=True))
    assert rounded is not None and rounded.least_s(wide) == matmul.operations / (roofs.peak / 2)
    assert math.isnan(roofs.share(replace(norm, bytes=0.0, operations=0.0), 1e-6))
    assert page.text.count("Roof") == 1, "a column"
    for unknown in ({"bandwidth_bytes_s": None}, {"arch": "sm_100"}, {"clock_limit_mhz": None}):
        silent = replace(sample, target=replace(sample.target, **unknown))
        assert roofs_of(silent) is None
        texts = Page(render_report(silent)).text
        assert "No roof is drawn" in " ".join(texts) and "Roof" not in texts and "of the roof" not in " ".join(texts)


def test_a_result_of_before_what_was_verified_was_kept_shows_the_search_to_the_end_of_the_run(page: Page) -> None:
    sample = sample_result()
    shapes = figure(page, "timeline")
    marks = numbers(shapes, "circle", "cx", "cy", look="step")
    kept = steps_of(sample.progress)
    assert len(marks) == len(kept)
    totals = [p.total_s for p in kept]
    assert totals == sorted(totals, reverse=True) and totals[-1] == min(p.total_s for p in sample.progress)
    heights = [y for _, _, y in marks]
    assert heights == sorted(heights)
    scale = (marks[-1][1] - marks[0][1]) / (kept[-1].elapsed_s - kept[0].elapsed_s)
    (curve,) = (a["d"] or "" for t, a in shapes if t == "path" and a["class"] == "curve")
    end = max(float(n) for n in re.findall(r"-?[\d.]+", curve)[::2])
    assert end == pytest.approx(marks[0][1] + scale * sample.search_s, abs=1), "to the end of the run"
    stalled = [replace(sample.progress[0], elapsed_s=float(k), total_s=1.0) for k in range(9)]
    assert [p.elapsed_s for p in steps_of(stalled)] == [0.0, 8.0]


def test_expected_against_measured_with_the_error_in_words(page: Page) -> None:
    sample = sample_result()
    timed = [e for e in sample.expectations if e.measured_s is not None]
    marks = numbers(figure(page, "expected"), "circle", "cx", "cy", look="seen")
    assert len(marks) == len(timed) < len(sample.expectations)
    tips = json.loads(page.scripts["tips"])["expected"]
    ratios = sorted(f"{(e.measured_s or 0) / expected_s(e):.2f}× what was expected" for e in timed)
    assert sorted(tip.splitlines()[3].partition(", ")[2] for tip in tips) == ratios
    one = replace(timed[0], predicted_s=1.0, corrected_s=2.0, measured_s=4.0, status="ok")
    pair = replace(one, corrected_s=3.0, measured_s=3.0)
    quality = quality_of(replace(sample, expectations=(one, pair)))
    assert quality is not None
    words = " ".join(quality.words)
    assert "Half of the 2 measurements were within 1.50×" in words and "took 1.41× what was expected" in words
    assert "alone was within 3.50×" in words
    none = render_report(replace(sample, expectations=()))
    assert "What was expected" not in none


def test_the_quality_of_predictions_is_given_beside_how_close_the_schedules_are() -> None:
    sample = sample_result()
    like = replace(sample.expectations[0], corrected_s=None, status="ok", region=0)
    right = [replace(like, predicted_s=1.0 + 0.3 * i, measured_s=1.0 + 0.2 * i) for i in range(8)]
    quality = quality_of(replace(sample, expectations=tuple(right)))
    assert quality is not None and quality.quarters == (), "eight are too few for quarters"
    words = " ".join(quality.words)
    assert (
        "In the median of 1 kernel the slowest took 2.40× as long" in words
        and "that were not measured is not known" in words
    )
    assert "is 1.00 for the one kernel with at least 8 measurements" in words
    assert [(p.apart, p.pairs, p.right) for p in quality.pairs] == [  # of one pair up to 10 % nothing is said
        ((0.1, 0.5), 16, 16),
        ((0.5, math.inf), 11, 11),
    ]
    turned = [replace(e, predicted_s=1 / e.predicted_s, region=1) for e in right]
    both = quality_of(replace(sample, expectations=(*right, *turned)))
    assert both is not None and "-1.00 to 1.00, 0.00 in the median, for 2 kernels" in " ".join(both.words)
    assert [(p.pairs, p.right) for p in both.pairs] == [(32, 16), (22, 11)]
    ties = [replace(like, predicted_s=1.0 + i, measured_s=1.0 + 0.001 * i) for i in range(8)]
    tied = quality_of(replace(sample, expectations=tuple(ties)))
    assert tied is not None and tied.pairs == () and "no rank correlation is given" in " ".join(tied.words)
    many = quality_of(replace(sample, expectations=tuple(right) * 4))
    assert many is not None and [q.measurements for q in many.quarters] == [8, 8, 8, 8]
    assert many.quarters[0].slower == (1.0, pytest.approx(1.2)) and many.quarters[-1].slower[1] == pytest.approx(2.4)
    assert many.quarters[-1].longer < many.quarters[0].longer < 1, "slow ones took less than was expected"


def test_numbers_that_say_nothing_are_left_out() -> None:
    sample = sample_result()
    like = replace(sample.expectations[0], corrected_s=None, status="ok", region=0)
    wrong = [replace(like, predicted_s=1.0, measured_s=1.0), replace(like, predicted_s=0.9, measured_s=1.3)]
    result = replace(sample, expectations=tuple(wrong))
    quality = quality_of(result)
    assert quality is not None and quality.pairs == (), f"one pair, of which none is right, is fewer than {LEAST_PAIRS}"
    assert "nine in ten" not in " ".join(quality.words), "of two"
    (opts,) = quality.beside
    assert (opts.what, opts.count, opts.within) == (f"time of {OPTS}", 2, None)
    text = " ".join(" ".join(Page(render_report(result)).text).split())
    assert "Which of two schedules of a kernel is faster" not in text and "Predictor named the faster" not in text
    many = quality_of(replace(sample, expectations=tuple(wrong) * 5))
    assert many is not None and "nine in ten" in " ".join(many.words) and many.pairs[0].pairs == 25
    assert [format_share(share) for share in (0.0, 1e-5, math.nan)] == ["0%", "<0.1%", "–"]


def test_predictions_of_every_sort_stand_beside_what_came() -> None:
    plan = sample_plan()
    tile, rows = plan.regions[-1].chosen.schedule, len(plan.regions)
    one = replace(sample_result().expectations[0], corrected_s=None, predicted_s=1e-3, measured_s=2e-3, status="ok")
    several = next(i for i, row in enumerate(plan.regions) if len(row.region.kernels) > 1)
    seen = [
        one,
        replace(one, schedule=tile),
        replace(one, schedule=tile, region=several, measured_s=1e-3),
        replace(one, region=rows),  # of a kernel that a region runs everywhere
    ]
    result = replace(plan, expectations=tuple(seen))
    quality = quality_of(result)
    assert quality is not None and result.planning is not None and len(result.with_inside) > rows
    assert [(b.what, b.expected, b.count, round(b.longer, 3)) for b in quality.beside] == [
        (f"time of {OPTS}", "h200-workload", 2, 2.0),
        (f"time of {TILES}", "the formula of its cost", 1, 2.0),
        (f"time of {REGIONS}", "the formula of its cost", 1, 1.0),
        ("what a region saves", "timed alone, in turns with its parts", 1, pytest.approx(18.2 / 24.1, abs=1e-3)),
        (
            "a step by a plan",
            "sum of its kernels",
            3,
            pytest.approx((39.1 / 33.1 * 40.2 / 35.2 * 41.9 / 37.1) ** (1 / 3), abs=1e-3),
        ),
    ]
    page = Page(render_report(result))
    shown = " ".join(" ".join(page.text).split())
    for words in ("among the calls around it", "the whole step", f"time of {REGIONS}", "Came, of what was expected"):
        assert words in shown
    marks = [a for tag, a in figure(page, "expected") if tag == "circle" and "data-i" in a]
    assert sorted(a["class"] or "" for a in marks) == ["seen", "seen", "seen k1", "seen k3"]
    assert len(json.loads(page.scripts["tips"])["expected"]) == 4
    assert result.planning is not None
    beside = SearchedRegion("of-no-plan", ("r_8", "E_4"))  # a region that was searched, and is in no plan
    searched = replace(result.planning, searched=(beside,))
    seen.append(replace(one, schedule=tile, region=len(result.with_inside), measured_s=4e-3))
    more = replace(result, planning=searched, expectations=tuple(seen))
    quality = quality_of(more)
    assert quality is not None
    assert [(b.count, round(b.longer, 3)) for b in quality.beside if b.what == f"time of {REGIONS}"] == [(2, 2.0)]
    page = Page(render_report(more))
    tips = json.loads(page.scripts["tips"])["expected"]
    assert sum("r_8 + E_4, not in the plan" in tip for tip in tips) == 1 and len(tips) == 5
    without = Page(render_report(replace(plan, expectations=())))
    assert "the whole step" in " ".join(without.text) and "expected" not in json.loads(without.scripts["tips"])


def test_sources_are_packed_whole_with_the_lines_that_differ() -> None:
    rows = rows_of(sample_result())
    sources = sources_of(rows)
    held = json.loads(gzip.decompress(base64.b64decode(sources.packed)))
    assert set(held) == {str(row.number) for row in rows} and sources.left_out == 0
    for row in rows:
        parts, *texts = held[str(row.number)]
        assert texts == [side.source for _, side in row.sides]
        assert (parts is not None) is row.changed is (row.number in sources.compared)
    one, other = "a\nb\nc\n", "a\nx\nc\nd\n"
    assert difference(one, other) == [
        ("equal", 0, 1, 0, 1),
        ("replace", 1, 2, 1, 2),
        ("equal", 2, 3, 2, 3),
        ("insert", 3, 3, 3, 4),
    ]
    assert difference("", other) is None and difference("float a;\n", "import triton\n") is None, "two programs"
    few = sources_of(rows, most_bytes=1000)
    assert 0 < len(few.held) < len(rows) and few.left_out == len(rows) - len(few.held)
    assert rows[0].number in few.held, "what took longest comes first"


@pytest.mark.slow
def test_step_and_sum_are_both_shown_and_a_difference_is_explained() -> None:
    sample = sample_result()
    check = sample.model_check
    assert check is not None
    for factor, differs in ((1.05, False), (1.3, True), (0.7, True)):
        near = replace(check, before_s=sample.total_before_s * factor, after_s=sample.total_after_s * factor)
        text = " ".join(" ".join(Page(render_report(replace(sample, model_check=near))).text).split())
        assert format_seconds(near.after_s) in text and format_seconds(sample.total_after_s) in text
        assert ("A step of the whole model and the sum of its kernels differ by 30%" in text) is differs
        assert ("With warm caches they sum to" in text) is (factor == 0.7)
        assert ("between kernels (launch gaps)" in text) is (factor == 1.3)
        assert ("What the clock was is not recorded." in text) is differs, "as in results of before it was"
    untimed = replace(sample, model_check=replace(check, before_s=None, after_s=None, reason="not run: a script"))
    assert "was not timed: not run: a script" in " ".join(Page(render_report(untimed)).text)


def test_pictures_stand_alone(tmp_path: Path) -> None:
    rows = rows_of(sample_result())
    for text in (share_file(rows), roofline_file(rows, roofs_of(sample_result()))):
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not re.search(r"<script|@import|url\(|href", text) and "prefers-color-scheme" in text
        assert any("as fast" in (t.text or "") or "FLOP/s" in (t.text or "") for t in root.iter() if "title" in t.tag)
        assert len(text) < 60_000
