"""A policy scores actions by what they are, and reads back from its file as it was."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kcg.errors import DataError
from kcg.kernel.opts.schedule import RAW
from kcg.predictor import header as tensors_module
from kcg.predictor.checkpoint import read
from kcg.predictor.features import FEATURES_VERSION
from kcg.predictor.header import MOST_BYTES
from kcg.predictor.network import NetSettings
from kcg.rl import policy as policy_module
from kcg.rl.observation import ScheduleObservation
from kcg.rl.policy import Policy, Proposal, read_policy, save_policy
from kcg.training.network import Net
from kcg.training.policy_network import PolicyNet, batch_of
from tests.env_tasks import observer_of
from tests.policies import ABOUT, SHIPPED, SMALL, opinionated


def observations_of(name: str) -> list[ScheduleObservation]:
    observer = observer_of(name)
    return observer.observe_all(
        [RAW, observer.space.baseline(), *(step.schedule for step in observer.space.actions(RAW)[:4])]
    )


EVERY = ("matmul", "softmax.1", "conv2d", "matmul_f16", "cache_update.1", "copy", "one step", "no step", "no axis")


@cache
def every_observation() -> list[ScheduleObservation]:
    """Of kernels of every kind."""
    return [observation for name in EVERY for observation in observations_of(name)]


def values(proposal: Proposal) -> list[float]:
    return [*proposal.steps, proposal.stop, proposal.value]


# What a policy says


@pytest.mark.slow
def test_a_new_policy_takes_every_legal_step_as_often() -> None:
    for net in (PolicyNet(SMALL), PolicyNet(trunk=Net.of(read(SHIPPED).nets[0]))):
        for observation, proposal in zip(
            every_observation(), Policy(net.network(), ABOUT).propose(every_observation()), strict=True
        ):
            assert len(proposal.steps) == len(observation.steps)
            assert [*proposal.steps, proposal.stop] == pytest.approx(
                [1 / len(observation.rows)] * len(observation.rows)
            )
    for name in ("matmul", "no step"):
        observer = observer_of(name)
        shares = values(Policy(net.network(), ABOUT).of(observer)([RAW])[0])[:-1]
        assert shares == pytest.approx([1 / len(observer.observe(RAW).rows)] * len(shares))


def test_probabilities_sum_to_one_and_are_the_same_in_any_batch() -> None:
    policy = Policy(opinionated().network(), ABOUT)
    together_ = policy.propose(every_observation())
    assert max(max(p.steps, default=0) for p in together_) > 0.5, "it has opinions"
    for observation, proposal in zip(every_observation(), together_, strict=True):
        assert sum(proposal.steps) + proposal.stop == pytest.approx(1.0, abs=1e-5)
        assert min(values(proposal)[:-1]) >= 0 and math.isfinite(proposal.value)
        assert values(policy.propose([observation])[0]) == pytest.approx(values(proposal), abs=1e-4)
    assert policy.propose([]) == []


def permuted(observation: ScheduleObservation, order: Sequence[int]) -> ScheduleObservation:
    """The same with its actions in another order."""
    rows = [*order, len(observation.steps)]
    changed = replace(observation.rows, features=observation.rows.features[rows], axes=observation.rows.axes[rows])
    return replace(observation, steps=tuple(observation.steps[i] for i in order), rows=changed)


def test_permuted_actions_have_permuted_probabilities() -> None:
    policy, rng = Policy(opinionated().network(), ABOUT), random.Random(0)
    for observation in every_observation():
        order = rng.sample(range(len(observation.steps)), len(observation.steps))
        before, after = policy.propose([observation])[0], policy.propose([permuted(observation, order)])[0]
        assert after.steps == pytest.approx([before.steps[i] for i in order], abs=1e-5)
        assert (after.stop, after.value) == pytest.approx((before.stop, before.value), abs=1e-5)


def test_actions_that_are_the_same_are_as_likely_wherever_they_stand() -> None:
    (observation, *_), policy = observations_of("matmul"), Policy(opinionated().network(), ABOUT)
    order = [*range(len(observation.steps)), 3, 0, 3]
    steps = policy.propose([permuted(observation, order)])[0].steps
    assert steps[-3:] == pytest.approx([steps[3], steps[0], steps[3]], rel=1e-4)


def test_an_action_is_scored_by_its_axes_too() -> None:
    (observation, *_), net = observations_of("matmul"), opinionated()
    blind = replace(observation, rows=replace(observation.rows, axes=np.full_like(observation.rows.axes, -1)))
    seen, unseen = (Policy(net.network(), ABOUT).propose([v])[0].steps for v in (observation, blind))
    assert np.abs(np.subtract(seen, unseen)).max() > 1e-3


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["score", "value", "trunk"])
def test_weights_that_are_not_numbers_never_give_proposals_that_are_not(broken: float, where: str) -> None:
    net = opinionated()
    with torch.no_grad():
        for parameter in getattr(net, where).parameters():
            parameter.fill_(broken)
    for observation, proposal in zip(
        every_observation(), Policy(net.network(), ABOUT).propose(every_observation()), strict=True
    ):
        assert all(math.isfinite(x) for x in values(proposal)) and len(proposal.steps) == len(observation.steps)
        assert sum(proposal.steps) + proposal.stop == pytest.approx(1.0, abs=1e-5)


# Files


def test_a_policy_reads_back_as_it_was_but_for_rounding(tmp_path: Path) -> None:
    net = opinionated(settings=NetSettings(hidden=24, layers=2, dropout=0.0))
    net.trunk.fit_scale(batch_of(every_observation()).graphs, torch.zeros(1))
    path = tmp_path / "new" / "policy.safetensors"
    save_policy(Policy(net.network(), ABOUT), path)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    found = read_policy(path)
    assert found.about == ABOUT and found.network.trunk == net.trunk.settings
    again = PolicyNet.of(found.network)
    assert not again.training and all(p.requires_grad for p in again.parameters()), "what was read can be trained on"
    for (name, one), other in zip(net.state_dict().items(), again.state_dict().values(), strict=True):
        exact = name.endswith(("_mean", "_scale"))
        assert torch.equal(one, other) if exact else torch.equal(one.half().float(), other), name
    for observation, was in zip(
        every_observation(), Policy(net.network(), ABOUT).propose(every_observation()), strict=True
    ):
        assert values(found.propose([observation])[0]) == pytest.approx(values(was), abs=2e-2)
    save_policy(found, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_a_policy_warm_started_from_the_predictor_has_its_network() -> None:
    source = read(SHIPPED).nets[0]
    network = PolicyNet(trunk=Net.of(source)).network()
    assert all(np.array_equal(network.numbers[f"trunk.{name}"], values) for name, values in source.numbers.items())
    assert sum(values.size for values in network.numbers.values()) * 2 < MOST_BYTES


def test_a_policy_too_large_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors_module, "MOST_BYTES", 1000)
    with pytest.raises(DataError, match=r"would have \d+ bytes, more than 1000"):
        save_policy(Policy(PolicyNet(SMALL).network(), ABOUT), tmp_path / "policy.safetensors")
    assert not list(tmp_path.iterdir())


def written(path: Path, **changes: Any) -> Path:
    """A policy's file with something changed in its header, or in its tensors."""
    save_policy(Policy(PolicyNet(SMALL).network(), ABOUT), path)
    tensors = load_file(path)
    report = {
        "format": policy_module.FORMAT,
        "features_version": FEATURES_VERSION,
        "action_features": list(policy_module.ACTION_FEATURES),
        "about": asdict(ABOUT),
        "trunk": asdict(SMALL),
    }
    tensors.update({name: value for name, value in changes.items() if isinstance(value, torch.Tensor)})
    report.update({name: value for name, value in changes.items() if not isinstance(value, torch.Tensor)})
    save_file({name: value for name, value in tensors.items() if value.numel()}, path, {"kcg": json.dumps(report)})
    return path


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "other features": ({"features_version": FEATURES_VERSION + 1}, "sees other features than this kcg has"),
    "other actions": ({"action_features": ["is UPCAST"]}, "sees other features than this kcg has"),
    "foreign": ({"format": "kcg-predictor-1"}, "is no policy"),
    "no trunk": ({"trunk": {}, "about": {}}, "does not hold what it says"),
    "of words": ({"trunk": asdict(SMALL) | {"hidden": "16"}}, "does not hold what it says"),
    "huge": ({"trunk": asdict(SMALL) | {"hidden": 1 << 20}}, "does not hold what it says"),
    "larger": ({"trunk": asdict(SMALL) | {"hidden": 32}}, "does not hold what it says"),
    "deeper": ({"trunk": asdict(SMALL) | {"layers": 2}}, "does not hold what it says"),
    "unheard": ({"trunk": asdict(SMALL) | {"width": 2}}, "does not hold what it says"),
    "attention": ({"trunk": asdict(SMALL) | {"compare": True, "hidden": 10}}, "does not hold what it says"),
    "shape": ({"score.4.bias": torch.zeros(3)}, "does not hold what it says"),
    "missing": ({"score.4.bias": torch.zeros(0)}, "does not hold what it says"),
    "about": ({"about": {"name": "x"}}, "does not hold what it says"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_no_policy_of_this_kcg_is_one_line(name: str, tmp_path: Path) -> None:
    changes, message = BROKEN[name]
    assert read_policy(written(tmp_path / "right.safetensors")).about == ABOUT
    with pytest.raises(DataError, match=message) as caught:
        read_policy(written(tmp_path / "wrong.safetensors", **changes))
    assert "\n" not in str(caught.value) and "wrong.safetensors" in str(caught.value)


def test_a_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    whole = written(tmp_path / "policy.safetensors").read_bytes()
    for content in (b"", b"no", b"\x80\x04K*.", whole[:100], whole[: len(whole) // 2], b"\xff" * 64):
        path = tmp_path / "cut.safetensors"
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read") as caught:
            read_policy(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="there is no policy"):
        read_policy(tmp_path / "nowhere.safetensors")
    with pytest.raises(DataError, match="cannot be read"):
        read_policy(tmp_path)
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    for foreign in (tmp_path / "other.safetensors", SHIPPED):
        with pytest.raises(DataError, match="is no policy"):
            read_policy(foreign)
