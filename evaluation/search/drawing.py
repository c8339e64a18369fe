"""A search as a person reads it: the tree that was searched, and what each batch expected and found."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kcg.search.mcts import Graph, MctsSettings, Node, searched
from kcg.search.problem import Observation, Trials, best

MOST_CHILDREN = 3  # of a node that are drawn


@dataclass(frozen=True)
class Batch:
    """Schedules that were measured together."""

    rows: tuple[tuple[str, float, float, float | None], ...]  # schedule, predicted, corrected, measured: seconds
    nodes: int  # schedules that had been predicted by then
    best_s: float  # measured so far


def batches(graph: Graph) -> Iterator[Batch]:
    """Searches, and tells each batch as it is made."""
    rows: list[tuple[str, float, float, float | None]] = []
    size = graph.trials.problem.batch_size
    for seen in searched(graph):
        node = graph.nodes[graph.trials.key(seen.schedule)]  # not corrected yet by what this batch showed
        corrected = node.corrected or node.prediction
        rows.append((str(seen.schedule), node.prediction.runtime_s, corrected.runtime_s, seen.runtime_s))
        if len(rows) == size:
            yield _batch(graph, rows)
            rows = []
    if rows:
        yield _batch(graph, rows)


def _batch(graph: Graph, rows: list[tuple[str, float, float, float | None]]) -> Batch:
    fastest: Observation | None = best(graph.trials.observations.values())
    return Batch(tuple(rows), len(graph.nodes), fastest.time_s if fastest else math.inf)


def opened(trials: Trials, settings: MctsSettings | None = None) -> Graph:
    """The graph of a search whose baseline is measured."""
    list(trials.baseline())
    return Graph(trials, settings or MctsSettings())


def drawn(graph: Graph, *, most_nodes: int = 24) -> list[str]:
    """The most visited part of the graph as lines of text: steps, visits, predicted and measured microseconds."""
    lines: list[str] = []
    shown: set[int] = set()

    def visit(node: Node, steps: str, stem: str, branch: str) -> None:
        if len(lines) >= most_nodes:
            return
        again = id(node) in shown
        shown.add(id(node))
        lines.append(
            f"{stem}{branch}{steps or '(unoptimised)'}  {_described(node, graph)}{'  (above)' if again else ''}"
        )
        if again:
            return
        children = zip(node.visits, node.children or [], strict=False)
        followed = [(n, c) for n, c in children if n and len(c.schedule.opts) > len(node.schedule.opts)]  # no variants
        followed = sorted(followed, key=lambda pair: (-pair[0], -pair[1].value))[:MOST_CHILDREN]
        deeper = stem + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
        for i, (_, child) in enumerate(followed):
            visit(child, _step(node, child), deeper, "└─ " if i == len(followed) - 1 else "├─ ")

    for child in graph.root.children or []:
        visit(child, str(child.schedule), "", "")
    return lines


def _step(parent: Node, child: Node) -> str:
    ours, theirs = [str(o) for o in parent.schedule.opts], [str(o) for o in child.schedule.opts]
    added = list(theirs)
    for opt in ours:
        if opt in added:
            added.remove(opt)
    return "+ " + " ".join(added) if len(added) == 1 else " ".join(theirs)


def _described(node: Node, graph: Graph) -> str:
    words = [
        f"{node.stops + sum(node.visits)} visits",
        f"expected {math.exp(node.prediction.log_runtime) * 1e6:,.0f} µs",
    ]
    if node.observation is not None:
        time_s = node.observation.runtime_s
        how = "measured" if graph.trials.observed(node.schedule) is not None else "like one of"
        words.append(f"{how} {time_s * 1e6:,.0f} µs" if time_s is not None else str(node.observation.status))
    return ", ".join(words)
