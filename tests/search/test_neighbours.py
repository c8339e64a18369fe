"""Schedules that differ from a good one in one step: what a search that only adds steps comes to late."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from replay_table import synthetic_table

from kcg.errors import ScheduleError
from kcg.kernel.opts.space import KernelSpace
from kcg.search.allocation import LITTLE, Allocator, Limits
from kcg.search.mcts import Graph, MctsSettings, candidates, mcts
from kcg.search.moves import moved, variants
from kcg.search.problem import Action, Ledger, Observation, Problem, Strategy, Trials
from kcg.search.replay import ReplayTable, charged, constant_predict, oracle_predict
from kcg.types import RAW, Opt, Prediction, Schedule, ScheduleKind, Status
from tests.kernels import schedule_of, small_matmul


@pytest.fixture(scope="module")
def space() -> KernelSpace:
    return small_matmul()


def walked(space: KernelSpace, opts: Sequence[Opt]) -> Schedule | None:
    """Where legal steps lead, by the space's own lists."""
    found: Schedule | None = RAW
    for opt in opts:
        labels = {a.label: a.schedule for a in space.actions(found)} if found is not None else {}
        found = labels.get(str(opt))
    return found


def problem(space: KernelSpace, log_s: dict[tuple[str, ...], float], *, step: bool = True) -> Problem:
    """The runtime of a schedule is that of its steps in any order, else a millisecond; the predictor knows it."""

    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        return [Prediction(log_s.get(tuple(sorted(map(str, s.opts))), math.log(1e-3))) for s in schedules]

    ledger = Ledger(max_measurements=3)
    measure = charged(
        ledger,
        space.key,
        lambda some: [
            Observation(s, Status.OK, math.exp(p.log_runtime), str(s)) for s, p in zip(some, predict(some), strict=True)
        ],
    )
    return Problem(space, predict, measure, ledger, random.Random(0), batch_size=1, step=space.step if step else None)


def test_variants_are_all_legal_schedules_with_one_step_less_or_of_another_amount(space: KernelSpace) -> None:
    good = schedule_of(("UPCAST", 0, 4), ("LOCAL", 1, 8), ("UNROLL", 0, 4))
    expected = set()
    for i, opt in enumerate(good.opts):
        amounts = [Opt(opt.op, opt.axis, n) for n in range(65) if n != opt.arg]
        for changed in ([], *([other] for other in amounts)):
            if (end := walked(space, [*good.opts[:i], *changed, *good.opts[i + 1 :]])) is not None:
                expected.add(space.key(end))
    expected.discard(space.key(good))
    trials = Trials(problem(space, {}))
    found = variants(trials, good)
    assert [trials.key(s) for s in found] == list(dict.fromkeys(trials.key(s) for s in found)), "each kernel once"
    assert {trials.key(s) for s in found} == expected and len(expected) > 6
    assert all(walked(space, s.opts) is not None for s in found)


def test_where_steps_cannot_be_followed_there_are_no_variants(space: KernelSpace) -> None:
    good = schedule_of(("UPCAST", 0, 4))
    assert variants(Trials(problem(space, {})), good)
    assert variants(Trials(problem(space, {}, step=False)), good) == []
    assert variants(Trials(problem(space, {})), Schedule(ScheduleKind.SOURCE, "x")) == []
    assert variants(Trials(problem(space, {})), RAW) == []


def test_a_factor_moves_between_steps_and_elements_become_threads(space: KernelSpace) -> None:
    good = schedule_of(("UPCAST", 0, 4), ("UPCAST", 1, 4), ("UNROLL", 0, 4))
    trials = Trials(problem(space, {}))
    found = {trials.key(s): s for s in moved(trials, good)}
    for opts in (
        [("UPCAST", 0, 2), ("UPCAST", 1, 8), ("UNROLL", 0, 4)],
        [("UPCAST", 0, 8), ("UPCAST", 1, 2), ("UNROLL", 0, 4)],
        [("LOCAL", 0, 4), ("UPCAST", 1, 4), ("UNROLL", 0, 4)],
        [("UPCAST", 0, 4), ("LOCAL", 1, 4), ("UNROLL", 0, 4)],
    ):
        assert trials.key(schedule_of(*opts)) in found, opts
    assert trials.key(good) not in found
    assert all(walked(space, s.opts) is not None for s in found.values()), "each of them a walk can reach"


def test_what_is_taken_whole_is_not_moved_and_nothing_is_where_steps_cannot_be_followed(space: KernelSpace) -> None:
    trials = Trials(problem(space, {}))
    whole = moved(trials, schedule_of(("UPCAST", 0, 4), ("UPCAST", 1, 4), ("UPCAST", 0, 0)))
    assert whole and all(Opt("UPCAST", 0, 0) in s.opts for s in whole)
    assert moved(Trials(problem(space, {}, step=False)), schedule_of(("UPCAST", 0, 4), ("UPCAST", 1, 4))) == []
    assert moved(trials, Schedule(ScheduleKind.SOURCE, "x")) == [] == moved(trials, RAW)


def test_every_fourth_measurement_is_near_the_incumbent_whatever_else_promises_more(space: KernelSpace) -> None:
    asked = problem(space, {})
    asked.ledger = Ledger()
    trials = Trials(asked)
    graph = Graph(trials, MctsSettings(near_from=4))
    list(trials.baseline())
    graph.expand(graph.nodes[trials.key(RAW)])
    fast = schedule_of(("UPCAST", 0, 4), ("UPCAST", 1, 4), ("UNROLL", 0, 4))
    list(trials.measure([fast, *(node.schedule for node in graph.nodes.values())][:4]))
    for key, seen in trials.observations.items():
        if seen.schedule != fast:  # what failed is near nothing that is looked for
            trials.observations[key] = Observation(seen.schedule, Status.RESOURCE, None)
    graph.learn()
    assert len(trials.observations) == 4
    for node in graph.nodes.values():  # all that is known promises more than anything that is not there yet
        node.own += 5.0 if node.observation is None else 0.0
    near = {trials.key(s) for s in [*variants(trials, fast), *moved(trials, fast), *trials.children(fast)]}
    (one,), (usual,) = candidates(graph, 1)
    assert trials.key(one) in near and trials.key(usual) not in near
    several, _ = candidates(graph, 4)
    assert len({trials.key(s) for s in several}) == 4 and sum(trials.key(s) in near for s in several) == 1
    asked.ledger.max_evaluations = 10_000
    assert trials.key(candidates(graph, 1)[0][0]) not in near, "where predictions are counted they go elsewhere"


def test_a_table_follows_the_steps_that_it_has() -> None:
    table = synthetic_table()
    for record in list(table.records.values())[:50]:
        for action in record.actions:
            (opt,) = [o for o in action.schedule.opts if str(o) == action.label][:1] or [None]
            if opt is not None:
                assert table.step(record.observation.schedule, opt) == action.schedule
    assert table.step(RAW, Opt("UPCAST", 7, 4)) is None
    with pytest.raises(ScheduleError, match="not in the replay table"):
        table.step(schedule_of(("UPCAST", 7, 4)), Opt("UPCAST", 0, 4))


TRAP = {
    ("UPCAST(0,4)",): math.log(6e-4),
    ("UNROLL(0,4)", "UPCAST(0,4)"): math.log(4e-4),
    ("LOCAL(1,8)", "UNROLL(0,4)", "UPCAST(0,4)"): math.log(3e-4),
    ("LOCAL(1,8)", "UNROLL(0,4)", "UPCAST(0,2)"): math.log(1e-4),  # no step of the way there is worth anything
}


def test_the_right_amount_of_an_early_step_is_found_from_the_end(space: KernelSpace) -> None:
    best_s = {}
    for step in (True, False):
        asked = problem(space, TRAP, step=step)
        asked.drafting = LITTLE
        best_s[step] = min(o.time_s for o in mcts(asked))
    assert best_s[True] == pytest.approx(1e-4)
    assert best_s[False] > 1e-4, "it takes more than a few expansions without"


def test_what_is_varied_is_within_reach_of_walks(space: KernelSpace) -> None:
    trials = Trials(problem(space, TRAP))
    list(trials.baseline())
    graph = Graph(trials, MctsSettings())
    walk = [
        RAW,
        schedule_of(("UPCAST", 0, 4)),
        schedule_of(("UPCAST", 0, 4), ("UNROLL", 0, 4)),
        schedule_of(("UPCAST", 0, 4), ("UNROLL", 0, 4), ("LOCAL", 1, 8)),
    ]
    for one in walk[:-1]:
        graph.expand(graph.nodes[trials.key(one)])
    top = graph.nodes[trials.key(walk[-1])]
    before = graph.root.value
    top.closed = True
    assert graph.vary() and top.varied, "the most promising first"
    found = graph.nodes[trials.key(schedule_of(("UPCAST", 0, 2), ("UNROLL", 0, 4), ("LOCAL", 1, 8)))]
    assert top in found.parents and not top.closed
    assert graph.root.value == pytest.approx(before + math.log(3))
    assert graph.vary() and found.varied, "then what is most promising now"


@pytest.mark.parametrize(
    ("limits", "drafting"), [(Limits(measuring=4, alternate=False), [None, LITTLE]), (Limits(), [LITTLE, LITTLE])]
)
def test_little_is_drafted_for_small_kernels_and_where_the_device_waits(
    limits: Limits, drafting: list[int | None]
) -> None:
    table, seen = synthetic_table(), dict[str, int | None]()
    allocator = Allocator(Ledger(max_measurements=4), limits)

    def search(name: str) -> Strategy:
        def strategy(asked: Problem) -> Iterator[Observation]:
            seen[name] = asked.drafting
            yield from ()

        return strategy

    for name, calls in (("large", 999), ("small", 1)):
        known = {table.baseline(): table.records[table.baseline()].observation}
        asked = replace(table.problem(constant_predict(), ledger=allocator.ledger), known=known)
        allocator.enter(name, calls, asked, search(name))
    allocator.run()
    assert [seen["large"], seen["small"]] == drafting


class Counted:
    """A table that counts how often somebody asks for steps."""

    def __init__(self, table: ReplayTable) -> None:
        self.table, self.asked = table, 0
        self.start, self.baseline, self.key = table.start, table.baseline, table.key

    def actions(self, schedule: Schedule) -> list[Action]:
        self.asked += 1
        return self.table.actions(schedule)


@pytest.mark.parametrize(("drafting", "counts"), [(None, [0, 8, 10]), (3, [0, 3, 5])])
def test_the_first_batch_waits_for_more_than_the_later_ones(drafting: int | None, counts: list[int]) -> None:
    table = synthetic_table()
    space = Counted(table)
    asked = table.problem(oracle_predict(table), max_measurements=3, batch_size=1)
    asked = replace(asked, space=space, step=None, drafting=drafting)
    settings = MctsSettings(first=8, expansions=2)
    assert [space.asked for _ in mcts(asked, settings=settings)] == counts
