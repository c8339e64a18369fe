"""What `kcg.ui` finds below a folder: results, runs that go on or were killed, journals, and what it does not trust."""

from __future__ import annotations

import json
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.dataset.journal import Journal
from kcg.errors import ExitCode, ResultError
from kcg.measure.lock import lock_folder
from kcg.optimize.live import FILE_NAME
from kcg.report.endings import ANSWERED, exit_code_of
from kcg.report.result import read_result
from kcg.types import ModelCheck
from kcg.ui import runs
from kcg.ui.page import curve, render, trends_of
from kcg.ui.runs import Folder
from tests.dataset.test_journal import fill
from tests.html_page import Page
from tests.sample_result import sample_result
from tests.ui_server import edited, live_file, write_reported_run, write_run


def test_a_run_is_shown_with_what_it_came_to(tmp_path: Path) -> None:
    result = write_reported_run(tmp_path / "flux")
    (run,) = Folder(tmp_path).look().runs
    assert (run.workload, run.preset, run.model, run.place) == ("flux", "mini", "NVIDIA H200", "flux")
    assert (run.before_s, run.after_s, run.created) == (result.total_before_s, result.total_after_s, result.created)
    assert run.state == runs.FINISHED and run.report == tmp_path / "flux" / "report.html"
    improved = sum(row.outcome == "improved" for row in result.regions)
    assert run.share == f"{improved} of {len(result.regions)} kernels"


@pytest.mark.parametrize(
    ("exit_code", "state"),
    [
        (ExitCode.INTERRUPTED, runs.INTERRUPTED),
        (ExitCode.DEVICE_UNUSABLE, runs.LOST),
        (ExitCode.NOTHING_SEARCHED, runs.INCOMPLETE),
        (None, runs.INCOMPLETE),
    ],
)
def test_a_run_that_ended_early_says_how(exit_code: int | None, state: str, tmp_path: Path) -> None:
    write_run(tmp_path, complete=False)
    if exit_code is not None:
        live_file(tmp_path).end(exit_code, 9.0)
    found = Folder(tmp_path).look()
    assert [run.state for run in found.runs] == [state] and found.watched == ()


@pytest.mark.parametrize(
    ("outcomes", "check", "code", "state"),
    [
        (("improved", "undecided"), ModelCheck(True, "", 0.0, 0.1), ExitCode.OK, runs.FINISHED),
        (("improved",), ModelCheck(None, "not run: no time"), ExitCode.UNCHECKED, runs.UNCHECKED),
        (("kept", "undecided"), ModelCheck(None), ExitCode.NOTHING_IMPROVED, runs.NOTHING_IMPROVED),
        (("not searched", "unjudged"), ModelCheck(None), ExitCode.NOTHING_SEARCHED, runs.NOTHING_SEARCHED),
    ],
)
def test_it_says_what_the_exit_code_says(
    outcomes: tuple[str, ...], check: ModelCheck, code: ExitCode, state: str, tmp_path: Path
) -> None:
    rows = tuple(row for row in sample_result().regions if row.outcome in outcomes)
    write_run(tmp_path, regions=rows, model_check=check, complete=code in ANSWERED, expectations=(), recomputes=())
    live_file(tmp_path).end(code, 9.0)
    assert exit_code_of(read_result(tmp_path / "RESULT.json")) == code
    assert [run.state for run in Folder(tmp_path).look().runs] == [state]


def test_a_result_with_parts_that_have_launches_to_pass_is_provisional(tmp_path: Path) -> None:
    result = write_run(tmp_path)
    first, *others = result.regions
    some = replace(first, chosen=replace(first.chosen, launches=1000, launches_due=10_000))
    write_run(tmp_path, regions=(some, *others))
    assert [run.state for run in Folder(tmp_path).look().runs] == [runs.PROVISIONAL]


def test_a_result_whose_whole_model_fails_is_wrong(tmp_path: Path) -> None:
    write_run(tmp_path, model_check=ModelCheck(False, "it differs"))
    assert [run.state for run in Folder(tmp_path).look().runs] == [runs.WRONG]


def test_what_an_earlier_run_left_in_the_folder_is_a_run(tmp_path: Path) -> None:
    write_run(tmp_path, name="RESULT-20260101-120000.json", created="2026-01-01T12:00:00+00:00", complete=False)
    (tmp_path / "report-20260101-120000.html").write_text("old")
    write_reported_run(tmp_path)
    live_file(tmp_path).end(ExitCode.INTERRUPTED, 9.0)
    new, old = Folder(tmp_path).look().runs
    assert (old.created, old.state) == ("2026-01-01T12:00:00+00:00", runs.INCOMPLETE), "the state is the newest run's"
    assert (new.report, old.report) == (tmp_path / "report.html", tmp_path / "report-20260101-120000.html")


def test_a_run_goes_on_as_long_as_it_holds_its_folder(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with lock_folder(tmp_path):
        file = live_file(tmp_path)
        file.show(9.0, 20, 0.25, budget_s=60.0, kernels=None)
        (seen,) = folder.look().watched
        assert (seen.state, seen.live.measurements) == (runs.RUNNING, 20) and seen.elapsed_s >= 9.0
        assert "500 ms → 250 ms" in curve(seen)
        assert "nothing of it is verified yet" in render(folder.look(), tmp_path)
        file.show(9.0, 20, None, budget_s=60.0, kernels=None, verified_s=(0.375, 0.5))
        file.show(9.0, 20, None, budget_s=60.0, kernels=None)
        assert "verified are 375 ms of 500 ms" in render(folder.look(), tmp_path), "until there is more"
        write_run(tmp_path, complete=False)
        assert [run.state for run in folder.look().runs] == [runs.RUNNING]
    (seen,) = folder.look().watched
    assert (seen.state, seen.elapsed_s) == (runs.KILLED, 9.0)
    assert "goes on" in render(folder.look(), tmp_path)
    write_run(tmp_path, complete=False)
    assert [run.state for run in folder.look().runs] == [runs.KILLED], "the best that it had by then"
    file.end(0, 10.0)
    assert folder.look().watched == ()


def test_looking_writes_nothing_and_no_run_is_refused_by_it(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "killed" / "journal.sqlite") as journal:
        fill(journal)
    with Journal.open(tmp_path / "running" / "journal.sqlite") as journal, lock_folder(tmp_path / "running"):
        fill(journal)
        live_file(tmp_path / "running")
        before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in tmp_path.rglob("*")}
        found = Folder(tmp_path).look()
        assert {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in tmp_path.rglob("*")} == before
    assert [one.place for one in found.watched] == ["running"]
    (unfinished,) = found.unfinished
    assert unfinished.place == "killed" and unfinished.journal.measurements > 0


def test_a_journal_that_is_being_written_is_counted_without_disturbing_it(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        fill(journal)
        held = (tmp_path / "journal.sqlite-wal").read_bytes()
        (unfinished,) = Folder(tmp_path).look().unfinished
        assert unfinished.journal.measurements == journal.counts()["measurements"]
        assert (tmp_path / "journal.sqlite-wal").read_bytes() == held and held


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2000])


def _deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def _another_schema(path: Path) -> None:
    edited(path, schema=999)


def _false_total(path: Path) -> None:
    edited(path, total_after_s=1e-9)


def _markup(path: Path) -> None:
    path.write_text(json.dumps({"<script>alert(1)</script>": 1}))


def _no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize("spoil", [_truncated, _deep, _another_schema, _false_total, _markup, _no_text])
def test_a_result_that_is_not_to_be_trusted_is_shown_as_such(spoil, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_run(tmp_path / "good")
    write_run(tmp_path / "bad")
    spoil(tmp_path / "bad" / "RESULT.json")
    found = Folder(tmp_path).look()
    (refused,) = found.refused
    assert refused.place == "bad/RESULT.json" and refused.reason and str(tmp_path) not in refused.reason
    assert [run.place for run in found.runs] == ["good"], "it breaks nothing else"
    text = render(found, tmp_path)
    assert "bad/RESULT.json" in Page(text).text and "<script>alert" not in text


def test_other_foreign_files_are_shown_too(tmp_path: Path) -> None:
    for name, text in ((FILE_NAME, "{}"), ("journal.sqlite", "no database" * 20)):
        (tmp_path / name.partition(".")[0]).mkdir()
        (tmp_path / name.partition(".")[0] / name).write_text(text)
    assert [one.place for one in Folder(tmp_path).look().refused] == ["journal/journal.sqlite", "live/live.json"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    write_reported_run(tmp_path / "elsewhere")
    shown = tmp_path / "shown"
    (shown / "a").mkdir(parents=True)
    (shown / "linked").symlink_to(tmp_path / "elsewhere")
    (shown / "a" / "RESULT.json").symlink_to(tmp_path / "elsewhere" / "RESULT.json")
    assert Folder(shown).look().is_empty
    write_run(shown / "b")
    (shown / "b" / "report.html").symlink_to("/etc/hostname")
    (run,) = Folder(shown).look().runs
    assert run.report is None


def test_a_file_that_changes_is_read_again_and_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, read = Folder(tmp_path), list[Path]()
    write_run(tmp_path / "a"), write_run(tmp_path / "b")
    monkeypatch.setattr(folder._results, "_read", lambda path: [read.append(path), runs._read_run(path)][1])
    folder.look(), folder.look()
    assert len(read) == 2
    write_run(tmp_path / "a", seed=8)
    folder.look()
    assert read[2:] == [tmp_path / "a" / "RESULT.json"]


def test_a_folder_of_too_much_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MOST_ENTRIES", 10)
    write_run(tmp_path)
    assert Folder(tmp_path).look().all_seen
    for i in range(10):
        (tmp_path / f"{i}").touch()
    found = Folder(tmp_path).look()
    assert not found.all_seen and "more files than are looked at" in render(found, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all")
def test_a_folder_that_may_not_be_read_is_passed_over(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    (tmp_path / "b").mkdir(mode=0)
    assert len(Folder(tmp_path).look().runs) == 1


def test_trends_are_of_the_same_kernel_on_the_same_device(tmp_path: Path) -> None:
    for day, faster in enumerate((1.0, 1.25, 2.0), 1):
        write_run(tmp_path / f"{day}", created=f"2026-03-0{day}T00:00:00+00:00", faster=faster)
    result = write_run(tmp_path / "other", target=_of_a_cpu(tmp_path))
    (trends,) = trends_of(Folder(tmp_path).look().runs)
    assert (trends.model, trends.runs, trends.wholes[0].name) == ("NVIDIA H200", 3, "flux mini")
    slowest = max(result.regions, key=lambda row: row.before_s)
    first = trends.kernels[0]
    assert first.name == slowest.baseline.name and first.before_s == slowest.baseline.cold_s
    chosen = slowest.chosen.cold_s
    assert first.times_s == pytest.approx((chosen, chosen / 1.25, chosen / 2)), "the oldest first"
    assert first.best_s == first.times_s[-1] and "aria-label" in first.spark


def _of_a_cpu(tmp_path: Path):  # type: ignore[no-untyped-def]
    from dataclasses import replace

    from tests.sample_result import sample_result

    return replace(sample_result().target, model="a CPU", device="CPU")


def test_what_autotuned_keeps_is_a_list_of_its_own(tmp_path: Path) -> None:
    """It keeps a result by content: a folder of 32 digits in the folder of its cache."""
    write_run(tmp_path / "flux")
    write_run(tmp_path / "cache" / ("0a" * 16), workload="function:attention", preset="")
    text = render(Folder(tmp_path).look(), tmp_path)
    runs, kept = text.index('id="runs"'), text.index('id="kept"')
    assert runs < text.index("flux mini", runs) < kept < text.index("function:attention", kept)


def test_a_page_without_runs_is_a_page(tmp_path: Path) -> None:
    text = render(Folder(tmp_path).look(), tmp_path)
    assert "Nothing is running here" in text and "There is no result here yet" in text and Page(text)


def test_a_flipped_bit_in_a_journal_is_said_of_that_run_alone(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        with Journal.open(tmp_path / name / "journal.sqlite") as journal:
            fill(journal)
    data = bytearray((tmp_path / "bad" / "journal.sqlite").read_bytes())
    data[data.index(b"CREATE TABLE targets") + 4] ^= 0x80  # which is no text any more
    (tmp_path / "bad" / "journal.sqlite").write_bytes(data)
    found = Folder(tmp_path).look()
    (refused,) = found.refused
    assert refused.place == "bad/journal.sqlite" and "is damaged" in refused.reason
    assert [one.place for one in found.unfinished] == ["good"]
    assert "is damaged" in "".join(Page(render(found, tmp_path)).text)


@pytest.mark.parametrize("name", ["RESULT.json", "live.json", "journal.sqlite", "report.html"])
def test_a_file_of_gigabytes_takes_no_memory(name: str, tmp_path: Path) -> None:
    """A hole takes no disk, and is in nobody's way until it is read."""
    write_run(tmp_path / "good")
    if name == "report.html":
        write_run(tmp_path / "bad")
    (tmp_path / "bad").mkdir(exist_ok=True)
    (tmp_path / "bad" / name).touch()
    os.truncate(tmp_path / "bad" / name, 3 << 30)
    folder = Folder(tmp_path)
    tracemalloc.start()
    try:
        found = folder.look()
        if name == "report.html":
            (one,) = [run for run in found.runs if run.place == "bad"]
            with pytest.raises(ResultError, match=r"report\.html is larger than 64 MiB"):
                folder.report(one.id)
        else:
            assert [one.place for one in found.refused] == [f"bad/{name}"]
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert "good" in [run.place for run in found.runs]
