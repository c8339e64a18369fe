"""`kcg.data` gives what an export holds, by every name that it has, and no kernel in two parts."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from kcg.cli import pip_install
from kcg.data import COLUMNS, OF_REGIONS, OF_ROWS, Data, load, names, parameter_names
from kcg.dataset.check import verify
from kcg.dataset.columns import measurements_schema, stored_schema
from kcg.dataset.export import export
from kcg.dataset.journal import Chosen, Journal, Run
from kcg.dataset.publish import CARD, write_card
from kcg.dataset.splits import PARTS, SPLITS
from kcg.errors import DataError, UnknownName, UsageError
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.tile.parameters import TileParameters
from kcg.types import Region, Schedule, ScheduleKind, Workload, WorkloadCall
from tests.chains import region_of
from tests.commands import python
from tests.dataset.test_journal import TARGET, TOOLCHAIN, measurement
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.rules import HEAVY, loaded_by
from tests.small_dataset import small_dataset

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_dataset(tmp_path_factory.mktemp("small"), families={"flux": 3, "softmax": 3, "rope": 2})


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def test_a_checkout_names_its_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Path) -> None:
    assert names() == ["cpu", "h200", "h200-tiles"]
    assert load("h200").export.folder == ROOT / "datasets" / "h200"
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "mine").symlink_to(small)
    monkeypatch.chdir(tmp_path)
    assert names() == ["cpu", "h200", "h200-tiles", "mine"]
    assert len(load("mine").to_arrow()) == len(load(small).to_arrow())


def test_the_table_has_every_column_and_no_time_of_a_failure(small: Path) -> None:
    table = load(small).to_arrow()
    assert (
        set(table.column_names)
        == COLUMNS.keys()
        == {*OF_REGIONS, *OF_ROWS, *stored_schema({}, with_choices=True).names} - {"timing"}
    )
    assert COLUMNS.keys() >= {*measurements_schema().names} - {"timing"}
    assert all(COLUMNS.values())
    failed = pc.not_equal(table["status"].cast("string"), "ok")
    assert table.filter(failed)["median_s"].null_count == pc.sum(failed).as_py()
    timed = table.filter(pc.invert(failed))
    assert timed["median_s"].null_count == 0 and pc.min(timed["median_s"]).as_py() > 0
    assert load(small).to_arrow(["median_s", "region_id"]).column_names == ["median_s", "region_id"]
    with pytest.raises(UnknownName, match="did you mean median_s"):
        load(small).to_arrow(["median"])


def test_a_journal_is_as_good_as_its_export_and_leaves_no_files(small: Path) -> None:
    data = load(small.parent / "small.sqlite")
    assert data.to_arrow().equals(load(small).to_arrow())
    made = data.export.folder
    del data
    gc.collect()
    assert not made.exists()


@pytest.mark.parametrize("split", SPLITS)
def test_no_kernel_is_in_two_parts(small: Path, split: str) -> None:
    data = load(small)
    parts = data.parts(split)
    assert [*parts] == [*PARTS] and sum(map(len, parts.values())) == len(data.to_arrow())
    kernels = [set(table["region_id"].to_pylist()) for table in parts.values()]
    assert sum(map(len, kernels)) == len(set.union(*kernels))
    if split == "workload":
        assert len(parts["test"]) and len(parts["train"])
    if split == "twin":
        classes = dict(zip(*(data.kernels(["id", "twin"])[name].to_pylist() for name in ("id", "twin")), strict=True))
        twins = [{classes[kernel] for kernel in ids} for ids in kernels]
        assert sum(map(len, twins)) == len(set.union(*twins))
    if split == "alike":
        near = data.to_arrow(["near_in_training", "split_alike"]).to_pylist()
        assert {row["split_alike"] for row in near if row["near_in_training"]} <= {"validation", "test"}


def test_graphs_are_those_of_the_predictor_with_the_logarithm_of_the_time(small: Path) -> None:
    from torch_geometric.loader import DataLoader

    from kcg.predictor.features import ACCESS_EDGES, AXIS_FEATURES, SCHEDULE_FEATURES
    from kcg.predictor.training_data import load as load_rows

    data = load(small)
    graphs, rows, table = data.to_pyg("test"), load_rows(small), data.to_arrow()
    timed = rows.part("workload", "test") & ~rows.failed
    assert len(graphs) == timed.sum() > 20
    for number in (0, len(graphs) // 2, len(graphs) - 1):
        one = graphs[number]
        (place,) = np.flatnonzero(rows.row == one.row.item())
        whole = rows.graphs.take(np.array([place]))
        assert np.array_equal(one["axis"].x, whole.axes) and one["axis"].x.shape[1] == len(AXIS_FEATURES)
        strides = one["axis", "strides", "access"]
        assert np.array_equal(strides.edge_attr, whole.access_edges) and strides.edge_attr.shape[1] == len(ACCESS_EDGES)
        assert strides.edge_index.max(1).values.tolist() == [len(whole.axes) - 1, len(whole.accesses) - 1]
        assert one.schedule.shape == (1, len(SCHEDULE_FEATURES))
        assert one.y.item() == pytest.approx(np.log(table["median_s"][one.row.item()].as_py()), rel=1e-6)
        assert graphs.region_ids[one.kernel_id.item()] == table["region_id"][one.row.item()].as_py()
    batch = next(iter(DataLoader(graphs, batch_size=7)))
    assert len(batch.y) == 7 and batch["axis"].batch.max() == 6
    assert not {i.item() for i in batch.row} & {i.item() for i in (g.row for g in data.to_pyg("train"))}
    for wrong in ({"part": "holdout"}, {"split": "family"}):
        with pytest.raises(UnknownName):
            data.to_pyg(**wrong)  # type: ignore[arg-type]


def test_pandas_and_datasets_hold_the_same_rows(small: Path) -> None:
    import datasets as library

    data = load(small)
    frame, table = data.to_pandas(), data.to_arrow()
    assert [*frame.columns] == table.column_names and len(frame) == len(table)
    assert (frame.median_s.isna() == (frame.status != "ok")).all()
    parts = data.to_datasets("kernel")
    assert isinstance(parts, library.DatasetDict) and [*parts] == [*PARTS]
    assert parts.num_rows == {part: len(rows) for part, rows in data.parts("kernel").items()}
    assert isinstance(parts["train"][0]["schedule_body"], str)


def test_the_first_columns_are_family_and_time_and_the_last_are_ids(small: Path) -> None:
    data = load(small)
    frame = data.to_pandas()
    assert [*frame.columns[:4]] == ["family", "median_s", "status", "schedule_body"]
    hashes = [name for name in frame if str(frame[name].iloc[0]).isalnum() and len(str(frame[name].iloc[0])) >= 32]
    assert {"region_id", "target", "toolchain"} <= {*hashes} and [*frame.columns[-len(hashes) :]] == hashes
    of_kernel = {row["id"]: row["workloads"] for row in data.kernels(["id", "workloads"]).to_pylist()}
    assert {*frame.family} == {"flux", "softmax", "rope"}
    for family, kernel in {*zip(frame.family, frame.region_id, strict=True)}:
        assert family in {name.partition("/")[0] for name in of_kernel[kernel]}
    assert data.to_arrow(["family"]).column_names == ["family"]
    assert data.to_arrow(["schedule_body", "family"]).column_names == ["schedule_body", "family"]


def test_it_says_what_it_holds(small: Path) -> None:
    data = load(small)
    table = data.to_arrow(["region_id"])
    kernels = len(table["region_id"].unique())
    expected = f"{len(table):,} schedules of {kernels} kernels of 3 families, on NVIDIA H200)"
    assert repr(data) == f"Data({str(small)!r}: {expected}"
    assert repr(Data("gone", data.export.__class__(small / "absent", {}))) == "Data('gone')"


def test_what_is_missing_is_one_line_that_says_how_to_install_it(small: Path) -> None:
    """In the folder of a checkout, whose `datasets` is no package."""
    code = f"""
import importlib.machinery, sys, kcg.data
class Without(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        found = super().find_spec(name, path, target)
        return None if name in ("pandas", "datasets") and found is not None and found.origin else found
sys.meta_path[:] = [Without if f is importlib.machinery.PathFinder else f for f in sys.meta_path]
data = kcg.data.load({str(small)!r})
for ask in (data.to_pandas, data.to_datasets):
    try: ask()
    except kcg.errors.UsageError as error: print(error)
"""
    done = python("-c", code, cwd=ROOT)
    assert done.stdout.splitlines() == [
        f"{name} is not installed: {pip_install('data')}, or take to_arrow()" for name in ("pandas", "datasets")
    ], done.stderr


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("h20", "did you mean h200"),
        ("owner/name", r"owner/name@REVISION \(40 hex digits\)"),
        ("owner/name@main", "no pinned commit: give the 40 hex digits"),
        ("name@" + "0" * 40, "give owner/name"),
        (Path("absent"), "give the folder of an export, or a journal"),
        (ROOT / "tests", "no complete export"),
        (ROOT / "LICENSE", "journal"),
    ],
)
def test_what_is_no_dataset_is_one_line(source: str | Path, says: str) -> None:
    with pytest.raises((UsageError, DataError), match=says) as error:
        load(source)
    assert "\n" not in str(error.value)


def test_importing_it_loads_no_pandas_and_no_torch() -> None:
    assert loaded_by("-c", "import kcg; kcg.data.load") & HEAVY <= {"tinygrad", "huggingface_hub"}


# -- tile programs, and what others need of a row


PRODUCT = Region((kernel_of(kernels_of(empty(64, 128) @ empty(128, 256))[-1]),))
NORM = region_of(empty(64, 128).layernorm().contiguous())


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with tile programs of products of many sizes, of two targets and of a region of several kernels."""
    folder = tmp_path_factory.mktemp("tiles")
    sums = [Region((kernel_of(kernels_of(empty(8 << i, 8 << j).sum(1))[-1]),)) for i in range(6) for j in range(6)]
    products = [
        Region((kernel_of(kernels_of(empty(8 << i, 16 << j) @ empty(16 << j, 64))[-1]),))
        for i in range(6)
        for j in range(6)
    ]
    with Journal.open(folder / "a.sqlite") as journal, journal.bulk():
        for target in (KNOWN_TARGETS["sm_90"], TARGET):
            journal.add_target(target)
        journal.add_toolchain(TOOLCHAIN)
        journal.add_run(Run("r1", "2026-11-29T00:00:00+00:00", "kcg", {}))
        journal.add_workload(Workload("flux", "mini", (WorkloadCall(PRODUCT, 1), WorkloadCall(NORM, 1))))
        family = [WorkloadCall(region, 1) for region in {one.id: one for one in (*sums, *products)}.values()]
        journal.add_workload(Workload("synthetic_matmul", "mini", tuple(family)))
        for n, region in enumerate((PRODUCT, NORM, *sums, *products)):
            for warps in (4, 8):
                body = TileParameters("contraction", ((0,), (1,)), (64, 128), reduce_tile=32, num_warps=warps).to_json()
                made = measurement(
                    n,
                    region_id=region.id,
                    schedule=Schedule(ScheduleKind.TILE, body),
                    target=KNOWN_TARGETS["sm_90"].fingerprint,
                    binary_hash=hashlib.sha256(body.encode()).hexdigest(),
                    samples_s=(1e-6 * (n + warps),),
                    sampler="uniform",
                )
                journal.record(made, chosen=Chosen("legal:400", probability=1 / 400))
        journal.record(measurement(0, region_id=PRODUCT.id, schedule=RAW, samples_s=(3e-6,)))
    with Journal.open(folder / "a.sqlite", create=False) as journal:
        export(journal, folder / "export")
    write_card(folder / "export")
    return folder / "export"


def test_parameters_of_tile_programs_are_columns(tiles: Path) -> None:
    data = load(tiles)
    fields = [field.name for field in dataclasses.fields(TileParameters)]
    assert parameter_names() == fields and not {*fields} & {*COLUMNS}
    table = data.to_arrow(parameters=True)
    assert table.column_names == [*data.to_arrow().column_names, *fields]
    for row in table.to_pylist():
        found = {name: row[name] for name in fields}
        if row["schedule_kind"] != ScheduleKind.TILE:
            assert {*found.values()} == {None}, "of a row of another kind"
            continue
        values = dataclasses.asdict(TileParameters.from_json(row["schedule_body"]))
        assert json.loads(json.dumps(values)) == found, "lists are lists, numbers numbers"
    assert {row["num_warps"] for row in data.to_arrow(["num_warps"]).to_pylist()} == {4, 8, None}
    assert data.parts("alike", ["median_s", "tile"])["test"].column_names == ["median_s", "tile"]
    assert {*fields} <= {*data.to_pandas(parameters=True).columns}
    assert {*data.to_datasets("alike", ["median_s"], parameters=True)["test"].column_names} == {"median_s", *fields}
    with pytest.raises(UnknownName, match="did you mean num_warps"):
        data.to_arrow(["num_warp"])


def test_parameters_of_a_dataset_without_tile_programs_are_null(small: Path) -> None:
    table = load(small).to_arrow(["num_warps", "tile"])
    assert len(table) and all(table[name].null_count == len(table) for name in table.column_names)


def test_a_row_names_its_region_device_program_and_why_it_was_chosen(tiles: Path) -> None:
    columns = ["region_id", "n_kernels", "operations", "bytes", "family", "device", "binary_hash", "schedule_kind"]
    columns += ["sampler", "pool", "probability", "weight", "median_s", "target", "toolchain"]
    rows = load(tiles).to_arrow(columns).to_pylist()
    product, opts = (
        [r for r in rows if r["region_id"] == PRODUCT.id and r["schedule_kind"] == k] for k in ("tile", "opts")
    )
    (norm, *_) = (row for row in rows if row["region_id"] == NORM.id)
    assert (norm["n_kernels"], norm["family"]) == (len(NORM.kernels), "flux") and norm["n_kernels"] > 1
    costs = {row["id"]: row for row in load(tiles).kernels().to_pylist()}
    for name in ("operations", "bytes"):
        assert norm[name] == sum(costs[kernel.id][name] for kernel in NORM.kernels) > 0
        assert product[0][name] == costs[PRODUCT.id][name]
    assert (product[0]["n_kernels"], product[0]["device"], opts[0]["device"]) == (
        1,
        KNOWN_TARGETS["sm_90"].model,
        TARGET.model,
    )
    wanted = {
        hashlib.sha256(row["schedule_body"].encode()).hexdigest()[:16] for row in load(tiles).to_arrow().to_pylist()
    }
    assert {row["binary_hash"] for row in product} <= wanted and all(len(r["binary_hash"]) == 16 for r in rows)
    assert (product[0]["sampler"], product[0]["pool"], product[0]["probability"]) == ("uniform", "legal:400", 1 / 400)
    assert (opts[0]["pool"], opts[0]["probability"], opts[0]["weight"]) == (None, None, 1.0)


def test_the_baseline_of_a_card_is_ten_lines_that_train(tiles: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", (tiles / CARD).read_text(), re.DOTALL)[-1]
    lines = [line for line in code.splitlines() if line]
    assert len(lines) == 10 and "num_warps" in code and "alike" in code
    done = python("-c", code, cwd=tiles)
    assert done.returncode == 0 and not done.stderr, done.stderr
    (line,) = done.stdout.splitlines()
    assert 1 < float(line.removeprefix("off by a factor of ")) < 10
    assert verify(tiles, workers=1).problems == ()
