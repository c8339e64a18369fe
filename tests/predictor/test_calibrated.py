"""What a sweep on one device adds to a predictor: a line, what it is worth, its file, and who uses it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcg import calibrate
from kcg.errors import DataError, ExitCode, UsageError
from kcg.kernel.kinds import Unsupported, kind_named, space_of
from kcg.predictor import choice
from kcg.predictor.calibrated import (
    Calibrated,
    Calibration,
    Line,
    calibration_of,
    file_of,
    fitted,
    line_of,
    read,
    write,
)
from kcg.predictor.cost import KnownCost, guiding
from kcg.predictor.interface import judge_of
from kcg.predictor.learned import NEVER_SEEN
from kcg.predictor.roofline import Roofline
from kcg.types import Prediction
from tests.commands import python
from tests.kernels import example_region
from tests.known_targets import KNOWN_TARGETS

H200 = KNOWN_TARGETS["sm_90"]
MATMUL = example_region("matmul_f16")
LINE = Line(0.3, 0.1, -9.0, -11.0, -7.0, 0.2, 50)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for kept in (choice.kept_predictor, choice._read_once):
        kept.cache_clear()
    return tmp_path


def calibration(**lines: Line) -> Calibration:
    return Calibration(H200.fingerprint, H200.model, choice.choose_predictor("auto", H200).name, lines)


def test_a_line_says_how_far_off_predictions_are_and_what_is_left() -> None:
    rng = np.random.default_rng(0)
    predicted = rng.uniform(-12, -6, 400)
    measured = predicted + 0.4 + 0.1 * (predicted + 9) + rng.normal(0, 0.05, 400)
    line = fitted(predicted, measured)
    assert line.shift(-9.0) == pytest.approx(0.4, abs=0.02) and line.slope == pytest.approx(0.1, abs=0.01)
    assert line.deviation == pytest.approx(0.05, rel=0.2) and line.rows == 400
    assert line.shift(-30.0) == line.shift(line.low) and line.shift(3.0) == line.shift(line.high)
    steep = fitted(predicted, measured - 3 * predicted)
    assert steep.slope > -1, "what is predicted to take longer is so with the line, too"


def test_a_line_that_brings_nothing_for_other_families_is_none() -> None:
    rng = np.random.default_rng(1)
    predicted, families = rng.uniform(-12, -6, 60), ["a", "b", "c"] * 20
    off = line_of(predicted, predicted + 0.5, families)
    assert off is not None and off.before == pytest.approx(0.5) and off.after < 0.05
    assert line_of(predicted, predicted + rng.normal(0, 0.1, 60), families) is None
    own = {"a": 0.9, "b": -0.9, "c": 0.05}  # each family is off by itself
    assert line_of(predicted, predicted + [own[name] for name in families], families) is None
    assert line_of(predicted, predicted + 0.5, ["a", "b"] * 30) is None, "two families say little of others"
    assert line_of(predicted[:15], predicted[:15] + 0.5, families[:15]) is None


def test_a_file_is_read_as_it_was_written_and_what_is_none_is_one_line(tmp_path: Path) -> None:
    path, made = tmp_path / "new" / "one.json", calibration(opts=LINE)
    write(path, made)
    assert read(path) == replace(made, about={})
    text = json.loads(path.read_text())
    line = text["lines"]["opts"]
    others = [{**text, "format": 0}, {**text, "about": []}, {**text, "about": {"rows": 3}}, {**text, "model": "a\nb"}]
    others += [{**text, "lines": {"opts": one}} for one in ({"level": 1}, {**line, "before": "x"})]
    for bad in ("", "[]", "{}", *map(json.dumps, others)):
        path.write_text(bad)
        with pytest.raises(DataError, match="run kcg calibrate again") as caught:
            read(path)
        assert "\n" not in str(caught.value)
    text["lines"]["opts"]["slope"] = math.nan
    path.write_text(json.dumps(text))
    with pytest.raises(DataError, match="a number of it is none"):
        read(path)
    with pytest.raises(DataError, match="no calibration that can be read"):
        read(tmp_path / "missing.json")


def test_it_is_used_where_it_is_of_this_device_and_predictor_and_nothing_else_was_asked_for(cache: Path) -> None:
    space = space_of(MATMUL, H200)
    plain = choice.choose_predictor("auto", H200)
    before = plain.predict(space, [space.baseline()])[0]
    write(file_of(H200), calibration(opts=LINE))
    for found in (how("auto", H200, calibrated=True) for how in (choice.choose_predictor, choice.deferred)):
        assert isinstance(found, Calibrated) and found.name == f"{plain.name}, calibrated"
        after = found.predict(space, [space.baseline()])[0]
        assert after.log_runtime == pytest.approx(before.log_runtime + LINE.shift(before.log_runtime))
        assert after == judge_of(found, space).predict([space.baseline()])[0]
    assert choice.choose_predictor("auto", H200).name == plain.name, "a reward or a campaign does not depend on it"
    assert choice.choose_predictor("roofline", H200, calibrated=True).name == Roofline().name
    named = choice.choose_predictor(str(choice.shipped_path(H200)), H200, calibrated=True)
    assert named.predict(space, [space.baseline()]) == [before]
    other = replace(H200, model="another")
    assert calibration_of(other, plain.name) is None and calibration_of(H200, "another") is None
    file_of(H200).write_text("no JSON")
    assert choice.choose_predictor("auto", H200, calibrated=True).name == plain.name, "what cannot be read is none"


def test_a_device_that_was_swept_is_none_that_was_never_seen(cache: Path) -> None:
    """A kernel with an operation that training never showed stays one."""
    other = replace(H200, model="another GPU", cores=80)
    space = space_of(MATMUL, other)
    name = choice.choose_predictor("auto", other).name
    (before,) = choice.choose_predictor("auto", other, calibrated=True).predict(space, [space.baseline()])
    assert before.uncertainty >= NEVER_SEEN
    write(file_of(other), Calibration(other.fingerprint, other.model, name, {"opts": LINE}))
    found = choice.choose_predictor("auto", other, calibrated=True)
    (after,) = found.predict(space, [space.baseline()])
    assert LINE.deviation <= after.uncertainty < NEVER_SEEN
    assert isinstance(found, Calibrated)
    found.inner._shown._operations = frozenset()  # type: ignore[attr-defined]
    found.inner._shown._regions.clear()  # type: ignore[attr-defined]
    (strange,) = found.predict(space, [space.baseline()])
    assert strange.uncertainty >= NEVER_SEEN


def test_the_cost_of_tile_programs_is_fitted_too() -> None:
    space = kind_named("tile").space(MATMUL, H200)
    assert not isinstance(space, Unsupported)
    usual = Calibrated(Roofline(), calibration(tile=LINE))
    found, start = guiding(space, usual), [space.start()]
    (plain,), (after,) = (judge_of(one, space).predict(start) for one in (KnownCost(), found))
    assert after == LINE.of(plain) and after.log_runtime > plain.log_runtime
    (own,) = usual.predict(space_of(MATMUL, H200), [space_of(MATMUL, H200).baseline()])
    assert own == Roofline().predict(space_of(MATMUL, H200), [space_of(MATMUL, H200).baseline()])[0], "it has no line"


def test_what_is_measured_of_a_kernel_tells_its_level(cache: Path) -> None:
    space = space_of(MATMUL, H200)
    plain = choice.choose_predictor("auto", H200)
    found, one = Calibrated(plain, calibration(opts=LINE)), [space.baseline()]
    ours, theirs = (judge_of(by, space).correct for by in (found, plain))
    assert ours is not None and theirs is not None
    assert ours(one, [(space.baseline(), 1e-5)]) == theirs(one, [(space.baseline(), 1e-5)])


def test_a_file_of_another_device_is_refused_and_one_of_this_is_taken(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "_target_of", lambda device: H200)
    shared = cache / "shared.json"
    write(shared, replace(calibration(opts=LINE), about={"rows": {"opts": 50, "tile": 40}}))
    calibrate.calibrate(use=shared)
    assert read(file_of(H200)).lines == {"opts": LINE}
    assert "tile: nothing is gained, by 40 schedules" in capsys.readouterr().out
    write(shared, replace(calibration(opts=LINE), target="f" * 64, model="NVIDIA A100"))
    with pytest.raises(UsageError, match="is of another device, NVIDIA A100: run kcg calibrate here"):
        calibrate.calibrate(use=shared)
    write(shared, replace(calibration(opts=LINE), predictor="another"))
    with pytest.raises(UsageError, match="is of another predictor, another, and here h200-workload guides"):
        calibrate.calibrate(use=shared)
    with pytest.raises(UsageError, match="--out is of a sweep"):
        calibrate.calibrate(use=shared, out=cache / "other.json")


def test_where_nothing_is_gained_nothing_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import typer

    nothing: Any = (calibration(), H200)
    monkeypatch.setattr(calibrate, "swept", lambda device, budget_s: nothing)
    write(file_of(H200), calibration(opts=LINE))  # of an earlier sweep
    with pytest.raises(typer.Exit) as ended:
        calibrate.calibrate()
    assert ended.value.exit_code == ExitCode.NOTHING_IMPROVED and not file_of(H200).exists()


@pytest.mark.slow
def test_a_sweep_of_this_cpu_is_kept_and_guides_the_next_run(cache: Path) -> None:
    shared = cache / "cpu.json"
    done = python("-m", "kcg.calibrate", "--device", os.environ["DEV"], "--budget", "40s", "--out", shared)
    assert done.returncode in (ExitCode.OK, ExitCode.NOTHING_IMPROVED), done.stderr
    assert "schedules" in done.stdout
    if done.returncode == ExitCode.OK:
        found = read(shared)
        assert found.lines and all(line.after < line.before for line in found.lines.values())


def test_a_prediction_is_shifted_and_no_surer_than_the_line() -> None:
    one = Prediction(-9.0, 0.05, 0.01)
    assert LINE.of(one) == Prediction(-9.0 + 0.3, 0.2, 0.01)
