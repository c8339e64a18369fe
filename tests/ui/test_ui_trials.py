"""The trials that `kcg.ui` reads of journals: of runs that go on, of thousands of rows, of damaged and older files."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.dataset.choices import HAND_CODED
from kcg.dataset.journal import Chosen, Doubt, Expected, Journal, Run, expected_from_json, scores_of
from kcg.dataset.schema import SCHEMA_VERSION, sealed
from kcg.measure.lock import lock_folder
from kcg.measure.service import SAMPLER
from kcg.types import Expectation, Measurement, Schedule, Status
from kcg.ui import trials
from kcg.ui.page import render_run
from kcg.ui.runs import RESULT, Details, Folder, Opened
from kcg.ui.trials import BASELINE, CHOSEN, DOUBTFUL, JUDGE, JUDGED, OWN, TIMED, Journaled, rows_of
from tests.dataset.test_damage import of_schema
from tests.dataset.test_journal import fill, measurement
from tests.html_page import Page
from tests.sample_result import sample_result
from tests.ui_server import live_file, write_run


def trial(number: int, **changes: object) -> Measurement:
    """A row of a search: the schedule with this number, a microsecond more each."""
    known: dict[str, object] = {"schedule": Schedule("opts", f'[["UPCAST",0,{number}]]'), "early_stop": True}
    known |= {"samples_s": (1e-6 * (number + 1),), "sampler": "mcts", "run_id": "r1"}
    return replace(measurement(0), **{**known, **changes})  # type: ignore[arg-type]


def opened(folder: Path) -> Opened:
    """The one run below a folder, as its page has it."""
    found = Folder(folder).look()
    (one,) = found.runs or found.watched or found.unfinished
    run = Folder(folder).open(one.id)
    assert run is not None
    return run


def texts(page: str) -> str:
    return " ".join(" ".join(Page(page).text).split())


def test_samplers_are_called_as_those_who_measure_call_them() -> None:
    assert (BASELINE, JUDGE) == (HAND_CODED, SAMPLER)


def test_a_schedule_is_one_trial_whatever_was_measured_of_it(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        fill(journal)
        own = trial(1, sampler=BASELINE)
        for row in (own, trial(2), replace(trial(2), sampler=JUDGE, early_stop=False, samples_s=(2e-6,)), trial(3)):
            assert journal.record(row)
        journal.record(trial(4, status=Status.WRONG, samples_s=(), reason="it differs at 3"))
        looked = Journaled(journal.path).look()
    rows = {row.trial.schedule: row for row in rows_of(looked, None)}
    states = [rows[trial(number).schedule].state for number in (1, 2, 3, 4)]
    assert states == [OWN, JUDGED, TIMED, "wrong"] and not looked.why
    two = rows[trial(2).schedule]
    assert (two.trial.measured_s, two.trial.judged_s) == (3e-6, 2e-6)
    assert two.speedup == pytest.approx(2 / 3), "as the search measured both"
    assert two.layer == "model.py:4", "where the journal says it"


def test_what_a_search_expected_is_in_the_journal_before_there_is_a_result(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        fill(journal)
        journal.record(trial(5), chosen=Chosen(scores=scores_of(Expected(2e-6, 3e-6, 0.01))))
        journal.record(trial(6), chosen=Chosen(scores=scores_of(Expected(2e-6, None, 0.01))))
        looked = Journaled(journal.path).look()
        assert list(journal.measurements(1))[-1] == trial(6), "a measurement is what it was"
    expected = {one.schedule: one.expected_s for one in looked.trials}
    assert expected[trial(5).schedule] == 3e-6 and expected[trial(6).schedule] == 2e-6
    assert "3.00 µs" in texts(render_run(opened(tmp_path), tmp_path, {}))


@pytest.mark.parametrize(
    "text", ["", "[]", "1", "{}", '{"predicted_s": "x"}', '{"predicted_s": NaN, "corrected_s": 1}']
)
def test_what_is_no_expectation_is_none(text: str) -> None:
    assert expected_from_json(text) is None


def test_what_a_result_knows_is_beside_its_trials(tmp_path: Path) -> None:
    result = sample_result()
    row = result.regions[0]
    seen = Expectation(9.0, 0, row.chosen.schedule, 2e-6, 3e-6, 0.0, 4e-6, "ok")
    write_run(tmp_path, expectations=(seen,))
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        fill(journal)
        journal.record(trial(0, region_id=row.region.id, variables=row.variables, schedule=row.chosen.schedule))
    run = opened(tmp_path)
    assert isinstance(run.details, Details) and run.trials is not None
    (found,) = [one for one in rows_of(run.trials, run.details) if one.trial.region == row.region.id]
    assert (found.expected_s, found.state) == (3e-6, CHOSEN)
    assert found.name or found.layer != row.region.id[:8]
    page = texts(render_run(run, tmp_path, {}))
    assert "3.00 µs" in page and "chosen 1" in page


def test_a_run_that_goes_on_is_read_row_by_row_and_not_disturbed(tmp_path: Path) -> None:
    live_file(tmp_path)
    folder = Folder(tmp_path)
    with Journal.open(tmp_path / "journal.sqlite") as journal, lock_folder(tmp_path):
        fill(journal)
        (watched,) = folder.look().watched
        before = folder.open(watched.id)
        assert before is not None and before.trials is not None and before.details == "it has no result yet"
        held = (tmp_path / "journal.sqlite-wal").read_bytes()
        for number in range(10, 20):
            journal.record(trial(number))
        written = (tmp_path / "journal.sqlite-wal").read_bytes()
        after = folder.open(watched.id)
        assert after is not None and after.trials is not None
        assert len(after.trials.trials) == len(before.trials.trials) + 10
        assert (tmp_path / "journal.sqlite-wal").read_bytes() == written != held
        assert "19" in render_run(after, tmp_path, {"sort": ["measured"], "down": ["1"]})


def test_only_what_is_new_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[int]()
    made = trials.measurement_from_row
    monkeypatch.setattr(trials, "measurement_from_row", lambda row: [read.append(1), made(row)][1])
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        rows = len(fill(journal))
        reader = Journaled(journal.path)
        reader.look(), reader.look()
        assert len(read) == rows
        journal.record(trial(7))
        reader.look()
        assert len(read) == rows + 1


@pytest.mark.slow
def test_a_journal_of_thousands_of_trials_is_read_in_parts_and_shown_as_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal.open(tmp_path / "journal.sqlite") as journal, journal.bulk():
        fill(journal)
        for number in range(3000):
            journal.record(trial(number))
    monkeypatch.setattr(trials, "AT_ONCE", 2000)
    folder = Folder(tmp_path)
    (unfinished,) = folder.look().unfinished
    first = folder.open(unfinished.id)
    assert first is not None
    assert "1,003 rows of the journal are not read yet" in texts(render_run(first, tmp_path, {}))
    second = folder.open(unfinished.id)
    assert second is not None
    page = render_run(second, tmp_path, {"page": ["2"]})
    assert "not read yet" not in page and "101 to 200 of 3,00" in texts(page)
    assert sum(tag == "tr" for tag, _ in Page(page).tags) == 101
    monkeypatch.setattr(trials, "MOST_ROWS", 100)
    looked = Journaled(tmp_path / "journal.sqlite").look()
    assert looked.beyond == 2903 and len(looked.trials) <= 100


def test_rows_of_an_earlier_run_of_the_journal_stand_apart(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        fill(journal)
        journal.add_run(Run("r2", "2025-02-01T00:00:00+00:00", "kcg --resume", {}))
        journal.record(trial(5, run_id="r2"))
        rows = rows_of(Journaled(journal.path).look(), None)
    assert [row.trial.schedule for row in rows if not row.earlier] == [trial(5).schedule]
    assert ("earlier", "of earlier runs", len(rows) - 1) in trials.groups_of(rows)


def test_what_is_doubtful_says_so(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        fill(journal)
        journal.record(trial(5))
        journal.add_doubt(Doubt("r1", 0.0, "its host drifted"))
        rows = rows_of(Journaled(journal.path).look(), None)
    assert {row.state for row in rows if row.trial.ok} == {DOUBTFUL}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_journals_of_older_schemas_are_shown_and_stay_as_they_are(version: int, tmp_path: Path) -> None:
    with Journal.open(tmp_path / "new.sqlite") as journal:
        fill(journal)
        journal._rows("DELETE FROM jobs")
    (tmp_path / "run").mkdir()
    old = of_schema(version, tmp_path / "new.sqlite", tmp_path / "run" / "journal.sqlite")
    before = old.read_bytes()
    looked, today = Journaled(old).look(), Journaled(tmp_path / "new.sqlite").look()
    assert not looked.why and len(looked.trials) == len(today.trials) > 0
    assert old.read_bytes() == before


def test_a_damaged_row_is_counted_and_the_others_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal.open(path) as journal:
        fill(journal)
        journal.record(trial(5))
        journal.record(trial(6))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE measurements SET samples_s='[1e-9]' WHERE trial=0 AND row=1")
    looked = Journaled(path).look()
    assert looked.unread == 1 and "does not agree with its checksum" in looked.why
    assert {trial(5).schedule, trial(6).schedule} <= {one.schedule for one in looked.trials}
    write_run(tmp_path)
    page = texts(render_run(opened(tmp_path), tmp_path, {}))
    assert "1 rows of the journal are left out" in page and str(tmp_path) not in looked.why


def _text(path: Path) -> None:
    path.write_text("<script>alert(1)</script>" * 20)


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _newer(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")


def _endless(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE measurements")
        rows = "WITH RECURSIVE n(row) AS (SELECT 1 UNION ALL SELECT row + 1 FROM n) SELECT row FROM n"
        connection.execute(f"CREATE VIEW measurements AS {rows}")
        connection.commit()


def _giant(path: Path) -> None:
    """A value of 40 MB whose checksum is right."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        values = sealed("runs", ("r9", "{}", "9999", "x" * (40 << 20)))
        connection.execute("INSERT INTO runs VALUES(?,?,?,?,?)", values)


@pytest.mark.parametrize("spoil", [_text, _torn, _newer, _endless, _giant])
def test_a_journal_that_is_not_to_be_trusted_is_a_sentence(
    spoil,  # type: ignore[no-untyped-def]
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials, "LOOK_S", 0.2)
    with Journal.open(tmp_path / "bad" / "journal.sqlite") as journal:
        fill(journal)
    spoil(tmp_path / "bad" / "journal.sqlite")
    write_run(tmp_path / "bad")
    page = render_run(opened(tmp_path), tmp_path, {})
    assert "The journal cannot be read:" in texts(page) and "<script>alert" not in page
    assert "flux mini" in texts(page), "the rest of the run is shown"


def test_a_journal_that_another_file_replaces_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    for name, numbers in (("a", range(10)), ("b", range(3))):
        with Journal.open(tmp_path / f"{name}.sqlite") as journal:
            fill(journal)
            for number in numbers:
                journal.record(trial(number))
    (tmp_path / "a.sqlite").rename(path)
    reader = Journaled(path)
    many = len(reader.look().trials)
    (tmp_path / "b.sqlite").rename(path)
    assert len(reader.look().trials) == many - 7
    path.unlink()
    assert "there is no journal" in reader.look().why


def test_a_result_of_an_earlier_run_is_not_that_of_the_one_that_goes_on(tmp_path: Path) -> None:
    write_run(tmp_path, created="2026-03-14T15:00:00+00:00")
    with lock_folder(tmp_path):
        live_file(tmp_path)
        run = opened(tmp_path)
        assert isinstance(run.details, str) and "of an earlier run" in run.details
        write_run(tmp_path, created="2026-03-14T15:30:00+00:00")
        assert isinstance(opened(tmp_path).details, Details)


def test_a_journal_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "elsewhere.sqlite") as journal:
        fill(journal)
    write_run(tmp_path / "run")
    (tmp_path / "run" / "journal.sqlite").symlink_to(tmp_path / "elsewhere.sqlite")
    run = opened(tmp_path / "run")
    assert run.trials is None and "There is no journal" in texts(render_run(run, tmp_path, {}))
    assert run.run is not None and run.run.file.name == RESULT
