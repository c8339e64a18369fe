"""Stacked networks answer as each does alone, whatever the sizes and the number of graphs, and far sooner."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from kcg.errors import DataError
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.opts.space import KernelSpace
from kcg.predictor import stacked as stacked_module
from kcg.predictor.checkpoint import Checkpoint, read, save
from kcg.predictor.choice import shipped_path
from kcg.predictor.features import Array, Graphs, encode, graphs, joined, kernel_features, target_features
from kcg.predictor.header import read_tensors, save_tensors
from kcg.predictor.learned import IMPOSSIBLE, LearnedPredictor
from kcg.predictor.network import NetSettings, Network, shapes
from kcg.predictor.stacked import Stacked, one_thread
from kcg.training.network import GraphSet, Net
from kcg.types import Region
from tests.calls import calls_of
from tests.commands import python
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.rules import ROOT
from tests.slow import every

TARGET = KNOWN_TARGETS["sm_90"]
CLOSE = 1e-5


@pytest.fixture(scope="module")
def shipped() -> Checkpoint:
    path = shipped_path(TARGET)
    assert path is not None
    return read(path)


def matmul() -> Region:
    a, b = empty(256, 128), empty(128, 512)
    return Region((kernel_of(kernels_of(a @ b)[0]),))


def elementwise() -> Region:
    return Region((kernel_of(kernels_of((empty(96, 64) + empty(96, 64)).exp2())[0]),))


def graphs_of(region: Region, count: int, seed: int = 0) -> Graphs:
    """Of schedules from the ends of random walks, of few steps and of many."""
    space, rng, found = KernelSpace(region, TARGET), random.Random(seed), {RAW: None}
    while len(found) < count:
        schedule = RAW
        for _ in range(rng.randint(1, 6)):
            schedule = space.sample(rng, schedule) or schedule
        found.setdefault(schedule)
    drawn = list(found)[:count]
    return graphs(encode(space.loop_nests(drawn)), TARGET)


def alone(nets: Sequence[Network], made: Graphs, kernel_x: Array, target_x: Array) -> list[dict[str, Array]]:
    """What each network says by itself."""
    n = len(made)
    with torch.inference_mode():
        batch = GraphSet(made, np.arange(n), kernel_x, target_x, np.arange(n)).batch(torch.arange(n))
        found = []
        for net in map(Net.of, nets):
            state = net.embed_graphs(batch)
            output = net.answer(batch, state)
            outputs = {name: getattr(output, name).numpy() for name in ("rank", "log_sigma", "failure")}
            found.append(outputs | {"hidden": state.numpy()})
    return found


def largest_difference(nets: Sequence[Network], made: Graphs, regions: Sequence[Region]) -> float:
    kernel_x = np.stack([kernel_features(region) for region in regions])
    target_x = np.stack([target_features(TARGET)] * len(regions))
    outputs = Stacked(nets)(made, kernel_x, target_x)
    worst = 0.0
    for i, one in enumerate(alone(nets, made, kernel_x, target_x)):
        for name, values in one.items():
            other = getattr(outputs, name)[i]
            assert other.shape == values.shape and other.dtype == np.float32
            assert np.isfinite(other).all()
            worst = max(worst, float(np.abs(other - values).max()))
    return worst


@pytest.mark.parametrize("count", every(2, [1, 2, 23, 150]))
@pytest.mark.parametrize("make", [matmul, elementwise])
def test_the_shipped_networks_answer_together_as_alone(
    shipped: Checkpoint, make: Callable[[], Region], count: int
) -> None:
    region = make()
    made = graphs_of(region, count)
    assert largest_difference(shipped.nets, made, [region] * len(made)) < CLOSE


def test_without_pytorch_the_shipped_networks_guide_and_say_what_they_said_with_it(shipped: Checkpoint) -> None:
    """Never the roofline in their place. What PyTorch said is recorded: `tests/predictor/golden.py`."""
    done = python("-m", "tests.predictor.without_torch", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["guides"], found["name"]) == ("LearnedPredictor", shipped.about.name) and found["different"] > 5
    assert found["error"] < CLOSE and found["chances"] == pytest.approx(1.0)


def test_graphs_of_several_kernels_are_kept_apart(shipped: Checkpoint) -> None:
    regions = [matmul(), elementwise()]
    parts = [graphs_of(region, 12) for region in regions]
    owners = [region for region, part in zip(regions, parts, strict=True) for _ in range(len(part))]
    assert largest_difference(shipped.nets[:2], joined(parts), owners) < CLOSE


@pytest.mark.slow
def test_how_many_edges_are_taken_at_once_changes_nothing(shipped: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    region = matmul()
    made = graphs_of(region, 40)
    for most in (1, 64, 500, 10**9):
        monkeypatch.setattr(stacked_module, "EDGES_AT_ONCE", most)
        assert largest_difference(shipped.nets, made, [region] * len(made)) < CLOSE


def test_one_small_graph_does_not_make_large_ones_one_block(shipped: Checkpoint) -> None:
    """A kernel of one element has no edges, and as many graphs as were to stand with it were padded to the largest."""
    region = Region((kernel_of(kernels_of((empty(1) + empty(1)).exp2())[0]),))
    tiny, large = graphs(encode(KernelSpace(region, TARGET).loop_nests([RAW])), TARGET), graphs_of(matmul(), 300)
    assert not (tiny.n_axes * (tiny.n_accesses + tiny.n_groups)).any()
    stacked = Stacked(shipped.nets)

    def most_bytes(made: Graphs) -> int:
        kernel_x = np.stack([kernel_features(matmul())] * len(made))
        target_x = np.stack([target_features(TARGET)] * len(made))
        tracemalloc.start()
        stacked(made, kernel_x, target_x)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    most_bytes(tiny)  # once, and what is imported then is imported
    assert most_bytes(joined([tiny, large])) < 1.1 * most_bytes(large)


@pytest.mark.parametrize("kind", ["axes", "accesses", "groups"])
def test_a_graph_may_lack_a_kind_of_nodes(shipped: Checkpoint, kind: str) -> None:
    """Alone, and beside one that has them."""
    region = matmul()
    made = graphs_of(region, 1)
    gone = {"axes": ("access_edges", "group_edges"), "accesses": ("access_edges",), "groups": ("group_edges",)}[kind]
    fields = {name: getattr(made, name)[:0] for name in (kind, *gone)}
    without = replace(made, **fields, **{f"n_{kind}": np.zeros(1, np.int64)})
    assert largest_difference(shipped.nets, without, [region]) < CLOSE
    assert largest_difference(shipped.nets, joined([without, made]), [region] * 2) < CLOSE


@pytest.mark.parametrize(
    "settings",
    [
        NetSettings(hidden=8, layers=3),
        NetSettings(hidden=8, messages=False),
        NetSettings(hidden=8, schedule=False),
        NetSettings(hidden=8, kernel=False),
    ],
)
def test_every_shape_of_network_can_be_stacked(settings: NetSettings) -> None:
    torch.manual_seed(0)
    nets = [Net(settings).eval() for _ in range(2)]
    for net in nets:  # as after a training: no weight, scale or mean is what it began as
        for name, value in net.state_dict().items():
            value.copy_(torch.rand_like(value) + 0.5 if name.endswith("_scale") else 0.3 * torch.randn_like(value))
    region = matmul()
    made = graphs_of(region, 10)
    numbers = [net.network() for net in nets]
    assert largest_difference(numbers, made, [region] * len(made)) < CLOSE * 10  # states reach 100 with such weights


@pytest.mark.parametrize(
    "settings",
    [
        NetSettings(),
        NetSettings(hidden=24, layers=3),
        NetSettings(hidden=8, messages=False),
        NetSettings(hidden=8, schedule=False),
        NetSettings(hidden=8, kernel=False, layers=0),
        NetSettings(hidden=8, compare=True),
    ],
)
def test_the_shapes_of_a_file_are_those_of_the_network_that_is_trained(settings: NetSettings) -> None:
    assert shapes(settings) == {name: tuple(value.shape) for name, value in Net(settings).state_dict().items()}


def test_networks_that_compare_candidates_guide_no_search(shipped: Checkpoint) -> None:
    """They are experiments of training: what they say of a candidate depends on those asked beside it."""
    net = Net(NetSettings(hidden=8, compare=True)).network()
    with pytest.raises(DataError, match=r"net\.compare") as caught:
        LearnedPredictor(replace(shipped, nets=(net,)))
    assert "\n" not in str(caught.value)


def test_a_predictor_of_networks_of_several_shapes_says_the_mean_of_what_each_says(shipped: Checkpoint) -> None:
    other = Net(NetSettings(hidden=8)).network()
    space = KernelSpace(matmul(), TARGET)
    schedules = [action.schedule for action in space.actions(space.start())]
    mixed = LearnedPredictor(replace(shipped, nets=(shipped.nets[0], other))).embed(space, schedules)
    first, second = (
        LearnedPredictor(replace(shipped, nets=(net,))).embed(space, schedules) for net in (shipped.nets[0], other)
    )
    for i in range(len(schedules)):
        assert mixed[0][i].log_runtime == pytest.approx(
            (first[0][i].log_runtime + second[0][i].log_runtime) / 2, abs=CLOSE
        )
        parts = first[1][i], second[1][i]
        assert parts[0] is not None and parts[1] is not None
        np.testing.assert_allclose(mixed[1][i], np.concatenate(parts), atol=CLOSE)


def test_one_schedule_is_judged_with_less_than_half_the_calls_of_one_network_after_another(
    shipped: Checkpoint,
) -> None:
    """Of one schedule it is they that take the time."""
    region = matmul()
    made = graphs_of(region, 1)
    kernel_x, target_x = kernel_features(region)[None], target_features(TARGET)[None]
    together, each = [Stacked(shipped.nets)], [Stacked([net]) for net in shipped.nets]

    def judge_by(stacks: Sequence[Stacked]) -> None:
        for stacked in stacks:
            stacked(made, kernel_x, target_x)

    judge_by(together)  # once, and what is imported then is imported
    assert 2 * calls_of(lambda: judge_by(together)) < calls_of(lambda: judge_by(each))


def test_blas_has_one_thread_while_anything_predicts_and_as_many_as_before_after() -> None:
    def threads() -> set[int]:
        return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}

    with threadpool_limits(limits=2, user_api="blas"):
        with one_thread:
            with one_thread:  # as from another thread
                pass
            assert 1 in threads()
        assert threads() == {2}


def test_where_threadpoolctl_knows_no_blas_it_looks_for_one_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, where NumPy's is Apple's: each look takes a millisecond."""
    looks = 0

    def none_found() -> ThreadpoolController:
        nonlocal looks
        looks += 1
        return ThreadpoolController().select(prefix="of no library")

    monkeypatch.setattr(stacked_module, "ThreadpoolController", none_found)
    here = type(one_thread)()
    for _ in range(3):
        with here, here:
            pass
    assert looks == 1


ANY_THREAD = """
import json, threading
from threadpoolctl import threadpool_info
from kcg.predictor.stacked import one_thread

seen = {}

def note(name):
    seen[name] = max(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas")

def predict(inside, leave, left):
    with one_thread:
        inside.set()
        leave.wait()
    left.set()
    ended.wait()

ended, signals = threading.Event(), [[threading.Event() for _ in range(3)] for _ in range(2)]
threads = [threading.Thread(target=predict, args=three) for three in signals]
for thread, (inside, _, _) in zip(threads, signals):
    thread.start()
    inside.wait()
note("both inside")
for name, (_, leave, left) in zip(("the first left", "both left"), signals):
    leave.set()
    left.wait()
    note(name)
with one_thread:
    note("another inside, both alive")
note("all left")
ended.set()
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_blas_has_one_thread_whichever_threads_predict_and_in_whatever_order_they_leave() -> None:
    """Also while those that predicted before are alive, as those of a server."""
    done = python("-c", ANY_THREAD, cwd=ROOT, OPENBLAS_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "both inside": 1, "the first left": 1, "both left": 2, "another inside, both alive": 1, "all left": 2
    }  # fmt: skip


FORKED = """
import os, threading
from threadpoolctl import threadpool_info
from kcg.predictor.stacked import one_thread

def threads():
    return max(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas")

def predict():
    with one_thread, one_thread._lock:
        inside.set()
        leave.wait()

inside, leave = threading.Event(), threading.Event()
thread = threading.Thread(target=predict)
thread.start()
inside.wait()
if not (child := os.fork()):
    before = threads()
    with one_thread:
        within = threads()
    os._exit(0 if (before, within, threads()) == (2, 1, 2) else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
leave.set()
thread.join()
raise SystemExit(code)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_is_forked_while_another_thread_predicts_predicts_too() -> None:
    done = python("-c", FORKED, cwd=ROOT, OPENBLAS_NUM_THREADS="2", timeout=60)
    assert done.returncode == 0, done.stderr


def test_weights_that_overflow_are_expected_to_fail_without_a_warning(shipped: Checkpoint) -> None:
    """Warnings are errors in tests, and one line each for who predicts."""
    huge = [
        replace(net, numbers={**net.numbers, "heads.bias": np.full(4, sign * 3e38, np.float32)})
        for net, sign in zip(shipped.nets, (1, -1), strict=False)
    ]
    space = KernelSpace(matmul(), TARGET)
    for nets in (huge, huge[:1]):
        found = LearnedPredictor(replace(shipped, nets=tuple(nets))).predict(space, [RAW])
        assert found == [IMPOSSIBLE]
    about = replace(shipped.about, spread_scale=10**400)
    (found_one,) = LearnedPredictor(replace(shipped, about=about)).predict(space, [RAW])
    assert found_one == IMPOSSIBLE


@pytest.mark.parametrize("name", ["hidden", "kernel", "schedule", "messages"])
def test_settings_of_a_file_that_only_equal_what_they_should_be_are_refused(
    shipped: Checkpoint, name: str, tmp_path: Path
) -> None:
    """64.0 is equal to 64, so that shapes are too, and is no length."""
    save(shipped, path := tmp_path / "p")
    header, tensors = read_tensors(path, "checkpoint")
    header["nets"] = [{**net, name: float(net[name])} for net in header["nets"]]
    save_tensors(path, tensors, header)
    with pytest.raises(DataError, match="does not hold what it says"):
        read(path)


def test_a_file_larger_than_any_checkpoint_is_not_read(tmp_path: Path) -> None:
    """Sparse, of more bytes than any memory has."""
    shape = [1 << 38]
    tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * shape[0]]}
    start = json.dumps({"net0.heads.bias": tensor}).encode()
    path = tmp_path / "p"
    with path.open("wb") as file:
        file.write(len(start).to_bytes(8, "little") + start)
        file.truncate(8 + len(start) + 4 * shape[0])
    with pytest.raises(DataError, match="no checkpoint has more than"):
        read(path)
