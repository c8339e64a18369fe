"""What is known of a kernel, followed one schedule after the other (`evaluation.predictor.choose_known`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evaluation.flux.known import AFTER, FIRST, behind, kept

ROOT = Path(__file__).parents[3]


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A module of `evaluation.predictor` as a user starts it."""
    command = [sys.executable, "-m", f"evaluation.predictor.{name}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_trait_that_is_taken_for_too_fast_is_seen_through() -> None:
    """Half of 40 schedules have a trait, and are predicted twice as fast as the others; they are twice as slow."""
    rng = np.random.default_rng(0)
    trait, features = np.arange(40) % 2, rng.normal(size=(40, 3))
    log_s = np.log(np.where(trait == 1, 4.0, 1.0)) + rng.normal(0, 0.05, 40)
    predicted = np.log(np.where(trait == 1, 0.5, 1.0)) + rng.normal(0, 0.05, 40)
    report = predicted, np.full(40, 0.3), features, log_s
    first = int(np.argmax(log_s))
    found, blind = behind(report, {"traits": trait[:, None]}, first), behind(report, {}, first)
    assert len(found) == len(AFTER) and found == sorted(found, reverse=True)
    assert found[2] == 0.0 and blind[2] > 1.0, "after sixteen: the best, or still one that is predicted twice as fast"


def test_what_is_predicted_right_is_found_at_once() -> None:
    log_s = np.log(np.linspace(1, 3, 12))
    report = log_s, np.full(12, 0.1), np.eye(12), np.where(np.arange(12) == 5, np.nan, log_s)
    assert behind(report, {}, 11) == [0.0] * len(AFTER), "twelve schedules end before sixteen are measured"


def test_a_folder_without_a_campaign(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "evaluation.predictor.choose_known",
        "--work",
        str(tmp_path),
        "--out",
        str(tmp_path / "out.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2 and "no kernel with 100 schedules" in done.stderr, done.stderr
    assert not (tmp_path / "out.json").exists()


def test_promises_are_of_what_was_known_then() -> None:
    """Twelve schedules, the later the faster, as predicted but for a level that all share."""
    log_s = np.log(np.linspace(2.0, 1.0, 12))
    report = log_s - 1.0, np.full(12, 0.3), np.random.default_rng(0).normal(size=(12, 3)), log_s
    found = [*kept(report, {})]
    assert len(found) == 12 - FIRST - 1
    for place, promise in enumerate(found, FIRST + 1):
        assert promise.gained == pytest.approx(1.0 - np.exp(log_s[place] - log_s[place - 1]))
        assert abs(promise.surprise) < 1.0 and 0 < promise.deviation <= 0.3
        assert 0.3 * promise.gained < promise.promised < 3 * promise.gained
    nothing = report[0], report[1], report[2], np.append(log_s[:-1], log_s[0])
    assert [*kept(nothing, {})][-1].gained == 0.0


def test_results_of_short_runs(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [
        sys.executable,
        "-m",
        "evaluation.predictor.promised_gains",
        str(tmp_path / "none.json"),
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2 and str(tmp_path / "none.json") in done.stderr and len(done.stderr.splitlines()) == 1
    assert not out.exists()
