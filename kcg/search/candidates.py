"""Which schedules of a search graph are measured next: what promises most, and in turns with it what does not yet.

What a correction expects is least certain where a search has not been, and less certain there than it says: of what was
measured of Flux's kernels, the best that were left had been judged a sixth too slow by then. So once a kernel has some
measurements every fourth goes to what is near the fastest of them, whatever is expected of the rest, and another fourth
to a kind of schedule that was seldom measured.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from kcg.search.diversity import diverse, leaders, seldom
from kcg.search.graph import Graph, Node
from kcg.types import Schedule

USUAL, NEAR, BROAD = "usual", "near", "broad"
TOP: Final = 3
"""Tiles (what a thread computes) whose fastest schedules others are looked for near to."""


def candidates(graph: Graph, count: int) -> tuple[list[Schedule], list[Schedule]]:
    """At most `count` unmeasured schedules, the best expected first, and the one of them all that promises most, even
    where it is not its turn. One of those alike, drafts preferred, near twins kept apart; clears the drafts."""
    settings, trials = graph.settings, graph.trials
    turns = Counter(_turn(graph, len(trials.observations) + i) for i in range(count))
    near = _near(graph, turns[NEAR]) if turns[NEAR] else []
    pool = [(key, node) for key, node in graph.nodes.items() if node.observation is None]
    scores = [_score(graph, node) + settings.draft_bonus * (key in graph.drafts) for key, node in pool]
    graph.drafts.clear()
    places = leaders([trials.alike(node.schedule) for _, node in pool], scores)
    nodes, top = [pool[i][1] for i in places], [scores[i] for i in places]
    tiles, steps = [node.tile for node in nodes], [node.steps for node in nodes]
    usual = [nodes[i] for i in diverse(top, steps, count, penalty=settings.twin_penalty, tiles=tiles)]
    chosen = dict[str, Node]()  # by what schedules are alike in

    def take(some: Iterable[Node], most: int) -> None:
        fresh = (node for node in some if trials.alike(node.schedule) not in chosen)
        chosen.update((trials.alike(node.schedule), node) for node in itertools.islice(fresh, most))

    take(usual, turns[USUAL])
    take(near, turns[NEAR])
    rest = [(n, score) for n, score in zip(nodes, top, strict=True) if trials.alike(n.schedule) not in chosen]
    take(_broad(graph, rest, turns[BROAD]), turns[BROAD])
    take(usual, count - len(chosen))
    surest = sorted(chosen.values(), key=lambda node: -node.own)  # first: the budget may end within a batch
    return [node.schedule for node in surest], [node.schedule for node in usual[:1]]


def _turn(graph: Graph, measured: int) -> str:
    """Whose turn the next measurement is."""
    settings, problem = graph.settings, graph.trials.problem
    counted = settings.evaluations is not None or problem.ledger.max_evaluations is not None
    looks = problem.step is not None and not counted  # all that is near is predicted
    if measured % 4 == 0 and measured >= settings.near_from and looks:
        return NEAR
    if measured % 2 == 0 and measured >= settings.broad_from and problem.kind is not None:
        return BROAD
    return USUAL


def _score(graph: Graph, node: Node) -> float:
    return node.own + graph.settings.optimism * node.doubt + node.jitter


def _near(graph: Graph, count: int) -> list[Node]:
    """The best expected of what is near the fastest schedules that were measured, each of another tile."""
    tops = dict[Hashable, Node]()
    for schedule in graph.trials.fastest(len(graph.trials.observations)):
        if (node := graph.nodes.get(graph.trials.key(schedule))) is not None and len(tops) < TOP:
            tops.setdefault(node.tile, node)
    found = {child: None for node in tops.values() for child in graph.neighbours(node) if child.observation is None}
    nodes = sorted(found, key=lambda node: -_score(graph, node))
    places = leaders([graph.trials.alike(node.schedule) for node in nodes], [0.0] * len(nodes))
    return [nodes[i] for i in places[:count]]


def _broad(graph: Graph, rest: Sequence[tuple[Node, float]], count: int) -> list[Node]:
    """Those of kinds that were seldom measured, of candidates with their scores."""
    if not count:
        return []
    seen = Counter(graph.nodes[key].kind for key in graph.trials.observations if key in graph.nodes)
    told = [node.prediction.log_runtime for node, _ in rest]
    places = seldom([node.kind for node, _ in rest], told, [score for _, score in rest], seen, count)
    return [rest[i][0] for i in places]
