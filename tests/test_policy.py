"""A policy scores actions by what they are, leads a tree search that measuring corrects, and learns what it visits."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replay_table import KERNELS, chain_table, synthetic_table
from safetensors.torch import load_file, save_file
from torch import nn

from kcg.errors import DataError
from kcg.kernel.codec import kernel_of
from kcg.kernel.space import KernelSpace
from kcg.kernel.targets import KNOWN_TARGETS
from kcg.predictor import choice
from kcg.predictor import tensors as tensors_module
from kcg.predictor.checkpoint import read
from kcg.predictor.features import FEATURES_VERSION
from kcg.predictor.gnn import NetSettings
from kcg.predictor.kernel_jobs import keep, kept
from kcg.predictor.roofline import Roofline
from kcg.predictor.tensors import MOST_BYTES
from kcg.predictor.views import View, Viewer
from kcg.search import policy as policy_module
from kcg.search.interface import Ledger, Predict, Proposal, Propose, best
from kcg.search.mcts import Graph, MctsSettings, mcts
from kcg.search.policy import Policy, PolicyAbout, PolicyNet, batch_of, read_policy, save_policy, uniform
from kcg.search.policy_learning import ExampleSet, LearningSettings, judge, learn, losses
from kcg.search.replay import ReplayTable, constant_predict, inverted_predict, noisy_predict, oracle_predict
from kcg.search.self_play import (
    LEAST_VISITS,
    Examples,
    SelfPlaySettings,
    as_arrays,
    examples_of,
    from_arrays,
    games,
    together,
)
from kcg.search.tables import read_tables
from kcg.search.trials import Trials
from kcg.types import RAW, Prediction, Region, Schedule
from tests.kernels import empty, example_ast, kernels_of

DATASET = Path(__file__).parent.parent / "datasets" / "h200"
RECORDED = "2ba8d632"
SHIPPED = choice.SHIPPED / "cuda.safetensors"
SMALL = NetSettings(hidden=16, layers=1)
DEFAULTS = MctsSettings()
ABOUT = PolicyAbout("tiny", ("f",), (("kernels.parquet", "c"),), "workload", {"x": 0.5}, "r", {"seed": 1})


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@cache
def viewer_of(name: str) -> Viewer:
    made = {
        "matmul": lambda: empty(64, 96) @ empty(96, 80), "sum": lambda: empty(64, 48).sum(1),
        "rows": lambda: empty(256, 64).exp().contiguous(), "one step": lambda: empty(11) + 1,
        "other matmul": lambda: empty(48, 64) @ empty(64, 32), "no step": lambda: empty(17) + 1,
        "no axis": lambda: empty(1) + 1, "copy": lambda: empty(8, 4).permute(1, 0).contiguous(),
    }  # fmt: skip
    ast = kernels_of(made[name]())[-1] if name in made else example_ast(name)
    return Viewer(KernelSpace(Region((kernel_of(ast),)), KNOWN_TARGETS["sm_90"]))


def roofline(viewer: Viewer) -> Predict:
    return Roofline().of(viewer.space).predict


def views_of(name: str) -> list[View]:
    viewer = viewer_of(name)
    return viewer.views([RAW, viewer.space.baseline(), *(step.schedule for step in viewer.space.actions(RAW)[:4])])


EVERY = ("matmul", "softmax.1", "conv2d", "matmul_f16", "cache_update.1", "copy", "one step", "no step", "no axis")


@cache
def every_view() -> list[View]:
    """Of kernels of every kind."""
    return [view for name in EVERY for view in views_of(name)]


def opinionated(seed: int = 0, settings: NetSettings = SMALL) -> PolicyNet:
    """Random, and not uniform as a new policy is."""
    torch.manual_seed(seed)
    net = PolicyNet(settings)
    last = net.score[-1]
    assert isinstance(last, nn.Linear)
    nn.init.normal_(last.weight, std=2.0)
    return net


def said(proposal: Proposal) -> list[float]:
    return [*proposal.steps, proposal.stop, proposal.value]


# What a policy says


def test_a_new_policy_takes_every_legal_step_as_often() -> None:
    for net in (PolicyNet(SMALL), PolicyNet(trunk=read(SHIPPED).nets[0])):
        for view, proposal in zip(every_view(), Policy(net, ABOUT).propose(every_view()), strict=True):
            assert len(proposal.steps) == len(view.steps)
            assert [*proposal.steps, proposal.stop] == pytest.approx([1 / len(view.rows)] * len(view.rows))
    for name in ("matmul", "no step"):
        viewer = viewer_of(name)
        assert said(uniform(viewer)([RAW])[0])[:-1] == pytest.approx(said(Policy(net, ABOUT).of(viewer)([RAW])[0])[:-1])


def test_probabilities_sum_to_one_and_are_the_same_in_any_batch() -> None:
    policy = Policy(opinionated(), ABOUT)
    together_ = policy.propose(every_view())
    assert max(max(p.steps, default=0) for p in together_) > 0.5, "it has opinions"
    for view, proposal in zip(every_view(), together_, strict=True):
        assert sum(proposal.steps) + proposal.stop == pytest.approx(1.0, abs=1e-5)
        assert min(said(proposal)[:-1]) >= 0 and math.isfinite(proposal.value)
        assert said(policy.propose([view])[0]) == pytest.approx(said(proposal), abs=1e-4)
    assert policy.propose([]) == []


def permuted(view: View, order: Sequence[int]) -> View:
    """The same with its actions in another order."""
    rows = [*order, len(view.steps)]
    changed = replace(view.rows, features=view.rows.features[rows], axes=view.rows.axes[rows])
    return replace(view, steps=tuple(view.steps[i] for i in order), rows=changed)


def test_permuted_actions_have_permuted_probabilities() -> None:
    policy, rng = Policy(opinionated(), ABOUT), random.Random(0)
    for view in every_view():
        order = rng.sample(range(len(view.steps)), len(view.steps))
        before, after = policy.propose([view])[0], policy.propose([permuted(view, order)])[0]
        assert after.steps == pytest.approx([before.steps[i] for i in order], abs=1e-5)
        assert (after.stop, after.value) == pytest.approx((before.stop, before.value), abs=1e-5)


def test_actions_that_are_the_same_are_as_likely_wherever_they_stand() -> None:
    (view, *_), policy = views_of("matmul"), Policy(opinionated(), ABOUT)
    order = [*range(len(view.steps)), 3, 0, 3]
    steps = policy.propose([permuted(view, order)])[0].steps
    assert steps[-3:] == pytest.approx([steps[3], steps[0], steps[3]], rel=1e-4)


def test_an_action_is_scored_by_its_axes_too() -> None:
    (view, *_), net = views_of("matmul"), opinionated()
    blind = replace(view, rows=replace(view.rows, axes=np.full_like(view.rows.axes, -1)))
    seen, unseen = (Policy(net, ABOUT).propose([v])[0].steps for v in (view, blind))
    assert np.abs(np.subtract(seen, unseen)).max() > 1e-3


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["score", "value", "trunk"])
def test_weights_that_are_not_numbers_never_give_proposals_that_are_not(broken: float, where: str) -> None:
    net = opinionated()
    with torch.no_grad():
        for parameter in getattr(net, where).parameters():
            parameter.fill_(broken)
    for view, proposal in zip(every_view(), Policy(net, ABOUT).propose(every_view()), strict=True):
        assert all(math.isfinite(x) for x in said(proposal)) and len(proposal.steps) == len(view.steps)
        assert sum(proposal.steps) + proposal.stop == pytest.approx(1.0, abs=1e-5)


# Files


def test_a_policy_reads_back_as_it_was_but_for_rounding(tmp_path: Path) -> None:
    net = opinionated(settings=NetSettings(hidden=24, layers=2, dropout=0.0))
    net.trunk.fit_scale(batch_of(every_view()).graphs, torch.zeros(1))
    path = tmp_path / "new" / "policy.safetensors"
    save_policy(Policy(net, ABOUT), path)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    found = read_policy(path)
    assert found.about == ABOUT and found.net.trunk.settings == net.trunk.settings and not found.net.training
    for (name, one), other in zip(net.state_dict().items(), found.net.state_dict().values(), strict=True):
        exact = name.endswith(("_mean", "_scale"))
        assert torch.equal(one, other) if exact else torch.equal(one.half().float(), other), name
    for view, was in zip(every_view(), Policy(net, ABOUT).propose(every_view()), strict=True):
        assert said(found.propose([view])[0]) == pytest.approx(said(was), abs=2e-2)
    again = tmp_path / "again.safetensors"
    save_policy(found, again)
    assert again.read_bytes() == path.read_bytes()
    assert all(p.requires_grad for p in found.net.parameters()), "what was read can be trained on"


def test_a_policy_warm_started_from_the_predictor_has_its_network() -> None:
    source = read(SHIPPED).nets[0]
    net = PolicyNet(trunk=source)
    assert net.trunk is source and sum(p.numel() for p in net.parameters()) * 2 < MOST_BYTES


def test_a_policy_too_large_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors_module, "MOST_BYTES", 1000)
    with pytest.raises(DataError, match=r"would have \d+ bytes, more than 1000"):
        save_policy(Policy(PolicyNet(SMALL), ABOUT), tmp_path / "policy.safetensors")
    assert not list(tmp_path.iterdir())


def written(path: Path, **changes: Any) -> Path:
    """A policy's file with something changed in its header, or in its tensors."""
    save_policy(Policy(PolicyNet(SMALL), ABOUT), path)
    tensors = load_file(path)
    told = {
        "format": policy_module.FORMAT, "features_version": FEATURES_VERSION,
        "action_features": list(policy_module.ACTION_FEATURES), "about": asdict(ABOUT), "trunk": asdict(SMALL),
    }  # fmt: skip
    tensors.update({name: value for name, value in changes.items() if isinstance(value, torch.Tensor)})
    told.update({name: value for name, value in changes.items() if not isinstance(value, torch.Tensor)})
    save_file({name: value for name, value in tensors.items() if value.numel()}, path, {"kcg": json.dumps(told)})
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


# The tree search with a policy


@cache
def recorded() -> ReplayTable:
    import pyarrow.parquet as parquet

    ids = parquet.read_table(DATASET / "replay.parquet", columns=["region_id"])["region_id"].to_pylist()
    (named,) = read_tables(DATASET, regions=[i for i in ids if i.startswith(RECORDED)])
    return named.table


@cache
def tables() -> list[ReplayTable]:
    return [synthetic_table(), recorded()]


@cache
def even(table: ReplayTable) -> Propose:
    """Every step and stopping alike."""
    counts = {s: 1 + len(table.actions(s)) for s in table.records}
    return lambda schedules: [Proposal(1 / (n := counts[s]), (1 / n,) * (n - 1)) for s in schedules]


@cache
def knowing(table: ReplayTable, *, sign: float = 1.0) -> Propose:
    """Prefers steps by the best within reach of them, and stops where nothing better is; with sign -1 the reverse."""
    reach = {s: r.observation.time_s for s, r in table.records.items()}
    changed = True
    while changed:  # steps may lead in circles
        after = {s: min([t, *(reach[a.schedule] for a in table.records[s].actions)]) for s, t in reach.items()}
        changed, reach = after != reach, after

    def propose(schedules: Sequence[Schedule]) -> list[Proposal]:
        answers = []
        for schedule in schedules:
            ends = [table.records[schedule].observation.time_s, *(reach[a.schedule] for a in table.actions(schedule))]
            weights = [end_s ** (-4.0 * sign) if math.isfinite(end_s) else 0.0 for end_s in ends]
            total = sum(weights) or 1.0
            answers.append(Proposal(weights[0] / total, tuple(w / total for w in weights[1:])))
        return answers

    return propose


def misled(table: ReplayTable) -> Propose:
    """Prefers what leads astray."""
    return knowing(table, sign=-1.0)


def searched(
    table: ReplayTable, predict: Predict, propose: Propose | None, *, seed: int = 0,
    settings: MctsSettings = DEFAULTS, **limits: int,
) -> tuple[float, Ledger]:  # fmt: skip
    """The best runtime found over the optimum of the table, and what it cost."""
    ledger = Ledger(**limits)
    problem = table.problem(predict, seed=seed, ledger=ledger)
    problem.propose = propose
    found = best(mcts(problem, settings=settings))
    assert found is not None
    return found.time_s / table.best_s, ledger


def evaluations_needed(table: ReplayTable, predict: Predict, propose: Propose, *, seed: int) -> int:
    """Until a schedule within 2 % of the optimum is measured."""
    problem = table.problem(predict, seed=seed)
    problem.propose = propose
    for seen in mcts(problem, settings=MctsSettings(widen=4, expansions=4)):
        if seen.time_s <= 1.02 * table.best_s:
            break
    return problem.ledger.evaluations


def test_a_policy_that_knows_the_way_needs_fewer_evaluations() -> None:
    needed = {
        make: sum(
            evaluations_needed(table, noisy_predict(table, sigma=2.0, seed=seed), make(table), seed=seed)
            for table, seed in itertools.product(tables(), range(2))
        )
        for make in (knowing, even)
    }
    assert needed[knowing] < 0.7 * needed[even], needed


def test_with_few_evaluations_it_finds_what_a_uniform_policy_does_not() -> None:
    settings, table = MctsSettings(widen=2, expansions=4), synthetic_table()
    for seed in range(3):
        knew, _ = searched(table, constant_predict(), knowing(table), seed=seed, settings=settings, max_evaluations=50)
        did_not, _ = searched(table, constant_predict(), even(table), seed=seed, settings=settings, max_evaluations=50)
        assert knew < 1.02 and did_not > 1.2


@pytest.mark.parametrize(("predictor", "make"), [("constant", even), ("inverted", knowing), ("inverted", misled)])
def test_a_useless_predictor_and_policy_are_overcome_by_measuring(make: Any, predictor: str) -> None:
    for table in tables():
        predict = constant_predict() if predictor == "constant" else inverted_predict(table)
        baseline_s = table.records[table.baseline()].observation.time_s
        found = [
            searched(table, predict, make(table), seed=1, max_measurements=n)[0] * table.best_s / baseline_s
            for n in (1, 96)
        ]
        assert found[0] == 1.0 and found[1] < 0.8


@pytest.mark.parametrize("widen", [2, 12])
@pytest.mark.parametrize("limit", [1, 2, 10, 37, 100])
def test_evaluations_end_within_a_batch_of_children(limit: int, widen: int) -> None:
    for table in tables():
        settings = MctsSettings(widen=widen)
        ratio, ledger = searched(table, oracle_predict(table), even(table), settings=settings, max_evaluations=limit)
        assert min(limit, 2) <= ledger.evaluations < max(limit, 2) + widen
        assert ledger.measurements >= 1 and ratio < math.inf, "what was found is still measured"
        _, ledger = searched(table, oracle_predict(table), None, max_evaluations=limit)
        most = max(len(r.actions) for r in table.records.values())
        assert ledger.evaluations < max(limit, 2) + most


def test_no_evaluation_is_counted_twice() -> None:
    table, asked = synthetic_table(), list[str]()
    oracle = oracle_predict(table)

    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        asked.extend(table.key(s) for s in schedules)
        return oracle(schedules)

    _, ledger = searched(table, predict, even(table), max_measurements=40)
    assert ledger.evaluations == len(asked) == len(set(asked)) < KERNELS


@pytest.mark.parametrize(("make", "widen"), [(even, 1), (knowing, 2), (even, 2), (knowing, 12)])
def test_progressive_widening_reaches_every_schedule_in_the_end(make: Any, widen: int) -> None:
    table = synthetic_table()
    problem = table.problem(constant_predict(), batch_size=32)
    problem.propose = make(table)
    seen = [table.key(o.schedule) for o in mcts(problem, settings=MctsSettings(widen=widen, simulations=64))]
    assert len(seen) == len(set(seen)) == KERNELS


@pytest.mark.parametrize("widen", [1, 3])
def test_what_is_exhausted_is_closed(widen: int) -> None:
    """The last choices of a node may all be closed from elsewhere before it is widened to them."""
    table = synthetic_table()
    problem = table.problem(constant_predict())
    problem.propose = even(table)
    trials = Trials(problem)
    graph = Graph(trials, MctsSettings(widen=widen))
    while True:
        for _ in range(16):
            graph.simulate()
        if batch := graph.candidates(32):
            list(trials.measure(batch))
            graph.learn()
        elif (node := graph.frontier()) is None:
            break
        elif node.held_back:
            graph.widen(node)
        else:
            graph.expand(node)
    assert len(graph.nodes) == KERNELS and all(node.closed for node in graph.nodes.values())
    assert graph.simulate() is False


def grown(propose: Propose | None, *, widen: int = 12, seed: int = 0) -> Graph:
    table = synthetic_table()
    problem = table.problem(oracle_predict(table), seed=seed)
    problem.propose = propose
    return Graph(Trials(problem), MctsSettings(widen=widen))


def test_the_policys_first_choices_are_predicted_first() -> None:
    table = synthetic_table()
    propose = knowing(table)
    graph = grown(propose, widen=3)
    node = graph.nodes[table.key(table.start())]
    graph.expand(node)
    (proposal,) = propose([table.start()])
    chances = dict(zip((a.schedule for a in table.actions(table.start())), proposal.steps, strict=True))
    order = sorted(chances, key=lambda s: -chances[s])
    assert node.children is not None and [c.schedule for c in node.children] == order[:3]
    assert node.priors == [chances[s] for s in order[:3]] and node.stop_prior == proposal.stop
    assert [s for s, _ in node.held_back] == order[3:]
    visits = 0
    while len(node.children) == 3:
        assert visits <= 3
        graph.simulate(node)
        visits = sum(node.visits)
    assert [c.schedule for c in node.children] == order[:6] and len(node.priors) == len(node.visits) == 6


def test_without_a_prior_every_option_is_as_likely() -> None:
    table = synthetic_table()
    problem = table.problem(oracle_predict(table))
    graph = Graph(Trials(problem), MctsSettings(predictor_prior=False))
    node = graph.nodes[table.key(table.start())]
    graph.expand(node)
    options = [(-1, node.own, node.own, 0), *((i, c.own, c.value, 0) for i, c in enumerate(node.children or ()))]
    assert graph._priors(node, options) == pytest.approx([1 / len(options)] * len(options))
    ignoring = table.problem(oracle_predict(table))
    ignoring.propose = lambda schedules: pytest.fail("it is not asked")
    Graph(Trials(ignoring), MctsSettings(policy=False)).simulate()


@pytest.mark.parametrize("led", [False, True])
def test_noise_stirs_the_priors_and_they_stay_shares(led: bool) -> None:
    table = synthetic_table()

    def stirred(share: float, seed: int = 0) -> tuple[Graph, Any, list[float]]:
        graph = grown(knowing(table) if led else None, widen=4, seed=seed)
        node = graph.nodes[table.key(table.start())]
        graph.stir(node, share=share, alpha=0.3)
        return graph, node, [node.stop_prior, *node.priors]

    graph, node, calm = stirred(0.0)
    _, _, noisy = stirred(0.25)
    assert sum(calm) == pytest.approx(1.0) == sum(noisy)
    assert stirred(0.25)[2] == noisy and stirred(0.25, seed=1)[2] != noisy != calm
    assert all(abs(a - b) <= 0.25 for a, b in zip(calm, noisy, strict=True)) and min(noisy) >= 0
    if led:
        assert calm[1:] == sorted(calm[1:], reverse=True), "in the order of the policy"
    for _ in range(200):  # it goes on, also where it is widened
        graph.simulate(node)
    assert node.children is not None and len(node.priors) == len(node.children) == len(node.visits)
    assert sum(node.visits) + node.stops > 100


def test_simulations_that_begin_at_a_node_stay_below_it() -> None:
    table = synthetic_table()
    graph = grown(even(table))
    begin = graph.nodes[table.key(table.baseline())]
    for _ in range(40):
        graph.simulate(begin)
    steps = {str(o) for o in table.baseline().opts}
    expanded = [n for n in graph.nodes.values() if n.children is not None]
    assert len(expanded) > 5 and all(steps <= {str(o) for o in n.schedule.opts} for n in expanded)


@pytest.mark.parametrize("runtimes", [[4e-6], [4e-6, 2e-6], [None, 2e-6], [4e-6, None]])
def test_one_step_none_and_failures_with_a_policy(runtimes: list[float | None]) -> None:
    table = chain_table(runtimes, baseline=len(runtimes) - 1 if runtimes[0] is None else 0)
    problem = table.problem(constant_predict())
    problem.propose = even(table)
    assert len(list(mcts(problem))) == len(runtimes)


# Self-play


PLAY = SelfPlaySettings(simulations=32, most_steps=3)


@cache
def played(name: str, seed: int = 0) -> Examples:
    viewer = viewer_of(name)
    found = games(viewer, roofline(viewer), PLAY, seed=seed)
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


def test_the_same_seed_plays_the_same_games() -> None:
    viewer = Viewer(viewer_of("sum").space)
    again = games(viewer, roofline(viewer), PLAY)
    assert again is not None and same(again, played("sum")) and not same(played("sum", 1), played("sum"))


@pytest.mark.parametrize("name", ["no step", "no axis"])
def test_a_kernel_without_a_legal_step_teaches_nothing(name: str) -> None:
    assert games(viewer_of(name), roofline(viewer_of(name)), PLAY) is None


def test_a_kernel_of_one_step_teaches_whether_to_take_it() -> None:
    found = played("one step")
    assert found.n_rows.tolist() == [2] and found.chances.sum() == pytest.approx(1.0)


def test_self_play_with_a_policy_follows_it() -> None:
    viewer = viewer_of("sum")
    found = games(viewer, roofline(viewer), PLAY, propose=uniform(viewer))
    assert found is not None and not same(found, played("sum"))
    assert np.bincount(np.repeat(np.arange(len(found)), found.n_rows), found.chances) == pytest.approx(1.0, abs=1e-5)


def test_schedules_that_were_visited_rarely_are_left_out() -> None:
    graph = grown(None)
    assert examples_of(viewer_of("matmul"), graph) is None, "nothing was visited"
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


def test_an_example_set_gathers_what_batch_of_makes_of_the_views() -> None:
    viewer = viewer_of("matmul")
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
        view = viewer.view(RAW)
        places = [i for i in range(len(examples)) if examples.n_rows[i] == len(view.rows)
                  and np.array_equal(examples.graphs.take(np.array([i])).schedule, view.graph.schedule)]  # fmt: skip
        logits, values = net(data.chosen(torch.tensor(places[:1]))[0])
        ours, our_value = net(batch_of([view]))
    assert torch.allclose(logits, ours, atol=1e-5) and torch.allclose(values, our_value, atol=1e-5)


def test_learning_foretells_the_visits_better() -> None:
    ours = together([played(name) for name in ("matmul", "sum", "rows")])
    others = together([played("other matmul")])
    torch.manual_seed(0)
    net = PolicyNet(SMALL)
    net.trunk.fit_scale(ExampleSet(ours).batch(torch.arange(len(ours))), torch.zeros(1))
    before = [judge(net, ExampleSet(examples)) for examples in (ours, others)]
    told: list[tuple[int, float]] = []
    settings = LearningSettings(epochs=20, batch=8, learning_rate=8e-3, trunk_rate=1.0)
    learn(net, ours, others, settings, told=lambda epoch, loss, found: told.append((epoch, loss)))
    after = [judge(net, ExampleSet(examples)) for examples in (ours, others)]
    assert [epoch for epoch, _ in told] == list(range(20)) and told[-1][1] < told[0][1] and not net.training
    assert 0 < after[0].cross_entropy < 0.8 * before[0].cross_entropy
    assert after[0].agreement > 1.2 * before[0].agreement and after[0].value_error < 0.5 * before[0].value_error
    assert after[1].value_error < before[1].value_error, "what is to be gained, also of a kernel that it never saw"


def test_learning_repeats_itself() -> None:
    def learned() -> list[float]:
        losses_of: list[float] = []
        settings = LearningSettings(epochs=2, batch=16, seed=3)
        learn(opinionated(), played("sum"), None, settings, told=lambda epoch, loss, found: losses_of.append(loss))
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
