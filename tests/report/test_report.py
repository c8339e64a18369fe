"""The report is one page that loads nothing and says everything; the console says the same, briefly."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kcg.errors import UsageError
from kcg.kernel.kinds import describe
from kcg.kernel.tile.parameters import TileParameters
from kcg.optimize.console import LEAST_ROWS, SCREEN, print_result, progress
from kcg.pictures import COLORS
from kcg.report.formats import format_seconds, format_speedup
from kcg.report.next_steps import next_steps
from kcg.report.page import _FAILURES, _OUTCOMES, render_report, write_report
from kcg.report.result import OUTCOMES
from kcg.report.words import end_of, put_in
from kcg.types import Kernel, ModelCheck, Region, RegionInPlan, RegionResult, Result, Schedule, Status, Target
from tests.html_page import Page
from tests.sample_result import sample_plan, sample_result
from tests.slow import first, some
from tests.waiting import PATIENCE_S


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
    rest = page_text.replace(page.scripts["packed"], "")
    assert not re.search(r"(https?:)?//[a-z]|@import|url\(", rest, re.IGNORECASE)
    policies = [a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policies and "default-src 'none'" in (policies[0] or "")


def test_a_tile_program_stands_under_the_name_of_its_kernel_beside_the_best_opts() -> None:
    result = sample_result()
    first, *others = result.regions
    body = TileParameters("contraction", ((0,), (1,)), (128, 256), reduce_tile=64, loads="tma", num_warps=8).to_json()
    schedule = Schedule("tile", body)
    chosen = replace(first.chosen, schedule=schedule, name=first.baseline.name, legend="matmul; tiles of 128 × 256")
    result = replace(result, regions=(replace(first, chosen=chosen, opts=first.chosen), *others))
    page = Page(render_report(result))
    shown = " ".join(" ".join(page.text).split())
    for words in (describe(schedule), describe(first.chosen.schedule), "Best Opts", first.baseline.name):
        assert words in shown
    console = Console(file=io.StringIO(), width=160, color_system=None)
    print_result(result, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    (line,) = [line for line in printed.splitlines() if "tile 128" in line]
    assert line.startswith("double_blocks.*.img_mlp.0 (19) +1"), "where the kernel comes from is first"
    assert "8 of 16 kernels improved, 1 tile program" in " ".join(printed.split())


def test_page_is_small(page_text: str) -> None:
    assert len(page_text.encode()) < 500_000


def many(result: Result, times: int) -> Result:
    """The same with so many times the kernels, their sources nine times as long, and 3,000 measurements at least."""
    rows = [replace(r, chosen=replace(r.chosen, source=r.chosen.source * 9)) for r in result.regions]
    seen = [replace(e, region=e.region + 16 * (i % times)) for i, e in enumerate(result.expectations * 32)]
    return replace(result, regions=tuple(rows * times), expectations=tuple(seen))


@pytest.mark.usefixtures("drawn")
@pytest.mark.slow
def test_page_stays_small_with_hundreds_of_kernels() -> None:
    result = many(sample_result(), 20)
    text = render_report(result)
    assert len(text.encode()) < 3_000_000
    assert f"{320 - COLORS} more kernels" in text
    assert re.search(r"The sources of \d+ kernels, those that take least, would make this page too large", text) is None
    timed = [e for e in result.expectations if e.measured_s is not None]
    assert len(timed) < len(result.expectations) and f"Half of the {len(timed):,} measurements" in text


def test_page_says_everything(page: Page) -> None:
    sample = sample_result()
    text = " ".join(" ".join(page.text).split())
    for row in sample.regions:
        for finalist in (row.baseline, row.chosen):
            assert finalist.name in text
            assert finalist.legend in text
            assert describe(finalist.schedule) in text
        assert row.region.id in text
        assert row.note in text
    for word in (
        *sample.warnings,
        *dict(sample.failures),
        sample.command,
        "seed 7",
        "1,311 compilations",
        "guided by h200-workload",
        "NVIDIA H200",
        "14 March 2026",
        "69.3 ms",
        "36.7 ms",
        "1.89×",
        "504",
        "5 min 12 s",
        "fresh process",
        sample.recomputes[0].advice,
        "the references disagree",
        "start_pos = 17",
        "212 to 698, median 603.5 W",
        "1,590 to 1,980, median 1,965 MHz",
        "capturing the workload 4.00 s, opening the device 2.00 s",
    ):
        assert word in text, word


def test_page_and_console_show_the_plan() -> None:
    result = sample_plan()
    console = Console(file=io.StringIO(), width=80, color_system=None)
    print_result(result, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, printed.splitlines())) <= 80
    page = " ".join(" ".join(Page(render_report(result)).text).split())
    for text in (page, " ".join(printed.split())):
        assert (
            "2 regions of several kernels became one program each, run 133 times: saves 7.31 ms and 353 GB in all"
            in text
        )
        assert "its whole step is the fastest of 3 that are right" in text
        for words in ("row group", "57", "104 µs", "6.12 GB", "everywhere", "76", "18.2 µs", "56.7 MB", "74 of 76"):
            assert words in text, words
        for words in ("every kernel alone", "39.1 ms", "41.9 ms", "chosen", "wrong"):
            assert words in text, words
    for words in ("37.1 ms", "14 candidate regions are not in it: no program is faster than the best schedules of"):
        assert words in page, words
    for name in (
        "r_2_32_3072_4 + r_2_32_3072_4n1 + E_512_64_3_8_4",
        "another call uses a value that it does not store",
    ):
        assert name in page
    assert "18.2 µs 16.4 µs to 21.6 µs" in page, "timed among the calls around it"
    assert "Best of its parts" in page and "Best Opts" not in page
    assert "of 11 kernels and 2 of 2 regions improved" in " ".join(printed.split())


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (None, "not seen; 2 left: a reason"),
        (ModelCheck(None, "not run: no time"), "not seen; 2 left: a reason"),
        (ModelCheck(True, after_s=0.1, replaced=(("id", 3),)), "everywhere"),
        (ModelCheck(True, after_s=0.1, replaced=(("id", 2),), left=(("id", "another", 1),)), "2 of 3; 1 left: another"),
        (ModelCheck(None, after_s=0.1), "0 of 3"),
        (ModelCheck(True, runs=2, replaced=(("id", 1),)), "everywhere"),
        (ModelCheck(True, runs=2, replaced=(("id", 1),), left=(("id", "another", 4),)), "1 times; 4 left: another"),
        (ModelCheck(None, runs=2, replaced=(("other", 1),)), "nowhere"),
    ],
)
def test_where_a_region_was_put_in_is_said(check: ModelCheck | None, words: str) -> None:
    one = RegionInPlan("id", ("a", "b"), "row group", 3, 1e-6, 1e3, (("a reason", 2),))
    assert put_in(one, check) == words


def test_page_and_console_say_that_every_kernel_stays_alone() -> None:
    planning = sample_plan().planning
    assert planning is not None
    plans = tuple(replace(plan, chosen=not plan.regions) for plan in planning.plans)
    result = replace(sample_result(), planning=replace(planning, regions=(), plans=plans, inside=(), why="so it is"))
    console = Console(file=io.StringIO(), width=80, color_system=None)
    print_result(result, console)
    for text in (console.file.getvalue(), render_report(result)):  # type: ignore[attr-defined]
        assert "lan: every kernel stays alone: so it is" in text and "ecame one program" not in text


@pytest.mark.slow
def test_page_and_console_report_the_result_on_the_whole_model(page: Page) -> None:
    text = " ".join(" ".join(page.text).split())
    assert "The whole model" in text and "0.0031, at most 0.043 passes; seed 7" in text and "71.3 ms → 39.1 ms" in text
    assert "one step, captured and replayed (device events, median of 5 in turns)" in text
    results = {
        "": (
            "",
            "whole model: verified, error 0.0031 of a tolerated 0.043; one step 71.3 ms → 39.1 ms by device events",
        ),
        "the output <b> differs": (
            "Do not use this result",
            "whole model: FAILED, do not use this result: the output <b>",
        ),
        "not run: the workload is a script": ("none: not run: the workload is a", "whole model: not run: the workload"),
    }
    for reason, (on_page, on_console) in results.items():
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
        assert on_console in " ".join(stream.getvalue().split())
    without = render_report(replace(sample_result(), model_check=None))
    assert "The whole model" not in without


def test_foreign_text_is_escaped(page: Page, page_text: str) -> None:
    assert "<b>tiled</b>" not in page_text and "<b>name</b>" not in page_text
    assert "&lt;b&gt;name&lt;/b&gt;" in page_text
    assert {t for t, _ in page.tags} <= {
        "html",
        "head",
        "meta",
        "title",
        "link",
        "style",
        "body",
        "main",
        "header",
        "h1",
        "h2",
        "h3",
        "p",
        "div",
        "b",
        "span",
        "section",
        "table",
        "thead",
        "tbody",
        "tfoot",
        "tr",
        "th",
        "wbr",
        "td",
        "details",
        "summary",
        "dl",
        "dt",
        "dd",
        "ul",
        "li",
        "code",
        "pre",
        "script",
        "a",
        "nav",
        "strong",
        "label",
        "select",
        "input",
        "noscript",
        "svg",
        "text",
        "circle",
        "path",
    }
    assert any('"strange" <b>name</b> & ✓' in tip for tip in json.loads(page.scripts["tips"])["expected"])


@pytest.mark.usefixtures("drawn")
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
    assert path.read_text() == render_report(sample_result(), tmp_path / "new" / "RESULT.json")
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write") as caught:
        write_report(sample_result(), tmp_path / "file")
    assert "\n" not in str(caught.value)


# --- console ---


def printed(result: Result, *, files: tuple[Path, Path] | None = None, **options: object) -> str:
    stream = io.StringIO()
    print_result(result, Console(file=stream, **options), files=files)  # type: ignore[arg-type]
    return stream.getvalue()


def test_no_name_of_a_layer_steers_the_terminal() -> None:
    result = sample_result()
    rows = tuple(replace(row, origins=(("layer\x1b[31m", row.calls),)) for row in result.regions)
    text = printed(replace(result, regions=rows, warnings=("\x1b]0;title\x07",)), width=200)
    assert "\x1b" not in text and r"layer\x1b[31m" in text and r"\x1b]0;title\x07" in text


def test_a_kernel_that_was_not_timed_has_no_time() -> None:
    """As in a run that was interrupted while tinygrad's own schedules were timed."""
    timed, *others = sample_result().regions
    none = replace(timed.baseline, cold_s=0.0)
    untimed = [replace(r, baseline=none, chosen=none, outcome="not searched", note="interrupted") for r in others]
    for count in (len(untimed), 60):
        rows = tuple(replace(untimed[i % len(untimed)], calls=i + 1) for i in range(count))
        text = " ".join(printed(replace(sample_result(), regions=(timed, *rows)), width=200).split())
        assert " 0 s " not in text
        assert f"{len(untimed)} kernels were not timed: the totals are without them" in text
    assert "not timed" not in printed(replace(sample_result(), regions=(timed,)), width=200)


def test_the_values_of_a_kernels_variables_are_reported_once_with_what_is_timed_at_each_end() -> None:
    assert printed(sample_result(), width=100).count("start_pos 1 to 17") == 1
    page = render_report(sample_result())
    (row,) = (row for row in sample_result().regions if row.ends)
    low, high = (f"{format_seconds(end.before_s)} → {format_seconds(end.after_s)}" for end in row.ends)
    assert f"a call takes {low} with start_pos 1, as 25% of the calls count, and {high} with start_pos 17" in page
    fixed = replace(sample_result(), regions=tuple(r for r in sample_result().regions if not r.ends))
    assert "values" not in printed(fixed, width=100).splitlines()[0]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_table_fits_and_is_plain_when_piped(width: int) -> None:
    text = printed(sample_result(), width=width)
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= min(width, 100)
    lines = text.splitlines()
    shown = next(place for place, line in enumerate(lines) if line.startswith("... and ")) - 1
    assert LEAST_ROWS <= shown < 8, "with so many warnings a few"
    assert lines[1].startswith(("double_blocks", "…")) and ".0 (19) +1" in lines[1] and "15.7 ms" in lines[1]
    assert f"... and {8 - shown} more improved: " in text
    assert "69.3 ms → 36.7 ms, 1.89×" in text
    assert "failed: 41 compile_error, 17 resource, 2 wrong, 1 worker_died" in text
    message = " ".join(text.split())
    assert "8 of 16 kernels improved" in message
    assert "not improved: 4 kept, 1 undecided, 1 unjudged, 1 quarantined, 17.6 ms, 25 % of the time" in message
    assert "not searched: 1, 373 µs, 1 % of the time: the time for searching was over" in message
    unjudged = next(row for row in sample_result().regions if row.outcome == "unjudged")
    assert f"unjudged: {unjudged.baseline.name} keeps tinygrad's own schedule: {unjudged.note}" in message
    assert "no clang: <CPU>" in text


def test_the_report_has_words_for_every_outcome_and_status() -> None:
    assert tuple(_OUTCOMES) == OUTCOMES
    assert set(_FAILURES) == {str(status) for status in Status if status != Status.OK}


def test_no_color_is_honoured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" in printed(sample_result(), width=100, force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed(sample_result(), width=100, force_terminal=True)


def like_flux_mini() -> Result:
    """What `kcg optimize flux/mini` comes to on a CPU: 55 kernels, of which 18 improved and most were not searched."""
    sample = sample_result()
    improved = [row for row in sample.regions if row.outcome == "improved"]
    idle = [replace(row, outcome="not searched", note="time is over", chosen=row.baseline) for row in improved * 5]
    kept = [row for row in sample.regions if row.outcome == "kept"]
    rows = (*improved, *improved, *improved[:2], *kept[:1], *idle[:36])
    kernels = [Region((Kernel(f"{{{number}}}"),)) for number in range(len(rows))]
    assert sample.model_check is not None
    return replace(
        sample,
        regions=tuple(replace(row, region=region) for row, region in zip(rows, kernels, strict=True)),
        target=replace(sample.target, device="CPU", renderer="CLANG"),
        model_check=replace(sample.model_check, clock="wall clock, median of 5 in turns"),
        failures=(),
        warnings=(),
        recomputes=(),
    )


@pytest.mark.parametrize("planned", [False, True])
def test_the_end_of_a_run_fits_a_screen(planned: bool) -> None:
    """Table, plan, totals and what to do next, and under them the shell's prompt."""
    plan = sample_plan().planning
    assert plan is not None
    result = replace(like_flux_mini(), complete=planned)
    if planned:
        result = replace(result, planning=replace(plan, regions=plan.regions * 4))
    text = printed(result, width=100, files=(Path("kcg-out/flux/RESULT.json"), Path("kcg-out/flux/report.html")))
    lines = text.splitlines()
    assert len(lines) < SCREEN, text
    commands = lines[lines.index("next:") :]  # which are whole, however long the path of a compiler is
    assert max(len(line) for line in lines[: -len(commands)]) <= 100
    assert "  kcg apply " in text and "not improved: 1 kept" in text and "not searched: 36" in text
    assert re.search(r"\.\.\. and \d+ more improved", text)
    assert ("... and 6 more regions: save" in text) is planned


def test_what_to_do_next_is_whole_and_explained_where_that_fits() -> None:
    deep = Path("a/rather/long/folder/with a space/RESULT.json")
    for width in (60, 100, 200):
        lines = printed(sample_result(), width=width, files=(deep, deep.with_name("report.html"))).splitlines()
        _, *steps = lines[lines.index("next:") :]
        assert [line.split("  #")[0].strip() for line in steps] == [
            s.command for s in next_steps(sample_result(), deep)
        ]
        assert all(len(line) <= max(width, len(line.split("  #")[0])) for line in steps)


def test_what_did_not_improve_is_counted_and_no_table_is_left() -> None:
    rows = tuple(row for row in sample_result().regions if row.outcome != "improved")
    text = printed(replace(sample_result(), regions=rows), width=100)
    assert text.splitlines()[0].startswith("not improved: 4 kept") and "speed-up" not in text
    assert "0 of 8 kernels improved" in text


@pytest.mark.parametrize(
    ("origins", "name"),
    [
        ((("double_blocks.*.img_attn.qkv", 19),), "double_blocks.*.img_attn.qkv"),
        ((("a.b", 3), ("c.d", 2), ("e.py:1", 1)), "a.b (3) +2"),
        ((), "r_80_32_4_4_64_4_4"),
    ],
)
def test_a_kernel_is_called_by_its_layer_where_that_is_known(origins: tuple[tuple[str, int], ...], name: str) -> None:
    row = replace(sample_result().regions[0], origins=origins)
    header, line, *_ = printed(replace(sample_result(), regions=(row,)), width=100).splitlines()
    assert line.startswith(f"{name}  ") and header.startswith("layer" if origins else "kernel")


def test_of_a_long_path_the_end_is_shown() -> None:
    assert end_of("model.blocks.*.attention.query", 12) == "…ntion.query"
    assert end_of("model", 12) == "model"


def test_old_locales_get_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    print_result(sample_result(), Console(file=stream, width=100))
    with progress(stream=stream) as p:
        p.phase("très")
        p.update(done_s=1.0, total_s=3e-6)
    assert b"373 us" in raw.getvalue() and b"1.89x" in raw.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3e-10, "0.30 ns"),
        (9.996e-9, "10.0 ns"),
        (411.2e-6, "411 µs"),
        (999.6e-6, "1.00 ms"),
        (0.0123, "12.3 ms"),
        (1, "1.00 s"),
        (99.96, "1 min 40 s"),
        (312.4, "5 min 12 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (-2e-3, "-2.00 ms"),
        (math.nan, "–"),
        (math.inf, "–"),
        (None, "–"),
    ],
)
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
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=follower,
        env=environment,
        timeout=PATIENCE_S,
        check=True,
    )
    os.close(follower)
    seen = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert done.stdout == b"on stdout\n"
    assert "said [b]" in seen and "searching ..." in seen and "7 measured" in seen
    assert ("\x1b[" in seen) is not json_mode  # the bar is redrawn in place
    assert not re.search(r"\x1b\[[0-9;]*m", seen), "no colours with NO_COLOR"


def test_console_is_cheap_to_import() -> None:
    script = "import sys, kcg.optimize.console, kcg.report.result, kcg.report.page; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"rich", "matplotlib", "jinja2", "numpy", "tinygrad"}


def with_numbers(value: Any, number: float) -> Any:
    """The same with every float replaced, and with it every count."""
    if isinstance(value, float):
        return number
    if isinstance(value, tuple):
        return tuple(with_numbers(one, number) for one in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, Target | Schedule | Kernel):
        changed = {f.name: with_numbers(getattr(value, f.name), number) for f in dataclasses.fields(value)}
        if isinstance(value, RegionResult):
            changed["calls"] = 0 if number == 0 else value.calls
        return replace(value, **changed)
    return value


ODD = (0.0, 5e-324, 1e-45, 1e308, math.inf, math.nan)


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("number", ODD)
@pytest.mark.parametrize(
    "part", some(["all", "regions", "progress", "expectations", "clocks", "phases", "model_check"], {"all"})
)
def test_no_number_breaks_the_page_or_the_table(part: str, number: float) -> None:
    sample = sample_result()
    fields = [f.name for f in dataclasses.fields(sample) if part in ("all", f.name) and f.name != "target"]
    odd = replace(sample, **{name: with_numbers(getattr(sample, name), number) for name in fields})
    for result in (odd, replace(odd, regions=(), expectations=(), recomputes=())):
        assert "</html>" in render_report(result)
        print_result(result, Console(file=io.StringIO(), width=100))


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("number", first(2, [0.0, 5e-324, None, 1e308]))
def test_a_target_that_reports_no_bandwidth_or_clock_has_a_page(number: float | None) -> None:
    sample = sample_result()
    target = replace(sample.target, bandwidth_bytes_s=number or 0.0, clock_limit_mhz=number, cores=0)
    assert "</html>" in render_report(replace(sample, target=target))


def test_what_a_page_takes_can_be_loaded_before() -> None:
    """Whoever is idle does so: drawing a page loads no module and compiles no template then."""
    code = (
        "import sys\nfrom kcg.report.page import environment, get_ready, render_report\n"
        "from tests.report.test_report import sample_result\nresult = sample_result()\nget_ready()\n"
        "loaded = {one for one in sys.modules if one.partition('.')[0] in ('matplotlib', 'jinja2')}\n"
        "templates = len(environment().cache)\nrender_report(result)\n"
        "now = {one for one in sys.modules if one.partition('.')[0] in ('matplotlib', 'jinja2')}\n"
        "assert now == loaded and len(environment().cache) == templates, now - loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
