"""The other form of input: scheduled ASTs as graphs, and a network that learns from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kcg.compat.tiny import UOp
from kcg.dataset.reading import Export, read_export
from kcg.errors import DataError
from kcg.kernel.codec import kernel_of
from kcg.kernel.space import KernelSpace
from kcg.kernel.targets import KNOWN_TARGETS
from kcg.predictor.ast_gnn import AstNet, AstSet
from kcg.predictor.ast_graphs import EDGE_FEATURES, NODE_FEATURES, AstGraphs, ast_graph, for_rows, joined
from kcg.predictor.data import TrainingData, load
from kcg.predictor.encode import KINDS, Array
from kcg.predictor.features import KERNEL_FEATURES, SCHEDULE_FEATURES, TARGET_FEATURES
from kcg.predictor.fit import Fit, FitSettings, evaluation_pool, predicted
from kcg.predictor.gnn import NetSettings
from kcg.predictor.metrics import Floors, scores, summary
from kcg.types import RAW, Opt, Region, Schedule
from tests.kernels import empty, example_asts, kernels_of
from tests.small_dataset import small_dataset

EXTENT = NODE_FEATURES.index("extent")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def space_of(ast: UOp) -> KernelSpace:
    return KernelSpace(Region((kernel_of(ast),)), KNOWN_TARGETS["sm_90"])


def matmul() -> KernelSpace:
    return space_of(kernels_of(empty(64, 96) @ empty(96, 80))[-1])


def same(one: AstGraphs, other: AstGraphs) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.counts())


def nodes_of(graph: AstGraphs, name: str) -> Array:
    """The rows of the nodes with a mark."""
    return np.asarray(graph.nodes[graph.nodes[:, NODE_FEATURES.index(name)] == 1])


def test_an_opt_changes_the_graph() -> None:
    space = matmul()
    raw = ast_graph(space.state(RAW))
    changed = ast_graph(space.state(Schedule.from_opts((Opt("UPCAST", 0, 4),))))
    assert not same(raw, changed)
    (upcast,) = nodes_of(changed, "UPCAST")
    assert upcast[EXTENT] == 2.0 and not len(nodes_of(raw, "UPCAST"))
    assert len(nodes_of(changed, "RANGE")) == len(nodes_of(raw, "RANGE")) + 1
    assert same(changed, ast_graph(matmul().state(Schedule.from_opts((Opt("UPCAST", 0, 4),)))))  # every time


def test_strides_stand_between_ranges_and_what_they_move() -> None:
    graph = ast_graph(matmul().state(RAW))
    moves = graph.edges[:, EDGE_FEATURES.index("moves")] == 1
    source, user = graph.ends[moves].T
    assert (graph.nodes[source, NODE_FEATURES.index("RANGE")] == 1).all()
    assert (graph.nodes[user, NODE_FEATURES.index("INDEX")] == 1).all()
    # 64 × 96 times 96 × 80: each of the three buffers is moved by two of the three ranges, one of them by 1
    strides = np.sort(np.exp2(graph.edges[moves, EDGE_FEATURES.index("stride")]) - 1)
    np.testing.assert_allclose(strides, [1, 1, 1, 80, 80, 96], rtol=1e-5)
    assert graph.edges[moves, EDGE_FEATURES.index("contiguous")].sum() == 3


@pytest.mark.slow
def test_every_kind_of_kernel_has_finite_features() -> None:
    found = []
    for name, ast in example_asts().items():
        space = space_of(ast)
        graph = ast_graph(space.state(space.baseline()))
        assert np.isfinite(graph.nodes).all() and np.isfinite(graph.edges).all(), name
        assert (graph.ends >= 0).all() and (graph.ends < graph.n_nodes[0]).all(), name
        assert (graph.nodes[:, : NODE_FEATURES.index("float")].sum(1) >= 1).all(), name
        found.append(graph)
    graphs = joined(found)
    assert graphs.nodes.dtype == graphs.edges.dtype == np.float32
    assert same(graphs.take(np.array([5, 2])), joined([found[5], found[2]]))
    assert set(KINDS) & set(NODE_FEATURES) == set(KINDS)


def test_the_order_of_nodes_does_not_matter() -> None:
    space = matmul()
    graphs = joined(ast_graph(space.state(action.schedule)) for action in space.actions(RAW)[:6])
    rng = np.random.default_rng(0)
    first = np.cumsum(graphs.n_nodes) - graphs.n_nodes
    orders = [rng.permutation(n) for n in graphs.n_nodes]
    owner = np.repeat(np.arange(len(graphs)), graphs.n_edges)
    places = [np.argsort(order) for order in orders]
    ends = np.array([[places[g][a], places[g][b]] for g, (a, b) in zip(owner, graphs.ends, strict=True)])
    other = replace(
        graphs, nodes=graphs.nodes[np.concatenate([f + o for f, o in zip(first, orders, strict=True)])], ends=ends
    )
    torch.manual_seed(0)
    net = AstNet(NetSettings(hidden=16, layers=2)).eval()
    zeros = np.zeros(len(graphs), np.int64)
    kernel_x, target_x = (np.zeros((1, len(names)), np.float32) for names in (KERNEL_FEATURES, TARGET_FEATURES))
    schedule = np.zeros((len(graphs), len(SCHEDULE_FEATURES)), np.float32)
    with torch.inference_mode():
        one, two = (
            net(AstSet(g, schedule, zeros, kernel_x, target_x, zeros[:1]).batch(torch.arange(len(graphs))))
            for g in (graphs, other)
        )
    torch.testing.assert_close(one.rank, two.rank, rtol=1e-4, atol=1e-5)
    assert len(set(one.rank.tolist())) > 1


# ---- the rows of a dataset, and a network trained on them ----


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    families = {"norms": 8, "resnet": 8, "softmax": 8, "bert": 10}
    return read_export(small_dataset(tmp_path_factory.mktemp("small"), families=families))


@pytest.fixture(scope="module")
def data(export: Export, tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return load(export.folder, cache=tmp_path_factory.mktemp("cache"), workers=1)


@pytest.mark.slow
def test_a_network_learns_from_scheduled_asts(export: Export, data: TrainingData, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wanted = np.concatenate([rng.permutation(np.flatnonzero(data.kernel == k))[:12] for k in range(len(data.families))])
    rows, asts = for_rows(export, data, wanted, workers=1, cache=tmp_path)
    assert np.array_equal(rows, wanted) and len(asts) == len(wanted)
    (kept,) = tmp_path.iterdir()
    written = kept.stat().st_mtime_ns
    again, cached = for_rows(export, data, wanted, workers=1, cache=tmp_path)
    assert same(asts, cached) and np.array_equal(again, rows) and kept.stat().st_mtime_ns == written
    few = data.take(rows)
    settings = FitSettings(
        epochs=9, kernels_a_step=8, schedules_a_kernel=12, patience=99, validate_every=9, learning_rate=4e-3,
        average=0.95, net=NetSettings(hidden=16, layers=2, schedule=False),
    )  # fmt: skip
    fit = Fit(few, settings, tmp_path / "fit", floors=Floors(), asts=asts)
    net = fit.run()
    index = np.flatnonzero(~few.part("workload", "train") & evaluation_pool(few) & ~few.failed)
    assert len(set(few.kernel[index])) >= 8
    found = predicted(net, fit.graphs, index)
    values = summary(scores(found["rank"], few.log_s[index], few.kernel[index], few.run[index], Floors()), few.calls)
    assert values["pairwise"] > 0.65
    with pytest.raises(DataError, match="of other settings"):
        Fit(few, settings, tmp_path / "fit", floors=Floors()).run()  # the other form


def test_each_row_has_its_own_graph_in_any_order(export: Export, data: TrainingData, tmp_path: Path) -> None:
    wanted = np.random.default_rng(1).permutation(len(data))[:6]
    rows, graphs = for_rows(export, data, wanted, workers=1, cache=tmp_path)
    assert np.array_equal(rows, wanted)
    regions, targets = export.regions(), export.targets()
    bodies = export.table(1, ["schedule_body"])["schedule_body"].to_pylist()
    for i, row in enumerate(wanted):
        kernel = data.kernel[row]
        space = KernelSpace(regions[data.region_ids[kernel]], targets[data.targets[data.target[kernel]]])
        alone = ast_graph(space.state(Schedule("opts", bodies[data.row[row]])))
        assert same(graphs.take(np.array([i])), alone)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(b"broken")
    assert same(for_rows(export, data, wanted, workers=1, cache=tmp_path)[1], graphs)
