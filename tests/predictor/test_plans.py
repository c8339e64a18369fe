"""What is learned of plans: what is seen of them, networks that are told of them, and what a checkpoint predicts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kcg.errors import DataError
from kcg.kernel.kinds import SeenAsPlans, kind_named
from kcg.kernel.tile.seen import WORDS
from kcg.predictor.checkpoint import About, Checkpoint, read, save
from kcg.predictor.choice import AUTO, choose_predictor, deferred, kept_predictor
from kcg.predictor.cost import KnownCost, guiding
from kcg.predictor.features import graphs_of_plans, kernel_features, operations_of, target_features, widths_of
from kcg.predictor.interface import Beside
from kcg.predictor.learned import LearnedPredictor
from kcg.predictor.network import NetSettings, Network, shapes
from kcg.predictor.plans import PlanPredictor
from kcg.predictor.stacked import Stacked
from kcg.predictor.training_data import words_of
from kcg.training.network import GraphSet, Net
from kcg.types import Schedule, ScheduleKind
from tests.small_spaces import SM_90, programs, space_named

SETTINGS = NetSettings(hidden=8, layers=1, kind=ScheduleKind.TILE, widths=widths_of(WORDS))
SEVERAL = "tile of several kernels"


def network(seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return Net(SETTINGS).eval().network()


def checkpoint(**about: object) -> Checkpoint:
    operations = operations_of(space_named("tile").region) | operations_of(space_named(SEVERAL).region)
    found = replace(_plain().about, operations=tuple(sorted(operations)))
    return Checkpoint(replace(found, **about), (network(0), network(1)))  # type: ignore[arg-type]


def _plain() -> Checkpoint:
    known = {"fingerprint": SM_90.fingerprint, "model": SM_90.model, "device": SM_90.device, "renderer": SM_90.renderer}
    return Checkpoint(About("plans", (known,), (), "workload", ()), (network(),))


@pytest.mark.parametrize("kind", ["tile", SEVERAL])
def test_a_plan_is_seen_as_finite_numbers_of_one_shape_and_no_two_programs_look_the_same(kind: str) -> None:
    space, looks = space_named(kind), set()
    for schedule in programs(kind).values():
        seen = space.seen(schedule)  # type: ignore[attr-defined]
        sizes = {
            name: getattr(seen, name).shape[-1]
            for name in ("axes", "accesses", "groups", "access_edges", "group_edges", "whole")
        }
        assert sizes == {name: len(getattr(WORDS, name)) for name in sizes}
        assert len(seen.access_edges) == len(seen.axes) * len(seen.accesses)
        assert len(seen.group_edges) == len(seen.axes) * len(seen.groups)
        assert all(np.isfinite(getattr(seen, name)).all() for name in sizes)
        assert math.exp(seen.log_s) == pytest.approx(space.cost(schedule).seconds)  # type: ignore[attr-defined]
        looks.add(b"".join(getattr(seen, name).tobytes() for name in sizes))
    assert len(looks) == len(programs(kind))


def test_stacked_networks_of_plans_answer_as_the_trained_ones() -> None:
    space, every = space_named("tile"), [*programs("tile").values()]
    plans = [space.seen(schedule) for schedule in every]  # type: ignore[attr-defined]
    made, kernel_x, target_x = graphs_of_plans(plans), kernel_features(space.region), target_features(SM_90)
    base, zeros = np.array([plan.log_s for plan in plans]), np.zeros(len(plans), np.int64)
    answers = Stacked([network(0), network(1)])(
        made, np.tile(kernel_x, (len(plans), 1)), np.tile(target_x, (len(plans), 1))
    )
    for place in (0, 1):
        graphs = GraphSet(made, zeros, kernel_x[None], target_x[None], np.zeros(1, np.int64), base=base)
        output = Net.of(network(place))(graphs.batch(torch.arange(len(plans))))
        np.testing.assert_allclose(answers.rank[place] + base, output.rank.detach().numpy(), atol=1e-4)
        np.testing.assert_allclose(answers.failure[place], output.failure.detach().numpy(), atol=1e-4)


def test_what_is_predicted_of_a_program_depends_on_no_other_and_comes_back_from_a_file(tmp_path: Path) -> None:
    space, every = space_named("tile"), [*programs("tile").values()]
    save(checkpoint(trust=0.5), tmp_path / "plans.safetensors")
    kept = read(tmp_path / "plans.safetensors")
    assert kept.about.trust == 0.5 and kept.nets[0].settings == SETTINGS
    predictor = PlanPredictor(kept)
    together = predictor.predict(space, every)
    for schedule, found in zip(every, together, strict=True):
        (alone,) = predictor.predict(space, [schedule])
        assert alone.log_runtime == pytest.approx(found.log_runtime, abs=1e-4)
        assert alone.uncertainty == pytest.approx(found.uncertainty, rel=1e-3)


def test_networks_that_are_not_trusted_say_what_the_formula_says() -> None:
    space, every = space_named("tile"), [*programs("tile").values()]
    formula = KnownCost().predict(space, every)
    doubted = PlanPredictor(checkpoint(trust=0.0)).predict(space, every)
    for one, other in zip(formula, doubted, strict=True):
        assert one.log_runtime == pytest.approx(other.log_runtime, abs=1e-6)
    assert PlanPredictor(checkpoint()).predict(space, every) != doubted


def test_what_training_never_showed_is_uncertain_and_never_a_crash() -> None:
    space, every = space_named("tile"), [*programs("tile").values()]
    plain = Checkpoint(_plain().about, (network(),))  # which knows no operation
    assert all(found.uncertainty >= 1.0 for found in PlanPredictor(plain).predict(space, every))
    elsewhere = checkpoint(targets=())
    assert all(found.uncertainty >= 1.0 for found in PlanPredictor(elsewhere).predict(space, every))
    opts = space_named("opts")
    (found,) = PlanPredictor(plain).predict(opts, [opts.start()])
    assert found.uncertainty > 1 and found.failure_probability == 1.0
    (found,) = PlanPredictor(plain).predict(space, [Schedule(ScheduleKind.OPTS, "[]")])
    assert found.failure_probability == 1.0


def test_networks_that_were_told_something_else_are_refused_with_the_way_out() -> None:
    settings = replace(SETTINGS, widths=(*SETTINGS.widths[:-1], SETTINGS.widths[-1] + 1))
    other = Network(settings, {name: np.zeros(shape, np.float32) for name, shape in shapes(settings).items()})
    space = space_named("tile")
    with pytest.raises(DataError, match="train it again with this kcg"):
        PlanPredictor(Checkpoint(_plain().about, (other,))).predict(space, [space.start()])
    with pytest.raises(DataError, match="one of Opts is needed"):
        LearnedPredictor(_plain())
    with pytest.raises(ValueError, match="told of"):
        shapes(replace(SETTINGS, widths=(1, 2)))


def test_whoever_has_learned_of_plans_is_asked_about_them_and_nothing_else() -> None:
    learned, tile, opts = PlanPredictor(_plain()), space_named("tile")._space, space_named("opts")  # type: ignore[attr-defined]
    assert isinstance(tile, SeenAsPlans) and not isinstance(opts, SeenAsPlans)
    usual = kept_predictor(AUTO, SM_90)
    both = Beside(usual, learned)
    assert guiding(tile, both) is learned
    assert isinstance(guiding(tile, usual), KnownCost)
    assert guiding(opts, both) is both
    assert isinstance(guiding(tile, None), KnownCost)


def test_a_checkpoint_of_plans_is_used_beside_what_comes_with_kcg(tmp_path: Path) -> None:
    path = tmp_path / "plans.safetensors"
    save(checkpoint(), path)
    usual, tile, opts = kept_predictor(AUTO, SM_90), space_named("tile")._space, space_named("opts")  # type: ignore[attr-defined]
    for chosen in (choose_predictor(str(path), SM_90), deferred(str(path), SM_90)):
        assert chosen.name == f"{usual.name}, plans"
        assert isinstance(guiding(tile, chosen), PlanPredictor) and guiding(opts, chosen) is chosen
        assert chosen.predict(opts, [opts.start()]) == usual.predict(opts, [opts.start()])
        assert chosen.of(opts).predict([opts.start()]) == usual.of(opts).predict([opts.start()])
    assert isinstance(guiding(tile, deferred(AUTO, SM_90)), KnownCost), "nothing comes with kcg yet"


def test_only_kinds_that_show_plans_have_words() -> None:
    assert words_of(ScheduleKind.TILE) == WORDS == kind_named(ScheduleKind.TILE).words  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="nothing is learned"):
        words_of(ScheduleKind.OPTS)
