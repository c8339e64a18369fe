"""Of schedules that differ only in the order in which a thread does its part, a search measures one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import Opt, opts_of, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.search.allocation import Allocator, Limits, Transfer
from kcg.search.beam import Drafts
from kcg.search.mcts import Graph, MctsSettings, candidates
from kcg.search.problem import STANDS_FOR, Ledger, Trials
from kcg.search.replay import Traits, constant_predict, oracle_predict
from kcg.search.strategies import strategy
from kcg.types import Region, Schedule
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.replay_table import chain_table, synthetic_table

TARGET = KNOWN_TARGETS["sm_90"]


def schedule(*opts: tuple[str, int, int]) -> Schedule:
    return schedule_of([Opt(*opt) for opt in opts])


def matmul() -> KernelSpace:
    (ast,) = kernels_of(empty(96, 96) @ empty(96, 240))
    return KernelSpace(Region((kernel_of(ast),)), TARGET)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ([("UPCAST", 0, 4), ("UPCAST", 1, 2)], [("UPCAST", 1, 2), ("UPCAST", 0, 4)], True),
        ([("UPCAST", 1, 2), ("UPCAST", 1, 3)], [("UPCAST", 1, 3), ("UPCAST", 1, 2)], True),
        ([("LOCAL", 0, 8), ("UPCAST", 0, 3)], [("LOCAL", 0, 8), ("UPCAST", 0, 3), ("UNROLL", 0, 4)], False),
        ([("UPCAST", 0, 2), ("LOCAL", 0, 4)], [("LOCAL", 0, 4), ("UPCAST", 0, 2)], False),  # other elements
        (
            [("UPCAST", 1, 2), ("LOCAL", 1, 5), ("UPCAST", 1, 3)],
            [("UPCAST", 1, 2), ("UPCAST", 1, 3), ("LOCAL", 1, 5)],
            False,
        ),
        ([("LOCAL", 0, 4), ("LOCAL", 1, 2)], [("LOCAL", 1, 2), ("LOCAL", 0, 4)], False),  # which lanes are neighbours
        ([("UPCAST", 0, 4)], [("UPCAST", 0, 4), ("SWAP", 0, 1)], False),  # which blocks are
    ],
)
def test_alike_is_what_only_the_order_within_a_thread_tells_apart(
    one: list[tuple[str, int, int]], other: list[tuple[str, int, int]], alike: bool
) -> None:
    space, (a, b) = matmul(), (schedule(*one), schedule(*other))
    assert space.key(a) != space.key(b)
    assert (space.alike(a) == space.alike(b)) is alike


def test_the_same_kernel_is_alike() -> None:
    space, rng = matmul(), random.Random(1)
    by_key: dict[str, set[str]] = {}
    for _ in range(60):
        found = space.start()
        for _ in range(4):
            found = space.step(found, Opt("UPCAST", rng.randrange(2), rng.choice((2, 3)))) or found
            by_key.setdefault(space.key(found), set()).add(space.alike(found))
    assert {len(alike) for alike in by_key.values()} == {1}
    assert len(by_key) > len(set.union(*by_key.values()))


def steps_taken(found: Schedule) -> str:
    """Alike by how often each kind of step was taken."""
    return str(sorted(opt.op for opt in opts_of(found)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mcts", "predicted-beam"])
def test_a_search_measures_what_is_like_a_fast_one_last(name: str) -> None:
    table = synthetic_table(2)
    problem = table.with_traits(Traits(alike=steps_taken)).problem(constant_predict(), batch_size=1)
    found = [o for o in strategy(name)(problem) if math.isfinite(o.time_s)]
    fastest: dict[str, float] = {}
    repeated = []
    for observation in found:
        kind, best_s = steps_taken(observation.schedule), min(fastest.values(), default=math.inf)
        repeated.append(kind in fastest and fastest[kind] <= STANDS_FOR * best_s)
        fastest[kind] = min(fastest.get(kind, math.inf), observation.time_s)
    first = repeated.index(True)
    assert first > 20 and len(found) - first > 12, "with all the budget there is, those in the end"
    assert sum(repeated[first:]) > 10


def test_one_late_run_hides_no_schedules_alike() -> None:
    table = chain_table([4e-6, 3e-6, 90e-6, 1e-6])
    problem = table.with_traits(Traits(alike=lambda s: str(len(opts_of(s)) > 1))).problem(oracle_predict(table))
    trials = Trials(problem)
    chain = [schedule_of([Opt("UNROLL", 0, 2)] * n) for n in range(4)]
    list(trials.measure(chain[:3]))
    assert trials.like(chain[3]) is None, "what it is like took 30 times as long as the best: that may have been late"
    assert candidates(Graph(trials, MctsSettings()), 1)[0] == [] and trials.expected_gain([chain[3]]) > 0


def test_what_is_like_a_measured_one_takes_as_long_as_the_fastest_of_them() -> None:
    table = chain_table([4e-6, 3.2e-6, 3e-6, 3.1e-6])
    problem = table.with_traits(Traits(alike=lambda s: str(bool(opts_of(s))))).problem(constant_predict())
    trials = Trials(problem)
    chain = [schedule_of([Opt("UNROLL", 0, 2)] * n) for n in range(4)]
    list(trials.measure(chain[:2]))
    graph = Graph(trials, MctsSettings())
    while (node := graph.frontier()) is not None:
        graph.expand(node)
    assert graph.nodes["3"].own == pytest.approx(math.log(4 / 3.2))
    list(trials.measure([chain[2]]))
    graph.learn()
    assert graph.nodes["3"].own == pytest.approx(math.log(4 / 3)), "also where a faster one was measured later"


def test_a_batch_holds_one_of_those_alike() -> None:
    table = synthetic_table()
    problem = table.with_traits(Traits(alike=steps_taken)).problem(constant_predict())
    trials = Trials(problem)
    list(trials.baseline())
    graph = Graph(trials, MctsSettings())
    while (node := graph.frontier()) is not None:
        graph.expand(node)
    drafts = Drafts(trials)
    drafts.add([node.schedule for node in graph.nodes.values()])
    for batch in (candidates(graph, 10)[0], drafts.batch(10)):
        assert len(batch) == len({steps_taken(s) for s in batch}) == 10
        assert steps_taken(table.baseline()) not in map(steps_taken, batch)


def test_what_is_like_a_measured_one_counts_as_measured_and_its_failures_are_its_own() -> None:
    table = chain_table([4e-6, 3e-6, math.inf, 1e-6])
    printed = table.with_traits(Traits(alike=lambda s: "far" if len(opts_of(s)) > 1 else "near"))
    problem = printed.problem(oracle_predict(table))
    trials = Trials(problem)
    list(trials.baseline())
    chain = [schedule_of([Opt("UNROLL", 0, 2)] * n) for n in range(4)]
    graph = Graph(trials, MctsSettings())
    while (node := graph.frontier()) is not None:
        graph.expand(node)
    assert graph.nodes["1"].own == 0.0 and trials.observed(chain[1]) is None, "as slow as the one it is like"
    assert trials.expected_gain([chain[1]]) == 0.0 < trials.expected_gain([chain[3]])
    list(trials.measure([chain[2]]))
    assert trials.like(chain[3]) is None
    graph.learn()
    assert candidates(graph, 4)[0] == [chain[3]]
    list(trials.measure([chain[1], chain[3]]))
    graph.learn()
    assert graph.nodes["1"].own == pytest.approx(math.log(4 / 3)), "its own measurement counts more"
    seen = trials.like(chain[0])
    assert seen is not None and seen.time_s == 4e-6


class Same:
    """The space of a kernel that every other's schedules apply to."""

    def family(self) -> str:
        return "rows"

    def transfer(self, schedule: Schedule, other: Same) -> Schedule:
        return schedule


@pytest.mark.parametrize(("alike", "offered"), [(None, True), (steps_taken, False)])
def test_similar_kernels_do_not_offer_what_is_like_something_known(
    alike: Callable[[Schedule], str] | None, offered: bool
) -> None:
    table = synthetic_table()
    known, other = schedule(("UPCAST", 0, 2)), schedule(("UPCAST", 0, 8))
    problem = table.with_traits(Traits(alike=alike)).problem(constant_predict())
    for found in (table.baseline(), known):
        problem.known[found] = table.records[found].observation
    allocator = Allocator(Ledger(), Limits())
    mine, theirs = (Transfer(Same()) for _ in range(2))
    entry = allocator.enter("a", 1, problem, strategy("mcts"), transfer=mine)
    theirs.saw(table.baseline(), 1.0, own=True)
    theirs.saw(other, 0.01, own=False)
    hint = mine.hint([mine, theirs], entry.knows)
    assert (hint is not None) is offered
