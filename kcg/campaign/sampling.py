"""Drawing the next schedules of one kernel: what a compiling child does for a campaign, since it takes a core."""

from __future__ import annotations

import functools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kcg.campaign.samplers import KernelState, chance, sampler
from kcg.dataset.choices import HAND_CODED
from kcg.errors import ScheduleError
from kcg.kernel.kinds import LONG_UOPS, CountsUops, Space, baseline_of, own_kind
from kcg.kernel.kinds import space_of as fresh_space_of
from kcg.predictor.choice import AUTO, deferred
from kcg.predictor.cost import guiding
from kcg.predictor.interface import judge_of
from kcg.predictor.roofline import Roofline
from kcg.search.uniform import CERTAIN, SLOWEST_S, UNKNOWN, Chance
from kcg.search.workers import FromItsStart
from kcg.types import Region, Schedule, Target

MOST_VISITED = 20_000  # schedules whose steps `unseen` follows: some ten seconds of one core


def unseen(state: KernelState, rng: random.Random, seen: Collection[str]) -> Iterator[Schedule]:
    """Every schedule that steps lead to and whose identity is not in `seen`, those of few steps first and at random
    among these; ends when the space does, or after `MOST_VISITED` that are in `seen`: of so large a space walks find
    new ones."""
    reached = {state.space.key(start): start for start in (state.space.start(), state.space.baseline())}
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
            for action in state.space.actions(reached[key]):
                child = state.space.key(action.schedule)
                if child not in reached:
                    reached[child] = action.schedule
                    after.append(child)
        level = after


def key_of(space: Space, schedule: Schedule) -> str | None:
    """The identity of a schedule, None where it does not apply."""
    try:
        return space.key(schedule)
    except ScheduleError:
        return None


LONG_SHARE = 1 / 3
"""Of the random schedules whose code is longer than `LONG_UOPS`, so many are drawn. Searches and what is near the best
are never thinned."""

THINNED = ("walk:", "greedy:", "random")
BEGINNING = {True: "raw", False: "start"}  # of where the space begins: of the kind of tinygrad's own choice, or another
REST = "rest"  # the same of what no sampler finds, in a small space
SPACES_KEPT = 8


@dataclass(frozen=True)
class Known:
    """A schedule that was measured, or will be."""

    schedule: Schedule
    sampler: str
    time_s: float  # infinite where it failed, or was not measured yet
    key: str = ""  # empty: not computed yet
    waits: bool = False  # it is compiled, and not measured yet


@dataclass(frozen=True)
class Choice:
    """A schedule that was drawn, and how."""

    schedule: Schedule
    sampler: str
    key: str
    pool: str = ""  # see `kcg.campaign.samplers.Chance`
    probability: float | None = None
    expected_s: float = 0.0  # what was expected of it, in seconds
    expected_failure: float = 0.0  # and how likely it was expected to fail


@dataclass(frozen=True)
class DrawJob:
    """What is known of a region, and how many schedules of a kind it is to have."""

    region: Region
    target: Target
    known: tuple[Known, ...]
    wanted: int
    mix: tuple[tuple[str, float], ...]
    seed: str
    ended: frozenset[str] = frozenset()  # samplers that have nothing more to draw
    most: int = 64  # schedules of the batch
    predictor: str = AUTO  # whom a greedy sampler follows, as `choose_predictor` takes it
    fill: bool = True  # whether what no sampler finds is drawn too, for the sake of `wanted`
    kind: str = ""  # of the schedules; empty: that of tinygrad's own choice


@dataclass(frozen=True)
class Drawn:
    """The next schedules, and what was found out on the way."""

    batch: tuple[Choice, ...]
    keys: tuple[str, ...]  # of `DrawJob.known`, in order; empty where a schedule does not apply
    ended: frozenset[str]
    why_not: str = ""  # why nothing can be drawn
    draw_s: float = 0.0  # how long that took


def draw_timed(draw: Callable[[Any], Drawn], job: Any) -> Drawn:
    """What `draw` answers, with the seconds that it took."""
    begin = time.perf_counter()
    answer = draw(job)
    return replace(answer, draw_s=time.perf_counter() - begin)


@functools.lru_cache(SPACES_KEPT)
def space_of(region: Region, target: Target, kind: str = "") -> Space:
    """The space of a kind, by default of the one that holds the region's baseline; of another one as a search sees it.
    Raises as `kcg.kernel.kinds.space_of`."""
    space = fresh_space_of(region, target, kind)
    return space if kind in ("", own_kind(region)) else FromItsStart(space)


def keys_of(space: Space, known: tuple[Known, ...]) -> tuple[str, ...]:
    """The identity of each known schedule, empty where it does not apply."""
    return tuple(one.key or key_of(space, one.schedule) or "" for one in known)


def draw(job: DrawJob) -> Drawn:
    """The next batch: tinygrad's own choice and the unoptimised kernel first, then some of every sampler that has not
    had its share, so that searches advance while walks fill the rest. What samplers cannot draw of their shares is the
    others', and where none finds anything new the space is counted through: a kernel gets as many schedules as are
    wanted, or all that it has. None of the batch is known."""
    try:
        space = space_of(job.region, job.target, job.kind)
        begins = space.start()
        baseline = baseline_of(job.region, job.target) if isinstance(space, FromItsStart) else space.baseline()
    except ScheduleError as error:
        return Drawn((), ("",) * len(job.known), job.ended, str(error))
    keys = keys_of(space, job.known)
    # tinygrad's own choice may be of another kind: nothing is near it, and no search begins there
    known = {key: k for key, k in zip(keys, job.known, strict=True) if key and k.schedule.kind == begins.kind}
    times = {key: k.time_s for key, k in known.items() if not k.waits}
    schedules = {key: k.schedule for key, k in known.items()}
    guide = guiding(space, deferred(job.predictor, job.target))
    waiting = {key for key, k in known.items() if k.waits}
    drawing = _Drawing(job, KernelState(space, guide, times, schedules, waiting))
    drawing.add_baseline(baseline)
    drawing.add(begins, BEGINNING[baseline.kind == begins.kind], chance=CERTAIN)
    fixed = len(drawing.batch)
    drawing.assign()
    while len(drawing.batch) == fixed and (open_ := drawing.open()):
        for who in open_:
            drawing.ask(who)
    if job.fill and len(drawing.batch) == fixed:
        drawing.take_rest()
    return Drawn(tuple(drawing.batch), keys, frozenset(drawing.ended))


def shares(mix: Sequence[tuple[str, float]], count: int) -> dict[str, int]:
    """So many schedules, dealt by the shares of a mix, none lost by rounding: the largest remainders get one more."""
    total = sum(share for _, share in mix)
    exact = {who: count * share / total for who, share in mix}
    assigned = {who: math.floor(part) for who, part in exact.items()}
    by_remainder = sorted(exact, key=lambda who: assigned[who] - exact[who])
    for who in by_remainder[: count - sum(assigned.values())]:
        assigned[who] += 1
    return assigned


class _Drawing:
    """A batch in the making."""

    def __init__(self, job: DrawJob, state: KernelState) -> None:
        self.job, self.state = job, state
        self.batch: list[Choice] = []
        self.ended = set(job.ended)
        self.taken = set(state.known) | set(state.times_s)
        self._judge = judge_of(guiding(state.space, Roofline()), state.space)
        self.asked = 0
        self.left = min(job.wanted - len(job.known), job.most)
        self.by_sampler = Counter(known.sampler for known in job.known)
        self.share: dict[str, int] = {}

    def assign(self) -> None:
        """The samplers' shares of what is wanted beside what others drew."""
        others = sum(count for who, count in self.by_sampler.items() if who not in dict(self.job.mix))
        self.share = shares(self.job.mix, max(self.job.wanted - others, 0))

    def open(self) -> list[str]:
        """The samplers that may draw more, those that had least of their share first. When all have had theirs and
        there is room, because some had nothing more to draw, the shares of those that go on grow."""
        if self.left <= 0:
            return []
        able = tuple((who, share) for who, share in self.job.mix if who not in self.ended)
        if able and all(self.by_sampler[who] >= self.share[who] for who, _ in able):
            for who, more in shares(able, self.left).items():
                self.share[who] = self.by_sampler[who] + more
        served = {who: self.by_sampler[who] / self.share[who] for who, _ in able if self.share[who]}
        return sorted((who for who, part in served.items() if part < 1), key=served.__getitem__)

    def ask(self, who: str) -> None:
        """Take what a sampler draws next, as far as there is room. One that draws nothing new has ended."""
        if self.left <= 0:
            return
        self.asked += 1  # else a batch of which all was left out would be drawn again for ever
        rng = random.Random(f"{self.job.seed}:{who}:{self.by_sampler[who]}:{len(self.taken)}:{self.asked}")
        new = 0
        for schedule in sampler(who)(self.state, rng):
            if self.by_sampler[who] < self.share[who]:
                new += self.add(schedule, who, rng, chance=chance(who, self.state, schedule))
        if not new and self.left > 0:
            self.ended.add(who)

    def take_rest(self) -> None:
        """Schedules that no sampler drew, as far as there is room and the space has some."""
        rng = random.Random(f"{self.job.seed}:{REST}:{len(self.taken)}")
        for schedule in unseen(self.state, rng, self.taken):
            if self.left <= 0:
                return
            self.add(schedule, REST)

    def add_baseline(self, schedule: Schedule) -> None:
        """Take tinygrad's own choice, whatever is expected of it, unless it is known. It may be of another kind."""
        key = key_of(self.state.space, schedule) or schedule.id
        if self.left <= 0 or key in self.taken or any(known.schedule == schedule for known in self.job.known):
            return
        self._take(Choice(schedule, HAND_CODED, key, CERTAIN.pool, CERTAIN.probability))

    def add(self, schedule: Schedule, who: str, rng: random.Random | None = None, *, chance: Chance = UNKNOWN) -> bool:
        """Take a schedule into the batch; whether it is a new one. With `rng` a long random one may be left out, and is
        new all the same: it may be drawn again, so that its sampler has not come to its end."""
        key = key_of(self.state.space, schedule)
        if key is None or key in self.taken or self.left <= 0:
            return False
        space = self.state.space
        thinned = rng is not None and who.startswith(THINNED)
        is_long = thinned and isinstance(space, CountsUops) and space.uops(schedule) > LONG_UOPS
        if rng is not None and is_long and rng.random() >= LONG_SHARE:
            return True
        (expected,) = self._judge.predict([schedule])
        if expected.runtime_s > SLOWEST_S:
            # as good as measured, for a search: it would not be kept
            self.taken.add(key)
            self.state.times_s[key], self.state.known[key] = math.inf, schedule
            return False
        fails = expected.failure_probability
        self._take(Choice(schedule, who, key, chance.pool, chance.probability, expected.runtime_s, fails))
        return True

    def _take(self, choice: Choice) -> None:
        self.taken.add(choice.key)
        self.batch.append(choice)
        self.state.drawn.add(choice.key)
        self.by_sampler[choice.sampler] += 1
        self.left -= 1
