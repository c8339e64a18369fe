"""The commands that train the predictor: whole, cut and gone on with, in several processes, tuned, and refused."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kcg.dataset.export import export
from kcg.dataset.journal import Journal
from kcg.dataset.reading import read_export
from kcg.errors import DataError, DeviceError, KcgError, UsageError
from kcg.kernel.opts.space import KernelSpace
from kcg.predictor.checkpoint import read
from kcg.predictor.ensemble import averaged, outputs_by
from kcg.predictor.header import MOST_BYTES
from kcg.predictor.learned import LearnedPredictor
from kcg.predictor.metrics import Floors, floors_of, scores, summary
from kcg.predictor.tracking import METRICS, Tracker
from kcg.predictor.training_data import TrainingData, load
from kcg.provenance import provenance
from kcg.training import predictor as training
from kcg.training import tuning
from kcg.training.fit import spread_scale, validation_rows
from kcg.training.loss import Weights
from kcg.training.network import Net
from kcg.training.predictor import (
    CHECKPOINT,
    Trained,
    TrainingSettings,
    devices_of,
    names_of,
    parsed,
    read_settings,
    train,
    with_values,
)
from kcg.types import Schedule, canonical_json
from tests.dataset.test_journal import fill, measurement
from tests.metrics_file import read_metrics
from tests.small_dataset import small_dataset
from tests.waiting import PATIENCE_S, waited

ROOT = Path(__file__).parents[2]
TINY = {
    "members": 2,
    "epochs": 4,
    "kernels_a_step": 6,
    "schedules_a_kernel": 12,
    "learning_rate": 6e-3,
    "average": 0.8,
    "validate_every": 2,
    "net.hidden": 16,
    "net.layers": 1,
}
SETTINGS = with_values(TrainingSettings(), TINY)


@pytest.fixture(scope="module", autouse=True)
def one_core() -> Iterator[None]:
    """Threads of networks as small as these only wait for each other, and cores that are busy make it longer."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (training, tuning):
            patch.setattr(module, "usable_cores", lambda: 1)
        yield


said_of_graphs: list[str] = []  # while the graphs of the dataset were computed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A part of the H200's dataset, and the graphs of it in a cache that the scripts find, too."""
    families = {"norms": 6, "gpt2": 6, "activations": 5, "softmax": 6, "bert": 6, "flux": 2}
    before, threads = os.environ.get("XDG_CACHE_HOME"), torch.get_num_threads()
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    torch.set_num_threads(1)
    path = small_dataset(tmp_path_factory.mktemp("small"), families=families)
    load(path, workers=1, log=said_of_graphs.append)
    yield path
    torch.set_num_threads(threads)
    os.environ.pop("XDG_CACHE_HOME")
    if before is not None:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="module")
def data(folder: Path) -> TrainingData:
    return load(folder)


def test_it_is_said_how_far_the_graphs_are(folder: Path, data: TrainingData) -> None:
    first, *lines = said_of_graphs
    assert first == f"{folder}: computing graphs, once"
    counts = [tuple(map(int, re.findall(r"\d+", line))) for line in lines]
    kernels = len(data.region_ids)
    assert lines[-1] == f"graphs of {kernels} of {kernels} kernels"
    assert counts == [(-(-tenth * kernels // 10), kernels) for tenth in range(1, 11)]
    again: list[str] = []
    load(folder, log=again.append)
    assert again == [], "they are kept"


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A training that was not cut."""
    return train(folder, tmp_path_factory.mktemp("whole"), SETTINGS)


def script(name: str, *arguments: object, home: Path, **settings: str) -> subprocess.Popen[str]:
    """A script of `training/` as a user starts it: nothing is said about Weights & Biases."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "training" / name), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=home,
        env={**env, "HOME": str(home), "OMP_NUM_THREADS": "1", **settings},
    )


def reported(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, but for how long it took; what is null is NaN."""
    return [
        {k: math.nan if v is None else v for k, v in line.items() if k != "spent_s"} for line in read_metrics(folder)
    ]


def same_metrics(one: Path, other: Path) -> None:
    ours, theirs = reported(one), reported(other)
    assert [line["epoch"] for line in ours] == [line["epoch"] for line in theirs] == list(range(TINY["epochs"]))
    for line, line_of_other in zip(ours, theirs, strict=True):
        assert line == pytest.approx(line_of_other, rel=1e-2, abs=5e-3, nan_ok=True)


# ---- what a training gives ----


@pytest.mark.slow
def test_what_was_trained_ranks_kernels_it_never_saw_better_than_chance(data: TrainingData, whole: Trained) -> None:
    assert 0.6 < whole.about.metrics["pairwise"] < 1
    index = np.flatnonzero(data.part("workload", "test") & ~data.failed)
    random = np.random.default_rng(0).normal(size=len(index))
    outputs = outputs_by(read(whole.path).nets, data, index)
    found, chance = (
        summary(scores(rank, data.log_s[index], data.kernel[index], data.run[index], Floors()), data.calls)["pairwise"]
        for rank in (averaged(outputs)["rank"], random)
    )
    assert found > 0.6 and found > chance + 0.1


def test_the_checkpoint_is_small_says_what_it_is_and_predicts_the_same(
    folder: Path, data: TrainingData, whole: Trained
) -> None:
    assert whole.path.stat().st_size <= MOST_BYTES
    checkpoint = read(whole.path)
    about = checkpoint.about
    assert about == whole.about and len(checkpoint.nets) == 2
    assert about.datasets == data.checksums and about.split == "workload" and about.settings == names_of(SETTINGS)
    assert {"revision": about.revision, "dirty": about.dirty} == provenance()
    assert [t["model"] for t in about.targets] == ["NVIDIA H200"] and "REDUCE" in about.operations
    assert {"pairwise", "kendall_tau", "top1", "log_error", "within_80"} < set(about.metrics)
    export_, kernel = read_export(folder), int(data.kernel[validation_rows(data, "workload")[0]])
    index = np.flatnonzero(data.kernel == kernel)
    bodies = export_.table(1, ["schedule_body"])["schedule_body"].to_pylist()
    space = KernelSpace(export_.regions()[data.region_ids[kernel]], export_.targets()[data.targets[0]])
    schedules = [Schedule("opts", bodies[i]) for i in data.row[index]]
    predictions = LearnedPredictor(checkpoint).predict(space, schedules)
    found = averaged(outputs_by(checkpoint.nets, data, index), about.spread_scale)
    assert [p.log_runtime for p in predictions] == pytest.approx(found["rank"].tolist(), abs=2e-3)
    assert [math.log(p.uncertainty) for p in predictions] == pytest.approx(found["log_sigma"].tolist(), abs=2e-3)


def test_what_is_trained_is_not_trained_again_and_another_training_is_refused(folder: Path, whole: Trained) -> None:
    out = whole.path.parent
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.rglob("*") if path.is_file()}
    again = train(folder, out, SETTINGS)
    changed = {path.name for path, (at, _) in before.items() if path.stat().st_mtime_ns != at}
    assert changed <= {CHECKPOINT, "training.json"}
    assert all(path.read_bytes() == content for path, (_, content) in before.items())
    assert again.about == whole.about and again.line() == whole.line()
    with pytest.raises(DataError, match="holds a training of other settings"):
        train(folder, out, with_values(SETTINGS, {"seed": 1}))


@pytest.mark.slow
def test_two_processes_train_the_same_networks_as_one(folder: Path, whole: Trained, tmp_path: Path) -> None:
    both = train(folder, tmp_path / "both", SETTINGS, devices=("cpu", "cpu"))
    for member in ("member-0", "member-1"):
        same_metrics(both.path.parent / member, whole.path.parent / member)
    assert both.about.metrics["pairwise"] == pytest.approx(whole.about.metrics["pairwise"], abs=1e-3)


@pytest.mark.slow
def test_a_training_that_was_killed_goes_on_and_is_tracked_offline(
    folder: Path, whole: Trained, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ["--data", folder, "--out", out, "--device", "cpu"]
    arguments += [part for name, value in TINY.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    cut = script("train_predictor.py", *arguments, home=tmp_path)
    metrics = out / "member-0" / METRICS
    waited(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 2)
    cut.send_signal(signal.SIGKILL)
    cut.communicate()
    kept = metrics.read_bytes()
    assert kept and not (out / CHECKPOINT).exists()
    printed, errors = script("train_predictor.py", *arguments, home=tmp_path).communicate(timeout=PATIENCE_S)
    (line,) = printed.splitlines()
    assert line.startswith(f"{out / CHECKPOINT}: 0.") and "validation: pairwise 0." in line, errors
    assert metrics.read_bytes().startswith(kept)
    for member in ("member-0", "member-1"):
        same_metrics(out / member, whole.path.parent / member)
    assert list((out / "wandb").glob("offline-run-*/run-*.wandb"))
    assert list((out / "member-1" / "wandb").glob("offline-run-*/run-*.wandb"))
    model = list(tmp_path.rglob("artifacts/staging/*"))
    assert [path.read_bytes() for path in model if path.is_file()] == [(out / CHECKPOINT).read_bytes()]


# ---- settings and their errors ----


def test_every_setting_can_be_named_and_reaches_where_it_is_used() -> None:
    settings = with_values(TrainingSettings(), parsed(["net.hidden=40", "weights.listwise=1", "net.compare=true"]))
    assert (settings.fit.net.hidden, settings.fit.weights.listwise, settings.fit.net.compare) == (40, 1.0, True)
    assert with_values(TrainingSettings(), parsed(["members=7"])).members == 7
    names = names_of(TrainingSettings())
    assert with_values(TrainingSettings(), names) == TrainingSettings()
    assert {"epochs", "seed", "split", "share", "net.layers", "weights.pairs", "members"} < set(names)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("net.hiden=3", "did you mean net.hidden"),
        ("net=3", "unknown setting 'net'"),
        ("hidden", "write name=value"),
        ("net.hidden=2.5", "a whole number"),
        ("net.hidden=wide", "a whole number"),
        ("epochs=0", "from 1 to"),
        ("learning_rate=nan", "a number"),
        ("learning_rate=-1", "from 1e-07"),
        ("net.compare=1", "true or false"),
        ("split=flux", "unknown split 'flux'"),
        ("share=0", "from 1e-09"),
        ("average=1", "to 0.999999"),
        ("members=0", "from 1 to"),
        ("trees.rounds=0", "unknown setting 'trees.rounds'"),
        ("net.layers=17", "from 0 to 16"),  # no checkpoint of more is read
        ("net.hidden=1025", "from 4 to 1024"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_one_line(text: str, line: str) -> None:
    with pytest.raises(UsageError, match=line) as caught:
        with_values(TrainingSettings(), parsed([text]))
    assert "\n" not in str(caught.value)


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(UsageError, match="multiple of 4"):
        with_values(TrainingSettings(), {"net.hidden": 30, "net.compare": True})
    with pytest.raises(UsageError, match="no part of the loss has a weight"):
        with_values(TrainingSettings(), {f"weights.{f.name}": 0 for f in fields(Weights)})


@pytest.mark.parametrize("text", ["{", "[1]", None])
def test_a_broken_file_of_settings_is_one_line(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "s.json").write_text(text)
    with pytest.raises(DataError, match="settings"):
        read_settings(tmp_path / "s.json")


@pytest.mark.parametrize(("text", "error"), [("gpu", UsageError), ("", UsageError), ("cuda:99", DeviceError)])
def test_a_device_that_is_not_there_is_one_line(text: str, error: type[KcgError]) -> None:
    with pytest.raises(error, match="--device"):
        devices_of(text)
    assert devices_of("cpu,cpu") == ("cpu", "cpu") and devices_of("auto")


def test_a_checkpoint_that_would_be_too_large_is_reported_before_the_networks_are_trained(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="more than the 5 MB"):
        train(folder, tmp_path, with_values(SETTINGS, {"members": 9, "net.hidden": 128, "net.layers": 3}))
    assert not (tmp_path / "member-0").exists()
    usual = TrainingSettings()
    each = 2 * sum(values.numel() for values in Net(usual.fit.net).state_dict().values())
    assert usual.members * each < MOST_BYTES


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    started = script("train_predictor.py", "--data", tmp_path, "--out", tmp_path, "--wandb", "yes", home=tmp_path)
    printed, errors = started.communicate(timeout=PATIENCE_S)
    assert (started.returncode, printed) == (2, "")
    assert errors == "kcg: unknown mode of --wandb 'yes': choose one of disabled, offline, online\n"


# ---- the spread ----


def test_what_is_expected_of_errors_is_fitted_to_the_validation_part(data: TrainingData, whole: Trained) -> None:
    """Networks that are ten times too sure of themselves, or too unsure, end where those that were trained do."""
    nets = [Net.of(net) for net in read(whole.path).nets]
    about = training.calibrated(whole.about, nets, data, Floors())
    assert about.spread_scale == pytest.approx(whole.about.spread_scale, rel=0.02)
    for change in (-math.log(10), math.log(10)):
        with torch.no_grad():
            other = [Net(net.settings).eval() for net in nets]
            for one, net in zip(other, nets, strict=True):
                one.load_state_dict(net.state_dict())
                one.heads.bias[2] += change
                one.heads.weight[2] *= 0.0
        found = training.calibrated(whole.about, other, data, Floors())
        index = validation_rows(data, "workload")
        spread = averaged(outputs_by([net.network() for net in other], data, index), found.spread_scale)
        assert spread_scale(spread, data.log_s[index]) == pytest.approx(1.0), "nothing is left to scale"
        assert 0.3 < found.metrics["within_50"] < 0.7 and found.metrics["pairwise"] == about.metrics["pairwise"]
    nothing = training.calibrated(whole.about, nets, data.take(data.part("workload", "test")), Floors())
    assert (nothing.spread_scale, nothing.metrics) == (1.0, {})


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_scale_of_spreads_is_found_and_wild_errors_do_not_move_it(scale: float) -> None:
    rng = np.random.default_rng(0)
    log_sigma, log_s = rng.normal(size=4000) - 2, rng.normal(size=4000)
    error = rng.normal(size=4000) * np.exp(log_sigma) * scale
    error[:40] = 100.0
    log_s[-100:] = np.nan
    found = {"rank": log_s + error, "log_sigma": log_sigma}
    assert spread_scale(found, log_s) == pytest.approx(scale, rel=0.15)
    assert spread_scale({k: v[:5] for k, v in found.items()}, log_s[:5]) == 1.0


# ---- the noise floor ----


def test_the_floor_is_that_of_the_dataset(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j.sqlite") as journal:
        fill(journal)
        for n in range(10, 16):  # 6 identities of about 50 µs: 1 % apart within a run, 5 % between runs
            base = {"early_stop": True, "samples_s": (50e-6,)}
            journal.record(measurement(n, **base))
            journal.record(measurement(n, **base | {"samples_s": (50.5e-6,)}, trial=1))
            journal.record(measurement(n, **base | {"samples_s": (52.7625e-6,)}, run_id="r2"))
        export(journal, tmp_path / "export")
    floors, default = floors_of(read_export(tmp_path / "export")), Floors()
    assert floors.within[:2] == pytest.approx([math.log1p(0.01)] * 2, rel=1e-2), "the shortest class has the next one's"
    assert floors.across[:2] == pytest.approx([math.log1p(0.05)] * 2, rel=1e-2)
    assert (floors.within[2:], floors.across[2:]) == (default.within[2:], default.across[2:])


def test_without_repeats_the_floor_is_the_usual_one(folder: Path) -> None:
    assert floors_of(read_export(folder)) == Floors()


# ---- tuning ----


@pytest.mark.slow
def test_a_study_is_kept_gone_on_with_and_gives_settings_that_train(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {
        "net.hidden": lambda t: t.suggest_categorical("net.hidden", [8, 12]),
        "learning_rate": lambda t: t.suggest_float("learning_rate", 1e-3, 1e-2, log=True),
    }
    monkeypatch.setattr(tuning, "SPACE", small)
    settings = with_values(SETTINGS, {"epochs": 2, "validate_every": 1})

    class Cut(Tracker):
        def log(self, values: dict[str, Any]) -> None:
            super().log(values)
            if values["epoch"] == 1:
                raise KeyboardInterrupt

    with monkeypatch.context() as during, pytest.raises(KeyboardInterrupt):
        during.setattr(tuning, "Tracker", Cut)
        tuning.tune(folder, tmp_path, settings, trials=2)
    with pytest.raises(UsageError, match="no trial was completed"):
        tuning.tune(folder, tmp_path, settings, trials=2, budget_s=1e-6)
    (cut,) = (tmp_path / "trials").iterdir()
    assert [line["epoch"] for line in read_metrics(cut)] == [0, 1] and list(cut.glob("state*"))
    first = tuning.tune(folder, tmp_path, settings, trials=2)
    assert first.trials == 2 and first.path == tmp_path / "best.json" and 1 < first.score < 2
    more = tuning.tune(folder, tmp_path, settings, trials=3)
    assert more.trials == 3 and more.score >= first.score
    tried = sorted((tmp_path / "trials").iterdir())
    assert len(tried) == 3, "the trial that was cut is one of them"
    assert all(
        [line["epoch"] for line in read_metrics(one)] == [0, 1] and not list(one.glob("state*")) for one in tried
    )
    best = read_settings(more.path)
    assert best == more.values and canonical_json(best) in canonical_json([best])
    assert with_values(SETTINGS, best).fit.learning_rate == best["learning_rate"]
    with pytest.raises(DataError, match="of other settings"):
        tuning.tune(folder, tmp_path, with_values(settings, {"epochs": 3}), trials=2)
    with (tmp_path / "study.jsonl").open("a") as file:
        file.write("{half a li\n")
    with pytest.raises(DataError, match=r"study\.jsonl cannot be read as a study"):
        tuning.tune(folder, tmp_path, settings, trials=3)


def test_a_validation_part_that_ranks_nothing_is_nothing_to_tune_by(
    folder: Path, data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its rows failed: the score of a trial would be the number of its last epoch."""
    failed = np.where(data.part("workload", "validation"), np.nan, data.log_s)
    equal, none = np.full_like(data.log_s, -9.0), data.take(data.part("workload", "train"))
    for rows in (replace(data, log_s=failed), replace(data, log_s=equal), none):
        monkeypatch.setattr(tuning, "load", lambda *_, rows=rows, **__: rows)
        with pytest.raises(DataError, match="nothing to tune by"):
            tuning.tune(folder, tmp_path, SETTINGS, trials=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # two processes import torch
def test_trials_at_once_are_of_one_study(folder: Path, tmp_path: Path) -> None:
    settings = with_values(SETTINGS, {"epochs": 2, "validate_every": 1})
    assert tuning.tune(folder, tmp_path, settings, trials=3, jobs=2, devices=("cpu", "cpu")).trials == 3
    assert len({path.name for path in (tmp_path / "trials").iterdir()}) == 3, "no two are alike"
