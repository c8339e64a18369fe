"""Who draws the schedules of a kernel: walks over the whole space, and searches that go where it is fast.

A sampler is a function of what is known of the kernel, so that it can run in any process, at any time: it keeps no
state, and a resumed campaign goes on where the first one ended.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from kcg.errors import ScheduleError
from kcg.kernel.space import KernelSpace
from kcg.predictor.interface import Predictor
from kcg.types import RAW, Schedule

MAX_WALK = 8  # Opts of one random walk; BEAM's winners on Flux have 3 to 6
WALKS_A_BATCH = 8
GREEDY_CHOICES = 5  # legal steps, drawn at random, among which the best predicted is taken
NEAR_BEST = 5  # schedules around which `near:best` looks
MOST_VISITED = 20_000  # schedules whose steps `unseen` follows: some ten seconds of one core
BEAM_MIN_PROGRESS_S = 1e-8  # BEAM stops when the best improves by less: 0.01 µs, as in tinygrad

Draw = Callable[[random.Random], list[Schedule]]


@dataclass(frozen=True)
class View:
    """What a sampler sees of a kernel."""

    space: KernelSpace
    predictor: Predictor
    times_s: dict[str, float]  # by key of the schedule, of all that were measured; infinite where it failed
    known: dict[str, Schedule] = field(default_factory=dict)  # the same, the schedules


def sampler(name: str, view: View) -> Draw:
    """The sampler called `name`, as `kcg.campaign.settings.SAMPLER` spells them: the next schedules, which may contain
    some that are known already; none where the sampler has come to its end."""
    kind, _, argument = name.partition(":")
    if kind == "walk":
        origin = view.space.baseline() if argument == "hand-coded" else RAW
        return lambda rng: [_walk(view, rng, origin) for _ in range(WALKS_A_BATCH)]
    if kind == "near":
        return lambda rng: [_near_best(view, rng) for _ in range(WALKS_A_BATCH)]
    if kind == "greedy":
        return lambda rng: [_greedy_walk(view, rng, float(argument)) for _ in range(WALKS_A_BATCH)]
    width, _, children = argument.partition("/")
    return lambda rng: beam_level(view, rng, int(width), int(children) if children else None)


def _walk(view: View, rng: random.Random, origin: Schedule) -> Schedule:
    """A random legal walk of any length from `origin`."""
    schedule = origin
    for _ in range(rng.randint(1, MAX_WALK)):
        step = view.space.random_step(schedule, rng)
        if step is None:
            break
        schedule = step
    return schedule


def _near_best(view: View, rng: random.Random) -> Schedule:
    """One of the fastest measured so far, up to two of its last Opts taken back, and one to three others instead."""
    fastest = sorted((seconds, key) for key, seconds in view.times_s.items() if math.isfinite(seconds))[:NEAR_BEST]
    known = [view.known[key] for _, key in fastest if key in view.known]
    opts = (rng.choice(known) if known else view.space.baseline()).opts
    schedule = Schedule.from_opts(opts[: max(0, len(opts) - rng.randint(0, 2))])
    for _ in range(rng.randint(1, 3)):
        schedule = view.space.random_step(schedule, rng) or schedule
    return schedule


def _greedy_walk(view: View, rng: random.Random, epsilon: float) -> Schedule:
    """A walk from the unoptimised kernel that takes a random step with probability `epsilon`, else the best predicted
    of some, until none is better: where today's predictor would go, so that the next one learns where it is wrong."""
    schedule, best = RAW, math.inf
    for _ in range(MAX_WALK):
        at_random = rng.random() < epsilon
        drawn = [view.space.random_step(schedule, rng) for _ in range(1 if at_random else GREEDY_CHOICES)]
        steps = list(dict.fromkeys(s for s in drawn if s is not None))
        if not steps:
            break
        expected = [p.log_runtime for p in view.predictor.predict(view.space, steps)]
        if not at_random and min(expected) >= best:
            break
        best = min(expected)
        schedule = steps[expected.index(best)]
    return schedule


def beam_level(view: View, rng: random.Random, width: int, children: int | None) -> list[Schedule]:
    """What tinygrad's BEAM would measure next, by the times of this campaign; nothing where it has ended.

    Of each level the `width` fastest lead to the next. All legal steps of a level are measured, or `children` of them
    drawn at random. It begins at the unoptimised kernel and ends when a level's best improves on the last by less than
    0.01 µs, so it cannot cross a valley.
    """
    return beam_state(view, rng, width, children)[0]


def beam_winner(view: View, width: int) -> Schedule | None:
    """What a complete BEAM search of that width ended with; None where nothing worked."""
    return beam_state(view, random.Random(0), width, None)[1]


def beam_state(
    view: View, rng: random.Random, width: int, children: int | None
) -> tuple[list[Schedule], Schedule | None]:
    """What the search asks for next, and the fastest it knows of."""
    kept, record_s, seen = [RAW], math.inf, {view.space.key(RAW)}
    winner: Schedule | None = None
    while kept:
        level: dict[str, Schedule] = {}
        for schedule in kept:
            for action in view.space.actions(schedule):
                key = view.space.key(action.schedule)
                if key not in seen:
                    level.setdefault(key, action.schedule)
        seen.update(level)
        measured = {key: view.times_s[key] for key in level if key in view.times_s}
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


def unseen(view: View, rng: random.Random, seen: Collection[str]) -> Iterator[Schedule]:
    """Every schedule that steps lead to and whose identity is not in `seen`, those of few steps first and at random
    among these; ends when the space does, or after `MOST_VISITED` that are in `seen`: of so large a space walks find
    new ones."""
    reached = {view.space.key(start): start for start in (RAW, view.space.baseline())}
    level, visited = list(reached), 0
    while level:
        rng.shuffle(level)
        for key in level:
            if key not in seen:
                yield reached[key]
        after: list[str] = []
        for key in level:
            visited += 1
            if visited > MOST_VISITED:
                return
            for action in view.space.actions(reached[key]):
                child = view.space.key(action.schedule)
                if child not in reached:
                    reached[child] = action.schedule
                    after.append(child)
        level = after


def key_of(space: KernelSpace, schedule: Schedule) -> str | None:
    """The identity of a schedule, None where it does not apply."""
    try:
        return space.key(schedule)
    except ScheduleError:
        return None
