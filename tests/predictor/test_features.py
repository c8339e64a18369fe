"""Features are of the kernel, its schedule and the target alone: they change with an Opt and with nothing else."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kcg.errors import DataError
from kcg.kernel.codec import kernel_of
from kcg.kernel.loop_nest import Access, AxisTable
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.opts.space import KernelSpace
from kcg.predictor import features as encode_module
from kcg.predictor import training_data as data_module
from kcg.predictor import training_data as kernel_jobs
from kcg.predictor.features import (
    ACCESS_FEATURES,
    SCHEDULE_FEATURES,
    Graphs,
    encode,
    graphs,
    joined,
    kernel_features,
    target_features,
)
from kcg.predictor.network import NetSettings
from kcg.predictor.training_data import TrainingData, load
from kcg.training.network import Batch, GraphSet, Net
from kcg.types import Region, Schedule, Status
from tests.kernels import empty, example_region, kernels_of, on_targets
from tests.known_targets import KNOWN_TARGETS
from tests.small_dataset import small_dataset

H200 = KNOWN_TARGETS["sm_90"]


def space_of(tensor: object, target: object = H200) -> KernelSpace:
    return KernelSpace(Region((kernel_of(kernels_of(tensor)[-1]),)), target)  # type: ignore[arg-type]


def graphs_of(space: KernelSpace, schedules: list[Schedule]) -> Graphs:
    return graphs(encode(space.loop_nests(schedules)), space.target)


def same(one: Graphs, other: Graphs) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(Graphs))


@pytest.fixture(scope="module")
def matmul() -> KernelSpace:
    return space_of((empty(64, 96) @ empty(96, 80)).relu())


def walks(space: KernelSpace, count: int, seed: int = 0) -> list[Schedule]:
    rng, found = random.Random(seed), [RAW]
    while len(found) < count:
        step = space.sample(rng, rng.choice(found))
        if step is not None and step not in found:
            found.append(step)
    return found


def test_every_opt_changes_the_graph(matmul: KernelSpace) -> None:
    for origin in (RAW, matmul.baseline()):
        before = graphs_of(matmul, [origin])
        steps = [action.schedule for action in matmul.actions(origin)]
        assert len(steps) > 5
        after = [graphs_of(matmul, [step]) for step in steps]
        assert not any(same(before, one) for one in after)
        keys = [matmul.key(step) for step in steps]
        for (one, a), (two, b) in itertools.combinations(zip(keys, after, strict=True), 2):
            assert one == two or not same(a, b), "two kernels have one graph"


def test_the_same_schedule_has_the_same_graph_alone_and_in_company(matmul: KernelSpace) -> None:
    schedules = walks(matmul, 40)
    together = graphs_of(matmul, schedules)
    for i, schedule in enumerate(schedules):
        assert same(together.take(np.array([i])), graphs_of(matmul, [schedule]))
    parts = [graphs_of(matmul, schedules[:15]), graphs_of(matmul, schedules[15:])]
    assert same(joined(parts), together)
    other = space_of(empty(33, 7).sum(1))
    nests = [nest for space in (matmul, other) for nest in space.loop_nests([RAW])]
    apart = joined(graphs(encode([nest]), H200) for nest in nests)
    assert same(graphs(encode(nests), H200), apart), "padding shows"


@pytest.mark.parametrize(("target", "names"), on_targets(sorted(KNOWN_TARGETS), whole=("sm_90",)))
def test_finite_for_every_kind_of_kernel_on_every_target_without_its_hardware(target: str, names: list[str]) -> None:
    for name in names:
        region = example_region(name)
        space = KernelSpace(region, KNOWN_TARGETS[target])
        made = graphs_of(space, walks(space, 3) if space.actions(RAW) else [RAW])
        for f in fields(Graphs):
            assert np.isfinite(getattr(made, f.name)).all(), f.name
        assert np.isfinite(kernel_features(region)).all() and np.isfinite(target_features(space.target)).all()


def warp(*strides: int, itemsize: int = 4) -> float:
    """Sectors that a warp of 32 threads touches at such strides along axes of 32 / n and n threads, or one of 32."""
    extents = (32,) if len(strides) == 1 else (4, 8)
    access = Access(0, itemsize, False, strides, tuple(s != 0 for s in strides), 1 << 20)
    table = AxisTable(extents, ("LOCAL",) * len(strides), (access,), (), False, uops=10)
    made = graphs(encode([table]), H200)
    return float(2 ** made.accesses[0, ACCESS_FEATURES.index("sectors")])


def test_sectors_of_a_warp() -> None:
    assert warp(1) == 4, "32 neighbouring floats are 128 bytes"
    assert warp(1, itemsize=2) == 2
    assert warp(0) == 1, "all read one element"
    assert warp(2) == 8
    assert warp(1000) == 32
    assert warp(1, 4) == 4, "the first axis of threads is the fastest"
    assert warp(1, 1000) == 8


def test_work_and_bytes_are_counted(matmul: KernelSpace) -> None:
    made = graphs_of(matmul, [RAW])
    values = dict(zip(SCHEDULE_FEATURES, made.schedule[0], strict=True))
    assert values["unique bytes"] == pytest.approx(math.log2(4 * (64 * 96 + 96 * 80 + 64 * 80)), abs=0.01)
    assert values["extent of REDUCE"] == pytest.approx(math.log2(96))
    assert values["work"] == pytest.approx(math.log2(2 * 64 * 80 * 96), abs=0.1)
    assert values["threads"] == 0 and values["uops"] == pytest.approx(math.log2(matmul.uops(RAW)))


def permuted(batch: Batch, seed: int) -> Batch:
    """The same graphs with their nodes and edges in another order."""
    draw = torch.Generator().manual_seed(seed)
    places = {
        name: torch.randperm(len(getattr(batch, name)), generator=draw)
        for name in ("axes", "accesses", "groups", "access_edges", "group_edges")
    }
    now = {name: torch.argsort(place) for name, place in places.items()}  # where an old place went

    def index(old: torch.Tensor, others: str, edges: str) -> torch.Tensor:
        moved = torch.stack([now["axes"][old[0]], now[others][old[1]]])
        return moved[:, places[edges]]

    return replace(
        batch,
        **{name: getattr(batch, name)[place] for name, place in places.items()},
        access_index=index(batch.access_index, "accesses", "access_edges"),
        group_index=index(batch.group_index, "groups", "group_edges"),
        graph_of_axis=batch.graph_of_axis[places["axes"]],
        graph_of_access=batch.graph_of_access[places["accesses"]],
        graph_of_group=batch.graph_of_group[places["groups"]],
    )


@pytest.mark.parametrize("compare", [False, True])
def test_the_order_of_nodes_changes_no_prediction(matmul: KernelSpace, compare: bool) -> None:
    torch.manual_seed(0)
    net = Net(NetSettings(hidden=16, layers=2, compare=compare)).eval()
    made = graphs_of(matmul, walks(matmul, 12))
    zeros = np.zeros(len(made), np.int64)
    kernel_x = kernel_features(matmul.region)[None]
    graph_set = GraphSet(made, zeros, kernel_x, target_features(H200)[None], zeros[:1])
    batch = graph_set.batch(torch.arange(len(made)))
    with torch.inference_mode():
        before, after = net(batch), net(permuted(batch, 1))
        shuffled = torch.randperm(len(made), generator=torch.Generator().manual_seed(2))
        other_order = net(graph_set.batch(shuffled))
    assert before.rank.std() > 1e-3, "the network tells schedules apart"
    for name in ("log_s", "rank", "log_sigma", "failure"):
        torch.testing.assert_close(getattr(before, name), getattr(after, name), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(getattr(before, name)[shuffled], getattr(other_order, name), atol=1e-4, rtol=1e-4)


def test_too_many_loads_are_cut_and_stores_kept() -> None:
    accesses = [Access(i, 4, False, (1,), (True,), 64) for i in range(encode_module.MOST_ACCESSES + 5)]
    accesses.append(Access(99, 4, True, (1,), (True,), 64))
    table = AxisTable((64,), ("GLOBAL",), tuple(accesses), (("ADD", (True,)),), False, uops=5)
    made = encode([table])
    assert made.accesses[0] == encode_module.MOST_ACCESSES and made.slots[0, 0] == 99 and made.uops[0] == 5


# ---- a dataset ready to train on ----


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    families = {"norms": 6, "softmax": 4, "flux": 3, "synthetic_matmul": 3}
    return small_dataset(tmp_path_factory.mktemp("small"), families=families)


@pytest.fixture(scope="module")
def loaded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return load(folder, cache=tmp_path_factory.mktemp("cache"), workers=1)


def test_rows_are_those_of_the_dataset(folder: Path, loaded: TrainingData) -> None:
    from kcg.dataset.reading import read_export

    records = [r.measurement for r in read_export(folder).records(1)]
    wanted = [m for m in records if m.sampler != "retime" and not m.trial and m.status != Status.UNJUDGED]
    assert len(loaded) == len(wanted) and set(loaded.families) <= {"norms", "softmax", "flux", "synthetic_matmul"}
    times = sorted(m.median_s for m in wanted if m.status == "ok")
    assert np.sort(np.exp(loaded.log_s[~loaded.failed])) == pytest.approx(times, rel=1e-6)
    assert (
        len(loaded.graphs)
        == len(loaded)
        == sum(loaded.part("workload", p).sum() for p in ("train", "validation", "test"))
    )
    flux = np.array([f == "flux" for f in loaded.families])
    assert flux.any() and np.array_equal(loaded.part("workload", "test"), flux[loaded.kernel])
    some = loaded.take(loaded.part("workload", "test"))
    assert len(some) == len(some.graphs) == loaded.part("workload", "test").sum()


def test_the_cache_is_the_same_and_a_broken_one_is_made_again(
    folder: Path, loaded: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(folder, cache=tmp_path, workers=1)
    (file,) = tmp_path.iterdir()
    built = []
    build = data_module._build
    monkeypatch.setattr(data_module, "_build", lambda *args, **how: built.append(1) or build(*args, **how))  # type: ignore[func-returns-value]
    again = load(folder, cache=tmp_path)
    assert not built
    for f in fields(TrainingData):
        if f.name != "graphs":
            assert np.array_equal(getattr(again, f.name), getattr(loaded, f.name), equal_nan=f.name == "log_s"), f.name
    assert same(again.graphs, loaded.graphs)
    file.write_bytes(file.read_bytes()[:1000])
    assert same(load(folder, cache=tmp_path, workers=1).graphs, loaded.graphs) and built


@pytest.mark.slow
def test_another_version_of_the_features_has_a_cache_of_its_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(folder, cache=tmp_path, workers=1)
    monkeypatch.setattr(data_module, "FEATURES_VERSION", 10**6)
    load(folder, cache=tmp_path, workers=1)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_cache_that_cannot_be_written_costs_only_time(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert len(load(folder, cache=tmp_path / "file" / "cache", workers=1))


def test_no_dataset_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no complete export"):
        load(tmp_path, cache=tmp_path)


@pytest.mark.slow
def test_two_processes_make_what_one_makes(folder: Path, loaded: TrainingData, tmp_path: Path) -> None:
    from unittest.mock import patch

    with patch.object(kernel_jobs, "CHUNK", 4):
        assert same(load(folder, cache=tmp_path, workers=2).graphs, loaded.graphs)


def test_names_of_features_are_their_own() -> None:
    assert len(set(SCHEDULE_FEATURES)) == len(SCHEDULE_FEATURES) and json.dumps(SCHEDULE_FEATURES)
