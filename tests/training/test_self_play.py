"""Self-play: what a search visits becomes examples, and a policy learns to foretell them."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kcg.kernel.opts.schedule import RAW
from kcg.predictor.training_data import keep, kept
from kcg.rl.observation import Observer
from kcg.training.policy import ExampleSet, LearningSettings, judge, learn, losses
from kcg.training.policy_network import PolicyNet, batch_of
from kcg.training.self_play import (
    LEAST_VISITS,
    Examples,
    SelfPlaySettings,
    as_arrays,
    examples_of,
    from_arrays,
    games,
    together,
)
from tests.env_tasks import observer_of
from tests.policies import SMALL, grown, opinionated, roofline

PLAY = SelfPlaySettings(simulations=32, most_steps=3)


@cache
def played(name: str, seed: int = 0) -> Examples:
    observer = observer_of(name)
    found = games(observer, roofline(observer), PLAY, seed=seed)
    assert found is not None
    return found


def test_self_play_gives_shares_values_and_weights() -> None:
    for name in ("matmul", "sum"):
        found = played(name)
        owner = np.repeat(np.arange(len(found)), found.n_rows)
        assert np.bincount(owner, found.chances) == pytest.approx(np.ones(len(found)), abs=1e-5)
        assert (found.chances >= 0).all() and (found.weight > 0).all() and (found.value >= 0).all()
        assert len(found.rows) == len(found.axes) == len(found.chances) == found.n_rows.sum()
        most = np.array([found.chances[owner == i].max() for i in range(len(found))])
        assert (most > 2 / found.n_rows).any() and found.value.max() > 0.05, "there is something to learn"
        assert len(found) == len(found.graphs) == len(found.kernel) > 3


def same(one: Examples, other: Examples) -> bool:
    ours, theirs = as_arrays(one), as_arrays(other)
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
def test_the_same_seed_plays_the_same_games() -> None:
    observer = Observer(observer_of("sum").space)
    again = games(observer, roofline(observer), PLAY)
    assert again is not None and same(again, played("sum")) and not same(played("sum", 1), played("sum"))


@pytest.mark.parametrize("name", ["no step", "no axis"])
def test_a_kernel_without_a_legal_step_teaches_nothing(name: str) -> None:
    assert games(observer_of(name), roofline(observer_of(name)), PLAY) is None


def test_a_kernel_of_one_step_teaches_whether_to_take_it() -> None:
    found = played("one step")
    assert found.n_rows.tolist() == [2] and found.chances.sum() == pytest.approx(1.0)


def test_schedules_that_were_visited_rarely_are_left_out() -> None:
    graph = grown()
    assert examples_of(observer_of("matmul"), graph) is None, "nothing was visited"
    assert LEAST_VISITS > 1


def test_examples_survive_a_file_and_stand_together(tmp_path: Path) -> None:
    keep(as_arrays(played("matmul")), tmp_path / "a.npz")
    found = kept(tmp_path / "a.npz", from_arrays)
    assert found is not None and same(found, played("matmul"))
    both = together([played("matmul"), played("sum"), found])
    assert len(both) == 2 * len(found) + len(played("sum")) and len(both.kernel_x) == len(both.target_x) == 3
    assert np.array_equal(both.kernel_x[both.kernel[-1]], found.kernel_x[0])
    assert np.array_equal(both.kernel_x[both.kernel[len(found)]], played("sum").kernel_x[0])


# Learning


def test_an_example_set_gathers_what_batch_of_makes_of_the_observations() -> None:
    observer = observer_of("matmul")
    examples = together([played("sum"), played("matmul")])
    data, index = ExampleSet(examples), torch.tensor([len(examples) - 1, 0, 2])
    batch, chances, value, weight = data.chosen(index)
    net = opinionated().eval()
    first = int(examples.n_rows[:-1].sum())
    assert chances[: examples.n_rows[-1]].tolist() == examples.chances[first:].tolist()
    assert value.tolist() == examples.value[index].tolist() and weight.tolist() == examples.weight[index].tolist()
    with torch.no_grad():
        cross, _ = losses(net, (batch, chances, value, weight))
        for i, place in enumerate(index.tolist()):
            alone, _ = losses(net, data.chosen(torch.tensor([place])))
            assert float(cross[i]) == pytest.approx(float(alone[0]), abs=1e-4)
        observation = observer.observe(RAW)
        places = [
            i
            for i in range(len(examples))
            if examples.n_rows[i] == len(observation.rows)
            and np.array_equal(examples.graphs.take(np.array([i])).schedule, observation.graph.schedule)
        ]
        logits, values = net(data.chosen(torch.tensor(places[:1]))[0])
        ours, our_value = net(batch_of([observation]))
    assert torch.allclose(logits, ours, atol=1e-5) and torch.allclose(values, our_value, atol=1e-5)


@pytest.mark.slow
def test_learning_predicts_the_visits_better() -> None:
    ours = together([played(name) for name in ("matmul", "sum", "rows")])
    others = together([played("other matmul")])
    torch.manual_seed(0)
    net = PolicyNet(SMALL)
    net.trunk.fit_scale(ExampleSet(ours).batch(torch.arange(len(ours))), torch.zeros(1))
    before = [judge(net, ExampleSet(examples)) for examples in (ours, others)]
    report: list[tuple[int, float]] = []
    settings = LearningSettings(epochs=20, batch=8, learning_rate=8e-3, trunk_rate=1.0)
    learn(net, ours, others, settings, report=lambda epoch, loss, found: report.append((epoch, loss)))
    after = [judge(net, ExampleSet(examples)) for examples in (ours, others)]
    assert [epoch for epoch, _ in report] == list(range(20)) and report[-1][1] < report[0][1] and not net.training
    assert 0 < after[0].cross_entropy < 0.8 * before[0].cross_entropy
    assert after[0].agreement > 1.2 * before[0].agreement and after[0].value_error < 0.5 * before[0].value_error
    assert after[1].value_error < before[1].value_error, "what is to be gained, also of a kernel that it never saw"


def test_learning_repeats_itself() -> None:
    def learned() -> list[float]:
        losses_of: list[float] = []
        settings = LearningSettings(epochs=2, batch=16, seed=3)
        learn(opinionated(), played("sum"), None, settings, report=lambda epoch, loss, found: losses_of.append(loss))
        return losses_of

    assert learned() == learned()


def test_a_perfect_policy_has_no_cross_entropy_left() -> None:
    examples = played("one step")
    judged = judge(opinionated(), ExampleSet(examples))
    assert judged.cross_entropy > 0

    class Perfect(PolicyNet):
        def forward(self, batch: Any) -> Any:
            return torch.from_numpy(examples.chances).clamp(min=1e-9).log(), torch.from_numpy(examples.value)

    perfect = judge(Perfect(SMALL), ExampleSet(examples))
    assert perfect.cross_entropy == pytest.approx(0.0, abs=1e-5) and perfect.value_error == 0.0
    assert perfect.agreement == pytest.approx(examples.chances.max())
    assert {f.name for f in fields(perfect)} == {"cross_entropy", "agreement", "value_error"}
