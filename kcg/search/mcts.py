"""Monte Carlo tree search over schedules: draft many with the predictor, measure a few, correct the predictor, again.

A simulation walks down from the root of the graph by PUCT (Rosin 2011; AlphaZero's form, as in
mctx) until it either stops at a schedule, which drafts it for measuring, or meets a node that was never expanded, which
it expands: the legal steps are asked for once and all children are predicted in one batch. After some simulations the
most promising schedules are varied, too: where one step less leads, or another amount of one, is taken for a child.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kcg.search.calibration import Calibration, Evidence, Trial
from kcg.search.moves import DUPLICATE_PENALTY, StepSets, diverse, leaders, least_explored
from kcg.search.problem import Ledger, Observation, Problem, Trials, best
from kcg.types import Prediction, Schedule

# ---- The tree: schedules, the steps between them, and what is expected of each.
#
# The tree is a graph: schedules that are the same kernel (`space.key`) share a node, whatever the order of their steps.
# Values are log-speedups over the baseline:
#
# own     of stopping here: measured, else predicted and corrected by what was measured: by the predictor itself where
# it learns from measurements, else by `calibration`, which judges failures in any case
# value   the best `own` within reach, since one schedule is kept in the end (a mean would punish good ones for
# their bad siblings)
#
# A node with 60 children does not need 60 visits: each child has a value from its prediction at once, and a prior: a
# softmax over what the predictor says of the children. The graph stays for the whole search: what a batch taught moves
# every value in it, and no simulation is thrown away.

LONGEST: Final = 16
"""Nodes of the longest walk. Walks on real kernels meet five on average; where nearly all is measured they would go
round through variants of variants."""


@dataclass(frozen=True)
class MctsSettings:
    """How to search. An expansion costs a core 10 to 30 ms, compiling what is to be measured a hundred times as much.
    What is best by the predictor is five steps or more away from where a search begins, so the first batch waits for a
    tree that reaches so far (docs/experiments/2026-11-24-search-settings.md)."""

    exploration: float = 2.0  # weight of PUCT's bonus against values in 0..1
    temperature: float = 0.3  # of the prior over children, in log-seconds
    uniform: float = 0.6  # share of the prior that is spread evenly; with 0.25 two of 40 kernels were never found out
    first: int = 128  # expansions before the first batch of measurements, at most
    expansions: int = 32  # between two batches, at most
    simulations: int = 8  # for each of them, at most; most end in an expansion or a draft
    varied: int = 8  # so many of them for each schedule that is varied
    evaluations: int | None = None  # likewise, schedules that are predicted: what a search without a device spends
    optimism: float = 1.0  # standard deviations of doubt added to a candidate for measuring
    draft_bonus: float = 0.05  # log-speedup added to a candidate that simulations stopped at
    duplicate_penalty: float = (
        DUPLICATE_PENALTY  # log-speedup taken from a candidate one step from another of its batch
    )
    near_from: int = 16  # measurements after which every fourth is one near the fastest
    broad_from: int = 24  # after which every second of the others is of a kind of schedule that was rarely measured
    failure_value: float = -0.5  # log-speedup of a schedule that fails: it costs a measurement, not what was found
    entries: int = 3  # so many of the best known schedules are roots too when a search is resumed
    predictor_prior: bool = True  # take the prior from the predictor; else every step is as likely


@dataclass(slots=True, eq=False)
class Node:
    """One kernel of the graph. `children`, `visits` and `actions`' schedules have the same order."""

    schedule: Schedule
    steps: int  # the set of its steps, one bit a step
    prediction: Prediction
    evidence: Evidence
    jitter: float  # breaks ties
    observation: Observation | None = None  # its own, or that of a schedule that is alike
    parents: list[Node] = field(default_factory=list)
    children: list[Node] | None = None  # None: never expanded
    priors: list[float] = field(default_factory=list)  # of each child, where `stir` set them; else empty
    stop_prior: float = 0.0  # likewise, of stopping here
    visits: list[int] = field(default_factory=list)  # simulations through each child
    stops: int = 0  # simulations that stopped here
    own: float = -math.inf  # log-speedup of stopping here
    doubt: float = 0.0  # its standard deviation; 0 where measured
    corrected: Prediction | None = None  # by a predictor that learns from measurements
    value: float = -math.inf  # best `own` within reach
    closed: bool = False  # all within reach is measured
    tile: Hashable = None  # what its threads compute
    groups: Hashable = None  # what a predictor may misjudge alike
    varied: bool = False  # its variants are among the nodes
    roamed: bool = False  # and all else that is near


class Graph:
    """The nodes of one search. The root stands for no schedule; its children are where a search may begin."""

    def __init__(self, trials: Trials, settings: MctsSettings) -> None:
        self.trials = trials
        self.settings = settings
        self.rng: random.Random = trials.problem.rng
        self.calibration = Calibration()
        self.nodes: dict[str, Node] = {}
        self.drafts: set[str] = set()
        self._learned: set[str] = set()  # measurements that were taken in
        self._varied: set[Hashable] = set()  # tiles
        self._step_sets = StepSets()
        self.root = Node(Schedule("", ""), 0, Prediction(0.0), Evidence(), 0.0, children=[])
        self._baseline = trials.problem.space.baseline()
        self.groups = trials.groups(trials.problem.space.start()) is not None  # whether the space can tell
        known = [o for o in trials.observations.values() if o.schedule != self._baseline]
        roots = [trials.problem.space.start(), self._baseline]
        roots += [o.schedule for o in sorted(known, key=lambda o: o.time_s)[: settings.entries] if best([o])]
        self._add(roots + [o.schedule for o in known])
        for node in dict.fromkeys(self.nodes[trials.key(s)] for s in roots):
            self._link(self.root, node)
        self.learn()

    # growing

    def _add(self, schedules: Sequence[Schedule]) -> None:
        """Makes the missing nodes, predicted in one batch. Another way to a kernel that has a node is not judged."""
        schedules = [schedule for schedule in schedules if self.trials.key(schedule) not in self.nodes]
        if not schedules:
            return
        predictions = self.trials.predict(schedules)
        corrected = self.trials.corrected(schedules) or itertools.repeat(None)
        for schedule, prediction, better in zip(schedules, predictions, corrected, strict=False):
            key = self.trials.key(schedule)
            if key not in self.nodes:
                steps = self._step_sets.of(schedule)
                evidence = self.calibration.evidence(steps)
                node = self.nodes[key] = Node(schedule, steps, prediction, evidence, 1e-6 * self.rng.random())
                node.corrected = better
                node.tile, node.groups = self.trials.tile(schedule), self.trials.groups(schedule)
                if key not in self.trials.observations:
                    node.observation = self.trials.like(schedule)
                self._appraise(node)
                node.value = node.own

    def _link(self, parent: Node, child: Node) -> None:
        assert parent.children is not None
        parent.children.append(child)
        parent.visits.append(0)
        if parent.priors:
            parent.priors.append(0.0)
        child.parents.append(parent)
        _raise(parent, child.value)

    def expand(self, node: Node) -> None:
        """Asks for the legal steps from a node and predicts where they lead."""
        children = self.trials.children(node.schedule)
        node.children = []
        self._add(children)
        for child in children:
            self._link(node, self.nodes[self.trials.key(child)])
        self._close(node)

    def vary(self) -> bool:
        """Takes in the variants of the most promising schedule whose variants are not known, each tile once before any
        comes again; whether there was one.

        A walk only adds steps: whether an amount that it took first is right shows when the last is taken, and all
        others would have to be walked again.
        """
        rest = [node for node in self.nodes.values() if not node.varied]
        new = [node for node in rest if node.tile not in self._varied]
        if not new:
            self._varied.clear()
        node = max(new or rest, key=lambda n: n.own + n.doubt + n.jitter, default=None)
        if node is None:
            return False
        node.varied = True
        self._varied.add(node.tile)
        self._link_beside(node, self.trials.problem.space.variants(node.schedule))
        return True

    def neighbours(self, node: Node) -> list[Node]:
        """What is near a schedule: one step more or less, another amount of one, a factor moved to another."""
        if not node.roamed:
            node.roamed = node.varied = True
            self._link_beside(node, self.trials.problem.space.neighbours(node.schedule))
        return node.children or []

    def _link_beside(self, node: Node, schedules: Sequence[Schedule]) -> None:
        """Makes schedules children of a node, behind those of its own."""
        self._add(schedules)
        if node.children is None:
            self.expand(node)
        linked = {node, *(node.children or ())}
        for child in dict.fromkeys(self.nodes[self.trials.key(schedule)] for schedule in schedules):
            if child not in linked:
                self._link(node, child)
                if not child.closed:
                    self._open(node)

    # learning

    def learn(self) -> None:
        """Takes in what was measured since the last call: corrects every prediction and every value."""
        fresh = []
        self._take_in_others()
        for key, observation in self.trials.observations.items():
            node = self.nodes.get(key)
            if node is not None and key not in self._learned:
                self._learned.add(key)
                node.observation = observation
                time_s = observation.time_s
                measured = math.log(time_s) if 0 < time_s < math.inf else None
                fresh.append(Trial(node.steps, node.prediction.log_runtime, measured))
                self.calibration.add(fresh[-1])
                self._close(node)
        for key, node in self.nodes.items():
            if key not in self.trials.observations:
                node.observation = self.trials.like(node.schedule)
                if node.observation is not None:
                    self._close(node)
        open_nodes = [node for node in self.nodes.values() if node.observation is None]
        if fresh and (corrected := self.trials.corrected([node.schedule for node in open_nodes])) is not None:
            for node, better in zip(open_nodes, corrected, strict=True):
                node.corrected = better
        for node in self.nodes.values():
            for trial in fresh:
                self.calibration.extend(node.evidence, node.steps, trial)
            self._appraise(node)
        self._settle()

    def _take_in_others(self) -> None:
        """What was measured elsewhere and this search never met: the search may go on from there."""
        met = [o for key, o in self.trials.observations.items() if key not in self.nodes]
        self._add([o.schedule for o in met])
        for observation in met:
            if best([observation]) is not None:
                self._link(self.root, self.nodes[self.trials.key(observation.schedule)])

    def _appraise(self, node: Node) -> None:
        """Sets the value of stopping at a node."""
        bad, reference = self.settings.failure_value, self._reference()
        if node.observation is not None:
            time_s = node.observation.time_s
            node.own, node.doubt = (reference - math.log(time_s) if 0 < time_s < math.inf else bad), 0.0
            return
        expected = self.calibration.expected(node.prediction, node.evidence)
        if node.corrected is not None:
            expected = replace(expected, log_runtime=node.corrected.log_runtime, uncertainty=node.corrected.uncertainty)
            if node.corrected.failure_probability > node.prediction.failure_probability:  # it learned of failures too
                fails = max(expected.failure_probability, node.corrected.failure_probability)
                expected = replace(expected, failure_probability=fails)
        chance = 1.0 - expected.failure_probability
        node.own = chance * (reference - expected.log_runtime) + (1.0 - chance) * bad
        node.doubt = expected.uncertainty

    def _reference(self) -> float:
        """Log-seconds of the baseline: measured, else (it failed) as predicted."""
        time_s = self.trials.time_s(self._baseline)
        return math.log(time_s) if 0 < time_s < math.inf else self.trials.predict([self._baseline])[0].log_runtime

    def _settle(self) -> None:
        """Gives every node the best `own` within reach: the best first, each flooding upwards."""
        for node in (self.root, *self.nodes.values()):
            node.value = -math.inf
        for source in sorted(self.nodes.values(), key=lambda n: -n.own):
            _raise(source, source.own)

    def _close(self, node: Node) -> None:
        """Marks a node below which all is measured, and then its parents: simulations need not go there."""
        rising = [node]
        while rising:
            node = rising.pop()
            done = node.observation is not None and node.children is not None
            if done and all(c.closed for c in node.children or ()) and not node.closed:
                node.closed = True
                rising.extend(p for p in node.parents if p is not self.root)

    def _open(self, node: Node) -> None:
        """The opposite: there is something to be measured below it again."""
        rising = [node]
        while rising:
            node = rising.pop()
            if node.closed:
                node.closed = False
                rising.extend(node.parents)

    # simulating

    def simulate(self, begin: Node | None = None) -> bool:
        """One walk from the root, or from `begin`; True if it expanded a node. Otherwise it drafted one, or met a dead
        end."""
        node = begin or self.root
        path = {node}
        while True:
            if node.children is None:
                self.expand(node)
                return True
            choice = self._select(node, path)
            if choice is None:
                return False
            if choice < 0:
                node.stops += 1
                self.drafts.add(self.trials.key(node.schedule))
                return False
            if len(path) > LONGEST:
                return False
            node.visits[choice] += 1
            node = node.children[choice]
            path.add(node)

    def _select(self, node: Node, path: set[Node]) -> int | None:
        """The index of a child, -1 to stop here, None for a dead end: the highest value plus PUCT's bonus."""
        assert node.children is not None
        options = [
            (i, c.own, c.value, n)
            for i, (c, n) in enumerate(zip(node.children, node.visits, strict=True))
            if not c.closed and c not in path
        ]
        if node is not self.root and node.observation is None and self.trials.key(node.schedule) not in self.drafts:
            options.append((-1, node.own, node.own, node.stops))
        if not options:
            return None
        priors = self._priors(node, options)
        reach = self.settings.exploration * math.sqrt(1 + node.stops + sum(node.visits))
        chosen, highest = None, -math.inf
        for (index, _, value, visits), prior in zip(options, priors, strict=True):
            jitter = node.jitter if index < 0 else node.children[index].jitter
            # how fast the best below is, relative to the best anywhere: 0..1 whatever the kernel
            score = math.exp(min(value - self.root.value, 0.0)) + reach * prior / (1 + visits) + jitter
            if score > highest:
                chosen, highest = index, score
        return chosen

    def _priors(self, node: Node, options: Sequence[tuple[int, float, float, int]]) -> list[float]:
        """The prior of each option `(child or -1, own, value, visits)`: that of `stir`, else by what is predicted."""
        settings = self.settings
        if node.priors:
            weights = [node.stop_prior if i < 0 else node.priors[i] for i, *_ in options]
        elif settings.predictor_prior:
            top = max(own for _, own, _, _ in options)
            weights = [math.exp((own - top) / settings.temperature) for _, own, _, _ in options]
        else:
            weights = [1.0] * len(options)
        total, uniform = sum(weights) or 1.0, settings.uniform
        return [(1.0 - uniform) * weight / total + uniform / len(options) for weight in weights]

    def stir(self, node: Node, *, share: float, alpha: float) -> None:
        """Mixes Dirichlet noise into the priors of a node where simulations are to begin (AlphaZero), for self-play."""
        if node.children is None:
            self.expand(node)
        assert node.children is not None
        options = [(-1, node.own, node.own, node.stops)]
        options += [(i, c.own, c.value, n) for i, (c, n) in enumerate(zip(node.children, node.visits, strict=True))]
        drawn = [self.rng.gammavariate(alpha, 1.0) for _ in options]
        total = sum(drawn) or 1.0
        mixed = [(1.0 - share) * p + share * d / total for p, d in zip(self._priors(node, options), drawn, strict=True)]
        node.stop_prior, node.priors = mixed[0], mixed[1:]

    # ending

    def alike(self) -> list[Schedule]:
        """What only schedules alike were measured of: the last that is worth trying. No allocator grants it."""
        return [n.schedule for key, n in self.nodes.items() if key not in self.trials.observations]

    def frontier(self) -> Node | None:
        """The most promising node that was never expanded; None where the space is exhausted."""
        waiting = (n for n in self.nodes.values() if n.children is None)
        return max(waiting, key=lambda n: n.own + n.jitter, default=None)


def _raise(node: Node, value: float) -> None:
    """Gives a node at least this value, and all from which it is within reach (there may be cycles)."""
    rising = [node]
    while rising:
        node = rising.pop()
        if node.value < value:
            node.value = value
            rising.extend(node.parents)


# ---- Which schedules of a search graph are measured next: what promises most, and in turns with it what does not yet.
#
# What a correction expects is least certain where a search has not been, and less certain there than it says: of what
# was measured of Flux's kernels, the best that were left had been judged a sixth too slow by then. So once a kernel has
# some measurements every fourth goes to what is near the fastest of them, whatever is expected of the rest, and another
# fourth to a kind of schedule that was rarely measured.

USUAL, NEAR, BROAD = "usual", "near", "broad"
TOP: Final = 3
"""Tiles (what a thread computes) whose fastest schedules others are looked for near to."""


def candidates(graph: Graph, count: int) -> tuple[list[Schedule], list[Schedule]]:
    """At most `count` unmeasured schedules, the best expected first, and the one of them all that promises most, even
    where it is not its turn. One of those alike, drafts preferred, near duplicates kept apart; clears the drafts."""
    settings, trials = graph.settings, graph.trials
    turns = Counter(_turn(graph, len(trials.observations) + i) for i in range(count))
    near = _near(graph, turns[NEAR]) if turns[NEAR] else []
    pool = [(key, node) for key, node in graph.nodes.items() if node.observation is None]
    scores = [_score(graph, node) + settings.draft_bonus * (key in graph.drafts) for key, node in pool]
    graph.drafts.clear()
    places = leaders([trials.alike(node.schedule) for _, node in pool], scores)
    nodes, top = [pool[i][1] for i in places], [scores[i] for i in places]
    tiles, steps = [node.tile for node in nodes], [node.steps for node in nodes]
    usual = [nodes[i] for i in diverse(top, steps, count, penalty=settings.duplicate_penalty, tiles=tiles)]
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
    looks = not counted  # all that is near is predicted
    if measured % 4 == 0 and measured >= settings.near_from and looks:
        return NEAR
    if measured % 2 == 0 and measured >= settings.broad_from and graph.groups:
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
    """Those of kinds that were rarely measured, of candidates with their scores."""
    if not count:
        return []
    seen = Counter(graph.nodes[key].groups for key in graph.trials.observations if key in graph.nodes)
    predicted = [node.prediction.log_runtime for node, _ in rest]
    places = least_explored([node.groups for node, _ in rest], predicted, [score for _, score in rest], seen, count)
    return [rest[i][0] for i in places]


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
