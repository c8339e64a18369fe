"""The report is one page that loads nothing and says everything; the console says the same, briefly."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from sample_result import sample_result

from kcg.errors import UsageError
from kcg.optimize.console import format_seconds, format_speedup, print_result, progress
from kcg.optimize.report import render_report, write_report
from kcg.optimize.report_roofline import points_of, roofline_file, roofs_of
from kcg.optimize.report_rows import rows_of
from kcg.optimize.report_search import error_words, expected_s, steps_of
from kcg.optimize.report_share import share_file, slices_of
from kcg.optimize.report_svg import COLORS
from kcg.types import Result

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """What the tests ask of a page: tags, attributes, text, and that tags close."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: dict[str, str] = {}
        self._open: list[str] = []
        self._script = ""
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag in ("script", "style"):
            self._script = dict(attrs).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self._script = ""

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        else:
            self.text.append(data)


@pytest.fixture(scope="module")
def page_text() -> str:
    return render_report(sample_result())


@pytest.fixture(scope="module")
def page(page_text: str) -> Page:
    return Page(page_text)


def test_page_loads_nothing(page: Page, page_text: str) -> None:
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed", "base", "form", "img", "image", "use")
        for name in ("src", "srcset", "href", "action", "data", "poster"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#"))
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"(https?:)?//[a-z]|@import|url\(", page_text, re.IGNORECASE)
    policies = [a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policies and "default-src 'none'" in (policies[0] or "")


def test_page_is_small(page_text: str) -> None:
    assert len(page_text.encode()) < 500_000


def many(result: Result, times: int) -> Result:
    """The same with so many times the kernels, their sources nine times as long, and 3,000 measurements at least."""
    rows = [replace(r, chosen=replace(r.chosen, source=r.chosen.source * 9)) for r in result.regions]
    seen = [replace(e, region=e.region + 16 * (i % times)) for i, e in enumerate(result.expectations * 32)]
    return replace(result, regions=tuple(rows * times), expectations=tuple(seen))


def test_page_stays_small_with_hundreds_of_kernels() -> None:
    result = many(sample_result(), 20)
    text = render_report(result)
    assert len(text.encode()) < 3_000_000
    assert "more characters are in the result file" in text
    assert f"{320 - COLORS} more kernels" in text
    timed = [e for e in result.expectations if e.measured_s is not None]
    assert len(timed) < len(result.expectations) and f"Half of the {len(timed):,} measurements" in text


def test_page_says_everything(page: Page) -> None:
    sample = sample_result()
    text = " ".join(" ".join(page.text).split())
    for row in sample.regions:
        for finalist in (row.baseline, row.chosen):
            assert finalist.name in text
            assert finalist.legend in text
            assert str(finalist.schedule) in text
            assert " ".join(finalist.source.split()) in text
        assert row.region.id in text
        assert row.note in text
    for word in (*sample.warnings, *dict(sample.failures), sample.command, "seed 7", "1,311 compilations",
                 "guided by h200-workload",
                 "NVIDIA H200", "14 March 2026", "69.3 ms", "36.7 ms", "1.89×", "504", "5 min 12 s", "fresh process",
                 sample.recomputes[0].advice, "the references disagree", "start_pos = 17",
                 "212 to 698, median 603.5 W", "1,590 to 1,980, median 1,965 MHz"):  # fmt: skip
        assert word in text, word


def test_page_and_console_tell_the_verdict_on_the_whole_model(page: Page) -> None:
    text = " ".join(" ".join(page.text).split())
    assert "The whole model" in text and "0.0031, at most 0.043 passes; seed 7" in text and "71.3 ms → 39.1 ms" in text
    verdicts = {
        "": ("", "whole model: verified, error 0.0031 of a tolerated 0.043; one step 71.3 ms → 39.1 ms by wall clock"),
        "the output <b> differs": (
            "Do not use this result",
            "whole model: FAILED, do not use this result: the output <b>",
        ),
        "not run: the workload is a script": ("none: not run: the workload is a", "whole model: not run: the workload"),
    }
    for reason, (on_page, on_console) in verdicts.items():
        check = sample_result().model_check
        assert check is not None
        if reason:
            passed = None if reason.startswith("not run") else False
            check = replace(check, passed=passed, reason=reason, error=None, tolerance=None, before_s=None)
        result = replace(sample_result(), model_check=check)
        shown = " ".join(" ".join(Page(render_report(result)).text).split())
        assert on_page in shown and reason in shown
        stream = io.StringIO()
        print_result(result, Console(file=stream, width=200))
        assert on_console in stream.getvalue().replace("\n", " ")
    without = render_report(replace(sample_result(), model_check=None))
    assert "The whole model" not in without


def test_foreign_text_is_escaped(page: Page, page_text: str) -> None:
    assert "<b>tiled</b>" not in page_text and "<b>name</b>" not in page_text
    assert "&lt;b&gt;tiled&lt;/b&gt;" in page_text
    assert {t for t, _ in page.tags} <= {
        "html", "head", "meta", "title", "link", "style", "body", "main", "header", "h1", "h2", "h3", "p", "div", "b",
        "span", "section", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "dl", "dt", "dd", "ul",
        "li", "code", "pre", "script", "a", "nav", "strong", "label", "select",
        "svg", "text", "line", "rect", "circle", "path", "polygon",
    }  # fmt: skip
    assert any('"strange" <b>name</b> & ✓' in tip for tip in json.loads(page.scripts["tips"])["expected"])


def figure(page: Page, name: str, kind: str = "wide") -> list[tuple[str, dict[str, str | None]]]:
    """The shapes of one picture: what follows its `svg` up to the next."""
    begin = next(
        i for i, (tag, a) in enumerate(page.tags)
        if tag == "svg" and a["data-figure"] == name and kind in (a["class"] or "")
    )  # fmt: skip
    rest = itertools.takewhile(lambda t: t[0] != "svg" and t[0] != "section", page.tags[begin + 1 :])
    return list(rest)


def numbers(shapes: list[tuple[str, dict[str, str | None]]], tag: str, *names: str, look: str) -> list[list[float]]:
    """Attributes of the marks of one kind."""
    return [
        [float(a[name] or "nan") for name in ("data-i", *names)]
        for t, a in shapes
        if t == tag and "data-i" in a and look in (a["class"] or "")
    ]


@pytest.mark.parametrize("kind", ["wide", "narrow"])
def test_share_picture_has_both_bars_on_one_scale(page: Page, kind: str) -> None:
    sample = sample_result()
    rows = rows_of(sample)
    slices = slices_of(rows)
    assert len(slices) == COLORS + 1 and slices[-1].name == f"{len(rows) - COLORS} more kernels"
    assert sum(s.before_s for s in slices) == pytest.approx(sample.total_before_s)
    assert sum(s.after_s for s in slices) == pytest.approx(sample.total_after_s)
    widths = numbers(figure(page, "share", kind), "rect", "y", "width", look="k")
    first = min(y for _, y, _ in widths)
    bars = [sum(w + 1 for _, y, w in widths if y == place) for place in sorted({y for _, y, _ in widths})[:2]]
    assert first < 100
    assert bars[1] / bars[0] == pytest.approx(sample.total_after_s / sample.total_before_s, rel=0.05)


def test_kernels_that_grow_to_a_large_share_keep_a_colour() -> None:
    rows = rows_of(sample_result())
    small = replace(rows[-1], region=replace(rows[-1].region, chosen=replace(rows[-1].region.chosen, cold_s=1.0)))
    assert small.label in [s.name for s in slices_of([*rows[:-1], small])]


def test_roofline_has_the_targets_roofs_and_every_kernel_that_computes(page: Page) -> None:
    sample = sample_result()
    points = points_of(rows_of(sample))
    assert len(points) == sum(r.operations > 0 for r in sample.regions)
    roofs = roofs_of(sample.target, points)
    assert (roofs.told, roofs.bytes_s) == (True, 4.8e12)
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
    unknown = replace(sample.target, bandwidth_bytes_s=None)
    assert not roofs_of(unknown, points).told
    assert "does not tell its bandwidth and peak" in render_report(replace(sample, target=unknown))


def test_search_is_drawn_over_seconds_and_over_measurements(page: Page) -> None:
    sample = sample_result()
    marks = numbers(figure(page, "progress"), "circle", "cx", "cy", look="step")
    kept = steps_of(sample.progress)
    assert len(marks) == 2 * len(kept)
    totals = [p.total_s for p in kept]
    assert totals == sorted(totals, reverse=True) and totals[-1] == min(p.total_s for p in sample.progress)
    heights = [y for _, _, y in marks[: len(kept)]]
    assert heights == sorted(heights) and heights == [y for _, _, y in marks[len(kept) :]]
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
    words = " ".join(error_words(replace(sample, expectations=(one, pair))))
    assert "Half of the 2 measurements were within 1.50×" in words and "alone was within 3.50×" in words
    assert "in <0.1% of 1 pairs" in words, "the faster one was expected to be the slower"
    tie = replace(one, measured_s=4.01)
    assert "pairs" not in " ".join(error_words(replace(sample, expectations=(one, tie))))
    none = render_report(replace(sample, expectations=()))
    assert "What was expected" not in none


def test_step_and_sum_are_both_shown_and_a_difference_is_explained() -> None:
    sample = sample_result()
    check = sample.model_check
    assert check is not None
    for factor, differs in ((1.05, False), (1.3, True), (0.7, True)):
        near = replace(check, before_s=sample.total_before_s * factor, after_s=sample.total_after_s * factor)
        text = " ".join(" ".join(Page(render_report(replace(sample, model_check=near))).text).split())
        assert format_seconds(near.after_s) in text and format_seconds(sample.total_after_s) in text
        assert ("A step of the whole model and the sum of its kernels differ by 30%" in text) is differs
        assert ("With warm caches they sum to" in text) is differs
        assert ("between kernels" in text) is (factor == 1.3)
    untimed = replace(sample, model_check=replace(check, before_s=None, after_s=None, reason="not run: a script"))
    assert "was not timed: not run: a script" in " ".join(Page(render_report(untimed)).text)


def test_pictures_stand_alone(tmp_path: Path) -> None:
    rows = rows_of(sample_result())
    for text in (share_file(rows), roofline_file(rows, sample_result().target)):
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not re.search(r"<script|@import|url\(|href", text) and "prefers-color-scheme" in text
        assert any("as fast" in (t.text or "") or "FLOP/s" in (t.text or "") for t in root.iter() if "title" in t.tag)
        assert len(text) < 60_000


def test_page_of_odd_results() -> None:
    sample = sample_result()
    unmeasured = replace(sample.regions[0].baseline, cold_s=math.nan, source="", legend="\ud800")
    row = replace(sample.regions[0], baseline=unmeasured, chosen=unmeasured, outcome="quarantined")
    bare = replace(sample, regions=(), progress=(), recomputes=(), failures=(), warnings=(), complete=False)
    bare = replace(bare, expectations=(), clocks=(), model_check=None)
    for result in (bare, replace(bare, regions=(row,)), replace(sample, regions=(*sample.regions, row))):
        Page(render_report(result))


def test_report_is_written_whole(tmp_path: Path, page_text: str) -> None:
    path = write_report(sample_result(), tmp_path / "new")
    assert path == tmp_path / "new" / "report.html"
    assert path.read_text() == page_text
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write") as caught:
        write_report(sample_result(), tmp_path / "file")
    assert "\n" not in str(caught.value)


# --- console ---


def printed(result: Result, **options: object) -> str:
    stream = io.StringIO()
    print_result(result, Console(file=stream, **options))  # type: ignore[arg-type]
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_table_fits_and_is_plain_when_piped(width: int) -> None:
    text = printed(sample_result(), width=width)
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= min(width, 100)
    lines = text.splitlines()
    assert len([line for line in lines if "µs" in line or "ms" in line]) >= 16
    assert lines[1].startswith("r_80_32") and "15.7 ms" in lines[1]  # the slowest before comes first
    assert "69.3 ms → 36.7 ms, 1.89×" in text
    assert "failed: 41 compile_error, 17 resource, 2 wrong, 1 worker_died" in text
    assert "8 improved, 7 kept, 1 quarantined" in text
    assert "no clang: <CPU>" in text


def test_no_color_is_honoured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" in printed(sample_result(), width=100, force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed(sample_result(), width=100, force_terminal=True)


def test_long_tables_end_with_a_sum() -> None:
    sample = sample_result()
    text = printed(replace(sample, regions=sample.regions * 4), width=80)
    assert "and 24 more kernels" in text and len(text.splitlines()) < 60


def test_old_locales_get_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    print_result(sample_result(), Console(file=stream, width=100))
    with progress(stream=stream) as p:
        p.phase("très")
        p.update(done_s=1.0, total_s=3e-6)
    assert b"3.05 us" in raw.getvalue() and b"1.89x" in raw.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (3e-10, "0.30 ns"), (9.996e-9, "10.0 ns"), (411.2e-6, "411 µs"), (999.6e-6, "1.00 ms"),
     (0.0123, "12.3 ms"), (1, "1.00 s"), (99.96, "1 min 40 s"), (312.4, "5 min 12 s"), (3599.7, "1 h 00 min"),
     (7500, "2 h 05 min"),
     (-2e-3, "-2.00 ms"), (math.nan, "–"), (math.inf, "–"), (None, "–")],
)  # fmt: skip
def test_times_have_sensible_units(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


def test_speedups() -> None:
    assert format_speedup(3.0, 2.0) == "1.50×"
    assert format_speedup(1.0, 0.0) == format_speedup(math.nan, 1.0) == "–"


def test_progress_is_plain_and_rare_when_piped() -> None:
    stream = io.StringIO()
    with progress(stream=stream) as p:
        p.phase("capturing [bold]flux mini")
        for i in range(1000):
            p.update(done_s=i / 1000, budget_s=300, measurements=i, total_s=0.0123, kernels=(1, 16), note="r_40 [x]")
        p.phase("verifying")
        p.update(done_s=2.0)
        p.line("a worker was replaced [1]")
    assert stream.getvalue().splitlines() == [
        "capturing [bold]flux mini ...",
        "capturing [bold]flux mini: 0:00, 1/16 kernels, 0 measured, best 12.3 ms, 5:00 left, r_40 [x]",
        "verifying ...",
        "verifying: 0:02",
        "a worker was replaced [1]",
    ]


def test_quiet_is_quiet() -> None:
    stream = io.StringIO()
    with progress(quiet=True, stream=stream) as p:
        p.phase("searching")
        p.update(done_s=1.0)
        p.line("a detail")
        p.line("the device was lost", important=True)
    assert stream.getvalue() == "the device was lost\n"


@pytest.mark.parametrize("json_mode", [False, True])
def test_progress_on_a_terminal_stays_on_stderr(json_mode: bool) -> None:
    script = (
        "from kcg.optimize.console import progress\n"
        f"with progress(json_mode={json_mode}) as p:\n"
        "    p.phase('searching')\n"
        "    for i in range(3): p.update(done_s=i, budget_s=9, measurements=7, note='[/x] <y>')\n"
        "    print('on stdout')\n    p.line('said [b]')\n"
    )
    leader, follower = os.openpty()
    environment = {
        **os.environ,
        "TERM": "xterm",
        "NO_COLOR": "1",
        "COLUMNS": "90",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=follower, env=environment, timeout=60, check=True
    )
    os.close(follower)
    seen = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert done.stdout == b"on stdout\n"
    assert "said [b]" in seen and "searching ..." in seen and "7 measured" in seen
    assert ("\x1b[" in seen) is not json_mode  # the bar is redrawn in place
    assert not re.search(r"\x1b\[[0-9;]*m", seen), "no colours with NO_COLOR"


def test_console_is_cheap_to_import() -> None:
    script = "import sys, kcg.optimize.console, kcg.optimize.result, kcg.optimize.report; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"rich", "plotly", "jinja2", "numpy", "tinygrad"}
