"""Monte Carlo tree search over schedules: draft many with the predictor, measure a few, correct the predictor, again.

A simulation walks down from the root of the graph (`kcg.search.graph`) by PUCT (Rosin 2011; AlphaZero's form, as in
mctx) until it either stops at a schedule, which drafts it for measuring, or meets a node that was never expanded, which
it expands: the legal steps are asked for once and all children are predicted in one batch. After some simulations the
most promising schedules are varied, too: where one step less leads, or another amount of one, is taken for a child.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from kcg.search.candidates import candidates
from kcg.search.graph import Graph, MctsSettings
from kcg.search.interface import Ledger, Observation, Problem
from kcg.search.trials import Trials


def mcts(problem: Problem, *, settings: MctsSettings | None = None) -> Iterator[Observation]:
    """Searches until the budget is spent or every schedule within reach is measured."""
    trials = Trials(problem)
    yield from trials.baseline()
    if trials.out_of_budget:
        return
    yield from searched(Graph(trials, settings or MctsSettings()))


def searched(graph: Graph) -> Iterator[Observation]:
    """The search over a graph: simulate, measure the best candidates, learn, again."""
    trials, settings, problem = graph.trials, graph.settings, graph.trials.problem
    for most in itertools.chain([settings.first], itertools.repeat(settings.expansions)):
        if trials.out_of_budget:
            return
        most = most if problem.drafting is None else min(most, problem.drafting)
        expansions, before = 0, problem.ledger.evaluations
        for _ in range(settings.simulations * most):
            if expansions >= most or not _may_evaluate(problem.ledger, settings, before):
                break
            expansions += graph.simulate()
            if trials.out_of_budget:
                return
        for _ in range(most // settings.varied):
            if not (_may_evaluate(problem.ledger, settings, before) and graph.vary()):
                break
        batch, promising = candidates(graph, problem.batch_size)
        if batch:
            yield from trials.measure(batch, rethink=True, promising=promising)
            graph.learn()
        elif not problem.ledger.may_evaluate or (node := graph.frontier()) is None:
            yield from trials.measure(graph.alike())
            return
        else:
            graph.expand(node)


def _may_evaluate(ledger: Ledger, settings: MctsSettings, before: int) -> bool:
    """Whether more may be predicted before the next batch; `before` were when the last was measured."""
    return ledger.may_evaluate and (settings.evaluations is None or ledger.evaluations - before < settings.evaluations)
