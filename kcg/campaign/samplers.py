"""Who draws the schedules of a campaign: samplers by name, each a function of a space and of what was measured there.

A sampler sees a `Space` only, whatever its kind. It keeps no state, so that it can run in any process, at any time, and
a resumed campaign goes on where the first one ended.
"""

from __future__ import annotations

import functools
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from kcg.dataset.choices import UNIFORM
from kcg.errors import UnknownName
from kcg.kernel.kinds import Shortens, Space, kind_of
from kcg.predictor.interface import Judge, Predictor, judge_of
from kcg.search.problem import Ledger, Observation, Problem
from kcg.search.strategies import strategy
from kcg.search.uniform import CERTAIN, UNKNOWN, Chance, Legal
from kcg.types import Schedule, Status

MAX_WALK = 8  # Opts of one random walk; BEAM's winners on Flux have 3 to 6
WALKS_A_BATCH = 8
GREEDY_CHOICES = 5  # legal steps, drawn at random, among which the best predicted is taken
NEAR_BEST = 5  # schedules around which `near:best` looks
NEAR_PRIOR = 2  # of the kind's own choices, around which `near:prior` looks
SHARPNESS = 8.0  # what is expected to take twice as long is chosen by `near:prior` 2**SHARPNESS times as rarely
FEW = 500  # legal schedules of a space, of which `uniform` draws twice as many at once
BEAM_MIN_PROGRESS_S = 1e-8  # BEAM stops when the best improves by less: 0.01 µs, as in tinygrad


@dataclass(frozen=True)
class KernelState:
    """What a sampler sees of a kernel."""

    space: Space
    predictor: Predictor
    times_s: dict[str, float]  # by key of the schedule, of all that were measured; infinite where it failed
    known: dict[str, Schedule] = field(default_factory=dict)  # the same, the schedules
    drawn: set[str] = field(default_factory=set)  # keys of what was drawn and is not measured yet

    @functools.cached_property
    def judge(self) -> Judge:
        """What is expected of the space's schedules."""
        return judge_of(self.predictor, self.space)

    @functools.cached_property
    def legal(self) -> Legal:
        """All legal schedules."""
        return Legal(self.space)

    @functools.cached_property
    def near_prior(self) -> dict[Schedule, float]:
        """The kind's own choices and their neighbours, each with its chance in a draw of `near:prior`."""
        first = self.space.prior()[:NEAR_PRIOR] or [self.space.start()]
        pool = list(dict.fromkeys([*first, *(other for one in first for other in self.space.neighbours(one))]))
        expected = [prediction.log_runtime for prediction in self.judge.predict(pool)]
        weights = [math.exp(SHARPNESS * (min(expected) - one)) for one in expected]
        return {one: weight / sum(weights) for one, weight in zip(pool, weights, strict=True)}

    @functools.cached_property
    def near_best(self) -> dict[Schedule, float]:
        """The neighbours of the fastest that were measured, or of where steps begin before any was, each with its
        chance in a draw of `near:best`: one of the fastest at random, then one of its neighbours."""
        around = {one: self.space.neighbours(one) for one in fastest(self, NEAR_BEST) or [self.space.start()]}
        chances: dict[Schedule, float] = {}
        for neighbours in around.values():
            for other in neighbours:
                chances[other] = chances.get(other, 0.0) + 1 / (len(around) * len(neighbours))
        total = sum(chances.values())  # less than 1 where one has no neighbours
        return {one: chance / total for one, chance in chances.items()}


Draw = Callable[[KernelState, random.Random], list[Schedule]]
"""The next schedules, which may contain some that are known already; none where the sampler has come to its end."""


def _walk(state: KernelState, rng: random.Random, origin: Schedule) -> Schedule:
    """A random legal walk of any length from `origin`."""
    schedule = origin
    for _ in range(rng.randint(1, MAX_WALK)):
        step = state.space.sample(rng, schedule)
        if step is None:
            break
        schedule = step
    return schedule


def fastest(state: KernelState, count: int) -> list[Schedule]:
    """The fastest that were measured, the first first."""
    ran = sorted((seconds, key) for key, seconds in state.times_s.items() if math.isfinite(seconds))
    return [state.known[key] for _, key in ran[:count] if key in state.known]


def _has_steps(state: KernelState) -> bool:
    """Whether schedules of the space are lists of steps, of which the last can be taken back."""
    return isinstance(kind_of(state.space.start()), Shortens)


def _near_best(state: KernelState, rng: random.Random) -> list[Schedule]:
    if not _has_steps(state):
        return _drawn(state.near_best, rng)
    return [_changed_steps(state, rng) for _ in range(WALKS_A_BATCH)]


def _changed_steps(state: KernelState, rng: random.Random) -> Schedule:
    """One of the fastest measured so far, up to two of its last Opts taken back, and one to three others instead."""
    known = fastest(state, NEAR_BEST)
    origin = rng.choice(known) if known else state.space.baseline()
    kind, back = kind_of(origin), rng.randint(0, 2)
    schedule = kind.shortened(origin, back) if isinstance(kind, Shortens) else origin
    for _ in range(rng.randint(1, 3)):
        schedule = state.space.sample(rng, schedule) or schedule
    return schedule


def _drawn(chances: Mapping[Schedule, float], rng: random.Random) -> list[Schedule]:
    """Some of a pool by their chances, each draw by itself; of those that are likely one may come again, so that as
    many are drawn as it takes to meet a new one."""
    if not chances:
        return []
    return rng.choices(list(chances), list(chances.values()), k=max(WALKS_A_BATCH, 2 * len(chances)))


def _uniform(state: KernelState, rng: random.Random) -> list[Schedule]:
    few = state.legal.count <= FEW  # of those one may come again: as many are drawn as it takes to meet a new one
    found = [state.legal.draw(rng) for _ in range(2 * int(state.legal.count) if few else WALKS_A_BATCH)]
    return [one for one in found if one is not None]


def _greedy_walk(state: KernelState, rng: random.Random, epsilon: float) -> Schedule:
    """A walk from the unoptimised kernel that takes a random step with probability `epsilon`, else the best predicted
    of some, until none is better: where today's predictor would go, so that the next one learns where it is wrong."""
    schedule, best = state.space.start(), math.inf
    for _ in range(MAX_WALK):
        at_random = rng.random() < epsilon
        drawn = [state.space.sample(rng, schedule) for _ in range(1 if at_random else GREEDY_CHOICES)]
        steps = list(dict.fromkeys(s for s in drawn if s is not None))
        if not steps:
            break
        expected = [p.log_runtime for p in state.judge.predict(steps)]
        if not at_random and min(expected) >= best:
            break
        best = min(expected)
        schedule = steps[expected.index(best)]
    return schedule


def beam_level(state: KernelState, rng: random.Random, width: int, children: int | None) -> list[Schedule]:
    """What tinygrad's BEAM would measure next, by the times of this campaign; nothing where it has ended.

    Of each level the `width` fastest lead to the next. All legal steps of a level are measured, or `children` of them
    drawn at random. It begins at the unoptimised kernel and ends when a level's best improves on the last by less than
    0.01 µs, so it cannot cross a valley.
    """
    return beam_state(state, rng, width, children)[0]


def beam_winner(state: KernelState, width: int) -> Schedule | None:
    """What a complete BEAM search of that width ended with; None where nothing worked."""
    return beam_state(state, random.Random(0), width, None)[1]


def beam_state(
    state: KernelState, rng: random.Random, width: int, children: int | None
) -> tuple[list[Schedule], Schedule | None]:
    """What the search asks for next, and the fastest it knows of."""
    start = state.space.start()
    kept, record_s, seen = [start], math.inf, {state.space.key(start)}
    winner: Schedule | None = None
    while kept:
        level: dict[str, Schedule] = {}
        for schedule in kept:
            for action in state.space.actions(schedule):
                key = state.space.key(action.schedule)
                if key not in seen:
                    level.setdefault(key, action.schedule)
        seen.update(level)
        measured = {key: state.times_s[key] for key in level if key in state.times_s}
        missing = [schedule for key, schedule in level.items() if key not in measured]
        short = min(children or len(level), len(level)) - len(measured)
        if short > 0:
            return missing if children is None else rng.sample(missing, short), winner
        fastest = sorted((seconds, key) for key, seconds in measured.items() if math.isfinite(seconds))
        if not fastest or fastest[0][0] > record_s - BEAM_MIN_PROGRESS_S:
            break
        record_s = fastest[0][0]
        kept = [level[key] for _, key in fastest[:width]]
        winner = kept[0]
    return [], winner


class _Asked(Exception):
    """What a search would have measured next."""

    def __init__(self, batch: Sequence[Schedule]) -> None:
        self.batch = list(batch)


def _searching(name: str) -> Draw:
    """What a search strategy would measure next, that knows all that was measured. What was drawn and not measured yet
    takes as long for it as is expected (as in parallel Bayesian optimisation: Ginsbourger et al., 2010)."""

    def draw(state: KernelState, rng: random.Random) -> list[Schedule]:
        judge, space = state.judge, state.space

        def measure(batch: Sequence[Schedule]) -> list[Future[Observation]]:
            if fresh := [one for one in batch if space.key(one) not in state.drawn]:
                raise _Asked(fresh)
            return [_believed(one, p.runtime_s) for one, p in zip(batch, judge.predict(batch), strict=True)]

        known = {one: _seen(one, state.times_s[key]) for key, one in state.known.items() if key in state.times_s}
        problem = Problem(
            space, judge.predict, measure, Ledger(), rng, batch_size=WALKS_A_BATCH, known=known, correct=judge.correct
        )
        try:
            for _ in strategy(name)(problem):
                pass
        except _Asked as asked:
            return asked.batch
        return []

    return draw


def _believed(schedule: Schedule, time_s: float) -> Future[Observation]:
    future: Future[Observation] = Future()
    future.set_result(_seen(schedule, time_s))
    return future


def _seen(schedule: Schedule, time_s: float) -> Observation:
    """What is known of a schedule; of one that failed not how, which no strategy asks."""
    ran = math.isfinite(time_s)
    return Observation(schedule, Status.OK if ran else Status.LAUNCH_ERROR, time_s if ran else None)


# ---- The registry


@dataclass(frozen=True)
class Sampler:
    """A sampler of the registry."""

    pattern: str  # of its name
    make: Callable[..., Draw]  # of the groups of the pattern
    about: str
    chance: Callable[[KernelState, Schedule], Chance] = lambda state, schedule: UNKNOWN


def _of_uniform(state: KernelState, schedule: Schedule) -> Chance:
    return state.legal.chance


def _of_near_prior(state: KernelState, schedule: Schedule) -> Chance:
    return Chance(f"near prior:{len(state.near_prior)}", state.near_prior.get(schedule))


def _of_near_best(state: KernelState, schedule: Schedule) -> Chance:
    if _has_steps(state):
        return UNKNOWN
    return Chance(f"near best:{len(state.near_best)}", state.near_best.get(schedule))


def _certain(state: KernelState, schedule: Schedule) -> Chance:
    return CERTAIN


def _several(one: Callable[[KernelState, random.Random], Schedule]) -> Draw:
    return lambda state, rng: [one(state, rng) for _ in range(WALKS_A_BATCH)]


def _beam(width: str, children: str | None = None) -> Draw:
    return lambda state, rng: beam_level(state, rng, int(width), int(children) if children else None)


SAMPLERS: Final[Mapping[str, Sampler]] = {
    "walk:raw": Sampler(
        "walk:raw",
        lambda: _several(lambda state, rng: _walk(state, rng, state.space.start())),
        "random legal walks from where steps begin",
    ),
    "walk:hand-coded": Sampler(
        "walk:hand-coded",
        lambda: _several(lambda state, rng: _walk(state, rng, state.space.baseline())),
        "random legal walks from tinygrad's own choice",
    ),
    "beam:WIDTH": Sampler(r"beam:([1-9]\d{0,2})", _beam, "what tinygrad's BEAM of that width would measure"),
    "beam:WIDTH/CHILDREN": Sampler(
        r"beam:([1-9]\d{0,2})/([1-9]\d{0,3})", _beam, "the same, so many children of each level at random"
    ),
    "greedy:EPSILON": Sampler(
        r"greedy:(0|1|0?\.\d+|1\.0+)",
        lambda epsilon: _several(lambda state, rng: _greedy_walk(state, rng, float(epsilon))),
        "walks along the steps predicted best of some, each at random with that probability",
    ),
    "near:best": Sampler(
        "near:best",
        lambda: _near_best,
        "the fastest measured so far, their last steps changed; where there are no steps, one of their neighbours",
        _of_near_best,
    ),
    "near:prior": Sampler(
        "near:prior",
        lambda: lambda state, rng: _drawn(state.near_prior, rng),
        "the kind's own choices and their neighbours, what is expected to be fast more often",
        _of_near_prior,
    ),
    UNIFORM: Sampler(UNIFORM, lambda: _uniform, "all legal schedules, each as likely", _of_uniform),
    "random": Sampler("random", lambda: _searching("random"), "what `--search random` would measure next"),
    "prior": Sampler("prior", lambda: _searching("prior"), "what `--search prior` would measure next", _certain),
    "mcts": Sampler("mcts", lambda: _searching("mcts"), "what `--search mcts` would measure next"),
}
"""Every sampler of `--samplers`, as it is spelled there."""


@functools.cache
def sampler(name: str) -> Draw:
    """The sampler of a name, as `beam:2/8`. Raises UnknownName."""
    one, groups = _named(name)
    return one.make(*groups)


def chance(name: str, state: KernelState, schedule: Schedule) -> Chance:
    """With which probability the sampler of a name draws a schedule, knowing what `state` holds. Raises UnknownName."""
    return _named(name)[0].chance(state, schedule)


@functools.cache
def _named(name: str) -> tuple[Sampler, tuple[str, ...]]:
    for one in SAMPLERS.values():
        if (found := re.fullmatch(one.pattern, name)) is not None:
            return one, found.groups()
    raise UnknownName("sampler", name, list(SAMPLERS))
