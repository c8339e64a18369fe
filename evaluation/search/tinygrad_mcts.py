"""The Monte Carlo tree search that tinygrad once had, over the problem's own actions: it measures and predicts nothing.

It follows `extra/mcts_search.py` of tinygrad, which was removed in 2025, in what decides the search (its caches, graphs
and timing are left out):

- A node is a way to a kernel. Its first visit measures it; its second adds a node for every legal step.
- Down the tree, a child that was never visited comes before all others, at random. Of visited ones a softmax draws by
  UCB (Kocsis & Szepesvári, 2006): minus the best runtime found below a child, in units of the best found anywhere,
  plus `EXPLORATION * sqrt(log(visits of the parent) / visits of the child)`. A child below which all failed has none.
- A runtime goes up to the root: of each node the best below it is kept, not a mean.
- A node whose kernel or whose binary was met before is removed, and so is one without steps or with none left below
  it. What it would have taken is backed up all the same.

It begins at the unoptimised kernel, which it does not measure, and asks for one measurement at a time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kcg.search.problem import Observation, Problem, Strategy, Trials
from kcg.types import Schedule

EXPLORATION: Final = math.sqrt(2)
TEMPERATURE: Final = 0.5  # of the softmax over UCB


@dataclass(slots=True, eq=False)
class Node:
    """One way to a kernel. The tree's root was never visited itself: its visits are those of what is below it."""

    schedule: Schedule
    parent: Node | None
    best_s: float = math.inf  # found here or below
    visits: int = 0
    children: list[Node] | None = None  # None: never expanded; removed ones are gone

    def remove(self) -> None:
        """Takes the node out of the tree. The root stays."""
        if self.parent is not None and self.parent.children is not None and self in self.parent.children:
            self.parent.children.remove(self)

    def back_up(self, time_s: float) -> None:
        """Counts a visit, here and above, that found a schedule of so many seconds."""
        node: Node | None = self
        while node is not None:
            node.best_s, node.visits = min(node.best_s, time_s), node.visits + 1
            node = node.parent


def _expand(trials: Trials, node: Node) -> list[Node]:
    if node.children is None:
        node.children = [Node(action.schedule, node) for action in trials.actions(node.schedule)]
    return node.children


def _descend(node: Node, best_s: float, rng: random.Random) -> Node:
    """From a node to one that was not visited, not expanded, or has nothing below it that ever succeeded."""
    while node.children:
        if unvisited := [child for child in node.children if child.visits == 0]:
            return rng.choice(unvisited)
        hopeful = [child for child in node.children if math.isfinite(child.best_s)]
        if not hopeful:
            return node
        bounds = [
            EXPLORATION * math.sqrt(math.log(node.visits) / child.visits) - child.best_s / best_s for child in hopeful
        ]
        weights = [math.exp((bound - max(bounds)) / TEMPERATURE) for bound in bounds]
        (node,) = rng.choices(hopeful, weights)
    return node


def _next(trials: Trials, root: Node, best_s: float, rng: random.Random) -> Node | None:
    """The node to be visited, the tree expanded on the way there where it has to be; None where nothing is left."""
    while _expand(trials, root):
        node = _descend(root, best_s, rng)
        if node.visits == 0:
            return node
        if children := _expand(trials, node):
            return rng.choice(children)
        node.remove()
    return None


def tinygrad_mcts(measured: int) -> Strategy:
    """The search until it has timed so many binaries, beside the baseline; what fails counts as one."""

    def search(problem: Problem) -> Iterator[Observation]:
        trials = Trials(problem)
        yield from trials.baseline()
        root, best_s, spent = Node(problem.space.start(), None), math.inf, 0
        kernels: dict[str, Node] = {}
        binaries: dict[str, Node] = {}
        while spent < measured and not trials.out_of_budget:
            node = _next(trials, root, best_s, problem.rng)
            if node is None:
                return
            key = trials.key(node.schedule)
            first = kernels.setdefault(key, node)
            if first is not node or node.visits:
                node.remove()
                node.back_up(first.best_s)
                continue
            if trials.observed(node.schedule) is None:
                for observation in trials.measure([node.schedule]):
                    spent += observation.binary_hash not in binaries
                    yield observation
            known = trials.observed(node.schedule)
            if known is None:
                return  # no measurement was granted
            first = binaries.setdefault(known.binary_hash, node) if known.binary_hash else node
            if first is not node:
                node.remove()
            best_s = min(best_s, known.time_s)
            node.back_up(known.time_s if first is node else first.best_s)

    return search
