"""live.json: what a run says of itself as it goes, whole whenever it is read, and no reason to fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.errors import ResultError
from kcg.measure.lock import is_locked, lock_folder
from kcg.optimize import live
from kcg.optimize.console import progress
from kcg.optimize.live import MOST_POINTS, Live, LiveFile, read_live
from kcg.optimize.log import RunLog
from kcg.report.phases import JUDGING, MODEL, SEARCH
from tests.ui_server import edited, live_file

BEGUN = Live("flux", "mini", "CPU", "mcts", "60 s", "2026-03-14T15:09:26+00:00")


@pytest.fixture
def log() -> Iterator[RunLog]:
    with progress(quiet=True) as shown:
        yield RunLog(shown, started=0.0)


def test_a_run_reports_its_phase_and_its_best_total(log: RunLog, tmp_path: Path) -> None:
    path = tmp_path / live.FILE_NAME
    with log.watched(LiveFile(path, BEGUN)) as file:
        log.begin(SEARCH)
        assert (read_live(path).phase, read_live(path).points) == (SEARCH, ())
        file._next_s = 0.0
        log.show(0.25, measurements=12, budget_s=60.0, kernels=(3, 9))
        seen = read_live(path)
        assert (seen.measurements, seen.kernels, seen.budget_s) == (12, (3, 9), 60.0)
        assert [point.total_s for point in seen.points] == [0.25]
        log.begin(JUDGING)
        log.show(0.2, measurements=12, budget_s=60.0, keep=False)
        file.end(0, 9.0)
        seen = read_live(path)
        assert [point.total_s for point in seen.points] == [0.25], "what is not the search's is no point of it"
        assert (seen.phase, seen.kernels, seen.exit_code, seen.elapsed_s) == (JUDGING, None, 0, 9.0)
    log.begin(MODEL)
    assert read_live(path) == seen, "the run is over"


def test_it_is_written_once_a_second_and_when_a_phase_begins(tmp_path: Path) -> None:
    now = [0.0]
    file = LiveFile(tmp_path / live.FILE_NAME, BEGUN, clock=lambda: now[0])
    versions = set()
    for tick in range(40):
        now[0] = tick / 10
        file.show(now[0], tick, 1.0, budget_s=None, kernels=None)
        versions.add(read_live(file.path).measurements)
    assert versions == {0, 10, 20, 30}
    file.begin(SEARCH, 4.0)
    assert read_live(file.path).measurements == 39


def test_a_long_run_keeps_its_first_and_its_last_point_and_stays_small(tmp_path: Path) -> None:
    file = live_file(tmp_path)
    for i in range(5000):
        file._next_s = float("inf")
        file.show(10.0 + i, i, 0.4 / (i + 1), budget_s=None, kernels=None)
    file.end(0, 6000.0)
    points = read_live(file.path).points
    assert len(points) <= MOST_POINTS and file.path.stat().st_size < 100_000
    assert (points[0].total_s, points[-1].measurements) == (0.5, 4999)


def test_where_it_cannot_be_written_the_run_goes_on(log: RunLog, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with log.watched(LiveFile(tmp_path / "file" / live.FILE_NAME, BEGUN)):
        log.begin(SEARCH)
        log.show(0.25, measurements=12, budget_s=60.0)
    assert len(log.history) == 1


def test_a_run_that_comes_to_nothing_leaves_none(log: RunLog, tmp_path: Path) -> None:
    with pytest.raises(KeyError), log.watched(LiveFile(tmp_path / live.FILE_NAME, BEGUN)):
        log.begin(SEARCH)
        raise KeyError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', "\udcff", "[" * 100_000, "x" * (live.MAX_BYTES + 1)])
def test_what_is_no_state_of_a_run_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / live.FILE_NAME
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(ResultError):
        read_live(path)


def test_what_an_earlier_kcg_wrote_is_read(tmp_path: Path) -> None:
    file = live_file(tmp_path)
    text = file.path.read_text()
    file.path.write_text(text.replace('"verified_s": null, "schema": 2', '"schema": 1'))
    assert file.path.read_text() != text and read_live(file.path) == replace(file.live, schema=1)


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / live.FILE_NAME)
    with pytest.raises(ResultError, match="no file"):
        read_live(tmp_path / live.FILE_NAME)


def test_fields_of_other_types_are_refused(tmp_path: Path) -> None:
    file = live_file(tmp_path)
    edited(file.path, points=[{"elapsed_s": "x", "measurements": 1, "total_s": 2.0}])
    with pytest.raises(ResultError, match=r"points\[0\]\.elapsed_s"):
        read_live(file.path)


def test_the_lock_of_a_folder_says_whether_a_run_goes_on(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with lock_folder(tmp_path):
        assert is_locked(tmp_path) and is_locked(tmp_path)
    assert not is_locked(tmp_path) and not is_locked(tmp_path / "gone")
