"""A policy is trained whole, by PPO and by self-play: it ends in time, and goes on where it was cut."""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kcg.dataset.reading import Export, read_export
from kcg.dataset.splits import TRAIN, VALIDATION
from kcg.errors import DataError, UnknownName, UsageError
from kcg.kernel.opts.schedule import opts_of
from kcg.predictor.checkpoint import read, save
from kcg.provenance import provenance
from kcg.rl.env import KernelScheduleEnv
from kcg.rl.policy import Policy, read_policy, save_policy
from kcg.search import replay
from kcg.search.replay import NamedTable, RecordedKernel
from kcg.search.replay import kernels_of as recorded_kernels
from kcg.training import policy as training
from kcg.training.network import Net
from kcg.training.policy import (
    POLICY,
    PROGRESS,
    PolicyTrainingSettings,
    TrainingRun,
    _each,
    _table_tasks,
    against_search,
    kernels_of,
    self_play,
    train_policy,
)
from kcg.training.policy_network import PolicyNet
from kcg.training.predictor import changed
from tests.metrics_file import read_metrics
from tests.policies import ABOUT, SHIPPED
from tests.replay_table import synthetic_table
from tests.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
DATASET = ROOT / "datasets" / "h200"
TINY = {
    "kernels": 2,
    "held_out": 1,
    "networks": 1,
    "self_play.simulations": 14,
    "self_play.games": 1,
    "self_play.most_steps": 1,
    "learning.epochs": 2,
    "ppo.steps": 24,
    "ppo.rollout": 8,
    "ppo.batch": 8,
    "ppo.epochs": 1,
    "ppo.most_steps": 3,
    "seed": 1,
}
SETTINGS = changed(PolicyTrainingSettings(), TINY)


# A whole training


def trained(out: Path, settings: PolicyTrainingSettings = SETTINGS, **options: Any) -> dict[str, float]:
    return train_policy(DATASET, SHIPPED, out, settings, **{"from_mcts": True} | options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """The folder of a training that was not cut, and its figures."""
    out = tmp_path_factory.mktemp("policy") / "whole"
    return out, trained(out)


def lines_of(folder: Path, stage: str) -> list[dict[str, Any]]:
    return [line for line in read_metrics(folder) if line.get("stage") == stage]


def test_a_training_leaves_a_policy_that_can_be_read(whole: tuple[Path, dict[str, float]]) -> None:
    out, figures = whole
    policy = read_policy(out / POLICY)
    assert policy.about.metrics == pytest.approx(figures) and policy.about.split == "workload"
    assert {"revision": policy.about.revision, "dirty": policy.about.dirty} == provenance()
    assert policy.about.targets and policy.about.datasets and policy.about.settings["seed"] == 1
    assert set(figures) == {"policy_log_speedup", "search_log_speedup", "behind_search", "kernels"}
    assert figures["kernels"] == 1 and all(map(math.isfinite, figures.values()))
    assert figures["behind_search"] == pytest.approx(figures["search_log_speedup"] - figures["policy_log_speedup"])
    begun = PolicyNet(trunk=Net.of(read(SHIPPED).nets[0])).network().numbers
    ended = policy.network.numbers
    moved = [name for name, value in ended.items() if not np.allclose(value, begun[name], atol=2e-3)]
    assert any(name.startswith("score") for name in moved), "it learned"
    same = [name for name in begun if name.endswith(("_mean", "_scale"))]
    assert same and not set(same) & set(moved), "the predictor's features keep their scale"


def test_a_training_reports_what_it_did(whole: tuple[Path, dict[str, float]]) -> None:
    out, figures = whole
    assert [line["examples"] for line in lines_of(out, "self-play")] > [0]
    assert [line["epoch"] for line in read_metrics(out) if "epoch" in line] == [0, 1]
    assert [line["step"] for line in lines_of(out, "ppo")] == [8, 16, 24]
    assert len(lines_of(out, "learned")) == 1
    assert lines_of(out, "done") == [{"stage": "done"} | figures]
    assert json.loads((out / PROGRESS).read_text())["done"] == {"self_play": 1, "ppo_steps": 24}
    played = sorted((out / "self-play").glob("*.npz"))
    export = read_export(DATASET)
    kernels = [k for part, n in ((TRAIN, 2), (VALIDATION, 1)) for k in kernels_of(export, SHIPPED, part, n, 1)]
    assert [path.stem for path in played] == sorted(k.region.id[:24] for k in kernels)


def test_the_same_call_does_nothing_twice(
    whole: tuple[Path, dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing that a folder holds is unpickled."""
    out, figures = whole
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.npz")}
    lines = read_metrics(out)
    for module, name in ((pickle, "load"), (pickle, "loads"), (torch, "load")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("something is unpickled"))
    monkeypatch.setattr(training, "_played", lambda game: pytest.fail("it is played again"))
    monkeypatch.setattr(training, "train_ppo", lambda *_, **__: pytest.fail("it is trained again"))
    assert trained(out) == pytest.approx(figures)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.npz")} == before and read_metrics(out) == lines
    assert {path.suffix for path in out.rglob("*") if path.is_file()} == {".npz", ".json", ".jsonl", ".safetensors"}


def test_a_folder_of_other_settings_is_refused(whole: tuple[Path, dict[str, float]]) -> None:
    out, _ = whole
    before = (out / POLICY).read_bytes()
    with pytest.raises(DataError, match="holds a training with other settings, or of another predictor: "):
        trained(out, changed(SETTINGS, {"ppo.entropy": 0.02}))
    assert (out / POLICY).read_bytes() == before


@pytest.mark.slow
def test_ppo_that_was_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    """A budget of nothing is one rollout."""
    settings = changed(SETTINGS, {"kernels": 1, "ppo.steps": 12})
    for done in ([8], [8, 16]):
        figures = trained(tmp_path, settings, from_mcts=False, run=TrainingRun(budget_s=0.0))
        assert [line["step"] for line in lines_of(tmp_path, "ppo")] == done
        assert json.loads((tmp_path / PROGRESS).read_text())["done"] == {"ppo_steps": done[-1]}
        assert read_policy(tmp_path / POLICY).about.metrics == pytest.approx(figures)
    assert not list(tmp_path.glob("self-play-*"))


@pytest.mark.slow
def test_ppo_on_recorded_tables_is_paid_by_what_was_measured(tmp_path: Path) -> None:
    settings = changed(SETTINGS, {"kernels": 1, "ppo.steps": 0, "table_steps": 16})
    trained(tmp_path, settings, from_mcts=False)
    assert [line["step"] for line in lines_of(tmp_path, "tables")] == [8, 16]
    assert json.loads((tmp_path / PROGRESS).read_text())["done"] == {"tables_steps": 16}
    region = next(k.region.id for k in recorded_kernels(read_export(DATASET), TRAIN))
    (task,) = _table_tasks(DATASET, [region])
    env = KernelScheduleEnv([task])
    env.reset(seed=0)
    table = next(k.table for k in recorded_kernels(read_export(DATASET), TRAIN) if k.region.id == region)
    while env.observed.steps:
        assert {step.schedule for step in env.observed.steps} <= table.records.keys()
        _, reward, _, cut, info = env.step(0)
        found = table.records[env.observed.schedule].observation
        assert cut == (found.runtime_s is None) and (cut or info["log_s"] == pytest.approx(math.log(found.time_s)))
        if cut or len(opts_of(env.observed.schedule)) > 3:
            break
    assert len(opts_of(env.observed.schedule)) > 0 and math.isfinite(reward)


@pytest.mark.slow
def test_self_play_that_was_cut_plays_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A game takes a second of a clock on which nothing else takes any."""
    played, now_s = training._played, [0.0]

    def in_a_second(game: Any) -> Any:
        now_s[0] += 1.0
        return played(game)

    monkeypatch.setattr(training, "_played", in_a_second)
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    kernels = [replace(k, members=1) for k in kernels_of(read_export(DATASET), SHIPPED, TRAIN, 3, 1)]
    with pytest.raises(DataError, match="holds nothing to learn from"):
        self_play(kernels, tmp_path, SETTINGS.self_play, workers=1, deadline=0.0)
    report: list[int] = []
    some = self_play(kernels, tmp_path, SETTINGS.self_play, workers=1, deadline=0.5, report=report.append)
    (first,) = tmp_path.glob("*.npz")
    written = first.stat().st_mtime_ns
    assert report == [1] and len(some.kernel_x) == 1
    every = self_play(kernels, tmp_path, SETTINGS.self_play, workers=1, report=report.append)
    assert report == [1, 1, 2] and len(every.kernel_x) == 3 and first.stat().st_mtime_ns == written
    assert np.array_equal(every.chances[: len(some.chances)], some.chances)
    first.write_bytes(b"no archive")
    assert len(self_play(kernels, tmp_path, SETTINGS.self_play, workers=1).kernel_x) == 2
    assert "cannot be read" in caplog.text


@pytest.mark.slow
def test_self_play_that_the_budget_cut_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = changed(SETTINGS, {"ppo.steps": 0, "learning.epochs": 1})
    with monkeypatch.context() as patch:
        patch.setattr(training, "_each", lambda *args, **rest: itertools.islice(_each(*args, **rest), 1))
        trained(tmp_path, settings)
    assert "self_play" not in json.loads((tmp_path / PROGRESS).read_text())["done"]
    trained(tmp_path, settings)
    assert json.loads((tmp_path / PROGRESS).read_text())["done"]["self_play"] == 1
    some, every = (line["examples"] for line in lines_of(tmp_path, "self-play"))
    assert some < every


@pytest.mark.parametrize("text", ["", "[]", "{", '{"settings": {}}', '{"settings": {}, "done": [1]}'])
def test_progress_that_cannot_be_read_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / PROGRESS).write_text(text)
    with pytest.raises(DataError, match=r"progress\.json cannot be read") as caught:
        trained(tmp_path)
    assert "\n" not in str(caught.value)


def test_training_begins_as_the_policy_that_it_is_given(tmp_path: Path) -> None:
    net = PolicyNet(trunk=Net.of(read(SHIPPED).nets[0]))
    nn.init.normal_(net.score[-1].weight)  # type: ignore[arg-type]
    save_policy(Policy(net.network(), ABOUT), tmp_path / "given.safetensors")
    settings = changed(SETTINGS, {"kernels": 1, "ppo.steps": 8, "ppo.learning_rate": 0.0})
    trained(tmp_path / "out", settings, from_mcts=False, start=tmp_path / "given.safetensors")
    found, given = (read_policy(path) for path in (tmp_path / "out" / POLICY, tmp_path / "given.safetensors"))
    states = zip(found.network.numbers.values(), given.network.numbers.values(), strict=True)
    assert all(np.array_equal(one, other) for one, other in states)
    assert found.about.name == "out"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernels": 0}, "kernels=0: it has to be at least 1"),
        ({"held_out": 0}, "held_out=0"),
        ({"networks": 0}, "networks=0"),
        ({"self_play.simulations": 0}, "self_play.simulations=0"),
        ({"self_play.games": 0}, "self_play.games=0"),
        ({"self_play.alpha": 0.0}, r"self_play.alpha=0\.0"),
        ({"self_play.noise": 2.0}, r"self_play.noise=2\.0: it has to be at most 1"),
        ({"self_play.uniform": 5.0}, r"self_play.uniform=5\.0"),
        ({"ppo.learning_rate": 1e9}, r"ppo.learning_rate=1000000000\.0"),  # nothing is a number after one step
        ({"learning.batch": 0}, "learning.batch=0"),
        ({"ppo.rollout": 1}, "ppo.rollout=1: it has to be at least 2"),
        ({"ppo.most_steps": 0}, "ppo.most_steps=0"),
        ({"ppo.start": "nowhere"}, "nowhere"),
        ({"ppo.steps": 0}, "nothing to do"),
    ],
)
def test_settings_that_cannot_be_meant_are_one_line(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, UnknownName), match=message) as caught:
        trained(tmp_path / "out", changed(SETTINGS, settings), from_mcts=False)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_what_is_not_to_be_trained_on_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="was trained on no target of"):
        train_policy(ROOT / "datasets" / "cpu", SHIPPED, tmp_path / "out", SETTINGS, from_mcts=True)
    with pytest.raises(DataError, match="there is no checkpoint"):
        train_policy(DATASET, tmp_path / "nothing.safetensors", tmp_path / "out", SETTINGS, from_mcts=True)
    with pytest.raises(DataError, match="is no policy"):
        trained(tmp_path / "out", from_mcts=False, start=SHIPPED)


def test_kernels_of_a_part_are_of_that_part_and_none_is_of_flux() -> None:
    export = read_export(DATASET)
    rows = {row["id"]: row["split_workload"] for row in export.kernels_table(["id", "split_workload"]).to_pylist()}
    flux = {call.region.id for w in export.workloads() if w.name == "flux" for call in w.calls}
    for part in (TRAIN, VALIDATION):
        found = kernels_of(export, SHIPPED, part, 10**6, 0)
        assert len(found) > 100 and {rows[k.region.kernel.id] for k in found} == {part}
        assert not {k.region.id for k in found} & flux
    few = kernels_of(export, SHIPPED, part, 5, 0)
    assert few == found[:5] and few != kernels_of(export, SHIPPED, part, 5, 1)


@pytest.mark.slow
def test_recorded_kernels_are_of_the_split_of_the_predictor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A predictor whose split is by kernel never saw other kernels than one whose split is by workload."""
    export, table = read_export(DATASET), synthetic_table()
    (target,) = export.targets()
    named = [NamedTable(region, target, "", (), table) for region in list(export.regions())[:400]]
    monkeypatch.setattr(replay, "read_tables", lambda folder: named)
    rows = {row["id"]: row["split_kernel"] for row in export.kernels_table(["id", "split_kernel"]).to_pylist()}
    found = recorded_kernels(export, TRAIN, split="kernel")
    assert found and {rows[k.region.kernel.id] for k in found} == {TRAIN} == {k.part for k in found}

    class Asked(Exception):
        pass

    def kernels(export: Export, part: str, *, split: str) -> list[RecordedKernel]:
        raise Asked(part, split)

    monkeypatch.setattr(training, "recorded_kernels", kernels)
    checkpoint = read(SHIPPED)
    by_kernel = replace(checkpoint, about=replace(checkpoint.about, split="kernel"))
    save(by_kernel, tmp_path / "by-kernel.safetensors")
    settings = changed(SETTINGS, {"ppo.steps": 0, "table_steps": 8})
    with pytest.raises(Asked, match="'train', 'kernel'"):
        train_policy(DATASET, tmp_path / "by-kernel.safetensors", tmp_path / "out", settings, from_mcts=False)


# With processes, and as a user starts it


@pytest.mark.slow
def test_processes_play_and_judge_as_this_one_does(tmp_path: Path, whole: tuple[Path, dict[str, float]]) -> None:
    kernels = [replace(k, members=1) for k in kernels_of(read_export(DATASET), SHIPPED, TRAIN, 3, 1)]
    found = [self_play(kernels, tmp_path / str(n), SETTINGS.self_play, workers=n) for n in (1, 2)]
    assert np.array_equal(found[0].chances, found[1].chances) and np.array_equal(found[0].value, found[1].value)
    ours, theirs = (against_search(kernels, whole[0] / POLICY, workers=n) for n in (1, 2))
    assert ours == pytest.approx(theirs, abs=1e-5)
    begun = time.monotonic()
    with pytest.raises(DataError):  # it begins none, and waits for none
        self_play(kernels, tmp_path / "none", SETTINGS.self_play, workers=2, deadline=begun)


def _begun(job: tuple[Path, Path | None]) -> str:
    """Leaves its file, and ends when another one is there."""
    path, gate = job
    path.touch()
    assert gate is None or wait_until(gate.exists)
    return path.name


@pytest.mark.slow
def test_what_has_not_begun_by_the_deadline_never_runs_and_what_runs_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline is over when the first is done; the others end after what has not begun was cancelled."""
    gate, cancel, before = tmp_path / "gate", training._cancel, set(multiprocessing.active_children())

    def cancelled(futures: Iterable[Future[Any]]) -> None:
        cancel(futures)
        gate.touch()

    monkeypatch.setattr(training, "_cancel", cancelled)
    jobs = [(tmp_path / "00", None), *((tmp_path / f"{i:02}", gate) for i in range(1, 40))]
    found = [name for _, name in _each(_begun, jobs, 2, deadline=time.monotonic())]
    gate.unlink()
    begun = sorted(path.name for path in tmp_path.iterdir())
    assert "00" in found and sorted(found) == begun and len(begun) < 12, "two run, and a pool hands out a few ahead"
    assert set(multiprocessing.active_children()) <= before, "no worker can go on after the end"


def script(*arguments: object, home: Path) -> subprocess.CompletedProcess[str]:
    """The script as a user starts it, in an empty folder."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    env |= {"HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "training" / "train_policy.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=home, env=env, timeout=PATIENCE_S, check=False)


@pytest.mark.slow
def test_the_script_trains_whole_ends_at_its_budget_and_says_what_is_wrong(tmp_path: Path) -> None:
    sets = [text for name, value in TINY.items() if name != "seed" for text in ("--set", f"{name}={value}")]
    common = ["--data", DATASET, "--out", tmp_path / "run", "--seed", 1, "--workers", 2, "--wandb", "disabled", *sets]
    cut = script(*common, "--from-mcts", "--budget", "1s", home=tmp_path)
    assert cut.returncode == 0 or "holds nothing to learn from" in cut.stderr
    assert "Traceback" not in cut.stderr
    done = script(*common, "--from-mcts", home=tmp_path)
    assert done.returncode == 0 and "policy_log_speedup" in done.stdout, done.stderr
    assert read_policy(tmp_path / "run" / POLICY).about.metrics["kernels"] == 1
    assert json.loads((tmp_path / "run" / PROGRESS).read_text())["done"]["ppo_steps"] >= 24
    other = script(*common, "--set", "ppo.entropy=1", home=tmp_path)
    assert other.returncode == 2 and other.stderr.count("\n") == 1 and "other settings" in other.stderr
    for wrong in (["--set", "ppo.start=nowhere"], ["--budget", "soon"]):
        refused = script("--data", DATASET, "--out", tmp_path / "other", *wrong, home=tmp_path)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused.stderr
    assert not (tmp_path / "other").exists()
