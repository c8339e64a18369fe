"""The numbers of a dataset are what a reader would count; they fit on a terminal, and on a page that needs nothing."""

from __future__ import annotations

import io
import math
import re
import shutil
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console
from tinygrad import Tensor

from kcg.dataset.__main__ import main
from kcg.dataset.export import export, read_export
from kcg.dataset.journal import Journal, Run
from kcg.dataset.stats import (
    MOST_REASONS,
    Stats,
    WorkloadStats,
    _most_of_each,
    duration,
    percent,
    quartiles,
    render,
    share,
    stats,
)
from kcg.dataset.stats_page import _families, _runtimes, _schedules, _walks, failures_of, render_page
from kcg.errors import ExitCode
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import Opt, schedule_of
from kcg.pictures import Picture
from kcg.types import Kernel, Measurement, Region, Status, Toolchain, Workload, WorkloadCall
from tests.browser import CHROMIUM, Browser
from tests.commands import ended
from tests.html_page import Page
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS

TARGET = replace(KNOWN_TARGETS["sm_90"], model="NVIDIA <b>H200</b>")
TOOLCHAIN = Toolchain("0.14.0", "NVRTC 13.0", "580", "", 1)
SCRIPT = 'script:<b>"x"</b>'
UP, UP2, LOCAL = Opt("UPCAST", 0, 4), Opt("UPCAST", 1, 2), Opt("LOCAL", 0, 8)


def _kernel(tensor: Tensor) -> Kernel:
    (ast,) = kernels_of(tensor)
    return kernel_of(ast)


@cache
def kernels() -> tuple[Kernel, ...]:
    """A half-precision matmul, the same in float32, a sum, and a map over integers."""
    return (
        _kernel(empty(64, 64, dtype="bfloat16") @ empty(64, 64, dtype="bfloat16")),
        _kernel(empty(32, 64) @ empty(64, 32)),
        _kernel(empty(64, 64).sum(0)),
        _kernel(empty(64, dtype="int32") + 1),
    )


def row(of: int, opts: tuple[Opt, ...], seconds: float, **changes: object) -> Measurement:
    """A row of the `of`-th kernel with status ok, its binary named after its time."""
    made = Measurement(
        kernels()[of].id,
        schedule_of(opts),
        TARGET.fingerprint,
        TOOLCHAIN.fingerprint,
        1,
        Status.OK,
        input_recipe="normal-v1:seed=0",
        samples_s=(seconds, seconds, seconds),
        binary_hash=f"b{of}{seconds}",
        early_stop=True,
        sampler="walk:raw",
        run_id="r1",
        clocks=(("sm_mhz", 1980.0),),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def sample(journal: Journal) -> None:
    """Three families, four measured kernels, two runs; what fails, shares a binary, and was timed again."""
    regions = [WorkloadCall(Region((k,)), 2) for k in kernels()]
    journal.add_workload(Workload("flux", "mini", (regions[0], regions[2])))
    journal.add_workload(Workload("gpt2", "mini", (regions[1], regions[2])))
    journal.add_workload(Workload("gpt2", "mini_f16", (regions[1],)))
    journal.add_workload(Workload(SCRIPT, "--n 3", (regions[3],)))
    journal.add_target(TARGET)
    journal.add_toolchain(TOOLCHAIN)
    mix = {"mix": {"walk:raw": 0.5, "beam:2/8": 0.5}, "seed": 0, "shard": [1, 1], "kernels_per_family": None}
    for run, day in (("r1", 1), ("r2", 2)):
        journal.add_run(Run(run, f"2026-01-0{day}T00:00:00+00:00", "python -m kcg.dataset generate", mix))
    failed: dict[str, object] = {"samples_s": (), "binary_hash": ""}
    rows = [
        *(row(i, (UP,), 40e-6, sampler="hand-coded") for i in range(4)),
        *(row(i, (), 80e-6, sampler="raw", run_id="r2") for i in range(4)),
        row(0, (UP, LOCAL), 10e-6, sampler="beam:2/8"),
        row(0, (LOCAL, UP), 10e-6, sampler="beam:2/8"),  # the same binary
        row(1, (UP, UP2), 20e-6),
        row(2, (LOCAL,), 50e-6),
        row(3, (LOCAL,), 1.0, status=Status.WRONG, reason="output 7 differs by <i>3.5</i>", **failed),
        row(3, (UP, LOCAL), 1.0, status=Status.COMPILE_ERROR, reason="no | registers", sampler="beam:2/8", **failed),
        row(0, (UP,), 44e-6, sampler="retime", run_id="r2"),  # a tenth slower on another day
        row(1, (UP,), 40e-6, early_stop=False, sampler="hand-coded"),
        row(1, (UP,), 40.8e-6, early_stop=False, sampler="hand-coded", trial=1),
    ]
    for i, m in enumerate(rows):
        journal.record(m, recorded_unix_s=1000.0 + i * 0.5)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sample") / "sample.sqlite"
    with Journal.open(path) as opened:
        sample(opened)
    return path


@pytest.fixture(scope="module")
def found(journal: Path) -> Stats:
    with Journal.open(journal, read_only=True) as opened:
        return stats(opened)


@pytest.fixture(scope="module")
def page_text(found: Stats) -> str:
    return render_page(found, title="sample.sqlite")


# -- the numbers


def test_rows_schedules_kernels_and_binaries_are_counted(found: Stats) -> None:
    assert (found.rows, found.ok_rows, found.search_rows) == (17, 15, 15)
    assert (found.schedules, found.ok_schedules) == (14, 12)
    assert (found.kernels, found.regions_measured, found.ok_regions) == (4, 4, 4)
    assert (found.unique_binaries, found.sharing_schedules) == (13, 2)
    assert found.statuses == {"ok": 15, "compile_error": 1, "wrong": 1}
    assert found.sampler_statuses["beam:2/8"] == {"ok": 2, "compile_error": 1}
    assert found.sampler_statuses["walk:raw"] == {"ok": 2, "wrong": 1}
    assert found.schedule_counts == {3: 2, 4: 2} and found.schedules_per_kernel == (3, 3.5, 4)
    assert found.runs == {"r1": 12, "r2": 5}
    assert found.dtypes == {"float32": 8, "bfloat16": 5, "integers only": 4}
    assert list(found.targets.values()) == [f"{TARGET.model} (CUDA, sm_90)"]


def test_gains_are_of_families_with_each_kernel_once(found: Stats) -> None:
    flux, gpt2, script = found.families
    assert (flux.name, flux.presets, flux.kernels, flux.rows, flux.compared) == ("flux", ("mini",), 2, 8, 2)
    assert flux.quartiles == pytest.approx((1.0, 1.75, 2.5, 3.25, 4.0))
    assert flux.speedup == pytest.approx(2.0)
    assert (gpt2.presets, gpt2.kernels, gpt2.compared) == (("mini", "mini_f16"), 2, 2)
    assert gpt2.speedup == pytest.approx(math.sqrt(2))
    assert [w.name for w in found.workloads] == ["flux/mini", "gpt2/mini", "gpt2/mini_f16", f"{SCRIPT}/--n 3"]
    assert (script.name, script.rows, script.ok_rows, script.speedup) == (SCRIPT, 4, 2, 1.0)


def test_actions_count_distinct_schedules_and_kernels(found: Stats) -> None:
    report = {(a.op, a.arg): (a.schedules, a.regions) for a in found.action_coverage}
    assert report == {
        ("LOCAL", None): (5, 3),
        ("LOCAL", "8"): (5, 3),
        ("UPCAST", None): (8, 4),
        ("UPCAST", "4"): (8, 4),
        ("UPCAST", "2"): (1, 1),
    }
    assert found.walk_lengths == {0: 4, 1: 6, 2: 4}


def test_runtimes_fall_into_bins(found: Stats) -> None:
    assert found.runtime_quartiles[0] == 10e-6 and found.runtime_quartiles[4] == 80e-6
    assert sum(count for _, count in found.runtimes) == found.ok_rows
    lows = [low for low, _ in found.runtimes]
    assert lows[0] <= 10e-6 * (1 + 1e-12) and lows[-1] <= 80e-6 < lows[-1] * 10 ** (1 / 8)
    assert quartiles([]) == () and quartiles([3.0]) == (3.0,) * 5


def test_what_was_timed_again_reports_noise_and_drift(found: Stats) -> None:
    (noise,) = found.noise_floors
    assert (noise.shorter_than_s, noise.kernels) == (100e-6, 1) and noise.median == pytest.approx(0.02)
    (drift,) = found.drift
    assert (drift.shorter_than_s, drift.compared) == (100e-6, 1) and drift.p90 == pytest.approx(0.1)
    assert found.search_noise == ()


def test_splits_report_kernels_rows_and_shape_classes(found: Stats) -> None:
    assert set(found.splits) == {"workload", "kernel", "twin", "alike"}
    for parts in found.splits.values():
        assert sum(p.kernels for p in parts.values()) == 4 and sum(p.rows for p in parts.values()) == 17
    assert found.splits["workload"]["test"].kernels == 2  # all of Flux
    assert all(p.twins == 0 for p in found.splits["twin"].values())
    assert all(
        p.near <= p.kernels and not parts["train"].near for parts in found.splits.values() for p in parts.values()
    )
    assert found.splits["alike"]["test"].kernels >= 2 and found.kinds == {"opts": 17}


def test_an_export_has_the_numbers_of_its_journal(found: Stats, journal: Path, tmp_path: Path) -> None:
    with Journal.open(journal, read_only=True) as opened:
        export(opened, tmp_path / "out")
    exported = stats(read_export(tmp_path / "out"))
    rounded = ("runtimes", "runtime_quartiles", "rows_per_second", "families", "workloads", "noise_floors", "drift")
    for field in fields(Stats):
        if field.name not in rounded:
            assert getattr(exported, field.name) == getattr(found, field.name), field.name
    assert exported.runtime_quartiles == pytest.approx(found.runtime_quartiles)
    assert [f.speedup for f in exported.families] == pytest.approx([f.speedup for f in found.families])
    assert [d.median for d in exported.drift] == pytest.approx([d.median for d in found.drift], rel=1e-5)


# -- on a terminal


def printed(found: Stats, width: int = 120) -> str:
    stream = io.StringIO()
    render(found, Console(file=stream, width=width))
    return stream.getvalue()


def test_the_terminal_says_it_all_and_reads_no_markup(found: Stats) -> None:
    text = printed(found)
    for expected in (
        "17, of them 15 ok",
        "14 distinct, 12 ok",
        "NVIDIA <b>H200</b>",
        SCRIPT,
        "2 schedules share",
        "UPCAST 57% (4, 2)",
        "10 µs to 80 µs",
        "workload 2 / 0 / 2",
        "1.41×",
        "4.00×",
        "flux/mini",
        "10% (90%: 10%) below 100 µs",
        "no | registers",
    ):
        assert expected in text, expected
    assert "\x1b" not in text


def test_a_zoo_of_300_presets_fits_on_a_page(found: Stats) -> None:
    family = found.families[1]
    many = tuple(replace(family, name=f"family_{i}", presets=tuple(f"p{n}" for n in range(7))) for i in range(44))
    zoo = replace(found, families=many, workloads=(WorkloadStats("a/b", 1, 1, None, 0),) * 308)
    lines = printed(zoo).splitlines()
    assert len(lines) <= 70 and max(map(len, lines)) <= 120
    assert sum(line.startswith("family_") for line in lines) == 44
    assert printed(zoo, width=80).count("family_") == 44


def test_small_texts() -> None:
    assert [share(n, 1000) for n in (0, 1, 4, 99, 120, 1000)] == ["0%", "0.1%", "0.4%", "9.9%", "12%", "100%"]
    assert share(1, 100_000) == "<0.1%" and share(0, 0) == "–"
    assert [percent(x) for x in (0.0, 0.0123, 0.5)] == ["0.0%", "1.2%", "50%"]
    assert [duration(s) for s in (20e-6, 1e-3, 1.2345, 5e-9)] == ["20 µs", "1 ms", "1.23 s", "5 ns"]


# -- as a page


def picture_of(found: Picture | None) -> Page:
    """A picture as it stands in the page, with what its marks say."""
    assert found is not None
    return Page(found.wide)


def test_the_page_loads_nothing(page_text: str) -> None:
    page = Page(page_text)
    for tag, attributes in page.tags:
        assert tag not in ("a", "iframe", "object", "embed", "base", "form", "img", "i")
        for name in ("src", "srcset", "href", "action", "data", "poster"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert not re.search(r"(https?:)?//[a-z]|@import|url\(|<script", page_text, re.IGNORECASE)
    assert "default-src 'none'" in page_text and len(page_text.encode()) < 100_000


def test_the_page_says_what_the_terminal_says_and_escapes_foreign_text(page_text: str, found: Stats) -> None:
    page = Page(page_text)
    text = " ".join(" ".join(page.text).split())
    for expected in (
        "12 distinct schedules with status ok, of 14",
        SCRIPT,
        "gpt2/mini_f16",
        "NVIDIA <b>H200</b>",
        "output # differs by <i>#</i>",
        "no | registers",
        "From 10 µs to 80 µs",
        "bfloat16",
        "4.00×",
        "search timings of a later run",
        "integers only",
    ):
        assert expected in text, expected
    assert "<b>H200" not in page_text and "<i>" not in page_text
    wide = [a["aria-label"] or "" for tag, a in page.tags if tag == "svg" and "wide" in (a["class"] or "")]
    assert len(wide) == 7 and all(wide), "each has its words"
    families = picture_of(_families(found))
    names = [text for text in families.text if text in ('script:<b>"x"</b>', "gpt2", "flux")]
    assert names == ['script:<b>"x"</b>', "gpt2", "flux"], "from below: the greatest gain is on top"
    rows = re.findall(r"(\d+) rows", " ".join(picture_of(_runtimes(found)).text))
    assert sum(map(int, rows)) == found.ok_rows


def test_failures_are_shown_by_cause_and_what_cannot_be_judged_apart(found: Stats, page_text: str) -> None:
    reasons = {**found.reasons, "unjudged: most outputs are not numbers": 3}
    sampled = {**found.sampler_statuses, "raw": {"ok": 1, "unjudged": 3}}
    statuses = {**found.statuses, "ok": 12, "unjudged": 3}
    odd = replace(found, reasons=reasons, statuses=statuses, sampler_statuses=sampled, unjudged_rows=3, ok_rows=12)
    assert failures_of(odd) == ["compile_error", "wrong"]
    rendered = render_page(odd, title="x")
    page = Page(rendered)
    failed, _, judged = " ".join(" ".join(page.text).split()).partition("What cannot be judged")
    assert "2 of 17 rows failed, 12%" in failed and "12 ok, 2 failed, 3 unjudged" in failed
    assert "wrong 1 row 1 100% output # differs" in failed and "compile_error 1 row 1 100% no | registers" in failed
    assert "most outputs are not numbers" not in failed and "3 100% most outputs are not numbers" in judged
    looks = [a["class"] for tag, a in page.tags if tag == "path" and "status-" in (a["class"] or "")]
    assert list(dict.fromkeys(looks)) == ["status-compile_error", "status-wrong", "status-unjudged"]
    assert "<details" not in rendered.partition("What failed")[2].partition("</section>")[0], "unfolded"
    assert "What cannot be judged" not in page_text


def test_rare_causes_are_kept_beside_frequent_ones() -> None:
    many = {f"resource: cause {chr(97 + i)}": 100 + i for i in range(20)}
    kept = _most_of_each({**many, "wrong: once": 1})
    assert list(kept.values()) == [*range(119, 119 - MOST_REASONS, -1), 1] and "wrong: once" in kept


def test_axes_are_logarithmic_where_the_data_spans_decades(found: Stats) -> None:
    drawn = (_runtimes, _walks, _schedules)
    assert not [draw for draw in drawn if any("(log)" in text for text in picture_of(draw(found)).text)]
    (low, _), *rest = found.runtimes
    wide = replace(
        found,
        runtimes=((low, 5000), *rest),
        walk_lengths={0: 4, 1: 600, 2: 5},
        schedule_counts={1: 3, 5: 400, 1919: 1},
    )
    assert all(any("(log)" in text for text in picture_of(draw(wide)).text) for draw in drawn)
    assert [text for text in picture_of(_schedules(wide)).text if "schedules\n" in text] == [
        "1 schedules\n3 kernels",
        "4 to 7 schedules\n400 kernels",
        "1,024 to 2,047 schedules\n1 kernels",
    ]


def test_an_empty_journal_has_numbers_and_a_page_too(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "empty.sqlite") as opened:
        nothing = stats(opened)
        sampled = Workload("w", "p", (WorkloadCall(Region((Kernel("no AST"),)), 1),))
        opened.add_workload(sampled)
        captured = stats(opened)
    assert nothing.rows == 0 and nothing.families == () and nothing.runtimes == ()
    assert captured.splits == {} and captured.kernels == 1
    for empty_one in (nothing, captured):
        assert "0, of them 0 ok" in printed(empty_one)
        assert "<svg" not in render_page(empty_one, title="x")


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path")
@pytest.mark.parametrize(("width", "look"), [(320, "narrow"), (390, "narrow"), (1200, "wide")])
def test_a_browser_shows_every_picture_without_scripts(tmp_path: Path, page_text: str, width: int, look: str) -> None:
    (tmp_path / "page.html").write_text(page_text)
    with Browser(tmp_path / "profile") as browser:
        browser.open((tmp_path / "page.html").as_uri(), width=width)
        assert browser.js("document.documentElement.scrollWidth") == width
        shown = "[...document.querySelectorAll('.fig')].filter(f => f.getBoundingClientRect().width)"
        assert browser.js(f"{shown}.map(f => f.classList[1])") == [look] * 7
        beyond = (
            "(f => [...f.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect(),"
            " b = f.getBoundingClientRect(); return r.right > b.right + 1 || r.left < b.left - 1 }).length)"
        )
        assert browser.js(f"{shown}.map({beyond})") == [0] * 7
        assert browser.js(f"getComputedStyle({shown}[0].querySelector('.main')).fill") == "rgb(15, 123, 108)"
        assert browser.messages == []


# -- the command


def test_the_command_writes_the_page(journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(journal, tmp_path / "a.sqlite")
    monkeypatch.chdir(tmp_path)
    done = ended(main, "stats", "a.sqlite", "--html", "new/page.html")
    assert done.returncode == ExitCode.OK, done.stderr
    assert "17, of them 15 ok" in done.stdout and done.stdout.endswith("page: new/page.html\n")
    assert "<h1>a.sqlite</h1>" in (tmp_path / "new" / "page.html").read_text()
