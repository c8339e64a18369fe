"""The ablation trains what is missing, keeps each result as it comes, and writes the table into the document."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evaluation.documents import write_into
from evaluation.predictor.ablate import Ablation, ablate, best_of, table_of
from evaluation.predictor.trees import TreeSettings
from evaluation.predictor.variants import VARIANTS
from kcg.errors import DataError, UnknownName
from kcg.predictor.features import FEATURES_VERSION
from kcg.predictor.metrics import Floors
from kcg.predictor.training_data import load
from kcg.training.fit import STATE, Fit
from kcg.training.network import predicted
from kcg.training.predictor import TrainingSettings, names_of, with_values
from tests.small_dataset import small_dataset
from tests.waiting import waited

ROOT = Path(__file__).parents[3]
TINY = {"epochs": 1, "kernels_a_step": 8, "schedules_a_kernel": 8, "net.hidden": 8, "net.layers": 1}
NAMES = ("base", "no-messages")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    families = {"norms": 4, "resnet": 4, "activations": 4, "softmax": 4, "bert": 6}
    return small_dataset(tmp_path_factory.mktemp("small"), families=families)


@pytest.fixture
def ablation(dataset: Path, tmp_path: Path) -> Ablation:
    base = with_values(TrainingSettings(), TINY)
    trees = TreeSettings(rounds=5)
    return Ablation(dataset, tmp_path / "results.json", tmp_path / "work", base, NAMES, seeds=2, trees=trees)


def written(ablation: Ablation) -> dict[str, list[str]]:
    report = json.loads(ablation.out.read_text())
    variants = report["runs"][ablation.dataset.name]["variants"]
    return {name: sorted(variants[name]["seeds"]) for name in variants}


def test_variants_are_settings_that_exist() -> None:
    for variant in VARIANTS.values():
        with_values(TrainingSettings(), dict(variant.changes))
    assert len({variant.says for variant in VARIANTS.values()}) == len(VARIANTS)


@pytest.mark.slow
def test_what_was_cut_goes_on_and_what_is_there_is_not_trained_again(ablation: Ablation, tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(line: str) -> None:
        if line.startswith("no-messages"):
            raise Cut

    with pytest.raises(Cut):
        ablate(ablation, log=cut)
    assert written(ablation) == {"base": ["0"], "no-messages": ["0"]}
    lines: list[str] = []
    entry = ablate(ablation, log=lines.append)
    assert [line.partition(":")[0] for line in lines] == ["base, seed 1", "no-messages, seed 1"]
    assert written(ablation) == {name: ["0", "1"] for name in NAMES}
    assert not list(ablation.work.rglob(STATE))
    lines.clear()
    assert ablate(ablation, log=lines.append)["variants"] == entry["variants"] and lines == []
    figures = entry["variants"]["base"]["seeds"]["0"]
    assert 0 <= figures["pairwise"] <= 1 and figures["candidates_per_s"] > 0 and figures["epochs"] == 1
    assert set(entry["variants"]["base"]["seeds"]["0"]) >= {"kendall_tau", "top1_mean", "top5_mean", "log_error"}
    headline = json.loads(ablation.out.read_text())["headline"]
    assert (headline["best"], headline["score"]) == best_of(entry)
    with pytest.raises(DataError, match="of other settings"):
        ablate(replace(ablation, base=with_values(ablation.base, {"epochs": 2})))
    ablation.out.write_text("[]")
    with pytest.raises(DataError, match="cannot be read as results"):
        ablate(ablation)


@pytest.mark.slow
def test_the_table_is_written_into_the_document(ablation: Ablation, tmp_path: Path) -> None:
    names = ("base", "attention", "trees")
    lines: list[str] = []
    entry = ablate(replace(ablation, variants=names, seeds=1), log=lines.append)
    assert set(entry["variants"]) == set(names), lines
    document = tmp_path / "predictor.md"
    document.write_text((ROOT / "docs" / "experiments" / "2026-11-22-predictor-ablation.md").read_text())
    write_into(document, {"ablation": table_of(entry)})
    text = document.read_text().partition("<!-- generated: ablation -->")[2].partition("<!-- end -->")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(names) and len({row.count("|") for row in rows}) == 1
    assert rows[-1].startswith("| LightGBM on pooled nodes |") and "a network has 1 seed" in text
    assert best_of(entry)[0] in names


def test_results_of_when_trees_were_settings_are_gone_on_with(ablation: Ablation) -> None:
    """And what is no variant any more, as the network over scheduled ASTs, is left out."""
    ablate(ablation, budget_s=0.0)
    data = load(ablation.dataset, workers=1)
    report = {"settings": names_of(ablation.base) | {"trees.rounds": 600}, "datasets": dict(data.checksums)}
    known = {"changes": {}, "form": "axes", "sampled": False, "says": "as shipped", "seeds": {"0": {"pairwise": 0.9}}}
    variants = {"base": known, "ast": {**known, "form": "ast", "sampled": True}}
    entry = {**report, "features": FEATURES_VERSION, "ast features": 1, "sample": 60, "variants": variants}
    ablation.out.write_text(json.dumps({"headline": {}, "runs": {ablation.dataset.name: entry}}))
    found = ablate(ablation, budget_s=0.0)
    assert set(found["variants"]) == {"base"} and found["variants"]["base"]["seeds"] == {"0": {"pairwise": 0.9}}
    with pytest.raises(DataError, match="of other settings"):
        ablate(replace(ablation, base=with_values(ablation.base, {"epochs": 3})), budget_s=0.0)


def test_a_network_that_learns_times_alone_ranks_by_them(ablation: Ablation) -> None:
    settings = with_values(ablation.base, dict(VARIANTS["time-only"].changes)).fit
    fit = Fit(load(ablation.dataset, workers=1), settings, ablation.work, floors=Floors())
    found = predicted(fit.run(), fit.graphs, fit.validation)
    assert (found["rank"] == found["log_s"]).all() and found["rank"].std() > 0


def test_a_time_that_is_over_and_an_unknown_variant(ablation: Ablation) -> None:
    lines: list[str] = []
    entry = ablate(ablation, budget_s=0.0, log=lines.append)
    assert entry["variants"] == {} and lines[-1:] == [
        "4 of 4 trainings are not done: run the same command again to go on"
    ]
    with pytest.raises(UnknownName, match="no-message"):
        ablate(replace(ablation, variants=("no-message",)))


@pytest.mark.slow
def test_a_killed_run_of_two_processes_leaves_none_and_goes_on(ablation: Ablation, tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(TINY))
    command = [
        sys.executable, "-m", "evaluation.predictor.ablate", "--dataset", str(ablation.dataset), "--out",
        str(ablation.out), "--work", str(ablation.work), "--docs", "", "--only", ",".join(NAMES), "--seeds", "2",
        "--jobs", "2", "--devices", "cpu", "--settings", str(settings),
    ]  # fmt: skip
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        waited(lambda: ablation.out.exists() or process.poll() is not None)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    finally:
        process.kill()
        process.wait()
    assert children
    waited(lambda: not any(alive(child) for child in children))
    before = written(ablation)
    lines: list[str] = []
    ablate(ablation, log=lines.append)
    assert written(ablation) == {name: ["0", "1"] for name in NAMES}
    assert len(lines) == 4 - sum(len(seeds) for seeds in before.values()) < 4


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
