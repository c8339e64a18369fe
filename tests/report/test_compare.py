"""Two results side by side: what differs comes first, and a kernel is called faster only beyond what drifted."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kcg.compare import app, print_comparison
from kcg.errors import ExitCode, KcgError, UsageError
from kcg.kernel.kinds import describe
from kcg.optimize.console import print_result
from kcg.report.compare import FASTER, SAME, SLOWER, Comparison, drift_line, match, render, to_dict
from kcg.report.counts import how_many
from kcg.report.result import SCHEMA, write_result
from kcg.tuning import Tuned
from kcg.types import RegionResult, Result
from tests.browser import CHROMIUM, Browser
from tests.commands import python
from tests.html_page import Page
from tests.sample_result import sample_plan, sample_result

NAMES = ("a/RESULT.json", "b/RESULT.json")


def scaled(row: RegionResult, factor: float, *, binary: str = "") -> RegionResult:
    """Its chosen schedule takes `factor` times as long, by another binary where one is named."""
    chosen = row.chosen
    low, high = chosen.interval_s
    chosen = replace(chosen, cold_s=chosen.cold_s * factor, interval_s=(low * factor, high * factor))
    return replace(row, chosen=replace(chosen, binary_hash=binary or chosen.binary_hash))


def with_rows(result: Result, *changed: RegionResult) -> Result:
    """The rows `changed` in the place of the first ones."""
    return replace(result, regions=(*changed, *result.regions[len(changed) :]))


@pytest.fixture(scope="module")
def a() -> Result:
    return sample_result()


@pytest.fixture(scope="module")
def b(a: Result) -> Result:
    """The first kernel is twice as fast by another schedule, the second a third slower, the third measured anew."""
    first, second, third, *_ = a.regions
    other = replace(first.chosen, schedule=a.regions[1].chosen.schedule)
    faster = scaled(replace(first, chosen=other), 0.5, binary="f" * 64)
    return with_rows(a, faster, scaled(second, 1.33, binary="5" * 64), scaled(third, 0.9))


@pytest.fixture(scope="module")
def found(a: Result, b: Result) -> Comparison:
    return match(a, b, names=NAMES)


def printed(found: Comparison, width: int = 80) -> str:
    stream = io.StringIO()
    print_comparison(found, Console(file=stream, width=width))
    return stream.getvalue()


def test_what_is_printed_of_anothers_file_steers_no_terminal(a: Result) -> None:
    """A name or a tool may hold what clears the screen, sets its title, or looks like a line of kcg's own."""
    hostile = "\x1b]0;title\x07\x1b[2J\rall is fine\x9b2J\u202e"
    first, *others = a.regions
    first = replace(first, chosen=replace(first.chosen, name=hostile), origins=())
    toolchain = replace(a.toolchain, compiler=hostile)
    other = replace(a, workload=hostile, predictor=hostile, toolchain=toolchain, regions=(first, *others))
    summary = io.StringIO()
    print_result(other, Console(file=summary, width=100))
    for text in (printed(match(a, other, names=NAMES)), summary.getvalue(), str(Tuned(other, Path("RESULT.json")))):
        assert "all is fine" in text
        assert all(line.isprintable() for line in text.split("\n")), ascii(text)


def test_kernels_are_matched_and_judged(found: Comparison, a: Result, b: Result) -> None:
    assert len(found.pairs) == len(a.regions) and found.comparable and not found.only_a and not found.only_b
    by_id = {pair.a.region.id: pair for pair in found.pairs}
    first, second, third = (by_id[row.region.id] for row in a.regions[:3])
    assert [found.change(p) for p in (first, second, third)] == [FASTER, SLOWER, SAME]
    assert first.ratio == pytest.approx(2.0) and first.interval is not None
    assert first.interval[0] < 2.0 < first.interval[1] and first.rescheduled and not second.rescheduled
    assert found.pairs[0].gained_s == max(abs(p.gained_s) for p in found.pairs)
    assert found.common_s == pytest.approx((a.total_after_s, b.total_after_s))


def test_what_the_same_binary_drifts_is_no_change(a: Result, b: Result) -> None:
    slow = [replace(r, baseline=replace(r.baseline, cold_s=2.5 * r.baseline.cold_s)) for r in b.regions]
    drifted = match(a, replace(b, regions=tuple(slow)), names=NAMES)
    assert {drifted.change(pair) for pair in drifted.pairs} == {SAME}
    assert any("took 2.500 times as long in B" in sentence for sentence in drifted.differences)
    wide = [replace(r, chosen=replace(r.chosen, interval_s=(1e-9, 1.0))) for r in b.regions]
    unsure = match(a, replace(b, regions=tuple(wide)), names=NAMES)
    assert {unsure.change(pair) for pair in unsure.pairs} == {SAME}, "the intervals overlap"


def test_how_far_the_same_binaries_drifted_is_said_also_where_it_is_nothing_or_not_known(a: Result) -> None:
    def drifted(*factors: float, binary: str = "") -> Result:
        rows = [
            replace(
                row,
                baseline=replace(
                    row.baseline, cold_s=row.baseline.cold_s * by, binary_hash=binary or row.baseline.binary_hash
                ),
            )
            for row, by in zip(a.regions, [*factors, *[1.0] * len(a.regions)], strict=False)
        ]
        return replace(a, regions=tuple(rows))

    assert "took 1.000 times as long in B, 1.000 to 1.000 one by one" in drift_line(match(a, a, names=NAMES))
    found = match(a, drifted(1.25, 0.5), names=NAMES)
    assert drift_line(found).endswith("0.500 to 1.250 one by one") and drift_line(found) in render(found).replace(
        "&#39;", "'"
    )
    assert "is not known" in drift_line(match(a, drifted(binary="0" * 64), names=NAMES))
    other = replace(a, target=replace(a.target, model="another"))
    assert drift_line(match(a, other, names=NAMES)) == "", "nothing is compared"


def test_a_kernel_that_one_run_did_not_time_is_in_no_total(a: Result, b: Result) -> None:
    first, *rest = b.regions
    none = replace(first.baseline, cold_s=0.0)
    found = match(a, replace(b, regions=(replace(first, baseline=none, chosen=none), *rest)), names=NAMES)
    (pair,) = (pair for pair in found.pairs if pair.a.region == first.region)
    assert found.change(pair) == "not timed" and pair.gained_s == 0
    assert found.common_s[0] == pytest.approx(a.total_after_s - pair.a.after_s)
    text = " ".join(printed(found).split())
    assert "1 kernel were not timed in B" not in text and "1 kernel was not timed in B" in text
    assert "15 kernels timed in both" in text and " 0 s " not in text
    assert "not timed" in render(found) and "> 0 s<" not in render(found)


def test_different_targets_come_first_and_have_no_ratios(a: Result, b: Result) -> None:
    other = replace(b, target=replace(b.target, model="NVIDIA H100", cores=114))
    found = match(a, replace(other, protocol=2, allow_tf32=True), names=NAMES)
    assert not found.comparable
    assert "model NVIDIA H200 → NVIDIA H100, cores 132 → 114" in found.differences[0]
    assert "protocols 1 and 2" in found.differences[1] and "in B only" in found.differences[2]
    text = " ".join(printed(found).split())
    assert text.index("The targets differ") < text.index("kernel calls")
    page = " ".join(Page(render(found)).text)
    for shown in (text, page):
        assert "B against A" not in shown and "faster," not in shown
    assert not any("ratio" in kernel or "change" in kernel for kernel in to_dict(found)["kernels"])


def test_toolchains_and_workloads_that_differ_are_named(a: Result, b: Result) -> None:
    newer = replace(b, preset="768", toolchain=replace(b.toolchain, compiler="NVRTC 13.0"), complete=False)
    found = match(a, newer, names=NAMES)
    sentences = " ".join(found.differences)
    assert found.comparable and "compiler NVRTC 12.4 → NVRTC 13.0" in found.differences[0]
    assert "flux mini and flux 768" in sentences and "B is not complete: the run ended before all was done" in sentences
    assert match(a, a, names=NAMES).differences == ()


def test_the_terminal_and_the_json_say_the_same(found: Comparison) -> None:
    text = printed(found)
    assert max(map(len, text.splitlines())) <= 80 and len(text.splitlines()) <= 24 and "\x1b" not in text
    assert "in B 1 faster, 1 slower, 14 same" in " ".join(text.split())
    document = json.loads(json.dumps(to_dict(found), allow_nan=False))
    assert [k["change"] for k in document["kernels"]].count("same") == 14
    assert document["a"]["after_s"] == found.a.total_after_s and document["differences"] == []


def test_what_a_foreign_result_says_steers_no_terminal(a: Result) -> None:
    foreign = "\x1b]0;a title\x07\x9b31m"
    rows = (replace(a.regions[0], origins=((f"layer{foreign}", 1),)), *a.regions[1:])
    text = printed(match(a, replace(a, preset=foreign, regions=rows, warnings=(foreign,)), names=NAMES))
    assert not {"\x1b", "\x07", "\x9b"} & set(text) and r"\x1b]0;a title\x07\x9b31m" in text


def test_the_page_has_both_schedules_and_loads_nothing(found: Comparison) -> None:
    text = render(found)
    page = Page(text)
    shown = " ".join(" ".join(page.text).split())
    pair = found.pairs[0]
    for words in (describe(pair.a.chosen.schedule), describe(pair.b.chosen.schedule), *NAMES, "2.00×", found.a.command):
        assert words in shown, words
    assert "<b>name</b>" not in text and "default-src 'none'" in text and len(text.encode()) < 300_000
    planned = match(sample_result(), sample_plan(), names=NAMES)
    shown = " ".join(" ".join(Page(render(planned)).text).split())
    assert "2 regions of several kernels became one program each" in shown
    assert planned.only_a and planned.only_b and f"{how_many(row.region for row in planned.only_b)} in B only" in shown


def test_bad_input_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, a: Result) -> None:
    monkeypatch.chdir(tmp_path)
    write_result(a, tmp_path / "a" / "RESULT.json")
    write_result(replace(a, regions=sample_plan().regions[-2:], expectations=()), tmp_path / "c" / "RESULT.json")
    (tmp_path / "text").write_text("no result")
    document = json.loads((tmp_path / "a" / "RESULT.json").read_text())
    (tmp_path / "newer").write_text(json.dumps({**document, "schema": SCHEMA + 1}))
    (tmp_path / "b").mkdir()
    for arguments, says in (
        (["a", "a/RESULT.json"], "are one file: give two results"),
        (["a", "none"], "there is no none: give the RESULT.json of a run"),
        (["a", "b"], "there is no b/RESULT.json: give the RESULT.json of a run"),
        (["a", "text"], "text is truncated or not JSON"),
        (["a", "newer"], "newer is not a result"),
        (["a", "c"], "have no kernel in common (flux mini and flux mini)"),
    ):
        with pytest.raises(KcgError) as caught:
            app(arguments, standalone_mode=False)
        assert says in str(caught.value) and "\n" not in str(caught.value)
        assert caught.value.exit_code == ExitCode.USAGE
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "RESULT.json").write_text((tmp_path / "a" / "RESULT.json").read_text())
    with pytest.raises(KcgError, match="is no name for a page"):
        app(["a", "d", "--out", "d/RESULT.json"], standalone_mode=False)


def test_the_command_writes_the_page_beside_b(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], a: Result, b: Result
) -> None:
    for name, result in (("a", a), ("b", b)):
        write_result(result, tmp_path / name / "RESULT.json")
    done = python("-m", "kcg.compare", "a", "b", cwd=tmp_path)
    assert done.returncode == ExitCode.OK, done.stderr
    assert done.stdout.endswith("page: b/compare.html\n") and "1 slower" in done.stdout
    (tmp_path / "b" / "compare.html").rename(tmp_path / "page.html")
    monkeypatch.chdir(tmp_path)
    app(["a", "b", "--json"], standalone_mode=False)
    assert len(json.loads(capsys.readouterr().out)["kernels"]) == 16
    assert not (tmp_path / "b" / "compare.html").exists()
    with pytest.raises(UsageError, match="no kernel in common"):
        match(a, replace(a, regions=()), names=NAMES)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path")
def test_the_page_fits_and_is_sorted_and_filtered(found: Comparison, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        path = tmp_path / "compare.html"
        path.write_text(render(found))
        for width, dark in ((390, True), (1200, False)):
            browser.open(path.as_uri(), width=width, dark=dark)
            browser.wait("document.documentElement.dataset.script === 'ready'")
            assert browser.js("document.documentElement.scrollWidth") == width
            inner = "[...document.querySelectorAll('.table')].map(t => t.scrollWidth - t.clientWidth)"
            assert max(browser.js(inner)) <= 0, "nothing has to be scrolled"
        cells = "#compare-table tbody tr:not([hidden]) [data-l=change]"
        rows = f"[...document.querySelectorAll('{cells}')].map(c => c.innerText)"
        browser.js("[...document.querySelectorAll('th button')].find(b => b.textContent === 'B against A').focus()")
        browser.key("Enter")
        shown = browser.js(rows)
        assert shown[0] == FASTER and shown[-1] == SLOWER and len(shown) == 16
        browser.js("document.getElementById('kernel-filter').focus()")
        browser.send("Input.insertText", text="faster")
        assert browser.js(rows) == [FASTER] and browser.messages == []
