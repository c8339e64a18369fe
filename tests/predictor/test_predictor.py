"""A predictor that learned from real rows ranks kernels it has never seen, and never says what cannot be."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kcg.dataset.reading import read_export
from kcg.errors import DataError, UsageError
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import RAW, Opt, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.predictor import choice, header
from kcg.predictor.checkpoint import About, Checkpoint, read, save
from kcg.predictor.choice import check_choice, choose_predictor, shipped_path
from kcg.predictor.features import operations_of
from kcg.predictor.header import MOST_BYTES
from kcg.predictor.interface import Predictor
from kcg.predictor.learned import IMPOSSIBLE, NEVER_SEEN, LearnedPredictor
from kcg.predictor.metrics import Floors, scores, summary
from kcg.predictor.network import NetSettings
from kcg.predictor.roofline import Roofline
from kcg.predictor.training_data import TrainingData, evaluation_pool, load
from kcg.rl.observation import Observer
from kcg.training.fit import STATE, Fit, FitSettings
from kcg.training.loss import Truth, Weights, loss_of
from kcg.training.network import GraphSet, Net, Output, predicted
from kcg.types import Region, Schedule, Target
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.small_dataset import small_dataset

FLOORS = Floors()
SETTINGS = FitSettings(
    epochs=10,
    kernels_a_step=8,
    schedules_a_kernel=16,
    patience=99,
    validate_every=5,
    learning_rate=4e-3,
    average=0.95,
    net=NetSettings(hidden=24, layers=2),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    families = {"norms": 8, "gpt2": 8, "resnet": 8, "activations": 8, "softmax": 8, "bert": 10, "flux": 12}
    return small_dataset(tmp_path_factory.mktemp("small"), families=families)


@pytest.fixture(scope="module")
def data(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    return load(folder, cache=tmp_path_factory.mktemp("cache"), workers=1)


@pytest.fixture(scope="module")
def trained(data: TrainingData, tmp_path_factory: pytest.TempPathFactory) -> Fit:
    fit = Fit(data, SETTINGS, tmp_path_factory.mktemp("fit"), floors=FLOORS)
    fit.run()
    return fit


@pytest.fixture(scope="module")
def predictor(data: TrainingData, trained: Fit) -> LearnedPredictor:
    return LearnedPredictor(Checkpoint(about_of(data), (trained.averaged.network(),)))


def about_of(data: TrainingData) -> About:
    names = ("SINK", "STORE", "INDEX", "PARAM", "RANGE", "REDUCE", "ADD", "MUL", "CONST", "END", "CAST")
    return About("tiny", ({"fingerprint": data.targets[0]},), (), "workload", names)


def pairwise(data: TrainingData, rank: np.ndarray, index: np.ndarray) -> float:
    found = scores(rank, data.log_s[index], data.kernel[index], data.run[index], FLOORS)
    return summary(found, data.calls)["pairwise"]


@pytest.mark.slow
def test_a_tiny_model_beats_random_and_the_roofline_on_held_out_kernels(
    folder: Path, data: TrainingData, trained: Fit
) -> None:
    held_out = ~data.part("workload", "train")
    index = np.flatnonzero(held_out & evaluation_pool(data) & ~data.failed)
    assert len(set(data.kernel[index])) > 20
    learned = pairwise(data, predicted(trained.averaged, trained.graphs, index)["rank"], index)
    export = read_export(folder)
    regions, targets = export.regions(), export.targets()
    bodies = export.table(1, ["schedule_body"])["schedule_body"].to_pylist()
    roofline = np.zeros(len(index))
    for kernel in set(data.kernel[index]):
        space = KernelSpace(regions[data.region_ids[kernel]], targets[data.targets[data.target[kernel]]])
        rows = np.flatnonzero(data.kernel[index] == kernel)
        schedules = [Schedule("opts", bodies[data.row[index[i]]]) for i in rows]
        roofline[rows] = [p.log_runtime for p in Roofline().predict(space, schedules)]
    assert learned > 0.75 and learned > pairwise(data, roofline, index) + 0.02
    assert learned > pairwise(data, np.random.default_rng(0).normal(size=len(index)), index) + 0.2


@pytest.mark.slow
def test_a_run_that_was_cut_goes_on_as_if_it_had_not_been(data: TrainingData, tmp_path: Path) -> None:
    settings = replace(SETTINGS, epochs=4, validate_every=2, net=NetSettings(hidden=8, layers=1))
    whole: list[dict[str, float]] = []
    Fit(data, settings, tmp_path / "whole", floors=FLOORS, log=whole.append).run()

    class Cut(Exception):
        pass

    header: list[dict[str, float]] = []

    def log(values: dict[str, float]) -> None:
        header.append(values)
        if len(header) == 3:
            raise Cut

    with pytest.raises(Cut):
        Fit(data, settings, tmp_path / "cut", floors=FLOORS, log=log).run()
    header.pop()  # what was not kept is done again
    Fit(data, settings, tmp_path / "cut", floors=FLOORS, log=header.append).run()
    assert [v["epoch"] for v in header] == [0, 1, 2, 3]
    for one, other in zip(whole, header, strict=True):
        assert one["train/loss"] == pytest.approx(other["train/loss"], rel=1e-4)
    with pytest.raises(DataError, match="of other settings"):
        Fit(data, replace(settings, seed=1), tmp_path / "cut", floors=FLOORS).run()


def test_patience_begins_with_the_first_look_at_the_validation_part(data: TrainingData, tmp_path: Path) -> None:
    net = NetSettings(hidden=4, layers=0)
    fit = Fit(
        data, replace(SETTINGS, epochs=9, validate_every=3, patience=0, net=net), tmp_path / "impatient", floors=FLOORS
    )
    fit.run()
    assert fit.progress.epoch == 3 and fit.progress.best_epoch == 2


def test_a_split_without_training_kernels_is_one_line(data: TrainingData, tmp_path: Path) -> None:
    only_test = data.take(data.part("workload", "test"))
    with pytest.raises(DataError, match="leaves no kernel"):
        Fit(only_test, SETTINGS, tmp_path, floors=FLOORS)


# ---- what is said of one kernel ----


def space_of(tensor: object, name: str = "sm_90") -> KernelSpace:
    return KernelSpace(Region((kernel_of(kernels_of(tensor)[-1]),)), KNOWN_TARGETS[name])  # type: ignore[arg-type]


@pytest.mark.slow
def test_predictions_are_finite_ordered_and_the_same_in_any_batch(predictor: LearnedPredictor) -> None:
    space = space_of(empty(64, 96) @ empty(96, 80))
    schedules = [action.schedule for action in space.actions(RAW)]
    wrong = schedule_of((Opt("UPCAST", 77, 4),))
    found = predictor.predict(space, [wrong, *schedules])
    assert found[0] == IMPOSSIBLE and len({p.log_runtime for p in found[1:]}) > len(schedules) / 2
    for schedule, one in zip(schedules, found[1:], strict=True):
        (alone,) = predictor.predict(space, [schedule])
        assert alone.log_runtime == pytest.approx(one.log_runtime, abs=1e-4)
        assert math.isfinite(one.log_runtime) and 0 < one.uncertainty < 10 and 0 <= one.failure_probability <= 1
    assert predictor.predict(space, []) == []


def test_features_of_one_kernel_on_several_targets_are_judged_as_on_each(predictor: LearnedPredictor) -> None:
    observers = [Observer(space_of(empty(64, 96) @ empty(96, 80), name)) for name in ("sm_90", "sm_80")]
    features = [observer.observe(RAW) for observer in observers]
    each = [predictor.predict_features([one])[0].log_runtime for one in features]
    assert [p.log_runtime for p in predictor.predict_features(features)] == pytest.approx(each, abs=1e-5)
    assert each[0] != pytest.approx(each[1], abs=1e-3)


def test_what_training_never_showed_is_uncertain_and_no_crash(predictor: LearnedPredictor, data: TrainingData) -> None:
    strange = space_of(empty(64, 64).sin().sum(1))
    assert not operations_of(strange.region) <= set(predictor.checkpoint.about.operations)
    assert predictor.predict(strange, [RAW])[0].uncertainty >= NEVER_SEEN
    for target in KNOWN_TARGETS:
        other = space_of(empty(64, 64).sum(1), target)
        (found,) = predictor.predict(other, [RAW])
        assert math.isfinite(found.log_runtime) and found.uncertainty >= NEVER_SEEN, "another machine"


def test_too_long_code_is_expected_to_fail(predictor: LearnedPredictor) -> None:
    space = space_of(empty(512, 512) @ empty(512, 512))
    opts = (Opt("UPCAST", 0, 16), Opt("UPCAST", 1, 16), Opt("UNROLL", 0, 32))
    schedule = schedule_of(opts)
    assert space.uops(schedule) > 3000
    assert predictor.predict(space, [schedule])[0].failure_probability > 0.9


@pytest.mark.parametrize("says", [math.nan, 1000.0, -1000.0])
def test_what_is_no_time_never_leaves(predictor: LearnedPredictor, says: float) -> None:
    """Not a number, and log-seconds whose exponential is no number either."""
    net = Net(NetSettings(hidden=8, layers=1)).eval()
    with torch.no_grad():
        net.heads.bias.fill_(says)
    broken = LearnedPredictor(replace(predictor.checkpoint, nets=(net.network(),)))
    (found,) = broken.predict(space_of(empty(8, 8).sum(1)), [RAW])
    assert found == IMPOSSIBLE and 0 < found.runtime_s < math.inf


# ---- the loss ----


def truth(log_s: list[list[float]], there: list[list[bool]] | None = None) -> Truth:
    values = torch.tensor(log_s)
    exists = torch.tensor(there) if there else torch.ones_like(values, dtype=torch.bool)
    timed = torch.isfinite(values) & exists
    k, s = values.shape
    return Truth(torch.where(timed, values, 0.0), timed, exists, torch.zeros(k, s), torch.zeros(k, s, s))


@pytest.mark.parametrize(
    "made",
    [truth([[0.0]]), truth([[math.nan, math.nan]]), truth([[1.0, 1.0]]), truth([[0.0, 1.0]], [[True, False]])],
    ids=["one row", "all failed", "all equal", "padding"],
)
def test_groups_that_rank_nothing_have_a_finite_loss(made: Truth) -> None:
    shape = made.log_s.shape
    values = [torch.zeros(shape, requires_grad=True) for _ in range(4)]
    loss, parts = loss_of(Output(*values), made, Weights(listwise=1.0))
    loss.backward()
    assert torch.isfinite(loss) and all(torch.isfinite(p) for p in parts.values())
    assert all(v.grad is None or torch.isfinite(v.grad).all() for v in values)


def test_the_right_order_costs_less() -> None:
    made = truth([[0.0, 1.0, 2.0]])
    zeros = torch.zeros(1, 3)

    def cost(rank: list[float]) -> float:
        weights = Weights(time=0, spread=0, failure=0, level=0, listwise=1.0)
        return float(loss_of(Output(zeros, torch.tensor([rank]), zeros, zeros), made, weights)[0])

    assert cost([0, 1, 2]) < cost([0, 0, 0]) < cost([2, 1, 0])


# ---- files ----


def test_a_checkpoint_predicts_what_the_model_did(data: TrainingData, trained: Fit, tmp_path: Path) -> None:
    about = replace(about_of(data), spread_scale=1.5, metrics={"pairwise": 0.9}, since="trained, then looked at")
    made = Checkpoint(about, (trained.averaged.network(),) * 2)
    save(made, tmp_path / "p.safetensors")
    found = read(tmp_path / "p.safetensors")
    assert found.about == about
    space = space_of(empty(64, 96) @ empty(96, 80))
    schedules = [action.schedule for action in space.actions(RAW)]
    one, other = (LearnedPredictor(c).predict(space, schedules) for c in (made, found))
    for a, b in zip(one, other, strict=True):
        assert a.log_runtime == pytest.approx(b.log_runtime, abs=0.02)
        assert a.uncertainty == pytest.approx(b.uncertainty, rel=0.02)
    assert (tmp_path / "p.safetensors").read_bytes() == (save(found, tmp_path / "q"), (tmp_path / "q").read_bytes())[1]


def test_a_checkpoint_of_other_features_is_refused_with_the_way_out(
    data: TrainingData, trained: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.safetensors"
    save(Checkpoint(about_of(data), (trained.averaged.network(),)), path)
    monkeypatch.setattr(header, "FEATURES_VERSION", 99)
    with pytest.raises(DataError, match="features of version 1, this kcg has version 99: train again"):
        read(path)


def test_what_is_no_checkpoint_is_one_line(data: TrainingData, trained: Fit, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no checkpoint"):
        read(tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / "text")
    save_file({"a": torch.zeros(1)}, tmp_path / "foreign")
    with pytest.raises(DataError, match="is no checkpoint of a predictor"):
        read(tmp_path / "foreign")
    path = tmp_path / "p.safetensors"
    save(Checkpoint(about_of(data), (trained.averaged.network(),)), path)
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        header = file.metadata()
    del tensors["net0.heads.weight"]
    save_file(tensors, tmp_path / "less", header)
    with pytest.raises(DataError, match="does not hold what it says"):
        read(tmp_path / "less")
    weights = load_file(path)
    weights["net0.heads.weight"][0] = torch.nan
    save_file(weights, tmp_path / "nan", header)
    with pytest.raises(DataError, match="weights that are not numbers"):
        read(tmp_path / "nan")
    for dtype, wrong in ((torch.bfloat16, "cannot be read"), (torch.complex64, "of complex64")):
        weights["net0.heads.weight"] = torch.zeros(4, SETTINGS.net.hidden, dtype=dtype)
        save_file(weights, tmp_path / "type", header)
        with pytest.raises(DataError, match=wrong):
            read(tmp_path / "type")
    about = json.loads(header["kcg"])
    for huge in ({"hidden": 40_000}, {"hidden": 1000}, {"layers": 10**6}):
        nets = [{**about["nets"][0], **huge}]
        save_file(load_file(path), tmp_path / "huge", {"kcg": json.dumps({**about, "nets": nets})})
        with pytest.raises(DataError, match="does not hold what it says"):
            read(tmp_path / "huge")
    about["about"]["surprise"] = 1
    save_file(load_file(path), tmp_path / "more", {"kcg": json.dumps(about)})
    with pytest.raises(DataError, match="does not hold what it says"):
        read(tmp_path / "more")


@pytest.mark.parametrize(
    "about",
    [
        [],
        None,
        {"spread_scale": 0.0},
        {"spread_scale": math.nan},
        {"spread_scale": "1"},
        {"targets": ["sm_90"]},
        {"targets": [{"model": "H200"}]},
        {"targets": [{"fingerprint": []}]},
        {"operations": [["ADD"]]},
        {"datasets": [["kernels.parquet", 1]]},
        {"name": 5},
        {"metrics": [0.9]},
        {"dirty": "no"},
    ],
)
def test_what_a_checkpoint_says_of_itself_is_checked_when_it_is_read(about: Any, tmp_path: Path) -> None:
    net = Net(NetSettings(hidden=4, layers=0)).network()
    save(Checkpoint(About("tiny", ({"fingerprint": "f"},), (), "workload", ("ADD",)), (net,)), path := tmp_path / "p")
    with safe_open(path, "pt") as file:
        given = json.loads(file.metadata()["kcg"])
    given["about"] = {**given["about"], **about} if isinstance(about, dict) else about
    save_file(load_file(path), path, {"kcg": json.dumps(given)})
    with pytest.raises(DataError, match="does not hold what it says") as caught:
        read(path)
    assert "\n" not in str(caught.value)
    save_file(load_file(path), path, {"kcg": "[" * 100_000})
    with pytest.raises(DataError, match="cannot be read"):
        read(path)


def test_a_checkpoint_that_is_too_large_is_not_written(data: TrainingData, tmp_path: Path) -> None:
    net = Net(NetSettings(hidden=256, layers=3))
    with pytest.raises(DataError, match="fewer or smaller networks"):
        save(Checkpoint(about_of(data), (net.network(),) * 2), tmp_path / "large")
    assert not list(tmp_path.iterdir())


# ---- files of before ----


def of_before(path: Path, out: Path, drop: str = "", **about: object) -> Path:
    """A checkpoint with trees beside its networks, as kcg wrote them; without its tensors that begin with `drop`."""
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["kcg"])
    tensors = {name: values for name, values in load_file(path).items() if not drop or not name.startswith(drop)}
    header["about"] = {**{k: v for k, v in header["about"].items() if k != "since"}, "tree_share": 0.4, **about}
    header["nets"] = header["nets"] if tensors else []
    save_file({**tensors, "trees": torch.zeros(99, dtype=torch.uint8)}, out, {"kcg": json.dumps(header)})
    return out


def test_trees_of_a_checkpoint_of_before_are_left_out_and_that_is_reported(
    data: TrainingData, trained: Fit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = tmp_path / "new.safetensors"
    save(Checkpoint(about_of(data), (trained.averaged.network(),)), new)
    old = of_before(new, tmp_path / "old.safetensors", settings={"trees.rounds": 600})
    with caplog.at_level("WARNING"):
        found = read(old)
    assert [record.getMessage() for record in caplog.records] == [
        f"{old} holds gradient-boosted trees, which this kcg leaves out: its networks predict alone"
    ]
    assert found.about == replace(about_of(data), settings={"trees.rounds": 600})
    space = space_of(empty(64, 96) @ empty(96, 80))
    one, other = (LearnedPredictor(c).predict(space, [RAW]) for c in (read(new), found))
    assert one == other
    with pytest.raises(DataError, match=r"alone.*: train networks") as caught:
        read(of_before(new, tmp_path / "trees.safetensors", drop="net"))
    assert "\n" not in str(caught.value) and "gradient-boosted trees alone" in str(caught.value)


def test_the_weights_of_another_kind_of_network_are_refused(data: TrainingData, trained: Fit, tmp_path: Path) -> None:
    """Such as that over scheduled ASTs, which kcg had once."""
    path = tmp_path / "p.safetensors"
    save(Checkpoint(about_of(data), (trained.averaged.network(),)), path)
    with safe_open(path, "pt") as file:
        header = file.metadata()
    tensors = load_file(path)
    names = {name: name.replace("embed.axes.", "embed.nodes.") for name in tensors}
    assert any(name != other for name, other in names.items())
    save_file({names[name]: values for name, values in tensors.items()}, path, header)
    with pytest.raises(DataError, match=r"\(the weights of another kind of network\): train it again"):
        read(path)


def test_a_training_of_another_kind_of_network_is_not_gone_on_with(data: TrainingData, tmp_path: Path) -> None:
    settings = replace(SETTINGS, epochs=1, net=NetSettings(hidden=8, layers=1))
    Fit(data, settings, tmp_path, floors=FLOORS).run()
    path = tmp_path / STATE
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["progress"])
    save_file(load_file(path), path, {"progress": json.dumps({**header, "form": "AstNet"})})
    with pytest.raises(DataError, match="is of a kind of network that this kcg has not: remove it"):
        Fit(data, settings, tmp_path, floors=FLOORS).run()


# ---- which is chosen ----


def test_a_deferred_predictor_is_read_when_it_is_first_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    target, read = KNOWN_TARGETS["sm_90"], list[str]()
    known = choice.kept_predictor

    def kept(name: str, of: Target, **more: bool) -> Predictor:
        read.append(name)
        return known(name, of, **more)

    monkeypatch.setattr(choice, "kept_predictor", kept)
    found, chosen = choice.deferred("auto", target), choose_predictor("auto", target)
    region = Region((kernel_of(next(iter(kernels_of(empty(64, 64) @ empty(64, 64))))),))
    space = KernelSpace(region, target)
    judge, schedules = found.of(space), [space.baseline(), space.start()]
    assert found.name == chosen.name and not read
    assert judge.predict(schedules) == found.predict(space, schedules) == chosen.of(space).predict(schedules)
    own, measured = chosen.of(space), [(schedules[0], 1e-3)]
    own.predict(schedules)
    assert judge.correct is not None and own.correct is not None
    assert judge.correct(schedules, measured) == own.correct(schedules, measured) and {*read} == {"auto"}
    assert isinstance(choice.deferred("roofline", target), Roofline)


@pytest.mark.parametrize(
    ("device", "renderer", "learned"),
    [("CUDA", "CUDA", "cuda"), ("CUDA", "PTX", None), ("CPU", "CLANG", "cpu"), ("CPU", "X86", None)],
)
def test_what_is_shipped_for_device_and_renderer_guides_there_and_the_analytic_one_elsewhere(
    device: str, renderer: str, learned: str | None
) -> None:
    target = replace(KNOWN_TARGETS["sm_80"], device=device, renderer=renderer)
    path, chosen = shipped_path(target), choose_predictor("auto", target)
    assert (path.stem if path else None) == learned and isinstance(chosen, LearnedPredictor) == (path is not None)
    assert isinstance(choose_predictor("roofline", target), Roofline)
    if isinstance(chosen, LearnedPredictor) and path:
        assert path.stat().st_size <= MOST_BYTES and chosen.checkpoint.about.split == "workload"
        assert renderer in {header["renderer"] for header in chosen.checkpoint.about.targets}


def test_a_checkpoint_of_the_package_that_is_damaged_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cuda.safetensors").write_bytes(b"half")
    monkeypatch.setattr(choice, "SHIPPED", tmp_path)
    with pytest.raises(DataError, match=r"cuda\.safetensors, which comes with kcg, cannot be read"):
        choose_predictor("auto", KNOWN_TARGETS["sm_90"])
    assert isinstance(choose_predictor("roofline", KNOWN_TARGETS["sm_90"]), Roofline)


def test_a_choice_of_predictor_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--predictor ruffline: write auto, roofline, or the path"):
        check_choice("ruffline")
    (tmp_path / "mine").write_bytes(b"nothing")
    with pytest.raises(DataError, match="mine"):
        choose_predictor(check_choice(str(tmp_path / "mine")), KNOWN_TARGETS["sm_90"])


def test_making_a_network_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch-geometric writes a module for each kind of message to the folder for temporary files."""
    from kcg.training.messages import Messages  # seconds: it imports torch-geometric

    module = Messages().propagate.__module__
    monkeypatch.delitem(sys.modules, module)  # as in a process that has made none yet
    monkeypatch.delattr(Messages, "propagate")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Messages()
    assert Path(sys.modules[module].__file__ or "").parent == tmp_path
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_was_measured_corrects_what_is_expected_of_the_rest(
    data: TrainingData, folder: Path, predictor: LearnedPredictor
) -> None:
    """Twice as slow as predicted, all of them: so will be the others, and one never measured is less certain."""
    export = read_export(folder)
    space = KernelSpace(export.regions()[data.region_ids[0]], next(iter(export.targets().values())))
    schedules = [action.schedule for action in space.actions(space.start())][:12]
    judge = predictor.of(space)
    assert judge.correct is not None and len(schedules) == 12
    before = judge.predict(schedules)
    assert before == predictor.predict(space, schedules)
    assert judge.correct(schedules, []) == before
    measured = [(s, 2 * p.runtime_s) for s, p in zip(schedules[:6], before, strict=False)]
    after = judge.correct(schedules, [*measured, (schedules[6], math.inf)])
    shifts = [a.log_runtime - b.log_runtime for a, b in zip(after, before, strict=True)]
    assert all(0.4 < shift < 0.9 for shift in shifts)
    assert all(0 < a.uncertainty <= b.uncertainty for a, b in zip(after, before, strict=True))
    assert judge.correct(schedules, measured) == after, "nothing new, nothing changes"
    never = schedule_of([Opt("UPCAST", 77, 2)])
    assert judge.correct([never], measured) == judge.predict([never])


def test_graphs_of_another_device_are_gathered_there(data: TrainingData) -> None:
    graphs = GraphSet(data.graphs, data.kernel, data.kernel_x, data.target_x, data.target)
    index = torch.tensor([3, 1, 3])
    batch = graphs.batch(index)
    torch.testing.assert_close(batch.schedule, torch.from_numpy(data.graphs.schedule)[index])
    assert torch.equal(batch.kernel, torch.from_numpy(data.kernel)[index])
