"""What kcg hands over, plain tinygrad takes: the same output, as fast, and no search."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.flux.handover import judged
from evaluation.pytorch import in_tinygrad
from kcg.compat.device import clang_path
from kcg.errors import ExitCode
from kcg.kernel.kinds import ACTION_SPACE_VERSION
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.device_info import detect
from kcg.report.result import write_result
from kcg.types import Finalist, RegionResult, Result, Schedule, Verification
from kcg.workloads.capture import lazy_workload
from tests.sample_result import sample_result
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
PROGRAM = [sys.executable, "-m", "evaluation.flux.handover"]
DEV = os.environ["DEV"]
CASE = {"kind": "rope", "tokens": 8, "heads": 2, "width": 8, "dtype": "float32", "backward": False}
OF_THREE_KERNELS = {"kind": "layernorm", "rows": 4, "width": 8, "dtype": "float32"}


def finalist(space: KernelSpace, schedule: Schedule) -> Finalist:
    return Finalist(schedule, 2e-6, 1e-6, (1e-6, 3e-6), Verification(True), name=space.name(schedule))


def result_of(case: dict[str, Any]) -> Result:
    """A result of a case in which every kernel has another schedule than tinygrad's own."""
    target, toolchain = detect(DEV, ACTION_SPACE_VERSION)
    step = in_tinygrad.build(case)
    rows = []
    for call in lazy_workload("case", "", step.run(**step.inputs)).calls:
        space = KernelSpace(call.region, target)
        own = space.key(space.baseline())
        other = next(a.schedule for a in space.actions(space.start()) if space.key(a.schedule) != own)
        base, ours = finalist(space, space.baseline()), finalist(space, other)
        rows.append(RegionResult(call.region, call.calls, base, ours, 1, "improved"))
    return replace(
        sample_result(), target=target, toolchain=toolchain, regions=tuple(rows), recomputes=(), expectations=()
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("result") / "RESULT.json"
    write_result(result_of(CASE), path)
    return path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The user's own cache, and what lets plain tinygrad open its CPU where no clang is found, see
    test_apply_and_tuned."""
    stand_in = {}
    if clang_path() is None:
        script = tmp_path / "cc"
        script.write_text("#!/bin/sh\ncat > /dev/null\nprintf '\\017\\013'\n")
        script.chmod(0o755)
        stand_in = {"CC": str(script)}
    return {**os.environ, "CACHEDB": str(tmp_path / "users.db"), **stand_in}


def run(
    stored: Path, out: Path, environment: dict[str, str], *more: str, case: dict[str, Any] = CASE
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "evaluation.flux.handover",
        "--device",
        DEV,
        "--result",
        str(stored),
        "--out",
        str(out),
    ]
    what = ["--case", json.dumps(case), "--rounds", "1", *more]
    return subprocess.run(
        [*command, *what], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_an_unchanged_program_takes_over_without_a_search(
    stored: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    done = run(stored, tmp_path / "handover.json", environment, "--replays", "3")
    assert done.returncode in (ExitCode.OK, ExitCode.VERIFICATION_FAILED), done.stderr
    report = json.loads((tmp_path / "handover.json").read_text())
    (entry,) = report["runs"].values()
    assert entry["searched"] == entry["rows_changed"] == 0 and entry["rows"] == 1
    assert entry["same_output"] and entry["right_output"] and entry["unhooked"]
    assert entry["kcg_s"] > 0 and len(entry["seconds"]["plain"]) == 3
    run_name = f"rope_{DEV.lower().replace(':', '_')}"
    assert report["headline"][f"ratio_{run_name}"] == entry["ratio"]
    if done.returncode:  # of steps of microseconds on a machine that does other things too
        assert done.stderr == "kcg: the hand-over does not hold: it is not as fast\n"
    assert not Path(environment["CACHEDB"]).exists(), "the user's cache is not touched"


@pytest.mark.parametrize("way", ["run", "export"])
def test_an_unchanged_program_and_a_module_give_the_same_output(
    way: str, stored: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    done = run(stored, tmp_path / "handover.json", environment, "--replays", "3", "--way", way)
    assert done.returncode in (ExitCode.OK, ExitCode.VERIFICATION_FAILED), done.stderr
    (entry,) = json.loads((tmp_path / "handover.json").read_text())["runs"].values()
    assert entry["same_output"] and entry["right_output"] and entry["unhooked"] and entry["way"] == way
    if done.returncode:  # of steps of microseconds on a machine that does other things too
        assert done.stderr == "kcg: the hand-over does not hold: it is not as fast\n"


@pytest.mark.slow
def test_a_search_is_seen(tmp_path: Path, environment: dict[str, str]) -> None:
    """With the result of one kernel only, BEAM has to search for the others."""
    whole, path = result_of(OF_THREE_KERNELS), tmp_path / "RESULT.json"
    write_result(replace(whole, regions=whole.regions[:1]), path)
    how = ["--replays", "1", "--beam", "1"]
    done = run(path, tmp_path / "handover.json", environment, *how, case=OF_THREE_KERNELS)
    assert done.returncode == ExitCode.VERIFICATION_FAILED, done.stderr
    assert f"it searched {len(whole.regions) - 1} kernels" in done.stderr


def test_a_result_of_something_else_is_refused(stored: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    command = [
        sys.executable,
        "-m",
        "evaluation.flux.handover",
        "--preset",
        "768",
        "--device",
        DEV,
        "--result",
        str(stored),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.splitlines() == [f"kcg: {stored} is of flux mini: give --preset, or a result of flux 768"]


def reported(seconds: list[float], output: str = "a", **more: Any) -> dict[str, Any]:
    return {"seconds": seconds, "output": output, "values": [1.0, 2.0], "unhooked": True, "ready_s": 1.0, **more}


def test_what_is_no_hand_over_is_reported() -> None:
    kcg, own = [reported([1.0, 1.1], unhooked=False), reported([1.04, 1.06], unhooked=False)], reported([2.0, 2.0])
    same = judged(kcg, [reported([1.02, 1.04]), reported([1.09])], own, 1e-4)
    assert all(same[name] for name in ("same_speed", "same_output", "right_output", "unhooked")), same
    assert same["noise"] == pytest.approx(0.06 / 1.03, rel=1e-3) and same["hand_coded_s"] == 2.0
    alone = judged(kcg[:1], [reported([1.01, 1.03])], own, 1e-4)
    assert alone["noise"] == pytest.approx(0.05 / 1.05, rel=1e-3), "the samples tell, where there is one process each"
    assert not judged(kcg, [reported([2.0])], own, 1e-4)["same_speed"]
    assert not judged(kcg, [reported([1.0], "b")], own, 1e-4)["same_output"]
    assert not judged(kcg, [reported([1.0], values=[1.0, 2.1])], own, 1e-4)["right_output"]
    assert not judged(kcg, [reported([1.0], unhooked=False)], own, 1e-4)["unhooked"]
