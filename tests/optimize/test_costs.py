"""What jobs took is kept for the next run on the same target, and fades."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcg.optimize.costs import FADES, JUDGING, TRUSTED_S, WHOLE, Taken, file_of, keep, known_before, read
from kcg.optimize.device import Device
from kcg.optimize.settings import Settings
from tests.known_targets import KNOWN_TARGETS
from tests.optimize_run import begun

SCRIPT = Path(__file__).parents[1] / "scripts" / "one_layer.py"


def test_what_earlier_runs_took_counts_the_less_the_longer_ago(tmp_path: Path) -> None:
    path = tmp_path / "costs" / "a.json"
    assert read(path) == {}, "there was none"
    keep(path, {JUDGING: Taken(10.0, 20.0)})
    keep(path, {JUDGING: Taken(10.0, 10.0), WHOLE: Taken(20.0, 30.0)})
    assert read(path) == {JUDGING: Taken(10.0 * (1 + FADES), 10.0 + 20.0 * FADES), WHOLE: Taken(20.0, 30.0)}
    keep(path, {})
    assert read(path)[WHOLE] == Taken(20.0, 30.0)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format":1,"judging":{"expected_s":"1","spent_s":2}}', '{"judging":1}']
)
def test_a_file_that_cannot_be_used_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    assert read(path) == {}
    keep(path, {JUDGING: Taken(1.0, 2.0)})
    assert read(path) == {JUDGING: Taken(1.0, 2.0)}


def test_an_accident_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for one in (Taken(1.0, 100.0), Taken(0.0, 1.0), Taken(1.0, float("nan"))):
        keep(path, {JUDGING: one})
    assert read(path) == {}


def test_earlier_runs_count_no_more_than_a_run_that_judged_for_a_while() -> None:
    assert known_before({}, JUDGING, 1.4, 5.0) == (1.4, 5.0)
    ratio, weight_s = known_before({JUDGING: Taken(1000.0, 3000.0)}, JUDGING, 1.4, 5.0)
    assert ratio == pytest.approx(3.0, rel=0.01) and weight_s == TRUSTED_S
    ratio, weight_s = known_before({JUDGING: Taken(5.0, 5.0)}, JUDGING, 1.4, 5.0)
    assert ratio == pytest.approx(1.2) and weight_s == 10.0


def test_targets_are_kept_apart(tmp_path: Path) -> None:
    one, other = list(KNOWN_TARGETS.values())[:2]
    assert file_of(tmp_path, one) != file_of(tmp_path, other)


def test_a_run_knows_what_the_one_before_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: what else runs on a CPU decides there."""
    folder = tmp_path / "costs"
    settings = Settings(str(SCRIPT), device=os.environ["DEV"], folder=tmp_path / "out", costs=folder)
    for is_cpu, before in ((True, 1.4), (False, 1.4), (False, 37 / 15)):
        with begun(settings) as run:
            monkeypatch.setattr(Device, "is_cpu", is_cpu)
            assert run.device.slower(JUDGING, 1.4, 5.0) == pytest.approx(before)
            run.device.took(JUDGING, 10.0, 30.0)
            assert run.device.slower(JUDGING, 1.4, 5.0) > before
            monkeypatch.undo()
        assert bool(list(folder.glob("*.json"))) is not is_cpu
