"""What is pushed is what the Hub's pages, viewers and clients read: cards, the default table, files of a size."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from huggingface_hub import DatasetCard, ModelCard, constants
from huggingface_hub.repocard import metadata_load

import kcg.data
from kcg.dataset.export import read_export
from kcg.dataset.publish import CARD, EXPORTS, HUB_SPLIT, write_card
from kcg.errors import DataError, UsageError
from kcg.predictor.checkpoint import read
from kcg.predictor.choice import SHIPPED
from kcg.predictor.publish import METRICS, PREDICTOR
from kcg.rl.publish import CHECKPOINTS
from tests.hub.checks import refused
from tests.hub.server import TOKEN, Hub

REPO = "owner/name"
push, model_card = EXPORTS.push, PREDICTOR.card
ROOT = Path(__file__).parents[2]
RECORDED = sorted(path.parent for path in (ROOT / "datasets").glob("*/checksums.json"))

SCAN_BYTES = 300_000_000  # "Scan size limit exceeded … limit is 300000000 bytes": the viewer reads row groups whole
COLUMNS = 100  # far below what a viewer refuses, and more than anybody scrolls through
FILE_BYTES = 5_000_000_000  # of larger ones the viewer converts a part only
TASKS = {"tabular-regression", "tabular-classification", "graph-ml", "reinforcement-learning"}
"""Of the Hub's tasks those of tables, graphs and decisions."""


def check_dataset(folder: Path) -> None:
    """A folder as somebody has it who looks at the repository on the Hub."""
    card = DatasetCard.load(folder / CARD)
    data = card.data.to_dict()
    assert data == metadata_load(folder / CARD) == yaml.safe_load((folder / CARD).read_text().split("---")[1])
    assert (
        data["license"] == "mit" and set(data["task_categories"]) <= TASKS and data["size_categories"] and data["tags"]
    )
    configs = {config["config_name"]: config for config in data["configs"]}
    assert [name for name, config in configs.items() if config.get("default")] == ["measurements"]
    assert next(iter(configs)) == "measurements"
    paths = {name: [file["path"] for file in config["data_files"]] for name, config in configs.items()}
    assert {path for of_config in paths.values() for path in of_config} == {p.name for p in folder.glob("*.parquet")}
    for config in configs.values():
        assert [file["split"] for file in config["data_files"]] == [HUB_SPLIT]
    for path in folder.glob("*.parquet"):
        metadata = pq.read_metadata(path)
        assert path.stat().st_size < FILE_BYTES and metadata.num_columns < COLUMNS
        for group in range(metadata.num_row_groups):
            assert metadata.row_group(group).total_byte_size < SCAN_BYTES
    shown = pq.read_schema(folder / "measurements.parquet").names
    assert shown[:2] == ["region_id", "split_workload"] and "median_s" in shown[:7] and "status" in shown[:7]


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_the_recorded_datasets_are_ready_for_the_hub(folder: Path) -> None:
    check_dataset(folder)


def test_what_is_pushed_shows_the_default_table(hub: Hub, folder: Path, tmp_path: Path) -> None:
    write_card(folder)
    commit = push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    there = tmp_path / "there"
    for name, content in hub.repos[REPO].commits[commit].items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(content)
    check_dataset(there)


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.safetensors")), ids=lambda path: path.stem)
def test_the_card_of_a_shipped_predictor_has_its_metrics_as_the_hub_reads_them(path: Path) -> None:
    checkpoint = read(path)
    card = ModelCard(model_card(checkpoint, REPO, path.stat().st_size))
    data = card.data
    assert data.license == "mit" and data.pipeline_tag == PREDICTOR.task and data.pipeline_tag in TASKS
    assert data.model_name == checkpoint.about.name and data.library_name == "kcg"
    assert data.eval_results is not None
    found = {result.metric_type: result.metric_value for result in data.eval_results}
    assert found == {name: checkpoint.about.metrics[name] for name in METRICS}
    assert {result.dataset_split for result in data.eval_results} == {"validation"}
    assert data.to_dict()["model-index"][0]["name"] == checkpoint.about.name


def test_a_pushed_predictor_has_that_card(hub: Hub) -> None:
    path = SHIPPED / "cpu.safetensors"
    commit = CHECKPOINTS.push(path, REPO, token=TOKEN, endpoint=hub.endpoint)
    pushed = hub.repos[REPO].commits[commit][CARD].decode()
    assert pushed == model_card(read(path), REPO, path.stat().st_size)


# -- loaded from there, into the cache of the Hub's client


@pytest.fixture
def cached(usual_hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_dataset_is_loaded_once_and_then_without_a_network(
    hub: Hub, folder: Path, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    first = kcg.data.load(f"{REPO}@{commit}")
    assert first.export.folder.is_relative_to(cached)
    assert first.to_arrow().equals(kcg.data.load(folder).to_arrow())
    asked = len(hub.requests)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    again = kcg.data.load(f"{REPO}@{commit}")
    assert again.export.folder == first.export.folder and len(hub.requests) == asked
    with pytest.raises(UsageError, match="offline mode: unset HF_HUB_OFFLINE"):
        kcg.data.load(f"{REPO}@{'0' * 40}")


def test_a_download_that_was_cut_goes_on_and_what_was_changed_is_refused(hub: Hub, folder: Path, cached: Path) -> None:
    commit = push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    hub.answers["resolve/" + commit + "/timings.parquet"] = (403, {})
    with pytest.raises(UsageError, match="403"):
        kcg.data.load(f"{REPO}@{commit}")
    hub.answers.clear()
    place = kcg.data.load(f"{REPO}@{commit}").export.folder
    assert read_export(place).checksums == read_export(folder).checksums
    blob = (place / "kernels.parquet").resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match=rf"{REPO} at {commit[:12]}: kernels.parquet does not agree") as error:
        kcg.data.load(f"{REPO}@{commit}")
    refused(error)


def test_what_is_no_export_of_its_own_is_not_loaded(hub: Hub, folder: Path, cached: Path) -> None:
    for revision in ("main", "v1", "abc1234"):
        with pytest.raises(UsageError, match="no pinned commit: give the 40 hex digits"):
            kcg.data.load(f"{REPO}@{revision}")
    assert hub.requests == []
    commit = hub.repo("owner/other", {"a.json": b"{}"}).head
    with pytest.raises(DataError, match="holds no export of kcg"):
        kcg.data.load(f"owner/other@{commit}")
    several = folder.parent / "several"
    shutil.copytree(folder, several / "one")
    commit = push(several, "owner/several", token=TOKEN, endpoint=hub.endpoint)
    with pytest.raises(DataError, match="holds several of its kind: pull it, and load a folder of it"):
        kcg.data.load(f"owner/several@{commit}")
    assert not list(cached.glob("**/*.parquet"))
