"""The metrics of a training: each told once, and to Weights & Biases where that is there, else a line says why not."""

from __future__ import annotations

import logging
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kcg.cli import pip_install
from kcg.errors import DataError, UnknownName, UsageError
from kcg.predictor import tracking
from kcg.predictor.tracking import METRICS, Tracker, wanted_mode
from tests.metrics_file import read_metrics
from tests.waiting import PATIENCE_S


def test_metrics_are_reported_once_and_a_torn_line_is_taken_away(tmp_path: Path) -> None:
    with Tracker(tmp_path) as tracker:
        tracker.log({"epoch": 0, "loss": 1.5})
        tracker.log({"epoch": 1, "loss": math.nan})
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'{"epoch":2,"lo')
    with Tracker(tmp_path) as tracker:
        tracker.log({"epoch": 1, "loss": 9.0})
        tracker.log({"epoch": 2, "loss": math.inf})
    assert read_metrics(tmp_path) == [
        {"epoch": 0, "loss": 1.5},
        {"epoch": 1, "loss": None},
        {"epoch": 2, "loss": None},
    ]
    with Tracker(tmp_path, key="") as tracker:
        tracker.log({"loss": 1.5, "epoch": 0})
        tracker.log({"epoch": 0, "loss": 1.6})
    assert len(read_metrics(tmp_path)) == 4


@pytest.mark.parametrize("text", ["no json\n", "[1]\n"])
def test_a_file_that_is_no_metrics_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / METRICS).write_text(text)
    with pytest.raises(DataError, match="no file of metrics"):
        Tracker(tmp_path)


def test_without_weights_and_biases_the_default_is_a_line_and_a_wish_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert wanted_mode(None) == "offline" and wanted_mode("online") == "online"
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING):
        assert (wanted_mode(None), wanted_mode("disabled")) == ("disabled", "disabled")
    assert len(caplog.records) == 1 and pip_install("train") in caplog.text
    for mode in ("online", "offline"):
        with pytest.raises(UsageError, match=re.escape(pip_install("train"))):
            wanted_mode(mode)
    with pytest.raises(UnknownName, match="online"):
        wanted_mode("onlin")


ONLINE = """
import logging, sys
from pathlib import Path
from kcg.predictor import tracking
logging.basicConfig(format="%(message)s")
tracking.START_S = 2.0
with tracking.Tracker(Path(sys.argv[1]), tracking.Tracking("online", "group", {"a": {"b": 1}})) as tracker:
    tracker.log({"epoch": 0, "loss": 1.0})
print(tracker.mode)
"""


@pytest.mark.slow
@pytest.mark.parametrize("key", ["", pytest.param("a" * 40, marks=pytest.mark.slow)])
def test_online_without_a_key_or_a_network_is_a_line_and_offline(tmp_path: Path, key: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    env |= {"HOME": str(tmp_path), "WANDB_BASE_URL": "http://127.0.0.1:9"} | ({"WANDB_API_KEY": key} if key else {})
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ONLINE, str(tmp_path / "run")],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    (line,) = done.stderr.splitlines()
    assert ("cannot be reached" if key else "no key") in line and line.endswith("`wandb sync` sends it later")
    assert done.stdout == "offline\n" and list((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert read_metrics(tmp_path / "run") == [{"epoch": 0, "loss": 1.0}]
