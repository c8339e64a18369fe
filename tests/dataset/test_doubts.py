"""Rows of a host that was not to be trusted: kept in the journal, counted, named, and used by nobody."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcg.dataset.check import verify
from kcg.dataset.export import CHECKSUMS, export, merge, read_export
from kcg.dataset.journal import Doubt, Journal, Run, unix_now_s
from kcg.dataset.publish import write_card
from kcg.dataset.reading import DOUBTS
from kcg.dataset.stats import render, stats, to_json
from kcg.dataset.stats_page import render_page
from kcg.errors import DataError, JournalError
from kcg.files import sha256_of
from tests.dataset.test_journal import TARGET, TOOLCHAIN, fill, forged, measurement

WHY = "its reference kernels take 1.31 times as long as those of the first host"
DOUBT = Doubt("r2", 200.0, WHY)
IDS = (TARGET.fingerprint, TOOLCHAIN.fingerprint, 1)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """Three rows of the run r1, and of r2 two before its doubt and two in it."""
    with Journal.open(tmp_path / "journal.sqlite") as opened:
        fill(opened)
        opened.add_run(Run("r2", "2025-01-01T00:00:00+00:00", "kcg", {}))
        for number, at in ((10, 100.0), (11, 200.0), (12, 250.0), (13, 199.0)):
            opened.record(measurement(number, run_id="r2", early_stop=True), recorded_unix_s=at)
        yield opened


def numbers(rows: Iterator) -> list[int]:
    return sorted(dict(row.variables)["start_pos"] for row in rows)


def test_no_reading_gives_a_doubtful_row_unless_it_is_asked_for(journal: Journal) -> None:
    doubtful = measurement(11, early_stop=True)
    assert journal.has(doubtful.key) and journal.doubtful_rows() == {}
    assert sum(journal.schedules_known(*IDS).values()) == 5
    assert journal.add_doubt(DOUBT) and not journal.add_doubt(DOUBT)
    assert numbers(journal.known(*IDS)) == numbers(journal.measurements(1)) == [0, 1, 2, 10, 13]
    assert numbers(r.measurement for r in journal.records(1, doubtful=True)) == [0, 1, 2, 10, 11, 12, 13]
    with journal.snapshot():
        assert numbers(r.measurement for r in journal.sorted_records()) == [0, 1, 2, 10, 13]
    assert sum(journal.schedules_known(*IDS).values()) == 3
    assert not journal.has(doubtful.key)
    assert journal.doubtful_rows() == {DOUBT: 2}
    # measured again, by a host that is trusted
    assert journal.record(measurement(11, run_id="r3", early_stop=True))
    assert journal.has(doubtful.key) and numbers(journal.known(*IDS)) == [0, 1, 2, 10, 11, 13]


def test_of_two_doubts_about_a_run_the_one_that_reaches_further_back_stays(journal: Journal) -> None:
    earlier, later = Doubt("r2", 150.0, "first"), Doubt("r2", 240.0, "then")
    assert journal.add_doubt(DOUBT) and not journal.add_doubt(later)
    assert journal.doubtful_rows() == {DOUBT: 2}
    assert journal.add_doubt(earlier) and journal.doubtful_rows() == {earlier: 3}


def test_a_clock_that_is_set_back_puts_no_row_before_the_check_that_it_followed(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked_unix_s, real = unix_now_s(), time.time
    monkeypatch.setattr(time, "time", lambda: real() - 600.0)
    assert journal.record(measurement(20, run_id="r9"))
    journal.add_doubt(Doubt("r9", checked_unix_s, WHY))
    assert 20 not in numbers(journal.measurements(1))


@pytest.mark.parametrize("values", ["'r3', -1, 'why'", "'r3', 'now', 'why'", "x'00', 1, 'why'"])
def test_a_doubt_that_is_none_is_refused(journal: Journal, values: str) -> None:
    journal.add_doubt(DOUBT)
    with forged(journal.path) as connection:
        connection.execute(f"INSERT INTO doubts VALUES({values}, x'')")
    with pytest.raises(JournalError, match="of doubts cannot be trusted"):
        journal.doubts()


def test_stats_count_doubtful_rows_apart_and_say_why(journal: Journal) -> None:
    from rich.console import Console

    before = stats(journal)
    assert (before.rows, before.doubtful_rows, before.doubts) == (7, 0, {})
    journal.add_doubt(DOUBT)
    found = stats(journal)
    assert (found.rows, found.doubtful_rows, found.doubts) == (5, 2, {WHY: 2})
    assert found.runs == {"r1": 3, "r2": 2}
    assert json.loads(to_json(found))["doubts"] == {WHY: 2}
    console = Console(width=200, record=True, file=io.StringIO())
    render(found, console)
    assert f"2 rows more, which count nowhere: {WHY} (2)" in console.export_text()
    assert f"{WHY} (2)" in render_page(found, title="x")


def test_an_export_leaves_doubtful_rows_out_and_says_so(journal: Journal, tmp_path: Path) -> None:
    assert DOUBTS not in export(journal, tmp_path / "before")
    journal.add_doubt(DOUBT)
    assert DOUBTS in export(journal, tmp_path / "out")
    data = read_export(tmp_path / "out")
    assert numbers(data.measurements(1)) == [0, 1, 2, 10, 13]
    assert len(data.table(1)) == 5, "what is trained on"
    assert data.doubtful_rows() == {DOUBT: 2}
    found = stats(data)
    assert (found.rows, found.doubtful_rows, found.doubts) == (5, 2, {WHY: 2})
    card = write_card(tmp_path / "out").read_text()
    assert "2 rows that were measured are left out" in card and WHY in card
    assert export(data, tmp_path / "again") == export(journal, tmp_path / "more")


@pytest.mark.slow
def test_verify_finds_a_doubtful_row_that_was_not_left_out(journal: Journal, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    export(journal, folder)
    runs = {"r2": {"since_unix_s": 249.0, "why": WHY, "rows": 1}}

    def problems(text: str) -> list[str]:
        (folder / DOUBTS).write_text(text)
        checksums = json.loads((folder / CHECKSUMS).read_text()) | {DOUBTS: sha256_of(folder / DOUBTS)}
        (folder / CHECKSUMS).write_text(json.dumps(checksums))
        # kernels made by hand do not decode
        return [line for line in verify(folder, workers=1).problems if "kernels.parquet" not in line]

    (line,) = problems(json.dumps(runs))
    assert "in run 'r2' is doubtful, and not left out" in line
    for wrong in ({"r2": 3}, {"r2": {}}, {"r2": {**runs["r2"], "rows": -1}}):
        (line,) = problems(json.dumps(wrong))
        assert DOUBTS in line and "row r2 cannot be trusted" in line
        with pytest.raises(DataError, match="row r2 cannot be trusted"):
            read_export(folder).doubts()


def test_merging_keeps_the_marks(journal: Journal, tmp_path: Path) -> None:
    journal.close()
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(journal.path.read_bytes())  # from before anything was doubtful
    with Journal.open(journal.path) as marked:
        marked.add_doubt(DOUBT)
        export(marked, tmp_path / "out")
    assert merge([journal.path, copy], tmp_path / "both.sqlite") == 7
    assert merge([tmp_path / "out", copy], tmp_path / "more.sqlite") > 0
    for path in (tmp_path / "both.sqlite", tmp_path / "more.sqlite"):
        with Journal.open(path) as joined:
            assert joined.doubts() == [DOUBT]
            assert not {11, 12} & set(numbers(joined.measurements(1)))
