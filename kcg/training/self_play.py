"""Self-play: MCTS over the predictor builds schedules, and what it visited is what the policy learns to do at once.

Follows AlphaZero (Silver et al., 2018): at each schedule some simulations run, with Dirichlet noise in the prior where
they begin; the visit counts say which steps were worth following, and the next step is drawn from them. The graph of
the kernel is kept for the whole of it. The value to learn is the best log-speedup that the search found below, over the
schedule itself. No device is needed: leaves are worth what the predictor says of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from kcg.predictor.features import Array, Graphs, joined, side_by_side
from kcg.rl.observation import Observer, ScheduleObservation
from kcg.search.mcts import Graph, MctsSettings, Node
from kcg.search.problem import Ledger, Observation, Predict, Problem, Trials
from kcg.types import Schedule

LEAST_VISITS: Final = 12  # of a schedule that the policy learns from: fewer say little about many steps


@dataclass(frozen=True)
class SelfPlaySettings:
    """How a kernel is played."""

    simulations: int = 64  # at each schedule
    exploration: float = 0.6  # less than in a search, whose predictions are corrected: here they are all there is
    uniform: float = 0.25  # share of the predictor's prior that is spread evenly: less than there, for the same reason
    noise: float = 0.25  # share of Dirichlet noise in the prior where simulations begin
    alpha: float = 0.3
    drawn: int = 2  # first steps that are drawn by visits; then the most visited is taken
    most_steps: int = 10
    games: int = 2  # of a kernel; half of them start raw, half hand-coded


@dataclass(frozen=True)
class Examples:
    """n schedules to learn from, over K kernels; their r rows of actions one schedule after another."""

    graphs: Graphs  # n
    kernel: Array  # (n,) a place in `kernel_x`
    kernel_x: Array  # (K, kernel features)
    target_x: Array  # (K, target features)
    rows: Array  # (r, action features) float32
    axes: Array  # (r, axes of an action) within each graph
    n_rows: Array  # (n,)
    chances: Array  # (r,) float32: shares of the visits, 1 for each schedule
    value: Array  # (n,) float32
    weight: Array  # (n,) float32

    def __len__(self) -> int:
        return len(self.kernel)


_BESIDE_GRAPHS = tuple(f.name for f in fields(Examples) if f.name != "graphs")


def games(observer: Observer, predict: Predict, settings: SelfPlaySettings, *, seed: int = 0) -> Examples | None:
    """Plays one kernel some times; None where it has no legal step."""
    rng = random.Random(seed)
    problem = Problem(observer.space, predict, _no_measure, Ledger(), rng)
    how = MctsSettings(exploration=settings.exploration, uniform=settings.uniform, entries=0)
    graph = Graph(Trials(problem), how)
    ends = (observer.space.start(), observer.space.baseline())
    for i in range(settings.games):
        _game(graph, graph.nodes[graph.trials.key(ends[i % 2])], settings, rng)
    return examples_of(observer, graph)


def _no_measure(schedules: Sequence[Schedule]) -> list[Future[Observation]]:
    raise AssertionError("self-play measures nothing")


def _game(graph: Graph, node: Node, settings: SelfPlaySettings, rng: random.Random) -> None:
    """One game: simulate, step, until stopping is best or no step is left."""
    for depth in range(settings.most_steps):
        graph.stir(node, share=settings.noise, alpha=settings.alpha)
        for _ in range(settings.simulations):
            graph.simulate(node)
            graph.drafts.clear()  # a draft can be stopped at once only; here stopping stays an option
        assert node.children is not None
        visits = [node.stops, *node.visits]
        if not any(visits[1:]):
            return
        if depth < settings.drawn:
            chosen = rng.choices(range(len(visits)), visits)[0]
        else:
            chosen = max(range(len(visits)), key=visits.__getitem__)
        if chosen == 0:
            return
        node = node.children[chosen - 1]


def examples_of(observer: Observer, graph: Graph, *, least_visits: int = LEAST_VISITS) -> Examples | None:
    """What a graph teaches: the shares of the visits of each schedule that was visited often, and that has steps."""
    observations, chances, values, weights = list[ScheduleObservation](), list[Array](), list[float](), list[float]()
    for node in graph.nodes.values():
        total = node.stops + sum(node.visits)
        if not node.children or total < least_visits:  # where stopping is all that there is, there is nothing to learn
            continue
        observation = observer.observe(node.schedule)
        counts = {graph.trials.key(c.schedule): n for c, n in zip(node.children, node.visits, strict=True)}
        keys = [graph.trials.key(step.schedule) for step in observation.steps]
        shared = [counts.get(key, 0) / keys.count(key) for key in keys]  # steps to the same kernel are as good
        row = np.array([*shared, node.stops], np.float32)
        if row.sum() > 0:
            observations.append(observation)
            chances.append(row / row.sum())
            values.append(max(node.value - node.own, 0.0))
            weights.append(float(np.log2(total)))
    if not observations:
        return None
    made, kernel_x, target_x = side_by_side(observations)
    return Examples(
        made,
        np.zeros(len(observations), np.int64),
        kernel_x[:1],
        target_x[:1],
        np.concatenate([one.rows.features for one in observations]),
        np.concatenate([one.rows.axes for one in observations]),
        np.array([len(one.rows) for one in observations]),
        np.concatenate(chances),
        np.array(values, np.float32),
        np.array(weights, np.float32),
    )


def together(parts: Iterable[Examples]) -> Examples:
    """All examples of all parts, in order."""
    parts = list(parts)
    firsts = np.cumsum([0, *(len(part.kernel_x) for part in parts)])
    kernel = np.concatenate([part.kernel + first for part, first in zip(parts, firsts[:-1], strict=True)])
    rest = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in _BESIDE_GRAPHS if name != "kernel"
    }
    return Examples(graphs=joined(part.graphs for part in parts), kernel=kernel, **rest)


def as_arrays(examples: Examples) -> dict[str, Array]:
    """Every array by name, for a file."""
    return examples.graphs.as_arrays() | {name: getattr(examples, name) for name in _BESIDE_GRAPHS}


def from_arrays(arrays: dict[str, Array]) -> Examples:
    """The inverse of `as_arrays`."""
    return Examples(graphs=Graphs.from_arrays(arrays), **{name: arrays[name] for name in _BESIDE_GRAPHS})
