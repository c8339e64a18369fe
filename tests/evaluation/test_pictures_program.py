"""The pictures of report and runs are taken by a browser, of two runs, and are small."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation import pictures
from evaluation.pictures import MOST_BYTES, PHONE, RUNS, compress, shots_of, take_all
from kcg.errors import KcgError
from kcg.report.page import write_report
from kcg.ui.runs import Folder
from tests.browser import CHROMIUM
from tests.ui_server import write_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs of one workload, with their reports."""
    for name, faster, day in (("first", 0.8, 1), ("second", 1.0, 2)):
        folder = tmp_path / RUNS / name
        folder.mkdir(parents=True)
        write_report(write_run(folder, faster=faster, created=f"2026-03-0{day}T00:00:00+00:00"), folder)
    return tmp_path


def test_the_pictures_are_of_the_newest_run_and_of_the_oldest_beside_it(runs: Path) -> None:
    folder = Folder(runs / RUNS)
    shots = shots_of(folder)
    first, last = (run.id for run in sorted(folder.look().runs, key=lambda run: run.created))
    assert [shot.name for shot in shots if last in shot.page and first not in shot.page and shot.width > PHONE] == [
        "report",
        "report-wide",
        "run",
    ]
    assert any(shot.page == f"/compare?run={first}&run={last}" for shot in shots)
    (runs / RUNS / "first" / "RESULT.json").unlink()
    with pytest.raises(KcgError, match="has 1 runs: two are compared"):
        shots_of(Folder(runs / RUNS))


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path")
def test_every_picture_is_taken_and_small(runs: Path, tmp_path: Path) -> None:
    from PIL import Image

    made = take_all(runs, tmp_path / "pictures")
    assert {path.stem for path in made} >= {"report", "report-phone", "runs", "run", "comparison"}
    for path in made:
        assert path.stat().st_size <= MOST_BYTES
        with Image.open(path) as picture:
            dark, light = picture.convert("L").getextrema()
            assert picture.mode == "P" and light - dark > 100, "it is not empty"
            assert picture.width in (PHONE, 1280, 1760)


def test_a_picture_has_as_many_colours_as_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    noise = Image.effect_noise((128, 128), 80).convert("RGB")
    noise.save(path := tmp_path / "noise.png")
    compress(path)
    most = path.stat().st_size
    monkeypatch.setattr(pictures, "MOST_BYTES", most - 1)
    noise.save(path)
    compress(path)
    assert path.stat().st_size < most
    monkeypatch.setattr(pictures, "MOST_BYTES", 10)
    with pytest.raises(KcgError, match=r"noise\.png takes"):
        compress(path)


def test_there_is_a_line_where_there_is_no_browser(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "CHROMIUM", None)
    with pytest.raises(KcgError, match="no Chromium"):
        take_all(runs, runs / "pictures")
