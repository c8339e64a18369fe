"""`kcg.optimize --wandb`: what a finished run keeps at Weights & Biases, read back from its file; and no run hangs or
fails by it."""

from __future__ import annotations

import json
import os
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcg.cli import pip_install
from kcg.errors import ExitCode
from kcg.optimize.tracking import COLUMNS, PROJECT, send
from kcg.predictor import tracking
from kcg.report.page import write_report
from kcg.types import Result
from tests.optimize_run import optimized
from tests.sample_result import sample_result
from tests.waiting import waited

SMALL = Path(__file__).parents[1] / "scripts" / "one_layer.py"
HEADER, BLOCK = 7, 1 << 15  # of a .wandb file: records as in LevelDB's log
WHOLE, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """The records of a run that was kept offline."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts = path.read_bytes(), HEADER, b""
    while place < len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data[place : place + 7].ljust(7, b"\0"))
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (WHOLE, LAST) and place <= len(data):
            yield Record.FromString(parts)
            parts = b""


class Kept:
    """What the one run below a folder holds."""

    def __init__(self, folder: Path) -> None:
        (self.path,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
        self.history: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.axes: dict[str, str] = {}
        self.artifacts: dict[str, list[str]] = defaultdict(list)
        for record in self._whole():
            if record.HasField("run"):
                self.project, self.name, self.host = record.run.project, record.run.display_name, record.run.host
                self.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            if record.HasField("metric"):
                self.axes[record.metric.name] = record.metric.step_metric
            if record.HasField("history"):
                items = record.history.item
                self.history.append({".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
            if record.HasField("summary"):
                items = record.summary.update
                self.summary |= {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
            if record.request.HasField("log_artifact") or record.HasField("artifact"):
                artifact = record.artifact if record.HasField("artifact") else record.request.log_artifact.artifact
                self.artifacts[artifact.type] += [entry.path for entry in artifact.manifest.contents]

    def _whole(self) -> list[Any]:
        """All records: within this process the service of wandb still writes when it has answered that a run ended."""
        waited(lambda: any(record.HasField("exit") for record in records(self.path)))
        return list(records(self.path))

    def table(self) -> dict[str, Any]:
        (path,) = self.path.parent.glob("files/media/table/kernels_*.table.json")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


@pytest.fixture(scope="module")
def result() -> Result:
    return sample_result()


@pytest.fixture(scope="module")
def kept(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    folder, said = tmp_path_factory.mktemp("out"), list[str]()
    send(result, write_report(result, folder), mode="offline", warn=said.append)
    assert said == []
    return Kept(folder)


@pytest.mark.slow
def test_the_best_total_is_there_over_seconds_and_over_measurements(kept: Kept, result: Result) -> None:
    for name, axis in (("best total over seconds", "elapsed_s"), ("best total over measurements", "measurements")):
        assert kept.axes[name] == axis
        points = [(row[axis], row[name]) for row in kept.history if name in row]
        assert points == [(getattr(point, axis), pytest.approx(point.total_s)) for point in result.progress]


def test_each_kernel_is_a_row_of_the_table(kept: Kept, result: Result) -> None:
    table = kept.table()
    assert table["columns"] == COLUMNS and len(table["data"]) == len(result.regions)
    rows = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in table["data"]}
    slowest = max(result.regions, key=lambda region: region.before_s)
    assert table["data"][0][0] == slowest.chosen.name, "the slowest first"
    row = rows[slowest.chosen.name]
    assert row["before_s"] == pytest.approx(slowest.before_s) and row["after_s"] == pytest.approx(slowest.after_s)
    assert row["speedup"] == pytest.approx(slowest.before_s / slowest.after_s)
    assert (row["outcome"], row["calls"]) == ("improved", slowest.calls) and row["schedule"]


def test_totals_settings_and_the_report_are_there(kept: Kept, result: Result) -> None:
    assert kept.summary["total_before_s"] == pytest.approx(result.total_before_s)
    assert kept.summary["total_after_s"] == pytest.approx(result.total_after_s)
    assert kept.summary["kernels improved"] == sum(r.outcome == "improved" for r in result.regions)
    assert kept.summary["whole_verified"] is True and kept.summary["measured"] == result.measurements
    assert (kept.project, kept.name, kept.host) == (PROJECT, "flux mini", ""), "nothing of the machine"
    for name in ("workload", "preset", "search", "seed", "revision", "budget"):
        assert kept.config[name] == getattr(result, name)
    assert kept.config["target"]["model"] == result.target.model
    assert kept.artifacts["report"] == ["report.html"]


def test_the_project_is_what_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "of-a-user")
    result = replace(sample_result(), progress=())
    send(result, write_report(result, tmp_path), mode="offline", warn=pytest.fail)
    assert Kept(tmp_path).project == "of-a-user"


def test_whatever_fails_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    def broken(**_: object) -> None:
        raise OSError("no space left\non the device")

    monkeypatch.setattr(wandb, "init", broken)
    said = list[str]()
    result = sample_result()
    send(result, write_report(result, tmp_path), mode="offline", warn=said.append)
    assert said == [
        f"flux mini: Weights & Biases failed (no space left): the result is in {tmp_path} only",
    ]


def test_without_it_a_run_is_refused_before_the_device_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    done = optimized(SMALL, "--device", "NO_SUCH_DEVICE", "--wandb", "online", "--report", tmp_path / "out")
    assert done.returncode == ExitCode.USAGE and done.stderr.count("\n") == 1
    assert pip_install("train") in done.stderr
    done = optimized(SMALL, "--device", "NO_SUCH_DEVICE", "--wandb", "onlin", "--report", tmp_path / "out")
    assert done.returncode == ExitCode.USAGE and "did you mean online?" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_run_ends_as_it_would_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command, online without a key: offline, with one line."""
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    out = tmp_path / "out"
    done = optimized(SMALL, "--measurements", "0", "--predictor", "roofline", "--wandb", "online", "--report", out)
    assert done.returncode in (ExitCode.OK, ExitCode.NOTHING_IMPROVED, ExitCode.NOTHING_SEARCHED, ExitCode.UNCHECKED), (
        done.stderr
    )
    assert "no key for Weights & Biases" in done.stderr.splitlines()[-1]
    assert Kept(out).summary["complete"] is json.loads((out / "RESULT.json").read_text())["complete"]
