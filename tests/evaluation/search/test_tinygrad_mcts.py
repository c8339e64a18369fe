"""The tree search that tinygrad once had: what it measures, in which order, and what it leaves alone."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from replay_table import RECORDED, chain_table, recorded, synthetic_table, tree_table

from evaluation.search.comparison import Contender
from evaluation.search.strategies import strategy
from evaluation.search.tinygrad_mcts import Node, _descend, _next
from kcg.errors import UnknownName
from kcg.search.problem import Observation, Problem, Trials
from kcg.search.replay import ReplayTable, constant_predict
from kcg.types import RAW, Prediction, Schedule, Status

GOLDEN = {"gpt2": (1.936, 24), "rope": (1.153, 24), "flux": (1.252, 24)}


def unasked(schedules: Sequence[Schedule]) -> list[Prediction]:
    raise AssertionError("it predicts nothing")


def run(table: ReplayTable, *, name: str = "tinygrad-mcts", seed: int = 0, budget: int | None = None) -> list[str]:
    """The keys of what was measured, in order."""
    return [table.key(o.schedule) for o in observed(table.problem(unasked, seed=seed, max_measurements=budget), name)]


def observed(problem: Problem, name: str = "tinygrad-mcts") -> list[Observation]:
    return list(strategy(name)(problem))


def test_a_search_of_a_recorded_kernel_finds_what_it_found_before() -> None:
    """Of each kernel: the best found over the optimum, with 24 measurements, and how many were made."""
    found = {}
    for kernel in RECORDED:
        table = recorded(kernel)
        problem = table.problem(unasked, seed=1, max_measurements=24)
        fastest_s = min(o.time_s for o in observed(problem))
        found[kernel] = (round(fastest_s / table.best_s, 3), problem.ledger.measurements)
    assert found == GOLDEN


@pytest.mark.parametrize("kernel", RECORDED)
def test_every_first_step_is_measured_before_any_second(kernel: str) -> None:
    """Those that are the same kernel or binary once."""
    table = recorded(kernel)
    first = {table.key(action.schedule) for action in table.actions(RAW)}
    binaries = {table.records[a.schedule].observation.binary_hash for a in table.actions(RAW)}
    measured = run(table, budget=200)[1:]
    began = next(i for i, key in enumerate(measured) if key not in first)
    assert set(measured[:began]) <= first
    hashes = {r.key: r.observation.binary_hash for r in table.records.values()}
    assert {hashes[key] for key in measured[:began]} >= binaries - {
        table.records[table.baseline()].observation.binary_hash
    }


@pytest.mark.parametrize("seed", range(3))
def test_it_returns_to_where_it_was_fast(seed: int) -> None:
    """Below one of four first steps all is 20 times faster: of 60 measurements most are made there."""
    runtimes = {"": (90.0, "0")}
    for one in "abcd":
        for more in ("", *"efghijkl", *(x + y for x in "efghijkl" for y in "mnop")):
            runtimes[one + more] = (2.0 if one == "b" else 40.0, one + more)
    measured = run(tree_table(runtimes), seed=seed, budget=60)
    assert sum(key.startswith("b") for key in measured) > 0.5 * len(measured)


def test_runtimes_go_up_as_the_best_of_all_below() -> None:
    root = Node(RAW, None)
    child = Node(RAW, root)
    for time_s in (5e-6, 2e-6, 9e-6, math.inf):
        child.back_up(time_s)
    root.back_up(4e-6)
    assert (child.best_s, child.visits, root.best_s, root.visits) == (2e-6, 4, 2e-6, 5)


def test_a_child_is_drawn_by_its_upper_confidence_bound() -> None:
    """The frequencies of 20,000 draws are those of the formula, worked out by hand."""
    root = Node(RAW, None, visits=12)
    root.children = [
        Node(RAW, root, best_s=b * 1e-6, visits=n) for b, n in ((1.0, 6), (2.0, 3), (1.5, 1), (math.inf, 2))
    ]
    bounds = [
        -1.0 + math.sqrt(2 * math.log(12) / 6),
        -2.0 + math.sqrt(2 * math.log(12) / 3),
        -1.5 + math.sqrt(2 * math.log(12)),
    ]
    weights = [math.exp(bound / 0.5) for bound in bounds]
    rng, drawn = random.Random(0), [0, 0, 0, 0]
    for _ in range(20_000):
        drawn[root.children.index(_descend(root, 1e-6, rng))] += 1
    assert drawn[3] == 0
    for count, weight in zip(drawn, weights, strict=False):
        assert count / 20_000 == pytest.approx(weight / sum(weights), abs=0.012)


@pytest.mark.parametrize("seed", range(4))
def test_below_what_has_the_binary_of_another_nothing_is_measured(seed: int) -> None:
    table = tree_table({"": (9.0, "0"), "a": (8.0, "1"), "b": (8.0, "1"), "ac": (3.0, "2"), "bd": (3.0, "3")})
    measured = run(table, seed=seed)
    assert measured[0] == "" and set(measured) in ({"", "a", "b", "ac"}, {"", "a", "b", "bd"})


def test_below_what_fails_nothing_is_measured() -> None:
    """Neither of a road that fails at its second step, nor beside one that goes on."""
    assert run(chain_table([5e-6, 4e-6, None, 1e-6])) == ["0", "1", "2"]
    whole = tree_table({"": (9.0, "0"), "a": (8.0, "1"), "b": (7.0, "2"), "ac": (1.0, "3"), "bd": (2.0, "4")})
    broken = whole.records[whole.actions(RAW)[0].schedule]
    failed = replace(broken, observation=replace(broken.observation, status=Status.COMPILE_ERROR, runtime_s=None))
    table = ReplayTable([failed if r is broken else r for r in whole.records.values()], start=RAW, baseline=RAW)
    assert sorted(run(table)) == ["", "a", "b", "bd"]


def test_a_tree_without_equal_kernels_is_measured_whole_and_then_it_ends() -> None:
    paths = ["a", "b", "c", "ab", "ac", "ba", "abc", "abd", "bac"]
    runtimes = {path: (1.0 + i, path) for i, path in enumerate(["", *paths])}
    assert sorted(run(tree_table(runtimes))) == sorted(runtimes)


def test_a_kernel_reached_by_several_orders_of_steps_is_measured_once() -> None:
    measured = run(synthetic_table())
    assert len(set(measured)) == len(measured) > 60


@pytest.mark.parametrize("count", [1, 5, 40])
def test_it_ends_after_as_many_binaries_as_it_was_given(count: int) -> None:
    """Beside the baseline; what fails without a binary counts too."""
    table = recorded("flux")
    problem = table.problem(unasked)
    found = observed(problem, f"tinygrad-mcts:{count}")
    failed = sum(not o.binary_hash for o in found)
    assert problem.ledger.measurements + failed == count + 1


def test_where_it_goes_on_what_is_known_is_taken_in_and_not_measured_again() -> None:
    table = recorded("gpt2")
    before = table.problem(unasked, seed=3, max_measurements=30)
    observed(before)
    after = table.problem(unasked, seed=3, max_measurements=10)
    after.known = dict(before.known)
    found = observed(after)
    assert len(found) >= 10 and not {o.schedule for o in found} & set(before.known)


def test_nothing_is_left_once_every_child_of_the_root_is_removed() -> None:
    table = chain_table([5e-6])
    assert _next(Trials(table.problem(constant_predict())), Node(RAW, None), 1e-6, random.Random(0)) is None


def test_it_is_named_like_the_others() -> None:
    assert Contender.of("tinygrad-mcts:100").search() is not None
    assert not Contender.of("tinygrad-mcts").needs_policy
    for bad in ("tinygrad-mcts:0", "tinygrad-mcts:", "tinygrad-mcts:x"):
        with pytest.raises(UnknownName):
            strategy(bad)
